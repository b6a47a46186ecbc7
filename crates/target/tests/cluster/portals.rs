//! A volume that two nodes export, and hosts that know nothing of the cluster: what they see of it, and that whatever node is
//! paused, cut off or without power, nothing that was acknowledged is lost or overwritten by what was given up.
//!
//! The hosts go over to the other portal the moment that an answer takes longer than they like, as no real host would: so what
//! they gave up is often still on its way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use agentlink::FromTarget;
use bdev::{Channel, Data};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, Queue, discover};
use foundation::{BlockCount, Epoch, Lba, Random};
use protocols::nvme::dsm::{DsmRange, encode_ranges};
use protocols::nvme::{Command, Nqn, Status};
use reactor::sim::Host;
use reactor::{BufferPool, spawn, time};
use target::portal::Export;
use volume::{ChunkConfig, ChunkIndex, Incarnation, Membership, NodeId, VolumeNumber};

use crate::on_client;
use crate::support::{Cluster, PORT, VOLUME, geometry};

const NQN: &str = "nqn.2026-11.io.redhare:volume:7";
pub(super) const BLOCK: usize = 4096;
const LANES: u64 = 3;
const LANE_BLOCKS: u64 = 24;

/// The configuration that the masters have committed.
type Committed = Rc<RefCell<ChunkConfig>>;

pub(super) struct Exporting {
    pub(super) cluster: Cluster,
    committed: Committed,
    /// Chunks of the volume, as the masters say with what is reserved.
    chunks: Rc<Cell<u32>>,
    /// The nodes that export, in order of their places.
    portals: [usize; 2],
}

impl Exporting {
    pub(super) fn new(seed: u64, portals: [usize; 2]) -> Self {
        let cluster = Cluster::with_volume(seed);
        let config = config(&cluster, 1, 0, &[0, 1, 2]);
        let exporting = Self {
            cluster,
            committed: Rc::new(RefCell::new(config)),
            chunks: Rc::new(Cell::new(1)),
            portals,
        };
        for place in 0..2 {
            exporting.export(place);
        }
        exporting.cluster.simulation.run_for(Duration::from_millis(100));
        exporting
    }

    pub(super) fn address(&self, place: usize) -> SocketAddr {
        SocketAddr::new(self.cluster.hosts[self.portals[place]].address(), PORT)
    }

    fn described(&self, place: usize) -> Export {
        Export {
            volume: VolumeNumber(VOLUME),
            uuid: [0x5a; 16],
            geometry: geometry(),
            nqn: NQN.to_owned(),
            hosts: BTreeSet::new(),
            place,
            elsewhere: vec![self.address(1 - place)],
        }
    }

    /// What the masters and the node's agent do.
    fn export(&self, place: usize) {
        let index = self.portals[place];
        let export = self.described(place);
        let portals = self.cluster.portals[index]
            .borrow()
            .clone()
            .expect("the node has started");
        let (node, committed) = (self.cluster.node(index), self.committed.clone());
        let chunks = self.chunks.clone();
        self.cluster
            .simulation
            .start(self.cluster.hosts[index], move || async move {
                let (sender, mut receiver) = reactor::sync::channel(64);
                node.set_agent(sender);
                drop(node);
                portals.export(export).unwrap();
                while let Some(message) = receiver.recv().await {
                    match message {
                        FromTarget::WantRoutes { volume } => {
                            let config = committed.borrow().clone();
                            time::sleep(Duration::from_millis(2)).await;
                            portals.learn(VolumeNumber(volume), &[(ChunkIndex(0), config)]);
                        }
                        // Hosts have reserved nothing.
                        FromTarget::Reserve { volume, request, .. } => {
                            let found = agentlink::Reservations {
                                in_force: true,
                                chunks: chunks.get(),
                                ..agentlink::Reservations::default()
                            };
                            portals.reserved(VolumeNumber(volume), request, Ok((found, true)));
                        }
                        _ => {}
                    }
                }
            });
    }

