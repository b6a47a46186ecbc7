//! A file that a process holds locked for as long as it lives, with the process's number in it.
//!
//! The lock (`flock(2)`) belongs to the open file. A child that inherits the descriptor holds it from its first
//! moment to its last, whoever started it and whatever became of that one. So a free lock proves that the process has
//! ended, and a held one that the number in the file is its own: signals never reach a stranger. The child writes it, too: whoever
//! started it may end before it does, or have no room.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often a lock is looked at that shall become free.
const POLL: Duration = Duration::from_millis(20);
/// A look at a lock holds it for a moment; who takes it tries again this often.
const TAKES_MAX: u32 = 10;

/// In a child's environment: its standard input is the lock that it holds as long as it lives.
pub const LIFE_LOCK_VARIABLE: &str = "REDHARE_LIFE_LOCK";

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A process holds it.
    #[error("{} is held by {}", .path.display(), process_text(*.process))]
    Held {
        /// The file.
        path: PathBuf,
        /// The process, if it has written its number.
        process: Option<u32>,
    },
    /// The file.
    #[error("cannot use {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

fn process_text(process: Option<u32>) -> String {
    process.map_or_else(
        || "a process that is just starting".to_owned(),
        |process| format!("process {process}"),
    )
}

/// The process that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number; none in the moment between its start and the number's being written.
    pub process: Option<u32>,
}

/// A lock that is held. It ends with the last descriptor of its open file.
#[derive(Debug)]
pub struct LifeLock {
    file: File,
    path: PathBuf,
}

impl LifeLock {
    /// Takes the lock, making its file. Blocks for at most a tenth of a second.
    ///
    /// # Errors
    /// [`LockError::Held`] if a process has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        for attempt in 1.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
                Err(std::fs::TryLockError::WouldBlock) if attempt < TAKES_MAX => {
                    std::thread::sleep(POLL / 2);
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    return Err(LockError::Held {
                        path: path.to_owned(),
                        process: read_number(&mut file),
                    });
                }
            }
        }
        // The number of the process before is nobody's now.
        file.set_len(0).map_err(failed)?;
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Writes down whose lock it is.
    pub fn record(&mut self, process: u32) -> Result<(), LockError> {
        write_number(&self.file, process).map_err(|source| LockError::File {
            path: self.path.clone(),
            source,
        })
    }

    /// The lock as a child's standard input: so the child holds it, too.
    pub fn to_child(&self) -> Result<Stdio, LockError> {
        let duplicate = self.file.try_clone().map_err(|source| LockError::File {
            path: self.path.clone(),
            source,
        })?;
        Ok(duplicate.into())
    }
}

/// Of the process that holds the lock. Two may write the same at a time, by one open file.
fn write_number(file: &File, process: u32) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(process.to_string().as_bytes(), 0)
}

/// Writes the number of this process into its lock, if it was started with one ([`LifeLock::to_child`], [`LIFE_LOCK_VARIABLE`]).
///
/// # Errors
/// The system's: nobody can end this process by its lock then, if who started it could not write it either.
pub fn record_own() -> std::io::Result<()> {
    if std::env::var_os(LIFE_LOCK_VARIABLE).is_none() {
        return Ok(());
    }
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    write_number(&file, std::process::id())
}

fn read_number(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    // Longer than any number: not ours.
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Who holds the lock; none when nobody does, or there is no such file.
pub fn holder(path: &Path) -> Result<Option<Holder>, LockError> {
    let failed = |source| LockError::File {
        path: path.to_owned(),
        source,
    };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(std::fs::TryLockError::WouldBlock) => Ok(Some(Holder {
            process: read_number(&mut file),
        })),
        Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Sends a signal to the process that holds the lock; false when none does, or its number is not known yet.
pub fn signal(path: &Path, signal: Signal) -> Result<bool, LockError> {
    let Some(Holder {
        process: Some(process),
    }) = holder(path)?
    else {
        return Ok(false);
    };
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(Ok(descriptor)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return Ok(false);
    };
    // Still the holder, now that the descriptor keeps its number from being used again.
    let is_same = holder(path)?.is_some_and(|holder| holder.process == Some(process));
    Ok(is_same && pidfd_send_signal(descriptor, signal).is_ok())
}

/// Ends the process that holds the lock: SIGTERM, after `limit` SIGKILL. Blocks until the lock is free, at most twice
/// `limit`; false if it is still held then.
pub fn end(path: &Path, limit: Duration) -> Result<bool, LockError> {
    for kind in [Signal::TERM, Signal::KILL] {
        let deadline = Instant::now() + limit;
        let mut is_sent = false;
        loop {
            if holder(path)?.is_none() {
                return Ok(true);
            }
            is_sent = is_sent || signal(path, kind)?;
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(holder(path)?.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const LIMIT: Duration = Duration::from_secs(10);

    fn start(path: &Path, script: &str) -> Child {
        let mut lock = LifeLock::take(path).unwrap();
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(lock.to_child().unwrap())
            .spawn()
            .unwrap();
        lock.record(child.id()).unwrap();
        child
    }

    #[test]
    fn a_child_holds_the_lock_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(holder(&path).unwrap(), None);
        let mut child = start(&path, "exec sleep 60");
        let process = Some(child.id());
        assert_eq!(holder(&path).unwrap(), Some(Holder { process }));
        let error = LifeLock::take(&path).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("is held by process {}", child.id())),
            "{error}"
        );
        assert!(end(&path, LIMIT).unwrap());
        assert!(!child.wait().unwrap().success());
        assert_eq!(holder(&path).unwrap(), None);
        LifeLock::take(&path).unwrap();
    }

    #[test]
    fn a_child_whose_parent_ended_at_once_is_known_by_its_lock() {
        if std::env::var_os(LIFE_LOCK_VARIABLE).is_some() {
            // This is the child.
            record_own().unwrap();
            std::thread::sleep(LIMIT);
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mut lock = LifeLock::take(&path).unwrap();
        let own = "lock::tests::a_child_whose_parent_ended_at_once_is_known_by_its_lock";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own])
            .env(LIFE_LOCK_VARIABLE, "")
            .stdin(lock.to_child().unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Some(child.id());
        let deadline = Instant::now() + LIMIT;
        while holder(&path).unwrap() != Some(Holder { process }) {
            assert!(Instant::now() < deadline, "it does not say who it is");
            std::thread::sleep(POLL);
        }
        // Both may say so.
        lock.record(child.id()).unwrap();
        assert_eq!(holder(&path).unwrap(), Some(Holder { process }));
        drop(lock);
        assert!(end(&path, LIMIT).unwrap());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_does_not_listen_is_killed() {
        use std::os::unix::process::ExitStatusExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let ready = directory.path().join("ready");
        let script = format!("trap '' TERM; : > {}; while :; do read x; done", ready.display());
        let mut child = start(&path, &script);
        while !ready.exists() {
            std::thread::yield_now();
        }
        assert!(end(&path, Duration::from_millis(100)).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_number_without_a_lock_gets_no_signal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        // Our own number: a signal would end this test.
        std::fs::write(&path, std::process::id().to_string()).unwrap();
        assert_eq!(holder(&path).unwrap(), None);
        assert!(!signal(&path, Signal::KILL).unwrap());
        assert!(end(&path, LIMIT).unwrap());
        std::fs::write(&path, "not a number").unwrap();
        let _held = LifeLock::take(&path).unwrap();
        assert_eq!(holder(&path).unwrap(), Some(Holder { process: None }));
        assert!(!end(&path, Duration::from_millis(20)).unwrap());
    }
}
