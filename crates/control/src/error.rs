//! Why a control call was refused.

use std::time::Duration;

use foundation::{ByteCount, Epoch};
use thiserror::Error;

use crate::identity::{
    ChunkId, ClusterId, DiskId, Incarnation, JoinTokenId, NodeId, SnapshotNumber, VolumeNumber, WriterToken,
};
use crate::model::GeometryError;
use crate::record::RecordError;
use crate::store::StoreError;
use crate::transfer::Closed;

/// What sort of refusal an error is, for those who answer over a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The call makes no sense in any state.
    Invalid,
    /// It names something that does not exist.
    NotFound,
    /// It would create what exists.
    AlreadyExists,
    /// Not to who asks.
    Denied,
    /// The cluster's state does not permit it.
    FailedPrecondition,
    /// Lost a comparison: look at the new state, then decide again.
    Aborted,
    /// Not now; perhaps it took effect. Repeat it.
    Unavailable,
    /// What is stored cannot be read.
    DataLoss,
    /// A mistake of ours.
    Internal,
}

/// Why a control call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the fields are what the texts name them")]
pub enum ControlError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error("the metadata store is closed: {}", match .why {
        Closed::Moved => "its cluster was moved to another store with \"redhare meta export --move\"; start the masters on that one, or import the file there first",
        Closed::Filling => "an import into it was broken off; repeat \"redhare meta import\"",
    })]
    StoreClosed { why: Closed },
    #[error(
        "the metadata store has what this release does not know (feature bits {unknown:#x}); run the release that wrote it or a later one"
    )]
    StoreFeatures { unknown: u64 },
    #[error("other masters changed the same records {attempts} times in a row; repeat the call")]
    Contended { attempts: u32 },
    #[error("{field} {problem}; {remedy}")]
    Argument {
        field: &'static str,
        problem: String,
        remedy: &'static str,
    },
    #[error(
        "node {node} belongs to cluster {theirs}, this is cluster {ours}; name its own masters, or give it empty disks"
    )]
    ForeignCluster {
        node: NodeId,
        theirs: ClusterId,
        ours: ClusterId,
    },
    #[error(
        "the store is of cluster {ours}, the master's certificate of cluster {theirs}; give the master a certificate of its \
         own cluster (an authority for it is made with \"redhare ca init --cluster-id {ours}\"), or name another store"
    )]
    ForeignCertificate { theirs: ClusterId, ours: ClusterId },
    #[error(
        "the masters' metadata are from a backup, and nothing is changed before the nodes have said what they did since: {decided} of {chunks} chunks are settled{awaited}; \"redhare meta restored\" says what is missing"
    )]
    Restoring {
        decided: usize,
        chunks: usize,
        awaited: String,
    },
    #[error("there is no node {node} in this cluster; register it first")]
    NoSuchNode { node: NodeId },
    #[error(
        "node {node} was removed from this cluster; to use its machine again, end it, empty its data directory and wipe its disks (\"blkdiscard\", or remove the files), and start it as a new node"
    )]
    NodeRemoved { node: NodeId },
    #[error("node {node} cannot be removed: {why}; {remedy}")]
    NodeInUse {
        node: NodeId,
        why: String,
        remedy: String,
    },
    #[error(
        "incarnation {theirs} of node {node} is over, its target has reached incarnation {known}; register again with incarnation 0 to get a new one"
    )]
    StaleIncarnation {
        node: NodeId,
        theirs: Incarnation,
        known: Incarnation,
    },
    #[error(
        "disk {disk} of node {node} would shrink to {capacity}, but {allocated} of it are promised to copies; give it back its size, or delete volumes first"
    )]
    DiskInUse {
        node: NodeId,
        disk: DiskId,
        capacity: ByteCount,
        allocated: ByteCount,
    },
    #[error("node {node} has no disk {disk}; \"redhare status --json\" names its disks")]
    NoSuchDisk { node: NodeId, disk: DiskId },
    #[error(
        "node {node} cannot be drained: it has copies of chunks that need {needed} different nodes, and only {others} others are alive and not drained; add nodes, or undrain some (of a disk alone, also another disk of the node may take its copies: it needs room, and each chunk a copy more in sync than its minimum)"
    )]
    DrainNodes {
        node: NodeId,
        needed: usize,
        others: usize,
    },
    #[error(
        "node {node} cannot be drained: of its {copies} copies only {placed} find room on other nodes, {lacking} are lacking; add disks, or delete volumes or snapshots"
    )]
    DrainRoom {
        node: NodeId,
        copies: usize,
        placed: usize,
        lacking: ByteCount,
    },
    #[error(
        "node {node} cannot be drained: {copies} of its copies would come into a rack that has another copy of the same chunk, since no other rack has room; add nodes or disks in other racks, or drain all nodes of this rack"
    )]
    DrainRacks { node: NodeId, copies: usize },
    #[error("{chunk} stays as it is: {why}")]
    MoveRefused { chunk: ChunkId, why: String },
    #[error("{chunk} is not served by force: {why}")]
    ForceRefused { chunk: ChunkId, why: String },
    #[error(
        "volume \"{volume}\" is being made: none of its chunks is served yet, and nothing is lost; wait until \"redhare volume list\" shows it ready"
    )]
    ForceUnready { volume: String },
    #[error(
        "the writes of volume \"{name}\" cannot be pinned to node {node}: it has copies of {there} of its {chunks} chunks; move one copy of each of the others there with \"redhare volume move\", or name a node that has all"
    )]
    PinWithoutCopies {
        name: String,
        node: NodeId,
        there: u32,
        chunks: u32,
    },
    #[error("there is no volume \"{name}\"; \"redhare volume list\" shows those that exist")]
    NoSuchVolumeName { name: String },
    #[error("there is no volume {number}; \"redhare volume list\" shows those that exist")]
    NoSuchVolume { number: VolumeNumber },
    #[error(
        "a volume \"{name}\" exists already, as volume {number} of {size}; choose another name, or delete it first"
    )]
    VolumeExists {
        name: String,
        number: VolumeNumber,
        size: ByteCount,
    },
    #[error(
        "volume \"{name}\" is being deleted; wait until \"redhare volume list\" does not show it any more"
    )]
    VolumeDeleting { name: String },
    #[error(
        "volume \"{volume}\" has no snapshot \"{name}\"; \"redhare volume snapshot list {volume}\" shows those it has"
    )]
    NoSuchSnapshot { volume: String, name: String },
    #[error("volume \"{volume}\" has a snapshot \"{name}\" already; choose another name, or delete it first")]
    SnapshotExists { volume: String, name: String },
    #[error(
        "volume \"{volume}\" has {count} snapshots, which is the most; delete one with \"redhare volume snapshot delete {volume} NAME\""
    )]
    SnapshotsMax { volume: String, count: usize },
    #[error(
        "volume \"{volume}\" cannot {what} now: its snapshot \"{name}\" is being made; try again in a moment (one that is not finished is given up after {} s)", .term.as_secs()
    )]
    SnapshotPending {
        volume: String,
        name: String,
        what: &'static str,
        term: Duration,
    },
    #[error(
        "volume \"{volume}\" has {count} snapshots, which would be lost with it; delete them first (\"redhare volume snapshot list {volume}\" shows them)"
    )]
    VolumeHasSnapshots { volume: String, count: usize },
    #[error(
        "snapshot \"{name}\" of volume \"{volume}\" is the origin of {clones}; give each of them data of its own first (\"redhare volume flatten NAME\"), or delete it"
    )]
    SnapshotHasClones {
        volume: String,
        name: String,
        clones: String,
    },
    #[error(
        "{chunk} has {found} copies in sync on disks that have room for {size} more, of nodes that live and are not drained, and a clone needs {minimum} there; wait until \"redhare status\" shows no degraded chunks, or add room"
    )]
    CloneUnplaced {
        chunk: ChunkId,
        found: usize,
        minimum: u8,
        size: ByteCount,
    },
    #[error(
        "volume \"{volume}\" cannot be flattened yet: it is being made, or grows; wait until \"redhare volume list\" shows it ready in its new size"
    )]
    FlattenUnsettled { volume: String },
    #[error(
        "volume \"{volume}\" has {found}{growing}, and more was to be added to the {expected} that it was seen to have: another call has let it grow, or this one has and its answer was lost; look with \"redhare volume show {volume}\" before you repeat it"
    )]
    NotThatSize {
        volume: String,
        expected: ByteCount,
        found: ByteCount,
        growing: String,
    },
    #[error(
        "volume \"{volume}\" has {found}{growing}, and not {wanted}: this call had it grow, and that was taken back meanwhile, whole or in part; look with \"redhare volume show {volume}\", and ask anew if it is still wanted"
    )]
    GrowthTakenBack {
        volume: String,
        found: ByteCount,
        growing: String,
        wanted: ByteCount,
    },
    #[error(
        "volume \"{volume}\" cannot have {wanted} again: {placed} of the {new} chunks by which it is growing to {grown} have places that nodes were told of, and keep them; {}", to_have_less(*.least, *.grown)
    )]
    GrowthPlaced {
        volume: String,
        wanted: ByteCount,
        grown: ByteCount,
        placed: u32,
        new: u32,
        least: ByteCount,
    },
    #[error(
        "volume \"{volume}\" of {size} is growing to {grown} ({placed} of the {new} new chunks have places), and to have {wanted} instead takes that growth back, which somebody else may have asked for: wait until \"redhare volume show {volume}\" has it grown, or say that it is meant with --cancel-growth"
    )]
    GrowthUnderWay {
        volume: String,
        wanted: ByteCount,
        size: ByteCount,
        grown: ByteCount,
        placed: u32,
        new: u32,
    },
    #[error(
        "volume \"{volume}\" cannot grow while it is flattened; wait until \"redhare volume list\" shows no origin of it"
    )]
    Flattening { volume: String },
    #[error(
        "snapshot {number} of volume {volume} was given up or deleted meanwhile, it cannot be completed; make another one"
    )]
    SnapshotOver {
        volume: VolumeNumber,
        number: SnapshotNumber,
    },
    #[error(
        "volume \"{volume}\" is not ready for a snapshot: it is being made, or grows; wait until \"redhare volume list\" shows it ready in its new size"
    )]
    NotSettled { volume: String },
    #[error(
        "volume \"{name}\" is leased by \"{holder}\" for another {} s; end that program, or wait", .remaining.as_secs()
    )]
    VolumeLeased {
        name: String,
        holder: String,
        remaining: Duration,
    },
    #[error(
        "{copies} copies need {copies} nodes, but {live} of {known} known nodes are alive with a disk; start more nodes, or ask for fewer copies"
    )]
    NotEnoughNodes { copies: u8, live: usize, known: usize },
    #[error(
        "{copies} copies want {copies} racks, but {live} of {known} have a living node with a disk (a node without a rack counts as one); start nodes in other racks, or ask for fewer copies, or for copies on different nodes only (\"redhare volume create --spread node\")"
    )]
    NotEnoughRacks { copies: u8, live: usize, known: usize },
    #[error(
        "{awaited} of {known} known nodes have not been heard since this master began to lead, and without them: {why}; repeat the call in a few seconds"
    )]
    NodesAwaited {
        awaited: usize,
        known: usize,
        why: Box<ControlError>,
    },
    #[error(
        "{wanted} in {copies} copies do not fit: there is room for {room} on different {places}, {missing} more are needed on each of {copies} {places}; add disks, delete volumes or snapshots, ask for less, or let masters promise more than disks have (\"redhare master --overcommit\")"
    )]
    NotEnoughSpace {
        copies: u8,
        wanted: ByteCount,
        room: ByteCount,
        missing: ByteCount,
        /// "nodes" or "racks".
        places: &'static str,
    },
    #[error("{chunk} does not exist; the volume has {chunks} chunks, fetch its map again")]
    NoSuchChunk { chunk: ChunkId, chunks: u32 },
    #[error(
        "the configuration of {chunk} is at epoch {current}, the proposal was made for epoch {expected}; fetch the map and decide again"
    )]
    StaleProposal {
        chunk: ChunkId,
        expected: Epoch,
        current: Epoch,
    },
    #[error(
        "incarnation {incarnation} of node {node} may not propose for {chunk}: node {write_node} orders its writes; only the write node's in-sync life proposes"
    )]
    NotWriteNode {
        chunk: ChunkId,
        node: NodeId,
        incarnation: Incarnation,
        write_node: NodeId,
    },
    #[error(
        "the proposal leaves {members} in-sync copies of {chunk}, its minimum is {minimum}; writes wait until more copies are in sync"
    )]
    BelowMinimum {
        chunk: ChunkId,
        members: usize,
        minimum: u8,
    },
    #[error("the proposal for {chunk} names node {node}, {problem}; {remedy}")]
    Member {
        chunk: ChunkId,
        node: NodeId,
        problem: &'static str,
        remedy: &'static str,
    },
    #[error(
        "volume {volume} is leased by \"{holder}\" for another {:.1} s (token {}); end that program, or try again then", .remaining.as_secs_f64(), .token.0
    )]
    WriterHeld {
        volume: VolumeNumber,
        holder: String,
        remaining: Duration,
        token: WriterToken,
    },
    #[error(
        "hosts have reserved volume \"{volume}\" ({registrants} registered), so no native writer gets it; have them release it (\"nvme resv-release\"), or void it with \"redhare volume reservations {volume} --clear\""
    )]
    Reserved { volume: String, registrants: usize },
    #[error(
        "a native writer has volume \"{volume}\" (token {}), so hosts cannot reserve it; once nobody writes it natively, \"redhare volume reservations {volume} --clear\" gives it to its hosts", .token.0
    )]
    WrittenNatively { volume: String, token: WriterToken },
    #[error(
        "hosts cannot reserve volume \"{volume}\" yet: node {node} (and {others} more) runs a release that does not know reservations, or has not said yet that it does; upgrade every node and try again"
    )]
    NodeBeforeReservations {
        volume: String,
        node: NodeId,
        others: usize,
    },
    #[error(
        "writes of volume \"{volume}\" cannot be made durable before they are acknowledged: node {node} (and {others} more) runs a release that does not do that, or has not said yet that it does; upgrade every node and try again"
    )]
    NodeBeforeSyncWrites {
        volume: String,
        node: NodeId,
        others: usize,
    },
    #[error(
        "volume \"{volume}\" has {chunks} chunks, but what its hosts have agreed on was put in force on {told} only; the portal will hear of the others and does it again"
    )]
    NotEveryChunk { volume: String, chunks: u32, told: u32 },
    #[error(
        "node {node} does not export volume \"{volume}\"; see its portals with \"redhare volume show {volume}\""
    )]
    NotPortal { volume: String, node: NodeId },
    #[error(
        "write lease {} of volume {volume} is over: token {} has been given out since or it was given back; stop writing and acquire it anew", .token.0, .current.0
    )]
    WriterLost {
        volume: VolumeNumber,
        token: WriterToken,
        current: WriterToken,
    },
    #[error(
        "a reader of volume {volume} holds generation {held} and asked for {asked}; a reader only goes forward, use a new session to read older content"
    )]
    GenerationBack {
        volume: VolumeNumber,
        held: u64,
        asked: u64,
    },
    #[error("there is no join token {id}; \"redhare ca token list\" shows those that exist")]
    NoSuchJoinToken { id: JoinTokenId },
    #[error(
        "there is no join token {id} with that secret: it was revoked or has been forgotten since it expired, it was copied with a mistake, or it is another cluster's; ask for another one (\"redhare ca token create\")"
    )]
    JoinTokenUnknown { id: JoinTokenId },
    #[error(
        "join token {id} expired {} s ago; ask for another one (\"redhare ca token create\")", .ago.as_secs()
    )]
    JoinTokenExpired { id: JoinTokenId, ago: Duration },
    #[error(
        "join token {id} was for {uses} uses, and all of them are taken; ask for another one (\"redhare ca token create\")"
    )]
    JoinTokenUsedUp { id: JoinTokenId, uses: u32 },
    #[error(
        "join token {id} is not for \"{asked}\"; ask for one that is (\"redhare ca token create --name {asked}\"), or join with an empty data directory as somebody new"
    )]
    JoinTokenName { id: JoinTokenId, asked: String },
    #[error(
        "there are {count} join tokens that have not expired, which is the most; revoke some (\"redhare ca token revoke\")"
    )]
    JoinTokensMax { count: usize },
}

