//! Bookkeeping made anew from what uses space, for a repair.

use std::collections::BTreeMap;

use super::{Ranges, Segment, Space};
use crate::format::superblock::Parameters;
use crate::format::{PAGE_BYTES_U64, RESERVED_BYTES};

/// What uses space. Ranges count pages.
pub(crate) struct Recount<'a> {
    /// As recorded, if that can be read: says what is free beyond doubt, and how far segments are written.
    pub(crate) recorded: Option<&'a Space>,
    /// Pages of the tree that stay until the tree replaces them.
    pub(crate) tree_pages: &'a Ranges,
    /// Pages that something else still has and that the next commit gives back: they must not be used before.
    pub(crate) needed: &'a Ranges,
    /// Live bytes, and pages that must be taken for written, by a segment's first page.
    pub(crate) segments: &'a BTreeMap<u64, (u64, u64)>,
    /// Pages of the volume.
    pub(crate) limit: u64,
}

/// The parts of a range of which nothing is in a set: what two commits freed counts once.
fn parts_outside(set: &Ranges, start: u64, count: u64) -> Vec<(u64, u64)> {
    if !set.overlaps(start, count) {
        return vec![(start, count)];
    }
    let mut rest = Ranges::default();
    rest.insert(start, count);
    for (start, count) in set.iter() {
        rest.remove(start, count);
    }
    rest.iter().collect()
}

impl Space {
    /// Space as it is used: whatever neither the tree nor a segment has and is not free beyond doubt is given back by the
    /// next commit, the record's own pages included.
    pub(crate) fn recounted(parameters: &Parameters, recount: &Recount<'_>) -> Self {
        let mut space = Self::empty(parameters);
        let first = RESERVED_BYTES / PAGE_BYTES_U64;
        let mut rest = Ranges::default();
        rest.insert(first, recount.limit.saturating_sub(first));
        space.free = match recount.recorded {
            Some(recorded) => recorded.free.clone(),
            None => rest.clone(),
        };
        for (start, count) in recount.needed.iter() {
            space.free.remove(start, count);
        }
        let mut waiting = Ranges::default();
        let recorded = recount.recorded.into_iter().flat_map(|recorded| &recorded.freed);
        for (&generation, ranges) in recorded {
            for (start, count) in ranges.iter() {
                for (start, count) in parts_outside(&waiting, start, count) {
                    // What is free besides waits nevertheless.
                    space.free.remove(start, count);
                    let fresh = waiting.insert(start, count);
                    assert!(fresh, "the parts lie outside of what waits");
                    space.freed.entry(generation).or_default().insert(start, count);
                }
            }
        }
        let pages = space.segment_pages;
        for (&start, &(live_bytes, written)) in recount.segments {
            let recorded = recount.recorded.and_then(|space| space.segments.get(&start));
            // Nothing is added to a segment of which it is not known how far it is written.
            let filled = recorded
                .map(|segment| segment.filled)
                .filter(|filled| *filled >= written);
            let segment = Segment {
                live_bytes,
                filled: filled.unwrap_or(pages),
            };
            space.segments.insert(start, segment);
        }
        let used = recount.segments.keys().map(|&start| (start, pages));
        for (start, count) in used.chain(recount.tree_pages.iter()) {
            space.free.remove(start, count);
            for ranges in space.freed.values_mut() {
                ranges.remove(start, count);
            }
            rest.remove(start, count);
        }
        space.freed.retain(|_, ranges| ranges.pages() > 0);
        for (start, count) in space.unused() {
            rest.remove(start, count);
        }
        space.freed_now = rest;
        space
    }

    /// Whether a recount came to what was recorded: only the record's own pages would be given back.
    pub(crate) fn agrees_with(&self, recorded: &Space) -> bool {
        let own = recorded
            .chain
            .iter()
            .all(|pointer| self.freed_now.overlaps(pointer.page, 1));
        own && self.freed_now.pages() == recorded.chain.len() as u64
            && self.free == recorded.free
            && self.freed == recorded.freed
            && self.segments == recorded.segments
    }

    /// Pages that are neither free nor waiting, nor in a segment, nor the record's own: the tree's, if all is right.
    pub(crate) fn in_use_outside_segments(&self, limit: u64) -> Ranges {
        let first = RESERVED_BYTES / PAGE_BYTES_U64;
        let mut rest = Ranges::default();
        rest.insert(first, limit.saturating_sub(first));
        let segments = self.segments.keys().map(|&start| (start, self.segment_pages));
        let own = self.chain.iter().map(|pointer| (pointer.page, 1));
        for (start, count) in self.unused().into_iter().chain(segments).chain(own) {
            rest.remove(start, count);
        }
        rest
    }
}
