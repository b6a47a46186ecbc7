//! Blocks of snapshots that rot, and how they get their bytes back (`docs/decisions/0094`).
//!
//! A snapshot never changes, so there is no order of writes to keep, as there is for a live copy: a block that does not fit its checksum
//! is fetched from any other node that has it right, compared with *this* copy's checksum, and written where it lies
//! ([`blobstore::Blob::mend`]). What shows the same cluster, a later snapshot or the live copy, was meant to have the same bytes.
//!
//! Three look for such blocks: the scrub in the background, a client that wants to know (Check Snapshot), and whoever reads a snapshot.
//! What a reader finds is mended behind its back, since another copy answers it; what could not be mended is tried again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::Duration;

use agentlink::SnapshotLoss;
use bdev::{Channel, ChannelExt, IoError};
use blobstore::BlobRun;
use foundation::{Instant, Lba};
use reactor::{Buffer, BufferPool, spawn, time};
use volume::message::codec::{Checked, NativeCommand};
use volume::{BlockRange, SnapshotId, Status};

use super::copies::{ATTRIBUTE_SCRUBBED, BLOCK_BYTES, Copies, CopyError, HEAD_BLOCKS, runs_within};
use super::snapshots::{Key, Opened};
use super::{CHECKSUMS, Node};

/// Parts that wait to be mended. What finds no place is found again by the next reader, or the scrub.
const NOTED_MAX: usize = 1024;
/// Blocks that are remembered to be wrong. More are mended all the same, but neither counted nor logged.
const WRONG_MAX: u64 = 1 << 16;
/// What could not be mended is tried again after so long: nodes that have it right may come back.
const RETRY: Duration = Duration::from_secs(60);
/// While something waits for its next try, readers may find more.
const LOOK: Duration = Duration::from_secs(1);
/// Between two parts that are mended: others want disk and network.
const PAUSE: Duration = Duration::from_millis(10);

/// A part of a copy of a snapshot: first block and count.
type Part = (Key, u32, u32);

/// What is known to be wrong in this node's copies of snapshots.
#[derive(Default)]
pub(super) struct Rot {
    /// Blocks that did not fit when they were last read.
    wrong: BTreeMap<Key, BTreeSet<u32>>,
    /// Of these, blocks that no other node's copy gave right when they were last asked for.
    lost: BTreeMap<Key, BTreeSet<u32>>,
    /// What is to be compared and mended, and when.
    noted: BTreeMap<Part, Instant>,
    /// That is under way.
    mending: bool,
    /// How many blocks of this node the metrics count as wrong.
    shown: u64,
}

/// What a comparison of a part has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Blocks that were compared with their checksums; 0 if the copy has none.
    pub(super) compared: u32,
    /// Of those, blocks that did not fit at first and do now.
    pub(super) mended: u32,
    /// Of those, blocks that do not fit still.
    pub(super) wrong: u32,
}

impl Rot {
    /// A copy is here no more.
    pub(super) fn forget(&mut self, key: Key) {
        self.wrong.remove(&key);
        self.lost.remove(&key);
        self.noted.retain(|(of, ..), _| *of != key);
        self.show();
    }

    fn show(&mut self) {
        let wrong: usize = self.wrong.values().map(BTreeSet::len).sum();
        let before = std::mem::replace(&mut self.shown, wrong as u64);
        let shown = &CHECKSUMS.snapshot_wrong_blocks;
        shown.fetch_add(self.shown, Ordering::Relaxed);
        shown.fetch_sub(before, Ordering::Relaxed);
    }

    /// Blocks do not fit. Returns those of which that is new, as far as they are remembered.
    fn found(&mut self, key: Key, blocks: &[u32]) -> Vec<u32> {
        let room = WRONG_MAX.saturating_sub(self.shown) as usize;
        let wrong = self.wrong.entry(key).or_default();
        let new = blocks.iter().copied().take(room);
        let new: Vec<u32> = new.filter(|block| wrong.insert(*block)).collect();
        CHECKSUMS
            .snapshot_damaged_blocks
            .fetch_add(new.len() as u64, Ordering::Relaxed);
        self.show();
        new
    }

    /// These blocks fit, be it that they were mended or that the disk reads them again.
    fn fits(&mut self, key: Key, range: BlockRange, except: &[u32]) {
        let Some(wrong) = self.wrong.get_mut(&key) else {
            return;
        };
        let before = wrong.len();
        let is_in = |block: &u32| (u64::from(range.start)..range.end()).contains(&u64::from(*block));
        wrong.retain(|block| !is_in(block) || except.contains(block));
        let mended = (before - wrong.len()) as u64;
        CHECKSUMS
            .snapshot_repaired_blocks
            .fetch_add(mended, Ordering::Relaxed);
        if wrong.is_empty() {
            self.wrong.remove(&key);
        }
        self.note_lost(key);
        self.show();
    }

