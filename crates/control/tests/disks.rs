//! Nodes with two disks each, as many as a volume has copies: what is on a disk that is drained, fails, or is not there any more comes
//! up on the other disk of its node, with nothing else lost meanwhile. In virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::configuration::Proposal;
use control::{
    Chunk, ChunkId, ControlError, Controller, CopyState, CreateVolume, Disk, DiskId, DiskMoveStatus,
    DiskReport, DiskState, Heartbeat, Incarnation, MemoryStore, MovedCopy, NodeId, Rack, Registration,
    Settings, Uuid, Volume, VolumeState, WriterToken,
};
use foundation::{ByteCount, Epoch, Instant};

/// The racks of the nodes, where they have none.
const NONE: [Option<u128>; 3] = [None; 3];
pub(crate) const CHUNKS: u64 = 200;
pub(crate) const CHUNK: ByteCount = ByteCount(16 << 20);
/// How long it takes to move a copy to another disk.
const MOVING: Duration = Duration::from_millis(500);
/// How long it takes to fill a copy.
const FILLING: Duration = Duration::from_secs(3);

pub(crate) fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

/// The first, second or third disk of a node.
pub(crate) fn disk(number: u128, which: u128) -> DiskId {
    DiskId(Uuid(number * 10 + which))
}

fn described(id: DiskId, smaller: Option<(DiskId, ByteCount)>) -> Disk {
    let whole = ByteCount(CHUNK.0 * CHUNKS * 2);
    Disk {
        id,
        capacity: smaller
            .filter(|(disk, _)| *disk == id)
            .map_or(whole, |(_, capacity)| capacity),
        used: ByteCount(0),
        held: None,
    }
}

fn settings() -> Settings {
    Settings {
        rebuild_after: Duration::from_secs(8),
        rebuilds_per_node: 4,
        ..Settings::default()
    }
}

/// A node as a master sees it.
pub(crate) struct Node {
    life: u64,
    rack: Option<Rack>,
    pub(crate) disks: Vec<DiskId>,
    /// The copies that it has, on which disk, and since when.
    pub(crate) copies: BTreeMap<ChunkId, (DiskId, Instant)>,
    /// Those that it has deleted.
    deleted: BTreeSet<ChunkId>,
    /// It waits with deletions.
    is_busy: bool,
    /// Nothing is heard of it.
    pub(crate) is_away: bool,
    /// It asks about copies on disks that were away.
    doubts: bool,
    /// It moves copies between its disks.
    pub(crate) moves: bool,
    /// It names its copies with the next heartbeat, and says how these are.
    names_copies: bool,
    described: Vec<ChunkId>,
    /// It cannot move any.
    pub(crate) refuses: bool,
    /// It moves them for ever.
    pub(crate) stands: bool,
    /// The copies that it is moving, where to, and since when.
    pub(crate) moving: BTreeMap<ChunkId, (DiskId, Instant)>,
    /// What came of them, until masters want it no more.
    pub(crate) moved: Vec<MovedCopy>,
}

impl Node {
    /// What it says when it has nothing to say.
    pub(crate) fn silent(&self, number: u128, cluster: &Cluster<'_>) -> Heartbeat {
        let disks = self.disks.iter();
        Heartbeat {
            incarnation: Incarnation(self.life),
            ended_through: Incarnation(self.life - 1),
            disks: disks.map(|id| described(*id, cluster.capacity)).collect(),
            ..crate::silent(cluster.master.cluster(), node(number))
        }
    }

    /// How a copy is of which no configuration is known: as the masters have it.
    fn copy_state(&self, id: ChunkId) -> Option<CopyState> {
        let (disk, _) = *self.copies.get(&id)?;
        Some(CopyState {
            disk,
            sealed: Epoch(0),
            configuration: None,
            flushed: Epoch(0),
            told: None,
            token: WriterToken(0),
        })
    }

