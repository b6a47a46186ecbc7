//! What hosts of the simulated volume reserve (`docs/decisions/0100`, `0103`): the masters' one record, and the rules by which
//! hosts change it. What must hold of it: once a state is noted or answered as in force, nothing that a host
//! does that lost a right by it takes effect any more, on any chunk, until a later state gives the right back.
//!
//! The rules of NVMe are in another crate, with tests of their own; these are as few as the promise needs.

use std::collections::{BTreeMap, BTreeSet};

use super::flushes::Flushes;
use super::linear::Monitor;
use super::portals::Portal;
use super::world::{CHUNK_BLOCKS, Event, MS, SECOND, World, node_id};
use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::{Incarnation, WriterToken};
use crate::planted::{Bug, Planted};
use foundation::{Epoch, Instant};

use super::world::chunk_id;

/// Hosts, at most. Each has an association with either portal.
pub(super) const HOSTS: usize = 3;
/// Portals, on the first nodes.
pub(super) const PORTALS: usize = 2;
/// How much older an answer may be than the moment at which it is given.
pub(super) const BEHIND_MAX: u64 = 3 * SECOND;
/// Chunks, at most.
const CHUNKS_MAX: usize = 6;
/// Operations that every client must get done after faults have stopped.
const LAST_OPERATIONS: u32 = 3;

/// A type of reservation.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Kind {
    /// Others may not even read.
    pub(super) exclusive: bool,
    /// Every registrant may what the holder may.
    pub(super) registrants: bool,
}

/// What a host wants changed.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Change {
    Register,
    Unregister,
    Acquire(Kind),
    Preempt(usize, Kind),
    Release,
}

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Who is registered, and who holds what.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) registrants: BTreeSet<usize>,
    pub(super) held: Option<(usize, Kind)>,
}

impl Rules {
    pub(super) fn rights(&self, host: usize) -> Rights {
        let Some((holder, kind)) = self.held else {
            return Rights {
                read: true,
                write: true,
            };
        };
        let write = holder == host || kind.registrants && self.registrants.contains(&host);
        Rights {
            read: write || !kind.exclusive,
            write,
        }
    }

    /// None if it is a conflict.
    pub(super) fn after(&self, host: usize, change: Change) -> Option<Self> {
        let mut next = self.clone();
        let registered = self.registrants.contains(&host);
        match change {
            Change::Register => drop(next.registrants.insert(host)),
            _ if !registered => return None,
            Change::Unregister => {
                next.registrants.remove(&host);
                next.held = self.held.filter(|(holder, _)| *holder != host);
            }
            Change::Acquire(kind) => match self.held {
                None => next.held = Some((host, kind)),
                Some(held) if held == (host, kind) => {}
                Some(_) => return None,
            },
            Change::Preempt(victim, kind) => {
                if !next.registrants.remove(&victim) {
                    return None;
                }
                if self.held.is_some_and(|(holder, _)| holder == victim) {
                    next.held = Some((host, kind));
                }
            }
            Change::Release => next.held = self.held.filter(|(holder, _)| *holder != host),
        }
        Some(next)
    }

    pub(super) fn restricts(&self, before: &Self) -> bool {
        (0..HOSTS).any(|host| {
            let (had, has) = (before.rights(host), self.rights(host));
            had.read && !has.read || had.write && !has.write
        })
    }
}

/// The record as the masters answer it.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct View {
    pub(super) version: u64,
    pub(super) token: WriterToken,
    pub(super) enforced: WriterToken,
    pub(super) rules: Rules,
    /// Who made it so, by which change.
    pub(super) change: Option<(usize, Change)>,
    /// Chunks that the volume had.
    pub(super) chunks: usize,
}

impl View {
    pub(super) fn in_force(&self) -> bool {
        self.enforced >= self.token
    }
}

/// What a portal asks of the masters.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Replace {
        expected: u64,
        rules: Rules,
        restricts: bool,
        change: (usize, Change),
    },
    Enforced {
        token: WriterToken,
        chunks: usize,
    },
}

