//! `redhare bench tree`: a tree of many files, in a file of this machine: how soon a fresh process has it open and has read the
//! first file, what memory that takes, how fast everything is listed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use bench::paired::quantile;
use bench::report::{Bar, Row};
use bench::{cold, process};
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::lease::memory::LocalLeases;
use packfs::{InodeNumber, Reader, ReaderOptions};

use super::index::{FILES_PER_DIRECTORY, directory, make, name, open};
use super::scratch::Scratch;
use crate::output::{Failure, Output};

/// The promises.
const FIRST_FILE_BAR_SECONDS: f64 = 1.0;
const MEMORY_BAR_MIB: f64 = 100.0;
const LISTED_BAR: f64 = 500_000.0;
/// Fresh processes that open the tree; the median counts.
const OPENINGS: u64 = 5;

/// How many files, and where.
#[derive(Args)]
#[command(after_help = "Example:\n  redhare bench tree --files 1000000")]
pub(crate) struct TreeArguments {
    /// Files of 256 bytes, with names of 20 bytes, 1,000 in a directory
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    files: u64,
    /// A directory that is made for this and removed
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-tree")]
    data: PathBuf,
    /// Measure the file system in this file, which this command made
    #[arg(long, hide = true)]
    measure: Option<PathBuf>,
    /// Open it and read a file that this seed chooses, and not list it
    #[arg(long, hide = true, requires = "measure")]
    first: Option<u64>,
}

impl Default for TreeArguments {
    fn default() -> Self {
        Self {
            files: 10_000_000,
            data: PathBuf::from(".redhare/bench-tree"),
            measure: None,
            first: None,
        }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Measured {
    /// Entries that were listed, or files that were read.
    count: u64,
    seconds: f64,
    /// The most memory that the process has had.
    peak_bytes: u64,
}

pub(crate) fn run(arguments: &TreeArguments, output: &Output) -> Result<(), Failure> {
    if let Some(file) = &arguments.measure {
        let measured = reactor::run(&reactor::Config::default(), measure(file, arguments));
        let measured = measured.map_err(Failure::new)??;
        output.print(&measured, || {
            format!(
                "{} in {:.3} s, {} at most",
                measured.count,
                measured.seconds,
                ByteCount(measured.peak_bytes)
            )
        });
        return Ok(());
    }
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Makes the tree, and lets other processes open and list it.
pub(super) fn rows(arguments: &TreeArguments) -> Result<Vec<Row>, Failure> {
    let scratch = Scratch::new(&arguments.data)?;
    let file = scratch.path().join("tree.packfs");
    let made = reactor::run(&reactor::Config::default(), make(&file, arguments.files));
    made.map_err(Failure::new)??;
    // The device goes past the page cache; what was written by others does not matter then.
    let is_dropped = cold::drop_caches().is_ok();
    let mut openings = Vec::new();
    for seed in 0..OPENINGS {
        openings.push(child(arguments, &file, Some(seed))?);
    }
    let listing = child(arguments, &file, None)?;
    let mib = |bytes: u64| bytes as f64 / ByteCount::MIB.0 as f64;
    let files = arguments.files;
    let seconds = quantile(openings.iter().map(|opening| opening.seconds).collect(), 0.5);
    let memory = openings.iter().map(|opening| mib(opening.peak_bytes));
    let memory = memory.fold(0.0, f64::max);
    let note = format!(
        "of {OPENINGS} fresh processes, each with another file; caches of this machine dropped before: {is_dropped}"
    );
    Ok(vec![
        Row::new(
            format!("tree of {files} files: opened, and a first file read"),
            seconds,
            "s",
            Some(Bar::Below(FIRST_FILE_BAR_SECONDS)),
        )
        .with_note(format!("the median {note}")),
        Row::new(
            format!("tree of {files} files: memory of a process that has opened it"),
            memory,
            "MiB",
            Some(Bar::Below(MEMORY_BAR_MIB)),
        )
        .with_note("the most that was resident at any time, program included"),
        Row::new(
            format!("tree of {files} files: listed"),
            listing.count as f64 / listing.seconds,
            "entries/s",
            Some(Bar::AtLeast(LISTED_BAR)),
        )
        .with_note(format!(
            "{} entries with their inodes in {:.1} s, nothing known before, {:.0} MiB at most",
            listing.count,
            listing.seconds,
            mib(listing.peak_bytes)
        )),
    ])
}

fn child(arguments: &TreeArguments, file: &Path, first: Option<u64>) -> Result<Measured, Failure> {
    let own = std::env::current_exe().map_err(Failure::new)?;
    let mut command = Command::new(own);
    command.args([
        "--json",
        "bench",
        "tree",
        "--files",
        &arguments.files.to_string(),
        "--measure",
    ]);
    command.arg(file);
    if let Some(seed) = first {
        command.args(["--first", &seed.to_string()]);
    }
    let (text, _) = process::run_timed(&mut command).map_err(Failure::new)?;
    serde_json::from_str(&text).map_err(Failure::new)
}

async fn measure(file: &Path, arguments: &TreeArguments) -> Result<Measured, Failure> {
    let begun = Instant::now();
    let (_device, medium) = open(file, None)?;
    let leases = Rc::new(LocalLeases::new());
    let reader = Reader::open(medium, leases, &ReaderOptions::default()).await;
    let reader = reader.map_err(Failure::new)?;
    let count = match arguments.first {
        Some(seed) => {
            let number = Random::from_seed(seed).below(arguments.files);
            let directory = directory(number / FILES_PER_DIRECTORY);
            let path = [&directory[..], &name(number)[..]].join(&b'/');
            let opened = reader.open_file(&path).await.map_err(Failure::new)?;
            let length = opened.inode.size;
            reader.read(&opened, 0, length).await.map_err(Failure::new)?;
            1
        }
        None => {
            let mut walk = reader.walk(InodeNumber::ROOT);
            let mut count = 0;
            loop {
                let batch = walk.next_batch().await.map_err(Failure::new)?;
                if batch.is_empty() {
                    break count;
                }
                count += batch.len() as u64;
            }
        }
    };
    Ok(Measured {
        count,
        seconds: begun.elapsed().as_secs_f64(),
        peak_bytes: process::peak_resident_bytes(std::process::id()).map_err(Failure::new)?,
    })
}
