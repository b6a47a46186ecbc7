//! Which of several paths to a namespace the next command takes. Pure: what happens to the paths is told, and so is the
//! time.
//!
//! Paths in the state Optimized come first, then Non-Optimized (NVM Express Base Specification 2.0c, section 8.1); through
//! one in another state no command goes. Within the better of the two classes the policy decides.

use std::time::Duration;

use foundation::Instant;
use protocols::nvme::log::AnaState;

/// A path that has answered a command with a path-related error is left out for so long at least. Its states are read
/// again meanwhile.
pub(super) const SUSPICION: Duration = Duration::from_millis(100);

/// Names a path of a device, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u64);

/// Which of the paths that are equally good is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The preferred path, else the one that was added first.
    #[default]
    ActivePassive,
    /// All of them.
    ActiveActive(Balance),
}

/// How commands are shared out among paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turns of so many commands, at least 1.
    RoundRobin {
        /// Commands in a turn.
        min_io: u32,
    },
    /// To the one with the fewest commands in flight.
    QueueDepth,
}

/// Paths as the policy looks at them.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    policy: Policy,
    preferred: Option<PathId>,
    /// As they were added.
    entries: Vec<Entry>,
    /// Whose turn it is, and how many commands are left of it.
    turn: Option<(PathId, u32)>,
}

#[derive(Clone, Debug)]
struct Entry {
    id: PathId,
    /// `None` without a connection.
    state: Option<AnaState>,
    suspect_until: Option<Instant>,
    in_flight: u32,
}

impl Entry {
    /// 0 is best; `None` if no command may go there.
    fn class(&self, now: Instant) -> Option<u8> {
        if self.suspect_until.is_some_and(|until| now < until) {
            return None;
        }
        match self.state? {
            AnaState::Optimized => Some(0),
            AnaState::NonOptimized => Some(1),
            AnaState::Inaccessible | AnaState::PersistentLoss | AnaState::Change => None,
        }
    }
}

