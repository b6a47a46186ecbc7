//! What nodes say to each other about chunks. How each message lies in an NVMe vendor command is
//! in [`codec`] and in `docs/formats/peer.md`.

pub mod codec;
pub mod sample;

use foundation::Epoch;

use crate::configuration::ChunkConfig;
use crate::identity::{
    BlockRange, ChunkId, Incarnation, JoinNumber, Sequence, Session, SnapshotId, TraceId, WriterToken,
};

/// What a write does to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Stores the bytes that travel with it.
    Data,
    /// Makes the blocks read as zeros and keeps them allocated.
    Zeroes,
    /// Makes the blocks read as zeros and gives their space back.
    Deallocate,
    /// Writes no block: it only puts the writer's token into force on every copy.
    Fence,
    /// Has the blocks be wrong until they are written: no copy has them right. Only to a copy that joins and keeps checksums.
    Lost,
}

/// A write in a chunk's order, from the write node to another copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaWrite {
    /// The chunk.
    pub chunk: ChunkId,
    /// The epoch it was ordered in.
    pub epoch: Epoch,
    /// Its place in the order.
    pub sequence: Sequence,
    /// Every in-sync copy has everything up to here.
    pub settled: Sequence,
    /// Reconciliation is complete: the receiver may serve.
    pub open: bool,
    /// The blocks.
    pub range: BlockRange,
    /// What it does.
    pub kind: WriteKind,
    /// To be durable before it is answered.
    pub force_unit_access: bool,
    /// The session it came from; none for reconciliation and resync.
    pub session: Option<Session>,
    /// The write lease it was made under.
    pub writer_token: WriterToken,
    /// The join the receiver takes part in.
    pub join: JoinNumber,
    /// Follows the request.
    pub trace: TraceId,
}

/// What a copy tells the new write node when it has sealed an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SealAnswer {
    /// The chunk.
    pub chunk: ChunkId,
    /// The epoch sealed.
    pub epoch: Epoch,
    /// The life that answers; the answer counts only for this one.
    pub incarnation: Incarnation,
    /// The greatest sequence this copy has seen.
    pub highest: Sequence,
    /// Regions this copy has marked.
    pub marks: Vec<u32>,
    /// The newest session of each host.
    pub sessions: Vec<Session>,
    /// The newest write lease.
    pub writer_token: WriterToken,
    /// It was a member of the epoch before in this life and took part in it to its end: it has all that it answered, and what else
    /// it has marked the write node of then knows to be under way.
    pub stays: bool,
}

/// Why a peer's command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The command's epoch is below the one sealed here.
    StaleEpoch,
    /// The epoch is not (yet) known here, or this incarnation is not a member of it.
    NotMember,
    /// The write's token is below the one stored here.
    FencedWriter,
    /// The join number is not the one this copy takes part in.
    WrongJoin,
    /// This copy's disk failed.
    DeviceFailed,
    /// No copy of that chunk is here.
    NoSuchChunk,
    /// The copy cannot keep this snapshot: it has gone on, or there is no space.
    NoSnapshot,
}

