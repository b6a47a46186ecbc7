//! The public face: a store and its blobs.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, ChannelExt, IoError};
use foundation::Lba;
use reactor::{Buffer, BufferMut};

use crate::attributes::{ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, encoded_bytes, record_bytes};
use crate::channel::{BlobChannel, Piece};
use crate::clusters::Clusters;
use crate::error::{BlobId, Error, FormatError, OpenError};
use crate::format::PAGE_BYTES;
use crate::format::blob_page::ATTRIBUTES_BYTES_MAX;
use crate::format::superblock::{ADDRESSES, Shape};
use crate::format::table::Entry;
use crate::free_set::FreeSet;
use crate::inspect::{self, Found};
use crate::layout::{self, FormatOptions};
use crate::open;
use crate::page_io::PageIo;
use crate::slow_path;
use crate::store::{BlobState, State, Store};

/// An open store on one core. Clones share it. Whoever opens it has seen to exclusive use of the device (the file
/// device's lock does).
#[derive(Clone)]
pub struct Blobstore {
    pub(crate) store: Rc<Store>,
}

/// An open blob. Clones share it; once the blob is deleted, each answers so.
#[derive(Clone)]
pub struct Blob {
    pub(crate) channel: Rc<BlobChannel>,
}

impl Blobstore {
    /// Makes the device a blobstore with no blobs; durable when it returns. Does not block the thread.
    ///
    /// # Errors
    /// See [`FormatError`]; nothing is written if the device holds anything but zeros, unless forced.
    pub async fn format(channel: Rc<dyn Channel>, options: &FormatOptions) -> Result<Self, FormatError> {
        if let Some(metadata_bytes) = inspect::unsuitable(&channel.geometry()) {
            return Err(FormatError::DeviceMetadata { metadata_bytes });
        }
        let io = PageIo::new(channel);
        let shape = layout::plan(io.pages(), options)?;
        if !options.force {
            match inspect::look(&io).await? {
                Found::Blank => {}
                Found::Foreign { page } => return Err(FormatError::Foreign { page }),
                Found::Newer { version } => return Err(FormatError::InUse { version }),
                Found::Damaged(_) | Found::Store(..) => {
                    return Err(FormatError::InUse {
                        version: crate::FORMAT_VERSION,
                    });
                }
            }
        }
        // First of all no older superblock may be found again, whatever happens from here on.
        io.write_pages(&ADDRESSES.map(|address| (address, [0; PAGE_BYTES])))
            .await?;
        io.flush().await?;
        let clusters = first_clusters(&io, &shape, options.clear).await?;
        let state = State {
            clusters,
            page_slots: open::all_slots(&shape),
            released_slots: Vec::new(),
            entries: vec![Entry::default(); shape.blob_pages_max as usize],
            refused_entries: Default::default(),
            free_entries: (0..shape.blob_pages_max).rev().collect(),
            dirty: Default::default(),
            dirty_tables: Default::default(),
            pointers: Vec::new(),
            generation: 0,
            next_blob: 1,
        };
        let store = open::assemble(io, shape, state, 0);
        store.change();
        store
            .sync()
            .await
            .map_err(|error| FormatError::Io(error.status()))?;
        Ok(Self { store })
    }

    /// Opens the store on a device, as the last completed sync left it, or later. Does not block the thread.
    ///
    /// # Errors
    /// See [`OpenError`]. Damage to single blobs does not keep the store from opening.
    pub async fn open(channel: Rc<dyn Channel>) -> Result<Self, OpenError> {
        if let Some(metadata_bytes) = inspect::unsuitable(&channel.geometry()) {
            return Err(OpenError::DeviceMetadata { metadata_bytes });
        }
        let io = PageIo::new(channel);
        // A process that was killed may have left a superblock that can be read and is not durable. What that one gives up is not to be
        // used before: without it the one before would be found.
        io.flush().await?;
        let (superblock, good_copies) = inspect::superblock(&io).await?;
        let store = open::load(io, superblock, good_copies).await?;
        Ok(Self { store })
    }

    /// Makes a blob of so many pages, all of which read zeros. Durable by [`Blobstore::sync`].
    ///
    /// # Errors
    /// [`Error::MetadataFull`], [`Error::TooLarge`], [`Error::Stopped`].
    pub fn create(&self, size_pages: u64) -> Result<Blob, Error> {
        Ok(self.handle(self.store.create(size_pages)?))
    }

