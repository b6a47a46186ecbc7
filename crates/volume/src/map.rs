//! The client's view of a volume: the configuration of each chunk, which copy to ask for a read,
//! where a write goes, and what a refusal means. How long reads take is measured by disk, so that a slow one is avoided and
//! its neighbours in the same node are not.

use std::collections::BTreeMap;
use std::time::Duration;

use foundation::Epoch;
use thiserror::Error;

use crate::configuration::{COPIES_MAX, ChunkConfig, ConfigurationError};
use crate::identity::{ChunkIndex, NodeId};
use crate::output::Status;

/// Where to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The node.
    pub node: NodeId,
    /// The epoch to name.
    pub epoch: Epoch,
    disk: DiskTag,
}

/// Which of a node's disks: its identity folded, 0 if the map does not say. Two of one tag are measured as one.
type DiskTag = u16;

fn tag_of(disk: u128) -> DiskTag {
    let folded = (disk >> 64) as u64 ^ disk as u64;
    let folded = (folded >> 32) as u32 ^ folded as u32;
    ((folded >> 16) as u16 ^ folded as u16).max(1)
}

/// Why a map update was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// The chunk is behind the volume's end.
    #[error("chunk {} is not in a map of {chunks} chunks; fetch the volume's geometry again", .chunk.0)]
    NoSuchChunk {
        /// The chunk named.
        chunk: ChunkIndex,
        /// Chunks in the map.
        chunks: usize,
    },
    /// The configuration contradicts itself.
    #[error("the configuration of chunk {} cannot be used: {source}", .chunk.0)]
    Configuration {
        /// The chunk.
        chunk: ChunkIndex,
        /// What is wrong with it.
        source: ConfigurationError,
    },
}

/// What a client does after a request has ended with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reaction {
    /// It is done.
    Finish,
    /// It was not done: get the chunk's configuration of at least this epoch and send it again.
    Refresh(Epoch),
    /// It was not done: send it to another copy, the write node if there is no other.
    TryElsewhere,
    /// It was not done: send it again after a moment.
    TryAgain,
    /// It may have been done or may still be: open a new session, then send it again.
    NewSession,
    /// It failed for good.
    Fail,
}

/// How busy a node is, and its disks.
#[derive(Clone, Debug, Default)]
struct Load {
    under_way: u32,
    avoided: u32,
    /// Requests that it has answered, whatever it said.
    answers: u64,
    /// How many requests any node had been sent when this one last was.
    asked_at: u64,
    silence: Silence,
    /// Those that requests went to; one that no map names, if there were such requests.
    disks: Vec<DiskLoad>,
}

/// How busy and how far a disk of a node is.
#[derive(Clone, Copy, Debug, Default)]
struct DiskLoad {
    tag: DiskTag,
    under_way: u32,
    /// A read is to find out what they take.
    on_trial: bool,
    /// What reads take: a moving average, one eighth new; 0 until the first was answered.
    latency_ns: u64,
    /// How many requests any node had answered when it was last measured.
    measured_at: u64,
}

/// Whether a node answers at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Silence {
    #[default]
    None,
    /// It does not: it is asked when there is nobody else.
    Silent,
    /// One request finds out.
    OnTrial,
}

/// What a disk was measured at counts half when so many requests have been answered since by others: one that was slow is
/// asked again in the end, and what that costs is spread over that many.
const MEASURE_HALVES_AFTER: u64 = 512;

/// ... or so many for each disk, where there are many: a disk's turn comes more seldom then.
const MEASURE_HALVES_AFTER_EACH: u64 = 8;

/// Copies of which none would take more than so many times as long as the soonest are alike: they are asked in turns. What is
/// measured of equal nodes differs by less, and whoever always took the soonest would go back to one of them until it is slow.
const ALIKE_TIMES: u64 = 2;

impl DiskLoad {
    /// How long it takes, as far as that is still known when so many requests have been answered in all, of `disks`.
    fn latency_at(&self, answered: u64, disks: u64) -> u64 {
        let halves_after = MEASURE_HALVES_AFTER.max(disks.saturating_mul(MEASURE_HALVES_AFTER_EACH));
        let halvings = answered.wrapping_sub(self.measured_at) / halves_after;
        self.latency_ns
            .checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX))
            .unwrap_or(0)
    }
}