/// How much room is left on the disk of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoomLeft {
    /// Enough, or it is of a release that does not say it.
    #[default]
    Enough,
    /// Little: nothing more is to be begun that needs some.
    Little,
    /// None: something of this copy waits for it.
    Nothing,
}

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A new write node asks a member to seal the configuration's epoch.
    Seal {
        /// The chunk.
        chunk: ChunkId,
        /// The committed configuration.
        config: ChunkConfig,
    },
    /// The member has sealed.
    SealAnswer(SealAnswer),
    /// A write for a copy; its bytes travel beside it.
    ReplicaWrite(ReplicaWrite),
    /// The copy has the write.
    ReplicaAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of the write.
        epoch: Epoch,
        /// The write.
        sequence: Sequence,
        /// The life that has it.
        incarnation: Incarnation,
        /// The join it answers for.
        join: JoinNumber,
        /// How much room the disk of the copy has.
        room: RoomLeft,
    },
    /// Settled-through, when no write carries it.
    Settle {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// Every in-sync copy has everything up to here.
        settled: Sequence,
        /// A flush on every copy covers everything up to here.
        flushed: Sequence,
        /// Reconciliation is complete: the receiver may serve.
        open: bool,
    },
    /// A Settle has arrived.
    SettleAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// Its epoch.
        epoch: Epoch,
        /// Its settled-through.
        settled: Sequence,
        /// Its flushed-through.
        flushed: Sequence,
        /// Its word on serving.
        open: bool,
        /// The life that got it.
        incarnation: Incarnation,
        /// How much room the disk of the copy has.
        room: RoomLeft,
    },
    /// Make durable what has been answered.
    Flush {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// Numbers the flushes of an epoch.
        number: u64,
        /// The join the receiver takes part in.
        join: JoinNumber,
    },
    /// The flush is done.
    FlushAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The flush's epoch.
        epoch: Epoch,
        /// The flush.
        number: u64,
        /// The life that flushed.
        incarnation: Incarnation,
        /// The join it answers for.
        join: JoinNumber,
    },
    /// A copy that is not in sync tells the write node what it has and asks to join. Repeated until it does.
    Return {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch the copy knows to be committed.
        epoch: Epoch,
        /// The life that asks.
        incarnation: Incarnation,
        /// The epoch of its last flush as a member: what was written before, it has. 0: nothing.
        flushed_in: Epoch,
        /// Regions it has marked itself: it may have there what nobody else has.
        marks: Vec<u32>,
        /// A Join may name regions; not to one of a release before.
        takes_marks: bool,
    },
    /// The write node lets a copy join: from its answer on it gets every write.
    Join {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// Numbers the joins of an epoch.
        join: JoinNumber,
        /// The life that is let in.
        incarnation: Incarnation,
        /// The newest write lease.
        writer_token: WriterToken,
        /// The newest session of each host.
        sessions: Vec<Session>,
        /// Regions that it will be sent, which it may mark before they come: all of them or some, ascending.
        marks: Vec<u32>,
    },
    /// The copy takes part in this join.
    JoinAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of the join.
        epoch: Epoch,
        /// The join.
        join: JoinNumber,
        /// The life that joins.
        incarnation: Incarnation,
        /// It can have blocks be lost ([`WriteKind::Lost`]): it keeps checksums, and its program is not of a release before.
        keeps_lost: bool,
    },
    /// A member is told that one more is about to be in sync: from now on it counts it in rule 1 of the grants.
    Announce {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// The join.
        join: JoinNumber,
    },
    /// The member counts it.
    AnnounceAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of the join.
        epoch: Epoch,
        /// The join.
        join: JoinNumber,
        /// The life that counts it.
        incarnation: Incarnation,
    },
    /// The chunks of one part for which the sender asks grants of the receiver, from now on; none if the part is no more.
    Enroll {
        /// The asker's life.
        incarnation: Incarnation,
        /// The part; 0 to a peer that does not keep parts.
        part: u32,
        /// Numbers the asker's lists for this receiver, through all parts.
        list: u32,
        /// The chunks and the epochs the asker is in.
        entries: Vec<(ChunkId, Epoch)>,
    },
    /// Asks for a grant on a list.
    Beacon {
        /// The asker's life.
        incarnation: Incarnation,
        /// Numbers the beacons of that life to this receiver, through all parts.
        round: u64,
        /// The part; none if the asker is of a release that knows no parts.
        part: Option<u32>,
        /// The list.
        list: u32,
    },
    /// A grant of one term on a list, but for the chunks refused.
    Grant {
        /// The asker's life.
        incarnation: Incarnation,
        /// The beacon it answers.
        round: u64,
        /// The list it is about.
        list: u32,
        /// False: the list is not known here, send it again.
        known: bool,
        /// Whether a list for each part is kept here. Never said to who did not name a part.
        keeps_parts: bool,
        /// Chunks of the list that are not granted.
        refused: Vec<ChunkId>,
    },
    /// A member has read blocks that do not fit their checksums.
    Repair {
        /// The chunk.
        chunk: ChunkId,
        /// The member's epoch.
        epoch: Epoch,
        /// The blocks.
        range: BlockRange,
    },
    /// No copy has these blocks right.
    Lost {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// The blocks.
        range: BlockRange,
    },
    /// Every copy has all up to a sequence and nothing beyond: the member is to keep its copy as it is.
    Snapshot {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// The snapshot's number.
        snapshot: SnapshotId,
        /// The sequence.
        sequence: Sequence,
    },
    /// The snapshot is durable.
    SnapshotAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of the snapshot.
        epoch: Epoch,
        /// Its number.
        snapshot: SnapshotId,
        /// Its sequence.
        sequence: Sequence,
        /// The life that made it.
        incarnation: Incarnation,
    },
    /// Asks whether the member is still in the write node's epoch.
    Confirm {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// For which snapshot.
        snapshot: SnapshotId,
    },
    /// It is.
    ConfirmAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch.
        epoch: Epoch,
        /// For which snapshot.
        snapshot: SnapshotId,
        /// The life that says so.
        incarnation: Incarnation,
    },
    /// The write node asks a member for one page of its copy, to repair others with it; or another copy, which may have it right though
    /// it lacks other things.
    Fetch {
        /// The chunk.
        chunk: ChunkId,
        /// The write node's epoch.
        epoch: Epoch,
        /// Numbers the repairs of an epoch.
        number: u64,
        /// The page.
        range: BlockRange,
        /// Any copy is asked that is there: its bytes count only if the write node's own checksum is theirs, which has all that was
        /// acknowledged.
        any: bool,
    },
    /// The page; its bytes travel beside it.
    FetchAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of the repair.
        epoch: Epoch,
        /// The repair.
        number: u64,
        /// The life that answers.
        incarnation: Incarnation,
        /// The page.
        range: BlockRange,
        /// Any copy was asked.
        any: bool,
        /// False: it does not fit its checksum here, either.
        found: bool,
    },
    /// What does a node have of a chunk (for `meta rebuild`)?
    Query {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What this node has of it.
    QueryAnswer {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch sealed.
        sealed: Epoch,
        /// The configuration stored.
        config: Option<ChunkConfig>,
    },
    /// A command was refused.
    Refused {
        /// The chunk.
        chunk: ChunkId,
        /// The command's epoch.
        epoch: Epoch,
        /// The epoch sealed here.
        sealed: Epoch,
        /// Why.
        refusal: Refusal,
    },
}

