//! The PDUs of NVMe/TCP: decoding undoes encoding, and some bytes derived by hand from the tables of
//! the TCP Transport Specification 1.0, section 3.6.2.

use proptest::prelude::*;
use protocols::nvme::{Command, Completion};
use protocols::tcp::FatalError;
use protocols::tcp::initiator::{Initiator, Options};
use protocols::tcp::pdu::{
    CommonHeader, Data, InitializeRequest, InitializeResponse, Layout, PduType, ReadyToTransfer,
    TerminationRequest, TypeSet,
};
use protocols::tcp::target::{Event, Limits, Target};

/// CRC32C bit by bit, from its polynomial: nothing in common with the table-driven one.
fn slow_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

fn layouts() -> impl Strategy<Value = Layout> {
    (any::<bool>(), any::<bool>(), 0u8..32).prop_map(|(header_digest, data_digest, data_alignment)| Layout {
        header_digest,
        data_digest,
        data_alignment,
    })
}

/// Checks what every PDU has in common, and returns its common header.
fn check_frame(bytes: &[u8], pdu_type: PduType, layout: &Layout, data_bytes: u32) -> CommonHeader {
    let common = CommonHeader::from_bytes(*bytes.first_chunk().unwrap());
    assert_eq!(PduType::from_code(common.type_code), Some(pdu_type));
    assert_eq!(common.to_bytes(), bytes[..8]);
    let header = common.header_bytes as usize;
    assert_eq!(header, pdu_type.header_bytes());
    assert_eq!(common.flags & 1 == 1, layout.header_digest);
    let mut end = header;
    if layout.header_digest {
        assert_eq!(
            bytes[header..header + 4],
            slow_crc32c(&bytes[..header]).to_le_bytes()
        );
        end += 4;
    }
    if data_bytes == 0 {
        assert_eq!(
            (common.data_offset, common.pdu_bytes as usize, bytes.len()),
            (0, end, end)
        );
        return common;
    }
    let offset = common.data_offset as usize;
    let alignment = (layout.data_alignment as usize + 1) * 4;
    assert_eq!(offset % alignment, 0);
    assert!(
        offset >= end && offset - end < alignment,
        "no more padding than is needed"
    );
    assert_eq!(bytes.len(), offset);
    assert!(bytes[end..].iter().all(|byte| *byte == 0));
    assert_eq!(common.flags & 2 == 2, layout.data_digest);
    let trailer = if layout.data_digest { 4 } else { 0 };
    assert_eq!(common.pdu_bytes, offset as u32 + data_bytes + trailer);
    common
}

