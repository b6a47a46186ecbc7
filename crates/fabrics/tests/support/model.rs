//! What each block of a device may hold while requests fail in unknown ways, and lanes of random requests against it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, ChannelExt, IoError};
use foundation::{Lba, Random};
use reactor::{BufferPool, time};

pub(crate) const BLOCK_BYTES: u32 = 512;
pub(crate) const LANES: u64 = 6;
pub(crate) const LANE_BLOCKS: u64 = 16;
const REQUESTS: u64 = 40;

/// What each block may hold: stamps. 0 is "never written".
pub(crate) struct Model {
    /// The acknowledged stamp first, then those of unknown outcome.
    blocks: RefCell<Vec<Vec<u64>>>,
    next_stamp: Cell<u64>,
    /// Requests still to do, by lane.
    pub(crate) left: RefCell<Vec<u64>>,
    pub(crate) unknown: Cell<u64>,
}

impl Model {
    pub(crate) fn new() -> Rc<Self> {
        Self::with_requests(REQUESTS)
    }

    /// With so many requests to do in each lane.
    pub(crate) fn with_requests(requests: u64) -> Rc<Self> {
        Rc::new(Self {
            blocks: RefCell::new(vec![vec![0]; (LANES * LANE_BLOCKS) as usize]),
            next_stamp: Cell::new(1),
            left: RefCell::new(vec![requests; LANES as usize]),
            unknown: Cell::new(0),
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left.borrow().iter().all(|&left| left == 0)
    }

    /// A write begins: from now on each of its blocks may hold its stamp.
    pub(crate) fn begin(&self, lba: u64, blocks: u64) -> u64 {
        let stamp = self.next_stamp.get();
        self.next_stamp.set(stamp + 1);
        for block in lba..lba + blocks {
            self.blocks.borrow_mut()[block as usize].push(stamp);
        }
        stamp
    }

    pub(crate) fn acknowledged(&self, lba: u64, blocks: u64, stamp: u64) {
        for block in lba..lba + blocks {
            self.blocks.borrow_mut()[block as usize] = vec![stamp];
        }
    }

    /// What was read is what the block holds.
    pub(crate) fn check(&self, lba: u64, bytes: &[u8], seed: u64) {
        for (block, bytes) in (lba..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let stamp = u64::from_le_bytes(*bytes.first_chunk().unwrap());
            assert!(
                bytes.chunks(8).all(|part| part == stamp.to_le_bytes()),
                "seed {seed}: block {block} is torn"
            );
            let mut blocks = self.blocks.borrow_mut();
            let possible = &mut blocks[block as usize];
            assert!(
                possible.contains(&stamp),
                "seed {seed}: block {block} holds {stamp}, possible are {possible:?}"
            );
            *possible = vec![stamp];
        }
    }
}

pub(crate) fn stamped(blocks: u64, stamp: u64) -> reactor::Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate((blocks * u64::from(BLOCK_BYTES)) as usize)
        .unwrap();
    for part in buffer.chunks_mut(8) {
        part.copy_from_slice(&stamp.to_le_bytes());
    }
    buffer.freeze()
}

/// Random requests, one at a time, to blocks of its own.
pub(crate) async fn lane(channel: Rc<dyn Channel>, model: Rc<Model>, lane: u64, seed: u64) {
    // The stamp makes a restarted process go on elsewhere in the random numbers.
    let mut random = Random::from_seed(seed ^ (lane << 32) ^ (model.next_stamp.get() << 40));
    let first = lane * LANE_BLOCKS;
    while model.left.borrow()[lane as usize] > 0 {
        let blocks = random.between(1, 8);
        let lba = first + random.below(LANE_BLOCKS - blocks + 1);
        if random.chance(1, 2) {
            let stamp = model.begin(lba, blocks);
            match channel.write(Lba(lba), stamped(blocks, stamp)).await {
                Ok(()) => model.acknowledged(lba, blocks, stamp),
                Err(IoError::Unavailable | IoError::Aborted) => {
                    model.unknown.set(model.unknown.get() + 1);
                    time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("seed {seed}: a write failed: {error}"),
            }
        } else {
            let length = (blocks * u64::from(BLOCK_BYTES)) as usize;
            let buffer = BufferPool::current().try_allocate(length).unwrap();
            let (result, buffer) = channel.read(Lba(lba), buffer).await;
            match result {
                Ok(()) => model.check(lba, &buffer, seed),
                Err(IoError::Unavailable | IoError::Aborted) => {}
                Err(error) => panic!("seed {seed}: a read failed: {error}"),
            }
        }
        model.left.borrow_mut()[lane as usize] -= 1;
        time::sleep(Duration::from_micros(random.below(20_000))).await;
    }
}
