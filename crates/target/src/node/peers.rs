//! The other nodes: commands to them, and theirs to us.
//!
//! A message travels as an NVMe vendor command and its answer as the completion. The core knows only messages, and sends
//! again what is not answered; so a message for a node that cannot be reached is dropped.

mod key;
mod replies;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::Data;
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, Queue};
use fabrics::target::{Call, CommandHandler};
use foundation::Epoch;
use protocols::nvme::{Command, Nqn, Status};
use reactor::net::TcpOptions;
use reactor::{Buffer, BufferPool, spawn, time};
use volume::message::Refusal;
use volume::message::codec::{
    ANSWER_ROOM_BYTES, CommandFields, EncodedAnswer, NativeCommand, NativeOperation, REPLICA_TAIL_BYTES,
    decode_answer, decode_command, encode_answer, encode_command, native_status_from_code, opcode,
};
use volume::{ChunkId, Incarnation, Message, NodeId, VolumeNumber};

use super::native::{self, NativeHandler};
use super::passes::Proof;
use super::refusals::Refusals;
use super::{Event, Identity, Node, names};
use key::Key;
use replies::{Pending, Replies};

/// Room for what a sealed copy knows: 1,024 sessions and 50,000 marks.
const SEAL_ANSWER_ROOM_BYTES: usize = 256 << 10;
/// Pause between attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Commands in flight to one peer; beyond that messages are dropped and sent again later.
const QUEUE_ENTRIES: u16 = 512;
/// Of these, those that what is repeated while a disk over there takes its time may have: else one disk that hangs keeps this node's beacons
/// and writes from all others.
const REPEATED_MAX: usize = 256;
/// Places that are kept for what a peer answers without asking a disk.
const QUICK_PLACES: usize = 64;
/// How long a peer may take to answer what it is asked of its copies of snapshots.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(8);

#[derive(Default)]
struct Peer {
    address: Cell<Option<SocketAddr>>,
    link: RefCell<Option<Link>>,
    connecting: Cell<bool>,
    /// How often it has refused this node.
    refusals: Cell<Refusals>,
    /// Their commands that the core has not answered.
    pending: Replies,
    /// Answers to their Seals, until they are fetched.
    sealed: RefCell<BTreeMap<ChunkId, (Epoch, Vec<u8>)>>,
}

#[derive(Clone)]
struct Link {
    queue: Rc<Queue>,
    incarnation: Incarnation,
    /// Commands with the peer. The core asks for them again and again while a disk over there takes its time; each
    /// repetition would take a place in the queue until it is full, and then nothing else would pass.
    unanswered: Rc<RefCell<BTreeSet<Key>>>,
    /// How many commands are with the peer that are sent again whether they are or not.
    repeated: Rc<Cell<usize>>,
    _controller: Rc<Controller>,
}

impl Link {
    /// Takes a place in the queue for a command, if there is one for its like and it is not there already.
    fn take_place(&self, key: Option<Key>) -> bool {
        let outstanding = self.queue.outstanding();
        let (has_place, is_repeated) = (has_place(outstanding, self.repeated.get(), key), is_repeated(key));
        self.repeated
            .set(self.repeated.get() + usize::from(has_place && is_repeated));
        let once = key.filter(Key::is_sent_once);
        has_place && once.is_none_or(|key| self.unanswered.borrow_mut().insert(key))
    }

    /// The command has ended.
    fn give_place(&self, key: Option<Key>) {
        self.repeated
            .set(self.repeated.get() - usize::from(is_repeated(key)));
        if let Some(key) = key {
            self.unanswered.borrow_mut().remove(&key);
        }
    }
}

/// Whether what asks a disk over there is sent again without looking whether it is there.
fn is_repeated(key: Option<Key>) -> bool {
    key.is_some_and(|key| !key.is_sent_once() && key.asks_disk())
}

fn has_place(outstanding: usize, repeated: usize, key: Option<Key>) -> bool {
    let all = usize::from(QUEUE_ENTRIES);
    match key {
        Some(key) if key.asks_disk() => {
            outstanding < all - QUICK_PLACES && (key.is_sent_once() || repeated < REPEATED_MAX)
        }
        _ => outstanding < all,
    }
}

pub(super) struct Peers {
    identity: Identity,
    peers: RefCell<BTreeMap<NodeId, Rc<Peer>>>,
}

