//! The simulated cluster: nodes with the real cores, disks, a network, masters and clients, all
//! in one queue of events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use foundation::{Epoch, Instant, Random};

use super::clients::Client;
use super::disk::Disk;
pub(super) use super::events::Event;
use super::flushes::Flushes;
use super::forced::Forced;
use super::injected::{Injected, Script};
use super::kinds::{Kinds, Recipe};
use super::linear::Monitor;
use super::losses::Losses;
use super::mend::Mends;
use super::parts::PartsSeen;
use super::places::Places;
use super::reserve::{Reserved, grown};
use super::restored::Restored;
use super::shape::{Asked, Node, Shape};
use super::slowness::SlowDisks;
use super::snapshots::Snapshots;
use super::whole::Whole;
use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::{
    ChunkId, ChunkIndex, ClusterId, DataToken, Incarnation, IoToken, NodeId, RequestId, VolumeNumber,
    WriterToken,
};
use crate::node::NodeCore;
use crate::output::{Operation, Status};
use crate::planted::{Bug, Planted};
use crate::record::ChunkRecord;
use crate::settings::Settings;

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) type Payload = Option<Rc<Vec<u32>>>;

/// FNV-1a, so that a trace's hash is the same everywhere.
pub(super) struct Fnv(pub(super) u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(super) struct World {
    pub(super) now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    pub(super) random: Random,
    pub(super) shape: Shape,
    pub(super) nodes: Vec<Node>,
    pub(super) store: Vec<ChunkConfig>,
    pub(super) first: Vec<ChunkConfig>,
    pub(super) places: Places,
    pub(super) parts: PartsSeen,
    pub(super) snapshots: Option<Box<Snapshots>>,
    pub(super) mends: Option<Box<Mends>>,
    pub(super) reserved: Option<Box<Reserved>>,
    pub(super) restored: Option<Box<Restored>>,
    pub(super) forced: Option<Box<Forced>>,
    pub(super) losses: Option<Box<Losses>>,
    pub(super) flushes: Option<Flushes>,
    pub(super) whole: Option<Box<Whole>>,
    /// Every fault so far, and when; of a run whose faults are written down, all of them, and which of these are still to come.
    pub(super) injected: Vec<(u64, Injected)>,
    pub(super) due: BTreeSet<usize>,
    pub(super) script: Script,
    pub(super) recipe: Recipe,
    geometry: Geometry,
    /// The epoch that a chunk began after all members of the one before had ended, until it has a write node that has sealed: an older one
    /// goes on meanwhile.
    pub(super) loss_due: Vec<Option<Epoch>>,
    pub(super) heard: Vec<(u64, u64)>,
    pub(super) ended: BTreeSet<(usize, u64)>,
    pub(super) clients: Vec<Client>,
    pub(super) monitors: Vec<Vec<Monitor>>,
    /// The newest token the masters have given.
    pub(super) newest_token: WriterToken,
    /// For each chunk the newest token under which something was acknowledged.
    pub(super) in_force: Vec<WriterToken>,
    /// When each epoch of a chunk began to serve, and by which node.
    pub(super) opened: Vec<BTreeMap<Epoch, (u64, usize)>>,
    pub(super) looks_at_epochs: bool,
    /// `blocked[from][to]`: until when; the masters are the last index.
    pub(super) blocked: Vec<Vec<u64>>,
    pub(super) slow: Vec<Vec<u64>>,
    /// Not where a mistake is planted: these are found without. Nor where blocks are harmed: a copy that is left out for it may be the
    /// other one that is right.
    pub(super) slow_disks: Option<SlowDisks>,
    pub(super) healing: bool,
    pub(super) loss: u64,
    pub(super) settings: Settings,
    pub(super) planted: Planted,
    pub(super) hash: Fnv,
    pub(super) trace: bool,
    pub(super) failure: Option<String>,
    pub(super) next_value: u32,
    pub(super) done_ops: u64,
    /// Reads past nodes that counted.
    pub(super) past_reads: u64,
    /// Writes that compared first: those that were made, and those that found something else.
    pub(super) exchanged: (u64, u64),
    /// Reads of a disk that did not fit their sums.
    pub(super) damage_seen: u64,
    /// Times that a copy found no room.
    pub(super) without_room: u64,
    /// Writes that were refused, since there was no room for them.
    pub(super) refused_for_room: u64,
    /// Reads that were answered while no copy of their chunk had room.
    pub(super) read_without_room: u64,
}

pub(super) fn chunk_id(chunk: usize) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(1),
        index: ChunkIndex(chunk as u32),
    }
}

