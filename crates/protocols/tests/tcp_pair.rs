//! Both ends of an NVMe/TCP connection joined in memory, the byte stream cut at random: every command
//! ends, every byte arrives where it belongs, and a wrong data digest fails its command and no other.
//! One seed gives one run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foundation::Random;
use foundation::checksum::crc32c;
use proptest::prelude::*;
use protocols::nvme::{Command, Completion};
use protocols::tcp::initiator::{self, Direction, Initiator, Options, Transfer};
use protocols::tcp::target::{self, Limits, QueueKind, Target};

const READ: u8 = 2;
const WRITE: u8 = 1;
const FLUSH: u8 = 0;
const DEPTH: u16 = 16;

#[derive(Clone, Copy, Debug)]
struct Setting {
    seed: u64,
    header_digest: bool,
    data_digest: bool,
    host_alignment: u8,
    controller_alignment: u8,
    host_r2t: u32,
    target_r2t: u32,
    r2t_bytes: u32,
    corrupt: bool,
}

fn settings() -> impl Strategy<Value = Setting> {
    let alignments = || prop_oneof![Just(0u8), 0u8..32];
    (
        any::<u64>(),
        any::<(bool, bool, bool)>(),
        (alignments(), alignments()),
        (1u32..6, 1u32..6),
        (1u32..4000).prop_map(|quarter| quarter * 4),
    )
        .prop_map(
            |(seed, (header_digest, data_digest, corrupt), alignments, r2t, r2t_bytes)| Setting {
                seed,
                header_digest,
                data_digest,
                host_alignment: alignments.0,
                controller_alignment: alignments.1,
                host_r2t: r2t.0,
                target_r2t: r2t.1,
                r2t_bytes,
                corrupt,
            },
        )
}

/// The data of the command with this serial number.
fn data_of(serial: u32, length: u32) -> Vec<u8> {
    (0..length)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ serial.wrapping_mul(97)) as u8)
        .collect()
}

fn encode(opcode: u8, cid: u16, serial: u32, length: u32, in_capsule: bool) -> Command {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    bytes[2..4].copy_from_slice(&cid.to_le_bytes());
    bytes[32..36].copy_from_slice(&length.to_le_bytes());
    bytes[39] = if in_capsule { 0x01 } else { 0x5a };
    bytes[40..44].copy_from_slice(&serial.to_le_bytes());
    Command::from_bytes(bytes)
}

