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

use protocols::nvme::status::StatusType;
use protocols::nvme::{Command, NvmOpcode, Status};

use super::histogram::{Histograms, Latencies, Took};

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
            *own += other;
        }
    }
}

/// One writer: a plain addition, without the bus lock of `fetch_add`.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

pub(super) fn read<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    array::from_fn(|index| counters[index].load(Ordering::Relaxed))
}

/// See the module.
pub(super) struct Meter {
    /// `None` for commands that reach no namespace of ours.
    nsid: Option<u32>,
    reactor: u32,
    commands: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    errors: [AtomicU64; 5],
    histograms: Histograms,
}

impl Meter {
    fn new(nsid: Option<u32>, reactor: u32) -> Self {
        Self {
            nsid,
            reactor,
            commands: Default::default(),
            bytes: Default::default(),
            errors: Default::default(),
            histograms: Histograms::default(),
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
    pub(super) fn sent(&self, took: Took) {
        self.histograms.note(took);
    }

    fn tally(&self) -> Tally {
        Tally {
            commands: read(&self.commands),
            bytes: read(&self.bytes),
            errors: read(&self.errors),
            latencies: self.histograms.read(),
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn reactors_add_up_and_namespaces_stay_apart() {
        let meters = Meters::default();
        let (one, two) = (meters.of(Some(1), 0), meters.of(Some(1), 1));
        assert!(Arc::ptr_eq(&one, &meters.of(Some(1), 0)));
        one.answered(Kind::Read, 4096, Status::SUCCESS);
        two.answered(Kind::Read, 4096, Status::SUCCESS);
        two.answered(Kind::Write, 4096, Status::LBA_OUT_OF_RANGE);
        two.sent(Took::new(Kind::Read, Duration::from_micros(5)));
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
