//! Clones of trees, and copies of whole files that share their content.

use super::content::check_file;
use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::entry::{Layout, Timestamp};
use crate::format::key::InodeNumber;
use crate::writer::Cloned;

/// The longest file that a copy of a range shares, in bytes: FUSE's answer has 32 bits.
const SHARED_BYTES_MAX: u64 = u32::MAX as u64;

impl FileSystem {
    /// Gives a file or directory, with all that is below it, a further time a name; see [`crate::Writer::clone_tree`]. What waits in
    /// memory is part of it.
    ///
    /// # Errors
    /// As of [`crate::Writer::clone_tree`], or where content that waits cannot be put into the tree.
    pub async fn clone_tree(
        &mut self,
        source: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
        now: Timestamp,
    ) -> Result<Cloned, FileError> {
        self.flush_with_room().await?.result()?;
        self.before_change().await?;
        let cloned = match self.writer.clone_tree(source, directory, name).await {
            Err(WriteError::NoSpace { .. }) => {
                self.make_room().await?;
                self.writer.clone_tree(source, directory, name).await?
            }
            other => other?,
        };
        self.touch(directory, now).await?;
        Ok(cloned)
    }

    /// Lets a file have the content of another one as a whole, where that is what a copy of a range comes to: from the beginning of one to the
    /// beginning of the other, as much as there is, over all that the other has. Gives the bytes; `None` where it must be
    /// copied.
    pub(super) async fn share_whole(
        &mut self,
        from: (InodeNumber, u64),
        to: (InodeNumber, u64),
        length: u64,
        now: Timestamp,
    ) -> Result<Option<u64>, FileError> {
        if from.1 != 0 || to.1 != 0 || from.0 == to.0 {
            return Ok(None);
        }
        let source = self.stat(from.0).await?;
        check_file(&source)?;
        if length < source.size || source.size > SHARED_BYTES_MAX || source.size < self.stat(to.0).await?.size
        {
            return Ok(None);
        }
        let charged = self.check_growth(to.0, source.size).await?;
        // Places of content take less of the index than the content.
        self.keep_promises(source.size).await;
        self.settle(from.0).await?;
        self.settle(to.0).await?;
        self.before_change().await?;
        let (source, _) = self.writer.find(from.0).await?;
        if matches!(source.layout, Layout::Inline(_)) {
            return Ok(None);
        }
        let (mut inode, place) = self.writer.find(to.0).await?;
        let before = inode.size;
        match self.writer.share_content(&source, &mut inode).await {
            // A copy finds room where there is any.
            Err(WriteError::NoSpace { .. }) => return Ok(None),
            other => other?,
        }
        inode.attributes.mtime = now;
        inode.attributes.ctime = now;
        self.writer.put_inode(&inode, &place).await?;
        let grown = inode.size.cast_signed() - before.cast_signed();
        self.writer.charge(charged, 0, grown);
        Ok(Some(inode.size))
    }
}
