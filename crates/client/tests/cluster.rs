//! Volumes over nodes that are reached over NVMe/TCP, in virtual time: what a user reads is what was written while
//! connections are lost and nodes die and return.
//!
//! The nodes are plain targets that serve one memory device, so that copies are always equal; what real nodes
//! refuse is proved where refusals are (`volume::client`, `client::connection`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target as Struck};
use bdev::memory::MemoryDevice;
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError};
use client::{LinkOptions, NodeDirectory, NodeLinks, node_subsystem};
use fabrics::target::{Hosts, Namespace, Options, Subsystem, Target, serve};
use foundation::{BlockCount, Epoch, Lba, Random};
use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpReceiver, TcpSender, TcpStream};
use reactor::sim::{Host, Simulation};
use reactor::{Buffer, BufferPool, time};
use volume::client::{
    Answer, AnswerSink, ClientOptions, MapSource, PeerStatus, Peers, Place, Reply, Sessions, VolumeChannel,
    VolumeDevice, VolumeMap,
};
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation};
use volume::{
    ChunkConfig, ChunkIndex, ChunkMap, Geometry, HostId, Incarnation, Membership, NodeId, Status, TraceId,
    VolumeNumber, WriterToken,
};

const VOLUME: u32 = 7;
const PORT: u16 = 4420;
const NODES: u128 = 3;

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        metadata_bytes: 0,
        stripe_unit_blocks: 4,
        chunk_blocks: 64,
        region_blocks: 8,
        copies: 3,
        minimum: 2,
        group_chunks: vec![4],
    }
}

/// Maps as the masters would give them, and the nodes' addresses.
struct Masters {
    map: Mutex<Arc<VolumeMap>>,
    version: AtomicU64,
    addresses: BTreeMap<NodeId, SocketAddr>,
}

impl Masters {
    fn new(hosts: &[Host]) -> Arc<Self> {
        let addresses = hosts
            .iter()
            .enumerate()
            .map(|(index, host)| (NodeId(index as u128 + 1), SocketAddr::new(host.address(), PORT)));
        let nobody = NodeId(0);
        Arc::new(Self {
            map: Mutex::new(Arc::new(map(1, nobody))),
            version: AtomicU64::new(1),
            addresses: addresses.collect(),
        })
    }

    /// Commits an epoch in which this node orders nothing and is no member.
    fn leave_out(&self, epoch: u64, node: NodeId) {
        *self.map.lock().unwrap() = Arc::new(map(epoch, node));
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn map(epoch: u64, without: NodeId) -> VolumeMap {
    let nodes: Vec<_> = (1..=NODES).map(NodeId).filter(|node| *node != without).collect();
    let mut chunks = ChunkMap::new(4);
    for chunk in 0..4 {
        let members = nodes.iter().map(|&node| Membership {
            node,
            incarnation: Incarnation(1),
        });
        let config = ChunkConfig {
            epoch: Epoch(epoch),
            write_node: nodes[chunk % nodes.len()],
            members: members.collect(),
        };
        chunks.update(ChunkIndex(chunk as u32), config).unwrap();
    }
    VolumeMap {
        geometry: geometry(),
        chunks,
    }
}

struct Source(Arc<Masters>);

impl MapSource for Source {
    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.0.map.lock().unwrap().clone()
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(time::sleep(Duration::from_millis(2)))
    }
}

impl NodeDirectory for Masters {
    fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.addresses.get(&node).copied()
    }
}

