//! Requests of native clients: NVM commands with the epoch and the writer's token beside them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use fabrics::target::{Call, CommandHandler, Reply};
use foundation::BlockCount;
use protocols::nvme::Status as NvmeStatus;
use reactor::Buffer;
use volume::message::codec::{NativeCommand, NativeOperation, native_status_code};
use volume::{BlockRange, ChunkId, HostId, Operation, RequestId, Session, Status, VolumeNumber, WriteKind};

use super::peers::fields_of;
use super::{Event, Node, copies};

struct Pending {
    reply: Reply,
    room_bytes: usize,
    read: Buffer,
}

/// Requests that the core has not completed.
#[derive(Default)]
pub(super) struct Natives {
    pending: RefCell<BTreeMap<RequestId, Pending>>,
    next: Cell<u64>,
}

impl Natives {
    fn add(&self, reply: Reply, room_bytes: usize) -> RequestId {
        let id = RequestId(self.next.get() + 1);
        self.next.set(id.0);
        self.pending.borrow_mut().insert(
            id,
            Pending {
                reply,
                room_bytes,
                read: Buffer::empty(),
            },
        );
        id
    }

    /// The bytes of a read have come. They are given to the client only once the core says so.
    pub(super) fn filled(&self, request: RequestId, bytes: Buffer) {
        if let Some(pending) = self.pending.borrow_mut().get_mut(&request) {
            pending.read = bytes;
        }
    }

    pub(super) fn complete(&self, request: RequestId, status: Status) {
        let Some(pending) = self.pending.borrow_mut().remove(&request) else {
            return;
        };
        let Pending {
            reply,
            room_bytes,
            read,
        } = pending;
        match native_status_code(status) {
            None if read.len() <= room_bytes => reply.complete(NvmeStatus::SUCCESS, 0, read),
            None => reply.complete(NvmeStatus::DATA_SGL_LENGTH_INVALID, 0, Buffer::empty()),
            Some((code, result)) => reply.complete(NvmeStatus::new(1, code), result, Buffer::empty()),
        }
    }
}

/// Serves the commands of one queue of one client.
pub(super) fn handler(node: &Rc<Node>, host_id: &[u8; 16]) -> Rc<dyn CommandHandler> {
    let number = |bytes: &[u8]| {
        let mut array = [0; 8];
        array.copy_from_slice(bytes);
        u64::from_le_bytes(array)
    };
    let session = Session {
        host: HostId(number(&host_id[..8])),
        number: number(&host_id[8..]),
    };
    Rc::new(NativeHandler {
        node: Rc::downgrade(node),
        session,
        open: RefCell::default(),
        located: RefCell::default(),
    })
}

struct NativeHandler {
    node: Weak<Node>,
    session: Session,
    /// Requests of this queue, to be cancelled with it. Ended ones are cleared out now and then.
    open: RefCell<Vec<(ChunkId, RequestId)>>,
    /// Chunks that its client reads by the board.
    located: RefCell<BTreeSet<ChunkId>>,
}

impl NativeHandler {
    fn start(&self, node: &Rc<Node>, native: &NativeCommand, call: Call) -> Result<(), (Call, NvmeStatus)> {
        let volume = VolumeNumber(native.volume.0);
        let write = |kind, force_unit_access| Operation::Write {
            kind,
            data: None,
            force_unit_access,
        };
        let (operation, moves) = match native.operation {
            NativeOperation::Read => (Operation::Read, true),
            NativeOperation::Write { fua } => (write(WriteKind::Data, fua), true),
            NativeOperation::WriteZeroes { fua } => (write(WriteKind::Zeroes, fua), false),
            NativeOperation::Deallocate { fua } => (write(WriteKind::Deallocate, fua), false),
            NativeOperation::Fence => (write(WriteKind::Fence, false), false),
            NativeOperation::Flush => (Operation::Flush, false),
            NativeOperation::Locate => (Operation::Read, false),
        };
        let of_chunk = native.operation.is_of_chunk();
        let blocks = if of_chunk { 1 } else { native.blocks };
        let piece = node.copies.with_geometry(volume, |geometry| {
            let pieces = geometry.pieces(native.fields.first_lba, BlockCount(blocks.into()));
            let mut pieces = pieces.map_err(|_| NvmeStatus::LBA_OUT_OF_RANGE)?;
            match (pieces.next(), pieces.next()) {
                (Some(piece), None) => Ok(piece),
                // It would lie in two chunks, or be longer than a piece: the client's geometry is not ours.
                _ => Err(NvmeStatus::INVALID_FIELD_IN_COMMAND),
            }
        });
        let piece = match piece.unwrap_or(Err(NvmeStatus::INVALID_NAMESPACE_OR_FORMAT)) {
            Ok(piece) => piece,
            Err(status) => return Err((call, status)),
        };
        let length = blocks as usize * copies::BLOCK_BYTES;
        let given = if native.operation == NativeOperation::Read {
            call.room_bytes
        } else {
            call.data.len()
        };
        if moves && given != length {
            return Err((call, NvmeStatus::DATA_SGL_LENGTH_INVALID));
        }
        let chunk = ChunkId {
            volume,
            index: piece.chunk,
        };
        if native.operation == NativeOperation::Locate {
            self.locate(node, chunk, call);
            return Ok(());
        }
        let Call {
            data,
            room_bytes,
            reply,
            ..
        } = call;
        let id = node.natives.add(reply, room_bytes);
        self.remember(node, chunk, id);
        let request = volume::Request {
            id,
            operation,
            range: if of_chunk {
                BlockRange::default()
            } else {
                piece.range
            },
            epoch: native.fields.epoch,
            session: self.session,
            writer_token: native.fields.writer_token,
            trace: native.trace,
        };
        let data = (!data.is_empty()).then_some(data);
        node.push(Event::Request { chunk, request, data });
        Ok(())
    }

    /// Answers at once, whatever the core has to do.
    fn locate(&self, node: &Rc<Node>, chunk: ChunkId, call: Call) {
        // A client asks again when something has changed: it counts once.
        if !self.located.borrow_mut().insert(chunk) {
            node.forget_located([chunk]);
        }
        let Some(location) = node.locate(chunk) else {
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
            let pending = node.natives.pending.borrow();
            open.retain(|(_, id)| pending.contains_key(id));
        }
        open.push((chunk, id));
    }
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
            if node.natives.pending.borrow().contains_key(&request) {
                node.push(Event::Cancel { chunk, request });
            }
        }
    }
}
