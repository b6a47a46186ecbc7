//! A copy moves to another disk of its node: the power is cut at each write and sync of either disk, each of them fails, and whatever happens the
//! copy is on one disk, with all that was written.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Chunk, Configuration};
use bdev::Data;
use fabrics::target::{Options, Target, serve};
use foundation::{ByteCount, Epoch, Random};
use reactor::sim::disk::DiskHandle;
use reactor::sim::{Host, Simulation};
use reactor::{BufferPool, time};
use target::node::{CopyError, DiskConfig, Identity, Node, Trust, from_chunk, inventory, to_config};
use volume::message::codec::NativeOperation;
use volume::{ChunkId, ClusterId, Geometry, Incarnation, NodeId, Settings, SnapshotId, Status};

use crate::support::{Client, DISK, PORT, VOLUME, geometry};

const CLUSTER: ClusterId = ClusterId(0xc1);
/// Blocks that are written before the copy moves, each pair with a number of its own.
const WRITTEN: [u64; 4] = [0, 16, 300, 1000];
/// One of them is zeroed, and one is never written.
const ZEROED: u64 = 512;
const NEVER: u64 = 700;
/// And one of which nobody says whether it was.
const UNKNOWN: u64 = 800;

fn chunk() -> ChunkId {
    from_chunk(Chunk {
        volume: VOLUME,
        index: 0,
    })
}

fn alone() -> Geometry {
    Geometry {
        copies: 1,
        minimum: 1,
        ..geometry()
    }
}

fn disk(which: u128) -> DiskConfig {
    DiskConfig {
        path: PathBuf::from(format!("/disk{which}")),
        size: Some(ByteCount(96 << 20)),
        new_uuid: DISK + which,
        force: false,
        trust: Trust::Always,
    }
}

/// No step of a test takes longer, and how often it is looked whether it has ended.
const LIMIT_MS: u64 = 30_000;
const STEP_MS: u64 = 20;

struct Machine {
    simulation: Simulation,
    host: Host,
    life: u64,
    node: Rc<RefCell<Option<Rc<Node>>>>,
}

async fn flush(client: &Client, life: u64) {
    let (status, _) = client.run(NativeOperation::Flush, life, 0, 0, Data::None).await;
    assert_eq!(status, Status::Done);
}

/// What came of something that was begun in the simulation; none if it was cut off.
type Outcome<T> = Rc<RefCell<Option<T>>>;

impl Machine {
    /// A node whose only copy is on disk 1, with something in it.
    fn with_copy(seed: u64) -> Self {
        let machine = Self::with_empty(seed, alone());
        let life = machine.life;
        machine.as_client(move |client| async move {
            for (number, lba) in (1..).zip(WRITTEN) {
                client.write_until_done(life, lba, number).await;
            }
            client.write_until_done(life, ZEROED, 9).await;
            let operation = NativeOperation::Deallocate { fua: false };
            let (status, _) = client.run(operation, life, ZEROED, 2, Data::None).await;
            assert_eq!(status, Status::Done);
            flush(&client, life).await;
        });
        // Until the volume has cleared its marks.
        machine.simulation.run_for(Duration::from_secs(10));
        machine
    }

    /// The same with nothing in it.
    fn with_empty(seed: u64, geometry: Geometry) -> Self {
        let simulation = Simulation::new(seed);
        let host = simulation.add_host("node");
        let mut machine = Self {
            simulation,
            host,
            life: 0,
            node: Rc::default(),
        };
        machine.start(&[1, 2]);
        let node = machine.node();
        machine.does(async move {
            let made = node.create_copy(chunk(), geometry, (DISK + 1, true)).await;
            made.unwrap();
        });
        machine.serve();
        machine
    }