impl DiskLoad {
    /// How long one more read would take.
    fn queue(&self, answered: u64, disks: u64) -> u64 {
        if self.latency_ns == 0 && self.on_trial {
            return u64::MAX;
        }
        self.latency_at(answered, disks)
            .saturating_mul(u64::from(self.under_way) + 1)
    }

    fn forget_under_way(&mut self) {
        self.under_way = 0;
        self.on_trial = false;
    }
}

impl Load {
    fn disk(&self, tag: DiskTag) -> DiskLoad {
        let known = self.disks.iter().find(|disk| disk.tag == tag);
        known.copied().unwrap_or_default()
    }

    fn forget_under_way(&mut self) {
        self.under_way = 0;
        self.disks.iter_mut().for_each(DiskLoad::forget_under_way);
    }

    /// What comes first when copies are weighed: 0 for one that may be asked freely.
    fn reluctance(&self) -> u32 {
        match self.silence {
            Silence::None => self.avoided,
            Silence::OnTrial if self.under_way == 0 => 0,
            Silence::OnTrial | Silence::Silent => u32::MAX,
        }
    }
}

/// A chunk's configuration, and on which disk of its node each member lies, in the same order.
#[derive(Clone, Debug)]
struct Placed {
    config: ChunkConfig,
    disks: [DiskTag; COPIES_MAX],
}

impl Placed {
    fn new(config: ChunkConfig, before: Option<&Self>) -> Self {
        let mut disks = [0; COPIES_MAX];
        if let Some(before) = before {
            for (disk, member) in disks.iter_mut().zip(&config.members) {
                *disk = before.disk_of(member.node);
            }
        }
        Self { config, disks }
    }

    fn place_of(&self, node: NodeId) -> Option<usize> {
        self.config.members.iter().position(|member| member.node == node)
    }

    fn disk_of(&self, node: NodeId) -> DiskTag {
        let disk = self.place_of(node).and_then(|place| self.disks.get(place));
        disk.copied().unwrap_or(0)
    }

    fn route(&self, node: NodeId) -> Route {
        Route {
            node,
            epoch: self.config.epoch,
            disk: self.disk_of(node),
        }
    }
}

/// The configurations of a volume's chunks and what the client knows of its nodes.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: Vec<Option<Placed>>,
    loads: BTreeMap<NodeId, Load>,
    /// Disks in `loads`.
    disks: u64,
    /// Whether any node is avoided, so that a request pays for looking only then.
    avoiding: bool,
    /// Requests that nodes have answered.
    answered: u64,
    /// Requests that nodes have been sent.
    asked: u64,
}

impl ChunkMap {
    /// A map of `chunks` chunks of which nothing is known yet.
    pub fn new(chunks: usize) -> Self {
        Self {
            chunks: vec![None; chunks],
            loads: BTreeMap::new(),
            disks: 0,
            avoiding: false,
            answered: 0,
            asked: 0,
        }
    }

    /// Makes room for the chunks of an appended stripe group; never takes any away.
    pub fn grow(&mut self, chunks: usize) {
        self.chunks.resize(self.chunks.len().max(chunks), None);
    }

    /// Takes a configuration if it is newer than the one known; true if it was.
    pub fn update(&mut self, chunk: ChunkIndex, config: ChunkConfig) -> Result<bool, MapError> {
        let chunks = self.chunks.len();
        config
            .validate()
            .map_err(|source| MapError::Configuration { chunk, source })?;
        let known = self
            .chunks
            .get_mut(chunk.0 as usize)
            .ok_or(MapError::NoSuchChunk { chunk, chunks })?;
        let newer = known.as_ref().is_none_or(|k| k.config.epoch < config.epoch);
        if newer {
            *known = Some(Placed::new(config, known.as_ref()));
        }
        Ok(newer)
    }

    /// Notes on which disk of a node a chunk's copy lies, if it is in sync in the configuration known.
    pub fn lies_on(&mut self, chunk: ChunkIndex, node: NodeId, disk: u128) {
        if let Some(Some(known)) = self.chunks.get_mut(chunk.0 as usize)
            && let Some(place) = known.place_of(node)
            && let Some(tag) = known.disks.get_mut(place)
        {
            *tag = tag_of(disk);
        }
    }

