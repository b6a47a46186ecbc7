//! What the disks of a node say of the chunk copies on them: all of one that is not running, for `redhare meta rebuild`, and some of
//! one that runs, for `redhare volume force-serve` and for masters whose metadata are from a backup.

use volume::{ChunkId, ChunkRecord, ClusterId, SnapshotId, VolumeNumber};

use crate::node::copies::Copies;
use crate::node::{DiskConfig, DiskError, Node, from_chunk, from_config};

/// What the disks of a node say.
#[derive(Debug)]
pub struct Inventory {
    /// The disks.
    pub disks: Vec<agentlink::Disk>,
    /// The copies on them.
    pub copies: Vec<FoundCopy>,
    /// Copies whose records cannot be read.
    pub damaged: Vec<ChunkId>,
    /// The copies of snapshots on them.
    pub snapshots: Vec<FoundSnapshot>,
}

/// A copy on one of the disks.
#[derive(Debug)]
pub struct FoundCopy {
    /// The disk's identity.
    pub disk: u128,
    /// The copy's record.
    pub record: ChunkRecord,
    /// It keeps checksums of its blocks.
    pub checksums: bool,
    /// The snapshot of another volume of which it shows something.
    pub origin: Option<(VolumeNumber, SnapshotId)>,
}

/// A copy of a snapshot on one of the disks.
#[derive(Debug)]
pub struct FoundSnapshot {
    /// The disk's identity.
    pub disk: u128,
    /// The chunk.
    pub chunk: ChunkId,
    /// The snapshot's number.
    pub snapshot: SnapshotId,
    /// What is noted beside it, as [`volume::SnapshotNote`] is encoded; none if it was not known to be complete.
    pub note: Option<Vec<u8>>,
}

/// Reads the records of all copies on these disks. On a reactor. Fails on a disk that another process uses, so the node must not be
/// running, on one of another cluster, and on one that is missing. Does to them what a start of the node does first: removes copies
/// whose making was cut off, and makes a blank disk ready.
pub async fn inventory(cluster: ClusterId, disks: &[DiskConfig]) -> Result<Inventory, DiskError> {
    let as_they_are = |disk: &DiskConfig| DiskConfig {
        size: None,
        force: false,
        trust: crate::node::Trust::Always,
        ..disk.clone()
    };
    let disks: Vec<DiskConfig> = disks.iter().map(as_they_are).collect();
    let copies = Copies::open(cluster, &disks, None).await?;
    Ok(Inventory {
        disks: copies.disks(),
        copies: copies.found(),
        damaged: copies.damaged(),
        snapshots: copies.found_snapshots(),
    })
}

impl Node {
    /// How these copies are, each as its record says; none for those that are not here, or cannot be read.
    pub(crate) fn describe(
        &self,
        chunks: &[agentlink::Chunk],
    ) -> Vec<(agentlink::Chunk, Option<agentlink::CopyState>)> {
        let describe = |&chunk: &agentlink::Chunk| {
            let mut state = self.copies.state_of(from_chunk(chunk));
            if let Some(state) = &mut state {
                // A copy seals what its target was told of some time later.
                let sealed = state.configuration.as_ref().map_or(0, |config| config.epoch);
                let core = self.core.borrow();
                let committed = core
                    .member(from_chunk(chunk))
                    .and_then(|member| member.committed());
                state.told = committed
                    .filter(|config| config.epoch.0 > sealed)
                    .map(from_config);
            }
            (chunk, state)
        };
        chunks.iter().map(describe).collect()
    }
}
