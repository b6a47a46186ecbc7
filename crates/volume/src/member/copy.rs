//! What every copy does, the write node's own included: apply writes in their order, settle,
//! flush, keep its intent marks.

use foundation::{Epoch, Instant};

use super::{Member, MemberFlush};
use crate::identity::{
    DataToken, HostId, Incarnation, IoToken, JoinNumber, NodeId, PersistToken, Sequence, Session, WriterToken,
};
use crate::message::{Message, Refusal, ReplicaWrite, WriteKind};
use crate::output::{Output, Request, Status};
use crate::planted::Bug;
use crate::record::{RecordDelta, SESSIONS_MAX};
use crate::sequence::{Arrival, Entry, Progress};

impl Member {
    /// Whether a command of the write node `from` in `epoch` is to be obeyed.
    pub(super) fn refuses(&mut self, from: NodeId, epoch: Epoch, join: JoinNumber) -> Option<Refusal> {
        let sealing = self.pending_seal.as_ref().is_some_and(|p| p.draining);
        if self.failed {
            return Some(Refusal::DeviceFailed);
        }
        if epoch < self.record.sealed || sealing {
            return Some(Refusal::StaleEpoch);
        }
        if join.0 != 0 {
            return self.refuses_joined(from, epoch, join);
        }
        let config = self.config.as_ref().filter(|c| c.epoch == epoch);
        match config {
            Some(config) if config.write_node == from && config.has(self.me, self.incarnation) => None,
            _ => Some(Refusal::NotMember),
        }
    }

    pub(super) fn handle_replica_write(
        &mut self,
        now: Instant,
        from: NodeId,
        write: &ReplicaWrite,
        data: Option<DataToken>,
    ) {
        let in_chunk = write.range.end() <= u64::from(self.record.geometry.chunk_blocks);
        let joins = write.join.0 != 0;
        let refusal = match self.refuses(from, write.epoch, write.join) {
            None if (write.range.count == 0) != (write.kind == WriteKind::Fence) || !in_chunk => {
                Some(Refusal::NotMember)
            }
            // It would pass for a right one here, or take the place of one.
            None if write.kind == WriteKind::Lost && !(joins && self.may_lose(write)) => {
                Some(Refusal::NotMember)
            }
            other => other,
        };
        if let Some(refusal) = refusal {
            self.release(data);
            self.refuse_command(from, write.epoch, refusal);
            return;
        }
        self.window.settle(write.settled);
        if joins {
            self.heard_as_joiner(now);
        } else {
            self.open |= write.open;
        }
        let mut arrival = self.window.arrival(write.sequence, self.covers(write.range));
        let late = joins && write.session.is_none() && arrival == Arrival::Applied;
        if late && self.planted.is(Bug::ResyncOverwritesNewer) && !self.window.has(write.sequence) {
            arrival = Arrival::New;
        }
        match arrival {
            // The write node would not have ordered it after the newer token, which each write of its epoch has. (A copy
            // that joins may have seen a token of a write that nobody else has.)
            Arrival::New if !joins && write.session.is_some() && self.is_older(write.writer_token) => {
                self.release(data);
                self.refuse_command(from, write.epoch, Refusal::FencedWriter);
            }
            Arrival::New => self.apply(now, write, data, true),
            Arrival::UnderWay => self.release(data),
            Arrival::Applied => {
                self.release(data);
                self.answer_write(from, write.epoch, write.sequence, write.join);
            }
        }
    }

    fn may_lose(&self, write: &ReplicaWrite) -> bool {
        self.has_sums && write.range.count == self.record.geometry.page_blocks()
    }

    fn answer_write(&mut self, to: NodeId, epoch: Epoch, sequence: Sequence, join: JoinNumber) {
        let answer = Message::ReplicaAnswer {
            chunk: self.chunk(),
            epoch,
            sequence,
            incarnation: self.incarnation,
            join,
            room: self.room_left(),
        };
        self.send(to, answer, None);
    }

    /// Makes a write's mark and fence durable, then gives it to the device.
    pub(super) fn apply(&mut self, now: Instant, write: &ReplicaWrite, data: Option<DataToken>, owns: bool) {
        let token = self.prepare(write);
        let covers = self.covers(write.range);
        self.reads.disturb(covers);
        self.window.insert(Entry {
            sequence: write.sequence,
            epoch: write.epoch,
            covers,
            range: write.range,
            kind: write.kind,
            data,
            owns_data: owns,
            force_unit_access: write.force_unit_access,
            is_resync: write.session.is_none() && write.join.0 != 0,
            progress: Progress::Persisting(token),
        });
        if token <= self.persisted {
            self.start_persisted_writes(now);
        }
    }

