//! Changes of the configuration: stepping down, sealing as a member, taking over as write node.

use foundation::{Epoch, Instant};

use super::lead::{Lead, Phase, Queued};
use super::{Member, Resignation};
use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{DataToken, Incarnation, NodeId, Session};
use crate::message::{Message, Refusal, SealAnswer};
use crate::output::{Output, Reason, Status};
use crate::planted::Bug;
use crate::record::{ChunkRecord, RecordDelta};
use crate::sealing::PendingSeal;

impl Member {
    /// The masters have committed this configuration. Older ones than already known are ignored.
    pub fn handle_configuration(&mut self, now: Instant, grants: &mut Grants, config: &ChunkConfig) {
        let known = config.epoch <= self.newest || config.epoch < self.record.sealed;
        if known || config.validate().is_err() {
            return;
        }
        self.learn(config);
        let (me, incarnation) = self.life();
        self.resignation = None;
        if self.failed {
            // Named write node all the same: by masters who could not know.
            if config.write_node == me && config.has(me, incarnation) {
                self.resignation = self.successor(now, config);
            }
            return self.resign(now);
        }
        if !config.has(me, incarnation) {
            self.leave(now, grants);
            self.begin_return(now, config);
        } else if config.write_node == me {
            self.end_return();
            self.take_lead(now, config);
        } else {
            self.end_return();
            self.step_down(Status::NotWriteNode(config.epoch));
        }
        self.pump(now, grants);
    }

    fn learn(&mut self, config: &ChunkConfig) {
        self.newest = config.epoch;
        self.committed = Some(config.clone());
    }

    /// What to ask for when this node cannot order the chunk's writes any more.
    pub(super) fn prepare_resignation(&mut self, now: Instant) {
        let config = self.lead.as_ref().map(|lead| lead.config.clone());
        self.resignation = config.and_then(|config| self.successor(now, &config));
    }

    /// The configuration without this copy; none if too few would be left.
    fn successor(&self, now: Instant, config: &ChunkConfig) -> Option<Resignation> {
        let mut next = config.clone();
        next.members.retain(|member| member.node != self.me);
        if next.members.len() < usize::from(self.record.geometry.minimum) {
            return None;
        }
        let heard = |index: &usize| {
            let node = next.members[*index].node;
            self.lead.as_ref().and_then(|lead| lead.heard_from(node))
        };
        let index = (0..next.members.len()).max_by_key(heard)?;
        next.write_node = next.members[index].node;
        next.epoch = config.epoch.next();
        Some(Resignation {
            expected: config.epoch,
            config: next,
            reason: Reason::Resigns,
            again_at: now,
        })
    }

    /// Asks for it, and again until a newer configuration is known.
    pub(super) fn resign(&mut self, now: Instant) {
        let Some(resignation) = self.resignation.as_mut().filter(|r| r.again_at <= now) else {
            return;
        };
        resignation.again_at = now + self.settings.suspect_after;
        let (expected, config) = (resignation.expected, resignation.config.clone());
        let reason = resignation.reason;
        self.outputs.push_back(Output::Propose {
            expected,
            config,
            reason,
        });
    }

    /// Left out: this copy serves nothing and grants nothing more. What it has granted binds it for a term yet, before
    /// which it does not ask to join again.
    pub(super) fn leave(&mut self, now: Instant, grants: &mut Grants) {
        self.step_down(Status::NotWriteNode(self.newest));
        // Should a record be being written, only its refusal of older epochs will remain.
        self.pending_seal = None;
        grants.withdraw(self.chunk());
        if let Some(config) = self.config.take() {
            self.left = config.epoch;
            self.quiet_until = self.quiet_until.max(now + self.settings.grant_term);
        }
        self.open = false;
        self.announced = false;
        self.leave_without_room();
    }

    /// Ends the work as write node. Writes under way end as unknown; those not begun, and
    /// flushes, end with `status`.
    pub(super) fn step_down(&mut self, status: Status) {
        let Some(mut lead) = self.lead.take() else {
            return;
        };
        self.end_cut(lead.cut.take());
        for flight in lead.in_flight.drain(..) {
            self.give_back(flight.data);
            if let Some(request) = flight.request {
                self.complete(request.id, Status::Unknown);
            }
        }
        let comparing = lead.take_comparing();
        for queued in comparing.chain(lead.waiting.drain(..)) {
            self.give_back(queued.request.data());
            self.complete(queued.request.id, queued.undone(status));
        }
        for request in lead.take_flushes() {
            self.complete(request, status);
        }
    }

