//! Hosts that write through two portals: whatever a host has given up on one way never takes effect after what it wrote on the
//! other, be it a write or a deallocation. Commands are lost, arrive late and are held while chunks are reconfigured; hosts change
//! their minds at any moment.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdev::{Channel, ChannelExt, Data, IoError, Operation};
use foundation::{BlockCount, Lba, Random};
use reactor::sim::Simulation;
use reactor::{Buffer, BufferPool, spawn, time};

use super::nodes::{BLOCK, Chaos, NODES, Nodes, links};
use crate::client::admission::Everything;
use crate::client::{Claims, ClientOptions, VolumeChannel, VolumeDevice};
use crate::identity::{HostId, NodeId};
use crate::message::codec::NativeOperation;

const HOSTS: u64 = 4;
const HOST_BLOCKS: u64 = 128 / HOSTS;
const WAYS: u64 = 2;

/// One host: an association with each of two portals, and a part of the volume that only it writes.
struct Host {
    number: u64,
    device: Rc<VolumeDevice>,
    nodes: Rc<Nodes>,
    ways: Vec<Rc<VolumeChannel>>,
    portals: Portals,
}

fn filled(blocks: u64, byte: u8) -> Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate(blocks as usize * BLOCK)
        .unwrap();
    buffer.fill(byte);
    buffer.freeze()
}

/// What a run is about, or what is wrong in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Portals {
    Right,
    /// Nobody looks at claims.
    ClaimsIgnored,
    /// Ranges that are to be deallocated are claimed when the host has given all of its bytes.
    ClaimsLast,
}

/// What a portal does with a write: it asks for leave, then for the bytes. Those who gave the command up give none. Zeros are
/// not written but deallocated: then the bytes that are asked for last are the end of the list of ranges. A portal that is paused has
/// the bytes still unread.
async fn write(
    way: Rc<VolumeChannel>,
    lba: Lba,
    blocks: u64,
    byte: u8,
    gives: Rc<Cell<bool>>,
    (portals, pause): (Portals, Duration),
) -> Result<(), IoError> {
    let range = [(lba, BlockCount(blocks))];
    let claims_last = byte == 0 && portals == Portals::ClaimsLast;
    if claims_last {
        if !gives.get() {
            return Err(IoError::Aborted);
        }
        time::sleep(pause).await;
    }
    let leave = way.leave(&range).expect("a portal asks for leave");
    let claimed = leave.await?;
    if !claims_last {
        if !gives.get() {
            return Err(IoError::Aborted);
        }
        time::sleep(pause).await;
    }
    let (operation, data) = match byte {
        0 => (Operation::Deallocate, Data::None),
        _ => (Operation::Write { fua: false }, Data::From(filled(blocks, byte))),
    };
    let (request, ended) = bdev::request(operation, lba, BlockCount(blocks), data);
    claimed.submit(request);
    ended.await.status
}

impl Host {
    fn new(number: u64, nodes: Rc<Nodes>, device: Rc<VolumeDevice>, portals: Portals) -> Self {
        let mut host = Self {
            number,
            device,
            nodes,
            ways: Vec::new(),
            portals,
        };
        host.ways = (0..WAYS).map(|_| host.connect()).collect();
        host
    }

    /// A new association with a portal.
    fn connect(&self) -> Rc<VolumeChannel> {
        let claims = Claims::new(HostId::through_portals(self.number), Rc::new(Everything));
        Rc::new(self.device.open_for_host(links(&self.nodes), claims))
    }

    /// Writes until it is acknowledged, by one way or the other.
    async fn write(&mut self, random: &mut Random, lba: Lba, blocks: u64, byte: u8) {
        loop {
            let way = random.below(WAYS) as usize;
            let gives = Rc::new(Cell::new(true));
            let way_taken = self.ways[way].clone();
            let pause = match random.below(4) {
                0 => Duration::from_micros(random.between(1, 80_000)),
                _ => Duration::ZERO,
            };
            let attempt = write(way_taken, lba, blocks, byte, gives.clone(), (self.portals, pause));
            // Dropped, it goes on: what a portal has begun is not in the hands of a host that is gone.
            let mut attempt = spawn(attempt);
            let patience = Duration::from_micros(random.between(1, 60_000));
            match time::timeout(patience, &mut attempt).await {
                Ok(Some(Ok(()))) => return,
                Ok(Some(Err(error))) => assert_eq!(error, IoError::Unavailable),
                Ok(None) => panic!("an attempt was aborted"),
                Err(time::Elapsed) => {
                    gives.set(false);
                    self.ways[way] = self.connect();
                }
            }
        }
    }

