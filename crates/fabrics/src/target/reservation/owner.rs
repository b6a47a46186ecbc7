//! The one place where a namespace's reservation changes, shared by all cores.
//!
//! Where several targets serve a namespace, each has an owner, and the state is in a store behind them (`shared`).
//!
//! Changes queue up and are made one at a time, by a task on the core of whoever came first: apply, make durable, publish,
//! tell the hosts. Queues read what is published: a version to compare with the one they know, and the state behind
//! a lock when it is another.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use foundation::Instant;

use protocols::nvme::NvmOpcode;
use protocols::nvme::features::reservation_mask;
use protocols::nvme::log::ReservationNoticeType;
use reactor::mailbox::{MailboxSender, mailbox};
use reactor::{spawn, time};

use super::file::ReservationFile;
use super::shared::{ReservationStore, SharedReservations, StoreUnavailable};
use super::state::{Change, HostId, Outcome, Refusal, Reservations, Rights};
use crate::target::subsystem::Subsystem;

/// A change of a shared state ends after this time, that in which it waits for others included. Linux gives a command up after 30 s.
const CHANGE_LIMIT: Duration = Duration::from_secs(18);

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Failure {
    Refused(Refusal),
    /// It could not be made durable, and is not in force.
    NotSaved,
    /// The store behind all targets cannot be asked now, or it is stored and not in force everywhere: to be tried again.
    Unavailable,
    /// The namespace is gone, or the target is ending.
    Gone,
}

/// A change that waits for its turn.
struct Work {
    subsystem: Arc<Subsystem>,
    host: HostId,
    change: Change,
    /// Of a shared state: by then it is answered, made or not.
    deadline: Instant,
    done: MailboxSender<Result<Outcome, Failure>>,
}

/// What is known of a state that is shared, beside the state itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    version: u64,
    token: u64,
    taken: bool,
    in_force: bool,
}

