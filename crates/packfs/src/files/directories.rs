//! Looking names up and listing directories, uncommitted changes included.

use super::{FileError, FileSystem};
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Inode, Kind, decode_place};
use crate::format::key::{InodeNumber, Key, directory_prefix, entry_key};
use crate::name::{Shown, check_name};
use crate::tree::inconsistent;

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// What it means.
    pub inode: InodeNumber,
    /// What that is.
    pub kind: Kind,
    /// Continues a listing after it; the entry's own until it is removed, also when it is renamed.
    pub cookie: u64,
    /// The inode, where it stands in the directory; elsewhere [`FileSystem::stat`] finds it.
    pub attributes: Option<Inode>,
}

impl FileSystem {
    /// The inode that a name in a directory means.
    pub async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, FileError> {
        check_name(name)?;
        let Some(entry) = self.writer.lookup(directory, name).await? else {
            if self.writer.find(directory).await?.0.kind != Kind::Directory {
                return Err(WriteError::NotADirectory(directory).into());
            }
            let name = Shown::new(name);
            return Err(WriteError::NotFound { directory, name }.into());
        };
        match entry {
            Entry::Embedded(inode) => Ok(self.with_changes(inode)),
            Entry::Link { inode, .. } => self.stat(inode).await,
        }
    }

    /// Names of a directory in the order of their bytes, at most `limit` of them (at least one), after the entry of
    /// cookie `after` or from the beginning. Empty at the end. The entry may have been removed or renamed meanwhile,
    /// as long as that is not thousands of removals ago; `after_name`, where the caller remembers it, is the name that
    /// the entry had when it was listed, and needs no such memory.
    pub async fn read_directory(
        &self,
        directory: InodeNumber,
        after: Option<u64>,
        after_name: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>, FileError> {
        if self.writer.find(directory).await?.0.kind != Kind::Directory {
            return Err(WriteError::NotADirectory(directory).into());
        }
        let prefix = directory_prefix(directory);
        let mut from = match (after_name, after) {
            (Some(name), _) => behind(directory, name),
            (None, Some(cookie)) => self.behind_cookie(directory, cookie).await?,
            (None, None) => prefix.clone(),
        };
        let mut found = Vec::new();
        loop {
            let batch = self.writer.tree.batch(&from).await?;
            for (key, value) in batch.cells {
                let Some(name) = key.strip_prefix(&prefix[..]) else {
                    return Ok(found);
                };
                if check_name(name).is_err() {
                    return Err(inconsistent(0, CodecError::Inconsistent).into());
                }
                let entry = Entry::decode(&value).map_err(|source| inconsistent(0, source))?;
                found.push(Listed {
                    name: name.to_vec(),
                    inode: entry.inode(),
                    kind: entry.kind(),
                    cookie: entry.cookie(),
                    attributes: match entry {
                        Entry::Embedded(inode) => Some(self.with_changes(inode)),
                        Entry::Link { .. } => None,
                    },
                });
                if found.len() >= limit.max(1) {
                    return Ok(found);
                }
            }
            match batch.next {
                Some(next) if next[..] <= prefix[..] || next.starts_with(&prefix) => from = next,
                _ => return Ok(found),
            }
        }
    }

    /// The first key after the entry of a cookie: where it was when it was removed or moved away from here, or else
    /// where it is.
    async fn behind_cookie(&self, directory: InodeNumber, cookie: u64) -> Result<Vec<u8>, FileError> {
        if let Some(value) = self.writer.tree.get(&Key::Name(cookie).encode()).await? {
            let (parent, name) = decode_place(&value).map_err(|source| inconsistent(0, source))?;
            if parent == directory {
                return Ok(behind(directory, name));
            }
        }
        match self.removed.get(&cookie) {
            Some((parent, name)) if *parent == directory => Ok(behind(directory, name)),
            _ => Err(FileError::StaleCookie { directory, cookie }),
        }
    }
}

/// The smallest key after an entry's.
fn behind(directory: InodeNumber, name: &[u8]) -> Vec<u8> {
    let mut key = entry_key(directory, name);
    key.push(0);
    key
}
