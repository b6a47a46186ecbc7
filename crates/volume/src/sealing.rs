//! Sealing, from both ends: what a member waits for before it gives its word to a new epoch, and
//! what a new write node has been told so far.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Instant;

use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{HostId, NodeId, PersistToken, Sequence, Session, WriterToken};
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
    /// Those of them that took part in the epoch before to its end.
    staying: u32,
    pub(crate) highest: Sequence,
    pub(crate) marks: BTreeSet<u32>,
    pub(crate) sessions: BTreeMap<HostId, u64>,
    pub(crate) writer_token: WriterToken,
}

impl Answers {
    /// Notes what a member said. Marks of regions that the chunk does not have say nothing.
    pub(crate) fn add(&mut self, member: usize, answer: &SealAnswer, regions: u32) {
        self.members |= 1 << member;
        self.staying |= u32::from(answer.stays) << member;
        self.highest = self.highest.max(answer.highest);
        self.marks
            .extend(answer.marks.iter().filter(|region| **region < regions));
        // Sessions count under the newest lease only, claims under any.
        if answer.writer_token > self.writer_token {
            self.writer_token = answer.writer_token;
            self.sessions.retain(|host, _| host.is_through_portals());
        }
        let is_newest = answer.writer_token == self.writer_token;
        let counts = |session: &&Session| is_newest || session.host.is_through_portals();
        for session in answer.sessions.iter().filter(counts) {
            let number = self.sessions.entry(session.host).or_default();
            *number = session.number.max(*number);
        }
    }

    pub(crate) fn has(&self, member: usize) -> bool {
        self.members >> member & 1 == 1
    }

    /// Whether each of these took part in the epoch before to its end. A bit for each.
    pub(crate) fn stay(&self, members: u32) -> bool {
        self.staying & members == members
    }

    pub(crate) fn all(&self, config: &ChunkConfig) -> bool {
        (0..config.members.len()).all(|member| self.has(member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundation::Epoch;

    use crate::identity::{ChunkId, Incarnation};

    #[test]
    fn sessions_count_under_the_newest_lease_and_claims_under_any() {
        let answer = |token: u64, sessions: &[(HostId, u64)]| SealAnswer {
            chunk: ChunkId::default(),
            epoch: Epoch(1),
            incarnation: Incarnation(1),
            highest: Sequence(0),
            marks: Vec::new(),
            writer_token: WriterToken(token),
            stays: true,
            sessions: sessions
                .iter()
                .map(|&(host, number)| Session { host, number })
                .collect(),
        };
        let (native, claimed) = (HostId::native(1), HostId::through_portals(2));
        let old = answer(4, &[(native, 9), (claimed, 50)]);
        let new = answer(5, &[(native, 3), (claimed, 40)]);
        for order in [[&old, &new], [&new, &old]] {
            let mut answers = Answers::default();
            for (member, answer) in order.into_iter().enumerate() {
                answers.add(member, answer, 1);
            }
            assert_eq!(answers.writer_token, WriterToken(5));
            assert_eq!(answers.sessions, [(native, 3), (claimed, 50)].into());
        }
    }
}
