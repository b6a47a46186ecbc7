//! The host's end of one connection: which commands are outstanding, what data is due to and from
//! them, and what the controller may send next (specification, sections 3.3 and 3.5).
//!
//! A connection is used like this: [`Initiator::initialize`], send, [`Initiator::receive`] until
//! [`Event::Ready`]. Then for each command [`Initiator::command`], [`Initiator::expect`] when it has
//! data outside its capsule, and the events until [`Event::Response`] or a [`Event::DataComplete`] with
//! `success`. Nothing blocks. A command's identifier is its index in the table, chosen by the caller.

mod commands;

use super::framing::{Framer, Header, Piece, Rules};
use super::pdu::{
    DATA_ALIGNMENT_MAX, Data, FORMAT_VERSION, InitializeRequest, InitializeResponse, Layout,
    MAX_H2C_DATA_BYTES_MIN, PduType, RESPONSE_HEADER_BYTES, ReadyToTransfer, TerminationRequest, TypeSet,
};
use super::termination::{Fault, PeerTermination, Termination};
use crate::nvme::{Command, Completion};
use commands::{Commands, Outstanding};

/// What a host asks of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// HPDA: alignment of the data the controller sends, 0's based, in dwords, at most 31.
    pub data_alignment: u8,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Most R2Ts of a command at once, as a count from 1 (MAXR2T + 1).
    pub max_outstanding_r2t: u32,
    /// Commands at once: identifiers are below this; 1 to 65536.
    pub queue_entries: u32,
}

impl Default for Options {
    /// No digest, no padding, one R2T, 128 commands.
    fn default() -> Self {
        Self {
            data_alignment: 0,
            header_digest: false,
            data_digest: false,
            max_outstanding_r2t: 1,
            queue_entries: 128,
        }
    }
}

/// Where a command's data outside its capsule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the host, as C2HData.
    FromController,
    /// To the controller, as H2CData when R2Ts ask for it.
    ToController,
}

/// What a controller has asked for with one R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The command's identifier.
    pub cid: u16,
    /// The transfer tag to give back.
    pub tag: u16,
    /// Offset in the command's data, in bytes.
    pub offset: u32,
    /// Length, in bytes; not 0.
    pub length: u32,
}

/// What a controller did.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// It accepted the connection on these terms. A host that insists on a digest looks here.
    Ready(InitializeResponse),
    /// It sent some of a command's data, in order.
    Data {
        /// The command's identifier.
        cid: u16,
        /// Where these bytes belong in the command's data, in bytes.
        offset: u32,
        /// The bytes; never empty.
        bytes: &'a [u8],
    },
    /// It sent the last data of a command.
    DataComplete {
        /// The command's identifier.
        cid: u16,
        /// How much data has come altogether, in bytes; may be less than was expected.
        length: u32,
        /// The command has succeeded and is over; no response follows. Otherwise one does.
        success: bool,
        /// Every data digest fitted. When false the command has failed with a transient transport
        /// error, whatever status the controller gives (specification, section 3.5).
        digest_ok: bool,
    },
    /// It completed a command, which is over. Drop every transfer still unsent for it.
    Response {
        /// The completion as it came.
        completion: Completion,
        /// As in [`Event::DataComplete`], for the data that came before.
        digest_ok: bool,
    },
    /// It asks for data: send it with [`Initiator::data_header`].
    Transfer(Transfer),
    /// It ended the connection: close without an answer.
    TargetTermination(PeerTermination),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Asked,
    Open,
}

/// What goes on in the data the framer is in.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    cid: u16,
    last: bool,
    success: bool,
}

/// The host's end of a connection. See the module for how to use it.
pub struct Initiator {
    framer: Framer,
    state: State,
    options: Options,
    max_h2c_data_bytes: u32,
    incoming: Layout,
    outgoing: Layout,
    commands: Commands,
    receiving: Receiving,
}

const BEFORE: TypeSet = TypeSet::of(&[PduType::InitializeResponse, PduType::ControllerTermination]);
const AFTER: TypeSet = TypeSet::of(&[
    PduType::Response,
    PduType::ControllerData,
    PduType::ReadyToTransfer,
    PduType::ControllerTermination,
]);

