//! `redhare bench faults rebuild`: a node is gone for good, and its copies are made anew on the others.
//!
//! Four nodes, a volume of three copies that is written from end to end. The node is killed, the masters wait as long as they
//! were told (ten minutes by default, here a few seconds), and the clock runs from the first copy that has a place elsewhere until
//! every chunk has three copies in sync again. In the same round a file is copied beside the nodes' disks, in pieces of the same
//! length with as many under way as the rebuild may have, and one TCP connection carries what it can between two of the hosts:
//! the slower of the two is what the rebuild is held against. All nodes' disks are on one disk of this machine, as the file is, so
//! both read and write every byte once on it. Then all of it again while a client reads and writes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bdev::BlockDevice;
use bench::paired::quantile;
use bench::process;
use bench::report::{Bar, Row};
use clap::Args;
use client::{Nearby, Session};
use master::v1;
use volume::Settings;

use super::load::{Done, Load, Plan as LoadPlan, Role};
use super::world::{LIMIT, Plan, World};
use super::yardsticks::{DiskCopy, wire};
use crate::commands::bench::volume::fill;
use crate::commands::bench::{report, scratch::Scratch};
use crate::output::{Failure, Output};

/// The promises: a share of the disk's or the wire's rate, and the 99th percentile while it runs against before.
const RATE_BAR: f64 = 0.7;
const P99_BAR: f64 = 2.0;
const NODES: usize = 4;
const VOLUME: &str = "rebuilt";
const CHUNK_BYTES: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;
/// Instead of ten minutes. Longer than a grant term: what the death itself costs the clients is over by then.
const REBUILD_AFTER_SECONDS: &str = "5";
/// How long the load is looked at before the node is killed.
const CALM: Duration = Duration::from_secs(5);
const WIRE_TIME: Duration = Duration::from_secs(1);
/// How often the masters are asked how far it is.
const POLL: Duration = Duration::from_millis(50);
const GIB: f64 = 1073741824.0;
const MB: f64 = 1e6;

/// How much, and how often.
#[derive(Args)]
#[command(
    after_help = "Needs root, and ip (iproute2). Each node is a host of its own: a network namespace on a bridge. Their disks are files below --data, which \
take up to seven times --mib there. Below /dev/shm it is the wire and the processors that are measured.
Example:
  redhare bench faults rebuild --rounds 5 --mib 4096"
)]
pub(crate) struct RebuildArguments {
    /// How often a node is lost without load, and how often with it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Size of the volume in MiB; three quarters of it are rebuilt
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(256..=1_048_576))]
    mib: u64,
    /// A directory that is made for this, and removed; the disk under it is measured
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-rebuild")]
    data: PathBuf,
    /// Keep the logs
    #[arg(long)]
    keep: bool,
}

impl RebuildArguments {
    pub(in crate::commands::bench) fn with(rounds: u16) -> Self {
        Self {
            rounds,
            mib: 2048,
            data: PathBuf::from(".redhare/bench-rebuild"),
            keep: false,
        }
    }

    fn bytes(&self) -> u64 {
        (self.mib << 20) / CHUNK_BYTES * CHUNK_BYTES
    }
}

pub(super) fn run(arguments: &RebuildArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || report::describe(&rows));
    report::check(&rows, output)
}

/// What a rebuild came to.
struct Rebuilt {
    bytes: u64,
    took: Duration,
    /// Of all processes, this one's too.
    cpu: Duration,
}

impl Rebuilt {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }

    fn cpu_seconds_per_gib(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / GIB)
    }
}

/// A rebuild without load, and what the disk and the wire gave beside it.
struct Alone {
    rebuilt: Rebuilt,
    disk: f64,
    wire: f64,
}

impl Alone {
    fn ratio(&self) -> f64 {
        self.rebuilt.rate() / self.disk.min(self.wire)
    }
}

/// A rebuild with load: calm, and while it ran.
struct Loaded {
    rebuilt: Rebuilt,
    done: Done,
    calm: (Duration, Duration),
    during: (Duration, Duration),
}