    /// A handle of an existing blob.
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`]; [`Error::Damaged`] names the pages.
    pub fn blob(&self, id: BlobId) -> Result<Blob, Error> {
        Ok(self.handle(self.store.find(id)?))
    }

    /// All usable blobs, by id.
    pub fn blobs(&self) -> Vec<BlobId> {
        self.store.blobs.borrow().keys().copied().collect()
    }

    /// Whether there are blobs whose metadata cannot be read.
    pub fn has_damaged(&self) -> bool {
        !self.store.damaged.borrow().is_empty()
    }

    /// Deletes a blob, damaged or not, when its requests in flight have ended. Durable by [`Blobstore::sync`]; its
    /// clusters get new owners only after that. It goes on if the future is dropped. What the only child shows of a snapshot becomes the child's own: nothing is
    /// copied, but the child's requests wait until the deletion is durable.
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::HasChildren`], [`Error::Stopped`]; [`Error::Io`] if a page that the child shows in
    /// part cannot be copied.
    pub async fn delete(&self, id: BlobId) -> Result<(), Error> {
        self.store.check_running()?;
        let blob = match self.store.find(id) {
            Ok(blob) => blob,
            Err(Error::Damaged { .. }) => return self.store.remove_damaged(id),
            Err(error) => return Err(error),
        };
        let store = self.store.clone();
        let deleted = reactor::spawn(async move { delete(&store, &blob).await });
        deleted.await.unwrap_or(Err(Error::Io {
            blob: id,
            error: IoError::Aborted,
        }))
    }

    /// Makes all that completed before this call durable: writes to any blob, and changes of metadata, in their order.
    ///
    /// # Errors
    /// [`Error::Stopped`]: from the first failure on nothing more is made durable. [`Error::NoRoom`], until there is.
    pub async fn sync(&self) -> Result<(), Error> {
        self.store.sync().await
    }

    /// Makes all writes that completed before this call durable where [`Blob::is_named`] says so of their pages; no metadata. One
    /// flush of the device, where [`Blobstore::sync`] may have a commit to make.
    ///
    /// # Errors
    /// [`Error::Stopped`]: from the first failure on nothing more is made durable.
    pub async fn sync_writes(&self) -> Result<(), Error> {
        self.store.check_running()?;
        self.store
            .io
            .flush()
            .await
            .map_err(|error| self.store.stop(error))
    }

    /// From now on what has changed, first writes of hosts among it, is committed by itself within about `pause`, so that the end
    /// of the process without a [`Blobstore::sync`] costs at most the changes of that time. Does nothing while nothing changes.
    pub fn commit_within(&self, pause: Duration) {
        *self.store.commits_within.borrow_mut() = Some((Rc::downgrade(&self.store), pause));
    }

    /// What the device answered to a write or flush of metadata that failed; none as long as there was none. Nothing is changed or made
    /// durable from then on, until the store is opened anew.
    pub fn stopped(&self) -> Option<IoError> {
        self.store.stopped.get()
    }

    /// Whether a write to where nothing was written may find room: a cluster is free, and no commit waits for room.
    pub fn has_room(&self) -> bool {
        self.store.state.borrow().clusters.free_count() > 0 && !self.store.lacks_room.get()
    }

    /// Clusters for data, and how many of them a first write may still get.
    pub fn clusters(&self) -> (u32, u32) {
        let free = self.store.state.borrow().clusters.free_count();
        (
            self.store.shape.clusters - self.store.shape.first_data_cluster,
            free,
        )
    }

    /// Whether the blobs that are written may need more than so many clusters until each owns all of itself. A step for each blob at
    /// most.
    pub fn may_need_more_than(&self, clusters: u64) -> bool {
        let blobs = self.store.blobs.borrow();
        let written = blobs
            .values()
            .filter(|blob| !blob.is_snapshot.get() && !blob.deleted.get());
        let mut needed = 0;
        written.into_iter().any(|blob| {
            let whole = blob.size_pages.get().div_ceil(self.store.cluster_pages());
            needed += whole.saturating_sub(blob.map.borrow().allocated_count());
            needed > clusters
        })
    }

    pub(crate) fn handle(&self, blob: Rc<BlobState>) -> Blob {
        let store = self.store.clone();
        Blob {
            channel: Rc::new(BlobChannel { store, blob }),
        }
    }
}

