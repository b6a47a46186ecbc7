//! Nodes in memory: copies that are always equal, which check epoch, session and lease as real ones
//! do, and fail as planted. A write whose answer is lost may arrive late, as a duplicate would.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bdev::{Data, IoError};
use foundation::{BlockCount, Epoch, Random};
use reactor::{spawn, time};

use crate::client::{
    AnswerSink, ClientOptions, MapSource, PeerStatus, Peers, Place, Reply, Sessions, VolumeChannel,
    VolumeDevice, VolumeMap,
};
use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::{ChunkIndex, HostId, Incarnation, NodeId, Session, VolumeNumber, WriterToken};
use crate::map::ChunkMap;
use crate::message::codec::{NativeCommand, NativeOperation};
use crate::output::Status;

pub(super) const BLOCK: usize = 4096;
pub(super) const NODES: u128 = 4;

pub(super) fn geometry() -> Geometry {
    Geometry {
        block_bytes: BLOCK as u32,
        metadata_bytes: 0,
        stripe_unit_blocks: 4,
        chunk_blocks: 32,
        region_blocks: 8,
        copies: 3,
        minimum: 2,
        group_chunks: vec![3, 1],
    }
}

/// The configuration of a chunk in an epoch: three of the nodes, going round.
pub(super) fn config(chunk: u32, epoch: u64) -> ChunkConfig {
    let node = |n: u64| NodeId(1 + u128::from((u64::from(chunk) + epoch + n) % NODES as u64));
    let mut members: Vec<_> = (0..3)
        .map(|n| Membership {
            node: node(n),
            incarnation: Incarnation(1),
        })
        .collect();
    members.sort_by_key(|member| member.node);
    ChunkConfig {
        epoch: Epoch(epoch),
        write_node: node(0),
        members,
    }
}

/// On which of its node's two disks a chunk's copies lie.
pub(super) fn disk(chunk: u32) -> u128 {
    10 + u128::from(chunk % 2)
}

/// What is committed, and what clients have been told of it.
pub(super) struct Masters {
    committed: Mutex<(Geometry, Vec<ChunkConfig>)>,
    told: Mutex<Arc<VolumeMap>>,
    version: AtomicU64,
    pub(super) refreshes: AtomicU64,
    pub(super) refresh_us: AtomicU64,
    /// It is known that the volume is larger than what is told.
    pub(super) is_behind: AtomicBool,
}

impl Masters {
    fn new() -> Arc<Self> {
        let geometry = geometry();
        let configs: Vec<_> = (0..geometry.chunks() as u32)
            .map(|chunk| config(chunk, 1))
            .collect();
        let map = map_of(&geometry, &configs);
        Arc::new(Self {
            committed: Mutex::new((geometry, configs)),
            told: Mutex::new(Arc::new(map)),
            version: AtomicU64::new(1),
            refreshes: AtomicU64::new(0),
            refresh_us: AtomicU64::new(100),
            is_behind: AtomicBool::new(false),
        })
    }

    pub(super) fn config(&self, chunk: u32) -> ChunkConfig {
        self.committed.lock().unwrap().1[chunk as usize].clone()
    }

    /// Commits the next epoch of a chunk; clients learn of it at their next refresh.
    pub(super) fn reconfigure(&self, chunk: u32) {
        let configs = &mut self.committed.lock().unwrap().1;
        let epoch = configs[chunk as usize].epoch.0 + 1;
        configs[chunk as usize] = config(chunk, epoch);
    }

    /// The same, and it has the same members but for one.
    pub(super) fn leave_out(&self, chunk: u32, node: NodeId) {
        let config = &mut self.committed.lock().unwrap().1[chunk as usize];
        config.epoch.0 += 1;
        config.members.retain(|member| member.node != node);
        config.write_node = config.members[0].node;
    }

    pub(super) fn append_group(&self, chunks: u32) {
        let (geometry, configs) = &mut *self.committed.lock().unwrap();
        geometry.append_group(chunks).unwrap();
        for _ in 0..chunks {
            configs.push(config(configs.len() as u32, 1));
        }
    }

