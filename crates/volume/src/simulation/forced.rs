//! Copies that are served by force (`docs/decisions/0105`): a copy is left out and the others go on; then all nodes that have one in sync
//! die, some of their disks with them, and an operator has the copy served that is left. What only the others had is lost. From then on
//! everything holds as ever: the blocks are what that copy held, whoever comes back with more is sent everything.
//!
//! An operator sees to it that nobody else goes on: no other life takes part in the chunk at that moment. (One that is cut off from
//! the masters and not from clients could still answer reads; `redhare volume force-serve` says so.)

use std::collections::BTreeMap;

use foundation::{Epoch, Random};

use super::injected::FAULTS_END;
use super::kinds::Kinds;
use super::world::{Event, MS, SCENARIOS, SECOND, World, chunk_id, node_id, node_index};
use crate::configuration::{ChunkConfig, Membership};
use crate::identity::Incarnation;
use crate::member::Phase;

/// How often an operator looks whether a chunk is to be forced.
const LOOK: u64 = 400 * MS;

#[derive(Debug)]
pub(super) struct Forced {
    random: Random,
    /// The chunk that has been made to lose its copies in sync, and nodes that are down until one is forced.
    lost: Option<(usize, Vec<usize>)>,
    /// The forced epoch of each chunk, until it has a write node that has sealed.
    due: BTreeMap<usize, Epoch>,
    /// For each chunk and client: commands before this attempt were sent before a copy was forced, and are late by more than an
    /// operator takes.
    too_late: BTreeMap<(usize, usize), u64>,
    /// Copies that were served by force, and blocks of them that lacked something acknowledged.
    pub(super) times: u64,
    pub(super) stale_blocks: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum ForcedEvent {
    /// A node dies, so that its copy is left out.
    LeaveOut,
    /// All those that have gone on without it die.
    Lose { chunk: usize, stale: usize },
    /// An operator looks at a chunk.
    Look { chunk: usize, stale: usize },
}

impl Forced {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed ^ 0x00F0_4CED),
            lost: None,
            due: BTreeMap::new(),
            too_late: BTreeMap::new(),
            times: 0,
            stale_blocks: 0,
        }
    }
}

impl World {
    /// One in which copies are served by force.
    pub(super) fn with_forced_copies(seed: u64) -> Self {
        let forced = true;
        let kinds = Kinds {
            forced,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(seed % SCENARIOS), kinds)
    }

    pub(super) fn begin_to_force(&mut self) {
        if let Some(forced) = &mut self.forced {
            let delay = forced.random.between(SECOND, 3 * SECOND);
            self.at(delay, Event::Forced(ForcedEvent::LeaveOut));
        }
    }

    pub(super) fn forced_event(&mut self, event: &ForcedEvent) {
        let Some(mut forced) = self.forced.take() else {
            return;
        };
        match *event {
            ForcedEvent::LeaveOut => self.leave_one_out(&mut forced),
            ForcedEvent::Lose { chunk, stale } => self.lose_others(&mut forced, chunk, stale),
            ForcedEvent::Look { chunk, stale } => self.look_at_lost(&mut forced, chunk, stale),
        }
        self.forced = Some(forced);
    }

    fn leave_one_out(&mut self, forced: &mut Forced) {
        let random = &mut forced.random;
        let chunk = random.below(self.shape.chunks as u64) as usize;
        let members = self.members_of(chunk);
        let stale = members[random.below(members.len() as u64) as usize];
        let (power, away) = (random.chance(1, 2), random.between(2 * SECOND, 3500 * MS));
        let next = random.between(1500 * MS, 3 * SECOND);
        if forced.lost.is_none() && members.len() > usize::from(self.shape.minimum) {
            self.crash_for(stale, power, away);
            self.at(next, Event::Forced(ForcedEvent::Lose { chunk, stale }));
        }
        if self.now < FAULTS_END {
            let next = random.between(4 * SECOND, 8 * SECOND);
            self.at(next, Event::Forced(ForcedEvent::LeaveOut));
        }
    }

    /// Whether this node has a copy that took part in something.
    fn took_part(&self, node: usize, chunk: usize) -> bool {
        let disk = self.nodes[node].disks.get(&chunk);
        disk.is_some_and(|disk| disk.record.config.is_some())
    }

    fn lose_others(&mut self, forced: &mut Forced, chunk: usize, stale: usize) {
        let mut members = self.members_of(chunk);
        let places = &self.places.of_chunk[chunk];
        let is_stale = !members.contains(&stale) && places.contains(&stale) && self.took_part(stale, chunk);
        if !is_stale || forced.lost.is_some() || self.healing {
            return;
        }
        let random = &mut forced.random;
        random.shuffle(&mut members);
        // At least one is not seen again before a copy is forced, or faults end.
        let destroyed = random.below(members.len() as u64) as usize;
        for (at, &node) in members.iter().enumerate() {
            let power = random.chance(1, 2);
            let down = match at < destroyed {
                true => random.between(100 * MS, 2 * SECOND),
                false => 100 * SECOND,
            };
            self.crash_for(node, power, down);
            if at < destroyed {
                self.nodes[node].disks.remove(&chunk);
            }
        }
        forced.lost = Some((chunk, members.split_off(destroyed)));
        let delay = random.between(500 * MS, 2 * SECOND);
        self.at(delay, Event::Forced(ForcedEvent::Look { chunk, stale }));
    }

