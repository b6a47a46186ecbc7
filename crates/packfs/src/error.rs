//! Why something failed, by the kind of work that was done.

use bdev::IoError;
use foundation::ByteCount;

use crate::format::CodecError;
use crate::format::key::InodeNumber;
use crate::format::page::PageError;
use crate::format::superblock::SuperblockError;
use crate::lease::LeaseError;
use crate::name::{NameError, Shown};

/// A page of the tree or of the space record could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The device did not give it.
    #[error("page {page} of the index could not be read: {source}; try again, or run fs verify")]
    Io {
        /// The page's number (its byte address divided by 4096).
        page: u64,
        /// The device's answer.
        source: IoError,
    },
    /// No copy holds the bytes that were written.
    #[error(
        "page {page} of the index is damaged in every copy: {source}; run fs verify to list what it held"
    )]
    Damaged {
        /// The page's number.
        page: u64,
        /// What is wrong with the last copy that was read.
        source: PageError,
    },
    /// The page is whole, but does not belong where a pointer leads to it, or a value in it is malformed.
    #[error("the index contradicts itself at page {page}: {source}; run fs verify")]
    Inconsistent {
        /// The page's number; 0 if it is not known.
        page: u64,
        /// What is wrong.
        source: CodecError,
    },
    /// No buffer could be had.
    #[error("no buffer for page {page} of the index: {source}")]
    Buffer {
        /// The page's number.
        page: u64,
        /// The pool's answer.
        source: reactor::buffer::AllocateError,
    },
    /// It was read wrong by a writer whose lease has ended: the next one has used its place again.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// A volume could not be formatted or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither superblock is one.
    #[error("the volume holds no PackFS; format it first (redhare fs format VOLUME)")]
    NotPackFs,
    /// Format would overwrite something.
    #[error("the volume is not empty: {what}; give --force to overwrite it")]
    NotEmpty {
        /// What was found.
        what: &'static str,
    },
    /// Made by a newer program.
    #[error(
        "the volume has PackFS format version {found}, and this program knows up to {known}; update the program"
    )]
    Newer {
        /// The version found.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// Made by a newer program, with something that this one does not know.
    #[error(
        "the volume's PackFS has the features {features:#x}, which this program does not all know; update the program"
    )]
    Features {
        /// The features' bits.
        features: u32,
    },
    /// No snapshot has this name.
    #[error(
        "there is no snapshot \"{name}\"; name one that there is, or read the newest state without a name"
    )]
    NoSnapshot {
        /// The name.
        name: Shown,
    },
    /// Both superblocks are damaged.
    #[error(
        "both superblocks of the volume are damaged (first: {first}; second: {second}), and nothing else says where the \
         file system begins; restore the volume from another copy"
    )]
    Damaged {
        /// What is wrong with the first.
        first: SuperblockError,
        /// What is wrong with the second.
        second: SuperblockError,
    },
    /// Belongs to another cluster or volume.
    #[error("the file system belongs to {what} {found}, and {expected} was opened; open it where it belongs")]
    Foreign {
        /// "cluster" or "volume".
        what: &'static str,
        /// What the superblock names.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// It is not the file system that was opened.
    #[error("the volume was formatted anew since it was opened; open it again")]
    Reformatted,
    /// The volume shrank, or is too small.
    #[error("the volume has {found}, and {needed} are needed; resize it")]
    TooSmall {
        /// Its size.
        found: ByteCount,
        /// The size needed.
        needed: ByteCount,
    },
    /// Parameters that cannot work.
    #[error("these format parameters cannot work together: {parameters}; see docs/formats/packfs.md")]
    Parameters {
        /// The parameters.
        parameters: String,
    },
    /// A superblock is damaged where it could be read, and a copy that may have it whole cannot be reached: a writer would write over what that
    /// may lead to.
    #[error(
        "the superblock at byte {address} is damaged in the copies that answered, and one that did not may have it, as the newest commit: \
         {source}; wait until all nodes answer (see redhare status), or open it from a host that reaches them all"
    )]
    SuperblockAway {
        /// Where it stands.
        address: u64,
        /// The answer.
        source: IoError,
    },
    /// A superblock that was damaged when it was read first can be read, and counts.
    #[error(
        "the superblock at byte {address} could not be read a moment ago, and now it can, and leads to the newest commit; open it again"
    )]
    SuperblockCounts {
        /// Where it stands.
        address: u64,
    },
    /// The device failed.
    #[error("the volume's first blocks could not be read or written: {0}")]
    Io(#[from] IoError),
    /// The tree or the space record cannot be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// A read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing has this name.
    #[error("{path}: there is no such file or directory")]
    NotFound {
        /// The path.
        path: Shown,
    },
    /// A name along the path is not a directory.
    #[error("{path}: a name before the last is not a directory")]
    NotADirectory {
        /// The path.
        path: Shown,
    },
    /// The content of something that has none was asked for.
    #[error("{path}: is a directory; list it instead")]
    IsADirectory {
        /// The path.
        path: Shown,
    },
    /// The content of a pipe, socket or device was asked for.
    #[error("{path}: is a pipe, socket or device, which has no content here; open it on a mount")]
    NotAFile {
        /// The path.
        path: Shown,
    },
    /// Not a symbolic link.
    #[error("{path}: is not a symbolic link")]
    NotASymlink {
        /// The path.
        path: Shown,
    },
    /// No inode has this number.
    #[error("there is no inode {0}")]
    NoInode(InodeNumber),
    /// No copy holds the bytes that were written.
    #[error(
        "{path}: the {length} bytes at block {block} of the volume are damaged in every copy; restore the file"
    )]
    Damaged {
        /// The file's path, or its inode where only that is known.
        path: Shown,
        /// 4 KiB block of the volume where the extent begins.
        block: u64,
        /// Length of the extent in bytes.
        length: u32,
    },
    /// The device did not give the bytes.
    #[error("{path}: block {block} of the volume could not be read: {source}; try again")]
    Io {
        /// The file's path, or its inode.
        path: Shown,
        /// 4 KiB block of the volume.
        block: u64,
        /// The device's answer.
        source: IoError,
    },
    /// The index is damaged on the way.
    #[error("{path}: {source}")]
    Tree {
        /// The path.
        path: Shown,
        /// What is wrong.
        source: TreeError,
    },
    /// More than one batch holds.
    #[error(
        "{path}: {size} bytes go past the {limit} bytes of one batch; read it in parts or raise the limit"
    )]
    TooLarge {
        /// The path.
        path: Shown,
        /// The file's length in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The lease ended before the bytes arrived, so they may be another file's.
    #[error("the reader's lease ended before the bytes arrived; open the file system again")]
    LeaseEnded,
}