pub(super) fn node_id(node: usize) -> NodeId {
    NodeId(node as u128 + 1)
}

pub(super) fn node_index(node: NodeId) -> usize {
    node.0 as usize - 1
}

pub(super) const CHUNK_BLOCKS: u32 = 8;
/// How many kinds of faults there are.
pub(super) const SCENARIOS: u64 = 11;
/// The power fails everywhere.
pub(super) const POWER: u64 = 1;
/// Nodes stay away, are drained, and return at the wrong time.
pub(super) const REBUILD: u64 = 8;
/// Clients do not repeat a write that is not answered.
pub(super) const GIVES_UP: u64 = 9;
/// Disks change, lose and misplace blocks.
pub(super) const HARM: u64 = 10;
/// Disks have no room for a while. Not among the kinds that a seed draws: it has a search of its own.
pub(super) const FULL: u64 = 11;

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut world = Self::with_scenario(seed, None, None);
        world.trace = trace;
        world
    }

    pub(super) fn with_scenario(seed: u64, bug: Option<Bug>, scenario: Option<u64>) -> Self {
        Self::make(seed, bug, scenario, Kinds::for_bug(bug))
    }

    pub(super) fn make(seed: u64, bug: Option<Bug>, scenario: Option<u64>, kinds: Kinds) -> Self {
        let recipe = Recipe {
            seed,
            bug,
            scenario,
            kinds,
        };
        Self::of(recipe, Script::default())
    }

    /// One that goes as it is written down.
    pub(super) fn of(recipe: Recipe, script: Script) -> Self {
        let Recipe {
            seed,
            bug,
            scenario,
            kinds,
        } = recipe;
        let Kinds {
            snapshots,
            keeps,
            cloned,
            reserved,
            restored,
            forced,
            parts,
            loses,
            whole,
            masters_bug,
        } = kinds;
        let mut random = Random::from_seed(seed);
        let copies = random.between(2, 4) as u8;
        let mut scenario = scenario.unwrap_or(seed % SCENARIOS);
        if (restored || forced || whole && snapshots) && scenario == HARM {
            // Where nodes die at any time, or for good, the other copy of a block may be gone; and masters of their own leave out whom they do
            // not hear, also the only one that has right what a snapshot is about to be cut of.
            scenario = 3;
        }
        let shape = Shape {
            nodes: usize::from(copies)
                + random.below(2) as usize
                + usize::from(scenario == REBUILD)
                + usize::from(keeps),
            chunks: 1
                + random.below(2) as usize
                + usize::from(snapshots || reserved)
                + 3 * usize::from(parts),
            copies,
            // Where one has to be left out, fewer must be enough.
            minimum: (random.between(1, u64::from(copies).min(3)) as u8).min(copies - u8::from(forced)),
            scenario,
            leased: seed / SCENARIOS % 2 == 1 && scenario != GIVES_UP && !reserved && !forced,
            keeps,
            cloned,
        };
        let nodes = shape.nodes;
        let mut world = Self {
            now: SECOND,
            order: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            nodes: Vec::new(),
            store: Vec::new(),
            first: Vec::new(),
            places: Places::new(
                nodes,
                if keeps { 3 * seed + 2 } else { seed },
                random.between(2 * SECOND, 12 * SECOND),
            ),
            parts: PartsSeen::default(),
            snapshots: snapshots.then(|| Box::new(Snapshots::new(seed, shape.chunks))),
            mends: (scenario == HARM && (snapshots || cloned)).then(|| Box::new(Mends::new(seed))),
            reserved: reserved.then(|| Box::new(Reserved::new(shape.chunks))),
            forced: forced.then(|| Box::new(Forced::new(seed))),
            losses: loses.then(|| Box::new(Losses::new(seed))),
            restored: restored.then(|| Box::new(Restored::new(seed, nodes))),
            flushes: (scenario == POWER && !reserved).then(|| Flushes::new(shape.chunks, Planted { bug })),
            whole: whole.then(|| {
                Box::new(Whole::new(
                    seed,
                    (nodes, copies),
                    shape.chunks,
                    reserved,
                    masters_bug,
                ))
            }),
            injected: Vec::new(),
            due: BTreeSet::new(),
            script,
            recipe,
            geometry: Geometry {
                block_bytes: 4096,
                metadata_bytes: 0,
                stripe_unit_blocks: CHUNK_BLOCKS,
                chunk_blocks: CHUNK_BLOCKS,
                region_blocks: 1 + random.below(2) as u32,
                copies: shape.copies,
                minimum: shape.minimum,
                group_chunks: vec![shape.chunks as u32],
            },
            loss_due: vec![None; shape.chunks],
            heard: vec![(0, 0); nodes],
            ended: BTreeSet::new(),
            clients: Vec::new(),
            monitors: vec![vec![Monitor::new(); CHUNK_BLOCKS as usize]; shape.chunks],
            newest_token: WriterToken(0),
            in_force: vec![WriterToken(0); shape.chunks],
            opened: vec![BTreeMap::new(); shape.chunks],
            blocked: vec![vec![0; nodes + 1]; nodes + 1],
            slow: vec![vec![0; nodes + 1]; nodes + 1],
            slow_disks: SlowDisks::of(seed, nodes)
                .filter(|_| bug.is_none() && masters_bug.is_none() && scenario != HARM),
            healing: false,
            loss: random.below(30),
            settings: recipe.settings(),
            looks_at_epochs: bug.is_none(),
            planted: Planted { bug },
            hash: Fnv(0xcbf2_9ce4_8422_2325),
            trace: false,
            failure: None,
            next_value: 0,
            done_ops: 0,
            past_reads: 0,
            exchanged: (0, 0),
            damage_seen: 0,
            without_room: 0,
            refused_for_room: 0,
            read_without_room: 0,
            shape,
            random,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        self.begin_as_clone();
        self.place_chunks();
        for node in 0..self.shape.nodes {
            self.add_node(node);
        }
        self.add_clients();
        self.begin_to_reserve();
        self.begin_to_restore();
        self.begin_to_force();
        self.begin_to_lose();
        match self.whole.is_some() {
            true => self.begin_whole(),
            false => self.at(0, Event::Masters),
        }
        self.at(self.random.clone().below(SECOND), Event::Fault);
        if self.slow_disks.is_some() {
            self.at(SECOND, Event::SlowDisks);
        }
        self.begin_script();
        self.at(self.faults_end(), Event::Heal);
        if self.snapshots.is_some() {
            self.at(SECOND, Event::SnapshotStep);
        }
        if self.script.salt > 0 {
            self.random = Random::from_seed(self.random.next_u64() ^ self.script.salt);
        }
    }

    /// Where the chunks begin.
    fn place_chunks(&mut self) {
        let drawn = if self.whole.is_some() {
            0
        } else {
            self.shape.chunks
        };
        for _ in 0..drawn {
            let mut nodes: Vec<usize> = (0..self.shape.nodes).collect();
            self.random.shuffle(&mut nodes);
            nodes.truncate(self.shape.copies.into());
            let write_node = node_id(nodes[0]);
            nodes.sort_unstable();
            let member = |n: &usize| Membership {
                node: node_id(*n),
                incarnation: Incarnation(1),
            };
            let config = ChunkConfig {
                epoch: Epoch(1),
                write_node,
                members: nodes.iter().map(member).collect(),
            };
            self.store.push(config);
        }
        if self.whole.is_some() {
            self.store = self.found_whole();
        }
        self.first = self.store.clone();
        for chunk in 0..self.shape.chunks {
            let members = self.members_of(chunk);
            self.places.of_chunk.push(members);
        }
    }

    fn add_node(&mut self, node: usize) {
        let has = |chunk: &usize| self.store[*chunk].index_of(node_id(node)).is_some();
        let chunks: Vec<usize> = (0..self.shape.chunks).filter(has).collect();
        let disks = chunks
            .into_iter()
            .map(|chunk| (chunk, self.first_disk(node, chunk)));
        let disks = disks.collect();
        let clock = (
            self.random.below(1000 * SECOND),
            self.random.below(10_000) as i64 - 5_000,
        );
        self.nodes.push(Node::new(clock, disks));
        match self.whole.is_some() {
            true => self.engine_begins(node),
            false => self.restart(node),
        }
    }

    pub(super) fn at(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((self.now + delay, self.order)));
        self.events.insert(self.order, event);
    }

    /// What was to happen at that moment does not, as far as it is that.
    pub(super) fn drop_events(&mut self, moment: u64, is_it: impl Fn(&Event) -> bool) {
        let events = &mut self.events;
        self.queue.retain(|Reverse((at, order))| {
            let goes = *at == moment && is_it(&events[order]);
            if goes {
                events.remove(order);
            }
            !goes
        });
    }

    /// Sends something from one place to another, if the network lets it through.
    pub(super) fn send(&mut self, from: usize, to: usize, event: Event) {
        if self.blocked[from][to] > self.now || (!self.healing && self.random.below(1000) < self.loss) {
            return;
        }
        let mut delay = self.random.between(50 * US, 2 * MS);
        if self.slow[from][to] > self.now {
            delay += self.random.below(2 * SECOND);
        } else if !self.healing && self.random.chance(1, 100) {
            delay += self.random.below(400 * MS);
        }
        delay += self.repair_delay(&event);
        let delay = self.in_order(to, &event, delay);
        let often = if self.shape.scenario >= 6 { 8 } else { 50 };
        let twice = matches!(event, Event::Peer { .. }) && !self.healing && self.random.chance(1, often);
        if twice {
            let longest = if self.random.chance(1, 2) {
                3 * SECOND
            } else {
                30 * MS
            };
            let later = delay + self.random.below(longest);
            self.at(later, event.clone());
        }
        self.at(delay, event);
    }

    pub(super) fn fail(&mut self, why: String) {
        self.failure
            .get_or_insert(format!("at {} ms: {why}", self.now / MS));
    }

    /// Handles events until the end of the story or a broken promise.
    pub(super) fn run(&mut self) -> Result<u64, String> {
        while self.failure.is_none() {
            let Some(Reverse((time, order))) = self.queue.pop() else {
                break;
            };
            let event = self.events.remove(&order).expect("every queued event is stored");
            self.now = self.now.max(time);
            if let Some(node) = event.node()
                && self.nodes[node].paused_until > self.now
            {
                let delay = self.nodes[node].paused_until - self.now;
                self.at(delay, event);
                continue;
            }
            (self.now, &event).hash(&mut self.hash);
            if self.trace {
                println!("{:>9.3} {event:?}", self.now as f64 / MS as f64);
            }
            if self.healing && matches!(event, Event::HealCheck) && self.at_rest() && self.all_is_mended() {
                break;
            }
            self.handle(event);
            if self.now > DEADLINE {
                if self.rests_but_for_places() {
                    self.check_places();
                }
                self.fail(format!("stuck: {}", self.describe()));
            }
        }
        if self.failure.is_none() {
            self.check_equal();
        }
        match self.failure.take() {
            Some(why) => Err(why),
            None => Ok(self.hash.finish()),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Peer {
                from,
                to,
                message,
                payload,
            } => {
                let message = self.heard_by(to, message);
                let (message, payload) = self.vouched_for(to, message, payload);
                let data = payload.map(|values| self.hold(to, values));
                self.core(to, data, |core, now| {
                    core.handle_message(now, node_id(from), message, data)
                });
            }
            Event::Ask {
                to,
                client,
                attempt,
                chunk,
                mut request,
                payload,
            } => {
                if self.nodes[to].core.is_none() || self.is_too_late(client, chunk, attempt) {
                    return;
                }
                let mut payload = payload;
                let mut expected = None;
                if let Operation::Write { compares: true, .. } = request.operation {
                    let values = payload.take().unwrap_or_default();
                    expected = values.first().copied();
                    payload = Some(Rc::new(values[1..].to_vec()));
                }
                let data = payload.map(|values| self.hold(to, values));
                let mut writes = false;
                if let Operation::Write { data: d, .. } = &mut request.operation {
                    *d = data;
                    writes = true;
                }
                let node = &mut self.nodes[to];
                request.id = node.new_request();
                let arrived = self.now;
                node.requests.insert(
                    request.id,
                    Asked {
                        client,
                        attempt,
                        arrived,
                        writes,
                        expected,
                        is_read: request.operation == Operation::Read,
                        reads: request.operation == Operation::Read
                            && request.session.host.is_through_portals(),
                        token: request.writer_token,
                        in_force: self.in_force[chunk],
                    },
                );
                request.needs_room = self.needs_room();
                self.core(to, data, |core, now| {
                    core.handle_command(now, chunk_id(chunk), request)
                });
            }
            Event::Local {
                node,
                life,
                chunk,
                io,
            } if self.alive(node, life) => self.local_done(node, chunk, io),
            Event::Persisted {
                node,
                life,
                chunk,
                token,
            } if self.alive(node, life) => {
                if self.lacks_room_for_record(node, chunk, token) {
                    return;
                }
                let disk = self.nodes[node].disks.get_mut(&chunk);
                let broken = disk.as_ref().is_some_and(|disk| disk.broken);
                if let Some(disk) = disk.filter(|_| !broken) {
                    disk.persisted(token);
                }
                self.core(node, None, |core, now| match broken {
                    true => core.handle_persist_failed(now, chunk_id(chunk), Some(token)),
                    false => core.handle_persisted(now, chunk_id(chunk), token),
                });
            }
            Event::Tick { node, life } if self.alive(node, life) => {
                self.nodes[node].tick_at = u64::MAX;
                self.core(node, None, |core, now| core.handle_timeout(now));
            }
            Event::Config {
                node,
                chunk,
                config,
                placed,
            } => self.told(node, chunk, &config, placed),
            Event::Restart { node } => self.restart(node),
            Event::MakeRoom { node, chunk } => self.make_room(node, chunk),
            Event::LookForRoom { node, life, chunk } if self.alive(node, life) => {
                self.look_for_room(node, chunk)
            }
            Event::Order {
                to,
                chunk,
                epoch,
                operation,
            } => self.order(to, chunk, epoch, operation),
            Event::Keep { node, life, event } if self.alive(node, life) => self.keep(node, life, event),
            Event::Mend { node, life, event } if self.alive(node, life) => self.mend(node, life, event),
            Event::ShowBoard { node, life } if self.alive(node, life) => self.show_board(node),
            Event::PastEnd { read } => self.end_past(&read),
            Event::SendHeartbeat { node, life } if self.alive(node, life) => {
                let masters = self.shape.nodes;
                self.send(node, masters, Event::Heartbeat { node, life });
                self.at(300 * MS, Event::SendHeartbeat { node, life });
            }
            other => self.handle_outside(other),
        }
    }

    pub(super) fn alive(&self, node: usize, life: u64) -> bool {
        self.nodes[node].life == life && self.nodes[node].core.is_some()
    }

    pub(super) fn disk(&mut self, node: usize, chunk: usize) -> &mut Disk {
        self.nodes[node]
            .disks
            .get_mut(&chunk)
            .expect("the node has a copy of the chunk")
    }

    /// Gives bytes a token on a node, if its process runs.
    fn hold(&mut self, node: usize, values: Rc<Vec<u32>>) -> DataToken {
        let node = &mut self.nodes[node];
        let token = node.new_data();
        node.data.insert(token, values);
        token
    }

    pub(super) fn grow_geometry(&mut self) {
        grown(&mut self.geometry);
    }

    pub(super) fn empty_disk(&self, chunk: usize) -> Disk {
        let geometry = self.geometry.clone();
        let mut disk = Disk::new(ChunkRecord::new(ClusterId(7), chunk_id(chunk), geometry));
        disk.forgets_sums = self.planted.is(Bug::SumsNotFlushed);
        disk.believes_lost = self.planted.is(Bug::LostPassesForRight);
        disk.adopts_lost = self.planted.is(Bug::LostTakenWhereUnknown);
        disk
    }

    fn local_done(&mut self, node: usize, chunk: usize, io: IoToken) {
        if self.lacks_room(node, chunk, io) {
            return;
        }
        // The copy may have been deleted meanwhile, and made anew: its core is told all the same.
        let disk = self.nodes[node].disks.get_mut(&chunk).filter(|disk| disk.has(io));
        let (succeeded, read) = disk.map_or((true, None), |disk| (!disk.fails(io), disk.end(io)));
        if let Some((request, first, values)) = &read
            && let wrong = self.disk(node, chunk).wrong(*first, values)
            && !wrong.is_empty()
        {
            if let Some(request) = request {
                self.nodes[node].read.insert(RequestId(*request), values.clone());
            }
            self.damage_seen += 1;
            return self.core(node, None, |core, now| {
                core.handle_damaged(now, chunk_id(chunk), io, &wrong);
            });
        }
        let data = match read {
            Some((Some(request), _, values)) if self.expects(node, request).is_some() && succeeded => {
                let are_alike = self.expects(node, request) == values.first().copied();
                return self.core(node, None, |core, now| {
                    core.handle_compared(now, chunk_id(chunk), io, are_alike);
                });
            }
            Some((Some(request), _, values)) => {
                self.nodes[node].read.insert(RequestId(request), values);
                return self.core(node, None, |core, now| {
                    core.handle_read(now, chunk_id(chunk), io, succeeded);
                });
            }
            Some((None, _, values)) => Some(self.hold(node, Rc::new(values))),
            None => None,
        };
        self.core(node, data, |core, now| {
            core.handle_local(now, chunk_id(chunk), io, succeeded, data)
        });
    }

    /// What a request that compares first expects.
    fn expects(&self, node: usize, request: u64) -> Option<u32> {
        let asked = self.nodes[node].requests.get(&RequestId(request));
        asked.and_then(|asked| asked.expected)
    }

    /// Gives an event to a node's core and does what it wants done.
    pub(super) fn core(
        &mut self,
        node: usize,
        data: Option<DataToken>,
        event: impl FnOnce(&mut NodeCore, Instant),
    ) {
        let clock = self.nodes[node].clock(self.now);
        let Some(core) = &mut self.nodes[node].core else {
            if let Some(data) = data {
                self.nodes[node].data.remove(&data);
            }
            return;
        };
        event(core, clock);
        self.show_stirred(node);
        while let Some(output) = self.nodes[node].core.as_mut().and_then(NodeCore::poll_output) {
            let chunk = output.chunk.map_or(0, |c| c.index.0 as usize);
            self.carry_out(node, chunk, output.output);
        }
        self.watch(node);
        self.nodes[node].read.clear();
        let next = self.nodes[node].core.as_ref().and_then(NodeCore::next_timeout);
        if let Some(next) = next {
            let when = self.nodes[node].when(next).max(self.now + US);
            if when < self.nodes[node].tick_at {
                self.nodes[node].tick_at = when;
                let life = self.nodes[node].life;
                self.at(when - self.now, Event::Tick { node, life });
            }
        }
    }

    pub(super) fn answer(&mut self, client: usize, attempt: u64, status: Status, values: Vec<u32>) {
        if !self.healing && self.random.below(1000) < self.loss {
            return;
        }
        let delay = self.random.between(50 * US, 2 * MS);
        self.at(
            delay,
            Event::Answer {
                client,
                attempt,
                status,
                values,
            },
        );
    }

    /// With `reborn`, every copy in sync has ended since: as soon as the epoch serves, what was not flushed may be gone. A store that was restored
    /// may commit the same a second time, in a lower epoch than the one that it forgot.
    pub(super) fn committed(&mut self, chunk: usize, epoch: Epoch, reborn: bool) {
        if reborn {
            let due = self.loss_due[chunk].get_or_insert(epoch);
            *due = epoch.min(*due);
        }
    }
}

/// When everything must have come to rest.
const DEADLINE: u64 = 120 * SECOND;
