//! Sealing, opening and reconciliation (contract: "Grants", 2, 3 and 5; "Crash, reconciliation, return").

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{Config, Lead, Node, Phase, RECONCILIATION, State, has, members};

impl Model {
    /// A member gives its word to `config` when it is not quiet and has nothing granted to those left out.
    pub(crate) fn may_seal(&self, node: &Node, config: &Config) -> bool {
        let is_awake = node.quiet == 0 || !self.has(Rule::QuietTerm);
        let is_bound = |index: usize| !has(config.set, index) && node.memory.granted[index] > 0;
        is_awake && (!self.has(Rule::SealGate) || !self.nodes().any(is_bound))
    }

    pub(crate) fn sealing_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let node = &state.nodes[index];
        let (config, lead) = (&node.memory.adopted, &node.memory.lead);
        let it = index as u8;
        if lead.phase == Phase::Sealing || !self.has(Rule::Seal) {
            let may_answer = |member: usize| {
                let other = &state.nodes[member];
                let is_named = other.life == config.lives[member] || !self.has(Rule::EndedLifeLeaves);
                let is_new = !has(lead.sealed_by, member) && other.disk.sealed <= config.epoch;
                other.up && is_named && is_new && self.may_seal(other, config)
            };
            let answering = members(config.set).filter(|member| may_answer(*member));
            out.extend(answering.map(|member| Action::Seal {
                write_node: it,
                member: member as u8,
            }));
        }
        match lead.phase {
            Phase::Sealing => {
                let all = lead.sealed_by & config.set == config.set || !self.has(Rule::Seal);
                if all && self.may_seal(node, config) {
                    out.push(Action::Open { write_node: it });
                }
            }
            Phase::Reconciling => {
                let waiting = |block: &usize| has(lead.marked, *block) && !lead.flights[*block].on;
                let waiting = self
                    .blocks()
                    .filter(waiting)
                    .filter(|block| !self.has_piece(lead, *block));
                out.extend(waiting.map(|block| Action::Reconcile {
                    write_node: it,
                    block: block as u8,
                }));
                if lead.marked == 0 {
                    out.push(Action::Serve { write_node: it });
                }
            }
            Phase::Idle | Phase::Serving => {}
        }
    }

    /// The member makes the epoch durable and answers with its marks, its highest sequence and its sessions.
    pub(crate) fn seal(&self, state: &mut State, write_node: usize, member: usize) {
        let config = state.nodes[write_node].memory.adopted;
        Model::adopt(state, member, config);
        let node = &mut state.nodes[member];
        node.memory.lead = Lead::default();
        node.memory.asked = 0;
        let seen = node.memory.highest();
        let disk = node.disk;
        let node = &mut state.nodes[write_node];
        let lead = &mut node.memory.lead;
        lead.sealed_by |= 1 << member;
        if lead.is_new {
            lead.marked |= disk.marks;
        }
        if self.has(Rule::SequencesAbove) {
            lead.sequence = lead.sequence.max(seen);
        }
        if self.has(Rule::FenceTravels) {
            for (mine, its) in node.disk.sessions.iter_mut().zip(disk.sessions) {
                *mine = its.max(*mine);
            }
        }
    }

    /// Every member has sealed. After a recovery, what was not flushed may be gone from here on.
    pub(crate) fn open(&self, state: &mut State, index: usize) {
        if std::mem::take(&mut state.loss_due) {
            for monitor in &mut state.monitors {
                monitor.all_ended();
            }
        }
        let lead = &mut state.nodes[index].memory.lead;
        lead.phase = Phase::Reconciling;
        if !self.has(Rule::Reconcile) {
            lead.marked = 0;
        }
    }

    /// Sends what the write node has on a marked block to every copy, as a write in its order.
    pub(crate) fn reconcile(&self, state: &mut State, index: usize, block: usize) {
        let write = crate::state::ClientWrite {
            client: RECONCILIATION,
            operation: 0,
            session: 0,
            block: block as u8,
            value: state.nodes[index].disk.value[block],
            expected: None,
            compared_for: 0,
        };
        self.send(state, index, write);
    }

    /// All copies are equal: the write node serves, and may say what is settled.
    pub(crate) fn serve(&self, state: &mut State, index: usize) {
        let memory = &mut state.nodes[index].memory;
        memory.lead.phase = Phase::Serving;
        memory.open = true;
        memory.settled = self.settled_through(memory);
    }
}
