//! In some worlds an operator takes a node out of the cluster for good: has it drained, and removed as soon as masters do that. It is
//! refused from then on, dead or alive, whatever it still has.

use super::{index_of, named};
use crate::simulation::injected::Injected;
use crate::simulation::world::{REBUILD, SECOND, World};

/// Longer than masters wait before they place copies anew.
const DEAD: u64 = 12 * SECOND;

/// Who is to go, and from when on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    node: usize,
    from: u64,
    /// It dies with that, and comes back late: whether it is needed for a snapshot it does not say itself.
    dies: bool,
}

impl World {
    /// Draws whether a node is to go: one that can be spared, also of its rack, exports nothing, and whose copies of snapshots others make.
    pub(super) fn let_one_leave(&mut self) {
        let (nodes, copies) = (self.shape.nodes, usize::from(self.shape.copies));
        let has_others = self.snapshots.is_some() && !self.shape.keeps || self.reserved.is_some();
        if self.shape.scenario != REBUILD || has_others || nodes <= copies {
            return;
        }
        let keeps = self.shape.keeps;
        let whole = self.of_whole();
        let node = nodes - 1;
        let stays_in_rack = |other: usize| whole.rack_of(other) == whole.rack_of(node);
        if whole.racks == 0 || (0..node).any(stays_in_rack) {
            let from = whole.random.between(2 * SECOND, 12 * SECOND);
            let dies = keeps && whole.random.chance(1, 2);
            whole.leaving = Some(Leaving { node, from, dies });
        }
    }

    /// Whether the operator wants a node drained because it is to go.
    pub(super) fn is_to_leave(&self, node: usize) -> bool {
        let leaving = self.whole.as_ref().and_then(|whole| whole.leaving);
        leaving.is_some_and(|leaving| leaving.node == node && self.now >= leaving.from && !self.healing)
    }

    /// Has the node that is to go removed, if it is there and the masters do it.
    pub(super) fn remove_a_node(&mut self) {
        let now = self.now;
        let Some(leaving) = self.of_whole().leaving else {
            return;
        };
        if !self.is_to_leave(leaving.node) || self.is_removed(leaving.node) {
            return;
        }
        let whole = self.of_whole();
        if let Some(leaving) = whole.leaving.as_mut().filter(|leaving| leaving.dies) {
            leaving.dies = false;
            let (node, power, down) = (leaving.node, false, DEAD);
            return self.inject(Injected::Crash { node, power, down });
        }
        if let Some(master) = whole.seated(now) {
            let clock = whole.masters[master].clock(now);
            if let Ok(control) = whole.masters[master].member.lead() {
                // Refused, or not answered: tried again.
                drop(control.remove_node(named(leaving.node), clock));
            }
        }
        if self.is_removed(leaving.node) {
            self.check_snapshots_without(leaving.node);
        }
    }

    /// Whether a node was taken out of the cluster for good.
    pub(in crate::simulation) fn is_removed(&self, node: usize) -> bool {
        let removed = |whole: &super::Whole| whole.etcd.borrow().node(named(node)).is_none();
        self.whole.as_deref().is_some_and(removed)
    }

    /// Nobody who was removed has a place.
    pub(super) fn check_removed(&mut self) {
        let whole = self.of_whole();
        let copies = whole.chunks.iter().flat_map(|chunk| &chunk.copies);
        let nodes: Vec<usize> = copies.map(|copy| index_of(copy.node)).collect();
        if let Some(node) = nodes.into_iter().find(|node| self.is_removed(*node)) {
            self.fail(format!("node {node} was removed, and has places"));
        }
    }
}
