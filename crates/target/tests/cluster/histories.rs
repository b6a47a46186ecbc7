//! Clients that write and read the same few blocks while a node is paused for longer than a term, cut off in one
//! direction, loses its disk or its power, or dies and comes back with what its disk has: every block is linearizable, and the copies
//! are equal in the end. Some clients never learn of a newer configuration and read from whichever node the first one named.
//!
//! The same with two disks for each node, between which its copies go to and fro.
//!
//! `REDHARE_SEEDS=N` runs N seeds from `REDHARE_FIRST_SEED`, which fault by fault are those of the default run first.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use foundation::Random;
use reactor::sim::Host;
use reactor::{BufferPool, time};
use volume::message::codec::NativeOperation;

use crate::masters::{Follower, Map, Masters};
use crate::support::{Client, Cluster, MOVED};

/// The checker of the volume crate's own simulation.
#[path = "../../../volume/src/simulation/linear.rs"]
#[allow(dead_code, reason = "only a part of it is of use here")]
mod linear;

use linear::{End, Monitor, Op, SLOTS};

/// Blocks that clients meet on, in two regions.
const BLOCKS: [u64; 4] = [0, 1, 300, 301];
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Pause,
    /// Nothing comes from the node, or nothing reaches it; the masters may hear it all the same.
    OneWay,
    WritesFail,
    SyncsFail,
    PowerOff,
    /// What no sync has made durable is lost or torn, and the node is started again.
    PowerCut,
    /// The process dies, and is started again with all that it has written.
    Killed,
}

const FAULTS: [Fault; 7] = [
    Fault::Pause,
    Fault::OneWay,
    Fault::WritesFail,
    Fault::SyncsFail,
    Fault::PowerOff,
    Fault::PowerCut,
    Fault::Killed,
];

struct World {
    map: Rc<RefCell<Map>>,
    monitors: RefCell<Vec<Monitor>>,
    stop: Cell<bool>,
    ended: Cell<usize>,
    operations: Cell<u64>,
    /// Writes that compared first, and were made.
    exchanged: Cell<u64>,
    next_value: Cell<u32>,
    failure: RefCell<Option<String>>,
}

impl World {
    fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
    }

    fn is_over(&self) -> bool {
        self.stop.get() || self.failure.borrow().is_some()
    }
}

/// Operations, and of them writes that compared first and were made.
fn history(seed: u64, fault: Fault, moves: bool) -> Result<(u64, u64), String> {
    let mut random = Random::from_seed(seed);
    let cluster = match moves {
        true => Cluster::with_moving_copies(seed),
        false => Cluster::with_volume(seed),
    };
    let world = Rc::new(World {
        map: Map::first(&cluster),
        monitors: RefCell::new(vec![Monitor::new(); BLOCKS.len()]),
        stop: Cell::new(false),
        ended: Cell::new(0),
        operations: Cell::new(0),
        exchanged: Cell::new(0),
        next_value: Cell::new(0),
        failure: RefCell::default(),
    });
    for slot in 0..SLOTS {
        let host = cluster.simulation.add_host(&format!("client{slot}"));
        let (hosts, world) = (cluster.hosts.clone(), world.clone());
        cluster
            .simulation
            .start(host, move || client(slot, seed, hosts, world));
    }
    let mut masters = Masters::new(&cluster, &world.map);
    masters.pass(Duration::from_millis(random.between(500, 2000)));
    let victim = random.below(4) as usize % 3;
    let away = match comes_back(fault) && random.chance(1, 2) {
        // Before the masters have missed it.
        true => random.between(100, 1000),
        false => random.between(3500, 9000),
    };
    strike(&cluster, &mut masters, (fault, victim), &mut random);
    masters.pass(Duration::from_millis(away));
    lift(&cluster, &mut masters, (fault, victim));
    masters.pass(Duration::from_millis(random.between(0, 3000)));
    // Whoever is left may be paused, too, though too few are left to leave it out.
    let other = (victim + 1 + random.below(2) as usize) % 3;
    strike(&cluster, &mut masters, (Fault::Pause, other), &mut random);
    masters.pass(Duration::from_millis(random.between(100, 6000)));
    lift(&cluster, &mut masters, (Fault::Pause, other));
    masters.pass(Duration::from_secs(2));
    world.stop.set(true);
    masters.pass(Duration::from_secs(20));
    if let Some(why) = world.failure.take() {
        return Err(why);
    }
    if world.ended.get() < SLOTS {
        return Err(format!("{} of {SLOTS} clients have ended", world.ended.get()));
    }
    if comes_back(fault) && !masters.has_all() {
        return Err(format!("it has not come back: {:?}", world.map.borrow()));
    }
    let members = world.map.borrow().nodes();
    let reader = cluster.simulation.add_host("reader");
    let (hosts, checked) = (cluster.hosts.clone(), world.clone());
    cluster
        .simulation
        .start(reader, move || compare(hosts, members, checked));
    masters.pass(Duration::from_secs(10));
    if world.ended.get() == SLOTS {
        world.fail("the copies could not be read in the end".to_owned());
    }
    match world.failure.take() {
        Some(why) => Err(why),
        None => Ok((world.operations.get(), world.exchanged.get())),
    }
}

