//! A persistent, power-fail safe store of blobs on one block device.
//!
//! A [`Blob`] is an array of 4 KiB pages in clusters (1 MiB by default) with extended attributes. It is thin: a cluster
//! is taken at its first write, and what was never written reads zeros. A blob is also a [`bdev::Channel`]
//! ([`BlobChannel`]), so whatever speaks to devices speaks to blobs.
//!
//! # What is promised
//! - After a crash the store is as one moment left it that is not before the last completed [`Blobstore::sync`] or
//!   flush: creations, deletions, sizes, attributes and cluster maps all at once or not at all, in their order.
//! - Pages written before that sync read back; pages written later read old or new, each on its own.
//! - A cluster never shows what an earlier owner left in it.
//! - A snapshot of a blob is of one moment, and a clone begins as its snapshot is; both cost what is written afterwards.
//! - Foreign contents are not overwritten without force; damage to one blob's metadata leaves the others usable.
//!
//! # How
//! *Metadata* is copied on write. The superblock (two copies) names table pages (two copies each), these name every
//! metadata page of every blob with its checksum, so lost and misdirected writes of metadata are seen. A commit writes
//! changed pages to free places and ends with the superblock (see `commit`); the older state stays whole until then.
//! There is no log to replay: open reads table and blob pages, a few hundred in one read, and derives from them which
//! clusters are free. Metadata stays in memory: about 2 KiB a blob, and 4 bytes a cluster.
//!
//! *Zeros.* Either a cluster is zeroed before a map names it, or a durable bitmap says which of its pages were written.
//! We zero: the bitmap makes every first write of a page metadata that a later flush must write, and every read look
//! at it, for ever; zeroing ends with the cluster's first write, and from then on nothing stands between a
//! request and the device. The price is one cluster of zeros at a random 4 KiB first write: a cheap command where the
//! device deallocates, else 1 MiB of writing. It is not paid for clusters never used since format (they were
//! deallocated then and are taken first), nor for the part that the write covers; so a new store pays none at all, and
//! a store in long use at most one extra write of each cluster per owner.
//!
//! *Concurrency.* One core, no locks. Requests on different ranges run side by side. Resize, delete and giving
//! space back wait for requests in flight on their blob and hold back later ones (`gate`). A cluster that is given up
//! is handed out again only when the commit that says so is durable.
//!
//! # Cost
//! Read or write of an allocated range: a map look-up, a slot for the token, and the device's own cost; no task,
//! no allocation, no metadata. First write of a cluster: a task; one commit per 256 clusters. Flush: the device's flush
//! if nothing changed, else two flushes and, for one changed blob, five page writes. A forced write, and
//! [`Blobstore::sync_writes`], where commits have named all that is written ([`Blob::is_named`]): the device's flush.
//!
//! # Left for later
//! Checksums of data pages: the format has their room (`docs/formats/blobstore.md`). Giving freed clusters back to the
//! device, and growing with it.

mod attributes;
mod blob;
mod channel;
mod cluster_map;
mod clusters;
mod commit;
mod describe;
mod error;
mod format;
mod free_set;
mod gate;
mod inspect;
mod layout;
mod open;
mod page_io;
mod slow_path;
mod snapshot;
mod store;

pub use attributes::{ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX};
pub use blob::{Blob, BlobRun, Blobstore};
pub use channel::BlobChannel;
pub use describe::{BlobDescription, Description, Inconsistency};
pub use error::{BlobId, DamagedPage, Error, FormatError, OpenError};
pub use format::blob_page::ATTRIBUTES_BYTES_MAX;
pub use format::{PAGE_BYTES, PageError, VERSION as FORMAT_VERSION};
pub use layout::{BLOB_PAGES_MAX, FormatOptions};
