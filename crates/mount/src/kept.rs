//! What a mount remembers for the kernel's sake, by number and within a bound of bytes.
//!
//! Where there is no more room one thing goes after another, round like a clock's hand: what was used since the hand last passed
//! stays. Nothing is ever dropped as a whole, so that what is in use is not asked for once more by everybody at once.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

/// A place of the ring, twice: a ring that has just grown is half empty. And twice again: as many places may be of what is gone.
const RING_BYTES: usize = 4 * size_of::<(u64, u64)>();

struct Slot<V> {
    value: V,
    /// What it takes with all that is around it.
    bytes: usize,
    /// Which place of the ring is its own; others of the same number are of what was here before.
    stamp: u64,
    used: Cell<bool>,
}

/// What one of these has done, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptStatistics {
    /// Lookups that found what they looked for.
    pub(crate) hits: u64,
    /// Lookups that did not.
    pub(crate) misses: u64,
    /// What had to go for others.
    pub(crate) evicted: u64,
    /// Things held now.
    pub(crate) held: usize,
    /// Memory they take, in bytes; never above the bound.
    pub(crate) bytes: usize,
}

/// See the module. Belongs to one thread.
pub(crate) struct Kept<V> {
    slots: BTreeMap<u64, Slot<V>>,
    ring: VecDeque<(u64, u64)>,
    stamps: u64,
    bytes: usize,
    limit_bytes: usize,
    hits: Cell<u64>,
    misses: Cell<u64>,
    evicted: u64,
}

impl<V> Kept<V> {
    /// What each thing takes besides its own heap memory, in bytes: nodes of the map are five elevenths full at least.
    pub(crate) const OVERHEAD_BYTES: usize = (size_of::<u64>() + size_of::<Slot<V>>()) * 11 / 5 + RING_BYTES;

    /// Nothing yet, and never more than `limit_bytes`; with 0 nothing is kept.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            ring: VecDeque::new(),
            stamps: 0,
            bytes: 0,
            limit_bytes,
            hits: Cell::new(0),
            misses: Cell::new(0),
            evicted: 0,
        }
    }

    /// What is kept under a number.
    pub(crate) fn get(&self, number: u64) -> Option<&V> {
        match self.slots.get(&number) {
            Some(slot) => {
                slot.used.set(true);
                self.hits.set(self.hits.get() + 1);
                Some(&slot.value)
            }
            None => {
                self.misses.set(self.misses.get() + 1);
                None
            }
        }
    }

    /// Keeps something of `heap_bytes` bytes besides itself, and drops others to make room. Gives what was kept under that number
    /// before.
    pub(crate) fn insert(&mut self, number: u64, value: V, heap_bytes: usize) -> Option<V> {
        let old = self.remove(number);
        let bytes = heap_bytes.saturating_add(Self::OVERHEAD_BYTES);
        if bytes > self.limit_bytes {
            return old;
        }
        self.make_room(bytes);
        self.stamps += 1;
        let slot = Slot {
            value,
            bytes,
            stamp: self.stamps,
            // Who replaces something uses it.
            used: Cell::new(old.is_some()),
        };
        self.slots.insert(number, slot);
        self.ring.push_back((number, self.stamps));
        self.bytes += bytes;
        old
    }

    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.limit_bytes {
            let Some((number, stamp)) = self.ring.pop_front() else {
                return;
            };
            match self.slots.get(&number) {
                Some(slot) if slot.stamp == stamp && slot.used.replace(false) => {
                    self.ring.push_back((number, stamp));
                }
                Some(slot) if slot.stamp == stamp => {
                    self.bytes -= slot.bytes;
                    self.slots.remove(&number);
                    self.evicted += 1;
                }
                Some(_) | None => {}
            }
        }
    }

    /// Drops what is kept under a number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<V> {
        let slot = self.slots.remove(&number)?;
        self.bytes -= slot.bytes;
        if self.ring.len() > 2 * self.slots.len() + 16 {
            let slots = &self.slots;
            self.ring
                .retain(|(number, stamp)| slots.get(number).is_some_and(|slot| slot.stamp == *stamp));
        }
        Some(slot.value)
    }

    /// Drops everything, because it is not right any more.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.ring.clear();
        self.bytes = 0;
    }

    pub(crate) fn statistics(&self) -> KeptStatistics {
        KeptStatistics {
            hits: self.hits.get(),
            misses: self.misses.get(),
            evicted: self.evicted,
            held: self.slots.len(),
            bytes: self.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_strict_and_things_go_one_by_one() {
        let each = Kept::<u32>::OVERHEAD_BYTES + 100;
        let mut kept = Kept::new(each * 10);
        for number in 0..1000 {
            assert_eq!(kept.insert(number, 7u32, 100), None);
            assert!(kept.statistics().bytes <= each * 10);
            assert!(kept.get(0).is_some(), "what is in use was dropped at {number}");
            let held = kept.statistics().held;
            assert_eq!(held, 10.min(number as usize + 1), "only as many go as must");
        }
        assert_eq!(kept.statistics().evicted, 990);
        assert!(kept.get(999).is_some() && kept.get(500).is_none());
        // One that is as large as all others together.
        kept.insert(5000, 1, 100 + each * 9);
        assert_eq!(kept.statistics().held, 1);
        // One that is larger than the bound is not kept, and takes nobody's place but that of its own number.
        assert_eq!(kept.insert(6000, 1, 100 + each * 10), None);
        assert_eq!(kept.insert(5000, 2, usize::MAX), Some(1));
        assert_eq!((kept.statistics().held, kept.statistics().bytes), (0, 0));
        assert_eq!(Kept::new(0).insert(1, 1, 0), None);
    }

    #[test]
    fn what_comes_and_goes_again_leaves_nothing_behind() {
        let mut kept = Kept::new(1 << 20);
        for number in 0..50u64 {
            kept.insert(number, number, 8);
        }
        let before = kept.statistics().bytes;
        for round in 0..10_000 {
            assert!(kept.insert(7, round, 8).is_some());
            assert_eq!(kept.remove(3).is_some(), round == 0);
            assert_eq!(kept.remove(1 << 40), None);
            assert!(
                kept.ring.len() <= 2 * kept.slots.len() + 17,
                "{}",
                kept.ring.len()
            );
        }
        assert_eq!(kept.statistics().bytes, before / 50 * 49);
        kept.clear();
        assert_eq!((kept.statistics().bytes, kept.get(7)), (0, None));
    }
}