    pub(super) fn take_lead(&mut self, now: Instant, config: &ChunkConfig) {
        let mut lead = Lead::new(now, config.clone(), self.settings);
        match self.lead.take() {
            Some(mut old) => {
                self.end_cut(old.cut.take());
                lead.full = old.phase != Phase::Serving;
                let members = config.members.iter().enumerate();
                let stay = members.filter(|(_, m)| old.config.has(m.node, m.incarnation));
                lead.to_stay = stay.fold(0, |members, (index, _)| members | 1 << index);
                let flights: Vec<_> = old.in_flight.drain(..).collect();
                for flight in flights {
                    // Whatever its client is told, copies may have it. Of a repair a copy that found no room knows nothing of the block any more,
                    // and would take for right what it has there.
                    if flight.is_hosts() || flight.repair && flight.is_sent() {
                        let touched = self.intent.touched(self.covers(flight.write.range));
                        lead.reconciliation.regions.extend(touched);
                    }
                    match flight.request {
                        Some(request) if !lead.goes_on_after(old.config.epoch, &request) => {
                            self.give_back(flight.data);
                            self.complete(request.id, Status::Unknown);
                        }
                        Some(request) => {
                            lead.waiting.push_back(Queued {
                                begun: true,
                                ..Queued::new(request)
                            });
                        }
                        None => self.give_back(flight.data),
                    }
                }
                lead.token_asked = old.token_asked;
                lead.waiting.extend(old.take_comparing());
                for queued in old.waiting.drain(..) {
                    if queued.begun && !lead.goes_on_after(old.config.epoch, &queued.request) {
                        self.give_back(queued.request.data());
                        self.complete(queued.request.id, Status::Unknown);
                    } else {
                        lead.waiting.push_back(queued);
                    }
                }
                lead.flush_waiting = old.take_flushes();
            }
            None => lead.full = true,
        }
        self.lead = Some(lead);
        self.send_seals(now);
    }

    /// Gives back a request's bytes: now, or when the device is done with them. An attempt that a
    /// change of the configuration cut short may still be on its way to the device.
    pub(super) fn give_back(&mut self, data: Option<DataToken>) {
        let held = data.and_then(|data| self.window.holding(data));
        match held {
            Some(entry) => entry.owns_data = true,
            None => self.release(data),
        }
    }

    pub(super) fn send_seals(&mut self, now: Instant) {
        let chunk = self.chunk();
        let Some(lead) = &mut self.lead else {
            return;
        };
        lead.resend_at = now + self.settings.resend_interval;
        let config = lead.config.clone();
        let missing = config.members.iter().enumerate();
        let missing = missing.filter(|(index, m)| m.node != self.me && !lead.answers.has(*index));
        let missing: Vec<NodeId> = missing.map(|(_, m)| m.node).collect();
        for node in missing {
            let config = config.clone();
            self.send(node, Message::Seal { chunk, config }, None);
        }
    }

    pub(super) fn handle_seal(&mut self, grants: &Grants, from: NodeId, config: ChunkConfig) {
        let (me, incarnation) = self.life();
        let epoch = config.epoch;
        if self.failed {
            self.refuse_command(from, epoch, Refusal::DeviceFailed);
            return;
        }
        if epoch < self.record.sealed {
            self.refuse_command(from, epoch, Refusal::StaleEpoch);
            return;
        }
        // In an epoch that this life has left it would answer for writes that it does not have.
        if !config.has(me, incarnation) || config.validate().is_err() || epoch <= self.left {
            self.refuse_command(from, epoch, Refusal::NotMember);
            return;
        }
        if config.write_node != from || from == me {
            self.refuse_command(from, epoch, Refusal::NotMember);
            return;
        }
        if self.config.as_ref().is_some_and(|c| c.epoch == epoch) {
            self.answer_seal(from);
            return;
        }
        if epoch < self.newest {
            // A later configuration is committed, so this one will never serve.
            self.refuse_command(from, epoch, Refusal::StaleEpoch);
            return;
        }
        if self.newest < epoch {
            self.learn(&config);
            self.step_down(Status::NotWriteNode(epoch));
        }
        self.begin_seal(grants, config, Some(from));
    }

    fn begin_seal(&mut self, grants: &Grants, config: ChunkConfig, answer_to: Option<NodeId>) {
        let earlier = self.pending_seal.as_ref();
        if earlier.is_some_and(|p| p.persist.is_some() || p.config.epoch >= config.epoch) {
            return;
        }
        let adopted = self.config.as_ref();
        let pending = PendingSeal::new(config, answer_to, adopted, earlier, grants);
        self.pending_seal = Some(pending);
    }

    /// Until when a configuration may not be sealed because this life is too young. The first
    /// one has no predecessor under which anything could have been granted.
    pub(super) fn quiet_for(&self, config: &ChunkConfig) -> Instant {
        match config.epoch {
            Epoch(1) => Instant::default(),
            _ if self.planted.is(Bug::NoQuietTerm) => Instant::default(),
            _ => self.quiet_until,
        }
    }

