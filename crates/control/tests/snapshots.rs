//! Snapshots of volumes in the store: one number each, pending until complete or given up, and forgotten when no living node has
//! copies of them; what must not happen to a volume meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::{
    ControlError, Controller, CreateVolume, Disk, DiskId, ExportVolume, Heartbeat, HeartbeatAnswer,
    Incarnation, MemoryStore, NodeId, Registration, Settings, Snapshot, SnapshotKey, SnapshotNumber,
    SnapshotState, Uuid, VolumeNumber, VolumeState,
};
use foundation::{ByteCount, Instant, KeptCopies};

const MIB: u64 = 1 << 20;
const NODES: u64 = 3;

struct Cluster<'a> {
    control: Controller<&'a MemoryStore>,
    store: &'a MemoryStore,
    lives: BTreeMap<u64, Incarnation>,
    volume: VolumeNumber,
    now: Instant,
    /// What nodes say that they have of which list of snapshots.
    kept: BTreeMap<u64, (u64, KeptCopies)>,
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

fn settings() -> Settings {
    Settings {
        snapshot_term: Duration::from_secs(5),
        // A node that is new stays empty.
        rebalance: false,
        ..Settings::default()
    }
}

impl<'a> Cluster<'a> {
    /// Three nodes and volume "data" of five chunks.
    fn new(store: &'a MemoryStore) -> Self {
        let now = Instant::from_nanos(1);
        let mut control = Controller::open(store, settings(), 3, now).unwrap();
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
        let request = CreateVolume {
            chunk: ByteCount(64 * MIB),
            ..CreateVolume::new("data", ByteCount(5 * 64 * MIB))
        };
        let volume = control.create_volume(&request, now).unwrap().number;
        let mut cluster = Self {
            control,
            store,
            lives,
            volume,
            now,
            kept: BTreeMap::new(),
        };
        cluster.all_beat(&[volume], &[]);
        cluster.tick();
        let state = cluster.control.volume(volume).unwrap().state;
        assert_eq!(state, VolumeState::Ready);
        cluster
    }

    fn heartbeat(&self, number: u64, prepared: &[VolumeNumber], snapshots: &[SnapshotKey]) -> Heartbeat {
        Heartbeat {
            incarnation: self.lives[&number],
            disks: disks(number),
            prepared: prepared.to_vec(),
            kept: self.kept.get(&number).copied(),
            snapshots: snapshots.iter().copied().collect(),
            ..crate::silent(self.control.cluster(), node(number))
        }
    }

    /// A heartbeat of a node that has made its copies of these volumes, and has copies of these snapshots.
    fn beat(&mut self, number: u64, prepared: &[VolumeNumber], snapshots: &[SnapshotKey]) -> HeartbeatAnswer {
        let heartbeat = self.heartbeat(number, prepared, snapshots);
        self.control.heartbeat(&heartbeat, self.now).unwrap()
    }

    /// Whether such a heartbeat is answered from memory.
    fn has_no_news(&self, number: u64, snapshots: &[SnapshotKey]) -> bool {
        self.control.has_no_news(&self.heartbeat(number, &[], snapshots))
    }

    fn all_beat(&mut self, prepared: &[VolumeNumber], snapshots: &[SnapshotKey]) -> BTreeSet<SnapshotKey> {
        let mut removed = BTreeSet::new();
        for number in 1..=NODES {
            removed.extend(self.beat(number, prepared, snapshots).remove_snapshots);
        }
        removed
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(250);
        self.control.tick(self.now).unwrap();
    }

    /// Lets time pass; all nodes live, and have copies of these.
    fn pass(&mut self, time: Duration, snapshots: &[SnapshotKey]) {
        let until = self.now + time;
        while self.now < until {
            self.all_beat(&[], snapshots);
            self.tick();
        }
    }

    fn begin(&mut self, name: &str) -> Result<Snapshot, ControlError> {
        Ok(self.control.begin_snapshot("data", name, 7)?.1)
    }

    fn complete(&mut self, snapshot: &Snapshot) -> Result<Snapshot, ControlError> {
        self.control.complete_snapshot(snapshot.volume, snapshot.number)
    }

    fn states(&self) -> Vec<(String, SnapshotState)> {
        let all = self.control.snapshots(self.volume).unwrap();
        all.into_iter()
            .map(|snapshot| (snapshot.name, snapshot.state))
            .collect()
    }