    /// The change of the record that must be durable before this write reaches the device.
    fn prepare(&mut self, write: &ReplicaWrite) -> PersistToken {
        // The lease first, since it forgets sessions before.
        if self.planted.is(Bug::TokenNotPersisted) {
            self.record.writer_token = self.record.writer_token.max(write.writer_token);
        }
        self.note_token(write.writer_token);
        if let Some(session) = write.session {
            self.note_session(session);
        }
        let mut token = self.fence_token;
        for region in self.intent.touched(self.covers(write.range)) {
            let put_out = self.persist_put_out;
            token = token.max(self.mark(region, write.sequence, write.epoch));
            if self.persist_put_out > put_out {
                self.mark_ahead(region, write);
            }
        }
        token
    }

    /// Marks a region as written; the change of the record with which that is durable.
    pub(super) fn mark(&mut self, region: u32, sequence: Sequence, epoch: Epoch) -> PersistToken {
        if self.intent.note(region, sequence, epoch) {
            let mark = self.persist(RecordDelta::Mark { region, epoch });
            self.intent.marked(region, mark);
        }
        self.intent.persist_token(region)
    }

    /// Makes a write lease that is newer than the last one durable. It forgets the sessions before, but no claims.
    pub(super) fn note_token(&mut self, token: WriterToken) {
        if token > self.record.writer_token {
            self.hosts.wrote.retain(|host, _| host.is_through_portals());
            self.fence_token = self.persist(RecordDelta::Writer(token));
        }
    }

    /// Makes a session that is newer than the host's last one durable, in the place of another host's if need be.
    pub(super) fn note_session(&mut self, session: Session) {
        let known = self.record.sessions.get(&session.host).copied();
        if known.is_none() && self.record.sessions.len() >= SESSIONS_MAX {
            let wrote = |host: &HostId| self.hosts.wrote.get(host).copied().unwrap_or(0);
            if let Some(host) = self.record.sessions.keys().copied().min_by_key(wrote) {
                self.hosts.wrote.remove(&host);
                self.persist(RecordDelta::Forget(host));
            }
        }
        if known.is_none_or(|number| number < session.number) {
            self.fence_token = self.persist(RecordDelta::Session(session));
        }
        self.hosts.writes += 1;
        self.hosts.wrote.insert(session.host, self.hosts.writes);
    }

    fn session_of(&self, host: HostId) -> u64 {
        self.record.sessions.get(&host).copied().unwrap_or(0)
    }

    /// The session under which a write that is ordered at `sequence` is noted: its own, or that of the claim which it
    /// makes. Sequences never come again in a chunk's order, unless every member has restarted; then the record has the last claim.
    pub(super) fn session_for(&self, request: &Request, sequence: Sequence) -> Session {
        let host = request.session.host;
        if !(request.operation.is_fence() && host.is_through_portals()) {
            return request.session;
        }
        let number = sequence.0.max(self.session_of(host).saturating_add(1));
        Session { host, number }
    }

    /// The newest write lease known here: the one in force, or one whose first write waits.
    fn newest_token(&self) -> WriterToken {
        let asked = self.lead.as_ref().map(|lead| lead.token_asked);
        self.record.writer_token.max(asked.unwrap_or_default())
    }

    fn is_older(&self, token: WriterToken) -> bool {
        token < self.newest_token() && !self.planted.is(Bug::OldTokenAccepted)
    }

    /// Whether an older session or an older lease stands against a write.
    pub(super) fn fenced(&self, request: &Request) -> Option<Status> {
        let Session { host, number } = request.session;
        let newest = self.session_of(host);
        let is_stale = if host.is_through_portals() {
            // Not "older than": a claim that has been forgotten (0047) is in force no more.
            let claims_anyhow = request.operation.is_fence() && number == 0;
            (number != newest || number == 0) && !claims_anyhow && !self.planted.is(Bug::ClaimIgnored)
        } else {
            number < newest && !self.planted.is(Bug::OldSessionAccepted)
        };
        if is_stale {
            return Some(Status::StaleSession);
        }
        if self.is_older(request.writer_token) {
            return Some(Status::FencedWriter(self.newest_token()));
        }
        None
    }

    /// Whether what hosts have agreed on since stands against a read that a portal asks for one of them under this token: it may
    /// not know of it. Native clients' reads need none.
    pub(super) fn fenced_read(&self, portal_token: Option<WriterToken>) -> Option<Status> {
        portal_token
            .filter(|token| self.is_older(*token) && !self.planted.is(Bug::PortalReadsUnfenced))
            .map(|_| Status::FencedWriter(self.newest_token()))
    }

