//! Several reactors, one a thread, each pinned to a core if asked.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use crate::context;
use crate::executor::{self, Shared};
use crate::mailbox::{MailboxSender, mailbox};
use crate::runtime::{self, Config, StartError};
use crate::sys;
use crate::usage::Usage;

/// Sends work to one reactor from any thread.
#[derive(Clone)]
pub struct CoreHandle {
    shared: Arc<Shared>,
}

impl CoreHandle {
    /// The handle of this thread's reactor.
    ///
    /// # Panics
    /// Outside a reactor.
    pub fn current() -> Self {
        Self {
            shared: context::with(|context| context.executor.shared.clone()),
        }
    }

    /// Whether it is the reactor of the calling thread.
    pub fn is_current(&self) -> bool {
        context::try_with(|context| Arc::ptr_eq(&context.executor.shared, &self.shared)) == Some(true)
    }

    /// What tells that reactor from others of the process: [`Config::index`].
    pub fn index(&self) -> u32 {
        self.shared.index
    }

    /// The kernel's number of the thread that runs it; 0 in a simulation.
    pub fn thread_id(&self) -> u32 {
        self.shared.thread_id.load(Ordering::Relaxed)
    }

    /// What that reactor has done so far.
    pub fn usage(&self) -> Usage {
        self.shared.books.read()
    }

    /// Starts a task on that reactor: `make` runs there. Dropped unrun if the reactor has ended.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F + Send + 'static) {
        self.shared
            .inject(Box::new(move || drop(executor::spawn(make()))));
    }
}

/// Whether a reactor runs on the calling thread.
pub fn runs_here() -> bool {
    context::try_with(|_| ()).is_some()
}

/// Keeps the calling thread, and threads that it starts from then on, on one processor.
///
/// # Errors
/// If there is no such processor, or the process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    sys::pin_to_cpu(cpu)
}

/// Reactors on threads of their own, until dropped.
pub struct Cores {
    cores: Vec<Core>,
}

struct Core {
    handle: CoreHandle,
    stop: Option<MailboxSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Cores {
    /// Starts `count` reactors, numbered on from `config.index`. With `cpus` given, the n-th is pinned to the n-th of them.
    pub fn start(count: usize, cpus: Option<&[usize]>, config: &Config) -> Result<Self, StartError> {
        let mut cores = Vec::with_capacity(count);
        for index in 0..count {
            let cpu = cpus.and_then(|cpus| cpus.get(index % cpus.len().max(1)).copied());
            let config = Config {
                index: config.index + index as u32,
                ..config.clone()
            };
            cores.push(Core::start(cpu, config)?);
        }
        Ok(Self { cores })
    }

    /// The reactors' handles, in order.
    pub fn handles(&self) -> impl Iterator<Item = &CoreHandle> {
        self.cores.iter().map(|core| &core.handle)
    }
}

impl Core {
    fn start(cpu: Option<usize>, config: Config) -> Result<Self, StartError> {
        let (started, starting) = mpsc::channel();
        let report = started.clone();
        let (stop, mut stopped) = mailbox::<()>(1);
        let thread = thread::Builder::new()
            .name(format!("reactor-{}", config.index))
            .spawn(move || {
                if let Some(cpu) = cpu
                    && let Err(error) = sys::pin_to_cpu(cpu)
                {
                    drop(report.send(Err(StartError { source: error })));
                    return;
                }
                let outcome = runtime::run(&config, async {
                    drop(report.send(Ok(CoreHandle::current())));
                    stopped.recv().await;
                });
                if let Err(error) = outcome {
                    drop(started.send(Err(error)));
                }
            })?;
        let gone = || StartError {
            source: io::Error::other("the reactor's thread ended before it began"),
        };
        let handle = starting.recv().map_err(|_| gone())??;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The reactor's main future ends when the last sender is gone.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add here.
            drop(thread.join());
        }
    }
}
