//! `redhare fs bench`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::latency::Latencies;
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::ReaderOptions;

use super::against::{self, Against};
use super::medium::{Found, Location, Role, open_volume_over};
use super::readers::{Taken, VolumeReaders, WindowedReading, files};
use crate::output::{Failure, Output};

/// Files of one pass, at least: a small directory is gone through several times without a pause.
const PASS_FILES_MIN: usize = 1 << 16;
/// Calls of a block each that a core has under way at least, so that one is on its way while another is looked through.
const WINDOW_CALLS_MIN: usize = 2;

/// Read whole files in random order, and say how fast
#[derive(Args)]
#[command(
    after_help = "Latency is that of a whole file, or of a whole batch with --batch. Data is always cold on the volume's \
side: the client keeps none, and nodes pass the page cache by.\n\nWith --against the same files of a local directory \
are read by as many threads as files are in flight, in alternating slices, after what the kernel keeps of them in memory \
was dropped.\n\nExamples:\n  \
redhare fs bench file:images.packfs --seconds 10\n  redhare fs bench images --files-in-flight 64 --batch --json\n  \
redhare fs bench images --against ./images\n  \
redhare fs bench images --window 4096 --block 64"
)]
pub(super) struct BenchArguments {
    /// The volume, and a directory in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// Files that are read at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    files_in_flight: u16,
    /// Threads of this process that read the volume, each with a reactor, a channel and an index of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    cores: u16,
    /// How nodes of this machine are reached
    #[arg(long, value_enum, default_value_t = Via::Disk)]
    via: Via,
    /// How long, both sides together
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Read the files in flight with one call, as a loader of batches does; with --against half of them, so that a call is always
    /// under way
    #[arg(long)]
    batch: bool,
    /// Shuffle by blocks: so many files are read and mixed with each other at a time, and --block files that lie side by side stay
    /// together until then; without it any file may follow any other
    #[arg(long, value_name = "FILES", conflicts_with = "batch", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    window: Option<u32>,
    /// Files of a block, with --window; one call reads a block
    #[arg(long, value_name = "FILES", default_value_t = 64, requires = "window", value_parser = clap::value_parser!(u32).range(1..=4096))]
    block: u32,
    /// Whether names and inodes are in memory when the reading begins
    #[arg(long, value_enum, default_value_t = Index::Cold)]
    index: Index,
    /// Compare with the same files in this local directory, from which the volume was filled
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// What to drop from memory before local files are read, with --against
    #[arg(long, value_enum, default_value_t = Evict::All)]
    evict: Evict,
    /// Alternating pairs of slices, with --against
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Chooses the random order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bound of the metadata cache
    #[arg(long, default_value = "64MiB")]
    cache: ByteCount,
}

/// How nodes of this machine are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Via {
    /// By Unix socket, and their disks are read past them where they allow it
    Disk,
    /// By Unix socket: all bytes come from the nodes
    Socket,
    /// By TCP, as nodes of other machines
    Tcp,
}

impl From<Via> for client::Nearby {
    fn from(via: Via) -> Self {
        match via {
            Via::Disk => Self::Disk,
            Via::Socket => Self::Socket,
            Via::Tcp => Self::Tcp,
        }
    }
}

/// What is dropped from memory before local files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Evict {
    /// All that the kernel keeps of files on this machine, names and inodes too; only for root, else as files
    All,
    /// The data of the files that are compared
    Files,
}

/// What is known of names and inodes before the first read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Index {
    /// Nothing: it is read as it is needed.
    Cold,
    /// All of it, as far as the metadata cache takes it.
    Warm,
}

#[derive(serde::Serialize)]
struct BenchView {
    index: Index,
    /// Cores that read.
    cores: usize,
    files: u64,
    content_bytes: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    p50_us: u64,
    p99_us: u64,
    cpu_seconds_per_1000_files: f64,
    device_reads: u64,
    /// Of these, read from disks of this machine past their nodes.
    past_reads: u64,
    device_bytes: u64,
}

pub(super) async fn run(arguments: &BenchArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let opened = open_volume_over(&volume, Role::Read, arguments.via.into())?;
    let options = ReaderOptions {
        cache_bytes: usize::try_from(arguments.cache.0).unwrap_or(usize::MAX),
        ..ReaderOptions::default()
    };
    let duration = Duration::try_from_secs_f64(arguments.seconds)
        .map_err(|_| Failure::new(format!("--seconds {} is no length of time", arguments.seconds)))?;
    let reader = opened.reader(&options).await?;
    let files = files(&reader, &path)
        .await
        .map_err(|error| volume.failure(error))?;
    drop(reader);
    if files.is_empty() {
        return Err(volume.failure("there are no files to read; fill it with \"redhare fs import\""));
    }
    let in_flight = usize::from(arguments.files_in_flight);
    let cores = arguments.cores.into();
    if let Some(directory) = &arguments.against {
        let against = Against {
            opened: &opened,
            volume: &volume,
            from: &path,
            options: &options,
            directory,
            in_flight,
            cores,
            batch: if arguments.batch {
                (in_flight / 2).max(1)
            } else {
                1
            },
            windowed: arguments.window.map(|window| windowed(arguments, window, cores)),
            duration,
            rounds: arguments.rounds.into(),
            index: arguments.index,
            evict: arguments.evict,
            seed: arguments.seed,
        };
        let view = against::measure(&against, files).await?;
        output.print(&view, || against::describe(&view));
        return Ok(());
    }
    let readers = VolumeReaders::start(&opened, &options, &path, files.clone(), in_flight, cores)?;
    alone(arguments, output, readers, &opened.found, files.len(), duration).await
}

