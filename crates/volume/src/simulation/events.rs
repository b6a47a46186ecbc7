//! What can happen in the simulation, in the order of its times.

use foundation::Epoch;

use super::forced::ForcedEvent;
use super::keep::KeepEvent;
use super::mend::MendEvent;
use super::past::PastRead;
use super::reserve::ReserveEvent;
use super::restored::RestoredEvent;
use super::whole::WholeEvent;
use super::world::Payload;
use crate::configuration::ChunkConfig;
use crate::identity::{IoToken, PersistToken, SnapshotId};
use crate::message::Message;
use crate::output::{Operation, Request, Status};

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Event {
    Peer {
        from: usize,
        to: usize,
        message: Message,
        payload: Payload,
    },
    Ask {
        to: usize,
        client: usize,
        attempt: u64,
        chunk: usize,
        request: Request,
        payload: Payload,
    },
    Answer {
        client: usize,
        attempt: u64,
        status: Status,
        values: Vec<u32>,
    },
    Local {
        node: usize,
        life: u64,
        chunk: usize,
        io: IoToken,
    },
    Persisted {
        node: usize,
        life: u64,
        chunk: usize,
        token: PersistToken,
    },
    Tick {
        node: usize,
        life: u64,
    },
    Config {
        node: usize,
        chunk: usize,
        config: ChunkConfig,
        /// Whether the chunk has a place on that node.
        placed: bool,
    },
    Heartbeat {
        node: usize,
        life: u64,
    },
    SendHeartbeat {
        node: usize,
        life: u64,
    },
    Ended {
        node: usize,
        life: u64,
    },
    ShowBoard {
        node: usize,
        life: u64,
    },
    PastEnd {
        read: PastRead,
    },
    Masters,
    Commit {
        /// The life of the store that is asked: one that was replaced meanwhile does nothing.
        store: u64,
        chunk: usize,
        config: ChunkConfig,
        /// Where its copies are from now on; none to leave them where they are.
        places: Option<Vec<usize>>,
    },
    ClientStep {
        client: usize,
    },
    ClientTimeout {
        client: usize,
        attempt: u64,
    },
    Fault,
    Crash {
        node: usize,
        power: bool,
        quick: bool,
    },
    Restart {
        node: usize,
    },
    /// There is room again on the disk of a copy.
    MakeRoom {
        node: usize,
        chunk: usize,
    },
    /// The node looks whether there is.
    LookForRoom {
        node: usize,
        life: u64,
        chunk: usize,
    },
    Heal,
    HealCheck,
    SnapshotStep,
    /// The coordinator of a snapshot asks the write node of a chunk.
    Order {
        to: usize,
        chunk: usize,
        epoch: Epoch,
        operation: Operation,
    },
    Ordered {
        chunk: usize,
        operation: Operation,
        status: Status,
    },
    SnapshotTimeout {
        snapshot: SnapshotId,
    },
    /// Of a node's care for copies of snapshots.
    Keep {
        node: usize,
        life: u64,
        event: KeepEvent,
    },
    /// Of blocks of snapshots that do not fit, and of who reads them.
    Mend {
        node: usize,
        life: u64,
        event: MendEvent,
    },
    /// Of what hosts reserve.
    Reserve(ReserveEvent),
    /// Of a store that is restored.
    Restored(RestoredEvent),
    /// Of a copy that is served by force.
    Forced(ForcedEvent),
    /// Of masters of their own.
    Whole(WholeEvent),
    /// Some node's disks become slow.
    SlowDisks,
    /// A block is lost.
    Lose,
    /// A fault that is written down.
    Injected {
        number: usize,
        /// What else happens at its moment has happened.
        late: bool,
    },
}

impl Event {
    /// The node whose process must run for this to be handled.
    pub(super) fn node(&self) -> Option<usize> {
        match self {
            Event::Peer { to, .. } | Event::Ask { to, .. } | Event::Order { to, .. } => Some(*to),
            Event::Local { node, .. }
            | Event::Persisted { node, .. }
            | Event::Tick { node, .. }
            | Event::SendHeartbeat { node, .. }
            | Event::ShowBoard { node, .. }
            | Event::LookForRoom { node, .. }
            | Event::Keep { node, .. }
            | Event::Mend { node, .. }
            | Event::Config { node, .. } => Some(*node),
            Event::Reserve(event) => event.node(),
            Event::Restored(event) => event.node(),
            Event::Whole(event) => event.node(),
            _ => None,
        }
    }
}
