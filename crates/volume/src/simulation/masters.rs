//! The masters' store (compare and swap), a reconciler that takes silence for death and may be
//! wrong, and the injector of faults.

use foundation::Epoch;

use super::injected::Injected;
use super::world::{Event, FULL, GIVES_UP, HARM, MS, REBUILD, SECOND, World, node_id, node_index};
use crate::configuration::{ChunkConfig, Membership};
use crate::identity::Incarnation;

impl World {
    pub(super) fn handle_outside(&mut self, event: Event) {
        match event {
            Event::Answer {
                client,
                attempt,
                status,
                values,
            } => self.client_answer(client, attempt, status, &values),
            Event::ClientStep { client } => self.client_step(client),
            Event::ClientTimeout { client, attempt } => self.client_timeout(client, attempt),
            Event::Heartbeat { node, life } => {
                if life >= self.heard[node].0 {
                    self.heard[node] = (life, self.now);
                    self.registers(node, life);
                }
                self.tell(node);
            }
            Event::Ended { node, life } if self.whole.is_some() => self.engine_proves_end(node, life),
            Event::Ended { node, life } => {
                self.ended.insert((node, life));
                for other in (0..self.shape.nodes).filter(|&other| other != node) {
                    self.core(other, None, |core, now| {
                        core.handle_incarnation_ended(now, node_id(node), Incarnation(life));
                    });
                }
            }
            Event::Masters if self.is_held() => self.at(250 * MS, Event::Masters),
            Event::Masters => {
                for chunk in 0..self.shape.chunks {
                    self.reconcile(chunk);
                    self.look_after_places(chunk);
                    self.move_without_need(chunk);
                }
                self.at(250 * MS, Event::Masters);
            }
            Event::Commit {
                store,
                chunk,
                config,
                places,
            } if store == self.store_life() && !self.is_held() => self.commit(chunk, config, places),
            Event::Fault => self.fault(),
            Event::SlowDisks => self.slow_disk(),
            Event::Lose => self.lose(),
            Event::Injected { number, late } => self.written_fault(number, late),
            Event::Whole(event) => self.whole_event(event),
            Event::Crash { node, power, quick } => self.crash(node, power, quick),
            Event::Heal => self.heal(),
            Event::SnapshotStep => self.snapshot_step(),
            Event::Ordered {
                chunk,
                operation,
                status,
            } => self.order_answered(chunk, operation, status),
            Event::SnapshotTimeout { snapshot } => self.abort_snapshot(snapshot),
            Event::HealCheck => self.heal_check(),
            Event::Reserve(event) => self.reserve(event),
            Event::Restored(event) => self.restored_event(event),
            Event::Forced(event) => self.forced_event(&event),
            _ => {}
        }
    }

    /// Sends a node the configurations it may need, by its heartbeat's answer.
    pub(super) fn tell(&mut self, node: usize) {
        if self.is_held() {
            return self.ask_how_copies_are(node);
        }
        self.tell_portal(node);
        for chunk in 0..self.shape.chunks {
            let config = self.store[chunk].clone();
            let masters = self.shape.nodes;
            let placed = self.places.of_chunk[chunk].contains(&node);
            let told = Event::Config {
                node,
                chunk,
                config,
                placed,
            };
            self.send(masters, node, told);
        }
    }

