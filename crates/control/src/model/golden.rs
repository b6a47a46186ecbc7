//! Records as earlier releases wrote them (`golden/records.txt`: name, key and value of each) are read as what they were, and
//! what says no more than they could is written as they wrote it.

use std::fmt::Debug;
use std::time::Duration;

use foundation::{ByteCount, Epoch};

use super::*;
use crate::identity::{
    ClusterId, DiskId, Incarnation, JoinTokenId, NodeId, SessionId, SnapshotNumber, Uuid, VolumeNumber,
    WriterToken,
};
use crate::racks::{Rack, Spread};
use crate::record::Record;

const GOLDEN: &str = include_str!("../../golden/records.txt");

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
    fn compare<R: Record + PartialEq + Debug>(&mut self, name: &str, key: &[u8], record: &R) {
        self.names.push(name.to_owned());
        let line = format!("{name} {} {}", hex(key), hex(&record.encode(key)));
        let kept = GOLDEN.lines().find(|line| line.starts_with(&format!("{name} ")));
        if kept != Some(&line) {
            self.wrong.push(line);
            return;
        }
        let value = unhex(line.rsplit(' ').next().unwrap());
        assert_eq!(R::decode(key, &value).as_ref(), Ok(record), "{name}");
    }
}

fn volume() -> Volume {
    Volume {
        number: VolumeNumber(7),
        name: "data".to_owned(),
        uuid: Uuid(1 << 100),
        geometry: Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit: ByteCount(256 << 10),
            chunk: ByteCount(256 << 20),
            region: ByteCount(1 << 20),
            copies: 3,
            minimum: 2,
            group_chunks: vec![8, 3],
        },
        state: VolumeState::Ready,
        portals: vec![NodeId(Uuid(1)), NodeId(Uuid(2))],
        write_pin: Some(NodeId(Uuid(3))),
        hosts: Vec::new(),
        growth: Vec::new(),
        checksums: false,
        origin: None,
        spread: None,
        sync_writes: false,
    }
}

fn chunk() -> Chunk {
    let copy = |node: u128, incarnation: u64| Copy {
        node: NodeId(Uuid(node)),
        disk: DiskId(Uuid(node + 100)),
        incarnation: (incarnation > 0).then_some(Incarnation(incarnation)),
    };
    Chunk {
        epoch: Epoch(9),
        write_node: NodeId(Uuid(1)),
        copies: vec![copy(1, 5), copy(2, 0), copy(3, 6)],
        recovery: true,
    }
}

