//! The store's state on its core, and the changes that are made to it in memory. Durable by [`crate::commit`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{Completion, Geometry, IoError, Sink};
use foundation::BlockCount;
use reactor::sync::Notify;

use crate::attributes::{self, Attributes};
use crate::cluster_map::{self, ClusterMap, HOLE};
use crate::clusters::{Clusters, Take, Taken};
use crate::error::{BlobId, DamagedPage, Error};
use crate::format::PAGE_BYTES;
use crate::format::blob_page::{ATTRIBUTE_PAGES, continued, field as root_field};
use crate::format::superblock::{Pointer, Shape};
use crate::format::table::{ENTRIES_PER_PAGE, Entry};
use crate::free_set::FreeSet;
use crate::gate::{Gate, Tokens};
use crate::page_io::PageIo;

/// From so many entries on it is looked which of a blob's newest clusters have been named meanwhile.
const UNNAMED_LOOK: usize = 64;

/// One blob in memory: its metadata is all here.
pub(crate) struct BlobState {
    pub(crate) id: BlobId,
    pub(crate) size_pages: Cell<u64>,
    pub(crate) map: RefCell<ClusterMap>,
    pub(crate) attributes: RefCell<Attributes>,
    /// Its metadata pages: index to entry number of the table.
    pub(crate) entries: RefCell<BTreeMap<u32, u32>>,
    /// Shows through where the map names nothing, in the first `parent_pages`. A snapshot, which is never written to.
    pub(crate) parent: RefCell<Option<Rc<BlobState>>>,
    pub(crate) parent_pages: Cell<u64>,
    /// Blobs whose parent this one is.
    pub(crate) children: RefCell<BTreeSet<BlobId>>,
    pub(crate) is_snapshot: Cell<bool>,
    pub(crate) gate: Rc<Gate>,
    /// The change that last concerned this blob's size or map, and its last shrinking.
    pub(crate) changed_at: Cell<u64>,
    pub(crate) shrunk_at: Cell<u64>,
    /// The change that last set its size.
    pub(crate) sized_at: Cell<u64>,
    /// Its clusters that no commit may have named yet: index, and the change by which it got each.
    pub(crate) unnamed: RefCell<BTreeMap<u64, u64>>,
    /// The change by which it got what a deleted snapshot had: until that is committed a crash brings the snapshot back, so its
    /// clusters must not be written.
    pub(crate) lent_at: Cell<u64>,
    pub(crate) deleted: Cell<bool>,
    /// Clusters of the blob whose first write is under way.
    pub(crate) allocating: RefCell<BTreeSet<u64>>,
    pub(crate) allocated: Notify,
}

impl BlobState {
    pub(crate) fn new(id: BlobId, size_pages: u64) -> Self {
        Self {
            id,
            size_pages: Cell::new(size_pages),
            map: RefCell::new(ClusterMap::new()),
            attributes: RefCell::default(),
            entries: RefCell::default(),
            parent: RefCell::default(),
            parent_pages: Cell::new(0),
            children: RefCell::default(),
            is_snapshot: Cell::new(false),
            gate: Rc::default(),
            changed_at: Cell::new(0),
            shrunk_at: Cell::new(0),
            sized_at: Cell::new(0),
            unnamed: RefCell::default(),
            lent_at: Cell::new(0),
            deleted: Cell::new(false),
            allocating: RefCell::default(),
            allocated: Notify::new(),
        }
    }
}

/// What a commit reads and changes in one go.
pub(crate) struct State {
    pub(crate) clusters: Clusters,
    pub(crate) page_slots: FreeSet,
    /// Slots of the durable state that the next commit gives up.
    pub(crate) released_slots: Vec<u32>,
    pub(crate) entries: Vec<Entry>,
    /// Entries of damaged blobs whose page is another one's, or none, by number: their end frees no slot, and nothing new comes to
    /// what they name.
    pub(crate) refused_entries: BTreeMap<u32, u32>,
    pub(crate) free_entries: Vec<u32>,
    pub(crate) dirty: BTreeSet<(BlobId, u32)>,
    pub(crate) dirty_tables: BTreeSet<usize>,
    pub(crate) pointers: Vec<Pointer>,
    pub(crate) generation: u64,
    pub(crate) next_blob: u64,
}

