//! Which nodes export a volume: chosen among those that live, kept where they live, told to each node with its place. And which
//! node may be removed.

use std::cell::RefCell;

use control::{
    Committed, ControlError, Controller, CreateVolume, Disk, DiskId, Entry, ErrorKind, ExportVolume,
    Heartbeat, Incarnation, MemoryStore, MetadataStore, NodeId, Operation, Registration, Reservations,
    ReservationsView, SessionId, Settings, StoreError, Transaction, Uuid, Versioned, VolumeNumber,
    VolumeState, WriterToken,
};
use foundation::{ByteCount, Instant};

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

type Master<'a> = Controller<&'a MemoryStore>;

fn register(master: &mut Master<'_>, number: u128, now: Instant) {
    let registration = Registration {
        cluster: None,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through: Default::default(),
        disks: vec![Disk {
            id: DiskId(Uuid(number)),
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        }],
    };
    master.register(&registration, now).unwrap();
}

fn beat(master: &mut Master<'_>, number: u128, now: Instant) -> Vec<control::Export> {
    beat_of(master, number, true, now)
}

/// The heartbeat of a node that knows reservations or does not.
fn beat_of(master: &mut Master<'_>, number: u128, reserves: bool, now: Instant) -> Vec<control::Export> {
    let prepared = master.volumes().unwrap();
    let heartbeat = Heartbeat {
        incarnation: Incarnation(1),
        prepared: prepared.iter().map(|volume| volume.number).collect(),
        reserves,
        ..crate::silent(master.cluster(), node(number))
    };
    master.heartbeat(&heartbeat, now).unwrap().exports
}

/// Three nodes and a volume that is ready.
fn with_volume(store: &MemoryStore) -> Master<'_> {
    let mut master = Controller::open(store, Settings::default(), 1, at(0)).unwrap();
    (1..=3).for_each(|number| register(&mut master, number, at(0)));
    let request = CreateVolume::new("data", ByteCount::GIB);
    master.create_volume(&request, at(0)).unwrap();
    for number in 1..=3 {
        beat(&mut master, number, at(1));
    }
    master.tick(at(1)).unwrap();
    assert_eq!(master.volume_named("data").unwrap().state, VolumeState::Ready);
    master
}

fn export(count: usize) -> ExportVolume {
    ExportVolume {
        name: "data".to_owned(),
        count,
        ..ExportVolume::default()
    }
}

#[test]
fn each_portal_hears_its_place_and_where_the_others_are() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let chosen = ExportVolume {
        nodes: vec![node(3), node(1)],
        hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
        ..export(0)
    };
    let volume = master.export_volume(&chosen, at(1)).unwrap();
    assert_eq!(volume.portals, [node(3), node(1)]);
    let [first] = &beat(&mut master, 3, at(2))[..] else {
        panic!("node 3 exports one volume");
    };
    assert_eq!(
        (first.place, &first.elsewhere[..]),
        (0, &["192.0.2.1:4420".to_owned()][..])
    );
    assert_eq!(first.volume.hosts, ["nqn.2014-08.org.example:a"]);
    assert_eq!(beat(&mut master, 1, at(2))[0].place, 1);
    assert_eq!(beat(&mut master, 2, at(2)), []);
    // Another master reads the same from the store.
    let mut other = Controller::open(&store, Settings::default(), 2, at(3)).unwrap();
    assert_eq!(beat(&mut other, 3, at(3))[0].volume, volume);
    master.unexport_volume("data").unwrap();
    assert_eq!(master.unexport_volume("data").unwrap().portals, []);
    assert_eq!(beat(&mut master, 3, at(4)), []);
}