/// Takes some minutes.
pub(in crate::commands::bench) fn rows(arguments: &RebuildArguments) -> Result<Vec<Row>, Failure> {
    let mut place = Scratch::new(&arguments.data)?;
    if arguments.keep {
        place.keep();
    }
    let settings = Settings::default();
    let depth = settings.joins_max * settings.resync_depth;
    let piece_bytes = u64::from(settings.reconcile_blocks) * PAGE_BYTES;
    // What a node has of the volume, in the mean.
    let copied = DiskCopy::new(
        place.path(),
        arguments.bytes() / NODES as u64 * 3,
        piece_bytes,
        depth,
    )?;
    let plan = Plan {
        nodes: NODES,
        masters: 1,
        disk: (arguments.bytes() * 2 + (1 << 30)).to_string(),
        bounded: None,
        master_arguments: ["--no-rebalance", "--rebuild-after", REBUILD_AFTER_SECONDS]
            .map(str::to_owned)
            .to_vec(),
    };
    let mut world = World::start(plan, place.path())?;
    let (mut alone, mut loaded) = (Vec::new(), Vec::new());
    for round in 0..usize::from(arguments.rounds) {
        let node = 1 + round % NODES;
        let (next, after) = (1 + (round + 1) % NODES, 1 + (round + 2) % NODES);
        make_volume(&world, arguments.bytes())?;
        let yardsticks = |world: &World| -> Result<(f64, f64), Failure> {
            Ok((
                copied.rate()?,
                wire(world, (next, after), piece_bytes, WIRE_TIME)?,
            ))
        };
        // Before and after: what the machine does meanwhile is half in each.
        let before = yardsticks(&world)?;
        let rebuilt = rebuild(&world, node)?;
        let after_it = yardsticks(&world)?;
        alone.push(Alone {
            rebuilt,
            disk: (before.0 + after_it.0) / 2.0,
            wire: (before.1 + after_it.1) / 2.0,
        });
        bring_back(&mut world, node)?;

        make_volume(&world, arguments.bytes())?;
        loaded.push(rebuild_under_load(&world, node)?);
        bring_back(&mut world, node)?;
    }
    Ok(report_rows(&alone, &loaded))
}

/// Makes the volume and writes all of it.
fn make_volume(world: &World, bytes: u64) -> Result<(), Failure> {
    let (size, chunk) = (bytes.to_string(), CHUNK_BYTES.to_string());
    world.redhare(&[
        "volume",
        "create",
        VOLUME,
        "--size",
        &size,
        "--chunk-size",
        &chunk,
    ])?;
    world.wait("the volume's copies are in sync", World::is_well)?;
    let session = Session::connect(world.addresses().as_str(), VOLUME).map_err(Failure::new)?;
    let filled = reactor::run(&reactor::Config::default(), async {
        let device = session.device(Nearby::Tcp);
        let channel = device.open_channel().map_err(Failure::new)?;
        fill(&channel, bytes).await
    });
    filled.map_err(Failure::new)?
}

/// Starts a lost node again and deletes the volume everywhere.
fn bring_back(world: &mut World, node: usize) -> Result<(), Failure> {
    world.start_node(node)?;
    world.wait("the node lives again", World::is_well)?;
    world.redhare(&["volume", "delete", VOLUME])?;
    world.wait("the volume is deleted on every node", |world| {
        let is_empty = |status: v1::GetStatusResponse| {
            let disks = status.nodes.iter().flat_map(|node| &node.disks);
            status.volumes.is_empty() && disks.map(|disk| disk.allocated_bytes).sum::<u64>() == 0
        };
        world.status().is_ok_and(is_empty)
    })
}

/// Processor time of this process and all that it has started.
fn spent() -> Result<Duration, Failure> {
    let all = process::with_descendants(std::process::id()).map_err(Failure::new)?;
    Ok(all.iter().filter_map(|&id| process::cpu_time(id).ok()).sum())
}

/// What the masters say at one moment.
struct Progress {
    /// Bytes that are promised on the node, and on all others: a copy's room is promised when its place is made.
    on_node: u64,
    elsewhere: u64,
    is_degraded: bool,
}

fn progress(world: &World, node: usize) -> Result<Progress, Failure> {
    let status = world.status()?;
    let promised = |node: &v1::NodeStatus| node.disks.iter().map(|disk| disk.allocated_bytes).sum::<u64>();
    let is_it = |status: &&v1::NodeStatus| World::is_node(status, node);
    let on_node = status.nodes.iter().find(is_it).map(promised);
    let on_node = on_node.ok_or_else(|| Failure::new(format!("the masters do not know node {node}")))?;
    Ok(Progress {
        on_node,
        elsewhere: status.nodes.iter().map(promised).sum::<u64>() - on_node,
        is_degraded: status.volumes.iter().any(|volume| volume.degraded_chunks > 0),
    })
}

fn rebuild(world: &World, node: usize) -> Result<Rebuilt, Failure> {
    rebuild_between(world, node, || Duration::ZERO).map(|(rebuilt, _)| rebuilt)
}

