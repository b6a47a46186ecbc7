//! PDUs of NVMe/TCP (NVM Express TCP Transport Specification 1.0, sections 3.3 to 3.6), without a socket.

use std::collections::HashMap;

use protocols::nvme::{Command, Completion};
use protocols::tcp::FatalError;
use protocols::tcp::Termination;
use protocols::tcp::initiator::{Direction, Event as HostEvent, Initiator, Options, Transfer};
use protocols::tcp::pdu::{
    CommonHeader, Data, InitializeRequest, InitializeResponse, Layout, PduType, ReadyToTransfer,
    TerminationRequest,
};
use protocols::tcp::target::{Event, Limits, QueueKind, Target};

use crate::input::Input;

/// Every header reads; what is read travels as it was, but for what the specification reserves.
pub(crate) fn pdus(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let common = CommonHeader::from_bytes(input.array());
    assert_eq!(CommonHeader::from_bytes(common.to_bytes()), common);
    if let Some(pdu_type) = PduType::from_code(common.type_code) {
        assert_eq!(pdu_type as u8, common.type_code);
    }
    let layout = Layout {
        header_digest: common.flags & 1 != 0,
        data_digest: common.flags & 2 != 0,
        data_alignment: common.data_offset % 32,
    };
    let mut out = Vec::new();
    let header: [u8; 24] = input.array();
    let data = Data::from_header(&header);
    // With its header, a PDU has less than 4 GiB; none of ours is near that.
    if data.length < u32::MAX - 256 {
        data.put(PduType::HostData, &layout, &mut out);
        assert_eq!(Data::from_header(first(&out)), data);
    }
    out.clear();
    let transfer = ReadyToTransfer::from_header(&header);
    transfer.put(&layout, &mut out);
    assert_eq!(ReadyToTransfer::from_header(first(&out)), transfer);
    out.clear();
    let termination = TerminationRequest::from_header(&header);
    termination.put(PduType::HostTermination, &header, &mut out);
    assert_eq!(TerminationRequest::from_header(first(&out)), termination);
    out.clear();
    let header: [u8; 128] = input.array();
    let request = InitializeRequest::from_header(&header);
    request.put(&mut out);
    assert_eq!(InitializeRequest::from_header(first(&out)), request);
    out.clear();
    let response = InitializeResponse::from_header(&header);
    response.put(&mut out);
    assert_eq!(InitializeResponse::from_header(first(&out)), response);
}

fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes
        .first_chunk()
        .expect("a header is at least as long as its type says")
}

/// What every end of a connection by the peer's fault keeps to: figures 22 and 23 say of which statuses the
/// information means anything, and a field lies within the header.
fn check(termination: &Termination) {
    match termination.status {
        FatalError::InvalidHeaderField | FatalError::UnsupportedParameter => {
            assert!(
                termination.information < 128,
                "field offset {}",
                termination.information
            );
        }
        FatalError::HeaderDigest => {}
        FatalError::Sequence | FatalError::OutOfRange | FatalError::LimitExceeded => {
            assert_eq!(termination.information, 0);
        }
    }
}

/// How the stream is cut: by the kernel as it likes.
fn pieces<'a>(input: &mut Input<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let longest = [1, 7, 24, 73, 200, usize::MAX][input.below(6)];
    let rest = input.rest();
    rest.chunks(longest.min(rest.len().max(1)))
}

