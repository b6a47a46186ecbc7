//! Whatever a host does wrong ends its connection with the fatal error status that the TCP Transport
//! Specification 1.0 gives it (sections 3.3 and 3.5), or fails its command; nothing panics.

use foundation::checksum::crc32c;
use proptest::prelude::*;
use protocols::nvme::Completion;
use protocols::tcp::pdu::{Data, InitializeRequest, Layout, PduType, TerminationRequest};
use protocols::tcp::target::{Event, Limits, QueueKind, Target};
use protocols::tcp::{FatalError, PeerTermination, Termination};

const LIMITS: Limits = Limits {
    data_alignment: 0,
    header_digest: true,
    data_digest: true,
    max_h2c_data_bytes: 8192,
    r2t_bytes: 16384,
    max_outstanding_r2t: 2,
    in_capsule_bytes: 4096,
};

fn request(header_digest: bool, data_digest: bool) -> InitializeRequest {
    InitializeRequest {
        format_version: 0,
        data_alignment: 0,
        header_digest,
        data_digest,
        max_r2t: 3,
    }
}

fn open_with(limits: Limits, header_digest: bool, data_digest: bool, kind: QueueKind) -> Target {
    let mut target = Target::new();
    let mut bytes = Vec::new();
    request(header_digest, data_digest).put(&mut bytes);
    assert!(matches!(
        target.receive(&mut &bytes[..]),
        Ok(Some(Event::Initialize(_)))
    ));
    target.accept(limits, &mut Vec::new());
    target.set_queue_size(4, kind);
    target
}

fn open() -> Target {
    open_with(LIMITS, false, false, QueueKind::Io)
}

/// A capsule header without digests; `length` bytes of data are to follow.
fn capsule(opcode: u8, cid: u16, length: u32) -> Vec<u8> {
    let mut entry = [0; 64];
    entry[0] = opcode;
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = 0x01;
    let mut out = Vec::new();
    Layout::PLAIN.put_header(PduType::Command, 0, &entry, length, &mut out);
    out
}

fn host_data(data: Data) -> Vec<u8> {
    let mut out = Vec::new();
    data.put(PduType::HostData, &Layout::PLAIN, &mut out);
    out.resize(out.len() + data.length as usize, 0xdd);
    out
}

fn initialize() -> Vec<u8> {
    let mut out = Vec::new();
    request(false, false).put(&mut out);
    out
}

fn changed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

/// Feeds bytes and returns how the connection ended, if it did.
fn feed(target: &mut Target, bytes: &[u8]) -> Option<Termination> {
    let mut input = bytes;
    loop {
        match target.receive(&mut input) {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(termination) => return Some(termination),
        }
    }
}

#[track_caller]
fn ends(target: &mut Target, bytes: &[u8], status: FatalError, information: u32) {
    let termination = feed(target, bytes).expect("this ends the connection");
    assert_eq!(
        (termination.status, termination.information),
        (status, information),
        "{termination}"
    );
    // Nothing that follows is read.
    assert_eq!(feed(target, &capsule(0, 0, 0)), None);
    let mut out = Vec::new();
    target.terminate(&termination, &mut out);
    let said = TerminationRequest::from_header(out.first_chunk().unwrap());
    assert_eq!(
        (out[0], said.status, said.information),
        (3, status as u16, information)
    );
    assert!(out.len() > 24 && out.len() <= 152);
    assert_eq!(out[24], bytes[0], "the offender's header comes back");
}

use FatalError::*;

#[test]
fn before_the_connection_is_open() {
    ends(
        &mut Target::new(),
        &changed(initialize(), 0, 0x0a),
        InvalidHeaderField,
        0,
    );
    ends(
        &mut Target::new(),
        &changed(initialize(), 2, 0x7f),
        InvalidHeaderField,
        2,
    );
    ends(
        &mut Target::new(),
        &changed(initialize(), 4, 0x7f),
        InvalidHeaderField,
        4,
    );
    ends(
        &mut Target::new(),
        &changed(initialize(), 8, 1),
        UnsupportedParameter,
        8,
    );
    ends(
        &mut Target::new(),
        &changed(initialize(), 10, 32),
        InvalidHeaderField,
        10,
    );
    ends(&mut Target::new(), &changed(initialize(), 0, 0x01), Sequence, 0);
    ends(&mut Target::new(), &capsule(0, 0, 0), Sequence, 0);
    ends(&mut open(), &initialize(), Sequence, 0);
    ends(&mut open(), &changed(capsule(0, 0, 0), 0, 0x05), Sequence, 0);
}

