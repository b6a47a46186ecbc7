//! Reads: held while they overlap what is not settled or while this copy has no right to serve,
//! and checked again after the device has answered.

use foundation::Instant;

use super::Member;
use super::lead::Phase;
use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{BlockRange, IoToken, RequestId};
use crate::output::{Output, ReadPurpose, Request, Status};
use crate::planted::Bug;
use std::time::Duration;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Held,
    /// Held too long: the client is told with the next chance.
    Expired,
    /// With the device. Dirty: a write to the same pages has begun since.
    Reading {
        io: IoToken,
        dirty: bool,
    },
}

#[derive(Debug)]
struct Read {
    request: RequestId,
    range: BlockRange,
    covers: BlockRange,
    arrived: Instant,
    state: State,
    /// It did not fit its checksums: held until its blocks are repaired.
    damaged: bool,
}

/// The reads of one copy, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Reads {
    reads: Vec<Read>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.reads.len()
    }

    pub(super) fn add(&mut self, now: Instant, request: &Request, covers: BlockRange) {
        self.reads.push(Read {
            request: request.id,
            range: request.range,
            covers,
            arrived: now,
            state: State::Held,
            damaged: false,
        });
    }

    /// True if the read had not begun and is forgotten.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let waits = |r: &Read| r.request == request && !matches!(r.state, State::Reading { .. });
        let before = self.reads.len();
        self.reads.retain(|read| !waits(read));
        self.reads.len() < before
    }

    /// A write to these pages begins: what is being read from them now may be a mixture, and what was read wrong before
    /// is worth another look.
    pub(super) fn disturb(&mut self, covers: BlockRange) {
        for read in &mut self.reads {
            read.damaged &= !read.covers.overlaps(covers);
            if let State::Reading { dirty, .. } = &mut read.state {
                *dirty |= read.covers.overlaps(covers);
            }
        }
    }

    /// What was read does not fit its checksums: it is held. Whether its blocks are to be repaired; not if a write to
    /// them has begun meanwhile, after which they are read again. None if this was no client's read.
    pub(super) fn damaged(&mut self, io: IoToken) -> Option<bool> {
        let is_it = |r: &&mut Read| matches!(r.state, State::Reading { io: token, .. } if token == io);
        let read = self.reads.iter_mut().find(is_it)?;
        read.damaged = matches!(read.state, State::Reading { dirty: false, .. });
        read.state = State::Held;
        Some(read.damaged)
    }

    /// Forgets the reads that wait for a repair of these blocks and names them.
    pub(super) fn take_damaged(&mut self, range: BlockRange) -> Vec<RequestId> {
        let lost = |read: &mut Read| read.damaged && read.covers.overlaps(range);
        self.reads.extract_if(.., lost).map(|read| read.request).collect()
    }

    pub(super) fn expire(&mut self, now: Instant, hold: Duration) {
        for read in &mut self.reads {
            if read.state == State::Held && now >= read.arrived + hold {
                read.state = State::Expired;
            }
        }
    }

    /// Forgets the reads that are not with the device and names them.
    pub(super) fn fail(&mut self) -> Vec<RequestId> {
        let reading = |r: &Read| matches!(r.state, State::Reading { .. });
        let failed = self.reads.iter().filter(|r| !reading(r)).map(|r| r.request);
        let failed = failed.collect();
        self.reads.retain(reading);
        failed
    }

    /// Forgets the others, too.
    pub(super) fn forget_all(&mut self) -> Vec<RequestId> {
        self.reads.drain(..).map(|read| read.request).collect()
    }

    pub(super) fn next_timeout(&self, hold: Duration) -> Option<Instant> {
        let held = self.reads.iter().filter(|r| r.state == State::Held);
        held.map(|r| r.arrived + hold).min()
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
        let leads = self.lead.as_ref();
        if !self.open
            || self.failed
            || config.epoch != self.record.sealed
            || !config.has(self.me, self.incarnation)
            || leads.is_some_and(|lead| lead.phase != Phase::Serving)
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
        if self.reads.is_empty() {
            return;
        }
        let right = self.may_read(now, grants);
        let mut at = 0;
        while at < self.reads.reads.len() {
            let read = &self.reads.reads[at];
            let (range, request) = (read.range, read.request);
            let waits = !matches!(read.state, State::Reading { .. });
            if waits && right && !read.damaged && !self.must_hold(read.covers) {
                let io = self.next_io();
                self.reads.reads[at].state = State::Reading { io, dirty: false };
                self.outputs.push_back(Output::LocalRead {
                    io,
                    range,
                    purpose: ReadPurpose::Request(request),
                });
            } else if read.state == State::Expired {
                self.reads.reads.remove(at);
                self.complete(request, Status::NotReady);
                continue;
            }
            at += 1;
        }
    }

    /// The request whose read this was, if what was read may leave; else it is held again.
    pub(super) fn finish_read(&mut self, now: Instant, grants: &Grants, io: IoToken) -> Option<RequestId> {
        let is_it = |r: &Read| matches!(r.state, State::Reading { io: token, .. } if token == io);
        let at = self.reads.reads.iter().position(is_it)?;
        let dirty = matches!(self.reads.reads[at].state, State::Reading { dirty: true, .. });
        let covers = self.reads.reads[at].covers;
        let disturbed = dirty && (self.must_hold(covers) || !self.reads_unsettled());
        if self.failed || (self.may_read(now, grants) && !disturbed && !self.must_hold(covers)) {
            return Some(self.reads.reads.remove(at).request);
        }
        self.reads.reads[at].state = State::Held;
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
