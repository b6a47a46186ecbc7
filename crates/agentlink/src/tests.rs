use super::*;
use proptest::prelude::*;

/// Frames as releases wrote them before there was [`Frame`]; each line a name and the bytes.
const GOLDEN: &str = include_str!("../golden/frames.txt");
const CHUNK: Chunk = Chunk { volume: 7, index: 3 };

fn configuration() -> Configuration {
    Configuration {
        epoch: 9,
        write_node: 1 << 100,
        members: vec![(1, 2), (3, 4)],
    }
}

fn disk() -> Disk {
    Disk {
        uuid: 1 << 90,
        path: "/dev/nvme0n1".to_owned(),
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
    }
}

/// One of each kind, in the order of the kinds.
fn to_target() -> Vec<ToTarget> {
    let export = Export {
        volume: 7,
        uuid: 1 << 70,
        geometry: vec![1, 2, 3],
        nqn: "nqn.2026-11.io.redhare:volume:x".to_owned(),
        hosts: vec!["nqn.2014-08.org.nvmexpress:uuid:x".to_owned()],
        place: 1,
        elsewhere: vec!["127.0.0.1:4421".to_owned()],
    };
    vec![
        ToTarget::Peers(vec![(5, "127.0.0.1:4420".to_owned())]),
        ToTarget::CreateCopy {
            chunk: CHUNK,
            geometry: vec![1, 2, 3],
            disk: 8,
        },
        ToTarget::DeleteVolume { volume: 7 },
        ToTarget::Configure {
            chunk: CHUNK,
            configuration: configuration(),
        },
        ToTarget::Ended {
            node: 1,
            incarnation: 2,
        },
        ToTarget::DeleteCopy {
            chunk: CHUNK,
            epoch: 4,
        },
        ToTarget::Exports(vec![export]),
        ToTarget::Routes {
            volume: 7,
            chunks: vec![(3, configuration())],
        },
        ToTarget::CreateCopyWithSums {
            chunk: CHUNK,
            geometry: vec![4, 5],
            disk: 9,
        },
        ToTarget::DeleteSnapshots(vec![(7, 1 << 50)]),
        ToTarget::DataKeys(DataKeys {
            required: true,
            keys: vec![(3, Secret::new(vec![77; 32]))],
            nodes_prove: false,
            passes: vec![(5, Secret::new(vec![78; 32]), Secret::new(vec![79; 32]))],
        }),
    ]
}

fn hello() -> FromTarget {
    FromTarget::Hello {
        cluster: 1 << 120,
        node: 1 << 100,
        incarnation: 3,
        address: "127.0.0.1:4420".to_owned(),
        disks: vec![disk()],
        copies: vec![(CHUNK, 9)],
    }
}

/// The same the other way.
fn from_target() -> Vec<FromTarget> {
    let health = DiskHealth {
        uuid: 1 << 90,
        path: "/dev/nvme0n1".to_owned(),
        is_full: true,
        failures: 2,
        standing_ms: 300,
        resets: [4, 3, 2, 1],
        cured: [1, 1, 1, 1],
        needs_process: true,
        left_out: Some("it does not answer".to_owned()),
    };
    vec![
        hello(),
        FromTarget::CopyReady { chunk: CHUNK },
        FromTarget::CopyFailed {
            chunk: CHUNK,
            why: "no room".to_owned(),
        },
        FromTarget::Propose {
            chunk: CHUNK,
            expected: 8,
            configuration: configuration(),
        },
        FromTarget::Disks(vec![disk()]),
        FromTarget::Resyncs(vec![Resync {
            chunk: CHUNK,
            node: 1,
            left_bytes: 5,
            total_bytes: 6,
            elapsed_ms: 7,
        }]),
        FromTarget::CopyDeleted { chunk: CHUNK },
        FromTarget::WantRoutes { volume: 7 },
        FromTarget::Snapshots(vec![(7, 1 << 50)]),
        FromTarget::WantDataKeys,
        FromTarget::Health(vec![health]),
    ]
}

fn frame(message: &impl Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes
}

