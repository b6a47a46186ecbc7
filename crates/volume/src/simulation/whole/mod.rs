//! Whole clusters: beside the real node cores, and this simulation's own clients, the real masters (`control::mastership` with its `Controller`), three of
//! them on one etcd that is modelled (`control::testing`). Nothing here decides who is in sync or where a copy lies.
//!
//! Played by stand-ins are what moves words between them: each node's engine (`engine`), the masters' processes and the way to them
//! (`masters`). Clients read maps (`maps`) and get write leases (`leases`) there, the volume grows (`growth`), and snapshots of it are
//! begun and completed (`snapshots`); or hosts reserve it, through portals (`reserve`); or blocks are lost on every copy. Other volumes are made and deleted meanwhile; they have places, and no data. A call of a master's is one moment here: what happens between its reads and its commit is tried by commits whose
//! answer is lost and which take effect later, or never. A copy takes the room of a chunk in the masters' books, of 16 MiB, and has
//! [`CHUNK_BLOCKS`](super::world::CHUNK_BLOCKS) blocks.
//!
//! After each commit, whoever made it: epochs of a chunk follow each other by one, none has fewer members than it must, and the room
//! promised on each disk is that of the copies placed there. No node that the master in the seat has heard within its timeout is left out
//! by masters, and no write lease is given while another one lasts. When all is quiet, nodes have the copies that the store places with them, and no others.

mod disks;
mod engine;
mod growth;
mod leases;
mod maps;
mod masters;
mod removal;
mod reserve;
mod snapshots;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use control::mastership::Member;
use control::testing::{Bug, Etcd, EtcdElection};
use control::{
    Chunk, ControlError, CreateVolume, Disk, DiskId, Heartbeat, Incarnation, Rack, Registration, Uuid,
};
use foundation::{ByteCount, Instant, Random};

use super::events::Event;
use super::kinds::Kinds;
use super::world::{HARM, MS, REBUILD, SCENARIOS, SECOND, World, node_id};
use crate::configuration::{ChunkConfig, Membership};
use crate::identity::{NodeId, SnapshotId};
use engine::Engine;
pub(super) use engine::{Call, Told};
use masters::Master;
pub(super) use masters::{Answer, MasterFault, News};
pub(super) use snapshots::Completed;

/// How many masters there are.
pub(super) const MASTERS: usize = 3;
/// A node that is not heard for so long counts as gone.
const TIMEOUT: u64 = 1600 * MS;
/// The term of a master's lease: over before a new reign counts anybody's silence.
const LEASE: u64 = 500 * MS;
const _: () = assert!(LEASE < TIMEOUT);
/// What a copy takes of a disk, as masters count.
const CHUNK: ByteCount = ByteCount(16 << 20);
const DISKS: usize = 2;
const VOLUME: control::VolumeNumber = control::VolumeNumber(1);

/// What happens to masters, engines, and between them.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) enum WholeEvent {
    /// A master does what it does all the time.
    Step { master: usize, life: u64 },
    /// A master's process begins.
    Start { master: usize },
    /// A node's engine asks a master.
    Call {
        master: usize,
        node: usize,
        number: u64,
        call: Call,
    },
    Answer {
        node: usize,
        number: u64,
        answer: Answer,
    },
    /// A part of what a node watches.
    News { node: usize, watch: u64, news: News },
    /// An answer has not come in time.
    Late { node: usize, number: u64 },
    /// An engine does what it does all the time, in a life of its target.
    Beat { node: usize, turn: u64 },
    /// It asks once more who its target is.
    Again { node: usize, turn: u64 },
    /// The target is told something.
    Told { node: usize, life: u64, told: Told },
    /// The target has made a copy.
    Made { node: usize, life: u64, chunk: usize },
    /// The maker of a snapshot tells the masters once more that it is complete.
    Complete { snapshot: SnapshotId },
    /// A client renews the write lease that it has by this token.
    Renew { token: u64 },
    /// A client asks a master for the map.
    MapAsked { client: usize, master: usize },
    /// It gets one.
    Map { client: usize, map: Vec<ChunkConfig> },
    /// Something happens to the masters, or to etcd.
    Fault,
    /// Somebody drains nodes, and ends that.
    Operator,
}

