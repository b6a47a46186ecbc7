//! What is imported: a directory, a list of paths in one, or archives.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use packfs::{ImportPiece, ImportPieces};

use super::super::feed::{Feed, spawn};
use super::super::local::{self, LocalList, LocalWalk, Specials, at};
use super::super::progress::Progress;
use super::ImportArguments;
use super::archives::{self, Archives, Naming};
use crate::output::Failure;

/// What was named.
#[derive(Clone)]
pub(super) enum Sources {
    /// All of a directory.
    Directory(PathBuf),
    /// Some paths of a directory.
    List(PathBuf, Vec<Vec<u8>>),
    /// Archives.
    Archives(Vec<PathBuf>, Naming),
}

/// One pass through it.
pub(super) enum Source {
    /// Of files.
    Feed(Feed),
    /// Of archives.
    Archives(Archives),
}

impl Sources {
    /// Looks at what was named.
    ///
    /// # Errors
    /// If it is missing, or does not go together.
    pub(super) fn find(arguments: &ImportArguments) -> Result<Self, Failure> {
        let sources = &arguments.sources;
        let mut directories = 0;
        for source in sources.iter().filter(|source| source.as_os_str() != "-") {
            let found = std::fs::metadata(source).map_err(|error| at(source, &error))?;
            directories += usize::from(found.is_dir());
        }
        if directories > 0 {
            return match &sources[..] {
                [_] if arguments.by_archive => Err(Failure::new(format!(
                    "{}: is a directory, and --by-archive is for archives",
                    sources[0].display()
                ))),
                [directory] => match &arguments.files_from {
                    None => Ok(Sources::Directory(directory.clone())),
                    Some(list) => Ok(Sources::List(directory.clone(), paths(list, arguments.null)?)),
                },
                _ => Err(Failure::new(
                    "several sources must all be archives; import one directory after the other",
                )),
            };
        }
        let wants_directory = [
            (arguments.files_from.is_some(), "--files-from"),
            (arguments.delete, "--delete"),
        ];
        if let Some((_, option)) = wants_directory.iter().find(|(given, _)| *given) {
            return Err(Failure::new(format!(
                "{}: is not a directory, and {option} is for directories; name one",
                sources[0].display()
            )));
        }
        let standard_input = sources.iter().any(|source| source.as_os_str() == "-");
        if standard_input && (arguments.verify || sources.len() > 1) {
            return Err(Failure::new(
                "standard input can be read only once and alone: leave --verify and other archives out, or name a file",
            ));
        }
        if arguments.by_archive {
            let mut stems = HashMap::new();
            for archive in sources {
                if let Some(other) = stems.insert(archives::stem(archive), archive) {
                    return Err(Failure::new(format!(
                        "{} and {} would both become {}: import them one after the other into directories of their own, or give \
                         one another name",
                        other.display(),
                        archive.display(),
                        String::from_utf8_lossy(&archives::stem(archive))
                    )));
                }
            }
        }
        let naming = match arguments.by_archive {
            true => Naming::ByArchive,
            false => Naming::Together,
        };
        Ok(Sources::Archives(sources.clone(), naming))
    }

    /// Begins to read it.
    pub(super) fn start(&self, arguments: &ImportArguments) -> Result<Source, Failure> {
        let readers = usize::from(arguments.readers);
        let specials = specials(arguments);
        Ok(match self {
            Sources::Directory(root) => Source::Feed(Feed::start(LocalWalk::new(root, specials)?, readers)?),
            Sources::List(root, paths) => Source::Feed(Feed::start(
                LocalList::new(root, paths.clone(), specials),
                readers,
            )?),
            Sources::Archives(archives, naming) => {
                Source::Archives(Archives::start(archives, *naming, specials, readers)?)
            }
        })
    }

    /// A bar for a pass. What a directory has is counted on a thread meanwhile, if anybody looks.
    pub(super) fn progress(&self, what: &'static str, arguments: &ImportArguments) -> Progress {
        if let Sources::Archives(archives, _) = self {
            // Nobody knows how much comes out of a pipe.
            let size = |path: &PathBuf| path.metadata().ok().filter(std::fs::Metadata::is_file);
            let sizes = archives.iter().map(|path| size(path).map(|found| found.len()));
            return match sizes.sum::<Option<u64>>() {
                Some(bytes) => Progress::new(what, 0, bytes),
                None => Progress::uncounted(what),
            };
        }
        let progress = Progress::uncounted(what);
        if let Some(counted) = progress.wants_count() {
            let (sources, specials) = (self.clone(), specials(arguments));
            // Without a count there is no time left to show, and nothing else is missing.
            let _ = spawn("fs count", move || {
                if let Some(count) = sources.count(specials) {
                    let _ = counted.set(count);
                }
            });
        }
        progress
    }

    /// Whether one name may come from several archives.
    pub(super) fn may_repeat(&self) -> bool {
        matches!(self, Sources::Archives(archives, Naming::Together) if archives.len() > 1)
    }

    /// The directory that says what is to be deleted, if anything is.
    pub(super) fn deletes(&self, arguments: &ImportArguments) -> Option<&Path> {
        match self {
            Sources::Directory(root) if arguments.delete => Some(root),
            _ => None,
        }
    }

    /// The same as [`Self::count`], if it does not take longer.
    pub(super) fn count_within(&self, limit: Duration, arguments: &ImportArguments) -> Option<(u64, u64)> {
        let (sources, specials) = (self.clone(), specials(arguments));
        let (sender, counted) = std::sync::mpsc::channel();
        spawn("fs count", move || sender.send(sources.count(specials))).ok()?;
        counted.recv_timeout(limit).ok().flatten()
    }

    /// Entries and bytes in all, where they can be counted. Blocks.
    fn count(&self, specials: Specials) -> Option<(u64, u64)> {
        match self {
            Sources::Directory(root) => LocalWalk::new(root, specials).ok().map(local::count),
            Sources::List(root, paths) => {
                let list = LocalList::new(root, paths.clone(), specials);
                Some(local::count(list))
            }
            Sources::Archives(..) => None,
        }
    }
}

/// What was asked for of pipes, sockets and devices.
fn specials(arguments: &ImportArguments) -> Specials {
    match arguments.special {
        true => Specials::of_this_user(),
        false => Specials::None,
    }
}

/// The paths in a list, without empty ones.
fn paths(list: &Path, null: bool) -> Result<Vec<Vec<u8>>, Failure> {
    let mut bytes = Vec::new();
    let read = match list.as_os_str() == "-" {
        true => std::io::stdin().read_to_end(&mut bytes),
        false => File::open(list).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|error| at(list, &error))?;
    let end = if null { 0 } else { b'\n' };
    let paths = bytes.split(|&byte| byte == end).filter(|path| !path.is_empty());
    Ok(paths.map(<[u8]>::to_vec).collect())
}

impl Source {
    /// Where a bar stands: archives count their own bytes, files their lengths.
    pub(super) fn position(&self, length_bytes: u64) -> u64 {
        match self {
            Source::Feed(_) => length_bytes,
            Source::Archives(archives) => archives.read_bytes(),
        }
    }

    /// What was left out.
    pub(super) fn skipped(self) -> Vec<PathBuf> {
        match self {
            Source::Feed(feed) => feed.skipped(),
            Source::Archives(archives) => archives.skipped(),
        }
    }
}

impl ImportPieces for Source {
    type Error = Failure;

    async fn more(&mut self) -> Result<Option<ImportPiece>, Failure> {
        match self {
            Source::Feed(feed) => feed.more().await,
            Source::Archives(archives) => archives.more().await,
        }
    }
}
