//! How hosts of the simulated volume read and write through portals, under claims (`docs/decisions/0068`) and the token of what the
//! portal knows to be reserved (`docs/decisions/0100`); and what they must not do any more.

use super::injected::FAULTS_END;
use super::linear::{Monitor, Op};
use super::reserve::{PORTALS, Reserved, Rights};
use super::world::{Event, MS, Payload, SECOND, World, node_index};
use crate::configuration::ChunkConfig;
use crate::identity::{BlockRange, HostId, RequestId, Session, TraceId, WriterToken};
use crate::message::WriteKind;
use crate::output::{Operation, Request, Status};
use std::collections::BTreeMap;

/// A client's claims, and what it waits for, where its commands go through a portal.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The claim on each chunk, and whether something under it is in doubt: then another follows it.
    claims: BTreeMap<usize, (u64, bool)>,
    /// What it sends is a claim, after this one.
    claiming: Option<u64>,
    /// Something was sent and is not answered; until then nothing else is.
    sent: bool,
    /// After so many looks of that life the portal refuses what it would refuse now.
    looked: Option<(u64, u64)>,
}

impl World {
    /// Sends the pending operation of a client through its portal, or the claim that it needs before.
    pub(super) fn attempt_by_portal(&mut self, client: usize) {
        let (host, portal) = (client / PORTALS, client % PORTALS);
        let later = Event::ClientStep { client };
        if self.clients[client].way.sent {
            return;
        }
        self.clients[client].attempt += 1;
        let Some(pending) = &self.clients[client].pending else {
            return;
        };
        let (chunk, range, op) = (pending.chunk, pending.range, pending.op);
        let changes = op.changes();
        if self.portal_stands(portal) || chunk >= self.at_portal(portal).serves {
            return self.at(50 * MS, later);
        }
        let known = self.at_portal(portal).known.as_ref();
        let rights = known.map(|known| (known.rules.rights(host), known.token));
        let may = |(rights, token)| {
            let rights: Rights = rights;
            let may = if changes { rights.write } else { rights.read };
            may.then_some(token)
        };
        let token = match op {
            Op::Flush => Some(WriterToken(0)),
            _ => rights.and_then(may),
        };
        let Some(token) = token else {
            return self.not_admitted(client, portal);
        };
        let state = &mut self.clients[client];
        let attempt = state.attempt;
        state.way.looked = None;
        let Some(config) = state.map.get(chunk).cloned() else {
            if self.whole.is_some() {
                self.ask_for_map(client);
                return self.at(20 * MS, later);
            }
            state.map = self.store.clone();
            return self.at(MS, later);
        };
        let mut to = config.clone();
        let session = Session {
            host: HostId::through_portals(1 + host as u64),
            number: 0,
        };
        let claimed = state.way.claims.get(&chunk).copied();
        state.way.claiming = None;
        let mut payload = None;
        let request = match op {
            Op::Read => {
                let at = self.random.below(config.members.len() as u64) as usize;
                to.write_node = config.members[at].node;
                request(&config, session, token, range, Operation::Read)
            }
            Op::Flush => request(&config, session, token, range, Operation::Flush),
            _ => match claimed {
                Some((number, false)) => {
                    let pending = state.pending.as_ref().expect("it was pending above");
                    let (operation, values) = pending.write();
                    payload = values;
                    request(&config, Session { number, ..session }, token, range, operation)
                }
                _ => {
                    let number = claimed.map_or(0, |(number, _)| number);
                    state.way.claiming = Some(number);
                    claim(&config, Session { number, ..session }, token)
                }
            },
        };
        self.clients[client].way.sent = true;
        if let Some(pending) = &mut self.clients[client].pending {
            pending.token = token;
        }
        self.send_request(portal, client, attempt, chunk, (&to, request), payload);
        let mut timeout = self.random.between(300 * MS, SECOND);
        if !self.healing && self.random.chance(1, 12) {
            timeout += self.random.between(SECOND, 4 * SECOND);
        }
        self.at(timeout, Event::ClientTimeout { client, attempt });
    }

    pub(super) fn send_request(
        &mut self,
        portal: usize,
        client: usize,
        attempt: u64,
        chunk: usize,
        (config, request): (&ChunkConfig, Request),
        payload: Payload,
    ) {
        let to = node_index(config.write_node);
        let ask = Event::Ask {
            to,
            client,
            attempt,
            chunk,
            request,
            payload,
        };
        if !self.healing && self.random.chance(1, 12) {
            // Held by the portal, or on the way, for long.
            let delay = self.random.below(4 * SECOND);
            return self.at(delay, ask);
        }
        self.send(portal, to, ask);
    }

    /// By what the portal knows the host may not: it looks once more, and then refuses.
    fn not_admitted(&mut self, client: usize, portal: usize) {
        let pause = self.random.between(20 * MS, 60 * MS);
        let state = self.at_portal(portal);
        let (life, looks) = (state.life, state.looks);
        // One that is under way may have been answered already.
        let wanted = looks + 1 + u64::from(state.look.is_some());
        let knows = state.known.is_some();
        match self.clients[client].way.looked {
            Some((of, wanted)) if of == life && looks >= wanted && knows => {
                self.clients[client].way.looked = None;
                if self.refused(client) {
                    return;
                }
            }
            Some((of, _)) if of == life => {}
            _ => self.clients[client].way.looked = Some((life, wanted)),
        }
        self.look(portal);
        self.at(pause, Event::ClientStep { client });
    }

