//! From memory into the tree, and from the tree to the volume.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use foundation::ByteCount;

use super::dirty::{Dirty, Packing};
use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::entry::{INLINE_BYTES_MAX, Inode, Layout};
use crate::format::key::InodeNumber;
use crate::writer::Charged;

/// Files up to this length, and to a stripe unit, are packed whole whenever they change, in bytes.
const PACKED_BYTES_MAX: u64 = 64 << 10;
/// Content is put into the tree in parts of this length, in bytes.
const PART_BYTES: usize = 1 << 20;

/// A full volume is not asked more often whether it has grown.
const GROWTH_PAUSE: Duration = Duration::from_secs(2);

/// What files' content met on its way into the tree.
#[derive(Debug, Default)]
pub(super) struct Flushed(BTreeMap<InodeNumber, WriteError>);

impl Flushed {
    /// The first failure, if any.
    pub(super) fn result(self) -> Result<(), WriteError> {
        self.0.into_values().next().map_or(Ok(()), Err)
    }

    /// Whether there was no room for any.
    pub(super) fn met_no_space(&self) -> bool {
        self.0
            .values()
            .any(|error| matches!(error, WriteError::NoSpace { .. }))
    }
}

impl FileSystem {
    /// Makes everything so far durable and gives the generation that holds it.
    ///
    /// # Errors
    /// Content for which the volume has no room stays in memory, and [`WriteError::NoSpace`] is the answer; so does content that needs what
    /// cannot be read now. Everything else is committed nevertheless. Content of a file that cannot be put together, because it covers a part
    /// of what is damaged, is dropped, and what was there stays as it was; each such file is told once, by one commit or by whoever syncs it. Damage
    /// that it covers wholly, or merely stands beside, keeps it from nothing. Without [`super::FileOptions::commits_unasked`] both are reasons to commit
    /// nothing: another commit then makes durable what is left.
    pub async fn commit(&mut self) -> Result<u64, FileError> {
        let flushed = self.flush_with_room().await?;
        if !self.commits_unasked {
            if let Some((_, error)) = self.failed.pop_first() {
                return Err(error.into());
            }
            flushed.result()?;
            let generation = self.writer.commit().await?;
            self.make_missed_room().await;
            return Ok(generation);
        }
        let generation = self.writer.commit().await?;
        // One answer tells of one file: what was dropped of the others waits for those who sync them, and for the next commit.
        match self.failed.pop_first() {
            Some((_, error)) => Err(error.into()),
            None => Ok(flushed.result().map(|()| generation)?),
        }
    }

    /// As [`FileSystem::commit`], for whoever does not speak for all that was written: content that is dropped, now or before, is
    /// still told to whoever syncs its file ([`FileSystem::sync`]), or commits everything.
    ///
    /// # Errors
    /// The first that was met now; as of [`FileSystem::commit`].
    pub async fn commit_unasked(&mut self) -> Result<u64, FileError> {
        let flushed = self.flush_with_room().await?;
        let generation = self.writer.commit().await?;
        Ok(flushed.result().map(|()| generation)?)
    }

    /// Takes out what content was dropped of files, with the reason, of which nobody was told yet: whoever takes it is to tell those who sync these files.
    pub fn take_dropped(&mut self) -> BTreeMap<InodeNumber, WriteError> {
        std::mem::take(&mut self.failed)
    }

    /// Puts all content into the tree, with commits where that makes room. The failure is one of those commits; what files' content met
    /// is in the answer.
    pub(super) async fn flush_with_room(&mut self) -> Result<Flushed, FileError> {
        self.writer.end_started().await?;
        // Of what finds no room again nobody waits for an answer.
        let _ = self.drop_released().await;
        let mut flushed = self.flush_all().await;
        if flushed.met_no_space() {
            self.make_room().await?;
            // What was put back is tried again; the others' content is gone, and stays told.
            flushed.0.retain(|number, _| !self.dirty.contains_key(number));
            let again = self.flush_all().await;
            flushed.0.extend(again.0);
        }
        Ok(flushed)
    }

    /// Makes a file durable, and with it everything that was done before.
    ///
    /// # Errors
    /// As of [`FileSystem::commit`], but only where this file's content is concerned: once for content that was dropped,
    /// however long ago.
    pub async fn sync(&mut self, number: InodeNumber) -> Result<u64, FileError> {
        let mut flushed = self.flush_with_room().await?;
        let generation = self.writer.commit().await?;
        match self.failed.remove(&number).or(flushed.0.remove(&number)) {
            Some(error) => Err(error.into()),
            None => Ok(generation),
        }
    }

