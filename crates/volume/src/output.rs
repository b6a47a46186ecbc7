//! What the core wants done, in order, and what it is asked to do.

use std::time::Duration;

use foundation::Epoch;

use crate::configuration::ChunkConfig;
use crate::identity::{
    BlockRange, ChunkId, DataToken, IoToken, NodeId, PersistToken, RequestId, Sequence, Session, SnapshotId,
    TraceId, WriterToken,
};
use crate::message::{Message, WriteKind};
use crate::record::RecordDelta;

/// What a client asks of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Bytes of the range, into the buffers the caller holds under the request's name.
    Read,
    /// A write.
    Write {
        /// What it does.
        kind: WriteKind,
        /// Where its bytes are; only for [`WriteKind::Data`].
        data: Option<DataToken>,
        /// To be durable before it is answered.
        force_unit_access: bool,
        /// Only if the blocks hold what the caller expects, in one step beside all other writes: the caller compares what it is
        /// asked to read ([`ReadPurpose::Compare`]). Only of [`WriteKind::Data`].
        compares: bool,
    },
    /// Makes everything acknowledged before durable on every in-sync copy.
    Flush,
    /// Keeps the chunk as it is at one moment, on every in-sync copy, durable when answered, and from then on holds
    /// acknowledgements of writes that are not in it (`docs/decisions/0081`).
    Cut(SnapshotId),
    /// Acknowledges what is held for a snapshot: every chunk of the volume has been cut. Done only if it was held without
    /// a break, and every member says that no other write node can have acknowledged anything.
    Release(SnapshotId),
    /// Gives a snapshot up: what is held for it is acknowledged at once.
    Abandon(SnapshotId),
}

impl Operation {
    /// Whether it is about blocks, not about the chunk as a whole.
    pub(crate) fn names_blocks(self) -> bool {
        !self.is_fence() && matches!(self, Self::Read | Self::Write { .. })
    }

    /// Whether it may need room.
    pub(crate) fn stores(self) -> bool {
        matches!(
            self,
            Self::Write {
                kind: WriteKind::Data | WriteKind::Zeroes,
                ..
            }
        )
    }

    /// Whether it puts a lease or a claim into force and writes nothing.
    pub(crate) fn is_fence(self) -> bool {
        matches!(
            self,
            Self::Write {
                kind: WriteKind::Fence,
                ..
            }
        )
    }
}

/// A client's request to one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// What to do.
    pub operation: Operation,
    /// The blocks; ignored by a flush, none in a fence.
    pub range: BlockRange,
    /// The epoch of the client's map.
    pub epoch: Epoch,
    /// The client's session.
    pub session: Session,
    /// The client's write lease.
    pub writer_token: WriterToken,
    /// It is written where its node has nothing of its own yet: not done if too few copies have room ([`Status::NoRoom`]). Only looked at where
    /// [`crate::Member::looks_at_room`].
    pub needs_room: bool,
    /// Follows the request.
    pub trace: TraceId,
}

impl Request {
    /// The token of the reservations by which a portal let its host through; none of a native client.
    pub(crate) fn portal_token(&self) -> Option<WriterToken> {
        let asks_portal = self.session.host.is_through_portals();
        asks_portal.then_some(self.writer_token)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Done,
    /// Done: from now on only writes under the claim of this number are taken from this host.
    Claimed(u64),
    /// Not done: the client's map is older than this epoch.
    StaleEpoch(Epoch),
    /// Not done: another node orders the writes of this epoch.
    NotWriteNode(Epoch),
    /// Not done: this copy may not serve the read now; another copy or the write node may.
    NotReady,
    /// Not done: the host has opened a newer session.
    StaleSession,
    /// Not done: a newer write lease is in force.
    FencedWriter(WriterToken),
    /// Not done: the blocks are not all in the chunk, or there are none.
    OutOfRange,
    /// Not done: too many requests at once.
    Busy,
    /// Not done: the connection was lost before it began.
    Cancelled,
    /// Perhaps done, perhaps still to be done, never acknowledged: try again in a new session.
    Unknown,
    /// Not done: the snapshot has been given up, and its number is not to be used again.
    SnapshotAborted,
    /// There is no room for it on the disks of too many copies: not done, or still to be done when there is, never acknowledged. A later
    /// write of its blocks comes after it.
    NoRoom,
    /// Not done: the blocks do not hold what was expected.
    Differs,
    /// Not done: no copy has these blocks right, so they compare with nothing until they are written.
    Lost,
    /// The disk of this copy failed, or what it holds does not fit its checksum and no other copy has it right.
    DeviceFailed,
}

/// Why a local read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadPurpose {
    /// For a client's request, into its buffers.
    Request(RequestId),
    /// For reconciliation or resync, into a buffer of the caller's, handed in with the completion.
    Reconcile,
    /// To be compared with what this request expects: [`crate::NodeCore::handle_compared`] says how they are. A read that fails, or
    /// does not fit its checksums, is reported as any other.
    Compare(RequestId),
}