    /// A block could not be mended: because nobody else gave it right, or for another reason.
    fn not_mended(&mut self, key: Key, block: u32, is_lost: bool) {
        let lost = self.lost.entry(key).or_default();
        match is_lost {
            true => lost.insert(block),
            false => lost.remove(&block),
        };
        self.note_lost(key);
    }

    /// What fits, or is more than is remembered, does not count as lost.
    fn note_lost(&mut self, key: Key) {
        let Some(lost) = self.lost.get_mut(&key) else {
            return;
        };
        let wrong = self.wrong.get(&key);
        lost.retain(|block| wrong.is_some_and(|wrong| wrong.contains(block)));
        if lost.is_empty() {
            self.lost.remove(&key);
        }
    }

    /// Copies of snapshots with lost blocks, the worst of too many.
    fn losses(&self) -> Vec<SnapshotLoss> {
        let of_copy = |(&(chunk, snapshot), blocks): (&Key, &BTreeSet<u32>)| SnapshotLoss {
            chunk: agentlink::Chunk {
                volume: chunk.volume.0,
                index: chunk.index.0,
            },
            snapshot: snapshot.0,
            lost: blocks.len() as u32,
        };
        let mut losses: Vec<_> = self.lost.iter().map(of_copy).collect();
        losses.sort_by_key(|loss| Reverse(loss.lost));
        losses.truncate(SnapshotLoss::COPIES_MAX);
        losses
    }

    /// The next part that is due, or how long there is until then; none if there is nothing to do.
    fn next(&self, now: Instant) -> Option<Result<Part, Duration>> {
        let (part, due) = self.noted.iter().min_by_key(|(_, due)| **due)?;
        Some(match *due <= now {
            true => Ok(*part),
            false => Err(due.since(now)),
        })
    }
}

impl Node {
    /// Which snapshots have blocks that no copy has right, as the agent hears it.
    pub fn snapshot_losses(&self) -> Vec<SnapshotLoss> {
        self.copies.kept.rot.borrow().losses()
    }

    /// Has a part compared and mended in the background, now or, if that was tried in vain, after a while.
    pub(super) fn note_rot(&self, key: Key, range: BlockRange, was_tried: bool) {
        let mut rot = self.copies.kept.rot.borrow_mut();
        let now = time::now();
        let part = (key, range.start, range.count);
        if rot.noted.len() >= NOTED_MAX && !rot.noted.contains_key(&part) {
            return;
        }
        if was_tried {
            rot.noted.insert(part, now + RETRY);
        } else {
            // One that waits for its next try is not hurried by readers.
            rot.noted.entry(part).or_insert(now);
        }
        let is_idle = !std::mem::replace(&mut rot.mending, true);
        drop(rot);
        if is_idle {
            drop(spawn(mend_noted(Rc::downgrade(&self.own()))));
        }
    }

    /// Compares blocks of a copy of a snapshot with their checksums, and mends what does not fit. None if the copy is not here (any more).
    pub(super) async fn compare_snapshot(
        &self,
        key: Key,
        range: BlockRange,
    ) -> Result<Option<Compared>, CopyError> {
        let Some(opened) = self.copies.open_snapshot(key).await? else {
            return Ok(None);
        };
        if opened.sums.is_none() {
            // Nothing says which of two copies is right, were they compared with each other.
            return Ok(Some(Compared::default()));
        }
        let wrong = wrong_blocks(&opened, range).await?;
        let mut compared = Compared {
            compared: range.count,
            ..Compared::default()
        };
        if wrong.is_empty() {
            self.copies.kept.rot.borrow_mut().fits(key, range, &[]);
            return Ok(Some(compared));
        }
        if !self.copies.kept.at.borrow().contains_key(&key) {
            // Deleted meanwhile: what was read may be somebody else's.
            return Ok(None);
        }
        let (chunk, snapshot) = (key.0, key.1.0);
        let new = self.copies.kept.rot.borrow_mut().found(key, &wrong);
        if !new.is_empty() {
            tracing::warn!(?chunk, snapshot, blocks = ?new, "blocks of a snapshot do not fit their checksums");
        }
        let mut left = Vec::new();
        for (at, &block) in wrong.iter().enumerate() {
            let Err(error) = self.mend_block(key, &opened, block).await else {
                compared.mended += 1;
                continue;
            };
            if new.contains(&block) {
                tracing::error!(?chunk, snapshot, block, %error, "a block of a snapshot cannot be mended yet");
            }
            let is_lost = matches!(error, CopyError::NoSource { .. });
            self.copies.kept.rot.borrow_mut().not_mended(key, block, is_lost);
            if let CopyError::Store { .. } = error {
                // The disk takes nothing.
                left.extend(&wrong[at..]);
                break;
            }
            left.push(block);
        }
        if compared.mended > 0 {
            self.copies.make_mended_durable(key).await?;
            tracing::info!(
                ?chunk,
                snapshot,
                blocks = compared.mended,
                "blocks of a snapshot are mended from another node's copy"
            );
        }
        self.copies.kept.rot.borrow_mut().fits(key, range, &left);
        compared.wrong = left.len() as u32;
        Ok(Some(compared))
    }

