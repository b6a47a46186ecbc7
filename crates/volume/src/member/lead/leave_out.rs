//! Members that are left out: those that say they have no copy, and those that say nothing.

use super::*;

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

    pub(super) fn propose_without_silent(&mut self, now: Instant) {
        let minimum = usize::from(self.record.geometry.minimum);
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
        let Some((silent, reason)) = lead.suspect(now) else {
            return;
        };
        lead.proposed_at = Some(now);
        let expected = lead.config.epoch;
        let mut config = lead.config.clone();
        config.epoch = expected.next();
        config.members.remove(silent);
        self.outputs.push_back(Output::Propose {
            expected,
            config,
            reason,
        });
    }
}
