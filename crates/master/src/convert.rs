//! Between the controller's types and those of the wire.

use std::time::Duration;

use control::{
    Chunk, ChunkId, ControlError, CreateVolume, Disk, DiskId, ErrorKind, Flattening, Growing, Incarnation,
    Node, NodeId, NodeView, OriginView, Rack, Resync, Snapshot, SnapshotKey, SnapshotNumber, Spread, Uuid,
    Volume, VolumeNumber, VolumeState, VolumeUse,
};
use foundation::{ByteCount, Epoch, KeptCopies};
use proto::v1;
use thiserror::Error;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Why a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// Not 16 bytes, or all zero.
    #[error("{field} is no UUID but {length} bytes; send its 16 bytes, not all of them zero")]
    Uuid {
        /// The field.
        field: &'static str,
        /// How many bytes came.
        length: usize,
    },
    /// A number too large for its field.
    #[error("{field} is {value}, at most {limit} is possible; send a smaller number")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What came.
        value: u32,
        /// The greatest possible.
        limit: u32,
    },
    /// Blocks that no node serves yet.
    #[error("block_bytes is {block_bytes}, which the nodes do not serve yet; use 4096")]
    BlockBytes {
        /// What came.
        block_bytes: u32,
    },
    /// A field that must be there.
    #[error("{field} is missing; send it")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// What the controller itself would refuse.
    #[error(transparent)]
    Refused(#[from] ControlError),
}

