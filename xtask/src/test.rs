//! `cargo xtask test`: every test, and one line with the sums at the end.
//!
//! A test that lacks something (a program, FUSE, a kernel feature) skips itself: it appends a line
//! `NAME: what is lacking and how to provide it` to the file named by the environment variable
//! `REDHARE_SKIPS` when that is set, says the same on standard error, and returns. Such tests are
//! counted as skipped here. On a person's machine the skips are listed; with `CI=true` they fail.

mod binaries;
pub(crate) mod lanes;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};

use crate::tests_result::Counts;
use crate::{Outcome, guests, refuse_arguments};
use lanes::{Jobs, Report};

/// Runs every test; skips are failures only where the environment says `CI=true`.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let Some(refused) = refuse_arguments("test", arguments) {
        return refused;
    }
    run_all(std::env::var("CI").is_ok_and(|value| value == "true"))
}

/// Runs every test; skips are failures.
pub(crate) fn run_strictly() -> Outcome {
    run_all(true)
}

fn run_all(strict: bool) -> Outcome {
    let Report {
        counts,
        skips,
        failures,
        passed_alone,
    } = match everything() {
        Ok(report) => report,
        Err(why) => {
            println!("FAILED: {why}");
            return Outcome::Failed;
        }
    };
    println!();
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    for name in &passed_alone {
        println!("FAILED BESIDE SOMETHING ELSE, passed alone: {name}");
    }
    for skip in &skips {
        println!("SKIPPED: {skip}");
    }
    if counts.skipped > 0 {
        let consequence = if strict {
            "which fails here"
        } else {
            "so this run proves less than it could"
        };
        println!(
            "{} tests were skipped, {consequence}; `make setup` says what to install",
            counts.skipped
        );
    }
    println!("{counts}");
    if is_good(counts, strict) {
        Outcome::Passed
    } else {
        Outcome::Failed
    }
}

fn is_good(counts: Counts, strict: bool) -> bool {
    counts.failed == 0 && counts.passed > 0 && !(strict && counts.skipped > 0)
}

/// Builds everything, then runs it, two or three programs at a time.
fn everything() -> Result<Report, String> {
    let built = binaries::build()?;
    let note = std::env::temp_dir().join(format!("redhare-skips-{}", std::process::id()));
    let cannot = |error: std::io::Error| format!("cannot use {}: {error}", note.display());
    std::fs::write(&note, "").map_err(cannot)?;

    let mut jobs = Jobs::default();
    jobs.guests.extend(guests::jobs(&built.program));
    for binary in built.tests {
        match (binary.waits(), binary.is_split()) {
            (true, true) => jobs.waiting.extend(binary.jobs(&note)?),
            // One long run each: the earlier it begins, the more is left to run beside it.
            (true, false) => binary
                .jobs(&note)?
                .into_iter()
                .for_each(|job| jobs.waiting.push_front(job)),
            (false, _) => jobs.busy.extend(binary.jobs(&note)?),
        }
    }
    jobs.busy.push_back(binaries::documentation());
    let mut report = lanes::run(jobs);

    let noted = std::fs::read_to_string(&note);
    // Best effort: a file left in the temporary directory does no harm.
    let _ = std::fs::remove_file(&note);
    // What ran twice says what it lacks twice.
    let noted: BTreeSet<String> = noted.map_err(cannot)?.lines().map(str::to_owned).collect();
    report.counts.turn_into_skips(noted.len() as u64);
    report.skips.extend(noted);
    report.counts.failed += report.failures.len() as u64;
    Ok(report)
}

/// Runs the command, passes its standard output on line by line and shows each line to `see`.
pub(crate) fn stream(command: &mut Command, mut see: impl FnMut(&str)) -> Result<ExitStatus, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{program}: {error}; run `make setup`");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut output = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
    let mut line = Vec::new();
    let read_all = loop {
        line.clear();
        match output.read_until(b'\n', &mut line) {
            Ok(0) => break Ok(()),
            Ok(_) => {
                // Whoever reads us may be gone; the tests go on and the status tells.
                let _ = std::io::stdout().write_all(&line);
                see(String::from_utf8_lossy(&line).trim_end());
            }
            Err(error) => break Err(error),
        }
    };
    let status = child.wait().map_err(failed)?;
    read_all.map_err(failed)?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_fail_only_where_they_must_and_nothing_run_is_no_success() {
        let counts = |passed, failed, skipped| Counts {
            passed,
            failed,
            skipped,
        };
        assert!(is_good(counts(3, 0, 0), true));
        assert!(is_good(counts(3, 0, 1), false));
        assert!(!is_good(counts(3, 0, 1), true));
        assert!(!is_good(counts(3, 1, 0), false));
        assert!(!is_good(counts(0, 0, 0), false));
    }

    #[test]
    fn output_is_seen_line_by_line_and_the_status_returned() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "printf ''; exit 3"]);
        let status = stream(&mut command, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((status.code(), lines.len()), (Some(3), 0));
        let error = stream(&mut Command::new("/nonexistent/program"), |_| {}).unwrap_err();
        assert!(error.starts_with("/nonexistent/program: "), "{error}");
    }
}
