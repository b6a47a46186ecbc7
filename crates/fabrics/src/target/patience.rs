//! How long a host may keep a connection and what it holds without moving on.
//!
//! One task a listener looks at all its connections now and then: the I/O path only counts.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use foundation::Instant;
use reactor::time;

use super::connection::Connection;
use super::server::Shared;

/// Looks a limit: a connection goes at the latest a fourth after its time.
const LOOKS: u32 = 4;

/// For all the data of one command a host has so many times the time in which something must come: otherwise one that sends
/// a byte now and then would keep its buffers, and a few of those the whole pool.
const WHOLE: u32 = 2;

/// What a connection has done so far, and when it was last seen to move.
pub(super) struct Progress {
    born: Instant,
    /// Batches that the host's side has taken.
    sent: Cell<u64>,
    /// A batch is on its way.
    pub(super) sending: Cell<bool>,
    /// Pieces of command data that have come.
    received: Cell<u64>,
    /// Commands whose data is due.
    pub(super) gathering: Cell<u32>,
    seen_sent: Cell<(u64, Instant)>,
    seen_received: Cell<(u64, Instant)>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let now = time::now();
        Self {
            born: now,
            sent: Cell::new(0),
            sending: Cell::new(false),
            received: Cell::new(0),
            gathering: Cell::new(0),
            seen_sent: Cell::new((0, now)),
            seen_received: Cell::new((0, now)),
        }
    }

    pub(super) fn note_sent(&self) {
        self.sent.set(self.sent.get() + 1);
        self.sending.set(false);
    }

    pub(super) fn note_received(&self) {
        self.received.set(self.received.get() + 1);
    }

    /// What the host has failed to do in time.
    fn complaint(&self, now: Instant, is_queue: bool, limits: (Duration, Duration)) -> Option<&'static str> {
        let (connect_limit, stall_limit) = limits;
        if !is_queue && now - self.born > connect_limit {
            return Some("it did not send Connect in time");
        }
        let stalled = |owes: bool, count: u64, seen: &Cell<(u64, Instant)>| {
            let (before, since) = seen.get();
            if !owes || count != before {
                seen.set((count, now));
                return false;
            }
            now - since > stall_limit
        };
        if stalled(self.sending.get(), self.sent.get(), &self.seen_sent) {
            return Some("it does not take its answers");
        }
        if stalled(self.gathering.get() > 0, self.received.get(), &self.seen_received) {
            return Some("it does not send the data it announced");
        }
        None
    }
}

/// The connections of a listener.
#[derive(Default)]
pub(super) struct Watched(RefCell<Vec<Weak<Connection>>>);

impl Watched {
    pub(super) fn add(&self, connection: &Rc<Connection>) {
        self.0.borrow_mut().push(Rc::downgrade(connection));
    }

    fn look(&self, limits: (Duration, Duration)) {
        let now = time::now();
        let mut late = Vec::new();
        self.0.borrow_mut().retain(|weak| {
            let Some(connection) = weak.upgrade() else {
                return false;
            };
            let is_queue = connection.queue().is_connected();
            let authentication = connection.queue().authentication();
            if authentication.is_some_and(|authentication| authentication.is_overdue(now)) {
                late.push((connection, "it did not authenticate in time"));
            } else if let Some(complaint) = connection.progress().complaint(now, is_queue, limits) {
                late.push((connection, complaint));
            } else if connection.is_data_overdue(now, limits.1 * WHOLE) {
                late.push((connection, "it does not send all the data of a command in time"));
            }
            true
        });
        for (connection, complaint) in late {
            if !connection.is_ended() {
                tracing::warn!(peer = %connection.queue().peer(), complaint, "connection ended");
                connection.finish();
            }
        }
    }
}

/// Looks at the connections of `shared` for as long as there is a listener or a connection.
pub(super) async fn watch(shared: Weak<Shared>) {
    loop {
        let Some(limits) = shared
            .upgrade()
            .map(|shared| (shared.options.connect_limit, shared.options.stall_limit))
        else {
            return;
        };
        time::sleep(limits.0.min(limits.1) / LOOKS).await;
        if let Some(shared) = shared.upgrade() {
            shared.watched.look(limits);
        }
    }
}
