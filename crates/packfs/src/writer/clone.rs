//! Clones: a tree of names and inodes once more, whose content is the same bytes of the volume.
//!
//! A clone is made in the index alone and appears with the next commit, as a whole. Cost: each cell of what is cloned read twice
//! and written once more, a change of the record of shared bytes for each run of bytes that lie side by side; no content
//! is read or written. Until the commit all of it is in memory, which bounds how much can be cloned at once.

use std::collections::{BTreeMap, BTreeSet};

use foundation::ByteCount;

use super::Writer;
use super::extents::LENGTHS_MAX;
use crate::error::WriteError;
use crate::extended;
use crate::format::entry::{Attributes, Entry, Inode, Kind, Layout, encode_place};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::{InodeNumber, Key, directory_prefix, entry_key, extents_prefix};
use crate::format::superblock::Features;
use crate::format::{CodecError, PAGE_BYTES};
use crate::shared::count;
use crate::tree::inconsistent;

/// The most index that one clone may add, in bytes.
const INDEX_BYTES_MAX: u64 = 2 << 30;
/// What a cell takes in its page beyond key and value, and what a number may be longer in a clone than in what is cloned.
const CELL_BYTES: u64 = 24;

/// What was cloned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// The clone of what was named.
    pub inode: InodeNumber,
    /// Inodes that are not directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of content, by the lengths of files.
    pub content: ByteCount,
}

/// What a clone takes.
#[derive(Default)]
struct Needed {
    cloned: Cloned,
    extents: Vec<Extent>,
    /// Bytes of cells.
    index_bytes: u64,
}

impl Needed {
    fn cell(&mut self, key: usize, value: usize) {
        self.index_bytes += (key + value) as u64 + CELL_BYTES;
    }

    fn pages(&self) -> u64 {
        // A page that was split is half full.
        2 * self.index_bytes / (PAGE_BYTES as u64 - 64) + 8
    }
}

fn malformed(source: CodecError) -> WriteError {
    inconsistent(0, source).into()
}

