//! Filling a file system from entries, wherever they come from, also again: what is there already is left alone, what
//! differs is replaced.
//!
//! Whoever imports asks for each file where it stands ([`Importer::standing`]) before reading it, hands entries to
//! [`Importer::entry`] and commits now and then. An import that ended in the middle is begun anew with the same
//! entries: what was committed costs a lookup each.

mod content;
mod remove;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use foundation::ByteCount;

use crate::error::WriteError;
use crate::extended::{self, LIST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::format::entry::{Attributes, DeviceNumber, Entry, Inode, Kind};
use crate::format::key::InodeNumber;
use crate::name::{Shown, components};
use crate::writer::{Writer, check_attributes};

/// One thing to import.
#[derive(Clone, Debug)]
pub struct ImportEntry {
    /// Path from the import's root. Directories must come before what is in them; those that never come are
    /// made with the root's attributes.
    pub path: Vec<u8>,
    /// Mode, owner and times; of a hard link they are ignored.
    pub attributes: Attributes,
    /// All extended attributes; `None` leaves those alone that there are.
    pub extended: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    /// What it is.
    pub content: ImportContent,
}

impl ImportEntry {
    fn has_extended(&self) -> bool {
        self.extended.as_ref().is_some_and(|all| !all.is_empty())
    }
}

/// What is imported.
#[derive(Clone, Debug)]
pub enum ImportContent {
    /// A directory. One that exists gets the attributes.
    Directory,
    /// A file that fits into memory.
    File(Vec<u8>),
    /// A file whose bytes follow from [`ImportPieces::more`].
    LargeFile {
        /// How long it is said to be, in bytes.
        size_bytes: u64,
    },
    /// A file whose content is there already, as [`Importer::standing`] said; it gets the attributes.
    Kept,
    /// A symbolic link to these bytes.
    Symlink(Vec<u8>),
    /// A further name of what was imported at this path.
    HardLink(Vec<u8>),
    /// A pipe or a socket, which have no content, or a device.
    Special(Kind, DeviceNumber),
}

/// A part of a large file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportPiece {
    /// These bytes; at least one.
    Bytes(Vec<u8>),
    /// So many zeros that take no space.
    Hole(u64),
}

/// Where the content of large files comes from.
pub trait ImportPieces {
    /// Why it could not be had.
    type Error;

    /// The next part of the last [`ImportContent::LargeFile`]; `None` at its end. An error ends it, too.
    fn more(&mut self) -> impl Future<Output = Result<Option<ImportPiece>, Self::Error>>;
}

/// What is done about a name that is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// A file of the same length and time of change is taken for the same; others are replaced.
    #[default]
    SizeAndTime,
    /// Contents are compared, whatever length and times say.
    Content,
    /// Nothing is changed: contents and attributes are compared, and differences told.
    Check,
}

/// How an import treats what is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    /// What is done about names that exist.
    pub existing: Existing,
    /// Whether a directory that is not empty gives way to something else of its name. It goes before that is written, so that it is gone also where
    /// that then cannot be read or finds no room.
    pub remove_directories: bool,
}

/// Where a file stands before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there with all its attributes: nothing is left to do.
    Same,
    /// Its content is there; attributes may differ.
    SameContent,
    /// It must be read.
    Wanted,
}

/// What was done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is new.
    Made,
    /// It took the place of something that differed.
    Replaced,
    /// Only its attributes were set.
    AttributesSet,
    /// It was there as it is.
    Unchanged,
    /// Of [`Existing::Check`]: it is not there as it is.
    Differs(&'static str),
}

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// Entries done.
    pub entries: u64,
    /// Of these, made or replaced.
    pub copied: u64,
    /// Of these, with new attributes only.
    pub attributes_set: u64,
    /// Of these, left as they were.
    pub unchanged: u64,
    /// Entries removed because the source has none of their name.
    pub deleted: u64,
    /// Bytes of content written.
    pub content_bytes: u64,
    /// Bytes of content that were there already.
    pub unchanged_bytes: u64,
    /// Commits made.
    pub commits: u64,
}

