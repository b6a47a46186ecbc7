//! Proved here: a thousand readers and more that follow one writer through minutes of commits, compactions and hand-overs see committed states only, each in
//! order and whole, and none is behind by more than its bound; some keep an older state beside the newest for a while, some come and go, some die.
//! What a commit costs the writer does not depend on them: it asks the masters once for each generation, however many read, and asks the disk for as much as
//! beside a few. The masters hear of each reader once for each commit that it goes on to, and when it renews its lease; of those that died they
//! remember none for longer than a lease lasts, and until the next commit. A planted bug, to use space again under readers, is found by the same test.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bdev::fence::TokenKeeper;
use bdev::{Channel, Geometry, Request};
use foundation::{Instant, Random};
use reactor::sync::Semaphore;
use reactor::time;

use super::files_test::options;
use super::support::{leases, on_host, raw, small, world, writer_options};
use crate::files::{FileError, FileOptions, FileSystem, NewInode, SetAttributes};
use crate::lease::memory::{LocalLeases, READER_TERM};
use crate::lease::{LeaseFuture, LeaseSource, ReaderLease, WriterLease};
use crate::space::PlantedBug;
use crate::{
    InodeNumber, Medium, ReadError, Reader, ReaderFloor, ReaderOptions, Target, Timestamp, WriterOptions,
    format,
};

/// Of virtual time.
const LASTS: Duration = Duration::from_secs(180);
const READERS: u64 = 1200;
/// What they are compared with.
const FEW: u64 = 12;
const VOLUME_BYTES: u64 = 64 << 20;
const FILES: usize = 60;
/// The masters take so long for each message, one after the other: ten thousand a second.
const SERVICE: Duration = Duration::from_micros(100);
/// Most readers look for a commit so often, as a mount does that is to show one within 10 s; one in fifty as one within 1 s.
const LOOKS_EVERY: Duration = Duration::from_millis(9_400);
const LOOKS_OFTEN_EVERY: Duration = Duration::from_millis(400);
/// What a look and reading a few files may take beside that: all that the masters and the disk have to do for everybody else is in it.
const LOOK_TAKES: Duration = Duration::from_millis(600);
/// A reader that lives for a while only, and one that keeps a state for so long at most.
const LIFE: Duration = Duration::from_secs(60);
const KEEPS_FOR: Duration = Duration::from_secs(30);
const HANDS_OVER_EVERY: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(90);
/// What the writer asks of the disk for a commit beside a crowd may be so many hundredths of that beside a few: what readers hold is not used again, so that
/// other pages are.
const DISK_PERCENT_MAX: u64 = 115;
/// A compaction takes the requests of about so many commits more, in the stories of many seeds.
const COMPACTION_COSTS: u64 = 3;

/// Messages to the masters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Messages {
    /// What the writer keeps its lease by.
    writer: u64,
    /// The writer's question what readers need.
    floor: u64,
    /// Readers take, move on, renew and give back their leases.
    reader: u64,
}

/// Masters that do one thing after another, and count.
struct Masters {
    leases: LocalLeases,
    desk: Rc<Semaphore>,
    messages: Cell<Messages>,
}

impl Masters {
    fn served<'a, T: 'a>(
        &'a self,
        count: impl FnOnce(&mut Messages) + 'a,
        answer: LeaseFuture<'a, T>,
    ) -> LeaseFuture<'a, T> {
        Box::pin(async move {
            let mut messages = self.messages.get();
            count(&mut messages);
            self.messages.set(messages);
            let _turn = self.desk.acquire().await;
            time::sleep(SERVICE).await;
            answer.await
        })
    }
}

impl LeaseSource for Masters {
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.served(|told| told.writer += 1, self.leases.acquire_writer(holder))
    }

    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.served(|told| told.writer += 1, self.leases.take_over_writer(holder))
    }

    fn wanted_by(&self) -> Option<String> {
        self.leases.wanted_by()
    }

    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease> {
        self.served(|told| told.writer += 1, self.leases.renew_writer(token))
    }

    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()> {
        self.served(|told| told.writer += 1, self.leases.release_writer(token))
    }

    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        self.served(|told| told.reader += 1, self.leases.acquire_reader(generation))
    }

    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        self.served(|told| told.reader += 1, self.leases.renew_reader(id, generation))
    }

    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
        self.served(|told| told.reader += 1, self.leases.release_reader(id))
    }

    fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor> {
        self.served(|told| told.floor += 1, self.leases.reader_floor(token))
    }
}

/// Counts what the writer asks of the disk.
struct Counting {
    inner: Rc<dyn Channel>,
    requests: Rc<Cell<u64>>,
}

