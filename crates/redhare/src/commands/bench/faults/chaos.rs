//! `redhare bench faults random`: faults drawn from a seed while clients read and write, and what must hold afterwards.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use foundation::Random;
use rustix::process::Signal;

use super::beside::Beside;
use super::history;
use super::load::{Load, Plan as LoadPlan, Role};
use super::world::{Plan, World};
use crate::commands::bench::scratch::Scratch;
use crate::output::{Failure, Output};

const VOLUME: &str = "faults";
const VOLUME_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: u64 = 16 << 20;
const NODES: usize = 4;
/// A node's file system in memory: room for all that a node may hold, with some to spare.
const BOUND: &str = "640m";
const BLOCK_BYTES: u64 = 4096;
/// How every block of the workload begins, see [`super::load`].
const MAGIC: &[u8] = b"RHFAULTS";
const TICK: Duration = Duration::from_millis(20);

/// How long, and from which seed.
#[derive(Args)]
#[command(
    after_help = "Needs root, and ip (iproute2). Each of four nodes is a host of its own: a network namespace on a bridge. Targets, engines and \
masters are killed and started again, hosts are stopped and cut off, disks are filled, bits in their files flipped, links lose, delay and reset \
what goes over them or carry it one way only (with --link), while two clients read and \
write blocks that say what they are. Then the faults end, and it must hold that: no read returned wrong bytes; all copies are in sync again; \
a scrub repairs all that was flipped, and a second one finds nothing; the history of all operations is linearizable, says the checker.
Example:
  redhare bench faults random --seconds 60 --seed 7 --checker target/linearizability/check --link tests/linearizability/link"
)]
pub(crate) struct RandomArguments {
    /// How long faults happen
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which faults; the same seed draws the same ones, though not at the same moments of the clients' work
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults at the same time, each of another part
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Only these kinds
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// The program that judges the history (tests/linearizability/setup builds it); without one it is only written down
    #[arg(long, value_name = "PROGRAM")]
    checker: Option<PathBuf>,
    /// The program that makes links bad (tests/linearizability/link); without one links are only cut both ways
    #[arg(long, value_name = "PROGRAM")]
    link: Option<PathBuf>,
    /// A program that uses an exported volume while faults happen, and must find nothing wrong (tests/vm/faults-host: a stock kernel in a
    /// guest)
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// A directory that is made for this, and removed if all is well
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/redhare-faults")]
    data: PathBuf,
    /// Keep the logs and the history also if all is well
    #[arg(long)]
    keep: bool,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// kill -9 of a target; its engine starts another one
    Target,
    /// kill -9 of a node's engine; another one adopts the target later
    Engine,
    /// kill -9 of both; the node comes back later
    Node,
    /// SIGSTOP of both, and SIGCONT later
    Freeze,
    /// The host's link is down for a while
    Cut,
    /// kill -9 of the master; another one is started later
    Master,
    /// The file system under a disk is full for a while
    Full,
    /// A bit of a block in a disk's file is another one
    Flip,
    /// Nothing that the host sends arrives, and it hears everything
    Mute,
    /// Nothing arrives at the host, and everything that it sends does
    Deaf,
    /// What the host sends and is sent comes late, by up to some 100 ms, or is held back for a while
    Late,
    /// Frames to and from the host are lost, or come twice
    Lossy,
    /// TCP connections to and from the host are reset
    Reset,
}

/// What needs a program that makes links bad.
const LINK_KINDS: [Kind; 5] = [Kind::Mute, Kind::Deaf, Kind::Late, Kind::Lossy, Kind::Reset];

const KINDS: [Kind; 8] = [
    Kind::Target,
    Kind::Engine,
    Kind::Node,
    Kind::Freeze,
    Kind::Cut,
    Kind::Master,
    Kind::Full,
    Kind::Flip,
];

/// A fault, and until when it lasts.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: Kind,
    /// 0 for the master.
    node: usize,
    until: Instant,
}

#[derive(Default, serde::Serialize)]
struct View {
    seed: u64,
    seconds: u64,
    faults: std::collections::BTreeMap<String, u64>,
    operations: usize,
    failed_operations: u64,
    slowest_read_ms: u128,
    slowest_write_ms: u128,
    repaired_blocks: u64,
    healed_seconds: f64,
    judged: String,
}

pub(crate) fn run(arguments: &RandomArguments, output: &Output) -> Result<(), Failure> {
    let mut place = Scratch::new(&arguments.data)?;
    let outcome = torment(arguments, place.path());
    if outcome.is_err() || arguments.keep {
        place.keep();
    }
    let view = outcome.map_err(|failure| {
        Failure::new(format!(
            "seed {}: {failure}; logs and history are kept in {}",
            arguments.seed,
            arguments.data.display()
        ))
    })?;
    output.print(&view, || describe(&view));
    Ok(())
}

