//! A chunk's part in a snapshot of its volume (`docs/decisions/0081`): the write node cuts the chunk at one sequence on every
//! copy, then holds the acknowledgements of what comes behind until all chunks of the volume have been cut.

use foundation::{Epoch, Instant};

use super::Member;
use super::lead::{Flight, Lead, Phase};
use crate::identity::{Incarnation, IoToken, JoinNumber, NodeId, RequestId, Sequence, SnapshotId};
use crate::message::{Message, Refusal};
use crate::output::{Output, Request, Status};
use crate::planted::Bug;

/// How far a write node is with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Begins no write, until none is in flight.
    Draining,
    /// Until every copy has kept what it has.
    Cutting,
    /// Writes go on, and are not acknowledged.
    Holding,
    /// As before; the members are asked whether they are still in the epoch.
    Confirming,
}

/// A snapshot in a write node's hands.
#[derive(Debug)]
pub(super) struct Cut {
    snapshot: SnapshotId,
    stage: Stage,
    /// What is to be answered next: the cut, or its release.
    request: Option<RequestId>,
    /// The last write that is in it, from `Cutting` on.
    sequence: Sequence,
    /// Of the write node's own copy.
    io: IoToken,
    /// One bit for each member that has answered in this stage.
    members: u32,
    due: Instant,
}

impl Cut {
    /// When it is given up.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// No write may be begun.
    pub(super) fn is_cutting(&self) -> bool {
        matches!(self.stage, Stage::Draining | Stage::Cutting)
    }
}

impl Lead {
    /// Whether no write may be begun, since a snapshot is being cut.
    pub(super) fn is_cutting(&self) -> bool {
        self.cut.as_ref().is_some_and(Cut::is_cutting)
    }

    fn cut_in(&mut self, stage: Stage, snapshot: SnapshotId) -> Option<&mut Cut> {
        let right = |cut: &&mut Cut| cut.stage == stage && cut.snapshot == snapshot;
        self.cut.as_mut().filter(right)
    }
}

/// A snapshot that a copy keeps for its write node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    snapshot: SnapshotId,
    epoch: Epoch,
    sequence: Sequence,
}

/// What a copy knows of snapshots in this life.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    making: Option<(IoToken, Kept)>,
    /// The last one that it kept, in case the answer is lost.
    kept: Option<Kept>,
    /// What the device was asked as write node; a cut that is given up does not end it.
    own: Vec<IoToken>,
    /// The last one for which the write node here was asked.
    asked: SnapshotId,
}

impl Member {
    /// The coordinator asks for a snapshot of this chunk.
    pub(super) fn begin_cut(&mut self, now: Instant, request: &Request, snapshot: SnapshotId) {
        let again = self.snapshots.asked == snapshot;
        let status = match &self.lead {
            Some(lead) if lead.config.epoch != request.epoch => Status::StaleEpoch(lead.config.epoch),
            Some(lead) if lead.cut.is_some() || again => Status::SnapshotAborted,
            Some(lead) if lead.phase == Phase::Serving => {
                self.snapshots.asked = snapshot;
                return self.put_cut(now, request.id, snapshot);
            }
            _ => Status::NotReady,
        };
        self.complete(request.id, status);
    }

    fn put_cut(&mut self, now: Instant, request: RequestId, snapshot: SnapshotId) {
        let due = now + self.settings.snapshot_hold;
        let again = now + self.settings.resend_interval;
        let Some(lead) = &mut self.lead else { return };
        if !lead.waits_for_answers() {
            lead.resend_at = again;
        }
        lead.cut = Some(Cut {
            snapshot,
            stage: Stage::Draining,
            request: Some(request),
            sequence: Sequence(0),
            io: IoToken(0),
            members: 0,
            due,
        });
    }

    /// When nothing is in flight, every copy has the same.
    pub(super) fn advance_cut(&mut self, now: Instant) {
        let io = IoToken(self.next_io + 1);
        let Some(lead) = &mut self.lead else { return };
        let drained = lead.in_flight.is_empty() || self.planted.is(Bug::CutBeforeDrained);
        let Some(cut) = &mut lead.cut else { return };
        if cut.stage == Stage::Draining && drained {
            cut.stage = Stage::Cutting;
            cut.sequence = lead.last_sequence;
            cut.io = io;
            let (snapshot, sequence) = (cut.snapshot, cut.sequence);
            lead.resend_at = now + self.settings.resend_interval;
            self.next_io = io.0;
            self.snapshots.own.push(io);
            self.outputs.push_back(Output::LocalSnapshot {
                io,
                snapshot,
                sequence,
            });
            self.resend_cut();
        }
    }

