//! `redhare fs clone`.

use std::ffi::OsString;

use clap::Args;
use foundation::ByteCount;
use packfs::Writer;
use packfs::name::Shown;

use super::medium::{Role, TakeOverArguments, Volume, open_volume};
use super::quota::{find, plain};
use crate::output::{Failure, Output};

/// Clone a file or directory inside a volume: no content is copied
#[derive(Args)]
#[command(
    after_help = "The clone is there as a whole or not at all, and takes room only where it or what it was cloned of changes later. \
Attributes and several names of a file in the tree are kept; quotas are not cloned, and what is cloned counts where it appears.\n\n\
Examples:\n  redhare fs clone images train/v1 train/v2\n  redhare fs clone file:images.packfs train backup/train"
)]
pub(super) struct CloneArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// What to clone: a path inside the volume
    source: OsString,
    /// The path of the clone, which must not exist; its directory must
    destination: OsString,
    #[command(flatten)]
    take_over: TakeOverArguments,
}

#[derive(serde::Serialize)]
struct ClonedView {
    clone: String,
    files: u64,
    directories: u64,
    content_bytes: u64,
    generation: u64,
}

pub(super) async fn run(arguments: &CloneArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&arguments.volume)?;
    let opened = open_volume(&volume, Role::Write)?;
    let mut writer = opened.writer("redhare fs clone", &arguments.take_over).await?;
    let cloned = clone(&volume, &mut writer, arguments).await;
    // The lease ends by itself if this fails.
    let _ = writer.close().await;
    let view = cloned?;
    output.print(&view, || {
        let content = ByteCount(view.content_bytes);
        format!(
            "{volume}:{} is a clone: {} files with {content} in {} directories, generation {}",
            view.clone, view.files, view.directories, view.generation
        )
    });
    Ok(())
}

async fn clone(
    volume: &Volume,
    writer: &mut Writer,
    arguments: &CloneArguments,
) -> Result<ClonedView, Failure> {
    let source = find(volume, writer, &plain(&arguments.source)).await?;
    let destination = plain(&arguments.destination);
    let at = destination.iter().rposition(|&byte| byte == b'/');
    let (parent, name) = at.map_or((&b""[..], &destination[..]), |at| {
        (&destination[..at], &destination[at + 1..])
    });
    if name.is_empty() {
        return Err(
            volume.failure("the clone would be the root directory, which exists; name something in it")
        );
    }
    let directory = find(volume, writer, parent).await?;
    let cloned = writer.clone_tree(source, directory, name).await;
    let cloned = cloned.map_err(|error| volume.failure(error))?;
    let generation = writer.commit().await.map_err(|error| volume.failure(error))?;
    Ok(ClonedView {
        clone: Shown::new(&destination).to_string(),
        files: cloned.files,
        directories: cloned.directories,
        content_bytes: cloned.content.0,
        generation,
    })
}
