//! One association with one node, and the volume's commands on it.
//!
//! An association belongs to one session. When a newer session replaces it, commands in flight keep it alive
//! until the last of them has ended; then it closes.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bdev::{Data, IoError};
use fabrics::initiator::{CommandResult, CommandSink, ConnectError, ConnectOptions, Controller, Queue};
use protocols::nvme::{Command, Completion, Status as NvmeStatus};
use reactor::spawn;
use slab::Slab;
use volume::Status;
use volume::client::{AnswerSink, PeerStatus, Place, Reply};
use volume::message::codec::{CommandFields, NativeCommand, native_status_from_code};

use crate::past::Past;

/// Status code type of command-specific codes.
const COMMAND_SPECIFIC: u8 = 1;

/// A command under way, and whether it reads blocks: then its answer is as long as it said. Others may be shorter.
struct Asked {
    reply: Reply,
    reads: bool,
}

/// See the module.
pub(crate) struct Connection {
    session: u64,
    controller: Rc<Controller>,
    queues: RefCell<Vec<Rc<Queue>>>,
    queues_max: usize,
    queue_entries: usize,
    opening: Cell<bool>,
    asked: RefCell<Slab<Asked>>,
    past: Past,
    this: Weak<Connection>,
}

impl Connection {
    /// Makes the association and its first queue.
    pub(crate) async fn open(
        options: ConnectOptions,
        session: u64,
        queues_max: usize,
        past: Option<Arc<AtomicU64>>,
    ) -> Result<Rc<Self>, ConnectError> {
        let queue_entries = options.queue_entries.into();
        let controller = Controller::connect(options).await?;
        let queue = controller.open_queue().await?;
        // Only whom the system vouches for is believed when it says what to open here.
        let past = Past::new(past.filter(|_| queue.is_local()));
        let connection = Rc::new_cyclic(|this| Self {
            session,
            controller,
            queues: RefCell::new(vec![queue]),
            queues_max,
            queue_entries,
            opening: Cell::new(false),
            asked: RefCell::default(),
            past,
            this: this.clone(),
        });
        // A node that is silent is known by its keep-alive: then no command is left waiting.
        let (weak, ended) = (Rc::downgrade(&connection), connection.controller.ended());
        drop(spawn(async move {
            ended.await;
            if let Some(connection) = weak.upgrade() {
                connection.close();
            }
        }));
        Ok(connection)
    }

    /// The session its writes belong to.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Whether it, or one of its queues, is gone.
    pub(crate) fn is_ended(&self) -> bool {
        self.controller.is_ended() || self.queues.borrow().iter().any(|queue| queue.is_ended())
    }

    fn close(&self) {
        let queues: Vec<_> = self.queues.borrow().iter().cloned().collect();
        for queue in queues {
            queue.close();
        }
    }

    pub(crate) fn past(&self) -> &Past {
        &self.past
    }

    pub(crate) fn own(&self) -> Weak<Self> {
        self.this.clone()
    }

    /// Reads past the node where that can be, and sends what else there is.
    pub(crate) fn submit(self: &Rc<Self>, command: &NativeCommand, place: Place, data: Data, reply: Reply) {
        if let Some((data, reply)) = self.read_past(command, place, data, reply) {
            self.send(command, data, reply);
        }
    }

    /// Sends a command. It ends with the connection, at the latest.
    pub(crate) fn send(&self, command: &NativeCommand, data: Data, reply: Reply) {
        let queue = self
            .queues
            .borrow()
            .iter()
            .min_by_key(|queue| queue.outstanding())
            .expect("a connection has a queue")
            .clone();
        if queue.outstanding() >= self.queue_entries {
            self.open_another_queue();
        }
        let reads = command.operation.is_read();
        let tag = self.asked.borrow_mut().insert(Asked { reply, reads });
        let sink = self.this.upgrade().expect("the caller holds the connection");
        queue.submit_raw(nvme_command(&command.encode()), data, sink, tag as u64);
    }

