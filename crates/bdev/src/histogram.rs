//! How long requests took, as counts of times: buckets that get wider with the time, so that each is as exact as the
//! others in proportion. Their form is that of SPDK's histograms, whose tools read them.
//!
//! A range holds 2^granularity buckets. Those of ranges 0 and 1 are a nanosecond wide, and those of each range that follows
//! twice as wide as those before. Cost of a request: a look at a number while nothing is collected, an addition to a
//! bucket that only its core writes while something is. The first request of a channel after collecting began or ended
//! takes a lock, which nothing else holds for longer than a copy of a pointer.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::request::Operation;

/// Binary logarithms of the buckets in a range that can be asked for.
pub const GRANULARITIES: RangeInclusive<u32> = 1..=10;

/// Which times are told from each other. Times below and above the ranges are counted in the first and the last bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    granularity: u32,
    min_range: u32,
    max_range: u32,
}

impl Shape {
    /// Ranges for times from `min_ns` to `max_ns` nanoseconds; `None` if the granularity is not one of
    /// [`GRANULARITIES`] or the least is above the most.
    pub fn new(granularity: u32, min_ns: u64, max_ns: u64) -> Option<Self> {
        let shape = |min_range, max_range| Self {
            granularity,
            min_range,
            max_range,
        };
        if !GRANULARITIES.contains(&granularity) || min_ns > max_ns {
            return None;
        }
        let all = shape(0, 64 - granularity);
        Some(shape(all.range_of(min_ns), all.range_of(max_ns)))
    }

    /// Binary logarithm of the buckets in a range.
    pub fn granularity(self) -> u32 {
        self.granularity
    }

    /// The first range there is.
    pub fn min_range(self) -> u32 {
        self.min_range
    }

    /// The last range there is.
    pub fn max_range(self) -> u32 {
        self.max_range
    }

    fn buckets(self) -> usize {
        ((self.max_range - self.min_range + 1) as usize) << self.granularity
    }

    fn range_of(self, time_ns: u64) -> u32 {
        let most = 64 - self.granularity;
        most.saturating_sub(time_ns.leading_zeros())
    }

    fn bucket_of(self, time_ns: u64) -> usize {
        let range = self.range_of(time_ns);
        if range < self.min_range {
            return 0;
        }
        if range > self.max_range {
            return self.buckets() - 1;
        }
        let within = (time_ns >> range.saturating_sub(1)) as usize & ((1 << self.granularity) - 1);
        (((range - self.min_range) as usize) << self.granularity) + within
    }
}

/// Which operations are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// All.
    All,
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Deallocations.
    Deallocations,
    /// Flushes.
    Flushes,
    /// Zeroings.
    Zeroings,
    /// Comparisons.
    Comparisons,
}

impl Looked {
    fn covers(self, operation: Operation) -> bool {
        match self {
            Self::All => true,
            Self::Reads => matches!(operation, Operation::Read),
            Self::Writes => matches!(operation, Operation::Write { .. }),
            Self::Deallocations => matches!(operation, Operation::Deallocate),
            Self::Flushes => matches!(operation, Operation::Flush),
            Self::Zeroings => matches!(operation, Operation::WriteZeroes { .. }),
            Self::Comparisons => matches!(operation, Operation::Compare),
        }
    }
}

/// What is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// See the type.
    pub shape: Shape,
    /// See the type.
    pub looked: Looked,
}

/// The counts, and what they are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// What the buckets are.
    pub shape: Shape,
    /// How many requests took as long as each bucket says, from the first range's first on.
    pub counts: Vec<u64>,
}

impl Histogram {
    pub(crate) fn empty(shape: Shape) -> Self {
        Self {
            shape,
            counts: vec![0; shape.buckets()],
        }
    }

    /// Adds what a channel has counted, if that is of the same buckets.
    pub(crate) fn add(&mut self, gauge: &Gauge) {
        let given = locked(&gauge.given);
        if let Some(buckets) = given.as_ref().filter(|buckets| buckets.plan.shape == self.shape) {
            for (sum, count) in self.counts.iter_mut().zip(&buckets.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
    }
}

struct Buckets {
    plan: Plan,
    counts: Box<[AtomicU64]>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a channel's requests are counted in, for those who begin, end and read it on any core.
#[derive(Default)]
pub(crate) struct Gauge {
    /// Grows with each change of what is given.
    version: AtomicU64,
    given: Mutex<Option<Arc<Buckets>>>,
}

impl Gauge {
    /// Begins anew, or ends.
    pub(crate) fn set(&self, plan: Option<Plan>) {
        let buckets = plan.map(|plan| {
            let counts = (0..plan.shape.buckets()).map(|_| AtomicU64::new(0)).collect();
            Arc::new(Buckets { plan, counts })
        });
        let previous = std::mem::replace(&mut *locked(&self.given), buckets);
        self.version.fetch_add(1, Ordering::Release);
        drop(previous);
    }
}

/// A channel's side of a [`Gauge`].
#[derive(Default)]
pub(crate) struct Needle {
    seen: Cell<u64>,
    held: RefCell<Option<Arc<Buckets>>>,
}

impl Needle {
    /// A request has ended.
    pub(crate) fn count(&self, gauge: &Gauge, operation: Operation, took_ns: u64) {
        let version = gauge.version.load(Ordering::Acquire);
        if version != self.seen.get() {
            self.seen.set(version);
            *self.held.borrow_mut() = locked(&gauge.given).clone();
        }
        if version == 0 {
            return;
        }
        if let Some(buckets) = &*self.held.borrow()
            && buckets.plan.looked.covers(operation)
        {
            // Only this core writes it.
            let count = &buckets.counts[buckets.plan.shape.bucket_of(took_ns)];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_are_those_of_spdk() {
        // From the table in SPDK's include/spdk/histogram_data.h.
        let shape = Shape::new(7, 0, u64::MAX).unwrap();
        assert_eq!((shape.min_range(), shape.max_range()), (0, 57));
        assert_eq!(shape.buckets(), 58 * 128);
        for (time_ns, bucket) in [
            (0, 0),
            (127, 127),
            (128, 128),
            (255, 255),
            (256, 256),
            (257, 256),
            (511, 383),
            (2048, 5 * 128),
            (4095, 6 * 128 - 1),
            (u64::MAX, 58 * 128 - 1),
        ] {
            assert_eq!(shape.bucket_of(time_ns), bucket, "{time_ns}");
        }
        assert_eq!(Shape::new(0, 0, 1), None);
        assert_eq!(Shape::new(7, 2, 1), None);
    }

    proptest! {
        #[test]
        fn no_time_is_outside_and_longer_ones_never_come_before(
            granularity in GRANULARITIES, bounds in any::<(u64, u64)>(), times in any::<(u64, u64)>(),
        ) {
            let shape = Shape::new(granularity, bounds.0.min(bounds.1), bounds.0.max(bounds.1)).unwrap();
            let (short, long) = (times.0.min(times.1), times.0.max(times.1));
            prop_assert!(shape.bucket_of(short) <= shape.bucket_of(long));
            prop_assert!(shape.bucket_of(long) < shape.buckets());
        }
    }
}
