//! Leases within one process, for tests and for local use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use foundation::Instant;
use reactor::sync::Notify;
use reactor::time;

use super::{LeaseError, LeaseFuture, LeaseSource, ReaderLease, WriterLease};
use crate::space::ReaderFloor;

/// The term that readers get.
pub const READER_TERM: Duration = Duration::from_secs(60);
/// The term that writers get.
pub const WRITER_TERM: Duration = Duration::from_secs(30);
/// A writer waits for so long at a time to be asked to hand over.
const WANTED_WAIT: Duration = Duration::from_secs(10);
/// Who asks a writer to hand over and does not ask again is forgotten after so long.
const WANTED_TERM: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    token: u64,
    writer: Option<(String, WriterLease)>,
    /// Who asked for it last, and until when that counts.
    wanted: Option<(String, Instant)>,
    /// The same as the writer was told last.
    told: Option<String>,
    /// Somebody has asked for it.
    asked: Rc<Notify>,
    readers: BTreeMap<u64, (u64, Instant)>,
    next_reader: u64,
}

/// See the module. Clones share the leases.
#[derive(Clone, Default)]
pub struct LocalLeases(Rc<RefCell<State>>);

impl LocalLeases {
    /// Nobody holds anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// When the last reader's lease ends, if there is one.
    #[cfg(test)]
    pub(crate) fn readers_end(&self) -> Option<Instant> {
        let state = self.0.borrow();
        state.readers.values().map(|(_, until)| *until).max()
    }

    /// Readers that are remembered.
    #[cfg(test)]
    pub(crate) fn reader_count(&self) -> usize {
        self.0.borrow().readers.len()
    }

    fn grant(&self, holder: &str) -> Result<WriterLease, LeaseError> {
        let now = reactor::time::now();
        let mut state = self.0.borrow_mut();
        if let Some((holder, lease)) = &state.writer
            && lease.until > now
        {
            return Err(LeaseError::Held {
                holder: holder.clone(),
                remaining: lease.until.since(now),
            });
        }
        state.token += 1;
        let lease = WriterLease {
            token: state.token,
            until: now + WRITER_TERM,
        };
        state.writer = Some((holder.to_owned(), lease));
        (state.wanted, state.told) = (None, None);
        Ok(lease)
    }

    fn renew(&self, token: u64) -> Result<WriterLease, LeaseError> {
        let renewed = match &mut self.0.borrow_mut().writer {
            Some((_, lease)) if lease.token == token => {
                lease.until = reactor::time::now() + WRITER_TERM;
                Ok(*lease)
            }
            Some((holder, _)) => Err(LeaseError::TakenOver {
                holder: holder.clone(),
            }),
            None => Err(LeaseError::Ended),
        };
        self.is_wanted(token);
        renewed
    }

    /// Tells the writer who has asked for its lease, if one has; also true if it is another's by now.
    fn is_wanted(&self, token: u64) -> bool {
        let now = reactor::time::now();
        let State {
            writer, wanted, told, ..
        } = &mut *self.0.borrow_mut();
        match writer {
            Some((_, lease)) if lease.token == token => {
                let lasts = wanted.as_ref().filter(|(_, until)| *until > now);
                *told = lasts.map(|(who, _)| who.clone());
                told.is_some()
            }
            _ => true,
        }
    }

    fn hold(&self, id: Option<u64>, generation: u64) -> Result<ReaderLease, LeaseError> {
        let now = reactor::time::now();
        let until = now + READER_TERM;
        let mut state = self.0.borrow_mut();
        let id = match id {
            Some(id) if state.readers.get(&id).is_some_and(|(_, until)| *until > now) => id,
            Some(_) => return Err(LeaseError::Ended),
            None => {
                state.next_reader += 1;
                state.next_reader
            }
        };
        state.readers.insert(id, (generation, until));
        Ok(ReaderLease { id, until })
    }

    /// As if the masters had lost every reader's lease.
    #[cfg(test)]
    pub(crate) fn forget_readers(&self) {
        self.0.borrow_mut().readers.clear();
    }

    fn floor(&self) -> ReaderFloor {
        let now = reactor::time::now();
        let mut state = self.0.borrow_mut();
        state.readers.retain(|_, (_, until)| *until > now);
        ReaderFloor(state.readers.values().map(|(generation, _)| *generation).min())
    }
}

impl LeaseSource for LocalLeases {
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        Box::pin(async move { self.grant(holder) })
    }

    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        Box::pin(async move {
            let granted = self.grant(holder);
            if granted.is_err() {
                let until = reactor::time::now() + WANTED_TERM;
                let mut state = self.0.borrow_mut();
                state.wanted = Some((holder.to_owned(), until));
                state.asked.notify();
            }
            granted
        })
    }

    fn wanted_by(&self) -> Option<String> {
        self.0.borrow().told.clone()
    }

    fn await_wanted(&self, token: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            let asked = self.0.borrow().asked.clone();
            let wanted = asked.until(|| self.is_wanted(token));
            // Nobody has asked if this is late.
            let _ = time::timeout(WANTED_WAIT, wanted).await;
            match &self.0.borrow().writer {
                Some((_, lease)) if lease.token == token => Ok(()),
                _ => Err(LeaseError::Ended),
            }
        })
    }

    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease> {
        Box::pin(async move { self.renew(token) })
    }

    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            let mut state = self.0.borrow_mut();
            if state
                .writer
                .as_ref()
                .is_some_and(|(_, lease)| lease.token == token)
            {
                state.writer = None;
            }
            Ok(())
        })
    }

    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        Box::pin(async move { self.hold(None, generation) })
    }

    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        Box::pin(async move { self.hold(Some(id), generation) })
    }

    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            self.0.borrow_mut().readers.remove(&id);
            Ok(())
        })
    }

    fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor> {
        Box::pin(async move {
            let holds = self
                .0
                .borrow()
                .writer
                .as_ref()
                .is_some_and(|(_, lease)| lease.token == token);
            if holds {
                Ok(self.floor())
            } else {
                Err(LeaseError::Ended)
            }
        })
    }
}