impl Channel for Counting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        self.requests.set(self.requests.get() + 1);
        self.inner.submit(request);
    }
}

/// What each file has: which of its contents, if it is there.
type State = [Option<u64>; FILES];

fn name_of(file: usize) -> Vec<u8> {
    format!("a file, number {file}").into_bytes()
}

/// Its length and bytes are those of the file and its version, and of no other.
fn content(file: usize, version: u64) -> Vec<u8> {
    let length = 300 + (file * 331 + version as usize * 977) % 12_000;
    let first = version * FILES as u64 + file as u64;
    (0..length as u64)
        .map(|at| (first * 31 + at * 7 + at / 256) as u8)
        .collect()
}

/// What one story had in it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    generations: u64,
    commits: u64,
    compactions: u64,
    /// How often all was compacted that could be: each asks once whether readers have come since the last commit.
    asked_to_compact: u64,
    handed_over: u64,
    /// Commits that a reader went on to, of all readers.
    followed: u64,
    /// The fewest of a reader that was there from the beginning to the end.
    fewest_followed: u64,
    read_files: u64,
    kept: u64,
    came: u64,
    died: u64,
    records_max: u64,
    longest_behind: Duration,
    messages: Messages,
    writer_requests: u64,
}

struct World {
    plain: Medium,
    keeper: TokenKeeper,
    masters: Rc<Masters>,
    bug: PlantedBug,
    readers: u64,
    /// By the first generation that has it; it lasts until the next one's.
    states: RefCell<BTreeMap<u64, State>>,
    /// When the newest generations were told to be durable.
    durable: RefCell<BTreeMap<u64, Instant>>,
    writer_requests: Rc<Cell<u64>>,
    /// Readers that hold a lease, and when those died that gave none back.
    alive: Cell<u64>,
    dead: RefCell<Vec<Instant>>,
    over: Cell<bool>,
    failure: RefCell<Option<String>>,
    seen: Cell<Seen>,
}

impl World {
    fn is_over(&self) -> bool {
        self.over.get() || self.failure.borrow().is_some()
    }

    fn count(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        change(&mut seen);
        self.seen.set(seen);
    }

    fn newest_durable(&self) -> u64 {
        self.durable
            .borrow()
            .last_key_value()
            .map_or(1, |(newest, _)| *newest)
    }

    fn tell_durable(&self, generation: u64) {
        let mut durable = self.durable.borrow_mut();
        durable.entry(generation).or_insert_with(time::now);
    }

    /// A reader that looks so often goes on from a generation now.
    fn note_behind(&self, from: u64, every: Duration) -> Result<(), String> {
        let durable = self.durable.borrow();
        let Some((missed, told)) = durable.range(from + 1..).next() else {
            return Ok(());
        };
        let behind = time::now().since(*told);
        if behind > every + LOOK_TAKES {
            return Err(format!(
                "generation {missed} was seen {behind:?} after it was durable"
            ));
        }
        self.count(|seen| seen.longest_behind = seen.longest_behind.max(behind));
        Ok(())
    }

    fn state_of(&self, generation: u64) -> State {
        let states = self.states.borrow();
        let (_, state) = states
            .range(..=generation)
            .next_back()
            .expect("the first is known");
        *state
    }

    fn writing_medium(&self) -> Medium {
        let requests = self.writer_requests.clone();
        self.plain.on(|file| {
            let inner = self.keeper.over(file);
            Rc::new(Counting { inner, requests })
        })
    }

    fn reading_medium(&self) -> Medium {
        self.plain.on(|file| self.keeper.over(file))
    }

