//! Copies made anew on a node that was no member, and copies deleted (decision 0060).

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{Disk, Memory, State, has, members};

impl Model {
    pub(crate) fn place_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        if !self.bounds.replacement {
            return;
        }
        let (node, register, it) = (&state.nodes[index], &state.register, index as u8);
        let has_place = has(register.places, index);
        if state.left.proposals > 0 {
            // A place is added out of sync, one at a time, and while no member is gone.
            let wants = register.set.count_ones() < self.bounds.copies
                && register.places.count_ones() <= self.bounds.copies
                && members(register.set).all(|member| !state.has_ended(register, member));
            if node.up && !has_place && wants {
                out.push(Action::ProposePlace { node: it });
            }
            // It is taken away only where as many as there should be are in sync without it.
            let without = (register.set & !(1 << index)).count_ones();
            if has_place && without >= self.bounds.copies && register.write_node != it {
                out.push(Action::ProposeNoPlace { node: it });
            }
        }
        let may_be_empty = !has(register.set, index) || !self.has(Rule::EmptyWithoutLife);
        if node.up && has_place && !node.disk.copy && may_be_empty {
            out.push(Action::MakeCopy { node: it });
        }
        if node.up && !has_place && node.disk.copy && node.disk.sealed < register.epoch {
            out.push(Action::DeleteCopy { node: it });
        }
    }

    pub(crate) fn propose_place(&self, state: &mut State, node: u8) {
        let register = state.register;
        self.propose(state, |config| config.places |= 1 << node, register);
    }

    pub(crate) fn propose_no_place(&self, state: &mut State, node: u8) {
        let register = state.register;
        self.propose(
            state,
            |config| {
                config.places &= !(1 << node);
                config.set &= !(1 << node);
            },
            register,
        );
    }

    /// An empty copy says epoch 0 and has no marks, so it is sent all that was ever written. Without the rule it says the epoch that it
    /// was named in.
    pub(crate) fn make_copy(&self, state: &mut State, index: usize) {
        let says = if self.has(Rule::EmptySaysZero) {
            0
        } else {
            state.register.epoch
        };
        state.nodes[index].disk = Disk {
            flushed_in: says,
            ..Disk::empty(0)
        };
    }

    /// With the copy goes what it has granted.
    pub(crate) fn delete_copy(&self, state: &mut State, index: usize) {
        let quiet = self.term_by(state.nodes[index].rate);
        let node = &mut state.nodes[index];
        node.disk = Disk::default();
        node.memory = Memory::default();
        if self.has(Rule::DeletedIsQuiet) {
            node.quiet = quiet;
        }
    }
}
