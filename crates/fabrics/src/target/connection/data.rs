//! The data that a host sends for a command: in its capsule, or when it is asked for them.

use protocols::nvme::command::DataPointerKind;
use protocols::nvme::{Command, SglDescriptor, Status};
use reactor::{Buffer, BufferMut, spawn, time};

use super::{Connection, State};
use crate::target::queue::{Answer, Queue};

/// The host's data of a command that has not begun.
#[derive(Default)]
pub(super) enum HostData {
    /// It needs none, or none was asked for yet.
    #[default]
    Nothing,
    /// So many bytes follow in the capsule.
    InCapsule(usize),
    /// Goes here as it arrives.
    Into(BufferMut),
    /// All of it, where it was received.
    Whole(Buffer),
    /// All of it, which came in the capsule when no buffer could be had.
    Kept(Vec<u8>),
}

/// Where the dword begins that is held back of a list of so many bytes: its last. What a list of ranges names but for the high half of
/// one address lies before it, and R2Ts ask for whole dwords.
fn list_end(length: usize) -> usize {
    (length - 1) / 4 * 4
}

impl Connection {
    /// Asks the host for the command's data, once there is a buffer for it.
    pub(super) fn ask(&self, slot: u16, length: usize) {
        if !self.may_hold(slot, length) {
            return;
        }
        match self.pool.try_allocate(length) {
            Ok(buffer) => self.ask_into(slot, buffer),
            // `data_length` has refused what is longer than any buffer.
            Err(_) => {
                let connection = self.own();
                let serial = self.wait_for_buffer(slot);
                drop(spawn(async move {
                    if let Ok(buffer) = connection.pool.allocate(length).await
                        && connection.has_buffer(slot, serial)
                    {
                        connection.ask_into(slot, buffer);
                        connection.flush();
                    }
                }));
            }
        }
    }

    fn ask_into(&self, slot: u16, buffer: BufferMut) {
        let mut state = self.state.borrow_mut();
        let State {
            protocol, out, slots, ..
        } = &mut *state;
        let length = u32::try_from(buffer.len()).expect("pool buffers are at most 1 MiB");
        let entry = &mut slots[usize::from(slot)];
        entry.data = HostData::Into(buffer);
        entry.due = Some(time::turn());
        self.progress.gathering.set(self.progress.gathering.get() + 1);
        let held_back = match entry.command {
            Some(command) => self.held_back(&command, length),
            None => 0,
        };
        protocol.request_data_but(slot, length, held_back, out.headers());
    }

    /// How much of a command's data is asked for only when leave is there, which needs to know the rest, in bytes.
    fn held_back(&self, command: &Command, length: u32) -> u32 {
        match self.queue.get() {
            Queue::Io(io) if io.is_led_by_data(command) => match list_end(length as usize) {
                // Too short to be a list: it is refused as it is.
                0 => 0,
                end => length - end as u32,
            },
            _ => 0,
        }
    }

    /// All of a command's data have come but for what was held back: that is asked for when there is leave for what they name.
    pub(super) fn part_filled(&self, slot: u16, digest_ok: bool) {
        let (command, asked) = {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            entry.due = None;
            let Some(command) = entry.command else { return };
            let asked = match (self.queue.get(), &entry.data) {
                (Queue::Io(io), HostData::Into(buffer)) if digest_ok => {
                    let length = buffer.len();
                    io.leave_for_list(&command, &buffer[..list_end(length)], length)
                }
                (Queue::Io(_), HostData::Into(_)) => Err(Answer::status(Status::TRANSIENT_TRANSPORT_ERROR)),
                _ => Err(Answer::status(Status::INTERNAL_ERROR)),
            };
            (command, asked)
        };
        self.progress.gathering.set(self.progress.gathering.get() - 1);
        match asked {
            Ok(None) => self.ask_rest(slot),
            Ok(Some(leave)) => self.wait_for_leave(slot, command, leave, Self::ask_rest),
            Err(answer) => {
                self.state.borrow_mut().slots[usize::from(slot)].data = HostData::Nothing;
                self.fail(slot, &command, answer);
            }
        }
    }

