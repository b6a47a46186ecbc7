//! Why an operation on files failed, and the number that POSIX gives it.

use foundation::ByteCount;

use crate::error::{ReadError, TreeError, WriteError};
use crate::extended::{LIST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::format::key::InodeNumber;
use crate::lease::LeaseError;
use crate::name::{NAME_BYTES_MAX, NameError, Shown};

/// Error numbers of Linux (`include/uapi/asm-generic/errno-base.h` and `errno.h`).
pub mod errno {
    /// Operation not permitted.
    pub const EPERM: i32 = 1;
    /// No such file or directory.
    pub const ENOENT: i32 = 2;
    /// Input/output error.
    pub const EIO: i32 = 5;
    /// No such device or address; what `lseek` answers where there is nothing to find.
    pub const ENXIO: i32 = 6;
    /// Out of memory.
    pub const ENOMEM: i32 = 12;
    /// Device or resource busy.
    pub const EBUSY: i32 = 16;
    /// File exists.
    pub const EEXIST: i32 = 17;
    /// A name would lead to another file system, or to a tree of another quota.
    pub const EXDEV: i32 = 18;
    /// Not a directory.
    pub const ENOTDIR: i32 = 20;
    /// Is a directory.
    pub const EISDIR: i32 = 21;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// File too large.
    pub const EFBIG: i32 = 27;
    /// No space left on device.
    pub const ENOSPC: i32 = 28;
    /// Read-only file system.
    pub const EROFS: i32 = 30;
    /// Too many links.
    pub const EMLINK: i32 = 31;
    /// Numerical result out of range.
    pub const ERANGE: i32 = 34;
    /// File name too long.
    pub const ENAMETOOLONG: i32 = 36;
    /// Directory not empty.
    pub const ENOTEMPTY: i32 = 39;
    /// Quota used up.
    pub const EDQUOT: i32 = 122;
    /// No data available; what Linux answers for an attribute that is not there.
    pub const ENODATA: i32 = 61;
}

/// An operation on files failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The target of a rename or removal is a directory, and what is asked for needs something else.
    #[error("{name}: is a directory; remove it as one")]
    IsADirectory {
        /// The name.
        name: Shown,
    },
    /// The target of a rename or removal is not a directory.
    #[error("{name}: is not a directory; remove it as a file")]
    NotADirectory {
        /// The name.
        name: Shown,
    },
    /// Content of something that is not a regular file.
    #[error("inode {0} is not a regular file and has no content to read or write")]
    NotAFile(InodeNumber),
    /// Not a symbolic link.
    #[error("inode {0} is not a symbolic link")]
    NotASymlink(InodeNumber),
    /// A directory would stand below itself.
    #[error("directory {inode} cannot be moved into directory {into}, which stands below it")]
    IntoItself {
        /// What would move.
        inode: InodeNumber,
        /// Where to.
        into: InodeNumber,
    },
    /// Longer than any file may be.
    #[error("a file of {size} bytes was asked for, and the most is {limit}")]
    TooLarge {
        /// Length asked for, in bytes.
        size: u64,
        /// The most, in bytes.
        limit: u64,
    },
    /// A symbolic link's target of another length than it may have.
    #[error("the target of symbolic link \"{name}\" has {length} bytes; the most is 4095")]
    Target {
        /// The link's name.
        name: Shown,
        /// The target's length in bytes.
        length: usize,
    },
    /// An extended attribute's name that cannot be one.
    #[error(
        "an extended attribute's name has {length} bytes; it has 1 to {NAME_BYTES_MAX}, none of them zero"
    )]
    ExtendedName {
        /// Its length in bytes.
        length: usize,
    },
    /// An extended attribute's value that is too long.
    #[error("the value of extended attribute \"{name}\" has {length} bytes; the most is {VALUE_BYTES_MAX}")]
    ExtendedValue {
        /// The attribute's name.
        name: Shown,
        /// The value's length in bytes.
        length: usize,
    },
    /// More names of extended attributes than can be listed.
    #[error(
        "inode {inode} has so many extended attributes that their names would pass {LIST_BYTES_MAX} bytes"
    )]
    ExtendedList {
        /// The inode.
        inode: InodeNumber,
    },
    /// No extended attribute has this name.
    #[error("inode {inode} has no extended attribute \"{name}\"")]
    ExtendedMissing {
        /// The inode.
        inode: InodeNumber,
        /// The name.
        name: Shown,
    },
    /// An extended attribute of this name exists.
    #[error("inode {inode} has an extended attribute \"{name}\" already")]
    ExtendedExists {
        /// The inode.
        inode: InodeNumber,
        /// The name.
        name: Shown,
    },
    /// Content or a hole was looked for where there is none any more.
    #[error("inode {inode} has no content at byte {offset} or behind it")]
    NoData {
        /// The inode.
        inode: InodeNumber,
        /// Where it was looked for, in bytes.
        offset: u64,
    },
    /// A range would be copied over itself.
    #[error("a range of inode {inode} cannot be copied to one of the same file that overlaps it")]
    Overlap {
        /// The inode.
        inode: InodeNumber,
    },
    /// A listing would go on after an entry that is not known any more.
    #[error(
        "directory {directory} has no entry of cookie {cookie}, and it was not removed lately; list it anew"
    )]
    StaleCookie {
        /// The directory.
        directory: InodeNumber,
        /// The cookie.
        cookie: u64,
    },
    /// Too many names of an inode.
    #[error("inode {0} has as many names as there can be")]
    TooManyLinks(InodeNumber),
    /// What was changed since the last commit takes too much memory, and nothing may be committed unasked.
    #[error(
        "what was changed since the last commit takes {bytes} of memory, and {limit} is the most; commit more often"
    )]
    Uncommitted {
        /// Memory of changed index pages.
        bytes: ByteCount,
        /// The most.
        limit: ByteCount,
    },
    /// The writer refused.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<TreeError> for FileError {
    fn from(error: TreeError) -> Self {
        Self::Write(error.into())
    }
}

