//! The keys of the store. Numbers stand big-endian, so that keys sort as what they name.

use crate::identity::{ChunkId, DiskId, JoinTokenId, NodeId, SessionId, SnapshotNumber, Uuid, VolumeNumber};

/// The cluster's identity.
pub(crate) const CLUSTER: &[u8] = b"cluster";
/// Why no master may open the store.
pub(crate) const CLOSED: &[u8] = b"closed";
/// The store was filled from a backup, and what the nodes have done since is not known yet.
pub(crate) const RESTORED: &[u8] = b"restored";
/// The number the next volume gets.
pub(crate) const NEXT_VOLUME: &[u8] = b"next-volume";
/// The number the next snapshot gets.
pub(crate) const NEXT_SNAPSHOT: &[u8] = b"next-snapshot";
pub(crate) const NODES: &[u8] = b"node/";
pub(crate) const VOLUMES: &[u8] = b"volume/";
pub(crate) const CHUNKS: &[u8] = b"chunk/";
pub(crate) const SNAPSHOTS: &[u8] = b"snapshot/";
pub(crate) const TOMBSTONES: &[u8] = b"tombstone/";
pub(crate) const DRAINS: &[u8] = b"drain/";
/// Disks that their nodes are to put back in service.
pub(crate) const DISK_RESTORES: &[u8] = b"disk-restore/";
/// Nodes that were removed.
pub(crate) const REMOVED: &[u8] = b"removed/";
pub(crate) const MOVES: &[u8] = b"move/";
/// Copies that move between the disks of their nodes.
pub(crate) const DISK_MOVES: &[u8] = b"disk-move/";
/// There while the masters are not to even out nodes by themselves.
pub(crate) const REBALANCE_STOPPED: &[u8] = b"rebalance-stopped";
pub(crate) const JOIN_TOKENS: &[u8] = b"join-token/";
/// The keys of the data path.
pub(crate) const DATA_KEYS: &[u8] = b"data-key/";
pub(crate) const ALLOCATIONS: &[u8] = b"allocation/";
const NAMES: &[u8] = b"name/";
const WRITERS: &[u8] = b"writer/";
const RESERVATIONS: &[u8] = b"reservations/";
const GROWN_BY: &[u8] = b"grown-by/";
const READERS: &[u8] = b"reader/";

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub(crate) fn node(node: NodeId) -> Vec<u8> {
    join(&[NODES, &node.0.to_bytes()])
}

/// That a node was removed, and never comes back.
pub(crate) fn removed(node: NodeId) -> Vec<u8> {
    join(&[REMOVED, &node.0.to_bytes()])
}

/// A node, or with a disk only that, from which copies are to be moved away.
pub(crate) fn drain(node: NodeId, disk: Option<DiskId>) -> Vec<u8> {
    join(&[DRAINS, &node.0.to_bytes(), &disk.unwrap_or_default().0.to_bytes()])
}

/// What a key of [`DRAINS`] names.
pub(crate) fn parse_drain(key: &[u8]) -> Option<(NodeId, Option<DiskId>)> {
    let (node, disk) = key.strip_prefix(DRAINS)?.split_at_checked(16)?;
    let disk = DiskId(Uuid::from_bytes(disk).unwrap_or_default());
    Some((
        NodeId(Uuid::from_bytes(node)?),
        Some(disk).filter(|disk| *disk != DiskId::default()),
    ))
}

/// A disk that its node is to put back in service.
pub(crate) fn disk_restore(node: NodeId, disk: DiskId) -> Vec<u8> {
    join(&[DISK_RESTORES, &node.0.to_bytes(), &disk.0.to_bytes()])
}

/// What a key of [`DISK_RESTORES`] names.
pub(crate) fn parse_disk_restore(key: &[u8]) -> Option<(NodeId, DiskId)> {
    disk_behind(DISK_RESTORES, key)
}

/// Bytes promised to copies on a disk.
pub(crate) fn allocation(node: NodeId, disk: DiskId) -> Vec<u8> {
    join(&[ALLOCATIONS, &node.0.to_bytes(), &disk.0.to_bytes()])
}

/// Where what is promised on a node's disks lies in the store: first key and end.
pub(crate) fn allocations_of(node: NodeId) -> (Vec<u8>, Vec<u8>) {
    let end = after(&allocation(node, DiskId(Uuid(u128::MAX))));
    (allocation(node, DiskId::default()), end)
}

/// The disk that a key of [`ALLOCATIONS`] names.
pub(crate) fn parse_allocation(key: &[u8]) -> Option<(NodeId, DiskId)> {
    disk_behind(ALLOCATIONS, key)
}

fn disk_behind(prefix: &[u8], key: &[u8]) -> Option<(NodeId, DiskId)> {
    let (node, disk) = key.strip_prefix(prefix)?.split_at_checked(16)?;
    Some((NodeId(Uuid::from_bytes(node)?), DiskId(Uuid::from_bytes(disk)?)))
}

pub(crate) fn volume(number: VolumeNumber) -> Vec<u8> {
    join(&[VOLUMES, &number.0.to_be_bytes()])
}

/// Which volume has this name.
pub(crate) fn name(name: &str) -> Vec<u8> {
    join(&[NAMES, name.as_bytes()])
}

/// A volume that was deleted.
pub(crate) fn tombstone(number: VolumeNumber) -> Vec<u8> {
    join(&[TOMBSTONES, &number.0.to_be_bytes()])
}

