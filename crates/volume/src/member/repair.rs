//! Blocks that do not fit their checksums, and how they get their bytes back (`docs/decisions/0069`).
//!
//! Whoever reads such a block tells the write node. There a repair is a write like any other: it takes its place in the
//! chunk's order before its bytes are looked for, waits for the writes in flight on its block, and later ones on this
//! block wait for it. Its bytes are those of the write node's own copy, if they fit their sum, or else of another
//! member's. Every copy gets them. So a repair never takes the place of a newer write.
//!
//! If no copy has the block right, whoever reads it gets an error until somebody writes it. A copy that is made or comes back
//! meanwhile is told so in the repair's place, and has the block wrong like all others (`docs/decisions/0132`).

use std::collections::VecDeque;
use std::time::Duration;

use foundation::{Epoch, Instant};

use super::Member;
use super::join::JOINER;
use super::lead::{Flight, Lead, Phase};
use crate::identity::{BlockRange, DataToken, Incarnation, IoToken, JoinNumber, NodeId, Sequence};
use crate::message::{Message, Refusal, ReplicaWrite, WriteKind};
use crate::output::{Output, ReadPurpose, Status};
use crate::planted::Bug;

/// The most blocks that wait for their repair in one chunk. More are noticed again when they are read again.
const REPAIRS_MAX: usize = 64;
/// The most with those that stand ([`Lead::stands`]): their bytes are kept.
const STANDING_MAX: usize = 512;
/// The most reads for a write node's repairs that one copy makes at a time.
const FETCHES_MAX: usize = 64;
/// The place of the copy that joins among those that were asked for a block.
const JOINER_INDEX: usize = JOINER.trailing_zeros() as usize;
/// A copy that cannot be let in since a block is lost is not let in again before.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(10);

/// One block on its way to its right bytes.
#[derive(Debug)]
pub(super) struct Repair {
    covers: BlockRange,
    /// Members that read it.
    askers: Vec<NodeId>,
    /// Its place in the order of writes, once it has begun.
    sequence: Option<Sequence>,
    /// The read of the write node's own copy.
    io: Option<IoToken>,
    own_is_wrong: bool,
    /// One bit for each member whose copy does not fit its sum, either.
    wrong: u32,
    /// The member that was asked, and when.
    asked: Option<(usize, Instant)>,
    number: u64,
    began: Instant,
    has_bytes: bool,
}

/// A read for the write node's repair.
#[derive(Debug)]
pub(super) struct Fetched {
    io: IoToken,
    to: NodeId,
    epoch: Epoch,
    number: u64,
    range: BlockRange,
    any: bool,
}

impl Repair {
    pub(super) fn overlaps(&self, range: BlockRange) -> bool {
        self.covers.overlaps(range)
    }

    /// Another copy joins: it has not been asked.
    pub(super) fn forget_joiner(&mut self) {
        self.wrong &= !JOINER;
    }
}

/// A copy that may have a block right.
struct Source {
    /// The place of its node among the members, or [`JOINER_INDEX`].
    index: usize,
    node: NodeId,
    /// It is no member: what it has counts if it fits the sum here, which has all that was acknowledged.
    any: bool,
}

impl Lead {
    /// Whether a repair is on every copy that lives, and waits for a member that has ended at the minimum. That one's node comes
    /// back as a joining copy, whose pieces may wait for other repairs: so these wait for none that stands.
    fn stands(&self, repair: &Repair) -> bool {
        let flight = self
            .in_flight
            .iter()
            .find(|flight| Some(flight.write.sequence) == repair.sequence);
        repair.has_bytes && flight.is_some_and(|flight| self.is_wherever_alive(flight))
    }

    /// Whether one more block may wait for its repair.
    fn has_room_for_repairs(&self) -> bool {
        let count = self.repairs.len();
        let standing = || self.repairs.iter().filter(|repair| self.stands(repair)).count();
        count < REPAIRS_MAX || count < STANDING_MAX && count - standing() < REPAIRS_MAX
    }

