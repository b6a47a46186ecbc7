//! Hosts that count together by fused Compare and Write of an exported volume, through either portal, as cluster file systems take their
//! locks: no two of them are told that they made the same step, whatever befalls portals and nodes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bdev::Data;
use foundation::{BlockCount, Lba, Random};
use protocols::nvme::command::Fuse;
use protocols::nvme::{Command, Status};
use reactor::{BufferPool, spawn, time};

use crate::on_client;
use crate::portals::{BLOCK, Exporting, Way, is_of_the_path};

const HOSTS: u64 = 3;
/// Blocks that are counted in: in two stripe units.
const COUNTERS: [u64; 2] = [3, 40];

fn filled(bytes: &[u8]) -> Data {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Data::From(buffer.freeze())
}

fn count_block(count: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    bytes[BLOCK - 8..].copy_from_slice(&count.to_le_bytes());
    bytes
}

fn count_in(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[BLOCK - 8..].try_into().unwrap())
}

impl Way {
    /// Both halves, one behind the other; none for one that the connection was lost with.
    async fn fused(&self, halves: [(Command, Vec<u8>); 2]) -> [Option<Status>; 2] {
        // Both are given to the queue at the first poll, in this order.
        let [first, second] = halves;
        let mut first = pin!(self.run(first.0, filled(&first.1)));
        let mut second = pin!(self.run(second.0, filled(&second.1)));
        let mut ended = [None, None];
        poll_fn(|context| {
            let futures = [first.as_mut(), second.as_mut()]
                as [Pin<&mut dyn Future<Output = (Option<Status>, Data)>>; 2];
            for (future, ended) in futures.into_iter().zip(&mut ended) {
                if ended.is_none()
                    && let Poll::Ready((status, _)) = future.poll(context)
                {
                    *ended = Some(status);
                }
            }
            match ended {
                [Some(first), Some(second)] => Poll::Ready([first, second]),
                _ => Poll::Pending,
            }
        })
        .await
    }

    async fn compare_and_write(&self, lba: u64, expected: Vec<u8>, new: Vec<u8>) -> [Option<Status>; 2] {
        let one = BlockCount(1);
        self.fused([
            (
                Command::compare(1, Lba(lba), one).with_fuse(Fuse::First),
                expected,
            ),
            (Command::write(1, Lba(lba), one).with_fuse(Fuse::Second), new),
        ])
        .await
    }
}

#[test]
fn a_host_compares_and_writes_in_one_step_by_either_way() {
    let exporting = Exporting::new(5, [1, 2]);
    let addresses = [exporting.address(0), exporting.address(1)];
    on_client(&exporting.cluster, Duration::from_secs(30), move || async move {
        let [one, other] = [
            Rc::new(Way::connect(addresses[0], 1).await.unwrap()),
            Rc::new(Way::connect(addresses[1], 1).await.unwrap()),
        ];
        let (done, differs) = (
            [Some(Status::SUCCESS); 2],
            [Some(Status::COMPARE_FAILURE), Some(Status::ABORTED_FAILED_FUSED)],
        );
        let [zero, first, second] = [0, 1, 2].map(count_block);
        assert_eq!(one.compare_and_write(3, zero.clone(), first.clone()).await, done);
        assert_eq!(one.read(3, 1).await, Ok(first.clone()));
        assert_eq!(
            one.compare_and_write(3, zero.clone(), second.clone()).await,
            differs
        );
        // The other way claims the chunk, and the first one hears so once.
        assert_eq!(
            other.compare_and_write(3, first.clone(), second.clone()).await,
            done
        );
        let lost = [Some(Status::INTERNAL_PATH_ERROR); 2];
        assert_eq!(
            one.compare_and_write(3, second.clone(), first.clone()).await,
            lost
        );
        assert_eq!(
            other.read(3, 1).await,
            Ok(second.clone()),
            "nothing of it was done"
        );
        assert_eq!(
            one.compare_and_write(3, first.clone(), zero.clone()).await,
            differs
        );
        // More than one block, halves that do not fit together, and what lies beyond the end.
        let halves = |compare: (u64, u64), write: (u64, u64)| {
            let bytes = |blocks: u64| vec![0; blocks as usize * BLOCK];
            [
                (
                    Command::compare(1, Lba(compare.0), BlockCount(compare.1)).with_fuse(Fuse::First),
                    bytes(compare.1),
                ),
                (
                    Command::write(1, Lba(write.0), BlockCount(write.1)).with_fuse(Fuse::Second),
                    bytes(write.1),
                ),
            ]
        };
        for (halves, status) in [
            (halves((8, 2), (8, 2)), Status::ATOMIC_WRITE_UNIT_EXCEEDED),
            (halves((8, 1), (9, 1)), Status::INVALID_FIELD_IN_COMMAND),
        ] {
            assert_eq!(one.fused(halves).await, [Some(status); 2]);
        }
        let beyond = one.fused(halves((1024, 1), (1024, 1))).await;
        assert_eq!(
            beyond,
            [Some(Status::ABORTED_FAILED_FUSED), Some(Status::LBA_OUT_OF_RANGE)]
        );
        assert_eq!(one.read(3, 7).await.unwrap()[BLOCK..], vec![0; 6 * BLOCK]);
        // Many at once of one block: each is a step of its own, and all but one of those that expect the same fail.
        let many: Vec<_> = (0..24)
            .map(|_| {
                let (one, from, to) = (one.clone(), second.clone(), count_block(3));
                spawn(async move { one.compare_and_write(3, from, to).await })
            })
            .collect();
        let mut made = 0;
        for step in many {
            let step = step.await.unwrap();
            made += u64::from(step == done);
            assert!(step == done || step == differs, "{step:?}");
        }
        assert_eq!(made, 1);
    });
    exporting.cluster.end();
}

