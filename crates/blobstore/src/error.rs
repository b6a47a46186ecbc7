//! What can fail, by operation. Texts say what failed on which object, why, and what to do next.

use std::fmt;

use bdev::IoError;
use foundation::ByteCount;

use crate::format::{PageError, VERSION};

/// Names a blob of one store. Never used again after the blob is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u64);

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A metadata page that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// Index among the blob's metadata pages: 0 the root, 1 to 4 attributes, from 16 on the cluster map.
    pub index: u32,
    /// Page number on the device.
    pub page: u64,
    /// What is wrong with it.
    pub why: PageError,
}

/// Why a device could not be formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The options ask for an impossible cluster.
    #[error(
        "cannot format with clusters of {cluster_bytes} bytes: choose a power of two from 4096 to 67108864"
    )]
    ClusterSize {
        /// As asked for.
        cluster_bytes: u32,
    },
    /// The options ask for an impossible number of blob pages.
    #[error(
        "cannot format with room for {blob_pages_max} blob pages: choose 1 to {}",
        crate::layout::BLOB_PAGES_MAX
    )]
    BlobPages {
        /// As asked for.
        blob_pages_max: u32,
    },
    /// No cluster would be left for data.
    #[error(
        "the device has {} and the store needs at least {}: use a larger device, smaller clusters or fewer blob pages",
        ByteCount(*device_bytes), ByteCount(*least_bytes)
    )]
    TooSmall {
        /// The device's size.
        device_bytes: u64,
        /// What metadata and one cluster take.
        least_bytes: u64,
    },
    /// The device holds a store already.
    #[error(
        "the device already holds a Redhare blobstore of format version {version}: formatting destroys its blobs; open \
         it instead, or format with force"
    )]
    InUse {
        /// The version found.
        version: u16,
    },
    /// The device holds something else.
    #[error(
        "the device holds neither zeros nor a Redhare blobstore (first other bytes in page {page}): check that it is \
         the right device, then format with force"
    )]
    Foreign {
        /// Page number of the first bytes that are not zero.
        page: u64,
    },
    /// The device's manners do not fit.
    #[error(
        "the device has {metadata_bytes} metadata bytes a block, the blobstore wants none: put a layer between"
    )]
    DeviceMetadata {
        /// Of the device.
        metadata_bytes: u8,
    },
    /// The device failed.
    #[error("formatting failed, the device answered: {0}; nothing can be relied on, format again")]
    Io(#[from] IoError),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing was ever written.
    #[error("the device holds only zeros: format it first")]
    Blank,
    /// Something else lies there.
    #[error(
        "the device holds neither zeros nor a Redhare blobstore (first other bytes in page {page}): check that it is \
         the right device"
    )]
    Foreign {
        /// Page number of the first bytes that are not zero.
        page: u64,
    },
    /// Made by a newer program.
    #[error(
        "the device holds a Redhare blobstore of format version {found}, this program knows up to {VERSION}: use the \
         newer program"
    )]
    NewerVersion {
        /// The version found.
        found: u16,
    },
    /// It needs something that this program does not know.
    #[error(
        "the blobstore uses features {features:#x} that this program does not know: use the program that wrote it"
    )]
    Features {
        /// The unknown bits.
        features: u64,
    },
    /// Both copies of the superblock are damaged.
    #[error(
        "both superblocks of the blobstore are damaged (page 0: {}; page 1: {}): its blobs cannot be found; restore \
         them from other copies", .0[0], .0[1]
    )]
    Superblocks([PageError; 2]),
    /// Both copies of a table page are damaged.
    #[error(
        "table page {index} of the blobstore is damaged in both copies ({first}; {second}): which blobs it \
         names is unknown; restore the device from other copies"
    )]
    Table {
        /// Which table page.
        index: usize,
        /// The first copy's fault.
        first: PageError,
        /// The second copy's fault.
        second: PageError,
    },
    /// The device became smaller.
    #[error(
        "the blobstore was made for {}, the device has only {}: check that it is the whole device",
        ByteCount(*store_bytes), ByteCount(*device_bytes)
    )]
    Shrunk {
        /// Size at format.
        store_bytes: u64,
        /// Size now.
        device_bytes: u64,
    },
    /// The device's manners do not fit.
    #[error(
        "the device has {metadata_bytes} metadata bytes a block, the blobstore wants none: put a layer between"
    )]
    DeviceMetadata {
        /// Of the device.
        metadata_bytes: u8,
    },
    /// The device failed.
    #[error("opening the blobstore failed, the device answered: {0}")]
    Io(#[from] IoError),
}

