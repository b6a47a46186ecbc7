//! Volumes of which every write is durable before it is acknowledged (`docs/decisions/0110`).
//!
//! The nodes see to it, each for the chunks whose writes it orders; so a node that does not know this must not be there, and who switches it
//! on is told which nodes have not said yet that they do so.

use foundation::Instant;

use crate::controller::{ATTEMPTS_MAX, Controller, contended};
use crate::error::ControlError;
use crate::identity::{NodeId, VolumeNumber};
use crate::keys;
use crate::model::{ClusterRecord, FEATURE_SYNC_WRITES, Volume};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

impl<S: MetadataStore> Controller<S> {
    /// From now on every write of a volume is durable before it is acknowledged, or need not be any more. It is in force where nodes have
    /// said so: [`Controller::nodes_without_sync_writes`]. Repeating it changes nothing.
    ///
    /// # Errors
    /// If there is no such volume, or a node lives that does not know this.
    pub fn set_sync_writes(&mut self, name: &str, is_on: bool, now: Instant) -> Result<Volume, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            let key = keys::volume(number);
            let Some(stored) = self.read::<Volume>(&key)? else {
                continue;
            };
            if stored.record.sync_writes == is_on {
                return Ok(stored.record);
            }
            let volume = Volume {
                sync_writes: is_on,
                ..stored.record
            };
            let mut transaction = Transaction::new();
            if is_on {
                self.check_nodes_sync(name, now)?;
                self.set_feature(&mut transaction, FEATURE_SYNC_WRITES, true)?;
            } else if self.is_alone_with_sync_writes(number)? {
                // Masters that do not know it may lead again. Who makes another such volume meanwhile puts the cluster's record, too.
                self.set_feature(&mut transaction, FEATURE_SYNC_WRITES, false)?;
            }
            transaction
                .compare(key.clone(), stored.revision)
                .put(key.clone(), volume.encode(&key));
            if self.commit(&transaction)? {
                return Ok(volume);
            }
        }
        Err(contended())
    }

    fn is_alone_with_sync_writes(&self, number: VolumeNumber) -> Result<bool, ControlError> {
        let volumes = self.volumes()?;
        Ok(volumes
            .iter()
            .all(|volume| volume.number == number || !volume.sync_writes))
    }

    /// Whether there is such a volume, or was one when the cluster's record was put last.
    pub(super) fn has_sync_writes(&self) -> Result<bool, ControlError> {
        let stored = self.read::<ClusterRecord>(keys::CLUSTER)?;
        Ok(stored.is_some_and(|stored| stored.record.features & FEATURE_SYNC_WRITES != 0))
    }

    /// A node that does not gets no copies while there is such a volume.
    pub(super) fn knows_sync_writes(&self, node: NodeId) -> bool {
        self.heard.get(&node).is_some_and(|heard| heard.syncs.is_some())
    }

    /// A node that does not know it acknowledges what a power cut takes.
    pub(super) fn check_nodes_sync(&self, volume: &str, now: Instant) -> Result<(), ControlError> {
        let nodes = self.nodes(now)?;
        let mut without = nodes
            .iter()
            .filter(|(id, view)| view.is_alive && !self.knows_sync_writes(**id));
        match without.next() {
            None => Ok(()),
            Some((&node, _)) => Err(ControlError::NodeBeforeSyncWrites {
                volume: volume.to_owned(),
                node,
                others: without.count(),
            }),
        }
    }

    /// The nodes whose targets may still acknowledge writes of a volume before they are durable: those whose life has not provably ended
    /// and that have not said that they do not. None of a volume that does not want it.
    pub fn nodes_without_sync_writes(
        &self,
        volume: &Volume,
        now: Instant,
    ) -> Result<Vec<NodeId>, ControlError> {
        if !volume.sync_writes {
            return Ok(Vec::new());
        }
        let says = |id: &NodeId, incarnation| {
            self.heard.get(id).is_some_and(|heard| {
                let says = |syncs: &std::collections::BTreeSet<_>| syncs.contains(&volume.number);
                heard.incarnation == incarnation && heard.syncs.as_ref().is_some_and(says)
            })
        };
        let nodes = self.nodes(now)?;
        let without = nodes.iter().filter(|(id, view)| {
            let life = view.record.incarnation;
            view.record.ended_through < life && !says(id, life)
        });
        Ok(without.map(|(&id, _)| id).collect())
    }
}
