//! Inodes that lost their last name while they were open.

use super::{Charged, Writer};
use crate::error::WriteError;
use crate::format::entry::Inode;
use crate::format::key::{InodeNumber, Key, orphans_prefix};
use crate::format::put_varint;
use crate::format::superblock::Features;

impl Writer {
    /// Keeps an inode whose last name was taken away. It stays charged to its tree.
    pub(crate) async fn put_orphan(&mut self, mut inode: Inode, tree: Charged) -> Result<(), WriteError> {
        inode.links = 0;
        self.features = self.features.with(Features::ORPHANS);
        self.put(Key::Inode(inode.number).encode(), inode.encode())
            .await?;
        let mut value = Vec::new();
        if let Some(tree) = tree {
            put_varint(&mut value, tree.0);
        }
        self.put(Key::Orphan(inode.number).encode(), value).await
    }

    /// Drops an inode of the list.
    pub(crate) async fn drop_orphan(&mut self, number: InodeNumber) -> Result<(), WriteError> {
        self.check_room(true)?;
        let (inode, _) = self.find(number).await?;
        self.check_droppable(&inode).await?;
        let tree = self.quota_tree_of_orphan(number).await?;
        self.take(&Key::Orphan(number).encode()).await?;
        self.take(&Key::Inode(number).encode()).await?;
        self.drop_inode(inode, tree).await
    }

    /// Drops all inodes of the list: whoever had them open is gone. What cannot be dropped because it is damaged, or
    /// because the volume is full, stays for the next writer or a repair, and is no reason not to write.
    ///
    /// # Errors
    /// Only what leaves the writer broken.
    pub(super) async fn drop_orphans(&mut self) -> Result<(), WriteError> {
        let prefix = orphans_prefix();
        let mut from = prefix.clone();
        while let Ok(Some((mut key, _))) = self.tree.first_with_prefix(&from, &prefix).await {
            if let Ok(Key::Orphan(number)) = Key::decode(&key) {
                match self.drop_orphan(number).await {
                    Err(error) if self.broken => return Err(error),
                    Err(WriteError::NoSpace { .. }) => return Ok(()),
                    Ok(()) | Err(_) => {}
                }
            }
            key.push(0);
            from = key;
        }
        Ok(())
    }
}
