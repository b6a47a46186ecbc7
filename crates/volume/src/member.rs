//! One copy of one chunk on one node, as a member and, when the configuration says so, as the
//! write node. A pure state machine: events come in through `handle_*` with the time on this
//! node's boot clock, what is to be done comes out of [`Member::poll_output`] in order, and
//! [`Member::next_timeout`] says when to call again.
//!
//! Cost of a 4 KiB write with three copies, warm: two sends and two answers, one local write, no
//! allocation but queue growth; of a read: one local read.

mod configure;
mod copy;
mod credit;
mod join;
mod lacks;
mod lead;
mod read;
mod rejoin;
mod repair;
mod room;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use foundation::{Epoch, Instant};

use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{
    BlockRange, ChunkId, DataToken, HostId, Incarnation, IoToken, JoinNumber, NodeId, PersistToken, RequestId,
};
use crate::intent::IntentMap;
use crate::message::{Message, Refusal};
use crate::output::{Operation, Output, Reason, Request, Status};
use crate::planted::{Bug, Planted};
use crate::record::{ChunkRecord, RecordDelta};
use crate::sealing::PendingSeal;
use crate::sequence::Window;
use crate::settings::Settings;

use credit::Foreground;
use lead::Lead;
use read::Reads;
use rejoin::Returning;

pub use join::ResyncProgress;
pub use lead::Phase;

/// Far above what one copy asks of its disk in one life.
const COPY_NUMBER_SHIFT: u32 = 40;

/// The flush a member is doing for its write node.
#[derive(Debug)]
struct MemberFlush {
    io: IoToken,
    epoch: Epoch,
    number: u64,
    join: JoinNumber,
}

/// What decides which lives of other nodes may be granted a chunk: configuration in force, epoch sealed,
/// configuration being sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    adopted: Epoch,
    sealed: Epoch,
    pending: Epoch,
}

/// What a write node whose disk failed asks of the masters until they have given its chunk another configuration.
#[derive(Debug)]
struct Resignation {
    expected: Epoch,
    config: ChunkConfig,
    reason: Reason,
    again_at: Instant,
}

/// In which order hosts have last written, in this life.
#[derive(Debug, Default)]
struct Hosts {
    writes: u64,
    wrote: BTreeMap<HostId, u64>,
}

/// One copy of one chunk.
#[derive(Debug)]
pub struct Member {
    me: NodeId,
    incarnation: Incarnation,
    settings: Settings,
    /// What is durable, or will be as soon as the changes put out have been made so.
    record: ChunkRecord,
    /// The configuration this life has sealed; none after a restart.
    config: Option<ChunkConfig>,
    /// It had sealed the one before as well, and takes part since.
    stays: bool,
    /// The newest epoch that this life had sealed when it left; it takes no part in that again.
    left: Epoch,
    /// The newest configuration heard of in this life.
    newest: Epoch,
    /// That configuration.
    committed: Option<ChunkConfig>,
    pending_seal: Option<PendingSeal>,
    /// This life seals nothing before: an earlier one may have granted what this one forgot.
    quiet_until: Instant,
    /// This life has been told that a reconciliation which covers it is complete.
    open: bool,
    /// One more is about to be in sync: it counts in rule 1 of the grants.
    announced: bool,
    /// Not in sync, and on its way back.
    returning: Option<Returning>,
    /// This copy keeps checksums of its blocks.
    has_sums: bool,
    /// A copy that is not let in again before this, since the masters did not want it.
    not_again: Option<(NodeId, Instant)>,
    /// When somebody last asked something of this node, noted while a copy is resynced here.
    foreground: Option<Foreground>,
    failed: bool,
    room: room::Room,
    resignation: Option<Resignation>,
    window: Window,
    intent: IntentMap,
    lead: Option<Lead>,
    reads: Reads,
    /// Reads for the write node's repairs.
    fetches: Vec<repair::Fetched>,
    /// Snapshots for the write node.
    snapshots: snapshot::Snapshots,
    flush: Option<MemberFlush>,
    flushed: u64,
    persist_put_out: PersistToken,
    persisted: PersistToken,
    fence_token: PersistToken,
    hosts: Hosts,
    next_io: u64,
    outputs: VecDeque<Output>,
    planted: Planted,
}

