//! What of a tree can still be read: by its pointers, then pages that the record of space says are in use and nothing
//! leads to any more, then what older trees still have of the keys that are lost.

use std::collections::{BTreeMap, BTreeSet};

use bdev::IoError;

use super::{FsckError, Tell};
use crate::error::TreeError;
use crate::format::entry::{Entry, Inode, Layout, decode_place};
use crate::format::key::{InodeNumber, Key, extents_prefix, links_prefix, snapshots_prefix};
use crate::format::page::{Page, PageError};
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, PagePointer, RESERVED_BYTES};
use crate::io::Medium;
use crate::space::Space;

/// Cells by key.
pub(super) type Cells = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys that a damaged page held: from the first up to the second.
#[derive(Clone, Debug)]
pub(super) struct LostKeys {
    pub(super) low: Vec<u8>,
    pub(super) high: Option<Vec<u8>>,
    /// Its level, where its parent says it.
    level: Option<u8>,
}

impl LostKeys {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        *key >= self.low[..] && self.high.as_ref().is_none_or(|high| *key < high[..])
    }
}

/// Whether a key may have stood in a page that is lost.
pub(super) fn may_be_lost(lost: &[LostKeys], key: &[u8]) -> bool {
    lost.iter().any(|lost| lost.has(key))
}

/// A tree, as far as it can be read.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) cells: Cells,
    /// Page numbers that its pointers lead to, damaged ones included.
    pub(super) pages: BTreeSet<u64>,
    pub(super) lost: Vec<LostKeys>,
    /// Pages that cannot be had or stand where they may not, as text.
    pub(super) problems: Vec<String>,
    /// Whether every page is where it belongs, so that the tree itself can be changed.
    pub(super) whole: bool,
}

struct Visit {
    pointer: PagePointer,
    level: Option<u8>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

/// Whether a page is damaged for good; a device that does not answer is no reason to give anything up.
pub(super) fn is_damage(error: &TreeError) -> bool {
    error.is_damage()
}

/// Reads the tree below `root` as far as its pointers lead.
pub(super) async fn walk(
    medium: &Medium,
    root: PagePointer,
    volume_bytes: u64,
    tell: &mut Tell<'_>,
) -> Result<Gathered, FsckError> {
    let mut found = Gathered {
        whole: true,
        ..Gathered::default()
    };
    let (low, high) = (Vec::new(), None);
    let mut waiting = vec![Visit {
        pointer: root,
        level: None,
        low,
        high,
    }];
    let mut last: Option<Vec<u8>> = None;
    while let Some(visit) = waiting.pop() {
        let pointer = visit.pointer;
        let outside = pointer.address() < RESERVED_BYTES || pointer.page >= volume_bytes / PAGE_BYTES_U64;
        if outside || !found.pages.insert(pointer.page) {
            let what = match outside {
                true => "lies outside the volume",
                false => "has two places in the tree",
            };
            found.problem(format!("page {} of the index {what}", pointer.page));
            if outside {
                found.lose(visit);
            }
            continue;
        }
        tell.step("reading the index", found.pages.len() as u64);
        let read = medium
            .read_page(pointer, |bytes| Page::parse(bytes, pointer))
            .await;
        let page = match read {
            Ok(page) => page,
            Err(error) if is_damage(&error) => {
                found.problem(error.to_string());
                found.lose(visit);
                continue;
            }
            Err(error) => return Err(FsckError::Unreadable(error)),
        };
        if visit.level.is_some_and(|level| level != page.level()) {
            found.problem(format!(
                "page {} of the index stands at the wrong level",
                pointer.page
            ));
        }
        if page.level() > 0 {
            waiting.extend(children(&page, &visit).into_iter().rev());
            continue;
        }
        for index in 0..page.len() {
            let key = page.key(index);
            let inside = key >= visit.low && visit.high.as_ref().is_none_or(|high| key < *high);
            if !inside || last.as_ref().is_some_and(|last| *last >= key) {
                found.problem(format!(
                    "page {} of the index has a key out of order",
                    pointer.page
                ));
            }
            let value = || page.value(index).to_vec();
            found.cells.entry(key.clone()).or_insert_with(value);
            last = Some(key);
        }
    }
    Ok(found)
}

/// A page that nothing leads to, by the birth and the checksum that stand in it.
fn as_it_says(page: u64, bytes: &[u8]) -> Result<(u64, Page), PageError> {
    let word = |at: usize| -> [u8; 8] { bytes[at..at + 8].try_into().expect("eight bytes") };
    let pointer = PagePointer {
        page,
        birth: u64::from_le_bytes(word(16)),
        // The checksum's four bytes and the four behind them.
        checksum: u64::from_le_bytes(word(28)) as u32,
    };
    Page::parse(bytes, pointer).map(|parsed| (pointer.birth, parsed))
}

fn children(page: &Page, visit: &Visit) -> Vec<Visit> {
    let child = |index: usize| Visit {
        pointer: page.child(index),
        level: Some(page.level() - 1),
        // The first child also takes keys below its separator.
        low: if index == 0 {
            visit.low.clone()
        } else {
            page.key(index)
        },
        high: match index + 1 < page.len() {
            true => Some(page.key(index + 1)),
            false => visit.high.clone(),
        },
    };
    (0..page.len()).map(child).collect()
}

impl Gathered {
    fn problem(&mut self, text: String) {
        self.whole = false;
        self.problems.push(text);
    }

