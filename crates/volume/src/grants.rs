//! Grants between nodes: the right to answer reads without asking a master. One instance serves
//! all chunks of a node, and one beacon a pair of nodes, whatever the number of chunks they share.
//!
//! A node tells each peer once, in an [`Message::Enroll`], for which chunks it asks (a numbered
//! list); each beacon then names only the list, and the answer names the chunks of the list that
//! are *not* granted. So an answer means the same however late it arrives. The asker counts from
//! the moment it asked and stops at 0.99 of the term; the grantor counts from the moment it
//! granted. Cost: two messages of some 100 bytes for each direction of a pair each interval; neither
//! side looks at a list from end to end but when it has changed. The grantor notes what it refuses
//! when a chunk's standing changes, the asker what was refused by the last answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use foundation::{Epoch, Instant};

use crate::configuration::ChunkConfig;
use crate::identity::{ChunkId, Incarnation, NodeId};
use crate::message::Message;
use crate::planted::{Bug, Planted};
use crate::settings::Settings;

/// Beacons whose answer may still be counted.
const ROUNDS_MAX: usize = 8;
/// Beacons sent at short intervals after a list has changed, until all of it is granted.
const HURRIED_BEACONS: u32 = 12;
/// The interval of those.
const HURRIED_INTERVAL: Duration = Duration::from_millis(30);

#[derive(Debug)]
struct Held {
    epoch: Epoch,
    /// The first list that has this chunk; answers to earlier ones say nothing about it.
    since: u32,
    /// What answers before the last one granted.
    until: Instant,
}

/// The newest answer: a grant of every chunk of its list but those refused.
#[derive(Debug, Default)]
struct Answered {
    round: u64,
    list: u32,
    until: Instant,
    refused: BTreeSet<ChunkId>,
}

impl Answered {
    /// Until when `chunk` is granted by this answer or an earlier one.
    fn until(&self, chunk: ChunkId, held: &Held) -> Instant {
        if held.since <= self.list && !self.refused.contains(&chunk) {
            held.until.max(self.until)
        } else {
            held.until
        }
    }
}

#[derive(Debug)]
struct Round {
    number: u64,
    asked: Instant,
}

#[derive(Debug)]
struct AskedList {
    incarnation: Incarnation,
    list: u32,
    entries: BTreeMap<ChunkId, Epoch>,
    /// Those of them that may not be granted as things stand.
    refused: BTreeSet<ChunkId>,
}

#[derive(Debug, Default)]
struct Peer {
    // What this node asks of the peer.
    entries: BTreeMap<ChunkId, Held>,
    list: u32,
    enrolled: bool,
    rounds: VecDeque<Round>,
    next_round: u64,
    next_ask: Instant,
    last_asked: Option<Instant>,
    hurry: u32,
    answered: Answered,
    // What the peer asks of this node.
    asked: Option<AskedList>,
    granted: Vec<(Incarnation, Instant)>,
}

/// The grants one node holds and has given.
#[derive(Debug)]
pub struct Grants {
    incarnation: Incarnation,
    settings: Settings,
    peers: BTreeMap<NodeId, Peer>,
    outputs: VecDeque<(NodeId, Message)>,
    /// No peer is to be asked before this; none if none is to be asked at all.
    next_ask: Option<Instant>,
    planted: Planted,
    /// Chunks looked at so far, for the test that counts.
    #[cfg(test)]
    pub(crate) looked_at: u64,
}

