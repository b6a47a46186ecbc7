//! How nodes' processes begin and end.

use super::injected::Injected;
use super::world::{Event, MS, SECOND, World, node_id};
use crate::identity::Incarnation;
use crate::node::NodeCore;

impl World {
    pub(super) fn restart(&mut self, node: usize) {
        if self.nodes[node].core.is_some() {
            return;
        }
        if self.whole.is_some() {
            return self.engine_starts(node);
        }
        let life = self.nodes[node].life + 1;
        self.begin_life(node, life);
        if life > 1 {
            self.at(0, Event::Ended { node, life: life - 1 });
        }
    }

    /// A process begins.
    pub(super) fn begin_life(&mut self, node: usize, life: u64) {
        self.drops_what_was_told(node);
        let clock = self.nodes[node].clock(self.now);
        let sim = &mut self.nodes[node];
        sim.life = life;
        sim.tick_at = u64::MAX;
        sim.paused_until = 0;
        let mut core = NodeCore::new(clock, node_id(node), Incarnation(life), self.settings);
        core.plant(self.planted);
        for disk in sim.disks.values() {
            core.add_copy(clock, disk.record.clone(), true);
        }
        sim.core = Some(core);
        self.show_new_board(node);
        if self.whole.is_none() {
            self.at(0, Event::SendHeartbeat { node, life });
        }
        self.at(0, Event::Tick { node, life });
        self.begin_to_keep(node);
        self.begin_to_mend(node);
    }

    pub(super) fn crash(&mut self, node: usize, power: bool, quick: bool) {
        if self.nodes[node].core.is_none() {
            return;
        }
        let down = match self.random.below(3) {
            _ if quick => self.random.between(20 * MS, 300 * MS),
            0 => self.random.between(20 * MS, 300 * MS),
            _ => self.random.between(300 * MS, 6 * SECOND),
        };
        self.inject(Injected::Crash { node, power, down });
    }

    /// The process of a node ends and is started again after `down`.
    pub(super) fn crash_for(&mut self, node: usize, power: bool, down: u64) {
        let mut random = self.random.fork();
        let sim = &mut self.nodes[node];
        if sim.core.take().is_none() {
            return;
        }
        sim.data.clear();
        sim.requests.clear();
        let mut wrong = Vec::new();
        for (chunk, disk) in &mut sim.disks {
            wrong.extend(
                disk.crash(power, &mut random)
                    .into_iter()
                    .map(|block| (*chunk, block)),
            );
        }
        let life = sim.life;
        self.target_has_ended(node, power);
        if !wrong.is_empty() {
            self.fail(format!(
                "node {node}: blocks (chunk, block) {wrong:?} do not fit their sums after a crash, and nothing has harmed them"
            ));
        }
        if self.random.chance(1, 2) {
            let delay = self.random.between(50 * MS, SECOND);
            self.at(delay, Event::Ended { node, life });
        }
        self.portal_begins(node, 0);
        self.at(down, Event::Restart { node });
    }
}
