//! Between what the masters say and what the target hears, both ways.

use agentlink::{Chunk, Configuration, Export, SnapshotNote, ToTarget};
use proto::v1;
use volume::{Geometry, GeometryError, GeometrySizes};

/// 16 bytes as a number.
pub(crate) fn number(bytes: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(bytes.try_into().ok()?))
}

/// What the copies of a volume are like.
#[derive(Clone)]
pub(crate) struct Kind {
    /// The volume's geometry, as the volume crate encodes it.
    geometry: Vec<u8>,
    /// They keep checksums of their blocks.
    checksums: bool,
}

impl Kind {
    /// Has a target make such a copy.
    pub(crate) fn create(self, chunk: Chunk, disk: u128) -> ToTarget {
        let Self { geometry, checksums } = self;
        match checksums {
            true => ToTarget::CreateCopyWithSums {
                chunk,
                geometry,
                disk,
            },
            false => ToTarget::CreateCopy {
                chunk,
                geometry,
                disk,
            },
        }
    }
}

impl Kind {
    /// Has a target make such a copy from that of a snapshot, named by volume and number.
    pub(crate) fn clone_from(self, (volume, snapshot): (u32, u64), chunk: Chunk, disk: u128) -> ToTarget {
        let Self { geometry, checksums } = self;
        ToTarget::CloneCopy {
            chunk,
            geometry,
            disk,
            checksums,
            volume,
            snapshot,
        }
    }
}

/// The snapshot, as volume and number, from which copies that are missing are to be made: of a clone that has never been used. Once
/// it is, what is missing is lost.
pub(crate) fn first_copies_from(volume: &v1::Volume) -> Option<(u32, u64)> {
    let origin = volume.origin.as_ref()?;
    let is_new = volume.state() == v1::VolumeState::Preparing;
    is_new.then_some((origin.volume, origin.snapshot))
}

pub(crate) fn configuration(chunk: &v1::Chunk) -> Option<Configuration> {
    if chunk.epoch == 0 {
        return None;
    }
    let mut members: Vec<(u128, u64)> = chunk
        .copies
        .iter()
        .filter(|copy| copy.incarnation != 0)
        .filter_map(|copy| Some((number(&copy.node)?, copy.incarnation)))
        .collect();
    members.sort_unstable();
    Some(Configuration {
        epoch: chunk.epoch,
        write_node: number(&chunk.write_node)?,
        members,
    })
}

pub(crate) fn to_wire(disk: &agentlink::Disk) -> v1::Disk {
    v1::Disk {
        uuid: disk.uuid.to_be_bytes().to_vec(),
        capacity_bytes: disk.capacity_bytes,
        used_bytes: disk.capacity_bytes - disk.free_bytes.min(disk.capacity_bytes),
        held_bytes: None,
    }
}

pub(crate) fn chunk_id(chunk: &Chunk) -> v1::ChunkId {
    v1::ChunkId {
        volume: chunk.volume,
        index: chunk.index,
    }
}

pub(crate) fn snapshot_id(&(volume, number): &(u32, u64)) -> v1::SnapshotId {
    v1::SnapshotId { volume, number }
}

/// What is to be noted beside copies of a snapshot; none if the masters do not say it.
pub(crate) fn snapshot_note(snapshot: v1::CompleteSnapshot) -> Option<SnapshotNote> {
    (!snapshot.name.is_empty()).then_some(SnapshotNote {
        volume: snapshot.volume,
        number: snapshot.number,
        chunks: snapshot.chunks,
        created_unix_ms: snapshot.created_unix_ms,
        name: snapshot.name,
    })
}

/// Of what a target says, that which is of these clones.
pub(crate) fn flattening(said: &[(u32, u32, u32)], wanted: &[u32]) -> Vec<v1::Flattening> {
    let wanted = said.iter().filter(|(volume, ..)| wanted.contains(volume));
    let wire = |&(volume, left_copies, copies): &(u32, u32, u32)| v1::Flattening {
        volume,
        left_copies,
        copies,
    };
    wanted.map(wire).collect()
}

