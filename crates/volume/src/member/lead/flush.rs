//! Flushes of a chunk: those that hosts ask for, and the one after a while without writes.

use super::*;

impl Lead {
    /// Whether the write node's own part of the flush under way has this number.
    pub(in crate::member) fn flushes_by(&self, io: IoToken) -> bool {
        self.flush.as_ref().is_some_and(|flush| flush.io == io)
    }

    /// Takes who waits for a flush, or for the one after it, that for a while has waited for nothing but copies that lack room.
    pub(in crate::member) fn flush_waits_for_room(&mut self, now: Instant, lacking: u32) -> Vec<RequestId> {
        let (required, limit) = (self.required(), self.settings.suspect_after);
        let Some(began) = self.flush.as_ref().map(|flush| flush.began) else {
            return Vec::new();
        };
        let waited = self.seen(now, began);
        let flush = self.flush.as_mut().filter(|flush| {
            let missing = required & !flush.members;
            missing != 0 && missing & !lacking == 0 && waited > limit
        });
        let Some(flush) = flush else { return Vec::new() };
        let mut requests = std::mem::take(&mut flush.requests);
        requests.append(&mut self.flush_waiting);
        requests
    }

    /// Whether this was the write node's own part of a flush.
    pub(in crate::member) fn local_flushed(&mut self, io: IoToken) -> bool {
        let me = self.config.index_of(self.config.write_node);
        match (&mut self.flush, me) {
            (Some(flush), Some(me)) if flush.io == io => {
                flush.members |= 1 << me;
                true
            }
            _ => false,
        }
    }
}

impl Member {
    pub(in crate::member) fn idle_flush_due(&self) -> Option<Instant> {
        let lead = self.lead.as_ref()?;
        let idle = lead.phase == Phase::Serving && lead.requests() == 0 && lead.flush.is_none();
        let due = lead.last_activity + self.settings.idle_flush_after;
        (idle && (!self.intent.is_empty() || lead.owed_flushes > 0)).then_some(due)
    }

    pub(in crate::member) fn start_flush(&mut self, now: Instant) {
        let idle = self.idle_flush_due().is_some_and(|due| due <= now);
        let io = IoToken(self.next_io + 1);
        let chunk = self.chunk();
        let Some(lead) = &mut self.lead else {
            return;
        };
        let serves = lead.phase == Phase::Serving;
        // A portal flushes every chunk, since it does not know what its hosts wrote through others.
        let is_clean = lead.flushed_last > Sequence(0) && lead.flushed_last == lead.last_sequence;
        if serves && is_clean && lead.in_flight.is_empty() {
            for request in std::mem::take(&mut lead.flush_waiting) {
                self.outputs.push_back(Output::Complete {
                    request,
                    status: Status::Done,
                });
            }
        }
        let asked = !lead.flush_waiting.is_empty();
        if !(serves && lead.flush.is_none() && (asked || idle)) && !lead.join_wants_flush() {
            return;
        }
        // One that was under way may wait for a member that has ended: its requests wait for this one instead.
        let earlier = lead.flush.take();
        let began = earlier.as_ref().map_or(now, |flush| flush.began);
        let mut requests = earlier.map_or(Vec::new(), |flush| flush.requests);
        if serves {
            requests.append(&mut lead.flush_waiting);
        }
        lead.flushes += 1;
        if !lead.waits_for_answers() {
            lead.resend_at = now + self.settings.resend_interval;
        }
        let (epoch, number) = (lead.config.epoch, lead.flushes);
        let covers = lead.settled();
        if self.planted.is(Bug::IntentClearedBeforeFlush) {
            lead.flushed = covers;
            lead.settle_at = Some(now);
        }
        lead.flush = Some(LeadFlush {
            number,
            io,
            requests,
            covers,
            members: 0,
            began,
        });
        let joiner = lead.joiner();
        let others: Vec<usize> = lead.others().collect();
        let nodes: Vec<NodeId> = others.iter().map(|&i| lead.config.members[i].node).collect();
        self.next_io = io.0;
        self.outputs.push_back(Output::LocalFlush { io });
        let to_members = nodes.into_iter().map(|to| (to, JoinNumber(0)));
        for (to, join) in to_members.chain(joiner) {
            let message = Message::Flush {
                chunk,
                epoch,
                number,
                join,
            };
            self.send(to, message, None);
        }
        if self.planted.is(Bug::IntentClearedBeforeFlush) {
            self.clear_marks(covers);
        }
    }

    pub(in crate::member) fn handle_flush_answer(
        &mut self,
        now: Instant,
        (from, incarnation, join): (NodeId, Incarnation, JoinNumber),
        epoch: Epoch,
        number: u64,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.config.epoch == epoch) else {
            return;
        };
        let numberless = self.planted.is(Bug::JoinWithoutNumber);
        let Some((bit, _)) = lead.answerer(now, (from, incarnation), join, numberless) else {
            return;
        };
        if let Some(flush) = lead.flush.as_mut().filter(|f| f.number == number) {
            flush.members |= bit;
            if bit == JOINER {
                self.join_flushed(now, number);
            }
            self.finish_flush(now);
        }
    }

    pub(in crate::member) fn finish_flush(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        let all = lead.required();
        let Some(flush) = lead.flush.take_if(|f| f.members & all == all) else {
            return;
        };
        lead.owed_flushes = lead.owed_flushes.saturating_sub(1);
        lead.flushed = lead.flushed.max(lead.flushed_last);
        lead.flushed_last = flush.covers;
        lead.last_activity = now;
        lead.settle_at.get_or_insert(now + self.settings.settle_delay);
        let flushed = lead.flushed;
        for request in flush.requests {
            self.complete(request, Status::Done);
        }
        self.clear_marks(flushed);
    }
}
