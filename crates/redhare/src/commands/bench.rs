//! `redhare bench`: the measuring client, and the bare loop.

mod contender;
mod echo;
mod target;

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
}

pub(crate) fn run(bench: Bench, output: &Output) -> Result<(), Failure> {
    match bench {
        Bench::Echo(echo) => echo::run(echo, output),
        Bench::Target(target) => target::run(target, output),
    }
}
