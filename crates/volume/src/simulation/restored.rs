//! A store of the masters that is replaced by what it was earlier, and what the masters do then before they go on
//! (`docs/decisions/0108`). Those of the old store are gone, and what was on its way to that is lost; what they sent to a node still
//! arrives there, in the order in which it was sent, as what one engine tells its target does.
//!
//! Meanwhile the store is *held*: nothing is committed and nothing sent but questions. A node answers for each of its copies which epoch
//! it has sealed, the configuration that it took part in last, and the newest that its present life was told of. The question takes the
//! way of the configurations, so an answer reflects all that the node was told before. E is the highest configuration that any answer
//! names. It counts when every node has answered in its present life; or, with a minimum of at least two, when all nodes of E's members
//! have, each with a copy that took part in something. Then its members and write node are committed, in their lives as E names them,
//! in an epoch far above all that is known. A member whose copy is gone, or was made anew and took part in nothing, is left out. If the
//! restored record is above E, it counts instead: it was committed before the copy was kept, and nobody took part in it.
//!
//! Why nothing later than E goes on: let E' be the first configuration after E that some node may still bring into force.
//! - *Its write node is a member of E.* It is told by its engine, before it hears the question or never, since the old masters are gone.
//!   So its answer names E', though it may be far from having sealed it. (With what copies took part in alone this breaks: planted as
//!   `RestoredHearsOnlySealed`.) If that life has ended, E' can come into force no more, for all its members have to seal.
//! - *Its write node is not.* Then E' is not the one that followed E, but a later one: E's write node let a copy in, the masters
//!   committed that unheard by E's members, and then gave the writes to the new copy. With a minimum of at least two E' has
//!   a member of E beside it, which seals before E' is in force, and names it then. With a minimum of one that copy may serve alone, and none
//!   of E's members know: so everyone has to be asked (planted as `RestoredAsksMembersOnly`).
//! - *A member of E whose copy was deleted* knows nothing any more. It was deleted for a later configuration than E, which need not be
//!   known to the others. So such an answer counts only when everyone has answered; one copy of what was in force last is among them.
//!
//! What is left: with a minimum of two, a write node outside of E that nobody has asked may have its Seal arrive at a member of E after that
//! one's answer and before it hears of the new configuration. Until then it goes on in an epoch that is thought not to be. Asking
//! everyone closes that, too.
//!
//! Writers' tokens are not restored here: nodes refuse older ones than they know, and the clients of the simulation would not go on.

use std::collections::{BTreeMap, BTreeSet};

use foundation::{Epoch, Random};

use super::injected::FAULTS_END;
use super::kinds::Kinds;
use super::world::{Event, MS, REBUILD, SCENARIOS, SECOND, World, chunk_id, node_index};
use crate::configuration::ChunkConfig;
use crate::planted::Bug;

/// Epochs go on so far above all that is known.
const GAP: u64 = 1024;
/// No store is restored later than this.
const LAST: u64 = FAULTS_END + 4 * SECOND;

/// What the store knew at a moment.
#[derive(Debug)]
struct Kept {
    at: u64,
    chunks: Vec<ChunkConfig>,
    places: Vec<Vec<usize>>,
    draining: Vec<bool>,
    lives: Vec<u64>,
    ended: BTreeSet<(usize, u64)>,
}

/// How a copy is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Said {
    sealed: Epoch,
    /// The configuration it took part in last.
    config: Option<ChunkConfig>,
    /// The newest one that its life has been told of.
    told: Option<ChunkConfig>,
}

/// What nodes have said since the store is held, each in a life of its own, by chunk.
#[derive(Debug)]
struct Hold {
    answers: BTreeMap<usize, (u64, BTreeMap<usize, Said>)>,
    left: BTreeSet<usize>,
}

