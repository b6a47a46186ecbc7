//! The one writer of a volume: packs data, changes the tree, commits.
//!
//! Nothing that was committed is overwritten; everything since the last commit is lost if the writer ends
//! without another. Cost of a commit: the changed pages (each 4 KiB), a page or so of the space record, one
//! flush and one forced superblock write.

mod clone;
mod commit;
mod compact;
mod content;
mod extended;
mod extents;
mod format;
mod growth;
mod held;
mod namespace;
mod orphans;
mod outbox;
mod pack;
mod quotas;
mod shared;
mod snapshots;
mod stream;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bdev::IoError;
use foundation::{ByteCount, Instant};

use crate::cache::PageCache;
use crate::error::{OpenError, TreeError, WriteError};
use crate::format::key::InodeNumber;
use crate::format::superblock::{Features, Identity, Parameters, Superblock, Totals};
use crate::format::{CodecError, PAGE_BYTES_U64, RESERVED_BYTES, SUPERBLOCK_ADDRESSES, space_page};
use crate::io::Medium;
use crate::lease::hold::WriterHold;
use crate::lease::{LeaseError, LeaseSource};
use crate::mount::{Mounted, ReplaceError, mount, replace_other};
#[cfg(test)]
use crate::space::PlantedBug;
use crate::space::{ReaderFloor, Space};
use crate::tree::{Tree, inconsistent};

pub use clone::Cloned;
pub use compact::CompactionProgress;
pub use format::{FormatOptions, format};
pub use quotas::QUOTAS_MAX;
pub use stream::FileStream;

pub(crate) use namespace::check_attributes;
pub(crate) use quotas::Charged;

use outbox::Outbox;
use pack::Packer;

/// How a writer is opened.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Shown to whoever is refused meanwhile.
    pub holder: String,
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Bound of the page cache, in bytes.
    pub cache_bytes: usize,
    /// Large writes in flight at once.
    pub writes_in_flight: usize,
    /// Ask whoever writes the volume to hand it over, for at most so long.
    pub take_over: Option<Duration>,
    /// Hand over after a commit ([`Writer::commit`]) once another has asked. Else whoever has the writer asks and does it
    /// ([`Writer::hand_over`]).
    pub hands_over: bool,
    #[cfg(test)]
    pub(crate) bug: PlantedBug,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            holder: "a local writer".to_owned(),
            identity: None,
            cache_bytes: 64 << 20,
            writes_in_flight: 8,
            take_over: None,
            hands_over: true,
            #[cfg(test)]
            bug: PlantedBug::None,
        }
    }
}

/// See the module. Lives inside a reactor.
pub struct Writer {
    pub(crate) medium: Medium,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    outbox: Outbox,
    packer: Packer,
    /// The last durable commit; generation 0 while formatting.
    superblock: Superblock,
    slot: usize,
    next_generation: u64,
    next_inode: u64,
    totals: Totals,
    /// What the next commit's superblock says a reader must know.
    features: Features,
    hold: Rc<WriterHold>,
    /// Inodes that were seen to be directories; spares a lookup for each new entry.
    directories: BTreeSet<InodeNumber>,
    compaction: compact::Compaction,
    floors: snapshots::Floors,
    /// The lowest generation that readers hold, when they were asked for last; `None` without an answer.
    readers: Option<ReaderFloor>,
    holding: held::Holding,
    quotas: quotas::Quotas,
    /// The volume's size, which the next commit states.
    volume_bytes: u64,
    /// When growth was looked for last.
    looked_for_growth: Option<Instant>,
    hands_over: bool,
    uses_reserve: bool,
    broken: bool,
    /// The commit for which there was no room where the volume lies.
    started: Option<commit::Started>,
}

/// Volumes of fewer segments keep none for compaction.
const SEGMENTS_FOR_A_SPARE: u64 = 16;
/// For room, what the index takes is counted in steps of so many pages.
const ROOM_STEP_PAGES: u64 = 32;
/// Directories that are remembered at most.
const DIRECTORIES_KEPT: usize = 10_000;

