//! Snapshots of the simulated volume: who makes them, and what must hold of them (`docs/decisions/0081`).
//!
//! They draw from a generator of their own, so that runs without them stay what they were.

use std::collections::{BTreeMap, BTreeSet};

use foundation::{Epoch, Random};

use super::kinds::Kinds;
use super::linear::{End, Op, SLOTS};
use super::whole::Completed;
use super::world::{CHUNK_BLOCKS, Event, MS, REBUILD, SCENARIOS, SECOND, US, World, chunk_id, node_index};
use crate::configuration::ChunkConfig;
use crate::identity::{
    BlockRange, HostId, IoToken, RequestId, Sequence, Session, SnapshotId, TraceId, WriterToken,
};
use crate::output::{Operation, Request, Status};

/// The maker's place among those who read and write.
const SNAPSHOT: usize = SLOTS;

/// One write of a client.
#[derive(Debug)]
struct Issued {
    chunk: usize,
    range: BlockRange,
    at: u64,
    acknowledged: Option<u64>,
}

/// What a chunk's part in a snapshot is: the last write in it, and what its blocks hold.
pub(super) type Truth = (Sequence, Vec<u32>);

/// A snapshot that is being made.
#[derive(Debug)]
struct Attempt {
    snapshot: SnapshotId,
    configs: Vec<ChunkConfig>,
    releases: bool,
    /// Chunks whose write nodes have not answered.
    waits_for: BTreeSet<usize>,
    /// What the copies have of each chunk, once all are released; the masters are then told that it is complete.
    held: Option<Vec<Option<Truth>>>,
}

/// The maker of snapshots, and the history that they are compared with.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) random: Random,
    last: SnapshotId,
    attempt: Option<Attempt>,
    pub(super) completed: u64,
    pub(super) aborted: u64,
    /// Chunks of which no copy had all blocks right, when too few were in sync.
    pub(super) lacking: u64,
    /// Those that the copies of are kept, where they are; of each chunk what is known of it.
    pub(super) complete: BTreeMap<SnapshotId, Vec<Option<Truth>>>,
    /// Copies made from others, and copies let go.
    pub(super) made: u64,
    pub(super) gone: u64,
    /// What nodes were asked: node, life and request.
    asked: BTreeMap<(usize, u64, RequestId), (usize, Operation)>,
    /// By the value that was written.
    writes: BTreeMap<u32, Issued>,
    /// When each chunk last lost what was not flushed, since nobody was left who had it.
    lost_at: Vec<u64>,
}

impl Snapshots {
    pub(super) fn new(seed: u64, chunks: usize) -> Self {
        Self {
            random: Random::from_seed(seed ^ 0x5a47_u64 << 32),
            last: SnapshotId(0),
            attempt: None,
            completed: 0,
            aborted: 0,
            lacking: 0,
            complete: BTreeMap::new(),
            made: 0,
            gone: 0,
            asked: BTreeMap::new(),
            writes: BTreeMap::new(),
            lost_at: vec![0; chunks],
        }
    }

    /// The volume has one more chunk.
    pub(super) fn grow(&mut self) {
        self.lost_at.push(0);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.attempt.is_none()
    }

    /// How long something between the maker and a node takes; none if it is lost.
    pub(super) fn delay(&mut self) -> Option<u64> {
        let usual = self.random.between(50 * US, 2 * MS);
        match self.random.below(150) {
            0 => None,
            1..=25 => Some(usual + self.random.below(300 * MS)),
            _ => Some(usual),
        }
    }
}

impl World {
    /// One whose volume has several chunks, and snapshots.
    pub(super) fn with_snapshots(seed: u64) -> Self {
        let snapshots = true;
        let kinds = Kinds {
            snapshots,
            ..Kinds::default()
        };
        Self::make(seed, None, None, kinds)
    }

    /// One whose snapshots' copies follow those of its chunks, mostly while these move.
    pub(super) fn with_kept_snapshots(seed: u64) -> Self {
        let scenario = if seed.is_multiple_of(3) {
            seed % SCENARIOS
        } else {
            REBUILD
        };
        let (snapshots, keeps) = (true, true);
        let kinds = Kinds {
            snapshots,
            keeps,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(scenario), kinds)
    }

    pub(super) fn note_issued(&mut self, chunk: usize, range: BlockRange, op: Op) {
        let at = self.now;
        if let (Some(snapshots), Op::Write(value) | Op::Force(value)) = (&mut self.snapshots, op) {
            let acknowledged = None;
            let issued = Issued {
                chunk,
                range,
                at,
                acknowledged,
            };
            snapshots.writes.insert(value, issued);
        }
    }

