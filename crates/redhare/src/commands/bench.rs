//! `redhare bench`: the measuring client, the bare loop, and all measurements that have a bar.

mod cluster;
mod contender;
mod echo;
mod faults;
mod index;
mod masters;
mod memory;
mod python;
mod report;
mod scratch;
mod target;
mod training;
mod tree;
mod up;
mod volume;

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
    /// A tree of many files: how soon it is open, what that takes, how fast it is listed
    Tree(tree::TreeArguments),
    /// Small files of a volume in a target's memory, against blocks of the same target (needs two CPUs)
    Memory(memory::MemoryArguments),
    /// What a training run gets: a mount, a loader, an import, against local files, EROFS and tar
    Training(training::TrainingArguments),
    /// What a volume costs a reader, with checksums and without, against a bare target (needs two CPUs)
    Volume(volume::VolumeArguments),
    /// What a large cluster costs a master: placement, a node's loss, heartbeats
    Masters(masters::MastersArguments),
    /// What faults cost: pauses while processes are killed, hosts cut off or frozen, masters gone; and random faults with a
    /// verifying workload
    #[command(subcommand, after_help = "Example:\n  redhare bench faults pauses --rounds 3")]
    Faults(faults::Faults),
    /// Everything that has a bar, in one report; fails if a bar is missed
    All(AllArguments),
}

/// How long to measure.
#[derive(Args)]
#[command(
    after_help = "Takes half an hour and 30 GiB of the disk. Measures in the present directory's file system, under .redhare.
Example:
  redhare bench all --only fs --rounds 5"
)]
pub(crate) struct AllArguments {
    /// Paired rounds of each comparison
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Only the measurements whose name contains this: index, tree, fs, training, memory, target, volume, masters, echo
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(bench: Bench, output: &Output) -> Result<(), Failure> {
    match bench {
        Bench::Echo(echo) => echo::run(echo, output),
        Bench::Target(target) => target::run(target, output),
        Bench::Fs(arguments) => cluster::run(&arguments, output),
        Bench::Index(arguments) => index::run(&arguments, output),
        Bench::Tree(arguments) => tree::run(&arguments, output),
        Bench::Memory(arguments) => memory::run(&arguments, output),
        Bench::Training(arguments) => training::run(&arguments, output),
        Bench::Volume(arguments) => volume::run(&arguments, output),
        Bench::Masters(arguments) => masters::run(&arguments, output),
        Bench::Faults(faults) => faults::run(&faults, output),
        Bench::All(arguments) => all(&arguments, output),
    }
}

/// What [`all`] runs: a name, what it is, and its rows.
type Measurement = (&'static str, &'static str, fn(usize) -> Result<Vec<Row>, Failure>);

/// Length of a slice of a comparison on loopback.
const SLICE_MILLISECONDS: u64 = 300;

const MEASUREMENTS: [Measurement; 9] = [
    ("index", "the index in memory", |_| {
        index::rows(&index::IndexArguments::default())
    }),
    ("tree", "a tree of ten million files", |_| {
        tree::rows(&tree::TreeArguments::default())
    }),
    ("fs", "a cluster of this machine", |rounds| {
        cluster::rows(&cluster::FsArguments::with(rounds))
    }),
    ("training", "what a training run gets", |rounds| {
        training::rows(&training::TrainingArguments::with(rounds))
    }),
    ("memory", "small files of a volume in memory", |rounds| {
        memory::rows(&memory::MemoryArguments::with(rounds))
    }),
    ("target", "the target against the bare loop", |rounds| {
        target::rows(rounds, SLICE_MILLISECONDS)
    }),
    ("volume", "reads of a volume against a bare target", |rounds| {
        volume::rows(&volume::VolumeArguments::with(rounds))
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
