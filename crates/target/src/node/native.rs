//! Requests of native clients: NVM commands with the epoch and the writer's token beside them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::Data;
use fabrics::target::{Call, CommandHandler, Reply};
use foundation::{BlockCount, Instant, Lba};
use identity::Role;
use identity::data_path::HostName;
use protocols::nvme::Status as NvmeStatus;
use reactor::sync::OneshotSender;
use reactor::{Buffer, time};
use volume::client::PeerStatus;
use volume::message::codec::{Checked, NativeCommand, NativeOperation, digest_of, native_status_code};
use volume::{
    BlockRange, ChunkId, Geometry, HostId, Operation, Piece, RequestId, Session, Status, VolumeNumber,
    WriteKind,
};

use super::copies::{BLOCK_BYTES, Copy};
use super::peers::fields_of;
use super::reads::range_bytes;
use super::{Event, LocalIo, Node};

/// Who waits for a request.
enum Asker {
    /// A command that came by a queue, and how much it takes, in bytes.
    Queue(Reply, usize),
    /// This node's own portal, with the buffer of its read.
    Portal(volume::client::Reply, Data),
    /// A command that only wants to know what the checksums say.
    Check(Box<Check>),
}

/// Who wants to know what the checksums say.
pub(super) enum CheckAsker {
    /// A command, with its room for the answer in bytes.
    Command(Reply, usize),
    /// This node itself: how the read ended, and what was found.
    Scrub(OneshotSender<(Status, Checked)>),
}

/// See [`NativeOperation::Check`].
pub(super) struct Check {
    asker: CheckAsker,
    chunk: ChunkId,
    request: volume::Request,
    damaged: u32,
    /// Until then a read that waits for a repair is made again.
    until: Instant,
}

impl Check {
    pub(super) fn new(asker: CheckAsker, chunk: ChunkId, request: volume::Request) -> Self {
        Self {
            asker,
            chunk,
            request,
            damaged: 0,
            until: time::now() + REPAIR_LIMIT,
        }
    }
}

/// How long a check waits for the repair of what does not fit.
const REPAIR_LIMIT: Duration = Duration::from_secs(8);

struct Pending {
    id: RequestId,
    /// None of a place that nothing is kept in.
    asker: Option<Asker>,
    chunk: ChunkId,
    queue: QueueNumber,
    read: Buffer,
    /// What the blocks of a write that compares first are to hold.
    expected: Buffer,
    /// The disk has it, past the core's outputs.
    at_disk: Option<LocalIo>,
}

impl Pending {
    fn vacant() -> Self {
        Self {
            id: RequestId(NO_NAME),
            asker: None,
            chunk: ChunkId::default(),
            queue: 0,
            read: Buffer::empty(),
            expected: Buffer::empty(),
            at_disk: None,
        }
    }
}

/// The low bits of a request's name say where it is kept, the others count.
const PLACE_BITS: u32 = 28;
/// No request's name has this bit.
pub(super) const NO_NAME: u64 = 1 << 63;

/// One of those by which requests come; 0 is none.
type QueueNumber = u64;

/// Requests that the core has not completed.
#[derive(Default)]
pub(super) struct Natives {
    places: RefCell<Places>,
    added: Cell<u64>,
    queues: Cell<QueueNumber>,
}

/// Places are filled and emptied field by field where they are: what is kept of a request is too long to be moved for nothing.
#[derive(Default)]
struct Places {
    all: Vec<Pending>,
    vacant: Vec<usize>,
}

fn empty(buffer: &mut Buffer) -> Buffer {
    std::mem::replace(buffer, Buffer::empty())
}

fn place_of(request: RequestId) -> usize {
    (request.0 & ((1 << PLACE_BITS) - 1)) as usize
}

impl Natives {
    /// The name of the request that is added next.
    fn next(&self) -> RequestId {
        let places = self.places.borrow();
        let place = places.vacant.last().copied().unwrap_or(places.all.len());
        // Far more than there is memory for.
        assert!(place < 1 << PLACE_BITS, "requests that nobody completes");
        RequestId((self.added.get() << PLACE_BITS | place as u64) & !NO_NAME)
    }

