//! Holes, room that is asked for ahead, and copies of ranges.

use std::ops::Range;

use super::content::check_file;
use super::dirty::{Dirty, cost_bytes};
use super::{FILE_BYTES_MAX, FileError, FileSystem};
use crate::format::entry::{Inode, Timestamp};
use crate::format::key::InodeNumber;
use crate::sparse::{self, Seek};

/// Holes are punched in parts of this length, in bytes.
const PUNCH_BYTES: u64 = 16 << 20;
/// What one call copies at most, in bytes.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// It does so in parts of this length, in bytes.
const COPY_PART_BYTES: u64 = 1 << 20;

/// What `fallocate(2)` asks for a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Room for what will be written. That there is enough now is checked; none is set aside.
    Room,
    /// A hole. The length stays.
    Hole,
    /// Zeros, which are a hole.
    Zeros,
}

impl FileSystem {
    /// The first byte at or after `offset` that is content, or that is in a hole; what waits in memory counts.
    /// Cost: two descents of the index, and for [`Seek::Hole`] one more for each 16 extents that are content.
    ///
    /// # Errors
    /// [`FileError::NoData`] at the end of the file or behind it, and where only a hole follows.
    pub async fn seek(&self, number: InodeNumber, offset: u64, what: Seek) -> Result<u64, FileError> {
        let (inode, _) = self.writer.find(number).await?;
        check_file(&inode)?;
        let size = self.dirty.get(&number).map_or(inode.size, Dirty::size);
        let none = FileError::NoData {
            inode: number,
            offset,
        };
        if offset >= size {
            return Err(none);
        }
        let mut at = offset;
        while let Some(run) = self.data_after(&inode, at).await? {
            match what {
                Seek::Data => return Ok(run.start.max(offset)),
                Seek::Hole if run.start > at => return Ok(at),
                Seek::Hole => at = run.end,
            }
            if at >= size {
                break;
            }
        }
        match what {
            Seek::Data => Err(none),
            Seek::Hole => Ok(at.min(size)),
        }
    }

    /// The next content of the tree or in memory that ends after `offset`.
    async fn data_after(&self, inode: &Inode, offset: u64) -> Result<Option<Range<u64>>, FileError> {
        let dirty = self.dirty.get(&inode.number);
        let kept = dirty.map_or(inode.size, |dirty| dirty.kept().min(inode.size));
        let waiting = dirty.and_then(|dirty| dirty.data_after(offset));
        let found = match offset < kept {
            true => sparse::data_after(&self.writer.tree, inode, offset).await?,
            false => None,
        };
        let found = found.map(|run| run.start..run.end.min(kept));
        let found = found.filter(|run| run.start < run.end);
        Ok(match (found, waiting) {
            (Some(found), Some(waiting)) if waiting.start < found.start => Some(waiting),
            (found, waiting) => found.or(waiting),
        })
    }

    /// Does to a range of a file what `fallocate` says; lengthens the file to the range's end unless `keep_size` is set or a hole
    /// is asked for. Holes are made in the index at once; a power cut in the middle may leave a part of a long one made.
    ///
    /// # Errors
    /// [`crate::WriteError::NoSpace`] where there is less room than was asked for.
    pub async fn allocate(
        &mut self,
        number: InodeNumber,
        range: Range<u64>,
        how: Allocate,
        keep_size: bool,
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.writer.ensure_takes()?;
        let (inode, _) = self.writer.find(number).await?;
        check_file(&inode)?;
        let (size, limit) = (range.end, FILE_BYTES_MAX);
        if size > limit {
            return Err(FileError::TooLarge { size, limit });
        }
        let grows = how != Allocate::Hole && !keep_size;
        let charged = match grows {
            true => self.check_growth(number, size).await?,
            false => None,
        };
        self.make_memory(cost_bytes(0)).await?;
        if grows {
            let old = self.stat(number).await?.size;
            self.check_length(old, size).await?;
        }
        match how {
            Allocate::Room => self.check_room(&inode, &range).await?,
            Allocate::Hole | Allocate::Zeros => self.punch(number, range.clone(), now).await?,
        }
        let old = self.stat(number).await?.size;
        if !grows || range.end <= old {
            return Ok(());
        }
        let tree_size = self.writer.find(number).await?.0.size;
        self.change_dirty(number, tree_size, charged, |dirty| {
            dirty.set_size(range.end);
            dirty.modified = Some(now);
        });
        Ok(())
    }

