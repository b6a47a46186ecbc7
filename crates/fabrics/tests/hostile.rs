//! Hosts that are broken or mean, against the real target on real sockets. Each ends at most its own connection, with
//! the termination or status that says why; a well-behaved host on the same target goes on verifying its data all
//! the while; and no length that a host sends decides what the target allocates.

mod hostile_memory;
mod support;

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use fabrics::target::Options;
use foundation::{BlockCount, Lba, Random};
use hostile_memory::{STALL, stall_options};
use protocols::nvme::admin::{Abort, GetLogPage, Identify, SetFeatures, async_event_request};
use protocols::nvme::command::Fuse;
use protocols::nvme::copy::{CopyRange, encode_ranges as encode_sources};
use protocols::nvme::dsm::{DsmRange, encode_ranges};
use protocols::nvme::fabrics::{PropertyGet, PropertySize, disconnect};
use protocols::nvme::features::Feature;
use protocols::nvme::identify::IdentifyStructure;
use protocols::nvme::log::LogPage;
use protocols::nvme::registers::CSTS_OFFSET;
use protocols::nvme::{Command, Status};
use protocols::tcp::FatalError::{InvalidHeaderField, LimitExceeded, OutOfRange, Sequence};
use protocols::tcp::pdu::{Data, PduType};
use support::arena::{Arena, RawHost, capsule, connect_capsule, enable, host_data, identify, initialize};
use support::{HOST, NQN};

const MIB: usize = 1 << 20;

fn read_of(blocks: u64) -> Command {
    Command::read(1, Lba(0), BlockCount(blocks)).with_transport_data(blocks as u32 * 512)
}

fn write_of(blocks: u64) -> Command {
    Command::write(1, Lba(0), BlockCount(blocks)).with_transport_data(blocks as u32 * 512)
}

/// A whole conversation on the admin queue and one I/O queue, one PDU after the other, with one byte changed: the
/// `at`-th that the host sends is XORed with `with`. True if it was changed before the conversation broke off.
fn conversation(arena: &Arena, at: usize, with: u8) -> bool {
    let (mut sent, mut changed) = (0, false);
    let mut step = |host: &mut RawHost, mut bytes: Vec<u8>| {
        if let Some(byte) = at.checked_sub(sent).and_then(|at| bytes.get_mut(at)) {
            *byte ^= with;
            changed = true;
        }
        sent += bytes.len();
        host.send(&bytes);
        host.pdu()
    };
    let short = Some(Duration::from_millis(20));
    let mut admin = arena.raw();
    admin.stream.set_read_timeout(short).unwrap();
    let mut ok = step(&mut admin, initialize()).is_some();
    let answer = step(&mut admin, connect_capsule(0, 31, 0xffff, NQN, HOST));
    let cntlid = answer
        .filter(|pdu| pdu.len() >= 10)
        .map(|pdu| u16::from_le_bytes([pdu[8], pdu[9]]));
    ok &= step(&mut admin, capsule(&enable().with_cid(2), &[])).is_some();
    ok &= step(&mut admin, capsule(&identify(4096).with_cid(3), &[])).is_some();
    let page = GetLogPage::new(0xffff_ffff, LogPage::Health.code(), 512).to_command();
    ok &= step(
        &mut admin,
        capsule(&page.with_cid(4).with_transport_data(512), &[]),
    )
    .is_some();
    if ok && let Some(cntlid) = cntlid {
        let mut io = arena.raw();
        io.stream.set_read_timeout(short).unwrap();
        step(&mut io, initialize());
        step(&mut io, connect_capsule(1, 31, cntlid, NQN, HOST));
        let write = Command::write(1, Lba(3), BlockCount(1)).with_in_capsule_data(0, 512);
        step(&mut io, capsule(&write.with_cid(1), &[5; 512]));
        step(&mut io, capsule(&write_of(32).with_cid(2), &[]));
        let data = Data {
            cid: 2,
            tag: 31,
            offset: 0,
            length: 32 * 512,
            last: true,
            success: false,
        };
        step(&mut io, host_data(data, 32 * 512));
        step(&mut io, capsule(&read_of(32).with_cid(3), &[]));
    }
    changed
}

