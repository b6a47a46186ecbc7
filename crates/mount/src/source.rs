//! What is mounted: the file system of the one writer, or a reader's generation.

use std::cell::RefCell;
use std::rc::Rc;

use packfs::files::{FileSystem, Listed};
use packfs::lease::LeaseSource;
use packfs::{
    Content, Inode, InodeNumber, Kind, Medium, OpenError, OpenFile, Quota, Reader, ReaderOptions,
    ReaderStatistics, Seek, Totals,
};

use crate::kept::{Kept, KeptStatistics};
use crate::refusal::Refusal;

/// A volume that is read, and how it is opened again after its lease has ended.
pub struct Volume {
    /// Its blocks.
    pub medium: Medium,
    /// Who keeps the lease.
    pub leases: Rc<dyn LeaseSource>,
    /// Caches and bounds. Of `cache_bytes` a part is for what the mount itself remembers: an eighth for inodes, a sixteenth for which
    /// contents the kernel has; the rest is the reader's, whose files are never read by path here.
    pub options: ReaderOptions,
}

/// A reader's generation.
pub(crate) struct Snapshot {
    volume: Volume,
    reader: Reader,
    /// Inodes that the kernel has asked for lately, so that reading one asks the index no more.
    known: RefCell<Kept<OpenFile>>,
}

/// The share of [`Volume::options`]' `cache_bytes` that is for inodes, and that which is for the kernel's contents ([`Volume::contents_bytes`]).
const KNOWN_SHARE: usize = 8;
const CONTENTS_SHARE: usize = 16;

/// What an [`OpenFile`] takes besides its inode, in bytes: the path that errors show, and what the allocations of both take.
const OPEN_FILE_BYTES: usize = 128;

/// See the module.
pub(crate) enum Source {
    Writing(Box<FileSystem>),
    Reading(Box<Snapshot>),
}

/// Bytes of a file.
pub(crate) enum Bytes {
    Copied(Vec<u8>),
    Lent(Content),
}

/// What `statfs` asks.
pub(crate) struct Room {
    pub(crate) totals: Totals,
    pub(crate) volume_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Of the tree that was asked about.
    pub(crate) quota: Option<Quota>,
}

impl Volume {
    /// The same once more.
    pub(crate) fn again(&self) -> Self {
        Self {
            medium: self.medium.clone(),
            leases: self.leases.clone(),
            options: self.options.clone(),
        }
    }

    fn known_bytes(&self) -> usize {
        self.options.cache_bytes / KNOWN_SHARE
    }

    /// Bound of the memory for which contents the kernel has, in bytes.
    pub(crate) fn contents_bytes(&self) -> usize {
        self.options.cache_bytes / CONTENTS_SHARE
    }

    async fn open(&self) -> Result<Reader, OpenError> {
        let options = ReaderOptions {
            cache_bytes: self.options.cache_bytes - self.known_bytes() - self.contents_bytes(),
            by_path: false,
            ..self.options.clone()
        };
        Reader::open(self.medium.clone(), self.leases.clone(), &options).await
    }

    /// The newest generation.
    pub(crate) async fn read(self) -> Result<Snapshot, OpenError> {
        let reader = self.open().await?;
        Ok(Snapshot {
            known: RefCell::new(Kept::new(self.known_bytes())),
            volume: self,
            reader,
        })
    }
}

impl Snapshot {
    pub(crate) fn generation(&self) -> u64 {
        self.reader.generation()
    }

    /// Whether a reader is of the same file system: the volume may have been formatted anew.
    pub(crate) fn is_of(&self, reader: &Reader) -> bool {
        self.reader.superblock().uuid == reader.superblock().uuid
    }

    pub(crate) async fn newer(&self) -> Result<Option<Reader>, OpenError> {
        self.reader.newer().await
    }

    /// A reader under a new lease, after the old one has ended.
    pub(crate) async fn again(&self) -> Result<Reader, OpenError> {
        self.volume.open().await
    }

    /// From now on this one is read; what was read before is given back, and remembers nothing: there may be many of those, and each
    /// is kept for a few files.
    pub(crate) fn replace(&mut self, reader: Reader) -> Self {
        self.known.borrow_mut().clear();
        let before = std::mem::replace(&mut self.reader, reader);
        before.keep_nothing_ahead();
        Self {
            volume: self.volume.again(),
            reader: before,
            known: RefCell::new(Kept::new(0)),
        }
    }

    /// What its reader has done.
    pub(crate) fn statistics(&self) -> ReaderStatistics {
        self.reader.statistics()
    }

    /// What is remembered of inodes.
    pub(crate) fn known(&self) -> KeptStatistics {
        self.known.borrow().statistics()
    }

