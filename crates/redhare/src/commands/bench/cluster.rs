//! `redhare bench fs`: a cluster of this machine, started for this: small files from a volume of three copies against
//! the local file system, processor time when idle, memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::process;
use bench::report::{Bar, Row};
use clap::Args;
use foundation::ByteCount;

use super::scratch::Scratch;
use super::up::{Up, make_files};
use crate::commands::cluster::status_of;
use crate::output::{Failure, Output};

/// The promise: at least the local file system's files per second.
const FILES_BAR: f64 = 1.0;
/// The promise to loaders of batches: so many times the local file system's files per second.
const READ_MANY_BAR: f64 = 1.5;
/// The promise: all processes together take less than this share of one core, in percent, when idle.
const IDLE_BAR_PERCENT: f64 = 1.0;
/// The promise: a target's resident memory stays below this.
const MEMORY_BAR_MIB: f64 = 200.0;
/// Length of each file in bytes.
const FILE_BYTES: usize = 16 << 10;
const VOLUME: &str = "bench";
/// What the last reads left is done by then: the idle flush comes 5 s after the last write.
const SETTLE: Duration = Duration::from_secs(8);

/// A comparison with local files: index, way to the nodes, further options of the command, what it is called, and its bar.
type Case = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
    Option<Bar>,
);

/// How much, and how long.
#[derive(Args)]
#[command(
    after_help = "Rows: 16 KiB files in random order, 16 in flight, data cold, with the index cold and in memory; the \
same from Python, if its library was built; idle processors; memory of the targets. \"redhare fs bench VOLUME --against DIR\" does the first on your own files.
Example:
  redhare bench fs --rounds 5"
)]
pub(crate) struct FsArguments {
    /// Alternating pairs of slices
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Files, of 16 KiB each
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// Length of all slices of one comparison together
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How long the idle cluster is watched, in seconds
    #[arg(long, default_value_t = 20.0)]
    idle_seconds: f64,
    /// The master's port; the nodes take the ones that follow
    #[arg(long, default_value_t = 7490)]
    port: u16,
    /// A directory that is made for this and removed; the disk under it is measured
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench")]
    data: PathBuf,
}

impl FsArguments {
    pub(super) fn with(rounds: usize) -> Self {
        Self {
            rounds,
            files: 20_000,
            seconds: 10.0,
            idle_seconds: 20.0,
            port: 7490,
            data: PathBuf::from(".redhare/bench"),
        }
    }
}