impl Initiator {
    /// A connection on which no byte has travelled. Allocates its table.
    ///
    /// # Panics
    /// When an option is out of the bounds it documents.
    pub fn new(options: Options) -> Self {
        assert!(
            options.data_alignment <= DATA_ALIGNMENT_MAX,
            "HPDA {} is over 31",
            options.data_alignment
        );
        assert!(
            options.max_outstanding_r2t > 0,
            "a host takes at least one R2T at a time"
        );
        Self {
            framer: Framer::new(),
            state: State::New,
            options,
            max_h2c_data_bytes: MAX_H2C_DATA_BYTES_MIN,
            incoming: Layout::PLAIN,
            outgoing: Layout::PLAIN,
            commands: Commands::new(options.queue_entries),
            receiving: Receiving {
                cid: 0,
                last: false,
                success: false,
            },
        }
    }

    /// Takes bytes off the front of `input` and yields the next event; `None` when it needs more bytes.
    /// Call it until it yields `None`, even when `input` is already empty. After an error or a
    /// termination it swallows everything.
    ///
    /// # Errors
    /// The controller broke the protocol: [`terminate`](Self::terminate), send, close.
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Termination> {
        loop {
            let accepts = if self.state == State::Open { AFTER } else { BEFORE };
            let layout = self.incoming;
            let event = match self.framer.next(input, &Rules { accepts, layout }) {
                Ok(None) => return Ok(None),
                Ok(Some(Piece::Header(header))) => self.on_header(header),
                Ok(Some(Piece::Data(bytes))) => Ok(Some(self.on_data(bytes))),
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
            PduType::InitializeResponse => self.on_initialize().map(Some),
            PduType::Response => self.on_response().map(Some),
            PduType::ControllerData => self.on_controller_data(header).map(|()| None),
            PduType::ReadyToTransfer => self.on_ready_to_transfer().map(Some),
            PduType::ControllerTermination => {
                let termination = self.framer.peer_termination(header);
                Ok(Some(Event::TargetTermination(termination)))
            }
            _ => Err(Fault::UnexpectedType(header.pdu_type as u8)),
        }
    }

    fn on_initialize<'a>(&mut self) -> Result<Event<'a>, Fault> {
        let response = InitializeResponse::from_header(self.framer.fixed());
        if self.state == State::New {
            return Err(Fault::UnexpectedType(PduType::InitializeResponse as u8));
        }
        if response.format_version != FORMAT_VERSION {
            return Err(Fault::FormatVersion(response.format_version));
        }
        if response.data_alignment > DATA_ALIGNMENT_MAX {
            return Err(Fault::DataAlignment(response.data_alignment));
        }
        let options = &self.options;
        if (response.header_digest && !options.header_digest)
            || (response.data_digest && !options.data_digest)
        {
            return Err(Fault::DigestNotRequested);
        }
        let limit = response.max_h2c_data_bytes;
        if limit < MAX_H2C_DATA_BYTES_MIN || !limit.is_multiple_of(4) {
            return Err(Fault::MaxH2cData(limit));
        }
        self.incoming = Layout {
            header_digest: response.header_digest,
            data_digest: response.data_digest,
            data_alignment: options.data_alignment,
        };
        self.outgoing = Layout {
            data_alignment: response.data_alignment,
            ..self.incoming
        };
        self.max_h2c_data_bytes = limit;
        self.state = State::Open;
        Ok(Event::Ready(response))
    }

    fn on_response<'a>(&mut self) -> Result<Event<'a>, Fault> {
        let header: &[u8; RESPONSE_HEADER_BYTES] = self.framer.fixed();
        let (_, entry) = header
            .split_last_chunk::<16>()
            .expect("24 bytes end with 16 bytes");
        let completion = Completion::from_bytes(*entry);
        let cid = u16::from_le_bytes([entry[12], entry[13]]);
        let outstanding = self.commands.find(cid).ok_or(Fault::UnknownCompletion(cid))?;
        let digest_ok = outstanding.digest_ok;
        self.commands.end(cid);
        Ok(Event::Response {
            completion,
            digest_ok,
        })
    }

    fn on_controller_data(&mut self, header: Header) -> Result<(), Fault> {
        let data = Data::from_header(self.framer.fixed());
        if data.success && !data.last {
            return Err(Fault::SuccessWithoutLast(data.cid));
        }
        let command = self
            .commands
            .find(data.cid)
            .ok_or(Fault::UnknownCommand(data.cid))?;
        if data.length != header.data_bytes {
            return Err(Fault::DataLength {
                found: data.length,
                carried: header.data_bytes,
            });
        }
        if command.direction != Some(Direction::FromController) || command.last_seen {
            return Err(Fault::UnexpectedTransfer(data.cid));
        }
        check_range(command, data.offset, data.length)?;
        command.last_seen = data.last;
        self.receiving = Receiving {
            cid: data.cid,
            last: data.last,
            success: data.success,
        };
        Ok(())
    }

    fn on_ready_to_transfer<'a>(&mut self) -> Result<Event<'a>, Fault> {
        let ReadyToTransfer {
            cid,
            tag,
            offset,
            length,
        } = ReadyToTransfer::from_header(self.framer.fixed());
        let limit = self.options.max_outstanding_r2t;
        let command = self.commands.find(cid).ok_or(Fault::UnknownCommand(cid))?;
        if command.direction != Some(Direction::ToController) {
            return Err(Fault::UnexpectedTransfer(cid));
        }
        if length == 0 {
            return Err(Fault::DataLength { found: 0, carried: 0 });
        }
        check_range(command, offset, length)?;
        if command.transfers >= limit {
            return Err(Fault::TransferLimit { cid, limit });
        }
        command.transfers += 1;
        command.moved += length;
        Ok(Event::Transfer(Transfer {
            cid,
            tag,
            offset,
            length,
        }))
    }

    fn on_data<'a>(&mut self, bytes: &'a [u8]) -> Event<'a> {
        let cid = self.receiving.cid;
        let command = self.commands.get_mut(cid);
        let offset = command.moved;
        command.moved += bytes.len() as u32;
        Event::Data { cid, offset, bytes }
    }

    fn on_data_end<'a>(&mut self, digest_ok: bool) -> Option<Event<'a>> {
        let Receiving { cid, last, success } = self.receiving;
        let command = self.commands.get_mut(cid);
        command.digest_ok &= digest_ok;
        let (digest_ok, length) = (command.digest_ok, command.moved);
        if success {
            self.commands.end(cid);
        }
        last.then_some(Event::DataComplete {
            cid,
            length,
            success,
            digest_ok,
        })
    }
}

