//! The store and the masters: proposals, compare-and-swap, learning of it (contract: "Configuration").

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{ClientWrite, Config, Lead, Phase, RECONCILIATION, Set, State, has, members};

impl Model {
    /// Masters commit what was proposed, in any order and arbitrarily late.
    pub(crate) fn store_steps(&self, state: &State, out: &mut Vec<Action>) {
        for proposal in 0..state.proposals.len() {
            out.push(Action::Commit {
                proposal: proposal as u8,
            });
        }
    }

    /// Whether this life is a member of the committed configuration. Without [`Rule::EndedLifeLeaves`] any life is.
    fn is_registered(&self, state: &State, index: usize) -> bool {
        let register = &state.register;
        register.names(index, state.nodes[index].life)
            || !self.has(Rule::EndedLifeLeaves) && has(register.set, index)
    }

    /// Subsets of the committed set that have this node and at least the minimum.
    fn successors(&self, state: &State, index: usize) -> impl Iterator<Item = Set> + use<> {
        let (set, minimum) = (state.register.set, self.bounds.minimum);
        let is_within =
            move |other: &Set| other & !set == 0 && has(*other, index) && other.count_ones() >= minimum;
        (1..1 << self.bounds.nodes).filter(is_within)
    }

    pub(crate) fn configuration_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let (node, register) = (&state.nodes[index], &state.register);
        let (memory, it) = (&node.memory, index as u8);
        let is_registered = self.is_registered(state, index);
        if state.left.proposals > 0 && memory.asked != register.epoch {
            if is_registered && register.write_node != it {
                let sets = self.successors(state, index);
                out.extend(sets.map(|set| Action::ProposeTakeover { node: it, set }));
            }
            let leads = register.write_node == it && memory.adopted == *register;
            let is_free =
                memory.lead.phase != Phase::Idle && !memory.lead.join.is_some_and(|join| join.proposed);
            if is_registered && leads && is_free && register.set.count_ones() > self.bounds.minimum {
                let others = members(register.set).filter(|other| *other != index);
                out.extend(others.map(|removed| Action::ProposeRemoval {
                    node: it,
                    removed: removed as u8,
                }));
            }
            if !is_registered && has(register.set, index) && node.disk.copy {
                self.recovery_steps(state, index, out);
            }
        }
        let is_answered = memory.asked > 0 && register.epoch > memory.asked;
        let concerns = memory.lead.phase != Phase::Idle || register.write_node == it && is_registered;
        if is_answered || register.epoch > memory.adopted.epoch && concerns {
            out.push(Action::Learn { node: it });
        }
    }

    /// Every named incarnation has ended: any members that have a copy may go on, at least the minimum.
    fn recovery_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let register = &state.register;
        let has_ended = |other: usize| state.has_ended(register, other);
        let may_recover = |other: usize| has_ended(other) || !self.has(Rule::CleanEnd) && other != index;
        if !members(register.set).all(may_recover) {
            return;
        }
        let is_back =
            |other: usize| state.nodes[other].up && has_ended(other) && state.nodes[other].disk.copy;
        let sets = self
            .successors(state, index)
            .filter(|set| members(*set).all(is_back));
        out.extend(sets.map(|set| Action::ProposeRecovery {
            node: index as u8,
            set,
        }));
    }

    /// Puts a proposal on its way.
    pub(crate) fn propose(&self, state: &mut State, change: impl FnOnce(&mut Config), from: Config) {
        let mut config = Config {
            epoch: from.epoch + 1,
            ..from
        };
        change(&mut config);
        state.left.proposals -= 1;
        if !state.proposals.contains(&config) {
            state.proposals.push(config);
        }
    }

    fn propose_by(&self, state: &mut State, by: u8, change: impl FnOnce(&mut Config)) {
        let register = state.register;
        state.nodes[by as usize].memory.asked = register.epoch;
        self.propose(state, change, register);
    }

    pub(crate) fn propose_takeover(&self, state: &mut State, node: u8, set: Set) {
        self.propose_by(state, node, |config| {
            config.write_node = node;
            config.set = set;
        });
    }

    pub(crate) fn propose_removal(&self, state: &mut State, node: u8, removed: u8) {
        self.propose_by(state, node, |config| config.set &= !(1 << removed));
    }

    pub(crate) fn propose_recovery(&self, state: &mut State, node: u8, set: Set) {
        let reborn = members(state.register.set).all(|index| state.has_ended(&state.register, index));
        let lives = state.nodes.map(|node| node.life);
        self.propose_by(state, node, |config| {
            config.write_node = node;
            config.set = set;
            config.reborn = reborn;
            for index in members(set) {
                config.lives[index] = lives[index];
            }
        });
    }

    /// Compare-and-swap: only what follows the committed epoch. Members have places (0060).
    pub(crate) fn commit(&self, state: &mut State, proposal: u8) {
        let mut config = state.proposals.remove(proposal as usize);
        if config.epoch != state.register.epoch + 1 || config.set & !config.places != 0 {
            return;
        }
        state.loss_due |= config.reborn;
        config.reborn = false;
        state.register = config;
    }

    /// A node hears of the committed configuration: the write node begins to seal, whoever led before stops.
    pub(crate) fn learn(&self, state: &mut State, node: u8) {
        let index = node as usize;
        let register = state.register;
        let is_named = register.names(index, state.nodes[index].life) || !self.has(Rule::EndedLifeLeaves);
        state.nodes[index].memory.asked = 0;
        if register.epoch <= state.nodes[index].memory.adopted.epoch {
            return;
        }
        if register.write_node == node && is_named {
            self.take_lead(state, index);
        } else {
            state.nodes[index].memory.lead = Lead::default();
        }
    }

    /// Writes in flight are ordered anew in the new epoch; a write node that stays reconciles only those.
    fn take_lead(&self, state: &mut State, index: usize) {
        let register = state.register;
        let before = state.nodes[index].memory.lead;
        let was = state.nodes[index].memory.adopted.write_node as usize == index;
        let is_new = before.phase != Phase::Serving || !was;
        self.give_writes_back(state, index, &before);
        let in_flight = self.blocks().filter(|block| before.flights[*block].on);
        let in_flight = in_flight.fold(0, |blocks, block| blocks | 1 << block);
        Model::adopt(state, index, register);
        let above = self.has(Rule::SequencesAbove);
        let node = &mut state.nodes[index];
        let seen = node.memory.highest();
        node.memory.lead = Lead {
            phase: Phase::Sealing,
            sealed_by: 1 << index,
            marked: if is_new { node.disk.marks } else { in_flight },
            sequence: if above { seen.max(before.sequence) } else { 0 },
            is_new,
            ..Lead::default()
        };
        if !above {
            node.memory.settled = 0;
        }
    }

    /// What was compared goes on as a write where no epoch was between, else it is lost; what is being compared is compared anew.
    fn give_writes_back(&self, state: &mut State, index: usize, lead: &Lead) {
        let (before, next) = (state.nodes[index].memory.adopted.epoch, state.register.epoch);
        let comparing = lead.comparing.iter().flatten();
        state
            .client_writes
            .extend(comparing.map(|comparing| comparing.write));
        for (block, flight) in lead.flights.iter().enumerate() {
            let is_lost = flight.compared && next != before + 1 && self.has(Rule::ComparedStays);
            if flight.on && flight.client != RECONCILIATION && !is_lost {
                state.client_writes.push(ClientWrite {
                    client: flight.client,
                    operation: flight.operation,
                    session: flight.session,
                    block: block as u8,
                    value: flight.value,
                    expected: None,
                    compared_for: if flight.compared { next } else { 0 },
                });
            }
        }
    }
}
