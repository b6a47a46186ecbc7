//! Simulated clients: each has one operation at a time, on one chunk, and tries again in a new
//! session until it is acknowledged.

use std::rc::Rc;

use foundation::Epoch;

use super::flushes::Flush;
use super::hosts::Way;
use super::linear::{End, Op, SLOTS};
use super::reserve::PORTALS;
use super::world::{CHUNK_BLOCKS, Event, GIVES_UP, HARM, MS, SECOND, World, node_index};
use crate::configuration::ChunkConfig;
use crate::identity::{BlockRange, HostId, RequestId, Session, TraceId, WriterToken};
use crate::map::{ChunkMap, Reaction};
use crate::message::WriteKind;
use crate::output::{Operation, Request, Status};

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) chunk: usize,
    pub(super) range: BlockRange,
    pub(super) op: Op,
    pub(super) kind: WriteKind,
    pub(super) token: WriterToken,
    elsewhere: bool,
    /// What a flush of the whole volume has still to do.
    flush: Option<Flush>,
    /// When it began.
    pub(super) began: u64,
    /// The host may not read, and has not been let since it began.
    pub(super) barred: bool,
}

impl Pending {
    /// What a node is asked to write, and the values that travel with it: of one that compares first the one that it expects, then the new one.
    pub(super) fn write(&self) -> (Operation, Option<Rc<Vec<u32>>>) {
        let values = match self.op {
            Op::Write(value) | Op::Force(value) => vec![value; self.range.count as usize],
            Op::Exchange(expected, value) => vec![expected, value],
            Op::Read | Op::Flush => unreachable!("neither writes"),
        };
        let operation = Operation::Write {
            kind: self.kind,
            data: None,
            force_unit_access: matches!(self.op, Op::Force(_)),
            compares: matches!(self.op, Op::Exchange(..)),
        };
        let values = (self.kind == WriteKind::Data).then(|| Rc::new(values));
        (operation, values)
    }
}

#[derive(Debug)]
pub(super) struct Client {
    session: u64,
    pub(super) attempt: u64,
    pub(super) map: Vec<ChunkConfig>,
    pub(super) pending: Option<Pending>,
    /// Reads from copies that its first map named, as a client would that never refreshes.
    stubborn: bool,
    /// What it writes under.
    token: WriterToken,
    /// It has ended in the middle of a write, which may take effect for ever.
    pub(super) gone: bool,
    /// Where its commands go through a portal.
    pub(super) way: Way,
}

impl Client {
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_none() || self.gone
    }
}

impl World {
    pub(super) fn add_clients(&mut self) {
        let mut count = self.random.between(3, SLOTS as u64) as usize;
        if self.reserved.is_some() {
            // Two hosts or three, by two portals each.
            count = count.max(4).next_multiple_of(PORTALS);
        }
        for client in 0..self.script.clients.unwrap_or(count).min(count) {
            self.clients.push(Client {
                session: 1,
                attempt: 0,
                map: self.store.clone(),
                pending: None,
                stubborn: client >= count - 2,
                token: WriterToken(0),
                gone: false,
                way: Way::default(),
            });
            self.at(0, Event::ClientStep { client });
        }
    }

    pub(super) fn client_step(&mut self, client: usize) {
        let begins = self.clients[client].pending.is_none();
        if self.clients[client].gone || begins && self.healing && !self.does_last_operation(client) {
            return;
        }
        if begins {
            self.begin(client);
        }
        self.attempt(client);
    }

