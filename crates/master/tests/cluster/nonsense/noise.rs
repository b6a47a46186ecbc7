//! Messages by chance: bytes that are none, and messages in which numbers, names and lengths are others than they were. Whatever comes, the
//! master answers, the pages that show its cluster included.

use std::path::Path;
use std::time::Duration;

use foundation::Random;
use master::v1;
use prost::Message;
use tonic::Code;

use super::raw::{Answer, Raw};
use super::rows::Given;
use super::{declared, given, rows};
use crate::fake::{Running, client, config, runtime, uuid};
use crate::http::get;

/// Rounds, each at a master of its own: it may be told that its store is an old one, and then changes nothing any more.
const ROUNDS: u64 = 2;
/// Messages that a round sends of each call; of those that could be meant twice as many.
const MESSAGES: usize = 20;
/// Messages that are under way at a time.
const AT_A_TIME: usize = 256;
/// Some calls wait for nodes, which say nothing here.
const LIMIT: Duration = Duration::from_millis(250);
/// Messages in messages are changed so deep.
const DEPTH: usize = 3;

/// Where numbers end, and what stands beside. None makes a volume of more chunks than a test has time for.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    255,
    256,
    65_535,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    u64::MAX / 2,
    u64::MAX / 2 + 1,
    u64::MAX - 1,
    u64::MAX,
];

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn random_bytes(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.next_u64() as u8).collect()
}

/// What may stand where a name, a UUID, a list or a message stands.
fn random_field(random: &mut Random) -> Vec<u8> {
    let length = random.below(40) as usize;
    match random.below(9) {
        0 => Vec::new(),
        1 => vec![7; 3],
        2 => uuid(random.below(4) as u8),
        3 => uuid(100 + random.below(4) as u8),
        4 => b"data".to_vec(),
        5 => b"a/../\x1b[2J\n".to_vec(),
        6 => vec![b'x'; 100 * length],
        7 => random_bytes(random, 16),
        _ => random_bytes(random, length),
    }
}

fn put_field(out: &mut Vec<u8>, tag: u64, field: &[u8]) {
    put_number(out, tag);
    put_number(out, field.len() as u64);
    out.extend_from_slice(field);
}