    /// The masters commit another configuration and tell its members.
    fn configure(&self, epoch: u64, write_node: usize, members: &[usize]) {
        *self.committed.borrow_mut() = config(&self.cluster, epoch, write_node, members);
        self.cluster.configure(epoch, write_node, members);
    }

    /// Portals stand still, and what they and their hosts say is held up; then the write node loses its power.
    pub(super) fn befall(&self, hosts: &[Host], random: &mut Random) {
        let simulation = &self.cluster.simulation;
        let nodes = &self.cluster.hosts;
        simulation.run_for(Duration::from_secs(1));
        for _ in 0..6 {
            let way = self.portals[random.below(2) as usize];
            let for_a_while = Duration::from_millis(random.between(20, 900));
            match random.below(3) {
                // Shorter than what makes the others leave it out.
                0 => {
                    simulation.pause(nodes[way]);
                    simulation.run_for(for_a_while);
                    simulation.resume(nodes[way]);
                }
                1 => {
                    for host in hosts {
                        simulation.stall(nodes[way], *host, for_a_while);
                    }
                    simulation.run_for(for_a_while);
                }
                // The portal's own writes are held up; its hosts go over.
                _ => {
                    simulation.stall(nodes[way], nodes[0], for_a_while);
                    simulation.run_for(for_a_while);
                }
            }
            simulation.run_for(Duration::from_millis(random.below(400)));
        }
        // The write node loses its power, and with it one portal in half of the histories.
        simulation.power_off(nodes[0]);
        simulation.run_for(Duration::from_millis(random.between(100, 1500)));
        self.configure(2, 1, &[1, 2]);
        simulation.run_for(Duration::from_secs(8));
    }
}

fn config(cluster: &Cluster, epoch: u64, write_node: usize, members: &[usize]) -> ChunkConfig {
    let member = |&index: &usize| Membership {
        node: NodeId(1 + index as u128),
        incarnation: Incarnation(cluster.incarnation(index)),
    };
    ChunkConfig {
        epoch: Epoch(epoch),
        write_node: NodeId(1 + write_node as u128),
        members: members.iter().map(member).collect(),
    }
}

/// One way of a host to the volume: an association with one portal.
pub(super) struct Way {
    pub(super) controller: Rc<Controller>,
    pub(super) queue: Rc<Queue>,
}

impl Way {
    pub(super) async fn connect(address: SocketAddr, host: u64) -> Result<Self, ConnectError> {
        let name: Nqn = format!("nqn.2014-08.org.example:host{host}").parse().unwrap();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&host.to_le_bytes());
        let options = ConnectOptions {
            keep_alive: Duration::from_secs(2),
            limit: Duration::from_secs(1),
            ..ConnectOptions::new(address, NQN.parse().unwrap(), name, id)
        };
        let controller = Controller::connect(options).await?;
        let queue = controller.open_queue().await?;
        Ok(Self { controller, queue })
    }

    /// None if the connection was lost.
    pub(super) async fn run(&self, command: Command, data: Data) -> (Option<Status>, Data) {
        let result = self.queue.execute(command, data).await;
        (
            result.completion.map(|completion| completion.status()),
            result.data,
        )
    }

    pub(super) async fn write(&self, lba: u64, blocks: u64, byte: u8) -> Option<Status> {
        let mut buffer = BufferPool::current()
            .try_allocate(blocks as usize * BLOCK)
            .unwrap();
        buffer.fill(byte);
        let command = Command::write(1, Lba(lba), BlockCount(blocks));
        self.run(command, Data::From(buffer.freeze())).await.0
    }

    /// Deallocates these ranges, each a first block and a length in blocks; of `room` bytes that the host makes ready, the list comes first.
    async fn deallocate(&self, ranges: &[(u64, u32)], room: usize) -> Option<Status> {
        let list: Vec<_> = ranges
            .iter()
            .map(|(lba, blocks)| DsmRange::new(Lba(*lba), *blocks))
            .collect();
        let list = encode_ranges(&list).unwrap();
        let mut buffer = BufferPool::current().try_allocate(room).unwrap();
        buffer.fill(0xff);
        buffer[..list.len()].copy_from_slice(&list);
        let command = Command::deallocate(1, ranges.len() as u16);
        self.run(command, Data::From(buffer.freeze())).await.0
    }

    pub(super) async fn read(&self, lba: u64, blocks: u64) -> Result<Vec<u8>, Option<Status>> {
        let buffer = BufferPool::current()
            .try_allocate(blocks as usize * BLOCK)
            .unwrap();
        let command = Command::read(1, Lba(lba), BlockCount(blocks));
        match self.run(command, Data::Into(buffer)).await {
            (Some(Status::SUCCESS), data) => Ok(data.into_read().to_vec()),
            (status, _) => Err(status),
        }
    }
}