#[test]
fn a_changed_byte_harms_nobody_else() {
    let arena = Arena::start(Options::default());
    let mut random = Random::from_seed(1);
    // Every byte of the headers of the first three PDUs, then anywhere.
    let firsts = (0..24).chain(128..200).chain(1224..1296);
    for at in firsts {
        assert!(conversation(&arena, at, 1 << random.below(8)));
    }
    for _ in 0..150 {
        conversation(&arena, random.below(6000) as usize, random.between(1, 255) as u8);
    }
    arena.finish();
}

/// Capsules of every kind of command that an I/O queue takes. They run at the same time, so each has blocks of its own;
/// but the compare finds what the write before it has stored, since a memory device completes at once.
fn io_stream() -> Vec<Vec<u8>> {
    let in_capsule = |command: Command, cid: u16, data: &[u8]| {
        let command = command.with_cid(cid).with_in_capsule_data(0, data.len() as u32);
        capsule(&command, data)
    };
    let (lba, one) = (Lba(3), BlockCount(1));
    let sources = encode_sources(&[
        CopyRange::new(Lba(0), BlockCount(9)),
        CopyRange::new(Lba(40), one),
    ]);
    let ranges = encode_ranges(&[DsmRange::new(Lba(9), 5), DsmRange::new(Lba(1), 0)]).unwrap();
    vec![
        in_capsule(Command::write(1, lba, one).with_force_unit_access(), 1, &[5; 512]),
        in_capsule(Command::compare(1, lba, one).with_fuse(Fuse::First), 2, &[5; 512]),
        in_capsule(Command::write(1, lba, one).with_fuse(Fuse::Second), 3, &[6; 512]),
        capsule(&Command::verify(1, lba, BlockCount(300)).with_cid(4), &[]),
        in_capsule(Command::copy(1, Lba(100), 2), 5, &sources.unwrap()),
        in_capsule(Command::deallocate(1, 2), 6, &ranges),
        capsule(
            &Command::write_zeroes(1, Lba(200), one)
                .with_deallocate()
                .with_cid(7),
            &[],
        ),
        capsule(&Command::flush(1).with_cid(8), &[]),
        capsule(&Command::flush(u32::MAX).with_cid(9), &[]),
        capsule(&read_of(32).with_cid(10), &[]),
        // Never sends what it is asked for.
        capsule(&write_of(32).with_cid(11), &[]),
    ]
}

/// Admin commands of every kind, some of which concern the I/O queue of the same host.
fn admin_stream() -> Vec<Vec<u8>> {
    let mut stream = vec![
        capsule(&identify(4096).with_cid(3), &[]),
        capsule(&async_event_request().with_cid(4), &[]),
        capsule(&Abort { sqid: 1, cid: 11 }.to_command().with_cid(5), &[]),
        capsule(&Abort { sqid: 0, cid: 4 }.to_command().with_cid(6), &[]),
    ];
    for (cid, page) in LogPage::ALL.iter().enumerate() {
        let get = GetLogPage::new(0xffff_ffff, page.code(), 64).to_command();
        stream.push(capsule(
            &get.with_cid(10 + cid as u16).with_transport_data(64),
            &[],
        ));
    }
    let set = SetFeatures {
        feature: Feature::Timestamp.code(),
        ..SetFeatures::default()
    };
    let set = set.to_command().with_cid(40).with_in_capsule_data(0, 8);
    stream.push(capsule(&set, &[7; 8]));
    stream
}

/// Changes a stream of PDUs so that most of it stays valid.
fn mutate(random: &mut Random, mut stream: Vec<Vec<u8>>) -> Vec<u8> {
    for _ in 0..random.between(1, 3) {
        let at = random.below(stream.len() as u64) as usize;
        let other = random.below(stream.len() as u64) as usize;
        match random.below(6) {
            0 => stream.swap(at, other),
            1 => stream.insert(at, stream[other].clone()),
            2 if stream.len() > 1 => drop(stream.remove(at)),
            3 => {
                let length = random.below(stream[at].len() as u64 + 1) as usize;
                stream[at].truncate(length);
            }
            // Mostly the queue entry, whose fields are what commands are made of.
            _ => {
                let length = stream[at].len().clamp(1, 72) as u64;
                let byte = random.below(length) as usize;
                if let Some(byte) = stream[at].get_mut(byte) {
                    *byte = random.below(256) as u8;
                }
            }
        }
    }
    stream.concat()
}

