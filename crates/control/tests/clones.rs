//! Clones of volumes in the store: placed where the snapshot is, named as what keeps it, made by nodes that know how, flattened
//! when all living nodes say so; of a clone and a deletion that race, one is refused.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use control::{
    Committed, ControlError, Controller, CreateVolume, Disk, DiskId, Entry, Flattening, Heartbeat,
    HeartbeatAnswer, Incarnation, MemoryStore, MetadataStore, NodeId, Registration, Settings, StoreError,
    Transaction, Uuid, Versioned, Volume, VolumeNumber, VolumeState,
};
use foundation::{ByteCount, Instant};

const MIB: u64 = 1 << 20;
const NODES: u64 = 4;
const CHUNKS: u64 = 5;

/// A store in which something happens before the next commit.
#[derive(Clone)]
struct Raced {
    store: &'static MemoryStore,
    #[allow(clippy::type_complexity, reason = "it is one closure")]
    before: Rc<RefCell<Option<Box<dyn FnOnce()>>>>,
}

impl MetadataStore for Raced {
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
        let before = self.before.borrow_mut().take();
        if let Some(before) = before {
            before();
        }
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

struct Cluster {
    control: Controller<Raced>,
    store: Raced,
    lives: BTreeMap<u64, Incarnation>,
    now: Instant,
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(u128::from(number))),
        capacity: ByteCount(20 * 64 * MIB),
        used: ByteCount(0),
        held: None,
    }]
}

impl Cluster {
    /// Four nodes, and volume "data" of five chunks in three copies with a complete snapshot "monday".
    fn new() -> Self {
        let now = Instant::from_nanos(1);
        let store = Raced {
            store: Box::leak(Box::new(MemoryStore::new())),
            before: Rc::default(),
        };
        let mut control = Controller::open(store.clone(), Settings::default(), 3, now).unwrap();
        let register = |number| {
            let registration = Registration {
                cluster: None,
                node: node(number),
                peer_address: format!("192.0.2.{number}:4420"),
                rack: None,
                incarnation: None,
                ended_through: Incarnation(0),
                disks: disks(number),
            };
            (number, control.register(&registration, now).unwrap().incarnation)
        };
        let lives = (1..=NODES).map(register).collect();
        let mut cluster = Self {
            control,
            store,
            lives,
            now,
        };
        let request = CreateVolume {
            chunk: ByteCount(64 * MIB),
            checksums: true,
            ..CreateVolume::new("data", ByteCount(CHUNKS * 64 * MIB))
        };
        let volume = cluster.control.create_volume(&request, now).unwrap().number;
        cluster.make_ready(volume);
        cluster.snapshot("data", "monday");
        cluster
    }

    /// Another master on the same store.
    fn another(&self) -> Controller<&'static MemoryStore> {
        Controller::open(self.store.store, Settings::default(), 9, self.now).unwrap()
    }

    fn beat(&mut self, number: u64, prepared: &[VolumeNumber], flattening: &[Flattening]) -> HeartbeatAnswer {
        let heartbeat = Heartbeat {
            incarnation: self.lives[&number],
            disks: disks(number),
            prepared: prepared.to_vec(),
            removed: prepared.to_vec(),
            snapshots: BTreeSet::new(),
            flattening: flattening.to_vec(),
            ..crate::silent(self.control.cluster(), node(number))
        };
        self.control.heartbeat(&heartbeat, self.now).unwrap()
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(250);
        self.control.tick(self.now).unwrap();
    }

    fn make_ready(&mut self, volume: VolumeNumber) {
        for number in 1..=NODES {
            self.beat(number, &[volume], &[]);
        }
        self.tick();
        assert_eq!(self.control.volume(volume).unwrap().state, VolumeState::Ready);
    }

    fn snapshot(&mut self, volume: &str, name: &str) {
        let (_, begun) = self.control.begin_snapshot(volume, name, 7).unwrap();
        self.control
            .complete_snapshot(begun.volume, begun.number)
            .unwrap();
    }

    fn clone_of(&mut self, snapshot: &str, name: &str) -> Result<Volume, ControlError> {
        self.control.clone_volume("data", snapshot, name, self.now)
    }

    fn places(&self, volume: VolumeNumber) -> Vec<Vec<(NodeId, DiskId)>> {
        let (_, chunks) = self.control.map(volume, 0, 100).unwrap();
        let places = |copies: &[control::Copy]| copies.iter().map(|copy| (copy.node, copy.disk)).collect();
        chunks.iter().map(|(_, chunk)| places(&chunk.copies)).collect()
    }

    fn features(&self) -> u8 {
        // Of version 2, with the bits behind the identity.
        let cluster = self.store.get(b"cluster").unwrap().unwrap();
        if cluster.value[5] == 1 {
            0
        } else {
            cluster.value[12 + 16]
        }
    }

    fn delete(&mut self, snapshot: &str) -> Result<(), String> {
        let deleted = self.control.delete_snapshot("data", snapshot);
        deleted.map(drop).map_err(|error| error.to_string())
    }
}