impl Member {
    /// A copy as its record describes it, in a life of this node's target that began at
    /// `started`. It is not in sync, whatever its disk says, until a configuration names it.
    pub fn new(
        me: NodeId,
        incarnation: Incarnation,
        started: Instant,
        record: ChunkRecord,
        settings: Settings,
    ) -> Self {
        Self {
            me,
            incarnation,
            settings,
            config: None,
            stays: false,
            left: Epoch(0),
            newest: Epoch(0),
            committed: None,
            pending_seal: None,
            quiet_until: started + settings.grant_term,
            open: false,
            announced: false,
            returning: None,
            has_sums: false,
            not_again: None,
            foreground: None,
            failed: false,
            room: room::Room::default(),
            resignation: None,
            window: Window::default(),
            intent: IntentMap::new(&record),
            lead: None,
            reads: Reads::default(),
            fetches: Vec::new(),
            snapshots: snapshot::Snapshots::default(),
            flush: None,
            flushed: 0,
            persist_put_out: PersistToken(0),
            persisted: PersistToken(0),
            fence_token: PersistToken(0),
            hosts: Hosts::default(),
            next_io: 0,
            outputs: VecDeque::new(),
            planted: Planted::default(),
            record,
        }
    }

    /// This is the copy of this number that was taken up in this life: what it asks of its disk is numbered apart from what others do.
    pub(crate) fn number_from(&mut self, copy: u64) {
        let base = copy << COPY_NUMBER_SHIFT;
        self.next_io = base;
        self.persist_put_out = PersistToken(base);
        self.persisted = PersistToken(base);
    }

    /// Whether this copy has asked its disk under this number, rather than one that was deleted before.
    pub(crate) fn has_asked(&self, number: u64) -> bool {
        number >> COPY_NUMBER_SHIFT == self.next_io >> COPY_NUMBER_SHIFT
    }

    /// This copy keeps checksums of its blocks: blocks that no copy has right may be lost here, too.
    pub(crate) fn keep_sums(&mut self) {
        self.has_sums = true;
    }

    /// Whether the masters' word that `epoch` has no place for this copy is newer than all it knows.
    pub(crate) fn may_be_deleted(&self, epoch: Epoch) -> bool {
        self.record.sealed < epoch && self.newest <= epoch
    }

    pub(crate) fn plant(&mut self, now: Instant, grants: &mut Grants, planted: Planted) {
        self.planted = planted;
        if planted.is(Bug::RestartKeepsMembership) {
            // The record's membership is believed, as if this were still the life it names.
            let config = self.record.config.clone();
            let mine = config
                .as_ref()
                .and_then(|c| Some(c.members[c.index_of(self.me)?]));
            if let (Some(config), Some(mine)) = (config, mine) {
                self.incarnation = mine.incarnation;
                self.open = true;
                grants.enroll(now, self.record.chunk, &config, self.me, false);
                self.config = Some(config);
            }
        }
    }

    /// The chunk.
    pub fn chunk(&self) -> ChunkId {
        self.record.chunk
    }

    /// The configuration this life takes part in.
    pub fn config(&self) -> Option<&ChunkConfig> {
        self.config.as_ref()
    }

    /// The newest configuration that this life has heard of, be it from the masters or in a Seal.
    pub fn committed(&self) -> Option<&ChunkConfig> {
        self.committed.as_ref()
    }

    /// The record as it will be once all changes put out are durable.
    pub fn record(&self) -> &ChunkRecord {
        &self.record
    }

    /// How far this node is as write node; none if it is not one.
    pub fn phase(&self) -> Option<Phase> {
        self.lead.as_ref().map(|lead| lead.phase)
    }

    /// The epoch this node leads or is about to lead.
    pub fn lead_epoch(&self) -> Option<Epoch> {
        self.lead.as_ref().map(|lead| lead.config.epoch)
    }

    /// Nothing is held, under way or still to be told.
    pub fn is_idle(&self) -> bool {
        self.pending_seal.is_none()
            && !self.window.under_way()
            && self.reads.is_empty()
            && self.lead.as_ref().is_none_or(Lead::is_idle)
    }

    /// Whether this node may grant this chunk to a life of another node that is in `epoch`.
    pub(crate) fn grants_to(&self, node: NodeId, incarnation: Incarnation, epoch: Epoch) -> bool {
        let Some(config) = &self.config else {
            return false;
        };
        let leaving = |pending: &PendingSeal| !pending.config.has(node, incarnation);
        config.epoch == epoch
            && self.record.sealed == epoch
            && config.has(node, incarnation)
            && config.has(self.me, self.incarnation)
            && !self.pending_seal.as_ref().is_some_and(leaving)
    }