fn comes_back(fault: Fault) -> bool {
    matches!(fault, Fault::PowerCut | Fault::Killed)
}

fn strike(
    cluster: &Cluster,
    masters: &mut Masters<'_>,
    (fault, victim): (Fault, usize),
    random: &mut Random,
) {
    let (simulation, host) = (&cluster.simulation, cluster.hosts[victim]);
    let disk = || simulation.disk(host, Path::new("/disk"));
    match fault {
        Fault::Pause => {
            simulation.pause(host);
            masters.set_unheard(victim, true);
        }
        Fault::OneWay => {
            let outward = random.chance(1, 2);
            for other in (0..3).filter(|&n| n != victim).map(|n| cluster.hosts[n]) {
                match outward {
                    true => simulation.partition(host, other),
                    false => simulation.partition(other, host),
                }
            }
            masters.set_unheard(victim, random.chance(1, 2));
        }
        Fault::WritesFail => disk().fail_writes(true),
        Fault::SyncsFail => disk().fail_syncs(true),
        Fault::PowerOff | Fault::PowerCut => simulation.power_off(host),
        Fault::Killed => {
            simulation.stop(host);
            cluster.forget(victim);
        }
    }
}

/// Disks stay as they are, and so does one that is off.
fn lift(cluster: &Cluster, masters: &mut Masters<'_>, (fault, victim): (Fault, usize)) {
    let (simulation, host) = (&cluster.simulation, cluster.hosts[victim]);
    match fault {
        Fault::Pause => simulation.resume(host),
        Fault::OneWay => {
            for other in (0..3).filter(|&n| n != victim).map(|n| cluster.hosts[n]) {
                simulation.heal(host, other);
                simulation.heal(other, host);
            }
        }
        Fault::WritesFail | Fault::SyncsFail | Fault::PowerOff => return,
        Fault::PowerCut | Fault::Killed => cluster.start(victim),
    }
    masters.set_unheard(victim, false);
}

/// What a client does, and how it goes on after a refusal.
struct Session {
    slot: usize,
    follower: Follower,
    random: Random,
}

/// Two of the clients only read, and know the first configuration only.
fn is_stubborn(slot: usize) -> bool {
    slot >= SLOTS - 2
}

async fn client(slot: usize, seed: u64, hosts: Vec<Host>, world: Rc<World>) {
    let mut session = Session {
        slot,
        follower: Follower::new(1 + slot as u64, hosts),
        random: Random::from_seed(seed * 1000 + slot as u64),
    };
    while !world.is_over() {
        let at = session.random.below(BLOCKS.len() as u64) as usize;
        let mut count = match at % 2 {
            0 => session.random.between(1, 2) as usize,
            _ => 1,
        };
        let mut op = match is_stubborn(slot) || session.random.chance(1, 2) {
            true => Op::Read,
            false => {
                world.next_value.set(world.next_value.get() + 1);
                let value = world.next_value.get();
                // Now and then one that must reach the disk: without it a disk that does not sync is found out
                // only when a second node is gone, too.
                match session.random.below(8) {
                    0 => Op::Force(value),
                    1 => {
                        count = 1;
                        let monitor = &world.monitors.borrow()[at];
                        Op::Exchange(monitor.any_value(&mut session.random), value)
                    }
                    _ => Op::Write(value),
                }
            }
        };
        for monitor in &mut world.monitors.borrow_mut()[at..at + count] {
            monitor.invoke(slot, op);
        }
        let ends = loop {
            if world.failure.borrow().is_some() {
                return;
            }
            let before = session.follower.session();
            match session.attempt(&world, op, BLOCKS[at], count).await {
                Some(ends) => break ends,
                None => time::sleep(Duration::from_millis(session.random.between(1, 40))).await,
            }
            // One that compares is not made again if it may have been done (0133): the block is written.
            if matches!(op, Op::Exchange(..)) && session.follower.session() != before {
                world.next_value.set(world.next_value.get() + 1);
                op = Op::Write(world.next_value.get());
                world.monitors.borrow_mut()[at].doubt(slot, op);
            }
        };
        for block in 0..count {
            let monitor = &mut world.monitors.borrow_mut()[at + block];
            let before = monitor.describe();
            if !monitor.respond(slot, ends[block]) {
                let lba = BLOCKS[at + block];
                world.fail(format!(
                    "client {slot}: {op:?} of block {lba} ended with {ends:?}, which nothing explains; {before}"
                ));
            }
        }
        world.operations.set(world.operations.get() + 1);
        if let (Op::Exchange(..), End::Done) = (op, ends[0]) {
            world.exchanged.set(world.exchanged.get() + 1);
        }
        time::sleep(Duration::from_millis(session.random.below(20))).await;
    }
    world.ended.set(world.ended.get() + 1);
}