    fn begin(&mut self, client: usize) {
        let Some(chunks) = self.served_chunk(client) else {
            // It comes back as soon as its portal serves something.
            return;
        };
        let newest = self.reserved.is_some() && self.random.chance(1, 3);
        let mut chunk = match newest {
            true => chunks as usize - 1,
            false => self.random.below(chunks) as usize,
        };
        // Few blocks, so that clients meet.
        let start = self.random.below(u64::from(CHUNK_BLOCKS) - 1) as u32;
        let start = if self.random.chance(1, 2) || self.shape.scenario == HARM {
            start / 4
        } else {
            start
        };
        let count = self.random.between(1, 2) as u32;
        let mut range = BlockRange { start, count };
        let choice = self.random.below(100);
        let (mut kind, mut flush) = (WriteKind::Data, None);
        let reads = match self.shape.scenario {
            // Regions that nobody has written for long.
            GIVES_UP => 88,
            _ if self.clients[client].stubborn => 80,
            _ => 40,
        };
        let mut op = if choice < reads {
            Op::Read
        } else if choice < if self.shape.scenario == 1 { 88 } else { 95 } {
            self.next_value += 1;
            match self.random.below(20) {
                0 => kind = WriteKind::Zeroes,
                1 => kind = WriteKind::Deallocate,
                _ => {}
            }
            if self.snapshots.is_some() {
                // What a snapshot holds must say which write it was.
                kind = WriteKind::Data;
            }
            let value = if kind == WriteKind::Data {
                self.next_value
            } else {
                0
            };
            match self.random.below(6) {
                0 => Op::Force(value),
                1 if kind == WriteKind::Data && self.may_exchange() => {
                    range = self.range_to_compare(chunk, start);
                    let monitor = &self.monitors[chunk][range.start as usize];
                    Op::Exchange(monitor.any_value(&mut self.random), value)
                }
                _ => Op::Write(value),
            }
        } else {
            range = BlockRange {
                start: 0,
                count: CHUNK_BLOCKS,
            };
            let Some(first) = self.begin_flush(chunk) else {
                self.at(20 * MS, Event::ClientStep { client });
                return;
            };
            (chunk, flush) = first;
            Op::Flush
        };
        if self.shape.leased && op.changes() && self.takes_over(client) {
            kind = WriteKind::Fence;
            range = BlockRange::default();
            if let Op::Exchange(_, value) = op {
                op = Op::Write(value);
            }
        }
        let token = self.clients[client].token;
        let fenced = match self.reserved.is_some() {
            true => self.begins_without_right(client, op),
            false => token < self.in_force[chunk] && !matches!(op, Op::Read | Op::Flush),
        };
        let only = [chunk];
        for &chunk in flush.as_ref().map_or(&only[..], |flush| &flush.promises) {
            for block in range.start..range.start + range.count {
                let monitor = &mut self.monitors[chunk][block as usize];
                if fenced {
                    monitor.freeze(client);
                }
                monitor.invoke(client, op);
            }
        }
        if kind == WriteKind::Data {
            self.note_issued(chunk, range, op);
        }
        let elsewhere = false;
        let (began, barred) = (self.now, self.begins_unread(client, op));
        self.clients[client].pending = Some(Pending {
            chunk,
            range,
            op,
            kind,
            token,
            elsewhere,
            flush,
            began,
            barred,
        });
    }

    /// One block: where another client writes just now, if any does, so that the two meet. Hosts meet in the blocks that their portals share.
    fn range_to_compare(&self, chunk: usize, start: u32) -> BlockRange {
        let pending = self.clients.iter().filter_map(|c| c.pending.as_ref());
        let other = pending
            .filter(|p| p.chunk == chunk && p.op.changes() && p.range.count > 0)
            .find(|_| self.reserved.is_none());
        BlockRange {
            start: other.map_or(start, |other| other.range.start),
            count: 1,
        }
    }

    /// Whether clients compare before they write: not where each write that a snapshot may hold is one that was made, nor where what is
    /// looked for needs many writes in few seeds.
    fn may_exchange(&self) -> bool {
        self.snapshots.is_none() && self.restored.is_none()
    }

    /// Whether a client becomes the writer and fences a chunk. Else it may go on where the newest writer is, as another
    /// task of that writer would, or write under a token that has been overtaken.
    fn takes_over(&mut self, client: usize) -> bool {
        match self.random.below(20) {
            0 | 1 => {
                let token = match self.whole.is_some() {
                    true => self.lease_from_master(client),
                    false => Some(WriterToken(self.newest_token.0 + 1)),
                };
                if let Some(token) = token {
                    self.newest_token = token;
                    self.clients[client].token = token;
                }
                token.is_some()
            }
            2..5 => {
                self.clients[client].token = self.newest_token;
                false
            }
            _ => false,
        }
    }

    /// Something was acknowledged under a token: what older writers have under way in the chunk takes no effect any
    /// more.
    pub(super) fn take_over(&mut self, chunk: usize, token: WriterToken) {
        if token <= self.in_force[chunk] {
            return;
        }
        self.in_force[chunk] = token;
        if self.reserved.is_some() {
            // Who goes on under a newer token may: what hosts lose is looked at where they lose it.
            return;
        }
        for (client, state) in self.clients.iter().enumerate() {
            let Some(pending) = state.pending.as_ref().filter(|p| p.chunk == chunk) else {
                continue;
            };
            if pending.token < token && !matches!(pending.op, Op::Read | Op::Flush) {
                for block in pending.range.start..pending.range.start + pending.range.count {
                    self.monitors[chunk][block as usize].freeze(client);
                }
            }
        }
    }

