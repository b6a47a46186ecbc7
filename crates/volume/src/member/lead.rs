//! The write node of a chunk: seals, reconciles, then orders writes and flushes.

mod compare;
mod flush;
mod leave_out;
mod queue;
mod settle;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foundation::{Epoch, Instant};

use super::Member;
use super::join::{JOINER, Join};
use super::repair::{self, Repair};
use super::room::{RoomFor, RoomSought};
use super::snapshot::Cut;
use crate::configuration::{ChunkConfig, FIRST_EPOCH};
use crate::identity::{
    BlockRange, DataToken, Incarnation, IoToken, JoinNumber, NodeId, RequestId, Sequence, TraceId,
    WriterToken,
};
use crate::message::{Message, Refusal, ReplicaWrite, RoomLeft, WriteKind};
use crate::output::{Operation, Output, ReadPurpose, Reason, Request, Status};
use crate::planted::Bug;
use crate::reconcile::Reconciliation;
use crate::sealing::Answers;
use crate::settings::Settings;
use compare::Comparing;
pub(super) use queue::Queued;

/// Writes that may have a sequence above settled-through. The other copies keep each of them in their windows, so
/// one that does not end anywhere must not let the later ones pile up.
const UNSETTLED_MAX: u64 = 4096;
/// A member that answers but lacks one write for so many times the usual limit is left out, too.
pub(super) const HANGS_AFTER: u32 = 4;
/// One that has not sealed for so many times the usual limit is left out as well. Its grants, its quiet term and the writes of the epoch before
/// take a fraction of that; the rest is for nodes that seal all their chunks at once.
const SEALS_WITHIN: u32 = 20;

/// How far a write node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Waits until every member has sealed its epoch.
    Sealing,
    /// Makes all copies equal where they may differ.
    Reconciling,
    /// Orders writes.
    Serving,
}

/// A write that has its sequence and is not on every in-sync copy yet.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) write: ReplicaWrite,
    pub(super) covers: BlockRange,
    /// The client's request; none for reconciliation and resync.
    pub(super) request: Option<Request>,
    /// A piece for the joining copy alone.
    pub(super) resync: bool,
    /// A block's right bytes, which are not known at first.
    pub(super) repair: bool,
    /// The client has been told that there is no room for it.
    pub(super) is_given_up: bool,
    pub(super) data: Option<DataToken>,
    /// One bit for each member that has it, and [`JOINER`].
    pub(super) members: u32,
    pub(super) first_sent: Instant,
}

#[derive(Debug)]
pub(super) struct LeadFlush {
    pub(super) number: u64,
    io: IoToken,
    requests: Vec<RequestId>,
    /// Settled when the flush began.
    covers: Sequence,
    pub(super) members: u32,
    pub(super) began: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    settled: Sequence,
    flushed: Sequence,
    open: bool,
    heard: Instant,
    /// It said that it has no copy to write to.
    lost: bool,
    /// How much room it said it has.
    room: RoomLeft,
    /// When it last said whether that is so.
    room_at: Option<Instant>,
}

