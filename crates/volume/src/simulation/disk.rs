//! A simulated disk with one chunk copy: blocks hold a number each, writes that were not flushed
//! may be lost at a crash block by block, and changes of the record become durable in order.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use foundation::Random;

use super::layers::{Layer, Place, ROT};
use crate::identity::{BlockRange, ChunkId, IoToken, PersistToken, Sequence, SnapshotId, VolumeNumber};
use crate::record::{ChunkRecord, RecordDelta};
use crate::sums::{DurableSums, Found, PastVerdict, SUM_PAGE_BYTES, Sums, Verdict, readdress_sums};

/// What a block holds that no copy had right when it was written here.
pub(super) const LOST: u32 = 1 << 29;

/// What a block may hold after a crash: the durable value first, the newest last.
#[derive(Debug)]
struct Block {
    values: VecDeque<u32>,
    /// How many values were ever made durable over.
    base: u64,
    /// Where it lies, if a snapshot shows it, too, and nothing was written since: then what is there is its one value.
    shown: Option<Place>,
}

#[derive(Debug)]
pub(super) enum Work {
    Write {
        range: BlockRange,
        values: Vec<u32>,
        fua: bool,
        early: bool,
    },
    /// What was read, if it was sampled when the read began.
    Read {
        range: BlockRange,
        sampled: Option<Vec<u32>>,
        request: Option<u64>,
    },
    Flush {
        through: Vec<u64>,
    },
    /// A flush, and then the copy is kept as it is; `fails` for want of space.
    Snapshot {
        through: Vec<u64>,
        name: (SnapshotId, Sequence),
        fails: bool,
    },
}

/// What a disk does to the next block it is given.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Harm {
    /// It says that it has it, and does nothing.
    Lose,
    /// It puts it into this block instead.
    Misdirect(u32),
    /// It puts it where this snapshot's block lies.
    IntoSnapshot(SnapshotId, u32),
}

#[derive(Debug)]
pub(super) struct Disk {
    blocks: Vec<Block>,
    pub(super) record: ChunkRecord,
    /// Since when: writes, flushes and changes of the record fail, and do nothing.
    pub(super) broken: bool,
    /// It has no room for some writes, flushes and changes of the record.
    pub(super) is_full: bool,
    /// Something has failed for want of room, and its node has not been told that there is some again.
    pub(super) looks_for_room: bool,
    persists: VecDeque<(PersistToken, RecordDelta)>,
    pub(super) persist_busy_until: u64,
    work: BTreeMap<IoToken, Work>,
    pub(super) layers: BTreeMap<SnapshotId, Layer>,
    /// The sum of a block is what it holds.
    sums: Sums,
    /// Durable; all sums of a chunk lie in one page.
    sum_places: [Vec<u8>; 2],
    /// A planted bug: no flush writes sums.
    pub(super) forgets_sums: bool,
    /// Others: what says that it is lost is taken for right, always or where nothing is known of it.
    pub(super) believes_lost: bool,
    pub(super) adopts_lost: bool,
    pub(super) harm: Option<Harm>,
    /// It did more than fail: not all that it lacks can be blamed on us.
    pub(super) harmed: bool,
}

impl Disk {
    pub(super) fn new(record: ChunkRecord) -> Self {
        let block = || Block {
            values: [0].into(),
            base: 0,
            shown: None,
        };
        let blank = vec![0; SUM_PAGE_BYTES];
        Self {
            sums: blank_sums(&record),
            sum_places: [blank.clone(), blank],
            forgets_sums: false,
            believes_lost: false,
            adopts_lost: false,
            harm: None,
            harmed: false,
            blocks: (0..record.geometry.chunk_blocks).map(|_| block()).collect(),
            record,
            broken: false,
            is_full: false,
            looks_for_room: false,
            persists: VecDeque::new(),
            persist_busy_until: 0,
            work: BTreeMap::new(),
            layers: BTreeMap::new(),
        }
    }

