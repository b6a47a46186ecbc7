//! Records survive the way into the store and back; nothing else is taken for one.

use std::time::Duration;

use foundation::{ByteCount, Epoch};
use proptest::prelude::*;

use super::*;
use crate::identity::{
    ClusterId, DiskId, Incarnation, JoinTokenId, NodeId, SessionId, SnapshotNumber, Uuid, VolumeNumber,
    WriterToken,
};
use crate::record::{Record, RecordError};

fn geometry(group_chunks: Vec<u32>) -> Geometry {
    Geometry {
        block_bytes: 4096,
        metadata_bytes: 0,
        stripe_unit: ByteCount(256 << 10),
        chunk: ByteCount(256 << 20),
        region: ByteCount(1 << 20),
        copies: 3,
        minimum: 2,
        group_chunks,
    }
}

fn volume(name: &str) -> Volume {
    Volume {
        number: VolumeNumber(7),
        name: name.to_owned(),
        uuid: Uuid(9),
        geometry: geometry(vec![8, 3]),
        state: VolumeState::Preparing,
        portals: vec![NodeId(Uuid(1)), NodeId(Uuid(2))],
        write_pin: None,
        hosts: Vec::new(),
        growth: Vec::new(),
        checksums: false,
        origin: None,
        spread: None,
        sync_writes: false,
    }
}

#[test]
fn a_clone_is_of_a_version_that_knows_them() {
    let origin = Origin {
        volume: VolumeNumber(3),
        snapshot: SnapshotNumber(1 << 40),
        flattening: false,
    };
    let clone = Volume {
        origin: Some(origin),
        ..volume("trial")
    };
    survives(&clone);
    assert_eq!((clone.version(), clone.encode(b"key")[5]), (5, 5));
    let flattening = Volume {
        origin: Some(Origin {
            flattening: true,
            ..origin
        }),
        checksums: true,
        growth: vec![8],
        ..clone
    };
    survives(&flattening);
    assert!(!flattening.is_flattening(), "it is not in use yet");
}

#[test]
fn a_volume_with_checksums_is_of_a_version_that_knows_them() {
    let with = Volume {
        checksums: true,
        ..volume("data")
    };
    survives(&with);
    assert_eq!((with.version(), with.encode(b"key")[5]), (4, 4));
    let all = Volume {
        hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
        growth: vec![8],
        ..with
    };
    survives(&all);
    // Earlier releases read one without, and theirs have none.
    let without = volume("data");
    assert_eq!(without.version(), 1);
    let read = Volume::decode(b"key", &without.encode(b"key")).unwrap();
    assert!(!read.checksums);
}

#[test]
fn a_volume_for_named_hosts_is_of_a_version_that_knows_them() {
    let named = Volume {
        hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
        ..volume("data")
    };
    survives(&named);
    assert_eq!((named.version(), named.encode(b"key")[5]), (3, 3));
    let for_all = Volume {
        hosts: Vec::new(),
        ..named
    };
    // Earlier releases read it.
    assert_eq!(for_all.version(), 1);
    survives(&for_all);
}

fn chunk(nodes: &[(u128, u64)], recovery: bool) -> Chunk {
    let mut copies: Vec<Copy> = nodes
        .iter()
        .map(|&(node, incarnation)| Copy {
            node: NodeId(Uuid(node)),
            disk: DiskId(Uuid(node + 100)),
            incarnation: (incarnation > 0).then_some(Incarnation(incarnation)),
        })
        .collect();
    copies.sort();
    copies.dedup_by_key(|copy| copy.node);
    copies[0].incarnation = Some(Incarnation(5));
    Chunk {
        epoch: Epoch(3),
        write_node: copies[0].node,
        copies,
        recovery,
    }
}

fn survives<R: Record + PartialEq + std::fmt::Debug>(record: &R) {
    let bytes = record.encode(b"key");
    assert_eq!(R::decode(b"key", &bytes).as_ref(), Ok(record));
    let other_key = R::decode(b"kez", &bytes).unwrap_err();
    assert!(
        other_key
            .to_string()
            .contains("under key kez of the metadata store is damaged: its checksum")
    );
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 0x10;
        assert!(
            R::decode(b"key", &damaged).is_err(),
            "byte {position} does not matter"
        );
        assert!(R::decode(b"key", &bytes[..position]).is_err());
    }
}

#[test]
fn every_record_survives() {
    survives(&ClusterRecord {
        id: ClusterId(Uuid(77)),
        features: 0,
    });
    survives(&ClusterRecord {
        id: ClusterId(Uuid(77)),
        features: 1 << 40,
    });
    survives(&Number(1 << 40));
    survives(&volume("data"));
    let growing = Volume {
        growth: vec![8, 8, 1],
        ..volume("data")
    };
    survives(&growing);
    // What an earlier release can read says so.
    assert_eq!(volume("data").encode(b"key")[5], 1);
    assert_eq!(growing.encode(b"key")[5], 2);
    survives(&Node {
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
    });
    survives(&WriterLease {
        token: WriterToken(12),
        session: Some(SessionId(Uuid(3))),
        holder: "host a, import".to_owned(),
        term: Duration::from_millis(30_500),
    });
    survives(&ReaderLease {
        holder: String::new(),
        generation: 99,
    });
    survives(&token());
}