/// A host's bytes, after none, ICReq, or ICReq and a command with R2Ts open.
pub(crate) fn target(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setting = input.u8();
    let limits = Limits {
        data_alignment: (setting >> 6 & 1) * 7,
        header_digest: true,
        data_digest: true,
        max_h2c_data_bytes: 4096,
        r2t_bytes: if setting & 32 != 0 { 4096 } else { 12288 },
        max_outstanding_r2t: 2,
        in_capsule_bytes: 1024,
    };
    let kind = if setting & 16 != 0 {
        QueueKind::Admin
    } else {
        QueueKind::Io
    };
    let mut served = Served::new(limits, kind);
    if setting & 1 != 0 {
        let mut start = Vec::new();
        InitializeRequest {
            format_version: 0,
            data_alignment: 0,
            header_digest: setting & 2 != 0,
            data_digest: setting & 4 != 0,
            max_r2t: 3,
        }
        .put(&mut start);
        served.feed(&start).expect("a right ICReq is taken");
    }
    for piece in pieces(&mut input) {
        if let Err(termination) = served.feed(piece) {
            check(&termination);
            let mut out = Vec::new();
            served.target.terminate(&termination, &mut out);
            assert!((24..=152).contains(&out.len()), "{} bytes", out.len());
            let mut more = piece;
            let event = served.target.receive(&mut more);
            assert!(matches!(event, Ok(None)), "nothing follows a fault");
            return;
        }
    }
}

/// Commands of a queue that holds four, answered in different ways.
struct Served {
    target: Target,
    limits: Limits,
    kind: QueueKind,
    /// Identifier, bytes due, and bytes seen, by slot.
    open: HashMap<u16, (u16, u32, u32)>,
}

