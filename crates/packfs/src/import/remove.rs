//! Removing what the source does not have.

use super::{ImportError, Importer, at};
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Kind};
use crate::format::key::{InodeNumber, directory_prefix, entry_key};
use crate::name::{Shown, check_name};
use crate::tree::inconsistent;

impl Importer<'_> {
    /// Removes everything below the root of which `exists` says that the source does not have it, with all that is in
    /// it; `removed` hears how many entries are gone.
    ///
    /// # Errors
    /// The first of `exists`, or of the file system. What was removed before is gone.
    pub async fn delete_missing<E>(
        &mut self,
        mut exists: impl FnMut(&[u8]) -> Result<bool, E>,
        mut removed: impl FnMut(u64),
    ) -> Result<(), ImportError<E>> {
        let mut waiting = vec![(self.root, Vec::new())];
        while let Some((directory, path)) = waiting.pop() {
            let mut after = None;
            while let Some((name, entry)) = self.next(directory, after.as_deref()).await.map_err(at(&path))? {
                let mut inner: Vec<u8> = path.clone();
                if !inner.is_empty() {
                    inner.push(b'/');
                }
                inner.extend_from_slice(&name);
                if !exists(&inner).map_err(ImportError::Source)? {
                    self.remove_tree(directory, &name).await.map_err(at(&inner))?;
                    removed(self.progress.deleted);
                } else if entry.kind() == Kind::Directory {
                    waiting.push((entry.inode(), inner));
                }
                after = Some(name);
            }
        }
        Ok(())
    }

    /// Removes a name and all that is below it, from the leaves up.
    pub(super) async fn remove_tree(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), WriteError> {
        let entry = self.writer.lookup(directory, name).await?;
        let entry = entry.ok_or_else(|| WriteError::NotFound {
            directory,
            name: Shown::new(name),
        })?;
        let mut waiting = vec![(directory, name.to_vec(), entry)];
        while let Some((parent, name, entry)) = waiting.last() {
            if entry.kind() == Kind::Directory
                && let Some((inner, found)) = self.next(entry.inode(), None).await?
            {
                let inside = (entry.inode(), inner, found);
                waiting.push(inside);
                continue;
            }
            self.writer.remove(*parent, name).await?;
            self.progress.deleted += 1;
            waiting.pop();
            if self.writer.uncommitted_bytes() > self.commit_after_bytes {
                self.commit().await?;
            }
        }
        Ok(())
    }

    /// The first entry of a directory behind a name.
    async fn next(
        &self,
        directory: InodeNumber,
        after: Option<&[u8]>,
    ) -> Result<Option<(Vec<u8>, Entry)>, WriteError> {
        let prefix = directory_prefix(directory);
        let from = match after {
            None => prefix.clone(),
            Some(name) => {
                let mut key = entry_key(directory, name);
                key.push(0);
                key
            }
        };
        let Some((key, value)) = self.writer.tree.first_with_prefix(&from, &prefix).await? else {
            return Ok(None);
        };
        let name = key.strip_prefix(&prefix[..]).unwrap_or_default();
        check_name(name).map_err(|_| inconsistent(0, CodecError::Inconsistent))?;
        let entry = Entry::decode(&value).map_err(|source| inconsistent(0, source))?;
        Ok(Some((name.to_vec(), entry)))
    }

    /// A directory that gives way to something else is looked up anew by whoever asks.
    pub(super) fn forget(&mut self, path: &[u8]) {
        let mut inside = path.to_vec();
        inside.push(b'/');
        self.directories
            .retain(|known, _| known != path && !known.starts_with(&inside));
    }
}
