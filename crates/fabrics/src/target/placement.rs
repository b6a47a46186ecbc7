//! Which reactor is to serve a connection. Pure.
//!
//! The least busy one: that which spent the smallest share of the last second on tasks and completions (what it spent
//! polling for work is not busy). Hosts connect their queues in one burst, in which no load can be seen yet, so each
//! newcomer counts as a connection of average load until the next look, and as a twentieth of a reactor at least. Where
//! that leaves a tie, as on an idle target, the reactor with the fewest connections takes it. A connection stays where
//! it is put.

use std::time::Duration;

/// How often the reactors' load is looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// What a newcomer counts as, at least, in thousandths of a reactor.
const NEWCOMER_LEAST: u64 = 50;

/// A reactor as it is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// All the time it was busy since it began.
    pub(super) busy: Duration,
    /// Its open connections.
    pub(super) connections: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    busy: Duration,
    /// Of the time between the last two looks, in thousandths.
    share: u64,
    newcomers: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Placement {
    candidates: Vec<Candidate>,
    newcomer_share: u64,
}

impl Placement {
    /// Between so many reactors, of which nothing is known.
    pub(super) fn new(reactors: usize) -> Self {
        Self {
            candidates: vec![Candidate::default(); reactors],
            newcomer_share: NEWCOMER_LEAST,
        }
    }

    /// Looks at the reactors, `passed` after the last look.
    pub(super) fn look(&mut self, loads: &[Load], passed: Duration) {
        let passed = passed.as_micros().max(1);
        for (candidate, load) in self.candidates.iter_mut().zip(loads) {
            let busy = load.busy.saturating_sub(candidate.busy).as_micros();
            *candidate = Candidate {
                busy: load.busy,
                share: u64::try_from(busy * 1000 / passed).unwrap_or(1000).min(1000),
                newcomers: 0,
            };
        }
        let shares: u64 = self.candidates.iter().map(|candidate| candidate.share).sum();
        let connections: u64 = loads.iter().map(|load| load.connections).sum();
        self.newcomer_share = (shares / connections.max(1)).max(NEWCOMER_LEAST);
    }

    /// The reactor for a new connection.
    pub(super) fn choose(&mut self, loads: &[Load]) -> usize {
        let newcomer_share = self.newcomer_share;
        let least = self
            .candidates
            .iter_mut()
            .zip(loads)
            .enumerate()
            .min_by_key(|(_, (candidate, load))| {
                let expected = candidate.share + candidate.newcomers * newcomer_share;
                (expected, load.connections)
            });
        match least {
            Some((index, (candidate, _))) => {
                candidate.newcomers += 1;
                index
            }
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(all: [(u64, u64); 2]) -> [Load; 2] {
        all.map(|(busy_ms, connections)| Load {
            busy: Duration::from_millis(busy_ms),
            connections,
        })
    }

    fn place(placement: &mut Placement, loads: &mut [Load; 2], count: usize) -> [u64; 2] {
        let mut given = [0; 2];
        for _ in 0..count {
            let index = placement.choose(loads);
            given[index] += 1;
            loads[index].connections += 1;
        }
        given
    }

    #[test]
    fn a_burst_on_an_idle_target_is_shared_out() {
        let mut placement = Placement::new(2);
        let mut now = loads([(0, 0), (0, 0)]);
        assert_eq!(place(&mut placement, &mut now, 9), [5, 4]);
        placement.look(&now, LOOK);
        assert_eq!(
            placement.choose(&now),
            1,
            "the fewest connections, where all are idle"
        );
    }

    #[test]
    fn the_idle_reactor_takes_newcomers_until_it_would_be_as_busy() {
        let mut placement = Placement::new(2);
        // Two connections keep one reactor busy for 800 of 1000 ms: one counts as 400.
        let mut now = loads([(800, 2), (0, 6)]);
        placement.look(&now, LOOK);
        assert_eq!(place(&mut placement, &mut now, 2), [0, 2], "however many it has");
        // 100 each, of eight: a newcomer now counts as 100.
        let mut now = loads([(1600, 2), (0, 6)]);
        placement.look(&now, LOOK);
        assert_eq!(place(&mut placement, &mut now, 8), [0, 8]);
        assert_eq!(place(&mut placement, &mut now, 2), [1, 1]);
    }

    #[test]
    fn only_the_last_look_counts() {
        let mut placement = Placement::new(2);
        let now = loads([(900, 1), (0, 1)]);
        placement.look(&now, LOOK);
        let now = loads([(900, 1), (500, 1)]);
        placement.look(&now, LOOK);
        assert_eq!(placement.choose(&now), 0);
        placement.look(&now, Duration::ZERO);
    }

    #[test]
    fn one_reactor_takes_all() {
        assert_eq!(Placement::new(1).choose(&[Load::default()]), 0);
    }
}
