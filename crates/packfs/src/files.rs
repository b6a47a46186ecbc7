//! The file system as programs use it: names, attributes and content with POSIX's rules, over the one writer.
//!
//! [`FileSystem`] is what a mount serves from. Every operation sees what was done before it, committed or not; a
//! commit makes all of it durable at once. Content that was written waits in memory up to a strict bound
//! ([`FileOptions::dirty_bytes_max`]), small files are packed when they are committed, and what was committed is never
//! written over. Who may do what is not asked here: whoever calls has decided that. Wall-clock time is an argument.
//!
//! Cost: a change of a name touches three or four leaves of the tree; a write costs a copy of its bytes, and once it is
//! put into the tree the reading of the extents that it changes a part of.

mod attributes;
mod clone;
mod content;
mod directories;
mod dirty;
mod error;
mod extended;
mod flush;
mod names;
mod rename;
mod sparse;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use foundation::ByteCount;

use crate::error::{OpenError, WriteError};
use crate::format::entry::{Inode, Kind, Timestamp};
use crate::format::key::InodeNumber;
use crate::format::quota::Quota;
use crate::format::snapshot::Snapshot;
use crate::io::Medium;
use crate::lease::{LeaseError, LeaseSource};
use crate::writer::{CompactionProgress, Writer, WriterOptions};

use dirty::{Dirty, Waiting};

pub use attributes::{SetAttributes, Statistics};
pub use content::{FILE_BYTES_MAX, READ_BYTES_MAX};
pub use directories::Listed;
pub use error::{FileError, errno};
pub use extended::SetExtended;
pub use names::{NewInode, NodeKind};
pub use rename::RenameMode;
pub use sparse::Allocate;

/// How a file system is opened for writing.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The writer below.
    pub writer: WriterOptions,
    /// The most memory that content takes before it is put into the tree, in bytes; at least 1 MiB.
    pub dirty_bytes_max: usize,
    /// Memory of changed index pages, in bytes, after which a change commits first, or is refused.
    pub index_bytes_max: u64,
    /// Whether room and memory may be made by a commit that nobody has asked for, as a mount does it. Without it all that is done between
    /// two commits is seen together or not at all: what does not fit is refused, and a commit that would lack something is
    /// none.
    pub commits_unasked: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            writer: WriterOptions::default(),
            dirty_bytes_max: 32 << 20,
            index_bytes_max: 64 << 20,
            commits_unasked: true,
        }
    }
}

/// Entries that were removed or moved, which a listing may have stopped at.
const REMOVED_KEPT: usize = 16 << 10;

/// See the module. Lives inside a reactor.
pub struct FileSystem {
    writer: Writer,
    dirty_bytes_max: usize,
    index_bytes_max: u64,
    commits_unasked: bool,
    /// Free space that a change was refused for want of, in bytes, and that the next commit tries to make.
    missed_bytes: u64,
    /// Room for content, in bytes, in which what waits did not find enough before a change ([`FileSystem::keep_promises`]).
    refused_at: Option<u64>,
    /// How often each inode is open.
    open: BTreeMap<InodeNumber, u32>,
    /// Inodes without names that nobody has open any more, and that are there until there is room to say that they are not.
    released: BTreeSet<InodeNumber>,
    dirty: BTreeMap<InodeNumber, Dirty>,
    /// Inodes whose content was dropped because it could not be put into the tree, and nobody was told yet who asked
    /// for them.
    failed: BTreeMap<InodeNumber, WriteError>,
    /// What it takes.
    waiting: Waiting,
    /// Where entries stood that were removed or moved, and their cookies, oldest first.
    removed: BTreeMap<u64, (InodeNumber, Vec<u8>)>,
    removed_order: VecDeque<u64>,
}

impl FileSystem {
    /// Becomes the volume's writer; see [`Writer::open`]. What was unlinked while a writer before had it open is gone.
    pub async fn open(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        options: &FileOptions,
    ) -> Result<Self, OpenError> {
        let writer = Writer::open(medium, leases, &options.writer).await?;
        Ok(Self {
            writer,
            dirty_bytes_max: options.dirty_bytes_max.max(1 << 20),
            index_bytes_max: options.index_bytes_max,
            commits_unasked: options.commits_unasked,
            missed_bytes: 0,
            refused_at: None,
            open: BTreeMap::new(),
            released: BTreeSet::new(),
            dirty: BTreeMap::new(),
            failed: BTreeMap::new(),
            waiting: Waiting::default(),
            removed: BTreeMap::new(),
            removed_order: VecDeque::new(),
        })
    }

    /// The last durable commit.
    pub fn generation(&self) -> u64 {
        self.writer.generation()
    }

