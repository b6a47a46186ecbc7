//! The checksums of one copy's blocks, on its disk: reads pages of sums when they are needed, and writes what changed
//! before each flush of the copy (`docs/decisions/0069`). A write never waits for a page; a read waits for its own.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentlink::{Chunk, CopyDamage, Damage};
use bdev::{Channel, ChannelExt, Data, IoError, Operation};
use foundation::Lba;
use reactor::BufferPool;
use reactor::sync::{Notify, Permit, Semaphore};
use volume::{
    BlockRange, ChunkId, ChunkRecord, Found, IoToken, LOST_BLOCK, PageFound, SUM_PAGE_BYTES, Sums, Verdict,
    sum_of, sum_pages,
};

use super::copies::{BLOCK_BYTES, HEAD_BLOCKS};
use super::{Event, Node, to_chunk};

/// Pages of sums that one node keeps in memory: 128 MiB of them, which is what 126 GiB of blocks have.
const PAGES_MAX: usize = 32 << 10;
/// A page of sums that could not be read is read again after these pauses.
const READ_AGAIN: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(500),
];
/// Pages of sums written at a time before a flush.
const WRITES_MAX: usize = 32;

thread_local! {
    /// Pages of sums in memory, of all copies of the calling thread's node.
    static PAGES: Cell<usize> = const { Cell::new(0) };
}

/// What the checksums of this process's copies have shown since it started.
#[derive(Debug, Default)]
pub struct ChecksumMeasures {
    /// Blocks that were read and compared with their checksums.
    pub checked_blocks: AtomicU64,
    /// Blocks that were read and did not fit their checksums.
    pub damaged_blocks: AtomicU64,
    /// Blocks that did not fit and have been written since.
    pub repaired_blocks: AtomicU64,
    /// Blocks, found under write nodes here, that no copy had right: reading them is an error until they are written.
    pub lost_blocks: AtomicU64,
    /// Pages of checksums of which neither place could be believed.
    pub damaged_pages: AtomicU64,
    /// Blocks that were read in the background only to compare them.
    pub scrubbed_blocks: AtomicU64,
    /// Blocks of chunks whose writes are ordered here that copies in sync hold differently, each time that is found.
    pub differing_blocks: AtomicU64,
    /// Of those, blocks that one copy held otherwise than all others, and holds as they do since.
    pub outvoted_blocks: AtomicU64,
    /// Copies that were compared whole in the background.
    pub scrubbed_copies: AtomicU64,
    /// Blocks of snapshots' copies that were read and did not fit their checksums, or could not be read.
    pub snapshot_damaged_blocks: AtomicU64,
    /// Of those, blocks that fit again: mended from another node's copy.
    pub snapshot_repaired_blocks: AtomicU64,
    /// Of those, blocks that do not fit now.
    pub snapshot_wrong_blocks: AtomicU64,
    /// Copies of snapshots that were compared whole in the background.
    pub scrubbed_snapshots: AtomicU64,
    /// When that copy was compared, or first seen, for which it is longest ago: milliseconds of Unix time; 0 before that is known.
    pub scrub_oldest_unix_ms: AtomicU64,
}

/// See [`ChecksumMeasures`].
pub static CHECKSUMS: ChecksumMeasures = ChecksumMeasures {
    checked_blocks: AtomicU64::new(0),
    lost_blocks: AtomicU64::new(0),
    damaged_blocks: AtomicU64::new(0),
    repaired_blocks: AtomicU64::new(0),
    damaged_pages: AtomicU64::new(0),
    scrubbed_blocks: AtomicU64::new(0),
    differing_blocks: AtomicU64::new(0),
    outvoted_blocks: AtomicU64::new(0),
    scrubbed_copies: AtomicU64::new(0),
    snapshot_damaged_blocks: AtomicU64::new(0),
    snapshot_repaired_blocks: AtomicU64::new(0),
    snapshot_wrong_blocks: AtomicU64::new(0),
    scrubbed_snapshots: AtomicU64::new(0),
    scrub_oldest_unix_ms: AtomicU64::new(0),
};

