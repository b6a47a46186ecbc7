//! Ends what a connection's host has begun on a namespace, for Preempt and Abort.

use std::time::Duration;

use protocols::nvme::command::Fuse;
use protocols::nvme::{NvmOpcode, Status};
use reactor::mailbox::MailboxSender;
use reactor::{spawn, time};

use super::data::HostData;
use super::{Connection, Slot};
use crate::target::queue::{Answer, Queue};

/// Between two looks at commands that a device has. Looking costs nothing where nobody is preempted; being told would
/// cost each completion something.
const PAUSE: Duration = Duration::from_millis(1);
/// For a Flush of all namespaces.
const BROADCAST_NSID: u32 = 0xffff_ffff;

impl Slot {
    /// Whether it holds a command on the namespace's blocks. Reservation commands are not: one that waits for its
    /// turn must not be waited for by the one whose turn it is.
    fn concerns(&self, nsid: u32) -> bool {
        self.command.is_some_and(|command| {
            let is_reservation = matches!(
                command.nvm_opcode(),
                Some(
                    NvmOpcode::ReservationRegister
                        | NvmOpcode::ReservationAcquire
                        | NvmOpcode::ReservationRelease
                        | NvmOpcode::ReservationReport
                )
            );
            !is_reservation && (command.nsid() == nsid || command.nsid() == BROADCAST_NSID)
        })
    }
}

impl Connection {
    /// Aborts the commands on a namespace that wait, and says so when those that run have ended. Commands whose data
    /// has not come yet are left: they have not begun, and meet the reservation when they do.
    pub(super) fn drain(&self, nsid: u32, done: MailboxSender<()>) {
        if !self.ended.get() {
            self.abort_waiting(nsid);
        }
        let running = self.running(nsid);
        let own = self.own();
        drop(spawn(async move {
            while own.still_runs(&running) {
                time::sleep(PAUSE).await;
            }
            // Who asked may have gone.
            let _ = done.try_send(());
        }));
    }

    fn abort_waiting(&self, nsid: u32) {
        let waiting: Vec<u16> = {
            let state = self.state.borrow();
            let waits = |entry: &Slot| {
                let is_whole = entry
                    .command
                    .is_some_and(|command| command.fuse() == Fuse::Normal);
                entry.waits && is_whole && entry.concerns(nsid)
            };
            (0..=u16::MAX)
                .zip(&state.slots)
                .filter(|(_, entry)| waits(entry))
                .map(|(slot, _)| slot)
                .collect()
        };
        for slot in waiting {
            self.allowance.forget(slot);
            self.answer(slot, Answer::status(Status::ABORTED_PREEMPT_AND_ABORT));
        }
        self.flush();
    }

    /// Commands on a namespace that have begun: slots and serial numbers.
    fn running(&self, nsid: u32) -> Vec<(u16, u64)> {
        let queue = self.queue.get();
        let waits_for_half = |slot| matches!(&queue, Queue::Io(io) if io.waits_for_half(slot));
        let state = self.state.borrow();
        (0..=u16::MAX)
            .zip(&state.slots)
            .filter(|(slot, entry)| {
                let gathers = !matches!(entry.data, HostData::Nothing);
                !entry.waits && !gathers && entry.concerns(nsid) && !waits_for_half(*slot)
            })
            .map(|(slot, entry)| (slot, entry.serial))
            .collect()
    }

    fn still_runs(&self, commands: &[(u16, u64)]) -> bool {
        if self.ended.get() {
            // Slots of a lost connection are not kept up.
            return self.below.get() > 0;
        }
        let state = self.state.borrow();
        commands.iter().any(|(slot, serial)| {
            let entry = &state.slots[usize::from(*slot)];
            entry.serial == *serial && entry.command.is_some()
        })
    }
}
