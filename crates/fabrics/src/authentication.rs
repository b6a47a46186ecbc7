//! What both ends of an authentication share: the keys that people gave, numbers that are used once, and a thread for
//! the arithmetic.
//!
//! A value of the largest Diffie-Hellman group takes 7 ms (`docs/decisions/0050`), in which a reactor would serve
//! nobody: such work is done by one thread for the whole process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use protocols::auth::{CryptoError, Keys, system_entropy};
use reactor::mailbox::mailbox;

/// Keys with the names under which people know them. Nothing secret is in its Debug output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the host's key.
    pub key_name: String,
    /// Name of the controller's key, if it has one.
    pub controller_key_name: Option<String>,
    /// The keys.
    pub keys: Arc<Keys>,
}

type Work = Box<dyn FnOnce() + Send>;

/// Does `work` on the thread for arithmetic and waits for it; `None` if there can be no such thread. What waits there is
/// bounded by the connections: each has one piece of work at a time.
pub(crate) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, mut result) = mailbox(1);
    let work: Work = Box::new(move || {
        // Whoever asked may have gone.
        let _ = done.try_send(work());
    });
    if !hand_over(work) {
        return None;
    }
    result.recv().await
}

fn hand_over(work: Work) -> bool {
    static WORKER: Mutex<Option<mpsc::Sender<Work>>> = Mutex::new(None);
    let mut worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    let sender = match &*worker {
        Some(sender) => sender.clone(),
        None => {
            let (sender, inbox) = mpsc::channel::<Work>();
            let thread = std::thread::Builder::new().name("nvme-auth".to_owned());
            let started = thread.spawn(move || inbox.into_iter().for_each(|work| work()));
            if let Err(error) = started {
                tracing::error!(%error, "there is no thread to authenticate hosts with");
                return false;
            }
            worker.insert(sender).clone()
        }
    };
    sender.send(work).is_ok()
}

/// A sequence number that no challenge of this process had; it begins anywhere and is never 0 (NVM Express Base
/// Specification 2.0c, section 8.13.5.3).
pub(crate) fn next_sequence() -> Result<u32, CryptoError> {
    static LAST: OnceLock<AtomicU32> = OnceLock::new();
    let last = match LAST.get() {
        Some(last) => last,
        None => {
            let mut bytes = [0; 4];
            system_entropy(&mut bytes)?;
            LAST.get_or_init(|| AtomicU32::new(u32::from_le_bytes(bytes)))
        }
    };
    loop {
        let next = last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if next != 0 {
            return Ok(next);
        }
    }
}