    /// A life of the node with these disks, which serves its copy to itself.
    fn start(&mut self, disks: &[u128]) {
        self.life += 1;
        let identity = Identity {
            cluster: CLUSTER,
            node: NodeId(1),
            incarnation: Incarnation(self.life),
        };
        let disks: Vec<DiskConfig> = disks.iter().map(|&which| disk(which)).collect();
        let (slot, own) = (self.node.clone(), (self.host.address(), PORT).into());
        *slot.borrow_mut() = None;
        self.simulation.start(self.host, move || async move {
            let node = Node::start(identity, &disks, Settings::default()).await.unwrap();
            let target = Target::new();
            target.add_subsystem(node.subsystem());
            let _server = serve(target, own, Options::default()).unwrap();
            *slot.borrow_mut() = Some(node);
            std::future::pending::<()>().await;
        });
        self.simulation.run_for(Duration::from_secs(2));
    }

    /// The masters name the copy of this life.
    fn serve(&self) {
        let (node, life) = (self.node(), self.life);
        let configuration = Configuration {
            epoch: life,
            write_node: 1,
            members: vec![(1, life)],
        };
        self.does(async move { node.configure(chunk(), to_config(&configuration)) });
        self.simulation.run_for(Duration::from_secs(5));
    }

    fn node(&self) -> Rc<Node> {
        self.node.borrow().clone().expect("the node has started")
    }

    fn device(&self, which: u128) -> DiskHandle {
        self.simulation
            .disk(self.host, Path::new(&format!("/disk{which}")))
    }

    /// Begins something on the node.
    fn begins<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Outcome<T> {
        let outcome = Outcome::default();
        let put = outcome.clone();
        self.simulation.start(self.host, move || async move {
            let result = work.await;
            *put.borrow_mut() = Some(result);
        });
        outcome
    }

    fn does<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        let outcome = self.begins(work);
        self.ends(&outcome)
    }

    /// What came of something, once it has ended.
    fn ends<T>(&self, outcome: &Outcome<T>) -> T {
        for _ in 0..LIMIT_MS / STEP_MS {
            self.simulation.run_for(Duration::from_millis(STEP_MS));
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
        }
        panic!("it has not ended within {LIMIT_MS} ms");
    }

    fn moves(&self, to: u128) -> Outcome<Result<(), CopyError>> {
        let node = self.node();
        self.begins(async move { node.move_copy(chunk(), DISK + to).await })
    }

    fn has_moved(&self, to: u128) -> Result<(), CopyError> {
        let outcome = self.moves(to);
        self.ends(&outcome)
    }

    fn as_client<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Client) -> F + 'static) {
        let client = self.simulation.add_host("client");
        let (host, done) = (self.host, Outcome::default());
        let put = done.clone();
        self.simulation.start(client, move || async move {
            work(Client::connect(host, 0, 1).await.unwrap()).await;
            *put.borrow_mut() = Some(());
        });
        self.ends(&done);
    }

    /// All that was written is there; `last` is what the first blocks hold.
    fn has_all(&self, last: u64) {
        let life = self.life;
        self.as_client(move |client| async move {
            for (number, lba) in (1..).zip(WRITTEN) {
                let number = if lba == WRITTEN[0] { last } else { number };
                let found = client.read_until_done(life, lba).await;
                assert!(
                    found == crate::expected(number),
                    "blocks {lba} are not those of {number}"
                );
            }
            for lba in [ZEROED, NEVER] {
                let found = client.read_until_done(life, lba).await;
                assert!(found.iter().all(|byte| *byte == 0), "blocks {lba} are not zeros");
            }
        });
    }

    fn cut_power(&self) {
        *self.node.borrow_mut() = None;
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
    }

    /// The disks on which the copy is, by each of them alone; a node with these would use it.
    fn found(&self) -> Vec<u128> {
        [1, 2].into_iter().filter(|which| self.is_on(*which)).collect()
    }

    fn is_on(&self, which: u128) -> bool {
        let disks = [disk(which)];
        let found = self.does(async move { inventory(CLUSTER, &disks).await.unwrap() });
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        !found.copies.is_empty()
    }

    fn free_bytes(&self) -> Vec<u64> {
        self.node().disks().iter().map(|disk| disk.free_bytes).collect()
    }
}

