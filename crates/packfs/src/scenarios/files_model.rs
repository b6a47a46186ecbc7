//! A file system in memory with POSIX's rules, and random operations on it and on the real one.

use std::collections::BTreeMap;

use foundation::Random;

use super::model::{Model, Node, join, split};
use crate::files::{
    Allocate, FileError, FileSystem, NewInode, NodeKind, RenameMode, SetAttributes, SetExtended, errno,
};
use crate::{Attributes, DeviceNumber, InodeNumber, Kind, Seek, Timestamp};

/// Attributes by inode and name.
pub(super) type Extended = BTreeMap<(InodeNumber, Vec<u8>), Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) tree: Model,
    pub(super) extended: Extended,
    /// Open inodes, some without a name.
    open: Vec<InodeNumber>,
    orphans: BTreeMap<InodeNumber, Node>,
    now: i64,
}

type Done = Result<(), FileError>;

/// Whether an operation ended for something that no rule of POSIX says: there is no room, or this is the writer no more.
fn ends(error: &FileError) -> bool {
    error.is_no_space() || matches!(error.errno(), errno::EIO | errno::EROFS)
}

/// An operation must end as the model says.
fn same(result: Done, expected: Option<i32>) -> Done {
    match (result, expected) {
        (Err(error), _) if ends(&error) => Err(error),
        (Err(error), Some(number)) => {
            assert_eq!(error.errno(), number, "{error}");
            Ok(())
        }
        (Ok(()), Some(number)) => panic!("error {number} was expected"),
        (result, None) => result,
    }
}

impl Files {
    pub(super) fn new(root: Attributes) -> Self {
        Self {
            tree: Model::new(root),
            extended: BTreeMap::new(),
            open: Vec::new(),
            orphans: BTreeMap::new(),
            now: 1_000_000,
        }
    }

    /// What a takeover finds: nothing is open.
    pub(super) fn reopened(mut self) -> Self {
        self.open.clear();
        self.orphans.clear();
        self
    }

    /// The same without what belonged to inodes that are gone.
    pub(super) fn reopened_whole(self) -> Self {
        let mut whole = self.reopened();
        let nodes = &whole.tree.nodes;
        whole.extended.retain(|(owner, _), _| nodes.contains_key(owner));
        whole
    }

    fn tick(&mut self) -> Timestamp {
        self.now += 1;
        Timestamp {
            seconds: self.now,
            nanoseconds: 7,
        }
    }

    fn node(&mut self, inode: InodeNumber) -> &mut Node {
        match self.tree.nodes.get_mut(&inode) {
            Some(node) => node,
            None => self.orphans.get_mut(&inode).unwrap(),
        }
    }

    fn touch(&mut self, inode: InodeNumber, now: Timestamp) {
        let attributes = &mut self.node(inode).attributes;
        attributes.mtime = now;
        attributes.ctime = now;
    }

    /// A name is gone.
    fn dropped(&mut self, inode: InodeNumber, now: Timestamp) {
        let node = self.node(inode);
        node.links -= 1;
        node.attributes.ctime = now;
        if node.links == 0 {
            let node = self.tree.nodes.remove(&inode).unwrap();
            if self.open.contains(&inode) {
                self.orphans.insert(inode, node);
            } else {
                self.extended.retain(|(owner, _), _| *owner != inode);
            }
        }
    }

    fn parent_of(&self, path: &[u8]) -> InodeNumber {
        self.tree.names[split(path).0]
    }

    fn any(&self, random: &mut Random) -> (Vec<u8>, InodeNumber) {
        self.tree.pick(random, |_| true).unwrap()
    }

    /// A file that is open or has a name.
    fn file(&self, random: &mut Random) -> Option<InodeNumber> {
        if !self.open.is_empty() && random.chance(1, 3) {
            return Some(self.open[random.below(self.open.len() as u64) as usize]);
        }
        let found = self.tree.pick(random, |node| node.kind == Kind::File);
        found.map(|(_, inode)| inode)
    }

    /// Moves a name and everything below it.
    fn rekey(&mut self, from: &[u8], to: &[u8]) {
        let below = [from, b"/"].concat();
        let moved: Vec<Vec<u8>> = self
            .tree
            .names
            .keys()
            .filter(|path| path[..] == *from || path.starts_with(&below))
            .cloned()
            .collect();
        for path in moved {
            let inode = self.tree.names.remove(&path).unwrap();
            let path = [to, &path[from.len()..]].concat();
            assert!(self.tree.names.insert(path, inode).is_none());
        }
    }
}

