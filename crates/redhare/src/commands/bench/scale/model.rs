//! Servers and clients in virtual time: the clients are real (`volume::client`), the servers are queues.
//!
//! A server serves one read after the other, each in [`SERVICE_NS`] drawn at random; a command and its answer are on their way for
//! [`NETWORK_NS`] each. Every chunk has three copies (fewer where there are fewer servers), and every server has as many copies
//! of chunks as every other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bdev::{ChannelExt, Data};
use foundation::{Epoch, Instant, Lba, Random};
use reactor::sim::Simulation;
use reactor::{BufferPool, spawn, time};
use volume::client::{
    ClientOptions, MapSource, PeerStatus, Peers, Place, Reply, Sessions, VolumeChannel, VolumeDevice,
    VolumeMap,
};
use volume::message::codec::NativeCommand;
use volume::{
    ChunkConfig, ChunkIndex, ChunkMap, Geometry, Incarnation, Membership, NodeId, Status, VolumeNumber,
};

/// What a server takes for a read, and what a message takes on its way: between these.
const SERVICE_NS: (u64, u64) = (10_000, 30_000);
const NETWORK_NS: (u64, u64) = (15_000, 35_000);
const COPIES: usize = 3;
/// Chunks for each server.
const CHUNKS: usize = 48;
const CHUNK_BLOCKS: u32 = 4096;
const BLOCK_BYTES: u32 = 4096;

/// How large, how long, and what is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// Servers, and as many clients.
    pub(super) servers: usize,
    /// Reads of each client that count; a fifth of that comes before.
    pub(super) reads: usize,
    /// Of each client, in flight.
    pub(super) depth: usize,
    /// Everybody reads one chunk only.
    pub(super) is_hot: bool,
    /// Before what counts, a server is lost: masters take its copies out of all chunks, and nothing is made anew yet.
    pub(super) loses_one: bool,
    pub(super) seed: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    pub(super) reads: u64,
    /// Commands to servers and their answers.
    pub(super) messages: u64,
    /// First commands of a client to a server.
    pub(super) connections: u64,
    /// Maps asked for.
    pub(super) master_calls: u64,
    /// What the busiest server that has a copy served, of what all served in the mean.
    pub(super) busiest: f64,
    /// Of a read, in the mean.
    pub(super) latency_us: f64,
}

/// What clients share.
struct Servers {
    random: RefCell<Random>,
    free_at: RefCell<BTreeMap<NodeId, Instant>>,
    served: RefCell<BTreeMap<NodeId, u64>>,
    messages: Cell<u64>,
    connections: Cell<u64>,
    taken_ns: Cell<u64>,
}

/// The masters, who have something new once at most.
struct Masters {
    map: Mutex<Arc<VolumeMap>>,
    version: AtomicU64,
    calls: AtomicU64,
}

impl Masters {
    fn current(&self) -> Arc<VolumeMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a server's copies out of all chunks.
    fn lose(&self, lost: NodeId) {
        let before = self.current();
        let mut chunks = ChunkMap::new(before.geometry.chunks() as usize);
        for index in (0..before.geometry.chunks() as u32).map(ChunkIndex) {
            let Some(mut config) = before.chunks.config(index).cloned() else {
                continue;
            };
            config.members.retain(|member| member.node != lost);
            if config.write_node == lost
                && let Some(next) = config.members.first()
            {
                config.write_node = next.node;
            }
            config.epoch = Epoch(2);
            chunks.update(index, config).expect("some copies are left");
        }
        let geometry = before.geometry.clone();
        let after = Arc::new(VolumeMap { geometry, chunks });
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = after;
        self.version.store(2, Ordering::Release);
    }
}

struct Source(Arc<Masters>);

impl MapSource for Source {
    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.0.current()
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

/// A client's ways to the servers.
struct Ways {
    servers: Rc<Servers>,
    connected: RefCell<BTreeSet<NodeId>>,
}

impl Peers for Ways {
    fn submit(
        &self,
        node: NodeId,
        _session: u64,
        _command: NativeCommand,
        _place: Place,
        data: Data,
        reply: Reply,
    ) {
        let servers = &self.servers;
        servers.messages.set(servers.messages.get() + 2);
        if self.connected.borrow_mut().insert(node) {
            servers.connections.set(servers.connections.get() + 1);
        }
        let now = time::now();
        let answered = servers.serve(node, now);
        *servers.served.borrow_mut().entry(node).or_default() += 1;
        drop(spawn(async move {
            time::sleep(answered.since(now)).await;
            reply.answer(PeerStatus::Answered(Status::Done), data);
        }));
    }
}

impl Servers {
    /// When the client has the answer to what it sends now.
    fn serve(&self, node: NodeId, now: Instant) -> Instant {
        let mut random = self.random.borrow_mut();
        let mut drawn = |(low, high)| Duration::from_nanos(random.between(low, high));
        let arrives = now + drawn(NETWORK_NS);
        let mut free_at = self.free_at.borrow_mut();
        let free_at = free_at.entry(node).or_insert(now);
        *free_at = arrives.max(*free_at) + drawn(SERVICE_NS);
        *free_at + drawn(NETWORK_NS)
    }

