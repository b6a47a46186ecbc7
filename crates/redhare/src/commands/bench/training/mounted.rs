//! The row about a mount: the files of a volume through the kernel, beside the files it was filled from. And a mount, for others.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use bench::process;
use bench::report::{Bar, Row};
use rustix::process::{Pid, Signal, kill_process};

use super::race::{Data, Length, race};
use super::{FILES_IN_FLIGHT, Filled, Stage, VOLUME};
use crate::output::Failure;

/// The promise: at least so many times the local file system's files per second.
const BAR: f64 = 0.8;

/// Why there is no mount.
pub(super) const NO_FUSE: &str = "there is no /dev/fuse (modprobe fuse)";

/// A mount of the volume, served by a process of its own.
pub(super) struct Mount {
    process: Child,
    directory: PathBuf,
}

impl Mount {
    /// Mounts what was filled, to be read as it is; none where there is no FUSE.
    pub(super) fn of(stage: &Stage<'_>) -> Result<Option<Self>, Failure> {
        if !Self::can_be() {
            return Ok(None);
        }
        let directory = stage.scratch.join("mount");
        Self::start(stage, VOLUME, &directory, &["--read-only", "--stay"]).map(Some)
    }

    /// Whether there is FUSE.
    pub(super) fn can_be() -> bool {
        Path::new("/dev/fuse").exists()
    }

    /// Where it is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Processor time of the process that serves it, and of the cluster.
    pub(super) fn cpu_time(&self, stage: &Stage<'_>) -> Result<Duration, Failure> {
        let serving = process::cpu_time(self.process.id()).map_err(Failure::new)?;
        Ok(serving + stage.up.cpu_time()?)
    }

    /// Mounts a volume on a directory that is made for it.
    pub(super) fn start(
        stage: &Stage<'_>,
        volume: &str,
        directory: &Path,
        options: &[&str],
    ) -> Result<Self, Failure> {
        std::fs::create_dir_all(directory).map_err(Failure::new)?;
        let shown = directory.display().to_string();
        let mut command = stage.up.command(&["fs", "mount", volume, &shown])?;
        command.args(options);
        let mut process = command.stdout(Stdio::piped()).spawn().map_err(Failure::new)?;
        let said = process.stdout.take().map(BufReader::new);
        let mount = Self {
            process,
            directory: directory.to_owned(),
        };
        // Its result is one object; it is mounted when that is complete.
        let mut lines = said.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
        if lines.any(|line| line.starts_with('}')) {
            Ok(mount)
        } else {
            Err(Failure::new(format!(
                "{volume} was not mounted on {shown} (its reason is above)"
            )))
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(id) = Pid::from_raw(self.process.id().cast_signed()) {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::TERM);
        }
        drop(self.process.wait());
    }
}

/// The row; where there is no FUSE, that there is none.
pub(super) fn row(stage: &Stage<'_>, filled: &Filled) -> Result<Row, Failure> {
    let name =
        format!("16 KiB files, 3 copies, {FILES_IN_FLIGHT} in flight, index in memory, through a mount");
    let Some(mount) = Mount::of(stage)? else {
        return Ok(Row::missing(name, Bar::AtLeast(BAR), NO_FUSE));
    };
    let ours = filled.below(mount.directory())?;
    let length = Length {
        rounds: stage.rounds(),
        seconds: stage.arguments.seconds,
        in_flight: FILES_IN_FLIGHT,
        data: Data::Cold,
    };
    let raced = race(
        ours,
        filled.files.clone(),
        &length,
        || mount.cpu_time(stage),
        || Ok(Duration::ZERO),
    )?;
    let row = Row::new(name, raced.ratio, "of local files/s", Some(Bar::AtLeast(BAR)));
    Ok(row.with_note(format!(
        "mount {} (readers, mount and cluster); local {}; half of the {} rounds between {:.2} and {:.2}",
        raced.ours, raced.theirs, raced.rounds, raced.quartiles.0, raced.quartiles.1
    )))
}
