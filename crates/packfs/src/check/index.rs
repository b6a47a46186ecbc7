//! The tree, walked page by page, and its two indexes compared.

use std::collections::BTreeMap;

use super::usage::Usage;
use super::{Problem, Progress, Tell, VerifyReport};
use crate::extended::{self, PART_BYTES};
use crate::format::entry::{Entry, Inode, Kind, Layout, decode_place};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::{InodeNumber, Key};
use crate::format::page::Page;
use crate::format::quota::Quota;
use crate::format::shared::Shared;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Features, Superblock};
use crate::format::{PAGE_BYTES_U64, PagePointer};
use crate::io::Medium;
use crate::name::{Shown, check_name};
use crate::quotas::{Trees, charged, count};
use crate::shared::Record;
use crate::writer::Charged;

/// A name that leads to an inode.
struct Name {
    directory: InodeNumber,
    name: Vec<u8>,
    cookie: u64,
    kind: Kind,
    embedded: bool,
}

/// Everything that the tree says.
#[derive(Default)]
pub(super) struct Index {
    inodes: BTreeMap<InodeNumber, Inode>,
    names: BTreeMap<InodeNumber, Vec<Name>>,
    places: BTreeMap<u64, (InodeNumber, Vec<u8>)>,
    links: BTreeMap<(InodeNumber, u64), ()>,
    mapped: BTreeMap<(InodeNumber, u64), Vec<Extent>>,
    /// With the quota that each is charged to.
    orphans: BTreeMap<InodeNumber, Charged>,
    quotas: BTreeMap<InodeNumber, Quota>,
    snapshots: Vec<Snapshot>,
    shared: Record,
    /// Extended attributes by name: number and length of the last part seen.
    extended: BTreeMap<(InodeNumber, Vec<u8>), (u8, usize)>,
    features: Features,
    /// The highest number of an inode or name.
    highest: u64,
    next_inode: u64,
    last_key: Option<Vec<u8>>,
}