/// What hosts, portals and masters say to each other and to themselves.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum ReserveEvent {
    /// A host wants something changed, or wants it once more.
    Host {
        host: usize,
    },
    /// A host asks a portal.
    Ask {
        portal: usize,
        host: usize,
        attempt: u64,
        change: Change,
    },
    /// A portal's answer; false if it is to be tried again.
    Told {
        host: usize,
        attempt: u64,
        ended: bool,
    },
    Call {
        portal: usize,
        number: u64,
        call: Call,
    },
    /// None if the masters refuse.
    Answer {
        portal: usize,
        number: u64,
        found: Option<View>,
        done: bool,
    },
    CallTimeout {
        portal: usize,
        number: u64,
    },
    /// A portal asks the chunks that do not know a token yet.
    Enforce {
        portal: usize,
        work: u64,
    },
    WorkTimeout {
        portal: usize,
        work: u64,
    },
    /// What is known and not in force is looked at.
    Force {
        portal: usize,
        life: u64,
    },
    Look {
        portal: usize,
    },
    /// A portal is told how many chunks the volume has, and of which version its reservations are.
    Export {
        portal: usize,
        life: u64,
        chunks: usize,
        version: u64,
    },
    /// The volume grows.
    Grow,
}

impl ReserveEvent {
    /// Where it happens, if on a node.
    pub(super) fn node(&self) -> Option<usize> {
        match self {
            Self::Ask { portal, .. }
            | Self::Answer { portal, .. }
            | Self::CallTimeout { portal, .. }
            | Self::Enforce { portal, .. }
            | Self::WorkTimeout { portal, .. }
            | Self::Force { portal, .. }
            | Self::Look { portal }
            | Self::Export { portal, .. } => Some(*portal),
            _ => None,
        }
    }
}

/// What is known of one right of one host.
#[derive(Clone, Copy, Debug, Default)]
struct Right {
    /// The token of the state by which it has not had it ever since.
    denied: Option<WriterToken>,
    /// That state is in force.
    lost: bool,
    /// Since when it has had it.
    given_at: u64,
}

impl Right {
    /// A state is stored; true if it gives the right back.
    fn stored(&mut self, has: bool, token: WriterToken, now: u64) -> bool {
        if !has {
            self.denied.get_or_insert(token);
            return false;
        }
        let back = self.denied.take().is_some();
        self.lost = false;
        if back {
            self.given_at = now;
        }
        back
    }

    fn in_force(&mut self, token: WriterToken) -> bool {
        let lost = self.denied.is_some_and(|denied| denied <= token);
        lost && !std::mem::replace(&mut self.lost, true)
    }
}

/// A host's change.
#[derive(Debug, Default)]
struct Wants {
    change: Option<Change>,
    attempt: u64,
}

/// The masters' record, the portals, the hosts, and what must hold.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) record: View,
    /// States of before, each with the time when it was replaced.
    before: Vec<(u64, View)>,
    pub(super) portals: Vec<Portal>,
    hosts: Vec<Wants>,
    reads: [Right; HOSTS],
    writes: [Right; HOSTS],
    pub(super) last_operations: Vec<u32>,
    pub(super) changes: u64,
    pub(super) refused: u64,
    pub(super) grown: u64,
}

impl Reserved {
    pub(super) fn new(shape_chunks: usize) -> Self {
        let portal = |_| Portal::new(shape_chunks);
        Self {
            record: View::default(),
            before: Vec::new(),
            portals: (0..PORTALS).map(portal).collect(),
            hosts: Vec::new(),
            reads: [Right::default(); HOSTS],
            writes: [Right::default(); HOSTS],
            last_operations: Vec::new(),
            changes: 0,
            refused: 0,
            grown: 0,
        }
    }

    pub(super) fn has_lost(&self, host: usize, changes: bool) -> bool {
        match changes {
            true => self.writes[host].lost,
            false => self.reads[host].lost,
        }
    }

    /// The record as it was then.
    pub(super) fn record_of(&self, then: u64) -> &View {
        // What was there until later than that.
        let older = self.before.iter().find(|(until, _)| *until > then);
        older.map_or(&self.record, |(_, view)| view)
    }

