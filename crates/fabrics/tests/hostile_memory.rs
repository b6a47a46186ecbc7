//! What hosts that take no answers, send no data, or ask for much may hold of a target's memory, and that nobody waits for it in vain.

use std::io::Write;
use std::time::{Duration, Instant};

use fabrics::target::Options;
use foundation::{BlockCount, Lba};
use protocols::nvme::admin::GetLogPage;
use protocols::nvme::log::LogPage;
use protocols::nvme::{AdminOpcode, Command, Status};
use protocols::tcp::pdu::PduType;

use crate::support::arena::{Arena, RawHost, capsule, identify};
use crate::{MIB, read_of, write_of};

/// Resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

pub(crate) const STALL: Duration = Duration::from_millis(700);

pub(crate) fn stall_options() -> Options {
    Options {
        stall_limit: STALL,
        ..Options::default()
    }
}

#[test]
fn readers_that_take_nothing_hold_little_and_not_for_long() {
    let before = resident_bytes();
    let arena = Arena::start(stall_options());
    let admin = arena.admin();
    // Ten queues with 1000 reads of 1 MiB each: 10 GB, were they all served.
    let mut hosts: Vec<RawHost> = (1..=10).map(|qid| arena.io(&admin, qid, 1023)).collect();
    let reads: Vec<u8> = (0..1000)
        .flat_map(|cid| capsule(&read_of(2048).with_cid(cid), &[]))
        .collect();
    for host in &mut hosts {
        assert!(host.send(&reads), "a queue holds that many");
    }
    arena.check_good_host();
    let began = Instant::now();
    for host in &mut hosts {
        // The kernel's socket buffers held a part, and then the connection ended.
        std::thread::sleep(STALL.mul_f32(1.6).saturating_sub(began.elapsed()));
        assert!(host.drain() < 64 * MIB);
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    let pool = arena.pool_bytes();
    assert!(
        pool <= 10 * 9 * MIB + 16 * MIB,
        "the pool grew to {} MiB",
        pool / MIB
    );
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 300 * MIB, "resident memory grew by {} MiB", grown / MIB);
    arena.finish();
}

#[test]
fn a_host_that_sends_on_and_reads_nothing_is_ended() {
    let arena = Arena::start(Options::default());
    let admin = arena.admin();
    let mut io = arena.io(&admin, 1, 31);
    // Each is answered at once. When the socket is full, the answers count as commands that the host cannot have
    // seen the end of: it has overrun its queue.
    let flushes: Vec<u8> = (0..1000)
        .flat_map(|cid| capsule(&Command::flush(1).with_cid(cid), &[]))
        .collect();
    let mut sent = 0;
    while io.stream.write_all(&flushes).is_ok() {
        sent += flushes.len();
        assert!(
            sent < 2048 * MIB,
            "the target took {} MiB of commands",
            sent / MIB
        );
    }
    let grown = resident_bytes();
    assert!(grown < 1024 * MIB, "resident memory is {} MiB", grown / MIB);
    arena.finish();
}

#[test]
fn writers_that_announce_and_send_nothing_hold_little_and_not_for_long() {
    let arena = Arena::start(stall_options());
    let admin = arena.admin();
    let mut hosts: Vec<RawHost> = (1..=10).map(|qid| arena.io(&admin, qid, 1023)).collect();
    let writes: Vec<u8> = (0..1000)
        .flat_map(|cid| capsule(&write_of(2048).with_cid(cid), &[]))
        .collect();
    for host in &mut hosts {
        assert!(host.send(&writes));
    }
    arena.check_good_host();
    for host in &mut hosts {
        // R2Ts for what the allowance lets through, and the end.
        let r2ts = host.drain() / 24;
        assert!((1..=8).contains(&r2ts), "{r2ts} R2Ts came");
    }
    let pool = arena.pool_bytes();
    assert!(
        pool <= 10 * 8 * MIB + 16 * MIB,
        "the pool grew to {} MiB",
        pool / MIB
    );
    arena.finish();
}

/// A log page of so many bytes.
fn log_of(bytes: u32) -> Command {
    GetLogPage::new(0xffff_ffff, LogPage::ErrorInformation.code(), bytes.into())
        .to_command()
        .with_transport_data(bytes)
}

