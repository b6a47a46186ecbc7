//! The processes of a one-machine cluster: started, started again when they end, and ended without remainder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use agent::lock::{self, LifeLock};
use rustix::process::Signal;

use super::Heard;
use crate::output::Failure;

/// A node ends its target first, which may take it twice its own 5 s.
const NODE_END_LIMIT: Duration = Duration::from_secs(15);
const MASTER_END_LIMIT: Duration = Duration::from_secs(5);
/// What a target gets of which no node engine has taken care.
const TARGET_END_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// A process that ran for so long may fail anew: what keeps one from working shows sooner, and somebody may kill one now and then.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// Pause before a process is started again, doubled with each short life in a row.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// A process that ends so often in a row stays away.
const SHORT_LIVES_MAX: u32 = 5;

/// What to run, and where it leaves its traces.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) arguments: Vec<OsString>,
    /// Of `redhare up`.
    pub(super) data: PathBuf,
}

impl Service {
    pub(super) fn log(&self) -> PathBuf {
        self.data.join(format!("{}.log", self.name))
    }

    fn lock(&self) -> PathBuf {
        lock_of(&self.data, &self.name)
    }

    fn start(&self) -> Result<Child, Failure> {
        use std::os::unix::process::CommandExt;
        let program = std::env::current_exe().map_err(Failure::new)?;
        let log = self.log();
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| Failure::new(format!("cannot open {}: {error}", log.display())))?;
        let mut held = LifeLock::take(&self.lock()).map_err(Failure::new)?;
        // A group of its own: Ctrl-C reaches only us, and we end the others in order.
        let child = Command::new(program)
            .args(&self.arguments)
            // Its own credentials are among the arguments, or there are none.
            .env_remove("REDHARE_CREDENTIALS")
            .args(["--end-with", &std::process::id().to_string()])
            .stdin(held.to_child().map_err(Failure::new)?)
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {}: {error}", self.name)))?;
        held.record(child.id()).map_err(Failure::new)?;
        Ok(child)
    }

    /// The last thing the process said.
    pub(super) fn last_words(&self) -> String {
        let bytes = std::fs::read(self.log()).unwrap_or_default();
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(4096)..]).into_owned();
        let line = tail.lines().rev().find(|line| !line.trim().is_empty());
        line.unwrap_or("it said nothing").trim().to_owned()
    }
}

/// The lock that a master or node engine of `data` holds while it lives.
fn lock_of(data: &Path, name: &str) -> PathBuf {
    data.join(format!("{name}.lock"))
}

enum State {
    Runs { child: Child, since: Instant },
    Pauses { until: Instant },
    Gone,
}

struct Process {
    service: Service,
    state: State,
    short_lives: u32,
}

/// What is worth saying about a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It ended and is started again after the pause.
    Again {
        name: String,
        why: String,
        pause: Duration,
    },
    /// It ended too often.
    GivenUp { name: String, why: String },
}

/// All processes of the cluster, the master first; ended when dropped.
pub(super) struct Processes {
    data: PathBuf,
    processes: Vec<Process>,
}

impl Processes {
    pub(super) fn new(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            processes: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, service: Service) -> Result<(), Failure> {
        let child = service.start()?;
        self.processes.push(Process {
            service,
            state: State::Runs {
                child,
                since: Instant::now(),
            },
            short_lives: 0,
        });
        Ok(())
    }

    /// Looks at every process once, and starts those again whose pause is over.
    pub(super) fn look(&mut self) -> Vec<News> {
        self.processes.iter_mut().filter_map(Process::look).collect()
    }

    /// When the next process is to be started again whose pause runs; none does unless one has ended.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let until = |process: &Process| match process.state {
            State::Pauses { until } => Some(until),
            State::Gone | State::Runs { .. } => None,
        };
        self.processes.iter().filter_map(until).min()
    }

    /// Ends everything: the nodes, each within a limit of its own, then the master, then whatever target is left. A
    /// signal to stop meanwhile kills instead of waiting.
    pub(super) fn end(&mut self, heard: Option<&Receiver<Heard>>) -> Result<(), Failure> {
        let mut master = self.processes.split_off(0);
        let mut nodes = master.split_off(master.len().min(1));
        let mut hurried = false;
        for (group, limit) in [(&mut nodes, NODE_END_LIMIT), (&mut master, MASTER_END_LIMIT)] {
            let mut children: Vec<(String, Child, PathBuf)> = Vec::new();
            for process in group.drain(..) {
                if let State::Runs { child, .. } = process.state {
                    let lock = process.service.lock();
                    tell(&lock, Signal::TERM);
                    children.push((process.service.name, child, lock));
                }
            }
            let deadline = Instant::now() + limit;
            let mut is_late = false;
            while !children.is_empty() {
                children.retain_mut(|(_, child, _)| matches!(child.try_wait(), Ok(None)));
                hurried |= heard.is_some_and(|heard| heard.try_iter().any(|signal| signal == Heard::Stop));
                if (hurried || Instant::now() >= deadline) && !std::mem::replace(&mut is_late, true) {
                    for (name, child, _) in &mut children {
                        eprintln!("{name} is killed");
                        // Only a process that has ended cannot be killed.
                        drop(child.kill());
                    }
                }
                std::thread::sleep(POLL);
            }
        }
        self.end_targets(if hurried { Duration::ZERO } else { TARGET_END_LIMIT })
    }

    /// The last step: no target outlives `redhare up`, whatever became of its node engine.
    fn end_targets(&self, limit: Duration) -> Result<(), Failure> {
        let locks: Vec<PathBuf> = targets(&self.data).into_iter().map(|(_, lock)| lock).collect();
        let ending: Vec<_> = locks
            .into_iter()
            .map(|lock| {
                std::thread::spawn(move || {
                    let kind = if limit.is_zero() {
                        Signal::KILL
                    } else {
                        Signal::TERM
                    };
                    tell(&lock, kind);
                    let ended = lock::end(&lock, limit.max(Duration::from_secs(1)));
                    (lock, ended)
                })
            })
            .collect();
        let mut left = Vec::new();
        for thread in ending {
            match thread.join() {
                Ok((_, Ok(true))) => {}
                Ok((lock, Ok(false))) => left.push(describe(&lock)),
                Ok((_, Err(error))) => left.push(error.to_string()),
                Err(_) => left.push("a thread that ended a target panicked".to_owned()),
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "not everything has ended: {}; the kernel still works for it (\"dmesg\" may say on which disk)",
            left.join(", ")
        )))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Err(error) = self.end(None) {
            eprintln!("redhare: {error}");
        }
    }
}