    /// Tells what the volume was when it had so many groups, late.
    pub(super) fn tell_of_before(&self, groups: usize) {
        let (geometry, configs) = &*self.committed.lock().unwrap();
        let mut geometry = geometry.clone();
        geometry.group_chunks.truncate(groups);
        let configs = &configs[..geometry.chunks() as usize];
        *self.told.lock().unwrap() = Arc::new(map_of(&geometry, configs));
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn tell(&self) {
        let (geometry, configs) = &*self.committed.lock().unwrap();
        *self.told.lock().unwrap() = Arc::new(map_of(geometry, configs));
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn map_of(geometry: &Geometry, configs: &[ChunkConfig]) -> VolumeMap {
    let mut chunks = ChunkMap::new(configs.len());
    for (index, config) in configs.iter().enumerate() {
        let chunk = ChunkIndex(index as u32);
        chunks.update(chunk, config.clone()).unwrap();
        for member in &config.members {
            chunks.lies_on(chunk, member.node, disk(chunk.0));
        }
    }
    VolumeMap {
        geometry: geometry.clone(),
        chunks,
    }
}

/// The masters as a client sees them.
pub(super) struct Source(pub(super) Arc<Masters>);

impl MapSource for Source {
    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.0.told.lock().unwrap().clone()
    }

    fn is_behind(&self) -> bool {
        self.0.is_behind.load(Ordering::Acquire)
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let masters = self.0.clone();
        masters.refreshes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let delay = masters.refresh_us.load(Ordering::Relaxed);
            if delay > 0 {
                time::sleep(Duration::from_micros(delay)).await;
            }
            masters.tell();
        })
    }
}

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is lost before the command arrives.
    LostBefore,
    /// The connection is lost after it was done.
    LostAfter,
    /// The connection is lost; the command arrives this much later.
    LostLate(Duration),
    /// The reply is dropped and the buffer with it.
    Dropped,
    /// No connection can be made.
    Unreachable,
    /// The node answers this.
    Says(Status),
    /// The node answers this error.
    Fails(IoError),
    /// No answer ever comes.
    Silent,
}

/// Faults drawn at random: one in `one_in` commands is struck.
pub(super) struct Chaos {
    pub(super) random: Random,
    pub(super) one_in: u64,
}

/// See the module.
pub(super) struct Nodes {
    pub(super) masters: Arc<Masters>,
    blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    newest_session: RefCell<BTreeMap<u32, u64>>,
    pub(super) unflushed: RefCell<BTreeMap<u32, u64>>,
    pub(super) writer_token: Cell<u64>,
    pub(super) planted: RefCell<VecDeque<(Option<NodeId>, Fault)>>,
    pub(super) chaos: RefCell<Option<Chaos>>,
    pub(super) delay_us: RefCell<BTreeMap<NodeId, u64>>,
    /// A disk that takes so much longer.
    pub(super) slow_disk: Cell<Option<(NodeId, u128, u64)>>,
    pub(super) seen: RefCell<Vec<(NodeId, u64, NativeCommand)>>,
    held: RefCell<Vec<(Reply, Data)>>,
    /// Nodes that say nothing at all.
    pub(super) silent: RefCell<Vec<NodeId>>,
    pub(super) died_late: Cell<u64>,
    /// The claim in force of each chunk and host.
    claims: RefCell<BTreeMap<(u32, u64), u64>>,
    /// The newest token of each chunk under which a portal has written or claimed.
    tokens: RefCell<BTreeMap<u32, u64>>,
    /// A bug: nobody looks at the tokens of portals' commands.
    pub(super) tokens_ignored: Cell<bool>,
    /// A bug: nobody looks at claims.
    pub(super) claims_ignored: Cell<bool>,
    /// The nodes are of a release that does not know runs.
    pub(super) runs_unknown: Cell<bool>,
}