/// Kills a node and waits until its copies are made anew; and two moments by the caller's clock, when the first had its
/// place elsewhere and when the last was in sync.
fn rebuild_between(
    world: &World,
    node: usize,
    now: impl Fn() -> Duration,
) -> Result<(Rebuilt, (Duration, Duration)), Failure> {
    let before = progress(world, node)?;
    // Whole chunks: what a node keeps beside a copy is not counted as rebuilt.
    let bytes = before.on_node / CHUNK_BYTES * CHUNK_BYTES;
    world.kill_node(node)?;
    let deadline = Instant::now() + LIMIT * 5;
    let until = |is_so: &dyn Fn(Progress) -> bool, what: &str| -> Result<(Instant, Duration), Failure> {
        while !is_so(progress(world, node)?) {
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "node {node} was killed, and {} s later it is still not so: {what}",
                    LIMIT.as_secs() * 5
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok((Instant::now(), now()))
    };
    let has_begun = |now: Progress| now.elsewhere > before.elsewhere;
    let (began, from) = until(&has_begun, "copies have places elsewhere")?;
    let cpu = spent()?;
    let (ended, to) = until(&|now| !now.is_degraded, "all chunks have all copies")?;
    let rebuilt = Rebuilt {
        bytes,
        took: ended - began,
        cpu: spent()?.saturating_sub(cpu),
    };
    Ok((rebuilt, (from, to)))
}

fn rebuild_under_load(world: &World, node: usize) -> Result<Loaded, Failure> {
    let plan = LoadPlan {
        clients: vec![[[Role::ReadSettled; 4], [Role::WriteOwn; 4]].concat()],
        registers: 4096,
        pause: Duration::from_millis(1),
        tolerant: false,
        seed: 3,
    };
    let load = Load::start(&world.addresses(), VOLUME, plan);
    load.wait_for(1000)?;
    let from = load.now();
    std::thread::sleep(CALM);
    let calm = (from, load.now());
    let (rebuilt, during) = rebuild_between(world, node, || load.now())?;
    let done = load.finish()?;
    Ok(Loaded {
        rebuilt,
        done,
        calm,
        during,
    })
}

fn report_rows(alone: &[Alone], loaded: &[Loaded]) -> Vec<Row> {
    let median = |values: &dyn Fn(&Alone) -> f64| quantile(alone.iter().map(values).collect(), 0.5);
    let each: Vec<String> = alone
        .iter()
        .map(|alone| format!("{:.2}", alone.ratio()))
        .collect();
    let rate = Row::new(
        "rebuild of a lost node's copies, without load",
        median(&Alone::ratio),
        "of the disk's or the wire's rate",
        Some(Bar::AtLeast(RATE_BAR)),
    );
    let rate = rate.with_note(format!(
        "{:.0} MB/s with {:.1} s of CPU a GiB, all processes; a file is copied on the same disk with {:.0} MB/s, one connection between two \
         hosts carries {:.0} MB/s; each time {}",
        median(&|alone| alone.rebuilt.rate() / MB),
        median(&|alone| alone.rebuilt.cpu_seconds_per_gib()),
        median(&|alone| alone.disk / MB),
        median(&|alone| alone.wire / MB),
        each.join(", ")
    ));
    let p99 = |what: &str, role| {
        let ms = |loaded: &Loaded, window| loaded.done.percentile(role, window, 0.99).as_secs_f64() * 1000.0;
        let median = |value: &dyn Fn(&Loaded) -> f64| quantile(loaded.iter().map(value).collect(), 0.5);
        let ratio = |one: &Loaded| ms(one, one.during) / ms(one, one.calm);
        let each: Vec<String> = loaded.iter().map(|one| format!("{:.2}", ratio(one))).collect();
        let row = Row::new(
            format!("p99 of {what} while a lost node's copies are rebuilt"),
            median(&ratio),
            "of the p99 before",
            Some(Bar::AtMost(P99_BAR)),
        );
        row.with_note(format!(
            "{:.2} ms before, {:.2} meanwhile; {:.0} and {:.0} /s; rebuilt with {:.0} MB/s meanwhile, {:.1} s of CPU a GiB with the load's; \
             each time {}",
            median(&|one| ms(one, one.calm)),
            median(&|one| ms(one, one.during)),
            median(&|one| one.done.rate(role, one.calm)),
            median(&|one| one.done.rate(role, one.during)),
            median(&|one| one.rebuilt.rate() / MB),
            median(&|one| one.rebuilt.cpu_seconds_per_gib()),
            each.join(", ")
        ))
    };
    vec![
        rate,
        p99("4 KiB reads", Role::ReadSettled),
        p99("4 KiB writes", Role::WriteOwn),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_is_held_against_the_slower_of_disk_and_wire() {
        let alone = |disk, wire| Alone {
            rebuilt: Rebuilt {
                bytes: 300 << 20,
                took: Duration::from_secs(3),
                cpu: Duration::from_secs(1),
            },
            disk,
            wire,
        };
        let rate = f64::from(100 << 20);
        assert_eq!(alone(rate * 2.0, rate * 4.0).ratio(), 0.5);
        assert_eq!(alone(rate * 4.0, rate).ratio(), 1.0);
        let rows = report_rows(&[alone(rate * 2.0, rate * 4.0)], &[]);
        assert!(rows[0].is_missed() && rows[0].value == 0.5);
        assert!(rows[1].is_missed(), "what was not measured meets no bar");
    }
}