/// A status of the path, or none at all: the host tries again, by this way or the other. Nothing else may come.
pub(super) fn is_of_the_path(status: Option<Status>) -> bool {
    status.is_none_or(Status::is_path_related)
}

#[test]
fn a_host_sees_one_namespace_by_two_standard_controllers() {
    let exporting = Exporting::new(1, [1, 2]);
    let addresses = [exporting.address(0), exporting.address(1)];
    on_client(&exporting.cluster, Duration::from_secs(30), move || async move {
        let ways = [
            Way::connect(addresses[0], 1).await.unwrap(),
            Way::connect(addresses[1], 1).await.unwrap(),
        ];
        let [one, other] = [&ways[0], &ways[1]].map(|way| way.controller.identity());
        assert_eq!((one.sn, one.mn, one.subnqn), (other.sn, other.mn, other.subnqn));
        assert_ne!(one.cntlid, other.cntlid);
        // Several ports, several controllers, asymmetric access; nothing in capsules; Compare and Dataset Management; no Write
        // Zeroes or Copy, and nothing fused.
        assert_eq!((one.cmic & 0b1011, one.in_capsule_data_bytes()), (0b1011, 0));
        assert_eq!((one.oncs & 0b1_0000_1101, one.fuses, one.acwu), (0b101, 1, 0));
        let [one, other] = [&ways[0], &ways[1]].map(|way| way.controller.clone());
        let ids = one.identifiers(1).await.unwrap();
        assert_eq!((ids.nguid, ids.uuid), (Some([0x5a; 16]), Some([0x5a; 16])));
        assert_eq!(ids, other.identifiers(1).await.unwrap());
        let discovery = ConnectOptions::new(
            addresses[1],
            Nqn::discovery(),
            "nqn.2014-08.org.example:host1".parse().unwrap(),
            [1; 16],
        );
        let listed: BTreeSet<String> = discover(discovery)
            .await
            .unwrap()
            .into_iter()
            .filter(|entry| entry.subnqn.text() == Ok(NQN))
            .map(|entry| entry.traddr.as_str().unwrap().trim().to_owned())
            .collect();
        assert_eq!(
            listed,
            addresses.iter().map(|address| address.ip().to_string()).collect()
        );

        assert_eq!(ways[0].write(3, 20, 7).await, Some(Status::SUCCESS));
        assert_eq!(ways[1].read(3, 20).await, Ok(vec![7; 20 * BLOCK]));
        // The other way has claimed nothing yet, then it has, and the first one hears so once.
        assert_eq!(ways[1].write(4, 1, 8).await, Some(Status::SUCCESS));
        assert_eq!(ways[0].write(5, 1, 9).await, Some(Status::INTERNAL_PATH_ERROR));
        assert_eq!(ways[0].write(5, 1, 9).await, Some(Status::SUCCESS));
        let expected: Vec<u8> = [7, 8, 9].into_iter().flat_map(|byte| [byte; BLOCK]).collect();
        assert_eq!(ways[1].read(3, 3).await, Ok(expected));
        let flush = Command::new(0, 1);
        assert_eq!(ways[1].run(flush, Data::None).await.0, Some(Status::SUCCESS));
        let zeroes = Command::new(8, 1).with_cdw12(3);
        assert_eq!(
            ways[1].run(zeroes, Data::None).await.0,
            Some(Status::INVALID_COMMAND_OPCODE)
        );
        assert_eq!(ways[0].read(3, 1).await, Ok(vec![7; BLOCK]));
    });
}

