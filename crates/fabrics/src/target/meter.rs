//! What the commands of namespaces amount to: counts, bytes, errors and how long they took.
//!
//! One [`Meter`] for each namespace and reactor. The reactor's thread alone writes it, with plain loads and stores;
//! who looks adds up the reactors' meters. Cost of a command: some ten of those stores, and no look at the clock: a
//! command begins with the turn of the reactor that took it in, and ends with the turn after which the socket has its
//! answer, and the reactor knows when its turns began.

use std::array;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocols::nvme::status::StatusType;
use protocols::nvme::{Command, NvmOpcode, Status};

/// The kinds of commands that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Everything else, fused operations among them.
    Other,
}

impl Kind {
    /// All, in the order in which arrays have them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    pub(super) fn of(command: &Command) -> Self {
        match command.nvm_opcode() {
            Some(NvmOpcode::Read) => Self::Read,
            Some(NvmOpcode::Write) => Self::Write,
            _ => Self::Other,
        }
    }
}

/// The kinds of errors that are told apart: the status code types of NVM Express Base Specification 2.0c, figure 93.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Generic, and what is reserved.
    Generic,
    /// Of the command.
    CommandSpecific,
    /// Media and data integrity; a Compare that found a difference is one.
    Media,
    /// Of the path.
    Path,
    /// Of ours.
    Vendor,
}

impl ErrorKind {
    /// All, in the order in which arrays have them.
    pub const ALL: [Self; 5] = [
        Self::Generic,
        Self::CommandSpecific,
        Self::Media,
        Self::Path,
        Self::Vendor,
    ];

    fn of(status: Status) -> Self {
        match status.status_type() {
            StatusType::CommandSpecific => Self::CommandSpecific,
            StatusType::MediaAndDataIntegrity => Self::Media,
            StatusType::PathRelated => Self::Path,
            StatusType::VendorSpecific => Self::Vendor,
            StatusType::Generic | StatusType::Reserved => Self::Generic,
        }
    }
}

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

/// What commands amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands answered, by [`Kind`].
    pub commands: [u64; 3],
    /// Bytes moved by commands that succeeded, by [`Kind`]; those of other kinds are not counted.
    pub bytes: [u64; 3],
    /// Commands answered with an error, by [`ErrorKind`].
    pub errors: [u64; 5],
    /// By [`Kind`]: from when the command was taken in until the socket had its answer.
    pub latencies: [Latencies; 3],
}

impl std::ops::AddAssign<&Tally> for Tally {
    fn add_assign(&mut self, other: &Self) {
        let add = |own: &mut [u64], others: &[u64]| {
            own.iter_mut().zip(others).for_each(|(own, other)| *own += other);
        };
        add(&mut self.commands, &other.commands);
        add(&mut self.bytes, &other.bytes);
        add(&mut self.errors, &other.errors);
        for (own, other) in self.latencies.iter_mut().zip(&other.latencies) {
            add(&mut own.buckets, &other.buckets);
            own.sum += other.sum;
        }
    }
}

/// One writer: a plain addition, without the bus lock of `fetch_add`.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

fn read<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    array::from_fn(|index| counters[index].load(Ordering::Relaxed))
}

struct LatencyCounters {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// See the module.
pub(super) struct Meter {
    /// `None` for commands that reach no namespace of ours.
    nsid: Option<u32>,
    reactor: u32,
    commands: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    errors: [AtomicU64; 5],
    latencies: [LatencyCounters; 3],
}

impl Meter {
    fn new(nsid: Option<u32>, reactor: u32) -> Self {
        Self {
            nsid,
            reactor,
            commands: Default::default(),
            bytes: Default::default(),
            errors: Default::default(),
            latencies: array::from_fn(|_| LatencyCounters {
                buckets: array::from_fn(|_| AtomicU64::new(0)),
                sum_ns: AtomicU64::new(0),
            }),
        }
    }

    /// A command is answered.
    pub(super) fn answered(&self, kind: Kind, bytes: u32, status: Status) {
        add(&self.commands[kind as usize], 1);
        if status.is_success() {
            add(&self.bytes[kind as usize], bytes.into());
        } else {
            add(&self.errors[ErrorKind::of(status) as usize], 1);
        }
    }