    fn add(&self, asker: Asker, chunk: ChunkId, queue: QueueNumber, at_disk: Option<LocalIo>) -> RequestId {
        let id = self.next();
        self.added.set(self.added.get() + 1);
        let places = &mut *self.places.borrow_mut();
        if places.vacant.pop().is_none() {
            places.all.push(Pending::vacant());
        }
        let place = &mut places.all[place_of(id)];
        place.id = id;
        place.asker = Some(asker);
        (place.chunk, place.queue) = (chunk, queue);
        place.at_disk = at_disk;
        id
    }

    /// A number for a queue.
    fn add_queue(&self) -> QueueNumber {
        self.queues.set(self.queues.get() + 1);
        self.queues.get()
    }

    /// The requests that came by a queue.
    fn of_queue(&self, queue: QueueNumber) -> Vec<(ChunkId, RequestId)> {
        let places = self.places.borrow();
        let is_own = |kept: &&Pending| kept.asker.is_some() && kept.queue == queue;
        let own = places.all.iter().filter(is_own);
        own.map(|kept| (kept.chunk, kept.id)).collect()
    }

    /// What the disk was asked for a request, once; none if the core has completed it meanwhile.
    pub(super) fn take_from_disk(&self, id: RequestId) -> Option<LocalIo> {
        self.with(id, |kept| kept.at_disk.take())?
    }

    /// Does something with a request, if it is still there.
    fn with<T>(&self, id: RequestId, act: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        let mut places = self.places.borrow_mut();
        let kept = places.all.get_mut(place_of(id)).filter(|kept| kept.id == id);
        kept.map(act)
    }

    /// Ends keeping a request: who waits for it, what has been read, and by which queue it came.
    fn take(&self, id: RequestId) -> Option<(Asker, Buffer, QueueNumber)> {
        let mut places = self.places.borrow_mut();
        let place = place_of(id);
        let kept = places.all.get_mut(place).filter(|kept| kept.id == id)?;
        kept.id = RequestId(NO_NAME);
        let taken = (kept.asker.take()?, empty(&mut kept.read), kept.queue);
        let left = (empty(&mut kept.expected), kept.at_disk.take());
        places.vacant.push(place);
        // Whoever hears of its end may ask for the next.
        drop(places);
        drop(left);
        Some(taken)
    }

    /// Takes apart what came with a request that is to go under this number: of one that compares first, what it expects is kept until its
    /// blocks have been read, and what it writes is returned.
    fn take_expected(&self, id: RequestId, request: &volume::Request, data: Buffer) -> Buffer {
        let Operation::Write { compares: true, .. } = request.operation else {
            return data;
        };
        let half = data.len() / 2;
        self.with(id, |pending| pending.expected = data.slice(0..half));
        data.slice(half..data.len())
    }

    /// Whether these are the bytes that a request expects.
    pub(super) fn expects(&self, request: RequestId, bytes: &[u8]) -> bool {
        self.with(request, |pending| *pending.expected == *bytes)
            .unwrap_or(false)
    }

    /// Waits for a check's read, under the number that is returned.
    pub(super) fn check(&self, check: Check) -> RequestId {
        let chunk = check.chunk;
        self.add(Asker::Check(Box::new(check)), chunk, 0, None)
    }

    /// The bytes of a read have come. They are given to the client only once the core says so.
    pub(super) fn filled(&self, request: RequestId, bytes: Buffer) {
        self.with(request, |pending| pending.read = bytes);
    }

    /// Blocks that a request read do not fit their checksums, and were not known not to.
    pub(super) fn damaged(&self, request: RequestId, blocks: usize) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.with(request, |pending| {
            if let Some(Asker::Check(check)) = &mut pending.asker {
                check.damaged = check.damaged.saturating_add(blocks);
            }
        });
    }

    /// A request has ended, with these bytes or those that have [filled](Self::filled) it; or it is to be made again, under the number
    /// that is returned.
    pub(super) fn complete(
        &self,
        request: RequestId,
        status: Status,
        read: Option<Buffer>,
        has_sums: impl FnOnce(ChunkId) -> bool,
    ) -> Option<(ChunkId, volume::Request)> {
        let (asker, filled, queue) = self.take(request)?;
        match asker {
            Asker::Check(check) if status == Status::NotReady && time::now() < check.until => {
                let (chunk, request) = (check.chunk, check.request);
                let id = self.add(Asker::Check(check), chunk, queue, None);
                return Some((chunk, volume::Request { id, ..request }));
            }
            Asker::Check(check) => {
                let compared = match has_sums(check.chunk) {
                    true => check.request.range.count,
                    false => 0,
                };
                let bytes = read.unwrap_or(filled);
                let is_whole = status == Status::Done && bytes.len() == range_bytes(check.request.range);
                let checked = Checked {
                    compared,
                    damaged: check.damaged,
                    digest: is_whole.then(|| digest_of(&bytes)),
                };
                match check.asker {
                    CheckAsker::Command(reply, room_bytes) => end_check(reply, room_bytes, status, checked),
                    CheckAsker::Scrub(answer) => answer.send((status, checked)),
                }
            }
            asker => end(asker, read.unwrap_or(filled), status),
        }
        None
    }
}

