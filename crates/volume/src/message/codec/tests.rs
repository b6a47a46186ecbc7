//! The codec against itself, against noise and against its table.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::configuration::Membership;
use crate::identity::NodeId;

const TABLE: &str = include_str!("../../../../../docs/formats/peer.md");

fn chunk() -> impl Strategy<Value = ChunkId> {
    any::<(u32, u32)>().prop_map(|(volume, index)| ChunkId {
        volume: VolumeNumber(volume),
        index: ChunkIndex(index),
    })
}

fn config() -> impl Strategy<Value = ChunkConfig> {
    (1u64.., 1u128..1 << 100, vec(any::<u64>(), 1..16)).prop_map(|(epoch, first, lives)| {
        let members = lives.iter().enumerate().map(|(index, &life)| Membership {
            node: NodeId(first + index as u128),
            incarnation: Incarnation(life),
        });
        ChunkConfig {
            epoch: Epoch(epoch),
            write_node: NodeId(first),
            members: members.collect(),
        }
    })
}

fn replica_write() -> impl Strategy<Value = Message> {
    let numbers = any::<([u64; 6], [u32; 3], bool, bool)>();
    let kind = prop_oneof![
        Just(WriteKind::Data),
        Just(WriteKind::Zeroes),
        Just(WriteKind::Deallocate),
        Just(WriteKind::Fence)
    ];
    (chunk(), numbers, kind, proptest::option::of(any::<u64>())).prop_map(
        |(chunk, (n, d, open, force_unit_access), kind, session)| {
            Message::ReplicaWrite(ReplicaWrite {
                chunk,
                epoch: Epoch(n[0]),
                sequence: Sequence(n[1]),
                settled: Sequence(n[2]),
                open,
                range: BlockRange {
                    start: d[0],
                    count: d[1],
                },
                kind,
                force_unit_access,
                session: session.map(|number| Session {
                    host: HostId(n[3]),
                    number,
                }),
                writer_token: WriterToken(n[4]),
                join: JoinNumber(d[2]),
                trace: TraceId(n[5]),
            })
        },
    )
}

fn command() -> impl Strategy<Value = Message> {
    prop_oneof![
        replica_write(),
        (chunk(), config()).prop_map(|(chunk, config)| Message::Seal { chunk, config }),
        (chunk(), any::<[u64; 3]>(), any::<bool>()).prop_map(|(chunk, n, open)| {
            Message::Settle {
                chunk,
                epoch: Epoch(n[0]),
                settled: Sequence(n[1]),
                flushed: Sequence(n[2]),
                open,
            }
        }),
        (chunk(), any::<[u64; 2]>(), any::<u32>()).prop_map(|(chunk, n, join)| Message::Flush {
            chunk,
            epoch: Epoch(n[0]),
            number: n[1],
            join: JoinNumber(join),
        }),
        (
            chunk(),
            any::<[u64; 3]>(),
            vec(any::<u32>(), 0..20),
            any::<bool>()
        )
            .prop_map(|(chunk, n, marks, takes_marks)| Message::Return {
                chunk,
                epoch: Epoch(n[0]),
                incarnation: Incarnation(n[1]),
                flushed_in: Epoch(n[2]),
                marks,
                takes_marks,
            }),
        (
            chunk(),
            any::<[u64; 3]>(),
            any::<u32>(),
            vec(any::<(u64, u64)>(), 0..20),
            vec(any::<u32>(), 0..20)
        )
            .prop_map(|(chunk, n, join, sessions, marks)| {
                let session = |(host, number)| Session {
                    host: HostId(host),
                    number,
                };
                Message::Join {
                    chunk,
                    epoch: Epoch(n[0]),
                    join: JoinNumber(join),
                    incarnation: Incarnation(n[1]),
                    writer_token: WriterToken(n[2]),
                    sessions: sessions.into_iter().map(session).collect(),
                    marks,
                }
            }),
        (chunk(), any::<u64>(), any::<u32>()).prop_map(|(chunk, epoch, join)| Message::Announce {
            chunk,
            epoch: Epoch(epoch),
            join: JoinNumber(join),
        }),
        (chunk(), any::<[u64; 2]>(), any::<[u32; 2]>(), 0..3).prop_map(
            |(chunk, [epoch, number], d, kind)| {
                let epoch = Epoch(epoch);
                let range = BlockRange {
                    start: d[0],
                    count: d[1],
                };
                match kind {
                    0 => Message::Repair { chunk, epoch, range },
                    1 => Message::Lost { chunk, epoch, range },
                    _ => Message::Fetch {
                        chunk,
                        epoch,
                        number,
                        range,
                        any: number.is_multiple_of(2),
                    },
                }
            }
        ),
        (chunk(), any::<[u64; 3]>(), any::<bool>()).prop_map(|(chunk, n, cuts)| {
            let (epoch, snapshot) = (Epoch(n[0]), SnapshotId(n[1]));
            match cuts {
                true => Message::Snapshot {
                    chunk,
                    epoch,
                    snapshot,
                    sequence: Sequence(n[2]),
                },
                false => Message::Confirm {
                    chunk,
                    epoch,
                    snapshot,
                },
            }
        }),
        (any::<(u64, u32, u32)>(), vec((chunk(), any::<u64>()), 0..20)).prop_map(|(n, list)| {
            Message::Enroll {
                incarnation: Incarnation(n.0),
                part: n.1,
                list: n.2,
                entries: list.into_iter().map(|(c, e)| (c, Epoch(e))).collect(),
            }
        }),
        any::<(u64, u64, Option<u32>, u32)>().prop_map(|(incarnation, round, part, list)| {
            Message::Beacon {
                incarnation: Incarnation(incarnation),
                round,
                part,
                list,
            }
        }),
        chunk().prop_map(|chunk| Message::Query { chunk }),
    ]
}