#[test]
fn a_copy_moves_there_and_back_and_is_found_where_it_is() {
    let mut machine = Machine::with_copy(1);
    let before = machine.free_bytes();
    machine.has_moved(2).unwrap();
    let after = machine.free_bytes();
    assert!(
        after[0] > before[0] && after[1] < before[1],
        "{before:?} {after:?}"
    );
    // It is there: nothing happens.
    machine.has_moved(2).unwrap();
    machine.has_all(1);
    let life = machine.life;
    machine.as_client(move |client| async move { client.write_until_done(life, WRITTEN[0], 77).await });
    machine.has_moved(1).unwrap();
    assert_eq!(machine.free_bytes(), before);
    machine.has_moved(2).unwrap();
    machine.cut_power();
    assert_eq!(machine.found(), [2]);
    machine.start(&[1, 2]);
    machine.serve();
    machine.has_all(77);
}

/// Blocks of a chunk that takes a while to be copied, and of one write to it.
const LARGE_BLOCKS: u32 = 8192;
const PART_BLOCKS: u32 = 64;

/// Bytes that say which write they are of.
fn numbered(number: u64, blocks: u32) -> Data {
    let mut buffer = BufferPool::current()
        .try_allocate(blocks as usize * 4096)
        .unwrap();
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    Data::From(buffer.freeze())
}

/// What each block of the large chunk holds.
type Numbers = Rc<RefCell<Vec<u64>>>;

/// Writes one block after the other, anywhere, until it is over.
async fn scribble(client: Client, life: u64, seed: u64, numbers: Numbers, over: Rc<Cell<bool>>) {
    let mut random = Random::from_seed(seed);
    for count in 1.. {
        if over.get() {
            return;
        }
        // Each in blocks of its own.
        let block = random.below(u64::from(LARGE_BLOCKS) / SCRIBBLERS) * SCRIBBLERS + seed % SCRIBBLERS;
        let (mut operation, mut number) = (NativeOperation::Write { fua: false }, count * 100 + seed);
        if random.below(8) == 0 {
            (operation, number) = (NativeOperation::Deallocate { fua: false }, 0);
        }
        let data = if number > 0 {
            numbered(number, 1)
        } else {
            Data::None
        };
        let (status, _) = client.run(operation, life, block, 1, data).await;
        assert_eq!(status, Status::Done);
        numbers.borrow_mut()[block as usize] = number;
    }
}

const SCRIBBLERS: u64 = 4;

impl Machine {
    fn holds(&self, numbers: Numbers) {
        let life = self.life;
        self.as_client(move |client| async move {
            for first in (0..LARGE_BLOCKS).step_by(PART_BLOCKS as usize) {
                let length = PART_BLOCKS as usize * 4096;
                let room = Data::Into(BufferPool::current().try_allocate(length).unwrap());
                let read = client.run(NativeOperation::Read, life, first.into(), PART_BLOCKS, room);
                let (status, data) = read.await;
                assert_eq!(status, Status::Done);
                for (block, bytes) in (first..).zip(data.into_read().chunks_exact(4096)) {
                    let number = numbers.borrow()[block as usize];
                    let is_right = bytes.chunks_exact(8).all(|word| word == number.to_le_bytes());
                    assert!(is_right, "block {block} is not that of write {number}");
                }
            }
        });
    }
}