/// Answers what was checked.
fn end_check(reply: Reply, room_bytes: usize, status: Status, checked: Checked) {
    match native_status_code(status) {
        Some((code, result)) => reply.complete(NvmeStatus::new(1, code), result, Buffer::empty()),
        None => answer(reply, room_bytes, &checked.encode()),
    }
}

/// Gives the room that there is for an answer these bytes, and zeros behind them.
pub(super) fn answer(reply: Reply, room_bytes: usize, bytes: &[u8]) {
    match reactor::BufferPool::current().try_allocate(room_bytes) {
        Ok(mut room) if room.len() >= bytes.len() => {
            let (head, rest) = room.split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            rest.fill(0);
            reply.complete(NvmeStatus::SUCCESS, 0, room.freeze());
        }
        Ok(_) => reply.complete(NvmeStatus::DATA_SGL_LENGTH_INVALID, 0, Buffer::empty()),
        Err(_) => reply.complete(NvmeStatus::COMMAND_INTERRUPTED, 0, Buffer::empty()),
    }
}

/// Answers a request.
fn end(asker: Asker, read: Buffer, status: Status) {
    let (reply, room_bytes) = match asker {
        Asker::Check(_) => return,
        Asker::Queue(reply, room_bytes) => (reply, room_bytes),
        Asker::Portal(reply, Data::Into(mut room)) if status == Status::Done && room.len() == read.len() => {
            room.copy_from_slice(&read);
            return reply.answer(PeerStatus::Answered(status), Data::Into(room));
        }
        Asker::Portal(reply, data) => return reply.answer(PeerStatus::Answered(status), data),
    };
    let result = match status {
        Status::Claimed(number) => number,
        _ => 0,
    };
    match native_status_code(status) {
        None if read.len() <= room_bytes => reply.complete(NvmeStatus::SUCCESS, result, read),
        None => reply.complete(NvmeStatus::DATA_SGL_LENGTH_INVALID, 0, Buffer::empty()),
        Some((code, result)) => reply.complete(NvmeStatus::new(1, code), result, Buffer::empty()),
    }
}

/// Serves the commands of one queue of one client.
pub(super) fn handler(node: &Rc<Node>, host_id: &[u8; 16]) -> Rc<dyn CommandHandler> {
    let session = session_of(host_id);
    Rc::new(NativeHandler::new(node, Some(session), None))
}

/// The same for a client that has proved its name; none if it uses another one's number.
pub(super) fn proven_handler(
    node: &Rc<Node>,
    name: &HostName,
    host_id: &[u8; 16],
) -> Option<Rc<dyn CommandHandler>> {
    let session = session_of(host_id);
    if session.host != HostId::native(name.number) {
        tracing::warn!(
            host_nqn = name.to_nqn(),
            "a client's host identifier does not begin with the number in its name: it is refused"
        );
        return None;
    }
    Some(Rc::new(NativeHandler::new(node, Some(session), Some(name.role))))
}

fn session_of(host_id: &[u8; 16]) -> Session {
    let number = |bytes: &[u8]| {
        let mut array = [0; 8];
        array.copy_from_slice(bytes);
        u64::from_le_bytes(array)
    };
    Session {
        host: HostId::native(number(&host_id[..8])),
        number: number(&host_id[8..]),
    }
}

/// Serves what the hosts of another node's portals ask by one queue of that node.
pub(super) fn portal_handler(node: &Rc<Node>) -> NativeHandler {
    NativeHandler::new(node, None, None)
}