impl Writer {
    /// Gives the file or directory `source`, with all that is below it, a further time the name `name` in `directory`: new inodes with the
    /// same attributes and names, whose content is not copied but shared until one of both changes. Several names of one
    /// inode in the tree become several names of one clone. Quotas are not cloned; what is cloned is charged where it appears, with
    /// the lengths of its files. Nothing is visible to others before the next commit. Waits for reads of the index.
    ///
    /// # Errors
    /// As for a new file; [`WriteError::CloneTooLarge`] where the index of the clone passes 2 GiB, [`WriteError::OutOfRange`] where all lengths
    /// would sum up to more than 2^61. Then nothing has changed.
    pub async fn clone_tree(
        &mut self,
        source: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Cloned, WriteError> {
        self.check_new(directory, name, &Attributes::default()).await?;
        let (source, _) = self.find(source).await?;
        let needed = self.measure(&source).await?;
        let Cloned {
            files,
            directories,
            content,
            ..
        } = needed.cloned;
        let tree = self.quota_tree(directory).await?;
        self.check_quota(tree, files + directories, content.0)?;
        self.check_lengths(content.0)?;
        if needed.index_bytes > INDEX_BYTES_MAX {
            return Err(WriteError::CloneTooLarge {
                inodes: files + directories,
                bytes: ByteCount(needed.index_bytes),
                limit: ByteCount(INDEX_BYTES_MAX),
            });
        }
        self.check_room_for(false, needed.pages())?;
        let made = self.write_clone(&source, directory, name, &needed.extents).await;
        // A part of it must not be committed.
        self.broken |= made.is_err();
        let inode = made?;
        self.totals.files += files;
        self.totals.directories += directories;
        self.totals.content_bytes += content.0;
        let inodes = (files + directories).cast_signed();
        self.charge(tree, inodes, content.0.cast_signed());
        Ok(Cloned {
            inode,
            ..needed.cloned
        })
    }

    /// Gives a file the content of another one, in the place of its own. The caller writes the inode. Nothing is copied.
    pub(crate) async fn share_content(&mut self, from: &Inode, to: &mut Inode) -> Result<(), WriteError> {
        let mut needed = Needed::default();
        self.measure_inode(from, &mut needed).await?;
        self.check_lengths(from.size)?;
        self.check_room_for(false, needed.pages())?;
        self.check_droppable_content(to).await?;
        let runs = count(needed.extents.iter().copied(), self.segment_bytes());
        let shared = async {
            self.share(&runs).await?;
            self.drop_content(to).await?;
            self.clone_extents(from, to.number).await
        }
        .await;
        self.broken |= shared.is_err();
        shared?;
        to.layout = from.layout.clone();
        self.set_size(to, from.size);
        Ok(())
    }

    fn check_lengths(&self, more: u64) -> Result<(), WriteError> {
        if self.totals.content_bytes.saturating_add(more) > LENGTHS_MAX {
            let (what, inode) = ("the sum of all lengths, with that", InodeNumber(self.next_inode));
            return Err(WriteError::OutOfRange { what, inode });
        }
        Ok(())
    }

    /// Reads all that is to be cloned, so that damage is met before anything changes.
    async fn measure(&self, source: &Inode) -> Result<Needed, WriteError> {
        let mut needed = Needed::default();
        let mut linked = BTreeSet::new();
        self.measure_inode(source, &mut needed).await?;
        let mut waiting = vec![source.clone()];
        while let Some(directory) = waiting.pop() {
            let prefix = directory_prefix(directory.number);
            let mut from = Some(prefix.clone());
            while let Some(at) = from {
                let part = self.tree.part(&prefix, &at).await?;
                for (key, value) in &part.cells {
                    // The entry, and its place by its cookie.
                    needed.cell(2 * key.len(), value.len());
                    match Entry::decode(value).map_err(malformed)? {
                        Entry::Embedded(inode) => {
                            self.measure_inode(&inode, &mut needed).await?;
                            if inode.kind == Kind::Directory {
                                waiting.push(inode);
                            }
                        }
                        Entry::Link { inode, .. } => {
                            needed.cell(20, 0);
                            if linked.insert(inode) {
                                self.measure_inode(&self.find(inode).await?.0, &mut needed)
                                    .await?;
                            }
                        }
                    }
                }
                from = part.next;
            }
        }
        Ok(needed)
    }

    async fn measure_inode(&self, inode: &Inode, needed: &mut Needed) -> Result<(), WriteError> {
        let cloned = &mut needed.cloned;
        match inode.kind {
            Kind::Directory => cloned.directories += 1,
            _ => cloned.files += 1,
        }
        cloned.content.0 = cloned.content.0.saturating_add(inode.size);
        if cloned.directories > self.totals.directories || cloned.files > self.totals.files {
            // More than there are: directories go round in circles.
            return Err(malformed(CodecError::Inconsistent));
        }
        needed.cell(20, inode.encode().len());
        match &inode.layout {
            Layout::Inline(_) | Layout::Device(_) => {}
            Layout::Extents(extents) => self.measure_extents(extents, needed),
            Layout::Mapped => {
                let prefix = extents_prefix(inode.number);
                let mut from = Some(prefix.clone());
                while let Some(at) = from {
                    let part = self.tree.part(&prefix, &at).await?;
                    for (key, value) in &part.cells {
                        needed.cell(key.len(), value.len());
                        self.measure_extents(&decode_value(value).map_err(malformed)?, needed);
                    }
                    from = part.next;
                }
            }
        }
        if self.features.has(Features::EXTENDED) {
            for name in extended::list(&self.tree, inode.number).await? {
                let value = extended::get(&self.tree, inode.number, &name).await?;
                let length = value.map_or(0, |value| value.len());
                for _ in 0..=length / extended::PART_BYTES {
                    needed.cell(name.len() + 12, extended::PART_BYTES);
                }
            }
        }
        Ok(())
    }

    fn measure_extents(&self, extents: &[Extent], needed: &mut Needed) {
        for extent in extents.iter().filter(|extent| self.is_counted(extent)) {
            needed.extents.push(*extent);
            needed.cell(9, 6);
        }
    }

    async fn write_clone(
        &mut self,
        source: &Inode,
        directory: InodeNumber,
        name: &[u8],
        extents: &[Extent],
    ) -> Result<InodeNumber, WriteError> {
        let runs = count(extents.iter().copied(), self.segment_bytes());
        self.share(&runs).await?;
        let first = self.clone_inode(source, directory, name).await?;
        let mut linked: BTreeMap<InodeNumber, InodeNumber> = BTreeMap::new();
        let mut waiting = Vec::new();
        if source.kind == Kind::Directory {
            waiting.push((source.number, first));
        }
        while let Some((old, new)) = waiting.pop() {
            let prefix = directory_prefix(old);
            let mut from = Some(prefix.clone());
            while let Some(at) = from {
                let part = self.tree.part(&prefix, &at).await?;
                for (key, value) in &part.cells {
                    let name = &key[prefix.len()..];
                    match Entry::decode(value).map_err(malformed)? {
                        // The clone stands below what it is of.
                        Entry::Embedded(inode) if inode.number >= first => {}
                        Entry::Embedded(inode) => {
                            let made = self.clone_inode(&inode, new, name).await?;
                            if inode.kind == Kind::Directory {
                                waiting.push((inode.number, made));
                            }
                        }
                        Entry::Link { inode, .. } => match linked.get(&inode) {
                            Some(made) => self.link(new, name, *made).await?,
                            None => {
                                let (found, _) = self.find(inode).await?;
                                let made = self.clone_inode(&found, new, name).await?;
                                linked.insert(inode, made);
                            }
                        },
                    }
                }
                from = part.next;
            }
        }
        Ok(first)
    }

    /// An inode once more, with one name. Who has its bytes was counted before.
    async fn clone_inode(
        &mut self,
        inode: &Inode,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<InodeNumber, WriteError> {
        let number = InodeNumber(self.next_inode);
        self.next_inode += 1;
        let clone = Inode {
            number,
            links: 1,
            ..inode.clone()
        };
        self.put(entry_key(directory, name), clone.encode()).await?;
        let place = encode_place(directory, name);
        self.put(Key::Name(number.0).encode(), place).await?;
        self.clone_extents(inode, number).await?;
        if self.features.has(Features::EXTENDED) {
            for name in extended::list(&self.tree, inode.number).await? {
                let value = extended::get(&self.tree, inode.number, &name).await?;
                self.put_extended(number, &name, &value.unwrap_or_default())
                    .await?;
            }
        }
        Ok(number)
    }

    /// Extents that stand under keys, once more.
    async fn clone_extents(&mut self, from: &Inode, to: InodeNumber) -> Result<(), WriteError> {
        if from.layout != Layout::Mapped {
            return Ok(());
        }
        let prefix = extents_prefix(from.number);
        let mut next = Some(prefix.clone());
        while let Some(at) = next {
            let part = self.tree.part(&prefix, &at).await?;
            for (key, value) in part.cells {
                let Ok(Key::Extents(_, offset)) = Key::decode(&key) else {
                    return Err(malformed(CodecError::Inconsistent));
                };
                self.put(Key::Extents(to, offset).encode(), value).await?;
            }
            next = part.next;
        }
        Ok(())
    }
}
