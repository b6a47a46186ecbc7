//! The NVM command set on an I/O queue (NVM Command Set Specification 1.0c, section 3).

mod long;
mod reserve;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bdev::{Channel, Data, Leave, Operation, Request, TraceId};
use foundation::{BlockCount, Lba};
use protocols::nvme::command::Fuse;
use protocols::nvme::{Command, Completion, NvmOpcode, SglDescriptor, Status};
use reactor::{Buffer, spawn};

use super::access;
use super::command::{Call, CommandHandler, Reply};
use super::connection::{Connection, SharedController};
use super::fused::{Arrival, Complete, Pairs};
use super::gate::Gate;
use super::histogram::Took;
use super::meter::{Kind, Writer};
use super::queue::{Answer, TRANSFER_LIMIT_BYTES};
use super::reservation::Guard;
use super::share::QueueShare;
use super::subsystem::Subsystem;

pub(super) use long::{COPY_LIMIT_BYTES, COPY_RANGES_MAX};
pub(super) use reserve::refusal as reservation_refusal;

/// Flush and a few others take this for "all namespaces".
const BROADCAST_NSID: u32 = 0xffff_ffff;
/// Blocks of a fused Compare-and-Write, less one (ACWU): what a file or disk writes whole even when power goes.
pub(super) const ATOMIC_COMPARE_AND_WRITE: u16 = 0;

/// One I/O queue's ways to the namespaces.
pub(super) struct IoQueue {
    subsystem: Arc<Subsystem>,
    controller: SharedController,
    qid: u16,
    /// Where the host reached this queue.
    local: SocketAddr,
    share: Arc<QueueShare>,
    /// For commands that reach no namespace, and those of handlers.
    meter: Rc<Writer>,
    /// Takes all commands, where the subsystem is not one of block devices.
    handler: Option<Rc<dyn CommandHandler>>,
    namespaces: RefCell<Namespaces>,
    pairs: RefCell<Pairs<(Command, Buffer)>>,
    /// Copies run one after the other, so that a queue full of them holds one buffer.
    copies: Rc<reactor::sync::Semaphore>,
}

/// An open namespace.
struct Open {
    channel: Rc<dyn Channel>,
    gate: Rc<Gate>,
    /// What a reservation leaves to this host.
    guard: Guard,
    meter: Rc<Writer>,
}

#[derive(Default)]
struct Namespaces {
    version: u64,
    open: Vec<(u32, Rc<Open>)>,
}

impl IoQueue {
    /// `None` if the subsystem's handlers do not want this host.
    pub(super) fn new(
        subsystem: Arc<Subsystem>,
        controller: SharedController,
        qid: u16,
        local: SocketAddr,
        share: Arc<QueueShare>,
    ) -> Option<Rc<Self>> {
        let handler = match subsystem.commands() {
            None => None,
            Some(open) => Some(open(controller.host())?),
        };
        let meter = subsystem.meters().writer(None, share.reactor());
        Some(Rc::new(Self {
            meter,
            subsystem,
            controller,
            qid,
            local,
            share,
            handler,
            namespaces: RefCell::default(),
            pairs: RefCell::default(),
            copies: reactor::sync::Semaphore::new(1),
        }))
    }

    pub(super) fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    /// The socket has a command's answer.
    pub(super) fn note_sent(&self, took: Took) {
        self.share.note_sent(took);
    }

    /// The connection is gone.
    pub(super) fn end(&self) {
        if let Some(handler) = &self.handler {
            handler.closed();
        }
    }

    pub(super) fn note_error(&self, command: &Command, completion: &Completion) {
        self.controller.note_error(self.qid, command, completion);
    }

    /// Lets go of namespaces that are no longer there, so that their devices can be closed.
    pub(super) fn look_at_namespaces(&self) {
        self.share.looking.store(false, Ordering::Release);
        self.namespaces.borrow_mut().refresh(&self.subsystem);
    }

