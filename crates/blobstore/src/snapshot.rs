//! Snapshots and clones of blobs.
//!
//! A *snapshot* takes over what a blob holds, in one change of metadata, and never changes again; the blob goes on as its
//! child: an empty map in front of the snapshot's. What a blob's map does not name is looked for in its parent, and on
//! through its parent's parent. A first write takes a cluster and copies the rest of it from there (`slow_path`). A *clone*
//! is another child of a snapshot. `parent_pages` says how far a parent shows, since a child that shrank must not find again
//! what it gave up; a [`HOLE`] hides a parent's cluster.
//!
//! Every cluster has one owner, however many blobs show it. So free space is what nobody owns, and what the deletion of a
//! snapshot gives back can be said beforehand ([`Blobstore::given_back_by`]). A snapshot with one child is deleted without
//! copying: the child becomes the owner of what it shows.
//!
//! *After a crash* the store is, as for every change of metadata, as before or as after: the moment of a snapshot is one
//! change, and the commit that makes it durable first flushes all that the blob had been given. So a snapshot that is found
//! again holds every write that had ended when it was made, synced or not. No cluster that the durable state names is
//! written in place by a snapshot's children, and none gets another owner before a commit.
//!
//! *Rot.* A page of a snapshot that the device has lost is written anew where it lies ([`Blob::mend`]), by whoever knows what it was.
//!
//! # Cost
//! Snapshot: one metadata page, no data; it waits for the blob's requests in flight. Clone: one metadata page. A read of
//! what the blob has itself costs what it did; else one look-up more for each parent in between.

use std::collections::BTreeSet;
use std::rc::Rc;

use bdev::{Data, IoError, Operation};
use foundation::ByteCount;
use reactor::Buffer;

use crate::blob::{Blob, Blobstore};
use crate::cluster_map::{self, ClusterMap, HOLE};
use crate::error::{BlobId, Error};
use crate::format::PAGE_BYTES;
use crate::format::blob_page::MAP_INDEX;
use crate::slow_path;
use crate::store::{BlobState, Store};