#[test]
fn the_choice_keeps_who_exports_already_and_takes_no_dead_node() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let chosen = ExportVolume {
        nodes: vec![node(2)],
        ..export(0)
    };
    master.export_volume(&chosen, at(1)).unwrap();
    let portals = master.export_volume(&export(2), at(1)).unwrap().portals;
    assert_eq!((portals.len(), portals[0]), (2, node(2)));
    // Node 2 is silent from now on.
    for second in 2..60 {
        beat(&mut master, 1, at(second));
        beat(&mut master, 3, at(second));
    }
    let portals = master.export_volume(&export(2), at(60)).unwrap().portals;
    assert!(!portals.contains(&node(2)), "{portals:?}");
    let error = master.export_volume(&export(3), at(60)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "portals is 3, but 2 of 3 nodes live; name fewer, or start the other nodes first"
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    for (wrong, kind) in [
        (export(0), ErrorKind::Invalid),
        (export(5), ErrorKind::Invalid),
        (
            ExportVolume {
                nodes: vec![node(1), node(1)],
                ..export(0)
            },
            ErrorKind::Invalid,
        ),
        (
            ExportVolume {
                nodes: vec![node(9)],
                ..export(0)
            },
            ErrorKind::NotFound,
        ),
        (
            ExportVolume {
                hosts: vec!["somebody".to_owned()],
                ..export(2)
            },
            ErrorKind::Invalid,
        ),
        (
            ExportVolume {
                name: "nothing".to_owned(),
                ..export(2)
            },
            ErrorKind::NotFound,
        ),
    ] {
        let error = master.export_volume(&wrong, at(1)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!(master.volume_named("data").unwrap().portals, []);
}

fn refusal(master: &mut Master<'_>, number: u128, now: Instant) -> String {
    let error = master.remove_node(node(number), now).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    error.to_string()
}

#[test]
fn a_node_is_removed_once_nothing_needs_it_and_never_comes_back() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    register(&mut master, 4, at(1));
    assert!(
        master
            .remove_node(node(9), at(1))
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    );
    let said = refusal(&mut master, 1, at(1));
    assert!(said.contains("copies (") && said.contains("node drain"), "{said}");
    // What is exported by it, though it has no copy of it.
    let export = ExportVolume {
        nodes: vec![node(1), node(4)],
        ..export(2)
    };
    master.export_volume(&export, at(1)).unwrap();
    let said = refusal(&mut master, 4, at(1));
    assert!(said.contains("volume data is exported by it"), "{said}");
    master.unexport_volume("data").unwrap();
    // It lives, and copies may be placed on it.
    let said = refusal(&mut master, 4, at(1));
    assert!(
        said.contains("it lives") && said.contains("drain it first"),
        "{said}"
    );
    master.drain(node(4), None, at(1)).unwrap();
    for _ in 0..2 {
        master.remove_node(node(4), at(2)).unwrap();
    }
    assert!(!master.nodes(at(2)).unwrap().contains_key(&node(4)));
    let left = |prefix: &[u8]| {
        store
            .range(prefix, &[prefix, &[0xff][..]].concat(), 10)
            .unwrap()
            .len()
    };
    assert_eq!((left(b"drain/"), left(b"allocation/")), (0, 3));
    // Neither its heartbeat nor its next life is taken, by this master or by another one.
    let mut other = Controller::open(&store, Settings::default(), 2, at(3)).unwrap();
    for master in [&mut master, &mut other] {
        let registration = Registration {
            cluster: None,
            node: node(4),
            peer_address: "192.0.2.4:4420".to_owned(),
            rack: None,
            incarnation: None,
            ended_through: Default::default(),
            disks: Vec::new(),
        };
        let error = master.register(&registration, at(3)).unwrap_err().to_string();
        assert!(
            error.contains("was removed") && error.contains("as a new node"),
            "{error}"
        );
    }
    // A node that is gone needs no drain once its copies are elsewhere; here it had none.
    register(&mut master, 5, at(3));
    assert!(refusal(&mut master, 5, at(4)).contains("it lives"));
    master.remove_node(node(5), at(7)).unwrap();
    // Nor is one removed of which a master that has just begun to lead does not know what it has.
    register(&mut master, 6, at(8));
    master.drain(node(6), None, at(8)).unwrap();
    let mut fresh = Controller::open(&store, Settings::default(), 3, at(8)).unwrap();
    let said = refusal(&mut fresh, 6, at(8));
    assert!(said.contains("has not heard it yet"), "{said}");
    master.remove_node(node(6), at(8)).unwrap();
}

/// Keeps a transaction that deletes a node back once: for who asks it has failed, and it is done later.
#[derive(Clone, Copy)]
struct Late<'a> {
    store: &'a MemoryStore,
    late: &'a RefCell<Option<Transaction>>,
}

