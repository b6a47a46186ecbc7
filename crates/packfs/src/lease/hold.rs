//! Leases that are kept for as long as they are held: a task renews them, and whoever acts under one asks first
//! whether it still lasts.
//!
//! Both sides of the contract's "Time": an answer counts from the moment it was asked for, and nothing is done under
//! a lease after its end. A writer that slept through its end may go on if its lease can still be renewed, because
//! then nobody else has been the writer since; a reader may not, because its pages may have been used again.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use foundation::Instant;
use reactor::sync::Notify;
use reactor::time;

use super::{LeaseError, LeaseSource, ReaderLease, WriterLease};
use crate::reader::Witness;
use crate::space::ReaderFloor;

/// A renewal that is not answered by then counts as failed.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
/// A writer is asked to hand over so often.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A renewal that failed is tried again so much later.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A third of what is left, so that two renewals may fail.
fn pause(until: Instant, trouble: bool) -> Duration {
    match trouble {
        true => RETRY_AFTER,
        false => (until.since(time::now()) / 3).max(Duration::from_millis(1)),
    }
}

async fn answered<T>(asked: super::LeaseFuture<'_, T>) -> Result<T, LeaseError> {
    let unanswered = || LeaseError::Unreachable {
        why: format!("no answer came within {} s", ATTEMPT_LIMIT.as_secs()),
    };
    time::timeout(ATTEMPT_LIMIT, asked)
        .await
        .unwrap_or_else(|_| Err(unanswered()))
}

/// The right to write. See the module.
pub(crate) struct WriterHold {
    leases: Rc<dyn LeaseSource>,
    lease: Cell<WriterLease>,
    /// The last renewal failed.
    trouble: Cell<bool>,
    /// Why it is over, once it is.
    ended: RefCell<Option<LeaseError>>,
    /// Another asked for it, or it is over.
    asked: Notify,
}

/// Becomes the writer. With `take_over` whoever is it now is asked to hand over, for at most so long.
async fn acquire(
    leases: &Rc<dyn LeaseSource>,
    holder: &str,
    take_over: Option<Duration>,
) -> Result<WriterLease, LeaseError> {
    let Some(waited) = take_over else {
        return leases.acquire_writer(holder).await;
    };
    let until = time::now() + waited;
    loop {
        match leases.take_over_writer(holder).await {
            Err(LeaseError::Held { .. }) if time::now() < until => time::sleep(ASK_EVERY).await,
            Err(LeaseError::Held { holder, .. }) => return Err(LeaseError::NotHandedOver { holder, waited }),
            other => return other,
        }
    }
}

impl WriterHold {
    /// Becomes the writer, with a token above every one before. Older ones may still write where the device has not
    /// been fenced.
    pub(crate) async fn acquire(
        leases: Rc<dyn LeaseSource>,
        holder: &str,
        take_over: Option<Duration>,
    ) -> Result<Rc<Self>, LeaseError> {
        let lease = acquire(&leases, holder, take_over).await?;
        let hold = Rc::new(Self {
            leases,
            lease: Cell::new(lease),
            trouble: Cell::new(false),
            ended: RefCell::default(),
            asked: Notify::new(),
        });
        drop(reactor::spawn(keep_writer(Rc::downgrade(&hold))));
        drop(reactor::spawn(hear_of_others(Rc::downgrade(&hold))));
        Ok(hold)
    }

    pub(crate) fn token(&self) -> u64 {
        self.lease.get().token
    }

    /// Ends at once while the lease lasts. After its end it asks once more, and then it is over for good.
    pub(crate) async fn ensure(&self) -> Result<(), LeaseError> {
        if self.ended.borrow().is_none() && self.lease.get().until > time::now() {
            return Ok(());
        }
        match self.renew().await {
            Ok(()) => Ok(()),
            Err(LeaseError::Unreachable { why }) => Err(self.end(LeaseError::Lapsed { why })),
            Err(error) => Err(self.end(error)),
        }
    }

    /// Why the device refused a write under this token.
    pub(crate) async fn lost(&self) -> LeaseError {
        match self.renew().await {
            Ok(()) => self.end(LeaseError::Ended),
            Err(error) => self.end(error),
        }
    }

