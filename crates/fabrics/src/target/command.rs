//! I/O commands that are not a block device's: a subsystem may hand all of its own to a handler.

use std::rc::Rc;
use std::sync::Arc;

use protocols::nvme::{Command, Completion, Status};
use reactor::Buffer;

use super::connection::Connection;

/// Who sent a command: what it said of itself when it connected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostIdentity {
    /// Its name.
    pub nqn: String,
    /// Its 128-bit identifier.
    pub id: [u8; 16],
}

/// Makes the handler of one host's queue, on the core that serves the queue; none refuses the host.
pub type OpenCommands = Arc<dyn Fn(&HostIdentity) -> Option<Rc<dyn CommandHandler>> + Send + Sync>;

/// Serves the I/O commands of one queue.
pub trait CommandHandler {
    /// Starts a command; never blocks. Its reply may be given now or later on this core.
    fn submit(&self, call: Call);

    /// The queue is gone: replies to its commands reach nobody any more.
    fn closed(&self) {}
}

/// A command with the data that came with it.
pub struct Call {
    /// The command.
    pub command: Command,
    /// Data from the host.
    pub data: Buffer,
    /// Most data that the host takes, in bytes.
    pub room_bytes: usize,
    /// To be given once.
    pub reply: Reply,
}

/// The duty to answer a command. Dropping it answers "aborted".
pub struct Reply {
    connection: Option<Rc<Connection>>,
    slot: u16,
}

impl Reply {
    pub(super) fn new(connection: Rc<Connection>, slot: u16) -> Self {
        Self {
            connection: Some(connection),
            slot,
        }
    }

    /// Answers with a status, DW0 and DW1 of the completion, and data to the host (at most the room it gave).
    pub fn complete(mut self, status: Status, result: u64, data: Buffer) {
        if let Some(connection) = self.connection.take() {
            let completion = Completion::new(0, status).with_result_u64(result);
            connection.reply(self.slot, completion, data);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let completion = Completion::new(0, Status::ABORT_REQUESTED);
            connection.reply(self.slot, completion, Buffer::empty());
        }
    }
}