    /// The members, then copies that are there and no members: of lives that have ended, or on their way back.
    fn sources(&self) -> Vec<Source> {
        let member = |index: usize| Source {
            index,
            node: self.config.members[index].node,
            any: self.has_ended(index),
        };
        let mut sources: Vec<Source> = self.others().map(member).collect();
        sources.sort_by_key(|source| source.any);
        let joins = self
            .join
            .as_ref()
            .filter(|join| join.is_joined() && join.keeps_lost);
        let is_new = |node: &NodeId| self.config.index_of(*node).is_none();
        if let Some(node) = joins.map(|join| join.node).filter(is_new) {
            sources.push(Source {
                index: JOINER_INDEX,
                node,
                any: true,
            });
        }
        sources
    }
}

/// Whether a repair of these blocks has not reached the write node's own copy, whose place among the members is `own`.
/// (Other members need not have it: one that has ended never will.)
pub(super) fn stands_before(
    repairs: &[Repair],
    flights: &VecDeque<Flight>,
    own: Option<usize>,
    range: BlockRange,
) -> bool {
    let bit = own.map_or(0, |index| 1 << index);
    let is_here = |repair: &Repair| {
        let flight = flights.iter().find(|f| Some(f.write.sequence) == repair.sequence);
        flight.is_some_and(|flight| flight.members & bit != 0)
    };
    let mut overlapping = repairs.iter().filter(|r| r.covers.overlaps(range));
    overlapping.any(|repair| !is_here(repair))
}

impl Member {
    /// What was read does not fit its checksums in these blocks. False if that says nothing: a write to them had begun
    /// meanwhile.
    pub fn handle_damaged(
        &mut self,
        now: Instant,
        grants: &mut crate::grants::Grants,
        io: IoToken,
        blocks: &[u32],
    ) -> bool {
        if self.planted.is(Bug::DamageIgnored)
            && let Some(request) = self.finish_read(now, grants, io)
        {
            self.complete(request, Status::Done);
            self.pump(now, grants);
            return false;
        }
        let is_damaged = self.note_damage(now, io, blocks);
        self.pump(now, grants);
        is_damaged
    }

    fn note_damage(&mut self, now: Instant, io: IoToken, blocks: &[u32]) -> bool {
        if self.failed
            && let Some((request, is_dirty)) = self.reads.end(io)
        {
            // What is held from now on nobody ever looks at again.
            self.complete(request, Status::DeviceFailed);
            return !is_dirty;
        }
        if let Some(is_damaged) = self.reads.damaged(io) {
            if is_damaged {
                self.want_repair(now, blocks);
            }
            return is_damaged;
        }
        if let Some(fetched) = self.fetch_of(io) {
            self.answer_fetch(&fetched, None);
        } else if let Some(at) = self.own_repair(io) {
            self.own_is_wrong(now, at);
        } else if self.piece_damaged(io) {
            self.want_repair(now, blocks);
        } else {
            return self.compare_damaged(now, io, blocks);
        }
        true
    }

    /// A read of the write node's own copy for reconciliation or resync: it is made again after the repair.
    fn piece_damaged(&mut self, io: IoToken) -> bool {
        let Some(lead) = &mut self.lead else { return false };
        if let Some(range) = lead.reconciliation.read(io) {
            lead.reconciliation.again.push(range);
            return true;
        }
        let Some((sequence, join)) = lead.join.as_mut().and_then(|join| {
            let sequence = join.read_of(io)?;
            Some((sequence, join))
        }) else {
            return false;
        };
        let Some(at) = lead.in_flight.iter().position(|f| f.write.sequence == sequence) else {
            return false;
        };
        if let Some(flight) = lead.in_flight.remove(at) {
            join.read_again(flight.write.range);
        }
        true
    }

    pub(super) fn want_repair(&mut self, now: Instant, blocks: &[u32]) {
        let me = self.me;
        let ranges = blocks.iter().map(|&start| BlockRange { start, count: 1 });
        let ranges: Vec<BlockRange> = ranges.map(|range| self.covers(range)).collect();
        if self.lead.is_some() {
            ranges
                .into_iter()
                .for_each(|range| self.add_repair(now, me, range));
        } else if let Some((to, epoch)) = self.config.as_ref().map(|c| (c.write_node, c.epoch)) {
            let chunk = self.chunk();
            for range in ranges.into_iter().take(REPAIRS_MAX) {
                self.send(to, Message::Repair { chunk, epoch, range }, None);
            }
        }
    }

