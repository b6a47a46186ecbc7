//! The audit log: a line of JSON for each control action that changes something, and for each that was refused to who
//! called.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use identity::Identity;
use tokio::signal::unix::{SignalKind, signal};
use tonic::Code;

/// A file that lines are appended to. Whoever rotates it renames it and sends SIGHUP.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    file: Mutex<File>,
}

/// One action.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) method: &'a str,
    pub(crate) object: &'a str,
    pub(crate) outcome: Result<(), (Code, &'a str)>,
}

/// As it is written. A field that is added later stands at the end.
#[derive(serde::Serialize)]
struct Line<'a> {
    /// RFC 3339 in UTC, to the millisecond.
    time: String,
    /// The name in the caller's certificate.
    who: Option<&'a str>,
    role: Option<&'static str>,
    /// Serial number of the caller's certificate.
    certificate: Option<&'a str>,
    address: SocketAddr,
    method: &'a str,
    object: &'a str,
    /// "done", or gRPC's name of the refusal.
    outcome: String,
    /// What the caller was told.
    why: Option<&'a str>,
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

impl AuditLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(open(path)?),
        })
    }

    /// Appends a line by one write(2), so that none is torn by another process's. Blocks as long as that takes. The action
    /// is done already: a line that cannot be written is said in the master's own log.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        let (outcome, why) = match entry.outcome {
            Ok(()) => ("done".to_owned(), None),
            Err((code, why)) => (format!("{code:?}"), Some(why)),
        };
        let line = Line {
            time: rfc3339(std::time::SystemTime::now()),
            who: entry.identity.map(|identity| identity.name.as_str()),
            role: entry.identity.map(|identity| identity.role.name()),
            certificate: entry.identity.map(|identity| identity.serial.as_str()),
            address: entry.address,
            method: entry.method,
            object: entry.object,
            outcome,
            why,
        };
        let mut text = serde_json::to_vec(&line).expect("a line is plain data");
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            let text = String::from_utf8_lossy(&text);
            let path = self.path.display();
            tracing::error!(
                "the audit log {path} cannot be written ({error}); not in it is: {}",
                text.trim_end()
            );
        }
    }

    /// Goes on in a new file if the old one was renamed.
    fn reopen(&self) {
        match open(&self.path) {
            Ok(fresh) => *self.file.lock().unwrap_or_else(PoisonError::into_inner) = fresh,
            Err(error) => {
                let path = self.path.display();
                tracing::error!(
                    "the audit log {path} cannot be opened again ({error}): the old file goes on"
                );
            }
        }
    }
}

/// Opens the log again at each SIGHUP, for ever.
pub(crate) async fn reopen_on_hangup(log: Arc<AuditLog>) {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else {
        tracing::error!("the system gives no handler for SIGHUP: the audit log cannot be rotated");
        return;
    };
    while hangups.recv().await.is_some() {
        log.reopen();
    }
}

/// RFC 3339 in UTC, to the millisecond. The calendar is Howard Hinnant's `civil_from_days`.
fn rfc3339(time: std::time::SystemTime) -> String {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counted from 1 March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let millisecond = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn lines_go_on_in_a_new_file_once_it_was_opened_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("audit");
        let log = AuditLog::open(&path).unwrap();
        let record = |object: &str, outcome: Result<(), (Code, &str)>| {
            log.record(&Entry {
                address: "192.0.2.1:1".parse().unwrap(),
                identity: None,
                method: "Volumes/Delete",
                object,
                outcome,
            });
        };
        record("volume \"a\nb\"", Ok(()));
        let kept = place.path().join("audit.1");
        std::fs::rename(&path, &kept).unwrap();
        record("volume c", Err((Code::NotFound, "there is none")));
        log.reopen();
        record("volume d", Ok(()));
        let lines = |path: &Path| -> Vec<serde_json::Value> {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        };
        let (old, new) = (lines(&kept), lines(&path));
        assert_eq!((old.len(), new.len()), (2, 1));
        assert_eq!(old[0]["object"], "volume \"a\nb\"");
        assert_eq!(
            (&old[1]["outcome"], &old[1]["why"]),
            (&"NotFound".into(), &"there is none".into())
        );
        assert_eq!(
            (&new[0]["object"], &new[0]["outcome"]),
            (&"volume d".into(), &"done".into())
        );
    }
}