    /// Asks the members that have not answered.
    pub(super) fn resend_cut(&mut self) {
        let chunk = self.chunk();
        let Some(lead) = &self.lead else { return };
        let Some(cut) = &lead.cut else { return };
        let (epoch, snapshot, sequence) = (lead.config.epoch, cut.snapshot, cut.sequence);
        let message = match cut.stage {
            Stage::Cutting => Message::Snapshot {
                chunk,
                epoch,
                snapshot,
                sequence,
            },
            Stage::Confirming => Message::Confirm {
                chunk,
                epoch,
                snapshot,
            },
            Stage::Draining | Stage::Holding => return,
        };
        let silent = lead.others().filter(|index| cut.members >> index & 1 == 0);
        let nodes: Vec<NodeId> = silent.map(|index| lead.config.members[index].node).collect();
        for to in nodes {
            self.send(to, message.clone(), None);
        }
    }

    /// The write node asks this copy to keep what it has.
    pub(super) fn handle_snapshot(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        snapshot: SnapshotId,
        sequence: Sequence,
    ) {
        if let Some(refusal) = self.refuses(from, epoch, JoinNumber(0)) {
            return self.refuse_command(from, epoch, refusal);
        }
        let wanted = Kept {
            snapshot,
            epoch,
            sequence,
        };
        if self.snapshots.kept == Some(wanted) {
            return self.answer_snapshot(from, wanted);
        }
        match self.snapshots.making {
            // The answer will follow.
            Some((_, making)) if making == wanted => {}
            // The write node has gone on: this comes late.
            Some(_) => self.refuse_command(from, epoch, Refusal::NoSnapshot),
            None if self.window.highest() > sequence || self.window.under_way() => {
                self.refuse_command(from, epoch, Refusal::NoSnapshot);
            }
            None => {
                let io = self.next_io();
                self.snapshots.making = Some((io, wanted));
                self.outputs.push_back(Output::LocalSnapshot {
                    io,
                    snapshot,
                    sequence,
                });
            }
        }
    }

    fn answer_snapshot(&mut self, to: NodeId, kept: Kept) {
        let answer = Message::SnapshotAnswer {
            chunk: self.chunk(),
            epoch: kept.epoch,
            snapshot: kept.snapshot,
            sequence: kept.sequence,
            incarnation: self.incarnation,
        };
        self.send(to, answer, None);
    }

    /// The device has made a snapshot, or cannot. False if it was something else that has ended.
    pub(super) fn snapshot_ended(&mut self, now: Instant, io: IoToken, succeeded: bool) -> bool {
        if let Some((_, kept)) = self.snapshots.making.take_if(|(making, _)| *making == io) {
            let config = self.config.as_ref().filter(|c| c.epoch == kept.epoch);
            let to = config.map(|config| config.write_node);
            self.snapshots.kept = Some(kept).filter(|_| succeeded);
            if let Some(to) = to.filter(|_| !self.failed) {
                match succeeded {
                    true => self.answer_snapshot(to, kept),
                    false => self.refuse_command(to, kept.epoch, Refusal::NoSnapshot),
                }
            }
            return true;
        }
        let Some(at) = self.snapshots.own.iter().position(|own| *own == io) else {
            return false;
        };
        self.snapshots.own.swap_remove(at);
        let Some(lead) = &mut self.lead else { return true };
        let own = lead.config.index_of(lead.config.write_node);
        let is_own = |cut: &&mut Cut| cut.stage == Stage::Cutting && cut.io == io;
        let Some(cut) = lead.cut.as_mut().filter(is_own) else {
            return true;
        };
        if succeeded && let Some(own) = own {
            cut.members |= 1 << own;
            self.finish_stage(now);
        } else {
            self.give_up_cut(now);
        }
        true
    }

