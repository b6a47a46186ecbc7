//! When it is worth a word that a peer refuses this node.
//!
//! Nodes that begin together do not have their keys at one moment: a peer whose agent has not yet handed it any lets nobody in, and
//! this node may have been told of a new peer before it was told what it proves itself to that one with. Both end by
//! themselves once a master has answered, so only what lasts is spoken of.

use std::time::Duration;

use foundation::Instant;

/// Longer than another master takes to lead, and agents to hear of keys from it.
const LIMIT: Duration = Duration::from_secs(15);
/// It is said again after so long.
const MENTION: Duration = Duration::from_secs(60);

/// The refusals of one peer, without a break.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    said: Option<Instant>,
}

impl Refusals {
    /// The peer has refused this node once more. Tells for how long it has, if that is to be said now.
    pub(super) fn add(&mut self, now: Instant) -> Option<Duration> {
        let lasts = now.since(*self.since.get_or_insert(now));
        let is_said = |said: Instant| now.since(said) < MENTION;
        if lasts < LIMIT || self.said.is_some_and(is_said) {
            return None;
        }
        self.said = Some(now);
        Some(lasts)
    }

    /// The peer has let this node in, or something else was in the way.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_lasts_is_said_and_not_all_the_time() {
        let mut refusals = Refusals::default();
        // A start: refused for a while, and let in then.
        assert!((5..19).all(|second| refusals.add(at(second)).is_none()));
        refusals.end();
        assert!((20..35).all(|second| refusals.add(at(second)).is_none()));
        assert_eq!(refusals.add(at(35)), Some(LIMIT));
        assert!((36..95).all(|second| refusals.add(at(second)).is_none()));
        assert_eq!(refusals.add(at(95)), Some(Duration::from_secs(75)));
        refusals.end();
        assert_eq!(refusals.add(at(96)), None, "another one begins");
    }
}