    /// The first copy of a clone's chunk (`docs/decisions/0093`): durable, and its sums are those of another chunk, addressed to it.
    pub(super) fn of_clone(mut record: ChunkRecord, values: &[u32], forgets_regions: bool) -> Self {
        for (block, _) in (0..)
            .zip(values)
            .filter(|(_, value)| **value != 0 && !forgets_regions)
        {
            record.note_shown(block, 1);
        }
        let to = record.chunk;
        let from = ChunkId {
            volume: VolumeNumber(to.volume.0 + 1),
            ..to
        };
        let mut disk = Self::new(record);
        for (block, value) in disk.blocks.iter_mut().zip(values) {
            block.values = [*value].into();
        }
        let mut sums = Sums::new(from, disk.record.geometry.chunk_blocks, []);
        sums.read(0, disk.sum_places.each_ref().map(|place| &place[..]));
        sums.note(0, values.iter().copied());
        let (place, mut bytes) = sums.write(0).expect("it has been read, and something was noted");
        assert!(readdress_sums(&mut bytes, 0, from, to));
        disk.sum_places[usize::from(place)] = bytes;
        disk.sums = Sums::new(to, disk.record.geometry.chunk_blocks, []);
        disk.read_sums(0);
        disk
    }

    pub(super) fn current(&self, range: BlockRange) -> Vec<u32> {
        let blocks = &self.blocks[range.start as usize..range.end() as usize];
        blocks.iter().map(Block::newest).collect()
    }

    /// What each block may hold after the power has failed: the newest last.
    pub(super) fn held(&self) -> impl Iterator<Item = Vec<u32>> {
        self.blocks.iter().map(|block| match &block.shown {
            Some(place) => vec![place.get()],
            None => block.values.iter().copied().collect(),
        })
    }

    fn put(&mut self, range: BlockRange, values: &[u32]) {
        for (at, &value) in (range.start as usize..).zip(values) {
            let harm = self.harm.take();
            self.harmed |= harm.is_some();
            match harm {
                // It has a place of its own from now on, with what was there before.
                Some(Harm::Lose) => self.blocks[at].own(),
                Some(Harm::Misdirect(other)) => {
                    self.blocks[at].own();
                    let other = other as usize % self.blocks.len();
                    self.blocks[other].strike(value);
                }
                Some(Harm::IntoSnapshot(snapshot, block)) => {
                    self.blocks[at].own();
                    if let Some(layer) = self.layers.get(&snapshot) {
                        layer.put(block, value);
                    }
                }
                None => self.blocks[at].push(value),
            }
        }
    }

    /// A block changes by itself.
    pub(super) fn rot(&mut self, block: u32) {
        self.harmed = true;
        let block = &mut self.blocks[block as usize];
        match (&block.shown, block.values.back_mut()) {
            (Some(place), _) => place.set(place.get() ^ ROT),
            (None, Some(value)) => *value ^= ROT,
            (None, None) => {}
        }
    }

    /// A block says durably that it is lost.
    pub(super) fn lose(&mut self, block: u32) {
        self.harmed = true;
        self.sums.forget(block, 1);
        let block = &mut self.blocks[block as usize];
        block.push(LOST);
        block.settle(block.base + block.values.len() as u64 - 1);
    }

    /// Where a block lies that a snapshot shows, too.
    pub(super) fn shown(&self, block: u32) -> Option<Place> {
        self.blocks[block as usize].shown.clone()
    }

    /// The copy shows what a snapshot has, as a clone of it does.
    pub(super) fn show(&mut self, snapshot: SnapshotId, layer: Layer) {
        for (block, at) in self.blocks.iter_mut().zip(0..) {
            block.shown = Some(layer.place(at));
        }
        self.harmed |= !layer.wrong().is_empty();
        self.layers.insert(snapshot, layer);
    }

