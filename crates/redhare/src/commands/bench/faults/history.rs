//! Histories of registers, for a checker that this project did not write (`tests/linearizability`).
//!
//! A line for each operation, JSON: who did it, which register, whether it was a write, the value, and when it was asked for
//! and had ended, in nanoseconds. A write whose end is not known may have been done at any time after it was asked for, or
//! not at all: it has no end. A read that failed says nothing, and is left out. Of a write it also says how often its client made again
//! meanwhile, of this write or another one, what may have been done already: it may have been done twice before the write's end.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::output::Failure;

/// An operation of a worker on a register.
pub(super) struct Event {
    pub(super) client: u64,
    pub(super) register: u64,
    pub(super) is_write: bool,
    pub(super) value: u64,
    /// Of a write, no fewer than the attempts at it that may have been done before the last.
    pub(super) repeats: u64,
    pub(super) call: Duration,
    pub(super) end: Option<Duration>,
}

#[derive(serde::Serialize)]
struct Line {
    client: u64,
    register: u64,
    write: bool,
    value: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats: Option<u64>,
    call: u64,
    #[serde(rename = "return")]
    end: Option<u64>,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a history, one line after the other.
pub(super) fn write(path: &Path, events: &[Event]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let mut out = BufWriter::new(std::fs::File::create(path).map_err(failed)?);
    for event in events {
        let line = Line {
            client: event.client,
            register: event.register,
            write: event.is_write,
            value: event.value,
            repeats: event.is_write.then_some(event.repeats),
            call: nanoseconds(event.call),
            end: event.end.map(nanoseconds),
        };
        let text = serde_json::to_string(&line).map_err(Failure::new)?;
        writeln!(out, "{text}").map_err(failed)?;
    }
    out.flush().map_err(failed)
}

/// Has the checker judge a history: what it said. A history that is not linearizable is an error.
pub(super) fn judge(checker: &Path, history: &Path) -> Result<String, Failure> {
    let output = Command::new(checker).arg(history).output().map_err(|error| {
        Failure::new(format!(
            "cannot start the checker {}: {error}; tests/linearizability/setup builds it",
            checker.display()
        ))
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        return Ok(said);
    }
    let more = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!(
        "the checker does not accept {}: {said} {more}",
        history.display()
    )))
}
