//! How the write node lets a copy that was left out come back (`docs/decisions/0058`).
//!
//! The copy asks ([`Message::Return`]), saying the epoch of its last flush and what it has marked itself. The write
//! node lets it in under a number ([`Message::Join`]); from the answer on the copy gets every write, those in flight
//! included, and nothing is acknowledged without it. What it may lack is read here, piece by piece, and sent to it
//! alone. A piece has a place in the order of writes like any other: it waits for the writes in flight on its blocks,
//! later ones on these blocks wait for it, and the copy's window refuses a late one. Then all copies are flushed, the
//! members are told, and the masters are asked for the configuration with the copy in it.

use foundation::Instant;

use super::credit::Foreground;
use super::lacks::{Fences, blocks_of, fences, lacking};
use super::lead::{Flight, HANGS_AFTER, Lead, Phase};
use super::snapshot::Cut;
use super::{Member, repair};
use crate::configuration::{COPIES_MAX, Membership};
use crate::identity::{BlockRange, DataToken, Incarnation, IoToken, JoinNumber, NodeId, Sequence, Session};
use crate::message::{Message, ReplicaWrite, WriteKind};
use crate::output::{Output, ReadPurpose, Reason, Request};
use crate::planted::Bug;
use crate::reconcile::Reconciliation;
use foundation::Epoch;
use std::time::Duration;

/// The joining copy among the bits of those who have a write. Members have the lowest ones.
pub(super) const JOINER: u32 = 1 << 31;
/// After a join that the masters did not want, its copy is not let in again for so long.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(10);
/// Regions that a copy is told beforehand that it lacks; it marks further ones when they come.
const MARKS_MAX: usize = 8192;
/// From the announcement on a join cannot be given up without a new configuration; this many times the usual limit
/// later one without the copy is asked for.
const UNDONE_AFTER: u32 = 3;

/// How far a join is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The copy has not said that it takes part.
    Asking,
    /// It gets every write, and what it lacks.
    Copying,
    /// It has all; a flush that began since has not ended there.
    Flushing,
    /// The members are told to count it.
    Announcing,
    /// The masters are asked for the configuration with it.
    Proposed,
}

/// A copy on its way back.
#[derive(Debug)]
pub(super) struct Join {
    number: JoinNumber,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// It takes the place of a life that ended as a member.
    replaces: bool,
    pub(super) stage: Stage,
    stage_since: Instant,
    flushed_in: Epoch,
    marks: Vec<u32>,
    /// It marks what it is told that it lacks.
    takes_marks: bool,
    pieces: Reconciliation,
    next: Option<BlockRange>,
    reads: Vec<(IoToken, Sequence)>,
    left_blocks: u64,
    total_blocks: u64,
    began: Instant,
    heard: Instant,
    /// The flush that counts is a later one.
    flush_from: u64,
    /// One bit for each member that counts it.
    told: u32,
    paused_until: Option<Instant>,
    /// What the copy is told of leases and sessions: the same by each Join of one number, since it takes the first that comes.
    fences: Fences,
    /// It was asked once more, since they had changed meanwhile: what would change them again waits until it answers.
    holds_fences: bool,
    /// It takes blocks that no copy has right as such.
    pub(super) keeps_lost: bool,
}

/// How far the resync of one copy is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncProgress {
    /// The node whose copy comes back.
    pub node: NodeId,
    /// Bytes it has still to be sent.
    pub left_bytes: u64,
    /// Bytes it lacked.
    pub total_bytes: u64,
    /// Since it was let in.
    pub elapsed: Duration,
}

impl Join {
    pub(super) fn is_joined(&self) -> bool {
        self.stage > Stage::Asking
    }

    /// The place of a piece that this read was for.
    pub(super) fn read_of(&mut self, io: IoToken) -> Option<Sequence> {
        let at = self.reads.iter().position(|(token, _)| *token == io)?;
        Some(self.reads.swap_remove(at).1)
    }

    /// A piece is to be read again after a repair.
    pub(super) fn read_again(&mut self, range: BlockRange) {
        self.pieces.again.push(range);
    }