    fn add_repair(&mut self, now: Instant, asker: NodeId, covers: BlockRange) {
        let Some(lead) = &mut self.lead else { return };
        // One that stands is done wherever it can be: what is wrong there is so since.
        let is_it = |repair: &Repair| repair.covers == covers && !lead.stands(repair);
        if let Some(at) = lead.repairs.iter().position(is_it) {
            let known = &mut lead.repairs[at];
            if !known.askers.contains(&asker) {
                known.askers.push(asker);
            }
        } else if lead.has_room_for_repairs() {
            lead.fetches += 1;
            let number = lead.fetches;
            lead.repairs.push(Repair {
                covers,
                askers: vec![asker],
                sequence: None,
                io: None,
                own_is_wrong: false,
                wrong: 0,
                asked: None,
                number,
                began: now,
                has_bytes: false,
            });
        }
    }

    fn has_room_for_repairs(&self) -> bool {
        self.lead.as_ref().is_some_and(Lead::has_room_for_repairs)
    }

    /// A member has read what does not fit its sums.
    pub(super) fn handle_repair(&mut self, now: Instant, from: NodeId, epoch: Epoch, range: BlockRange) {
        let in_chunk = range.end() <= u64::from(self.record.geometry.chunk_blocks);
        let page = self.record.geometry.page_blocks();
        let is_member = |lead: &Lead| lead.config.epoch == epoch && lead.config.index_of(from).is_some();
        if !self.lead.as_ref().is_some_and(is_member) || !in_chunk {
            return;
        }
        let (range, mut start) = (self.covers(range), self.covers(range).start);
        while u64::from(start) < range.end() && self.has_room_for_repairs() {
            self.add_repair(now, from, BlockRange { start, count: page });
            start += page;
        }
    }

    /// Begins the repairs that nothing stands against: what is in flight on their blocks must be on every member that may
    /// be asked for them. (One that has ended is not: where it is missed for the minimum, its node comes back as a joining
    /// copy, whose pieces wait for the repair.) While members seal there are none, but for a copy that comes back
    /// already: all members that live have sealed then.
    pub(super) fn start_repairs(&mut self, now: Instant) {
        let depth = self.settings.reconcile_depth;
        let has_begun = |repair: &Repair| repair.sequence.is_some() || repair.io.is_some();
        let Some(lead) = &self.lead else { return };
        if lead.repairs.iter().all(has_begun) {
            return;
        }
        let is_under_way = |repair: &&Repair| has_begun(repair) && !lead.stands(repair);
        let mut under_way = lead.repairs.iter().filter(is_under_way).count();
        let mut at = 0;
        while let Some(lead) = &self.lead
            && (lead.phase != Phase::Sealing || lead.joiner().is_some())
            && !lead.is_cutting()
            && under_way < depth
            && let Some(repair) = lead.repairs.get(at)
        {
            let stands_before =
                |flight: &Flight| flight.covers.overlaps(repair.covers) && !lead.is_wherever_alive(flight);
            if !has_begun(repair) && !lead.in_flight.iter().any(stands_before) {
                self.begin_repair(now, at);
                under_way += 1;
            }
            at += 1;
        }
    }

    fn begin_repair(&mut self, now: Instant, at: usize) {
        let io = self.next_io();
        let Some(lead) = &self.lead else { return };
        let range = lead.repairs[at].covers;
        let sequence = match self.planted.is(Bug::RepairOverwritesNewer) {
            true => None,
            false => Some(self.repair_flight(now, range)),
        };
        let Some(lead) = &mut self.lead else { return };
        let repair = &mut lead.repairs[at];
        (repair.sequence, repair.io, repair.began) = (sequence, Some(io), now);
        let purpose = ReadPurpose::Reconcile;
        self.outputs.push_back(Output::LocalRead { io, range, purpose });
    }