fn token() -> JoinToken {
    JoinToken {
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
    }
}

/// The table in `docs/formats/store.md`, byte for byte.
#[test]
fn a_join_token_looks_as_documented() {
    let bytes = token().encode(b"join-token/\x01\x02\x03\x04\x05\x06\x07\x08");
    let mut expected = b"RHMD\x10\x01\0\0\x9d\0\0\0".to_vec();
    expected.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    expected.extend_from_slice(&[0xab; 32]);
    expected.push(2);
    expected.extend_from_slice(b"\x07\0\0\0trainer\x03\0\0\0");
    for number in [1_700_000_000u64, 1_700_086_400, 7_776_000] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    expected.extend_from_slice(b"\x05\0\0\0alice\x02\0\0\0");
    expected.extend_from_slice(&[1; 32]);
    expected.extend_from_slice(&[2; 32]);
    assert_eq!(bytes[8], u8::try_from(expected.len() - 12).unwrap());
    assert_eq!(bytes[..expected.len()], expected[..]);
    assert_eq!(bytes.len(), expected.len() + 4);
}

/// The table in `docs/formats/store.md`, byte for byte.
#[test]
fn a_stored_record_looks_as_documented() {
    let bytes = Number(0x0102).encode(b"next-volume");
    assert_eq!(bytes[..12], *b"RHMD\x05\x01\0\0\x08\0\0\0");
    assert_eq!(bytes[12..20], 0x0102u64.to_le_bytes());
    let mut covered = b"next-volume".to_vec();
    covered.extend_from_slice(&bytes[..20]);
    assert_eq!(bytes[20..], foundation::checksum::crc32c(&covered).to_le_bytes());
}

#[test]
fn a_later_version_is_refused_by_name() {
    let mut bytes = Number(1).encode(b"k");
    bytes[5] = 2;
    let end = bytes.len() - 4;
    let mut covered = b"k".to_vec();
    covered.extend_from_slice(&bytes[..end]);
    let checksum = foundation::checksum::crc32c(&covered).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let error = Number::decode(b"k", &bytes).unwrap_err();
    assert_eq!(
        error,
        RecordError::Version {
            key: "k".to_owned(),
            version: 2,
            known: 1
        }
    );
    assert!(error.to_string().contains("knows versions up to 1"));
}

#[test]
fn geometry_is_checked() {
    let good = geometry(vec![4]);
    assert_eq!(good.validate(), Ok(()));
    let bad = [
        Geometry {
            block_bytes: 520,
            ..good.clone()
        },
        Geometry {
            metadata_bytes: 4,
            ..good.clone()
        },
        Geometry {
            stripe_unit: ByteCount(5000),
            ..good.clone()
        },
        Geometry {
            chunk: ByteCount(300 << 10),
            ..good.clone()
        },
        Geometry {
            region: ByteCount(0),
            ..good.clone()
        },
        Geometry {
            minimum: 4,
            ..good.clone()
        },
        Geometry {
            copies: 0,
            ..good.clone()
        },
        geometry(vec![]),
        geometry(vec![1, 0]),
    ];
    for geometry in bad {
        let text = geometry.validate().unwrap_err().to_string();
        assert!(text.contains("; use "), "{text}");
    }
    // Not 512, which is refused where volumes are asked for.
    let error = GeometryError::BlockSize { block_bytes: 1024 };
    assert!(error.to_string().ends_with("not supported; use 4096"), "{error}");
    assert_eq!(Geometry::groups(19, 8), [8, 8, 3]);
    assert_eq!(Geometry::groups(1_000_000, 8).iter().sum::<u32>(), 1_000_000);
    assert!(Geometry::groups(1_000_000, 8).len() <= 4096);
}

proptest! {
    #[test]
    fn chunks_survive(nodes in proptest::collection::vec((1u128..50, 0u64..9), 1..8), recovery: bool) {
        survives(&chunk(&nodes, recovery));
    }

    #[test]
    fn noise_is_no_record(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(Chunk::decode(b"k", &bytes).is_err());
        prop_assert!(Volume::decode(b"k", &bytes).is_err());
    }

    /// Even under a right checksum, no bytes make a reader panic or accept nonsense.
    #[test]
    fn sealed_noise_does_not_panic(payload in proptest::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = b"RHMD\x04\x01\0\0".to_vec();
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&payload);
        for kind in [2, 3, 4, 6, 7, 16] {
            bytes[4] = kind;
            let mut covered = b"k".to_vec();
            covered.extend_from_slice(&bytes);
            let mut sealed = bytes.clone();
            sealed.extend_from_slice(&foundation::checksum::crc32c(&covered).to_le_bytes());
            let _ = Node::decode(b"k", &sealed);
            let _ = Volume::decode(b"k", &sealed);
            let _ = WriterLease::decode(b"k", &sealed);
            let _ = ReaderLease::decode(b"k", &sealed);
            let _ = JoinToken::decode(b"k", &sealed);
            if let Ok(chunk) = Chunk::decode(b"k", &sealed) {
                prop_assert!(chunk.is_consistent());
            }
        }
    }
}
