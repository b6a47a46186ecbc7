//! `redhare fs import`.

mod archives;
mod report;
mod root;
mod sources;

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::Hasher;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use packfs::name::{Shown, components};
use packfs::{
    Done, Existing, ImportContent, ImportEntry, ImportError, ImportOptions, ImportPiece, ImportPieces,
    ImportProgress, Importer, InodeNumber, Kind, WriteError, Writer,
};

use super::feed::{Body, Next};
use super::local::{LocalEntry, LocalKind};
use super::medium::{Location, Role, TakeOverArguments, open_volume};
use super::progress::Progress;
use crate::commands::signals::Stopped;
use crate::output::{Failure, Output};

use report::Tally;
use root::Root;
use sources::{Source, Sources};

/// As others see it who want the volume.
const PROGRAM: &str = "redhare fs import";
/// The exit status after Ctrl-C or SIGTERM, as of whatever a signal ends.
const STOPPED_STATUS: u8 = 130;
/// What is said then of a verification.
const STOPPED: &str = "that was stopped by a signal";

/// What is imported is committed after so many bytes, or after the time that was asked for, whichever comes first.
const COMMIT_EVERY_BYTES: u64 = 1 << 30;

/// Copy a directory, or tar archives, into a volume
///
/// What is there already with the same length and time of change is left alone, what differs is replaced. So an import that
/// was stopped in the middle goes on where it was when it is run again, and a later one copies only what has changed.
#[derive(Args)]
#[command(
    after_help = "Keeps names, modes, owners, times, extended attributes, holes, symbolic links and hard links; leaves out \
access control lists and, without --special, sockets, pipes and devices. Archives are told by what is \
in them: tar, also under gzip or zstd; several are read side by side.\n\nExamples:\n  \
redhare fs import ./images file:images.packfs\n  redhare fs import /data/train images:train --verify\n  \
redhare fs import shards/train-*.tar images:train --readers 8\n  \
find . -name '*.jpg' -print0 | redhare fs import . images --files-from - --null\n  \
redhare fs import /data/train images:train --delete"
)]
pub(super) struct ImportArguments {
    /// A directory, or tar archives; - is an archive on standard input
    #[arg(required = true, value_name = "DIR|TAR")]
    sources: Vec<PathBuf>,
    /// The volume, and the directory in it, which is made if it is missing
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    #[command(flatten)]
    take_over: TakeOverArguments,
    /// Threads that read
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: u16,
    /// Commit after so many seconds, or 1 GiB
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    commit_every: f64,
    /// Import only what this file names, one path from DIR on each line; - is standard input. A directory that it names comes
    /// without what is in it
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Paths in --files-from end with a zero byte, as "find -print0" writes them
    #[arg(long, short = '0', requires = "files_from")]
    null: bool,
    /// Compare contents, and do not believe length and time of change
    #[arg(long, short = 'c')]
    checksum: bool,
    /// Remove from the volume's directory what DIR does not have
    #[arg(long, conflicts_with = "files_from")]
    delete: bool,
    /// Read everything back from the volume at the end and compare it with the source
    #[arg(long)]
    verify: bool,
    /// Go on behind files that cannot be read or made; the exit status is 1 then, and they are named at the end
    #[arg(long)]
    keep_going: bool,
    /// Take pipes, sockets and, if run as root, devices, too; otherwise they are left out, and named. Programs from before there were
    /// such things on a volume then refuse it
    #[arg(long)]
    special: bool,
    /// Give each archive a directory of its name
    #[arg(long, conflicts_with_all = ["files_from", "delete"])]
    by_archive: bool,
}

/// What there is in all is counted for so long, once an import has failed.
const COUNT_WITHIN: Duration = Duration::from_secs(2);

/// What stopped an import.
enum Stop {
    /// An entry, and why.
    Entry(ImportError<Failure>),
    /// Ctrl-C or SIGTERM.
    Signal,
    /// Something else.
    Other(Failure),
}