    fn counted(&self, masters: &Masters) -> Counted {
        Counted {
            reads: self.served.borrow().values().sum(),
            messages: self.messages.get(),
            connections: self.connections.get(),
            master_calls: masters.calls.load(Ordering::Relaxed),
            ..Counted::default()
        }
    }
}

/// Servers' names in the random order that names have, and the chunks' copies.
fn map(scene: Scene, random: &mut Random) -> Arc<VolumeMap> {
    let mut names: Vec<NodeId> = (0..scene.servers)
        .map(|_| NodeId(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())))
        .collect();
    let copies = COPIES.min(scene.servers);
    let chunks = CHUNKS * scene.servers;
    let mut known = ChunkMap::new(chunks);
    for round in 0..CHUNKS {
        random.shuffle(&mut names);
        for first in 0..scene.servers {
            let node = |copy: usize| names[(first + copy) % scene.servers];
            let mut members: Vec<Membership> = (0..copies)
                .map(|copy| Membership {
                    node: node(copy),
                    incarnation: Incarnation(1),
                })
                .collect();
            members.sort_unstable();
            let config = ChunkConfig {
                epoch: Epoch(1),
                write_node: node(0),
                members,
            };
            let chunk = ChunkIndex((round * scene.servers + first) as u32);
            let taken = known.update(chunk, config);
            taken.expect("a chunk's copies are on different servers");
        }
    }
    let geometry = Geometry {
        block_bytes: BLOCK_BYTES,
        metadata_bytes: 0,
        stripe_unit_blocks: 16,
        chunk_blocks: CHUNK_BLOCKS,
        region_blocks: 256,
        copies: copies as u8,
        minimum: copies.min(2) as u8,
        group_chunks: vec![chunks as u32],
    };
    Arc::new(VolumeMap {
        geometry,
        chunks: known,
    })
}

/// Reads random blocks one after the other.
async fn read(channel: Rc<VolumeChannel>, servers: Rc<Servers>, blocks: Rc<[Lba]>, count: usize, seed: u64) {
    let mut random = Random::from_seed(seed);
    for _ in 0..count {
        let lba = blocks[random.below(blocks.len() as u64) as usize];
        let buffer = BufferPool::current().allocate(BLOCK_BYTES as usize).await;
        let buffer = buffer.expect("a block is shorter than the pool");
        let began = time::now();
        let (status, _) = channel.read(lba, buffer).await;
        status.expect("every server answers");
        let took = time::now().since(began).as_nanos() as u64;
        servers.taken_ns.set(servers.taken_ns.get() + took);
    }
}

/// Lets all clients read.
pub(super) fn play(scene: Scene) -> Counted {
    Simulation::new(scene.seed).run(async move {
        let mut random = Random::from_seed(scene.seed);
        let map = map(scene, &mut random);
        let chunks = map.geometry.chunks() as u32;
        let chosen = if scene.is_hot { 0..1 } else { 0..chunks };
        // The first block of each chunk: which block it is makes no difference to where it is read.
        let blocks: Rc<[Lba]> = chosen
            .filter_map(|chunk| map.geometry.first_lba(ChunkIndex(chunk)))
            .collect();
        let masters = Arc::new(Masters {
            map: Mutex::new(map),
            version: AtomicU64::new(1),
            calls: AtomicU64::new(0),
        });
        let servers = Rc::new(Servers {
            random: RefCell::new(random),
            free_at: RefCell::default(),
            served: RefCell::default(),
            messages: Cell::new(0),
            connections: Cell::new(0),
            taken_ns: Cell::new(0),
        });
        let open = |_| {
            let source = Arc::new(Source(masters.clone()));
            let nowhere =
                Arc::new(|| -> Rc<dyn Peers> { unreachable!("channels are opened with their ways") });
            let sessions = Sessions::starting_at(1);
            let device = VolumeDevice::new(
                VolumeNumber(1),
                source,
                sessions,
                nowhere,
                ClientOptions::default(),
            );
            Rc::new(device.open_with(Rc::new(Ways {
                servers: servers.clone(),
                connected: RefCell::default(),
            })))
        };
        let channels: Vec<Rc<VolumeChannel>> = (0..scene.servers).map(open).collect();
        let all_read = async |reads: usize, seed: u64| {
            let mut readers = Vec::new();
            for (client, channel) in channels.iter().enumerate() {
                for task in 0..scene.depth {
                    let seed = seed ^ (client as u64) << 32 ^ (task as u64) << 16;
                    let count = reads.div_ceil(scene.depth);
                    readers.push(spawn(read(
                        channel.clone(),
                        servers.clone(),
                        blocks.clone(),
                        count,
                        seed,
                    )));
                }
            }
            for reader in readers {
                reader.await.expect("nobody ends readers");
            }
        };
        all_read(scene.reads / 5, scene.seed).await;
        let lost = scene
            .loses_one
            .then(|| servers.served.borrow().keys().next().copied());
        if let Some(lost) = lost.flatten() {
            masters.lose(lost);
            // What was learnt of the others while there was one more of them is given as long again as it took.
            all_read(scene.reads / 5, scene.seed ^ 1).await;
        }
        let before = servers.counted(&masters);
        let (served_before, taken_before) = (servers.served.borrow().clone(), servers.taken_ns.get());
        all_read(scene.reads, !scene.seed).await;
        let after = servers.counted(&masters);
        let reads = after.reads - before.reads;
        let served: Vec<u64> = servers
            .served
            .borrow()
            .iter()
            .map(|(node, count)| count - served_before.get(node).unwrap_or(&0))
            .collect();
        // One that was never asked counts, too.
        let able = if scene.is_hot {
            COPIES.min(scene.servers)
        } else {
            scene.servers
        } - usize::from(scene.loses_one);
        let most = served.iter().copied().max().unwrap_or(0);
        Counted {
            reads,
            messages: after.messages - before.messages,
            connections: after.connections - before.connections,
            master_calls: after.master_calls - before.master_calls,
            busiest: most as f64 * able as f64 / reads as f64,
            latency_us: (servers.taken_ns.get() - taken_before) as f64 / reads as f64 / 1000.0,
        }
    })
}