/// One random operation on both. Nothing changes where the volume is full.
pub(super) async fn step(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    match random.below(30) {
        0..=4 => make(files, model, random).await,
        5 => link(files, model, random).await,
        6 | 7 => remove(files, model, random).await,
        8..=10 => rename(files, model, random).await,
        11 => set_attributes(files, model, random).await,
        12 | 13 => extended(files, model, random).await,
        14..=18 => write(files, model, random).await,
        19 => truncate(files, model, random).await,
        20 => open(files, model, random).await,
        21 => release(files, model, random).await,
        22 | 23 => read(files, model, random).await,
        24 => list(files, model, random).await,
        25 => files.compact_a_little().await,
        26 => allocate(files, model, random).await,
        27 => copy(files, model, random).await,
        28 => seek(files, model, random).await,
        _ => stat(files, model, random).await,
    }
}

fn new_name(model: &Files, random: &mut Random) -> (InodeNumber, Vec<u8>, Vec<u8>) {
    let (directory, parent) = model
        .tree
        .pick(random, |node| node.kind == Kind::Directory)
        .unwrap();
    let mut name = format!("n{}", random.below(30)).into_bytes();
    if random.chance(1, 10) {
        name.resize(255, 0xfe);
    }
    let path = join(&directory, &name);
    (parent, name, path)
}

async fn make(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (parent, name, path) = new_name(model, random);
    let now = model.tick();
    let new = NewInode {
        mode: random.below(0o10000) as u32,
        uid: random.below(3) as u32,
        gid: random.below(3) as u32,
    };
    let kind = match random.below(7) {
        0 | 1 => Kind::Directory,
        2 => Kind::Symlink,
        3 => [Kind::Pipe, Kind::Socket, Kind::CharacterDevice, Kind::BlockDevice][random.below(4) as usize],
        _ => Kind::File,
    };
    let bytes = match kind {
        Kind::Symlink => vec![b'x'; random.between(1, 400) as usize],
        _ => Vec::new(),
    };
    let number = DeviceNumber {
        major: random.below(4096) as u32,
        minor: random.below(1 << 20) as u32,
    };
    let device = kind.is_device().then_some(number);
    let made = match kind {
        Kind::Directory => files.mkdir(parent, &name, new, now).await,
        Kind::Symlink => files.symlink(parent, &name, &bytes, new, now).await,
        Kind::File => files.create(parent, &name, new, now).await,
        special => {
            let node = match (special, number) {
                (Kind::Pipe, _) => NodeKind::Pipe,
                (Kind::Socket, _) => NodeKind::Socket,
                (Kind::CharacterDevice, number) => NodeKind::CharacterDevice(number),
                (_, number) => NodeKind::BlockDevice(number),
            };
            files.mknod(parent, &name, node, new, now).await
        }
    };
    let exists = model.tree.names.contains_key(&path);
    let number = made.as_ref().map_or(InodeNumber(0), |inode| inode.number);
    same(made.map(|_| ()), exists.then_some(errno::EEXIST))?;
    if exists {
        return Ok(());
    }
    let above = model.node(parent).attributes;
    let inherits = above.mode & 0o2000 != 0;
    let handed = if inherits && kind == Kind::Directory {
        0o2000
    } else {
        0
    };
    let attributes = Attributes {
        mode: new.mode | handed,
        uid: new.uid,
        gid: if inherits { above.gid } else { new.gid },
        mtime: now,
        atime: now,
        ctime: now,
    };
    let node = Node {
        kind,
        attributes,
        links: 1,
        bytes,
        device,
    };
    model.tree.add(path, number, node);
    model.touch(parent, now);
    Ok(())
}

async fn link(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (parent, name, path) = new_name(model, random);
    let (_, target) = model.any(random);
    let now = model.tick();
    let exists = model.tree.names.contains_key(&path);
    let directory = model.node(target).kind == Kind::Directory;
    let expected = match (exists, directory) {
        (true, _) => Some(errno::EEXIST),
        (_, true) => Some(errno::EPERM),
        _ => None,
    };
    let linked = files.link(target, parent, &name, now).await.map(|_| ());
    same(linked, expected)?;
    if expected.is_none() {
        model.tree.names.insert(path, target);
        let node = model.node(target);
        node.links += 1;
        node.attributes.ctime = now;
        model.touch(parent, now);
    }
    Ok(())
}