impl Grants {
    /// The grants of a life that has just begun: none.
    pub fn new(incarnation: Incarnation, settings: Settings) -> Self {
        Self {
            incarnation,
            settings,
            peers: BTreeMap::new(),
            outputs: VecDeque::new(),
            next_ask: None,
            planted: Planted::default(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// From now on asks the other members of `config` for grants on `chunk`, and no one else.
    /// Grants already held from them go on to count, unless `forget`.
    pub(crate) fn enroll(
        &mut self,
        now: Instant,
        chunk: ChunkId,
        config: &ChunkConfig,
        me: NodeId,
        forget: bool,
    ) {
        for member in &config.members {
            if member.node != me {
                self.peers.entry(member.node).or_default();
            }
        }
        for (&node, peer) in &mut self.peers {
            let wanted = node != me && config.index_of(node).is_some();
            let held = peer.entries.remove(&chunk);
            if !wanted && held.is_none() {
                continue;
            }
            peer.list += 1;
            peer.enrolled = false;
            // Many chunks that change at once travel in one list.
            peer.next_ask = peer.last_asked.map_or(now, |at| now.max(at + HURRIED_INTERVAL));
            peer.hurry = HURRIED_BEACONS;
            if wanted {
                let until = held
                    .filter(|_| !forget)
                    .map_or(Instant::default(), |held| peer.answered.until(chunk, &held));
                let held = Held {
                    epoch: config.epoch,
                    since: peer.list,
                    until,
                };
                peer.entries.insert(chunk, held);
            }
        }
        self.look_for_next_ask();
    }

    fn look_for_next_ask(&mut self) {
        let asking = self.peers.values().filter(|p| !p.entries.is_empty());
        self.next_ask = asking.map(|p| p.next_ask).min();
    }

    /// Asks no one for grants on `chunk` any more, and counts none.
    pub(crate) fn withdraw(&mut self, chunk: ChunkId) {
        for peer in self.peers.values_mut() {
            if peer.entries.remove(&chunk).is_some() {
                peer.list += 1;
                peer.enrolled = false;
            }
        }
        self.look_for_next_ask();
    }

    /// How many members of `config` have granted `chunk` to this node and are still bound.
    pub fn held(&self, now: Instant, chunk: ChunkId, config: &ChunkConfig) -> usize {
        self.ends(chunk, config).filter(|end| now < *end).count()
    }

    /// Until when so many members of `config` have granted `chunk` to this node; the end of the clock for none.
    pub(crate) fn held_until(&self, chunk: ChunkId, config: &ChunkConfig, members: usize) -> Instant {
        let Some(last) = members.checked_sub(1) else {
            return Instant::from_nanos(u64::MAX);
        };
        let mut ends: Vec<Instant> = self.ends(chunk, config).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(last).copied().unwrap_or_default()
    }

    /// When each grant of a member of `config` ends.
    fn ends(&self, chunk: ChunkId, config: &ChunkConfig) -> impl Iterator<Item = Instant> {
        let members = config.members.iter();
        members.filter_map(move |member| {
            let peer = self.peers.get(&member.node)?;
            Some(peer.answered.until(chunk, peer.entries.get(&chunk)?))
        })
    }

    /// Until when this node is bound by any grant it has given to any life of `node`.
    pub fn granted_until(&self, node: NodeId) -> Instant {
        let peer = self.peers.get(&node);
        let ends = peer.into_iter().flat_map(|p| &p.granted).map(|(_, end)| *end);
        ends.max().unwrap_or_default()
    }

    /// The node agent of `node` has proved that this life of its target and all its I/O have
    /// ended: grants given to it bind no more.
    pub fn give_back(&mut self, node: NodeId, incarnation: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.granted.retain(|(life, _)| *life > incarnation);
            if peer.asked.as_ref().is_some_and(|a| a.incarnation <= incarnation) {
                peer.asked = None;
            }
        }
    }

    /// The chunks `from` asks for from now on; `grantable` says whether one may be granted.
    pub(crate) fn handle_enroll(
        &mut self,
        from: NodeId,
        (incarnation, list): (Incarnation, u32),
        entries: Vec<(ChunkId, Epoch)>,
        grantable: impl Fn(ChunkId, Epoch) -> bool,
    ) {
        let peer = self.peers.entry(from).or_default();
        let newer = peer
            .asked
            .as_ref()
            .is_none_or(|asked| (asked.incarnation, asked.list) < (incarnation, list));
        if !newer {
            return;
        }
        let entries: BTreeMap<ChunkId, Epoch> = entries.into_iter().collect();
        #[cfg(test)]
        {
            self.looked_at += entries.len() as u64;
        }
        let not_granted = entries.iter().filter(|(c, e)| !grantable(**c, **e));
        let refused = not_granted.map(|(chunk, _)| *chunk).collect();
        peer.asked = Some(AskedList {
            incarnation,
            list,
            entries,
            refused,
        });
    }

    /// The standing of the copy here has changed: what peers ask of it is judged anew.
    pub(crate) fn judge(&mut self, chunk: ChunkId, grantable: impl Fn(NodeId, Incarnation, Epoch) -> bool) {
        for (&node, peer) in &mut self.peers {
            let Some(asked) = &mut peer.asked else { continue };
            let Some(&epoch) = asked.entries.get(&chunk) else {
                continue;
            };
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            if grantable(node, asked.incarnation, epoch) {
                asked.refused.remove(&chunk);
            } else {
                asked.refused.insert(chunk);
            }
        }
    }

    /// Answers a beacon.
    pub(crate) fn handle_beacon(
        &mut self,
        now: Instant,
        from: NodeId,
        (incarnation, round, list): (Incarnation, u64, u32),
    ) {
        let peer = self.peers.entry(from).or_default();
        let asked = peer.asked.as_ref();
        let asked = asked.filter(|a| a.incarnation == incarnation && a.list == list);
        let mut refused = Vec::new();
        let known = asked.is_some();
        if let Some(asked) = asked {
            refused.extend(&asked.refused);
            #[cfg(test)]
            {
                self.looked_at += refused.len() as u64;
            }
            if refused.len() < asked.entries.len() {
                let until = now + self.settings.grant_term;
                peer.granted
                    .retain(|(life, end)| *life != incarnation && now < *end);
                peer.granted.push((incarnation, until));
            }
        }
        let grant = Message::Grant {
            incarnation,
            round,
            list,
            known,
            refused,
        };
        self.outputs.push_back((from, grant));
    }

    pub(crate) fn handle_grant(
        &mut self,
        now: Instant,
        from: NodeId,
        (incarnation, round, list): (Incarnation, u64, u32),
        known: bool,
        refused: &[ChunkId],
    ) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        let Some(at) = peer.rounds.iter().position(|r| r.number == round) else {
            return;
        };
        if incarnation != self.incarnation {
            return;
        }
        if !known {
            if list == peer.list {
                peer.enrolled = false;
                peer.next_ask = peer.next_ask.min(now + HURRIED_INTERVAL);
                self.look_for_next_ask();
            }
            return;
        }
        // An answer to an earlier beacon than one already answered ends sooner: it says nothing new.
        if round <= peer.answered.round {
            return;
        }
        let mut counted_from = peer.rounds[at].asked;
        if self.planted.is(Bug::GrantCountedFromReceipt) {
            counted_from = now;
        }
        let until = counted_from + self.settings.usable_term();
        for chunk in refused {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            // Not granted again; what an earlier answer granted is so still.
            if let Some(held) = peer.entries.get_mut(chunk) {
                held.until = peer.answered.until(*chunk, held);
            }
        }
        peer.answered = Answered {
            round,
            list,
            until,
            refused: refused.iter().copied().collect(),
        };
        if list == peer.list && !refused.is_empty() && peer.hurry > 0 {
            peer.hurry -= 1;
            peer.next_ask = peer.next_ask.min(now + HURRIED_INTERVAL);
            self.look_for_next_ask();
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.next_ask.is_none_or(|at| now < at) {
            return;
        }
        for (&node, peer) in &mut self.peers {
            if peer.entries.is_empty() || now < peer.next_ask {
                continue;
            }
            if !peer.enrolled {
                let entries = peer.entries.iter().map(|(&c, held)| (c, held.epoch));
                #[cfg(test)]
                {
                    self.looked_at += peer.entries.len() as u64;
                }
                let enroll = Message::Enroll {
                    incarnation: self.incarnation,
                    list: peer.list,
                    entries: entries.collect(),
                };
                self.outputs.push_back((node, enroll));
                // Should it be lost, the grant will say that the list is unknown.
                peer.enrolled = true;
            }
            if peer.rounds.len() == ROUNDS_MAX {
                peer.rounds.pop_front();
            }
            peer.next_round += 1;
            peer.rounds.push_back(Round {
                number: peer.next_round,
                asked: now,
            });
            let beacon = Message::Beacon {
                incarnation: self.incarnation,
                round: peer.next_round,
                list: peer.list,
            };
            self.outputs.push_back((node, beacon));
            peer.next_ask = now + self.settings.beacon_interval;
            peer.last_asked = Some(now);
        }
        self.look_for_next_ask();
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.next_ask
    }

    pub(crate) fn poll_output(&mut self) -> Option<(NodeId, Message)> {
        self.outputs.pop_front()
    }
}