#[test]
fn headers_and_digests() {
    ends(
        &mut open(),
        &changed(capsule(0, 0, 0), 0, 0xff),
        InvalidHeaderField,
        0,
    );
    ends(
        &mut open(),
        &changed(capsule(0, 0, 0), 1, 0x01),
        InvalidHeaderField,
        1,
    );
    ends(
        &mut open(),
        &changed(capsule(0, 0, 0), 2, 0x40),
        InvalidHeaderField,
        2,
    );
    ends(
        &mut open(),
        &changed(capsule(0, 0, 4), 1, 0x02),
        InvalidHeaderField,
        1,
    );
    let strict = || open_with(LIMITS, true, true, QueueKind::Io);
    ends(&mut strict(), &capsule(0, 0, 0), InvalidHeaderField, 1);
    // Header digest there, data digest not.
    let layout = Layout {
        header_digest: true,
        data_digest: false,
        data_alignment: 0,
    };
    let mut bytes = Vec::new();
    layout.put_header(PduType::Command, 0, &[0; 64], 0, &mut bytes);
    assert_eq!(feed(&mut strict(), &bytes), None, "no data, no data digest");
    let last = bytes.len() - 1;
    let received = crc32c(&bytes[..72]) ^ 0x0100_0000;
    ends(
        &mut strict(),
        &changed(bytes.clone(), last, bytes[last] ^ 1),
        HeaderDigest,
        received,
    );
    let mut bytes = Vec::new();
    layout.put_header(PduType::Command, 0, &[0; 64], 4, &mut bytes);
    ends(&mut strict(), &bytes, InvalidHeaderField, 1);
}

#[test]
fn capsules() {
    // Data that begins within the header, or nowhere, or off the alignment.
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 3, 71),
        InvalidHeaderField,
        3,
    );
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 3, 0),
        InvalidHeaderField,
        3,
    );
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 3, 73),
        InvalidHeaderField,
        3,
    );
    let padded = Limits {
        data_alignment: 31,
        ..LIMITS
    };
    let mut target = open_with(padded, false, false, QueueKind::Io);
    ends(&mut target, &capsule(1, 0, 4), InvalidHeaderField, 3);
    // Lengths: shorter than the data's offset, longer than any capsule, than IOCCSZ, than 8192.
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 4, 72 - 4),
        InvalidHeaderField,
        4,
    );
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 7, 0xff),
        InvalidHeaderField,
        4,
    );
    ends(&mut open(), &capsule(1, 0, 4097), InvalidHeaderField, 4);
    ends(&mut open(), &capsule(0x7f, 0, 8193), InvalidHeaderField, 4);
    let mut admin = open_with(LIMITS, false, false, QueueKind::Admin);
    ends(&mut admin, &capsule(1, 0, 8193), InvalidHeaderField, 4);
    assert_eq!(feed(&mut open(), &capsule(1, 0, 4096)), None);
    assert_eq!(feed(&mut open(), &capsule(0x7f, 0, 8192)), None);
    assert_eq!(
        feed(
            &mut open_with(LIMITS, false, false, QueueKind::Admin),
            &capsule(1, 0, 8192)
        ),
        None
    );
    // An SGL that does not describe what the capsule carries.
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 8 + 39, 0x5a),
        InvalidHeaderField,
        8 + 39,
    );
    ends(
        &mut open(),
        &changed(capsule(1, 0, 4), 8 + 32, 5),
        InvalidHeaderField,
        8 + 32,
    );
    // More commands than the queue has entries; the same identifier twice is the host's own affair.
    let mut target = open();
    for _ in 0..4 {
        assert_eq!(feed(&mut target, &capsule(0, 9, 0)), None);
    }
    assert_eq!(target.outstanding(), 4);
    ends(&mut target, &capsule(0, 10, 0), Sequence, 0);
}

/// A target that has asked for 40000 bytes of command 7 with R2Ts of 16384.
fn asking() -> Target {
    let mut target = open();
    assert_eq!(feed(&mut target, &capsule(1, 7, 0)), None);
    let mut out = Vec::new();
    target.request_data(0, 40_000, &mut out);
    assert_eq!(out.len(), 2 * 24, "two R2Ts at once");
    target
}