#[derive(Debug)]
pub(super) struct Restored {
    random: Random,
    kept: Vec<Option<Kept>>,
    /// Grows with each restore.
    life: u64,
    hold: Option<Hold>,
    /// When what was sent to each node last arrives there.
    arrives: Vec<u64>,
    /// How often the store was restored so far, and how many of its chunks went on otherwise than its records said.
    pub(super) times: u64,
    pub(super) older: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum RestoredEvent {
    /// What the store knows is kept.
    Keep,
    /// The store is what it was when that was kept.
    Restore { kept: usize },
    /// The masters ask a node how its copies are.
    Question { node: usize, store: u64 },
    /// It says so.
    Answer {
        node: usize,
        life: u64,
        store: u64,
        copies: BTreeMap<usize, Said>,
    },
}

impl RestoredEvent {
    pub(super) fn node(&self) -> Option<usize> {
        match self {
            RestoredEvent::Question { node, .. } => Some(*node),
            _ => None,
        }
    }
}

impl Restored {
    pub(super) fn new(seed: u64, nodes: usize) -> Self {
        Self {
            random: Random::from_seed(seed ^ 0x0057_04ED),
            kept: Vec::new(),
            life: 0,
            hold: None,
            arrives: vec![0; nodes],
            times: 0,
            older: 0,
        }
    }
}

impl World {
    /// One whose masters lose what they knew last, again and again.
    pub(super) fn with_restored_store(seed: u64) -> Self {
        let scenario = match seed.is_multiple_of(2) {
            true => seed % SCENARIOS,
            false => REBUILD,
        };
        let restored = true;
        let kinds = Kinds {
            restored,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(scenario), kinds)
    }

    pub(super) fn begin_to_restore(&mut self) {
        if let Some(restored) = &mut self.restored {
            let delay = restored.random.below(3 * SECOND);
            self.at(delay, Event::Restored(RestoredEvent::Keep));
        }
    }

    /// How often the store has been replaced.
    pub(super) fn store_life(&self) -> u64 {
        self.restored.as_ref().map_or(0, |restored| restored.life)
    }

    /// The masters commit nothing, and send no configurations.
    pub(super) fn is_held(&self) -> bool {
        self.restored
            .as_ref()
            .is_some_and(|restored| restored.hold.is_some())
    }

    /// How long something takes to a node: what its engine tells it arrives in the order in which it was sent.
    pub(super) fn in_order(&mut self, to: usize, event: &Event, delay: u64) -> u64 {
        let by_engine = matches!(
            event,
            Event::Config { .. } | Event::Restored(RestoredEvent::Question { .. })
        );
        let Some(restored) = self.restored.as_mut().filter(|_| by_engine) else {
            return delay;
        };
        let at = restored.arrives[to].max(self.now + delay);
        restored.arrives[to] = at;
        at - self.now
    }

    /// A process begins in the place of one that stood still: what its engine had told that one ended with it. (Told to the new one it would
    /// come after the next question, and be of a store that is no more.)
    pub(super) fn drops_what_was_told(&mut self, node: usize) {
        let until = self.nodes[node].paused_until;
        if self.restored.is_none() || until <= self.now {
            return;
        }
        let waits = |event: &Event| {
            let by_engine = matches!(
                event,
                Event::Config { .. } | Event::Restored(RestoredEvent::Question { .. })
            );
            by_engine && event.node() == Some(node)
        };
        self.drop_events(until, waits);
    }

    /// A node was told of a later configuration by a store that is no more: until the chunk has a later one still, or that life ends, it
    /// keeps a copy for which there is no place.
    pub(super) fn was_told_in_vain(&self, node: usize, chunk: usize) -> bool {
        let core = self.nodes[node].core.as_ref();
        let member = core.and_then(|core| core.member(chunk_id(chunk)));
        let told = member.and_then(|member| member.committed());
        self.restored.is_some() && told.is_some_and(|told| told.epoch > self.store[chunk].epoch)
    }

    /// A life that a node says it has proves the end of those before.
    pub(super) fn registers(&mut self, node: usize, life: u64) {
        if self.restored.is_some() {
            self.ended.extend((1..life).map(|ended| (node, ended)));
        }
    }

    pub(super) fn restored_event(&mut self, event: RestoredEvent) {
        match event {
            RestoredEvent::Keep => self.keep_store(),
            RestoredEvent::Restore { kept } => self.restore_store(kept),
            RestoredEvent::Question { node, store } => self.say_how_copies_are(node, store),
            RestoredEvent::Answer {
                node,
                life,
                store,
                copies,
            } => {
                if let Some(restored) = self.restored.as_mut().filter(|restored| restored.life == store)
                    && let Some(hold) = &mut restored.hold
                {
                    hold.answers.insert(node, (life, copies));
                    self.look_at_answers();
                }
            }
        }
    }

    fn keep_store(&mut self) {
        let kept = Kept {
            at: self.now,
            chunks: self.store.clone(),
            places: self.places.of_chunk.clone(),
            draining: self.places.draining.clone(),
            lives: self.heard.iter().map(|(life, _)| *life).collect(),
            ended: self.ended.clone(),
        };
        let now = self.now;
        let Some(restored) = &mut self.restored else {
            return;
        };
        let (next, after) = (
            restored.random.between(500 * MS, 4 * SECOND),
            restored.random.between(500 * MS, 20 * SECOND),
        );
        restored.kept.push(Some(kept));
        let kept = restored.kept.len() - 1;
        if now + after < LAST {
            self.at(after, Event::Restored(RestoredEvent::Restore { kept }));
        }
        if now + next < FAULTS_END {
            self.at(next, Event::Restored(RestoredEvent::Keep));
        }
    }