    pub(super) fn note_acknowledged(&mut self, op: Op) {
        let now = self.now;
        if let (Some(snapshots), Op::Write(value) | Op::Force(value)) = (&mut self.snapshots, op)
            && let Some(write) = snapshots.writes.get_mut(&value)
        {
            write.acknowledged = Some(now);
        }
    }

    pub(super) fn note_loss(&mut self, chunk: usize) {
        let now = self.now;
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.lost_at[chunk] = now;
        }
    }

    fn snapshots(&mut self) -> &mut Snapshots {
        self.snapshots
            .as_mut()
            .expect("only worlds with snapshots have their events")
    }

    /// Begins a snapshot.
    pub(super) fn snapshot_step(&mut self) {
        if self.healing {
            return;
        }
        let Some((snapshot, chunks)) = self.begin_attempt() else {
            return self.next_snapshot();
        };
        // The volume does not grow while it is made.
        let configs = self.store[..chunks].to_vec();
        let snapshots = self.snapshots();
        snapshots.attempt = Some(Attempt {
            snapshot,
            waits_for: (0..configs.len()).collect(),
            configs,
            releases: false,
            held: None,
        });
        for monitor in self.monitors.iter_mut().take(chunks).flatten() {
            monitor.invoke(SNAPSHOT, Op::Read);
        }
        self.give_orders(Operation::Cut(snapshot));
        self.at(2 * SECOND, Event::SnapshotTimeout { snapshot });
    }

    /// The number of the next one, and of how many chunks it is.
    fn begin_attempt(&mut self) -> Option<(SnapshotId, usize)> {
        if self.whole.is_some() {
            return self.begin_at_masters();
        }
        let chunks = self.shape.chunks;
        let last = &mut self.snapshots().last;
        last.0 += 1;
        Some((*last, chunks))
    }

    fn give_orders(&mut self, operation: Operation) {
        let Some(attempt) = &self.snapshots().attempt else {
            return;
        };
        let places = attempt
            .configs
            .iter()
            .map(|c| (node_index(c.write_node), c.epoch));
        let places: Vec<(usize, Epoch)> = places.collect();
        for (chunk, (to, epoch)) in places.into_iter().enumerate() {
            if let Some(delay) = self.snapshots().delay() {
                let order = Event::Order {
                    to,
                    chunk,
                    epoch,
                    operation,
                };
                self.at(delay, order);
            }
        }
    }

    /// A node gets an order.
    pub(super) fn order(&mut self, to: usize, chunk: usize, epoch: Epoch, operation: Operation) {
        if self.nodes[to].core.is_none() {
            return;
        }
        let id = self.nodes[to].new_request();
        let life = self.nodes[to].life;
        self.snapshots().asked.insert((to, life, id), (chunk, operation));
        let request = Request {
            id,
            operation,
            range: BlockRange::default(),
            epoch,
            session: Session {
                host: HostId(1000),
                number: 1,
            },
            writer_token: WriterToken(0),
            needs_room: false,
            trace: TraceId(0),
        };
        self.core(to, None, |core, now| {
            core.handle_command(now, chunk_id(chunk), request);
        });
    }

    /// A node has completed a request. False if it was no order.
    pub(super) fn ordered(&mut self, node: usize, request: RequestId, status: Status) -> bool {
        let life = self.nodes[node].life;
        let Some(snapshots) = &mut self.snapshots else {
            return false;
        };
        let Some((chunk, operation)) = snapshots.asked.remove(&(node, life, request)) else {
            return false;
        };
        if let Some(delay) = snapshots.delay() {
            let answer = Event::Ordered {
                chunk,
                operation,
                status,
            };
            self.at(delay, answer);
        }
        true
    }

    pub(super) fn order_answered(&mut self, chunk: usize, operation: Operation, status: Status) {
        let Some(attempt) = &mut self.snapshots().attempt else {
            return;
        };
        let snapshot = attempt.snapshot;
        let expected = match attempt.releases {
            false => Operation::Cut(snapshot),
            true => Operation::Release(snapshot),
        };
        if operation != expected {
            return;
        }
        if status != Status::Done {
            return self.abort_snapshot(snapshot);
        }
        attempt.waits_for.remove(&chunk);
        if !attempt.waits_for.is_empty() {
            return;
        }
        if !std::mem::replace(&mut attempt.releases, true) {
            attempt.waits_for = (0..attempt.configs.len()).collect();
            self.give_orders(Operation::Release(snapshot));
        } else if let Some(mut attempt) = self.snapshots().attempt.take() {
            let lacking = self.snapshots().lacking;
            let held = self.truths_of(&attempt);
            // A harmed copy was left alone, since heartbeats were lost, before the block was repaired: two faults. The maker has no use for it.
            let is_whole = self.snapshots().lacking == lacking;
            attempt.held = Some(held).filter(|_| is_whole);
            self.snapshots().attempt = Some(attempt);
            match is_whole {
                true => self.complete(snapshot),
                false => self.abort_snapshot(snapshot),
            }
        }
    }

    /// Every chunk has its part: the snapshot is complete once the masters have said so.
    pub(super) fn complete(&mut self, snapshot: SnapshotId) {
        let attempt = &self.snapshots().attempt;
        if attempt
            .as_ref()
            .is_none_or(|attempt| attempt.snapshot != snapshot)
        {
            return;
        }
        let completed = match self.whole.is_some() {
            true => self.complete_at_masters(snapshot),
            false => Completed::Complete,
        };
        match completed {
            Completed::Unknown => self.complete_again(snapshot),
            Completed::GivenUp => {
                self.end_attempt();
                self.next_snapshot();
            }
            Completed::Complete => {
                if let Some(attempt) = self.snapshots().attempt.take() {
                    self.snapshots().completed += 1;
                    self.check_snapshot(&attempt);
                    self.next_snapshot();
                }
            }
        }
    }

    /// What the copies have of a snapshot that is being made.
    fn truths_of(&mut self, attempt: &Attempt) -> Vec<Option<Truth>> {
        (0..attempt.configs.len())
            .map(|chunk| self.layer_of(chunk, attempt))
            .collect()
    }

    /// Nothing comes of the present one.
    fn end_attempt(&mut self) {
        let snapshots = self.snapshots();
        snapshots.aborted += 1;
        let chunks = snapshots
            .attempt
            .take()
            .map_or(0, |attempt| attempt.configs.len());
        for monitor in self.monitors.iter_mut().take(chunks).flatten() {
            monitor.abandon(SNAPSHOT);
        }
    }

    /// The maker gives up.
    pub(super) fn abort_snapshot(&mut self, snapshot: SnapshotId) {
        let attempt = &self.snapshots().attempt;
        let is_it = |attempt: &Attempt| attempt.snapshot == snapshot && attempt.held.is_none();
        if !attempt.as_ref().is_some_and(is_it) {
            return;
        }
        self.give_orders(Operation::Abandon(snapshot));
        if self.whole.is_some() {
            self.abort_at_masters(snapshot);
        }
        self.end_attempt();
        self.next_snapshot();
    }

    fn next_snapshot(&mut self) {
        let delay = self.snapshots().random.between(20 * MS, 500 * MS);
        self.at(delay, Event::SnapshotStep);
    }

    /// A node's disk is to keep a copy as it is.
    pub(super) fn begin_snapshot(
        &mut self,
        node: usize,
        chunk: usize,
        io: IoToken,
        name: (SnapshotId, Sequence),
    ) {
        let random = &mut self.snapshots().random;
        let mut delay = random.between(100 * US, 5 * MS);
        if random.chance(1, 20) {
            delay += random.below(600 * MS);
        }
        let fails = random.chance(1, 60);
        self.disk(node, chunk).begin_snapshot(io, name, fails);
        self.local_after(delay, node, chunk, io);
    }

    /// What every copy has of a chunk that was asked for its snapshot: one and the same.
    fn layer_of(&mut self, chunk: usize, attempt: &Attempt) -> Option<Truth> {
        let mut found: Option<(Sequence, Vec<Option<u32>>)> = None;
        for member in &attempt.configs[chunk].members {
            let node = node_index(member.node);
            let Some(layer) = self.layer(node, (chunk, attempt.snapshot)) else {
                // A copy may have been deleted since, and made anew; or the masters have given the snapshot up.
                if !self.is_kept_by_masters(attempt.snapshot) {
                    continue;
                }
                if self.shape.keeps || self.nodes[node].disks.contains_key(&chunk) && self.places.made == 0 {
                    self.fail(format!(
                        "node {node} has no snapshot {:?} of chunk {chunk}",
                        attempt.snapshot
                    ));
                }
                continue;
            };
            let (sequence, values, wrong) = (layer.sequence, layer.values(), layer.wrong());
            let (_, before) = found.get_or_insert_with(|| (sequence, vec![None; values.len()]));
            // What a disk has harmed, another copy has right.
            let fits = wrong.is_empty() || self.mends.is_some();
            let mut same = true;
            for (block, value) in (0..).zip(values).filter(|(block, _)| !wrong.contains(block)) {
                let known = before[block as usize].get_or_insert(value);
                same &= *known == value;
            }
            same &= found.as_ref().is_some_and(|found| found.0 == sequence);
            if !same || !fits {
                self.fail(format!(
                    "snapshot {:?} of chunk {chunk} on node {node}: as on the others {same}, fits its sums {fits}",
                    attempt.snapshot
                ));
            }
        }
        let (sequence, blocks) = found?;
        let values: Option<Vec<u32>> = blocks.iter().copied().collect();
        // Copies that came back were told that the block is lost (0132): a harmed copy had been left alone, as below.
        let told = self.mends.as_ref().map(|mends| &mends.lost);
        let is_told = |block| told.is_some_and(|lost| lost.contains(&(chunk, block)));
        let untold = (0..)
            .zip(&blocks)
            .any(|(block, value)| value.is_none() && !is_told(block));
        if untold && attempt.configs[chunk].members.len() == usize::from(self.shape.copies) {
            self.fail(format!(
                "no copy of snapshot {:?} of chunk {chunk} has all blocks right: {blocks:?}",
                attempt.snapshot
            ));
        }
        self.snapshots().lacking += u64::from(values.is_none());
        Some((sequence, values?))
    }

    /// What must hold of a complete snapshot.
    fn check_snapshot(&mut self, attempt: &Attempt) {
        let (mut held, mut truths) = (Vec::new(), Vec::new());
        for chunk in 0..attempt.configs.len() {
            let truth = attempt.held.as_ref().and_then(|held| held[chunk].clone());
            let values = truth.as_ref().map(|(_, values)| values.clone());
            truths.push(truth);
            for block in 0..CHUNK_BLOCKS {
                let monitor = &mut self.monitors[chunk][block as usize];
                let Some(values) = &values else {
                    monitor.abandon(SNAPSHOT);
                    continue;
                };
                let value = values[block as usize];
                let before = monitor.describe();
                if !monitor.respond(SNAPSHOT, End::Saw(value)) {
                    self.fail(format!(
                        "snapshot {:?} has {value} in block {block} of chunk {chunk}, which it never was meanwhile; {before}",
                        attempt.snapshot
                    ));
                    return;
                }
                held.push((chunk, block, value));
            }
        }
        self.check_order(attempt.snapshot, &held, attempt.configs.len());
        self.snapshots().complete.insert(attempt.snapshot, truths);
    }

    /// If W2 was issued after W1 was acknowledged and the snapshot has W2, it has W1.
    fn check_order(&mut self, snapshot: SnapshotId, held: &[(usize, u32, u32)], chunks: usize) {
        let snapshots = self.snapshots();
        let writes = &snapshots.writes;
        let latest = held
            .iter()
            .filter_map(|(.., value)| Some((writes.get(value)?.at, *value)));
        let Some((latest, newest)) = latest.max() else {
            return;
        };
        // The volume may have had more chunks, of which the snapshot has nothing.
        let beyond = writes.iter().filter(|(_, write)| {
            let is_there = write.at > snapshots.lost_at[write.chunk];
            write.chunk >= chunks && is_there
        });
        let beyond = beyond.filter_map(|(other, write)| {
            Some((write.acknowledged?, *other, write.chunk, write.range.start, 0))
        });
        let mut missing = beyond.min();
        for &(chunk, block, value) in held {
            // Written again after it was acknowledged, the block had this value no more.
            let Some(acknowledged) = writes.get(&value).map_or(Some(0), |write| write.acknowledged) else {
                continue;
            };
            let covers = |range: BlockRange| (range.start..range.start + range.count).contains(&block);
            let behind = writes.iter().filter(|(_, write)| {
                let known = write.at > acknowledged && write.at > snapshots.lost_at[chunk];
                write.chunk == chunk && covers(write.range) && known
            });
            let behind =
                behind.filter_map(|(other, write)| Some((write.acknowledged?, *other, chunk, block, value)));
            missing = missing.into_iter().chain(behind).min();
        }
        if let Some((at, other, chunk, block, value)) = missing
            && at < latest
        {
            self.fail(format!(
                "snapshot {snapshot:?} has the write of {newest}, issued at {} us, but in block {block} of chunk {chunk} {value} and not {other}, acknowledged at {} us",
                latest / US,
                at / US
            ));
        }
    }
}