proptest! {
    #[test]
    fn common_headers_survive(bytes in any::<[u8; 8]>()) {
        prop_assert_eq!(CommonHeader::from_bytes(bytes).to_bytes(), bytes);
    }

    #[test]
    fn initialization_survives(
        format_version: u16, data_alignment: u8, header_digest: bool, data_digest: bool, number: u32,
    ) {
        let request = InitializeRequest {
            format_version, data_alignment, header_digest, data_digest, max_r2t: number,
        };
        let mut out = Vec::new();
        request.put(&mut out);
        check_frame(&out, PduType::InitializeRequest, &Layout::PLAIN, 0);
        prop_assert_eq!(InitializeRequest::from_header(out.first_chunk().unwrap()), request);
        let response = InitializeResponse {
            format_version, data_alignment, header_digest, data_digest, max_h2c_data_bytes: number,
        };
        out.clear();
        response.put(&mut out);
        check_frame(&out, PduType::InitializeResponse, &Layout::PLAIN, 0);
        prop_assert_eq!(InitializeResponse::from_header(out.first_chunk().unwrap()), response);
    }

    #[test]
    fn data_and_r2t_survive(
        layout in layouts(), cid: u16, tag: u16, offset: u32, length in 1..u32::MAX - 1024,
        last: bool, success: bool,
    ) {
        for pdu_type in [PduType::HostData, PduType::ControllerData] {
            let data = Data { cid, tag, offset, length, last, success };
            let mut out = Vec::new();
            data.put(pdu_type, &layout, &mut out);
            check_frame(&out, pdu_type, &layout, length);
            prop_assert_eq!(Data::from_header(out.first_chunk().unwrap()), data);
        }
        let transfer = ReadyToTransfer { cid, tag, offset, length };
        let mut out = Vec::new();
        transfer.put(&layout, &mut out);
        check_frame(&out, PduType::ReadyToTransfer, &layout, 0);
        prop_assert_eq!(ReadyToTransfer::from_header(out.first_chunk().unwrap()), transfer);
    }

    #[test]
    fn terminations_survive(status: u16, information: u32, offender in prop::collection::vec(any::<u8>(), 0..200)) {
        let request = TerminationRequest { status, information };
        for pdu_type in [PduType::HostTermination, PduType::ControllerTermination] {
            let mut out = Vec::new();
            request.put(pdu_type, &offender, &mut out);
            prop_assert_eq!(TerminationRequest::from_header(out.first_chunk().unwrap()), request);
            let kept = offender.len().min(128);
            prop_assert_eq!(&out[24..], &offender[..kept]);
            let common = CommonHeader::from_bytes(*out.first_chunk().unwrap());
            prop_assert_eq!((common.flags, common.pdu_bytes as usize), (0, out.len()));
        }
    }

    /// Capsules go through the machines, which alone put and read them.
    #[test]
    fn capsules_survive(
        digests: (bool, bool), host in 0u8..32, controller in 0u8..32,
        mut entry in prop::collection::vec(any::<u8>(), 64), mut completion: [u8; 16], length in 0u32..=8192,
    ) {
        let (mut initiator, mut target) = connect(digests, host, controller);
        entry[2..4].copy_from_slice(&[5, 0]);
        if length > 0 {
            entry[32..36].copy_from_slice(&length.to_le_bytes());
            entry[39] = 0x01;
        }
        let entry: [u8; 64] = entry.try_into().unwrap();
        let mut out = Vec::new();
        initiator.command(&Command::from_bytes(entry), (length > 0).then_some(length), &mut out);
        let layout = Layout { header_digest: digests.0, data_digest: digests.1, data_alignment: controller };
        check_frame(&out, PduType::Command, &layout, length);
        let mut input = &out[..];
        let Some(Event::Command { slot, command, in_capsule_length }) = target.receive(&mut input).unwrap() else {
            panic!("a capsule is a command");
        };
        prop_assert_eq!(command.as_bytes(), &entry);
        prop_assert_eq!(in_capsule_length, length);

        completion[12..14].copy_from_slice(&[5, 0]);
        out.clear();
        target.response(slot, &Completion::from_bytes(completion), &mut out);
        check_frame(&out, PduType::Response, &Layout { data_alignment: host, ..layout }, 0);
        let mut input = &out[..];
        let event = initiator.receive(&mut input).unwrap();
        let Some(protocols::tcp::initiator::Event::Response { completion: found, digest_ok: true }) = event else {
            panic!("a capsule is a completion");
        };
        prop_assert_eq!(found.as_bytes(), &completion);
    }
}

fn connect(digests: (bool, bool), host: u8, controller: u8) -> (Initiator, Target) {
    let mut initiator = Initiator::new(Options {
        data_alignment: host,
        header_digest: digests.0,
        data_digest: digests.1,
        ..Options::default()
    });
    let mut target = Target::new();
    let limits = Limits {
        data_alignment: controller,
        ..Limits::default()
    };
    let (mut there, mut back) = (Vec::new(), Vec::new());
    initiator.initialize(&mut there);
    assert!(matches!(
        target.receive(&mut &there[..]),
        Ok(Some(Event::Initialize(_)))
    ));
    target.accept(limits, &mut back);
    assert!(initiator.receive(&mut &back[..]).unwrap().is_some());
    (initiator, target)
}

#[test]
fn golden_initialization() {
    let mut out = Vec::new();
    InitializeRequest {
        format_version: 0,
        data_alignment: 2,
        header_digest: true,
        data_digest: true,
        max_r2t: 3,
    }
    .put(&mut out);
    let mut expected = vec![
        0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, 0, 0, 2, 3, 3, 0, 0, 0,
    ];
    expected.resize(128, 0);
    assert_eq!(out, expected);

    let mut out = Vec::new();
    InitializeResponse {
        format_version: 0,
        data_alignment: 0,
        header_digest: true,
        data_digest: false,
        max_h2c_data_bytes: 0x0002_0000,
    }
    .put(&mut out);
    let mut expected = vec![
        0x01, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, 0, 0, 0, 1, 0, 0, 2, 0,
    ];
    expected.resize(128, 0);
    assert_eq!(out, expected);
}

