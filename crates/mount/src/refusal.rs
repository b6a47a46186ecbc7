//! Why a request is refused, as the kernel wants to hear it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use packfs::files::{FileError, errno};
use packfs::{OpenError, ReadError, WriteError};

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// With this number (`errno(3)`).
    Number(i32),
    /// The reader's lease has ended; opened anew, the file system may answer.
    LeaseEnded,
}

/// The inode, or the commit that has it, is gone: what held it refers to nothing (`errno(3)`).
const ESTALE: i32 = 116;
/// That the disks are full is logged so often.
const TOLD_EVERY: Duration = Duration::from_secs(30);

impl Refusal {
    /// What is there cannot be read.
    pub(crate) const IO: Self = Self::Number(errno::EIO);
    pub(crate) const READ_ONLY: Self = Self::Number(errno::EROFS);
    pub(crate) const STALE: Self = Self::Number(ESTALE);
    pub(crate) const NO_SUCH_ENTRY: Self = Self::Number(errno::ENOENT);

    /// The answer. A lease that could not be had again is no fault of whoever asked.
    pub(crate) fn errno(self) -> Errno {
        Errno::from_i32(self.number())
    }

    /// The same as a number.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Number(number) => number,
            Self::LeaseEnded => errno::EIO,
        }
    }
}

/// What is not the caller's doing is logged, with all that is known about it.
fn logged(number: i32, error: &dyn std::error::Error) -> Refusal {
    if number == errno::EIO {
        tracing::error!("a request failed: {error}");
    }
    Refusal::Number(number)
}

/// Whether want of room is to be logged: programs try again, and what is logged must not fill the next disk.
fn is_to_be_told() -> bool {
    static TOLD: Mutex<Option<Instant>> = Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = told.is_none_or(|told| told.elapsed() > TOLD_EVERY);
    if is_due {
        *told = Some(Instant::now());
    }
    is_due
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Write(WriteError::NoInode(_)) => Self::Number(ESTALE),
            // What to do about it fits into no number.
            FileError::Write(error) if error.is_disks_full() => {
                if is_to_be_told() {
                    tracing::error!("requests fail: {error}");
                }
                Self::Number(errno::ENOSPC)
            }
            other => logged(other.errno(), &other),
        }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        let number = match &error {
            ReadError::LeaseEnded => return Self::LeaseEnded,
            ReadError::NotFound { .. } => errno::ENOENT,
            ReadError::NotADirectory { .. } => errno::ENOTDIR,
            ReadError::IsADirectory { .. } => errno::EISDIR,
            ReadError::NotASymlink { .. } | ReadError::NotAFile { .. } => errno::EINVAL,
            ReadError::NoInode(_) => ESTALE,
            ReadError::TooLarge { .. } => errno::EFBIG,
            ReadError::Damaged { .. } | ReadError::Io { .. } | ReadError::Tree { .. } => errno::EIO,
        };
        logged(number, &error)
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Lease(_) => Self::LeaseEnded,
            other => logged(errno::EIO, &other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundation::ByteCount;
    use packfs::InodeNumber;
    use packfs::lease::LeaseError;

    #[test]
    fn errors_get_the_numbers_that_programs_act_upon() {
        let missing = ByteCount(1);
        let numbers = [
            (
                Refusal::from(FileError::from(WriteError::NoSpace { missing })),
                28,
            ),
            (FileError::from(WriteError::NoInode(InodeNumber(7))).into(), 116),
            (FileError::from(WriteError::Broken).into(), 5),
            (FileError::from(WriteError::DisksFull).into(), 28),
            (FileError::from(WriteError::Lease(LeaseError::Ended)).into(), 30),
            (ReadError::NoInode(InodeNumber(7)).into(), 116),
            (OpenError::NotPackFs.into(), 5),
        ];
        for (refusal, number) in numbers {
            assert_eq!(refusal, Refusal::Number(number));
        }
        assert_eq!(Refusal::from(ReadError::LeaseEnded), Refusal::LeaseEnded);
    }
}
