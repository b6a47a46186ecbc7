//! What becomes of a disk in trouble. Pure: time comes in as instants.
//!
//! Trouble is a reset that goes further than the queue, or requests that fail; a busy disk may take the time of one stage. A disk that has been in trouble so often within a while, or that no reset
//! helped when its target started, is put out of service. One that only a new process may help has its target ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use agentlink::DiskHealth;

/// A disk is put out of service after so many troubles ...
pub(crate) const TROUBLES_MAX: usize = 3;
/// ... within this time.
pub(crate) const TROUBLES_WITHIN: Duration = Duration::from_secs(600);
/// Failures count once in this time: one that breaks takes many requests along.
const FAILURES_APART: Duration = Duration::from_secs(10);
/// Samples of which the greatest but one in a hundred is known.
const WINDOW: usize = 128;

/// The last of a reset's stages, which the engine takes.
const PROCESS: usize = 3;

/// In the average a sample counts for at most so many times what that was ...
const SURGE_TIMES: u64 = 8;
/// ... or for so many microseconds, if that is more: one that was long (a machine that stood, a disk that tidied up) is no slow disk,
/// and is forgotten within seconds.
const SURGE_US: u64 = 20_000;

/// How long something takes: a moving average, a quarter new, and the last samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    average_us: u64,
    last_us: VecDeque<u64>,
}

impl Meter {
    pub(crate) fn note(&mut self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX >> 2).max(1);
        self.average_us = match self.last_us.is_empty() {
            // An engine that starts while everything does hears of much that was long.
            true => took_us.min(SURGE_US / 4),
            false => {
                let most_us = self.average_us.saturating_mul(SURGE_TIMES).max(SURGE_US);
                (self.average_us.saturating_mul(3)).saturating_add(took_us.min(most_us)) / 4
            }
        };
        if self.last_us.len() == WINDOW {
            self.last_us.pop_front();
        }
        self.last_us.push_back(took_us);
    }

    /// In microseconds; 0 before the first sample.
    pub(crate) fn average_us(&self) -> u64 {
        self.average_us
    }

    /// What 99 of 100 of the last samples stayed below, in microseconds; 0 before the first.
    pub(crate) fn p99_us(&self) -> u64 {
        let mut sorted: Vec<u64> = self.last_us.iter().copied().collect();
        sorted.sort_unstable();
        let index = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
        sorted.get(index).copied().unwrap_or(0)
    }
}

/// What is to be done about the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Disks to be put out of service, by path, and why.
    pub(crate) out: Vec<(String, String)>,
    /// A disk that only a new process may help, and why, for people.
    pub(crate) restart: Option<(String, &'static str)>,
    /// Disks whose stores have stopped: another process is to open them.
    pub(crate) stopped: Vec<String>,
}

/// What is known of one disk.
#[derive(Clone, Debug, Default)]
struct Known {
    /// As its target said last, in this life.
    last: DiskHealth,
    troubles: VecDeque<Instant>,
    failures_counted: Option<Instant>,
    /// They were so in this life.
    is_failure_of_this_life: bool,
    /// Its store has stopped in this life, which counts once.
    has_stopped: bool,
    /// Over all lives.
    resets: [u64; 4],
    failures: u64,
    cured: [u64; 4],
    process_cured: Duration,
    /// The resets there had been before its oldest request stood.
    before: [u64; 4],
    /// Since when its target is being ended for it.
    restarting: Option<Instant>,
}

/// What does not stand and wants another process has a store that has stopped, for a request that failed.
fn stops(disk: &DiskHealth) -> bool {
    disk.needs_process && disk.standing_ms == 0
}