/// Why an operation on a store or a blob failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The blob does not exist, or not any more.
    #[error("there is no blob {0}: list the blobs to see which there are")]
    NoSuchBlob(BlobId),
    /// The blob's metadata is damaged.
    #[error(
        "blob {blob} cannot be used: its metadata page {} (device page {}) is damaged: {}{}; delete the blob and \
         restore it from another copy", .pages[0].index, .pages[0].page, .pages[0].why, more(.pages)
    )]
    Damaged {
        /// Which blob.
        blob: BlobId,
        /// Its damaged pages, at least one.
        pages: Vec<DamagedPage>,
    },
    /// The blob is a snapshot.
    #[error("blob {0} is a snapshot, which does not change: make a clone of it and change that")]
    ReadOnly(BlobId),
    /// Only snapshots may have clones, since what they hold never changes.
    #[error("blob {0} is no snapshot, so it cannot have clones: make a snapshot of it first")]
    NotASnapshot(BlobId),
    /// Several blobs show what the snapshot holds.
    #[error(
        "snapshot {blob} cannot be deleted: {children} blobs are made of it; delete or flatten all but one of them first"
    )]
    HasChildren {
        /// Which snapshot.
        blob: BlobId,
        /// How many.
        children: usize,
    },
    /// No metadata page is left.
    #[error(
        "no metadata page is left for blob {blob}: all {blob_pages_max} are in use; delete blobs, or format \
         with more blob pages"
    )]
    MetadataFull {
        /// For which blob.
        blob: BlobId,
        /// What the store was formatted with.
        blob_pages_max: u32,
    },
    /// The size is larger than any blob's.
    #[error(
        "blob {blob} cannot have {size_pages} pages: the most are {size_pages_max} with this cluster size"
    )]
    TooLarge {
        /// Which blob.
        blob: BlobId,
        /// As asked for.
        size_pages: u64,
        /// The largest blob.
        size_pages_max: u64,
    },
    /// An attribute's name cannot be used.
    #[error(
        "an attribute's name of {length_bytes} bytes on blob {blob}: use 1 to {} bytes",
        crate::ATTRIBUTE_NAME_BYTES_MAX
    )]
    AttributeName {
        /// Which blob.
        blob: BlobId,
        /// Of the name.
        length_bytes: usize,
    },
    /// A value is too long.
    #[error(
        "attribute {name} of blob {blob} cannot hold {length_bytes} bytes: the most are {}",
        crate::ATTRIBUTE_VALUE_BYTES_MAX
    )]
    AttributeValue {
        /// Which blob.
        blob: BlobId,
        /// The attribute's name.
        name: String,
        /// Of the value.
        length_bytes: usize,
    },
    /// All attributes together are too long.
    #[error(
        "attribute {name} does not fit on blob {blob}: all its attributes would take {total_bytes} bytes, the most are \
         {}; remove or shorten some",
        crate::ATTRIBUTES_BYTES_MAX
    )]
    AttributesFull {
        /// Which blob.
        blob: BlobId,
        /// The attribute's name.
        name: String,
        /// What all would take.
        total_bytes: usize,
    },
    /// A write of metadata failed: what is durable is unknown, so nothing more is changed.
    #[error(
        "the blobstore changes nothing any more since a metadata write failed ({0}): what was synced before is \
         safe; close the store, check the device, open it again"
    )]
    Stopped(IoError),
    /// The device has no room for what has changed.
    #[error(
        "the device has no room for the blobstore's metadata: what was synced before is safe, and it is tried again until \
         there is room; make room on the file system that holds the device"
    )]
    NoRoom,
    /// The device failed.
    #[error("blob {blob}: the device answered: {error}")]
    Io {
        /// Which blob.
        blob: BlobId,
        /// The device's answer.
        error: IoError,
    },
}

fn more(pages: &[DamagedPage]) -> String {
    match pages.len() {
        1 => String::new(),
        count => format!(" (and {} more pages)", count - 1),
    }
}

impl Error {
    /// The closest status of a request.
    pub fn status(&self) -> IoError {
        match self {
            Error::NoSuchBlob(_) => IoError::Gone,
            Error::Damaged { .. } => IoError::Checksum,
            Error::MetadataFull { .. } | Error::NoRoom => IoError::NoSpace,
            Error::Stopped(error) | Error::Io { error, .. } => *error,
            Error::ReadOnly(_) => IoError::ReadOnly,
            Error::TooLarge { .. } => IoError::OutOfRange,
            Error::NotASnapshot(_) | Error::HasChildren { .. } => IoError::Unsupported,
            Error::AttributeName { .. } | Error::AttributeValue { .. } | Error::AttributesFull { .. } => {
                IoError::Unsupported
            }
        }
    }
}
