//! How a copy that is not in sync comes back: it asks the write node of the configuration it knows, again and again,
//! until it is let in; takes part in that one join, by its number; and is in sync when a configuration says so.
//! Until then it serves nothing, moves no flush record and clears no mark.

use foundation::{Epoch, Instant};

use super::Member;
use super::lacks::Fences;
use crate::configuration::ChunkConfig;
use crate::identity::{Incarnation, JoinNumber, NodeId, PersistToken, Sequence, Session};
use crate::message::{Message, Refusal, ReplicaWrite};
use crate::planted::Bug;
use crate::record::RecordDelta;
use crate::sequence::Window;

/// Regions that are marked with one that must be. After a crash nothing is known of their sums, also of those that nothing was sent of yet.
const MARKED_AHEAD: usize = 31;

/// The join this copy takes part in.
#[derive(Debug)]
struct Joined {
    number: JoinNumber,
    /// The change of the record that says so; none while writes of before are with the device.
    persist: Option<PersistToken>,
    answered: bool,
    /// Regions that this copy will be sent, ascending.
    marks: Vec<u32>,
}

/// A copy that is not in sync and knows a configuration.
#[derive(Debug)]
pub(super) struct Returning {
    config: ChunkConfig,
    /// When to ask next; none once a newer configuration names this life.
    again_at: Option<Instant>,
    heard: Instant,
    joined: Option<Joined>,
}

impl Member {
    /// A configuration is committed that does not name this life.
    pub(super) fn begin_return(&mut self, now: Instant, config: &ChunkConfig) {
        self.returning = Some(Returning {
            config: config.clone(),
            again_at: Some(now),
            heard: now,
            joined: None,
        });
    }

    /// A configuration is committed that names this life: it is to seal it.
    pub(super) fn end_return(&mut self) {
        if let Some(returning) = &mut self.returning {
            returning.again_at = None;
        }
    }

    /// When this copy asks again. A life that may have granted something asks only when that has ended.
    pub(super) fn return_due(&self) -> Option<Instant> {
        let returning = self.returning.as_ref().filter(|_| !self.room.keeps_out())?;
        let elsewhere = returning.config.write_node != self.me;
        Some(returning.again_at?.max(self.quiet_until)).filter(|_| elsewhere)
    }

    /// The number under which this copy takes writes of `epoch`'s write node, if it takes any.
    pub(super) fn joined(&self, epoch: Epoch) -> Option<(NodeId, JoinNumber)> {
        let returning = self.returning.as_ref().filter(|r| r.config.epoch == epoch)?;
        let joined = returning.joined.as_ref().filter(|joined| joined.answered)?;
        Some((returning.config.write_node, joined.number))
    }

    /// Whether a write or flush under a join's number is to be refused.
    pub(super) fn refuses_joined(&mut self, from: NodeId, epoch: Epoch, join: JoinNumber) -> Option<Refusal> {
        match self.joined(epoch) {
            Some(joined) if joined == (from, join) => None,
            _ if self.planted.is(Bug::JoinWithoutNumber) && self.knows_as_returning(from, epoch) => None,
            _ => Some(Refusal::WrongJoin),
        }
    }

    fn knows_as_returning(&self, from: NodeId, epoch: Epoch) -> bool {
        let returning = self.returning.as_ref();
        returning.is_some_and(|r| r.config.epoch == epoch && r.config.write_node == from)
    }

    /// It cannot take part in the join.
    pub(super) fn leave_join(&mut self) {
        if let Some(returning) = &mut self.returning {
            returning.joined = None;
        }
    }

    pub(super) fn heard_as_joiner(&mut self, now: Instant) {
        if let Some(returning) = &mut self.returning {
            returning.heard = now;
        }
    }

