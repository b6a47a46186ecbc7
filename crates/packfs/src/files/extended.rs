//! Extended attributes with `setxattr`'s rules. Limits are stated in [`crate::extended`].

use super::{FileError, FileSystem};
use crate::extended::{self, LIST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::format::entry::Timestamp;
use crate::format::key::InodeNumber;
use crate::name::Shown;

/// Whether an attribute must be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetExtended {
    /// It may or may not.
    Always,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

fn check_name(name: &[u8]) -> Result<(), FileError> {
    if extended::is_name(name) {
        return Ok(());
    }
    let length = name.len();
    Err(FileError::ExtendedName { length })
}

impl FileSystem {
    /// The value of an inode's extended attribute.
    pub async fn extended(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, FileError> {
        check_name(name)?;
        let value = extended::get(&self.writer.tree, inode, name).await?;
        value.ok_or_else(|| missing(inode, name))
    }

    /// The names of an inode's extended attributes, in the order of their bytes.
    pub async fn list_extended(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>, FileError> {
        Ok(extended::list(&self.writer.tree, inode).await?)
    }

    /// Sets an extended attribute.
    pub async fn set_extended(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: SetExtended,
        now: Timestamp,
    ) -> Result<(), FileError> {
        check_name(name)?;
        if value.len() > VALUE_BYTES_MAX {
            let (name, length) = (Shown::new(name), value.len());
            return Err(FileError::ExtendedValue { name, length });
        }
        self.before_change().await?;
        self.writer.find(inode).await?;
        let names = self.list_extended(inode).await?;
        let exists = names.iter().any(|other| other == name);
        if exists && mode == SetExtended::Create {
            let name = Shown::new(name);
            return Err(FileError::ExtendedExists { inode, name });
        }
        if !exists && mode == SetExtended::Replace {
            return Err(missing(inode, name));
        }
        let listed: usize = names.iter().map(|name| name.len() + 1).sum();
        if !exists && listed + name.len() + 1 > LIST_BYTES_MAX {
            return Err(FileError::ExtendedList { inode });
        }
        self.writer.put_extended(inode, name, value).await?;
        self.touch_inode(inode, now).await?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub async fn remove_extended(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        check_name(name)?;
        self.before_removal().await?;
        if !self.writer.take_extended(inode, name).await? {
            return Err(missing(inode, name));
        }
        self.touch_inode(inode, now).await?;
        Ok(())
    }
}

fn missing(inode: InodeNumber, name: &[u8]) -> FileError {
    let name = Shown::new(name);
    FileError::ExtendedMissing { inode, name }
}
