//! What snapshots hold on disks counts where a new copy is placed, and only there: not for evening out, and not where a chunk
//! would lack a copy for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::{
    Controller, CreateVolume, Disk, DiskId, Heartbeat, Incarnation, MemoryStore, NodeId, RebalanceState,
    Registration, Settings, Uuid, VolumeNumber,
};
use foundation::{ByteCount, Instant};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 * MIB;
const NODES: u64 = 4;
/// Chunks that each disk has room for.
const ROOM: u64 = 16;

struct Cluster {
    control: Controller<MemoryStore>,
    lives: BTreeMap<u64, Incarnation>,
    /// What each node says that snapshots hold of its disk, in chunks; nothing of one that does not say it.
    held: BTreeMap<u64, u64>,
    now: Instant,
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

impl Cluster {
    fn new() -> Self {
        let now = Instant::from_nanos(1);
        let settings = Settings {
            rebuild_after: Duration::from_secs(4),
            ..Settings::default()
        };
        let mut cluster = Self {
            control: Controller::open(MemoryStore::new(), settings, 3, now).unwrap(),
            lives: BTreeMap::new(),
            held: BTreeMap::new(),
            now,
        };
        for number in 1..=NODES {
            cluster.register(number);
        }
        cluster
    }

    fn disks(&self, number: u64) -> Vec<Disk> {
        let held = self.held.get(&number);
        vec![Disk {
            id: DiskId(Uuid(100 + u128::from(number))),
            capacity: ByteCount(ROOM * CHUNK),
            used: ByteCount(0),
            held: held.map(|chunks| ByteCount(chunks * CHUNK)),
        }]
    }

    /// A new life of a node.
    fn register(&mut self, number: u64) {
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: None,
            ended_through: self.lives.get(&number).copied().unwrap_or_default(),
            disks: self.disks(number),
        };
        let registered = self.control.register(&registration, self.now).unwrap();
        self.lives.insert(number, registered.incarnation);
    }

    fn beat(&mut self, number: u64, done: &[VolumeNumber]) {
        let incarnation = self.lives[&number];
        let heartbeat = Heartbeat {
            incarnation,
            ended_through: Incarnation(incarnation.0 - 1),
            disks: self.disks(number),
            prepared: done.to_vec(),
            removed: done.to_vec(),
            snapshots: BTreeSet::new(),
            ..crate::silent(self.control.cluster(), node(number))
        };
        self.control.heartbeat(&heartbeat, self.now).unwrap();
    }

    fn run(&mut self, time: Duration, nodes: &[u64]) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(250);
            for &number in nodes {
                self.beat(number, &[]);
            }
            self.control.tick(self.now).unwrap();
        }
    }

    fn create(&mut self, name: &str, chunks: u64, copies: u8) -> Result<VolumeNumber, String> {
        for number in 1..=NODES {
            self.beat(number, &[]);
        }
        let request = CreateVolume {
            chunk: ByteCount(CHUNK),
            copies,
            ..CreateVolume::new(name, ByteCount(chunks * CHUNK))
        };
        let volume = self.control.create_volume(&request, self.now);
        let number = volume.map_err(|error| error.to_string())?.number;
        for number_of_node in 1..=NODES {
            self.beat(number_of_node, &[number]);
        }
        self.control.tick(self.now).unwrap();
        Ok(number)
    }

    /// How many copies of a volume's chunks have a place on each node.
    fn copies(&self, volume: VolumeNumber) -> Vec<usize> {
        let (_, chunks) = self.control.map(volume, 0, 100).unwrap();
        let on = |number| {
            let has = |copies: &[control::Copy]| copies.iter().any(|copy| copy.node == node(number));
            chunks.iter().filter(|(_, chunk)| has(&chunk.copies)).count()
        };
        (1..=NODES).map(on).collect()
    }

    fn shown(&self) -> Vec<Option<u64>> {
        let status = self.control.status(self.now).unwrap();
        let disks = status.nodes.iter().flat_map(|node| &node.disks);
        disks
            .map(|(disk, _)| disk.held.map(|held| held.0 / CHUNK))
            .collect()
    }
}

