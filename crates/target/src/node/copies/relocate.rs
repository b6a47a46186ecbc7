//! The blobs of a copy that moves to another disk of its node (`docs/decisions/0145`). The order in which things become durable is that of the
//! decision: the new blob has no name before it is equal, the old one is gone before anything is written to the new one.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bdev::{ChannelExt, IoError};
use blobstore::{Blob, BlobId, Blobstore};
use foundation::{BlockCount, Lba};
use reactor::buffer::BUFFER_BYTES_MAX;
use reactor::sync::Permit;
use reactor::{BufferPool, time};
use volume::{ChunkId, PersistToken};

use super::super::sums::tail_blocks;
use super::record::write_slot;
use super::{
    ATTRIBUTE_CHUNK, ATTRIBUTE_SCRUBBED, BLOCK_BYTES, Copies, Copy, CopyError, HEAD_BLOCKS, chunk_bytes,
    copy_of, runs_within,
};

/// Where a copy that has moved comes from: the identity of the disk, and the blob there. Taken away once the old one is gone.
pub(super) const ATTRIBUTE_MOVED: &str = "redhare.moved";
/// Between two looks whether requests of a copy have ended.
const LOOK: Duration = Duration::from_millis(1);
/// How long a commit that finds no room is tried again, and how often.
const ROOM_PATIENCE: Duration = Duration::from_secs(3);
const ROOM_LOOK: Duration = Duration::from_millis(50);

/// A copy that moves.
pub(in crate::node) struct Relocation {
    chunk: ChunkId,
    old: Rc<Copy>,
    old_blob: Blob,
    /// To this disk, and the blob that it gets there.
    disk: usize,
    store: Blobstore,
    blob: Blob,
    /// The newest change of its record that was not durable when it was frozen.
    pending: Cell<Option<PersistToken>>,
    /// The new blob may be found.
    is_named: Cell<bool>,
}

/// The new copy once it is equal to the frozen one, of which nobody writes the checksums meanwhile.
pub(in crate::node) struct Equal {
    copy: Rc<Copy>,
    _still: Option<Permit>,
}

/// What a copy that has moved says of where it comes from.
pub(super) fn origin_of_move(blob: &Blob) -> Option<(u128, BlobId)> {
    let bytes = blob.attribute(ATTRIBUTE_MOVED)?;
    let (disk, blob) = bytes.split_first_chunk::<16>()?;
    let blob = u64::from_le_bytes(blob.try_into().ok()?);
    Some((u128::from_be_bytes(*disk), BlobId(blob)))
}

impl Copies {
    /// Begins to move a copy to the disk of this identity; none if it is there.
    pub(in crate::node) fn begin_move(
        &self,
        chunk: ChunkId,
        uuid: u128,
    ) -> Result<Option<Relocation>, CopyError> {
        let old = self.get(chunk).ok_or(CopyError::NoSuchCopy { chunk })?;
        let disk = self.disks.iter().position(|disk| disk.uuid == uuid);
        let disk = disk.ok_or(CopyError::NoSuchDisk { disk: uuid })?;
        // Of a move that failed before, perhaps, so that nobody knows where it is.
        if old.stopped.get() {
            return Err(CopyError::Stopped { chunk });
        }
        if disk == old.disk {
            return Ok(None);
        }
        if self.doubtful.borrow().contains_key(&(chunk, disk)) {
            return Err(CopyError::InDoubt { chunk });
        }
        if self.damaged.borrow().contains_key(&chunk) {
            return Err(CopyError::Damaged { chunk });
        }
        let failed = |source| CopyError::Store { chunk, source };
        let old_blob = self.disks[old.disk].store.blob(old.blob).map_err(failed)?;
        check_apart(chunk, &old_blob)?;
        let store = self.disks[disk].store.clone();
        let blob = store.create(old_blob.size_pages()).map_err(failed)?;
        Ok(Some(Relocation {
            chunk,
            old,
            old_blob,
            disk,
            store,
            blob,
            pending: Cell::new(None),
            is_named: Cell::new(false),
        }))
    }
}

/// A copy that shares its clusters with a snapshot stays: the other disk would need the room of both.
fn check_apart(chunk: ChunkId, blob: &Blob) -> Result<(), CopyError> {
    match blob.parent() {
        Some(_) => Err(CopyError::Shares { chunk }),
        None => Ok(()),
    }
}

impl Relocation {
    /// Whether the new blob may be found, so that it is not to be given up.
    pub(in crate::node) fn is_named(&self) -> bool {
        self.is_named.get()
    }

    /// Whose copy it is.
    pub(in crate::node) fn chunk(&self) -> ChunkId {
        self.chunk
    }

    fn chunk_blocks(&self) -> u32 {
        self.old.geometry().chunk_blocks
    }

    /// The blocks of the copy that lie on its disk, in pieces of so many at most.
    pub(in crate::node) fn pieces(&self, most: u32) -> Vec<Range<u32>> {
        let mut pieces = Vec::new();
        for run in runs_within(&self.old_blob.runs(), self.pages_of(0..self.chunk_blocks())) {
            let end = run.first_block + run.blocks;
            let firsts = (run.first_block..end).step_by(most as usize);
            pieces.extend(firsts.map(|first| first..first.saturating_add(most).min(end)));
        }
        pieces
    }

