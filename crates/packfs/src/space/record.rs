//! The space record: planning what a commit writes of it, and building the bookkeeping from a chain.

use crate::format::space_page::{self, SpaceEntry, SpacePage};
use crate::format::superblock::Parameters;
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, PagePointer, RESERVED_BYTES};

use super::{Ranges, Segment, Space};

/// Pages of changes that are tolerated above the complete list's own length.
const CHANGES_MIN: usize = 16;

/// Why a chain of space pages makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("pages {start}+{count} are taken twice, freed twice or lie outside the volume")]
    Range { start: u64, count: u64 },
    #[error("the chain of space pages has no complete list at its end")]
    Incomplete,
}

/// The pages of one commit's record, ready to be written.
pub(crate) struct RecordPlan {
    /// Page number and bytes.
    pub(crate) pages: Vec<(u64, Vec<u8>)>,
    /// The newest page.
    pub(crate) pointer: PagePointer,
    chain: Vec<PagePointer>,
    complete_pages: usize,
}

impl Space {
    /// Pages that the record of the next commit may take at most, if it changes so many pages of the tree.
    pub(crate) fn record_pages_max(&self, changed_pages: usize) -> u64 {
        let freed = self.freed_ranges();
        // A statement takes at most 31 bytes; taking the pages themselves may split ranges.
        let statements = self.free.len() + freed + self.segments.len() + self.chain.len();
        let now = self.freed_now.len() + self.taken_now.len() + self.touched.len() + changed_pages;
        let statements = statements + 3 * now;
        (statements * 31 / (PAGE_BYTES - 64) + 3) as u64
    }

    /// Ranges that wait, of all commits: counted once for each change of them, since before each change of the index it is asked.
    fn freed_ranges(&self) -> usize {
        match self.counted_freed.get() {
            Some(counted) => counted,
            None => {
                let counted = self.freed.values().map(Ranges::len).sum();
                self.counted_freed.set(Some(counted));
                counted
            }
        }
    }

    /// Plans the record of commit `generation`. `None` if no pages are left for it. `open` is the segment
    /// being written.
    pub(crate) fn plan_record(&mut self, generation: u64, open: Option<u64>) -> Option<RecordPlan> {
        self.drop_empty_segments(open);
        let changes = self.chain.len() - self.complete_pages;
        let due = self.state_all || changes >= self.complete_pages.max(CHANGES_MIN);
        let complete = self.chain.is_empty() || due;
        if complete {
            for pointer in std::mem::take(&mut self.chain) {
                self.free_page(pointer.page);
            }
        }
        let estimated = space_page::pack(&self.statements(complete, generation)).len();
        let mut numbers = Vec::new();
        // Taking pages can split one free range at most, so one page more is enough.
        for _ in 0..estimated + usize::from(complete) {
            numbers.push(self.take_record_page()?);
        }
        let mut packed = space_page::pack(&self.statements(complete, generation));
        assert!(packed.len() <= numbers.len(), "the record outgrew its estimate");
        packed.resize(numbers.len(), (Vec::new(), 0));
        let mut next = match complete {
            true => PagePointer::default(),
            false => self.chain[0],
        };
        let mut pages = Vec::new();
        let mut own = Vec::new();
        for (&page, packed) in numbers.iter().zip(&packed).rev() {
            let mut bytes = vec![0; PAGE_BYTES];
            let checksum = space_page::encode(&mut bytes, packed, next, complete, page, generation);
            next = PagePointer {
                page,
                birth: generation,
                checksum,
            };
            own.push(next);
            pages.push((page, bytes));
        }
        own.reverse();
        let complete_pages = if complete { own.len() } else { self.complete_pages };
        own.extend_from_slice(&self.chain);
        Some(RecordPlan {
            pages,
            pointer: next,
            chain: own,
            complete_pages,
        })
    }

    fn statements(&self, complete: bool, generation: u64) -> Vec<SpaceEntry> {
        let mut out = Vec::new();
        let freed = |ranges: &Ranges, generation| -> Vec<SpaceEntry> {
            let entry = |(start, count)| SpaceEntry::Freed {
                start,
                count,
                generation,
            };
            ranges.iter().map(entry).collect()
        };
        let segment = |start: u64, segment: Option<&Segment>| SpaceEntry::Segment {
            start,
            live_bytes: segment.map_or(0, |segment| segment.live_bytes),
            filled: segment.map_or(0, |segment| segment.filled),
        };
        if complete {
            out.extend(
                self.free
                    .iter()
                    .map(|(start, count)| SpaceEntry::Free { start, count }),
            );
            for (&generation, ranges) in &self.freed {
                out.extend(freed(ranges, generation));
            }
            out.extend(
                self.segments
                    .iter()
                    .map(|(&start, state)| segment(start, Some(state))),
            );
        } else {
            let taken = self.taken_now.iter();
            out.extend(taken.map(|(start, count)| SpaceEntry::Taken { start, count }));
            let touched = self.touched.iter();
            out.extend(touched.map(|start| segment(*start, self.segments.get(start))));
        }
        out.extend(freed(&self.freed_now, generation));
        out
    }

