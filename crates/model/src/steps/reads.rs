//! Reads (contract: "Reads"; "Grants", 1; decision 0042, 7).

use crate::action::Action;
use crate::model::Model;
use crate::monitor::Operation;
use crate::rules::Rule;
use crate::state::{Phase, State, has, members};

impl Model {
    /// Rule 1: an open member of the epoch that it has sealed, under grants of |S| less the minimum other members. Joiners
    /// that it has been told of count in |S|.
    pub(crate) fn may_read(&self, state: &State, index: usize) -> bool {
        let node = &state.nodes[index];
        let (memory, config) = (&node.memory, &node.memory.adopted);
        let is_member = config.names(index, node.life) && config.epoch == node.disk.sealed && !memory.joining;
        if !node.up || !is_member || self.has(Rule::OpenWhenTold) && !memory.open {
            return false;
        }
        let counted = (config.set | memory.announced).count_ones();
        let unneeded = self.bounds.minimum + u32::from(!self.has(Rule::GrantCount));
        let others = members(config.set).filter(|other| *other != index);
        let held = others.filter(|other| memory.held[*other] > 0).count() as u32;
        held >= counted.saturating_sub(unneeded)
    }

    pub(crate) fn read_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let memory = &state.nodes[index].memory;
        let lead = &memory.lead;
        if !self.may_read(state, index) {
            return;
        }
        // Before it serves, a write node knows no more than any copy.
        let leads = self.leads(state, index) && lead.phase == Phase::Serving;
        for (number, client) in state
            .clients
            .iter()
            .enumerate()
            .take(self.bounds.clients as usize)
        {
            let block = client.block as usize;
            let is_settled = if leads {
                (!lead.flights[block].on || !self.has(Rule::WriteNodeHolds)) && !has(lead.marked, block)
            } else {
                memory.newest[block] <= memory.settled || !self.has(Rule::HoldUnsettled)
            };
            if client.operation == Operation::Read && is_settled {
                out.push(Action::Read {
                    copy: index as u8,
                    client: number as u8,
                });
            }
        }
    }

    pub(crate) fn read(&self, state: &mut State, index: usize, client: usize) -> Result<(), String> {
        let block = state.clients[client].block as usize;
        let value = state.nodes[index].disk.value[block];
        self.respond(state, client, Some(value), block)
    }
}
