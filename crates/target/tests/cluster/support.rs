//! Three whole nodes, masters played by the test, and a client that speaks to one node.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use agentlink::{Chunk, Configuration};
use bdev::Data;
use fabrics::initiator::{ConnectOptions, Controller, Queue};
use fabrics::target::{Options, Target, serve};
use foundation::{ByteCount, Epoch, Lba, Random};
use protocols::nvme::{Command, Completion, Nqn, Status as NvmeStatus};
use reactor::sim::{Host, Simulation};
use reactor::{BufferPool, time};
use target::node::{DiskConfig, Identity, Node, names};
use target::portal::Portals;
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation, native_status_from_code};
use volume::{
    ClusterId, Geometry, Incarnation, NodeId, Settings, Status, TraceId, VolumeNumber, WriterToken,
};

pub(super) const PORT: u16 = 4420;
pub(super) const VOLUME: u32 = 7;
pub(super) const DISK: u128 = 0xd15c;

pub(super) fn geometry() -> Geometry {
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

pub(super) type Slot = Rc<RefCell<Option<Rc<Node>>>>;

pub(super) type PortalsSlot = Rc<RefCell<Option<Rc<Portals>>>>;

pub(super) struct Cluster {
    pub(super) simulation: Simulation,
    pub(super) hosts: Vec<Host>,
    nodes: Vec<Slot>,
    pub(super) portals: Vec<PortalsSlot>,
    lives: RefCell<Vec<u64>>,
    /// Each node has a second disk, and its copies go to and fro between the two.
    moves: bool,
}

/// Identity of a node's second disk.
pub(super) const SECOND_DISK: u128 = DISK + 100;

impl Cluster {
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, false)
    }

    fn of(seed: u64, moves: bool) -> Self {
        let simulation = Simulation::new(seed);
        let hosts: Vec<Host> = (0..3).map(|n| simulation.add_host(&format!("node{n}"))).collect();
        let nodes = (0..3).map(|_| Slot::default()).collect();
        let cluster = Self {
            simulation,
            hosts,
            nodes,
            portals: (0..3).map(|_| PortalsSlot::default()).collect(),
            lives: RefCell::new(vec![0; 3]),
            moves,
        };
        for index in 0..3 {
            cluster.start(index);
        }
        cluster
    }

    /// A cluster that has had time to start, and its volume.
    pub(super) fn with_volume(seed: u64) -> Self {
        Self::made(Self::new(seed))
    }

    /// The same with two disks for each node, between which its copies go to and fro as long as it lives.
    pub(super) fn with_moving_copies(seed: u64) -> Self {
        Self::made(Self::of(seed, true))
    }

    fn made(cluster: Self) -> Self {
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.create_volume();
        cluster
    }

    pub(super) fn start(&self, index: usize) {
        self.lives.borrow_mut()[index] += 1;
        let identity = Identity {
            cluster: ClusterId(0xc1),
            node: NodeId(1 + index as u128),
            incarnation: Incarnation(100 * (1 + index as u64) + self.lives.borrow()[index]),
        };
        let (slot, portals) = (self.nodes[index].clone(), self.portals[index].clone());
        *slot.borrow_mut() = None;
        *portals.borrow_mut() = None;
        let addresses: Vec<(NodeId, SocketAddr)> = (0..3)
            .map(|n| {
                (
                    NodeId(1 + n as u128),
                    SocketAddr::new(self.hosts[n].address(), PORT),
                )
            })
            .collect();
        let own = addresses[index].1;
        let moves = self.moves;
        self.simulation.start(self.hosts[index], move || async move {
            let disk = |path: &str, uuid: u128| DiskConfig {
                path: PathBuf::from(path),
                size: Some(ByteCount(32 << 20)),
                new_uuid: uuid + index as u128,
                force: false,
                trust: Default::default(),
            };
            let mut disks = vec![disk("/disk", DISK)];
            if moves {
                disks.push(disk("/second", SECOND_DISK));
            }
            let node = Node::start(identity, &disks, Settings::default()).await.unwrap();
            if moves {
                drop(reactor::spawn(to_and_fro(Rc::downgrade(&node), index as u128)));
            }
            node.set_peers(
                addresses
                    .into_iter()
                    .filter(|(id, _)| *id != identity.node)
                    .collect(),
            );
            let target = Target::new();
            target.add_subsystem(node.subsystem());
            *portals.borrow_mut() = Some(Portals::new(&node, target.clone(), own));
            let _server = serve(target, own, Options::default()).unwrap();
            *slot.borrow_mut() = Some(node);
            std::future::pending::<()>().await;
        });
    }

    /// Lets go of a node whose host has lost its power, so that its disk can be opened by somebody else.
    pub(super) fn forget(&self, index: usize) {
        *self.nodes[index].borrow_mut() = None;
        *self.portals[index].borrow_mut() = None;
    }

    /// Lets go of the nodes where a reactor runs: what they still owe to portals is answered then.
    pub(super) fn end(self) {
        let host = self.simulation.add_host("end");
        let (nodes, portals) = (self.nodes, self.portals);
        self.simulation.start(host, move || async move {
            nodes.iter().for_each(|node| drop(node.borrow_mut().take()));
            portals
                .iter()
                .for_each(|portals| drop(portals.borrow_mut().take()));
        });
        self.simulation.run_for(Duration::from_millis(1));
    }

    pub(super) fn node(&self, index: usize) -> Rc<Node> {
        self.nodes[index].borrow().clone().expect("the node has started")
    }

    /// None while it starts, and after it was let go of.
    pub(super) fn node_if_started(&self, index: usize) -> Option<Rc<Node>> {
        self.nodes[index].borrow().clone()
    }

    pub(super) fn incarnation(&self, index: usize) -> u64 {
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
                node.create_copy(chunk, geometry(), (DISK + index as u128, true))
                    .await
                    .unwrap();
            });
        }
        self.simulation.run_for(Duration::from_secs(1));
        self.configure(1, 0, &[0, 1, 2]);
    }

    pub(super) fn configure(&self, epoch: u64, write_node: usize, members: &[usize]) {
        self.tell(members, epoch, write_node, members);
    }

    /// Tells some nodes, whether they are members or not.
    pub(super) fn tell(&self, nodes: &[usize], epoch: u64, write_node: usize, members: &[usize]) {
        self.tell_of(VOLUME, nodes, epoch, write_node, members);
    }

    /// The same about the only chunk of another volume.
    pub(super) fn tell_of(
        &self,
        volume: u32,
        nodes: &[usize],
        epoch: u64,
        write_node: usize,
        members: &[usize],
    ) {
        let configuration = Configuration {
            epoch,
            write_node: 1 + write_node as u128,
            members: members
                .iter()
                .map(|&n| (1 + n as u128, self.incarnation(n)))
                .collect(),
        };
        for &index in nodes {
            self.tell_configuration_of(volume, index, &configuration);
        }
    }

    /// Tells a node a configuration of the only chunk, whichever lives it names.
    pub(super) fn tell_configuration(&self, index: usize, configuration: &Configuration) {
        self.tell_configuration_of(VOLUME, index, configuration);
    }

    fn tell_configuration_of(&self, volume: u32, index: usize, configuration: &Configuration) {
        let node = self.node(index);
        let configuration = configuration.clone();
        self.simulation.start(self.hosts[index], move || async move {
            let chunk = target::node::from_chunk(Chunk { volume, index: 0 });
            node.configure(chunk, target::node::to_config(&configuration));
        });
    }
}

