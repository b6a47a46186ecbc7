//! Three whole nodes on simulated hosts: real replication core, real NVMe/TCP between them, real blobstores on
//! simulated disks. The masters are played by the test. A native client writes and reads through the peer subsystem.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Chunk, Configuration};
use bdev::Data;
use fabrics::initiator::{ConnectOptions, Controller, Queue};
use fabrics::target::{Options, Target, serve};
use foundation::{ByteCount, Epoch, Lba, Random};
use protocols::nvme::{Command, Nqn};
use reactor::sim::{Host, Simulation};
use reactor::{BufferPool, time};
use target::node::{DiskConfig, Identity, Node, names};
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation, native_status_from_code};
use volume::{
    ClusterId, Geometry, Incarnation, NodeId, Settings, Status, TraceId, VolumeNumber, WriterToken,
};

const PORT: u16 = 4420;
const VOLUME: u32 = 7;
const DISK: u128 = 0xd15c;

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        metadata_bytes: 0,
        stripe_unit_blocks: 16,
        chunk_blocks: 1024,
        region_blocks: 256,
        copies: 3,
        minimum: 2,
        group_chunks: vec![1],
    }
}

type Slot = Rc<RefCell<Option<Rc<Node>>>>;

struct Cluster {
    simulation: Simulation,
    hosts: Vec<Host>,
    nodes: Vec<Slot>,
    lives: RefCell<Vec<u64>>,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let hosts: Vec<Host> = (0..3).map(|n| simulation.add_host(&format!("node{n}"))).collect();
        let nodes = (0..3).map(|_| Slot::default()).collect();
        let cluster = Self {
            simulation,
            hosts,
            nodes,
            lives: RefCell::new(vec![0; 3]),
        };
        for index in 0..3 {
            cluster.start(index);
        }
        cluster
    }

    fn start(&self, index: usize) {
        self.lives.borrow_mut()[index] += 1;
        let identity = Identity {
            cluster: ClusterId(0xc1),
            node: NodeId(1 + index as u128),
            incarnation: Incarnation(100 * (1 + index as u64) + self.lives.borrow()[index]),
        };
        let slot = self.nodes[index].clone();
        *slot.borrow_mut() = None;
        let addresses: Vec<(NodeId, SocketAddr)> = (0..3)
            .map(|n| {
                (
                    NodeId(1 + n as u128),
                    SocketAddr::new(self.hosts[n].address(), PORT),
                )
            })
            .collect();
        let own = addresses[index].1;
        self.simulation.start(self.hosts[index], move || async move {
            let disk = DiskConfig {
                path: PathBuf::from("/disk"),
                size: Some(ByteCount(32 << 20)),
                new_uuid: DISK + index as u128,
                force: false,
            };
            let node = Node::start(identity, &[disk], Settings::default()).await.unwrap();
            node.set_peers(
                addresses
                    .into_iter()
                    .filter(|(id, _)| *id != identity.node)
                    .collect(),
            );
            let target = Target::new();
            target.add_subsystem(node.subsystem());
            let _server = serve(target, own, Options::default()).unwrap();
            *slot.borrow_mut() = Some(node);
            std::future::pending::<()>().await;
        });
    }

    fn node(&self, index: usize) -> Rc<Node> {
        self.nodes[index].borrow().clone().expect("the node has started")
    }

    fn incarnation(&self, index: usize) -> u64 {
        100 * (1 + index as u64) + self.lives.borrow()[index]
    }

    /// What the masters would do: a copy of the only chunk on each node, and the first configuration.
    fn create_volume(&self) {
        for index in 0..3 {
            let node = self.node(index);
            self.simulation.start(self.hosts[index], move || async move {
                let chunk = target::node::from_chunk(Chunk {
                    volume: VOLUME,
                    index: 0,
                });
                node.create_copy(chunk, geometry(), DISK + index as u128)
                    .await
                    .unwrap();
            });
        }
        self.simulation.run_for(Duration::from_secs(1));
        self.configure(1, 0, &[0, 1, 2]);
    }

    fn configure(&self, epoch: u64, write_node: usize, members: &[usize]) {
        let configuration = Configuration {
            epoch,
            write_node: 1 + write_node as u128,
            members: members
                .iter()
                .map(|&n| (1 + n as u128, self.incarnation(n)))
                .collect(),
        };
        for &index in members {
            let node = self.node(index);
            let configuration = configuration.clone();
            self.simulation.start(self.hosts[index], move || async move {
                let chunk = target::node::from_chunk(Chunk {
                    volume: VOLUME,
                    index: 0,
                });
                node.configure(chunk, target::node::to_config(&configuration));
            });
        }
    }
}

