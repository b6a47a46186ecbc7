//! Volumes of which every write is durable before it is acknowledged: who may be there, what masters of before make of the store, and where it is
//! said to be in force.

use std::collections::BTreeSet;

use control::{
    Controller, CreateVolume, Disk, DiskId, ErrorKind, Heartbeat, Incarnation, MemoryStore, MetadataStore,
    NodeId, Registration, Settings, Uuid, Volume, VolumeNumber,
};
use foundation::{ByteCount, Instant};

type Master<'a> = Controller<&'a MemoryStore>;
type Syncs = Option<BTreeSet<VolumeNumber>>;

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

fn register(master: &mut Master<'_>, number: u128, ended_through: u64, now: Instant) -> Incarnation {
    let registration = Registration {
        cluster: None,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(ended_through),
        disks: vec![Disk {
            id: DiskId(Uuid(number)),
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        }],
    };
    master.register(&registration, now).unwrap().incarnation
}

fn beat(master: &mut Master<'_>, (number, life): (u128, u64), syncs: &Syncs, now: Instant) {
    let prepared = master.volumes().unwrap();
    let heartbeat = Heartbeat {
        incarnation: Incarnation(life),
        ended_through: Incarnation(life - 1),
        prepared: prepared.iter().map(|volume| volume.number).collect(),
        syncs: syncs.clone(),
        ..crate::silent(master.cluster(), node(number))
    };
    master.heartbeat(&heartbeat, now).unwrap();
}

fn says(volumes: &[&Volume]) -> Syncs {
    Some(volumes.iter().map(|volume| volume.number).collect())
}

fn with_nodes(store: &MemoryStore) -> Master<'_> {
    let mut master = Controller::open(store, Settings::default(), 1, at(0)).unwrap();
    for number in 1..=3 {
        register(&mut master, number, 0, at(0));
        beat(&mut master, (number, 1), &says(&[]), at(0));
    }
    master
}

fn create(master: &mut Master<'_>, name: &str, sync_writes: bool) -> Volume {
    let request = CreateVolume {
        sync_writes,
        ..CreateVolume::new(name, ByteCount::GIB)
    };
    master.create_volume(&request, at(0)).unwrap()
}

fn cluster_record(store: &MemoryStore) -> Vec<u8> {
    store.get(b"cluster").unwrap().unwrap().value
}

#[test]
fn nobody_has_them_before_every_node_knows_them() {
    let store = MemoryStore::new();
    let mut master = with_nodes(&store);
    let plain = create(&mut master, "plain", false);
    let before = cluster_record(&store);
    // A node of the release before.
    beat(&mut master, (3, 1), &None, at(1));
    let request = CreateVolume {
        sync_writes: true,
        ..CreateVolume::new("data", ByteCount::GIB)
    };
    let refused = [
        master.create_volume(&request, at(1)).unwrap_err(),
        master.set_sync_writes("plain", true, at(1)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        let said = error.to_string();
        assert!(
            said.contains(&format!("node {}", node(3))) && said.contains("upgrade"),
            "{said}"
        );
    }
    assert_eq!(master.volume(plain.number).unwrap(), plain);
    assert_eq!(cluster_record(&store), before, "nothing is stored of it");
    // It is gone for long enough, or upgraded.
    for number in 1..=2 {
        beat(&mut master, (number, 1), &says(&[]), at(100));
    }
    assert!(
        master
            .set_sync_writes("plain", true, at(101))
            .unwrap()
            .sync_writes
    );
}

#[test]
fn a_node_of_before_that_comes_later_gets_no_copies() {
    let store = MemoryStore::new();
    let mut master = with_nodes(&store);
    create(&mut master, "data", true);
    register(&mut master, 4, 0, at(1));
    beat(&mut master, (4, 1), &None, at(1));
    let four = |name: &str| CreateVolume {
        copies: 4,
        ..CreateVolume::new(name, ByteCount::GIB)
    };
    let said = master
        .create_volume(&four("wide"), at(1))
        .unwrap_err()
        .to_string();
    assert!(said.contains('3') && said.contains('4'), "{said}");
    // Upgraded, it does.
    beat(&mut master, (4, 1), &says(&[]), at(1));
    master.create_volume(&four("wide"), at(1)).unwrap();
    // Without such a volume its release does not matter.
    master.set_sync_writes("data", false, at(1)).unwrap();
    beat(&mut master, (4, 1), &None, at(1));
    master.create_volume(&four("wider"), at(1)).unwrap();
}

#[test]
fn masters_of_before_are_kept_out_while_a_volume_has_them() {
    let store = MemoryStore::new();
    let mut master = with_nodes(&store);
    let before = cluster_record(&store);
    create(&mut master, "data", true);
    create(&mut master, "other", false);
    let with_bit = cluster_record(&store);
    assert_ne!(with_bit, before);
    master.set_sync_writes("other", true, at(1)).unwrap();
    assert!(!master.set_sync_writes("data", false, at(1)).unwrap().sync_writes);
    assert_eq!(cluster_record(&store), with_bit, "another has them");
    let revision = master.revision().unwrap();
    master.set_sync_writes("data", false, at(1)).unwrap();
    assert_eq!(master.revision().unwrap(), revision, "repeated");
    master.set_sync_writes("other", false, at(1)).unwrap();
    assert_eq!(cluster_record(&store), before);
}

#[test]
fn they_are_in_force_when_every_life_that_may_order_writes_has_said_so() {
    let store = MemoryStore::new();
    let mut master = with_nodes(&store);
    let (data, other) = (
        create(&mut master, "data", false),
        create(&mut master, "other", true),
    );
    let without = |master: &Master<'_>, now| {
        let volume = master.volume(data.number).unwrap();
        master.nodes_without_sync_writes(&volume, now).unwrap()
    };
    assert_eq!(without(&master, at(1)), [], "it is not asked for");
    master.set_sync_writes("data", true, at(1)).unwrap();
    assert_eq!(without(&master, at(1)), [node(1), node(2), node(3)]);
    beat(&mut master, (1, 1), &says(&[&other, &data]), at(1));
    beat(&mut master, (2, 1), &says(&[&other]), at(1));
    assert_eq!(without(&master, at(1)), [node(2), node(3)]);
    beat(&mut master, (2, 1), &says(&[&data]), at(1));
    // Whether a node that is silent lives nobody knows: it may be cut off from the masters, and write.
    assert_eq!(without(&master, at(1000)), [node(3)]);
    assert_eq!(register(&mut master, 3, 1, at(1000)), Incarnation(2));
    assert_eq!(
        without(&master, at(1000)),
        [node(3)],
        "its next life has not said it"
    );
    beat(&mut master, (3, 2), &says(&[&data]), at(1000));
    assert_eq!(without(&master, at(1000)), []);
    // Another master has heard nobody yet.
    drop(master);
    let master = Controller::open(&store, Settings::default(), 2, at(1001)).unwrap();
    assert_eq!(without(&master, at(1001)).len(), 3);
}
