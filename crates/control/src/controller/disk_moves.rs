//! Copies that move to another disk of their node (`docs/decisions/0145`): the records of those under way, and what nodes say came of them.
//! Which copies move is decided in `disk_balance.rs` and, of drained disks, in `siblings.rs`.
//!
//! A place says where a copy comes from until its node has said that it is on the other disk. Then one transaction changes the
//! place, with the same epoch: the members and their write node are the same. Until then the room on the other disk is promised, too.
//!
//! A record ends with what the node says, or with the place of its copy. Nobody else knows where the copy is, so a record whose node is
//! silent, or has begun another life, stays, and the node is told again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::Instant;

use crate::controller::{Controller, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, NodeId};
use crate::keys;
use crate::model::{Chunk, Copy, DiskMove, Volume};
use crate::pace::Work;
use crate::record::Record;
use crate::store::{MetadataStore, Operation, Transaction};

/// A copy that its node could not move is not tried again for so long.
pub(super) const LEFT_ALONE: Duration = Duration::from_secs(600);
/// Of the chunks that wait for a node to move another copy so many are looked at when that has ended.
const NEXT_MAX: usize = 4;

/// What came of a copy that a node was told to move to another of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedCopy {
    /// The chunk.
    pub chunk: ChunkId,
    /// Where its copy was to go.
    pub disk: DiskId,
    /// Why it is not there, for people; none if it is, durably.
    pub why: Option<String>,
}

/// A copy that is being moved to another disk of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskMoveStatus {
    /// The chunk.
    pub chunk: ChunkId,
    /// From where to where.
    pub moving: DiskMove,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DiskMoves {
    /// As the store has them.
    moves: BTreeMap<ChunkId, DiskMove>,
    /// Those of each node.
    nodes: BTreeMap<NodeId, BTreeSet<ChunkId>>,
    /// Those whose chunks have changed since they were looked at.
    changed: BTreeSet<ChunkId>,
    /// Copies that their nodes could not move, and when they said so.
    refused: BTreeMap<(ChunkId, NodeId), Instant>,
    /// Chunks with a copy on a drained disk that wait until their node has moved another one.
    waiting: BTreeMap<NodeId, BTreeSet<ChunkId>>,
}

impl DiskMoves {
    fn insert(&mut self, id: ChunkId, moving: DiskMove) {
        self.remove(id);
        self.moves.insert(id, moving);
        self.nodes.entry(moving.node).or_default().insert(id);
    }

    fn remove(&mut self, id: ChunkId) {
        self.changed.remove(&id);
        let Some(moving) = self.moves.remove(&id) else {
            return;
        };
        if let Some(of_node) = self.nodes.get_mut(&moving.node) {
            of_node.remove(&id);
            if of_node.is_empty() {
                self.nodes.remove(&moving.node);
            }
        }
    }

    /// What was committed of them, or of their chunks.
    pub(super) fn committed(&mut self, operation: &Operation) -> Result<(), ControlError> {
        let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
        if let Some(id) = keys::parse_chunk(key) {
            if self.moves.contains_key(&id) {
                self.changed.insert(id);
            }
        } else if let Some(id) = keys::parse_disk_move(key) {
            match operation {
                Operation::Put { key, value } => self.insert(id, DiskMove::decode(key, value)?),
                Operation::Delete { .. } => self.remove(id),
            }
        }
        Ok(())
    }

    /// Somebody else has changed the store: nothing of it is known.
    pub(super) fn look_again(&mut self) {
        self.moves.clear();
        self.nodes.clear();
        self.changed.clear();
    }

