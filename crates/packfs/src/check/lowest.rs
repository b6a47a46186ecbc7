//! The lowest rows of a stream, in a bounded number of rows: a check that cannot have all rows at once goes through the
//! stream again, and has the next ones then. Pure.

/// Something that is said about a place in an order: of an inode's number, or of a byte of the volume.
pub(super) trait Row: Copy + Ord {
    /// Where it belongs. Rows of one place are looked at together.
    fn place(&self) -> u64;

    /// Makes fewer rows of sorted ones that say the same.
    fn join(rows: &mut Vec<Self>);
}

/// Rows that there is room for at first; more is taken as it is needed.
const FIRST_ROWS: usize = 4096;

/// Rows from a place on, up to a place that depends on how many there are.
#[derive(Debug)]
pub(super) struct Lowest<R> {
    rows: Vec<R>,
    /// So many are sorted out before more are taken.
    limit: usize,
    rows_max: usize,
    /// Places are parted from each other at multiples of this only.
    step: u64,
    from: u64,
    /// The first place that does not belong to this round any more; `None` as long as all do.
    bound: Option<u64>,
    /// There are no more rounds.
    ended: bool,
}

impl<R: Row> Lowest<R> {
    /// Takes at most `memory_bytes` for rows, or as much more as those of one step have.
    pub(super) fn new(memory_bytes: u64, step: u64) -> Self {
        assert!(step > 0, "places are parted at multiples of 1 or more");
        let rows_max = usize::try_from(memory_bytes).unwrap_or(usize::MAX) / size_of::<R>();
        let rows_max = rows_max.max(8);
        Self {
            rows: Vec::new(),
            limit: FIRST_ROWS.min(rows_max),
            rows_max,
            step,
            from: 0,
            bound: None,
            ended: false,
        }
    }

    /// Takes a row, if it belongs to this round.
    pub(super) fn push(&mut self, row: R) {
        let place = row.place();
        if self.ended || place < self.from || self.bound.is_some_and(|bound| place >= bound) {
            return;
        }
        if self.rows.len() >= self.limit {
            self.make_room();
            if self.bound.is_some_and(|bound| place >= bound) {
                return;
            }
        }
        self.rows.push(row);
    }

    /// Joins rows; where that does not give room, takes more, and where it may not, leaves the highest to another round.
    fn make_room(&mut self) {
        self.sort();
        if self.rows.len() > self.limit / 4 * 3 {
            if self.limit < self.rows_max {
                self.limit = self.limit.saturating_mul(2).min(self.rows_max);
            } else {
                self.cut();
            }
        }
        self.rows.reserve_exact(self.limit - self.rows.len());
    }

    fn cut(&mut self) {
        let first = self.rows[0].place() / self.step;
        let wanted = self.rows[self.rows_max / 2].place() / self.step;
        // At least the rows of one step stay, however many they are; behind the last step there is nothing to leave out.
        let after_first = first.checked_add(1).and_then(|step| step.checked_mul(self.step));
        if let Some(after_first) = after_first {
            let bound = after_first.max(wanted * self.step);
            self.rows
                .truncate(self.rows.partition_point(|row| row.place() < bound));
            self.bound = Some(bound);
        }
        self.limit = self.rows_max.max(self.rows.len().saturating_mul(2));
    }

    fn sort(&mut self) {
        self.rows.sort_unstable();
        R::join(&mut self.rows);
    }

    /// The rows of this round, sorted and joined.
    pub(super) fn rows(&mut self) -> &[R] {
        self.sort();
        &self.rows
    }

    /// Whether there are no more rounds.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Which places this round is about; the second is the first that is not, `None` if there are no more.
    pub(super) fn places(&self) -> (u64, Option<u64>) {
        (self.from, self.bound)
    }

    /// Goes on to the next places, of which rows have to come again; `false` if there are none.
    pub(super) fn next_round(&mut self) -> bool {
        self.rows.clear();
        let Some(bound) = self.bound.take() else {
            self.ended = true;
            self.rows = Vec::new();
            return false;
        };
        self.from = bound;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Counted {
        place: u64,
        count: u64,
    }

    impl Row for Counted {
        fn place(&self) -> u64 {
            self.place
        }

        fn join(rows: &mut Vec<Self>) {
            rows.dedup_by(|row, kept| {
                let same = row.place == kept.place;
                if same {
                    kept.count += row.count;
                }
                same
            });
        }
    }

    proptest! {
        /// Whatever there is room for, each place comes once, with all that was said about it, in ascending order.
        #[test]
        fn rounds_come_to_the_whole(
            places in proptest::collection::vec(0..200u64, 0..400), memory in 0..4000u64, step in 1..20u64
        ) {
            let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
            for place in &places {
                *expected.entry(*place).or_default() += 1;
            }
            let mut lowest = Lowest::new(memory, step);
            let mut found: Vec<(u64, u64)> = Vec::new();
            loop {
                for &place in &places {
                    lowest.push(Counted { place, count: 1 });
                }
                let (from, bound) = lowest.places();
                prop_assert!(from % step == 0 && bound.is_none_or(|bound| bound % step == 0 && bound > from));
                for row in lowest.rows() {
                    prop_assert!(row.place >= from && bound.is_none_or(|bound| row.place < bound));
                    found.push((row.place, row.count));
                }
                if !lowest.next_round() {
                    break;
                }
            }
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_more_rows_are_kept_than_there_is_room_for() {
        let mut lowest = Lowest::new(64 * 16, 1);
        let mut rounds = 1;
        loop {
            for place in (0..10_000).rev() {
                lowest.push(Counted { place, count: 1 });
                assert!(lowest.rows.capacity() <= 64);
            }
            if !lowest.next_round() {
                break;
            }
            rounds += 1;
        }
        assert!((10_000 / 64..=10_000 / 32 + 1).contains(&rounds), "{rounds}");
    }
}
