//! One node's chunk copies and its part in replication.
//!
//! Everything happens on one reactor. Events from sockets, disks and the agent go into an inbox; `pump` feeds them to
//! the core one after the other and carries out what the core puts out, in order. So the core is never entered
//! twice, however a device completes.
//!
//! - `agent`: who supervises it.
//! - `board`: what lets clients of this machine read the disks themselves.
//! - `clock`: gives the core its time.
//! - `copies`: chunk copies as blobs, with their durable records.
//! - `end`: what is acknowledged outlives a node that ends in good order.
//! - `passes`: who may connect, and as whom this node connects.
//! - `health`: how the disks are, and how they are reset; `samples`: reads that ask for nothing but that.
//! - `peers`: connections to the other nodes, and the commands they send us.
//! - `keep`: copies of snapshots follow those of their chunks.
//! - `mend`: blocks of snapshots that rot.
//! - `moving`: copies go from one of its disks to another.
//! - `gently`: what a copy is sent that comes back, while others ask something.
//! - `native`: requests of native clients; `reads`: those reads that the core lets pass.
//! - `room`: copies whose disks are full, until there is room again.
//! - `scrub`: comparing all copies with their checksums in the background.
//! - `sums`: checksums of the copies' blocks.
//! - `sync_writes`: volumes of which no write is acknowledged before it is durable.

mod agent;
mod agree;
mod board;
mod clock;
mod copies;
mod disk_faults;
mod doubt;
mod end;
mod gently;
mod health;
mod inventory;
mod keep;
mod mend;
mod moving;
mod native;
mod notes;
mod passes;
mod peers;
mod persist;
mod reads;
mod refusals;
mod room;
mod samples;
mod scrub;
mod snapshots;
mod sums;
mod sync_writes;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use agentlink::FromTarget;
use bdev::{Completion, Data, IoError, Operation, Request, Sink, Token, TraceId};
use fabrics::target::{HostIdentity, OpenCommands, Subsystem};
use foundation::{BlockCount, Epoch, Lba};
use protocols::nvme::Nqn;
use reactor::sync::{Notify, Sender};
use reactor::{Buffer, spawn, time};
use volume::{
    BlockRange, ChunkConfig, ChunkId, ChunkOutput, ClusterId, DataToken, Geometry, Incarnation, IoToken,
    Message, NodeCore, NodeId, Output, PersistToken, ReadPurpose, RequestId, ResyncProgress, Settings,
    Verdict, VolumeNumber, WriteKind,
};

pub use agent::{from_chunk, to_config};
pub use copies::{CopyError, DiskConfig, DiskError, Trust};
pub use health::{DISKS, DiskCare, DiskMeasures, LeftOut};
pub use inventory::{FoundCopy, FoundSnapshot, Inventory, inventory};
pub use sums::{CHECKSUMS, ChecksumMeasures};

use agent::{from_config, to_chunk};
use board::{Board, own_board};
use copies::{Copies, Copy};
use gently::Asked;
use moving::Moves;
use native::Natives;
use passes::Passes;
use peers::Peers;
pub(crate) use peers::command_of;
use room::Room;
use sync_writes::SyncWrites;

pub use volume::names;

/// Who this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// This life of its target.
    pub incarnation: Incarnation,
}

enum Event {
    Message {
        from: NodeId,
        message: Message,
        data: Option<Buffer>,
    },
    Request {
        chunk: ChunkId,
        request: volume::Request,
        data: Option<Buffer>,
    },
    Local {
        chunk: ChunkId,
        io: IoToken,
        succeeded: bool,
        read: Option<Buffer>,
    },
    /// What was read to be compared is what was expected, or is not.
    Compared {
        chunk: ChunkId,
        io: IoToken,
        are_alike: bool,
    },
    /// What was read does not fit the checksums of these blocks.
    Damaged {
        chunk: ChunkId,
        io: IoToken,
        purpose: Option<ReadPurpose>,
        blocks: Vec<u32>,
    },
    Persisted {
        chunk: ChunkId,
        token: PersistToken,
    },
    PersistFailed {
        chunk: ChunkId,
        token: Option<PersistToken>,
    },
    /// The disk has no room for what was asked of it.
    Full {
        chunk: ChunkId,
        io: IoToken,
    },
    /// It has none for a change of the record, which is made again.
    RecordFull {
        chunk: ChunkId,
    },
    /// Little room is left on the disk of a copy, or there is more again.
    Short {
        chunk: ChunkId,
        is_short: bool,
    },
    Room {
        chunk: ChunkId,
    },
    Cancel {
        chunk: ChunkId,
        request: RequestId,
    },
    Configured {
        chunk: ChunkId,
        config: ChunkConfig,
    },
    Ended {
        node: NodeId,
        incarnation: Incarnation,
    },
    Timeout,
}

