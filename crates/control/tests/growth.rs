//! A volume grows while it is used: what nodes are told, what counts as done, and what is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use control::{
    Based, ControlError, Controller, CreateVolume, Disk, DiskId, Growing, Heartbeat, HeartbeatAnswer,
    Incarnation, MemoryStore, NodeId, Registration, Resize, Settings, Uuid, Volume, VolumeNumber,
    VolumeState,
};
use foundation::{ByteCount, Instant};

const MIB: u64 = 1 << 20;
const NODES: u64 = 3;
/// The room of a node's disk, unless a test needs more.
const ROOM: u64 = 20;

struct Cluster<'a> {
    control: Controller<&'a MemoryStore>,
    store: &'a MemoryStore,
    lives: BTreeMap<u64, Incarnation>,
    /// Chunks of 64 MiB that a node's disk has room for.
    room: u64,
    now: Instant,
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64, room: u64) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(u128::from(number))),
        capacity: ByteCount(room * 64 * MIB),
        used: ByteCount(0),
        held: None,
    }]
}

impl<'a> Cluster<'a> {
    fn new(store: &'a MemoryStore) -> Self {
        Self::with_room(store, ROOM)
    }

    fn with_room(store: &'a MemoryStore, room: u64) -> Self {
        let now = Instant::from_nanos(1);
        let mut control = Controller::open(store, Settings::default(), 3, now).unwrap();
        let register = |number| {
            let registration = Registration {
                cluster: None,
                node: node(number),
                peer_address: format!("192.0.2.{number}:4420"),
                rack: None,
                incarnation: None,
                ended_through: Incarnation(0),
                disks: disks(number, room),
            };
            (number, control.register(&registration, now).unwrap().incarnation)
        };
        let lives = (1..=NODES).map(register).collect();
        Self {
            control,
            store,
            lives,
            room,
            now,
        }
    }

    /// A heartbeat that says so much is done.
    fn beat(&mut self, number: u64, prepared: &[VolumeNumber], grown: &[Growing]) -> HeartbeatAnswer {
        let heartbeat = Heartbeat {
            incarnation: self.lives[&number],
            disks: disks(number, self.room),
            prepared: prepared.to_vec(),
            grown: grown.to_vec(),
            ..crate::silent(self.control.cluster(), node(number))
        };
        self.control.heartbeat(&heartbeat, self.now).unwrap()
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(250);
        self.control.tick(self.now).unwrap();
    }

    /// A volume of so many chunks, ready.
    fn volume(&mut self, chunks: u64) -> Volume {
        let request = CreateVolume {
            chunk: ByteCount(64 * MIB),
            ..CreateVolume::new("data", ByteCount(chunks * 64 * MIB))
        };
        let number = self.control.create_volume(&request, self.now).unwrap().number;
        self.prepared(number)
    }

    /// A volume once its nodes have made its copies.
    fn prepared(&mut self, number: VolumeNumber) -> Volume {
        for node in 1..=NODES {
            assert_eq!(self.beat(node, &[], &[]).prepare, [number]);
            self.beat(node, &[number], &[]);
        }
        self.tick();
        let volume = self.control.volume(number).unwrap();
        assert_eq!(volume.state, VolumeState::Ready);
        volume
    }

    /// Every node says that it has removed a volume.
    fn removed(&mut self, number: VolumeNumber) {
        for node in 1..=NODES {
            let heartbeat = Heartbeat {
                incarnation: self.lives[&node],
                disks: disks(node, self.room),
                removed: vec![number],
                ..crate::silent(self.control.cluster(), self::node(node))
            };
            self.control.heartbeat(&heartbeat, self.now).unwrap();
        }
        self.tick();
    }

    /// How many of a volume's chunks have places.
    fn placed(&self, number: VolumeNumber) -> usize {
        let mut first = 0;
        loop {
            let (_, chunks) = self.control.map(number, first as u32, 1000).unwrap();
            first += chunks.len();
            if chunks.is_empty() {
                return first;
            }
        }
    }

    fn resize(&mut self, chunks: u64) -> Result<Volume, ControlError> {
        self.control
            .resize_volume("data", ByteCount(chunks * 64 * MIB), self.now)
    }

    /// The same, also if it takes a growth back.
    fn cut(&mut self, chunks: u64) -> Result<Volume, ControlError> {
        let wanted = Resize {
            cancels_growth: true,
            ..Resize::to(ByteCount(chunks * 64 * MIB))
        };
        self.control.resize_volume_on("data", wanted, self.now)
    }