    /// A client's write was refused for its token.
    fn fenced(&mut self, client: usize) {
        let Some(mut pending) = self.clients[client].pending.take() else {
            return;
        };
        if pending.token >= self.newest_token {
            self.fail(format!("client {client} is the newest writer and was fenced"));
        }
        if self.in_force[pending.chunk] <= pending.token {
            // The newer writer is not acknowledged yet; until then an earlier attempt may take effect.
            let others = self.clients.iter().filter_map(|other| other.pending.as_ref());
            let mut others = others.filter(|other| other.chunk == pending.chunk);
            if self.healing && !others.any(|other| other.token > pending.token) {
                // Nor will it be: what it asked for compared, and found something else, which fences nobody for good.
                self.clients[client].token = self.newest_token;
                pending.token = self.newest_token;
            }
            self.clients[client].pending = Some(pending);
        } else {
            for block in pending.range.start..pending.range.start + pending.range.count {
                self.monitors[pending.chunk][block as usize].abandon(client);
            }
            if self.healing || self.random.chance(1, 2) {
                self.clients[client].token = self.newest_token;
            }
        }
        self.clients[client].attempt += 1;
        let delay = self.random.between(MS, 30 * MS);
        self.at(delay, Event::ClientStep { client });
    }

    /// Sends the pending operation, once more perhaps.
    fn attempt(&mut self, client: usize) {
        if self.reserved.is_some() {
            return self.attempt_by_portal(client);
        }
        self.clients[client].attempt += 1;
        let state = &self.clients[client];
        let attempt = state.attempt;
        let Some(pending) = &state.pending else {
            return;
        };
        let (chunk, range) = (pending.chunk, pending.range);
        let Some(config) = state.map.get(chunk) else {
            return self.wait_for_chunk(client, attempt);
        };
        let mut epoch = config.epoch;
        let mut node = node_index(config.write_node);
        let mut payload = None;
        let operation = match pending.op {
            Op::Read => {
                let mut members = &config.members;
                if state.stubborn && !self.healing && !pending.elsewhere {
                    members = &self.first[chunk].members;
                    epoch = Epoch(1 << 40);
                }
                let at = self.random.below(members.len() as u64) as usize;
                node = node_index(members[at].node);
                let past = if state.stubborn { 2 } else { 1 };
                if self.random.chance(past, 3) {
                    return self.read_past(node, client, attempt, chunk, range);
                }
                Operation::Read
            }
            Op::Flush => Operation::Flush,
            _ => {
                let (operation, values) = pending.write();
                payload = values;
                operation
            }
        };
        let request = Request {
            id: RequestId(0),
            operation,
            range,
            epoch,
            session: Session {
                host: HostId(client as u64 + 1),
                number: state.session,
            },
            writer_token: pending.token,
            needs_room: false,
            trace: TraceId(0),
        };
        let ask = Event::Ask {
            to: node,
            client,
            attempt,
            chunk,
            request,
            payload,
        };
        let lost = !self.healing && self.random.below(1000) < self.loss;
        if !lost {
            let mut delay = self.random.between(50_000, 2 * MS);
            if !self.healing && self.random.chance(1, 12) {
                delay += self.random.below(4 * SECOND);
            }
            self.at(delay, ask);
        }
        let mut timeout = self.random.between(300 * MS, SECOND);
        if !self.healing && self.random.chance(1, 12) {
            // A client that sleeps: nobody tries its write again in the meantime.
            timeout += self.random.between(SECOND, 8 * SECOND);
        }
        self.at(timeout, Event::ClientTimeout { client, attempt });
    }

    /// The client's map is of before the volume had the chunk.
    fn wait_for_chunk(&mut self, client: usize, attempt: u64) {
        self.refresh(client);
        self.at(20 * MS, Event::ClientTimeout { client, attempt });
    }

    pub(super) fn client_timeout(&mut self, client: usize, attempt: u64) {
        if self.clients[client].pending.is_none() || self.clients[client].attempt != attempt {
            return;
        }
        self.doubt(client);
        if self.gives_up(client) {
            self.clients[client].gone = true;
            return;
        }
        self.begin_session(client);
        self.refresh(client);
        self.attempt(client);
    }

    /// Nobody knows whether what was asked in the session before is done. What compared is not made again, since it could find what it wrote
    /// itself, and an earlier attempt be made after a later one was answered (0133): the client writes the block.
    fn begin_session(&mut self, client: usize) {
        self.clients[client].session += 1;
        let goes_by_portal = self.reserved.is_some();
        let Some(pending) = self.clients[client].pending.as_mut() else {
            return;
        };
        if !matches!(pending.op, Op::Exchange(..)) || goes_by_portal {
            return;
        }
        self.next_value += 1;
        pending.op = Op::Write(self.next_value);
        let (chunk, range, op) = (pending.chunk, pending.range, pending.op);
        self.monitors[chunk][range.start as usize].doubt(client, op);
        self.note_issued(chunk, range, op);
    }

