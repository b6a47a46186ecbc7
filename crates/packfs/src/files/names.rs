//! Making and removing names.

use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::entry::{Attributes, DeviceNumber, Entry, Inode, Kind, Layout, Timestamp};
use crate::format::key::Key;
use crate::format::key::{InodeNumber, directory_prefix, entry_key};
use crate::name::{Shown, TARGET_BYTES_MAX, check_name};

/// The set-group-id bit: of a directory, what is made in it gets its group.
const SET_GROUP: u32 = 0o2000;

/// What a new inode is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Permission bits, set-uid, set-gid and sticky (12 bits).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands its own down.
    pub gid: u32,
}

/// What `mknod` may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A pipe by name.
    Pipe,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
}

/// What is to be made.
enum Made<'a> {
    Directory,
    /// To this target.
    Symlink(&'a [u8]),
    /// Everything that begins without content.
    Node(Kind, Layout),
}

impl FileSystem {
    /// Makes an empty regular file.
    pub async fn create(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        self.mknod(directory, name, NodeKind::File, new, now).await
    }

    /// Makes an empty regular file, or a name for what the kernel does: a pipe, a socket or a device.
    pub async fn mknod(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        kind: NodeKind,
        new: NewInode,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        let nothing = Layout::Inline(Vec::new());
        let (kind, layout) = match kind {
            NodeKind::File => (Kind::File, nothing),
            NodeKind::Pipe => (Kind::Pipe, nothing),
            NodeKind::Socket => (Kind::Socket, nothing),
            NodeKind::CharacterDevice(device) => (Kind::CharacterDevice, Layout::Device(device)),
            NodeKind::BlockDevice(device) => (Kind::BlockDevice, Layout::Device(device)),
        };
        let made = Made::Node(kind, layout);
        self.make(directory, name, new, made, now).await
    }

    /// Makes an empty directory.
    pub async fn mkdir(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        self.make(directory, name, new, Made::Directory, now).await
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        if !(1..=TARGET_BYTES_MAX).contains(&target.len()) {
            return Err(FileError::Target {
                name: Shown::new(name),
                length: target.len(),
            });
        }
        self.make(directory, name, new, Made::Symlink(target), now).await
    }

    async fn make(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        made: Made<'_>,
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        self.before_change().await?;
        let parent = self.writer.find(directory).await?.0;
        let inherits = parent.attributes.mode & SET_GROUP != 0;
        let handed_down = if inherits && matches!(made, Made::Directory) {
            SET_GROUP
        } else {
            0
        };
        let attributes = Attributes {
            mode: new.mode | handed_down,
            uid: new.uid,
            gid: if inherits { parent.attributes.gid } else { new.gid },
            mtime: now,
            atime: now,
            ctime: now,
        };
        let number = match made {
            Made::Node(kind, layout) => {
                self.writer.check_new(directory, name, &attributes).await?;
                let tree = self.writer.quota_tree(directory).await?;
                self.writer.check_quota(tree, 1, 0)?;
                self.writer
                    .add(directory, name, &attributes, kind, 0, layout)
                    .await?
            }
            Made::Directory => self.writer.mkdir(directory, name, &attributes).await?,
            Made::Symlink(target) => self.writer.symlink(directory, name, &attributes, target).await?,
        };
        self.touch(directory, now).await?;
        self.stat(number).await
    }

    /// Gives an inode a further name.
    pub async fn link(
        &mut self,
        target: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
        now: Timestamp,
    ) -> Result<Inode, FileError> {
        self.before_change().await?;
        let (inode, _) = self.writer.find(target).await?;
        if inode.links == 0 {
            // Its last name is gone, and it does not come back.
            return Err(WriteError::NoInode(target).into());
        }
        if inode.links == u32::MAX {
            return Err(FileError::TooManyLinks(target));
        }
        self.writer.link(directory, name, target).await?;
        self.touch_inode(target, now).await?;
        self.touch(directory, now).await?;
        self.stat(target).await
    }

    /// Removes a name of something that is not a directory.
    pub async fn unlink(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.before_removal().await?;
        let entry = self.entry_to_remove(directory, name).await?;
        if entry.kind() == Kind::Directory {
            let name = Shown::new(name);
            return Err(FileError::IsADirectory { name });
        }
        self.remove_entry(directory, name, &entry, now).await?;
        self.touch(directory, now).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.before_removal().await?;
        let entry = self.entry_to_remove(directory, name).await?;
        if entry.kind() != Kind::Directory {
            let name = Shown::new(name);
            return Err(FileError::NotADirectory { name });
        }
        self.check_empty(entry.inode(), name).await?;
        self.remove_entry(directory, name, &entry, now).await?;
        self.touch(directory, now).await
    }

    /// The entry of a name that must be there.
    pub(super) async fn entry_to_remove(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Entry, FileError> {
        check_name(name)?;
        let entry = self.writer.lookup(directory, name).await?;
        if entry.is_none() && self.writer.find(directory).await?.0.kind != Kind::Directory {
            return Err(WriteError::NotADirectory(directory).into());
        }
        let missing = || WriteError::NotFound {
            directory,
            name: Shown::new(name),
        };
        Ok(entry.ok_or_else(missing)?)
    }

    pub(super) async fn check_empty(&self, directory: InodeNumber, name: &[u8]) -> Result<(), FileError> {
        let prefix = directory_prefix(directory);
        match self.writer.tree.first_with_prefix(&prefix, &prefix).await? {
            None => Ok(()),
            Some(_) => {
                let name = Shown::new(name);
                Err(WriteError::NotEmpty { name }.into())
            }
        }
    }

    /// Takes an entry away, and what it means if that was its last name and nobody has it open. Directories were
    /// seen to be empty. Where what the inode has cannot be read, nothing changes.
    pub(super) async fn remove_entry(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        entry: &Entry,
        now: Timestamp,
    ) -> Result<(), FileError> {
        self.writer.check_removable(entry).await?;
        let done = self.take_entry(directory, name, entry, now).await;
        self.whole_or_broken(done)
    }

    /// A failure in the middle of several changes leaves nothing that may be committed.
    pub(super) fn whole_or_broken(&mut self, done: Result<(), FileError>) -> Result<(), FileError> {
        if done.is_err() {
            self.writer.give_up();
        }
        done
    }

    async fn take_entry(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        entry: &Entry,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let number = entry.inode();
        let tree = self.writer.quota_tree(directory).await?;
        let last = match entry {
            Entry::Embedded(inode) => Some(inode.clone()),
            Entry::Link { cookie, .. } => self.writer.unlink(number, *cookie).await?,
        };
        self.writer.take(&entry_key(directory, name)).await?;
        self.writer.take(&Key::Name(entry.cookie()).encode()).await?;
        self.remember_removed(entry.cookie(), directory, name);
        match last {
            None => {
                self.touch_inode(number, now).await?;
            }
            Some(mut inode) if self.open.contains_key(&number) && inode.kind == Kind::File => {
                self.note_change(&mut inode, now);
                self.writer.put_orphan(inode, tree).await?;
            }
            Some(inode) => {
                self.take_dirty(number);
                self.writer.forget_directory(number);
                self.writer.drop_inode(inode, tree).await?;
            }
        }
        Ok(())
    }
}
