//! What to do about a target, from what is seen of it. Pure: time comes in as durations.

use std::time::Duration;

/// How long a target that lives may take until it answers: it reads all records of its disks when it starts.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// And for so many of the bounds beyond which requests stand, each disk that stands when it starts is reset, one after the other,
/// before it answers without them: for three stages that do not help, the time before the first one, and what it takes to look.
const STALL_LIMITS: u32 = 5;

/// So many disks may stand at a time. With more it is the target that does, or what they all hang on.
const STANDING_MAX: u32 = 4;

/// In what time a target that lives is to answer which has so many disks, whose requests stand beyond this bound.
pub(crate) fn answer_limit(stall_limit: Option<Duration>, disks: usize) -> Duration {
    let disks = u32::try_from(disks).unwrap_or(u32::MAX).min(STANDING_MAX);
    let each = stall_limit.unwrap_or_default().saturating_mul(STALL_LIMITS);
    ANSWER_LIMIT.saturating_add(each.saturating_mul(disks))
}
/// How long a disk of a node that is just being started may be in use elsewhere.
pub(crate) const DISK_LIMIT: Duration = Duration::from_secs(10);
/// How long a target waits to be started for a disk that its node has had and that is not there.
pub(crate) const MISSING_LIMIT: Duration = Duration::from_secs(30);
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A life this long was a good one.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// A target says how its disks are every five seconds ([`agentlink::DISKS_INTERVAL`]): what has said nothing for so long stands still, and holds up those whose
/// writes it orders.
pub(crate) const SILENT_LIMIT: Duration = Duration::from_secs(16);

/// A step of an engine that listens. Of its own, since the masters say how often an engine is to beat, and may say once in a minute.
pub(crate) const SILENCE_STEP: Duration = Duration::from_secs(1);

/// For how long a target has said nothing. It counts the engine's own steps and not the clock: an engine that stood still together
/// with its target, as both do on a machine that is frozen for a while, has nothing to hold against it.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    lasted: Duration,
}

impl Silence {
    /// The target has said something.
    pub(crate) fn is_broken(&mut self) {
        self.lasted = Duration::ZERO;
    }

    /// One more step of the engine, which takes one each [`SILENCE_STEP`], has passed without a word; how long it has lasted once
    /// that is too long.
    pub(crate) fn lasts(&mut self) -> Option<Duration> {
        self.lasted += SILENCE_STEP;
        (self.lasted >= SILENT_LIMIT).then_some(self.lasted)
    }
}

/// What is seen when no target answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// A target process of this node has not ended.
    pub(crate) process: bool,
    /// A disk of this node is in use: by a process, or by requests in the kernel that outlive theirs.
    pub(crate) disk: bool,
    /// That disk is just being put back in service: the life before did without it, and the next one can.
    pub(crate) can_do_without: bool,
    /// For how long no target has answered.
    pub(crate) since: Duration,
    /// How long that may last, see [`answer_limit`].
    pub(crate) answer_limit: Duration,
    /// The agent has served no life yet: somebody waits for it to say what is wrong.
    pub(crate) is_first: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again soon.
    Wait,
    /// The process does not answer and will not: end it.
    EndProcess,
    /// The disk holds up the others, and was out of service before: it is so again.
    LeaveDisk,
    /// The disk is somebody else's: say so and stop.
    RefuseDisk,
    /// Every life so far has ended, with all its I/O.
    Start,
}

/// The next step while no target answers.
pub(crate) fn next(seen: Seen) -> Step {
    if seen.process {
        if seen.since < seen.answer_limit {
            Step::Wait
        } else {
            Step::EndProcess
        }
    } else if seen.disk {
        if seen.since < DISK_LIMIT {
            Step::Wait
        } else if seen.can_do_without {
            Step::LeaveDisk
        } else if seen.is_first {
            Step::RefuseDisk
        } else {
            Step::Wait
        }
    } else {
        Step::Start
    }
}

/// Pauses before a target is started again: none after a good life, longer and longer after short ones.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Duration,
}

