//! `redhare fs`: PackFS, the file system for many small files, from the command line.

mod against;
mod bench;
mod clone;
mod compact;
mod compare;
mod df;
mod export;
mod feed;
mod format;
mod fsck;
mod import;
mod list;
mod local;
mod local_cache;
mod medium;
mod mount;
mod processes;
mod progress;
mod quota;
mod readers;
mod snapshot;
mod verify;
pub(crate) mod view;

use clap::{Args, Subcommand};

use crate::output::{Failure, Output};

/// Format, fill, list, read, verify and measure PackFS volumes
#[derive(Args)]
#[command(
    after_help = "VOLUME is the name of a cluster's volume, or file:PATH for a local file or block device. A path \
inside a volume follows a colon: data:train/cats, file:/dev/nvme0n1:train. Whatever reads takes VOLUME@NAME for a \
snapshot: data@monday:train, and VOLUME@@NAME for a snapshot of a cluster's volume (\"redhare volume snapshot\").\n\nExample:\n  \
redhare fs format file:images.packfs --size 64GiB\n  redhare fs import ./images file:images.packfs\n  \
redhare fs compare file:images.packfs ./images"
)]
pub(crate) struct FsArguments {
    #[command(subcommand)]
    command: Fs,
}

#[derive(Subcommand)]
enum Fs {
    Format(format::FormatArguments),
    Import(import::ImportArguments),
    Ls(list::LsArguments),
    Stat(list::StatArguments),
    Cat(list::CatArguments),
    Export(export::ExportArguments),
    Verify(verify::VerifyArguments),
    Fsck(fsck::FsckArguments),
    Bench(bench::BenchArguments),
    Compare(compare::CompareArguments),
    Df(df::DfArguments),
    Compact(compact::CompactArguments),
    Clone(clone::CloneArguments),
    Snapshot(snapshot::SnapshotArguments),
    Quota(quota::QuotaArguments),
    Mount(mount::MountArguments),
    Unmount(mount::UnmountArguments),
}

pub(crate) fn run(arguments: FsArguments, output: &Output) -> Result<(), Failure> {
    match arguments.command {
        Fs::Format(arguments) => on_reactor(format::run(&arguments, output)),
        Fs::Import(arguments) => on_reactor(import::run(&arguments, output)),
        Fs::Ls(arguments) => on_reactor(list::ls(&arguments, output)),
        Fs::Stat(arguments) => on_reactor(list::stat(&arguments, output)),
        // Its standard output is the file's.
        Fs::Cat(arguments) => on_reactor(list::cat(&arguments)).map_err(Failure::apart),
        Fs::Export(arguments) => on_reactor(export::run(&arguments, output)),
        Fs::Bench(arguments) => on_reactor(bench::run(&arguments, output)),
        Fs::Compare(arguments) => on_reactor(compare::run(&arguments, output)),
        Fs::Df(arguments) => on_reactor(df::run(&arguments, output)),
        Fs::Clone(arguments) => on_reactor(clone::run(&arguments, output)),
        Fs::Compact(arguments) => on_reactor(compact::run(&arguments, output)),
        Fs::Snapshot(arguments) => on_reactor(snapshot::run(&arguments, output)),
        Fs::Quota(arguments) => on_reactor(quota::run(&arguments, output)),
        Fs::Mount(arguments) => mount::run(&arguments, output),
        Fs::Unmount(arguments) => mount::unmount(&arguments, output),
        Fs::Fsck(arguments) => on_reactor(fsck::run(&arguments, output)),
        Fs::Verify(arguments) => on_reactor(verify::run(&arguments, output)),
    }
}

fn on_reactor(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    reactor::run(&reactor::Config::default(), work).map_err(Failure::new)?
}
