//! Whatever a controller does wrong ends its connection with the fatal error status that the TCP
//! Transport Specification 1.0 gives it (sections 3.3 and 3.5); nothing panics.

use FatalError::*;
use foundation::checksum::crc32c;
use proptest::prelude::*;
use protocols::nvme::Command;
use protocols::tcp::initiator::{Direction, Event, Initiator, Options, Transfer};
use protocols::tcp::pdu::{Data, InitializeResponse, Layout, PduType, ReadyToTransfer, TerminationRequest};
use protocols::tcp::{FatalError, PeerTermination, Termination};

const ACCEPTED: InitializeResponse = InitializeResponse {
    format_version: 0,
    data_alignment: 0,
    header_digest: false,
    data_digest: false,
    max_h2c_data_bytes: 4096,
};

fn asked(options: Options) -> Initiator {
    let mut initiator = Initiator::new(options);
    initiator.initialize(&mut Vec::new());
    initiator
}

fn accepted(response: InitializeResponse) -> Vec<u8> {
    let mut out = Vec::new();
    response.put(&mut out);
    out
}

fn send(initiator: &mut Initiator, cid: u16) {
    let mut entry = [0; 64];
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    initiator.command(&Command::from_bytes(entry), None, &mut Vec::new());
}

/// An open connection: command 1 reads 10000 bytes, command 2 writes as many, command 3 has no data.
fn open() -> Initiator {
    let mut initiator = asked(Options {
        max_outstanding_r2t: 2,
        queue_entries: 8,
        ..Options::default()
    });
    assert!(matches!(
        initiator.receive(&mut &accepted(ACCEPTED)[..]),
        Ok(Some(Event::Ready(_)))
    ));
    for cid in 1..=3 {
        send(&mut initiator, cid);
    }
    initiator.expect(1, Direction::FromController, 10_000);
    initiator.expect(2, Direction::ToController, 10_000);
    initiator
}

const RIGHT: Data = Data {
    cid: 1,
    tag: 0,
    offset: 0,
    length: 4000,
    last: false,
    success: false,
};

const ASKS: ReadyToTransfer = ReadyToTransfer {
    cid: 2,
    tag: 77,
    offset: 0,
    length: 4096,
};

fn data(data: Data) -> Vec<u8> {
    let mut out = Vec::new();
    data.put(PduType::ControllerData, &Layout::PLAIN, &mut out);
    out.resize(out.len() + data.length as usize, 0xcc);
    out
}

fn r2t(transfer: ReadyToTransfer) -> Vec<u8> {
    let mut out = Vec::new();
    transfer.put(&Layout::PLAIN, &mut out);
    out
}

fn response(cid: u16) -> Vec<u8> {
    let mut entry = [0; 16];
    entry[12..14].copy_from_slice(&cid.to_le_bytes());
    let mut out = Vec::new();
    Layout::PLAIN.put_header(PduType::Response, 0, &entry, 0, &mut out);
    out
}

fn changed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn feed(initiator: &mut Initiator, bytes: &[u8]) -> Result<usize, Termination> {
    let mut input = bytes;
    let mut count = 0;
    while let Some(event) = initiator.receive(&mut input)? {
        count += 1;
        if let Event::Data { bytes, .. } = event {
            assert!(!bytes.is_empty());
        }
    }
    Ok(count)
}

#[track_caller]
fn ends(initiator: &mut Initiator, bytes: &[u8], status: FatalError, information: u32) {
    let termination = feed(initiator, bytes).expect_err("this ends the connection");
    assert_eq!(
        (termination.status, termination.information),
        (status, information),
        "{termination}"
    );
    assert_eq!(
        feed(initiator, &response(1)),
        Ok(0),
        "nothing that follows is read"
    );
    let mut out = Vec::new();
    initiator.terminate(&termination, &mut out);
    let said = TerminationRequest::from_header(out.first_chunk().unwrap());
    assert_eq!(
        (out[0], said.status, said.information),
        (2, status as u16, information)
    );
    assert_eq!(out[24], bytes[0], "the offender's header comes back");
}

#[test]
fn answers_to_the_opening() {
    let plain = || asked(Options::default());
    ends(&mut plain(), &response(1), Sequence, 0);
    ends(
        &mut Initiator::new(Options::default()),
        &accepted(ACCEPTED),
        Sequence,
        0,
    );
    ends(&mut open(), &accepted(ACCEPTED), Sequence, 0);
    let wrong = |response| accepted(response);
    ends(
        &mut plain(),
        &wrong(InitializeResponse {
            format_version: 1,
            ..ACCEPTED
        }),
        UnsupportedParameter,
        8,
    );
    ends(
        &mut plain(),
        &wrong(InitializeResponse {
            data_alignment: 32,
            ..ACCEPTED
        }),
        InvalidHeaderField,
        10,
    );
    ends(
        &mut plain(),
        &wrong(InitializeResponse {
            header_digest: true,
            ..ACCEPTED
        }),
        InvalidHeaderField,
        11,
    );
    ends(
        &mut plain(),
        &wrong(InitializeResponse {
            data_digest: true,
            ..ACCEPTED
        }),
        InvalidHeaderField,
        11,
    );
    for limit in [0, 4092, 4097] {
        let response = InitializeResponse {
            max_h2c_data_bytes: limit,
            ..ACCEPTED
        };
        ends(&mut plain(), &wrong(response), InvalidHeaderField, 12);
    }
    ends(
        &mut plain(),
        &changed(accepted(ACCEPTED), 4, 0x84),
        InvalidHeaderField,
        4,
    );
}