#[test]
fn a_clone_lies_where_its_snapshot_does_and_is_made_only_by_nodes_that_know_how() {
    let mut cluster = Cluster::new();
    let data = cluster.control.volume_named("data").unwrap();
    assert_eq!(cluster.features(), 0);
    let trial = cluster.clone_of("monday", "trial").unwrap();
    assert_eq!(
        cluster.features(),
        1,
        "a master that knows no clones does not lead"
    );
    assert_eq!(cluster.places(trial.number), cluster.places(data.number));
    assert_ne!((trial.number, trial.uuid), (data.number, data.uuid));
    assert_eq!((&trial.geometry, trial.checksums), (&data.geometry, true));
    assert_eq!(trial.state, VolumeState::Preparing);
    // A node that does not know this order has no other.
    let told = cluster.beat(1, &[], &[]);
    let shares = |places: &[(NodeId, DiskId)]| places.iter().any(|place| place.0 == node(1));
    assert!(cluster.places(trial.number).iter().any(|places| shares(places)));
    assert_eq!((told.prepare_clones, told.prepare), (vec![trial.number], vec![]));
    cluster.make_ready(trial.number);
    let told = cluster.beat(1, &[], &[]);
    assert_eq!((told.prepare_clones, told.flatten), (vec![], vec![]));
    let origin = cluster.control.origin_of(&trial).unwrap().unwrap();
    assert_eq!(
        (&origin.volume[..], &origin.snapshot[..], origin.progress),
        ("data", "monday", None)
    );
    // What it is promised is counted like any volume's, and given back with it.
    let allocated = |cluster: &mut Cluster| {
        let status = cluster.control.status(cluster.now).unwrap();
        let disks = status.nodes.iter().flat_map(|node| node.disks.iter());
        disks.map(|(_, allocated)| allocated.0).sum::<u64>()
    };
    assert_eq!(allocated(&mut cluster), 2 * 3 * CHUNKS * 64 * MIB);
    cluster.control.delete_volume("trial", cluster.now).unwrap();
    for number in 1..=NODES {
        cluster.beat(number, &[trial.number], &[]);
    }
    cluster.tick();
    assert!(cluster.control.volume(trial.number).is_err());
    assert_eq!(allocated(&mut cluster), 3 * CHUNKS * 64 * MIB);
    assert_eq!(
        cluster.features(),
        0,
        "without clones, masters of before may lead again"
    );
}

#[test]
fn a_snapshot_stays_as_long_as_it_has_clones() {
    let mut cluster = Cluster::new();
    for (from, name, words) in [
        ("friday", "trial", "has no snapshot \"friday\""),
        ("monday", "data", "exists already"),
        ("monday", "a b", "is \"a b\""),
    ] {
        let said = cluster.clone_of(from, name).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
    let trial = cluster.clone_of("monday", "trial").unwrap();
    let second = cluster.clone_of("monday", "second").unwrap();
    let said = cluster.delete("monday").unwrap_err();
    assert!(
        said.contains("is the origin of trial, second; give each"),
        "{said}"
    );
    let now = cluster.now;
    let said = cluster
        .control
        .delete_volume("data", now)
        .unwrap_err()
        .to_string();
    assert!(said.contains("has 1 snapshots"), "{said}");
    let said = cluster.control.flatten_volume("trial").unwrap_err().to_string();
    assert!(said.contains("cannot be flattened yet"), "{said}");
    cluster.make_ready(trial.number);
    cluster.make_ready(second.number);
    // A clone of a snapshot of a clone names only the next.
    let (_, begun) = cluster.control.begin_snapshot("trial", "cut", 7).unwrap();
    let said = cluster
        .control
        .clone_volume("trial", "cut", "third", now)
        .unwrap_err();
    assert!(
        said.to_string()
            .contains("cannot be cloned from that snapshot now"),
        "{said}"
    );
    cluster
        .control
        .complete_snapshot(begun.volume, begun.number)
        .unwrap();
    let third = cluster
        .control
        .clone_volume("trial", "cut", "third", now)
        .unwrap();
    assert_eq!(third.origin.unwrap().volume, trial.number);
    cluster.control.delete_volume("third", now).unwrap();
    cluster.control.delete_snapshot("trial", "cut").unwrap();
    // What is being deleted needs no snapshot.
    cluster.control.delete_volume("trial", now).unwrap();
    assert!(
        cluster
            .delete("monday")
            .unwrap_err()
            .contains("the origin of second;")
    );
    cluster.control.delete_volume("second", now).unwrap();
    cluster.delete("monday").unwrap();
}

#[test]
fn of_a_clone_and_a_deletion_that_race_one_is_refused() {
    // The deletion comes between what the clone has read and its commit.
    let mut cluster = Cluster::new();
    let mut other = cluster.another();
    *cluster.store.before.borrow_mut() = Some(Box::new(move || {
        other.delete_snapshot("data", "monday").unwrap();
    }));
    let said = cluster.clone_of("monday", "trial").unwrap_err().to_string();
    assert!(said.contains("has no snapshot \"monday\""), "{said}");
    assert!(cluster.control.volume_named("trial").is_err());
    assert_eq!(cluster.features(), 0);

    // And the other way round.
    let mut cluster = Cluster::new();
    let mut other = cluster.another();
    let now = cluster.now;
    for number in 1..=NODES {
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: Some(cluster.lives[&number]),
            ended_through: Incarnation(0),
            disks: disks(number),
        };
        other.register(&registration, now).unwrap();
    }
    *cluster.store.before.borrow_mut() = Some(Box::new(move || {
        other.clone_volume("data", "monday", "trial", now).unwrap();
    }));
    let said = cluster.delete("monday").unwrap_err();
    assert!(said.contains("is the origin of trial;"), "{said}");
}

