//! `redhare bench index`: what a fully cached index takes in memory for each file.
//!
//! A process of its own reads the index, so that no memory which another phase gave back hides what the cache takes;
//! the kernel says what the process has (`RssAnon`), before the cache is filled and after.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;

use bdev::BlockDevice;
use bdev::counted::CountedDevice;
use bdev::fence::TokenKeeper;
use bdev::file::{FileDevice, FileOptions};
use bench::process::anonymous_bytes;
use bench::report::{Bar, Row};
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::lease::memory::LocalLeases;
use packfs::{
    Attributes, FormatOptions, InodeNumber, Medium, Reader, ReaderOptions, Target, Timestamp, Writer,
    WriterOptions,
};

use crate::output::{Failure, Output};

/// The promise: less than 100 bytes a file, and its name.
const BAR_BYTES: f64 = 120.0;
/// The promise: so many reads, one after the other, for a file whose leaf of the index is not in memory.
const DEPENDENT_BAR: f64 = 2.0;
/// What the inner pages and the directories of an index fit in, and its leaves do not: its bytes a file, divided by this.
const INNER_SHARE: u64 = 8;
/// Files that are read with the leaves cold.
const COLD_FILES: u64 = 20_000;
/// What is not committed takes memory, so it is, after so many directories.
const COMMIT_DIRECTORIES: u64 = 200;
/// Files in each directory.
pub(super) const FILES_PER_DIRECTORY: u64 = 1000;
/// Content of each file: too long to stand in the index.
const CONTENT: [u8; 256] = [0x5a; 256];
/// Directories that are read before the memory is looked at, so that buffers and code are there already.
const DIRECTORIES_BEFORE: u64 = 2;

/// How many files, and where.
#[derive(Args)]
#[command(after_help = "Example:\n  redhare bench index --files 1000000")]
pub(crate) struct IndexArguments {
    /// Files, with names of 20 bytes
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    files: u64,
    /// A directory that is made for this and removed
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-index")]
    data: PathBuf,
    /// Measure the file system in this file, which this command made
    #[arg(long, hide = true)]
    measure: Option<PathBuf>,
}

