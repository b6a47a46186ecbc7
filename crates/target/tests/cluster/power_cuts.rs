//! The power is cut at each write and sync of a node's disk, from the first copy on: of that node alone, or of all nodes at once. Started
//! again with what its disk has, it takes part as before. What was acknowledged is there after the loss of one node, what was flushed or
//! forced after the loss of all; no block has what nobody wrote; in the end the copies are equal, and new writes are served.
//!
//! One story is told again and again: copies are made; regions are written for the first time, written over, forced, flushed, zeroed and
//! deallocated; a snapshot is made and its blocks are written over; marks are cleared when nothing happens; a copy is away,
//! comes back and gets what it missed while others write.
//!
//! A seed tries one cut in [`STRIDE`] of its story: `REDHARE_SEEDS=N` with a multiple of `STRIDE` tries every cut of N / `STRIDE` stories.

mod known;
mod writers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use agentlink::Chunk;
use bdev::Data;
use foundation::ByteCount;
use reactor::sim::{Host, Simulation};
use reactor::time;
use target::node::{DiskConfig, Identity, Node, from_chunk};
use volume::message::codec::NativeOperation;
use volume::{ClusterId, Geometry, Incarnation, NodeId, Settings, Status};

use known::{BLOCK, Known, LENGTH, REGION, Snapshot, WRITERS, all_places, bytes_of, words};
use writers::{Part, Writer, act, room};

use crate::masters::{Follower, Map, Masters, SLICE};
use crate::support::{Client, Cluster, DISK, VOLUME, geometry};

const STRIDE: u64 = 64;
/// No part of a story takes longer.
const LIMIT: Duration = Duration::from_secs(60);
/// After so much of its time without a write the volume flushes by itself, and clears the marks.
const IDLE: Duration = Duration::from_secs(7);

fn shape() -> Geometry {
    Geometry {
        region_blocks: REGION as u32,
        ..geometry()
    }
}

/// Where the power is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    victim: usize,
    /// All nodes lose it.
    is_common: bool,
    /// At this write or sync of the victim's disk.
    at: u64,
}

impl Cut {
    /// Whether the writers end with it, so that nobody asks again for what was under way. If all lose their power, they do: nobody
    /// could tell what they write later from what was there.
    fn ends_writers(self) -> bool {
        self.is_common || self.at.is_multiple_of(2)
    }
}

struct Story<'a> {
    cluster: &'a Cluster,
    masters: Masters<'a>,
    map: Rc<RefCell<Map>>,
    known: Rc<Known>,
    cut: Option<Cut>,
    /// Copies were made everywhere, and the masters have begun to tell of them.
    is_begun: bool,
    /// Hosts of the writers of this part.
    writers: Vec<Host>,
    next_number: u64,
}

/// Tells the story with its seed. Gives the operations of each disk when its node had started, and in the end; the power has to be
/// cut if it shall.
fn tell(seed: u64, cut: Option<Cut>) -> [(u64, u64); 3] {
    let cluster = Cluster::new(seed);
    cluster.simulation.run_for(Duration::from_secs(2));
    let disk = |node: usize| cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    let first = [0, 1, 2].map(|node| disk(node).operations());
    if let Some(cut) = cut {
        disk(cut.victim).cut_power_at(cut.at);
        if cut.is_common {
            cluster.simulation.share_power(&cluster.hosts);
        }
    }
    let map = Map::first(&cluster);
    let mut story = Story {
        cluster: &cluster,
        masters: Masters::new(&cluster, &map),
        map,
        known: Known::new(),
        cut,
        is_begun: false,
        writers: Vec::new(),
        next_number: 1,
    };
    let is_cut = story.is_told_until_the_cut(seed.is_multiple_of(2));
    let last = [0, 1, 2].map(|node| disk(node).operations());
    assert_eq!(is_cut, cut.is_some(), "the power is cut");
    if let Some(cut) = cut {
        story.recover(cut);
    }
    story.compare();
    if cut.is_none_or(|cut| cut.at.is_multiple_of(4)) {
        story.lose_all_once_more();
    }
    [0, 1, 2].map(|node| (first[node], last[node]))
}

