//! `redhare bench faults`: a cluster on hosts of its own on this machine, and what becomes of its clients when parts of it fail.

mod beside;
mod chaos;
pub(super) mod copies;
mod drains;
mod history;
mod load;
mod masters;
mod net;
pub(super) mod pauses;
pub(super) mod portals;
pub(super) mod rebuild;
mod world;
mod yardsticks;

use clap::Subcommand;

use crate::output::{Failure, Output};

/// What to find out.
#[derive(Subcommand)]
pub(crate) enum Faults {
    /// How long reads and writes pause when a part fails, against what is promised
    Pauses(pauses::PausesArguments),
    /// What three copies cost a writer against one, over sparse disks
    Copies(copies::CopiesArguments),
    /// How fast a lost node's copies are made anew against disk and wire, and what clients feel of it
    Rebuild(rebuild::RebuildArguments),
    /// How long a stock kernel's multipath host pauses when a portal dies or vanishes (a guest under QEMU)
    Portals(portals::PortalsArguments),
    /// Random faults by seed under a verifying workload, whose history a checker judges
    Random(chaos::RandomArguments),
}

pub(crate) fn run(faults: &Faults, output: &Output) -> Result<(), Failure> {
    match faults {
        Faults::Pauses(arguments) => pauses::run(arguments, output),
        Faults::Copies(arguments) => copies::run(arguments, output),
        Faults::Rebuild(arguments) => rebuild::run(arguments, output),
        Faults::Portals(arguments) => portals::run(arguments, output),
        Faults::Random(arguments) => chaos::run(arguments, output),
    }
}
