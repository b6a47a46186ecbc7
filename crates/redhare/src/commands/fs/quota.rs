//! `redhare fs quota`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Subcommand};
use foundation::ByteCount;
use packfs::name::Shown;
use packfs::{InodeNumber, Quota, ReaderOptions, Writer};

use super::medium::{Opened, Role, TakeOverArguments, Volume, open_volume};
use crate::output::{Failure, Output, table};

/// Limit what stands below a directory, show the limits and what is used, take them away
#[derive(Args)]
#[command(
    after_help = "Bytes are the lengths of files and symbolic links, holes included; files are all that has an inode: \
directories, links and devices too. What passes a limit fails with EDQUOT. A volume that is mounted for writing has to \
be unmounted first, or handed over (--take-over).\n\nExamples:\n  \
redhare fs quota set images train/alice --limit 10GiB --files 1000000\n  redhare fs quota show images\n  \
redhare fs quota clear images train/alice"
)]
pub(super) struct QuotaArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set the limits of a directory; the first time, everything below it is counted
    #[command(
        after_help = "Example:\n  redhare fs quota set images train/alice --limit 10GiB --files 1000000"
    )]
    Set {
        /// The volume: its name, or file:PATH
        volume: OsString,
        /// The directory; what is below it counts, not itself
        path: OsString,
        /// The most bytes, such as 10GiB; 0 for no limit. Without it, this limit stays as it is
        #[arg(long, required_unless_present = "files")]
        limit: Option<ByteCount>,
        /// The most files; 0 for no limit. Without it, this limit stays as it is
        #[arg(long)]
        files: Option<u64>,
        #[command(flatten)]
        take_over: TakeOverArguments,
    },
    /// Show all quotas of a volume, or that of a directory
    #[command(after_help = "Example:\n  redhare fs quota show images")]
    Show {
        /// The volume: its name, or file:PATH
        volume: OsString,
        /// The directory
        path: Option<OsString>,
    },
    /// Take the limits of a directory away
    #[command(after_help = "Example:\n  redhare fs quota clear images train/alice")]
    Clear {
        /// The volume: its name, or file:PATH
        volume: OsString,
        /// The directory
        path: OsString,
        #[command(flatten)]
        take_over: TakeOverArguments,
    },
}

#[derive(serde::Serialize)]
struct QuotaView {
    path: String,
    limit_bytes: Option<u64>,
    used_bytes: u64,
    limit_files: Option<u64>,
    used_files: u64,
}

impl QuotaView {
    fn new(path: &[u8], quota: &Quota) -> Self {
        let limit = |limit: u64| (limit > 0).then_some(limit);
        Self {
            path: Shown::new(path).to_string(),
            limit_bytes: limit(quota.limit_bytes),
            used_bytes: quota.used_bytes,
            limit_files: limit(quota.limit_files),
            used_files: quota.used_files,
        }
    }

    fn row(&self) -> Vec<String> {
        let none = || "none".to_owned();
        vec![
            self.path.clone(),
            ByteCount(self.used_bytes).to_string(),
            self.limit_bytes
                .map_or_else(none, |limit| ByteCount(limit).to_string()),
            self.used_files.to_string(),
            self.limit_files.map_or_else(none, |limit| limit.to_string()),
        ]
    }
}

pub(super) async fn run(arguments: &QuotaArguments, output: &Output) -> Result<(), Failure> {
    match &arguments.command {
        Command::Set {
            volume,
            path,
            limit,
            files,
            take_over,
        } => set(volume, path, (*limit, *files), take_over, output).await,
        Command::Show { volume, path } => show(volume, path.as_deref(), output).await,
        Command::Clear {
            volume,
            path,
            take_over,
        } => clear(volume, path, take_over, output).await,
    }
}

