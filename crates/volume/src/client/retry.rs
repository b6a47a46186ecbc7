//! The task of a piece whose first attempt did not succeed.

use std::rc::Rc;
use std::time::Duration;

use bdev::{Data, IoError};
use foundation::{Epoch, Instant};
use reactor::sync::oneshot;
use reactor::time;

use crate::identity::{ChunkIndex, NodeId, WriterToken};
use crate::map::Route;
use crate::message::codec::NativeOperation;
use crate::output::Status;

use super::channel::{Core, Waiting, needs_to_write};
use super::claims;
use super::job::Job;
use super::peers::PeerStatus;

/// An attempt that has ended.
pub(super) struct Ended {
    pub(super) node: NodeId,
    pub(super) epoch: Epoch,
    /// 0 for a read or flush.
    pub(super) session: u64,
    pub(super) status: PeerStatus,
}

impl Ended {
    /// A command that was not made, since by what its portal knows its host may not make it.
    pub(super) fn unasked(route: Route) -> Self {
        Self {
            node: route.node,
            epoch: route.epoch,
            session: 0,
            status: PeerStatus::Answered(Status::FencedWriter(WriterToken(0))),
        }
    }
}

/// What an attempt's end asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The piece has ended.
    Finish(Result<(), IoError>),
    /// Ask another copy; with the error, if this one's device failed.
    Elsewhere(Option<IoError>),
    /// It was not done: again after a pause.
    Again {
        /// A newer map may help.
        refresh: bool,
    },
    /// It may have been done: again in a new session.
    NewSession,
    /// It was not done, and will not be under its claim: again under the one that followed, if there is one.
    Superseded,
    /// It may have been done: again under a claim that follows its own, if none came between.
    NewClaim,
}

fn after_read(status: PeerStatus) -> Next {
    match status {
        PeerStatus::Answered(Status::Done) => Next::Finish(Ok(())),
        PeerStatus::Answered(Status::FencedWriter(_)) => Next::Finish(Err(IoError::Fenced)),
        PeerStatus::Answered(Status::OutOfRange) => Next::Finish(Err(IoError::OutOfRange)),
        PeerStatus::Answered(Status::DeviceFailed) => Next::Elsewhere(Some(IoError::Media)),
        PeerStatus::Answered(_) | PeerStatus::Unreachable | PeerStatus::Lost => Next::Elsewhere(None),
        PeerStatus::Failed(error) => match error {
            IoError::OutOfRange | IoError::Unaligned | IoError::Unsupported | IoError::Fenced => {
                Next::Finish(Err(error))
            }
            error if is_passing(error) => Next::Elsewhere(None),
            error => Next::Elsewhere(Some(error)),
        },
    }
}

/// Of a write and of a flush, which may always be repeated.
fn after_write(status: PeerStatus, changes: bool, newer_session: bool) -> Next {
    let again = Next::Again { refresh: true };
    let unknown = if changes { Next::NewSession } else { again };
    match status {
        PeerStatus::Answered(status) => match status {
            Status::Done | Status::Claimed(_) => Next::Finish(Ok(())),
            Status::FencedWriter(_) => Next::Finish(Err(IoError::Fenced)),
            // Nobody says so of a write.
            Status::SnapshotAborted => Next::Finish(Err(IoError::Aborted)),
            Status::Differs => Next::Finish(Err(IoError::Mismatch)),
            Status::Lost => Next::Finish(Err(IoError::Media)),
            Status::OutOfRange => Next::Finish(Err(IoError::OutOfRange)),
            Status::NoRoom => Next::Finish(Err(IoError::NoSpace)),
            Status::StaleEpoch(_) | Status::NotWriteNode(_) | Status::NotReady | Status::DeviceFailed => {
                again
            }
            Status::Busy | Status::Cancelled => Next::Again { refresh: false },
            Status::StaleSession if newer_session => Next::Again { refresh: false },
            Status::StaleSession | Status::Unknown => unknown,
        },
        PeerStatus::Failed(error) if is_passing(error) => unknown,
        PeerStatus::Failed(error) => Next::Finish(Err(error)),
        PeerStatus::Unreachable => again,
        PeerStatus::Lost => unknown,
    }
}

