//! First copies of a clone's chunks, and giving them data of their own (`docs/decisions/0093`).
//!
//! The first copy is a clone of the blob that holds the snapshot's copy of the same chunk, with a record of its own. Of what it shows
//! it changes two things before it has a name: both places of the record, and the pages of checksums, which name their chunk.
//! A crash before leaves a blob without a name, which the next start deletes.
//!
//! *Flattened* is a copy, or a copy of a snapshot of the clone, whose blob shows nothing of another volume's any more.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::ChannelExt;
use blobstore::{Blob, BlobId, Blobstore};
use foundation::{Instant, Lba};
use reactor::{BufferPool, spawn, time};
use volume::{
    ChunkId, ChunkIndex, ChunkRecord, Geometry, SUM_PAGE_BYTES, SnapshotId, VolumeNumber, readdress_sums,
};

use super::super::Node;
use super::super::keep::Unfinished;
use super::super::snapshots::{ATTRIBUTE_SNAPSHOT, Key};
use super::super::sums::tail_blocks;
use super::{
    ATTRIBUTE_CHUNK, BLOCK_BYTES, Copies, Copy, CopyError, HEAD_BLOCKS, chunk_of, copy_of, pages_of,
    runs_within, write_record,
};

/// Pages of checksums that are read and written at a time: both places of 32.
const SUM_PAGES: u32 = 64;
/// The least pause after a cluster that was copied, so that what others ask of the disk comes first; it is as long as the copying
/// took otherwise.
const FLATTEN_PAUSE: Duration = Duration::from_millis(1);
/// A copy that could not be flattened is left alone for so long.
const RETRY: Duration = Duration::from_secs(10);
/// Before it is looked again at a blob that is being deleted.
const DELETED_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether there is anything more to flatten.
const LOOK: Duration = Duration::from_secs(1);

/// What is under way about clones.
#[derive(Default)]
pub(in super::super) struct Clones {
    /// Chunks whose first copies are being made, and whether they are still wanted.
    making: RefCell<BTreeMap<ChunkId, bool>>,
    /// Volumes that are to be flattened, and how many copies are left and there are.
    wanted: RefCell<BTreeMap<VolumeNumber, Option<(u32, u32)>>>,
    flattening: Cell<bool>,
    /// Whom to tell that blocks of a copy lie elsewhere on its disk from now on.
    moved: RefCell<Option<Moved>>,
}

type Moved = Box<dyn Fn(ChunkId)>;

/// A blob, by disk.
type Place = (usize, BlobId);

/// Which chunk a blob is a copy of, or a snapshot of a copy.
fn chunk_of_blob(blob: &Blob) -> Option<ChunkId> {
    let name = blob
        .attribute(ATTRIBUTE_SNAPSHOT)
        .or_else(|| blob.attribute(ATTRIBUTE_CHUNK))?;
    chunk_of(name.get(..8)?)
}

/// Whether a blob shows something of another volume's.
fn shows_another(store: &Blobstore, blob: &Blob) -> bool {
    let parent = blob.parent().and_then(|parent| store.blob(parent).ok());
    let volumes = [Some(blob), parent.as_ref()].map(|blob| Some(chunk_of_blob(blob?)?.volume));
    matches!(volumes, [Some(own), Some(other)] if own != other)
}

impl Clones {
    /// Begins to make a copy of a chunk here; none if one is being made already. Ended by [`Clones::is_made`].
    pub(super) fn begin(&self, chunk: ChunkId) -> Result<(), CopyError> {
        match self.making.borrow_mut().entry(chunk) {
            Entry::Vacant(free) => drop(free.insert(true)),
            Entry::Occupied(_) => return Err(CopyError::BeingMade { chunk }),
        }
        Ok(())
    }

    /// It is made, or could not be.
    pub(super) fn is_made(&self, chunk: ChunkId) {
        self.making.borrow_mut().remove(&chunk);
    }

