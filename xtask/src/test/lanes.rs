//! Several things run at a time where there are processors for them, since most of what starts processes waits for them: one lane has the
//! guests, one after another, the next what keeps the processors busy, and they share what is left. A third lane takes some of what waits
//! as soon as nothing keeps the processors busy but a guest. What each prints is shown when it has ended, so that nothing mixes.
//!
//! On two processors a test may not get the time that it counts on while another one runs. So what fails beside another runs once more
//! when everything else has ended, alone: only that counts, and the first failure is named at the end. A fault that hardly ever shows is
//! more likely missed by that; it stays in the output, and soak (`cargo xtask soak`) gives no second chance. Neither has a judge that
//! saw wrong content: no want of time makes that.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::tests_result::Counts;

/// What takes longer is named while it runs.
const LONG: Duration = Duration::from_secs(120);
/// How many of those that took longest are named at the end.
const NAMED: usize = 8;

/// What judges of content say of content that is wrong, which a busy machine does not explain: the checker of histories, the load under
/// random faults, copies after a scrub, fsx, fio.
const WRONG_CONTENT: [&str; 6] = [
    "NOT linearizable",
    "and is wrong from byte",
    "copies differ after a scrub",
    "miscompare",
    "bad data",
    "verify: bad",
];

/// What came of something that ran.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    /// What was lacking, and how to provide it; counted already.
    pub(crate) skips: Vec<String>,
    /// What went wrong beside tests that failed.
    pub(crate) failures: Vec<String>,
    /// What failed beside something else, and not alone.
    pub(crate) passed_alone: Vec<String>,
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        self.counts.failed == 0 && self.failures.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.counts.passed += other.counts.passed;
        self.counts.failed += other.counts.failed;
        self.counts.skipped += other.counts.skipped;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
        self.passed_alone.extend(other.passed_alone);
    }
}

/// What a job prints.
#[derive(Default)]
pub(crate) struct Shown(Vec<u8>);

impl Shown {
    /// A line of our own.
    pub(crate) fn line(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'\n');
    }

    /// Shows all of it on standard output.
    pub(crate) fn print(&self) {
        // Whoever reads us may be gone; the tests go on and the status tells.
        let _ = std::io::stdout().write_all(&self.0);
    }

    /// Whether some judge says in it that content is wrong.
    fn has_wrong_content(&self) -> bool {
        let text = String::from_utf8_lossy(&self.0);
        WRONG_CONTENT.iter().any(|words| text.contains(words))
    }

    /// Runs a program to its end, keeps all that it prints, both streams in their order, and shows each line to `see`.
    pub(crate) fn run(
        &mut self,
        command: &mut Command,
        mut see: impl FnMut(&str),
    ) -> Result<ExitStatus, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error: std::io::Error| format!("{program}: {error}; run `make setup`");
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(failed)?)
            .stderr(writer);
        let child = command.spawn();
        // Our own ends of the pipe, or it would never be at its end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.map_err(failed)?;
        let mut output = BufReader::new(reader);
        let mut read = || -> std::io::Result<()> {
            loop {
                let begun = self.0.len();
                if output.read_until(b'\n', &mut self.0)? == 0 {
                    return Ok(());
                }
                see(String::from_utf8_lossy(&self.0[begun..]).trim_end());
            }
        };
        let read = read();
        let status = child.wait().map_err(failed)?;
        read.map_err(failed)?;
        Ok(status)
    }
}

/// Something to run.
pub(crate) struct Job {
    name: String,
    work: Box<dyn FnMut(&mut Shown) -> Report + Send>,
}

impl Job {
    pub(crate) fn new(
        name: impl Into<String>,
        work: impl FnMut(&mut Shown) -> Report + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            work: Box::new(work),
        }
    }
}

/// What there is to run. Each list keeps its order.
#[derive(Default)]
pub(super) struct Jobs {
    /// At most one of these at a time.
    pub(super) guests: VecDeque<Job>,
    /// These keep the processors busy.
    pub(super) busy: VecDeque<Job>,
    /// These wait for processes and clocks, mostly.
    pub(super) waiting: VecDeque<Job>,
    /// How many of `busy` run.
    busy_now: usize,
}

