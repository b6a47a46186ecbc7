//! Content that is read before it is asked for, and kept until it is.
//!
//! Packing puts files that were written one after another side by side. Who reads them in that order (the order of a directory,
//! mostly) goes through the volume's addresses in order, whatever the files are; who reads in shuffled order does not. So the addresses are
//! all that is looked at: after a few reads that follow each other, what lies behind them is read in long reads; after one that
//! does not, nothing is, until a few follow each other again.
//!
//! What is here are bytes of the volume and not of a file: whoever takes some compares them with the extent's checksum, as with bytes
//! that have just arrived, so that what was overwritten meanwhile is never taken for what was asked for. Bytes that are kept and those on their way
//! together never exceed the bound.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use reactor::Buffer;
use reactor::sync::Notify;

/// Reads that must follow each other before anything is read ahead.
const STREAK_MIN: u32 = 4;
/// A read this far behind the foremost one, in bytes, still follows: several that are under way at once overtake each other.
const BEHIND_MAX: u64 = 512 << 10;
/// So far before it, too: what lies between was removed, or belongs to somebody else.
const BEFORE_MAX: u64 = 256 << 10;
/// Length of a read ahead, in bytes.
pub(super) const AHEAD_BYTES: u64 = 256 << 10;
/// How far to be ahead, in bytes, once it has gone on for long.
const DISTANCE_MAX: u64 = 1 << 20;

/// What the cache of content has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataStatistics {
    /// Reads whose bytes were here, or on their way.
    pub hits: u64,
    /// Reads whose bytes were not.
    pub misses: u64,
    /// Reads ahead.
    pub ahead: u64,
    /// Memory held now, in bytes, with what is on its way; never above the limit.
    pub bytes: usize,
}

/// Where reading has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// The end of the foremost read.
    front: u64,
    streak: u32,
    /// Everything before this was asked for.
    asked_until: u64,
}

/// A range, and its bytes once they are here.
#[derive(Default)]
struct Kept {
    bytes: RefCell<Option<Buffer>>,
    ended: Cell<bool>,
    notify: Notify,
}

/// See the module. Belongs to one reader.
pub(super) struct Ahead {
    limit_bytes: Cell<u64>,
    way: Cell<Way>,
    /// By where they begin, with their lengths; none overlaps another.
    kept: RefCell<BTreeMap<u64, (u64, Rc<Kept>)>>,
    /// In the order in which they were asked for: the oldest go first, since what is read in order is used once.
    order: RefCell<VecDeque<u64>>,
    bytes: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    ahead: Cell<u64>,
}

/// A range that is being read; ends, whatever becomes of it.
pub(super) struct Reading {
    pub(super) start: u64,
    pub(super) length: u64,
    kept: Rc<Kept>,
}

impl Reading {
    /// The bytes are here.
    pub(super) fn arrived(&self, bytes: Buffer) {
        *self.kept.bytes.borrow_mut() = Some(bytes);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.kept.ended.set(true);
        self.kept.notify.notify();
    }
}