impl MetadataStore for Late<'_> {
    fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        self.store.get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let removes = |operation: &Operation| matches!(operation, Operation::Delete { key } if key.starts_with(b"node/"));
        if transaction.operations.iter().any(removes) {
            *self.late.borrow_mut() = Some(transaction.clone());
            return Ok(Committed::Conflict);
        }
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

/// An etcd may carry out late what its client has given up. Found by whole clusters (seed 5649): the drain of a disk stayed for ever, of a
/// node that was removed behind it, and nobody could end it.
#[test]
fn a_node_is_not_removed_late_behind_the_drain_of_its_disk() {
    let (store, late) = (MemoryStore::new(), RefCell::new(None));
    let mut master = with_volume(&store);
    register(&mut master, 4, at(0));
    beat(&mut master, 4, at(1));
    master.drain(node(4), None, at(1)).unwrap();
    let slow = Late {
        store: &store,
        late: &late,
    };
    let mut other = Controller::open(slow, Settings::default(), 2, at(1)).unwrap();
    let heartbeat = Heartbeat {
        incarnation: Incarnation(1),
        ..crate::silent(other.cluster(), node(4))
    };
    other.heartbeat(&heartbeat, at(1)).unwrap();
    assert!(other.remove_node(node(4), at(2)).is_err());
    let disk = DiskId(Uuid(4));
    master.drain(node(4), Some(disk), at(2)).unwrap();
    let removal = late.take().unwrap();
    assert_eq!(store.commit(&removal), Ok(Committed::Conflict));
    assert!(master.nodes(at(2)).unwrap().contains_key(&node(4)));
    master.undrain(node(4), Some(disk)).unwrap();
    master.remove_node(node(4), at(3)).unwrap();
    // And no drain begins behind it, by a master that has not heard of that.
    let refused = master.drain(node(4), Some(disk), at(3)).unwrap_err();
    assert!(matches!(refused, ControlError::NoSuchNode { .. }), "{refused}");
}

fn registered(hosts: &[u8], holder: u8) -> Reservations {
    Reservations {
        kind: u8::from(holder > 0),
        holder: [holder; 16],
        registrants: hosts
            .iter()
            .map(|host| ([*host; 16], 100 + u64::from(*host)))
            .collect(),
        ..Reservations::default()
    }
}

fn view_of(master: &Master<'_>, volume: VolumeNumber) -> ReservationsView {
    master.reservations(volume).unwrap()
}

#[test]
fn nobody_reserves_before_every_node_knows_reservations() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let export = ExportVolume {
        name: "data".to_owned(),
        nodes: vec![node(1), node(2)],
        ..ExportVolume::default()
    };
    let volume = master.export_volume(&export, at(1)).unwrap().number;
    let before = store.get(b"cluster").unwrap().unwrap().value;
    beat_of(&mut master, 3, false, at(1));
    let first = registered(&[1], 0);
    let refused = master
        .replace_reservations(volume, Some(node(1)), 0, &first, false, at(1))
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(refused.to_string().contains("upgrade every node"), "{refused}");
    assert_eq!(store.get(b"cluster").unwrap().unwrap().value, before);
    // One that is gone is not asked.
    for number in [1, 2] {
        beat_of(&mut master, number, true, at(60));
    }
    master
        .replace_reservations(volume, Some(node(1)), 0, &first, false, at(60))
        .unwrap()
        .unwrap();
    // Masters of before are kept out: the cluster's record says what they would have to know.
    let after = store.get(b"cluster").unwrap().unwrap().value;
    assert_ne!(after, before);
    // It comes back, still of that release: keys may be registered, which keeps nobody out, but nobody holds anything.
    beat_of(&mut master, 3, false, at(61));
    let second = registered(&[1, 2], 0);
    let stored = master.replace_reservations(volume, Some(node(1)), 1, &second, false, at(61));
    assert_eq!(stored.unwrap().unwrap().reservations.version, 2);
    let held = registered(&[1, 2], 1);
    let refused = master.replace_reservations(volume, Some(node(1)), 2, &held, true, at(61));
    assert!(refused.unwrap_err().to_string().contains("upgrade every node"));
    beat_of(&mut master, 3, true, at(62));
    let stored = master.replace_reservations(volume, Some(node(1)), 2, &held, true, at(62));
    assert_eq!(stored.unwrap().unwrap().token, WriterToken(1));
}

