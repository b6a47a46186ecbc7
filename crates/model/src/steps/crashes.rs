//! Processes, power and disks that fail, and what agents prove (contract: "Configuration", "Grants", 6, "Crash").

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{Disk, Memory, Set, State, has, members};

impl Model {
    pub(crate) fn crash_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let node = &state.nodes[index];
        let it = index as u8;
        if !node.up {
            out.push(Action::Restart { node: it });
        }
        if !node.up || !self.has(Rule::GiveBackProved) {
            let bound = self
                .nodes()
                .filter(|at| state.nodes[*at].memory.granted[index] > 0);
            out.extend(bound.map(|at| Action::GiveBack {
                node: it,
                at: at as u8,
            }));
        }
        if !node.up || state.left.faults == 0 {
            return;
        }
        let unflushed = self
            .blocks()
            .filter(|b| node.disk.maybe[*b] & !(1 << node.disk.value[*b]) != 0);
        let unflushed = unflushed.fold(0, |blocks, block| blocks | 1 << block);
        for lost in (0..1u8 << self.bounds.blocks).filter(|lost| lost & !unflushed == 0) {
            out.push(Action::Crash { node: it, lost });
        }
        // Once for all that are up.
        if self.nodes().find(|other| state.nodes[*other].up) == Some(index) {
            out.push(Action::PowerCut { lost: 0 });
            out.push(Action::PowerCut {
                lost: (1 << self.bounds.blocks) - 1,
            });
        }
        // More than the promise covers otherwise: what is acknowledged survives while one in-sync incarnation lives.
        let others_live = members(state.register.set)
            .filter(|other| *other != index && !state.has_ended(&state.register, *other))
            .count() as u32;
        if state.left.disk_losses > 0 && others_live >= self.bounds.minimum {
            out.push(Action::LoseDisk { node: it });
        }
    }

    pub(crate) fn crash(&self, state: &mut State, index: usize, lost: Set) {
        state.left.faults -= 1;
        self.die(state, index, lost);
    }

    pub(crate) fn power_cut(&self, state: &mut State, lost: Set) {
        state.left.faults -= 1;
        for index in self.nodes() {
            if state.nodes[index].up {
                self.die(state, index, lost);
            }
        }
    }

    pub(crate) fn lose_disk(&self, state: &mut State, index: usize) {
        state.left.faults -= 1;
        state.left.disk_losses -= 1;
        self.die(state, index, 0);
        state.nodes[index].disk = Disk::default();
    }

    /// The process ends. Of the blocks `lost` the disk falls back to something older than what was written last; what
    /// else it has is durable from now on, since only a power cut could take it and a second one takes no more.
    fn die(&self, state: &mut State, index: usize, lost: Set) {
        let node = &mut state.nodes[index];
        for block in self.blocks() {
            let disk = &mut node.disk;
            let older = disk.maybe[block] & !(1 << disk.value[block]);
            if has(lost, block) && older != 0 {
                disk.value[block] = older.trailing_zeros() as u8;
            }
            disk.maybe[block] = 1 << disk.value[block];
        }
        if !self.has(Rule::FenceTravels) {
            node.disk.sessions = Default::default();
        }
        let before = std::mem::take(&mut node.memory);
        node.memory = Memory {
            // Without the rule a target that starts again takes itself for the member that it was.
            adopted: if self.has(Rule::EndedLifeLeaves) {
                Default::default()
            } else {
                before.adopted
            },
            open: !self.has(Rule::EndedLifeLeaves) || !self.has(Rule::OpenWhenTold),
            ..Memory::default()
        };
        node.up = false;
        node.quiet = 0;
    }

    /// Another life begins, quiet for a term by its own clock.
    pub(crate) fn restart(&self, state: &mut State, index: usize) {
        let quiet = self.term_by(state.nodes[index].rate);
        let node = &mut state.nodes[index];
        node.up = true;
        if self.has(Rule::EndedLifeLeaves) {
            node.life += 1;
        }
        node.quiet = quiet;
    }
}