impl Blobstore {
    /// Makes a snapshot of a blob as it is when its requests in flight have ended. It is there, in memory, when this
    /// returns, and durable by [`Blobstore::sync`], with whatever attributes are set before; it has none of the blob's.
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::Damaged`], [`Error::MetadataFull`], [`Error::Stopped`]; [`Error::ReadOnly`] for a
    /// snapshot. The blob is then as before.
    pub async fn snapshot(&self, id: BlobId) -> Result<Blob, Error> {
        let blob = self.store.find(id)?;
        let _alone = blob.gate.enter_exclusive().await;
        self.store.check_running()?;
        if blob.deleted.get() {
            return Err(Error::NoSuchBlob(id));
        }
        Ok(self.handle(self.store.snapshot(&blob)?))
    }

    /// Makes a blob that begins as the snapshot is, and has nothing of its own. Durable by [`Blobstore::sync`].
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::Damaged`], [`Error::NotASnapshot`], [`Error::MetadataFull`], [`Error::Stopped`].
    pub fn clone_snapshot(&self, snapshot: BlobId) -> Result<Blob, Error> {
        let parent = self.store.find(snapshot)?;
        if !parent.is_snapshot.get() {
            return Err(Error::NotASnapshot(snapshot));
        }
        let size_pages = parent.size_pages.get();
        let blob = self.store.create(size_pages)?;
        blob.parent_pages.set(size_pages);
        parent.children.borrow_mut().insert(blob.id);
        *blob.parent.borrow_mut() = Some(parent);
        Ok(self.handle(blob))
    }

    /// Clusters that deleting the blob would make free: those that nobody else shows. None for a snapshot with several
    /// children, which cannot be deleted.
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::Damaged`].
    pub fn given_back_by(&self, id: BlobId) -> Result<u32, Error> {
        let blob = self.store.find(id)?;
        let children = blob.children.borrow();
        let mut children = children.iter();
        let (first, more) = (children.next(), children.next());
        if more.is_some() {
            return Ok(0);
        }
        let child = match first {
            Some(first) => Some(self.store.find(*first)?),
            None => None,
        };
        let map = blob.map.borrow();
        let unseen = |index: u64| child.as_ref().is_none_or(|child| !self.store.shows(child, index));
        Ok(map.allocated_from(0).filter(|(index, _)| unseen(*index)).count() as u32)
    }

    /// Room that snapshots own, whoever else shows it: what the blobs that are written may need again for themselves, to the last
    /// byte. A step for each blob.
    pub fn held_by_snapshots(&self) -> ByteCount {
        let blobs = self.store.blobs.borrow();
        let snapshots = blobs.values().filter(|blob| blob.is_snapshot.get());
        let clusters: u64 = snapshots.map(|blob| blob.map.borrow().allocated_count()).sum();
        ByteCount(clusters * self.store.cluster_pages() * PAGE_BYTES as u64)
    }
}

impl Blobstore {
    /// Room that a blob owns, without what it shows of its parents; none of a blob that is not there, or is damaged. Blocks on nothing.
    pub fn owned_by(&self, id: BlobId) -> ByteCount {
        let blobs = self.store.blobs.borrow();
        let clusters = blobs
            .get(&id)
            .map_or(0, |blob| blob.map.borrow().allocated_count());
        ByteCount(clusters * self.store.cluster_pages() * PAGE_BYTES as u64)
    }
}

impl Blob {
    /// The blob that shows through where this one has nothing of its own.
    pub fn parent(&self) -> Option<BlobId> {
        self.channel.blob.parent.borrow().as_ref().map(|parent| parent.id)
    }

    /// Whether the blob is a snapshot: it is never written to, nor is its size changed.
    pub fn is_snapshot(&self) -> bool {
        self.channel.blob.is_snapshot.get()
    }

    /// The blobs made of this snapshot.
    pub fn children(&self) -> Vec<BlobId> {
        self.channel.blob.children.borrow().iter().copied().collect()
    }

    /// Puts pages of a snapshot right that have rotted on the device: writes them where they lie, be that in a cluster of its own or
    /// of a parent. Who calls answers for it that these are the bytes that the snapshot was made with; they are right for every
    /// blob that shows the cluster, then, since none of them has written there. Whoever reads meanwhile finds a page as it was, as it
    /// should be, or torn. No metadata change. Durable by [`Blobstore::sync`]; a crash before leaves pages that are wrong still.
    ///
    /// The snapshot is not deleted meanwhile, so that no child comes to own the cluster, and writes to it, before this has ended; it goes
    /// on even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::NotASnapshot`], [`Error::NoSuchBlob`], [`Error::Stopped`]; [`Error::Io`] if the device fails, for pages beyond the end,
    /// and with [`IoError::Unsupported`] if nothing was ever written there.
    pub async fn mend(&self, page: u64, buffer: Buffer) -> Result<(), Error> {
        let (store, blob) = (self.channel.store.clone(), self.channel.blob.clone());
        let id = blob.id;
        let mended = reactor::spawn(async move { mend(&store, &blob, page, buffer).await });
        mended.await.unwrap_or(Err(Error::Io {
            blob: id,
            error: IoError::Aborted,
        }))
    }

    /// Copies into the blob what it shows of its parents, one cluster after the other beside its requests, and parts from
    /// them. The clusters copied. If the future is dropped, or the process ends, what was copied stays; durable by
    /// [`Blobstore::sync`]. A snapshot shows afterwards what it did, and so do its children.
    ///
    /// # Errors
    /// [`Error::NoSuchBlob`], [`Error::Stopped`]; [`Error::Io`] if there is no space or the device fails.
    pub async fn flatten(&self) -> Result<u64, Error> {
        self.flatten_with_pauses(|| std::future::ready(())).await
    }

    /// As [`Blob::flatten`]; calls `pause` after each cluster, before anything else is done in the store, and waits for it.
    ///
    /// # Errors
    /// As those of [`Blob::flatten`].
    pub async fn flatten_with_pauses<F: Future<Output = ()>>(
        &self,
        mut pause: impl FnMut() -> F,
    ) -> Result<u64, Error> {
        let (store, blob) = (&self.channel.store, &self.channel.blob);
        let mut copied = 0;
        loop {
            let clusters = blob.parent_pages.get().div_ceil(store.cluster_pages());
            for index in 0..clusters {
                if !store.shows(blob, index) {
                    continue;
                }
                let shared = blob.gate.enter().await;
                store.check_running()?;
                if blob.deleted.get() {
                    return Err(Error::NoSuchBlob(blob.id));
                }
                let made = store.make_own(blob, index).await?;
                copied += u64::from(made);
                let paused = made.then(&mut pause);
                drop(shared);
                if let Some(paused) = paused {
                    paused.await;
                }
            }
            let _alone = blob.gate.enter_exclusive().await;
            store.wait_below(blob).await?;
            store.check_running()?;
            if blob.deleted.get() {
                return Err(Error::NoSuchBlob(blob.id));
            }
            // A snapshot that was made meanwhile has all that was copied.
            let clusters = blob.parent_pages.get().div_ceil(store.cluster_pages());
            if (0..clusters).all(|index| !store.shows(blob, index)) {
                store.part(blob);
                return Ok(copied);
            }
        }
    }
}

