//! A disk of a node: what it is described by, how it is opened, and why it cannot be.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::Channel;
use bdev::file::{FileDevice, FileOptions};
use blobstore::{Blobstore, FormatOptions};
use foundation::ByteCount;
use reactor::sync::{Notify, Semaphore};
use rustix::fs::FileType;
use volume::{ChunkId, ClusterId};

use super::BLOCK_BYTES;
use super::journal::Journal;
use crate::node::health::{DiskCare, Guard, LeftOut};

/// How long what hosts have first written somewhere may take until it outlives the end of the target's process. What they
/// flush does at once.
const COMMIT_WITHIN: Duration = Duration::from_secs(1);

/// A disk of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// A file or a block device.
    pub path: PathBuf,
    /// Makes the file with this size if it is missing.
    pub size: Option<ByteCount>,
    /// Identity that a new disk gets.
    pub new_uuid: u128,
    /// Overwrite foreign contents.
    pub force: bool,
    /// Whether the copies on it are used before the masters have been asked.
    pub trust: Trust,
}

/// Whether the copies on a disk are used as they are. On one that was away, copies may be old: the masters may have given their places to
/// another disk of the node meanwhile (`docs/decisions/0129`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// They are.
    #[default]
    Always,
    /// They are if the disk has one of these identities; else each once the masters have said that its place is there.
    Among(Vec<u128>),
}

impl Trust {
    /// Whether the copies on the disk of this identity are used.
    pub(super) fn covers(&self, uuid: u128) -> bool {
        match self {
            Self::Always => true,
            Self::Among(trusted) => trusted.contains(&uuid),
        }
    }
}

/// Why a disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file or device.
    #[error(transparent)]
    Device(#[from] bdev::OpenError),
    /// Its contents.
    #[error("{path}: {source}")]
    Open {
        /// The disk.
        path: String,
        /// What is wrong.
        source: blobstore::OpenError,
    },
    /// It holds something else.
    #[error(
        "{path} holds something that is not Redhare's (first bytes that are not zero in page {page}): check that it is the \
         right disk; to overwrite it, start its node once with --force"
    )]
    Foreign {
        /// The disk.
        path: String,
        /// The first page of 4 KiB that is not zero.
        page: u64,
    },
    /// It could not be made ready.
    #[error("{path}: {source}")]
    Format {
        /// The disk.
        path: String,
        /// What is wrong.
        source: blobstore::FormatError,
    },
    /// It belongs to others.
    #[error(
        "{path} belongs to cluster {found:032x}, this node to {expected:032x}: name the right disk; if nothing on it is needed, wipe it first (\
         \"blkdiscard\", or remove the file)"
    )]
    ForeignCluster {
        /// The disk.
        path: String,
        /// The cluster that its superblock names.
        found: u128,
        /// Ours.
        expected: u128,
    },
    /// A copy's record could not be read.
    #[error(
        "{path}: the record of blob {blob} cannot be read: {why}; its chunk has to be copied again from another node"
    )]
    Record {
        /// The disk.
        path: String,
        /// The blob.
        blob: u64,
        /// What is wrong.
        why: String,
    },
}

impl DiskError {
    /// Whether the disk is at fault, rather than whoever named it or something that will pass: another life of the node may hold
    /// it still.
    pub(super) fn is_of_a_broken_disk(&self) -> bool {
        match self {
            Self::Device(bdev::OpenError::Os { source, .. }) => {
                let broken = [
                    rustix::io::Errno::IO,
                    rustix::io::Errno::NXIO,
                    rustix::io::Errno::NODEV,
                ];
                source
                    .raw_os_error()
                    .is_some_and(|raw| broken.iter().any(|errno| errno.raw_os_error() == raw))
            }
            Self::Open { source, .. } => matches!(
                source,
                blobstore::OpenError::Superblocks(_)
                    | blobstore::OpenError::Table { .. }
                    | blobstore::OpenError::Io(_)
            ),
            Self::Record { .. } => true,
            Self::Device(bdev::OpenError::Unusable { .. })
            | Self::Foreign { .. }
            | Self::Format { .. }
            | Self::ForeignCluster { .. } => false,
        }
    }
}

/// A disk that is open.
pub(in crate::node) struct Disk {
    pub(in crate::node) uuid: u128,
    pub(in crate::node) path: PathBuf,
    pub(in crate::node) store: Blobstore,
    /// Copies whose records have changed, each once.
    pub(super) noted: RefCell<Vec<ChunkId>>,
    pub(super) changed: Notify,
    /// One at a time makes records durable.
    pub(super) persisting: Rc<Semaphore>,
    /// How often copies are being deleted.
    pub(super) deleting: Cell<usize>,
    /// Copies have been deleted, and that is not known to be durable.
    pub(super) has_unsynced: Cell<bool>,
    /// None of a disk that is too small or too full for one.
    pub(super) journal: Option<Journal>,
    /// Its copies are used before the masters have been asked.
    pub(super) is_trusted: bool,
    /// Holds the lock on the file.
    pub(super) device: Arc<FileDevice>,
    pub(in crate::node) guard: Guard,
}

