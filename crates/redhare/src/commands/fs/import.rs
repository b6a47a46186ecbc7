//! `redhare fs import`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use foundation::ByteCount;
use packfs::name::components;
use packfs::{
    ImportContent, ImportEntry, ImportError, ImportProgress, ImportSource, InodeNumber, Kind, WriteError,
    Writer, WriterOptions, import,
};

use super::feed::{Body, Feed};
use super::local::{self, LocalKind};
use super::medium::{Location, Role, holder, open_volume};
use super::progress::Progress;
use crate::output::{Failure, Output};

/// What is imported is committed after so long ...
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// ... or so many bytes, whichever comes first.
const COMMIT_EVERY_BYTES: u64 = 1 << 30;

/// Copy a directory into a volume
#[derive(Args)]
#[command(
    after_help = "Keeps names, modes, owners, times, symbolic links and hard links; leaves out sockets, pipes and \
devices. Commits every 5 seconds or 1 GiB and at the end.\n\nExamples:\n  \
redhare fs import ./images file:images.packfs\n  redhare fs import /data/train images:train"
)]
pub(super) struct ImportArguments {
    /// The directory
    directory: PathBuf,
    /// The volume, and the directory in it, which is made if it is missing
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// Threads that read
    #[arg(long, default_value_t = 4)]
    readers: usize,
}

#[derive(serde::Serialize)]
struct ImportView {
    entries: u64,
    content_bytes: u64,
    commits: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    skipped: Vec<String>,
}

/// Gives the feed's entries, and an end whenever a commit is due.
struct Source {
    feed: Feed,
    since: Instant,
    since_bytes: u64,
    ended: bool,
}

impl ImportSource for Source {
    type Error = Failure;

    async fn next(&mut self) -> Result<Option<ImportEntry>, Failure> {
        if self.since.elapsed() > COMMIT_EVERY || self.since_bytes > COMMIT_EVERY_BYTES {
            return Ok(None);
        }
        let Some(next) = self.feed.next().await else {
            self.ended = true;
            return Ok(None);
        };
        let (entry, body) = next?;
        let content = match (entry.kind, body) {
            (LocalKind::Directory, _) => ImportContent::Directory,
            (LocalKind::HardLink(first), _) => ImportContent::HardLink(first),
            (LocalKind::Symlink, Body::Whole(target)) => ImportContent::Symlink(target),
            (_, Body::Whole(bytes)) => {
                self.since_bytes += bytes.len() as u64;
                ImportContent::File(bytes)
            }
            (_, Body::Pieces | Body::None) => ImportContent::LargeFile,
        };
        Ok(Some(ImportEntry {
            path: entry.path,
            attributes: entry.attributes,
            content,
        }))
    }

    async fn more(&mut self) -> Result<Vec<u8>, Failure> {
        let bytes = self.feed.more().await?;
        self.since_bytes += bytes.len() as u64;
        Ok(bytes)
    }
}

pub(super) async fn run(arguments: &ImportArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let (total_files, total_bytes) = local::count(&arguments.directory)?;
    let opened = open_volume(&volume, Role::Write)?;
    let options = WriterOptions {
        holder: holder("redhare fs import"),
        ..WriterOptions::default()
    };
    let writer = Writer::open(opened.medium(), opened.leases.clone(), &options).await;
    let mut writer = writer.map_err(|error| volume.failure(error))?;
    let begun = Instant::now();
    let progress = Progress::new("import", total_files, total_bytes);
    let mut source = Source {
        feed: Feed::start(&arguments.directory, arguments.readers)?,
        since: begun,
        since_bytes: 0,
        ended: false,
    };
    let mut done = ImportProgress::default();
    let result = fill(&mut writer, &path, &mut source, &progress, &mut done).await;
    progress.end();
    let skipped = source.feed.skipped();
    let failed = match result {
        Ok(()) => None,
        Err(error) => {
            // What is there can mostly be committed; if not, the last commit is what stays.
            let commit = writer.commit().await;
            let left = total_bytes.saturating_sub(done.content_bytes);
            Some(volume.failure(explain(&error, &done, total_files, left, commit.is_ok())))
        }
    };
    // The lease ends by itself if this fails.
    drop(writer.close().await);
    if let Some(failure) = failed {
        return Err(failure);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let view = ImportView {
        entries: done.entries,
        content_bytes: done.content_bytes,
        commits: done.commits,
        seconds,
        files_per_second: done.entries as f64 / seconds,
        mib_per_second: done.content_bytes as f64 / seconds / ByteCount::MIB.0 as f64,
        skipped: skipped.iter().map(|path| path.display().to_string()).collect(),
    };
    output.print(&view, || describe(&view));
    Ok(())
}

async fn fill(
    writer: &mut Writer,
    path: &[u8],
    source: &mut Source,
    progress: &Progress,
    done: &mut ImportProgress,
) -> Result<(), ImportError<Failure>> {
    let at_path = |source| ImportError::Write {
        path: packfs::name::Shown::new(path),
        source,
    };
    let root = directory(writer, path).await.map_err(at_path)?;
    loop {
        let before = *done;
        import(writer, root, source, |now| {
            done.entries = before.entries + now.entries;
            done.content_bytes = before.content_bytes + now.content_bytes;
            done.commits = before.commits + now.commits;
            progress.set(done.entries, done.content_bytes);
        })
        .await?;
        done.commits += 1;
        if source.ended {
            return Ok(());
        }
        source.since = Instant::now();
        source.since_bytes = 0;
    }
}

/// The directory to import into, made where it is missing.
async fn directory(writer: &mut Writer, path: &[u8]) -> Result<InodeNumber, WriteError> {
    let mut at = InodeNumber::ROOT;
    for name in components(path) {
        at = match writer.lookup(at, name).await? {
            Some(entry) if entry.kind() == Kind::Directory => entry.inode(),
            Some(entry) => return Err(WriteError::NotADirectory(entry.inode())),
            None => {
                let attributes = writer.inode(at).await?.attributes;
                writer.mkdir(at, name, &attributes).await?
            }
        };
    }
    Ok(at)
}

fn explain(
    error: &ImportError<Failure>,
    done: &ImportProgress,
    total_files: u64,
    left_bytes: u64,
    committed: bool,
) -> String {
    let stays = if committed {
        format!(
            "{} of {total_files} entries are committed and can be read",
            done.entries
        )
    } else {
        "what was committed before stays readable".to_owned()
    };
    match error {
        ImportError::Write {
            path,
            source: WriteError::NoSpace { .. },
        } => format!(
            "{path}: the volume is full: {} of content and its index are left to import and find no room; resize the \
             volume by at least that, or import less. {stays}",
            ByteCount(left_bytes)
        ),
        ImportError::Source(failure) => format!("the import stopped: {failure}. {stays}"),
        ImportError::Write {
            source: WriteError::Exists { .. },
            ..
        } => format!("{error}; import into another directory (VOLUME:PATH). {stays}"),
        _ => format!("{error}. {stays}"),
    }
}

fn describe(view: &ImportView) -> String {
    let mut text = format!(
        "imported {} entries, {} in {:.1} s: {:.0} files/s, {:.1} MiB/s, {} commits\n",
        view.entries,
        ByteCount(view.content_bytes),
        view.seconds,
        view.files_per_second,
        view.mib_per_second,
        view.commits
    );
    for path in &view.skipped {
        text.push_str(&format!("left out {path}: neither file, directory nor link\n"));
    }
    text
}