impl Known {
    /// One whose target has counted before this engine began to listen.
    fn adopted(disk: &DiskHealth) -> Self {
        Self {
            last: disk.clone(),
            resets: disk.resets,
            failures: disk.failures,
            cured: disk.cured,
            before: disk.resets,
            has_stopped: stops(disk),
            ..Self::default()
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= TROUBLES_WITHIN;
        while self.troubles.front().is_some_and(is_old) {
            self.troubles.pop_front();
        }
    }
}

/// How a disk in service stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Why it is in trouble; none if it is not.
    pub(crate) why: Option<String>,
    pub(crate) is_full: bool,
    pub(crate) resets: [u64; 4],
    pub(crate) failures: u64,
    pub(crate) cured: [u64; 4],
    /// Of the last stage, how long it took in all.
    pub(crate) process_cured: Duration,
    /// The stage that is under way, from 1; 0 while none is.
    pub(crate) resetting: u32,
}

/// See the module. Disks are known by their paths.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    disks: BTreeMap<String, Known>,
    /// The life that is served began under another engine, which counted what there had been until then.
    is_adopted: bool,
}

impl Troubles {
    /// Another life of the target begins, with these disks: it counts from 0.
    pub(crate) fn new_life(&mut self, now: Instant, found: &[agentlink::Disk]) {
        self.is_adopted = false;
        for (path, known) in &mut self.disks {
            known.last = DiskHealth::default();
            known.before = known.resets;
            (known.is_failure_of_this_life, known.has_stopped) = (false, false);
            let Some(since) = known.restarting.take() else {
                continue;
            };
            // One that stands still was left out.
            if found.iter().any(|disk| disk.path == *path) {
                known.cured[PROCESS] += 1;
                known.process_cured += now.saturating_duration_since(since);
            }
        }
    }

    /// A life is taken over that goes on. What it says first of a disk that this engine has not heard of yet has been since it began,
    /// perhaps months ago: no trouble of now. Of the others it goes on counting.
    pub(crate) fn adopt(&mut self) {
        self.is_adopted = true;
        for known in self.disks.values_mut() {
            known.restarting = None;
        }
    }

    /// What was known of the disks at these two paths is of the one at the other.
    pub(crate) fn swap(&mut self, one: &str, other: &str) {
        let (of_one, of_other) = (self.disks.remove(one), self.disks.remove(other));
        self.disks.extend(of_one.map(|known| (other.to_owned(), known)));
        self.disks.extend(of_other.map(|known| (one.to_owned(), known)));
    }

    /// A disk is back in service: what was is forgotten.
    pub(crate) fn forget(&mut self, path: &str) {
        self.disks.remove(path);
    }

    /// The target says how its disks are.
    pub(crate) fn note(&mut self, now: Instant, health: &[DiskHealth]) -> Decision {
        let mut decision = Decision::default();
        for disk in health {
            let is_adopted = self.is_adopted;
            let first = || match is_adopted {
                true => Known::adopted(disk),
                false => Known::default(),
            };
            let known = self.disks.entry(disk.path.clone()).or_insert_with(first);
            known.forget_old(now);
            let begun = disk.resets[1].saturating_sub(known.last.resets[1]);
            known
                .troubles
                .extend((0..begun.min(TROUBLES_MAX as u64)).map(|_| now));
            let counts = known
                .failures_counted
                .is_none_or(|at| now.saturating_duration_since(at) >= FAILURES_APART);
            let has_failed = disk.failures > known.last.failures && counts;
            // However short the lives are in which it does so. The request that failed for it is the same trouble.
            let has_stopped = stops(disk) && !known.has_stopped;
            known.has_stopped |= has_stopped;
            if has_failed || has_stopped && (counts || !known.is_failure_of_this_life) {
                (known.failures_counted, known.is_failure_of_this_life) = (Some(now), true);
                known.troubles.push_back(now);
            }
            known.failures += disk.failures.saturating_sub(known.last.failures);
            let totals = known.resets.iter_mut().chain(&mut known.cured);
            let is = disk.resets.iter().chain(&disk.cured);
            let was = known.last.resets.iter().chain(&known.last.cured);
            for (total, (is, was)) in totals.zip(is.zip(was)) {
                *total += is.saturating_sub(*was);
            }
            if disk.standing_ms == 0 {
                known.before = known.resets;
            }
            known.last = disk.clone();
            let minutes = TROUBLES_WITHIN.as_secs() / 60;
            if let Some(why) = &disk.left_out {
                decision.out.push((disk.path.clone(), why.clone()));
            } else if known.troubles.len() >= TROUBLES_MAX {
                let times = known.troubles.len();
                let why = format!("its requests stood or failed {times} times within {minutes} minutes");
                decision.out.push((disk.path.clone(), why));
            } else if disk.needs_process {
                let why = match stops(disk) {
                    true => "has no durable state any more, since a write or flush of its metadata failed",
                    false => "has requests that stand, and no other reset has helped",
                };
                decision.restart = Some((disk.path.clone(), why));
                if stops(disk) {
                    decision.stopped.push(disk.path.clone());
                }
                known.restarting.get_or_insert(now);
            }
        }
        decision
    }

