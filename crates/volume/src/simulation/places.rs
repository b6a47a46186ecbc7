//! Where the masters of the simulation want the copies, and what moves them (`docs/decisions/0060`): a copy that is out
//! for too long gets a second one elsewhere, a drained node's copies too; as soon as there are more in sync than there
//! should be, or places that nobody needs, they are taken away, and the nodes delete what they have there.

use foundation::{Epoch, Instant, Random};

use super::injected::Injected;
use super::world::{Event, MS, REBUILD, SECOND, World, chunk_id, node_id, node_index};
use crate::configuration::{ChunkConfig, Membership};
use crate::planted::Bug;

/// What the masters know of places.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) of_chunk: Vec<Vec<usize>>,
    pub(super) draining: Vec<bool>,
    /// The node from which each chunk's copy is moved without need, to even out the nodes; by chunk.
    pub(super) moving: std::collections::BTreeMap<usize, usize>,
    /// A copy that is out for so long is rebuilt elsewhere.
    rebuild_after: u64,
    /// Copies made anew so far, and deleted ones.
    pub(super) made: u64,
    pub(super) deleted: u64,
    /// Moves without need that were completed, and writes handed from one living member to another.
    pub(super) moved: u64,
    pub(super) handed: u64,
    /// In some seeds, copies move without need and writes are handed over; drawn apart, so that the others stay as they are.
    moves: Option<Random>,
}

impl Places {
    pub(super) fn new(nodes: usize, seed: u64, rebuild_after: u64) -> Self {
        Self {
            of_chunk: Vec::new(),
            draining: vec![false; nodes],
            moving: std::collections::BTreeMap::new(),
            rebuild_after,
            made: 0,
            deleted: 0,
            moved: 0,
            handed: 0,
            moves: (seed % 3 == 2).then(|| Random::from_seed(seed)),
        }
    }
}

impl World {
    /// A node learns a configuration, and whether it shall have a copy.
    pub(super) fn told(&mut self, node: usize, chunk: usize, config: &ChunkConfig, placed: bool) {
        let has = self.nodes[node].disks.contains_key(&chunk);
        if self.nodes[node].core.is_none() || !placed && !has {
            return;
        }
        if !placed {
            self.delete_copy(node, chunk, config.epoch);
            return;
        }
        // Never in the place of a copy that counts as in sync: that one is lost, and a new one must not pass for it.
        if !has && config.index_of(node_id(node)).is_none() {
            self.make_copy(node, chunk);
        }
        if self.nodes[node].disks.contains_key(&chunk) {
            self.core(node, None, |core, now| {
                core.handle_configuration(now, chunk_id(chunk), config);
            });
        }
    }

    /// A node makes a copy that it has not.
    pub(super) fn make_copy(&mut self, node: usize, chunk: usize) {
        let late = self.shape.cloned && self.random.chance(1, 3);
        let disk = match late {
            true => self.first_disk(node, chunk),
            false => self.empty_disk(chunk),
        };
        let record = disk.record.clone();
        self.nodes[node].disks.insert(chunk, disk);
        self.places.made += 1;
        self.core(node, None, |core, now: Instant| {
            core.add_copy(now, record, true);
            core.watch(chunk_id(chunk), true);
        });
    }

    /// Whether it was deleted.
    pub(super) fn delete_copy(&mut self, node: usize, chunk: usize, epoch: Epoch) -> bool {
        let mut deleted = false;
        self.core(node, None, |core, now| {
            deleted = core.remove_copy(now, chunk_id(chunk), epoch);
        });
        if deleted {
            self.places.deleted += 1;
            self.keep_layers(node, chunk);
            self.nodes[node].disks.remove(&chunk);
        }
        deleted
    }

    fn is_heard(&self, node: usize) -> bool {
        self.now < self.heard[node].1 + 1200 * MS
    }

    /// Whether a copy that is not in sync is to be waited for: its node is here, or has not been away for long.
    fn may_come(&self, node: usize) -> bool {
        !self.places.draining[node] && self.now < self.heard[node].1 + self.places.rebuild_after
    }

    /// What is to be done about a chunk's places, if anything: one step, in an epoch of its own.
    pub(super) fn look_after_places(&mut self, chunk: usize) {
        let config = self.store[chunk].clone();
        let places = &self.places.of_chunk[chunk];
        let lives = |m: &Membership| {
            let node = node_index(m.node);
            self.heard[node].0 == m.incarnation.0 && self.is_heard(node)
        };
        // With a member that is gone nothing could be sealed.
        if !config.members.iter().all(lives) {
            return;
        }
        let copies = usize::from(self.shape.copies);
        let members = self.members_of(chunk);
        let out = || places.iter().copied().filter(|node| !members.contains(node));
        let drains = |node: &usize| self.places.draining[*node];
        let moves = |node: &usize| self.places.moving.get(&chunk) == Some(node);
        let mut next = config.clone();
        let mut next_places = places.clone();
        if members.len() > copies {
            let moved = || members.iter().copied().find(moves);
            let victim = members.iter().copied().find(drains).or_else(moved).or_else(|| {
                let mut others = members
                    .iter()
                    .copied()
                    .filter(|n| node_id(*n) != config.write_node);
                others.next_back()
            });
            let Some(victim) = victim else { return };
            next.members.retain(|m| m.node != node_id(victim));
            next_places.retain(|node| *node != victim);
            if next.write_node == node_id(victim) {
                next.write_node = next.members[0].node;
            }
        } else if members.len() == copies && !members.iter().any(|node| drains(node) || moves(node)) {
            if out().next().is_none() {
                return;
            }
            next_places.retain(|node| members.contains(node));
        } else {
            if self.planted.is(Bug::MovedBeforeInSync)
                && let Some(to) = out().find(|_| members.iter().any(moves))
            {
                next.members.push(self.registered(to));
                next.members.sort_unstable_by_key(|member| member.node);
                return self.decide(chunk, next, next_places);
            }
            let wrong = !self.healing && self.random.clone().chance(1, 100);
            if !wrong && out().any(|node| self.may_come(node)) {
                return;
            }
            // Nothing lacks: the new place does not become in sync, so the copy stays where it is.
            if members.len() == copies && !members.iter().any(drains) {
                self.places.moving.remove(&chunk);
                return;
            }
            let free = |node: &usize| !places.contains(node) && !drains(node) && self.is_heard(*node);
            let free: Vec<usize> = (0..self.shape.nodes).filter(free).collect();
            if free.is_empty() {
                return;
            }
            let at = self.random.below(free.len() as u64) as usize;
            next_places.push(free[at]);
        }
        self.decide(chunk, next, next_places);
    }

