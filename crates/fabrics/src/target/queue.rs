//! What a connection is: nothing yet, an admin queue, or an I/O queue.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use protocols::nvme::admin::GetLogPage;
use protocols::nvme::command::DataPointerKind;
use protocols::nvme::{AdminOpcode, Command, Completion, DataDirection, SglDescriptor, Status};
use reactor::mailbox::MailboxSender;

use super::admin::AdminQueue;
use super::authentication::Authentication;
use super::connection::SharedController;
use super::io::IoQueue;

/// The most data of one command, in bytes: what MDTS tells the host.
pub const TRANSFER_LIMIT_BYTES: usize = reactor::buffer::BUFFER_BYTES_MAX;
/// What Identify gives, and the longest of the features.
const PAGE_BYTES: u64 = 4096;

/// From a controller to its connections, which may be on other cores. Each is bounded so that a mailbox of
/// [`ORDERS_MAX`] always has room for `End`: one of `Events`, one of `Namespaces` until it is
/// looked at, one of `Drain`, and no more of `Abort` than a host may have outstanding.
pub(super) enum Order {
    /// The association has ended: close.
    End,
    /// Asynchronous events wait to be reported.
    Events,
    /// Namespaces or the access to them changed: let go of those that are no longer there.
    Namespaces,
    /// End the commands on this namespace, and say when that is done.
    Drain(u32, MailboxSender<()>),
    /// Abort the command of this identifier if it has not begun, and say whether that was done.
    Abort(u16, MailboxSender<bool>),
}

/// Orders that a connection's mailbox holds.
pub(super) const ORDERS_MAX: usize = 16;

/// A command's completion with up to a page of data.
pub(super) struct Answer {
    pub(super) completion: Completion,
    pub(super) data: Vec<u8>,
}

impl Answer {
    pub(super) fn status(status: Status) -> Self {
        Self {
            completion: Completion::new(0, status),
            data: Vec::new(),
        }
    }

    /// The command or its parameters are wrong: another attempt will not help.
    pub(super) fn refuse(status: Status) -> Self {
        Self {
            completion: Completion::new(0, status).with_do_not_retry(),
            data: Vec::new(),
        }
    }

    pub(super) fn success() -> Self {
        Self::status(Status::SUCCESS)
    }

    pub(super) fn result(result: u32) -> Self {
        Self {
            completion: Completion::success(0).with_result(result),
            data: Vec::new(),
        }
    }

    pub(super) fn data(data: Vec<u8>) -> Self {
        Self {
            completion: Completion::success(0),
            data,
        }
    }
}

#[derive(Clone)]
pub(super) enum Queue {
    New,
    Admin(Rc<AdminQueue>),
    Io(Rc<IoQueue>),
}

/// An I/O queue's place in its controller, kept until nothing of the queue is left in the devices.
pub(super) struct Membership {
    controller: SharedController,
    qid: u16,
    /// Whether the queue's place waits for its commands. Handlers of a subsystem's own commands look after what
    /// comes late themselves.
    waits: bool,
    left: Cell<bool>,
}

impl Membership {
    pub(super) fn new(controller: SharedController, qid: u16, waits: bool) -> Self {
        let left = Cell::new(false);
        Self {
            controller,
            qid,
            waits,
            left,
        }
    }

    fn lost(&self) {
        if !self.left.get() {
            self.controller.queue_lost(self.qid);
        }
    }