    /// Takes every configuration of another map that is newer than the one known, and where copies lie if it is as new.
    pub fn adopt(&mut self, other: &ChunkMap) {
        self.grow(other.chunks.len());
        for (known, offered) in self.chunks.iter_mut().zip(&other.chunks) {
            let Some(offered) = offered else { continue };
            match known {
                Some(known) if known.config.epoch > offered.config.epoch => {}
                Some(known) if known.config.epoch == offered.config.epoch => known.disks = offered.disks,
                _ => *known = Some(offered.clone()),
            }
        }
    }

    fn placed(&self, chunk: ChunkIndex) -> Option<&Placed> {
        self.chunks.get(chunk.0 as usize)?.as_ref()
    }

    /// The configuration known of a chunk.
    pub fn config(&self, chunk: ChunkIndex) -> Option<&ChunkConfig> {
        self.placed(chunk).map(|placed| &placed.config)
    }

    /// Where a write or flush of a chunk goes; none until its configuration is known.
    pub fn write_route(&self, chunk: ChunkIndex) -> Option<Route> {
        let placed = self.placed(chunk)?;
        Some(placed.route(placed.config.write_node))
    }

    /// The copy to read from: of those on whose disks the requests under way and this one would be done
    /// soonest, or not much later, that of the node with the fewest under way, and of several the one that was not asked for
    /// longest. Disks not tried yet come first, so that each gets measured.
    pub fn read_route(&self, chunk: ChunkIndex) -> Option<Route> {
        self.read_route_avoiding(chunk, &[])
    }

    /// As [`ChunkMap::read_route`], but none of these nodes; none if there is no other.
    pub fn read_route_avoiding(&self, chunk: ChunkIndex, avoid: &[NodeId]) -> Option<Route> {
        let placed = self.placed(chunk)?;
        // What is known of each member is looked up once.
        let mut weighed = [None; COPIES_MAX];
        let (mut least, mut soonest) = (u32::MAX, u64::MAX);
        let members = placed.config.members.iter().zip(placed.disks);
        for (place, (member, tag)) in weighed.iter_mut().zip(members) {
            let node = member.node;
            if avoid.contains(&node) {
                continue;
            }
            let (mut reluctance, mut queue, mut turn) = (0, 0, (0, 0, node));
            if let Some(load) = self.loads.get(&node) {
                reluctance = load.reluctance();
                queue = load.disk(tag).queue(self.answered, self.disks);
                turn = (load.under_way, load.asked_at, node);
            }
            if (reluctance, queue) < (least, soonest) {
                (least, soonest) = (reluctance, queue);
            }
            *place = Some((reluctance, queue, turn, tag));
        }
        let limit = soonest.saturating_mul(ALIKE_TIMES);
        let is_alike = |&(reluctance, queue, ..): &(u32, u64, _, _)| reluctance == least && queue <= limit;
        let (.., (_, _, node), disk) = weighed
            .into_iter()
            .flatten()
            .filter(is_alike)
            .min_by_key(|&(.., turn, _)| turn)?;
        let epoch = placed.config.epoch;
        Some(Route { node, epoch, disk })
    }

    /// The copy of this number in the order of the chunk's configuration, going round.
    pub fn copy_route(&self, chunk: ChunkIndex, copy: u32) -> Option<Route> {
        let placed = self.placed(chunk)?;
        let members = &placed.config.members;
        let index = copy as usize % members.len().max(1);
        Some(placed.route(members.get(index)?.node))
    }

    /// A request goes this way, a read or not.
    pub fn started(&mut self, route: Route, is_read: bool) {
        self.asked = self.asked.wrapping_add(1);
        let load = self.loads.entry(route.node).or_default();
        load.under_way += 1;
        load.asked_at = self.asked;
        match load.disks.iter_mut().find(|disk| disk.tag == route.disk) {
            Some(disk) => {
                disk.under_way += 1;
                disk.on_trial |= is_read;
            }
            None => {
                load.disks.push(DiskLoad {
                    tag: route.disk,
                    under_way: 1,
                    on_trial: is_read,
                    ..DiskLoad::default()
                });
                self.disks += 1;
            }
        }
    }