    pub(super) fn start_persisted_writes(&mut self, now: Instant) {
        loop {
            let io = IoToken(self.next_io + 1);
            let Some(entry) = self.window.next_persisted(self.persisted) else {
                return;
            };
            entry.progress = Progress::Writing(io);
            if entry.kind == WriteKind::Fence {
                // What there was to do is durable.
                self.next_io = io.0;
                self.applied(now, io);
                continue;
            }
            let output = Output::LocalWrite {
                io,
                range: entry.range,
                kind: entry.kind,
                data: entry.data,
                force_unit_access: entry.force_unit_access,
                is_resync: entry.is_resync,
            };
            self.next_io = io.0;
            self.outputs.push_back(output);
        }
    }

    /// The device has a write.
    pub(super) fn applied(&mut self, now: Instant, io: IoToken) {
        let Some(entry) = self.window.by_io(io) else {
            return;
        };
        entry.progress = Progress::Applied;
        let (sequence, epoch) = (entry.sequence, entry.epoch);
        let owned = entry.data.take().filter(|_| entry.owns_data);
        self.release(owned);
        if self.failed {
            return;
        }
        let Some(config) = self.config.as_ref().filter(|c| c.epoch == epoch) else {
            if let Some((to, number)) = self.joined(epoch) {
                self.answer_write(to, epoch, sequence, number);
            }
            return;
        };
        if config.write_node != self.me {
            let to = config.write_node;
            self.answer_write(to, epoch, sequence, JoinNumber(0));
        } else {
            let me = (self.me, self.incarnation, JoinNumber(0));
            self.handle_replica_answer(now, me, epoch, sequence);
        }
    }

    pub(super) fn handle_settle(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        settled: Sequence,
        flushed: Sequence,
        open: bool,
    ) {
        if let Some(refusal) = self.refuses(from, epoch, JoinNumber(0)) {
            self.refuse_command(from, epoch, refusal);
            return;
        }
        self.window.settle(settled);
        self.open |= open;
        self.clear_marks(flushed);
        let answer = Message::SettleAnswer {
            chunk: self.chunk(),
            epoch,
            settled,
            flushed,
            open,
            incarnation: self.incarnation,
            room: self.room_left(),
        };
        self.send(from, answer, None);
    }

    pub(super) fn clear_marks(&mut self, flushed: Sequence) {
        // 0 is "no flush in this epoch yet", and also the sequence of marks from earlier lives.
        if flushed == Sequence(0) {
            return;
        }
        let regions = self.intent.clear_through(flushed);
        if !regions.is_empty() {
            self.persist(RecordDelta::Clear { regions });
        }
    }

    pub(super) fn handle_flush(
        &mut self,
        now: Instant,
        from: NodeId,
        epoch: Epoch,
        number: u64,
        join: JoinNumber,
    ) {
        if let Some(refusal) = self.refuses(from, epoch, join) {
            self.refuse_command(from, epoch, refusal);
            return;
        }
        if join.0 != 0 {
            self.heard_as_joiner(now);
        }
        let current = self.flush.as_ref().filter(|f| f.epoch == epoch);
        if self.flushed >= number {
            self.answer_flush(from, epoch, number, join);
        } else if current.is_none_or(|flush| flush.number < number) {
            let io = self.next_io();
            self.flush = Some(MemberFlush {
                io,
                epoch,
                number,
                join,
            });
            self.outputs.push_back(Output::LocalFlush { io });
        }
    }

    fn answer_flush(&mut self, to: NodeId, epoch: Epoch, number: u64, join: JoinNumber) {
        let answer = Message::FlushAnswer {
            chunk: self.chunk(),
            epoch,
            number,
            incarnation: self.incarnation,
            join,
        };
        self.send(to, answer, None);
    }

    pub(super) fn member_flushed(&mut self) {
        let Some(flush) = self.flush.take() else {
            return;
        };
        let config = self.config.as_ref().filter(|c| c.epoch == flush.epoch);
        let joined = self
            .joined(flush.epoch)
            .filter(|(_, number)| *number == flush.join);
        let to = config.map(|c| c.write_node).or(joined.map(|(to, _)| to));
        let Some(to) = to.filter(|_| !self.failed) else {
            return;
        };
        self.flushed = self.flushed.max(flush.number);
        // Of a copy that joins a flush says nothing of what it has missed.
        if flush.join.0 == 0 {
            self.record_flush();
        }
        self.answer_flush(to, flush.epoch, flush.number, flush.join);
    }

    /// Notes that a flush was completed here in this epoch. Nothing waits for it: a resync that
    /// does not know of it copies more than it must.
    pub(super) fn record_flush(&mut self) {
        let epoch = self.record.sealed;
        if !self.failed && self.record.flushed_in < epoch {
            self.persist(RecordDelta::Flushed(epoch));
        }
    }

    /// This life of this node, as a member of configurations.
    pub(super) fn life(&self) -> (NodeId, Incarnation) {
        (self.me, self.incarnation)
    }
}