    fn size(&self, number: VolumeNumber) -> u64 {
        self.control.volume(number).unwrap().size().0 / (64 * MIB)
    }
}

#[test]
fn a_volume_has_its_new_size_when_all_nodes_have_the_new_copies() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let before = cluster.volume(5);
    let number = before.number;
    let growing = cluster.resize(12).unwrap();
    assert_eq!(
        (growing.state, growing.geometry.chunk_count()),
        (VolumeState::Ready, 5)
    );
    let told = Growing {
        number,
        from: 5,
        chunks: 12,
    };
    for node in 1..=NODES {
        assert_eq!(cluster.size(number), 5);
        let answer = cluster.beat(node, &[], &[]);
        // Never as a volume to be prepared: a copy of chunk 3 that is missing is lost.
        assert_eq!((answer.grow, answer.prepare), (vec![told], Vec::new()));
        cluster.beat(node, &[], &[told]);
        cluster.tick();
    }
    let after = cluster.control.volume(number).unwrap();
    assert_eq!(after.geometry.chunk_count(), 12);
    assert!(after.is_settled());
    assert_eq!(
        after.geometry.group_chunks[..before.geometry.group_chunks.len()],
        before.geometry.group_chunks[..]
    );
    let (_, chunks) = cluster.control.map(number, 0, 100).unwrap();
    assert_eq!(chunks.len(), 12);
    assert!(cluster.beat(1, &[], &[]).grow.is_empty());
    // What it has it is not given again.
    assert_eq!(cluster.resize(12).unwrap(), after);
}

#[test]
fn what_was_reported_of_one_growth_says_nothing_of_the_next() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let number = cluster.volume(2).number;
    let first = Growing {
        number,
        from: 2,
        chunks: 4,
    };
    cluster.resize(4).unwrap();
    for node in 1..=NODES {
        cluster.beat(node, &[], &[first]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 4);
    cluster.resize(6).unwrap();
    for node in 1..=NODES {
        cluster.beat(node, &[number], &[first]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 4);
    let second = Growing {
        number,
        from: 4,
        chunks: 6,
    };
    for node in 1..=NODES {
        assert_eq!(cluster.beat(node, &[], &[]).grow, [second]);
        cluster.beat(node, &[], &[second]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 6);
}

#[test]
fn another_master_goes_on_with_a_growth() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let number = cluster.volume(2).number;
    cluster.resize(9).unwrap();
    cluster.control = Controller::open(cluster.store, Settings::default(), 4, cluster.now).unwrap();
    cluster.tick();
    for node in 1..=NODES {
        cluster.beat(node, &[], &[]);
        cluster.tick();
        let told = cluster.beat(node, &[], &[]).grow;
        assert_eq!(told.len(), 1, "node {node}");
        cluster.beat(node, &[], &told);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 9);
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers_and_changes_nothing() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let before = cluster.volume(5);
    let refused = |result: Result<Volume, ControlError>| result.unwrap_err().to_string();
    assert_eq!(
        refused(cluster.resize(4)),
        "size of 256 MiB is below the 320 MiB that the volume has; volumes only grow; make a smaller one and copy what is needed"
    );
    let lacking = refused(cluster.resize(ROOM + 1));
    assert!(
        lacking.starts_with(
            "1 GiB in 3 copies do not fit: there is room for 960 MiB on different nodes, 64 MiB more"
        ),
        "{lacking}"
    );
    assert_eq!(cluster.control.volume(before.number).unwrap(), before);
    assert!(cluster.beat(1, &[], &[]).grow.is_empty());
    cluster.resize(6).unwrap();
    let other = refused(cluster.resize(7));
    assert!(other.contains("growing to 384 MiB"), "{other}");
    assert_eq!(
        refused(cluster.resize(5)),
        "volume \"data\" cannot have 320 MiB again: 1 of the 1 chunks by which it is growing to 384 MiB have places that nodes were told \
         of, and keep them; it goes on to grow"
    );
    assert!(
        refused(
            cluster
                .control
                .resize_volume("nothing", ByteCount(1), cluster.now)
        )
        .contains("\"nothing\"")
    );
}

#[test]
fn a_volume_that_is_deleted_while_it_grows_gives_all_its_room_back() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let number = cluster.volume(2).number;
    cluster.resize(9).unwrap();
    cluster.control.delete_volume("data", cluster.now).unwrap();
    cluster.removed(number);
    assert!(cluster.control.volume(number).is_err());
    let whole = CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new("whole", ByteCount(ROOM * 64 * MIB))
    };
    cluster.control.create_volume(&whole, cluster.now).unwrap();
}