    /// The socket has a command's answer.
    pub(super) fn sent(&self, kind: Kind, took: Duration) {
        let latencies = &self.latencies[kind as usize];
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&latencies.buckets[bucket(took_ns)], 1);
        add(&latencies.sum_ns, took_ns);
    }

    fn tally(&self) -> Tally {
        Tally {
            commands: read(&self.commands),
            bytes: read(&self.bytes),
            errors: read(&self.errors),
            latencies: array::from_fn(|kind| Latencies {
                buckets: read(&self.latencies[kind].buckets),
                sum: Duration::from_nanos(self.latencies[kind].sum_ns.load(Ordering::Relaxed)),
            }),
        }
    }
}

/// A reactor's hand on a meter. Each command has a clone of the `Rc` around it, which costs no locked instruction, as
/// one of the meter would.
pub(super) struct Writer(Arc<Meter>);

impl Deref for Writer {
    type Target = Meter;

    fn deref(&self) -> &Meter {
        &self.0
    }
}

/// The meters of a subsystem: one for each namespace number that there ever was and each reactor that served it, so
/// that counts do not fall when a namespace goes and comes again. Locked when queues open namespaces, never for I/O.
#[derive(Default)]
pub(super) struct Meters(Mutex<Vec<Arc<Meter>>>);

impl Meters {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Meter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The meter that `reactor` writes for a namespace.
    fn of(&self, nsid: Option<u32>, reactor: u32) -> Arc<Meter> {
        let mut all = self.all();
        let found = all
            .iter()
            .find(|meter| (meter.nsid, meter.reactor) == (nsid, reactor));
        found.cloned().unwrap_or_else(|| {
            let meter = Arc::new(Meter::new(nsid, reactor));
            all.push(meter.clone());
            meter
        })
    }

    /// As [`Meters::of`], to be written.
    pub(super) fn writer(&self, nsid: Option<u32>, reactor: u32) -> Rc<Writer> {
        Rc::new(Writer(self.of(nsid, reactor)))
    }

    /// What all reactors have done for a namespace.
    pub(super) fn tally(&self, nsid: Option<u32>) -> Tally {
        let mut tally = Tally::default();
        for meter in self.all().iter().filter(|meter| meter.nsid == nsid) {
            tally += &meter.tally();
        }
        tally
    }

    /// What all reactors have done.
    pub(super) fn total(&self) -> Tally {
        let mut tally = Tally::default();
        for meter in self.all().iter() {
            tally += &meter.tally();
        }
        tally
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

    #[test]
    fn reactors_add_up_and_namespaces_stay_apart() {
        let meters = Meters::default();
        let (one, two) = (meters.of(Some(1), 0), meters.of(Some(1), 1));
        assert!(Arc::ptr_eq(&one, &meters.of(Some(1), 0)));
        one.answered(Kind::Read, 4096, Status::SUCCESS);
        two.answered(Kind::Read, 4096, Status::SUCCESS);
        two.answered(Kind::Write, 4096, Status::LBA_OUT_OF_RANGE);
        two.sent(Kind::Read, Duration::from_micros(5));
        meters
            .of(None, 0)
            .answered(Kind::Other, 0, Status::CONTROLLER_PATHING_ERROR);
        let tally = meters.tally(Some(1));
        assert_eq!((tally.commands, tally.bytes), ([2, 1, 0], [8192, 0, 0]));
        assert_eq!(tally.errors, [1, 0, 0, 0, 0]);
        assert_eq!(
            tally.latencies[0].buckets[6 - 1],
            1,
            "more than 4 us, at most 6 us"
        );
        assert_eq!(tally.latencies[0].sum, Duration::from_micros(5));
        assert_eq!(meters.tally(Some(2)), Tally::default());
        assert_eq!(meters.total().commands, [2, 1, 1]);
        assert_eq!(meters.total().errors, [1, 0, 0, 1, 0]);
    }
}