    /// Puts what waits of a file into the tree, with commits where that makes room.
    pub(super) async fn settle(&mut self, number: InodeNumber) -> Result<(), FileError> {
        match self.flush(number).await {
            Err(WriteError::NoSpace { .. }) => {
                self.make_room().await?;
                Ok(self.flush(number).await?)
            }
            other => Ok(other?),
        }
    }

    /// After a commit: makes free what only waits for another one, where that is more than what is free or a change was refused for want
    /// of room, and tries to make what that change lacked.
    async fn make_missed_room(&mut self) {
        let wanted = std::mem::take(&mut self.missed_bytes);
        // What snapshots hold stays, however many commits there are.
        let waiting = self.writer.waiting_bytes().0;
        let waiting = waiting.saturating_sub(self.writer.held_bytes().0);
        if wanted == 0 && waiting <= self.writer.free_bytes().0 {
            return;
        }
        // The commit stands; whoever asks for room again is told what there is.
        let made = self.make_room().await;
        if made.is_ok() && self.writer.free_bytes().0 < wanted {
            let _ = self.writer.reclaim(ByteCount(wanted)).await;
        }
    }

    /// Takes what the volume has grown by; else commits so often that what was given back may be used again, if that may be.
    pub(super) async fn make_room(&mut self) -> Result<(), FileError> {
        if self.writer.look_for_growth(GROWTH_PAUSE).await {
            return Ok(());
        }
        if !self.commits_unasked && !self.is_committed() {
            return Ok(self.writer.take_back_packed().await?);
        }
        for _ in 0..2 {
            if !self.writer.gains_by_commit().await {
                break;
            }
            self.writer.commit_always().await?;
        }
        Ok(())
    }

    /// Asks whether the volume has grown, unless that was asked less than `pause` ago, and takes what there is: it is free at once, and
    /// the next commit says that it belongs to the file system. True if there was something. Otherwise a volume's growth is noticed
    /// when it is opened for writing, and before a change ends for want of space.
    pub async fn look_for_growth(&mut self, pause: Duration) -> bool {
        self.writer.look_for_growth(pause).await
    }

    pub(super) fn packing(&self) -> Packing {
        let unit = u64::from(self.writer.parameters().stripe_unit_bytes);
        Packing {
            unit,
            whole: unit.min(PACKED_BYTES_MAX),
            absorbed: self.writer.absorbed_bytes(),
        }
    }

    /// Changes what waits of a file, and keeps the counts of memory and of the quota it is charged to.
    pub(super) fn change_dirty(
        &mut self,
        number: InodeNumber,
        size: u64,
        charged: Charged,
        change: impl FnOnce(&mut Dirty),
    ) {
        let packing = self.packing();
        let dirty = self.dirty.entry(number).or_insert_with(|| {
            let mut dirty = Dirty::new(size);
            dirty.charged = charged;
            self.waiting.add(&dirty, packing);
            dirty
        });
        self.waiting.take(dirty, packing);
        let before = dirty.uncounted();
        change(dirty);
        self.waiting.add(dirty, packing);
        self.writer.expect(dirty.charged, dirty.uncounted() - before);
    }

    /// Takes out what waits of a file.
    pub(super) fn take_dirty(&mut self, number: InodeNumber) -> Option<Dirty> {
        let dirty = self.dirty.remove(&number)?;
        self.waiting.take(&dirty, self.packing());
        self.writer.expect(dirty.charged, -dirty.uncounted());
        Some(dirty)
    }

    /// Puts all content that waits into the tree; what one file's meets keeps no other's from being tried.
    pub(super) async fn flush_all(&mut self) -> Flushed {
        let numbers: Vec<InodeNumber> = self.dirty.keys().copied().collect();
        let mut met = Flushed::default();
        for number in numbers {
            if let Err(error) = self.flush(number).await {
                met.0.insert(number, error);
            }
        }
        met
    }

    pub(super) async fn flush(&mut self, number: InodeNumber) -> Result<(), WriteError> {
        if self.writer.is_waiting() {
            // Nothing may change before that commit has ended.
            return match self.dirty.contains_key(&number) {
                true => Err(WriteError::DisksFull),
                false => Ok(()),
            };
        }
        let Some(mut dirty) = self.take_dirty(number) else {
            return Ok(());
        };
        let flushed = self.put_and_charge(number, &mut dirty).await;
        match &flushed {
            Ok(()) => {}
            // It was taken, and its writer told so: it goes only where it can never be put together.
            Err(error) if error.may_pass() => {
                self.waiting.add(&dirty, self.packing());
                self.writer.expect(dirty.charged, dirty.uncounted());
                self.dirty.insert(number, dirty);
            }
            Err(error) => {
                self.failed.insert(number, error.clone());
            }
        }
        flushed
    }

