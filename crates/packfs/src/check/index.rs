//! The tree, gone through once for as many numbers and as much of the volume as there is memory for at a time, and its two
//! indexes compared.

use std::collections::BTreeMap;

use super::bytes::ByteRow;
use super::directories::Directories;
use super::lowest::Lowest;
use super::numbers::NumberRow;
use super::walk::{Visit, Visitor};
use super::{Problem, VerifyReport};
use crate::extended::{self, PART_BYTES};
use crate::format::PagePointer;
use crate::format::entry::{Entry, Inode, Kind, Layout, decode_place};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::{InodeNumber, Key};
use crate::format::page::Page;
use crate::format::quota::Quota;
use crate::format::shared::Shared;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Features, Superblock};
use crate::name::check_name;
use crate::quotas::charged;

/// Names that are counted beside their rows.
#[derive(Default)]
struct Names {
    entries: u64,
    links: u64,
    by_cookie: u64,
    listed: u64,
    /// The highest number of an inode or name.
    highest: u64,
}

/// What of the tree's cells is kept to the end, and to the end of a round.
pub(super) struct Index {
    pub(super) report: VerifyReport,
    /// Whether every page was read and every cell means something: what cannot be reached makes everything else look wrong.
    pub(super) whole: bool,
    pub(super) features: Features,
    pub(super) numbers: Lowest<NumberRow>,
    pub(super) bytes: Lowest<ByteRow>,
    pub(super) directories: Directories,
    pub(super) quotas: BTreeMap<InodeNumber, Quota>,
    pub(super) snapshots: Vec<Snapshot>,
    next_inode: u64,
    names: Names,
    /// Only the first time is it told what is wrong with a cell by itself.
    first: bool,
    last_key: Option<Vec<u8>>,
    /// The directory of the entry before.
    last_directory: Option<InodeNumber>,
    extended: Extended,
    extents: Option<Extents>,
}

/// Extended attributes of one inode: number and length of the last part of each that was seen.
#[derive(Default)]
struct Extended {
    inode: Option<InodeNumber>,
    parts: BTreeMap<Vec<u8>, (u8, usize)>,
}

/// Extents under keys of one inode, as far as they were seen.
struct Extents {
    inode: InodeNumber,
    end: u64,
    in_order: bool,
}

impl Index {
    /// `memory_bytes` is for rows of both kinds.
    pub(super) fn new(superblock: &Superblock, report: VerifyReport, memory_bytes: u64) -> Self {
        let segment_bytes = u64::from(superblock.parameters.segment_bytes).max(1);
        Self {
            report,
            whole: true,
            features: superblock.features,
            numbers: Lowest::new(memory_bytes / 2, 1),
            // Runs of shared bytes do not reach over the end of a segment.
            bytes: Lowest::new(memory_bytes / 2, segment_bytes),
            directories: Directories::default(),
            quotas: BTreeMap::new(),
            snapshots: Vec::new(),
            next_inode: superblock.next_inode,
            names: Names::default(),
            first: true,
            last_key: None,
            last_directory: None,
            extended: Extended::default(),
            extents: None,
        }
    }

    fn wrong(&mut self, problem: Problem) {
        // What was found once is not told again; what was not there before is: the device changes its mind.
        if self.first || self.whole {
            self.report.add(problem);
        }
        self.whole = false;
    }

    /// A cell. `None` if it is malformed.
    fn cell(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match Key::decode(key).ok()? {
            Key::Entry(directory, name) => {
                check_name(&name).ok()?;
                let entry = Entry::decode(value).ok()?;
                self.knows(entry.kind())?;
                self.entry(directory, &name, &entry);
            }
            Key::Inode(number) => {
                let inode = Inode::decode(value).ok()?;
                self.knows(inode.kind)?;
                self.names.highest = self.names.highest.max(number.0);
                if inode.number != number {
                    return None;
                }
                if self.first && inode.kind == Kind::Directory {
                    self.directories.own(number);
                }
                self.inode(&inode);
            }
            Key::Name(cookie) => {
                let (directory, name) = decode_place(value).ok()?;
                self.names.by_cookie += u64::from(self.first);
                self.numbers
                    .push(NumberRow::said_to_stand(cookie, directory, name));
            }
            Key::Link(inode, cookie) => {
                self.names.listed += u64::from(self.first);
                self.numbers.push(NumberRow::listed(inode, cookie));
            }
            Key::Extents(inode, offset) => self.group(inode, offset, &decode_value(value).ok()?),
            Key::Extended(inode, part, name) => {
                let right = self.features.has(Features::EXTENDED)
                    && extended::is_name(&name)
                    && value.len() <= PART_BYTES
                    && self.follows(inode, part, name, value.len());
                return right.then_some(());
            }
            Key::Orphan(inode) => {
                let charged = charged(value).ok()?;
                self.numbers.push(NumberRow::orphan(inode));
                let right = charged.is_none() || self.features.has(Features::QUOTAS);
                return (self.features.has(Features::ORPHANS) && right).then_some(());
            }
            Key::Snapshot(generation, name) => {
                let snapshot = Snapshot::decode(generation, &name, value).ok()?;
                if self.first {
                    self.snapshots.push(snapshot);
                }
                return self.features.has(Features::SNAPSHOTS).then_some(());
            }
            Key::Quota(directory) => {
                self.quotas.insert(directory, Quota::decode(value).ok()?);
                return self.features.has(Features::QUOTAS).then_some(());
            }
            Key::Shared(start) => {
                let shared = Shared::decode(start, value).ok()?;
                self.bytes.push(ByteRow::shared(start, &shared)?);
                return self.features.has(Features::SHARED).then_some(());
            }
        }
        Some(())
    }