/// What the hosts that count have in common.
#[derive(Default)]
struct Counts {
    stop: Cell<bool>,
    ended: Cell<u64>,
    /// Steps that a host was told it had made: the counter, and the count after it.
    made: RefCell<BTreeSet<(u64, u64)>>,
    /// Steps that were begun and have not been found undone, and how often.
    in_doubt: RefCell<BTreeMap<(u64, u64), u64>>,
    /// Those that found another count.
    differed: Cell<u64>,
    /// Those that ended in doubt, and were found undone.
    undone: Cell<u64>,
    failure: RefCell<Option<String>>,
}

impl Counts {
    fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
    }

    fn made(&self, step: (u64, u64)) {
        if !self.made.borrow_mut().insert(step) {
            self.fail(format!(
                "two hosts made the step of block {} to {}",
                step.0, step.1
            ));
        }
    }
}

/// One host.
struct Counting {
    counts: Rc<Counts>,
    addresses: [SocketAddr; 2],
    number: u64,
    random: Random,
    ways: [Option<Rc<Way>>; 2],
}

impl Counting {
    async fn way(&mut self, which: usize) -> Option<Rc<Way>> {
        let is_fit = |way: &Rc<Way>| !way.controller.is_ended() && !way.queue.is_ended();
        if !self.ways[which].as_ref().is_some_and(is_fit) {
            let connected = Way::connect(self.addresses[which], self.number).await;
            self.ways[which] = connected.ok().map(Rc::new);
        }
        self.ways[which].clone()
    }

    /// Reads a counter and makes one step of it. Each may be given up, with the way by which it went.
    async fn step(&mut self) {
        let (which, at) = (self.random.below(2) as usize, self.random.below(2) as usize);
        let Some(way) = self.way(which).await else {
            return time::sleep(Duration::from_millis(20)).await;
        };
        let (lba, counts) = (COUNTERS[at], self.counts.clone());
        let patience = Duration::from_millis(match self.random.below(4) {
            0 => self.random.between(1, 20),
            _ => self.random.between(20, 3000),
        });
        let mut attempt = spawn({
            let way = way.clone();
            async move {
                let count = match way.read(lba, 1).await {
                    Ok(block) => count_in(&block),
                    Err(status) if is_of_the_path(status) => return,
                    Err(status) => return counts.fail(format!("a read was answered with {status:?}")),
                };
                let step = (lba, count + 1);
                // Until the answer is here nobody knows.
                *counts.in_doubt.borrow_mut().entry(step).or_default() += 1;
                let [compared, written] = way
                    .compare_and_write(lba, count_block(count), count_block(count + 1))
                    .await;
                match (compared, written) {
                    (Some(Status::SUCCESS), Some(Status::SUCCESS)) => counts.made(step),
                    (Some(Status::COMPARE_FAILURE), Some(Status::ABORTED_FAILED_FUSED)) => {
                        counts.differed.set(counts.differed.get() + 1);
                        *counts.in_doubt.borrow_mut().entry(step).or_default() -= 1;
                    }
                    (compared @ Some(_), written @ Some(_))
                        if is_of_the_path(compared) && is_of_the_path(written) =>
                    {
                        // It is done, or never will be: if it is not there now, somebody else has to make this step.
                        if let Ok(block) = way.read(lba, 1).await
                            && count_in(&block) == count
                        {
                            counts.undone.set(counts.undone.get() + 1);
                            *counts.in_doubt.borrow_mut().entry(step).or_default() -= 1;
                        }
                    }
                    (compared, written) if is_of_the_path(compared) && is_of_the_path(written) => {}
                    other => counts.fail(format!("a step was answered with {other:?}")),
                }
            }
        });
        if time::timeout(patience, &mut attempt).await.is_err() {
            self.ways[which] = None;
            let linger = Duration::from_millis(self.random.below(50));
            drop(spawn(async move {
                time::sleep(linger).await;
                way.queue.close();
            }));
        }
    }

