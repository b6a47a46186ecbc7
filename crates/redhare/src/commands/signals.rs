//! Ending on Ctrl-C and SIGTERM.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use reactor::mailbox::mailbox;
use reactor::sync::Notify;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::output::Failure;

/// A future that ends with the first SIGINT or SIGTERM; the second one ends the process at once.
pub(crate) fn stop_on_signal() -> io::Result<impl Future<Output = ()>> {
    note_signal(Arc::default())
}

/// The same; `has_come` is set at once, whatever the reactor does.
fn note_signal(has_come: Arc<AtomicBool>) -> io::Result<impl Future<Output = ()>> {
    let (sender, mut mailbox) = mailbox(1);
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                has_come.store(true, Ordering::Relaxed);
                if sender.try_send(()).is_ok() {
                    signals.next();
                }
            }
            std::process::exit(130);
        })?;
    Ok(async move {
        mailbox.recv().await;
    })
}

/// For work that ends where it may: whether SIGINT or SIGTERM has come; the second one ends the process at once.
#[derive(Clone)]
pub(crate) struct Stopped {
    has_come: Arc<AtomicBool>,
    comes: Rc<Notify>,
}

impl Stopped {
    /// Begins to listen. Must be called on a reactor.
    pub(crate) fn on_signal() -> io::Result<Self> {
        let has_come: Arc<AtomicBool> = Arc::default();
        let signal = note_signal(has_come.clone())?;
        let stopped = Self {
            has_come,
            comes: Rc::default(),
        };
        let told = stopped.clone();
        drop(reactor::spawn(async move {
            signal.await;
            told.comes.notify();
        }));
        Ok(stopped)
    }

    /// Whether a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }

    /// What `work` gives; none if a signal comes first, or has come. Then it is dropped where it stands.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut comes = pin!(self.comes.changed());
        let mut work = pin!(work);
        poll_fn(|cx| match self.has_come() || comes.as_mut().poll(cx).is_ready() {
            true => Poll::Ready(None),
            false => work.as_mut().poll(cx).map(Some),
        })
        .await
    }
}

/// The same for daemons that run on tokio: ends with the first SIGINT or SIGTERM.
pub(crate) fn ended() -> Result<impl Future<Output = ()>, crate::output::Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return Err(Failure::new(
            "the system gives no signal handlers; raise the limit of open files",
        ));
    };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Lets the kernel ask this process to end (SIGTERM) when its parent has ended, however that happens (prctl(2),
/// PR_SET_PDEATHSIG). `parent` is who started it; none leaves it on its own.
pub(crate) fn end_with(parent: Option<u32>) -> Result<(), Failure> {
    let Some(parent) = parent else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| {
        Failure::new(format!(
            "cannot be bound to the life of process {parent}: {error}"
        ))
    })?;
    // It may have ended before the kernel was asked.
    let actual = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if actual == Some(parent) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "process {parent}, which started this one, has ended"
    )))
}