    /// What may be left to be done.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("\n reserved {:?}, hosts {:?}", self.record, self.hosts);
        for (index, portal) in self.portals.iter().enumerate() {
            text += &format!("\n portal {index}: {portal:?}");
        }
        text + &format!("\n last operations {:?}", self.last_operations)
    }

    /// Whether a host has had a right ever since.
    pub(super) fn has_had(&self, host: usize, changes: bool, since: u64) -> bool {
        let right = match changes {
            true => self.writes[host],
            false => self.reads[host],
        };
        right.denied.is_none() && right.given_at <= since
    }
}

impl World {
    /// One whose volume hosts reserve.
    pub(super) fn with_reservations(seed: u64) -> Self {
        Self::with_planted_reservations(seed, None)
    }

    pub(super) fn with_planted_reservations(seed: u64, bug: Option<Bug>) -> Self {
        let kinds = super::kinds::Kinds {
            reserved: true,
            ..Default::default()
        };
        Self::make(seed, bug, None, kinds)
    }

    pub(super) fn reserved(&mut self) -> &mut Reserved {
        self.reserved
            .as_mut()
            .expect("only volumes that hosts reserve have portals")
    }

    /// Everything that portals and hosts do begins.
    pub(super) fn begin_to_reserve(&mut self) {
        if self.reserved.is_none() {
            return;
        }
        let (clients, chunks) = (self.clients.len(), self.shape.chunks);
        let hosts = clients.div_ceil(PORTALS);
        let reserved = self.reserved();
        reserved.record.chunks = chunks;
        reserved.last_operations = vec![0; clients];
        reserved.hosts.resize_with(hosts, Wants::default);
        for host in 0..hosts {
            self.at(0, Event::Reserve(ReserveEvent::Host { host }));
        }
        let delay = self.random.between(SECOND, 18 * SECOND);
        self.at(delay, Event::Reserve(ReserveEvent::Grow));
    }

    pub(super) fn reserve(&mut self, event: ReserveEvent) {
        match event {
            ReserveEvent::Host { host } => self.host_asks(host),
            ReserveEvent::Told { host, attempt, ended } => self.host_told(host, attempt, ended),
            ReserveEvent::Call { portal, number, call } => {
                let (found, done) = self.masters_answer(call);
                let masters = self.shape.nodes;
                let answer = ReserveEvent::Answer {
                    portal,
                    number,
                    found,
                    done,
                };
                self.send(masters, portal, Event::Reserve(answer));
            }
            ReserveEvent::Grow => self.grow(),
            at_portal => self.portal(at_portal),
        }
    }

    fn host_asks(&mut self, host: usize) {
        let healing = self.healing;
        let wanted = self.reserved().hosts[host].change;
        if wanted.is_none() && healing {
            return;
        }
        let change = match wanted {
            Some(change) => change,
            None => self.wanted_change(host),
        };
        let wants = &mut self.reserved().hosts[host];
        wants.change = Some(change);
        wants.attempt += 1;
        let attempt = wants.attempt;
        // Its other path, if one has not answered.
        let portal = (host + attempt as usize) % PORTALS;
        let ask = ReserveEvent::Ask {
            portal,
            host,
            attempt,
            change,
        };
        let delay = self.random.between(MS / 10, 5 * MS);
        self.at(delay, Event::Reserve(ask));
        let gives_up = 8 * SECOND;
        let ended = false;
        self.at(
            gives_up,
            Event::Reserve(ReserveEvent::Told { host, attempt, ended }),
        );
    }

    fn wanted_change(&mut self, host: usize) -> Change {
        let kind = Kind {
            exclusive: self.random.chance(1, 2),
            registrants: self.random.chance(1, 3),
        };
        let hosts = self.reserved().hosts.len();
        let rules = self.reserved().record.rules.clone();
        let draw = self.random.below(10);
        if !rules.registrants.contains(&host) {
            return Change::Register;
        }
        match rules.held {
            None => Change::Acquire(kind),
            Some((holder, _)) if holder == host => match draw {
                0..3 => Change::Release,
                3 => Change::Unregister,
                _ => Change::Preempt((host + 1 + draw as usize % (hosts - 1)) % hosts, kind),
            },
            Some((holder, _)) => Change::Preempt(holder, kind),
        }
    }

