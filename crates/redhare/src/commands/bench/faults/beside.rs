//! A program that uses an exported volume while faults happen: an ordinary host, in a guest.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::world::World;
use crate::output::Failure;

const VOLUME: &str = "exported";
/// How long it may take to begin, and to end: a guest is emulated where nothing is virtualised.
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);

/// See the module. It is killed, with all that it has started, when this is dropped.
pub(super) struct Beside {
    program: PathBuf,
    child: Child,
    ready: PathBuf,
    over: PathBuf,
}

impl Beside {
    /// Makes a volume, exports it, and starts the program, which is told by its environment: `NQN`, `PORTALS` (addresses with ports, the
    /// preferred one first), `READY` (a file that it makes when it is at work, which is waited for) and `OVER` (one that is made when the
    /// faults are over and all copies in sync). What it prints goes to standard error.
    pub(super) fn start(world: &World, program: &Path, place: &Path) -> Result<Self, Failure> {
        world.redhare(&[
            "volume",
            "create",
            VOLUME,
            "--size",
            "64MiB",
            "--chunk-size",
            "16MiB",
        ])?;
        let export = world.redhare(&["volume", "export", VOLUME])?;
        let addresses = export["portals"].as_array().into_iter().flatten();
        let addresses: Vec<&str> = addresses
            .filter_map(|portal| portal["address"].as_str())
            .collect();
        let nqn = export["nqn"]
            .as_str()
            .ok_or_else(|| Failure::new(format!("an export has no name: {export}")))?;
        let (ready, over) = (place.join("ready"), place.join("over"));
        let child = Command::new(program)
            .env("NQN", nqn)
            .env("PORTALS", addresses.join(" "))
            .env("READY", &ready)
            .env("OVER", &over)
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {}: {error}", program.display())))?;
        let mut beside = Self {
            program: program.to_owned(),
            child,
            ready,
            over,
        };
        let deadline = Instant::now() + PATIENCE;
        while !beside.ready.exists() {
            if beside.has_ended() || Instant::now() > deadline {
                return Err(beside.failed("has not begun to use the volume"));
            }
            std::thread::sleep(POLL);
        }
        Ok(beside)
    }

    /// Whether it runs no more, which it should until it is told that all is over.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Tells it that all is over, and waits for what it finds.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        if self.has_ended() {
            return Err(self.failed("has ended while faults happened"));
        }
        std::fs::write(&self.over, "").map_err(Failure::new)?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(None) => std::thread::sleep(POLL),
                _ => return Err(self.failed("found something wrong")),
            }
        }
        Err(self.failed("does not end"))
    }

    fn failed(&self, what: &str) -> Failure {
        Failure::new(format!(
            "{} {what}; what it said is above",
            self.program.display()
        ))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended, with all that it had started.
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.child.wait());
    }
}
