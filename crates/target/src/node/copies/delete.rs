//! Deleting copies. One that cannot be deleted, or not durably, is used no more; that it is gone is said once it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

use blobstore::BlobId;
use volume::{ChunkId, VolumeNumber};

use super::{Copies, Copy};

/// A copy that is to be deleted: its chunk, its blob, and itself, if its record can be read.
type Doomed = (ChunkId, BlobId, Option<Rc<Copy>>);

/// Takes what is there of these chunks.
fn take<V>(from: &mut BTreeMap<ChunkId, V>, wanted: &RangeInclusive<ChunkId>) -> Vec<(ChunkId, V)> {
    let found: Vec<ChunkId> = from.range(wanted.clone()).map(|(chunk, _)| *chunk).collect();
    let taken = found.into_iter().filter_map(|chunk| from.remove_entry(&chunk));
    taken.collect()
}

impl Copies {
    /// Deletes a volume's copies and their snapshots.
    pub(in super::super) async fn delete_volume(&self, volume: VolumeNumber) {
        self.delete(ChunkId::all_of(volume)).await;
        self.delete_snapshots_of(volume).await;
    }

    /// Deletes one chunk's copy, if it is here. Its snapshots stay: there may be no other copies of them. Whether nothing of it is left.
    pub(in super::super) async fn delete_copy(&self, deleted: ChunkId) -> bool {
        self.delete(deleted..=deleted).await
    }

    /// Deletes the copies of these chunks, durably. What stays on its disk is used no more, and is deleted when it is asked for again.
    /// Looks at no others: most volumes that a node is told of have nothing here, and there may be very many copies.
    async fn delete(&self, wanted: RangeInclusive<ChunkId>) -> bool {
        // Who asks again is told no better before the first one knows.
        let is_alone = self.dooming.borrow().range(wanted.clone()).next().is_none();
        let mut doomed: BTreeMap<usize, Vec<Doomed>> = BTreeMap::new();
        let mut doom = |disk, chunk, blob, copy| doomed.entry(disk).or_default().push((chunk, blob, copy));
        self.clones.forget(|chunk| wanted.contains(chunk));
        for (chunk, copy) in take(&mut self.copies.borrow_mut(), &wanted) {
            doom(copy.disk, chunk, copy.blob, Some(copy));
        }
        // These stay in doubt until their deletion is durable: their disk is not to be trusted before.
        let on_any = (*wanted.start(), 0)..=(*wanted.end(), usize::MAX);
        for ((chunk, disk), copy) in self.doubtful.borrow().range(on_any) {
            doom(*disk, *chunk, copy.blob, Some(copy.clone()));
        }
        for (chunk, (disk, blob)) in take(&mut self.damaged.borrow_mut(), &wanted) {
            doom(disk, chunk, blob, None);
        }
        let unsynced = self
            .disks
            .iter()
            .enumerate()
            .filter(|(_, disk)| disk.has_unsynced.get());
        for (disk, _) in unsynced {
            doomed.entry(disk).or_default();
        }
        // Until it is durable, what the journals have of them stays there.
        for disk in doomed.keys() {
            let deleting = &self.disks[*disk].deleting;
            deleting.set(deleting.get() + 1);
        }
        let chunks: BTreeSet<ChunkId> = doomed.values().flatten().map(|(chunk, ..)| *chunk).collect();
        self.dooming.borrow_mut().extend(&chunks);
        let mut is_done = is_alone;
        for (disk, doomed) in doomed {
            is_done &= self.delete_blobs(disk, doomed).await;
        }
        self.dooming.borrow_mut().retain(|chunk| !chunks.contains(chunk));
        is_done
    }

    async fn delete_blobs(&self, index: usize, doomed: Vec<Doomed>) -> bool {
        let disk = &self.disks[index];
        let path = disk.path.display();
        let (mut is_done, mut deleted) = (true, Vec::new());
        for (chunk, blob, copy) in doomed {
            match disk.store.delete(blob).await {
                Ok(()) | Err(blobstore::Error::NoSuchBlob(_)) => {
                    disk.has_unsynced.set(true);
                    deleted.push((chunk, blob));
                }
                Err(error) => {
                    is_done = false;
                    tracing::error!(?chunk, %path, %error, "a copy that was to be deleted stays on its disk");
                    match copy {
                        Some(copy) => drop(self.doubtful.borrow_mut().insert((chunk, index), copy)),
                        None => drop(self.damaged.borrow_mut().insert(chunk, (index, blob))),
                    }
                }
            }
        }
        let synced = match disk.has_unsynced.replace(false) {
            true => disk.store.sync().await,
            false => Ok(()),
        };
        match synced {
            Ok(()) => {
                let mut doubtful = self.doubtful.borrow_mut();
                for (chunk, blob) in deleted {
                    if doubtful
                        .get(&(chunk, index))
                        .is_some_and(|copy| copy.blob == blob)
                    {
                        doubtful.remove(&(chunk, index));
                    }
                }
            }
            Err(error) => {
                is_done = false;
                disk.has_unsynced.set(true);
                tracing::error!(%path, %error, "copies that were deleted may come back with the next start");
            }
        }
        disk.deleting.set(disk.deleting.get() - 1);
        is_done
    }
}
