//! `redhare bench faults pauses`: the longest that one read or one write of a native client takes around a fault.
//!
//! Four readers ask for settled blocks, which were written before in regions where nothing is written now; two ask for blocks
//! as old that lie between some that are written; four writers write blocks of their own. Each waits a millisecond between two
//! operations. A fault's window reaches from the fault until all copies are in sync again, and
//! counts every operation that was under way in it.

use std::path::PathBuf;
use std::time::Duration;

use bench::report::{Bar, Row};
use clap::Args;
use rustix::process::Signal;

use super::load::{Done, Load, Plan as LoadPlan, Role};
use super::world::{Plan, World};
use super::{drains, masters};
use crate::commands::bench::{report, scratch::Scratch};
use crate::output::{Failure, Output};

const VOLUME: &str = "faults";
pub(super) const NODES: usize = 3;
const VOLUME_BYTES: u64 = 256 << 20;
/// What messages take on the wire beside the bytes in them, at most.
const WIRE_MORE: f64 = 1.05;
const MIB: f64 = 1048576.0;
pub(super) const SETTLED: &str = "reads of settled blocks";
/// Before each fault this long is looked at without one.
pub(super) const CALM: Duration = Duration::from_secs(2);
/// How long a host is cut off or frozen: longer than the grant term and all that follows from it.
const GONE: Duration = Duration::from_secs(8);

/// How long all masters are gone, or members of their etcd, in seconds.
pub(in crate::commands::bench) const MASTERS_GONE: u64 = 60;
/// How long a copy is away, in seconds.
pub(in crate::commands::bench) const AWAY: u64 = 300;

/// How often, and what.
#[derive(Args)]
#[command(
    after_help = "Needs root, and ip (iproute2); etcd for the rows about masters that fail over and about etcd. Each node and each master is a host of its own: a \
network namespace on a bridge.
Example:
  redhare bench faults pauses --rounds 5 --only cut"
)]
pub(crate) struct PausesArguments {
    /// How often each fault happens, every time on another node
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the faults whose name contains this: killed, cut, frozen, masters, away, drained, leader, etcd
    #[arg(long, default_value = "")]
    only: String,
    /// How long all masters are gone, or members of their etcd
    #[arg(long, default_value_t = MASTERS_GONE, value_name = "SECONDS")]
    masters_gone: u64,
    /// How long a copy is away
    #[arg(long, default_value_t = AWAY, value_name = "SECONDS")]
    away: u64,
    /// A directory that is made for this, and removed
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/redhare-faults")]
    data: PathBuf,
    /// Keep the logs
    #[arg(long)]
    keep: bool,
}

impl PausesArguments {
    /// Some of the faults, each as long as it is by default.
    pub(in crate::commands::bench) fn with(rounds: usize, only: &str) -> Self {
        Self {
            rounds,
            only: only.to_owned(),
            masters_gone: MASTERS_GONE,
            away: AWAY,
            data: PathBuf::from("/dev/shm/redhare-faults"),
            keep: false,
        }
    }
}

pub(super) fn run(arguments: &PausesArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || report::describe(&rows));
    report::check(&rows, output)
}

/// Takes minutes.
pub(in crate::commands::bench) fn rows(arguments: &PausesArguments) -> Result<Vec<Row>, Failure> {
    let mut place = Scratch::new(&arguments.data)?;
    if arguments.keep {
        place.keep();
    }
    let mut rows = Vec::new();
    let wants = |name: &str| name.contains(&arguments.only);
    if FAULTS.iter().any(|fault| wants(fault.name)) || wants("masters") || wants("away") {
        rows.extend(of_nodes(arguments, &place.path().join("nodes"))?);
    }
    if wants("drained") {
        rows.extend(drains::rows(arguments.rounds, &place.path().join("drained"))?);
    }
    if wants("leader") {
        rows.extend(masters::leader(arguments.rounds, &place.path().join("leader"))?);
    }
    if wants("etcd") {
        let gone = Duration::from_secs(arguments.masters_gone);
        rows.extend(masters::etcd(gone, &place.path().join("etcd"))?);
    }
    Ok(rows)
}

