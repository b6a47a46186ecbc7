//! Writes that compare first (decision 0133): what a block has is read at the write node before the write gets its sequence, and until
//! then no other write of the block begins.

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{ClientWrite, Comparing, State};

impl Model {
    /// What was read is judged later. Something else than was expected is told only under the grants of a read.
    pub(crate) fn compare_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let lead = &state.nodes[index].memory.lead;
        for block in self.blocks() {
            let Some(Comparing { write, seen }) = &lead.comparing[block] else {
                continue;
            };
            let may = match write.expected == Some(*seen) {
                true => self.is_free(lead, block) && !self.is_fencing(lead, write),
                false => self.may_read(state, index) || !self.has(Rule::DiffersUnderGrants),
            };
            if may || self.is_old(state, index, write) {
                out.push(Action::Judge {
                    write_node: index as u8,
                    block: block as u8,
                });
            }
        }
    }

    /// Whether a write that was compared in the epoch before is to be made first.
    pub(crate) fn is_behind_compared(&self, state: &State, index: usize, write: &ClientWrite) -> bool {
        let epoch = state.nodes[index].memory.adopted.epoch;
        let mut others = state.client_writes.iter().filter(|other| {
            other.compared_for == epoch && other.block == write.block && !self.is_old(state, index, other)
        });
        self.has(Rule::ComparedGoesFirst) && others.any(|other| other != write)
    }

    pub(crate) fn compare(&self, state: &mut State, index: usize, write: ClientWrite) {
        let (block, node) = (write.block as usize, &mut state.nodes[index]);
        let seen = node.disk.value[block];
        node.memory.lead.comparing[block] = Some(Comparing { write, seen });
    }

    /// It becomes a write, is answered, or is forgotten, a newer session having been seen.
    pub(crate) fn judge(&self, state: &mut State, index: usize, block: usize) -> Result<(), String> {
        let comparing = state.nodes[index].memory.lead.comparing[block].take();
        let Comparing { write, seen } = comparing.expect("enabled only while one is compared");
        if self.is_old(state, index, &write) {
            return Ok(());
        }
        if write.expected == Some(seen) {
            self.send(state, index, write);
        } else if self.waits_for(state, write.client, write.operation, write.session) {
            self.respond(state, write.client as usize, Some(seen), block)?;
        }
        Ok(())
    }
}