pub(super) async fn remove(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (path, inode) = model.any(random);
    if inode == InodeNumber::ROOT {
        return Ok(());
    }
    let now = model.tick();
    let (parent, name) = (model.parent_of(&path), split(&path).1);
    let is_directory = model.node(inode).kind == Kind::Directory;
    let as_directory = is_directory ^ random.chance(1, 6);
    let (result, expected) = if as_directory {
        let expected = match (is_directory, model.tree.is_empty(&path)) {
            (false, _) => Some(errno::ENOTDIR),
            (true, false) => Some(errno::ENOTEMPTY),
            (true, true) => None,
        };
        (files.rmdir(parent, name, now).await, expected)
    } else {
        let expected = is_directory.then_some(errno::EISDIR);
        (files.unlink(parent, name, now).await, expected)
    };
    same(result, expected)?;
    if expected.is_none() {
        model.tree.names.remove(&path);
        model.dropped(inode, now);
        model.touch(parent, now);
    }
    Ok(())
}

async fn rename(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (from_path, moved) = model.any(random);
    if moved == InodeNumber::ROOT {
        return Ok(());
    }
    let (to_path, to, name) = if random.chance(1, 2) {
        let (path, inode) = model.any(random);
        if inode == InodeNumber::ROOT {
            return Ok(());
        }
        (path.clone(), model.parent_of(&path), split(&path).1.to_vec())
    } else {
        let (parent, name, path) = new_name(model, random);
        (path, parent, name)
    };
    let now = model.tick();
    let from = model.parent_of(&from_path);
    let target = model.tree.names.get(&to_path).copied();
    let mode = [
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ][random.below(4) as usize];
    let is_directory = |model: &mut Files, inode| model.node(inode).kind == Kind::Directory;
    let below = |path: &[u8], other: &[u8]| path.starts_with(&[other, b"/"].concat());
    let expected = match (mode, target) {
        (RenameMode::Exchange, None) => Some(errno::ENOENT),
        (RenameMode::NoReplace, Some(_)) => Some(errno::EEXIST),
        (RenameMode::Exchange, Some(_)) if below(&to_path, &from_path) || below(&from_path, &to_path) => {
            Some(errno::EINVAL)
        }
        (RenameMode::Replace, Some(other)) if other == moved => None,
        _ if below(&to_path, &from_path) => Some(errno::EINVAL),
        (RenameMode::Replace, Some(other)) => {
            match (is_directory(model, moved), is_directory(model, other)) {
                (false, true) => Some(errno::EISDIR),
                (true, false) => Some(errno::ENOTDIR),
                (true, true) if !model.tree.is_empty(&to_path) => Some(errno::ENOTEMPTY),
                _ => None,
            }
        }
        _ => None,
    };
    let old = (from, split(&from_path).1);
    let renamed = files.rename(old, (to, &name), mode, now).await;
    same(renamed, expected)?;
    if expected.is_some() || from_path == to_path {
        return Ok(());
    }
    match (mode, target) {
        (RenameMode::Exchange, Some(other)) => {
            model.rekey(&from_path, b"\0");
            model.rekey(&to_path, &from_path);
            model.rekey(b"\0", &to_path);
            model.node(other).attributes.ctime = now;
        }
        (_, Some(other)) if other == moved => return Ok(()),
        (_, target) => {
            if let Some(other) = target {
                model.tree.names.remove(&to_path);
                model.dropped(other, now);
            }
            model.rekey(&from_path, &to_path);
        }
    }
    model.node(moved).attributes.ctime = now;
    model.touch(from, now);
    model.touch(to, now);
    Ok(())
}

async fn set_attributes(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (_, inode) = model.any(random);
    let now = model.tick();
    let mut maybe = |bound| random.chance(1, 2).then(|| random.below(bound) as u32);
    let set = SetAttributes {
        mode: maybe(0o10000),
        uid: maybe(70_000),
        gid: maybe(5),
        size: None,
        atime: maybe(1 << 31).map(|seconds| Timestamp {
            seconds: -i64::from(seconds),
            nanoseconds: 999_999_999,
        }),
        mtime: maybe(1 << 31).map(|seconds| Timestamp {
            seconds: i64::from(seconds),
            nanoseconds: 0,
        }),
    };
    files.set_attributes(inode, &set, now).await?;
    let a = &mut model.node(inode).attributes;
    a.mode = set.mode.unwrap_or(a.mode);
    a.uid = set.uid.unwrap_or(a.uid);
    a.gid = set.gid.unwrap_or(a.gid);
    a.atime = set.atime.unwrap_or(a.atime);
    a.mtime = set.mtime.unwrap_or(a.mtime);
    a.ctime = now;
    Ok(())
}

