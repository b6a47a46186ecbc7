//! The controller's end of one connection: which commands are outstanding, what data is due for them,
//! and what the host may send next (specification, sections 3.3 and 3.5).
//!
//! A connection is used like this: [`Target::receive`] until it yields `None`, answering its events;
//! [`Target::poll_transmit`] for R2Ts that fell due; then send what was appended. Nothing blocks.
//!
//! A command's life: [`Event::Command`] names its slot. In-capsule data follows by itself; other data
//! is asked for with [`Target::request_data`], or in two parts with [`Target::request_data_but`]. Any way [`Event::Payload`] lends the bytes and
//! [`Event::PayloadComplete`] says that all have come. The slot ends with [`Target::response`], with
//! the SUCCESS flag of [`Target::data_header`], or with [`Target::abandon`]. A slot ended while data for
//! it is still due is kept, silently, until that data has come.

mod limits;
mod slots;

use super::framing::{Framer, Header, Piece, Rules};
use super::pdu::{
    ADMIN_IN_CAPSULE_BYTES, DATA_ALIGNMENT_MAX, Data, FORMAT_VERSION, InitializeRequest, InitializeResponse,
    Layout, PduType, ReadyToTransfer, TerminationRequest, TypeSet,
};
use super::termination::{Fault, PeerTermination, Termination};
use crate::nvme::{Command, Completion};
pub use limits::{Limits, LimitsError};
use slots::{Slots, Stage};
use std::collections::VecDeque;

/// Opcode of Fabrics commands (NVM Express Base Specification 2.0, section 6).
const FABRICS_OPCODE: u8 = 0x7f;
/// SGL identifier of in-capsule data: Data Block descriptor (0h), subtype offset (1h) (specification,
/// section 3.3.2, command data buffers and SGLs).
const SGL_IN_CAPSULE: u8 = 0x01;
/// Entries before Connect has told SQSIZE: Connect is alone until it is answered (NVM Express Base
/// Specification 2.0, section 3.3.2.2).
const FIRST_QUEUE_ENTRIES: u32 = 1;

/// What a host did.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// It opened the connection: call [`Target::accept`]. Until then nothing further is read.
    Initialize(InitializeRequest),
    /// It sent a command.
    Command {
        /// The command's place until it is answered.
        slot: u16,
        /// The command as it came.
        command: Command,
        /// Length of the data that follows in the capsule, in bytes; equal to the length in its SGL
        /// when not 0.
        in_capsule_length: u32,
    },
    /// It sent some of a command's data, in order.
    Payload {
        /// The command's place.
        slot: u16,
        /// Where these bytes belong in the command's data, in bytes.
        offset: u32,
        /// The bytes; never empty.
        bytes: &'a [u8],
    },
    /// All data of a command has come but for what [`Target::request_data_but`] held back.
    PartComplete {
        /// The command's place.
        slot: u16,
        /// Every data digest so far fitted.
        digest_ok: bool,
    },
    /// All data of a command has come.
    PayloadComplete {
        /// The command's place.
        slot: u16,
        /// Every data digest fitted. When false the command must fail with Transient Transport Error
        /// (specification, section 3.5, digest error handling); the connection goes on.
        digest_ok: bool,
    },
    /// It ended the connection: close without an answer.
    HostTermination(PeerTermination),
}

/// Which kind of queue Connect has made of a connection; it decides how much a capsule may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// The admin queue: up to 8192 bytes in a capsule.
    Admin,
    /// An I/O queue: as much as IOCCSZ leaves, 8192 bytes for Fabrics commands.
    Io,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only ICReq may come.
    New,
    /// ICReq has come, ICResp has not gone.
    Offered(InitializeRequest),
    /// Commands and data may come.
    Open,
}