impl Message {
    /// The chunk a message is about; none for those between nodes as such.
    pub fn chunk(&self) -> Option<ChunkId> {
        match self {
            Self::Seal { chunk, .. }
            | Self::ReplicaAnswer { chunk, .. }
            | Self::Settle { chunk, .. }
            | Self::SettleAnswer { chunk, .. }
            | Self::Flush { chunk, .. }
            | Self::FlushAnswer { chunk, .. }
            | Self::Return { chunk, .. }
            | Self::Join { chunk, .. }
            | Self::JoinAnswer { chunk, .. }
            | Self::Announce { chunk, .. }
            | Self::AnnounceAnswer { chunk, .. }
            | Self::Repair { chunk, .. }
            | Self::Lost { chunk, .. }
            | Self::Snapshot { chunk, .. }
            | Self::SnapshotAnswer { chunk, .. }
            | Self::Confirm { chunk, .. }
            | Self::ConfirmAnswer { chunk, .. }
            | Self::Fetch { chunk, .. }
            | Self::FetchAnswer { chunk, .. }
            | Self::Query { chunk }
            | Self::QueryAnswer { chunk, .. }
            | Self::Refused { chunk, .. } => Some(*chunk),
            Self::SealAnswer(answer) => Some(answer.chunk),
            Self::ReplicaWrite(write) => Some(write.chunk),
            Self::Enroll { .. } | Self::Beacon { .. } | Self::Grant { .. } => None,
        }
    }
}