impl From<ConvertError> for Status {
    fn from(error: ConvertError) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

/// A refusal as gRPC has it.
pub(crate) fn status(error: &ControlError) -> Status {
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Aborted => Code::Aborted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Internal => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    if matches!(error, ControlError::NodesAwaited { .. }) {
        let value = MetadataValue::from_static("nodes");
        status.metadata_mut().insert(proto::client::NOT_YET, value);
    }
    // Masters on a backup may know less than a node does: that life is not over.
    if matches!(error, ControlError::StaleIncarnation { theirs, known, .. } if theirs <= known) {
        let value = MetadataValue::from_static("life");
        status.metadata_mut().insert(proto::client::OUTLIVED, value);
    }
    status
}

/// The text form of a UUID on the wire; the bytes' number where they are none.
pub fn uuid_text(bytes: &[u8]) -> String {
    match Uuid::from_bytes(bytes) {
        Some(uuid) => uuid.to_string(),
        None => format!("({} bytes)", bytes.len()),
    }
}

pub(crate) fn uuid(field: &'static str, bytes: &[u8]) -> Result<Uuid, ConvertError> {
    let length = bytes.len();
    Uuid::from_bytes(bytes).ok_or(ConvertError::Uuid { field, length })
}

/// A UUID that may be left empty.
pub(crate) fn optional_uuid(field: &'static str, bytes: &[u8]) -> Result<Option<Uuid>, ConvertError> {
    if bytes.is_empty() {
        Ok(None)
    } else {
        uuid(field, bytes).map(Some)
    }
}

pub(crate) fn disks(disks: &[v1::Disk]) -> Result<Vec<Disk>, ConvertError> {
    let disk = |disk: &v1::Disk| {
        Ok(Disk {
            id: DiskId(uuid("disks.uuid", &disk.uuid)?),
            capacity: ByteCount(disk.capacity_bytes),
            used: ByteCount(disk.used_bytes),
            held: disk.held_bytes.map(ByteCount),
        })
    };
    disks.iter().map(disk).collect()
}

/// The rack that a node names, if it names one.
pub(crate) fn rack(name: &str) -> Result<Option<Rack>, ConvertError> {
    let rack = (!name.is_empty()).then(|| Rack::new(name));
    Ok(rack.transpose()?)
}

pub(crate) fn chunk_ids(chunks: &[v1::ChunkId]) -> Vec<ChunkId> {
    let id = |chunk: &v1::ChunkId| ChunkId {
        volume: VolumeNumber(chunk.volume),
        index: chunk.index,
    };
    chunks.iter().map(id).collect()
}

pub(crate) fn snapshot_key(id: &v1::SnapshotId) -> SnapshotKey {
    (VolumeNumber(id.volume), SnapshotNumber(id.number))
}

pub(crate) fn kept_copies(kept: &v1::KeptCopies) -> KeptCopies {
    KeptCopies {
        count: kept.count,
        digest: kept.digest,
    }
}

pub(crate) fn complete_snapshots(
    (version, complete): (u64, std::collections::BTreeMap<SnapshotKey, Snapshot>),
) -> v1::CompleteSnapshots {
    let named = complete
        .into_iter()
        .map(|((volume, number), snapshot)| v1::CompleteSnapshot {
            volume: volume.0,
            number: number.0,
            chunks: snapshot.chunks,
            name: snapshot.name,
            created_unix_ms: snapshot.created_unix_ms,
        });
    v1::CompleteSnapshots {
        version,
        snapshots: named.collect(),
    }
}

pub(crate) fn snapshot_id((volume, number): &SnapshotKey) -> v1::SnapshotId {
    v1::SnapshotId {
        volume: volume.0,
        number: number.0,
    }
}

pub(crate) fn remove_copy((chunk, epoch): &(ChunkId, Epoch)) -> v1::RemoveCopy {
    v1::RemoveCopy {
        volume: chunk.volume.0,
        index: chunk.index,
        epoch: epoch.0,
    }
}

pub(crate) fn move_copy((chunk, disk): &(ChunkId, DiskId)) -> v1::MoveCopy {
    v1::MoveCopy {
        volume: chunk.volume.0,
        index: chunk.index,
        disk: disk.0.to_bytes().to_vec(),
    }
}

pub(crate) fn moved_copies(moved: &[v1::MovedCopy]) -> Result<Vec<control::MovedCopy>, ConvertError> {
    let moved_copy = |moved: &v1::MovedCopy| {
        Ok(control::MovedCopy {
            chunk: ChunkId {
                volume: VolumeNumber(moved.volume),
                index: moved.index,
            },
            disk: DiskId(uuid("moved_copies.disk", &moved.disk)?),
            why: Some(moved.why.clone()).filter(|why| !why.is_empty()),
        })
    };
    moved.iter().map(moved_copy).collect()
}

pub(crate) fn balance(balance: &control::Balance) -> v1::Balance {
    use control::RebalanceState as State;
    let moving = |status: &control::MoveStatus| v1::Moving {
        volume: status.chunk.volume.0,
        index: status.chunk.index,
        from: status.moving.from.0.to_bytes().to_vec(),
        to: status.moving.to.0.to_bytes().to_vec(),
        by_command: status.moving.by_command,
    };
    let disk_moving = |status: &control::DiskMoveStatus| v1::DiskMoving {
        volume: status.chunk.volume.0,
        index: status.chunk.index,
        node: status.moving.node.0.to_bytes().to_vec(),
        from: status.moving.from.0.to_bytes().to_vec(),
        to: status.moving.to.0.to_bytes().to_vec(),
    };
    let (state, waits_for) = match balance.state {
        State::Off => (v1::BalanceState::Off, ""),
        State::Stopped => (v1::BalanceState::Stopped, ""),
        State::Waiting(what) => (v1::BalanceState::Waiting, what),
        State::Moving => (v1::BalanceState::Moving, ""),
        State::Even => (v1::BalanceState::Even, ""),
    };
    let [least_millionths, all_millionths, most_millionths] = balance.shares;
    v1::Balance {
        state: state.into(),
        waits_for: waits_for.to_owned(),
        moves: balance.moves.iter().map(moving).collect(),
        least_millionths,
        all_millionths,
        most_millionths,
        left_bytes: balance.left.0,
        left_ms: balance.time_left.map(milliseconds),
        disk_moves: balance.disk_moves.iter().map(disk_moving).collect(),
    }
}

pub(crate) fn resync(resync: &Resync) -> v1::Resync {
    v1::Resync {
        volume: resync.chunk.volume.0,
        index: resync.chunk.index,
        node: resync.node.0.to_bytes().to_vec(),
        left_bytes: resync.left.0,
        total_bytes: resync.total.0,
        elapsed_ms: u64::try_from(resync.elapsed.as_millis()).unwrap_or(u64::MAX),
    }
}

pub(crate) fn resyncs(resyncs: &[v1::Resync]) -> Result<Vec<Resync>, ConvertError> {
    let resync = |resync: &v1::Resync| {
        Ok(Resync {
            chunk: ChunkId {
                volume: VolumeNumber(resync.volume),
                index: resync.index,
            },
            node: NodeId(uuid("resyncs.node", &resync.node)?),
            left: ByteCount(resync.left_bytes),
            total: ByteCount(resync.total_bytes),
            elapsed: Duration::from_millis(resync.elapsed_ms),
        })
    };
    resyncs.iter().map(resync).collect()
}

pub(crate) fn chunk(id: ChunkId, chunk: &Chunk) -> v1::Chunk {
    let copy = |copy: &control::Copy| v1::Copy {
        node: copy.node.0.to_bytes().to_vec(),
        disk: copy.disk.0.to_bytes().to_vec(),
        incarnation: copy.incarnation.map_or(0, |incarnation| incarnation.0),
    };
    v1::Chunk {
        volume: id.volume.0,
        index: id.index,
        epoch: chunk.epoch.0,
        write_node: chunk.write_node.0.to_bytes().to_vec(),
        copies: chunk.copies.iter().map(copy).collect(),
        recovery: chunk.recovery,
    }
}

pub(crate) fn chunks(chunks: &[(ChunkId, Chunk)]) -> Vec<v1::Chunk> {
    chunks.iter().map(|(id, record)| chunk(*id, record)).collect()
}

/// What a volume uses of disks.
pub(crate) fn volume_use(volume: VolumeNumber, used: VolumeUse) -> v1::VolumeUse {
    v1::VolumeUse {
        volume: volume.0,
        used_bytes: used.used.0,
        held_bytes: used.held.0,
    }
}

/// What a node says of volumes.
pub(crate) fn uses(uses: &v1::VolumeUses) -> Vec<(VolumeNumber, VolumeUse)> {
    let one = |said: &v1::VolumeUse| {
        let used = VolumeUse {
            used: ByteCount(said.used_bytes),
            held: ByteCount(said.held_bytes),
        };
        (VolumeNumber(said.volume), used)
    };
    uses.volumes.iter().map(one).collect()
}

pub(crate) fn volume(volume: &Volume) -> v1::Volume {
    let geometry = &volume.geometry;
    let state = match volume.state {
        VolumeState::Creating => v1::VolumeState::Creating,
        VolumeState::Preparing => v1::VolumeState::Preparing,
        VolumeState::Ready => v1::VolumeState::Ready,
        VolumeState::Deleting => v1::VolumeState::Deleting,
    };
    v1::Volume {
        number: volume.number.0,
        name: volume.name.clone(),
        size_bytes: volume.size().0,
        geometry: Some(v1::Geometry {
            block_bytes: geometry.block_bytes,
            metadata_bytes: geometry.metadata_bytes,
            stripe_unit_bytes: geometry.stripe_unit.0,
            chunk_bytes: geometry.chunk.0,
            region_bytes: geometry.region.0,
            copies: u32::from(geometry.copies),
            minimum: u32::from(geometry.minimum),
            group_chunks: geometry.group_chunks.clone(),
        }),
        state: state.into(),
        portals: volume
            .portals
            .iter()
            .map(|node| node.0.to_bytes().to_vec())
            .collect(),
        write_pin: volume
            .write_pin
            .map_or_else(Vec::new, |node| node.0.to_bytes().to_vec()),
        uuid: volume.uuid.to_bytes().to_vec(),
        hosts: volume.hosts.clone(),
        export_nqn: volume.export_nqn(),
        growth_chunks: volume.growth.clone(),
        checksums: volume.checksums,
        origin: volume.origin.map(|origin| v1::Origin {
            volume: origin.volume.0,
            snapshot: origin.snapshot.0,
            flattening: origin.flattening,
            ..v1::Origin::default()
        }),
        spread: match volume.spread {
            None => v1::Spread::Unspecified,
            Some(Spread::Node) => v1::Spread::Node,
            Some(Spread::Rack) => v1::Spread::Rack,
        }
        .into(),
        sync_writes: volume.sync_writes,
    }
}

/// As [`volume`], for people: a clone's origin has names, and says how far it is flattened.
pub(crate) fn volume_with_origin(volume: &Volume, origin: Option<OriginView>) -> v1::Volume {
    let (left_copies, copies) = origin.as_ref().and_then(|view| view.progress).unwrap_or_default();
    v1::Volume {
        origin: origin.map(|view| v1::Origin {
            volume: view.origin.volume.0,
            snapshot: view.origin.snapshot.0,
            flattening: view.origin.flattening,
            volume_name: view.volume,
            snapshot_name: view.snapshot,
            left_copies,
            copies,
        }),
        ..self::volume(volume)
    }
}

pub(crate) fn flattening(said: &v1::Flattening) -> Flattening {
    Flattening {
        number: VolumeNumber(said.volume),
        left: said.left_copies,
        copies: said.copies,
    }
}

pub(crate) fn growing(growing: &Growing) -> v1::Growing {
    v1::Growing {
        volume: growing.number.0,
        from_chunk: growing.from,
        chunks: growing.chunks,
    }
}

pub(crate) fn grown(growing: &v1::Growing) -> Growing {
    Growing {
        number: VolumeNumber(growing.volume),
        from: growing.from_chunk,
        chunks: growing.chunks,
    }
}

pub(crate) fn export(export: &control::Export) -> v1::Export {
    v1::Export {
        volume: Some(volume(&export.volume)),
        place: u32::try_from(export.place).unwrap_or(u32::MAX),
        elsewhere: export.elsewhere.clone(),
        reservations_version: export.reservations,
    }
}

pub(crate) fn export_volume(request: v1::ExportVolumeRequest) -> Result<control::ExportVolume, ConvertError> {
    let nodes = request.nodes.iter().map(|node| uuid("nodes", node).map(NodeId));
    Ok(control::ExportVolume {
        nodes: nodes.collect::<Result<_, _>>()?,
        name: request.name,
        count: request.count as usize,
        hosts: request.hosts,
    })
}

pub(crate) fn address(id: NodeId, node: &Node, is_alive: bool) -> v1::NodeAddress {
    v1::NodeAddress {
        node: id.0.to_bytes().to_vec(),
        peer_address: node.peer_address.clone(),
        incarnation: node.incarnation.0,
        alive: is_alive,
        ended_through: node.ended_through.0,
    }
}

/// The addresses of the nodes that these chunks name, and of the volume's portals.
pub(crate) fn addresses<'a>(
    nodes: impl Iterator<Item = &'a NodeView>,
    chunks: &[(ChunkId, Chunk)],
    portals: &[NodeId],
) -> Vec<v1::NodeAddress> {
    let named: std::collections::BTreeSet<NodeId> = chunks
        .iter()
        .flat_map(|(_, chunk)| chunk.copies.iter().map(|copy| copy.node))
        .chain(portals.iter().copied())
        .collect();
    nodes
        .filter(|view| named.contains(&view.id))
        .map(|view| address(view.id, &view.record, view.is_alive))
        .collect()
}