impl Peers {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            peers: RefCell::default(),
        }
    }

    fn peer(&self, node: NodeId) -> Rc<Peer> {
        self.peers.borrow_mut().entry(node).or_default().clone()
    }

    pub(super) fn set_addresses(&self, addresses: Vec<(NodeId, SocketAddr)>) {
        for (node, address) in addresses {
            let peer = self.peer(node);
            if peer.address.replace(Some(address)) != Some(address) {
                // A target that moved is another life; what is in flight on the old link ends.
                if let Some(link) = peer.link.borrow_mut().take() {
                    link.queue.close();
                }
            }
        }
    }

    /// Where a peer is; none if that is not known.
    pub(super) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.peers.borrow().get(&node)?.address.get()
    }

    /// What was kept to be fetched about a volume's chunks is of no use any more.
    pub(super) fn forget_volume(&self, volume: VolumeNumber) {
        for peer in self.peers.borrow().values() {
            let mut sealed = peer.sealed.borrow_mut();
            let of_volume = sealed.range(ChunkId::all_of(volume));
            for chunk in of_volume.map(|(chunk, _)| *chunk).collect::<Vec<_>>() {
                sealed.remove(&chunk);
            }
        }
    }

    /// Sends a command to a peer, or completes the peer's command that an answer belongs to.
    pub(super) fn send(&self, node: &Node, to: NodeId, message: Message, data: Option<Buffer>) {
        let peer = self.peer(to);
        if encode_answer(&message).is_some() {
            return answer(&peer, &message, data);
        }
        match self.link(node, to) {
            Some(link) if link.take_place(Key::of_command(&message)) => {
                drop(spawn(exchange(node.own.clone(), to, link, message, data)));
            }
            Some(_) | None => {}
        }
    }

    /// The way to a peer; if there is none, one is looked for.
    fn link(&self, node: &Node, to: NodeId) -> Option<Link> {
        let peer = self.peer(to);
        let link = peer.link.borrow().clone().filter(|link| !link.queue.is_ended());
        if link.is_none() {
            *peer.link.borrow_mut() = None;
            if !peer.connecting.replace(true) {
                drop(spawn(connect(node.own.clone(), self.identity, to, peer)));
            }
        }
        link
    }

    /// All other nodes of which it is known where they are.
    pub(super) fn known(&self) -> Vec<NodeId> {
        let peers = self.peers.borrow();
        let known = peers.iter().filter(|(_, peer)| peer.address.get().is_some());
        known.map(|(node, _)| *node).collect()
    }

    /// Asks a peer about its copies: the answer's result, and what came back; else what it says, or none if it cannot be
    /// reached now or does not answer in time.
    pub(super) async fn ask_native(
        &self,
        node: &Node,
        to: NodeId,
        native: &NativeCommand,
        room: Data,
    ) -> Result<(u64, Data), Option<volume::Status>> {
        let link = self.link(node, to).ok_or(None)?;
        if link.queue.outstanding() >= usize::from(QUEUE_ENTRIES) / 2 {
            return Err(None);
        }
        let asked = link.queue.execute(command_of(&native.encode()), room);
        let result = time::timeout(SNAPSHOT_LIMIT, asked).await.map_err(|_| None)?;
        let completion = result.completion.ok_or(None)?;
        let is_whole = match &result.data {
            Data::Into(room) => room.len() == result.received_bytes,
            _ => true,
        };
        let status = completion.status();
        match status.is_success() && is_whole {
            true => Ok((completion.result_u64(), result.data)),
            false if status.type_code() == 1 => {
                Err(native_status_from_code(status.code(), completion.result_u64()))
            }
            false => Err(None),
        }
    }
}

/// Gives up, again and again, what peers have asked and is not answered in time.
pub(super) async fn expire(weak: Weak<Node>) {
    loop {
        time::sleep(replies::LOOK_INTERVAL).await;
        let Some(node) = weak.upgrade() else { return };
        let peers: Vec<Rc<Peer>> = node.peers.peers.borrow().values().cloned().collect();
        peers.iter().for_each(|peer| peer.pending.expire(time::now()));
    }
}

/// Completes the commands that this message answers. `beside` are bytes of a copy that go with it.
fn answer(peer: &Peer, message: &Message, beside: Option<Buffer>) {
    let Some(encoded) = encode_answer(message) else {
        return;
    };
    let refused = match message {
        Message::Refused { chunk, epoch, .. } => Some((*chunk, *epoch)),
        _ => None,
    };
    if let Message::SealAnswer(sealed) = message {
        peer.sealed
            .borrow_mut()
            .insert(sealed.chunk, (sealed.epoch, encoded.data.clone()));
    }
    let key = Key::of_answer(message);
    let answered = peer.pending.take(|pending| match refused {
        Some(place) => pending.place() == Some(place),
        None => Some(*pending) == key,
    });
    for Pending {
        reply, room_bytes, ..
    } in answered
    {
        let status = match encoded.refusal {
            Some(refusal) => Status::new(1, refusal.status_code()),
            None => Status::SUCCESS,
        };
        // A Seal's answer is fetched with a command of its own.
        let carries = !matches!(message, Message::SealAnswer(_));
        let data = if let Some(bytes) = &beside {
            Some(bytes.clone())
        } else if carries {
            copied(&encoded.data)
        } else {
            Some(Buffer::empty())
        };
        let data = data.filter(|data| data.len() <= room_bytes);
        match data {
            Some(data) => reply.complete(status, encoded.result, data),
            None => reply.complete(Status::COMMAND_INTERRUPTED, 0, Buffer::empty()),
        }
    }
}