/// See the module.
pub(super) struct CopySums {
    chunk: ChunkId,
    sums: RefCell<Sums>,
    /// Where the pages of sums begin in the blob.
    first_page: u64,
    channel: RefCell<Rc<dyn Channel>>,
    /// One flush at a time: each knows what it has made durable.
    flushing: Rc<Semaphore>,
    /// Pages that are being read.
    reading: RefCell<BTreeSet<u32>>,
    read: Notify,
    /// Blocks that did not fit when they were last read.
    damaged: RefCell<BTreeSet<u32>>,
    /// Blocks that no copy has right, as this write node has found, and that have neither been written since nor read right here.
    lost: RefCell<BTreeSet<u32>>,
    /// Blocks that fit and that copies hold differently, as this write node has found, and that have not been written since.
    differing: RefCell<BTreeSet<u32>>,
    /// How many blocks were damaged since this copy was found, and how many of them have been written since.
    shown: Cell<[u64; 2]>,
    counted: Cell<usize>,
}

/// Pages behind the blocks of a copy with checksums.
pub(super) fn tail_blocks(blocks: u32) -> u64 {
    2 * u64::from(sum_pages(blocks))
}

impl CopySums {
    /// Those of a copy that was made with them.
    pub(super) fn new(record: &ChunkRecord, channel: Rc<dyn Channel>) -> Rc<Self> {
        let geometry = &record.geometry;
        let region = geometry.region_blocks;
        let marked = record
            .intent
            .iter()
            .map(|mark| mark.saturating_mul(region)..mark.saturating_add(1).saturating_mul(region));
        Rc::new(Self {
            chunk: record.chunk,
            sums: RefCell::new(Sums::new(record.chunk, geometry.chunk_blocks, marked)),
            first_page: HEAD_BLOCKS + u64::from(geometry.chunk_blocks),
            channel: RefCell::new(channel),
            flushing: Semaphore::new(1),
            reading: RefCell::default(),
            read: Notify::new(),
            damaged: RefCell::default(),
            lost: RefCell::default(),
            differing: RefCell::default(),
            shown: Cell::default(),
            counted: Cell::new(0),
        })
    }

    fn channel(&self) -> Rc<dyn Channel> {
        self.channel.borrow().clone()
    }

    /// They are in another blob from now on, which has what the one before had.
    pub(super) fn lie_on(&self, channel: Rc<dyn Channel>) {
        self.channel.replace(channel);
    }

    /// Nobody writes them to the disk while this is held.
    pub(super) async fn hold_still(&self) -> Permit {
        self.flushing.acquire().await
    }

    /// A write is given to the disk; `bytes` are none if it makes zeros.
    pub(super) fn note(self: &Rc<Self>, range: BlockRange, bytes: Option<&[u8]>) {
        let mut sums = self.sums.borrow_mut();
        match bytes {
            Some(bytes) => sums.note(range.start, bytes.chunks_exact(BLOCK_BYTES).map(sum_of)),
            None => sums.note(range.start, (0..range.count).map(|_| 0)),
        }
        drop(sums);
        let repaired = take_out(&self.damaged, range, &[]);
        if repaired > 0 {
            CHECKSUMS.repaired_blocks.fetch_add(repaired, Ordering::Relaxed);
            let [found, before] = self.shown.get();
            self.shown.set([found, before + repaired]);
        }
        take_out(&self.lost, range, &[]);
        take_out(&self.differing, range, &[]);
        self.keep_bound();
    }

    /// Whether bytes that were read elsewhere are what these blocks are to hold here, for certain.
    pub(super) async fn vouches(self: &Rc<Self>, range: BlockRange, bytes: &[u8]) -> bool {
        loop {
            let unread = self.sums.borrow().unread(range.start, range.count);
            match unread {
                Some(page) => self.read_page(page).await,
                None => break,
            }
        }
        let found = bytes.chunks_exact(BLOCK_BYTES).map(Found::of);
        self.sums.borrow().vouches(range.start, found)
    }

    /// Reads what sums of a block need to be there.
    pub(super) async fn read_sums_of(self: &Rc<Self>, block: u32) {
        loop {
            let unread = self.sums.borrow().unread(block, 1);
            match unread {
                Some(page) => self.read_page(page).await,
                None => return,
            }
        }
    }

    /// The other copies hold something else in a block that fits this sum here: it does not fit any more, if this is its sum still. Its sum
    /// has [been read](Self::read_sums_of).
    pub(super) fn outvote(&self, block: u32, sum: u32) -> bool {
        self.sums.borrow_mut().outvote(block, sum)
    }

    /// A write has failed: nothing is known of what its blocks hold.
    pub(super) fn forget(&self, range: BlockRange) {
        self.sums.borrow_mut().forget(range.start, range.count);
    }

    /// The text that says so is given to the disk in the places of blocks that no copy has right.
    pub(super) fn lose(&self, range: BlockRange) {
        self.sums.borrow_mut().lose(range.start, range.count);
    }