    /// Lease records at the masters, right after a commit: those of who lives, and of who died within a lease's term.
    fn check_records(&self) -> Result<(), String> {
        let now = time::now();
        let mut dead = self.dead.borrow_mut();
        // What such a one had sent may arrive after its end.
        dead.retain(|died| now.since(*died) <= READER_TERM + LOOK_TAKES);
        let records = self.masters.leases.reader_count() as u64;
        let most = self.alive.get() + dead.len() as u64;
        self.count(|seen| seen.records_max = seen.records_max.max(records));
        match records <= most {
            true => Ok(()),
            false => Err(format!(
                "the masters remember {records} readers, and there are {most}"
            )),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn between(random: &mut Random, low: Duration, high: Duration) -> Duration {
    Duration::from_millis(random.between(low.as_millis() as u64, high.as_millis() as u64))
}

/// Some changes and one commit.
async fn work(
    world: &World,
    files: &mut FileSystem,
    state: &mut State,
    random: &mut Random,
) -> Result<(), FileError> {
    let now = Timestamp::default();
    let new = NewInode {
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    for _ in 0..random.between(1, 6) {
        let file = random.below(FILES as u64) as usize;
        let name = name_of(file);
        match state[file] {
            Some(_) if random.chance(1, 6) => {
                files.unlink(InodeNumber::ROOT, &name, now).await?;
                state[file] = None;
                continue;
            }
            Some(_) => {}
            None => drop(files.create(InodeNumber::ROOT, &name, new, now).await?),
        }
        let version = files.generation() + 1;
        let bytes = content(file, version);
        let number = files.lookup(InodeNumber::ROOT, &name).await?.number;
        let cut = SetAttributes {
            size: Some(bytes.len() as u64),
            ..SetAttributes::default()
        };
        files.set_attributes(number, &cut, now).await?;
        files.write(number, 0, &bytes, now).await?;
        state[file] = Some(version);
    }
    // All that comes of this commit has this state, and a reader may see it before it is told to be durable.
    world.states.borrow_mut().insert(files.generation() + 1, *state);
    let before = files.generation();
    if random.chance(1, 12) {
        let passes = files.compaction().passes;
        let after = files.compact(|_| {}).await?.passes;
        world.count(|seen| {
            seen.compactions += after - passes;
            seen.asked_to_compact += 1;
        });
    }
    files.commit().await?;
    world.tell_durable(files.generation());
    world.count(|seen| {
        seen.commits += 1;
        seen.generations += files.generation() - before;
    });
    Ok(())
}

/// Writes until it has handed over, or all is over.
async fn write(world: Rc<World>, mut files: FileSystem, mut random: Random) -> Result<(), String> {
    let mut state = world.state_of(files.generation());
    loop {
        let (asked, generation) = (world.masters.messages.get().floor, files.generation());
        let compacted = world.seen.get().asked_to_compact;
        work(&world, &mut files, &mut state, &mut random)
            .await
            .map_err(text)?;
        let asked = world.masters.messages.get().floor - asked;
        let generations = files.generation() - generation;
        let compacted = world.seen.get().asked_to_compact - compacted;
        if asked > generations + compacted {
            return Err(format!(
                "{asked} questions about readers for {generations} generations"
            ));
        }
        world.check_records()?;
        if files.hand_over().await {
            world.count(|seen| seen.handed_over += 1);
            return Ok(());
        }
        if world.is_over() {
            return files.close().await.map_err(text);
        }
        time::sleep(between(
            &mut random,
            Duration::from_millis(300),
            Duration::from_secs(4),
        ))
        .await;
    }
}

async fn become_writer(world: &Rc<World>) -> Result<FileSystem, String> {
    let own = FileOptions {
        writer: WriterOptions {
            take_over: Some(PATIENCE),
            hands_over: false,
            bug: world.bug,
            ..writer_options()
        },
        ..options()
    };
    let opened = FileSystem::open(world.writing_medium(), world.masters.clone(), &own).await;
    let mut files = opened.map_err(text)?;
    files.plant(world.bug);
    match files.generation() >= world.newest_durable() {
        true => Ok(files),
        false => Err(format!("a writer found generation {}", files.generation())),
    }
}

/// One writer after the other.
async fn succeed(world: Rc<World>, mut random: Random) -> Result<(), String> {
    let mut files = become_writer(&world).await?;
    loop {
        let writing = reactor::spawn(write(world.clone(), files, random.fork()));
        let until = time::now() + HANDS_OVER_EVERY;
        while !world.is_over() && time::now() < until {
            time::sleep(Duration::from_secs(1)).await;
        }
        if world.is_over() {
            return writing.await.expect("nobody ends it");
        }
        files = become_writer(&world).await?;
        writing.await.expect("nobody ends it")?;
    }
}

/// Whether a few files of a reader's generation are what they were.
async fn look_at(world: &World, reader: &Reader, random: &mut Random) -> Result<(), String> {
    let generation = reader.generation();
    let state = world.state_of(generation);
    let chosen = [(); 2].map(|()| random.below(FILES as u64) as usize);
    let names = chosen.map(name_of);
    let targets = [Target::Path(&names[0]), Target::Path(&names[1])];
    for (file, found) in chosen.into_iter().zip(reader.read_many(&targets).await) {
        let right = match (state[file], found) {
            (Some(version), Ok(bytes)) => bytes.to_vec() == content(file, version),
            (None, Err(ReadError::NotFound { .. })) => true,
            (_, Err(error)) => return Err(format!("generation {generation}, file {file}: {error}")),
            (None, Ok(_)) => false,
        };
        if !right {
            return Err(format!("file {file} is not what generation {generation} has"));
        }
    }
    world.count(|seen| seen.read_files += 2);
    Ok(())
}

/// One reader: looks for commits, reads what it comes to, keeps an older state now and then. Gives how many commits it went on to.
async fn follow(
    world: &World,
    every: Duration,
    until: Option<Instant>,
    random: &mut Random,
) -> Result<u64, String> {
    let options = ReaderOptions {
        cache_bytes: 0,
        ..ReaderOptions::default()
    };
    let least = world.newest_durable();
    // Before it has its lease the masters may have noted it.
    world.alive.set(world.alive.get() + 1);
    let opened = Reader::open(world.reading_medium(), world.masters.clone(), &options).await;
    let mut reader = opened.map_err(text)?;
    if reader.generation() < least {
        return Err(format!(
            "generation {} was opened after {least} was durable",
            reader.generation()
        ));
    }
    let mut kept: Option<(Reader, Instant)> = None;
    let mut followed = 0;
    while !world.is_over() && until.is_none_or(|until| time::now() < until) {
        let looked = time::now();
        let least = world.newest_durable();
        if let Some(newer) = reader.newer().await.map_err(text)? {
            if newer.generation() <= reader.generation() {
                return Err("a reader went back".to_owned());
            }
            let older = std::mem::replace(&mut reader, newer);
            followed += 1;
            world.note_behind(older.generation(), every)?;
            if kept.is_none() && random.chance(1, 20) {
                kept = Some((
                    older,
                    time::now() + between(random, Duration::from_secs(1), KEEPS_FOR),
                ));
                world.count(|seen| seen.kept += 1);
            }
            let oldest = kept.as_ref().map_or(&reader, |(kept, _)| kept);
            oldest.let_older_go().await.map_err(text)?;
            look_at(world, &reader, random).await?;
        }
        if reader.generation() < least {
            return Err(format!(
                "generation {} is shown after {least} was durable",
                reader.generation()
            ));
        }
        if let Some((older, until)) = &kept {
            look_at(world, older, random).await?;
            if time::now() >= *until {
                kept = None;
                reader.let_older_go().await.map_err(text)?;
            }
        }
        let took = time::now().since(looked);
        if took > LOOK_TAKES {
            return Err(format!("a look took {took:?}"));
        }
        time::sleep_until(looked + every).await;
        let late = time::now().since(looked + every);
        if late > LOOK_TAKES {
            return Err(format!("a look was due {late:?} before it began"));
        }
    }
    world.count(|seen| seen.followed += followed);
    if until.is_some() && random.chance(1, 2) {
        // It dies: nobody tells the masters.
        world.dead.borrow_mut().push(time::now());
        world.count(|seen| seen.died += 1);
    } else {
        reader.close().await.map_err(text)?;
    }
    world.alive.set(world.alive.get() - 1);
    Ok(followed)
}

/// A place in the crowd: one reader from the beginning to the end, or one after the other.
async fn take_part(world: Rc<World>, number: u64, mut random: Random) -> Result<(), String> {
    let every = match number % 50 {
        0 => LOOKS_OFTEN_EVERY,
        _ => LOOKS_EVERY,
    };
    // They do not all begin at once, as those of many machines do not.
    time::sleep(between(&mut random, Duration::ZERO, LOOKS_EVERY)).await;
    if number % 10 != 3 {
        let followed = follow(&world, every, None, &mut random).await?;
        world.count(|seen| seen.fewest_followed = seen.fewest_followed.min(followed));
        return Ok(());
    }
    while !world.is_over() {
        let until = time::now() + between(&mut random, LIFE / 10, LIFE);
        follow(&world, every, Some(until), &mut random).await?;
        world.count(|seen| seen.came += 1);
    }
    Ok(())
}

async fn noted(world: Rc<World>, story: impl Future<Output = Result<(), String>>) {
    if let Err(error) = story.await {
        world.failure.borrow_mut().get_or_insert(error);
    }
}

async fn tell_story(seed: u64, readers: u64, bug: PlantedBug) -> Result<Seen, String> {
    let mut random = Random::from_seed(seed ^ 0xc40d);
    let (plain, keeper) = (raw(VOLUME_BYTES), TokenKeeper::new());
    let fenced = plain.on(|file| keeper.over(file));
    format(fenced, leases(), "a formatter", &small())
        .await
        .map_err(text)?;
    let world = Rc::new(World {
        plain,
        keeper,
        masters: Rc::new(Masters {
            leases: LocalLeases::new(),
            desk: Semaphore::new(1),
            messages: Cell::default(),
        }),
        bug,
        readers,
        states: RefCell::new(BTreeMap::from([(1, [None; FILES])])),
        durable: RefCell::new(BTreeMap::from([(1, time::now())])),
        writer_requests: Rc::default(),
        alive: Cell::new(0),
        dead: RefCell::default(),
        over: Cell::new(false),
        failure: RefCell::default(),
        seen: Cell::new(Seen {
            fewest_followed: u64::MAX,
            ..Seen::default()
        }),
    });
    let mut tasks = vec![reactor::spawn(noted(
        world.clone(),
        succeed(world.clone(), random.fork()),
    ))];
    for number in 0..world.readers {
        let part = take_part(world.clone(), number, random.fork());
        tasks.push(reactor::spawn(noted(world.clone(), part)));
    }
    let end = time::now() + LASTS;
    while time::now() < end && !world.is_over() {
        time::sleep(Duration::from_secs(1)).await;
    }
    world.over.set(true);
    for task in tasks {
        let ended = time::timeout(PATIENCE, task).await;
        if ended.is_err() {
            return Err("somebody goes on for ever".to_owned());
        }
    }
    if let Some(error) = world.failure.borrow_mut().take() {
        return Err(error);
    }
    world.count(|seen| {
        seen.messages = world.masters.messages.get();
        seen.writer_requests = world.writer_requests.get();
    });
    Ok(world.seen.get())
}

fn story(seed: u64, readers: u64, bug: PlantedBug) -> Result<Seen, String> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, move || tell_story(seed, readers, bug)).expect("the host keeps its power")
}

/// A soak found it: there was nothing to compact, so that the question whether readers have come belonged to no commit.
#[test]
fn a_writer_that_is_asked_to_compact_asks_once_more() {
    let seen = story(179_604_894_409, FEW, PlantedBug::None).unwrap();
    assert!(seen.asked_to_compact > 0, "{seen:?}");
}

#[test]
fn a_crowd_of_readers_sees_every_commit_and_costs_its_writer_nothing() {
    for seed in foundation::seeds::from_environment(1) {
        let of = |readers| {
            let seen = story(seed, readers, PlantedBug::None);
            let seen = seen.unwrap_or_else(|error| panic!("seed {seed}, {readers} readers: {error}"));
            println!("seed {seed}, {readers} readers: {seen:?}");
            seen
        };
        let (few, crowd) = (of(FEW), of(READERS));
        let there = [
            crowd.commits > 50,
            crowd.compactions > 0,
            crowd.handed_over > 2,
            crowd.kept > READERS / 4,
            crowd.came > READERS / 10 && crowd.died > READERS / 40,
            // Nobody is left out: a commit comes more often than a look.
            crowd.fewest_followed + 2
                >= (LASTS - LOOKS_EVERY).as_secs() / (LOOKS_EVERY + LOOK_TAKES).as_secs(),
        ];
        assert!(
            there.iter().all(|there| *there),
            "seed {seed}: {there:?} of {crowd:?}"
        );

        // The writer's own messages: one for each generation, one where it is asked to compact, and those by which it keeps its lease.
        assert!(
            crowd.messages.floor <= crowd.generations + crowd.asked_to_compact + 2 * crowd.handed_over,
            "seed {seed}: {crowd:?}"
        );
        assert!(
            crowd.messages.writer <= few.messages.writer * 3 / 2,
            "seed {seed}: {few:?} {crowd:?}"
        );
        // The two stories part now and then, and what is compacted with them: that counts as about what it costs.
        let work = |seen: &Seen| seen.generations + COMPACTION_COSTS * seen.compactions;
        let disk = |seen: &Seen| seen.writer_requests * 100 / work(seen);
        assert!(
            disk(&crowd) * 100 <= disk(&few) * DISK_PERCENT_MAX,
            "seed {seed}: {} hundredths of a request for a generation beside a few, {} beside a crowd",
            disk(&few),
            disk(&crowd),
        );
        // A reader's: one for each commit that it goes on to, three at most around it, and a renewal each third of a term.
        let renewals = READERS * (LASTS.as_secs() / (READER_TERM.as_secs() / 3) + 1);
        let most = crowd.followed + crowd.kept + 3 * (READERS + crowd.came) + renewals;
        assert!(
            crowd.messages.reader <= most,
            "seed {seed}: at most {most}, {crowd:?}"
        );
        assert!(
            crowd.records_max <= READERS + crowd.came,
            "seed {seed}: {crowd:?}"
        );
    }
}

#[test]
fn reuse_under_a_crowd_is_found() {
    let found = (0..3).find_map(|seed| story(seed, 100, PlantedBug::ReuseUnderReaders).err());
    println!("{}", found.expect("a crowd finds the bug"));
}
