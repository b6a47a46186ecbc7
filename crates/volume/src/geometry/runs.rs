//! Runs: what one chunk has of a range of the volume, as it lies in the chunk.

use foundation::{BlockCount, Lba};

use super::{Geometry, GeometryError};
use crate::identity::{BlockRange, ChunkIndex};
use crate::message::codec::NATIVE_BLOCKS_MAX;

/// No run of blocks that are to be deallocated is longer, in bytes: other writes of the chunk wait for it, and after a crash all of it
/// is compared. Runs begin anew at each multiple, so that whatever a copy stores in clusters of up to this size is given back whole.
pub const RUN_BYTES_MAX: u32 = 32 << 20;
// One command names a run, even of the smallest blocks.
const _: () = assert!(RUN_BYTES_MAX / 512 <= NATIVE_BLOCKS_MAX);

impl Geometry {
    /// The runs of a range: for each chunk, in ascending order, the blocks of it that the range has, which follow each other in the
    /// chunk however the range goes round its group; none longer than [`RUN_BYTES_MAX`].
    pub fn runs(
        &self,
        first: Lba,
        blocks: BlockCount,
    ) -> Result<Vec<(ChunkIndex, BlockRange)>, GeometryError> {
        let chunks = self.chunks_of(first, blocks)?;
        let (chunk_blocks, longest) = (u64::from(self.chunk_blocks), RUN_BYTES_MAX / self.block_bytes);
        let mut runs = Vec::with_capacity(chunks.len());
        let mut groups = self.group_chunks.iter().map(|width| u64::from(*width));
        let (mut group_first, mut width) = (0, groups.next().unwrap_or(1));
        for chunk in chunks {
            let index = u64::from(chunk.0);
            while index >= group_first + width {
                group_first += width;
                let Some(next) = groups.next() else { break };
                width = next;
            }
            let unit = match width {
                1 => chunk_blocks,
                _ => u64::from(self.stripe_unit_blocks),
            };
            // How many of the group's first blocks are this chunk's.
            let own = |group_block: u64| {
                let (round, within) = (group_block / (unit * width), group_block % (unit * width));
                let before = (index - group_first) * unit;
                round * unit + within.saturating_sub(before).min(unit)
            };
            let group_lba = group_first * chunk_blocks;
            let in_group = |lba: u64| lba.saturating_sub(group_lba).min(width * chunk_blocks);
            let (mut start, end) = (own(in_group(first.0)), own(in_group(first.0 + blocks.0)));
            while start < end {
                let count = (end - start).min(u64::from(longest) - start % u64::from(longest));
                let narrow = |blocks: u64| u32::try_from(blocks).expect("a chunk has fewer than 2^32 blocks");
                let (start_block, count_blocks) = (narrow(start), narrow(count));
                runs.push((
                    chunk,
                    BlockRange {
                        start: start_block,
                        count: count_blocks,
                    },
                ));
                start += count;
            }
        }
        Ok(runs)
    }

    /// The piece at the beginning of a run: its place in the volume, and how many of the run's blocks it has. None if the chunk
    /// has no such block.
    pub fn piece_of_run(&self, chunk: ChunkIndex, run: BlockRange) -> Option<(Lba, u32)> {
        let lba = self.lba_of(chunk, run.start)?;
        let piece = self.pieces(lba, BlockCount(run.count.into())).ok()?.next()?;
        Some((lba, piece.range.count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_have_every_block_of_a_range_once_and_go_on_in_their_chunk(
            first in 0u64..96, blocks in 0u64..96, widths in prop::collection::vec(1u32..4, 1..4),
        ) {
            let geometry = Geometry {
                block_bytes: 4096,
                metadata_bytes: 0,
                stripe_unit_blocks: 4,
                chunk_blocks: 16,
                region_blocks: 8,
                copies: 3,
                minimum: 2,
                group_chunks: widths,
            };
            let all = geometry.volume_blocks().0;
            let first = first.min(all);
            let blocks = blocks.min(all - first);
            let runs = geometry.runs(Lba(first), BlockCount(blocks)).unwrap();
            let mut found = BTreeSet::new();
            for (chunk, run) in &runs {
                let mut left = *run;
                while left.count > 0 {
                    let (lba, count) = geometry.piece_of_run(*chunk, left).unwrap();
                    let count = count.min(left.count);
                    for block in 0..count {
                        let place = geometry.lba_of(*chunk, left.start + block);
                        prop_assert_eq!(place, Some(Lba(lba.0 + u64::from(block))));
                        prop_assert!(found.insert(lba.0 + u64::from(block)));
                    }
                    left.start += count;
                    left.count -= count;
                }
            }
            prop_assert_eq!(found, (first..first + blocks).collect::<BTreeSet<_>>());
            // No chunk has two: these are shorter than the longest run.
            let chunks: BTreeSet<_> = runs.iter().map(|(chunk, _)| *chunk).collect();
            prop_assert_eq!(chunks.len(), runs.len());
        }
    }

    #[test]
    fn a_long_run_begins_anew_at_each_multiple_of_the_longest() {
        let geometry = Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 64,
            chunk_blocks: 1 << 16,
            region_blocks: 256,
            copies: 3,
            minimum: 2,
            group_chunks: vec![8, 1],
        };
        let longest = RUN_BYTES_MAX / 4096;
        // The whole first group but for its first and last blocks: the first and the last chunk lack one.
        let blocks = 8 * u64::from(geometry.chunk_blocks) - 2;
        let runs = geometry.runs(Lba(1), BlockCount(blocks)).unwrap();
        assert_eq!(runs.len(), 8 * 8);
        let range = |start, count| BlockRange { start, count };
        assert_eq!(runs[0], (ChunkIndex(0), range(1, longest - 1)));
        assert_eq!(runs[1], (ChunkIndex(0), range(longest, longest)));
        assert_eq!(runs[63], (ChunkIndex(7), range(7 * longest, longest - 1)));
        assert!(geometry.runs(Lba(1), BlockCount(u64::MAX)).is_err());
    }
}