impl Story<'_> {
    /// True as soon as the power is cut, false in the end.
    fn is_told_until_the_cut(&mut self, loses_power: bool) -> bool {
        if self.is_cut_while_copies_are_made() {
            return true;
        }
        for part in [Part::First, Part::Snapshot, Part::AfterIdle] {
            if self.is_cut_in(part) {
                return true;
            }
            if part == Part::Snapshot && self.is_cut_while(IDLE) {
                return true;
            }
        }
        let (simulation, host) = (&self.cluster.simulation, self.cluster.hosts[2]);
        match loses_power {
            true => simulation.power_off(host),
            false => simulation.stop(host),
        }
        self.cluster.forget(2);
        if self.is_cut_in(Part::WithoutOne) {
            return true;
        }
        self.cluster.start(2);
        self.is_cut_in(Part::ItReturns)
            || self.goes_on_until(|story| story.masters.has_all())
            || self.is_cut_in(Part::ItIsBack)
            || self.is_cut_while(IDLE)
    }

    /// The masters ask for copies, and again after a loss of power; those that are there stay.
    fn is_cut_while_copies_are_made(&mut self) -> bool {
        let made = Rc::new(Cell::new(0));
        for (index, host) in self.cluster.hosts.iter().enumerate() {
            let (node, made) = (self.cluster.node(index), made.clone());
            self.cluster.simulation.start(*host, move || async move {
                let asked = node.create_copy(chunk(), shape(), (DISK + index as u128, true));
                asked.await.expect("a copy can be made");
                made.set(made.get() + 1);
            });
        }
        if self.goes_on_until(|_| made.get() == 3) {
            return true;
        }
        let first = Map::first(self.cluster).borrow().clone();
        *self.map.borrow_mut() = first;
        self.is_begun = true;
        false
    }

    fn is_cut(&self) -> bool {
        self.cut.is_some_and(|cut| {
            let host = self.cluster.hosts[cut.victim];
            self.cluster
                .simulation
                .disk(host, Path::new("/disk"))
                .operations()
                >= cut.at
        })
    }

    /// Lets time pass until this is so; true if the power was cut before.
    fn goes_on_until(&mut self, is_over: impl Fn(&Self) -> bool) -> bool {
        let mut waited = Duration::ZERO;
        while !is_over(self) {
            if self.is_cut() {
                return true;
            }
            self.pass(SLICE);
            waited += SLICE;
            assert!(
                waited < LIMIT,
                "it does not go on: {:?}, {} of {} writers have ended",
                self.map.borrow(),
                self.known.ended.get(),
                self.writers.len()
            );
        }
        self.is_cut()
    }

    fn pass(&mut self, time: Duration) {
        match self.is_begun {
            true => self.masters.pass(time),
            false => self.cluster.simulation.run_for(time),
        }
    }

    fn is_cut_while(&mut self, time: Duration) -> bool {
        self.pass(time);
        self.is_cut()
    }

    fn is_cut_in(&mut self, part: Part) -> bool {
        self.begin(part);
        self.goes_on_until(|story| story.known.ended.get() == WRITERS.len())
    }

    fn begin(&mut self, part: Part) {
        self.known.ended.set(0);
        self.writers.clear();
        for base in WRITERS {
            let writer = Writer {
                follower: Follower::new(self.next_number, self.cluster.hosts.clone()),
                map: self.map.clone(),
                known: self.known.clone(),
                base,
            };
            self.next_number += 1;
            let host = self.cluster.simulation.add_host("writer");
            self.writers.push(host);
            self.cluster.simulation.start(host, move || act(part, writer));
        }
    }

    /// The power comes back, soon or late, and the nodes are started.
    fn recover(&mut self, cut: Cut) {
        self.cut = None;
        if cut.ends_writers() {
            for host in self.writers.drain(..) {
                self.cluster.simulation.power_off(host);
            }
        }
        let is_off = |host: Host| !self.cluster.simulation.is_powered(host);
        for node in 0..3 {
            if is_off(self.cluster.hosts[node]) {
                self.cluster.forget(node);
            }
        }
        self.pass(match cut.at % 3 {
            0 => Duration::from_millis(4500),
            _ => Duration::from_millis(300),
        });
        self.start_all();
        if !self.is_begun {
            self.is_cut_while_copies_are_made();
        }
        let writers = self.writers.len();
        self.goes_on_until(|story| story.masters.has_all() && story.known.ended.get() >= writers);
        self.take_what_is_left(cut.is_common);
        self.is_cut_in(Part::ItIsBack);
    }

    /// Starts the nodes that are not there.
    fn start_all(&mut self) {
        for node in 0..3 {
            if self.cluster.node_if_started(node).is_none() {
                self.cluster.start(node);
            }
        }
        self.goes_on_until(|story| (0..3).all(|node| story.cluster.node_if_started(node).is_some()));
    }

    /// Does something as a client.
    fn on_client<F: Future<Output = ()> + 'static>(&mut self, make: impl FnOnce(Follower) -> F) {
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        let work = make(Follower::new(self.next_number, self.cluster.hosts.clone()));
        self.next_number += 1;
        let host = self.cluster.simulation.add_host("client");
        self.cluster.simulation.start(host, move || async move {
            work.await;
            flag.set(true);
        });
        self.goes_on_until(|_| done.get());
    }

    /// Every block of a place, from one node.
    fn read(&mut self, node: usize) -> BTreeMap<u64, Vec<u8>> {
        let found = Rc::new(RefCell::new(BTreeMap::new()));
        let (put, map) = (found.clone(), self.map.clone());
        self.on_client(|mut follower| async move {
            for place in all_places() {
                let bytes = loop {
                    let at = (node, map.borrow().epoch);
                    let data = Data::Into(room(LENGTH as usize * BLOCK));
                    let range = (place, LENGTH as u32);
                    match follower.attempt(at, NativeOperation::Read, range, data).await {
                        Some((data, _)) => break data.into_read(),
                        None => time::sleep(Duration::from_millis(15)).await,
                    }
                };
                for (lba, bytes) in (place..).zip(bytes.chunks_exact(BLOCK)) {
                    put.borrow_mut().insert(lba, bytes.to_vec());
                }
            }
        });
        found.take()
    }

    /// Each block has what it may have, the same on all nodes.
    fn take_what_is_left(&mut self, is_common: bool) {
        let all = [0, 1, 2].map(|node| self.read(node));
        for (lba, bytes) in &all[0] {
            let block = self.known.blocks.borrow()[lba].clone();
            assert!(
                block.may_hold(bytes, is_common),
                "block {lba} has {:?} after the loss of power; {block:?}",
                words(bytes)
            );
            for (node, other) in all.iter().enumerate() {
                assert!(
                    other[lba] == *bytes,
                    "block {lba} has {:?} at node 0, {:?} at node {node}",
                    words(bytes),
                    words(&other[lba])
                );
            }
        }
    }

    /// Every node has what was acknowledged last, and the snapshots.
    fn compare(&mut self) {
        for node in 0..3 {
            for (lba, bytes) in self.read(node) {
                let last = self.known.blocks.borrow()[&lba].last();
                assert!(
                    bytes == bytes_of(last),
                    "block {lba} of node {node} has {:?} in the end, not {last}",
                    words(&bytes)
                );
            }
        }
        let snapshots = self.known.snapshots.borrow().clone();
        for snapshot in snapshots {
            let having = (0..3).filter(|&node| self.has_snapshot(node, &snapshot)).count();
            assert!(
                having >= snapshot.copies,
                "{:?} had {} copies and has {having}",
                snapshot.id,
                snapshot.copies
            );
        }
    }

    /// Whether a node has a copy of a snapshot, which has to be right then.
    fn has_snapshot(&mut self, node: usize, snapshot: &Snapshot) -> bool {
        let (host, snapshot) = (self.cluster.hosts[node], snapshot.clone());
        let is_there = Rc::new(Cell::new(true));
        let flag = is_there.clone();
        self.on_client(|_| async move {
            let client = Client::connect(host, node, 1).await.expect("a node");
            let operation = NativeOperation::ReadSnapshot(snapshot.id);
            for (lba, value) in snapshot.content {
                let read = client.run(operation, 0, lba, 1, Data::Into(room(BLOCK)));
                match read.await {
                    (Status::Done, data) => {
                        let bytes = data.into_read().to_vec();
                        assert!(
                            bytes == bytes_of(value),
                            "block {lba} of {:?} at node {node} has {:?}, not {value}",
                            snapshot.id,
                            words(&bytes)
                        );
                    }
                    (Status::SnapshotAborted, _) => return flag.set(false),
                    (status, _) => panic!("block {lba} of {:?} at node {node}: {status:?}", snapshot.id),
                }
            }
        });
        is_there.get()
    }

    /// All has been flushed: a loss of all power takes nothing.
    fn lose_all_once_more(&mut self) {
        for node in 0..3 {
            self.cluster.simulation.power_off(self.cluster.hosts[node]);
            self.cluster.forget(node);
        }
        self.pass(Duration::from_millis(300));
        self.start_all();
        self.goes_on_until(|story| story.masters.has_all());
        self.compare();
    }
}