    fn pages_of(&self, blocks: Range<u32>) -> Range<u64> {
        HEAD_BLOCKS + u64::from(blocks.start)..HEAD_BLOCKS + u64::from(blocks.end.min(self.chunk_blocks()))
    }

    /// Copies these blocks, as far as the chunk has them; `is_again` if they may have been copied before.
    pub(in crate::node) async fn copy_blocks(
        &self,
        blocks: Range<u32>,
        is_again: bool,
    ) -> Result<(), CopyError> {
        self.copy_pages(self.pages_of(blocks), is_again).await
    }

    async fn copy_pages(&self, pages: Range<u64>, is_again: bool) -> Result<(), CopyError> {
        let mut at = pages.start;
        for run in runs_within(&self.old_blob.runs_in(pages.clone()), pages.clone()) {
            let first = pages.start + u64::from(run.first_block);
            if is_again {
                self.clear(at..first).await?;
            }
            at = first + u64::from(run.blocks);
            let mut next = first;
            while next < at {
                let count = (at - next).min((BUFFER_BYTES_MAX / BLOCK_BYTES) as u64);
                self.copy_part(next, count).await?;
                next += count;
            }
        }
        match is_again {
            true => self.clear(at..pages.end).await,
            false => Ok(()),
        }
    }

    async fn copy_part(&self, page: u64, pages: u64) -> Result<(), CopyError> {
        let room = BufferPool::current().allocate(pages as usize * BLOCK_BYTES).await;
        let room = room.map_err(|_| self.failed(IoError::Exhausted))?;
        let (read, bytes) = self.old_blob.read(page, room).await;
        read.map_err(|source| self.failed(source))?;
        let written = self.blob.write(page, bytes.freeze()).await;
        written.map_err(|source| self.failed(source))
    }

