//! Reading one generation of a file system.
//!
//! A reader holds a snapshot under a lease. Small files come through [`Reader::read_many`]: names are resolved in
//! the page cache, what is missing is sorted, neighbours are joined, and the bytes are handed out as slices of
//! the buffers they arrived in. Cost of a file with a warm index: a descent of three or four cached pages, or one look where it has
//! been read before, one read (shared with neighbours), one checksum.

mod ahead;
mod directories;
mod extended;
mod fetch;
mod follow;
mod handed;
mod list;
mod numbers;
mod packed;
mod planner;
mod read_many;
mod resolve;
mod sparse;

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use bdev::IoError;
use reactor::Buffer;
use reactor::sync::Semaphore;

use crate::cache::{CacheStatistics, PageCache};
use crate::error::{OpenError, ReadError, TreeError};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::entry::Inode;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Identity, Superblock};
use crate::io::Medium;
use crate::lease::hold::ReaderHold;
use crate::lease::{LeaseError, LeaseSource};
use crate::local::LocalCacheStatistics;
use crate::mount::mount;
use crate::name::Shown;
use crate::snapshots;
use crate::tree::Tree;

pub use ahead::DataStatistics;
pub use handed::{Handed, IsHeld, Sharing, Witness};
pub use list::{DirectoryEntry, Walk, WalkEntry};
pub use planner::{Piece, Run, plan};
pub use read_many::Target;

/// How a reader works.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Read the snapshot of this name, not the newest generation.
    pub snapshot: Option<Vec<u8>>,
    /// Bound of the metadata cache, in bytes.
    pub cache_bytes: usize,
    /// Whether files are read by their paths: then an eighth of `cache_bytes` is for where paths lead to, and the rest for pages of the
    /// index; otherwise all of it is for pages.
    pub by_path: bool,
    /// Bound of the memory for content that is read ahead of whoever reads files in the order in which they lie, in bytes; 0 for none.
    /// Content that is handed out from there keeps its whole read (256 KiB) in memory until it is dropped.
    pub data_cache_bytes: usize,
    /// Reads in flight at once.
    pub reads_in_flight: usize,
    /// Neighbours at most so far apart are read as one, in bytes.
    pub join_gap_bytes: u64,
    /// The longest joined read, in bytes.
    pub run_bytes_max: u64,
    /// The most content one call gives, in bytes: it occupies the reactor's buffers until it is dropped.
    pub batch_bytes_max: u64,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            identity: None,
            snapshot: None,
            cache_bytes: 64 << 20,
            by_path: true,
            data_cache_bytes: 0,
            reads_in_flight: 32,
            join_gap_bytes: 8 << 10,
            run_bytes_max: 256 << 10,
            batch_bytes_max: 32 << 20,
        }
    }
}

impl ReaderOptions {
    /// The share of each of the two tables by path: directories, and places of small files.
    fn path_table_bytes(&self) -> usize {
        match self.by_path {
            true => self.cache_bytes / 16,
            false => 0,
        }
    }
}

/// A part of a file's content.
#[derive(Debug)]
pub enum Part {
    /// A slice of a buffer that came from the volume.
    Device(Buffer),
    /// Bytes that stood in the index.
    Index(Box<[u8]>),
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Part::Device(buffer) => buffer,
            Part::Index(bytes) => bytes,
        }
    }
}

/// Content, in order. A file of one extent is one part.
#[derive(Debug, Default)]
pub struct Content(Parts);

/// A small file's only part needs no memory of its own.
#[derive(Debug)]
enum Parts {
    One([Part; 1]),
    Many(Vec<Part>),
}

impl Default for Parts {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Content {
    fn of_one(part: Part) -> Self {
        Self(Parts::One([part]))
    }

    fn of(parts: Vec<Part>) -> Self {
        Self(Parts::Many(parts))
    }

    /// The parts, in order; none is empty.
    pub fn parts(&self) -> &[Part] {
        match &self.0 {
            Parts::One(part) => part,
            Parts::Many(parts) => parts,
        }
    }

