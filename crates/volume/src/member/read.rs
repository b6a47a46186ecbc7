//! Reads: held while they overlap what is not settled or while this copy has no right to serve,
//! and checked again after the device has answered. Most have nothing against them, neither then nor before: these change nothing
//! else, and go past all that looks for what may have become possible.

use foundation::Instant;

use super::Member;
use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{BlockRange, IoToken, RequestId, WriterToken};
use crate::output::{Operation, Output, ReadPurpose, Request, Status};
use crate::planted::Bug;
use std::time::Duration;

#[derive(Debug)]
struct Read {
    request: RequestId,
    range: BlockRange,
    covers: BlockRange,
    arrived: Instant,
    /// Under which a portal asks; none for a native client, whose reads no token stands against.
    portal_token: Option<WriterToken>,
}

impl Read {
    fn new(now: Instant, request: &Request, covers: BlockRange) -> Self {
        Self {
            request: request.id,
            range: request.range,
            covers,
            arrived: now,
            portal_token: request.portal_token(),
        }
    }
}

/// A read that is held.
#[derive(Debug)]
struct Held {
    read: Read,
    /// Held too long: the client is told with the next chance.
    expired: bool,
    /// It did not fit its checksums: held until its blocks are repaired.
    damaged: bool,
}

/// A read that the device has.
#[derive(Debug)]
struct Reading {
    read: Read,
    io: IoToken,
    /// A write to the same pages has begun since.
    dirty: bool,
}

/// The reads of one copy. What happens while none is held costs nothing for those that the device has.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// In the order in which they came.
    held: Vec<Held>,
    /// In no order.
    reading: Vec<Reading>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.reading.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len() + self.reading.len()
    }

    /// Whether any is held.
    pub(super) fn any_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn add(&mut self, now: Instant, request: &Request, covers: BlockRange) {
        self.hold(Read::new(now, request, covers), false);
    }

    fn hold(&mut self, read: Read, damaged: bool) {
        let at = self
            .held
            .partition_point(|held| held.read.arrived <= read.arrived);
        let held = Held {
            read,
            expired: false,
            damaged,
        };
        self.held.insert(at, held);
    }

    /// Takes out the read that the device was asked for so.
    fn take_reading(&mut self, io: IoToken) -> Option<Reading> {
        let at = self.reading.iter().position(|reading| reading.io == io)?;
        Some(self.reading.swap_remove(at))
    }

    /// True if the read had not begun and is forgotten.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.read.request != request);
        self.held.len() < before
    }

    /// A write to these pages begins: what is being read from them now may be a mixture, and what was read wrong before
    /// is worth another look.
    pub(super) fn disturb(&mut self, covers: BlockRange) {
        for held in &mut self.held {
            held.damaged &= !held.read.covers.overlaps(covers);
        }
        for reading in &mut self.reading {
            reading.dirty |= reading.read.covers.overlaps(covers);
        }
    }

    /// What was read does not fit its checksums: it is held. Whether its blocks are to be repaired; not if a write to
    /// them has begun meanwhile, after which they are read again. None if this was no client's read.
    pub(super) fn damaged(&mut self, io: IoToken) -> Option<bool> {
        let reading = self.take_reading(io)?;
        let damaged = !reading.dirty;
        self.hold(reading.read, damaged);
        Some(damaged)
    }

    /// Forgets the read that the device was asked for so and names it; whether a write to its pages has begun meanwhile.
    pub(super) fn end(&mut self, io: IoToken) -> Option<(RequestId, bool)> {
        let Reading { read, dirty, .. } = self.take_reading(io)?;
        Some((read.request, dirty))
    }

    /// Forgets the reads that wait for a repair of these blocks and names them.
    pub(super) fn take_damaged(&mut self, range: BlockRange) -> Vec<RequestId> {
        let lost = |held: &mut Held| held.damaged && held.read.covers.overlaps(range);
        let taken = self.held.extract_if(.., lost);
        taken.map(|held| held.read.request).collect()
    }

    pub(super) fn expire(&mut self, now: Instant, hold: Duration) {
        for held in &mut self.held {
            held.expired |= now >= held.read.arrived + hold;
        }
    }

    /// Forgets the reads that are not with the device and names them.
    pub(super) fn fail(&mut self) -> Vec<RequestId> {
        self.held.drain(..).map(|held| held.read.request).collect()
    }

    /// Forgets the others, too.
    pub(super) fn forget_all(&mut self) -> Vec<RequestId> {
        let mut all = self.fail();
        all.extend(self.reading.drain(..).map(|reading| reading.read.request));
        all
    }

    pub(super) fn next_timeout(&self, hold: Duration) -> Option<Instant> {
        let waiting = self.held.iter().filter(|held| !held.expired);
        waiting.map(|held| held.read.arrived + hold).min()
    }
}

impl Member {
    fn grants_needed(&self, config: &ChunkConfig) -> usize {
        let minimum = usize::from(self.record.geometry.minimum);
        let count = config.members.len() + usize::from(self.announced);
        let needed = count.saturating_sub(minimum);
        if self.planted.is(Bug::OneGrantFewer) {
            return needed.saturating_sub(1);
        }
        needed
    }

