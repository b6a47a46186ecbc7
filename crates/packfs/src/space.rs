//! What is free, what will be, and what a writer may take: pure bookkeeping, counted in pages of 4 KiB.
//!
//! Data segments grow from the volume's beginning, pages of the tree from its end. What commit N frees waits
//! until commit N+1 is durable, no reader lease is at or below N, and no named snapshot has it: so both superblocks, every
//! reader and every snapshot find their trees whole. What snapshots have may not be known ([`Space::hold`]); then all that was
//! freed since the oldest of them waits.

mod held;
mod ranges;
mod record;
mod recount;
mod victims;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::format::superblock::Parameters;
use crate::format::{PAGE_BYTES_U64, PagePointer, RESERVED_BYTES};

pub(crate) use ranges::Ranges;
pub(crate) use record::RecordPlan;
pub(crate) use recount::Recount;

/// The lowest generation that a reader lease or named snapshot holds; `None` if none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderFloor(pub Option<u64>);

/// A run of pages that holds packed data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Bytes that files use.
    pub(crate) live_bytes: u64,
    /// Pages written from the start on.
    pub(crate) filled: u64,
}

/// Pages were freed that were free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreedTwice;

/// Deliberate mistakes, each of which a test must find.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    #[default]
    None,
    /// What commit N freed is used again while N+1 is being built.
    ReuseOneCommitEarly,
    /// Reader leases are not asked.
    ReuseUnderReaders,
    /// No flush between the pages and the superblock.
    SuperblockBeforeFlush,
    /// A writer reads the superblock before it has fenced older writers off.
    MountBeforeFence,
    /// Counters of quotas are changed in memory only.
    QuotaNotCommitted,
    /// A clone's users of bytes are not counted.
    SharedNotCounted,
    /// A reader asks whether its lease lasts before it reads, and not when the bytes are here.
    LeaseBeforeBytes,
    /// Others are shown that a reader holds less only after the masters were told.
    ToldAfterMasters,
    /// A writer that was asked to hand over does so before its changes are durable.
    HandOverBeforeCommit,
    /// What a new snapshot has is not added to what snapshots hold.
    SnapshotNotHeld,
    /// Of a snapshot's tree only the pages are taken for held, not the segments of its content.
    ContentNotHeld,
    /// A snapshot that was deleted counts no more, though the tree before may come back and has it.
    DeletedNotHeld,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    /// Pages per data segment.
    segment_pages: u64,
    /// May be taken.
    free: Ranges,
    /// By the commit that freed them.
    freed: BTreeMap<u64, Ranges>,
    /// Data segments by first page.
    segments: BTreeMap<u64, Segment>,
    /// Pages of the space record, newest first.
    chain: Vec<PagePointer>,
    /// How many of them make the complete list.
    complete_pages: usize,
    /// Taken, freed, and changed since the last commit.
    taken_now: Ranges,
    freed_now: Ranges,
    touched: BTreeSet<u64>,
    /// The next record states everything, not what has changed.
    state_all: bool,
    /// Pages that named snapshots have, or more than those; `None` where that is not known.
    held: Option<Ranges>,
    /// What commits through this one freed and is here still was compared with `held`: snapshots have all of it.
    sifted: u64,
    /// Ranges of `freed`, if they were counted since it changed.
    counted_freed: Cell<Option<usize>>,
    /// The last answer of [`Space::free_segments`], until [`Space::change_free`].
    whole_segments: Cell<Option<(u64, u64)>>,
    #[cfg(test)]
    pub(crate) bug: PlantedBug,
}

impl Space {
    /// The space of a fresh volume.
    pub(crate) fn fresh(volume_bytes: u64, parameters: &Parameters) -> Self {
        let mut space = Self::empty(parameters);
        let first = RESERVED_BYTES / PAGE_BYTES_U64;
        space
            .free
            .insert(first, (volume_bytes / PAGE_BYTES_U64).saturating_sub(first));
        space
    }

    fn empty(parameters: &Parameters) -> Self {
        Self {
            segment_pages: u64::from(parameters.segment_bytes) / PAGE_BYTES_U64,
            free: Ranges::default(),
            freed: BTreeMap::new(),
            segments: BTreeMap::new(),
            chain: Vec::new(),
            complete_pages: 0,
            taken_now: Ranges::default(),
            freed_now: Ranges::default(),
            touched: BTreeSet::new(),
            state_all: false,
            held: None,
            sifted: 0,
            counted_freed: Cell::new(None),
            whole_segments: Cell::new(None),
            #[cfg(test)]
            bug: PlantedBug::None,
        }
    }