fn copied(bytes: &[u8]) -> Option<Buffer> {
    if bytes.is_empty() {
        return Some(Buffer::empty());
    }
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).ok()?;
    buffer.copy_from_slice(bytes);
    Some(buffer.freeze())
}

/// Sends one message and gives the core the answer.
async fn exchange(node: Weak<Node>, to: NodeId, link: Link, message: Message, data: Option<Buffer>) {
    let answer = ask(&link, &message, data).await;
    link.give_place(Key::of_command(&message));
    let Some(mut answer) = answer else { return };
    if matches!(
        message,
        Message::Enroll { .. } | Message::Return { .. } | Message::Repair { .. } | Message::Lost { .. }
    ) {
        return;
    }
    let mut beside = None;
    if let Message::Fetch { .. } = message
        && answer.refusal.is_none()
        && answer.result == 1
    {
        let bytes = std::mem::take(&mut answer.data);
        beside = copied(&bytes).filter(|bytes| bytes.len() == super::copies::BLOCK_BYTES);
        if beside.is_none() {
            // It is asked for again.
            return;
        }
    }
    let decoded = match (&message, answer.refusal) {
        (Message::Seal { chunk, config }, None) => {
            let fetch = seal_answer_command(*chunk, config.epoch);
            let Some(page) = execute(&link, fetch, room(SEAL_ANSWER_ROOM_BYTES)).await else {
                return;
            };
            let page = EncodedAnswer {
                result: answer.result,
                ..page
            };
            decode_answer(&message, link.incarnation, &page)
        }
        _ => decode_answer(&message, link.incarnation, &answer),
    };
    match decoded {
        Ok(mut message) => {
            if let Some(node) = node.upgrade() {
                judge(&node, &mut message, &mut beside).await;
                node.push(Event::Message {
                    from: to,
                    message,
                    data: beside,
                });
            }
        }
        Err(error) => tracing::warn!(peer = %names::of_node(to), %error, "a peer's answer cannot be read"),
    }
}

/// What a copy that is no member has of a block counts only if the checksum of the copy here is its own.
async fn judge(node: &Node, message: &mut Message, beside: &mut Option<Buffer>) {
    let Message::FetchAnswer {
        chunk,
        range,
        any: true,
        found,
        ..
    } = message
    else {
        return;
    };
    let sums = node.copies.sums(*chunk);
    *found = match (sums, &*beside) {
        (Some(sums), Some(bytes)) => sums.vouches(*range, bytes).await,
        _ => false,
    };
    beside.take_if(|_| !*found);
}

fn room(bytes: usize) -> Data {
    BufferPool::current()
        .try_allocate(bytes)
        .map_or(Data::None, |mut buffer| {
            buffer.fill(0);
            Data::Into(buffer)
        })
}

async fn ask(link: &Link, message: &Message, data: Option<Buffer>) -> Option<EncodedAnswer> {
    let encoded = encode_command(message)?;
    let command = command_of(&encoded.fields);
    let data = match encoded.fields.opcode & 3 {
        1 => {
            // The blocks of a replica write and its tail travel as one.
            let blocks = data.as_deref().unwrap_or(&[]);
            let length = blocks.len() + encoded.data.len();
            // Whoever has blocks does not wait for more memory: as many writes as fill the pool would wait for each other.
            Data::From(match BufferPool::current().try_allocate(length) {
                Ok(mut whole) => {
                    whole[..blocks.len()].copy_from_slice(blocks);
                    whole[blocks.len()..].copy_from_slice(&encoded.data);
                    whole.freeze()
                }
                Err(_) => Buffer::from([blocks, &encoded.data].concat()),
            })
        }
        2 => room(ANSWER_ROOM_BYTES),
        _ => Data::None,
    };
    execute(link, command, data).await
}

