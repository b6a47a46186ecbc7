//! Sample reads: a page of a disk is read for whoever looks after it, past the replication, and how long that took is the answer.

use std::rc::{Rc, Weak};

use fabrics::target::{Call, CommandHandler, Reply};
use protocols::nvme::Status;
use reactor::{Buffer, BufferPool, spawn};
use volume::message::sample::{ANSWER_BYTES, OPCODE, SampleAnswer};

use super::Node;

/// Serves the commands of one queue of a host that reads samples.
pub(super) fn handler(node: &Rc<Node>) -> Rc<dyn CommandHandler> {
    Rc::new(SampleHandler {
        node: Rc::downgrade(node),
    })
}

struct SampleHandler {
    node: Weak<Node>,
}

impl CommandHandler for SampleHandler {
    fn submit(&self, call: Call) {
        let Some(node) = self.node.upgrade() else { return };
        let command = call.command;
        if command.opcode() != OPCODE {
            let status = Status::INVALID_COMMAND_OPCODE;
            return call.reply.complete(status, 0, Buffer::empty());
        }
        if call.room_bytes < ANSWER_BYTES {
            let status = Status::DATA_SGL_LENGTH_INVALID;
            return call.reply.complete(status, 0, Buffer::empty());
        }
        let disk = command.cdw10() as usize;
        let random = u64::from(command.cdw12()) | u64::from(command.cdw13()) << 32;
        drop(spawn(serve(node, disk, random, call.reply)));
    }

    fn closed(&self) {}
}

async fn serve(node: Rc<Node>, disk: usize, random: u64, reply: Reply) {
    let Some(sample) = node.sample_disk(disk, random).await else {
        return reply.complete(Status::INVALID_FIELD_IN_COMMAND, 0, Buffer::empty());
    };
    let answer = SampleAnswer {
        uuid: sample.uuid,
        disks: u32::try_from(node.disk_count()).unwrap_or(u32::MAX),
        took: sample.took,
    };
    let Ok(mut room) = BufferPool::current().try_allocate(ANSWER_BYTES) else {
        return reply.complete(Status::COMMAND_INTERRUPTED, 0, Buffer::empty());
    };
    room.fill(0);
    let head = answer.encode();
    room[..head.len()].copy_from_slice(&head);
    reply.complete(Status::SUCCESS, 0, room.freeze());
}
