//! What members are told of what every copy has, and what they say of themselves with their answers.

use super::*;

impl Lead {
    pub(in crate::member) fn settle_answered(
        &mut self,
        now: Instant,
        from: NodeId,
        incarnation: Incarnation,
        epoch: Epoch,
        (settled, flushed, open): (Sequence, Sequence, bool),
    ) {
        if epoch != self.config.epoch {
            return;
        }
        if let Some(index) = self.member(from, incarnation) {
            self.heard(now, index);
            let told = &mut self.told[index];
            told.settled = told.settled.max(settled);
            told.flushed = told.flushed.max(flushed);
            told.open |= open;
        }
    }

    /// What a member says of the room on its disk. One that has little is asked again from time to time.
    pub(in crate::member) fn told_of_room(
        &mut self,
        now: Instant,
        (node, incarnation): (NodeId, Incarnation),
        room: RoomLeft,
    ) {
        let Some(index) = self.member(node, incarnation) else {
            return;
        };
        (self.told[index].room, self.told[index].room_at) = (room, Some(now));
        if room != RoomLeft::Enough {
            self.settle_at.get_or_insert(now + self.settings.suspect_after);
        }
    }

    /// Whether some member has not said for a while whether it has room.
    pub(in crate::member) fn knows_little_of_room(&self, now: Instant) -> bool {
        let is_old = |at: Option<Instant>| at.is_none_or(|at| now.since(at) > self.settings.suspect_after);
        self.room.may_ask(now) && self.others().any(|index| is_old(self.told[index].room_at))
    }

    /// How much room a member has said it has.
    pub(in crate::member) fn told_room(&self, index: usize) -> RoomLeft {
        self.told[index].room
    }
}

impl Member {
    pub(in crate::member) fn settle_soon(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        if lead.phase == Phase::Serving {
            self.window.settle(lead.settled());
            lead.settle_at.get_or_insert(now + self.settings.settle_delay);
        }
    }

    /// Settled-through as it is now; none if this is no write node.
    pub(in crate::member) fn settle_message(&self) -> Option<Message> {
        let lead = self.lead.as_ref()?;
        Some(Message::Settle {
            chunk: self.chunk(),
            epoch: lead.config.epoch,
            settled: lead.settled(),
            flushed: lead.flushed,
            open: lead.phase == Phase::Serving,
        })
    }

    pub(super) fn send_settled(&mut self, now: Instant) {
        let Some(message) = self.settle_message() else {
            return;
        };
        let Some(lead) = &mut self.lead else {
            return;
        };
        let (settled, flushed) = (lead.settled(), lead.flushed);
        let open = lead.phase == Phase::Serving;
        let told = |t: &Told| t.settled >= settled && t.flushed >= flushed && t.open == open;
        let untold = |index: &usize| !told(&lead.told[*index]);
        let short = |index: &usize| lead.told[*index].room != RoomLeft::Enough;
        let again = match (
            lead.others().any(|index| untold(&index)),
            lead.others().any(|index| short(&index)),
        ) {
            (true, _) => Some(self.settings.resend_interval),
            // Until it says that it has room again.
            (false, true) => Some(self.settings.suspect_after),
            (false, false) => None,
        };
        let asked = lead.others().filter(|index| untold(index) || short(index));
        let nodes: Vec<NodeId> = asked.map(|index| lead.config.members[index].node).collect();
        lead.settle_at = again.map(|pause| now + pause);
        for to in nodes {
            self.send(to, message.clone(), None);
        }
    }
}