    /// `None` for a kind that the superblock's features do not announce.
    fn knows(&self, kind: Kind) -> Option<()> {
        (!kind.is_special() || self.features.has(Features::SPECIAL)).then_some(())
    }

    fn entry(&mut self, directory: InodeNumber, name: &[u8], entry: &Entry) {
        let (inode, cookie, kind) = (entry.inode(), entry.cookie(), entry.kind());
        if self.last_directory != Some(directory) {
            self.last_directory = Some(directory);
            self.numbers.push(NumberRow::parent(directory));
        }
        self.numbers.push(NumberRow::name(inode, kind));
        self.numbers
            .push(NumberRow::stands(cookie, directory, name, inode));
        if self.first {
            self.names.entries += 1;
            self.names.highest = self.names.highest.max(cookie).max(inode.0);
            if kind == Kind::Directory {
                self.directories.stands_in(inode, directory);
            }
        }
        match entry {
            Entry::Embedded(inode) => self.inode(inode),
            Entry::Link { .. } => {
                self.names.links += u64::from(self.first);
                self.numbers.push(NumberRow::link(inode, cookie));
            }
        }
    }

    fn inode(&mut self, inode: &Inode) {
        self.numbers.push(NumberRow::inode(inode));
        if self.first {
            let totals = &mut self.report.totals;
            match inode.kind {
                Kind::Directory => totals.directories += 1,
                _ => totals.files += 1,
            }
            totals.content_bytes = totals.content_bytes.saturating_add(inode.size);
        }
        if let Layout::Extents(extents) = &inode.layout {
            self.claim(inode.number, extents);
        }
    }

    fn claim(&mut self, inode: InodeNumber, extents: &[Extent]) {
        if self.first {
            self.report.extents += extents.len() as u64;
        }
        for extent in extents {
            self.bytes.push(ByteRow::extent(inode, extent));
        }
    }

    /// Some extents under a key, which follow those under the key before, with a hole between them where that may be.
    fn group(&mut self, inode: InodeNumber, offset: u64, extents: &[Extent]) {
        if self.extents.as_ref().is_none_or(|seen| seen.inode != inode) {
            self.end_extents();
        }
        let seen = self.extents.get_or_insert(Extents {
            inode,
            end: 0,
            in_order: true,
        });
        let hole = offset > seen.end && self.features.has(Features::HOLES);
        seen.in_order &= offset == seen.end || hole;
        let length: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        seen.end = offset.saturating_add(length);
        self.claim(inode, extents);
    }

    fn end_extents(&mut self) {
        if let Some(seen) = self.extents.take() {
            self.numbers
                .push(NumberRow::extents(seen.inode, seen.end, seen.in_order));
        }
    }

    /// Whether a part of an extended attribute follows a whole one, or is the first.
    fn follows(&mut self, inode: InodeNumber, part: u8, name: Vec<u8>, length: usize) -> bool {
        if self.extended.inode != Some(inode) {
            self.extended.inode = Some(inode);
            self.extended.parts.clear();
            self.numbers.push(NumberRow::extended(inode));
        }
        // Parts come in order, all first ones before any second.
        match self.extended.parts.insert(name, (part, length)) {
            None => part == 0,
            Some((last, filled)) => last.checked_add(1) == Some(part) && filled == PART_BYTES && length > 0,
        }
    }

    /// Ends a walk through all pages. Compares what is known of this round's numbers.
    pub(super) fn end_walk(&mut self) {
        self.end_extents();
        self.last_key = None;
        self.last_directory = None;
        self.extended = Extended::default();
        if !self.whole {
            return;
        }
        if self.first {
            self.check_counts();
        }
        if self.numbers.has_ended() {
            return;
        }
        let (report, directories) = (&mut self.report, &mut self.directories);
        let holes = self.features.has(Features::HOLES);
        for row in self.numbers.rows() {
            row.check(holes, &mut |inode, what| {
                report.add(Problem::Inode { inode, what })
            });
            directories.has_strays |= row.has_strays();
        }
    }

    /// Goes on with what there was no memory for; `false` if there is nothing.
    pub(super) fn next_round(&mut self) -> bool {
        self.first = false;
        // Where something could not be read nothing is said about numbers.
        let numbers = self.numbers.next_round();
        let bytes = self.bytes.next_round();
        (numbers && self.whole) || bytes
    }

    fn check_counts(&mut self) {
        let names = &self.names;
        let next = names.highest.saturating_add(1);
        let counts = [
            (
                "the next number of an inode or name",
                self.next_inode,
                self.next_inode.max(next),
            ),
            ("names by cookie", names.by_cookie, names.entries),
            ("names in lists of links", names.listed, names.links),
        ];
        for (what, recorded, counted) in counts {
            if recorded != counted {
                self.report.add(Problem::Count {
                    what,
                    recorded,
                    counted,
                });
            }
        }
    }
}

impl Visitor for Index {
    fn pointer(&mut self, pointer: PagePointer) {
        self.bytes.push(ByteRow::page(pointer));
    }

    fn problem(&mut self, problem: Problem) {
        self.wrong(problem);
    }

    fn leaf(&mut self, page: &Page, visit: &Visit) {
        for index in 0..page.len() {
            let key = page.key(index);
            let ascends = self.last_key.as_ref().is_none_or(|last| *last < key);
            let what = match self.cell(&key, page.value(index)) {
                _ if !visit.may_hold(&key) || !ascends => Some("a key is out of order"),
                None => Some("a cell is malformed"),
                Some(()) => None,
            };
            if let Some(what) = what {
                let page = visit.pointer.page;
                self.wrong(Problem::Cell { page, what });
            }
            self.last_key = Some(key);
        }
    }
}