    /// Memory of content that is not in the tree yet, in bytes; never above the bound.
    pub fn dirty_bytes(&self) -> usize {
        self.waiting.bytes
    }

    /// Memory of changed index pages, in bytes, roughly; a change that would begin above
    /// [`FileOptions::index_bytes_max`] commits first.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.writer.uncommitted_bytes()
    }

    /// The bound of [`FileSystem::dirty_bytes`], in bytes.
    pub fn dirty_bytes_max(&self) -> usize {
        self.dirty_bytes_max
    }

    /// The bound of [`FileSystem::uncommitted_bytes`], in bytes.
    pub fn uncommitted_bytes_max(&self) -> u64 {
        self.index_bytes_max
    }

    /// Inodes that are open ([`FileSystem::open_inode`]).
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// See [`Writer::wanted_by`].
    pub fn wanted_by(&self) -> Option<String> {
        self.writer.wanted_by()
    }

    /// See [`Writer::asked`].
    pub fn asked(&self) -> impl Future<Output = ()> + use<> {
        self.writer.asked()
    }

    /// Whether nothing was changed since the last commit.
    pub fn is_committed(&self) -> bool {
        self.dirty.is_empty() && self.failed.is_empty() && self.writer.is_committed()
    }

    /// See [`Writer::hand_over`]. Of content that was dropped nobody need have been told ([`FileSystem::take_dropped`]).
    pub async fn hand_over(&mut self) -> bool {
        self.dirty.is_empty() && self.writer.hand_over().await
    }

    /// Gives the lease back. What was not committed is dropped.
    pub async fn close(self) -> Result<(), LeaseError> {
        self.writer.close().await
    }

    /// Notes that an inode is open: its content stays after its last name is removed, until [`FileSystem::release`].
    pub async fn open_inode(&mut self, inode: InodeNumber) -> Result<(), FileError> {
        if !self.open.contains_key(&inode) {
            self.writer.find(inode).await?;
        }
        *self.open.entry(inode).or_default() += 1;
        Ok(())
    }

    /// The reverse of [`FileSystem::open_inode`]. The last one drops an inode without names.
    ///
    /// # Errors
    /// On a full volume, or full disks, the inode stays until a later commit finds room.
    pub async fn release(&mut self, number: InodeNumber) -> Result<(), FileError> {
        let Some(count) = self.open.get_mut(&number) else {
            return Ok(());
        };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        self.open.remove(&number);
        let (inode, _) = self.writer.find(number).await?;
        if inode.links == 0 {
            self.failed.remove(&number);
            self.take_dirty(number);
            self.keep_promises(0).await;
            self.released.insert(number);
            self.drop_released().await?;
        }
        Ok(())
    }

    /// Drops the inodes without names that nobody has open any more. The failure is the first; those that have met want of room stay.
    pub(super) async fn drop_released(&mut self) -> Result<(), FileError> {
        let mut first = Ok(());
        for number in std::mem::take(&mut self.released) {
            if self.open.contains_key(&number) {
                continue;
            }
            let dropped = self.writer.drop_orphan(number).await;
            if let Err(error) = dropped {
                if error.may_pass() {
                    self.released.insert(number);
                }
                first = first.and(Err(error.into()));
            }
        }
        first
    }

    /// Commits before a change where changed index pages take too much memory or too much of the room that is free.
    /// That may change every inode that has content waiting, so whatever was looked up before is stale.
    async fn before_change(&mut self) -> Result<(), FileError> {
        self.before(false).await
    }

    /// The same before a change that gives space back, which a full volume still takes.
    async fn before_removal(&mut self) -> Result<(), FileError> {
        self.before(true).await
    }

    async fn before(&mut self, removal: bool) -> Result<(), FileError> {
        self.bound_index().await?;
        self.keep_promises(0).await;
        match self.writer.check_room_for(removal, CHANGE_PAGES) {
            Err(WriteError::NoSpace { .. }) => {
                self.make_room().await?;
                Ok(self.writer.check_room_for(removal, CHANGE_PAGES)?)
            }
            other => other.map_err(FileError::from),
        }
    }

    /// Commits where changed index pages take more memory than they may, or refuses. What of content does not get into the tree
    /// meanwhile is told by whoever commits or syncs.
    async fn bound_index(&mut self) -> Result<(), FileError> {
        if self.writer.uncommitted_bytes() <= self.index_bytes_max {
            return Ok(());
        }
        if !self.commits_unasked {
            return Err(FileError::Uncommitted {
                bytes: ByteCount(self.writer.uncommitted_bytes()),
                limit: ByteCount(self.index_bytes_max),
            });
        }
        let _ = self.flush_with_room().await?;
        Ok(self.writer.commit().await.map(drop)?)
    }

    /// Commits everything and keeps it under a name; see [`Writer::create_snapshot`].
    pub async fn create_snapshot(&mut self, name: &[u8], now: Timestamp) -> Result<Snapshot, FileError> {
        self.commit().await?;
        Ok(self.writer.create_snapshot(name, now).await?)
    }

    /// See [`Writer::delete_snapshot`].
    pub async fn delete_snapshot(&mut self, name: &[u8]) -> Result<(), FileError> {
        self.commit().await?;
        Ok(self.writer.delete_snapshot(name).await?)
    }

    /// Commits everything and sets the quota of what stands below a directory; see [`Writer::set_quota`].
    pub async fn set_quota(
        &mut self,
        directory: InodeNumber,
        limit_bytes: u64,
        limit_files: u64,
    ) -> Result<Quota, FileError> {
        self.commit().await?;
        Ok(self.writer.set_quota(directory, limit_bytes, limit_files).await?)
    }

    /// Commits everything and takes a quota away; see [`Writer::clear_quota`].
    pub async fn clear_quota(&mut self, directory: InodeNumber) -> Result<(), FileError> {
        self.commit().await?;
        Ok(self.writer.clear_quota(directory).await?)
    }

    /// The quota that an inode is charged to, or that a directory has; what waits in memory is counted.
    pub async fn quota_of(&self, number: InodeNumber) -> Result<Option<Quota>, FileError> {
        let (inode, place) = self.writer.find(number).await?;
        let tree = match inode.kind {
            Kind::Directory => self.writer.quota_tree(number).await?,
            _ => self.writer.quota_tree_of(&inode, &place).await?,
        };
        Ok(self.writer.quota(tree))
    }

    /// All quotas, by directory; what waits in memory is counted.
    pub fn quotas(&self) -> Vec<(InodeNumber, Quota)> {
        self.writer.quotas()
    }

    /// All snapshots by name, oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, FileError> {
        Ok(self.writer.snapshots().await?)
    }

    /// See [`Writer::compact`]. Whatever waits is committed first.
    pub async fn compact(
        &mut self,
        tell: impl FnMut(&CompactionProgress),
    ) -> Result<CompactionProgress, FileError> {
        self.commit().await?;
        Ok(self.writer.compact(tell).await?)
    }

    #[cfg(test)]
    pub(crate) async fn compact_a_little(&mut self) -> Result<(), FileError> {
        Ok(self.writer.compact_a_little().await?)
    }

    /// Commits also without changes, so that what the commit before has freed becomes free.
    #[cfg(test)]
    pub(crate) async fn make_durable_again(&mut self) -> Result<(), FileError> {
        Ok(self.writer.commit_always().await.map(drop)?)
    }

    #[cfg(test)]
    pub(crate) fn compaction(&self) -> CompactionProgress {
        self.writer.compaction()
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, bug: crate::space::PlantedBug) {
        self.writer.plant(bug);
    }

    fn remember_removed(&mut self, cookie: u64, directory: InodeNumber, name: &[u8]) {
        if self.removed.insert(cookie, (directory, name.to_vec())).is_none() {
            self.removed_order.push_back(cookie);
        }
        if self.removed_order.len() > REMOVED_KEPT
            && let Some(oldest) = self.removed_order.pop_front()
        {
            self.removed.remove(&oldest);
        }
    }

    /// Notes a change of a directory's entries in its times.
    async fn touch(&mut self, directory: InodeNumber, now: Timestamp) -> Result<(), FileError> {
        let (mut inode, place) = self.writer.find(directory).await?;
        inode.attributes.mtime = now;
        inode.attributes.ctime = now;
        Ok(self.writer.put_inode(&inode, &place).await?)
    }

    /// Notes a change of an inode's attributes or names.
    async fn touch_inode(&mut self, number: InodeNumber, now: Timestamp) -> Result<Inode, FileError> {
        let (mut inode, place) = self.writer.find(number).await?;
        self.note_change(&mut inode, now);
        self.writer.put_inode(&inode, &place).await?;
        Ok(inode)
    }

    /// Sets the times of an inode that is about to be written: those of content that waits come first.
    fn note_change(&mut self, inode: &mut Inode, now: Timestamp) {
        let dirty = self.dirty.get_mut(&inode.number);
        if let Some(modified) = dirty.and_then(|dirty| dirty.modified.take()) {
            inode.attributes.mtime = modified;
        }
        inode.attributes.ctime = now;
    }
}

/// Pages that a change of names touches at most beyond those that every change does: eight keys far from each other in
/// a tree of four levels, each with a split.
const CHANGE_PAGES: u64 = 24;