    fn lose(&mut self, visit: Visit) {
        let Visit { level, low, high, .. } = visit;
        self.lost.push(LostKeys { low, high, level });
    }

    /// Adds the leaves that stand below damaged pages: those that the record of space has in use, and that neither the
    /// tree nor the record itself leads to. Says how many cells they gave.
    pub(super) async fn find_leaves(
        &mut self,
        medium: &Medium,
        space: &Space,
        generation: u64,
        volume_bytes: u64,
        tell: &mut Tell<'_>,
    ) -> Result<u64, FsckError> {
        if self.lost.is_empty() {
            return Ok(0);
        }
        let mut leaves = Vec::new();
        let (mut inner, mut unknown) = (false, false);
        let in_use = space.in_use_outside_segments(volume_bytes / PAGE_BYTES_U64);
        for page in in_use.iter().flat_map(|(start, count)| start..start + count) {
            if self.pages.contains(&page) {
                continue;
            }
            tell.step("looking for pages that nothing leads to", leaves.len() as u64);
            let address = page * PAGE_BYTES_U64;
            // Data, or a page of something else, is asked of every copy here: that costs little beside what it may bring back.
            let read = medium.read_checked_by_all(address, PAGE_BYTES, |bytes| as_it_says(page, bytes));
            match read.await {
                Ok(Ok((birth, parsed))) if birth <= generation && parsed.level() == 0 => {
                    leaves.push((birth, parsed))
                }
                Ok(Ok((birth, parsed))) if birth <= generation => inner |= parsed.level() > 0,
                Ok(_) => unknown = true,
                Err(IoError::Media | IoError::Checksum | IoError::OutOfRange) => {
                    unknown = true;
                    continue;
                }
                Err(source) => return Err(FsckError::Unreadable(TreeError::Io { page, source })),
            }
            self.pages.insert(page);
        }
        // Should two have a key, the younger one is right.
        leaves.sort_by_key(|(birth, _)| std::cmp::Reverse(*birth));
        let mut cells = 0;
        for (_, leaf) in &leaves {
            for index in 0..leaf.len() {
                let key = leaf.key(index);
                if may_be_lost(&self.lost, &key) && !self.cells.contains_key(&key) {
                    self.cells.insert(key, leaf.value(index).to_vec());
                    cells += 1;
                }
            }
        }
        // Below a damaged page that was no leaf nothing is lost if each page in use could be read. Of the root it is not
        // known what it was: if nothing stood below it, it was a leaf.
        if !unknown {
            let below = inner || !leaves.is_empty();
            self.lost.retain(|lost| match lost.level {
                Some(level) => level == 0,
                None => !below,
            });
        }
        Ok(cells)
    }