struct Cluster {
    simulation: Simulation,
    nodes: Vec<Host>,
    user: Host,
    disk: Arc<dyn BlockDevice>,
    faults: Arc<Faults>,
    masters: Arc<Masters>,
    sessions: Sessions,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let nodes: Vec<_> = (1..=NODES)
            .map(|n| simulation.add_host(&format!("node {n}")))
            .collect();
        let user = simulation.add_host("user");
        let masters = Masters::new(&nodes);
        let faults = Arc::<Faults>::default();
        let disk = Arc::new(MemoryDevice::new(4096, BlockCount(256)).unwrap());
        let disk = Arc::new(FaultDevice::new(disk, faults.clone()));
        let cluster = Self {
            simulation,
            nodes,
            user,
            disk,
            faults,
            masters,
            sessions: Sessions::starting_at(5),
        };
        (0..cluster.nodes.len()).for_each(|index| cluster.start_node(index));
        cluster
    }

    fn start_node(&self, index: usize) {
        let (host, disk) = (self.nodes[index], self.disk.clone());
        self.simulation.start(host, move || async move {
            let name = node_subsystem(NodeId(index as u128 + 1));
            let subsystem = Subsystem::new(name, "SERIAL", "Redhare", Hosts::Any);
            let namespace = Namespace {
                nsid: VOLUME,
                uuid: [7; 16],
                device: disk,
            };
            subsystem.add_namespace(namespace).unwrap();
            let target = Target::new();
            target.add_subsystem(subsystem);
            let address = SocketAddr::new(host.address(), PORT);
            let _server = serve(target, address, Options::default()).unwrap();
            std::future::pending::<()>().await;
        });
    }

    /// Runs a user's program to its end, at most for so much of the world's time.
    fn run<F: Future<Output = ()> + 'static>(
        &self,
        limit: Duration,
        program: impl FnOnce(Rc<VolumeChannel>) -> F + 'static,
    ) {
        let done = self.begin(program);
        let end = self.simulation.elapsed() + limit;
        while !done.get() {
            assert!(self.simulation.elapsed() < end, "the user's program ends in time");
            self.simulation.run_for(Duration::from_millis(10));
        }
    }

    fn begin<F: Future<Output = ()> + 'static>(
        &self,
        program: impl FnOnce(Rc<VolumeChannel>) -> F + 'static,
    ) -> Rc<Cell<bool>> {
        let host = "nqn.2026-11.io.redhare:host".parse().unwrap();
        self.begin_with(LinkOptions::new(host, HostId(9)), program)
    }

    fn begin_with<F: Future<Output = ()> + 'static>(
        &self,
        options: LinkOptions,
        program: impl FnOnce(Rc<VolumeChannel>) -> F + 'static,
    ) -> Rc<Cell<bool>> {
        self.begin_within(ClientOptions::default().time_limit, options, program)
    }

    fn begin_within<F: Future<Output = ()> + 'static>(
        &self,
        time_limit: Duration,
        options: LinkOptions,
        program: impl FnOnce(Rc<VolumeChannel>) -> F + 'static,
    ) -> Rc<Cell<bool>> {
        self.begin_through(self.masters.clone(), time_limit, options, program)
    }

    fn begin_through<F: Future<Output = ()> + 'static>(
        &self,
        directory: Arc<dyn NodeDirectory>,
        time_limit: Duration,
        options: LinkOptions,
        program: impl FnOnce(Rc<VolumeChannel>) -> F + 'static,
    ) -> Rc<Cell<bool>> {
        let done = Rc::new(Cell::new(false));
        let (sessions, masters, told) = (self.sessions.clone(), self.masters.clone(), done.clone());
        self.simulation.start(self.user, move || async move {
            let links = NodeLinks::new(options, sessions.clone(), directory);
            let device = VolumeDevice::new(
                VolumeNumber(VOLUME),
                Arc::new(Source(masters)),
                sessions,
                Arc::new(|| unreachable!("the test opens with links")),
                ClientOptions {
                    time_limit,
                    ..ClientOptions::default()
                },
            );
            program(Rc::new(device.open_with(links))).await;
            told.set(true);
        });
        done
    }
}

fn filled(blocks: u64, byte: u8) -> Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate(blocks as usize * 4096)
        .unwrap();
    buffer.fill(byte);
    buffer.freeze()
}

async fn check(channel: &VolumeChannel, lba: u64, expected: &[u8]) {
    let buffer = BufferPool::current().try_allocate(expected.len() * 4096).unwrap();
    let (status, buffer) = channel.read(Lba(lba), buffer).await;
    assert_eq!(status, Ok(()));
    for (block, expected) in buffer.chunks(4096).zip(expected) {
        assert!(
            block.iter().all(|byte| byte == expected),
            "{} instead of {expected}",
            block[0]
        );
    }
}

/// Random requests, one after the other, against an array.
async fn agrees_with_an_array(channel: &VolumeChannel, seed: u64, steps: u64) {
    let mut random = Random::from_seed(seed);
    let mut model = vec![0u8; 256];
    channel.write_zeroes(Lba(0), BlockCount(256)).await.unwrap();
    for step in 0..steps {
        let start = random.below(256);
        let count = random.between(1, 32.min(256 - start));
        let range = start as usize..(start + count) as usize;
        match random.below(8) {
            0..3 => {
                model[range].fill(step as u8 | 1);
                channel
                    .write(Lba(start), filled(count, step as u8 | 1))
                    .await
                    .unwrap();
            }
            3 => {
                model[range].fill(0);
                channel.write_zeroes(Lba(start), BlockCount(count)).await.unwrap();
            }
            4 => channel.flush().await.unwrap(),
            _ => check(channel, start, &model[range]).await,
        }
    }
}

