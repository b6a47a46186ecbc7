//! Copies on disks that were away, which are not used before the masters have said that their places are there
//! (`docs/decisions/0129`).

use std::collections::BTreeSet;

use reactor::time;
use volume::ChunkId;

use super::{Node, to_chunk};

impl Node {
    /// The copies here that are not used, each with the identity of its disk, until it is said what becomes of them.
    pub(crate) fn doubtful(&self) -> Vec<(agentlink::Chunk, u128)> {
        let doubtful = self.copies.doubtful().into_iter();
        doubtful.map(|(chunk, disk)| (to_chunk(chunk), disk)).collect()
    }

    /// The masters say that a copy here is where it is to be: it is used from now on. True if it is.
    pub fn adopt_copy(&self, chunk: ChunkId, disk: u128) -> bool {
        let record = self.copies.adopt(chunk, disk);
        let is_adopted = record.is_some();
        if let Some(record) = record {
            let has_sums = self.copies.sums(chunk).is_some();
            self.core.borrow_mut().add_copy(time::now(), record, has_sums);
            self.pump();
            self.tell_of_room(chunk);
            self.look_at_room(chunk);
        }
        is_adopted
    }

    /// Deletes those copies of chunks that are not used and older than the ones that are.
    pub async fn delete_old_copies(&self, chunks: &BTreeSet<ChunkId>) {
        self.copies.delete_old(chunks).await;
    }
}
