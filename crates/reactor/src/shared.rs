//! Words of memory that processes of one machine share: one writes, the others look.
//!
//! The file has no name. Who may look opens it as `/proc/PROCESS/fd/DESCRIPTOR`, which the kernel allows to the same user
//! and to root (`proc(5)`, `PTRACE_MODE_READ_FSCREDS`), and only inside one process namespace.
//!
//! [`Words::is_alive`] tells whether the writer lives: a robust futex, which the kernel marks at the end of the writer's
//! thread, before it closes the files of the process. So whoever has seen that a lock on a file of the writer's is free
//! knows that from then on everyone who looks here sees its end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::context::{self, Backend};
use crate::sys::{LIFE_WORDS, SharedWords};

/// Where the mark of the writer's life lies.
const LIFE: usize = 0;
/// Words before the user's own.
const HEAD: usize = LIFE + LIFE_WORDS;

/// The writer's side.
pub struct Board {
    words: &'static SharedWords,
}

impl Board {
    /// Words that other processes may look at, all zero, for as long as the calling thread lives. Blocks briefly. The
    /// memory, 8 bytes a word that was ever written in whole pages, is kept until the process ends.
    ///
    /// # Errors
    /// The system's; `Unsupported` in a simulation, whose hosts share nothing.
    pub fn create(name: &str, count: usize) -> io::Result<Self> {
        if context::try_with(|context| matches!(context.backend, Backend::Simulated(_))) == Some(true) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = SharedWords::create(&name, HEAD + count)?.mark_life(LIFE)?;
        Ok(Self { words })
    }

    /// The descriptor's number in this process.
    pub fn descriptor(&self) -> i32 {
        self.words.descriptor().as_raw_fd()
    }

    /// Writes a word. Whoever sees it sees also what was written before, and it is seen by all before anything that this
    /// thread does afterwards.
    ///
    /// # Panics
    /// If there are not so many words.
    pub fn store(&self, at: usize, value: u64) {
        self.words
            .word(HEAD + at)
            .store(value, std::sync::atomic::Ordering::SeqCst);
    }

    /// What the word holds.
    ///
    /// # Panics
    /// If there are not so many words.
    pub fn load(&self, at: usize) -> u64 {
        self.words.load(HEAD + at)
    }
}

/// The side of those who look.
pub struct Words {
    words: SharedWords,
}

impl Words {
    /// Another process's board. Blocks briefly.
    ///
    /// # Errors
    /// The system's: it may not be looked at from here, or is none.
    pub fn open(process: u32, descriptor: i32) -> io::Result<Self> {
        let file: OwnedFd = std::fs::File::open(path_of(process, descriptor))?.into();
        let words = SharedWords::open(file)?;
        if words.count() < HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { words })
    }

    /// Words there are.
    pub fn count(&self) -> usize {
        self.words.count() - HEAD
    }

    /// What a word holds; none if there are not so many words. What is loaded after it is at least as new.
    pub fn load(&self, at: usize) -> Option<u64> {
        (at < self.count()).then(|| self.words.load(HEAD + at))
    }

    /// Whether the thread that writes here has not ended.
    pub fn is_alive(&self) -> bool {
        self.words.is_alive(LIFE)
    }
}

/// The name under which the same user finds an open file of another process.
pub fn path_of(process: u32, descriptor: i32) -> PathBuf {
    format!("/proc/{process}/fd/{descriptor}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_writes_the_other_sees_until_the_writer_ends() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let board = Board::create("test", 4).unwrap();
            board.store(3, 7);
            sender.send(board.descriptor()).unwrap();
            let _ = ended.recv();
        });
        let words = Words::open(std::process::id(), receiver.recv().unwrap()).unwrap();
        assert_eq!(
            (words.count(), words.load(3), words.load(2), words.load(4)),
            (4, Some(7), Some(0), None)
        );
        assert!(words.is_alive());
        drop(end);
        writer.join().unwrap();
        assert!(!words.is_alive(), "the kernel has marked the end of the thread");
        assert_eq!(words.load(3), Some(7), "what was written stays to be seen");
    }

    #[test]
    fn a_file_that_may_shrink_is_no_board() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Words::open(std::process::id(), file.as_raw_fd()).is_err());
        let closed = 1 << 20;
        assert!(Words::open(std::process::id(), closed).is_err());
    }
}