pub(super) async fn run(arguments: &ImportArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let sources = Sources::find(arguments)?;
    // Before anything is read of it.
    let root = sources.deletes(arguments).map(Root::open).transpose()?;
    let opened = open_volume(&volume, Role::Write)?;
    let mut writer = opened.writer(PROGRAM, &arguments.take_over).await?;
    let stopped = Stopped::on_signal().map_err(Failure::new)?;
    let begun = Instant::now();
    let mut tally = Tally::default();
    let existing = match arguments.checksum {
        true => Existing::Content,
        false => Existing::SizeAndTime,
    };
    let mut work = Work {
        path: &path,
        sources: &sources,
        root,
        arguments,
        stopped,
    };
    let result = work.pass(&mut writer, existing, &mut tally).await;
    // What is there can mostly be committed; if not, the last commit is what stays. Before anything was deleted there was one.
    let committed = match &result {
        Ok(()) => true,
        Err(_) if tally.deletions_kept.is_some() => true,
        Err(_) => writer.commit().await.is_ok(),
    };
    // The lease ends by itself if this fails.
    drop(writer.close().await);
    let seconds = begun.elapsed().as_secs_f64();
    if let Err(stop) = result {
        let total = work.total(&stop, &tally);
        let failure = volume.failure(report::explain(&stop, &tally, total, committed));
        let failure = match stop {
            Stop::Signal => failure.or_status(STOPPED_STATUS),
            _ => failure,
        };
        // What went wrong before it is nowhere else.
        return Err(match arguments.keep_going {
            true => report::print_stopped(&tally, seconds, failure, output),
            false => failure,
        });
    }
    if arguments.verify {
        let unverified = |tally: &Tally, why: &dyn std::fmt::Display| {
            let failure = volume.failure(report::unverified(tally, why));
            report::print_stopped(tally, seconds, failure, output)
        };
        let writer = opened.writer(PROGRAM, &arguments.take_over);
        let mut writer = match work.stopped.or(writer).await {
            Some(Ok(writer)) => writer,
            Some(Err(failure)) => return Err(unverified(&tally, &failure)),
            None => return Err(unverified(&tally, &STOPPED).or_status(STOPPED_STATUS)),
        };
        let mut found = Tally::default();
        let result = work.pass(&mut writer, Existing::Check, &mut found).await;
        drop(writer.close().await);
        if let Err(stop) = result {
            let why = match &stop {
                Stop::Signal => STOPPED.to_owned(),
                _ => report::explain(&stop, &found, work.total(&stop, &found), true),
            };
            tally.take_errors(found);
            let failure = unverified(&tally, &why);
            return Err(match stop {
                Stop::Signal => failure.or_status(STOPPED_STATUS),
                _ => failure,
            });
        }
        tally.verified = Some(found.progress.entries);
        tally.take_errors(found);
    }
    report::print(&tally, seconds, output)
}

/// What is asked for.
struct Work<'a> {
    /// The directory on the volume.
    path: &'a [u8],
    sources: &'a Sources,
    /// The directory that says what is deleted.
    root: Option<Root>,
    arguments: &'a ImportArguments,
    stopped: Stopped,
}

