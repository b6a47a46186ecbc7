//! The keys of the data path: made and turned by the master that leads, and handed to nodes (`docs/decisions/0089`).

use foundation::Instant;

use crate::controller::Controller;
use crate::error::ControlError;
use crate::identity::NodeId;
use crate::keys;
use crate::model::{DataKeys, DataSecret};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// In a cluster that had no nodes when it got its keys everybody proves itself from the first moment on.
const ALWAYS: u64 = 1;

/// Whether nodes take only who proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPathProof {
    /// They do, from the moment on in which every node had asked for its keys.
    pub required: bool,
    /// Until then: who has not asked since this master began to lead.
    pub awaited: Vec<NodeId>,
}

impl<S: MetadataStore> Controller<S> {
    /// Makes the keys if there are none, and turns them when it is time; true if it did. `fresh` are random, and `unix_ms` is
    /// what this master's calendar says. Whatever that says, a key stays in use for a quarter of its period after a master has
    /// begun to lead, in which those can renew what they have who could not while no master led.
    ///
    /// # Errors
    /// The store's.
    pub fn turn_data_keys(
        &mut self,
        fresh: [DataSecret; 2],
        unix_ms: u64,
        now: Instant,
    ) -> Result<bool, ControlError> {
        let period = self.settings.data_key_period;
        let stored = self.read::<DataKeys>(keys::DATA_KEYS)?;
        let (record, revision) = match stored {
            None => {
                let required = if self.nodes(now)?.is_empty() { ALWAYS } else { 0 };
                (DataKeys::first(fresh, unix_ms, required), 0)
            }
            Some(stored) => {
                let since = now.since(
                    self.data_keys_turned
                        .map_or(self.listening, |at| at.max(self.listening)),
                );
                let age = unix_ms.saturating_sub(stored.record.turned_unix_ms);
                let is_old = u128::from(age) >= period.as_millis() || since >= period;
                if !is_old || since < period / 4 {
                    return Ok(false);
                }
                let [fresh, _] = fresh;
                (stored.record.turned(fresh, unix_ms), stored.revision)
            }
        };
        let is_done = self.put_data_keys(&record, revision)?;
        if is_done {
            self.data_keys_turned = Some(now);
        }
        Ok(is_done)
    }

    fn put_data_keys(&mut self, record: &DataKeys, revision: u64) -> Result<bool, ControlError> {
        let mut transaction = Transaction::new();
        transaction
            .compare(keys::DATA_KEYS.to_vec(), revision)
            .put(keys::DATA_KEYS.to_vec(), record.encode(keys::DATA_KEYS));
        self.commit(&transaction)
    }

    /// The keys of the data path; none before there are any.
    ///
    /// # Errors
    /// The store's.
    pub fn data_keys(&self) -> Result<Option<DataKeys>, ControlError> {
        Ok(self
            .read::<DataKeys>(keys::DATA_KEYS)?
            .map(|stored| stored.record))
    }

    /// The keys of the data path, for a node that is to check who comes. Once all nodes have asked, all are to refuse who
    /// does not prove itself, from then on.
    ///
    /// # Errors
    /// A node that is none of the cluster's, and the store's.
    pub fn data_keys_of(
        &mut self,
        node: NodeId,
        unix_ms: u64,
        now: Instant,
    ) -> Result<Option<DataKeys>, ControlError> {
        let nodes = self.nodes(now)?;
        if !nodes.contains_key(&node) {
            return Err(ControlError::NoSuchNode { node });
        }
        let Some(stored) = self.read::<DataKeys>(keys::DATA_KEYS)? else {
            return Ok(None);
        };
        self.data_keys_known.insert(node);
        let mut record = stored.record;
        if record.required_unix_ms == 0 && nodes.keys().all(|node| self.data_keys_known.contains(node)) {
            record.required_unix_ms = unix_ms.max(ALWAYS);
            // Should another master have been quicker: the node asks again.
            if !self.put_data_keys(&record, stored.revision)? {
                record.required_unix_ms = 0;
            }
        }
        Ok(Some(record))
    }

    /// Whether nodes take only who proves who it is, and for whom that waits; none before there are keys.
    ///
    /// # Errors
    /// The store's.
    pub fn data_path_proof(&self, now: Instant) -> Result<Option<DataPathProof>, ControlError> {
        let Some(keys) = self.data_keys()? else {
            return Ok(None);
        };
        let required = keys.required_unix_ms != 0;
        let awaited = match required {
            true => Vec::new(),
            false => {
                let nodes = self.nodes(now)?.into_keys();
                nodes
                    .filter(|node| !self.data_keys_known.contains(node))
                    .collect()
            }
        };
        Ok(Some(DataPathProof { required, awaited }))
    }
}
