//! `redhare bench`: the measuring client, and the bare loop.

mod echo;

use clap::Subcommand;

use crate::output::{Failure, Output};

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The bare loopback request/answer loop that NVMe/TCP is held against
    #[command(subcommand)]
    Echo(echo::Echo),
}

pub(crate) fn run(bench: Bench, output: &Output) -> Result<(), Failure> {
    match bench {
        Bench::Echo(echo) => echo::run(echo, output),
    }
}