    /// How a disk stands now.
    pub(crate) fn standing(&mut self, now: Instant, path: &str) -> Standing {
        let Some(known) = self.disks.get_mut(path) else {
            return Standing::default();
        };
        known.forget_old(now);
        let troubles = known.troubles.len();
        let why = match known.last.standing_ms {
            0 if troubles == 0 => None,
            0 => Some(format!(
                "its requests stood or failed {troubles} times within {} minutes; it is put out of service at {TROUBLES_MAX}",
                TROUBLES_WITHIN.as_secs() / 60
            )),
            standing_ms => Some(format!("its oldest request stands for {standing_ms} ms")),
        };
        let begun = |stage: &usize| known.resets[*stage] > known.before[*stage];
        let resetting = (0..known.resets.len()).rev().find(begun);
        Standing {
            why,
            cured: known.cured,
            process_cured: known.process_cured,
            resetting: resetting.map_or(0, |stage| stage as u32 + 1),
            is_full: known.last.is_full,
            resets: known.resets,
            failures: known.failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(resets: [u64; 4], failures: u64) -> DiskHealth {
        DiskHealth {
            uuid: 7,
            path: "/disk".to_owned(),
            resets,
            failures,
            ..DiskHealth::default()
        }
    }

    fn disk() -> agentlink::Disk {
        agentlink::Disk {
            uuid: 7,
            path: "/disk".to_owned(),
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 20,
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_third_trouble_within_a_while_is_one_too_many() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        assert_eq!(troubles.note(start, &[health([0; 4], 0)]), Decision::default());
        assert_eq!(troubles.standing(start, "/disk").why, None);
        let mut at = |after, resets, failures| {
            let decision = troubles.note(start + seconds(after), &[health(resets, failures)]);
            (
                decision.out.len(),
                troubles.standing(start + seconds(after), "/disk"),
            )
        };
        // A disk that is only busy is in none.
        assert_eq!(at(1, [1, 0, 0, 0], 0).1.why, None);
        assert_eq!(at(10, [2, 1, 0, 0], 0).0, 0);
        // The same trouble, reported again.
        assert_eq!(at(11, [2, 1, 1, 0], 0).0, 0);
        assert_eq!(at(20, [2, 1, 1, 0], 50).0, 0);
        // Failures that belong together.
        let (out, standing) = at(22, [2, 1, 1, 0], 90);
        assert_eq!((out, standing.failures, standing.resets), (0, 90, [2, 1, 1, 0]));
        assert!(standing.why.unwrap().contains("2 times within 10 minutes"));
        // The first one is forgotten by then.
        assert_eq!(at(615, [3, 2, 1, 0], 90).0, 0);
        assert_eq!(at(616, [4, 3, 1, 0], 90).0, 1);
    }

    #[test]
    fn lives_count_from_nothing_and_their_troubles_add_up() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        let stands = DiskHealth {
            needs_process: true,
            standing_ms: 20_000,
            ..health([1, 1, 1, 1], 0)
        };
        let decision = troubles.note(start, std::slice::from_ref(&stands));
        assert_eq!(decision.restart.map(|(path, _)| path).as_deref(), Some("/disk"));
        assert!(decision.out.is_empty());
        assert_eq!(troubles.standing(start, "/disk").resetting, 4);
        troubles.new_life(start + seconds(2), &[disk()]);
        let standing = troubles.standing(start + seconds(2), "/disk");
        assert_eq!(
            (standing.cured, standing.process_cured, standing.resetting),
            ([0, 0, 0, 1], seconds(2), 0)
        );
        let decision = troubles.note(start + seconds(60), std::slice::from_ref(&stands));
        assert!(decision.restart.is_some());
        assert_eq!(
            troubles.standing(start + seconds(60), "/disk").resets,
            [2, 2, 2, 2]
        );
        // It was left out.
        troubles.new_life(start + seconds(62), &[]);
        assert_eq!(
            troubles.standing(start + seconds(62), "/disk").cured,
            [0, 0, 0, 1]
        );
        let decision = troubles.note(start + seconds(120), &[stands]);
        assert_eq!((decision.restart, decision.out.len()), (None, 1));
        troubles.forget("/disk");
        assert_eq!(
            troubles.standing(start + seconds(120), "/disk"),
            Standing::default()
        );
    }

    #[test]
    fn what_an_adopted_life_had_counted_is_no_trouble_of_now() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        troubles.adopt();
        let old = DiskHealth {
            cured: [0, 5, 0, 0],
            ..health([9, 5, 0, 0], 700)
        };
        assert_eq!(
            troubles.note(start, std::slice::from_ref(&old)),
            Decision::default()
        );
        let standing = troubles.standing(start, "/disk");
        assert_eq!((standing.why, standing.resetting), (None, 0));
        assert_eq!((standing.resets, standing.failures), ([9, 5, 0, 0], 700));
        // What comes from now on is, also once the same engine has lost the connection for a while.
        let two_more = DiskHealth {
            cured: [0, 7, 0, 0],
            ..health([11, 7, 0, 0], 700)
        };
        assert!(
            troubles
                .note(start, std::slice::from_ref(&two_more))
                .out
                .is_empty()
        );
        troubles.adopt();
        assert!(troubles.note(start, &[two_more]).out.is_empty());
        assert_eq!(troubles.note(start, &[health([12, 8, 0, 0], 700)]).out.len(), 1);
    }

    #[test]
    fn an_adopted_disk_that_wants_another_process_or_was_left_out_is_heard_at_once() {
        let mut troubles = Troubles::default();
        troubles.adopt();
        let stands = DiskHealth {
            needs_process: true,
            standing_ms: 20_000,
            ..health([1, 1, 1, 1], 0)
        };
        let left = DiskHealth {
            path: "/left".to_owned(),
            left_out: Some("it stands".to_owned()),
            ..DiskHealth::default()
        };
        let decision = troubles.note(Instant::now(), &[stands, left]);
        assert_eq!(decision.restart.map(|(path, _)| path).as_deref(), Some("/disk"));
        assert_eq!(decision.out, [("/left".to_owned(), "it stands".to_owned())]);
    }

    #[test]
    fn a_store_that_stops_in_each_life_takes_three_of_them() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        let stopped = |failures| DiskHealth {
            needs_process: true,
            ..health([0; 4], failures)
        };
        // For want of room, which is no failure of the device; a failed flush of the second life counts once.
        for (life, failures) in [(0, 0), (1, 1)] {
            let at = start + seconds(3 * life);
            for _ in 0..3 {
                let decision = troubles.note(at, &[stopped(failures)]);
                let (path, why) = decision.restart.expect("the store is to be opened anew");
                assert_eq!((path.as_str(), decision.out.len()), ("/disk", 0));
                assert!(why.contains("flush"), "{why}");
            }
            troubles.new_life(at + seconds(1), &[disk()]);
        }
        let decision = troubles.note(start + seconds(6), &[stopped(0)]);
        assert_eq!((decision.restart, decision.out.len()), (None, 1));
    }

