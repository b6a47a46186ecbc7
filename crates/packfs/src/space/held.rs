//! What snapshots by name have, where that is known: pure.
//!
//! It is a set of pages: those of the snapshots' trees, and whole segments in which they have content. It may have more pages than
//! those, never fewer; so it grows with each new snapshot, and is read anew from the trees when one was deleted.

use super::{Ranges, ReaderFloor, Space};
use crate::format::{PAGE_BYTES_U64, RESERVED_BYTES};

impl Space {
    /// Snapshots have these pages and no others.
    pub(crate) fn hold(&mut self, held: Ranges) {
        self.held = Some(held);
        self.sifted = 0;
    }

    /// There are no snapshots, or nothing is known of what they have.
    pub(crate) fn forget_held(&mut self) {
        self.held = None;
        self.sifted = 0;
    }

    /// Whether it is known what snapshots have.
    pub(crate) fn knows_held(&self) -> bool {
        self.held.is_some()
    }

    /// A snapshot of the last commit was made: it has whatever is in use. What was freed before is not.
    pub(crate) fn hold_what_is_used(&mut self, volume_bytes: u64) {
        let used = self.used(volume_bytes / PAGE_BYTES_U64);
        if let Some(held) = &mut self.held {
            for (start, count) in used.iter() {
                held.add(start, count);
            }
        }
    }

    /// Pages of the tree and of segments, of a volume of `limit` pages: all that are neither free nor will be, nor the record's own.
    pub(crate) fn used(&self, limit: u64) -> Ranges {
        let first = RESERVED_BYTES / PAGE_BYTES_U64;
        let mut used = Ranges::default();
        used.insert(first, limit.saturating_sub(first));
        let own = self.chain.iter().map(|pointer| (pointer.page, 1));
        for (start, count) in self.unused().into_iter().chain(own) {
            used.remove(start, count);
        }
        used
    }

    /// Whether snapshots are known to have anything of a segment.
    pub(crate) fn is_held(&self, segment: u64) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.overlaps(segment, self.segment_pages))
    }

    /// Pages that wait for the end of snapshots, the oldest of which is `floor`; where it is not known what they have, all that
    /// were freed since.
    pub(crate) fn held_pages(&self, floor: ReaderFloor) -> u64 {
        let Some(oldest) = floor.0 else { return 0 };
        let since = self.freed.range(oldest..);
        since
            .map(|(generation, ranges)| match &self.held {
                Some(held) if *generation > self.sifted => ranges.common(held).pages(),
                _ => ranges.pages(),
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Parameters;

    const VOLUME_BYTES: u64 = 1 << 20;

    fn space() -> Space {
        let parameters = Parameters {
            segment_bytes: 64 << 10,
            ..Parameters::default()
        };
        Space::fresh(VOLUME_BYTES, &parameters)
    }

    fn freed(space: &mut Space, generation: u64, page: u64) {
        space.freed.entry(generation).or_default().insert(page, 1);
    }

    #[test]
    fn what_no_snapshot_has_becomes_free_beside_one() {
        let mut space = space();
        let [old, new, late] = [(); 3].map(|()| space.take_page().unwrap());
        let held = ReaderFloor(Some(3));
        let none = ReaderFloor(None);
        freed(&mut space, 5, old);
        freed(&mut space, 5, new);
        freed(&mut space, 6, late);
        let before = space.free_pages();
        space.release(6, none, held).unwrap();
        assert_eq!(space.free_pages(), before, "it is not known what is held");
        assert_eq!(space.held_pages(held), 3);
        let mut pages = Ranges::default();
        pages.insert(old, 1);
        space.hold(pages);
        assert_eq!(space.held_pages(held), 1);
        space.release(6, ReaderFloor(Some(5)), held).unwrap();
        assert_eq!(space.free_pages(), before, "a reader needs it");
        space.release(6, none, held).unwrap();
        assert_eq!(
            space.free_pages(),
            before + 1,
            "what 6 freed waits for another commit"
        );
        space.release(7, none, held).unwrap();
        assert_eq!((space.free_pages(), space.waiting_pages()), (before + 2, 1));
        space.release(7, none, ReaderFloor(Some(5))).unwrap();
        assert_eq!(space.waiting_pages(), 1, "5 is held by a snapshot of 5, too");
        space.release(7, none, ReaderFloor(Some(6))).unwrap();
        assert_eq!((space.free_pages(), space.waiting_pages()), (before + 3, 0));
    }

    #[test]
    fn a_smaller_set_gives_back_what_a_larger_one_kept() {
        let mut space = space();
        let [one, other] = [(); 2].map(|()| space.take_page().unwrap());
        freed(&mut space, 5, one);
        freed(&mut space, 5, other);
        let (none, held) = (ReaderFloor(None), ReaderFloor(Some(3)));
        let before = space.free_pages();
        let mut pages = Ranges::default();
        pages.insert(one, 1);
        let smaller = pages.clone();
        pages.insert(other, 1);
        space.hold(pages);
        space.release(9, none, held).unwrap();
        assert_eq!(space.free_pages(), before);
        space.hold(smaller);
        space.release(9, none, held).unwrap();
        assert_eq!(space.free_pages(), before + 1);
    }

    #[test]
    fn a_new_snapshot_has_what_is_used_and_its_segments_stay() {
        let mut space = space();
        let [page, gone] = [(); 2].map(|()| space.take_page().unwrap());
        let segments = [(); 2].map(|()| {
            let start = space.take_segment(0).unwrap();
            space.add_live(start, 100);
            space.set_filled(start, 16);
            start
        });
        freed(&mut space, 2, gone);
        space.hold(Ranges::default());
        let none = std::collections::BTreeMap::new();
        let victims = |space: &Space| space.victims(None, u64::MAX, &none, |_| false).len();
        assert_eq!(victims(&space), 2);
        space.hold_what_is_used(VOLUME_BYTES);
        let later = space.take_segment(0).unwrap();
        space.add_live(later, 100);
        space.set_filled(later, 16);
        assert_eq!(victims(&space), 1);
        assert_eq!(space.gainable_bytes(), 16 * 4096 - 100);
        let held = space.held.as_ref().unwrap();
        assert!(held.overlaps(page, 1) && !held.overlaps(gone, 1));
        assert!(segments.iter().all(|&start| space.is_held(start)) && !space.is_held(later));
    }
}
