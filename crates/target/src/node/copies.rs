//! Chunk copies: each a blob, whose first pages hold the copy's durable record in two places written in turn.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;

use super::health::{DiskCare, LeftOut};
use super::inventory::FoundCopy;
use super::notes::ATTRIBUTE_NOTE;
use super::snapshots::{ATTRIBUTE_SNAPSHOT, Kept};
use super::sums::{CopySums, tail_blocks};
use bdev::Channel;
use blobstore::{Blob, BlobId, BlobRun, Blobstore};
use volume::message::codec::{OpenFile, Run};
use volume::{BlockRange, ChunkId, ChunkRecord, ClusterId, Geometry, PersistToken};

mod clone;
mod delete;
mod disk;
mod doubtful;
mod error;
#[cfg(test)]
mod golden;
mod journal;
mod persist;
mod record;
mod relocate;

pub(super) use disk::Disk;
pub use disk::{DiskConfig, DiskError, Trust};
pub use error::CopyError;
use journal::{ATTRIBUTE_JOURNAL, Contents, Journal, Mark};
pub(super) use record::{HEAD_BLOCKS, newest_record, write_record};
use record::{RECORD_BYTES_MAX, write_slot};
pub(super) use relocate::Relocation;
use relocate::origin_of_move;

/// Blocks of a blob, and of every volume so far.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Names a blob as a chunk copy: volume and chunk index.
const ATTRIBUTE_CHUNK: &str = "redhare.chunk";
/// When a copy was last compared with its checksums: milliseconds of Unix time, u64.
pub(super) const ATTRIBUTE_SCRUBBED: &str = "redhare.scrubbed";

pub(super) struct Copy {
    pub(super) disk: usize,
    blob: BlobId,
    pub(super) channel: Rc<dyn Channel>,
    /// None of a copy that was made before there were checksums.
    pub(super) sums: Option<Rc<CopySums>>,
    record: RefCell<ChunkRecord>,
    generation: Cell<u64>,
    /// Pages that the record took when it was last written.
    record_pages: Cell<u64>,
    /// The newest change that is in the record and not yet durable.
    pending: Cell<Option<PersistToken>>,
    /// Of these changes, marks that are not on their way yet.
    marks: RefCell<Vec<Mark>>,
    /// There are others among them, or it was not written as it should: it is written whole next.
    is_due_whole: Cell<bool>,
    /// The record that was written last says that marks may follow in the journal.
    is_journaled: Cell<bool>,
    /// Marks are in the journal that this record lacks.
    is_in_journal: Cell<bool>,
    /// A change could not be made durable, for another reason than want of room: which of the two places holds a good record
    /// is not known, and neither is written again.
    stopped: Cell<bool>,
    /// Whoever writes or flushes it, or makes a snapshot of it, holds this.
    pub(super) writing: Rc<()>,
    /// The disk and the blob that it comes from, if it has moved and those may still be there.
    from: Option<(u128, BlobId)>,
}

/// All copies of one node.
pub(super) struct Copies {
    pub(super) disks: Vec<Disk>,
    /// Disks that took too long to be opened, or could not be.
    pub(super) left_out: Vec<LeftOut>,
    copies: RefCell<BTreeMap<ChunkId, Rc<Copy>>>,
    /// Copies whose records cannot be read, by disk and blob.
    damaged: RefCell<BTreeMap<ChunkId, (usize, BlobId)>>,
    /// Copies that nobody uses until the masters have said that they are right, by chunk and disk.
    doubtful: RefCell<BTreeMap<(ChunkId, usize), Rc<Copy>>>,
    /// Chunks whose copies are being deleted.
    dooming: RefCell<BTreeSet<ChunkId>>,
    /// Copies as they were once.
    pub(super) kept: Kept,
    clones: clone::Clones,
}

impl Copy {
    /// Its volume's shape, as far as it knows.
    pub(super) fn geometry(&self) -> Ref<'_, Geometry> {
        Ref::map(self.record.borrow(), |record| &record.geometry)
    }
}

