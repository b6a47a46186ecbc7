//! Blocks of snapshots that disks have harmed, and how they get their bytes back, as nodes' engines do it (`docs/decisions/0094`,
//! `0131`): who reads such a block, or compares it, has it fetched from any other node that has it right, and written where it lies, for
//! all that show it. Only in worlds whose disks harm blocks, and whose volumes have snapshots or begin as a clone, which shows one.
//!
//! All the time snapshots are read, on any node that has them: whatever happens, nobody gets a byte that is not theirs. Live copies are
//! compared, too, by the reads of the scrub, so that at rest everything has come right.
//!
//! They draw from a generator of their own, so that worlds without them stay what they were.

use std::collections::BTreeSet;

use foundation::Random;

use super::cloned;
use super::keep::Part;
use super::kinds::Kinds;
use super::layers::Layer;
use super::world::{CHUNK_BLOCKS, Event, HARM, MS, US, World, chunk_id};
use crate::identity::{BlockRange, HostId, RequestId, Session, SnapshotId, TraceId, WriterToken};
use crate::output::{Operation, Request};
use crate::planted::Bug;

/// What a volume that begins as a clone was made of: a snapshot of another volume, which every node has that has the clone's first copy.
pub(super) const BASE: SnapshotId = SnapshotId(0);

/// How many copies of snapshots a node compares, and how many are read there, at a time.
const COMPARED: u32 = 3;
const READ: u32 = 2;

#[derive(Debug)]
pub(super) struct Mends {
    pub(super) random: Random,
    /// Reads by which nodes compare their live copies: node, life and request.
    scrubs: BTreeSet<(usize, u64, RequestId)>,
    /// Blocks (chunk, block) of which write nodes have said that no copy has them right.
    pub(super) lost: BTreeSet<(usize, u32)>,
    /// Blocks that were written where they did not fit.
    pub(super) mended: u64,
    /// Blocks of snapshots that were read and were theirs, and reads that met one that is not.
    pub(super) read: u64,
    pub(super) refused: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum MendEvent {
    Step,
    /// A reader has what the disk has of a snapshot, from `first` on; in some blocks what it had when the read began.
    Read {
        part: Part,
        first: u32,
        early: Vec<Option<u32>>,
    },
    /// Give me what your copy has.
    Fetch {
        from: usize,
        life: u64,
        part: Part,
        block: u32,
    },
    Fetched {
        part: Part,
        block: u32,
        value: u32,
    },
    /// It is on the disk.
    Written {
        part: Part,
        block: u32,
        value: u32,
    },
}

impl World {
    /// A write node has said that no copy has a block of its chunk right: a snapshot may lack it.
    pub(super) fn note_lost(&mut self, chunk: usize, range: BlockRange) {
        if let Some(mends) = &mut self.mends {
            let blocks = (range.start..).take(range.count as usize);
            mends.lost.extend(blocks.map(|block| (chunk, block)));
        }
    }
}

impl Mends {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed ^ 0x3e4d_u64 << 32),
            scrubs: BTreeSet::new(),
            lost: BTreeSet::new(),
            mended: 0,
            read: 0,
            refused: 0,
        }
    }

    /// How long something between two nodes takes; none if it is lost.
    fn delay(&mut self) -> Option<u64> {
        let usual = self.random.between(50 * US, 2 * MS);
        match self.random.below(150) {
            0 => None,
            1..=25 => Some(usual + self.random.below(300 * MS)),
            _ => Some(usual),
        }
    }
}

impl World {
    /// One whose disks harm blocks, also those of snapshots; in some its volume begins as a clone, or copies move.
    pub(super) fn with_harmed_snapshots(seed: u64) -> Self {
        let kinds = Kinds {
            snapshots: true,
            keeps: seed % 2 == 1,
            cloned: seed % 4 > 1,
            ..Kinds::default()
        };
        Self::make(seed, None, Some(HARM), kinds)
    }

    /// A life of a node begins.
    pub(super) fn begin_to_mend(&mut self, node: usize) {
        if self.mends.is_some() {
            self.mend_after(MS, node, MendEvent::Step);
        }
    }

    fn mends(&mut self) -> &mut Mends {
        self.mends
            .as_mut()
            .expect("only worlds with mends have their events")
    }

    fn mend_after(&mut self, delay: u64, node: usize, event: MendEvent) {
        let life = self.nodes[node].life;
        self.at(delay, Event::Mend { node, life, event });
    }

    fn say_mend(&mut self, from: usize, to: (usize, u64), event: MendEvent) {
        if self.blocked[from][to.0] > self.now {
            return;
        }
        if let Some(delay) = self.mends().delay() {
            let (node, life) = to;
            self.at(delay, Event::Mend { node, life, event });
        }
    }