    /// Adds pages behind the last one: they were never used, so no reader needs them. A record of changes has no word for that;
    /// the next one therefore states everything.
    pub(crate) fn grow(&mut self, first: u64, pages: u64) {
        let fresh = self.change_free().insert(first, pages);
        assert!(fresh, "the volume has {pages} pages from {first} on already");
        self.state_all = true;
    }

    /// Pages that may be taken now.
    pub(crate) fn free_pages(&self) -> u64 {
        self.free.pages()
    }

    /// Segments that may be taken once the highest free pages are taken, so many of them.
    pub(crate) fn free_segments(&self, highest: u64) -> u64 {
        match self.whole_segments.get() {
            Some((without, segments)) if without == highest => segments,
            _ => {
                let segments = self.free.aligned_below(highest, self.segment_pages);
                self.whole_segments.set(Some((highest, segments)));
                segments
            }
        }
    }

    fn change_free(&mut self) -> &mut Ranges {
        self.whole_segments.set(None);
        &mut self.free
    }

    /// Pages that will be free once their commits and readers are past.
    pub(crate) fn waiting_pages(&self) -> u64 {
        let waiting: u64 = self.freed.values().map(Ranges::pages).sum();
        waiting + self.freed_now.pages()
    }

    /// Makes free what the rule allows: `durable` is the last durable commit, `readers` what leases hold, `named` the oldest
    /// snapshot by name.
    ///
    /// # Errors
    /// Where pages were freed that are free already: the record, which comes from a disk, contradicts itself. Nothing may be taken any more.
    pub(crate) fn release(
        &mut self,
        durable: u64,
        readers: ReaderFloor,
        named: ReaderFloor,
    ) -> Result<(), FreedTwice> {
        #[cfg(test)]
        let (durable, readers, named) = match self.bug {
            PlantedBug::ReuseOneCommitEarly => (durable + 1, readers, named),
            PlantedBug::ReuseUnderReaders => (durable, ReaderFloor(None), ReaderFloor(None)),
            _ => (durable, readers, named),
        };
        // What commits before this one freed neither the other superblock's tree nor a reader needs.
        let end = readers.0.map_or(durable, |lowest| lowest.min(durable));
        // Before this one, snapshots do not either.
        let open = named.0.map_or(end, |oldest| oldest.min(end));
        let mut past: Vec<u64> = self
            .freed
            .range(..open)
            .map(|(&generation, _)| generation)
            .collect();
        let unsifted = open.max(self.sifted.saturating_add(1))..end;
        if self.held.is_some() && !unsifted.is_empty() {
            past.extend(self.freed.range(unsifted).map(|(&generation, _)| generation));
            // Whoever opens the volume next does not know what is held: the record says what is free.
            self.state_all |= self.sifted == 0 && past.last().is_some_and(|&last| last >= open);
            self.sifted = end - 1;
        }
        self.counted_freed.set(None);
        for generation in past {
            let mut ranges = self.freed.remove(&generation).expect("the key was just listed");
            let kept = match &self.held {
                Some(held) if generation >= open => ranges.common(held),
                _ => Ranges::default(),
            };
            for (start, count) in kept.iter() {
                ranges.remove(start, count);
            }
            for (start, count) in ranges.iter() {
                if !self.change_free().insert(start, count) {
                    return Err(FreedTwice);
                }
            }
            if kept.pages() > 0 {
                self.freed.insert(generation, kept);
            }
        }
        Ok(())
    }

    /// Commits whose freed pages wait.
    pub(crate) fn waiting_commits(&self) -> usize {
        self.freed.len()
    }

    /// A page for the tree or the space record.
    pub(crate) fn take_page(&mut self) -> Option<u64> {
        let page = self.change_free().take_highest()?;
        self.taken_now.insert(page, 1);
        Some(page)
    }

    /// A page for the record itself, which its own chain declares.
    fn take_record_page(&mut self) -> Option<u64> {
        self.change_free().take_highest()
    }

    /// Gives back a page of the tree that the next commit does not use.
    pub(crate) fn free_page(&mut self, page: u64) {
        let fresh = self.freed_now.insert(page, 1);
        assert!(fresh, "page {page} was freed twice");
    }

    /// A new data segment; leaves at least `keep` pages free.
    pub(crate) fn take_segment(&mut self, keep: u64) -> Option<u64> {
        if self.free.pages() < self.segment_pages + keep {
            return None;
        }
        let pages = self.segment_pages;
        let start = self.change_free().take_aligned(pages)?;
        self.taken_now.insert(start, self.segment_pages);
        self.segments.insert(start, Segment::default());
        self.touched.insert(start);
        Some(start)
    }

    /// Pages per data segment.
    pub(crate) fn segment_pages(&self) -> u64 {
        self.segment_pages
    }

    /// The segment that has room at its end, if the last commit left one: its first page and state.
    pub(crate) fn open_segment(&self) -> Option<(u64, Segment)> {
        let found = self.segments.iter().find(|(_, s)| s.filled < self.segment_pages);
        found.map(|(&start, &segment)| (start, segment))
    }

