//! `redhare fs snapshot`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Subcommand};
use foundation::ByteCount;
use packfs::name::Shown;
use packfs::{Snapshot, Writer, usage};

use super::medium::{Opened, Role, TakeOverArguments, Volume, open_volume};
use crate::output::{Failure, Output, table};

/// Keep the present state under a name, list what is kept, delete it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare fs snapshot create images monday\n  redhare fs ls images@monday:train\n  \
redhare fs snapshot list images\n  redhare fs snapshot delete images monday"
)]
pub(super) struct SnapshotArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep the newest generation under a name
    #[command(after_help = "Example:\n  redhare fs snapshot create images monday")]
    Create(Named),
    /// List the snapshots of a volume
    #[command(after_help = "Example:\n  redhare fs snapshot list images")]
    List {
        /// The volume: its name, or file:PATH
        volume: OsString,
    },
    /// Delete a snapshot; those who read it go on
    #[command(after_help = "Example:\n  redhare fs snapshot delete images monday")]
    Delete(Named),
}

#[derive(Args)]
struct Named {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// The snapshot's name
    name: OsString,
    #[command(flatten)]
    take_over: TakeOverArguments,
}

#[derive(serde::Serialize)]
struct SnapshotView {
    name: String,
    generation: u64,
    created: String,
    files: u64,
    directories: u64,
    content_bytes: u64,
}

impl SnapshotView {
    fn new(snapshot: &Snapshot) -> Self {
        Self {
            name: Shown::new(&snapshot.name).to_string(),
            generation: snapshot.generation,
            created: super::view::time(snapshot.created),
            files: snapshot.totals.files,
            directories: snapshot.totals.directories,
            content_bytes: snapshot.totals.content_bytes,
        }
    }
}

pub(super) async fn run(arguments: &SnapshotArguments, output: &Output) -> Result<(), Failure> {
    match &arguments.command {
        Command::Create(named) => create(named, output).await,
        Command::List { volume } => list(volume, output).await,
        Command::Delete(named) => delete(named, output).await,
    }
}

async fn writer(volume: &Volume, take_over: &TakeOverArguments) -> Result<(Opened, Writer), Failure> {
    let opened = open_volume(volume, Role::Write)?;
    let writer = opened.writer("redhare fs snapshot", take_over).await?;
    Ok((opened, writer))
}

async fn create(named: &Named, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&named.volume)?;
    let (_opened, mut writer) = writer(&volume, &named.take_over).await?;
    let now = super::local::now();
    let made = writer.create_snapshot(named.name.as_bytes(), now).await;
    // The lease ends by itself if this fails.
    let _ = writer.close().await;
    let view = SnapshotView::new(&made.map_err(|error| volume.failure(error))?);
    output.print(&view, || {
        format!("{volume}@{} keeps generation {}", view.name, view.generation)
    });
    Ok(())
}

async fn delete(named: &Named, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&named.volume)?;
    let (_opened, mut writer) = writer(&volume, &named.take_over).await?;
    let deleted = writer.delete_snapshot(named.name.as_bytes()).await;
    // The lease ends by itself if this fails.
    let _ = writer.close().await;
    deleted.map_err(|error| volume.failure(error))?;
    let name = named.name.display().to_string();
    output.print(&serde_json::json!({ "deleted": name }), || {
        format!("{volume}@{name} is deleted")
    });
    Ok(())
}

async fn list(volume: &OsStr, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(volume)?;
    let opened = open_volume(&volume, Role::Read)?;
    let used = usage(&opened.medium(), opened.leases.clone(), None).await;
    let used = used.map_err(|error| volume.failure(error))?;
    let views: Vec<SnapshotView> = used.snapshots.iter().map(SnapshotView::new).collect();
    output.print(&views, || {
        let mut rows = vec![
            ["NAME", "GENERATION", "CREATED", "FILES", "CONTENT"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(views.iter().map(|view| {
            vec![
                view.name.clone(),
                view.generation.to_string(),
                view.created.clone(),
                view.files.to_string(),
                ByteCount(view.content_bytes).to_string(),
            ]
        }));
        format!("{}{} are held by snapshots", table(&rows), used.held)
    });
    Ok(())
}
