//! How changes of records become durable: marks of regions by the disk's journal, many copies' in one page, everything else by writing
//! the record whole, with one flush for all (`docs/decisions/0126`).

use std::collections::BTreeSet;
use std::rc::Rc;

use bdev::IoError;
use volume::{ChunkId, PersistToken, RecordDelta};

use super::journal::{Entry, Mark};
use super::record::{is_record_named, write_slot};
use super::{Copies, Copy};

/// Records that are written whole at a time.
const WHOLE_AT_ONCE: usize = 256;

/// What came of a copy's changes: the newest of them, if it waits for one, and whether they are durable.
pub(in crate::node) type Persisted = (ChunkId, Option<PersistToken>, Result<(), IoError>);

/// A copy in a batch.
struct Part {
    chunk: ChunkId,
    copy: Rc<Copy>,
    /// None of one that has not changed: its marks have to leave the journal.
    token: Option<PersistToken>,
    is_whole: bool,
    result: Result<(), IoError>,
}

impl Copies {
    /// Changes a record in memory; it becomes durable soon.
    pub(in crate::node) fn note(&self, chunk: ChunkId, token: PersistToken, delta: &RecordDelta) {
        let copies = self.copies.borrow();
        // A volume that has just been deleted: nobody waits for its records.
        let Some(copy) = copies.get(&chunk) else { return };
        if copy.stopped.get() {
            return;
        }
        copy.record.borrow_mut().apply(delta);
        match delta {
            RecordDelta::Mark { region, epoch } => copy.marks.borrow_mut().push(Mark {
                region: *region,
                epoch: *epoch,
            }),
            _ => copy.is_due_whole.set(true),
        }
        let disk = &self.disks[copy.disk];
        if copy.pending.replace(Some(token)).is_none() {
            disk.noted.borrow_mut().push(chunk);
        }
        disk.changed.notify();
    }

    /// A change for which there was no room becomes durable with the next attempt, which comes soon.
    pub(in crate::node) fn note_again(&self, chunk: ChunkId, token: PersistToken) {
        let copies = self.copies.borrow();
        let Some(copy) = copies.get(&chunk).filter(|copy| !copy.stopped.get()) else {
            return;
        };
        let disk = &self.disks[copy.disk];
        if copy.pending.get().is_none() {
            copy.pending.set(Some(token));
            disk.noted.borrow_mut().push(chunk);
        }
        disk.changed.notify();
    }

    /// Waits until records of a disk are to be made durable.
    pub(in crate::node) async fn noted(&self, disk: usize) {
        let disk = &self.disks[disk];
        disk.changed.until(|| !disk.noted.borrow().is_empty()).await;
    }

    /// Makes all changed records of a disk durable: by a page for marks, or by one write each and a flush for all of them.
    pub(in crate::node) async fn persist(&self, disk: usize) -> Vec<Persisted> {
        let _turn = self.disks[disk].persisting.acquire().await;
        let mut entries = Vec::new();
        let mut parts = self.take_noted(disk, &mut entries);
        let journal = self.disks[disk].journal_in_use();
        let has_room = journal.is_none_or(|journal| journal.has_room(entries.len()));
        if !has_room {
            parts.iter_mut().for_each(|part| part.is_whole = true);
            entries.clear();
            self.add_parts(disk, &mut parts, |copy| copy.is_in_journal.get());
        }
        let is_journaled = journal.is_some();
        if let Some(journal) = journal.filter(|_| !entries.is_empty())
            && let Err(error) = journal.append(&entries).await
        {
            tracing::warn!(path = %self.disks[disk].path.display(), %error, "the journal of a disk cannot be written: records are written whole from now on");
            journal.give_up();
            parts.iter_mut().for_each(|part| part.is_whole = true);
        }
        write_whole(&mut parts, is_journaled).await;
        let flushed = self.flush_records(disk, &parts).await;
        let waits = |(_, token, result): &Persisted| token.is_some() || *result != Err(IoError::NoSpace);
        // One that was deleted meanwhile may have another in its place already.
        let is_here = |part: &Part| self.is_used(part.chunk, &part.copy);
        let outcomes = parts
            .into_iter()
            .filter(is_here)
            .map(|part| part.end(flushed))
            .filter(waits);
        let outcomes: Vec<Persisted> = outcomes.collect();
        if !has_room && let Some(journal) = journal.filter(|_| !self.has_journaled(disk)) {
            journal.restart();
        }
        outcomes
    }

    /// Writes every record of a disk so that it needs no journal, as a release before reads it, and uses the journal no more. What could
    /// not be written stays as it is, with its marks in the journal.
    pub(in crate::node) async fn settle(&self, disk: usize) -> Result<(), IoError> {
        let _turn = self.disks[disk].persisting.acquire().await;
        if let Some(journal) = &self.disks[disk].journal {
            journal.give_up();
        }
        let mut parts = Vec::new();
        self.add_parts(disk, &mut parts, |copy| copy.is_journaled.get());
        if parts.is_empty() {
            return Ok(());
        }
        write_whole(&mut parts, false).await;
        let flushed = self.flush_records(disk, &parts).await;
        let results: Vec<Result<(), IoError>> = parts.into_iter().map(|part| part.end(flushed).2).collect();
        results.into_iter().collect()
    }