    /// A configuration was committed: sometimes just that is what the store forgets, when few have heard of it.
    pub(super) fn restore_soon(&mut self) {
        let now = self.now;
        let Some(restored) = self.restored.as_mut().filter(|_| now < LAST) else {
            return;
        };
        let is_old = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| kept.at + 500 * MS < now);
        let old: Vec<usize> = (0..restored.kept.len())
            .filter(|&kept| is_old(&restored.kept[kept]))
            .collect();
        if old.is_empty() || !restored.random.chance(1, 4) {
            return;
        }
        let kept = old[restored.random.below(old.len() as u64) as usize];
        let delay = restored.random.below(80 * MS);
        self.at(delay, Event::Restored(RestoredEvent::Restore { kept }));
    }

    fn restore_store(&mut self, kept: usize) {
        let chunks = self.shape.chunks;
        let Some(restored) = &mut self.restored else {
            return;
        };
        let Some(kept) = restored.kept[kept].take() else {
            return;
        };
        restored.life += 1;
        restored.times += 1;
        restored.hold = Some(Hold {
            answers: BTreeMap::new(),
            left: (0..chunks).collect(),
        });
        self.die_meanwhile();
        self.store = kept.chunks;
        self.places.of_chunk = kept.places;
        self.places.draining = kept.draining;
        self.places.moving.clear();
        if self.healing {
            self.places.draining.fill(false);
        }
        self.heard = kept.lives.into_iter().map(|life| (life, 0)).collect();
        self.ended = kept.ended;
        if self.planted.is(Bug::RestoredLowersEpoch) {
            self.only_lift();
        }
    }

    /// Often those that know most are away just then, and another node begins anew: what it was told in vain is forgotten.
    fn die_meanwhile(&mut self) {
        let (nodes, chunks) = (self.shape.nodes as u64, self.shape.chunks as u64);
        let Some(random) = self.restored.as_mut().map(|restored| &mut restored.random) else {
            return;
        };
        let (chunk, anew) = (
            random.below(2 * chunks) as usize,
            random.below(2 * nodes) as usize,
        );
        let (power, down) = (random.chance(1, 2), random.between(SECOND, 6 * SECOND));
        if self.healing {
            return;
        }
        if chunk < self.shape.chunks {
            for node in self.members_of(chunk) {
                self.crash_for(node, power, down);
            }
        }
        if anew < self.shape.nodes {
            self.crash_for(anew, false, 50 * MS);
        }
    }

    /// A planted bug: the record as it is, in an epoch above all that is sealed.
    fn only_lift(&mut self) {
        for chunk in 0..self.shape.chunks {
            let records = self
                .nodes
                .iter()
                .filter_map(|node| Some(node.disks.get(&chunk)?.record.sealed));
            let highest = records.max().unwrap_or_default().max(self.store[chunk].epoch);
            self.store[chunk].epoch = Epoch(highest.0 + GAP);
        }
        self.end_hold();
    }

    /// Asks a node how its copies are, by its heartbeat's answer.
    pub(super) fn ask_how_copies_are(&mut self, node: usize) {
        let (masters, store) = (self.shape.nodes, self.store_life());
        let question = RestoredEvent::Question { node, store };
        self.send(masters, node, Event::Restored(question));
    }

    fn say_how_copies_are(&mut self, node: usize, store: u64) {
        let sim = &self.nodes[node];
        let Some(core) = &sim.core else {
            return;
        };
        let said = |chunk: usize| {
            let member = core.member(chunk_id(chunk))?;
            let said = Said {
                sealed: member.record().sealed,
                config: member.record().config.clone(),
                told: member.committed().cloned(),
            };
            Some((chunk, said))
        };
        let answer = RestoredEvent::Answer {
            node,
            life: sim.life,
            store,
            copies: (0..self.shape.chunks).filter_map(said).collect(),
        };
        self.send(node, self.shape.nodes, Event::Restored(answer));
    }