/// The state of a write node.
#[derive(Debug)]
pub(super) struct Lead {
    pub(super) config: ChunkConfig,
    pub(super) phase: Phase,
    /// Reconcile everything marked, not only what was under way: the write node is new.
    pub(super) full: bool,
    /// Members of the epoch that this write node served before. One that did not take part in it to its end (its disk had no room)
    /// may lack what this one knows to be under way, and more than that is reconciled, too.
    pub(super) to_stay: u32,
    pub(super) answers: Answers,
    pub(super) reconciliation: Reconciliation,
    pub(super) in_flight: VecDeque<Flight>,
    /// Blocks that do not fit their checksums.
    pub(super) repairs: Vec<Repair>,
    /// Numbers them.
    pub(super) fetches: u64,
    pub(super) waiting: VecDeque<Queued>,
    /// Writes whose blocks are being compared.
    comparing: Vec<Comparing>,
    pub(super) flush_waiting: Vec<RequestId>,
    /// The newest write lease of any write that was let in.
    pub(super) token_asked: WriterToken,
    pub(super) flush: Option<LeadFlush>,
    /// The snapshot for which writes or their acknowledgements are held.
    pub(super) cut: Option<Cut>,
    pub(super) flushes: u64,
    /// Flushes that are still to be made when idle, so that copies clear what they marked before they were in sync.
    owed_flushes: u32,
    pub(super) last_sequence: Sequence,
    /// What was settled before this epoch's reconciliation is complete.
    settled_before: Sequence,
    /// Members may clear marks of writes up to here. It lags one flush behind, so that regions
    /// written all the time are not marked anew after each flush.
    flushed: Sequence,
    flushed_last: Sequence,
    told: Vec<Told>,
    settle_at: Option<Instant>,
    pub(super) resend_at: Instant,
    last_activity: Instant,
    /// This node ran without a pause since then.
    pub(super) awake_since: Instant,
    /// Since when the members are asked to seal this epoch.
    seals_since: Instant,
    pub(super) proposed_at: Option<Instant>,
    pub(super) room: RoomSought,
    /// The copy that is on its way back.
    pub(super) join: Option<Box<Join>>,
    pub(super) joins: u32,
    /// The newest life of each node that has asked to come back: its lives before have ended.
    pub(super) returned: BTreeMap<NodeId, Incarnation>,
    pub(super) settings: Settings,
}

impl Lead {
    pub(super) fn new(now: Instant, config: ChunkConfig, settings: Settings) -> Self {
        let told = Told {
            settled: Sequence(0),
            flushed: Sequence(0),
            open: false,
            heard: now,
            lost: false,
            room: RoomLeft::Enough,
            room_at: None,
        };
        Self {
            told: vec![told; config.members.len()],
            config,
            phase: Phase::Sealing,
            full: false,
            to_stay: 0,
            answers: Answers::default(),
            reconciliation: Reconciliation::default(),
            in_flight: VecDeque::new(),
            repairs: Vec::new(),
            fetches: 0,
            waiting: VecDeque::new(),
            comparing: Vec::new(),
            flush_waiting: Vec::new(),
            token_asked: WriterToken(0),
            flush: None,
            cut: None,
            flushes: 0,
            owed_flushes: 0,
            last_sequence: Sequence(0),
            settled_before: Sequence(0),
            flushed: Sequence(0),
            flushed_last: Sequence(0),
            settle_at: None,
            resend_at: now,
            last_activity: now,
            awake_since: now,
            seals_since: now,
            proposed_at: None,
            room: RoomSought::new(now),
            join: None,
            joins: 0,
            returned: BTreeMap::new(),
            settings,
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.in_flight.len() + self.waiting.len() + self.comparing.len() + self.flush_waiting.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        let (settled, flushed) = (self.settled(), self.flushed);
        let told = |t: &Told| t.open && t.settled >= settled && t.flushed >= flushed;
        self.phase == Phase::Serving
            && self.requests() == 0
            && self.flush.is_none()
            && self.cut.is_none()
            && self.repairs.is_empty()
            && self.join.is_none()
            && self.others().all(|index| told(&self.told[index]))
    }

    pub(super) fn me(&self) -> NodeId {
        self.config.write_node
    }

    /// The positions of the other members.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.config.members.iter().enumerate();
        all.filter(|(_, m)| m.node != self.me()).map(|(index, _)| index)
    }

    pub(super) fn all_members(&self) -> u32 {
        (1 << self.config.members.len()) - 1
    }

    /// The position of a member; none if another life of it answers.
    pub(super) fn member(&self, node: NodeId, incarnation: Incarnation) -> Option<usize> {
        let index = self.config.index_of(node)?;
        (self.config.members[index].incarnation == incarnation).then_some(index)
    }