    /// A namespace, opened on first use; all are let go when namespaces or the access to them change.
    fn open(&self, nsid: u32) -> Result<Rc<Open>, Status> {
        let mut namespaces = self.namespaces.borrow_mut();
        if namespaces.version != self.subsystem.version() {
            namespaces.refresh(&self.subsystem);
        }
        if let Some((_, open)) = namespaces.open.iter().find(|(open, _)| *open == nsid) {
            return Ok(open.clone());
        }
        if let Some(status) = access::refusal(self.subsystem.access(self.local, nsid)) {
            return Err(status);
        }
        let found = self
            .subsystem
            .namespace(nsid)
            .zip(self.subsystem.reservations(nsid));
        let Some((namespace, owner)) = found else {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        let opened = match self.subsystem.opener() {
            Some(open) => open(self.controller.host(), self.controller.cntlid),
            None => namespace.device.open_channel(),
        };
        match opened {
            Ok(channel) => {
                let gate = Gate::of(&namespace);
                let guard = Guard::new(owner, self.controller.host().id);
                let meter = self.subsystem.meters().writer(Some(nsid), self.share.reactor());
                let open = Rc::new(Open {
                    channel,
                    gate,
                    guard,
                    meter,
                });
                namespaces.open.push((nsid, open.clone()));
                Ok(open)
            }
            Err(error) => {
                tracing::error!(nqn = self.subsystem.nqn().as_str(), nsid, %error, "a namespace cannot be opened");
                Err(Status::INTERNAL_ERROR)
            }
        }
    }

    /// Has the blocks of a read fetched, if it is one of an open namespace; false for any other command.
    pub(super) fn fetch_ahead(&self, command: &Command) -> bool {
        if command.nvm_opcode() != Some(NvmOpcode::Read)
            || command.fuse() != Fuse::Normal
            || self.handler.is_some()
        {
            return false;
        }
        let namespaces = self.namespaces.borrow();
        let open = namespaces.open.iter().find(|(nsid, _)| *nsid == command.nsid());
        if let Some((_, open)) = open {
            open.channel.will_read(command.slba(), command.nlb());
        }
        open.is_some()
    }

    /// Whether the device of a write or compare has taken its bytes when it is submitted, so that they may lie where they were
    /// received.
    pub(super) fn ends_at_once(&self, command: &Command) -> bool {
        let stores = matches!(command.nvm_opcode(), Some(NvmOpcode::Write | NvmOpcode::Compare));
        if !stores || command.is_fabrics() || command.fuse() != Fuse::Normal || self.handler.is_some() {
            return false;
        }
        let namespaces = self.namespaces.borrow();
        let open = namespaces.open.iter().find(|(nsid, _)| *nsid == command.nsid());
        open.is_some_and(|(_, open)| open.channel.ends_at_once())
    }

    /// Asks the device for leave to write, if it wants to be asked.
    pub(super) fn leave(&self, command: &Command) -> Option<Leave> {
        if command.nvm_opcode() != Some(NvmOpcode::Write) || command.is_fabrics() || self.handler.is_some() {
            return None;
        }
        // What cannot be opened is refused when the command is executed.
        let open = self.open(command.nsid()).ok()?;
        open.channel.leave(&[(command.slba(), command.nlb())])
    }

    /// Whether the data of a command say what it changes, for which there must be leave.
    pub(super) fn is_led_by_data(&self, command: &Command) -> bool {
        self.subsystem.is_exporting()
            && command.nvm_opcode() == Some(NvmOpcode::DatasetManagement)
            && command.dsm_deallocates()
            && !command.is_fabrics()
    }

    /// Looks at the FUSE field of a command that has come, or at one that follows a first half; a status if it cannot
    /// be taken.
    pub(super) fn pair(&self, connection: &Connection, slot: u16, fuse: Fuse) -> Option<Status> {
        if self.handler.is_some() {
            return None;
        }
        let (arrival, late, expecting) = {
            let mut pairs = self.pairs.borrow_mut();
            let (arrival, late) = pairs.arrived(slot, fuse);
            (arrival, late, pairs.is_expecting())
        };
        connection.queue().set_expects_half(expecting);
        if let Some(late) = late {
            connection.answer(late, Answer::status(Status::ABORTED_MISSING_FUSED));
        }
        match arrival {
            Arrival::Take => None,
            Arrival::NoFirst => Some(Status::ABORTED_MISSING_FUSED),
            Arrival::Reserved => Some(Status::INVALID_FIELD_IN_COMMAND),
        }
    }

    /// Whether the command in `slot` is half a fused operation that has not begun.
    pub(super) fn waits_for_half(&self, slot: u16) -> bool {
        self.pairs.borrow().has(slot)
    }

    /// A half of a fused operation is answered before it had its data.
    pub(super) fn half_failed(&self, connection: &Connection, slot: u16) {
        if let Some(other) = self.pairs.borrow_mut().failed(slot) {
            connection.answer(other, Answer::status(Status::ABORTED_FAILED_FUSED));
        }
    }

    /// Counts a command that fails before it is started.
    pub(super) fn measure_failed(&self, connection: &Connection, slot: u16, command: &Command) {
        connection.measure(slot, &self.meter, Kind::of(command), 0);
    }

    /// Starts a command whose data, if the host sends any, has come.
    pub(super) fn execute(&self, connection: &Connection, slot: u16, command: &Command, data: Buffer) {
        let kind = match command.fuse() {
            Fuse::Normal => Kind::of(command),
            _ => Kind::Other,
        };
        let bytes = moved_bytes(kind, command, &data);
        if connection.measure(slot, &self.meter, kind, bytes) {
            // It may come here again after it has waited.
            self.share.note_command(kind);
        }
        if let Some(handler) = &self.handler {
            let room_bytes = match command.sgl() {
                SglDescriptor::Transport { length } => (length as usize).min(TRANSFER_LIMIT_BYTES),
                _ => 0,
            };
            let reply = Reply::new(connection.own(), slot);
            return handler.submit(Call {
                command: *command,
                data,
                room_bytes,
                reply,
            });
        }
        if command.fuse() != Fuse::Normal {
            return self.execute_half(connection, slot, command, data);
        }
        let refuse = |status| connection.answer(slot, refusal(status));
        let Some(opcode) = command.nvm_opcode() else {
            return refuse(Status::INVALID_COMMAND_OPCODE);
        };
        if !self.subsystem.takes(opcode) {
            return refuse(Status::INVALID_COMMAND_OPCODE);
        }
        if opcode == NvmOpcode::Flush && command.nsid() == BROADCAST_NSID {
            return self.flush_all(connection, slot);
        }
        let open = match self.open(command.nsid()) {
            Ok(open) => open,
            Err(status) => return refuse(status),
        };
        connection.measure(slot, &open.meter, kind, bytes);
        if !open.guard.allows(opcode) {
            return refuse(Status::RESERVATION_CONFLICT);
        }
        match opcode {
            NvmOpcode::Read => self.read(connection, &open, slot, command),
            NvmOpcode::Write => {
                let operation = Operation::Write {
                    fua: self.durable(command),
                };
                self.store(connection, &open, slot, command, operation, data);
            }
            NvmOpcode::Compare if self.subsystem.is_exporting() => {
                self.compare_with_read(connection, open, slot, command, data);
            }
            NvmOpcode::Compare => self.store(connection, &open, slot, command, Operation::Compare, data),
            NvmOpcode::Flush => submit(
                connection,
                &open.channel,
                slot,
                Operation::Flush,
                command,
                Data::None,
            ),
            NvmOpcode::WriteZeroes => {
                let operation = Operation::WriteZeroes {
                    deallocate: command.deallocate_requested(),
                    fua: self.durable(command),
                };
                change(connection, &open, slot, operation, command, Data::None);
            }
            NvmOpcode::DatasetManagement => self.manage(connection, open, slot, command, &data),
            NvmOpcode::Verify => self.verify(connection, open, slot, command),
            NvmOpcode::Copy => self.copy(connection, open, slot, command, &data),
            NvmOpcode::ReservationRegister
            | NvmOpcode::ReservationAcquire
            | NvmOpcode::ReservationRelease => {
                self.reserve(connection, &open, slot, opcode, command, &data);
            }
            NvmOpcode::ReservationReport => self.report(connection, &open, slot, command),
            NvmOpcode::WriteUncorrectable => refuse(Status::INVALID_COMMAND_OPCODE),
        }
    }

    /// Whether a write must be durable before it is answered.
    fn durable(&self, command: &Command) -> bool {
        command.force_unit_access() || self.controller.write_through()
    }

    fn read(&self, connection: &Connection, open: &Rc<Open>, slot: u16, command: &Command) {
        let channel = &open.channel;
        let length = match length_bytes(channel, command) {
            Ok(length) => length,
            Err(status) => return connection.answer(slot, Answer::refuse(status)),
        };
        match command.sgl() {
            SglDescriptor::Transport { length: room } if room as usize == length => {}
            SglDescriptor::Transport { .. } => {
                return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID));
            }
            _ => return connection.answer(slot, Answer::refuse(Status::SGL_DESCRIPTOR_TYPE_INVALID)),
        }
        if !connection.may_hold(slot, length) {
            return;
        }
        self.share.note_read(length);
        if channel.lends() {
            return submit(connection, channel, slot, Operation::Read, command, Data::None);
        }
        if let Ok(buffer) = connection.pool().try_allocate(length) {
            return submit(
                connection,
                channel,
                slot,
                Operation::Read,
                command,
                Data::Into(buffer),
            );
        }
        // No buffer is free: wait for one without holding up the queue's other commands.
        let (own, channel, command) = (connection.own(), channel.clone(), *command);
        let serial = connection.wait_for_buffer(slot);
        drop(spawn(async move {
            if let Ok(buffer) = own.pool().allocate(length).await
                && own.has_buffer(slot, serial)
            {
                submit(
                    &own,
                    &channel,
                    slot,
                    Operation::Read,
                    &command,
                    Data::Into(buffer),
                );
            }
        }));
    }

    fn store(
        &self,
        connection: &Connection,
        open: &Rc<Open>,
        slot: u16,
        command: &Command,
        operation: Operation,
        data: Buffer,
    ) {
        match length_bytes(&open.channel, command) {
            Ok(length) if length == data.len() => {}
            Ok(_) => return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
            Err(status) => return connection.answer(slot, Answer::refuse(status)),
        }
        if operation == Operation::Compare {
            self.share.note_read(data.len());
            submit(
                connection,
                &open.channel,
                slot,
                operation,
                command,
                Data::From(data),
            );
        } else {
            self.share.note_write(data.len());
            change(connection, open, slot, operation, command, Data::From(data));
        }
    }

    /// A half of a fused operation has its data.
    fn execute_half(&self, connection: &Connection, slot: u16, command: &Command, data: Buffer) {
        let complete = self.pairs.borrow_mut().complete(slot, (*command, data));
        match complete {
            Complete::Wait => {}
            Complete::Missing => connection.answer(slot, Answer::status(Status::ABORTED_MISSING_FUSED)),
            Complete::Failed => connection.answer(slot, Answer::status(Status::ABORTED_FAILED_FUSED)),
            Complete::Run(first, second) => self.compare_and_write(connection, first, second),
        }
    }
}