/// An answer that fits a command.
fn answer(command: &Message, n: u64, marks: Vec<u32>, config: ChunkConfig) -> Message {
    let incarnation = Incarnation(n);
    let plain = EncodedAnswer {
        result: 1,
        refusal: None,
        data: vec![],
    };
    match *command {
        Message::Seal {
            chunk,
            config: ref sealed,
        } => Message::SealAnswer(SealAnswer {
            chunk,
            epoch: sealed.epoch,
            incarnation,
            highest: Sequence(n / 3),
            sessions: marks
                .iter()
                .map(|&m| Session {
                    host: HostId(m.into()),
                    number: n,
                })
                .collect(),
            marks,
            writer_token: WriterToken(n / 2),
            stays: n % 2 == 1,
        }),
        Message::Beacon {
            incarnation,
            round,
            part,
            list,
        } => Message::Grant {
            incarnation,
            round,
            list,
            known: n.is_multiple_of(2),
            keeps_parts: part.is_some() && n.is_multiple_of(3),
            refused: marks
                .iter()
                .map(|&m| ChunkId {
                    volume: VolumeNumber(m),
                    index: ChunkIndex(1),
                })
                .collect(),
        },
        Message::Query { chunk } => Message::QueryAnswer {
            chunk,
            sealed: Epoch(n),
            config: n.is_multiple_of(2).then_some(config),
        },
        Message::Fetch {
            chunk,
            epoch,
            number,
            range,
            any,
        } => Message::FetchAnswer {
            chunk,
            epoch,
            number,
            incarnation,
            range,
            any,
            found: n.is_multiple_of(2),
        },
        ref other => decode_answer(other, incarnation, &plain).unwrap(),
    }
}

