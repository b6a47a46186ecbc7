//! Copies that only another disk of their own node can take: in as many nodes as a chunk has copies, say, when a disk fails or is
//! drained. A node has one copy of a chunk at a time. A disk that works gives its copies to the others by and by, with nothing lacking
//! meanwhile (`docs/decisions/0145`). Else the old one is given up first, and then made anew like any that lacks (`docs/decisions/0129`).

use std::collections::BTreeSet;

use foundation::Instant;

use crate::controller::reconcile::spread;
use crate::controller::{Controller, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, NodeId};
use crate::model::{Chunk, Copy, Geometry, Volume};
use crate::placement::{Candidate, place_one, place_one_by_promises};
use crate::places::less;
use crate::store::MetadataStore;

/// The copy to give up, of a chunk that no other node has a better place for: one that is out, if its disk takes no copies any more and
/// another one of its node does; else, while no copy lacks, one in sync on such a disk, as long as enough are in sync without it
/// for writes to go on. Of nodes that `may` have such only.
pub(super) fn to_give_up(
    chunk: &Chunk,
    geometry: &Geometry,
    candidates: &[Candidate],
    may: impl Fn(NodeId) -> bool,
) -> Option<Copy> {
    let members = chunk.member_count();
    let may_go = |copy: &&Copy| match copy.incarnation {
        None => members < usize::from(geometry.copies),
        Some(_) => chunk.copies.len() == members && has_spare(members, geometry),
    };
    let mut copies: Vec<&Copy> = chunk.copies.iter().filter(may_go).collect();
    // That of the write node last: its writes have to be handed over.
    copies.sort_by_key(|copy| (copy.incarnation.is_some(), copy.node == chunk.write_node));
    let renewed = |copy: &&&Copy| {
        let on_node = || candidates.iter().filter(|place| place.node == copy.node);
        let stays = on_node().any(|place| place.disk == copy.disk);
        !stays && on_node().any(|place| has_room(place, geometry)) && may(copy.node)
    };
    copies.iter().find(renewed).map(|copy| **copy)
}

fn has_room(place: &Candidate, geometry: &Geometry) -> bool {
    place.of_promises().free() >= geometry.chunk.0
}

/// Whether a chunk with so many copies in sync can do with one less for a while.
pub(super) fn has_spare(members: usize, geometry: &Geometry) -> bool {
    members > usize::from(geometry.minimum) && members >= usize::from(geometry.copies)
}

impl<S: MetadataStore> Controller<S> {
    /// Whether a node gives up a copy to make it anew on another disk: one that would take the old one for the new one when its
    /// disk is back does not.
    pub(super) fn renews(&self, node: NodeId) -> bool {
        self.heard.get(&node).is_some_and(|heard| heard.doubts)
    }

    /// Whether copies of a volume may move between disks: what shares its blocks with a snapshot or with what it is a clone of does not.
    pub(super) fn may_change_disks(&self, volume: &Volume) -> bool {
        volume.origin.is_none() && !self.snapshots.has_any_of(volume.number)
    }

    /// Drained disks that work, of nodes that can move copies away from them.
    pub(super) fn givers(&self, now: Instant) -> Result<BTreeSet<(NodeId, DiskId)>, ControlError> {
        let drains: Vec<(NodeId, DiskId)> = self
            .care
            .drains()
            .filter_map(|(node, disk)| Some((node, disk?)))
            .collect();
        let mut givers = BTreeSet::new();
        if drains.is_empty() {
            return Ok(givers);
        }
        let nodes = self.nodes(now)?;
        for (node, disk) in drains {
            let has = nodes.get(&node).is_some_and(|view| view.record.has_disk(disk));
            if has && self.moves_disks(node) && !self.is_out_of_service(node, disk) {
                givers.insert((node, disk));
            }
        }
        Ok(givers)
    }

    /// The copy of a chunk that is to move from a drained disk to another one of its node, if there is one and no copy lacks; one of
    /// a node that moves none now, if any.
    pub(super) fn to_shift(
        &self,
        (id, volume, chunk): (ChunkId, &Volume, &Chunk),
        candidates: &[Candidate],
        givers: &BTreeSet<(NodeId, DiskId)>,
        now: Instant,
    ) -> Option<Copy> {
        let (geometry, members) = (&volume.geometry, chunk.member_count());
        let lacks = members != chunk.copies.len() || members < usize::from(geometry.copies);
        if lacks || self.disk_moves.has(id) || !self.may_change_disks(volume) {
            return None;
        }
        let has_room_beside = |copy: &Copy| {
            let mut on_node = candidates.iter().filter(|place| place.node == copy.node);
            on_node.any(|place| has_room(place, geometry))
        };
        let may_go = |copy: &&Copy| {
            givers.contains(&(copy.node, copy.disk))
                && self.disk_moves.left_alone(id, copy.node, now).is_none()
                && has_room_beside(copy)
        };
        let copies = chunk.copies.iter().filter(may_go);
        copies
            .min_by_key(|copy| self.disk_moves.has_of(copy.node))
            .copied()
    }

    /// Has a copy move to another disk of its node, if that moves no other one now. Else it waits for its turn.
    pub(super) fn shift(
        &mut self,
        id: ChunkId,
        volume: &Stored<Volume>,
        stored: &Stored<Chunk>,
        copy: Copy,
        candidates: &mut [Candidate],
    ) -> Result<(), ControlError> {
        if self.disk_moves.has_of(copy.node) {
            self.disk_moves.await_turn(copy.node, id);
            return Ok(());
        }
        let bytes = volume.record.geometry.chunk;
        let may = |node: NodeId| (node == copy.node).then_some(0);
        let mut place = place_one(candidates, bytes, &mut self.random, may);
        if place.is_none() {
            place = place_one_by_promises(candidates, bytes, &mut self.random, may);
        }
        if let Some((node, to)) = place {
            self.begin_disk_move(id, volume, stored, (node, copy.disk, to))?;
        }
        Ok(())
    }