impl Pauses {
    /// The pause after a life of this length; zero for one that did not begin.
    pub(crate) fn after(&mut self, lived: Duration) -> Duration {
        self.last = if lived >= LONG_LIFE {
            Duration::ZERO
        } else {
            (self.last * 2).clamp(PAUSE_FIRST, PAUSE_MAX)
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_in_steps_and_any_word_ends_it() {
        let mut silence = Silence::default();
        let steps = SILENT_LIMIT.as_secs() / SILENCE_STEP.as_secs();
        for _ in 1..steps {
            assert_eq!(silence.lasts(), None);
        }
        silence.is_broken();
        for _ in 1..steps {
            assert_eq!(silence.lasts(), None);
        }
        assert_eq!(silence.lasts(), Some(SILENT_LIMIT));
    }

    #[test]
    fn several_words_fit_into_the_silence_that_is_too_long() {
        // However seldom the engine beats: a single step never is the whole of it.
        let words = agentlink::DISKS_INTERVAL;
        assert!(SILENCE_STEP < words && words * 3 < SILENT_LIMIT);
    }

    fn seen(process: bool, disk: bool, seconds: u64, is_first: bool) -> Seen {
        let since = Duration::from_secs(seconds);
        Seen {
            process,
            disk,
            can_do_without: false,
            since,
            answer_limit: answer_limit(None, 2),
            is_first,
        }
    }

    #[test]
    fn a_target_whose_disks_stand_is_not_ended_before_it_has_left_them_out() {
        let stall_limit = Duration::from_secs(60);
        let seen = |since| Seen {
            since,
            answer_limit: answer_limit(Some(stall_limit), 3),
            ..seen(true, true, 0, false)
        };
        // Each stage of each disk gets one of them, and one more passes before the first.
        assert_eq!(next(seen(3 * 4 * stall_limit + ANSWER_LIMIT)), Step::Wait);
        assert_eq!(next(seen(3 * 5 * stall_limit + ANSWER_LIMIT)), Step::EndProcess);
        // A bound that means never.
        assert_eq!(answer_limit(Some(Duration::MAX), 2), Duration::MAX);
    }

    #[test]
    fn nothing_starts_before_every_life_and_its_requests_have_ended() {
        for seconds in [0, 5, 30, 59, 60, 3600, 1 << 40] {
            for is_first in [false, true] {
                for (process, disk) in [(true, true), (true, false), (false, true)] {
                    assert_ne!(next(seen(process, disk, seconds, is_first)), Step::Start);
                }
                assert_eq!(next(seen(false, false, seconds, is_first)), Step::Start);
            }
        }
    }

    #[test]
    fn who_does_not_answer_is_ended_and_a_strange_disk_is_refused_only_at_the_start() {
        assert_eq!(next(seen(true, true, 59, false)), Step::Wait);
        assert_eq!(next(seen(true, true, 60, false)), Step::EndProcess);
        assert_eq!(next(seen(false, true, 9, true)), Step::Wait);
        assert_eq!(next(seen(false, true, 10, true)), Step::RefuseDisk);
        // Requests in the kernel may take their time: a serving node's next life waits for them.
        assert_eq!(next(seen(false, true, 3600, false)), Step::Wait);
    }

    #[test]
    fn a_disk_that_is_put_back_and_in_use_holds_up_the_others_for_a_while_only() {
        for is_first in [false, true] {
            let seen = |process, seconds| Seen {
                can_do_without: true,
                ..seen(process, true, seconds, is_first)
            };
            assert_eq!(next(seen(false, 9)), Step::Wait);
            assert_eq!(next(seen(false, 10)), Step::LeaveDisk);
            // As long as a target lives it may be its disk.
            assert_eq!(next(seen(true, 10)), Step::Wait);
        }
    }

    #[test]
    fn pauses_grow_with_short_lives_up_to_a_bound() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.after(Duration::from_secs(100)), Duration::ZERO);
        let short: Vec<u64> = (0..9)
            .map(|_| pauses.after(Duration::ZERO).as_millis() as u64)
            .collect();
        assert_eq!(
            short,
            [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]
        );
        assert_eq!(pauses.after(LONG_LIFE), Duration::ZERO);
        assert_eq!(pauses.after(Duration::ZERO), PAUSE_FIRST);
    }
}