/// What a blob of a disk is found to be.
enum Found {
    Copy(ChunkId, Rc<Copy>),
    /// Its record cannot be read. The node starts without it: its other copies are as good as ever.
    Damaged(ChunkId, DiskError),
    /// A copy as it was once: its name, and whether it has a note.
    Snapshot(Vec<u8>, bool),
    /// Its making was cut off before it had a name.
    Unnamed,
}

impl Copies {
    pub(super) async fn open(
        cluster: ClusterId,
        configured: &[DiskConfig],
        care: Option<&DiskCare>,
    ) -> Result<Self, DiskError> {
        let mut disks = Vec::<Disk>::new();
        let mut left_out = Vec::new();
        let mut copies = BTreeMap::<ChunkId, Rc<Copy>>::new();
        let mut damaged = BTreeMap::new();
        let mut doubtful = BTreeMap::new();
        let kept = Kept::default();
        let mut failed = None;
        // Of several disks, one that is broken does not hold up the others, if anybody is told of it.
        let may_do_without = care.is_some() && configured.len() > 1;
        for disk in configured {
            let opened = match disk::open(cluster, disk, care).await {
                Ok(Ok(opened)) => Ok(opened),
                Ok(Err(left)) => {
                    left_out.push(left);
                    continue;
                }
                Err(error) => Err(error),
            };
            let index = disks.len();
            let found = match opened {
                Ok(opened) => match opened.guard.unless_it_stands(find_copies(&opened, index)).await {
                    Some(Ok(found)) => Ok((opened, found)),
                    Some(Err(error)) => Err(error),
                    None => {
                        left_out.push(opened.guard.left_out(&opened.path));
                        continue;
                    }
                },
                Err(error) => Err(error),
            };
            let (mut opened, (found, journal)) = match found {
                Ok(found) => found,
                Err(error) if may_do_without && error.is_of_a_broken_disk() => {
                    tracing::error!(path = %Path::display(&disk.path), %error, "a disk is left out");
                    let (path, why) = (disk.path.clone(), error.to_string());
                    left_out.push(LeftOut { path, why });
                    failed = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            opened.journal = journal;
            opened.is_trusted = disk.trust.covers(opened.uuid);
            for (blob, found) in found {
                match found {
                    Found::Copy(chunk, copy) if !opened.is_trusted => {
                        doubtful.insert((chunk, index), copy);
                    }
                    Found::Copy(chunk, copy) => {
                        let known = copies.remove(&chunk).map(|known| {
                            // On this disk itself, if it has two.
                            let disk = disks.get(known.disk).map_or(opened.uuid, |disk| disk.uuid);
                            (known, disk)
                        });
                        let (newer, older) = doubtful::newer_of(copy, known);
                        doubtful.extend(older.map(|older| ((chunk, older.disk), older)));
                        copies.insert(chunk, newer);
                    }
                    Found::Damaged(chunk, error) => {
                        tracing::error!(?chunk, %error, "a chunk copy is left out");
                        damaged.insert(chunk, (index, blob));
                    }
                    Found::Snapshot(name, is_noted) => {
                        if !kept.found(&name, index, blob, is_noted) {
                            tracing::warn!(path = %Path::display(&opened.path), blob = blob.0, ?name, "a snapshot has a name that is none");
                        }
                    }
                    Found::Unnamed => {
                        if let Err(error) = opened.store.delete(blob).await {
                            tracing::warn!(path = %Path::display(&opened.path), blob = blob.0, %error, "an unfinished copy stays");
                        }
                    }
                }
            }
            disks.push(opened);
        }
        if let Some(error) = failed.filter(|_| disks.is_empty()) {
            return Err(error);
        }
        let copies = Self {
            disks,
            left_out,
            copies: RefCell::new(copies),
            damaged: RefCell::new(damaged),
            doubtful: RefCell::new(doubtful),
            dooming: RefCell::default(),
            kept,
            clones: clone::Clones::default(),
        };
        copies.end_moves().await;
        Ok(copies)
    }

    pub(super) fn disk_count(&self) -> usize {
        self.disks.len()
    }

    pub(super) fn records(&self) -> Vec<ChunkRecord> {
        self.copies
            .borrow()
            .values()
            .map(|copy| copy.record.borrow().clone())
            .collect()
    }

    /// All copies, as their records are.
    pub(super) fn found(&self) -> Vec<FoundCopy> {
        let copies = self.copies.borrow();
        let placed = |copy: &Rc<Copy>| FoundCopy {
            disk: self.disks[copy.disk].uuid,
            record: copy.record.borrow().clone(),
            checksums: copy.sums.is_some(),
            origin: self.origin_of(copy.record.borrow().chunk),
        };
        copies.values().map(placed).collect()
    }

    /// A copy takes no further part: its disk failed.
    pub(super) fn stop(&self, chunk: ChunkId) {
        if let Some(copy) = self.copies.borrow().get(&chunk) {
            copy.stopped.set(true);
        }
    }

    /// Whether a copy takes no further part.
    pub(super) fn is_stopped(&self, chunk: ChunkId) -> bool {
        self.get(chunk).is_some_and(|copy| copy.stopped.get())
    }

    /// How a copy is, as its record says; none if there is none, or its disk failed.
    pub(super) fn state_of(&self, chunk: ChunkId) -> Option<agentlink::CopyState> {
        let used = self.copies.borrow().get(&chunk).cloned();
        // What is not used before masters have said so is there all the same.
        let copy = used.or_else(|| self.newest_doubtful(chunk));
        let copy = copy.filter(|copy| !copy.stopped.get())?;
        let record = copy.record.borrow();
        Some(agentlink::CopyState {
            disk: self.disks[copy.disk].uuid,
            sealed: record.sealed.0,
            configuration: record.config.as_ref().map(crate::node::from_config),
            flushed: record.flushed_in.0,
            told: None,
            token: record.writer_token.0,
        })
    }

    /// Copies whose records cannot be read.
    pub(super) fn damaged(&self) -> Vec<ChunkId> {
        self.damaged.borrow().keys().copied().collect()
    }

    /// On which store a copy lies, and in which blob.
    pub(super) fn place(&self, chunk: ChunkId) -> Option<(Blobstore, Blob)> {
        let copies = self.copies.borrow();
        let copy = copies.get(&chunk)?;
        let store = self.disks[copy.disk].store.clone();
        let blob = store.blob(copy.blob).ok()?;
        Some((store, blob))
    }

    /// On which disk a copy is.
    pub(super) fn disk_of(&self, chunk: ChunkId) -> Option<usize> {
        self.copies.borrow().get(&chunk).map(|copy| copy.disk)
    }

    /// What is on a disk.
    pub(super) fn store(&self, disk: usize) -> &Blobstore {
        &self.disks[disk].store
    }

    /// The copy of a chunk, if one is used here.
    pub(super) fn get(&self, chunk: ChunkId) -> Option<Rc<Copy>> {
        self.copies.borrow().get(&chunk).cloned()
    }

    /// Whether this copy of a chunk is the one that is used here.
    pub(super) fn is_used(&self, chunk: ChunkId, copy: &Rc<Copy>) -> bool {
        let copies = self.copies.borrow();
        copies.get(&chunk).is_some_and(|used| Rc::ptr_eq(used, copy))
    }

    /// The checksums of a copy's blocks, if it has any.
    pub(super) fn sums(&self, chunk: ChunkId) -> Option<Rc<CopySums>> {
        self.copies.borrow().get(&chunk)?.sums.clone()
    }

    /// What the checksums of copies have shown, of those where that is anything.
    pub(super) fn damage(&self) -> Vec<agentlink::CopyDamage> {
        let copies = self.copies.borrow();
        let shown = |copy: &Rc<Copy>| copy.sums.as_ref()?.damage();
        copies.values().filter_map(shown).collect()
    }

    /// Chunks whose copies differ, as write nodes here have found, and in how many blocks.
    pub(super) fn differing(&self) -> Vec<(agentlink::Chunk, u32)> {
        let copies = self.copies.borrow();
        let differing = |copy: &Rc<Copy>| copy.sums.as_ref()?.differing();
        copies.values().filter_map(differing).collect()
    }

    /// All such blocks.
    pub(super) fn differing_blocks(&self) -> Vec<(ChunkId, u32)> {
        let copies = self.copies.borrow();
        let sums = copies.values().filter_map(|copy| copy.sums.as_ref());
        sums.flat_map(|sums| sums.differing_blocks()).collect()
    }

    /// On which open file a copy lies, where its own blocks do, and where the pages of their checksums, if it has any; none in
    /// a simulation, and on a disk without direct I/O, which others could not read past its page cache.
    pub(super) fn location(&self, chunk: ChunkId) -> Option<(OpenFile, Vec<Run>, Option<Vec<Run>>)> {
        let copies = self.copies.borrow();
        let copy = copies.get(&chunk)?;
        let disk = &self.disks[copy.disk];
        let descriptor = disk.device.descriptor().filter(|_| disk.device.is_direct())?;
        let found = rustix::fs::fstat(descriptor).ok()?;
        let file = OpenFile {
            descriptor: u32::try_from(descriptor.as_raw_fd()).ok()?,
            device: found.st_dev,
            inode: found.st_ino,
        };
        let runs = disk.store.blob(copy.blob).ok()?.runs();
        let blocks = copy.record.borrow().geometry.chunk_blocks;
        let first_sum = HEAD_BLOCKS + u64::from(blocks);
        let own = runs_within(&runs, HEAD_BLOCKS..first_sum);
        let has_sums = copy.sums.is_some();
        let sums = has_sums.then(|| runs_within(&runs, first_sum..first_sum + tail_blocks(blocks)));
        Some((file, own, sums))
    }

    /// The last copy of a volume's chunks here. Of a volume that has grown, it knows all that any copy here does.
    pub(super) fn last_of(&self, volume: volume::VolumeNumber) -> Option<Rc<Copy>> {
        let last = ChunkId {
            volume,
            index: volume::ChunkIndex(u32::MAX),
        };
        let copies = self.copies.borrow();
        let (chunk, copy) = copies.range(..=last).next_back()?;
        (chunk.volume == volume).then(|| copy.clone())
    }

    /// The copies with checksums, and when each was last compared with them, in milliseconds of Unix time.
    pub(super) fn scrubbed(&self) -> BTreeMap<ChunkId, Option<u64>> {
        let copies = self.copies.borrow();
        let checked = copies.iter().filter(|(_, copy)| copy.sums.is_some());
        let last = |copy: &Copy| {
            let blob = self.disks[copy.disk].store.blob(copy.blob).ok()?;
            let bytes = blob.attribute(ATTRIBUTE_SCRUBBED)?;
            bytes.try_into().ok().map(u64::from_le_bytes)
        };
        checked.map(|(chunk, copy)| (*chunk, last(copy))).collect()
    }

    /// A copy has been compared. It becomes durable with what is next; if it is lost, the copy is compared earlier.
    pub(super) fn note_scrub(&self, chunk: ChunkId, unix_ms: u64) {
        let copies = self.copies.borrow();
        let Some(copy) = copies.get(&chunk) else { return };
        let noted = self.disks[copy.disk]
            .store
            .blob(copy.blob)
            .and_then(|blob| blob.set_attribute(ATTRIBUTE_SCRUBBED, &unix_ms.to_le_bytes()));
        if let Err(error) = noted {
            tracing::warn!(?chunk, %error, "when a copy was compared with its checksums cannot be noted");
        }
    }

    /// The shape of a copy here, and whether it has checksums.
    pub(super) fn shape(&self, chunk: ChunkId) -> Option<(Geometry, bool)> {
        let copies = self.copies.borrow();
        let copy = copies.get(&chunk)?;
        Some((copy.record.borrow().geometry.clone(), copy.sums.is_some()))
    }

    /// Chunks of which a copy is here.
    pub(super) fn chunks(&self) -> Vec<ChunkId> {
        self.copies.borrow().keys().copied().collect()
    }

    /// Whether a copy is here, be it one that cannot be used.
    pub(super) fn has_any(&self, chunk: ChunkId) -> bool {
        self.copies.borrow().contains_key(&chunk) || self.damaged.borrow().contains_key(&chunk)
    }

    /// The epoch that a copy serves in.
    pub(super) fn epoch_of(&self, chunk: ChunkId) -> Option<foundation::Epoch> {
        Some(self.copies.borrow().get(&chunk)?.record.borrow().sealed)
    }

    /// Whether the disk of a copy may have room for more: its store has, and so has the file system, if it is a file.
    pub(super) fn has_room(&self, chunk: ChunkId) -> bool {
        let copies = self.copies.borrow();
        let Some(copy) = copies.get(&chunk) else {
            return false;
        };
        self.disks[copy.disk].has_room()
    }

    /// Whether a write of these blocks of a copy needs room.
    pub(super) fn needs_room(&self, chunk: ChunkId, range: BlockRange) -> bool {
        let copies = self.copies.borrow();
        let blob = copies
            .get(&chunk)
            .and_then(|copy| self.disks[copy.disk].store.blob(copy.blob).ok());
        blob.is_some_and(|blob| !blob.owns(HEAD_BLOCKS + u64::from(range.start), range.count.into()))
    }

    /// The chunks with a copy on a disk.
    pub(super) fn on_disk(&self, disk: usize) -> Vec<ChunkId> {
        let copies = self.copies.borrow();
        let on_disk = copies.iter().filter(|(_, copy)| copy.disk == disk);
        on_disk.map(|(chunk, _)| *chunk).collect()
    }

    /// Which blocks of a copy lie on its disk, as first ones and counts; the others read zeros.
    pub(super) fn written_runs(&self, chunk: ChunkId) -> Vec<(u32, u32)> {
        let copies = self.copies.borrow();
        let Some(copy) = copies.get(&chunk) else {
            return Vec::new();
        };
        let Ok(blob) = self.disks[copy.disk].store.blob(copy.blob) else {
            return Vec::new();
        };
        let blocks = u64::from(copy.record.borrow().geometry.chunk_blocks);
        let runs = runs_within(&blob.runs(), HEAD_BLOCKS..HEAD_BLOCKS + blocks);
        runs.into_iter()
            .map(|run| (run.first_block, run.blocks))
            .collect()
    }

    pub(super) fn disks(&self) -> Vec<agentlink::Disk> {
        let describe = |disk: &Disk| {
            let (capacity_bytes, free_bytes) = disk.promised_bytes();
            agentlink::Disk {
                uuid: disk.uuid,
                path: disk.path.display().to_string(),
                capacity_bytes,
                free_bytes,
            }
        };
        self.disks.iter().map(describe).collect()
    }

    /// What snapshots hold of each disk, in bytes.
    pub(super) fn held(&self) -> Vec<(u128, u64)> {
        let held = |disk: &Disk| (disk.uuid, disk.store.held_by_snapshots().0);
        self.disks.iter().map(held).collect()
    }

    /// What each volume's copies own of the disks: its chunks, and its snapshots.
    pub(super) fn used(&self) -> Vec<(u32, u64, u64)> {
        let owned = |disk: usize, blob| self.disks[disk].store.owned_by(blob).0;
        let mut used: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (chunk, copy) in &*self.copies.borrow() {
            used.entry(chunk.volume.0).or_default().0 += owned(copy.disk, copy.blob);
        }
        for (copy, place) in &*self.kept.at.borrow() {
            used.entry(copy.0.volume.0).or_default().1 += owned(place.disk, place.blob);
        }
        used.into_iter()
            .map(|(volume, (chunks, snapshots))| (volume, chunks, snapshots))
            .collect()
    }

    /// Whether a copy can be made on a disk, and which one that is; `None` if it is here.
    fn check_new(&self, chunk: ChunkId, geometry: &Geometry, uuid: u128) -> Result<Option<usize>, CopyError> {
        if geometry.block_bytes as usize != BLOCK_BYTES {
            return Err(CopyError::BlockSize {
                block_bytes: geometry.block_bytes,
            });
        }
        if self.copies.borrow().contains_key(&chunk) {
            return Ok(None);
        }
        let position = self.disks.iter().position(|disk| disk.uuid == uuid);
        let damaged = self.damaged.borrow().get(&chunk).map(|place| place.0);
        if damaged.is_some_and(|damaged| Some(damaged) == position) {
            return Err(CopyError::Damaged { chunk });
        }
        // It is used once the masters have said that its place is there.
        if position.is_some_and(|position| self.doubtful.borrow().contains_key(&(chunk, position))) {
            return Err(CopyError::InDoubt { chunk });
        }
        let have_bytes = RECORD_BYTES_MAX;
        let need_bytes = ChunkRecord::encoded_bytes_max(geometry);
        if need_bytes > have_bytes {
            return Err(CopyError::RecordTooLong {
                chunk,
                need_bytes,
                have_bytes,
            });
        }
        position.ok_or(CopyError::NoSuchDisk { disk: uuid }).map(Some)
    }

    /// The record of a copy, as it is now.
    fn record_of(&self, chunk: ChunkId) -> Option<ChunkRecord> {
        let copies = self.copies.borrow();
        Some(copies.get(&chunk)?.record.borrow().clone())
    }

    /// Makes a copy on a disk, with checksums or without; `None` if it is here.
    pub(super) async fn create(
        &self,
        cluster: ClusterId,
        chunk: ChunkId,
        geometry: Geometry,
        (uuid, has_sums): (u128, bool),
    ) -> Result<Option<ChunkRecord>, CopyError> {
        let Some(index) = self.check_new(chunk, &geometry, uuid)? else {
            return Ok(None);
        };
        self.clones.begin(chunk)?;
        let record = ChunkRecord::new(cluster, chunk, geometry);
        let made = self.make(index, record.clone(), has_sums).await;
        self.clones.is_made(chunk);
        made?;
        Ok(Some(record))
    }

    /// A new copy is used: one on another disk whose record cannot be read has no place any more.
    pub(super) async fn delete_damaged(&self, chunk: ChunkId) {
        let damaged = self.damaged.borrow().get(&chunk).copied();
        if let Some((disk, blob)) = damaged {
            match self.disks[disk].store.delete(blob).await {
                Ok(()) => drop(self.damaged.borrow_mut().remove(&chunk)),
                Err(error) => {
                    tracing::warn!(?chunk, %error, "a copy whose record cannot be read stays on another disk");
                }
            }
        }
    }

    /// Makes an empty copy on the disk of this number, and uses it.
    async fn make(&self, disk: usize, record: ChunkRecord, has_sums: bool) -> Result<(), CopyError> {
        let chunk = record.chunk;
        let store = &self.disks[disk].store;
        let failed = |source| CopyError::Store { chunk, source };
        let blob = store.create(pages_of(&record, has_sums)).map_err(failed)?;
        let copy = copy_of(&blob, disk, record, 0, has_sums);
        let named = self.name_copy(store, &blob, chunk, &copy).await;
        if let Err(error) = named.and_then(|()| self.check_wanted(chunk)) {
            // It will be asked for again: what there is of it must not stay.
            if let Err(error) = store.delete(blob.id()).await {
                tracing::warn!(?chunk, %error, "an unfinished copy stays until the next start");
            }
            return Err(error);
        }
        self.copies.borrow_mut().insert(chunk, Rc::new(copy));
        Ok(())
    }

    /// Whether a copy that has been made is to be used: its place may have been given up by now, or one on another disk taken up.
    fn check_wanted(&self, chunk: ChunkId) -> Result<(), CopyError> {
        match self.clones.is_wanted(chunk) && !self.copies.borrow().contains_key(&chunk) {
            true => Ok(()),
            false => Err(CopyError::NoSuchCopy { chunk }),
        }
    }

    /// Makes a new copy durable. Its blob is named only once its record is there: one without is never found. The commit that names it
    /// flushes what was written before it says so.
    async fn name_copy(
        &self,
        store: &Blobstore,
        blob: &Blob,
        chunk: ChunkId,
        copy: &Copy,
    ) -> Result<(), CopyError> {
        let failed = |source| CopyError::Store { chunk, source };
        write_slot(copy, false)
            .await
            .map_err(|source| CopyError::Record { chunk, source })?;
        blob.set_attribute(ATTRIBUTE_CHUNK, &chunk_bytes(chunk))
            .map_err(failed)?;
        store.sync().await.map_err(failed)
    }
}

/// The parts of a blob's runs that lie in these pages of it, counted from the first of them.
pub(super) fn runs_within(runs: &[BlobRun], pages: Range<u64>) -> Vec<Run> {
    let within = |run: &BlobRun| {
        let first = run.page.max(pages.start);
        let end = (run.page + run.pages).min(pages.end);
        Some(Run {
            first_block: u32::try_from(first.checked_sub(pages.start)?).ok()?,
            blocks: u32::try_from(end.checked_sub(first)?)
                .ok()
                .filter(|blocks| *blocks > 0)?,
            offset_bytes: (run.device_page + (first - run.page)) * BLOCK_BYTES as u64,
        })
    };
    runs.iter().filter_map(within).collect()
}

pub(super) fn chunk_bytes(chunk: ChunkId) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&chunk.volume.0.to_le_bytes());
    bytes[4..].copy_from_slice(&chunk.index.0.to_le_bytes());
    bytes
}

