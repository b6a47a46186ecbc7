//! A directory tree in memory that a file system is compared with, and random changes to both.

use std::collections::BTreeMap;

use foundation::Random;

use crate::{
    Attributes, DeviceNumber, InodeNumber, Kind, ReadError, Reader, Target, Timestamp, WriteError, Writer,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
    pub(super) links: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) device: Option<DeviceNumber>,
}

/// Paths to inodes, and inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) names: BTreeMap<Vec<u8>, InodeNumber>,
    pub(super) nodes: BTreeMap<InodeNumber, Node>,
}

impl Model {
    pub(super) fn new(root: Attributes) -> Self {
        let node = Node {
            kind: Kind::Directory,
            attributes: root,
            links: 1,
            bytes: Vec::new(),
            device: None,
        };
        Self {
            names: BTreeMap::from([(Vec::new(), InodeNumber::ROOT)]),
            nodes: BTreeMap::from([(InodeNumber::ROOT, node)]),
        }
    }

    pub(super) fn pick(
        &self,
        random: &mut Random,
        which: impl Fn(&Node) -> bool,
    ) -> Option<(Vec<u8>, InodeNumber)> {
        let fitting: Vec<_> = self
            .names
            .iter()
            .filter(|(_, inode)| which(&self.nodes[inode]))
            .collect();
        let index = random.below(fitting.len().max(1) as u64) as usize;
        fitting.get(index).map(|(path, inode)| ((*path).clone(), **inode))
    }

    pub(super) fn is_empty(&self, path: &[u8]) -> bool {
        let prefix = [path, b"/"].concat();
        !self.names.keys().any(|other| other.starts_with(&prefix))
    }

    pub(super) fn add(&mut self, path: Vec<u8>, inode: InodeNumber, node: Node) {
        self.names.insert(path, inode);
        assert!(
            self.nodes.insert(inode, node).is_none(),
            "inode {inode} was given a second time"
        );
    }
}

fn attributes(random: &mut Random) -> Attributes {
    let mut time = || Timestamp {
        seconds: random.below(1 << 33) as i64 - (1 << 31),
        nanoseconds: random.below(1_000_000_000) as u32,
    };
    let (mtime, atime, ctime) = (time(), time(), time());
    Attributes {
        mode: random.below(0o10000) as u32,
        uid: random.below(3) as u32 * 1000,
        gid: random.below(3) as u32 * 70_000,
        mtime,
        atime: if random.chance(1, 2) { mtime } else { atime },
        ctime,
    }
}

fn content(random: &mut Random) -> Vec<u8> {
    let length = match random.below(10) {
        0 => 0,
        1..=3 => random.below(200),
        4..=7 => random.below(9000),
        8 => 4096 * random.below(5),
        _ => random.below(120_000),
    };
    let mut bytes = vec![0; length as usize];
    random.fill(&mut bytes);
    bytes
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}

pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Kinds of changes, and those of them that need no feature of version 2.
const CHANGES: u64 = 15;
pub(super) const CHANGES_OF_VERSION_1: u64 = 13;

/// One random change to both. A full volume changes nothing.
pub(super) async fn change(
    writer: &mut Writer,
    model: &mut Model,
    random: &mut Random,
) -> Result<(), WriteError> {
    change_of(CHANGES, writer, model, random).await
}