    /// These pages read zeros on the old disk.
    async fn clear(&self, pages: Range<u64>) -> Result<(), CopyError> {
        // Where nothing was copied they do so on the new one.
        for run in runs_within(&self.blob.runs_in(pages.clone()), pages.clone()) {
            let first = Lba(pages.start + u64::from(run.first_block));
            let cleared = self.blob.channel();
            let cleared = cleared.write_zeroes(first, BlockCount(run.blocks.into())).await;
            cleared.map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn failed(&self, source: IoError) -> CopyError {
        let chunk = self.chunk;
        CopyError::Move { chunk, source }
    }

    /// Makes what was copied so far durable; it has no name yet.
    pub(in crate::node) async fn sync(&self) -> Result<(), CopyError> {
        let chunk = self.chunk;
        let synced = self.store.sync().await;
        synced.map_err(|source| CopyError::Store { chunk, source })
    }

    /// Whether writes or flushes of the copy are under way.
    pub(in crate::node) fn is_written(&self) -> bool {
        Rc::strong_count(&self.old.writing) > 1
    }

    /// No change of the frozen copy's record is on its way any more, nor begins to be, and its checksums are on the disk.
    pub(in crate::node) async fn settle(&self, copies: &Copies) -> Result<(), CopyError> {
        if let Some(sums) = &self.old.sums {
            let flushed = sums.flush().await;
            flushed.map_err(|source| self.failed(source))?;
        }
        let disk = &copies.disks[self.old.disk];
        // Whoever makes records durable just now ends first.
        let _turn = disk.persisting.acquire().await;
        self.pending.set(self.old.pending.take());
        disk.noted.borrow_mut().retain(|noted| *noted != self.chunk);
        Ok(())
    }

    /// Makes the new copy equal: the checksums, which nobody writes any more, and the record.
    pub(in crate::node) async fn make_equal(&self) -> Result<Equal, CopyError> {
        let (chunk, old) = (self.chunk, &self.old);
        let still = match &old.sums {
            Some(sums) => Some(sums.hold_still().await),
            None => None,
        };
        if old.sums.is_some() {
            let first = HEAD_BLOCKS + u64::from(self.chunk_blocks());
            let tail = tail_blocks(self.chunk_blocks());
            self.copy_pages(first..first + tail, false).await?;
        }
        let copy = Rc::new(self.new_copy());
        write_slot(&copy, false)
            .await
            .map_err(|source| CopyError::Record { chunk, source })?;
        Ok(Equal { copy, _still: still })
    }

    /// Makes the new copy durable and the one that is used, and deletes the old one durably.
    pub(in crate::node) async fn finish(&self, copies: &Copies, new: &Equal) -> Result<(), CopyError> {
        let (chunk, old, new) = (self.chunk, &self.old, &new.copy);
        // A snapshot may have been made since it began.
        check_apart(chunk, &self.old_blob)?;
        if old.stopped.get() {
            return Err(CopyError::NoSuchCopy { chunk });
        }
        let named = self.name(copies.disks[old.disk].uuid).await;
        if named.is_err() || old.stopped.get() {
            let why = named.err().unwrap_or(CopyError::NoSuchCopy { chunk });
            return Err(self.unless_it_stays(copies, new, why).await);
        }
        copies.replace(old, new.clone());
        // Where it is not known whether that is durable, the old one may be found again: neither may be written then.
        let deleted = delete_durably(copies, old, &self.old_blob).await;
        deleted.map_err(|source| CopyError::MayStay { chunk, source })?;
        // It tells the two apart, of which one is there; so it goes with whatever is committed next.
        let _ = self.blob.remove_attribute(ATTRIBUTE_MOVED);
        Ok(())
    }

    /// Gives the new blob its name, durably. From the first step on it may be found.
    async fn name(&self, old_disk: u128) -> Result<(), CopyError> {
        let chunk = self.chunk;
        self.is_named.set(true);
        let failed = |source| CopyError::Store { chunk, source };
        let from = [&old_disk.to_be_bytes()[..], &self.old.blob.0.to_le_bytes()];
        let scrubbed = self.old_blob.attribute(ATTRIBUTE_SCRUBBED);
        let attributes = [
            (ATTRIBUTE_MOVED, Some(from.concat())),
            (ATTRIBUTE_SCRUBBED, scrubbed),
            (ATTRIBUTE_CHUNK, Some(chunk_bytes(chunk).to_vec())),
        ];
        for (name, value) in attributes {
            if let Some(value) = value {
                self.blob.set_attribute(name, &value).map_err(failed)?;
            }
        }
        sync_patiently(&self.store).await.map_err(failed)
    }

    /// Deletes the new copy, which may be found already. If that cannot be made durable, both stay, and neither may be written any more.
    async fn unless_it_stays(&self, copies: &Copies, new: &Rc<Copy>, why: CopyError) -> CopyError {
        let chunk = self.chunk;
        match delete_durably(copies, new, &self.blob).await {
            Ok(()) => why,
            Err(source) => CopyError::MayStay { chunk, source },
        }
    }

    fn new_copy(&self) -> Copy {
        let record = self.old.record.borrow().clone();
        Copy {
            sums: self.old.sums.clone(),
            ..copy_of(&self.blob, self.disk, record, 0, false)
        }
    }

    /// It does not move: what there is of the new blob, which is not named, goes.
    pub(in crate::node) async fn give_up(&self) {
        match self.store.delete(self.blob.id()).await {
            Ok(()) | Err(blobstore::Error::NoSuchBlob(_)) => {}
            Err(error) => {
                tracing::warn!(chunk = ?self.chunk, %error, "what was copied of a chunk copy that stays is deleted with the next start");
            }
        }
    }
}

impl Copies {
    /// Another copy of the same chunk, which has the same, is used instead.
    fn replace(&self, before: &Rc<Copy>, after: Rc<Copy>) {
        let chunk = after.record.borrow().chunk;
        after.stopped.set(before.stopped.get());
        if let Some(sums) = &after.sums {
            sums.lie_on(after.channel.clone());
        }
        self.copies.borrow_mut().insert(chunk, after);
        self.clones.tell_of_move(chunk);
    }

    /// A copy is frozen no more, wherever it is now: what was to be made durable of its record is.
    pub(in crate::node) fn thaw(&self, relocation: &Relocation) {
        let Some(token) = relocation.pending.take() else {
            return;
        };
        if let Some(copy) = self.copies.borrow().get(&relocation.chunk) {
            copy.marks.borrow_mut().clear();
            copy.is_due_whole.set(true);
        }
        self.note_again(relocation.chunk, token);
    }
}

/// Deletes the blob of a copy that is used no more once nothing is asked of it, durably.
async fn delete_durably(copies: &Copies, copy: &Rc<Copy>, blob: &Blob) -> Result<(), blobstore::Error> {
    let disk = &copies.disks[copy.disk];
    // Until it is durable, what the journal has of it stays there.
    disk.deleting.set(disk.deleting.get() + 1);
    // Reads hold it, and whoever writes the records of a whole disk; the last is the caller.
    while Rc::strong_count(copy) > 1 {
        time::sleep(LOOK).await;
    }
    let deleted = match disk.store.delete(blob.id()).await {
        Ok(()) | Err(blobstore::Error::NoSuchBlob(_)) => sync_patiently(&disk.store).await,
        Err(error) => Err(error),
    };
    // Nothing of the chunk is said to be deleted before that is known.
    disk.has_unsynced.set(disk.has_unsynced.get() | deleted.is_err());
    disk.deleting.set(disk.deleting.get() - 1);
    deleted
}

/// Want of room passes, and is no failure of the disk.
async fn sync_patiently(store: &Blobstore) -> Result<(), blobstore::Error> {
    let until = time::now() + ROOM_PATIENCE;
    loop {
        match store.sync().await {
            Err(blobstore::Error::NoRoom) if time::now() < until => time::sleep(ROOM_LOOK).await,
            synced => return synced,
        }
    }
}