impl Work<'_> {
    /// Entries and bytes in all, as far as that is known soon: whoever waits for the reason does not wait for a walk.
    fn total(&self, stop: &Stop, tally: &Tally) -> Option<(u64, u64)> {
        match stop {
            Stop::Signal => tally.total,
            _ => tally
                .total
                .or_else(|| self.sources.count_within(COUNT_WITHIN, self.arguments)),
        }
    }

    /// Goes through the sources once, and imports or checks what they have.
    async fn pass(&mut self, writer: &mut Writer, existing: Existing, tally: &mut Tally) -> Result<(), Stop> {
        let Self {
            path,
            sources,
            root: deletes,
            arguments,
            stopped,
        } = self;
        let checks = existing == Existing::Check;
        let commit_every = Duration::try_from_secs_f64(arguments.commit_every).map_err(|_| {
            let given = arguments.commit_every;
            Failure::new(format!(
                "--commit-every {given} is no length of time; give seconds"
            ))
        })?;
        let root = directory(writer, path).await.map_err(|source| {
            Stop::Entry(ImportError::Write {
                path: Shown::new(path),
                source,
            })
        })?;
        let options = ImportOptions {
            existing,
            remove_directories: arguments.delete,
        };
        let what = if checks { "verify" } else { "import" };
        let progress = sources.progress(what, arguments);
        let mut run = Run {
            importer: Importer::new(writer, root, options),
            source: sources.start(arguments)?,
            stopped: stopped.clone(),
            // Names that stand in two archives are told once.
            met: (sources.may_repeat() && !checks).then(HashMap::new),
            keep_going: arguments.keep_going || checks,
            progress,
            passed_bytes: 0,
            commit_every,
            since: Instant::now(),
            since_bytes: 0,
        };
        let mut result = run.all(tally).await;
        if let (Ok(()), Some(root), true) = (&result, deletes, tally.errors.is_empty() && !checks) {
            run.progress.last("delete");
            result = run.delete(root, tally).await;
        } else if arguments.delete && !tally.errors.is_empty() && !checks {
            tally.nothing_deleted = true;
        }
        tally.progress = *run.importer.progress();
        if let Some(kept) = tally.deletions_kept {
            tally.progress.deleted = kept;
        }
        if result.is_ok() {
            run.progress.last(if checks { what } else { "commit" });
            if !checks {
                // Of much that is new it takes a while.
                result = run.commit("the last commit").await;
            }
        }
        run.progress.end();
        tally.total = run.progress.counted();
        tally.skipped = run.source.skipped();
        result?;
        tally.progress = *run.importer.progress();
        Ok(())
    }
}

struct Run<'a> {
    importer: Importer<'a>,
    source: Source,
    stopped: Stopped,
    /// By whom each name was met, where several archives may have it.
    met: Option<HashMap<u128, PathBuf>>,
    keep_going: bool,
    progress: Progress,
    /// Lengths of the files that are done, holes included: what the bar is of.
    passed_bytes: u64,
    commit_every: Duration,
    since: Instant,
    since_bytes: u64,
}

