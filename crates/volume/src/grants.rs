//! Grants between nodes: the right to answer reads without asking a master. One instance serves
//! all chunks of a node, and a beacon asks a peer for thousands of them.
//!
//! A node tells each peer once, in an [`Message::Enroll`], for which chunks it asks (a numbered
//! list); each beacon then names only the list, and the answer names the chunks of the list that
//! are *not* granted. So an answer means the same however late it arrives. The asker counts from
//! the moment it asked and stops at 0.99 of the term; the grantor counts from the moment it
//! granted.
//!
//! A list is bounded, since it travels in one message: what is asked of a peer is divided into *parts* of
//! [`Settings::list_chunks_max`] chunks at most, each with lists, beacons and answers of its own (`docs/decisions/0127`). A
//! change of one chunk sends the list of its part.
//!
//! Cost: two messages of some 100 bytes for each part of each direction of a pair each interval; neither
//! side looks at a list from end to end but when it has changed, and finds a chunk's part by the chunk. The grantor notes what it refuses
//! when a chunk's standing changes, the asker what was refused by the last answer.

use std::collections::{BTreeMap, VecDeque};

use foundation::{Epoch, Instant};

use crate::configuration::ChunkConfig;
use crate::identity::{ChunkId, Incarnation, NodeId};
use crate::message::Message;
use crate::message::codec::LIST_CHUNKS_MAX;
use crate::planted::{Bug, Planted};
use crate::settings::Settings;

mod asked;
mod given;

use asked::Asked;
use given::Given;

/// Chunks looked at so far, for the tests that count.
#[derive(Debug, Default)]
struct LookedAt {
    #[cfg(test)]
    chunks: u64,
}

impl LookedAt {
    fn add(&mut self, _chunks: usize) {
        #[cfg(test)]
        {
            self.chunks += _chunks as u64;
        }
    }
}

/// What a peer answers to a beacon of this life.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) round: u64,
    pub(crate) list: u32,
    pub(crate) known: bool,
    pub(crate) keeps_parts: bool,
    pub(crate) refused: &'a [ChunkId],
}

#[derive(Debug)]
struct Peer {
    /// What this node asks of the peer.
    asked: Asked,
    /// What the peer asks of this node.
    given: Given,
}

impl Peer {
    fn new(settings: &Settings) -> Self {
        Self {
            asked: Asked::new(settings.list_chunks_max.clamp(1, LIST_CHUNKS_MAX)),
            given: Given::default(),
        }
    }
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
    looked_at: LookedAt,
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
            looked_at: LookedAt::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at.chunks
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
        let members = config.members.iter().map(|member| member.node);
        for node in members.filter(|node| *node != me) {
            let peer = self.peers.entry(node);
            peer.or_insert_with(|| Peer::new(&self.settings));
        }
        for (&node, peer) in &mut self.peers {
            if node != me && config.index_of(node).is_some() {
                peer.asked.ask_for(now, chunk, config.epoch, forget);
            } else {
                peer.asked.leave(now, chunk);
            }
        }
        self.note_changes();
    }

    /// Asks no one for grants on `chunk` any more, and counts none.
    pub(crate) fn withdraw(&mut self, chunk: ChunkId) {
        for peer in self.peers.values_mut() {
            peer.asked.withdraw(chunk);
        }
        self.note_changes();
    }

    /// Peers are told of parts that are gone, and the next time to ask is found.
    fn note_changes(&mut self) {
        for (&node, peer) in &mut self.peers {
            for (part, list) in peer.asked.take_gone() {
                let enroll = Message::Enroll {
                    incarnation: self.incarnation,
                    part,
                    list,
                    entries: Vec::new(),
                };
                self.outputs.push_back((node, enroll));
            }
        }
        self.next_ask = self.peers.values().filter_map(|p| p.asked.next_ask()).min();
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
            peer.asked.until(chunk, self.planted)
        })
    }

    /// Until when this node is bound by any grant it has given to any life of `node`.
    pub fn granted_until(&self, node: NodeId) -> Instant {
        let peer = self.peers.get(&node);
        peer.map(|peer| peer.given.until()).unwrap_or_default()
    }

    /// The node agent of `node` has proved that this life of its target and all its I/O have
    /// ended: grants given to it bind no more.
    pub fn give_back(&mut self, node: NodeId, incarnation: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.given.give_back(incarnation);
        }
    }

    /// The chunks of a part for which `from` asks from now on; `grantable` says whether one may be granted.
    pub(crate) fn handle_enroll(
        &mut self,
        from: NodeId,
        list: (Incarnation, u32, u32),
        entries: Vec<(ChunkId, Epoch)>,
        grantable: impl Fn(ChunkId, Epoch) -> bool,
    ) {
        let peer = self.peers.entry(from);
        let given = &mut peer.or_insert_with(|| Peer::new(&self.settings)).given;
        given.enroll(list, entries, grantable, &mut self.looked_at);
    }

    /// The standing of the copy here has changed: what peers ask of it is judged anew.
    pub(crate) fn judge(&mut self, chunk: ChunkId, grantable: impl Fn(NodeId, Incarnation, Epoch) -> bool) {
        for (&node, peer) in &mut self.peers {
            let grantable = |life, epoch| grantable(node, life, epoch);
            peer.given.judge(chunk, grantable, &mut self.looked_at);
        }
    }

    /// Answers a beacon.
    pub(crate) fn handle_beacon(
        &mut self,
        now: Instant,
        from: NodeId,
        round: (Incarnation, u64),
        list: (Option<u32>, u32),
    ) {
        let term = self.settings.grant_term;
        let peer = self.peers.entry(from);
        let given = &mut peer.or_insert_with(|| Peer::new(&self.settings)).given;
        let grant = given.answer(now, round, list, term, &mut self.looked_at);
        self.outputs.push_back((from, grant));
    }

    /// Counts an answer to a beacon of `incarnation`.
    pub(crate) fn handle_grant(
        &mut self,
        now: Instant,
        from: NodeId,
        incarnation: Incarnation,
        answer: &Answer<'_>,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if incarnation != self.incarnation {
            return;
        }
        let (planted, term) = (self.planted, self.settings.usable_term());
        let ends = |asked| {
            let counted_from = match planted.is(Bug::GrantCountedFromReceipt) {
                true => now,
                false => asked,
            };
            counted_from + term
        };
        peer.asked.hear(now, answer, ends, &mut self.looked_at);
        self.note_changes();
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.next_ask.is_none_or(|at| now < at) {
            return;
        }
        let asks = (self.incarnation, self.settings.beacon_interval);
        for (&node, peer) in &mut self.peers {
            let outputs = &mut self.outputs;
            peer.asked.poll(now, asks, &mut self.looked_at, |message| {
                outputs.push_back((node, message));
            });
        }
        self.note_changes();
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.next_ask
    }

    pub(crate) fn poll_output(&mut self) -> Option<(NodeId, Message)> {
        self.outputs.pop_front()
    }
}

#[cfg(test)]
mod tests;