impl Ahead {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes: Cell::new(limit_bytes as u64),
            way: Cell::default(),
            kept: RefCell::default(),
            order: RefCell::default(),
            bytes: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
            ahead: Cell::new(0),
        }
    }

    /// Drops what is kept, and keeps nothing from now on. What is on its way goes when it has come.
    pub(super) fn end(&self) {
        self.limit_bytes.set(0);
        self.kept.borrow_mut().clear();
        self.order.borrow_mut().clear();
        self.bytes.set(0);
    }

    /// The bytes that hold a range, and where they begin, if they are here or on their way.
    pub(super) async fn find(&self, address: u64, length: u64) -> Option<(u64, Buffer)> {
        if self.limit_bytes.get() < AHEAD_BYTES {
            return None;
        }
        let found = {
            let kept = self.kept.borrow();
            let before = kept.range(..=address).next_back();
            let holds = before.filter(|(start, (held, _))| address + length <= **start + held);
            holds.map(|(start, (_, kept))| (*start, kept.clone()))
        };
        let Some((start, kept)) = found else {
            self.misses.set(self.misses.get() + 1);
            return None;
        };
        kept.notify.until(|| kept.ended.get()).await;
        let bytes = kept.bytes.borrow().clone();
        let counter = if bytes.is_some() { &self.hits } else { &self.misses };
        counter.set(counter.get() + 1);
        Some((start, bytes?))
    }

    /// Notes a read, and says what to read ahead now. `capacity` is the volume's.
    pub(super) fn notice(&self, address: u64, length: u64, capacity: u64) -> Vec<Reading> {
        if self.limit_bytes.get() < AHEAD_BYTES {
            return Vec::new();
        }
        let way = self.way.get();
        let follows = address.saturating_add(BEHIND_MAX) >= way.front
            && address <= way.front.saturating_add(BEFORE_MAX);
        let end = address.saturating_add(length);
        let mut way = match follows {
            true => Way {
                front: way.front.max(end),
                streak: way.streak.saturating_add(1),
                ..way
            },
            false => Way {
                front: end,
                streak: 0,
                asked_until: 0,
            },
        };
        let mut readings = Vec::new();
        if way.streak >= STREAK_MIN {
            // Twice as far at each read that follows, up to the bound; half of what may be kept is for those who are behind.
            let distance = (AHEAD_BYTES << (way.streak - STREAK_MIN).min(8)).min(DISTANCE_MAX);
            let distance = distance.min((self.limit_bytes.get() / 2).max(AHEAD_BYTES));
            let mut at = way.asked_until.max(way.front.next_multiple_of(4096));
            // Half of the distance is used up before it is filled again.
            if at < way.front + distance / 2 + AHEAD_BYTES {
                while at < way.front + distance && at + AHEAD_BYTES <= capacity {
                    readings.extend(self.begin(at, AHEAD_BYTES));
                    at += AHEAD_BYTES;
                }
            }
            way.asked_until = at;
        }
        self.way.set(way);
        readings
    }

    /// Makes room for a range, and takes it among those that are kept.
    fn begin(&self, start: u64, length: u64) -> Option<Reading> {
        let mut kept = self.kept.borrow_mut();
        let overlaps = kept
            .range(..start + length)
            .next_back()
            .is_some_and(|(other, (held, _))| other + held > start);
        if overlaps {
            return None;
        }
        let mut order = self.order.borrow_mut();
        while self.bytes.get() + length > self.limit_bytes.get() {
            let oldest = *order.front()?;
            let (held, bytes) = kept.get(&oldest)?;
            if !bytes.ended.get() {
                // It takes memory until it has ended.
                return None;
            }
            self.bytes.set(self.bytes.get() - held);
            kept.remove(&oldest);
            order.pop_front();
        }
        let new = Rc::<Kept>::default();
        kept.insert(start, (length, new.clone()));
        order.push_back(start);
        self.bytes.set(self.bytes.get() + length);
        self.ahead.set(self.ahead.get() + 1);
        Some(Reading {
            start,
            length,
            kept: new,
        })
    }

    pub(super) fn statistics(&self) -> DataStatistics {
        DataStatistics {
            hits: self.hits.get(),
            misses: self.misses.get(),
            ahead: self.ahead.get(),
            bytes: self.bytes.get() as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: u64 = 1 << 40;

    #[test]
    fn only_what_is_read_in_order_is_read_ahead() {
        let ahead = Ahead::new(8 << 20);
        let mut begun = 0;
        for number in 0..64 {
            let readings = ahead.notice((1 << 30) + number * 16_384, 16_384, CAPACITY);
            assert!(number > 3 || readings.is_empty(), "at {number}");
            begun += readings.len() as u64 * AHEAD_BYTES;
        }
        assert!(
            (1..=64 * 16_384 + DISTANCE_MAX + AHEAD_BYTES).contains(&begun),
            "{begun}"
        );
        let shuffled = Ahead::new(8 << 20);
        for number in 0..1000u64 {
            let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 36);
            assert!(shuffled.notice(place, 16_384, CAPACITY).is_empty());
        }
        let none = Ahead::new(0);
        assert!((0..100).all(|number| none.notice(number * 16_384, 16_384, CAPACITY).is_empty()));
    }

    #[test]
    fn several_that_overtake_each_other_are_in_order() {
        let ahead = Ahead::new(8 << 20);
        let mut begun = 0;
        for group in 0..20 {
            for number in [3, 0, 2, 1] {
                begun += ahead
                    .notice((group * 4 + number) * 16_384, 16_384, CAPACITY)
                    .len();
            }
        }
        assert!(begun > 2, "{begun}");
    }

    proptest! {
        #[test]
        fn the_bound_is_strict_and_nothing_is_asked_for_beyond_the_end(
            limit in 0usize..4 << 20,
            steps in proptest::collection::vec((0u64..3, 1u64..100_000), 1..300),
        ) {
            let capacity = 8 << 20;
            let ahead = Ahead::new(limit);
            let (mut at, mut held) = (0, Vec::new());
            for (jump, length) in steps {
                at = (at + jump * jump * jump * 100_000) % capacity;
                for reading in ahead.notice(at, length, capacity) {
                    prop_assert!(reading.start + reading.length <= capacity);
                    held.push(reading);
                }
                at += length;
                prop_assert!(ahead.statistics().bytes <= limit);
            }
        }
    }
}