#[test]
fn changed_streams_of_every_command_harm_nobody_else() {
    let arena = Arena::start(Options {
        // So that commands wait for one another, and there is something to abort.
        held_bytes_max: 32 << 10,
        ..Options::default()
    });
    for seed in 0..250 {
        let mut random = Random::from_seed(seed);
        let mut admin = arena.admin();
        let mut io = arena.io(&admin, 1, 31);
        let mut streams = [io_stream(), admin_stream()];
        // The first seed changes nothing: the streams are good.
        let changed = streams
            .each_mut()
            .map(|stream| mutate_or_not(&mut random, seed > 0, std::mem::take(stream)));
        let cut = random.below(changed[0].len() as u64 + 1) as usize;
        io.send(&changed[0][..cut]);
        admin.send(&changed[1]);
        io.send(&changed[0][cut..]);
        if seed == 0 {
            let statuses: Vec<_> = (0..9).map(|_| io.completion().status()).collect();
            // The admin stream has an Abort of one of them, which may come before it has begun.
            let is_good = |status: &Status| status.is_success() || *status == Status::ABORT_REQUESTED;
            assert!(statuses.iter().all(is_good), "{statuses:?}");
        }
        drop(io.stream.shutdown(Shutdown::Write));
        io.drain();
        drop(admin.stream.shutdown(Shutdown::Write));
        admin.drain();
    }
    arena.finish();
}

fn mutate_or_not(random: &mut Random, changes: bool, stream: Vec<Vec<u8>>) -> Vec<u8> {
    if changes {
        mutate(random, stream)
    } else {
        stream.concat()
    }
}

#[test]
fn noise_harms_nobody_else() {
    let arena = Arena::start(Options::default());
    for seed in 0..200 {
        let mut random = Random::from_seed(seed);
        let mut host = match seed % 4 {
            0 => arena.raw(),
            1 => {
                let mut host = arena.raw();
                host.initialize();
                host
            }
            2 => arena.admin(),
            _ => {
                let admin = arena.admin();
                arena.io(&admin, 1, 15)
            }
        };
        for _ in 0..random.between(1, 5) {
            let mut noise = vec![0; random.between(1, 4000) as usize];
            random.fill(&mut noise);
            // Half of it begins like something that could be.
            if random.chance(1, 2) {
                let start = capsule(&read_of(1), &[]);
                let length = (random.between(1, 72) as usize).min(noise.len());
                noise[..length].copy_from_slice(&start[..length]);
            }
            if !host.send(&noise) {
                break;
            }
        }
        drop(host.stream.shutdown(Shutdown::Write));
        host.drain();
    }
    arena.finish();
}

#[test]
fn half_a_pdu_and_gone() {
    let arena = Arena::start(Options::default());
    let write = Command::write(1, Lba(3), BlockCount(1)).with_in_capsule_data(0, 512);
    let whole = [
        capsule(&write.with_cid(1), &[5; 512]),
        connect_capsule(0, 31, 0xffff, NQN, HOST),
        initialize(),
    ];
    let mut random = Random::from_seed(3);
    for round in 0..150 {
        let pdu = &whole[round % 3];
        let mut host = match round % 3 {
            0 => {
                let admin = arena.admin();
                arena.io(&admin, 1, 15)
            }
            1 => {
                let mut host = arena.raw();
                host.initialize();
                host
            }
            _ => arena.raw(),
        };
        host.send(&pdu[..random.between(1, pdu.len() as u64 - 1) as usize]);
    }
    arena.finish();
}

