//! How long disks take. In some worlds a node's are slow for some time, whatever they are asked: not late with one request alone. Drawn
//! by numbers of their own, so that worlds without them stay as they are.

use foundation::Random;

use super::events::Event;
use super::injected::Injected;
use super::world::{MS, SECOND, US, World};
use crate::identity::IoToken;

/// See the module.
pub(super) struct SlowDisks {
    random: Random,
    /// Of each node: until when, and the longest that a request takes until then.
    nodes: Vec<(u64, u64)>,
    /// How often a node's disks became slow, and how many requests were slower for it.
    pub(super) begun: u64,
    pub(super) requests: u64,
}

impl SlowDisks {
    /// Those of a world; in most there are none.
    pub(super) fn of(seed: u64, nodes: usize) -> Option<Self> {
        let slow = Self {
            random: Random::from_seed(seed ^ 0x736c_6f77),
            nodes: vec![(0, 0); nodes],
            begun: 0,
            requests: 0,
        };
        (seed % 3 == 1).then_some(slow)
    }
}

impl World {
    /// Has the disks of some node be slow from now on, and comes again.
    pub(super) fn slow_disk(&mut self) {
        let (now, nodes) = (self.now, self.shape.nodes);
        if self.healing {
            return;
        }
        let Some(slow) = &mut self.slow_disks else {
            return;
        };
        let node = slow.random.below(nodes as u64) as usize;
        let until = now + slow.random.between(200 * MS, 6 * SECOND);
        // From what one hardly sees to what makes others go on without the copy.
        let longest = [5 * MS, 50 * MS, 500 * MS, 3 * SECOND, 20 * SECOND][slow.random.below(5) as usize];
        let next = slow.random.between(500 * MS, 5 * SECOND);
        self.inject(Injected::SlowDisks { node, until, longest });
        self.at(next, Event::SlowDisks);
    }

    /// They are slow until then: each request takes up to so long more.
    pub(super) fn slow_until(&mut self, node: usize, until: u64, longest: u64) {
        if let Some(slow) = &mut self.slow_disks {
            slow.nodes[node] = (until, longest);
            slow.begun += 1;
        }
    }

    /// A disk does what it was asked, most often soon; now and then it is late with a single request.
    pub(super) fn local(&mut self, node: usize, chunk: usize, io: IoToken) {
        let mut delay = self.random.between(30 * US, 2 * MS);
        if !self.healing && self.random.chance(1, 150) {
            delay += self.random.below(1500 * MS);
        }
        self.local_after(delay, node, chunk, io);
    }

    /// A disk does what it was asked after so long, or later if it is slow.
    pub(super) fn local_after(&mut self, delay: u64, node: usize, chunk: usize, io: IoToken) {
        let life = self.nodes[node].life;
        let delay = delay + self.disk_delay(node);
        self.at(
            delay,
            Event::Local {
                node,
                life,
                chunk,
                io,
            },
        );
    }

    /// How much longer what a node's disk is asked now takes.
    pub(super) fn disk_delay(&mut self, node: usize) -> u64 {
        let (now, healing) = (self.now, self.healing);
        let Some(slow) = &mut self.slow_disks else {
            return 0;
        };
        let (until, longest) = slow.nodes[node];
        if until <= now || healing {
            return 0;
        }
        slow.requests += 1;
        slow.random.below(longest)
    }
}