    /// The repair's place in the order of writes, without its bytes yet.
    fn repair_flight(&mut self, now: Instant, range: BlockRange) -> Sequence {
        let write = ReplicaWrite {
            range,
            kind: WriteKind::Data,
            // Its region is marked now. Were power to fail everywhere before it is on the disk, the wrong bytes would be
            // there still, and nothing would say that they are wrong.
            force_unit_access: true,
            ..self.next_write()
        };
        let covers = self.covers(range);
        if let Some(lead) = &mut self.lead {
            if !lead.waits_for_answers() {
                lead.resend_at = now + self.settings.resend_interval;
            }
            lead.in_flight.push_back(Flight {
                write,
                covers,
                request: None,
                resync: false,
                repair: true,
                is_given_up: false,
                data: None,
                members: 0,
                first_sent: now,
            });
        }
        write.sequence
    }

    fn own_repair(&self, io: IoToken) -> Option<usize> {
        let lead = self.lead.as_ref()?;
        lead.repairs.iter().position(|r| r.io == Some(io) && !r.has_bytes)
    }

    /// Whether this read was a repair's: then its bytes are sent.
    pub(super) fn repair_read(&mut self, now: Instant, io: IoToken, data: DataToken) -> bool {
        let Some(at) = self.own_repair(io).filter(|_| !self.failed) else {
            return false;
        };
        self.repair_with(now, at, data);
        true
    }

    fn own_is_wrong(&mut self, now: Instant, at: usize) {
        let me = self.me;
        if let Some(lead) = &mut self.lead {
            let bit = lead.config.index_of(me).map_or(0, |index| 1 << index);
            let repair = &mut lead.repairs[at];
            repair.own_is_wrong = true;
            repair.wrong |= bit;
            self.fetch_next(now, at);
        }
    }

    /// Asks the next copy for the block, if any is left that has not said that it has it wrong.
    fn fetch_next(&mut self, now: Instant, at: usize) {
        let chunk = self.chunk();
        let Some(lead) = &mut self.lead else { return };
        let (epoch, sources) = (lead.config.epoch, lead.sources());
        let repair = &mut lead.repairs[at];
        let last = repair.asked.map(|(index, _)| index);
        let after = sources.iter().position(|source| Some(source.index) == last);
        let in_turn = (0..sources.len()).map(|step| (after.map_or(0, |at| at + 1) + step) % sources.len());
        let mut untried = in_turn.filter(|at| repair.wrong >> sources[*at].index & 1 == 0);
        let Some(source) = untried.next().map(|at| &sources[at]) else {
            return self.block_is_lost(now, at);
        };
        repair.asked = Some((source.index, now));
        let (number, range) = (repair.number, repair.covers);
        let message = Message::Fetch {
            chunk,
            epoch,
            number,
            range,
            any: source.any,
        };
        self.send(source.node, message, None);
    }

    /// The write node asks for a block, to repair another copy with it.
    pub(super) fn handle_fetch(
        &mut self,
        from: NodeId,
        (epoch, number, any): (Epoch, u64, bool),
        range: BlockRange,
    ) {
        let refusal = match any {
            true => self.failed.then_some(Refusal::DeviceFailed),
            false => self.refuses(from, epoch, JoinNumber(0)),
        };
        if let Some(refusal) = refusal {
            return self.refuse_command(from, epoch, refusal);
        }
        let page = self.record.geometry.page_blocks();
        let fits = range.count == page && range.end() <= u64::from(self.record.geometry.chunk_blocks);
        let is_it = |f: &Fetched| (f.to, f.epoch, f.number) == (from, epoch, number);
        if !fits || self.fetches.len() >= FETCHES_MAX || self.fetches.iter().any(is_it) {
            return;
        }
        let io = self.next_io();
        self.fetches.push(Fetched {
            io,
            to: from,
            epoch,
            number,
            range,
            any,
        });
        let purpose = ReadPurpose::Reconcile;
        self.outputs.push_back(Output::LocalRead { io, range, purpose });
    }

