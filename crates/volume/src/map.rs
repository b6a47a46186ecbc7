//! The client's view of a volume: the configuration of each chunk, which copy to ask for a read,
//! where a write goes, and what a refusal means.

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

/// How busy and how far a node is.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    under_way: u32,
    /// A moving average, one eighth new; 0 until the first answer.
    latency_ns: u64,
    /// How many requests any node had answered when this one last did.
    measured_at: u64,
    avoided: u32,
    /// Requests that it has answered, whatever it said.
    answers: u64,
    /// How many requests any node had been sent when this one last was.
    asked_at: u64,
    silence: Silence,
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

/// What a node was measured at counts half when so many requests have been answered since by others: one that was slow is
/// asked again in the end, and what that costs is spread over that many.
const MEASURE_HALVES_AFTER: u64 = 512;

/// Copies of which none would take more than so many times as long as the soonest are alike: they are asked in turns. What is
/// measured of equal nodes differs by less, and whoever always took the soonest would go back to one of them until it is slow.
const ALIKE_TIMES: u64 = 2;

impl Load {
    /// How long it takes, as far as that is still known when so many requests have been answered in all.
    fn latency_at(&self, answered: u64) -> u64 {
        let halvings = answered.wrapping_sub(self.measured_at) / MEASURE_HALVES_AFTER;
        self.latency_ns
            .checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX))
            .unwrap_or(0)
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