    pub(super) fn handle_snapshot_answer(
        &mut self,
        now: Instant,
        (from, incarnation): (NodeId, Incarnation),
        epoch: Epoch,
        (snapshot, sequence): (SnapshotId, Sequence),
    ) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) else {
            return;
        };
        let Some(index) = lead.member(from, incarnation) else {
            return;
        };
        lead.heard(now, index);
        if let Some(cut) = lead.cut_in(Stage::Cutting, snapshot)
            && cut.sequence == sequence
        {
            cut.members |= 1 << index;
            self.finish_stage(now);
        }
    }

    /// A member cannot keep the snapshot. (Of which it speaks is not said; to give up another one is no harm.)
    pub(super) fn snapshot_refused(&mut self, now: Instant, epoch: Epoch) {
        let concerned = |lead: &&Lead| lead.config.epoch == epoch && lead.is_cutting();
        if self.lead.as_ref().filter(concerned).is_some() {
            self.give_up_cut(now);
        }
    }

    pub(super) fn handle_confirm(&mut self, from: NodeId, epoch: Epoch, snapshot: SnapshotId) {
        if let Some(refusal) = self.refuses(from, epoch, JoinNumber(0)) {
            return self.refuse_command(from, epoch, refusal);
        }
        let answer = Message::ConfirmAnswer {
            chunk: self.chunk(),
            epoch,
            snapshot,
            incarnation: self.incarnation,
        };
        self.send(from, answer, None);
    }

    pub(super) fn handle_confirm_answer(
        &mut self,
        now: Instant,
        (from, incarnation): (NodeId, Incarnation),
        epoch: Epoch,
        snapshot: SnapshotId,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.config.epoch == epoch) else {
            return;
        };
        let Some(index) = lead.member(from, incarnation) else {
            return;
        };
        lead.heard(now, index);
        if let Some(cut) = lead.cut_in(Stage::Confirming, snapshot) {
            cut.members |= 1 << index;
            self.finish_stage(now);
        }
    }

    /// Every chunk has been cut.
    pub(super) fn release_cut(&mut self, now: Instant, request: &Request, snapshot: SnapshotId) {
        let again = now + self.settings.resend_interval;
        let lead = self
            .lead
            .as_mut()
            .filter(|lead| lead.config.epoch == request.epoch);
        let Some(lead) = lead else {
            return self.complete(request.id, Status::SnapshotAborted);
        };
        let own = lead.config.index_of(lead.config.write_node);
        let Some(cut) = lead.cut_in(Stage::Holding, snapshot) else {
            return self.complete(request.id, Status::SnapshotAborted);
        };
        cut.stage = Stage::Confirming;
        cut.request = Some(request.id);
        // This life leads in the epoch: what ends that ends the cut, too.
        cut.members = own.map_or(0, |own| 1 << own);
        lead.resend_at = again;
        self.resend_cut();
        self.finish_stage(now);
    }

    /// The coordinator has given up. A cut that comes after this is given up when its time is over.
    pub(super) fn abandon_cut(&mut self, now: Instant, request: &Request, snapshot: SnapshotId) {
        let cut = self.lead.as_ref().and_then(|lead| lead.cut.as_ref());
        if cut.is_some_and(|cut| cut.snapshot == snapshot) {
            self.give_up_cut(now);
        }
        self.complete(request.id, Status::Done);
    }

    /// Goes on if every member has answered.
    fn finish_stage(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else { return };
        let all = lead.all_members();
        let Some(cut) = lead.cut.as_mut().filter(|cut| cut.members & all == all) else {
            return;
        };
        let request = cut.request.take();
        match cut.stage {
            Stage::Cutting => {
                cut.stage = Stage::Holding;
                cut.members = 0;
            }
            Stage::Confirming => {
                lead.cut = None;
                self.acknowledge_held(now);
            }
            Stage::Draining | Stage::Holding => return,
        }
        if let Some(request) = request {
            self.complete(request, Status::Done);
        }
    }

    /// Whether a write that every copy has is not to be acknowledged yet.
    pub(super) fn holds_acknowledgement(&self, sequence: Sequence) -> bool {
        let cut = self.lead.as_ref().and_then(|lead| lead.cut.as_ref());
        let behind = |cut: &Cut| !cut.is_cutting() && cut.sequence < sequence;
        cut.is_some_and(behind) && !self.planted.is(Bug::SnapshotWithoutHold)
    }

    fn acknowledge_held(&mut self, now: Instant) {
        let Some(lead) = &mut self.lead else { return };
        let required = lead.required();
        let (held, rest): (Vec<Flight>, Vec<Flight>) = lead
            .in_flight
            .drain(..)
            .partition(|flight| flight.members & required == required);
        lead.in_flight = rest.into();
        for flight in held {
            self.on_every_copy(now, flight);
        }
    }

    pub(super) fn cut_timeout(&mut self, now: Instant) {
        let cut = self.lead.as_ref().and_then(|lead| lead.cut.as_ref());
        if cut.is_some_and(|cut| cut.due <= now) {
            self.give_up_cut(now);
        }
    }

    fn give_up_cut(&mut self, now: Instant) {
        let cut = self.lead.as_mut().and_then(|lead| lead.cut.take());
        self.end_cut(cut);
        self.acknowledge_held(now);
    }

    /// The snapshot will not be complete.
    pub(super) fn end_cut(&mut self, cut: Option<Cut>) {
        if let Some(request) = cut.and_then(|cut| cut.request) {
            self.complete(request, Status::SnapshotAborted);
        }
    }
}