impl Paths {
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.turn = None;
    }

    pub(super) fn prefer(&mut self, id: Option<PathId>) {
        self.preferred = id;
    }

    pub(super) fn add(&mut self, id: PathId) {
        self.entries.push(Entry {
            id,
            state: None,
            suspect_until: None,
            in_flight: 0,
        });
    }

    pub(super) fn remove(&mut self, id: PathId) {
        self.entries.retain(|entry| entry.id != id);
    }

    fn entry(&mut self, id: PathId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// A path is connected, or its state is another now.
    pub(super) fn set_state(&mut self, id: PathId, state: AnaState) {
        if let Some(entry) = self.entry(id) {
            entry.state = Some(state);
        }
    }

    /// Its connection is gone.
    pub(super) fn disconnected(&mut self, id: PathId) {
        if let Some(entry) = self.entry(id) {
            entry.state = None;
            entry.suspect_until = None;
        }
    }

    /// It has answered with a path-related error.
    pub(super) fn suspect(&mut self, id: PathId, now: Instant) {
        if let Some(entry) = self.entry(id) {
            entry.suspect_until = Some(now + SUSPICION);
        }
    }

    /// A command was sent there.
    pub(super) fn begin(&mut self, id: PathId) {
        if let Some(entry) = self.entry(id) {
            entry.in_flight += 1;
        }
    }

    /// And has ended.
    pub(super) fn end(&mut self, id: PathId) {
        if let Some(entry) = self.entry(id) {
            // A path that was removed and added again under its number does not know of it.
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
    }

    /// Its state; `None` without a connection.
    pub(super) fn state(&self, id: PathId) -> Option<AnaState> {
        self.entries.iter().find(|entry| entry.id == id)?.state
    }

    /// Whether a path is left out that may take commands again later.
    pub(super) fn has_suspects(&self, now: Instant) -> bool {
        let mut until = self.entries.iter().filter_map(|entry| entry.suspect_until);
        until.any(|until| now < until)
    }

    /// The path that the next command would take.
    pub(super) fn peek(&self, now: Instant) -> Option<PathId> {
        self.clone().choose(now)
    }

    /// The path for the next command; `None` if there is none that takes one now.
    pub(super) fn choose(&mut self, now: Instant) -> Option<PathId> {
        let best = self.entries.iter().filter_map(|entry| entry.class(now)).min()?;
        let equals = || {
            self.entries
                .iter()
                .filter(move |entry| entry.class(now) == Some(best))
        };
        match self.policy {
            Policy::ActivePassive => {
                let preferred = equals().find(|entry| Some(entry.id) == self.preferred);
                preferred.or_else(|| equals().next()).map(|entry| entry.id)
            }
            Policy::ActiveActive(Balance::QueueDepth) => {
                equals().min_by_key(|entry| entry.in_flight).map(|entry| entry.id)
            }
            Policy::ActiveActive(Balance::RoundRobin { min_io }) => {
                let (id, left) = match self.turn {
                    Some((id, left)) if left > 0 && equals().any(|entry| entry.id == id) => (id, left),
                    last => {
                        // The next after the last, in a circle.
                        let last = last.map(|(id, _)| id);
                        let next = equals().find(|entry| last.is_some_and(|last| entry.id > last));
                        (next.or_else(|| equals().next())?.id, min_io.max(1))
                    }
                };
                self.turn = Some((id, left - 1));
                Some(id)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundation::Random;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const ROUND_ROBIN: Policy = Policy::ActiveActive(Balance::RoundRobin { min_io: 2 });

    fn paths(policy: Policy, states: &[AnaState]) -> Paths {
        let mut paths = Paths::default();
        paths.set_policy(policy);
        for (number, state) in (0..).zip(states) {
            paths.add(PathId(number));
            paths.set_state(PathId(number), *state);
        }
        paths
    }

    fn choices(paths: &mut Paths, count: usize) -> Vec<u64> {
        (0..count).map(|_| paths.choose(NOW).unwrap().0).collect()
    }

    #[test]
    fn optimized_paths_come_first_and_others_never() {
        use AnaState::{Change, Inaccessible, NonOptimized, Optimized, PersistentLoss};
        for policy in [
            Policy::ActivePassive,
            ROUND_ROBIN,
            Policy::ActiveActive(Balance::QueueDepth),
        ] {
            let mut some = paths(policy, &[NonOptimized, Inaccessible, Optimized, Change]);
            assert_eq!(choices(&mut some, 3), [2, 2, 2]);
            some.set_state(PathId(2), PersistentLoss);
            assert_eq!(choices(&mut some, 3), [0, 0, 0]);
            some.disconnected(PathId(0));
            assert_eq!(some.choose(NOW), None);
            some.set_state(PathId(1), Optimized);
            assert_eq!(choices(&mut some, 1), [1]);
        }
    }

    #[test]
    fn one_path_is_active_until_it_fails_and_again_when_it_is_back() {
        let mut some = paths(Policy::ActivePassive, &[AnaState::Optimized; 3]);
        assert_eq!(choices(&mut some, 2), [0, 0]);
        some.prefer(Some(PathId(1)));
        assert_eq!(choices(&mut some, 2), [1, 1]);
        some.disconnected(PathId(1));
        assert_eq!(choices(&mut some, 2), [0, 0]);
        some.set_state(PathId(1), AnaState::NonOptimized);
        assert_eq!(choices(&mut some, 1), [0], "optimized goes before preferred");
        some.set_state(PathId(1), AnaState::Optimized);
        assert_eq!(choices(&mut some, 1), [1]);
    }

    #[test]
    fn turns_go_round() {
        let mut some = paths(ROUND_ROBIN, &[AnaState::Optimized; 3]);
        assert_eq!(choices(&mut some, 8), [0, 0, 1, 1, 2, 2, 0, 0]);
        some.disconnected(PathId(1));
        assert_eq!(choices(&mut some, 4), [2, 2, 0, 0]);
        some.remove(PathId(2));
        assert_eq!(choices(&mut some, 4), [0, 0, 0, 0]);
    }

    #[test]
    fn the_least_busy_path_is_taken() {
        let mut some = paths(
            Policy::ActiveActive(Balance::QueueDepth),
            &[AnaState::Optimized; 2],
        );
        for expected in [0, 1, 0, 1] {
            let id = some.choose(NOW).unwrap();
            assert_eq!(id.0, expected);
            some.begin(id);
        }
        some.end(PathId(1));
        assert_eq!(choices(&mut some, 1), [1]);
    }

    #[test]
    fn a_suspect_path_is_left_out_for_a_while() {
        let mut some = paths(Policy::ActivePassive, &[AnaState::Optimized; 2]);
        some.suspect(PathId(0), NOW);
        assert_eq!(some.choose(NOW), Some(PathId(1)));
        some.suspect(PathId(1), NOW);
        assert_eq!(some.choose(NOW), None);
        assert_eq!(some.choose(NOW + SUSPICION), Some(PathId(0)));
    }

    /// Against the rule told another way, for random histories.
    #[test]
    fn a_choice_is_always_one_of_the_best() {
        let mut random = Random::from_seed(7);
        for round in 0..300 {
            let policy = [
                Policy::ActivePassive,
                ROUND_ROBIN,
                Policy::ActiveActive(Balance::QueueDepth),
            ][round % 3];
            let mut some = paths(policy, &[AnaState::Change; 4]);
            let mut model = [Some(AnaState::Change); 4];
            for _ in 0..50 {
                let index = random.below(4) as usize;
                let id = PathId(index as u64);
                match random.below(6) {
                    0 => {
                        some.disconnected(id);
                        model[index] = None;
                    }
                    kind => {
                        let state = [
                            AnaState::Optimized,
                            AnaState::NonOptimized,
                            AnaState::Inaccessible,
                            AnaState::PersistentLoss,
                            AnaState::Change,
                        ][kind as usize - 1];
                        some.set_state(id, state);
                        model[index] = Some(state);
                    }
                }
                let best = [AnaState::Optimized, AnaState::NonOptimized]
                    .into_iter()
                    .find(|state| model.contains(&Some(*state)));
                let chosen = some.choose(NOW);
                assert_eq!(chosen.and_then(|id| model[id.0 as usize]), best);
            }
        }
    }
}