impl Nodes {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            masters: Masters::new(),
            blocks: RefCell::default(),
            newest_session: RefCell::default(),
            unflushed: RefCell::default(),
            writer_token: Cell::new(0),
            planted: RefCell::default(),
            chaos: RefCell::default(),
            delay_us: RefCell::default(),
            slow_disk: Cell::new(None),
            seen: RefCell::default(),
            held: RefCell::default(),
            silent: RefCell::default(),
            died_late: Cell::new(0),
            claims: RefCell::default(),
            tokens: RefCell::default(),
            tokens_ignored: Cell::new(false),
            claims_ignored: Cell::new(false),
            runs_unknown: Cell::new(false),
        })
    }

    pub(super) fn open(self: &Rc<Self>, options: ClientOptions) -> (VolumeDevice, VolumeChannel) {
        let source = Arc::new(Source(self.masters.clone()));
        let nowhere = Arc::new(|| -> Rc<dyn Peers> { unreachable!("the tests open with peers") });
        let sessions = Sessions::starting_at(1);
        let device = VolumeDevice::new(VolumeNumber(7), source, sessions, nowhere, options);
        let channel = device.open_with(Rc::new(Links(self.clone())));
        (device, channel)
    }

    /// How many commands of this operation have come.
    pub(super) fn asked(&self, operation: NativeOperation) -> usize {
        let seen = self.seen.borrow();
        seen.iter()
            .filter(|(_, _, command)| command.operation == operation)
            .count()
    }

    pub(super) fn plant(&self, node: Option<NodeId>, fault: Fault) {
        self.planted.borrow_mut().push_back((node, fault));
    }

    fn chunk_of(&self, command: &NativeCommand) -> u32 {
        self.place_of(command).chunk.0
    }

    fn place_of(&self, command: &NativeCommand) -> Place {
        let geometry = self.masters.committed.lock().unwrap().0.clone();
        // The blocks of a run follow each other in the chunk.
        let blocks = match command.operation {
            NativeOperation::DeallocateRun { .. } => BlockCount(1),
            _ => BlockCount(command.blocks.max(1).into()),
        };
        let mut pieces = geometry.pieces(command.fields.first_lba, blocks).unwrap();
        let piece = pieces.next().unwrap();
        assert_eq!(pieces.next(), None, "a command's blocks lie in one stripe unit");
        Place {
            chunk: piece.chunk,
            first_block: piece.range.start,
        }
    }

    /// Whether a claim is what the command says, or is made by it; none if the command is to be done.
    fn check_claim(&self, chunk: u32, of: Session, operation: NativeOperation) -> Option<Status> {
        let mut claims = self.claims.borrow_mut();
        let in_force = claims.entry((chunk, of.host.0)).or_default();
        let claims_anyhow = operation == NativeOperation::Claim && of.number == 0;
        if of.number != *in_force && !claims_anyhow && !self.claims_ignored.get() {
            return Some(Status::StaleSession);
        }
        if operation == NativeOperation::Claim {
            *in_force += 1;
            return Some(Status::Claimed(*in_force));
        }
        None
    }

    /// Does a command as its node would.
    fn serve(&self, node: NodeId, session: u64, command: &NativeCommand, data: &mut Data) -> Status {
        let portal = is_portals(command).then(|| command.from_portal());
        let (portal, command) = match &portal {
            Some((session, command)) => (Some(*session), command),
            None => (None, command),
        };
        let chunk = self.chunk_of(command);
        let config = self.masters.config(chunk);
        if command.fields.epoch != config.epoch {
            assert!(command.fields.epoch < config.epoch, "clients invent no epochs");
            return Status::StaleEpoch(config.epoch);
        }
        if command.fields.writer_token.0 < self.writer_token.get() {
            return Status::FencedWriter(WriterToken(self.writer_token.get()));
        }
        if portal.is_some() {
            let mut tokens = self.tokens.borrow_mut();
            let (newest, token) = (tokens.entry(chunk).or_default(), command.fields.writer_token.0);
            if token < *newest && !self.tokens_ignored.get() {
                return Status::FencedWriter(WriterToken(*newest));
            }
            if node == config.write_node && command.operation.changes() {
                *newest = token.max(*newest);
            }
        }
        if command.operation == NativeOperation::Read {
            assert!(config.members.iter().any(|member| member.node == node));
            self.fill(command, data);
            return Status::Done;
        }
        if node != config.write_node {
            return Status::NotWriteNode(config.epoch);
        }
        if command.operation == NativeOperation::Flush {
            self.unflushed.borrow_mut().remove(&chunk);
            return Status::Done;
        }
        if let Some(of) = portal {
            if let Some(status) = self.check_claim(chunk, of, command.operation) {
                return status;
            }
        } else {
            let mut newest = self.newest_session.borrow_mut();
            let newest = newest.entry(chunk).or_default();
            if session < *newest {
                return Status::StaleSession;
            }
            *newest = session;
        }
        if command.operation == NativeOperation::Fence {
            return Status::Done;
        }
        if matches!(command.operation, NativeOperation::CompareAndWrite { .. }) {
            if !self.exchange(command, data) {
                return Status::Differs;
            }
        } else {
            self.store(command, data);
        }
        let durable = matches!(
            command.operation,
            NativeOperation::Write { fua: true } | NativeOperation::WriteZeroes { fua: true }
        );
        if !durable {
            *self.unflushed.borrow_mut().entry(chunk).or_default() += 1;
        }
        Status::Done
    }

    fn fill(&self, command: &NativeCommand, data: &mut Data) {
        let Data::Into(buffer) = data else {
            panic!("a read brings a buffer")
        };
        assert_eq!(buffer.len(), command.blocks as usize * BLOCK);
        let blocks = self.blocks.borrow();
        for (index, target) in buffer.chunks_mut(BLOCK).enumerate() {
            match blocks.get(&(command.fields.first_lba.0 + index as u64)) {
                Some(stored) => target.copy_from_slice(stored),
                None => target.fill(0),
            }
        }
    }

    fn store(&self, command: &NativeCommand, data: &Data) {
        let mut blocks = self.blocks.borrow_mut();
        let first = command.fields.first_lba.0;
        match data {
            Data::From(buffer) => {
                assert_eq!(buffer.len(), command.blocks as usize * BLOCK);
                for (index, source) in buffer.chunks(BLOCK).enumerate() {
                    blocks.insert(first + index as u64, source.to_vec());
                }
            }
            _ if matches!(command.operation, NativeOperation::DeallocateRun { .. }) => {
                let geometry = self.masters.committed.lock().unwrap().0.clone();
                let place = self.place_of(command);
                for block in place.first_block..place.first_block + command.blocks {
                    let lba = geometry.lba_of(place.chunk, block);
                    blocks.remove(&lba.expect("a run lies in its chunk").0);
                }
            }
            _ => blocks.retain(|lba, _| !(first..first + u64::from(command.blocks)).contains(lba)),
        }
    }

    /// Writes the second half of the data if the first half is what the blocks hold; whether it is.
    fn exchange(&self, command: &NativeCommand, data: &Data) -> bool {
        let Data::From(both) = data else {
            panic!("it brings what it expects and what it writes")
        };
        assert_eq!(both.len(), 2 * command.blocks as usize * BLOCK);
        let (expected, new) = both.split_at(both.len() / 2);
        let mut blocks = self.blocks.borrow_mut();
        let lbas = command.fields.first_lba.0..;
        let stored = |lba: &u64| blocks.get(lba).cloned().unwrap_or_else(|| vec![0; BLOCK]);
        let is_it = lbas.clone().zip(expected.chunks(BLOCK));
        if is_it.clone().any(|(lba, block)| stored(&lba) != block) {
            return false;
        }
        for (lba, block) in lbas.zip(new.chunks(BLOCK)) {
            blocks.insert(lba, block.to_vec());
        }
        true
    }

    /// Whether the nodes answer that they do not know the command.
    fn is_unknown(&self, command: &NativeCommand) -> bool {
        self.runs_unknown.get() && matches!(command.operation, NativeOperation::DeallocateRun { .. })
    }

    fn strike(&self, node: NodeId, operation: NativeOperation) -> Option<Fault> {
        if self.silent.borrow().contains(&node) {
            return Some(Fault::Silent);
        }
        let mut planted = self.planted.borrow_mut();
        let found = planted
            .iter()
            .position(|(struck, _)| struck.is_none_or(|struck| struck == node));
        if let Some(index) = found {
            return planted.remove(index).map(|(_, fault)| fault);
        }
        let mut chaos = self.chaos.borrow_mut();
        let chaos = chaos.as_mut()?;
        if !chaos.random.chance(1, chaos.one_in) {
            return None;
        }
        let late = Duration::from_micros(chaos.random.between(1, 50_000));
        Some(match chaos.random.below(10) {
            0 => Fault::LostBefore,
            1 => Fault::LostAfter,
            2 | 3 => Fault::LostLate(late),
            4 => Fault::Unreachable,
            5 => Fault::Says(Status::NotReady),
            6 => Fault::Says(Status::Busy),
            7 => Fault::Says(Status::Cancelled),
            // A read whose device failed everywhere is an error in earnest.
            8 if operation != NativeOperation::Read => Fault::Says(Status::DeviceFailed),
            _ => Fault::Fails(IoError::Unavailable),
        })
    }

    async fn run(
        self: Rc<Self>,
        node: NodeId,
        session: u64,
        command: NativeCommand,
        data: Data,
        reply: Reply,
    ) {
        let mut delay = self.delay_us.borrow().get(&node).copied().unwrap_or(0);
        if let Some((slow, slow_disk, us)) = self.slow_disk.get()
            && (slow, slow_disk) == (node, disk(self.chunk_of(&command)))
        {
            delay += us;
        }
        let jitter = match &mut *self.chaos.borrow_mut() {
            Some(chaos) => chaos.random.below(3000),
            None => 0,
        };
        if delay + jitter > 0 {
            time::sleep(Duration::from_micros(delay + jitter)).await;
        }
        self.end(node, session, command, data, reply);
    }

    fn end(
        self: &Rc<Self>,
        node: NodeId,
        session: u64,
        command: NativeCommand,
        mut data: Data,
        reply: Reply,
    ) {
        let status = match self.strike(node, command.operation) {
            None if self.is_unknown(&command) => PeerStatus::Failed(IoError::Unaligned),
            None => PeerStatus::Answered(self.serve(node, session, &command, &mut data)),
            Some(Fault::LostBefore) => PeerStatus::Lost,
            Some(Fault::LostAfter | Fault::LostLate(_)) if self.is_unknown(&command) => PeerStatus::Lost,
            Some(Fault::LostAfter) => {
                self.serve(node, session, &command, &mut data);
                PeerStatus::Lost
            }
            Some(Fault::LostLate(after)) => {
                let late = match (command.operation, &data) {
                    (_, Data::From(buffer)) if command.operation.changes() => {
                        Some(Data::From(buffer.clone()))
                    }
                    (NativeOperation::Deallocate { .. } | NativeOperation::DeallocateRun { .. }, _) => {
                        Some(Data::None)
                    }
                    _ => None,
                };
                if let Some(mut late) = late {
                    let nodes = self.clone();
                    drop(spawn(async move {
                        time::sleep(after).await;
                        if nodes.serve(node, session, &command, &mut late) == Status::StaleSession {
                            nodes.died_late.set(nodes.died_late.get() + 1);
                        }
                    }));
                }
                PeerStatus::Lost
            }
            Some(Fault::Dropped) => return,
            Some(Fault::Unreachable) => PeerStatus::Unreachable,
            Some(Fault::Says(status)) => PeerStatus::Answered(status),
            Some(Fault::Fails(error)) => PeerStatus::Failed(error),
            Some(Fault::Silent) => return self.held.borrow_mut().push((reply, data)),
        };
        reply.answer(status, data);
    }
}

