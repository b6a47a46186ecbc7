//! Copies whose disks have little room, or none (`docs/decisions/0134`).
//!
//! A copy says with its answers that little is left where it lies. The write node then takes no write that needs more, or, if enough
//! copies have room, leaves that one out. What finds no room all the same is kept here and made again once there is some: it has
//! not been answered, so nothing that was acknowledged waits for it, and the copy goes on with everything else, reads of what is
//! settled first of all. A new epoch gives up what is kept: its region is marked, and is made equal.

use std::time::Duration;

use foundation::{Epoch, Instant};

use super::Member;
use super::lead::{Flight, HANGS_AFTER, Lead, Phase};
use crate::grants::Grants;
use crate::identity::{Incarnation, IoToken, NodeId};
use crate::message::{Refusal, RoomLeft, WriteKind};
use crate::output::{Output, Reason, Request, Status};
use crate::planted::Bug;

/// A chunk takes no more writes while so many wait for room of which their clients have been told.
const GIVEN_UP_MAX: usize = 64;

/// What a copy knows of the room on its disk.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Little is left, for this copy and others.
    is_short: bool,
    /// Flushes that found none.
    flushes: Vec<IoToken>,
    /// A change of the record has found none.
    record: bool,
    /// Little was left when it was left out: it comes back when there is more.
    left_out: bool,
}

/// See [`Member::room_for`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomFor {
    /// It may begin.
    It,
    /// That is being found out, or one without room is being left out.
    Later,
    /// Too few copies have any, or the write would wait for one that waits for room.
    Nothing,
}

/// A write node's search for room, while some copy is short.
#[derive(Debug)]
pub(super) struct RoomSought {
    /// Since when something waits for which not all copies have room, but enough.
    wanted: Option<Instant>,
    /// How long something waits at most for others to say whether they have room, or for one without to be left out.
    pub(super) until: Option<Instant>,
    /// Until then who has not said lately whether it has room is not asked again.
    believed_until: Instant,
}

impl RoomSought {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            wanted: None,
            until: None,
            believed_until: now,
        }
    }

    /// Whether who has been silent is asked.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        now >= self.believed_until
    }

    /// Who has been asked for room and does not answer is not waited for any longer; `limit` is how long others may be silent.
    pub(super) fn give_up(&mut self, now: Instant, limit: Duration) {
        if self.until.take_if(|until| *until <= now).is_some() {
            self.believed_until = now + limit * HANGS_AFTER;
        }
    }
}

impl Room {
    /// Whether a copy that is not in sync had better wait.
    pub(super) fn keeps_out(&self) -> bool {
        self.left_out
    }
}

impl Member {
    /// Whether something waits here for room on the disk.
    pub fn lacks_room(&self) -> bool {
        self.window.any_parked() || !self.room.flushes.is_empty() || self.room.record
    }

    /// What this copy says of its disk with its answers.
    pub(super) fn room_left(&self) -> RoomLeft {
        match (self.lacks_room(), self.room.is_short) {
            (true, _) => RoomLeft::Nothing,
            (false, true) => RoomLeft::Little,
            (false, false) => RoomLeft::Enough,
        }
    }

    /// Whether it matters to this write node, now or soon, which writes need room ([`Request::needs_room`]): it knows of a copy of which
    /// little room is left, its own among them, or may come to know of one before the write begins.
    pub fn looks_at_room(&self) -> bool {
        let own = self.room_left();
        let lead = self.lead.as_ref();
        lead.is_some_and(|lead| lead.phase != Phase::Serving || lead.short(own) != 0)
    }

    /// A write or flush has found no room. It may have been done in part.
    pub(crate) fn handle_full(&mut self, now: Instant, grants: &mut Grants, io: IoToken) {
        if self.planted.is(Bug::NoRoomTakenForDone) {
            return self.handle_local(now, grants, io, true, None);
        }
        let drains = self.pending_seal.as_ref().is_some_and(|seal| seal.draining);
        if let Some(epoch) = self.window.by_io(io).map(|entry| entry.epoch) {
            let is_in = self.config.as_ref().is_some_and(|config| config.epoch == epoch);
            self.window.park(io);
            if let Some((to, _)) = self.joined(epoch) {
                // It would hold up the writes of those that have room.
                self.forget_parked();
                self.room.left_out = true;
                self.leave_join();
                self.refuse_command(to, epoch, Refusal::DeviceFailed);
            } else if self.failed || !is_in {
                self.forget_parked();
            } else if drains {
                self.give_up_parked();
            }
        } else if self.flushes(io) {
            self.room.flushes.push(io);
        }
        self.pump(now, grants);
    }

