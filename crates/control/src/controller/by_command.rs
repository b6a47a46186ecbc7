//! Single moves of copies, and other write nodes, by command.

use foundation::Instant;

use crate::controller::{Controller, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, NodeId};
use crate::keys;
use crate::model::{Chunk, Moving, Volume};
use crate::places::handed_over;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

impl<S: MetadataStore> Controller<S> {
    /// Moves the copy of a chunk from one node to another. Refused unless all copies are in sync and alive and nothing else
    /// moves there: a chunk never has fewer copies in sync than before.
    pub fn move_copy(
        &mut self,
        name: &str,
        index: u32,
        from: NodeId,
        to: NodeId,
        now: Instant,
    ) -> Result<Moving, ControlError> {
        let (id, volume, stored) = self.chunk_to_change(name, index)?;
        let moving = Moving {
            from,
            to,
            by_command: true,
        };
        let refused = |why: String| ControlError::MoveRefused { chunk: id, why };
        let chunk = &stored.record;
        if let Some(known) = self.care.moves.get(&id) {
            return match (known.from, known.to) == (from, to) {
                true => Ok(*known),
                false => Err(refused(format!(
                    "its copy on node {} is on its way to node {} already; wait until it is there",
                    known.from, known.to
                ))),
            };
        }
        if self.disk_moves.has(id) {
            return Err(refused(
                "one of its copies is on its way to another disk of its node; wait until it is there"
                    .to_owned(),
            ));
        }
        if !chunk.has_copy_on(from) {
            return Err(refused(format!(
                "node {from} has no copy of it; \"redhare volume show\" names those that have"
            )));
        }
        if chunk.has_copy_on(to) {
            return Err(refused(format!(
                "node {to} has a copy of it already, and two on one node would be lost together; name another node"
            )));
        }
        let racks = self.racks(now)?;
        let spread = racks.spread_of(&volume.record);
        let others = || {
            chunk
                .copies
                .iter()
                .map(|copy| copy.node)
                .filter(|other| *other != from)
        };
        let is_worse = racks.crowd(spread, to, others()) > racks.crowd(spread, from, others());
        if is_worse && !racks.are_few_for(&volume.record) {
            return Err(refused(format!(
                "the rack of node {to} has another copy of it already, and two in one rack would be lost together; name a node in another rack"
            )));
        }
        if volume.record.write_pin == Some(from) {
            return Err(refused(format!(
                "the volume's writes are pinned to node {from}; pin them to another node first"
            )));
        }
        let standings = self.standings(now)?;
        if !self.is_right(id, chunk, &volume.record, &standings, now) {
            let (members, copies) = (chunk.member_count(), volume.record.geometry.copies);
            return Err(refused(format!(
                "{members} of its {copies} copies are in sync, or one of them is not alive or on its way; wait until \"redhare volume show\" \
                 shows all of them in sync"
            )));
        }
        let mut candidates = self.candidates(now)?;
        if !candidates.iter().any(|candidate| candidate.node == to) {
            return Err(refused(format!(
                "node {to} is not alive, is drained, or has no disk; name a living node"
            )));
        }
        if self.care.is_removing(to, id) {
            return Err(refused(format!(
                "node {to} has still to delete the copy that it had; try again in some seconds, or name another node"
            )));
        }
        if self.begin_move(id, &volume, &stored, moving, &mut candidates)? {
            return Ok(moving);
        }
        Err(refused(format!(
            "no disk of node {to} has {} left, or another change was quicker; name another node, or try again",
            volume.record.geometry.chunk
        )))
    }

    /// Has another in-sync copy order the writes of a chunk, from now on. The node stays write node until it is gone.
    pub fn move_writes(
        &mut self,
        name: &str,
        index: u32,
        to: NodeId,
        now: Instant,
    ) -> Result<Chunk, ControlError> {
        let (id, volume, stored) = self.chunk_to_change(name, index)?;
        let refused = |why: String| ControlError::MoveRefused { chunk: id, why };
        let chunk = &stored.record;
        if chunk.write_node == to {
            return Ok(stored.record);
        }
        if volume.record.write_pin.is_some_and(|pin| pin != to) {
            return Err(refused(
                "the volume's writes are pinned to another node; pin them to this one, or unpin them"
                    .to_owned(),
            ));
        }
        if !chunk.members().any(|(node, _)| node == to) {
            return Err(refused(format!(
                "node {to} has no copy of it in sync; \"redhare volume show\" names those that have"
            )));
        }
        let standings = self.standings(now)?;
        let lives = |(node, life)| {
            standings.get(&node).is_some_and(|standing| {
                standing.is_heard && standing.incarnation == life && standing.ended_through < life
            })
        };
        // With a member that is gone the new one could not begin, and reads would stop for nothing.
        if !chunk.members().all(lives) {
            return Err(refused(
                "a copy in sync is not alive; wait until it is left out or back".to_owned(),
            ));
        }
        let next = handed_over(chunk, to);
        let key = keys::chunk(id);
        let mut transaction = Transaction::new();
        transaction.compare(keys::volume(id.volume), volume.revision);
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), next.encode(&key));
        match self.commit(&transaction)? {
            true => Ok(next),
            false => Err(refused("another change was quicker; try again".to_owned())),
        }
    }

    /// Pins the writes of a volume to a node, or unpins them. The node must have a copy of every chunk; the writes move to
    /// it chunk by chunk, as far as its copies are in sync.
    pub fn pin_writes(&mut self, name: &str, pin: Option<NodeId>) -> Result<Volume, ControlError> {
        let number = self.volume_named(name)?.number;
        let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
            return Err(ControlError::NoSuchVolume { number });
        };
        if let Some(node) = pin {
            let (first, end) = keys::chunks_of(number, 0);
            let (mut there, mut chunks) = (0u32, 0u32);
            self.read_range::<Chunk>(first, &end, |_, stored| {
                there += u32::from(stored.record.has_copy_on(node));
                chunks += 1;
            })?;
            if there < chunks || chunks == 0 {
                return Err(ControlError::PinWithoutCopies {
                    name: name.to_owned(),
                    node,
                    there,
                    chunks,
                });
            }
        }
        let mut volume = stored.record;
        if volume.write_pin != pin {
            volume.write_pin = pin;
            let key = keys::volume(number);
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), stored.revision)
                .put(key.clone(), volume.encode(&key));
            if !self.commit(&transaction)? {
                return Err(super::contended());
            }
            // Its chunks are looked at with the next ticks.
            for index in 0..volume.geometry.chunk_count() {
                self.reconciler.look_at(ChunkId {
                    volume: number,
                    index,
                });
            }
            self.care.hurry();
        }
        Ok(volume)
    }

    fn chunk_to_change(
        &mut self,
        name: &str,
        index: u32,
    ) -> Result<(ChunkId, Stored<Volume>, Stored<Chunk>), ControlError> {
        self.note_drains()?;
        let number = self.volume_named(name)?.number;
        let id = ChunkId {
            volume: number,
            index,
        };
        let Some(volume) = self.read::<Volume>(&keys::volume(number))? else {
            return Err(ControlError::NoSuchVolume { number });
        };
        let chunks = volume.record.geometry.chunk_count();
        match self.read::<Chunk>(&keys::chunk(id))? {
            Some(stored) if index < chunks => Ok((id, volume, stored)),
            _ => Err(ControlError::NoSuchChunk { chunk: id, chunks }),
        }
    }
}