    /// How it is read.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) async fn close(self) {
        if let Err(error) = self.reader.close().await {
            // It ends by itself.
            tracing::debug!("the reader's lease was not given back: {error}");
        }
    }

    fn remember(&self, inode: &Inode) -> OpenFile {
        let file = self.reader.file(inode.clone());
        let bytes = file.inode.memory_bytes() + OPEN_FILE_BYTES;
        self.known
            .borrow_mut()
            .insert(inode.number.0, file.clone(), bytes);
        file
    }

    async fn file(&self, number: InodeNumber) -> Result<OpenFile, Refusal> {
        let known = self.known.borrow().get(number.0).cloned();
        match known {
            Some(file) => Ok(file),
            None => Ok(self.remember(&self.reader.inode(number).await?)),
        }
    }

    async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, Refusal> {
        let entry = self.reader.lookup_in(directory, name).await?;
        let inode = self.reader.inode_of(entry.ok_or(Refusal::NO_SUCH_ENTRY)?).await?;
        self.remember(&inode);
        Ok(inode)
    }

    async fn list(
        &self,
        directory: InodeNumber,
        after: Option<u64>,
        after_name: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>, Refusal> {
        let found = match (after_name, after) {
            (Some(name), _) => self.reader.read_directory_after(directory, name, limit).await?,
            (None, None) => self.reader.read_directory_after(directory, b"", limit).await?,
            (None, after) => self.reader.read_directory(directory, after, limit).await?,
        };
        let listed = found.into_iter().map(|found| Listed {
            name: found.name,
            inode: found.entry.inode(),
            kind: found.entry.kind(),
            cookie: found.entry.cookie(),
            attributes: match found.entry {
                packfs::Entry::Embedded(inode) => Some(inode),
                packfs::Entry::Link { .. } => None,
            },
        });
        Ok(listed.collect())
    }
}

impl Source {
    /// What is read of a volume that is not written here.
    pub(crate) fn reader(&self) -> Option<&Reader> {
        match self {
            Self::Writing(_) => None,
            Self::Reading(snapshot) => Some(&snapshot.reader),
        }
    }

    pub(crate) async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.lookup(directory, name).await?),
            Self::Reading(snapshot) => snapshot.lookup(directory, name).await,
        }
    }

    pub(crate) async fn stat(&self, inode: InodeNumber) -> Result<Inode, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.stat(inode).await?),
            Self::Reading(snapshot) => Ok((*snapshot.file(inode).await?.inode).clone()),
        }
    }

    pub(crate) async fn parent(&self, directory: InodeNumber) -> Result<InodeNumber, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.parent(directory).await?),
            Self::Reading(snapshot) => Ok(snapshot.reader.parent(directory).await?),
        }
    }

    pub(crate) async fn read_link(&self, inode: InodeNumber) -> Result<Bytes, Refusal> {
        match self {
            Self::Writing(files) => Ok(Bytes::Copied(files.read_link(inode).await?)),
            Self::Reading(snapshot) => {
                let file = snapshot.file(inode).await?;
                if file.inode.kind != Kind::Symlink {
                    return Err(Refusal::Number(packfs::files::errno::EINVAL));
                }
                let length = file.inode.size;
                Ok(Bytes::Lent(snapshot.reader.read(&file, 0, length).await?))
            }
        }
    }

    pub(crate) async fn read(&self, inode: InodeNumber, offset: u64, length: u64) -> Result<Bytes, Refusal> {
        match self {
            Self::Writing(files) => Ok(Bytes::Copied(files.read(inode, offset, length).await?)),
            Self::Reading(snapshot) => {
                let file = snapshot.file(inode).await?;
                Ok(Bytes::Lent(snapshot.reader.read(&file, offset, length).await?))
            }
        }
    }

    /// Says in the log which path an inode has for which a request failed: a number helps nobody.
    pub(crate) async fn name_in_log(&self, inode: InodeNumber) {
        let path = match self {
            Self::Writing(files) => files.path_of(inode).await,
            Self::Reading(snapshot) => snapshot.reader.path_of(inode).await,
        };
        if let Some(path) = path {
            tracing::error!("inode {inode}, for which a request failed, is {path}");
        }
    }

    pub(crate) async fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.seek(inode, offset, what).await?),
            Self::Reading(snapshot) => {
                let file = snapshot.file(inode).await?;
                let found = snapshot.reader.seek(&file, offset, what).await?;
                found.ok_or(Refusal::Number(packfs::files::errno::ENXIO))
            }
        }
    }

    pub(crate) async fn list(
        &self,
        directory: InodeNumber,
        after: Option<u64>,
        after_name: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.read_directory(directory, after, after_name, limit).await?),
            Self::Reading(snapshot) => snapshot.list(directory, after, after_name, limit).await,
        }
    }

    pub(crate) async fn extended(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.extended(inode, name).await?),
            Self::Reading(snapshot) => {
                let value = snapshot.reader.extended(inode, name).await?;
                value.ok_or(Refusal::Number(packfs::files::errno::ENODATA))
            }
        }
    }

    pub(crate) async fn list_extended(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>, Refusal> {
        match self {
            Self::Writing(files) => Ok(files.list_extended(inode).await?),
            Self::Reading(snapshot) => Ok(snapshot.reader.list_extended(inode).await?),
        }
    }

    /// Room, and the quota that an inode is under. Where that cannot be read, only the room is told.
    pub(crate) async fn room(&self, inode: InodeNumber) -> Room {
        match self {
            Self::Writing(files) => {
                let found = files.statistics();
                Room {
                    totals: found.totals,
                    volume_bytes: found.volume.0,
                    free_bytes: found.free.0,
                    quota: files.quota_of(inode).await.ok().flatten(),
                }
            }
            // What is free only the writer knows, and here nothing can be written.
            Self::Reading(snapshot) => {
                let superblock = snapshot.reader.superblock();
                Room {
                    totals: superblock.totals,
                    volume_bytes: superblock.volume_bytes,
                    free_bytes: 0,
                    quota: None,
                }
            }
        }
    }
}

impl Bytes {
    /// Gives them to `use_them` in one piece.
    pub(crate) fn with<T>(&self, use_them: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Copied(bytes) => use_them(bytes),
            Self::Lent(content) => match content.parts() {
                [] => use_them(&[]),
                [part] => use_them(part),
                _ => use_them(&content.to_vec()),
            },
        }
    }
}