async fn writer(volume: &Volume, take_over: &TakeOverArguments) -> Result<(Opened, Writer), Failure> {
    let opened = open_volume(volume, Role::Write)?;
    let writer = opened.writer("redhare fs quota", take_over).await?;
    Ok((opened, writer))
}

/// A path without what says nothing: a name, then a slash before each further one.
pub(super) fn plain(path: &OsStr) -> Vec<u8> {
    let names = path.as_bytes().split(|&byte| byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty() && *name != b".").collect();
    names.join(&b'/')
}

pub(super) async fn find(volume: &Volume, writer: &Writer, path: &[u8]) -> Result<InodeNumber, Failure> {
    let mut at = InodeNumber::ROOT;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let entry = writer.lookup(at, name).await;
        let entry = entry.map_err(|error| volume.failure(error))?;
        let missing = || volume.failure(format!("{}: does not exist", Shown::new(path)));
        at = entry.ok_or_else(missing)?.inode();
    }
    Ok(at)
}

async fn set(
    volume: &OsStr,
    path: &OsStr,
    (limit, files): (Option<ByteCount>, Option<u64>),
    take_over: &TakeOverArguments,
    output: &Output,
) -> Result<(), Failure> {
    let (volume, path) = (Volume::parse_whole(volume)?, plain(path));
    let (_opened, mut writer) = writer(&volume, take_over).await?;
    let done = async {
        let directory = find(&volume, &writer, &path).await?;
        let old = writer
            .quotas()
            .into_iter()
            .find(|(number, _)| *number == directory);
        let old = old.map_or_else(Quota::default, |(_, quota)| quota);
        let limit = limit.map_or(old.limit_bytes, |limit| limit.0);
        let files = files.unwrap_or(old.limit_files);
        let set = writer.set_quota(directory, limit, files).await;
        set.map_err(|error| volume.failure(error))
    }
    .await;
    // The lease ends by itself if this fails.
    let _ = writer.close().await;
    let view = QuotaView::new(&path, &done?);
    output.print(&view, || tabled(std::slice::from_ref(&view)));
    Ok(())
}

async fn clear(
    volume: &OsStr,
    path: &OsStr,
    take_over: &TakeOverArguments,
    output: &Output,
) -> Result<(), Failure> {
    let (volume, path) = (Volume::parse_whole(volume)?, plain(path));
    let (_opened, mut writer) = writer(&volume, take_over).await?;
    let done = async {
        let directory = find(&volume, &writer, &path).await?;
        let cleared = writer.clear_quota(directory).await;
        cleared.map_err(|error| volume.failure(error))
    }
    .await;
    // As above.
    let _ = writer.close().await;
    done?;
    let shown = Shown::new(&path).to_string();
    output.print(&serde_json::json!({ "cleared": shown }), || {
        format!("{volume}: {shown} has no quota any more")
    });
    Ok(())
}

async fn show(volume: &OsStr, path: Option<&OsStr>, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(volume)?;
    let opened = open_volume(&volume, Role::Read)?;
    let reader = opened.reader(&ReaderOptions::default()).await?;
    let listed = reader.quotas().await.map_err(|error| volume.failure(error))?;
    let path = path.map(plain);
    let wanted = |found: &[u8]| path.as_deref().is_none_or(|path| path == found);
    let views: Vec<QuotaView> = listed
        .iter()
        .filter(|(found, _)| wanted(found))
        .map(|(found, quota)| QuotaView::new(found, quota))
        .collect();
    if let (Some(path), true) = (&path, views.is_empty()) {
        let why = format!(
            "{}: has no quota; \"redhare fs quota show {volume}\" lists all",
            Shown::new(path)
        );
        return Err(volume.failure(why));
    }
    output.print(&views, || tabled(&views));
    Ok(())
}

fn tabled(views: &[QuotaView]) -> String {
    let mut rows = vec![
        ["PATH", "USED", "LIMIT", "FILES", "LIMIT"]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(views.iter().map(QuotaView::row));
    table(&rows)
}
