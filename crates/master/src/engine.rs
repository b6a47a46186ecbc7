//! The thread that owns the controller.

use std::time::Duration;

use control::{ControlError, Controller, Settings};
use foundation::Instant;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::convert::status;
use crate::redb_store::RedbStore;

/// Calls that wait for the thread; more are held back at their connections.
const QUEUE: usize = 256;

/// The controller on its store.
pub(crate) type Control = Controller<RedbStore>;

type Call = Box<dyn FnOnce(&mut Control, Instant) + Send>;

/// What the thread is asked to do.
enum Task {
    Call(Call),
    End,
}

/// A handle to the thread, which ends when it is asked to or when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    tasks: mpsc::Sender<Task>,
    revision: watch::Receiver<u64>,
}

impl Engine {
    /// Starts the thread. `seed` is drawn at random.
    pub(crate) fn start(
        store: RedbStore,
        settings: Settings,
        seed: u64,
    ) -> Result<(Self, std::thread::JoinHandle<()>), StartError> {
        let mut control = Controller::open(store, settings, seed, boot_time())?;
        let (tasks, mut queue) = mpsc::channel(QUEUE);
        let (announce, revision) = watch::channel(control.revision()?);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                while let Some(Task::Call(call)) = queue.blocking_recv() {
                    call(&mut control, boot_time());
                    if let Ok(revision) = control.revision() {
                        announce.send_if_modified(|known| std::mem::replace(known, revision) != revision);
                    }
                }
            })?;
        Ok((Self { tasks, revision }, thread))
    }

    /// Runs a call on the thread and waits for its answer.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Control, Instant) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |control, now| {
            // The caller may have gone; the call was made all the same.
            drop(answer.send(call(control, now)));
        });
        let ending = || Status::unavailable("this master is ending; ask another one, or repeat the call");
        self.tasks.send(Task::Call(call)).await.map_err(|_| ending())?;
        answered
            .await
            .map_err(|_| ending())?
            .map_err(|error| status(&error))
    }

    /// Lets the thread end after the calls that wait already, and close the store.
    pub(crate) async fn end(&self) {
        // Refused only by a thread that has ended.
        drop(self.tasks.send(Task::End).await);
    }

    /// The store's revision as it changes.
    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Lets the controller do what time asks of it, until the thread ends.
    pub(crate) async fn tick_forever(&self, every: Duration) {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if let Err(error) = self.call(|control, now| control.tick(now)).await {
                tracing::warn!("could not look after the cluster: {}", error.message());
            }
        }
    }
}

/// Why the thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store's content cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The system gave no thread.
    #[error("the system gives no thread: {0}; raise the limit (ulimit -u)")]
    Thread(#[from] std::io::Error),
}

/// Now on `CLOCK_BOOTTIME`.
fn boot_time() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}