pub(crate) fn chunk(chunk: ChunkId) -> Vec<u8> {
    join(&[CHUNKS, &chunk.volume.0.to_be_bytes(), &chunk.index.to_be_bytes()])
}

/// Where a volume's chunks lie in the store, from `first_chunk` on: first key and end.
pub(crate) fn chunks_of(number: VolumeNumber, first_chunk: u32) -> (Vec<u8>, Vec<u8>) {
    let first = chunk(ChunkId {
        volume: number,
        index: first_chunk,
    });
    (first, end_of(&join(&[CHUNKS, &number.0.to_be_bytes()])))
}

/// The copy of this chunk that is being moved.
pub(crate) fn moving(chunk: ChunkId) -> Vec<u8> {
    join(&[MOVES, &chunk.volume.0.to_be_bytes(), &chunk.index.to_be_bytes()])
}

/// The copy of this chunk that is being moved to another disk of its node.
pub(crate) fn disk_move(chunk: ChunkId) -> Vec<u8> {
    join(&[
        DISK_MOVES,
        &chunk.volume.0.to_be_bytes(),
        &chunk.index.to_be_bytes(),
    ])
}

/// The chunk that a key of [`DISK_MOVES`] names.
pub(crate) fn parse_disk_move(key: &[u8]) -> Option<ChunkId> {
    chunk_behind(DISK_MOVES, key)
}

/// The chunk that a key names.
pub(crate) fn parse_chunk(key: &[u8]) -> Option<ChunkId> {
    chunk_behind(CHUNKS, key)
}

/// The chunk that a key of [`MOVES`] names.
pub(crate) fn parse_move(key: &[u8]) -> Option<ChunkId> {
    chunk_behind(MOVES, key)
}

fn chunk_behind(prefix: &[u8], key: &[u8]) -> Option<ChunkId> {
    let rest = key.strip_prefix(prefix)?;
    let (volume, index) = rest.split_at_checked(4)?;
    Some(ChunkId {
        volume: VolumeNumber(u32::from_be_bytes(volume.try_into().ok()?)),
        index: u32::from_be_bytes(index.try_into().ok()?),
    })
}

/// The volume that a key of `prefix` names.
pub(crate) fn parse_volume(prefix: &[u8], key: &[u8]) -> Option<VolumeNumber> {
    let number = key.strip_prefix(prefix)?;
    Some(VolumeNumber(u32::from_be_bytes(number.try_into().ok()?)))
}

pub(crate) fn writer(number: VolumeNumber) -> Vec<u8> {
    join(&[WRITERS, &number.0.to_be_bytes()])
}

/// The call that has a volume grow, or had it grow last.
pub(crate) fn grown_by(number: VolumeNumber) -> Vec<u8> {
    join(&[GROWN_BY, &number.0.to_be_bytes()])
}

/// What the hosts of an exported volume have reserved.
pub(crate) fn reservations(number: VolumeNumber) -> Vec<u8> {
    join(&[RESERVATIONS, &number.0.to_be_bytes()])
}

pub(crate) fn reader(number: VolumeNumber, session: SessionId) -> Vec<u8> {
    join(&[READERS, &number.0.to_be_bytes(), &session.0.to_bytes()])
}

pub(crate) fn snapshot(volume: VolumeNumber, number: SnapshotNumber) -> Vec<u8> {
    join(&[SNAPSHOTS, &volume.0.to_be_bytes(), &number.0.to_be_bytes()])
}

/// All snapshots of a volume: first key and end.
pub(crate) fn snapshots_of(volume: VolumeNumber) -> (Vec<u8>, Vec<u8>) {
    let first = join(&[SNAPSHOTS, &volume.0.to_be_bytes()]);
    let end = end_of(&first);
    (first, end)
}

/// Volume and number that a key of [`SNAPSHOTS`] names.
pub(crate) fn parse_snapshot(key: &[u8]) -> Option<(VolumeNumber, SnapshotNumber)> {
    let (volume, number) = key.strip_prefix(SNAPSHOTS)?.split_at_checked(4)?;
    Some((
        VolumeNumber(u32::from_be_bytes(volume.try_into().ok()?)),
        SnapshotNumber(u64::from_be_bytes(number.try_into().ok()?)),
    ))
}

/// A token by which nodes and clients join.
pub(crate) fn join_token(id: JoinTokenId) -> Vec<u8> {
    join(&[JOIN_TOKENS, &id.0])
}

/// All reader leases of a volume: first key and end.
pub(crate) fn readers_of(number: VolumeNumber) -> (Vec<u8>, Vec<u8>) {
    let first = join(&[READERS, &number.0.to_be_bytes()]);
    let end = end_of(&first);
    (first, end)
}

/// The first key behind all that begin with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    unreachable!("every prefix begins with a letter")
}

/// The key right behind `key`, to go on with a range.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    join(&[key, &[0]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_sort_by_volume_and_index_and_are_bounded() {
        let id = |volume, index| ChunkId {
            volume: VolumeNumber(volume),
            index,
        };
        let (first, end) = chunks_of(VolumeNumber(0xff), 3);
        for (chunk_id, inside) in [
            (id(0xff, 2), false),
            (id(0xff, 3), true),
            (id(0xff, u32::MAX), true),
            (id(0x100, 0), false),
        ] {
            let key = chunk(chunk_id);
            assert_eq!(key >= first && key < end, inside, "{chunk_id}");
            assert_eq!(parse_chunk(&key), Some(chunk_id));
        }
        assert_eq!(parse_chunk(b"chunk/1"), None);
    }
}
