//! What can fail about one chunk copy.

use bdev::IoError;
use volume::{ChunkId, SnapshotId};

/// Why a copy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// No such disk.
    #[error("no disk {disk:032x} is at this node: it may have been removed; place the copy elsewhere")]
    NoSuchDisk {
        /// The disk asked for.
        disk: u128,
    },
    /// Nodes serve blocks of 4096 bytes, and no others.
    #[error(
        "volumes of {block_bytes}-byte blocks are not served yet; create the volume with 4096-byte blocks"
    )]
    BlockSize {
        /// The volume's block size.
        block_bytes: u32,
    },
    /// A copy is here that cannot be used: a new one in its place would pass for it.
    #[error(
        "a copy of {chunk:?} is here whose record cannot be read: it has to be copied again from another node, not made anew"
    )]
    Damaged {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What a copy notes about itself could outgrow its place.
    #[error(
        "the record of a copy of {chunk:?} may grow to {need_bytes} bytes, there is room for {have_bytes}: create the volume with smaller chunks or larger regions"
    )]
    RecordTooLong {
        /// The chunk.
        chunk: ChunkId,
        /// What it may grow to.
        need_bytes: usize,
        /// What there is room for.
        have_bytes: usize,
    },
    /// The store refused.
    #[error("the disk could not take a copy of {chunk:?}: {source}")]
    Store {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: blobstore::Error,
    },
    /// One that is here waits for the masters.
    #[error(
        "a copy of {chunk:?} is on that disk since before, which is used once the masters have said that its place is there"
    )]
    InDoubt {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Another order has come to it first.
    #[error("a copy of {chunk:?} is being made already")]
    BeingMade {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A clone's first copy is made of this node's copy of the snapshot.
    #[error(
        "the copy of snapshot {} of {chunk:?}, of which a clone's is to be made, is not here yet: it is made from other nodes' first", .snapshot.0
    )]
    SnapshotAwaited {
        /// The chunk of the snapshot.
        chunk: ChunkId,
        /// The snapshot's number.
        snapshot: SnapshotId,
    },
    /// It was deleted meanwhile.
    #[error("no copy of {chunk:?} is here any more")]
    NoSuchCopy {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Each number is used once.
    #[error("a snapshot {} of {chunk:?} is here already: make another one under a new number", .snapshot.0)]
    SnapshotExists {
        /// The chunk.
        chunk: ChunkId,
        /// Its number.
        snapshot: SnapshotId,
    },
    /// What the copy holds could not be made durable.
    #[error("the copy of {chunk:?} could not be flushed: {source}")]
    Flush {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: IoError,
    },
    /// The record could not be written.
    #[error("the record of a copy of {chunk:?} could not be written: {source}")]
    Record {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: IoError,
    },
    /// A copy that was to go to another disk: one of the two disks.
    #[error("the copy of {chunk:?} cannot be copied to another disk: {source}; it stays where it is")]
    Move {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: IoError,
    },
    /// Its disk has failed, or a move of it.
    #[error("the copy of {chunk:?} takes no further part until its node is started anew")]
    Stopped {
        /// The chunk.
        chunk: ChunkId,
    },
    /// It would need the room of both on the other disk.
    #[error(
        "the copy of {chunk:?} shares blocks with a snapshot or with what it is a clone of, and stays on its disk: delete the snapshots, or wait until the clone \
         is flattened"
    )]
    Shares {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What is copied is old before all is.
    #[error(
        "the copy of {chunk:?} is written faster than it can be copied to another disk: it stays where it is until it is written less"
    )]
    Written {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Of two equal ones on two disks one could not be deleted, or nobody knows.
    #[error(
        "the copy of {chunk:?}, which was moving, may be on two disks, since it could not be deleted from one of them ({source}): it takes no further part \
         until its node is started anew; look at the disks' health"
    )]
    MayStay {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: blobstore::Error,
    },
    /// The record in a snapshot of a copy.
    #[error(
        "the record in a snapshot of {chunk:?} cannot be read: {why}; other nodes may have copies of the snapshot"
    )]
    SnapshotRecord {
        /// The chunk.
        chunk: ChunkId,
        /// What is wrong.
        why: String,
    },
    /// Nobody has it, or can be asked.
    #[error(
        "no other node that can be reached now has blocks of snapshot {} of {chunk:?} right: start the nodes that had it when it was made", .snapshot.0
    )]
    NoSource {
        /// The chunk.
        chunk: ChunkId,
        /// The snapshot's number.
        snapshot: SnapshotId,
    },
    /// They are not of the same moment.
    #[error(
        "other nodes' copies of snapshot {} of {chunk:?} do not end with the same write: none is made of them; this is a fault of Redhare, please report it", .snapshot.0
    )]
    SourcesDiffer {
        /// The chunk.
        chunk: ChunkId,
        /// The snapshot's number.
        snapshot: SnapshotId,
    },
    /// The volumes themselves come first.
    #[error(
        "the disk {path} has {free_bytes} bytes free, of which {reserve_bytes} are left to volumes: no copy of snapshot {} of {chunk:?} is made there; delete snapshots, or add disks", .snapshot.0
    )]
    NoRoomForSnapshot {
        /// The chunk.
        chunk: ChunkId,
        /// The snapshot's number.
        snapshot: SnapshotId,
        /// The disk.
        path: String,
        /// What is free on it.
        free_bytes: u64,
        /// What is left to others.
        reserve_bytes: u64,
    },
    /// The disk.
    #[error("a copy of a snapshot of {chunk:?} cannot be written: {source}")]
    WriteSnapshot {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: IoError,
    },
    /// A range that is none of one chunk.
    #[error(
        "what was asked of a snapshot does not lie in one chunk of it, such as {chunk:?}: the volume has another geometry"
    )]
    OutsideSnapshot {
        /// A chunk of it.
        chunk: ChunkId,
    },
    /// The disk.
    #[error("a snapshot of {chunk:?} cannot be read: {source}")]
    ReadSnapshot {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: IoError,
    },
    /// Two copies do not agree.
    #[error(
        "another node's copy of snapshot {} of {chunk:?} has block {block} right by its own checksums, but not by this copy's: it is not written here;          this is a fault of Redhare, please report it", .snapshot.0
    )]
    SourceDiffers {
        /// The chunk.
        chunk: ChunkId,
        /// The snapshot's number.
        snapshot: SnapshotId,
        /// The block.
        block: u32,
    },
    /// The disk took the right bytes, and has others.
    #[error(
        "block {block} of a snapshot of {chunk:?} was written, and is not what was written when it is read again: look at the disk's health"
    )]
    NotMended {
        /// The chunk.
        chunk: ChunkId,
        /// The block.
        block: u32,
    },
    /// What is on the disk is not what was written.
    #[error(
        "block {block} of a snapshot of {chunk:?} does not fit its checksum; other nodes may have it right"
    )]
    SnapshotDamaged {
        /// The chunk.
        chunk: ChunkId,
        /// The first such block.
        block: u32,
    },
}