    /// A host hears of a conflict. True if its command has ended by that: before the state is in force the host tries on, as
    /// what was sent before may take effect.
    fn refused(&mut self, client: usize) -> bool {
        let host = client / PORTALS;
        let Some(pending) = &self.clients[client].pending else {
            return true;
        };
        let (op, chunk, range, began) = (pending.op, pending.chunk, pending.range, pending.began);
        let changes = op != Op::Read;
        // Masters of their own have to find out first who of them leads.
        let settled = match self.whole.is_some() {
            true => 8 * SECOND,
            false => SECOND,
        };
        if self.healing && self.reserved().has_had(host, changes, began) && began > FAULTS_END + settled {
            self.fail(format!(
                "client {client} of host {host} was refused what the host has the right to"
            ));
            return true;
        }
        if !self.reserved().has_lost(host, changes) {
            return false;
        }
        self.reserved().refused += 1;
        for block in range.start..range.start + range.count {
            self.monitors[chunk][block as usize].abandon(client);
        }
        self.clients[client].pending = None;
        let delay = self.random.below(300 * MS);
        self.at(delay, Event::ClientStep { client });
        true
    }

    /// An answer to a client whose commands go through a portal; true if nothing is left to be done about it.
    pub(super) fn portal_answered(&mut self, client: usize, status: Status) -> bool {
        let portal = client % PORTALS;
        if self.reserved.is_none() {
            return false;
        }
        if self.portal_stands(portal) {
            // Nobody heard it.
            return true;
        }
        let newest = self.newest_token;
        let state = &mut self.clients[client];
        state.way.sent = false;
        let Some(pending) = &state.pending else {
            return true;
        };
        let (chunk, token) = (pending.chunk, pending.token);
        let claims = &mut state.way.claims;
        match (status, state.way.claiming) {
            (Status::Claimed(number), Some(_)) => drop(claims.insert(chunk, (number, false))),
            (Status::StaleSession, _) => drop(claims.remove(&chunk)),
            (Status::FencedWriter(_), _) => {
                if token >= newest {
                    self.fail(format!(
                        "client {client} went under the newest token and was fenced"
                    ));
                }
                self.look(portal);
                self.doubt(client);
            }
            (Status::Done | Status::Differs, _) => return false,
            _ => {
                self.doubt(client);
                return false;
            }
        }
        self.clients[client].attempt += 1;
        let delay = match status {
            Status::Claimed(_) => 0,
            _ => self.random.between(MS, 30 * MS),
        };
        self.at(delay, Event::ClientStep { client });
        true
    }

    /// What was sent under a claim may still take effect: another claim goes before whatever follows.
    pub(super) fn doubt(&mut self, client: usize) {
        let state = &mut self.clients[client];
        state.way.sent = false;
        let Some(pending) = &state.pending else {
            return;
        };
        if pending.op.changes()
            && let Some((_, doubt)) = state.way.claims.get_mut(&pending.chunk)
        {
            *doubt = true;
        }
    }

    /// The chunk that a client's next operation is for, which its portal serves; none while that serves none.
    pub(super) fn served_chunk(&mut self, client: usize) -> Option<u64> {
        let Some(reserved) = &self.reserved else {
            let chunks = match self.whole.is_some() {
                true => self.clients[client].map.len(),
                false => self.shape.chunks,
            };
            return Some(chunks as u64);
        };
        let serves = reserved.portals[client % PORTALS].serves as u64;
        (serves > 0).then_some(serves)
    }

    /// An operation of a client begins: true if its host may not write any more, so that it must not take effect.
    pub(super) fn begins_without_right(&mut self, client: usize, op: Op) -> bool {
        let changes = op.changes();
        match &self.reserved {
            Some(reserved) => changes && reserved.has_lost(client / PORTALS, true),
            None => false,
        }
    }

    /// Whether a read that begins now may not be answered, unless the host is given the right back.
    pub(super) fn begins_unread(&self, client: usize, op: Op) -> bool {
        let lost = |reserved: &Reserved| reserved.has_lost(client / PORTALS, false);
        op == Op::Read && self.reserved.as_deref().is_some_and(lost)
    }

    /// Nothing that the host has under way writes any more.
    pub(super) fn lost_writes(&mut self, host: usize) {
        self.each_pending_write(host, |monitor, client| monitor.freeze(client));
    }

    /// What the host has under way may write again, or read.
    pub(super) fn given_back(&mut self, host: usize, reads: bool, writes: bool) {
        if writes {
            self.each_pending_write(host, |monitor, client| monitor.thaw(client));
        }
        for client in self.clients.iter_mut().skip(PORTALS * host).take(PORTALS) {
            if let Some(pending) = client.pending.as_mut().filter(|_| reads) {
                pending.barred = false;
            }
        }
    }

    fn each_pending_write(&mut self, host: usize, what: impl Fn(&mut Monitor, usize)) {
        let clients = self.clients.iter().enumerate();
        for (client, state) in clients.skip(PORTALS * host).take(PORTALS) {
            let Some(pending) = &state.pending else {
                continue;
            };
            if pending.op.changes() {
                for block in pending.range.start..pending.range.start + pending.range.count {
                    what(&mut self.monitors[pending.chunk][block as usize], client);
                }
            }
        }
    }
}

fn request(
    config: &ChunkConfig,
    session: Session,
    writer_token: WriterToken,
    range: BlockRange,
    operation: Operation,
) -> Request {
    Request {
        id: RequestId(0),
        operation,
        range,
        epoch: config.epoch,
        session,
        writer_token,
        needs_room: false,
        trace: TraceId(0),
    }
}

pub(super) fn claim(config: &ChunkConfig, session: Session, token: WriterToken) -> Request {
    let operation = Operation::Write {
        kind: WriteKind::Fence,
        data: None,
        force_unit_access: false,
        compares: false,
    };
    request(config, session, token, BlockRange::default(), operation)
}
