//! Joins: how a copy comes back, or in place of a member that ended (contract: "Return", "Grants", 4; decision 0058).
//!
//! As in the code, and unlike the contract's text, a piece takes a place in the order of writes: it has a sequence of its
//! own, begins when what is in flight on its block is on the write node and on the joining copy, and holds later writes
//! of the block back.

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{BLOCKS, Join, Phase, ReplicaWrite, Set, State, has, members};

impl Model {
    pub(crate) fn join_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let node = &state.nodes[index];
        let (config, lead) = (&node.memory.adopted, &node.memory.lead);
        let may_replace = self.may_replace(state, index);
        if lead.phase != Phase::Serving && !may_replace {
            return;
        }
        match &lead.join {
            None => {
                let joining = self.nodes().filter(|copy| self.may_join(state, index, *copy));
                out.extend(joining.map(|copy| Action::Join {
                    write_node: index as u8,
                    copy: copy as u8,
                }));
            }
            Some(join) => self.steps_of_join(state, index, join, has(config.set, join.node as usize), out),
        }
    }

    /// Where the minimum forbids leaving a member out, its next life joins in its place, in any phase, once every living
    /// member has sealed.
    fn may_replace(&self, state: &State, index: usize) -> bool {
        let node = &state.nodes[index];
        let (config, lead) = (&node.memory.adopted, &node.memory.lead);
        let answered = |member: usize| has(lead.sealed_by, member) || state.has_ended(config, member);
        self.has(Rule::ReplaceInPlace)
            && (lead.phase != Phase::Sealing
                || members(config.set).all(answered) && self.may_seal(node, config))
    }

    fn may_join(&self, state: &State, index: usize, copy: usize) -> bool {
        let (config, other) = (&state.nodes[index].memory.adopted, &state.nodes[copy]);
        let in_place = has(config.set, copy);
        state.left.joins > 0
            && self.has(Rule::EndedLifeLeaves)
            && copy != index
            && other.up
            && other.disk.copy
            && !config.names(copy, other.life)
            && other.disk.sealed <= config.epoch
            && (!in_place || self.has(Rule::ReplaceInPlace))
            && self.may_seal(other, config)
    }

    fn steps_of_join(&self, state: &State, index: usize, join: &Join, in_place: bool, out: &mut Vec<Action>) {
        let node = &state.nodes[index];
        let (memory, write_node) = (&node.memory, index as u8);
        let (config, lead) = (&memory.adopted, &memory.lead);
        let other = &state.nodes[join.node as usize];
        let is_there = other.is_in(config.epoch) && other.life == join.life && other.memory.joining;
        // By its number a copy knows that it takes part already, and does nothing.
        if is_there && state.left.faults > 0 && !self.has(Rule::JoinNumber) {
            out.push(Action::JoinAgain {
                write_node,
                copy: join.node,
            });
        }
        if is_there && !join.announced {
            let both = 1 << index | 16 << join.node;
            let may_begin = |block: &usize| {
                let flight = &lead.flights[*block];
                has(join.lacks, *block)
                    && join.pieces[*block] == 0
                    && (!flight.on || flight.answers & both == both)
            };
            out.extend(self.blocks().filter(may_begin).map(|block| Action::SendPiece {
                write_node,
                block: block as u8,
            }));
            if join.lacks == 0 && !join.flushed {
                out.push(Action::FlushJoiner { write_node });
            }
        }
        let is_told = |copy: usize| has(state.nodes[copy].memory.announced, join.node as usize);
        let announces = join.flushed && !in_place && self.has(Rule::JoinAnnounced);
        if announces {
            let listening =
                members(config.set).filter(|copy| state.nodes[*copy].is_in(config.epoch) && !is_told(*copy));
            out.extend(listening.map(|copy| Action::Announce {
                write_node,
                copy: copy as u8,
            }));
        }
        let all_told = !announces || members(config.set).all(|c| is_told(c) || state.has_ended(config, c));
        let may_propose = state.left.proposals > 0 && memory.asked != config.epoch;
        if may_propose && join.flushed && !join.proposed && all_told {
            out.push(Action::ProposeJoin { write_node });
        }
        // Announced and not to be had, or refused by the masters: only a newer configuration ends it.
        let is_pending = |proposal: &crate::state::Config| proposal.epoch == config.epoch + 1;
        let is_asked = state.proposals.iter().any(is_pending);
        if state.left.proposals > 0 && (join.announced || join.proposed) && !is_asked {
            out.push(Action::ProposeSame { write_node });
        }
        if !join.announced && !join.proposed {
            out.push(Action::AbandonJoin { write_node });
        }
    }

    /// The copy takes part: it forgets its window, makes the epoch durable, and gets what is in flight. What it lacks is
    /// found now, not when it asked (0058): what was written in the epoch of its last flush or later, and its own marks.
    pub(crate) fn join(&self, state: &mut State, index: usize, copy: usize) {
        state.left.joins -= 1;
        let (config, sessions) = (
            state.nodes[index].memory.adopted,
            state.nodes[index].disk.sessions,
        );
        let node = &mut state.nodes[copy];
        let since = if self.has(Rule::DeltaFromFlush) {
            node.disk.flushed_in
        } else {
            node.disk.left_in + 1
        };
        if self.has(Rule::FenceTravels) {
            for (its, mine) in node.disk.sessions.iter_mut().zip(sessions) {
                *its = mine.max(*its);
            }
        }
        let (life, marks) = (node.life, node.disk.marks);
        Model::adopt(state, copy, config);
        let leader = &mut state.nodes[index];
        let lead = &mut leader.memory.lead;
        lead.joins += 1;
        let number = if self.has(Rule::JoinNumber) { lead.joins } else { 1 };
        if self.has(Rule::JoinNumber) {
            // What an earlier join has had says nothing about this one.
            lead.flights.iter_mut().for_each(|flight| flight.answers &= 15);
            let rounds = lead.flush.iter_mut().chain(&mut lead.fence);
            rounds.for_each(|round| round.answers &= 15);
        }
        let written = self
            .blocks()
            .filter(|block| leader.disk.written_in[*block] >= since);
        let own: Set = if self.has(Rule::OwnMarks) { marks } else { 0 };
        lead.join = Some(Join {
            node: copy as u8,
            life,
            number,
            lacks: written.fold(own, |blocks, block| blocks | 1 << block),
            pieces: [0; BLOCKS],
            flushed: false,
            announced: false,
            proposed: false,
        });
        Self::forget_window(state, copy);
        let memory = &mut state.nodes[copy].memory;
        memory.joining = true;
        memory.join_number = number;
        memory.open = false;
        memory.asked = 0;
        memory.lead = Default::default();
        for block in self.blocks() {
            self.send_flight_to_joiner(state, index, block);
        }
    }

    /// A copy that is let in takes what the write node sends from then on, whatever its own writes were called.
    pub(crate) fn forget_window(state: &mut State, copy: usize) {
        let memory = &mut state.nodes[copy].memory;
        memory.newest = [0; BLOCKS];
        memory.settled = 0;
    }

    fn send_flight_to_joiner(&self, state: &mut State, index: usize, block: usize) {
        let memory = &state.nodes[index].memory;
        let flight = memory.lead.flights[block];
        let Some(join) = memory.lead.join.filter(|_| flight.on) else {
            return;
        };
        state.replica_writes.push(ReplicaWrite {
            to: join.node,
            from: index as u8,
            epoch: memory.adopted.epoch,
            sequence: flight.sequence,
            settled: memory.settled,
            block: block as u8,
            value: flight.value,
            piece: false,
            client: flight.client,
            session: flight.session,
            join: join.number,
        });
    }

    pub(crate) fn send_piece(&self, state: &mut State, index: usize, block: usize) {
        let node = &mut state.nodes[index];
        let memory = &mut node.memory;
        memory.lead.sequence += 1;
        let sequence = memory.lead.sequence;
        let join = memory
            .lead
            .join
            .as_mut()
            .expect("enabled only while a copy joins");
        join.pieces[block] = sequence;
        state.replica_writes.push(ReplicaWrite {
            to: join.node,
            from: index as u8,
            epoch: memory.adopted.epoch,
            sequence,
            settled: memory.settled,
            block: block as u8,
            value: node.disk.value[block],
            piece: true,
            client: crate::state::RECONCILIATION,
            session: 0,
            join: join.number,
        });
    }

    /// Moves no flush record (0058; the contract would let this one move it).
    pub(crate) fn flush_joiner(&self, state: &mut State, index: usize) {
        let join = state.nodes[index].memory.lead.join.as_mut();
        let join = join.expect("enabled only while a copy joins");
        join.flushed = true;
        let copy = join.node as usize;
        self.make_durable(state, copy);
    }

    pub(crate) fn announce(&self, state: &mut State, index: usize, copy: usize) {
        let join = state.nodes[index].memory.lead.join.as_mut();
        let join = join.expect("enabled only while a copy joins");
        join.announced = true;
        let joiner = 1 << join.node;
        state.nodes[copy].memory.announced = joiner;
    }

    pub(crate) fn propose_join(&self, state: &mut State, write_node: u8) {
        let memory = &mut state.nodes[write_node as usize].memory;
        let config = memory.adopted;
        memory.asked = config.epoch;
        let join = memory
            .lead
            .join
            .as_mut()
            .expect("enabled only while a copy joins");
        join.proposed = true;
        let (node, life) = (join.node, join.life);
        self.propose(
            state,
            |proposed| {
                proposed.set |= 1 << node;
                proposed.lives[node as usize] = life;
            },
            config,
        );
    }

    pub(crate) fn propose_same(&self, state: &mut State, write_node: u8) {
        let memory = &mut state.nodes[write_node as usize].memory;
        memory.asked = memory.adopted.epoch;
        let config = memory.adopted;
        self.propose(state, |_| {}, config);
    }
}