#[derive(Default)]
struct State {
    published: Reservations,
    file: Option<Arc<ReservationFile>>,
    /// None before it was read once, and of what is not shared.
    known: Option<Known>,
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
    /// Where the state is that other targets share.
    store: Option<Arc<dyn ReservationStore>>,
    /// Whom notifications of shared changes go to.
    subsystem: Mutex<Weak<Subsystem>>,
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
            store: None,
            subsystem: Mutex::default(),
            state: Mutex::new(State {
                published,
                file: file.map(Arc::new),
                ..State::default()
            }),
        })
    }

    /// Of a namespace whose reservations are in `store`, of which nothing is known yet.
    pub(in crate::target) fn sharing(nsid: u32, store: Arc<dyn ReservationStore>) -> Arc<Self> {
        Arc::new(Self {
            nsid,
            version: AtomicU64::new(0),
            mask: AtomicU32::new(0),
            store: Some(store),
            subsystem: Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Whether other targets share the state.
    pub(in crate::target) fn is_shared(&self) -> bool {
        self.store.is_some()
    }

    /// Whom to tell of changes that other targets make.
    pub(in crate::target) fn belongs_to(&self, subsystem: &Arc<Subsystem>) {
        *self.subsystem.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(subsystem);
    }

    /// Reads the newest state, if it is shared; false if the store does not answer.
    pub(in crate::target) async fn refresh(&self) -> bool {
        let Some(store) = &self.store else { return true };
        match store.read().await {
            Ok(shared) => self.learn(&shared).is_ok(),
            Err(error) => {
                tracing::debug!(nsid = self.nsid, %error, "what hosts have reserved cannot be read now");
                false
            }
        }
    }

    /// Whether the newest state that is known is in force everywhere; true of one that is not shared.
    pub(in crate::target) fn is_in_force(&self) -> bool {
        !self.is_shared() || self.state().known.is_some_and(|known| known.in_force)
    }

    /// Puts a state that is known in force everywhere, if it is not.
    async fn enforce(
        &self,
        store: &dyn ReservationStore,
        state: &SharedReservations,
        deadline: Instant,
    ) -> Result<(), StoreUnavailable> {
        if state.in_force {
            return Ok(());
        }
        store.enforce(state.token, deadline.since(time::now())).await?;
        if let Some(known) = &mut self.state().known
            && known.token == state.token
        {
            known.in_force = true;
        }
        Ok(())
    }

    /// Reads the newest state, and sees to it that it is in force everywhere: what a host is told is so. False if either cannot be
    /// done now.
    pub(in crate::target) async fn settle(&self) -> bool {
        let Some(store) = &self.store else { return true };
        let deadline = time::now() + CHANGE_LIMIT;
        let settled = async {
            let seen = store.read().await?;
            if self.learn(&seen).is_err() {
                return Ok(false);
            }
            let enforced = self.enforce(store.as_ref(), &seen, deadline).await;
            enforced.map(|()| true)
        };
        match time::timeout(CHANGE_LIMIT, settled).await {
            Ok(Ok(is_settled)) => is_settled,
            Ok(Err(error)) => {
                tracing::warn!(nsid = self.nsid, %error, "what hosts have reserved cannot be told now");
                false
            }
            Err(time::Elapsed) => false,
        }
    }

    /// Publishes a shared state, unless a newer one is known, and tells this target's hosts what came with it.
    fn learn(&self, shared: &SharedReservations) -> Result<Reservations, Failure> {
        let Some(published) = Reservations::from_shared(shared) else {
            tracing::error!(
                nsid = self.nsid,
                version = shared.version,
                "the shared state of reservations makes no sense"
            );
            return Err(Failure::Unavailable);
        };
        let known = Known {
            version: shared.version,
            token: shared.token,
            taken: shared.taken,
            in_force: shared.in_force,
        };
        let before = {
            let mut state = self.state();
            let before = state.known;
            // Of the same version another may have taken the writing since, which shows in the token.
            let order = |known: Known| (known.version, known.token);
            if let Some(before) = &mut state.known
                && order(*before) >= order(known)
            {
                before.in_force |= known.in_force && order(*before) == order(known);
                return Ok(published);
            }
            state.known = Some(known);
            state.published = published.clone();
            self.version.fetch_add(1, Ordering::Release);
            before
        };
        let subsystem = self
            .subsystem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade();
        // What was before this target began is nothing new.
        if let (Some(before), Some(subsystem)) = (before, subsystem) {
            let new = shared
                .notices
                .iter()
                .filter(|notice| notice.version > before.version);
            for (notice, kind) in
                new.filter_map(|new| Some((new, ReservationNoticeType::from_code(new.kind)?)))
            {
                if self.mask() & mask_bit(kind) == 0 {
                    subsystem.notify_reservation(&notice.host, self.nsid, kind);
                }
            }
        }
        Ok(published)
    }

    /// Makes a change of a shared state, in its time.
    async fn make_in_time(&self, store: &dyn ReservationStore, work: &Work) -> Result<Outcome, Failure> {
        let left = work.deadline.since(time::now());
        // It may be stored all the same, and counts then: whoever changes something next puts it in force.
        time::timeout(left, self.make_shared(store, work))
            .await
            .unwrap_or(Err(Failure::Unavailable))
    }

    /// Makes a change of a shared state: in the store, then in force behind all targets.
    async fn make_shared(&self, store: &dyn ReservationStore, work: &Work) -> Result<Outcome, Failure> {
        let change = work.change.digest(&work.host);
        let unavailable = |error: StoreUnavailable| {
            tracing::warn!(
                nqn = work.subsystem.nqn().as_str(),
                nsid = self.nsid,
                %error,
                "a change of reservations has to be tried again"
            );
            Failure::Unavailable
        };
        loop {
            if self.state().closed {
                return Err(Failure::Gone);
            }
            let mut seen = store.read().await.map_err(unavailable)?;
            let before = self.learn(&seen)?;
            // Of an earlier change, whose target ended before that was done.
            self.enforce(store, &seen, work.deadline)
                .await
                .map_err(unavailable)?;
            seen.in_force = true;
            if seen.taken {
                // Who writes past all targets is kept out by no reservation, so none is given.
                return Err(Failure::Refused(Refusal::Conflict));
            }
            let mut next = before.clone();
            let outcome = match next.apply(&work.host, &work.change, true) {
                // It was made, nothing has come after it, and its answer was lost.
                Err(Refusal::Conflict) if seen.change == change => Outcome::default(),
                applied => applied.map_err(Failure::Refused)?,
            };
            let stored = if next == before {
                seen
            } else {
                let restricts = next.restricts(&before);
                let shared = next.to_shared(&seen, &outcome.notices, change);
                match store
                    .replace(seen.version, shared, restricts)
                    .await
                    .map_err(unavailable)?
                {
                    Some(stored) => stored,
                    // Another target's host was first.
                    None => continue,
                }
            };
            self.learn(&stored)?;
            self.enforce(store, &stored, work.deadline)
                .await
                .map_err(unavailable)?;
            return Ok(outcome);
        }
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
                deadline: time::now() + CHANGE_LIMIT,
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
        if let Some(store) = &self.store {
            return self.make_in_time(store.as_ref(), work).await;
        }
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

    /// The version that is in force, a host's rights under it, and the token under which its commands go.
    fn rights(&self, host: &HostId) -> (u64, Rights, u64) {
        let state = self.state();
        let version = self.version.load(Ordering::Relaxed);
        if self.is_shared() && state.known.is_none() {
            // What others have agreed on is not known yet.
            return (version, Rights::NONE, 0);
        }
        let known = state.known.unwrap_or_default();
        let mut rights = state.published.rights(host);
        rights.write &= !known.taken;
        (version, rights, known.token)
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
    token: Cell<u64>,
}

impl Guard {
    pub(in crate::target) fn new(owner: Arc<Owner>, host: HostId) -> Self {
        let (version, rights, token) = owner.rights(&host);
        Self {
            owner,
            host,
            version: Cell::new(version),
            rights: Cell::new(rights),
            token: Cell::new(token),
        }
    }

    pub(in crate::target) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Whether a command may run now. Where the state is shared, that is looked at where its blocks are, since this target may not
    /// know of it yet.
    pub(in crate::target) fn allows(&self, opcode: NvmOpcode) -> bool {
        if self.owner.is_shared() {
            return true;
        }
        let rights = self.rights();
        rights == Rights::ALL || rights.allow(opcode)
    }

    /// The token of a shared state, if by that the host may read, or with `changes` write.
    pub(super) fn token(&self, changes: bool) -> Option<u64> {
        let rights = self.rights();
        let may = if changes { rights.write } else { rights.read };
        may.then(|| self.token.get())
    }

    /// Locks only after a change.
    fn rights(&self) -> Rights {
        if self.owner.version.load(Ordering::Acquire) != self.version.get() {
            let (version, rights, token) = self.owner.rights(&self.host);
            self.version.set(version);
            self.rights.set(rights);
            self.token.set(token);
        }
        self.rights.get()
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