#[test]
fn what_is_written_while_a_copy_moves_is_in_it() {
    for seed in 0..4 {
        let shape = Geometry {
            chunk_blocks: LARGE_BLOCKS,
            region_blocks: 1024,
            ..alone()
        };
        let mut machine = Machine::with_empty(seed, shape);
        let numbers: Numbers = Rc::new(RefCell::new(vec![1; LARGE_BLOCKS as usize]));
        let life = machine.life;
        machine.as_client(move |client| async move {
            for first in (0..LARGE_BLOCKS).step_by(PART_BLOCKS as usize) {
                let (operation, data) = (NativeOperation::Write { fua: false }, numbered(1, PART_BLOCKS));
                let (status, _) = client.run(operation, life, first.into(), PART_BLOCKS, data).await;
                assert_eq!(status, Status::Done);
            }
        });
        for which in [1, 2] {
            // In every other story one write may take longer than many others.
            let slow = Duration::from_micros(if seed % 2 == 0 { 600 } else { 4000 });
            machine
                .device(which)
                .set_latency(Duration::from_micros(100), slow);
        }
        let over = Rc::new(Cell::new(false));
        for scribbler in 0..SCRIBBLERS {
            let (host, over, numbers) = (machine.host, over.clone(), numbers.clone());
            let client = machine.simulation.add_host("scribbler");
            machine.simulation.start(client, move || async move {
                let client = Client::connect_as(90 + scribbler, host, 0, 1).await.unwrap();
                scribble(client, life, scribbler, numbers, over).await;
            });
        }
        machine.simulation.run_for(Duration::from_millis(200));
        for to in [2, 1, 2] {
            machine.has_moved(to).unwrap();
        }
        over.set(true);
        machine.simulation.run_for(Duration::from_secs(1));
        let written = numbers.borrow().iter().filter(|number| **number != 1).count();
        assert!(written > 1000, "hardly anything was written: {written}");
        machine.holds(numbers.clone());
        machine.cut_power();
        machine.start(&[1, 2]);
        machine.serve();
        machine.holds(numbers);
    }
}

#[test]
fn a_write_that_is_under_way_ends_before_the_copy_has_moved() {
    // First the mark of its region is written, then its blocks.
    for under_way in [100, 700].map(Duration::from_millis) {
        a_write_ends_first(under_way);
    }
}

fn a_write_ends_first(under_way: Duration) {
    let machine = Machine::with_copy(6);
    let life = machine.life;
    let long = Duration::from_millis(500);
    machine.device(1).set_latency(long, long);
    let (client, host) = (machine.simulation.add_host("client"), machine.host);
    machine.simulation.start(client, move || async move {
        let client = Client::connect(host, 0, 1).await.unwrap();
        client.write_until_done(life, WRITTEN[0], 66).await;
    });
    machine.simulation.run_for(under_way);
    // Whatever is asked of the disk from now on is done at once.
    machine
        .device(1)
        .set_latency(Duration::ZERO, Duration::from_micros(10));
    let moves = machine.moves(2);
    machine.simulation.run_for(Duration::from_millis(200));
    assert!(moves.borrow().is_none(), "it waits for the write");
    machine.simulation.run_for(Duration::from_secs(5));
    moves.take().expect("it has ended").unwrap();
    machine.has_all(66);
}

#[test]
fn what_cannot_move_stays_and_says_why() {
    let machine = Machine::with_copy(2);
    let no_disk = machine.has_moved(3);
    assert!(
        matches!(no_disk, Err(CopyError::NoSuchDisk { .. })),
        "{no_disk:?}"
    );
    let node = machine.node();
    let none = machine.does(async move {
        let other = from_chunk(Chunk {
            volume: VOLUME,
            index: 1,
        });
        node.move_copy(other, DISK + 2).await
    });
    assert!(matches!(none, Err(CopyError::NoSuchCopy { .. })), "{none:?}");
    machine.device(2).set_limit_bytes(1 << 20);
    let no_room = machine.has_moved(2);
    assert!(no_room.is_err(), "{no_room:?}");
    machine.device(2).set_limit_bytes(u64::MAX);
    let life = machine.life;
    machine.as_client(move |client| async move {
        for step in [
            NativeOperation::Cut(SnapshotId(1)),
            NativeOperation::Release(SnapshotId(1)),
        ] {
            let (status, _) = client.run(step, life, 0, 0, Data::None).await;
            assert_eq!(status, Status::Done);
        }
    });
    let shares = machine.has_moved(2);
    assert!(matches!(shares, Err(CopyError::Shares { .. })), "{shares:?}");
    machine.has_all(1);
}

