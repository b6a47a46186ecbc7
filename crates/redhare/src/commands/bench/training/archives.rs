//! The rows about what people make of small files today: an EROFS image, and a tar that is read from its beginning.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench::paired::quantile;
use bench::process::run_timed;
use bench::report::{Bar, Row};
use bench::{cold, process};

use super::race::Side;
use super::{FILES_IN_FLIGHT, Filled, Stage, VOLUME};
use crate::output::Failure;

/// The promises: so many times the files per second of an EROFS image, index cold, and of a tar.
const EROFS_BAR: f64 = 3.0;
const EROFS: &str = "an EROFS image (uncompressed, on a loop device)";
const TAR_BAR: f64 = 1.0;
/// Threads of the client that read the volume.
const CORES: &str = "2";
/// Shuffled as a loader of shuffled tars with a buffer does it: files that are mixed with each other, those of a block, which stay together until
/// then, and those under way.
const WINDOW_FILES: usize = 2048;
const BLOCK_FILES: usize = 16;
const WINDOW_FILES_IN_FLIGHT: usize = 256;
/// A tar is read in pieces of so many bytes.
const TAR_READ_BYTES: usize = 1 << 20;

/// The rows that can be measured here.
pub(super) fn rows(stage: &Stage<'_>, filled: &Filled) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    match Image::mount(stage.scratch, &filled.source) {
        Ok(image) => rows.push(native_row(
            stage,
            &image.directory,
            EROFS,
            Some(Bar::AtLeast(EROFS_BAR)),
        )?),
        Err(why) => rows.push(Row::missing(
            format!("16 KiB files, against {EROFS}"),
            Bar::AtLeast(EROFS_BAR),
            why.to_string(),
        )),
    }
    rows.extend(tar_rows(stage, filled)?);
    Ok(rows)
}

/// An EROFS image of a directory, mounted.
struct Image {
    directory: PathBuf,
}

impl Image {
    fn mount(scratch: &Path, source: &Path) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new("only root may mount an image"));
        }
        let (image, directory) = (scratch.join("erofs.image"), scratch.join("erofs"));
        let made = Command::new("mkfs.erofs").arg(&image).arg(source).output();
        match made {
            Err(error) => {
                return Err(Failure::new(format!("mkfs.erofs: {error}; install erofs-utils")));
            }
            Ok(made) if !made.status.success() => {
                let said = String::from_utf8_lossy(&made.stderr).into_owned();
                return Err(Failure::new(format!("mkfs.erofs: {said}")));
            }
            Ok(_) => {}
        }
        std::fs::create_dir_all(&directory).map_err(Failure::new)?;
        let mut command = Command::new("mount");
        command
            .args(["-t", "erofs", "-o", "loop,ro"])
            .arg(&image)
            .arg(&directory);
        run_timed(&mut command).map_err(Failure::new)?;
        Ok(Self { directory })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // What stays mounted keeps the scratch directory, which says so when it is made anew.
        drop(Command::new("umount").arg(&self.directory).status());
    }
}

/// The volume by our own client, beside the same files in `directory`; `what` it is. All is cold on both sides.
pub(super) fn native_row(
    stage: &Stage<'_>,
    directory: &Path,
    what: &str,
    bar: Option<Bar>,
) -> Result<Row, Failure> {
    let text = stage.up.redhare(&[
        "fs",
        "bench",
        VOLUME,
        "--against",
        &directory.display().to_string(),
        "--files-in-flight",
        &FILES_IN_FLIGHT.to_string(),
        "--cores",
        CORES,
        "--rounds",
        &stage.rounds().to_string(),
        "--seconds",
        &stage.arguments.seconds.to_string(),
        "--index",
        "cold",
    ])?;
    let view: serde_json::Value = serde_json::from_str(&text).map_err(Failure::new)?;
    let number = |pointer: &str| {
        let found = view.pointer(pointer);
        found.and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
    };
    let row = Row::new(
        format!("16 KiB files, 3 copies, {FILES_IN_FLIGHT} in flight, index cold, against {what}"),
        number("/ratio"),
        "of its files/s",
        bar,
    );
    let side = |name: &str| {
        format!(
            "{:.0} files/s, {:.1} us of CPU a file",
            number(&format!("/{name}/files_per_second")),
            number(&format!("/{name}/cpu_us_per_file"))
        )
    };
    Ok(row.with_note(format!(
        "volume {}; the other {} (its readers alone); half of the {:.0} rounds between {:.2} and {:.2}",
        side("volume"),
        side("local"),
        number("/rounds"),
        number("/ratio_lower_quartile"),
        number("/ratio_upper_quartile")
    )))
}

/// Shuffled by blocks in windows, which has the bar, and with every file anywhere; each beside the tar.
fn tar_rows(stage: &Stage<'_>, filled: &Filled) -> Result<Vec<Row>, Failure> {
    let archive = stage.scratch.join("files.tar");
    write_tar(&archive, &filled.source)
        .map_err(|error| Failure::new(format!("{}: {error}", archive.display())))?;
    let (window, block) = (WINDOW_FILES.to_string(), BLOCK_FILES.to_string());
    let windows = ["--window", &window, "--block", &block];
    let orders: [(&[&str], usize, String, Option<Bar>); 2] = [
        (
            &windows,
            WINDOW_FILES_IN_FLIGHT,
            format!("shuffled in windows of {WINDOW_FILES} by blocks of {BLOCK_FILES}"),
            Some(Bar::AtLeast(TAR_BAR)),
        ),
        (&[], FILES_IN_FLIGHT, "every file anywhere".to_owned(), None),
    ];
    orders
        .into_iter()
        .map(|(order, in_flight, what, bar)| tar_row(stage, &archive, order, in_flight, &what, bar))
        .collect()
}

