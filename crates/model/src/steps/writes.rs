//! Writes, settling, flushes and marks (contract: "Writes"; "Crash", first point; decision 0042, 1, 4 to 6).

use crate::action::Action;
use crate::model::Model;
use crate::monitor::Operation;
use crate::rules::Rule;
use crate::state::{
    ClientWrite, Flight, Lead, Memory, Phase, RECONCILIATION, ReplicaWrite, Round, Set, State, has, members,
};

impl Model {
    /// Whether a piece for the joining copy is under way on this block.
    pub(crate) fn has_piece(&self, lead: &Lead, block: usize) -> bool {
        lead.join.is_some_and(|join| join.pieces[block] > 0)
    }

    /// The copies of this epoch, the joining one included.
    pub(crate) fn copies(memory: &Memory) -> Set {
        let joiner = memory.lead.join.map_or(0, |join| 1 << join.node);
        memory.adopted.set | joiner
    }

    /// Whose answers an acknowledgement needs; no grant (0042, 1).
    pub(crate) fn required(&self, memory: &Memory) -> u8 {
        let joiner = memory.lead.join.filter(|_| self.has(Rule::JoinerAcknowledges));
        memory.adopted.set | joiner.map_or(0, |join| 16 << join.node)
    }

    /// Every write up to here is on every in-sync copy. Nothing new is called settled before reconciliation is complete.
    pub(crate) fn settled_through(&self, memory: &Memory) -> u16 {
        let lead = &memory.lead;
        if lead.phase != Phase::Serving {
            return memory.settled;
        }
        let flights = lead
            .flights
            .iter()
            .filter(|flight| flight.on)
            .map(|flight| flight.sequence);
        let pieces = lead
            .join
            .iter()
            .flat_map(|join| join.pieces)
            .filter(|piece| *piece > 0);
        flights
            .chain(pieces)
            .min()
            .map_or(lead.sequence, |first| first - 1)
    }

    /// Replica writes arrive in any order, and some twice.
    pub(crate) fn message_steps(&self, state: &State, out: &mut Vec<Action>) {
        for message in 0..state.replica_writes.len() as u8 {
            out.push(Action::Deliver { message });
            if state.left.faults > 0 {
                out.push(Action::DeliverTwice { message });
            }
        }
    }

