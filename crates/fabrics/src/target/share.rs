//! What an I/O queue shares with its controller: counters that the queue's core alone writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use reactor::CoreHandle;

use super::histogram::{Histograms, Latencies, Took};
use super::meter::{Kind, add};

/// See the module. Counts grow; a loss of order between two of them harms nobody.
#[derive(Default)]
pub(super) struct QueueShare {
    /// The reactor that serves the queue.
    reactor: u32,
    /// By kind.
    commands: [AtomicU64; 3],
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    histograms: Histograms,
    /// The queue has been told to look at its namespaces and has not done so yet.
    pub(super) looking: AtomicBool,
    /// The queue ends the commands of a preempted host.
    pub(super) draining: AtomicBool,
}

/// Sums over queues, for the health log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// By kind.
    pub(super) commands: [u64; 3],
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        for (own, other) in self.commands.iter_mut().zip(other.commands) {
            *own += other;
        }
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
    }
}

impl QueueShare {
    /// For a queue that the calling reactor serves.
    pub(super) fn new() -> Self {
        Self {
            reactor: CoreHandle::current().index(),
            ..Self::default()
        }
    }

    pub(super) fn reactor(&self) -> u32 {
        self.reactor
    }

    pub(super) fn note_command(&self, kind: Kind) {
        add(&self.commands[kind as usize], 1);
    }

    /// The socket has a command's answer.
    pub(super) fn note_sent(&self, took: Took) {
        self.histograms.note(took);
    }

    /// By kind.
    pub(super) fn latencies(&self) -> [Latencies; 3] {
        self.histograms.read()
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
            commands: self.commands.each_ref().map(get),
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
        }
    }
}