    fn reconcile(&mut self, chunk: usize) {
        let config = &self.store[chunk];
        let silence = 1200 * MS;
        let heard = |member: &Membership| {
            let (life, at) = self.heard[node_index(member.node)];
            life == member.incarnation.0 && self.now < at + silence
        };
        let mut living: Vec<Membership> = config.members.iter().copied().filter(heard).collect();
        let may_err = !self.healing && self.shape.scenario != HARM;
        if may_err && self.random.chance(1, 150) && living.len() > 1 {
            // Wrong about who is dead.
            let at = self.random.below(living.len() as u64) as usize;
            living.remove(at);
        }
        let ended = |m: &Membership| self.ended.contains(&(node_index(m.node), m.incarnation.0));
        let all_ended = config.members.iter().all(ended);
        let minimum = self.least(config);
        if all_ended {
            living = config
                .members
                .iter()
                .map(|m| (m.node, self.heard[node_index(m.node)]))
                .filter(|(_, (_, at))| self.now < at + silence)
                .map(|(node, (life, _))| Membership {
                    node,
                    incarnation: Incarnation(life),
                })
                .collect();
            let newer = |m: &Membership| !config.members.contains(m);
            living.retain(newer);
        }
        if living.len() < minimum && !all_ended {
            return self.hand_over(chunk, &living);
        }
        if living.len() < minimum || living == config.members || living.is_empty() {
            return;
        }
        let keeps = living.iter().any(|m| m.node == config.write_node) && !all_ended;
        let write_node = if keeps {
            config.write_node
        } else {
            living[self.random.clone().below(living.len() as u64) as usize].node
        };
        let next = ChunkConfig {
            epoch: config.epoch.next(),
            write_node,
            members: living,
        };
        let delay = self.random.between(MS, 100 * MS);
        self.commit_after(delay, chunk, next, None);
    }

    /// The fewest members that may follow these: fewer than the minimum go on where fewer are left.
    fn least(&self, config: &ChunkConfig) -> usize {
        config.members.len().min(self.shape.minimum.into())
    }

    /// Nobody can be left out. If the write node has ended and every ended member is back in another life, a living
    /// member takes the writes over and lets them in.
    fn hand_over(&mut self, chunk: usize, living: &[Membership]) {
        let config = &self.store[chunk];
        let returned = |m: &Membership| {
            let (life, at) = self.heard[node_index(m.node)];
            life > m.incarnation.0 && self.now < at + 1200 * MS
        };
        let all_here = config.members.iter().all(|m| living.contains(m) || returned(m));
        if living.is_empty() || living.iter().any(|m| m.node == config.write_node) || !all_here {
            return;
        }
        let mut next = config.clone();
        next.epoch = config.epoch.next();
        next.write_node = living[self.random.below(living.len() as u64) as usize].node;
        let delay = self.random.between(MS, 100 * MS);
        self.commit_after(delay, chunk, next, None);
    }

    /// Asks the store, as it is now, for a configuration; it hears of that some time later.
    pub(super) fn commit_after(
        &mut self,
        delay: u64,
        chunk: usize,
        config: ChunkConfig,
        places: Option<Vec<usize>>,
    ) {
        let store = self.store_life();
        let event = Event::Commit {
            store,
            chunk,
            config,
            places,
        };
        self.at(delay, event);
    }

    fn commit(&mut self, chunk: usize, config: ChunkConfig, places: Option<Vec<usize>>) {
        let before = &self.store[chunk];
        if config.epoch != Epoch(before.epoch.0 + 1) || config.members.len() < self.least(before) {
            return;
        }
        let placed = |m: &Membership| self.places.of_chunk[chunk].contains(&node_index(m.node));
        let registered = |m: &Membership| self.heard[node_index(m.node)].0 == m.incarnation.0;
        let known = |m: &Membership| before.members.contains(m) || placed(m) && registered(m);
        if !config.members.iter().all(known) {
            return;
        }
        let ended = |m: &Membership| self.ended.contains(&(node_index(m.node), m.incarnation.0));
        let reborn = before.members.iter().all(ended);
        let handed = before.members == config.members && before.write_node != config.write_node;
        self.committed(chunk, config.epoch, reborn);
        self.store[chunk] = config;
        if let Some(places) = places {
            let moving = self.places.moving.get(&chunk);
            if moving.is_some_and(|from| !places.contains(from)) {
                self.places.moving.remove(&chunk);
                self.places.moved += 1;
            }
            self.places.handed += u64::from(handed && self.places.of_chunk[chunk] == places);
            self.places.of_chunk[chunk] = places;
        }
        self.restore_soon();
        for node in 0..self.shape.nodes {
            self.tell(node);
        }
    }

