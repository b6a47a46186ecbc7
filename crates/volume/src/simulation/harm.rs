//! Disks that change a block, lose a write or put it elsewhere. One copy of a block at a time: what the volume survives. A block of a
//! snapshot that never is written again may be wrong on several, as long as another has it right.

use super::disk::Harm;
use super::injected::Injected;
use super::keep::Part;
use super::layers::{Layer, Place};
use super::world::{CHUNK_BLOCKS, Event, HARM, MS, SECOND, World, node_index};
use crate::identity::SnapshotId;
use crate::message::Message;

impl World {
    /// Harms a block, or lets a node die whose copies are not needed to mend one. Returns how long to wait.
    pub(super) fn harm(&mut self, node: usize) -> u64 {
        if !self.all_in_sync() {
            return 500 * MS;
        }
        if self.losses.is_some() {
            return self.harm_all(node);
        }
        let chunk = self.random.below(self.shape.chunks as u64) as usize;
        // Where all clients meet.
        let block = self.random.below(3) as u32;
        let kind = self.random.below(10);
        let (damaged, armed) = self.damaged_copies(chunk);
        if kind > 0 && !armed && self.mends.is_some() && self.harm_snapshot(node, chunk, damaged.is_empty()) {
            return self.random.between(5 * MS, 100 * MS);
        }
        if kind == 0 {
            let needed = (0..self.shape.chunks).any(|chunk| {
                let (damaged, armed) = self.damaged_copies(chunk);
                // The only other copy, or the one that is about to do harm.
                let others = self.members_of(chunk).into_iter().filter(|other| *other != node);
                armed || !damaged.is_empty() && others.filter(|other| !damaged.contains(other)).count() == 0
            });
            if !needed {
                let power = self.random.chance(1, 2);
                self.crash(node, power, true);
            }
            return 2 * SECOND;
        }
        if !damaged.is_empty() || armed || self.shape.copies < 2 || !self.members_of(chunk).contains(&node) {
            return 5 * MS;
        }
        let place = self.nodes[node]
            .disks
            .get(&chunk)
            .and_then(|disk| disk.shown(block));
        if place.is_some_and(|place| !self.may_harm_place(node, chunk, block, &place)) {
            return 5 * MS;
        }
        let (harm, rots) = match kind {
            1..6 => (None, Some(block)),
            6..8 => (Some(Harm::Lose), None),
            _ => (Some(Harm::Misdirect(block)), None),
        };
        self.inject(Injected::Harm {
            node,
            chunk,
            harm,
            rots,
        });
        self.random.between(5 * MS, 100 * MS)
    }

    /// In half of the times, a block of what the node has of a snapshot is harmed, if others have it right.
    fn harm_snapshot(&mut self, node: usize, chunk: usize, live_are_right: bool) -> bool {
        let parts = self.parts_on(node).into_iter().filter(|part| part.0 == chunk);
        let parts: Vec<SnapshotId> = parts.map(|part| part.1).collect();
        let Some(mends) = &mut self.mends else {
            return false;
        };
        if parts.is_empty() || mends.random.chance(1, 2) {
            return false;
        }
        let snapshot = parts[mends.random.below(parts.len() as u64) as usize];
        let block = mends.random.below(CHUNK_BLOCKS.into()) as u32;
        let (struck, again) = (mends.random.chance(1, 3), mends.random.chance(1, 2));
        // The same as on another node: whoever mends it must not take it from there.
        let other = parts.iter().filter(|_| again).find_map(|snapshot| {
            let of_others = (0..self.shape.nodes).filter(|other| *other != node);
            let mut layers = of_others.filter_map(|other| self.layer(other, (chunk, *snapshot)));
            layers.find_map(|layer| Some((*snapshot, *layer.wrong().first()?)))
        });
        let (snapshot, block) = other.unwrap_or((snapshot, block));
        // What is wrong already could become right.
        let is_right = |layer: &&Layer| layer.fits(block, layer.value(block));
        let layer = self.layer(node, (chunk, snapshot)).filter(is_right);
        let Some(place) = layer.map(|layer| layer.place(block)) else {
            return false;
        };
        let disk = self.nodes[node].disks.get(&chunk);
        let is_shown = disk
            .and_then(|disk| disk.shown(block))
            .is_some_and(|shown| Place::ptr_eq(&shown, &place));
        if is_shown && !live_are_right || !self.may_harm_place(node, chunk, block, &place) {
            return false;
        }
        // A write of the live copy strikes it.
        let has_both = disk.is_some_and(|disk| disk.layers.contains_key(&snapshot));
        let struck = struck && live_are_right && has_both && self.members_of(chunk).contains(&node);
        let fault = match struck {
            true => Injected::Harm {
                node,
                chunk,
                harm: Some(Harm::IntoSnapshot(snapshot, block)),
                rots: None,
            },
            false => Injected::HarmSnapshot {
                node,
                chunk,
                snapshot,
                block,
            },
        };
        self.inject(fault);
        true
    }

