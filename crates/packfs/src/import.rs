//! Filling a file system from a stream of entries, wherever they come from.

use std::collections::BTreeMap;
use std::future::Future;

use crate::error::WriteError;
use crate::format::entry::Attributes;
use crate::format::entry::Kind;
use crate::format::key::InodeNumber;
use crate::name::{Shown, components};
use crate::writer::Writer;

/// One thing to import.
#[derive(Clone, Debug)]
pub struct ImportEntry {
    /// Path from the import's root. Directories must come before what is in them; those that never come are
    /// made with the root's attributes.
    pub path: Vec<u8>,
    /// Mode, owner and times; of a hard link they are ignored.
    pub attributes: Attributes,
    /// What it is.
    pub content: ImportContent,
}

/// What is imported.
#[derive(Clone, Debug)]
pub enum ImportContent {
    /// A directory. One that exists gets the attributes.
    Directory,
    /// A file that fits into memory.
    File(Vec<u8>),
    /// A file whose bytes follow from [`ImportSource::more`].
    LargeFile,
    /// A symbolic link to these bytes.
    Symlink(Vec<u8>),
    /// A further name of what was imported at this path.
    HardLink(Vec<u8>),
}

/// Where entries come from: a directory, an archive, a list.
pub trait ImportSource {
    /// Why an entry could not be had.
    type Error;

    /// The next entry; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<ImportEntry>, Self::Error>>;

    /// The next bytes of the last [`ImportContent::LargeFile`]; empty at its end.
    fn more(&mut self) -> impl Future<Output = Result<Vec<u8>, Self::Error>>;
}

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// Entries done.
    pub entries: u64,
    /// Bytes of content done.
    pub content_bytes: u64,
    /// Commits made.
    pub commits: u64,
}

/// An import failed. What was committed stays.
#[derive(Debug, thiserror::Error)]
pub enum ImportError<E> {
    /// The source failed.
    #[error("the source failed: {0}")]
    Source(E),
    /// The file system refused.
    #[error("{path}: {source}")]
    Write {
        /// The entry.
        path: Shown,
        /// Why.
        source: WriteError,
    },
    /// A hard link to something that was not imported before it.
    #[error("{path}: a hard link to {target}, which was not imported before it; import that first")]
    LinkTarget {
        /// The entry.
        path: Shown,
        /// The target.
        target: Shown,
    },
}

/// Index pages in memory, in bytes, after which an import commits what it has.
const COMMIT_AFTER_BYTES: u64 = 32 << 20;

struct Import<'a> {
    writer: &'a mut Writer,
    root: InodeNumber,
    /// Directories by path.
    directories: BTreeMap<Vec<u8>, InodeNumber>,
    progress: ImportProgress,
}

/// Imports everything from `source` below the directory `root`, calls `report` after each entry, and commits at
/// intervals and at the end.
pub async fn import<S: ImportSource>(
    writer: &mut Writer,
    root: InodeNumber,
    source: &mut S,
    mut report: impl FnMut(&ImportProgress),
) -> Result<ImportProgress, ImportError<S::Error>> {
    let directories = BTreeMap::from([(Vec::new(), root)]);
    let progress = ImportProgress::default();
    let mut import = Import {
        writer,
        root,
        directories,
        progress,
    };
    while let Some(entry) = source.next().await.map_err(ImportError::Source)? {
        import.entry(&entry, source).await?;
        import.progress.entries += 1;
        if import.writer.uncommitted_bytes() > COMMIT_AFTER_BYTES {
            import.commit(&entry.path).await?;
        }
        report(&import.progress);
    }
    import.commit(b"the last commit").await?;
    Ok(import.progress)
}