pub(super) fn chunk_of(name: &[u8]) -> Option<ChunkId> {
    let (volume, index) = name.split_first_chunk::<4>()?;
    Some(ChunkId {
        volume: volume::VolumeNumber(u32::from_le_bytes(*volume)),
        index: volume::ChunkIndex(u32::from_le_bytes(index.try_into().ok()?)),
    })
}

pub(super) fn copy_of(
    blob: &Blob,
    disk: usize,
    record: ChunkRecord,
    generation: u64,
    has_sums: bool,
) -> Copy {
    let channel = blob.channel();
    Copy {
        sums: has_sums.then(|| CopySums::new(&record, channel.clone())),
        disk,
        blob: blob.id(),
        channel,
        record: RefCell::new(record),
        generation: Cell::new(generation),
        record_pages: Cell::new(0),
        pending: Cell::new(None),
        marks: RefCell::default(),
        is_due_whole: Cell::new(false),
        is_journaled: Cell::new(false),
        is_in_journal: Cell::new(false),
        stopped: Cell::new(false),
        writing: Rc::default(),
        from: origin_of_move(blob),
    }
}

/// What the blobs of a disk are, and its journal.
async fn find_copies(
    disk: &Disk,
    index: usize,
) -> Result<(Vec<(BlobId, Found)>, Option<Journal>), DiskError> {
    let (store, mut found) = (&disk.store, Vec::new());
    let is_journal = |id: &BlobId| {
        store
            .blob(*id)
            .is_ok_and(|blob| blob.attribute(ATTRIBUTE_JOURNAL).is_some())
    };
    let journal = store.blobs().into_iter().find(is_journal);
    let (opened, contents) = match journal {
        Some(id) => match Journal::open(store, id).await {
            Some((journal, contents)) => (Some(journal), contents),
            None => (None, Contents::lost()),
        },
        None => (None, Contents::default()),
    };
    for blob in store.blobs().into_iter().filter(|blob| Some(*blob) != journal) {
        found.push((blob, open_copy(disk, index, blob, &contents).await?));
    }
    let is_in_journal =
        |(_, found): &(BlobId, Found)| matches!(found, Found::Copy(_, copy) if copy.is_in_journal.get());
    // What cannot be read today may be when the disk is opened next, and then needs its marks.
    let is_damaged = |(_, found): &(BlobId, Found)| matches!(found, Found::Damaged(..));
    let is_kept = |found: &(BlobId, Found)| is_in_journal(found) || is_damaged(found);
    if let Some(journal) = &opened
        && (store.has_damaged() || found.iter().any(is_kept))
    {
        journal.keep_all();
    }
    if contents.is_doubtful {
        tracing::error!(
            path = %disk.path.display(),
            "a page of the journal cannot be read: all regions of the chunk copies on this disk count as about to be written, and are made equal"
        );
    }
    // One that is there and cannot be used is left alone.
    let journal = match journal {
        Some(_) => opened,
        None => Journal::create(store).await,
    };
    Ok((found, journal))
}

