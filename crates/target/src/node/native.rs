//! Requests of native clients: NVM commands with the epoch and the writer's token beside them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::Data;
use fabrics::target::{Call, CommandHandler, Reply};
use foundation::{BlockCount, Instant};
use identity::Role;
use identity::data_path::HostName;
use protocols::nvme::Status as NvmeStatus;
use reactor::sync::OneshotSender;
use reactor::{Buffer, time};
use volume::client::PeerStatus;
use volume::message::codec::{Checked, NativeCommand, NativeOperation, native_status_code};
use volume::{BlockRange, ChunkId, HostId, Operation, RequestId, Session, Status, VolumeNumber, WriteKind};

use super::peers::fields_of;
use super::{Event, Node, copies};

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
    /// This node itself: how the read ended, and how many blocks were newly found not to fit.
    Scrub(OneshotSender<(Status, u32)>),
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
    asker: Asker,
    read: Buffer,
    /// What the blocks of a write that compares first are to hold.
    expected: Buffer,
}

/// The low bits of a request's name say where it is kept, the others count.
const PLACE_BITS: u32 = 28;

/// Requests that the core has not completed.
#[derive(Default)]
pub(super) struct Natives {
    pending: RefCell<slab::Slab<Pending>>,
    added: Cell<u64>,
}

fn place_of(request: RequestId) -> usize {
    (request.0 & ((1 << PLACE_BITS) - 1)) as usize
}

impl Natives {
    fn add(&self, asker: Asker) -> RequestId {
        self.added.set(self.added.get() + 1);
        let mut pending = self.pending.borrow_mut();
        let place = pending.vacant_entry();
        // Far more than there is memory for.
        assert!(place.key() < 1 << PLACE_BITS, "requests that nobody completes");
        let id = RequestId(self.added.get() << PLACE_BITS | place.key() as u64);
        place.insert(Pending {
            id,
            asker,
            read: Buffer::empty(),
            expected: Buffer::empty(),
        });
        id
    }

    /// Does something with a request, if it is still there.
    fn with<T>(&self, id: RequestId, act: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        let mut pending = self.pending.borrow_mut();
        let kept = pending.get_mut(place_of(id)).filter(|kept| kept.id == id);
        kept.map(act)
    }

    fn take(&self, id: RequestId) -> Option<Pending> {
        let mut pending = self.pending.borrow_mut();
        let place = place_of(id);
        if pending.get(place).is_none_or(|kept| kept.id != id) {
            return None;
        }
        pending.try_remove(place)
    }

    fn has(&self, id: RequestId) -> bool {
        self.with(id, |_| ()).is_some()
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
        self.add(Asker::Check(Box::new(check)))
    }

    /// The bytes of a read have come. They are given to the client only once the core says so.
    pub(super) fn filled(&self, request: RequestId, bytes: Buffer) {
        self.with(request, |pending| pending.read = bytes);
    }

    /// Blocks that a request read do not fit their checksums, and were not known not to.
    pub(super) fn damaged(&self, request: RequestId, blocks: usize) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.with(request, |pending| {
            if let Asker::Check(check) = &mut pending.asker {
                check.damaged = check.damaged.saturating_add(blocks);
            }
        });
    }

    /// A request has ended; or it is to be made again, under the number that is returned.
    pub(super) fn complete(
        &self,
        request: RequestId,
        status: Status,
        has_sums: impl FnOnce(ChunkId) -> bool,
    ) -> Option<(ChunkId, volume::Request)> {
        let Pending { asker, read, .. } = self.take(request)?;
        match asker {
            Asker::Check(check) if status == Status::NotReady && time::now() < check.until => {
                let (chunk, request) = (check.chunk, check.request);
                let id = self.add(Asker::Check(check));
                return Some((chunk, volume::Request { id, ..request }));
            }
            Asker::Check(check) => {
                let compared = match has_sums(check.chunk) {
                    true => check.request.range.count,
                    false => 0,
                };
                let damaged = check.damaged;
                match check.asker {
                    CheckAsker::Command(reply, room_bytes) => {
                        end_check(reply, room_bytes, status, Checked { compared, damaged });
                    }
                    CheckAsker::Scrub(answer) => answer.send((status, damaged)),
                }
            }
            asker => end(asker, read, status),
        }
        None
    }
}