/// The controller's end of a connection. See the module for how to use it.
pub struct Target {
    framer: Framer,
    state: State,
    limits: Limits,
    queue_kind: QueueKind,
    /// Most R2Ts of one command at a time, as a count.
    max_r2t: u32,
    incoming: Layout,
    outgoing: Layout,
    slots: Slots,
    /// The slot whose data the framer is in.
    receiving: u16,
    /// Slots with R2Ts due, each at most once.
    due: VecDeque<u16>,
}

const BEFORE: TypeSet = TypeSet::of(&[PduType::InitializeRequest, PduType::HostTermination]);
const AFTER: TypeSet = TypeSet::of(&[PduType::Command, PduType::HostData, PduType::HostTermination]);

impl Default for Target {
    fn default() -> Self {
        Self::new()
    }
}

impl Target {
    /// A connection of which no byte has been read.
    pub fn new() -> Self {
        Self {
            framer: Framer::new(),
            state: State::New,
            limits: Limits::default(),
            queue_kind: QueueKind::Admin,
            max_r2t: 1,
            incoming: Layout::PLAIN,
            outgoing: Layout::PLAIN,
            slots: Slots::new(FIRST_QUEUE_ENTRIES),
            receiving: 0,
            due: VecDeque::with_capacity(FIRST_QUEUE_ENTRIES as usize),
        }
    }

    /// Takes bytes off the front of `input` and yields the next event; `None` when it needs more bytes,
    /// or [`accept`](Self::accept). Call it until it yields `None`, even when `input` is already empty.
    /// After an error or a termination it swallows everything.
    ///
    /// # Errors
    /// The host broke the protocol: [`terminate`](Self::terminate), send, close.
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Termination> {
        loop {
            let accepts = match self.state {
                State::New => BEFORE,
                State::Offered(_) if !self.framer.is_closed() => return Ok(None),
                State::Offered(_) | State::Open => AFTER,
            };
            let layout = self.incoming;
            let step = self.framer.next(input, &Rules { accepts, layout });
            let event = match step {
                Ok(None) => return Ok(None),
                Ok(Some(Piece::Header(header))) => self.on_header(header),
                Ok(Some(Piece::Data(bytes))) => Ok(self.on_data(bytes)),
                Ok(Some(Piece::DataEnd { digest_ok })) => Ok(self.on_data_end(digest_ok)),
                Err(fault) => Err(fault),
            };
            if let Some(outcome) = self.framer.outcome(event) {
                return outcome.map(Some);
            }
        }
    }

    fn on_header<'a>(&mut self, header: Header) -> Result<Option<Event<'a>>, Fault> {
        match header.pdu_type {
            PduType::InitializeRequest => self.on_initialize().map(Some),
            PduType::Command => self.on_command(header).map(Some),
            PduType::HostData => self.on_host_data(header).map(|()| None),
            PduType::HostTermination => {
                let termination = self.framer.peer_termination(header);
                Ok(Some(Event::HostTermination(termination)))
            }
            _ => Err(Fault::UnexpectedType(header.pdu_type as u8)),
        }
    }

    fn on_initialize<'a>(&mut self) -> Result<Event<'a>, Fault> {
        let request = InitializeRequest::from_header(self.framer.fixed());
        if request.format_version != FORMAT_VERSION {
            return Err(Fault::FormatVersion(request.format_version));
        }
        if request.data_alignment > DATA_ALIGNMENT_MAX {
            return Err(Fault::DataAlignment(request.data_alignment));
        }
        self.state = State::Offered(request);
        Ok(Event::Initialize(request))
    }

    fn on_command<'a>(&mut self, header: Header) -> Result<Event<'a>, Fault> {
        let bytes: &[u8; 72] = self.framer.fixed();
        let (_, entry) = bytes
            .split_last_chunk::<64>()
            .expect("72 bytes end with 64 bytes");
        let carried = header.data_bytes;
        if carried > 0 {
            self.check_capsule(entry, header)?;
        }
        let cid = u16::from_le_bytes([entry[2], entry[3]]);
        let command = Command::from_bytes(*entry);
        let slot = self
            .slots
            .open(cid)
            .ok_or(Fault::QueueOverflow(self.slots.entries()))?;
        if carried > 0 {
            let entry = self.slots.get_mut(slot);
            entry.total = carried;
            entry.requested = carried;
            entry.arriving = true;
            self.receiving = slot;
        }
        Ok(Event::Command {
            slot,
            command,
            in_capsule_length: carried,
        })
    }