    pub(super) fn try_seal(&mut self, now: Instant, grants: &mut Grants) {
        if let Some(lead) = &self.lead
            && self.config.as_ref().is_none_or(|c| c.epoch < lead.config.epoch)
        {
            let config = lead.config.clone();
            self.begin_seal(grants, config, None);
        }
        let Some(pending) = self.pending_seal.as_ref().filter(|p| p.persist.is_none()) else {
            return;
        };
        let gated = now < pending.gate(grants) && !self.planted.is(Bug::SealWithoutGate);
        if gated || now < self.quiet_for(&pending.config) {
            return;
        }
        // No write of the old epoch begins any more; those with the device are waited for.
        if let Some(pending) = &mut self.pending_seal {
            pending.draining = true;
        }
        self.give_up_parked();
        let Some(pending) = self.pending_seal.as_ref().filter(|_| !self.window.under_way()) else {
            return;
        };
        let config = pending.config.clone();
        if is_forced(&self.record, &config) && !self.planted.is(Bug::ForcedAsIfInSync) {
            self.count_all_written(config.epoch);
        }
        let token = self.persist(RecordDelta::Sealed(config));
        if let Some(pending) = &mut self.pending_seal {
            pending.persist = Some(token);
        }
    }

    /// All regions count as written in this epoch. Before it is sealed, so that no crash lies between the two; no mark remains, since
    /// nothing has to be made equal.
    fn count_all_written(&mut self, epoch: Epoch) {
        let regions = 0..self.record.geometry.regions();
        let marked = self.record.intent.clone();
        for region in regions.clone() {
            self.persist(RecordDelta::Mark { region, epoch });
        }
        let regions = regions.filter(|region| !marked.contains(region)).collect();
        self.persist(RecordDelta::Clear { regions });
    }

    /// The record of a seal is durable: the configuration is in force here.
    pub(super) fn finish_seal(&mut self, now: Instant, grants: &mut Grants) {
        let durable = |p: &PendingSeal| p.persist.is_some_and(|token| token <= self.persisted);
        if !self.pending_seal.as_ref().is_some_and(durable) {
            return;
        }
        let Some(pending) = self.pending_seal.take() else {
            return;
        };
        let forget = pending.answer_to.is_none() && self.lead_is_new();
        grants.enroll(now, self.chunk(), &pending.config, self.me, forget);
        self.flush = None;
        self.flushed = 0;
        self.announced = false;
        self.returning = None;
        self.stays = self.config.replace(pending.config).is_some();
        match pending.answer_to {
            Some(to) => self.answer_seal(to),
            None => {
                let answer = self.seal_answer();
                self.handle_seal_answer(now, self.me, &answer);
            }
        }
    }

    fn lead_is_new(&self) -> bool {
        let led_before = self.config.as_ref().is_some_and(|c| c.write_node == self.me);
        !led_before
    }

    fn seal_answer(&self) -> SealAnswer {
        let sessions = self.record.sessions.iter();
        SealAnswer {
            chunk: self.chunk(),
            epoch: self.record.sealed,
            incarnation: self.incarnation,
            highest: self.window.highest(),
            marks: self.intent.regions().collect(),
            stays: self.stays,
            sessions: sessions
                .map(|(&host, &number)| Session { host, number })
                .collect(),
            writer_token: self.record.writer_token,
        }
    }

    fn answer_seal(&mut self, to: NodeId) {
        let answer = self.seal_answer();
        self.send(to, Message::SealAnswer(answer), None);
    }

    pub(super) fn handle_seal_answer(&mut self, now: Instant, from: NodeId, answer: &SealAnswer) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        if answer.epoch == lead.config.epoch
            && lead.phase == Phase::Sealing
            && let Some(index) = lead.member(from, answer.incarnation)
        {
            lead.heard(now, index);
            lead.answers.add(index, answer, self.record.geometry.regions());
        }
    }

    /// What others know of newer sessions and leases becomes part of this copy's record.
    pub(super) fn merge_fences(&mut self) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        let sessions = std::mem::take(&mut lead.answers.sessions);
        let token = lead.answers.writer_token;
        // The lease first, since it forgets the sessions before.
        self.note_token(token);
        for (host, number) in sessions {
            self.note_session(Session { host, number });
        }
    }

    /// Whether a life of a node counts as a member of what this copy has sealed.
    pub fn is_member(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.config.as_ref().is_some_and(|c| c.has(node, incarnation))
    }
}

/// Whether the masters have this copy served by force: alone, in an epoch far above all it knows (`docs/decisions/0105`). Others
/// may have acknowledged what it lacks, and should they come back, nothing tells in which regions: they are sent all of them.
/// An epoch so far above for another reason costs that, and nothing else.
fn is_forced(record: &ChunkRecord, config: &ChunkConfig) -> bool {
    config.members.len() == 1 && config.epoch.0 >= record.sealed.0.saturating_add(Epoch::JUMP)
}
