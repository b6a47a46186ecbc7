//! From names to inodes.

use std::rc::Rc;

use super::{OpenFile, Reader};
use crate::error::ReadError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Inode, Kind, decode_place};
use crate::format::key::{InodeNumber, Key, entry_key};
use crate::name::{Shown, components};
use crate::tree::inconsistent;

impl Reader {
    /// The inode that a path means. Symbolic links are not followed. An empty path is the root.
    pub async fn lookup(&self, path: &[u8]) -> Result<Inode, ReadError> {
        let mut names = components(path);
        let Some(last) = names.next_back() else {
            return self.inode(InodeNumber::ROOT).await;
        };
        let mut directory = InodeNumber::ROOT;
        for name in names {
            directory = self.lookup_directory(directory, name, path).await?;
        }
        match self.entry(directory, last, path).await? {
            Entry::Embedded(inode) => Ok(inode),
            Entry::Link { inode, .. } => self.inode_shown(inode, path).await,
        }
    }

    /// The same if everything on the way is in memory; `None` also when something is wrong, which
    /// [`Reader::lookup`] then tells.
    pub(super) fn lookup_cached(&self, path: &[u8]) -> Option<Inode> {
        let mut names = components(path);
        let last = names.next_back()?;
        let mut directory = InodeNumber::ROOT;
        for name in names {
            directory = self.0.directories.get(directory, name)?;
        }
        let tree = &self.0.tree;
        let decode = |value: Option<&[u8]>| Entry::decode(value?).ok();
        match tree.look_cached(&entry_key(directory, last), decode)?? {
            Entry::Embedded(inode) => Some(inode),
            Entry::Link { inode, .. } => {
                let decode = |value: Option<&[u8]>| Inode::decode(value?).ok();
                tree.look_cached(&Key::Inode(inode).encode(), decode)?
            }
        }
    }

    async fn lookup_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<InodeNumber, ReadError> {
        if let Some(known) = self.0.directories.get(parent, name) {
            return Ok(known);
        }
        let entry = self.entry(parent, name, path).await?;
        if entry.kind() != Kind::Directory {
            let path = Shown::new(path);
            return Err(ReadError::NotADirectory { path });
        }
        self.0.directories.insert(parent, name, entry.inode());
        Ok(entry.inode())
    }

    /// The entry of a name in a directory.
    async fn entry(&self, directory: InodeNumber, name: &[u8], path: &[u8]) -> Result<Entry, ReadError> {
        let key = entry_key(directory, name);
        let decode = |value: Option<&[u8]>| {
            let value = value.ok_or_else(|| ReadError::NotFound {
                path: Shown::new(path),
            })?;
            Entry::decode(value).map_err(|error| self.malformed(path, error))
        };
        if let Some(decoded) = self.0.tree.look_cached(&key, decode) {
            return decoded;
        }
        let read = self.0.tree.get(&key).await;
        self.check_lease()?;
        let value = read.map_err(|error| self.tree_error(path, error))?;
        decode(value.as_deref())
    }

    /// The entry of a name in a directory that is known by its inode; `None` if there is none.
    pub async fn lookup_in(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<Entry>, ReadError> {
        match self.entry(directory, name, name).await {
            Ok(entry) => Ok(Some(entry)),
            Err(ReadError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The inode that an entry leads to.
    pub async fn inode_of(&self, entry: Entry) -> Result<Inode, ReadError> {
        match entry {
            Entry::Embedded(inode) => Ok(inode),
            Entry::Link { inode, .. } => self.inode(inode).await,
        }
    }

    /// An inode by its number.
    pub async fn inode(&self, number: InodeNumber) -> Result<Inode, ReadError> {
        let shown = format!("inode {number}").into_bytes();
        self.inode_shown(number, &shown).await
    }

    async fn inode_shown(&self, number: InodeNumber, shown: &[u8]) -> Result<Inode, ReadError> {
        if let Some(value) = self.value(&Key::Inode(number).encode(), shown).await? {
            return Inode::decode(&value).map_err(|error| self.malformed(shown, error));
        }
        let Some(value) = self.value(&Key::Name(number.0).encode(), shown).await? else {
            return Err(ReadError::NoInode(number));
        };
        let (directory, name) = decode_place(&value).map_err(|error| self.malformed(shown, error))?;
        match self.entry(directory, name, shown).await? {
            Entry::Embedded(inode) if inode.number == number => Ok(inode),
            _ => Err(self.malformed(shown, CodecError::Inconsistent)),
        }
    }

    /// Looks a file up, to be read many times.
    pub async fn open_file(&self, path: &[u8]) -> Result<OpenFile, ReadError> {
        let inode = self.lookup(path).await?;
        Ok(self.opened(inode, path))
    }

    pub(super) fn opened(&self, inode: Inode, path: &[u8]) -> OpenFile {
        OpenFile {
            inode: Rc::new(inode),
            path: Shown::new(path),
        }
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, ReadError> {
        let file = self.open_file(path).await?;
        if file.inode.kind != Kind::Symlink {
            let path = Shown::new(path);
            return Err(ReadError::NotASymlink { path });
        }
        let length = file.inode.size;
        Ok(self.read(&file, 0, length).await?.to_vec())
    }

    pub(super) async fn value(&self, key: &[u8], path: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let read = self.0.tree.get(key).await;
        self.check_lease()?;
        read.map_err(|error| self.tree_error(path, error))
    }

    pub(super) fn malformed(&self, path: &[u8], error: CodecError) -> ReadError {
        self.tree_error(path, inconsistent(0, error))
    }
}