    /// Gives up a command whose reply is for this sink and tag, with its data; none if it is not one of the queues'.
    pub(crate) fn take_back(&self, sink: &Rc<dyn AnswerSink>, tag: u64) -> Option<Data> {
        let asked = self.asked.borrow();
        let (index, _) = asked.iter().find(|(_, asked)| asked.reply.is_for(sink, tag))?;
        drop(asked);
        let own: Rc<dyn CommandSink> = self.this.upgrade()?;
        let queues = self.queues.borrow();
        let data = queues
            .iter()
            .find_map(|queue| queue.take_back(&own, index as u64))?;
        self.asked.borrow_mut().remove(index).reply.withdraw();
        Some(data)
    }

    /// Ends queues on which nothing came for so long though commands are under way. One may be dead beside an admin queue that
    /// lives, whose keep-alive says nothing of it.
    pub(crate) fn end_silent(&self, limit: Duration) {
        let queues = self.queues.borrow();
        let silent = queues.iter().filter(|queue| queue.silence() >= limit);
        let silent: Vec<_> = silent.cloned().collect();
        drop(queues);
        for queue in silent {
            tracing::warn!(session = self.session, peer = %queue.peer_address(), "a queue answers nothing: it is ended");
            queue.close();
        }
    }

    /// All queues are full: opens one more, if that is allowed. Commands wait in the full ones meanwhile.
    fn open_another_queue(&self) {
        if self.queues.borrow().len() >= self.queues_max || self.opening.replace(true) {
            return;
        }
        let connection = self.this.upgrade().expect("the caller holds the connection");
        drop(spawn(async move {
            match connection.controller.open_queue().await {
                Ok(queue) => {
                    connection.queues.borrow_mut().push(queue);
                    connection.opening.set(false);
                }
                // What there is will do: `opening` stays set, so that it is not tried again.
                Err(error) => tracing::debug!(%error, "no further queue"),
            }
        }));
    }
}

impl CommandSink for Connection {
    fn ended(&self, tag: u64, result: CommandResult) {
        let index = usize::try_from(tag).expect("tags are slab indices");
        let Asked { reply, reads } = self.asked.borrow_mut().remove(index);
        let status = end_of(&result, reads);
        if status != PeerStatus::Answered(Status::Done) {
            tracing::debug!(session = self.session, ?status, "not done");
        }
        reply.answer(status, result.data);
    }

    fn wants(&self, tag: u64) -> bool {
        let index = usize::try_from(tag).expect("tags are slab indices");
        self.asked
            .borrow()
            .get(index)
            .is_some_and(|asked| asked.reply.is_wanted())
    }
}

/// A command as it travels; identifier and data pointer are the queue's business.
fn nvme_command(fields: &CommandFields) -> Command {
    let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = fields.cdw10_15;
    Command::new(fields.opcode, fields.nsid)
        .with_cdw2(fields.cdw2)
        .with_cdw3(fields.cdw3)
        .with_metadata_pointer(fields.mptr)
        .with_cdw10(cdw10)
        .with_cdw11(cdw11)
        .with_cdw12(cdw12)
        .with_cdw13(cdw13)
        .with_cdw14(cdw14)
        .with_cdw15(cdw15)
}

/// How a command has ended. Of a read that succeeded all bytes have come, or nothing is known of those that have not.
fn end_of(result: &CommandResult, reads: bool) -> PeerStatus {
    match status_of(result.completion) {
        PeerStatus::Answered(Status::Done) if reads && result.is_short() => PeerStatus::Lost,
        status => status,
    }
}