impl Namespaces {
    fn refresh(&mut self, subsystem: &Subsystem) {
        // The version first: a change after it is seen the next time.
        self.version = subsystem.version();
        self.open.clear();
    }
}

/// What a command moves if it succeeds: then its data are as long as its blocks.
fn moved_bytes(kind: Kind, command: &Command, data: &Buffer) -> u32 {
    match (kind, command.sgl()) {
        (Kind::Read, SglDescriptor::Transport { length }) => length,
        (Kind::Write, _) => u32::try_from(data.len()).unwrap_or(u32::MAX),
        _ => 0,
    }
}

/// The answer for a status: what concerns the path may succeed later or elsewhere.
fn refusal(status: Status) -> Answer {
    if status.is_path_related() {
        Answer::status(status)
    } else {
        Answer::refuse(status)
    }
}

fn request(
    connection: &Connection,
    slot: u16,
    gate: Option<Rc<Gate>>,
    operation: Operation,
    command: &Command,
    data: Data,
) -> Request {
    let (lba, blocks) = match operation {
        Operation::Flush => (Lba(0), BlockCount(0)),
        _ => (command.slba(), command.nlb()),
    };
    Request {
        operation,
        lba,
        blocks,
        data,
        metadata: None,
        fence: None,
        trace: TraceId::default(),
        token: connection.token(slot, gate),
    }
}

