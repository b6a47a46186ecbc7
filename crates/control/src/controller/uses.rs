//! What volumes use of disks, as nodes say it.
//!
//! Nothing of it is in the store, and nothing is decided by it: placement counts what is promised. It is for people.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use foundation::{ByteCount, Instant};

use super::{Controller, NodeView};
use crate::error::ControlError;
use crate::identity::{Incarnation, NodeId, VolumeNumber};
use crate::store::MetadataStore;

/// Volumes that one node is taken for having copies of. What it says of more is left out.
const VOLUMES_MAX: usize = 65_536;

/// What the copies of a volume own of disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// What its chunks own.
    pub used: ByteCount,
    /// What its snapshots own besides.
    pub held: ByteCount,
}

impl AddAssign for VolumeUse {
    fn add_assign(&mut self, other: Self) {
        self.used = ByteCount(self.used.0.saturating_add(other.used.0));
        self.held = ByteCount(self.held.0.saturating_add(other.held.0));
    }
}

/// What nodes have said; see the module.
#[derive(Debug, Default)]
pub(super) struct Uses(BTreeMap<NodeId, BTreeMap<VolumeNumber, VolumeUse>>);

impl<S: MetadataStore> Controller<S> {
    /// A node says what each volume uses of its disks. What a life says that this master has not heard is left out.
    pub fn note_use(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        volumes: impl IntoIterator<Item = (VolumeNumber, VolumeUse)>,
    ) {
        let is_heard = self.heard.get(&node).map(|heard| heard.incarnation) == Some(incarnation);
        if is_heard {
            let volumes = volumes.into_iter().take(VOLUMES_MAX).collect();
            self.uses.0.insert(node, volumes);
        }
    }

    /// What each volume uses of the disks of all nodes that this master has heard; none while a living one has not said it. Of a node
    /// that is gone the last that it said counts. A volume that has no entry uses nothing. Reads the nodes' records.
    pub fn uses(&self, now: Instant) -> Result<Option<BTreeMap<VolumeNumber, VolumeUse>>, ControlError> {
        Ok(self.uses_on(&self.nodes(now)?))
    }

    pub(super) fn uses_on(
        &self,
        nodes: &BTreeMap<NodeId, NodeView>,
    ) -> Option<BTreeMap<VolumeNumber, VolumeUse>> {
        let mut uses: BTreeMap<VolumeNumber, VolumeUse> = BTreeMap::new();
        for (id, view) in nodes {
            match self.uses.0.get(id) {
                Some(volumes) => volumes
                    .iter()
                    .for_each(|(volume, said)| *uses.entry(*volume).or_default() += *said),
                None if view.is_alive => return None,
                None => {}
            }
        }
        Some(uses)
    }
}