    pub(crate) fn standing(&self) -> Standing {
        let pending = self.pending_seal.as_ref();
        Standing {
            adopted: self.config.as_ref().map_or(Epoch(0), |config| config.epoch),
            sealed: self.record.sealed,
            pending: pending.map_or(Epoch(0), |pending| pending.config.epoch),
        }
    }

    /// Whether a grant that comes, or one given that ends before its time, may let something go on.
    pub(crate) fn waits_for_grants(&self) -> bool {
        self.pending_seal.is_some() || self.reads.any_held()
    }

    /// A client asks something of this copy. Ends with one [`Output::Complete`].
    pub fn handle_request(&mut self, now: Instant, grants: &mut Grants, request: Request) {
        let refusal = self.refuse(&request);
        match (refusal, request.operation) {
            (Some(status), operation) => {
                if let Operation::Write { data, .. } = operation {
                    self.release(data);
                }
                self.complete(request.id, status);
            }
            (None, Operation::Read) => self.reads.add(now, &request, self.covers(request.range)),
            (None, Operation::Write { .. }) => self.add_write(request),
            (None, Operation::Flush) => self.add_flush(request.id),
            (None, Operation::Cut(snapshot)) => self.begin_cut(now, &request, snapshot),
            (None, Operation::Release(snapshot)) => self.release_cut(now, &request, snapshot),
            (None, Operation::Abandon(snapshot)) => self.abandon_cut(now, &request, snapshot),
        }
        self.pump(now, grants);
    }

    fn refuse(&self, request: &Request) -> Option<Status> {
        let range = request.range;
        if request.operation.names_blocks()
            && (range.count == 0 || range.end() > u64::from(self.record.geometry.chunk_blocks))
        {
            return Some(Status::OutOfRange);
        }
        if self.failed {
            return Some(Status::DeviceFailed);
        }
        if request.epoch < self.record.sealed {
            return Some(Status::StaleEpoch(self.record.sealed));
        }
        let held = self.reads.len() + self.lead.as_ref().map_or(0, Lead::requests);
        if held >= self.settings.requests_max {
            return Some(Status::Busy);
        }
        if request.operation == Operation::Read {
            return self.fenced_read(request.portal_token());
        }
        match &self.lead {
            None => Some(Status::NotWriteNode(self.newest.max(self.record.sealed))),
            Some(_) if matches!(request.operation, Operation::Write { .. }) => self.fenced(request),
            Some(_) => None,
        }
    }

    /// The connection a request came by is lost. If it has not begun it never will; else it
    /// ends as it would have.
    pub fn handle_cancel(&mut self, now: Instant, grants: &mut Grants, request: RequestId) {
        if self.reads.cancel(request) {
            self.complete(request, Status::Cancelled);
        }
        self.cancel_waiting(request);
        self.pump(now, grants);
    }

    /// A message from the authenticated peer `from`, with the bytes that came with it.
    pub fn handle_message(
        &mut self,
        now: Instant,
        grants: &mut Grants,
        from: NodeId,
        message: Message,
        data: Option<DataToken>,
    ) {
        match message {
            Message::ReplicaWrite(write) => self.handle_replica_write(now, from, &write, data),
            Message::FetchAnswer {
                epoch,
                number,
                incarnation,
                any,
                found,
                ..
            } => {
                let right = data.filter(|_| found);
                self.release(data.filter(|_| !found));
                self.handle_fetch_answer(now, (from, incarnation), (epoch, number, any), right);
            }
            other => {
                self.release(data);
                self.handle_control(now, grants, from, other);
            }
        }
        self.pump(now, grants);
    }