    fn end(&self, error: LeaseError) -> LeaseError {
        let ended = self.ended.borrow_mut().get_or_insert(error).clone();
        self.asked.notify();
        ended
    }

    async fn renew(&self) -> Result<(), LeaseError> {
        if let Some(error) = &*self.ended.borrow() {
            return Err(error.clone());
        }
        let renewed = answered(self.leases.renew_writer(self.token())).await;
        self.trouble.set(renewed.is_err());
        match renewed {
            Ok(lease) => {
                // Two renewals may be under way.
                if lease.until > self.lease.get().until {
                    self.lease.set(lease);
                }
                if self.leases.wanted_by().is_some() {
                    self.asked.notify();
                }
                Ok(())
            }
            Err(error @ LeaseError::Unreachable { .. }) => Err(error),
            Err(error) => Err(self.end(error)),
        }
    }

    /// Who asked for the lease, and does so still.
    pub(crate) fn wanted_by(&self) -> Option<String> {
        let lasts = self.ended.borrow().is_none();
        lasts.then(|| self.leases.wanted_by()).flatten()
    }

    /// Waits until another asks for the lease, or it is over.
    pub(crate) async fn asked(&self) {
        let is_over = || self.ended.borrow().is_some();
        self.asked.until(|| is_over() || self.wanted_by().is_some()).await;
    }

    /// Gives the lease up if another asks for it; whether it did. To be called when all that is to be kept is committed. The masters are asked
    /// once more: who asked may have given it up since the last renewal.
    pub(crate) async fn hand_over(&self) -> bool {
        if self.wanted_by().is_none() || self.renew().await.is_err() {
            return false;
        }
        let Some(to) = self.wanted_by() else {
            return false;
        };
        self.end(LeaseError::HandedOver { to });
        // If nobody hears this, it ends by itself.
        let _ = answered(self.leases.release_writer(self.token())).await;
        true
    }

    /// That it was handed over, if it was.
    pub(crate) fn handed_over(&self) -> Option<LeaseError> {
        let ended = self.ended.borrow();
        ended
            .clone()
            .filter(|ended| matches!(ended, LeaseError::HandedOver { .. }))
    }

    /// What readers still need; see [`LeaseSource::reader_floor`].
    pub(crate) async fn reader_floor(&self) -> Result<ReaderFloor, LeaseError> {
        answered(self.leases.reader_floor(self.token())).await
    }

    /// Stops being the writer.
    pub(crate) async fn release(&self) -> Result<(), LeaseError> {
        if let LeaseError::HandedOver { .. } = self.end(LeaseError::Ended) {
            return Ok(());
        }
        answered(self.leases.release_writer(self.token())).await
    }
}

async fn keep_writer(weak: Weak<WriterHold>) {
    loop {
        let Some(wait) = weak
            .upgrade()
            .map(|hold| pause(hold.lease.get().until, hold.trouble.get()))
        else {
            return;
        };
        time::sleep(wait).await;
        let Some(hold) = weak.upgrade() else { return };
        // What went wrong is told by whoever writes next, if it has not come right until the lease ends.
        let _ = hold.renew().await;
        if hold.ended.borrow().is_some() {
            return;
        }
    }
}

/// Says at once when another asks for the lease; renewals would say it seconds later.
async fn hear_of_others(weak: Weak<WriterHold>) {
    loop {
        let lasting = weak.upgrade().filter(|hold| hold.ended.borrow().is_none());
        let Some((leases, token)) = lasting.map(|hold| (hold.leases.clone(), hold.token())) else {
            return;
        };
        let heard = leases.await_wanted(token).await;
        let Some(hold) = weak.upgrade() else { return };
        let pause = match heard {
            Ok(()) if hold.wanted_by().is_some() => {
                hold.asked.notify();
                // It is not handed over before everything is committed.
                ASK_EVERY
            }
            Ok(()) => continue,
            Err(LeaseError::Unreachable { .. }) => RETRY_AFTER,
            Err(_) => return,
        };
        drop(hold);
        time::sleep(pause).await;
    }
}

