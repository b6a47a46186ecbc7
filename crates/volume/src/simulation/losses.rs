//! Blocks that no copy has right: whoever reads one gets an error until somebody writes it, and nobody ever gets what lies there. Copies that
//! are made or come back meanwhile are let in all the same, and have it wrong, too (`docs/decisions/0132`).
//!
//! In half of the worlds all copies say at once that a block is lost, as they do when they were made while it was: then any number of
//! nodes may die, or all, and it stays lost. In the others it changes on all of them by itself. Then one node at a time dies: what has changed in a
//! region that is marked everywhere when all end is taken for right, as the specification says.

use std::collections::BTreeMap;

use foundation::Random;

use super::clients::Client;
use super::disk::LOST;
use super::events::Event;
use super::injected::Injected;
use super::kinds::Kinds;
use super::linear::Op;
use super::world::{CHUNK_BLOCKS, HARM, MS, Payload, REBUILD, SECOND, World};
use crate::identity::BlockRange;
use crate::message::Message;
use crate::output::Status;
use crate::planted::Bug;

#[derive(Debug)]
pub(super) struct Losses {
    random: Random,
    /// By chunk and block: when it was lost, and since when it has been written everywhere, if it has.
    blocks: BTreeMap<(usize, u32), (u64, Option<u64>)>,
    /// Blocks that were lost, reads that met one, copies that were told of one, and writes that ended it.
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) told: u64,
    pub(super) written: u64,
}

impl Losses {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed ^ 0x6c6f_7374),
            blocks: BTreeMap::new(),
            lost: 0,
            refused: 0,
            told: 0,
            written: 0,
        }
    }
}

impl World {
    /// One in which blocks are lost; see the module.
    pub(super) fn with_lost_blocks(seed: u64) -> Self {
        let kinds = Kinds {
            loses: true,
            ..Kinds::default()
        };
        let scenario = if seed.is_multiple_of(2) { REBUILD } else { HARM };
        Self::make(seed, None, Some(scenario), kinds)
    }

    pub(super) fn begin_to_lose(&mut self) {
        if self.losses.is_some() && self.shape.scenario != HARM {
            self.at(SECOND, Event::Lose);
        }
    }

    /// Every copy says from now on that a block is lost, and so on.
    pub(super) fn lose(&mut self) {
        if self.healing {
            return;
        }
        let chunks = self.shape.chunks as u64;
        let Some(losses) = &mut self.losses else { return };
        let chunk = losses.random.below(chunks) as usize;
        let block = losses.random.below(CHUNK_BLOCKS.into()) as u32;
        let next = losses.random.between(100 * MS, 2 * SECOND);
        self.at(next, Event::Lose);
        if !self.is_written_now(chunk) {
            self.inject(Injected::Lose {
                chunk,
                block,
                changes: false,
                only: None,
            });
        }
    }

    /// Where disks harm: a block changes on one copy or on all, or a node dies and comes back soon. Returns how long to wait.
    pub(super) fn harm_all(&mut self, node: usize) -> u64 {
        let chunk = self.random.below(self.shape.chunks as u64) as usize;
        let (block, dies) = (
            self.random.below(CHUNK_BLOCKS.into()) as u32,
            self.random.chance(1, 3),
        );
        let only = self.random.chance(1, 2).then_some(node);
        if dies {
            let power = self.random.chance(1, 2);
            self.crash(node, power, true);
            return 2 * SECOND;
        }
        let members = self.members_of(chunk).into_iter();
        let changed: Vec<usize> = members
            .filter(|node| only.is_none_or(|only| only == *node))
            .collect();
        let right = |world: &mut Self, node: usize| {
            // One that masters have just placed anew may be on its way.
            let Some(disk) = world.nodes[node].disks.get_mut(&chunk) else {
                return false;
            };
            let range = BlockRange {
                start: block,
                count: 1,
            };
            let value = disk.current(range);
            value != [LOST] && disk.wrong(block, &value).is_empty()
        };
        if !self.is_written_now(chunk) && changed.into_iter().all(|node| right(self, node)) {
            self.inject(Injected::Lose {
                chunk,
                block,
                changes: true,
                only,
            });
        }
        self.random.between(5 * MS, 500 * MS)
    }

