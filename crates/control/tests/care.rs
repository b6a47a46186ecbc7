//! What it costs to look after the chunks of a lost node, and of all by a new master: reads of the store, by time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use control::configuration::Proposal;
use control::{
    Chunk, ChunkId, Committed, Controller, CreateVolume, Disk, DiskId, Entry, Heartbeat, Incarnation,
    MemoryStore, MetadataStore, NodeId, Registration, Settings, StoreError, Transaction, Uuid, Versioned,
    Volume, VolumeState,
};
use foundation::{ByteCount, Instant};

const MIB: u64 = 1 << 20;
const CHUNKS: u64 = 3000;
const NODES: u64 = 5;

/// Counts the chunks that are read one by one.
#[derive(Clone, Default)]
struct Counting {
    store: Rc<MemoryStore>,
    chunks_read: Rc<Cell<usize>>,
}

impl MetadataStore for Counting {
    fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        if key.starts_with(b"chunk/") {
            self.chunks_read.set(self.chunks_read.get() + 1);
        }
        self.store.get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

struct Cluster {
    control: Controller<Counting>,
    store: Counting,
    incarnations: BTreeMap<u64, Incarnation>,
    now: Instant,
    most_read_in_a_tick: usize,
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    let id = DiskId(Uuid(u128::from(number)));
    vec![Disk {
        id,
        capacity: ByteCount(CHUNKS * MIB * 64),
        used: ByteCount(0),
        held: None,
    }]
}

impl Cluster {
    fn new() -> Self {
        let (store, now) = (Counting::default(), Instant::from_nanos(1));
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
        let incarnations = (1..=NODES).map(register).collect();
        Self {
            control,
            store,
            incarnations,
            now,
            most_read_in_a_tick: 0,
        }
    }

    /// A quarter of a second, in which these nodes are heard.
    fn step(&mut self, living: impl Fn(u64) -> bool) {
        self.now = self.now + Duration::from_millis(250);
        let volumes = self.control.volumes().unwrap();
        let preparing = |volume: &&Volume| volume.state == VolumeState::Preparing;
        let prepared: Vec<_> = volumes
            .iter()
            .filter(preparing)
            .map(|volume| volume.number)
            .collect();
        for (&number, &incarnation) in self.incarnations.iter().filter(|(number, _)| living(**number)) {
            let heartbeat = Heartbeat {
                incarnation,
                ended_through: Incarnation(incarnation.0 - 1),
                disks: disks(number),
                prepared: prepared.clone(),
                ..crate::silent(self.control.cluster(), node(number))
            };
            self.control.heartbeat(&heartbeat, self.now).unwrap();
        }
        let before = self.store.chunks_read.get();
        self.control.tick(self.now).unwrap();
        let read = self.store.chunks_read.get() - before;
        self.most_read_in_a_tick = self.most_read_in_a_tick.max(read);
    }

    /// Chunks read in so many seconds.
    fn read_in(&mut self, seconds: u64, living: impl Fn(u64) -> bool) -> usize {
        let before = self.store.chunks_read.get();
        for _ in 0..seconds * 4 {
            self.step(&living);
        }
        self.store.chunks_read.get() - before
    }

    /// A volume of so many chunks, ready.
    fn with_volume() -> Self {
        let mut cluster = Self::new();
        let request = CreateVolume {
            chunk: ByteCount(16 * MIB),
            stripe_unit: ByteCount(MIB),
            ..CreateVolume::new("v".to_owned(), ByteCount(CHUNKS * 16 * MIB))
        };
        cluster.control.create_volume(&request, cluster.now).unwrap();
        cluster.read_in(2, |_| true);
        assert_eq!(cluster.control.volumes().unwrap()[0].state, VolumeState::Ready);
        cluster
    }

    /// Another master goes on, which has heard nobody.
    fn begin_reign(&mut self) {
        self.control = Controller::open(self.store.clone(), Settings::default(), 4, self.now).unwrap();
    }

    /// Chunks of which this node is a member.
    fn members_on(&self, number: u64) -> usize {
        let chunks = self.chunks();
        let is_member = |chunk: &Chunk| chunk.members().any(|(member, _)| member == node(number));
        chunks.iter().filter(|(_, chunk)| is_member(chunk)).count()
    }

    fn chunks(&self) -> Vec<(ChunkId, Chunk)> {
        let volumes = self.control.volumes().unwrap();
        self.control.map(volumes[0].number, 0, 10_000).unwrap().1
    }