/// Of a portal's write, which goes under a claim.
fn after_claimed(status: PeerStatus) -> Next {
    match after_write(status, true, false) {
        _ if status == PeerStatus::Answered(Status::StaleSession) => Next::Superseded,
        Next::NewSession => Next::NewClaim,
        next => next,
    }
}

/// How a write ends that was to be compared first, where `next` would have it made again though it may have been done: it would be compared
/// with its own bytes. What is still on its way takes no effect once the claim has gone on; without claims it may take effect later, as one
/// write.
fn after_compared(next: Next) -> Option<Result<(), IoError>> {
    matches!(next, Next::NewSession | Next::NewClaim).then_some(Err(IoError::Unavailable))
}

/// Whether a later attempt may succeed. What such an attempt has done is unknown.
fn is_passing(error: IoError) -> bool {
    matches!(
        error,
        IoError::Unavailable | IoError::TimedOut | IoError::Aborted | IoError::Exhausted
    )
}

/// What is remembered between the attempts at one piece.
struct Attempts {
    /// Copies asked since the last pause, and how many of them said that their device failed.
    tried: Vec<NodeId>,
    device_errors: usize,
    pause: Duration,
    made: u32,
    /// Times that a newer token stood against it.
    refused: u32,
    /// Of a read from one copy, whether the configuration was looked up anew because that knew another one.
    renewed: bool,
}

/// Brings a piece to its end. `ended` is its first attempt; none if there was no map to make one by.
pub(super) async fn finish(core: Rc<Core>, mut job: Job, mut data: Data, mut ended: Option<Ended>) {
    let mut attempts = Attempts {
        tried: Vec::new(),
        device_errors: 0,
        pause: core.options.pause_min,
        made: 1,
        refused: 0,
        renewed: false,
    };
    loop {
        match attempts.settle(&core, &mut job, ended.take()).await {
            Some(status) => return job.finish(&core, status, data),
            None if time::now() >= job.terms.deadline => {
                return job.finish(&core, Err(IoError::Unavailable), data);
            }
            None => {}
        }
        data = match (job.terms.operation, &job.kept, data) {
            (NativeOperation::Read, _, Data::Into(buffer)) => Data::Into(buffer),
            // The buffer went down with its connection.
            (NativeOperation::Read, _, _) => return job.finish(&core, Err(IoError::Unavailable), Data::None),
            (_, Some(buffer), _) => Data::From(buffer.clone()),
            (_, None, _) => Data::None,
        };
        core.look_at_map();
        let Some(route) = core.route(&job, &attempts.tried) else {
            continue;
        };
        let Some(command) = core.command(&job, route.epoch) else {
            ended = Some(Ended::unasked(route));
            continue;
        };
        attempts.made += 1;
        let (sender, answer) = oneshot();
        // What is taken back keeps its place in a queue until the node answers or is lost: once from each copy is enough.
        let waiting = Waiting::Retry(sender, attempts.made <= core.copies());
        let (tag, session) = core.send(route, command, job.place, data, waiting);
        let left = job.terms.deadline.since(time::now());
        match time::timeout(left, answer).await {
            Ok(Some(answer)) => {
                data = answer.data;
                ended = Some(Ended {
                    node: route.node,
                    epoch: route.epoch,
                    session,
                    status: answer.status,
                });
            }
            Ok(None) | Err(time::Elapsed) => {
                core.forget(tag);
                core.leave_claim(&job);
                return job.finish(&core, Err(IoError::Unavailable), Data::None);
            }
        }
    }
}