/// Otherwise each growth would cut the hosts off from both portals at once.
#[test]
fn a_host_stays_connected_while_its_volume_grows() {
    let exporting = Exporting::new(1, [1, 2]);
    let address = exporting.address(0);
    let (before, mut after) = (exporting.described(0), exporting.described(0));
    after.geometry.append_group(2).unwrap();
    let portals = exporting.cluster.portals[1].borrow().clone().unwrap();
    let chunks = exporting.chunks.clone();
    let grow = move || async move {
        time::sleep(Duration::from_secs(1)).await;
        portals.export(after).unwrap();
        // An answer of the masters that was on its way: no volume shrinks.
        time::sleep(Duration::from_secs(1)).await;
        portals.export(before).unwrap();
        time::sleep(Duration::from_secs(2)).await;
        chunks.set(3);
    };
    let simulation = &exporting.cluster.simulation;
    simulation.start(exporting.cluster.hosts[1], grow);
    on_client(&exporting.cluster, Duration::from_secs(30), move || async move {
        let began = time::now();
        let way = Way::connect(address, 1).await.unwrap();
        let blocks = async || {
            let namespace = way.controller.open_namespace(1).await.unwrap();
            namespace.geometry().blocks.0
        };
        let mut events = way.controller.events().await.unwrap();
        assert_eq!(way.write(3, 1, 7).await, Some(Status::SUCCESS));
        assert_eq!(blocks().await, 1024);
        // What is reserved has not been seen since the volume grew.
        time::sleep(Duration::from_secs(3)).await;
        assert_eq!(way.read(1024, 1).await, Err(Some(Status::LBA_OUT_OF_RANGE)));
        assert_eq!(way.read(3, 1).await, Ok(vec![7; BLOCK]));
        while blocks().await == 1024 {
            events.recv().await.unwrap();
        }
        assert_eq!(blocks().await, 3 * 1024);
        let took = time::now() - began;
        assert!(
            (Duration::from_millis(6500)..Duration::from_secs(8)).contains(&took),
            "{took:?}"
        );
        assert_eq!(way.read(3, 1).await, Ok(vec![7; BLOCK]), "by the same connection");
        assert!(!way.controller.is_ended());
        // Where its chunk is, this cluster never says; but it is no block that there is not.
        let late = time::timeout(Duration::from_secs(1), way.read(1024, 1)).await;
        assert!(late.is_err(), "{late:?}");
    });
}

impl Way {
    async fn compare(&self, lba: u64, expected: &[u8]) -> Option<Status> {
        let mut buffer = BufferPool::current().try_allocate(expected.len()).unwrap();
        buffer.copy_from_slice(expected);
        let blocks = BlockCount((expected.len() / BLOCK) as u64);
        let command = Command::compare(1, Lba(lba), blocks);
        self.run(command, Data::From(buffer.freeze())).await.0
    }
}