    /// The commit that `plan` belongs to is durable.
    pub(crate) fn committed(&mut self, generation: u64, plan: RecordPlan) {
        let freed = std::mem::take(&mut self.freed_now);
        if freed.pages() > 0 {
            self.freed.insert(generation, freed);
            self.counted_freed.set(None);
        }
        self.taken_now = Ranges::default();
        self.touched.clear();
        self.state_all = false;
        self.chain = plan.chain;
        self.complete_pages = plan.complete_pages;
    }

    /// The bookkeeping that a chain of pages, newest first, describes.
    pub(crate) fn from_chain(
        chain: Vec<(PagePointer, SpacePage)>,
        volume_bytes: u64,
        parameters: &Parameters,
    ) -> Result<Self, RecordError> {
        let mut space = Space::empty(parameters);
        let limit = volume_bytes / PAGE_BYTES_U64;
        let complete_pages = chain.iter().filter(|(_, page)| page.complete).count();
        let tail = chain[chain.len() - complete_pages..].iter();
        if complete_pages == 0 || !tail.clone().all(|(_, page)| page.complete) {
            return Err(RecordError::Incomplete);
        }
        space.complete_pages = complete_pages;
        space.chain = chain.iter().map(|(pointer, _)| *pointer).collect();
        // Oldest commit first; within a commit, takings before what it gave back.
        let mut rest = &chain[..];
        while let Some((last, _)) = rest.last() {
            let begin = rest
                .iter()
                .position(|(pointer, _)| pointer.birth == last.birth)
                .unwrap_or(0);
            let (older, commit) = rest.split_at(begin);
            space.apply(commit, limit)?;
            rest = older;
        }
        space.check_disjoint()?;
        // A writer that ended may have left segments that nothing uses: its successor gives them back.
        let empty = space
            .segments
            .iter()
            .filter(|(_, segment)| segment.live_bytes == 0);
        space.touched = empty.map(|(&start, _)| start).collect();
        Ok(space)
    }

    fn apply(&mut self, commit: &[(PagePointer, SpacePage)], limit: u64) -> Result<(), RecordError> {
        let complete = commit.iter().all(|(_, page)| page.complete);
        if !complete {
            for (pointer, _) in commit {
                self.take_from_anywhere(pointer.page, 1)?;
            }
        }
        let entries = || commit.iter().flat_map(|(_, page)| &page.entries);
        for entry in entries() {
            if let SpaceEntry::Taken { start, count } = *entry {
                self.take_from_anywhere(start, count)?;
            }
        }
        for entry in entries() {
            match *entry {
                SpaceEntry::Free { start, count } => {
                    check_bounds(start, count, limit)?;
                    if !complete || !self.free.insert(start, count) {
                        return Err(RecordError::Range { start, count });
                    }
                }
                SpaceEntry::Taken { .. } => {}
                SpaceEntry::Freed {
                    start,
                    count,
                    generation,
                } => {
                    check_bounds(start, count, limit)?;
                    let free = self.free.overlaps(start, count);
                    if free || !self.freed.entry(generation).or_default().insert(start, count) {
                        return Err(RecordError::Range { start, count });
                    }
                }
                SpaceEntry::Segment {
                    start,
                    live_bytes,
                    filled,
                } => self.apply_segment(start, live_bytes, filled, limit)?,
            }
        }
        Ok(())
    }

    fn apply_segment(&mut self, start: u64, live: u64, filled: u64, limit: u64) -> Result<(), RecordError> {
        let count = self.segment_pages;
        if !start.is_multiple_of(count) || filled > count || live > count * PAGE_BYTES_U64 {
            return Err(RecordError::Range { start, count });
        }
        if live == 0 && filled == 0 {
            self.segments.remove(&start);
            return Ok(());
        }
        check_bounds(start, count, limit)?;
        let live_bytes = live;
        self.segments.insert(start, Segment { live_bytes, filled });
        Ok(())
    }

    /// Whether no page is free, waiting or of a segment twice: what waits becomes free one day, whoever freed it.
    fn check_disjoint(&self) -> Result<(), RecordError> {
        let mut all = self.free.clone();
        let waiting = self.freed.values().flat_map(Ranges::iter);
        let segments = self.segments.keys().map(|&start| (start, self.segment_pages));
        for (start, count) in waiting.chain(segments) {
            if !all.insert(start, count) {
                return Err(RecordError::Range { start, count });
            }
        }
        Ok(())
    }

