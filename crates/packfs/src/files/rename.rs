//! Moving entries.

use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Kind, Timestamp, decode_place, encode_place};
use crate::format::key::{InodeNumber, Key, entry_key};
use crate::name::{Shown, check_name};
use crate::tree::inconsistent;

/// What happens to an entry that has the new name (`renameat2(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is removed.
    Replace,
    /// It stays, and the rename fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// Directories that stand one in another at most; more mean a circle.
const DEPTH_MAX: usize = 1 << 20;

impl FileSystem {
    /// Gives an entry another name and directory; one commit has all of it or nothing.
    pub async fn rename(
        &mut self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<(), FileError> {
        check_name(to.1)?;
        self.before_change().await?;
        let moved = self.entry_to_remove(from.0, from.1).await?;
        self.writer.check_directory(to.0).await?;
        if from.0 != to.0 {
            let trees = (
                self.writer.quota_tree(from.0).await?,
                self.writer.quota_tree(to.0).await?,
            );
            self.writer.check_same_quota(trees.0, trees.1)?;
        }
        let target = self.writer.lookup(to.0, to.1).await?;
        match (mode, &target) {
            (RenameMode::Exchange, Some(other)) => {
                return self.exchange((from, &moved), (to, other), now).await;
            }
            (RenameMode::Exchange, None) => {
                let (directory, name) = (to.0, Shown::new(to.1));
                return Err(WriteError::NotFound { directory, name }.into());
            }
            (RenameMode::NoReplace, Some(_)) => {
                let (directory, name) = (to.0, Shown::new(to.1));
                return Err(WriteError::Exists { directory, name }.into());
            }
            // Two names of one inode: POSIX wants nothing done.
            (_, Some(other)) if other.inode() == moved.inode() => return Ok(()),
            _ => {}
        }
        self.check_ancestors(&moved, to.0).await?;
        if let Some(other) = &target {
            self.check_replaceable(&moved, other, to.1).await?;
            self.remove_entry(to.0, to.1, other, now).await?;
        }
        let done = self.move_entry(from, to, moved, now).await;
        self.whole_or_broken(done)
    }

    async fn move_entry(
        &mut self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        moved: Entry,
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.writer.take(&entry_key(from.0, from.1)).await?;
        self.remember_removed(moved.cookie(), from.0, from.1);
        self.place(to.0, to.1, moved, now).await?;
        self.touch_both(from.0, to.0, now).await
    }

    async fn touch_both(
        &mut self,
        from: InodeNumber,
        to: InodeNumber,
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.touch(from, now).await?;
        if from != to {
            self.touch(to, now).await?;
        }
        Ok(())
    }

    async fn exchange(
        &mut self,
        (from, moved): ((InodeNumber, &[u8]), &Entry),
        (to, other): ((InodeNumber, &[u8]), &Entry),
        now: Timestamp,
    ) -> Result<(), FileError> {
        if from == to {
            return Ok(());
        }
        self.check_ancestors(moved, to.0).await?;
        self.check_ancestors(other, from.0).await?;
        self.remember_removed(moved.cookie(), from.0, from.1);
        self.remember_removed(other.cookie(), to.0, to.1);
        let done = self.swap_entries((from, moved), (to, other), now).await;
        self.whole_or_broken(done)
    }

    async fn swap_entries(
        &mut self,
        (from, moved): ((InodeNumber, &[u8]), &Entry),
        (to, other): ((InodeNumber, &[u8]), &Entry),
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.place(to.0, to.1, moved.clone(), now).await?;
        self.place(from.0, from.1, other.clone(), now).await?;
        self.touch_both(from.0, to.0, now).await
    }

    /// Lets an entry stand under a name, and notes the change in its inode's times.
    async fn place(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        mut entry: Entry,
        now: Timestamp,
    ) -> Result<(), FileError> {
        match &mut entry {
            Entry::Embedded(inode) => self.note_change(inode, now),
            Entry::Link { inode, .. } => {
                self.touch_inode(*inode, now).await?;
            }
        }
        self.writer
            .put(entry_key(directory, name), entry.encode())
            .await?;
        let key = Key::Name(entry.cookie()).encode();
        Ok(self.writer.put(key, encode_place(directory, name)).await?)
    }

    async fn check_replaceable(&self, moved: &Entry, other: &Entry, name: &[u8]) -> Result<(), FileError> {
        match (moved.kind() == Kind::Directory, other.kind() == Kind::Directory) {
            (false, true) => Err(FileError::IsADirectory {
                name: Shown::new(name),
            }),
            (true, false) => Err(FileError::NotADirectory {
                name: Shown::new(name),
            }),
            (true, true) => self.check_empty(other.inode(), name).await,
            (false, false) => Ok(()),
        }
    }

    /// A directory must not come to stand below itself.
    async fn check_ancestors(&self, moved: &Entry, into: InodeNumber) -> Result<(), FileError> {
        if moved.kind() != Kind::Directory {
            return Ok(());
        }
        let inode = moved.inode();
        let mut at = into;
        for _ in 0..DEPTH_MAX {
            if at == inode {
                return Err(FileError::IntoItself { inode, into });
            }
            if at == InodeNumber::ROOT {
                return Ok(());
            }
            at = self.parent(at).await?;
        }
        Err(inconsistent(0, CodecError::Inconsistent).into())
    }

    /// The path of an inode by one of its names, for people; none where it cannot be found out.
    pub async fn path_of(&self, inode: InodeNumber) -> Option<Shown> {
        crate::paths::find(&self.writer.tree, inode).await
    }

    /// The directory that a directory stands in; the root's is the root.
    pub async fn parent(&self, directory: InodeNumber) -> Result<InodeNumber, FileError> {
        if directory == InodeNumber::ROOT {
            return Ok(directory);
        }
        let value = self.writer.tree.get(&Key::Name(directory.0).encode()).await?;
        let value = value.ok_or(WriteError::NoInode(directory))?;
        let (parent, _) = decode_place(&value).map_err(|source| inconsistent(0, source))?;
        Ok(parent)
    }
}