    /// Puts content into the tree, and what that changes of the file's length into the counters of its quota.
    async fn put_and_charge(&mut self, number: InodeNumber, dirty: &mut Dirty) -> Result<(), WriteError> {
        if dirty.charged.is_none() {
            return self.put_content(number, dirty).await;
        }
        let before = self.writer.find(number).await?.0.size;
        let put = self.put_content(number, dirty).await;
        let after = match self.writer.find(number).await {
            Ok((inode, _)) => inode.size,
            Err(error) => {
                // Counters that are not certain must not be committed.
                self.writer.give_up();
                return Err(error);
            }
        };
        self.writer
            .charge(dirty.charged, 0, after.cast_signed() - before.cast_signed());
        dirty.set_base(after);
        put
    }

    /// Packs a short file anew as a whole. Of what it had only that is read which stays. The caller writes the inode, which is as it was after a failure.
    async fn put_whole(&mut self, inode: &mut Inode, dirty: &Dirty) -> Result<(), WriteError> {
        let kept = dirty.kept().min(inode.size);
        let stays = |part: &Range<u64>| !dirty.covers(part);
        let mut bytes = self.writer.read_content_where(inode, 0..kept, stays).await?;
        bytes.resize(dirty.size() as usize, 0);
        dirty.overlay(0, &mut bytes);
        let layout = match bytes.len() <= INLINE_BYTES_MAX {
            true => Layout::Inline(bytes),
            false => Layout::Extents(self.writer.pack(&bytes).await?),
        };
        let packed = match &layout {
            Layout::Extents(extents) => extents.clone(),
            _ => Vec::new(),
        };
        let renewed = self.writer.renew_content(inode, layout, dirty.size()).await;
        if renewed.is_err() {
            // No file has them, and the file has what it had.
            self.writer.forget(&packed);
        }
        renewed
    }

    async fn put_content(&mut self, number: InodeNumber, dirty: &mut Dirty) -> Result<(), WriteError> {
        let (mut inode, place) = self.writer.find(number).await?;
        if let Some(modified) = dirty.modified {
            inode.attributes.mtime = modified;
            inode.attributes.ctime = modified;
        }
        if dirty.size() <= self.packing().whole {
            match self.put_whole(&mut inode, dirty).await {
                Ok(()) => return self.writer.put_inode(&inode, &place).await,
                // A full volume still takes that a file gets shorter: what remains stays where it lies.
                Err(WriteError::NoSpace { .. }) if dirty.is_a_cut() => {}
                // What it has that is damaged stays, too, where the new content merely stands beside it.
                Err(error) if error.is_damaged_content() => {}
                Err(error) => return Err(error),
            }
        }
        let written = |part: &Range<u64>| {
            dirty.covers(part).then(|| {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                dirty.overlay(part.start, &mut bytes);
                bytes
            })
        };
        let kept = dirty.kept();
        if let Some(taken) = self.writer.cut_content(&mut inode, kept, written).await? {
            dirty.settled(&taken);
        }
        if let Layout::Inline(bytes) = &inode.layout
            && !bytes.is_empty()
        {
            match self.writer.pack(&bytes.clone()).await {
                Ok(extents) => inode.layout = Layout::Extents(extents),
                Err(error) => {
                    self.writer.put_inode(&inode, &place).await?;
                    return Err(error);
                }
            }
        }
        let mut result = Ok(());
        while let Some((offset, mut run)) = dirty.first_run(PART_BYTES) {
            let end = offset + run.len() as u64;
            if dirty.covers(&(end..end + 1)) {
                // The run goes on to the end of an extent of which nothing remains: that need not be read then.
                match self.writer.end_of_extent_over(&inode, end).await {
                    Ok(Some(its_end)) if dirty.covers(&(end..its_end)) => {
                        let length =
                            usize::try_from(its_end - offset).expect("extents are bounded by the format");
                        run = dirty.first_run(length).map_or(run, |(_, longer)| longer);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
            result = self.writer.replace_content(&mut inode, offset, &run).await;
            if result.is_err() {
                break;
            }
            dirty.settled(&(offset..offset + run.len() as u64));
        }
        if result.is_ok() {
            result = self.writer.grow_content(&mut inode, dirty.size()).await;
        }
        // Whatever happened, it describes the extents that are there.
        self.writer.put_inode(&inode, &place).await?;
        result
    }
}