#[test]
fn headers() {
    ends(&mut open(), &changed(response(1), 0, 0x0a), InvalidHeaderField, 0);
    ends(&mut open(), &changed(response(1), 0, 0x04), Sequence, 0);
    ends(&mut open(), &changed(response(1), 1, 1), InvalidHeaderField, 1);
    ends(&mut open(), &changed(response(1), 2, 25), InvalidHeaderField, 2);
    ends(&mut open(), &changed(response(1), 4, 28), InvalidHeaderField, 4);
    ends(&mut open(), &changed(data(RIGHT), 3, 20), InvalidHeaderField, 3);
    ends(&mut open(), &changed(data(RIGHT), 3, 25), InvalidHeaderField, 3);
    let mut strict = asked(Options {
        header_digest: true,
        ..Options::default()
    });
    let accept = accepted(InitializeResponse {
        header_digest: true,
        ..ACCEPTED
    });
    assert_eq!(feed(&mut strict, &accept), Ok(1));
    let layout = Layout {
        header_digest: true,
        ..Layout::PLAIN
    };
    let mut bytes = Vec::new();
    layout.put_header(PduType::Response, 0, &[0; 16], 0, &mut bytes);
    let digest = crc32c(&bytes[..24]);
    bytes[10] ^= 1;
    ends(&mut strict, &bytes, HeaderDigest, digest);
}

