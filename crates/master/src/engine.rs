//! The thread that owns the controller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::mastership::{Member, NotLeading};
use control::{ControlError, Controller, Heartbeat, HeartbeatAnswer, Settings};
use foundation::Instant;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::Status;

use crate::convert::status;
use crate::seat::{Candidate, Store};

/// Calls that wait for the thread; more are held back at their connections.
const QUEUE: usize = 256;
/// How long a look that is wanted soon waits for what else is heard at the same time.
const GATHER: Duration = Duration::from_millis(10);

/// The controller on its store.
pub(crate) type Control = Controller<Store>;

/// One of the masters.
pub(crate) type Master = Member<Candidate>;

type Call = Box<dyn FnOnce(&mut Master, Instant) + Send>;

/// What the thread is asked to do.
enum Task {
    Call(Call),
    End,
}

/// A handle to the thread, which ends when it is asked to or when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    tasks: mpsc::Sender<Task>,
    news: watch::Receiver<News>,
    /// What the thread works on, if its store is in this process: what needs no more than memory is asked where it comes in,
    /// and the thread sleeps on.
    at_hand: Option<Arc<Mutex<Option<Master>>>>,
    /// Told when the next look should not wait for its tick.
    hurry: Arc<Notify>,
}

/// What watchers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    /// The reign that this master leads in; none while it follows.
    pub(crate) reign: Option<u64>,
    /// What it knows to be committed.
    pub(crate) revision: u64,
}

impl News {
    fn of(master: &mut Master) -> Self {
        let reign = master.leader().map(|leader| leader.reign);
        match master.lead() {
            Ok(control) => Self {
                reign,
                revision: control.known_revision(),
            },
            Err(_) => Self {
                reign: None,
                revision: 0,
            },
        }
    }
}

impl Engine {
    /// Starts the thread. `seed` is drawn at random. With `must_lead`, a store that cannot be used is an error; a
    /// store elsewhere may answer later.
    pub(crate) fn start(
        candidate: Candidate,
        settings: Settings,
        seed: u64,
        must_lead: bool,
    ) -> Result<(Self, std::thread::JoinHandle<()>), StartError> {
        let (tasks, mut queue) = mpsc::channel(QUEUE);
        let nothing = News {
            reign: None,
            revision: 0,
        };
        let (announce, news) = watch::channel(nothing);
        let (tell, told) = std::sync::mpsc::channel();
        // A store elsewhere is asked even for what has not changed.
        let is_here = matches!(candidate, Candidate::Redb { .. });
        let master = Arc::new(Mutex::new(Some(Member::new(candidate, settings, seed))));
        let at_hand = is_here.then(|| master.clone());
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                let mut failed = false;
                if must_lead {
                    failed = with(&master, |master| {
                        let first = master.step(boot_time());
                        master.stepped(boot_time());
                        let failed = first.is_err();
                        announce.send_replace(News::of(master));
                        drop(tell.send(first.map(drop)));
                        failed
                    });
                } else {
                    drop(tell.send(Ok(())));
                }
                while !failed && let Some(Task::Call(call)) = queue.blocking_recv() {
                    with(&master, |master| {
                        call(master, boot_time());
                        let fresh = News::of(master);
                        announce.send_if_modified(|known| std::mem::replace(known, fresh) != fresh);
                    });
                }
                // Whoever still has a handle does not keep the store open.
                drop(master.lock().map(|mut master| master.take()));
            })?;
        // The thread tells before it does anything else.
        told.recv().unwrap_or(Ok(()))?;
        let hurry = Arc::default();
        let engine = Self {
            tasks,
            news,
            at_hand,
            hurry,
        };
        Ok((engine, thread))
    }

    /// Runs a call on the thread and waits for its answer.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Master, Instant) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |master, now| {
            // Who has given up waiting asks again: were it still done, a thread that is behind would stay behind.
            if answer.is_closed() {
                return;
            }
            // The caller may have gone meanwhile; the call was made all the same.
            drop(answer.send(call(master, now)));
        });
        let ending = || Status::unavailable("this master is ending; ask another one, or repeat the call");
        self.tasks.send(Task::Call(call)).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?
    }

    /// A call that changes the cluster or needs what only the master hears that leads. Another one refuses it, with
    /// that one's address.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Control, Instant) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        self.ask(move |master, now| {
            let control = master.lead().map_err(|refused| elsewhere(&refused))?;
            call(control, now).map_err(|error| status(&error))
        })
        .await
    }

    /// A node says that it lives.
    pub(crate) async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Status> {
        if let Some(answer) = self.answer_from_memory(&heartbeat) {
            return answer.map_err(|error| status(&error));
        }
        self.call(move |control, now| control.heartbeat(&heartbeat, now))
            .await
    }

    /// The answer to a heartbeat that says nothing new; none if the thread is at work, or has to be asked.
    pub(crate) fn answer_from_memory(
        &self,
        heartbeat: &Heartbeat,
    ) -> Option<Result<HeartbeatAnswer, ControlError>> {
        let mut master = self.at_hand.as_ref()?.try_lock().ok()?;
        let control = master.as_mut()?.lead().ok()?;
        control
            .has_no_news(heartbeat)
            .then(|| control.heartbeat(heartbeat, boot_time()))
    }

    /// A call that any master answers from the store.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Control, Instant) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        self.ask(move |master, now| {
            let control = master.read(now).map_err(|error| status(&error))?;
            call(control, now).map_err(|error| status(&error))
        })
        .await
    }

    /// A call that the master answers best that leads; another one refuses it, unless none does.
    pub(crate) async fn call_or_read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Control, Instant) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        self.ask(move |master, now| {
            let control = match master.lead().err() {
                Some(refused) if refused.leader.is_some() => return Err(elsewhere(&refused)),
                _ => master.read(now).map_err(|error| status(&error))?,
            };
            call(control, now).map_err(|error| status(&error))
        })
        .await
    }

    /// Looks at the master itself: who leads, and who else there is.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Master) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.ask(move |master, _| Ok(look(master))).await
    }

    /// Lets the thread end after the calls that wait already, and close the store.
    pub(crate) async fn end(&self) {
        // Refused only by a thread that has ended.
        drop(self.tasks.send(Task::End).await);
    }

    /// What watchers wait for, as it changes.
    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.clone()
    }

    /// Something was heard after which clients wait: the master looks after the cluster soon, and not only with the next tick.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Lets the master do what time asks of it, until the thread ends.
    pub(crate) async fn tick_forever(&self, every: Duration) {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = self.hurry.notified() => tokio::time::sleep(GATHER).await,
            }
            let step = |master: &mut Master, now| {
                let before = master.seat().clone();
                let stepped = master.step(now);
                master.stepped(boot_time());
                if *master.seat() != before {
                    tracing::info!(seat = ?master.seat(), "the masters' seat has changed");
                }
                stepped.map_err(|error| status(&error))
            };
            if let Err(error) = self.ask(step).await {
                tracing::warn!("could not look after the cluster: {}", error.message());
            }
        }
    }
}