pub(super) struct NativeHandler {
    node: Weak<Node>,
    /// The client's; none if it is a portal, which names a host and a claim in each command.
    session: Option<Session>,
    /// The client's; none of one that need not prove any, and of a portal.
    role: Option<Role>,
    number: QueueNumber,
    /// A copy of the volume that was read last, for its shape.
    of_volume: RefCell<(VolumeNumber, Weak<Copy>)>,
    /// Chunks that its client reads by the board.
    located: RefCell<BTreeSet<ChunkId>>,
}

/// Whether a client's role has an operation. Making snapshots is for administrators, as it is at the masters.
fn allows(role: Role, operation: &NativeOperation) -> bool {
    match operation {
        NativeOperation::Read
        | NativeOperation::ReadSnapshot(_)
        | NativeOperation::CheckSnapshot(_)
        | NativeOperation::Locate { .. }
        | NativeOperation::Check
        | NativeOperation::CompareCopies
        | NativeOperation::Flush => matches!(role, Role::Admin | Role::Client | Role::ReadOnly),
        NativeOperation::Write { .. }
        | NativeOperation::WriteZeroes { .. }
        | NativeOperation::Deallocate { .. }
        | NativeOperation::DeallocateRun { .. }
        | NativeOperation::CompareAndWrite { .. }
        | NativeOperation::Fence
        | NativeOperation::Claim => matches!(role, Role::Admin | Role::Client),
        NativeOperation::Cut(_) | NativeOperation::Release(_) | NativeOperation::Abandon(_) => {
            role == Role::Admin
        }
        NativeOperation::CountSnapshot(_) | NativeOperation::Outvote(_) => false,
    }
}

/// Where blocks of a volume lie that one command may name.
fn piece_of(geometry: &Geometry, first: Lba, blocks: u32) -> Result<Piece, NvmeStatus> {
    let pieces = geometry.pieces(first, BlockCount(blocks.into()));
    let piece = pieces.map_err(|_| NvmeStatus::LBA_OUT_OF_RANGE)?.next();
    // Else they would lie in two chunks, or be longer than a piece: the client's geometry is not ours.
    let piece = piece.filter(|piece| piece.range.count == blocks);
    piece.ok_or(NvmeStatus::INVALID_FIELD_IN_COMMAND)
}

/// What a command asks of the core, of which chunk. The bytes of its data are `given`, those written or room for those read.
fn request_of(
    node: &Node,
    native: &NativeCommand,
    session: Session,
    given: usize,
) -> Result<(ChunkId, volume::Request), NvmeStatus> {
    let volume = VolumeNumber(native.volume.0);
    // Where everything passes that asks for a write, whichever release it is of.
    let syncs = node.sync_writes().has(volume);
    let compares = matches!(native.operation, NativeOperation::CompareAndWrite { .. });
    let write = |kind, force_unit_access: bool| Operation::Write {
        kind,
        data: None,
        force_unit_access: force_unit_access || syncs && kind != WriteKind::Fence,
        compares,
    };
    let (operation, moves) = match native.operation {
        NativeOperation::Read => (Operation::Read, true),
        NativeOperation::Write { fua } | NativeOperation::CompareAndWrite { fua } => {
            (write(WriteKind::Data, fua), true)
        }
        NativeOperation::WriteZeroes { fua } => (write(WriteKind::Zeroes, fua), false),
        NativeOperation::Deallocate { fua } | NativeOperation::DeallocateRun { fua } => {
            (write(WriteKind::Deallocate, fua), false)
        }
        NativeOperation::Fence | NativeOperation::Claim => (write(WriteKind::Fence, false), false),
        NativeOperation::Flush => (Operation::Flush, false),
        NativeOperation::Cut(snapshot) => (Operation::Cut(snapshot), false),
        NativeOperation::Release(snapshot) => (Operation::Release(snapshot), false),
        NativeOperation::Abandon(snapshot) => (Operation::Abandon(snapshot), false),
        NativeOperation::Locate { .. }
        | NativeOperation::Check
        | NativeOperation::CompareCopies
        | NativeOperation::Outvote(_)
        | NativeOperation::ReadSnapshot(_)
        | NativeOperation::CheckSnapshot(_)
        | NativeOperation::CountSnapshot(_) => (Operation::Read, false),
    };
    let of_chunk = native.operation.is_of_chunk();
    let is_change = matches!(operation, Operation::Write { .. });
    let is_run = matches!(native.operation, NativeOperation::DeallocateRun { .. });
    let blocks = if of_chunk || is_run { 1 } else { native.blocks };
    let copy = node.copies.last_of(volume);
    let copy = copy.ok_or(NvmeStatus::INVALID_NAMESPACE_OR_FORMAT)?;
    let piece = piece_of(&copy.geometry(), native.fields.first_lba, blocks)?;
    let times = if compares { 2 } else { 1 };
    if moves && given != times * blocks as usize * BLOCK_BYTES {
        return Err(NvmeStatus::DATA_SGL_LENGTH_INVALID);
    }
    // A capsule may carry bytes with any command. They belong to none of these blocks, and other copies would refuse them.
    if is_change && !moves && given > 0 {
        return Err(NvmeStatus::INVALID_FIELD_IN_COMMAND);
    }
    let chunk = ChunkId {
        volume,
        index: piece.chunk,
    };
    let range = if of_chunk {
        BlockRange::default()
    } else if is_run {
        // The core refuses one that goes beyond the chunk.
        BlockRange {
            start: piece.range.start,
            count: native.blocks,
        }
    } else {
        piece.range
    };
    let request = volume::Request {
        id: RequestId(0),
        operation,
        range,
        needs_room: is_change && node.needs_room(chunk, range),
        epoch: native.fields.epoch,
        session,
        writer_token: native.fields.writer_token,
        trace: native.trace,
    };
    Ok((chunk, request))
}

