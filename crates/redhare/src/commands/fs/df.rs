//! `redhare fs df`.

use std::ffi::OsString;

use clap::Args;
use foundation::ByteCount;
use packfs::usage;

use super::medium::{Role, Volume, open_volume};
use crate::output::{Failure, Output};

/// Show how the space of a volume is used
#[derive(Args)]
#[command(after_help = "Example:\n  redhare fs df images")]
pub(super) struct DfArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
}

#[derive(serde::Serialize)]
struct DfView {
    generation: u64,
    size_bytes: u64,
    free_bytes: u64,
    waiting_bytes: u64,
    held_by_snapshots_bytes: u64,
    dead_bytes: u64,
    files: u64,
    directories: u64,
    content_bytes: u64,
    snapshots: usize,
}

pub(super) async fn run(arguments: &DfArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&arguments.volume)?;
    let opened = open_volume(&volume, Role::Read)?;
    let used = usage(&opened.medium(), opened.leases.clone(), None).await;
    let used = used.map_err(|error| volume.failure(error))?;
    let view = DfView {
        generation: used.generation,
        size_bytes: used.volume.0,
        free_bytes: used.free.0,
        waiting_bytes: used.waiting.0,
        held_by_snapshots_bytes: used.held.0,
        dead_bytes: used.dead.0,
        files: used.totals.files,
        directories: used.totals.directories,
        content_bytes: used.totals.content_bytes,
        snapshots: used.snapshots.len(),
    };
    output.print(&view, || {
        format!(
            "{volume}: {} in all, {} free\n{} wait for commits, readers and snapshots, {} of them for snapshots ({})\n\
             {} are dead inside segments (redhare fs compact {volume})\n{} files, {} directories, {} of content",
            used.volume,
            used.free,
            used.waiting,
            used.held,
            view.snapshots,
            used.dead,
            view.files,
            view.directories,
            ByteCount(view.content_bytes)
        )
    });
    Ok(())
}