    /// Its target begins what is new, and has moved what it has begun before.
    fn take_wishes(&mut self, wishes: &[(ChunkId, DiskId)], now: Instant) {
        self.moved
            .retain(|moved| wishes.contains(&(moved.chunk, moved.disk)));
        for &(id, to) in wishes {
            let is_said = self.moved.iter().any(|moved| moved.chunk == id);
            if !is_said && self.moving.get(&id).is_none_or(|moving| moving.0 != to) {
                self.moving.insert(id, (to, now));
            }
        }
        let done = self.moving.iter();
        let done = done.filter(|(_, (_, since))| !self.stands && now.since(*since) >= MOVING);
        for (chunk, disk) in done.map(|(id, (to, _))| (*id, *to)).collect::<Vec<_>>() {
            self.moving.remove(&chunk);
            let copy = self.copies.get_mut(&chunk);
            let may = !self.refuses && self.disks.contains(&disk);
            let why = match copy.filter(|_| may) {
                Some(copy) => {
                    copy.0 = disk;
                    None
                }
                None => Some("it cannot be".to_owned()),
            };
            self.moved.push(MovedCopy { chunk, disk, why });
        }
    }
}

pub(crate) struct Cluster<'a> {
    store: &'a MemoryStore,
    pub(crate) master: Controller<&'a MemoryStore>,
    pub(crate) nodes: BTreeMap<u128, Node>,
    pub(crate) now: Instant,
    /// The most chunks that lacked a copy at a time, and the fewest copies in sync of any.
    pub(crate) most_lacking: usize,
    pub(crate) fewest_in_sync: usize,
    /// Some chunk has, or had, two copies in one rack.
    is_crowded: bool,
    was_crowded: bool,
    /// A disk that is smaller than the others.
    capacity: Option<(DiskId, ByteCount)>,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(store: &'a MemoryStore, minimum: u8) -> Self {
        Self::in_racks(store, minimum, &NONE)
    }

    /// Nodes in these racks, numbered from 1.
    fn in_racks(store: &'a MemoryStore, minimum: u8, racks: &[Option<u128>]) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let master = Controller::open(store, settings(), 1, now).unwrap();
        let mut cluster = Self {
            store,
            master,
            nodes: BTreeMap::new(),
            now,
            most_lacking: 0,
            fewest_in_sync: usize::MAX,
            is_crowded: false,
            was_crowded: false,
            capacity: None,
        };
        for (number, rack) in (1..).zip(racks) {
            let disks = vec![disk(number, 1), disk(number, 2)];
            cluster.nodes.insert(
                number,
                Node {
                    life: 0,
                    rack: rack.map(|rack| Rack::new(&format!("rack-{rack}")).unwrap()),
                    disks: Vec::new(),
                    copies: BTreeMap::new(),
                    deleted: BTreeSet::new(),
                    is_busy: false,
                    is_away: false,
                    doubts: true,
                    moves: false,
                    refuses: false,
                    stands: false,
                    names_copies: true,
                    described: Vec::new(),
                    moving: BTreeMap::new(),
                    moved: Vec::new(),
                },
            );
            cluster.start(number, &disks);
        }
        let request = CreateVolume {
            chunk: CHUNK,
            stripe_unit: ByteCount(1 << 20),
            minimum: Some(minimum),
            ..CreateVolume::new("v".to_owned(), ByteCount(CHUNK.0 * CHUNKS))
        };
        cluster.master.create_volume(&request, cluster.now).unwrap();
        for (id, chunk) in cluster.chunks() {
            for copy in chunk.copies {
                let node = cluster.nodes.get_mut(&copy.node.0.0).unwrap();
                node.copies.insert(id, (copy.disk, cluster.now));
            }
        }
        cluster.run(2);
        assert_eq!(cluster.master.volumes().unwrap()[0].state, VolumeState::Ready);
        (cluster.most_lacking, cluster.fewest_in_sync) = (0, usize::MAX);
        cluster
    }

    /// A master leads on another store.
    pub(crate) fn restore(&mut self, store: &'a MemoryStore) {
        self.store = store;
        self.succeed();
    }

    /// Another master leads.
    pub(crate) fn succeed(&mut self) {
        let seed = self.now.since(Instant::from_nanos(0)).as_millis() as u64;
        self.master = Controller::open(self.store, settings(), seed, self.now).unwrap();
    }

    /// A new life of a node, with these disks: first the end of the one before is told, with none.
    pub(crate) fn start(&mut self, number: u128, disks: &[DiskId]) {
        let life = self.nodes[&number].life;
        let registration = |incarnation, disks: &[DiskId]| Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: self.nodes[&number].rack.clone(),
            incarnation,
            ended_through: Incarnation(life),
            disks: disks.iter().map(|id| described(*id, self.capacity)).collect(),
        };
        let answer = self.master.register(&registration(None, &[]), self.now).unwrap();
        let between = self.master.status(self.now).unwrap();
        let of_node = between.nodes.iter().find(|status| status.view.id == node(number));
        assert_eq!(
            of_node.unwrap().disks,
            [],
            "nothing is missing of a node that names nothing"
        );
        let next = registration(Some(answer.incarnation), disks);
        self.master.register(&next, self.now).unwrap();
        let node = self.nodes.get_mut(&number).unwrap();
        node.life = answer.incarnation.0;
        node.disks = disks.to_vec();
        node.deleted.clear();
        node.moving.clear();
        node.moved.clear();
        node.copies.retain(|_, (disk, _)| disks.contains(disk));
    }

    pub(crate) fn chunks(&self) -> Vec<(ChunkId, Chunk)> {
        let volumes = self.master.volumes().unwrap().into_iter();
        let chunks = |volume: Volume| self.master.map(volume.number, 0, 10_000).unwrap().1;
        volumes.flat_map(chunks).collect()
    }

    pub(crate) fn disk_moves(&self) -> Vec<DiskMoveStatus> {
        self.master.balance(self.now).unwrap().disk_moves
    }

    /// A quarter of a second.
    pub(crate) fn step(&mut self) {
        self.now = self.now + Duration::from_millis(250);
        let volumes = self.master.volumes().unwrap();
        for (&number, known) in self.nodes.iter_mut().filter(|(_, known)| !known.is_away) {
            let heartbeat = Heartbeat {
                incarnation: Incarnation(known.life),
                ended_through: Incarnation(known.life - 1),
                disks: known
                    .disks
                    .iter()
                    .map(|id| described(*id, self.capacity))
                    .collect(),
                prepared: volumes.iter().map(|volume| volume.number).collect(),
                removed: volumes
                    .iter()
                    .filter(|volume| volume.state == VolumeState::Deleting)
                    .map(|volume| volume.number)
                    .collect(),
                doubts: known.doubts,
                moves_disks: known.moves,
                moved_copies: known.moved.clone(),
                removed_copies: known.deleted.iter().copied().collect(),
                names_copies: known.names_copies,
                copies: match known.names_copies {
                    true => known.copies.keys().copied().collect(),
                    false => Vec::new(),
                },
                ..crate::silent(self.master.cluster(), node(number))
            };
            let answer = self.master.heartbeat(&heartbeat, self.now).unwrap();
            known.names_copies = answer.name_copies;
            let described = std::mem::replace(&mut known.described, answer.describe);
            let described = described.into_iter().map(|id| (id, known.copy_state(id)));
            self.master
                .note_copies(node(number), Incarnation(known.life), described.collect());
            known
                .deleted
                .retain(|id| answer.remove_copies.iter().any(|removal| removal.0 == *id));
            for (id, _) in answer.remove_copies.iter().filter(|_| !known.is_busy) {
                known.copies.remove(id);
                known.deleted.insert(*id);
            }
            known.take_wishes(&answer.move_copies, self.now);
        }
        self.master.tick(self.now).unwrap();
        self.fill();
        self.check_promises();
        let lacking = |(_, chunk): &&(ChunkId, Chunk)| chunk.member_count() < 3;
        let chunks = self.chunks();
        self.most_lacking = self.most_lacking.max(chunks.iter().filter(lacking).count());
        let is_crowded = |(_, chunk): &(ChunkId, Chunk)| {
            let racks = chunk
                .copies
                .iter()
                .filter_map(|copy| self.nodes[&copy.node.0.0].rack.as_ref());
            let racks: Vec<&Rack> = racks.collect();
            racks.len() > racks.iter().collect::<BTreeSet<_>>().len()
        };
        self.is_crowded = chunks.iter().any(is_crowded);
        self.was_crowded |= self.is_crowded;
        let in_sync = chunks.iter().map(|(_, chunk)| chunk.member_count());
        self.fewest_in_sync = self.fewest_in_sync.min(in_sync.min().unwrap_or(usize::MAX));
    }

    /// What is promised is what the places take, and what moves takes where it goes; a node moves one copy at a time.
    fn check_promises(&self) {
        // They count anew when they know what nodes have done since a backup.
        if self.master.restored().unwrap().is_some() {
            return;
        }
        let mut taken: BTreeMap<DiskId, u64> = BTreeMap::new();
        let chunks = self.chunks();
        for copy in chunks.iter().flat_map(|(_, chunk)| &chunk.copies) {
            *taken.entry(copy.disk).or_default() += CHUNK.0;
        }
        let moves = self.disk_moves();
        for DiskMoveStatus { moving, .. } in &moves {
            *taken.entry(moving.to).or_default() += moving.bytes.0;
        }
        let nodes: BTreeSet<NodeId> = moves.iter().map(|shown| shown.moving.node).collect();
        assert_eq!(nodes.len(), moves.len(), "{moves:?}");
        let status = self.master.status(self.now).unwrap();
        for (known, allocated) in status.nodes.iter().flat_map(|node| &node.disks) {
            let taken = taken.remove(&known.id).unwrap_or_default();
            assert_eq!(*allocated, ByteCount(taken), "disk {}", known.id.0);
        }
    }

    /// Nodes make what they have a place for, and write nodes take in what is there in this life.
    fn fill(&mut self) {
        let on_their_way = self.disk_moves().into_iter();
        let on_their_way: BTreeSet<_> = on_their_way
            .map(|shown| (shown.chunk, shown.moving.node, shown.moving.to))
            .collect();
        for (id, chunk) in self.chunks() {
            let mut members: BTreeMap<NodeId, Incarnation> = chunk.members().collect();
            for copy in &chunk.copies {
                let known = self.nodes.get_mut(&copy.node.0.0).unwrap();
                if known.is_away {
                    continue;
                }
                if copy.incarnation.is_none() && known.disks.contains(&copy.disk) {
                    let at = known.copies.entry(id).or_insert((copy.disk, self.now)).0;
                    // (One that has moved while nobody heard is where it was to go.)
                    assert!(
                        at == copy.disk || on_their_way.contains(&(id, copy.node, at)),
                        "what was to be deleted passes for the new copy"
                    );
                    known.deleted.remove(&id);
                }
                // One whose life has ended is let in in its new one, a new copy once it is full; without its disk it cannot answer.
                let is_full = |&(_, since): &(DiskId, Instant)| self.now.since(since) >= FILLING;
                match known.copies.get(&id) {
                    Some(held) if copy.incarnation.is_some() || is_full(held) => {
                        members.insert(copy.node, Incarnation(known.life));
                    }
                    Some(_) => {}
                    None => {
                        members.remove(&copy.node);
                    }
                }
            }
            let was = chunk.members().collect::<Vec<_>>();
            let stays = members.get(&chunk.write_node).copied();
            let is_led = was
                .iter()
                .any(|member| (member.0, Some(member.1)) == (chunk.write_node, stays));
            if is_led && !members.iter().map(|(node, life)| (*node, *life)).eq(was) {
                let proposal = Proposal {
                    node: chunk.write_node,
                    incarnation: members[&chunk.write_node],
                    expected: chunk.epoch,
                    write_node: chunk.write_node,
                    members: members.into_iter().collect(),
                };
                self.master.propose(id, &proposal, self.now).unwrap();
            }
        }
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.step();
        }
    }

    /// How many copies are placed on a disk.
    pub(crate) fn placed_on(&self, disk: DiskId) -> usize {
        let chunks = self.chunks();
        let copies = chunks.iter().flat_map(|(_, chunk)| &chunk.copies);
        copies.filter(|copy| copy.disk == disk).count()
    }

    /// The state of a disk and what is promised to it; none if nobody knows it.
    fn shown(&self, disk: DiskId) -> Option<(Option<DiskState>, ByteCount)> {
        let status = self.master.status(self.now).unwrap();
        let of = |status: &control::NodeStatus| {
            let at = status.disks.iter().position(|(known, _)| known.id == disk)?;
            let report = status.health[at].report.as_ref();
            Some((report.map(|report| report.state), status.disks[at].1))
        };
        status.nodes.iter().find_map(of)
    }

    /// Every chunk has three copies in sync, where the masters say, and what is promised is what is there.
    pub(crate) fn assert_whole(&self) {
        let mut taken: BTreeMap<DiskId, u64> = BTreeMap::new();
        for (id, chunk) in self.chunks() {
            assert_eq!((chunk.copies.len(), chunk.member_count()), (3, 3), "{id:?}");
            for copy in &chunk.copies {
                assert_eq!(self.nodes[&copy.node.0.0].copies[&id].0, copy.disk);
                *taken.entry(copy.disk).or_default() += CHUNK.0;
            }
        }
        let status = self.master.status(self.now).unwrap();
        for (known, allocated) in status.nodes.iter().flat_map(|node| &node.disks) {
            let taken = taken.get(&known.id).copied().unwrap_or_default();
            assert_eq!(*allocated, ByteCount(taken), "disk {}", known.id.0);
        }
    }
}

