//! How long what the masters have begun will still take: by what was finished of it in the last minutes. Pure: time comes in as
//! instants.
//!
//! The first copy that is finished only starts the clock, since nobody knows when it was begun; so there is no time left to be shown
//! before the second. What counts are promised bytes, as in what is left. Kept in memory: a new master begins anew.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foundation::{ByteCount, Instant};

use crate::identity::{NodeId, VolumeNumber};

/// What was finished before says nothing of now. Work of which nothing is finished for so long counts as ended.
const WINDOW: Duration = Duration::from_secs(600);
/// What is finished within so much time is kept as one number, so that no work has more than [`SLICES_MAX`] of them.
const SLICE: Duration = Duration::from_secs(15);
const SLICES_MAX: usize = (WINDOW.as_secs() / SLICE.as_secs()) as usize + 1;
/// A shorter time says nothing about the next.
const SPAN_MIN: Duration = Duration::from_secs(5);
/// Work of which nothing is finished for so many times as long as usual stands still, and who knows for how long ...
const STANDS_AFTER_TIMES: u32 = 4;
/// ... but not before this: some copies take longer than others.
const STANDS_AFTER_MIN: Duration = Duration::from_secs(60);

/// What copies are moved or made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// To free a node, or disks of it.
    Drain(NodeId),
    /// To use all nodes alike.
    Balance,
    /// To give a volume the copies in sync that it lacks.
    Mend(VolumeNumber),
}

/// How fast each work goes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    runs: BTreeMap<Work, Run>,
}

#[derive(Debug)]
struct Run {
    /// When the first copy was finished.
    since: Instant,
    last: Instant,
    /// What was finished after that.
    slices: VecDeque<Slice>,
}

/// What was finished in a short time.
#[derive(Clone, Copy, Debug)]
struct Slice {
    begun: Instant,
    copies: u32,
    bytes: u64,
}

impl Run {
    fn finished(&mut self, bytes: u64, now: Instant) {
        self.last = now;
        // At once with the first: it was under way as long, and says as little.
        if now == self.since {
            return;
        }
        let last = self.slices.back_mut();
        match last.filter(|slice| now.since(slice.begun) < SLICE) {
            Some(slice) => {
                slice.copies = slice.copies.saturating_add(1);
                slice.bytes = slice.bytes.saturating_add(bytes);
            }
            None => self.slices.push_back(Slice {
                begun: now,
                copies: 1,
                bytes,
            }),
        }
        let is_old = |slice: &Slice| now.since(slice.begun) >= WINDOW;
        while self.slices.front().is_some_and(is_old) || self.slices.len() > SLICES_MAX {
            self.slices.pop_front();
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.since(self.last) >= WINDOW
    }
}

impl Pace {
    /// A copy is where it should be.
    pub(crate) fn finished(&mut self, work: Work, bytes: ByteCount, now: Instant) {
        self.runs.retain(|_, run| !run.is_over(now));
        let run = self.runs.entry(work).or_insert_with(|| Run {
            since: now,
            last: now,
            slices: VecDeque::new(),
        });
        run.finished(bytes.0, now);
    }

    /// Nothing of it is left, or it was given up: when it is begun again, so is the clock.
    pub(crate) fn ended(&mut self, work: Work) {
        self.runs.remove(&work);
    }

    /// How long so many bytes will still take; none when nothing is left, before anything can be said, or when it stands still.
    pub(crate) fn time_left(&self, work: Work, left: ByteCount, now: Instant) -> Option<Duration> {
        let run = self.runs.get(&work).filter(|_| left.0 > 0)?;
        let recent = |slice: &&Slice| now.since(slice.begun) < WINDOW;
        let recent = || run.slices.iter().filter(recent);
        let copies: u32 = recent().map(|slice| slice.copies).sum();
        let done: u128 = recent().map(|slice| u128::from(slice.bytes)).sum();
        let span = now.since(run.since).min(WINDOW);
        if done == 0 || span < SPAN_MIN {
            return None;
        }
        let usual = span / copies.max(1);
        let stands_after = (usual * STANDS_AFTER_TIMES).max(STANDS_AFTER_MIN);
        if now.since(run.last) > stands_after {
            return None;
        }
        let nanoseconds = u128::from(left.0) * span.as_nanos() / done;
        Some(Duration::from_nanos(
            u64::try_from(nanoseconds).unwrap_or(u64::MAX),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work::Balance;
    const COPY: ByteCount = ByteCount(256 << 20);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000 + 1)
    }

    fn left(pace: &Pace, copies: u64, second: u64) -> Option<u64> {
        let left = pace.time_left(WORK, ByteCount(copies * COPY.0), at(second));
        left.map(|left| left.as_secs())
    }

    #[test]
    fn nothing_is_said_before_a_second_copy_and_some_seconds() {
        let mut pace = Pace::default();
        assert_eq!(left(&pace, 9, 10), None);
        // Two at once, which were begun nobody knows when.
        pace.finished(WORK, COPY, at(10));
        pace.finished(WORK, COPY, at(10));
        assert_eq!(left(&pace, 9, 12), None);
        pace.finished(WORK, COPY, at(14));
        assert_eq!(left(&pace, 9, 14), None, "4 s");
        assert_eq!(left(&pace, 9, 15), Some(45));
        assert_eq!(left(&pace, 0, 15), None, "nothing is left");
        let other = pace.time_left(Work::Mend(VolumeNumber(1)), COPY, at(15));
        assert_eq!(other, None, "each work has its own");
    }

    #[test]
    fn a_steady_pace_is_told_and_a_change_is_followed_within_the_window() {
        let mut pace = Pace::default();
        for second in (0..=1200).step_by(10) {
            pace.finished(WORK, COPY, at(second));
        }
        let slices = pace.runs[&WORK].slices.len();
        assert!(slices <= SLICES_MAX, "{slices}");
        let told = left(&pace, 60, 1200).unwrap();
        assert!((570..=630).contains(&told), "10 s a copy: {told}");
        // From now on three times as slow.
        for second in (1230..=1830).step_by(30) {
            pace.finished(WORK, COPY, at(second));
        }
        let told = left(&pace, 20, 1830).unwrap();
        assert!((570..=630).contains(&told), "30 s a copy: {told}");
        // While nothing is finished it becomes longer, and soon nothing is said.
        assert!(left(&pace, 20, 1830 + 100).unwrap() > told);
        assert_eq!(left(&pace, 20, 1830 + 250), None, "it stands still");
    }

    #[test]
    fn what_is_begun_anew_does_not_count_the_time_between() {
        let mut pace = Pace::default();
        for second in [0, 10, 20] {
            pace.finished(WORK, COPY, at(second));
        }
        pace.ended(WORK);
        for second in [500, 510] {
            pace.finished(WORK, COPY, at(second));
        }
        assert_eq!(left(&pace, 3, 510), Some(30));
        // Nor where nobody has said that it ended.
        for second in [2000, 2010] {
            pace.finished(WORK, COPY, at(second));
        }
        assert_eq!(left(&pace, 3, 2010), Some(30));
        pace.finished(Work::Drain(NodeId::default()), COPY, at(9000));
        assert_eq!(pace.runs.len(), 1, "what is over is forgotten");
    }

    #[test]
    fn more_than_can_be_counted_is_no_panic() {
        let mut pace = Pace::default();
        pace.finished(WORK, ByteCount(1), at(0));
        pace.finished(WORK, ByteCount(1), at(10));
        let left = pace.time_left(WORK, ByteCount(u64::MAX), at(10));
        assert_eq!(left, Some(Duration::from_nanos(u64::MAX)));
    }
}
