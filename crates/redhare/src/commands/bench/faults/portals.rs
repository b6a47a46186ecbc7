//! `redhare bench faults portals`: how long the I/O of a stock kernel's multipath host pauses when the portal in use fails.
//!
//! The kernel is in a guest, the cluster beside it: `tests/vm/bench-portals.sh` has the steps, which this program is given to.

use std::path::Path;
use std::process::{Command, Stdio};

use bench::report::{Bar, Row};
use clap::Args;

use crate::commands::bench::report;
use crate::output::{Failure, Output};

/// A process that dies may cost so much; a node that vanishes twice the host's keep-alive and a second.
const KILLED_SECONDS: f64 = 1.0;
/// What the script ends with where something is missing; its last line says what.
const SKIPPED: i32 = 77;

/// How often, and what the host is set to.
#[derive(Args)]
#[command(
    after_help = "Boots a guest under QEMU, emulated, with a kernel that is fetched once, and starts a cluster beside it. A thread in the guest reads 4 KiB at a time \
from a volume with two portals, another writes; the portal in use is killed, and then its host hangs. The longest operation counts. Needs what \
tests/vm/bench-portals.sh says, and this repository.
Example:
  redhare bench faults portals --rounds 5 --keep-alive 3"
)]
pub(crate) struct PortalsArguments {
    /// How often each fault happens
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=50))]
    rounds: u16,
    /// The kernel host's keep-alive time
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=60))]
    keep_alive: u16,
}

impl PortalsArguments {
    pub(in crate::commands::bench) fn with(rounds: u16) -> Self {
        Self {
            rounds,
            keep_alive: 5,
        }
    }
}

pub(super) fn run(arguments: &PortalsArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || report::describe(&rows));
    report::check(&rows, output)
}

/// Takes some minutes: most of it is waiting for hosts that hang.
pub(in crate::commands::bench) fn rows(arguments: &PortalsArguments) -> Result<Vec<Row>, Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vm/bench-portals.sh");
    let own = std::env::current_exe().map_err(Failure::new)?;
    // A guest boots in half a minute where other programs want the processors; a fault takes as long as the host hangs, and a minute.
    let limit = 300 + u32::from(arguments.rounds) * (160 + 3 * u32::from(arguments.keep_alive));
    let mut command = Command::new(&script);
    command
        .arg(own)
        .env("ROUNDS", arguments.rounds.to_string())
        .env("KEEP_ALIVE", arguments.keep_alive.to_string())
        .env("LIMIT_SECONDS", limit.to_string())
        .env_remove("REDHARE_CREDENTIALS")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let ended = command
        .output()
        .map_err(|error| Failure::new(format!("cannot start {}: {error}", script.display())))?;
    let text = String::from_utf8_lossy(&ended.stdout);
    match ended.status.code() {
        Some(0) => described(&text, arguments.keep_alive),
        Some(SKIPPED) => Err(Failure::new(text.lines().last().unwrap_or_default())),
        _ => Err(Failure::new(format!(
            "{} ended with {}:\n{text}",
            script.display(),
            ended.status
        ))),
    }
}

/// The seconds of each line of a kind: of reads, and of writes.
fn seconds_of(text: &str, kind: &str) -> Result<Vec<[f64; 2]>, Failure> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(kind)?.strip_prefix(": "));
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["read", read, "write", write] => Some([read.parse().ok()?, write.parse().ok()?]),
            _ => None,
        }
    };
    lines
        .map(|line| parse(line).ok_or_else(|| Failure::new(format!("the guest says no times: {line}"))))
        .collect()
}

fn described(text: &str, keep_alive: u16) -> Result<Vec<Row>, Failure> {
    let calm = seconds_of(text, "calm")?;
    let keep_alive = f64::from(keep_alive);
    let faults = [
        (
            "killed",
            "the target of the portal in use is killed",
            KILLED_SECONDS,
        ),
        (
            "vanished",
            "the host of the portal in use hangs",
            2.0 * keep_alive + 1.0,
        ),
    ];
    let worst = |times: &[[f64; 2]], side: usize| {
        // What was not seen is no number, and misses the bar.
        times.iter().map(|both| both[side]).fold(f64::NAN, f64::max)
    };
    let mut rows = Vec::new();
    for (kind, what, bar) in faults {
        let times = seconds_of(text, &format!("pause {kind}"))?;
        for (side, operation) in ["read", "write"].into_iter().enumerate() {
            let each: Vec<String> = times.iter().map(|both| format!("{:.2}", both[side])).collect();
            let row = Row::new(
                format!("kernel host with two portals, {what}: longest {operation}"),
                worst(&times, side),
                "s",
                Some(Bar::Below(bar)),
            );
            rows.push(row.with_note(format!(
                "each time {}; {:.2} in the seconds before the faults; keep-alive {keep_alive} s; the kernel is in an emulated guest",
                each.join(", "),
                worst(&calm, side)
            )));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_of_each_kind_counts() {
        let text = "ok 1 - two paths\ncalm: read 0.010 write 0.020\npause killed: read 0.400 write 0.700\n\
                    calm: read 0.030 write 0.010\npause killed: read 0.600 write 1.200\npause vanished: read 7.5 write 11.0\n";
        let rows = described(text, 5).unwrap();
        let values: Vec<_> = rows.iter().map(|row| (row.value, row.is_missed())).collect();
        assert_eq!(values, [(0.6, false), (1.2, true), (7.5, false), (11.0, true)]);
        assert!(
            rows[0]
                .note
                .starts_with("each time 0.40, 0.60; 0.03 in the seconds before"),
            "{}",
            rows[0].note
        );
        assert!(described("", 5).unwrap().iter().all(Row::is_missed));
        let error = described("pause killed: read\n", 5).unwrap_err();
        assert_eq!(error.to_string(), "the guest says no times: read");
    }
}