impl Store {
    /// Whether the blob shows anything of its parents in a cluster.
    fn shows(&self, blob: &BlobState, index: u64) -> bool {
        blob.map.borrow().entry(index) == 0 && self.inherited(blob, index * self.cluster_pages()).is_some()
    }

    /// Gives the blob a cluster of its own with what it shows there. False if it has one.
    async fn make_own(self: &Rc<Self>, blob: &Rc<BlobState>, index: u64) -> Result<bool, Error> {
        let mut made = false;
        while self.shows(blob, index) {
            let page = index * self.cluster_pages();
            made = slow_path::copy_cluster(self, blob, page)
                .await
                .map_err(|error| Error::Io { blob: blob.id, error })?;
        }
        Ok(made)
    }

    /// The blob's parent shows nothing any more.
    fn part(&self, blob: &BlobState) {
        let Some(parent) = blob.parent.take() else {
            return;
        };
        parent.children.borrow_mut().remove(&blob.id);
        blob.parent_pages.set(0);
        self.clear_holes(blob);
        self.mark_dirty(blob, 0);
    }

    /// Nothing is left to be hidden.
    fn clear_holes(&self, blob: &BlobState) {
        let holes: Vec<u64> = {
            let map = blob.map.borrow();
            let holes = map.named_from(0).filter(|&(_, cluster)| cluster == HOLE);
            holes.map(|(index, _)| index).collect()
        };
        let mut pages = BTreeSet::new();
        for index in holes {
            blob.map.borrow_mut().set(index, 0);
            pages.insert(cluster_map::page_index(index));
        }
        self.map_changed(blob, pages);
    }

    /// Hides what shows of the parents in a cluster. Its map page is reserved.
    pub(crate) fn hide(&self, blob: &BlobState, index: u64) {
        blob.map.borrow_mut().set(index, HOLE);
        self.mark_dirty(blob, cluster_map::page_index(index));
    }

    /// As [`Store::unmap`], and what would show of the parents is hidden.
    pub(crate) fn give_up(&self, blob: &BlobState, first: u64, end: u64) -> Result<(), Error> {
        let cluster_pages = self.cluster_pages();
        let shown = end.min(blob.parent_pages.get().div_ceil(cluster_pages));
        let holes = (first..shown).filter(|index| self.inherited(blob, index * cluster_pages).is_some());
        let holes: Vec<u64> = holes.collect();
        for &index in &holes {
            self.reserve_page(blob, cluster_map::page_index(index))?;
        }
        let given: Vec<(u64, u32)> = {
            let map = blob.map.borrow();
            map.named_from(first)
                .take_while(|&(index, _)| index < end)
                .collect()
        };
        let mut pages = BTreeSet::new();
        for (index, cluster) in given {
            if cluster != HOLE {
                self.state.borrow_mut().clusters.release(cluster);
            }
            blob.map.borrow_mut().set(index, 0);
            pages.insert(cluster_map::page_index(index));
        }
        for index in holes {
            blob.map.borrow_mut().set(index, HOLE);
            pages.insert(cluster_map::page_index(index));
        }
        self.map_changed(blob, pages);
        Ok(())
    }