    fn host_told(&mut self, host: usize, attempt: u64, ended: bool) {
        let wants = &mut self.reserved().hosts[host];
        if wants.attempt != attempt || wants.change.is_none() {
            return;
        }
        let longest = match ended {
            true => {
                wants.change = None;
                wants.attempt += 1;
                1200 * MS
            }
            false => 100 * MS,
        };
        let delay = self.random.between(10 * MS, longest);
        self.at(delay, Event::Reserve(ReserveEvent::Host { host }));
    }

    /// What the masters make of a call, and whether they have done it; no answer at all of what they refuse.
    fn masters_answer(&mut self, call: Call) -> (Option<View>, bool) {
        let (now, healing) = (self.now, self.healing);
        match call {
            Call::Read => {
                let behind = !healing && self.random.chance(1, 5);
                let behind = if behind { self.random.below(BEHIND_MAX) } else { 0 };
                let then = now.saturating_sub(behind);
                (Some(self.reserved().record_of(then).clone()), true)
            }
            Call::Replace {
                expected,
                rules,
                restricts,
                change,
            } => {
                if self.reserved().record.version != expected {
                    return (Some(self.reserved().record.clone()), false);
                }
                if restricts {
                    self.newest_token.0 += 1;
                }
                let token = self.newest_token;
                self.store_record(|record| {
                    record.version += 1;
                    record.token = token;
                    record.rules = rules;
                    record.change = Some(change);
                });
                self.rights_stored();
                self.grow_soon();
                (Some(self.reserved().record.clone()), true)
            }
            Call::Enforced { token, chunks } => {
                let counts = !self.planted.is(Bug::EnforcedOnFewerChunks);
                if counts && chunks < self.shape.chunks {
                    return (None, false);
                }
                let record = &self.reserved().record;
                let enforced = record.enforced.max(token.min(record.token));
                if enforced != record.enforced {
                    self.store_record(|record| record.enforced = enforced);
                    self.now_in_force(enforced);
                    self.grow_soon();
                }
                (Some(self.reserved().record.clone()), true)
            }
        }
    }

    pub(super) fn store_record(&mut self, change: impl FnOnce(&mut View)) {
        let now = self.now;
        let reserved = self.reserved();
        reserved.before.push((now, reserved.record.clone()));
        reserved.before.retain(|(until, _)| *until + 2 * BEHIND_MAX > now);
        change(&mut reserved.record);
    }

    /// Another state is stored: what it gives counts from now on.
    pub(super) fn rights_stored(&mut self) {
        let now = self.now;
        let reserved = self.reserved();
        let (token, rules) = (reserved.record.token, reserved.record.rules.clone());
        for host in 0..reserved.hosts.len() {
            let rights = rules.rights(host);
            let reserved = self.reserved();
            let reads = reserved.reads[host].stored(rights.read, token, now);
            let writes = reserved.writes[host].stored(rights.write, token, now);
            if reads || writes {
                self.given_back(host, reads, writes);
            }
        }
    }

    /// A token is said to be in force: by whoever noted it, or by an answer to a host.
    pub(super) fn now_in_force(&mut self, token: WriterToken) {
        for host in 0..self.reserved().hosts.len() {
            let reserved = self.reserved();
            reserved.reads[host].in_force(token);
            if reserved.writes[host].in_force(token) {
                self.lost_writes(host);
            }
        }
        // Under an older one nothing is taken from now on, whoever asks.
        for in_force in &mut self.in_force {
            *in_force = token.max(*in_force);
        }
    }

    /// The volume grows when it hurts: while somebody is losing a right, or has just lost it.
    pub(super) fn grow_soon(&mut self) {
        // Masters of their own need a while for it, so that it often comes too late.
        let rare = if self.whole.is_some() { 4 } else { 12 };
        if self.random.chance(1, rare) {
            let delay = self.random.below(60 * MS);
            self.at(delay, Event::Reserve(ReserveEvent::Grow));
        }
    }

