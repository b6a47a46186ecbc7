//! Volumes of which no write is acknowledged before it is durable on every copy in sync (`docs/decisions/0110`).
//!
//! It is done here, at the write node, to whatever asks: clients and portals of any release need not know of it. The agent says it of each volume
//! before the first configuration of a chunk, so no life of a target orders a write without knowing.

use std::cell::RefCell;
use std::collections::BTreeSet;

use volume::VolumeNumber;

use super::Node;

/// See the module.
#[derive(Default)]
pub(crate) struct SyncWrites(RefCell<BTreeSet<VolumeNumber>>);

impl SyncWrites {
    /// Whether each write of this volume is to be durable.
    pub(crate) fn has(&self, volume: VolumeNumber) -> bool {
        self.0.borrow().contains(&volume)
    }

    /// What the agent says of a volume; true if it was otherwise before.
    pub(crate) fn set(&self, volume: VolumeNumber, is_on: bool) -> bool {
        match is_on {
            true => self.0.borrow_mut().insert(volume),
            false => self.0.borrow_mut().remove(&volume),
        }
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.0.borrow().iter().map(|volume| volume.0).collect()
    }
}

impl Node {
    /// The volumes of which no write is acknowledged before it is durable.
    pub(crate) fn sync_writes(&self) -> &SyncWrites {
        &self.sync_writes
    }

    /// As the agent does by [`agentlink::ToTarget::SyncWrites`].
    pub fn set_sync_writes(&self, volume: VolumeNumber, is_on: bool) {
        self.sync_writes.set(volume, is_on);
    }
}