    /// When a member last answered.
    pub(super) fn heard_from(&self, node: NodeId) -> Option<Instant> {
        let index = self.config.index_of(node)?;
        Some(self.told[index])
            .filter(|told| !told.lost)
            .map(|told| told.heard)
    }

    pub(super) fn heard(&mut self, now: Instant, index: usize) {
        self.told[index].heard = now;
    }

    /// Every in-sync copy has everything up to here.
    fn settled(&self) -> Sequence {
        if self.phase != Phase::Serving {
            return self.settled_before;
        }
        match self.in_flight.front() {
            Some(first) => Sequence(first.write.sequence.0 - 1),
            None => self.last_sequence,
        }
    }

    /// Copies have marked what this one need not have: after two flushes they have cleared it.
    pub(super) fn owe_flushes(&mut self) {
        self.owed_flushes = 2;
    }

    pub(super) fn take_flushes(&mut self) -> Vec<RequestId> {
        let mut requests = self.flush.take().map_or(Vec::new(), |f| f.requests);
        requests.append(&mut self.flush_waiting);
        requests
    }

    pub(super) fn waits_for_answers(&self) -> bool {
        let waits = self.phase == Phase::Sealing || !self.in_flight.is_empty() || self.flush.is_some();
        waits || self.join.is_some() || self.cut.is_some()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let resend = self.waits_for_answers().then_some(self.resend_at);
        let gives_up = self.cut.as_ref().map(Cut::due);
        [resend, gives_up, self.settle_at, self.join_due(), self.room.until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether `covers` overlaps a write under way, blocks that are being compared or one of the first `before` waiting writes.
    fn blocked(&self, covers: BlockRange, before: usize, page_blocks: u32) -> bool {
        self.in_flight.iter().any(|f| f.covers.overlaps(covers))
            || self.comparing.iter().any(|c| c.covers.overlaps(covers))
            || self
                .waiting
                .iter()
                .take(before)
                .any(|queued| queued.request.range.rounded_to(page_blocks).overlaps(covers))
    }

    /// The member that has been silent for too long while something waits for it. Only time in which this node ran
    /// itself counts: after a pause its own answers lie unread, and nobody's silence is proved.
    fn suspect(&self, now: Instant, minimum: usize, may_lack: bool) -> Option<(usize, Reason)> {
        if let Some(lost) = self.others().find(|&index| self.told[index].lost) {
            return Some((lost, Reason::DiskLost));
        }
        if self.phase == Phase::Sealing {
            return self.has_not_sealed(now, minimum);
        }
        let limit = self.settings.suspect_after;
        self.others().find_map(|index| {
            let silence = self.seen(now, self.told[index].heard);
            if silence > limit && self.waits_for(now, index, limit) {
                return Some((index, Reason::Silent(silence)));
            }
            // One that answers everything else is waited for longer, but not for ever.
            // Of one without room it is known why, and that another epoch would help only if enough others have some.
            let longer = match (self.told[index].room, may_lack) {
                (RoomLeft::Nothing, true) => limit,
                (RoomLeft::Nothing, false) => return None,
                _ => limit * HANGS_AFTER,
            };
            let hangs = self.waits_for(now, index, longer);
            hangs.then_some((index, Reason::Hangs(longer)))
        })
    }

    /// How long that is ago, as far as this node ran itself.
    pub(super) fn seen(&self, now: Instant, since: Instant) -> Duration {
        now.since(since.max(self.awake_since))
    }

    /// Whether a write or the flush has waited for longer than that for the copy of one member.
    fn waits_for(&self, now: Instant, index: usize, limit: Duration) -> bool {
        let lacks = |members: u32| members >> index & 1 == 0;
        let lags = |members: u32, since: Instant| lacks(members) && self.seen(now, since) > limit;
        let flush = self.flush.as_ref();
        let mut sent = self.in_flight.iter().filter(|f| f.is_sent());
        sent.any(|f| lags(f.members, f.first_sent)) || flush.is_some_and(|f| lags(f.members, f.began))
    }

    /// While this node stood still nobody had time to seal. Of one that is always late only what it lacks counts as that.
    fn note_late_seals(&mut self, now: Instant) {
        let late = now.since(self.resend_at);
        if late > self.settings.resend_interval {
            self.seals_since = self.seals_since + late;
        }
    }

    /// Notes how late the timer that was due at `resend_at` fires.
    fn note_pause(&mut self, now: Instant) {
        if now.since(self.resend_at) > self.settings.resend_interval {
            self.awake_since = now;
        }
    }
}

impl Flight {
    /// Whether a host has asked for it, whatever it has been told since.
    pub(super) fn is_hosts(&self) -> bool {
        self.request.is_some() || self.is_given_up
    }

    /// Whether the others have been sent it: a piece or a repair whose bytes are still being read has not, and nobody is late
    /// with it.
    pub(super) fn is_sent(&self) -> bool {
        self.data.is_some() || self.write.kind != WriteKind::Data
    }
}

impl Request {
    /// Whether it writes only where the blocks hold what is expected.
    pub(super) fn compares(&self) -> bool {
        matches!(self.operation, Operation::Write { compares: true, .. })
    }

    pub(crate) fn data(&self) -> Option<DataToken> {
        match self.operation {
            Operation::Write { data, .. } => data,
            _ => None,
        }
    }
}

impl Member {
    /// From sealing to reconciling to serving.
    pub(super) fn advance_lead(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        if lead.phase == Phase::Sealing && lead.answers.all(&lead.config) {
            lead.phase = Phase::Reconciling;
            lead.last_sequence = lead.last_sequence.max(lead.answers.highest);
            lead.settled_before = self.window.settled();
            if self.planted.is(Bug::SequenceFromZero) {
                lead.last_sequence = Sequence(0);
            }
            if lead.full || !lead.answers.stay(lead.to_stay) {
                lead.reconciliation.regions = std::mem::take(&mut lead.answers.marks);
            }
            if self.planted.is(Bug::NoReconciliation) {
                lead.reconciliation.regions.clear();
            }
            self.count_reconciled();
            self.merge_fences();
        }
        self.start_reconciliation();
        let Some(lead) = &mut self.lead else {
            return;
        };
        if lead.phase == Phase::Reconciling
            && lead.reconciliation.is_complete()
            && self.fence_token <= self.persisted
        {
            lead.phase = Phase::Serving;
            lead.owed_flushes = if lead.config.epoch > FIRST_EPOCH { 2 } else { 0 };
            lead.last_activity = now;
            lead.settle_at = Some(now);
            self.open = true;
            self.window.settle(lead.settled());
        }
    }

    /// What is made equal counts as written in this epoch, here as on the members that get it, and before it is served: of
    /// the epoch in which a copy left it may lack nothing else (`docs/decisions/0084`).
    fn count_reconciled(&mut self) {
        let Some(lead) = self.lead.as_ref() else { return };
        let (epoch, sequence) = (lead.config.epoch, lead.last_sequence);
        let regions: Vec<u32> = lead.reconciliation.regions.iter().copied().collect();
        if self.planted.is(Bug::ReconciledNotCounted) {
            return;
        }
        for region in regions {
            let mark = self.mark(region, sequence, epoch);
            // Serving waits for that.
            self.fence_token = self.fence_token.max(mark);
        }
    }

    fn start_reconciliation(&mut self) {
        let geometry = &self.record.geometry;
        let (region, chunk) = (geometry.region_blocks, geometry.chunk_blocks);
        let (piece, depth) = (self.settings.reconcile_blocks, self.settings.reconcile_depth);
        loop {
            let io = IoToken(self.next_io + 1);
            let Some(lead) = &mut self.lead else {
                return;
            };
            let left = &mut lead.reconciliation;
            if lead.phase != Phase::Reconciling || left.under_way() >= depth {
                return;
            }
            let (own, repairs, flights) = (lead.config.index_of(self.me), &lead.repairs, &lead.in_flight);
            let next = left.next_again(|range| repair::stands_before(repairs, flights, own, range));
            let Some(range) = next.or_else(|| left.next_piece(region, chunk, piece)) else {
                return;
            };
            left.reading(io, range);
            self.next_io = io.0;
            let purpose = ReadPurpose::Reconcile;
            self.outputs.push_back(Output::LocalRead { io, range, purpose });
        }
    }

    /// A piece of the write node's own copy has been read: the others are to have it.
    pub(super) fn reconcile_read(&mut self, now: Instant, io: IoToken, data: DataToken) {
        let read = match &mut self.lead {
            Some(lead) if lead.phase == Phase::Reconciling => lead.reconciliation.read(io),
            _ => None,
        };
        let Some(range) = read.filter(|_| !self.failed) else {
            if !self.resync_read(now, io, data) {
                self.release(Some(data));
            }
            return;
        };
        let write = ReplicaWrite {
            range,
            kind: WriteKind::Data,
            force_unit_access: false,
            session: None,
            writer_token: WriterToken(0),
            trace: TraceId(0),
            ..self.next_write()
        };
        self.send_out(now, write, None, Some(data));
    }

    /// The fields that every write of this epoch shares, with the next sequence.
    pub(super) fn next_write(&mut self) -> ReplicaWrite {
        let chunk = self.chunk();
        let lead = self.lead.as_mut().expect("only a write node orders writes");
        let settled = lead.settled();
        lead.last_sequence.0 += 1;
        ReplicaWrite {
            chunk,
            epoch: lead.config.epoch,
            sequence: lead.last_sequence,
            settled,
            open: lead.phase == Phase::Serving,
            range: BlockRange::default(),
            kind: WriteKind::Data,
            force_unit_access: false,
            session: None,
            writer_token: WriterToken(0),
            join: JoinNumber(0),
            trace: TraceId(0),
        }
    }

    pub(super) fn start_writes(&mut self, now: Instant) {
        let page_blocks = self.record.geometry.page_blocks();
        let mut at = 0;
        while let Some(lead) = &self.lead
            && lead.phase == Phase::Serving
            && !lead.is_cutting()
            && lead.last_sequence.0 - lead.settled().0 < UNSETTLED_MAX
            && let Some(&queued) = lead.waiting.get(at)
        {
            let request = queued.request;
            match self.room_for(now, &request) {
                RoomFor::It => {}
                RoomFor::Later => {
                    at += 1;
                    continue;
                }
                RoomFor::Nothing => {
                    self.refuse_for_room(at);
                    continue;
                }
            }
            let Some(lead) = &self.lead else { return };
            let covers = self.covers(request.range);
            let waits = lead.blocked(covers, at, page_blocks) && !self.skips_block(&queued)
                || self.takes_over(&request)
                || self.holds_for_join(&request)
                || self.waits_for_claim(&request, at)
                || queued.damaged && lead.is_repaired_in(covers);
            if waits {
                at += 1;
                continue;
            }
            if let Some(lead) = &mut self.lead {
                lead.waiting.remove(at);
            }
            match self.fenced(&request) {
                Some(status) => {
                    self.release(request.data());
                    self.complete(request.id, queued.undone(status));
                }
                None if queued.compares() => self.compare(request),
                None => self.start_write(now, request),
            }
        }
    }

    /// The first write under a newer lease waits for those of older ones, so that every write in flight has the token in force. What
    /// mends copies goes under none.
    fn takes_over(&self, request: &Request) -> bool {
        let in_flight = || self.lead.iter().flat_map(|lead| &lead.in_flight);
        request.writer_token > self.record.writer_token && in_flight().any(Flight::is_hosts)
    }

    fn start_write(&mut self, now: Instant, request: Request) {
        let Operation::Write {
            kind,
            data,
            force_unit_access,
            ..
        } = request.operation
        else {
            unreachable!("only writes wait among the writes")
        };
        let next = self.next_write();
        let write = ReplicaWrite {
            range: request.range,
            kind,
            force_unit_access,
            session: Some(self.session_for(&request, next.sequence)),
            writer_token: request.writer_token,
            trace: request.trace,
            ..next
        };
        self.send_out(now, write, Some(request), data);
        self.apply(now, &write, data, false);
    }

    /// Sends a write to the other copies and waits for their answers.
    fn send_out(
        &mut self,
        now: Instant,
        write: ReplicaWrite,
        request: Option<Request>,
        data: Option<DataToken>,
    ) {
        let covers = self.covers(write.range);
        let Some(lead) = &mut self.lead else {
            return;
        };
        // Not while anything else waits to be sent again: of writes that follow each other each would put that off.
        if !lead.waits_for_answers() {
            lead.resend_at = now + self.settings.resend_interval;
        }
        lead.last_activity = now;
        let reconciles = request.is_none();
        let me = lead.config.index_of(self.me);
        lead.in_flight.push_back(Flight {
            write,
            covers,
            request,
            resync: false,
            repair: false,
            is_given_up: false,
            data,
            members: 0,
            first_sent: now,
        });
        lead.reconciliation.writes += usize::from(reconciles);
        let joiner = lead.joiner();
        for index in 0..lead.config.members.len() {
            let Some(to) = self.lead.as_ref().map(|l| l.config.members[index].node) else {
                return;
            };
            if to != self.me {
                self.send(to, Message::ReplicaWrite(write), data);
            }
        }
        if let Some((to, join)) = joiner {
            self.send(to, Message::ReplicaWrite(ReplicaWrite { join, ..write }), data);
        }
        // The write node's copy is the source of a reconciliation: it has it already.
        if reconciles && me.is_some() {
            let (me, incarnation) = self.life();
            let me = (me, incarnation, JoinNumber(0));
            self.handle_replica_answer(now, me, write.epoch, write.sequence);
        }
    }

    pub(super) fn handle_replica_answer(
        &mut self,
        now: Instant,
        (from, incarnation, join): (NodeId, Incarnation, JoinNumber),
        epoch: Epoch,
        sequence: Sequence,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|l| l.config.epoch == epoch) else {
            return;
        };
        let numberless = self.planted.is(Bug::JoinWithoutNumber);
        let Some((bit, index)) = lead.answerer(now, (from, incarnation), join, numberless) else {
            return;
        };
        let mut required = lead.required();
        let position = lead
            .in_flight
            .binary_search_by_key(&sequence, |f| f.write.sequence);
        let Ok(at) = position else {
            return;
        };
        let flight = &mut lead.in_flight[at];
        flight.members |= bit;
        if let Some(index) = index {
            let told = &mut lead.told[index];
            told.settled = told.settled.max(flight.write.settled);
            told.open |= flight.write.open;
        }
        if self.planted.is(Bug::AcknowledgedWithoutJoiner) && !flight.resync {
            required &= !JOINER;
        }
        let holds = self.holds_acknowledgement(sequence);
        let Some(lead) = &mut self.lead else { return };
        let members = lead.in_flight[at].members;
        if members & required == required
            && !holds
            && let Some(lead) = &mut self.lead
            && let Some(flight) = lead.in_flight.remove(at)
        {
            self.on_every_copy(now, flight);
        }
    }

    /// Every in-sync copy has this write: it is acknowledged.
    pub(super) fn on_every_copy(&mut self, now: Instant, flight: Flight) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        lead.last_activity = now;
        match flight.request {
            Some(request) => {
                self.window.complete(flight.write.sequence);
                let session = flight.write.session.unwrap_or_default();
                let status = if request.operation.is_fence() && session.host.is_through_portals() {
                    Status::Claimed(session.number)
                } else {
                    Status::Done
                };
                self.complete(request.id, status);
            }
            None if flight.is_given_up => self.window.complete(flight.write.sequence),
            None if flight.resync => self.piece_done(now, &flight),
            None if flight.repair => self.repaired(flight.write.sequence),
            None => lead.reconciliation.writes -= 1,
        }
        self.release(flight.data);
        self.settle_soon(now);
    }