fn volumes(found: &mut Found) {
    let growth = Volume {
        growth: vec![8, 1],
        ..volume()
    };
    let hosts = Volume {
        hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
        ..volume()
    };
    let checksums = Volume {
        checksums: true,
        ..hosts.clone()
    };
    let origin = Volume {
        origin: Some(Origin {
            volume: VolumeNumber(3),
            snapshot: SnapshotNumber((5 << 32) + 2),
            flattening: true,
        }),
        ..checksums.clone()
    };
    let spread = Volume {
        spread: Some(Spread::Rack),
        ..origin.clone()
    };
    let spread_alone = Volume {
        spread: Some(Spread::Node),
        ..volume()
    };
    let sync_writes = Volume {
        sync_writes: true,
        ..spread.clone()
    };
    let sync_writes_alone = Volume {
        sync_writes: true,
        ..volume()
    };
    for (version, record) in [
        (1, volume()),
        (2, growth),
        (3, hosts),
        (4, checksums),
        (5, origin),
    ] {
        assert_eq!(record.version(), version);
        found.compare(&format!("volume-{version}"), b"volume/\0\0\0\x07", &record);
    }
    for (name, record) in [("volume-6", spread), ("volume-6-alone", spread_alone)] {
        assert_eq!(record.version(), 6);
        found.compare(name, b"volume/\0\0\0\x07", &record);
    }
    for (name, record) in [("volume-7", sync_writes), ("volume-7-alone", sync_writes_alone)] {
        assert_eq!(record.version(), 7);
        found.compare(name, b"volume/\0\0\0\x07", &record);
    }
    found.compare("chunk", b"chunk/\0\0\0\x07\0\0\0\x01", &chunk());
    let moving = Moving {
        from: NodeId(Uuid(1)),
        to: NodeId(Uuid(2)),
        by_command: true,
    };
    found.compare("move", b"move/\0\0\0\x07\0\0\0\x01", &moving);
    let moving = DiskMove {
        node: NodeId(Uuid(1)),
        from: DiskId(Uuid(101)),
        to: DiskId(Uuid(102)),
        bytes: ByteCount(256 << 20),
    };
    found.compare("disk-move", b"disk-move/\0\0\0\x07\0\0\0\x01", &moving);
    let snapshot = Snapshot {
        volume: VolumeNumber(7),
        number: SnapshotNumber(3),
        name: "monday".to_owned(),
        state: SnapshotState::Complete,
        chunks: 11,
        created_unix_ms: 1_700_000_000_000,
    };
    found.compare("snapshot", b"snapshot/\0\0\0\x07\0\0\0\0\0\0\0\x03", &snapshot);
    let writer = WriterLease {
        token: WriterToken(12),
        session: Some(SessionId(Uuid(3))),
        holder: "host a, import".to_owned(),
        term: Duration::from_millis(30_500),
    };
    found.compare("writer", b"writer/\0\0\0\x07", &writer);
    let reader = ReaderLease {
        holder: "host b".to_owned(),
        generation: 99,
    };
    found.compare("reader", b"reader/\0\0\0\x07................", &reader);
    let reservations = Reservations {
        version: 5,
        token: WriterToken(4),
        enforced: WriterToken(3),
        generation: 6,
        persistent: true,
        kind: 1,
        holder: [7; 16],
        registrants: [([7; 16], 0x1234)].into(),
        notices: vec![ReservationNotice {
            version: 5,
            host: [8; 16],
            kind: 2,
        }],
        change: 0x0102_0304_0506_0708,
    };
    found.compare("reservations", b"reservations/\0\0\0\x07", &reservations);
}

fn cluster(found: &mut Found) {
    let cluster = ClusterRecord {
        id: ClusterId(Uuid(77)),
        features: 0,
    };
    found.compare("cluster", b"cluster", &cluster);
    let node = Node {
        peer_address: "[::1]:4420".to_owned(),
        rack: None,
        incarnation: Incarnation(4),
        ended_through: Incarnation(3),
        disks: vec![Disk {
            id: DiskId(Uuid(8)),
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        }],
    };
    found.compare("node", b"node/................", &node);
    let in_rack = Node {
        rack: Some(Rack::new("hall2-r07").unwrap()),
        ..node
    };
    assert_eq!((in_rack.version(), in_rack.encode(b"key")[5]), (2, 2));
    found.compare("node-2", b"node/................", &in_rack);
    found.compare("number", b"next-volume", &Number(1 << 40));
    let token = JoinToken {
        id: JoinTokenId([1, 2, 3, 4, 5, 6, 7, 8]),
        secret_sha256: [0xab; 32],
        role: JoinRole::Client,
        name: "trainer".to_owned(),
        uses: 3,
        created_unix_s: 1_700_000_000,
        expires_unix_s: 1_700_086_400,
        certificate_term: Duration::from_secs(90 * 86_400),
        creator: "alice".to_owned(),
        joined: vec![[1; 32], [2; 32]],
    };
    found.compare("join-token", b"join-token/........", &token);
    let keys = DataKeys {
        keys: vec![(1, DataSecret::new([1; 32])), (2, DataSecret::new([2; 32]))],
        current: 1,
        turned_unix_ms: 1_700_000_000_000,
        required_unix_ms: 1,
    };
    found.compare("data-keys", b"data-key/", &keys);
    found.compare("closed", b"closed", &crate::transfer::Closed::Moved);
    let restored = crate::transfer::Restored { revision: 0x0102 };
    found.compare("restored", b"restored", &restored);
}

#[test]
fn records_of_earlier_releases_are_read_and_written_as_they_were() {
    let mut found = Found::default();
    cluster(&mut found);
    volumes(&mut found);
    assert!(
        found.wrong.is_empty(),
        "as written now:\n{}",
        found.wrong.join("\n")
    );
    let kept: Vec<&str> = GOLDEN.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kept, found.names, "each kept record is looked at, in its order");
}