type Act = fn(&mut World, usize) -> Result<(), Failure>;

/// What happens to a node, and what may come of it.
struct Fault {
    name: &'static str,
    what: &'static str,
    begin: Act,
    lasts: Duration,
    end: Act,
    read_ms: f64,
    write_ms: f64,
}

const FAULTS: [Fault; 3] = [
    Fault {
        name: "killed",
        what: "target killed",
        begin: |world, node| world.signal_target(node, Signal::KILL).map(drop),
        lasts: Duration::ZERO,
        end: |_, _| Ok(()),
        read_ms: 100.0,
        write_ms: 500.0,
    },
    Fault {
        name: "cut",
        what: "link cut",
        begin: |world, node| world.link(node, false),
        lasts: GONE,
        end: |world, node| world.link(node, true),
        read_ms: 300.0,
        // The grant term, and a second.
        write_ms: 4000.0,
    },
    Fault {
        name: "frozen",
        what: "host frozen",
        begin: |world, node| world.freeze(node, true),
        lasts: GONE,
        end: |world, node| world.freeze(node, false),
        read_ms: 300.0,
        write_ms: 4000.0,
    },
];

/// What was under way between two moments of the load.
pub(super) type Window = (Duration, Duration);

fn of_nodes(arguments: &PausesArguments, place: &std::path::Path) -> Result<Vec<Row>, Failure> {
    std::fs::create_dir_all(place).map_err(Failure::new)?;
    let mut world = start(NODES, 1, place)?;
    let mut rows = Vec::new();
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(&arguments.only)) {
        let load = start_load(&world)?;
        let (mut calm, mut windows) = (Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            let node = 1 + round % NODES;
            calm.push(hold(&load, CALM));
            let from = load.now();
            (fault.begin)(&mut world, node)?;
            hold(&load, fault.lasts);
            (fault.end)(&mut world, node)?;
            world.wait("the fault is noticed, or over", |world| {
                !world.is_well() || load.now() > from + fault.lasts + CALM
            })?;
            world.wait("all copies are in sync again", World::is_well)?;
            windows.push((from, load.now()));
        }
        let done = load.finish()?;
        for (role, kind, bar) in [
            (Role::ReadSettled, SETTLED, Some(fault.read_ms)),
            // Their regions are reconciled first, as after any death of a write node.
            (Role::ReadBetween, "reads between written blocks", None),
            (Role::WriteOwn, "writes", Some(fault.write_ms)),
        ] {
            let name = format!("native client, {}: longest of the {kind}", fault.what);
            rows.push(row(name, &done, role, &windows, &calm, bar));
        }
    }
    if "masters".contains(&arguments.only) {
        rows.extend(masters::all_gone(
            Duration::from_secs(arguments.masters_gone),
            &mut world,
        )?);
    }
    if "away".contains(&arguments.only) {
        rows.extend(away(Duration::from_secs(arguments.away), &world)?);
    }
    Ok(rows)
}

pub(super) fn start(nodes: usize, masters: usize, place: &std::path::Path) -> Result<World, Failure> {
    let plan = Plan {
        nodes,
        masters,
        disk: "1GiB".to_owned(),
        bounded: None,
        master_arguments: vec!["--no-rebalance".to_owned()],
    };
    let world = World::start(plan, place)?;
    let size = VOLUME_BYTES.to_string();
    world.redhare(&[
        "volume",
        "create",
        VOLUME,
        "--size",
        &size,
        "--chunk-size",
        "16MiB",
    ])?;
    world.wait("the volume's copies are in sync", World::is_well)?;
    Ok(world)
}