    #[test]
    fn a_store_that_stops_for_a_request_that_failed_is_one_trouble() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        let stopped = |needs_process, standing_ms| DiskHealth {
            needs_process,
            standing_ms,
            ..health([0; 4], 1)
        };
        troubles.note(start, &[stopped(false, 0)]);
        // A request that stands meanwhile does not make it stop again.
        for (after, standing_ms) in [(1, 0), (20, 5000), (40, 0)] {
            let decision = troubles.note(start + seconds(after), &[stopped(true, standing_ms)]);
            assert!(decision.out.is_empty());
            assert_eq!(decision.stopped.len(), usize::from(standing_ms == 0));
        }
        let why = troubles.standing(start + seconds(40), "/disk").why.unwrap();
        assert!(why.contains(" 1 times"), "{why}");
    }

    #[test]
    fn the_stage_under_way_is_told_while_the_disk_stands() {
        let (start, mut troubles) = (Instant::now(), Troubles::default());
        let mut told = |resets, cured, standing_ms| {
            let disk = DiskHealth {
                cured,
                standing_ms,
                ..health(resets, 0)
            };
            troubles.note(start, &[disk]);
            let standing = troubles.standing(start, "/disk");
            (standing.resetting, standing.cured)
        };
        assert_eq!(told([0; 4], [0; 4], 0), (0, [0; 4]));
        assert_eq!(told([1, 0, 0, 0], [0; 4], 1000), (1, [0; 4]));
        assert_eq!(told([1, 1, 0, 0], [0; 4], 2000), (2, [0; 4]));
        assert_eq!(told([1, 1, 0, 0], [0, 1, 0, 0], 0), (0, [0, 1, 0, 0]));
        // It stands again, and nothing is done yet.
        assert_eq!(told([1, 1, 0, 0], [0, 1, 0, 0], 500), (0, [0, 1, 0, 0]));
        assert_eq!(told([2, 1, 0, 0], [0, 1, 0, 0], 1000), (1, [0, 1, 0, 0]));
    }

    #[test]
    fn a_disk_that_nothing_helped_at_the_start_goes_at_once() {
        let mut troubles = Troubles::default();
        let left = DiskHealth {
            left_out: Some("it stands".to_owned()),
            ..health([0; 4], 0)
        };
        let decision = troubles.note(Instant::now(), &[left]);
        assert_eq!(decision.out, [("/disk".to_owned(), "it stands".to_owned())]);
    }

    #[test]
    fn meters_follow_and_remember_what_is_rare() {
        let mut meter = Meter::default();
        assert_eq!((meter.average_us(), meter.p99_us()), (0, 0));
        for _ in 0..300 {
            meter.note(Duration::from_micros(100));
        }
        assert_eq!((meter.average_us(), meter.p99_us()), (100, 100));
        for _ in 0..3 {
            meter.note(Duration::from_millis(10));
        }
        assert!(
            (5000..7000).contains(&meter.average_us()),
            "{}",
            meter.average_us()
        );
        assert_eq!(meter.p99_us(), 10_000);
        for _ in 0..WINDOW {
            meter.note(Duration::from_micros(100));
        }
        assert_eq!(meter.p99_us(), 100);
        assert!(meter.average_us() < 105);
    }

    /// An engine that starts while everything does hears of much that is long.
    #[test]
    fn a_first_sample_that_was_long_is_forgotten_as_any_other() {
        for first in [Duration::from_millis(19), Duration::from_secs(6)] {
            let mut meter = Meter::default();
            meter.note(first);
            for _ in 0..4 {
                meter.note(Duration::from_micros(100));
            }
            assert!(meter.average_us() < 2000, "{}", meter.average_us());
        }
    }

    /// Masters call slow what is above 2 ms for 10 s: five samples.
    #[test]
    fn one_long_sample_is_soon_forgotten_and_a_disk_that_takes_seconds_is_known() {
        let usual = Duration::from_micros(100);
        let mut meter = Meter::default();
        meter.note(usual);
        meter.note(Duration::from_secs(6));
        let above = |meter: &Meter| meter.average_us() >= 2000;
        let mut since = 0;
        while above(&meter) {
            since += 1;
            meter.note(usual);
        }
        assert!((1..5).contains(&since), "{since}");
        assert_eq!(meter.p99_us(), 6_000_000);
        for long in 1..=20 {
            meter.note(Duration::from_secs(6));
            assert!(above(&meter), "after {long}");
        }
        assert!(meter.average_us() > 5_000_000, "{}", meter.average_us());
    }
}