/// A change failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// A tree has as much as its quota lets it.
    #[error(
        "the quota of directory {directory} is used up: {used} of {limit} {what}; remove something below it, or raise it"
    )]
    Quota {
        /// The directory that the quota was set on.
        directory: InodeNumber,
        /// Bytes or files.
        what: &'static str,
        /// How many there are.
        used: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A name would lead from one tree with a quota to another, or out of it.
    #[error(
        "what is below directory {from} and what is below directory {to} have not the same quota; copy it instead"
    )]
    CrossQuota {
        /// Where the inode is.
        from: InodeNumber,
        /// Where it would get a name.
        to: InodeNumber,
    },
    /// A tree with a quota would stand in another.
    #[error(
        "directory {directory} cannot have a quota: directory {other} has one, and one of them stands below the other"
    )]
    QuotaNested {
        /// Where it was to be set.
        directory: InodeNumber,
        /// Which has one.
        other: InodeNumber,
    },
    /// An inode has names inside and outside of what would be a tree with a quota.
    #[error(
        "directory {directory} cannot have a quota: inode {inode}, which is below it, has a name elsewhere too; remove one"
    )]
    QuotaLink {
        /// Where it was to be set.
        directory: InodeNumber,
        /// The inode.
        inode: InodeNumber,
    },
    /// As many quotas as there can be.
    #[error(
        "the volume has {} quotas, and that is the most; clear one",
        crate::writer::QUOTAS_MAX
    )]
    TooManyQuotas,
    /// A clone would have too much index to be made at once.
    #[error(
        "a clone of {inodes} files and directories would add {bytes} of index at once, and {limit} is the most; clone what is below it \
         one by one"
    )]
    CloneTooLarge {
        /// Inodes.
        inodes: u64,
        /// Index.
        bytes: ByteCount,
        /// The most.
        limit: ByteCount,
    },
    /// No quota was set on a directory.
    #[error("directory {0} has no quota")]
    NoQuota(InodeNumber),
    /// The name cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is taken.
    #[error("{name}: exists already in directory {directory}")]
    Exists {
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Shown,
    },
    /// Nothing has this name.
    #[error("{name}: there is no such entry in directory {directory}")]
    NotFound {
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Shown,
    },
    /// No inode has this number.
    #[error("there is no inode {0}")]
    NoInode(InodeNumber),
    /// An entry would go into something that is not a directory.
    #[error("inode {0} is not a directory")]
    NotADirectory(InodeNumber),
    /// Directories have one name.
    #[error("inode {0} is a directory, and directories have one name only")]
    LinkToDirectory(InodeNumber),
    /// Only empty directories are removed.
    #[error("{name}: the directory is not empty; remove its entries first")]
    NotEmpty {
        /// The name.
        name: Shown,
    },
    /// Times, modes or links out of range.
    #[error("{what} of inode {inode} is out of range")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The inode.
        inode: InodeNumber,
    },
    /// A snapshot's name that cannot be one.
    #[error("\"{name}\" cannot name a snapshot: it has 1 to 128 bytes, none of them zero or one of /@:")]
    SnapshotName {
        /// The name.
        name: Shown,
    },
    /// A snapshot of this name exists.
    #[error("there is a snapshot \"{name}\" already; choose another name, or delete that one first")]
    SnapshotExists {
        /// The name.
        name: Shown,
    },
    /// No snapshot has this name.
    #[error(
        "there is no snapshot \"{name}\"; name one that there is, or read the newest state without a name"
    )]
    NoSnapshot {
        /// The name.
        name: Shown,
    },
    /// The volume is full.
    #[error(
        "the volume is full: {missing} more are needed; remove files or resize the volume. What was committed stays readable"
    )]
    NoSpace {
        /// Bytes missing for what was asked for.
        missing: ByteCount,
    },
    /// The device refused a write.
    #[error("writing block {block} of the volume failed: {source}; what was committed before stays readable")]
    Io {
        /// 4 KiB block of the volume.
        block: u64,
        /// The device's answer.
        source: IoError,
    },
    /// An earlier failure left changes that cannot be committed.
    #[error("an earlier write failed, so nothing more can be committed; open the file system again")]
    Broken,
    /// What holds the volume has no room: all copies' disks, or a file's file system. What was to be committed waits, and nothing can be
    /// changed before a commit has succeeded.
    #[error(
        "there is no room where the volume lies, so nothing can be committed before there is some; make it (in a cluster delete volumes or \
         snapshots, or add disks; around a file on its file system)"
    )]
    DisksFull,
    /// No buffer could be had.
    #[error("no buffer for data: {0}")]
    Buffer(#[from] reactor::buffer::AllocateError),
    /// The index cannot be read.
    #[error(transparent)]
    Tree(TreeError),
    /// Content that the change needs cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The writer's lease has ended or was taken over.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl WriteError {
    /// Whether there was no room where the volume lies, though the volume itself may have some.
    pub fn is_disks_full(&self) -> bool {
        let full = IoError::NoSpace;
        matches!(self, Self::DisksFull) || matches!(self, Self::Io { source, .. } if *source == full)
    }
}