impl Import<'_> {
    async fn commit<E>(&mut self, path: &[u8]) -> Result<(), ImportError<E>> {
        self.writer.commit().await.map_err(at(path))?;
        self.progress.commits += 1;
        Ok(())
    }

    async fn entry<S: ImportSource>(
        &mut self,
        entry: &ImportEntry,
        source: &mut S,
    ) -> Result<(), ImportError<S::Error>> {
        let path = components(&entry.path).collect::<Vec<_>>();
        let Some((name, parents)) = path.split_last() else {
            return match entry.content {
                ImportContent::Directory => {
                    let set = self.writer.set_attributes(self.root, &entry.attributes).await;
                    set.map_err(at(&entry.path))
                }
                _ => Ok(()),
            };
        };
        let directory = self.directory(parents).await.map_err(at(&entry.path))?;
        let attributes = &entry.attributes;
        match &entry.content {
            ImportContent::Directory => self
                .make_directory(directory, &path, attributes)
                .await
                .map_err(at(&entry.path)),
            ImportContent::File(bytes) => {
                let made = self.writer.create_file(directory, name, attributes, bytes).await;
                self.progress.content_bytes += bytes.len() as u64;
                made.map(|_| ()).map_err(at(&entry.path))
            }
            ImportContent::Symlink(target) => {
                let made = self.writer.symlink(directory, name, attributes, target).await;
                made.map(|_| ()).map_err(at(&entry.path))
            }
            ImportContent::HardLink(target) => {
                let found = self.find(target).await.map_err(at(&entry.path))?;
                let inode = found.ok_or_else(|| ImportError::LinkTarget {
                    path: Shown::new(&entry.path),
                    target: Shown::new(target),
                })?;
                self.writer
                    .link(directory, name, inode)
                    .await
                    .map_err(at(&entry.path))
            }
            ImportContent::LargeFile => self.large_file(directory, name, entry, source).await,
        }
    }

    async fn large_file<S: ImportSource>(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        entry: &ImportEntry,
        source: &mut S,
    ) -> Result<(), ImportError<S::Error>> {
        let mut stream = self.writer.begin_file();
        loop {
            let appended = match source.more().await {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => {
                    self.progress.content_bytes += bytes.len() as u64;
                    let appended = self.writer.append(&mut stream, &bytes).await;
                    appended.map_err(at(&entry.path))
                }
                Err(error) => Err(ImportError::Source(error)),
            };
            if let Err(error) = appended {
                self.writer.abandon_file(stream);
                return Err(error);
            }
        }
        let made = self
            .writer
            .finish_file(stream, directory, name, &entry.attributes)
            .await;
        made.map(|_| ()).map_err(at(&entry.path))
    }

    async fn make_directory(
        &mut self,
        parent: InodeNumber,
        path: &[&[u8]],
        attributes: &Attributes,
    ) -> Result<(), WriteError> {
        let name = path.last().expect("the path has a name");
        let existing = self.writer.lookup(parent, name).await?;
        let inode = match existing.filter(|entry| entry.kind() == Kind::Directory) {
            Some(entry) => {
                self.writer.set_attributes(entry.inode(), attributes).await?;
                entry.inode()
            }
            None => self.writer.mkdir(parent, name, attributes).await?,
        };
        self.directories.insert(path.join(&b'/'), inode);
        Ok(())
    }

    /// The directory of a path, made where it is missing.
    async fn directory(&mut self, path: &[&[u8]]) -> Result<InodeNumber, WriteError> {
        if let Some(&known) = self.directories.get(&path.join(&b'/')) {
            return Ok(known);
        }
        let mut directory = self.root;
        for depth in 1..=path.len() {
            let joined = path[..depth].join(&b'/');
            directory = match self.directories.get(&joined) {
                Some(&known) => known,
                None => {
                    let name = path[depth - 1];
                    let inode = match self.writer.lookup(directory, name).await? {
                        Some(entry) => entry.inode(),
                        None => {
                            let attributes = self.writer.inode(self.root).await?.attributes;
                            self.writer.mkdir(directory, name, &attributes).await?
                        }
                    };
                    self.directories.insert(joined, inode);
                    inode
                }
            };
        }
        Ok(directory)
    }

    async fn find(&self, path: &[u8]) -> Result<Option<InodeNumber>, WriteError> {
        let mut at = self.root;
        for name in components(path) {
            match self.writer.lookup(at, name).await? {
                Some(entry) => at = entry.inode(),
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }
}

fn at<E>(path: &[u8]) -> impl FnOnce(WriteError) -> ImportError<E> + use<E> {
    let path = Shown::new(path);
    move |source| ImportError::Write { path, source }
}