async fn execute(link: &Link, command: Command, data: Data) -> Option<EncodedAnswer> {
    let result = link.queue.execute(command, data).await;
    let completion = result.completion?;
    let status = completion.status();
    let refusal = if status.is_success() {
        None
    } else if status.type_code() == 1 {
        Some(Refusal::from_status_code(status.code())?)
    } else {
        tracing::debug!(%status, "a peer's command failed");
        return None;
    };
    let data = match result.data {
        Data::Into(buffer) => buffer[..result.received_bytes].to_vec(),
        _ => Vec::new(),
    };
    Some(EncodedAnswer {
        result: completion.result_u64(),
        refusal,
        data,
    })
}

fn seal_answer_command(chunk: ChunkId, epoch: Epoch) -> Command {
    let mut command = Command::new(opcode::SEAL_ANSWER, chunk.volume.0);
    command.set_cdw2(chunk.index.0);
    command.set_cdw3(u32::from(volume::message::codec::VERSION));
    command.with_metadata_pointer(epoch.0)
}

pub(crate) fn command_of(fields: &CommandFields) -> Command {
    let mut command = Command::new(fields.opcode, fields.nsid).with_metadata_pointer(fields.mptr);
    command.set_cdw2(fields.cdw2);
    command.set_cdw3(fields.cdw3);
    let [a, b, c, d, e, f] = fields.cdw10_15;
    command
        .with_cdw10(a)
        .with_cdw11(b)
        .with_cdw12(c)
        .with_cdw13(d)
        .with_cdw14(e)
        .with_cdw15(f)
}

pub(super) fn fields_of(command: &Command) -> CommandFields {
    CommandFields {
        opcode: command.opcode(),
        nsid: command.nsid(),
        cdw2: command.cdw2(),
        cdw3: command.cdw3(),
        mptr: command.metadata_pointer(),
        cdw10_15: [
            command.cdw10(),
            command.cdw11(),
            command.cdw12(),
            command.cdw13(),
            command.cdw14(),
            command.cdw15(),
        ],
    }
}

async fn connect(node: Weak<Node>, identity: Identity, to: NodeId, peer: Rc<Peer>) {
    let Some(address) = peer.address.get() else {
        peer.connecting.set(false);
        return;
    };
    let mut options = options(identity, to, address);
    let proof = node
        .upgrade()
        .map_or(Proof::Ready, |node| node.passes().apply(to, &mut options));
    if proof != Proof::Ready
        && let Some(node) = node.upgrade()
    {
        node.want_passes();
    }
    if proof == Proof::Awaited {
        time::sleep(CONNECT_PAUSE).await;
        peer.connecting.set(false);
        return;
    }
    let opened = open(options).await;
    let mut refusals = peer.refusals.get();
    match opened {
        Ok(link) => {
            refusals.end();
            *peer.link.borrow_mut() = Some(link);
        }
        Err(error) => {
            tracing::debug!(peer = %names::of_node(to), %error, "a peer cannot be reached");
            match node.upgrade().filter(|_| error.is_of_names()) {
                Some(node) => {
                    if let Some(lasts) = refusals.add(time::now()) {
                        let (peer, seconds) = (names::of_node(to), lasts.as_secs());
                        tracing::warn!(%peer, %error, seconds, "a peer does not know this node, or is not known");
                    }
                    node.want_passes();
                }
                None => refusals.end(),
            }
            time::sleep(CONNECT_PAUSE).await;
        }
    }
    peer.refusals.set(refusals);
    peer.connecting.set(false);
}

/// How this node connects to another one.
fn options(identity: Identity, to: NodeId, address: SocketAddr) -> ConnectOptions {
    let parse = |name: String| name.parse::<Nqn>().expect("node names are well-formed");
    let mut host_id = [0; 16];
    host_id[..8].copy_from_slice(&(identity.node.0 as u64).to_le_bytes());
    host_id[8..].copy_from_slice(&identity.incarnation.0.to_le_bytes());
    ConnectOptions {
        queue_entries: QUEUE_ENTRIES,
        keep_alive: Duration::from_secs(5),
        limit: Duration::from_secs(2),
        tcp: TcpOptions {
            local: true,
            ..TcpOptions::default()
        },
        ..ConnectOptions::new(
            address,
            parse(names::of_node(to)),
            parse(names::of_node(identity.node)),
            host_id,
        )
    }
}

async fn open(options: ConnectOptions) -> Result<Link, ConnectError> {
    let controller = Controller::connect(options).await?;
    let serial = controller.identity().sn;
    // A peer that does not say which life it is gets a number that no configuration names.
    let incarnation = serial
        .as_str()
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    let queue = controller.open_queue().await?;
    Ok(Link {
        queue,
        incarnation: Incarnation(incarnation),
        unanswered: Rc::default(),
        repeated: Rc::default(),
        _controller: controller,
    })
}

