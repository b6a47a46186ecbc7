//! Sample reads: now and then one page of each disk of this node, and of some neighbours', through NVMe-oF, as a client would.
//!
//! They go from a thread of its own, with a reactor, since that is what the initiator runs on. Cost: a read of 4 KiB for each own
//! disk every two seconds, for each disk of two neighbours every six, and one association with each of these nodes.
//!
//! A sample that comes late counts as missed, and is taken in when it comes: how slow a disk is that takes seconds, only its own answer
//! says. What is not answered at all says nothing of the disk: its target may have ended or stand, or the way there may be cut.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bdev::Data;
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, Queue};
use foundation::Random;
use proto::v1;
use protocols::nvme::{Command, Nqn};
use reactor::net::TcpOptions;
use reactor::{BufferPool, Config, spawn, time};
use volume::message::sample::{ANSWER_BYTES, OPCODE, SampleAnswer};
use volume::{NodeId, names};

use crate::health::Meter;

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(2);
/// Neighbours take part in one round of so many.
const NEIGHBOUR_ROUNDS: u64 = 3;
/// How many other nodes' disks are sampled.
const NEIGHBOURS: usize = 2;
/// A sample that takes longer is late: it counts as missed, and the round goes on without it.
const LIMIT: Duration = Duration::from_millis(1500);
/// What the thread's buffers may take: a sample is a page.
const BUFFER_BYTES: usize = 4 << 20;
/// A node has no more disks than this.
const DISKS_MAX: u32 = 256;

/// What samples of one disk have shown.
#[derive(Clone, Debug, Default)]
struct Seen {
    at_disk: Meter,
    answer: Meter,
    samples: u64,
    missed: u64,
    missed_now: u64,
}

#[derive(Default)]
struct State {
    /// Nodes and where their targets listen; the first is our own.
    targets: Vec<(u128, SocketAddr)>,
    seen: BTreeMap<(u128, u128), Seen>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    stops: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. Ends when it is dropped.
pub(crate) struct Prober {
    node: u128,
    shared: Arc<Shared>,
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
    }
}

impl Prober {
    /// Samples the disks of `node`, whose target listens at `address`, from now on.
    pub(crate) fn start(node: u128, address: Option<SocketAddr>) -> Self {
        let shared = Arc::<Shared>::default();
        shared
            .state()
            .targets
            .extend(address.map(|address| (node, address)));
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("samples".to_owned());
        let run = move || {
            let config = Config {
                buffer_bytes: BUFFER_BYTES,
                ring_entries: 32,
                receive_buffers: 8,
                spin: Duration::ZERO,
                ..Config::default()
            };
            if let Err(error) = reactor::run(&config, rounds(node, theirs)) {
                tracing::warn!(%error, "no sample reads of disks");
            }
        };
        if let Err(error) = thread.spawn(run) {
            tracing::warn!(%error, "no sample reads of disks");
        }
        Self { node, shared }
    }

    /// Where the other nodes are, of which some are our neighbours; those not named stay.
    pub(crate) fn learn(&self, nodes: &[(u128, String)]) {
        let mut state = self.shared.state();
        let own = state
            .targets
            .first()
            .filter(|(node, _)| *node == self.node)
            .copied();
        let mut others: BTreeMap<u128, SocketAddr> = state
            .targets
            .iter()
            .filter(|(node, _)| *node != self.node)
            .copied()
            .collect();
        let parsed = nodes
            .iter()
            .filter_map(|(node, address)| Some((*node, address.parse().ok()?)));
        others.extend(parsed.filter(|(node, _)| *node != self.node));
        state.targets = own.into_iter().chain(neighbours(self.node, &others)).collect();
        let kept: Vec<u128> = state.targets.iter().map(|(node, _)| *node).collect();
        state.seen.retain(|(node, _), _| kept.contains(node));
    }

    /// What has been seen so far.
    pub(crate) fn samples(&self) -> Vec<v1::DiskSample> {
        let state = self.shared.state();
        let sample = |(&(node, disk), seen): (&(u128, u128), &Seen)| v1::DiskSample {
            node: node.to_be_bytes().to_vec(),
            disk: disk.to_be_bytes().to_vec(),
            disk_us: seen.at_disk.average_us(),
            disk_p99_us: seen.at_disk.p99_us(),
            answer_us: seen.answer.average_us(),
            answer_p99_us: seen.answer.p99_us(),
            samples: seen.samples,
            missed: seen.missed,
            missed_now: seen.missed_now,
        };
        state.seen.iter().map(sample).collect()
    }
}

