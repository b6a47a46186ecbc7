//! More reactors for a mount that stays on its commit.

use mount::Helper;
use reactor::Cores;
use reactor::mailbox::mailbox;

use super::super::medium::Opened;
use super::{MountArguments, read};
use crate::output::Failure;

/// Starts as many as are asked for, less one, each with a reader of the commit of `generation`; they end with the mount. One that finds a newer
/// commit, since somebody has written in between, does without: the mount is slower, and shows one commit.
///
/// # Errors
/// When a thread or a reader cannot be had.
pub(super) async fn start(
    opened: &Opened,
    generation: u64,
    arguments: &MountArguments,
) -> Result<(Vec<Helper>, Option<Cores>), Failure> {
    let count = usize::from(arguments.cores.max(1)) - 1;
    if count == 0 {
        return Ok((Vec::new(), None));
    }
    let cores = Cores::start(count, None, &reactor::Config::default()).map_err(Failure::new)?;
    let (sender, mut ready) = mailbox(count);
    for handle in cores.handles() {
        let (found, sender, arguments) = (opened.found.clone(), sender.clone(), arguments.clone());
        handle.spawn(move || async move {
            let opened = match found.open() {
                Ok(opened) => opened,
                Err(failure) => {
                    // The mailbox has room for a message of each.
                    let _ = sender.try_send(Err(failure));
                    return;
                }
            };
            match read(&opened, &arguments, false).await {
                Ok(contents) if contents.generation() == generation => {
                    let (helper, helping) = Helper::new();
                    if sender.try_send(Ok(Some(helper))).is_ok() {
                        helping.serve(contents).await.close().await;
                    }
                }
                Ok(contents) => {
                    contents.close().await;
                    let _ = sender.try_send(Ok(None));
                }
                Err(error) => {
                    let _ = sender.try_send(Err(Failure::new(error)));
                }
            }
        });
    }
    let mut helpers = Vec::with_capacity(count);
    for _ in 0..count {
        let said = ready.recv().await;
        let said = said.unwrap_or_else(|| Err(Failure::new("a reading thread has ended")));
        match said? {
            Some(helper) => helpers.push(helper),
            None => tracing::info!("a commit has come in between; one thread less answers"),
        }
    }
    Ok((helpers, Some(cores)))
}