pub(crate) fn run(arguments: &FsArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Runs everything. Takes about a minute.
pub(super) fn rows(arguments: &FsArguments) -> Result<Vec<Row>, Failure> {
    let scratch = Scratch::new(&arguments.data)?;
    let source = scratch.path().join("source");
    make_files(&source, arguments.files, FILE_BYTES)?;
    let content = (arguments.files * FILE_BYTES) as u64;
    let size = content * 2 + (1 << 30);
    let up = Up::start(&scratch.path().join("cluster"), arguments.port, size + (1 << 30))?;
    let shown = source.display().to_string();
    up.redhare(&["volume", "create", VOLUME, "--size", &size.to_string()])?;
    up.redhare(&["fs", "format", VOLUME])?;
    up.redhare(&["fs", "import", &shown, VOLUME])?;
    let mut rows = Vec::new();
    let bar = Some(Bar::AtLeast(FILES_BAR));
    // The last has no bar: what a client on another machine would do, but for the network between.
    let cases: [Case; 4] = [
        ("cold", "disk", &[], "index cold", bar),
        ("warm", "disk", &[], "index in memory", bar),
        (
            "warm",
            "disk",
            &["--batch"],
            "index in memory, read_many of 8 files, two calls under way",
            Some(Bar::AtLeast(READ_MANY_BAR)),
        ),
        (
            "warm",
            "tcp",
            &[],
            "index in memory, all bytes from the nodes by TCP",
            None,
        ),
    ];
    for (index, via, more, what, bar) in cases {
        let (rounds, seconds) = (arguments.rounds.to_string(), arguments.seconds.to_string());
        let mut words = vec!["fs", "bench", VOLUME, "--against", &shown];
        // As many cores as the threads on the other side have.
        words.extend(["--files-in-flight", "16", "--cores", "2"]);
        words.extend(["--rounds", &rounds, "--seconds", &seconds]);
        words.extend(["--index", index, "--via", via]);
        words.extend(more);
        let text = up.redhare(&words)?;
        rows.push(against_row(what, bar, &text)?);
    }
    let address = format!("redhare://{}/{VOLUME}", up.master);
    let (rounds, seconds) = (arguments.rounds, arguments.seconds);
    let python = super::python::row(&address, up.id(), &source, scratch.path(), rounds, seconds)?;
    rows.push(python);
    rows.push(memory_row(&up)?);
    rows.push(idle_row(&up, arguments.idle_seconds)?);
    Ok(rows)
}

fn against_row(what: &str, bar: Option<Bar>, text: &str) -> Result<Row, Failure> {
    let view: serde_json::Value = serde_json::from_str(text).map_err(Failure::new)?;
    let number = |side: &str, name: &str| view[side][name].as_f64().unwrap_or(f64::NAN);
    let side = |side| {
        format!(
            "{:.0} files/s, p50 {:.0} us, p99 {:.0} us, {:.1} us of CPU a file",
            number(side, "files_per_second"),
            number(side, "p50_us"),
            number(side, "p99_us"),
            number(side, "cpu_us_per_file")
        )
    };
    let word = |name: &str| view[name].as_str().unwrap_or_default().to_owned();
    let spread = |name: &str| view[name].as_f64().unwrap_or(f64::NAN);
    let row = Row::new(
        format!("16 KiB files, 3 copies, 16 in flight, {what}"),
        view["ratio"].as_f64().unwrap_or(f64::NAN),
        "of local files/s",
        bar,
    );
    Ok(row.with_note(format!(
        "volume {} (client and cluster); local {}; {} of the volume's reads past its nodes; half of the {} rounds between {:.2} and {:.2}; volume cold: {}; local \
         cold: {}",
        side("volume"),
        side("local"),
        view["past_reads"],
        view["rounds"],
        spread("ratio_lower_quartile"),
        spread("ratio_upper_quartile"),
        word("cold_volume"),
        word("cold_local")
    )))
}

/// The largest target's resident memory, after import and reads.
fn memory_row(up: &Up) -> Result<Row, Failure> {
    let status = status_of(&up.master.as_str().into())?;
    let mut sizes = Vec::new();
    for node in &status.nodes {
        let address: SocketAddr = node.peer_address.parse().map_err(Failure::new)?;
        let id = process::listening_on(address).map_err(Failure::new)?;
        let id =
            id.ok_or_else(|| Failure::new(format!("nobody listens on {address}: has a target ended?")))?;
        sizes.push(process::resident_bytes(id).map_err(Failure::new)?);
    }
    let mib = |bytes: u64| bytes as f64 / ByteCount::MIB.0 as f64;
    let largest = sizes.iter().copied().max().map_or(f64::NAN, mib);
    let all: Vec<String> = sizes.iter().map(|&bytes| format!("{:.0}", mib(bytes))).collect();
    let row = Row::new(
        "resident memory of the largest target",
        largest,
        "MiB",
        Some(Bar::Below(MEMORY_BAR_MIB)),
    );
    Ok(row.with_note(format!("targets after import and reads: {} MiB", all.join(", "))))
}

/// What every process of the cluster takes together, with nobody asking for anything.
fn idle_row(up: &Up, seconds: f64) -> Result<Row, Failure> {
    std::thread::sleep(SETTLE);
    let (before, begun) = (up.cpu_time()?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (spent, passed) = (up.cpu_time()?.saturating_sub(before), begun.elapsed());
    let row = Row::new(
        "idle: every process of \"redhare up\" together",
        spent.as_secs_f64() / passed.as_secs_f64() * 100.0,
        "% of a core",
        Some(Bar::Below(IDLE_BAR_PERCENT)),
    );
    let count = up.processes()?.len();
    Ok(row.with_note(format!(
        "{count} processes over {:.0} s, with a volume that was filled and read",
        passed.as_secs_f64()
    )))
}