/// A master that did all of it at once would hear nobody for minutes.
#[test]
fn a_large_volume_is_made_grown_and_deleted_in_steps() {
    const STEP: usize = 4096;
    let store = MemoryStore::new();
    let mut cluster = Cluster::with_room(&store, 30_000);
    let request = CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new("data", ByteCount(10_000 * 64 * MIB))
    };
    let made = cluster.control.create_volume(&request, cluster.now).unwrap();
    let number = made.number;
    assert_eq!(
        (made.state, cluster.placed(number)),
        (VolumeState::Creating, STEP)
    );
    // Another master goes on with it.
    cluster.control = Controller::open(cluster.store, Settings::default(), 4, cluster.now).unwrap();
    for node in 1..=NODES {
        assert!(cluster.beat(node, &[], &[]).prepare.is_empty());
    }
    cluster.tick();
    assert_eq!(cluster.placed(number), 2 * STEP);
    assert!(cluster.beat(1, &[], &[]).prepare.is_empty());
    cluster.tick();
    assert_eq!(cluster.placed(number), 10_000);
    cluster.prepared(number);

    cluster.resize(19_000).unwrap();
    assert_eq!(cluster.placed(number), 10_000 + STEP);
    assert!(
        cluster.beat(1, &[], &[]).grow.is_empty(),
        "it would say that a part is all"
    );
    cluster.tick();
    cluster.tick();
    let told = Growing {
        number,
        from: 10_000,
        chunks: 19_000,
    };
    for node in 1..=NODES {
        assert_eq!(cluster.beat(node, &[], &[]).grow, [told]);
        cluster.beat(node, &[], &[told]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 19_000);
    assert_eq!(cluster.placed(number), 19_000);

    cluster.control.delete_volume("data", cluster.now).unwrap();
    cluster.removed(number);
    let mut steps = 1;
    while cluster.control.volume(number).is_ok() {
        cluster.tick();
        steps += 1;
    }
    assert!((4..=6).contains(&steps), "{steps}");
    let whole = CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new("whole", ByteCount(30_000 * 64 * MIB))
    };
    cluster.control.create_volume(&whole, cluster.now).unwrap();
}

/// Room is promised with places, and a large volume gets its places one after the other.
#[test]
fn what_volumes_are_still_to_get_is_not_promised_twice() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with_room(&store, 30_000);
    let request = |name: &str, chunks: u64| CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new(name, ByteCount(chunks * 64 * MIB))
    };
    let now = cluster.now;
    let first = cluster
        .control
        .create_volume(&request("data", 20_000), now)
        .unwrap();
    let refused = cluster.control.create_volume(&request("second", 15_000), now);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("but not beside 2.9 TiB that volumes which are being made"),
        "{refused}"
    );
    assert!(cluster.control.volume_named("second").is_err());
    let second = cluster
        .control
        .create_volume(&request("second", 10_000), now)
        .unwrap();
    for _ in 0..8 {
        cluster.tick();
    }
    assert_eq!(cluster.placed(first.number), 20_000);
    assert_eq!(cluster.placed(second.number), 10_000);
}

/// Nodes have no copies of such a volume yet, and would ask for another write node of each chunk in a later epoch.
#[test]
fn a_volume_whose_chunks_get_places_stays_as_it_is_until_all_have_one() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with_room(&store, 30_000);
    let request = CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new("data", ByteCount(9000 * 64 * MIB))
    };
    let number = cluster
        .control
        .create_volume(&request, cluster.now)
        .unwrap()
        .number;
    let registration = Registration {
        cluster: None,
        node: node(1),
        peer_address: "192.0.2.1:4420".to_owned(),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(1),
        disks: disks(1, cluster.room),
    };
    let life = cluster
        .control
        .register(&registration, cluster.now)
        .unwrap()
        .incarnation;
    assert_ne!(life, cluster.lives[&1]);
    cluster.lives.insert(1, life);
    let first_epoch = |cluster: &Cluster<'_>| {
        let (_, chunks) = cluster.control.map(number, 0, 1).unwrap();
        chunks[0].1.epoch.0
    };
    cluster.tick();
    assert_eq!(
        cluster.control.volume(number).unwrap().state,
        VolumeState::Creating
    );
    assert_eq!(first_epoch(&cluster), 1);
    for _ in 0..4 {
        cluster.tick();
    }
    assert_eq!(
        first_epoch(&cluster),
        2,
        "the life that has ended would be waited for"
    );
    cluster.prepared(number);
}

