//! Disks that have no room for a while. A node tells its core, and looks again from time to time; nobody else does anything.

use super::injected::Injected;
use super::world::{Event, FULL, MS, SECOND, World, chunk_id};
use crate::identity::{IoToken, PersistToken};

/// How often a node looks whether there is room.
pub(super) const ROOM_LOOK: u64 = 400 * MS;

impl World {
    /// The disks of some copies of a chunk are full, of all of them sometimes; each has room again at a time of its own.
    pub(super) fn fill_disks(&mut self) -> u64 {
        let chunk = self.random.below(self.shape.chunks as u64) as usize;
        let mut nodes = self.members_of(chunk);
        self.random.shuffle(&mut nodes);
        nodes.truncate(1 + self.random.below(nodes.len() as u64) as usize);
        for node in nodes {
            let time = self.random.between(100 * MS, 6 * SECOND);
            if self.nodes[node].disks.contains_key(&chunk) {
                self.inject(Injected::Fill { node, chunk, time });
            }
        }
        self.random.between(500 * MS, 8 * SECOND)
    }

    pub(super) fn make_room(&mut self, node: usize, chunk: usize) {
        self.fill(node, chunk, false, true);
    }

    pub(super) fn make_room_everywhere(&mut self) {
        for node in 0..self.nodes.len() {
            let full = self.nodes[node].disks.iter().filter(|(_, disk)| disk.is_full);
            for chunk in full.map(|(chunk, _)| *chunk).collect::<Vec<_>>() {
                self.make_room(node, chunk);
            }
        }
    }

    /// Whether an operation of a copy has failed for want of room, which its core is told.
    pub(super) fn lacks_room(&mut self, node: usize, chunk: usize, io: IoToken) -> bool {
        let disk = self.nodes[node].disks.get_mut(&chunk);
        let Some(disk) = disk.filter(|disk| disk.is_full && disk.has(io)) else {
            return false;
        };
        if !disk.finds_no_room(io, &mut self.random) {
            return false;
        }
        self.without_room += 1;
        if !std::mem::replace(&mut disk.looks_for_room, true) {
            let life = self.nodes[node].life;
            self.at(ROOM_LOOK, Event::LookForRoom { node, life, chunk });
        }
        self.core(node, None, |core, now| core.handle_full(now, chunk_id(chunk), io));
        true
    }

    /// Whether there is no room for changes of the record, which are made again after a while then.
    pub(super) fn lacks_room_for_record(&mut self, node: usize, chunk: usize, token: PersistToken) -> bool {
        let disk = self.nodes[node].disks.get_mut(&chunk);
        let Some(_) = disk.filter(|disk| disk.is_full) else {
            return false;
        };
        if !self.random.chance(1, 3) {
            return false;
        }
        self.without_room += 1;
        let life = self.nodes[node].life;
        let again = Event::Persisted {
            node,
            life,
            chunk,
            token,
        };
        self.at(ROOM_LOOK, again);
        self.core(node, None, |core, now| {
            core.handle_record_full(now, chunk_id(chunk))
        });
        true
    }

    /// Half of the writes need room: which ones, disks do not say here.
    pub(super) fn needs_room(&mut self) -> bool {
        self.shape.scenario == FULL && self.random.chance(1, 2)
    }

    /// Counts a read that is answered while no copy of its chunk has room.
    pub(super) fn reads_without_room(&mut self, chunk: usize) {
        let members = self.members_of(chunk);
        let is_full = |node: &usize| {
            self.nodes[*node]
                .disks
                .get(&chunk)
                .is_some_and(|disk| disk.is_full)
        };
        self.read_without_room += u64::from(!members.is_empty() && members.iter().all(is_full));
    }

    /// A disk has no room from now on, or has some again: its node knows at once, or, of some that fill, when it finds none.
    pub(super) fn fill(&mut self, node: usize, chunk: usize, is_full: bool, is_known: bool) {
        let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
            return;
        };
        disk.is_full = is_full;
        if is_known {
            self.core(node, None, |core, now| {
                core.handle_short(now, chunk_id(chunk), is_full)
            });
        }
    }

    pub(super) fn look_for_room(&mut self, node: usize, chunk: usize) {
        let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
            return;
        };
        if disk.is_full {
            let life = self.nodes[node].life;
            return self.at(ROOM_LOOK, Event::LookForRoom { node, life, chunk });
        }
        disk.looks_for_room = false;
        self.core(node, None, |core, now| core.handle_room(now, chunk_id(chunk)));
    }
}
