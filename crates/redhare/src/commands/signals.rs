//! Ending on Ctrl-C and SIGTERM.

use std::future::Future;
use std::io;

use reactor::mailbox::mailbox;

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
        return Err(crate::output::Failure::new(
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