    pub(crate) fn write_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let memory = &state.nodes[index].memory;
        let (lead, write_node) = (&memory.lead, index as u8);
        if lead.phase == Phase::Serving {
            for (message, write) in state.client_writes.iter().enumerate() {
                let block = write.block as usize;
                let early = write.expected.is_some() && !self.has(Rule::ComparesSettled);
                let is_free = self.is_free(lead, block) || early;
                let is_held = lead.comparing[block].is_some() && self.has(Rule::CompareHolds);
                let is_compared = write.expected.is_some() && lead.comparing[block].is_some();
                let is_old = self.is_old(state, index, write);
                let is_late = write.compared_for != 0 && write.compared_for != memory.adopted.epoch;
                let is_behind = self.is_behind_compared(state, index, write);
                let may = is_free && !is_held && !is_compared && !is_behind && !self.is_fencing(lead, write);
                if may && !is_old && !(is_late && self.has(Rule::ComparedStays)) {
                    out.push(Action::Accept {
                        write_node,
                        message: message as u8,
                    });
                }
            }
        }
        if lead.phase == Phase::Serving {
            self.compare_steps(state, index, out);
        }
        let required = self.required(memory);
        for block in self.blocks() {
            let flight = &lead.flights[block];
            if flight.on && flight.answers & required == required {
                out.push(Action::Complete {
                    write_node,
                    block: block as u8,
                });
            }
        }
        let settled = self.settled_through(memory);
        for copy in members(Self::copies(memory)) {
            let other = &state.nodes[copy];
            let opens = !other.memory.open && !other.memory.joining && lead.phase == Phase::Serving;
            if other.is_in(memory.adopted.epoch) && (other.memory.settled < settled || opens) {
                out.push(Action::Settle {
                    write_node,
                    copy: copy as u8,
                });
            }
        }
    }

    /// Whether nothing is in flight that a write of the block waits for: no write, and no piece (0058).
    pub(crate) fn is_free(&self, lead: &Lead, block: usize) -> bool {
        !lead.flights[block].on && !self.has_piece(lead, block)
    }

    /// Whether it is of an older session than the write node has seen of its client, and refused.
    pub(crate) fn is_old(&self, state: &State, index: usize, write: &ClientWrite) -> bool {
        let newest = state.nodes[index].disk.sessions[write.client as usize];
        write.session < newest && self.has(Rule::SessionFence)
    }

    /// The write node orders a client's write, or reads what it is compared with.
    pub(crate) fn accept(&self, state: &mut State, index: usize, message: usize) {
        let write = state.client_writes.remove(message);
        if !self.is_through_portals(write.client as usize) {
            let session = &mut state.nodes[index].disk.sessions[write.client as usize];
            *session = write.session.max(*session);
        }
        match write.expected {
            Some(_) => self.compare(state, index, write),
            None => self.send(state, index, write),
        }
    }

    /// Gives a write the next sequence and sends it to every copy, the write node's own included.
    pub(crate) fn send(&self, state: &mut State, index: usize, write: ClientWrite) {
        let memory = &mut state.nodes[index].memory;
        memory.lead.sequence += 1;
        memory.lead.flights[write.block as usize] = Flight {
            on: true,
            sequence: memory.lead.sequence,
            value: write.value,
            answers: 0,
            client: write.client,
            operation: write.operation,
            session: write.session,
            compared: write.expected.is_some() || write.compared_for != 0,
        };
        let memory = *memory;
        for to in members(Self::copies(&memory)) {
            let join = memory.lead.join.filter(|join| join.node as usize == to);
            state.replica_writes.push(ReplicaWrite {
                to: to as u8,
                from: index as u8,
                epoch: memory.adopted.epoch,
                sequence: memory.lead.sequence,
                settled: memory.settled,
                block: write.block,
                value: write.value,
                piece: false,
                client: write.client,
                session: write.session,
                join: join.map_or(0, |join| join.number),
            });
        }
    }

    /// A replica write arrives. A copy ignores what is settled, applied, or older than what it has (`Window::arrival`);
    /// the mark and the session are durable before the block changes.
    pub(crate) fn deliver(&self, state: &mut State, write: ReplicaWrite) {
        let block = write.block as usize;
        let node = &mut state.nodes[write.to as usize];
        let memory = &mut node.memory;
        let is_current = memory.adopted.epoch == write.epoch && node.disk.sealed == write.epoch;
        let is_other_join = memory.joining && write.join != memory.join_number;
        let takes = is_current || !self.has(Rule::Seal) && memory.adopted.set != 0;
        if !node.up || !takes || is_other_join {
            return;
        }
        memory.settled = memory.settled.max(write.settled);
        // A portal's generation comes in force by its fence alone.
        let has_session = write.client != RECONCILIATION && !self.is_through_portals(write.client as usize);
        if self.has(Rule::FenceTravels) && has_session {
            let session = &mut node.disk.sessions[write.client as usize];
            *session = write.session.max(*session);
        }
        let is_new = write.sequence > memory.newest[block] && write.sequence > memory.settled;
        if is_new || write.piece && !self.has(Rule::KeepNewer) {
            node.disk.value[block] = write.value;
            node.disk.maybe[block] |= 1 << write.value;
            node.disk.marks |= 1 << block;
            node.disk.written_in[block] = write.epoch;
            memory.newest[block] = write.sequence;
        }
        let (life, bit) = (node.life, node.answer_bit(write.to as usize));
        let from = &mut state.nodes[write.from as usize];
        if !from.up || from.memory.adopted.epoch != write.epoch {
            return;
        }
        let lead = &mut from.memory.lead;
        let flight = &mut lead.flights[block];
        if !write.piece {
            if flight.on && flight.sequence == write.sequence {
                flight.answers |= bit;
            }
        } else if let Some(join) = &mut lead.join
            && (join.node, join.life) == (write.to, life)
            && join.pieces[block] == write.sequence
        {
            join.pieces[block] = 0;
            join.lacks &= !(1 << block);
        }
    }

    pub(crate) fn complete(&self, state: &mut State, index: usize, block: usize) -> Result<(), String> {
        let memory = &mut state.nodes[index].memory;
        let flight = std::mem::take(&mut memory.lead.flights[block]);
        memory.settled = self.settled_through(memory);
        if flight.client == RECONCILIATION {
            memory.lead.marked &= !(1 << block);
            return Ok(());
        }
        if self.waits_for(state, flight.client, flight.operation, flight.session) {
            self.respond(state, flight.client as usize, None, block)?;
        }
        Ok(())
    }

    /// Whether the client waits for an answer to this attempt.
    pub(crate) fn waits_for(&self, state: &State, client: u8, operation: u8, session: u8) -> bool {
        let client = &state.clients[client as usize];
        client.operation.writes() && !client.gone && (client.id, client.session) == (operation, session)
    }

    /// Settled-through travels alone; a serving write node's word also opens the copy.
    pub(crate) fn settle(&self, state: &mut State, index: usize, copy: usize) {
        let memory = &state.nodes[index].memory;
        let settled = self.settled_through(memory);
        let serving = memory.lead.phase == Phase::Serving;
        let other = &mut state.nodes[copy].memory;
        other.settled = other.settled.max(settled);
        other.open |= serving && !other.joining;
    }

    pub(crate) fn flush_steps(&self, state: &State, index: usize, out: &mut Vec<Action>) {
        let memory = &state.nodes[index].memory;
        let (lead, write_node) = (&memory.lead, index as u8);
        if lead.phase != Phase::Serving {
            return;
        }
        if lead.flush.is_none() {
            let waiting =
                (0..self.bounds.clients as usize).filter(|c| state.clients[*c].operation == Operation::Flush);
            out.extend(waiting.map(|client| Action::StartFlush {
                write_node,
                client: client as u8,
            }));
        }
        let required = self.required(memory);
        if lead
            .flush
            .is_some_and(|flush| flush.answers & required == required)
        {
            out.push(Action::CompleteFlush { write_node });
        }
        for copy in members(Self::copies(memory)) {
            let other = &state.nodes[copy];
            if !other.is_in(memory.adopted.epoch) {
                continue;
            }
            let copy = copy as u8;
            if lead
                .flush
                .is_some_and(|flush| flush.answers & other.answer_bit(copy as usize) == 0)
            {
                out.push(Action::FlushCopy { write_node, copy });
            }
            let may_clear = !other.memory.joining || !self.has(Rule::JoinerClean);
            let clears = self.blocks().any(|block| {
                has(other.disk.marks, block) && other.memory.newest[block] <= lead.clear_through
            });
            if lead.clear_through > 0 && may_clear && clears {
                out.push(Action::ClearMarks { write_node, copy });
            }
        }
    }

    pub(crate) fn start_flush(&self, state: &mut State, index: usize, client: u8) {
        let memory = &mut state.nodes[index].memory;
        let upto = self.settled_through(memory);
        memory.lead.flush = Some(Round {
            client,
            answers: 0,
            upto,
        });
        if !self.has(Rule::ClearAfterFlush) {
            memory.lead.clear_through = upto;
        }
    }

    /// What the copy has is durable from now on.
    pub(crate) fn flush_copy(&self, state: &mut State, index: usize, copy: usize) {
        let epoch = state.nodes[index].memory.adopted.epoch;
        self.make_durable(state, copy);
        let node = &mut state.nodes[copy];
        if !node.memory.joining || !self.has(Rule::JoinerClean) {
            node.disk.flushed_in = epoch;
        }
        let bit = node.answer_bit(copy);
        if let Some(flush) = &mut state.nodes[index].memory.lead.flush {
            flush.answers |= bit;
        }
    }

    pub(crate) fn make_durable(&self, state: &mut State, index: usize) {
        let disk = &mut state.nodes[index].disk;
        for block in self.blocks() {
            disk.maybe[block] = 1 << disk.value[block];
        }
    }

    pub(crate) fn complete_flush(&self, state: &mut State, index: usize) -> Result<(), String> {
        let lead = &mut state.nodes[index].memory.lead;
        let flush = lead
            .flush
            .take()
            .expect("enabled only while a flush is under way");
        lead.clear_through = flush.upto;
        if state.clients[flush.client as usize].operation == Operation::Flush {
            self.respond(state, flush.client as usize, None, 0)?;
        }
        Ok(())
    }

    pub(crate) fn clear_marks(&self, state: &mut State, index: usize, copy: usize) {
        let through = state.nodes[index].memory.lead.clear_through;
        let node = &mut state.nodes[copy];
        for block in self.blocks() {
            if node.memory.newest[block] <= through {
                node.disk.marks &= !(1 << block);
            }
        }
    }
}