    /// Gives up a copy of a chunk so that its node can make it anew on another disk, for which the room there is taken.
    pub(super) fn give_up(
        &mut self,
        id: ChunkId,
        volume: &Stored<Volume>,
        stored: &Stored<Chunk>,
        copy: Copy,
        candidates: &mut [Candidate],
        now: Instant,
    ) -> Result<(), ControlError> {
        let geometry = &volume.record.geometry;
        let work = self.care.work_of(&copy, None);
        let next = less(&stored.record, &[copy], volume.record.write_pin, spread(id));
        let bytes = geometry.chunk;
        if self.commit_places_of(id, volume.revision, stored, &next, None, &[copy], bytes.0)? {
            hold_room(candidates, copy.node, geometry);
            // It counts as being filled, so that few chunks have a copy less at a time.
            self.care.looked_at(id, now, true);
            self.care.given_up.insert(id, copy.node);
            if let Some(work) = work {
                self.pace.finished(work, bytes, now);
            }
        }
        Ok(())
    }
}

/// A copy of a chunk will come to this node: its room is given to no other.
pub(super) fn hold_room(candidates: &mut [Candidate], node: NodeId, geometry: &Geometry) {
    let mut on_node = candidates.iter_mut().filter(|place| place.node == node);
    if let Some(place) = on_node.find(|place| has_room(place, geometry)) {
        place.allocated.0 += geometry.chunk.0;
    }
}

#[cfg(test)]
mod tests {
    use foundation::{ByteCount, Epoch};

    use super::*;
    use crate::identity::{DiskId, Incarnation, Uuid};

    const CHUNK: ByteCount = ByteCount(1 << 20);

    /// Copies on the first disks of nodes 1, 2, ...; those with 0 are out of sync.
    fn chunk(incarnations: &[u64]) -> Chunk {
        let copies = incarnations.iter().zip(1u128..).map(|(&life, number)| Copy {
            node: NodeId(Uuid(number)),
            disk: DiskId(Uuid(number * 10)),
            incarnation: (life > 0).then_some(Incarnation(life)),
        });
        Chunk {
            epoch: Epoch(5),
            write_node: NodeId(Uuid(1)),
            copies: copies.collect(),
            recovery: false,
        }
    }

    fn geometry(copies: u8, minimum: u8) -> Geometry {
        Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit: CHUNK,
            chunk: CHUNK,
            region: CHUNK,
            copies,
            minimum,
            group_chunks: vec![1],
        }
    }

    /// Disks that may take copies: node, which of its disks, and chunks for which there is room.
    fn candidates(disks: &[(u128, u128, u64)]) -> Vec<Candidate> {
        let candidate = |&(node, disk, room): &(u128, u128, u64)| Candidate {
            node: NodeId(Uuid(node)),
            disk: DiskId(Uuid(node * 10 + disk)),
            capacity: ByteCount(CHUNK.0 * 8),
            allocated: ByteCount(CHUNK.0 * (8 - room)),
            held: ByteCount(0),
        };
        disks.iter().map(candidate).collect()
    }

    fn given_up(lives: &[u64], minimum: u8, disks: &[(u128, u128, u64)]) -> Option<u128> {
        let found = to_give_up(&chunk(lives), &geometry(3, minimum), &candidates(disks), |node| {
            node.0.0 < 9
        });
        found.map(|copy| copy.node.0.0)
    }

    #[test]
    fn a_copy_that_is_out_is_given_up_for_another_disk_of_its_node_with_room() {
        let well = [(1, 0, 1), (2, 0, 1)];
        let with = |third: &[(u128, u128, u64)]| [&well[..], third].concat();
        assert_eq!(given_up(&[1, 1, 0], 2, &with(&[(3, 1, 1)])), Some(3));
        assert_eq!(given_up(&[1, 1, 0], 2, &with(&[(3, 1, 0)])), None, "no room");
        assert_eq!(given_up(&[1, 1, 0], 2, &with(&[])), None, "no other disk");
        // Its own disk takes copies: it is only late.
        assert_eq!(given_up(&[1, 1, 0], 2, &with(&[(3, 0, 1), (3, 1, 1)])), None);
        // Also the last but one: the copy in sync has everything.
        assert_eq!(
            given_up(&[1, 0, 0], 2, &[(1, 0, 1), (2, 1, 1), (3, 1, 1)]),
            Some(2)
        );
    }

    #[test]
    fn a_copy_in_sync_is_given_up_only_where_writes_go_on_without_it() {
        let drained = [(1, 1, 1), (2, 0, 1), (3, 1, 1)];
        assert_eq!(given_up(&[1, 1, 1], 2, &drained), Some(3), "the write node last");
        assert_eq!(given_up(&[1, 1, 1], 3, &drained), None, "all are needed");
        assert_eq!(
            given_up(&[1, 1, 0], 2, &[(1, 1, 1), (2, 0, 1)]),
            None,
            "one lacks"
        );
        assert_eq!(given_up(&[1, 1, 1], 2, &[(1, 0, 1), (2, 0, 1), (3, 0, 1)]), None);
    }
}
