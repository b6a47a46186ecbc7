//! What earlier releases put on the wire and on disks (`golden/formats.txt`, a name and the bytes a line) is read as what it
//! was, and the same things are written as they wrote them.

use std::fmt::Debug;

use foundation::Epoch;

use crate::message::SealAnswer;
use crate::message::codec::{
    CommandFields, EncodedAnswer, decode_answer, decode_command, encode_answer, encode_command, opcode,
};
use crate::{
    BlockRange, ChunkConfig, ChunkId, ChunkIndex, ChunkRecord, ClusterId, FormatError, Geometry, HostId,
    Incarnation, JoinNumber, Membership, Message, NodeId, RecordDelta, ReplicaWrite, Sequence, Session,
    SnapshotId, TraceId, VolumeNumber, WriteKind, WriterToken,
};

const GOLDEN: &str = include_str!("../golden/formats.txt");
const CHUNK: ChunkId = ChunkId {
    volume: VolumeNumber(0x11),
    index: ChunkIndex(0x22),
};
const EPOCH: Epoch = Epoch(0x33);
const JOIN: JoinNumber = JoinNumber(0xd);
const LIFE: Incarnation = Incarnation(0x44);
const SNAPSHOT: SnapshotId = SnapshotId(0x55);
const RANGE: BlockRange = BlockRange { start: 8, count: 9 };

fn config() -> ChunkConfig {
    let member = |node: u128| Membership {
        node: NodeId(node),
        incarnation: Incarnation(node as u64 + 5),
    };
    ChunkConfig {
        epoch: EPOCH,
        write_node: NodeId(2),
        members: vec![member(1), member(2), member(1 << 100)],
    }
}

fn session() -> Session {
    Session {
        host: HostId(0xa),
        number: 0xb,
    }
}

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        metadata_bytes: 8,
        stripe_unit_blocks: 4,
        chunk_blocks: 256,
        region_blocks: 2,
        copies: 3,
        minimum: 2,
        group_chunks: vec![2, 3],
    }
}

fn write(kind: WriteKind) -> Message {
    Message::ReplicaWrite(ReplicaWrite {
        chunk: CHUNK,
        epoch: EPOCH,
        sequence: Sequence(0x4_0000_0005),
        settled: Sequence(0x6_0000_0007),
        open: true,
        range: RANGE,
        kind,
        force_unit_access: true,
        session: Some(session()),
        writer_token: WriterToken(0xc),
        join: JOIN,
        trace: TraceId(0xe),
    })
}