    /// Which of these blocks do not fit their sums.
    pub(super) fn wrong(&mut self, first: u32, values: &[u32]) -> Vec<u32> {
        let adopts = self.adopts_lost;
        let found = |&value: &u32| Found {
            sum: value,
            is_lost: value == LOST && !adopts,
        };
        let verdict = match self.sums.check(first, values.iter().map(found)) {
            Verdict::Unread(page) => {
                self.read_sums(page);
                self.sums.check(first, values.iter().map(found))
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Right => Vec::new(),
            Verdict::Wrong(blocks) => blocks,
            Verdict::Unread(page) => unreachable!("page {page} has been read"),
        }
    }

    /// Whether this is what a block is to hold, for certain.
    pub(super) fn vouches(&mut self, block: u32, value: u32) -> bool {
        if let Some(page) = self.sums.unread(block, 1) {
            self.read_sums(page);
        }
        self.sums.vouches(block, [value].into_iter())
    }

    /// Whether these values have sums on the disk, and fit them.
    pub(super) fn fits_durable(&self, first: u32, values: &[u32]) -> bool {
        let [one, other] = &self.sum_places;
        let page = DurableSums::read(self.record.chunk, 0, [one, other]);
        page.is_some_and(|page| page.check(first, values.iter().copied()) == PastVerdict::Right)
    }

    /// Whether the sums on the disk are all there are, as a client must know that is to believe them. If not they are written.
    pub(super) fn locate(&mut self) -> bool {
        let is_durable = !self.sums.is_dirty();
        if !is_durable && !self.broken {
            self.write_sums();
        }
        is_durable
    }

    fn read_sums(&mut self, page: u32) {
        let [first, second] = &self.sum_places;
        self.sums.read(page, [first, second]);
    }

    /// Whether a write is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.work.values().any(|work| matches!(work, Work::Write { .. }))
    }

    /// Which blocks do not fit their sums now, writes under way aside.
    pub(super) fn damage(&mut self) -> Vec<u32> {
        let under_way = |block: u32| {
            let covers = |work: &Work| matches!(work, Work::Write { range, .. } if (range.start..range.start + range.count).contains(&block));
            self.work.values().any(covers)
        };
        let blocks = 0..self.record.geometry.chunk_blocks;
        let quiet: Vec<u32> = blocks.filter(|block| !under_way(*block)).collect();
        let all = BlockRange {
            start: 0,
            count: self.record.geometry.chunk_blocks,
        };
        let values = self.current(all);
        let mut wrong = Vec::new();
        for block in quiet {
            // Looking must not make the unknown known.
            let is_known = self.sums.knows(block) || values[block as usize] == LOST;
            if is_known && !self.wrong(block, &[values[block as usize]]).is_empty() {
                wrong.push(block);
            }
        }
        wrong
    }

    fn write_sums(&mut self) {
        if self.forgets_sums {
            return;
        }
        let (unread, all) = self.sums.to_write();
        unread.into_iter().for_each(|page| self.read_sums(page));
        for page in all {
            if let Some((place, bytes)) = self.sums.write(page) {
                self.sum_places[usize::from(place)] = bytes;
            }
        }
        self.sums.flushed();
    }

    pub(super) fn persist(&mut self, token: PersistToken, delta: RecordDelta) {
        self.persists.push_back((token, delta));
    }

    pub(super) fn persisted(&mut self, token: PersistToken) {
        while let Some((_, delta)) = self.persists.pop_front_if(|(t, _)| *t <= token) {
            self.record.apply(&delta);
        }
    }

    /// Whether this is under way here.
    pub(super) fn has(&self, io: IoToken) -> bool {
        self.work.contains_key(&io)
    }

    pub(super) fn begin_write(
        &mut self,
        io: IoToken,
        range: BlockRange,
        values: Vec<u32>,
        fua: bool,
        random: &mut Random,
    ) {
        self.sums.note(range.start, values.iter().copied());
        let early = random.chance(1, 4);
        if early {
            self.put(range, &values);
        }
        self.work.insert(
            io,
            Work::Write {
                range,
                values,
                fua,
                early,
            },
        );
    }

