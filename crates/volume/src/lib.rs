//! Replicated, striped volumes: where blocks lie, which copy to ask, and the replication of one
//! chunk as a pure state machine. Nothing here knows a socket or a thread; only [`client`] does I/O,
//! over peers handed in, and reads a clock.
//!
//! [`Geometry`] and [`ChunkMap`] are the client's side, [`NodeCore`] (with a [`Member`] for each
//! copy and one [`Grants`] for all) the node's. The tests run whole clusters of `NodeCore`s in
//! virtual time (`simulation`), with crashes, partitions and a checker of linearizability.

pub mod client;
mod configuration;
mod format;
mod geometry;
#[cfg(test)]
mod golden;
mod grants;
mod identity;
mod intent;
mod keep;
mod map;
mod member;
pub mod message;
pub mod names;
mod node;
mod note;
mod output;
mod planted;
mod reconcile;
mod record;
mod sealing;
mod sequence;
mod settings;
#[cfg(test)]
mod simulation;
mod sums;

pub use configuration::{COPIES_MAX, ChunkConfig, ConfigurationError, Membership};
pub use format::FormatError;
pub use geometry::{
    GROUPS_MAX, Geometry, GeometryError, GeometrySizes, PAGE_BYTES, PIECE_BYTES_MAX, Piece, Pieces,
    REGIONS_MAX, RUN_BYTES_MAX,
};
pub use grants::Grants;
pub use identity::{
    BlockRange, ChunkId, ChunkIndex, ClusterId, DataToken, HostId, Incarnation, IoToken, JoinNumber, NodeId,
    PersistToken, RequestId, Sequence, Session, SnapshotId, TraceId, VolumeNumber, WriterToken,
};
pub use keep::{Keeper, SnapshotCopy};
pub use map::{ChunkMap, MapError, Reaction, Route};
pub use member::{Member, Phase, ResyncProgress};
pub use message::{Message, ReplicaWrite, WriteKind};
pub use node::NodeCore;
pub use note::{SnapshotNote, SnapshotNoteError};
pub use output::{ChunkOutput, Operation, Output, ReadPurpose, Reason, Request, Status};
pub use record::{ChunkRecord, RecordDelta, SESSIONS_MAX};
pub use settings::Settings;
pub use sums::{
    DurableSums, Found, LOST_BLOCK, PageFound, PastVerdict, SUM_PAGE_BYTES, SUMS_PER_PAGE, Sums, Verdict,
    readdress_sums, sum_of, sum_pages,
};
