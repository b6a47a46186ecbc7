//! Snapshots of chunk copies: each is a snapshot of the copy's blob, named by chunk and number, with the record and the
//! checksums as they were (`docs/decisions/0081`, `docs/formats/checksums.md`). It stays on its disk until it is deleted, also when
//! the copy has no place here any more (`docs/decisions/0085`), or lets it go (`keep`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{Channel, ChannelExt, IoError};
use blobstore::BlobId;
use foundation::{BlockCount, KeptCopies, Lba};
use reactor::{Buffer, spawn, time};
use volume::message::codec::NativeCommand;
use volume::{
    BlockRange, ChunkId, ChunkIndex, Geometry, IoToken, Keeper, Sequence, SnapshotCopy, SnapshotId,
    SnapshotNote, Status, VolumeNumber,
};

use super::copies::{Copies, CopyError, chunk_bytes, chunk_of, newest_record};
use super::mend::{Rot, read_blocks};
use super::sums::CopySums;
use super::{Event, Node};

/// Names a snapshot of a blob: volume and chunk index as those of the copy, then number and sequence, 8 bytes each.
pub(super) const ATTRIBUTE_SNAPSHOT: &str = "redhare.snapshot";
/// Between two copies of snapshots that are deleted: each stops its chunk's copy for a commit, and others want the disk.
const DELETE_PAUSE: Duration = Duration::from_millis(20);

/// Chunk and number.
pub(super) type Key = SnapshotCopy;

/// Where a copy of a snapshot is, and the last write in it.
#[derive(Clone, Copy)]
pub(super) struct KeptPlace {
    pub(super) disk: usize,
    pub(super) blob: BlobId,
    pub(super) sequence: Sequence,
}

/// The snapshots of all copies of a node.
#[derive(Default)]
pub(super) struct Kept {
    /// Where each is.
    pub(super) at: RefCell<BTreeMap<Key, KeptPlace>>,
    /// Those that somebody reads.
    open: RefCell<BTreeMap<Key, Rc<Opened>>>,
    /// What is to be deleted in the background.
    unwanted: RefCell<BTreeSet<(VolumeNumber, SnapshotId)>>,
    deleting: Cell<bool>,
    /// Which belong here, and which may go.
    pub(super) keeper: RefCell<Keeper>,
    /// That is being looked after.
    pub(super) keeping: Cell<bool>,
    /// How many lists of complete snapshots the agent has sent on its present connection.
    pub(super) lists: Cell<u32>,
    /// By the list of this number: copies here of complete snapshots, beside copies of chunks that are in sync.
    pub(super) counted: Cell<(u32, KeptCopies)>,
    /// What of them is known to be wrong.
    pub(super) rot: RefCell<Rot>,
    /// What the masters say of complete snapshots, and the copies beside which that is not noted yet.
    pub(super) notes: RefCell<BTreeMap<(VolumeNumber, SnapshotId), SnapshotNote>>,
    pub(super) unnoted: RefCell<BTreeSet<Key>>,
    pub(super) noting: Cell<bool>,
}

/// A snapshot of a copy that can be read.
pub(super) struct Opened {
    pub(super) chunk: ChunkId,
    pub(super) geometry: Geometry,
    pub(super) channel: Rc<dyn Channel>,
    pub(super) sums: Option<Rc<CopySums>>,
}

impl Kept {
    /// A snapshot was found on a disk, with a note or without one. False if its name is none.
    pub(super) fn found(&self, name: &[u8], disk: usize, blob: BlobId, is_noted: bool) -> bool {
        let Some((chunk, rest)) = name.split_at_checked(8) else {
            return false;
        };
        let Some((number, rest)) = rest.split_first_chunk::<8>() else {
            return false;
        };
        let sequence = rest.first_chunk::<8>();
        let (Some(chunk), Some(sequence)) = (chunk_of(chunk), sequence) else {
            return false;
        };
        let place = KeptPlace {
            disk,
            blob,
            sequence: Sequence(u64::from_le_bytes(*sequence)),
        };
        let number = SnapshotId(u64::from_le_bytes(*number));
        let mut at = self.at.borrow_mut();
        // A disk that was out of service may have one that was made anew on another: the one that is known to be complete is used.
        let has_better = at.contains_key(&(chunk, number)) && (!is_noted || self.is_noted((chunk, number)));
        if has_better {
            return true;
        }
        at.insert((chunk, number), place);
        if !is_noted {
            self.unnoted.borrow_mut().insert((chunk, number));
        } else {
            self.unnoted.borrow_mut().remove(&(chunk, number));
        }
        true
    }

