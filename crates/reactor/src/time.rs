//! Time on this host's boot-time clock, or on the simulated host's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

pub use foundation::Instant;

use crate::context::{self, Backend};

/// Waits for instants of the backend's clock.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_id: Cell<u64>,
}

impl Timers {
    fn add(&self, at: Instant, waker: Waker) -> (Instant, u64) {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.waiting.borrow_mut().insert((at, id), waker);
        (at, id)
    }

    fn remove(&self, key: (Instant, u64)) {
        self.waiting.borrow_mut().remove(&key);
    }

    fn update(&self, key: (Instant, u64), waker: &Waker) -> bool {
        match self.waiting.borrow_mut().get_mut(&key) {
            Some(kept) => {
                kept.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn fire(&self, now: Instant) {
        loop {
            let waker = {
                let mut waiting = self.waiting.borrow_mut();
                match waiting.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            waker.wake();
        }
    }
}

/// The present instant on this host's clock (`CLOCK_BOOTTIME`: it runs on through suspend).
///
/// # Panics
/// Outside a reactor.
pub fn now() -> Instant {
    context::with(|context| match &context.backend {
        Backend::Ring(ring) => ring.now(),
        Backend::Simulated(world) => world.host_time(context.executor.current_group()),
    })
}

/// The clock as it was when the reactor began what it does now: the turn of its loop in which the calling task runs.
/// A look at the clock costs as much as a few percent of a small request; this costs a load. Behind [`now`] by as long
/// as the tasks of this turn have run.
///
/// # Panics
/// Outside a reactor.
pub fn turn() -> Instant {
    context::with(|context| match &context.backend {
        Backend::Ring(ring) => context.turn.get().unwrap_or_else(|| {
            let now = ring.now();
            context.turn.set(Some(now));
            now
        }),
        Backend::Simulated(world) => world.host_time(context.executor.current_group()),
    })
}

/// Waits until the host's clock shows `at`.
pub fn sleep_until(at: Instant) -> Sleep {
    Sleep { at, key: None }
}

/// Waits for `duration` from now on.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Future of [`sleep`] and [`sleep_until`].
pub struct Sleep {
    at: Instant,
    key: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        context::with(|context| {
            if let Some(key) = self.key {
                if context.timers.update(key, cx.waker()) {
                    return Poll::Pending;
                }
                self.key = None;
                return Poll::Ready(());
            }
            let at = match &context.backend {
                Backend::Ring(_) => self.at,
                Backend::Simulated(world) => world.world_time(context.executor.current_group(), self.at),
            };
            self.key = Some(context.timers.add(at, cx.waker().clone()));
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            context::try_with(|context| context.timers.remove(key));
        }
    }
}

/// The time given to [`timeout`] passed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time limit passed")]
pub struct Elapsed;

/// Waits for `future`, at most for `limit`; then the future is dropped.
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(limit));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