impl Run<'_> {
    async fn all(&mut self, tally: &mut Tally) -> Result<(), Stop> {
        loop {
            let next = match &mut self.source {
                Source::Feed(feed) => self.stopped.or(feed.next(&self.importer)).await,
                Source::Archives(archives) => {
                    let next = self.stopped.or(archives.next()).await;
                    next.map(|next| next.map(|next| next.map(|(entry, body)| Next::Entry(entry, body))))
                }
            };
            let Some(next) = next.ok_or(Stop::Signal)? else {
                return Ok(());
            };
            let failed = match next {
                Ok(Next::Same(entry)) => {
                    self.importer.count_same(entry.size_bytes);
                    self.passed_bytes += entry.size_bytes;
                    None
                }
                Ok(Next::Entry(local, body)) => {
                    let size_bytes = local.size_bytes;
                    let done = self.entry(local, body, tally).await;
                    self.passed_bytes += size_bytes;
                    done.err()
                }
                Err(failure) => Some(ImportError::Source(failure)),
            };
            if let Some(error) = failed {
                // The file in the middle of which it came is left out.
                if self.stopped.has_come() {
                    return Err(Stop::Signal);
                }
                if error.is_fatal() || !self.keep_going {
                    return Err(Stop::Entry(error));
                }
                tally.failed(&error);
            }
            let now = *self.importer.progress();
            self.progress
                .set(now.entries, self.source.position(self.passed_bytes));
            let due = self.since.elapsed() > self.commit_every
                || now.content_bytes - self.since_bytes > COMMIT_EVERY_BYTES;
            if due {
                self.commit("a commit").await?;
            }
            tally.progress = now;
        }
    }

    /// Commits; `what` stands for it if that fails.
    async fn commit(&mut self, what: &str) -> Result<(), Stop> {
        let committed = self.importer.commit().await;
        self.since = Instant::now();
        self.since_bytes = self.importer.progress().content_bytes;
        committed.map_err(|source| {
            let path = Shown::new(what.as_bytes());
            Stop::Entry(ImportError::Write { path, source })
        })
    }

    async fn entry(
        &mut self,
        local: LocalEntry,
        body: Body,
        tally: &mut Tally,
    ) -> Result<(), ImportError<Failure>> {
        let repeated = self.repeated(&local);
        let content = match (local.kind, body) {
            (LocalKind::Directory, _) => ImportContent::Directory,
            (LocalKind::HardLink(first), _) => ImportContent::HardLink(first),
            (LocalKind::KnownFile, _) => ImportContent::Kept,
            (LocalKind::Special(kind, device), _) => ImportContent::Special(kind, device),
            (LocalKind::Symlink, Body::Whole(target)) => ImportContent::Symlink(target),
            (_, Body::Whole(bytes)) => ImportContent::File(bytes),
            (_, Body::Pieces | Body::None) => ImportContent::LargeFile {
                size_bytes: local.size_bytes,
            },
        };
        let entry = ImportEntry {
            path: local.path,
            attributes: local.attributes,
            extended: local.extended,
            content,
        };
        if let Some(error) = repeated {
            if let ImportContent::LargeFile { .. } = entry.content {
                // Its content is not the next entry's.
                while !matches!(self.source.more().await, Ok(None) | Err(_)) {}
            }
            return Err(ImportError::Source(error));
        }
        let mut pieces = Pieces {
            source: &mut self.source,
            stopped: &self.stopped,
            progress: &self.progress,
            entries: self.importer.progress().entries,
            passed_bytes: self.passed_bytes,
        };
        if let Done::Differs(what) = self.importer.entry(&entry, &mut pieces).await? {
            tally.differs(&entry.path, what);
        }
        Ok(())
    }

    /// What is wrong with a name that another archive has, too: one of both would be lost without a word.
    fn repeated(&mut self, local: &LocalEntry) -> Option<Failure> {
        let met = self.met.as_mut()?;
        if local.kind == LocalKind::Directory {
            return None;
        }
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(seed);
            hasher.write(&local.path);
            u128::from(hasher.finish())
        };
        let first = met
            .entry(half(1) << 64 | half(2))
            .or_insert_with(|| local.file.clone());
        (*first != local.file).then(|| {
            Failure::new(format!(
                "{}: is in {} and in {}; give each archive a directory with --by-archive, or import them into different ones",
                Shown::new(&local.path),
                first.display(),
                local.file.display()
            ))
        })
    }

    /// Deletes what the source does not have. What was imported is committed first; if this fails, then what it has not
    /// committed itself is not to be committed.
    async fn delete(&mut self, root: &Root, tally: &mut Tally) -> Result<(), Stop> {
        root.check()?;
        self.commit("the commit before deleting").await?;
        let stopped = self.stopped.clone();
        let goes_on = || match stopped.has_come() {
            true => Err(Failure::new("stopped while deleting")),
            false => Ok(()),
        };
        let exists = |path: &[u8]| goes_on().and_then(|()| root.has(path));
        let begun = *self.importer.progress();
        let (mut commits, mut kept) = (begun.commits, begun.deleted);
        let removed = |progress: &ImportProgress| {
            if progress.commits > commits {
                (commits, kept) = (progress.commits, progress.deleted);
            }
            goes_on()
        };
        let deleted = self.importer.delete_missing(exists, removed).await;
        // It may have come behind the last one.
        let deleted = match goes_on() {
            Ok(()) => deleted
                .map_err(Stop::Entry)
                .and_then(|()| root.check().map_err(Stop::Other)),
            Err(_) => Err(Stop::Signal),
        };
        if deleted.is_err() {
            tally.deletions_kept = Some(kept);
        }
        deleted
    }
}

/// The pieces of an entry. They move the bar, since a large file may have minutes of them.
struct Pieces<'a> {
    source: &'a mut Source,
    stopped: &'a Stopped,
    progress: &'a Progress,
    entries: u64,
    passed_bytes: u64,
}

impl ImportPieces for Pieces<'_> {
    type Error = Failure;

    async fn more(&mut self) -> Result<Option<ImportPiece>, Failure> {
        let piece = self.stopped.or(self.source.more()).await;
        let piece = piece.ok_or_else(|| Failure::new("stopped in the middle of it"))??;
        self.passed_bytes += match &piece {
            Some(ImportPiece::Bytes(bytes)) => bytes.len() as u64,
            Some(ImportPiece::Hole(length)) => *length,
            None => 0,
        };
        let position = self.source.position(self.passed_bytes);
        self.progress.set(self.entries, position);
        Ok(piece)
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

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Other(failure)
    }
}
