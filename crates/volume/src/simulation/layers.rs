//! Copies as they were once, on the disks of the simulation, and how they share places with what came later (`docs/decisions/0094`).
//!
//! A snapshot takes nothing: what the live copy has, both show from then on, until the live copy writes there and gets a place of its
//! own. So a block that is damaged may be wrong in several snapshots and in the live copy, and is mended for all of them at once.
//! Which block is wrong each says by sums of its own: the pages as they were when it was made.

use std::cell::Cell;
use std::rc::Rc;

use crate::identity::{ChunkId, Sequence};
use crate::sums::{DurableSums, PastVerdict, SUM_PAGE_BYTES, Sums};

/// Where a block lies; whoever shows it has what is there.
pub(super) type Place = Rc<Cell<u32>>;

/// What a disk changes when a block changes by itself.
pub(super) const ROT: u32 = 1 << 30;

/// A copy as it was once.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) sequence: Sequence,
    places: Vec<Place>,
    /// None if they cannot be believed.
    sums: Option<DurableSums>,
}

impl Layer {
    /// One of a copy that has these blocks, and this page of sums in its two places, durably.
    pub(super) fn kept(
        chunk: ChunkId,
        sequence: Sequence,
        places: Vec<Place>,
        sum_places: &[Vec<u8>; 2],
    ) -> Self {
        let sums = DurableSums::read(chunk, 0, sum_places.each_ref().map(|place| &place[..]));
        Self {
            sequence,
            places,
            sums,
        }
    }

    /// One that is made from others' blocks. What an older one here has, it shows; but only what fits that one's sum, or it would
    /// change when the older one is mended.
    pub(super) fn made(chunk: ChunkId, sequence: Sequence, values: &[u32], older: Option<&Layer>) -> Self {
        let mut sums = Sums::new(chunk, values.len() as u32, []);
        let mut sum_places = [vec![0; SUM_PAGE_BYTES], vec![0; SUM_PAGE_BYTES]];
        sums.read(0, sum_places.each_ref().map(|place| &place[..]));
        sums.note(0, values.iter().copied());
        let (place, bytes) = sums.write(0).expect("it has been read, and something was noted");
        sum_places[usize::from(place)] = bytes;
        let place = |(block, &value): (u32, &u32)| {
            let shown = older.filter(|older| older.value(block) == value && older.fits(block, value));
            shown.map_or_else(|| Place::new(Cell::new(value)), |older| older.place(block))
        };
        let places = (0..).zip(values).map(place).collect();
        Self::kept(chunk, sequence, places, &sum_places)
    }

    pub(super) fn values(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.get()).collect()
    }

    pub(super) fn value(&self, block: u32) -> u32 {
        self.places[block as usize].get()
    }

    pub(super) fn place(&self, block: u32) -> Place {
        self.places[block as usize].clone()
    }

    /// Whether nothing else shows any of it.
    pub(super) fn is_alone(&self) -> bool {
        self.places.iter().all(|place| Rc::strong_count(place) == 1)
    }

    /// Whether this in that block has a sum, and fits it.
    pub(super) fn fits(&self, block: u32, value: u32) -> bool {
        let right = |sums: &DurableSums| sums.check(block, [value].into_iter()) == PastVerdict::Right;
        self.sums.as_ref().is_some_and(right)
    }

    /// The blocks that do not fit their sums.
    pub(super) fn wrong(&self) -> Vec<u32> {
        let fits = |block: &u32| self.fits(*block, self.value(*block));
        (0..self.places.len() as u32)
            .filter(|block| !fits(block))
            .collect()
    }

    /// A block changes by itself.
    pub(super) fn rot(&self, block: u32) {
        self.put(block, self.value(block) ^ ROT);
    }

    /// Something is written where a block lies: its right bytes, or what was meant for elsewhere.
    pub(super) fn put(&self, block: u32, value: u32) {
        self.places[block as usize].set(value);
    }
}