/// A copy moves again and again, at any time: whatever befalls the node befalls it in all states of a move.
async fn to_and_fro(node: Weak<Node>, index: u128) {
    let mut random = Random::from_seed(node.upgrade().map_or(0, |node| node.identity().incarnation.0));
    let chunk = target::node::from_chunk(Chunk {
        volume: VOLUME,
        index: 0,
    });
    for disk in [SECOND_DISK, DISK].into_iter().cycle() {
        time::sleep(Duration::from_millis(random.below(500))).await;
        let Some(node) = node.upgrade() else { return };
        // It need not be here yet, nor can disks that fail be moved from or to.
        if node.move_copy(chunk, disk + index).await.is_ok() {
            MOVED.with(|moved| moved.set(moved.get() + 1));
        }
    }
}

thread_local! {
    /// Copies that have moved in the calling test.
    pub(super) static MOVED: Cell<u64> = const { Cell::new(0) };
}

/// A native client of one node.
pub(super) struct Client {
    queue: Rc<Queue>,
    /// What it writes under.
    token: WriterToken,
    volume: u32,
    _controller: Rc<Controller>,
}

impl Client {
    pub(super) async fn connect(
        host: Host,
        node: usize,
        session: u64,
    ) -> Result<Self, fabrics::initiator::ConnectError> {
        Self::connect_as(77, host, node, session).await
    }

