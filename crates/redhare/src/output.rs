//! Results for people and for machines.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a command failed: what a person reads, complete in itself.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    message: String,
    /// The exit status, where it says more than that something failed.
    status: Option<u8>,
    /// Standard output has something else in it: machines, too, find the reason on standard error.
    apart: bool,
}

impl Failure {
    pub(crate) fn new(message: impl Display) -> Self {
        Self {
            message: message.to_string(),
            status: None,
            apart: false,
        }
    }

    /// Gives it an exit status, unless it has one.
    pub(crate) fn or_status(mut self, status: u8) -> Self {
        self.status.get_or_insert(status);
        self
    }

    /// Keeps it off standard output.
    pub(crate) fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// A failure that was printed as a result already: only the exit status is left to give.
    pub(crate) fn reported() -> Self {
        Self::new("")
    }
}

/// Where results go.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether results are for machines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints `value` as JSON, or the text that `people` makes.
    pub(crate) fn print<T: serde::Serialize>(&self, value: &T, people: impl FnOnce() -> String) {
        if self.json {
            let text = serde_json::to_string_pretty(value).expect("results are plain data");
            write(format!("{text}\n").as_bytes());
        } else {
            write(format!("{}\n", people().trim_end()).as_bytes());
        }
    }

    /// Prints what there is though the command failed. Machines get one document, with the reason as "error" in it unless
    /// it is a list, whose rows say it; people are told the reason as ever. Gives what is left to be reported.
    pub(crate) fn print_failed<T: serde::Serialize>(
        &self,
        value: &T,
        failure: Failure,
        people: impl FnOnce() -> String,
    ) -> Failure {
        if !self.json {
            self.print(value, people);
            return failure;
        }
        let mut value = serde_json::to_value(value).expect("results are plain data");
        if let Some(fields) = value.as_object_mut() {
            fields.insert("error".to_owned(), failure.message.into());
        }
        self.print(&value, String::new);
        Failure {
            status: failure.status,
            ..Failure::reported()
        }
    }

    /// Reports a failure and gives the exit status for it.
    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        let status = failure.status.map_or(ExitCode::FAILURE, ExitCode::from);
        if failure.message.is_empty() {
            return status;
        }
        let document = serde_json::json!({ "error": failure.message });
        if self.json && failure.apart {
            eprintln!("{document}");
        } else if self.json {
            write(format!("{document}\n").as_bytes());
        } else {
            eprintln!("redhare: {failure}");
        }
        status
    }
}

/// A result could not be written.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Whether something that was to be written to standard output is not there, as on a full disk.
pub(crate) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Writes to standard output. A reader that has seen enough ("| head") is no failure.
pub(crate) fn write(bytes: &[u8]) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            IS_LOST.store(true, Ordering::Relaxed);
            eprintln!("redhare: cannot write the result: {error}");
        }
        _ => {}
    }
}

/// Columns padded to their widest cell, the first row as heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows =
            [["NAME", "SIZE"], ["a", "1 GiB"], ["longer", "2"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "NAME    SIZE\na       1 GiB\nlonger  2\n");
    }
}