fn word(bytes: &[u8; 64], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

fn completion(cid: u16, status: u16) -> Completion {
    let mut bytes = [0; 16];
    bytes[12..14].copy_from_slice(&cid.to_le_bytes());
    bytes[14..16].copy_from_slice(&(status << 1).to_le_bytes());
    Completion::from_bytes(bytes)
}

/// Transient Transport Error (NVM Express Base Specification 2.0, figure 93).
const TRANSIENT_TRANSPORT_ERROR: u16 = 0x22;

struct Job {
    serial: u32,
    opcode: u8,
    length: u32,
    read: Vec<u8>,
}

struct Host {
    machine: Initiator,
    jobs: BTreeMap<u16, Job>,
    transfers: BTreeMap<u16, VecDeque<(Transfer, u32)>>,
    out: Vec<u8>,
    finished: u32,
    failed: BTreeSet<u32>,
    /// Most transfers of one command that were open at once.
    deepest: usize,
}

struct Served {
    cid: u16,
    serial: u32,
    opcode: u8,
    length: u32,
    bytes: Vec<u8>,
    sent: u32,
}

struct Controller {
    machine: Target,
    served: BTreeMap<u16, Served>,
    reading: Vec<u16>,
    out: Vec<u8>,
}

struct World {
    setting: Setting,
    random: Random,
    host: Host,
    controller: Controller,
    /// Serial numbers of commands of which some PDU has had its data digest spoilt.
    spoilt: BTreeSet<u32>,
}

impl World {
    fn new(setting: Setting) -> Self {
        let machine = Initiator::new(Options {
            data_alignment: setting.host_alignment,
            header_digest: setting.header_digest,
            data_digest: setting.data_digest,
            max_outstanding_r2t: setting.host_r2t,
            queue_entries: u32::from(DEPTH),
        });
        let host = Host {
            machine,
            jobs: BTreeMap::new(),
            transfers: BTreeMap::new(),
            out: Vec::new(),
            finished: 0,
            failed: BTreeSet::new(),
            deepest: 0,
        };
        let controller = Controller {
            machine: Target::new(),
            served: BTreeMap::new(),
            reading: Vec::new(),
            out: Vec::new(),
        };
        Self {
            setting,
            random: Random::from_seed(setting.seed),
            host,
            controller,
            spoilt: BTreeSet::new(),
        }
    }

    /// The data digest of a PDU, spoilt now and then.
    fn digest(&mut self, serial: u32, bytes: &[u8]) -> u32 {
        let crc = crc32c(bytes);
        if self.setting.corrupt && self.random.chance(1, 8) {
            self.spoilt.insert(serial);
            crc ^ (1 << self.random.below(32))
        } else {
            crc
        }
    }

    fn submit(&mut self, serial: u32) {
        let cid = (0..DEPTH).find(|cid| !self.host.jobs.contains_key(cid)).unwrap();
        let opcode = [FLUSH, READ, WRITE, WRITE][self.random.below(4) as usize];
        let in_capsule = opcode == WRITE && self.random.chance(1, 2);
        let length = match opcode {
            FLUSH => 0,
            _ if in_capsule => self.random.between(1, 8192) as u32,
            _ => self.random.between(1, 40_000) as u32,
        };
        let command = encode(opcode, cid, serial, length, in_capsule);
        let mut out = std::mem::take(&mut self.host.out);
        self.host
            .machine
            .command(&command, in_capsule.then_some(length), &mut out);
        if in_capsule {
            let data = data_of(serial, length);
            out.extend_from_slice(&data);
            if self.host.machine.has_data_digest() {
                let crc = self.digest(serial, &data);
                self.host.machine.data_trailer(crc, &mut out);
            }
        } else if length > 0 {
            let direction = if opcode == READ {
                Direction::FromController
            } else {
                Direction::ToController
            };
            self.host.machine.expect(cid, direction, length);
        }
        self.host.out = out;
        let job = Job {
            serial,
            opcode,
            length,
            read: Vec::new(),
        };
        self.host.jobs.insert(cid, job);
    }

    /// Sends one H2CData of some command, of some size.
    fn send_host_data(&mut self) {
        let waiting: Vec<u16> = self.host.transfers.keys().copied().collect();
        if waiting.is_empty() {
            return;
        }
        let cid = waiting[self.random.below(waiting.len() as u64) as usize];
        let queue = self.host.transfers.get_mut(&cid).unwrap();
        let (transfer, done) = queue.front_mut().unwrap();
        let left = transfer.length - *done;
        let most = left.min(self.host.machine.max_h2c_data());
        let length = if self.random.chance(1, 2) {
            most
        } else {
            self.random.between(1, u64::from(most)) as u32
        };
        let offset = transfer.offset + *done;
        *done += length;
        let transfer = *transfer;
        if length == left {
            queue.pop_front();
            if queue.is_empty() {
                self.host.transfers.remove(&cid);
            }
        }
        let mut out = std::mem::take(&mut self.host.out);
        assert!(self.host.machine.data_header(&transfer, offset, length, &mut out));
        let job = &self.host.jobs[&cid];
        let (serial, all) = (job.serial, data_of(job.serial, job.length));
        let data = &all[offset as usize..(offset + length) as usize];
        out.extend_from_slice(data);
        if self.host.machine.has_data_digest() {
            let crc = self.digest(serial, data);
            self.host.machine.data_trailer(crc, &mut out);
        }
        self.host.out = out;
    }

    /// Sends one C2HData of some read, with or without the success flag at its end.
    fn send_controller_data(&mut self) {
        if self.controller.reading.is_empty() {
            return;
        }
        let index = self.random.below(self.controller.reading.len() as u64) as usize;
        let slot = self.controller.reading[index];
        let served = self.controller.served.get_mut(&slot).unwrap();
        let (cid, serial, offset) = (served.cid, served.serial, served.sent);
        let left = served.length - offset;
        let length = if self.random.chance(1, 2) {
            left
        } else {
            self.random.between(1, u64::from(left)) as u32
        };
        served.sent += length;
        let all = data_of(serial, served.length);
        let data = &all[offset as usize..(offset + length) as usize];
        let last = length == left;
        let success = last && self.random.chance(1, 2);
        let mut out = std::mem::take(&mut self.controller.out);
        self.controller
            .machine
            .data_header(slot, offset, length, last, success, &mut out);
        out.extend_from_slice(data);
        if self.controller.machine.has_data_digest() {
            let crc = self.digest(serial, data);
            self.controller.machine.data_trailer(crc, &mut out);
        }
        if last {
            self.controller.reading.swap_remove(index);
            self.controller.served.remove(&slot);
            if !success {
                self.controller
                    .machine
                    .response(slot, &completion(cid, 0), &mut out);
            }
        }
        self.controller.out = out;
    }

    /// Hands a random piece of what the host sent to the controller.
    fn deliver_to_controller(&mut self) {
        let count = piece(&mut self.random, self.host.out.len());
        let bytes: Vec<u8> = self.host.out.drain(..count).collect();
        let mut input = &bytes[..];
        let controller = &mut self.controller;
        while let Some(event) = controller.machine.receive(&mut input).expect("the host is right") {
            controller.handle(event, &self.setting, &self.spoilt);
        }
        assert!(input.is_empty());
        controller.machine.poll_transmit(&mut controller.out);
    }

    fn deliver_to_host(&mut self) {
        let count = piece(&mut self.random, self.controller.out.len());
        let bytes: Vec<u8> = self.controller.out.drain(..count).collect();
        let mut input = &bytes[..];
        while let Some(event) = self
            .host
            .machine
            .receive(&mut input)
            .expect("the controller is right")
        {
            self.host.handle(event, &self.spoilt);
        }
        assert!(input.is_empty());
    }

    fn run(&mut self, commands: u32) {
        self.host.machine.initialize(&mut self.host.out);
        let mut next = 0;
        // Each step moves at least one byte or one PDU while anything is left to do.
        for _ in 0..2_000_000 {
            if self.host.finished == commands {
                break;
            }
            let ready = self.host.machine.max_h2c_data() == 4100;
            match self.random.below(5) {
                0 if ready && next < commands && self.host.jobs.len() < DEPTH as usize => {
                    self.submit(next);
                    next += 1;
                }
                1 => self.send_host_data(),
                2 => self.send_controller_data(),
                3 => self.deliver_to_controller(),
                _ => self.deliver_to_host(),
            }
        }
        assert_eq!(
            self.host.finished, commands,
            "commands are stuck: {:?}",
            self.setting
        );
        assert_eq!(self.host.machine.outstanding(), 0);
        assert_eq!(self.controller.machine.outstanding(), 0);
        assert!(self.host.transfers.is_empty());
        assert_eq!(self.host.failed, self.spoilt, "exactly the spoilt commands fail");
    }
}

/// The length of a random piece: often a few bytes, often everything.
fn piece(random: &mut Random, all: usize) -> usize {
    let most = [3, 40, 5000, usize::MAX][random.below(4) as usize].min(all);
    random.between(0, most as u64) as usize
}

impl Controller {
    fn handle(&mut self, event: target::Event<'_>, setting: &Setting, spoilt: &BTreeSet<u32>) {
        match event {
            target::Event::Initialize(request) => {
                assert_eq!(request.max_r2t + 1, setting.host_r2t);
                let limits = Limits {
                    data_alignment: setting.controller_alignment,
                    max_h2c_data_bytes: 4100,
                    r2t_bytes: setting.r2t_bytes,
                    max_outstanding_r2t: setting.target_r2t,
                    ..Limits::default()
                };
                self.machine.accept(limits, &mut self.out);
                self.machine.set_queue_size(u32::from(DEPTH), QueueKind::Io);
            }
            target::Event::Command {
                slot,
                command,
                in_capsule_length,
            } => {
                let bytes = command.as_bytes();
                let served = Served {
                    cid: u16::from_le_bytes([bytes[2], bytes[3]]),
                    serial: word(bytes, 40),
                    opcode: bytes[0],
                    length: word(bytes, 32),
                    bytes: Vec::new(),
                    sent: 0,
                };
                let (cid, length) = (served.cid, served.length);
                match served.opcode {
                    READ => {
                        self.reading.push(slot);
                        assert!(self.served.insert(slot, served).is_none());
                    }
                    WRITE => {
                        if in_capsule_length == 0 {
                            // Every other one in two parts.
                            let held_back = if served.serial.is_multiple_of(2) {
                                0
                            } else {
                                length / 3
                            };
                            self.machine
                                .request_data_but(slot, length, held_back, &mut self.out);
                        } else {
                            assert_eq!(in_capsule_length, length);
                        }
                        assert!(self.served.insert(slot, served).is_none());
                    }
                    _ => self.machine.response(slot, &completion(cid, 0), &mut self.out),
                }
            }
            target::Event::Payload { slot, offset, bytes } => {
                let served = self.served.get_mut(&slot).unwrap();
                assert_eq!(offset as usize, served.bytes.len());
                served.bytes.extend_from_slice(bytes);
            }
            target::Event::PartComplete { slot, .. } => {
                let served = &self.served[&slot];
                assert_eq!(served.bytes.len() as u32, served.length - served.length / 3);
                self.machine.request_rest(slot, &mut self.out);
            }
            target::Event::PayloadComplete { slot, digest_ok } => {
                let served = self.served.remove(&slot).unwrap();
                assert_eq!(served.opcode, WRITE);
                assert!(
                    served.bytes == data_of(served.serial, served.length),
                    "the bytes are the host's"
                );
                assert_eq!(digest_ok, !spoilt.contains(&served.serial));
                let status = if digest_ok { 0 } else { TRANSIENT_TRANSPORT_ERROR };
                self.machine
                    .response(slot, &completion(served.cid, status), &mut self.out);
            }
            target::Event::HostTermination(termination) => panic!("{termination}"),
        }
    }
}

impl Host {
    fn end(&mut self, cid: u16, failed: bool) {
        let job = self.jobs.remove(&cid).unwrap();
        if job.opcode == READ {
            assert!(
                job.read == data_of(job.serial, job.length),
                "the bytes are the controller's"
            );
        }
        if failed {
            self.failed.insert(job.serial);
        }
        self.finished += 1;
    }

    fn handle(&mut self, event: initiator::Event<'_>, spoilt: &BTreeSet<u32>) {
        match event {
            initiator::Event::Ready(response) => assert_eq!(response.max_h2c_data_bytes, 4100),
            initiator::Event::Data { cid, offset, bytes } => {
                let job = self.jobs.get_mut(&cid).unwrap();
                assert_eq!(offset as usize, job.read.len());
                job.read.extend_from_slice(bytes);
            }
            initiator::Event::DataComplete {
                cid,
                length,
                success,
                digest_ok,
            } => {
                let job = &self.jobs[&cid];
                assert_eq!(length, job.length);
                assert_eq!(digest_ok, !spoilt.contains(&job.serial));
                if success {
                    self.end(cid, !digest_ok);
                }
            }
            initiator::Event::Response {
                completion,
                digest_ok,
            } => {
                let bytes = completion.as_bytes();
                let cid = u16::from_le_bytes([bytes[12], bytes[13]]);
                let status = u16::from_le_bytes([bytes[14], bytes[15]]) >> 1;
                assert!(!self.transfers.contains_key(&cid), "data was still asked for");
                self.end(cid, status != 0 || !digest_ok);
            }
            initiator::Event::Transfer(transfer) => {
                let queue = self.transfers.entry(transfer.cid).or_default();
                queue.push_back((transfer, 0));
                self.deepest = self.deepest.max(queue.len());
            }
            initiator::Event::TargetTermination(termination) => panic!("{termination}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn everything_arrives(setting in settings()) {
        let mut world = World::new(setting);
        world.run(60);
    }
}

/// That the cases above reach what they are for: several R2Ts of a command open at once, digests spoilt
/// in both directions.
#[test]
fn the_interesting_happens() {
    let setting = Setting {
        seed: 7,
        header_digest: true,
        data_digest: true,
        host_alignment: 3,
        controller_alignment: 2,
        host_r2t: 4,
        target_r2t: 3,
        r2t_bytes: 4096,
        corrupt: true,
    };
    let mut world = World::new(setting);
    world.run(200);
    assert_eq!(world.host.deepest, 3, "as many R2Ts at once as both allow");
    assert!(
        world.spoilt.len() > 10 && world.spoilt.len() < 190,
        "{} spoilt",
        world.spoilt.len()
    );
    let mut again = World::new(setting);
    again.run(200);
    assert_eq!(again.spoilt, world.spoilt, "one seed, one run");
}