/// A reader's hold on a generation. See the module.
pub(crate) struct ReaderHold {
    leases: Rc<dyn LeaseSource>,
    lease: Cell<ReaderLease>,
    generation: Cell<u64>,
    trouble: Cell<bool>,
    /// Shows others what is held.
    witness: Option<Rc<dyn Witness>>,
    /// A planted bug: whoever is shown what is held learns of less only after the masters did.
    #[cfg(test)]
    tells_late: Cell<bool>,
}

impl ReaderHold {
    /// Holds every generation, since the newest is not known yet.
    pub(crate) async fn acquire(
        leases: Rc<dyn LeaseSource>,
        witness: Option<Rc<dyn Witness>>,
    ) -> Result<Rc<Self>, LeaseError> {
        let lease = leases.acquire_reader(0).await?;
        let hold = Rc::new(Self {
            leases,
            lease: Cell::new(lease),
            generation: Cell::new(0),
            trouble: Cell::new(false),
            witness,
            #[cfg(test)]
            tells_late: Cell::new(false),
        });
        let weak = Rc::downgrade(&hold);
        drop(reactor::spawn(keep_reader(weak)));
        Ok(hold)
    }

    /// Holds nothing older than this generation any more.
    pub(crate) async fn hold_from(&self, generation: u64) -> Result<(), LeaseError> {
        #[cfg(test)]
        if self.tells_late.get() {
            self.generation.set(generation);
            self.renew().await?;
            return self.tell(generation, self.lease.get().until);
        }
        // Nobody may be shown more than the masters hold.
        self.tell(generation, self.lease.get().until)?;
        self.generation.set(generation);
        self.renew().await
    }

    fn tell(&self, generation: u64, until: Instant) -> Result<(), LeaseError> {
        let Some(witness) = &self.witness else {
            return Ok(());
        };
        let told = witness.tell(generation, until);
        told.map_err(|error| LeaseError::Unreachable {
            why: format!("what is held could not be noted: {error}"),
        })
    }

    #[cfg(test)]
    pub(crate) fn tell_late(&self) {
        self.tells_late.set(true);
    }

    /// To be asked after bytes arrived and before they are used.
    pub(crate) fn is_held(&self) -> bool {
        self.lease.get().until > time::now()
    }

    async fn renew(&self) -> Result<(), LeaseError> {
        let ReaderLease { id, until } = self.lease.get();
        let renewed = answered(self.leases.renew_reader(id, self.generation.get())).await;
        self.trouble.set(renewed.is_err());
        let renewed = match renewed {
            // An answer that comes after the end may be to a new lease: what happened in between is not known.
            Ok(_) if !self.is_held() => Err(LeaseError::Ended),
            other => other,
        };
        match renewed {
            Ok(lease) => {
                if lease.until > self.lease.get().until {
                    self.lease.set(lease);
                    // If that fails others are shown an end that is too early.
                    let _ = self.tell(self.generation.get(), lease.until);
                }
                Ok(())
            }
            Err(error @ LeaseError::Unreachable { .. }) => Err(error),
            Err(error) => {
                let until = until.min(time::now());
                self.lease.set(ReaderLease { id, until });
                Err(error)
            }
        }
    }

    /// Holds nothing any more.
    pub(crate) async fn release(&self) -> Result<(), LeaseError> {
        let id = self.lease.get().id;
        let until = Instant::from_nanos(0);
        self.lease.set(ReaderLease { id, until });
        #[cfg(test)]
        if self.tells_late.get() {
            answered(self.leases.release_reader(id)).await?;
            return self.tell(self.generation.get(), until);
        }
        self.tell(self.generation.get(), until)?;
        answered(self.leases.release_reader(id)).await
    }
}

async fn keep_reader(weak: Weak<ReaderHold>) {
    loop {
        let Some(wait) = weak
            .upgrade()
            .map(|hold| pause(hold.lease.get().until, hold.trouble.get()))
        else {
            return;
        };
        time::sleep(wait).await;
        let Some(hold) = weak.upgrade().filter(|hold| hold.is_held()) else {
            return;
        };
        // What went wrong is told by whoever reads next, if it has not come right until the lease ends.
        let _ = hold.renew().await;
    }
}
