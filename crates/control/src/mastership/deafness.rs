//! What a master does about its own deafness: it has the seat, and no node is heard.
//!
//! The store cannot see that. Its lease runs, so nobody else takes the seat, while no copy that fails is left out and no volume
//! grows. Another master may hear the nodes; so after some time this one gives the seat up, and does not stand for it until
//! the others had theirs. It proves nothing about who else is heard: where nobody is (all nodes are down), the seat goes round,
//! each time after twice as long.

use std::time::Duration;

use foundation::Instant;

/// The seat is given up after so many heartbeat timeouts without any node.
const TIMEOUTS: u32 = 3;
/// No patience is longer than this.
const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub(super) struct Deafness {
    heartbeat_timeout: Duration,
    /// Since when this master leads, could hear, and has heard nobody.
    since: Option<Instant>,
    /// Seats that were given up since a node was heard.
    given_up: u32,
    /// Until then the seat is left to others ...
    rests_until: Option<Instant>,
    /// ... unless nobody takes it, as seen since this moment.
    vacant_since: Option<Instant>,
}

impl Deafness {
    pub(super) fn new(heartbeat_timeout: Duration) -> Self {
        Self {
            heartbeat_timeout,
            since: None,
            given_up: 0,
            rests_until: None,
            vacant_since: None,
        }
    }

    /// How long it leads without hearing anybody.
    fn patience(&self) -> Duration {
        let doubled = 1u32.checked_shl(self.given_up.min(16)).unwrap_or(u32::MAX);
        let patience = self
            .heartbeat_timeout
            .saturating_mul(TIMEOUTS)
            .saturating_mul(doubled);
        patience.min(PATIENCE_MAX.max(self.heartbeat_timeout * TIMEOUTS))
    }

    /// Whether the seat is to be left to others now.
    pub(super) fn rests(&mut self, now: Instant) -> bool {
        let rests = self.rests_until.is_some_and(|until| now < until);
        if !rests {
            (self.rests_until, self.vacant_since) = (None, None);
        }
        rests
    }

    /// While it rests: nobody has the seat, or somebody has. A seat that nobody wants is taken again.
    pub(super) fn seen(&mut self, is_vacant: bool, now: Instant) {
        if !is_vacant {
            self.vacant_since = None;
            return;
        }
        let since = *self.vacant_since.get_or_insert(now);
        if now.since(since) >= self.heartbeat_timeout {
            self.rests_until = None;
        }
    }

    /// It leads, and hears a node; or it does not lead; or it could not have heard one until now.
    pub(super) fn hears(&mut self) {
        (self.since, self.given_up) = (None, 0);
    }

    /// Silence is counted anew: it could not hear, or it leads no more.
    pub(super) fn begins_anew(&mut self) {
        self.since = None;
    }

    /// It leads, could hear, and hears nobody. True once it has been so for too long.
    pub(super) fn is_too_long(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        now.since(since) >= self.patience()
    }

    /// The seat was given up. How long nothing was heard.
    pub(super) fn gave_up(&mut self, now: Instant) {
        self.rests_until = Some(now + self.patience());
        self.vacant_since = None;
        self.since = None;
        self.given_up = self.given_up.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn patience_doubles_until_a_node_is_heard() {
        let mut deafness = Deafness::new(Duration::from_secs(3));
        assert!(!deafness.is_too_long(at(10)) && !deafness.is_too_long(at(18)));
        assert!(deafness.is_too_long(at(19)));
        deafness.gave_up(at(19));
        assert!(deafness.rests(at(27)) && !deafness.rests(at(28)));
        assert!(!deafness.is_too_long(at(30)) && !deafness.is_too_long(at(47)));
        assert!(deafness.is_too_long(at(48)));
        deafness.hears();
        assert!(!deafness.is_too_long(at(50)) && deafness.is_too_long(at(59)));
        for _ in 0..100 {
            deafness.gave_up(at(60));
        }
        assert!(!deafness.is_too_long(at(70)) && deafness.is_too_long(at(670)));
    }

    #[test]
    fn a_seat_that_nobody_takes_is_taken_again() {
        let mut deafness = Deafness::new(Duration::from_secs(3));
        deafness.gave_up(at(10));
        deafness.seen(true, at(11));
        deafness.seen(false, at(12));
        deafness.seen(true, at(13));
        assert!(deafness.rests(at(15)));
        deafness.seen(true, at(16));
        assert!(!deafness.rests(at(16)));
    }
}
