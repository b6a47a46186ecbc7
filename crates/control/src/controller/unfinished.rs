//! What is needed to bring a volume that is between two states to the next one.
//!
//! It is in memory, and belongs to one step. The answer of the commit that ended a step may be lost, and that of the one which began the
//! next, too: what nodes have reported of the first must not count for the second (`docs/decisions/0111`). So the step stands beside it,
//! and is compared with the volume's record whenever that was read.

use std::collections::{BTreeMap, BTreeSet};

use crate::controller::Controller;
use crate::controller::growth::Growing;
use crate::controller::room::Unplaced;
use crate::identity::{Incarnation, NodeId};
use crate::model::{Volume, VolumeState};
use crate::store::MetadataStore;

/// What a volume is about to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its chunks get places.
    Placing,
    /// Nodes make its copies.
    Preparing,
    /// Nodes make copies of its new chunks.
    Growing(Growing),
    /// Nodes give its copies data of their own.
    Flattening,
    /// Nodes delete its copies.
    Deleting,
}

impl Step {
    /// That of a volume; none if it is settled.
    fn of(volume: &Volume) -> Option<Self> {
        match volume.state {
            VolumeState::Creating => Some(Self::Placing),
            VolumeState::Preparing => Some(Self::Preparing),
            VolumeState::Deleting => Some(Self::Deleting),
            VolumeState::Ready if volume.is_flattening() => Some(Self::Flattening),
            VolumeState::Ready => Growing::of(volume).map(Self::Growing),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfinished {
    step: Option<Step>,
    /// The nodes it has copies on, once they are known.
    pub(super) nodes: Option<BTreeSet<NodeId>>,
    /// Of one whose chunks get places: all below this one have theirs.
    pub(super) placed: u32,
    /// Those for which there was no place.
    pub(super) unplaced: Option<Unplaced>,
    /// Lives that have reported that they did their part.
    pub(super) reported: BTreeSet<(NodeId, Incarnation)>,
    /// Of a clone that is flattened: copies left and all, by node.
    pub(super) progress: BTreeMap<NodeId, (u32, u32)>,
}

impl<S: MetadataStore> Controller<S> {
    /// What is known of a volume's step, as its record has it now; what was known of an earlier one is forgotten. None if it is settled.
    pub(super) fn unfinished_of(&mut self, volume: &Volume) -> Option<&mut Unfinished> {
        let step = Step::of(volume)?;
        let unfinished = self.unfinished.entry(volume.number).or_default();
        // One without a step was made with the commit that began this one.
        if unfinished.step.is_some_and(|known| known != step) {
            *unfinished = Unfinished::default();
        }
        unfinished.step = Some(step);
        Some(unfinished)
    }
}