/// Answers what was checked.
fn end_check(reply: Reply, room_bytes: usize, status: Status, checked: Checked) {
    if let Some((code, result)) = native_status_code(status) {
        return reply.complete(NvmeStatus::new(1, code), result, Buffer::empty());
    }
    match reactor::BufferPool::current().try_allocate(room_bytes) {
        Ok(mut room) if room.len() >= Checked::BYTES => {
            room.fill(0);
            room[..Checked::BYTES].copy_from_slice(&checked.encode());
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
    /// Requests of this queue, to be cancelled with it. Ended ones are cleared out now and then.
    open: RefCell<Vec<(ChunkId, RequestId)>>,
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
        NativeOperation::CountSnapshot(_) => false,
    }
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
        | NativeOperation::ReadSnapshot(_)
        | NativeOperation::CheckSnapshot(_)
        | NativeOperation::CountSnapshot(_) => (Operation::Read, false),
    };
    let of_chunk = native.operation.is_of_chunk();
    let is_change = matches!(operation, Operation::Write { .. });
    let is_run = matches!(native.operation, NativeOperation::DeallocateRun { .. });
    let blocks = if of_chunk || is_run { 1 } else { native.blocks };
    let piece = node.copies.with_geometry(volume, |geometry| {
        let pieces = geometry.pieces(native.fields.first_lba, BlockCount(blocks.into()));
        let mut pieces = pieces.map_err(|_| NvmeStatus::LBA_OUT_OF_RANGE)?;
        match (pieces.next(), pieces.next()) {
            (Some(piece), None) => Ok(piece),
            // It would lie in two chunks, or be longer than a piece: the client's geometry is not ours.
            _ => Err(NvmeStatus::INVALID_FIELD_IN_COMMAND),
        }
    });
    let piece = piece.unwrap_or(Err(NvmeStatus::INVALID_NAMESPACE_OR_FORMAT))?;
    let times = if compares { 2 } else { 1 };
    if moves && given != times * blocks as usize * copies::BLOCK_BYTES {
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
        let id = self.natives.add(asker);
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
            open: RefCell::default(),
            located: RefCell::default(),
        }
    }

    fn start(&self, node: &Rc<Node>, native: &NativeCommand, call: Call) -> Result<(), (Call, NvmeStatus)> {
        // Nodes count each other's copies past here.
        let portals = matches!(
            native.operation,
            NativeOperation::Claim | NativeOperation::CountSnapshot(_)
        );
        let clients = matches!(
            native.operation,
            NativeOperation::Fence
                | NativeOperation::Locate { .. }
                | NativeOperation::Check
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
        let given = if native.operation == NativeOperation::Read {
            call.room_bytes
        } else {
            call.data.len()
        };
        let (chunk, request) = match request_of(node, &native, session, given) {
            Ok(request) => request,
            Err(status) => return Err((call, status)),
        };
        if let NativeOperation::Locate { checks } = native.operation {
            self.locate(node, chunk, checks, call);
            return Ok(());
        }
        let Call {
            data,
            room_bytes,
            reply,
            ..
        } = call;
        let id = node.natives.add(match native.operation {
            NativeOperation::Check => {
                let asker = CheckAsker::Command(reply, room_bytes);
                Asker::Check(Box::new(Check::new(asker, chunk, request)))
            }
            _ => Asker::Queue(reply, room_bytes),
        });
        self.remember(node, chunk, id);
        let data = (!data.is_empty()).then(|| node.natives.take_expected(id, &request, data));
        let request = volume::Request { id, ..request };
        if !node.read_at_once(chunk, &request) {
            node.push(Event::Request { chunk, request, data });
        }
        Ok(())
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

    fn remember(&self, node: &Node, chunk: ChunkId, id: RequestId) {
        let mut open = self.open.borrow_mut();
        if open.len() >= 4096 {
            open.retain(|(_, id)| node.natives.has(*id));
        }
        open.push((chunk, id));
    }
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
        for (chunk, request) in self.open.borrow_mut().drain(..) {
            if node.natives.has(request) {
                node.push(Event::Cancel { chunk, request });
            }
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