    /// Whether the copy of a chunk that is being made is still wanted.
    pub(super) fn is_wanted(&self, chunk: ChunkId) -> bool {
        self.making.borrow().get(&chunk).copied().unwrap_or(false)
    }

    /// What was located of a copy is not to be read any more.
    pub(super) fn tell_of_move(&self, chunk: ChunkId) {
        if let Some(moved) = &*self.moved.borrow() {
            moved(chunk);
        }
    }

    /// Copies of these chunks that are being made are not wanted any more.
    pub(super) fn forget(&self, deleted: impl Fn(&ChunkId) -> bool) {
        for (chunk, is_wanted) in &mut *self.making.borrow_mut() {
            *is_wanted &= !deleted(chunk);
        }
    }
}

impl Copies {
    /// Whom to tell that blocks of a copy lie elsewhere on its disk: what was located before is not to be read any more.
    pub(in super::super) fn when_moved(&self, tell: impl Fn(ChunkId) + 'static) {
        *self.clones.moved.borrow_mut() = Some(Box::new(tell));
    }

    /// Makes the first copy of a clone's chunk from a copy of a snapshot on the same disk. None if there is no such.
    async fn clone_here(&self, record: ChunkRecord, disk: usize, from: Key) -> Result<Option<()>, CopyError> {
        let chunk = record.chunk;
        let failed = |source| CopyError::Store { chunk, source };
        let Some(opened) = self.open_snapshot(from).await? else {
            return Ok(None);
        };
        let Some(place) = self
            .kept
            .at
            .borrow()
            .get(&from)
            .copied()
            .filter(|place| place.disk == disk)
        else {
            return Ok(None);
        };
        let has_sums = opened.sums.is_some();
        let store = self.store(disk).clone();
        // In one step with the look above: a snapshot's copy that is being deleted is not found there any more.
        let blob = store.clone_snapshot(place.blob).map_err(failed)?;
        let made = async {
            if blob.size_pages() != pages_of(&record, has_sums) {
                return Err(CopyError::OutsideSnapshot { chunk: from.0 });
            }
            let copy = copy_of(&blob, disk, record, 0, has_sums);
            copy.note_what_shows(&blob);
            if has_sums {
                readdress(&blob, &copy, from.0, chunk).await?;
            }
            self.name_clone(&store, &blob, copy).await
        };
        if let Err(error) = made.await {
            self.discard(&store, &blob, chunk).await;
            return Err(error);
        }
        Ok(Some(()))
    }

    /// Gives a clone's first copy its name, with its own record in both places.
    async fn name_clone(&self, store: &Blobstore, blob: &Blob, copy: Copy) -> Result<(), CopyError> {
        let chunk = copy.record.borrow().chunk;
        write_record(&copy)
            .await
            .map_err(|source| CopyError::Record { chunk, source })?;
        // Its volume may be deleted by now.
        if !self.clones.is_wanted(chunk) {
            return Err(CopyError::NoSuchCopy { chunk });
        }
        self.name_copy(store, blob, chunk, &copy).await?;
        self.check_wanted(chunk)?;
        self.copies.borrow_mut().insert(chunk, Rc::new(copy));
        Ok(())
    }

    /// The snapshot of another volume of which a copy shows something: its volume is a clone of that one.
    pub(super) fn origin_of(&self, chunk: ChunkId) -> Option<(VolumeNumber, SnapshotId)> {
        let (store, mut blob) = self.place(chunk)?;
        loop {
            // Snapshots of the clone itself may lie in between.
            blob = store.blob(blob.parent()?).ok()?;
            let name = blob.attribute(ATTRIBUTE_SNAPSHOT)?;
            let (of, rest) = name.split_at_checked(8)?;
            let volume = chunk_of(of)?.volume;
            if volume != chunk.volume {
                let number = u64::from_le_bytes(*rest.first_chunk()?);
                return Some((volume, SnapshotId(number)));
            }
        }
    }

