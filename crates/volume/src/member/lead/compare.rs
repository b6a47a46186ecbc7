//! Writes that are made only if their blocks hold what is expected (fused Compare and Write).
//!
//! Such a write waits among the others. When nothing stands against it, no write of its blocks is in flight: the write node's own copy
//! has what is settled. It gets no place in the order yet; its blocks are read here, and no write of them begins meanwhile. If they
//! hold what is expected it becomes a write like any other, so what was compared is what it replaces, in the one order that all
//! writes have. If they do not, that is answered as a read would be: only under the grants.

use super::*;
use crate::grants::Grants;

/// A write whose blocks are being read.
#[derive(Debug)]
pub(in crate::member) struct Comparing {
    io: IoToken,
    pub(super) request: Request,
    pub(super) covers: BlockRange,
}

impl Queued {
    /// Whether its blocks are to be compared first. One that had begun in the epoch before has been compared, and nobody else has
    /// written since ([`Lead::goes_on_after`]).
    pub(super) fn compares(&self) -> bool {
        self.request.compares() && !self.begun
    }
}

impl Lead {
    /// Whether a repair of these blocks is under way or waits.
    pub(super) fn is_repaired_in(&self, covers: BlockRange) -> bool {
        self.repairs.iter().any(|repair| repair.overlaps(covers))
    }

    /// Whether what was in flight in the epoch `before` may go on in this one. A write that was compared may not if there was an epoch
    /// between, in which another write node may have changed its blocks.
    pub(in crate::member) fn goes_on_after(&self, before: Epoch, request: &Request) -> bool {
        !request.compares() || self.config.epoch == before.next()
    }

    /// Takes what is being compared, to be compared anew.
    pub(in crate::member) fn take_comparing(&mut self) -> impl Iterator<Item = Queued> + use<> {
        std::mem::take(&mut self.comparing)
            .into_iter()
            .map(|comparing| Queued::new(comparing.request))
    }

    /// Forgets one that is being compared. What is read for it says nothing any more.
    pub(super) fn cancel_comparing(&mut self, request: RequestId) -> Option<Request> {
        let at = self.comparing.iter().position(|c| c.request.id == request)?;
        Some(self.comparing.swap_remove(at).request)
    }

    fn take_compared(&mut self, io: IoToken) -> Option<Comparing> {
        let at = self.comparing.iter().position(|comparing| comparing.io == io)?;
        Some(self.comparing.swap_remove(at))
    }
}

impl Member {
    /// Whether a write is compared though one of its blocks is under way.
    pub(super) fn skips_block(&self, queued: &Queued) -> bool {
        queued.compares() && self.planted.is(Bug::ComparedBeforeSettled)
    }

    /// A host that does not know whether a write that compared first was done claims the chunk anew, and reads. So a claim waits for those
    /// in flight of its host: when it is in force they are on every copy, or nothing will come of them. No further ones begin meanwhile.
    /// (The repetition of another write waits by itself for what it overlaps.)
    pub(super) fn waits_for_claim(&self, request: &Request, at: usize) -> bool {
        let host = request.session.host;
        let Some(lead) = self.lead.as_ref().filter(|_| host.is_through_portals()) else {
            return false;
        };
        let is_its = |other: &Request| other.session.host == host;
        if request.operation.is_fence() {
            let mut in_flight = lead.in_flight.iter().filter_map(|flight| flight.request.as_ref());
            return in_flight.any(|other| is_its(other) && other.compares())
                && !self.planted.is(Bug::ClaimBeforeCompared);
        }
        let mut before = lead.waiting.iter().take(at).map(|queued| &queued.request);
        request.compares() && before.any(|other| is_its(other) && other.operation.is_fence())
    }

    /// Reads the blocks of a write that nothing stands against.
    pub(super) fn compare(&mut self, request: Request) {
        let covers = self.covers(request.range);
        let is_settled = !self.window.unsettled(covers) || self.planted.is(Bug::ComparedBeforeSettled);
        let has_copy = |lead: &Lead| lead.config.index_of(self.me).is_some();
        if !is_settled || !self.lead.as_ref().is_some_and(has_copy) {
            return self.end_compare(&request, Status::NotReady);
        }
        let io = self.next_io();
        let covers = match self.planted.is(Bug::ComparedInTwoSteps) {
            true => BlockRange::default(),
            false => covers,
        };
        if let Some(lead) = &mut self.lead {
            lead.comparing.push(Comparing { io, request, covers });
            let purpose = ReadPurpose::Compare(request.id);
            let range = request.range;
            self.outputs.push_back(Output::LocalRead { io, range, purpose });
        }
    }

    /// The blocks of a write hold what it expects, or they do not.
    pub fn handle_compared(&mut self, now: Instant, grants: &mut Grants, io: IoToken, are_alike: bool) {
        let compared = self.lead.as_mut().and_then(|lead| lead.take_compared(io));
        if let Some(Comparing { request, .. }) = compared {
            match self.fenced(&request) {
                Some(status) => self.end_compare(&request, status),
                None if are_alike => self.write_compared(now, request),
                // What was read is what the chunk holds only while no other write node can serve it.
                None if self.may_read(now, grants) => self.end_compare(&request, Status::Differs),
                None => self.end_compare(&request, Status::NotReady),
            }
        }
        self.pump(now, grants);
    }

    fn write_compared(&mut self, now: Instant, request: Request) {
        let covers = self.covers(request.range);
        let Some(lead) = &self.lead else { return };
        // A repair, a cut or another token may have come between: then it waits for its turn as before.
        let stands = lead.phase == Phase::Serving
            && !lead.is_cutting()
            && !lead.in_flight.iter().any(|flight| flight.covers.overlaps(covers));
        if stands && !self.takes_over(&request) && !self.holds_for_join(&request)
            || self.planted.is(Bug::ComparedInTwoSteps)
            || self.planted.is(Bug::ComparedBeforeSettled)
        {
            self.start_write(now, request);
        } else if let Some(lead) = &mut self.lead {
            lead.waiting.push_front(Queued::new(request));
        }
    }

    /// What was read for a write does not fit its checksums: it is compared anew when that is repaired. False if this read was for none.
    pub(in crate::member) fn compare_damaged(&mut self, now: Instant, io: IoToken, blocks: &[u32]) -> bool {
        let compared = self.lead.as_mut().and_then(|lead| lead.take_compared(io));
        let Some(Comparing { request, .. }) = compared else {
            return false;
        };
        self.want_repair(now, blocks);
        let covers = self.covers(request.range);
        match &mut self.lead {
            Some(lead) if lead.is_repaired_in(covers) => lead.waiting.push_front(Queued {
                damaged: true,
                ..Queued::new(request)
            }),
            // More is being repaired than has room.
            _ => self.end_compare(&request, Status::NotReady),
        }
        true
    }

    /// What waits for a repair of these blocks ends so: no copy has them right, or the repair is given up.
    pub(in crate::member) fn end_damaged_compares(&mut self, range: BlockRange, status: Status) {
        let page_blocks = self.record.geometry.page_blocks();
        let Some(lead) = &mut self.lead else { return };
        let is_lost =
            |queued: &Queued| queued.damaged && queued.request.range.rounded_to(page_blocks).overlaps(range);
        let (lost, rest): (Vec<_>, Vec<_>) = lead.waiting.drain(..).partition(is_lost);
        lead.waiting = rest.into();
        for queued in lost {
            self.end_compare(&queued.request, status);
        }
    }

    fn end_compare(&mut self, request: &Request, status: Status) {
        self.give_back(request.data());
        self.complete(request.id, status);
    }
}