    /// No copy has these blocks right: they are wrong here, too, from now on.
    pub(super) fn begin_losing(&mut self, io: IoToken, range: BlockRange, random: &mut Random) {
        self.begin_write(io, range, vec![LOST; range.count as usize], false, random);
        if !self.believes_lost {
            self.sums.lose(range.start, range.count);
        }
        self.harmed = true;
    }

    pub(super) fn begin_read(
        &mut self,
        io: IoToken,
        range: BlockRange,
        request: Option<u64>,
        random: &mut Random,
    ) {
        let sampled = random.chance(1, 2).then(|| self.current(range));
        self.work.insert(
            io,
            Work::Read {
                range,
                sampled,
                request,
            },
        );
    }

    pub(super) fn begin_flush(&mut self, io: IoToken) {
        let through = self.blocks.iter().map(|b| b.base + b.values.len() as u64 - 1);
        let through = through.collect();
        self.work.insert(io, Work::Flush { through });
    }

    pub(super) fn begin_snapshot(&mut self, io: IoToken, name: (SnapshotId, Sequence), fails: bool) {
        let fails = fails || self.layers.contains_key(&name.0);
        let through = self.blocks.iter().map(|b| b.base + b.values.len() as u64 - 1);
        let through = through.collect();
        self.work.insert(io, Work::Snapshot { through, name, fails });
    }

    fn keep(&mut self, (snapshot, sequence): (SnapshotId, Sequence)) {
        let places = self.blocks.iter_mut().map(Block::share).collect();
        let layer = Layer::kept(self.record.chunk, sequence, places, &self.sum_places);
        self.layers.insert(snapshot, layer);
    }

    /// Whether the operation fails, as it does on a broken disk unless it is a read. A write may have been done.
    pub(super) fn fails(&mut self, io: IoToken) -> bool {
        let is_read = matches!(self.work.get(&io), Some(Work::Read { .. }));
        let no_space = matches!(self.work.get(&io), Some(Work::Snapshot { fails: true, .. }));
        let fails = self.broken && !is_read || no_space;
        if fails {
            self.work.remove(&io);
        }
        fails
    }

    /// Whether there is no room for an operation, which fails then: half of a write may have been done.
    pub(super) fn finds_no_room(&mut self, io: IoToken, random: &mut Random) -> bool {
        let changes = matches!(self.work.get(&io), Some(Work::Write { .. } | Work::Flush { .. }));
        if !self.is_full || !changes || random.chance(1, 2) {
            return false;
        }
        if let Some(Work::Write { range, values, .. }) = self.work.remove(&io) {
            for (at, value) in (range.start..).zip(values) {
                if random.chance(1, 2) {
                    self.blocks[at as usize].push(value);
                }
            }
            self.sums.forget(range.start, range.count);
        }
        true
    }

    /// What was read, from where and for which request, when the operation was a read.
    pub(super) fn end(&mut self, io: IoToken) -> Option<(Option<u64>, u32, Vec<u32>)> {
        match self.work.remove(&io)? {
            Work::Write {
                range,
                values,
                fua,
                early,
            } => {
                if !early {
                    self.put(range, &values);
                }
                if fua {
                    for block in &mut self.blocks[range.start as usize..range.end() as usize] {
                        let last = block.base + block.values.len() as u64 - 1;
                        block.settle(last);
                    }
                }
                None
            }
            Work::Read {
                range,
                sampled,
                request,
            } => {
                let values = sampled.unwrap_or_else(|| self.current(range));
                Some((request, range.start, values))
            }
            Work::Flush { through } => {
                self.write_sums();
                for (block, through) in self.blocks.iter_mut().zip(through) {
                    block.settle(through);
                }
                None
            }
            Work::Snapshot { through, name, .. } => {
                self.write_sums();
                for (block, through) in self.blocks.iter_mut().zip(through) {
                    block.settle(through);
                }
                self.keep(name);
                None
            }
        }
    }

