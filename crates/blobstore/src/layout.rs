//! Where the regions of a new store lie.
//!
//! ```text
//! page 0, 1      superblock, two copies
//! page 2 ..      metadata pages: twice what the tables and blob pages can need, so that all could be
//!                written anew without touching the old ones
//! then           room for checksums of data pages (8 bytes each), not used by version 1
//! then, aligned  clusters
//! ```

use crate::error::FormatError;
use crate::format::superblock::{ADDRESSES, CHECKSUM_BYTES_PER_PAGE, POINTERS_MAX, Shape};
use crate::format::{PAGE_BYTES, table};

/// The largest cluster: 64 MiB.
pub(crate) const CLUSTER_PAGES_MAX: u32 = 16_384;
/// Metadata pages of blobs that a store can have at most.
pub const BLOB_PAGES_MAX: u32 = (POINTERS_MAX * table::ENTRIES_PER_PAGE) as u32;
const BLOB_PAGES_LEAST: u64 = 64;
/// A store as large as its device is likely to need one blob page for so many clusters.
const CLUSTERS_PER_BLOB_PAGE: u64 = 16;

/// How a device is made a blobstore.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Identity of this store; make a new random one for each format.
    pub uuid: [u8; 16],
    /// Free for the owner, such as the id of the cluster that the disk belongs to.
    pub owner: [u8; 16],
    /// Bytes of a cluster: a power of two from 4 KiB to 64 MiB.
    pub cluster_bytes: u32,
    /// Metadata pages that all blobs together may have (each has at least one); by default one for 16 clusters,
    /// at least 64 and at most [`BLOB_PAGES_MAX`].
    pub blob_pages_max: Option<u32>,
    /// Leave 0.2 % of the device as room for checksums of data pages.
    pub checksum_room: bool,
    /// Deallocate all clusters now: then a cluster's first use needs no zeroing. Quick on files and on drives that
    /// deallocate; on others it writes the whole device.
    pub clear: bool,
    /// Overwrite foreign contents or another store.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            uuid: [0; 16],
            owner: [0; 16],
            cluster_bytes: 1 << 20,
            blob_pages_max: None,
            checksum_room: true,
            clear: true,
            force: false,
        }
    }
}

/// Metadata pages that a store with so many blob pages has: all of them and their tables (two copies), twice.
pub(crate) fn metadata_pages_for(blob_pages_max: u32) -> u64 {
    let tables = (blob_pages_max as usize).div_ceil(table::ENTRIES_PER_PAGE) as u64;
    2 * (u64::from(blob_pages_max) + 2 * tables)
}

/// The regions of a new store on a device of so many pages.
pub(crate) fn plan(device_pages: u64, options: &FormatOptions) -> Result<Shape, FormatError> {
    let cluster_bytes = options.cluster_bytes;
    let cluster_pages = cluster_bytes / PAGE_BYTES as u32;
    if !cluster_bytes.is_power_of_two() || !(1..=CLUSTER_PAGES_MAX).contains(&cluster_pages) {
        return Err(FormatError::ClusterSize { cluster_bytes });
    }
    let clusters = (device_pages / u64::from(cluster_pages)).min(u64::from(u32::MAX));
    let by_default = (clusters / CLUSTERS_PER_BLOB_PAGE).clamp(BLOB_PAGES_LEAST, u64::from(BLOB_PAGES_MAX));
    let blob_pages_max = options.blob_pages_max.unwrap_or(by_default as u32);
    if !(1..=BLOB_PAGES_MAX).contains(&blob_pages_max) {
        return Err(FormatError::BlobPages { blob_pages_max });
    }
    let metadata_first_page = ADDRESSES.len() as u64;
    let metadata_pages = metadata_pages_for(blob_pages_max);
    let checksum_first_page = metadata_first_page + metadata_pages;
    let checksum_pages = if options.checksum_room {
        (device_pages * u64::from(CHECKSUM_BYTES_PER_PAGE)).div_ceil(PAGE_BYTES as u64)
    } else {
        0
    };
    let first_data_page = (checksum_first_page + checksum_pages).next_multiple_of(u64::from(cluster_pages));
    let first_data_cluster = first_data_page / u64::from(cluster_pages);
    if first_data_cluster >= clusters {
        return Err(FormatError::TooSmall {
            device_bytes: device_pages * PAGE_BYTES as u64,
            least_bytes: first_data_page * PAGE_BYTES as u64 + u64::from(cluster_bytes),
        });
    }
    let fits = "the numbers were bounded above";
    Ok(Shape {
        uuid: options.uuid,
        owner: options.owner,
        device_pages,
        cluster_pages,
        metadata_first_page: u32::try_from(metadata_first_page).expect(fits),
        metadata_pages: u32::try_from(metadata_pages).expect(fits),
        blob_pages_max,
        checksum_first_page,
        checksum_pages,
        first_data_cluster: u32::try_from(first_data_cluster).expect(fits),
        clusters: u32::try_from(clusters).expect(fits),
    })
}
