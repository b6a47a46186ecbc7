//! `redhare bench target field`: our target beside the figures of the best-known one.
//!
//! Those were measured once, with SPDK 25.01's target and initiator, one core each, both always polling, on two cores of a
//! machine of the kind that this project is measured on. They are absolute figures of another day, so the rows say less
//! than those that are taken in turns with the bare loop: a machine that is twice as fast passes with a target that is not.

use std::net::Ipv4Addr;
use std::time::Duration;

use bench::paired::median;
use bench::report::{Bar, Row};
use clap::Args;

use super::{NQN, wait_for_listeners};
use crate::commands::bench::contender::Contender;
use crate::commands::bench::report;
use crate::output::{Failure, Output};

/// Slices of each case, if nobody says how many.
pub(super) const ROUNDS: usize = 5;
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(300);
/// The first port; each case has its own, since a server that was killed may hold its for a moment.
const PORT: u16 = 7_480;

/// What is asked for, of which device, and what the best-known target answered a second.
struct Figure {
    device: Device,
    connections: usize,
    depth: usize,
    bytes: u32,
    reads: bool,
    theirs: f64,
    /// What of their figure ours must be.
    bar: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Device {
    Memory,
    Null,
}

const fn memory(connections: usize, depth: usize, kib: u32, reads: bool, theirs: f64, bar: f64) -> Figure {
    Figure {
        device: Device::Memory,
        connections,
        depth,
        bytes: kib * 1024,
        reads,
        theirs,
        bar,
    }
}

const fn null(connections: usize, depth: usize, kib: u32, theirs: f64) -> Figure {
    Figure {
        device: Device::Null,
        connections,
        depth,
        bytes: kib * 1024,
        reads: true,
        theirs,
        bar: 1.0,
    }
}

const FIGURES: [Figure; 13] = [
    memory(1, 1, 4, true, 67e3, 1.0),
    memory(1, 32, 4, true, 460e3, 1.5),
    memory(1, 128, 4, true, 538e3, 1.5),
    memory(4, 32, 4, true, 274e3, 1.5),
    memory(16, 16, 4, true, 255e3, 1.5),
    memory(16, 16, 16, true, 87e3, 1.5),
    memory(1, 32, 4, false, 319e3, 1.5),
    memory(1, 32, 128, true, 13.8e3, 1.5),
    null(1, 1, 4, 80e3),
    null(1, 32, 4, 590e3),
    // The best of a range of figures.
    null(4, 32, 4, 730e3),
    null(16, 16, 4, 450e3),
    null(16, 16, 16, 120e3),
];

impl Figure {
    fn name(&self) -> String {
        let device = match self.device {
            Device::Memory => "memory",
            Device::Null => "null device",
        };
        let kind = if self.reads { "read" } else { "write" };
        format!(
            "{device}, {}x{}, {} KiB {kind}",
            self.connections,
            self.depth,
            self.bytes / 1024
        )
    }
}

#[derive(Args)]
pub(crate) struct FieldArguments {
    /// Slices of each case; the median counts
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Fail if a bar is missed
    #[arg(long)]
    check: bool,
}

pub(super) fn run(arguments: &FieldArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments.rounds)?;
    output.print(&rows, || report::describe(&rows));
    if arguments.check {
        return report::check(&rows, output);
    }
    Ok(())
}

/// A row for each figure.
pub(super) fn rows(rounds: usize) -> Result<Vec<Row>, Failure> {
    let measured = FIGURES.iter().zip(PORT..);
    measured
        .map(|(figure, port)| measure(figure, port, rounds))
        .collect()
}

fn measure(figure: &Figure, port: u16, rounds: usize) -> Result<Row, Failure> {
    let own = std::env::current_exe()
        .map_err(Failure::new)?
        .display()
        .to_string();
    let words = |text: &str| -> Vec<String> {
        std::iter::once(own.clone())
            .chain(text.split_whitespace().map(String::from))
            .collect()
    };
    let kind = if figure.device == Device::Null {
        "--null"
    } else {
        ""
    };
    let (connections, depth, bytes) = (figure.connections, figure.depth, figure.bytes);
    let (percent, address) = (if figure.reads { 100 } else { 0 }, Ipv4Addr::LOCALHOST);
    let milliseconds = SLICE.as_millis();
    let contender = Contender::start(
        words(&format!("bench target serve --port {port} {kind}")),
        words(&format!(
            "bench target load --address {address}:{port} --subsystem {NQN} --connections {connections} --depth {depth} \
             --block-bytes {bytes} --read-percent {percent} --milliseconds {milliseconds}"
        )),
    )?;
    wait_for_listeners(&[port])?;
    let slices: Result<Vec<_>, _> = (0..rounds.max(1))
        .map(|_| contender.slice(milliseconds as u64))
        .collect();
    let slices = slices?;
    let of = |value: fn(&bench::paired::Slice) -> f64| median(slices.iter().map(value).collect());
    let (rate, cpu_us) = (of(|slice| slice.rate), of(|slice| slice.cpu_us));
    let (p50, p99) = (of(|slice| slice.p50_us), of(|slice| slice.p99_us));
    let theirs = figure.theirs;
    Ok(Row::new(
        format!("against the best-known target: {}", figure.name()),
        rate / theirs,
        "of its rate",
        Some(Bar::AtLeast(figure.bar)),
    )
    .with_note(format!(
        "{rate:.0} /s at {cpu_us:.2} us of CPU, p50 {p50:.0} us, p99 {p99:.0} us; {theirs:.0} /s were measured of it on a \
         machine of this kind"
    )))
}