/// A device request of the core's that has not completed.
struct LocalIo {
    chunk: ChunkId,
    copy: Rc<Copy>,
    io: IoToken,
    purpose: Option<ReadPurpose>,
    range: BlockRange,
    /// The blocks that a write is to mend: they were known not to fit their checksums.
    mends: Vec<u32>,
    /// A write that the disk is to have made durable before it counts as ended, lest a later flush find much to do.
    settles: bool,
    /// Of a write or a flush: that it is under way.
    _writing: Option<Rc<()>>,
}

/// See the module.
pub struct Node {
    identity: Identity,
    own: std::rc::Weak<Node>,
    core: RefCell<NodeCore>,
    inbox: RefCell<VecDeque<Event>>,
    pumping: Cell<bool>,
    poke: Notify,
    data: RefCell<BTreeMap<DataToken, Buffer>>,
    next_token: Cell<u64>,
    local: RefCell<slab::Slab<LocalIo>>,
    copies: Copies,
    room: Room,
    /// None in a simulation, and where the system does not let us.
    board: Option<Board>,
    peers: Peers,
    passes: Arc<Passes>,
    natives: Natives,
    agent: RefCell<Option<Sender<FromTarget>>>,
    /// How many kinds of frames the agent has said it knows; 0 before.
    agent_kinds: Cell<u32>,
    sync_writes: SyncWrites,
    /// When others asked something last.
    asked: Asked,
    comparisons: agree::Comparisons,
    moves: Moves,
    /// It answers nobody any more.
    is_ending: Cell<bool>,
}

impl Node {
    /// A node with the copies found on `disks`. Its target should listen already, since peers may answer at once.
    pub async fn start(
        identity: Identity,
        disks: &[DiskConfig],
        settings: Settings,
    ) -> Result<Rc<Self>, DiskError> {
        Self::start_with_care(identity, disks, settings, None).await
    }

    /// The same, with disks that are reset when their requests stand, and left out when they do not answer at first.
    pub async fn start_with_care(
        identity: Identity,
        disks: &[DiskConfig],
        settings: Settings,
        care: Option<&DiskCare>,
    ) -> Result<Rc<Self>, DiskError> {
        let copies = Copies::open(identity.cluster, disks, care).await?;
        let mut core = NodeCore::new(time::now(), identity.node, identity.incarnation, settings);
        for record in copies.records() {
            let has_sums = copies.sums(record.chunk).is_some();
            core.add_copy(time::now(), record, has_sums);
        }
        let node = Rc::new_cyclic(|own| Self {
            identity,
            own: own.clone(),
            core: RefCell::new(core),
            inbox: RefCell::default(),
            pumping: Cell::new(false),
            poke: Notify::new(),
            data: RefCell::default(),
            next_token: Cell::new(1),
            local: RefCell::default(),
            copies,
            room: Room::default(),
            board: own_board(),
            peers: Peers::new(identity),
            passes: Arc::default(),
            natives: Natives::default(),
            agent: RefCell::default(),
            agent_kinds: Cell::new(0),
            sync_writes: SyncWrites::default(),
            asked: Asked::default(),
            comparisons: agree::Comparisons::default(),
            moves: Moves::default(),
            is_ending: Cell::new(false),
        });
        node.tell_board_of_moves();
        drop(spawn(peers::expire(Rc::downgrade(&node))));
        drop(spawn(clock::run(Rc::downgrade(&node), settings.settle_delay)));
        for disk in 0..node.disk_count() {
            drop(spawn(persist::run(Rc::downgrade(&node), disk)));
            node.look_at_disk(disk);
        }
        Ok(node)
    }