fn is_portals(command: &NativeCommand) -> bool {
    HostId(command.trace.0).is_through_portals()
}

/// A core's ways to the nodes.
struct Links(Rc<Nodes>);

impl Peers for Links {
    fn submit(
        &self,
        node: NodeId,
        session: u64,
        command: NativeCommand,
        place: Place,
        data: Data,
        reply: Reply,
    ) {
        assert_eq!(command.volume, VolumeNumber(7));
        assert_eq!(place, self.0.place_of(&command));
        let has_session = command.operation.changes() && !is_portals(&command);
        assert_eq!(session != 0, has_session);
        self.0.seen.borrow_mut().push((node, session, command));
        let at_once = self.0.chaos.borrow().is_none() && self.0.delay_us.borrow().is_empty();
        if at_once {
            return self.0.end(node, session, command, data, reply);
        }
        drop(spawn(self.0.clone().run(node, session, command, data, reply)));
    }

    fn take_back(&self, _: NodeId, sink: &Rc<dyn AnswerSink>, tag: u64) -> Option<Data> {
        let mut held = self.0.held.borrow_mut();
        let index = held.iter().position(|(reply, _)| reply.is_for(sink, tag))?;
        let (reply, data) = held.swap_remove(index);
        reply.withdraw();
        Some(data)
    }
}

/// Another core's ways to the same nodes.
pub(super) fn links(nodes: &Rc<Nodes>) -> Rc<dyn Peers> {
    Rc::new(Links(nodes.clone()))
}