impl Process {
    fn look(&mut self) -> Option<News> {
        match &mut self.state {
            State::Gone => None,
            State::Pauses { until } if Instant::now() < *until => None,
            State::Pauses { .. } => match self.service.start() {
                Ok(child) => {
                    let since = Instant::now();
                    self.state = State::Runs { child, since };
                    None
                }
                Err(error) => Some(self.ended(error.to_string(), Duration::ZERO)),
            },
            State::Runs { child, since } => {
                let lived = since.elapsed();
                match child.try_wait() {
                    Ok(None) => None,
                    Ok(Some(status)) => {
                        let why = describe_end(&self.service, status);
                        Some(self.ended(why, lived))
                    }
                    Err(error) => Some(self.ended(error.to_string(), lived)),
                }
            }
        }
    }

    fn ended(&mut self, why: String, lived: Duration) -> News {
        let name = self.service.name.clone();
        self.short_lives = if lived >= LONG_LIFE {
            1
        } else {
            self.short_lives + 1
        };
        if self.short_lives >= SHORT_LIVES_MAX {
            self.state = State::Gone;
            return News::GivenUp { name, why };
        }
        let pause = PAUSE_FIRST * (1 << (self.short_lives - 1));
        self.state = State::Pauses {
            until: Instant::now() + pause,
        };
        News::Again { name, why, pause }
    }
}

fn describe_end(service: &Service, status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(signal) => format!("it was ended by signal {signal}"),
        None => format!("{status}: {}", service.last_words()),
    }
}

fn tell(lock: &Path, signal: Signal) {
    if let Err(error) = lock::signal(lock, signal) {
        tracing::warn!(%error, "a process could not be told to end");
    }
}

/// The target locks of all nodes that ever were in `data`, with the nodes' names.
fn targets(data: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        let lock = agent::target_lock(&entry.path());
        if lock.exists() {
            found.push((entry.file_name().to_string_lossy().into_owned(), lock));
        }
    }
    found.sort();
    found
}

fn describe(lock: &Path) -> String {
    let process = lock::holder(lock)
        .ok()
        .flatten()
        .and_then(|holder| holder.process);
    let process = process.map_or("a process".to_owned(), |process| format!("process {process}"));
    format!("{process} ({})", lock.display())
}

/// A process of an earlier `redhare up` that still runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leftover {
    pub(super) name: String,
    pub(super) process: Option<u32>,
}

/// Masters and node engines that still run on `data`.
pub(super) fn leftovers(data: &Path) -> Result<Vec<Leftover>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".lock") else {
            continue;
        };
        if let Some(holder) = lock::holder(&entry.path()).map_err(Failure::new)? {
            found.push(Leftover {
                name: name.to_owned(),
                process: holder.process,
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Whether the target of the node in `directory` runs.
pub(super) fn has_target(directory: &Path) -> bool {
    lock::holder(&agent::target_lock(directory)).is_ok_and(|holder| holder.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        let service = Service {
            name: "node1".to_owned(),
            arguments: Vec::new(),
            data: PathBuf::new(),
        };
        Process {
            service,
            state: State::Gone,
            short_lives: 0,
        }
    }

    #[test]
    fn short_lives_in_a_row_pause_longer_and_end_the_attempts() {
        let mut process = process();
        let mut pauses = Vec::new();
        for _ in 0..4 {
            match process.ended("why".to_owned(), Duration::from_secs(1)) {
                News::Again { pause, .. } => pauses.push(pause.as_millis()),
                News::GivenUp { .. } => panic!("given up too early"),
            }
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000]);
        assert!(matches!(
            process.ended("why".to_owned(), Duration::from_secs(1)),
            News::GivenUp { .. }
        ));
    }

    #[test]
    fn a_long_life_begins_the_count_anew() {
        let mut process = process();
        for _ in 0..20 {
            let news = process.ended("why".to_owned(), LONG_LIFE);
            assert!(matches!(news, News::Again { pause, .. } if pause == PAUSE_FIRST));
        }
    }

    #[test]
    fn leftovers_are_named_with_their_numbers() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(leftovers(directory.path()).unwrap(), Vec::new());
        std::fs::write(directory.path().join("node2.lock"), "77").unwrap();
        let mut held = LifeLock::take(&lock_of(directory.path(), "master")).unwrap();
        held.record(41).unwrap();
        let expected = Leftover {
            name: "master".to_owned(),
            process: Some(41),
        };
        assert_eq!(leftovers(directory.path()).unwrap(), [expected]);
    }
}