/// The same of the first so many kinds.
pub(super) async fn change_of(
    kinds: u64,
    writer: &mut Writer,
    model: &mut Model,
    random: &mut Random,
) -> Result<(), WriteError> {
    let (parent_path, parent) = model.pick(random, |node| node.kind == Kind::Directory).unwrap();
    let mut name = format!("n{}", random.below(60)).into_bytes();
    if random.chance(1, 8) {
        name.resize(200, 0xff);
    }
    let path = join(&parent_path, &name);
    let a = attributes(random);
    if model.names.contains_key(&path) && random.chance(3, 4) {
        return remove(writer, model, &path).await;
    }
    let node = |kind, bytes| Node {
        kind,
        attributes: a,
        links: 1,
        bytes,
        device: None,
    };
    match random.below(kinds) {
        0..=5 => {
            let bytes = content(random);
            let made = match random.chance(1, 4) {
                true => stream(writer, parent, &name, &a, &bytes, random).await,
                false => writer.create_file(parent, &name, &a, &bytes).await,
            };
            if let Some(inode) = expect(made, model.names.contains_key(&path))? {
                model.add(path, inode, node(Kind::File, bytes));
            }
        }
        6 | 7 => {
            let made = writer.mkdir(parent, &name, &a).await;
            if let Some(inode) = expect(made, model.names.contains_key(&path))? {
                model.add(path, inode, node(Kind::Directory, Vec::new()));
            }
        }
        8 => {
            let mut target = content(random);
            target.truncate(4095);
            target.push(b't');
            target.truncate(4095);
            let made = writer.symlink(parent, &name, &a, &target).await;
            if let Some(inode) = expect(made, model.names.contains_key(&path))? {
                model.add(path, inode, node(Kind::Symlink, target));
            }
        }
        9 => {
            let Some((_, inode)) = model.pick(random, |node| node.kind != Kind::Directory) else {
                return Ok(());
            };
            let linked = writer.link(parent, &name, inode).await;
            if expect(linked, model.names.contains_key(&path))?.is_some() {
                model.names.insert(path, inode);
                model.nodes.get_mut(&inode).unwrap().links += 1;
            }
        }
        11 => writer.compact_a_little().await?,
        13.. => clone(writer, model, random, (parent, &name), &path).await?,
        10 => {
            let (_, inode) = model.pick(random, |_| true).unwrap();
            writer.set_attributes(inode, &a).await?;
            model.nodes.get_mut(&inode).unwrap().attributes = a;
        }
        _ => {
            let (path, inode) = model.pick(random, |_| true).unwrap();
            if inode != InodeNumber::ROOT {
                remove(writer, model, &path).await?;
            }
        }
    }
    Ok(())
}