/// Each peer command by its name in the table, and an answer to it if that carries data.
fn commands() -> Vec<(&'static str, Message, Option<Message>)> {
    let (chunk, epoch, join, snapshot, range) = (CHUNK, EPOCH, JOIN, SNAPSHOT, RANGE);
    let sealed = Message::SealAnswer(SealAnswer {
        chunk,
        epoch,
        incarnation: LIFE,
        highest: Sequence(0x66),
        marks: vec![1, 5],
        sessions: vec![session()],
        writer_token: WriterToken(0xc),
        stays: false,
    });
    let granted = Message::Grant {
        incarnation: LIFE,
        round: 7,
        list: 3,
        known: true,
        keeps_parts: false,
        refused: vec![CHUNK],
    };
    let granted_of_part = Message::Grant {
        incarnation: LIFE,
        round: 7,
        list: 3,
        known: true,
        keeps_parts: true,
        refused: vec![CHUNK],
    };
    let found = Message::QueryAnswer {
        chunk,
        sealed: epoch,
        config: Some(config()),
    };
    vec![
        ("replica-write-data", write(WriteKind::Data), None),
        ("replica-write-zeroes", write(WriteKind::Zeroes), None),
        ("replica-write-deallocate", write(WriteKind::Deallocate), None),
        ("replica-write-fence", write(WriteKind::Fence), None),
        ("replica-write-lost", write(WriteKind::Lost), None),
        (
            "seal",
            Message::Seal {
                chunk,
                config: config(),
            },
            Some(sealed),
        ),
        (
            "settle",
            Message::Settle {
                chunk,
                epoch,
                settled: Sequence(4),
                flushed: Sequence(3),
                open: true,
            },
            None,
        ),
        (
            "flush-copy",
            Message::Flush {
                chunk,
                epoch,
                number: 5,
                join,
            },
            None,
        ),
        (
            "enroll",
            Message::Enroll {
                incarnation: LIFE,
                part: 0,
                list: 3,
                entries: vec![(CHUNK, EPOCH)],
            },
            None,
        ),
        (
            "beacon",
            Message::Beacon {
                incarnation: LIFE,
                round: 7,
                part: None,
                list: 3,
            },
            Some(granted),
        ),
        ("query", Message::Query { chunk }, Some(found)),
        (
            "return",
            Message::Return {
                chunk,
                epoch,
                incarnation: LIFE,
                flushed_in: Epoch(2),
                marks: vec![1, 5],
                takes_marks: false,
            },
            None,
        ),
        (
            "return-that-takes-marks",
            Message::Return {
                chunk,
                epoch,
                incarnation: LIFE,
                flushed_in: Epoch(2),
                marks: vec![1, 5],
                takes_marks: true,
            },
            None,
        ),
        (
            "join",
            Message::Join {
                chunk,
                epoch,
                join,
                incarnation: LIFE,
                writer_token: WriterToken(0xc),
                sessions: vec![session()],
                marks: Vec::new(),
            },
            None,
        ),
        (
            "join-with-marks",
            Message::Join {
                chunk,
                epoch,
                join,
                incarnation: LIFE,
                writer_token: WriterToken(0xc),
                sessions: vec![session()],
                marks: vec![1, 5],
            },
            None,
        ),
        ("announce", Message::Announce { chunk, epoch, join }, None),
        ("repair", Message::Repair { chunk, epoch, range }, None),
        ("lost", Message::Lost { chunk, epoch, range }, None),
        (
            "snapshot",
            Message::Snapshot {
                chunk,
                epoch,
                snapshot,
                sequence: Sequence(9),
            },
            None,
        ),
        (
            "confirm",
            Message::Confirm {
                chunk,
                epoch,
                snapshot,
            },
            None,
        ),
        (
            "fetch",
            Message::Fetch {
                chunk,
                epoch,
                number: 6,
                range,
                any: false,
            },
            None,
        ),
        (
            "fetch-of-any",
            Message::Fetch {
                chunk,
                epoch,
                number: 6,
                range,
                any: true,
            },
            None,
        ),
        (
            "enroll-part",
            Message::Enroll {
                incarnation: LIFE,
                part: 0x77,
                list: 3,
                entries: vec![(CHUNK, EPOCH)],
            },
            None,
        ),
        (
            "beacon-part",
            Message::Beacon {
                incarnation: LIFE,
                round: 7,
                part: Some(0x77),
                list: 3,
            },
            Some(granted_of_part),
        ),
    ]
}

/// The fields as they lie in the command, each little-endian, and the data after them.
fn lay(fields: &CommandFields, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![fields.opcode];
    for word in [fields.nsid, fields.cdw2, fields.cdw3] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&fields.mptr.to_le_bytes());
    for word in fields.cdw10_15 {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(data);
    bytes
}

