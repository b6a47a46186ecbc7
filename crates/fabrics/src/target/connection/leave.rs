//! Leave to change blocks, asked before the host's last bytes are ([`bdev::Channel::leave`]).

use std::rc::Rc;

use bdev::{Channel, Leave};
use protocols::nvme::Command;
use reactor::spawn;

use super::Connection;
use crate::status::{is_final, status_of_write};
use crate::target::queue::{Answer, Queue};

impl Connection {
    /// Whether the bytes of the command in `slot` may be asked for now. If leave is needed, the command is started again when
    /// it is there.
    pub(super) fn has_leave(&self, slot: u16, command: &Command) -> bool {
        let Queue::Io(io) = self.queue.get() else {
            return true;
        };
        if self.state.borrow().slots[usize::from(slot)].leave.is_some() {
            return true;
        }
        let Some(leave) = io.leave(command) else {
            return true;
        };
        let command = *command;
        self.wait_for_leave(slot, command, leave, move |connection, slot| {
            connection.start(slot, command);
        });
        false
    }

    /// Goes on with the command in `slot` by `then` when it has its leave, or answers it.
    pub(super) fn wait_for_leave(
        &self,
        slot: u16,
        command: Command,
        leave: Leave,
        then: impl FnOnce(&Self, u16) + 'static,
    ) {
        let connection = self.own();
        let serial = self.wait_for_buffer(slot);
        drop(spawn(async move {
            let leave = leave.await;
            if !connection.has_buffer(slot, serial) {
                return;
            }
            match leave {
                Ok(channel) => {
                    connection.state.borrow_mut().slots[usize::from(slot)].leave = Some(channel);
                    then(&connection, slot);
                }
                Err(error) => {
                    let status = status_of_write(error);
                    let answer = if is_final(status) {
                        Answer::refuse(status)
                    } else {
                        Answer::status(status)
                    };
                    connection.fail(slot, &command, answer);
                }
            }
            connection.flush();
        }));
    }

    /// Where the command in `slot` is to be submitted: the channel that leave was given with, or else `usual`.
    pub(in crate::target) fn way(&self, slot: u16, usual: &Rc<dyn Channel>) -> Rc<dyn Channel> {
        let leave = self.state.borrow_mut().slots[usize::from(slot)].leave.take();
        leave.unwrap_or_else(|| usual.clone())
    }
}