    /// Who this is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The subsystem at which peers and native clients reach this node. The serial number is the incarnation, by
    /// which the other side knows which life it is talking to.
    pub fn subsystem(self: &Rc<Self>) -> Arc<Subsystem> {
        thread_local! {
            static NODES: RefCell<BTreeMap<NodeId, std::rc::Weak<Node>>> = const { RefCell::new(BTreeMap::new()) };
        }
        let id = self.identity.node;
        NODES.with(|nodes| nodes.borrow_mut().insert(id, Rc::downgrade(self)));
        // The factory is shared by all cores, and finds the node on the one where it lives.
        let open: OpenCommands = Arc::new(move |host: &HostIdentity| {
            let node = NODES.with(|nodes| nodes.borrow().get(&id).and_then(std::rc::Weak::upgrade))?;
            node.handler_for(host)
        });
        let nqn: Nqn = names::of_node(id).parse().expect("node names are well-formed");
        let subsystem = Subsystem::with_commands(
            nqn,
            &format!("{:016x}", self.identity.incarnation.0),
            "Redhare node",
            open,
        );
        let passes = self.passes.clone();
        subsystem.set_admission(Arc::new(move |host| passes.admit(host)));
        subsystem
    }

    pub(crate) fn own(&self) -> Rc<Self> {
        self.own.upgrade().expect("a node is alive while it works")
    }

    /// The first thing an agent hears.
    pub(crate) fn hello(&self, address: SocketAddr) -> FromTarget {
        let copies = self
            .copies
            .records()
            .into_iter()
            .map(|record| (to_chunk(record.chunk), record.sealed.0));
        FromTarget::Hello {
            cluster: self.identity.cluster.0,
            node: self.identity.node.0,
            incarnation: self.identity.incarnation.0,
            address: address.to_string(),
            disks: self.copies.disks(),
            copies: copies.collect(),
        }
    }

    /// The disks as they stand.
    pub fn disks(&self) -> Vec<agentlink::Disk> {
        self.copies.disks()
    }

    /// How far the copies are that come back under write nodes here.
    pub fn resyncs(&self) -> Vec<agentlink::Resync> {
        let core = self.core.borrow();
        let describe = |(chunk, progress): (ChunkId, ResyncProgress)| agentlink::Resync {
            chunk: to_chunk(chunk),
            node: progress.node.0,
            left_bytes: progress.left_bytes,
            total_bytes: progress.total_bytes,
            elapsed_ms: u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
        };
        core.resyncs(time::now()).map(describe).collect()
    }

    /// Where the other nodes are.
    pub fn set_peers(&self, peers: Vec<(NodeId, SocketAddr)>) {
        self.peers.set_addresses(peers);
    }

    /// Where another node is; none if that is not known.
    pub(crate) fn peer_address(&self, node: NodeId) -> Option<SocketAddr> {
        self.peers.address(node)
    }

    /// Makes a copy of a chunk, unless it is here; one that keeps checksums of its blocks if it shall (`docs/decisions/0069`).
    pub async fn create_copy(
        &self,
        chunk: ChunkId,
        geometry: Geometry,
        (disk, has_sums): (u128, bool),
    ) -> Result<(), CopyError> {
        if let Some(record) = self
            .copies
            .create(self.identity.cluster, chunk, geometry, (disk, has_sums))
            .await?
        {
            self.core.borrow_mut().add_copy(time::now(), record, has_sums);
            self.pump();
            self.tell_of_room(chunk);
            self.look_at_room(chunk);
            // Its disk may hang, and the new copy serves already.
            let own = self.own.clone();
            drop(spawn(async move {
                if let Some(node) = own.upgrade() {
                    node.copies.delete_damaged(chunk).await;
                }
            }));
        }
        Ok(())
    }

    /// Deletes every copy of a volume's chunks. What clients have asked of them and has not ended is refused.
    pub async fn delete_volume(&self, volume: VolumeNumber) {
        self.moves.leave(|chunk| chunk.volume == volume).await;
        self.core.borrow_mut().remove_volume(time::now(), volume);
        self.pump();
        self.peers.forget_volume(volume);
        self.copies.delete_volume(volume).await;
    }