    /// A change of the record has found no room; it will be made durable with the next attempt.
    pub(crate) fn handle_record_full(&mut self, now: Instant, grants: &mut Grants) {
        self.room.record = true;
        self.pump(now, grants);
    }

    /// The record is durable so far.
    pub(super) fn record_has_room(&mut self) {
        if std::mem::take(&mut self.room.record) {
            self.room.left_out &= self.room_left() != RoomLeft::Enough;
        }
    }

    /// There may be room for what is kept.
    pub(crate) fn handle_room(&mut self, now: Instant, grants: &mut Grants) {
        for (io, entry) in self.window.unpark() {
            self.outputs.push_back(Output::LocalWrite {
                io,
                range: entry.range,
                kind: entry.kind,
                data: entry.data,
                force_unit_access: entry.force_unit_access,
                is_resync: entry.is_resync,
            });
        }
        for io in std::mem::take(&mut self.room.flushes) {
            if self.flushes(io) {
                self.outputs.push_back(Output::LocalFlush { io });
            }
        }
        self.room.left_out &= self.room.is_short;
        self.pump(now, grants);
    }

    /// Little room is left on the disk, or there is enough again.
    pub(crate) fn set_short(&mut self, now: Instant, grants: &mut Grants, is_short: bool) {
        self.room.is_short = is_short;
        self.room.left_out &= self.room_left() != RoomLeft::Enough;
        self.pump(now, grants);
    }

    fn flushes(&self, io: IoToken) -> bool {
        let leads = self.lead.as_ref().is_some_and(|lead| lead.flushes_by(io));
        leads || self.flush.as_ref().is_some_and(|flush| flush.io == io)
    }

    /// Gives up what is kept, since the copy has another epoch before it. Until that is served it is not known to be settled, and not read.
    pub(super) fn give_up_parked(&mut self) {
        for data in self.window.give_up_parked() {
            self.release(Some(data));
        }
        self.room.flushes.clear();
    }

    /// Forgets what is kept: the copy takes no part.
    pub(super) fn forget_parked(&mut self) {
        for data in self.window.forget_parked() {
            self.release(Some(data));
        }
        self.room.flushes.clear();
    }

    /// This copy is left out.
    pub(super) fn leave_without_room(&mut self) {
        self.room.left_out = self.room_left() != RoomLeft::Enough;
        self.forget_parked();
    }

    /// Whether there is room for a write that waits to be ordered.
    pub(super) fn room_for(&mut self, now: Instant, request: &Request) -> RoomFor {
        let covers = self.covers(request.range);
        let (own, minimum) = (self.room_left(), usize::from(self.record.geometry.minimum));
        let (is_fence, stores) = (request.operation.is_fence(), request.operation.stores());
        let takes_over = request.writer_token > self.record.writer_token;
        let limit = self.settings.suspect_after;
        let Some(lead) = &mut self.lead else {
            return RoomFor::It;
        };
        let short = lead.short(own);
        if short == 0 {
            lead.room.wanted = None;
            return RoomFor::It;
        }
        let lacking = lead.lacking(own);
        let waits = |flight: &Flight| {
            let is_before = !is_fence && flight.covers.overlaps(covers) || takes_over && flight.is_hosts();
            is_before && lead.waits_for_room(now, flight, lacking)
        };
        if lead.in_flight.iter().any(waits) {
            return RoomFor::Nothing;
        }
        let given_up = lead.in_flight.iter().filter(|flight| flight.is_given_up);
        if stores && given_up.count() >= GIVEN_UP_MAX {
            return RoomFor::Nothing;
        }
        if !stores || !request.needs_room {
            return RoomFor::It;
        }
        if lead.knows_little_of_room(now) {
            if lead.room.until.is_none() {
                lead.room.until = Some(now + limit);
                self.ask_others_how_they_are();
            }
            return RoomFor::Later;
        }
        lead.room.until = None;
        if !lead.enough_have_room(own, minimum) {
            return RoomFor::Nothing;
        }
        let since = *lead.room.wanted.get_or_insert(now);
        // If the masters do not answer, what is left has to do.
        let goes_on = now.since(since) >= limit;
        if !goes_on {
            lead.room.until = Some(since + limit);
        }
        self.propose_without_silent(now);
        match goes_on {
            true => RoomFor::It,
            false => RoomFor::Later,
        }
    }

    fn ask_others_how_they_are(&mut self) {
        let Some(lead) = &self.lead else { return };
        let others = lead.others().map(|index| lead.config.members[index].node);
        for to in others.collect::<Vec<_>>() {
            self.ask_how_it_is(to);
        }
    }