#[test]
fn a_copy_that_is_deleted_while_it_moves_is_on_no_disk() {
    let machine = Machine::with_copy(3);
    let moves = machine.moves(2);
    let node = machine.node();
    let deleted = machine.does(async move { node.delete_copy(chunk(), Epoch(100)).await });
    assert!(deleted);
    assert!(moves.take().expect("it has ended").is_err());
    machine.cut_power();
    assert_eq!(machine.found(), []);
}

/// The writes and syncs that a move takes of each disk, beside what the node does by itself.
fn operations_of_a_move() -> [(u64, u64); 2] {
    let machine = Machine::with_copy(4);
    let count = || [1, 2].map(|which| machine.device(which).operations());
    let first = count();
    machine.has_moved(2).unwrap();
    let last = count();
    [0, 1].map(|at| (first[at], last[at]))
}

#[test]
fn wherever_the_power_is_cut_the_copy_is_on_one_disk_with_all_that_was_written() {
    let mut moved = [0, 0];
    for (which, (first, last)) in [1, 2].into_iter().zip(operations_of_a_move()) {
        assert!(last > first, "nothing is written to disk {which}");
        for at in first..=last {
            let mut machine = Machine::with_copy(4);
            machine.device(which).cut_power_at(at);
            let outcome = machine.moves(2);
            machine.simulation.run_for(Duration::from_secs(2));
            let has_ended = matches!(outcome.take(), Some(Ok(())));
            machine.cut_power();
            machine.start(if at % 2 == 0 { &[1, 2] } else { &[2, 1] });
            machine.serve();
            machine.has_all(1);
            machine.cut_power();
            let found = machine.found();
            assert_eq!(found.len(), 1, "disk {which}, cut at {at}: {found:?}");
            assert!(
                !has_ended || found == [2],
                "disk {which}, cut at {at}: it is not where it moved"
            );
            moved[found[0] as usize - 1] += 1;
        }
    }
    assert!(
        moved[0] > 2 && moved[1] > 2,
        "the power is cut before and after: {moved:?}"
    );
}

#[test]
fn whichever_disk_fails_the_copy_is_where_it_was_or_takes_no_further_part() {
    let mut stopped = 0;
    for (which, writes) in [(1, false), (1, true), (2, false), (2, true)] {
        for after in (0..40).step_by(2) {
            let mut machine = Machine::with_copy(5);
            let outcome = machine.moves(2);
            machine.simulation.run_for(Duration::from_micros(after * 200));
            let ended_before = outcome.borrow().is_some();
            match writes {
                true => machine.device(which).fail_writes(true),
                false => machine.device(which).fail_syncs(true),
            }
            let outcome = match ended_before {
                true => outcome.take().expect("it has ended"),
                false => machine.ends(&outcome),
            };
            machine.device(which).fail_writes(false);
            machine.device(which).fail_syncs(false);
            let stops = matches!(outcome, Err(CopyError::MayStay { .. }));
            stopped += u32::from(stops);
            let (wrote, life) = (Rc::new(Cell::new(false)), machine.life);
            let put = wrote.clone();
            machine.as_client(move |client| async move {
                put.set(client.write(life, UNKNOWN, 44).await == Status::Done);
            });
            assert!(
                !(stops && wrote.get()),
                "disk {which} fails after {after}: it is written"
            );
            if stops && after % 4 == 0 {
                let node = machine.node();
                let deleted = machine.does(async move { node.delete_copy(chunk(), Epoch(100)).await });
                machine.cut_power();
                let found = machine.found();
                assert!(
                    !deleted || found.is_empty(),
                    "it was said to be deleted, and is on {found:?}"
                );
                continue;
            }
            // What was not flushed may be lost; that it is written shows that the copy goes on.
            machine.cut_power();
            machine.start(&[1, 2]);
            machine.serve();
            machine.has_all(1);
            machine.cut_power();
            let found = machine.found();
            assert_eq!(found.len(), 1, "disk {which} fails after {after}: {outcome:?}");
            let is_moved = found == [2];
            assert!(
                outcome.is_err() || is_moved,
                "disk {which} fails after {after}: it was said to have moved"
            );
            assert!(!ended_before || outcome.is_ok());
        }
    }
    assert!(stopped > 2, "{stopped} times nobody knew");
}

