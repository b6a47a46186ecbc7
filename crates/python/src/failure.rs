//! What went wrong, as Python's `OSError` and its kinds.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bdev::{IoError, OpenError as DeviceError};
use client::SessionError;
use packfs::files::FileError;
use packfs::lease::LeaseError;
use packfs::{OpenError, ReadError};
use proto::client::{ClientError, Code};
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// A number for `errno`, a sentence, and the path where one is known. Python makes `FileNotFoundError`, `PermissionError`
/// and the like of the number.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    errno: i32,
    text: String,
    path: Option<Vec<u8>>,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl std::fmt::Display) -> Self {
        Self {
            errno,
            text: text.to_string(),
            path: None,
        }
    }

    /// The same about a path.
    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        self.path = Some(path.to_vec());
        self
    }

    /// The same, naming the data set first.
    pub(crate) fn of(mut self, name: &str) -> Self {
        self.text = format!("{name}: {}", self.text);
        self
    }

    /// The handle's thread is gone.
    pub(crate) fn closed() -> Self {
        Self::new(libc::EBADF, "the data set was closed; open it again")
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let Failure { errno, text, path } = failure;
        match path {
            Some(path) => PyOSError::new_err((errno, text, OsString::from_vec(path))),
            None => PyOSError::new_err((errno, text)),
        }
    }
}

fn of_io(error: IoError) -> i32 {
    match error {
        IoError::TimedOut => libc::ETIMEDOUT,
        IoError::Exhausted => libc::ENOMEM,
        IoError::NoSpace => libc::ENOSPC,
        IoError::Os(number) => number,
        _ => libc::EIO,
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let (errno, next) = match &error {
            ReadError::NotFound { .. } => (libc::ENOENT, "; list its directory to see what there is"),
            ReadError::NoInode(_) => (libc::ENOENT, "; look its path up again"),
            ReadError::NotADirectory { .. } => (libc::ENOTDIR, "; stat it to see what it is"),
            ReadError::IsADirectory { .. } => (libc::EISDIR, ""),
            ReadError::NotAFile { .. } => (libc::EINVAL, ""),
            ReadError::NotASymlink { .. } => (libc::EINVAL, "; read it instead"),
            ReadError::Damaged { .. } | ReadError::Tree { .. } => (libc::EIO, ""),
            ReadError::Io { source, .. } => (of_io(*source), ""),
            ReadError::TooLarge { .. } => (libc::EFBIG, ""),
            ReadError::LeaseEnded => (libc::ESTALE, ""),
        };
        Self::new(errno, format!("{error}{next}"))
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let errno = match &error {
            LeaseError::Unreachable { .. } => libc::ECONNREFUSED,
            LeaseError::Held { .. } | LeaseError::NotHandedOver { .. } => libc::EBUSY,
            _ => libc::ESTALE,
        };
        Self::new(errno, error)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::new(error.errno(), error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let errno = match error {
            OpenError::Lease(lease) => return lease.into(),
            OpenError::Io(io) | OpenError::SuperblockAway { source: io, .. } => of_io(io),
            OpenError::SuperblockCounts { .. } => of_io(IoError::Unavailable),
            OpenError::Damaged { .. } | OpenError::Tree(_) => libc::EIO,
            OpenError::Reformatted => libc::ESTALE,
            OpenError::NoSnapshot { .. } => libc::ENOENT,
            OpenError::NotPackFs | OpenError::Foreign { .. } => libc::EMEDIUMTYPE,
            OpenError::TooSmall { .. } => libc::ENOSPC,
            OpenError::Newer { .. } | OpenError::Features { .. } => libc::EOPNOTSUPP,
            OpenError::NotEmpty { .. } | OpenError::Parameters { .. } => libc::EINVAL,
        };
        Self::new(errno, error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match &error {
            DeviceError::Os { path, source } => {
                let errno = source.raw_os_error().unwrap_or(libc::EIO);
                let next = match errno {
                    libc::ENOENT => {
                        "; look for its right name, or make it with \"redhare fs format file:PATH --size 64GiB\""
                    }
                    libc::EACCES | libc::EPERM => "; let this user read it",
                    _ => "; name a PackFS image or a block device",
                };
                Self::new(errno, format!("{error}{next}")).at(path.as_bytes())
            }
            DeviceError::Unusable { path, .. } => Self::new(libc::EBUSY, &error).at(path.as_bytes()),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let errno = match &error {
            SessionError::Masters(masters) => match masters {
                ClientError::Address { .. } => libc::EINVAL,
                ClientError::Unreachable { .. } => libc::ECONNREFUSED,
                ClientError::Untrusted { .. } | ClientError::Credentials { .. } => libc::EACCES,
                ClientError::Outlived { .. } | ClientError::Foreign { .. } => libc::ESTALE,
                ClientError::Refused { code, .. } => match code {
                    Code::NotFound => libc::ENOENT,
                    Code::PermissionDenied | Code::Unauthenticated => libc::EACCES,
                    Code::InvalidArgument => libc::EINVAL,
                    Code::DeadlineExceeded => libc::ETIMEDOUT,
                    Code::Unavailable => libc::ECONNREFUSED,
                    _ => libc::EIO,
                },
            },
            SessionError::NotReady { .. } => libc::EBUSY,
            SessionError::Map { .. } => libc::EPROTO,
            SessionError::Foreign { .. } => libc::ESTALE,
            SessionError::System(source) => source.raw_os_error().unwrap_or(libc::EIO),
        };
        Self::new(errno, error)
    }
}