    /// Whether others have the block right of every snapshot that has it in this place on a node.
    fn may_harm_place(&self, node: usize, chunk: usize, block: u32, place: &Place) -> bool {
        let sim = &self.nodes[node];
        let of_copy = sim.disks.get(&chunk).into_iter().flat_map(|disk| &disk.layers);
        let kept = sim.kept.layers.iter().filter(|((of, _), _)| *of == chunk);
        let all = of_copy.chain(kept.map(|((_, snapshot), layer)| (snapshot, layer)));
        let mut there = all.filter(|(_, layer)| Place::ptr_eq(&layer.place(block), place));
        there.all(|(snapshot, _)| self.others_have_right(node, (chunk, *snapshot), block))
    }

    /// Whether a block of a snapshot is right on another node, where it stays: with a copy of the chunk, if those without it go.
    fn others_have_right(&self, node: usize, part: Part, block: u32) -> bool {
        let stays = |other: &usize| !self.shape.keeps || self.nodes[*other].disks.contains_key(&part.0);
        let is_right = |layer: &Layer| layer.fits(block, layer.value(block));
        let mut others = (0..self.shape.nodes).filter(|other| *other != node && !self.is_removed(*other));
        others.any(|other| stays(&other) && self.layer(other, part).is_some_and(is_right))
    }

    /// The bytes for a repair are long on their way, so that writes to the same block come meanwhile.
    pub(super) fn repair_delay(&mut self, event: &Event) -> u64 {
        let fetched = matches!(
            event,
            Event::Peer {
                message: Message::FetchAnswer { .. },
                ..
            }
        );
        match fetched && self.shape.scenario == HARM {
            true => self.random.below(60 * MS),
            false => 0,
        }
    }

    fn all_in_sync(&self) -> bool {
        (0..self.shape.chunks).all(|chunk| {
            let members = self.members_of(chunk);
            let lives = |node: &usize| {
                let named = self.store[chunk]
                    .members
                    .iter()
                    .find(|m| node_index(m.node) == *node);
                self.nodes[*node].core.is_some()
                    && named.is_some_and(|m| m.incarnation.0 == self.nodes[*node].life)
            };
            members.len() == usize::from(self.shape.copies) && members.iter().all(lives)
        })
    }

    /// Members whose copies have a block that does not fit its sum, and whether any is about to.
    fn damaged_copies(&mut self, chunk: usize) -> (Vec<usize>, bool) {
        let members = self.members_of(chunk);
        let beside_snapshots = self.mends.is_some();
        let mut damaged = Vec::new();
        let mut armed = false;
        for node in members {
            // Where masters place copies, one may be on its way.
            let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
                armed = true;
                continue;
            };
            // What is being written is not compared yet: it may have been harmed just now. (Only here, so that other worlds stay as they are.)
            armed |= disk.harm.is_some() || beside_snapshots && disk.is_writing();
            if !disk.damage().is_empty() {
                damaged.push(node);
            }
        }
        (damaged, armed)
    }
}
