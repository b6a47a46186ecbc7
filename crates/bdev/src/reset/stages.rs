//! When which stage of a reset begins. Pure: time comes in as instants.

use std::time::Duration;

use foundation::Instant;

/// What is reset, from the top down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The way of requests to the device: what can be ended is ended and made again, by another way.
    Queue,
    /// The open device: it is opened anew.
    Device,
    /// Whoever drives it in the kernel.
    Driver,
    /// The whole process, which ends and is started anew.
    Process,
}

impl Stage {
    /// All, in order.
    pub const ALL: [Stage; 4] = [Stage::Queue, Stage::Device, Stage::Driver, Stage::Process];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Queue => "queue",
            Stage::Device => "device",
            Stage::Driver => "driver",
            Stage::Process => "process",
        }
    }

    fn next(self) -> Option<Stage> {
        Stage::ALL.get(self as usize + 1).copied()
    }
}

/// What a look at the requests says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is to be done.
    Nothing,
    /// This stage is to begin.
    Begin(Stage),
    /// Requests are answered again, so long after this stage began.
    Cured(Stage, Duration),
}

/// See the module.
#[derive(Debug)]
pub struct Stages {
    limit: Duration,
    /// The stage that was begun last, when, and how many requests had been answered by then.
    begun: Option<(Stage, Instant, u64)>,
    /// The last one did nothing: the next need not wait.
    was_skipped: bool,
}

impl Stages {
    /// A request that stands for `limit` begins the first stage; each stage gets as long to help.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            begun: None,
            was_skipped: false,
        }
    }

    /// The stage that was begun last had nothing to do.
    pub fn skip(&mut self) {
        self.was_skipped = true;
    }

    /// What is to be done, if the oldest request under way was given to the device at `oldest`, and so many have been
    /// answered in all.
    pub fn look(&mut self, now: Instant, oldest: Option<Instant>, answered: u64) -> Step {
        let stands = oldest.is_some_and(|since| now.since(since) >= self.limit);
        match self.begun {
            None if stands => self.begin(Stage::Queue, now, answered),
            None => Step::Nothing,
            Some((stage, at, before)) if !stands => {
                // Those that were made again have still to be answered.
                if oldest.is_some() && answered == before {
                    return Step::Nothing;
                }
                self.begun = None;
                self.was_skipped = false;
                Step::Cured(stage, now.since(at))
            }
            Some((stage, at, _)) if self.was_skipped || now.since(at) >= self.limit => match stage.next() {
                Some(next) => self.begin(next, now, answered),
                None => Step::Nothing,
            },
            Some(_) => Step::Nothing,
        }
    }

    fn begin(&mut self, stage: Stage, now: Instant, answered: u64) -> Step {
        self.begun = Some((stage, now, answered));
        self.was_skipped = false;
        Step::Begin(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000 + 1)
    }

    #[test]
    fn stages_follow_each_other_as_long_as_a_request_stands() {
        let mut stages = Stages::new(LIMIT);
        let mut begun = Vec::new();
        for ms in (0..20_000).step_by(100) {
            match stages.look(at(ms), Some(at(0)), 0) {
                Step::Begin(stage) => begun.push((ms, stage)),
                Step::Nothing => {}
                cured @ Step::Cured(..) => panic!("{cured:?} at {ms} ms"),
            }
        }
        let expected = [
            (3000, Stage::Queue),
            (6000, Stage::Device),
            (9000, Stage::Driver),
            (12_000, Stage::Process),
        ];
        assert_eq!(begun, expected);
    }

    #[test]
    fn busy_disks_and_idle_ones_are_left_alone() {
        let mut stages = Stages::new(LIMIT);
        for ms in (0..60_000u64).step_by(100) {
            let oldest = (ms % 700 != 0).then(|| at(ms.saturating_sub(2900)));
            assert_eq!(stages.look(at(ms), oldest, ms), Step::Nothing);
        }
    }

    #[test]
    fn a_cure_is_an_answer_and_not_that_a_request_was_made_again() {
        let mut stages = Stages::new(LIMIT);
        assert_eq!(stages.look(at(3000), Some(at(0)), 7), Step::Begin(Stage::Queue));
        // Made again at 3,000 ms, which makes it young.
        assert_eq!(stages.look(at(3100), Some(at(3000)), 7), Step::Nothing);
        assert_eq!(stages.look(at(5900), Some(at(3000)), 7), Step::Nothing);
        assert_eq!(
            stages.look(at(6000), Some(at(3000)), 7),
            Step::Begin(Stage::Device)
        );
        let cured = Step::Cured(Stage::Device, Duration::from_millis(200));
        assert_eq!(stages.look(at(6200), Some(at(6000)), 8), cured);
        // Another time begins with the first stage.
        assert_eq!(
            stages.look(at(9300), Some(at(6200)), 8),
            Step::Begin(Stage::Queue)
        );
        let cured = Step::Cured(Stage::Queue, Duration::from_millis(1));
        assert_eq!(stages.look(at(9301), None, 9), cured);
    }

    #[test]
    fn a_stage_with_nothing_to_do_costs_no_time() {
        let mut stages = Stages::new(LIMIT);
        assert_eq!(stages.look(at(3000), Some(at(0)), 0), Step::Begin(Stage::Queue));
        stages.skip();
        assert_eq!(stages.look(at(3001), Some(at(0)), 0), Step::Begin(Stage::Device));
        assert_eq!(stages.look(at(3002), Some(at(0)), 0), Step::Nothing);
    }
}