    fn fault(&mut self) {
        if self.healing {
            return;
        }
        let nodes = self.shape.nodes as u64;
        let node = self.random.below(nodes) as usize;
        let other = self.random.below(nodes + 1) as usize;
        let until = self.now + self.random.between(200 * MS, 5 * SECOND);
        let masters = self.shape.nodes;
        let quiet = match (self.shape.scenario, self.random.below(10)) {
            // One node is cut from the masters (and perhaps the peers) and goes on serving
            // reads; soon after the others may die and come back at once.
            (0, 0..=6) => {
                self.isolate(node, until + 3 * SECOND);
                4 * SECOND
            }
            (1, 0..=6) => {
                for peer in 0..masters {
                    self.crash(peer, true, true);
                }
                SECOND
            }
            // A disk fails; the process goes on without it.
            (5, 0..=4) => {
                let chunk = self.random.below(self.shape.chunks as u64) as usize;
                let victim = match self.random.below(2) {
                    0 => node_index(self.store[chunk].write_node),
                    _ if self.nodes[node].disks.contains_key(&chunk) => node,
                    _ => node_index(self.first[chunk].write_node),
                };
                if self.nodes[victim].disks.contains_key(&chunk) {
                    self.inject(Injected::Break { node: victim, chunk });
                }
                // Its operator sees to it some time later.
                let (power, quick) = (false, true);
                let repaired = self.random.between(2 * SECOND, 8 * SECOND);
                self.at(
                    repaired,
                    Event::Crash {
                        node: victim,
                        power,
                        quick,
                    },
                );
                3 * SECOND
            }
            (6, 0..=6) => self.returns(node),
            (REBUILD, 0..=6) => self.stays_away(node),
            (HARM, _) => self.harm(node),
            (FULL, 0..=6) => self.fill_disks(),
            (GIVES_UP, 0..=7) => {
                // What a write node is asked reaches it, and nothing leaves it: what it writes nobody else has.
                let chunk = self.random.below(self.shape.chunks as u64) as usize;
                let node = node_index(self.store[chunk].write_node);
                let until = self.now + self.random.between(1500 * MS, 4 * SECOND);
                for to in (0..=masters).filter(|&peer| peer != node) {
                    self.inject(Injected::Cut {
                        from: node,
                        to,
                        until,
                    });
                }
                self.random.between(3 * SECOND, 6 * SECOND)
            }
            (GIVES_UP, 8) => {
                // A member hears nothing, and the write node dies: what it wrote last, only the others have.
                let chunk = self.random.below(self.shape.chunks as u64) as usize;
                let write_node = node_index(self.store[chunk].write_node);
                let deaf = node_index(self.first[chunk].members[0].node);
                let until = self.now + self.random.between(3 * SECOND, 6 * SECOND);
                for peer in (0..=masters).filter(|&peer| peer != deaf) {
                    self.cut_both(peer, deaf, until);
                }
                let delay = self.random.between(20 * MS, 800 * MS);
                self.at(
                    delay,
                    Event::Crash {
                        node: write_node,
                        power: false,
                        quick: false,
                    },
                );
                7 * SECOND
            }
            (7, 0..=6) => {
                // Two nodes do not hear each other for about as long as it takes to be left out.
                if node != other {
                    let until = self.now + self.random.between(1200 * MS, 2600 * MS);
                    let (from, to) = (node, other);
                    self.inject(Injected::Cut { from, to, until });
                    if self.random.chance(1, 2) {
                        let (from, to) = (other, node);
                        self.inject(Injected::Cut { from, to, until });
                    }
                }
                self.random.between(SECOND, 5 * SECOND)
            }
            (2, 0..=6) | (_, 0) => {
                if node != other {
                    self.slow_both(node, other, until);
                }
                self.random.below(SECOND)
            }
            (_, 1..3) => {
                for peer in (0..=masters).filter(|&peer| peer != node) {
                    self.cut_both(node, peer, until);
                }
                SECOND
            }
            (_, 3) => {
                if node != other {
                    let (from, to) = (node, other);
                    self.inject(Injected::Cut { from, to, until });
                }
                300 * MS
            }
            (_, 4) => {
                let until = self.now + self.random.below(4 * SECOND);
                self.inject(Injected::Pause { node, until });
                500 * MS
            }
            (_, 5..=7) => {
                let chunk = self.random.below(self.shape.chunks as u64) as usize;
                let victim = match self.random.below(2) {
                    0 => node_index(self.store[chunk].write_node),
                    _ => node,
                };
                let power = self.random.chance(1, 2);
                self.crash(victim, power, false);
                SECOND
            }
            _ => SECOND,
        };
        let longest = if self.shape.scenario == HARM {
            30 * MS
        } else {
            2 * SECOND
        };
        let next = quiet + self.random.below(longest);
        self.at(next, Event::Fault);
    }

