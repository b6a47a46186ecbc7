//! What clients ask, ask again and are answered; the monitors hear of both.

use crate::action::Action;
use crate::model::Model;
use crate::monitor::Operation;
use crate::state::{ClientWrite, State};

impl State {
    /// The value of the next write: each has its own, so a read says which write it saw.
    pub(crate) fn next_value(&self) -> u8 {
        self.left.written + 1
    }
}

impl Model {
    pub(crate) fn client_steps(&self, state: &State, out: &mut Vec<Action>) {
        for number in 0..self.bounds.clients as usize {
            let client = number as u8;
            if state.clients[number].gone {
                continue;
            }
            let is_writing = state.clients[number].operation.writes();
            if is_writing && state.left.faults > 0 {
                out.push(Action::Vanish { client });
            }
            match state.clients[number].operation {
                Operation::None if state.left.operations > 0 => {
                    for block in 0..self.bounds.blocks as u8 {
                        out.push(Action::InvokeWrite { client, block });
                        out.push(Action::InvokeRead { client, block });
                        let values = if self.bounds.compares {
                            0..state.next_value()
                        } else {
                            0..0
                        };
                        out.extend(values.map(|expected| Action::InvokeExchange {
                            client,
                            block,
                            expected,
                        }));
                    }
                    out.push(Action::InvokeFlush { client });
                }
                // Nobody knows whether it was done: made again it could find what it wrote itself, so it is not (0133).
                Operation::Exchange(..)
                    if !self.is_through_portals(number) && self.is_lost(state, number) =>
                {
                    out.push(Action::GiveUp { client });
                }
                Operation::Write(_) | Operation::Exchange(..) if self.is_lost(state, number) => {
                    out.push(Action::Resend { client });
                }
                Operation::Write(_) if state.left.faults > 0 && !self.is_through_portals(number) => {
                    out.push(Action::Retry { client });
                }
                _ => {}
            }
        }
    }

    /// Whether the newest attempt of the client's write is nowhere any more.
    fn is_lost(&self, state: &State, number: usize) -> bool {
        let client = &state.clients[number];
        let is_it = |write: &ClientWrite| write.operation == client.id && write.session == client.session;
        let mut flights = state.nodes.iter().flat_map(|node| node.memory.lead.flights);
        let is_in_flight = flights.any(|f| f.on && f.operation == client.id && f.session == client.session);
        let mut compared = state.nodes.iter().flat_map(|node| node.memory.lead.comparing);
        let is_compared = compared.any(|comparing| comparing.is_some_and(|c| is_it(&c.write)));
        !is_in_flight && !is_compared && !state.client_writes.iter().chain(&state.kept).any(is_it)
    }

    pub(crate) fn invoke(&self, state: &mut State, number: u8, block: u8, operation: Operation, id: u8) {
        state.left.operations -= 1;
        let client = &mut state.clients[number as usize];
        client.operation = operation;
        client.block = block;
        client.id = id;
        for (index, monitor) in state.monitors.iter_mut().enumerate() {
            let concerns = operation == Operation::Flush || index == block as usize;
            let seen = if concerns { operation } else { Operation::Elsewhere };
            monitor.invoke(number as usize, seen);
        }
    }

    /// Of a write that compares first, `expected` is what the block must have for it.
    pub(crate) fn invoke_write(&self, state: &mut State, number: u8, block: u8, expected: Option<u8>) {
        let value = state.next_value();
        state.left.written = value;
        let plain = Operation::Write(value);
        let operation = expected.map_or(plain, |expected| Operation::Exchange(expected, value));
        self.invoke(state, number, block, operation, value);
        self.send_write(state, number);
    }

    /// A native client begins a new session with each attempt; a portal repeats under its generation.
    pub(crate) fn send_again(&self, state: &mut State, number: u8) {
        if !self.is_through_portals(number as usize) {
            state.clients[number as usize].session += 1;
        }
        self.send_write(state, number);
    }

    /// Puts the client's write on its way, by its portal if it has one.
    pub(crate) fn send_write(&self, state: &mut State, number: u8) {
        let client = state.clients[number as usize];
        let (value, expected) = match client.operation {
            Operation::Write(value) => (value, None),
            Operation::Exchange(expected, value) => (value, Some(expected)),
            _ => return,
        };
        let write = ClientWrite {
            client: number,
            operation: client.id,
            session: client.session,
            block: client.block,
            value,
            expected,
            compared_for: 0,
        };
        if self.is_through_portals(number as usize) {
            state.kept.push(write);
        } else {
            state.client_writes.push(write);
        }
    }

    /// A client is answered. The error: no order of what was done explains the answer.
    pub(crate) fn respond(
        &self,
        state: &mut State,
        number: usize,
        read: Option<u8>,
        block: usize,
    ) -> Result<(), String> {
        let is_flush = state.clients[number].operation == Operation::Flush;
        for (index, monitor) in state.monitors.iter_mut().enumerate() {
            let concerns = is_flush || index == block;
            let explained = monitor.respond(number, if index == block { read } else { None });
            if concerns && !explained {
                return Err(match read {
                    Some(value) if state.clients[number].operation.writes() => {
                        format!(
                            "client {number} was told that block {block} has {value}, not what it expected: not linearizable"
                        )
                    }
                    Some(value) => {
                        format!("client {number} read {value} from block {block}: not linearizable")
                    }
                    None if is_flush => format!("the flush of client {number} has no explanation"),
                    None => format!("the acknowledgement of a write to client {number} has no explanation"),
                });
            }
        }
        state.clients[number].operation = Operation::None;
        state.clients[number].block = 0;
        state.clients[number].id = 0;
        Ok(())
    }
}
