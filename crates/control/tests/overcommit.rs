//! Volumes that together are larger than the disks, where masters are told to promise so much, and disks that are full all the same.

use std::collections::BTreeSet;
use std::time::Duration;

use control::{
    Controller, CreateVolume, Disk, DiskId, Heartbeat, Incarnation, MemoryStore, NodeId, Registration,
    Settings, Uuid, VolumeNumber, VolumeUse,
};
use foundation::{ByteCount, Instant};

const CHUNK: u64 = 64 << 20;
const NODES: u64 = 3;
/// Chunks that each disk has room for.
const ROOM: u64 = 16;

pub(crate) fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

pub(crate) struct Cluster {
    pub(crate) control: Controller<MemoryStore>,
    /// Bytes of each disk.
    capacity: u64,
    /// Chunks that are in use of each.
    used: [u64; NODES as usize],
    pub(crate) lives: [Incarnation; NODES as usize],
    pub(crate) now: Instant,
}

impl Cluster {
    pub(crate) fn new(overcommit_percent: u32) -> Self {
        let now = Instant::from_nanos(1);
        let settings = Settings {
            overcommit_percent,
            ..Settings::default()
        };
        let mut cluster = Self {
            control: Controller::open(MemoryStore::new(), settings, 3, now).unwrap(),
            capacity: ROOM * CHUNK,
            used: [0; NODES as usize],
            lives: [Incarnation(0); NODES as usize],
            now,
        };
        for number in 1..=NODES {
            cluster.register(number).unwrap();
        }
        cluster
    }

    fn disks(&self, number: u64) -> Vec<Disk> {
        vec![Disk {
            id: DiskId(Uuid(100 + u128::from(number))),
            capacity: ByteCount(self.capacity),
            used: ByteCount(self.used[number as usize - 1] * CHUNK),
            held: None,
        }]
    }

    pub(crate) fn register(&mut self, number: u64) -> Result<(), String> {
        let life = &mut self.lives[number as usize - 1];
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: None,
            ended_through: *life,
            disks: Vec::new(),
        };
        let registration = Registration {
            disks: self.disks(number),
            ..registration
        };
        let registered = self.control.register(&registration, self.now);
        let registered = registered.map_err(|error| error.to_string())?;
        self.lives[number as usize - 1] = registered.incarnation;
        Ok(())
    }

    fn beat(&mut self, done: &[VolumeNumber]) {
        self.now = self.now + Duration::from_millis(250);
        for number in 1..=NODES {
            let incarnation = self.lives[number as usize - 1];
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
        self.control.tick(self.now).unwrap();
    }

    pub(crate) fn create(&mut self, name: &str, chunks: u64) -> Result<VolumeNumber, String> {
        self.beat(&[]);
        let request = CreateVolume {
            chunk: ByteCount(CHUNK),
            copies: 3,
            ..CreateVolume::new(name, ByteCount(chunks * CHUNK))
        };
        let volume = self.control.create_volume(&request, self.now);
        let number = volume.map_err(|error| error.to_string())?.number;
        self.beat(&[number]);
        Ok(number)
    }
}

#[test]
fn as_much_is_promised_as_masters_are_told() {
    let mut cluster = Cluster::new(100);
    let refused = cluster.create("large", ROOM + 1).unwrap_err();
    assert!(
        refused.contains("there is room for 1 GiB") && refused.contains("--overcommit"),
        "{refused}"
    );
    let mut cluster = Cluster::new(150);
    cluster.create("large", ROOM + 1).unwrap();
    cluster.create("rest", ROOM / 2 - 1).unwrap();
    let refused = cluster.create("more", 1).unwrap_err();
    assert!(refused.contains("there is room for 0 B"), "{refused}");
}

#[test]
fn a_full_disk_is_promised_to_nobody() {
    let mut cluster = Cluster::new(400);
    cluster.create("first", ROOM).unwrap();
    cluster.used = [ROOM / 2, ROOM - 1, ROOM];
    let refused = cluster.create("second", 1).unwrap_err();
    assert!(refused.contains("there is room for 0 B"), "{refused}");
    cluster.used = [ROOM / 2; 3];
    cluster.create("second", 1).unwrap();
}

#[test]
fn a_disk_that_is_promised_more_than_it_has_registers_again_and_may_not_shrink() {
    let mut cluster = Cluster::new(200);
    cluster.create("large", 2 * ROOM).unwrap();
    cluster.register(1).unwrap();
    cluster.capacity = (ROOM - 1) * CHUNK;
    let refused = cluster.register(2).unwrap_err();
    assert!(refused.contains("would shrink"), "{refused}");
}

/// Nodes of this release keep a little of each disk back, those of a release before promised it all: one of whose disks all is
/// promised comes back, and gets nothing new there.
#[test]
fn a_disk_that_was_promised_to_the_brim_registers_without_what_nodes_keep_back() {
    let mut cluster = Cluster::new(100);
    cluster.create("large", ROOM).unwrap();
    let kept_back = ROOM * CHUNK / 64;
    cluster.capacity -= kept_back;
    for number in 1..=NODES {
        cluster.register(number).unwrap();
        // Again, as it is known now.
        cluster.register(number).unwrap();
    }
    let refused = cluster.create("more", 1).unwrap_err();
    assert!(refused.contains("there is room for 0 B"), "{refused}");
    // More than that nobody keeps back.
    cluster.capacity -= 2 * kept_back;
    let refused = cluster.register(2).unwrap_err();
    assert!(refused.contains("would shrink"), "{refused}");
}

/// What nodes say that volumes use is added up once every living one has said it.
#[test]
fn what_volumes_use_is_known_once_all_have_said_it() {
    let mut cluster = Cluster::new(100);
    let volume = cluster.create("data", 4).unwrap();
    let said = |used, held| VolumeUse {
        used: ByteCount(used),
        held: ByteCount(held),
    };
    assert_eq!(cluster.control.uses(cluster.now), Ok(None));
    for number in 1..NODES {
        let life = (node(number), cluster.lives[number as usize - 1]);
        cluster.control.note_use(life, [(volume, said(number, 10))]);
    }
    assert_eq!(cluster.control.uses(cluster.now), Ok(None));
    // A life that is not the one heard says nothing.
    cluster.control.note_use((node(NODES), Incarnation(9)), []);
    assert_eq!(cluster.control.uses(cluster.now), Ok(None));
    let life = (node(NODES), cluster.lives[NODES as usize - 1]);
    cluster.control.note_use(life, []);
    let uses = cluster.control.uses(cluster.now).unwrap().unwrap();
    assert_eq!(uses.into_iter().collect::<Vec<_>>(), [(volume, said(3, 20))]);
    let status = cluster.control.status(cluster.now).unwrap();
    assert_eq!(status.volumes[0].used, Some(said(3, 20)));
    // One that is gone counts with the last that it said.
    cluster.now = cluster.now + Duration::from_secs(60);
    let uses = cluster.control.uses(cluster.now).unwrap().unwrap();
    assert_eq!(uses[&volume], said(3, 20));
}
