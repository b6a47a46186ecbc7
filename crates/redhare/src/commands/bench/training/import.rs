//! The rows about an import: small files until they are durable, beside `cp -r` and `sync`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bench::paired::quantile;
use bench::process::run_timed;
use bench::report::{Bar, Row};

use super::race::Side;
use super::{FILE_BYTES, ROOM_BYTES, Stage};
use crate::commands::bench::up::make_files;
use crate::output::Failure;

/// The promises, by copies: at least so many times the speed of `cp -r` and `sync`.
const BARS: [(u32, f64); 2] = [(1, 2.0), (3, 0.6)];
/// An import takes seconds, so there are fewer of them than of other slices.
const ROUNDS_SHARE: usize = 4;
const VOLUME: &str = "imported";
/// The copies of a deleted volume are gone after this.
const DELETION_LIMIT: Duration = Duration::from_secs(60);

/// A row for each number of copies.
pub(super) fn rows(stage: &Stage<'_>) -> Result<Vec<Row>, Failure> {
    let count = stage.arguments.import_files as usize;
    let source = stage.scratch.join("imported");
    make_files(&source, count, FILE_BYTES)?;
    let rounds = stage.rounds().div_ceil(ROUNDS_SHARE);
    let mut rows = Vec::new();
    for (copies, bar) in BARS {
        let mut ratios = Vec::new();
        let mut sides = [Side::default(), Side::default()];
        for round in 0..rounds {
            let mut rates = [0.0; 2];
            for side in [round % 2, (round + 1) % 2] {
                let taken = if side == 0 {
                    copied(stage, &source, count)?
                } else {
                    imported(stage, &source, count, copies)?
                };
                rates[side] = taken.rate();
                sides[side] += taken;
            }
            ratios.push(rates[1] / rates[0]);
        }
        let [theirs, ours] = sides;
        let shown = match copies {
            1 => "one copy".to_owned(),
            copies => format!("{copies} copies"),
        };
        let row = Row::new(
            format!("import of {count} files of 16 KiB, synced, {shown}"),
            quantile(ratios.clone(), 0.5),
            "of cp -r and sync",
            Some(Bar::AtLeast(bar)),
        );
        rows.push(row.with_note(format!(
            "import {ours} (importer and cluster); cp -r and sync {theirs}; half of the {rounds} rounds between {:.2} and {:.2}; the source is in memory",
            quantile(ratios.clone(), 0.25),
            quantile(ratios, 0.75)
        )));
    }
    Ok(rows)
}

/// What others have left to write is written before the clock starts.
fn settle() {
    rustix::fs::sync();
}

/// `cp -r` and `sync`. What the kernel's threads spend on writing is nobody's.
fn copied(stage: &Stage<'_>, source: &Path, count: usize) -> Result<Side, Failure> {
    let to = stage.scratch.join("copied");
    settle();
    let begun = Instant::now();
    let (_, copying) = run_timed(Command::new("cp").arg("-r").arg(source).arg(&to)).map_err(Failure::new)?;
    let (_, syncing) = run_timed(&mut Command::new("sync")).map_err(Failure::new)?;
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&to).map_err(|error| Failure::new(format!("{}: {error}", to.display())))?;
    let mut side = Side::default();
    side.add(count as f64, seconds, copying + syncing);
    Ok(side)
}

/// An import into a new volume; it ends when its last commit is durable on every copy.
fn imported(stage: &Stage<'_>, source: &Path, count: usize, copies: u32) -> Result<Side, Failure> {
    let content = (count * FILE_BYTES) as u64;
    stage.volume(VOLUME, content * 2 + ROOM_BYTES, copies)?;
    settle();
    let before = stage.up.cpu_time()?;
    let begun = Instant::now();
    let (_, importing) = stage
        .up
        .timed(&["fs", "import", &source.display().to_string(), VOLUME])?;
    let seconds = begun.elapsed().as_secs_f64();
    let serving = stage.up.cpu_time()?.saturating_sub(before);
    stage.up.redhare(&["volume", "delete", VOLUME])?;
    // Its copies are deleted behind that; the next one needs its name and its room.
    let deadline = Instant::now() + DELETION_LIMIT;
    while stage.up.redhare(&["volume", "list"])?.contains(VOLUME) {
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "volume {VOLUME} is not deleted after {DELETION_LIMIT:?}; see the nodes' logs"
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut side = Side::default();
    side.add(count as f64, seconds, importing + serving);
    Ok(side)
}