    /// The copies of a disk whose records have changed, and what of it goes to the journal.
    fn take_noted(&self, disk: usize, entries: &mut Vec<Entry>) -> Vec<Part> {
        let noted = std::mem::take(&mut *self.disks[disk].noted.borrow_mut());
        let has_journal = self.disks[disk].journal_in_use().is_some();
        let copies = self.copies.borrow();
        let taken = noted.into_iter().filter_map(|chunk| {
            let copy = copies.get(&chunk)?.clone();
            let token = copy.pending.take()?;
            let marks = std::mem::take(&mut *copy.marks.borrow_mut());
            let is_whole = copy.is_due_whole.replace(false) || !copy.is_journaled.get() || !has_journal;
            if !is_whole {
                let (blob, generation) = (copy.blob, copy.generation.get());
                entries.extend(marks.into_iter().map(|mark| Entry {
                    blob,
                    generation,
                    mark,
                }));
            }
            Some(Part {
                chunk,
                copy,
                token: Some(token),
                is_whole,
                result: Ok(()),
            })
        });
        taken.collect()
    }

    /// Adds the copies of a disk of which this is so, to be written whole.
    fn add_parts(&self, disk: usize, parts: &mut Vec<Part>, wanted: impl Fn(&Copy) -> bool) {
        let known: BTreeSet<ChunkId> = parts.iter().map(|part| part.chunk).collect();
        let copies = self.copies.borrow();
        let added = copies.iter().filter(|(chunk, copy)| {
            copy.disk == disk && !copy.stopped.get() && wanted(copy) && !known.contains(chunk)
        });
        parts.extend(added.map(|(chunk, copy)| Part {
            chunk: *chunk,
            copy: copy.clone(),
            token: None,
            is_whole: true,
            result: Ok(()),
        }));
    }

    /// Whether a copy of a disk has marks in the journal that its record lacks, or may have.
    fn has_journaled(&self, disk: usize) -> bool {
        let (store, damaged) = (&self.disks[disk].store, self.damaged.borrow());
        // Copies that cannot be read may be when the disk is opened next, and so may those whose deletion is not durable.
        let unread = store.has_damaged() || damaged.values().any(|(other, _)| *other == disk);
        if unread || self.disks[disk].deleting.get() > 0 || self.disks[disk].has_unsynced.get() {
            return true;
        }
        // Those that are not used keep theirs there until they are, or are deleted.
        let (copies, doubtful) = (self.copies.borrow(), self.doubtful.borrow());
        let mut all = copies.values().chain(doubtful.values());
        all.any(|copy| copy.disk == disk && copy.is_in_journal.get())
    }

    async fn flush_records(&self, disk: usize, parts: &[Part]) -> Result<(), IoError> {
        let store = &self.disks[disk].store;
        let mut whole = parts.iter().filter(|part| part.is_whole).peekable();
        if whole.peek().is_none() {
            // What is in the journal is durable.
            return Ok(());
        }
        // What hosts have first written since the last flush is nothing that a record needs: no commit for that.
        let synced = match whole.all(|part| is_record_named(store, &part.copy)) {
            true => store.sync_writes().await,
            false => store.sync().await,
        };
        synced.map_err(|error| error.status())
    }
}

async fn write_whole(parts: &mut [Part], is_journaled: bool) {
    let mut whole: Vec<&mut Part> = parts.iter_mut().filter(|part| part.is_whole).collect();
    for some in whole.chunks_mut(WHOLE_AT_ONCE) {
        let writes: Vec<_> = some
            .iter()
            .map(|part| {
                let copy = part.copy.clone();
                reactor::spawn(async move { write_slot(&copy, is_journaled).await })
            })
            .collect();
        for (part, write) in some.iter_mut().zip(writes) {
            part.result = write.await.unwrap_or(Err(IoError::Aborted));
        }
    }
}

impl Part {
    fn end(self, flushed: Result<(), IoError>) -> Persisted {
        let copy = &self.copy;
        let result = self.result.and(flushed);
        match result {
            Ok(()) => copy.is_in_journal.set(!self.is_whole),
            // The other place has a good record: this one is written again, with whatever changes next. Where nothing has changed, nobody
            // has to hear of it.
            Err(IoError::NoSpace) => {
                if self.is_whole {
                    copy.generation.set(copy.generation.get() - 1);
                }
                copy.is_due_whole.set(true);
            }
            Err(_) => copy.stopped.set(true),
        }
        (self.chunk, self.token, result)
    }
}