#[test]
fn a_node_that_stays_away_is_waited_for_and_then_there_is_no_place_for_what_it_had() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let shown = |cluster: &Cluster| {
        let status = cluster.master.status(cluster.now).unwrap();
        let absences: Vec<_> = status.nodes.iter().map(|node| node.absence).collect();
        (absences, status.volumes[0].placeless_chunks)
    };
    assert_eq!(shown(&cluster), (vec![None; 3], 0));
    cluster.nodes.get_mut(&3).unwrap().is_away = true;
    // It is left out after 3 s, and from then on there are 8.
    cluster.run(5);
    let (absences, placeless) = shown(&cluster);
    assert_eq!((absences[0], absences[1], placeless), (None, None, 0));
    let absence = absences[2].unwrap();
    assert_eq!(u64::from(absence.copies), CHUNKS);
    let left = absence.elsewhere_in.as_millis();
    assert!((5000..7000).contains(&left), "{left} ms");
    cluster.run(3);
    let later = shown(&cluster).0[2].unwrap().elsewhere_in.as_millis();
    assert_eq!(later, left - 3000);
    cluster.run(10);
    assert_eq!(shown(&cluster), (vec![None; 3], CHUNKS as u32));
    // It comes back without having ended.
    cluster.nodes.get_mut(&3).unwrap().is_away = false;
    cluster.run(10);
    assert_eq!(shown(&cluster), (vec![None; 3], 0));
    cluster.assert_whole();
}