    /// Puts a snapshot between the blob and its parent. Nothing of the blob may be in flight.
    fn snapshot(&self, blob: &Rc<BlobState>) -> Result<Rc<BlobState>, Error> {
        if blob.is_snapshot.get() {
            return Err(Error::ReadOnly(blob.id));
        }
        let snapshot = self.create(blob.size_pages.get())?;
        snapshot.is_snapshot.set(true);
        std::mem::swap(&mut *snapshot.map.borrow_mut(), &mut *blob.map.borrow_mut());
        for index in map_pages(blob) {
            self.hand_over(blob, &snapshot, index);
        }
        let parent = blob.parent.borrow_mut().replace(snapshot.clone());
        if let Some(parent) = &parent {
            let mut children = parent.children.borrow_mut();
            children.remove(&blob.id);
            children.insert(snapshot.id);
        }
        *snapshot.parent.borrow_mut() = parent;
        snapshot.parent_pages.set(blob.parent_pages.get());
        snapshot.children.borrow_mut().insert(blob.id);
        blob.parent_pages.set(blob.size_pages.get());
        self.mark_dirty(blob, 0);
        Ok(snapshot)
    }

    /// A page of the map becomes another blob's, which has none of that index.
    fn hand_over(&self, from: &BlobState, to: &BlobState, index: u32) {
        let number = from.entries.borrow_mut().remove(&index);
        let number = number.expect("the page was found among the blob's");
        let mut state = self.state.borrow_mut();
        state.dirty.remove(&(from.id, index));
        state.entries[number as usize].blob = to.id.0;
        drop(state);
        to.entries.borrow_mut().insert(index, number);
        self.mark_dirty(to, index);
    }

    /// Deletes a blob of which nothing is in flight. A snapshot that a damaged blob shows, or may show, stays: that blob may be whole when
    /// the store is opened next.
    pub(crate) async fn delete_alone(self: &Rc<Self>, blob: &Rc<BlobState>) -> Result<(), Error> {
        let rootless = self.rootless.borrow().first().copied();
        if let Some(damaged) = rootless.filter(|_| blob.is_snapshot.get() && blob.id < self.opened_at) {
            self.find(damaged)?;
        }
        loop {
            let children: Vec<BlobId> = blob.children.borrow().iter().copied().collect();
            let child = match children[..] {
                [] => {
                    self.remove(blob);
                    return Ok(());
                }
                [child] => self.find(child)?,
                _ => {
                    return Err(Error::HasChildren {
                        blob: blob.id,
                        children: children.len(),
                    });
                }
            };
            // Ancestors first, everywhere, so nobody waits in a circle.
            let _alone = child.gate.enter_exclusive().await;
            self.wait_below(&child).await?;
            self.check_running()?;
            let is_still = |blob: &BlobState| blob.children.borrow().iter().eq([&child.id]);
            if !is_still(blob) || child.deleted.get() {
                continue;
            }
            // Of the cluster in which the parent's part ends the child must not get what lies behind.
            let end = child.parent_pages.get();
            let index = end / self.cluster_pages();
            let has = blob.map.borrow().entry(index);
            if !end.is_multiple_of(self.cluster_pages())
                && has != 0
                && child.size_pages.get() > end
                && self.shows(&child, index)
            {
                self.make_own(&child, index).await?;
                if !is_still(blob) {
                    continue;
                }
            }
            self.merge(blob, &child);
            return self.commit_all().await;
        }
    }