#[test]
fn a_host_compares_with_what_it_wrote_by_either_way() {
    let exporting = Exporting::new(3, [1, 2]);
    let addresses = [exporting.address(0), exporting.address(1)];
    on_client(&exporting.cluster, Duration::from_secs(30), move || async move {
        let [one, other] = [
            Way::connect(addresses[0], 1).await.unwrap(),
            Way::connect(addresses[1], 1).await.unwrap(),
        ];
        // Across stripe units of 16 blocks, and as long as a command may be.
        let limit = one.controller.identity().transfer_limit_bytes(4096).unwrap();
        let most = limit as usize / BLOCK;
        assert!(most > 16 * 2, "{most}");
        let mut bytes = vec![0; most * BLOCK];
        Random::from_seed(3).fill(&mut bytes);
        let lba = 1024 - most as u64;
        let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(&bytes);
        let write = Command::write(1, Lba(lba), BlockCount(most as u64));
        let written = one.run(write, Data::From(buffer.freeze())).await.0;
        assert_eq!(written, Some(Status::SUCCESS));
        for way in [&one, &other] {
            assert_eq!(way.compare(lba, &bytes).await, Some(Status::SUCCESS));
            assert_eq!(
                way.compare(lba + 15, &bytes[15 * BLOCK..17 * BLOCK]).await,
                Some(Status::SUCCESS)
            );
            // One bit of the first, of the last, and of a block behind a boundary.
            for at in [0, bytes.len() - 1, 16 * BLOCK] {
                let mut differs = bytes.clone();
                differs[at] ^= 1;
                assert_eq!(
                    way.compare(lba, &differs).await,
                    Some(Status::COMPARE_FAILURE),
                    "{at}"
                );
            }
            // What was never written, and beyond the end.
            assert_eq!(way.compare(0, &[0; BLOCK]).await, Some(Status::SUCCESS));
            assert_eq!(
                way.compare(1023, &[0; 2 * BLOCK]).await,
                Some(Status::LBA_OUT_OF_RANGE)
            );
        }
        // It claims nothing: the first way writes on under its own, and the other one sees it at once.
        for byte in 1..20 {
            assert_eq!(one.write(5, 1, byte).await, Some(Status::SUCCESS));
            assert_eq!(other.compare(5, &[byte; BLOCK]).await, Some(Status::SUCCESS));
            assert_eq!(
                other.compare(5, &[byte - 1; BLOCK]).await,
                Some(Status::COMPARE_FAILURE)
            );
        }
        // Many at once, each as long as may be, wait for buffers and end.
        let many: Vec<_> = (0..24)
            .map(|_| {
                let (way, bytes) = (other.queue.clone(), bytes.clone());
                spawn(async move {
                    let mut buffer = BufferPool::current().allocate(bytes.len()).await.unwrap();
                    buffer.copy_from_slice(&bytes);
                    let blocks = BlockCount((bytes.len() / BLOCK) as u64);
                    let command = Command::compare(1, Lba(lba), blocks);
                    let result = way.execute(command, Data::From(buffer.freeze())).await;
                    result.completion.map(|completion| completion.status())
                })
            })
            .collect();
        for compared in many {
            assert_eq!(compared.await, Some(Some(Status::SUCCESS)));
        }
    });
    exporting.cluster.end();
}

#[test]
fn a_host_gives_back_what_it_needs_no_more() {
    let exporting = Exporting::new(2, [1, 2]);
    let addresses = [exporting.address(0), exporting.address(1)];
    let node = exporting.cluster.node(0);
    let free = move || node.disks()[0].free_bytes;
    on_client(&exporting.cluster, Duration::from_secs(30), move || async move {
        let [one, other] = [
            Way::connect(addresses[0], 1).await.unwrap(),
            Way::connect(addresses[1], 1).await.unwrap(),
        ];
        let before = free();
        for lba in (0..1024).step_by(128) {
            assert_eq!(one.write(lba, 128, 7).await, Some(Status::SUCCESS));
        }
        assert!(free() <= before - (3 << 20), "{} of {before}", free());
        // Exactly the list, and one in a page, as Linux sends it; ranges that touch nothing of each other.
        assert_eq!(
            one.deallocate(&[(3, 5), (700, 0), (9, 2)], 48).await,
            Some(Status::SUCCESS)
        );
        // The other portal has no claim yet, and takes it.
        assert_eq!(other.deallocate(&[(20, 1)], 4096).await, Some(Status::SUCCESS));
        let mut expected = vec![7; 32];
        for lba in [3, 4, 5, 6, 7, 9, 10, 20] {
            expected[lba] = 0;
        }
        let expected: Vec<u8> = expected.into_iter().flat_map(|byte| [byte; BLOCK]).collect();
        assert_eq!(one.read(0, 32).await, Ok(expected.clone()));
        assert_eq!(other.read(0, 32).await, Ok(expected));
        // One that lies beyond the end: nothing is done of the others either, wherever it stands.
        for ranges in [
            [(40, 1), (1024, 1)],
            [(1024, 1), (40, 1)],
            [(40, 1), (1 << 40, 1)],
        ] {
            assert_eq!(
                other.deallocate(&ranges, 32).await,
                Some(Status::LBA_OUT_OF_RANGE)
            );
        }
        assert_eq!(other.read(40, 1).await, Ok(vec![7; BLOCK]));
        // Everything: the claim of the first way is in force no more, and is taken anew.
        assert_eq!(
            one.deallocate(&[(0, 1024)], 4096).await,
            Some(Status::INTERNAL_PATH_ERROR)
        );
        assert_eq!(one.deallocate(&[(0, 1024)], 4096).await, Some(Status::SUCCESS));
        assert_eq!(other.read(0, 128).await, Ok(vec![0; 128 * BLOCK]));
        let flush = Command::new(0, 1);
        assert_eq!(one.run(flush, Data::None).await.0, Some(Status::SUCCESS));
        assert!(free() + (2 << 20) > before, "{} of {before}", free());
        assert_eq!(one.write(3, 20, 9).await, Some(Status::SUCCESS));
        assert_eq!(other.read(3, 20).await, Ok(vec![9; 20 * BLOCK]));
    });
    exporting.cluster.end();
}