    async fn run(mut self, seed: u64) -> Result<(), String> {
        let mut random = Random::from_seed(seed ^ self.number << 32);
        let mut model = vec![0u8; HOST_BLOCKS as usize];
        for step in 0..60u8 {
            let start = random.below(HOST_BLOCKS);
            let deallocates = random.chance(1, 5);
            let longest = if deallocates { HOST_BLOCKS } else { 6 };
            let count = random.between(1, longest.min(HOST_BLOCKS - start));
            let range = start as usize..(start + count) as usize;
            let lba = Lba(self.number * HOST_BLOCKS + start);
            if deallocates || random.chance(1, 2) {
                let byte = if deallocates { 0 } else { step + 1 };
                self.write(&mut random, lba, count, byte).await;
                model[range].fill(byte);
                continue;
            }
            let way = self.ways[random.below(WAYS) as usize].clone();
            let buffer = BufferPool::current()
                .try_allocate(count as usize * BLOCK)
                .unwrap();
            let (status, buffer) = way.read(lba, buffer).await;
            status.map_err(|error| format!("a read failed: {error}"))?;
            for (block, expected) in buffer.chunks(BLOCK).zip(&model[range]) {
                if block.iter().any(|byte| byte != expected) {
                    return Err(format!(
                        "host {}, step {step}: {} instead of {expected}",
                        self.number, block[0]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// How many late duplicates were refused, or what went wrong.
fn run(seed: u64, portals: Portals) -> Result<u64, String> {
    Simulation::new(seed).run(async move {
        let nodes = Nodes::new();
        nodes.claims_ignored.set(portals == Portals::ClaimsIgnored);
        nodes.runs_unknown.set(seed.is_multiple_of(3));
        let mut random = Random::from_seed(seed);
        *nodes.chaos.borrow_mut() = Some(Chaos {
            random: random.fork(),
            one_in: 8,
        });
        let (device, _channel) = nodes.open(ClientOptions::default());
        let device = Rc::new(device);
        let masters = nodes.masters.clone();
        let changes = spawn(async move {
            loop {
                time::sleep(Duration::from_millis(random.between(1, 60))).await;
                masters.reconfigure(random.below(4) as u32);
            }
        });
        let hosts: Vec<_> = (0..HOSTS)
            .map(|number| spawn(Host::new(number, nodes.clone(), device.clone(), portals).run(seed)))
            .collect();
        let mut outcome = Ok(());
        for host in hosts {
            outcome = outcome.and(host.await.expect("hosts are not aborted"));
        }
        changes.abort();
        outcome.map(|()| nodes.died_late.get())
    })
}

#[test]
fn what_a_host_gave_up_never_comes_after_what_it_wrote_elsewhere() {
    let seeds = foundation::seeds::from_environment(40);
    let died: u64 = seeds
        .iter()
        .map(|&seed| run(seed, Portals::Right).unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .sum();
    assert!(
        died > 40 || seeds.len() < 40,
        "only {died} late writes were refused: the test proves too little"
    );
}

#[test]
fn it_does_if_nobody_looks_at_claims() {
    finds(Portals::ClaimsIgnored);
}

#[test]
fn it_does_if_ranges_are_claimed_when_the_host_has_given_all_its_bytes() {
    finds(Portals::ClaimsLast);
}

fn finds(portals: Portals) {
    let found = (0..40).find_map(|seed| run(seed, portals).err());
    assert!(
        found.is_some_and(|why| why.contains("instead of")),
        "the bug was not found"
    );
}

#[test]
fn what_comes_without_leave_is_refused() {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let (device, _channel) = nodes.open(ClientOptions::default());
        let host = Host::new(1, nodes, Rc::new(device), Portals::Right);
        let written = host.ways[0]
            .execute(
                Operation::Write { fua: false },
                Lba(0),
                BlockCount(1),
                Data::From(filled(1, 1)),
                None,
            )
            .await;
        assert_eq!(written.status, Err(IoError::Unsupported));
        let zeroed = host.ways[0].write_zeroes(Lba(0), BlockCount(1)).await;
        assert_eq!(zeroed, Err(IoError::Unsupported));
    });
}

#[test]
fn what_lies_in_a_chunk_without_leave_is_not_touched() {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let (device, channel) = nodes.open(ClientOptions::default());
        channel.write(Lba(0), filled(128, 7)).await.unwrap();
        let host = Host::new(1, nodes, Rc::new(device), Portals::Right);
        // The first stripe units of two of the three chunks.
        let ranges = [(Lba(0), BlockCount(1)), (Lba(5), BlockCount(1))];
        let claimed = host.ways[0].leave(&ranges).expect("a portal asks for leave");
        let claimed = claimed.await.unwrap();
        let deallocate = async |lba: u64, blocks: u64| {
            let (request, ended) =
                bdev::request(Operation::Deallocate, Lba(lba), BlockCount(blocks), Data::None);
            claimed.submit(request);
            ended.await.status
        };
        // One in the third, one that goes on into it, and one in another group.
        for (lba, blocks) in [(8, 1), (4, 8), (100, 1)] {
            assert_eq!(deallocate(lba, blocks).await, Err(IoError::Unavailable));
        }
        let (status, bytes) = channel
            .read(Lba(0), BufferPool::current().try_allocate(128 * BLOCK).unwrap())
            .await;
        assert!(status.is_ok() && bytes.iter().all(|byte| *byte == 7));
        // Anywhere in those that are claimed.
        assert_eq!(deallocate(2, 5).await, Ok(()));
        assert_eq!(deallocate(12, 1).await, Ok(()));
    });
}

/// How long commands may take in the tests that follow.
const LIMIT: Duration = Duration::from_secs(2);

fn host_within_limit(nodes: &Rc<Nodes>) -> Host {
    let options = ClientOptions {
        time_limit: LIMIT,
        ..ClientOptions::default()
    };
    let (device, _channel) = nodes.open(options);
    Host::new(1, nodes.clone(), Rc::new(device), Portals::Right)
}

fn all_take(nodes: &Nodes, time: Duration) {
    let us = time.as_micros() as u64;
    *nodes.delay_us.borrow_mut() = (1..=NODES).map(|node| (NodeId(node), us)).collect();
}

#[test]
fn a_commands_time_begins_with_its_claims() {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let host = host_within_limit(&nodes);
        let claim = async || {
            let leave = host.ways[0].leave(&[(Lba(0), BlockCount(1))]);
            leave.expect("a portal asks for leave").await.unwrap()
        };
        let write = || {
            let operation = Operation::Write { fua: false };
            bdev::request(operation, Lba(0), BlockCount(1), Data::From(filled(1, 1)))
        };
        // The claim takes most of it, and the write more than what is left.
        let begun = time::now();
        all_take(&nodes, LIMIT * 3 / 4);
        let claimed = claim().await;
        all_take(&nodes, LIMIT * 3 / 4);
        let (request, ended) = write();
        claimed.submit(request);
        assert_eq!(ended.await.status, Err(IoError::Unavailable));
        let took = time::now().since(begun);
        assert!(took >= LIMIT && took < LIMIT * 5 / 4, "{took:?}");
        // The host gives its bytes when it is over.
        let claimed = claim().await;
        time::sleep(LIMIT).await;
        let asked = nodes.seen.borrow().len();
        let (request, ended) = write();
        claimed.submit(request);
        assert_eq!(ended.await.status, Err(IoError::Unavailable));
        assert_eq!(nodes.seen.borrow().len(), asked);
    });
}

#[test]
fn whoever_waited_in_vain_for_anothers_claim_sends_none() {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let host = host_within_limit(&nodes);
        nodes.silent.borrow_mut().extend((1..=NODES).map(NodeId));
        let begun = time::now();
        let claim = |_| {
            let leave = host.ways[0].leave(&[(Lba(0), BlockCount(1))]);
            let leave = leave.expect("a portal asks for leave");
            spawn(async move { leave.await.map(drop) })
        };
        let waiting: Vec<_> = (0..4).map(claim).collect();
        for claimed in waiting {
            assert_eq!(claimed.await, Some(Err(IoError::Unavailable)));
        }
        assert_eq!(nodes.asked(NativeOperation::Claim), 1);
        assert!(time::now().since(begun) < LIMIT * 5 / 4);
    });
}

/// What the host wrote through another portal may lie beyond what this one knows.
#[test]
fn a_portal_that_is_behind_a_growth_flushes_nothing() {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let (device, channel) = nodes.open(ClientOptions::default());
        let host = Host::new(1, nodes.clone(), Rc::new(device), Portals::Right);
        nodes.masters.is_behind.store(true, Ordering::Release);
        assert_eq!(host.ways[0].flush().await, Err(IoError::Unavailable));
        assert_eq!(channel.flush().await, Ok(()), "what this one wrote it knows");
        nodes.masters.is_behind.store(false, Ordering::Release);
        assert_eq!(host.ways[0].flush().await, Ok(()));
        assert_eq!(nodes.asked(NativeOperation::Flush), 4);
    });
}