    async fn discard(&self, store: &Blobstore, blob: &Blob, chunk: ChunkId) {
        let deleted = match store.delete(blob.id()).await {
            Ok(()) => store.sync().await,
            failed => failed,
        };
        if let Err(error) = deleted {
            tracing::warn!(?chunk, %error, "an unfinished copy of a clone stays until the next start");
        }
    }

    /// Deletes the blob of a copy of a snapshot. Clones that show it beside its volume's own are given data of their own before, which
    /// their volumes need not know of: a node may have been away while they were flattened elsewhere.
    pub(in super::super) async fn delete_below_clones(
        &self,
        disk: usize,
        blob: BlobId,
    ) -> Result<(), blobstore::Error> {
        let store = self.store(disk).clone();
        loop {
            let refused = match store.delete(blob).await {
                Err(error @ blobstore::Error::HasChildren { .. }) => error,
                deleted => return deleted,
            };
            let children = store.blob(blob)?.children().into_iter();
            let children = children.filter_map(|child| store.blob(child).ok());
            let Some(clone) = children.into_iter().find(|child| shows_another(&store, child)) else {
                return Err(refused);
            };
            match self.flatten_blob(&store, &clone).await {
                Ok(()) => {}
                // It is being deleted itself.
                Err(blobstore::Error::NoSuchBlob(_)) => time::sleep(DELETED_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives a blob data of its own, durably.
    async fn flatten_blob(&self, store: &Blobstore, blob: &Blob) -> Result<(), blobstore::Error> {
        let chunk = chunk_of_blob(blob);
        let began = Cell::new(time::now());
        let copied = blob
            .flatten_with_pauses(|| {
                // Before anything else happens: what lay there may be somebody else's soon.
                chunk
                    .into_iter()
                    .for_each(|chunk| self.clones.tell_of_move(chunk));
                let took = time::now().since(began.get());
                let began = &began;
                async move {
                    time::sleep(took.max(FLATTEN_PAUSE)).await;
                    began.set(time::now());
                }
            })
            .await?;
        store.sync().await?;
        tracing::info!(?chunk, clusters = copied, "a copy of a clone has data of its own");
        Ok(())
    }

    /// The copies of a volume here and those of its snapshots: how many there are, and those that show something of another volume.
    fn shared_of(&self, volume: VolumeNumber) -> (u32, Vec<(ChunkId, Place)>) {
        let key = |index| ChunkId {
            volume,
            index: ChunkIndex(index),
        };
        let copies = self.copies.borrow();
        let live = copies.range(key(0)..=key(u32::MAX));
        let mut all: Vec<(ChunkId, Place)> = live
            .map(|(chunk, copy)| (*chunk, (copy.disk, copy.blob)))
            .collect();
        let kept = self.kept.at.borrow();
        let kept = kept.range((key(0), SnapshotId(0))..=(key(u32::MAX), SnapshotId(u64::MAX)));
        // The oldest ones first: what comes after one shares with that, and no more with the other volume.
        let kept = kept.map(|((chunk, _), place)| (*chunk, (place.disk, place.blob)));
        all.splice(0..0, kept);
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.retain(|(_, (disk, blob))| {
            let store = self.store(*disk);
            store.blob(*blob).is_ok_and(|blob| shows_another(store, &blob))
        });
        (count, all)
    }
}

impl Copy {
    /// Every region of which the blob shows anything counts as written in the first epoch, so that a copy that is made later gets it.
    fn note_what_shows(&self, blob: &Blob) {
        let mut record = self.record.borrow_mut();
        let blocks = u64::from(record.geometry.chunk_blocks);
        for run in runs_within(&blob.runs(), HEAD_BLOCKS..HEAD_BLOCKS + blocks) {
            record.note_shown(run.first_block, run.blocks);
        }
    }
}

/// Has the pages of checksums that a clone shows name its own chunk: those of another would be refused.
async fn readdress(blob: &Blob, copy: &Copy, from: ChunkId, to: ChunkId) -> Result<(), CopyError> {
    let chunk = to;
    let first_sum = HEAD_BLOCKS + u64::from(copy.geometry().chunk_blocks);
    let tail = tail_blocks(copy.geometry().chunk_blocks);
    for run in runs_within(&blob.runs(), first_sum..first_sum + tail) {
        let mut at = run.first_block;
        let end = run.first_block + run.blocks;
        while at < end {
            let pages = SUM_PAGES.min(end - at);
            let room = BufferPool::current().allocate(pages as usize * BLOCK_BYTES).await;
            let room = room.map_err(|_| CopyError::Record {
                chunk,
                source: bdev::IoError::Exhausted,
            })?;
            let lba = Lba(first_sum + u64::from(at));
            let (read, mut bytes) = copy.channel.read(lba, room).await;
            read.map_err(|source| CopyError::ReadSnapshot { chunk: from, source })?;
            for (page, place) in (at..).zip(bytes.chunks_exact_mut(SUM_PAGE_BYTES)) {
                // What was damaged there is damaged here, and is told when it is read.
                readdress_sums(place, page / 2, from, to);
            }
            let written = copy.channel.write(lba, bytes.freeze()).await;
            written.map_err(|source| CopyError::Record { chunk, source })?;
            at += pages;
        }
    }
    Ok(())
}

impl Node {
    /// Makes the first copy of a clone's chunk on a disk, unless it is here: as a clone of this node's copy of the snapshot, without
    /// copying, or from whoever has one, if that lies on another disk or nowhere here. It waits for nothing: while this node is to
    /// have a copy of the snapshot and has it not yet, that is an error, and the order comes again.
    pub async fn clone_copy(
        &self,
        chunk: ChunkId,
        geometry: Geometry,
        (disk, has_sums): (u128, bool),
        from: Key,
    ) -> Result<(), CopyError> {
        let Some(disk) = self.copies.check_new(chunk, &geometry, disk)? else {
            return Ok(());
        };
        self.copies.clones.begin(chunk)?;
        let record = ChunkRecord::new(self.identity.cluster, chunk, geometry);
        let made = self.make_first_copy(record, (disk, has_sums), from).await;
        self.copies.clones.is_made(chunk);
        made?;
        let record = self
            .copies
            .record_of(chunk)
            .ok_or(CopyError::NoSuchCopy { chunk })?;
        self.core.borrow_mut().add_copy(time::now(), record, has_sums);
        self.pump();
        self.tell_of_room(chunk);
        self.look_at_room(chunk);
        Ok(())
    }

    async fn make_first_copy(
        &self,
        record: ChunkRecord,
        (disk, has_sums): (usize, bool),
        from: Key,
    ) -> Result<(), CopyError> {
        let chunk = record.chunk;
        match self.copies.clone_here(record.clone(), disk, from).await {
            Ok(Some(())) => return Ok(()),
            Ok(None) => {}
            // What this copy's disk has lost other nodes have, mostly.
            Err(
                error @ (CopyError::SnapshotRecord { .. }
                | CopyError::ReadSnapshot { .. }
                | CopyError::OutsideSnapshot { .. }),
            ) => tracing::warn!(?chunk, %error, "a clone shares nothing with the snapshot's copy here"),
            Err(error) => return Err(error),
        }
        let is_here = self.copies.kept.at.borrow().contains_key(&from);
        if !is_here && self.is_in_sync(from.0) {
            let (chunk, snapshot) = from;
            return Err(CopyError::SnapshotAwaited { chunk, snapshot });
        }
        let holders = self.holders(from, &record.geometry).await;
        if holders.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let (chunk, snapshot) = from;
            return Err(CopyError::SourcesDiffer { chunk, snapshot });
        }
        let nodes: Vec<_> = holders.into_iter().map(|(node, _)| node).collect();
        let store = self.copies.store(disk).clone();
        let failed = |source| CopyError::Store { chunk, source };
        let blob = store.create(pages_of(&record, has_sums)).map_err(failed)?;
        let unfinished = Unfinished {
            disk,
            copy: copy_of(&blob, disk, record, 0, has_sums),
            blob,
            is_clone: false,
        };
        let filled = async {
            self.fill(from, &nodes, &unfinished).await?;
            if let Some(sums) = &unfinished.copy.sums {
                let flushed = sums.flush().await;
                flushed.map_err(|source| CopyError::Flush { chunk, source })?;
            }
            unfinished.copy.note_what_shows(&unfinished.blob);
            Ok(())
        };
        let filled = filled.await;
        let Unfinished { blob, copy, .. } = unfinished;
        let made = match filled {
            Ok(()) => self.copies.name_clone(&store, &blob, copy).await,
            failed => failed,
        };
        if made.is_err() {
            self.copies.discard(&store, &blob, chunk).await;
        }
        made
    }

    /// All volumes whose copies are to be given data of their own, in the background, one copy at a time.
    pub fn flatten(&self, volumes: &[u32]) {
        let clones = &self.copies.clones;
        let mut wanted = clones.wanted.borrow_mut();
        let named: BTreeSet<VolumeNumber> = volumes.iter().copied().map(VolumeNumber).collect();
        wanted.retain(|volume, _| named.contains(volume));
        for volume in named {
            wanted.entry(volume).or_default();
        }
        if !wanted.is_empty() && !clones.flattening.replace(true) {
            drop(spawn(flatten_wanted(Rc::downgrade(&self.own()))));
        }
    }

    /// How far that is: each volume with the copies that are left and all, as the agent hears it.
    pub fn flattening(&self) -> Vec<(u32, u32, u32)> {
        let wanted = self.copies.clones.wanted.borrow();
        let said = |(volume, said): (&VolumeNumber, &Option<(u32, u32)>)| {
            let (left, copies) = (*said)?;
            Some((volume.0, left, copies))
        };
        wanted.iter().filter_map(said).collect()
    }

    /// Flattens one copy that is to be, but for those that are put off. False if there is none.
    async fn flatten_one(&self, put_off: &mut BTreeMap<Place, Instant>) -> bool {
        let clones = &self.copies.clones;
        let wanted: Vec<VolumeNumber> = clones.wanted.borrow().keys().copied().collect();
        let mut next = None;
        for volume in wanted {
            let (copies, shared) = self.copies.shared_of(volume);
            let left = u32::try_from(shared.len()).unwrap_or(u32::MAX);
            if let Some(said) = clones.wanted.borrow_mut().get_mut(&volume) {
                *said = Some((left, copies));
            }
            next = next.or_else(|| shared.into_iter().find(|(_, place)| !put_off.contains_key(place)));
        }
        let Some((chunk, (disk, blob))) = next else {
            return false;
        };
        let store = self.copies.store(disk).clone();
        let flattened = match store.blob(blob) {
            Ok(blob) => self.copies.flatten_blob(&store, &blob).await,
            // Deleted a moment ago.
            Err(_) => return true,
        };
        if let Err(error) = flattened {
            tracing::warn!(?chunk, %error, "a copy of a clone cannot be given data of its own yet");
            put_off.insert((disk, blob), time::now() + RETRY);
        }
        true
    }
}

async fn flatten_wanted(weak: Weak<Node>) {
    let mut put_off = BTreeMap::new();
    loop {
        let Some(node) = weak.upgrade() else { return };
        let now = time::now();
        put_off.retain(|_, until| *until > now);
        let found = node.flatten_one(&mut put_off).await;
        let clones = &node.copies.clones;
        if clones.wanted.borrow().is_empty() {
            clones.flattening.set(false);
            return;
        }
        drop(node);
        if !found {
            time::sleep(LOOK).await;
        }
    }
}
