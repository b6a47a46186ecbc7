//! In some worlds the operator has single disks drained, and ends that, while all goes on. What is on one goes to other nodes, or is
//! made anew on the other disk of its own.

use std::collections::BTreeMap;

use control::DiskId;
use foundation::Random;

use super::{DISKS, Whole, index_of, named};
use crate::simulation::World;

/// See the module.
pub(in crate::simulation) struct DiskDrains {
    random: Random,
    /// The disk on which each copy of the volume is, or was last.
    last: BTreeMap<(usize, usize), DiskId>,
    /// Disks that masters began to drain, and copies that a node was given on another disk than before.
    pub(in crate::simulation) begun: u64,
    pub(in crate::simulation) renewed: u64,
}

impl DiskDrains {
    /// Those of a world; in most there are none. What else is drawn there stays as it is.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let drains = Self {
            random: Random::from_seed(seed ^ 0x6469_736b),
            last: BTreeMap::new(),
            begun: 0,
            renewed: 0,
        };
        (seed % 5 == 4).then_some(drains)
    }
}

impl Whole {
    /// A chunk's places are these from now on.
    pub(super) fn note_disks(&mut self, index: usize, chunk: &control::Chunk) {
        let Some(drains) = &mut self.disk_drains else {
            return;
        };
        for copy in &chunk.copies {
            let before = drains.last.insert((index, index_of(copy.node)), copy.disk);
            drains.renewed += u64::from(before.is_some_and(|before| before != copy.disk));
        }
    }
}

impl World {
    /// Has a disk drained, or ends that: one at a time, and none in the end.
    pub(super) fn drain_disks(&mut self) {
        let (now, nodes, healing) = (self.now, self.shape.nodes, self.healing);
        let whole = self.of_whole();
        let Some(drains) = &mut whole.disk_drains else {
            return;
        };
        let (acts, node) = (
            drains.random.chance(1, 2),
            drains.random.below(nodes as u64) as usize,
        );
        let disk = drains.random.below(DISKS as u64) as usize;
        let disk = whole.disks(node)[disk].id;
        let mut drained = whole.etcd.borrow().drains();
        drained.retain(|(_, disk)| disk.is_some());
        if !(healing || acts) {
            return;
        }
        let Some(master) = whole.seated(now) else { return };
        let clock = whole.masters[master].clock(now);
        let Ok(control) = whole.masters[master].member.lead() else {
            return;
        };
        // Refused, or not answered: tried again, or not.
        match drained.first() {
            Some(&(node, disk)) => drop(control.undrain(node, disk)),
            None if healing => {}
            None => {
                let begun = control.drain(named(node), Some(disk), clock).is_ok();
                if let Some(drains) = whole.disk_drains.as_mut().filter(|_| begun) {
                    drains.begun += 1;
                }
            }
        }
    }
}