/// The clusters of a new store; deallocated if asked for and possible, else all count as used before.
async fn first_clusters(io: &PageIo, shape: &Shape, clear: bool) -> Result<Clusters, IoError> {
    let (first, end) = (shape.first_data_cluster, shape.clusters);
    let mut free = FreeSet::empty(first, end);
    if clear {
        let cluster_pages = u64::from(shape.cluster_pages);
        let pages = u64::from(end - first) * cluster_pages;
        io.zero(u64::from(first) * cluster_pages, pages, true).await?;
        return Ok(Clusters::new(free, Vec::new(), first, end));
    }
    (first..end).for_each(|cluster| free.insert(cluster));
    Ok(Clusters::new(free, Vec::new(), end, end))
}

/// Pages that follow each other both in a blob and on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRun {
    /// The first one in the blob.
    pub page: u64,
    /// How many.
    pub pages: u64,
    /// The first one on the device.
    pub device_page: u64,
}

impl Blob {
    /// Where the blob lies now, in ascending order; what is in none reads zeros. Only a write, a deallocation, a resize,
    /// a flattening or the blob's end change that, from when they are submitted on.
    pub fn runs(&self) -> Vec<BlobRun> {
        self.runs_of(0..u64::MAX, |_| true)
    }

    /// As [`Blob::runs`], of these pages of the blob.
    pub fn runs_in(&self, pages: Range<u64>) -> Vec<BlobRun> {
        self.runs_of(pages, |_| true)
    }

    /// As [`Blob::runs`], without what lies in its parents' clusters.
    pub fn own_runs(&self) -> Vec<BlobRun> {
        self.runs_of(0..u64::MAX, |piece| piece.is_own)
    }

    fn runs_of(&self, pages: Range<u64>, is_wanted: impl Fn(&Piece) -> bool) -> Vec<BlobRun> {
        let (store, blob) = (&self.channel.store, &self.channel.blob);
        let end = if blob.deleted.get() { 0 } else { self.size_pages() };
        let end = end.min(pages.end);
        let mut runs = Vec::new();
        let mut page = pages.start;
        while page < end {
            let piece = store.piece(blob, page, end - page);
            let lies_at = piece.device_page.filter(|_| is_wanted(&piece));
            runs.extend(lies_at.map(|device_page| BlobRun {
                page,
                pages: piece.pages,
                device_page,
            }));
            page += piece.pages;
        }
        runs
    }

    /// Whether a completed commit names all that the blob has in these pages, and they lie within a size that is durable: then
    /// what is written there is found after a crash once the device is flushed ([`Blobstore::sync_writes`]). False for pages
    /// that were never written, and for such as a snapshot has.
    pub fn is_named(&self, page: u64, pages: u64) -> bool {
        let (store, blob) = (&self.channel.store, &self.channel.blob);
        let end = page.checked_add(pages);
        end.is_some_and(|end| end <= blob.size_pages.get()) && store.is_named(blob, page, pages)
    }

    /// Whether a write of these pages needs no room: the blob owns where they lie. False beyond its end.
    pub fn owns(&self, page: u64, pages: u64) -> bool {
        let (store, blob) = (&self.channel.store, &self.channel.blob);
        let end = page
            .checked_add(pages)
            .filter(|end| *end <= blob.size_pages.get());
        end.is_some_and(|end| store.owns(blob, page..end))
    }

    /// The blob's name in its store.
    pub fn id(&self) -> BlobId {
        self.channel.blob.id
    }

    /// Size in pages of 4096 bytes.
    pub fn size_pages(&self) -> u64 {
        self.channel.blob.size_pages.get()
    }

    /// The blob as a device of 4096-byte blocks. A flush through it covers the whole store.
    pub fn channel(&self) -> Rc<BlobChannel> {
        self.channel.clone()
    }

    /// Fills the buffer, whose length must be a whole number of pages, from a page on.
    pub async fn read(&self, page: u64, buffer: BufferMut) -> (Result<(), IoError>, BufferMut) {
        self.channel.read(Lba(page), buffer).await
    }

    /// Stores the buffer, whose length must be a whole number of pages, from a page on. Dropping the future does not
    /// stop the write. Durable by [`Blob::flush`]; after a crash before that, each page (or each part of it that the
    /// device writes at once) is old or new.
    pub async fn write(&self, page: u64, buffer: Buffer) -> Result<(), IoError> {
        self.channel.write(Lba(page), buffer).await
    }

