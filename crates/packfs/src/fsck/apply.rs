//! Making a repaired state durable: space is counted anew, extents that two files claim get places of their own, what
//! changed goes into the tree, and one commit makes it the state that counts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bdev::IoError;
use foundation::ByteCount;

use super::FsckError;
use super::contents::{Contents, lay_out, placed};
use super::gather::{Cells, Gathered};
use super::mend::Told;
use crate::cache::PageCache;
use crate::error::{ReadError, WriteError};
use crate::format::PAGE_BYTES_U64;
use crate::format::RESERVED_BYTES;
use crate::format::entry::Inode;
use crate::format::extent::Extent;
use crate::format::key::InodeNumber;
use crate::format::superblock::Features;
use crate::io::Medium;
use crate::lease::hold::WriterHold;
use crate::mount::{Mounted, ReplaceError, replace_other};
use crate::shared::{Record, Run, count, record};
use crate::space::{Ranges, Recount, Space};
use crate::tree::Tree;
use crate::writer::Writer;

/// Everything that a repair knows before it writes.
pub(super) struct Repair<'a> {
    pub(super) medium: &'a Medium,
    pub(super) hold: &'a Rc<WriterHold>,
    pub(super) mounted: Mounted,
    /// What is wrong with the other superblock.
    pub(super) damaged: Option<String>,
    /// Whether that may have been written anew.
    pub(super) begun: bool,
    pub(super) gathered: Gathered,
    /// As recorded, if it could be read.
    pub(super) recorded: Option<Space>,
    /// Pages that snapshots by name and the tree of the other superblock have.
    pub(super) needed: Ranges,
    #[cfg(test)]
    pub(super) bug: crate::space::PlantedBug,
}

/// Where an extent stands: the inode, and where in its content.
type Owner = (InodeNumber, u64);

/// Extents, sorted out by where they lie.
#[derive(Default)]
struct Sorted {
    /// Bytes that are live, and pages filled, by the segment's first page.
    segments: BTreeMap<u64, (u64, u64)>,
    /// Which of them several extents have.
    shared: Record,
    /// Those that need a place of their own.
    misplaced: Vec<(Owner, Extent)>,
}

/// Adds a range, of which some may be there already.
pub(super) fn add(ranges: &mut Ranges, start: u64, count: u64) {
    ranges.remove(start, count);
    let fresh = ranges.insert(start, count);
    assert!(fresh, "a range that was just taken out can be put in");
}

/// The pages that an extent touches: first and count.
pub(super) fn pages_of(extent: &Extent) -> (u64, u64) {
    let start = extent.address / PAGE_BYTES_U64;
    let end = extent.address.saturating_add(u64::from(extent.length));
    (start, end.div_ceil(PAGE_BYTES_U64) - start)
}

/// `shares` says whether bytes that two extents have are both's, or one of them claims what is not its own.
fn sort_out(
    contents: &Contents,
    pages: &BTreeSet<u64>,
    segment_pages: u64,
    limit: u64,
    shares: bool,
) -> Sorted {
    let mut extents: Vec<(Extent, Owner)> = Vec::new();
    for inode in contents.inodes() {
        let all = placed(inode, contents.mapped.get(&inode.number));
        extents.extend(all.into_iter().map(|(at, extent)| (extent, (inode.number, at))));
    }
    extents.sort_by_key(|(extent, owner)| (extent.address, extent.length, *owner));
    let mut sorted = Sorted::default();
    let mut kept = Vec::with_capacity(extents.len());
    let mut reached = RESERVED_BYTES;
    for (extent, owner) in extents {
        let (first, count) = pages_of(&extent);
        let segment = first / segment_pages * segment_pages;
        if first + count > limit {
            // There is nothing to move: it is damage, which the checker tells.
            continue;
        }
        let in_segment = segment >= RESERVED_BYTES / PAGE_BYTES_U64
            && segment + segment_pages <= limit
            && first + count <= segment + segment_pages
            && pages.range(segment..segment + segment_pages).next().is_none();
        if !in_segment || (extent.address < reached && !shares) {
            sorted.misplaced.push((owner, extent));
            continue;
        }
        reached = extent.address + u64::from(extent.length);
        kept.push(extent);
        let (_, filled) = sorted.segments.entry(segment).or_default();
        *filled = (*filled).max(first + count - segment);
    }
    let segment_bytes = segment_pages * PAGE_BYTES_U64;
    let runs = count(kept.into_iter(), segment_bytes);
    for Run { bytes, .. } in &runs {
        let segment = bytes.start / segment_bytes * segment_pages;
        sorted.segments.entry(segment).or_default().0 += bytes.end - bytes.start;
    }
    sorted.shared = record(&runs);
    sorted
}