/// Starts what changes nothing.
fn submit(
    connection: &Connection,
    channel: &Rc<dyn Channel>,
    slot: u16,
    operation: Operation,
    command: &Command,
    data: Data,
) {
    channel.submit(request(connection, slot, None, operation, command, data));
}

/// Starts what changes blocks, once no fused operation runs on the namespace.
fn change(
    connection: &Connection,
    open: &Rc<Open>,
    slot: u16,
    operation: Operation,
    command: &Command,
    data: Data,
) {
    if open.gate.try_enter() {
        let gate = Some(open.gate.clone());
        return connection
            .way(slot, &open.channel)
            .submit(request(connection, slot, gate, operation, command, data));
    }
    let (own, open, command) = (connection.own(), open.clone(), *command);
    drop(spawn(async move {
        open.gate.enter().await;
        if own.is_ended() {
            return open.gate.leave();
        }
        let gate = Some(open.gate.clone());
        own.way(slot, &open.channel)
            .submit(request(&own, slot, gate, operation, &command, data));
    }));
}

/// Length of the command's blocks in bytes, if a command may move so many.
fn length_bytes(channel: &Rc<dyn Channel>, command: &Command) -> Result<usize, Status> {
    let geometry = channel.geometry();
    geometry
        .check_range(command.slba(), command.nlb())
        .map_err(|_| Status::LBA_OUT_OF_RANGE)?;
    let bytes = command.nlb().0 * u64::from(geometry.block_bytes);
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= TRANSFER_LIMIT_BYTES => Ok(bytes),
        _ => Err(Status::INVALID_FIELD_IN_COMMAND),
    }
}
