//! A volume that begins as a clone (`docs/decisions/0093`): its first copies show what a snapshot does; copies that are made later
//! begin empty, or by an order to clone that comes when the volume has long been written.

use super::disk::Disk;
use super::kinds::Kinds;
use super::layers::Layer;
use super::linear::Monitor;
use super::mend::BASE;
use super::world::{CHUNK_BLOCKS, REBUILD, SCENARIOS, World, chunk_id};
use crate::identity::Sequence;
use crate::planted::Bug;

/// What a chunk begins with: nothing in some blocks, in others what nobody writes.
pub(super) fn values(chunk: usize) -> Vec<u32> {
    let value = |block: u32| match block % 4 {
        3 => 0,
        _ => 1 << 20 | (chunk as u32) << 8 | block,
    };
    (0..CHUNK_BLOCKS).map(value).collect()
}

impl World {
    /// One whose volume begins as a clone, and whose copies mostly move.
    pub(super) fn with_clone(seed: u64) -> Self {
        let scenario = match seed.is_multiple_of(3) {
            true => seed % SCENARIOS,
            false => REBUILD,
        };
        let cloned = true;
        let kinds = Kinds {
            cloned,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(scenario), kinds)
    }

    pub(super) fn begin_as_clone(&mut self) {
        for chunk in (0..self.shape.chunks).filter(|_| self.shape.cloned) {
            let values = values(chunk).into_iter();
            self.monitors[chunk] = values.map(Monitor::beginning_with).collect();
        }
    }

    /// A copy that a node makes while its volume is made; or later, by an order that was late.
    pub(super) fn first_disk(&mut self, node: usize, chunk: usize) -> Disk {
        let disk = self.empty_disk(chunk);
        if !self.shape.cloned {
            return disk;
        }
        let forgets_regions = self.planted.is(Bug::CloneForgetsRegions);
        let mut disk = Disk::of_clone(disk.record, &values(chunk), forgets_regions);
        let kept = self
            .nodes
            .get_mut(node)
            .and_then(|sim| sim.kept.layers.remove(&(chunk, BASE)));
        let base = kept.unwrap_or_else(|| Layer::made(chunk_id(chunk), Sequence(0), &values(chunk), None));
        disk.show(BASE, base);
        disk
    }
}
