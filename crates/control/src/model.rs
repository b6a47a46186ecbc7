//! The records of the cluster: what a [`crate::MetadataStore`] holds.

mod chunk;
mod data_keys;
mod disk_move;
mod geometry;
mod join_token;
mod lease;
mod node;
mod reservation;
mod snapshot;
mod volume;

pub use chunk::{Chunk, Copy, Moving};
pub use data_keys::{DATA_KEY_BYTES, DataKeys, DataSecret};
pub use disk_move::DiskMove;
pub use geometry::{Geometry, GeometryError};
pub use join_token::{JoinRole, JoinToken};
pub use lease::{ReaderLease, WriterLease};
pub use node::{ClusterRecord, Disk, Node};
pub use reservation::{ReservationNotice, Reservations};
pub use snapshot::{Snapshot, SnapshotState};
pub use volume::{Origin, Volume, VolumeState};

pub(crate) use node::{
    FEATURE_CLONES, FEATURE_RACKS, FEATURE_RESERVATIONS, FEATURE_RESTORED, FEATURE_SYNC_WRITES,
    FEATURES_KNOWN, Number,
};

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