/// A volume that is to get more than there is room for, since a disk was lost or shrank meanwhile, with the room that is left.
fn without_room(cluster: &mut Cluster<'_>, room: u64) {
    for number in 1..=NODES {
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: Some(cluster.lives[&number]),
            ended_through: Incarnation(0),
            disks: disks(number, room),
        };
        cluster.control.register(&registration, cluster.now).unwrap();
    }
    cluster.room = room;
}

fn request(name: &str, chunks: u64) -> CreateVolume {
    CreateVolume {
        chunk: ByteCount(64 * MIB),
        ..CreateVolume::new(name, ByteCount(chunks * 64 * MIB))
    }
}

/// A volume of 9000 chunks, of which a part has places.
fn half_placed(store: &MemoryStore) -> (Cluster<'_>, VolumeNumber) {
    let mut cluster = Cluster::with_room(store, 30_000);
    let now = cluster.now;
    let made = cluster.control.create_volume(&request("data", 9000), now);
    (cluster, made.unwrap().number)
}

/// What is said of a volume's chunks without places.
fn unplaced(cluster: &Cluster<'_>, number: VolumeNumber) -> Option<(u32, String)> {
    let status = cluster.control.status(cluster.now).unwrap();
    let of_it = status
        .volumes
        .iter()
        .find(|status| status.volume.number == number)
        .unwrap();
    assert_eq!(of_it.unplaced.as_ref(), cluster.control.unplaced(number));
    of_it
        .unplaced
        .clone()
        .map(|unplaced| (unplaced.chunks, unplaced.why))
}

#[test]
fn a_volume_that_runs_out_of_room_says_so_and_goes_on_when_there_is_some() {
    let store = MemoryStore::new();
    let (mut cluster, number) = half_placed(&store);
    assert_eq!(unplaced(&cluster, number), None);
    without_room(&mut cluster, 5000);
    cluster.tick();
    assert_eq!(cluster.placed(number), 4096);
    let (chunks, why) = unplaced(&cluster, number).unwrap();
    assert_eq!(chunks, 9000 - 4096);
    assert!(
        why.starts_with("they need 306.5 GiB on each of 3 nodes, and there is room for 56.5 GiB;"),
        "{why}"
    );
    // Another master finds out the same.
    cluster.control = Controller::open(cluster.store, Settings::default(), 4, cluster.now).unwrap();
    for node in 1..=NODES {
        cluster.beat(node, &[], &[]);
    }
    cluster.tick();
    assert_eq!(unplaced(&cluster, number), Some((chunks, why)));
    without_room(&mut cluster, 10_000);
    cluster.tick();
    assert_eq!(unplaced(&cluster, number), None);
    cluster.tick();
    assert_eq!(cluster.placed(number), 9000);
    cluster.prepared(number);
}

#[test]
fn a_half_placed_volume_is_deleted_and_gives_its_room_back() {
    let store = MemoryStore::new();
    let (mut cluster, number) = half_placed(&store);
    without_room(&mut cluster, 5000);
    cluster.tick();
    assert_eq!(
        unplaced(&cluster, number).map(|(chunks, _)| chunks),
        Some(9000 - 4096)
    );
    cluster.control.delete_volume("data", cluster.now).unwrap();
    assert_eq!(unplaced(&cluster, number), None);
    for node in 1..=NODES {
        assert_eq!(cluster.beat(node, &[], &[]).remove, [number]);
    }
    cluster.removed(number);
    cluster.tick();
    assert!(cluster.control.volume(number).is_err());
    cluster
        .control
        .create_volume(&request("whole", 5000), cluster.now)
        .unwrap();
}