async fn open_copy(disk: &Disk, index: usize, id: BlobId, journal: &Contents) -> Result<Found, DiskError> {
    let unreadable = |why: String| DiskError::Record {
        path: disk.path.display().to_string(),
        blob: id.0,
        why,
    };
    let blob = disk
        .store
        .blob(id)
        .map_err(|error| unreadable(error.to_string()))?;
    if let Some(name) = blob.attribute(ATTRIBUTE_SNAPSHOT).filter(|_| blob.is_snapshot()) {
        return Ok(Found::Snapshot(name, blob.attribute(ATTRIBUTE_NOTE).is_some()));
    }
    let Some(name) = blob.attribute(ATTRIBUTE_CHUNK) else {
        return Ok(Found::Unnamed);
    };
    let chunk = chunk_of(&name).ok_or_else(|| unreadable(format!("it is named {name:?}")))?;
    let channel = blob.channel();
    Ok(match newest_record(&*channel, chunk, blob.size_pages()).await {
        Ok(mut slot) => {
            let may_lack_marks = slot.may_lack_marks(journal);
            let has_marks = slot.take_marks(journal, id);
            let (is_journaled, has_sums) = (slot.kind.is_journaled, slot.has_sums());
            let copy = copy_of(&blob, index, slot.record, slot.generation, has_sums);
            copy.is_journaled.set(is_journaled);
            copy.is_in_journal.set(has_marks);
            copy.is_due_whole.set(may_lack_marks || journal.is_doubtful);
            Found::Copy(chunk, Rc::new(copy))
        }
        Err(why) => Found::Damaged(chunk, unreadable(why)),
    })
}

/// Pages of a copy's blob.
pub(super) fn pages_of(record: &ChunkRecord, has_sums: bool) -> u64 {
    let blocks = record.geometry.chunk_blocks;
    HEAD_BLOCKS + u64::from(blocks) + if has_sums { tail_blocks(blocks) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blobs_runs_are_cut_to_the_pages_that_are_meant() {
        let run = |page, pages, device_page| BlobRun {
            page,
            pages,
            device_page,
        };
        let runs = [run(0, 40, 1000), run(40, 100, 500), run(200, 8, 7)];
        let cut = |pages| {
            let found = runs_within(&runs, pages);
            let plain = |run: Run| (run.first_block, run.blocks, run.offset_bytes / BLOCK_BYTES as u64);
            found.into_iter().map(plain).collect::<Vec<_>>()
        };
        assert_eq!(cut(32..132), [(0, 8, 1032), (8, 92, 500)]);
        assert_eq!(cut(132..140), [(0, 8, 592)]);
        assert_eq!(cut(140..210), [(60, 8, 7)]);
        assert_eq!(cut(150..180), []);
    }
}