fn expect<T>(made: Result<T, WriteError>, exists: bool) -> Result<Option<T>, WriteError> {
    match made {
        Ok(value) => {
            assert!(!exists, "a name was given twice");
            Ok(Some(value))
        }
        Err(WriteError::Exists { .. }) if exists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Clones anything once more, unless that would make the model large.
async fn clone(
    writer: &mut Writer,
    model: &mut Model,
    random: &mut Random,
    (parent, name): (InodeNumber, &[u8]),
    to: &[u8],
) -> Result<(), WriteError> {
    let (from, source) = model.pick(random, |_| true).unwrap();
    let below = if from.is_empty() {
        Vec::new()
    } else {
        [&from[..], b"/"].concat()
    };
    let paths: Vec<Vec<u8>> = model
        .names
        .keys()
        .filter(|path| path.starts_with(&below) && **path != from)
        .cloned()
        .collect();
    if paths.len() > 40 {
        return Ok(());
    }
    let made = writer.clone_tree(source, parent, name).await;
    let Some(cloned) = expect(made, model.names.contains_key(to))? else {
        return Ok(());
    };
    let first = Node {
        links: 1,
        ..model.nodes[&source].clone()
    };
    let (mut files, mut content) = (u64::from(first.kind != Kind::Directory), first.bytes.len() as u64);
    model.add(to.to_vec(), cloned.inode, first);
    let mut made: BTreeMap<InodeNumber, InodeNumber> = BTreeMap::new();
    for path in paths {
        let old = model.names[&path];
        let path = join(to, &path[below.len()..]);
        let new = match made.get(&old) {
            Some(new) => {
                model.nodes.get_mut(new).unwrap().links += 1;
                *new
            }
            None => {
                // Which numbers it gets is the writer's; that they are different is the model's.
                let (directory, name) = split(&path);
                let entry = writer.lookup(model.names[directory], name).await?.unwrap();
                let node = Node {
                    links: 1,
                    ..model.nodes[&old].clone()
                };
                files += u64::from(node.kind != Kind::Directory);
                content += node.bytes.len() as u64;
                assert!(model.nodes.insert(entry.inode(), node).is_none());
                made.insert(old, entry.inode());
                entry.inode()
            }
        };
        model.names.insert(path, new);
    }
    assert_eq!((cloned.files, cloned.content.0), (files, content));
    Ok(())
}

async fn stream(
    writer: &mut Writer,
    parent: InodeNumber,
    name: &[u8],
    attributes: &Attributes,
    bytes: &[u8],
    random: &mut Random,
) -> Result<InodeNumber, WriteError> {
    let mut stream = writer.begin_file();
    let mut rest = bytes;
    while !rest.is_empty() {
        let part = random.between(1, 40_000).min(rest.len() as u64) as usize;
        if let Err(error) = writer.append(&mut stream, &rest[..part]).await {
            writer.abandon_file(stream);
            return Err(error);
        }
        rest = &rest[part..];
    }
    writer.finish_file(stream, parent, name, attributes).await
}

pub(super) async fn remove(writer: &mut Writer, model: &mut Model, path: &[u8]) -> Result<(), WriteError> {
    let (parent, name) = split(path);
    let result = writer.remove(model.names[parent], name).await;
    let inode = model.names[path];
    let node = model.nodes.get_mut(&inode).unwrap();
    let full = node.kind == Kind::Directory;
    if full && !model.is_empty(path) {
        if let Err(WriteError::Lease(_)) = result {
            return result;
        }
        assert!(matches!(result, Err(WriteError::NotEmpty { .. })), "{result:?}");
        return Ok(());
    }
    result?;
    model.names.remove(path);
    let node = model.nodes.get_mut(&inode).unwrap();
    node.links -= 1;
    if node.links == 0 {
        model.nodes.remove(&inode);
    }
    Ok(())
}

/// Reads everything through a reader and makes a model of it, or says what failed.
pub(super) async fn read_back(reader: &Reader) -> Result<Model, String> {
    let text = |error: crate::ReadError| error.to_string();
    let root = reader.lookup(b"").await.map_err(text)?;
    let mut model = Model::new(root.attributes);
    let mut walk = reader.walk(InodeNumber::ROOT);
    loop {
        let batch = walk.next_batch().await.map_err(text)?;
        if batch.is_empty() {
            return Ok(model);
        }
        for part in batch.chunks(40) {
            let targets: Vec<Target<'_>> = part.iter().map(|entry| Target::Path(&entry.path)).collect();
            let contents = reader.read_many(&targets).await;
            for (entry, content) in part.iter().zip(contents) {
                let inode = reader.inode_of(entry.entry.clone()).await.map_err(text)?;
                if reader.lookup(&entry.path).await.map_err(text)? != inode {
                    return Err("a lookup and a listing differ".to_owned());
                }
                let bytes = match inode.kind {
                    Kind::Directory => Vec::new(),
                    kind if kind.is_special() => match content {
                        Err(ReadError::NotAFile { .. }) => Vec::new(),
                        _ => return Err("a pipe, socket or device was read".to_owned()),
                    },
                    _ => content.map_err(text)?.to_vec(),
                };
                if bytes.len() as u64 != inode.size {
                    return Err("a size is wrong".to_owned());
                }
                model.names.insert(entry.path.clone(), inode.number);
                let node = Node {
                    kind: inode.kind,
                    attributes: inode.attributes,
                    links: inode.links,
                    bytes,
                    device: inode.device(),
                };
                model.nodes.insert(inode.number, node);
            }
        }
    }
}

/// What differs first between two models, for a person.
pub(super) fn difference(found: &Model, expected: &Model) -> String {
    if found.names != expected.names {
        return format!("names: {:?} found, {:?} expected", found.names, expected.names);
    }
    for (inode, node) in &expected.nodes {
        let Some(other) = found.nodes.get(inode) else {
            return format!("inode {inode} is missing");
        };
        let bytes = node.bytes.iter().zip(&other.bytes).position(|(a, b)| a != b);
        if other != node {
            let show = |node: &Node| {
                format!(
                    "{:?} {:?} {} {}",
                    node.kind,
                    node.attributes,
                    node.links,
                    node.bytes.len()
                )
            };
            return format!(
                "inode {inode}: {} found, {} expected, bytes differ at {bytes:?}",
                show(other),
                show(node)
            );
        }
    }
    "nothing".to_owned()
}