    /// Adds what an older tree has of keys that are lost, where nothing says that it has changed since. Says how many
    /// cells that gave, and names whose content or entry it is. Snapshots and quotas only of the tree right before, `is_last`: a snapshot's
    /// has those that were deleted since.
    pub(super) fn take_older(&mut self, older: &Cells, is_last: bool) -> Vec<String> {
        let mut taken = Vec::new();
        let numbers = self.numbers();
        for (key, value) in older {
            if !may_be_lost(&self.lost, key) || self.cells.contains_key(key) {
                continue;
            }
            let Ok(decoded) = Key::decode(key) else { continue };
            let right = match &decoded {
                Key::Entry(directory, name) => {
                    Entry::decode(value).is_ok_and(|entry| self.stood(&numbers, *directory, name, &entry))
                }
                Key::Inode(number) => {
                    let links = links_prefix(*number);
                    let linked = self.cells.range(links.clone()..).next();
                    *number == InodeNumber::ROOT
                        || linked.is_some_and(|(key, _)| key.starts_with(&links))
                        || may_be_lost(&self.lost, &links)
                }
                Key::Snapshot(..) => is_last,
                // Indexes are made anew; these are looked at once all inodes are known.
                _ => false,
            };
            if right {
                taken.push(describe(&decoded));
                let value = self.with_newest_content(value);
                self.cells.insert(key.clone(), value);
            }
        }
        let mut unchanged = BTreeMap::new();
        for (key, value) in older {
            if let Ok(Key::Quota(_)) = Key::decode(key) {
                // Limits of then; what is counted below is counted anew.
                if is_last && may_be_lost(&self.lost, key) && !self.cells.contains_key(key) {
                    self.cells.insert(key.clone(), value.clone());
                }
                continue;
            }
            let (Key::Extents(number, _) | Key::Extended(number, _, _)) = (match Key::decode(key) {
                Ok(decoded) => decoded,
                Err(_) => continue,
            }) else {
                continue;
            };
            if !may_be_lost(&self.lost, key) || self.cells.contains_key(key) {
                continue;
            }
            let same = *unchanged.entry(number).or_insert_with(|| {
                let now = inode_of(&self.cells, number);
                now.is_some_and(|now| {
                    inode_of(older, number).is_some_and(|then| {
                        then.size == now.size
                            && then.attributes.ctime == now.attributes.ctime
                            && (then.layout == Layout::Mapped) == (now.layout == Layout::Mapped)
                    })
                })
            });
            if same {
                self.cells.insert(key.clone(), value.clone());
            }
        }
        taken
    }

    /// An older inode, as a value: if its content stands under keys by now, it does not have the content of then.
    fn with_newest_content(&self, value: &[u8]) -> Vec<u8> {
        let Ok(Entry::Embedded(mut inode)) = Entry::decode(value) else {
            return value.to_vec();
        };
        let prefix = extents_prefix(inode.number);
        let first = self.cells.range(prefix.clone()..).next();
        if inode.layout != Layout::Mapped && first.is_some_and(|(key, _)| key.starts_with(&prefix)) {
            inode.layout = Layout::Mapped;
            inode.size = 0;
        }
        inode.encode()
    }

    /// Adds to `all` the snapshots that `older` has and that are lost here.
    pub(super) fn clone_lost_snapshots(&self, older: &Gathered, all: &mut Cells) {
        for (key, value) in older.cells.range(snapshots_prefix()..) {
            if key.starts_with(&snapshots_prefix()) && may_be_lost(&self.lost, key) {
                all.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// Numbers of inodes that are there.
    fn numbers(&self) -> BTreeSet<InodeNumber> {
        let of = |(key, value): (&Vec<u8>, &Vec<u8>)| match Key::decode(key).ok()? {
            Key::Entry(..) => match Entry::decode(value).ok()? {
                Entry::Embedded(inode) => Some(inode.number),
                Entry::Link { .. } => None,
            },
            Key::Inode(number) => Some(number),
            _ => None,
        };
        self.cells.iter().filter_map(of).collect()
    }

    /// Whether the second index says that an entry stood there to the end; without it, whether nothing speaks against it.
    fn stood(
        &self,
        numbers: &BTreeSet<InodeNumber>,
        directory: InodeNumber,
        name: &[u8],
        entry: &Entry,
    ) -> bool {
        let key = Key::Name(entry.cookie()).encode();
        match self.cells.get(&key).map(|value| decode_place(value)) {
            Some(Ok(place)) => place == (directory, name),
            Some(Err(_)) => !numbers.contains(&entry.inode()),
            None => may_be_lost(&self.lost, &key) && !numbers.contains(&entry.inode()),
        }
    }
}

/// What a key means, for people.
fn describe(key: &Key) -> String {
    match key {
        Key::Entry(directory, name) => {
            format!("\"{}\" in directory {directory}", crate::name::Shown::new(name))
        }
        Key::Snapshot(_, name) => format!("snapshot \"{}\"", crate::name::Shown::new(name)),
        Key::Inode(number) => format!("inode {number}"),
        _ => "a cell".to_owned(),
    }
}

/// An inode by its number, wherever it stands.
fn inode_of(cells: &Cells, number: InodeNumber) -> Option<Inode> {
    if let Some(value) = cells.get(&Key::Inode(number).encode()) {
        return Inode::decode(value).ok();
    }
    let place = cells.get(&Key::Name(number.0).encode())?;
    let (directory, name) = decode_place(place).ok()?;
    let entry = cells.get(&Key::Entry(directory, name.to_vec()).encode())?;
    match Entry::decode(entry).ok()? {
        Entry::Embedded(inode) if inode.number == number => Some(inode),
        _ => None,
    }
}
