//! Proved here: through an hour of a writer that changes everything there is to change, with successors that take over or are handed the volume, a reader
//! that follows and one that stays on its snapshot for a while see committed states only, none older than one they saw, every file with its bytes; whoever
//! looks finds what was told to be durable before; the one that follows is never behind by more than its bound while nothing stands still. All stop for longer than their
//! leases now and then, the clock of each runs up to 1 % faster or slower than the masters', the disk is slow at times, and masters are away. At the end all space is accounted for. Planted bugs, to use space again under
//! readers, and to give the lease up before the commit, are found by the same test. What is used again one commit early (`crash`) harms no reader that has a
//! lease, and is not found here.

mod readers;
mod writers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bdev::fence::TokenKeeper;
use foundation::{Instant, Random};
use reactor::sim::disk::DiskHandle;
use reactor::time;

use super::files_model::Files;
use super::files_test::{extended_of, options};
use super::model::{difference, read_back};
use super::support::{Clock, DISK, Gate, GatedChannel, GatedLeases, leases, on_host, raw, small, world};
use crate::files::FileSystem;
use crate::lease::LeaseSource;
use crate::lease::memory::{LocalLeases, READER_TERM};
use crate::space::PlantedBug;
use crate::{FsckOptions, Medium, ReadError, Reader, Snapshot, format, fsck};

/// Of virtual time.
const HOUR: Duration = Duration::from_secs(3600);
const VOLUME_BYTES: u64 = 48 << 20;
/// Hours that are tried; one takes some 6 s of processor time in the dev profile.
const SEEDS: u64 = 3;
/// What is under way ends within this, once nothing stands still.
const PATIENCE: Duration = Duration::from_secs(180);

/// What one hour had in it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    commits: u64,
    snapshots: u64,
    snapshots_deleted: u64,
    compactions: u64,
    handed_over: u64,
    overtaken: u64,
    followed: u64,
    stays: u64,
    stays_at_names: u64,
    /// Of readers, and each was stopped or cut off before.
    leases_ended: u64,
    longest_behind: Duration,
}

/// Every state that a generation has or may have.
#[derive(Default)]
struct History {
    /// By the first generation that has it; it lasts until the next one's.
    states: BTreeMap<u64, Files>,
    /// Generations that have a name, or had one.
    named: Vec<u64>,
}

impl History {
    fn key(&self, generation: u64) -> u64 {
        let found = self.states.range(..=generation).next_back();
        *found.expect("the first generation is known").0
    }

    fn at(&self, generation: u64) -> Files {
        self.states[&self.key(generation)].clone()
    }

    /// Drops what nobody can see any more: what is older than `oldest` and has no name.
    fn forget_before(&mut self, oldest: u64) {
        let first = self.key(oldest);
        let named: Vec<u64> = self.named.iter().map(|&named| self.key(named)).collect();
        self.states.retain(|key, _| *key >= first || named.contains(key));
    }
}

/// A process: what it sends and gets waits while it is stopped.
#[derive(Clone)]
struct Process {
    everything: Gate,
    masters: Gate,
    stopped: Rc<Cell<bool>>,
    /// When it went on last.
    went_on: Rc<Cell<Instant>>,
    /// The oldest generation that it may read.
    reads: Rc<Cell<u64>>,
}

impl Process {
    fn new() -> Self {
        Self {
            everything: Gate::new(),
            masters: Gate::new(),
            stopped: Rc::default(),
            went_on: Rc::new(Cell::new(Instant::from_nanos(0))),
            reads: Rc::new(Cell::new(1)),
        }
    }

    /// Stops it, or only cuts it off from the masters.
    async fn stop_for(&self, pause: Duration, whole: bool) {
        self.stopped.set(true);
        self.masters.close();
        if whole {
            self.everything.close();
        }
        time::sleep(pause).await;
        self.go_on();
    }

    fn go_on(&self) {
        self.masters.open();
        self.everything.open();
        if self.stopped.replace(false) {
            self.went_on.set(time::now());
        }
    }

    /// Whether its lease may have ended, and it may still be finding that out.
    fn may_have_lost_its_lease(&self) -> bool {
        self.stopped.get() || time::now().since(self.went_on.get()) < READER_TERM
    }
}

/// All that the tasks of one hour share.
struct World {
    plain: Medium,
    keeper: TokenKeeper,
    leases: LocalLeases,
    /// Each opening has a clock of its own.
    clocks: RefCell<Random>,
    bug: PlantedBug,
    history: RefCell<History>,
    /// The newest generation that a writer was told to be durable.
    durable: Cell<u64>,
    /// Such generations that the follower has not shown yet, and when they were told.
    unseen: RefCell<Vec<(u64, Instant)>>,
    /// The last writer that has opened the volume, and the generation that it found.
    writer: Cell<(u64, u64)>,
    slow: Cell<bool>,
    was_slow: Cell<Instant>,
    over: Cell<bool>,
    failure: RefCell<Option<String>>,
    seen: Cell<Seen>,
    readers: [Process; 2],
}