pub(super) fn start_load(world: &World) -> Result<Load, Failure> {
    let roles = [
        &[Role::ReadSettled; 4][..],
        &[Role::ReadBetween; 2],
        &[Role::WriteOwn; 4],
    ]
    .concat();
    let plan = LoadPlan {
        clients: vec![roles],
        registers: 1024,
        pause: Duration::from_millis(1),
        tolerant: false,
        seed: 1,
    };
    let load = Load::start(&world.addresses(), VOLUME, plan);
    load.wait_for(1000)?;
    Ok(load)
}

/// Lets the load go on for so long.
pub(super) fn hold(load: &Load, time: Duration) -> Window {
    let from = load.now();
    std::thread::sleep(time);
    (from, load.now())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(super) fn row(
    name: String,
    done: &Done,
    role: Role,
    windows: &[Window],
    calm: &[Window],
    bar: Option<f64>,
) -> Row {
    let worst = windows.iter().map(|&(from, to)| done.worst(role, from, to));
    // A window in which nothing of the kind was under way shows nothing.
    let mut found: Vec<f64> = worst.map(|worst| worst.map_or(f64::NAN, milliseconds)).collect();
    let calm = calm
        .iter()
        .filter_map(|&(from, to)| done.worst_ended(role, from, to));
    let calm = calm.max().map_or(f64::NAN, milliseconds);
    let shown: Vec<String> = found.iter().map(|ms| format!("{ms:.0}")).collect();
    found.sort_by(f64::total_cmp);
    let median = found.get(found.len() / 2).copied().unwrap_or(f64::NAN);
    // Of numbers and NaN the latter is the last, and misses the bar.
    let value = found.last().copied().unwrap_or(f64::NAN);
    Row::new(name, value, "ms", bar.map(Bar::Below)).with_note(format!(
        "median {median:.0}; each time {}; {calm:.0} in the seconds before the faults",
        shown.join(", ")
    ))
}

/// A node is cut off, and comes back before its copies are made anew elsewhere: how fast is the volume read meanwhile, and how
/// much is sent to the node afterwards.
fn away(gone: Duration, world: &World) -> Result<Vec<Row>, Failure> {
    const NODE: usize = 1;
    let plan = LoadPlan {
        clients: vec![[[Role::ReadSettled; 8], [Role::WriteOwn; 8]].concat()],
        registers: 1024,
        pause: Duration::ZERO,
        tolerant: false,
        seed: 2,
    };
    let load = Load::start(&world.addresses(), VOLUME, plan);
    load.wait_for(1000)?;
    let before = hold(&load, CALM * 3);
    world.link(NODE, false)?;
    world.wait("the node is left out", |world| !world.is_well())?;
    // Reads find another copy at once; what is measured is how they fare from then on.
    hold(&load, CALM);
    let meanwhile = hold(&load, gone);
    let done = load.finish()?;
    let sent = world.bytes_to(NODE)?;
    world.link(NODE, true)?;
    world.wait("all copies are in sync again", World::is_well)?;
    let resent = (world.bytes_to(NODE)? - sent) as f64 / MIB;
    let (was, is) = (
        done.rate(Role::ReadSettled, before),
        done.rate(Role::ReadSettled, meanwhile),
    );
    let copies = NODES as f64;
    let rate = Row::new(
        format!("a copy away for {} s: reads against before", gone.as_secs()),
        is / was,
        "x",
        Some(Bar::AtLeast(0.9 * (copies - 1.0) / copies)),
    );
    // What was written lies in the second half: what it has of the first is not sent again.
    let touched = (VOLUME_BYTES / 2) as f64 / MIB;
    let bytes = Row::new(
        "a copy back after that: sent to its node",
        resent,
        "MiB",
        Some(Bar::AtMost(touched * WIRE_MORE)),
    );
    Ok(vec![
        rate.with_note(format!("{was:.0} reads/s before, {is:.0} while it was away")),
        bytes.with_note(format!(
            "of a volume of {} MiB. Its second half was written meanwhile, in places; everything on the wire counts",
            VOLUME_BYTES >> 20
        )),
    ])
}