    /// The write node lets this copy in.
    pub(super) fn handle_join(
        &mut self,
        now: Instant,
        from: NodeId,
        epoch: Epoch,
        (number, incarnation): (JoinNumber, Incarnation),
        ((token, sessions), marks): (Fences, Vec<u32>),
    ) {
        if self.failed {
            self.refuse_command(from, epoch, Refusal::DeviceFailed);
            return;
        }
        let due = now >= self.quiet_until && incarnation == self.incarnation && self.pending_seal.is_none();
        let known = |r: &&mut Returning| r.config.epoch == epoch && r.config.write_node == from;
        let Some(returning) = self.returning.as_mut().filter(known).filter(|_| due) else {
            self.refuse_command(from, epoch, Refusal::NotMember);
            return;
        };
        returning.heard = now;
        match &mut returning.joined {
            // Without a number each Join would have to be taken for a new one.
            Some(_) if self.planted.is(Bug::JoinWithoutNumber) => {}
            Some(joined) if joined.number == number => {
                // Asked again: answered again, as soon as it can be.
                joined.answered = false;
                return;
            }
            Some(joined) if joined.number > number => {
                self.refuse_command(from, epoch, Refusal::WrongJoin);
                return;
            }
            _ => {}
        }
        returning.joined = Some(Joined {
            number,
            persist: None,
            answered: false,
            marks,
        });
        // Nothing of before reaches the device any more; what is there already is waited for.
        for data in self.window.forget_waiting() {
            self.release(Some(data));
        }
        let is_newest = token >= self.record.writer_token;
        // The lease first, since it forgets sessions before. Claims count under any.
        self.note_token(token);
        let counts = |session: &Session| is_newest || session.host.is_through_portals();
        for session in sessions.into_iter().filter(counts) {
            self.note_session(session);
        }
    }

    /// Whatever may have become possible on the way back.
    pub(super) fn advance_return(&mut self, now: Instant) {
        let Some(returning) = &mut self.returning else {
            return;
        };
        if let Some(joined) = &mut returning.joined {
            let (number, config) = (joined.number, &returning.config);
            match joined.persist {
                None if !self.window.under_way() => {
                    let config = config.clone();
                    self.window = Window::default();
                    self.intent.begin_order();
                    self.flush = None;
                    self.flushed = 0;
                    let token = self.persist(RecordDelta::Sealed(config));
                    if let Some(joined) = self.returning.as_mut().and_then(|r| r.joined.as_mut()) {
                        joined.persist = Some(token);
                    }
                }
                Some(token) if token <= self.persisted && !joined.answered => {
                    joined.answered = true;
                    let (to, epoch) = (config.write_node, config.epoch);
                    let answer = Message::JoinAnswer {
                        chunk: self.chunk(),
                        epoch,
                        join: number,
                        incarnation: self.incarnation,
                        keeps_lost: self.has_sums,
                    };
                    self.send(to, answer, None);
                }
                _ => {}
            }
        }
        self.ask_to_return(now);
    }

    /// The mark of a region has to become durable before what this join sends can be written to it. Those that come next are marked with
    /// it, so that not every region waits for a flush of its own.
    pub(super) fn mark_ahead(&mut self, region: u32, write: &ReplicaWrite) {
        let joined = self
            .returning
            .as_ref()
            .and_then(|returning| returning.joined.as_ref());
        let Some(joined) = joined.filter(|joined| write.join.0 != 0 && joined.number == write.join) else {
            return;
        };
        let from = joined.marks.partition_point(|next| *next <= region);
        let regions = self.record.geometry.regions();
        let next = joined.marks[from..].iter().copied().take(MARKED_AHEAD);
        for region in next.filter(|region| *region < regions).collect::<Vec<_>>() {
            self.mark(region, Sequence(0), write.epoch);
        }
    }

    fn ask_to_return(&mut self, now: Instant) {
        if self.return_due().is_none_or(|at| now < at) {
            return;
        }
        let Some(returning) = &mut self.returning else {
            return;
        };
        returning.again_at = Some(now + self.settings.return_interval);
        // While it takes part, it asks only if the write node seems to have forgotten it.
        if returning.joined.is_some() && now.since(returning.heard) < self.settings.suspect_after {
            return;
        }
        let (to, epoch) = (returning.config.write_node, returning.config.epoch);
        let mut flushed_in = self.record.flushed_in;
        if self.planted.is(Bug::DeltaFromDisconnect) {
            flushed_in = self.record.sealed.next();
        }
        let marks = self.intent.regions().collect();
        let message = Message::Return {
            chunk: self.chunk(),
            epoch,
            incarnation: self.incarnation,
            flushed_in,
            marks,
            takes_marks: true,
        };
        self.send(to, message, None);
    }
}
