//! `redhare bench`: the measuring client, the bare loop, and all measurements that have a bar.

mod cluster;
mod contender;
mod echo;
mod index;
mod masters;
mod python;
mod report;
mod scratch;
mod target;

use bench::report::Row;
use clap::{Args, Subcommand};

use crate::output::{Failure, Output};

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The bare loopback request/answer loop that NVMe/TCP is held against
    #[command(subcommand, after_help = "Example:\n  redhare bench echo compare --rounds 20")]
    Echo(echo::Echo),
    /// An NVMe/TCP target under load
    #[command(subcommand, after_help = "Example:\n  redhare bench target compare --help")]
    Target(target::TargetBench),
    /// Small files from a volume of three copies against the local file system; a cluster's memory and its idle processors
    Fs(cluster::FsArguments),
    /// Memory that a fully cached index takes for each file
    Index(index::IndexArguments),
    /// What a large cluster costs a master: placement, a node's loss, heartbeats
    Masters(masters::MastersArguments),
    /// Everything that has a bar, in one report; fails if a bar is missed
    All(AllArguments),
}

/// How long to measure.
#[derive(Args)]
#[command(
    after_help = "Takes about ten minutes. Measures in the present directory's file system, under .redhare.
Example:
  redhare bench all --only fs --rounds 5"
)]
pub(crate) struct AllArguments {
    /// Paired rounds of each comparison
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Only the measurements whose name contains this: index, fs, target, masters, echo
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(bench: Bench, output: &Output) -> Result<(), Failure> {
    match bench {
        Bench::Echo(echo) => echo::run(echo, output),
        Bench::Target(target) => target::run(target, output),
        Bench::Fs(arguments) => cluster::run(&arguments, output),
        Bench::Index(arguments) => index::run(&arguments, output),
        Bench::Masters(arguments) => masters::run(&arguments, output),
        Bench::All(arguments) => all(&arguments, output),
    }
}

/// What [`all`] runs: a name, what it is, and its rows.
type Measurement = (&'static str, &'static str, fn(usize) -> Result<Vec<Row>, Failure>);

/// Length of a slice of a comparison on loopback.
const SLICE_MILLISECONDS: u64 = 300;

const MEASUREMENTS: [Measurement; 5] = [
    ("index", "the index in memory", |_| {
        index::row(&index::IndexArguments::default()).map(|row| vec![row])
    }),
    ("fs", "a cluster of this machine", |rounds| {
        cluster::rows(&cluster::FsArguments::with(rounds))
    }),
    ("target", "the target against the bare loop", |rounds| {
        target::rows(rounds, SLICE_MILLISECONDS)
    }),
    ("masters", "a master of a large cluster", |_| {
        masters::rows(&masters::MastersArguments::default())
    }),
    ("echo", "the bare loop against the same in C", |rounds| {
        echo::rows(rounds, SLICE_MILLISECONDS)
    }),
];

#[derive(serde::Serialize)]
struct ReportView {
    rows: Vec<Row>,
    missed: usize,
}

/// Every measurement, also after one has failed, then one report.
fn all(arguments: &AllArguments, output: &Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let chosen = |name: &str| name.contains(&arguments.only);
    for (name, about, measure) in MEASUREMENTS.into_iter().filter(|(name, ..)| chosen(name)) {
        eprintln!("measuring {name}: {about}");
        match measure(arguments.rounds) {
            Ok(measured) => rows.extend(measured),
            Err(failure) => failures.push(format!("{name} could not be measured: {failure}")),
        }
    }
    let missed = rows.iter().filter(|row| row.is_missed()).count();
    let view = ReportView { rows, missed };
    output.print(&view, || report::describe(&view.rows));
    if !failures.is_empty() {
        return Err(Failure::new(failures.join("; ")));
    }
    report::check(&view.rows, output)
}