async fn extended(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (_, inode) = model.any(random);
    let now = model.tick();
    let name = format!("user.{}", random.below(4)).into_bytes();
    let key = (inode, name.clone());
    let known = model.extended.get(&key).cloned();
    let found = files.extended(inode, &name).await;
    match &known {
        Some(value) => assert!(found? == *value),
        None => same(found.map(|_| ()), Some(errno::ENODATA))?,
    }
    if random.chance(1, 4) {
        let removed = files.remove_extended(inode, &name, now).await;
        same(removed, known.is_none().then_some(errno::ENODATA))?;
        model.extended.remove(&key);
        if known.is_some() {
            model.node(inode).attributes.ctime = now;
        }
        return Ok(());
    }
    let length = [0, 5, 255, 256, 257, 512, 3000][random.below(7) as usize];
    let mut value = vec![0; length];
    random.fill(&mut value);
    let mode = [SetExtended::Always, SetExtended::Create, SetExtended::Replace][random.below(3) as usize];
    let expected = match (mode, known.is_some()) {
        (SetExtended::Create, true) => Some(errno::EEXIST),
        (SetExtended::Replace, false) => Some(errno::ENODATA),
        _ => None,
    };
    same(
        files.set_extended(inode, &name, &value, mode, now).await,
        expected,
    )?;
    if expected.is_none() {
        model.extended.insert(key, value);
        model.node(inode).attributes.ctime = now;
    }
    Ok(())
}

async fn write(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let Some(inode) = model.file(random) else {
        return Ok(());
    };
    let size = model.node(inode).bytes.len() as u64;
    let now = model.tick();
    let offset = match random.below(5) {
        0 => 0,
        1 | 2 => size,
        3 => random.below(size + 1),
        _ => random.below(size + 90_000).min(400_000),
    };
    let length = match random.below(4) {
        0 => random.between(1, 100),
        1 | 2 => random.between(1, 9000),
        _ => random.between(1, 70_000),
    };
    let mut bytes = vec![0; length as usize];
    random.fill(&mut bytes);
    files.write(inode, offset, &bytes, now).await?;
    let node = model.node(inode);
    let end = (offset + length) as usize;
    node.bytes.resize(node.bytes.len().max(end), 0);
    node.bytes[offset as usize..end].copy_from_slice(&bytes);
    model.touch(inode, now);
    Ok(())
}

async fn truncate(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let Some(inode) = model.file(random) else {
        return Ok(());
    };
    let now = model.tick();
    let size = model.node(inode).bytes.len() as u64;
    let size = match random.below(4) {
        0 => 0,
        1 | 2 => random.below(size + 1),
        _ => random.below(size + 60_000).min(400_000),
    };
    let set = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    let changed = files.set_attributes(inode, &set, now).await?;
    assert_eq!(changed.size, size);
    model.node(inode).bytes.resize(size as usize, 0);
    model.touch(inode, now);
    Ok(())
}

async fn allocate(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let Some(inode) = model.file(random) else {
        return Ok(());
    };
    let now = model.tick();
    let size = model.node(inode).bytes.len() as u64;
    let start = random.below(size + 5000).min(400_000);
    let end = start + [random.between(1, 300), random.between(1, 150_000)][random.below(2) as usize];
    let how = [Allocate::Room, Allocate::Hole, Allocate::Hole, Allocate::Zeros][random.below(4) as usize];
    let keep_size = how == Allocate::Hole || random.chance(1, 2);
    files.allocate(inode, start..end, how, keep_size, now).await?;
    let longer = !keep_size && end > size;
    let bytes = &mut model.node(inode).bytes;
    if longer {
        bytes.resize(end as usize, 0);
    }
    if how != Allocate::Room {
        let end = (end as usize).min(bytes.len());
        bytes[(start as usize).min(end)..end].fill(0);
        let (start, end, length) = (start.min(end as u64), end as u64, bytes.len() as u64);
        // What is so short may stand beside the inode.
        if start < end && length > 128 && size > 128 {
            match files.seek(inode, start, Seek::Data).await {
                Ok(data) => assert!(
                    data >= end,
                    "a hole was made from {start} to {end}, and {data} is content"
                ),
                Err(error) => same(Err(error), Some(errno::ENXIO))?,
            }
        }
    }
    if how != Allocate::Room || longer {
        model.touch(inode, now);
    }
    Ok(())
}