#[test]
fn completions_and_data() {
    assert_eq!(feed(&mut open(), &response(3)), Ok(1));
    ends(&mut open(), &response(4), InvalidHeaderField, 20);
    ends(&mut open(), &response(0xffff), InvalidHeaderField, 20);
    let mut twice = open();
    assert_eq!(feed(&mut twice, &response(3)), Ok(1));
    ends(&mut twice, &response(3), InvalidHeaderField, 20);

    assert_eq!(feed(&mut open(), &data(RIGHT)), Ok(1));
    ends(
        &mut open(),
        &data(Data { cid: 4, ..RIGHT }),
        InvalidHeaderField,
        8,
    );
    ends(
        &mut open(),
        &data(Data { cid: 0xffff, ..RIGHT }),
        InvalidHeaderField,
        8,
    );
    ends(
        &mut open(),
        &data(Data {
            success: true,
            ..RIGHT
        }),
        InvalidHeaderField,
        1,
    );
    ends(&mut open(), &changed(data(RIGHT), 16, 1), InvalidHeaderField, 16);
    // Commands that write, or have no data.
    ends(&mut open(), &data(Data { cid: 2, ..RIGHT }), Sequence, 0);
    ends(&mut open(), &data(Data { cid: 3, ..RIGHT }), Sequence, 0);
    ends(&mut open(), &data(Data { offset: 4, ..RIGHT }), Sequence, 0);
    ends(
        &mut open(),
        &data(Data {
            length: 10_001,
            ..RIGHT
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut open(),
        &data(Data {
            offset: u32::MAX,
            ..RIGHT
        }),
        OutOfRange,
        0,
    );
    let mut after_last = open();
    assert_eq!(feed(&mut after_last, &data(Data { last: true, ..RIGHT })), Ok(2));
    ends(
        &mut after_last,
        &data(Data {
            offset: 4000,
            ..RIGHT
        }),
        Sequence,
        0,
    );
    let mut after_success = open();
    assert_eq!(
        feed(
            &mut after_success,
            &data(Data {
                last: true,
                success: true,
                ..RIGHT
            })
        ),
        Ok(2)
    );
    assert_eq!(after_success.outstanding(), 2);
    ends(&mut after_success, &response(1), InvalidHeaderField, 20);
}

#[test]
fn requests_for_data() {
    assert_eq!(feed(&mut open(), &r2t(ASKS)), Ok(1));
    ends(
        &mut open(),
        &r2t(ReadyToTransfer { cid: 4, ..ASKS }),
        InvalidHeaderField,
        8,
    );
    ends(&mut open(), &r2t(ReadyToTransfer { cid: 1, ..ASKS }), Sequence, 0);
    ends(&mut open(), &r2t(ReadyToTransfer { cid: 3, ..ASKS }), Sequence, 0);
    ends(
        &mut open(),
        &r2t(ReadyToTransfer { length: 0, ..ASKS }),
        InvalidHeaderField,
        16,
    );
    ends(
        &mut open(),
        &r2t(ReadyToTransfer {
            length: 10_001,
            ..ASKS
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut open(),
        &r2t(ReadyToTransfer {
            length: u32::MAX,
            offset: u32::MAX,
            ..ASKS
        }),
        OutOfRange,
        0,
    );
    ends(
        &mut open(),
        &r2t(ReadyToTransfer { offset: 4, ..ASKS }),
        Sequence,
        0,
    );
    // Two at once are allowed, a third is not until one is served.
    let second = ReadyToTransfer {
        offset: 4096,
        tag: 78,
        ..ASKS
    };
    let third = ReadyToTransfer {
        offset: 8192,
        length: 1808,
        ..ASKS
    };
    let mut initiator = open();
    assert_eq!(feed(&mut initiator, &r2t(ASKS)), Ok(1));
    assert_eq!(feed(&mut initiator, &r2t(second)), Ok(1));
    ends(&mut initiator, &r2t(third), LimitExceeded, 0);
    let mut initiator = open();
    assert_eq!(feed(&mut initiator, &r2t(ASKS)), Ok(1));
    assert_eq!(feed(&mut initiator, &r2t(second)), Ok(1));
    let first = Transfer {
        cid: 2,
        tag: 77,
        offset: 0,
        length: 4096,
    };
    let mut out = Vec::new();
    assert!(initiator.data_header(&first, 0, 4000, &mut out));
    assert!(initiator.data_header(&first, 4000, 96, &mut out));
    assert_eq!(
        (out[1], out[24 + 1], out[24 + 10]),
        (0, 4, 77),
        "the second is the last, the tag comes back"
    );
    assert_eq!(feed(&mut initiator, &r2t(third)), Ok(1));
    // The command ends early: what was asked for is not sent.
    assert_eq!(feed(&mut initiator, &response(2)), Ok(1));
    out.clear();
    assert!(!initiator.data_header(&first, 0, 4096, &mut out));
    assert!(out.is_empty());
}

#[test]
fn a_termination_is_believed_only_when_it_is_well_formed() {
    let sent = TerminationRequest {
        status: 4,
        information: 0x0102_0304,
    };
    let mut bytes = Vec::new();
    sent.put(PduType::ControllerTermination, &[7; 72], &mut bytes);
    for (length, status, information) in [(96, 4, 0x0102_0304), (153, 0, 0), (23, 0, 0)] {
        for mut initiator in [asked(Options::default()), open()] {
            let bytes = changed(bytes.clone(), 4, length);
            let Ok(Some(Event::TargetTermination(said))) = initiator.receive(&mut &bytes[..]) else {
                panic!("the controller ends the connection");
            };
            assert_eq!(said, PeerTermination { status, information });
            assert_eq!(feed(&mut initiator, &response(1)), Ok(0));
        }
    }
}

#[test]
fn what_people_read() {
    let termination = feed(
        &mut open(),
        &data(Data {
            length: 10_001,
            ..RIGHT
        }),
    )
    .unwrap_err();
    assert_eq!(
        termination.to_string(),
        "the NVMe/TCP peer broke the protocol: 10001 bytes at offset 0 are outside 0 to 10000 (fatal error \
         status 0x04, information 0x0); the connection ends and the host may connect again, see the peer's log"
    );
}

proptest! {
    #[test]
    fn noise_ends_or_waits(bytes in prop::collection::vec(any::<u8>(), 0..2000), is_open: bool) {
        let mut initiator = if is_open { open() } else { asked(Options::default()) };
        if let Ok(count) = feed(&mut initiator, &bytes) {
            prop_assert!(count <= 2 * bytes.len());
        }
    }

    /// Right PDUs with some bytes changed get further in than noise does.
    #[test]
    fn damaged_streams_end_or_wait(
        changes in prop::collection::vec((0usize..20_000, any::<u8>()), 0..6), cut in 1usize..300,
    ) {
        let mut bytes = Vec::new();
        bytes.extend(r2t(ASKS));
        bytes.extend(data(RIGHT));
        bytes.extend(r2t(ReadyToTransfer { offset: 4096, ..ASKS }));
        bytes.extend(data(Data { offset: 4000, length: 6000, last: true, ..RIGHT }));
        bytes.extend((1..=3).flat_map(response));
        for (at, value) in &changes {
            let length = bytes.len();
            bytes[at % length] = *value;
        }
        let mut initiator = open();
        let whole = bytes.chunks(cut).all(|piece| feed(&mut initiator, piece).is_ok());
        if changes.is_empty() {
            prop_assert!(whole);
            prop_assert_eq!(initiator.outstanding(), 0);
        }
    }
}
