//! The thread of a data set: a reactor that opens it, does what it is asked, and closes it when nobody asks any more.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use crate::bytes::Lending;
use crate::current::Current;
use crate::failure::Failure;
use crate::opened::{Opened, Options, Source};

/// Calls that wait for their turn, at most.
const CALLS_MAX: usize = 4096;
/// The reactor's pool takes memory as it is needed, and is to refuse none: what bounds it is how much is read at once, and
/// that nothing is lent beyond [`Options::memory_bytes`]. A pool that made a batch wait for what Python holds might wait for
/// ever.
const POOL_BYTES: usize = 1 << 40;

/// Something to do on the reactor.
pub(crate) type Job = Box<dyn FnOnce(Rc<Current>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What a data set was found to be.
pub(crate) struct Started {
    /// Takes jobs; the thread ends with the last clone.
    pub(crate) jobs: MailboxSender<Job>,
    /// The generation that is read.
    pub(crate) generation: u64,
    /// The file system's own number.
    pub(crate) uuid: [u8; 16],
}

/// Who hears how opening went, and who that the data set was closed.
type Heard = (Receiver<Result<Started, Failure>>, Receiver<()>);

/// Starts a thread; the receivers hear how opening went, and that the data set was closed.
///
/// # Errors
/// No thread could be made.
pub(crate) fn start(source: Source, root: Vec<u8>, options: Options) -> Result<Heard, Failure> {
    let (opening, opened) = sync_channel(1);
    let (closing, closed) = sync_channel(1);
    let work = move || {
        let lending = Lending::new(options.memory_bytes);
        let config = reactor::Config {
            buffer_bytes: POOL_BYTES,
            ..reactor::Config::default()
        };
        let kept = lending.clone();
        let served = reactor::run(&config, serve(&source, root, &options, kept, &opening));
        if let Err(error) = served {
            // Nobody listens any more if this fails.
            let _ = opening.send(Err(Failure::new(
                error.source.raw_os_error().unwrap_or(libc::EIO),
                error,
            )));
        }
        let _ = closing.send(());
        lending.wait_for_all();
    };
    let thread = std::thread::Builder::new().name("redhare".to_owned()).spawn(work);
    match thread {
        Ok(_) => Ok((opened, closed)),
        Err(error) => Err(Failure::new(
            error.raw_os_error().unwrap_or(libc::EAGAIN),
            format!("no thread could be started for the data set: {error}; raise the limit of processes"),
        )),
    }
}

async fn serve(
    source: &Source,
    root: Vec<u8>,
    options: &Options,
    lending: Lending,
    opening: &SyncSender<Result<Started, Failure>>,
) {
    let opened = match Opened::open(source, root, options, lending).await {
        Ok(opened) => opened,
        Err(failure) => {
            let _ = opening.send(Err(failure));
            return;
        }
    };
    let (sender, jobs) = mailbox(CALLS_MAX);
    let superblock = opened.reader.superblock();
    let started = Started {
        jobs: sender,
        generation: superblock.generation,
        uuid: superblock.uuid,
    };
    let current = Rc::new(Current::new(opened));
    // Who asked may have gone (Ctrl-C): then there are no senders, and the loop ends at once.
    let _ = opening.send(Ok(started));
    take_jobs(jobs, &current).await;
    // The lease ends by itself if nobody takes it back.
    let _ = current.opened().reader.clone().close().await;
}

async fn take_jobs(mut jobs: Mailbox<Job>, current: &Rc<Current>) {
    while let Some(job) = jobs.recv().await {
        drop(reactor::spawn(job(current.clone())));
    }
}