    /// Whether a piece with these blocks is to be read again.
    pub(super) fn lacks(&self, range: BlockRange) -> bool {
        self.pieces.again.iter().any(|piece| piece.overlaps(range))
    }

    /// A block is lost: what is to be read again is read without it. The number that what says so to this copy goes under.
    pub(super) fn leave_out(&mut self, lost: BlockRange) -> JoinNumber {
        self.pieces.leave_out(lost);
        self.number
    }

    fn enter(&mut self, now: Instant, stage: Stage) {
        self.stage = stage;
        self.stage_since = now;
    }
}

impl Lead {
    /// The bits of those who must have a write before it is acknowledged.
    pub(super) fn required(&self) -> u32 {
        match &self.join {
            Some(join) if join.is_joined() => self.all_members() | JOINER,
            _ => self.all_members(),
        }
    }

    /// The bit of the copy that answers, and its place if it is a member; none if it is neither or speaks for
    /// another join.
    pub(super) fn answerer(
        &mut self,
        now: Instant,
        (from, incarnation): (NodeId, Incarnation),
        number: JoinNumber,
        numberless: bool,
    ) -> Option<(u32, Option<usize>)> {
        if let Some(index) = self.member(from, incarnation).filter(|_| number.0 == 0) {
            self.heard(now, index);
            return Some((1 << index, Some(index)));
        }
        let join = self.join.as_mut()?;
        let is_it = join.is_joined() && (join.node, join.incarnation) == (from, incarnation);
        if (!is_it || join.number != number) && !(numberless && join.is_joined() && join.node == from) {
            return None;
        }
        join.heard = now;
        Some((JOINER, None))
    }

    /// Where writes go beside the members, and under which number.
    pub(super) fn joiner(&self) -> Option<(NodeId, JoinNumber)> {
        let join = self.join.as_ref().filter(|join| join.is_joined())?;
        Some((join.node, join.number))
    }

    /// All that the copy lacked is there, and no flush has begun since.
    pub(super) fn join_wants_flush(&self) -> bool {
        let join = self.join.as_ref();
        join.is_some_and(|join| join.stage == Stage::Flushing && join.flush_from == self.flushes)
    }

    /// The join cannot be given up any more, only be undone by a newer configuration.
    pub(super) fn join_binds(&self) -> bool {
        self.join
            .as_ref()
            .is_some_and(|join| join.stage >= Stage::Announcing)
    }

    pub(super) fn join_due(&self) -> Option<Instant> {
        let join = self.join.as_ref()?;
        join.paused_until
    }

    /// Whether a copy that asks may be let in now. Where it takes the place of a member that ended, writes wait
    /// for it: in any phase, once the other members have sealed or have returned, too.
    fn admits(&self, node: NodeId, incarnation: Incarnation, copies: usize) -> bool {
        match self.config.index_of(node) {
            // One more than there should be: a copy that is to take another one's place, which the masters leave out then.
            None => self.phase == Phase::Serving && self.config.members.len() <= copies.min(COPIES_MAX - 1),
            Some(at) if self.config.members[at].incarnation >= incarnation => false,
            Some(_) if self.phase != Phase::Sealing => true,
            Some(_) => {
                (0..self.config.members.len()).all(|index| self.answers.has(index) || self.has_ended(index))
            }
        }
    }

    /// Whether the node of this member has asked to come back in a later life.
    pub(super) fn has_ended(&self, index: usize) -> bool {
        let member = &self.config.members[index];
        let returned = self.returned.get(&member.node);
        returned.is_some_and(|life| *life > member.incarnation)
    }

    /// Whether a write in flight is on each member that has not ended, and on the copy that joins: one that had something newer first
    /// would take it for old, and answer that it has it.
    pub(super) fn is_wherever_alive(&self, flight: &Flight) -> bool {
        let living = (0..self.config.members.len()).filter(|&index| !self.has_ended(index));
        let places = living.fold(0, |places, index| places | 1 << index);
        let joins = flight.resync || self.join.is_some();
        let places = if joins { places | JOINER } else { places };
        flight.members & places == places
    }
}