    /// Waits until what is in flight on a snapshot's children, and theirs, has ended: if the snapshot has been given a cluster
    /// of its own meanwhile, they may read what it showed before of its parent. Of it nothing is in flight.
    async fn wait_below(&self, blob: &BlobState) -> Result<(), Error> {
        let mut below: Vec<BlobId> = blob.children.borrow().iter().copied().collect();
        while let Some(id) = below.pop() {
            let Ok(child) = self.find(id) else { continue };
            drop(child.gate.enter_exclusive().await);
            self.check_running()?;
            below.extend(child.children.borrow().iter().copied());
        }
        Ok(())
    }

    /// The only child becomes the owner of what it shows of the snapshot, which ends. Nothing of both is in flight.
    fn merge(&self, snapshot: &BlobState, child: &BlobState) {
        let parent = snapshot.parent.take();
        let shown = child.parent_pages.get().div_ceil(self.cluster_pages());
        let named: Vec<(u64, u32)> = snapshot.map.borrow().named_from(0).collect();
        let mut pages = BTreeSet::new();
        for (index, cluster) in named {
            if index < shown && child.map.borrow().entry(index) == 0 {
                self.own(child, index, cluster);
                pages.insert(cluster_map::page_index(index));
            } else if cluster != HOLE {
                self.state.borrow_mut().clusters.release(cluster);
            }
        }
        for index in map_pages(snapshot) {
            if pages.contains(&index) && !child.entries.borrow().contains_key(&index) {
                self.hand_over(snapshot, child, index);
            }
        }
        let parent_pages = child.parent_pages.get().min(snapshot.parent_pages.get());
        child.parent_pages.set(parent_pages);
        if let Some(parent) = &parent {
            let mut children = parent.children.borrow_mut();
            children.remove(&snapshot.id);
            children.insert(child.id);
        }
        let is_last = parent.is_none();
        *child.parent.borrow_mut() = parent;
        self.map_changed(child, pages);
        if is_last {
            self.clear_holes(child);
        }
        self.mark_dirty(child, 0);
        snapshot.children.borrow_mut().clear();
        *snapshot.map.borrow_mut() = ClusterMap::new();
        self.forget(snapshot);
        // Whoever deletes may give up before the commit, or be told that there is no room for it now.
        child.lent_at.set(self.changes.get());
    }
}

async fn mend(store: &Store, blob: &BlobState, first: u64, buffer: Buffer) -> Result<(), Error> {
    let failed = |error| Error::Io { blob: blob.id, error };
    // A deletion waits for this, and so does that of a parent which would make its cluster this blob's.
    let _shared = blob.gate.enter().await;
    store.check_running()?;
    if blob.deleted.get() {
        return Err(Error::NoSuchBlob(blob.id));
    }
    if !blob.is_snapshot.get() {
        return Err(Error::NotASnapshot(blob.id));
    }
    let pages = (buffer.len() / PAGE_BYTES) as u64;
    let end = first.checked_add(pages);
    if !buffer.len().is_multiple_of(PAGE_BYTES) || end.is_none_or(|end| end > blob.size_pages.get()) {
        return Err(failed(IoError::OutOfRange));
    }
    let mut done = 0;
    while done < pages {
        let piece = store.piece(blob, first + done, pages - done);
        let device_page = piece.device_page.ok_or_else(|| failed(IoError::Unsupported))?;
        let start = done as usize * PAGE_BYTES;
        let part = buffer.slice(start..start + piece.pages as usize * PAGE_BYTES);
        let write = Operation::Write { fua: false };
        let written = store.io.start(write, device_page, piece.pages, Data::From(part));
        written.await.status.map_err(failed)?;
        done += piece.pages;
    }
    Ok(())
}

/// Indices of the blob's pages that continue its map.
fn map_pages(blob: &BlobState) -> Vec<u32> {
    let entries = blob.entries.borrow();
    entries.range(MAP_INDEX..).map(|(&index, _)| index).collect()
}
