//! Which data segments are worth emptying: pure policy.

use std::collections::{BTreeMap, BTreeSet};

use super::Space;
use crate::format::PAGE_BYTES_U64;

/// Segments that one pass empties at most: bounds its memory.
const VICTIMS_MAX: usize = 16 << 10;

impl Space {
    /// Bytes in the written parts of segments that no file uses, where others are in use.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let dead = |filled: u64, live: u64| (filled * PAGE_BYTES_U64).saturating_sub(live);
        // One without anything live comes back by itself.
        let kept = self.segments.values().filter(|s| s.live_bytes > 0);
        kept.map(|s| dead(s.filled, s.live_bytes)).sum()
    }

    /// Those of them that emptying segments would give back: not where snapshots by name have something in the segment.
    pub(crate) fn gainable_bytes(&self) -> u64 {
        let dead = |filled: u64, live: u64| (filled * PAGE_BYTES_U64).saturating_sub(live);
        let kept = self.segments.iter().filter(|(_, s)| s.live_bytes > 0);
        let kept = kept.filter(|(start, _)| !self.is_held(**start));
        kept.map(|(_, s)| dead(s.filled, s.live_bytes)).sum()
    }

    /// The segments whose emptying gives most for what it costs: the least live first, none that is more than three
    /// quarters live, and no more than `budget_bytes` of live data in all. Left out are the one that is being written,
    /// those that a pass could not empty and that have not changed since (`stuck`: what was live in them), those in which snapshots by
    /// name have something, and those that `kept` says.
    pub(crate) fn victims(
        &self,
        open: Option<u64>,
        budget_bytes: u64,
        stuck: &BTreeMap<u64, u64>,
        kept: impl Fn(u64) -> bool,
    ) -> BTreeSet<u64> {
        let worth = self.segment_pages * PAGE_BYTES_U64 / 4 * 3;
        let mut found: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|(start, segment)| {
                (1..=worth).contains(&segment.live_bytes)
                    && Some(**start) != open
                    && stuck.get(start) != Some(&segment.live_bytes)
                    && !kept(**start)
                    && !self.is_held(**start)
            })
            .map(|(&start, segment)| (segment.live_bytes, start))
            .collect();
        found.sort_unstable();
        let mut sum = 0;
        let fits = |(live, _): &(u64, u64)| {
            sum += live;
            sum <= budget_bytes
        };
        let chosen = found.into_iter().take_while(fits).take(VICTIMS_MAX);
        chosen.map(|(_, start)| start).collect()
    }

    /// Bytes that files use in a segment.
    pub(crate) fn live_bytes(&self, segment: u64) -> u64 {
        self.segments
            .get(&segment)
            .map_or(0, |segment| segment.live_bytes)
    }

    /// The segment that a byte address lies in, whether it is one or not.
    pub(crate) fn segment_of(&self, address: u64) -> u64 {
        address / PAGE_BYTES_U64 / self.segment_pages * self.segment_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Parameters;

    #[test]
    fn the_least_live_go_first_and_fit_into_the_budget() {
        let parameters = Parameters {
            segment_bytes: 64 << 10,
            ..Parameters::default()
        };
        let mut space = Space::fresh(4 << 20, &parameters);
        let live = [60_000, 10_000, 30_000, 0, 20_000, 5_000];
        let taken: Vec<u64> = live
            .iter()
            .map(|&live| {
                let start = space.take_segment(0).unwrap();
                space.add_live(start, live);
                space.set_filled(start, 16);
                start
            })
            .collect();
        let chosen = |budget, stuck: &BTreeMap<u64, u64>| -> Vec<u64> {
            let victims = space.victims(Some(taken[5]), budget, stuck, |start| {
                start == taken[4] && budget == 35_001
            });
            victims
                .into_iter()
                .map(|start| live[taken.iter().position(|t| *t == start).unwrap()])
                .collect()
        };
        let none = BTreeMap::new();
        assert_eq!(chosen(35_000, &none), [10_000, 20_000]);
        assert_eq!(chosen(35_001, &none), [10_000], "the third is kept");
        assert_eq!(chosen(u64::MAX, &none), [10_000, 30_000, 20_000]);
        assert_eq!(
            chosen(u64::MAX, &BTreeMap::from([(taken[1], 10_000)])),
            [30_000, 20_000]
        );
        assert_eq!(chosen(u64::MAX, &BTreeMap::from([(taken[1], 9_000)])).len(), 3);
        assert_eq!(space.dead_bytes(), 5 * 65_536 - 125_000);
    }
}
