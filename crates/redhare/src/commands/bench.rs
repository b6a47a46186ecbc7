//! `redhare bench`: the measuring client, the bare loop, and all measurements that have a bar.

mod all;
mod cluster;
mod contender;
mod echo;
mod faults;
mod index;
mod masters;
mod memory;
mod python;
mod report;
mod scale;
mod scratch;
mod target;
mod training;
mod tree;
mod up;
mod volume;

use clap::Subcommand;

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
    /// What a read costs as servers and clients become more: calls to masters, messages, connections, how even the load is
    Scale(scale::ScaleArguments),
    /// What faults cost: pauses while processes are killed, hosts cut off or frozen, masters gone; and random faults with a
    /// verifying workload
    #[command(subcommand, after_help = "Example:\n  redhare bench faults pauses --rounds 3")]
    Faults(faults::Faults),
    /// Everything that has a bar, in one report; fails if a bar is missed
    All(all::AllArguments),
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
        Bench::Scale(arguments) => scale::run(&arguments, output),
        Bench::All(arguments) => all::run(&arguments, output),
    }
}