    /// A request that went this way has ended, a read after `took`, and what is to be done now. What a write takes is as long as
    /// its slowest copy and says nothing of this one. A node that would not serve is avoided for the next few reads.
    pub fn finished(&mut self, route: Route, took: Option<Duration>, status: Status) -> Reaction {
        let Route { node, disk: tag, .. } = route;
        let reaction = Self::reaction(status);
        self.answered = self.answered.wrapping_add(1);
        let (answered, disks) = (self.answered, self.disks);
        let load = self.loads.entry(node).or_default();
        load.under_way = load.under_way.saturating_sub(1);
        load.answers = load.answers.wrapping_add(1);
        load.silence = Silence::None;
        if let Some(disk) = load.disks.iter_mut().find(|disk| disk.tag == tag) {
            disk.under_way = disk.under_way.saturating_sub(1);
            disk.on_trial &= took.is_none();
            if let Some(took) = took.filter(|_| reaction == Reaction::Finish) {
                let latency_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
                disk.latency_ns = match disk.latency_ns {
                    0 => latency_ns,
                    _ => {
                        let before = disk.latency_at(answered, disks);
                        before - before / 8 + latency_ns / 8
                    }
                };
                disk.measured_at = answered;
            }
        }
        load.avoided = match reaction {
            Reaction::TryElsewhere => 8,
            _ => 0,
        };
        let own_avoided = load.avoided > 0;
        if std::mem::replace(&mut self.avoiding, own_avoided) {
            for (other, load) in &mut self.loads {
                if *other != node {
                    load.avoided = load.avoided.saturating_sub(1);
                    self.avoiding |= load.avoided > 0;
                }
            }
        }
        reaction
    }

    /// No answer came from this node: nothing is known of its requests.
    pub fn lost(&mut self, node: NodeId) {
        let load = self.loads.entry(node).or_default();
        load.forget_under_way();
        load.avoided = 64;
        self.avoiding = true;
    }

    /// A node has not answered anything for a while: until it does, it is asked when there is nobody else.
    pub fn silent(&mut self, node: NodeId) {
        self.loads.entry(node).or_default().silence = Silence::Silent;
    }

    /// Lets one read find out whether a silent node answers again. What became of those that it was sent is not known.
    pub fn try_silent(&mut self, node: NodeId) {
        let load = self.loads.entry(node).or_default();
        if load.silence == Silence::Silent {
            load.silence = Silence::OnTrial;
            load.forget_under_way();
        }
    }

    /// Whether a read may find out whether the node answers again, and none has been sent for that.
    pub fn is_on_trial(&self, node: NodeId) -> bool {
        let load = self.loads.get(&node);
        load.is_some_and(|load| load.silence == Silence::OnTrial && load.under_way == 0)
    }

    /// How many requests a node has answered, to be compared with what it was before.
    pub fn answers(&self, node: NodeId) -> u64 {
        self.loads.get(&node).map_or(0, |load| load.answers)
    }