#[test]
fn a_disk_is_drained_to_the_other_one_of_its_node_a_few_copies_at_a_time() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let (from, to) = (disk(1, 1), disk(1, 2));
    let before = cluster.placed_on(from);
    assert!(before > 50, "{before}");
    let drained = cluster.master.drain(node(1), Some(from), cluster.now).unwrap();
    assert_eq!(drained.copies as usize, before);
    let status = cluster.master.status(cluster.now).unwrap();
    let shown: Vec<_> = status.nodes.iter().filter(|shown| shown.is_drained).collect();
    assert_eq!((shown.len(), shown[0].drained), (1, drained));
    // Until it has deleted them, what it had does not pass for what it is to have.
    cluster.nodes.get_mut(&1).unwrap().is_busy = true;
    cluster.run(4);
    assert_eq!(
        cluster.placed_on(from) + cluster.placed_on(to),
        CHUNKS as usize - cluster.most_lacking
    );
    cluster.nodes.get_mut(&1).unwrap().is_busy = false;
    cluster.run(120);
    assert_eq!(
        (cluster.placed_on(from), cluster.placed_on(to)),
        (0, CHUNKS as usize)
    );
    cluster.assert_whole();
    // As many at a time as may be filled in all: four for each of three nodes.
    assert!(
        (1..=12).contains(&cluster.most_lacking),
        "{}",
        cluster.most_lacking
    );
    assert_eq!(cluster.fewest_in_sync, 2);
    assert_eq!(
        cluster.master.left_to_drain(node(1), Some(from)).unwrap().copies,
        0
    );
    // Then the other one cannot be: it would have nowhere to go.
    let refused = cluster.master.drain(node(1), Some(to), cluster.now).unwrap_err();
    assert!(matches!(refused, ControlError::DrainNodes { .. }), "{refused}");
    cluster.master.undrain(node(1), Some(from)).unwrap();
    cluster.master.drain(node(1), Some(to), cluster.now).unwrap();
}

