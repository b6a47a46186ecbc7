//! Copies that nobody uses until the masters have said that they are right. A disk may be away, out of service say, while a copy on it is
//! given up and made anew on another disk of the node (`docs/decisions/0129`): when it is back it still has what it had. Which of
//! the two is the node's, its masters know; until they have said it, such a copy is as good as not there.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use foundation::Epoch;
use volume::{ChunkId, ChunkRecord};

use super::{Copies, Copy};

/// How new a copy is. The masters name a node for a new copy of a chunk only after a configuration without the one before, so whichever
/// took part in anything later is the one that has a place; one that took part in nothing has nothing yet.
fn age(record: &ChunkRecord) -> (Epoch, Option<Epoch>, Epoch) {
    let configured = record.config.as_ref().map(|config| config.epoch);
    (record.sealed, configured, record.flushed_in)
}

/// Whether a copy has moved from where another one is, on the disk of this identity: a crash has left both, or a disk was away.
fn has_left(copy: &Copy, other: &Copy, disk: u128) -> bool {
    copy.from == Some((disk, other.blob))
}

/// Of two copies of a chunk the newer one, and the other; the second is on the disk of this identity. Where one has moved from where the other is, and
/// neither has taken part in anything since, they are equal: then the one that has moved.
pub(super) fn newer_of(found: Rc<Copy>, known: Option<(Rc<Copy>, u128)>) -> (Rc<Copy>, Option<Rc<Copy>>) {
    let Some((known, disk)) = known else {
        return (found, None);
    };
    let (found_age, known_age) = (age(&found.record.borrow()), age(&known.record.borrow()));
    match found_age > known_age || found_age == known_age && has_left(&found, &known, disk) {
        true => (found, Some(known)),
        false => (known, Some(found)),
    }
}

impl Copies {
    /// All that are not used, each with the identity of its disk; also those on the same disks whose records cannot be read.
    pub(crate) fn doubtful(&self) -> Vec<(ChunkId, u128)> {
        let doubtful = self.doubtful.borrow();
        let damaged = self.damaged.borrow();
        let unread = damaged
            .iter()
            .filter(|(_, (disk, _))| !self.disks[*disk].is_trusted);
        let unread = unread.map(|(chunk, (disk, _))| (*chunk, *disk));
        let all: BTreeSet<(ChunkId, usize)> = doubtful.keys().copied().chain(unread).collect();
        all.into_iter()
            .map(|(chunk, disk)| (chunk, self.disks[disk].uuid))
            .collect()
    }

    /// The newest of a chunk's that are not used.
    pub(super) fn newest_doubtful(&self, chunk: ChunkId) -> Option<Rc<Copy>> {
        let doubtful = self.doubtful.borrow();
        let of_chunk = doubtful.range((chunk, 0)..=(chunk, usize::MAX));
        let newest = of_chunk.max_by_key(|(_, copy)| age(&copy.record.borrow()))?;
        Some(newest.1.clone())
    }

    /// The latest epoch that any of them has sealed.
    pub(crate) fn sealed_in_doubt(&self, chunk: ChunkId) -> Option<Epoch> {
        Some(self.newest_doubtful(chunk)?.record.borrow().sealed)
    }

    /// The one on the disk of this identity is used from now on, unless another one is; its record then.
    pub(crate) fn adopt(&self, chunk: ChunkId, uuid: u128) -> Option<ChunkRecord> {
        if self.copies.borrow().contains_key(&chunk) {
            return None;
        }
        let disk = self.disks.iter().position(|disk| disk.uuid == uuid)?;
        let copy = self.doubtful.borrow_mut().remove(&(chunk, disk))?;
        self.copies.borrow_mut().insert(chunk, copy);
        self.record_of(chunk)
    }

    fn is_newer(&self, used: &Copy, copy: &Copy) -> bool {
        age(&used.record.borrow()) > age(&copy.record.borrow())
    }

    /// Whether one of two copies has moved from where the other is, and neither has taken part in anything since: then they are equal.
    fn is_move_of(&self, used: &Copy, copy: &Copy) -> bool {
        let disk = |copy: &Copy| self.disks[copy.disk].uuid;
        let are_alike = age(&used.record.borrow()) == age(&copy.record.borrow());
        are_alike && (has_left(used, copy, disk(copy)) || has_left(copy, used, disk(used)))
    }

    /// Ends the moves between disks that a crash has cut off when both copies were durable: of two equal ones the one that is not used goes.
    pub(super) async fn end_moves(&self) {
        let left = self.doubtful_where(|copies, _, used, copy| copies.is_move_of(used, copy));
        self.delete_doubtful(left).await;
    }

    /// Deletes the old copies of these chunks: those that are not used and are older than the one that is. What cannot be deleted
    /// durably stays in doubt, and its disk with it.
    pub(crate) async fn delete_old(&self, chunks: &BTreeSet<ChunkId>) {
        let old = self.doubtful_where(|copies, chunk, used, copy| {
            chunks.contains(&chunk) && (copies.is_newer(used, copy) || copies.is_move_of(used, copy))
        });
        self.delete_doubtful(old).await;
    }

    /// Copies that are not used, beside one of their chunk that is, for which this holds.
    fn doubtful_where(
        &self,
        holds: impl Fn(&Self, ChunkId, &Copy, &Copy) -> bool,
    ) -> Vec<(ChunkId, Rc<Copy>)> {
        let doubtful = self.doubtful.borrow();
        let found = doubtful.iter().filter(|((chunk, _), copy)| {
            let used = self.get(*chunk);
            used.is_some_and(|used| holds(self, *chunk, &used, copy))
        });
        found.map(|((chunk, _), copy)| (*chunk, copy.clone())).collect()
    }

    async fn delete_doubtful(&self, old: Vec<(ChunkId, Rc<Copy>)>) {
        let mut deleted: BTreeMap<usize, Vec<ChunkId>> = BTreeMap::new();
        for (chunk, copy) in old {
            let disk = &self.disks[copy.disk];
            let path = disk.path.display();
            match disk.store.delete(copy.blob).await {
                Ok(()) => deleted.entry(copy.disk).or_default().push(chunk),
                Err(error) => {
                    tracing::error!(?chunk, %path, %error, "an old copy stays on its disk: a newer one is on another");
                }
            }
        }
        for (disk, chunks) in deleted {
            let path = self.disks[disk].path.display();
            if let Err(error) = self.disks[disk].store.sync().await {
                tracing::error!(%path, %error, "old copies may come back with the next start");
                continue;
            }
            for chunk in chunks {
                self.doubtful.borrow_mut().remove(&(chunk, disk));
                tracing::warn!(?chunk, %path, "an old copy is deleted: a newer one is on another disk");
            }
        }
    }
}