#[test]
fn a_growth_that_runs_out_of_room_is_taken_back_as_far_as_no_chunk_of_it_has_a_place() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with_room(&store, 30_000);
    let before = cluster.volume(100);
    let number = before.number;
    cluster.resize(9000).unwrap();
    without_room(&mut cluster, 5000);
    cluster.tick();
    assert_eq!(
        unplaced(&cluster, number).map(|(chunks, _)| chunks),
        Some(9000 - 100 - 4096)
    );
    let refused = cluster.cut(100).unwrap_err().to_string();
    assert!(
        refused.contains("4096 of the 8900 chunks") && refused.contains("name a size from 262."),
        "{refused}"
    );
    assert!(cluster.cut(4195).is_err());
    // Nor by somebody who names a size, and does not know that it grows.
    let under_way = cluster.control.volume(number).unwrap();
    let refused = cluster.resize(5000).unwrap_err().to_string();
    assert_eq!(
        refused,
        "volume \"data\" of 6.2 GiB is growing to 562.5 GiB (4096 of the 8900 new chunks have places), and to have 312.5 GiB instead takes \
         that growth back, which somebody else may have asked for: wait until \"redhare volume show data\" has it grown, or say that it is \
         meant with --cancel-growth"
    );
    assert_eq!(cluster.control.volume(number).unwrap(), under_way);
    let cut = cluster.cut(4196).unwrap();
    assert_eq!((cut.size(), cut.grown().chunk_count()), (before.size(), 4196));
    assert_eq!(unplaced(&cluster, number), None);
    let told = Growing {
        number,
        from: 100,
        chunks: 4196,
    };
    cluster.tick();
    for node in 1..=NODES {
        assert_eq!(cluster.beat(node, &[], &[]).grow, [told]);
        cluster.beat(node, &[], &[told]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 4196);
    assert!(cluster.control.volume(number).unwrap().is_settled());
}

#[test]
fn of_two_calls_that_add_to_the_same_size_the_second_is_refused() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store);
    let number = cluster.volume(2).number;
    let add = |cluster: &mut Cluster<'_>, seen: u64, to: u64, call| {
        let (size, now) = (ByteCount(to * 64 * MIB), cluster.now);
        let based = Based {
            size: ByteCount(seen * 64 * MIB),
            call,
        };
        let wanted = Resize {
            based: Some(based),
            ..Resize::to(size)
        };
        cluster.control.resize_volume_on("data", wanted, now)
    };
    let first = add(&mut cluster, 2, 4, 7).unwrap();
    assert_eq!(first.grown().chunk_count(), 4);
    // Its answer was lost, and it comes again.
    assert_eq!(add(&mut cluster, 2, 4, 7).unwrap(), first);
    for to in [4, 6] {
        let refused = add(&mut cluster, 2, to, 8).unwrap_err().to_string();
        assert!(
            refused.starts_with("volume \"data\" has 128 MiB and is growing to 256 MiB, and more was to be added to the 128 MiB that"),
            "{refused}"
        );
    }
    let told = Growing {
        number,
        from: 2,
        chunks: 4,
    };
    for node in 1..=NODES {
        cluster.beat(node, &[], &[told]);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 4);
    let refused = add(&mut cluster, 2, 4, 8).unwrap_err().to_string();
    assert!(
        refused.starts_with("volume \"data\" has 256 MiB, and more"),
        "{refused}"
    );
    // That which had it grow has come to its end, and hears so.
    assert_eq!(add(&mut cluster, 2, 4, 7).unwrap().size().0, 256 * MIB);
    add(&mut cluster, 4, 6, 9).unwrap();
    // Also from a master that it did not come to first, while the volume grows by it.
    cluster.control = Controller::open(cluster.store, Settings::default(), 4, cluster.now).unwrap();
    assert_eq!(add(&mut cluster, 4, 6, 9).unwrap().grown().chunk_count(), 6);
    assert!(add(&mut cluster, 4, 6, 10).is_err());
    // Of those that drew no number each is another one.
    for node in 1..=NODES {
        let told = cluster.beat(node, &[], &[]).grow;
        cluster.tick();
        cluster.beat(node, &[], &told);
    }
    for node in 1..=NODES {
        let told = cluster.beat(node, &[], &[]).grow;
        cluster.beat(node, &[], &told);
    }
    cluster.tick();
    assert_eq!(cluster.size(number), 6);
    add(&mut cluster, 6, 7, 0).unwrap();
    for call in [0, 9] {
        assert!(add(&mut cluster, 6, 7, call).is_err(), "{call}");
    }
}
