//! What the cells of a tree say, and the cells that say it.

use std::collections::{BTreeMap, BTreeSet};

use super::gather::Cells;
use crate::extended::{self, PART_BYTES, VALUE_BYTES_MAX};
use crate::format::entry::{Entry, Inode, Kind, Layout, decode_place, encode_place};
use crate::format::extent::{EXTENTS_EMBEDDED_MAX, EXTENTS_PER_KEY, Extent, decode_value, encode_list};
use crate::format::key::{InodeNumber, Key};
use crate::format::quota::Quota;
use crate::format::shared::Shared;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Features, Totals};
use crate::name::{NAME_BYTES_MAX, Shown, check_name};
use crate::shared::Record;

/// A directory and a name in it.
pub(super) type Place = (InodeNumber, Vec<u8>);
/// Extents by where they begin in the file.
pub(super) type Groups = BTreeMap<u64, Vec<Extent>>;

/// Numbers and cookies above this are made up: the next one must exist.
const NUMBER_MAX: u64 = 1 << 62;

/// See the module. The second index (names by cookie, lists of links) is here as it was found, and made anew.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) entries: BTreeMap<Place, Entry>,
    /// Inodes under their own keys.
    pub(super) own: BTreeMap<InodeNumber, Inode>,
    pub(super) mapped: BTreeMap<InodeNumber, Groups>,
    pub(super) extended: BTreeMap<(InodeNumber, Vec<u8>), Vec<u8>>,
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) quotas: BTreeMap<InodeNumber, Quota>,
    /// As found, and then as counted.
    pub(super) shared: Record,
    /// As found.
    pub(super) places: BTreeMap<u64, Place>,
    pub(super) links: BTreeSet<(u64, InodeNumber)>,
    pub(super) orphans: BTreeSet<InodeNumber>,
    /// The next inode number or cookie.
    pub(super) next: u64,
}

impl Contents {
    /// What cells say; those that say nothing are told of, and left out.
    pub(super) fn of(cells: &Cells, next: u64, told: &mut Vec<String>) -> Self {
        let mut contents = Self {
            next,
            ..Self::default()
        };
        let mut parts: BTreeMap<(InodeNumber, Vec<u8>), Vec<Vec<u8>>> = BTreeMap::new();
        for (key, value) in cells {
            let decoded = Key::decode(key).ok();
            let kept = decoded
                .clone()
                .and_then(|key| contents.take(key, value, &mut parts));
            if kept.is_none() {
                told.push(match decoded {
                    Some(Key::Entry(directory, name)) => {
                        let name = Shown::new(&name);
                        format!("the malformed entry \"{name}\" of directory {directory} was taken out")
                    }
                    Some(Key::Extents(inode, offset)) => {
                        format!("the malformed extents of inode {inode} from byte {offset} on were taken out")
                    }
                    Some(Key::Inode(inode)) => format!("the malformed inode {inode} was taken out"),
                    _ => "a malformed cell was taken out".to_owned(),
                });
            }
        }
        for ((inode, name), parts) in parts {
            let last = parts.len() - 1;
            let full = parts.iter().take(last).all(|part| part.len() == PART_BYTES);
            let right = full && parts[last].len() <= PART_BYTES && (last == 0 || !parts[last].is_empty());
            let value = parts.concat();
            if right && value.len() <= VALUE_BYTES_MAX {
                contents.extended.insert((inode, name), value);
            } else {
                let name = Shown::new(&name);
                told.push(format!(
                    "the extended attribute \"{name}\" of inode {inode} lacks parts and was taken out"
                ));
            }
        }
        contents
    }

    fn note(&mut self, number: u64) -> Option<()> {
        if number == 0 || number >= NUMBER_MAX {
            return None;
        }
        self.next = self.next.max(number + 1);
        Some(())
    }

