//! PackFS in the file tree of a Linux host, through FUSE (the kernel's `Documentation/filesystems/fuse`).
//!
//! Threads of the `fuser` library take requests from the kernel and put each, with its reply, into a mailbox. The
//! reactor's thread, which alone knows the file system, makes a task of each: those that only look run side by side,
//! those that change something one after another ([`gate`]). The kernel checks permissions (`default_permissions`).
//!
//! What the kernel may keep differs ([`shared::Caching`]): a writer's mount lets it keep everything, because a volume has
//! one writer and all changes go through it; a reader's mount that follows commits lets it keep names and attributes for
//! half a second, and contents for as long as the file is unchanged whenever it is opened.
//!
//! A mount that stays on its commit may be served by several reactors, each with a reader of its own ([`Helper`]): what only looks
//! goes to any of them.
//!
//! What one reactor serves alone of a commit that stays, it reads from the kernel itself ([`direct`]): no other thread is woken for it.
//!
//! Cost of another request, besides what PackFS does: two changes of threads, one boxed task, and a copy of what is written;
//! what is read goes to the kernel from the buffer that it arrived in.

mod convert;
mod direct;
mod ending;
mod face;
mod gate;
mod handles;
mod helper;
mod kept;
mod listing;
mod outcome;
mod refusal;
mod shared;
mod source;
mod statistics;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use packfs::OpenError;
use packfs::files::{FileError, FileSystem};
use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use direct::Direct;
use face::{Face, Job};
use outcome::Outcome;
use shared::{Caching, Shared, follow_every};
use source::{Snapshot, Source};

pub use helper::{Helper, Helping};
pub use source::Volume;

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory.
    pub mountpoint: PathBuf,
    /// Shown in the list of mounts.
    pub source: String,
    /// Whether other users may use it; what they may do the modes say.
    pub allow_other: bool,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// What was changed is committed after so long, if nobody asks earlier.
    pub commit_every: Duration,
    /// Where commits are followed, each is seen within so long; [`FOLLOW_WITHIN`] at least.
    pub follow_within: Duration,
    /// There, a file that is open is read as it was for so long after a commit that changed it was seen; then it is ESTALE. So long it may keep a writer from
    /// using space again. [`KEEP_CHANGED`] unless told.
    pub keep_changed: Duration,
}

/// The least time within which a mount that follows promises to show a commit, unless somebody asks it at once (`fsync`).
pub const FOLLOW_WITHIN: Duration = Duration::from_secs(1);

/// [`MountOptions::keep_changed`] unless told.
pub const KEEP_CHANGED: Duration = Duration::from_secs(600);

/// What a mount shows.
pub struct Contents {
    source: Source,
    caching: Caching,
    /// How a writer's volume is read once it was handed over.
    handed_over: Option<Volume>,
}

impl Contents {
    /// A file system that is read and written, whose lease does not go by itself (`hands_over` of `packfs::WriterOptions`). When another asks to be
    /// the writer everything is committed, and from then on that commit of `volume` is shown, and not changed.
    pub fn written(files: FileSystem, volume: Volume) -> Self {
        Self {
            source: Source::Writing(Box::new(files)),
            caching: Caching::Writer,
            handed_over: Some(volume),
        }
    }

    /// The newest commit, under a reader's lease, and, if `follow` says so, every later one ([`MountOptions::follow_within`]), and at once when somebody asks (`fsync`).
    pub async fn read(volume: Volume, follow: bool) -> Result<Self, OpenError> {
        let caching = match follow {
            true => Caching::Following,
            false => Caching::Still,
        };
        let source = Source::Reading(Box::new(volume.read().await?));
        Ok(Self {
            source,
            caching,
            handed_over: None,
        })
    }

    /// The commit that is seen.
    pub fn generation(&self) -> u64 {
        match &self.source {
            Source::Writing(files) => files.generation(),
            Source::Reading(snapshot) => snapshot.generation(),
        }
    }

    /// Whether it stays on its commit.
    pub fn is_still(&self) -> bool {
        self.caching == Caching::Still
    }

    /// Gives the lease back.
    pub async fn close(self) {
        match self.source {
            Source::Writing(files) => {
                if let Err(error) = files.close().await {
                    // It ends by itself.
                    tracing::debug!("the writer's lease was not given back: {error}");
                }
            }
            Source::Reading(snapshot) => Snapshot::close(*snapshot).await,
        }
    }
}