    /// The blocks that are known not to fit.
    pub(super) fn damaged_in(&self, range: BlockRange) -> Vec<u32> {
        let blocks = range.start..range.start.saturating_add(range.count);
        self.damaged.borrow().range(blocks).copied().collect()
    }

    /// A write that was to mend these blocks has found no room: they do not fit yet, and the next attempt is to mend them as this one was.
    pub(super) fn has_not_mended(&self, blocks: &[u32]) {
        let mut damaged = self.damaged.borrow_mut();
        let again = blocks.iter().filter(|block| damaged.insert(**block)).count() as u64;
        // They were counted as written when the write began.
        CHECKSUMS.repaired_blocks.fetch_sub(again, Ordering::Relaxed);
        let [found, repaired] = self.shown.get();
        self.shown.set([found, repaired.saturating_sub(again)]);
    }

    /// What the sums say of bytes that were read.
    pub(super) fn check(&self, range: BlockRange, bytes: &[u8]) -> Verdict {
        let mut sums = self.sums.borrow_mut();
        let verdict = sums.check(range.start, bytes.chunks_exact(BLOCK_BYTES).map(Found::of));
        if !matches!(verdict, Verdict::Unread(_)) {
            let blocks = bytes.len() / BLOCK_BYTES;
            CHECKSUMS
                .checked_blocks
                .fetch_add(blocks as u64, Ordering::Relaxed);
        }
        let wrong = match &verdict {
            Verdict::Right => Some(&[][..]),
            Verdict::Wrong(wrong) => Some(&wrong[..]),
            Verdict::Unread(_) => None,
        };
        if let Some(wrong) = wrong {
            // A disk may read right what it did not before.
            take_out(&self.lost, range, wrong);
        }
        verdict
    }

    /// As [`CopySums::check`], reading what sums it needs.
    pub(super) async fn check_reading(self: &Rc<Self>, range: BlockRange, bytes: &[u8]) -> Vec<u32> {
        loop {
            match self.check(range, bytes) {
                Verdict::Right => return Vec::new(),
                Verdict::Wrong(blocks) => return blocks,
                Verdict::Unread(page) => self.read_page(page).await,
            }
        }
    }

    /// Notes and tells that blocks do not fit their sums. Returns of how many that is new.
    pub(super) fn found_damaged(&self, blocks: &[u32]) -> usize {
        let mut damaged = self.damaged.borrow_mut();
        let new: Vec<u32> = blocks
            .iter()
            .copied()
            .filter(|block| damaged.insert(*block))
            .collect();
        CHECKSUMS
            .damaged_blocks
            .fetch_add(new.len() as u64, Ordering::Relaxed);
        let [found, repaired] = self.shown.get();
        self.shown.set([found + new.len() as u64, repaired]);
        if !new.is_empty() {
            tracing::warn!(chunk = ?self.chunk, blocks = ?new, "blocks of a chunk copy do not fit their checksums");
        }
        new.len()
    }

    /// Of these blocks, copies hold those differently, and no others; each with its sum here, by which it is known whether it was written since.
    /// Returns those of which that is new.
    pub(super) fn differ(&self, range: BlockRange, blocks: &[(u32, u32)]) -> Vec<u32> {
        let sums = self.sums.borrow();
        let stays = |(block, sum): &&(u32, u32)| sums.vouches(*block, std::iter::once(*sum));
        let blocks: Vec<u32> = blocks.iter().filter(stays).map(|(block, _)| *block).collect();
        drop(sums);
        take_out(&self.differing, range, &blocks);
        let mut differing = self.differing.borrow_mut();
        blocks
            .into_iter()
            .filter(|block| differing.insert(*block))
            .collect()
    }

    /// Another node orders the chunk's writes now, and says what there is to say.
    pub(super) fn forget_differing(&self) {
        self.differing.borrow_mut().clear();
    }

    /// Blocks that copies hold differently.
    pub(super) fn differing_blocks(&self) -> Vec<(ChunkId, u32)> {
        let differing = self.differing.borrow();
        differing.iter().map(|block| (self.chunk, *block)).collect()
    }

    /// How many blocks copies hold differently, if any.
    pub(super) fn differing(&self) -> Option<(Chunk, u32)> {
        let count = self.differing.borrow().len() as u32;
        (count > 0).then(|| (to_chunk(self.chunk), count))
    }