/// An entry could not be imported. What was committed stays.
#[derive(Debug, thiserror::Error)]
pub enum ImportError<E> {
    /// The source failed.
    #[error("{0}")]
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
    /// An extended attribute that cannot be one.
    #[error(
        "{path}: the extended attribute \"{name}\" has a value of {length} bytes; a name has 1 to 255 bytes, a value at \
         most 65536. Remove it from the source"
    )]
    Extended {
        /// The entry.
        path: Shown,
        /// The attribute.
        name: Shown,
        /// Length of its value in bytes.
        length: usize,
    },
    /// More extended attributes than anybody could list.
    #[error(
        "{path}: the names of its {count} extended attributes take {bytes} bytes, each with the byte that ends it, and \
         {LIST_BYTES_MAX} are the most. Remove some from the source"
    )]
    ExtendedList {
        /// The entry.
        path: Shown,
        /// How many there are.
        count: usize,
        /// What they take, in bytes.
        bytes: usize,
    },
}

impl<E> ImportError<E> {
    /// Whether nothing that follows can be imported either, or not safely.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Source(_) | Self::LinkTarget { .. } => false,
            Self::Extended { .. } | Self::ExtendedList { .. } => false,
            Self::Write { source, .. } => matches!(
                source,
                WriteError::NoSpace { .. }
                    | WriteError::Io { .. }
                    | WriteError::Broken
                    | WriteError::DisksFull
                    | WriteError::Buffer(_)
                    | WriteError::Tree(_)
                    | WriteError::Lease(_)
            ),
        }
    }
}

/// Index pages in memory, in bytes, after which an import commits what it has.
const COMMIT_AFTER_BYTES: u64 = 32 << 20;
/// Pages that replacing an entry touches at most beyond those that every change does.
const CHANGE_PAGES: u64 = 24;
/// How often an import asks whether a full volume has grown.
const GROWTH_PAUSE: Duration = Duration::from_secs(2);
/// Room beside a file's bytes below which space that was given back is made free first, in bytes.
const ROOM_BESIDE_BYTES: u64 = 1 << 20;

/// See the module.
pub struct Importer<'a> {
    writer: &'a mut Writer,
    root: InodeNumber,
    options: ImportOptions,
    /// Directories by path.
    directories: BTreeMap<Vec<u8>, InodeNumber>,
    progress: ImportProgress,
    /// Large files: whether all parts of the last one were taken.
    drained: bool,
    /// Index pages in memory, in bytes, after which it commits what it has.
    pub(crate) commit_after_bytes: u64,
}

/// What an entry's place holds.
struct Place<'a> {
    directory: InodeNumber,
    name: &'a [u8],
    existing: Option<Inode>,
    /// What something new is made with. Where extended attributes follow its time is another one until it has them, so that
    /// nobody takes it for the same before ([`Standing::Same`]).
    attributes: Attributes,
}

impl<'a> Importer<'a> {
    /// Imports below the directory `root`.
    pub fn new(writer: &'a mut Writer, root: InodeNumber, options: ImportOptions) -> Self {
        Self {
            writer,
            root,
            options,
            directories: BTreeMap::from([(Vec::new(), root)]),
            progress: ImportProgress::default(),
            drained: true,
            commit_after_bytes: COMMIT_AFTER_BYTES,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> &ImportProgress {
        &self.progress
    }

    /// Where a regular file stands, before it is read. Blocks on reads of the index.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub async fn standing(
        &self,
        path: &[u8],
        attributes: &Attributes,
        size_bytes: u64,
    ) -> Result<Standing, WriteError> {
        if self.options.existing != Existing::SizeAndTime {
            return Ok(Standing::Wanted);
        }
        let Some(found) = self.find(path).await? else {
            return Ok(Standing::Wanted);
        };
        if !is_likely_same(&found, attributes, size_bytes) {
            return Ok(Standing::Wanted);
        }
        // Whatever changes mode, owner, names or extended attributes also changes this time.
        match found.attributes.ctime == attributes.ctime && same_attributes(&found.attributes, attributes) {
            true => Ok(Standing::Same),
            false => Ok(Standing::SameContent),
        }
    }

    /// Imports one entry; commits where the index in memory has grown large.
    ///
    /// # Errors
    /// [`ImportError::is_fatal`] says whether to go on with the next one.
    pub async fn entry<S: ImportPieces>(
        &mut self,
        entry: &ImportEntry,
        pieces: &mut S,
    ) -> Result<Done, ImportError<S::Error>> {
        self.drained = !matches!(entry.content, ImportContent::LargeFile { .. });
        let done = self.place(entry, pieces).await;
        self.writer.use_reserve(false);
        // What is left of a large file that was given up does not belong to the next.
        while !self.drained {
            self.drained = !matches!(pieces.more().await, Ok(Some(_)));
        }
        let done = done?;
        self.progress.entries += 1;
        match done {
            Done::Made | Done::Replaced => self.progress.copied += 1,
            Done::AttributesSet => self.progress.attributes_set += 1,
            Done::Unchanged => self.progress.unchanged += 1,
            Done::Differs(_) => {}
        }
        // Who asked for the volume gets it by a commit, and the next entry ends the import.
        if self.writer.uncommitted_bytes() > self.commit_after_bytes || self.writer.wanted_by().is_some() {
            self.commit().await.map_err(at(&entry.path))?;
        }
        Ok(done)
    }

    /// Counts an entry that [`Importer::standing`] found to be the same.
    pub fn count_same(&mut self, size_bytes: u64) {
        self.progress.entries += 1;
        self.progress.unchanged += 1;
        self.progress.unchanged_bytes += size_bytes;
    }

    /// Makes durable what was imported.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub async fn commit(&mut self) -> Result<(), WriteError> {
        self.writer.commit().await?;
        self.progress.commits += 1;
        Ok(())
    }

