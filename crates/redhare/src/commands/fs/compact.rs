//! `redhare fs compact`.

use std::ffi::OsString;

use clap::Args;
use foundation::ByteCount;

use super::medium::{Role, TakeOverArguments, Volume, open_volume};
use crate::output::{Failure, Output};

/// Move what is live out of mostly dead segments, so that their space can be used again
///
/// Writers do it along with their commits where space gets short; this does all of it now. Readers go on meanwhile.
/// What snapshots have stays where it is: their trees are read first, and what none of them has becomes free.
#[derive(Args)]
#[command(after_help = "Example:\n  redhare fs compact file:images.packfs")]
pub(super) struct CompactArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// Say nothing until the end
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    take_over: TakeOverArguments,
}

#[derive(serde::Serialize)]
struct CompactView {
    passes: u64,
    segments: u64,
    moved_bytes: u64,
    unreadable_extents: u64,
    dead_bytes_before: u64,
    dead_bytes: u64,
    free_bytes_before: u64,
    free_bytes: u64,
    waiting_bytes: u64,
    held_by_snapshots_bytes: u64,
}

pub(super) async fn run(arguments: &CompactArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&arguments.volume)?;
    let opened = open_volume(&volume, Role::Write)?;
    let mut writer = opened.writer("redhare fs compact", &arguments.take_over).await?;
    let (dead, free) = (writer.dead_bytes(), writer.free_bytes());
    let shown = !arguments.quiet && !output.is_json();
    let progress = writer
        .compact(|progress| {
            if shown {
                eprintln!("moved {} of {}", progress.moved, progress.planned);
            }
        })
        .await
        .map_err(|error| volume.failure(error))?;
    let view = CompactView {
        passes: progress.passes,
        segments: progress.segments,
        moved_bytes: progress.moved.0,
        unreadable_extents: progress.unreadable,
        dead_bytes_before: dead.0,
        dead_bytes: writer.dead_bytes().0,
        free_bytes_before: free.0,
        free_bytes: writer.free_bytes().0,
        waiting_bytes: writer.waiting_bytes().0,
        held_by_snapshots_bytes: writer.held_bytes().0,
    };
    writer.close().await.map_err(|error| volume.failure(error))?;
    output.print(&view, || {
        let mut text = format!(
            "{volume}: {} moved out of {} segments; {} free (before: {}), {} wait for commits, readers and snapshots, {} of them \
             for snapshots",
            progress.moved,
            view.segments,
            ByteCount(view.free_bytes),
            free,
            ByteCount(view.waiting_bytes),
            ByteCount(view.held_by_snapshots_bytes)
        );
        if view.unreadable_extents > 0 {
            text += &format!(
                "\n{} extents are damaged and stay where they are; redhare fs verify {volume} names their files",
                view.unreadable_extents
            );
        }
        text
    });
    Ok(())
}
