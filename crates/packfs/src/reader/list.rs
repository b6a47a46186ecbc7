//! Listing directories and walking trees.

use super::Reader;
use crate::error::ReadError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Kind, decode_place};
use crate::format::key::{InodeNumber, Key, directory_prefix, entry_key};

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name.
    pub name: Vec<u8>,
    /// What it means; its cookie continues a listing after it.
    pub entry: Entry,
}

/// One thing met on a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkEntry {
    /// Path from where the walk began, without a leading slash.
    pub path: Vec<u8>,
    /// What is there.
    pub entry: Entry,
}

impl Reader {
    /// Names of a directory in the order of their bytes, about `limit` of them, after the entry of cookie
    /// `after` (which must still be in the directory) or from the beginning. Empty at the end.
    pub async fn read_directory(
        &self,
        directory: InodeNumber,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, ReadError> {
        let shown = format!("directory {directory}").into_bytes();
        let from = match after {
            None => directory_prefix(directory),
            Some(cookie) => {
                let value = self.value(&Key::Name(cookie).encode(), &shown).await?;
                let value = value.ok_or(ReadError::NoInode(InodeNumber(cookie)))?;
                let place = decode_place(&value).map_err(|error| self.malformed(&shown, error))?;
                if place.0 != directory {
                    return Err(ReadError::NoInode(InodeNumber(cookie)));
                }
                key_after(directory, place.1)
            }
        };
        self.list_from(directory, from, limit.max(1), &shown).await
    }

    pub(super) async fn list_from(
        &self,
        directory: InodeNumber,
        mut from: Vec<u8>,
        limit: usize,
        shown: &[u8],
    ) -> Result<Vec<DirectoryEntry>, ReadError> {
        let prefix = directory_prefix(directory);
        let mut found = Vec::new();
        loop {
            let read = self.0.tree.batch(&from).await;
            self.check_lease()?;
            let batch = read.map_err(|error| self.tree_error(shown, error))?;
            for (key, value) in batch.cells {
                let Some(name) = key.strip_prefix(&prefix[..]) else {
                    return Ok(found);
                };
                if crate::name::check_name(name).is_err() {
                    return Err(self.malformed(shown, CodecError::Inconsistent));
                }
                let entry = Entry::decode(&value).map_err(|error| self.malformed(shown, error))?;
                let name = name.to_vec();
                found.push(DirectoryEntry { name, entry });
                if found.len() >= limit {
                    return Ok(found);
                }
            }
            match batch.next {
                Some(next) if next[..] <= prefix[..] || next.starts_with(&prefix) => from = next,
                _ => return Ok(found),
            }
        }
    }

    /// Walks everything below a directory: each directory's entries in the order of their bytes, then its
    /// subdirectories. Several walks of different directories may run side by side.
    pub fn walk(&self, directory: InodeNumber) -> Walk {
        Walk {
            reader: self.clone(),
            waiting: vec![(directory, Vec::new())],
            current: None,
        }
    }
}

/// The smallest key that an entry behind `name` may have.
pub(super) fn key_after(directory: InodeNumber, name: &[u8]) -> Vec<u8> {
    let mut key = entry_key(directory, name);
    key.push(0);
    key
}

/// Entries that are listed at once.
const LISTED_AT_ONCE: usize = 256;

/// A walk under way.
pub struct Walk {
    reader: Reader,
    /// Directories still to be listed, the next one last.
    waiting: Vec<(InodeNumber, Vec<u8>)>,
    current: Option<Listing>,
}

struct Listing {
    directory: InodeNumber,
    path: Vec<u8>,
    /// The name that was listed last. A walk stays in one generation, so it needs no cookies, which cost a lookup each.
    after: Option<Vec<u8>>,
    found: Vec<(InodeNumber, Vec<u8>)>,
}

impl Walk {
    /// The next entries; empty at the end. An error ends the listing of its directory, and the walk goes on
    /// with the next call.
    pub async fn next_batch(&mut self) -> Result<Vec<WalkEntry>, ReadError> {
        loop {
            let listing = match &mut self.current {
                Some(listing) => listing,
                None => match self.waiting.pop() {
                    None => return Ok(Vec::new()),
                    Some((directory, path)) => self.current.insert(Listing {
                        directory,
                        path,
                        after: None,
                        found: Vec::new(),
                    }),
                },
            };
            let from = match &listing.after {
                None => directory_prefix(listing.directory),
                Some(name) => key_after(listing.directory, name),
            };
            let shown = format!("directory {}", listing.directory).into_bytes();
            let listed = self
                .reader
                .list_from(listing.directory, from, LISTED_AT_ONCE, &shown);
            let listed = listed.await;
            let batch = match listed {
                Ok(batch) if !batch.is_empty() => batch,
                other => {
                    // The first found is the next listed: the stack is taken from its end.
                    self.waiting.extend(listing.found.drain(..).rev());
                    self.current = None;
                    other?;
                    continue;
                }
            };
            listing.after = batch.last().map(|last| last.name.clone());
            let mut entries = Vec::with_capacity(batch.len());
            for DirectoryEntry { name, entry } in batch {
                let mut path = listing.path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                if entry.kind() == Kind::Directory {
                    listing.found.push((entry.inode(), path.clone()));
                }
                entries.push(WalkEntry { path, entry });
            }
            return Ok(entries);
        }
    }
}
