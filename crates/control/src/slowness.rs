//! Which disks are slow: those that take much longer than their peers, for long enough. Pure: time comes in as instants.

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
/// Fewer peers say nothing about what is usual.
const PEERS_MIN: usize = 2;

/// What is known of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowness {
    is_slow: bool,
    /// Since when it looks otherwise than it counts.
    otherwise: Option<Instant>,
}

impl Slowness {
    /// Whether it counts as slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Takes in how long the disk takes, and its peers, which are asked for where it matters; true if it counts otherwise from now on.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        latency: Duration,
        peers: impl FnOnce() -> Vec<Duration>,
    ) -> bool {
        if !self.is_slow && latency < SLOW_FROM {
            self.otherwise = None;
            return false;
        }
        let Some(median) = median(&mut peers()) else {
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

fn median(peers: &mut [Duration]) -> Option<Duration> {
    if peers.len() < PEERS_MIN {
        return None;
    }
    peers.sort_unstable();
    peers.get(peers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000 + 1)
    }

    fn peers() -> Vec<Duration> {
        [300, 100, 200, 90].map(Duration::from_micros).to_vec()
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
            assert!(!slowness.note(at(second), latency, || vec![Duration::from_micros(80)]));
            assert!(!slowness.note(at(second), latency, || vec![latency; 3]));
        }
        assert!(!slowness.is_slow());
    }
}
