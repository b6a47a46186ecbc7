//! At no time is a chunk served in two configurations: looked at directly, whatever clients see of it.
//!
//! - One epoch has one write node.
//! - Once the write node of an epoch serves, no read is answered in an earlier one, past a node or by it. (A write may still be acknowledged
//!   there that was begun before: `decisions/0042`, 1; `World::completed` looks at that.)
//!
//! With a bug planted none of this is looked at, so that it is the bugs' effects which are found; but for the one that shows
//! that this is not blind.

use foundation::Epoch;

use super::world::{World, chunk_id};

impl World {
    /// The write node of an epoch serves.
    pub(super) fn serves_in(&mut self, node: usize, chunk: usize, epoch: Epoch) {
        let (_, first) = *self.opened[chunk].entry(epoch).or_insert((self.now, node));
        if first != node && self.looks_at_epochs {
            self.fail(format!(
                "nodes {first} and {node} both serve chunk {chunk} as write nodes of epoch {epoch}"
            ));
        }
    }

    /// A node has answered a read, or a client has read its disk past it and may take that for right.
    pub(super) fn read_at(&mut self, node: usize, chunk: usize) {
        if !self.looks_at_epochs {
            return;
        }
        let core = self.nodes[node].core.as_ref();
        let config = core.and_then(|core| core.member(chunk_id(chunk))?.config());
        let Some(epoch) = config.map(|config| config.epoch) else {
            return self.fail(format!(
                "node {node} answered a read of chunk {chunk} and takes part in no epoch"
            ));
        };
        if let Some((later, _)) = self.opened[chunk].range(epoch.next()..).next() {
            let later = *later;
            self.fail(format!(
                "node {node} answered a read of chunk {chunk} in epoch {epoch} when epoch {later} served"
            ));
        }
    }
}