fn describe(view: &View) -> String {
    let faults: Vec<String> = view
        .faults
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    format!(
        "seed {}, {} s: {}; {} operations, {} of them failed, slowest read {} ms, slowest write {} ms; well again after {:.1} s, {} blocks repaired; {}",
        view.seed,
        view.seconds,
        faults.join(", "),
        view.operations,
        view.failed_operations,
        view.slowest_read_ms,
        view.slowest_write_ms,
        view.healed_seconds,
        view.repaired_blocks,
        view.judged
    )
}

fn torment(arguments: &RandomArguments, place: &Path) -> Result<View, Failure> {
    let plan = Plan {
        nodes: NODES,
        masters: 1,
        disk: "1GiB".to_owned(),
        bounded: Some(BOUND.to_owned()),
        master_arguments: vec!["--no-rebalance".to_owned()],
    };
    let mut world = World::start(plan, place)?;
    let (size, chunk) = (VOLUME_BYTES.to_string(), CHUNK_BYTES.to_string());
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
    let beside = arguments.beside.as_deref();
    let mut beside = beside
        .map(|program| Beside::start(&world, program, place))
        .transpose()?;
    let load = Load::start(
        &world.addresses(),
        VOLUME,
        LoadPlan {
            clients: vec![vec![Role::Share; 6]; 2],
            registers: 8192,
            pause: Duration::from_millis(2),
            tolerant: true,
            seed: arguments.seed,
        },
    );
    load.wait_for(500)?;
    let mut view = View {
        seed: arguments.seed,
        seconds: arguments.seconds,
        ..View::default()
    };
    let mut is_lost = || load.has_failed() || beside.as_mut().is_some_and(Beside::has_ended);
    happen(arguments, &mut world, &load, &mut view, &mut is_lost)?;
    let began = Instant::now();
    world.wait("all copies are in sync after the faults", World::is_well)?;
    view.healed_seconds = began.elapsed().as_secs_f64();
    if let Some(beside) = beside {
        beside.finish()?;
    }
    // What the clients do when all is well again belongs to the history, too.
    load.wait_for(500)?;
    let done = load.finish()?;
    view.operations = done.samples.len();
    view.failed_operations = done.failed;
    let worst = |is_write| {
        let of_kind = done.samples.iter().filter(|sample| sample.is_write == is_write);
        of_kind.map(|sample| sample.took.as_millis()).max().unwrap_or(0)
    };
    (view.slowest_read_ms, view.slowest_write_ms) = (worst(false), worst(true));
    let path = place.join("history.jsonl");
    history::write(&path, &done.events)?;
    let first = scrub(&mut world)?;
    view.repaired_blocks = first["repaired_blocks"].as_u64().unwrap_or(0);
    let second = scrub(&mut world)?;
    // Bits that were flipped do not fit; that two copies fit and differ is a mistake of ours at any time.
    let are_well =
        |scrubbed: &serde_json::Value| scrubbed["differing_blocks"] == 0 && scrubbed["outvoted_blocks"] == 0;
    if second["repaired_blocks"] != 0 || !are_well(&first) || !are_well(&second) {
        return Err(Failure::new(format!(
            "copies differ: {first}, then, after that scrub, {second}"
        )));
    }
    view.judged = match &arguments.checker {
        Some(checker) => history::judge(checker, &path)?,
        None => "no checker was named: the history was not judged".to_owned(),
    };
    Ok(view)
}

/// Compares all copies with their checksums. One that moves meanwhile, since nodes are to be used alike again, is not reached: then once more.
fn scrub(world: &mut World) -> Result<serde_json::Value, Failure> {
    const ATTEMPTS: usize = 3;
    let mut attempt = 1;
    loop {
        match world.redhare(&["volume", "scrub", VOLUME]) {
            Err(_) if attempt < ATTEMPTS => attempt += 1,
            ended => return ended,
        }
        world.wait("all copies are in sync before another scrub", World::is_well)?;
    }
}

/// Lets faults happen for the time that was asked for, and ends them all.
fn happen(
    arguments: &RandomArguments,
    world: &mut World,
    load: &Load,
    view: &mut View,
    is_lost: &mut impl FnMut() -> bool,
) -> Result<(), Failure> {
    let mut random = Random::from_seed(arguments.seed);
    let kinds = kinds_of(arguments)?;
    // Bits are flipped on one disk only: what is wrong on all copies cannot be repaired.
    let flipped = 1 + random.below(NODES as u64) as usize;
    let deadline = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut ongoing: Vec<Fault> = Vec::new();
    let mut next = Instant::now();
    while Instant::now() < deadline {
        if is_lost() {
            // Their own words are better than ours; they come when they are finished.
            break;
        }
        for fault in take_if(&mut ongoing, |fault| fault.until <= Instant::now()) {
            end(world, fault)?;
        }
        if Instant::now() >= next && ongoing.len() < arguments.at_once {
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            let node = match kind {
                Kind::Master => 0,
                Kind::Flip => flipped,
                _ => 1 + random.below(NODES as u64) as usize,
            };
            let until = Instant::now() + Duration::from_millis(random.between(200, 6000));
            next = until + Duration::from_millis(random.below(4000));
            if ongoing.iter().all(|fault| fault.node != node) {
                let fault = Fault { kind, node, until };
                tracing::info!(at_ms = load.now().as_millis() as u64, ?kind, node, "fault");
                begin(world, fault, arguments.link.as_deref(), &mut random)?;
                *view.faults.entry(format!("{kind:?}").to_lowercase()).or_default() += 1;
                ongoing.push(fault);
            }
        }
        std::thread::sleep(TICK);
    }
    for fault in ongoing {
        end(world, fault)?;
    }
    Ok(())
}