/// The nodes that come next in the order of their identifiers, going round: each node is sampled by as many as it samples.
fn neighbours(node: u128, others: &BTreeMap<u128, SocketAddr>) -> Vec<(u128, SocketAddr)> {
    let after = others.range(node..).chain(others.range(..node));
    after
        .take(NEIGHBOURS)
        .map(|(node, address)| (*node, *address))
        .collect()
}

/// A way to one node.
struct Link {
    address: SocketAddr,
    queue: Rc<Queue>,
    _controller: Rc<Controller>,
    /// How many disks the node has, as it said last; 0 before.
    disks: Cell<u32>,
    /// Those of which a sample is on its way, by their numbers: there is no second one.
    asked: RefCell<BTreeSet<u32>>,
}

async fn rounds(own: u128, shared: Arc<Shared>) {
    let mut random = Random::from_seed(own as u64 ^ u64::from(std::process::id()));
    let links: Rc<RefCell<BTreeMap<u128, Rc<Link>>>> = Rc::default();
    for round in 0u64.. {
        if shared.stops.load(Ordering::Relaxed) {
            return;
        }
        let targets = shared.state().targets.clone();
        links.borrow_mut().retain(|node, link| {
            let is_there = targets.contains(&(*node, link.address));
            if !is_there || link.queue.is_ended() {
                link.queue.close();
            }
            is_there && !link.queue.is_ended()
        });
        let asked: Vec<_> = targets
            .into_iter()
            .filter(|(node, _)| *node == own || round % NEIGHBOUR_ROUNDS == 0)
            .map(|(node, address)| {
                let (shared, links, seed) = (shared.clone(), links.clone(), random.next_u64());
                spawn(async move {
                    let link = links.borrow().get(&node).cloned();
                    let link = match link {
                        Some(link) => link,
                        None => match open(own, node, address).await {
                            Ok(link) => {
                                links.borrow_mut().insert(node, link.clone());
                                link
                            }
                            Err(error) => {
                                tracing::debug!(peer = %names::of_node(NodeId(node)), %error, "its disks cannot be sampled");
                                return miss_all(&shared, node);
                            }
                        },
                    };
                    sample_node(&shared, node, &link, seed).await;
                })
            })
            .collect();
        for asking in asked {
            asking.await;
        }
        time::sleep(ROUND).await;
    }
}

async fn open(own: u128, node: u128, address: SocketAddr) -> Result<Rc<Link>, ConnectError> {
    let parse = |name: String| name.parse::<Nqn>().expect("node names are well-formed");
    let mut host_id = own.to_le_bytes();
    // Another host than the node itself is.
    host_id[15] ^= 0x50;
    let options = ConnectOptions {
        queue_entries: 32,
        keep_alive: Duration::from_secs(10),
        limit: LIMIT,
        tcp: TcpOptions::default(),
        ..ConnectOptions::new(
            address,
            parse(names::of_node(NodeId(node))),
            parse(names::of_probe(NodeId(own))),
            host_id,
        )
    };
    let controller = Controller::connect(options).await?;
    let queue = controller.open_queue().await?;
    Ok(Rc::new(Link {
        address,
        queue,
        _controller: controller,
        disks: Cell::default(),
        asked: RefCell::default(),
    }))
}

impl State {
    /// How many samples of each disk of a node were answered.
    fn answered(&self, node: u128) -> BTreeMap<u128, u64> {
        let of_node = self.seen.range((node, 0)..=(node, u128::MAX));
        of_node.map(|((_, disk), seen)| (*disk, seen.samples)).collect()
    }

    /// Of the disks of a node those were missed of which no more was answered since it was as `before`.
    fn note_missed(&mut self, node: u128, before: &BTreeMap<u128, u64>) {
        for ((_, disk), seen) in self.seen.range_mut((node, 0)..=(node, u128::MAX)) {
            if before.get(disk) == Some(&seen.samples) {
                seen.missed += 1;
                seen.missed_now += 1;
            }
        }
    }

    fn note_answer(&mut self, node: u128, disk: u128, at_disk: Duration, took: Duration) {
        let seen = self.seen.entry((node, disk)).or_default();
        seen.at_disk.note(at_disk);
        seen.answer.note(took);
        seen.samples += 1;
        seen.missed_now = 0;
    }
}

fn miss_all(shared: &Shared, node: u128) {
    let mut state = shared.state();
    let before = state.answered(node);
    state.note_missed(node, &before);
}

/// Samples each disk of a node. Which ones there are, the first answer says.
async fn sample_node(shared: &Arc<Shared>, node: u128, link: &Rc<Link>, seed: u64) {
    let mut random = Random::from_seed(seed);
    let before = shared.state().answered(node);
    let known = u32::try_from(before.len()).unwrap_or(DISKS_MAX).max(1);
    let disks = || match link.disks.get() {
        0 => known,
        disks => disks,
    };
    let mut index = 0;
    while index < disks() {
        let page = random.next_u64();
        if link.asked.borrow_mut().insert(index) {
            let asking = spawn(ask(shared.clone(), node, link.clone(), index, page));
            // It goes on if it is late.
            let _ = time::timeout(LIMIT, asking).await;
        }
        index += 1;
    }
    shared.state().note_missed(node, &before);
}