/// Something to do, in the order in which it was put out. Whatever depends on a
/// [`Output::Persist`] or on a local operation is put out only after its end was reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make a change of the record durable, in order; several may be made durable at once.
    Persist {
        /// To be reported when it and all before it are durable.
        token: PersistToken,
        /// The change.
        delta: RecordDelta,
    },
    /// Write to the local copy.
    LocalWrite {
        /// To be reported when the device has answered.
        io: IoToken,
        /// The blocks.
        range: BlockRange,
        /// What to do.
        kind: WriteKind,
        /// The bytes, for [`WriteKind::Data`].
        data: Option<DataToken>,
        /// To be durable when reported.
        force_unit_access: bool,
        /// A piece of what this copy, which comes back, lacks: nobody else waits for it.
        is_resync: bool,
    },
    /// Read from the local copy.
    LocalRead {
        /// To be reported when the device has answered.
        io: IoToken,
        /// The blocks.
        range: BlockRange,
        /// For what.
        purpose: ReadPurpose,
    },
    /// Make durable every local write reported as done before this was put out.
    LocalFlush {
        /// To be reported when durable.
        io: IoToken,
    },
    /// Make durable every local write reported as done before this was put out, and its checksums, and keep the local copy
    /// as it then is under this number. None is under way. To fail for want of space is no failure of the disk.
    LocalSnapshot {
        /// To be reported when the snapshot is durable, or cannot be made.
        io: IoToken,
        /// Its name. One that is there already cannot be made.
        snapshot: SnapshotId,
        /// Which writes it has: all up to here.
        sequence: Sequence,
    },
    /// Send a message. It may be lost; it will be sent again as long as it matters.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message,
        /// The bytes that travel with a [`WriteKind::Data`] replica write.
        data: Option<DataToken>,
    },
    /// A request has ended.
    Complete {
        /// The request.
        request: RequestId,
        /// How.
        status: Status,
    },
    /// The core needs these bytes no more. The caller keeps them for sends still under way.
    Release {
        /// The bytes.
        data: DataToken,
    },
    /// Ask the masters to replace the configuration of epoch `expected` by this one.
    Propose {
        /// Compare: only if this is still the committed epoch.
        expected: Epoch,
        /// And swap.
        config: ChunkConfig,
        /// Why.
        reason: Reason,
    },
    /// The local disk failed: this copy serves no more in this life.
    Failed,
    /// No copy has these blocks right, as this write node has found: reading them is an error until they are written.
    Lost {
        /// The blocks.
        range: BlockRange,
    },
}

/// Why a configuration is to be replaced: what an operator wants to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A member said that its disk is gone.
    DiskLost,
    /// Something waits for a member that has said nothing for so long.
    Silent(Duration),
    /// Something has waited for so long for a member that answers other things.
    Hangs(Duration),
    /// It has not sealed an epoch for so long, though its node lives.
    NotSealed(Duration),
    /// Something has waited for so long for the write node's own disk.
    HangsHere(Duration),
    /// This life is to order the writes, and the disk with its copy did not come back.
    NoCopyHere,
    /// The write node's own disk is gone.
    Resigns,
    /// The copy on this node has all it had missed.
    InSync(NodeId),
    /// The copy on this node was to be in sync, and the masters have not made it so.
    JoinUndone(NodeId),
    /// Little room is left on its disk, and enough other copies have some.
    NoRoom,
    /// The disk of the copy on this node, without which nothing is written, has room again: so it says in a release before.
    RoomAgain(NodeId),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::DiskLost => write!(f, "it says that its disk is gone"),
            Reason::Silent(time) => write!(f, "it has been silent for {time:?} while something waits for it"),
            Reason::Hangs(time) => write!(
                f,
                "something has waited for it for {time:?}, though it answers other things"
            ),
            Reason::NotSealed(time) => write!(f, "it has not sealed the chunk's epoch for {time:?}"),
            Reason::HangsHere(time) => write!(f, "the disk here has not answered for {time:?}"),
            Reason::NoCopyHere => write!(f, "there is no copy here, its disk did not come back"),
            Reason::Resigns => write!(f, "the disk here is gone"),
            Reason::NoRoom => write!(f, "its disk is full, and the others have room"),
            Reason::InSync(node) => write!(f, "node {node} has all that it had missed"),
            Reason::JoinUndone(node) => {
                write!(
                    f,
                    "node {node} was to be in sync again, and the masters have not made it so"
                )
            }
            Reason::RoomAgain(node) => {
                write!(
                    f,
                    "the disk of node {node}, for which writes wait, has room again"
                )
            }
        }
    }
}

/// An output and the chunk it is about; none for messages between nodes as such.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkOutput {
    /// The chunk.
    pub chunk: Option<ChunkId>,
    /// What to do.
    pub output: Output,
}