/// Shuffled by blocks, without any places yet.
fn windowed(arguments: &BenchArguments, window: u32, cores: usize) -> WindowedReading {
    let calls = usize::from(arguments.files_in_flight).div_ceil(arguments.block as usize * cores);
    WindowedReading {
        part: 0..0,
        block: arguments.block.into(),
        window: window.into(),
        calls: calls.max(WINDOW_CALLS_MIN),
        seed: arguments.seed,
        epoch: 0,
        until: None,
    }
}

/// Reads the volume's files, with nothing to compare them with: each once in random order, then again in another.
async fn alone(
    arguments: &BenchArguments,
    output: &Output,
    mut readers: VolumeReaders,
    found: &Found,
    count: usize,
    duration: Duration,
) -> Result<(), Failure> {
    readers.open(arguments.index).await?;
    let batch = if arguments.batch {
        usize::from(arguments.files_in_flight)
    } else {
        1
    };
    let mut random = Random::from_seed(arguments.seed);
    let mut epoch = 0;
    let mut latencies = Latencies::default();
    let mut total = Taken::default();
    let cpu = || bench::process::cpu_time(std::process::id()).map_err(Failure::new);
    let (cpu_before, past_before) = (cpu()?, found.past_reads());
    let begun = Instant::now();
    let until = begun + duration;
    while Instant::now() < until {
        let taken = match arguments.window {
            Some(window) => {
                let mut reading = windowed(arguments, window, readers.cores());
                // Beyond the end of the order it is its beginning once more.
                let passes = PASS_FILES_MIN.div_ceil(count) as u64;
                reading.part = 0..count as u64 * passes;
                reading.epoch = epoch;
                reading.until = Some(until);
                epoch += 1;
                readers.read_windows(reading).await?
            }
            None => {
                let mut order = Vec::new();
                while order.len() < PASS_FILES_MIN.max(count) {
                    let mut pass: Vec<usize> = (0..count).collect();
                    random.shuffle(&mut pass);
                    order.append(&mut pass);
                }
                readers.read(&order, batch, Some(until)).await?
            }
        };
        for &us in &taken.reading.latencies_us {
            latencies.add(Duration::from_micros(us.into()));
        }
        total.files += taken.files;
        total.reading.bytes += taken.reading.bytes;
        total.device_reads += taken.device_reads;
        total.device_bytes += taken.device_bytes;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let spent = cpu()?.saturating_sub(cpu_before);
    let view = BenchView {
        index: arguments.index,
        cores: readers.cores(),
        files: total.files,
        content_bytes: total.reading.bytes,
        seconds,
        files_per_second: total.files as f64 / seconds,
        mib_per_second: total.reading.bytes as f64 / seconds / ByteCount::MIB.0 as f64,
        p50_us: latencies.percentile_us(0.5),
        p99_us: latencies.percentile_us(0.99),
        cpu_seconds_per_1000_files: spent.as_secs_f64() * 1000.0 / total.files.max(1) as f64,
        device_reads: total.device_reads,
        past_reads: found.past_reads() - past_before,
        device_bytes: total.device_bytes,
    };
    output.print(&view, || describe(&view, count));
    Ok(())
}

fn describe(view: &BenchView, count: usize) -> String {
    format!(
        "{} files read, of {count} there are, {} in {:.1} s on {}: {:.0} files/s, {:.1} MiB/s\np50 {} us, p99 {} us, \
         {:.4} CPU s of this process per 1000 files, {} reads of the volume, {} of them past its nodes; {}",
        view.files,
        ByteCount(view.content_bytes),
        view.seconds,
        match view.cores {
            1 => "one core".to_owned(),
            cores => format!("{cores} cores"),
        },
        view.files_per_second,
        view.mib_per_second,
        view.p50_us,
        view.p99_us,
        view.cpu_seconds_per_1000_files,
        view.device_reads,
        view.past_reads,
        match view.index {
            Index::Cold => "index cold at first",
            Index::Warm => "index in memory from the start",
        }
    )
}