    fn take(
        &mut self,
        key: Key,
        value: &[u8],
        parts: &mut BTreeMap<(InodeNumber, Vec<u8>), Vec<Vec<u8>>>,
    ) -> Option<()> {
        match key {
            Key::Entry(directory, name) => {
                if name.len() > NAME_BYTES_MAX || check_name(&name).is_err() {
                    return None;
                }
                self.note(directory.0)?;
                let mut entry = Entry::decode(value).ok()?;
                if self.note(entry.inode().0).is_none() || self.note(entry.cookie()).is_none() {
                    // What it has is worth more than its number.
                    let fresh = InodeNumber(self.next);
                    match &mut entry {
                        Entry::Embedded(inode) if inode.layout != Layout::Mapped => inode.number = fresh,
                        Entry::Embedded(_) | Entry::Link { .. } => return None,
                    }
                    self.next += 1;
                }
                self.entries.insert((directory, name), entry);
            }
            Key::Inode(number) => {
                let inode = Inode::decode(value).ok()?;
                self.note(number.0)?;
                if inode.number != number {
                    return None;
                }
                self.own.insert(number, inode);
            }
            Key::Name(cookie) => {
                let (directory, name) = decode_place(value).ok()?;
                self.note(cookie)?;
                self.note(directory.0)?;
                self.places.insert(cookie, (directory, name.to_vec()));
            }
            Key::Link(inode, cookie) => {
                self.note(inode.0)?;
                self.note(cookie)?;
                self.links.insert((cookie, inode));
            }
            Key::Extents(inode, offset) => {
                self.note(inode.0)?;
                let extents = decode_value(value).ok()?;
                let total: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
                offset.checked_add(total).filter(|end| *end < NUMBER_MAX)?;
                self.mapped.entry(inode).or_default().insert(offset, extents);
            }
            Key::Extended(inode, part, name) => {
                self.note(inode.0)?;
                let parts = parts.entry((inode, name.clone())).or_default();
                // Parts of a name come in order. One that lacks those before it spoils the value.
                if !extended::is_name(&name) || parts.len() != usize::from(part) {
                    parts.push(vec![0; PART_BYTES + 1]);
                    return Some(());
                }
                parts.push(value.to_vec());
            }
            Key::Orphan(inode) => {
                self.note(inode.0)?;
                self.orphans.insert(inode);
            }
            Key::Snapshot(generation, name) => {
                self.snapshots
                    .push(Snapshot::decode(generation, &name, value).ok()?);
            }
            Key::Quota(directory) => {
                self.note(directory.0)?;
                self.quotas.insert(directory, Quota::decode(value).ok()?);
            }
            Key::Shared(start) => {
                self.shared.insert(start, Shared::decode(start, value).ok()?);
            }
        }
        Some(())
    }

    /// A number that nothing has.
    pub(super) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Every inode.
    pub(super) fn inodes(&self) -> impl Iterator<Item = &Inode> {
        let embedded = self.entries.values().filter_map(|entry| match entry {
            Entry::Embedded(inode) => Some(inode),
            Entry::Link { .. } => None,
        });
        embedded.chain(self.own.values())
    }

    /// Every inode, to be changed, with its groups of extents.
    pub(super) fn for_each_inode(&mut self, mut change: impl FnMut(&mut Inode, &mut Option<Groups>)) {
        let embedded = self.entries.values_mut().filter_map(|entry| match entry {
            Entry::Embedded(inode) => Some(inode),
            Entry::Link { .. } => None,
        });
        for inode in embedded.chain(self.own.values_mut()) {
            let number = inode.number;
            let mut groups = self.mapped.remove(&number);
            change(inode, &mut groups);
            if let Some(groups) = groups {
                self.mapped.insert(number, groups);
            }
        }
    }

