//! `redhare fs unmount`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::output::{Failure, Output};

/// Commit what a mount has changed and unmount it
#[derive(Args)]
#[command(
    after_help = "Returns when everything is durable and the mount's process has ended, so that the volume can be mounted \
elsewhere at once. What a dead process left behind is removed, too.\n\nExample:\n  redhare fs unmount /mnt/data"
)]
pub(in crate::commands::fs) struct UnmountArguments {
    /// The directory it is mounted on
    directory: PathBuf,
}

/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A mount's process ends within this time after it was unmounted.
const END_LIMIT: Duration = Duration::from_secs(60);

/// More is not read of what a mount's process says.
const OUTCOME_BYTES_MAX: u64 = 4096;

#[derive(serde::Serialize)]
struct UnmountView {
    directory: String,
}

pub(in crate::commands::fs) fn unmount(arguments: &UnmountArguments, output: &Output) -> Result<(), Failure> {
    let directory = &arguments.directory;
    let shown = directory.display();
    let serving = match File::open(directory) {
        Err(error) if is_dead(&error) => None,
        Err(error) => {
            return Err(Failure::new(format!(
                "{shown}: {error}; name the directory of a mount"
            )));
        }
        Ok(root) => {
            let process = process(directory).ok_or_else(|| {
                Failure::new(format!(
                    "{shown} is not a mount of redhare; \"findmnt\" lists what is mounted where"
                ))
            })?;
            root.sync_all().map_err(|error| {
                Failure::new(format!(
                    "{shown} stays mounted, since what was changed could not be committed: {error}; its log says why, and \
                     \"fusermount3 -u {shown}\" unmounts it and gives that up"
                ))
            })?;
            Some((process, outcome(directory, process)))
        }
    };
    fusermount(directory, serving.is_none())?;
    if let Some((process, outcome)) = serving {
        let ended = wait_for_end(process).and_then(|()| outcome.map_or(Ok(()), is_durable));
        ended.map_err(|error| Failure::new(format!("{shown} is unmounted, but {error}")))?;
    }
    let view = UnmountView {
        directory: shown.to_string(),
    };
    output.print(&view, || format!("{shown} is unmounted"));
    Ok(())
}

/// Whether a mount's process has died (`ENOTCONN`).
pub(super) fn is_dead(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotConnected
}

/// Has `fusermount3` take a mount away; a dead one also from those who have something of it open, to whom it is of no use.
pub(super) fn fusermount(directory: &Path, dead: bool) -> Result<(), Failure> {
    let shown = directory.display();
    let output = Command::new("fusermount3")
        .arg(if dead { "-uz" } else { "-u" })
        .arg("--")
        .arg(directory)
        .output();
    let output = output.map_err(|error| {
        Failure::new(format!(
            "fusermount3: {error}; install it (Debian: fuse3), or run \"umount {shown}\" as root"
        ))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!(
        "{shown} stays mounted: {said}; end what uses it (\"fuser -vm {shown}\" lists that) and try again"
    )))
}

/// The process that serves a mount, by the attribute in which it says so; `None` where nobody does.
fn process(directory: &Path) -> Option<Pid> {
    let mut text = [0; 16];
    let length = rustix::fs::getxattr(directory, mount::PROCESS_ATTRIBUTE, &mut text).ok()?;
    Pid::from_raw(std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()?)
}

/// The file in which the process of a mount that writes says what became of what was changed last. None of one that only reads, of a release before, or
/// where it may not be looked into. Whoever serves the mount names it, and need not be one of ours: no other file is opened.
fn outcome(directory: &Path, process: Pid) -> Option<File> {
    let mut text = [0; 64];
    let length = rustix::fs::getxattr(directory, mount::OUTCOME_ATTRIBUTE, &mut text).ok()?;
    let named = std::str::from_utf8(text.get(..length)?).ok()?;
    let descriptor = named.strip_prefix(&format!("/proc/{}/fd/", process.as_raw_nonzero()))?;
    let descriptor: u32 = descriptor.parse().ok()?;
    let path = format!("/proc/{}/fd/{descriptor}", process.as_raw_nonzero());
    // Opens nothing yet: what it is would be done something to.
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    let is_ours = std::fs::read_link(&place)
        .ok()?
        .starts_with("/memfd:redhare-outcome (deleted)");
    is_ours.then(|| File::open(&place).ok()).flatten()
}

/// Whether a process that has ended said so.
fn is_durable(outcome: File) -> Result<(), String> {
    let mut said = String::new();
    let read = outcome.take(OUTCOME_BYTES_MAX).read_to_string(&mut said);
    match (read, said.as_str()) {
        (Ok(_), mount::OUTCOME_DURABLE) => Ok(()),
        (Ok(_), "") | (Err(_), _) => Err(
            "its process ended without a last commit: what was changed while it was being unmounted is lost; its log says why"
                .to_owned(),
        ),
        (Ok(_), error) => Err(format!(
            "what was changed last is lost, since it could not be committed: {error}"
        )),
    }
}

fn wait_for_end(process: Pid) -> Result<(), String> {
    let deadline = Instant::now() + END_LIMIT;
    // Of a process that may not be signalled the kernel says so, and it is there.
    while test_kill_process(process) != Err(Errno::SRCH) {
        if Instant::now() > deadline {
            let limit = END_LIMIT.as_secs();
            return Err(format!(
                "its process has not ended within {limit} s; its log says why"
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