#[test]
fn golden_transfers() {
    let mut out = Vec::new();
    let transfer = ReadyToTransfer {
        cid: 0x1234,
        tag: 7,
        offset: 4096,
        length: 8192,
    };
    transfer.put(&Layout::PLAIN, &mut out);
    let expected = [
        0x09, 0x00, 0x18, 0x00, 0x18, 0, 0, 0, 0x34, 0x12, 7, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(out, expected);

    // Header digest, data digest, 64-byte alignment, LAST and SUCCESS: the data begins at 40h and the
    // PDU is 40h + 200h + 4 bytes.
    let layout = Layout {
        header_digest: true,
        data_digest: true,
        data_alignment: 15,
    };
    let mut out = Vec::new();
    let data = Data {
        cid: 0x0102,
        tag: 0,
        offset: 0x200,
        length: 0x200,
        last: true,
        success: true,
    };
    data.put(PduType::ControllerData, &layout, &mut out);
    let header = [
        0x07, 0x0f, 0x18, 0x40, 0x44, 0x02, 0, 0, 0x02, 0x01, 0, 0, 0, 0x02, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,
    ];
    let mut expected = header.to_vec();
    expected.extend_from_slice(&slow_crc32c(&header).to_le_bytes());
    expected.resize(64, 0);
    assert_eq!(out, expected);
}

#[test]
fn golden_capsules() {
    // 8192 bytes in the capsule behind a header digest: PDO 4Ch, PLEN 4Ch + 2000h.
    let (mut initiator, _) = connect((true, false), 0, 0);
    let mut out = Vec::new();
    initiator.command(&Command::from_bytes([0; 64]), Some(8192), &mut out);
    assert_eq!(out[..8], [0x04, 0x01, 0x48, 0x4c, 0x4c, 0x20, 0, 0]);
    assert_eq!(out.len(), 0x4c);

    let (_, mut target) = connect((false, false), 0, 0);
    let mut capsule = vec![0x04, 0x00, 0x48, 0x00, 0x48, 0, 0, 0];
    capsule.resize(72, 0);
    assert!(matches!(
        target.receive(&mut &capsule[..]),
        Ok(Some(Event::Command {
            slot: 0,
            in_capsule_length: 0,
            ..
        }))
    ));
    let mut out = Vec::new();
    target.response(0, &Completion::from_bytes([0; 16]), &mut out);
    let mut expected = vec![0x05, 0x00, 0x18, 0x00, 0x18, 0, 0, 0];
    expected.resize(24, 0);
    assert_eq!(out, expected);
}

#[test]
fn golden_termination() {
    // H2CData with a tag nobody gave: Invalid PDU Header Field at offset 0Ah, and a copy of its header.
    let (_, mut target) = connect((false, false), 0, 0);
    let mut offender = vec![
        0x06, 0x04, 0x18, 0x18, 0x1c, 0, 0, 0, 1, 0, 0x99, 0, 0, 0, 0, 0, 4, 0, 0, 0,
    ];
    offender.resize(28, 0);
    let Err(termination) = target.receive(&mut &offender[..]) else {
        panic!("the tag is unknown");
    };
    assert_eq!(termination.status, FatalError::InvalidHeaderField);
    let mut out = Vec::new();
    target.terminate(&termination, &mut out);
    let mut expected = vec![0x03, 0x00, 0x18, 0x00, 0x30, 0, 0, 0, 0x01, 0, 0x0a, 0, 0, 0];
    expected.resize(24, 0);
    expected.extend_from_slice(&offender[..24]);
    assert_eq!(out, expected);
}

#[test]
fn types_are_a_set() {
    let set = TypeSet::of(&[PduType::Command, PduType::ReadyToTransfer]);
    for code in 0..=255 {
        let Some(pdu_type) = PduType::from_code(code) else {
            assert!(code == 8 || code > 9);
            continue;
        };
        assert_eq!(pdu_type as u8, code);
        assert_eq!(set.contains(pdu_type), code == 4 || code == 9);
    }
}