    fn ask_rest(&self, slot: u16) {
        let mut state = self.state.borrow_mut();
        let State {
            protocol, out, slots, ..
        } = &mut *state;
        slots[usize::from(slot)].due = Some(time::turn());
        self.progress.gathering.set(self.progress.gathering.get() + 1);
        protocol.request_rest(slot, out.headers());
    }

    /// Takes in some of a command's data; `shared` if what they are part of can be kept.
    pub(super) fn fill(&self, slot: u16, offset: u32, bytes: &[u8], shared: Option<&Buffer>) {
        self.progress.note_received();
        let mut state = self.state.borrow_mut();
        // With a digest the command waits for more bytes, perhaps for long, and what is received lies in memory that all
        // connections share.
        let shared = shared.filter(|_| !state.protocol.has_data_digest());
        let entry = &mut state.slots[usize::from(slot)];
        if let HostData::InCapsule(length) = entry.data {
            let is_whole = bytes.len() == length;
            if is_whole
                && let Some(whole) = shared.and_then(|shared| shared.slice_of(bytes))
                && entry.command.is_some_and(|command| self.ends_at_once(&command))
            {
                entry.data = HostData::Whole(whole);
                return;
            }
            entry.data = match self.pool.try_allocate(length) {
                Ok(buffer) => HostData::Into(buffer),
                Err(_) => HostData::Kept(vec![0; length]),
            };
        }
        let place = match &mut entry.data {
            HostData::Into(buffer) => &mut buffer[..],
            HostData::Kept(kept) => &mut kept[..],
            _ => return,
        };
        let start = offset as usize;
        place[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether the device that is to have a command's data lets go of them when it is given them.
    fn ends_at_once(&self, command: &Command) -> bool {
        !self.queue.is_barred() && matches!(self.queue.get(), Queue::Io(io) if io.ends_at_once(command))
    }

    /// All of a command's data have come: starts it.
    pub(super) fn filled(&self, slot: u16, digest_ok: bool) {
        let (command, data) = {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            entry.due = None;
            (entry.command, std::mem::take(&mut entry.data))
        };
        let Some(command) = command else { return };
        self.progress.gathering.set(self.progress.gathering.get() - 1);
        let is_offset = matches!(command.sgl(), SglDescriptor::InCapsule { offset, .. } if offset > 0);
        match data {
            // ICDOFF is 0: in-capsule data begins where the capsule's data begins.
            _ if command.data_pointer_kind() != DataPointerKind::Sgl => {
                self.fail(slot, &command, Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
            }
            _ if is_offset => self.fail(slot, &command, Answer::refuse(Status::SGL_OFFSET_INVALID)),
            _ if !digest_ok => {
                self.fail(slot, &command, Answer::status(Status::TRANSIENT_TRANSPORT_ERROR));
            }
            HostData::Into(buffer) => self.execute(slot, command, buffer.freeze()),
            HostData::Whole(bytes) => self.execute(slot, command, bytes),
            HostData::Kept(kept) => self.execute_kept(slot, command, kept),
            HostData::Nothing | HostData::InCapsule(_) => {
                self.fail(slot, &command, Answer::status(Status::INTERNAL_ERROR));
            }
        }
    }

    /// Starts a command once there is a buffer for its data, which are here: a host would repeat one that was refused a few times at
    /// once, and then tell whoever asked that the disk has failed.
    fn execute_kept(&self, slot: u16, command: Command, kept: Vec<u8>) {
        let connection = self.own();
        let serial = self.wait_for_buffer(slot);
        drop(spawn(async move {
            if let Ok(mut buffer) = connection.pool.allocate(kept.len()).await
                && connection.has_buffer(slot, serial)
            {
                buffer.copy_from_slice(&kept);
                connection.execute(slot, command, buffer.freeze());
                connection.flush();
            }
        }));
    }
}
