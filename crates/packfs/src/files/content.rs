//! Reading and writing content.

use super::dirty::{Dirty, cost_bytes};
use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Inode, Kind, Timestamp};
use crate::format::key::InodeNumber;
use crate::name::{Shown, TARGET_BYTES_MAX};
use crate::tree::inconsistent;
use crate::writer::Charged;
use foundation::ByteCount;
use std::ops::Range;

/// The longest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 40;
/// What one read gives at most, in bytes.
pub const READ_BYTES_MAX: u64 = 4 << 20;
/// Room that is left for the index when content is taken, in bytes.
const INDEX_BYTES: u64 = 256 << 10;
/// A write goes into memory in parts of this length, in bytes.
const WRITE_PART_BYTES: usize = 256 << 10;

pub(super) fn check_file(inode: &Inode) -> Result<(), FileError> {
    match inode.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(FileError::IsADirectory {
            name: Shown::new(format!("inode {}", inode.number).as_bytes()),
        }),
        _ => Err(FileError::NotAFile(inode.number)),
    }
}

impl FileSystem {
    /// Bytes `offset..offset + length` of a file, or as many as there are, at most [`READ_BYTES_MAX`]. Holes are zeros.
    /// The time of the last read is not kept.
    pub async fn read(&self, number: InodeNumber, offset: u64, length: u64) -> Result<Vec<u8>, FileError> {
        let (inode, _) = self.writer.find(number).await?;
        check_file(&inode)?;
        let dirty = self.dirty.get(&number);
        let size = dirty.map_or(inode.size, Dirty::size);
        let end = offset.saturating_add(length.min(READ_BYTES_MAX)).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let kept = dirty
            .map_or(inode.size, |dirty| dirty.kept().min(inode.size))
            .min(end);
        let mut bytes = match offset < kept {
            // What is over it in memory counts, whatever has become of it.
            true => {
                let counts = |part: &Range<u64>| dirty.is_none_or(|dirty| !dirty.covers(part));
                self.writer
                    .read_content_where(&inode, offset..kept, counts)
                    .await?
            }
            false => Vec::new(),
        };
        bytes.resize((end - offset) as usize, 0);
        if let Some(dirty) = dirty {
            dirty.overlay(offset, &mut bytes);
        }
        Ok(bytes)
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, number: InodeNumber) -> Result<Vec<u8>, FileError> {
        let (inode, _) = self.writer.find(number).await?;
        if inode.kind != Kind::Symlink {
            return Err(FileError::NotASymlink(number));
        }
        if inode.size > TARGET_BYTES_MAX as u64 {
            // Memory is not taken by a length that no link can have.
            return Err(inconsistent(0, CodecError::TooLarge).into());
        }
        Ok(self.writer.read_content(&inode, 0..inode.size).await?)
    }

    /// Writes bytes at an offset, beyond the end too; between the end and there the file then has zeros. They wait in
    /// memory, where they stay below [`super::FileOptions::dirty_bytes_max`] whatever is written.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] where the volume has no room for them; what was written of them before stays. [`WriteError::DisksFull`] while
    /// what was written before waits for room where the volume lies. [`WriteError::Broken`] once nothing more can be committed.
    pub async fn write(
        &mut self,
        number: InodeNumber,
        offset: u64,
        bytes: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        match self.write_parts(number, offset, bytes, now).await? {
            (_, Some(refused)) => Err(refused),
            (_, None) => Ok(()),
        }
    }

    /// As [`FileSystem::write`], of as many of the bytes as the volume has room for, from the first on; their number.
    ///
    /// # Errors
    /// As there, if it has room for none.
    pub async fn write_some(
        &mut self,
        number: InodeNumber,
        offset: u64,
        bytes: &[u8],
        now: Timestamp,
    ) -> Result<usize, FileError> {
        match self.write_parts(number, offset, bytes, now).await? {
            (0, Some(refused)) => Err(refused),
            (written, _) => Ok(written),
        }
    }