    fn handle_control(&mut self, now: Instant, grants: &mut Grants, from: NodeId, message: Message) {
        match message {
            Message::Seal { config, .. } => self.handle_seal(grants, from, config),
            Message::SealAnswer(answer) => self.handle_seal_answer(now, from, &answer),
            Message::ReplicaAnswer {
                epoch,
                sequence,
                incarnation,
                join,
                room,
                ..
            } => {
                self.is_told_of_room(now, (from, incarnation), epoch, room);
                self.handle_replica_answer(now, (from, incarnation, join), epoch, sequence);
            }
            Message::Refused {
                epoch,
                refusal: refusal @ (Refusal::DeviceFailed | Refusal::NoSuchChunk),
                ..
            } => {
                self.joiner_is_lost(now, from);
                self.member_is_lost(now, from, epoch, refusal);
            }
            Message::Settle {
                epoch,
                settled,
                flushed,
                open,
                ..
            } => self.handle_settle(from, epoch, settled, flushed, open),
            Message::SettleAnswer {
                epoch,
                settled,
                flushed,
                open,
                incarnation,
                room,
                ..
            } => {
                self.is_told_of_room(now, (from, incarnation), epoch, room);
                if let Some(lead) = &mut self.lead {
                    lead.settle_answered(now, from, incarnation, epoch, (settled, flushed, open));
                }
            }
            Message::Flush {
                epoch, number, join, ..
            } => self.handle_flush(now, from, epoch, number, join),
            Message::FlushAnswer {
                epoch,
                number,
                incarnation,
                join,
                ..
            } => self.handle_flush_answer(now, (from, incarnation, join), epoch, number),
            Message::Return {
                epoch,
                incarnation,
                flushed_in,
                marks,
                takes_marks,
                ..
            } => self.handle_return(now, from, epoch, (incarnation, flushed_in), (marks, takes_marks)),
            Message::Join {
                epoch,
                join,
                incarnation,
                writer_token,
                sessions,
                marks,
                ..
            } => self.handle_join(
                now,
                from,
                epoch,
                (join, incarnation),
                ((writer_token, sessions), marks),
            ),
            Message::JoinAnswer {
                epoch,
                join,
                incarnation,
                keeps_lost,
                ..
            } => self.handle_join_answer(now, from, (epoch, join, incarnation), keeps_lost),
            Message::Announce { epoch, join, .. } => self.handle_announce(from, epoch, join),
            Message::AnnounceAnswer {
                epoch,
                join,
                incarnation,
                ..
            } => self.handle_announce_answer(now, from, epoch, (join, incarnation)),
            Message::Snapshot {
                epoch,
                snapshot,
                sequence,
                ..
            } => self.handle_snapshot(from, epoch, snapshot, sequence),
            Message::SnapshotAnswer {
                epoch,
                snapshot,
                sequence,
                incarnation,
                ..
            } => self.handle_snapshot_answer(now, (from, incarnation), epoch, (snapshot, sequence)),
            Message::Confirm { epoch, snapshot, .. } => self.handle_confirm(from, epoch, snapshot),
            Message::ConfirmAnswer {
                epoch,
                snapshot,
                incarnation,
                ..
            } => self.handle_confirm_answer(now, (from, incarnation), epoch, snapshot),
            Message::Refused {
                epoch,
                refusal: Refusal::NoSnapshot,
                ..
            } => self.snapshot_refused(now, epoch),
            Message::Repair { epoch, range, .. } => self.handle_repair(now, from, epoch, range),
            Message::Lost { epoch, range, .. } => self.handle_lost(from, epoch, range),
            Message::Fetch {
                epoch,
                number,
                range,
                any,
                ..
            } => self.handle_fetch(from, (epoch, number, any), range),
            Message::Query { chunk } => {
                let answer = Message::QueryAnswer {
                    chunk,
                    sealed: self.record.sealed,
                    config: self.record.config.clone(),
                };
                self.send(from, answer, None);
            }
            // Another refusal tells nothing that the next configuration will not tell better.
            _ => {}
        }
    }

    /// The device has answered. `data` holds what was read, for [`crate::ReadPurpose::Reconcile`].
    pub fn handle_local(
        &mut self,
        now: Instant,
        grants: &mut Grants,
        io: IoToken,
        succeeded: bool,
        data: Option<DataToken>,
    ) {
        if self.snapshot_ended(now, io, succeeded) {
            return self.pump(now, grants);
        }
        if !succeeded {
            self.fail(now);
        }
        let own_flush = self.lead.as_mut().is_some_and(|lead| lead.local_flushed(io));
        if own_flush {
            self.record_flush();
            self.finish_flush(now);
        } else if self.flush.as_ref().is_some_and(|flush| flush.io == io) {
            self.member_flushed();
        } else if self.window.by_io(io).is_some() {
            self.applied(now, io);
        } else if let Some(request) = self.finish_read(now, grants, io) {
            // After a failure nothing is known of this copy's right to serve.
            let status = match self.failed {
                false => Status::Done,
                true => Status::DeviceFailed,
            };
            self.complete(request, status);
        } else if let Some(data) = data {
            match self.fetch_of(io) {
                Some(fetched) => self.answer_fetch(&fetched, Some(data)),
                None if self.repair_read(now, io, data) => {}
                None => self.reconcile_read(now, io, data),
            }
        }
        self.pump(now, grants);
    }