impl Writer {
    /// Becomes the volume's writer, lets no older one write any more, and opens the last commit. The lease is renewed
    /// for as long as the writer lives; where that fails, writes end with [`WriteError::Lease`] before it ends.
    pub async fn open(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        options: &WriterOptions,
    ) -> Result<Self, OpenError> {
        let hold = WriterHold::acquire(leases, &options.holder, options.take_over).await?;
        match Self::open_under(medium, &hold, options).await {
            Ok(mut writer) => {
                writer.hands_over = options.hands_over;
                writer.release_space().await;
                if writer.ensure_whole().is_err() {
                    // As below.
                    let _ = hold.release().await;
                    return Err(inconsistent(0, CodecError::Inconsistent).into());
                }
                // Nobody has them open any more.
                let error = match writer.drop_orphans().await {
                    Ok(()) => return Ok(writer),
                    Err(WriteError::Tree(error)) => error.into(),
                    Err(_) => inconsistent(0, CodecError::Inconsistent).into(),
                };
                // As below.
                let _ = hold.release().await;
                Err(error)
            }
            Err(error) => {
                let error = explain(&hold, error).await;
                // The first error is the one to tell; the lease ends by itself if this fails too.
                let _ = hold.release().await;
                Err(error)
            }
        }
    }

    async fn open_under(
        medium: Medium,
        hold: &Rc<WriterHold>,
        options: &WriterOptions,
    ) -> Result<Self, OpenError> {
        let medium = medium.under(hold);
        // An older writer may be about to write a superblock: first it must not be able to.
        #[cfg(test)]
        let early = match options.bug {
            PlantedBug::MountBeforeFence => Some(mount(&medium, options.identity.as_ref()).await?),
            _ => None,
        };
        medium.fence(0, RESERVED_BYTES).await?;
        let mounted = mount(&medium, options.identity.as_ref()).await?;
        #[cfg(test)]
        let mounted = early.unwrap_or(mounted);
        let space = load_space(&medium, &mounted.superblock).await?;
        let cache = PageCache::new(options.cache_bytes);
        let tree = Tree::new(medium.clone(), cache, mounted.superblock.root);
        let in_flight = options.writes_in_flight;
        let mut writer = Self::assemble(medium.clone(), hold.clone(), tree, space, mounted, in_flight);
        writer.load_floors().await?;
        writer.load_quotas().await?;
        if mounted.is_other_damaged() {
            // A copy may come back that has it whole, and what it leads to is written over from here on. All that may be refused was done.
            let address = SUPERBLOCK_ADDRESSES[1 - mounted.slot];
            let replaced = replace_other(&medium, hold, &mounted, false).await;
            writer.stand_on(&replaced.map_err(|error| of_replacing(error, address))?);
        }
        writer.take_growth();
        Ok(writer)
    }

    pub(crate) fn assemble(
        medium: Medium,
        hold: Rc<WriterHold>,
        tree: Tree,
        space: Space,
        mounted: Mounted,
        in_flight: usize,
    ) -> Self {
        let superblock = mounted.superblock;
        let outbox = Outbox::new(medium.clone(), hold.clone(), in_flight);
        Self {
            packer: Packer::new(
                medium.clone(),
                outbox.clone(),
                superblock.parameters,
                space.open_segment(),
            ),
            medium,
            tree,
            space,
            outbox,
            superblock,
            slot: mounted.slot,
            next_generation: mounted.next_generation,
            next_inode: superblock.next_inode,
            totals: superblock.totals,
            features: superblock.features,
            hold,
            directories: BTreeSet::from([InodeNumber::ROOT]),
            compaction: compact::Compaction::default(),
            floors: snapshots::Floors::default(),
            readers: None,
            holding: held::Holding::default(),
            quotas: quotas::Quotas::default(),
            volume_bytes: superblock.volume_bytes,
            looked_for_growth: None,
            hands_over: false,
            uses_reserve: false,
            broken: false,
            started: None,
        }
    }

    /// Says that the commit it was made with was committed once more.
    pub(crate) fn stand_on(&mut self, mounted: &Mounted) {
        self.superblock = mounted.superblock;
        self.slot = mounted.slot;
        self.next_generation = mounted.next_generation;
    }

    /// The last durable commit.
    pub fn generation(&self) -> u64 {
        self.superblock.generation
    }

    /// What the file system holds, uncommitted changes included.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What was chosen at format.
    pub fn parameters(&self) -> Parameters {
        self.superblock.parameters
    }

