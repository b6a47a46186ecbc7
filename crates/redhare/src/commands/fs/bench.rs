//! `redhare fs bench`.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench::latency::Latencies;
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::{ReadError, Reader, ReaderOptions, Target};

use super::against::{self, Against};
use super::medium::{Location, Role, Volume, open_volume};
use super::sample::{READ_AT_ONCE, VolumeFile, files, read_whole};
use crate::output::{Failure, Output};

/// Read whole files in random order, and say how fast
#[derive(Args)]
#[command(
    after_help = "Latency is that of a whole file, or of a whole batch with --batch. Data is always cold on the volume's \
side: the client keeps none, and nodes pass the page cache by.\n\nWith --against the same files of a local directory \
are read by as many threads as files are in flight, in alternating slices, after what the kernel keeps of them in memory \
was dropped.\n\nExamples:\n  \
redhare fs bench file:images.packfs --seconds 10\n  redhare fs bench images --files-in-flight 64 --batch --json\n  \
redhare fs bench images --against ./images"
)]
pub(super) struct BenchArguments {
    /// The volume, and a directory in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// Files that are read at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    files_in_flight: u16,
    /// How long, both sides together
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Read the files in flight with one call, as a loader of batches does
    #[arg(long, conflicts_with = "against")]
    batch: bool,
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
    files: u64,
    content_bytes: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    p50_us: u64,
    p99_us: u64,
    cpu_seconds_per_1000_files: f64,
    device_reads: u64,
    device_bytes: u64,
}

/// What the tasks share.
struct Load {
    reader: Reader,
    files: Vec<VolumeFile>,
    random: RefCell<Random>,
    /// Where the pass through `order` is.
    next: Cell<usize>,
    order: RefCell<Vec<usize>>,
    until: Instant,
    done: Cell<u64>,
    bytes: Cell<u64>,
    latencies: RefCell<Latencies>,
}

impl Load {
    /// Each file once in random order, then again in another.
    fn choose(&self) -> &VolumeFile {
        let mut order = self.order.borrow_mut();
        if self.next.get() == order.len() {
            self.random.borrow_mut().shuffle(&mut order);
            self.next.set(0);
        }
        let next = self.next.get();
        self.next.set(next + 1);
        &self.files[order[next]]
    }

    fn note(&self, files: u64, bytes: u64, begun: Instant) {
        self.done.set(self.done.get() + files);
        self.bytes.set(self.bytes.get() + bytes);
        self.latencies.borrow_mut().add(begun.elapsed());
    }

    /// Reads one file after another until the time is up.
    async fn singly(&self) -> Result<(), ReadError> {
        while Instant::now() < self.until {
            let file = self.choose();
            let begun = Instant::now();
            let bytes = read_whole(&self.reader, file).await?;
            self.note(1, bytes, begun);
        }
        Ok(())
    }

    /// Reads batches of `count` files. Large files go on their own.
    async fn in_batches(&self, count: usize) -> Result<(), ReadError> {
        let most = ReaderOptions::default().batch_bytes_max;
        while Instant::now() < self.until {
            let mut paths = Vec::with_capacity(count);
            let (mut total, mut large) = (0, Vec::new());
            for _ in 0..count {
                let file = self.choose();
                if file.size_bytes > READ_AT_ONCE || total + file.size_bytes > most {
                    large.push(file);
                } else {
                    total += file.size_bytes;
                    paths.push(Target::Path(&file.path));
                }
            }
            let begun = Instant::now();
            let mut bytes = 0;
            for content in self.reader.read_many(&paths).await {
                bytes += content?.len() as u64;
            }
            for file in large {
                bytes += read_whole(&self.reader, file).await?;
            }
            self.note(count as u64, bytes, begun);
        }
        Ok(())
    }
}

