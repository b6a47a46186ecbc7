//! How much of a node resync may take while others ask something of it (`docs/decisions/0058`, "Credit").

use std::time::Duration;

use foundation::Instant;

/// How long after a request resync leaves room for the next one.
const BUSY_FOR: Duration = Duration::from_millis(100);
/// The longest pause after a piece. A copy that comes back while a client asks all the time is sent a piece so often at least.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// When others asked something of this node last, and how many copies its write nodes resync.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreground {
    pub(super) at: Instant,
    pub(super) resyncs: usize,
}

impl Foreground {
    pub(super) fn is_recent(self, now: Instant) -> bool {
        now.since(self.at) < BUSY_FOR
    }

    /// How long nothing is sent to a copy after a piece that took `took`: the pieces of all copies together are under way for half of
    /// the time. Each stands in the way of whoever asks for something at that moment, here and on the other node, and several at once
    /// do so for several times as long.
    pub(super) fn pause(self, took: Duration) -> Duration {
        let turns = u32::try_from(2 * self.resyncs.max(1)).unwrap_or(u32::MAX);
        took.saturating_mul(turns - 1).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_copies_are_under_way_for_half_of_the_time() {
        let took = Duration::from_millis(2);
        for resyncs in [1, 2, 4, 8] {
            let asked = Foreground {
                at: Instant::from_nanos(0),
                resyncs,
            };
            let turn = took + asked.pause(took);
            assert_eq!(took * resyncs as u32 * 2, turn, "{resyncs} copies");
        }
    }

    #[test]
    fn a_pause_ends_however_long_a_piece_took() {
        let asked = Foreground {
            at: Instant::from_nanos(0),
            resyncs: usize::MAX / 2,
        };
        assert_eq!(asked.pause(Duration::MAX), PAUSE_MAX);
        assert_eq!(asked.pause(Duration::ZERO), Duration::ZERO);
    }
}