#[test]
fn a_disk_is_not_drained_to_another_one_of_its_node_where_writes_would_stop() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 3);
    let refused = cluster
        .master
        .drain(node(1), Some(disk(1, 1)), cluster.now)
        .unwrap_err();
    assert!(matches!(refused, ControlError::DrainNodes { .. }), "{refused}");
    assert!(
        refused.to_string().contains("more in sync than its minimum"),
        "{refused}"
    );
    cluster.run(5);
    cluster.assert_whole();
}

#[test]
fn what_a_failed_disk_had_comes_up_on_the_other_one_of_its_node() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let (failed, other) = (disk(2, 1), disk(2, 2));
    let reports = |state| {
        let report = |id, state| DiskReport {
            id,
            state,
            ..DiskReport::default()
        };
        vec![report(failed, state), report(other, DiskState::Ok)]
    };
    let out = reports(DiskState::OutOfService);
    let noted = cluster
        .master
        .note_disks(node(2), out, Vec::new(), cluster.now)
        .unwrap();
    assert_eq!(noted.drained.len(), 1);
    // The next life does not open it, and names it as the node's.
    cluster.start(2, &[failed, other]);
    let node = cluster.nodes.get_mut(&2).unwrap();
    node.copies.retain(|_, (disk, _)| *disk == other);
    cluster.run(120);
    assert_eq!(
        (cluster.placed_on(failed), cluster.placed_on(other)),
        (0, CHUNKS as usize)
    );
    cluster.assert_whole();
}

