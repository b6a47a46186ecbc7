//! A walk more, which only some file systems need: where directories have quotas, or the root does not lead to all entries.
//! By then all directories are known.

use std::collections::BTreeMap;

use super::directories::Directories;
use super::lowest::{Lowest, Row};
use super::walk::{Visit, Visitor};
use super::{Problem, VerifyReport};
use crate::format::PagePointer;
use crate::format::entry::{Entry, Inode};
use crate::format::key::{InodeNumber, Key};
use crate::format::page::Page;
use crate::format::quota::Quota;
use crate::quotas::{Trees, charged, count};
use crate::writer::Charged;

/// What is said of an inode under its own key: to which quotas its names belong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChargeRow {
    inode: u64,
    /// The lowest and highest of their directories with a quota, 0 for none; the highest is below the lowest where there is no name.
    lowest: u64,
    highest: u64,
    /// What the list of orphans says.
    orphan: u64,
    size: u64,
}

const NO_NAME: ChargeRow = ChargeRow {
    inode: 0,
    lowest: u64::MAX,
    highest: 0,
    orphan: 0,
    size: 0,
};

impl Row for ChargeRow {
    fn place(&self) -> u64 {
        self.inode
    }

    fn join(rows: &mut Vec<Self>) {
        rows.dedup_by(|row, kept| {
            let same = row.inode == kept.inode;
            if same {
                kept.lowest = kept.lowest.min(row.lowest);
                kept.highest = kept.highest.max(row.highest);
                kept.orphan = kept.orphan.max(row.orphan);
                kept.size = kept.size.max(row.size);
            }
            same
        });
    }
}

fn code(charged: Charged) -> u64 {
    charged.map_or(0, |directory| directory.0)
}

/// See the module.
pub(super) struct Charges<'a, P> {
    directories: &'a Directories,
    quotas: &'a BTreeMap<InodeNumber, Quota>,
    trees: Trees<'a, P>,
    rows: Lowest<ChargeRow>,
    counted: BTreeMap<InodeNumber, Quota>,
    first: bool,
    report: &'a mut VerifyReport,
}

impl<'a, P: Fn(InodeNumber) -> Option<InodeNumber>> Charges<'a, P> {
    pub(super) fn new(
        directories: &'a Directories,
        quotas: &'a BTreeMap<InodeNumber, Quota>,
        parent: P,
        report: &'a mut VerifyReport,
        memory_bytes: u64,
    ) -> Self {
        Self {
            directories,
            quotas,
            trees: Trees::new(quotas, parent),
            rows: Lowest::new(memory_bytes, 1),
            counted: BTreeMap::new(),
            first: true,
            report,
        }
    }

    fn wrong(&mut self, inode: InodeNumber, what: &'static str) {
        let inode = inode.0;
        self.report.add(Problem::Inode { inode, what });
    }

    fn entry(&mut self, directory: InodeNumber, entry: &Entry) {
        let inode = entry.inode();
        if self.first && self.directories.has_strays && !self.directories.has(directory) {
            self.wrong(inode, "a name stands in something that is not a directory");
        }
        if self.first && !self.directories.is_reached(directory) {
            self.wrong(inode, "it cannot be reached from the root");
        }
        if self.quotas.is_empty() {
            return;
        }
        let tree = self.trees.of(directory);
        match entry {
            Entry::Embedded(inode) => {
                if let (true, Some(tree)) = (self.first, tree) {
                    count(&mut self.counted, tree, inode.size);
                }
            }
            Entry::Link { inode, .. } => self.rows.push(ChargeRow {
                inode: inode.0,
                lowest: code(tree),
                highest: code(tree),
                ..NO_NAME
            }),
        }
    }

    fn cell(&mut self, key: &[u8], value: &[u8]) {
        // What means nothing was told before.
        match Key::decode(key) {
            Ok(Key::Entry(directory, _)) => {
                if let Ok(entry) = Entry::decode(value) {
                    self.entry(directory, &entry);
                }
            }
            Ok(Key::Inode(number)) if !self.quotas.is_empty() => {
                if let Ok(inode) = Inode::decode(value) {
                    self.rows.push(ChargeRow {
                        inode: number.0,
                        size: inode.size,
                        ..NO_NAME
                    });
                }
            }
            Ok(Key::Orphan(inode)) if !self.quotas.is_empty() => {
                self.rows.push(ChargeRow {
                    inode: inode.0,
                    orphan: code(charged(value).unwrap_or(None)),
                    ..NO_NAME
                });
            }
            _ => {}
        }
    }

    /// Ends a walk; `false` if there is no need of another.
    pub(super) fn end_walk(&mut self) -> bool {
        self.first = false;
        for row in self.rows.rows() {
            let has_names = row.lowest <= row.highest;
            let tree = if has_names { row.lowest } else { row.orphan };
            if has_names && row.lowest != row.highest {
                self.report.add(Problem::Inode {
                    inode: row.inode,
                    what: "its names belong to different quotas",
                });
            }
            // The root, which nothing names, is in none.
            if tree != 0 {
                count(&mut self.counted, InodeNumber(tree), row.size);
            }
        }
        self.rows.next_round()
    }

    /// Compares what was counted with what is recorded.
    pub(super) fn check(mut self) {
        let quotas = self.quotas;
        for (directory, quota) in quotas {
            if !self.directories.has(*directory) {
                self.wrong(*directory, "it has a quota and is not a directory");
                continue;
            }
            let above = self.directories.parent(*directory);
            if above.is_some_and(|above| self.trees.of(above).is_some()) {
                self.wrong(*directory, "its quota stands below another");
            }
            let found = self.counted.get(directory).copied().unwrap_or_default();
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
                    self.report.add(Problem::Count {
                        what,
                        recorded,
                        counted,
                    });
                }
            }
        }
    }
}

impl<P: Fn(InodeNumber) -> Option<InodeNumber>> Visitor for Charges<'_, P> {
    fn pointer(&mut self, _pointer: PagePointer) {}

    fn problem(&mut self, problem: Problem) {
        // Every page was read before.
        self.report.add(problem);
    }

    fn leaf(&mut self, page: &Page, _visit: &Visit) {
        for index in 0..page.len() {
            self.cell(&page.key(index), page.value(index));
        }
    }
}