    /// Rule 1 of the grants: whether this copy may answer reads of settled ranges now.
    pub(crate) fn may_read(&self, now: Instant, grants: &Grants) -> bool {
        let Some(config) = &self.config else {
            return self.planted.is(Bug::JoinerServes) && self.joined(self.record.sealed).is_some();
        };
        // One that is to be write node reads on while it seals and reconciles, as the others do: what may differ between copies
        // is what it does not know to be settled, and that is held.
        if !self.open
            || self.failed
            || config.epoch != self.record.sealed
            || !config.has(self.me, self.incarnation)
        {
            return false;
        }
        let needed = self.grants_needed(config);
        needed == 0 || grants.held(now, self.chunk(), config) >= needed
    }

    /// See [`crate::NodeCore::read_right`].
    pub(crate) fn read_right(&self, now: Instant, grants: &Grants) -> Option<Instant> {
        let config = self.config.as_ref()?;
        let quiet = self.window.is_empty() || self.planted.is(Bug::ReadRightDuringWrites);
        if !self.may_read(now, grants) || !quiet {
            return None;
        }
        let needed = self.grants_needed(config);
        let mut granted = grants.held_until(self.chunk(), config, needed);
        if self.planted.is(Bug::ReadRightPastGrants) {
            granted = now + self.settings.usable_term();
        }
        // Bounded although no grant bounds it: a new life of this node waits that long before it takes part in anything.
        Some(granted.min(now + self.settings.usable_term()))
    }

    fn must_hold(&self, covers: BlockRange) -> bool {
        if self.lead.is_some() && self.planted.is(Bug::WriteNodeReadsUnsettled)
            || self.lead.is_none() && self.planted.is(Bug::MemberReadsUnsettled)
        {
            return false;
        }
        self.window.unsettled(covers)
    }

    pub(super) fn pump_reads(&mut self, now: Instant, grants: &Grants) {
        if !self.reads.any_held() {
            return;
        }
        let right = self.may_read(now, grants);
        let mut at = 0;
        while let Some(held) = self.reads.held.get(at) {
            if let Some(status) = self.fenced_read(held.read.portal_token) {
                let Held { read, .. } = self.reads.held.remove(at);
                self.complete(read.request, status);
            } else if right && !held.damaged && !self.must_hold(held.read.covers) {
                let Held { read, .. } = self.reads.held.remove(at);
                let io = self.next_io();
                self.outputs.push_back(Output::LocalRead {
                    io,
                    range: read.range,
                    purpose: ReadPurpose::Request(read.request),
                });
                let dirty = false;
                self.reads.reading.push(Reading { read, io, dirty });
            } else if held.expired {
                let Held { read, .. } = self.reads.held.remove(at);
                self.complete(read.request, Status::NotReady);
            } else {
                at += 1;
            }
        }
    }

    /// A read against which nothing stands begins at once, and nothing else has changed: nobody waits for a read. None if it has to be
    /// looked at as all requests are.
    pub(crate) fn read_at_once(
        &mut self,
        now: Instant,
        grants: &Grants,
        request: &Request,
    ) -> Option<IoToken> {
        if request.operation != Operation::Read || self.reads.any_held() || self.refuse(request).is_some() {
            return None;
        }
        let covers = self.covers(request.range);
        if !self.may_read(now, grants) || self.must_hold(covers) {
            return None;
        }
        let io = self.next_io();
        let read = Read::new(now, request, covers);
        let dirty = false;
        self.reads.reading.push(Reading { read, io, dirty });
        Some(io)
    }

    /// The request whose read this was, if what was read may leave as it is and nothing else is to be done. None if the answer of
    /// the device has to be looked at as all are.
    pub(crate) fn end_read_at_once(
        &mut self,
        now: Instant,
        grants: &Grants,
        io: IoToken,
    ) -> Option<RequestId> {
        let at = self.reads.reading.iter().position(|reading| reading.io == io)?;
        let Reading { read, dirty, .. } = &self.reads.reading[at];
        // The caller's clock may be that of its turn, and the read may have been made by a later one in the same turn.
        let now = now.max(read.arrived);
        let is_fenced = self.fenced_read(read.portal_token).is_some();
        if self.failed || *dirty || is_fenced || !self.may_read(now, grants) || self.must_hold(read.covers) {
            return None;
        }
        Some(self.reads.reading.swap_remove(at).read.request)
    }

    /// The request whose read this was, if what was read may leave; else it is held again.
    pub(super) fn finish_read(&mut self, now: Instant, grants: &Grants, io: IoToken) -> Option<RequestId> {
        let Reading { read, dirty, .. } = self.reads.take_reading(io)?;
        let covers = read.covers;
        let disturbed = dirty && (self.must_hold(covers) || !self.reads_unsettled());
        let may_leave = self.may_read(now, grants) && !disturbed && !self.must_hold(covers);
        if self.failed || (may_leave && self.fenced_read(read.portal_token).is_none()) {
            return Some(read.request);
        }
        self.reads.hold(read, false);
        None
    }

    fn reads_unsettled(&self) -> bool {
        let bug = match self.lead {
            Some(_) => Bug::WriteNodeReadsUnsettled,
            None => Bug::MemberReadsUnsettled,
        };
        self.planted.is(bug)
    }
}
