//! `redhare volume snapshot`.

use std::sync::Arc;

use clap::{Args, Subcommand};
use client::{CopiesOfSnapshot, Session};
use foundation::ByteCount;
use master::{Client, v1};
use packfs::Timestamp;

use crate::commands::cluster::ClusterArguments;
use crate::commands::fs::view::time;
use crate::output::{Failure, Output, table};

/// Keep a volume as it is at one moment, list what is kept, delete it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare volume snapshot create data monday\n  redhare volume snapshot list data\n  \
    redhare volume read data@monday --out data.img\n  redhare volume snapshot delete data monday"
)]
pub(super) struct SnapshotArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep a volume as it is at one moment, while it is used
    #[command(
        after_help = "Example:\n  redhare volume snapshot create data monday\n\nAll chunks are cut together: what was acknowledged before is in it, and nothing that \
        was issued after something that is not in it was acknowledged. Writes are not acknowledged meanwhile, for a second at most. \
        While copies are missing or change it is tried again, for 20 seconds."
    )]
    Create(Named),
    /// List the snapshots of a volume
    #[command(
        after_help = "Examples:\n  redhare volume snapshot list data\n  redhare volume snapshot list data --json\n\nCOPIES: of the chunk that has the fewest, \
        as the nodes say that were asked, of how many there should be. Nodes that have a chunk in sync and lack its part of a snapshot make it from other nodes' in the background; \
        what is still missing is said below the table."
    )]
    List {
        /// The volume's name
        volume: String,
    },
    /// Delete a snapshot; the nodes give its space back in the background
    #[command(after_help = "Example:\n  redhare volume snapshot delete data monday")]
    Delete(Named),
}

#[derive(Args)]
struct Named {
    /// The volume's name
    volume: String,
    /// The snapshot's name
    name: String,
}

#[derive(serde::Serialize)]
struct SnapshotView {
    name: String,
    number: u64,
    created: String,
    size_bytes: u64,
    chunks: u32,
    state: &'static str,
    /// Absent of one that is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<CopiesView>,
}

#[derive(serde::Serialize)]
struct CopiesView {
    /// Of the chunk that has the fewest.
    least: u32,
    /// Of the chunk that has the most.
    most: u32,
    /// How many each chunk should have.
    wanted: u32,
    /// Chunks that have fewer, as far as nodes answered.
    short_chunks: u32,
    /// Chunks of which no copy was found.
    missing_chunks: u32,
    /// Nodes that did not answer.
    silent_nodes: u32,
}

#[derive(serde::Serialize)]
struct CreatedView {
    #[serde(flatten)]
    snapshot: SnapshotView,
    tries: u32,
    /// For how long acknowledgements were held at most.
    held_ms: f64,
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: SnapshotArguments,
    output: &Output,
) -> Result<(), Failure> {
    match arguments.command {
        Command::Create(named) => create(cluster, &named, output),
        Command::List { volume } => list(cluster, &volume, output),
        Command::Delete(Named { volume, name }) => {
            let request = v1::DeleteSnapshotRequest {
                volume: volume.clone(),
                name: name.clone(),
            };
            cluster.call(|client: Client| async move { client.delete_snapshot(request).await })?;
            let view = serde_json::json!({ "volume": volume, "name": name });
            output.print(&view, || {
                format!("snapshot {volume}@{name} is being deleted; its space comes back in the background")
            });
            Ok(())
        }
    }
}

fn create(cluster: &ClusterArguments, named: &Named, output: &Output) -> Result<(), Failure> {
    let Named { volume, name } = named;
    let session = connect(cluster, volume)?;
    let made = on_reactor(async { session.make_snapshot(name).await })?;
    let made = made.map_err(Failure::new)?;
    let view = CreatedView {
        snapshot: view(&made.snapshot, None),
        tries: made.tries,
        held_ms: made.held.as_secs_f64() * 1000.0,
    };
    output.print(&view, || {
        let tries = match view.tries {
            1 => String::new(),
            tries => format!(", in try {tries}"),
        };
        format!(
            "{volume}@{name} keeps {} in {} chunks; acknowledgements waited {:.0} ms at most{tries}",
            ByteCount(view.snapshot.size_bytes),
            view.snapshot.chunks,
            view.held_ms
        )
    });
    Ok(())
}

fn list(cluster: &ClusterArguments, volume: &str, output: &Output) -> Result<(), Failure> {
    let session = connect(cluster, volume)?;
    let listed = on_reactor(async {
        let mut listed = Vec::new();
        for snapshot in session.snapshots().await? {
            let copies = match snapshot.state() {
                v1::SnapshotState::Complete => Some(session.copies_of_snapshot(&snapshot).await),
                _ => None,
            };
            listed.push((snapshot, copies));
        }
        Ok::<_, client::SnapshotError>(listed)
    })?;
    let listed = listed.map_err(Failure::new)?;
    let views: Vec<SnapshotView> = listed
        .iter()
        .map(|(snapshot, copies)| view(snapshot, *copies))
        .collect();
    output.print(&views, || describe(&views));
    Ok(())
}