    fn checks(&self) -> bool {
        self.options.existing == Existing::Check
    }

    pub(crate) async fn place<S: ImportPieces>(
        &mut self,
        entry: &ImportEntry,
        pieces: &mut S,
    ) -> Result<Done, ImportError<S::Error>> {
        let path = components(&entry.path).collect::<Vec<_>>();
        let failed = at(&entry.path);
        self.check(entry)?;
        let Some((name, parents)) = path.split_last() else {
            return match entry.content {
                ImportContent::Directory => {
                    let root = self.writer.inode(self.root).await.map_err(failed)?;
                    self.attributes(&root, entry).await
                }
                _ => Ok(Done::Unchanged),
            };
        };
        let directory = self.directory(parents).await.map_err(at(&entry.path))?;
        let Some(directory) = directory else {
            return Ok(Done::Differs("its directory is not there"));
        };
        let existing = self.existing(directory, name).await.map_err(failed)?;
        let existed = existing.is_some();
        let mut attributes = entry.attributes;
        if entry.has_extended() {
            attributes.ctime.seconds ^= 1;
        }
        let mut place = Place {
            directory,
            name,
            existing,
            attributes,
        };
        let done = match &entry.content {
            ImportContent::Directory => return self.make_directory(&mut place, &path, entry).await,
            ImportContent::HardLink(target) => return self.link(&mut place, entry, target).await,
            ImportContent::Kept => None,
            ImportContent::File(bytes) => self.file(&mut place, entry, bytes).await?,
            ImportContent::LargeFile { size_bytes } => {
                self.large_file(&mut place, entry, *size_bytes, pieces).await?
            }
            ImportContent::Symlink(target) => self.symlink(&mut place, entry, target).await?,
            ImportContent::Special(kind, device) => self.special(&mut place, entry, *kind, *device).await?,
        };
        match (done, &place.existing) {
            (Some(made), _) => {
                if let Done::Made = made {
                    self.new_extended(directory, name, entry).await?;
                }
                Ok(match made {
                    Done::Made if existed => Done::Replaced,
                    made => made,
                })
            }
            (None, Some(found)) => {
                self.progress.unchanged_bytes += found.size;
                let found = found.clone();
                self.attributes(&found, entry).await
            }
            (None, None) if self.checks() => Ok(Done::Differs("is not there")),
            // Somebody asked where it stands, and then it was removed by another entry of this import.
            (None, None) => {
                let name = Shown::new(name);
                Err(at(&entry.path)(WriteError::NotFound { directory, name }))
            }
        }
    }

    /// Refuses what no inode can have, before anything changes.
    fn check<E>(&self, entry: &ImportEntry) -> Result<(), ImportError<E>> {
        if !matches!(entry.content, ImportContent::HardLink(_)) {
            check_attributes(&entry.attributes, self.root).map_err(at(&entry.path))?;
        }
        let bad =
            |(name, value): &&(Vec<u8>, Vec<u8>)| !extended::is_name(name) || value.len() > VALUE_BYTES_MAX;
        let all = || entry.extended.iter().flatten();
        let bytes = all().map(|(name, _)| name.len() + 1).sum();
        match all().find(bad) {
            None if bytes > LIST_BYTES_MAX => Err(ImportError::ExtendedList {
                path: Shown::new(&entry.path),
                count: all().count(),
                bytes,
            }),
            None => Ok(()),
            Some((name, value)) => Err(ImportError::Extended {
                path: Shown::new(&entry.path),
                name: Shown::new(name),
                length: value.len(),
            }),
        }
    }

