//! Making all changes so far durable, at once or not at all.
//!
//! Metadata pages are never overwritten: a commit writes the changed ones to free places, then the table pages that
//! name them (two copies each), flushes, and only then writes the superblock that names the table pages:
//!
//! ```text
//! changed blob pages, table pages → flush → superblock 0 → flush → superblock 1
//! ```
//!
//! The first flush also makes data, and the zeros around it in newly allocated clusters, durable before anything
//! names those clusters. Superblock 1 follows for a later fault of page 0; it is durable before superblock 0 is
//! next written, because the next commit flushes first. What the durable state referred to (page slots, clusters)
//! is free again only when the commit has ended. Cost: two flushes, and for one changed blob five page writes.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bdev::IoError;
use reactor::time;

use crate::attributes;
use crate::error::{BlobId, Error};
use crate::format::blob_page::{self, FLAG_SNAPSHOT, MAP_INDEX, Root, continued, field as root_field};
use crate::format::superblock::{ADDRESSES, FEATURE_SNAPSHOTS, Pointer, Superblock};
use crate::format::table::{self, ENTRIES_PER_PAGE};
use crate::format::{Identity, Kind, PAGE_BYTES, Page, seal};
use crate::store::{BlobState, State, Store};

/// Between two attempts at a commit for which the device has no room: the first pause, each twice as long as the one before,
/// and the longest.
const ROOM_PAUSES: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(5);

/// Everything that one commit writes.
struct Plan {
    pages: Vec<(u64, Page)>,
    superblock: Superblock,
    /// Slots that are free once it is durable.
    freed_slots: Vec<u32>,
    /// The change that it reaches to.
    through: u64,
}

impl Store {
    /// Makes every change of metadata made before this call durable. A commit for which the device has no room is made
    /// again until it has; who waits for it is told at once.
    pub(crate) async fn commit_all(self: &Rc<Self>) -> Result<(), Error> {
        let target = self.changes.get();
        loop {
            self.check_running()?;
            if self.committed.get() >= target {
                return Ok(());
            }
            if self.lacks_room.get() {
                return Err(Error::NoRoom);
            }
            let ended = self.commit_ended.changed();
            if !self.committing.replace(true) {
                // A task of its own: whoever waits may give up, the commit may not.
                let store = self.clone();
                drop(reactor::spawn(async move { store.run_commit().await }));
            }
            ended.await;
        }
    }

    /// Makes data that was written and metadata that was changed before this call durable.
    pub(crate) async fn sync(self: &Rc<Self>) -> Result<(), Error> {
        let begun_before = self.commits_begun.get();
        self.commit_all().await?;
        let ended = self.commits_begun.get() - u64::from(self.committing.get());
        if ended > begun_before {
            // That commit's first flush came after this call.
            return Ok(());
        }
        self.io.flush().await.map_err(|error| self.stop(error))
    }

    /// Something has changed: if commits come by themselves, one is to.
    pub(crate) fn commit_soon(&self) {
        let within = self.commits_within.borrow().clone();
        let Some((store, pause)) = within else { return };
        if self.commit_is_due.replace(true) {
            return;
        }
        drop(reactor::spawn(async move {
            time::sleep(pause).await;
            let Some(store) = store.upgrade() else { return };
            store.commit_is_due.set(false);
            // A failure stops the store, which whoever syncs or writes next is told.
            let _ = store.commit_all().await;
        }));
    }

    /// No metadata is changed from now on. After a failed flush nobody knows what is durable.
    pub(crate) fn stop(&self, error: IoError) -> Error {
        // Nothing that stays is a want of room.
        let error = match error {
            IoError::NoSpace => IoError::Media,
            other => other,
        };
        self.stopped.set(Some(self.stopped.get().unwrap_or(error)));
        Error::Stopped(error)
    }

    async fn run_commit(self: Rc<Self>) {
        self.commits_begun.set(self.commits_begun.get() + 1);
        let plan = self.plan();
        let mut pause = ROOM_PAUSES.start;
        let outcome = loop {
            let outcome = self.carry_out(&plan).await;
            // Nothing durable names the places that were to be written, so they can be written again. Of a store that nobody
            // else has, the changes so far are given up, as by the end of its process.
            if outcome != Err(IoError::NoSpace) || Rc::strong_count(&self) == 1 {
                break outcome;
            }
            self.lacks_room.set(true);
            self.commit_ended.notify();
            time::sleep(pause).await;
            pause = ROOM_PAUSES.end.min(pause * 2);
        };
        self.lacks_room.set(false);
        match outcome {
            Ok(()) => {
                let mut state = self.state.borrow_mut();
                state.clusters.commit_ended(plan.superblock.untouched_cluster);
                for slot in plan.freed_slots {
                    let is_refused = state.refused_entries.values().any(|refused| *refused == slot);
                    if !is_refused {
                        state.page_slots.insert(slot);
                    }
                }
                self.committed.set(plan.through);
            }
            Err(error) => {
                self.stop(error);
            }
        }
        self.committing.set(false);
        self.commit_ended.notify();
        if self.changes.get() > self.committed.get() {
            // What was to commit them may have come while there was no room.
            self.commit_soon();
        }
    }

    async fn carry_out(&self, plan: &Plan) -> Result<(), IoError> {
        self.io.write_pages(&plan.pages).await?;
        self.io.flush().await?;
        let copy = |address| [(address, plan.superblock.encode(address))];
        self.io.write_pages(&copy(ADDRESSES[0])).await?;
        self.io.flush().await?;
        self.io.write_pages(&copy(ADDRESSES[1])).await
    }