    /// Commits a configuration some time later, if no other is quicker.
    fn decide(&mut self, chunk: usize, mut config: ChunkConfig, places: Vec<usize>) {
        config.epoch = config.epoch.next();
        let delay = self.random.between(MS, 100 * MS);
        self.commit_after(delay, chunk, config, Some(places));
    }

    /// The life of a node that the masters know.
    fn registered(&self, node: usize) -> Membership {
        Membership {
            node: node_id(node),
            incarnation: crate::identity::Incarnation(self.heard[node].0),
        }
    }

    /// Every member lives and is heard, nothing is missing, and nothing moves.
    fn is_right(&self, chunk: usize) -> bool {
        let copies = usize::from(self.shape.copies);
        let config = &self.store[chunk];
        let lives = |m: &Membership| {
            let node = node_index(m.node);
            self.heard[node].0 == m.incarnation.0 && self.is_heard(node)
        };
        config.members.len() == copies
            && self.places.of_chunk[chunk].len() == copies
            && config.members.iter().all(lives)
    }

    /// Now and then the masters move a copy without need, from a node that has many to one that has few, as an operator may
    /// at any time; or they have another member order the writes, though the one that does lives.
    pub(super) fn move_without_need(&mut self, chunk: usize) {
        if self.shape.scenario != REBUILD || self.healing || !self.is_right(chunk) {
            return;
        }
        let Some(random) = &mut self.places.moves else {
            return;
        };
        let (moves, hands_over, draw) = (random.chance(1, 6), random.chance(1, 12), random.next_u64());
        let places = self.places.of_chunk[chunk].clone();
        let free =
            |node: &usize| !places.contains(node) && !self.places.draining[*node] && self.is_heard(*node);
        let free: Vec<usize> = (0..self.shape.nodes).filter(free).collect();
        let mut next = self.store[chunk].clone();
        if moves && !free.is_empty() {
            self.places
                .moving
                .insert(chunk, places[draw as usize % places.len()]);
            let to = free[(draw >> 32) as usize % free.len()];
            self.decide_at_once(chunk, next, [places, vec![to]].concat());
        } else if hands_over {
            next.write_node = next.members[draw as usize % next.members.len()].node;
            self.decide_at_once(chunk, next, places);
        }
    }

    /// Commits a configuration now.
    fn decide_at_once(&mut self, chunk: usize, mut config: ChunkConfig, places: Vec<usize>) {
        config.epoch = config.epoch.next();
        self.commit_after(0, chunk, config, Some(places));
    }

    /// A node dies, or is cut off, for about as long as it takes to be replaced; or one is drained. Meanwhile others may
    /// die, too.
    pub(super) fn stays_away(&mut self, node: usize) -> u64 {
        let nodes = self.shape.nodes as u64;
        let away = self.random.below(2 * self.places.rebuild_after) + SECOND;
        match self.random.below(4) {
            0 => {
                let drains = !self.places.draining[node];
                self.inject(Injected::Drain { node, drains });
            }
            1 => {
                let until = self.now + away;
                for peer in (0..=self.shape.nodes).filter(|&peer| peer != node) {
                    self.cut_both(node, peer, until);
                }
            }
            _ => {
                let power = self.random.chance(1, 2);
                self.inject(Injected::Crash {
                    node,
                    power,
                    down: away,
                });
            }
        }
        // About when the second copy is being filled.
        let delay = self.places.rebuild_after + self.random.below(5 * SECOND);
        if self.random.chance(1, 2) {
            let victim = match self.random.below(2) {
                0 => node_index(self.store[0].write_node),
                _ => self.random.below(nodes) as usize,
            };
            let (power, quick) = (self.random.chance(1, 2), true);
            self.at(
                delay,
                Event::Crash {
                    node: victim,
                    power,
                    quick,
                },
            );
        }
        self.random.between(SECOND, 6 * SECOND)
    }

    /// No node holds a copy that has no place there.
    pub(super) fn nothing_is_left_over(&self) -> bool {
        let placed = |node: usize, chunk: &usize| self.places.of_chunk[*chunk].contains(&node);
        let nodes = self.nodes.iter().enumerate();
        // What a node that was removed has concerns nobody any more.
        let right = |(node, sim): (usize, &super::shape::Node)| {
            let right = |chunk: &usize| placed(node, chunk) || self.was_told_in_vain(node, *chunk);
            sim.disks.keys().all(right) || self.is_removed(node)
        };
        nodes.into_iter().all(right)
            && self
                .places
                .of_chunk
                .iter()
                .all(|places| places.len() == usize::from(self.shape.copies))
    }
}