async fn copy(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (Some(from), Some(to)) = (model.file(random), model.file(random)) else {
        return Ok(());
    };
    let now = model.tick();
    let old = model.node(from).bytes.clone();
    let at = random.below(old.len() as u64 + 100);
    let there = random
        .below(model.node(to).bytes.len() as u64 + 1000)
        .min(350_000);
    let length = random.between(1, 60_000);
    // As cp does it.
    let (at, there, length) = match random.chance(1, 2) {
        true => (0, 0, 1 << 30),
        false => (at, there, length),
    };
    let copied = files.copy_range((from, at), (to, there), length, now).await;
    if from == to && at.abs_diff(there) < length {
        return same(copied.map(|_| ()), Some(errno::EINVAL));
    }
    let expected = length.min((old.len() as u64).saturating_sub(at));
    assert_eq!(copied?, expected);
    if expected > 0 {
        let (at, there, length) = (at as usize, there as usize, expected as usize);
        let bytes = &mut model.node(to).bytes;
        bytes.resize(bytes.len().max(there + length), 0);
        bytes[there..there + length].copy_from_slice(&old[at..at + length]);
        model.touch(to, now);
    }
    Ok(())
}

/// All that is not found as content is zeros, and neither goes past the end.
async fn seek(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let Some(inode) = model.file(random) else {
        return Ok(());
    };
    let bytes = model.node(inode).bytes.clone();
    let size = bytes.len() as u64;
    let mut at = random.below(size + 1);
    let mut hole_from = at;
    while at < size {
        at = match files.seek(inode, at, Seek::Data).await {
            Ok(data) => {
                assert!(data >= at && data < size);
                data
            }
            Err(error) => {
                same(Err(error), Some(errno::ENXIO))?;
                size
            }
        };
        let hole = &bytes[hole_from as usize..at as usize];
        assert!(
            hole.iter().all(|&byte| byte == 0),
            "content in a hole of inode {inode}"
        );
        if at < size {
            let end = files.seek(inode, at, Seek::Hole).await?;
            assert!(end > at && end <= size);
            (hole_from, at) = (end, end);
        }
    }
    let behind = files.seek(inode, size, Seek::Hole).await.map(|_| ());
    same(behind, Some(errno::ENXIO))
}

async fn open(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    if let Some(inode) = model.file(random) {
        files.open_inode(inode).await?;
        model.open.push(inode);
    }
    Ok(())
}

async fn release(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    if model.open.is_empty() {
        return Ok(());
    }
    let index = random.below(model.open.len() as u64) as usize;
    let inode = model.open.swap_remove(index);
    if !model.open.contains(&inode) && model.orphans.remove(&inode).is_some() {
        model.extended.retain(|(owner, _), _| *owner != inode);
    }
    files.release(inode).await
}

async fn read(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let Some(inode) = model.file(random) else {
        return Ok(());
    };
    let bytes = model.node(inode).bytes.clone();
    let offset = random.below(bytes.len() as u64 + 10);
    let length = random.below(100_000);
    let found = files.read(inode, offset, length).await?;
    let from = (offset as usize).min(bytes.len());
    let to = (offset + length).min(bytes.len() as u64) as usize;
    assert!(
        found == bytes[from..to.max(from)],
        "{length} bytes at {offset} of inode {inode}"
    );
    Ok(())
}

async fn list(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (path, directory) = model
        .tree
        .pick(random, |node| node.kind == Kind::Directory)
        .unwrap();
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let batch = files
            .read_directory(directory, after, None, random.between(1, 9) as usize)
            .await?;
        let Some(last) = batch.last() else { break };
        after = Some(last.cookie);
        found.extend(
            batch
                .into_iter()
                .map(|listed| (join(&path, &listed.name), listed.inode)),
        );
    }
    let expected: Vec<_> = model
        .tree
        .names
        .iter()
        .filter(|(other, _)| !other.is_empty() && split(other).0 == path)
        .map(|(other, inode)| (other.clone(), *inode))
        .collect();
    assert_eq!(found, expected);
    Ok(())
}

async fn stat(files: &mut FileSystem, model: &mut Files, random: &mut Random) -> Done {
    let (path, number) = model.any(random);
    if number == InodeNumber::ROOT {
        return Ok(());
    }
    let found = files.lookup(model.parent_of(&path), split(&path).1).await?;
    let node = model.node(number).clone();
    assert_eq!((found.number, found.kind), (number, node.kind));
    assert_eq!(found.device(), node.device);
    assert_eq!((found.links, found.attributes), (node.links, node.attributes));
    assert_eq!(found.size, node.bytes.len() as u64);
    if node.kind == Kind::Symlink {
        assert!(files.read_link(number).await? == node.bytes);
    }
    Ok(())
}
