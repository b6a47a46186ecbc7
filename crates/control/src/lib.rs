//! What the masters decide, without I/O, clocks or threads: the state of a cluster, placement,
//! chunk configurations and leases.
//!
//! The truth is in a [`MetadataStore`]. [`Controller`] reads it, decides, and commits one
//! transaction that compares what it has read; it answers only what is committed. So a master may
//! be killed at any point, and two that both believe they lead do no harm: the later one loses
//! the comparison and looks again. In memory are only hints that cost time when lost: when which
//! node was last heard, since when a lease has been seen unchanged, which chunks changed lately.
//!
//! Every call takes `now`, an instant of the master's own clock.

pub mod configuration;
mod controller;
mod error;
mod identity;
mod keys;
pub mod mastership;
mod memory_store;
mod model;
mod pace;
pub mod placement;
mod places;
mod planted;
pub mod racks;
pub mod rebuild;
mod record;
mod restored;
mod settings;
mod slowness;
mod store;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod transfer;

pub use controller::balance::{Balance, MoveStatus, RebalanceState};
pub use controller::changes::{Changes, Scope};
pub use controller::clones::{Flattening, OriginView};
pub use controller::damage::{Damage, Scrub, Told};
pub use controller::data_keys::DataPathProof;
pub use controller::disk_moves::{DiskMoveStatus, MovedCopy};
pub use controller::drain::Drained;
pub use controller::exports::{Export, ExportVolume, PORTALS_MAX};
pub use controller::force::{CopyFound, CopyState, FORCED_MAX, ForcedCopy, ShownCopy, Unserved, Worth};
pub use controller::growth::{Based, Growing, Resize};
pub use controller::health::{DiskHealth, DiskReport, DiskSample, DiskState, DisksNoted};
pub use controller::joining::{CreateJoinToken, JOIN_USES_MAX};
pub use controller::leases::{ReaderView, WriterView};
pub use controller::nodes::{Heartbeat, HeartbeatAnswer, Registered, Registration, Resync};
pub use controller::releases::Releases;
pub use controller::reservations::ReservationsView;
pub use controller::restored::{Consent, RestoredView};
pub use controller::room::Unplaced;
pub use controller::snapshots::SnapshotKey;
pub use controller::status::{NodeStatus, Status, VolumeStatus};
pub use controller::uses::VolumeUse;
pub use controller::volumes::CreateVolume;
pub use controller::{Controller, NodeView};
pub use error::{ControlError, ErrorKind};
pub use identity::{
    ChunkId, ClusterId, DiskId, Incarnation, JoinTokenId, NodeId, ParseUuidError, SessionId, SnapshotNumber,
    Uuid, VolumeNumber, WriterToken,
};
pub use memory_store::MemoryStore;
pub use model::{
    Chunk, ClusterRecord, Copy, DATA_KEY_BYTES, DataKeys, DataSecret, Disk, DiskMove, Geometry,
    GeometryError, JoinRole, JoinToken, Moving, Node, Origin, ReaderLease, ReservationNotice, Reservations,
    Snapshot, SnapshotState, Volume, VolumeState, WriterLease,
};
pub use racks::{Rack, Spread};
pub use record::RecordError;
pub use settings::Settings;
pub use store::{Committed, Compare, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};