fn connect(cluster: &ClusterArguments, volume: &str) -> Result<Arc<Session>, Failure> {
    Session::connect(&cluster.masters()?, volume).map_err(Failure::new)
}

pub(super) fn on_reactor<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    reactor::run(&reactor::Config::default(), work).map_err(Failure::new)
}

fn view(snapshot: &v1::Snapshot, copies: Option<CopiesOfSnapshot>) -> SnapshotView {
    let milliseconds = i64::try_from(snapshot.created_unix_ms).unwrap_or(i64::MAX);
    let created = Timestamp {
        seconds: milliseconds / 1000,
        nanoseconds: (milliseconds % 1000) as u32 * 1_000_000,
    };
    SnapshotView {
        name: snapshot.name.clone(),
        number: snapshot.number,
        created: time(created),
        size_bytes: snapshot.size_bytes,
        chunks: snapshot.chunks,
        state: match snapshot.state() {
            v1::SnapshotState::Unspecified => "unknown",
            v1::SnapshotState::Pending => "pending",
            v1::SnapshotState::Complete => "complete",
            v1::SnapshotState::Deleting => "deleting",
        },
        copies: copies.map(|copies| CopiesView {
            least: copies.least,
            most: copies.most,
            wanted: copies.wanted,
            short_chunks: copies.short_chunks,
            missing_chunks: copies.missing_chunks,
            silent_nodes: copies.silent_nodes,
        }),
    }
}

fn describe(views: &[SnapshotView]) -> String {
    let mut rows = vec![
        ["NAME", "CREATED", "SIZE", "STATE", "COPIES"]
            .map(String::from)
            .to_vec(),
    ];
    let mut notes = String::new();
    for view in views {
        let copies = view.copies.as_ref();
        rows.push(vec![
            view.name.clone(),
            view.created
                .get(..19)
                .map_or_else(String::new, |second| format!("{second}Z")),
            ByteCount(view.size_bytes).to_string(),
            view.state.to_owned(),
            copies.map_or_else(String::new, |copies| {
                format!("{} of {}", copies.least, copies.wanted)
            }),
        ]);
        let Some(copies) = copies else { continue };
        if copies.missing_chunks > 0 {
            let (name, missing) = (&view.name, copies.missing_chunks);
            notes.push_str(&format!(
                "{name}: no copy was found of {missing} of its {} chunks",
                view.chunks
            ));
            notes.push_str(match copies.silent_nodes {
                0 => "; they cannot be read any more\n",
                _ => "; nodes that did not answer may have some\n",
            });
        } else if copies.short_chunks > 0 {
            notes.push_str(&format!(
                "{}: {} of its {} chunks have fewer than {} copies",
                view.name, copies.short_chunks, view.chunks, copies.wanted
            ));
            notes.push_str(&match copies.silent_nodes {
                0 => "; nodes that have these chunks in sync make the others\n".to_owned(),
                1 => "; 1 node did not answer, it may have some\n".to_owned(),
                silent => format!("; {silent} nodes did not answer, they may have some\n"),
            });
        }
    }
    table(&rows) + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_are_missing_are_said() {
        let snapshot = |name: &str, state: v1::SnapshotState| v1::Snapshot {
            name: name.to_owned(),
            number: 7,
            state: state.into(),
            chunks: 4,
            created_unix_ms: 1_795_000_000_250,
            size_bytes: 1 << 30,
            ..v1::Snapshot::default()
        };
        let copies = |least, missing_chunks, silent_nodes| CopiesOfSnapshot {
            least,
            most: 3,
            wanted: 3,
            short_chunks: 3 - least.min(3),
            missing_chunks,
            silent_nodes,
        };
        let complete = v1::SnapshotState::Complete;
        let views = [
            view(&snapshot("whole", complete), Some(copies(3, 0, 0))),
            view(&snapshot("fewer", complete), Some(copies(2, 0, 1))),
            view(&snapshot("lost", complete), Some(copies(0, 2, 0))),
            view(&snapshot("new", v1::SnapshotState::Pending), None),
        ];
        let said = describe(&views);
        for words in [
            "NAME   CREATED               SIZE   STATE     COPIES\n",
            "whole  2026-11-18T11:06:40Z  1 GiB  complete  3 of 3\n",
            "fewer: 1 of its 4 chunks have fewer than 3 copies; 1 node did not answer, it may have some\n",
            "lost: no copy was found of 2 of its 4 chunks; they cannot be read any more\n",
            "new    2026-11-18T11:06:40Z  1 GiB  pending\n",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