#[test]
fn reservations_are_replaced_one_after_another_and_keep_native_writers_out() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let export = ExportVolume {
        name: "data".to_owned(),
        nodes: vec![node(1), node(2)],
        ..ExportVolume::default()
    };
    let volume = master.export_volume(&export, at(1)).unwrap().number;
    let view = master.reservations(volume).unwrap();
    assert_eq!(
        (view.reservations.version, view.token, view.in_force()),
        (0, WriterToken(0), true)
    );
    assert_eq!(beat(&mut master, 1, at(1))[0].reservations, 0);

    // A registration takes nothing from anybody.
    let first = registered(&[1], 0);
    let stored = master
        .replace_reservations(volume, Some(node(1)), 0, &first, false, at(1))
        .unwrap()
        .unwrap();
    assert_eq!(
        (stored.reservations.version, stored.token, stored.in_force()),
        (1, WriterToken(0), true)
    );
    // The other portal began from what was before: it is told no, and nothing changes.
    let other = registered(&[2], 0);
    assert_eq!(
        master
            .replace_reservations(volume, Some(node(2)), 0, &other, false, at(1))
            .unwrap(),
        None
    );
    assert_eq!(master.reservations(volume).unwrap(), stored);
    // A native writer may come as long as none is held.
    let session = SessionId(Uuid(9));
    let held = registered(&[1, 2], 1);
    let stored = master
        .replace_reservations(volume, Some(node(2)), 1, &held, true, at(1))
        .unwrap()
        .unwrap();
    assert_eq!(
        (stored.token, stored.in_force(), stored.taken),
        (WriterToken(1), false, false)
    );
    assert_eq!(beat(&mut master, 2, at(1))[0].reservations, 2);
    let refused = master
        .acquire_writer(volume, session, "importer", None, at(2))
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(refused.to_string().contains("2 registered"), "{refused}");
    // Not by a portal that knows of fewer chunks, and only up to what the masters gave.
    let chunks = view_of(&master, volume).chunks;
    let refused = master
        .enforced_reservations(volume, node(1), WriterToken(1), chunks - 1)
        .unwrap_err();
    assert!(
        refused.to_string().contains(&format!("has {chunks} chunks")),
        "{refused}"
    );
    assert!(!view_of(&master, volume).in_force());
    master
        .enforced_reservations(volume, node(1), WriterToken(7), 64)
        .unwrap();
    let view = master.reservations(volume).unwrap();
    assert_eq!(
        (view.in_force(), view.reservations.enforced),
        (true, WriterToken(1))
    );
    // What contradicts itself, and who exports nothing.
    for wrong in [
        registered(&[1], 3),
        Reservations {
            kind: 7,
            ..registered(&[1], 0)
        },
    ] {
        let refused = master
            .replace_reservations(volume, Some(node(1)), 2, &wrong, true, at(1))
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
    let refused = master
        .replace_reservations(volume, Some(node(3)), 2, &first, false, at(1))
        .unwrap_err();
    assert!(refused.to_string().contains("does not export"), "{refused}");

    // Released: a native writer takes a token above it, and hosts are out.
    let free = registered(&[1, 2], 0);
    master
        .replace_reservations(volume, Some(node(1)), 2, &free, false, at(1))
        .unwrap()
        .unwrap();
    let lease = master
        .acquire_writer(volume, session, "importer", None, at(3))
        .unwrap();
    assert_eq!(lease.token, WriterToken(2));
    let view = master.reservations(volume).unwrap();
    assert_eq!((view.taken, view.token), (true, WriterToken(2)));
    let refused = master
        .replace_reservations(volume, Some(node(1)), 3, &held, true, at(1))
        .unwrap_err();
    assert!(refused.to_string().contains("token 2"), "{refused}");
    // Given to hosts again, once nobody writes.
    assert!(master.clear_reservations("data", at(3)).is_err());
    master.release_writer(volume, session, lease.token).unwrap();
    let view = master.clear_reservations("data", at(4)).unwrap();
    assert_eq!(
        (view.taken, view.token, view.in_force()),
        (false, WriterToken(3), false)
    );
    assert!(view.reservations.registrants.is_empty());
    // Another master reads the same.
    let next = Controller::open(&store, Settings::default(), 2, at(5)).unwrap();
    assert_eq!(next.reservations(volume).unwrap(), view);
}