fn tar_row(
    stage: &Stage<'_>,
    archive: &Path,
    order: &[&str],
    in_flight: usize,
    what: &str,
    bar: Option<Bar>,
) -> Result<Row, Failure> {
    let rounds = stage.rounds();
    let slice = (stage.arguments.seconds / rounds as f64 / 2.0).max(0.1);
    let mut ratios = Vec::new();
    let mut sides = [Side::default(), Side::default()];
    for round in 0..rounds {
        let mut rates = [0.0; 2];
        for side in [round % 2, (round + 1) % 2] {
            let taken = if side == 0 {
                cold::evict(archive).map_err(Failure::new)?;
                read_tar(archive, Duration::from_secs_f64(slice)).map_err(Failure::new)?
            } else {
                shuffled(stage, order, in_flight, slice)?
            };
            rates[side] = taken.rate();
            sides[side] += taken;
        }
        ratios.push(rates[1] / rates[0]);
    }
    let [theirs, ours] = sides;
    let row = Row::new(
        format!(
            "16 KiB files, 3 copies, {what}, {in_flight} in flight, index in memory, against a tar read from its beginning"
        ),
        quantile(ratios.clone(), 0.5),
        "of its files/s",
        bar,
    );
    Ok(row.with_note(format!(
        "volume {ours} (client and cluster); tar {theirs} (one thread); half of the {rounds} rounds between {:.2} and {:.2}",
        quantile(ratios.clone(), 0.25),
        quantile(ratios, 0.75)
    )))
}

/// The volume in an order. Processor time is the client's while it reads, and the cluster's, in which the opening of the index is.
fn shuffled(stage: &Stage<'_>, order: &[&str], in_flight: usize, seconds: f64) -> Result<Side, Failure> {
    let (in_flight, seconds) = (in_flight.to_string(), seconds.to_string());
    let mut arguments = vec![
        "fs",
        "bench",
        VOLUME,
        "--files-in-flight",
        &in_flight,
        "--cores",
        CORES,
        "--seconds",
        &seconds,
        "--index",
        "warm",
    ];
    arguments.extend(order);
    let before = stage.up.cpu_time()?;
    let text = stage.up.redhare(&arguments)?;
    let cluster = stage.up.cpu_time()?.saturating_sub(before);
    side_of(&text, cluster)
}

/// What `fs bench` printed, with the cluster's processor time.
fn side_of(text: &str, cluster: Duration) -> Result<Side, Failure> {
    let view: serde_json::Value = serde_json::from_str(text).map_err(Failure::new)?;
    let number = |name: &str| {
        let found = view[name].as_f64();
        found.ok_or_else(|| Failure::new(format!("fs bench printed no {name}: {text}")))
    };
    let files = number("files")?;
    let client = number("cpu_seconds_per_1000_files")? * files / 1000.0;
    let mut side = Side::default();
    side.add(
        files,
        number("seconds")?,
        cluster + Duration::from_secs_f64(client),
    );
    Ok(side)
}

fn write_tar(archive: &Path, source: &Path) -> std::io::Result<()> {
    let mut builder = tar::Builder::new(File::create(archive)?);
    builder.append_dir_all(".", source)?;
    builder.into_inner()?.sync_all()
}

/// Reads from the beginning on, for at most so long. Processor time is that of this process, which does nothing else.
fn read_tar(archive: &Path, limit: Duration) -> std::io::Result<Side> {
    let cpu = || process::cpu_time(std::process::id());
    let before = cpu()?;
    let begun = Instant::now();
    let mut archive = tar::Archive::new(BufReader::with_capacity(TAR_READ_BYTES, File::open(archive)?));
    let (mut files, mut content) = (0u32, Vec::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            content.clear();
            entry.read_to_end(&mut content)?;
            files += 1;
        }
        if begun.elapsed() >= limit {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut side = Side::default();
    side.add(f64::from(files), seconds, cpu()?.saturating_sub(before));
    Ok(side)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tar_gives_all_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        std::fs::create_dir_all(source.join("a")).unwrap();
        for number in 0..20 {
            std::fs::write(source.join(format!("a/{number}")), [7; 3000]).unwrap();
        }
        let archive = directory.path().join("files.tar");
        write_tar(&archive, &source).unwrap();
        let read = read_tar(&archive, Duration::from_secs(60)).unwrap();
        assert!(read.rate() > 0.0);
        std::fs::write(&archive, [1; 2000]).unwrap();
        assert!(read_tar(&archive, Duration::from_secs(60)).is_err());
    }
    #[test]
    fn what_fs_bench_printed_has_the_clusters_processor_time_with_it() {
        let text = r#"{"files": 2000, "seconds": 0.5, "cpu_seconds_per_1000_files": 0.01, "files_per_second": 4000}"#;
        let side = side_of(text, Duration::from_millis(10)).unwrap();
        assert_eq!(side.to_string(), "4000 files/s, 15.0 us of CPU a file");
        assert!(side_of(r#"{"files": 2000, "seconds": 0.5}"#, Duration::ZERO).is_err());
    }
}