    /// The process ends. Work under way is done or not, block by block; if the power fails, too,
    /// blocks fall back to anything since they were made durable. Sums that no flush has written are gone.
    ///
    /// Returns blocks outside of marked regions that do not fit their sums, if the disk did nothing worse than that.
    pub(super) fn crash(&mut self, power: bool, random: &mut Random) -> Vec<u32> {
        let places = self.sum_places.clone();
        for (_, work) in std::mem::take(&mut self.work) {
            if matches!(work, Work::Flush { .. }) && random.chance(1, 2) {
                // It was writing them: torn at a sector.
                self.write_sums();
                for (place, before) in self.sum_places.iter_mut().zip(&places) {
                    let kept = 512 * random.below(9) as usize;
                    place[kept..].copy_from_slice(&before[kept..]);
                }
            }
            if let Work::Write {
                range,
                values,
                early: false,
                ..
            } = work
            {
                for (at, value) in values.iter().enumerate() {
                    if random.chance(1, 2) {
                        self.blocks[range.start as usize + at].push(*value);
                    }
                }
            }
        }
        for block in &mut self.blocks {
            if power && block.values.len() > 1 && random.chance(1, 2) {
                let keep = random.below(block.values.len() as u64) as usize;
                block.values.truncate(keep + 1);
            }
            if power {
                let last = block.base + block.values.len() as u64 - 1;
                block.settle(last);
            }
        }
        let done = match self.broken {
            true => 0,
            false => random.below(self.persists.len() as u64 + 1) as usize,
        };
        for (_, delta) in std::mem::take(&mut self.persists).into_iter().take(done) {
            self.record.apply(&delta);
        }
        self.persist_busy_until = 0;
        // A disk that failed is repaired, or answers again, when its process is started anew.
        self.broken = false;
        self.looks_for_room = false;
        let bytes = self.record.encode();
        self.record = ChunkRecord::decode(&bytes).expect("what was encoded is decoded");
        let region = self.record.geometry.region_blocks;
        let marked = self
            .record
            .intent
            .iter()
            .map(|mark| mark * region..(mark + 1) * region);
        self.sums = Sums::new(self.record.chunk, self.record.geometry.chunk_blocks, marked);
        self.read_sums(0);
        self.harm = None;
        match self.harmed {
            true => Vec::new(),
            false => self.damage(),
        }
    }
}

/// Those of a new copy, which are known.
fn blank_sums(record: &ChunkRecord) -> Sums {
    let mut sums = Sums::new(record.chunk, record.geometry.chunk_blocks, []);
    let blank = [0; SUM_PAGE_BYTES];
    sums.read(0, [&blank, &blank]);
    sums
}

impl Block {
    fn newest(&self) -> u32 {
        match &self.shown {
            Some(place) => place.get(),
            None => *self.values.back().expect("a block holds a value"),
        }
    }

    /// It gets a place of its own before it is written.
    fn own(&mut self) {
        if let Some(place) = self.shown.take() {
            self.values = [place.get()].into();
        }
    }

    fn push(&mut self, value: u32) {
        self.own();
        self.values.push_back(value);
    }

    /// What was meant for elsewhere is written where it lies.
    fn strike(&mut self, value: u32) {
        match &self.shown {
            Some(place) => place.set(value),
            None => self.values.push_back(value),
        }
    }

    /// A snapshot is made of it: both show the same until it is written.
    fn share(&mut self) -> Place {
        let place = match &self.shown {
            Some(place) => place.clone(),
            None => Place::new(Cell::new(self.newest())),
        };
        // With a write that is not durable, which no snapshot should meet, it may still fall back to what it was.
        if self.values.len() == 1 {
            self.shown = Some(place.clone());
        }
        place
    }

    fn settle(&mut self, through: u64) {
        while self.base < through && self.values.len() > 1 {
            self.values.pop_front();
            self.base += 1;
        }
    }
}