impl Served {
    fn new(limits: Limits, kind: QueueKind) -> Self {
        Self {
            target: Target::new(),
            limits,
            kind,
            open: HashMap::new(),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), Termination> {
        let mut input = bytes;
        let mut out = Vec::new();
        while let Some(event) = self.target.receive(&mut input)? {
            match event {
                Event::Initialize(_) => {
                    self.target.accept(self.limits, &mut out);
                    self.target.set_queue_size(4, self.kind);
                }
                Event::Command {
                    slot,
                    command,
                    in_capsule_length,
                } => {
                    let cid = command.cid();
                    let before = self.open.insert(slot, (cid, in_capsule_length, 0));
                    assert_eq!(before, None, "slot {slot} is given twice");
                    match command.opcode() % 4 {
                        // At once, though data may still be on its way.
                        0 => self.answer(slot, &mut out),
                        1 if in_capsule_length == 0 => {
                            let length = 1 + u32::from(command.opcode()) * 97;
                            self.open.insert(slot, (cid, length, 0));
                            let held_back = if command.opcode() & 4 == 0 { 0 } else { length / 2 };
                            self.target.request_data_but(slot, length, held_back, &mut out);
                        }
                        2 if in_capsule_length == 0 => {
                            self.target.data_header(slot, 0, 512, true, true, &mut out);
                            self.open.remove(&slot);
                        }
                        _ if in_capsule_length == 0 && command.opcode() & 4 != 0 => {
                            self.target.abandon(slot);
                            self.open.remove(&slot);
                        }
                        _ => {}
                    }
                }
                Event::Payload { slot, offset, bytes } => {
                    let (_, due, seen) = self.open.get_mut(&slot).expect("an open command's data");
                    assert_eq!(offset, *seen, "data comes in order");
                    *seen += bytes.len() as u32;
                    assert!(!bytes.is_empty() && *seen <= *due, "{seen} of {due} bytes");
                }
                Event::PartComplete { slot, .. } => {
                    let (_, due, seen) = self.open[&slot];
                    assert_eq!(seen, due - due / 2, "all data but what was held back has come");
                    self.target.request_rest(slot, &mut out);
                }
                Event::PayloadComplete { slot, .. } => {
                    let (_, due, seen) = self.open[&slot];
                    assert_eq!(seen, due, "all data has come");
                    self.answer(slot, &mut out);
                }
                Event::HostTermination(_) => {}
            }
            self.target.poll_transmit(&mut out);
        }
        assert!(self.target.outstanding() <= 4 && self.open.len() <= 4);
        assert!(
            out.len() <= 256 * (bytes.len() + 1),
            "answers grow with what came"
        );
        Ok(())
    }

    fn answer(&mut self, slot: u16, out: &mut Vec<u8>) {
        let (cid, ..) = self.open.remove(&slot).expect("an open command");
        self.target.response(slot, &Completion::success(cid), out);
    }
}

/// A controller's bytes, while commands of every kind are outstanding.
pub(crate) fn initiator(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setting = input.u8();
    let mut initiator = Initiator::new(Options {
        header_digest: setting & 1 != 0,
        data_digest: setting & 2 != 0,
        max_outstanding_r2t: 1 + u32::from(setting >> 2 & 1),
        queue_entries: 8,
        ..Options::default()
    });
    let mut out = Vec::new();
    initiator.initialize(&mut out);
    if setting & 8 != 0 {
        let mut start = Vec::new();
        InitializeResponse {
            format_version: 0,
            data_alignment: (setting >> 4 & 1) * 3,
            header_digest: setting & 1 != 0 && setting & 32 != 0,
            data_digest: setting & 2 != 0,
            max_h2c_data_bytes: 4096,
        }
        .put(&mut start);
        assert!(matches!(
            initiator.receive(&mut &start[..]),
            Ok(Some(HostEvent::Ready(_)))
        ));
        send_some(&mut initiator, &mut out);
    }
    let mut seen = [0; 8];
    for piece in pieces(&mut input) {
        if let Err(termination) = take(&mut initiator, piece, &mut seen, &mut out) {
            check(&termination);
            out.clear();
            initiator.terminate(&termination, &mut out);
            assert!((24..=152).contains(&out.len()), "{} bytes", out.len());
            return;
        }
    }
}

const LENGTH: u32 = 9000;

/// Reads are 1 and 2, writes 3 and 4, the others have no data.
fn send_some(initiator: &mut Initiator, out: &mut Vec<u8>) {
    for cid in 0..7 {
        initiator.command(&Command::new(2, 1).with_cid(cid), None, out);
    }
    for cid in 1..3 {
        initiator.expect(cid, Direction::FromController, LENGTH);
        initiator.expect(cid + 2, Direction::ToController, LENGTH);
    }
}

fn take(
    initiator: &mut Initiator,
    bytes: &[u8],
    seen: &mut [u32; 8],
    out: &mut Vec<u8>,
) -> Result<(), Termination> {
    let mut input = bytes;
    while let Some(event) = initiator.receive(&mut input)? {
        match event {
            HostEvent::Ready(response) => {
                assert!(response.max_h2c_data_bytes >= 4096);
                send_some(initiator, out);
            }
            HostEvent::Data { cid, offset, bytes } => {
                assert!(cid == 1 || cid == 2, "data for command {cid}");
                let seen = &mut seen[usize::from(cid)];
                assert_eq!(offset, *seen, "data comes in order");
                *seen += bytes.len() as u32;
                assert!(!bytes.is_empty() && *seen <= LENGTH);
            }
            HostEvent::DataComplete { cid, length, .. } => assert_eq!(length, seen[usize::from(cid)]),
            HostEvent::Response { completion, .. } => assert!(completion.cid() < 7),
            HostEvent::Transfer(transfer) => serve(initiator, transfer, out),
            HostEvent::TargetTermination(_) => {}
        }
    }
    assert!(initiator.outstanding() <= 7);
    Ok(())
}

fn serve(initiator: &mut Initiator, transfer: Transfer, out: &mut Vec<u8>) {
    assert!(transfer.cid == 3 || transfer.cid == 4);
    let end = u64::from(transfer.offset) + u64::from(transfer.length);
    assert!(transfer.length > 0 && end <= u64::from(LENGTH), "{transfer:?}");
    let mut offset = transfer.offset;
    while u64::from(offset) < end {
        let length = initiator
            .max_h2c_data()
            .min(transfer.offset + transfer.length - offset);
        out.clear();
        if !initiator.data_header(&transfer, offset, length, out) {
            return;
        }
        offset += length;
    }
}