    /// Everything up to this change of the record is durable.
    pub fn handle_persisted(&mut self, now: Instant, grants: &mut Grants, token: PersistToken) {
        self.persisted = self.persisted.max(token);
        self.record_has_room();
        self.start_persisted_writes(now);
        self.finish_seal(now, grants);
        self.pump(now, grants);
    }

    /// A change of the record will never be durable. What waits for it ends as if the disk had failed.
    pub fn handle_persist_failed(&mut self, now: Instant) {
        self.fail(now);
    }

    /// Time has come to [`Self::next_timeout`], or something about grants has changed.
    pub fn handle_timeout(&mut self, now: Instant, grants: &mut Grants) {
        self.lead_timeout(now);
        self.resign(now);
        self.reads.expire(now, self.settings.read_hold);
        self.pump(now, grants);
    }

    /// When [`Self::handle_timeout`] is to be called, if nothing happens before.
    pub fn next_timeout(&self, grants: &Grants) -> Option<Instant> {
        // From the moment its gates have opened, a seal waits for the device and not for time.
        let seal = self.pending_seal.as_ref().filter(|p| !p.draining);
        let seal = seal.map(|p| p.gate(grants).max(self.quiet_for(&p.config)));
        let lead = self.lead.as_ref().and_then(Lead::next_timeout);
        let idle = self.idle_flush_due();
        let read = self.reads.next_timeout(self.settings.read_hold);
        let resign = self.resignation.as_ref().map(|resignation| resignation.again_at);
        let returns = self.return_due();
        [seal, lead, idle, read, resign, returns]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Everything that may have become possible.
    fn pump(&mut self, now: Instant, grants: &mut Grants) {
        if self.failed {
            return;
        }
        self.try_seal(now, grants);
        if self.returning.is_some() {
            self.advance_return(now);
        }
        self.advance_lead(now);
        self.advance_cut(now);
        self.start_repairs(now);
        if self.is_resyncing() {
            self.start_resync(now);
        }
        self.start_writes(now);
        self.start_flush(now);
        self.pump_reads(now, grants);
    }

    fn fail(&mut self, now: Instant) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        self.prepare_resignation(now);
        self.end_everything(Status::DeviceFailed);
        self.outputs.push_back(Output::Failed);
        self.resign(now);
    }

    /// Ends all that can be ended now: the rest is with the device.
    fn end_everything(&mut self, status: Status) {
        self.open = false;
        self.returning = None;
        self.step_down(status);
        self.pending_seal = None;
        for data in self.window.forget_waiting() {
            self.release(Some(data));
        }
        for request in self.reads.fail() {
            self.complete(request, status);
        }
    }

    /// The volume is deleted: nothing here is of use to anyone.
    pub(crate) fn retire(&mut self, grants: &mut Grants) {
        let status = Status::StaleEpoch(self.record.sealed);
        self.failed = true;
        self.resignation = None;
        self.end_everything(status);
        for data in self.window.forget_all() {
            self.release(Some(data));
        }
        for request in self.reads.forget_all() {
            self.complete(request, status);
        }
        self.config = None;
        grants.withdraw(self.chunk());
    }

    fn covers(&self, range: BlockRange) -> BlockRange {
        range.rounded_to(self.record.geometry.page_blocks())
    }

    fn persist(&mut self, delta: RecordDelta) -> PersistToken {
        self.record.apply(&delta);
        self.persist_put_out.0 += 1;
        let token = self.persist_put_out;
        self.outputs.push_back(Output::Persist { token, delta });
        token
    }

    fn next_io(&mut self) -> IoToken {
        self.next_io += 1;
        IoToken(self.next_io)
    }

    fn send(&mut self, to: NodeId, message: Message, data: Option<DataToken>) {
        self.outputs.push_back(Output::Send { to, message, data });
    }

    fn refuse_command(&mut self, to: NodeId, epoch: Epoch, refusal: Refusal) {
        let message = Message::Refused {
            chunk: self.chunk(),
            epoch,
            sealed: self.record.sealed,
            refusal,
        };
        self.send(to, message, None);
    }

    fn complete(&mut self, request: RequestId, status: Status) {
        self.outputs.push_back(Output::Complete { request, status });
    }

    fn release(&mut self, data: Option<DataToken>) {
        if let Some(data) = data {
            self.outputs.push_back(Output::Release { data });
        }
    }
}

#[cfg(test)]
mod tests;
