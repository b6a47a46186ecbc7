//! The rows about commits: how soon a mount that follows shows what another mount has made durable, as programs see it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use bench::paired::quantile;
use bench::report::{Bar, Row};
use foundation::Random;

use super::mounted::{Mount, NO_FUSE};
use super::{ROOM_BYTES, Stage};
use crate::output::Failure;

/// The promise, in milliseconds: what `--follow-within` is unless told.
const BAR_MS: f64 = 1_000.0;
const VOLUME: &str = "commits";
/// Before each commit passes up to so long, so that they meet the mount that follows at any point of what it does.
const PAUSE_MAX_MS: u64 = 1_500;
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Who has seen nothing by then will not.
const LIMIT: Duration = Duration::from_secs(60);
/// The file that each commit gives another content.
const OVERWRITTEN: &str = "overwritten";

/// The rows; where there is no FUSE, that there is none.
pub(super) fn rows(stage: &Stage<'_>) -> Result<Vec<Row>, Failure> {
    if !Mount::can_be() {
        return Ok(vec![Row::missing(
            "a commit that another mount follows",
            Bar::AtMost(BAR_MS),
            NO_FUSE,
        )]);
    }
    stage.volume(VOLUME, ROOM_BYTES, 3)?;
    let places = ["writes", "follows"].map(|name| stage.scratch.join(name));
    let writing = Mount::start(stage, VOLUME, &places[0], &[])?;
    std::fs::write(places[0].join(OVERWRITTEN), text(0)).map_err(Failure::new)?;
    commit(&places[0].join("0"), &text(0))?;
    let following = Mount::start(stage, VOLUME, &places[1], &["--read-only"])?;
    let mut random = Random::from_seed(1);
    let (mut waited, mut written) = (Vec::new(), Vec::new());
    for number in 1..=stage.arguments.commits {
        std::thread::sleep(Duration::from_millis(random.below(PAUSE_MAX_MS)));
        let began = Instant::now();
        let content = text(number);
        // What is not synced is durable with what is: one commit has both.
        std::fs::write(places[0].join(OVERWRITTEN), &content).map_err(Failure::new)?;
        commit(&places[0].join(number.to_string()), &content)?;
        let durable = Instant::now();
        written.push(milliseconds(durable - began));
        see(&places[1], number, &content)?;
        waited.push(milliseconds(durable.elapsed()));
    }
    drop((following, writing));
    stage.up.redhare(&["volume", "delete", VOLUME])?;
    Ok(described(&waited, &written))
}

/// Each is longer than the one before: who believes an old length cannot read it whole.
fn text(number: u32) -> String {
    let tail = "x".repeat(number as usize);
    format!("commit {number} {tail}\n")
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Makes a file and everything before it durable.
fn commit(path: &Path, content: &str) -> Result<(), Failure> {
    let mut file = File::create(path).map_err(Failure::new)?;
    file.write_all(content.as_bytes()).map_err(Failure::new)?;
    file.sync_all().map_err(Failure::new)
}

/// Looks until a commit is seen: its new name by `stat`, and the new content of a file that there was before by reading it.
fn see(directory: &Path, number: u32, content: &str) -> Result<(), Failure> {
    let made = directory.join(number.to_string());
    let overwritten = directory.join(OVERWRITTEN);
    let until = Instant::now() + LIMIT;
    loop {
        let is_there = std::fs::metadata(&made).is_ok();
        let found = std::fs::read_to_string(&overwritten).map_err(Failure::new)?;
        if is_there && found == content {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Failure::new(format!(
                "commit {number} was not seen by a mount that follows within {} s: its new file {} there, and the one that it overwrote reads {found:?}",
                LIMIT.as_secs(),
                if is_there { "is" } else { "is not" },
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn described(waited: &[f64], written: &[f64]) -> Vec<Row> {
    let (count, of) = (waited.len(), |share| quantile(waited.to_vec(), share));
    let worst = Row::new(
        format!("a commit is seen by a mount that follows: the worst of {count}"),
        of(1.0),
        "ms",
        Some(Bar::AtMost(BAR_MS)),
    );
    let median = Row::new(
        format!("a commit is seen by a mount that follows: the median of {count}"),
        of(0.5),
        "ms",
        Some(Bar::AtMost(BAR_MS)),
    );
    let note = format!(
        "from the end of fsync on the mount that writes until a new name and new content are seen, by a look each {} ms; half of them between {:.0} and {:.0} ms; \
         the write and fsync took {:.0} ms (median)",
        LOOK_EVERY.as_millis(),
        of(0.25),
        of(0.75),
        quantile(written.to_vec(), 0.5),
    );
    vec![worst.with_note(note), median]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_and_the_median_are_told_and_the_worst_is_held_to_the_bar() {
        let rows = described(&[400.0, 1_200.0, 300.0], &[20.0, 10.0, 30.0]);
        assert_eq!((rows[0].value, rows[1].value), (1_200.0, 400.0));
        assert!(rows[0].is_missed() && !rows[1].is_missed());
        assert!(rows[0].note.contains("took 20 ms"), "{}", rows[0].note);
    }

    #[test]
    fn who_sees_an_old_content_goes_on_looking() {
        let directory = std::env::temp_dir().join(format!("redhare-commits-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(OVERWRITTEN), text(0)).unwrap();
        std::fs::write(directory.join("1"), text(1)).unwrap();
        let looking = std::thread::spawn({
            let directory = directory.clone();
            move || see(&directory, 1, &text(1)).map_err(|error| error.to_string())
        });
        // It has looked by then, or looks later: both must end with the new content.
        std::thread::yield_now();
        assert!(!looking.is_finished(), "the old content was taken for the new");
        std::fs::write(directory.join(OVERWRITTEN), text(1)).unwrap();
        looking.join().unwrap().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