proptest! {
    #[test]
    fn commands_say_what_was_said(message in command()) {
        let encoded = encode_command(&message).unwrap();
        prop_assert_eq!(decode_command(&encoded.fields, &encoded.data), Ok(message.clone()));
        if matches!(message, Message::ReplicaWrite(_)) {
            prop_assert_eq!(encoded.data.len(), REPLICA_TAIL_BYTES);
        }
        let writes = encoded.fields.opcode & 3 == 1;
        prop_assert_eq!(writes, !encoded.data.is_empty());
        for length in 0..encoded.data.len() {
            prop_assert!(decode_command(&encoded.fields, &encoded.data[..length]).is_err());
        }
    }

    #[test]
    fn answers_say_what_was_said(command in command(), n: u64, marks in vec(any::<u32>(), 0..9), config in config()) {
        let answered_at_once = matches!(
            command,
            Message::Enroll { .. } | Message::Return { .. } | Message::Repair { .. } | Message::Lost { .. }
        );
        prop_assume!(!answered_at_once);
        let message = answer(&command, n, marks, config);
        let encoded = encode_answer(&message).unwrap();
        prop_assert_eq!(decode_answer(&command, Incarnation(n), &encoded), Ok(message));
        let refused = EncodedAnswer { result: n, refusal: Some(Refusal::StaleEpoch), data: vec![] };
        let said = decode_answer(&command, Incarnation(1), &refused);
        let is_refusal = matches!(said, Ok(Message::Refused { sealed: Epoch(e), .. }) if e == n);
        prop_assert!(is_refusal);
    }

    #[test]
    fn noise_never_panics(words in any::<[u32; 6]>(), opcode: u8, cdw3: u32, version: bool, data in vec(any::<u8>(), 0..300), command in command()) {
        let cdw3 = if version { cdw3 & !0xff | u32::from(VERSION) } else { cdw3 };
        let fields = CommandFields { opcode, cdw3, cdw10_15: words, ..Default::default() };
        let _ = decode_command(&fields, &data);
        let native = NativeFields::decode(&fields);
        let mut again = fields;
        native.encode(&mut again);
        prop_assert_eq!(again, fields);
        let answer = EncodedAnswer { result: 1, refusal: None, data };
        let _ = decode_answer(&command, Incarnation(1), &answer);
    }
}

#[test]
fn the_table_names_every_opcode_with_its_direction() {
    use opcode::*;
    for (name, code) in [
        ("Replica Write", REPLICA_WRITE),
        ("Seal", SEAL),
        ("Seal Answer", SEAL_ANSWER),
        ("Settle", SETTLE),
        ("Flush Copy", FLUSH),
        ("Enroll", ENROLL),
        ("Beacon", BEACON),
        ("Query", QUERY),
        ("Return", RETURN),
        ("Join", JOIN),
        ("Announce", ANNOUNCE),
        ("Repair", REPAIR),
        ("Lost", LOST),
        ("Fetch", FETCH),
        ("Snapshot", SNAPSHOT),
        ("Confirm", CONFIRM),
    ] {
        let direction = ["none", "to controller", "to host"][usize::from(code & 3)];
        let row = format!("| {code:02X}h | {name} | {direction} |");
        assert!(TABLE.contains(&row), "docs/formats/peer.md lacks {row}");
        assert!(code >= 0x80);
    }
    for (code, name) in [
        (0xc0, "stale epoch"),
        (0xc1, "not a member"),
        (0xc2, "wrong join"),
        (0xc3, "device failed"),
        (0xc6, "no snapshot"),
    ] {
        let refusal = Refusal::from_status_code(code).unwrap();
        assert_eq!(refusal.status_code(), code);
        assert!(TABLE.contains(&format!("{code:02X}h {name}")), "{name}");
    }
    assert_eq!(Refusal::from_status_code(0), None);
    assert!(TABLE.contains(&format!("version {VERSION}")));
    assert!(TABLE.contains(&format!("{REPLICA_TAIL_BYTES} bytes")));
}

#[test]
fn a_replica_write_lies_where_the_table_says() {
    let write = ReplicaWrite {
        chunk: ChunkId {
            volume: VolumeNumber(0x11),
            index: ChunkIndex(0x22),
        },
        epoch: Epoch(0x33),
        sequence: Sequence(0x4_0000_0005),
        settled: Sequence(0x6_0000_0007),
        open: true,
        range: BlockRange { start: 8, count: 9 },
        kind: WriteKind::Zeroes,
        force_unit_access: true,
        session: Some(Session {
            host: HostId(0xa),
            number: 0xb,
        }),
        writer_token: WriterToken(0xc),
        join: JoinNumber(0xd),
        trace: TraceId(0xe),
    };
    let encoded = encode_command(&Message::ReplicaWrite(write)).unwrap();
    let fields = encoded.fields;
    assert_eq!((fields.nsid, fields.cdw2, fields.mptr), (0x11, 0x22, 0x33));
    assert_eq!(fields.cdw3.to_le_bytes(), [VERSION, 7, 1, 0]);
    assert_eq!(fields.cdw10_15, [8, 9, 5, 4, 7, 6]);
    let at = |offset: usize| encoded.data[offset];
    assert_eq!([at(0), at(8), at(16), at(24), at(32)], [0xa, 0xb, 0xc, 0xd, 0xe]);
}