/// Works on what the control thread owns.
fn with<T>(owned: &Mutex<Option<Master>>, work: impl FnOnce(&mut Master) -> T) -> T {
    let mut master = owned.lock().expect("a call that panics ends the control thread");
    work(master.as_mut().expect("it is there until that thread ends"))
}

/// A refusal that names the master to ask instead, if there is one.
fn elsewhere(refused: &NotLeading) -> Status {
    let mut status = Status::unavailable(refused.to_string());
    let leader = refused.leader.as_ref().map_or("", |leader| &leader.address);
    // An address that is no header value was not read from our own configuration.
    if let Ok(leader) = leader.parse() {
        status.metadata_mut().insert(proto::client::LEADER, leader);
    }
    status
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::redb_store::RedbStore;

    #[test]
    fn a_call_that_nobody_waits_for_any_more_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let store = RedbStore::open(directory.path()).unwrap();
        let candidate = Candidate::alone(store, "192.0.2.1:7400".to_owned());
        let (engine, thread) = Engine::start(candidate, Settings::default(), 1, true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            let (release, held) = std::sync::mpsc::channel::<()>();
            let (begin, begun) = tokio::sync::oneshot::channel();
            let busy = tokio::spawn({
                let engine = engine.clone();
                async move {
                    let work = engine.look(move |_| begin.send(()).is_ok() && held.recv().is_ok());
                    work.await
                }
            });
            begun.await.unwrap();
            let count = || {
                let (engine, made) = (engine.clone(), made.clone());
                async move {
                    let seen = engine.look(move |_| made.fetch_add(1, Ordering::Relaxed));
                    seen.await.unwrap()
                }
            };
            // It gives up while the thread is at work; then it asks again.
            let given_up = tokio::time::timeout(Duration::from_millis(50), count()).await;
            assert!(given_up.is_err());
            release.send(()).unwrap();
            assert!(busy.await.unwrap().unwrap());
            assert_eq!(count().await, 0, "the first attempt was made, too");
            engine.end().await;
        });
        thread.join().unwrap();
    }
}