    /// Deletes the copy of a chunk for which the configuration of `epoch` has no place here. True when it is here no more, durably;
    /// false when it could not be deleted and is to be asked for again, and, with nothing done, when the copy knows of that
    /// configuration or a later one.
    pub async fn delete_copy(&self, chunk: ChunkId, epoch: Epoch) -> bool {
        self.moves.leave(|moving| moving == chunk).await;
        let is_later = self
            .copies
            .sealed_in_doubt(chunk)
            .is_some_and(|sealed| sealed >= epoch);
        if is_later || !self.core.borrow_mut().remove_copy(time::now(), chunk, epoch) {
            tracing::warn!(
                ?chunk,
                epoch = epoch.0,
                "a copy is not deleted: it knows a later configuration"
            );
            return false;
        }
        self.pump();
        tracing::info!(
            ?chunk,
            epoch = epoch.0,
            "a copy that has no place here any more is deleted"
        );
        let is_deleted = self.copies.delete_copy(chunk).await;
        self.room.forget(chunk);
        is_deleted
    }

    /// A committed configuration.
    pub fn configure(&self, chunk: ChunkId, config: ChunkConfig) {
        self.push(Event::Configured { chunk, config });
    }

    /// A life of a node has ended for certain.
    pub(crate) fn ended(&self, node: NodeId, incarnation: Incarnation) {
        self.push(Event::Ended { node, incarnation });
    }

    fn push(&self, event: Event) {
        self.inbox.borrow_mut().push_back(event);
        self.pump();
    }

    /// A request has ended; or it is to be made again, which only one that is not done is, and only while the core is pumped.
    fn completed(&self, request: RequestId, status: volume::Status, read: Option<Buffer>) {
        let has_sums = |chunk| self.copies.sums(chunk).is_some();
        if let Some((chunk, request)) = self.natives.complete(request, status, read, has_sums) {
            let data = None;
            self.inbox
                .borrow_mut()
                .push_back(Event::Request { chunk, request, data });
        }
    }

    fn keep(&self, data: Option<Buffer>) -> Option<DataToken> {
        let data = data?;
        let token = DataToken(self.next_token.get());
        self.next_token.set(token.0 + 1);
        self.data.borrow_mut().insert(token, data);
        Some(token)
    }

    fn pump(&self) {
        if self.pumping.replace(true) {
            return;
        }
        loop {
            let event = self.inbox.borrow_mut().pop_front();
            if let Some(event) = event {
                self.feed(event);
            }
            self.show_stirred();
            let output = self.core.borrow_mut().poll_output();
            match output {
                Some(output) => self.carry_out(output),
                None if self.inbox.borrow().is_empty() => break,
                None => {}
            }
        }
        self.pumping.set(false);
        self.poke.notify();
    }

    fn feed(&self, event: Event) {
        let now = time::now();
        match event {
            Event::Message { from, message, data } => {
                if let Message::ReplicaWrite(write) = &message
                    && write.session.is_some()
                {
                    self.asked.note();
                }
                let data = self.keep(data);
                self.core.borrow_mut().handle_message(now, from, message, data);
            }
            Event::Request {
                chunk,
                mut request,
                data,
            } => {
                self.asked.note();
                if let volume::Operation::Write { data: token, .. } = &mut request.operation {
                    *token = self.keep(data);
                }
                self.core.borrow_mut().handle_request(now, chunk, request);
            }
            Event::Local {
                chunk,
                io,
                succeeded,
                read,
            } => {
                let read = self.keep(read);
                self.core
                    .borrow_mut()
                    .handle_local(now, chunk, io, succeeded, read);
            }
            Event::Compared { chunk, io, are_alike } => {
                self.core.borrow_mut().handle_compared(now, chunk, io, are_alike);
            }
            Event::Damaged {
                chunk,
                io,
                purpose,
                blocks,
            } => {
                let is_damaged = self.core.borrow_mut().handle_damaged(now, chunk, io, &blocks);
                if let Some(sums) = self.copies.sums(chunk).filter(|_| is_damaged) {
                    let new = sums.found_damaged(&blocks);
                    if let Some(ReadPurpose::Request(request)) = purpose {
                        self.natives.damaged(request, new);
                    }
                }
            }
            Event::Persisted { chunk, token } => {
                self.core.borrow_mut().handle_persisted(now, chunk, token);
            }
            Event::PersistFailed { chunk, token } => {
                self.core.borrow_mut().handle_persist_failed(now, chunk, token);
            }
            Event::Full { chunk, io } => self.core.borrow_mut().handle_full(now, chunk, io),
            Event::RecordFull { chunk } => self.core.borrow_mut().handle_record_full(now, chunk),
            Event::Short { chunk, is_short } => self.core.borrow_mut().handle_short(now, chunk, is_short),
            Event::Room { chunk } => self.core.borrow_mut().handle_room(now, chunk),
            Event::Cancel { chunk, request } => {
                self.core.borrow_mut().handle_cancel(now, chunk, request);
            }
            Event::Configured { chunk, config } => {
                self.core.borrow_mut().handle_configuration(now, chunk, &config);
            }
            Event::Ended { node, incarnation } => {
                self.core
                    .borrow_mut()
                    .handle_incarnation_ended(now, node, incarnation);
            }
            Event::Timeout => self.core.borrow_mut().handle_timeout(now),
        }
    }

