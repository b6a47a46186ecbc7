//! The one place where a namespace's reservation changes, shared by all cores.
//!
//! Changes queue up and are made one at a time, by a task on the core of whoever came first: apply, make durable, publish,
//! tell the hosts. Queues read what is published: a version to compare with the one they know, and the state behind
//! a lock when it is another.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocols::nvme::NvmOpcode;
use protocols::nvme::features::reservation_mask;
use protocols::nvme::log::ReservationNoticeType;
use reactor::mailbox::{MailboxSender, mailbox};
use reactor::spawn;

use super::file::ReservationFile;
use super::state::{Change, HostId, Outcome, Refusal, Reservations, Rights};
use crate::target::subsystem::Subsystem;

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Failure {
    Refused(Refusal),
    /// It could not be made durable, and is not in force.
    NotSaved,
    /// The namespace is gone, or the target is ending.
    Gone,
}

/// A change that waits for its turn.
struct Work {
    subsystem: Arc<Subsystem>,
    host: HostId,
    change: Change,
    done: MailboxSender<Result<Outcome, Failure>>,
}

#[derive(Default)]
struct State {
    published: Reservations,
    file: Option<Arc<ReservationFile>>,
    /// The namespace was removed.
    closed: bool,
    waiting: VecDeque<Work>,
    /// A task makes the changes that wait.
    driven: bool,
}

/// See the module.
pub(in crate::target) struct Owner {
    nsid: u32,
    /// Of what is published.
    version: AtomicU64,
    /// Notifications that are not made (feature 82h).
    mask: AtomicU32,
    state: Mutex<State>,
}

impl Owner {
    /// Begins with what `file` holds, or with nothing.
    pub(in crate::target) fn new(nsid: u32, file: Option<ReservationFile>) -> Arc<Self> {
        let published = file
            .as_ref()
            .map(|file| file.restored().clone())
            .unwrap_or_default();
        Arc::new(Self {
            nsid,
            version: AtomicU64::new(0),
            mask: AtomicU32::new(0),
            state: Mutex::new(State {
                published,
                file: file.map(Arc::new),
                ..State::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespace is removed: changes fail from now on, and the file is let go.
    pub(in crate::target) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.file = None;
    }

    /// What is in force.
    pub(in crate::target) fn published(&self) -> Reservations {
        self.state().published.clone()
    }

    /// Where it survives a loss of power, if anywhere.
    pub(in crate::target) fn file(&self) -> Option<Arc<ReservationFile>> {
        self.state().file.clone()
    }

    pub(in crate::target) fn mask(&self) -> u32 {
        self.mask.load(Ordering::Relaxed)
    }

    pub(in crate::target) fn set_mask(&self, mask: u32) {
        self.mask.store(mask, Ordering::Relaxed);
    }

    /// Makes a change. When this returns it is durable, if it is to be, and in force for every command that begins
    /// after; the hosts that it concerns have been told. Commands of preempted hosts may still run.
    ///
    /// # Errors
    /// See [`Failure`]; nothing has changed then.
    pub(in crate::target) async fn change(
        self: &Arc<Self>,
        subsystem: &Arc<Subsystem>,
        host: HostId,
        change: Change,
    ) -> Result<Outcome, Failure> {
        let (done, mut result) = mailbox(1);
        let begin = {
            let mut state = self.state();
            state.waiting.push_back(Work {
                subsystem: subsystem.clone(),
                host,
                change,
                done,
            });
            !std::mem::replace(&mut state.driven, true)
        };
        if begin {
            let drive = Drive {
                owner: self.clone(),
                ended: false,
            };
            drop(spawn(async move { drive.run().await }));
        }
        result.recv().await.unwrap_or(Err(Failure::Gone))
    }

    async fn make(&self, work: &Work) -> Result<Outcome, Failure> {
        let (mut next, file) = {
            let state = self.state();
            if state.closed {
                return Err(Failure::Gone);
            }
            (state.published.clone(), state.file.clone())
        };
        let before = next.clone();
        let outcome = next
            .apply(&work.host, &work.change, file.is_some())
            .map_err(Failure::Refused)?;
        if let Some(file) = file.filter(|_| !next.persists_as(&before))
            && let Err(error) = file.save(&next).await
        {
            tracing::error!(
                nqn = work.subsystem.nqn().as_str(),
                nsid = self.nsid,
                %error,
                "a change of reservations is refused, since it would not survive a loss of power"
            );
            return Err(Failure::NotSaved);
        }
        {
            let mut state = self.state();
            state.published = next;
            // Under the lock, so that a version never stands for two states.
            self.version.fetch_add(1, Ordering::Release);
        }
        for (host, notice) in &outcome.notices {
            if self.mask() & mask_bit(*notice) == 0 {
                work.subsystem.notify_reservation(host, self.nsid, *notice);
            }
        }
        Ok(outcome)
    }

    /// The version that is in force, and a host's rights under it.
    fn rights(&self, host: &HostId) -> (u64, Rights) {
        let state = self.state();
        (self.version.load(Ordering::Relaxed), state.published.rights(host))
    }
}

fn mask_bit(notice: ReservationNoticeType) -> u32 {
    match notice {
        ReservationNoticeType::Empty => 0,
        ReservationNoticeType::RegistrationPreempted => reservation_mask::REGISTRATION_PREEMPTED,
        ReservationNoticeType::ReservationReleased => reservation_mask::RESERVATION_RELEASED,
        ReservationNoticeType::ReservationPreempted => reservation_mask::RESERVATION_PREEMPTED,
    }
}

/// The task that makes changes, until none waits.
struct Drive {
    owner: Arc<Owner>,
    /// It has said so itself; another may be at work already.
    ended: bool,
}

impl Drive {
    async fn run(mut self) {
        loop {
            let work = {
                let mut state = self.owner.state();
                let Some(work) = state.waiting.pop_front() else {
                    state.driven = false;
                    self.ended = true;
                    return;
                };
                work
            };
            let result = self.owner.make(&work).await;
            // Who asked may have gone.
            let _ = work.done.try_send(result);
        }
    }
}

/// A core that ends takes its tasks along; those on other cores who wait are told, and others may go on.
impl Drop for Drive {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.owner.state();
            state.waiting.clear();
            state.driven = false;
        }
    }
}

/// One queue's view of a namespace's reservation.
pub(in crate::target) struct Guard {
    owner: Arc<Owner>,
    host: HostId,
    version: Cell<u64>,
    rights: Cell<Rights>,
}

impl Guard {
    pub(in crate::target) fn new(owner: Arc<Owner>, host: HostId) -> Self {
        let (version, rights) = owner.rights(&host);
        Self {
            owner,
            host,
            version: Cell::new(version),
            rights: Cell::new(rights),
        }
    }

    pub(in crate::target) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Whether a command may run now. Locks only after a change.
    pub(in crate::target) fn allows(&self, opcode: NvmOpcode) -> bool {
        if self.owner.version.load(Ordering::Acquire) != self.version.get() {
            let (version, rights) = self.owner.rights(&self.host);
            self.version.set(version);
            self.rights.set(rights);
        }
        let rights = self.rights.get();
        rights == Rights::ALL || rights.allow(opcode)
    }
}