    /// Bytes written into a segment.
    pub(crate) fn add_live(&mut self, segment: u64, bytes: u64) {
        let state = self
            .segments
            .get_mut(&segment)
            .expect("a writer packs into a segment it took");
        state.live_bytes += bytes;
        self.touched.insert(segment);
    }

    /// How far a segment is written.
    pub(crate) fn set_filled(&mut self, segment: u64, pages: u64) {
        if let Some(state) = self.segments.get_mut(&segment) {
            state.filled = state.filled.max(pages);
            self.touched.insert(segment);
        }
    }

    /// Bytes at a byte address that no file uses any more. `false` if no segment has them.
    pub(crate) fn remove_live(&mut self, address: u64, bytes: u64) -> bool {
        let segment = address / PAGE_BYTES_U64 / self.segment_pages * self.segment_pages;
        match self.segments.get_mut(&segment) {
            Some(state) if state.live_bytes >= bytes => {
                state.live_bytes -= bytes;
                self.touched.insert(segment);
                true
            }
            _ => false,
        }
    }

    /// Gives back segments that hold nothing any more, except the one being written.
    fn drop_empty_segments(&mut self, open: Option<u64>) {
        for &start in &self.touched {
            let empty = self.segments.get(&start).is_some_and(|s| s.live_bytes == 0);
            if empty && Some(start) != open {
                self.segments.remove(&start);
                let fresh = self.freed_now.insert(start, self.segment_pages);
                assert!(fresh, "segment {start} was freed twice");
            }
        }
    }

    /// Makes free at once what was taken for content since the last commit and holds none any more, but for the segment that is written:
    /// no commit has named it. Nothing may be on its way there.
    pub(crate) fn take_back_segments(&mut self, open: Option<u64>) {
        let unused = |(&start, segment): (&u64, &Segment)| {
            let is_new = self.taken_now.holds(start, self.segment_pages);
            (segment.live_bytes == 0 && Some(start) != open && is_new).then_some(start)
        };
        let unused: Vec<u64> = self.segments.iter().filter_map(unused).collect();
        for start in unused {
            self.segments.remove(&start);
            self.touched.remove(&start);
            self.taken_now.remove(start, self.segment_pages);
            let pages = self.segment_pages;
            let fresh = self.change_free().insert(start, pages);
            assert!(fresh, "segment {start} was free already");
        }
    }

    /// For the checker: whether any page of a range may be taken now.
    pub(crate) fn is_free(&self, start: u64, count: u64) -> bool {
        self.free.overlaps(start, count)
    }

    /// For the checker: pages that are free or will be.
    pub(crate) fn unused(&self) -> Vec<(u64, u64)> {
        let waiting = self.freed.values().flat_map(Ranges::iter);
        self.free.iter().chain(waiting).collect()
    }

    /// For the checker: data segments by first page.
    pub(crate) fn segments(&self) -> &BTreeMap<u64, Segment> {
        &self.segments
    }

    /// For the checker: pages of the space record.
    pub(crate) fn chain(&self) -> &[PagePointer] {
        &self.chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let parameters = Parameters {
            segment_bytes: 64 << 10,
            ..Parameters::default()
        };
        Space::fresh(1 << 20, &parameters)
    }

    #[test]
    fn data_grows_from_the_beginning_and_pages_from_the_end() {
        let mut space = space();
        assert_eq!(space.free_pages(), 256 - 32);
        assert_eq!(space.take_page(), Some(255));
        assert_eq!(space.take_segment(0), Some(32));
        assert_eq!(space.take_segment(1000), None);
        assert_eq!(space.free_pages(), 256 - 32 - 1 - 16);
    }

    #[test]
    fn freed_pages_wait_for_the_next_commit_and_for_readers() {
        for (durable, floor, reusable) in [
            (5, None, false),
            (6, None, true),
            (6, Some(5), false),
            (6, Some(4), false),
            (9, Some(6), true),
        ] {
            let mut space = space();
            let before = space.free_pages();
            let page = space.take_page().unwrap();
            space.freed.entry(5).or_default().insert(page, 1);
            let released = space.release(durable, ReaderFloor(floor), ReaderFloor(None));
            assert_eq!(released, Ok(()));
            assert_eq!(space.free_pages() == before, reusable, "{durable} {floor:?}");
        }
    }

    /// As a damaged record may have it.
    #[test]
    fn what_is_free_and_freed_again_is_told() {
        let mut space = space();
        space.freed.entry(5).or_default().insert(100, 2);
        let released = space.release(9, ReaderFloor(None), ReaderFloor(None));
        assert_eq!(released, Err(FreedTwice));
    }
}