    fn leave(&self) {
        if !self.left.replace(true) {
            self.controller.queue_drained(self.qid);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

pub(super) struct QueueState {
    peer: SocketAddr,
    local: SocketAddr,
    queue: RefCell<Queue>,
    membership: OnceCell<Membership>,
    authentication: OnceCell<Authentication>,
    entries: Cell<u16>,
    head: Cell<u16>,
    /// The last command was the first half of a fused operation.
    expects_half: Cell<bool>,
}

impl QueueState {
    pub(super) fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            peer,
            local,
            queue: RefCell::new(Queue::New),
            membership: OnceCell::new(),
            authentication: OnceCell::new(),
            entries: Cell::new(0),
            head: Cell::new(0),
            expects_half: Cell::new(false),
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn get(&self) -> Queue {
        self.queue.borrow().clone()
    }

    /// Makes the connection a queue of so many entries.
    pub(super) fn connected(&self, queue: Queue, sqsize: u16) {
        *self.queue.borrow_mut() = queue;
        self.entries.set(sqsize);
        // Connect itself was the first command of the queue.
        self.head.set(1);
    }

    /// The connection has a place in a controller from now on.
    pub(super) fn join(&self, membership: Membership) {
        // A connection becomes a queue once; a second membership would leave again at once.
        let _ = self.membership.set(membership);
    }

    /// The connection is lost.
    pub(super) fn lost(&self) {
        if let Some(membership) = self.membership.get() {
            membership.lost();
            if !membership.waits {
                membership.leave();
            }
        }
    }

    /// Nothing of the lost connection is left in the devices.
    pub(super) fn drained(&self) {
        if let Some(membership) = self.membership.get() {
            membership.leave();
        }
    }

    pub(super) fn expects_half(&self) -> bool {
        self.expects_half.get()
    }

    pub(super) fn set_expects_half(&self, expects: bool) {
        self.expects_half.set(expects);
    }

    /// Notes a failed command in its controller's error log, and says so in the completion.
    pub(super) fn note_error(&self, command: &Command, completion: Completion) -> Completion {
        // What a host asks in order to find out is no error.
        if matches!(
            completion.status(),
            Status::COMPARE_FAILURE | Status::ABORT_REQUESTED | Status::ABORTED_FAILED_FUSED
        ) {
            return completion;
        }
        let noted = completion.with_more();
        match &*self.queue.borrow() {
            Queue::New => return completion,
            Queue::Admin(admin) => admin.controller().note_error(0, command, &noted),
            // Handlers answer with statuses of their own, which are not all errors.
            Queue::Io(io) if io.has_handler() => return completion,
            Queue::Io(io) => io.note_error(command, &noted),
        }
        noted
    }

    /// Whether Connect has succeeded.
    pub(super) fn is_connected(&self) -> bool {
        !matches!(*self.queue.borrow(), Queue::New)
    }

    /// The host must authenticate before it uses the queue.
    pub(super) fn require(&self, authentication: Authentication) {
        // A connection becomes a queue once.
        let _ = self.authentication.set(authentication);
    }

    /// The authentication of a queue whose host must.
    pub(super) fn authentication(&self) -> Option<&Authentication> {
        self.authentication.get()
    }

    /// Whether the host has still to authenticate.
    pub(super) fn is_barred(&self) -> bool {
        self.authentication.get().is_some_and(Authentication::bars)
    }

    /// The answer to commands that come too early, before Connect or authentication.
    pub(super) fn too_early(&self) -> Option<Answer> {
        if !self.is_connected() {
            Some(Answer::refuse(Status::COMMAND_SEQUENCE_ERROR))
        } else if self.is_barred() {
            Some(Answer::refuse(Status::AUTHENTICATION_REQUIRED))
        } else {
            None
        }
    }

    pub(super) fn disconnected(&self) {
        let queue = std::mem::replace(&mut *self.queue.borrow_mut(), Queue::New);
        match queue {
            Queue::New => {}
            Queue::Admin(admin) => admin.end(),
            Queue::Io(io) => io.end(),
        }
    }

    /// The host's submission queue head moves on (SQHD, 0 to SQSIZE).
    pub(super) fn command_fetched(&self) {
        let head = self.head.get();
        self.head
            .set(if head >= self.entries.get() { 0 } else { head + 1 });
    }

    pub(super) fn head(&self) -> u16 {
        self.head.get()
    }
}

/// How many bytes the answer of an admin command may be long. What asks for more than a transfer may be is refused.
pub(super) fn answer_bytes(command: &Command) -> usize {
    let asked = match AdminOpcode::from_code(command.opcode()) {
        Some(AdminOpcode::GetLogPage) => GetLogPage::from_command(command).length_bytes(),
        Some(AdminOpcode::Identify | AdminOpcode::GetFeatures) => PAGE_BYTES,
        _ => 0,
    };
    usize::try_from(asked).map_or(TRANSFER_LIMIT_BYTES, |asked| asked.min(TRANSFER_LIMIT_BYTES))
}

/// How many bytes the host is to be asked for before a command without in-capsule data can run.
pub(super) fn data_length(command: &Command) -> Result<usize, Status> {
    if command.data_pointer_kind() != DataPointerKind::Sgl {
        // Over fabrics there are no PRPs, and metadata has no SGL of its own (NVM Express Base Specification 2.0c, figure 87).
        return Err(Status::INVALID_FIELD_IN_COMMAND);
    }
    if command.data_direction() != DataDirection::HostToController {
        return Ok(0);
    }
    match command.sgl() {
        // Fabrics commands have their data in the capsule (NVMe over TCP transport 1.0c, section 3.3.2).
        SglDescriptor::Transport { .. } if command.is_fabrics() => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        SglDescriptor::Transport { length } if length as usize <= TRANSFER_LIMIT_BYTES => Ok(length as usize),
        SglDescriptor::Transport { .. } => Err(Status::INVALID_FIELD_IN_COMMAND),
        SglDescriptor::InCapsule { length: 0, .. } => Ok(0),
        SglDescriptor::InCapsule { .. } => Err(Status::SGL_OFFSET_INVALID),
        _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
    }
}

/// The answer, or the status that the host has no room for its data: it must not get more than it made ready.
pub(super) fn check_room(command: &Command, answer: Answer) -> Answer {
    if answer.data.is_empty() || !answer.completion.status().is_success() {
        return answer;
    }
    match command.sgl() {
        SglDescriptor::Transport { length } if length as usize >= answer.data.len() => answer,
        SglDescriptor::Transport { .. } => Answer::refuse(Status::DATA_SGL_LENGTH_INVALID),
        _ => Answer::refuse(Status::SGL_DESCRIPTOR_TYPE_INVALID),
    }
}