#[test]
fn what_breaks_the_protocol_is_named() {
    let arena = Arena::start(Options::default());
    let changed = |mut bytes: Vec<u8>, at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    // Before ICReq.
    arena.raw().ends(&capsule(&read_of(1), &[]), Sequence, 0);
    arena
        .raw()
        .ends(&changed(initialize(), 4, &[0xff; 4]), InvalidHeaderField, 4);
    // On a queue: absurd lengths, in-capsule data over the limit, data nobody asked for.
    let admin = arena.admin();
    for qid in 1..=20 {
        // The queue is free again once its connection is gone, so each has a number of its own.
        let mut io = arena.io(&admin, qid, 15);
        let write = write_of(64).with_cid(9);
        let data = Data {
            cid: 9,
            tag: 15,
            offset: 0,
            length: 512,
            last: false,
            success: false,
        };
        let asked = |io: &mut RawHost| {
            io.send_command(&write, &[]);
            let pdu = io.pdu().unwrap();
            assert_eq!(pdu[0], PduType::ReadyToTransfer as u8);
            u16::from_le_bytes([pdu[10], pdu[11]])
        };
        match qid {
            1 => io.ends(
                &changed(capsule(&read_of(1), &[]), 4, &[0xff; 4]),
                InvalidHeaderField,
                3,
            ),
            2 => io.ends(
                &changed(capsule(&read_of(1), &[0; 4]), 4, &[0xfc, 0xff, 0xff, 0x7f]),
                InvalidHeaderField,
                4,
            ),
            3 => {
                let command = Command::write(1, Lba(0), BlockCount(32)).with_in_capsule_data(0, 16384);
                io.ends(&capsule(&command, &[1; 16384]), InvalidHeaderField, 4);
            }
            4 => io.ends(&host_data(data, 512), InvalidHeaderField, 10),
            5 => {
                let tag = asked(&mut io);
                let late = Data {
                    tag,
                    offset: 512,
                    ..data
                };
                io.ends(&host_data(late, 512), Sequence, 0);
            }
            6 => {
                let tag = asked(&mut io);
                let beyond = Data {
                    tag,
                    offset: 0x7fff_fe00,
                    ..data
                };
                io.ends(&host_data(beyond, 512), OutOfRange, 0);
            }
            7 => {
                let tag = asked(&mut io);
                let length = 256 * 1024;
                let large = Data { tag, length, ..data };
                io.ends(&host_data(large, length as usize), LimitExceeded, 0);
            }
            8 => {
                let tag = asked(&mut io);
                let other = Data { tag, cid: 10, ..data };
                io.ends(&host_data(other, 512), InvalidHeaderField, 8);
            }
            9 => io.ends(&initialize(), Sequence, 0),
            10 => io.ends(&changed(initialize(), 0, &[0x0b]), InvalidHeaderField, 0),
            11 => {
                // Seventeen commands in a queue of sixteen; none can be answered before the last has come.
                let mut all = Vec::new();
                for cid in 0..17 {
                    all.extend(capsule(&write.with_cid(cid), &[]));
                }
                io.ends(&all, Sequence, 0);
            }
            _ => drop(io),
        }
    }
    arena.finish();
}