    fn error(
        &mut self,
        call: impl FnOnce(&mut Controller<&'a MemoryStore>) -> Option<ControlError>,
    ) -> String {
        call(&mut self.control).expect("it is refused").to_string()
    }
}

fn key(snapshot: &Snapshot) -> SnapshotKey {
    (snapshot.volume, snapshot.number)
}

#[test]
fn a_snapshot_is_pending_then_complete_then_gone_when_no_living_node_has_it() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let monday = cluster.begin("monday").unwrap();
    assert_eq!(
        (monday.state, monday.chunks, monday.created_unix_ms),
        (SnapshotState::Pending, 5, 7)
    );
    // What is kept is not deleted, pending or not.
    assert_eq!(cluster.all_beat(&[], &[key(&monday)]), BTreeSet::new());
    let complete = cluster.complete(&monday).unwrap();
    assert_eq!(complete.state, SnapshotState::Complete);
    assert_eq!(cluster.complete(&monday).unwrap(), complete, "repeated");
    cluster
        .control
        .abort_snapshot(monday.volume, monday.number)
        .unwrap_err();
    let again = cluster.begin("monday").unwrap_err().to_string();
    assert!(again.contains("has a snapshot \"monday\" already"), "{again}");
    cluster.pass(Duration::from_secs(20), &[key(&monday)]);
    assert!(cluster.has_no_news(1, &[key(&monday)]) && !cluster.has_no_news(1, &[]));
    assert_eq!(cluster.states(), [("monday".to_owned(), SnapshotState::Complete)]);

    cluster.control.delete_snapshot("data", "monday").unwrap();
    assert_eq!(cluster.states(), [("monday".to_owned(), SnapshotState::Deleting)]);
    assert!(
        !cluster.has_no_news(1, &[key(&monday)]),
        "it is told to delete it, again and again"
    );
    // The name is free at once, the number is not.
    let second = cluster.begin("monday").unwrap();
    assert!(second.number > monday.number);
    cluster.complete(&second).unwrap();
    let both = [key(&monday), key(&second)];
    for _ in 0..8 {
        assert_eq!(cluster.all_beat(&[], &both), BTreeSet::from([key(&monday)]));
        cluster.tick();
    }
    assert_eq!(cluster.states().len(), 2, "nodes have copies of it still");
    cluster.pass(Duration::from_secs(1), &[key(&second)]);
    assert_eq!(cluster.states(), [("monday".to_owned(), SnapshotState::Complete)]);
    // A node that comes back with a copy of it.
    assert_eq!(cluster.beat(2, &[], &both).remove_snapshots, [key(&monday)]);
    let none = cluster.error(|control| control.delete_snapshot("data", "friday").err());
    assert!(none.contains("has no snapshot \"friday\""), "{none}");
}

#[test]
fn what_nobody_completes_is_given_up_and_cannot_be_completed_any_more() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let lost = cluster.begin("lost").unwrap();
    let other = cluster.begin("other").unwrap_err().to_string();
    assert!(other.contains("its snapshot \"lost\" is being made"), "{other}");
    cluster.pass(Duration::from_secs(4), &[key(&lost)]);
    assert_eq!(cluster.states(), [("lost".to_owned(), SnapshotState::Pending)]);
    // Another master counts anew.
    cluster.control = Controller::open(cluster.store, settings(), 4, cluster.now).unwrap();
    cluster.pass(Duration::from_secs(4), &[key(&lost)]);
    assert_eq!(cluster.states(), [("lost".to_owned(), SnapshotState::Pending)]);
    cluster.pass(Duration::from_secs(2), &[key(&lost)]);
    assert_eq!(cluster.states(), [("lost".to_owned(), SnapshotState::Deleting)]);
    let over = cluster.complete(&lost).unwrap_err().to_string();
    assert!(over.contains("given up or deleted meanwhile"), "{over}");
    // One that is given up by its maker, twice.
    let given_up = cluster.begin("lost").unwrap();
    assert!(given_up.number > lost.number);
    for _ in 0..2 {
        cluster
            .control
            .abort_snapshot(given_up.volume, given_up.number)
            .unwrap();
    }
    cluster.complete(&given_up).unwrap_err();
    cluster.pass(Duration::from_secs(1), &[]);
    assert_eq!(cluster.states(), []);
    cluster.complete(&given_up).unwrap_err();
    // The number is not used again though nothing is left of it.
    assert!(cluster.begin("next").unwrap().number > given_up.number);
}

#[test]
fn a_volume_stays_as_it_is_while_a_snapshot_is_made_and_stays_while_it_has_any() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let now = cluster.now;
    let snapshot = cluster.begin("first").unwrap();
    let grown = ByteCount(12 * 64 * MIB);
    let export = ExportVolume {
        name: "data".to_owned(),
        nodes: vec![node(1)],
        ..ExportVolume::default()
    };
    for (said, words) in [
        (
            cluster.error(|control| control.resize_volume("data", grown, now).err()),
            "cannot grow now",
        ),
        (
            cluster.error(|control| control.delete_volume("data", now).err()),
            "cannot be deleted now",
        ),
        (
            cluster.error(|control| control.export_volume(&export, now).err()),
            "cannot be exported otherwise now",
        ),
        (
            cluster.error(|control| control.delete_snapshot("data", "first").err()),
            "cannot have that snapshot deleted now",
        ),
    ] {
        assert!(
            said.contains(words) && said.contains("given up after 5 s"),
            "{said}"
        );
    }
    cluster.complete(&snapshot).unwrap();
    let kept = cluster.error(|control| control.delete_volume("data", now).err());
    assert!(
        kept.contains("has 1 snapshots, which would be lost with it"),
        "{kept}"
    );
    cluster.control.export_volume(&export, now).unwrap();
    cluster.control.resize_volume("data", grown, now).unwrap();
    let growing = cluster.begin("second").unwrap_err().to_string();
    assert!(growing.contains("is not ready for a snapshot"), "{growing}");
    // What nodes know of a snapshot keeps them in the cluster, too.
    cluster.all_beat(&[], &[key(&snapshot)]);
    assert_eq!(cluster.control.snapshots(cluster.volume).unwrap()[0].chunks, 5);
    cluster.control.delete_snapshot("data", "first").unwrap();
    cluster.control.delete_volume("data", now).unwrap();
}