    /// One more chunk, once there are nodes for its copies: they are made before the volume has it.
    fn grow(&mut self) {
        if self.whole.is_some() {
            return self.grow_by_masters();
        }
        let chunk = self.shape.chunks;
        if self.healing || chunk >= CHUNKS_MAX {
            return;
        }
        let is_there = |node: &usize| {
            let sim = &self.nodes[*node];
            sim.core.is_some() && self.heard[*node].0 == sim.life && !self.places.draining[*node]
        };
        let mut nodes: Vec<usize> = (0..self.shape.nodes).filter(is_there).collect();
        if nodes.len() < self.shape.copies.into() {
            return self.at(300 * MS, Event::Reserve(ReserveEvent::Grow));
        }
        self.random.shuffle(&mut nodes);
        nodes.truncate(self.shape.copies.into());
        let write_node = node_id(nodes[0]);
        nodes.sort_unstable();
        let member = |node: &usize| Membership {
            node: node_id(*node),
            incarnation: Incarnation(self.nodes[*node].life),
        };
        let config = ChunkConfig {
            epoch: Epoch(1),
            write_node,
            members: nodes.iter().map(member).collect(),
        };
        self.store.push(config.clone());
        self.first.push(config);
        self.places.of_chunk.push(nodes.clone());
        self.add_chunk();
        for &node in &nodes {
            let disk = self.first_disk(node, chunk);
            let record = disk.record.clone();
            self.nodes[node].disks.insert(chunk, disk);
            self.core(node, None, |core, now: Instant| {
                core.add_copy(now, record, true);
                core.watch(chunk_id(chunk), true);
            });
        }
        self.store_record(|record| record.chunks += 1);
        self.reserved().grown += 1;
        for node in 0..self.shape.nodes {
            // The others hear of it when they ask next.
            if self.random.chance(1, 2) {
                self.tell(node);
            }
        }
    }

    /// The blocks of one more chunk.
    pub(super) fn add_chunk(&mut self) {
        self.shape.chunks += 1;
        self.monitors.push(vec![Monitor::new(); CHUNK_BLOCKS as usize]);
        self.in_force.push(WriterToken(0));
        self.opened.push(BTreeMap::new());
        self.loss_due.push(None);
        self.flushes.iter_mut().for_each(Flushes::grow);
        self.snapshots.iter_mut().for_each(|snapshots| snapshots.grow());
        self.grow_geometry();
    }

    /// Whether all is done that hosts wanted, is in force, and known to every portal; and every client has got something done.
    pub(super) fn reservations_rest(&self) -> bool {
        let Some(reserved) = &self.reserved else {
            return true;
        };
        let clients = reserved.last_operations.iter().zip(&self.clients);
        reserved.hosts.iter().all(|host| host.change.is_none())
            && reserved.record.in_force()
            && clients
                .into_iter()
                .all(|(done, client)| client.gone || *done >= LAST_OPERATIONS)
            && reserved.portals.iter().all(|portal| {
                let knows = |known: &View| known.version == reserved.record.version;
                portal.serves == self.shape.chunks && portal.known.as_ref().is_some_and(knows)
            })
    }

    /// Whether a client begins something although faults have stopped.
    pub(super) fn does_last_operation(&mut self, client: usize) -> bool {
        let Some(reserved) = &mut self.reserved else {
            return false;
        };
        let done = &mut reserved.last_operations[client];
        *done += 1;
        *done <= LAST_OPERATIONS
    }
}

/// That of a volume that grows by one chunk.
pub(super) fn grown(geometry: &mut Geometry) {
    geometry.group_chunks.push(1);
}

/// Whether an answer may be too old for a portal that serves so many chunks.
pub(super) fn is_too_old(found: &View, serves: usize, planted: Planted) -> bool {
    found.chunks < serves && !planted.is(Bug::OldAnswerTaken)
}
