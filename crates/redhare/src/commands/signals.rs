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