    /// What there is to say of it, if anything.
    pub(super) fn damage(&self) -> Option<CopyDamage> {
        let ([damaged, repaired], lost) = (self.shown.get(), self.lost.borrow().len());
        (damaged > 0 || lost > 0).then(|| CopyDamage {
            chunk: to_chunk(self.chunk),
            damaged,
            repaired,
            lost: lost as u32,
        })
    }

    /// Reads one page, unless somebody has or does: then it waits for that.
    async fn read_page(self: &Rc<Self>, page: u32) {
        if !self.reading.borrow_mut().insert(page) {
            return self.read.until(|| !self.reading.borrow().contains(&page)).await;
        }
        let mut places = self.read_places(page).await;
        // What one reading did not give, the next may; what nothing is known of is written over the sums that are there.
        for pause in READ_AGAIN {
            if places.is_ok() {
                break;
            }
            reactor::time::sleep(pause).await;
            places = self.read_places(page).await;
        }
        let (first, second) = match &places {
            Ok(bytes) => bytes.split_at(SUM_PAGE_BYTES),
            Err(_) => (&[][..], &[][..]),
        };
        let found = self.sums.borrow_mut().read(page, [first, second]);
        if let PageFound::Damaged(why) = found {
            let why = places.err().map_or(why.to_string(), |error| error.to_string());
            CHECKSUMS.damaged_pages.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(chunk = ?self.chunk, page, %why, "a page of checksums cannot be read: its blocks are taken as they are");
        }
        self.reading.borrow_mut().remove(&page);
        self.read.notify();
        self.keep_bound();
    }

    async fn read_places(&self, page: u32) -> Result<reactor::BufferMut, IoError> {
        let room = BufferPool::current().allocate(2 * SUM_PAGE_BYTES).await;
        let room = room.map_err(|_| IoError::Exhausted)?;
        let lba = Lba(self.first_page + 2 * u64::from(page));
        let (result, bytes) = self.channel().read(lba, room).await;
        result.map(|()| bytes)
    }

    /// Makes all writes that have ended durable, and the sums of all that have begun.
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), IoError> {
        if !self.sums.borrow().is_dirty() {
            return self.channel().flush().await;
        }
        let _alone = self.flushing.acquire().await;
        let (unread, pages) = self.sums.borrow().to_write();
        for page in unread {
            // What is being read meanwhile by others is waited for; what was let go of is not dirty.
            while self.sums.borrow().to_write().0.contains(&page) {
                self.read_page(page).await;
            }
        }
        for some in pages.chunks(WRITES_MAX) {
            let writes: Vec<_> = some
                .iter()
                .map(|&page| reactor::spawn(write_page(self.clone(), page)))
                .collect();
            let mut all = Ok(());
            for write in writes {
                // None may still be under way when the next flush begins.
                all = all.and(write.await.unwrap_or(Err(IoError::Aborted)));
            }
            all?;
        }
        self.channel().flush().await?;
        self.sums.borrow_mut().flushed();
        Ok(())
    }

    /// Whether the sums on the disk are those in memory.
    pub(super) fn is_durable(&self) -> bool {
        !self.sums.borrow().is_dirty()
    }

    /// Lets go of pages if there are too many; of those that hold something new once it is written.
    fn keep_bound(self: &Rc<Self>) {
        let pages = self.sums.borrow().pages();
        let before = self.counted.replace(pages);
        let all = PAGES.get() + pages - before;
        PAGES.set(all);
        if all <= PAGES_MAX || pages == before {
            return;
        }
        let went = self.sums.borrow_mut().let_go(all - PAGES_MAX);
        self.counted.set(pages - went);
        PAGES.set(all - went);
        if went == 0 && !self.is_durable() {
            self.flush_soon();
        }
    }

    /// Begins to write what is not on the disk, unless that is under way.
    pub(super) fn flush_soon(self: &Rc<Self>) {
        if self.flushing.available() == 0 {
            return;
        }
        let sums = self.clone();
        drop(reactor::spawn(async move {
            if let Err(error) = sums.flush().await {
                tracing::warn!(chunk = ?sums.chunk, %error, "checksums cannot be written");
            }
        }));
    }
}

/// Takes blocks of a range out of a set, all but these. Returns how many were in it.
fn take_out(set: &RefCell<BTreeSet<u32>>, range: BlockRange, except: &[u32]) -> u64 {
    let mut set = set.borrow_mut();
    let found = set.range(range.start..range.start.saturating_add(range.count));
    let found: Vec<u32> = found.copied().filter(|block| !except.contains(block)).collect();
    for block in &found {
        set.remove(block);
    }
    found.len() as u64
}