/// One open store, on one core.
pub(crate) struct Store {
    pub(crate) io: PageIo,
    pub(crate) shape: Shape,
    pub(crate) state: RefCell<State>,
    pub(crate) blobs: RefCell<BTreeMap<BlobId, Rc<BlobState>>>,
    pub(crate) damaged: RefCell<BTreeMap<BlobId, Vec<DamagedPage>>>,
    /// Those of them of which nobody knows whether they have a parent, which has an older number than `opened_at`.
    pub(crate) rootless: RefCell<BTreeSet<BlobId>>,
    /// Blobs from this number on were made since the store was opened.
    pub(crate) opened_at: BlobId,
    /// Superblock and table pages of which only one copy was good at open.
    pub(crate) repaired_copies: Cell<u32>,
    /// The superblock said at open that blobs may have parents.
    pub(crate) had_snapshots: Cell<bool>,
    /// Changes of metadata made so far, and how many of them are durable.
    pub(crate) changes: Cell<u64>,
    pub(crate) committed: Cell<u64>,
    pub(crate) commits_begun: Cell<u64>,
    pub(crate) committing: Cell<bool>,
    /// Commits come by themselves so long after a change; and whether one will.
    pub(crate) commits_within: RefCell<Option<(Weak<Store>, Duration)>>,
    pub(crate) commit_is_due: Cell<bool>,
    pub(crate) commit_ended: Notify,
    pub(crate) stopped: Cell<Option<IoError>>,
    /// The device has no room for the commit that is under way.
    pub(crate) lacks_room: Cell<bool>,
    /// Writes with FUA that went straight to the device.
    pub(crate) forced: Tokens,
}

impl Drop for Store {
    /// One after the other, not each by its child's end: lines of parents may be long.
    fn drop(&mut self) {
        for blob in self.blobs.borrow().values() {
            drop(blob.parent.take());
        }
    }
}

impl Sink for Store {
    /// The device has answered a write with FUA. A system tells of what it could not make durable once, to whoever asks
    /// first: after such a failure the next sync would succeed and cover nothing, whatever blob it is for. What the device had no
    /// room for was not written at all, which is no such failure.
    fn complete(&self, tag: u64, completion: Completion) {
        if let Err(error) = completion.status
            && error != IoError::NoSpace
        {
            self.stop(error);
        }
        self.forced.take(tag).complete(completion.status, completion.data);
    }
}

impl Store {
    pub(crate) fn cluster_pages(&self) -> u64 {
        u64::from(self.shape.cluster_pages)
    }

    /// The largest blob.
    pub(crate) fn size_pages_max(&self) -> u64 {
        cluster_map::BLOB_CLUSTERS_MAX * self.cluster_pages()
    }

    /// Fails once a metadata write has failed.
    pub(crate) fn check_running(&self) -> Result<(), Error> {
        match self.stopped.get() {
            Some(error) => Err(Error::Stopped(error)),
            None => Ok(()),
        }
    }

    /// Counts a change; its number.
    pub(crate) fn change(&self) -> u64 {
        self.changes.set(self.changes.get() + 1);
        self.commit_soon();
        self.changes.get()
    }

    /// The blob, if it exists and is whole.
    pub(crate) fn find(&self, id: BlobId) -> Result<Rc<BlobState>, Error> {
        if let Some(blob) = self.blobs.borrow().get(&id) {
            return Ok(blob.clone());
        }
        match self.damaged.borrow().get(&id) {
            Some(pages) => Err(Error::Damaged {
                blob: id,
                pages: pages.clone(),
            }),
            None => Err(Error::NoSuchBlob(id)),
        }
    }

    /// A new blob of a size, all of it fresh.
    pub(crate) fn create(&self, size_pages: u64) -> Result<Rc<BlobState>, Error> {
        self.check_running()?;
        let id = BlobId(self.state.borrow().next_blob);
        self.check_size(id, size_pages)?;
        let blob = Rc::new(BlobState::new(id, size_pages));
        self.reserve_page(&blob, 0)?;
        self.state.borrow_mut().next_blob += 1;
        self.blobs.borrow_mut().insert(id, blob.clone());
        self.mark_dirty(&blob, 0);
        Ok(blob)
    }

    pub(crate) fn check_size(&self, blob: BlobId, size_pages: u64) -> Result<(), Error> {
        let size_pages_max = self.size_pages_max();
        if size_pages <= size_pages_max {
            return Ok(());
        }
        Err(Error::TooLarge {
            blob,
            size_pages,
            size_pages_max,
        })
    }

    /// Makes sure that the blob has a metadata page of the index, so that a later change cannot fail.
    pub(crate) fn reserve_page(&self, blob: &BlobState, index: u32) -> Result<(), Error> {
        let mut entries = blob.entries.borrow_mut();
        if entries.contains_key(&index) {
            return Ok(());
        }
        let mut state = self.state.borrow_mut();
        let number = state.free_entries.pop().ok_or(Error::MetadataFull {
            blob: blob.id,
            blob_pages_max: self.shape.blob_pages_max,
        })?;
        state.entries[number as usize] = Entry {
            blob: blob.id.0,
            index,
            ..Entry::default()
        };
        entries.insert(index, number);
        Ok(())
    }