/// The message with some of its fields changed, left out or twice (Protocol Buffers, "Encoding"), one in `one_in` or fewer. What is no
/// message stays as it is.
fn changed(message: &[u8], one_in: u64, depth: usize, random: &mut Random) -> Vec<u8> {
    let (mut rest, mut out) = (message, Vec::new());
    while !rest.is_empty() {
        let Some(tag) = take_number(&mut rest) else {
            return message.to_vec();
        };
        let times = match random.below(4 * one_in) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        let is_changed = random.chance(1, one_in);
        match tag & 7 {
            0 => {
                let Some(number) = take_number(&mut rest) else {
                    return message.to_vec();
                };
                for _ in 0..times {
                    put_number(&mut out, tag);
                    put_number(&mut out, if is_changed { number_of(random) } else { number });
                }
            }
            2 => {
                let length = take_number(&mut rest).and_then(|length| usize::try_from(length).ok());
                let Some((field, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
                    return message.to_vec();
                };
                rest = after;
                let field = match random.below(2) {
                    _ if !is_changed => field.to_vec(),
                    0 if depth > 0 => changed(field, one_in, depth - 1, random),
                    _ => random_field(random),
                };
                for _ in 0..times {
                    put_field(&mut out, tag, &field);
                }
            }
            wide @ (1 | 5) => {
                let length = if wide == 1 { 8 } else { 4 };
                let Some((field, after)) = rest.split_at_checked(length) else {
                    return message.to_vec();
                };
                rest = after;
                put_number(&mut out, tag);
                out.extend_from_slice(field);
            }
            _ => return message.to_vec(),
        }
    }
    // One more, of any number.
    if random.chance(1, 3 * one_in) {
        let tag = random.between(1, 26) << 3;
        match random.chance(1, 2) {
            true => put_field(&mut out, tag | 2, &random_field(random)),
            false => {
                put_number(&mut out, tag);
                let number = number_of(random);
                put_number(&mut out, number);
            }
        }
    }
    out
}

fn number_of(random: &mut Random) -> u64 {
    NUMBERS[random.below(NUMBERS.len() as u64) as usize]
}

/// Messages that could be meant, of calls whose rows are all refused before much is looked at.
fn meant(given: &Given) -> Vec<(&'static str, Vec<u8>)> {
    let disk = |number| v1::Disk {
        uuid: uuid(number),
        capacity_bytes: 1 << 30,
        used_bytes: 1 << 20,
        held_bytes: Some(1 << 10),
    };
    let register = v1::RegisterRequest {
        node: uuid(3),
        peer_address: "192.0.2.3:4420".to_owned(),
        disks: vec![disk(103), disk(104)],
        rack: "r1".to_owned(),
        ..v1::RegisterRequest::default()
    };
    let heartbeat = v1::HeartbeatRequest {
        cluster: given.cluster.clone(),
        node: uuid(1),
        incarnation: 1,
        disks: vec![disk(101), disk(102)],
        prepared_volumes: vec![1, 2],
        removed_volumes: vec![1],
        ended_through: 0,
        resyncs: (0..3)
            .map(|index| v1::Resync {
                volume: 1,
                index,
                node: uuid(2),
                left_bytes: 1 << 20,
                total_bytes: 2 << 20,
                elapsed_ms: 1000,
            })
            .collect(),
        copies: vec![
            v1::ChunkId { volume: 1, index: 0 },
            v1::ChunkId { volume: 7, index: 9 },
        ],
        grown_volumes: vec![v1::Growing {
            volume: 1,
            from_chunk: 4,
            chunks: 5,
        }],
        snapshots: vec![v1::SnapshotId { volume: 1, number: 1 }],
        disk_health: vec![v1::DiskHealth {
            uuid: uuid(101),
            state: v1::DiskState::Slow.into(),
            why: "slow".to_owned(),
            path: "/dev/x".to_owned(),
            failures: 1,
            resets: vec![1, 2, 3, 4],
            ..v1::DiskHealth::default()
        }],
        samples: [101, 102, 103, 104]
            .map(|number| v1::DiskSample {
                node: uuid(1),
                disk: uuid(number),
                disk_us: 5000,
                disk_p99_us: 6000,
                answer_us: 5500,
                answer_p99_us: 7000,
                samples: 10,
                missed: 1,
                missed_now: 0,
            })
            .to_vec(),
        complete_snapshots: Some(1),
        flattening: vec![v1::Flattening {
            volume: 1,
            left_copies: 1,
            copies: 2,
        }],
        knows_reservations: true,
        described_copies: vec![v1::CopyState {
            volume: 1,
            index: 0,
            found: true,
            disk: uuid(101),
            sealed_epoch: 1,
            configured_epoch: 1,
            write_node: uuid(1),
            members: given.chunk.copies.clone(),
            flushed_epoch: 1,
            told_epoch: 1,
            told_write_node: uuid(1),
            told_members: given.chunk.copies.clone(),
            token: 1,
        }],
        knows_sync_writes: true,
        sync_volumes: vec![1],
        uses: Some(v1::VolumeUses {
            volumes: vec![v1::VolumeUse {
                volume: 1,
                used_bytes: 1 << 20,
                held_bytes: 1 << 10,
            }],
        }),
        kept_copies: Some(v1::KeptCopies { count: 1, digest: 1 }),
        damage: Some(v1::Damage {
            copies: vec![v1::CopyDamage {
                volume: 1,
                index: 0,
                damaged_blocks: 2,
                repaired_blocks: 1,
                lost_blocks: 1,
                differing_blocks: 1,
            }],
            snapshots: vec![v1::SnapshotLoss {
                volume: 1,
                index: 0,
                snapshot: 1,
                lost_blocks: 1,
            }],
            scrub: Some(v1::Scrub {
                oldest_unix_ms: 1,
                compared_blocks: 1,
            }),
        }),
        releases: Some(v1::Releases {
            engine: "0.1.0".to_owned(),
            target: "0.1.0".to_owned(),
        }),
        ..v1::HeartbeatRequest::default()
    };
    let create = v1::CreateVolumeRequest {
        name: "more".to_owned(),
        size_bytes: 60 << 20,
        chunk_bytes: 16 << 20,
        copies: 2,
        minimum: 1,
        stripe_width: 2,
        portals: vec![uuid(1)],
        write_pin: uuid(1),
        no_wait: true,
        checksums: true,
        spread: v1::Spread::Node.into(),
        ..v1::CreateVolumeRequest::default()
    };
    let resize = v1::ResizeVolumeRequest {
        name: "data".to_owned(),
        size_bytes: 96 << 20,
        no_wait: true,
        ..v1::ResizeVolumeRequest::default()
    };
    let export = v1::ExportVolumeRequest {
        name: "data".to_owned(),
        nodes: vec![uuid(1), uuid(2)],
        count: 2,
        hosts: vec!["nqn.2014-08.org.nvmexpress:uuid:1".to_owned()],
    };
    let replace = v1::ReplaceReservationsRequest {
        volume: 1,
        node: uuid(1),
        expected: 0,
        reservations: Some(v1::HostReservations {
            r#type: 1,
            holder: uuid(9),
            registrants: vec![v1::Registrant {
                host: uuid(9),
                key: 5,
            }],
            notices: vec![v1::ReservationNotice {
                version: 1,
                host: uuid(9),
                r#type: 1,
            }],
            ..v1::HostReservations::default()
        }),
        restricts: true,
    };
    let propose = v1::ProposeConfigurationRequest {
        node: given.chunk.write_node.clone(),
        incarnation: 1,
        expected_epoch: given.chunk.epoch,
        volume: 1,
        index: 0,
        write_node: given.chunk.write_node.clone(),
        members: given.chunk.copies.clone(),
    };
    let acquire = v1::AcquireWriterRequest {
        volume: 1,
        holder: "noise".to_owned(),
        term_ms: 1000,
        session: uuid(9),
        take_over: true,
    };
    let hold = v1::HoldReaderRequest {
        volume: 1,
        session: uuid(9),
        holder: "noise".to_owned(),
        generation: 5,
    };
    let force = v1::ForceServeRequest {
        name: "data".to_owned(),
        copies: vec![v1::ForcedCopy {
            index: 0,
            node: uuid(1),
            epoch: given.chunk.epoch,
            shown: vec![v1::UnservedCopy {
                copy: given.chunk.copies.first().cloned(),
                heard: true,
                worth: v1::CopyWorth::LeftOut.into(),
                epoch: 1,
                ..v1::UnservedCopy::default()
            }],
        }],
    };
    vec![
        ("Nodes/Register", register.encode_to_vec()),
        ("Nodes/Heartbeat", heartbeat.encode_to_vec()),
        ("Nodes/Heartbeats", heartbeat.encode_to_vec()),
        ("Volumes/Create", create.encode_to_vec()),
        ("Volumes/Resize", resize.encode_to_vec()),
        ("Volumes/Export", export.encode_to_vec()),
        ("Volumes/ForceServe", force.encode_to_vec()),
        ("Reservations/Replace", replace.encode_to_vec()),
        ("Chunks/ProposeConfiguration", propose.encode_to_vec()),
        ("Leases/AcquireWriter", acquire.encode_to_vec()),
        ("Leases/HoldReader", hold.encode_to_vec()),
    ]
}

/// The messages of a round, with the calls they are for, in an order of their own.
fn messages(given: &Given, random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let mut known: Vec<(&str, Vec<u8>)> = meant(given);
    known.extend(rows::all(given).into_iter().map(|row| (row.call, row.message)));
    let mut messages = Vec::new();
    for call in declared() {
        let of_call: Vec<&Vec<u8>> = known
            .iter()
            .filter(|(known, _)| *known == call)
            .map(|(_, message)| message)
            .collect();
        let is_meant = meant(given).iter().any(|(meant, _)| *meant == call);
        for number in 0..if is_meant { 2 * MESSAGES } else { MESSAGES } {
            let message = match number % 4 {
                0 => {
                    let length = random.below(200) as usize;
                    random_bytes(random, length)
                }
                // The first one is what could be meant, where there is such a one. Of long ones most is to stay.
                1 | 2 if is_meant => {
                    let one_in = [3, 10, 40][random.below(3) as usize];
                    changed(of_call[0], one_in, DEPTH, random)
                }
                _ => {
                    let any = random.below(of_call.len() as u64) as usize;
                    changed(of_call[any], 3, DEPTH, random)
                }
            };
            messages.push((call.clone(), message));
        }
    }
    for place in (1..messages.len()).rev() {
        messages.swap(place, random.below(place as u64 + 1) as usize);
    }
    messages
}

fn hex(message: &[u8]) -> String {
    message
        .iter()
        .take(400)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Why an answer is none that a master gives to noise; none if it may be.
fn fault(answer: &Answer) -> Option<String> {
    let Answer::Refused(code, message) = answer else {
        return match answer {
            Answer::Broken(why) => Some(format!("broke the connection: {why}")),
            _ => None,
        };
    };
    let is_answer = match code {
        // What is no message at all, as gRPC has it.
        Code::Internal => message.contains("failed to decode Protobuf message"),
        // Calls for which nodes have to be heard, or the masters to find out what nodes have done.
        Code::Unavailable => !message.contains("is ending"),
        Code::Unknown | Code::DataLoss | Code::Unimplemented => false,
        _ => !message.is_empty(),
    };
    (!is_answer).then(|| format!("was answered {code:?} \"{message}\""))
}

fn begin(directory: &Path) -> Running {
    let mut config = config(directory, 0);
    // Nodes that have stopped to speak count as living all along.
    config.settings.heartbeat_timeout = Duration::from_secs(60);
    config.http = Some(([127, 0, 0, 1], 0).into());
    Running::begin(config)
}

async fn round(master: &Running, seed: u64) {
    let client = client(master.port()).await;
    let (given, nodes) = given(&client).await;
    drop(nodes);
    let raw = Raw::connect(master.port()).await;
    let mut random = Random::from_seed(seed);
    for batch in messages(&given, &mut random).chunks(AT_A_TIME) {
        let mut asked = tokio::task::JoinSet::new();
        for (call, message) in batch {
            let (raw, call, message) = (raw.clone(), call.clone(), message.clone());
            asked.spawn(async move {
                let answer = raw.ask(&call, message.clone(), LIMIT).await;
                fault(&answer).map(|fault| format!("{call} {fault}; the message: {}", hex(&message)))
            });
        }
        let faults: Vec<String> = asked.join_all().await.into_iter().flatten().collect();
        assert!(faults.is_empty(), "seed {seed}:\n{}", faults.join("\n"));
        let status = client.status(v1::GetStatusRequest {}).await;
        let calls: Vec<&String> = batch.iter().map(|(call, _)| call).collect();
        assert!(
            status.is_ok(),
            "seed {seed}: no status after {calls:?}: {status:?}"
        );
    }
    let http = master.http().unwrap();
    for path in ["/", "/metrics", "/status.json"] {
        let page = tokio::task::spawn_blocking(move || get(http, path))
            .await
            .unwrap();
        assert!(page.starts_with("HTTP/1.1 200 "), "seed {seed}: {path}: {page}");
    }
}

#[test]
fn noise_is_answered_and_the_master_goes_on() {
    for seed in 1..=ROUNDS {
        let directory = tempfile::tempdir().unwrap();
        let master = begin(directory.path());
        runtime().block_on(round(&master, seed));
        master.end();
    }
}