impl Node {
    /// Serves a command of this node's own portal.
    pub(crate) fn serve_portal(
        self: &Rc<Self>,
        command: &NativeCommand,
        data: Data,
        reply: volume::client::Reply,
    ) {
        let (session, native) = command.from_portal();
        let (chunk, request) = match request_of(self, &native, session, data.length_bytes()) {
            Ok(request) => request,
            Err(status) => return reply.answer(crate::portal::refused(status), data),
        };
        let (asker, data) = match data {
            Data::From(written) => (Asker::Portal(reply, Data::None), Some(written)),
            room => (Asker::Portal(reply, room), None),
        };
        let id = self.natives.add(asker, chunk, 0, None);
        let data = data.map(|data| self.natives.take_expected(id, &request, data));
        let request = volume::Request { id, ..request };
        self.push(Event::Request { chunk, request, data });
    }
}

impl NativeHandler {
    fn new(node: &Rc<Node>, session: Option<Session>, role: Option<Role>) -> Self {
        Self {
            node: Rc::downgrade(node),
            session,
            role,
            number: node.natives.add_queue(),
            of_volume: RefCell::default(),
            located: RefCell::default(),
        }
    }

    fn start(&self, node: &Rc<Node>, native: &NativeCommand, call: Call) -> Result<(), (Call, NvmeStatus)> {
        // Nodes ask each other about their copies past here.
        let portals = matches!(
            native.operation,
            NativeOperation::Claim | NativeOperation::CountSnapshot(_) | NativeOperation::Outvote(_)
        );
        let clients = matches!(
            native.operation,
            NativeOperation::Fence
                | NativeOperation::Locate { .. }
                | NativeOperation::Check
                | NativeOperation::CompareCopies
                | NativeOperation::Outvote(_)
                | NativeOperation::Cut(_)
                | NativeOperation::Release(_)
                | NativeOperation::Abandon(_)
                | NativeOperation::ReadSnapshot(_)
                | NativeOperation::CheckSnapshot(_)
                | NativeOperation::CountSnapshot(_)
        );
        let (session, native) = match self.session {
            Some(session) if !portals => (session, *native),
            None if !clients => native.from_portal(),
            _ => return Err((call, NvmeStatus::INVALID_FIELD_IN_COMMAND)),
        };
        if self.role.is_some_and(|role| !allows(role, &native.operation)) {
            return Err((call, NvmeStatus::ACCESS_DENIED));
        }
        if matches!(
            native.operation,
            NativeOperation::ReadSnapshot(_) | NativeOperation::CheckSnapshot(_)
        ) {
            look_at_snapshot(node, native, call);
            return Ok(());
        }
        if native.operation == NativeOperation::Read {
            return self.read(node, &native, session, call);
        }
        let (chunk, request) = match request_of(node, &native, session, call.data.len()) {
            Ok(request) => request,
            Err(status) => return Err((call, status)),
        };
        if let NativeOperation::Locate { checks } = native.operation {
            self.locate(node, chunk, checks, call);
            return Ok(());
        }
        if native.operation == NativeOperation::CompareCopies {
            node.answer_comparison(chunk, request, call);
            return Ok(());
        }
        let Call {
            data,
            room_bytes,
            reply,
            ..
        } = call;
        let asker = match native.operation {
            NativeOperation::Check => {
                let asker = CheckAsker::Command(reply, room_bytes);
                Asker::Check(Box::new(Check::new(asker, chunk, request)))
            }
            _ => Asker::Queue(reply, room_bytes),
        };
        let id = node.natives.add(asker, chunk, self.number, None);
        let data = (!data.is_empty()).then(|| node.natives.take_expected(id, &request, data));
        let request = volume::Request { id, ..request };
        node.push(Event::Request { chunk, request, data });
        Ok(())
    }