/// What a lane is to do next.
enum Next {
    Run(Job),
    /// One of those that keep the processors busy.
    RunBusy(Job),
    /// Look again when another job has ended.
    Wait,
    End,
}

impl Jobs {
    fn next_of_guests(&mut self) -> Next {
        let next = self.guests.pop_front().or_else(|| self.waiting.pop_front());
        next.map_or_else(|| self.next_busy(), Next::Run)
    }

    fn next_of_busy(&mut self) -> Next {
        match self.next_busy() {
            Next::End => self.waiting.pop_front().map_or(Next::End, Next::Run),
            busy => busy,
        }
    }

    /// Beside both others, but only while the processors have room: what waits counts on the time that it gets.
    fn next_of_waiting(&mut self) -> Next {
        match (
            self.waiting.is_empty(),
            self.busy.is_empty() && self.busy_now == 0,
        ) {
            (true, _) => Next::End,
            (false, false) => Next::Wait,
            (false, true) => self.waiting.pop_front().map_or(Next::End, Next::Run),
        }
    }

    fn next_busy(&mut self) -> Next {
        let Some(job) = self.busy.pop_front() else {
            return Next::End;
        };
        self.busy_now += 1;
        Next::RunBusy(job)
    }
}

type Take = fn(&mut Jobs) -> Next;

enum Event {
    Begun(String),
    Ended(Job, Shown, Report),
}

/// With fewer processors one thing runs at a time.
const PROCESSORS_FOR_ALL: usize = 2;
const LANES: [Take; 3] = [Jobs::next_of_guests, Jobs::next_of_busy, Jobs::next_of_waiting];

/// Runs everything and shows what it prints. Blocks for as long as it takes.
pub(super) fn run(jobs: Jobs) -> Report {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    match processors < PROCESSORS_FOR_ALL {
        true => run_in(&LANES[..1], jobs),
        false => run_in(&LANES, jobs),
    }
}

fn run_in(lanes: &[Take], jobs: Jobs) -> Report {
    let mut heard = Heard::default();
    run_lanes(lanes, jobs, &mut heard);
    // What failed beside others has another chance, alone.
    for (job, before) in std::mem::take(&mut heard.failed_beside) {
        let name = job.name.clone();
        println!("\n{name} failed beside something else, and runs once more, alone");
        let alone = Jobs {
            waiting: VecDeque::from([job]),
            ..Jobs::default()
        };
        let mut again = Heard::default();
        run_lanes(&lanes[..1], alone, &mut again);
        if again.sum.is_good() {
            let failed = before.counts.failed.max(1);
            again.sum.passed_alone.push(format!("{name} ({failed} failed)"));
        }
        heard.sum.add(again.sum);
        heard.took.extend(again.took);
    }
    heard.name_longest();
    heard.sum
}

fn run_lanes(lanes: &[Take], jobs: Jobs, heard: &mut Heard) {
    let (jobs, ended) = (Mutex::new(jobs), Condvar::new());
    std::thread::scope(|scope| {
        let (events, receiver) = channel();
        for &take in lanes {
            let (events, jobs, ended) = (events.clone(), &jobs, &ended);
            scope.spawn(move || {
                while let Some((mut job, _busy)) = next(jobs, ended, take) {
                    let mut shown = Shown::default();
                    // Who hears is there until all lanes have ended.
                    drop(events.send(Event::Begun(job.name.clone())));
                    let report = (job.work)(&mut shown);
                    drop(events.send(Event::Ended(job, shown, report)));
                }
            });
        }
        drop(events);
        heard.listen(&receiver, lanes.len() > 1);
    });
}

/// The list of jobs; a lane that panicked took its job with it, and what is left is as it was.
fn locked(jobs: &Mutex<Jobs>) -> MutexGuard<'_, Jobs> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next job of a lane, when there is one, and what says at its end that the processors have room again. The list is free before
/// a job runs.
fn next<'a>(jobs: &'a Mutex<Jobs>, ended: &'a Condvar, take: Take) -> Option<(Job, Option<Busy<'a>>)> {
    let mut list = locked(jobs);
    loop {
        match take(&mut list) {
            Next::Run(job) => return Some((job, None)),
            Next::RunBusy(job) => return Some((job, Some(Busy { jobs, ended }))),
            Next::Wait => list = ended.wait(list).unwrap_or_else(PoisonError::into_inner),
            Next::End => {
                // Who waits for others has nothing to wait for either.
                ended.notify_all();
                return None;
            }
        }
    }
}

