//! Changing extended attributes.

use super::Writer;
use crate::error::WriteError;
use crate::extended::{self, PART_BYTES};
use crate::format::key::{InodeNumber, Key};
use crate::format::superblock::Features;

impl Writer {
    /// Sets the value of an attribute, in the place of the one before. The caller has checked the limits.
    pub(crate) async fn put_extended(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), WriteError> {
        // Each part may change a page of its own, and its value one more by a split.
        self.check_room_for(false, 2 * (value.len() / PART_BYTES) as u64 + 8)?;
        self.take_extended(inode, name).await?;
        self.features = self.features.with(Features::EXTENDED);
        let key = |part: usize| Key::Extended(inode, part as u8, name.to_vec()).encode();
        if value.is_empty() {
            return self.put(key(0), Vec::new()).await;
        }
        for (part, bytes) in value.chunks(PART_BYTES).enumerate() {
            self.put(key(part), bytes.to_vec()).await?;
        }
        Ok(())
    }

    /// Removes an attribute; says whether there was one.
    pub(crate) async fn take_extended(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<bool, WriteError> {
        let mut removed = false;
        for part in 0..=u8::MAX {
            let key = Key::Extended(inode, part, name.to_vec()).encode();
            let found = self.tree.get(&key).await;
            // Half of a value must not be committed.
            self.broken |= removed && found.is_err();
            if found?.is_none() {
                break;
            }
            self.take(&key).await?;
            removed = true;
        }
        Ok(removed)
    }

    /// Reads everything that [`Writer::drop_extended`] takes away.
    pub(super) async fn check_extended(&self, inode: InodeNumber) -> Result<(), WriteError> {
        if !self.features.has(Features::EXTENDED) {
            return Ok(());
        }
        for name in extended::list(&self.tree, inode).await? {
            extended::get(&self.tree, inode, &name).await?;
        }
        Ok(())
    }

    /// Removes all attributes of an inode.
    pub(super) async fn drop_extended(&mut self, inode: InodeNumber) -> Result<(), WriteError> {
        if !self.features.has(Features::EXTENDED) {
            return Ok(());
        }
        for name in extended::list(&self.tree, inode).await? {
            self.take_extended(inode, &name).await?;
        }
        Ok(())
    }
}