    /// Whether a copy that is here is known to be complete.
    fn is_noted(&self, key: Key) -> bool {
        !self.unnoted.borrow().contains(&key)
    }

    /// Lets go of what was read to read a snapshot. Whoever reads it now goes on.
    pub(super) fn close(&self, key: Key) {
        self.open.borrow_mut().remove(&key);
    }

    /// The next copy of a snapshot that is to be deleted, leaving out these: newest first, so that the older ones give their clusters
    /// to nobody in between.
    fn next_unwanted(&self, stay: &BTreeSet<Key>) -> Option<Key> {
        let unwanted = self.unwanted.borrow();
        let at = self.at.borrow();
        let mut entries = at.iter().rev();
        let is_unwanted = |key: &Key| unwanted.contains(&(key.0.volume, key.1)) && !stay.contains(key);
        let found = entries.find(|(key, _)| is_unwanted(key));
        found.map(|(key, _)| *key)
    }
}

impl Node {
    /// Keeps a copy as it is.
    pub(super) fn snapshot(&self, chunk: ChunkId, io: IoToken, name: (SnapshotId, Sequence)) {
        let (node, copy) = (self.own(), self.copies.get(chunk));
        let writing = copy.map(|copy| copy.writing.clone());
        drop(reactor::spawn(async move {
            let kept = node.copies.snapshot(chunk, name).await;
            drop(writing);
            if let Err(error) = &kept {
                tracing::warn!(?chunk, snapshot = name.0.0, %error, "no snapshot can be made of a chunk copy");
            }
            node.push(Event::Local {
                chunk,
                io,
                succeeded: kept.is_ok(),
                read: None,
            });
        }));
    }
}

impl Copies {
    /// Makes a copy's writes and their checksums durable and keeps it as it is, durable under this name when it returns. No
    /// write may be under way.
    pub(super) async fn snapshot(
        &self,
        chunk: ChunkId,
        (snapshot, sequence): (SnapshotId, Sequence),
    ) -> Result<(), CopyError> {
        let (store, blob) = self.place(chunk).ok_or(CopyError::NoSuchCopy { chunk })?;
        let failed = |source| CopyError::Store { chunk, source };
        if self.kept.at.borrow().contains_key(&(chunk, snapshot)) {
            return Err(CopyError::SnapshotExists { chunk, snapshot });
        }
        let flushed = match self.sums(chunk) {
            Some(sums) => sums.flush().await,
            None => blob.channel().flush().await,
        };
        flushed.map_err(|source| CopyError::Flush { chunk, source })?;
        let kept = store.snapshot(blob.id()).await.map_err(failed)?;
        let named = [&snapshot_bytes(chunk, snapshot)[..], &sequence.0.to_le_bytes()].concat();
        // The name and the snapshot are in the same commit: neither is found without the other.
        if let Err(error) = kept.set_attribute(ATTRIBUTE_SNAPSHOT, &named) {
            store.delete(kept.id()).await.map_err(failed)?;
            return Err(failed(error));
        }
        if let Some(disk) = self.disk_of(chunk) {
            self.kept.found(&named, disk, kept.id(), false);
        }
        store.sync().await.map_err(failed)
    }

    /// All snapshots of which copies are here.
    pub(super) fn snapshots(&self) -> BTreeSet<(VolumeNumber, SnapshotId)> {
        let at = self.kept.at.borrow();
        at.keys().map(|(chunk, number)| (chunk.volume, *number)).collect()
    }

    /// Deletes the snapshots of a volume's chunks, whose copies are deleted already.
    pub(super) async fn delete_snapshots_of(&self, volume: VolumeNumber) {
        let key = |index| ChunkId {
            volume,
            index: ChunkIndex(index),
        };
        let all = (key(0), SnapshotId(0))..=(key(u32::MAX), SnapshotId(u64::MAX));
        let found: Vec<Key> = self
            .kept
            .at
            .borrow()
            .range(all)
            .rev()
            .map(|(key, _)| *key)
            .collect();
        for key in found {
            self.delete_snapshot(key).await;
        }
    }

