//! What `stat`, `setattr` and `statfs` ask.

use super::content::check_file;
use super::dirty::cost_bytes;
use super::{FILE_BYTES_MAX, FileError, FileSystem};
use crate::format::entry::{Inode, Timestamp};
use crate::format::key::InodeNumber;
use crate::format::superblock::Totals;
use crate::writer::check_attributes;
use foundation::ByteCount;

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, set-uid, set-gid and sticky (12 bits).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length of a regular file in bytes. What is cut away is gone; what is added reads as zeros.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
}

/// What `statfs` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Contents, as of the last time content was put into the tree.
    pub totals: Totals,
    /// Bytes of the volume that are used.
    pub volume: ByteCount,
    /// Bytes that new data may take now.
    pub free: ByteCount,
    /// Bytes that become free once commits and readers are past.
    pub waiting: ByteCount,
    /// Those of them that snapshots by name hold.
    pub held: ByteCount,
    /// Bytes in packed segments that no file uses, which compaction makes free.
    pub dead: ByteCount,
}

impl FileSystem {
    /// An inode by its number.
    pub async fn stat(&self, number: InodeNumber) -> Result<Inode, FileError> {
        let (inode, _) = self.writer.find(number).await?;
        Ok(self.with_changes(inode))
    }

    /// An inode as it is with the content that waits in memory.
    pub(super) fn with_changes(&self, mut inode: Inode) -> Inode {
        if let Some(dirty) = self.dirty.get(&inode.number) {
            inode.size = dirty.size();
            if let Some(modified) = dirty.modified {
                inode.attributes.mtime = modified;
                inode.attributes.ctime = modified;
            }
        }
        inode
    }

    /// Changes attributes, and gives the inode as it is then. A change of size is one of content.
    pub async fn set_attributes(
        &mut self,
        number: InodeNumber,
        set: &SetAttributes,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        self.before_removal().await?;
        let (mut inode, mut place) = self.writer.find(number).await?;
        let mut charged = None;
        if let Some(size) = set.size {
            check_size(&inode, size)?;
            charged = self.check_growth(number, size).await?;
            self.make_memory(cost_bytes(0)).await?;
            let old = self.stat(number).await?.size;
            self.check_length(old, size).await?;
            // These may have put the inode's own content into the tree.
            (inode, place) = self.writer.find(number).await?;
        }
        let mut changed = self.with_changes(inode.clone());
        let attributes = &mut changed.attributes;
        attributes.mode = set.mode.unwrap_or(attributes.mode);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime = set.atime.unwrap_or(attributes.atime);
        if set.size.is_some() {
            attributes.mtime = now;
        }
        attributes.mtime = set.mtime.unwrap_or(attributes.mtime);
        attributes.ctime = now;
        check_attributes(attributes, number)?;
        let written = Inode {
            attributes: *attributes,
            ..inode
        };
        self.writer.put_inode(&written, &place).await?;
        if let Some(dirty) = self.dirty.get_mut(&number) {
            dirty.modified = None;
        }
        if let Some(size) = set.size
            && size != changed.size
        {
            self.change_dirty(number, written.size, charged, |dirty| dirty.set_size(size));
            changed.size = size;
        }
        Ok(changed)
    }

    /// Contents and room.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            totals: self.writer.totals(),
            volume: self.writer.volume_bytes(),
            free: self.writer.free_bytes(),
            waiting: self.writer.waiting_bytes(),
            held: self.writer.held_bytes(),
            dead: self.writer.dead_bytes(),
        }
    }
}

fn check_size(inode: &Inode, size: u64) -> Result<(), FileError> {
    check_file(inode)?;
    let limit = FILE_BYTES_MAX;
    if size > limit {
        return Err(FileError::TooLarge { size, limit });
    }
    Ok(())
}