/// A page to visit, with what its parent promises about it.
struct Visit {
    pointer: PagePointer,
    level: Option<u8>,
    /// First key it may hold, and the first it may not.
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Index {
    pub(super) async fn walk(
        &mut self,
        medium: &Medium,
        superblock: &Superblock,
        report: &mut VerifyReport,
        usage: &mut Usage,
        tell: &mut Tell<'_>,
    ) {
        self.features = superblock.features;
        self.next_inode = superblock.next_inode;
        let mut waiting = vec![Visit {
            pointer: superblock.root,
            level: None,
            low: Vec::new(),
            high: None,
        }];
        // More pages than the volume has mean a circle.
        let mut left = superblock.volume_bytes / PAGE_BYTES_U64;
        while let Some(visit) = waiting.pop() {
            let pointer = visit.pointer;
            let cell = |what| Problem::Cell {
                page: pointer.page,
                what,
            };
            if left == 0 {
                report.add(cell("the tree has more pages than the volume"));
                return;
            }
            left -= 1;
            usage.claim(pointer.address(), PAGE_BYTES_U64, || {
                format!("page {} of the index", pointer.page)
            });
            let read = medium.read_page(pointer, |bytes| Page::parse(bytes, pointer));
            let page = match read.await {
                Ok(page) => page,
                Err(error) => {
                    report.add(Problem::Page(error));
                    continue;
                }
            };
            report.tree_pages += 1;
            tell(Progress {
                stage: "reading the index",
                done: report.tree_pages,
                total: 0,
            });
            if visit.level.is_some_and(|level| level != page.level()) {
                report.add(cell("it stands at the wrong level"));
                continue;
            }
            if page.level() == 0 {
                self.leaf(&page, &visit, report);
            } else {
                waiting.extend(children(&page, &visit).into_iter().rev());
            }
        }
    }

    fn leaf(&mut self, page: &Page, visit: &Visit, report: &mut VerifyReport) {
        for index in 0..page.len() {
            let key = page.key(index);
            let inside = key >= visit.low && visit.high.as_ref().is_none_or(|high| key < *high);
            let ascends = self.last_key.as_ref().is_none_or(|last| *last < key);
            let what = match self.cell(&key, page.value(index)) {
                _ if !inside || !ascends => Some("a key is out of order"),
                None => Some("a cell is malformed"),
                Some(()) => None,
            };
            if let Some(what) = what {
                let page = visit.pointer.page;
                report.add(Problem::Cell { page, what });
            }
            self.last_key = Some(key);
        }
    }

    /// Keeps what a cell says; `None` if it is malformed.
    fn cell(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match Key::decode(key).ok()? {
            Key::Entry(directory, name) => {
                check_name(&name).ok()?;
                let entry = Entry::decode(value).ok()?;
                let embedded = matches!(entry, Entry::Embedded(_));
                let (cookie, kind) = (entry.cookie(), entry.kind());
                self.knows(kind)?;
                self.highest = self.highest.max(cookie).max(entry.inode().0);
                let names = self.names.entry(entry.inode()).or_default();
                names.push(Name {
                    directory,
                    name,
                    cookie,
                    kind,
                    embedded,
                });
                if let Entry::Embedded(inode) = entry {
                    return self.inodes.insert(inode.number, inode).is_none().then_some(());
                }
            }
            Key::Inode(number) => {
                let inode = Inode::decode(value).ok()?;
                self.knows(inode.kind)?;
                self.highest = self.highest.max(number.0);
                let right = inode.number == number && self.inodes.insert(number, inode).is_none();
                return right.then_some(());
            }
            Key::Name(cookie) => {
                let (directory, name) = decode_place(value).ok()?;
                self.places.insert(cookie, (directory, name.to_vec()));
            }
            Key::Link(inode, cookie) => {
                self.links.insert((inode, cookie), ());
            }
            Key::Extents(inode, offset) => {
                self.mapped.insert((inode, offset), decode_value(value).ok()?);
            }
            Key::Extended(inode, part, name) => {
                let right = self.features.has(Features::EXTENDED)
                    && extended::is_name(&name)
                    && value.len() <= PART_BYTES
                    && self.follows(inode, part, &name, value.len());
                return right.then_some(());
            }
            Key::Orphan(inode) => {
                let charged = charged(value).ok()?;
                self.orphans.insert(inode, charged);
                let right = charged.is_none() || self.features.has(Features::QUOTAS);
                return (self.features.has(Features::ORPHANS) && right).then_some(());
            }
            Key::Snapshot(generation, name) => {
                let snapshot = Snapshot::decode(generation, &name, value).ok()?;
                self.snapshots.push(snapshot);
                return self.features.has(Features::SNAPSHOTS).then_some(());
            }
            Key::Quota(directory) => {
                self.quotas.insert(directory, Quota::decode(value).ok()?);
                return self.features.has(Features::QUOTAS).then_some(());
            }
            Key::Shared(start) => {
                self.shared.insert(start, Shared::decode(start, value).ok()?);
                return self.features.has(Features::SHARED).then_some(());
            }
        }
        Some(())
    }

    /// `None` for a kind that the superblock's features do not announce.
    fn knows(&self, kind: Kind) -> Option<()> {
        (!kind.is_special() || self.features.has(Features::SPECIAL)).then_some(())
    }

    /// What is recorded as shared; `None` where nothing may be.
    pub(super) fn shared(&self) -> Option<&Record> {
        self.features.has(Features::SHARED).then_some(&self.shared)
    }

    /// Snapshots by name that were found.
    pub(super) fn take_snapshots(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.snapshots)
    }

    /// Whether a part of an extended attribute follows a whole one, or is the first.
    fn follows(&mut self, inode: InodeNumber, part: u8, name: &[u8], length: usize) -> bool {
        // Parts come in order, all first ones before any second.
        let before = self.extended.insert((inode, name.to_vec()), (part, length));
        match before {
            None => part == 0,
            Some((last, filled)) => last.checked_add(1) == Some(part) && filled == PART_BYTES && length > 0,
        }
    }