/// What hosts have in common.
struct World {
    addresses: [SocketAddr; 2],
    stop: Cell<bool>,
    ended: Cell<u64>,
    /// Requests acknowledged, and commands given up by a host that went over.
    done: Cell<u64>,
    given_up: Cell<u64>,
    failure: RefCell<Option<String>>,
}

/// A host that writes and reads a part of the volume that is its own, one request at a time.
struct Lane {
    world: Rc<World>,
    number: u64,
    random: Random,
    ways: [Option<Rc<Way>>; 2],
    model: Vec<u8>,
}

impl Lane {
    /// A way, which may take a while.
    async fn way(&mut self, which: usize) -> Option<Rc<Way>> {
        let fit = self.ways[which]
            .clone()
            .filter(|way| !way.controller.is_ended() && !way.queue.is_ended());
        if fit.is_some() {
            return fit;
        }
        let connected = Way::connect(self.world.addresses[which], self.number).await;
        self.ways[which] = connected.ok().map(Rc::new);
        self.ways[which].clone()
    }

    /// Does something by either way until it is done.
    async fn until_done<T: 'static, F: Future<Output = Result<T, Option<Status>>> + 'static>(
        &mut self,
        what: &str,
        run: impl Fn(Rc<Way>) -> F,
    ) -> Option<T> {
        let deadline = time::now() + Duration::from_secs(60);
        loop {
            if time::now() > deadline {
                self.fail(format!("{what} took more than a minute"));
                return None;
            }
            let which = self.random.below(2) as usize;
            let Some(way) = self.way(which).await else {
                time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let patience = Duration::from_millis(match self.random.below(3) {
                0 => self.random.between(1, 20),
                _ => self.random.between(20, 2000),
            });
            // What is given up stays under way.
            let mut attempt = spawn(run(way));
            match time::timeout(patience, &mut attempt).await {
                Ok(Some(Ok(done))) => {
                    self.world.done.set(self.world.done.get() + 1);
                    return Some(done);
                }
                Ok(Some(Err(status))) if is_of_the_path(status) => {}
                Ok(Some(Err(status))) => {
                    self.fail(format!("{what} was answered with {status:?}"));
                    return None;
                }
                Ok(None) => return None,
                Err(time::Elapsed) => {
                    // The association ends for this host, though its connection may stay open for a while.
                    self.world.given_up.set(self.world.given_up.get() + 1);
                    if let Some(way) = self.ways[which].take() {
                        let linger = Duration::from_millis(self.random.below(50));
                        drop(spawn(async move {
                            time::sleep(linger).await;
                            way.queue.close();
                        }));
                    }
                }
            }
        }
    }

    fn fail(&self, why: String) {
        self.world
            .failure
            .borrow_mut()
            .get_or_insert(format!("host {}: {why}", self.number));
    }

    async fn step(&mut self, value: u8) {
        let start = self.random.below(LANE_BLOCKS);
        let count = self.random.between(1, 4.min(LANE_BLOCKS - start));
        let range = start as usize..(start + count) as usize;
        let lba = self.number * LANE_BLOCKS + start;
        if self.random.chance(1, 6) {
            let room = if self.random.chance(1, 2) { 16 } else { 4096 };
            let deallocate = move |way: Rc<Way>| async move {
                match way.deallocate(&[(lba, count as u32)], room).await {
                    Some(Status::SUCCESS) => Ok(()),
                    status => Err(status),
                }
            };
            if self.until_done("a deallocation", deallocate).await.is_some() {
                self.model[range].fill(0);
            }
            return;
        }
        if self.random.chance(1, 2) {
            let write = move |way: Rc<Way>| async move {
                match way.write(lba, count, value).await {
                    Some(Status::SUCCESS) => Ok(()),
                    status => Err(status),
                }
            };
            if self.until_done("a write", write).await.is_some() {
                self.model[range].fill(value);
            }
            return;
        }
        let read = move |way: Rc<Way>| async move { way.read(lba, count).await };
        let Some(bytes) = self.until_done("a read", read).await else {
            return;
        };
        for (block, expected) in bytes.chunks(BLOCK).zip(&self.model[range]) {
            if block.iter().any(|byte| byte != expected) {
                self.fail(format!("step {value}: {} instead of {expected}", block[0]));
            }
        }
    }

    async fn run(mut self) {
        let mut value = 0u8;
        while !self.world.stop.get() && self.world.failure.borrow().is_none() {
            value = value % 250 + 1;
            self.step(value).await;
            time::sleep(Duration::from_millis(self.random.below(5))).await;
        }
        self.world.ended.set(self.world.ended.get() + 1);
    }
}

fn start_lane(exporting: &Exporting, world: &Rc<World>, number: u64, seed: u64) -> Host {
    let host = exporting.cluster.simulation.add_host(&format!("host{number}"));
    let lane = Lane {
        world: world.clone(),
        number,
        random: Random::from_seed(seed ^ number << 40),
        ways: [None, None],
        model: vec![0; LANE_BLOCKS as usize],
    };
    exporting.cluster.simulation.start(host, move || lane.run());
    host
}

/// How many requests were done and how many commands given up; or what went wrong.
fn history(seed: u64) -> Result<(u64, u64), String> {
    let mut random = Random::from_seed(seed);
    // The write node is a portal, or it is not.
    let portals = if seed.is_multiple_of(2) { [0, 1] } else { [1, 2] };
    let exporting = Exporting::new(seed, portals);
    let world = Rc::new(World {
        addresses: [exporting.address(0), exporting.address(1)],
        stop: Cell::new(false),
        ended: Cell::new(0),
        done: Cell::new(0),
        given_up: Cell::new(0),
        failure: RefCell::default(),
    });
    let hosts: Vec<Host> = (0..LANES)
        .map(|number| start_lane(&exporting, &world, number, seed))
        .collect();
    exporting.befall(&hosts, &mut random);
    let simulation = &exporting.cluster.simulation;
    world.stop.set(true);
    simulation.run_for(Duration::from_secs(70));
    exporting.cluster.end();
    if let Some(why) = world.failure.borrow_mut().take() {
        return Err(why);
    }
    if world.ended.get() != LANES {
        return Err("a host has not ended".to_owned());
    }
    Ok((world.done.get(), world.given_up.get()))
}

#[test]
fn hosts_lose_nothing_whatever_happens_to_a_portal() {
    let (mut done, mut given_up) = (0, 0);
    for seed in foundation::seeds::from_environment(12) {
        let counts = history(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        done += counts.0;
        given_up += counts.1;
    }
    println!("{done} requests, {given_up} commands given up");
    assert!(
        done > 2000 && given_up > 100,
        "only {done} requests, {given_up} given up"
    );
}
