//! What a node's core wants done, and how long that takes.

use super::events::Event;
use super::world::{MS, SECOND, US, World, node_index};
use crate::message::WriteKind;
use crate::output::{Output, ReadPurpose};

impl World {
    pub(super) fn carry_out(&mut self, node: usize, chunk: usize, output: Output) {
        let life = self.nodes[node].life;
        match output {
            Output::Persist { token, delta } => {
                let now = self.now;
                let delay = self.random.between(20 * US, 3 * MS) + self.disk_delay(node);
                let disk = self.disk(node, chunk);
                disk.persist(token, delta);
                let at = (now + delay).max(disk.persist_busy_until + 1);
                disk.persist_busy_until = at;
                self.at(
                    at - now,
                    Event::Persisted {
                        node,
                        life,
                        chunk,
                        token,
                    },
                );
            }
            Output::LocalWrite {
                io,
                range,
                kind,
                data,
                force_unit_access,
                is_resync: _,
            } => {
                let values = match (kind, data) {
                    (WriteKind::Data, Some(data)) => self.nodes[node].data[&data].to_vec(),
                    _ => vec![0; range.count as usize],
                };
                assert_eq!(values.len(), range.count as usize);
                let mut random = self.random.fork();
                if kind == WriteKind::Lost {
                    self.is_told_of_lost();
                    self.disk(node, chunk).begin_losing(io, range, &mut random);
                } else {
                    self.disk(node, chunk)
                        .begin_write(io, range, values, force_unit_access, &mut random);
                }
                self.local(node, chunk, io);
            }
            Output::LocalRead { io, range, purpose } => {
                let request = match purpose {
                    ReadPurpose::Request(request) | ReadPurpose::Compare(request) => Some(request.0),
                    ReadPurpose::Reconcile => None,
                };
                let mut random = self.random.fork();
                self.disk(node, chunk).begin_read(io, range, request, &mut random);
                self.local(node, chunk, io);
            }
            Output::LocalFlush { io } => {
                self.disk(node, chunk).begin_flush(io);
                let slow = self.shape.scenario == 1 && !self.healing && self.random.chance(1, 4);
                let delay = if slow {
                    self.random.below(SECOND)
                } else {
                    self.random.between(100 * US, 5 * MS)
                };
                self.local_after(delay, node, chunk, io);
            }
            Output::LocalSnapshot {
                io,
                snapshot,
                sequence,
            } => self.begin_snapshot(node, chunk, io, (snapshot, sequence)),
            Output::Send { to, message, data } => {
                let payload = data.map(|data| self.nodes[node].data[&data].clone());
                let to = node_index(to);
                let message = self.said_by(node, message);
                self.send(
                    node,
                    to,
                    Event::Peer {
                        from: node,
                        to,
                        message,
                        payload,
                    },
                );
            }
            Output::Complete { request, status } => self.completed(node, chunk, request, status),
            Output::Release { data } => {
                if self.nodes[node].data.remove(&data).is_none() {
                    self.fail(format!("node {node} released {data:?} twice"));
                }
            }
            Output::Propose { expected, config, .. } if self.whole.is_some() => {
                self.engine_proposes(node, chunk, expected, config);
            }
            Output::Propose { expected, config, .. } => {
                if config.epoch == expected.next() {
                    // Some masters are slow: copies take part in their join for long.
                    let longest = if self.shape.scenario == 7 {
                        2 * SECOND
                    } else {
                        200 * MS
                    };
                    let delay = self.random.between(MS, longest);
                    self.commit_after(delay, chunk, config, None);
                }
            }
            Output::Lost { range } => self.note_lost(chunk, range),
            Output::Failed if self.disk(node, chunk).broken => {}
            Output::Failed => self.fail(format!("node {node} failed without a disk failure")),
        }
    }
}