    /// Whether a client whose write was not answered ends, so that nobody writes it again.
    fn gives_up(&mut self, client: usize) -> bool {
        let state = &self.clients[client];
        let writes = |pending: &Pending| pending.op.changes();
        let may = self.shape.scenario == GIVES_UP && !state.stubborn && !self.healing;
        let Some(pending) = state.pending.as_ref().filter(|pending| may && writes(pending)) else {
            return false;
        };
        let Some(config) = state.map.get(pending.chunk) else {
            return false;
        };
        let write_node = node_index(config.write_node);
        self.blocked[write_node][self.shape.nodes] > self.now
    }

    fn refresh(&mut self, client: usize) {
        if self.healing || self.random.chance(3, 4) {
            match self.whole.is_some() {
                true => self.ask_for_map(client),
                false => self.clients[client].map = self.store.clone(),
            }
        }
    }

    pub(super) fn client_answer(&mut self, client: usize, attempt: u64, status: Status, values: &[u32]) {
        if self.chunk_told(client, attempt, status) {
            return;
        }
        let state = &mut self.clients[client];
        // An answer to an earlier attempt came by a connection that is closed.
        if state.attempt != attempt || state.pending.is_none() || state.gone {
            return;
        }
        if self.portal_answered(client, status) || self.met_lost(client, status) {
            return;
        }
        if matches!(status, Status::FencedWriter(_)) {
            return self.fenced(client);
        }
        match ChunkMap::reaction(status) {
            // The program tries again, in the session it has.
            Reaction::Fail if status == Status::NoRoom => {}
            Reaction::Finish => {
                self.finish(client, values, status == Status::Differs);
                return;
            }
            Reaction::NewSession => self.begin_session(client),
            Reaction::TryElsewhere => {
                if let Some(pending) = &mut self.clients[client].pending {
                    pending.elsewhere = true;
                }
            }
            Reaction::Refresh(_) | Reaction::TryAgain => {}
            Reaction::Fail => {
                self.fail(format!("client {client} got {status:?}"));
                return;
            }
        }
        self.refresh(client);
        // Not before this moment: a new attempt must not be taken for this one.
        self.clients[client].attempt += 1;
        let delay = self.random.between(MS, 30 * MS);
        self.at(delay, Event::ClientStep { client });
    }

    fn finish(&mut self, client: usize, values: &[u32], differed: bool) {
        let Some(mut pending) = self.clients[client].pending.take() else {
            return;
        };
        if let Some(next) = self.go_on_with_flush(&mut pending.flush) {
            pending.chunk = next;
            self.clients[client].pending = Some(pending);
            // What an earlier chunk says again counts for none of the others.
            self.clients[client].attempt += 1;
            self.at(MS, Event::ClientStep { client });
            return;
        }
        self.done_ops += 1;
        if let Op::Exchange(..) = pending.op {
            self.exchanged.0 += u64::from(!differed);
            self.exchanged.1 += u64::from(differed);
        }
        if pending.op.changes() && !differed {
            self.note_written(pending.chunk);
            self.lost_are_written(pending.chunk, pending.range, pending.began);
        }
        if pending.op == Op::Read && pending.barred {
            self.fail(format!(
                "client {client} read chunk {} after its host had lost the right to",
                pending.chunk
            ));
        }
        if pending.kind == WriteKind::Data && !differed {
            self.note_acknowledged(pending.op);
        }
        let only = [pending.chunk];
        let chunks = pending.flush.as_ref().map_or(&only[..], |flush| &flush.promises);
        let blocks = (pending.range.start..pending.range.start + pending.range.count).enumerate();
        for (chunk, (at, block)) in chunks
            .iter()
            .flat_map(|chunk| blocks.clone().map(move |block| (*chunk, block)))
        {
            let end = match pending.op {
                Op::Read => End::Saw(values[at]),
                _ if differed => End::Differed,
                _ => End::Done,
            };
            let monitor = &mut self.monitors[chunk][block as usize];
            let before = monitor.describe();
            if !monitor.respond(client, end) {
                let op = pending.op;
                self.fail(format!("client {client}: {op:?} of block {block} of chunk {chunk} ended with {end:?}, which nothing explains; {before}"));
                return;
            }
        }
        let delay = match self.random.below(10) {
            0 => self.random.below(400 * MS),
            _ => self.random.below(20 * MS),
        };
        self.at(delay, Event::ClientStep { client });
    }
}