impl Repair<'_> {
    /// Commits `contents`, unless they are what counts already.
    pub(super) async fn commit(mut self, contents: Contents, told: &mut Told) -> Result<(), FsckError> {
        let committed = self.commit_or_end(contents, told).await;
        match committed {
            Err(error) if self.begun => Err(FsckError::Begun(Box::new(error))),
            other => other,
        }
    }

    /// Writes a damaged superblock anew. To be done before anything else is written, and after all that may be refused.
    async fn replace_damaged(&mut self, writer: &mut Writer, told: &mut Told) -> Result<(), FsckError> {
        let Some(damaged) = self.damaged.take() else {
            return Ok(());
        };
        match replace_other(self.medium, self.hold, &self.mounted, true).await {
            Ok(mounted) => {
                self.begun = true;
                writer.stand_on(&mounted);
                let text = format!("the damaged superblock was written anew ({damaged})");
                told.repaired.push(text);
                Ok(())
            }
            Err(ReplaceError::Counts) => Err(FsckError::Unsteady),
            Err(ReplaceError::Away(source)) => Err(FsckError::Away(source)),
            Err(ReplaceError::Write(error)) => {
                self.begun = true;
                Err(error.into())
            }
        }
    }

    async fn commit_or_end(&mut self, mut contents: Contents, told: &mut Told) -> Result<(), FsckError> {
        let superblock = self.mounted.superblock;
        let limit = superblock.volume_bytes / PAGE_BYTES_U64;
        let segment_pages = u64::from(superblock.parameters.segment_bytes) / PAGE_BYTES_U64;
        let shares = superblock.features.has(Features::SHARED);
        let sorted = sort_out(&contents, &self.gathered.pages, segment_pages, limit, shares);
        if contents.shared != sorted.shared {
            told.repaired.push(format!(
                "the record of shared bytes was made anew: {} runs are shared, and {} were recorded",
                sorted.shared.len(),
                contents.shared.len()
            ));
            contents.shared = sorted.shared;
        }
        let mut tree_pages = Ranges::default();
        if self.gathered.whole {
            for &page in &self.gathered.pages {
                add(&mut tree_pages, page, 1);
            }
        }
        let mut needed = std::mem::take(&mut self.needed);
        for &page in &self.gathered.pages {
            add(&mut needed, page, 1);
        }
        let recount = Recount {
            recorded: self.recorded.as_ref(),
            tree_pages: &tree_pages,
            needed: &needed,
            segments: &sorted.segments,
            limit,
        };
        let space = Space::recounted(&superblock.parameters, &recount);
        let same_space = self
            .recorded
            .as_ref()
            .is_some_and(|recorded| space.agrees_with(recorded));
        let cache = PageCache::new(1 << 20);
        let medium = self.medium.clone();
        let tree = match self.gathered.whole {
            true => Tree::new(medium.clone(), cache, superblock.root),
            false => Tree::empty(medium.clone(), cache),
        };
        let mut writer = Writer::assemble(medium, self.hold.clone(), tree, space, self.mounted, 8);
        writer.hold_all_generations();
        #[cfg(test)]
        writer.plant(self.bug);
        if self.damaged.is_some() && !sorted.misplaced.is_empty() {
            check_moves(&writer, &sorted.misplaced).await?;
            self.replace_damaged(&mut writer, told).await?;
        }
        let moved = move_extents(&mut writer, &mut contents, sorted.misplaced, told).await?;
        let cells = contents.cells();
        let features = superblock.features.with(contents.features());
        let counted = contents.totals() == superblock.totals
            && features == superblock.features
            && contents.next == superblock.next_inode;
        let same = self.gathered.whole && cells == self.gathered.cells;
        if same && counted && same_space && !moved {
            return self.replace_damaged(&mut writer, told).await;
        }
        writer.set_counts(contents.totals(), features, contents.next);
        let before = match self.gathered.whole {
            true => &self.gathered.cells,
            false => &Cells::new(),
        };
        for key in before.keys().filter(|key| !cells.contains_key(*key)) {
            writer.take(key).await?;
        }
        for (key, value) in &cells {
            if before.get(key) != Some(value) {
                writer.put(key.clone(), value.clone()).await?;
            }
        }
        writer.prepare_commit().await?;
        self.replace_damaged(&mut writer, told).await?;
        writer.commit_always().await?;
        Ok(())
    }
}