    /// The fetch that a local read was made for.
    pub(super) fn fetch_of(&mut self, io: IoToken) -> Option<Fetched> {
        let at = self.fetches.iter().position(|f| f.io == io)?;
        Some(self.fetches.swap_remove(at))
    }

    pub(super) fn answer_fetch(&mut self, fetched: &Fetched, data: Option<DataToken>) {
        let message = Message::FetchAnswer {
            chunk: self.chunk(),
            epoch: fetched.epoch,
            number: fetched.number,
            incarnation: self.incarnation,
            range: fetched.range,
            any: fetched.any,
            found: data.is_some(),
        };
        self.send(fetched.to, message, data);
        self.release(data);
    }

    pub(super) fn handle_fetch_answer(
        &mut self,
        now: Instant,
        (from, incarnation): (NodeId, Incarnation),
        (epoch, number, any): (Epoch, u64, bool),
        data: Option<DataToken>,
    ) {
        let found = self.lead.as_mut().and_then(|lead| {
            if lead.config.epoch != epoch {
                return None;
            }
            let is_it = |r: &Repair| r.number == number && r.own_is_wrong && !r.has_bytes;
            let at = lead.repairs.iter().position(is_it)?;
            if any {
                // What it says counts whoever it is; whom it speaks for is known from whom was asked.
                let joins = lead.join.as_ref().is_some_and(|join| join.node == from);
                let index = lead.config.index_of(from);
                return Some((at, index.or(joins.then_some(JOINER_INDEX))?));
            }
            let index = lead.member(from, incarnation)?;
            lead.heard(now, index);
            Some((at, index))
        });
        let Some((at, index)) = found.filter(|_| !self.failed) else {
            return self.release(data);
        };
        match data {
            Some(data) => self.repair_with(now, at, data),
            None => {
                if let Some(lead) = &mut self.lead {
                    lead.repairs[at].wrong |= 1 << index;
                }
                self.fetch_next(now, at);
            }
        }
    }

    /// The right bytes of a block are here: every copy gets them.
    fn repair_with(&mut self, now: Instant, at: usize, data: DataToken) {
        let Some(lead) = &self.lead else { return };
        let (range, own_is_wrong) = (lead.repairs[at].covers, lead.repairs[at].own_is_wrong);
        let sequence = match lead.repairs[at].sequence {
            Some(sequence) => sequence,
            None => self.repair_flight(now, range),
        };
        let Some(lead) = &mut self.lead else { return };
        lead.repairs[at].sequence = Some(sequence);
        lead.repairs[at].has_bytes = true;
        let Some(flight) = lead.in_flight.iter_mut().find(|f| f.write.sequence == sequence) else {
            return self.release(Some(data));
        };
        flight.data = Some(data);
        flight.first_sent = now;
        let write = flight.write;
        let nodes: Vec<NodeId> = lead
            .others()
            .map(|index| lead.config.members[index].node)
            .collect();
        let joiner = lead.joiner();
        for to in nodes {
            self.send(to, Message::ReplicaWrite(write), Some(data));
        }
        if let Some((to, join)) = joiner {
            self.send(
                to,
                Message::ReplicaWrite(ReplicaWrite { join, ..write }),
                Some(data),
            );
        }
        if own_is_wrong {
            self.apply(now, &write, Some(data), false);
        } else {
            let (me, incarnation) = self.life();
            let me = (me, incarnation, JoinNumber(0));
            self.handle_replica_answer(now, me, write.epoch, write.sequence);
        }
    }

    /// A repair is on every copy.
    pub(super) fn repaired(&mut self, sequence: Sequence) {
        self.window.complete(sequence);
        let Some(lead) = &mut self.lead else { return };
        let at = lead.repairs.iter().position(|r| r.sequence == Some(sequence));
        if let Some(at) = at {
            let repair = lead.repairs.swap_remove(at);
            // Members have marked its region, this copy perhaps not.
            lead.owe_flushes();
            self.reads.disturb(repair.covers);
        }
    }