    pub(super) fn lead_timeout(&mut self, now: Instant) {
        let Some(lead) = &self.lead else {
            return;
        };
        if lead.settle_at.is_some_and(|at| at <= now) {
            self.send_settled(now);
        }
        self.cut_timeout(now);
        let Some(lead) = &mut self.lead else {
            return;
        };
        lead.room.give_up(now, lead.settings.suspect_after);
        if !lead.waits_for_answers() || now < lead.resend_at {
            return;
        }
        if lead.phase == Phase::Sealing {
            lead.note_late_seals(now);
            self.send_seals(now);
            if self.is_resyncing() {
                self.resend(now);
                self.repair_timeout(now);
                self.join_timeout(now);
            }
            self.propose_without_silent(now);
            return;
        }
        lead.note_pause(now);
        lead.resend_at = now + self.settings.resend_interval;
        self.resend(now);
        self.resend_cut();
        self.repair_timeout(now);
        if self.is_resyncing() {
            self.join_timeout(now);
        }
        self.propose_without_silent(now);
        self.end_without_room(now);
    }

    /// Sends again what some member has not answered: writes sent a while ago and the flush.
    fn resend(&mut self, now: Instant) {
        let chunk = self.chunk();
        let Some(lead) = &self.lead else {
            return;
        };
        let mut sends = Vec::new();
        let old = |f: &&Flight| now.since(f.first_sent) >= self.settings.resend_interval;
        for flight in lead.in_flight.iter().filter(|f| f.is_sent()).filter(old) {
            for index in lead.others().filter(|i| flight.members >> i & 1 == 0) {
                let message = Message::ReplicaWrite(flight.write);
                sends.push((lead.config.members[index].node, message, flight.data));
            }
            if let Some((to, join)) = lead.joiner().filter(|_| flight.members & JOINER == 0) {
                let message = Message::ReplicaWrite(ReplicaWrite { join, ..flight.write });
                sends.push((to, message, flight.data));
            }
        }
        if let Some(flush) = &lead.flush {
            let message = |join| Message::Flush {
                chunk,
                epoch: lead.config.epoch,
                number: flush.number,
                join,
            };
            for index in lead.others().filter(|i| flush.members >> i & 1 == 0) {
                sends.push((lead.config.members[index].node, message(JoinNumber(0)), None));
            }
            if let Some((to, join)) = lead.joiner().filter(|_| flush.members & JOINER == 0) {
                sends.push((to, message(join), None));
            }
        }
        // One that lacks room does not answer: it says so when it is asked.
        let overdue = |f: &&Flight| lead.seen(now, f.first_sent) > self.settings.suspect_after;
        let lacks = |index: &usize| {
            let mut overdue = lead.in_flight.iter().filter(|f| f.is_sent()).filter(overdue);
            let flush = lead.flush.as_ref().filter(|flush| {
                lead.seen(now, flush.began) > self.settings.suspect_after && flush.members >> index & 1 == 0
            });
            flush.is_some() || overdue.any(|f| f.members >> index & 1 == 0)
        };
        let late = lead.others().filter(lacks);
        let late: Vec<NodeId> = late.map(|index| lead.config.members[index].node).collect();
        for (to, message, data) in sends {
            self.send(to, message, data);
        }
        for to in late {
            self.ask_how_it_is(to);
        }
    }
}