impl World {
    fn medium(&self, process: &Process) -> Medium {
        let gate = process.everything.clone();
        self.plain
            .on(|file| Rc::new(GatedChannel::new(self.keeper.over(file), gate)))
    }

    fn leases(&self, process: &Process) -> Rc<dyn LeaseSource> {
        let clock = Clock::random(&mut self.clocks.borrow_mut());
        Rc::new(GatedLeases::with_clock(
            Rc::new(self.leases.clone()),
            process.masters.clone(),
            clock,
        ))
    }

    fn count(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        change(&mut seen);
        self.seen.set(seen);
    }

    fn is_over(&self) -> bool {
        self.over.get() || self.failure.borrow().is_some()
    }

    fn note(&self, done: Result<(), String>) {
        if let Err(error) = done {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    /// Notes what will be there once the next commit is durable.
    fn will_be(&self, generation: u64, files: &Files) {
        self.history.borrow_mut().states.insert(generation, files.clone());
    }

    /// Since when nothing keeps a process from going on; `None` while something does.
    fn calm_since(&self, process: &Process) -> Option<Instant> {
        let calm = !process.stopped.get() && !self.slow.get();
        calm.then(|| process.went_on.get().max(self.was_slow.get()))
    }
}

/// Whether a reader shows what its generation had; `false` if its lease ended, as it may.
async fn is_right(world: &World, reader: &Reader, process: &Process) -> Result<bool, String> {
    let generation = reader.generation();
    let expected = world.history.borrow().at(generation).reopened_whole();
    let found = match read_back(reader).await {
        Ok(found) => extended_of(reader, &expected)
            .await
            .map(|extended| (found, extended)),
        Err(error) => Err(error),
    };
    let (found, extended) = match found {
        Ok(found) => found,
        Err(error) if error == ReadError::LeaseEnded.to_string() && process.may_have_lost_its_lease() => {
            return Ok(false);
        }
        Err(error) => return Err(format!("generation {generation}: {error}")),
    };
    if found != expected.tree || extended != expected.extended {
        let different = difference(&found, &expected.tree);
        return Err(format!(
            "generation {generation} is not what was committed: {different}"
        ));
    }
    Ok(true)
}

/// Stops a reader now and then, for longer than its lease at times.
async fn disturb(world: Rc<World>, process: Process, mut random: Random) {
    while !world.is_over() {
        time::sleep(millis(&mut random, 5_000, 240_000)).await;
        let longest = match random.chance(1, 3) {
            true => READER_TERM * 3,
            false => READER_TERM / 3,
        };
        let pause = millis(&mut random, 100, longest.as_millis() as u64);
        process.stop_for(pause, random.chance(2, 3)).await;
    }
}

/// Makes the disk slow now and then.
async fn slow_down(world: Rc<World>, disk: DiskHandle, mut random: Random) {
    let micros = Duration::from_micros;
    while !world.is_over() {
        time::sleep(millis(&mut random, 60_000, 500_000)).await;
        world.slow.set(true);
        disk.set_latency(micros(1_000), micros(random.between(10_000, 200_000)));
        time::sleep(millis(&mut random, 2_000, 40_000)).await;
        disk.set_latency(micros(10), micros(200));
        // What was begun before takes its time.
        time::sleep(Duration::from_millis(400)).await;
        world.slow.set(false);
        world.was_slow.set(time::now());
    }
}

fn millis(random: &mut Random, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

/// Makes room of everything that was kept, and compares what is left with what should be.
async fn settle(world: &World) -> Result<(), String> {
    let text = |error: crate::files::FileError| error.to_string();
    let process = Process::new();
    let (medium, leases) = (world.medium(&process), world.leases(&process));
    let opened = FileSystem::open(medium.clone(), leases.clone(), &options()).await;
    let mut files = opened.map_err(|error| format!("at the end: {error}"))?;
    let expected = world.history.borrow().at(files.generation());
    world.history.borrow_mut().states = BTreeMap::from([(files.generation(), expected)]);
    let named: Vec<Snapshot> = files.snapshots().await.map_err(text)?;
    for snapshot in named {
        files.delete_snapshot(&snapshot.name).await.map_err(text)?;
    }
    files.compact(|_| {}).await.map_err(text)?;
    for _ in 0..2 {
        files.make_durable_again().await.map_err(text)?;
    }
    let room = files.statistics();
    let kept = room.held.0 + room.waiting.0;
    if kept > 200_000 {
        return Err(format!(
            "{kept} bytes are kept though nothing holds any: {room:?}"
        ));
    }
    files.close().await.map_err(|error| error.to_string())?;
    let whole = FsckOptions {
        read_content: true,
        ..FsckOptions::default()
    };
    let report = fsck(&medium, leases.clone(), &whole, &mut |_| {}).await;
    let report = report.map_err(|error| error.to_string())?;
    if !report.is_clean() || report.superblock.is_some() {
        return Err(format!("at the end: {report:?}"));
    }
    let reader = Reader::open(medium, leases, &readers::cold()).await;
    let reader = reader.map_err(|error| error.to_string())?;
    match is_right(world, &reader, &process).await? {
        true => Ok(()),
        false => Err("a lease ended at the end".to_owned()),
    }
}

async fn tell_story(seed: u64, bug: PlantedBug, disk: DiskHandle) -> Result<Seen, String> {
    let mut random = Random::from_seed(seed ^ 0x40_0e);
    let (plain, keeper) = (raw(VOLUME_BYTES), TokenKeeper::new());
    let fenced = plain.on(|file| keeper.over(file));
    format(fenced, leases(), "a formatter", &small()).await.unwrap();
    let world = Rc::new(World {
        plain,
        keeper,
        leases: LocalLeases::new(),
        clocks: RefCell::new(Random::from_seed(seed ^ 0xc10c)),
        bug,
        history: RefCell::default(),
        durable: Cell::new(1),
        unseen: RefCell::default(),
        writer: Cell::new((0, 1)),
        slow: Cell::new(false),
        was_slow: Cell::new(time::now()),
        over: Cell::new(false),
        failure: RefCell::default(),
        seen: Cell::default(),
        readers: [Process::new(), Process::new()],
    });
    world.will_be(1, &Files::new(small().root));

    let [follower, stayer] = world.readers.clone();
    for process in &world.readers {
        drop(reactor::spawn(disturb(
            world.clone(),
            process.clone(),
            random.fork(),
        )));
    }
    drop(reactor::spawn(slow_down(world.clone(), disk, random.fork())));
    let following = readers::follow(world.clone(), follower, random.fork());
    let staying = readers::stay(world.clone(), stayer, random.fork());
    let reading = [
        reactor::spawn(noted(world.clone(), following)),
        reactor::spawn(noted(world.clone(), staying)),
    ];
    let writing = reactor::spawn(writers::succeed(world.clone(), random.fork()));
    let end = time::now() + HOUR;
    while time::now() < end && !world.is_over() {
        time::sleep(Duration::from_secs(1)).await;
    }
    world.over.set(true);
    let ended = time::timeout(PATIENCE * 3, writing).await;
    world.note(
        ended
            .map(drop)
            .map_err(|_| "the writers go on for ever".to_owned()),
    );
    for one in reading {
        let ended = time::timeout(PATIENCE * 3, one).await;
        world.note(
            ended
                .map(drop)
                .map_err(|_| "a reader goes on for ever".to_owned()),
        );
    }
    if let Some(error) = world.failure.borrow_mut().take() {
        return Err(error);
    }
    // Whatever lease was not given back has ended by then.
    time::sleep(READER_TERM).await;
    settle(&world).await?;
    Ok(world.seen.get())
}

async fn noted(world: Rc<World>, story: impl Future<Output = Result<(), String>>) {
    let done = story.await;
    world.note(done);
}

fn hour(seed: u64, bug: PlantedBug) -> Result<Seen, String> {
    let (simulation, host) = world(seed);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, move || tell_story(seed, bug, disk)).expect("the host keeps its power")
}

/// Found by a soak: what the model forgot went by the generation of a writer that had been overtaken long before.
#[test]
fn a_writer_that_was_overtaken_long_ago_is_judged_by_what_is_kept() {
    hour(179_598_401_902, PlantedBug::None).unwrap();
}

#[test]
fn an_hour_of_two_readers_and_a_writer() {
    let seeds = foundation::seeds::from_environment(SEEDS);
    let (mut compactions, mut stays_at_names, mut leases_ended) = (0, 0, 0);
    for &seed in &seeds {
        let seen = hour(seed, PlantedBug::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {seen:?}");
        let there = [
            seen.commits > 200,
            seen.followed > 100,
            seen.snapshots > 5 && seen.snapshots_deleted > 5,
            seen.handed_over > 2 && seen.overtaken > 2,
            seen.stays > 5,
        ];
        assert!(there.iter().all(|there| *there), "seed {seed}: {seen:?}");
        compactions += seen.compactions;
        stays_at_names += seen.stays_at_names;
        leases_ended += seen.leases_ended;
    }
    // One hour may be without them.
    assert!(
        seeds.len() < SEEDS as usize || compactions > 0 && stays_at_names > 0 && leases_ended > 2,
        "{compactions}, {stays_at_names}, {leases_ended}"
    );
}

/// The first of the seeds that finds a bug, and what it says.
fn find(bug: PlantedBug) -> String {
    let found = (0..SEEDS).find_map(|seed| Some((seed, hour(seed, bug).err()?)));
    let (seed, error) = found.expect("an hour finds the bug");
    let error: String = error.chars().take(300).collect();
    println!("{bug:?}, seed {seed}: {error}");
    error
}

#[test]
fn space_used_again_under_readers_is_found() {
    find(PlantedBug::ReuseUnderReaders);
}

#[test]
fn a_lease_given_up_before_the_commit_is_found() {
    let error = find(PlantedBug::HandOverBeforeCommit);
    assert!(error.contains("not durable"), "{error}");
}