    /// A node dies and is back at once; while its copies are on their way back, it, the write node or all die, or
    /// its link is cut.
    fn returns(&mut self, node: usize) -> u64 {
        let masters = self.shape.nodes;
        let power = self.random.chance(1, 2);
        self.crash(node, power, true);
        let delay = self.random.between(3 * SECOND, 4500 * MS);
        let (power, quick) = (self.random.chance(1, 2), self.random.chance(1, 2));
        let crash = |node| Event::Crash { node, power, quick };
        match self.random.below(5) {
            0 => self.at(delay, crash(node)),
            1 => {
                let write_node = node_index(self.store[0].write_node);
                self.at(delay, crash(write_node));
            }
            2 => (0..masters).for_each(|node| self.at(delay, crash(node))),
            3 => {
                let other = self.random.below(masters as u64) as usize;
                self.slow_both(node, other, self.now + delay + SECOND);
            }
            _ => {}
        }
        delay + 300 * MS
    }

    /// Cuts a node from the masters, so that it goes on in a configuration that is replaced;
    /// soon after, the others may die and be back at once.
    fn isolate(&mut self, node: usize, until: u64) {
        let masters = self.shape.nodes;
        self.cut_both(node, masters, until);
        let others_die = self.random.chance(1, 2);
        let cut = self.random.chance(1, 2);
        for peer in (0..masters).filter(|&peer| !others_die && peer != node) {
            if cut {
                let (from, to) = (node, peer);
                self.inject(Injected::Cut { from, to, until });
            } else {
                self.slow_both(node, peer, until);
            }
        }
        let delay = self.random.between(1500 * MS, 2600 * MS);
        let power = self.random.chance(1, 2);
        for node in (0..masters).filter(|&peer| others_die && peer != node) {
            self.at(
                delay,
                Event::Crash {
                    node,
                    power,
                    quick: true,
                },
            );
        }
    }

    fn heal(&mut self) {
        self.healing = true;
        self.places.draining.fill(false);
        self.places.moving.clear();
        self.make_room_everywhere();
        self.heal_masters();
        for row in self.blocked.iter_mut().chain(&mut self.slow) {
            row.fill(0);
        }
        for node in 0..self.shape.nodes {
            self.nodes[node].paused_until = 0;
            self.at(100 * MS, Event::Restart { node });
        }
        self.at(SECOND, Event::HealCheck);
    }

    /// The operator starts again the nodes whose disks failed: everything else must come right by itself.
    fn heal_check(&mut self) {
        for node in 0..self.shape.nodes {
            if self.nodes[node].disks.values().any(|disk| disk.broken) {
                let down = self.random.between(20 * MS, 300 * MS);
                self.crash_for(node, false, down);
                self.at(100 * MS, Event::Restart { node });
            }
        }
        self.at(SECOND, Event::HealCheck);
    }
}