    /// A read: most begin at once. Bytes that came with it belong to nothing.
    fn read(
        &self,
        node: &Node,
        native: &NativeCommand,
        session: Session,
        call: Call,
    ) -> Result<(), (Call, NvmeStatus)> {
        let (chunk, range) = match self.place(node, native) {
            Ok(place) if call.room_bytes == range_bytes(place.1) => place,
            Ok(_) => return Err((call, NvmeStatus::DATA_SGL_LENGTH_INVALID)),
            Err(status) => return Err((call, status)),
        };
        let request = volume::Request {
            id: node.natives.next(),
            operation: Operation::Read,
            range,
            needs_room: false,
            epoch: native.fields.epoch,
            session,
            writer_token: native.fields.writer_token,
            trace: native.trace,
        };
        let asker = Asker::Queue(call.reply, call.room_bytes);
        match node.begin_read(chunk, &request) {
            Some((local, room)) => {
                let copy = local.copy.clone();
                let id = node.natives.add(asker, chunk, self.number, Some(local));
                debug_assert_eq!(id, request.id, "nothing is added while the core is asked");
                let tag = id.0 | NO_NAME;
                node.submit_to(&copy, tag, bdev::Operation::Read, Some(range), Data::Into(room));
            }
            None => {
                let id = node.natives.add(asker, chunk, self.number, None);
                debug_assert_eq!(id, request.id, "nothing is added while the core is asked");
                let data = None;
                node.push(Event::Request { chunk, request, data });
            }
        }
        Ok(())
    }

    /// Where the blocks of a read lie.
    fn place(&self, node: &Node, native: &NativeCommand) -> Result<(ChunkId, BlockRange), NvmeStatus> {
        let volume = VolumeNumber(native.volume.0);
        let (first, blocks) = (native.fields.first_lba, native.blocks);
        let found = |piece: Piece| {
            let index = piece.chunk;
            (ChunkId { volume, index }, piece.range)
        };
        {
            let (kept, copy) = &*self.of_volume.borrow();
            if *kept == volume
                && let Some(copy) = copy.upgrade()
                && let Ok(piece) = piece_of(&copy.geometry(), first, blocks)
            {
                return Ok(found(piece));
            }
        }
        let copy = node.copies.last_of(volume);
        let copy = copy.ok_or(NvmeStatus::INVALID_NAMESPACE_OR_FORMAT)?;
        self.of_volume.replace((volume, Rc::downgrade(&copy)));
        piece_of(&copy.geometry(), first, blocks).map(found)
    }

    /// Answers at once, whatever the core has to do.
    fn locate(&self, node: &Rc<Node>, chunk: ChunkId, checks: bool, call: Call) {
        // A client asks again when something has changed: it counts once.
        if !self.located.borrow_mut().insert(chunk) {
            node.forget_located([chunk]);
        }
        let Some(location) = node.locate(chunk, checks) else {
            self.located.borrow_mut().remove(&chunk);
            let status = NvmeStatus::INVALID_FIELD_IN_COMMAND;
            return call.reply.complete(status, 0, Buffer::empty());
        };
        let bytes = location.encode();
        let refuse = |status| (status, Buffer::empty());
        let (status, answer) = match reactor::BufferPool::current().try_allocate(call.room_bytes) {
            Ok(mut room) if bytes.len() <= room.len() => {
                let (head, rest) = room.split_at_mut(bytes.len());
                head.copy_from_slice(&bytes);
                rest.fill(0);
                (NvmeStatus::SUCCESS, room.freeze())
            }
            Ok(_) => refuse(NvmeStatus::DATA_SGL_LENGTH_INVALID),
            Err(_) => refuse(NvmeStatus::COMMAND_INTERRUPTED),
        };
        call.reply.complete(status, 0, answer);
    }
}