    fn is_written_now(&self, chunk: usize) -> bool {
        let members = self.members_of(chunk).into_iter();
        let mut disks = members.filter_map(|node| self.nodes[node].disks.get(&chunk));
        disks.any(super::disk::Disk::is_writing)
    }

    /// No copy has a block right any more, or one has it wrong, and others may die.
    pub(super) fn is_lost(&mut self, chunk: usize, block: u32, changes: bool, only: Option<usize>) {
        let members = self.members_of(chunk).into_iter();
        for node in members.filter(|node| only.is_none_or(|only| only == *node)) {
            let Some(disk) = self.nodes[node].disks.get_mut(&chunk) else {
                continue;
            };
            match changes {
                true => disk.rot(block),
                false => disk.lose(block),
            }
        }
        if let Some(losses) = &mut self.losses {
            losses.lost += 1;
            losses.blocks.insert((chunk, block), (self.now, None));
        }
    }

    /// A copy that joins is told of some.
    pub(super) fn is_told_of_lost(&mut self) {
        if let Some(losses) = &mut self.losses {
            losses.told += 1;
        }
    }

    /// A write of these blocks was acknowledged that had begun then: after a block was lost, or it may have been lost with it.
    pub(super) fn lost_are_written(&mut self, chunk: usize, range: BlockRange, began: u64) {
        let now = self.now;
        let Some(losses) = &mut self.losses else { return };
        let blocks = losses.blocks.range_mut(of(chunk, range));
        for (_, (_, written)) in blocks.filter(|(_, (lost, _))| *lost <= began) {
            losses.written += u64::from(written.is_none());
            written.get_or_insert(now);
        }
    }

    /// All members of a chunk have ended: what was written and not flushed may be gone.
    pub(super) fn lost_again(&mut self, chunk: usize) {
        let Some(losses) = &mut self.losses else { return };
        let whole = BlockRange {
            start: 0,
            count: CHUNK_BLOCKS,
        };
        let blocks = losses.blocks.range_mut(of(chunk, whole));
        blocks.for_each(|(_, (_, written))| *written = None);
    }

    /// What a copy that is no member has of a block counts only if the checksums here say that it is right.
    pub(super) fn vouched_for(
        &mut self,
        at: usize,
        mut message: Message,
        payload: Payload,
    ) -> (Message, Payload) {
        let Message::FetchAnswer {
            chunk,
            range,
            any: true,
            ref mut found,
            ..
        } = message
        else {
            return (message, payload);
        };
        let disk = self.nodes[at].disks.get_mut(&(chunk.index.0 as usize));
        let (Some(values), Some(disk)) = (&payload, disk) else {
            return (message, payload);
        };
        if self.planted.is(Bug::JoinerBelieved) || disk.vouches(range.start, values[0]) {
            return (message, payload);
        }
        *found = false;
        (message, None)
    }

    /// Whether a client's read may have ended with an error because of a block that is lost: then it asks no more.
    pub(super) fn met_lost(&mut self, client: usize, status: Status) -> bool {
        let Some(pending) = &self.clients[client].pending else {
            return false;
        };
        let (chunk, range) = (pending.chunk, pending.range);
        let says_so = match pending.op {
            Op::Read => status == Status::DeviceFailed,
            _ => status == Status::Lost,
        };
        let began = pending.began;
        let Some(losses) = &mut self.losses else {
            return false;
        };
        let mut blocks = losses.blocks.range(of(chunk, range));
        let was_lost = blocks.any(|(_, (_, written))| written.is_none_or(|at| at >= began));
        if !says_so || !was_lost {
            return false;
        }
        losses.refused += 1;
        let state: &mut Client = &mut self.clients[client];
        state.pending = None;
        state.attempt += 1;
        for block in range.start..range.start + range.count {
            self.monitors[chunk][block as usize].abandon(client);
        }
        let delay = self.random.between(MS, 30 * MS);
        self.at(delay, Event::ClientStep { client });
        true
    }
}

fn of(chunk: usize, range: BlockRange) -> std::ops::Range<(usize, u32)> {
    (chunk, range.start)..(chunk, range.start + range.count)
}