#[test]
fn a_volume_over_nodes_agrees_with_an_array() {
    let cluster = Cluster::new(1);
    cluster.run(Duration::from_secs(60), |channel| async move {
        assert_eq!(channel.geometry().blocks, BlockCount(256));
        agrees_with_an_array(&channel, 1, 300).await;
    });
    assert_eq!(cluster.sessions.current(), 5, "nothing was lost");
}

#[test]
fn small_queues_and_new_sessions_in_the_middle_of_work_lose_nothing() {
    let cluster = Cluster::new(2);
    let options = LinkOptions {
        queue_entries: 4,
        queues: 3,
        ..LinkOptions::new("nqn.2026-11.io.redhare:host".parse().unwrap(), HostId(9))
    };
    let done = cluster.begin_with(options, |channel| async move {
        for seed in 0..3 {
            agrees_with_an_array(&channel, seed, 200).await;
            // Deep enough that every queue is full.
            let reads: Vec<_> = (0..256)
                .map(|lba| {
                    let channel = channel.clone();
                    reactor::spawn(async move {
                        let buffer = BufferPool::current().try_allocate(4096).unwrap();
                        assert_eq!(channel.read(Lba(lba), buffer).await.0, Ok(()));
                    })
                })
                .collect();
            for read in reads {
                read.await.expect("reads are not aborted");
            }
        }
    });
    let mut bumps = 0;
    while !done.get() {
        assert!(
            cluster.simulation.elapsed() < Duration::from_secs(60),
            "the work ends in time"
        );
        cluster.simulation.run_for(Duration::from_millis(20));
        cluster.sessions.renew(cluster.sessions.current());
        bumps += 1;
    }
    assert!(bumps > 3);
    assert_eq!(
        cluster.sessions.current(),
        5 + bumps,
        "no write was lost by replacing associations"
    );
}

#[test]
fn nothing_acknowledged_is_lost_while_nodes_die_and_return() {
    let mut renewed = 0;
    for seed in 0..6 {
        let cluster = Cluster::new(seed);
        let done = cluster.begin(move |channel| async move {
            agrees_with_an_array(&channel, seed, 1500).await;
        });
        let mut random = Random::from_seed(seed);
        let mut deaths = 0;
        while !done.get() {
            assert!(
                cluster.simulation.elapsed() < Duration::from_secs(300),
                "seed {seed} ends in time"
            );
            cluster
                .simulation
                .run_for(Duration::from_micros(random.between(1_000, 60_000)));
            let node = random.below(NODES as u64) as usize;
            cluster.simulation.stop(cluster.nodes[node]);
            cluster
                .simulation
                .run_for(Duration::from_micros(random.between(0, 30_000)));
            cluster.start_node(node);
            deaths += 1;
        }
        assert!(deaths > 3, "seed {seed}");
        renewed += cluster.sessions.current() - 5;
    }
    assert!(renewed > 0, "some write was lost on its way");
}

#[test]
fn reads_go_on_and_writes_follow_the_map_when_a_node_is_gone() {
    let cluster = Cluster::new(3);
    cluster.run(Duration::from_secs(10), |channel| async move {
        channel.write(Lba(0), filled(256, 7)).await.unwrap();
    });
    cluster.simulation.stop(cluster.nodes[0]);
    cluster.run(Duration::from_secs(1), |channel| async move {
        check(&channel, 0, &[7; 256]).await;
    });
    // Nobody else orders its chunks until the masters say so.
    let done = cluster.begin(|channel| async move {
        channel.write(Lba(0), filled(256, 8)).await.unwrap();
        check(&channel, 0, &[8; 256]).await;
    });
    cluster.simulation.run_for(Duration::from_secs(3));
    assert!(!done.get());
    cluster.masters.leave_out(2, NodeId(1));
    cluster.simulation.run_for(Duration::from_secs(2));
    assert!(done.get());
}

#[test]
fn a_node_that_is_silent_is_lost_within_seconds() {
    let cluster = Cluster::new(4);
    let connected = cluster.begin(|channel| async move {
        channel.write(Lba(0), filled(256, 7)).await.unwrap();
        for _ in 0..40 {
            check(&channel, 0, &[7; 256]).await;
            time::sleep(Duration::from_secs(1)).await;
        }
    });
    cluster.simulation.run_for(Duration::from_secs(2));
    let (from, to) = (cluster.nodes[1], cluster.user);
    cluster.simulation.partition(from, to);
    cluster.simulation.partition(to, from);
    cluster.simulation.run_for(Duration::from_secs(60));
    assert!(
        connected.get(),
        "reads that hung on the silent node went elsewhere"
    );
}

