//! Contenders as processes: started on one CPU, their processor time read from the kernel.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` on `cpu` (through `taskset`).
    pub fn start(cpu: usize, command: &[String]) -> io::Result<Self> {
        let child = pinned(cpu, command)
            // Its progress is no news here; what goes wrong is.
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    /// User and system time spent so far by all of its threads.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        cpu_time(self.child.id())
    }

    /// The process' number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A command that runs on one CPU.
pub fn pinned(cpu: usize, command: &[String]) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.arg("-c").arg(cpu.to_string()).args(command);
    pinned
}

/// User and system time of all threads of a live process, to the nanosecond.
pub fn cpu_time(id: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let path = thread?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let spent: u64 = text
            .split(' ')
            .next()
            .and_then(|first| first.parse().ok())
            .unwrap_or(0);
        total += Duration::from_nanos(spent);
    }
    Ok(total)
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(id: u32) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    Ok(kib * 1024)
}

/// Builds a C yardstick beside the build's other output; the compiler's message on failure.
pub fn compile(source: &Path, output: &Path) -> io::Result<()> {
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(output)
        .arg(source)
        .output()?;
    if built.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    Err(io::Error::other(format!(
        "cc could not build {}: {said}",
        source.display()
    )))
}

/// Runs a command to its end: what it printed, and the processor time it took.
pub fn run_timed(command: &mut Command) -> io::Result<(String, Duration)> {
    let before = children_cpu_time()?;
    let output = command.stderr(Stdio::inherit()).output()?;
    let spent = children_cpu_time()?.saturating_sub(before);
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "{command:?} ended with {}",
            output.status
        )));
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), spent))
}

/// Processor time of this process' ended children, in ticks of 10 ms (`/proc/self/stat`, fields 16 and 17).
fn children_cpu_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in brackets and may hold blanks.
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = |index: usize| -> u64 {
        after_name
            .split_whitespace()
            .nth(index)
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    Ok(Duration::from_millis((ticks(13) + ticks(14)) * 10))
}