/// A volume to be created, defaults filled in.
pub(crate) fn create_volume(request: &v1::CreateVolumeRequest) -> Result<CreateVolume, ConvertError> {
    let small = |field, value: u32| {
        u8::try_from(value).map_err(|_| ConvertError::TooLarge {
            field,
            value,
            limit: 255,
        })
    };
    let mut create = CreateVolume::new(request.name.clone(), ByteCount(request.size_bytes));
    if request.copies != 0 {
        create.copies = small("copies", request.copies)?;
    }
    if request.minimum != 0 {
        create.minimum = Some(small("minimum", request.minimum)?);
    }
    match request.block_bytes {
        0 | 4096 => {}
        block_bytes => return Err(ConvertError::BlockBytes { block_bytes }),
    }
    if request.stripe_unit_bytes != 0 {
        create.stripe_unit = ByteCount(request.stripe_unit_bytes);
    }
    if request.chunk_bytes != 0 {
        create.chunk = ByteCount(request.chunk_bytes);
    }
    if request.stripe_width != 0 {
        create.stripe_width = request.stripe_width;
    }
    let portals = request
        .portals
        .iter()
        .map(|portal| uuid("portals", portal).map(NodeId));
    create.portals = portals.collect::<Result<_, _>>()?;
    create.checksums = request.checksums;
    create.sync_writes = request.sync_writes;
    create.spread = match v1::Spread::try_from(request.spread) {
        Ok(v1::Spread::Unspecified) => None,
        Ok(v1::Spread::Node) => Some(Spread::Node),
        Ok(v1::Spread::Rack) => Some(Spread::Rack),
        Err(_) => {
            return Err(ControlError::Argument {
                field: "spread",
                problem: format!(
                    "has the number {}, which this master does not know",
                    request.spread
                ),
                remedy: "ask a master of the release that knows it, or leave it out",
            }
            .into());
        }
    };
    create.write_pin = optional_uuid("write_pin", &request.write_pin)?.map(NodeId);
    Ok(create)
}

pub(crate) fn proposal(
    request: &v1::ProposeConfigurationRequest,
) -> Result<(ChunkId, control::configuration::Proposal), ConvertError> {
    let id = ChunkId {
        volume: VolumeNumber(request.volume),
        index: request.index,
    };
    let member = |copy: &v1::Copy| {
        let node = NodeId(uuid("members.node", &copy.node)?);
        match copy.incarnation {
            0 => Err(ConvertError::Missing {
                field: "members.incarnation",
            }),
            incarnation => Ok((node, Incarnation(incarnation))),
        }
    };
    let proposal = control::configuration::Proposal {
        node: NodeId(uuid("node", &request.node)?),
        incarnation: Incarnation(request.incarnation),
        expected: foundation::Epoch(request.expected_epoch.min(u64::MAX - 1)),
        write_node: NodeId(uuid("write_node", &request.write_node)?),
        members: request.members.iter().map(member).collect::<Result<_, _>>()?,
    };
    Ok((id, proposal))
}

pub(crate) fn node_ids(nodes: &[NodeId]) -> Vec<Vec<u8>> {
    nodes.iter().map(|node| node.0.to_bytes().to_vec()).collect()
}

/// A time as messages have it.
pub(crate) fn milliseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