    /// Write nodes take into the set what they have filled: all that is being filled now. How many those were.
    fn fill(&mut self) -> usize {
        let mut filled = 0;
        for (id, chunk) in self.chunks() {
            let new = chunk
                .copies
                .iter()
                .find(|copy| copy.incarnation.is_none() && copy.node != node(NODES));
            let Some(new) = new else { continue };
            let mut members: BTreeMap<NodeId, Incarnation> = chunk.members().collect();
            let proposer = chunk.write_node;
            let incarnation = members[&proposer];
            members.insert(new.node, self.incarnations[&(new.node.0.0 as u64)]);
            let proposal = Proposal {
                node: proposer,
                incarnation,
                expected: chunk.epoch,
                write_node: proposer,
                members: members.into_iter().collect(),
            };
            self.control.propose(id, &proposal, self.now).unwrap();
            filled += 1;
        }
        filled
    }
}

#[test]
fn the_chunks_of_a_lost_node_are_read_when_there_is_something_to_do() {
    let mut cluster = Cluster::with_volume();
    let lost = |number| number < NODES;
    // It is left out.
    cluster.read_in(5, lost);
    let out = cluster
        .chunks()
        .iter()
        .filter(|(_, chunk)| chunk.member_count() == 2)
        .count();
    assert!(
        (1000..=CHUNKS as usize).contains(&out),
        "{out} of {CHUNKS} chunks had a copy there"
    );
    // Its chunks, and no others, were read for that, each once, beside the first looks at their places.
    let bound = out + 600;
    assert!(
        cluster.most_read_in_a_tick <= bound,
        "{} of {out}",
        cluster.most_read_in_a_tick
    );
    cluster.most_read_in_a_tick = 0;
    // While it may come back nothing is to be done; the audit and the wait look at them every few seconds.
    let read = cluster.read_in(60, lost);
    assert!(
        read < out * 10,
        "{read} reads of {out} chunks in a minute of waiting"
    );
    // Now they are rebuilt, a bounded number at a time.
    cluster.read_in(560, lost);
    let slots = (NODES - 1) as usize * Settings::default().rebuilds_per_node;
    let filling = |cluster: &Cluster| {
        let chunks = cluster.chunks();
        chunks.iter().filter(|(_, chunk)| chunk.copies.len() == 4).count()
    };
    assert_eq!(filling(&cluster), slots);
    let read = cluster.read_in(60, lost);
    assert!(
        read < out * 10,
        "{read} reads of {out} chunks in a minute of rebuilding"
    );
    let mut rounds = 0;
    loop {
        let filled = cluster.fill();
        if filled == 0 {
            break;
        }
        rounds += 1;
        assert!(filled <= slots, "{filled} at a time");
        // What has become free is taken at once: a new copy begins, and the old one's place is taken away.
        cluster.read_in(2, lost);
    }
    assert!(
        rounds <= out / slots + 2,
        "{rounds} rounds of {slots} for {out} chunks"
    );
    for (id, chunk) in cluster.chunks() {
        assert_eq!((chunk.member_count(), chunk.copies.len()), (3, 3), "{id}");
    }
    assert!(
        cluster.most_read_in_a_tick <= 600,
        "{}",
        cluster.most_read_in_a_tick
    );
    assert_eq!(cluster.read_in(60, lost), 0, "nothing is left to be done");
}

#[test]
fn a_new_master_that_hears_its_nodes_one_after_the_other_reads_no_chunk_twice() {
    let mut cluster = Cluster::with_volume();
    cluster.begin_reign();
    let mut read = 0;
    for heard in 0..=NODES {
        read += cluster.read_in(1, |number| number <= heard);
    }
    assert_eq!(read, 0, "they were read with all others, not one by one");
}

#[test]
fn a_member_whose_life_has_ended_is_left_out_once_those_who_stay_are_heard() {
    let mut cluster = Cluster::with_volume();
    cluster.begin_reign();
    // The last node is back in another life, and the new master has read all chunks; of the others nothing is heard.
    let registration = Registration {
        cluster: None,
        node: node(NODES),
        peer_address: format!("192.0.2.{NODES}:4420"),
        rack: None,
        incarnation: None,
        ended_through: cluster.incarnations[&NODES],
        disks: disks(NODES),
    };
    let registered = cluster.control.register(&registration, cluster.now).unwrap();
    cluster.incarnations.insert(NODES, registered.incarnation);
    let before = cluster.members_on(NODES);
    assert!(before > 1000, "{before} of {CHUNKS} chunks had a copy there");
    cluster.read_in(2, |number| number == NODES);
    assert_eq!(
        cluster.members_on(NODES),
        before,
        "whether the others live is not known"
    );
    cluster.read_in(1, |_| true);
    assert_eq!(cluster.members_on(NODES), 0);
}

#[test]
fn a_node_that_names_its_copies_costs_reads_of_those_only_that_have_no_place_there() {
    let mut cluster = Cluster::with_volume();
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    for (id, chunk) in cluster.chunks() {
        match chunk.has_copy_on(node(1)) {
            true => here.push(id),
            false => elsewhere.push(id),
        }
    }
    assert!(here.len() > 1000 && elsewhere.len() > 500);
    // What a copy that it was to delete while it was away has left.
    let left = elsewhere[7];
    let heartbeat = Heartbeat {
        incarnation: cluster.incarnations[&1],
        disks: disks(1),
        copies: here.iter().copied().chain([left]).collect(),
        names_copies: true,
        ..crate::silent(cluster.control.cluster(), node(1))
    };
    let before = cluster.store.chunks_read.get();
    let answer = cluster.control.heartbeat(&heartbeat, cluster.now).unwrap();
    let removed: Vec<ChunkId> = answer.remove_copies.iter().map(|(id, _)| *id).collect();
    assert_eq!(removed, [left]);
    let read = cluster.store.chunks_read.get() - before;
    assert!(read <= 2, "{read} reads: to see, and to say in which epoch");
}

/// A node registers that has one disk of this size.
fn register(control: &mut Controller<&MemoryStore>, number: u64, capacity: u64, now: Instant) -> Incarnation {
    let mut disks = disks(number);
    disks[0].capacity = ByteCount(capacity);
    let registration = Registration {
        cluster: None,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(0),
        disks,
    };
    control.register(&registration, now).unwrap().incarnation
}

/// Of one volume every chunk lacks a copy that no node has room for, more of them than one look reads, and there is always one that is due
/// again. Of another, with a higher number, there is room for one.
#[test]
fn chunks_that_can_only_wait_keep_no_other_one_from_its_place() {
    const SMALL: u64 = 16 * MIB;
    const LARGE: u64 = 64 * SMALL;
    let (store, mut now) = (MemoryStore::new(), Instant::from_nanos(1));
    let settings = Settings {
        // Chunks that wait are looked at again with each tick.
        rebuild_after: Duration::from_millis(800),
        rebalance: false,
        ..Settings::default()
    };
    let mut control = Controller::open(&store, settings, 3, now).unwrap();
    let mut lives: BTreeMap<u64, Incarnation> = BTreeMap::new();
    for number in 1..=3 {
        lives.insert(number, register(&mut control, number, 2000 * LARGE, now));
    }
    for (name, chunk, chunks) in [("placeless", LARGE, 300), ("with-room", SMALL, 1)] {
        let request = CreateVolume {
            chunk: ByteCount(chunk),
            stripe_unit: ByteCount(MIB),
            ..CreateVolume::new(name.to_owned(), ByteCount(chunk * chunks))
        };
        control.create_volume(&request, now).unwrap();
    }
    // It has room for a copy of a small chunk, and for none of a large one.
    lives.insert(4, register(&mut control, 4, LARGE / 2, now));
    let mut pass = |control: &mut Controller<&MemoryStore>, seconds: u64, last: u64| {
        for _ in 0..seconds * 4 {
            now = now + Duration::from_millis(250);
            let volumes = control.volumes().unwrap();
            for (&number, &incarnation) in lives.iter().filter(|(number, _)| **number != last) {
                let heartbeat = Heartbeat {
                    incarnation,
                    prepared: volumes.iter().map(|volume| volume.number).collect(),
                    ..crate::silent(control.cluster(), node(number))
                };
                control.heartbeat(&heartbeat, now).unwrap();
            }
            control.tick(now).unwrap();
        }
        now
    };
    pass(&mut control, 2, 0);
    let volumes = control.volumes().unwrap();
    assert!(volumes.iter().all(|volume| volume.state == VolumeState::Ready));
    // The third node is gone.
    let now = pass(&mut control, 30, 3);
    let placeless = control.status(now).unwrap().volumes[0].placeless_chunks;
    assert_eq!(placeless, 300);
    let (_, chunks) = control.map(volumes[1].number, 0, 10).unwrap();
    assert!(chunks[0].1.has_copy_on(node(4)), "{:?}", chunks[0].1);
}