/// Ends a repair before it writes if what is to be moved cannot be read now, or cannot have room.
async fn check_moves(writer: &Writer, misplaced: &[(Owner, Extent)]) -> Result<(), FsckError> {
    let longest = writer.parameters().extent_bytes_max;
    let mut needed = 0;
    for ((number, _), extent) in misplaced.iter().filter(|(_, one)| one.length <= longest) {
        if bytes_of(writer, *number, extent).await?.is_some() {
            needed += u64::from(extent.length);
        }
    }
    let free = writer.space.free_pages() * PAGE_BYTES_U64;
    match needed.checked_sub(free) {
        None | Some(0) => Ok(()),
        Some(missing) => {
            let missing = ByteCount(missing);
            Err(WriteError::NoSpace { missing }.into())
        }
    }
}

/// Copies what lies where another file's bytes, a page of the index or no segment is. Bytes that are damaged stay
/// damaged: a reader is told so, and does not take them for right.
async fn move_extents(
    writer: &mut Writer,
    contents: &mut Contents,
    misplaced: Vec<(Owner, Extent)>,
    told: &mut Told,
) -> Result<bool, FsckError> {
    let names = contents.names();
    let longest = writer.parameters().extent_bytes_max;
    let mut moved: BTreeMap<InodeNumber, BTreeMap<u64, Vec<Extent>>> = BTreeMap::new();
    for ((number, at), extent) in misplaced {
        if extent.length > longest {
            continue;
        }
        let Some((bytes, right)) = bytes_of(writer, number, &extent).await? else {
            continue;
        };
        let mut extents = writer.pack(&bytes).await?;
        if !right {
            for extent in &mut extents {
                extent.checksum = !extent.checksum;
            }
        }
        let path = contents.path(number, &names);
        let end = at + u64::from(extent.length);
        told.repaired.push(format!(
            "{path}: bytes {at} to {end} lay where something else lies and were copied{}",
            if right { "" } else { "; they are damaged" }
        ));
        moved.entry(number).or_default().insert(at, extents);
    }
    if moved.is_empty() {
        return Ok(false);
    }
    contents.for_each_inode(|inode, groups| {
        let Some(moved) = moved.get(&inode.number) else {
            return;
        };
        let mut all = Vec::new();
        for (at, extent) in placed(inode, groups.as_ref()) {
            let mut at = at;
            for extent in moved.get(&at).cloned().unwrap_or_else(|| vec![extent]) {
                all.push((at, extent));
                at += u64::from(extent.length);
            }
        }
        (inode.layout, *groups) = lay_out(&all, inode.size);
    });
    Ok(true)
}

/// An extent's bytes and whether they are right; `None` if the device has none there. What it cannot give now ends the repair: what is
/// left out loses its place.
async fn bytes_of(
    writer: &Writer,
    number: InodeNumber,
    extent: &Extent,
) -> Result<Option<(Vec<u8>, bool)>, FsckError> {
    let inode = Inode {
        number,
        ..super::mend::unnamed()
    };
    match writer.read_extent(&inode, extent).await {
        Ok(bytes) => Ok(Some((bytes, true))),
        Err(WriteError::Read(ReadError::Damaged { .. })) => {
            let (start, length) = writer.medium.widen(extent.address, u64::from(extent.length));
            match writer.medium.read_fresh(start, length as usize).await {
                Ok(buffer) => {
                    let from = (extent.address - start) as usize;
                    Ok(Some((
                        buffer[from..from + extent.length as usize].to_vec(),
                        false,
                    )))
                }
                Err(IoError::Media | IoError::Checksum | IoError::OutOfRange) => Ok(None),
                Err(source) => {
                    let block = start / PAGE_BYTES_U64;
                    Err(WriteError::Io { block, source }.into())
                }
            }
        }
        Err(error) if error.is_damaged_content() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