impl Disk {
    /// The journal, as long as it is of use.
    pub(super) fn journal_in_use(&self) -> Option<&Journal> {
        self.journal.as_ref().filter(|journal| journal.is_in_use())
    }

    /// Clusters that are not promised to anybody: of a disk on which less is free, nothing more is given to hosts once it may
    /// not be enough for all that is promised. What has been let through by then, repairs and copies on their way back live on it, and of
    /// a disk that is not promised more than once heads and checksums of copies.
    fn reserve(&self) -> u32 {
        (self.store.clusters().0 / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Bytes that masters may promise, and those of them that are free.
    pub(super) fn promised_bytes(&self) -> (u64, u64) {
        let described = self.store.describe();
        let bytes =
            |clusters: u32| u64::from(clusters.saturating_sub(self.reserve())) * described.cluster_size.0;
        (bytes(described.clusters), bytes(described.free_clusters))
    }

    /// Whether it is worth a closer look whether little room is left.
    pub(in crate::node) fn may_be_short(&self) -> bool {
        self.store.clusters().1 < self.reserve() || !self.store.has_room()
    }

    /// Whether little room is left, and it may not be enough for all that the copies here may be asked to hold.
    pub(in crate::node) fn is_short(&self) -> bool {
        let (_, free) = self.store.clusters();
        !self.has_room() || free < self.reserve() && self.store.may_need_more_than(free.into())
    }

    /// Whether there may be room for more: its store has some, and so has the file system, if it is a file.
    pub(in crate::node) fn has_room(&self) -> bool {
        self.store.has_room() && self.device.descriptor().is_none_or(file_system_has_room)
    }
}

/// The share of a disk's clusters that is kept back, and its bounds.
const RESERVE_SHARE: u32 = 64;
const RESERVE_MIN: u32 = 2;
const RESERVE_MAX: u32 = 1024;

/// Whether the file system of a file has room for some clusters of a store; true if it is no file.
fn file_system_has_room(file: BorrowedFd<'_>) -> bool {
    const ENOUGH_BYTES: u64 = 4 << 20;
    let is_file = rustix::fs::fstat(file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_file());
    !is_file
        || rustix::fs::fstatvfs(file)
            .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= ENOUGH_BYTES)
}

/// Opens a disk. Says which one is left out, if its requests stand and no stage of a reset helps.
pub(super) async fn open(
    cluster: ClusterId,
    disk: &DiskConfig,
    care: Option<&DiskCare>,
) -> Result<Result<Disk, LeftOut>, DiskError> {
    let options = FileOptions {
        create: disk.size,
        block_bytes: BLOCK_BYTES as u32,
        direct: true,
        read_only: false,
    };
    let device = Arc::new(FileDevice::open(&disk.path, options)?);
    if !device.is_direct() {
        tracing::warn!(
            "the file system of {} has no direct I/O: the disk goes through the page cache, which costs memory and copies; \
             ext4 and xfs have it",
            disk.path.display()
        );
    }
    let guard = Guard::over(&disk.path, &device, care)?;
    let opened = guard.unless_it_stands(open_store(cluster, disk, guard.channel.clone()));
    let Some(opened) = opened.await else {
        return Ok(Err(guard.left_out(&disk.path)));
    };
    let (store, uuid) = opened?;
    store.commit_within(COMMIT_WITHIN);
    Ok(Ok(Disk {
        uuid,
        path: disk.path.clone(),
        store,
        noted: RefCell::default(),
        changed: Notify::new(),
        persisting: Semaphore::new(1),
        deleting: Cell::new(0),
        has_unsynced: Cell::new(false),
        journal: None,
        is_trusted: true,
        device,
        guard,
    }))
}

/// What is on a disk, made first if nothing is, and its identity.
async fn open_store(
    cluster: ClusterId,
    disk: &DiskConfig,
    channel: Rc<dyn Channel>,
) -> Result<(Blobstore, u128), DiskError> {
    let path = || disk.path.display().to_string();
    let store = match Blobstore::open(channel.clone()).await {
        Ok(store) => store,
        Err(blobstore::OpenError::Blank) => format_disk(cluster, disk, channel).await?,
        Err(blobstore::OpenError::Foreign { .. }) if disk.force => {
            format_disk(cluster, disk, channel).await?
        }
        Err(blobstore::OpenError::Foreign { page }) => {
            return Err(DiskError::Foreign { path: path(), page });
        }
        Err(source) => return Err(DiskError::Open { path: path(), source }),
    };
    let described = store.describe();
    let found = u128::from_be_bytes(described.owner);
    if found != cluster.0 {
        return Err(DiskError::ForeignCluster {
            path: path(),
            found,
            expected: cluster.0,
        });
    }
    Ok((store, u128::from_be_bytes(described.uuid)))
}

async fn format_disk(
    cluster: ClusterId,
    disk: &DiskConfig,
    channel: Rc<dyn Channel>,
) -> Result<Blobstore, DiskError> {
    let options = FormatOptions {
        uuid: disk.new_uuid.to_be_bytes(),
        owner: cluster.0.to_be_bytes(),
        force: disk.force,
        ..FormatOptions::default()
    };
    let path = disk.path.display().to_string();
    Blobstore::format(channel, &options)
        .await
        .map_err(|source| DiskError::Format { path, source })
}