impl Member {
    /// A copy asks to come back.
    pub(super) fn handle_return(
        &mut self,
        now: Instant,
        from: NodeId,
        epoch: Epoch,
        (incarnation, flushed_in): (Incarnation, Epoch),
        (marks, takes_marks): (Vec<u32>, bool),
    ) {
        let not_again = self.not_again.filter(|(_, until)| now < *until);
        let copies = usize::from(self.record.geometry.copies);
        // One that knows another configuration will learn of this one, or this node of its.
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) else {
            return;
        };
        if lead.config.has(from, incarnation) {
            return self.take_back(now, from);
        }
        let life = lead.returned.entry(from).or_default();
        *life = incarnation.max(*life);
        if *life > incarnation || not_again.is_some_and(|(node, _)| node == from) {
            return;
        }
        let replaces = lead.config.index_of(from).is_some();
        if let Some(join) = &lead.join {
            let outlived = join.node == from && incarnation > join.incarnation;
            let has_less_left = join.node != from
                && !join.replaces
                && join.stage == Stage::Copying
                && blocks_of(&self.record, &lacking(&self.record, flushed_in, &marks)) < join.left_blocks / 2;
            if lead.join_binds() || !(outlived || replaces && !join.replaces || has_less_left) {
                return;
            }
            self.abandon_join(now);
        }
        let Some(lead) = &mut self.lead else { return };
        if !lead.admits(from, incarnation, copies) {
            return;
        }
        if lead.phase == Phase::Sealing {
            lead.last_sequence = lead.last_sequence.max(lead.answers.highest);
        }
        if !lead.waits_for_answers() {
            lead.resend_at = now + self.settings.resend_interval;
        }
        // What an earlier one has said of blocks says nothing about this one.
        lead.repairs.iter_mut().for_each(|repair| repair.forget_joiner());
        lead.joins += 1;
        let fences = fences(&self.record);
        lead.join = Some(Box::new(Join {
            number: JoinNumber(lead.joins),
            node: from,
            incarnation,
            replaces,
            stage: Stage::Asking,
            stage_since: now,
            flushed_in,
            marks,
            takes_marks,
            pieces: Reconciliation::default(),
            next: None,
            reads: Vec::new(),
            left_blocks: 0,
            total_blocks: 0,
            began: now,
            heard: now,
            flush_from: 0,
            told: 0,
            paused_until: None,
            fences,
            holds_fences: false,
            keeps_lost: false,
        }));
        self.send_join();
    }

    fn send_join(&mut self) {
        let chunk = self.chunk();
        let Some(lead) = &self.lead else { return };
        let Some(join) = &lead.join else { return };
        let (writer_token, sessions) = match self.planted.is(Bug::JoinedWithoutFences) {
            true => fences(&self.record),
            false => join.fences.clone(),
        };
        let mut marks = Vec::new();
        if join.takes_marks {
            let lacks = lacking(&self.record, join.flushed_in, &join.marks);
            marks.extend(lacks.into_iter().take(MARKS_MAX));
        }
        let message = Message::Join {
            chunk,
            epoch: lead.config.epoch,
            join: join.number,
            incarnation: join.incarnation,
            writer_token,
            sessions,
            marks,
        };
        self.send(join.node, message, None);
    }

    /// Whether the copy may not know a lease or session that was acknowledged while it was asked. Then it is asked once more, under
    /// another number.
    fn asks_again(&mut self) -> bool {
        let Some(join) = self.lead.as_mut().and_then(|lead| lead.join.as_mut()) else {
            return false;
        };
        let now = fences(&self.record);
        if join.fences == now || self.planted.is(Bug::JoinedWithoutFences) {
            return false;
        }
        join.fences = now;
        join.holds_fences = true;
        let Some(lead) = &mut self.lead else { return false };
        lead.joins += 1;
        if let Some(join) = &mut lead.join {
            join.number = JoinNumber(lead.joins);
        }
        self.send_join();
        true
    }

    /// Whether a write waits since it would change what a copy that was asked twice is told.
    pub(super) fn holds_for_join(&self, request: &Request) -> bool {
        let join = self.lead.as_ref().and_then(|lead| lead.join.as_ref());
        if !join.is_some_and(|join| join.holds_fences && join.stage == Stage::Asking) {
            return false;
        }
        let Session { host, number } = request.session;
        let known = self.record.sessions.get(&host).copied().unwrap_or(0);
        request.operation.is_fence() || request.writer_token > self.record.writer_token || number > known
    }

    /// The copy takes part: it gets what is in flight.
    pub(super) fn handle_join_answer(
        &mut self,
        now: Instant,
        from: NodeId,
        (epoch, number, incarnation): (Epoch, JoinNumber, Incarnation),
        keeps_lost: bool,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) else {
            return;
        };
        let Some(join) = &mut lead.join else { return };
        let is_it = (join.node, join.incarnation) == (from, incarnation) && join.number == number;
        let is_it = is_it || self.planted.is(Bug::JoinWithoutNumber) && join.node == from;
        if !is_it || join.stage != Stage::Asking {
            return;
        }
        join.heard = now;
        if self.asks_again() {
            return;
        }
        let Some(lead) = &mut self.lead else { return };
        let Some(join) = &mut lead.join else { return };
        join.keeps_lost = keeps_lost;
        join.enter(now, Stage::Copying);
        let number = join.number;
        // What an earlier join has had says nothing about this one.
        lead.in_flight
            .iter_mut()
            .for_each(|flight| flight.members &= !JOINER);
        lead.flush.iter_mut().for_each(|flush| flush.members &= !JOINER);
        self.find_what_it_lacks();
        let flights = self.lead.as_ref().map_or(0, |lead| lead.in_flight.len());
        for at in 0..flights {
            let Some(lead) = &self.lead else { return };
            let (write, data) = (lead.in_flight[at].write, lead.in_flight[at].data);
            if lead.in_flight[at].repair && data.is_none() {
                continue;
            }
            let message = Message::ReplicaWrite(ReplicaWrite {
                join: number,
                ..write
            });
            self.send(from, message, data);
        }
        if let Some(flush) = self.lead.as_ref().and_then(|lead| lead.flush.as_ref()) {
            let message = Message::Flush {
                chunk: self.chunk(),
                epoch,
                number: flush.number,
                join: number,
            };
            self.send(from, message, None);
        }
    }

    /// What was written in the epochs after that of the copy's last flush, and what it has marked itself. Not before the copy takes part: what
    /// is acknowledged without it until then belongs to it, too.
    fn find_what_it_lacks(&mut self) {
        let Some(join) = self.lead.as_mut().and_then(|lead| lead.join.as_mut()) else {
            return;
        };
        let marks = if self.planted.is(Bug::OwnMarksIgnored) {
            &[][..]
        } else {
            &join.marks
        };
        join.pieces.regions = lacking(&self.record, join.flushed_in, marks);
        join.total_blocks = blocks_of(&self.record, &join.pieces.regions);
        join.left_blocks = join.total_blocks;
    }

    /// Begins the next pieces, as many as the credit allows: [`crate::Settings::resync_depth`] at a time, or one while
    /// somebody else asks something of this node, each followed by a pause ([`Foreground::pause`]).
    pub(super) fn start_resync(&mut self, now: Instant) {
        loop {
            let page_covers = |range: BlockRange, page| range.rounded_to(page);
            let geometry = &self.record.geometry;
            let (region_blocks, page) = (geometry.region_blocks, geometry.page_blocks());
            let busy = self.foreground.is_some_and(|asked| asked.is_recent(now));
            let depth = if busy { 1 } else { self.settings.resync_depth };
            let Some(lead) = &mut self.lead else { return };
            let Some(join) = &mut lead.join else { return };
            join.paused_until.take_if(|at| *at <= now);
            if join.stage != Stage::Copying || lead.cut.as_ref().is_some_and(Cut::is_cutting) {
                return;
            }
            let (piece, chunk_blocks) = (self.settings.reconcile_blocks, geometry.chunk_blocks);
            if join.next.is_none() {
                let own = lead.config.index_of(self.me);
                let (repairs, flights) = (&lead.repairs, &lead.in_flight);
                let waits = |range| repair::stands_before(repairs, flights, own, range);
                let again = join.pieces.next_again(waits);
                join.next = again.or_else(|| join.pieces.next_piece(region_blocks, chunk_blocks, piece));
            }
            let under_way = lead.in_flight.iter().filter(|flight| flight.resync).count();
            let Some(range) = join.next else {
                if under_way == 0 && join.pieces.again.is_empty() {
                    join.flush_from = lead.flushes;
                    join.enter(now, Stage::Flushing);
                }
                return;
            };
            if under_way >= depth || join.paused_until.is_some() {
                return;
            }
            // What is in flight on these blocks must be here and there already. (It need not be acknowledged: where a
            // member has ended at the minimum, it never would be.)
            let covers = page_covers(range, page);
            let me = lead.config.index_of(self.me).map_or(0, |index| 1 << index);
            let both = me | JOINER;
            let early = |flight: &Flight| flight.covers.overlaps(covers) && flight.members & both != both;
            if lead.in_flight.iter().any(early) {
                return;
            }
            join.next = None;
            let number = join.number;
            let is_written = self
                .record
                .written_in
                .contains_key(&(range.start / region_blocks));
            self.start_piece(now, range, number, is_written);
        }
    }

    /// A region that was never written here reads as zeros, and need not be read to know.
    fn start_piece(&mut self, now: Instant, range: BlockRange, number: JoinNumber, is_written: bool) {
        let write = ReplicaWrite {
            range,
            kind: if is_written {
                WriteKind::Data
            } else {
                WriteKind::Deallocate
            },
            join: number,
            ..self.next_write()
        };
        let covers = self.covers(range);
        let io = self.next_io();
        let Some(lead) = &mut self.lead else { return };
        if !lead.waits_for_answers() {
            lead.resend_at = now + self.settings.resend_interval;
        }
        lead.in_flight.push_back(Flight {
            write,
            covers,
            request: None,
            resync: true,
            repair: false,
            is_given_up: false,
            data: None,
            members: lead.all_members(),
            first_sent: now,
        });
        let Some(join) = &mut lead.join else { return };
        if is_written {
            join.reads.push((io, write.sequence));
            let purpose = ReadPurpose::Reconcile;
            self.outputs.push_back(Output::LocalRead { io, range, purpose });
        } else {
            let to = join.node;
            self.send(to, Message::ReplicaWrite(write), None);
        }
    }

    /// Whether this read was a piece's: then it is sent.
    pub(super) fn resync_read(&mut self, now: Instant, io: IoToken, data: DataToken) -> bool {
        let Some(lead) = &mut self.lead else { return false };
        let Some(join) = &mut lead.join else { return false };
        let Some(sequence) = join.read_of(io) else {
            return false;
        };
        let (to, failed) = (join.node, self.failed);
        let position = lead.in_flight.iter_mut().find(|f| f.write.sequence == sequence);
        let Some(flight) = position.filter(|_| !failed) else {
            return false;
        };
        flight.data = Some(data);
        flight.first_sent = now;
        let write = flight.write;
        self.send(to, Message::ReplicaWrite(write), Some(data));
        true
    }

    /// A piece is on the joining copy.
    pub(super) fn piece_done(&mut self, now: Instant, flight: &Flight) {
        let asked = self.foreground.filter(|asked| asked.is_recent(now));
        let Some(join) = self.lead.as_mut().and_then(|lead| lead.join.as_mut()) else {
            return;
        };
        join.left_blocks -= u64::from(flight.write.range.count);
        if let Some(asked) = asked {
            join.paused_until = Some(now + asked.pause(now.since(flight.first_sent)));
        }
    }

    /// A flush that began after the last piece has ended on the joining copy.
    pub(super) fn join_flushed(&mut self, now: Instant, number: u64) {
        let chunk = self.chunk();
        let Some(lead) = &mut self.lead else { return };
        let Some(join) = &mut lead.join else { return };
        if join.stage != Stage::Flushing || number <= join.flush_from {
            return;
        }
        if join.replaces {
            // As many members as before: nobody counts otherwise.
            join.enter(now, Stage::Proposed);
            return self.propose_join(now);
        }
        join.enter(now, Stage::Announcing);
        // Of the members that are known by position, this one is told with that.
        join.told = lead
            .config
            .index_of(lead.config.write_node)
            .map_or(0, |at| 1 << at);
        self.announced = true;
        let number = join.number;
        if lead.others().next().is_none() {
            join_told(lead, now);
            return self.propose_join(now);
        }
        let epoch = lead.config.epoch;
        let nodes: Vec<NodeId> = lead.others().map(|at| lead.config.members[at].node).collect();
        for to in nodes {
            let message = Message::Announce {
                chunk,
                epoch,
                join: number,
            };
            self.send(to, message, None);
        }
    }

    /// This member counts one more in rule 1 of the grants.
    pub(super) fn handle_announce(&mut self, from: NodeId, epoch: Epoch, join: JoinNumber) {
        if let Some(refusal) = self.refuses(from, epoch, JoinNumber(0)) {
            self.refuse_command(from, epoch, refusal);
            return;
        }
        self.announced = true;
        let answer = Message::AnnounceAnswer {
            chunk: self.chunk(),
            epoch,
            join,
            incarnation: self.incarnation,
        };
        self.send(from, answer, None);
    }

    pub(super) fn handle_announce_answer(
        &mut self,
        now: Instant,
        from: NodeId,
        epoch: Epoch,
        (number, incarnation): (JoinNumber, Incarnation),
    ) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) else {
            return;
        };
        let Some(index) = lead.member(from, incarnation) else {
            return;
        };
        lead.heard(now, index);
        let all = lead.all_members();
        let Some(join) = lead.join.as_mut().filter(|join| join.number == number) else {
            return;
        };
        join.told |= 1 << index;
        if join.stage == Stage::Announcing && join.told == all {
            join_told(lead, now);
            self.propose_join(now);
        }
    }

    fn propose_join(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else { return };
        let Some(join) = &lead.join else { return };
        let expected = lead.config.epoch;
        let mut config = lead.config.clone();
        config.epoch = expected.next();
        config.members.retain(|member| member.node != join.node);
        config.members.push(Membership {
            node: join.node,
            incarnation: join.incarnation,
        });
        config.members.sort_unstable();
        lead.proposed_at = Some(now);
        self.outputs.push_back(Output::Propose {
            expected,
            config,
            reason: Reason::InSync(join.node),
        });
    }

    /// Gives a join up, before anybody was told of it: what waited for that copy alone goes on.
    pub(super) fn abandon_join(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else { return };
        lead.join = None;
        let mut data = Vec::new();
        lead.in_flight.retain(|flight| {
            data.extend(flight.data.filter(|_| flight.resync));
            !flight.resync
        });
        for data in data {
            self.release(Some(data));
        }
        loop {
            // What is held for a snapshot stays held: the hold's end answers it.
            let is_done = |lead: &Lead| {
                let required = lead.required();
                lead.in_flight.iter().position(|f| {
                    f.members & required == required && !self.holds_acknowledgement(f.write.sequence)
                })
            };
            let done = self.lead.as_ref().and_then(is_done);
            let flight = done.and_then(|at| self.lead.as_mut()?.in_flight.remove(at));
            let Some(flight) = flight else { break };
            self.on_every_copy(now, flight);
        }
        self.finish_flush(now);
        self.settle_soon(now);
    }

    /// Something said by the joining copy means that it will not get in.
    pub(super) fn joiner_is_lost(&mut self, now: Instant, from: NodeId) {
        let Some(lead) = &self.lead else { return };
        if lead.join.as_ref().is_some_and(|join| join.node == from) && !lead.join_binds() {
            self.abandon_join(now);
        }
    }

    /// Sends again what is not answered, and gives up what will not be.
    pub(super) fn join_timeout(&mut self, now: Instant) {
        let limit = self.settings.suspect_after;
        let chunk = self.chunk();
        let Some(lead) = &self.lead else { return };
        let Some(join) = &lead.join else { return };
        let seen = |since: Instant| now.since(since.max(lead.awake_since));
        let lags = |members: u32, since: Instant, limit| members & JOINER == 0 && seen(since) > limit;
        let waits = |limit| {
            let flush = lead.flush.as_ref();
            let mut sent = lead.in_flight.iter().filter(|f| f.is_sent());
            sent.any(|f| lags(f.members, f.first_sent, limit))
                || flush.is_some_and(|f| lags(f.members, f.began, limit))
        };
        let silent = seen(join.heard) > limit;
        match join.stage {
            Stage::Asking if silent => self.abandon_join(now),
            Stage::Asking => self.send_join(),
            Stage::Copying | Stage::Flushing => {
                if silent && waits(limit) || waits(limit * HANGS_AFTER) {
                    self.abandon_join(now);
                }
            }
            Stage::Announcing | Stage::Proposed if seen(join.stage_since) > limit * UNDONE_AFTER => {
                self.undo_join(now);
            }
            Stage::Announcing => {
                let (epoch, number, told) = (lead.config.epoch, join.number, join.told);
                let untold = lead.others().filter(|at| told >> at & 1 == 0);
                let nodes: Vec<NodeId> = untold.map(|at| lead.config.members[at].node).collect();
                for to in nodes {
                    let message = Message::Announce {
                        chunk,
                        epoch,
                        join: number,
                    };
                    self.send(to, message, None);
                }
            }
            Stage::Proposed => {
                if lead.proposed_at.is_none_or(|at| now.since(at) >= limit) {
                    self.propose_join(now);
                }
            }
        }
    }

    /// The masters have not answered, or do not want it: the same members under a new epoch end the join.
    fn undo_join(&mut self, now: Instant) {
        let limit = self.settings.suspect_after;
        let Some(lead) = &self.lead else { return };
        let Some(join) = &lead.join else { return };
        if lead.proposed_at.is_some_and(|at| now.since(at) < limit) {
            return;
        }
        let node = join.node;
        self.not_again = Some((node, now + NOT_AGAIN_FOR));
        self.propose_same_members(now, Reason::JoinUndone(node));
    }

    pub(super) fn propose_same_members(&mut self, now: Instant, reason: Reason) {
        let Some(lead) = &mut self.lead else { return };
        lead.proposed_at = Some(now);
        let expected = lead.config.epoch;
        let mut config = lead.config.clone();
        config.epoch = expected.next();
        self.outputs.push_back(Output::Propose {
            expected,
            config,
            reason,
        });
    }

    /// How far the resync of a copy is, if one comes back.
    pub fn resync_progress(&self, now: Instant) -> Option<ResyncProgress> {
        let join = self.lead.as_ref()?.join.as_ref()?;
        let block_bytes = u64::from(self.record.geometry.block_bytes);
        Some(ResyncProgress {
            node: join.node,
            left_bytes: join.left_blocks * block_bytes,
            total_bytes: join.total_blocks * block_bytes,
            elapsed: now.since(join.began),
        })
    }

    /// Whether a copy is on its way back under this write node.
    pub(crate) fn is_resyncing(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.join.is_some())
    }

    /// Whether writes wait for a copy on this node to come back.
    pub(crate) fn waits_for_return_of(&self, node: NodeId) -> bool {
        let lead = self.lead.as_ref();
        lead.is_some_and(|lead| lead.config.index_of(node).is_some() || lead.join.is_some())
    }

    /// Somebody asked something of this node at this time, whose write nodes resync so many copies: resync makes room.
    pub(crate) fn note_foreground(&mut self, at: Instant, resyncs: usize) {
        self.foreground = Some(Foreground { at, resyncs });
    }
}

fn join_told(lead: &mut Lead, now: Instant) {
    if let Some(join) = &mut lead.join {
        join.enter(now, Stage::Proposed);
    }
}