fn unlay(bytes: &[u8]) -> (CommandFields, Vec<u8>) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let fields = CommandFields {
        opcode: bytes[0],
        nsid: word(1),
        cdw2: word(5),
        cdw3: word(9),
        mptr: u64::from(word(13)) | u64::from(word(17)) << 32,
        cdw10_15: std::array::from_fn(|index| word(21 + 4 * index)),
    };
    (fields, bytes[45..].to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Names that were looked at, and what is wrong.
#[derive(Default)]
struct Found {
    names: Vec<String>,
    wrong: Vec<String>,
}

impl Found {
    /// The kept bytes are those that are written now, and `read` finds in them what they are.
    fn compare<T: PartialEq + Debug>(
        &mut self,
        name: &str,
        what: &T,
        now: &[u8],
        read: impl Fn(&[u8]) -> Result<T, FormatError>,
    ) {
        self.names.push(name.to_owned());
        let line = format!("{name} {}", hex(now));
        let kept = GOLDEN.lines().find(|line| line.starts_with(&format!("{name} ")));
        if kept != Some(&line) {
            self.wrong.push(line);
            return;
        }
        let (_, digits) = line.split_once(' ').unwrap();
        assert_eq!(read(&unhex(digits)).as_ref(), Ok(what), "{name}");
    }

    fn peers(&mut self) {
        for (name, command, answer) in commands() {
            let encoded = encode_command(&command).unwrap();
            let bytes = lay(&encoded.fields, &encoded.data);
            self.compare(name, &command, &bytes, |bytes| {
                let (fields, data) = unlay(bytes);
                decode_command(&fields, &data)
            });
            let Some(answer) = answer else { continue };
            let encoded = encode_answer(&answer).unwrap();
            let bytes = [&encoded.result.to_le_bytes()[..], &encoded.data].concat();
            self.compare(&format!("{name}-answer"), &answer, &bytes, |bytes| {
                let answer = EncodedAnswer {
                    result: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
                    refusal: None,
                    data: bytes[8..].to_vec(),
                };
                decode_answer(&command, LIFE, &answer)
            });
        }
    }

    fn disks(&mut self) {
        let deltas = [
            ("record-sealed", RecordDelta::Sealed(config())),
            (
                "record-mark",
                RecordDelta::Mark {
                    region: 3,
                    epoch: EPOCH,
                },
            ),
            ("record-clear", RecordDelta::Clear { regions: vec![3, 4] }),
            ("record-session", RecordDelta::Session(session())),
            ("record-writer", RecordDelta::Writer(WriterToken(0xc))),
            ("record-flushed", RecordDelta::Flushed(EPOCH)),
            ("record-forget", RecordDelta::Forget(HostId(0xff))),
        ];
        let mut record = ChunkRecord::new(ClusterId(1 << 90), CHUNK, geometry());
        self.compare("record-new", &record, &record.encode(), ChunkRecord::decode);
        for (name, delta) in deltas {
            self.compare(name, &delta, &delta.encode(), RecordDelta::decode);
            record.apply(&delta);
        }
        record.apply(&RecordDelta::Session(session()));
        record.apply(&RecordDelta::Mark {
            region: 7,
            epoch: EPOCH,
        });
        self.compare("record", &record, &record.encode(), ChunkRecord::decode);
        self.compare("geometry", &geometry(), &geometry().encode(), Geometry::decode);
        // Of the page only what is not zero at its end is kept. A block of zeros, one of which nothing is known, one whose sum
        // would say that, and one like others.
        let mut sums = vec![0; crate::sums::SUMS_PER_PAGE as usize];
        sums[..4].copy_from_slice(&[0, u32::MAX, u32::MAX - 1, 0x1234_5678]);
        let (number, generation) = (3, 9);
        let page = crate::sums::encode(CHUNK, number, generation, &sums);
        let end = page
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        let found = Some((generation, sums));
        self.compare("sums-page", &found, &page[..end], |bytes| {
            let mut page = bytes.to_vec();
            page.resize(crate::sums::SUM_PAGE_BYTES, 0);
            crate::sums::decode(CHUNK, number, &page)
        });
    }
}

#[test]
fn what_earlier_releases_wrote_is_read_and_written_as_it_was() {
    let mut found = Found::default();
    found.peers();
    found.disks();
    assert!(
        found.wrong.is_empty(),
        "as written now:\n{}",
        found.wrong.join("\n")
    );
    let kept: Vec<&str> = GOLDEN.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kept, found.names, "each kept line is looked at, in its order");
}

#[test]
fn a_later_peer_and_its_commands_are_refused_by_name() {
    let encoded = encode_command(&Message::Query { chunk: CHUNK }).unwrap();
    let mut later = encoded.fields;
    later.cdw3 = later.cdw3 & !0xff | 2;
    let error = decode_command(&later, &encoded.data).unwrap_err();
    assert_eq!(
        error,
        FormatError::Version {
            what: "peer command",
            found: 2,
            known: 1
        }
    );
    // An opcode that no release has had yet; the node answers Invalid Field in Command, and the sender does without.
    let unknown = CommandFields {
        opcode: opcode::FETCH + 0x10,
        ..encoded.fields
    };
    assert!(decode_command(&unknown, &[]).is_err());
}

#[test]
fn later_records_are_refused_by_name() {
    let record = ChunkRecord::new(ClusterId(1 << 90), CHUNK, geometry());
    for (mut bytes, what) in [
        (record.encode(), "chunk record"),
        (geometry().encode(), "geometry"),
    ] {
        bytes[8] = 2;
        // The checksum of the table: bytes 0 to 15 and the body.
        let mut sum = foundation::checksum::Crc32c::new();
        sum.update(&bytes[..16]);
        sum.update(&bytes[24..]);
        bytes[16..20].copy_from_slice(&sum.value().to_le_bytes());
        let error = match what {
            "chunk record" => ChunkRecord::decode(&bytes).unwrap_err(),
            _ => Geometry::decode(&bytes).unwrap_err(),
        };
        assert!(
            matches!(
                error,
                FormatError::Version {
                    found: 2,
                    known: 1,
                    ..
                }
            ),
            "{what}: {error}"
        );
    }
}
