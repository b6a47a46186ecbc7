//! A local directory: what is in it, in a fixed order, with everything `stat` says.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use packfs::{Attributes, DeviceNumber, Kind, Timestamp};
use rustix::io::Errno;

use crate::output::Failure;

/// The longest list of names of extended attributes, and the longest value, in bytes (Linux's limits).
const EXTENDED_BYTES_MAX: usize = 64 << 10;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalKind {
    Directory,
    File,
    /// A file whose content is on the volume already.
    KnownFile,
    Symlink,
    /// A pipe, socket or device.
    Special(Kind, DeviceNumber),
    /// A further name of the file or link that was met first at this path.
    HardLink(Vec<u8>),
}

/// Extended attributes: names and values.
pub(super) type Extended = Vec<(Vec<u8>, Vec<u8>)>;

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
    /// All extended attributes, once somebody has read them.
    pub(super) extended: Option<Extended>,
}

/// Where local entries come from. Blocks.
pub(super) trait Entries: Send + 'static {
    /// The next entry; `None` at the end. After a failure it goes on behind what failed.
    fn next(&mut self) -> Result<Option<LocalEntry>, Failure>;

    /// Sockets, pipes and devices so far that were left out.
    fn skipped(&self) -> &[PathBuf];
}

/// Which of what is neither file, directory nor link is taken, and not left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Specials {
    #[default]
    None,
    PipesAndSockets,
    All,
}

impl Specials {
    /// All that this user may take: a device gives access to whatever it is, so that only root may make one.
    pub(super) fn of_this_user() -> Self {
        match rustix::process::geteuid().is_root() {
            true => Self::All,
            false => Self::PipesAndSockets,
        }
    }

    /// Whether it is taken.
    pub(super) fn take(self, kind: Kind) -> bool {
        match self {
            Self::None => false,
            Self::PipesAndSockets => !kind.is_device(),
            Self::All => true,
        }
    }
}

/// Tells entries by what `lstat` says, and finds further names of what was met before.
#[derive(Default)]
pub(super) struct Inspector {
    /// First names of what has several, by device and inode.
    first_names: BTreeMap<(u64, u64), Vec<u8>>,
    skipped: Vec<PathBuf>,
    specials: Specials,
}

impl Inspector {
    fn new(specials: Specials) -> Self {
        Self {
            specials,
            ..Self::default()
        }
    }

    /// What is at `file`; `None` for what is left out.
    fn inspect(&mut self, file: PathBuf, path: Vec<u8>) -> Result<Option<LocalEntry>, Failure> {
        let metadata = std::fs::symlink_metadata(&file).map_err(|error| at(&file, &error))?;
        let kind = metadata.file_type();
        let kind = if kind.is_dir() {
            LocalKind::Directory
        } else if kind.is_file() {
            self.name(&metadata, &path, LocalKind::File)
        } else if kind.is_symlink() {
            self.name(&metadata, &path, LocalKind::Symlink)
        } else {
            match special(&metadata).filter(|(kind, _)| self.specials.take(*kind)) {
                Some((kind, device)) => self.name(&metadata, &path, LocalKind::Special(kind, device)),
                None => {
                    self.skipped.push(file);
                    return Ok(None);
                }
            }
        };
        Ok(Some(LocalEntry {
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
            extended: None,
        }))
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

/// Walks a tree: a directory's entries in the order of their bytes, then its subdirectories. Blocks.
pub(super) struct LocalWalk {
    waiting: Vec<(PathBuf, Vec<u8>)>,
    listing: std::vec::IntoIter<(PathBuf, Vec<u8>)>,
    found: Vec<(PathBuf, Vec<u8>)>,
    inspector: Inspector,
}

impl LocalWalk {
    /// # Errors
    /// If `root` is not a directory.
    pub(super) fn new(root: &Path, specials: Specials) -> Result<Self, Failure> {
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
            inspector: Inspector::new(specials),
        })
    }
}

impl Entries for LocalWalk {
    fn skipped(&self) -> &[PathBuf] {
        &self.inspector.skipped
    }