/// What a completion says; without one the connection was lost (`docs/formats/peer.md`).
fn status_of(completion: Option<Completion>) -> PeerStatus {
    let Some(completion) = completion else {
        return PeerStatus::Lost;
    };
    let status = completion.status();
    if status.is_success() {
        return PeerStatus::Answered(Status::Done);
    }
    if status.type_code() == COMMAND_SPECIFIC
        && let Some(native) = native_status_from_code(status.code(), completion.result_u64())
    {
        return PeerStatus::Answered(native);
    }
    match status {
        // The node does not serve the volume (yet, or any more).
        NvmeStatus::INVALID_NAMESPACE_OR_FORMAT => PeerStatus::Answered(Status::NotReady),
        status => PeerStatus::Failed(fabrics::status::error_of(status).err().unwrap_or(IoError::Media)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundation::{Epoch, Lba};
    use volume::message::codec::{NativeFields, NativeOperation, native_status_code};
    use volume::{TraceId, VolumeNumber, WriterToken};

    #[test]
    fn a_command_has_its_fields_and_the_standards() {
        let command = NativeCommand {
            operation: NativeOperation::Write { fua: true },
            volume: VolumeNumber(7),
            fields: NativeFields {
                epoch: Epoch(0x1_0000_0002),
                writer_token: WriterToken(0x3_0000_0004),
                first_lba: Lba(0x5_0000_0006),
            },
            blocks: 8,
            trace: TraceId(0x9_0000_000a),
            portal_token: 0,
        };
        let nvme = nvme_command(&command.encode());
        assert_eq!(
            (nvme.opcode(), nvme.nsid(), nvme.slba()),
            (1, 7, Lba(0x5_0000_0006))
        );
        assert_eq!((nvme.nlb().0, nvme.force_unit_access()), (8, true));
        let fields = CommandFields {
            opcode: nvme.opcode(),
            nsid: nvme.nsid(),
            cdw2: nvme.cdw2(),
            cdw3: nvme.cdw3(),
            mptr: nvme.metadata_pointer(),
            cdw10_15: [
                nvme.cdw10(),
                nvme.cdw11(),
                nvme.cdw12(),
                nvme.cdw13(),
                nvme.cdw14(),
                nvme.cdw15(),
            ],
        };
        assert_eq!(NativeCommand::decode(&fields), Ok(command));
    }

    #[test]
    fn a_read_that_came_in_part_was_not_done() {
        let pool = reactor::BufferPool::new(4 << 20);
        let result = |received_bytes| CommandResult {
            completion: Some(Completion::success(1)),
            data: Data::Into(pool.try_allocate(8192).unwrap()),
            received_bytes,
        };
        assert_eq!(end_of(&result(8192), true), PeerStatus::Answered(Status::Done));
        for received in [0, 4096] {
            assert_eq!(end_of(&result(received), true), PeerStatus::Lost);
            // Where blocks lie, for one, takes less room than there may be.
            assert_eq!(
                end_of(&result(received), false),
                PeerStatus::Answered(Status::Done)
            );
        }
    }

    #[test]
    fn completions_are_understood() {
        assert_eq!(status_of(None), PeerStatus::Lost);
        assert_eq!(
            status_of(Some(Completion::success(1))),
            PeerStatus::Answered(Status::Done)
        );
        for status in [
            Status::StaleEpoch(Epoch(0x1_0000_0002)),
            Status::NotWriteNode(Epoch(3)),
            Status::NotReady,
            Status::FencedWriter(WriterToken(u64::MAX)),
            Status::StaleSession,
            Status::Unknown,
        ] {
            let (code, result) = native_status_code(status).unwrap();
            let completion =
                Completion::new(1, NvmeStatus::new(COMMAND_SPECIFIC, code)).with_result_u64(result);
            assert_eq!(status_of(Some(completion)), PeerStatus::Answered(status));
        }
        let other = |status| status_of(Some(Completion::new(1, status)));
        assert_eq!(
            other(NvmeStatus::UNRECOVERED_READ_ERROR),
            PeerStatus::Failed(IoError::Media)
        );
        assert_eq!(
            other(NvmeStatus::INVALID_QUEUE_SIZE),
            PeerStatus::Failed(IoError::Media)
        );
        let unknown = NvmeStatus::INVALID_NAMESPACE_OR_FORMAT;
        assert_eq!(other(unknown), PeerStatus::Answered(Status::NotReady));
    }
}
