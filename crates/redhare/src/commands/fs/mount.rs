//! `redhare fs mount` and `redhare fs unmount`.

mod background;
mod helpers;
mod unmount;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use foundation::ByteCount;
use mount::{Contents, MountOptions, Mounted};
use packfs::files::{FileOptions, FileSystem};
use packfs::lease::LeaseError;
use packfs::{OpenError, ReaderOptions, WriterOptions};

use super::local_cache::LocalCacheArguments;
use super::medium::{Opened, Role, TakeOverArguments, Volume, holder, open_volume};
use crate::commands::signals::stop_on_signal;
use crate::output::{Failure, Output};

pub(super) use unmount::{UnmountArguments, unmount};

/// How long to poll at most for the next request or the disk, where work comes that fast (docs/decisions/0046): longer than others, since
/// each file needs two wake-ups through a mount, and each costs some 50 µs on a processor that sleeps.
const POLLING: Duration = Duration::from_micros(200);

/// Mount a volume as a directory
#[derive(Args, Clone)]
#[command(
    after_help = "Needs /dev/fuse, and unless run as root fusermount3 (Debian: fuse3). Stays in the foreground until it \
is unmounted (redhare fs unmount DIRECTORY) or ended (Ctrl-C, SIGTERM), and then commits. fsync makes everything \
durable that was done before; without it that happens every 5 seconds. A volume has one mount that writes and any \
number that read; those see a commit within about a second, or --follow-within, and at once after fsync (sync DIRECTORY). More in docs/mount.md.\n\nExample:\n  \
redhare fs mount data /mnt/data --background\n  redhare fs mount data /mnt/data --read-only\n  redhare fs mount data@monday /mnt/monday --read-only\n  \
redhare fs mount data /mnt/data --read-only --cache-dir /var/cache/redhare --cache-size 100GiB\n  \
redhare fs mount data /mnt/data --take-over\n  redhare fs mount file:images.packfs /mnt/images"
)]
pub(super) struct MountArguments {
    /// The volume, or with --read-only VOLUME@SNAPSHOT or VOLUME@@SNAPSHOT
    volume: OsString,
    /// The directory to mount on
    directory: PathBuf,
    /// Only read; follow the commits of whoever writes
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    take_over: TakeOverArguments,
    /// Stay on the commit that is the newest now
    #[arg(long, requires = "read_only")]
    stay: bool,
    /// Seconds within which a commit of whoever writes is seen; fsync of any file or directory of the mount has it look at once
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "read_only", conflicts_with = "stay", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    follow_within: u32,
    /// Seconds for which a file that is open goes on being read as it was after a commit that changed or removed it was seen; then it is ESTALE,
    /// and a writer may use its space again
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "read_only", conflicts_with = "stay", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    keep_changed: u32,
    /// Let other users in too; what they may do the modes say
    #[arg(long)]
    allow_other: bool,
    /// Return when it is mounted, and serve in the background
    #[arg(long)]
    background: bool,
    /// Where the one in the background writes its log; nowhere unless given
    #[arg(long, value_name = "FILE", requires = "background")]
    log: Option<PathBuf>,
    /// Threads that take requests from the kernel; with --stay and one core that one takes nearly all, and these the rest
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Threads that answer what is asked of a mount with --stay, each with a channel and an index of its own
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "stay", value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: u16,
    /// Bound of the memory for names, inodes and what the kernel has of them, with --read-only
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "read_only")]
    cache: ByteCount,
    /// Bound of the memory for content that is read ahead where files are read in the order in which they lie, with --read-only;
    /// 0 for none
    #[arg(long, value_name = "SIZE", default_value = "32MiB", requires = "read_only")]
    data_cache: ByteCount,
    #[command(flatten)]
    local: LocalCacheArguments,
    /// Set by the process that returns, for the one that stays
    #[arg(long, hide = true)]
    detached: bool,
}

impl MountArguments {
    /// How one core of a mount that only reads works.
    fn reading(&self, volume: &Volume) -> ReaderOptions {
        let share = |all: ByteCount| usize::try_from(all.0 / u64::from(self.cores)).unwrap_or(usize::MAX);
        ReaderOptions {
            cache_bytes: share(self.cache),
            data_cache_bytes: share(self.data_cache),
            snapshot: volume.snapshot().map(<[u8]>::to_vec),
            ..ReaderOptions::default()
        }
    }
}

/// What nobody asked to be durable is committed after so long.
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// A lease that is not renewed is asked for again so much after its end.
const AFTER_LEASE: Duration = Duration::from_millis(500);

#[derive(serde::Serialize, serde::Deserialize)]
struct MountView {
    volume: String,
    directory: String,
    generation: u64,
    read_only: bool,
    background: bool,
}

pub(super) fn run(arguments: &MountArguments, output: &Output) -> Result<(), Failure> {
    if arguments.background && !arguments.detached {
        return background::start(arguments.log.as_deref(), output);
    }
    if arguments.detached {
        background::leave_session()?;
    }
    let config = reactor::Config {
        spin: POLLING,
        ..reactor::Config::default()
    };
    reactor::run(&config, serve(arguments, output)).map_err(Failure::new)?
}