    /// A commit may take what was free and what had been freed long before it.
    fn take_from_anywhere(&mut self, start: u64, count: u64) -> Result<(), RecordError> {
        // Both numbers come from the volume; their sum was checked when they were decoded.
        let mut taken = self.free.remove(start, count);
        // Of a volume with snapshots there may be very many commits.
        let mut emptied = Vec::new();
        for (&generation, ranges) in &mut self.freed {
            if taken == count {
                break;
            }
            taken += ranges.remove(start, count);
            if ranges.pages() == 0 {
                emptied.push(generation);
            }
        }
        for generation in emptied {
            self.freed.remove(&generation);
        }
        if taken == count {
            Ok(())
        } else {
            Err(RecordError::Range { start, count })
        }
    }
}

fn check_bounds(start: u64, count: u64, limit: u64) -> Result<(), RecordError> {
    let end = start.checked_add(count);
    if start >= RESERVED_BYTES / PAGE_BYTES_U64 && end.is_some_and(|end| end <= limit) {
        Ok(())
    } else {
        Err(RecordError::Range { start, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::ReaderFloor;
    use foundation::Random;
    use std::collections::BTreeMap;

    /// Many commits of random takings and frees; the chain of each gives the same bookkeeping again.
    #[test]
    fn the_record_gives_the_bookkeeping_back() {
        let parameters = Parameters {
            segment_bytes: 64 << 10,
            ..Parameters::default()
        };
        let volume_bytes = 8 << 20;
        let mut random = Random::from_seed(11);
        let mut space = Space::fresh(volume_bytes, &parameters);
        let mut disk: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let (mut pages, mut segments) = (Vec::new(), Vec::new());
        for generation in 1..200 {
            space
                .release(generation - 1, ReaderFloor(None), ReaderFloor(None))
                .unwrap();
            for _ in 0..random.below(20) {
                pages.extend(space.take_page());
            }
            for _ in 0..random.below(25).min(pages.len() as u64) {
                let page = pages.swap_remove(random.below(pages.len() as u64) as usize);
                space.free_page(page);
            }
            if let Some(segment) = space.take_segment(300) {
                space.add_live(segment, 5000);
                space.set_filled(segment, 2);
                segments.push(segment);
            }
            if segments.len() > 3 {
                let segment = segments.swap_remove(random.below(segments.len() as u64) as usize);
                assert!(space.remove_live(segment * 4096 + 7, 5000));
            }
            // What was taken and freed by one commit never happens for pages.
            let most = space.record_pages_max(0);
            let plan = space.plan_record(generation, None).unwrap();
            assert!(plan.pages.len() as u64 <= most);
            disk.extend(plan.pages.iter().cloned());
            let mut pointer = plan.pointer;
            space.committed(generation, plan);
            let mut chain = Vec::new();
            while !pointer.is_none() {
                let page = space_page::decode(&disk[&pointer.page], pointer).unwrap();
                chain.push((pointer, page.clone()));
                pointer = page.next;
            }
            let again = Space::from_chain(chain, volume_bytes, &parameters).unwrap();
            assert_eq!(again.chain, space.chain);
            assert_eq!(again.segments, space.segments);
            let all = |space: &Space| -> Vec<u64> {
                let mut all: Vec<u64> = space.unused().into_iter().flat_map(|(s, n)| s..s + n).collect();
                all.sort_unstable();
                all
            };
            assert_eq!(all(&again), all(&space), "generation {generation}");
        }
        assert!(space.chain.len() < 60, "the chain is not shortened");
    }

    /// A record whose pages are whole may still say of a page that it is two things.
    #[test]
    fn pages_that_are_two_things_are_refused() {
        let parameters = Parameters {
            segment_bytes: 64 << 10,
            ..Parameters::default()
        };
        let read = |entries: Vec<SpaceEntry>| {
            let page = SpacePage {
                next: PagePointer::default(),
                complete: true,
                entries,
            };
            let pointer = PagePointer {
                page: 255,
                birth: 9,
                checksum: 0,
            };
            Space::from_chain(vec![(pointer, page)], 1 << 20, &parameters).map(drop)
        };
        let free = |start, count| SpaceEntry::Free { start, count };
        let freed = |start, count, generation| SpaceEntry::Freed {
            start,
            count,
            generation,
        };
        let segment = |start| SpaceEntry::Segment {
            start,
            live_bytes: 100,
            filled: 1,
        };
        read(vec![free(64, 8), freed(72, 8, 3), freed(80, 8, 4), segment(96)]).unwrap();
        for (entries, start) in [
            (vec![free(64, 8), freed(70, 8, 3)], 70),
            (vec![freed(70, 8, 3), free(64, 8)], 70),
            (vec![freed(72, 8, 3), freed(79, 8, 4)], 79),
            (vec![free(100, 8), segment(96)], 96),
            (vec![freed(100, 8, 3), segment(96)], 96),
        ] {
            let Err(RecordError::Range { start: found, .. }) = read(entries.clone()) else {
                panic!("{entries:?} was taken");
            };
            assert_eq!(found, start, "{entries:?}");
        }
    }
}