impl Default for IndexArguments {
    fn default() -> Self {
        Self {
            files: 200_000,
            data: PathBuf::from(".redhare/bench-index"),
            measure: None,
        }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Measured {
    files: u64,
    bytes_per_file: f64,
    /// What the reader itself says.
    accounted_bytes_per_file: f64,
    /// Pages that a second pass over all names had to read.
    second_pass_misses: u64,
    /// Reads of the device for one file, one after the other, with inner pages in memory and leaves not: on average, and at most.
    dependent_reads: f64,
    dependent_reads_most: u64,
}

pub(crate) fn run(arguments: &IndexArguments, output: &Output) -> Result<(), Failure> {
    if let Some(file) = &arguments.measure {
        let measured = reactor::run(&reactor::Config::default(), measure(file, arguments.files))
            .map_err(Failure::new)??;
        output.print(&measured, || describe(&measured));
        return Ok(());
    }
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Makes a file system and lets another process measure it.
pub(super) fn rows(arguments: &IndexArguments) -> Result<Vec<Row>, Failure> {
    let directory = super::scratch::Scratch::new(&arguments.data)?;
    let file = directory.path().join("index.packfs");
    reactor::run(&reactor::Config::default(), make(&file, arguments.files)).map_err(Failure::new)??;
    let own = std::env::current_exe().map_err(Failure::new)?;
    let mut command = Command::new(own);
    command.args([
        "--json",
        "bench",
        "index",
        "--files",
        &arguments.files.to_string(),
        "--measure",
    ]);
    command.arg(&file);
    let (text, _) = bench::process::run_timed(&mut command).map_err(Failure::new)?;
    let measured: Measured = serde_json::from_str(&text).map_err(Failure::new)?;
    let value = if measured.second_pass_misses == 0 {
        measured.bytes_per_file
    } else {
        f64::NAN
    };
    let row = Row::new(
        "fully cached index, names of 20 bytes",
        value,
        "bytes/file",
        Some(Bar::Below(BAR_BYTES)),
    );
    let dependent = Row::new(
        "files one by one, leaves of the index cold: reads that wait for each other",
        measured.dependent_reads,
        "reads/file",
        Some(Bar::AtMost(DEPENDENT_BAR)),
    );
    let dependent = dependent.with_note(format!(
        "{} at most for one file; inner pages and directories in memory",
        measured.dependent_reads_most
    ));
    Ok(vec![row.with_note(describe(&measured)), dependent])
}

fn describe(measured: &Measured) -> String {
    format!(
        "{} files: {:.1} bytes a file by the process' memory, {:.1} by the cache's own count; {} misses when all names \
         were looked up again",
        measured.files,
        measured.bytes_per_file,
        measured.accounted_bytes_per_file,
        measured.second_pass_misses
    )
}

/// Names that share nothing but their length, the hardest for an index that stores common beginnings once.
pub(super) fn name(number: u64) -> [u8; 20] {
    let mut random = Random::from_seed(number);
    let mut name = [0; 20];
    for letter in &mut name {
        *letter = b"0123456789abcdef"[random.below(16) as usize];
    }
    name
}

pub(super) fn directory(number: u64) -> Vec<u8> {
    format!("d{number:07}").into_bytes()
}

fn names(directory: u64, files: u64) -> Vec<[u8; 20]> {
    let first = directory * FILES_PER_DIRECTORY;
    let mut names: Vec<_> = (first..files.min(first + FILES_PER_DIRECTORY))
        .map(name)
        .collect();
    names.sort_unstable();
    names
}

pub(super) fn open(file: &Path, create: Option<ByteCount>) -> Result<(CountedDevice, Medium), Failure> {
    let options = FileOptions {
        create,
        ..FileOptions::default()
    };
    let device = FileDevice::open(file, options).map_err(Failure::new)?;
    let device = CountedDevice::new(Arc::new(device));
    let channel = device.open_channel().map_err(Failure::new)?;
    let medium = Medium::new(TokenKeeper::new().over(channel));
    Ok((device, medium))
}

pub(super) async fn make(file: &Path, files: u64) -> Result<(), Failure> {
    let size = ByteCount(files * 1024 + (256 << 20));
    let (_device, medium) = open(file, Some(size))?;
    let format = FormatOptions {
        uuid: [7; 16],
        ..FormatOptions::default()
    };
    let leases = Rc::new(LocalLeases::new());
    packfs::format(medium.clone(), leases.clone(), "redhare bench index", &format)
        .await
        .map_err(Failure::new)?;
    let options = WriterOptions::default();
    let opened = Writer::open(medium, leases, &options).await;
    let mut writer = opened.map_err(Failure::new)?;
    let mut random = Random::from_seed(1);
    for number in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        let attributes = attributes(&mut random);
        let made = writer
            .mkdir(InodeNumber::ROOT, &directory(number), &attributes)
            .await;
        let inside = made.map_err(Failure::new)?;
        for name in names(number, files) {
            let attributes = self::attributes(&mut random);
            let made = writer.create_file(inside, &name, &attributes, &CONTENT).await;
            made.map_err(Failure::new)?;
        }
        if number % COMMIT_DIRECTORIES == COMMIT_DIRECTORIES - 1 {
            writer.commit().await.map_err(Failure::new)?;
        }
    }
    writer.commit().await.map_err(Failure::new)?;
    writer.close().await.map_err(Failure::new)
}

/// Three different times to the nanosecond, as a real file has.
fn attributes(random: &mut Random) -> Attributes {
    let mut time = || Timestamp {
        seconds: 1_600_000_000 + random.below(100_000_000) as i64,
        nanoseconds: random.below(1_000_000_000) as u32,
    };
    let (mtime, ctime, atime) = (time(), time(), time());
    Attributes {
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        mtime,
        atime,
        ctime,
    }
}

async fn measure(file: &Path, files: u64) -> Result<Measured, Failure> {
    let (device, medium) = open(file, None)?;
    let leases = Rc::new(LocalLeases::new());
    let reader = |cache_bytes| {
        let options = ReaderOptions {
            cache_bytes,
            ..ReaderOptions::default()
        };
        let (medium, leases) = (medium.clone(), leases.clone());
        async move { Reader::open(medium, leases, &options).await.map_err(Failure::new) }
    };
    let before = reader(64 << 10).await?;
    look_up(&before, 0..DIRECTORIES_BEFORE, files).await?;
    let memory = || anonymous_bytes(std::process::id()).map_err(Failure::new);
    let empty = memory()?;
    let cached = reader(usize::MAX / 16).await?;
    let all = 0..files.div_ceil(FILES_PER_DIRECTORY);
    look_up(&cached, all.clone(), files).await?;
    let full = memory()?;
    let first = cached.statistics();
    look_up(&cached, all, files).await?;
    let second = cached.statistics();
    drop(cached);
    let whole = first.index_bytes();
    let small = reader(whole / INNER_SHARE as usize).await?;
    let (dependent_reads, dependent_reads_most) = dependent(&device, &small, files).await?;
    Ok(Measured {
        dependent_reads,
        dependent_reads_most,
        files,
        bytes_per_file: full.saturating_sub(empty) as f64 / files as f64,
        accounted_bytes_per_file: first.index_bytes() as f64 / files as f64,
        second_pass_misses: second.cache.misses - first.cache.misses,
    })
}

/// Reads random files one by one, and counts what the device had to read for each: the average, and the most. Every read is
/// waited for before the next is known, so all are dependent.
async fn dependent(device: &CountedDevice, reader: &Reader, files: u64) -> Result<(f64, u64), Failure> {
    let mut random = Random::from_seed(2);
    let mut path = || {
        let number = random.below(files);
        [&directory(number / FILES_PER_DIRECTORY)[..], &name(number)[..]].join(&b'/')
    };
    // Inner pages and directories come into memory.
    for _ in 0..COLD_FILES {
        reader.lookup(&path()).await.map_err(Failure::new)?;
    }
    let (mut total, mut most) = (0, 0);
    for _ in 0..COLD_FILES {
        let path = path();
        let before = device.statistics().reads.operations;
        let content = reader.read_file(Target::Path(&path)).await;
        content.map_err(Failure::new)?;
        let reads = device.statistics().reads.operations - before;
        total += reads;
        most = most.max(reads);
    }
    Ok((total as f64 / COLD_FILES as f64, most))
}

/// Looks up every file of some directories by its path.
async fn look_up(reader: &Reader, directories: std::ops::Range<u64>, files: u64) -> Result<(), Failure> {
    for number in directories {
        let directory = directory(number);
        for name in names(number, files) {
            let path = [&directory[..], &name[..]].join(&b'/');
            reader.lookup(&path).await.map_err(Failure::new)?;
        }
    }
    Ok(())
}
