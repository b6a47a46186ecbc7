//! Changing names and inodes.

use super::{Charged, DIRECTORIES_KEPT, Writer};
use crate::error::WriteError;
use crate::format::entry::{
    Attributes, DeviceNumber, Entry, INLINE_BYTES_MAX, Inode, Kind, Layout, encode_place,
};
use crate::format::extent::{EXTENTS_EMBEDDED_MAX, EXTENTS_PER_KEY, Extent, decode_value, encode_list};
use crate::format::key::{InodeNumber, Key, directory_prefix, entry_key, extents_prefix};
use crate::format::superblock::Features;
use crate::name::{Shown, check_name, check_target};
use crate::tree::inconsistent;

/// Where an inode stands in the tree.
pub(crate) enum Place {
    OwnKey,
    Entry { directory: InodeNumber, name: Vec<u8> },
}

impl Writer {
    /// Makes a regular file of `bytes`. To stream a large one see [`Writer::begin_file`].
    pub async fn create_file(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        bytes: &[u8],
    ) -> Result<InodeNumber, WriteError> {
        self.create(directory, name, attributes, Kind::File, bytes).await
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<InodeNumber, WriteError> {
        check_target(name, target)?;
        self.create(directory, name, attributes, Kind::Symlink, target)
            .await
    }

    /// Makes a pipe or socket, or the device of this number. The volume is from then on one that programs which do not know such
    /// inodes refuse.
    ///
    /// # Panics
    /// If the kind has content.
    pub async fn create_special(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        kind: Kind,
        device: DeviceNumber,
    ) -> Result<InodeNumber, WriteError> {
        assert!(kind.is_special(), "{kind:?} is no pipe, socket or device");
        self.check_new(directory, name, attributes).await?;
        let tree = self.quota_tree(directory).await?;
        self.check_quota(tree, 1, 0)?;
        let layout = match kind.is_device() {
            true => Layout::Device(device),
            false => Layout::Inline(Vec::new()),
        };
        self.add(directory, name, attributes, kind, 0, layout).await
    }

    /// Names an inode whose content is packed already.
    pub async fn mkdir(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<InodeNumber, WriteError> {
        self.create(directory, name, attributes, Kind::Directory, b"")
            .await
    }

    async fn create(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        kind: Kind,
        bytes: &[u8],
    ) -> Result<InodeNumber, WriteError> {
        self.check_new(directory, name, attributes).await?;
        let size = bytes.len() as u64;
        let tree = self.quota_tree(directory).await?;
        self.check_quota(tree, 1, size)?;
        if bytes.len() <= INLINE_BYTES_MAX {
            let layout = Layout::Inline(bytes.to_vec());
            return self.add(directory, name, attributes, kind, size, layout).await;
        }
        let extents = self.pack(bytes).await?;
        self.create_with_extents(directory, name, attributes, kind, size, extents)
            .await
    }

    /// Names an inode whose content is packed already; gives that back on failure.
    pub(crate) async fn create_with_extents(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        kind: Kind,
        size: u64,
        extents: Vec<Extent>,
    ) -> Result<InodeNumber, WriteError> {
        let mut checked = self.check_new(directory, name, attributes).await;
        if checked.is_ok() {
            let tree = self.quota_tree(directory).await;
            checked = tree.and_then(|tree| self.check_quota(tree, 1, size));
        }
        if let Err(error) = checked {
            self.forget(&extents);
            return Err(error);
        }
        if extents.len() <= EXTENTS_EMBEDDED_MAX {
            let layout = Layout::Extents(extents);
            return self.add(directory, name, attributes, kind, size, layout).await;
        }
        let inode = InodeNumber(self.next_inode);
        let mut offset = 0;
        for group in extents.chunks(EXTENTS_PER_KEY) {
            let key = Key::Extents(inode, offset).encode();
            self.put(key, encode_list(group)).await?;
            offset += group.iter().map(|extent| u64::from(extent.length)).sum::<u64>();
        }
        self.add(directory, name, attributes, kind, size, Layout::Mapped)
            .await
    }

    /// Checks everything that can be wrong about a new entry.
    pub(crate) async fn check_new(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<(), WriteError> {
        check_name(name)?;
        check_attributes(attributes, InodeNumber(self.next_inode))?;
        self.check_room(false)?;
        self.check_directory(directory).await?;
        match self.tree.get(&entry_key(directory, name)).await? {
            None => Ok(()),
            Some(_) => Err(WriteError::Exists {
                directory,
                name: Shown::new(name),
            }),
        }
    }

    pub(crate) async fn check_directory(&mut self, directory: InodeNumber) -> Result<(), WriteError> {
        if self.directories.contains(&directory) {
            return Ok(());
        }
        if self.inode(directory).await?.kind != Kind::Directory {
            return Err(WriteError::NotADirectory(directory));
        }
        if self.directories.len() >= DIRECTORIES_KEPT {
            self.directories.clear();
        }
        self.directories.insert(directory);
        Ok(())
    }

    pub(crate) async fn add(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        kind: Kind,
        size: u64,
        layout: Layout,
    ) -> Result<InodeNumber, WriteError> {
        let tree = self.quota_tree(directory).await?;
        let number = InodeNumber(self.next_inode);
        self.next_inode += 1;
        let inode = Inode {
            number,
            kind,
            attributes: *attributes,
            links: 1,
            size,
            layout,
        };
        self.put(entry_key(directory, name), inode.encode()).await?;
        let place = encode_place(directory, name);
        self.put(Key::Name(number.0).encode(), place).await?;
        if kind.is_special() {
            self.features = self.features.with(Features::SPECIAL);
        }
        match kind {
            Kind::Directory => self.totals.directories += 1,
            _ => self.totals.files += 1,
        }
        self.totals.content_bytes += size;
        self.charge(tree, 1, size.cast_signed());
        Ok(number)
    }

    /// Gives an inode a further name.
    pub async fn link(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        target: InodeNumber,
    ) -> Result<(), WriteError> {
        self.check_new(directory, name, &Attributes::default()).await?;
        let (mut inode, place) = self.find(target).await?;
        let kind = inode.kind;
        if kind == Kind::Directory {
            return Err(WriteError::LinkToDirectory(target));
        }
        let (from, to) = (
            self.quota_tree_of(&inode, &place).await?,
            self.quota_tree(directory).await?,
        );
        self.check_same_quota(from, to)?;
        let what = "the number of links";
        let out_of_range = WriteError::OutOfRange { what, inode: target };
        inode.links = inode.links.checked_add(1).ok_or(out_of_range)?;
        self.put(Key::Inode(target).encode(), inode.encode()).await?;
        if let Place::Entry { directory, name } = place {
            let cookie = target.0;
            self.put_link(directory, &name, target, kind, cookie).await?;
        }
        let cookie = self.next_inode;
        self.next_inode += 1;
        self.put_link(directory, name, target, kind, cookie).await?;
        let place = encode_place(directory, name);
        self.put(Key::Name(cookie).encode(), place).await
    }

    async fn put_link(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        inode: InodeNumber,
        kind: Kind,
        cookie: u64,
    ) -> Result<(), WriteError> {
        let entry = Entry::Link { inode, kind, cookie };
        self.put(entry_key(directory, name), entry.encode()).await?;
        self.put(Key::Link(inode, cookie).encode(), Vec::new()).await
    }

    /// Sets mode, owner and times.
    pub async fn set_attributes(
        &mut self,
        number: InodeNumber,
        attributes: &Attributes,
    ) -> Result<(), WriteError> {
        check_attributes(attributes, number)?;
        self.check_room(true)?;
        let (mut inode, place) = self.find(number).await?;
        inode.attributes = *attributes;
        self.put_inode(&inode, &place).await
    }

    /// Removes a name, and what it means if that was its last one. A directory must be empty.
    pub async fn remove(&mut self, directory: InodeNumber, name: &[u8]) -> Result<(), WriteError> {
        check_name(name)?;
        self.check_room(true)?;
        let entry = self.lookup(directory, name).await?;
        let entry = entry.ok_or_else(|| WriteError::NotFound {
            directory,
            name: Shown::new(name),
        })?;
        if entry.kind() == Kind::Directory {
            let prefix = directory_prefix(entry.inode());
            if self.tree.first_with_prefix(&prefix, &prefix).await?.is_some() {
                let name = Shown::new(name);
                return Err(WriteError::NotEmpty { name });
            }
            self.directories.remove(&entry.inode());
        }
        self.check_removable(&entry).await?;
        let tree = self.quota_tree(directory).await?;
        let last = match &entry {
            Entry::Embedded(inode) => Some(inode.clone()),
            Entry::Link { inode, cookie, .. } => self.unlink(*inode, *cookie).await?,
        };
        self.take(&entry_key(directory, name)).await?;
        self.take(&Key::Name(entry.cookie()).encode()).await?;
        match last {
            Some(inode) => self.drop_inode(inode, tree).await,
            None => Ok(()),
        }
    }

    /// Reads everything that removing an entry may have to take away, so that damage is met before anything changes.
    pub(crate) async fn check_removable(&self, entry: &Entry) -> Result<(), WriteError> {
        match entry {
            Entry::Embedded(inode) => self.check_droppable(inode).await,
            Entry::Link { inode, .. } => {
                let (inode, _) = self.find(*inode).await?;
                match inode.links {
                    0 | 1 => self.check_droppable(&inode).await,
                    _ => Ok(()),
                }
            }
        }
    }

    pub(super) async fn check_droppable(&self, inode: &Inode) -> Result<(), WriteError> {
        self.check_droppable_content(inode).await?;
        self.check_extended(inode.number).await
    }

    pub(super) async fn check_droppable_content(&self, inode: &Inode) -> Result<(), WriteError> {
        match &inode.layout {
            Layout::Inline(_) | Layout::Device(_) => {}
            Layout::Extents(extents) => self.check_shared(extents).await?,
            Layout::Mapped => {
                let prefix = extents_prefix(inode.number);
                let mut from = Some(prefix.clone());
                while let Some(at) = from {
                    let part = self.tree.part(&prefix, &at).await?;
                    for (_, value) in part.cells {
                        let extents = decode_value(&value).map_err(|source| inconsistent(0, source))?;
                        self.check_shared(&extents).await?;
                    }
                    from = part.next;
                }
            }
        }
        Ok(())
    }

    /// Takes one of several names away; gives the inode if it was the last.
    pub(crate) async fn unlink(
        &mut self,
        number: InodeNumber,
        cookie: u64,
    ) -> Result<Option<Inode>, WriteError> {
        let (mut inode, _) = self.find(number).await?;
        self.take(&Key::Link(number, cookie).encode()).await?;
        let key = Key::Inode(number).encode();
        inode.links = inode.links.saturating_sub(1);
        if inode.links == 0 {
            self.take(&key).await?;
            return Ok(Some(inode));
        }
        self.put(key, inode.encode()).await?;
        Ok(None)
    }

    /// Takes away what an inode has, and from the tree it is charged to. To be asked for after [`Writer::check_removable`]: a failure breaks the writer.
    pub(crate) async fn drop_inode(&mut self, inode: Inode, tree: Charged) -> Result<(), WriteError> {
        let dropped = self.drop_parts(inode, tree).await;
        self.broken |= dropped.is_err();
        dropped
    }

    async fn drop_parts(&mut self, inode: Inode, tree: Charged) -> Result<(), WriteError> {
        self.charge(tree, -1, -inode.size.cast_signed());
        if inode.kind == Kind::Directory {
            self.drop_quota(inode.number).await?;
        }
        match inode.kind {
            Kind::Directory => self.totals.directories = self.totals.directories.saturating_sub(1),
            _ => self.totals.files = self.totals.files.saturating_sub(1),
        }
        self.totals.content_bytes = self.totals.content_bytes.saturating_sub(inode.size);
        self.drop_content(&inode).await?;
        self.drop_extended(inode.number).await
    }

    /// Gives back the space of an inode's content.
    pub(crate) async fn drop_content(&mut self, inode: &Inode) -> Result<(), WriteError> {
        match &inode.layout {
            Layout::Inline(_) | Layout::Device(_) => {}
            Layout::Extents(extents) => self.give_back(extents).await?,
            Layout::Mapped => self.drop_mapped(inode.number).await?,
        }
        Ok(())
    }

    /// Writes an inode where it stands.
    pub(crate) async fn put_inode(&mut self, inode: &Inode, place: &Place) -> Result<(), WriteError> {
        let key = match place {
            Place::OwnKey => Key::Inode(inode.number).encode(),
            Place::Entry { directory, name } => entry_key(*directory, name),
        };
        self.put(key, inode.encode()).await
    }

    pub(crate) async fn drop_mapped(&mut self, inode: InodeNumber) -> Result<(), WriteError> {
        let prefix = extents_prefix(inode);
        let mut taken = false;
        loop {
            let found = match self.tree.first_with_prefix(&prefix, &prefix).await {
                Ok(Some((key, value))) => decode_value(&value)
                    .map(|extents| (key, extents))
                    .map_err(|source| inconsistent(0, source)),
                Ok(None) => return Ok(()),
                Err(error) => Err(error),
            };
            let (key, extents) = match found {
                Ok(found) => found,
                Err(error) => {
                    // Half of a file's extents must not be committed: the other half would read as zeros.
                    self.broken |= taken;
                    return Err(error.into());
                }
            };
            taken = true;
            self.take(&key).await?;
            self.give_back(&extents).await?;
        }
    }

    /// The entry of a name, uncommitted changes included.
    pub async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<Entry>, WriteError> {
        match self.tree.get(&entry_key(directory, name)).await? {
            None => Ok(None),
            Some(value) => {
                let entry = Entry::decode(&value).map_err(|source| inconsistent(0, source))?;
                Ok(Some(entry))
            }
        }
    }

    /// An inode by its number, uncommitted changes included.
    pub async fn inode(&self, number: InodeNumber) -> Result<Inode, WriteError> {
        Ok(self.find(number).await?.0)
    }

    pub(crate) async fn find(&self, number: InodeNumber) -> Result<(Inode, Place), WriteError> {
        let malformed = |source| inconsistent(0, source);
        if let Some(value) = self.tree.get(&Key::Inode(number).encode()).await? {
            let inode = Inode::decode(&value).map_err(malformed)?;
            return Ok((inode, Place::OwnKey));
        }
        let Some(value) = self.tree.get(&Key::Name(number.0).encode()).await? else {
            return Err(WriteError::NoInode(number));
        };
        let (directory, name) = crate::format::entry::decode_place(&value).map_err(malformed)?;
        let name = name.to_vec();
        match self.lookup(directory, &name).await? {
            Some(Entry::Embedded(inode)) if inode.number == number => {
                Ok((inode, Place::Entry { directory, name }))
            }
            _ => Err(WriteError::NoInode(number)),
        }
    }

    pub(crate) async fn pack(&mut self, bytes: &[u8]) -> Result<Vec<Extent>, WriteError> {
        self.check_room(false)?;
        let keep = self.pages_kept();
        self.packer.pack(&mut self.space, bytes, keep).await
    }

    /// A change that fails in the middle of several leaves nothing that may be committed.
    pub(crate) async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), WriteError> {
        self.ensure_not_started()?;
        let result = self.tree.insert(key, value).await;
        self.broken |= result.is_err();
        result.map(|_| ()).map_err(WriteError::from)
    }

    /// What a commit that waits for room will write is not all there is to write, once something has changed: then it is never written.
    fn ensure_not_started(&mut self) -> Result<(), WriteError> {
        if !self.is_waiting() {
            return Ok(());
        }
        debug_assert!(false, "a change while a commit waits for room");
        self.give_up();
        Err(WriteError::Broken)
    }

    pub(crate) async fn take(&mut self, key: &[u8]) -> Result<(), WriteError> {
        self.ensure_not_started()?;
        let result = self.tree.remove(key).await;
        self.broken |= result.is_err();
        result.map(|_| ()).map_err(WriteError::from)
    }
}

pub(crate) fn check_attributes(attributes: &Attributes, inode: InodeNumber) -> Result<(), WriteError> {
    let times = [attributes.mtime, attributes.atime, attributes.ctime];
    let what = if attributes.mode > 0o7777 {
        "the mode"
    } else if times.iter().any(|time| time.nanoseconds >= 1_000_000_000) {
        "a time"
    } else {
        return Ok(());
    };
    Err(WriteError::OutOfRange { what, inode })
}
