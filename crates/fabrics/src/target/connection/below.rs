//! Requests of a connection that are in the devices, and what comes back from there.

use std::rc::Rc;

use bdev::{Completion as DeviceCompletion, Data, Sink, Token};
use protocols::nvme::{Completion, NvmOpcode, Status};
use reactor::Buffer;

use super::Connection;
use crate::status::{is_final, status_of, status_of_write};
use crate::target::gate::Gate;

/// In the tag of a device's request, above the slot: the command changes blocks and has passed the namespace's gate.
const CHANGES_BLOCKS: u64 = 1 << 16;

impl Connection {
    /// Says so once a lost connection has nothing left in the devices.
    pub(super) fn settle(&self) {
        if self.ended.get() && self.below.get() == 0 {
            self.queue.drained();
        }
    }

    /// A request's token; with `gate`, the command changes blocks and is inside it.
    pub(in crate::target) fn token(&self, slot: u16, gate: Option<Rc<Gate>>) -> Token {
        self.below.set(self.below.get() + 1);
        let mut tag = u64::from(slot);
        if gate.is_some() {
            tag |= CHANGES_BLOCKS;
            self.state.borrow_mut().slots[usize::from(slot)].gate = gate;
        }
        Token::new(self.own(), tag)
    }

    /// A request is below while the guard lives.
    pub(in crate::target) fn go_below(&self) -> Below {
        self.below.set(self.below.get() + 1);
        Below(self.own())
    }

    pub(super) fn come_up(&self) {
        self.below.set(self.below.get() - 1);
        self.settle();
    }

    /// Whether the command in `slot` changes blocks, or makes changes durable.
    fn is_store(&self, slot: u16) -> bool {
        let command = self.state.borrow().slots[usize::from(slot)].command;
        command.is_some_and(|command| {
            matches!(
                command.nvm_opcode(),
                Some(
                    NvmOpcode::Write
                        | NvmOpcode::WriteZeroes
                        | NvmOpcode::DatasetManagement
                        | NvmOpcode::Flush
                )
            )
        })
    }

    pub(super) fn is_read(&self, slot: u16) -> bool {
        let command = self.state.borrow().slots[usize::from(slot)].command;
        command.is_some_and(|command| command.nvm_opcode() == Some(NvmOpcode::Read))
    }
}

impl Sink for Connection {
    /// A device has finished the command in slot `tag`, perhaps inside `submit`.
    fn complete(&self, tag: u64, completion: DeviceCompletion) {
        let slot = tag as u16;
        if tag & CHANGES_BLOCKS != 0 {
            let gate = self.state.borrow_mut().slots[usize::from(slot)].gate.take();
            if let Some(gate) = gate {
                gate.leave();
            }
        }
        self.come_up();
        if self.ended.get() {
            return;
        }
        let status = match completion.status {
            Ok(()) => Status::SUCCESS,
            Err(error) if self.is_store(slot) => status_of_write(error),
            Err(error) => status_of(error),
        };
        let data = match completion.data {
            Data::Into(buffer) if status.is_success() => buffer.freeze(),
            // Lent by the device; what a write brought goes nowhere.
            Data::From(buffer) if status.is_success() && self.is_read(slot) => buffer,
            _ => Buffer::empty(),
        };
        let mut answer = Completion::new(0, status);
        if is_final(status) {
            answer = answer.with_do_not_retry();
        }
        self.finish_command(slot, answer, data);
        self.ready.notify();
    }
}

/// See [`Connection::go_below`].
pub(in crate::target) struct Below(Rc<Connection>);

impl Drop for Below {
    fn drop(&mut self) {
        self.0.come_up();
    }
}
