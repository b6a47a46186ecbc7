//! Removing what the source does not have.

use super::{ImportError, ImportProgress, Importer, at};
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Kind};
use crate::format::key::{InodeNumber, directory_prefix, entry_key};
use crate::name::{Shown, check_name};
use crate::tree::inconsistent;

/// Other tasks run after so many entries at the latest.
const YIELD_EVERY: u64 = 64;

impl Importer<'_> {
    /// Removes everything below the root of which `exists` says that the source does not have it, with all that is in
    /// it; `removed` hears of each entry that is gone and of each commit, and says whether it goes on.
    ///
    /// # Errors
    /// The first of `exists` or `removed`, or of the file system. What was removed before is gone with the next commit.
    pub async fn delete_missing<E>(
        &mut self,
        mut exists: impl FnMut(&[u8]) -> Result<bool, E>,
        mut removed: impl FnMut(&ImportProgress) -> Result<(), E>,
    ) -> Result<(), ImportError<E>> {
        let mut waiting = vec![(self.root, Vec::new())];
        let mut seen = 0;
        while let Some((directory, path)) = waiting.pop() {
            let mut after = None;
            while let Some((name, entry)) = self.next(directory, after.as_deref()).await.map_err(at(&path))? {
                seen += 1;
                if seen % YIELD_EVERY == 0 {
                    reactor::yield_now().await;
                }
                let mut inner: Vec<u8> = path.clone();
                if !inner.is_empty() {
                    inner.push(b'/');
                }
                inner.extend_from_slice(&name);
                if !exists(&inner).map_err(ImportError::Source)? {
                    let mut stop = None;
                    let goes_on = |progress: &ImportProgress| {
                        removed(progress).map_err(|error| stop = Some(error)).is_ok()
                    };
                    let done = self.remove_tree(directory, &name, goes_on).await;
                    done.map_err(at(&inner))?;
                    if let Some(error) = stop {
                        return Err(ImportError::Source(error));
                    }
                } else if entry.kind() == Kind::Directory {
                    waiting.push((entry.inode(), inner));
                }
                after = Some(name);
            }
        }
        Ok(())
    }

    /// Removes a name and all that is below it, from the leaves up, as long as `goes_on` says so after each entry
    /// and each commit.
    pub(super) async fn remove_tree(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        mut goes_on: impl FnMut(&ImportProgress) -> bool,
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
            if !goes_on(&self.progress) {
                break;
            }
            if self.writer.uncommitted_bytes() > self.commit_after_bytes {
                self.commit().await?;
                if !goes_on(&self.progress) {
                    break;
                }
            }
            if self.progress.deleted.is_multiple_of(YIELD_EVERY) {
                reactor::yield_now().await;
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