/// A job runs that keeps the processors busy.
struct Busy<'a> {
    jobs: &'a Mutex<Jobs>,
    ended: &'a Condvar,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        locked(self.jobs).busy_now -= 1;
        self.ended.notify_all();
    }
}

/// What has come of the jobs so far.
#[derive(Default)]
struct Heard {
    running: Vec<(String, Instant)>,
    took: Vec<(Duration, String)>,
    sum: Report,
    /// What failed where something else may have run, too, and what came of it; not in the sum.
    failed_beside: Vec<(Job, Report)>,
}

impl Heard {
    fn listen(&mut self, events: &Receiver<Event>, is_beside: bool) {
        loop {
            match events.recv_timeout(LONG) {
                Ok(Event::Begun(name)) => self.running.push((name, Instant::now())),
                Ok(Event::Ended(job, shown, report)) => {
                    self.ended(&job.name, &shown);
                    match is_beside && !report.is_good() && !shown.has_wrong_content() {
                        true => self.failed_beside.push((job, report)),
                        false => self.sum.add(report),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    for (name, since) in &self.running {
                        let seconds = since.elapsed().as_secs_f64();
                        println!("still running after {seconds:.0} s: {name}");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn ended(&mut self, name: &str, shown: &Shown) {
        let at = self.running.iter().position(|(other, _)| other == name);
        let time = at.map_or(Duration::ZERO, |at| self.running.remove(at).1.elapsed());
        println!("\n{name}: {:.1} s", time.as_secs_f64());
        shown.print();
        self.took.push((time, name.to_owned()));
    }

    fn name_longest(&mut self) {
        self.took.sort_by(|one, other| other.cmp(one));
        println!("\nWhat took longest:");
        for (time, name) in self.took.iter().take(NAMED) {
            println!("{:>7.1} s  {name}", time.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_jobs_run_once_and_guests_one_at_a_time() {
        let (guests, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let job = |is_guest: bool| {
            let (guests, ran) = (Arc::clone(&guests), Arc::clone(&ran));
            Job::new("job", move |_| {
                if is_guest {
                    assert_eq!(guests.fetch_add(1, Ordering::SeqCst), 0, "another guest runs");
                }
                std::thread::sleep(Duration::from_millis(2));
                if is_guest {
                    guests.fetch_sub(1, Ordering::SeqCst);
                }
                ran.fetch_add(1, Ordering::SeqCst);
                let mut report = Report::default();
                report.counts.passed = 1;
                report
            })
        };
        for lanes in [&LANES[..], &LANES[..1]] {
            let jobs = Jobs {
                guests: (0..5).map(|_| job(true)).collect(),
                busy: (0..2).map(|_| job(false)).collect(),
                waiting: (0..20).map(|_| job(false)).collect(),
                ..Jobs::default()
            };
            assert_eq!(run_in(lanes, jobs).counts.passed, 27);
        }
        assert_eq!(ran.load(Ordering::SeqCst), 54);
    }

    #[test]
    fn what_waits_has_two_lanes_beside_a_guest_once_nothing_else_keeps_the_processors_busy() {
        const SIDES: usize = 3;
        let (met, busy_ended) = (
            Arc::new((Mutex::new(0), Condvar::new())),
            Arc::new(AtomicUsize::new(0)),
        );
        // Ends well when as many as that run at a time, none of them before the busy one has ended unless it is the guest.
        let job = |is_guest: bool| {
            let (met, busy_ended) = (Arc::clone(&met), Arc::clone(&busy_ended));
            Job::new("job", move |_| {
                let mut report = Report::default();
                let in_order = is_guest || busy_ended.load(Ordering::SeqCst) == 1;
                let mut here = met.0.lock().unwrap();
                *here += 1;
                met.1.notify_all();
                let limit = Duration::from_secs(10);
                let (_here, late) = met
                    .1
                    .wait_timeout_while(here, limit, |here| *here < SIDES)
                    .unwrap();
                match in_order && !late.timed_out() {
                    true => report.counts.passed = 1,
                    false => report.failures.push(format!("in order {in_order}, {late:?}")),
                }
                report
            })
        };
        let ends = Arc::clone(&busy_ended);
        let busy = Job::new("busy", move |_| {
            std::thread::sleep(Duration::from_millis(50));
            ends.store(1, Ordering::SeqCst);
            let mut report = Report::default();
            report.counts.passed = 1;
            report
        });
        let jobs = Jobs {
            guests: VecDeque::from([job(true)]),
            busy: VecDeque::from([busy]),
            waiting: VecDeque::from([job(false), job(false)]),
            ..Jobs::default()
        };
        let report = run_in(&LANES, jobs);
        assert_eq!((report.counts.passed, report.failures), (4, Vec::new()));
        assert!(report.passed_alone.is_empty());
    }

    #[test]
    fn two_jobs_run_at_a_time() {
        let (ours, theirs) = (channel(), channel());
        let job = |(say, hear): (std::sync::mpsc::Sender<()>, Receiver<()>)| {
            Job::new("job", move |_| {
                // Who has ended hears nothing.
                let _ = say.send(());
                let mut report = Report::default();
                match hear.recv_timeout(Duration::from_secs(10)) {
                    Ok(()) => report.counts.passed = 1,
                    Err(why) => report.failures.push(why.to_string()),
                }
                report
            })
        };
        let jobs = Jobs {
            guests: VecDeque::from([job((ours.0, theirs.1))]),
            busy: VecDeque::from([job((theirs.0, ours.1))]),
            ..Jobs::default()
        };
        let report = run_in(&LANES, jobs);
        assert_eq!((report.counts.passed, report.failures.len()), (2, 0));
    }

    #[test]
    fn what_fails_beside_something_else_counts_as_it_does_alone() {
        let failing = |name: &str, times: u64| {
            let mut left = times;
            Job::new(name, move |_| {
                let mut report = Report::default();
                report.counts.failed = u64::from(left > 0);
                report.counts.passed = 1 - report.counts.failed;
                left = left.saturating_sub(1);
                report
            })
        };
        let jobs = || Jobs {
            busy: VecDeque::from([failing("once", 1), failing("twice", 2), failing("never", 0)]),
            ..Jobs::default()
        };
        let report = run_in(&LANES, jobs());
        assert_eq!((report.counts.passed, report.counts.failed), (2, 1));
        assert_eq!(report.passed_alone, ["once (1 failed)"]);
        let report = run_in(&LANES[..1], jobs());
        assert_eq!(
            (report.counts.passed, report.counts.failed),
            (1, 2),
            "nothing ran beside"
        );
        assert!(report.passed_alone.is_empty());
    }

    #[test]
    fn who_saw_wrong_content_has_no_second_chance() {
        let mut is_first = true;
        let job = Job::new("judge", move |shown| {
            let mut report = Report::default();
            report.counts.failed = u64::from(std::mem::replace(&mut is_first, false));
            shown.line("NOT linearizable, says porcupine of 7 operations");
            report
        });
        let jobs = Jobs {
            waiting: VecDeque::from([job]),
            ..Jobs::default()
        };
        let report = run_in(&LANES, jobs);
        assert_eq!(report.counts.failed, 1);
        assert!(report.passed_alone.is_empty());
    }

    #[test]
    fn both_streams_are_kept_in_order_and_the_status_returned() {
        let mut shown = Shown::default();
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; printf three; exit 3"]);
        let status = shown
            .run(&mut command, |line| lines.push(line.to_owned()))
            .unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(lines, ["one", "two", "three"]);
        assert_eq!(shown.0, b"one\ntwo\nthree");
        let error = shown
            .run(&mut Command::new("/nonexistent/program"), |_| {})
            .unwrap_err();
        assert!(error.starts_with("/nonexistent/program: "), "{error}");
    }
}