/// Checks that data or an R2T lies within the command's data and begins where the one before ended.
fn check_range(command: &Outstanding, offset: u32, length: u32) -> Result<(), Fault> {
    if u64::from(offset) + u64::from(length) > u64::from(command.length) {
        return Err(Fault::OutOfRange {
            offset,
            length,
            begin: 0,
            end: command.length,
        });
    }
    if offset != command.moved {
        return Err(Fault::NotContiguous {
            offset,
            expected: command.moved,
        });
    }
    Ok(())
}

/// What the host sends.
impl Initiator {
    /// Appends ICReq, the first PDU of a connection.
    ///
    /// # Panics
    /// When it was called before.
    pub fn initialize(&mut self, out: &mut Vec<u8>) {
        assert_eq!(self.state, State::New, "ICReq goes once");
        let request = InitializeRequest {
            format_version: FORMAT_VERSION,
            data_alignment: self.options.data_alignment,
            header_digest: self.options.header_digest,
            data_digest: self.options.data_digest,
            max_r2t: self.options.max_outstanding_r2t - 1,
        };
        request.put(out);
        self.state = State::Asked;
    }

    /// Appends the capsule of a command, which is outstanding from now on. With `in_capsule_length`,
    /// that many bytes of its data follow, then [`data_trailer`](Self::data_trailer) when
    /// [`has_data_digest`](Self::has_data_digest). The command's SGL is the caller's to fill; what the
    /// controller takes in a capsule the caller knows from IOCCSZ.
    ///
    /// # Panics
    /// Before [`Event::Ready`], when the identifier is not below the queue's entries or is outstanding,
    /// or when the length in the capsule is 0.
    pub fn command(&mut self, command: &Command, in_capsule_length: Option<u32>, out: &mut Vec<u8>) {
        assert_eq!(self.state, State::Open, "a command goes after ICResp");
        let bytes = command.as_bytes();
        let data_bytes = in_capsule_length.unwrap_or(0);
        assert!(
            in_capsule_length != Some(0),
            "a capsule without data has no length of data"
        );
        self.commands.begin(u16::from_le_bytes([bytes[2], bytes[3]]));
        self.outgoing
            .put_header(PduType::Command, 0, bytes, data_bytes, out);
    }