    /// How much there is.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for inode in self.inodes() {
            match inode.kind {
                Kind::Directory => totals.directories += 1,
                _ => totals.files += 1,
            }
            totals.content_bytes = totals.content_bytes.saturating_add(inode.size);
        }
        totals
    }

    /// Features that what there is needs.
    pub(super) fn features(&self) -> Features {
        let mut features = Features::default();
        if !self.extended.is_empty() {
            features = features.with(Features::EXTENDED);
        }
        if !self.quotas.is_empty() {
            features = features.with(Features::QUOTAS);
        }
        if !self.snapshots.is_empty() {
            features = features.with(Features::SNAPSHOTS);
        }
        if !self.shared.is_empty() {
            features = features.with(Features::SHARED);
        }
        let special = self.entries.values().map(Entry::kind).any(Kind::is_special);
        if special || self.own.values().any(|inode| inode.kind.is_special()) {
            features = features.with(Features::SPECIAL);
        }
        for inode in self.inodes().filter(|inode| inode.layout == Layout::Mapped) {
            let mut reached = 0;
            for (offset, extents) in self.mapped.get(&inode.number).into_iter().flatten() {
                if *offset > reached {
                    features = features.with(Features::HOLES);
                }
                reached = offset + extents.iter().map(|extent| u64::from(extent.length)).sum::<u64>();
            }
            if reached < inode.size {
                features = features.with(Features::HOLES);
            }
        }
        features
    }

    /// The cells, the second index made from the first.
    pub(super) fn cells(&self) -> Cells {
        let mut cells = Cells::new();
        for ((directory, name), entry) in &self.entries {
            cells.insert(Key::Entry(*directory, name.clone()).encode(), entry.encode());
            let cookie = Key::Name(entry.cookie()).encode();
            cells.insert(cookie, encode_place(*directory, name));
            if let Entry::Link { inode, cookie, .. } = entry {
                cells.insert(Key::Link(*inode, *cookie).encode(), Vec::new());
            }
        }
        for (number, inode) in &self.own {
            cells.insert(Key::Inode(*number).encode(), inode.encode());
        }
        for (number, groups) in &self.mapped {
            for (offset, extents) in groups {
                cells.insert(Key::Extents(*number, *offset).encode(), encode_list(extents));
            }
        }
        for ((inode, name), value) in &self.extended {
            let mut put = |part: usize, bytes: &[u8]| {
                let key = Key::Extended(*inode, part as u8, name.clone()).encode();
                cells.insert(key, bytes.to_vec());
            };
            if value.is_empty() {
                put(0, b"");
            }
            for (part, bytes) in value.chunks(PART_BYTES).enumerate() {
                put(part, bytes);
            }
        }
        for (directory, quota) in &self.quotas {
            cells.insert(Key::Quota(*directory).encode(), quota.encode());
        }
        for (start, shared) in &self.shared {
            cells.insert(Key::Shared(*start).encode(), shared.encode());
        }
        for snapshot in &self.snapshots {
            cells.insert(snapshot.key().encode(), snapshot.encode());
        }
        cells
    }

    /// The path of an inode by the first name that leads to it; its number where none does.
    pub(super) fn path(&self, number: InodeNumber, names: &BTreeMap<InodeNumber, Place>) -> Shown {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = number;
        while at != InodeNumber::ROOT {
            let Some((directory, name)) = names.get(&at).filter(|_| parts.len() <= names.len()) else {
                return Shown::new(format!("inode {number}").as_bytes());
            };
            parts.push(name);
            at = *directory;
        }
        parts.reverse();
        Shown::new(&parts.join(&b'/'))
    }

    /// A name of each inode that has one.
    pub(super) fn names(&self) -> BTreeMap<InodeNumber, Place> {
        let mut names = BTreeMap::new();
        for (place, entry) in &self.entries {
            names.entry(entry.inode()).or_insert_with(|| place.clone());
        }
        names
    }
}

/// Where extents stand that were put together anew: beside the inode where they may, else in groups under keys.
pub(super) fn lay_out(placed: &[(u64, Extent)], size: u64) -> (Layout, Option<Groups>) {
    let end = |(at, extent): &(u64, Extent)| at + u64::from(extent.length);
    let mut reached = 0;
    let follow = placed.iter().all(|one| {
        let follows = one.0 == reached;
        reached = end(one);
        follows
    });
    if follow && reached == size && (1..=EXTENTS_EMBEDDED_MAX).contains(&placed.len()) {
        let extents = placed.iter().map(|(_, extent)| *extent).collect();
        return (Layout::Extents(extents), None);
    }
    let mut groups = Groups::new();
    for run in placed.chunk_by(|before, after| end(before) == after.0) {
        for group in run.chunks(EXTENTS_PER_KEY) {
            let extents = group.iter().map(|(_, extent)| *extent).collect();
            groups.insert(group[0].0, extents);
        }
    }
    (Layout::Mapped, Some(groups))
}

/// Extents with where they begin in the file.
pub(super) fn placed(inode: &Inode, groups: Option<&Groups>) -> Vec<(u64, Extent)> {
    let mut out = Vec::new();
    let mut put = |mut at: u64, extents: &[Extent]| {
        for extent in extents {
            out.push((at, *extent));
            at += u64::from(extent.length);
        }
    };
    match &inode.layout {
        Layout::Inline(_) | Layout::Device(_) => {}
        Layout::Extents(extents) => put(0, extents),
        Layout::Mapped => {
            for (offset, extents) in groups.into_iter().flatten() {
                put(*offset, extents);
            }
        }
    }
    out
}