    /// Takes the parts out.
    pub fn into_parts(self) -> Vec<Part> {
        match self.0 {
            Parts::One(part) => part.into(),
            Parts::Many(parts) => parts,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts().is_empty()
    }

    /// A copy in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for part in self.parts() {
            out.extend_from_slice(part);
        }
        out
    }
}

/// A file that was looked up: reading it asks the index no more, unless it is large.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The inode as it is in the reader's snapshot.
    pub inode: Rc<Inode>,
    path: Shown,
}

/// What a reader has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStatistics {
    /// The metadata cache.
    pub cache: CacheStatistics,
    /// The cache of content.
    pub data: DataStatistics,
    /// The cache on a local disk; all readers that share it are counted together.
    pub local: LocalCacheStatistics,
    /// Memory of remembered directories, in bytes.
    pub directory_bytes: usize,
    /// Memory of remembered places of small files, in bytes.
    pub packed_bytes: usize,
    /// Reads of data that were issued.
    pub reads: u64,
    /// Bytes they read.
    pub read_bytes: u64,
    /// Bytes of content that were asked for.
    pub content_bytes: u64,
}

impl ReaderStatistics {
    /// Memory of everything that is remembered of the index, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.cache.bytes + self.directory_bytes + self.packed_bytes
    }
}

struct Inner {
    medium: Medium,
    tree: Tree,
    superblock: Superblock,
    hold: Rc<ReaderHold>,
    directories: directories::Directories,
    packed: packed::PackedFiles,
    ahead: ahead::Ahead,
    permits: Rc<Semaphore>,
    options: ReaderOptions,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
    content_bytes: Cell<u64>,
    /// Whether the lease lasted when content was asked for last, where a planted bug asks then and not later.
    #[cfg(test)]
    asked_early: Cell<Option<bool>>,
}

/// See the module. Clones share the snapshot; all belong to one reactor.
#[derive(Clone)]
pub struct Reader(Rc<Inner>);

impl Reader {
    /// Opens the newest generation, or the snapshot that is asked for, under a lease, which is renewed for as long as a clone of the reader lives.
    pub async fn open(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        options: &ReaderOptions,
    ) -> Result<Self, OpenError> {
        Self::open_sharing(medium, leases, options, &Sharing::default()).await
    }

    /// The same, or the earlier generation that another reader has handed over and is proved to hold.
    pub async fn open_sharing(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        options: &ReaderOptions,
        sharing: &Sharing,
    ) -> Result<Self, OpenError> {
        // First hold everything: between reading the superblock and holding its generation nothing may go.
        let hold = ReaderHold::acquire(leases, sharing.witness.clone()).await?;
        match Self::open_under(&medium, &hold, options, sharing.handed.as_ref()).await {
            Ok(reader) => Ok(reader),
            Err(error) => {
                // The first error is the one to tell; the lease ends by itself if this fails too.
                let _ = hold.release().await;
                Err(error)
            }
        }
    }

    async fn open_under(
        medium: &Medium,
        hold: &Rc<ReaderHold>,
        options: &ReaderOptions,
        handed: Option<&Handed>,
    ) -> Result<Self, OpenError> {
        let mounted = mount(medium, options.identity.as_ref()).await?;
        let mut superblock = mounted.superblock;
        if let Some(name) = &options.snapshot {
            // Everything is held until it is found, so it cannot go meanwhile.
            let tree = Tree::new(medium.clone(), PageCache::new(0), superblock.root);
            let found = snapshots::find(&tree, name).await?;
            let name = || Shown::new(name);
            let snapshot = found.ok_or_else(|| OpenError::NoSnapshot { name: name() })?;
            superblock = snapshot.superblock(&superblock);
        } else if let Some(proved) = handed.and_then(|handed| handed.proved(&superblock)) {
            superblock = proved;
        }
        hold.hold_from(superblock.generation).await?;
        let cache = PageCache::new(options.cache_bytes - 2 * options.path_table_bytes());
        let permits = Semaphore::new(options.reads_in_flight.max(1));
        Ok(Self::assemble(medium, superblock, cache, hold, permits, options))
    }

