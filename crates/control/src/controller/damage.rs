//! What checksums of copies have shown, as nodes say it: blocks that did not fit, those that have been written since, and those that no
//! copy has right.
//!
//! Nothing of it is in the store, and nothing is decided by it. It is for people, who alone can get back what is lost.

use std::collections::BTreeMap;

use foundation::ByteCount;

use super::Controller;
use crate::identity::{ChunkId, Incarnation, NodeId};
use crate::model::Chunk;
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

/// What nodes have said; see the module.
#[derive(Debug, Default)]
pub(super) struct Damages(BTreeMap<NodeId, Told>);

#[derive(Debug)]
struct Told {
    incarnation: Incarnation,
    copies: BTreeMap<ChunkId, Damage>,
    scrub: Scrub,
}

impl Damages {
    /// What is known of a chunk whose copies have so many bytes. What a copy in sync says counts, no other life and no copy that has its
    /// place no more: such a one is not written any more, so it would say the same for ever.
    pub(super) fn of_chunk(&self, id: ChunkId, chunk: &Chunk, bytes: ByteCount) -> Damage {
        let blocks = bytes.0 / BLOCK_BYTES;
        let mut of_chunk = Damage::default();
        for (node, incarnation) in chunk.members() {
            let told = self.0.get(&node).filter(|told| told.incarnation == incarnation);
            let Some(said) = told.and_then(|told| told.copies.get(&id)) else {
                continue;
            };
            of_chunk.damaged = of_chunk.damaged.saturating_add(said.damaged);
            of_chunk.repaired = of_chunk.repaired.saturating_add(said.repaired.min(said.damaged));
            // Two that were its write node one after the other mean the same blocks.
            of_chunk.lost = of_chunk.lost.max(said.lost.min(blocks));
        }
        of_chunk
    }

    /// Whether no node has said that anything is wrong.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|told| told.copies.is_empty())
    }

    pub(super) fn scrub(&self, node: NodeId, incarnation: Incarnation) -> Option<Scrub> {
        let told = self.0.get(&node).filter(|told| told.incarnation == incarnation)?;
        Some(told.scrub)
    }
}

impl Damage {
    /// Adds what is known of another chunk.
    pub(super) fn add(&mut self, other: Self) {
        self.damaged = self.damaged.saturating_add(other.damaged);
        self.repaired = self.repaired.saturating_add(other.repaired);
        self.lost = self.lost.saturating_add(other.lost);
    }
}

impl<S: MetadataStore> Controller<S> {
    /// A node says what checksums of its copies have shown. What a life says that this master has not heard is left out.
    pub fn note_damage(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        copies: impl IntoIterator<Item = (ChunkId, Damage)>,
        scrub: Scrub,
    ) {
        let is_heard = self.heard.get(&node).map(|heard| heard.incarnation) == Some(incarnation);
        if is_heard {
            let told = Told {
                incarnation,
                copies: copies.into_iter().take(COPIES_MAX).collect(),
                scrub,
            };
            self.damages.0.insert(node, told);
        }
    }
}