#[test]
fn a_write_that_was_given_up_before_it_was_sent_is_never_sent() {
    let cluster = Cluster::new(6);
    // The write node of the first chunk.
    let (node, user) = (cluster.nodes[0], cluster.user);
    cluster.simulation.partition(node, user);
    cluster.simulation.partition(user, node);
    let options = LinkOptions::new("nqn.2026-11.io.redhare:host".parse().unwrap(), HostId(9));
    let done = cluster.begin_within(Duration::from_millis(500), options, |channel| async move {
        let given_up = channel.write(Lba(0), filled(1, 1)).await;
        assert_eq!(given_up, Err(IoError::Unavailable));
        time::sleep(Duration::from_secs(3)).await;
        check(&channel, 0, &[0]).await;
        channel.write(Lba(0), filled(1, 2)).await.unwrap();
        check(&channel, 0, &[2]).await;
    });
    cluster.simulation.run_for(Duration::from_secs(1));
    // The connection that the write waited for is made after all.
    cluster.simulation.heal(node, user);
    cluster.simulation.heal(user, node);
    cluster.simulation.run_for(Duration::from_secs(10));
    assert!(done.get());
}

#[test]
fn a_cluster_that_is_gone_is_an_error_in_time() {
    let cluster = Cluster::new(5);
    for node in &cluster.nodes {
        cluster.simulation.stop(*node);
    }
    cluster.run(Duration::from_secs(60), |channel| async move {
        let before = time::now();
        let buffer = BufferPool::current().try_allocate(4096).unwrap();
        assert_eq!(channel.read(Lba(0), buffer).await.0, Err(IoError::Unavailable));
        assert_eq!(
            channel.write(Lba(0), filled(1, 1)).await,
            Err(IoError::Unavailable)
        );
        assert!(time::now().since(before) < Duration::from_secs(50));
    });
}

/// Commands that a test gives to the links itself: their ends, and which of them it has given up.
#[derive(Default)]
struct Asked {
    ends: RefCell<BTreeMap<u64, PeerStatus>>,
    given_up: RefCell<BTreeSet<u64>>,
}

impl AnswerSink for Asked {
    fn answer(&self, tag: u64, answer: Answer) {
        self.ends.borrow_mut().insert(tag, answer.status);
    }

    fn waits(&self, tag: u64) -> bool {
        !self.given_up.borrow().contains(&tag)
    }
}

impl Asked {
    /// Writes one block of the first chunk; the block's number is the tag.
    fn write(self: &Rc<Self>, links: &NodeLinks, session: u64, block: u32, byte: u8) {
        let command = NativeCommand {
            operation: NativeOperation::Write { fua: false },
            volume: VolumeNumber(VOLUME),
            fields: NativeFields {
                epoch: Epoch(1),
                writer_token: WriterToken(0),
                first_lba: Lba(block.into()),
            },
            blocks: 1,
            trace: TraceId(0),
            portal_token: 0,
        };
        let place = Place {
            chunk: ChunkIndex(0),
            first_block: block,
        };
        let reply = Reply::new(self.clone(), block.into());
        let data = Data::From(filled(1, byte));
        links.submit(NodeId(1), session, command, place, data, reply);
    }

    fn end(&self, tag: u64) -> Option<PeerStatus> {
        self.ends.borrow().get(&tag).copied()
    }
}

const DONE: Option<PeerStatus> = Some(PeerStatus::Answered(Status::Done));

#[test]
fn a_write_whose_session_is_over_is_not_sent_in_a_newer_one() {
    let cluster = Cluster::new(7);
    let (sessions, masters) = (cluster.sessions.clone(), cluster.masters.clone());
    cluster.simulation.start(cluster.user, move || async move {
        let options = LinkOptions::new("nqn.2026-11.io.redhare:host".parse().unwrap(), HostId(9));
        let links = NodeLinks::new(options, sessions.clone(), masters);
        let asked = Rc::<Asked>::default();
        asked.write(&links, 5, 0, 1);
        // Another write is lost before the connection is begun: what would be sent now would be sent in the next session.
        assert_eq!(sessions.renew(5), 6);
        asked.write(&links, 6, 1, 2);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            (asked.end(0), asked.end(1)),
            (Some(PeerStatus::Unreachable), DONE)
        );
        // Nor over the connection that there is.
        asked.write(&links, 5, 2, 1);
        assert_eq!(asked.end(2), Some(PeerStatus::Unreachable));
    });
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.run(Duration::from_secs(10), |channel| async move {
        check(&channel, 0, &[0, 2, 0]).await;
    });
}

