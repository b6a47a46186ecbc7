//! What is known of the volume while the power is cut: what each block may hold, and which snapshots there are.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use volume::SnapshotId;

pub(super) const BLOCK: usize = 4096;
pub(super) const SECTOR: usize = 512;

/// Where the three writers write: in regions that no other writes.
pub(super) const WRITERS: [u64; 3] = [0, 320, 640];
pub(super) const REGION: u64 = 32;
pub(super) const PLACES: [u64; 5] = [0, 2, REGION, REGION + 4, 3 * REGION];
/// Blocks of each place that may be written.
pub(super) const LENGTH: u64 = 2;

/// What one block may hold. Each write has a number of its own, which all words of the block have.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// From what no loss of power takes back to the newest that was written, in order.
    pub(super) values: Vec<u32>,
    /// Those that went before.
    forgotten: usize,
    /// Of these, the last that was acknowledged.
    pub(super) acknowledged: usize,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            values: vec![0],
            forgotten: 0,
            acknowledged: 0,
        }
    }
}

impl Block {
    pub(super) fn last(&self) -> u32 {
        self.values[self.acknowledged]
    }

    /// The last that was acknowledged, counted from the first of all.
    pub(super) fn place(&self) -> usize {
        self.forgotten + self.acknowledged
    }

    /// The value of this place, or a later one, outlives everything.
    pub(super) fn settle(&mut self, place: usize) {
        let gone = place.saturating_sub(self.forgotten);
        self.values.drain(..gone);
        self.forgotten += gone;
        self.acknowledged -= gone;
    }

    /// What it may hold after a loss of power, once it has come to an end what was asked of it: something written since the last that is
    /// settled if `all` nodes lost it, else what was acknowledged last or is newer. A loss of all power may tear a block whose write was
    /// not durable; each of its sectors has one of these then.
    pub(super) fn may_hold(&self, bytes: &[u8], all: bool) -> bool {
        let (values, unit) = match all {
            true => (&self.values[..], SECTOR),
            false => (&self.values[self.acknowledged..], BLOCK),
        };
        let is_one = |part: &[u8]| values.iter().any(|value| *part == bytes_of(*value)[..unit]);
        bytes.chunks_exact(unit).all(is_one)
    }
}

pub(super) fn bytes_of(value: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 4)
}

#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) id: SnapshotId,
    pub(super) content: BTreeMap<u64, u32>,
    /// Nodes that have a copy, at least.
    pub(super) copies: usize,
}

/// What is known of the volume.
#[derive(Default)]
pub(super) struct Known {
    pub(super) blocks: RefCell<BTreeMap<u64, Block>>,
    pub(super) last_value: Cell<u32>,
    /// Snapshots that are made, and what they have.
    pub(super) snapshots: RefCell<Vec<Snapshot>>,
    pub(super) ended: Cell<usize>,
}

impl Known {
    pub(super) fn new() -> Rc<Self> {
        let known = Self::default();
        for lba in all_blocks() {
            known.blocks.borrow_mut().insert(lba, Block::default());
        }
        Rc::new(known)
    }

    pub(super) fn acknowledged(&self) -> BTreeMap<u64, u32> {
        let blocks = self.blocks.borrow();
        blocks.iter().map(|(lba, block)| (*lba, block.last())).collect()
    }

    pub(super) fn with<T>(&self, lba: u64, act: impl FnOnce(&mut Block) -> T) -> T {
        act(self
            .blocks
            .borrow_mut()
            .get_mut(&lba)
            .expect("a block that is written"))
    }
}

pub(super) fn all_places() -> impl Iterator<Item = u64> {
    let of_writer = |writer: u64| PLACES.map(|place| writer + place);
    WRITERS.into_iter().flat_map(of_writer)
}

pub(super) fn all_blocks() -> impl Iterator<Item = u64> {
    all_places().flat_map(|place| place..place + LENGTH)
}

/// The values of a block's sectors, for people.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    let first = |sector: &[u8]| u32::from_le_bytes(sector[..4].try_into().expect("four bytes"));
    bytes.chunks_exact(SECTOR).map(first).collect()
}