    fn carry_out(&self, output: ChunkOutput) {
        let Some(ChunkOutput { chunk, output }) = self.moves.keep_back(output) else {
            return;
        };
        let place = || chunk.expect("outputs of this kind belong to a chunk");
        match output {
            Output::Persist { token, delta } => self.copies.note(place(), token, &delta),
            Output::LocalWrite {
                io,
                range,
                kind,
                data,
                force_unit_access,
                is_resync,
            } => {
                if let Some(board) = &self.board {
                    // The core's event has said so already; nothing may ever be written to what may be read.
                    board.show(place(), None);
                }
                let operation = match kind {
                    WriteKind::Data => Operation::Write {
                        fua: force_unit_access,
                    },
                    WriteKind::Zeroes => Operation::WriteZeroes {
                        deallocate: false,
                        fua: force_unit_access,
                    },
                    WriteKind::Deallocate => Operation::WriteZeroes {
                        deallocate: true,
                        fua: force_unit_access,
                    },
                    WriteKind::Lost => return self.lose(place(), io, range),
                    WriteKind::Fence => unreachable!("a fence asks nothing of the disk"),
                };
                let Some(mut local) = self.local_io(place(), io, None, range) else {
                    return;
                };
                local.settles = is_resync && self.asked.is_recent();
                let bytes = data.and_then(|token| self.data.borrow().get(&token).cloned());
                if let Some(sums) = &local.copy.sums {
                    local.mends = sums.damaged_in(range);
                    sums.note(range, bytes.as_deref());
                }
                self.submit(
                    local,
                    operation,
                    Some(range),
                    bytes.map_or(Data::None, Data::From),
                );
            }
            Output::LocalRead { io, range, purpose } => {
                if let Some(local) = self.local_io(place(), io, Some(purpose), range) {
                    self.read(local);
                }
            }
            Output::LocalFlush { io } => self.flush(place(), io),
            Output::LocalSnapshot {
                io,
                snapshot,
                sequence,
            } => self.snapshot(place(), io, (snapshot, sequence)),
            // Whoever waits asks another node, or this one's next life.
            Output::Send { .. } | Output::Complete { .. } if self.is_ending.get() => {}
            Output::Send { to, message, data } => {
                let data = data.and_then(|token| self.data.borrow().get(&token).cloned());
                self.peers.send(self, to, message, data);
            }
            Output::Complete { request, status } => self.completed(request, status, None),
            Output::Release { data } => {
                self.data.borrow_mut().remove(&data);
            }
            Output::Propose {
                expected,
                config,
                reason,
            } => {
                tracing::warn!(chunk = ?chunk, epoch = expected.0, members = ?config.members, %reason, "another configuration is asked for");
                self.tell(FromTarget::Propose {
                    chunk: to_chunk(place()),
                    expected: expected.0,
                    configuration: from_config(&config),
                });
            }
            Output::Lost { range } => self.blocks_are_lost(place(), range),
            Output::Failed => {
                if let Some(chunk) = chunk {
                    self.copies.stop(chunk);
                }
                tracing::error!(chunk = ?chunk, "the disk of a chunk copy failed: the copy takes no further part");
            }
        }
    }

    /// What is to be asked of the disk of a copy; none if there is none here any more, which the core hears.
    fn local_io(
        &self,
        chunk: ChunkId,
        io: IoToken,
        purpose: Option<ReadPurpose>,
        range: BlockRange,
    ) -> Option<LocalIo> {
        let copy = self.copies.get(chunk);
        if copy.is_none() {
            self.push(Event::Local {
                chunk,
                io,
                succeeded: false,
                read: None,
            });
        }
        let copy = copy?;
        let writing = purpose.is_none().then(|| copy.writing.clone());
        Some(LocalIo {
            chunk,
            copy,
            io,
            purpose,
            range,
            mends: Vec::new(),
            settles: false,
            _writing: writing,
        })
    }