#[test]
fn long_logs_that_nobody_takes_hold_little_and_nothing_of_the_pool() {
    let arena = Arena::start(stall_options());
    let before = resident_bytes();
    let mut hosts: Vec<RawHost> = (0..10).map(|_| arena.admin()).collect();
    let logs: Vec<u8> = (10..40)
        .flat_map(|cid| capsule(&log_of(MIB as u32).with_cid(cid), &[]))
        .collect();
    for host in &mut hosts {
        assert!(host.send(&logs));
    }
    arena.check_good_host();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "resident memory grew by {} MiB", grown / MIB);
    let pool = arena.pool_bytes();
    assert!(pool <= 16 * MIB, "the pool grew to {} MiB", pool / MIB);
    // Who takes them gets them all.
    let mut reader = arena.admin();
    assert!(reader.send(&logs));
    for _ in 10..40 {
        let pdu = reader.pdu().expect("every command is answered");
        assert_eq!(pdu[0], PduType::ControllerData as u8);
        assert_eq!(pdu.len() - 24, MIB);
    }
    arena.finish();
}

#[test]
fn admin_commands_that_need_no_room_go_on_while_others_wait_for_it() {
    let arena = Arena::start(Options::default());
    let mut host = arena.admin();
    // More than may be answered at a time, and behind them what needs no room.
    let mut sent: Vec<u8> = (10..30)
        .flat_map(|cid| capsule(&identify(4096).with_cid(cid), &[]))
        .collect();
    let alive = Command::new(AdminOpcode::KeepAlive.code(), 0);
    sent.extend((30..34).flat_map(|cid| capsule(&alive.with_cid(cid), &[])));
    assert!(host.send(&sent));
    let mut answered = Vec::new();
    while answered.len() < 24 {
        let pdu = host.pdu().expect("every command is answered");
        // Data come with the success flag, so each is one PDU.
        let at = if pdu[0] == PduType::ControllerData as u8 {
            8
        } else {
            20
        };
        answered.push(u16::from_le_bytes([pdu[at], pdu[at + 1]]));
    }
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(10..34), "{answered:?}");
    arena.finish();
}

#[test]
fn what_came_in_a_capsule_waits_for_a_full_pool_as_everything_else_does() {
    let arena = Arena::start(Options {
        held_bytes_max: 1 << 30,
        ..Options::default()
    });
    let admin = arena.admin();
    let mut other = arena.io(&admin, 1, 31);
    let mut hog = arena.io(&admin, 2, 1023);
    let writes: Vec<u8> = (0..1000)
        .flat_map(|cid| capsule(&write_of(2048).with_cid(cid), &[]))
        .collect();
    assert!(hog.send(&writes));
    arena.wait_until("the pool is full", || arena.pool_bytes() == 256 * MIB);
    let write = Command::write(1, Lba(0), BlockCount(16)).with_in_capsule_data(0, 8192);
    other.send_command(&write.with_cid(7), &[7; 8192]);
    other.send_command(&Command::flush(1).with_cid(8), &[]);
    // What comes first is the flush: the write waits.
    assert_eq!(other.completion().cid(), 8);
    drop(hog);
    let written = other.completion();
    assert_eq!((written.cid(), written.status()), (7, Status::SUCCESS));
    other.send_command(&read_of(16).with_cid(9), &[]);
    let pdu = other.pdu().expect("the blocks");
    assert_eq!(pdu[24..], [7; 8192]);
    arena.finish();
}

#[test]
fn an_allowance_that_is_used_up_loses_no_command() {
    let arena = Arena::start(Options {
        held_bytes_max: 64 << 10,
        ..Options::default()
    });
    let admin = arena.admin();
    let mut io = arena.io(&admin, 1, 1023);
    let reads: Vec<u8> = (0..500)
        .flat_map(|cid| capsule(&read_of(if cid % 50 == 0 { 2048 } else { 40 }).with_cid(cid), &[]))
        .collect();
    assert!(io.send(&reads));
    let mut seen = vec![false; 500];
    for _ in 0..500 {
        let pdu = io.pdu().expect("every command is answered");
        assert_eq!(pdu[0], PduType::ControllerData as u8);
        let cid = usize::from(u16::from_le_bytes([pdu[8], pdu[9]]));
        assert_eq!(pdu.len() - 24, if cid % 50 == 0 { MIB } else { 40 * 512 });
        assert!(!std::mem::replace(&mut seen[cid], true));
    }
    arena.finish();
}
