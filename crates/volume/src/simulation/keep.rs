//! Copies of complete snapshots follow those of their chunks (`docs/decisions/0090`): nodes make those they lack from others', and let
//! those go that have no place with them any more. Disks are never lost here, so no copy may be: when one goes, as many are
//! left as there should be, and at rest they are where the chunks are.

use std::collections::BTreeMap;

use foundation::KeptCopies;

use super::layers::Layer;
use super::snapshots::{Snapshots, Truth};
use super::world::{Event, MS, World, chunk_id, node_id};
use crate::identity::{Incarnation, SnapshotId};
use crate::keep::{Keeper, SnapshotCopy};
use crate::planted::Bug;

/// A chunk's part in a snapshot.
pub(super) type Part = (usize, SnapshotId);

/// What a node has of snapshots beside what its copies have, and knows of them.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Of chunks whose copy went, and those that were made from others'. On disks: a crash leaves them.
    pub(super) layers: BTreeMap<Part, Layer>,
    pub(super) keeper: Keeper,
    /// The masters' list that the keeper has learnt, where there are masters: 0 before it has.
    pub(super) list: u64,
    /// By that list, what is here beside chunks that are in sync: told with heartbeats.
    pub(super) counted: Option<KeptCopies>,
}

/// What nodes say to each other and to themselves.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum KeepEvent {
    Step,
    /// Give me your copy.
    Fetch {
        from: usize,
        life: u64,
        part: Part,
    },
    Fetched {
        part: Part,
        truth: Truth,
    },
    /// It is on the disk.
    Made {
        part: Part,
        truth: Truth,
    },
    /// May I count your copy?
    Ask {
        from: usize,
        life: u64,
        part: Part,
        attempt: u64,
    },
    Counts {
        by: usize,
        part: Part,
        attempt: u64,
    },
    /// Enough have answered by now, or it stays.
    Decide {
        part: Part,
        attempt: u64,
    },
}

impl World {
    fn keeps(&mut self) -> &mut Snapshots {
        self.snapshots
            .as_mut()
            .expect("only worlds with snapshots keep them")
    }

    /// What a node's disks have of a chunk's part in a snapshot.
    pub(super) fn layer(&self, node: usize, (chunk, snapshot): Part) -> Option<&Layer> {
        let sim = &self.nodes[node];
        let of_copy = sim.disks.get(&chunk).and_then(|disk| disk.layers.get(&snapshot));
        of_copy.or_else(|| sim.kept.layers.get(&(chunk, snapshot)))
    }

    /// A copy is deleted; its snapshots are not.
    pub(super) fn keep_layers(&mut self, node: usize, chunk: usize) {
        let sim = &mut self.nodes[node];
        if let Some(disk) = sim.disks.get_mut(&chunk) {
            let layers = std::mem::take(&mut disk.layers).into_iter();
            sim.kept
                .layers
                .extend(layers.map(|(snapshot, layer)| ((chunk, snapshot), layer)));
        }
    }

    /// A life of a node begins.
    pub(super) fn begin_to_keep(&mut self, node: usize) {
        if !self.shape.keeps {
            return;
        }
        let planted = self.planted;
        let sim = &mut self.nodes[node];
        sim.kept.keeper = Keeper::default();
        sim.kept.keeper.plant(planted);
        (sim.kept.list, sim.kept.counted) = (0, None);
        let life = sim.life;
        let event = KeepEvent::Step;
        self.at(MS, Event::Keep { node, life, event });
    }

    fn say(&mut self, from: usize, (node, life): (usize, u64), event: KeepEvent) {
        if self.blocked[from][node] > self.now {
            return;
        }
        if let Some(delay) = self.keeps().delay() {
            self.at(delay, Event::Keep { node, life, event });
        }
    }