/// Tells the write node what this node's copy has, of a chunk that both have in sync.
pub(super) fn check_for_peer(node: &Rc<Node>, native: &NativeCommand, call: Call) {
    let (chunk, request) = match request_of(node, native, Session::default(), 0) {
        Ok(request) => request,
        Err(status) => return call.reply.complete(status, 0, Buffer::empty()),
    };
    let asker = CheckAsker::Command(call.reply, call.room_bytes);
    let id = node.natives.check(Check::new(asker, chunk, request));
    node.push(Event::Request {
        chunk,
        request: volume::Request { id, ..request },
        data: None,
    });
}

/// Answers what a copy of a snapshot has, or what its checksums say of it; the core has no part in it.
pub(super) fn look_at_snapshot(node: &Rc<Node>, native: NativeCommand, call: Call) {
    let node = node.clone();
    drop(reactor::spawn(async move {
        let Call {
            room_bytes, reply, ..
        } = call;
        let looked = match native.operation {
            NativeOperation::ReadSnapshot(snapshot) => node.read_snapshot(&native, snapshot).await,
            NativeOperation::CheckSnapshot(snapshot) => node.check_snapshot(&native, snapshot).await,
            _ => Err(Status::SnapshotAborted),
        };
        let (status, bytes) = match looked {
            Ok(bytes) => (Status::Done, bytes),
            Err(status) => (status, Buffer::empty()),
        };
        end(Asker::Queue(reply, room_bytes), bytes, status);
    }));
}

impl CommandHandler for NativeHandler {
    fn submit(&self, call: Call) {
        let Some(node) = self.node.upgrade() else { return };
        let native = match NativeCommand::decode(&fields_of(&call.command)) {
            Ok(native) => native,
            Err(error) => {
                tracing::warn!(%error, "a client's command cannot be read");
                return call
                    .reply
                    .complete(NvmeStatus::INVALID_FIELD_IN_COMMAND, 0, Buffer::empty());
            }
        };
        if let Err((call, status)) = self.start(&node, &native, call) {
            call.reply.complete(status, 0, Buffer::empty());
        }
    }

    fn closed(&self) {
        let Some(node) = self.node.upgrade() else { return };
        node.forget_located(std::mem::take(&mut *self.located.borrow_mut()));
        for (chunk, request) in node.natives.of_queue(self.number) {
            node.push(Event::Cancel { chunk, request });
        }
    }
}

#[cfg(test)]
mod tests {
    use volume::SnapshotId;

    use super::*;

    #[test]
    fn a_role_has_what_it_is_for() {
        let snapshot = SnapshotId(1);
        for (operation, allowed) in [
            (NativeOperation::Read, [true, true, true]),
            (NativeOperation::Locate { checks: true }, [true, true, true]),
            (NativeOperation::ReadSnapshot(snapshot), [true, true, true]),
            (NativeOperation::CheckSnapshot(snapshot), [true, true, true]),
            (NativeOperation::Write { fua: false }, [true, true, false]),
            (
                NativeOperation::CompareAndWrite { fua: true },
                [true, true, false],
            ),
            (NativeOperation::WriteZeroes { fua: true }, [true, true, false]),
            (NativeOperation::Deallocate { fua: false }, [true, true, false]),
            (NativeOperation::DeallocateRun { fua: false }, [true, true, false]),
            (NativeOperation::Fence, [true, true, false]),
            (NativeOperation::CompareCopies, [true, true, true]),
            (NativeOperation::Outvote(1), [false, false, false]),
            (NativeOperation::Cut(snapshot), [true, false, false]),
            (NativeOperation::Abandon(snapshot), [true, false, false]),
        ] {
            let roles = [Role::Admin, Role::Client, Role::ReadOnly];
            assert_eq!(
                roles.map(|role| allows(role, &operation)),
                allowed,
                "{operation:?}"
            );
            assert!(!allows(Role::Node, &operation) && !allows(Role::Master, &operation));
        }
    }
}
