//! What a new write node has still to make equal on all copies before it serves: the regions
//! that any of them has marked, piece by piece.

use std::collections::BTreeSet;

use crate::identity::{BlockRange, IoToken};

/// The regions to make equal and the pieces under way.
#[derive(Debug, Default)]
pub(crate) struct Reconciliation {
    pub(crate) regions: BTreeSet<u32>,
    current: Option<BlockRange>,
    /// Pieces to be read again after a repair.
    pub(crate) again: Vec<BlockRange>,
    reads: Vec<(IoToken, BlockRange)>,
    /// Reconciliation writes that are not on every copy yet.
    pub(crate) writes: usize,
}

impl Reconciliation {
    /// Nothing left and nothing under way.
    pub(crate) fn is_complete(&self) -> bool {
        self.regions.is_empty()
            && self.again.is_empty()
            && self.current.is_none()
            && self.reads.is_empty()
            && self.writes == 0
    }

    pub(crate) fn under_way(&self) -> usize {
        self.reads.len() + self.writes
    }

    /// The next piece to read again that waits for no repair.
    pub(crate) fn next_again(&mut self, is_repaired: impl Fn(BlockRange) -> bool) -> Option<BlockRange> {
        let at = self.again.iter().position(|range| !is_repaired(*range))?;
        Some(self.again.swap_remove(at))
    }

    /// A block is lost: what is to be read again is read without it.
    pub(crate) fn leave_out(&mut self, lost: BlockRange) {
        for range in std::mem::take(&mut self.again) {
            if !range.overlaps(lost) {
                self.again.push(range);
                continue;
            }
            let (end, lost_end) = (range.start + range.count, lost.start + lost.count);
            let before = (range.start, lost.start.max(range.start));
            let after = (lost_end.min(end), end);
            for (start, end) in [before, after].into_iter().filter(|(start, end)| start < end) {
                let count = end - start;
                self.again.push(BlockRange { start, count });
            }
        }
    }

    /// The next piece to read.
    pub(crate) fn next_piece(
        &mut self,
        region_blocks: u32,
        chunk_blocks: u32,
        piece_blocks: u32,
    ) -> Option<BlockRange> {
        if self.current.is_none() {
            let region = self.regions.pop_first()?;
            let start = region * region_blocks;
            self.current = Some(BlockRange {
                start,
                count: region_blocks.min(chunk_blocks - start),
            });
        }
        let rest = self.current.take()?;
        let count = rest.count.min(piece_blocks);
        if count < rest.count {
            self.current = Some(BlockRange {
                start: rest.start + count,
                count: rest.count - count,
            });
        }
        let start = rest.start;
        Some(BlockRange { start, count })
    }

    pub(crate) fn reading(&mut self, io: IoToken, range: BlockRange) {
        self.reads.push((io, range));
    }

    /// The piece a local read was for; none if it belonged to an earlier epoch.
    pub(crate) fn read(&mut self, io: IoToken) -> Option<BlockRange> {
        let at = self.reads.iter().position(|(token, _)| *token == io)?;
        Some(self.reads.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_region_once() {
        let mut left = Reconciliation {
            regions: [0, 2].into(),
            ..Default::default()
        };
        let mut blocks = Vec::new();
        while let Some(piece) = left.next_piece(8, 20, 3) {
            blocks.extend(piece.start..piece.start + piece.count);
        }
        assert_eq!(blocks, (0..8).chain(16..20).collect::<Vec<u32>>());
        assert!(left.is_complete());
    }
}