/// The configurations of a volume's chunks and what the client knows of its nodes.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: Vec<Option<ChunkConfig>>,
    loads: BTreeMap<NodeId, Load>,
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
        let newer = known.as_ref().is_none_or(|k| k.epoch < config.epoch);
        if newer {
            *known = Some(config);
        }
        Ok(newer)
    }

    /// Takes every configuration of another map that is newer than the one known.
    pub fn adopt(&mut self, other: &ChunkMap) {
        self.grow(other.chunks.len());
        for (known, offered) in self.chunks.iter_mut().zip(&other.chunks) {
            if let Some(config) = offered
                && known.as_ref().is_none_or(|known| known.epoch < config.epoch)
            {
                *known = Some(config.clone());
            }
        }
    }

    /// The configuration known of a chunk.
    pub fn config(&self, chunk: ChunkIndex) -> Option<&ChunkConfig> {
        self.chunks.get(chunk.0 as usize)?.as_ref()
    }

    /// Where a write or flush of a chunk goes; none until its configuration is known.
    pub fn write_route(&self, chunk: ChunkIndex) -> Option<Route> {
        self.config(chunk).map(|config| Route {
            node: config.write_node,
            epoch: config.epoch,
        })
    }

    /// The copy to read from: of those where the requests under way and this one would be done
    /// soonest, or not much later, the one with the fewest under way, and of several the one that was not asked for longest.
    /// Nodes not tried yet come first, so that each gets measured.
    pub fn read_route(&self, chunk: ChunkIndex) -> Option<Route> {
        self.read_route_avoiding(chunk, &[])
    }

    /// As [`ChunkMap::read_route`], but none of these nodes; none if there is no other.
    pub fn read_route_avoiding(&self, chunk: ChunkIndex, avoid: &[NodeId]) -> Option<Route> {
        let config = self.config(chunk)?;
        // What is known of each member is looked up once.
        let mut weighed = [None; COPIES_MAX];
        let (mut least, mut soonest) = (u32::MAX, u64::MAX);
        for (place, member) in weighed.iter_mut().zip(&config.members) {
            let node = member.node;
            if avoid.contains(&node) {
                continue;
            }
            let load = self.loads.get(&node).copied().unwrap_or_default();
            let reluctance = load.reluctance();
            let queue = load
                .latency_at(self.answered)
                .saturating_mul(u64::from(load.under_way) + 1);
            if (reluctance, queue) < (least, soonest) {
                (least, soonest) = (reluctance, queue);
            }
            *place = Some((reluctance, queue, (load.under_way, load.asked_at, node)));
        }
        let limit = soonest.saturating_mul(ALIKE_TIMES);
        let is_alike = |&(reluctance, queue, _): &(u32, u64, _)| reluctance == least && queue <= limit;
        let (.., (_, _, node)) = weighed
            .into_iter()
            .flatten()
            .filter(is_alike)
            .min_by_key(|&(.., turn)| turn)?;
        let epoch = config.epoch;
        Some(Route { node, epoch })
    }

    /// The copy of this number in the order of the chunk's configuration, going round.
    pub fn copy_route(&self, chunk: ChunkIndex, copy: u32) -> Option<Route> {
        let config = self.config(chunk)?;
        let index = copy as usize % config.members.len().max(1);
        let node = config.members.get(index)?.node;
        let epoch = config.epoch;
        Some(Route { node, epoch })
    }

    /// A request goes to this node.
    pub fn started(&mut self, node: NodeId) {
        self.asked = self.asked.wrapping_add(1);
        let load = self.loads.entry(node).or_default();
        load.under_way += 1;
        load.asked_at = self.asked;
    }

    /// A request to this node has ended after `latency` and what is to be done now. A node that
    /// would not serve is avoided for the next few reads.
    pub fn finished(&mut self, node: NodeId, latency: Duration, status: Status) -> Reaction {
        let reaction = Self::reaction(status);
        self.answered = self.answered.wrapping_add(1);
        let answered = self.answered;
        let load = self.loads.entry(node).or_default();
        load.under_way = load.under_way.saturating_sub(1);
        load.answers = load.answers.wrapping_add(1);
        load.silence = Silence::None;
        if reaction == Reaction::Finish {
            let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
            load.latency_ns = match load.latency_ns {
                0 => latency_ns,
                _ => {
                    let before = load.latency_at(answered);
                    before - before / 8 + latency_ns / 8
                }
            };
            load.measured_at = answered;
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
        load.under_way = 0;
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
            load.under_way = 0;
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
            Status::Done | Status::Claimed(_) => Reaction::Finish,
            Status::StaleEpoch(epoch) | Status::NotWriteNode(epoch) => Reaction::Refresh(epoch),
            Status::NotReady | Status::DeviceFailed => Reaction::TryElsewhere,
            Status::Busy => Reaction::TryAgain,
            Status::StaleSession | Status::Unknown => Reaction::NewSession,
            Status::FencedWriter(_) | Status::OutOfRange | Status::Cancelled | Status::SnapshotAborted => {
                Reaction::Fail
            }
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
            map.started(NodeId(node));
            map.finished(NodeId(node), Duration::from_micros(us), Status::Done);
        }
        let route = |map: &ChunkMap| map.read_route(chunk).unwrap().node.0;
        assert_eq!(route(&map), 2);
        for _ in 0..3 {
            map.started(NodeId(2));
        }
        assert_eq!(route(&map), 1);
        let refused = map.finished(NodeId(1), Duration::ZERO, Status::NotReady);
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
            let node = map.read_route(chunk).unwrap().node;
            map.started(node);
            map.finished(node, Duration::from_micros(random.between(70, 130)), Status::Done);
            asked[node.0 as usize - 1] += 1;
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
                let node = map.read_route(chunk).unwrap().node;
                map.started(node);
                let is_it = node == NodeId(2);
                let latency = Duration::from_micros(if is_it { us } else { 100 });
                map.finished(node, latency, Status::Done);
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

    #[test]
    fn a_silent_node_is_asked_once_in_a_while_until_it_answers() {
        let mut map = ChunkMap::new(1);
        let chunk = ChunkIndex(0);
        map.update(chunk, config(1, 1, &[1, 2])).unwrap();
        for (node, us) in [(1, 300), (2, 100)] {
            map.started(NodeId(node));
            map.finished(NodeId(node), Duration::from_micros(us), Status::Done);
        }
        let route = |map: &ChunkMap| map.read_route(chunk).unwrap().node.0;
        map.silent(NodeId(2));
        for _ in 0..1000 {
            assert_eq!(route(&map), 1);
            map.started(NodeId(1));
            map.finished(NodeId(1), Duration::from_micros(300), Status::Done);
        }
        let only = map.read_route_avoiding(chunk, &[NodeId(1)]);
        assert_eq!(only.unwrap().node.0, 2, "better than nobody");
        map.try_silent(NodeId(2));
        assert_eq!(route(&map), 2);
        map.started(NodeId(2));
        assert_eq!(route(&map), 1, "one finds out");
        let before = map.answers(NodeId(2));
        map.finished(NodeId(2), Duration::from_micros(100), Status::Done);
        assert_eq!((route(&map), map.answers(NodeId(2))), (2, before + 1));
    }
}