fn take_if(faults: &mut Vec<Fault>, is_over: impl Fn(&Fault) -> bool) -> Vec<Fault> {
    let (over, rest) = std::mem::take(faults).into_iter().partition(is_over);
    *faults = rest;
    over
}

/// What may happen.
fn kinds_of(arguments: &RandomArguments) -> Result<Vec<Kind>, Failure> {
    let needs_link = |kind: &&Kind| LINK_KINDS.contains(kind);
    match (&arguments.link, arguments.only.iter().find(needs_link)) {
        (None, Some(kind)) => Err(Failure::new(format!(
            "{kind:?} needs a program that makes links bad; add --link tests/linearizability/link"
        ))),
        (_, _) if !arguments.only.is_empty() => Ok(arguments.only.clone()),
        (None, None) => Ok(KINDS.to_vec()),
        (Some(_), _) => Ok(KINDS.iter().chain(&LINK_KINDS).copied().collect()),
    }
}

/// What a bad link does, as options of the program that makes it so.
fn badness(kind: Kind, random: &mut Random) -> Vec<String> {
    let mut options = vec!["--seed".to_owned(), random.below(1 << 31).to_string()];
    let mut draw = |name: &str, least: u64, most: u64| {
        let value = random.between(least, most);
        options.extend([format!("--{name}"), value.to_string()]);
    };
    match kind {
        Kind::Late => {
            draw("delay", 0, 100);
            draw("jitter", 0, 100);
        }
        Kind::Lossy => {
            draw("loss", 10, 300);
            draw("twice", 0, 100);
        }
        Kind::Reset => draw("reset", 1, 100),
        Kind::Mute => options.push("--mute".to_owned()),
        _ => options.push("--deaf".to_owned()),
    }
    // One late link in three gives nothing at all until it is a good one again.
    if kind == Kind::Late && random.below(3) == 0 {
        options.push("--hold".to_owned());
    }
    options
}

fn begin(world: &mut World, fault: Fault, link: Option<&Path>, random: &mut Random) -> Result<(), Failure> {
    let node = fault.node;
    match fault.kind {
        Kind::Target => world.signal_target(node, Signal::KILL).map(drop),
        Kind::Engine => world.signal_engine(node, Signal::KILL).map(drop),
        Kind::Node => world.kill_node(node),
        Kind::Freeze => world.freeze(node, true),
        Kind::Cut => world.link(node, false),
        Kind::Master => world.kill_master(0),
        Kind::Full => world.fill(node, true),
        Kind::Flip => flip(&world.disk(node), random),
        Kind::Mute | Kind::Deaf | Kind::Late | Kind::Lossy | Kind::Reset => {
            let program = link.expect("these kinds are drawn only with a program for them");
            world.spoil(node, program, &badness(fault.kind, random))
        }
    }
}

fn end(world: &mut World, fault: Fault) -> Result<(), Failure> {
    tracing::info!(kind = ?fault.kind, node = fault.node, "fault ends");
    let node = fault.node;
    match fault.kind {
        Kind::Target | Kind::Flip => Ok(()),
        Kind::Engine | Kind::Node => world.start_node(node),
        Kind::Freeze => world.freeze(node, false),
        Kind::Cut => world.link(node, true),
        Kind::Master => world.start_master(0),
        // The copies come back by themselves.
        Kind::Full => world.fill(node, false),
        Kind::Mute | Kind::Deaf | Kind::Late | Kind::Lossy | Kind::Reset => world.mend(node),
    }
}

/// Flips one bit in each of a few of the workload's blocks in a disk's file.
fn flip(disk: &Path, random: &mut Random) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", disk.display()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(disk)
        .map_err(failed)?;
    let blocks = file.metadata().map_err(failed)?.len() / BLOCK_BYTES;
    let (mut left, mut at, mut start) = (3, random.below(blocks), [0; 8]);
    for _ in 0..blocks {
        at = (at + 1) % blocks;
        file.read_exact_at(&mut start, at * BLOCK_BYTES).map_err(failed)?;
        if start != MAGIC {
            continue;
        }
        let place = at * BLOCK_BYTES + random.below(BLOCK_BYTES);
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).map_err(failed)?;
        byte[0] ^= 1 << random.below(8);
        file.write_all_at(&byte, place).map_err(failed)?;
        left -= 1;
        if left == 0 {
            break;
        }
    }
    Ok(())
}