/// A native client of one node.
struct Client {
    queue: Rc<Queue>,
    _controller: Rc<Controller>,
}

impl Client {
    async fn connect(
        host: Host,
        node: usize,
        session: u64,
    ) -> Result<Self, fabrics::initiator::ConnectError> {
        let name: Nqn = format!("{}one", names::CLIENT_PREFIX).parse().unwrap();
        let subsystem: Nqn = names::of_node(NodeId(1 + node as u128)).parse().unwrap();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&77u64.to_le_bytes());
        id[8..].copy_from_slice(&session.to_le_bytes());
        let address = SocketAddr::new(host.address(), PORT);
        let controller = Controller::connect(ConnectOptions::new(address, subsystem, name, id)).await?;
        let queue = controller.open_queue().await?;
        Ok(Self {
            queue,
            _controller: controller,
        })
    }

    async fn run(
        &self,
        operation: NativeOperation,
        epoch: u64,
        lba: u64,
        blocks: u32,
        data: Data,
    ) -> (Status, Data) {
        let native = NativeCommand {
            operation,
            volume: VolumeNumber(VOLUME),
            fields: NativeFields {
                epoch: Epoch(epoch),
                writer_token: WriterToken(0),
                first_lba: Lba(lba),
            },
            blocks,
            trace: TraceId(1),
        };
        let fields = native.encode();
        let mut command = Command::new(fields.opcode, fields.nsid).with_metadata_pointer(fields.mptr);
        command.set_cdw2(fields.cdw2);
        command.set_cdw3(fields.cdw3);
        let [a, b, c, d, e, f] = fields.cdw10_15;
        let command = command
            .with_cdw10(a)
            .with_cdw11(b)
            .with_cdw12(c)
            .with_cdw13(d)
            .with_cdw14(e)
            .with_cdw15(f);
        let result = self.queue.execute(command, data).await;
        let status = match result.completion {
            Some(completion) if completion.status().is_success() => Status::Done,
            Some(completion) => {
                let code = completion.status();
                assert_eq!(code.type_code(), 1, "{code}");
                native_status_from_code(code.code(), completion.result_u64()).expect("a native status")
            }
            None => Status::Cancelled,
        };
        (status, result.data)
    }

    async fn write(&self, epoch: u64, lba: u64, seed: u64) -> Status {
        let mut buffer = BufferPool::current().try_allocate(8192).unwrap();
        Random::from_seed(seed).fill(&mut buffer);
        self.run(
            NativeOperation::Write { fua: false },
            epoch,
            lba,
            2,
            Data::From(buffer.freeze()),
        )
        .await
        .0
    }

    async fn write_until_done(&self, epoch: u64, lba: u64, seed: u64) {
        let deadline = time::now() + Duration::from_secs(20);
        loop {
            let status = self.write(epoch, lba, seed).await;
            if status == Status::Done {
                return;
            }
            assert!(time::now() < deadline, "still {status:?}");
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn read_until_done(&self, epoch: u64, lba: u64) -> Vec<u8> {
        let deadline = time::now() + Duration::from_secs(20);
        loop {
            let buffer = BufferPool::current().try_allocate(8192).unwrap();
            let (status, data) = self
                .run(NativeOperation::Read, epoch, lba, 2, Data::Into(buffer))
                .await;
            if status == Status::Done {
                return data.into_read().to_vec();
            }
            assert!(time::now() < deadline, "still {status:?}");
            time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn expected(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    Random::from_seed(seed).fill(&mut bytes);
    bytes
}

fn on_client<F: Future<Output = ()> + 'static>(cluster: &Cluster, limit: Duration, make: impl FnOnce() -> F) {
    let host = cluster.simulation.add_host("client");
    let done = Rc::new(std::cell::Cell::new(false));
    let flag = done.clone();
    let work = make();
    cluster.simulation.start(host, move || async move {
        work.await;
        flag.set(true);
    });
    cluster.simulation.run_for(limit);
    assert!(done.get(), "the client has not finished");
}

#[test]
fn what_one_node_acknowledges_every_node_reads() {
    let cluster = Cluster::new(1);
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.create_volume();
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let clients = [
            Client::connect(hosts[0], 0, 1).await.unwrap(),
            Client::connect(hosts[1], 1, 1).await.unwrap(),
            Client::connect(hosts[2], 2, 1).await.unwrap(),
        ];
        for n in 0..20u64 {
            clients[0].write_until_done(1, n * 30, n).await;
        }
        for n in 0..20u64 {
            for client in &clients {
                assert!(client.read_until_done(1, n * 30).await == expected(n));
            }
        }
        let (status, _) = clients[0].run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
        // Another node's word on writes, an old map, a wrong range.
        assert_eq!(clients[1].write(1, 0, 5).await, Status::NotWriteNode(Epoch(1)));
        assert_eq!(clients[0].write(0, 0, 5).await, Status::StaleEpoch(Epoch(1)));
    });
}

#[test]
fn a_killed_write_node_is_replaced_and_nothing_acknowledged_is_lost() {
    for seed in 0..5 {
        let cluster = Cluster::new(100 + seed);
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.create_volume();
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(30), move || async move {
            let client = Client::connect(hosts[0], 0, 1).await.unwrap();
            for n in 0..20u64 {
                client.write_until_done(1, n * 30, n).await;
            }
        });
        cluster.simulation.power_off(cluster.hosts[0]);
        // The masters notice, and name node 1 the write node of what is left.
        cluster.configure(2, 1, &[1, 2]);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let clients = [
                Client::connect(hosts[1], 1, 2).await.unwrap(),
                Client::connect(hosts[2], 2, 2).await.unwrap(),
            ];
            for n in 0..20u64 {
                assert!(
                    clients[1].read_until_done(2, n * 30).await == expected(n),
                    "write {n} is lost"
                );
            }
            clients[0].write_until_done(2, 0, 1000).await;
            for client in &clients {
                assert!(client.read_until_done(2, 0).await == expected(1000));
            }
        });
    }
}

