//! What checksums of copies have shown, as nodes say it: blocks that did not fit, those that have been written since, and those that no
//! copy has right, of volumes and of their snapshots.
//!
//! Nothing of it is in the store, and nothing is decided by it. It is for people, who alone can get back what is lost.

use std::collections::BTreeMap;

use foundation::ByteCount;

use super::Controller;
use crate::error::ControlError;
use crate::identity::{ChunkId, Incarnation, NodeId, SnapshotNumber, VolumeNumber};
use crate::model::{Chunk, SnapshotState, Volume};
use crate::store::MetadataStore;

/// Copies of which one node may say something. What it says of more is left out.
const COPIES_MAX: usize = 1024;
/// Copies keep a checksum for each block of so many bytes.
const BLOCK_BYTES: u64 = 4096;

/// What checksums have shown of a copy, or of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Blocks of copies that did not fit.
    pub damaged: u64,
    /// Of these, blocks that have been written since.
    pub repaired: u64,
    /// Blocks that no copy has right, and that have not been written since.
    pub lost: u64,
    /// Blocks that copies hold differently though each fits its checksum, and that have not been written since.
    pub differing: u64,
}

/// How far a node is with comparing its copies with their checksums in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// When that copy was compared, or first seen, for which it is longest ago, in milliseconds of Unix time by the node's clock; 0
    /// where that is not known.
    pub oldest_unix_ms: u64,
    /// Blocks that its target has read only for that.
    pub compared_blocks: u64,
}

/// What a node says of its copies, the worst first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Of copies of chunks, where there is anything to say.
    pub copies: Vec<(ChunkId, Damage)>,
    /// Blocks of copies of snapshots that neither this copy has right nor any other one that answered.
    pub snapshots: Vec<((ChunkId, SnapshotNumber), u64)>,
    /// How far it is with comparing them.
    pub scrub: Scrub,
}

/// The same, to look it up.
#[derive(Debug)]
struct Known {
    copies: BTreeMap<ChunkId, Damage>,
    snapshots: BTreeMap<(ChunkId, SnapshotNumber), u64>,
    scrub: Scrub,
}

/// What nodes have said, and in which lives; see the module.
#[derive(Debug, Default)]
pub(super) struct Damages(BTreeMap<NodeId, (Incarnation, Known)>);

impl Damages {
    /// What is known of a chunk whose copies have so many bytes. What a copy in sync says counts, no other life and no copy that has its
    /// place no more: such a one is not written any more, so it would say the same for ever.
    pub(super) fn of_chunk(&self, id: ChunkId, chunk: &Chunk, bytes: ByteCount) -> Damage {
        let blocks = bytes.0 / BLOCK_BYTES;
        let mut of_chunk = Damage::default();
        for (node, incarnation) in chunk.members() {
            let told = self.in_life(node, incarnation);
            let Some(said) = told.and_then(|told| told.copies.get(&id)) else {
                continue;
            };
            of_chunk.damaged = of_chunk.damaged.saturating_add(said.damaged);
            of_chunk.repaired = of_chunk.repaired.saturating_add(said.repaired.min(said.damaged));
            // Two that were its write node one after the other mean the same blocks.
            of_chunk.lost = of_chunk.lost.max(said.lost.min(blocks));
            of_chunk.differing = of_chunk.differing.max(said.differing.min(blocks));
        }
        of_chunk
    }

    /// Blocks that are lost of each snapshot, by what these lives say. Copies of one chunk mean the same blocks.
    pub(super) fn of_snapshots(
        &self,
        living: impl IntoIterator<Item = (NodeId, Incarnation)>,
    ) -> BTreeMap<(VolumeNumber, SnapshotNumber), u64> {
        let mut of_chunks = BTreeMap::<(ChunkId, SnapshotNumber), u64>::new();
        let told = living
            .into_iter()
            .filter_map(|(node, life)| self.in_life(node, life));
        for (of, lost) in told.flat_map(|told| &told.snapshots) {
            let most = of_chunks.entry(*of).or_default();
            *most = (*most).max(*lost);
        }
        let mut of_snapshots = BTreeMap::<_, u64>::new();
        for ((chunk, snapshot), lost) in of_chunks {
            let all = of_snapshots.entry((chunk.volume, snapshot)).or_default();
            *all = all.saturating_add(lost);
        }
        of_snapshots
    }

    /// Whether no node has said that anything is wrong with a chunk.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|(_, told)| told.copies.is_empty())
    }

    pub(super) fn scrub(&self, node: NodeId, incarnation: Incarnation) -> Option<Scrub> {
        Some(self.in_life(node, incarnation)?.scrub)
    }

    fn in_life(&self, node: NodeId, incarnation: Incarnation) -> Option<&Known> {
        let (_, told) = self.0.get(&node).filter(|(life, _)| *life == incarnation)?;
        Some(told)
    }
}

impl Damage {
    /// Adds what is known of another chunk.
    pub(super) fn add(&mut self, other: Self) {
        self.damaged = self.damaged.saturating_add(other.damaged);
        self.repaired = self.repaired.saturating_add(other.repaired);
        self.lost = self.lost.saturating_add(other.lost);
        self.differing = self.differing.saturating_add(other.differing);
    }
}

impl<S: MetadataStore> Controller<S> {
    /// A node says what checksums of its copies have shown. What a life says that this master has not heard is left out.
    pub fn note_damage(&mut self, (node, incarnation): (NodeId, Incarnation), told: Told) {
        let is_heard = self.heard.get(&node).map(|heard| heard.incarnation) == Some(incarnation);
        if is_heard {
            let known = Known {
                copies: told.copies.into_iter().take(COPIES_MAX).collect(),
                snapshots: told.snapshots.into_iter().take(COPIES_MAX).collect(),
                scrub: told.scrub,
            };
            self.damages.0.insert(node, (incarnation, known));
        }
    }

    /// The complete snapshots of a volume with blocks that no copy has right, each by its name, of what is known of all.
    pub(super) fn lost_of_snapshots(
        &self,
        volume: &Volume,
        lost: &BTreeMap<(VolumeNumber, SnapshotNumber), u64>,
    ) -> Result<Vec<(String, u64)>, ControlError> {
        let number = volume.number;
        let of_volume = (number, SnapshotNumber(0))..=(number, SnapshotNumber(u64::MAX));
        if lost.range(of_volume).next().is_none() {
            return Ok(Vec::new());
        }
        let complete = self.snapshots(number)?.into_iter();
        let complete = complete.filter(|snapshot| snapshot.state == SnapshotState::Complete);
        let named = complete.filter_map(|snapshot| {
            let blocks = u64::from(snapshot.chunks) * (volume.geometry.chunk.0 / BLOCK_BYTES);
            let lost = lost.get(&(number, snapshot.number))?;
            Some((snapshot.name, blocks.min(*lost)))
        });
        Ok(named.collect())
    }
}