    /// Memory that uncommitted index pages take, in bytes, roughly. A long import commits when this grows.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.tree.changed_pages() as u64 * 2 * PAGE_BYTES_U64
    }

    /// Space that new data may take now, in bytes.
    pub fn free_bytes(&self) -> ByteCount {
        let free = self.space.free_pages().saturating_sub(self.pages_kept());
        ByteCount(free * PAGE_BYTES_U64)
    }

    /// Room for content, in bytes, where the index may take `index_bytes` more than a commit would now: in the segment that is being written, and
    /// in whole free ones. Pages between those of the index are free for the index alone, and it takes the highest.
    pub(crate) fn content_room(&self, index_bytes: u64) -> ByteCount {
        let (index, segment) = (index_bytes.div_ceil(PAGE_BYTES_U64), self.space.segment_pages());
        let Some(pages) = self.space.free_pages().checked_sub(self.pages_kept() + index) else {
            return ByteCount(0);
        };
        let by_pages = pages / segment;
        // Counted again for each change of the index it would take long where what is free lies in many pieces.
        let highest = (self.pages_needed() + index).next_multiple_of(ROOM_STEP_PAGES);
        let side_by_side = self.space.free_segments(highest);
        let segments = by_pages.min(side_by_side) * segment * PAGE_BYTES_U64;
        ByteCount(segments + self.packer.room_in_segment())
    }

    /// Bytes of the volume that are used.
    pub(crate) fn volume_bytes(&self) -> ByteCount {
        ByteCount(self.volume_bytes)
    }

    /// Says how much there is, for a repair that has counted it.
    pub(crate) fn set_counts(&mut self, totals: Totals, features: Features, next_inode: u64) {
        self.totals = totals;
        self.features = features;
        self.next_inode = next_inode;
    }

    /// Commits nothing any more: something failed in the middle of several changes.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// Lets what follows take of the room that is kept for removals and compaction, or no more.
    pub(crate) fn use_reserve(&mut self, uses: bool) {
        self.uses_reserve = uses;
    }

    /// Makes free at once what was packed since the last commit and no file has any more.
    pub(crate) async fn take_back_packed(&mut self) -> Result<(), WriteError> {
        self.ensure_whole()?;
        self.packer.finish_chunk(&mut self.space).await;
        self.outbox.drain().await?;
        self.leave_emptied();
        self.space.take_back_segments(self.packer.open_segment());
        Ok(())
    }

    /// A directory was removed.
    pub(crate) fn forget_directory(&mut self, inode: InodeNumber) {
        self.directories.remove(&inode);
    }

    /// Space that becomes free once commits and readers are past, in bytes.
    pub fn waiting_bytes(&self) -> ByteCount {
        ByteCount(self.space.waiting_pages() * PAGE_BYTES_U64)
    }

    /// Who asked to be the writer, and waits for this one.
    pub fn wanted_by(&self) -> Option<String> {
        self.hold.wanted_by()
    }

    /// Ends when another asks to be the writer, or when this one is it no more.
    pub fn asked(&self) -> impl Future<Output = ()> + use<> {
        let hold = self.hold.clone();
        async move { hold.asked().await }
    }

    /// Whether nothing was changed since the last commit.
    pub fn is_committed(&self) -> bool {
        self.tree.is_committed() && self.started.is_none()
    }

    /// Gives the lease up if another asked for it and nothing is uncommitted; whether it did. Every later change ends with
    /// [`LeaseError::HandedOver`].
    pub async fn hand_over(&mut self) -> bool {
        self.is_committed() && !self.broken && self.hold.hand_over().await
    }

    /// Gives the lease back. Changes since the last commit are dropped.
    pub async fn close(self) -> Result<(), LeaseError> {
        self.outbox.drain().await.ok();
        self.hold.release().await
    }

    /// Pages that new data leaves free, so that what is changed can be committed and something removed.
    /// A segment's worth besides is kept for compaction to move content to, unless the volume has few segments.
    fn pages_kept(&self) -> u64 {
        if (self.compaction.moving && !self.is_beside_readers()) || self.uses_reserve {
            return self.pages_needed() + 24;
        }
        let total = self.volume_bytes / PAGE_BYTES_U64;
        let segment = self.space.segment_pages();
        let spare = if total / segment < SEGMENTS_FOR_A_SPARE {
            0
        } else {
            segment
        };
        self.pages_needed() + 48 + total / 256 + spare
    }

    /// Pages that a commit needs after one more change.
    fn pages_needed(&self) -> u64 {
        self.tree.changed_pages() as u64 + self.record_pages_max() + 2 * self.quotas.changed() + 24
    }

    /// Pages that the space record of the next commit takes at most: it states those that changed ones take and those
    /// that they replace.
    fn record_pages_max(&self) -> u64 {
        let tree = self.tree.changed_pages() + self.tree.replaced_pages();
        self.space.record_pages_max(tree)
    }

    fn check_room(&self, removal: bool) -> Result<(), WriteError> {
        self.check_room_for(removal, 0)
    }

    /// Whether a change that touches `more` pages beyond a few can be committed.
    pub(crate) fn check_room_for(&self, removal: bool, more: u64) -> Result<(), WriteError> {
        if let Some(handed_over) = self.hold.handed_over() {
            return Err(handed_over.into());
        }
        self.ensure_whole()?;
        let needed = more
            + match removal {
                true => self.pages_needed(),
                false => self.pages_kept(),
            };
        match needed.checked_sub(self.space.free_pages()) {
            None | Some(0) => Ok(()),
            Some(pages) => Err(WriteError::NoSpace {
                missing: ByteCount(pages * PAGE_BYTES_U64),
            }),
        }
    }

    /// That nothing has failed which keeps changes from being committed, and that no commit waits for room.
    pub(crate) fn ensure_whole(&self) -> Result<(), WriteError> {
        match (self.broken, &self.started) {
            (true, _) => Err(WriteError::Broken),
            (false, Some(_)) => Err(WriteError::DisksFull),
            (false, None) => Ok(()),
        }
    }

    /// Whether a commit waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.started.is_some()
    }

    /// The same, and that nothing waits for room where the volume lies. Only for what has not begun: that may be so from one moment to the
    /// next.
    pub(crate) fn ensure_takes(&self) -> Result<(), WriteError> {
        self.ensure_whole()?;
        match self.outbox.is_full() {
            true => Err(WriteError::DisksFull),
            false => Ok(()),
        }
    }

    /// The page of the last commit's root.
    #[cfg(test)]
    pub(crate) fn superblock_root(&self) -> u64 {
        self.superblock.root.page
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, bug: PlantedBug) {
        self.space.bug = bug;
    }
}

