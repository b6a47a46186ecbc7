//! What an import says of itself.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use foundation::ByteCount;
use packfs::name::Shown;
use packfs::{ImportError, ImportProgress, WriteError};

use super::Stop;
use crate::output::{Failure, Output};

/// Errors that are kept; more are counted only.
const ERRORS_MAX: usize = 1000;

/// How an import went.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) progress: ImportProgress,
    /// What there is to import, entries and bytes, if the bar has counted it.
    pub(super) total: Option<(u64, u64)>,
    pub(super) skipped: Vec<PathBuf>,
    pub(super) errors: Vec<String>,
    pub(super) more_errors: u64,
    /// Nothing was deleted, since something could not be read.
    pub(super) nothing_deleted: bool,
    /// How many deletions are committed, if the deleting was stopped: the others are not made.
    pub(super) deletions_kept: Option<u64>,
    /// Entries that were read back and compared.
    pub(super) verified: Option<u64>,
}

impl Tally {
    /// Notes an entry that could not be imported.
    pub(super) fn failed(&mut self, error: &ImportError<Failure>) {
        self.note(error.to_string());
    }

    /// Notes an entry that is not on the volume as it is in the source.
    pub(super) fn differs(&mut self, path: &[u8], what: &str) {
        self.note(format!(
            "{}: verified, and on the volume it {what}",
            Shown::new(path)
        ));
    }

    /// Adds those of a second pass; the first one's own failures are known already.
    pub(super) fn take_errors(&mut self, other: Self) {
        let new: Vec<String> = other
            .errors
            .into_iter()
            .filter(|error| !self.errors.contains(error))
            .collect();
        self.more_errors += other.more_errors;
        for error in new {
            self.note(error);
        }
    }

    fn note(&mut self, error: String) {
        match self.errors.len() < ERRORS_MAX {
            true => self.errors.push(error),
            false => self.more_errors += 1,
        }
    }
}

#[derive(serde::Serialize)]
struct ImportView<'a> {
    entries: u64,
    copied: u64,
    unchanged: u64,
    attributes_set: u64,
    deleted: u64,
    content_bytes: u64,
    unchanged_bytes: u64,
    commits: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<u64>,
    skipped: Vec<String>,
    /// How many these are.
    skipped_count: usize,
    errors: &'a [String],
    more_errors: u64,
}

/// Prints the result.
///
/// # Errors
/// If entries are missing or differ, which is said in the result.
pub(super) fn print(tally: &Tally, seconds: f64, output: &Output) -> Result<(), Failure> {
    let view = ImportView::of(tally, seconds);
    output.print(&view, || describe(&view, tally));
    match tally.errors.is_empty() {
        true => Ok(()),
        false => Err(Failure::reported()),
    }
}

/// Prints what there is of one that was stopped, and gives what is left to be reported.
pub(super) fn print_stopped(tally: &Tally, seconds: f64, failure: Failure, output: &Output) -> Failure {
    let view = ImportView::of(tally, seconds);
    output.print_failed(&view, failure, || describe(&view, tally))
}

impl<'a> ImportView<'a> {
    fn of(tally: &'a Tally, seconds: f64) -> Self {
        let done = &tally.progress;
        ImportView {
            entries: done.entries,
            copied: done.copied,
            unchanged: done.unchanged,
            attributes_set: done.attributes_set,
            deleted: done.deleted,
            content_bytes: done.content_bytes,
            unchanged_bytes: done.unchanged_bytes,
            commits: done.commits,
            seconds,
            files_per_second: done.entries as f64 / seconds,
            mib_per_second: done.content_bytes as f64 / seconds / ByteCount::MIB.0 as f64,
            verified: tally.verified,
            skipped: tally
                .skipped
                .iter()
                .map(|path| Shown::new(path.as_os_str().as_bytes()).to_string())
                .collect(),
            skipped_count: tally.skipped.len(),
            errors: &tally.errors,
            more_errors: tally.more_errors,
        }
    }
}