    /// What a chunk's part in a snapshot is that is to be kept.
    fn truth_of(&self, (chunk, snapshot): Part) -> Option<Vec<u32>> {
        if snapshot == BASE {
            return self.shape.cloned.then(|| cloned::values(chunk));
        }
        let truths = self.snapshots.as_ref()?.complete.get(&snapshot)?;
        let (_, values) = truths.get(chunk)?.as_ref()?;
        Some(values.clone())
    }

    /// What a node has of snapshots that are to be kept.
    pub(super) fn parts_on(&self, node: usize) -> Vec<Part> {
        let sim = &self.nodes[node];
        let of_copies = sim.disks.iter().flat_map(|(chunk, disk)| {
            let layers = disk.layers.keys();
            layers.map(|snapshot| (*chunk, *snapshot))
        });
        let mut all: Vec<Part> = of_copies.chain(sim.kept.layers.keys().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|part| self.truth_of(*part).is_some());
        all
    }

    pub(super) fn mend(&mut self, node: usize, life: u64, event: MendEvent) {
        match event {
            MendEvent::Step => self.mend_step(node),
            MendEvent::Read { part, first, early } => self.snapshot_is_read(node, part, first, &early),
            MendEvent::Fetch {
                from,
                life: to_life,
                part,
                block,
            } => {
                if let Some(value) = self.block_for_others(node, part, block) {
                    let event = MendEvent::Fetched { part, block, value };
                    self.say_mend(node, (from, to_life), event);
                } else {
                    self.mend_part(node, part);
                }
            }
            MendEvent::Fetched { part, block, value } => {
                let Some(layer) = self.layer(node, part) else {
                    return;
                };
                if !layer.fits(block, value) {
                    return self.fail(format!(
                        "node {node} has got {value} for block {block} of chunk {} in snapshot {:?}, which does not fit its sum there",
                        part.0, part.1
                    ));
                }
                let delay = self.mends().random.between(MS, 80 * MS);
                let event = MendEvent::Written { part, block, value };
                self.at(delay, Event::Mend { node, life, event });
            }
            MendEvent::Written { part, block, value } => {
                let Some(layer) = self.layer(node, part) else {
                    return;
                };
                layer.put(block, value);
                // It is read again before it counts.
                if !layer.fits(block, value) {
                    return self.fail(format!(
                        "node {node} has mended block {block} of chunk {} in snapshot {:?} with {value}, which does not fit its sum",
                        part.0, part.1
                    ));
                }
                self.mends().mended += 1;
            }
        }
    }

    /// What a copy of a snapshot has in a block, if it fits; else none.
    fn block_for_others(&mut self, node: usize, part: Part, block: u32) -> Option<u32> {
        let one = BlockRange {
            start: block,
            count: 1,
        };
        let disk = self.nodes[node].disks.get_mut(&part.0);
        if self.planted.is(Bug::MendedFromLive)
            && let Some(disk) = disk
        {
            let values = disk.current(one);
            return disk.wrong(block, &values).is_empty().then(|| values[0]);
        }
        let layer = self.layer(node, part)?;
        let value = layer.value(block);
        layer.fits(block, value).then_some(value)
    }

    fn mend_step(&mut self, node: usize) {
        let delay = self.mends().random.between(20 * MS, 100 * MS);
        self.mend_after(delay, node, MendEvent::Step);
        self.scrub_live(node);
        let parts = self.parts_on(node);
        if parts.is_empty() {
            return;
        }
        for at in 0..COMPARED + READ {
            let part = parts[self.mends().random.below(parts.len() as u64) as usize];
            match at < COMPARED {
                true => self.mend_part(node, part),
                false => self.read_snapshot(node, part),
            }
        }
    }

    /// Compares a copy of a snapshot with its sums, and asks another node for what is wrong.
    fn mend_part(&mut self, node: usize, part: Part) {
        let wrong = self.layer(node, part).map(Layer::wrong).unwrap_or_default();
        for block in wrong {
            let others = self.shape.nodes as u64 - 1;
            let to = self.mends().random.below(others) as usize;
            let to = to + usize::from(to >= node);
            let (from, life) = (node, self.nodes[node].life);
            let fetch = MendEvent::Fetch {
                from,
                life,
                part,
                block,
            };
            self.say_mend(node, (to, self.nodes[to].life), fetch);
        }
    }