    /// Whether the volume has room for what of a range is a hole now.
    async fn check_room(&mut self, inode: &Inode, range: &Range<u64>) -> Result<(), FileError> {
        let length = range.end.saturating_sub(range.start);
        let room = |files: &Self, length| files.packing().pieces_room(length, 1);
        let refused = match self.check_free(room(self, length)).await {
            Err(error) if error.is_no_space() => error,
            other => return other,
        };
        // That may have put content into the tree.
        let (inode, _) = self.writer.find(inode.number).await?;
        let (mut missing, mut at) = (0, range.start);
        while at < range.end {
            let run = self.data_after(&inode, at).await?;
            let run = run.unwrap_or(range.end..range.end);
            missing += run.start.min(range.end).saturating_sub(at);
            at = run.end.max(at);
        }
        match missing < length {
            true => self.check_free(room(self, missing)).await,
            false => Err(refused),
        }
    }

    async fn punch(
        &mut self,
        number: InodeNumber,
        range: Range<u64>,
        now: Timestamp,
    ) -> Result<(), FileError> {
        // Holes are the tree's, so what waits goes there first.
        self.settle(number).await?;
        let (inode, _) = self.writer.find(number).await?;
        let (mut at, end) = (range.start, range.end.min(inode.size));
        self.before_removal().await?;
        self.touch(number, now).await?;
        while at < end {
            self.before_removal().await?;
            let (mut inode, place) = self.writer.find(number).await?;
            let Some(run) = sparse::data_after(&self.writer.tree, &inode, at).await? else {
                break;
            };
            let from = run.start.max(at);
            if from >= end {
                break;
            }
            let to = end.min(from + PUNCH_BYTES);
            self.writer.punch_content(&mut inode, &(from..to)).await?;
            self.writer.put_inode(&inode, &place).await?;
            at = to;
        }
        Ok(())
    }

    /// Copies bytes from one file to another, or within one, as reading and writing them would, holes as zeros. Gives how
    /// many: as many as there are up to the end of the first, at most 16 MiB, and less where something failed in the middle.
    /// A whole file over another that is no longer is not copied: both share its content then, holes included, whatever its length.
    ///
    /// # Errors
    /// [`FileError::Overlap`] where both are parts of one file that overlap.
    pub async fn copy_range(
        &mut self,
        from: (InodeNumber, u64),
        to: (InodeNumber, u64),
        length: u64,
        now: Timestamp,
    ) -> Result<u64, FileError> {
        if from.0 == to.0 && from.1.abs_diff(to.1) < length {
            return Err(FileError::Overlap { inode: from.0 });
        }
        check_file(&self.writer.find(to.0).await?.0)?;
        if let Some(shared) = self.share_whole(from, to, length, now).await? {
            return Ok(shared);
        }
        // Copied behind its own end, a file grows meanwhile. What cannot be read is left for the first part to refuse.
        let (inode, _) = self.writer.find(from.0).await?;
        let size = self.dirty.get(&from.0).map_or(inode.size, Dirty::size);
        let length = length.min(COPY_BYTES_MAX).min(size.saturating_sub(from.1).max(1));
        let mut copied = 0;
        while copied < length {
            let part = (length - copied).min(COPY_PART_BYTES);
            let done = self.copy_part(from, to, copied, part, now).await;
            match done {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                Err(error) if copied == 0 => return Err(error),
                // What was copied is told, and the next call meets the failure.
                Err(_) => break,
            }
        }
        Ok(copied)
    }

    async fn copy_part(
        &mut self,
        from: (InodeNumber, u64),
        to: (InodeNumber, u64),
        done: u64,
        part: u64,
        now: Timestamp,
    ) -> Result<u64, FileError> {
        let bytes = self.read(from.0, from.1.saturating_add(done), part).await?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.write(to.0, to.1.saturating_add(done), &bytes, now).await?;
        Ok(bytes.len() as u64)
    }
}