    async fn run(mut self) {
        while !self.counts.stop.get() && self.counts.failure.borrow().is_none() {
            self.step().await;
            time::sleep(Duration::from_millis(self.random.below(5))).await;
        }
        self.counts.ended.set(self.counts.ended.get() + 1);
    }
}

/// How many steps were made, how many found another count and how many were in doubt and undone; or what went wrong.
fn history(seed: u64) -> Result<[u64; 3], String> {
    let mut random = Random::from_seed(seed);
    let portals = if seed.is_multiple_of(2) { [0, 1] } else { [1, 2] };
    let exporting = Exporting::new(seed, portals);
    let counts = Rc::new(Counts::default());
    let addresses = [exporting.address(0), exporting.address(1)];
    let simulation = &exporting.cluster.simulation;
    let start = |number: u64| {
        let host = simulation.add_host(&format!("host{number}"));
        let counting = Counting {
            counts: counts.clone(),
            addresses,
            number,
            random: Random::from_seed(seed ^ number << 40),
            ways: [None, None],
        };
        simulation.start(host, move || counting.run());
        host
    };
    let hosts: Vec<_> = (0..HOSTS).map(start).collect();
    exporting.befall(&hosts, &mut random);
    counts.stop.set(true);
    simulation.run_for(Duration::from_secs(30));
    // The last of each, by the portal that has lost nothing.
    let last = Rc::new(RefCell::new(Vec::new()));
    let (found, reader) = (last.clone(), simulation.add_host("reader"));
    let address = addresses[1];
    simulation.start(reader, move || async move {
        let way = Way::connect(address, HOSTS).await.unwrap();
        for lba in COUNTERS {
            let block = way.read(lba, 1).await.unwrap();
            found.borrow_mut().push((lba, count_in(&block)));
        }
    });
    simulation.run_for(Duration::from_secs(10));
    exporting.cluster.end();
    if let Some(why) = counts.failure.borrow_mut().take() {
        return Err(why);
    }
    let (made, in_doubt) = (counts.made.borrow(), counts.in_doubt.borrow());
    if counts.ended.get() != HOSTS || last.borrow().len() != COUNTERS.len() {
        return Err("a host has not ended, or the counters could not be read".to_owned());
    }
    for &(lba, count) in &*last.borrow() {
        let steps = made.iter().filter(|step| step.0 == lba);
        if let Some(&(_, beyond)) = steps.clone().find(|step| step.1 > count) {
            return Err(format!(
                "block {lba} is at {count}, and {beyond} was acknowledged"
            ));
        }
        let is_in_doubt = |step| in_doubt.get(&step).is_some_and(|times| *times > 0);
        let is_somebodys = |count| made.contains(&(lba, count)) || is_in_doubt((lba, count));
        let nobodys = (1..=count).find(|&step| !is_somebodys(step));
        if let Some(step) = nobodys {
            return Err(format!("nobody made the step of block {lba} to {step}"));
        }
    }
    Ok([made.len() as u64, counts.differed.get(), counts.undone.get()])
}

#[test]
fn hosts_that_count_by_compare_and_write_make_each_step_once() {
    let (mut made, mut differed, mut undone) = (0, 0, 0);
    for seed in foundation::seeds::from_environment(12) {
        let counted = history(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        made += counted[0];
        differed += counted[1];
        undone += counted[2];
    }
    println!("{made} steps, {differed} that found another count, {undone} in doubt and undone");
    assert!(
        made > 1000 && differed > 100 && undone > 10,
        "only {made} steps, {differed} differed, {undone} undone"
    );
}