    /// Checks a capsule with data against what capsules may carry and against its own SGL.
    fn check_capsule(&self, entry: &[u8; 64], header: Header) -> Result<(), Fault> {
        let carried = header.data_bytes;
        let limit = match self.queue_kind {
            QueueKind::Io if entry[0] != FABRICS_OPCODE => self.limits.in_capsule_bytes,
            QueueKind::Io | QueueKind::Admin => ADMIN_IN_CAPSULE_BYTES,
        };
        if carried > limit {
            return Err(Fault::PduLength {
                found: header.pdu_bytes,
                minimum: self.incoming.header_bytes(PduType::Command) as u32,
                maximum: header.pdu_bytes - (carried - limit),
            });
        }
        if entry[39] != SGL_IN_CAPSULE {
            return Err(Fault::CapsuleSgl(entry[39]));
        }
        let described = u32::from_le_bytes([entry[32], entry[33], entry[34], entry[35]]);
        if described != carried {
            return Err(Fault::CapsuleLength { carried, described });
        }
        Ok(())
    }

    fn on_host_data(&mut self, header: Header) -> Result<(), Fault> {
        let data = Data::from_header(self.framer.fixed());
        let entry = self
            .slots
            .transfer(data.tag)
            .ok_or(Fault::UnknownTransferTag(data.tag))?;
        if entry.cid != data.cid {
            return Err(Fault::UnknownCommand(data.cid));
        }
        if data.length != header.data_bytes {
            return Err(Fault::DataLength {
                found: data.length,
                carried: header.data_bytes,
            });
        }
        let limit = self.limits.max_h2c_data_bytes;
        if data.length > limit {
            return Err(Fault::DataLimit {
                length: data.length,
                limit,
            });
        }
        let (begin, end) = entry
            .window(self.limits.r2t_bytes)
            .ok_or(Fault::UnexpectedTransfer(data.cid))?;
        let data_end = u64::from(data.offset) + u64::from(data.length);
        if data.offset < begin || data_end > u64::from(end) {
            return Err(Fault::OutOfRange {
                offset: data.offset,
                length: data.length,
                begin,
                end,
            });
        }
        if data.offset != entry.received {
            return Err(Fault::NotContiguous {
                offset: data.offset,
                expected: entry.received,
            });
        }
        if data.last != (data_end == u64::from(end)) {
            return Err(Fault::LastFlag(data.cid));
        }
        self.receiving = data.tag;
        self.slots.get_mut(data.tag).arriving = true;
        Ok(())
    }

    fn on_data<'a>(&mut self, bytes: &'a [u8]) -> Option<Event<'a>> {
        let slot = self.receiving;
        let entry = self.slots.get_mut(slot);
        let offset = entry.received;
        entry.received += bytes.len() as u32;
        (entry.stage == Stage::Open).then_some(Event::Payload { slot, offset, bytes })
    }

    fn on_data_end<'a>(&mut self, digest_ok: bool) -> Option<Event<'a>> {
        let slot = self.receiving;
        let r2t_bytes = self.limits.r2t_bytes;
        let max_r2t = self.max_r2t;
        let entry = self.slots.get_mut(slot);
        entry.arriving = false;
        entry.digest_ok &= digest_ok;
        let finished = entry.received == entry.total;
        if entry.stage == Stage::Draining {
            if entry.received == entry.requested {
                self.slots.free(slot);
            }
            return None;
        }
        if finished {
            let digest_ok = entry.digest_ok;
            return Some(match entry.held_back {
                0 => Event::PayloadComplete { slot, digest_ok },
                _ => Event::PartComplete { slot, digest_ok },
            });
        }
        if !entry.queued && entry.requested < entry.total && entry.outstanding_r2t(r2t_bytes) < max_r2t {
            entry.queued = true;
            self.due.push_back(slot);
        }
        None
    }
}

