//! Which copies of snapshots a node has to make, and which it may let go (`docs/decisions/0090`).
//!
//! A complete snapshot belongs to every node that has its chunk's copy in sync. What such a node lacks it makes from any other
//! node's: a snapshot never changes, so whoever has it has it right. A node whose chunk's copy has gone elsewhere keeps its copy of
//! the snapshot until as many others have one as there should be.
//!
//! *Why the last copies never go.* A copy that is to go first *leaves*: it counts for nobody any more. Only then are the others asked,
//! and only those count that have a copy and do not leave. Of all copies that went, take the one that began to leave last. Whoever
//! counted for it has its copy still, or began to leave later and went, which none did. So as many are left as were counted,
//! whatever anybody knows of the chunk's configuration.
//!
//! An answer counts for the attempt that asked for it: one to an earlier attempt may come from a copy that has counted this one
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use foundation::KeptCopies;

use crate::identity::{ChunkId, NodeId, SnapshotId, VolumeNumber};
use crate::planted::{Bug, Planted};

/// A node's copy of one chunk's part in a snapshot.
pub type SnapshotCopy = (ChunkId, SnapshotId);

/// An attempt to let a copy go.
#[derive(Debug)]
struct Leaving {
    attempt: u64,
    /// Who has a copy that stays.
    others: BTreeSet<NodeId>,
}

/// What one life of a node knows of the snapshots that are to be kept. What it has itself it is told with each question.
#[derive(Debug, Default)]
pub struct Keeper {
    /// Complete snapshots, and how many chunks the volume had.
    complete: BTreeMap<(VolumeNumber, SnapshotId), u32>,
    leaving: BTreeMap<SnapshotCopy, Leaving>,
    attempts: u64,
    planted: Planted,
}

impl Keeper {
    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// All complete snapshots, as the masters say, with the number of chunks of each.
    pub fn learn(&mut self, complete: impl IntoIterator<Item = ((VolumeNumber, SnapshotId), u32)>) {
        self.complete = complete.into_iter().collect();
    }

    /// Whether any snapshot is known that is to be kept.
    pub fn is_idle(&self) -> bool {
        self.complete.is_empty()
    }

    /// Whether a copy is of a complete snapshot.
    pub fn is_complete(&self, (chunk, snapshot): SnapshotCopy) -> bool {
        let chunks = self.complete.get(&(chunk.volume, snapshot));
        chunks.is_some_and(|chunks| chunk.index.0 < *chunks)
    }

    /// Of chunks whose copies are in sync here: the copies that are lacking, the oldest of each chunk first, and those that are here.
    pub fn look(
        &self,
        in_sync: impl IntoIterator<Item = ChunkId>,
        holds: impl Fn(SnapshotCopy) -> bool,
    ) -> (Vec<SnapshotCopy>, KeptCopies) {
        let (mut lacking, mut here) = (Vec::new(), KeptCopies::default());
        for chunk in in_sync {
            let mut held = 0;
            for copy in self.belonging(chunk) {
                match holds(copy) {
                    true => held += 1,
                    false => lacking.push(copy),
                }
            }
            here.note(chunk.volume.0, chunk.index.0, held);
        }
        (lacking, here)
    }

