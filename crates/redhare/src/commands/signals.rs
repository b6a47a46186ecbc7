//! Ending on Ctrl-C and SIGTERM.

use std::future::Future;
use std::io;

use reactor::mailbox::mailbox;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::output::Failure;

/// A future that ends with the first SIGINT or SIGTERM; the second one ends the process at once.
pub(crate) fn stop_on_signal() -> io::Result<impl Future<Output = ()>> {
    let (sender, mut mailbox) = mailbox(1);
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() && sender.try_send(()).is_ok() {
                signals.next();
            }
            std::process::exit(130);
        })?;
    Ok(async move {
        mailbox.recv().await;
    })
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
