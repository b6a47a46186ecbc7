//! Portals: a host's writes forwarded by one of two nodes, with failover between them (contract: "Writes", late
//! duplicates).
//!
//! Each connection of the host to a portal is a generation of its own. A portal keeps what it has not forwarded, however
//! long, also after the host has failed over. A generation is in force on a chunk by a fence: a write of no blocks, on
//! every copy (0044). Only then does its portal forward.

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{ClientWrite, Lead, Phase, Round, State, members};

impl Model {
    /// Client 0 goes through portals, if there are any.
    pub(crate) fn is_through_portals(&self, client: usize) -> bool {
        self.bounds.portals && client == 0
    }

    pub(crate) fn portal_steps(&self, state: &State, out: &mut Vec<Action>) {
        if !self.bounds.portals {
            return;
        }
        if state.left.faults > 0 {
            out.push(Action::Failover);
        }
        for (message, write) in state.kept.iter().enumerate() {
            if state.fenced >> write.session & 1 == 1 || !self.has(Rule::PortalFence) {
                out.push(Action::Forward {
                    message: message as u8,
                });
            }
        }
    }

    /// The host connects to the other portal and sends what was not answered.
    pub(crate) fn fail_over(&self, state: &mut State) {
        state.left.faults -= 1;
        state.clients[0].session += 1;
        self.send_write(state, 0);
    }

    /// A fence waits for the chunk's writes in flight, and writes wait for a fence.
    pub(crate) fn fence_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        if !self.bounds.portals {
            return;
        }
        let node = &state.nodes[index];
        let (memory, write_node) = (&node.memory, index as u8);
        let lead = &memory.lead;
        if lead.phase != Phase::Serving {
            return;
        }
        let generation = state.clients[0].session;
        let Some(fence) = &lead.fence else {
            let is_wanted = state.fenced >> generation & 1 == 0 && self.has(Rule::PortalFence);
            if is_wanted && lead.flights.iter().all(|flight| !flight.on) {
                out.push(Action::StartFence { write_node });
            }
            return;
        };
        for copy in members(Self::copies(memory)) {
            let other = &state.nodes[copy];
            if other.is_in(memory.adopted.epoch) && fence.answers & other.answer_bit(copy) == 0 {
                out.push(Action::FenceCopy {
                    write_node,
                    copy: copy as u8,
                });
            }
        }
        let required = self.required(memory);
        if fence.answers & required == required {
            out.push(Action::CompleteFence { write_node });
        }
    }

    pub(crate) fn is_fencing(&self, lead: &Lead, write: &ClientWrite) -> bool {
        lead.fence.is_some() && self.is_through_portals(write.client as usize)
    }

    /// From now on this node refuses older generations.
    pub(crate) fn start_fence(&self, state: &mut State, index: usize) {
        let generation = state.clients[0].session;
        let node = &mut state.nodes[index];
        node.disk.sessions[0] = generation.max(node.disk.sessions[0]);
        node.memory.lead.fence = Some(Round {
            client: 0,
            answers: 0,
            upto: u16::from(generation),
        });
    }

    pub(crate) fn fence_copy(&self, state: &mut State, index: usize, copy: usize) {
        let node = &mut state.nodes[copy];
        let bit = node.answer_bit(copy);
        let fence = state.nodes[index].memory.lead.fence.as_mut();
        let fence = fence.expect("enabled only while a fence is under way");
        fence.answers |= bit;
        let generation = fence.upto as u8;
        let session = &mut state.nodes[copy].disk.sessions[0];
        *session = generation.max(*session);
    }

    pub(crate) fn complete_fence(&self, state: &mut State, index: usize) {
        let fence = state.nodes[index].memory.lead.fence.take();
        let fence = fence.expect("enabled only while a fence is under way");
        state.fenced |= 1 << fence.upto;
    }
}