    /// Says how much data outside its capsule an outstanding command has, and where it goes. Without
    /// this any data for it, or R2T, is the controller's fault.
    ///
    /// # Panics
    /// When the command is not outstanding.
    pub fn expect(&mut self, cid: u16, direction: Direction, length: u32) {
        let command = self
            .commands
            .find(cid)
            .expect("a command is sent before its data is expected");
        command.direction = Some(direction);
        command.length = length;
    }

    /// Appends the header of a H2CData with padding, for `length` bytes from `offset` of the command's
    /// data, all within `transfer`; the bytes follow, then [`data_trailer`](Self::data_trailer) when
    /// [`has_data_digest`](Self::has_data_digest). A command's transfers are served in the order they
    /// came, each from its beginning to its end, in pieces of at most
    /// [`max_h2c_data`](Self::max_h2c_data); the one that reaches the end is marked as the last.
    ///
    /// False, and nothing appended, when the command is over or the transfer served: drop it.
    ///
    /// # Panics
    /// When the piece is empty, over the limit, or outside the transfer.
    #[must_use]
    pub fn data_header(&mut self, transfer: &Transfer, offset: u32, length: u32, out: &mut Vec<u8>) -> bool {
        assert!(
            length > 0 && length <= self.max_h2c_data_bytes,
            "{length} bytes in one H2CData, the limit is {}",
            self.max_h2c_data_bytes
        );
        let begin = offset
            .checked_sub(transfer.offset)
            .expect("data lies within what was asked for");
        let left = transfer
            .length
            .checked_sub(begin)
            .expect("data lies within what was asked for");
        assert!(
            length <= left,
            "{length} bytes at {offset} reach beyond {transfer:?}"
        );
        let Some(command) = self.commands.find(transfer.cid) else {
            return false;
        };
        let last = length == left;
        if last {
            command.transfers = command
                .transfers
                .checked_sub(1)
                .expect("a transfer is served once");
        }
        let data = Data {
            cid: transfer.cid,
            tag: transfer.tag,
            offset,
            length,
            last,
            success: false,
        };
        data.put(PduType::HostData, &self.outgoing, out);
        true
    }

    /// Appends the data digest, CRC32C of the data of one PDU.
    ///
    /// # Panics
    /// When data digests are off.
    pub fn data_trailer(&self, crc: u32, out: &mut Vec<u8>) {
        assert!(self.outgoing.data_digest, "data digests are off");
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Appends the H2CTermReq for what [`receive`](Self::receive) returned; nothing may follow it.
    pub fn terminate(&mut self, termination: &Termination, out: &mut Vec<u8>) {
        self.framer.close();
        let request = TerminationRequest {
            status: termination.status as u16,
            information: termination.information,
        };
        request.put(PduType::HostTermination, self.framer.header(), out);
    }

    /// Data digests are on: [`data_trailer`](Self::data_trailer) follows all data.
    pub fn has_data_digest(&self) -> bool {
        self.outgoing.data_digest
    }

    /// Most data of one H2CData, in bytes (MAXH2CDATA); 4096 before [`Event::Ready`].
    pub fn max_h2c_data(&self) -> u32 {
        self.max_h2c_data_bytes
    }

    /// Commands that are not over.
    pub fn outstanding(&self) -> u32 {
        self.commands.outstanding()
    }
}