#[test]
fn a_disk_that_a_node_comes_back_without_is_missed_until_its_copies_are_elsewhere() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let (gone, other) = (disk(3, 1), disk(3, 2));
    let before = ByteCount(cluster.placed_on(gone) as u64 * CHUNK.0);
    cluster.start(3, &[other]);
    cluster.run(4);
    // It may come back for a while.
    assert_eq!(cluster.shown(gone), Some((Some(DiskState::Missing), before)));
    // Nobody has to wait so long.
    let drained = cluster.master.drain(node(3), Some(gone), cluster.now).unwrap();
    assert_eq!(u64::from(drained.copies) * CHUNK.0, before.0);
    cluster.master.undrain(node(3), Some(gone)).unwrap();
    cluster.run(120);
    assert_eq!(
        (cluster.placed_on(gone), cluster.placed_on(other)),
        (0, CHUNKS as usize)
    );
    cluster.assert_whole();
    assert_eq!(cluster.shown(gone), None, "nothing is missed any more");
}

#[test]
fn the_drain_of_a_disk_that_is_gone_for_good_ends_with_it() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let (gone, other) = (disk(3, 1), disk(3, 2));
    cluster.master.drain(node(3), Some(gone), cluster.now).unwrap();
    cluster.run(120);
    assert_eq!(cluster.placed_on(gone), 0);
    cluster.start(3, &[other]);
    let refused = cluster.master.undrain(node(3), Some(gone)).unwrap_err();
    assert!(matches!(refused, ControlError::NoSuchDisk { .. }), "{refused}");
    // What comes back is a disk like any.
    cluster.start(3, &[gone, other]);
    cluster.run(4);
    let status = cluster.master.status(cluster.now).unwrap();
    assert!(status.nodes.iter().all(|node| !node.is_drained));
    cluster.assert_whole();
}