#[test]
fn what_a_command_may_not_do_fails_that_command() {
    let arena = Arena::start(Options::default());
    // Before Connect: any command, with data or without. The connection goes on.
    let mut host = arena.raw();
    host.initialize();
    host.refused(&read_of(8), &[], Status::COMMAND_SEQUENCE_ERROR);
    host.refused(&write_of(2048), &[], Status::COMMAND_SEQUENCE_ERROR);
    host.refused(&enable(), &[], Status::COMMAND_SEQUENCE_ERROR);
    let mut wordy = Command::from_bytes(
        *connect_capsule(0, 31, 0xffff, NQN, HOST)[8..]
            .first_chunk()
            .unwrap(),
    );
    wordy = wordy.with_transport_data(1 << 20);
    host.refused(&wordy, &[], Status::SGL_DESCRIPTOR_TYPE_INVALID);
    for (qid, sqsize, cntlid) in [(0, 0, 0xffff), (0, 65535, 0xffff), (1, 31, 0xfff0), (0, 31, 5)] {
        assert_eq!(
            host.connect(qid, sqsize, cntlid, HOST).status(),
            Status::CONNECT_INVALID_PARAMETERS
        );
    }
    // A controller that is not enabled, then one that is.
    assert_eq!(host.connect(0, 31, 0xffff, HOST).status(), Status::SUCCESS);
    host.refused(&identify(4096), &[], Status::COMMAND_SEQUENCE_ERROR);
    host.refused(&enable(), &[], Status::SUCCESS);
    assert_eq!(
        host.connect(0, 31, 0xffff, HOST).status(),
        Status::COMMAND_SEQUENCE_ERROR
    );
    host.refused(&identify(4096), &[], Status::SUCCESS);
    host.refused(&identify(16), &[], Status::DATA_SGL_LENGTH_INVALID);
    host.refused(
        &identify(4096).with_in_capsule_data(0, 0),
        &[],
        Status::SGL_DESCRIPTOR_TYPE_INVALID,
    );
    for (page, bytes) in [
        (LogPage::Health, 16 << 30),
        (LogPage::ErrorInformation, MIB as u64 + 4),
    ] {
        let get = GetLogPage::new(0xffff_ffff, page.code(), bytes).to_command();
        host.refused(
            &get.with_transport_data(u32::MAX),
            &[],
            Status::INVALID_FIELD_IN_COMMAND,
        );
    }
    let far = GetLogPage {
        offset: u64::MAX - 3,
        ..GetLogPage::new(0xffff_ffff, LogPage::Health.code(), 512)
    };
    host.refused(
        &far.to_command().with_transport_data(512),
        &[],
        Status::INVALID_FIELD_IN_COMMAND,
    );
    host.refused(&Abort { sqid: 0, cid: 3 }.to_command(), &[], Status::SUCCESS);
    let beyond = PropertyGet {
        size: PropertySize::Eight,
        offset: CSTS_OFFSET + 0x1000,
    };
    host.refused(&beyond.to_command(), &[], Status::INVALID_FIELD_IN_COMMAND);
    // Four requests for events wait; the fifth is one too many.
    for cid in 10..14 {
        host.send_command(&async_event_request().with_cid(cid), &[]);
    }
    host.refused(
        &async_event_request(),
        &[],
        Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED,
    );
    // I/O queues: of nobody's controller, of another host's, with a number that is taken or too large.
    for (qid, cntlid, name) in [
        (1, host.cntlid, "nqn.2026-11.io.redhare:thief"),
        (1, 0x7777, HOST),
        (200, host.cntlid, HOST),
    ] {
        let mut io = arena.raw();
        io.initialize();
        assert_eq!(
            io.connect(qid, 31, cntlid, name).status(),
            Status::CONNECT_INVALID_PARAMETERS
        );
    }
    let mut io = arena.io(&host, 1, 31);
    let mut second = arena.raw();
    second.initialize();
    assert_eq!(
        second.connect(1, 31, host.cntlid, HOST).status(),
        Status::CONNECT_INVALID_PARAMETERS
    );
    // I/O commands.
    io.refused(
        &read_of(8).with_transport_data(512),
        &[],
        Status::DATA_SGL_LENGTH_INVALID,
    );
    io.refused(&write_of(4096), &[], Status::INVALID_FIELD_IN_COMMAND);
    io.refused(&read_of(4096), &[], Status::INVALID_FIELD_IN_COMMAND);
    let offset = Command::write(1, Lba(0), BlockCount(1)).with_in_capsule_data(64, 512);
    io.refused(&offset, &[1; 512], Status::SGL_OFFSET_INVALID);
    let mut foreign = read_of(1);
    foreign.set_nsid(9);
    io.refused(&foreign, &[], Status::INVALID_NAMESPACE_OR_FORMAT);
    io.refused(&Command::new(0xff, 1), &[], Status::INVALID_COMMAND_OPCODE);
    io.refused(&read_of(1), &[], Status::SUCCESS);
    arena.finish();
}

#[test]
fn a_flood_of_connections_passes() {
    let arena = Arena::start(Options {
        connections_max: 40,
        connect_limit: Duration::from_millis(300),
        ..Options::default()
    });
    // None of them says a word, or half of one.
    let mut idle: Vec<RawHost> = (0..200).map(|_| arena.raw()).collect();
    for host in idle.iter_mut().step_by(3) {
        host.send(&initialize()[..20]);
    }
    arena.check_good_host();
    for host in &mut idle {
        assert_eq!(host.drain(), 0);
    }
    // All are gone: there is room again.
    let mut late = arena.admin();
    late.refused(&identify(4096), &[], Status::SUCCESS);
    arena.finish();
}

