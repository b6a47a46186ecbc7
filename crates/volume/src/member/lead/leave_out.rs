//! Members that are left out: those that say they have no copy, those that say nothing, and the write node itself where its disk stands.

use super::*;
use crate::configuration::Membership;

impl Member {
    /// A member says that it has no disk any more: it is left out without waiting for its silence.
    pub(in crate::member) fn member_is_lost(
        &mut self,
        now: Instant,
        from: NodeId,
        epoch: Epoch,
        refusal: Refusal,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.config.epoch == epoch) else {
            return;
        };
        // A chunk's first configuration is known before all of its copies are made; the seal is sent again until they are.
        if refusal == Refusal::NoSuchChunk && lead.phase == Phase::Sealing && epoch == FIRST_EPOCH {
            return;
        }
        if let Some(index) = lead.config.index_of(from) {
            lead.told[index].lost = true;
            self.propose_without_silent(now);
        }
    }

    pub(in crate::member) fn propose_without_silent(&mut self, now: Instant) {
        let minimum = usize::from(self.record.geometry.minimum);
        let (me, room) = (self.me, self.room_left());
        let Some(lead) = &mut self.lead else {
            return;
        };
        let too_soon = |at: Instant| now.since(at) < self.settings.suspect_after;
        if lead.config.members.len() <= minimum || lead.proposed_at.is_some_and(too_soon) {
            return;
        }
        // The masters are asked for another configuration already, and if they do not answer, for one that ends that.
        if lead.join_binds() {
            return;
        }
        let may_lack = lead.enough_have_room(room, minimum);
        let silent = lead.suspect(now, minimum, may_lack);
        let silent = silent.or_else(|| lead.hangs_here(now, me, (room, may_lack)));
        let leaves = silent.or_else(|| lead.without_room(room, minimum));
        let Some((leaves, reason)) = leaves else {
            return;
        };
        lead.proposed_at = Some(now);
        let expected = lead.config.epoch;
        let mut config = lead.config.clone();
        config.epoch = expected.next();
        if config.members.remove(leaves).node == config.write_node {
            // As where its disk is gone: whoever was heard last orders the writes.
            let heard = |member: &&Membership| lead.heard_from(member.node);
            let Some(next) = config.members.iter().max_by_key(heard) else {
                return;
            };
            config.write_node = next.node;
        }
        self.outputs.push_back(Output::Propose {
            expected,
            config,
            reason,
        });
    }
}

impl Lead {
    /// The member without whose seal this epoch does not begin, though it has had the time. Whether its node lives is the masters' to say, but not
    /// that its disk stands or that this node alone cannot reach it. This node itself comes last: another then orders the writes.
    pub(super) fn has_not_sealed(&self, now: Instant, minimum: usize) -> Option<(usize, Reason)> {
        let limit = self.settings.suspect_after * SEALS_WITHIN;
        // The first epoch waits until its copies are made.
        if self.config.epoch == FIRST_EPOCH || now.since(self.seals_since) <= limit {
            return None;
        }
        let members = self.config.members.len();
        let lacks = |index: &usize| !self.answers.has(*index);
        let lacking = (0..members).filter(lacks).count();
        // Where more lack than may go, one that is well again would not be let in, since nobody serves; and nobody can tell which that will be.
        if members < minimum + lacking {
            return None;
        }
        let own = self.config.index_of(self.me()).filter(lacks);
        let other = self
            .others()
            .find(lacks)
            .map(|index| (index, Reason::NotSealed(limit)));
        other.or(own.map(|own| (own, Reason::HangsHere(limit))))
    }

    /// This node's own place, where its disk keeps something waiting for as long as one would wait for another member that answers
    /// everything else: reads go on elsewhere by themselves, and writes with another write node.
    fn hangs_here(
        &self,
        now: Instant,
        me: NodeId,
        (room, may_lack): (RoomLeft, bool),
    ) -> Option<(usize, Reason)> {
        let own = self
            .config
            .index_of(me)
            .filter(|_| self.phase != Phase::Sealing)?;
        let times = match (room, may_lack) {
            (RoomLeft::Nothing, true) => 1,
            // The others are no better.
            (RoomLeft::Nothing, false) => return None,
            _ => HANGS_AFTER,
        };
        let longer = self.settings.suspect_after * times;
        let hangs = self.waits_for(now, own, longer);
        hangs.then_some((own, Reason::HangsHere(longer)))
    }
}