    /// The copies that belong beside this chunk's; oldest first.
    fn belonging(&self, chunk: ChunkId) -> impl Iterator<Item = SnapshotCopy> + '_ {
        let of_volume = (chunk.volume, SnapshotId(0))..=(chunk.volume, SnapshotId(u64::MAX));
        let of_volume = self.complete.range(of_volume);
        let of_chunk = of_volume.filter(move |(_, chunks)| chunk.index.0 < **chunks);
        of_chunk.map(move |((_, snapshot), _)| (chunk, *snapshot))
    }

    /// Begins to let a copy go that is here, of a chunk that has no copy here: from now on it counts for nobody. The attempt's number,
    /// for the answers; none if its snapshot is not known to be complete, or it leaves already.
    pub fn begin_to_leave(&mut self, copy: SnapshotCopy) -> Option<u64> {
        if !self.is_complete(copy) || self.leaving.contains_key(&copy) {
            return None;
        }
        self.attempts += 1;
        let leaving = Leaving {
            attempt: self.attempts,
            others: BTreeSet::new(),
        };
        self.leaving.insert(copy, leaving);
        Some(self.attempts)
    }

    /// What another node is told that asks whether it may count this node's copy, which is durable here.
    pub fn counts(&self, copy: SnapshotCopy) -> bool {
        !self.leaving.contains_key(&copy) || self.planted.is(Bug::LeavingCopyCounts)
    }

    /// A node that was asked in this attempt has a copy that counts.
    pub fn heard(&mut self, copy: SnapshotCopy, attempt: u64, from: NodeId) {
        if let Some(leaving) = self.leaving.get_mut(&copy)
            && leaving.attempt == attempt
        {
            leaving.others.insert(from);
        }
    }

    /// Whether as many others have a copy as there should be, so that this one may be deleted. It goes on leaving until
    /// [`Keeper::stays`] or [`Keeper::has_gone`].
    pub fn may_go(&self, copy: SnapshotCopy, attempt: u64, copies: usize) -> bool {
        let Some(leaving) = self.leaving.get(&copy) else {
            return false;
        };
        let enough = leaving.others.len() >= copies.max(1);
        leaving.attempt == attempt && (enough || self.planted.is(Bug::SnapshotLeavesUnasked))
    }

    /// A copy does not go for now: it counts again.
    pub fn stays(&mut self, copy: SnapshotCopy) {
        self.leaving.remove(&copy);
    }

    /// A copy is here no more.
    pub fn has_gone(&mut self, copy: SnapshotCopy) {
        self.leaving.remove(&copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ChunkIndex;

    fn chunk(index: u32) -> ChunkId {
        ChunkId {
            volume: VolumeNumber(3),
            index: ChunkIndex(index),
        }
    }

    fn keeper() -> Keeper {
        let mut keeper = Keeper::default();
        let snapshot = |number, chunks| ((VolumeNumber(3), SnapshotId(number)), chunks);
        keeper.learn([snapshot(7, 2), snapshot(9, 3)]);
        keeper
    }

    #[test]
    fn what_belongs_beside_a_chunk_is_what_is_complete_and_has_it() {
        let keeper = keeper();
        let belonging = |index| -> Vec<u64> {
            let all = keeper.belonging(chunk(index));
            all.map(|(_, snapshot)| snapshot.0).collect()
        };
        assert_eq!(belonging(1), [7, 9]);
        // The volume has grown between the two, and again since.
        assert_eq!(belonging(2), [9]);
        assert_eq!(belonging(3), [] as [u64; 0]);
    }

    #[test]
    fn what_is_here_is_told_from_what_is_lacking() {
        let keeper = keeper();
        let here = [(chunk(0), SnapshotId(7)), (chunk(2), SnapshotId(9))];
        let (lacking, kept) = keeper.look([0, 2, 3].map(chunk), |copy| here.contains(&copy));
        assert_eq!(lacking, [(chunk(0), SnapshotId(9))]);
        let mut same = KeptCopies::default();
        same.note(3, 2, 1);
        same.note(3, 0, 1);
        assert_eq!(kept, same);
    }

    #[test]
    fn a_copy_goes_when_enough_others_answered_this_attempt() {
        let mut keeper = keeper();
        let copy = (chunk(0), SnapshotId(9));
        assert_eq!(keeper.begin_to_leave((chunk(0), SnapshotId(8))), None);
        assert!(keeper.counts(copy));
        let first = keeper.begin_to_leave(copy).unwrap();
        assert!(!keeper.counts(copy) && keeper.begin_to_leave(copy).is_none());
        keeper.heard(copy, first, NodeId(1));
        keeper.heard(copy, first, NodeId(1));
        assert!(keeper.may_go(copy, first, 1) && !keeper.may_go(copy, first, 2));
        keeper.stays(copy);
        assert!(keeper.counts(copy));
        // Who answered then may have counted this copy since.
        let second = keeper.begin_to_leave(copy).unwrap();
        keeper.heard(copy, first, NodeId(1));
        keeper.heard(copy, second, NodeId(2));
        assert!(!keeper.may_go(copy, second, 2) && !keeper.may_go(copy, first, 0));
        keeper.heard(copy, second, NodeId(3));
        assert!(keeper.may_go(copy, second, 2));
    }
}