    pub(super) fn keep(&mut self, node: usize, life: u64, event: KeepEvent) {
        match event {
            KeepEvent::Step => self.keep_step(node, life),
            KeepEvent::Fetch { from, life, part } => {
                // What does not fit its sum here, another node may have right.
                let gives =
                    |layer: &&Layer| layer.wrong().is_empty() || self.planted.is(Bug::SnapshotSumsIgnored);
                if let Some(layer) = self.layer(node, part).filter(gives) {
                    let truth = (layer.sequence, layer.values());
                    self.say(node, (from, life), KeepEvent::Fetched { part, truth });
                }
            }
            KeepEvent::Fetched { part, truth } => {
                if self.lacks(node, part) {
                    let delay = self.keeps().random.between(MS, 80 * MS);
                    let event = KeepEvent::Made { part, truth };
                    self.at(delay, Event::Keep { node, life, event });
                }
            }
            KeepEvent::Made { part, truth } => self.has_made(node, part, truth),
            KeepEvent::Ask {
                from,
                life,
                part,
                attempt,
            } => {
                let copy = (chunk_id(part.0), part.1);
                if self.layer(node, part).is_some() && self.nodes[node].kept.keeper.counts(copy) {
                    let by = node;
                    self.say(node, (from, life), KeepEvent::Counts { by, part, attempt });
                }
            }
            KeepEvent::Counts { by, part, attempt } => {
                let copy = (chunk_id(part.0), part.1);
                self.nodes[node].kept.keeper.heard(copy, attempt, node_id(by));
            }
            KeepEvent::Decide { part, attempt } => self.decide_to_go(node, part, attempt),
        }
    }

    fn is_in_sync(&self, node: usize, chunk: usize) -> bool {
        let sim = &self.nodes[node];
        let member = sim.core.as_ref().and_then(|core| core.member(chunk_id(chunk)));
        member.is_some_and(|m| m.is_member(node_id(node), Incarnation(sim.life)))
    }

    /// Whether a node is to have a copy that it has not.
    fn lacks(&self, node: usize, part: Part) -> bool {
        let sim = &self.nodes[node];
        self.is_in_sync(node, part.0)
            && sim.kept.keeper.is_complete((chunk_id(part.0), part.1))
            && self.layer(node, part).is_none()
    }

    fn keep_step(&mut self, node: usize, life: u64) {
        let event = KeepEvent::Step;
        self.at(60 * MS, Event::Keep { node, life, event });
        let (masters, chunks) = (self.shape.nodes, self.shape.chunks);
        // Where there are masters it comes with what they answer.
        if self.whole.is_none() && self.blocked[masters][node] <= self.now {
            let volume = chunk_id(0).volume;
            let complete = self.keeps().complete.iter();
            // Of as many chunks as the volume had then.
            let complete: Vec<_> = complete
                .map(|(snapshot, truths)| ((volume, *snapshot), truths.len() as u32))
                .collect();
            self.nodes[node].kept.keeper.learn(complete);
        }
        let here =
            |chunk: &usize| self.nodes[node].disks.contains_key(chunk) && self.is_in_sync(node, *chunk);
        let part = |(chunk, snapshot): SnapshotCopy| (chunk.index.0 as usize, snapshot);
        let keeper = &self.nodes[node].kept.keeper;
        let in_sync = (0..chunks).filter(here).map(chunk_id);
        let (lacking, counted) = keeper.look(in_sync, |copy| self.layer(node, part(copy)).is_some());
        let lacking: Vec<Part> = lacking.into_iter().map(part).collect();
        let kept = &mut self.nodes[node].kept;
        kept.counted = (kept.list > 0).then_some(counted);
        let nodes = self.shape.nodes;
        if !lacking.is_empty() {
            let random = &mut self.keeps().random;
            let part = lacking[random.below(lacking.len() as u64) as usize];
            let to = random.below(nodes as u64) as usize;
            let from = node;
            self.say(
                from,
                (to, self.nodes[to].life),
                KeepEvent::Fetch { from, life, part },
            );
        }
        let sim = &self.nodes[node];
        let strays = sim
            .kept
            .layers
            .keys()
            .filter(|part| !sim.disks.contains_key(&part.0));
        let strays: Vec<Part> = strays.copied().collect();
        if strays.is_empty() {
            return;
        }
        let part = strays[self.keeps().random.below(strays.len() as u64) as usize];
        let copy = (chunk_id(part.0), part.1);
        let Some(attempt) = self.nodes[node].kept.keeper.begin_to_leave(copy) else {
            return;
        };
        // Nobody knows where one is that was removed.
        for to in 0..nodes {
            if to == node || self.is_removed(to) {
                continue;
            }
            let from = node;
            let ask = KeepEvent::Ask {
                from,
                life,
                part,
                attempt,
            };
            self.say(from, (to, self.nodes[to].life), ask);
        }
        let delay = self.keeps().random.between(20 * MS, 400 * MS);
        let event = KeepEvent::Decide { part, attempt };
        self.at(delay, Event::Keep { node, life, event });
    }