    /// Compares inodes, names and places. `whole` says whether every page was read.
    pub(super) fn check(&self, report: &mut VerifyReport, whole: bool) {
        for (number, inode) in &self.inodes {
            match inode.kind {
                Kind::Directory => report.totals.directories += 1,
                _ => report.totals.files += 1,
            }
            report.totals.content_bytes = report.totals.content_bytes.saturating_add(inode.size);
            if whole {
                self.check_names(*number, inode, report);
            }
        }
        if !whole {
            return;
        }
        if self.highest >= self.next_inode {
            report.add(Problem::Count {
                what: "the next number of an inode or name",
                recorded: self.next_inode,
                counted: self.highest.saturating_add(1),
            });
        }
        let mut named = 0;
        for (number, names) in &self.names {
            named += names.len() as u64;
            if !self.inodes.contains_key(number) {
                report.add(problem(*number, "it has a name but does not exist"));
            }
        }
        if self.places.len() as u64 != named {
            report.add(Problem::Count {
                what: "names by cookie",
                recorded: self.places.len() as u64,
                counted: named,
            });
        }
        let linked = self
            .names
            .values()
            .flatten()
            .filter(|name| !name.embedded)
            .count() as u64;
        if self.links.len() as u64 != linked {
            report.add(Problem::Count {
                what: "names in lists of links",
                recorded: self.links.len() as u64,
                counted: linked,
            });
        }
        self.check_quotas(report);
        for number in self.orphans.keys() {
            if self.inodes.get(number).is_none_or(|inode| inode.links != 0) {
                report.add(problem(*number, "it is on the list of orphans, but is none"));
            }
        }
        for (number, _) in self.extended.keys() {
            if !self.inodes.contains_key(number) {
                report.add(problem(
                    *number,
                    "it has an extended attribute but does not exist",
                ));
            }
        }
        let mut last = None;
        for (number, _) in self.mapped.keys() {
            let mapped = |inode: &Inode| inode.layout == Layout::Mapped;
            if last != Some(*number) && !self.inodes.get(number).is_some_and(mapped) {
                report.add(problem(
                    *number,
                    "it has extents under keys, which nothing leads to",
                ));
            }
            last = Some(*number);
        }
    }

    fn check_names(&self, number: InodeNumber, inode: &Inode, report: &mut VerifyReport) {
        let none = Vec::new();
        let names = self.names.get(&number).unwrap_or(&none);
        let root = number == InodeNumber::ROOT;
        if names.len() as u64 != u64::from(inode.links) - u64::from(root && inode.links > 0) {
            report.add(problem(number, "its number of links is not that of its names"));
        }
        if inode.kind == Kind::Directory && names.len() > 1 {
            report.add(problem(number, "it is a directory and has several names"));
        }
        for name in names {
            if name.kind != inode.kind {
                report.add(problem(number, "a name says that it is something else"));
            }
            if self.places.get(&name.cookie) != Some(&(name.directory, name.name.clone())) {
                report.add(problem(number, "a name's cookie does not lead back to it"));
            }
            if name.embedded == self.links.contains_key(&(number, name.cookie)) {
                report.add(problem(number, "its list of links is not that of its names"));
            }
            if self
                .inodes
                .get(&name.directory)
                .is_none_or(|inode| inode.kind != Kind::Directory)
            {
                report.add(problem(
                    number,
                    "a name stands in something that is not a directory",
                ));
            }
        }
        if inode.links == 0 {
            if root || inode.kind == Kind::Directory || !self.orphans.contains_key(&number) {
                report.add(problem(
                    number,
                    "it has no name and is not on the list of orphans",
                ));
            }
        } else if !root && self.path(number).is_none() {
            report.add(problem(number, "it cannot be reached from the root"));
        }
    }