    /// Takes all changes so far out of the state. Nothing is awaited here, so they are of one moment.
    fn plan(&self) -> Plan {
        let mut state = self.state.borrow_mut();
        state.generation += 1;
        let untouched_cluster = state.clusters.commit_begins();
        let mut freed_slots = std::mem::take(&mut state.released_slots);
        let mut pages = Vec::new();
        let dirty = std::mem::take(&mut state.dirty);
        let mut encoder = Encoder::default();
        for (id, index) in dirty {
            let blobs = self.blobs.borrow();
            let blob = blobs.get(&id).expect("pages of deleted blobs are not dirty");
            let entry = blob.entries.borrow()[&index] as usize;
            let slot = state.take_slot();
            let mut page = encoder.page(blob, index);
            let identity = self.identity(&state, Kind::Blob, slot, id, index);
            let crc = seal(&mut page, &identity, PAGE_BYTES);
            let entry_value = &mut state.entries[entry];
            if entry_value.page != 0 {
                freed_slots.push(entry_value.page);
            }
            (entry_value.page, entry_value.crc) = (slot, crc);
            state.dirty_tables.insert(entry / ENTRIES_PER_PAGE);
            pages.push((u64::from(slot), page));
        }
        for index in std::mem::take(&mut state.dirty_tables) {
            self.plan_table_page(&mut state, index, &mut pages, &mut freed_slots);
        }
        let superblock = Superblock {
            shape: self.shape,
            generation: state.generation,
            untouched_cluster,
            next_blob: state.next_blob,
            features_incompatible: self.features(),
            features_write: 0,
            table: state.pointers.clone(),
        };
        Plan {
            pages,
            superblock,
            freed_slots,
            through: self.changes.get(),
        }
    }

    /// What a program must know that opens the store. Of a damaged blob nobody knows whether it has a parent.
    fn features(&self) -> u64 {
        let needs = |blob: &Rc<BlobState>| blob.is_snapshot.get() || blob.parent.borrow().is_some();
        let unknown = self.had_snapshots.get() && !self.damaged.borrow().is_empty();
        match unknown || self.blobs.borrow().values().any(needs) {
            true => FEATURE_SNAPSHOTS,
            false => 0,
        }
    }

    fn plan_table_page(
        &self,
        state: &mut State,
        index: usize,
        pages: &mut Vec<(u64, Page)>,
        freed_slots: &mut Vec<u32>,
    ) {
        // Table pages are used from the first on, but a deletion may touch one that was never written.
        let first_new = state.pointers.len();
        for missing in first_new..index {
            state.pointers.push(Pointer::default());
            self.plan_table_page(state, missing, pages, freed_slots);
        }
        if state.pointers.len() == index {
            state.pointers.push(Pointer::default());
        }
        let start = index * ENTRIES_PER_PAGE;
        let end = state.entries.len().min(start + ENTRIES_PER_PAGE);
        // Reserved but never written: nothing there yet.
        let entries: Vec<table::Entry> = state.entries[start..end]
            .iter()
            .map(|entry| {
                if entry.page == 0 {
                    table::Entry::default()
                } else {
                    *entry
                }
            })
            .collect();
        let mut pointer = Pointer::default();
        for copy in 0..2 {
            let slot = state.take_slot();
            let identity = self.identity(state, Kind::Table, slot, BlobId(0), index as u32);
            let (page, crc) = table::encode(&entries, &identity);
            (pointer.pages[copy], pointer.crc[copy]) = (slot, crc);
            pages.push((u64::from(slot), page));
        }
        let before = std::mem::replace(&mut state.pointers[index], pointer);
        freed_slots.extend(before.pages.into_iter().filter(|&slot| slot != 0));
    }

    fn identity(&self, state: &State, kind: Kind, slot: u32, blob: BlobId, index: u32) -> Identity {
        Identity {
            kind,
            address: u64::from(slot),
            generation: state.generation,
            uuid: self.shape.uuid,
            blob: blob.0,
            index,
        }
    }
}

impl State {
    fn take_slot(&mut self) -> u32 {
        self.page_slots
            .take()
            .expect("the metadata region holds every page twice")
    }
}

/// Keeps the attributes' bytes of the blob whose pages are being encoded.
#[derive(Default)]
struct Encoder {
    blob: Option<BlobId>,
    attributes: Vec<u8>,
}

impl Encoder {
    fn page(&mut self, blob: &BlobState, index: u32) -> Page {
        if self.blob != Some(blob.id) {
            self.blob = Some(blob.id);
            self.attributes = attributes::encode(&blob.attributes.borrow());
        }
        let in_root = root_field::ATTRIBUTES.length.min(self.attributes.len());
        let map = blob.map.borrow();
        if index == 0 {
            let root = Root {
                size_pages: blob.size_pages.get(),
                parent: blob.parent.borrow().as_ref().map_or(0, |parent| parent.id.0),
                parent_pages: blob.parent_pages.get(),
                flags: if blob.is_snapshot.get() { FLAG_SNAPSHOT } else { 0 },
                attribute_bytes: self.attributes.len() as u32,
            };
            return blob_page::encode_root(&root, &self.attributes[..in_root], map.page(0));
        }
        if index >= MAP_INDEX {
            return blob_page::encode_map(map.page(index));
        }
        let part_bytes = continued::BYTES.length;
        let start = self
            .attributes
            .len()
            .min(in_root + (index as usize - 1) * part_bytes);
        let end = self.attributes.len().min(start + part_bytes);
        blob_page::encode_attributes(&self.attributes[start..end])
    }
}
