//! `redhare meta restored`: masters whose metadata are from a backup find out what the nodes have done since.

use clap::Args;
use foundation::uuid::parse_uuid;
use master::view::RestoredView;
use master::{Client, v1};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

#[derive(Args)]
pub(super) struct RestoredArguments {
    /// This node is switched off, and nobody has to wait for it (UUID; several times for several)
    #[arg(long, value_name = "NODE")]
    without_node: Vec<String>,
    /// This volume came after the backup and is given up; its copies stay on the disks (number; several times for several)
    #[arg(long, value_name = "NUMBER")]
    without_volume: Vec<u32>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

fn describe(view: &RestoredView) -> String {
    if !view.restored {
        return "The masters' metadata are the newest there are.".to_owned();
    }
    let of = match view.revision {
        0 => "an old store, as nodes made known".to_owned(),
        revision => format!("a backup of revision {revision}"),
    };
    let mut text = format!(
        "The masters' metadata are from {of}.\n{} of {} chunks are settled on what nodes have done since. Until all are, nothing else changes; clients that are connected need no master, others wait.",
        view.settled_chunks, view.chunks
    );
    for row in &view.awaited {
        let chunks = match row.chunks {
            0 => "has not said which copies it has".to_owned(),
            chunks => format!("has not said how its copies of {chunks} chunks are"),
        };
        text.push_str(&format!("\n  ! node {} {chunks}: start it; if it is gone for good, switch it off and repeat with --without-node {}", row.node, row.node));
    }
    for row in &view.refused {
        text.push_str(&format!(
            "\n  ! chunk {} of volume {}: {}",
            row.chunk, row.volume, row.why
        ));
    }
    let shown = u32::try_from(view.refused.len()).unwrap_or(u32::MAX);
    if view.refused_chunks > shown {
        text.push_str(&format!("\n  ! and {} more chunks", view.refused_chunks - shown));
    }
    for number in &view.unknown_volumes {
        text.push_str(&format!(
            "\n  ! nodes have copies of volume {number}, which came after the backup: stop the cluster and use \"redhare meta rebuild --backup\", which brings it back; or give it up with --without-volume {number} (its copies stay on the disks)"
        ));
    }
    for number in &view.grown_volumes {
        text.push_str(&format!(
            "\n  ! volume {number} has grown since the backup: stop the cluster and use \"redhare meta rebuild --backup\", which knows its new size"
        ));
    }
    text
}

pub(super) fn run(arguments: &RestoredArguments, output: &Output) -> Result<(), Failure> {
    let without_nodes = arguments
        .without_node
        .iter()
        .map(|node| match parse_uuid(node) {
            Some(number) => Ok(number.to_vec()),
            None => Err(Failure::new(format!(
                "\"{node}\" is no node's UUID; \"redhare status\" shows them"
            ))),
        })
        .collect::<Result<_, Failure>>()?;
    let request = v1::RestoredRequest {
        without_nodes,
        without_volumes: arguments.without_volume.clone(),
    };
    let call = |client: Client| async move { client.restored(request).await };
    let answer = arguments.cluster.call(call)?;
    let view = RestoredView::of(answer.restored.as_ref());
    output.print(&view, || describe(&view));
    Ok(())
}

#[cfg(test)]
mod tests {
    use master::uuid_text;

    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let status = v1::RestoredStatus {
            revision: 41,
            settled_chunks: 2,
            chunks: 4,
            awaited: vec![v1::AwaitedNode {
                node: vec![0x6f; 16],
                chunks: 1,
            }],
            refused: vec![v1::RefusedChunk {
                volume: 1,
                index: 3,
                why: "two nodes say different things of epoch 9".to_owned(),
            }],
            refused_chunks: 2,
            unknown_volumes: vec![7],
            grown_volumes: vec![1],
        };
        let view = RestoredView::of(Some(&status));
        let node = uuid_text(&[0x6f; 16]);
        let text = describe(&view);
        for part in [
            "from a backup of revision 41.\n2 of 4 chunks are settled".to_owned(),
            format!("node {node} has not said how its copies of 1 chunks are: start it"),
            format!("--without-node {node}"),
            "chunk 3 of volume 1: two nodes say different things of epoch 9\n  ! and 1 more chunks"
                .to_owned(),
            "volume 7, which came after the backup".to_owned(),
            "volume 1 has grown since the backup".to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
        assert!(view.trouble().unwrap().contains("2 of 4 chunks are settled"));
        assert_eq!(RestoredView::default().trouble(), None);
    }
}
