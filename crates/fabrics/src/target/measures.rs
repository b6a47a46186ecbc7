//! What a target has done, as any thread may look at it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use protocols::nvme::Status;

use super::histogram::{Histograms, Latencies, Took};
use super::meter::{Kind, Tally, add};
use super::queue::Queue;
use super::share::Totals;
use super::subsystem::{Subsystem, Target};

/// What one reactor has done for a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorMeasures {
    /// The reactor's number in its process.
    pub reactor: u32,
    /// Connections that it was given.
    pub connections: u64,
    /// Those of the connections that are still open.
    pub current_connections: u64,
    /// Admin queues that hosts have connected.
    pub admin_queues: u64,
    /// I/O queues that hosts have connected.
    pub io_queues: u64,
    /// Those of the admin queues that are still connected.
    pub current_admin_queues: u64,
    /// Those of the I/O queues that are still connected.
    pub current_io_queues: u64,
    /// I/O commands answered, well or not, by [`Kind`].
    pub commands: [u64; 3],
    /// Bytes moved by those that succeeded, by [`Kind`].
    pub bytes: [u64; 3],
    /// By [`Kind`]: from when a command was taken in until the socket had its answer.
    pub latencies: [Latencies; 3],
}

/// An I/O queue that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMeasures {
    /// The controller's number.
    pub cntlid: u16,
    /// The queue's.
    pub qid: u16,
    /// The host's name.
    pub host_nqn: String,
    /// The reactor that serves it.
    pub reactor: u32,
    /// Commands begun, by [`Kind`].
    pub commands: [u64; 3],
    /// Bytes that its commands read from namespaces and wrote to them, as the health log counts them.
    pub bytes: [u64; 2],
    /// By [`Kind`]: from when a command was taken in until the socket had its answer.
    pub latencies: [Latencies; 3],
}

/// What a subsystem has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemMeasures {
    /// Its name.
    pub nqn: String,
    /// Hosts' associations that live.
    pub controllers: u64,
    /// The I/O queues that are connected.
    pub queues: Vec<QueueMeasures>,
    /// The namespaces that are there, by number.
    pub namespaces: Vec<(u32, Tally)>,
    /// All commands, those of removed namespaces and of none among them.
    pub total: Tally,
}

/// See [`ReactorMeasures`]. The reactor's thread alone writes.
#[derive(Default)]
pub(super) struct Counts {
    reactor: u32,
    connections: AtomicU64,
    closed_connections: AtomicU64,
    admin_queues: AtomicU64,
    closed_admin_queues: AtomicU64,
    io_queues: AtomicU64,
    closed_io_queues: AtomicU64,
    commands: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    histograms: Histograms,
}

impl Counts {
    pub(super) fn accepted(&self) {
        add(&self.connections, 1);
    }

    pub(super) fn ended(&self) {
        add(&self.closed_connections, 1);
    }

    /// A connection has become a queue.
    pub(super) fn opened(&self, queue: &Queue) {
        match queue {
            Queue::New => {}
            Queue::Admin(_) => add(&self.admin_queues, 1),
            Queue::Io(_) => add(&self.io_queues, 1),
        }
    }

    /// A queue's connection ends.
    pub(super) fn closed(&self, queue: &Queue) {
        match queue {
            Queue::New => {}
            Queue::Admin(_) => add(&self.closed_admin_queues, 1),
            Queue::Io(_) => add(&self.closed_io_queues, 1),
        }
    }

    pub(super) fn answered(&self, kind: Kind, bytes: u32, status: Status) {
        add(&self.commands[kind as usize], 1);
        if status.is_success() {
            add(&self.bytes[kind as usize], bytes.into());
        }
    }

    /// The socket has a command's answer.
    pub(super) fn sent(&self, took: Took) {
        self.histograms.note(took);
    }

    pub(super) fn read(&self) -> ReactorMeasures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // What ended is read first: it cannot be more than what began.
        let closed = [
            &self.closed_connections,
            &self.closed_admin_queues,
            &self.closed_io_queues,
        ]
        .map(get);
        let opened = [&self.connections, &self.admin_queues, &self.io_queues].map(get);
        let current = |index: usize| opened[index].saturating_sub(closed[index]);
        ReactorMeasures {
            reactor: self.reactor,
            connections: opened[0],
            current_connections: current(0),
            admin_queues: opened[1],
            io_queues: opened[2],
            current_admin_queues: current(1),
            current_io_queues: current(2),
            commands: self.commands.each_ref().map(get),
            bytes: self.bytes.each_ref().map(get),
            latencies: self.histograms.read(),
        }
    }
}

impl Target {
    fn counts(&self) -> MutexGuard<'_, Vec<Arc<Counts>>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reactor counts for this target, whichever listeners its connections came to.
    pub(super) fn counts_of(&self, reactor: u32) -> Arc<Counts> {
        let mut all = self.counts();
        let found = all.iter().find(|counts| counts.reactor == reactor);
        found.cloned().unwrap_or_else(|| {
            let counts = Arc::new(Counts {
                reactor,
                ..Counts::default()
            });
            all.push(counts.clone());
            counts
        })
    }

    /// What each reactor has done, in the order in which they began.
    pub fn reactor_measures(&self) -> Vec<ReactorMeasures> {
        self.counts().iter().map(|counts| counts.read()).collect()
    }

    /// What each subsystem has done. Takes the locks of those who connect and manage, for moments; waits for no I/O.
    pub fn subsystem_measures(&self) -> Vec<SubsystemMeasures> {
        self.subsystems()
            .iter()
            .map(|subsystem| subsystem.measures())
            .collect()
    }
}

impl Subsystem {
    fn measures(&self) -> SubsystemMeasures {
        let controllers = self.controllers();
        let live = controllers.iter().filter(|controller| !controller.has_ended());
        let mut queues = Vec::new();
        let mut count = 0;
        for controller in live {
            count += 1;
            for (qid, share) in controller.queue_shares() {
                let Totals {
                    commands,
                    read_bytes,
                    written_bytes,
                    ..
                } = share.totals();
                queues.push(QueueMeasures {
                    cntlid: controller.cntlid,
                    qid,
                    host_nqn: controller.host().nqn.clone(),
                    reactor: share.reactor(),
                    commands,
                    bytes: [read_bytes, written_bytes],
                    latencies: share.latencies(),
                });
            }
        }
        let namespaces = self.namespaces();
        let namespaces = namespaces.iter().map(|namespace| {
            let nsid = namespace.nsid;
            (nsid, self.meters().tally(Some(nsid)))
        });
        SubsystemMeasures {
            nqn: self.nqn().as_str().to_owned(),
            controllers: count,
            queues,
            namespaces: namespaces.collect(),
            total: self.meters().total(),
        }
    }
}
