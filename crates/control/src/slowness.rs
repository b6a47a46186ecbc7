//! Which disks are slow: those that take much longer than their peers, for long enough. Pure: time comes in as instants.

use std::collections::BTreeMap;
use std::time::Duration;

use foundation::Instant;

/// A disk is slow from so many times its peers' median on ...
const SLOW_TIMES: u32 = 4;
/// ... and well again below so many times.
const WELL_TIMES: u32 = 2;
/// Nothing that takes less is slow, however fast its peers are.
const SLOW_FROM: Duration = Duration::from_millis(2);
/// For how long it must be so.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// For how long it must be well before it counts as well.
const WELL_AFTER: Duration = Duration::from_secs(20);
/// What was heard longer ago is not the beginning of what is heard now.
const GAP: Duration = Duration::from_secs(30);
/// Fewer peers say nothing about what is usual.
const PEERS_MIN: usize = 2;

/// What is known of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowness {
    is_slow: bool,
    /// Since when it looks otherwise than it counts.
    otherwise: Option<Instant>,
    /// When something was heard of it last.
    noted: Option<Instant>,
}

impl Slowness {
    /// Whether it counts as slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Takes in how long the disk takes, and its peers' median, which is asked for where it matters; true if it counts otherwise from now on.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        latency: Duration,
        median: impl FnOnce() -> Option<Duration>,
    ) -> bool {
        let before = self.noted.replace(now);
        self.otherwise
            .take_if(|_| before.is_some_and(|before| now.since(before) > GAP));
        if !self.is_slow && latency < SLOW_FROM {
            self.otherwise = None;
            return false;
        }
        let Some(median) = median() else {
            self.otherwise = None;
            return false;
        };
        let looks_slow = match self.is_slow {
            false => latency >= SLOW_FROM && latency >= median * SLOW_TIMES,
            true => latency >= SLOW_FROM / 2 && latency >= median * WELL_TIMES,
        };
        if looks_slow == self.is_slow {
            self.otherwise = None;
            return false;
        }
        let since = *self.otherwise.get_or_insert(now);
        let long = if looks_slow { SLOW_AFTER } else { WELL_AFTER };
        if now.since(since) < long {
            return false;
        }
        self.is_slow = looks_slow;
        self.otherwise = None;
        true
    }
}

/// How long each of many disks takes, to be asked of each what is usual among the others.
#[derive(Debug)]
pub(crate) struct Peers<K> {
    latencies: BTreeMap<K, Duration>,
    sorted: Vec<Duration>,
}

impl<K: Ord> Peers<K> {
    pub(crate) fn new(latencies: impl Iterator<Item = (K, Duration)>) -> Self {
        let latencies: BTreeMap<K, Duration> = latencies.collect();
        let mut sorted: Vec<Duration> = latencies.values().copied().collect();
        sorted.sort_unstable();
        Self { latencies, sorted }
    }

    /// The median of all but this one; none if they are too few.
    pub(crate) fn median_without(&self, own: &K) -> Option<Duration> {
        let own = self.latencies.get(own);
        // Of those that take as long as this one, any may stand for it.
        let own = own.map(|own| self.sorted.partition_point(|latency| latency < own));
        let others = self.sorted.len() - usize::from(own.is_some());
        if others < PEERS_MIN {
            return None;
        }
        let middle = others / 2;
        let is_behind = own.is_some_and(|own| own <= middle);
        self.sorted.get(middle + usize::from(is_behind)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000 + 1)
    }

    /// Of others that take so many microseconds.
    fn median(others: &[u64]) -> Option<Duration> {
        let others = others.iter().map(|us| Duration::from_micros(*us));
        Peers::new((0..).zip(others)).median_without(&u64::MAX)
    }

    fn peers() -> Option<Duration> {
        median(&[300, 100, 200, 90])
    }

    /// At which seconds it changes, with a latency for each second.
    fn changes(latency_us: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut slowness = Slowness::default();
        let changes =
            |second: &u64| slowness.note(at(*second), Duration::from_micros(latency_us(*second)), peers);
        (0..200).filter(changes).collect()
    }

    #[test]
    fn a_disk_is_slow_when_it_is_so_for_long_enough_and_well_when_it_is_that_for_longer() {
        assert_eq!(changes(|_| 400), []);
        let ill = |second| match second {
            20..100 => 9000,
            _ => 150,
        };
        assert_eq!(changes(ill), [30, 120]);
    }

    #[test]
    fn outliers_and_what_lies_between_the_bounds_change_nothing() {
        assert_eq!(changes(|second| if second % 7 == 0 { 150 } else { 9000 }), []);
        // Slow at first; 1,100 us is above twice the median of 200 us, and stays slow.
        let lingering = |second| if second < 40 { 9000 } else { 1100 };
        assert_eq!(changes(lingering), [10]);
        // Four times the median, but nothing that anybody would notice.
        assert_eq!(changes(|_| 1500), []);
    }

    #[test]
    fn nobody_is_slow_among_too_few_or_among_equals() {
        let mut slowness = Slowness::default();
        for second in 0..100 {
            let latency = Duration::from_millis(50);
            assert!(!slowness.note(at(second), latency, || median(&[80])));
            assert!(!slowness.note(at(second), latency, || median(&[50_000; 3])));
        }
        assert!(!slowness.is_slow());
    }

    #[test]
    fn the_median_of_the_others_is_that_of_a_list_without_it() {
        let all = [300, 100, 200, 90, 200, 200, 7];
        for count in 0..=all.len() {
            let all = &all[..count];
            let latencies = all.iter().map(|us| Duration::from_micros(*us));
            let peers = Peers::new(latencies.enumerate());
            for own in 0..count {
                let mut others = all.to_vec();
                others.remove(own);
                others.sort_unstable();
                let expected = others.get(others.len() / 2).filter(|_| others.len() >= PEERS_MIN);
                let expected = expected.map(|us| Duration::from_micros(*us));
                assert_eq!(peers.median_without(&own), expected, "of {all:?} without {own}");
            }
        }
    }
}