/// A frame as releases wrote it that know nothing of what may stand behind a message.
fn frame_before(message: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_allocvec(message).unwrap();
    framed(&body)
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn golden(direction: &str) -> Vec<(String, Vec<u8>)> {
    let lines = GOLDEN.lines().filter_map(|line| line.strip_prefix(direction));
    let read = |line: &str| {
        let (name, digits) = line.trim().split_once(' ').unwrap();
        let pairs = digits.trim().as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        (name.to_owned(), pairs.map(byte).collect())
    };
    lines.map(read).collect()
}

/// The kind's name as Debug has it.
fn name(message: &impl std::fmt::Debug) -> String {
    let shown = format!("{message:?}");
    let end = shown.find(|c: char| !c.is_alphanumeric());
    shown[..end.unwrap_or(shown.len())].to_owned()
}

fn are_read<T: Frame + PartialEq + std::fmt::Debug>(direction: &str, messages: Vec<T>) {
    let frames = golden(direction);
    let printed: Vec<String> = messages
        .iter()
        .map(|message| format!("{direction} {} {}", name(message), hex(&frame_before(message))))
        .collect();
    assert_eq!(frames.len(), messages.len(), "now:\n{}", printed.join("\n"));
    for ((kind, bytes), message) in frames.iter().zip(&messages) {
        assert_eq!(*kind, name(message));
        // What is written today, as far as the earlier release reads it, is what that one wrote.
        assert_eq!(hex(bytes), hex(&frame_before(message)), "{kind}");
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        assert_eq!(decoder.take::<T>().unwrap().as_ref(), Some(message), "{kind}");
        assert_eq!((decoder.told(), decoder.left_out()), (None, 0), "{kind}");
    }
}

#[test]
fn frames_of_earlier_releases_are_read_and_written_as_they_were() {
    are_read("to-target", to_target());
    are_read("from-target", from_target());
}

#[test]
fn frames_of_this_release_are_as_the_next_one_will_find_them() {
    for (message, golden) in [
        (ToTarget::Known(12), "0200000001000b0c"),
        (
            ToTarget::KeepSnapshots(vec![(7, 300, 3)]),
            "0600000001000c0107ac0203",
        ),
        (
            ToTarget::CloneCopy {
                chunk: Chunk { volume: 9, index: 1 },
                geometry: vec![1, 2],
                disk: 3,
                checksums: true,
                volume: 7,
                snapshot: 300,
            },
            "0b00000001000d0901020102030107ac02",
        ),
        (ToTarget::Flatten(vec![7, 9]), "0400000001000e020709"),
        (
            ToTarget::Reservations {
                volume: 7,
                request: 300,
                answer: Err("x".to_owned()),
            },
            "0700000001000f07ac02010178",
        ),
        (
            ToTarget::ReservationsChanged {
                volume: 7,
                version: 300,
            },
            "0400000001001007ac02",
        ),
        (
            ToTarget::NoteSnapshots(vec![SnapshotNote {
                volume: 7,
                number: 300,
                chunks: 3,
                created_unix_ms: 1000,
                name: "ab".to_owned(),
            }]),
            "0b0000000100110107ac0203e807026162",
        ),
        (
            ToTarget::SyncWrites {
                volume: 300,
                is_on: true,
            },
            "04000000010013ac0201",
        ),
        (
            ToTarget::Places {
                volume: 300,
                chunks: vec![(3, vec![(5, 9)])],
            },
            "08000000010014ac020103010509",
        ),
        (
            ToTarget::Doubted {
                right: vec![(
                    Chunk {
                        volume: 300,
                        index: 3,
                    },
                    9,
                )],
                wrong: Vec::new(),
            },
            "0700000001001501ac02030900",
        ),
        (
            ToTarget::MoveCopy {
                chunk: Chunk {
                    volume: 300,
                    index: 3,
                },
                disk: 9,
            },
            "05000000010016ac020309",
        ),
    ] {
        assert_eq!(hex(&frame(&message)), golden, "{message:?}");
    }
    assert_eq!(hex(&frame(&FromTarget::WantSnapshots)), "0100000001000b");
    assert_eq!(
        hex(&frame(&FromTarget::Flattening(vec![(7, 300, 3)]))),
        "0600000001000c0107ac0203"
    );
    let reserve = FromTarget::Reserve {
        volume: 7,
        request: 300,
        call: ReservationCall::Read,
    };
    assert_eq!(hex(&frame(&reserve)), "0500000001000d07ac0200");
    assert_eq!(
        hex(&frame(&FromTarget::Held(vec![(300, 1 << 21)]))),
        "0800000001000e01ac0280808001"
    );
    assert_eq!(
        hex(&frame(&FromTarget::SyncWrites(vec![300]))),
        "0400000001001001ac02"
    );
    assert_eq!(
        hex(&frame(&FromTarget::Used(vec![(300, 1 << 21, 0)]))),
        "0900000001001101ac028080800100"
    );
    let kept = FromTarget::Kept {
        lists: 3,
        copies: 300,
        digest: 128,
    };
    assert_eq!(hex(&frame(&kept)), "0600000001001203ac028001");
    let chunk = Chunk {
        volume: 300,
        index: 3,
    };
    assert_eq!(
        hex(&frame(&FromTarget::Doubtful(vec![(chunk, 9)]))),
        "0600000001001301ac020309"
    );
    let damage = Damage {
        copies: vec![CopyDamage {
            chunk,
            damaged: 5,
            repaired: 4,
            lost: 1,
        }],
        scrub_oldest_unix_ms: 1000,
        scrubbed_blocks: 300,
    };
    assert_eq!(
        hex(&frame(&FromTarget::Damage(damage))),
        "0c00000001001401ac0203050401e807ac02"
    );
    assert_eq!(
        hex(&frame(&FromTarget::Release("0.2.0".to_owned()))),
        "0700000001001505302e322e30"
    );
    let loss = SnapshotLoss {
        chunk,
        snapshot: 128,
        lost: 5,
    };
    assert_eq!(
        hex(&frame(&FromTarget::SnapshotLosses(vec![loss]))),
        "0800000001001601ac0203800105"
    );
    assert_eq!(
        hex(&frame(&FromTarget::Differing(vec![(chunk, 5)]))),
        "0600000001001701ac020305"
    );
    let moved = |why: Option<&str>| FromTarget::Moved {
        chunk,
        disk: 9,
        why: why.map(str::to_owned),
    };
    assert_eq!(hex(&frame(&moved(None))), "06000000010018ac02030900");
    assert_eq!(hex(&frame(&moved(Some("x")))), "08000000010018ac020309010178");
}

#[test]
fn a_reader_of_an_earlier_release_takes_todays_first_frame() {
    let bytes = frame(&hello());
    assert_ne!(bytes, frame_before(&hello()));
    // That is all that one did with a body.
    let read: FromTarget = postcard::from_bytes(&bytes[HEAD_BYTES..]).unwrap();
    assert_eq!(read, hello());
}

#[test]
fn what_each_side_knows_is_counted_right() {
    let last = |bytes: Vec<u8>| u32::from(bytes[HEAD_BYTES]);
    let sync_writes = ToTarget::SyncWrites {
        volume: 1,
        is_on: true,
    };
    let places = ToTarget::Places {
        volume: 1,
        chunks: Vec::new(),
    };
    assert_eq!(last(frame(&sync_writes)) + 1, ToTarget::KINDS_OF_SYNC_WRITES);
    assert_eq!(last(frame(&places)), ToTarget::KINDS_OF_SYNC_WRITES);
    let doubted = ToTarget::Doubted {
        right: Vec::new(),
        wrong: Vec::new(),
    };
    assert_eq!(last(frame(&doubted)) + 2, ToTarget::KINDS);
    let chunk = CHUNK;
    let moves = ToTarget::MoveCopy { chunk, disk: 1 };
    assert_eq!(last(frame(&moves)) + 1, ToTarget::KINDS);
    assert_eq!(ToTarget::KINDS, ToTarget::KINDS_OF_MOVES);
    assert_eq!(
        last(frame(&FromTarget::Used(Vec::new()))) + 1,
        FromTarget::KINDS_OF_USE
    );
    let kept = FromTarget::Kept {
        lists: 0,
        copies: 0,
        digest: 0,
    };
    assert_eq!(last(frame(&kept)) + 1, FromTarget::KINDS_OF_KEPT);
    let doubtful = FromTarget::Doubtful(Vec::new());
    assert_eq!(last(frame(&doubtful)) + 1, FromTarget::KINDS_OF_DOUBT);
    let damage = FromTarget::Damage(Damage::default());
    assert_eq!(last(frame(&damage)) + 1, FromTarget::KINDS_OF_DAMAGE);
    let release = FromTarget::Release(String::new());
    assert_eq!(last(frame(&release)) + 1, FromTarget::KINDS_OF_RELEASE);
    let losses = FromTarget::SnapshotLosses(Vec::new());
    assert_eq!(last(frame(&losses)) + 1, FromTarget::KINDS_OF_SNAPSHOT_LOSSES);
    let differing = FromTarget::Differing(Vec::new());
    assert_eq!(last(frame(&differing)) + 1, FromTarget::KINDS_OF_DIFFERING);
    let (disk, why) = (1, None);
    let moved = FromTarget::Moved { chunk, disk, why };
    assert_eq!(last(frame(&moved)) + 1, FromTarget::KINDS);
    assert_eq!(FromTarget::KINDS, FromTarget::KINDS_OF_MOVES);
    assert_eq!(
        last(frame(&FromTarget::WantDataKeys)) + 1,
        FromTarget::KINDS_BEFORE
    );
    let next = framed(&[u8::try_from(ToTarget::KINDS).unwrap()]);
    assert!(
        postcard::from_bytes::<ToTarget>(&next[HEAD_BYTES..]).is_err(),
        "count the new kind"
    );
    let next = framed(&[u8::try_from(FromTarget::KINDS).unwrap()]);
    assert!(
        postcard::from_bytes::<FromTarget>(&next[HEAD_BYTES..]).is_err(),
        "count the new kind"
    );
}

#[test]
fn a_target_says_what_it_knows_and_hears_nothing_else() {
    let mut decoder = Decoder::default();
    decoder.push(&frame(&hello()));
    assert_eq!(decoder.take::<FromTarget>().unwrap(), Some(hello()));
    assert_eq!(decoder.told(), Some(ToTarget::KINDS));
    let mut out = vec![1, 2];
    let known = ToTarget::Known(FromTarget::KINDS);
    assert!(!encode_known(&known, ToTarget::KINDS_BEFORE, &mut out));
    assert_eq!(out, [1, 2]);
    assert!(encode_known(&known, ToTarget::KINDS, &mut out));
    assert_eq!(out[2..], frame(&known));
}

#[test]
fn kinds_of_later_releases_are_left_out() {
    let mut decoder = Decoder::default();
    decoder.push(&framed(&[100, 1, 2, 3]));
    // A kind whose number takes more than a byte.
    decoder.push(&framed(&[0xc8, 0x01]));
    decoder.push(&frame(&FromTarget::WantDataKeys));
    decoder.push(&framed(&[50]));
    assert_eq!(decoder.take().unwrap(), Some(FromTarget::WantDataKeys));
    assert_eq!(decoder.take::<FromTarget>().unwrap(), None);
    assert_eq!(decoder.left_out(), 3);
    // What is of a known kind and makes no sense ends the connection still, and so does nothing at all.
    for body in [&[3][..], &[]] {
        let mut decoder = Decoder::default();
        decoder.push(&framed(body));
        assert_eq!(decoder.take::<FromTarget>(), Err(FrameError::Body));
    }
}

#[test]
fn frames_come_out_as_they_went_in_however_cut() {
    let bytes: Vec<u8> = to_target().iter().flat_map(frame).collect();
    for cut in 1..20 {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(cut) {
            decoder.push(piece);
            while let Some(message) = decoder.take::<ToTarget>().unwrap() {
                found.push(message);
            }
        }
        assert_eq!(found, to_target());
    }
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?}", to_target());
    assert!(
        shown.contains("Secret(..)") && !shown.contains("77") && !shown.contains("79"),
        "{shown}"
    );
}

#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = frame(&to_target()[0]);
    bytes[4] = 9;
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    let error = decoder.take::<ToTarget>().unwrap_err();
    assert_eq!(error, FrameError::Version { found: 9 });
    assert!(error.to_string().contains("speaks version 9"));
}

proptest! {
    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut decoder = Decoder::default();
        decoder.push(&framed(&bytes));
        let _ = decoder.take::<ToTarget>();
        let _ = decoder.take::<FromTarget>();
    }
}