    /// False if it stays, which is logged.
    pub(super) async fn delete_snapshot(&self, key: Key) -> bool {
        // From now on nobody opens it; what reads it already has its own way to the blob.
        let Some(place) = self.kept.at.borrow_mut().remove(&key) else {
            return true;
        };
        let KeptPlace { disk, blob, .. } = place;
        self.kept.close(key);
        let was_unnoted = self.kept.unnoted.borrow_mut().remove(&key);
        self.kept.rot.borrow_mut().forget(key);
        let deleted = match self.delete_below_clones(disk, blob).await {
            Ok(()) => self.store(disk).sync().await,
            Err(blobstore::Error::NoSuchBlob(_)) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = &deleted {
            let (chunk, snapshot) = (key.0, key.1.0);
            if self.store(disk).blob(blob).is_err() {
                // It is gone, only not durably: should it come back, it is deleted again.
                tracing::warn!(?chunk, snapshot, %error, "a copy of a snapshot is deleted, but the disk does not have that yet");
                return true;
            }
            tracing::error!(?chunk, snapshot, %error, "a copy of a snapshot stays on its disk");
            self.kept.at.borrow_mut().insert(key, place);
            if was_unnoted {
                self.kept.unnoted.borrow_mut().insert(key);
            }
        }
        deleted.is_ok()
    }

    /// The snapshot of a copy, to be read; none if it is not here.
    pub(super) async fn open_snapshot(&self, key: Key) -> Result<Option<Rc<Opened>>, CopyError> {
        let Some(KeptPlace { disk, blob, .. }) = self.kept.at.borrow().get(&key).copied() else {
            return Ok(None);
        };
        if let Some(opened) = self.kept.open.borrow().get(&key) {
            return Ok(Some(opened.clone()));
        }
        let chunk = key.0;
        let failed = |source| CopyError::Store { chunk, source };
        let blob = self.store(disk).blob(blob).map_err(failed)?;
        let channel: Rc<dyn Channel> = blob.channel();
        let found = newest_record(&*channel, chunk, blob.size_pages()).await;
        let slot = found.map_err(|why| CopyError::SnapshotRecord { chunk, why })?;
        let (has_sums, mut record) = (slot.has_sums(), slot.record);
        // No write was under way: there is no block of which both an old and a new one may be right.
        record.intent.clear();
        let opened = Rc::new(Opened {
            chunk,
            sums: has_sums.then(|| CopySums::new(&record, channel.clone())),
            geometry: record.geometry,
            channel,
        });
        if !self.kept.at.borrow().contains_key(&key) {
            return Ok(None);
        }
        self.kept.open.borrow_mut().insert(key, opened.clone());
        Ok(Some(opened))
    }

    /// The chunk and its blocks that a range of a snapshot lies in; none if no copy of the snapshot is here.
    pub(super) async fn place_in_snapshot(
        &self,
        (volume, snapshot): (VolumeNumber, SnapshotId),
        first: Lba,
        blocks: u32,
    ) -> Result<Option<(ChunkId, BlockRange)>, CopyError> {
        let from = ChunkId {
            volume,
            index: ChunkIndex(0),
        };
        let any = {
            let at = self.kept.at.borrow();
            let of_volume = at.range((from, SnapshotId(0))..);
            let mut of_volume = of_volume.take_while(|((chunk, _), _)| chunk.volume == volume);
            of_volume
                .find(|((_, number), _)| *number == snapshot)
                .map(|(key, _)| *key)
        };
        let Some(any) = any else { return Ok(None) };
        let Some(opened) = self.open_snapshot(any).await? else {
            return Ok(None);
        };
        let outside = CopyError::OutsideSnapshot { chunk: any.0 };
        let Ok(mut pieces) = opened.geometry.pieces(first, BlockCount(blocks.into())) else {
            return Err(outside);
        };
        match (pieces.next(), pieces.next()) {
            (Some(piece), None) => Ok(Some((
                ChunkId {
                    volume,
                    index: piece.chunk,
                },
                piece.range,
            ))),
            _ => Err(outside),
        }
    }
}

impl Node {
    /// Reads what the copy of a snapshot on this node has.
    pub(super) async fn read_snapshot(
        &self,
        native: &NativeCommand,
        snapshot: SnapshotId,
    ) -> Result<Buffer, Status> {
        let read = self.read_snapshot_blocks(native, snapshot).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(snapshot = snapshot.0, %error, "a snapshot cannot be read");
            Err(match error {
                CopyError::OutsideSnapshot { .. } => Status::OutOfRange,
                _ => Status::DeviceFailed,
            })
        })
    }

    async fn read_snapshot_blocks(
        &self,
        native: &NativeCommand,
        snapshot: SnapshotId,
    ) -> Result<Result<Buffer, Status>, CopyError> {
        let copies = &self.copies;
        let of = (native.volume, snapshot);
        let place = copies
            .place_in_snapshot(of, native.fields.first_lba, native.blocks)
            .await?;
        let Some((chunk, range)) = place else {
            return Ok(Err(Status::SnapshotAborted));
        };
        let Some(opened) = copies.open_snapshot((chunk, snapshot)).await? else {
            return Ok(Err(Status::SnapshotAborted));
        };
        let read = read_blocks(&*opened.channel, range).await;
        if copies.open_snapshot((chunk, snapshot)).await?.is_none() {
            // Deleted meanwhile: what was read may be somebody else's.
            return Ok(Err(Status::SnapshotAborted));
        }
        if read.as_ref().err() == Some(&IoError::Exhausted) {
            return Ok(Err(Status::Busy));
        }
        let Some(sums) = &opened.sums else {
            return Ok(Ok(
                read.map_err(|source| CopyError::ReadSnapshot { chunk, source })?
            ));
        };
        let error = match read {
            Err(source) => CopyError::ReadSnapshot { chunk, source },
            Ok(bytes) => match sums.check_reading(range, &bytes).await.first() {
                None => return Ok(Ok(bytes)),
                Some(&block) => CopyError::SnapshotDamaged { chunk, block },
            },
        };
        // Another copy answers who reads; this one is mended meanwhile.
        self.note_rot((chunk, snapshot), range, false);
        Err(error)
    }

    /// Deletes the copies of these snapshots in the background.
    pub fn delete_snapshots(&self, snapshots: impl IntoIterator<Item = (VolumeNumber, SnapshotId)>) {
        let kept = &self.copies.kept;
        let known = self.copies.snapshots();
        let new = snapshots.into_iter().filter(|snapshot| known.contains(snapshot));
        kept.unwanted.borrow_mut().extend(new);
        if !kept.unwanted.borrow().is_empty() && !kept.deleting.replace(true) {
            drop(spawn(delete_unwanted(Rc::downgrade(&self.own()))));
        }
    }

    /// What snapshots hold of each disk, by its identity, in bytes.
    pub fn held(&self) -> Vec<(u128, u64)> {
        self.copies.held()
    }

    /// What each volume's copies own of the disks, by its number, in bytes: its chunks, and its snapshots. A step for each copy.
    pub fn used(&self) -> Vec<(u32, u64, u64)> {
        self.copies.used()
    }

    /// All snapshots of which copies are here, as the agent hears it.
    pub(crate) fn snapshots(&self) -> Vec<(u32, u64)> {
        let all = self.copies.snapshots();
        all.into_iter()
            .map(|(volume, number)| (volume.0, number.0))
            .collect()
    }
}

/// One after the other, with pauses.
async fn delete_unwanted(weak: Weak<Node>) {
    let mut stay = BTreeSet::new();
    loop {
        let Some(node) = weak.upgrade() else { return };
        let kept = &node.copies.kept;
        let Some(key) = kept.next_unwanted(&stay) else {
            // What could not be deleted is asked for again.
            kept.unwanted.borrow_mut().clear();
            kept.deleting.set(false);
            return;
        };
        if !node.copies.delete_snapshot(key).await {
            stay.insert(key);
        }
        drop(node);
        time::sleep(DELETE_PAUSE).await;
    }
}

/// A snapshot's name on a disk, without its sequence.
pub(super) fn snapshot_bytes(chunk: ChunkId, snapshot: SnapshotId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&chunk_bytes(chunk));
    bytes[8..].copy_from_slice(&snapshot.0.to_le_bytes());
    bytes
}