#[test]
fn what_was_given_up_while_it_waited_for_a_place_in_a_queue_is_not_sent() {
    let cluster = Cluster::new(8);
    let hangs = Fault {
        target: Struck::Writes,
        range: None,
        skip: 0,
        times: 2,
        effect: Effect::Hang,
    };
    cluster.faults.plant(hangs);
    let (sessions, masters, faults) = (
        cluster.sessions.clone(),
        cluster.masters.clone(),
        cluster.faults.clone(),
    );
    cluster.simulation.start(cluster.user, move || async move {
        let options = LinkOptions {
            queue_entries: 2,
            ..LinkOptions::new("nqn.2026-11.io.redhare:host".parse().unwrap(), HostId(9))
        };
        let links = NodeLinks::new(options, sessions, masters);
        let asked = Rc::<Asked>::default();
        (0..4).for_each(|block| asked.write(&links, 5, block, 3));
        time::sleep(Duration::from_secs(1)).await;
        assert!(asked.ends.borrow().is_empty());
        asked.given_up.borrow_mut().insert(2);
        faults.clear();
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!((asked.end(0), asked.end(1)), (DONE, DONE));
        assert_eq!((asked.end(2), asked.end(3)), (Some(PeerStatus::Lost), DONE));
    });
    cluster.simulation.run_for(Duration::from_secs(4));
    cluster.run(Duration::from_secs(10), |channel| async move {
        check(&channel, 0, &[3, 3, 0, 3]).await;
    });
}

/// Nodes whose first one is reached by way of another host.
struct Around(Arc<Masters>, SocketAddr);

impl NodeDirectory for Around {
    fn address(&self, node: NodeId) -> Option<SocketAddr> {
        match node {
            NodeId(1) => Some(self.1),
            node => self.0.address(node),
        }
    }
}

/// Passes on what comes, but nothing any more once it is dead.
async fn pass(mut from: TcpReceiver, mut to: TcpSender, is_dead: Arc<AtomicBool>) {
    while let Ok(Some(bytes)) = from.receive().await {
        if !is_dead.load(Ordering::Acquire) {
            let mut batch = SendBatch::new();
            batch.headers().extend_from_slice(&bytes);
            drop(to.send(batch).await.0);
        }
    }
    to.shutdown();
}

/// Its admin queue lives: the keep-alive is answered all the time.
#[test]
fn a_queue_on_which_nothing_comes_is_replaced_when_a_command_was_given_up() {
    let cluster = Cluster::new(9);
    let between = cluster.simulation.add_host("between");
    let (before, behind) = (
        SocketAddr::new(between.address(), PORT),
        SocketAddr::new(cluster.nodes[0].address(), PORT),
    );
    let is_dead = Arc::new(AtomicBool::new(false));
    let dies = is_dead.clone();
    let opened = Rc::new(Cell::new(0));
    let counted = opened.clone();
    cluster.simulation.start(between, move || async move {
        let listener = TcpListener::bind(before, TcpOptions::default()).unwrap();
        while let Ok(stream) = listener.accept().await {
            counted.set(counted.get() + 1);
            // The second is the first association's I/O queue.
            let is_dead = match counted.get() {
                2 => is_dead.clone(),
                _ => Arc::default(),
            };
            let there = TcpStream::connect(behind, &TcpOptions::default()).await.unwrap();
            let ((from_user, to_user), (from_there, to_there)) = (stream.split(), there.split());
            drop(reactor::spawn(pass(from_user, to_there, is_dead.clone())));
            drop(reactor::spawn(pass(from_there, to_user, is_dead)));
        }
    });
    let directory = Arc::new(Around(cluster.masters.clone(), before));
    let options = LinkOptions::new("nqn.2026-11.io.redhare:host".parse().unwrap(), HostId(9));
    let limit = Duration::from_secs(6);
    let done = cluster.begin_through(directory, limit, options, |channel| async move {
        channel.write(Lba(0), filled(1, 1)).await.unwrap();
        dies.store(true, Ordering::Release);
        // A flush needs no newer session, for which there would be a new connection anyway.
        assert_eq!(channel.flush().await, Err(IoError::Unavailable));
        channel.flush().await.unwrap();
    });
    cluster.simulation.run_for(Duration::from_secs(20));
    assert!(done.get());
    assert_eq!((opened.get(), cluster.sessions.current()), (4, 5));
}
