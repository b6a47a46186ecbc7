//! What an I/O queue shares with its controller: counters that the queue's core alone writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module. Counts grow; a loss of order between two of them harms nobody.
#[derive(Default)]
pub(super) struct QueueShare {
    commands: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    /// The queue has been told to look at its namespaces and has not done so yet.
    pub(super) looking: AtomicBool,
    /// The queue ends the commands of a preempted host.
    pub(super) draining: AtomicBool,
}

/// Sums over queues, for the health log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) commands: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.commands += other.commands;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
    }
}

/// One writer: a plain addition, without the bus lock of `fetch_add`.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl QueueShare {
    pub(super) fn note_command(&self) {
        add(&self.commands, 1);
    }

    pub(super) fn note_read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes as u64);
    }

    pub(super) fn note_write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.written_bytes, bytes as u64);
    }

    pub(super) fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            commands: get(&self.commands),
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
        }
    }
}
