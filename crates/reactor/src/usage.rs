//! What a reactor has done with its time. Its own thread writes, any thread reads.
//!
//! Cost of a turn: one load and two stores; no look at the clock beyond those that the turn takes anyway.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foundation::Instant;

/// What a reactor has done since it began. The three times add up to its life, but for the turn that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Turns of its loop, idle ones included.
    pub turns: u64,
    /// Times it slept in the kernel for want of work.
    pub sleeps: u64,
    /// Spent on tasks and completions.
    pub busy: Duration,
    /// Spent looking for work without finding any, before it slept.
    pub polling: Duration,
    /// Spent asleep.
    pub sleeping: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Books {
    turns: AtomicU64,
    sleeps: AtomicU64,
    busy_ns: AtomicU64,
    polling_ns: AtomicU64,
    sleeping_ns: AtomicU64,
}

/// One writer, so a load and a store make an addition.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl Books {
    pub(crate) fn read(&self) -> Usage {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        Usage {
            turns: self.turns.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
            busy: time(&self.busy_ns),
            polling: time(&self.polling_ns),
            sleeping: time(&self.sleeping_ns),
        }
    }
}

/// Writes the books of one reactor.
pub(crate) struct Bookkeeper<'a> {
    books: &'a Books,
    /// All time before is booked.
    until: Cell<Instant>,
}

impl<'a> Bookkeeper<'a> {
    pub(crate) fn new(books: &'a Books, now: Instant) -> Self {
        Self {
            books,
            until: Cell::new(now),
        }
    }

    fn book(&self, counter: &AtomicU64, now: Instant) {
        let passed = now - self.until.replace(now);
        add(counter, passed.as_nanos() as u64);
    }

    pub(crate) fn turned(&self) {
        add(&self.books.turns, 1);
    }

    /// What passed until now was work.
    pub(crate) fn worked(&self, now: Instant) {
        self.book(&self.books.busy_ns, now);
    }

    /// What passed until now was a look for work.
    pub(crate) fn polled(&self, now: Instant) {
        self.book(&self.books.polling_ns, now);
    }

    /// What passed until now was sleep.
    pub(crate) fn slept(&self, now: Instant) {
        add(&self.books.sleeps, 1);
        self.book(&self.books.sleeping_ns, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_is_booked_once() {
        let books = Books::default();
        let at = Instant::from_nanos;
        let keeper = Bookkeeper::new(&books, at(100));
        keeper.turned();
        keeper.worked(at(150));
        keeper.polled(at(160));
        keeper.slept(at(1160));
        keeper.turned();
        keeper.worked(at(1161));
        let expected = Usage {
            turns: 2,
            sleeps: 1,
            busy: Duration::from_nanos(51),
            polling: Duration::from_nanos(10),
            sleeping: Duration::from_nanos(1000),
        };
        assert_eq!(books.read(), expected);
    }
}