const RIGHT: Data = Data {
    cid: 7,
    tag: 0,
    offset: 0,
    length: 8192,
    last: false,
    success: false,
};

#[test]
fn data_nobody_asked_for() {
    assert_eq!(feed(&mut asking(), &host_data(RIGHT)), None);
    ends(&mut open(), &host_data(RIGHT), InvalidHeaderField, 10);
    ends(
        &mut asking(),
        &host_data(Data { tag: 1, ..RIGHT }),
        InvalidHeaderField,
        10,
    );
    ends(
        &mut asking(),
        &host_data(Data { tag: 0xffff, ..RIGHT }),
        InvalidHeaderField,
        10,
    );
    ends(
        &mut asking(),
        &host_data(Data { cid: 8, ..RIGHT }),
        InvalidHeaderField,
        8,
    );
    ends(
        &mut asking(),
        &changed(host_data(RIGHT), 16, 4),
        InvalidHeaderField,
        16,
    );
    ends(
        &mut asking(),
        &changed(host_data(RIGHT), 4, 28),
        InvalidHeaderField,
        16,
    );
    ends(
        &mut asking(),
        &host_data(Data {
            length: 8196,
            ..RIGHT
        }),
        LimitExceeded,
        0,
    );
    ends(
        &mut asking(),
        &host_data(Data {
            offset: 16384,
            ..RIGHT
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut asking(),
        &host_data(Data {
            offset: 8196,
            ..RIGHT
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut asking(),
        &host_data(Data {
            offset: u32::MAX,
            ..RIGHT
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut asking(),
        &host_data(Data { offset: 4, ..RIGHT }),
        Sequence,
        0,
    );
    ends(
        &mut asking(),
        &host_data(Data { last: true, ..RIGHT }),
        Sequence,
        0,
    );
    let mut target = asking();
    assert_eq!(feed(&mut target, &host_data(RIGHT)), None);
    ends(
        &mut target,
        &host_data(Data {
            offset: 8192,
            ..RIGHT
        }),
        Sequence,
        0,
    );
    // All of it has come, and more comes.
    let mut target = open();
    assert_eq!(feed(&mut target, &capsule(1, 7, 0)), None);
    target.request_data(0, 8192, &mut Vec::new());
    assert_eq!(feed(&mut target, &host_data(Data { last: true, ..RIGHT })), None);
    ends(&mut target, &host_data(Data { last: true, ..RIGHT }), Sequence, 0);
}

/// A target that has asked for 16380 of 16384 bytes of command 7, and what it has sent for that.
fn holding_back() -> (Target, Vec<u8>) {
    let mut target = open();
    assert_eq!(feed(&mut target, &capsule(1, 7, 0)), None);
    let mut out = Vec::new();
    target.request_data_but(0, 16_384, 4, &mut out);
    (target, out)
}

#[test]
fn what_is_held_back_comes_when_it_is_asked_for() {
    let first = Data {
        length: 8192,
        ..RIGHT
    };
    let second = Data {
        offset: 8192,
        length: 8188,
        last: true,
        ..RIGHT
    };
    let rest = Data {
        offset: 16_380,
        length: 4,
        last: true,
        ..RIGHT
    };
    let (mut target, mut out) = holding_back();
    assert_eq!(out.len(), 24, "one R2T");
    assert_eq!(events(&mut target, &host_data(first)), ["payload"]);
    assert_eq!(events(&mut target, &host_data(second)), ["payload", "part"]);
    target.poll_transmit(&mut out);
    assert_eq!(out.len(), 24, "nothing is asked for by itself");
    target.request_rest(0, &mut out);
    assert_eq!(out.len(), 48);
    assert_eq!(
        (&out[36..40], &out[40..44]),
        (&[0xfc, 0x3f, 0, 0][..], &[4, 0, 0, 0][..])
    );
    assert_eq!(events(&mut target, &host_data(rest)), ["payload", "complete"]);

    // Unasked it is too early, and in one PDU with what comes before it out of range.
    let (mut target, _) = holding_back();
    assert_eq!(feed(&mut target, &host_data(first)), None);
    assert_eq!(feed(&mut target, &host_data(second)), None);
    ends(&mut target, &host_data(rest), Sequence, 0);
    let (mut target, _) = holding_back();
    assert_eq!(feed(&mut target, &host_data(first)), None);
    let whole = Data {
        length: 8192,
        ..second
    };
    assert!(feed(&mut target, &host_data(whole)).is_some());

    // Answered after the first part: nothing more is due.
    let (mut target, _) = holding_back();
    assert_eq!(feed(&mut target, &host_data(first)), None);
    assert_eq!(feed(&mut target, &host_data(second)), None);
    target.response(0, &completion(7), &mut Vec::new());
    assert_eq!(target.outstanding(), 0);
}

#[test]
fn a_termination_is_believed_only_when_it_is_well_formed() {
    let sent = TerminationRequest {
        status: 2,
        information: 9,
    };
    let mut bytes = Vec::new();
    sent.put(PduType::HostTermination, &[1; 128], &mut bytes);
    for (length, status, information) in [(152, 2, 9), (24, 2, 9), (153, 0, 0), (23, 0, 0)] {
        for mut target in [Target::new(), open()] {
            let bytes = changed(bytes.clone(), 4, length);
            let mut input = &bytes[..];
            let Ok(Some(Event::HostTermination(said))) = target.receive(&mut input) else {
                panic!("the host ends the connection");
            };
            assert_eq!(said, PeerTermination { status, information });
            assert_eq!(feed(&mut target, &initialize()), None);
        }
    }
}

fn completion(cid: u16) -> Completion {
    let mut bytes = [0; 16];
    bytes[12..14].copy_from_slice(&cid.to_le_bytes());
    Completion::from_bytes(bytes)
}

/// What a target sees, without payload bytes.
fn events(target: &mut Target, bytes: &[u8]) -> Vec<&'static str> {
    let mut input = bytes;
    let mut seen = Vec::new();
    while let Some(event) = target.receive(&mut input).unwrap() {
        seen.push(match event {
            Event::Initialize(_) => "initialize",
            Event::Command { .. } => "command",
            Event::Payload { .. } => "payload",
            Event::PartComplete { .. } => "part",
            Event::PayloadComplete { digest_ok: true, .. } => "complete",
            Event::PayloadComplete { digest_ok: false, .. } => "spoilt",
            Event::HostTermination(_) => "termination",
        });
    }
    seen
}

#[test]
fn an_early_answer_swallows_the_data_still_to_come() {
    // In the capsule: the answer goes before the data has come.
    let mut target = open();
    let mut bytes = capsule(1, 7, 100);
    assert_eq!(events(&mut target, &bytes), ["command"]);
    target.response(0, &completion(7), &mut Vec::new());
    assert_eq!(target.outstanding(), 1);
    bytes = vec![1; 100];
    bytes.extend_from_slice(&capsule(0, 8, 0));
    assert_eq!(events(&mut target, &bytes), ["command"]);
    assert_eq!(target.outstanding(), 1);

    // Asked for: two R2Ts are served, the third is never sent.
    let mut target = asking();
    target.abandon(0);
    for offset in [0, 8192, 16384, 24576] {
        assert_eq!(target.outstanding(), 1);
        let last = offset % 16384 != 0;
        assert!(
            events(
                &mut target,
                &host_data(Data {
                    offset,
                    last,
                    ..RIGHT
                })
            )
            .is_empty()
        );
    }
    assert_eq!(target.outstanding(), 0);
    let mut out = Vec::new();
    target.poll_transmit(&mut out);
    assert!(out.is_empty());
    ends(&mut target, &host_data(RIGHT), InvalidHeaderField, 10);
}

#[test]
fn r2ts_fall_due_as_data_arrives() {
    let mut target = asking();
    let mut out = Vec::new();
    target.poll_transmit(&mut out);
    assert!(out.is_empty(), "both allowed R2Ts are open");
    assert_eq!(events(&mut target, &host_data(RIGHT)), ["payload"]);
    target.poll_transmit(&mut out);
    assert!(out.is_empty());
    let second = Data {
        offset: 8192,
        last: true,
        ..RIGHT
    };
    assert_eq!(events(&mut target, &host_data(second)), ["payload"]);
    target.poll_transmit(&mut out);
    // R2TO 32768, R2TL 40000 - 32768.
    assert_eq!(out.len(), 24);
    assert_eq!(out[8..20], [7, 0, 0, 0, 0, 0x80, 0, 0, 0x40, 0x1c, 0, 0]);
}

#[test]
fn a_spoilt_data_digest_fails_the_command_alone() {
    let mut target = open_with(LIMITS, false, true, QueueKind::Io);
    let layout = Layout {
        data_digest: true,
        ..Layout::PLAIN
    };
    let mut entry = [0; 64];
    entry[32] = 8;
    entry[39] = 0x01;
    let data = [5; 8];
    for (flip, said) in [(1, "spoilt"), (0, "complete")] {
        let mut bytes = Vec::new();
        layout.put_header(PduType::Command, 0, &entry, 8, &mut bytes);
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(&(crc32c(&data) ^ flip).to_le_bytes());
        assert_eq!(events(&mut target, &bytes), ["command", "payload", said]);
    }

    // Answered between the last byte and its digest: nothing more is said, and the slot is free.
    let mut bytes = Vec::new();
    layout.put_header(PduType::Command, 0, &entry, 0, &mut bytes);
    assert_eq!(events(&mut target, &bytes), ["command"]);
    target.request_data(2, 8, &mut Vec::new());
    let mut bytes = Vec::new();
    let piece = Data {
        cid: 0,
        tag: 2,
        length: 8,
        last: true,
        ..RIGHT
    };
    piece.put(PduType::HostData, &layout, &mut bytes);
    bytes.extend_from_slice(&data);
    assert_eq!(events(&mut target, &bytes), ["payload"]);
    target.abandon(2);
    assert_eq!(target.outstanding(), 3);
    assert!(events(&mut target, &crc32c(&data).to_le_bytes()).is_empty());
    assert_eq!(target.outstanding(), 2);
}

/// A face that answers some commands at once, asks data for others, and leaves the rest.
fn serve(target: &mut Target, bytes: &[u8]) -> Result<usize, Termination> {
    let mut input = bytes;
    let mut count = 0;
    let mut out = Vec::new();
    while let Some(event) = target.receive(&mut input)? {
        count += 1;
        match event {
            Event::Initialize(_) => {
                target.accept(LIMITS, &mut out);
                target.set_queue_size(4, QueueKind::Io);
            }
            Event::Command {
                slot,
                command,
                in_capsule_length,
            } => match command.as_bytes()[0] % 3 {
                0 => target.abandon(slot),
                1 if in_capsule_length == 0 => target.request_data_but(slot, 20_000, 4, &mut out),
                _ => {}
            },
            Event::Payload { bytes, .. } => assert!(!bytes.is_empty()),
            Event::PartComplete { slot, .. } => target.request_rest(slot, &mut out),
            Event::PayloadComplete { slot, .. } => target.abandon(slot),
            Event::HostTermination(_) => {}
        }
        target.poll_transmit(&mut out);
    }
    assert!(out.len() <= 1 << 20);
    Ok(count)
}

proptest! {
    #[test]
    fn noise_ends_or_waits(
        bytes in prop::collection::vec(any::<u8>(), 0..2000), start in 0u8..3, header_digest: bool,
    ) {
        let mut target = match start {
            0 => Target::new(),
            1 => open_with(LIMITS, header_digest, header_digest, QueueKind::Io),
            _ => asking(),
        };
        if let Ok(count) = serve(&mut target, &bytes) {
            prop_assert!(count <= 2 * bytes.len());
        }
    }

    /// Right PDUs with some bytes changed get further in than noise does.
    #[test]
    fn damaged_streams_end_or_wait(
        changes in prop::collection::vec((0usize..60_000, any::<u8>()), 0..6),
        opcodes in prop::collection::vec((any::<u8>(), 0u32..5000), 1..6), cut in 1usize..300,
    ) {
        let mut bytes = initialize();
        for (cid, (opcode, length)) in opcodes.iter().enumerate() {
            let length = if length % 2 == 0 { 0 } else { *length };
            bytes.extend_from_slice(&capsule(*opcode, cid as u16, length));
            bytes.resize(bytes.len() + length as usize, 0xaa);
            let tag = cid as u16 % 4;
            let data = Data { cid: cid as u16, tag, ..RIGHT };
            bytes.extend_from_slice(&host_data(data));
        }
        for (at, value) in changes {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        let mut target = Target::new();
        for piece in bytes.chunks(cut) {
            if serve(&mut target, piece).is_err() {
                break;
            }
        }
    }
}