    /// As [`Blobstore::sync`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.channel.store.sync().await
    }

    /// Sets the size when requests in flight have ended. What is beyond a smaller size is gone for good; what a larger
    /// one adds reads zeros. Goes on even if the future is dropped. Durable by [`Blobstore::sync`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSuchBlob`], [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Io`].
    pub async fn resize(&self, size_pages: u64) -> Result<(), Error> {
        let (store, blob) = (self.channel.store.clone(), self.channel.blob.clone());
        let id = blob.id;
        store.check_size(id, size_pages)?;
        let resized = reactor::spawn(async move { resize(&store, &blob, size_pages).await });
        resized.await.unwrap_or(Err(Error::Io {
            blob: id,
            error: IoError::Aborted,
        }))
    }

    /// Sets an attribute. Durable by [`Blobstore::sync`], in the order of all metadata changes.
    ///
    /// # Errors
    /// [`Error::AttributeName`], [`Error::AttributeValue`], [`Error::AttributesFull`], [`Error::MetadataFull`],
    /// [`Error::NoSuchBlob`], [`Error::Stopped`]; the attribute is then as before.
    pub fn set_attribute(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        let blob = self.live()?;
        if name.is_empty() || name.len() > ATTRIBUTE_NAME_BYTES_MAX {
            return Err(Error::AttributeName {
                blob: blob.id,
                length_bytes: name.len(),
            });
        }
        if value.len() > ATTRIBUTE_VALUE_BYTES_MAX {
            return Err(Error::AttributeValue {
                blob: blob.id,
                name: name.to_owned(),
                length_bytes: value.len(),
            });
        }
        let mut attributes = blob.attributes.borrow().clone();
        let replaced = attributes
            .get(name)
            .map_or(0, |old| record_bytes(name, old.len()));
        let total_bytes = encoded_bytes(&attributes) - replaced + record_bytes(name, value.len());
        if total_bytes > ATTRIBUTES_BYTES_MAX {
            return Err(Error::AttributesFull {
                blob: blob.id,
                name: name.to_owned(),
                total_bytes,
            });
        }
        attributes.insert(name.to_owned(), value.to_vec());
        self.channel.store.set_attributes(blob, attributes)
    }

    /// An attribute's value.
    pub fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        self.channel.blob.attributes.borrow().get(name).cloned()
    }

    /// All attributes' names, sorted.
    pub fn attribute_names(&self) -> Vec<String> {
        self.channel.blob.attributes.borrow().keys().cloned().collect()
    }

    /// Removes an attribute; false if there was none. Durable by [`Blobstore::sync`].
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::Stopped`].
    pub fn remove_attribute(&self, name: &str) -> Result<bool, Error> {
        let blob = self.live()?;
        let mut attributes = blob.attributes.borrow().clone();
        if attributes.remove(name).is_none() {
            return Ok(false);
        }
        self.channel.store.set_attributes(blob, attributes)?;
        Ok(true)
    }

    fn live(&self) -> Result<&BlobState, Error> {
        let blob = &self.channel.blob;
        if blob.deleted.get() {
            return Err(Error::NoSuchBlob(blob.id));
        }
        Ok(blob)
    }
}

/// Whoever waits for it may give up; what is copied for a child may not stop in the middle.
async fn delete(store: &Rc<Store>, blob: &Rc<BlobState>) -> Result<(), Error> {
    let _alone = blob.gate.enter_exclusive().await;
    store.check_running()?;
    if blob.deleted.get() {
        return Err(Error::NoSuchBlob(blob.id));
    }
    store.delete_alone(blob).await
}

async fn resize(store: &Rc<Store>, blob: &Rc<BlobState>, size_pages: u64) -> Result<(), Error> {
    let _alone = blob.gate.enter_exclusive().await;
    store.check_running()?;
    if blob.deleted.get() {
        return Err(Error::NoSuchBlob(blob.id));
    }
    if blob.is_snapshot.get() {
        return Err(Error::ReadOnly(blob.id));
    }
    let old_pages = blob.size_pages.get();
    if size_pages > old_pages {
        // What an earlier, larger size left in the last cluster must not show again (a parent's does not). While the shrinking is not
        // durable it belongs to the state that a crash would bring back, so it may not be touched before.
        let cluster_end = old_pages.next_multiple_of(store.cluster_pages());
        let tail_pages = cluster_end.min(size_pages) - old_pages;
        if store
            .piece(blob, old_pages, tail_pages.max(1))
            .device_page
            .is_some()
            && tail_pages > 0
        {
            // Nor what a snapshot has as long as its end is not.
            if blob.shrunk_at.get() > store.committed.get() || store.is_lent(blob) {
                store.commit_all().await?;
            }
            let zeroed = slow_path::zero(store, blob, old_pages, tail_pages).await;
            zeroed.map_err(|error| Error::Io { blob: blob.id, error })?;
        }
    }
    store.set_size(blob, size_pages);
    Ok(())
}