#[test]
fn after_a_common_power_cut_flushed_writes_are_there() {
    let cluster = Cluster::new(7);
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.create_volume();
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..20u64 {
            client.write_until_done(1, n * 30, n).await;
        }
        let (status, _) = client.run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
    });
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    for index in 0..3 {
        cluster.start(index);
    }
    cluster.simulation.run_for(Duration::from_secs(2));
    // Every named incarnation has ended: the masters name the new ones.
    cluster.configure(2, 2, &[0, 1, 2]);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(40), move || async move {
        let client = Client::connect(hosts[2], 2, 2).await.unwrap();
        for n in 0..20u64 {
            assert!(
                client.read_until_done(2, n * 30).await == expected(n),
                "flushed write {n} is lost"
            );
        }
        client.write_until_done(2, 0, 1000).await;
        assert!(client.read_until_done(2, 0).await == expected(1000));
    });
}

#[test]
fn one_seed_one_trace() {
    let trace = |seed| {
        let cluster = Cluster::new(seed);
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.create_volume();
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.simulation.trace()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn a_foreign_disk_is_refused() {
    let simulation = Simulation::new(1);
    let host = simulation.add_host("node");
    simulation
        .disk(host, Path::new("/disk"))
        .damage(0, b"somebody's data");
    let said = Rc::new(RefCell::new(String::new()));
    let place = said.clone();
    simulation.start(host, move || async move {
        let disk = DiskConfig {
            path: PathBuf::from("/disk"),
            size: Some(ByteCount(32 << 20)),
            new_uuid: 1,
            force: false,
        };
        let identity = Identity {
            cluster: ClusterId(1),
            node: NodeId(1),
            incarnation: Incarnation(1),
        };
        // The file is as long as a disk, and not empty.
        let file = reactor::file::File::open(
            Path::new("/disk"),
            reactor::file::OpenOptions {
                write: true,
                create: true,
                direct: false,
            },
        );
        file.unwrap().set_length_bytes(32 << 20).unwrap();
        let refused = Node::start(identity, &[disk], Settings::default()).await;
        *place.borrow_mut() = refused.err().map(|error| error.to_string()).unwrap_or_default();
    });
    simulation.run_for(Duration::from_secs(5));
    assert!(
        said.borrow().contains("holds something that is not Redhare's"),
        "{}",
        said.borrow()
    );
}