pub(crate) fn resync(resync: &agentlink::Resync) -> v1::Resync {
    v1::Resync {
        volume: resync.chunk.volume,
        index: resync.chunk.index,
        node: resync.node.to_be_bytes().to_vec(),
        left_bytes: resync.left_bytes,
        total_bytes: resync.total_bytes,
        elapsed_ms: resync.elapsed_ms,
    }
}

/// A volume to be exported, as the target wants to hear it.
pub(crate) fn export(export: &v1::Export) -> Option<Export> {
    let volume = export.volume.as_ref()?;
    let geometry = match geometry(volume.geometry.as_ref()?) {
        Ok(geometry) => geometry,
        Err(error) => {
            tracing::error!(volume = volume.number, %error, "the masters' geometry of a volume cannot be used");
            return None;
        }
    };
    Some(Export {
        volume: volume.number,
        uuid: number(&volume.uuid)?,
        geometry: geometry.encode(),
        nqn: volume.export_nqn.clone(),
        hosts: volume.hosts.clone(),
        place: u8::try_from(export.place).ok()?,
        elsewhere: export.elsewhere.clone(),
    })
}

/// Whether this is what the volume is growing by now.
pub(crate) fn is_growth(volume: &v1::Volume, growing: &v1::Growing) -> bool {
    let sum = |groups: &[u32]| {
        groups
            .iter()
            .fold(0u32, |sum, &chunks| sum.saturating_add(chunks))
    };
    let from = volume
        .geometry
        .as_ref()
        .map_or(0, |geometry| sum(&geometry.group_chunks));
    let chunks = from.saturating_add(sum(&volume.growth_chunks));
    (from, chunks) == (growing.from_chunk, growing.chunks) && from < chunks
}

/// What the copies that are made for a volume are like; their geometry has what it is growing by.
pub(crate) fn kind_of(volume: &v1::Volume) -> Option<Result<Kind, GeometryError>> {
    let mut described = volume.geometry.clone()?;
    described.group_chunks.extend_from_slice(&volume.growth_chunks);
    let checksums = volume.checksums;
    Some(geometry(&described).map(|geometry| Kind {
        geometry: geometry.encode(),
        checksums,
    }))
}

/// The masters' geometry in the volume crate's terms.
fn geometry(described: &v1::Geometry) -> Result<Geometry, GeometryError> {
    Geometry::try_from(GeometrySizes {
        block_bytes: described.block_bytes,
        metadata_bytes: described.metadata_bytes,
        stripe_unit_bytes: described.stripe_unit_bytes,
        chunk_bytes: described.chunk_bytes,
        region_bytes: described.region_bytes,
        copies: described.copies,
        minimum: described.minimum,
        group_chunks: described.group_chunks.clone(),
    })
}

/// How a copy is, for the masters.
pub(crate) fn copy_state((chunk, state): (Chunk, Option<agentlink::CopyState>)) -> v1::CopyState {
    let mut wire = v1::CopyState {
        volume: chunk.volume,
        index: chunk.index,
        ..v1::CopyState::default()
    };
    let Some(state) = state else { return wire };
    wire.found = true;
    wire.disk = state.disk.to_be_bytes().to_vec();
    (wire.sealed_epoch, wire.flushed_epoch) = (state.sealed, state.flushed);
    wire.token = state.token;
    let member = |&(node, incarnation): &(u128, u64)| v1::Copy {
        node: node.to_be_bytes().to_vec(),
        disk: Vec::new(),
        incarnation,
    };
    if let Some(configuration) = state.configuration {
        wire.configured_epoch = configuration.epoch;
        wire.write_node = configuration.write_node.to_be_bytes().to_vec();
        wire.members = configuration.members.iter().map(member).collect();
    }
    if let Some(told) = state.told {
        wire.told_epoch = told.epoch;
        wire.told_write_node = told.write_node.to_be_bytes().to_vec();
        wire.told_members = told.members.iter().map(member).collect();
    }
    wire
}