pub(super) async fn run(arguments: &BenchArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let opened = open_volume(&volume, Role::Read)?;
    let options = ReaderOptions {
        cache_bytes: usize::try_from(arguments.cache.0).unwrap_or(usize::MAX),
        ..ReaderOptions::default()
    };
    let duration = Duration::try_from_secs_f64(arguments.seconds)
        .map_err(|_| Failure::new(format!("--seconds {} is no length of time", arguments.seconds)))?;
    // Listing the files reads the index into this reader's cache.
    let warm = opened.reader(&volume, &options).await?;
    let files = files(&warm, &path).await.map_err(|error| volume.failure(error))?;
    if files.is_empty() {
        return Err(volume.failure("there are no files to read; fill it with \"redhare fs import\""));
    }
    if let Some(directory) = &arguments.against {
        let against = Against {
            opened: &opened,
            volume: &volume,
            from: &path,
            options: &options,
            directory,
            in_flight: arguments.files_in_flight.into(),
            duration,
            rounds: arguments.rounds.into(),
            index: arguments.index,
            evict: arguments.evict,
            seed: arguments.seed,
        };
        let view = against::measure(&against, warm, files).await?;
        output.print(&view, || against::describe(&view));
        return Ok(());
    }
    let reader = match arguments.index {
        Index::Warm => warm,
        Index::Cold => opened.reader(&volume, &options).await?,
    };
    alone(arguments, output, &volume, reader, files, duration).await
}

/// Reads the volume's files, with nothing to compare them with.
async fn alone(
    arguments: &BenchArguments,
    output: &Output,
    volume: &Volume,
    reader: Reader,
    files: Vec<VolumeFile>,
    duration: Duration,
) -> Result<(), Failure> {
    let count = files.len();
    let before = reader.statistics();
    let begun = Instant::now();
    let load = Rc::new(Load {
        order: RefCell::new((0..count).collect()),
        next: Cell::new(count),
        reader,
        files,
        random: RefCell::new(Random::from_seed(arguments.seed)),
        until: begun + duration,
        done: Cell::new(0),
        bytes: Cell::new(0),
        latencies: RefCell::default(),
    });
    let cpu = || bench::process::cpu_time(std::process::id()).map_err(Failure::new);
    let cpu_before = cpu()?;
    let in_flight = usize::from(arguments.files_in_flight);
    let result = if arguments.batch {
        load.in_batches(in_flight).await
    } else {
        all(&load, in_flight).await
    };
    result.map_err(|error| volume.failure(error))?;
    let spent = cpu()?.saturating_sub(cpu_before);
    let after = load.reader.statistics();
    let seconds = begun.elapsed().as_secs_f64();
    let done = load.done.get();
    let latencies = load.latencies.borrow();
    let view = BenchView {
        index: arguments.index,
        files: done,
        content_bytes: load.bytes.get(),
        seconds,
        files_per_second: done as f64 / seconds,
        mib_per_second: load.bytes.get() as f64 / seconds / ByteCount::MIB.0 as f64,
        p50_us: latencies.percentile_us(0.5),
        p99_us: latencies.percentile_us(0.99),
        cpu_seconds_per_1000_files: spent.as_secs_f64() * 1000.0 / done.max(1) as f64,
        device_reads: after.reads - before.reads,
        device_bytes: after.read_bytes - before.read_bytes,
    };
    output.print(&view, || describe(&view, count));
    Ok(())
}

fn describe(view: &BenchView, count: usize) -> String {
    format!(
        "{} files read, of {count} there are, {} in {:.1} s: {:.0} files/s, {:.1} MiB/s\np50 {} us, p99 {} us, \
         {:.4} CPU s of this process per 1000 files, {} reads of the volume; {}",
        view.files,
        ByteCount(view.content_bytes),
        view.seconds,
        view.files_per_second,
        view.mib_per_second,
        view.p50_us,
        view.p99_us,
        view.cpu_seconds_per_1000_files,
        view.device_reads,
        match view.index {
            Index::Cold => "index cold at first",
            Index::Warm => "index in memory from the start",
        }
    )
}

async fn all(load: &Rc<Load>, in_flight: usize) -> Result<(), ReadError> {
    let start = |_| {
        let load = load.clone();
        reactor::spawn(async move { load.singly().await })
    };
    let tasks: Vec<_> = (0..in_flight).map(start).collect();
    for task in tasks {
        // None ends these tasks but themselves.
        task.await.unwrap_or(Err(ReadError::LeaseEnded))?;
    }
    Ok(())
}
