//! What the client's face needs of whoever carries its commands to the nodes.

use std::rc::Rc;

use bdev::{Data, IoError};

use crate::identity::{ChunkIndex, NodeId};
use crate::message::codec::NativeCommand;
use crate::output::Status;

/// How a command to a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerStatus {
    /// The node answered with a status of the volume's own.
    Answered(Status),
    /// The node answered with another error.
    Failed(IoError),
    /// No connection could be made: the command was never sent.
    Unreachable,
    /// The connection was lost before an answer came: the command may have been done, or may still be.
    Lost,
}

/// A command's end. Data that went with the command comes back, whatever the status.
#[derive(Debug)]
pub struct Answer {
    /// How it ended.
    pub status: PeerStatus,
    /// The command's data; the bytes of a read are defined only if it was done.
    pub data: Data,
}

/// Receives answers; the tag is the one given to [`Reply::new`].
pub trait AnswerSink {
    /// Takes an answer, on the core that submitted the command, perhaps from inside [`Peers::submit`].
    fn answer(&self, tag: u64, answer: Answer);

    /// Whether an answer under this tag is still waited for.
    fn waits(&self, tag: u64) -> bool;
}

/// The duty to answer a command. Dropping it counts as a lost connection, and the data is lost with it.
pub struct Reply {
    sink: Option<Rc<dyn AnswerSink>>,
    tag: u64,
}

impl Reply {
    /// A reply whose answer goes to `sink` under `tag`.
    pub fn new(sink: Rc<dyn AnswerSink>, tag: u64) -> Self {
        Self {
            sink: Some(sink),
            tag,
        }
    }

    /// Whether anybody still waits for the answer. A command that has been given up and not sent must not be sent
    /// any more: whoever gave it up may have written something else since, in a newer session.
    pub fn is_wanted(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.waits(self.tag))
    }

    /// Whether it goes to this sink under this tag.
    pub fn is_for(&self, sink: &Rc<dyn AnswerSink>, tag: u64) -> bool {
        self.tag == tag && self.sink.as_ref().is_some_and(|own| Rc::ptr_eq(own, sink))
    }

    /// Lets it go without an answer: whoever waited has taken the command back.
    pub fn withdraw(mut self) {
        self.sink = None;
    }

    /// Ends the command.
    pub fn answer(mut self, status: PeerStatus, data: Data) {
        if let Some(sink) = self.sink.take() {
            sink.answer(self.tag, Answer { status, data });
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            let status = PeerStatus::Lost;
            let data = Data::None;
            sink.answer(self.tag, Answer { status, data });
        }
    }
}

/// Where a command's blocks lie, which the command itself says by the volume's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The chunk.
    pub chunk: ChunkIndex,
    /// The first block in it; 0 for commands of a whole chunk.
    pub first_block: u32,
}

/// One core's ways to the nodes.
pub trait Peers {
    /// Sends a command; never blocks. `reply` is answered now or later on this core, and within a
    /// bounded time: a node that is silent counts as lost.
    ///
    /// `session` is the session of the association that is to carry the command: an older association has to be
    /// replaced first, and where there is a newer one only, the command ends as [`PeerStatus::Unreachable`]. Carried
    /// by the newer one and lost there, it would be repeated in the session in which it may still arrive. 0 for
    /// commands that any may carry (reads and flushes). A command that waits here, for a connection say, is sent only
    /// if [`Reply::is_wanted`] still.
    fn submit(
        &self,
        node: NodeId,
        session: u64,
        command: NativeCommand,
        place: Place,
        data: Data,
        reply: Reply,
    );

    /// A command for the node was given up: it had no answer until its time was over. A connection on which nothing is
    /// answered any more may be ended then, so that the next command has one that works.
    fn given_up(&self, node: NodeId) {
        let _ = node;
    }

    /// Takes a read back that was submitted with a [`Reply`] for this sink and tag and has not been answered: its buffer,
    /// into which nobody writes any more. Its reply is withdrawn. None if it cannot be had, as where nothing else is said:
    /// then the answer is to be waited for.
    fn take_back(&self, node: NodeId, sink: &Rc<dyn AnswerSink>, tag: u64) -> Option<Data> {
        let _ = (node, sink, tag);
        None
    }
}