async fn serve(arguments: &MountArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse(&arguments.volume)?;
    take_away_dead(&arguments.directory)?;
    let stop = stop_on_signal().map_err(Failure::new)?;
    if arguments.local.is_given() && !arguments.read_only {
        return Err(volume.failure(
            "a mount that writes keeps nothing on a local disk; give --read-only too, or leave --cache-dir out",
        ));
    }
    if arguments.read_only && arguments.take_over.within().is_some() {
        return Err(volume
            .failure("a mount that only reads takes nothing over; leave --read-only or --take-over out"));
    }
    if volume.is_fixed() && !arguments.read_only {
        return Err(volume
            .failure("a snapshot is never written; give --read-only too, or name the volume without it"));
    }
    let role = match arguments.read_only {
        true => Role::Read,
        false => Role::Write,
    };
    let opened = open_volume(&volume, role)?;
    let contents = match arguments.read_only {
        // Nothing changes a snapshot, so there is nothing to follow.
        true => read(&opened, arguments, !arguments.stay && !volume.is_fixed()).await,
        false => written(&opened, &volume, arguments).await,
    };
    let contents = contents.map_err(|error| volume.failure(error))?;
    let (helpers, _cores) = helpers::start(&opened, contents.generation(), arguments)
        .await
        .map_err(|error| volume.failure(error))?;
    let view = MountView {
        volume: volume.to_string(),
        directory: arguments.directory.display().to_string(),
        generation: contents.generation(),
        read_only: arguments.read_only,
        background: arguments.detached,
    };
    let mounted = Mounted::new(
        contents,
        &MountOptions {
            mountpoint: arguments.directory.clone(),
            source: volume.to_string(),
            allow_other: arguments.allow_other,
            threads: arguments.threads.into(),
            commit_every: COMMIT_EVERY,
            follow_within: Duration::from_secs(arguments.follow_within.into()),
            keep_changed: Duration::from_secs(arguments.keep_changed.into()),
        },
        helpers,
    );
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(refused) => {
            let (contents, error) = *refused;
            contents.close().await;
            return Err(cannot_mount(&view, &error));
        }
    };
    output.print(&view, || shown(&view));
    // Whoever waits for this line reads it now.
    std::io::stdout().flush().map_err(Failure::new)?;
    let (contents, committed) = mounted.serve(stop).await;
    contents.close().await;
    committed.map_err(|error| {
        let failure = format!("what was changed last is lost, since it could not be committed: {error}");
        // In the background nobody reads the result.
        tracing::error!("{volume}: {failure}");
        volume.failure(failure)
    })
}

fn shown(view: &MountView) -> String {
    let MountView {
        volume, directory, ..
    } = view;
    let how = match view.read_only {
        true => " to be read",
        false => "",
    };
    let end = match view.background {
        true => String::new(),
        false => "Ctrl-C or ".to_owned(),
    };
    format!("{volume} is mounted on {directory}{how}; {end}\"redhare fs unmount {directory}\" unmounts it")
}

/// The newest commit, or the snapshot that was named, to be read.
async fn read(opened: &Opened, arguments: &MountArguments, follow: bool) -> Result<Contents, OpenError> {
    let volume = mount::Volume {
        medium: opened.medium().with_local(arguments.local.open().await),
        leases: opened.leases.clone(),
        options: arguments.reading(&opened.found.volume),
    };
    Contents::read(volume, follow).await
}

/// The volume's writer. A lease of somebody who has died without giving it back is waited for.
async fn written(
    opened: &Opened,
    volume: &Volume,
    arguments: &MountArguments,
) -> Result<Contents, OpenError> {
    let options = FileOptions {
        writer: WriterOptions {
            holder: holder("redhare fs mount"),
            take_over: arguments.take_over.within(),
            hands_over: false,
            ..WriterOptions::default()
        },
        ..FileOptions::default()
    };
    let open = || FileSystem::open(opened.medium(), opened.leases.clone(), &options);
    let files = match open().await {
        Err(OpenError::Lease(LeaseError::Held { holder, remaining })) => {
            let seconds = remaining.as_secs_f32().ceil();
            tracing::info!(
                "{volume} is being written by {holder}; waiting {seconds} s to see whether that has died"
            );
            reactor::time::sleep(remaining + AFTER_LEASE).await;
            open().await?
        }
        other => other?,
    };
    let reading = mount::Volume {
        medium: opened.medium(),
        leases: opened.leases.clone(),
        options: arguments.reading(volume),
    };
    Ok(Contents::written(files, reading))
}

/// A mount whose process has died is in the way of the next one, and of no use.
fn take_away_dead(directory: &Path) -> Result<(), Failure> {
    match std::fs::metadata(directory) {
        Err(error) if unmount::is_dead(&error) => {
            tracing::info!(
                "{} was mounted by a process that has died; unmounting it",
                directory.display()
            );
            unmount::fusermount(directory, true)
        }
        // What else is wrong mounting tells.
        _ => Ok(()),
    }
}

fn cannot_mount(view: &MountView, error: &std::io::Error) -> Failure {
    let MountView {
        volume, directory, ..
    } = view;
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound if !Path::new(directory).exists() => "make the directory first",
        std::io::ErrorKind::NotFound => "FUSE is missing here: run \"modprobe fuse\", and install fuse3",
        std::io::ErrorKind::NotADirectory => "name a directory",
        std::io::ErrorKind::PermissionDenied => {
            "run as root, or as the directory's owner; --allow-other also needs user_allow_other in /etc/fuse.conf"
        }
        _ => "it must be a directory, and /dev/fuse and fusermount3 (Debian: fuse3) must be there",
    };
    Failure::new(format!(
        "{volume} cannot be mounted on {directory}: {}; {remedy}",
        error.to_string().trim_end()
    ))
}