    async fn mend_block(&self, key: Key, opened: &Opened, block: u32) -> Result<(), CopyError> {
        let (chunk, snapshot) = key;
        let range = BlockRange {
            start: block,
            count: 1,
        };
        let others = self.others_for(chunk);
        let bytes = self
            .read_from_others(key, &others, &opened.geometry, range)
            .await?;
        // Those that fit another copy's checksum need not be those of this one: that would be a fault, and not to be spread.
        if let Some(sums) = &opened.sums
            && !sums.check_reading(range, &bytes).await.is_empty()
        {
            return Err(CopyError::SourceDiffers {
                chunk,
                snapshot,
                block,
            });
        }
        self.copies.mend(key, block, bytes).await?;
        match wrong_blocks(opened, range).await?.is_empty() {
            true => Ok(()),
            false => Err(CopyError::NotMended { chunk, block }),
        }
    }

    /// Answers a client that wants to know what the checksums say of blocks of this node's copy of a snapshot.
    pub(super) async fn check_snapshot(
        &self,
        native: &NativeCommand,
        snapshot: SnapshotId,
    ) -> Result<Buffer, Status> {
        let failed = |error: CopyError| {
            tracing::warn!(snapshot = snapshot.0, %error, "a snapshot cannot be compared with its checksums");
            match error {
                CopyError::OutsideSnapshot { .. } => Status::OutOfRange,
                _ => Status::DeviceFailed,
            }
        };
        let of = (native.volume, snapshot);
        let place = self
            .copies
            .place_in_snapshot(of, native.fields.first_lba, native.blocks)
            .await;
        let (chunk, range) = place.map_err(failed)?.ok_or(Status::SnapshotAborted)?;
        let compared = self.compare_snapshot((chunk, snapshot), range).await;
        let compared = compared.map_err(failed)?.ok_or(Status::SnapshotAborted)?;
        if compared.wrong > 0 {
            self.note_rot((chunk, snapshot), range, true);
            return Err(Status::DeviceFailed);
        }
        let checked = Checked {
            compared: compared.compared,
            damaged: compared.mended,
            digest: None,
        };
        let room = BufferPool::current().allocate(Checked::BYTES).await;
        let mut room = room.map_err(|_| Status::Busy)?;
        room.copy_from_slice(&checked.encode());
        Ok(room.freeze())
    }
}

/// Which blocks do not fit their checksums or cannot be read.
async fn wrong_blocks(opened: &Opened, range: BlockRange) -> Result<Vec<u32>, CopyError> {
    let Some(sums) = &opened.sums else {
        return Ok(Vec::new());
    };
    match read_blocks(&*opened.channel, range).await {
        Ok(bytes) => Ok(sums.check_reading(range, &bytes).await),
        // Nothing is wrong with the disk.
        Err(source @ (IoError::Gone | IoError::Exhausted | IoError::Aborted)) => {
            let chunk = opened.chunk;
            Err(CopyError::ReadSnapshot { chunk, source })
        }
        Err(_) if range.count == 1 => Ok(vec![range.start]),
        Err(_) => {
            let mut wrong = Vec::new();
            for start in range.start..range.start + range.count {
                let one = BlockRange { start, count: 1 };
                match read_blocks(&*opened.channel, one).await {
                    Ok(bytes) => wrong.extend(sums.check_reading(one, &bytes).await),
                    Err(_) => wrong.push(start),
                }
            }
            Ok(wrong)
        }
    }
}

/// What a copy, or a snapshot of one, has in these blocks.
pub(super) async fn read_blocks(channel: &dyn Channel, range: BlockRange) -> Result<Buffer, IoError> {
    let room = BufferPool::current()
        .allocate(range.count as usize * BLOCK_BYTES)
        .await
        .map_err(|_| IoError::Exhausted)?;
    let first = Lba(HEAD_BLOCKS + u64::from(range.start));
    let (result, bytes) = channel.read(first, room).await;
    result.map(|()| bytes.freeze())
}