impl From<NameError> for FileError {
    fn from(error: NameError) -> Self {
        Self::Write(error.into())
    }
}

impl FileError {
    /// The number that POSIX gives it, as Linux counts.
    pub fn errno(&self) -> i32 {
        match self {
            Self::IsADirectory { .. } => errno::EISDIR,
            Self::NotADirectory { .. } => errno::ENOTDIR,
            Self::NotAFile(_) | Self::NotASymlink(_) | Self::IntoItself { .. } => errno::EINVAL,
            Self::TooLarge { .. } => errno::EFBIG,
            Self::Target { .. } => errno::ENAMETOOLONG,
            Self::ExtendedName { .. } => errno::ERANGE,
            Self::ExtendedValue { .. } => errno::ENOSPC,
            Self::ExtendedList { .. } => errno::ENOSPC,
            Self::ExtendedMissing { .. } => errno::ENODATA,
            Self::ExtendedExists { .. } => errno::EEXIST,
            Self::StaleCookie { .. } | Self::Overlap { .. } => errno::EINVAL,
            Self::NoData { .. } => errno::ENXIO,
            Self::TooManyLinks(_) => errno::EMLINK,
            Self::Uncommitted { .. } => errno::ENOMEM,
            Self::Write(error) => write_errno(error),
        }
    }

    /// Whether the volume is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Write(WriteError::NoSpace { .. }))
    }
}

fn write_errno(error: &WriteError) -> i32 {
    match error {
        WriteError::Name(NameError::TooLong { .. } | NameError::Target { .. }) => errno::ENAMETOOLONG,
        WriteError::Name(NameError::Empty) => errno::ENOENT,
        WriteError::Name(_) | WriteError::OutOfRange { .. } | WriteError::SnapshotName { .. } => {
            errno::EINVAL
        }
        WriteError::Exists { .. } | WriteError::SnapshotExists { .. } => errno::EEXIST,
        WriteError::NotFound { .. } | WriteError::NoInode(_) | WriteError::NoSnapshot { .. } => errno::ENOENT,
        WriteError::NotADirectory(_) => errno::ENOTDIR,
        WriteError::LinkToDirectory(_) => errno::EPERM,
        WriteError::NotEmpty { .. } => errno::ENOTEMPTY,
        WriteError::NoSpace { .. } => errno::ENOSPC,
        WriteError::Quota { .. } => errno::EDQUOT,
        WriteError::CrossQuota { .. } => errno::EXDEV,
        WriteError::QuotaNested { .. } | WriteError::QuotaLink { .. } => errno::EBUSY,
        WriteError::TooManyQuotas | WriteError::CloneTooLarge { .. } => errno::ENOSPC,
        WriteError::NoQuota(_) => errno::ENOENT,
        WriteError::Lease(LeaseError::Held { .. } | LeaseError::NotHandedOver { .. }) => errno::EBUSY,
        WriteError::Lease(_) => errno::EROFS,
        WriteError::Buffer(_) => errno::ENOMEM,
        WriteError::Read(ReadError::TooLarge { .. }) => errno::EFBIG,
        full if full.is_disks_full() => errno::ENOSPC,
        WriteError::Io { .. }
        | WriteError::DisksFull
        | WriteError::Broken
        | WriteError::Tree(_)
        | WriteError::Read(_) => errno::EIO,
    }
}
