//! Sealing, from both ends: what a member waits for before it gives its word to a new epoch, and
//! what a new write node has been told so far.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Instant;

use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{HostId, NodeId, PersistToken, Sequence, WriterToken};
use crate::message::SealAnswer;

/// A configuration that a member has been asked to seal and has not sealed yet.
#[derive(Debug)]
pub(crate) struct PendingSeal {
    pub(crate) config: ChunkConfig,
    /// Who is to be told; none when this node is the new write node itself.
    pub(crate) answer_to: Option<NodeId>,
    /// For each copy left out: until when this node is bound by its grants to it. From the
    /// moment this was written down, none is given for this chunk any more.
    gates: Vec<(NodeId, Instant)>,
    /// The gates have opened: nothing of an older epoch is begun any more.
    pub(crate) draining: bool,
    /// Set once the record is being written.
    pub(crate) persist: Option<PersistToken>,
}

impl PendingSeal {
    /// `adopted` is the configuration this life has been granting under, if any; `earlier` a
    /// pending seal that this one replaces.
    pub(crate) fn new(
        config: ChunkConfig,
        answer_to: Option<NodeId>,
        adopted: Option<&ChunkConfig>,
        earlier: Option<&PendingSeal>,
        grants: &Grants,
    ) -> Self {
        let members = adopted.map_or(&[][..], |adopted| &adopted.members);
        let left_out = members.iter().filter(|m| !config.has(m.node, m.incarnation));
        let gates = left_out.map(|member| {
            let before = earlier.and_then(|e| e.gates.iter().find(|(n, _)| *n == member.node));
            let now = (member.node, grants.granted_until(member.node));
            before.copied().unwrap_or(now)
        });
        Self {
            gates: gates.collect(),
            config,
            answer_to,
            draining: false,
            persist: None,
        }
    }

    /// When the grants to those left out have ended. A grant given back in the meantime ends
    /// earlier; one given for other chunks does not count.
    pub(crate) fn gate(&self, grants: &Grants) -> Instant {
        let ends = self
            .gates
            .iter()
            .map(|(node, end)| (*end).min(grants.granted_until(*node)));
        ends.max().unwrap_or_default()
    }
}

/// What the members told a new write node when they sealed.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// One bit for each member of the configuration.
    members: u32,
    pub(crate) highest: Sequence,
    pub(crate) marks: BTreeSet<u32>,
    pub(crate) sessions: BTreeMap<HostId, u64>,
    pub(crate) writer_token: WriterToken,
}

impl Answers {
    /// Notes what a member said. Marks of regions that the chunk does not have say nothing.
    pub(crate) fn add(&mut self, member: usize, answer: &SealAnswer, regions: u32) {
        self.members |= 1 << member;
        self.highest = self.highest.max(answer.highest);
        self.marks
            .extend(answer.marks.iter().filter(|region| **region < regions));
        // Sessions count under the newest lease only.
        if answer.writer_token > self.writer_token {
            self.writer_token = answer.writer_token;
            self.sessions.clear();
        }
        if answer.writer_token < self.writer_token {
            return;
        }
        for session in &answer.sessions {
            let number = self.sessions.entry(session.host).or_default();
            *number = session.number.max(*number);
        }
    }

    pub(crate) fn has(&self, member: usize) -> bool {
        self.members >> member & 1 == 1
    }

    pub(crate) fn all(&self, config: &ChunkConfig) -> bool {
        (0..config.members.len()).all(|member| self.has(member))
    }
}