    /// Gives what is there the entry's attributes, where they differ.
    async fn attributes<E>(&mut self, found: &Inode, entry: &ImportEntry) -> Result<Done, ImportError<E>> {
        let same_times = found.attributes.mtime == entry.attributes.mtime;
        if self.checks() {
            return Ok(if !same_attributes(&found.attributes, &entry.attributes) {
                Done::Differs("has another mode or owner")
            } else if !same_times {
                Done::Differs("has another time of change")
            } else if !self.same_extended(found.number, entry).await? {
                Done::Differs("has other extended attributes")
            } else {
                Done::Unchanged
            });
        }
        let same = found.attributes.ctime == entry.attributes.ctime
            && same_times
            && same_attributes(&found.attributes, &entry.attributes);
        let extended_set = self.set_extended(found.number, entry).await?;
        if same {
            return Ok(match extended_set {
                true => Done::AttributesSet,
                false => Done::Unchanged,
            });
        }
        let set = self.writer.set_attributes(found.number, &entry.attributes).await;
        set.map_err(at(&entry.path))?;
        Ok(Done::AttributesSet)
    }

    async fn new_extended<E>(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        entry: &ImportEntry,
    ) -> Result<(), ImportError<E>> {
        if !entry.has_extended() {
            return Ok(());
        }
        let made = self.writer.lookup(directory, name).await;
        if let Some(made) = made.map_err(at(&entry.path))? {
            self.set_extended(made.inode(), entry).await?;
            let set = self.writer.set_attributes(made.inode(), &entry.attributes).await;
            set.map_err(at(&entry.path))?;
        }
        Ok(())
    }

    async fn same_extended<E>(
        &self,
        inode: InodeNumber,
        entry: &ImportEntry,
    ) -> Result<bool, ImportError<E>> {
        let Some(wanted) = &entry.extended else {
            return Ok(true);
        };
        let names = extended::list(&self.writer.tree, inode).await;
        let mut same = names.map_err(|error| at(&entry.path)(error.into()))?.len() == wanted.len();
        for (name, value) in wanted {
            let found = extended::get(&self.writer.tree, inode, name).await;
            same &= found.map_err(|error| at(&entry.path)(error.into()))?.as_ref() == Some(value);
        }
        Ok(same)
    }

