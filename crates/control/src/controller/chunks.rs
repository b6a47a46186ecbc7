//! Maps, and proposals of write nodes.

use std::collections::BTreeMap;

use foundation::Instant;

use crate::configuration::{Proposal, Standing, Verdict, judge, successor};
use crate::controller::force::EPOCH_MAX;
use crate::controller::{ATTEMPTS_MAX, Controller, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Node, Volume};
use crate::pace::Work;
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// How many copies that lacked are in sync with the next configuration. A copy more than there should be is of a move.
fn copies_mended(before: &Chunk, next: &Chunk, copies: usize) -> usize {
    let stay = before
        .members()
        .filter(|&(node, life)| next.has_member(node, life));
    let stay = stay.count();
    (next.member_count() - stay).min(copies.saturating_sub(stay))
}

impl<S: MetadataStore> Controller<S> {
    /// The committed configuration of a chunk.
    pub fn chunk(&self, id: ChunkId) -> Result<Chunk, ControlError> {
        match self.read::<Chunk>(&keys::chunk(id))? {
            Some(stored) => Ok(stored.record),
            None => Err(self.no_such_chunk(id)),
        }
    }

    /// The volume and its chunks from `first_chunk` on, at most `limit` of them.
    pub fn map(
        &self,
        number: VolumeNumber,
        first_chunk: u32,
        limit: usize,
    ) -> Result<(Volume, Vec<(ChunkId, Chunk)>), ControlError> {
        let volume = self.volume(number)?;
        let (first, end) = keys::chunks_of(number, first_chunk);
        let mut chunks = Vec::new();
        for entry in self.store.range(&first, &end, limit)? {
            let chunk = Chunk::decode(&entry.key, &entry.versioned.value)?;
            chunks.extend(keys::parse_chunk(&entry.key).map(|id| (id, chunk)));
        }
        Ok((volume, chunks))
    }

    /// Replaces a chunk's configuration as its write node proposes, if the epoch is still the one
    /// it was proposed for. Answers what is committed; repeating a committed proposal succeeds.
    pub fn propose(&mut self, id: ChunkId, proposal: &Proposal, now: Instant) -> Result<Chunk, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(volume) = self.read::<Volume>(&keys::volume(id.volume))? else {
                return Err(ControlError::NoSuchVolume { number: id.volume });
            };
            let key = keys::chunk(id);
            let Some(stored) = self.read::<Chunk>(&key)? else {
                return Err(self.no_such_chunk(id));
            };
            // A mistake, which is no reason to take the store for an old one.
            if proposal.expected.0 >= EPOCH_MAX {
                return Err(ControlError::Argument {
                    field: "expected_epoch",
                    problem: format!(
                        "is {}, which no chunk reaches; {id} is at epoch {}",
                        proposal.expected, stored.record.epoch
                    ),
                    remedy: "fetch the map and decide again",
                });
            }
            // Only a newer store can have told it of that.
            if proposal.expected > stored.record.epoch {
                self.found_older(now)?;
            }
            let nodes = self.standings_of(proposal, now)?;
            let minimum = volume.record.geometry.minimum;
            let next = match judge(id, &stored.record, minimum, proposal, &nodes)? {
                Verdict::Committed => return Ok(stored.record),
                Verdict::Commit(next) => next,
            };
            let mut transaction = Transaction::new();
            transaction.put(key.clone(), next.encode(&key));
            if !self.planted.is(Bug::ProposalUncompared) {
                transaction.compare(key.clone(), stored.revision);
            }
            if self.commit(&transaction)? {
                self.care.note(id, &next, &volume.record);
                let geometry = &volume.record.geometry;
                for _ in 0..copies_mended(&stored.record, &next, usize::from(geometry.copies)) {
                    self.pace.finished(Work::Mend(id.volume), geometry.chunk, now);
                }
                // A life may have ended while the proposal was on its way.
                if successor(&next, minimum, volume.record.write_pin, &nodes, 0).is_some() {
                    self.reconciler.look_at(id);
                }
                return Ok(next);
            }
        }
        Err(contended())
    }

    fn standings_of(
        &self,
        proposal: &Proposal,
        now: Instant,
    ) -> Result<BTreeMap<NodeId, Standing>, ControlError> {
        let mut standings = BTreeMap::new();
        for &(id, _) in &proposal.members {
            if let Some(stored) = self.read::<Node>(&keys::node(id))? {
                standings.insert(id, self.view(id, stored.record, now).standing());
            }
        }
        Ok(standings)
    }

    pub(super) fn no_such_chunk(&self, id: ChunkId) -> ControlError {
        match self.volume(id.volume) {
            Ok(volume) => ControlError::NoSuchChunk {
                chunk: id,
                chunks: volume.geometry.chunk_count(),
            },
            Err(error) => error,
        }
    }
}