/// The extended attribute of a mount's root that holds the number of the process that serves it, in decimal digits. It is
/// not listed, and is nothing that the volume holds.
pub const PROCESS_ATTRIBUTE: &str = "user.redhare.process";

/// The extended attribute of the root of a mount that writes with the path of a file in memory, which can be opened as long as the process lives, by
/// whoever may look into it. When the mount has ended it holds [`OUTCOME_DURABLE`], or in other words why what was changed last is not
/// durable; nothing if the process did not come so far. It is not listed.
pub const OUTCOME_ATTRIBUTE: &str = "user.redhare.outcome";

/// What the file of [`OUTCOME_ATTRIBUTE`] holds when everything is durable.
pub const OUTCOME_DURABLE: &str = "durable";

/// The extended attribute of a mount's root that tells what its caches have done and what takes memory, as a JSON object of numbers. Of several
/// reactors it is the first one's; a mount that follows commits counts content anew at each. It is not listed.
pub const STATISTICS_ATTRIBUTE: &str = "user.redhare.statistics";

/// A hand-over that failed is tried again after so long.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(2);

/// So often at least it is looked for open files that have kept a commit for too long.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// More requests do not wait: the kernel allows a few dozen in the background, and one for each thread that asks.
const JOBS_MAX: usize = 4096;

/// A directory that the kernel asks us about.
pub struct Mounted {
    session: Mounting,
    /// Of one whose requests the reactor takes itself.
    direct: Option<Direct>,
    jobs: Mailbox<Job>,
    sender: MailboxSender<Job>,
    options: MountOptions,
    contents: Contents,
    helpers: Vec<Helper>,
    /// Of one that writes.
    outcome: Option<Arc<Outcome>>,
}

impl Mounted {
    /// Mounts. Requests wait until [`Mounted::serve`]. Blocks for as long as the kernel needs. `helpers` show the same commit as
    /// `contents`, which stays on it ([`Contents::is_still`]); there are none for others.
    ///
    /// # Errors
    /// With the contents, whose lease the caller may give back. The helpers end.
    pub fn new(
        contents: Contents,
        options: &MountOptions,
        helpers: Vec<Helper>,
    ) -> Result<Self, Box<(Contents, io::Error)>> {
        assert!(
            helpers.is_empty() || contents.is_still(),
            "others would show what has changed"
        );
        let (sender, jobs) = mailbox(JOBS_MAX);
        let outcome = (contents.caching == Caching::Writer)
            .then(Outcome::new)
            .flatten()
            .map(Arc::new);
        match mount(&contents, options, &sender, &helpers, outcome.as_ref()) {
            Ok((session, direct)) => Ok(Self {
                session,
                direct,
                jobs,
                sender,
                options: options.clone(),
                contents,
                helpers,
                outcome,
            }),
            Err(error) => Err(Box::new((contents, error))),
        }
    }

    /// Serves until somebody unmounts or `stop` ends, which unmounts; then commits. Gives back what was mounted.
    ///
    /// # Errors
    /// When the last commit failed.
    pub async fn serve(self, stop: impl Future<Output = ()> + 'static) -> (Contents, Result<(), FileError>) {
        let Self {
            session,
            direct,
            mut jobs,
            sender,
            options,
            contents,
            helpers,
            outcome,
        } = self;
        let caching = contents.caching;
        let shared = Rc::new(Shared::new(contents.source, caching));
        let stopper = sender.clone();
        drop(reactor::spawn(async move {
            stop.await;
            // Of a full mailbox there is somebody who empties it, and that thread is this one.
            while stopper.try_send(Job::Stop).is_err() && !stopper.is_closed() {
                reactor::time::sleep(Duration::from_millis(1)).await;
            }
        }));
        let ticking = reactor::spawn(tick(shared.clone(), options.clone()));
        let handing = contents
            .handed_over
            .map(|volume| reactor::spawn(hand_over(shared.clone(), volume)));
        let taking = direct.map(|direct| reactor::spawn(direct.serve(shared.clone())));
        let mut session = Some(session);
        while let Some(job) = jobs.recv().await {
            match job {
                Job::Work(work) => drop(reactor::spawn(work(shared.clone()))),
                Job::Stop => {
                    // The kernel has more to ask while it unmounts, so this thread goes on answering.
                    if let Some(session) = session.take() {
                        unmount(session, options.mountpoint.clone(), sender.clone());
                    }
                }
                Job::Ended => break,
            }
        }
        for helper in helpers {
            helper.end();
        }
        let tasks = [Some(ticking), handing, taking].into_iter().flatten();
        let shared = ending::end(shared, tasks).await;
        let (source, committed) = shared.end().await;
        if let Some(outcome) = outcome {
            outcome.say(&committed);
        }
        let handed_over = None;
        let contents = Contents {
            source,
            caching,
            handed_over,
        };
        (contents, committed)
    }
}

