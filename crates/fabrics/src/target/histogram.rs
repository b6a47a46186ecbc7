//! How long commands took, in buckets: for each namespace, queue and reactor.
//!
//! One writer each, its reactor's thread. Cost of a command: the bucket is looked up once, and each histogram that counts
//! it adds to two numbers. A histogram of all three kinds takes 1,176 bytes and never grows.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::meter::{Kind, add, read};

/// Upper ends of the buckets of a histogram, in nanoseconds: two for each power of two, from 1 µs to 8.4 s. What took
/// longer is in one more bucket.
pub const BUCKET_ENDS_NS: [u64; 47] = bucket_ends_ns();

const BUCKETS: usize = BUCKET_ENDS_NS.len() + 1;

const fn bucket_ends_ns() -> [u64; 47] {
    let mut ends = [1000; 47];
    let mut index = 1;
    while index < ends.len() {
        let octave = (index - 1) / 2;
        ends[index] = (if index % 2 == 1 { 1500 } else { 2000 }) << octave;
        index += 1;
    }
    ends
}

/// The bucket of a time: the first whose end is not below it.
fn bucket(took_ns: u64) -> usize {
    if took_ns <= BUCKET_ENDS_NS[0] {
        return 0;
    }
    let octave = ((took_ns - 1) / 1000).ilog2();
    if octave >= 23 {
        return BUCKETS - 1;
    }
    1 + 2 * octave as usize + usize::from(took_ns > 1500 << octave)
}

/// How long commands took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// Commands by bucket; the last holds what is beyond [`BUCKET_ENDS_NS`].
    pub buckets: [u64; BUCKETS],
    /// All together.
    pub sum: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            sum: Duration::ZERO,
        }
    }
}

impl std::ops::AddAssign<&Latencies> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        let buckets = self.buckets.iter_mut().zip(&other.buckets);
        buckets.for_each(|(own, other)| *own += other);
        self.sum += other.sum;
    }
}

/// How long a command took, with its bucket.
#[derive(Clone, Copy)]
pub(super) struct Took {
    kind: Kind,
    bucket: usize,
    ns: u64,
}

impl Took {
    pub(super) fn new(kind: Kind, took: Duration) -> Self {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Self {
            kind,
            bucket: bucket(ns),
            ns,
        }
    }
}

struct Counters {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// Counters of [`Latencies`], by [`Kind`].
pub(super) struct Histograms([Counters; 3]);

const _: () = assert!(size_of::<Histograms>() == 1176, "docs/metrics.md says so");

impl Default for Histograms {
    fn default() -> Self {
        Self(array::from_fn(|_| Counters {
            buckets: array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
        }))
    }
}

impl Histograms {
    /// The socket has a command's answer.
    pub(super) fn note(&self, took: Took) {
        let counters = &self.0[took.kind as usize];
        add(&counters.buckets[took.bucket], 1);
        add(&counters.sum_ns, took.ns);
    }

    pub(super) fn read(&self) -> [Latencies; 3] {
        array::from_fn(|kind| Latencies {
            buckets: read(&self.0[kind].buckets),
            sum: Duration::from_nanos(self.0[kind].sum_ns.load(Ordering::Relaxed)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_reaches_it() {
        assert!(BUCKET_ENDS_NS.is_sorted_by(|a, b| a < b));
        assert_eq!(BUCKET_ENDS_NS[..5], [1000, 1500, 2000, 3000, 4000]);
        assert_eq!(BUCKET_ENDS_NS[46], 1000 << 23);
        for (index, end) in BUCKET_ENDS_NS.into_iter().enumerate() {
            assert_eq!(bucket(end), index);
            assert_eq!(bucket(end - 1), index);
            assert_eq!(bucket(end + 1), index + 1);
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }
}