    /// All that are under way.
    pub(super) fn all(&self) -> impl Iterator<Item = (ChunkId, DiskMove)> + '_ {
        self.moves.iter().map(|(id, moving)| (*id, *moving))
    }

    /// Whether none is.
    pub(super) fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Whether a copy of this chunk is on its way.
    pub(super) fn has(&self, id: ChunkId) -> bool {
        self.moves.contains_key(&id)
    }

    /// The chunks of which a copy comes to this disk of a node, with its bytes.
    pub(super) fn coming(&self, node: NodeId, disk: DiskId) -> impl Iterator<Item = DiskMove> + '_ {
        let moves = self.moves.values().copied();
        moves.filter(move |moving| (moving.node, moving.to) == (node, disk))
    }

    /// Whether its copy on this disk of a node is.
    pub(super) fn leaves(&self, id: ChunkId, node: NodeId, disk: Option<DiskId>) -> bool {
        let moving = self.moves.get(&id);
        moving.is_some_and(|moving| (moving.node, Some(moving.from)) == (node, disk))
    }

    /// Whether any copy of a node is.
    pub(super) fn has_of(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The copies that a node has to move, and where to.
    pub(super) fn wishes_of(&self, node: NodeId) -> Vec<(ChunkId, DiskId)> {
        let of_node = self.nodes.get(&node).into_iter().flatten();
        let wish = |id: &ChunkId| Some((*id, self.moves.get(id)?.to));
        of_node.filter_map(wish).collect()
    }

    /// Until when a copy is left alone that its node could not move; none for any other.
    pub(super) fn left_alone(&self, id: ChunkId, node: NodeId, now: Instant) -> Option<Instant> {
        let until = *self.refused.get(&(id, node))? + LEFT_ALONE;
        Some(until).filter(|until| now < *until)
    }

    /// A chunk with a copy on a drained disk waits until its node has moved another one.
    pub(super) fn await_turn(&mut self, node: NodeId, id: ChunkId) {
        self.waiting.entry(node).or_default().insert(id);
    }

    fn next_of(&mut self, node: NodeId) -> Vec<ChunkId> {
        let Some(waiting) = self.waiting.get_mut(&node) else {
            return Vec::new();
        };
        let next = (0..NEXT_MAX).map_while(|_| waiting.pop_first()).collect();
        if waiting.is_empty() {
            self.waiting.remove(&node);
        }
        next
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Whether a node's target moves copies between its disks, as it said last.
    pub(super) fn moves_disks(&self, node: NodeId) -> bool {
        self.heard.get(&node).is_some_and(|heard| heard.moves_disks)
    }

    /// Whether a copy of this chunk is on its way to another disk of a node that can say what comes of it.
    pub(super) fn awaits_disk_move(&self, id: ChunkId) -> bool {
        let moving = self.disk_moves.moves.get(&id);
        moving.is_some_and(|moving| self.moves_disks(moving.node))
    }

    pub(super) fn read_disk_moves(&self) -> Result<BTreeMap<ChunkId, DiskMove>, ControlError> {
        let mut moves = BTreeMap::new();
        let end = keys::end_of(keys::DISK_MOVES);
        self.read_range::<DiskMove>(keys::DISK_MOVES.to_vec(), &end, |key, stored| {
            moves.extend(keys::parse_disk_move(key).map(|id| (id, stored.record)));
        })?;
        Ok(moves)
    }

    /// Reads which copies move between disks, also those of which another master has decided.
    pub(super) fn note_disk_moves(&mut self) -> Result<(), ControlError> {
        let moves = self.read_disk_moves()?;
        let known: Vec<ChunkId> = self.disk_moves.moves.keys().copied().collect();
        for id in known.into_iter().filter(|id| !moves.contains_key(id)) {
            self.disk_moves.remove(id);
        }
        for (id, moving) in moves {
            // What is new to this master may be of a chunk that has changed since.
            if self.disk_moves.moves.get(&id) != Some(&moving) {
                self.disk_moves.insert(id, moving);
                self.disk_moves.changed.insert(id);
            }
        }
        Ok(())
    }

    /// Has a node move its copy of a chunk to another of its disks, for which the room there is promised; false if another change was
    /// quicker.
    pub(super) fn begin_disk_move(
        &mut self,
        id: ChunkId,
        volume: &Stored<Volume>,
        stored: &Stored<Chunk>,
        (node, from, to): (NodeId, DiskId, DiskId),
    ) -> Result<bool, ControlError> {
        let bytes = volume.record.geometry.chunk;
        let moving = DiskMove {
            node,
            from,
            to,
            bytes,
        };
        let key = keys::disk_move(id);
        let mut transaction = Transaction::new();
        transaction
            .compare(keys::volume(id.volume), volume.revision)
            .compare(keys::chunk(id), stored.revision)
            .compare(key.clone(), 0)
            .put(key.clone(), moving.encode(&key));
        self.add_allocation(&mut transaction, node, to, |allocated| {
            allocated.saturating_add(bytes.0)
        })?;
        self.commit(&transaction)
    }

    /// A node says what came of copies that it was told to move. What is said of anything but a record that there is, is of before.
    pub(super) fn take_moved(
        &mut self,
        node: NodeId,
        moved: &[MovedCopy],
        now: Instant,
    ) -> Result<(), ControlError> {
        for MovedCopy { chunk, disk, why } in moved {
            let known = self.disk_moves.moves.get(chunk);
            if known.is_some_and(|moving| (moving.node, moving.to) == (node, *disk)) {
                // If another change is quicker, the node says it again.
                self.end_disk_move(*chunk, why.is_none(), now)?;
            }
        }
        Ok(())
    }

    /// Drops the records whose chunks have changed such that the copy has lost its place: it goes with that.
    pub(super) fn look_after_disk_moves(&mut self, now: Instant) -> Result<(), ControlError> {
        self.disk_moves
            .refused
            .retain(|_, since| now.since(*since) < LEFT_ALONE);
        for id in self.disk_moves.changed.iter().copied().collect::<Vec<_>>() {
            let stored = self.read::<Chunk>(&keys::chunk(id))?;
            let moving = self.disk_moves.moves.get(&id);
            let stays = stored
                .zip(moving)
                .is_some_and(|(stored, moving)| moving.is_of(&stored.record));
            if stays || self.end_disk_move(id, false, now)? {
                self.disk_moves.changed.remove(&id);
            }
        }
        Ok(())
    }

    /// Ends a move: with the copy on the other disk, or with its place as it is. False if another change was quicker.
    fn end_disk_move(&mut self, id: ChunkId, is_there: bool, now: Instant) -> Result<bool, ControlError> {
        let (key, chunk_key) = (keys::disk_move(id), keys::chunk(id));
        let record = self.read::<DiskMove>(&key)?;
        let known = self.disk_moves.moves.get(&id);
        let is_known = |record: &Stored<DiskMove>| known == Some(&record.record);
        let Some(record) = record.filter(is_known) else {
            // Another master has decided otherwise: whatever it is, it is looked at.
            self.note_disk_moves()?;
            return Ok(false);
        };
        let moving = record.record;
        let stored = self.read::<Chunk>(&chunk_key)?;
        let revision = stored.as_ref().map_or(0, |stored| stored.revision);
        let stored = stored.filter(|stored| moving.is_of(&stored.record));
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), record.revision)
            .compare(chunk_key.clone(), revision)
            .delete(key);
        let has_place = stored.is_some();
        let moved = stored.filter(|_| is_there).map(|stored| stored.record);
        let given_back = match &moved {
            Some(chunk) => {
                let is_it = |copy: &Copy| copy.node == moving.node;
                let place = |copy: &Copy| match is_it(copy) {
                    true => Copy {
                        disk: moving.to,
                        ..*copy
                    },
                    false => *copy,
                };
                let next = Chunk {
                    copies: chunk.copies.iter().map(place).collect(),
                    ..chunk.clone()
                };
                transaction.put(chunk_key.clone(), next.encode(&chunk_key));
                moving.from
            }
            None => moving.to,
        };
        self.add_allocation(&mut transaction, moving.node, given_back, |allocated| {
            allocated.saturating_sub(moving.bytes.0)
        })?;
        if !self.commit(&transaction)? {
            return Ok(false);
        }
        if moved.is_some() && self.care.is_drained(moving.node, Some(moving.to)) {
            // It has come to where nothing is to be.
            self.care.look_at(id);
        }
        if moved.is_some() {
            self.disk_moves.refused.remove(&(id, moving.node));
            if self.care.is_drained(moving.node, Some(moving.from)) {
                self.pace.finished(Work::Drain(moving.node), moving.bytes, now);
            }
        } else if has_place {
            self.disk_moves.refused.insert((id, moving.node), now);
        }
        // The next one of its disks may go.
        for next in self.disk_moves.next_of(moving.node).into_iter().chain([id]) {
            self.care.changed(next);
        }
        self.care.look_soon();
        Ok(true)
    }
}