/// What the controller sends.
impl Target {
    /// Answers [`Event::Initialize`]: appends ICResp. Digests are on when the host asked and `limits`
    /// allow.
    ///
    /// # Panics
    /// When there was no such event, or `limits` break their own rules ([`Limits::check`]).
    pub fn accept(&mut self, limits: Limits, out: &mut Vec<u8>) {
        let State::Offered(request) = self.state else {
            panic!(
                "ICResp answers ICReq, and the connection is in state {:?}",
                self.state
            );
        };
        limits
            .check()
            .expect("limits are checked where they are configured");
        let response = InitializeResponse {
            format_version: FORMAT_VERSION,
            data_alignment: limits.data_alignment,
            header_digest: request.header_digest && limits.header_digest,
            data_digest: request.data_digest && limits.data_digest,
            max_h2c_data_bytes: limits.max_h2c_data_bytes,
        };
        response.put(out);
        self.incoming = Layout {
            header_digest: response.header_digest,
            data_digest: response.data_digest,
            data_alignment: limits.data_alignment,
        };
        self.outgoing = Layout {
            data_alignment: request.data_alignment,
            ..self.incoming
        };
        self.max_r2t = request.max_r2t.saturating_add(1).min(limits.max_outstanding_r2t);
        self.limits = limits;
        self.state = State::Open;
    }

    /// Makes room for as many commands at once as the queue has entries (SQSIZE + 1), and settles what
    /// its capsules may carry. Outstanding commands keep their slots. Allocates.
    ///
    /// # Panics
    /// When `entries` is 0 or over 65536, or shrinks the queue.
    pub fn set_queue_size(&mut self, entries: u32, kind: QueueKind) {
        self.slots.grow(entries);
        self.due.reserve(entries as usize);
        self.queue_kind = kind;
    }

    /// Asks the host for `total_length` bytes of data for a command: appends as many R2Ts as host and
    /// limits allow, and leaves the others to [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Panics
    /// When the slot is not open, has asked before, has data in its capsule, or the length is 0.
    pub fn request_data(&mut self, slot: u16, total_length: u32, out: &mut Vec<u8>) {
        self.request_data_but(slot, total_length, 0, out);
    }

    /// As [`request_data`](Self::request_data), but leaves the last `held_back` bytes to [`request_rest`](Self::request_rest).
    ///
    /// # Panics
    /// As there; and when everything is held back.
    pub fn request_data_but(&mut self, slot: u16, total_length: u32, held_back: u32, out: &mut Vec<u8>) {
        let entry = self.slots.open_mut(slot);
        assert!(total_length > held_back, "an R2T asks for something");
        assert!(
            entry.total == 0,
            "slot {slot} has already asked for or brought {} bytes",
            entry.total
        );
        entry.total = total_length - held_back;
        entry.held_back = held_back;
        self.put_due(slot, out);
    }

    /// After [`Event::PartComplete`], asks for what was held back.
    ///
    /// # Panics
    /// When the slot is not open, nothing is held back, or not all that comes before it is there.
    pub fn request_rest(&mut self, slot: u16, out: &mut Vec<u8>) {
        let entry = self.slots.open_mut(slot);
        let rest = std::mem::take(&mut entry.held_back);
        assert!(
            rest > 0 && entry.received == entry.total,
            "slot {slot} holds {rest} bytes back, and {} of {} before them have come",
            entry.received,
            entry.total
        );
        entry.split = entry.total;
        entry.total += rest;
        self.put_due(slot, out);
    }