    /// Counts what is below each directory with a quota.
    fn check_quotas(&self, report: &mut VerifyReport) {
        if self.quotas.is_empty() {
            return;
        }
        let parents = |at: InodeNumber| Some(self.names.get(&at)?.first()?.directory);
        let mut trees = Trees::new(&self.quotas, parents);
        let mut counted: BTreeMap<InodeNumber, Quota> = BTreeMap::new();
        let none = Vec::new();
        for (number, inode) in &self.inodes {
            let names = self.names.get(number).unwrap_or(&none);
            let mut all = names.iter().map(|name| trees.of(name.directory));
            let first = all.next();
            if all.any(|tree| Some(tree) != first) {
                report.add(problem(*number, "its names belong to different quotas"));
            }
            let orphan = || self.orphans.get(number).copied().flatten();
            if let Some(tree) = first.unwrap_or_else(orphan) {
                count(&mut counted, tree, inode.size);
            }
        }
        for (directory, quota) in &self.quotas {
            if self
                .inodes
                .get(directory)
                .is_none_or(|inode| inode.kind != Kind::Directory)
            {
                report.add(problem(*directory, "it has a quota and is not a directory"));
                continue;
            }
            if parents(*directory).is_some_and(|above| trees.of(above).is_some()) {
                report.add(problem(*directory, "its quota stands below another"));
            }
            let found = counted.get(directory).copied().unwrap_or_default();
            for (what, recorded, counted) in [
                (
                    "files below a directory with a quota",
                    quota.used_files,
                    found.used_files,
                ),
                (
                    "bytes below a directory with a quota",
                    quota.used_bytes,
                    found.used_bytes,
                ),
            ] {
                if recorded != counted {
                    report.add(Problem::Count {
                        what,
                        recorded,
                        counted,
                    });
                }
            }
        }
    }

    /// The path of an inode, by its first name.
    fn path(&self, number: InodeNumber) -> Option<Shown> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = number;
        while at != InodeNumber::ROOT {
            let name = self.names.get(&at)?.first()?;
            parts.push(&name.name);
            at = name.directory;
            // Paths are not deeper than there are inodes, or they go round in circles.
            if parts.len() > self.inodes.len() {
                return None;
            }
        }
        parts.reverse();
        Some(Shown::new(&parts.join(&b'/')))
    }

    /// All extents with the path of their file. `whole` says whether every page was read.
    pub(super) fn extents(&self, report: &mut VerifyReport, whole: bool) -> Vec<(Shown, Extent)> {
        let mut found = Vec::new();
        for (number, inode) in &self.inodes {
            if matches!(inode.layout, Layout::Inline(_) | Layout::Device(_)) {
                continue;
            }
            let path = self.path(*number);
            let path = path.unwrap_or_else(|| Shown::new(format!("inode {number}").as_bytes()));
            match &inode.layout {
                Layout::Extents(extents) => found.extend(extents.iter().map(|e| (path.clone(), *e))),
                Layout::Mapped => {
                    let mut expected = 0;
                    let groups = self.mapped.range((*number, 0)..=(*number, u64::MAX));
                    for ((_, offset), extents) in groups {
                        let hole = *offset > expected && self.features.has(Features::HOLES);
                        if whole && *offset != expected && !hole {
                            report.add(problem(*number, "its extents do not follow each other"));
                        }
                        expected = *offset;
                        for extent in extents {
                            expected = expected.saturating_add(u64::from(extent.length));
                            found.push((path.clone(), *extent));
                        }
                    }
                    let hole = expected < inode.size && self.features.has(Features::HOLES);
                    if whole && expected != inode.size && !hole {
                        report.add(problem(*number, "its extents are not as long as the file"));
                    }
                }
                Layout::Inline(_) | Layout::Device(_) => {}
            }
        }
        found
    }
}

fn problem(inode: InodeNumber, what: &'static str) -> Problem {
    let inode = inode.0;
    Problem::Inode { inode, what }
}

fn children(page: &Page, visit: &Visit) -> Vec<Visit> {
    let child = |index: usize| {
        // The first child also takes keys below its separator.
        let low = if index == 0 {
            visit.low.clone()
        } else {
            page.key(index)
        };
        let high = match index + 1 < page.len() {
            true => Some(page.key(index + 1)),
            false => visit.high.clone(),
        };
        Visit {
            pointer: page.child(index),
            level: Some(page.level() - 1),
            low,
            high,
        }
    };
    (0..page.len()).map(child).collect()
}