    /// Ends requests that wait for nothing but room: perhaps done, perhaps still to be done. Their writes stay in flight.
    pub(super) fn end_without_room(&mut self, now: Instant) {
        let own = self.room_left();
        let Some(lead) = &mut self.lead else { return };
        let lacking = lead.lacking(own);
        let waiting = |flight: &&Flight| {
            // What becomes of a write that compares has to be known before the claim ends.
            let compares = flight.request.is_some_and(|request| request.compares());
            !compares
                && flight.write.kind != WriteKind::Fence
                && lacking != 0
                && lead.waits_for_room(now, flight, lacking)
        };
        let sequences = lead
            .in_flight
            .iter()
            .filter(waiting)
            .map(|flight| flight.write.sequence);
        let sequences: Vec<_> = sequences.collect();
        let flights = lead.in_flight.iter_mut();
        let ended = flights.filter(|flight| sequences.contains(&flight.write.sequence));
        let ended: Vec<_> = ended
            .filter_map(|flight| {
                let request = flight.request.take()?;
                flight.is_given_up = true;
                Some(request.id)
            })
            .collect();
        let flush = lead.flush_waits_for_room(now, lacking);
        // Nothing is begun before the epoch is served, and that waits for room.
        let reconciles = lead.phase == Phase::Reconciling && lacking != 0;
        if reconciles
            && lead
                .in_flight
                .iter()
                .any(|flight| lead.waits_for_room(now, flight, lacking))
        {
            let flushes = std::mem::take(&mut lead.flush_waiting);
            for _ in 0..lead.waiting.len() {
                self.refuse_for_room(0);
            }
            for request in flushes {
                self.complete(request, Status::NoRoom);
            }
        }
        for request in ended.into_iter().chain(flush) {
            self.complete(request, Status::NoRoom);
        }
    }

    /// As write node: a member of a release before that had no room is to take part again, in a new epoch of the same members.
    pub(super) fn take_back(&mut self, now: Instant, node: NodeId) {
        let limit = self.settings.suspect_after;
        let Some(lead) = &self.lead else { return };
        let asked = lead.proposed_at.is_some_and(|at| now.since(at) < limit);
        // A join that binds brings a new epoch by itself.
        if !asked && !lead.join_binds() {
            self.propose_same_members(now, Reason::RoomAgain(node));
        }
    }

    /// A member says with its answer whether little room is left there.
    pub(super) fn is_told_of_room(
        &mut self,
        now: Instant,
        from: (NodeId, Incarnation),
        epoch: Epoch,
        room: RoomLeft,
    ) {
        if let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) {
            lead.told_of_room(now, from, room);
        }
    }

    /// Asks a member of which something is late how it is: its answer says whether it lacks room.
    pub(super) fn ask_how_it_is(&mut self, to: NodeId) {
        let message = self.settle_message();
        self.outputs.extend(message.map(|message| Output::Send {
            to,
            message,
            data: None,
        }));
    }
}

impl Lead {
    /// The members of which little room or none is known to be left; `own` is said of the write node's.
    pub(super) fn short(&self, own: RoomLeft) -> u32 {
        self.with_at_most(RoomLeft::Little, own)
    }

    /// Of these, the ones where something waits for room.
    fn lacking(&self, own: RoomLeft) -> u32 {
        self.with_at_most(RoomLeft::Nothing, own)
    }

    fn with_at_most(&self, room: RoomLeft, own: RoomLeft) -> u32 {
        let me = self.config.index_of(self.me()).filter(|_| own >= room);
        let others = self.others().filter(|&index| self.told_room(index) >= room);
        others.chain(me).fold(0, |members, index| members | 1 << index)
    }

    /// Whether a write has waited for a while, and for nothing but copies that lack room.
    fn waits_for_room(&self, now: Instant, flight: &Flight, lacking: u32) -> bool {
        let missing = self.required() & !flight.members;
        missing != 0
            && missing & !lacking == 0
            && self.seen(now, flight.first_sent) > self.settings.suspect_after
    }

    /// Whether so many members have room that the others may be left out.
    pub(super) fn enough_have_room(&self, own: RoomLeft, minimum: usize) -> bool {
        self.config.members.len() - self.short(own).count_ones() as usize >= minimum
    }

    /// A member of which too little room is left for what is to be written; `minimum` copies have room.
    pub(super) fn without_room(&self, own: RoomLeft, minimum: usize) -> Option<(usize, Reason)> {
        let short = self.short(own);
        let leaves = self.room.wanted.is_some() && short != 0 && self.enough_have_room(own, minimum);
        leaves.then_some((short.trailing_zeros() as usize, Reason::NoRoom))
    }
}