#[test]
fn names_and_numbers_of_snapshots_are_bounded() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    for name in ["", "-a", "a b", "a@b", &"x".repeat(129)] {
        assert!(cluster.begin(name).is_err(), "{name:?}");
    }
    for index in 0..64 {
        let snapshot = cluster.begin(&format!("s{index}")).unwrap();
        assert!(snapshot.number.0 < 1 << 53, "a number that JSON can say");
        cluster.complete(&snapshot).unwrap();
    }
    // Of another store, which was lost: they are not deleted. And what this one does not know to have given out is given out no more.
    let last = cluster.control.snapshots(cluster.volume).unwrap()[63].number.0;
    let named = |number| (cluster.volume, SnapshotNumber(number));
    let (foreign, later) = (named(last ^ 1 << 40), named(last + 5));
    assert_eq!(cluster.beat(1, &[], &[foreign, later]).remove_snapshots, [later]);
    cluster.control.delete_snapshot("data", "s0").unwrap();
    let next = cluster.begin("next").unwrap();
    assert_eq!(next.number.0, last + 6);
    cluster.complete(&next).unwrap();
    let full = cluster.begin("more").unwrap_err().to_string();
    assert!(full.contains("has 64 snapshots, which is the most"), "{full}");
}

/// A dead node that has no copy of any chunk is removed when all others are known to have their copies of snapshots, whoever leads.
#[test]
fn a_dead_node_is_removed_once_all_others_have_their_snapshots() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let snapshot = cluster.begin("before").unwrap();
    let id = key(&snapshot);
    cluster.complete(&snapshot).unwrap();
    // A fourth node, which has nothing of the volume, and said so before it died.
    let registration = Registration {
        cluster: None,
        node: node(4),
        peer_address: "192.0.2.4:4420".to_owned(),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(0),
        disks: disks(4),
    };
    let life = cluster.control.register(&registration, cluster.now).unwrap();
    cluster.lives.insert(4, life.incarnation);
    cluster.beat(4, &[], &[]);
    cluster.pass(Duration::from_secs(8), &[id]);
    let version = cluster.control.complete_snapshots().0;
    let refusal = |cluster: &mut Cluster<'_>| {
        let error = cluster.control.remove_node(node(4), cluster.now).unwrap_err();
        error.to_string()
    };
    let said = refusal(&mut cluster);
    assert!(
        said.contains("has not said yet") && said.contains("the 5 copies"),
        "{said}"
    );
    let volume = cluster.volume.0;
    let note = |cluster: &mut Cluster<'_>, number, version, copies: u64| {
        let mut kept = KeptCopies::default();
        for index in 0..5 {
            kept.note(
                volume,
                index,
                copies / 5 + u64::from(u64::from(index) < copies % 5),
            );
        }
        cluster.kept.insert(number, (version, kept));
        cluster.beat(number, &[], &[]);
    };
    for number in 1..=2 {
        note(&mut cluster, number, version, 5);
    }
    note(&mut cluster, 3, version, 4);
    let said = refusal(&mut cluster);
    assert!(
        said.contains("has 4 of the 5 copies") && said.contains(&node(3).to_string()),
        "{said}"
    );
    // What was counted by another list says nothing of this one.
    note(&mut cluster, 3, version + 1, 5);
    assert!(refusal(&mut cluster).contains("has not said yet"));
    // Nor as many copies of other chunks.
    let mut others = KeptCopies::default();
    others.note(volume, 7, 5);
    cluster.kept.insert(3, (version, others));
    cluster.beat(3, &[], &[]);
    assert!(refusal(&mut cluster).contains("of other chunks"));
    note(&mut cluster, 3, version, 5);
    // Nor does what was said before a further snapshot.
    let further = cluster.begin("after").unwrap();
    cluster.complete(&further).unwrap();
    let said = refusal(&mut cluster);
    assert!(said.contains("the 10 copies"), "{said}");
    let version = cluster.control.complete_snapshots().0;
    // A master that leads since then, and has never heard the dead node, goes by the same.
    let now = cluster.now;
    cluster.control = Controller::open(&store, settings(), 5, now).unwrap();
    cluster.kept.clear();
    cluster.pass(Duration::from_secs(8), &[id, key(&further)]);
    assert!(refusal(&mut cluster).contains("has not said yet"));
    for number in 1..=3 {
        note(&mut cluster, number, version, 10);
    }
    cluster.control.remove_node(node(4), cluster.now).unwrap();
}