/// Serves the commands of one queue of one peer.
pub(super) fn handler(node: &Rc<Node>, from: NodeId) -> Rc<dyn CommandHandler> {
    Rc::new(PeerHandler {
        node: Rc::downgrade(node),
        from,
        portal: native::portal_handler(node),
    })
}

struct PeerHandler {
    node: Weak<Node>,
    from: NodeId,
    /// What hosts ask of the peer as a portal.
    portal: NativeHandler,
}

impl CommandHandler for PeerHandler {
    fn submit(&self, call: Call) {
        let Some(node) = self.node.upgrade() else { return };
        let peer = node.peers.peer(self.from);
        let fields = fields_of(&call.command);
        if let Ok(native) = NativeCommand::decode(&fields) {
            return match native.operation {
                NativeOperation::ReadSnapshot(_) => native::look_at_snapshot(&node, native, call),
                NativeOperation::CountSnapshot(snapshot) => node.count_snapshot(native, snapshot, call),
                NativeOperation::Check => native::check_for_peer(&node, &native, call),
                NativeOperation::Outvote(sum) => node.answer_outvote(self.from, &native, sum, call),
                _ => self.portal.submit(call),
            };
        }
        if fields.opcode == opcode::SEAL_ANSWER {
            return fetch_sealed(&peer, &fields, call);
        }
        let Call {
            data,
            reply,
            room_bytes,
            ..
        } = call;
        let split = match fields.opcode {
            opcode::REPLICA_WRITE => data.len().saturating_sub(REPLICA_TAIL_BYTES),
            _ => 0,
        };
        let message = match decode_command(&fields, &data[split..]) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(peer = %names::of_node(self.from), %error, "a peer's command cannot be read");
                return reply.complete(Status::INVALID_FIELD_IN_COMMAND, 0, Buffer::empty());
            }
        };
        let blocks = (split > 0).then(|| data.slice(0..split));
        if let Message::ReplicaWrite(write) = &message {
            let expected = write.range.count as usize * super::copies::BLOCK_BYTES;
            let wanted = if write.kind == volume::WriteKind::Data {
                expected
            } else {
                0
            };
            if split != wanted {
                return reply.complete(Status::DATA_SGL_LENGTH_INVALID, 0, Buffer::empty());
            }
        }
        match Key::of_command(&message) {
            Some(key) => peer.pending.add(Pending {
                key,
                reply,
                room_bytes,
                since: time::now(),
            }),
            None => reply.complete(Status::SUCCESS, 0, Buffer::empty()),
        }
        node.push(Event::Message {
            from: self.from,
            message,
            data: blocks,
        });
    }

    fn closed(&self) {
        self.portal.closed();
    }
}

fn fetch_sealed(peer: &Peer, fields: &CommandFields, call: Call) {
    let chunk = ChunkId {
        volume: volume::VolumeNumber(fields.nsid),
        index: volume::ChunkIndex(fields.cdw2),
    };
    let mut sealed = peer.sealed.borrow_mut();
    match sealed.get(&chunk) {
        Some((epoch, bytes)) if epoch.0 == fields.mptr && bytes.len() <= call.room_bytes => {
            match copied(bytes) {
                Some(data) => call.reply.complete(Status::SUCCESS, 0, data),
                None => call
                    .reply
                    .complete(Status::COMMAND_INTERRUPTED, 0, Buffer::empty()),
            }
            // Should it be lost on its way, the Seal is sent and answered again.
            sealed.remove(&chunk);
        }
        _ => call
            .reply
            .complete(Status::COMMAND_SEQUENCE_ERROR, 0, Buffer::empty()),
    }
}

#[cfg(test)]
mod tests {
    use volume::{JoinNumber, Sequence};

    use super::*;

    /// One disk that hangs, of a node with many chunks, does not make it lose its grants, nor what is written to its other disks.
    #[test]
    fn what_is_repeated_or_waits_for_a_disk_leaves_places_to_the_rest() {
        let chunk = ChunkId::default();
        let seal = Some(Key::Seal(chunk, Epoch(2)));
        let write = Some(Key::Replica(chunk, Epoch(2), Sequence(1), JoinNumber(0)));
        let beacon = Some(Key::Beacon(Incarnation(1), 1));
        assert!(has_place(255, 255, seal) && !has_place(256, 256, seal));
        assert!(has_place(300, 10, seal), "writes do not keep it out");
        assert!(has_place(447, 256, write) && !has_place(448, 256, write));
        for quick in [beacon, None] {
            assert!(has_place(511, 256, quick) && !has_place(512, 256, quick));
        }
    }
}