    /// Commits what is certain, and ends the hold when all is.
    pub(super) fn look_at_answers(&mut self) {
        let hold = self.restored.as_ref().and_then(|restored| restored.hold.as_ref());
        let left: Vec<usize> = hold
            .map(|hold| hold.left.iter().copied().collect())
            .unwrap_or_default();
        for chunk in left {
            let Some((config, places)) = self.found(chunk) else {
                continue;
            };
            let record = std::mem::replace(&mut self.store[chunk], config);
            let config = &self.store[chunk];
            let is_other = (record.write_node, &record.members) != (config.write_node, &config.members);
            self.places.of_chunk[chunk] = places;
            if let Some(restored) = &mut self.restored {
                restored.older += u64::from(is_other);
                if let Some(hold) = &mut restored.hold {
                    hold.left.remove(&chunk);
                }
            }
        }
        let hold = self.restored.as_ref().and_then(|restored| restored.hold.as_ref());
        if hold.is_some_and(|hold| hold.left.is_empty()) {
            self.end_hold();
        }
    }

    fn end_hold(&mut self) {
        if let Some(restored) = &mut self.restored {
            restored.hold = None;
        }
        for node in 0..self.shape.nodes {
            self.tell(node);
        }
    }

    /// The configuration of a chunk that goes on above all that was ever in force, and its places; none as long as that is not certain.
    fn found(&self, chunk: usize) -> Option<(ChunkConfig, Vec<usize>)> {
        let hold = self.restored.as_ref()?.hold.as_ref()?;
        let record = &self.store[chunk];
        let nodes = 0..self.shape.nodes;
        let has_answered = |node: &usize| {
            let answer = hold.answers.get(node);
            answer.is_some_and(|(life, _)| *life == self.heard[*node].0)
        };
        let copy = |node: &usize| hold.answers.get(node)?.1.get(&chunk);
        let took_part = |node: &usize| copy(node).is_some_and(|said| said.config.is_some());
        let copies: Vec<&Said> = nodes.clone().filter_map(|node| copy(&node)).collect();
        let newest = self.newest_named(&copies).unwrap_or_else(|| record.clone());
        let sealed = copies.iter().map(|said| said.sealed).max().unwrap_or_default();
        let everyone = nodes.clone().all(|node| has_answered(&node));
        if !everyone {
            let mut members = nodes_of(&newest).into_iter();
            let few = self.shape.minimum == 1 && !self.planted.is(Bug::RestoredAsksMembersOnly);
            if few || !members.all(|node| has_answered(&node) && took_part(&node)) {
                return None;
            }
        }
        if sealed > newest.epoch {
            return None;
        }
        let (mut config, mut places) = match record.epoch > newest.epoch {
            true => (record.clone(), self.places.of_chunk[chunk].clone()),
            false => (newest.clone(), nodes_of(&newest)),
        };
        // A copy that is gone, or was made anew, is in sync no more. If none took part in anything, nothing was written yet.
        let is_new = !nodes.clone().any(|node| took_part(&node));
        let has_it = |node: usize| took_part(&node) || is_new && copy(&node).is_some();
        config.members.retain(|member| has_it(node_index(member.node)));
        if config.members.is_empty() && everyone && self.healing {
            // A configuration was committed of which no member had heard when it died, with a copy that had not taken part in anything. Nodes do
            // not tell that from a disk that was replaced: masters refuse it, and an operator goes by what the disks say.
            let epoch = config.epoch;
            config = ChunkConfig { epoch, ..newest };
            config.members.retain(|member| has_it(node_index(member.node)));
        }
        if config.index_of(config.write_node).is_none() {
            config.write_node = config.members.first()?.node;
        }
        places.extend(nodes.filter(|node| copy(node).is_some()));
        places.sort_unstable();
        places.dedup();
        config.epoch = Epoch(config.epoch.max(sealed).0 + GAP);
        Some((config, places))
    }

    /// The highest configuration that copies took part in, or their nodes were told of.
    fn newest_named(&self, copies: &[&Said]) -> Option<ChunkConfig> {
        let hears = !self.planted.is(Bug::RestoredHearsOnlySealed);
        let told = copies
            .iter()
            .filter_map(|said| said.told.as_ref().filter(|_| hears));
        let sealed = copies.iter().filter_map(|said| said.config.as_ref());
        sealed.chain(told).max_by_key(|config| config.epoch).cloned()
    }

    /// No store is to be restored any more, or is held.
    pub(super) fn store_rests(&self) -> bool {
        self.restored.is_none() || !self.is_held() && self.now > LAST
    }
}

fn nodes_of(config: &ChunkConfig) -> Vec<usize> {
    config
        .members
        .iter()
        .map(|member| node_index(member.node))
        .collect()
}