impl Node {
    /// What checksums of copies have shown since this target began, as the agent hears it.
    pub fn damage(&self) -> Damage {
        let mut copies = self.copies.damage();
        // Of too many, the worst are told.
        copies.sort_by_key(|copy| Reverse((copy.lost, copy.damaged)));
        copies.truncate(Damage::COPIES_MAX);
        Damage {
            copies,
            scrub_oldest_unix_ms: CHECKSUMS.scrub_oldest_unix_ms.load(Ordering::Relaxed),
            scrubbed_blocks: CHECKSUMS.scrubbed_blocks.load(Ordering::Relaxed),
        }
    }

    /// Chunks with blocks that their copies hold differently, as the agent hears it.
    pub fn differing(&self) -> Vec<(Chunk, u32)> {
        let mut chunks = self.copies.differing();
        chunks.sort_by_key(|(_, blocks)| Reverse(*blocks));
        chunks.truncate(Damage::COPIES_MAX);
        chunks
    }

    /// No copy of a chunk has these blocks right, as its write node here has found.
    pub(super) fn blocks_are_lost(&self, chunk: ChunkId, range: BlockRange) {
        CHECKSUMS
            .lost_blocks
            .fetch_add(range.count.into(), Ordering::Relaxed);
        if let Some(sums) = self.copies.sums(chunk) {
            let blocks = range.start..range.start.saturating_add(range.count);
            sums.lost.borrow_mut().extend(blocks);
        }
        tracing::error!(
            ?chunk,
            block = range.start,
            blocks = range.count,
            "no copy of a chunk has these blocks right: reading them is an error until they are written"
        );
    }

    /// No copy has a block right: it is wrong here, too, from now on.
    pub(super) fn lose(&self, chunk: ChunkId, io: IoToken, range: BlockRange) {
        let (node, copy) = (self.own(), self.copies.get(chunk));
        let writing = copy.map(|copy| copy.writing.clone());
        drop(reactor::spawn(async move {
            let _writing = writing;
            let room = BufferPool::current().allocate(BLOCK_BYTES).await;
            let (Some(sums), Ok(mut room), 1) = (node.copies.sums(chunk), room, range.count) else {
                let (succeeded, read) = (false, None);
                return node.push(Event::Local {
                    chunk,
                    io,
                    succeeded,
                    read,
                });
            };
            room.copy_from_slice(&LOST_BLOCK[..]);
            tracing::warn!(
                ?chunk,
                block = range.start,
                "no copy has this block right: it is wrong here, too, until it is written"
            );
            sums.lose(range);
            if let Some(local) = node.local_io(chunk, io, None, range) {
                let data = Data::From(room.freeze());
                node.submit(local, Operation::Write { fua: false }, Some(range), data);
            }
        }));
    }

    /// Makes a copy's writes and their checksums durable.
    pub(super) fn flush(&self, chunk: ChunkId, io: IoToken) {
        let Some(local) = self.local_io(chunk, io, None, BlockRange::default()) else {
            return;
        };
        let Some(sums) = local.copy.sums.clone() else {
            return self.submit(local, Operation::Flush, None, Data::None);
        };
        let node = self.own();
        drop(reactor::spawn(async move {
            let flushed = sums.flush().await;
            drop(local);
            match flushed {
                Ok(()) => {}
                Err(IoError::NoSpace) => return node.finds_no_room(chunk, io),
                Err(error) => tracing::warn!(?chunk, %error, "a chunk copy cannot be flushed"),
            }
            let (succeeded, read) = (flushed.is_ok(), None);
            node.push(Event::Local {
                chunk,
                io,
                succeeded,
                read,
            });
        }));
    }
}

impl Drop for CopySums {
    fn drop(&mut self) {
        // At the end of a thread there is nothing left to count.
        let _ = PAGES.try_with(|pages| pages.set(pages.get() - self.counted.get()));
    }
}

async fn write_page(copy: Rc<CopySums>, page: u32) -> Result<(), IoError> {
    let pool = BufferPool::current();
    let mut buffer = pool
        .allocate(SUM_PAGE_BYTES)
        .await
        .map_err(|_| IoError::Exhausted)?;
    let Some((place, bytes)) = copy.sums.borrow_mut().write(page) else {
        return Ok(());
    };
    buffer.copy_from_slice(&bytes);
    let lba = Lba(copy.first_page + 2 * u64::from(page) + u64::from(place));
    let written = copy.channel().write(lba, buffer.freeze()).await;
    if written.is_err() {
        copy.sums.borrow_mut().write_failed(page);
    }
    written
}