/// A device that refuses this writer's token knows a newer one: says whose.
pub(crate) async fn explain(hold: &WriterHold, error: OpenError) -> OpenError {
    match error {
        OpenError::Io(IoError::Fenced) => hold.lost().await.into(),
        other => other,
    }
}

/// Why a writer did not open that was to write the superblock at an address anew.
fn of_replacing(error: ReplaceError, address: u64) -> OpenError {
    match error {
        ReplaceError::Counts => OpenError::SuperblockCounts { address },
        // The medium's own failure, the lease's end, or what is of this side.
        ReplaceError::Away(
            error @ (IoError::Media
            | IoError::Checksum
            | IoError::Fenced
            | IoError::Exhausted
            | IoError::OutOfRange),
        ) => error.into(),
        ReplaceError::Away(source) => OpenError::SuperblockAway { address, source },
        ReplaceError::Write(WriteError::Lease(error)) => error.into(),
        ReplaceError::Write(WriteError::Io { source, .. }) => source.into(),
        ReplaceError::Write(_) => inconsistent(0, CodecError::Inconsistent).into(),
    }
}

/// The bookkeeping of space at a generation.
pub(crate) async fn load_space(medium: &Medium, superblock: &Superblock) -> Result<Space, OpenError> {
    let mut chain = Vec::new();
    let mut pointer = superblock.space;
    let limit = superblock.volume_bytes / PAGE_BYTES_U64;
    while !pointer.is_none() {
        if chain.len() as u64 >= limit {
            return Err(inconsistent(pointer.page, CodecError::Inconsistent).into());
        }
        let read = medium.read_page(pointer, |bytes| space_page::decode(bytes, pointer));
        let page = read.await?;
        let next = page.next;
        chain.push((pointer, page));
        pointer = next;
    }
    let page = superblock.space.page;
    Space::from_chain(chain, superblock.volume_bytes, &superblock.parameters).map_err(|_| {
        OpenError::Tree(TreeError::Inconsistent {
            page,
            source: CodecError::Inconsistent,
        })
    })
}