    /// The metadata page, which is reserved, must be written by the next commit.
    pub(crate) fn mark_dirty(&self, blob: &BlobState, index: u32) {
        assert!(
            blob.entries.borrow().contains_key(&index),
            "page {index} of blob {} was not reserved",
            blob.id
        );
        self.state.borrow_mut().dirty.insert((blob.id, index));
        blob.changed_at.set(self.change());
    }

    /// The metadata page is no longer needed.
    pub(crate) fn drop_page(&self, blob: &BlobState, index: u32) {
        if let Some(number) = blob.entries.borrow_mut().remove(&index) {
            let mut state = self.state.borrow_mut();
            state.dirty.remove(&(blob.id, index));
            state.free_entry(number);
            drop(state);
            blob.changed_at.set(self.change());
        }
    }

    /// A cluster for a first write; commits if that makes some free.
    pub(crate) async fn take_cluster(self: &Rc<Self>) -> Result<Taken, IoError> {
        loop {
            self.check_running().map_err(|error| error.status())?;
            let answer = self.state.borrow_mut().clusters.take();
            match answer {
                Take::Got(taken) => return Ok(taken),
                Take::Full => return Err(IoError::NoSpace),
                Take::AfterCommit { raised } => {
                    if raised {
                        self.change();
                    }
                    self.commit_all().await.map_err(|error| error.status())?;
                }
            }
        }
    }

    /// Takes the blob, which has no children, out of the store. Nothing of it may be in flight.
    pub(crate) fn remove(&self, blob: &BlobState) {
        if let Some(parent) = blob.parent.take() {
            parent.children.borrow_mut().remove(&blob.id);
        }
        for (_, cluster) in blob.map.borrow().allocated_from(0) {
            self.state.borrow_mut().clusters.release(cluster);
        }
        self.forget(blob);
    }

    /// Takes the blob out of the store; what its clusters are to be has been seen to.
    pub(crate) fn forget(&self, blob: &BlobState) {
        self.blobs.borrow_mut().remove(&blob.id);
        blob.deleted.set(true);
        let mut state = self.state.borrow_mut();
        for (index, number) in std::mem::take(&mut *blob.entries.borrow_mut()) {
            state.dirty.remove(&(blob.id, index));
            state.free_entry(number);
        }
        drop(state);
        self.change();
    }

    /// Takes a damaged blob out of the store.
    pub(crate) fn remove_damaged(&self, id: BlobId) -> Result<(), Error> {
        let mut damaged = self.damaged.borrow_mut();
        damaged.remove(&id).ok_or(Error::NoSuchBlob(id))?;
        self.rootless.borrow_mut().remove(&id);
        for parent in self.blobs.borrow().values() {
            parent.children.borrow_mut().remove(&id);
        }
        let mut state = self.state.borrow_mut();
        let numbers: Vec<u32> = (0..state.entries.len() as u32)
            .filter(|&number| state.entries[number as usize].blob == id.0)
            .collect();
        for number in numbers {
            state.free_entry(number);
        }
        if damaged.is_empty() {
            state.clusters.release_quarantined();
        }
        drop(state);
        self.change();
        Ok(())
    }

    /// Sets the size; the clusters beyond are given up. Nothing may be in flight, and what lies between the old and
    /// a larger size reads zeros already.
    pub(crate) fn set_size(&self, blob: &BlobState, size_pages: u64) {
        let shrinks = size_pages < blob.size_pages.get();
        blob.size_pages.set(size_pages);
        blob.parent_pages.set(blob.parent_pages.get().min(size_pages));
        if shrinks {
            self.unmap(blob, size_pages.div_ceil(self.cluster_pages()), u64::MAX);
        }
        self.mark_dirty(blob, 0);
        blob.sized_at.set(self.changes.get());
        if shrinks {
            blob.shrunk_at.set(self.changes.get());
        }
    }

    /// The blob gets a cluster. Its map page, which is reserved, is marked dirty by whoever calls, before anything is awaited.
    pub(crate) fn own(&self, blob: &BlobState, index: u64, cluster: u32) {
        blob.map.borrow_mut().set(index, cluster);
        let committed = self.committed.get();
        let mut unnamed = blob.unnamed.borrow_mut();
        if unnamed.len() >= UNNAMED_LOOK {
            unnamed.retain(|_, at| *at > committed);
        }
        // Counted with the map page, as the next change.
        unnamed.insert(index, self.changes.get() + 1);
    }

