//! A reactor of one thread on a ring of its own.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use crate::buffer::BufferPool;
use crate::context::{self, Backend, Context};
use crate::executor::Executor;
use crate::sys::{self, Ring, RingConfig, WakeFd};
use crate::time::Timers;
use crate::usage::Bookkeeper;

/// Tasks polled before the ring gets its turn, so that a busy task cannot starve the network.
const TASKS_PER_TURN: usize = 256;

/// How a reactor runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long an idle reactor polls, at most, before it sleeps in the kernel; less while that is of no use. Zero
    /// never polls; [`Duration::MAX`] never sleeps.
    pub spin: Duration,
    /// The buffer pool's limit, in bytes. Memory is taken as it is needed.
    pub buffer_bytes: usize,
    /// Submission queue entries, at most; the ring works with any number.
    pub ring_entries: u32,
    /// Receive buffers that the connections of this reactor share; a power of two.
    pub receive_buffers: u16,
    /// Length of a receive buffer, in bytes.
    pub receive_buffer_bytes: usize,
    /// Tells this reactor from others of the process.
    pub index: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(50),
            buffer_bytes: 256 << 20,
            ring_entries: 256,
            receive_buffers: 64,
            receive_buffer_bytes: 32 << 10,
            index: 0,
        }
    }
}

/// Why a reactor could not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start a reactor: io_uring_setup failed ({source}); Redhare needs Linux 6.1 or newer with io_uring allowed \
     (sysctl kernel.io_uring_disabled=0, and no seccomp filter against it): run \"redhare doctor\""
)]
pub struct StartError {
    /// The kernel's answer.
    #[from]
    pub source: io::Error,
}

/// Whether this machine can run a reactor; the error says what is missing.
pub fn probe() -> Result<(), StartError> {
    sys::probe().map_err(StartError::from)
}

/// Runs `future` on this thread until it ends, with all tasks it spawns; then drops them and waits for
/// the kernel to let go of their buffers.
///
/// # Panics
/// If a reactor already runs on this thread.
pub fn run<T>(config: &Config, future: impl Future<Output = T>) -> Result<T, StartError> {
    assert!(
        context::try_with(|_| ()).is_none(),
        "a reactor already runs on this thread"
    );
    let wake = WakeFd::new()?;
    let ring_config = RingConfig {
        entries: config.ring_entries,
        receive_buffers: config.receive_buffers,
        receive_buffer_bytes: config.receive_buffer_bytes,
    };
    let ring = Ring::new(&ring_config, wake.clone())?;
    let context = Rc::new(Context {
        executor: Executor::new(config.index, move || wake.ring()),
        timers: Timers::default(),
        pool: BufferPool::new(config.buffer_bytes),
        backend: Backend::Ring(ring.clone()),
        turn: Cell::new(None),
    });
    let _guard = context::enter(context.clone());
    context
        .executor
        .shared
        .thread_id
        .store(sys::thread_id(), Ordering::Relaxed);
    let unwinding = Unwinding(context.clone(), ring.clone());
    let result = drive(&context, &ring, config.spin, future);
    drop(unwinding);
    context.executor.kill_group(None);
    if !ring.drain() {
        // The kernel still holds some operation's memory: give that memory up rather than reuse it.
        std::mem::forget(ring);
    }
    Ok(result)
}

/// A panic ends this thread while the kernel still reads and writes memory for what is under way. That memory is given up, so that the process may
/// unwind, and live on if it likes.
struct Unwinding(Rc<Context>, Rc<Ring>);

impl Drop for Unwinding {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget((self.0.clone(), self.1.clone()));
        }
    }
}

/// The main future runs as a task like any other, so that it may borrow nothing from the caller's
/// stack longer than `drive` itself: it is polled in place and woken through a small relay task.
fn drive<T>(context: &Context, ring: &Ring, spin: Duration, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let main = Rc::new(MainState {
        woken: Cell::new(true),
        waker: RefCell::new(None),
    });
    let relay = main.clone();
    // The relay task lends its waker to the main future and notes each wake-up.
    context.executor.spawn(
        0,
        Box::pin(poll_fn(move |cx| {
            *relay.waker.borrow_mut() = Some(cx.waker().clone());
            relay.woken.set(true);
            Poll::Pending
        })),
    );
    let mut polling = Polling::new(spin);
    let mut idle_since = None;
    let books = Bookkeeper::new(&context.executor.shared.books, ring.now());
    loop {
        context.executor.accept_remote();
        context.executor.run_ready(TASKS_PER_TURN);
        if main.woken.replace(false) {
            let waker = main.waker.borrow().clone().expect("the relay task ran first");
            if let Poll::Ready(result) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                return result;
            }
        }
        context.turn.set(None);
        let moved = ring.turn();
        let next = context.timers.next();
        let now = (next.is_some() || !moved).then(|| ring.now());
        context.turn.set(now);
        books.turned();
        if let (Some(next), Some(now)) = (next, now)
            && next <= now
        {
            context.timers.fire(now);
        }
        if moved || context.executor.ready_count() > 0 || context.executor.shared.has_remote() {
            idle_since = None;
            if let Some(now) = now {
                books.worked(now);
            }
            continue;
        }
        let now = now.unwrap_or_else(|| ring.now());
        let since = match idle_since {
            Some(since) => {
                books.polled(now);
                since
            }
            None => {
                books.worked(now);
                *idle_since.insert(now)
            }
        };
        if now - since < polling.length {
            if spin == Duration::MAX {
                std::hint::spin_loop();
            } else {
                // Whoever makes the next work may want this processor.
                std::thread::yield_now();
            }
            continue;
        }
        if context.executor.shared.prepare_sleep() {
            context.turn.set(None);
            ring.wait(context.timers.next().map(|at| at - now));
            context.executor.shared.awake();
            let woken = ring.now();
            context.turn.set(Some(woken));
            books.slept(woken);
            polling.slept(woken - since);
        }
        idle_since = None;
    }
}

/// How long to poll before sleeping, learnt from how long there was nothing to do.
///
/// Polling pays when work comes within the limit: then no wake-up is paid for. When it does not come, polling only
/// takes the processor from whoever would have made the work, which is dear where threads outnumber processors. So
/// each sleep that would have been spared by polling on doubles the length, and each longer one ends polling until the
/// next short one, as a hypervisor does for its halted guests (Linux, `Documentation/virt/kvm/halt-polling.rst`).
struct Polling {
    limit: Duration,
    length: Duration,
}

impl Polling {
    /// The shortest polling is the limit divided by this.
    const FIRST: u32 = 4;

    fn new(limit: Duration) -> Self {
        Self { limit, length: limit }
    }

    /// There was nothing to do for so long, the sleep included.
    fn slept(&mut self, idle: Duration) {
        self.length = if idle > self.limit {
            Duration::ZERO
        } else {
            (self.length * 2).clamp(self.limit / Self::FIRST, self.limit)
        };
    }
}

struct MainState {
    woken: Cell<bool>,
    waker: RefCell<Option<std::task::Waker>>,
}

/// Lets every other ready task run before this one goes on.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_lasts_as_long_as_it_pays() {
        let us = Duration::from_micros;
        let mut polling = Polling::new(us(40));
        assert_eq!(polling.length, us(40));
        polling.slept(us(41));
        assert_eq!(polling.length, us(0), "a long sleep ends it");
        for expected in [10, 20, 40, 40] {
            polling.slept(us(30));
            assert_eq!(polling.length, us(expected), "a short one begins it again");
        }
        let mut never = Polling::new(Duration::ZERO);
        never.slept(us(0));
        assert_eq!(never.length, Duration::ZERO);
    }
}