    /// Bytes that were written, and why not all if the volume is full.
    async fn write_parts(
        &mut self,
        number: InodeNumber,
        offset: u64,
        bytes: &[u8],
        now: Timestamp,
    ) -> Result<(usize, Option<FileError>), FileError> {
        self.writer.ensure_takes()?;
        let (inode, _) = self.writer.find(number).await?;
        check_file(&inode)?;
        let size = offset.saturating_add(bytes.len() as u64);
        let limit = FILE_BYTES_MAX;
        if size > limit {
            return Err(FileError::TooLarge { size, limit });
        }
        let charged = self.check_growth(number, size).await?;
        let mut written = 0;
        for part in bytes.chunks(WRITE_PART_BYTES) {
            if let Err(error) = self.make_way(part.len()).await {
                // What was taken stays, and whoever writes goes on behind it.
                return match written > 0 || error.is_no_space() {
                    true => Ok((written, Some(error))),
                    false => Err(error),
                };
            }
            // The waiting content may have been put into the tree just now.
            let tree_size = self.writer.find(number).await?.0.size;
            self.change_dirty(number, tree_size, charged, |dirty| {
                dirty.write(offset + written as u64, part);
                dirty.modified = Some(now);
            });
            written += part.len();
        }
        Ok((written, None))
    }

    /// Makes memory for a part of a write, and finds that the volume has room for it.
    async fn make_way(&mut self, length: usize) -> Result<(), FileError> {
        self.make_memory(cost_bytes(length)).await?;
        let room = self.packing().write_room(length as u64);
        self.check_free(room).await
    }

    /// The tree with a quota that a file is charged to, which must have room for the file to become so long, if it is shorter.
    pub(super) async fn check_growth(&self, number: InodeNumber, size: u64) -> Result<Charged, FileError> {
        let (inode, place) = self.writer.find(number).await?;
        let charged = self.writer.quota_tree_of(&inode, &place).await?;
        let now = self.dirty.get(&number).map_or(inode.size, Dirty::size);
        self.writer.check_quota(charged, 0, size.saturating_sub(now))?;
        Ok(charged)
    }

    /// Puts content into the tree if so much more memory would pass the bound.
    pub(super) async fn make_memory(&mut self, more: usize) -> Result<(), FileError> {
        if self.waiting.bytes + more <= self.dirty_bytes_max {
            return Ok(());
        }
        let flushed = self.flush_with_room().await?;
        self.bound_index().await?;
        if self.waiting.bytes + more <= self.dirty_bytes_max {
            // What another file's content met is told to whoever syncs that file.
            return Ok(());
        }
        Ok(flushed.result()?)
    }

    /// Puts what waits into the tree where the volume would not have room for it any more after a change of the index, or of so many bytes
    /// of content besides: it was promised.
    pub(super) async fn keep_promises(&mut self, more: u64) {
        let room = self.writer.content_room(INDEX_BYTES).0;
        let has_room = self.waiting.room.saturating_add(more) <= room;
        // What has found no room finds none before there is more.
        let is_in_vain = self.refused_at.is_some_and(|refused| room <= refused);
        if self.dirty.is_empty() || has_room || is_in_vain || self.writer.ensure_takes().is_err() {
            return;
        }
        // What files' content meets is told to whoever syncs those.
        let flushed = self.flush_all().await;
        self.refused_at = flushed.met_no_space().then_some(room);
    }

    /// Refuses to let a file get longer where what it is packed with then has no room. What gets shorter is always taken.
    pub(super) async fn check_length(&mut self, old: u64, size: u64) -> Result<(), FileError> {
        let more = self.packing().length_room(size);
        match size > old {
            true => self.check_free(more).await,
            false => {
                self.keep_promises(more).await;
                Ok(())
            }
        }
    }

    /// Refuses a write for which the volume has no room, so that whoever writes learns it at once, and what is taken can be made durable.
    /// `more` is what it may take of the volume besides what waits, in bytes.
    pub(super) async fn check_free(&mut self, more: u64) -> Result<(), FileError> {
        let wanted = |files: &Self| files.waiting.room.saturating_add(more);
        let missing = |files: &Self| wanted(files).saturating_sub(files.writer.content_room(INDEX_BYTES).0);
        if missing(self) == 0 {
            return Ok(());
        }
        // What files' content meets meanwhile is told to whoever syncs those.
        let _ = self.flush_with_room().await?;
        if missing(self) == 0 {
            return Ok(());
        }
        // What is begun is taken whole segments at a time.
        let segment = u64::from(self.writer.parameters().segment_bytes);
        let free = wanted(self).saturating_add(segment + INDEX_BYTES);
        let may_commit = self.commits_unasked || self.is_committed();
        if may_commit {
            match self.writer.commit().await {
                Err(WriteError::NoSpace { .. }) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            self.make_room().await?;
            if missing(self) > 0 {
                self.writer.reclaim(ByteCount(free)).await?;
            }
        } else {
            self.writer.take_back_packed().await?;
        }
        let missing = ByteCount(missing(self));
        if missing.0 == 0 {
            return Ok(());
        }
        if !may_commit {
            self.missed_bytes = free;
        }
        Err(WriteError::NoSpace { missing }.into())
    }
}