    fn assemble(
        medium: &Medium,
        superblock: Superblock,
        cache: Rc<PageCache>,
        hold: &Rc<ReaderHold>,
        permits: Rc<Semaphore>,
        options: &ReaderOptions,
    ) -> Self {
        let medium = medium.clone().for_reader_of(superblock.uuid);
        Self(Rc::new(Inner {
            tree: Tree::new(medium.clone(), cache, superblock.root),
            medium,
            superblock,
            hold: hold.clone(),
            directories: directories::Directories::new(options.path_table_bytes()),
            packed: packed::PackedFiles::new(options.path_table_bytes()),
            ahead: ahead::Ahead::new(options.data_cache_bytes),
            permits,
            options: options.clone(),
            reads: Cell::new(0),
            read_bytes: Cell::new(0),
            content_bytes: Cell::new(0),
            #[cfg(test)]
            asked_early: Cell::new(None),
        }))
    }

    /// The generation that is read.
    pub fn generation(&self) -> u64 {
        self.0.superblock.generation
    }

    /// The superblock of that generation.
    pub fn superblock(&self) -> &Superblock {
        &self.0.superblock
    }

    /// The bytes by which another reader is told of this generation ([`Handed::new`]).
    pub fn to_hand(&self) -> Vec<u8> {
        self.0.superblock.encode(SUPERBLOCK_ADDRESSES[0])
    }

    /// All snapshots by name that this generation knows, oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ReadError> {
        let listed = snapshots::list(&self.0.tree).await;
        self.check_lease()?;
        listed.map_err(|error| self.tree_error(b"the list of snapshots", error))
    }

    /// Gives the lease back; further reads fail.
    pub async fn close(self) -> Result<(), LeaseError> {
        self.0.hold.release().await
    }

    /// From now on this one keeps no content that is read ahead, of which readers that came from it by [`Reader::newer`] have memory of their own:
    /// for one that is kept for the few files that are still read at its generation.
    pub fn keep_nothing_ahead(&self) {
        self.0.ahead.end();
    }

    /// What it has done so far.
    pub fn statistics(&self) -> ReaderStatistics {
        ReaderStatistics {
            cache: self.0.tree.cache.statistics(),
            data: self.0.ahead.statistics(),
            local: self
                .0
                .medium
                .local()
                .map(|cache| cache.statistics())
                .unwrap_or_default(),
            directory_bytes: self.0.directories.bytes(),
            packed_bytes: self.0.packed.bytes(),
            reads: self.0.reads.get(),
            read_bytes: self.0.read_bytes.get(),
            content_bytes: self.0.content_bytes.get(),
        }
    }

    /// To be asked after bytes arrived and before they are handed out.
    fn check_lease(&self) -> Result<(), ReadError> {
        #[cfg(test)]
        if let Some(was_held) = self.0.asked_early.get() {
            return was_held.then_some(()).ok_or(ReadError::LeaseEnded);
        }
        if self.0.hold.is_held() {
            Ok(())
        } else {
            Err(ReadError::LeaseEnded)
        }
    }

    /// A deliberate mistake from now on.
    #[cfg(test)]
    pub(crate) fn plant(&self, bug: crate::space::PlantedBug) {
        let asks_early = bug == crate::space::PlantedBug::LeaseBeforeBytes;
        self.0.asked_early.set(asks_early.then_some(true));
        if bug == crate::space::PlantedBug::ToldAfterMasters {
            self.0.hold.tell_late();
        }
    }

    fn tree_error(&self, path: &[u8], source: TreeError) -> ReadError {
        // After the lease's end the pages may be another's: that is not damage.
        match self.check_lease() {
            Err(ended) => ended,
            Ok(()) => ReadError::Tree {
                path: Shown::new(path),
                source,
            },
        }
    }
}

/// What went wrong with one extent, before it is known whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtentError {
    Damaged,
    Io(IoError),
}