#[test]
fn a_clone_is_flattened_when_every_living_node_says_so() {
    let mut cluster = Cluster::new();
    let trial = cluster.clone_of("monday", "trial").unwrap();
    let number = trial.number;
    cluster.make_ready(number);
    assert!(cluster.control.flatten_volume("trial").unwrap().is_flattening());
    cluster.control.flatten_volume("trial").unwrap();
    let now = cluster.now;
    let grown = ByteCount(12 * 64 * MIB);
    let said = cluster
        .control
        .resize_volume("trial", grown, now)
        .unwrap_err()
        .to_string();
    assert!(said.contains("cannot grow while it is flattened"), "{said}");
    let said = |left, copies| Flattening { number, left, copies };
    let concerned: Vec<u64> = {
        let places = cluster.places(number).into_iter().flatten();
        let nodes: BTreeSet<NodeId> = places.map(|place| place.0).collect();
        (1..=NODES)
            .filter(|number| nodes.contains(&node(*number)))
            .collect()
    };
    for &each in &concerned {
        assert_eq!(cluster.beat(each, &[], &[said(2, 4)]).flatten, [number]);
    }
    cluster.tick();
    let view = |cluster: &Cluster| {
        let volume = cluster.control.volume(number).unwrap();
        cluster.control.origin_of(&volume).unwrap()
    };
    let nodes = concerned.len() as u64;
    assert_eq!(view(&cluster).unwrap().progress, Some((2 * nodes, 4 * nodes)));
    // Another master asks all of them again.
    for &each in &concerned[1..] {
        cluster.beat(each, &[], &[said(0, 4)]);
    }
    let again = Controller::open(cluster.store.clone(), Settings::default(), 5, cluster.now).unwrap();
    cluster.control = again;
    cluster.tick();
    for &each in &concerned {
        assert_eq!(cluster.beat(each, &[], &[]).flatten, [number]);
    }
    for &each in &concerned[1..] {
        assert_eq!(cluster.beat(each, &[], &[said(0, 4)]).flatten, []);
        cluster.tick();
        assert!(view(&cluster).is_some(), "one has some left");
    }
    assert!(cluster.delete("monday").is_err());
    cluster.beat(concerned[0], &[], &[said(0, 4)]);
    cluster.tick();
    assert_eq!(view(&cluster), None);
    assert_eq!(cluster.features(), 0);
    cluster.control.flatten_volume("trial").unwrap();
    cluster.delete("monday").unwrap();
    cluster.control.resize_volume("trial", grown, now).unwrap();
}

#[test]
fn a_clone_has_the_chunks_of_the_snapshot_and_the_room_of_a_volume() {
    let mut cluster = Cluster::new();
    let now = cluster.now;
    let data = cluster.control.volume_named("data").unwrap();
    cluster
        .control
        .resize_volume("data", ByteCount(7 * 64 * MIB), now)
        .unwrap();
    let clone = cluster.clone_of("monday", "trial").unwrap();
    assert_eq!(clone.geometry, data.geometry);
    assert_eq!(cluster.places(clone.number).len() as u64, CHUNKS);
    // Twenty copies fit a disk: each clone is promised its own.
    let mut clones = 1;
    let said = loop {
        match cluster.clone_of("monday", &format!("more{clones}")) {
            Ok(_) => clones += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        said.contains("have room for 64 MiB more") && said.contains("needs 2 there"),
        "{said}"
    );
    assert!((3..=5).contains(&clones), "{clones}");
    let names = cluster.control.volumes().unwrap().len();
    assert_eq!(names, clones + 1, "what was refused left nothing");
}
