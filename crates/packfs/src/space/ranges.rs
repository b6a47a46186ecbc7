//! A set of page numbers, kept as ranges.

use std::collections::BTreeMap;

/// See the module. Neighbouring ranges are always joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    by_start: BTreeMap<u64, u64>,
    pages: u64,
}

impl Ranges {
    /// Number of pages in the set.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// The ranges, ascending: start and count.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(&start, &count)| (start, count))
    }

    /// Whether any page of a range is in the set.
    pub(crate) fn overlaps(&self, start: u64, count: u64) -> bool {
        self.by_start
            .range(..start + count)
            .next_back()
            .is_some_and(|(&s, &n)| s + n > start)
    }

    /// Whether every page of a range is in the set.
    pub(crate) fn holds(&self, start: u64, count: u64) -> bool {
        let before = self.by_start.range(..=start).next_back();
        before.is_some_and(|(&s, &n)| s + n >= start + count)
    }

    /// Adds a range, of which nothing may be in the set; otherwise changes nothing and says `false`.
    pub(crate) fn insert(&mut self, start: u64, count: u64) -> bool {
        if count == 0 || self.overlaps(start, count) {
            return count == 0;
        }
        self.pages += count;
        let (mut start, mut count) = (start, count);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.by_start.remove(&before);
            (start, count) = (before, length + count);
        }
        if let Some(length) = self.by_start.remove(&(start + count)) {
            count += length;
        }
        self.by_start.insert(start, count);
        true
    }

    /// Takes whatever part of a range is in the set; gives the number of pages taken.
    pub(crate) fn remove(&mut self, start: u64, count: u64) -> u64 {
        let end = start + count;
        let mut taken = 0;
        while let Some((&s, &n)) = self.by_start.range(..end).next_back() {
            if s + n <= start {
                break;
            }
            self.by_start.remove(&s);
            let (from, to) = (s.max(start), (s + n).min(end));
            if s < from {
                self.by_start.insert(s, from - s);
            }
            if to < s + n {
                self.by_start.insert(to, s + n - to);
            }
            taken += to - from;
        }
        self.pages -= taken;
        taken
    }

    /// Adds a range, of which some may be in the set.
    pub(crate) fn add(&mut self, start: u64, count: u64) {
        if !self.holds(start, count) {
            self.remove(start, count);
            self.insert(start, count);
        }
    }

    /// What is in both sets. Takes a look-up for each range of this one, and a step for each range that is found.
    pub(crate) fn common(&self, other: &Self) -> Self {
        let mut common = Self::default();
        for (start, count) in self.iter() {
            let end = start + count;
            // The last range that begins before this one may reach into it.
            let first = other.by_start.range(..=start).next_back();
            let first = first.map_or(start, |(&first, _)| first);
            for (&from, &length) in other.by_start.range(first..end) {
                let (from, to) = (from.max(start), (from + length).min(end));
                if from < to {
                    common.insert(from, to - from);
                }
            }
        }
        common
    }

    /// Takes the highest page.
    pub(crate) fn take_highest(&mut self) -> Option<u64> {
        let (&start, &count) = self.by_start.last_key_value()?;
        let page = start + count - 1;
        self.remove(page, 1);
        Some(page)
    }

    /// How often [`Ranges::take_aligned`] would find `count` pages once the highest pages are taken, so many of them.
    pub(crate) fn aligned_below(&self, highest: u64, count: u64) -> u64 {
        let (mut left, mut runs) = (highest, 0);
        for (start, length) in self.iter().rev() {
            let taken = left.min(length);
            left -= taken;
            let end = start + length - taken;
            runs += end.saturating_sub(start.next_multiple_of(count)) / count;
        }
        runs
    }

    /// Takes the lowest run of `count` pages that starts at a multiple of `count`.
    pub(crate) fn take_aligned(&mut self, count: u64) -> Option<u64> {
        let start = self.iter().find_map(|(start, length)| {
            let aligned = start.next_multiple_of(count);
            (aligned + count <= start + length).then_some(aligned)
        })?;
        self.remove(start, count);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(steps in proptest::collection::vec((any::<bool>(), 0..40u64, 1..8u64), 0..60)) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (insert, start, count) in steps {
                let touched: Vec<u64> = (start..start + count).filter(|page| model.contains(page)).collect();
                prop_assert_eq!(ranges.overlaps(start, count), !touched.is_empty());
                prop_assert_eq!(ranges.holds(start, count), touched.len() as u64 == count);
                if insert {
                    prop_assert_eq!(ranges.insert(start, count), touched.is_empty());
                    if touched.is_empty() {
                        model.extend(start..start + count);
                    }
                } else {
                    prop_assert_eq!(ranges.remove(start, count), touched.len() as u64);
                    for page in touched {
                        model.remove(&page);
                    }
                }
                let listed: Vec<u64> = ranges.iter().flat_map(|(start, count)| start..start + count).collect();
                prop_assert_eq!(&listed, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.pages(), model.len() as u64);
                let joined = ranges.iter().zip(ranges.iter().skip(1)).all(|((s, n), (t, _))| s + n < t);
                prop_assert!(joined);
            }
        }
    }

    proptest! {
        #[test]
        fn common_pages_are_those_of_both(
            one in proptest::collection::vec((0..60u64, 1..9u64), 0..12),
            other in proptest::collection::vec((0..60u64, 1..9u64), 0..12),
        ) {
            let made = |parts: &[(u64, u64)]| {
                let mut ranges = Ranges::default();
                parts.iter().for_each(|&(start, count)| ranges.add(start, count));
                let pages: BTreeSet<u64> = parts.iter().flat_map(|&(start, count)| start..start + count).collect();
                (ranges, pages)
            };
            let ((one, of_one), (other, of_other)) = (made(&one), made(&other));
            let common = one.common(&other);
            let listed: Vec<u64> = common.iter().flat_map(|(start, count)| start..start + count).collect();
            prop_assert_eq!(&listed, &of_one.intersection(&of_other).copied().collect::<Vec<_>>());
            prop_assert_eq!(common.pages(), listed.len() as u64);
            prop_assert_eq!(one.pages(), of_one.len() as u64);
        }
    }

    #[test]
    fn ends_are_taken() {
        let mut ranges = Ranges::default();
        ranges.insert(3, 20);
        assert_eq!(ranges.take_highest(), Some(22));
        let found = [(0, 4), (1, 4), (0, 8), (6, 8), (7, 8), (0, 16), (99, 4)];
        let found = found.map(|(highest, count)| ranges.aligned_below(highest, count));
        assert_eq!(found, [4, 4, 1, 1, 0, 0, 0]);
        assert_eq!(ranges.take_aligned(8), Some(8));
        assert_eq!(ranges.take_aligned(8), None);
        assert_eq!(ranges.take_aligned(4), Some(4));
    }
}