/// What to do about a growth of which chunks have places.
fn to_have_less(least: ByteCount, grown: ByteCount) -> String {
    match least == grown {
        true => "it goes on to grow".to_owned(),
        false => format!(
            "name a size from {least} on, with --cancel-growth, to have it grow by those only, or wait until there is room for all"
        ),
    }
}

impl ControlError {
    /// What sort of refusal this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(StoreError::Unavailable { .. } | StoreError::NotLeading { .. })
            | Self::NodesAwaited { .. }
            | Self::Restoring { .. } => ErrorKind::Unavailable,
            Self::Store(StoreError::TooLarge { .. }) => ErrorKind::Internal,
            Self::Record(_) => ErrorKind::DataLoss,
            Self::Geometry(_)
            | Self::Argument { .. }
            | Self::BelowMinimum { .. }
            | Self::Member { .. }
            | Self::GenerationBack { .. } => ErrorKind::Invalid,
            Self::NoSuchNode { .. }
            | Self::NoSuchDisk { .. }
            | Self::NoSuchVolumeName { .. }
            | Self::NoSuchVolume { .. }
            | Self::NoSuchSnapshot { .. }
            | Self::NoSuchJoinToken { .. }
            | Self::NoSuchChunk { .. } => ErrorKind::NotFound,
            // Of who asks, and not of the cluster.
            Self::JoinTokenUnknown { .. }
            | Self::JoinTokenExpired { .. }
            | Self::JoinTokenUsedUp { .. }
            | Self::JoinTokenName { .. } => ErrorKind::Denied,
            Self::VolumeExists { .. } | Self::SnapshotExists { .. } => ErrorKind::AlreadyExists,
            Self::Contended { .. } | Self::StaleProposal { .. } | Self::SnapshotOver { .. } => {
                ErrorKind::Aborted
            }
            Self::ForeignCluster { .. }
            | Self::ForeignCertificate { .. }
            | Self::StoreClosed { .. }
            | Self::StoreFeatures { .. }
            | Self::StaleIncarnation { .. }
            | Self::NodeRemoved { .. }
            | Self::NodeInUse { .. }
            | Self::DiskInUse { .. }
            | Self::VolumeDeleting { .. }
            | Self::VolumeLeased { .. }
            | Self::SnapshotsMax { .. }
            | Self::SnapshotPending { .. }
            | Self::VolumeHasSnapshots { .. }
            | Self::SnapshotHasClones { .. }
            | Self::CloneUnplaced { .. }
            | Self::FlattenUnsettled { .. }
            | Self::Flattening { .. }
            | Self::NotThatSize { .. }
            | Self::GrowthPlaced { .. }
            | Self::GrowthTakenBack { .. }
            | Self::GrowthUnderWay { .. }
            | Self::NotSettled { .. }
            | Self::JoinTokensMax { .. }
            | Self::NotEnoughNodes { .. }
            | Self::NotEnoughRacks { .. }
            | Self::NotEnoughSpace { .. }
            | Self::DrainNodes { .. }
            | Self::DrainRoom { .. }
            | Self::DrainRacks { .. }
            | Self::MoveRefused { .. }
            | Self::ForceRefused { .. }
            | Self::ForceUnready { .. }
            | Self::PinWithoutCopies { .. }
            | Self::NotWriteNode { .. }
            | Self::WriterHeld { .. }
            | Self::Reserved { .. }
            | Self::WrittenNatively { .. }
            | Self::NodeBeforeReservations { .. }
            | Self::NodeBeforeSyncWrites { .. }
            | Self::NotEveryChunk { .. }
            | Self::NotPortal { .. }
            | Self::WriterLost { .. } => ErrorKind::FailedPrecondition,
        }
    }
}