/// Forces one write after the other; how many were acknowledged.
fn forces_writes(machine: &Machine) -> Rc<Cell<u64>> {
    let (acknowledged, life, host) = (Rc::new(Cell::new(0)), machine.life, machine.host);
    let count = acknowledged.clone();
    let client = machine.simulation.add_host("writer");
    machine.simulation.start(client, move || async move {
        let Ok(client) = Client::connect(host, 0, 1).await else {
            return;
        };
        for number in 1.. {
            let operation = NativeOperation::Write { fua: true };
            let written = client.run(operation, life, UNKNOWN, 1, numbered(number, 1));
            if written.await.0 != Status::Done {
                return;
            }
            count.set(number);
        }
    });
    acknowledged
}

/// The power is cut when something is written to the disk that a copy leaves, while it is written: what was acknowledged is on each disk that has
/// the copy, also if the other one is lost. Used alone, it is the one that is used later, whichever comes back.
#[test]
fn of_two_that_a_crash_has_left_either_has_all_and_the_one_that_took_part_since_is_used() {
    let mut left_both = [0, 0];
    let first = Machine::with_copy(4).device(1).operations();
    for at in first..first + 90 {
        let stays = 1 + u128::from(at % 2);
        let mut machine = Machine::with_copy(4);
        let acknowledged = forces_writes(&machine);
        machine.device(1).cut_power_at(at);
        machine.simulation.run_for(Duration::from_micros(500));
        let _ = machine.moves(2);
        machine.simulation.run_for(Duration::from_secs(2));
        machine.cut_power();
        machine.device(1).cut_power_at(u64::MAX);
        if machine.found() != [1, 2] {
            continue;
        }
        left_both[stays as usize - 1] += 1;
        machine.start(&[stays]);
        machine.serve();
        machine.has_all(1);
        let (life, last) = (machine.life, acknowledged.get());
        machine.as_client(move |client| async move {
            let found = client.read_until_done(life, UNKNOWN).await;
            let found = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(
                found >= last,
                "cut at {at}: write {found} is there, {last} were acknowledged"
            );
            client.write_until_done(life, WRITTEN[0], 55).await;
            flush(&client, life).await;
        });
        for disks in [[1, 2], [2, 1]] {
            machine.cut_power();
            machine.start(&disks);
            machine.serve();
            machine.has_all(55);
        }
    }
    assert!(
        left_both[0] > 0 && left_both[1] > 0,
        "no cut leaves both: {left_both:?}"
    );
}

/// A read is with the disk that the copy leaves when it has left; the checksums that it is compared with are not in memory.
#[test]
fn a_read_that_begins_at_any_time_of_a_move_ends_well() {
    for after in 0..60 {
        let mut machine = Machine::with_copy(7);
        machine.cut_power();
        machine.start(&[1, 2]);
        machine.serve();
        let long = Duration::from_millis(2);
        machine.device(1).set_latency(long, long);
        let (life, host, ended) = (machine.life, machine.host, Rc::new(Cell::new(false)));
        let put = ended.clone();
        let client = machine.simulation.add_host("reader");
        machine.simulation.start(client, move || async move {
            let client = Client::connect(host, 0, 1).await.unwrap();
            time::sleep(Duration::from_millis(10) + after * Duration::from_micros(500)).await;
            let room = Data::Into(BufferPool::current().try_allocate(8192).unwrap());
            let (status, data) = client.run(NativeOperation::Read, life, WRITTEN[0], 2, room).await;
            put.set(status == Status::Done && data.into_read()[..] == crate::expected(1));
        });
        machine.simulation.run_for(Duration::from_millis(10));
        machine.has_moved(2).unwrap();
        machine.simulation.run_for(Duration::from_millis(200));
        assert!(ended.get(), "the read after {after}");
        machine
            .device(1)
            .set_latency(Duration::ZERO, Duration::from_micros(10));
        machine.as_client(move |client| async move { client.write_until_done(life, WRITTEN[0], 33).await });
        machine.has_all(33);
    }
}