impl WholeEvent {
    /// The node whose target must run for this to be handled.
    pub(in crate::simulation) fn node(&self) -> Option<usize> {
        match self {
            WholeEvent::Told { node, .. } | WholeEvent::Made { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// The node whose engine must run.
    fn engine(&self) -> Option<usize> {
        match self {
            WholeEvent::Answer { node, .. }
            | WholeEvent::News { node, .. }
            | WholeEvent::Late { node, .. }
            | WholeEvent::Beat { node, .. }
            | WholeEvent::Again { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// The master whose process must run.
    fn master(&self) -> Option<usize> {
        match self {
            WholeEvent::Step { master, .. }
            | WholeEvent::Call { master, .. }
            | WholeEvent::MapAsked { master, .. } => Some(*master),
            _ => None,
        }
    }
}

pub(in crate::simulation) struct Whole {
    random: Random,
    etcd: Rc<RefCell<Etcd>>,
    settings: control::Settings,
    masters: Vec<Master>,
    engines: Vec<Engine>,
    /// From each node to each master, and back: until when nothing gets through, and when what was sent last arrives.
    out: Vec<[Way; MASTERS]>,
    back: Vec<[Way; MASTERS]>,
    /// What is committed; of these, so many chunks are in use.
    chunks: Vec<Chunk>,
    in_use: usize,
    first_chunks: usize,
    /// The volume grows now and then.
    grows: bool,
    /// Maps as they were.
    past: VecDeque<Vec<ChunkConfig>>,
    /// The life of each node that the master in the seat has heard last, and when.
    heard: Vec<(u64, u64)>,
    /// Nodes are in so many racks, as many as a chunk has copies; 0 for nodes without racks.
    racks: usize,
    /// Room of each disk.
    capacity: ByteCount,
    planted: Option<Bug>,
    /// The node that is to be taken out of the cluster.
    leaving: Option<removal::Leaving>,
    /// Disks are drained, one at a time.
    pub(in crate::simulation) disk_drains: Option<disks::DiskDrains>,
    writers: leases::Writers,
    snapshots_named: u64,
    snapshot_states: BTreeMap<control::SnapshotKey, control::SnapshotState>,
    /// Times that a master began to lead, commits whose answer was lost, and copies that masters have left out.
    pub(in crate::simulation) reigns: u64,
    pub(in crate::simulation) lost: u64,
    pub(in crate::simulation) left_out: u64,
    /// Chunks that began anew after all lives had ended.
    pub(in crate::simulation) recovered: u64,
    /// Other volumes that were made.
    pub(in crate::simulation) volumes: u64,
    /// Write leases that were given.
    pub(in crate::simulation) leases: u64,
    /// Times that they were renewed, and given back to others.
    pub(in crate::simulation) renewals: u64,
    pub(in crate::simulation) given_back: u64,
    /// Maps that were lost on the way, and those that were old when they were given.
    pub(in crate::simulation) lost_maps: u64,
    pub(in crate::simulation) old_maps: u64,
    /// Chunks that were added.
    pub(in crate::simulation) grown: u64,
    /// Lives that were ended since the masters had given out a later number.
    pub(in crate::simulation) outlived: u64,
}

/// One direction between a node and a master.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cut_until: u64,
    arrives: u64,
}

/// Who has committed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Masters of themselves, now.
    Masters,
    /// Masters as they were asked to, or some time ago.
    Other,
}

fn named(node: usize) -> control::NodeId {
    control::NodeId(Uuid(node_id(node).0))
}

fn index_of(node: control::NodeId) -> usize {
    node.0.0 as usize - 1
}

fn chunk_named(chunk: usize) -> control::ChunkId {
    control::ChunkId {
        volume: VOLUME,
        index: chunk as u32,
    }
}

fn config_of(chunk: &Chunk) -> ChunkConfig {
    let member = |(node, life): (control::NodeId, Incarnation)| Membership {
        node: NodeId(node.0.0),
        incarnation: crate::identity::Incarnation(life.0),
    };
    ChunkConfig {
        epoch: chunk.epoch,
        write_node: NodeId(chunk.write_node.0.0),
        members: chunk.members().map(member).collect(),
    }
}

impl Whole {
    pub(in crate::simulation) fn new(
        seed: u64,
        (nodes, copies): (usize, u8),
        chunks: usize,
        reserved: bool,
        planted: Option<Bug>,
    ) -> Self {
        let mut random = Random::from_seed(seed ^ 0x7468_0e1e);
        let settings = control::Settings {
            heartbeat_interval: Duration::from_millis(300),
            heartbeat_timeout: Duration::from_nanos(TIMEOUT),
            audit_interval: Duration::from_secs(5),
            changes_kept: 12,
            rebuild_after: Duration::from_nanos(random.between(2 * SECOND, 10 * SECOND)),
            rebalance: random.chance(1, 2),
            moves_max: 2,
            snapshot_term: Duration::from_secs(1),
            ..control::Settings::default()
        };
        let etcd = Rc::new(RefCell::new(Etcd::new(seed, Duration::from_nanos(LEASE))));
        Self {
            etcd,
            settings,
            masters: Vec::new(),
            engines: (0..nodes).map(|_| Engine::default()).collect(),
            out: vec![[Way::default(); MASTERS]; nodes],
            back: vec![[Way::default(); MASTERS]; nodes],
            chunks: Vec::new(),
            in_use: chunks,
            first_chunks: chunks,
            grows: random.chance(1, 2),
            racks: usize::from(copies) * usize::from(random.chance(1, 2)),
            past: VecDeque::new(),
            heard: vec![(0, 0); nodes],
            // Each disk could take a copy of every chunk, and little more.
            capacity: ByteCount(CHUNK.0 * (chunks + growth::growth_max(reserved)) as u64 + CHUNK.0 / 2),
            planted,
            leaving: None,
            disk_drains: disks::DiskDrains::of(seed).filter(|_| planted.is_none()),
            reigns: 0,
            lost: 0,
            left_out: 0,
            recovered: 0,
            volumes: 0,
            leases: 0,
            outlived: 0,
            lost_maps: 0,
            old_maps: 0,
            grown: 0,
            renewals: 0,
            given_back: 0,
            writers: leases::Writers::default(),
            snapshots_named: 0,
            snapshot_states: BTreeMap::new(),
            random,
        }
    }

    /// What may be left to be done.
    pub(in crate::simulation) fn describe(&self) -> String {
        let etcd = self.etcd.borrow();
        format!(
            "\n seat {:?}, late commits {}, drains {:?}, volumes {:?}, {} of {} chunks in use, two copies in one rack {}",
            etcd.leader(),
            etcd.has_late(),
            etcd.drains(),
            etcd.volumes(),
            self.in_use,
            self.chunks.len(),
            self.is_crowded(),
        )
    }

    fn member(&mut self, master: usize) -> Member<EtcdElection> {
        let election = EtcdElection::new(self.etcd.clone(), master);
        let mut member = Member::new(election, self.settings, self.random.next_u64());
        member.plant(self.planted);
        member
    }

    fn disks(&self, node: usize) -> Vec<Disk> {
        let disk = |index| Disk {
            id: DiskId(Uuid((node as u128 + 1) * 10 + index as u128)),
            capacity: self.capacity,
            used: ByteCount(0),
            held: None,
        };
        (0..DISKS).map(disk).collect()
    }

    fn rack_of(&self, node: usize) -> Option<usize> {
        (self.racks > 0).then(|| node % self.racks)
    }

    /// Whether two copies of a chunk are in one rack, though masters would bring them apart.
    fn is_crowded(&self) -> bool {
        let crowded = |chunk: &Chunk| {
            let racks = chunk.copies.iter().map(|copy| self.rack_of(index_of(copy.node)));
            let different: BTreeSet<_> = racks.collect();
            different.len() < chunk.copies.len()
        };
        self.racks > 0 && self.settings.rebalance && self.chunks.iter().any(crowded)
    }

    fn registration(&self, node: usize, life: Option<u64>, ended: u64) -> Registration {
        Registration {
            cluster: None,
            node: named(node),
            peer_address: format!("192.0.2.{}:4420", node + 1),
            rack: self
                .rack_of(node)
                .and_then(|rack| Rack::new(&format!("r{rack}")).ok()),
            incarnation: life.map(Incarnation),
            ended_through: Incarnation(ended),
            disks: self.disks(node),
        }
    }

    /// What a node says when there is nothing to say, of this life.
    fn heartbeat(&self, node: usize, life: u64, cluster: control::ClusterId) -> Heartbeat {
        Heartbeat {
            cluster,
            node: named(node),
            incarnation: Incarnation(life),
            ended_through: Incarnation(life - 1),
            disks: self.disks(node),
            prepared: Vec::new(),
            grown: Vec::new(),
            removed: Vec::new(),
            resyncs: Vec::new(),
            copies: Vec::new(),
            names_copies: false,
            removed_copies: Vec::new(),
            moved_copies: Vec::new(),
            moves_disks: false,
            snapshots: Default::default(),
            flattening: Vec::new(),
            reserves: true,
            doubts: true,
            syncs: None,
            kept: None,
        }
    }

    /// Makes the cluster and its volume, with nothing going wrong yet.
    fn found(&mut self, (copies, minimum): (u8, u8), chunks: usize, now: u64) -> Result<(), ControlError> {
        for master in 0..MASTERS {
            let member = self.member(master);
            let clock = masters::Clock::draw(&mut self.random);
            self.masters.push(Master::new(member, clock));
        }
        self.etcd.borrow_mut().pass(Instant::from_nanos(now));
        let clock = self.masters[0].clock(now);
        self.masters[0].member.step(clock)?;
        for node in 0..self.engines.len() {
            let registration = self.registration(node, None, 0);
            let control = self.masters[0].leads();
            control.register(&registration, clock)?;
        }
        let request = CreateVolume {
            copies,
            minimum: Some(minimum),
            chunk: CHUNK,
            stripe_unit: CHUNK,
            stripe_width: 1,
            ..CreateVolume::new("volume", ByteCount(CHUNK.0 * chunks as u64))
        };
        let volume = self.masters[0].leads().create_volume(&request, clock)?;
        assert_eq!(volume.number, VOLUME);
        for node in 0..self.engines.len() {
            let cluster = self.masters[0].leads().cluster();
            let mut heartbeat = self.heartbeat(node, 1, cluster);
            heartbeat.prepared = vec![VOLUME];
            self.masters[0].leads().heartbeat(&heartbeat, clock)?;
        }
        self.masters[0].member.step(clock)?;
        let volume = self.masters[0].leads().volume(VOLUME)?;
        assert_eq!(
            volume.state,
            control::VolumeState::Ready,
            "every node has its copies"
        );
        let _ = self.etcd.borrow_mut().take_changes();
        self.chunks = self.etcd.borrow().chunks().into_values().collect();
        Ok(())
    }
}

impl World {
    /// One with masters of its own, in which one of these makes a mistake.
    pub(in crate::simulation) fn whole(seed: u64, planted: Option<Bug>) -> Self {
        // What every copy has wrong goes along where masters have copies moved and made.
        let loses = seed % 8 == 4 && planted.is_none();
        // Copies that move are where masters do most.
        let scenario = match seed % 3 {
            _ if loses && seed % 16 == 4 => HARM,
            _ if loses => REBUILD,
            0 => REBUILD,
            // Full disks, too, which are none of those that other worlds draw.
            _ => seed / 3 % (SCENARIOS + 1),
        };
        let kinds = Kinds {
            whole: true,
            snapshots: seed % 2 == 1,
            // Their copies follow those of the chunks.
            keeps: seed % 4 == 1,
            reserved: seed % 4 == 2 && planted.is_none(),
            loses,
            masters_bug: planted,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(scenario), kinds)
    }

    /// One whose volume hosts reserve, with a mistake of masters or one of nodes.
    #[cfg(test)]
    fn whole_with_hosts(seed: u64, planted: Option<Bug>, of_nodes: Option<crate::planted::Bug>) -> Self {
        let kinds = Kinds {
            whole: true,
            reserved: true,
            masters_bug: planted,
            ..Kinds::default()
        };
        Self::make(seed, of_nodes, None, kinds)
    }

    fn of_whole(&mut self) -> &mut Whole {
        self.whole
            .as_mut()
            .expect("only worlds with masters of their own have their events")
    }

    /// Founds the cluster; where its chunks begin.
    pub(in crate::simulation) fn found_whole(&mut self) -> Vec<ChunkConfig> {
        let (kind, chunks, now) = (
            (self.shape.copies, self.shape.minimum),
            self.shape.chunks,
            self.now,
        );
        let exports = self.reserved.is_some();
        let whole = self.of_whole();
        // Where hosts reserve it, it grows when that hurts them.
        whole.grows &= !exports;
        whole
            .found(kind, chunks, now)
            .expect("nothing is wrong with a new cluster");
        if exports {
            whole.export(now).expect("nothing is wrong with a new cluster");
        }
        whole.chunks.iter().map(config_of).collect()
    }

    /// Everything is made: time begins.
    pub(in crate::simulation) fn begin_whole(&mut self) {
        if self.whole.is_none() {
            return;
        }
        for master in 0..MASTERS {
            let delay = self.of_whole().random.below(100 * MS);
            self.at(delay, Event::Whole(WholeEvent::Step { master, life: 0 }));
        }
        self.let_one_leave();
        let first = self.of_whole().random.below(2 * SECOND);
        self.at(first, Event::Whole(WholeEvent::Fault));
        self.at(SECOND, Event::Whole(WholeEvent::Operator));
    }

    pub(in crate::simulation) fn whole_event(&mut self, event: WholeEvent) {
        let now = self.now;
        let until = [
            event.engine().map(|node| self.engine_sleeps_until(node)),
            event
                .master()
                .map(|master| self.of_whole().masters[master].paused_until),
        ];
        if let Some(until) = until.into_iter().flatten().max().filter(|until| *until > now) {
            return self.at(until - now, Event::Whole(event));
        }
        self.of_whole().etcd.borrow_mut().pass(Instant::from_nanos(now));
        self.note_committed(By::Other);
        match event {
            WholeEvent::Step { master, life } => self.master_steps(master, life),
            WholeEvent::Start { master } => self.master_starts(master),
            WholeEvent::Call {
                master,
                node,
                number,
                call,
            } => self.master_is_called(master, node, number, call),
            WholeEvent::Answer { node, number, answer } => self.engine_is_answered(node, number, answer),
            WholeEvent::News { node, watch, news } => self.engine_learns(node, watch, news),
            WholeEvent::Late { node, number } => self.engine_waits_no_more(node, number),
            WholeEvent::Beat { node, turn } => self.engine_beats(node, turn),
            WholeEvent::Again { node, turn } => self.engine_asks_again(node, turn),
            WholeEvent::Told { node, life, told } => self.target_is_told(node, life, told),
            WholeEvent::Made { node, life, chunk } => self.target_has_made(node, life, chunk),
            WholeEvent::Complete { snapshot } => self.complete(snapshot),
            WholeEvent::Renew { token } => self.renew_lease(token),
            WholeEvent::MapAsked { client, master } => self.map_is_asked(client, master),
            WholeEvent::Map { client, map } => self.map_has_come(client, map),
            WholeEvent::Fault => self.master_fault(),
            WholeEvent::Operator => self.operator(),
        }
    }

    /// Looks at what was committed, in the order of the commits, and has the rest of the world see it.
    fn note_committed(&mut self, by: By) {
        self.note_chunks(by);
        self.note_reservations();
    }

    fn note_chunks(&mut self, by: By) {
        self.check_snapshot_records();
        let changes = self.of_whole().etcd.borrow_mut().take_changes();
        if changes.is_empty() {
            return self.check_growth();
        }
        // Other volumes take room, and nobody uses them.
        for (id, chunk) in changes.into_iter().filter(|(id, _)| id.volume == VOLUME) {
            let index = id.index as usize;
            let Some(next) = chunk else {
                return self.fail(format!("{id} was removed, and its volume is there"));
            };
            if index >= self.of_whole().chunks.len() {
                self.chunk_is_placed(index, next);
                continue;
            }
            let before = std::mem::replace(&mut self.of_whole().chunks[index], next.clone());
            self.of_whole().note_disks(index, &next);
            self.check_step(index, &before, &next, by);
            self.committed(index, next.epoch, next.recovery);
            self.store[index] = config_of(&next);
            let places = next.copies.iter().map(|copy| index_of(copy.node)).collect();
            let before = std::mem::replace(&mut self.places.of_chunk[index], places);
            let places = &self.places.of_chunk[index];
            let gone = before.iter().filter(|node| !places.contains(node)).count();
            self.places.moved += gone as u64;
        }
        self.check_growth();
        self.keep_map();
        self.check_space();
        self.check_removed();
    }

    /// What must hold of a chunk's configuration and the one that follows it.
    fn check_step(&mut self, index: usize, before: &Chunk, next: &Chunk, by: By) {
        if next.epoch != before.epoch.next() {
            return self.fail(format!("chunk {index}: {next:?} was committed upon {before:?}"));
        }
        let least = before.member_count().min(self.shape.minimum.into());
        if next.member_count() < least {
            return self.fail(format!("chunk {index} has too few members: {next:?}"));
        }
        let now = self.now;
        self.of_whole().recovered += u64::from(next.recovery);
        for (node, life) in before.members() {
            let left_out = next.has_copy_on(node) && !next.has_member(node, life) && !next.recovery;
            if by != By::Masters || !left_out {
                continue;
            }
            let whole = self.of_whole();
            whole.left_out += 1;
            // Clocks differ by less than a hundredth.
            let node = index_of(node);
            let (heard, at) = whole.heard[node];
            // A later number that was given out, whoever got it, ends a life for the masters.
            let is_newest = whole
                .etcd
                .borrow()
                .node(named(node))
                .is_some_and(|known| known.incarnation == life);
            let is_recent = is_newest && heard == life.0 && now < at + TIMEOUT / 100 * 98;
            if is_recent && self.alive(node, life.0) {
                let ms = (now - at) / MS;
                return self.fail(format!(
                    "chunk {index}: node {node} lives, was heard {ms} ms ago and is left out: {next:?}"
                ));
            }
        }
    }

    /// What is promised on each disk is what the copies placed there take.
    fn check_space(&mut self) {
        let whole = self.of_whole();
        let mut taken: BTreeMap<(control::NodeId, DiskId), u64> = BTreeMap::new();
        let chunks = whole.etcd.borrow().chunks();
        for copy in chunks.values().flat_map(|chunk| &chunk.copies) {
            *taken.entry((copy.node, copy.disk)).or_default() += CHUNK.0;
        }
        for moving in whole.etcd.borrow().disk_moves().values() {
            *taken.entry((moving.node, moving.to)).or_default() += moving.bytes.0;
        }
        let mut promised = whole.etcd.borrow().allocations();
        promised.retain(|_, bytes| *bytes > 0);
        if promised != taken {
            self.fail(format!(
                "space: {promised:?} is promised, the copies placed there take {taken:?}"
            ));
        }
    }

    /// Whether the masters and the engines have nothing left to do.
    pub(in crate::simulation) fn masters_rest(&self) -> bool {
        let Some(whole) = &self.whole else {
            return true;
        };
        let etcd = whole.etcd.borrow();
        let seated = etcd.leader().filter(|&master| whole.masters[master].lives);
        let lives = |(node, life): (control::NodeId, Incarnation)| {
            let node = index_of(node);
            self.alive(node, life.0) && whole.engines[node].serves()
        };
        let chunks = whole.chunks.iter();
        seated.is_some()
            && !etcd.has_late()
            && etcd.drains().is_empty()
            && etcd.volumes() == [VOLUME]
            && whole.in_use == whole.chunks.len()
            && !whole.is_crowded()
            && chunks.flat_map(Chunk::members).all(lives)
    }

    /// When all is quiet: a chunk has its copies, where the store places them, and nowhere else.
    pub(in crate::simulation) fn check_places(&mut self) {
        let Some(whole) = &self.whole else {
            return;
        };
        let mut wrong = None;
        for (index, chunk) in whole.chunks.iter().enumerate() {
            let placed: Vec<usize> = chunk.copies.iter().map(|copy| index_of(copy.node)).collect();
            let nodes = 0..self.shape.nodes;
            let there: Vec<usize> = nodes
                .filter(|&node| self.nodes[node].disks.contains_key(&index) && !self.is_removed(node))
                .collect();
            if placed != there || placed.len() != usize::from(self.shape.copies) {
                wrong = Some(format!(
                    "space: copies of chunk {index} are on nodes {there:?}, placed on {placed:?}"
                ));
            }
        }
        self.check_space();
        self.check_snapshots_kept();
        if let Some(why) = wrong {
            self.fail(why);
        }
    }
}