    /// Nobody but this node takes part in the chunk in its present life, so nobody else serves it.
    fn is_alone(&self, chunk: usize, node: usize) -> bool {
        let takes_part = |other: usize| {
            let core = self.nodes[other].core.as_ref();
            core.and_then(|core| core.member(chunk_id(chunk)))
                .is_some_and(|member| member.config().is_some())
        };
        (0..self.shape.nodes).all(|other| other == node || !takes_part(other))
    }

    fn serves(&self, chunk: usize) -> bool {
        let write_node = node_index(self.store[chunk].write_node);
        let core = self.nodes[write_node].core.as_ref();
        let member = core.and_then(|core| core.member(chunk_id(chunk)));
        member.is_some_and(|member| member.phase() == Some(Phase::Serving))
    }

    fn look_at_lost(&mut self, forced: &mut Forced, chunk: usize, stale: usize) {
        if self.serves(chunk) {
            return self.come_back(forced);
        }
        let is_here = |node: usize| {
            let (life, at) = self.heard[node];
            let lives = self.alive(node, life) && self.now < at + SECOND;
            lives && self.places.of_chunk[chunk].contains(&node) && self.took_part(node, chunk)
        };
        let mut others = (0..self.shape.nodes).filter(|node| is_here(*node));
        let chosen = if is_here(stale) {
            Some(stale)
        } else {
            others.next()
        };
        let Some(node) = chosen.filter(|node| self.is_alone(chunk, *node)) else {
            return self.at(LOOK, Event::Forced(ForcedEvent::Look { chunk, stale }));
        };
        self.serve_by_force(forced, chunk, node);
        // Disks that were destroyed while their nodes were down are missed now.
        let down = forced.lost.iter().flat_map(|(_, down)| down.clone());
        for other in down.collect::<Vec<_>>() {
            let is_down = self.nodes[other].core.is_none();
            if is_down && other != node && forced.random.chance(1, 3) {
                self.nodes[other].disks.remove(&chunk);
            }
        }
        self.come_back(forced);
    }

    /// The nodes that were down come back, sooner or later.
    fn come_back(&mut self, forced: &mut Forced) {
        for node in forced.lost.take().into_iter().flat_map(|(_, down)| down) {
            let delay = forced.random.between(100 * MS, 6 * SECOND);
            self.at(delay, Event::Restart { node });
        }
    }

    /// Commits the configuration with this copy alone, in an epoch far above all that is known.
    fn serve_by_force(&mut self, forced: &mut Forced, chunk: usize, node: usize) {
        let living = self.nodes.iter().filter(|node| node.core.is_some());
        let sealed = living.filter_map(|node| Some(node.disks.get(&chunk)?.record.sealed));
        let highest = sealed.max().unwrap_or_default().max(self.store[chunk].epoch);
        let epoch = Epoch(highest.0 + Epoch::JUMP);
        let alone = Membership {
            node: node_id(node),
            incarnation: Incarnation(self.nodes[node].life),
        };
        self.store[chunk] = ChunkConfig {
            epoch,
            write_node: alone.node,
            members: vec![alone],
        };
        self.loss_due[chunk] = None;
        for (client, state) in self.clients.iter().enumerate() {
            let first = state.attempt + u64::from(state.pending.is_none());
            forced.too_late.insert((chunk, client), first);
        }
        forced.due.insert(chunk, epoch);
        forced.times += 1;
        for node in 0..self.shape.nodes {
            self.tell(node);
        }
    }

    /// Whether a command was sent before a copy of its chunk was forced, and its client has gone on since. The copy does not know the
    /// sessions of those that went on without it, so it would take what is so late (`docs/decisions/0105`, left open).
    pub(super) fn is_too_late(&self, client: usize, chunk: usize, attempt: u64) -> bool {
        let first = self
            .forced
            .as_ref()
            .and_then(|forced| forced.too_late.get(&(chunk, client)));
        first.is_some_and(|first| attempt < *first)
    }

    /// A write node has sealed: if that is the first since a copy was forced, the blocks are what this one has.
    pub(super) fn begin_anew(&mut self, node: usize, chunk: usize, epoch: Epoch) {
        let Some(forced) = &mut self.forced else {
            return;
        };
        if forced.due.get(&chunk).is_none_or(|due| epoch < *due) {
            return;
        }
        forced.due.remove(&chunk);
        let Some(disk) = self.nodes[node].disks.get(&chunk) else {
            return;
        };
        for (monitor, held) in self.monitors[chunk].iter_mut().zip(disk.held()) {
            let newest = *held.last().expect("a block holds a value");
            forced.stale_blocks += u64::from(!monitor.may_be(newest));
            monitor.begin_anew(newest, held);
        }
    }

    /// No operator has anything to look at.
    pub(super) fn nothing_is_lost(&self) -> bool {
        let rests = |forced: &Forced| forced.lost.is_none() && forced.due.is_empty();
        self.forced.as_ref().is_none_or(|forced| rests(forced))
    }
}