fn chunk() -> volume::ChunkId {
    from_chunk(Chunk {
        volume: VOLUME,
        index: 0,
    })
}

/// Tries one cut in [`STRIDE`], of each node and of all. Says how many these are, and which of them went wrong.
fn try_cuts(seed: u64) -> (u64, Vec<String>) {
    let (story, offset) = (seed / STRIDE, seed % STRIDE);
    let counted = tell(story, None);
    let (mut tried, mut failed) = (0, Vec::new());
    for (victim, (first, last)) in counted.into_iter().enumerate() {
        let count = last - first;
        assert!(count > 100, "node {victim} did only {count} operations");
        for is_common in [false, true] {
            // Not the same places for all.
            let skipped = (offset + 23 * victim as u64 + 11 * u64::from(is_common)) % STRIDE;
            for at in (first + 1 + skipped..=last).step_by(STRIDE as usize) {
                let cut = Cut {
                    victim,
                    is_common,
                    at,
                };
                tried += 1;
                // What it has said is above.
                if std::panic::catch_unwind(|| tell(story, Some(cut))).is_err() {
                    failed.push(format!("seed {seed}: {cut:?} of {first}..{last}"));
                }
            }
        }
    }
    (tried, failed)
}

#[test]
fn every_power_cut_leaves_what_was_promised() {
    let mut failed = Vec::new();
    for seed in foundation::seeds::from_environment(6) {
        let (tried, wrong) = try_cuts(seed);
        println!("seed {seed}: {tried} cuts, {} went wrong", wrong.len());
        failed.extend(wrong);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Its disk becomes one of ours, and gets a journal.
#[test]
fn a_first_start_that_is_cut_off_can_be_repeated() {
    let start = |simulation: &Simulation, host: Host| {
        let said = Rc::new(RefCell::new(None));
        let put = said.clone();
        simulation.start(host, move || async move {
            let disk = DiskConfig {
                path: PathBuf::from("/disk"),
                size: Some(ByteCount(32 << 20)),
                new_uuid: DISK,
                force: false,
                trust: Default::default(),
            };
            let identity = Identity {
                cluster: ClusterId(0xc1),
                node: NodeId(1),
                incarnation: Incarnation(1),
            };
            let started = Node::start(identity, &[disk], Settings::default()).await;
            *put.borrow_mut() = Some(started.map(drop));
        });
        simulation.run_for(Duration::from_secs(2));
        said.take()
    };
    for at in 1.. {
        let simulation = Simulation::new(at);
        let host = simulation.add_host("node");
        simulation.disk(host, Path::new("/disk")).cut_power_at(at);
        let is_cut = start(&simulation, host).is_none();
        simulation.disk(host, Path::new("/disk")).cut_power_at(u64::MAX);
        let again = start(&simulation, host).expect("the power stays on");
        again.unwrap_or_else(|error| panic!("cut at {at}: {error}"));
        if !is_cut {
            assert!(at > 10, "only {at} operations");
            return;
        }
    }
}
