//! What the masters do of themselves, as time goes on.

use foundation::Instant;

use crate::configuration::successor;
use crate::controller::{Controller, PAGE};
use crate::error::ControlError;
use crate::identity::{ChunkId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Volume};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// A configuration to be committed.
struct Step {
    key: Vec<u8>,
    /// The revision of the record it was decided on.
    revision: u64,
    next: Chunk,
}

impl<S: MetadataStore> Controller<S> {
    /// Leaves out what is gone, recovers what has returned, and brings volumes on. To be called
    /// every fraction of the heartbeat timeout; costs little when nothing happened. True when it
    /// committed something.
    pub fn tick(&mut self, now: Instant) -> Result<bool, ControlError> {
        let before = self.store.revision()?;
        self.changes.seen(before);
        if now.since(self.audited) >= self.settings.audit_interval {
            self.audited = now;
            self.reconciled = None;
            self.note_unfinished()?;
            self.forget_readers(now)?;
        }
        let standings = self.standings(now)?;
        if self.reconciled.as_ref() != Some(&standings) {
            // Set first: a lost comparison below asks for another look.
            self.reconciled = Some(standings.clone());
            if let Err(error) = self.reconcile(&standings) {
                self.reconciled = None;
                return Err(error);
            }
        }
        self.bring_volumes_on(now)?;
        self.look_after_places(&standings, now)?;
        self.rebalance(&standings, now)?;
        Ok(self.changes.end() != before)
    }

    fn reconcile(
        &mut self,
        standings: &std::collections::BTreeMap<crate::NodeId, crate::configuration::Standing>,
    ) -> Result<(), ControlError> {
        let end = keys::end_of(keys::CHUNKS);
        let mut first = keys::CHUNKS.to_vec();
        let mut volume: Option<(VolumeNumber, Option<Volume>)> = None;
        loop {
            let entries = self.store.range(&first, &end, PAGE)?;
            let mut steps = Vec::new();
            for entry in &entries {
                let Some(id) = keys::parse_chunk(&entry.key) else {
                    continue;
                };
                if volume.as_ref().is_none_or(|(number, _)| *number != id.volume) {
                    let stored = self.read::<Volume>(&keys::volume(id.volume))?;
                    volume = Some((id.volume, stored.map(|stored| stored.record)));
                }
                let Some((_, Some(volume))) = &volume else {
                    continue;
                };
                let chunk = Chunk::decode(&entry.key, &entry.versioned.value)?;
                let minimum = volume.geometry.minimum;
                self.care.note(id, &chunk, volume);
                if let Some(next) = successor(&chunk, minimum, volume.write_pin, standings, spread(id)) {
                    self.care.note(id, &next, volume);
                    steps.push(Step {
                        key: entry.key.clone(),
                        revision: entry.versioned.revision,
                        next,
                    });
                }
            }
            self.commit_steps(&steps)?;
            match entries.last() {
                Some(last) if entries.len() == PAGE => first = keys::after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// Commits many configurations at a time; those decided on something that is no longer so are
    /// decided anew with the next tick.
    fn commit_steps(&mut self, steps: &[Step]) -> Result<(), ControlError> {
        for batch in steps.chunks(self.store.operations_max().max(1)) {
            if self.commit_batch(batch)? {
                continue;
            }
            // One of them was changed by somebody else: the others need not wait for it.
            for step in batch {
                if !self.commit_batch(std::slice::from_ref(step))? {
                    self.reconciled = None;
                }
            }
        }
        Ok(())
    }

    fn commit_batch(&mut self, batch: &[Step]) -> Result<bool, ControlError> {
        let mut transaction = Transaction::new();
        for step in batch {
            transaction.compare(step.key.clone(), step.revision);
            transaction.put(step.key.clone(), step.next.encode(&step.key));
        }
        self.commit(&transaction)
    }
}

/// A number that differs from chunk to chunk, so that the writes of a lost node spread.
pub(super) fn spread(id: ChunkId) -> u64 {
    u64::from(id.volume.0).wrapping_add(u64::from(id.index))
}