impl Session {
    /// One attempt; none if the operation is to be tried again. How it ended for each block.
    async fn attempt(&mut self, world: &World, op: Op, lba: u64, blocks: usize) -> Option<Vec<End>> {
        let route = self.route(world, op);
        let compares = matches!(op, Op::Exchange(..));
        let room = if compares { 2 } else { blocks };
        let mut buffer = BufferPool::current().try_allocate(room * 4096).unwrap();
        let (operation, data) = match op {
            Op::Read => (NativeOperation::Read, Data::Into(buffer)),
            Op::Write(value) | Op::Force(value) => {
                for word in buffer.chunks_exact_mut(4) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
                let fua = matches!(op, Op::Force(_));
                (NativeOperation::Write { fua }, Data::From(buffer.freeze()))
            }
            Op::Exchange(expected, value) => {
                let (first, second) = buffer.split_at_mut(4096);
                for (half, value) in [(first, expected), (second, value)] {
                    for word in half.chunks_exact_mut(4) {
                        word.copy_from_slice(&value.to_le_bytes());
                    }
                }
                let operation = NativeOperation::CompareAndWrite { fua: false };
                (operation, Data::From(buffer.freeze()))
            }
            Op::Flush => unreachable!("not among what clients do here"),
        };
        let range = (lba, blocks as u32);
        let (data, as_expected) = self.follower.attempt(route, operation, range, data).await?;
        Some(match op {
            Op::Read => values(world, &data.into_read())
                .into_iter()
                .map(End::Saw)
                .collect(),
            _ if as_expected => vec![End::Done; blocks],
            _ => vec![End::Differed; blocks],
        })
    }

    fn route(&mut self, world: &World, op: Op) -> (usize, u64) {
        let map = world.map.borrow();
        if is_stubborn(self.slot) && !world.stop.get() {
            return (self.random.below(3) as usize, 1000);
        }
        match op {
            Op::Read => {
                let at = self.random.below(map.members.len() as u64) as usize;
                (map.members[at].0, map.epoch)
            }
            _ => (map.write_node, map.epoch),
        }
    }
}

fn values(world: &World, bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let block = |bytes: &[u8]| {
        let first = word(&bytes[..4]);
        if bytes.chunks_exact(4).any(|other| word(other) != first) {
            world.fail(format!("a block was read half old, half new: {first} and others"));
        }
        first
    };
    bytes.chunks_exact(4096).map(block).collect()
}

/// Every member holds the same.
async fn compare(hosts: Vec<Host>, members: Vec<usize>, world: Rc<World>) {
    let epoch = world.map.borrow().epoch;
    for lba in [BLOCKS[0], BLOCKS[2]] {
        let mut copies = Vec::new();
        for &node in &members {
            let client = Client::connect(hosts[node], node, 1).await.unwrap();
            copies.push(client.read_until_done(epoch, lba).await);
        }
        if copies.iter().any(|copy| *copy != copies[0]) {
            world.fail(format!(
                "the copies of blocks {lba} and {} differ in the end",
                lba + 1
            ));
        }
    }
    world.ended.set(SLOTS + 1);
}

#[test]
fn blocks_are_linearizable_whatever_befalls_a_node() {
    all_histories(false);
}

#[test]
fn blocks_are_linearizable_while_copies_move_between_disks_whatever_befalls_a_node() {
    all_histories(true);
    let (moved, seeds) = (MOVED.get(), seeds_of(true).len() as u64);
    assert!(moved > 50 * seeds, "hardly anything moved: {moved}");
}

/// With moving copies a seed takes longer.
fn seeds_of(moves: bool) -> Vec<u64> {
    foundation::seeds::from_environment(if moves { 7 } else { 28 })
}

fn all_histories(moves: bool) {
    let (mut failed, mut all, mut compared) = (Vec::new(), 0, 0);
    let seeds = seeds_of(moves);
    for &seed in &seeds {
        let fault = FAULTS[(seed % FAULTS.len() as u64) as usize];
        match history(seed, fault, moves) {
            Ok((operations, exchanged)) => {
                println!("seed {seed}: {fault:?}, {operations} operations, {exchanged} compared first");
                (all, compared) = (all + operations, compared + exchanged);
            }
            Err(why) => failed.push(format!("seed {seed}: {fault:?}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // One seed may have little time in which enough nodes are there.
    let many = seeds.len() as u64;
    assert!(
        all > 1000 * many && compared > 30 * many || many < 10,
        "hardly anything happened: {all} operations, {compared} compared first"
    );
}
