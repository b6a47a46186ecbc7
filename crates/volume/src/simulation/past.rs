//! Clients on a node's machine that read its disk past it (decision 0059), at any time: also while the process stands
//! still, when it has died, and while writes are under way.
//!
//! What they look at is as in the real node: for each chunk a version and a time, written when the core says that something
//! has happened and before any of its outputs is carried out; and whether the process lives.

use std::collections::BTreeMap;

use foundation::Instant;

use super::world::{Event, MS, SECOND, US, World, chunk_id};
use crate::identity::BlockRange;
use crate::output::Status;
use crate::planted::Bug;

/// How often a node moves on the time until which it may be read.
const INTERVAL: u64 = 500 * MS;

/// A chunk's words.
#[derive(Clone, Copy, Debug)]
struct Slot {
    version: u64,
    until: Instant,
}

/// What one life of a node's process shows.
#[derive(Debug, Default)]
pub(super) struct Board {
    slots: BTreeMap<usize, Slot>,
}

/// A read that is with the disk.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct PastRead {
    node: usize,
    life: u64,
    client: usize,
    attempt: u64,
    chunk: usize,
    range: BlockRange,
    version: u64,
    /// Blocks that the disk looked at early.
    early: Vec<Option<u32>>,
}

impl World {
    /// A node's process has begun.
    pub(super) fn show_new_board(&mut self, node: usize) {
        let chunks = 0..self.shape.chunks;
        let sim = &mut self.nodes[node];
        sim.board = Board::default();
        for chunk in chunks {
            if let Some(core) = &mut sim.core {
                core.watch(chunk_id(chunk), true);
            }
        }
        let life = sim.life;
        self.at(0, Event::ShowBoard { node, life });
    }

    pub(super) fn show_board(&mut self, node: usize) {
        let life = self.nodes[node].life;
        for chunk in 0..self.shape.chunks {
            self.show(node, chunk);
        }
        self.at(INTERVAL, Event::ShowBoard { node, life });
    }

    /// After an event, before its outputs.
    pub(super) fn show_stirred(&mut self, node: usize) {
        while let Some(chunk) = self.nodes[node]
            .core
            .as_mut()
            .and_then(|core| core.poll_stirred())
        {
            self.show(node, chunk.index.0 as usize);
        }
    }

    fn show(&mut self, node: usize, chunk: usize) {
        let clock = self.nodes[node].clock(self.now);
        let sim = &mut self.nodes[node];
        let right = sim
            .core
            .as_ref()
            .and_then(|core| core.read_right(clock, chunk_id(chunk)));
        let slot = sim.board.slots.entry(chunk).or_insert(Slot {
            version: 1,
            until: Instant::default(),
        });
        if right.is_some() != slot.version.is_multiple_of(2) {
            slot.version += 1;
        }
        if let Some(until) = right {
            slot.until = until;
        }
    }

    /// The version of a chunk that may be read past a node now.
    fn readable(&self, node: usize, life: u64, chunk: usize) -> Option<u64> {
        let sim = &self.nodes[node];
        let slot = sim.board.slots.get(&chunk)?;
        let lives = self.alive(node, life) || self.planted.is(Bug::PastReadOfTheDead);
        (lives && slot.version.is_multiple_of(2) && sim.clock(self.now) < slot.until).then_some(slot.version)
    }

    /// Begins a client's read past a node.
    pub(super) fn read_past(
        &mut self,
        node: usize,
        client: usize,
        attempt: u64,
        chunk: usize,
        range: BlockRange,
    ) {
        let life = self.nodes[node].life;
        let Some(version) = self.readable(node, life, chunk) else {
            return self.not_read(client, attempt);
        };
        let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
            return self.not_read(client, attempt);
        };
        if !self.planted.is(Bug::PastReadSumsNotDurable) && !disk.locate() {
            return self.not_read(client, attempt);
        }
        let values = disk.current(range);
        let early = values
            .into_iter()
            .map(|value| self.random.chance(1, 2).then_some(value));
        let read = PastRead {
            early: early.collect(),
            node,
            life,
            client,
            attempt,
            chunk,
            range,
            version,
        };
        let delay = match self.random.below(4) {
            0 => self.random.below(4 * SECOND),
            1 => self.random.below(30 * MS),
            _ => self.random.between(30 * US, 2 * MS),
        };
        self.at(delay, Event::PastEnd { read });
    }

    pub(super) fn end_past(&mut self, read: &PastRead) {
        let PastRead {
            node,
            client,
            attempt,
            chunk,
            ..
        } = *read;
        let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
            return self.not_read(client, attempt);
        };
        let current = disk.current(read.range);
        let values = read
            .early
            .iter()
            .zip(current)
            .map(|(early, late)| early.unwrap_or(late));
        let values: Vec<u32> = values.collect();
        // A client knows the sums that are on the disk, and makes none known.
        let fits = disk.fits_durable(read.range.start, &values);
        if !fits && !self.planted.is(Bug::PastReadSumsIgnored) {
            return self.not_read(client, attempt);
        }
        let unchanged = self.readable(node, read.life, chunk) == Some(read.version);
        if unchanged || self.planted.is(Bug::PastReadNotChecked) {
            self.past_reads += 1;
            self.read_at(node, chunk);
            self.client_answer(client, attempt, Status::Done, &values);
        } else {
            self.not_read(client, attempt);
        }
    }

    /// The client asks as all others do.
    fn not_read(&mut self, client: usize, attempt: u64) {
        let status = Status::NotReady;
        self.at(
            10 * US,
            Event::Answer {
                client,
                attempt,
                status,
                values: Vec::new(),
            },
        );
    }
}
