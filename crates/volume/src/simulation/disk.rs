//! A simulated disk with one chunk copy: blocks hold a number each, writes that were not flushed
//! may be lost at a crash block by block, and changes of the record become durable in order.

use std::collections::{BTreeMap, VecDeque};

use foundation::Random;

use crate::identity::{BlockRange, IoToken, PersistToken};
use crate::record::{ChunkRecord, RecordDelta};

/// What a block may hold after a crash: the durable value first, the newest last.
#[derive(Debug)]
struct Block {
    values: VecDeque<u32>,
    /// How many values were ever made durable over.
    base: u64,
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
}

#[derive(Debug)]
pub(super) struct Disk {
    blocks: Vec<Block>,
    pub(super) record: ChunkRecord,
    /// Since when: writes, flushes and changes of the record fail, and do nothing.
    pub(super) broken: bool,
    persists: VecDeque<(PersistToken, RecordDelta)>,
    pub(super) persist_busy_until: u64,
    work: BTreeMap<IoToken, Work>,
}

impl Disk {
    pub(super) fn new(record: ChunkRecord) -> Self {
        let block = || Block {
            values: [0].into(),
            base: 0,
        };
        Self {
            blocks: (0..record.geometry.chunk_blocks).map(|_| block()).collect(),
            record,
            broken: false,
            persists: VecDeque::new(),
            persist_busy_until: 0,
            work: BTreeMap::new(),
        }
    }

    pub(super) fn current(&self, range: BlockRange) -> Vec<u32> {
        let blocks = &self.blocks[range.start as usize..range.end() as usize];
        blocks
            .iter()
            .map(|b| *b.values.back().expect("a block holds a value"))
            .collect()
    }

    fn put(&mut self, range: BlockRange, values: &[u32]) {
        for (block, &value) in self.blocks[range.start as usize..].iter_mut().zip(values) {
            block.values.push_back(value);
        }
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

    /// Whether the operation fails, as it does on a broken disk unless it is a read. A write may have been done.
    pub(super) fn fails(&mut self, io: IoToken) -> bool {
        let is_read = matches!(self.work.get(&io), Some(Work::Read { .. }));
        let fails = self.broken && !is_read;
        if fails {
            self.work.remove(&io);
        }
        fails
    }

    /// What was read and for which request, when the operation was a read.
    pub(super) fn end(&mut self, io: IoToken) -> Option<(Option<u64>, Vec<u32>)> {
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
            } => Some((request, sampled.unwrap_or_else(|| self.current(range)))),
            Work::Flush { through } => {
                for (block, through) in self.blocks.iter_mut().zip(through) {
                    block.settle(through);
                }
                None
            }
        }
    }

    /// The process ends. Work under way is done or not, block by block; if the power fails, too,
    /// blocks fall back to anything since they were made durable.
    pub(super) fn crash(&mut self, power: bool, random: &mut Random) {
        for (_, work) in std::mem::take(&mut self.work) {
            if let Work::Write {
                range,
                values,
                early: false,
                ..
            } = work
            {
                for (at, value) in values.iter().enumerate() {
                    if random.chance(1, 2) {
                        self.blocks[range.start as usize + at].values.push_back(*value);
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
        let bytes = self.record.encode();
        self.record = ChunkRecord::decode(&bytes).expect("what was encoded is decoded");
    }
}

impl Block {
    fn settle(&mut self, through: u64) {
        while self.base < through && self.values.len() > 1 {
            self.values.pop_front();
            self.base += 1;
        }
    }
}