    fn submit(&self, local: LocalIo, operation: Operation, range: Option<BlockRange>, data: Data) {
        let copy = local.copy.clone();
        let tag = self.local.borrow_mut().insert(local) as u64;
        self.submit_to(&copy, tag, operation, range, data);
    }

    fn submit_to(&self, copy: &Copy, tag: u64, operation: Operation, range: Option<BlockRange>, data: Data) {
        let (lba, blocks) = match range {
            Some(range) => (
                Lba(u64::from(range.start) + copies::HEAD_BLOCKS),
                BlockCount(range.count.into()),
            ),
            None => (Lba(0), BlockCount(0)),
        };
        let token = Token::new(self.own(), tag);
        let (metadata, fence, trace) = (None, None, TraceId::default());
        copy.channel.submit(Request {
            operation,
            lba,
            blocks,
            data,
            metadata,
            fence,
            trace,
            token,
        });
    }

    pub(crate) fn persist_failed(&self, chunk: ChunkId, token: Option<PersistToken>) {
        self.push(Event::PersistFailed { chunk, token });
    }

    pub(crate) fn persisted(&self, chunk: ChunkId, token: PersistToken) {
        self.push(Event::Persisted { chunk, token });
    }
}

impl Sink for Node {
    /// A disk has answered, perhaps inside `submit`.
    fn complete(&self, tag: u64, completion: Completion) {
        let local = match tag & native::NO_NAME {
            0 => Some(self.local.borrow_mut().remove(tag as usize)),
            _ => self.natives.take_from_disk(RequestId(tag & !native::NO_NAME)),
        };
        if let Some(local) = local {
            self.has_answered(local, completion);
        }
    }
}

impl Node {
    fn has_answered(&self, local: LocalIo, completion: Completion) {
        let chunk = local.chunk;
        let succeeded = completion.status.is_ok();
        if local.purpose.is_none() {
            self.moves.note_write(chunk, local.range);
        }
        if let Err(error) = completion.status {
            if error != IoError::NoSpace {
                tracing::warn!(?chunk, %error, "a disk request of a chunk copy failed");
            }
            if local.purpose.is_none()
                && let Some(sums) = &local.copy.sums
            {
                // What has not mended a block, for want of room, must not make its wrong bytes pass for right: they do not fit the new sum, either.
                match error == IoError::NoSpace && !local.mends.is_empty() {
                    true => sums.has_not_mended(&local.mends),
                    false => sums.forget(local.range),
                }
            }
            if error == IoError::NoSpace && local.purpose.is_none() {
                return self.finds_no_room(chunk, local.io);
            }
        }
        let Data::Into(buffer) = completion.data else {
            if succeeded && local.settles {
                return self.settle(local);
            }
            self.look_at_room(chunk);
            return self.push(Event::Local {
                chunk,
                io: local.io,
                succeeded,
                read: None,
            });
        };
        let bytes = buffer.freeze();
        let Some(sums) = local.copy.sums.as_ref().filter(|_| succeeded) else {
            return self.has_read(local, succeeded, bytes);
        };
        match sums.check(local.range, &bytes) {
            Verdict::Right => self.has_read(local, true, bytes),
            Verdict::Wrong(blocks) => self.is_damaged(&local, blocks),
            Verdict::Unread(_) => {
                // One that has moved meanwhile has the same.
                let used = self.copies.sums(chunk);
                if !used.is_some_and(|used| Rc::ptr_eq(&used, sums)) {
                    // It is gone meanwhile, and nobody waits for what it held.
                    return self.has_read(local, false, bytes);
                }
                let (node, sums) = (self.own(), sums.clone());
                drop(spawn(async move {
                    let wrong = sums.check_reading(local.range, &bytes).await;
                    match wrong.is_empty() {
                        true => node.has_read(local, true, bytes),
                        false => node.is_damaged(&local, wrong),
                    }
                }));
            }
        }
    }

    /// The core decides what that means: a write may have begun meanwhile.
    fn is_damaged(&self, local: &LocalIo, blocks: Vec<u32>) {
        let (chunk, io, purpose) = (local.chunk, local.io, local.purpose);
        self.push(Event::Damaged {
            chunk,
            io,
            purpose,
            blocks,
        });
    }
}