    /// Appends the R2Ts that have fallen due; nothing when none have.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) {
        while let Some(slot) = self.due.pop_front() {
            let entry = self.slots.get_mut(slot);
            entry.queued = false;
            if entry.stage == Stage::Open {
                self.put_due(slot, out);
            }
        }
    }

    fn put_due(&mut self, slot: u16, out: &mut Vec<u8>) {
        let r2t_bytes = self.limits.r2t_bytes;
        let entry = self.slots.get_mut(slot);
        while entry.requested < entry.total && entry.outstanding_r2t(r2t_bytes) < self.max_r2t {
            let length = r2t_bytes.min(entry.total - entry.requested);
            let transfer = ReadyToTransfer {
                cid: entry.cid,
                tag: slot,
                offset: entry.requested,
                length,
            };
            transfer.put(&self.outgoing, out);
            entry.requested += length;
        }
    }

    /// Appends the header of a C2HData with padding; `length` bytes of the command's data from `offset`
    /// follow, then [`data_trailer`](Self::data_trailer) when [`has_data_digest`](Self::has_data_digest).
    /// A command's data goes in order and `last` marks its last PDU. `success` ends the slot, and no
    /// response follows; it is for hosts that disabled SQ flow control (section 3.3.2.1).
    ///
    /// # Panics
    /// When the slot is not open, the length is 0, or `success` comes without `last`.
    pub fn data_header(
        &mut self,
        slot: u16,
        offset: u32,
        length: u32,
        last: bool,
        success: bool,
        out: &mut Vec<u8>,
    ) {
        let entry = self.slots.open_mut(slot);
        assert!(length > 0, "a C2HData carries something");
        assert!(last || !success, "SUCCESS is for the last PDU of a command");
        let data = Data {
            cid: entry.cid,
            tag: 0,
            offset,
            length,
            last,
            success,
        };
        data.put(PduType::ControllerData, &self.outgoing, out);
        if success {
            self.finish(slot);
        }
    }

    /// Appends the data digest, CRC32C of the data of one PDU.
    ///
    /// # Panics
    /// When data digests are off.
    pub fn data_trailer(&self, crc: u32, out: &mut Vec<u8>) {
        assert!(self.outgoing.data_digest, "data digests are off");
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Appends a completion and ends the slot. Safe at any time, but better only after
    /// [`Event::PayloadComplete`] once data was asked for: a host may have dropped the command's buffer
    /// and never send the rest, and until it does the slot stays taken.
    ///
    /// # Panics
    /// When the slot is not open, or the completion is another command's.
    pub fn response(&mut self, slot: u16, completion: &Completion, out: &mut Vec<u8>) {
        let entry = self.slots.open_mut(slot);
        let bytes = completion.as_bytes();
        assert_eq!(
            u16::from_le_bytes([bytes[12], bytes[13]]),
            entry.cid,
            "another command's completion"
        );
        self.outgoing.put_header(PduType::Response, 0, bytes, 0, out);
        self.finish(slot);
    }

    /// Ends a slot without an answer, as when the connection is being given up.
    ///
    /// # Panics
    /// When the slot is not open.
    pub fn abandon(&mut self, slot: u16) {
        self.slots.open_mut(slot);
        self.finish(slot);
    }

    /// Appends the C2HTermReq for what [`receive`](Self::receive) returned; nothing may follow it.
    pub fn terminate(&mut self, termination: &Termination, out: &mut Vec<u8>) {
        self.framer.close();
        let request = TerminationRequest {
            status: termination.status as u16,
            information: termination.information,
        };
        request.put(PduType::ControllerTermination, self.framer.header(), out);
    }

    fn finish(&mut self, slot: u16) {
        let entry = self.slots.get_mut(slot);
        if entry.arriving || entry.received < entry.requested {
            entry.stage = Stage::Draining;
        } else {
            self.slots.free(slot);
        }
    }

    /// Data digests are on: [`data_trailer`](Self::data_trailer) follows all data.
    pub fn has_data_digest(&self) -> bool {
        self.outgoing.data_digest
    }

    /// Commands that have neither been answered nor abandoned, and those whose data still drains.
    pub fn outstanding(&self) -> u32 {
        self.slots.in_use()
    }
}