/// Samples one disk, however long it takes: until the link ends at most.
async fn ask(shared: Arc<Shared>, node: u128, link: Rc<Link>, index: u32, page: u64) {
    let answer = answer_of(&link.queue, index, page).await;
    link.asked.borrow_mut().remove(&index);
    let Some((answer, took)) = answer else { return };
    link.disks.set(answer.disks.min(DISKS_MAX));
    if let Some(at_disk) = answer.took {
        shared.state().note_answer(node, answer.uuid, at_disk, took);
    }
}

/// What a node answers of its disk of this number, and after how long; none if it does not.
async fn answer_of(queue: &Queue, index: u32, page: u64) -> Option<(SampleAnswer, Duration)> {
    let command = Command::new(OPCODE, 0)
        .with_cdw10(index)
        .with_cdw12(page as u32)
        .with_cdw13((page >> 32) as u32);
    let mut buffer = BufferPool::current().try_allocate(ANSWER_BYTES).ok()?;
    buffer.fill(0);
    let began = time::now();
    let result = queue.execute(command, Data::Into(buffer)).await;
    let took = time::now() - began;
    let is_done = result
        .completion
        .is_some_and(|completion| completion.status().is_success());
    match &result.data {
        Data::Into(buffer) if is_done => Some((SampleAnswer::decode(buffer)?, took)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_sampled_by_as_many_as_it_samples() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let nodes = [3u128, 8, 20, 21, 90];
        let mut sampled = BTreeMap::<u128, usize>::new();
        for node in nodes {
            let others = nodes.iter().filter(|other| **other != node);
            let others = others.map(|other| (*other, address)).collect();
            let chosen = neighbours(node, &others);
            assert!(chosen.iter().all(|(other, _)| *other != node));
            for (other, _) in chosen {
                *sampled.entry(other).or_default() += 1;
            }
        }
        assert!(sampled.values().all(|count| *count == NEIGHBOURS), "{sampled:?}");
        assert!(neighbours(1, &BTreeMap::new()).is_empty());
    }

    #[test]
    fn a_late_answer_counts_and_what_is_not_answered_says_nothing() {
        let (mut state, ms) = (State::default(), Duration::from_millis);
        let shown = |state: &State, disk| {
            let seen = &state.seen[&(1, disk)];
            (seen.samples, seen.missed, seen.missed_now, seen.at_disk.p99_us())
        };
        state.note_answer(1, 7, ms(1), ms(2));
        state.note_answer(1, 8, ms(1), ms(2));
        state.note_answer(2, 9, ms(1), ms(2));
        for round in 1..=3 {
            let before = state.answered(1);
            state.note_answer(1, 8, ms(1), ms(2));
            state.note_missed(1, &before);
            assert_eq!(shown(&state, 7), (1, round, round, 1000));
            assert_eq!(shown(&state, 8), (1 + round, 0, 0, 1000));
        }
        // It comes between two rounds, or within one.
        state.note_answer(1, 7, ms(6000), ms(6001));
        assert_eq!(shown(&state, 7), (2, 3, 0, 6_000_000));
        let before = state.answered(1);
        state.note_answer(1, 7, ms(6000), ms(6001));
        state.note_missed(1, &before);
        assert_eq!(shown(&state, 7), (3, 3, 0, 6_000_000));
        assert_eq!(shown(&state, 8).1, 1);
        assert_eq!(state.seen[&(2, 9)].missed, 0, "another node's");
    }

    #[test]
    fn neighbours_may_come_and_change() {
        let prober = Prober {
            node: 5,
            shared: Arc::default(),
        };
        let at = |port: u16| format!("127.0.0.1:{port}");
        prober.shared.state().targets.push((5, at(5).parse().unwrap()));
        prober.learn(&[(9, at(9)), (1, at(1)), (5, at(6)), (2, "nowhere".to_owned())]);
        let targets = |prober: &Prober| -> Vec<(u128, u16)> {
            let state = prober.shared.state();
            state
                .targets
                .iter()
                .map(|(node, address)| (*node, address.port()))
                .collect()
        };
        assert_eq!(targets(&prober), [(5, 5), (9, 9), (1, 1)]);
        prober.learn(&[(9, at(10))]);
        assert_eq!(targets(&prober), [(5, 5), (9, 10), (1, 1)]);
    }
}