    /// The root comes first.
    fn next(&mut self) -> Result<Option<LocalEntry>, Failure> {
        loop {
            let Some((file, path)) = self.listing.next() else {
                self.waiting.extend(self.found.drain(..).rev());
                let Some((file, path)) = self.waiting.pop() else {
                    return Ok(None);
                };
                self.listing = list(&file, &path)?.into_iter();
                continue;
            };
            let Some(entry) = self.inspector.inspect(file, path)? else {
                continue;
            };
            if entry.kind == LocalKind::Directory {
                self.found.push((entry.file.clone(), entry.path.clone()));
            }
            return Ok(Some(entry));
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

/// The entries that a list of paths names, in its order. Directories along the way come before what is in them; a
/// directory that is named comes without what is in it.
pub(super) struct LocalList {
    root: PathBuf,
    paths: std::vec::IntoIter<Vec<u8>>,
    /// Entries that come before the next path.
    waiting: std::collections::VecDeque<Vec<u8>>,
    directories: std::collections::BTreeSet<Vec<u8>>,
    inspector: Inspector,
}

impl LocalList {
    /// Entries below `root`, by paths from there. Outer slashes and `.` do not count.
    pub(super) fn new(root: &Path, paths: Vec<Vec<u8>>, specials: Specials) -> Self {
        Self {
            root: root.to_owned(),
            paths: paths.into_iter(),
            waiting: std::collections::VecDeque::new(),
            directories: std::collections::BTreeSet::new(),
            inspector: Inspector::new(specials),
        }
    }

    fn wait_for(&mut self, path: &[u8]) -> Result<(), Failure> {
        let path = plain_path(path)
            .map_err(|why| Failure::new(format!("{}: {why}", String::from_utf8_lossy(path))))?;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            if self.directories.insert(path[..end].to_vec()) {
                self.waiting.push_back(path[..end].to_vec());
            }
        }
        if !path.is_empty() && !self.directories.contains(&path) {
            self.waiting.push_back(path);
        }
        Ok(())
    }
}

impl Entries for LocalList {
    fn skipped(&self) -> &[PathBuf] {
        &self.inspector.skipped
    }

    fn next(&mut self) -> Result<Option<LocalEntry>, Failure> {
        loop {
            if let Some(path) = self.waiting.pop_front() {
                let file = self.root.join(OsStr::from_bytes(&path));
                if let Some(entry) = self.inspector.inspect(file, path)? {
                    if entry.kind == LocalKind::Directory {
                        self.directories.insert(entry.path.clone());
                    }
                    return Ok(Some(entry));
                }
                continue;
            }
            match self.paths.next() {
                Some(path) => self.wait_for(&path)?,
                None => return Ok(None),
            }
        }
    }
}

/// A path from a root without outer slashes and `.`.
///
/// # Errors
/// Why it leads out of the root.
pub(super) fn plain_path(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    let names = path.split(|&byte| byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(name, [] | [b'.'])).collect();
    match names.contains(&&b".."[..]) {
        true => Err("the path has \"..\" in it; name it from the directory that is imported"),
        false => Ok(names.join(&b'/')),
    }
}

/// Everything of a tree at once, pipes, sockets and devices, too.
pub(super) fn all(root: &Path) -> Result<Vec<LocalEntry>, Failure> {
    let mut walk = LocalWalk::new(root, Specials::All)?;
    let mut entries = Vec::new();
    while let Some(entry) = walk.next()? {
        entries.push(entry);
    }
    Ok(entries)
}

/// Entries and the bytes of their files. What cannot be read counts as nothing: the walk that reads it says so. Blocks.
pub(super) fn count(mut entries: impl Entries) -> (u64, u64) {
    let (mut count, mut bytes) = (0, 0);
    loop {
        match entries.next() {
            Ok(Some(entry)) => {
                count += 1;
                bytes += entry.size_bytes;
            }
            Ok(None) => return (count, bytes),
            Err(_) => {}
        }
    }
}

/// What of the kernel's own kinds it is; `None` for any that PackFS has no name for.
fn special(metadata: &Metadata) -> Option<(Kind, DeviceNumber)> {
    let kind = metadata.file_type();
    let number = DeviceNumber {
        major: rustix::fs::major(metadata.rdev()),
        minor: rustix::fs::minor(metadata.rdev()),
    };
    Some(if kind.is_fifo() {
        (Kind::Pipe, DeviceNumber::default())
    } else if kind.is_socket() {
        (Kind::Socket, DeviceNumber::default())
    } else if kind.is_char_device() {
        (Kind::CharacterDevice, number)
    } else if kind.is_block_device() {
        (Kind::BlockDevice, number)
    } else {
        return None;
    })
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

/// The extended attributes of a file or link itself. Access control lists and labels of security modules are left out:
/// they mean something on their own system only.
pub(super) fn extended(path: &Path) -> Result<Extended, Failure> {
    let mut names = vec![0; 256];
    let length = loop {
        match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(length) => break length,
            Err(Errno::RANGE) if names.len() < EXTENDED_BYTES_MAX => names.resize(EXTENDED_BYTES_MAX, 0),
            Err(Errno::NOTSUP) => break 0,
            Err(error) => return Err(at(path, &error.into())),
        }
    };
    let mut found = Vec::new();
    for name in names[..length].split(|&byte| byte == 0) {
        let foreign = name.starts_with(b"system.") || name.starts_with(b"security.selinux");
        if name.is_empty() || foreign {
            continue;
        }
        let mut value = vec![0; EXTENDED_BYTES_MAX];
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(length) => value.truncate(length),
            // Removed since.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(at(path, &error.into())),
        }
        found.push((name.to_vec(), value));
    }
    Ok(found)
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