    /// What a status asks of the client.
    pub fn reaction(status: Status) -> Reaction {
        match status {
            Status::Done | Status::Claimed(_) | Status::Differs => Reaction::Finish,
            Status::StaleEpoch(epoch) | Status::NotWriteNode(epoch) => Reaction::Refresh(epoch),
            Status::NotReady | Status::DeviceFailed => Reaction::TryElsewhere,
            Status::Busy => Reaction::TryAgain,
            Status::StaleSession | Status::Unknown => Reaction::NewSession,
            Status::FencedWriter(_)
            | Status::OutOfRange
            | Status::Cancelled
            | Status::SnapshotAborted
            | Status::NoRoom
            | Status::Lost => Reaction::Fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Membership;
    use crate::identity::Incarnation;

    fn config(epoch: u64, write_node: u128, nodes: &[u128]) -> ChunkConfig {
        let members = nodes.iter().map(|&node| Membership {
            node: NodeId(node),
            incarnation: Incarnation(1),
        });
        ChunkConfig {
            epoch: Epoch(epoch),
            write_node: NodeId(write_node),
            members: members.collect(),
        }
    }

    /// The way to a node's copy of the first chunk.
    fn to(map: &ChunkMap, node: u128) -> Route {
        map.placed(ChunkIndex(0)).unwrap().route(NodeId(node))
    }

    fn micros(us: u64) -> Option<Duration> {
        Some(Duration::from_micros(us))
    }

    #[test]
    fn only_newer_configurations_are_taken() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        assert_eq!(map.write_route(chunk), None);
        assert_eq!(map.update(chunk, config(2, 1, &[1, 2, 3])), Ok(true));
        assert_eq!(map.update(chunk, config(1, 2, &[1, 2, 3])), Ok(false));
        assert_eq!(map.write_route(chunk).unwrap().node, NodeId(1));
        assert!(map.update(ChunkIndex(1), config(1, 1, &[1])).is_err());
        let error = map.update(chunk, config(3, 9, &[1])).unwrap_err();
        assert!(error.to_string().contains("write node 9"), "{error}");
        map.grow(2);
        assert_eq!(map.update(ChunkIndex(1), config(1, 1, &[1])), Ok(true));
    }

    #[test]
    fn reads_go_where_they_are_done_soonest() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2])).unwrap();
        for (node, us) in [(1, 300), (2, 100)] {
            map.started(to(&map, node), true);
            map.finished(to(&map, node), micros(us), Status::Done);
        }
        let route = |map: &ChunkMap| map.read_route(chunk).unwrap().node.0;
        assert_eq!(route(&map), 2);
        for _ in 0..3 {
            map.started(to(&map, 2), true);
        }
        assert_eq!(route(&map), 1);
        let refused = map.finished(to(&map, 1), None, Status::NotReady);
        assert_eq!((refused, route(&map)), (Reaction::TryElsewhere, 2));
        map.lost(NodeId(2));
        assert_eq!(route(&map), 1);
    }

    #[test]
    fn reads_fall_evenly_on_copies_that_answer_alike() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2, 3])).unwrap();
        let mut random = foundation::Random::from_seed(1);
        let mut asked = [0u32; 3];
        // One after the other, from nodes that take between 70 and 130 us each.
        for _ in 0..30_000 {
            let route = map.read_route(chunk).unwrap();
            map.started(route, true);
            map.finished(route, micros(random.between(70, 130)), Status::Done);
            asked[route.node.0 as usize - 1] += 1;
        }
        let most = asked.into_iter().max().unwrap();
        assert!(most <= 10_500, "{asked:?}");
    }

    #[test]
    fn a_slow_node_is_asked_seldom_and_again_when_it_is_well() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2, 3])).unwrap();
        // One read after the other: how many of so many went to node 2, which takes so long.
        let mut reads = |count: u32, us: u64| {
            let mut asked = 0;
            for _ in 0..count {
                let route = map.read_route(chunk).unwrap();
                map.started(route, true);
                let is_it = route.node == NodeId(2);
                map.finished(route, micros(if is_it { us } else { 100 }), Status::Done);
                asked += u32::from(is_it);
            }
            asked
        };
        reads(1000, 90);
        let slow = reads(200_000, 20_000);
        assert!(
            (1..200).contains(&slow),
            "{slow} of 200,000 reads went to the slow node"
        );
        let mut found = 0;
        for _ in 0..50 {
            found = reads(4096, 80);
            if found > 1000 {
                break;
            }
        }
        assert!(
            found > 1000,
            "the node is well, and is asked {found} times in 4,096"
        );
    }

    /// How many of so many reads of a chunk, one after the other, went to node 1, whose copies take so long by chunk.
    fn reads_of(map: &mut ChunkMap, chunk: u32, count: u32, us: [u64; 2]) -> u32 {
        let mut asked = 0;
        for _ in 0..count {
            let route = map.read_route(ChunkIndex(chunk)).unwrap();
            map.started(route, true);
            let is_it = route.node == NodeId(1);
            let took = if is_it { us[chunk as usize] } else { 100 };
            map.finished(route, micros(took), Status::Done);
            asked += u32::from(is_it);
        }
        asked
    }

    #[test]
    fn a_slow_disk_is_avoided_and_the_others_of_its_node_are_not() {
        let mut map = ChunkMap::new(2);
        for chunk in [0, 1] {
            map.update(ChunkIndex(chunk), config(1, 1, &[1, 2])).unwrap();
            map.lies_on(ChunkIndex(chunk), NodeId(1), u128::from(chunk) + 10);
        }
        // The first chunk's copy lies on a disk that takes 20 ms, the second's on one that is as fast as all others.
        let (mut slow, mut well) = (0, 0);
        for _ in 0..1000 {
            slow += reads_of(&mut map, 0, 10, [20_000, 100]);
            well += reads_of(&mut map, 1, 10, [20_000, 100]);
        }
        assert!((1..50).contains(&slow), "{slow} of 10,000 went to the slow disk");
        assert!(
            (4000..6000).contains(&well),
            "{well} of 10,000 went to its neighbour"
        );
        // Without a word of disks the node is one thing.
        let mut map = ChunkMap::new(2);
        for chunk in [0, 1] {
            map.update(ChunkIndex(chunk), config(1, 1, &[1, 2])).unwrap();
        }
        reads_of(&mut map, 0, 100, [20_000, 100]);
        assert!(reads_of(&mut map, 1, 100, [20_000, 100]) < 10);
    }

    #[test]
    fn what_writes_take_says_nothing_of_the_write_nodes_disk() {
        let mut map = ChunkMap::new(1);
        map.update(ChunkIndex(0), config(1, 1, &[1, 2])).unwrap();
        let mut asked = 0;
        for _ in 0..10 {
            let write = map.write_route(ChunkIndex(0)).unwrap();
            map.started(write, false);
            map.finished(write, None, Status::Done);
            asked += reads_of(&mut map, 0, 100, [100, 100]);
        }
        assert!(
            (400..600).contains(&asked),
            "{asked} of 1,000 went to the write node"
        );
    }

    #[test]
    fn one_read_finds_out_about_a_disk() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2])).unwrap();
        map.started(to(&map, 1), true);
        map.finished(to(&map, 1), micros(100), Status::Done);
        let route = |map: &ChunkMap| map.read_route(chunk).unwrap().node.0;
        // Writes find out nothing, and keep nobody from it.
        map.started(to(&map, 2), false);
        assert_eq!(route(&map), 2);
        map.started(to(&map, 2), true);
        for _ in 0..10 {
            assert_eq!(route(&map), 1);
            map.started(to(&map, 1), true);
        }
        assert_eq!(map.read_route_avoiding(chunk, &[NodeId(1)]).unwrap().node.0, 2);
        map.finished(to(&map, 2), micros(50), Status::Done);
        assert_eq!(route(&map), 2);
    }

    #[test]
    fn where_copies_lie_outlives_an_epoch_and_is_taken_over() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2])).unwrap();
        let mut view = ChunkMap::new(1);
        view.adopt(&map);
        map.lies_on(chunk, NodeId(2), 7);
        map.lies_on(chunk, NodeId(3), 8);
        let disk = |map: &ChunkMap, node| map.placed(chunk).unwrap().disk_of(NodeId(node));
        assert_eq!((disk(&map, 2), disk(&map, 1), disk(&map, 3)), (tag_of(7), 0, 0));
        assert_eq!(disk(&view, 2), 0);
        view.adopt(&map);
        assert_eq!(disk(&view, 2), tag_of(7));
        // Members change, and with them their order.
        map.update(chunk, config(2, 2, &[0, 2])).unwrap();
        assert_eq!((disk(&map, 0), disk(&map, 2)), (0, tag_of(7)));
        view.adopt(&map);
        view.adopt(&ChunkMap::new(1));
        assert_eq!((disk(&view, 0), disk(&view, 2)), (0, tag_of(7)));
    }

    #[test]
    fn a_silent_node_is_asked_once_in_a_while_until_it_answers() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2])).unwrap();
        for (node, us) in [(1, 300), (2, 100)] {
            map.started(to(&map, node), true);
            map.finished(to(&map, node), micros(us), Status::Done);
        }
        let route = |map: &ChunkMap| map.read_route(chunk).unwrap().node.0;
        map.silent(NodeId(2));
        for _ in 0..1000 {
            assert_eq!(route(&map), 1);
            map.started(to(&map, 1), true);
            map.finished(to(&map, 1), micros(300), Status::Done);
        }
        let only = map.read_route_avoiding(chunk, &[NodeId(1)]);
        assert_eq!(only.unwrap().node.0, 2, "better than nobody");
        map.try_silent(NodeId(2));
        assert_eq!(route(&map), 2);
        map.started(to(&map, 2), true);
        assert_eq!(route(&map), 1, "one finds out");
        let before = map.answers(NodeId(2));
        map.finished(to(&map, 2), micros(100), Status::Done);
        assert_eq!((route(&map), map.answers(NodeId(2))), (2, before + 1));
    }
}