    /// Gives an inode the entry's extended attributes and no others; whether that changed anything.
    async fn set_extended<E>(
        &mut self,
        inode: InodeNumber,
        entry: &ImportEntry,
    ) -> Result<bool, ImportError<E>> {
        let Some(wanted) = &entry.extended else {
            return Ok(false);
        };
        let failed = |error| at(&entry.path)(error);
        let names = extended::list(&self.writer.tree, inode).await;
        let mut changed = false;
        for name in names.map_err(|error| failed(error.into()))? {
            if !wanted.iter().any(|(other, _)| *other == name) {
                self.writer.take_extended(inode, &name).await.map_err(failed)?;
                changed = true;
            }
        }
        for (name, value) in wanted {
            let found = extended::get(&self.writer.tree, inode, name).await;
            if found.map_err(|error| failed(error.into()))?.as_ref() != Some(value) {
                let put = self.writer.put_extended(inode, name, value).await;
                put.map_err(failed)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    async fn make_directory<E>(
        &mut self,
        place: &mut Place<'_>,
        path: &[&[u8]],
        entry: &ImportEntry,
    ) -> Result<Done, ImportError<E>> {
        if let Some(found) = place
            .existing
            .clone()
            .filter(|found| found.kind == Kind::Directory)
        {
            self.directories.insert(path.join(&b'/'), found.number);
            return self.attributes(&found, entry).await;
        }
        if self.checks() {
            return Ok(Done::Differs("is no directory there"));
        }
        let replaced = place.existing.is_some();
        let failed = at(&entry.path);
        self.check_quota(place, 0).await.map_err(at(&entry.path))?;
        self.make_way(place, entry, 0).await.map_err(at(&entry.path))?;
        let made = self
            .writer
            .mkdir(place.directory, place.name, &entry.attributes)
            .await;
        let made = made.map_err(failed)?;
        self.directories.insert(path.join(&b'/'), made);
        self.set_extended(made, entry).await?;
        Ok(if replaced { Done::Replaced } else { Done::Made })
    }

    async fn link<E>(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        target: &[u8],
    ) -> Result<Done, ImportError<E>> {
        let found = self.find(target).await.map_err(at(&entry.path))?;
        let first = match found {
            Some(first) => first.number,
            None if self.checks() => return Ok(Done::Differs("what it is a further name of is not there")),
            None => {
                return Err(ImportError::LinkTarget {
                    path: Shown::new(&entry.path),
                    target: Shown::new(target),
                });
            }
        };
        let there = place.existing.as_ref().map(|found| found.number);
        if there == Some(first) {
            return Ok(Done::Unchanged);
        }
        if self.checks() {
            return Ok(Done::Differs("is not the same file as the other name it has"));
        }
        self.check_link(place, first).await.map_err(at(&entry.path))?;
        self.make_way(place, entry, 0).await.map_err(at(&entry.path))?;
        let linked = self.writer.link(place.directory, place.name, first).await;
        linked.map_err(at(&entry.path))?;
        Ok(match there {
            Some(_) => Done::Replaced,
            None => Done::Made,
        })
    }

    /// Whether quotas let an inode have a name there: what has it must not go before that is refused.
    async fn check_link(&self, place: &Place<'_>, first: InodeNumber) -> Result<(), WriteError> {
        let (inode, stands) = self.writer.find(first).await?;
        let from = self.writer.quota_tree_of(&inode, &stands).await?;
        let to = self.writer.quota_tree(place.directory).await?;
        self.writer.check_same_quota(from, to)
    }

    /// The directory of a path, made where it is missing; `None` if it is missing and nothing may be made.
    async fn directory(&mut self, path: &[&[u8]]) -> Result<Option<InodeNumber>, WriteError> {
        if let Some(&known) = self.directories.get(&path.join(&b'/')) {
            return Ok(Some(known));
        }
        let mut directory = self.root;
        for depth in 1..=path.len() {
            let joined = path[..depth].join(&b'/');
            directory = match self.directories.get(&joined) {
                Some(&known) => known,
                None => {
                    let name = path[depth - 1];
                    let inode = match self.writer.lookup(directory, name).await? {
                        Some(entry) if entry.kind() != Kind::Directory => {
                            return Err(WriteError::NotADirectory(entry.inode()));
                        }
                        Some(entry) => entry.inode(),
                        None if self.checks() => return Ok(None),
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
        Ok(Some(directory))
    }

    async fn existing(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<Inode>, WriteError> {
        match self.writer.lookup(directory, name).await? {
            None => Ok(None),
            Some(Entry::Embedded(inode)) => Ok(Some(inode)),
            Some(Entry::Link { inode, .. }) => Ok(Some(self.writer.inode(inode).await?)),
        }
    }

    /// What a path below the root leads to.
    pub(crate) async fn find(&self, path: &[u8]) -> Result<Option<Inode>, WriteError> {
        let names = components(path).collect::<Vec<_>>();
        let Some((last, parents)) = names.split_last() else {
            return Ok(Some(self.writer.inode(self.root).await?));
        };
        let mut at = self.root;
        match self.directories.get(&parents.join(&b'/')) {
            Some(&known) => at = known,
            None => {
                for name in parents {
                    match self.writer.lookup(at, name).await? {
                        Some(entry) if entry.kind() == Kind::Directory => at = entry.inode(),
                        _ => return Ok(None),
                    }
                }
            }
        }
        self.existing(at, last).await
    }

    /// Before content of so many bytes is packed: makes free what can be, if there is not room enough.
    async fn make_room(&mut self, bytes: u64) -> Result<(), WriteError> {
        let enough =
            |writer: &Writer| writer.free_bytes() > ByteCount(bytes.saturating_add(ROOM_BESIDE_BYTES));
        if enough(self.writer) || self.writer.look_for_growth(GROWTH_PAUSE).await {
            return Ok(());
        }
        // What a commit gives back may be used after the next.
        for _ in 0..2 {
            if !enough(self.writer) && self.writer.gains_by_commit().await && !enough(self.writer) {
                self.writer.commit_always().await?;
                self.progress.commits += 1;
            }
        }
        Ok(())
    }
}

fn same_attributes(found: &Attributes, wanted: &Attributes) -> bool {
    (found.mode, found.uid, found.gid) == (wanted.mode, wanted.uid, wanted.gid)
}

/// Length and time of change are a file's, as rsync looks at them.
fn is_likely_same(found: &Inode, attributes: &Attributes, size_bytes: u64) -> bool {
    found.kind == Kind::File && found.size == size_bytes && found.attributes.mtime == attributes.mtime
}

fn at<E>(path: &[u8]) -> impl Fn(WriteError) -> ImportError<E> + use<E> {
    let path = Shown::new(path);
    move |source| ImportError::Write {
        path: path.clone(),
        source,
    }
}
