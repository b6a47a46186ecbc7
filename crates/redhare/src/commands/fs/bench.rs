//! `redhare fs bench`.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench::latency::Latencies;
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::{Kind, ReadError, Reader, ReaderOptions, Target};

use super::medium::{Location, Role, open_volume};
use crate::output::{Failure, Output};

/// Bytes of a large file that are read at once.
const READ_AT_ONCE: u64 = 4 << 20;

/// Read whole files in random order, and say how fast
#[derive(Args)]
#[command(
    after_help = "Latency is that of a whole file, or of a whole batch with --batch.\n\nExamples:\n  \
redhare fs bench file:images.packfs --seconds 10\n  redhare fs bench images --files-in-flight 64 --batch --json"
)]
pub(super) struct BenchArguments {
    /// The volume, and a directory in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// Files that are read at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    files_in_flight: u16,
    /// How long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Read the files in flight with one call, as a loader of batches does
    #[arg(long)]
    batch: bool,
    /// Chooses the random order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bound of the metadata cache
    #[arg(long, default_value = "64MiB")]
    cache: ByteCount,
}

#[derive(serde::Serialize)]
struct BenchView {
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
    files: Vec<(Vec<u8>, u64)>,
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
    fn choose(&self) -> &(Vec<u8>, u64) {
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
            let (path, size) = self.choose();
            let begun = Instant::now();
            let bytes = self.whole(path, *size).await?;
            self.note(1, bytes, begun);
        }
        Ok(())
    }

    async fn whole(&self, path: &[u8], size: u64) -> Result<u64, ReadError> {
        if size <= READ_AT_ONCE {
            let read = self.reader.read_many(&[Target::Path(path)]).await.pop();
            return Ok(read.expect("one target gives one result")?.len() as u64);
        }
        let file = self.reader.open_file(path).await?;
        let mut offset = 0;
        while offset < size {
            offset += self.reader.read(&file, offset, READ_AT_ONCE).await?.len() as u64;
        }
        Ok(size)
    }

    /// Reads batches of `count` files. Large files go on their own.
    async fn in_batches(&self, count: usize) -> Result<(), ReadError> {
        let most = ReaderOptions::default().batch_bytes_max;
        while Instant::now() < self.until {
            let mut paths = Vec::with_capacity(count);
            let (mut total, mut large) = (0, Vec::new());
            for _ in 0..count {
                let (path, size) = self.choose();
                if *size > READ_AT_ONCE || total + size > most {
                    large.push((path, *size));
                } else {
                    total += size;
                    paths.push(Target::Path(path));
                }
            }
            let begun = Instant::now();
            let mut bytes = 0;
            for content in self.reader.read_many(&paths).await {
                bytes += content?.len() as u64;
            }
            for (path, size) in large {
                bytes += self.whole(path, size).await?;
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
    let reader = opened.reader(&volume, &options).await?;
    let files = files(&reader, &path)
        .await
        .map_err(|error| volume.failure(error))?;
    if files.is_empty() {
        return Err(volume.failure("there are no files to read; fill it with \"redhare fs import\""));
    }
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
         {:.4} CPU s per 1000 files, {} reads of the volume",
        view.files,
        ByteCount(view.content_bytes),
        view.seconds,
        view.files_per_second,
        view.mib_per_second,
        view.p50_us,
        view.p99_us,
        view.cpu_seconds_per_1000_files,
        view.device_reads
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

/// Regular files below a path, with their sizes.
async fn files(reader: &Reader, path: &[u8]) -> Result<Vec<(Vec<u8>, u64)>, ReadError> {
    let root = reader.lookup(path).await?;
    let mut walk = reader.walk(root.number);
    let mut files = Vec::new();
    loop {
        let batch = walk.next_batch().await?;
        if batch.is_empty() {
            return Ok(files);
        }
        for found in batch {
            if found.entry.kind() == Kind::File {
                let path = [path, &found.path].join(&b'/');
                let inode = reader.inode_of(found.entry).await?;
                files.push((path, inode.size));
            }
        }
    }
}
