//! `redhare cluster rebalance`: how evenly the nodes are used.

use clap::{Args, Subcommand};
use foundation::ByteCount;
use master::view::{BalanceView, about_left, short};
use master::{Client, v1};

use super::cluster::ClusterArguments;
use crate::output::{Failure, Output};

/// What the masters do with the cluster as a whole
#[derive(Args)]
#[command(after_help = "Example:\n  redhare cluster rebalance")]
pub(crate) struct ClusterCommands {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Say how evenly the nodes are used, and stop or start copies moving by themselves
    #[command(
        after_help = "Examples:\n  redhare cluster rebalance\n  redhare cluster rebalance --stop\n  redhare cluster rebalance --start\n\nWhen nodes or disks \
        were added, copies move in the background, a few at a time, until every node is used to the same share of its capacity, and then every disk of each node. It begins \
        at a difference of 5 % of the mean, ends at 2 %, and waits while chunks lack copies or are drained. \
        Volumes serve all the while; writes to a chunk wait for up to a grant term (3 s) when its old copy is taken away. \
        \"redhare master --no-rebalance\" forbids it."
    )]
    Rebalance(RebalanceArguments),
}

#[derive(Args)]
struct RebalanceArguments {
    /// Only say how it is, as without any of these
    #[arg(long, conflicts_with_all = ["stop", "start"])]
    status: bool,
    /// Begin no more moves; those under way go on
    #[arg(long, conflicts_with = "start")]
    stop: bool,
    /// Move copies again
    #[arg(long)]
    start: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What people read of it.
pub(crate) fn describe(view: &BalanceView) -> String {
    let state = match view.state {
        "off" => "off by configuration".to_owned(),
        "stopped" => "stopped; \"redhare cluster rebalance --start\" lets copies move again".to_owned(),
        "waiting" => format!("waits: {}", view.waits_for),
        "moving" if view.moves.is_empty() && !view.disk_moves.is_empty() => {
            "copies move between the disks of nodes".to_owned()
        }
        "moving" => format!(
            "copies move, {} too much on some nodes{}",
            ByteCount(view.left_bytes),
            about_left(view.left_seconds)
        ),
        "even" => "nothing is to be moved".to_owned(),
        _ => return "rebalancing: these masters do not say".to_owned(),
    };
    let mut text = format!(
        "rebalancing: {state} (nodes are used {:.1} % to {:.1} %, all together {:.1} %)",
        view.least_percent, view.most_percent, view.all_percent
    );
    for row in &view.moves {
        let left = match (row.left_bytes, row.total_bytes) {
            (Some(left), Some(total)) => format!(", {} of {} left", ByteCount(left), ByteCount(total)),
            _ => String::new(),
        };
        let asked = if row.by_command { ", by command" } else { "" };
        text.push_str(&format!(
            "\n  chunk {} of volume {} moves from {} to {}{left}{asked}",
            row.chunk,
            row.volume,
            short(&row.from),
            short(&row.to)
        ));
    }
    for row in &view.disk_moves {
        text.push_str(&format!(
            "\n  chunk {} of volume {} moves on {} from disk {} to {}",
            row.chunk,
            row.volume,
            short(&row.node),
            short(&row.from),
            short(&row.to)
        ));
    }
    text
}

pub(crate) fn run(arguments: &ClusterCommands, output: &Output) -> Result<(), Failure> {
    let ClusterCommand::Rebalance(arguments) = &arguments.command;
    let allowed = match (arguments.start, arguments.stop) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let request = v1::RebalanceRequest { allowed };
    let call = |client: Client| async move { client.rebalance(request).await };
    let answer = arguments.cluster.call(call)?;
    let volumes = arguments.cluster.status()?.volumes;
    let view = BalanceView::of(answer.balance.as_ref(), &volumes);
    output.print(&view, || describe(&view));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_is_shown_with_what_is_left_of_it() {
        let (from, to) = (vec![0x6f; 16], vec![0x0b; 16]);
        let moving = v1::Moving {
            volume: 3,
            index: 7,
            from,
            to: to.clone(),
            by_command: true,
        };
        let resync = v1::Resync {
            volume: 3,
            index: 7,
            node: to,
            left_bytes: 1 << 20,
            total_bytes: 4 << 20,
            elapsed_ms: 5,
        };
        let volume = v1::VolumeStatus {
            resyncs: vec![resync],
            ..v1::VolumeStatus::default()
        };
        let balance = v1::Balance {
            state: v1::BalanceState::Moving.into(),
            moves: vec![moving],
            least_millionths: 100_000,
            all_millionths: 210_000,
            most_millionths: 305_000,
            left_bytes: 5 << 20,
            ..v1::Balance::default()
        };
        let between_disks = v1::Balance {
            moves: Vec::new(),
            disk_moves: vec![v1::DiskMoving {
                volume: 3,
                index: 8,
                node: vec![0x6f; 16],
                from: vec![0x0c; 16],
                to: vec![0x0d; 16],
            }],
            ..balance.clone()
        };
        let view = BalanceView::of(Some(&between_disks), &[]);
        assert_eq!(
            describe(&view),
            "rebalancing: copies move between the disks of nodes (nodes are used 10.0 % to 30.5 %, all together 21.0 %)\n  \
            chunk 8 of volume 3 moves on 6f6f6f6f from disk 0c0c0c0c to 0d0d0d0d"
        );
        assert_eq!(
            view.doing().as_deref(),
            Some("1 copies move to other disks of their nodes")
        );
        assert_eq!(
            describe(&BalanceView::of(Some(&balance), &[volume])),
            "rebalancing: copies move, 5 MiB too much on some nodes (nodes are used 10.0 % to 30.5 %, all together 21.0 %)\n  \
            chunk 7 of volume 3 moves from 6f6f6f6f to 0b0b0b0b, 1 MiB of 4 MiB left, by command"
        );
    }
}