fn describe(view: &ImportView<'_>, tally: &Tally) -> String {
    let mut text = format!(
        "imported {} entries, {} in {:.1} s: {:.0} files/s, {:.1} MiB/s, {} commits\n",
        view.entries,
        ByteCount(view.content_bytes),
        view.seconds,
        view.files_per_second,
        view.mib_per_second,
        view.commits
    );
    if view.unchanged + view.attributes_set + view.deleted > 0 {
        text.push_str(&format!(
            "{} copied, {} were there already ({}), {} got attributes only, {} deleted\n",
            view.copied,
            view.unchanged,
            ByteCount(view.unchanged_bytes),
            view.attributes_set,
            view.deleted
        ));
    }
    if let Some(verified) = view.verified {
        text.push_str(&format!("{verified} entries read back and compared\n"));
    }
    for path in &view.skipped {
        text.push_str(&format!("left out {path}: neither file, directory nor link\n"));
    }
    if view.skipped_count > 0 {
        text.push_str(&format!(
            "{} left out in all; --special takes pipes, sockets and, if run as root, devices\n",
            view.skipped_count
        ));
    }
    for error in view.errors {
        text.push_str(&format!("{error}\n"));
    }
    let failed = view.errors.len() as u64 + view.more_errors;
    if failed > 0 {
        text.push_str(&format!(
            "{failed} entries are not as in the source; mend what is named and import again, which copies only these\n"
        ));
    }
    if tally.nothing_deleted {
        text.push_str("nothing was deleted, since not all could be read\n");
    }
    text
}

/// What is to be said of an import that was to be verified, and was not.
pub(super) fn unverified(tally: &Tally, why: impl std::fmt::Display) -> String {
    match tally.errors.len() as u64 + tally.more_errors {
        0 => format!("everything is imported, but it was not verified: {why}"),
        failed => {
            format!("{failed} entries are not as in the source, and the others were not verified: {why}")
        }
    }
}

/// Why an import stopped, and what stays. `total` is what there is to import, entries and bytes, where that is known.
pub(super) fn explain(stop: &Stop, tally: &Tally, total: Option<(u64, u64)>, committed: bool) -> String {
    let done = &tally.progress;
    let of = total.map_or(String::new(), |(entries, _)| format!(" of {entries}"));
    let stays = if committed {
        format!("{}{of} entries are committed and can be read", done.entries)
    } else {
        "what was committed before stays readable".to_owned()
    };
    let stays = match tally.deletions_kept {
        Some(kept) => format!("{stays}; {kept} that the source does not have are deleted, and no more"),
        None => stays,
    };
    let again = "the same command goes on from there";
    match stop {
        Stop::Other(failure) => format!("{failure}. {stays}"),
        Stop::Signal => format!("the import was stopped by a signal. {stays}; {again}"),
        Stop::Entry(ImportError::Write {
            path,
            source: WriteError::NoSpace { missing },
        }) => {
            let left =
                total.map(|(_, bytes)| bytes.saturating_sub(done.content_bytes + done.unchanged_bytes));
            let left = match left {
                Some(left) => format!(
                    "{} of content and its index are left to import and find",
                    ByteCount(left)
                ),
                None => format!("{} more, and what comes behind, find", ByteCount(missing.0)),
            };
            format!(
                "{path}: the volume is full: {left} no room; resize the volume by at least that, or import less. {stays}; {again}"
            )
        }
        // The error itself says what stays, as nobody else does who meets it.
        Stop::Entry(ImportError::Write {
            path,
            source: WriteError::Io { block, source },
        }) => {
            format!("{path}: writing block {block} of the volume failed: {source}. {stays}; {again}")
        }
        Stop::Entry(ImportError::Source(failure)) => {
            format!(
                "the import stopped: {failure}. {stays}; {again}, and --keep-going goes on behind such files"
            )
        }
        Stop::Entry(error) if error.is_fatal() => format!("{error}. {stays}; {again}"),
        Stop::Entry(error) => {
            format!("{error}. {stays}; {again}, and --keep-going goes on behind such files")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_so_is_said_of_an_import_that_was_stopped() {
        let mut tally = Tally::default();
        let text = unverified(&tally, "no lease");
        assert_eq!(text, "everything is imported, but it was not verified: no lease");
        tally.failed(&ImportError::Source(Failure::new("a: cannot be read")));
        let text = unverified(&tally, "no lease");
        assert!(
            text.starts_with("1 entries are not as in the source") && text.ends_with("verified: no lease"),
            "{text}"
        );
        tally.progress.entries = 7;
        let text = explain(&Stop::Signal, &tally, None, true);
        assert!(
            text.contains("7 entries are committed") && !text.contains("deleted"),
            "{text}"
        );
        tally.deletions_kept = Some(3);
        let text = explain(&Stop::Signal, &tally, None, true);
        assert!(
            text.contains("read; 3 that the source does not have are deleted, and no more"),
            "{text}"
        );
    }
}