#[test]
fn a_new_volume_goes_where_snapshots_hold_less() {
    let mut cluster = Cluster::new();
    cluster.held = BTreeMap::from([(1, ROOM), (2, 4), (3, 0)]);
    let volume = cluster.create("first", 8, 2).unwrap();
    // The fourth says nothing, as nodes of the release before.
    assert_eq!(cluster.shown(), [Some(ROOM), Some(4), Some(0), None]);
    let copies = cluster.copies(volume);
    assert_eq!(copies[0], 0, "{copies:?}");
    assert!(copies[1] < copies[2] && copies[1] < copies[3], "{copies:?}");
    // A new life that has not said it yet holds what the one before did; one that says none holds nothing.
    cluster.held.remove(&1);
    cluster.register(1);
    cluster.beat(1, &[]);
    assert_eq!(cluster.shown()[0], Some(ROOM));
    let volume = cluster.create("second", 4, 2).unwrap();
    assert_eq!(cluster.copies(volume)[0], 0);
    // What is held is not promised: a volume that fits otherwise is refused, with what there is.
    let refused = cluster.create("third", 8, 4).unwrap_err();
    assert!(
        refused.contains("there is room for 0 B on different nodes")
            && refused.contains("delete volumes or snapshots"),
        "{refused}"
    );
    cluster.held.insert(1, 0);
    let volume = cluster.create("third", 4, 4).unwrap();
    assert_eq!(cluster.copies(volume), [4, 4, 4, 4]);
}

#[test]
fn a_clone_is_not_made_where_snapshots_leave_no_room() {
    let mut cluster = Cluster::new();
    cluster.create("data", 4, 4).unwrap();
    let (_, begun) = cluster.control.begin_snapshot("data", "monday", 7).unwrap();
    cluster
        .control
        .complete_snapshot(begun.volume, begun.number)
        .unwrap();
    // Of sixteen, four are promised: there is room for three, three, four and all of it. The last chunk has two places.
    cluster.held = BTreeMap::from([(1, 9), (2, 9), (3, 8), (4, 0)]);
    cluster.run(Duration::from_secs(1), &[1, 2, 3, 4]);
    let clone = |cluster: &mut Cluster| {
        let clone = cluster
            .control
            .clone_volume("data", "monday", "trial", cluster.now);
        clone.map_err(|error| error.to_string())
    };
    let refused = clone(&mut cluster).unwrap_err();
    assert!(
        refused.contains("has 2 copies in sync on disks that have room"),
        "{refused}"
    );
    cluster.held.insert(2, 8);
    cluster.run(Duration::from_secs(1), &[1, 2, 3, 4]);
    let clone = clone(&mut cluster).unwrap();
    assert_eq!(cluster.copies(clone.number), [3, 4, 4, 4]);
}

#[test]
fn a_chunk_that_lacks_a_copy_gets_one_whatever_snapshots_hold() {
    let mut cluster = Cluster::new();
    cluster.held = BTreeMap::from([(4, ROOM)]);
    let volume = cluster.create("data", 6, 3).unwrap();
    assert_eq!(cluster.copies(volume), [6, 6, 6, 0]);
    cluster.control.set_rebalance(false).unwrap();
    // Who only wants a node emptied waits for room.
    let refused = cluster.control.drain(node(1), None, cluster.now).unwrap_err();
    assert!(
        refused.to_string().contains("of its 6 copies only 0 find room"),
        "{refused}"
    );
    cluster.held.insert(4, ROOM - 6);
    cluster.run(Duration::from_secs(1), &[1, 2, 3, 4]);
    cluster.control.drain(node(1), None, cluster.now).unwrap();
    cluster.held.insert(4, ROOM);
    cluster.run(Duration::from_secs(20), &[1, 2, 3, 4]);
    assert_eq!(cluster.copies(volume), [6, 6, 6, 0]);
    cluster.control.undrain(node(1), None).unwrap();
    // A node that stays away is another matter.
    cluster.run(Duration::from_secs(20), &[2, 3, 4]);
    assert_eq!(cluster.copies(volume)[3], 6);
}

#[test]
fn nodes_are_evened_out_by_what_is_promised_alone() {
    let mut cluster = Cluster::new();
    let volume = cluster.create("data", 8, 2).unwrap();
    let even = cluster.copies(volume);
    assert_eq!(even, [4, 4, 4, 4]);
    for held in [[12, 0, 0, 0], [0, 8, 0, 3]] {
        cluster.held = (1..).zip(held).collect();
        cluster.run(Duration::from_secs(20), &[1, 2, 3, 4]);
        let balance = cluster.control.balance(cluster.now).unwrap();
        assert_eq!((balance.state, balance.moves.len()), (RebalanceState::Even, 0));
        assert_eq!(cluster.copies(volume), even);
    }
}