impl Copies {
    /// Writes the right bytes of a block where it lies.
    async fn mend(&self, key: Key, block: u32, bytes: Buffer) -> Result<(), CopyError> {
        let chunk = key.0;
        let Some(place) = self.kept.at.borrow().get(&key).copied() else {
            return Err(CopyError::NoSuchCopy { chunk });
        };
        let failed = |source| CopyError::Store { chunk, source };
        let blob = self.store(place.disk).blob(place.blob).map_err(failed)?;
        let mended = blob.mend(HEAD_BLOCKS + u64::from(block), bytes).await;
        mended.map_err(failed)
    }

    async fn make_mended_durable(&self, key: Key) -> Result<(), CopyError> {
        let chunk = key.0;
        let Some(place) = self.kept.at.borrow().get(&key).copied() else {
            return Ok(());
        };
        let synced = self.store(place.disk).sync().await;
        synced.map_err(|source| CopyError::Store { chunk, source })
    }

    /// The copies of complete snapshots, and when each was last compared, in milliseconds of Unix time.
    pub(super) fn scrubbed_snapshots(&self) -> BTreeMap<Key, Option<u64>> {
        let (keeper, at) = (self.kept.keeper.borrow(), self.kept.at.borrow());
        let complete = at.iter().filter(|(key, _)| keeper.is_complete(**key));
        let last = |disk, blob| {
            let blob = self.store(disk).blob(blob).ok()?;
            let bytes = blob.attribute(ATTRIBUTE_SCRUBBED)?;
            bytes.try_into().ok().map(u64::from_le_bytes)
        };
        complete
            .map(|(key, place)| (*key, last(place.disk, place.blob)))
            .collect()
    }

    /// As [`Copies::note_scrub`], of a copy of a snapshot.
    pub(super) fn note_snapshot_scrub(&self, key: Key, unix_ms: u64) {
        // It holds pages of checksums that nobody may want for long.
        self.kept.close(key);
        let Some(place) = self.kept.at.borrow().get(&key).copied() else {
            return;
        };
        let noted = self
            .store(place.disk)
            .blob(place.blob)
            .and_then(|blob| blob.set_attribute(ATTRIBUTE_SCRUBBED, &unix_ms.to_le_bytes()));
        if let Err(error) = noted {
            tracing::warn!(chunk = ?key.0, snapshot = key.1.0, %error, "when a snapshot was compared with its checksums cannot be noted");
        }
    }

    /// Which blocks of a snapshot lie in clusters of its own, as first ones and counts: what it shows of an older one is compared
    /// there.
    pub(super) async fn own_runs(&self, key: Key) -> Result<Vec<(u32, u32)>, CopyError> {
        let Some(opened) = self.open_snapshot(key).await? else {
            return Ok(Vec::new());
        };
        let blocks = u64::from(opened.geometry.chunk_blocks);
        let runs = runs_within(&self.own_blob_runs(key), HEAD_BLOCKS..HEAD_BLOCKS + blocks);
        let runs = runs.into_iter().map(|run| (run.first_block, run.blocks));
        Ok(runs.collect())
    }

    /// How many blocks there are in clusters of a snapshot's own, its record and checksums among them.
    pub(super) fn own_blocks(&self, key: Key) -> u64 {
        self.own_blob_runs(key).iter().map(|run| run.pages).sum()
    }

    fn own_blob_runs(&self, key: Key) -> Vec<BlobRun> {
        let place = self.kept.at.borrow().get(&key).copied();
        let blob = place.and_then(|place| self.store(place.disk).blob(place.blob).ok());
        blob.map_or_else(Vec::new, |blob| blob.own_runs())
    }
}

/// One part after the other.
async fn mend_noted(weak: Weak<Node>) {
    loop {
        let Some(node) = weak.upgrade() else { return };
        let next = {
            let mut rot = node.copies.kept.rot.borrow_mut();
            let next = rot.next(time::now());
            rot.mending = next.is_some();
            next
        };
        let (key, start, count) = match next {
            None => return,
            Some(Err(wait)) => {
                drop(node);
                time::sleep(wait.min(LOOK)).await;
                continue;
            }
            Some(Ok(part)) => part,
        };
        let range = BlockRange { start, count };
        let compared = node.compare_snapshot(key, range).await;
        node.copies
            .kept
            .rot
            .borrow_mut()
            .noted
            .remove(&(key, start, count));
        match compared {
            Ok(None) => {}
            Ok(Some(compared)) if compared.wrong == 0 => {}
            Ok(Some(_)) => node.note_rot(key, range, true),
            Err(error) => {
                tracing::debug!(chunk = ?key.0, snapshot = key.1.0, %error, "a snapshot cannot be compared yet");
                node.note_rot(key, range, true);
            }
        }
        drop(node);
        time::sleep(PAUSE).await;
    }
}
