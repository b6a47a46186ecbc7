//! What the record of a chunk says that a copy lacks which comes back.

use std::collections::BTreeSet;

use foundation::Epoch;

use crate::identity::{Session, WriterToken};
use crate::record::ChunkRecord;

/// The newest lease, and the sessions.
pub(super) type Fences = (WriterToken, Vec<Session>);

/// The regions that a copy may lack whose last flush as a member was in `flushed_in` and which has marked `marks`. Of that
/// epoch itself it has all but what the members had marked when it left, which counts as written in the next one
/// ([`Member::count_reconciled`]).
pub(super) fn lacking(record: &ChunkRecord, flushed_in: Epoch, marks: &[u32]) -> BTreeSet<u32> {
    let written = record.written_in.iter();
    let written = written.filter(|(_, epoch)| **epoch > flushed_in);
    let marked = marks.iter().filter(|region| **region < record.geometry.regions());
    written
        .map(|(region, _)| *region)
        .chain(marked.copied())
        .collect()
}

pub(super) fn fences(record: &ChunkRecord) -> Fences {
    let session = |(&host, &number)| Session { host, number };
    (record.writer_token, record.sessions.iter().map(session).collect())
}

pub(super) fn blocks_of(record: &ChunkRecord, regions: &BTreeSet<u32>) -> u64 {
    let geometry = &record.geometry;
    let blocks = |region: &u32| {
        let start = region * geometry.region_blocks;
        u64::from(geometry.region_blocks.min(geometry.chunk_blocks - start))
    };
    regions.iter().map(blocks).sum()
}
