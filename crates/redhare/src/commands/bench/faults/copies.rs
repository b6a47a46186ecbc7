//! `redhare bench faults copies`: what three copies cost a writer against one; and what it costs that every write is durable on
//! all of them before it is acknowledged (`--sync-writes`).
//!
//! Three volumes of 64 GiB on the same three nodes. Blocks of 4 KiB at random places of their second halves, so of 32 GiB, are
//! written on each in turns, first touches included: the disks are sparse files. Each volume gets the same writes to the same
//! places. In slices of the same length the faster one would have touched all of its 32 GiB early on, and the slower one
//! would be measured at first touches against a volume that has none left.

use std::path::PathBuf;
use std::time::Duration;

use bench::report::{Bar, Row};
use clap::Args;

use super::load::{Load, Plan as LoadPlan, Role};
use super::world::{Plan, World};
use crate::commands::bench::{report, scratch::Scratch};
use crate::output::{Failure, Output};

/// The promises.
const RATE_BAR: f64 = 0.25;
const LATENCY_BAR: f64 = 2.5;
const NODES: usize = 3;
const VOLUME_BYTES: u64 = 64 << 30;
const BLOCK_BYTES: u64 = 4096;
const DEPTH: usize = 32;
const WRITES: u64 = 10_000;

/// How long.
#[derive(Args)]
#[command(
    after_help = "Needs root, and ip (iproute2). What is written stays in --data until the end: some GiB.
Example:
  redhare bench faults copies --rounds 10"
)]
pub(crate) struct CopiesArguments {
    /// Slices of each volume in turns, for each of the two depths
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Writes of a slice at depth 32; a fifth of it at depth 1
    #[arg(long, default_value_t = WRITES)]
    writes: u64,
    /// A directory that is made for this, and removed
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/redhare-faults")]
    data: PathBuf,
}

impl CopiesArguments {
    pub(in crate::commands::bench) fn with(rounds: usize) -> Self {
        Self {
            rounds,
            writes: WRITES,
            data: PathBuf::from("/dev/shm/redhare-faults"),
        }
    }
}

pub(super) fn run(arguments: &CopiesArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || report::describe(&rows));
    report::check(&rows, output)
}

/// Writes a second, and the median of what one takes.
type Slice = (f64, Duration);

/// Takes a minute.
pub(in crate::commands::bench) fn rows(arguments: &CopiesArguments) -> Result<Vec<Row>, Failure> {
    let place = Scratch::new(&arguments.data)?;
    let plan = Plan {
        nodes: NODES,
        masters: 1,
        disk: "200GiB".to_owned(),
        bounded: None,
        master_arguments: vec!["--no-rebalance".to_owned()],
    };
    let world = World::start(plan, place.path())?;
    let size = VOLUME_BYTES.to_string();
    for (name, copies) in [("one", "1"), ("three", "3"), ("durable", "3")] {
        world.redhare(&["volume", "create", name, "--size", &size, "--copies", copies])?;
    }
    world.redhare(&["volume", "set", "durable", "--sync-writes", "on"])?;
    world.wait("the volumes' copies are in sync", World::is_well)?;
    let turns = |depth: usize, writes: u64| -> Result<Vec<Turn>, Failure> {
        let turn = |round: usize| -> Result<Turn, Failure> {
            let of = |volume| write(&world, volume, (depth, writes), round as u64);
            Ok(Turn {
                one: of("one")?,
                three: of("three")?,
                durable: of("durable")?,
            })
        };
        (0..arguments.rounds).map(turn).collect()
    };
    let (deep, shallow) = (turns(DEPTH, arguments.writes)?, turns(1, arguments.writes / 5)?);
    let rate = |turn: &Turn| (turn.three.0, turn.one.0);
    let latency = |turn: &Turn| (micros(turn.three), micros(turn.one));
    let durable_rate = |turn: &Turn| (turn.durable.0, turn.three.0);
    let durable_latency = |turn: &Turn| (micros(turn.durable), micros(turn.three));
    let deep_name = |copies: &str| format!("{copies}, 4 KiB, depth {DEPTH}, 32 GiB with first touches");
    let shallow_name = |copies: &str| format!("{copies}, 4 KiB, depth 1: latency");
    Ok(vec![
        Compared(&deep, "writes/s").row(
            deep_name("3-copy write"),
            ("of one copy's rate", Some(Bar::AtLeast(RATE_BAR))),
            rate,
        ),
        Compared(&shallow, "us").row(
            shallow_name("3-copy write"),
            ("of one copy's", Some(Bar::Below(LATENCY_BAR))),
            latency,
        ),
        Compared(&deep, "writes/s").row(
            deep_name("3-copy write, --sync-writes"),
            ("of the rate without", None),
            durable_rate,
        ),
        Compared(&shallow, "us").row(
            shallow_name("3-copy write, --sync-writes"),
            ("of that without", None),
            durable_latency,
        ),
    ])
}

/// A slice of each volume.
struct Turn {
    one: Slice,
    three: Slice,
    durable: Slice,
}

fn micros(slice: Slice) -> f64 {
    slice.1.as_secs_f64() * 1e6
}

/// Turns, and the unit of what is looked at in them.
struct Compared<'a>(&'a [Turn], &'static str);

impl Compared<'_> {
    /// The median of what is looked at, by what it is held against; the note says the worst: the greatest of a latency, the
    /// least of a rate.
    fn row(
        self,
        name: String,
        (unit, bar): (&'static str, Option<Bar>),
        values: impl Fn(&Turn) -> (f64, f64),
    ) -> Row {
        let Self(turns, of) = self;
        let ratios = || turns.iter().map(&values).map(|(value, by)| value / by);
        let ratio = median(ratios());
        let worst = match of {
            "us" => ratios().fold(f64::NAN, f64::max),
            _ => ratios().fold(f64::NAN, f64::min),
        };
        let (value, by) = (
            median(turns.iter().map(|turn| values(turn).0)),
            median(turns.iter().map(|turn| values(turn).1)),
        );
        Row::new(name, ratio, unit, bar).with_note(format!(
            "{value:.0} against {by:.0} {of}; the worst of {} turns {worst:.2}",
            turns.len()
        ))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn write(world: &World, volume: &str, (depth, writes): (usize, u64), seed: u64) -> Result<Slice, Failure> {
    let plan = LoadPlan {
        clients: vec![vec![Role::WriteOwn; depth]],
        // Every third block of the second half.
        registers: VOLUME_BYTES / 2 / BLOCK_BYTES / 3,
        pause: Duration::ZERO,
        tolerant: false,
        seed,
    };
    let load = Load::start(&world.addresses(), volume, plan);
    // Connections are made.
    load.wait_for(depth as u64 * 4)?;
    let from = load.now();
    load.wait_for(writes)?;
    let window = (from, load.now());
    let done = load.finish()?;
    Ok((
        done.rate(Role::WriteOwn, window),
        done.median(Role::WriteOwn, window),
    ))
}
