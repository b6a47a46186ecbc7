//! A local directory: what is in it, in a fixed order, with everything `stat` says.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use packfs::{Attributes, Timestamp};

use crate::output::Failure;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalKind {
    Directory,
    File,
    Symlink,
    /// A further name of the file or link that was met first at this path.
    HardLink(Vec<u8>),
}

/// An entry of the directory tree.
#[derive(Clone, Debug)]
pub(super) struct LocalEntry {
    /// From the tree's root; empty for the root itself.
    pub(super) path: Vec<u8>,
    /// As the system knows it.
    pub(super) file: PathBuf,
    pub(super) attributes: Attributes,
    pub(super) kind: LocalKind,
    pub(super) size_bytes: u64,
    /// Further names that were met as such.
    pub(super) links: u64,
}

/// Walks a tree: a directory's entries in the order of their bytes, then its subdirectories. Blocks.
pub(super) struct LocalWalk {
    waiting: Vec<(PathBuf, Vec<u8>)>,
    listing: std::vec::IntoIter<(PathBuf, Vec<u8>)>,
    found: Vec<(PathBuf, Vec<u8>)>,
    /// First names of what has several, by device and inode.
    first_names: BTreeMap<(u64, u64), Vec<u8>>,
    skipped: Vec<PathBuf>,
}

impl LocalWalk {
    /// # Errors
    /// If `root` is not a directory.
    pub(super) fn new(root: &Path) -> Result<Self, Failure> {
        match std::fs::metadata(root) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let shown = root.display();
                return Err(Failure::new(format!("{shown}: is not a directory; name one")));
            }
            Err(error) => return Err(at(root, &error)),
        }
        // The root may be given as a symbolic link; with the dot it is what that leads to.
        let first = vec![(root.join("."), Vec::new())];
        Ok(Self {
            waiting: Vec::new(),
            listing: first.into_iter(),
            found: Vec::new(),
            first_names: BTreeMap::new(),
            skipped: Vec::new(),
        })
    }

    /// Sockets, pipes and devices, which an import leaves out.
    pub(super) fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// The next entry, the root first; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<LocalEntry>, Failure> {
        loop {
            let Some((file, path)) = self.listing.next() else {
                self.waiting.extend(self.found.drain(..).rev());
                let Some((file, path)) = self.waiting.pop() else {
                    return Ok(None);
                };
                self.listing = list(&file, &path)?.into_iter();
                continue;
            };
            let metadata = std::fs::symlink_metadata(&file).map_err(|error| at(&file, &error))?;
            let kind = metadata.file_type();
            let kind = if kind.is_dir() {
                self.found.push((file.clone(), path.clone()));
                LocalKind::Directory
            } else if kind.is_file() || kind.is_symlink() {
                let single = if kind.is_file() {
                    LocalKind::File
                } else {
                    LocalKind::Symlink
                };
                self.name(&metadata, &path, single)
            } else {
                self.skipped.push(file);
                continue;
            };
            return Ok(Some(LocalEntry {
                path,
                file,
                attributes: attributes(&metadata),
                size_bytes: if kind == LocalKind::File {
                    metadata.size()
                } else {
                    0
                },
                links: metadata.nlink(),
                kind,
            }));
        }
    }

    fn name(&mut self, metadata: &Metadata, path: &[u8], first: LocalKind) -> LocalKind {
        if metadata.nlink() < 2 {
            return first;
        }
        let id = (metadata.dev(), metadata.ino());
        match self.first_names.get(&id) {
            Some(name) => LocalKind::HardLink(name.clone()),
            None => {
                self.first_names.insert(id, path.to_vec());
                first
            }
        }
    }
}

fn list(directory: &Path, path: &[u8]) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    let read = std::fs::read_dir(directory).map_err(|error| at(directory, &error))?;
    let mut names = Vec::new();
    for entry in read {
        names.push(entry.map_err(|error| at(directory, &error))?.file_name());
    }
    names.sort();
    let join = |name: &std::ffi::OsString| {
        let mut joined = path.to_vec();
        if !joined.is_empty() {
            joined.push(b'/');
        }
        joined.extend_from_slice(name.as_bytes());
        (directory.join(name), joined)
    };
    Ok(names.iter().map(join).collect())
}

/// Everything of a tree at once, and how many bytes its files have.
pub(super) fn all(root: &Path) -> Result<(Vec<LocalEntry>, Vec<PathBuf>), Failure> {
    let mut walk = LocalWalk::new(root)?;
    let mut entries = Vec::new();
    while let Some(entry) = walk.next()? {
        entries.push(entry);
    }
    Ok((entries, walk.skipped))
}

/// Files and their bytes, counted by a quick walk. What cannot be read counts as nothing: the walk that
/// reads it says so.
pub(super) fn count(root: &Path) -> Result<(u64, u64), Failure> {
    let mut walk = LocalWalk::new(root)?;
    let (mut entries, mut bytes) = (0, 0);
    while let Some(entry) = walk.next()? {
        entries += 1;
        bytes += entry.size_bytes;
    }
    Ok((entries, bytes))
}

/// A failure that names a file.
pub(super) fn at(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::PermissionDenied => "; run as a user who may, or change its mode",
        io::ErrorKind::StorageFull => "; free space on that file system",
        _ => "",
    };
    Failure::new(format!("{}: {error}{remedy}", path.display()))
}

pub(super) fn attributes(metadata: &Metadata) -> Attributes {
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: nanoseconds.clamp(0, 999_999_999) as u32,
    };
    Attributes {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// This moment on the wall's clock.
pub(super) fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: since.as_secs() as i64,
        nanoseconds: since.subsec_nanos(),
    }
}

/// User and group of this process, as its own entry in /proc has them; root's where that is not there.
pub(super) fn own_ids() -> (u32, u32) {
    std::fs::metadata("/proc/self").map_or((0, 0), |own| (own.uid(), own.gid()))
}
