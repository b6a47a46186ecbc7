//! What a store consists of, for people and tools. Nothing is read from the device.

use bdev::IoError;
use foundation::ByteCount;

use crate::blob::Blobstore;
use crate::error::{BlobId, DamagedPage};
use crate::format::{PAGE_BYTES, VERSION};

/// A store in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The format's version.
    pub version: u16,
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// The owner's own, as given at format.
    pub owner: [u8; 16],
    /// The last commit begun.
    pub generation: u64,
    /// Size of a cluster.
    pub cluster_size: ByteCount,
    /// Clusters for data.
    pub clusters: u32,
    /// Of these: not used by any blob, at once or after the next commit.
    pub free_clusters: u32,
    /// Of these: out of use until all damaged blobs are deleted.
    pub quarantined_clusters: u32,
    /// Metadata pages of blobs in use, and how many there can be.
    pub blob_pages: u32,
    /// See `blob_pages`.
    pub blob_pages_max: u32,
    /// Room left for checksums of data pages.
    pub checksum_room: ByteCount,
    /// Copies of superblock and table pages that were bad at open, the other being good.
    pub bad_copies: u32,
    /// Whether changes wait for a sync.
    pub is_dirty: bool,
    /// The fault after which nothing is changed any more.
    pub stopped: Option<IoError>,
    /// All usable blobs, by id.
    pub blobs: Vec<BlobDescription>,
    /// Blobs that cannot be used, and why.
    pub damaged: Vec<(BlobId, Vec<DamagedPage>)>,
}

/// A blob in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobDescription {
    /// Its name.
    pub id: BlobId,
    /// Its size.
    pub size: ByteCount,
    /// The blob that shows through where it has none.
    pub parent: Option<BlobId>,
    /// It is never written to.
    pub is_snapshot: bool,
    /// Clusters that it has itself: (index in the blob, the device's cluster).
    pub clusters: Vec<(u64, u32)>,
    /// Its attributes' names and the lengths of their values in bytes.
    pub attributes: Vec<(String, usize)>,
}

/// What [`Blobstore::check`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistency {
    /// A cluster is free and owned at once, or owned twice.
    #[error("cluster {cluster} of blob {blob} belongs to somebody else too, or counts as free")]
    Shared {
        /// Which cluster.
        cluster: u32,
        /// One owner.
        blob: BlobId,
    },
    /// Clusters are neither free nor owned.
    #[error("{owned} clusters are owned and {unowned} are not, of {clusters}: some are lost")]
    Lost {
        /// By blobs.
        owned: u32,
        /// Free, waiting or quarantined.
        unowned: u32,
        /// All.
        clusters: u32,
    },
}

impl Blobstore {
    /// The store's present state. Takes time in proportion to its clusters in use.
    pub fn describe(&self) -> Description {
        let store = &self.store;
        let state = store.state.borrow();
        let shape = &store.shape;
        let blobs = store.blobs.borrow();
        let describe_blob = |blob: &crate::store::BlobState| BlobDescription {
            id: blob.id,
            size: ByteCount(blob.size_pages.get() * PAGE_BYTES as u64),
            parent: blob.parent.borrow().as_ref().map(|parent| parent.id),
            is_snapshot: blob.is_snapshot.get(),
            clusters: blob.map.borrow().allocated_from(0).collect(),
            attributes: blob
                .attributes
                .borrow()
                .iter()
                .map(|(name, value)| (name.clone(), value.len()))
                .collect(),
        };
        Description {
            version: VERSION,
            uuid: shape.uuid,
            owner: shape.owner,
            generation: state.generation,
            cluster_size: ByteCount(store.cluster_pages() * PAGE_BYTES as u64),
            clusters: shape.clusters - shape.first_data_cluster,
            free_clusters: state.clusters.free_count(),
            quarantined_clusters: state.clusters.quarantined_count(),
            blob_pages: (state.entries.len() - state.free_entries.len()) as u32,
            blob_pages_max: shape.blob_pages_max,
            checksum_room: ByteCount(shape.checksum_pages * PAGE_BYTES as u64),
            bad_copies: store.repaired_copies.get(),
            is_dirty: store.changes.get() > store.committed.get(),
            stopped: store.stopped.get(),
            blobs: blobs.values().map(|blob| describe_blob(blob)).collect(),
            damaged: store
                .damaged
                .borrow()
                .iter()
                .map(|(id, pages)| (*id, pages.clone()))
                .collect(),
        }
    }

    /// Checks that every cluster has exactly one owner or is free. Call it while no write is under way: a cluster
    /// between being taken and being named by its blob is neither.
    ///
    /// # Errors
    /// The first [`Inconsistency`].
    pub fn check(&self) -> Result<(), Inconsistency> {
        let description = self.describe();
        let state = self.store.state.borrow();
        let mut seen = std::collections::BTreeSet::new();
        for blob in &description.blobs {
            for &(_, cluster) in &blob.clusters {
                if !seen.insert(cluster) || state.clusters.is_unowned(cluster) {
                    return Err(Inconsistency::Shared {
                        cluster,
                        blob: blob.id,
                    });
                }
            }
        }
        let unowned = description.free_clusters + description.quarantined_clusters;
        let owned = seen.len() as u32;
        if owned + unowned != description.clusters {
            return Err(Inconsistency::Lost {
                owned,
                unowned,
                clusters: description.clusters,
            });
        }
        Ok(())
    }
}