/// Hands over once somebody asks.
async fn hand_over(shared: Rc<Shared>, volume: Volume) {
    while let Some(asked) = shared.asked().await {
        asked.await;
        if shared.hand_over(&volume).await {
            return;
        }
        reactor::time::sleep(HAND_OVER_PAUSE).await;
    }
}

async fn tick(shared: Rc<Shared>, options: MountOptions) {
    match shared.caching {
        Caching::Still => {}
        Caching::Writer => loop {
            reactor::time::sleep(options.commit_every).await;
            // What went wrong is in the log, and whoever asks for durability is told.
            let _ = shared.commit().await;
        },
        Caching::Following => {
            let every = follow_every(options.follow_within);
            let mut due = reactor::time::now() + every;
            loop {
                let left = due.since(reactor::time::now());
                reactor::time::sleep(left.min(EXPIRE_EVERY).min(options.keep_changed)).await;
                shared.expire(options.keep_changed).await;
                let began = reactor::time::now();
                if due <= began {
                    // The commit that is shown stays until the volume can be read again.
                    let _ = shared.follow().await;
                    // What following takes is part of the time within which a commit is to be seen.
                    due = (began + every).max(reactor::time::now() + every / 8);
                }
            }
        }
    }
}

fn mount(
    contents: &Contents,
    options: &MountOptions,
    sender: &MailboxSender<Job>,
    helpers: &[Helper],
    outcome: Option<&Arc<Outcome>>,
) -> io::Result<(Mounting, Option<Direct>)> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("redhare".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    if contents.caching != Caching::Writer {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    let is_direct = contents.is_still() && helpers.is_empty();
    let threads = if is_direct { 1 } else { options.threads.max(1) };
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    let helpers: Vec<_> = helpers.iter().map(Helper::sender).collect();
    let face = || {
        Face::new(
            sender.clone(),
            helpers.clone(),
            contents.caching,
            outcome.cloned(),
        )
    };
    let session = Session::new(face(), &options.mountpoint, &config)?;
    if !is_direct {
        let serving = session.spawn()?;
        return Ok((
            Mounting {
                kernel: None,
                serving,
            },
            None,
        ));
    }
    let (direct, serving) = Direct::begin(&session, face(), &config)?;
    let kernel = Some(session);
    Ok((Mounting { kernel, serving }, Some(direct)))
}

/// What is mounted, and the library's thread.
struct Mounting {
    /// The mount of which the reactor takes the requests; none of one of which the library does.
    kernel: Option<Session<Face>>,
    serving: BackgroundSession,
}

impl Mounting {
    /// Unmounts, and waits for the library's thread.
    fn end(self) -> io::Result<()> {
        if let Some(mut kernel) = self.kernel {
            kernel.unmount()?;
        }
        self.serving.umount_and_join()
    }
}

/// Unmounts from another thread, because the kernel asks us for more while it does. What is in use is taken out of the
/// file tree at once; whoever has it open gets errors when this process has ended.
fn unmount(session: Mounting, mountpoint: PathBuf, sender: MailboxSender<Job>) {
    let unmounting = std::thread::Builder::new().name("unmount".to_owned());
    let spawned = unmounting.spawn(move || {
        if let Err(error) = session.end() {
            let shown = mountpoint.display();
            tracing::warn!("{shown} is in use ({error}); it is taken away from those who use it");
            let mut command = std::process::Command::new("fusermount3");
            let detached = command.args(["-u", "-z", "--"]).arg(&mountpoint).status();
            if !detached.is_ok_and(|status| status.success()) {
                tracing::warn!("{shown} stays mounted until somebody runs: fusermount3 -u -z {shown}");
            }
        }
        face::send(&sender, Job::Ended);
    });
    if let Err(error) = spawned {
        tracing::warn!("no thread to unmount with: {error}");
    }
}