impl Attempts {
    /// Does what an attempt's end asks for, pauses included. Returns the piece's end if it has come.
    async fn settle(
        &mut self,
        core: &Rc<Core>,
        job: &mut Job,
        ended: Option<Ended>,
    ) -> Option<Result<(), IoError>> {
        let Some(ended) = ended else {
            self.tried.clear();
            self.device_errors = 0;
            self.pause(core, job, core.epoch(job.place.chunk), true).await;
            return None;
        };
        // What a host may do has changed: it was not done.
        if let (Some(claims), PeerStatus::Answered(Status::FencedWriter(known))) =
            (&core.claims, ended.status)
        {
            let changes = needs_to_write(job.terms.operation);
            if let Err(error) = claims.learn(changes, known, job.terms.deadline).await {
                return Some(Err(error));
            }
            self.refused += 1;
            if self.refused >= claims::AT_ONCE_MAX {
                self.pause(core, job, ended.epoch, false).await;
            }
            return None;
        }
        let next = match job.terms.operation {
            NativeOperation::Read => after_read(ended.status),
            _ if job.terms.claim.is_some() => after_claimed(ended.status),
            operation => {
                let newer_session = ended.session != 0 && core.sessions.current() > ended.session;
                after_write(ended.status, operation.changes(), newer_session)
            }
        };
        let in_doubt = match job.terms.operation {
            NativeOperation::CompareAndWrite { .. } => after_compared(next),
            _ => None,
        };
        if in_doubt.is_none()
            && matches!(next, Next::NewSession | Next::NewClaim)
            && job.terms.operation.changes()
        {
            core.repeats.set(core.repeats.get() + 1);
        }
        if let Some(turn) = job.terms.turn {
            core.rounds.hear(turn, job.place, ended.node, ended.status);
            // Any other copy has the newer configuration, too, and this one is to be heard.
            if let PeerStatus::Answered(Status::StaleEpoch(_)) = ended.status
                && !std::mem::replace(&mut self.renewed, true)
            {
                // It was answered, and lies in no queue.
                self.made -= 1;
                self.pause(core, job, ended.epoch, true).await;
                return None;
            }
        }
        match next {
            // A node of the release before does not know the command, and has done nothing.
            Next::Finish(Err(IoError::Unaligned))
                if matches!(job.terms.operation, NativeOperation::CompareAndWrite { .. }) =>
            {
                return Some(Err(IoError::Unsupported));
            }
            Next::Finish(status) => return Some(status),
            Next::Elsewhere(device_error) => {
                self.tried.push(ended.node);
                self.device_errors += usize::from(device_error.is_some());
                if core.route(job, &self.tried).is_some() {
                    core.refresh();
                    return None;
                }
                if let Some(error) = device_error
                    && self.device_errors == self.tried.len()
                {
                    return Some(Err(error));
                }
                self.tried.clear();
                self.device_errors = 0;
                self.pause(core, job, ended.epoch, true).await;
            }
            Next::Again { refresh } => self.pause(core, job, ended.epoch, refresh).await,
            Next::Superseded | Next::NewClaim => {
                if let (Some(claims), Some(number)) = (&core.claims, job.terms.claim) {
                    let (chunk, deadline) = (job.place.chunk, job.terms.deadline);
                    let next = match next {
                        Next::Superseded => claims.successor(chunk, number).ok_or(IoError::Unavailable),
                        _ => claims::go_on(core, claims, chunk, number, deadline).await,
                    };
                    match next {
                        Ok(_) if in_doubt.is_some() => return in_doubt,
                        Err(_) if in_doubt.is_some() => {
                            claims.drop_claim(chunk, number);
                            return in_doubt;
                        }
                        Ok(newer) => job.terms.claim = Some(newer),
                        Err(error) => {
                            claims.drop_claim(chunk, number);
                            return Some(Err(error));
                        }
                    }
                }
            }
            Next::NewSession => {
                core.sessions.renew(ended.session);
                if in_doubt.is_some() {
                    return in_doubt;
                }
                self.pause(core, job, ended.epoch, true).await;
            }
        }
        None
    }

    /// Waits for a newer map, and then a little, unless the map has moved on from `epoch`.
    async fn pause(&mut self, core: &Rc<Core>, job: &Job, epoch: Epoch, refresh: bool) {
        let place = (job.place.chunk, epoch);
        pause(core, place, job.terms.deadline, &mut self.pause, refresh).await;
    }
}

/// Waits for a newer map, and then a little, unless the chunk's map has moved on from this epoch.
pub(super) async fn pause(
    core: &Rc<Core>,
    (chunk, epoch): (ChunkIndex, Epoch),
    deadline: Instant,
    wait: &mut Duration,
    refresh: bool,
) {
    if refresh {
        let refreshed = core.refreshed.changed();
        core.refresh();
        let left = deadline.since(time::now());
        if time::timeout(left, refreshed).await.is_err() || core.epoch(chunk) > epoch {
            return;
        }
    }
    let left = deadline.since(time::now());
    time::sleep((*wait).min(left)).await;
    *wait = (*wait * 2).min(core.options.pause_max);
}
