//! A point in time that no clock belongs to: pure cores take it as an argument.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds on a host's boot-time clock (`CLOCK_BOOTTIME`), or on a simulated host's clock.
/// Comparable only with instants of the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanoseconds` after the clock's origin.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of the clock, so that "never" can be written as a very long time.
    fn add(self, duration: Duration) -> Instant {
        Instant(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Instant::from_nanos(100);
        assert_eq!((t + Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(t - Instant::from_nanos(300), Duration::ZERO);
        assert_eq!((t + Duration::from_nanos(5)) - t, Duration::from_nanos(5));
    }
}