    /// Whether clusters of the blob may be a snapshot's again after a crash.
    #[inline]
    pub(crate) fn is_lent(&self, blob: &BlobState) -> bool {
        blob.lent_at.get() > self.committed.get()
    }

    /// Whether a completed commit names all that the blob has in these pages: what is written there is durable with the device's
    /// next flush.
    pub(crate) fn is_named(&self, blob: &BlobState, first: u64, pages: u64) -> bool {
        let committed = self.committed.get();
        let (map, unnamed) = (blob.map.borrow(), blob.unnamed.borrow());
        let clusters = first / self.cluster_pages()..(first + pages).div_ceil(self.cluster_pages());
        blob.sized_at.get() <= committed
            && clusters.into_iter().all(|index| {
                let has_own = !matches!(map.entry(index), 0 | HOLE);
                has_own && unnamed.get(&index).is_none_or(|at| *at <= committed)
            })
    }

    /// Whether all pages of a range lie in clusters of the blob's own.
    pub(crate) fn owns(&self, blob: &BlobState, pages: std::ops::Range<u64>) -> bool {
        let mut clusters = pages.start / self.cluster_pages()..pages.end.div_ceil(self.cluster_pages());
        let map = blob.map.borrow();
        clusters.all(|index| !matches!(map.entry(index), 0 | HOLE))
    }

    /// Gives up the clusters of the blob from `first` to before `end`; its parent, if it has one, shows there. Nothing may
    /// be in flight.
    pub(crate) fn unmap(&self, blob: &BlobState, first: u64, end: u64) {
        let unmapped: Vec<(u64, u32)> = blob
            .map
            .borrow()
            .named_from(first)
            .take_while(|&(index, _)| index < end)
            .collect();
        let mut pages = BTreeSet::new();
        for (index, cluster) in unmapped {
            blob.map.borrow_mut().set(index, 0);
            if cluster != HOLE {
                self.state.borrow_mut().clusters.release(cluster);
            }
            pages.insert(cluster_map::page_index(index));
        }
        self.map_changed(blob, pages);
    }

    /// Pages of the map have changed: those that are needed no more are given up.
    pub(crate) fn map_changed(&self, blob: &BlobState, pages: BTreeSet<u32>) {
        for page in pages {
            let is_empty = blob.map.borrow().page(page).iter().all(|&cluster| cluster == 0);
            if is_empty && page != 0 {
                self.drop_page(blob, page);
            } else {
                self.mark_dirty(blob, page);
            }
        }
    }

    /// Puts attributes in the place of the blob's, all or nothing.
    pub(crate) fn set_attributes(&self, blob: &BlobState, attributes: Attributes) -> Result<(), Error> {
        self.check_running()?;
        let pages = attribute_pages(attributes::encoded_bytes(&attributes));
        for index in 1..=pages {
            if let Err(error) = self.reserve_page(blob, index) {
                // Reserved pages that were not there before would be found empty by the next open.
                let before = attribute_pages(attributes::encoded_bytes(&blob.attributes.borrow()));
                (before + 1..index).for_each(|index| self.drop_page(blob, index));
                return Err(error);
            }
        }
        *blob.attributes.borrow_mut() = attributes;
        (0..=pages).for_each(|index| self.mark_dirty(blob, index));
        (pages + 1..=ATTRIBUTE_PAGES as u32).for_each(|index| self.drop_page(blob, index));
        Ok(())
    }

    /// The shape that a blob shows to those above.
    pub(crate) fn blob_geometry(&self, blob: &BlobState) -> Geometry {
        Geometry {
            block_bytes: PAGE_BYTES as u32,
            blocks: BlockCount(blob.size_pages.get()),
            metadata_bytes: 0,
            boundary_blocks: self.shape.cluster_pages,
            // A first write is found again only after a flush, whatever the device does.
            write_cache: true,
        }
    }
}

/// Attribute pages after the root that so many bytes need.
pub(crate) fn attribute_pages(bytes: usize) -> u32 {
    bytes
        .saturating_sub(root_field::ATTRIBUTES.length)
        .div_ceil(continued::BYTES.length) as u32
}

impl State {
    pub(crate) fn free_entry(&mut self, number: u32) {
        let entry = std::mem::take(&mut self.entries[number as usize]);
        let is_refused = self.refused_entries.remove(&number).is_some();
        if entry.page != 0 && !is_refused {
            self.released_slots.push(entry.page);
        }
        self.dirty_tables.insert(number as usize / ENTRIES_PER_PAGE);
        self.free_entries.push(number);
    }
}