    fn has_made(&mut self, node: usize, part: Part, (sequence, values): Truth) {
        if self.layer(node, part).is_some() {
            return;
        }
        let (chunk, snapshot) = part;
        let Some(truths) = self.keeps().complete.get(&snapshot) else {
            // It was deleted meanwhile.
            return;
        };
        if truths[chunk] != Some((sequence, values.clone())) {
            self.fail(format!(
                "node {node} has made another snapshot {snapshot:?} of chunk {chunk}: {values:?}"
            ));
        }
        let older = self.older_alone(node, part);
        let layer = Layer::made(chunk_id(chunk), sequence, &values, older);
        self.nodes[node].kept.layers.insert(part, layer);
        self.keeps().made += 1;
    }

    /// The newest older snapshot of the chunk on a node, if nothing else shows what it has: one that is made begins as a clone of it.
    fn older_alone(&self, node: usize, (chunk, snapshot): Part) -> Option<&Layer> {
        let sim = &self.nodes[node];
        let older = SnapshotId(1)..snapshot;
        let of_copy = sim.disks.get(&chunk).map(|disk| disk.layers.range(older.clone()));
        let of_copy = of_copy
            .into_iter()
            .flatten()
            .map(|(snapshot, layer)| (*snapshot, layer));
        let kept = sim.kept.layers.range((chunk, older.start)..(chunk, older.end));
        let all = of_copy.chain(kept.map(|((_, snapshot), layer)| (*snapshot, layer)));
        let (_, newest) = all.max_by_key(|(snapshot, _)| *snapshot)?;
        newest.is_alone().then_some(newest)
    }

    fn decide_to_go(&mut self, node: usize, part: Part, attempt: u64) {
        let (chunk, snapshot) = part;
        let copy = (chunk_id(chunk), snapshot);
        let copies = usize::from(self.shape.copies);
        let sim = &mut self.nodes[node];
        if sim.disks.contains_key(&chunk) || !sim.kept.keeper.may_go(copy, attempt, copies) {
            return sim.kept.keeper.stays(copy);
        }
        sim.kept.layers.remove(&part);
        sim.kept.keeper.has_gone(copy);
        self.keeps().gone += 1;
        let left = self.holders(part);
        if left < copies && self.keeps().complete.contains_key(&snapshot) {
            self.fail(format!(
                "node {node} let its copy of snapshot {snapshot:?} of chunk {chunk} go: {left} of {copies} copies are left"
            ));
        }
    }

    /// How many nodes of the cluster have a copy.
    pub(super) fn holders(&self, part: Part) -> usize {
        let nodes = (0..self.shape.nodes).filter(|&node| !self.is_removed(node));
        nodes.filter(|&node| self.layer(node, part).is_some()).count()
    }

    /// Every complete snapshot is where its chunks are, and nowhere else.
    pub(super) fn snapshots_are_in_place(&self) -> bool {
        let Some(snapshots) = self.snapshots.as_ref().filter(|_| self.shape.keeps) else {
            return true;
        };
        let in_place = |snapshot: &SnapshotId, chunk: usize| {
            let members = self.members_of(chunk);
            let nodes = (0..self.shape.nodes).filter(|&node| !self.is_removed(node));
            let right =
                |node: usize| self.layer(node, (chunk, *snapshot)).is_some() == members.contains(&node);
            nodes.into_iter().all(right)
        };
        let mut all = snapshots.complete.iter();
        all.all(|(snapshot, truths)| (0..truths.len()).all(|chunk| in_place(snapshot, chunk)))
    }
}