#[test]
fn no_more_copies_are_given_up_than_there_is_room_for() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    let (from, to) = (disk(1, 1), disk(1, 2));
    // The other disk has room for ten copies more, and no other node has any.
    let room = cluster.placed_on(to) as u64 + 10;
    cluster.capacity = Some((to, ByteCount(CHUNK.0 * room)));
    cluster.start(1, &[from, to]);
    cluster.run(10);
    cluster.assert_whole();
    let refused = cluster
        .master
        .drain(node(1), Some(from), cluster.now)
        .unwrap_err();
    assert!(
        matches!(refused, ControlError::DrainRoom { placed: 10, .. }),
        "{refused}"
    );
    // One that fails is not asked.
    let report = DiskReport {
        id: from,
        state: DiskState::OutOfService,
        ..DiskReport::default()
    };
    let noted = cluster
        .master
        .note_disks(node(1), vec![report], Vec::new(), cluster.now);
    assert_eq!(noted.unwrap().drained.len(), 1);
    let before = cluster.placed_on(from);
    (cluster.most_lacking, cluster.fewest_in_sync) = (0, usize::MAX);
    cluster.run(60);
    assert_eq!(
        cluster.placed_on(from),
        before - 10,
        "the others stay where they are"
    );
    cluster.assert_whole();
    assert!(
        (1..=10).contains(&cluster.most_lacking),
        "{}",
        cluster.most_lacking
    );
}

#[test]
fn nothing_is_given_up_on_a_node_that_would_take_the_old_copy_for_the_new_one() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::new(&store, 2);
    cluster.nodes.get_mut(&1).unwrap().doubts = false;
    cluster.run(1);
    let refused = cluster
        .master
        .drain(node(1), Some(disk(1, 1)), cluster.now)
        .unwrap_err();
    assert!(matches!(refused, ControlError::DrainNodes { .. }), "{refused}");
    cluster
        .master
        .drain(node(2), Some(disk(2, 1)), cluster.now)
        .unwrap();
    cluster.run(120);
    cluster.assert_whole();
    assert_eq!(cluster.placed_on(disk(2, 1)), 0);
}

/// Two nodes are in one rack, the others alone in theirs: what is on a disk of the latter has nowhere to go but the disk beside it, since
/// a rack with another copy of its chunk is worse; what is on a disk of the former goes to the other node of its rack, too.
#[test]
fn another_disk_of_its_node_comes_before_a_rack_that_has_a_copy() {
    let racks = [1, 2, 3, 1].map(Some);
    for (drained, alone) in [(disk(2, 1), true), (disk(1, 1), false)] {
        let store = MemoryStore::new();
        let mut cluster = Cluster::in_racks(&store, 2, &racks);
        let of = drained.0.0 / 10;
        let placed = |cluster: &Cluster<'_>, number| -> usize {
            (1..=2).map(|which| cluster.placed_on(disk(number, which))).sum()
        };
        let before: Vec<usize> = (1..=4).map(|number| placed(&cluster, number)).collect();
        assert!(cluster.placed_on(drained) > 20);
        cluster
            .master
            .drain(node(of), Some(drained), cluster.now)
            .unwrap();
        cluster.run(120);
        assert_eq!(cluster.placed_on(drained), 0);
        let after: Vec<usize> = (1..=4).map(|number| placed(&cluster, number)).collect();
        match alone {
            true => {
                assert_eq!(after, before, "all stays in its node");
                assert!(cluster.most_lacking > 0 && !cluster.was_crowded);
            }
            false => {
                assert!(after[3] > before[3], "the other node of the rack takes some");
                assert_eq!((after[1], after[2]), (before[1], before[2]));
            }
        }
        assert!(!cluster.is_crowded, "two copies in one rack");
        cluster.assert_whole();
    }
}
