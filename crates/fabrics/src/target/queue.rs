//! What a connection is: nothing yet, an admin queue, or an I/O queue.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use protocols::nvme::{Command, Completion, DataDirection, SglDescriptor, Status};

use super::admin::AdminQueue;
use super::io::IoQueue;

/// The most data of one command, in bytes: what MDTS tells the host.
pub const TRANSFER_LIMIT_BYTES: usize = reactor::buffer::BUFFER_BYTES_MAX;

/// From a controller to its connections, which may be on other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The association has ended: close.
    End,
    /// Asynchronous events wait to be reported.
    Events,
    /// Namespaces came or went: let go of those that went.
    Namespaces,
}

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

pub(super) struct QueueState {
    peer: SocketAddr,
    local: SocketAddr,
    queue: RefCell<Queue>,
    entries: Cell<u16>,
    head: Cell<u16>,
}

impl QueueState {
    pub(super) fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            peer,
            local,
            queue: RefCell::new(Queue::New),
            entries: Cell::new(0),
            head: Cell::new(0),
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

    /// Whether Connect has succeeded.
    pub(super) fn is_connected(&self) -> bool {
        !matches!(*self.queue.borrow(), Queue::New)
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

/// How many bytes the host is to be asked for before a command without in-capsule data can run.
pub(super) fn data_length(command: &Command) -> Result<usize, Status> {
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
