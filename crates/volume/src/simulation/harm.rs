//! Disks that change a block, lose a write or put it elsewhere. One copy of a block at a time: what the volume survives.

use super::disk::Harm;
use super::injected::Injected;
use super::world::{Event, HARM, MS, SECOND, World, node_index};
use crate::message::Message;

impl World {
    /// Harms a block, or lets a node die whose copies are not needed to mend one. Returns how long to wait.
    pub(super) fn harm(&mut self, node: usize) -> u64 {
        if !self.all_in_sync() {
            return 500 * MS;
        }
        let chunk = self.random.below(self.shape.chunks as u64) as usize;
        // Where all clients meet.
        let block = self.random.below(3) as u32;
        let kind = self.random.below(10);
        let (damaged, armed) = self.damaged_copies(chunk);
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
        let mut damaged = Vec::new();
        let mut armed = false;
        for node in members {
            // Where masters place copies, one may be on its way.
            let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
                armed = true;
                continue;
            };
            armed |= disk.harm.is_some();
            if !disk.damage().is_empty() {
                damaged.push(node);
            }
        }
        (damaged, armed)
    }
}
