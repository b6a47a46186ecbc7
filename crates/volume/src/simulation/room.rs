//! Disks that have no room for a while. A node tells its core, and looks again from time to time; nobody else does anything.

use super::injected::Injected;
use super::world::{Event, MS, SECOND, World, chunk_id};
use crate::identity::IoToken;

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
        if let Some(disk) = self.nodes[node].disks.get_mut(&chunk) {
            disk.is_full = false;
        }
    }

    pub(super) fn make_room_everywhere(&mut self) {
        let disks = self.nodes.iter_mut().flat_map(|node| node.disks.values_mut());
        disks.for_each(|disk| disk.is_full = false);
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
        self.core(node, None, |core, now| {
            core.handle_full(now, chunk_id(chunk));
            core.handle_local(now, chunk_id(chunk), io, false, None);
        });
        true
    }

    /// As [`World::lacks_room`], of changes of the record.
    pub(super) fn lacks_room_for_record(&mut self, node: usize, chunk: usize) -> bool {
        let disk = self.nodes[node].disks.get_mut(&chunk);
        let Some(disk) = disk.filter(|disk| disk.is_full) else {
            return false;
        };
        if !disk.finds_no_room_for_record(&mut self.random) {
            return false;
        }
        self.without_room += 1;
        self.core(node, None, |core, now| core.handle_full(now, chunk_id(chunk)));
        true
    }

    pub(super) fn look_for_room(&mut self, node: usize, chunk: usize) {
        let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
            return;
        };
        if disk.is_full {
            let life = self.nodes[node].life;
            return self.at(ROOM_LOOK, Event::LookForRoom { node, life, chunk });
        }
        disk.lacked_room = false;
        self.core(node, None, |core, now| core.handle_room(now, chunk_id(chunk)));
    }
}