impl From<TreeError> for WriteError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Lease(error) => Self::Lease(error),
            other => Self::Tree(other),
        }
    }
}

/// Whether an answer says that the bytes are gone, or were never there.
fn is_lost(source: IoError) -> bool {
    matches!(source, IoError::Media | IoError::Checksum | IoError::OutOfRange)
}

/// Whether an answer is of the way to the bytes, or of now: a later attempt may have them.
pub(crate) fn is_of_now(source: IoError) -> bool {
    matches!(
        source,
        IoError::Unavailable | IoError::TimedOut | IoError::Aborted | IoError::Exhausted
    )
}

impl TreeError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_of_now(*source),
            Self::Buffer { .. } => true,
            _ => false,
        }
    }

    /// Whether the index is damaged, and not merely out of reach.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Inconsistent { .. } => true,
            Self::Io { source, .. } => is_lost(*source),
            Self::Buffer { .. } | Self::Lease(_) => false,
        }
    }
}

impl ReadError {
    /// Whether the bytes are damaged, and not merely out of reach.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Io { source, .. } => is_lost(*source),
            Self::Tree { source, .. } => source.is_damage(),
            _ => false,
        }
    }
}

impl WriteError {
    /// Whether the same may be done later: what it needs could not be reached, or there was no room or memory for it.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::DisksFull | Self::Buffer(_) => true,
            Self::Io { source, .. } => is_of_now(*source),
            Self::Tree(error) => error.may_pass(),
            Self::Read(ReadError::Io { source, .. }) => is_of_now(*source),
            Self::Read(ReadError::Tree { source, .. }) => source.may_pass(),
            _ => false,
        }
    }

    /// Whether content that the change needs is damaged, and not merely out of reach.
    pub(crate) fn is_damaged_content(&self) -> bool {
        matches!(self, Self::Read(error) if error.is_damage())
    }
}