    /// A client of its own number.
    pub(super) async fn connect_as(
        number: u64,
        host: Host,
        node: usize,
        session: u64,
    ) -> Result<Self, fabrics::initiator::ConnectError> {
        let name: Nqn = format!("{}one", names::CLIENT_PREFIX).parse().unwrap();
        let subsystem: Nqn = names::of_node(NodeId(1 + node as u128)).parse().unwrap();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id[8..].copy_from_slice(&session.to_le_bytes());
        let address = SocketAddr::new(host.address(), PORT);
        let controller = Controller::connect(ConnectOptions::new(address, subsystem, name, id)).await?;
        let queue = controller.open_queue().await?;
        Ok(Self {
            queue,
            token: WriterToken(0),
            volume: VOLUME,
            _controller: controller,
        })
    }

    /// The same client, of another volume.
    pub(super) fn of(self, volume: u32) -> Self {
        Self { volume, ..self }
    }

    /// A writer under a token.
    pub(super) async fn writer(host: Host, node: usize, token: u64) -> Self {
        let connected = Self::connect_as(500 + token, host, node, 1).await.unwrap();
        Self {
            token: WriterToken(token),
            ..connected
        }
    }

    pub(super) async fn fence_until_done(&self, epoch: u64) {
        let deadline = time::now() + Duration::from_secs(20);
        loop {
            let (status, _) = self.run(NativeOperation::Fence, epoch, 0, 0, Data::None).await;
            if status == Status::Done {
                return;
            }
            assert!(time::now() < deadline, "still {status:?}");
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes and fences until the chunk serves, and is refused for its token then.
    pub(super) async fn is_fenced(&self, epoch: u64, newer: u64) {
        let deadline = time::now() + Duration::from_secs(20);
        let fenced = Status::FencedWriter(WriterToken(newer));
        loop {
            let written = self.write(epoch, 900, 1).await;
            let (status, _) = self.run(NativeOperation::Fence, epoch, 0, 0, Data::None).await;
            assert!(
                written != Status::Done && status != Status::Done,
                "{written:?} {status:?}"
            );
            if (written, status) == (fenced, fenced) {
                return;
            }
            assert!(time::now() < deadline, "still {written:?} and {status:?}");
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn run(
        &self,
        operation: NativeOperation,
        epoch: u64,
        lba: u64,
        blocks: u32,
        data: Data,
    ) -> (Status, Data) {
        let (completion, data) = self.ask(operation, epoch, lba, blocks, data).await;
        let status = match completion {
            Some(completion) if completion.status().is_success() => Status::Done,
            Some(completion) => {
                let code = completion.status();
                // The volume is not here, or not yet.
                if code == NvmeStatus::INVALID_NAMESPACE_OR_FORMAT {
                    return (Status::NotReady, data);
                }
                assert_eq!(code.type_code(), 1, "{code}");
                native_status_from_code(code.code(), completion.result_u64()).expect("a native status")
            }
            None => Status::Unknown,
        };
        (status, data)
    }

    /// The same, with the answer as it came.
    pub(super) async fn ask(
        &self,
        operation: NativeOperation,
        epoch: u64,
        lba: u64,
        blocks: u32,
        data: Data,
    ) -> (Option<Completion>, Data) {
        let native = NativeCommand {
            operation,
            volume: VolumeNumber(self.volume),
            fields: NativeFields {
                epoch: Epoch(epoch),
                writer_token: self.token,
                first_lba: Lba(lba),
            },
            blocks,
            trace: TraceId(1),
            portal_token: 0,
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
        (result.completion, result.data)
    }

    pub(super) async fn write(&self, epoch: u64, lba: u64, seed: u64) -> Status {
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

    pub(super) async fn write_until_done(&self, epoch: u64, lba: u64, seed: u64) {
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

    pub(super) async fn read_until_done(&self, epoch: u64, lba: u64) -> Vec<u8> {
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