    fn read_snapshot(&mut self, node: usize, part: Part) {
        let Some(values) = self.layer(node, part).map(Layer::values) else {
            return;
        };
        let random = &mut self.mends().random;
        let first = random.below(CHUNK_BLOCKS.into()) as u32;
        let count = random.between(1, u64::from(CHUNK_BLOCKS - first)) as usize;
        let early = values.into_iter().skip(first as usize).take(count);
        let early = early.map(|value| random.chance(1, 2).then_some(value)).collect();
        let delay = random.between(30 * US, 30 * MS);
        self.mend_after(delay, node, MendEvent::Read { part, first, early });
    }

    fn snapshot_is_read(&mut self, node: usize, part: Part, first: u32, early: &[Option<u32>]) {
        let Some(layer) = self.layer(node, part) else {
            return;
        };
        let blocks = || (first..).zip(early);
        let values: Vec<u32> = blocks()
            .map(|(block, early)| early.unwrap_or_else(|| layer.value(block)))
            .collect();
        let fits = (first..)
            .zip(&values)
            .all(|(block, value)| layer.fits(block, *value));
        if !fits && !self.planted.is(Bug::SnapshotSumsIgnored) {
            self.mends().refused += 1;
            return self.mend_part(node, part);
        }
        let Some(truth) = self.truth_of(part) else { return };
        let theirs = &truth[first as usize..first as usize + values.len()];
        if values != theirs {
            return self.fail(format!(
                "who reads snapshot {:?} of chunk {} on node {node} from block {first} on gets {values:?} and not {theirs:?}",
                part.1, part.0
            ));
        }
        self.mends().read += values.len() as u64;
    }

    /// A node reads a block or two of a live copy, as for nobody: its core sees to what does not fit.
    fn scrub_live(&mut self, node: usize) {
        let chunks: Vec<usize> = self.nodes[node].disks.keys().copied().collect();
        if chunks.is_empty() {
            return;
        }
        let random = &mut self.mends().random;
        let chunk = chunks[random.below(chunks.len() as u64) as usize];
        let start = random.below(CHUNK_BLOCKS.into()) as u32;
        let range = BlockRange { start, count: 1 };
        let core = self.nodes[node].core.as_ref();
        let Some(config) = core.and_then(|core| core.member(chunk_id(chunk))?.config()) else {
            return;
        };
        let epoch = config.epoch;
        let id = self.nodes[node].new_request();
        let life = self.nodes[node].life;
        self.mends().scrubs.insert((node, life, id));
        let request = Request {
            id,
            operation: Operation::Read,
            range,
            epoch,
            session: Session {
                host: HostId(1001),
                number: 0,
            },
            writer_token: WriterToken(0),
            needs_room: false,
            trace: TraceId(0),
        };
        self.core(node, None, |core, now| {
            core.handle_command(now, chunk_id(chunk), request);
        });
    }

    /// A node has completed a request. False if it was none by which it compares what it has.
    pub(super) fn scrubbed(&mut self, node: usize, request: RequestId) -> bool {
        let life = self.nodes[node].life;
        let mends = self.mends.as_mut();
        mends.is_some_and(|mends| mends.scrubs.remove(&(node, life, request)))
    }

    /// All copies of snapshots that are to be kept, and not on nodes that were removed.
    fn parts_that_count(&self) -> Vec<(usize, Part)> {
        let nodes = (0..self.shape.nodes).filter(|node| self.mends.is_some() && !self.is_removed(*node));
        nodes
            .flat_map(|node| self.parts_on(node).into_iter().map(move |part| (node, part)))
            .collect()
    }

    /// Whether everything that disks have harmed has come right, of snapshots and of live copies.
    pub(super) fn all_is_mended(&mut self) -> bool {
        if self.mends.is_none() {
            return true;
        }
        let snapshots = self.parts_that_count().into_iter();
        let mut layers = snapshots.filter_map(|(node, part)| self.layer(node, part));
        if layers.any(|layer| !layer.wrong().is_empty()) {
            return false;
        }
        let members = (0..self.shape.chunks).flat_map(|chunk| {
            let members = self.members_of(chunk).into_iter();
            members.map(move |node| (node, chunk))
        });
        let members: Vec<(usize, usize)> = members.collect();
        let mut members = members.into_iter();
        members.all(|(node, chunk)| self.disk(node, chunk).damage().is_empty())
    }

    /// When all is quiet: every copy of a snapshot has what the snapshot is.
    pub(super) fn check_snapshots_equal(&mut self) {
        for (node, part) in self.parts_that_count() {
            let values = self.layer(node, part).map(Layer::values);
            let truth = self.truth_of(part);
            if values != truth {
                let (chunk, snapshot) = part;
                self.fail(format!(
                    "node {node} has {values:?} of snapshot {snapshot:?} of chunk {chunk} at rest, which is {truth:?}"
                ));
            }
        }
    }
}