    /// No copy has the block right.
    fn block_is_lost(&mut self, now: Instant, at: usize) {
        let is_told = self.tell_joiner(now, at);
        let Some(repair) = self.drop_repair(now, at) else {
            return;
        };
        let (chunk, range) = (self.chunk(), repair.covers);
        self.outputs.push_back(Output::Lost { range });
        self.reads_are_lost(range);
        self.end_damaged_compares(range, Status::Lost);
        let (me, Some(lead)) = (self.me, &mut self.lead) else {
            return;
        };
        lead.reconciliation.leave_out(range);
        let epoch = lead.config.epoch;
        let joins = lead.join.as_ref().filter(|join| join.lacks(range) && !is_told);
        let joins = joins.map(|join| join.node);
        for to in repair.askers.into_iter().filter(|node| *node != me) {
            self.send(to, Message::Lost { chunk, epoch, range }, None);
        }
        if let Some(node) = joins {
            // It must not get bytes that pass for right ones.
            self.not_again = Some((node, now + NOT_AGAIN_FOR));
            self.abandon_join(now);
        }
    }

    /// Where a copy that joins lacks a block that is lost: the repair becomes the piece that says so to it. It keeps its place in
    /// the order, so that no later write of the block is undone.
    fn tell_joiner(&mut self, now: Instant, at: usize) -> bool {
        let Some(lead) = &mut self.lead else { return false };
        let (range, sequence) = (lead.repairs[at].covers, lead.repairs[at].sequence);
        let members = lead.all_members();
        let joins = lead.join.as_mut();
        let flight = lead
            .in_flight
            .iter_mut()
            .find(|f| Some(f.write.sequence) == sequence);
        let (Some(join), Some(flight)) = (joins.filter(|join| join.lacks(range) && join.keeps_lost), flight)
        else {
            return false;
        };
        flight.write = ReplicaWrite {
            kind: WriteKind::Lost,
            force_unit_access: false,
            join: join.leave_out(range),
            ..flight.write
        };
        (flight.repair, flight.resync) = (false, true);
        (flight.members, flight.first_sent) = (members, now);
        let (to, write) = (join.node, flight.write);
        self.send(to, Message::ReplicaWrite(write), None);
        true
    }

    /// Takes a repair back, its place in the order with it. It has sent nothing yet.
    fn drop_repair(&mut self, now: Instant, at: usize) -> Option<Repair> {
        let lead = self.lead.as_mut()?;
        let repair = lead.repairs.swap_remove(at);
        let is_its = |flight: &Flight| flight.repair && Some(flight.write.sequence) == repair.sequence;
        lead.in_flight.retain(|flight| !is_its(flight));
        self.settle_soon(now);
        Some(repair)
    }

    /// The write node says that no copy has these blocks right.
    pub(super) fn handle_lost(&mut self, from: NodeId, epoch: Epoch, range: BlockRange) {
        let is_known = |c: &crate::ChunkConfig| c.epoch == epoch && c.write_node == from;
        if self.config.as_ref().is_some_and(is_known) {
            self.reads_are_lost(range);
        }
    }

    fn reads_are_lost(&mut self, range: BlockRange) {
        for request in self.reads.take_damaged(range) {
            self.complete(request, Status::DeviceFailed);
        }
    }

    /// Asks again what was not answered, and gives up what waits for too long: writes wait behind it.
    pub(super) fn repair_timeout(&mut self, now: Instant) {
        let (again, limit) = (self.settings.resend_interval, self.settings.suspect_after);
        let mut at = 0;
        while let Some(repair) = self.lead.as_ref().and_then(|lead| lead.repairs.get(at)) {
            let waits = repair.io.is_some() && !repair.has_bytes;
            if waits && now.since(repair.began) >= limit * 2 {
                if let Some(repair) = self.drop_repair(now, at) {
                    self.end_damaged_compares(repair.covers, Status::NotReady);
                }
                continue;
            }
            if waits && repair.asked.is_some_and(|(_, when)| now.since(when) >= again) {
                let before = self.lead.as_ref().map_or(0, |lead| lead.repairs.len());
                self.fetch_next(now, at);
                if self.lead.as_ref().is_none_or(|lead| lead.repairs.len() < before) {
                    continue;
                }
            }
            at += 1;
        }
    }
}