#[test]
fn a_write_that_is_broken_off_has_not_begun() {
    let arena = Arena::start(Options::default());
    let admin = arena.admin();
    let mut random = Random::from_seed(7);
    for round in 0..40 {
        let mut io = arena.io(&admin, 1 + round, 15);
        io.send_command(&write_of(64).with_cid(4), &[]);
        let r2t = io.pdu().unwrap();
        let data = Data {
            cid: 4,
            tag: u16::from_le_bytes([r2t[10], r2t[11]]),
            offset: 0,
            length: 64 * 512,
            last: true,
            success: false,
        };
        let pdu = host_data(data, 64 * 512);
        let cut = random.between(1, pdu.len() as u64 - 1) as usize;
        io.stream.write_all(&pdu[..cut]).unwrap();
        drop(io);
        let mut reader = arena.io(&admin, 60 + round, 15);
        reader.send_command(&read_of(64).with_cid(1), &[]);
        let read = reader.pdu().unwrap();
        assert_eq!(read[0], PduType::ControllerData as u8);
        assert!(read[24..].iter().all(|&byte| byte == 0), "round {round}");
    }
    arena.finish();
}

/// Buffers are lent to a host for as long as it uses them, not for as long as it sends a byte now and then: the hosts of
/// a pool's worth of announced writes would otherwise keep it from all others.
#[test]
fn a_host_that_trickles_its_data_does_not_keep_its_buffers() {
    let arena = Arena::start(stall_options());
    let admin = arena.admin();
    let mut io = arena.io(&admin, 1, 15);
    io.send_command(&write_of(64).with_cid(4), &[]);
    let r2t = io.pdu().unwrap();
    let data = Data {
        cid: 4,
        tag: u16::from_le_bytes([r2t[10], r2t[11]]),
        offset: 0,
        length: 64 * 512,
        last: true,
        success: false,
    };
    let pdu = host_data(data, 64 * 512);
    let began = Instant::now();
    let mut sent = 24;
    assert!(io.send(&pdu[..sent]));
    while io.send(&pdu[sent..sent + 8]) {
        sent += 8;
        std::thread::sleep(STALL / 8);
        assert!(began.elapsed() < STALL * 10, "a host may trickle for ever");
    }
    assert!(began.elapsed() > STALL.mul_f32(1.5), "it has time for all of it");
    arena.check_good_host();
    arena.finish();
}

#[test]
fn what_makes_no_sense_is_refused_for_good() {
    let arena = Arena::start(Options::default());
    let mut admin = arena.admin();
    let mut io = arena.io(&admin, 1, 15);
    let refused = |host: &mut RawHost, command: Command, status: Status| {
        host.send_command(&command.with_cid(9), &[]);
        let completion = host.completion();
        assert_eq!((completion.cid(), completion.status()), (9, status));
        assert!(completion.do_not_retry(), "{status}");
    };
    // PRPs, a metadata SGL, and what is reserved.
    for pointers in [0, 2, 3] {
        let command = read_of(1).with_flags(pointers << 6);
        refused(&mut io, command, Status::INVALID_FIELD_IN_COMMAND);
        let command = identify(4096).with_flags(pointers << 6);
        refused(&mut admin, command, Status::INVALID_FIELD_IN_COMMAND);
    }
    // More than MDTS.
    refused(&mut io, write_of(2049), Status::INVALID_FIELD_IN_COMMAND);
    // The number of queues is settled before there are any.
    let set = SetFeatures {
        nsid: 0,
        feature: Feature::NumberOfQueues.code(),
        save: false,
        value: 0x0001_0001,
    };
    refused(&mut admin, set.to_command(), Status::COMMAND_SEQUENCE_ERROR);
    // Only I/O queues are deleted alone; and there is one format of the command.
    refused(&mut admin, disconnect(), Status::INVALID_QUEUE_TYPE);
    refused(
        &mut io,
        disconnect().with_cdw10(1),
        Status::CONNECT_INCOMPATIBLE_FORMAT,
    );
    // After FFFFFFFDh there is no namespace to list, whatever the command set.
    for structure in [
        IdentifyStructure::ActiveNamespaceList,
        IdentifyStructure::CommandSetActiveNamespaceList,
    ] {
        let ask = Identify {
            cns: structure.code(),
            nsid: 0xffff_fffe,
            cntid: 0,
            cns_specific: 0,
            csi: 0,
        };
        let command = ask.to_command().with_transport_data(4096);
        refused(&mut admin, command, Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    io.refused(&Command::flush(1), &[], Status::SUCCESS);
    arena.finish();
}
