//! Content that was written and is not yet in the tree: pure bookkeeping of one file.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::PAGE_BYTES_U64;
use crate::format::entry::Timestamp;
use crate::writer::Charged;

/// Chunks grow to this length, in bytes.
const CHUNK_BYTES_MAX: usize = 128 << 10;
/// What a file's changes take besides their chunks, roughly.
const FILE_OVERHEAD_BYTES: usize = 160;
/// What a chunk takes besides its bytes, roughly.
const CHUNK_OVERHEAD_BYTES: usize = 96;

/// The most memory that a write of so many bytes can add.
pub(super) fn cost_bytes(length: usize) -> usize {
    // A write may split a chunk, and lengthen one so that it has room to grow.
    length + CHUNK_BYTES_MAX / 2 + 2 * CHUNK_OVERHEAD_BYTES + FILE_OVERHEAD_BYTES
}

/// Of a file's change, the index may have to keep these anew: where its name stands, itself, and its extents, in pages.
const INDEX_PAGES: u64 = 3;

/// How content is packed, as far as it says how much of the volume it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    /// What is not longer is not cut by a stripe unit's end, in bytes.
    pub(super) unit: u64,
    /// A file up to this length is packed whole whenever it changes, in bytes.
    pub(super) whole: u64,
    /// A shorter rest beside what changes is packed along, in bytes.
    pub(super) absorbed: u64,
}

impl Packing {
    /// What is packed along with so many pieces on both sides of each, and the rest of a page before it, in bytes.
    fn along(&self, pieces: u64) -> u64 {
        pieces * (2 * self.absorbed + PAGE_BYTES_U64)
    }

    /// The most that so many bytes take which lie in so many places of a file, in bytes: with what is packed along, and as much again where
    /// a piece is short, because it may not fit into the rest of a stripe unit.
    pub(super) fn pieces_room(&self, bytes: u64, pieces: u64) -> u64 {
        let packed = bytes.saturating_add(self.along(pieces));
        packed.saturating_add(packed.min(pieces * self.unit))
    }

    /// The most that a file packed whole takes, in bytes.
    fn whole_room(size: u64) -> u64 {
        2 * size + PAGE_BYTES_U64
    }

    /// The most by which another length of a file raises [`Dirty::room`], in bytes.
    pub(super) fn length_room(&self, size: u64) -> u64 {
        Self::whole_room(size.min(self.whole)) + INDEX_PAGES * PAGE_BYTES_U64
    }

    /// The most by which a write of so many bytes raises [`Dirty::room`], in bytes.
    pub(super) fn write_room(&self, bytes: u64) -> u64 {
        // It may split a piece, and the file may become too long to be packed whole.
        let pieces = 2 * (bytes + self.along(3));
        pieces + Self::whole_room(self.whole) + INDEX_PAGES * PAGE_BYTES_U64
    }
}

/// What waits of all files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// Memory that it takes, in bytes.
    pub(super) bytes: usize,
    /// The most that it takes of the volume, in bytes.
    pub(super) room: u64,
}

impl Waiting {
    pub(super) fn add(&mut self, dirty: &Dirty, packing: Packing) {
        self.bytes += dirty.bytes();
        self.room += dirty.room(packing);
    }

    pub(super) fn take(&mut self, dirty: &Dirty, packing: Packing) {
        self.bytes -= dirty.bytes();
        self.room -= dirty.room(packing);
    }
}

/// Changes of a file's content since it was last put into the tree.
#[derive(Debug)]
pub(super) struct Dirty {
    /// The file's length now, in bytes.
    size: u64,
    /// What the tree holds counts below this offset only.
    kept: u64,
    /// The file's length in the tree, and the quota it counts for: what waits is the difference.
    base: u64,
    pub(super) charged: Charged,
    chunks: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    /// When content was changed last.
    pub(super) modified: Option<Timestamp>,
}

fn memory(chunk: &Vec<u8>) -> usize {
    chunk.capacity() + CHUNK_OVERHEAD_BYTES
}

impl Dirty {
    /// No changes of a file of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            kept: size,
            base: size,
            charged: None,
            chunks: BTreeMap::new(),
            bytes: FILE_OVERHEAD_BYTES,
            modified: None,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes that the tree's counters do not have yet.
    pub(super) fn uncounted(&self) -> i64 {
        self.size.cast_signed() - self.base.cast_signed()
    }

    /// The file has another length in the tree now.
    pub(super) fn set_base(&mut self, base: u64) {
        self.base = base;
    }

    /// Nothing was written: all that changes is where the file ends, and how far it has content.
    pub(super) fn is_a_cut(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that it takes of the volume when it is put into the tree, in bytes.
    pub(super) fn room(&self, packing: Packing) -> u64 {
        let (bytes, pieces) = (self.bytes as u64, self.chunks.len() as u64);
        let content = match self.size <= packing.whole {
            // With many pieces it takes more as soon as it is longer.
            true => Packing::whole_room(self.size).max(packing.pieces_room(bytes, pieces.saturating_sub(1))),
            false => packing.pieces_room(bytes, pieces),
        };
        content + INDEX_PAGES * PAGE_BYTES_U64
    }

    fn insert(&mut self, start: u64, chunk: Vec<u8>) {
        self.bytes += memory(&chunk);
        let before = self.chunks.insert(start, chunk);
        assert!(before.is_none(), "chunks do not overlap");
    }

    fn remove(&mut self, start: u64) -> Option<Vec<u8>> {
        let chunk = self.chunks.remove(&start)?;
        self.bytes -= memory(&chunk);
        Some(chunk)
    }

    /// The last chunk that begins before `offset`.
    fn last_before(&self, offset: u64) -> Option<(u64, u64)> {
        let (&start, chunk) = self.chunks.range(..offset).next_back()?;
        Some((start, start + chunk.len() as u64))
    }

    /// Takes away what chunks hold of a range.
    fn punch(&mut self, range: &Range<u64>) {
        while let Some((start, end)) = self.last_before(range.end).filter(|(_, end)| *end > range.start) {
            let mut chunk = self.remove(start).expect("the chunk was just found");
            if end > range.end {
                self.insert(range.end, chunk[(range.end - start) as usize..].to_vec());
            }
            if start < range.start {
                chunk.truncate((range.start - start) as usize);
                chunk.shrink_to_fit();
                self.insert(start, chunk);
            }
        }
    }

    /// Writes bytes. Lengthens the file if they go past its end.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        self.size = self.size.max(end);
        if let Some((start, its_end)) = self.last_before(offset + 1)
            && its_end >= end
        {
            let chunk = self.chunks.get_mut(&start).expect("the chunk was just found");
            let at = (offset - start) as usize;
            chunk[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        self.punch(&(offset..end));
        if let Some((start, its_end)) = self.last_before(offset)
            && its_end == offset
            && (its_end - start) as usize + bytes.len() <= CHUNK_BYTES_MAX
        {
            let mut chunk = self.remove(start).expect("the chunk was just found");
            if chunk.capacity() - chunk.len() < bytes.len() {
                // As much again, so that a file of small writes is not copied for each of them.
                let more = chunk.len().min(CHUNK_BYTES_MAX - chunk.len()).max(bytes.len());
                chunk.reserve_exact(more);
            }
            chunk.extend_from_slice(bytes);
            self.insert(start, chunk);
            return;
        }
        self.insert(offset, bytes.to_vec());
    }

    /// Cuts the file, or lengthens it by zeros.
    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.punch(&(size..u64::MAX));
        }
        self.kept = self.kept.min(size);
        self.size = size;
    }

    /// Puts what was written over bytes of the file that begin at `offset`.
    pub(super) fn overlay(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset + bytes.len() as u64;
        let first = self.last_before(offset).map_or(offset, |(start, _)| start);
        for (&start, chunk) in self.chunks.range(first..end) {
            let from = start.max(offset);
            let to = (start + chunk.len() as u64).min(end);
            if from < to {
                let source = &chunk[(from - start) as usize..(to - start) as usize];
                bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
    }

    /// Whether all of a range was written.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.last_before(at + 1).filter(|(_, end)| *end > at) {
                Some((_, end)) => at = end,
                None => return false,
            }
        }
        true
    }

    /// The first chunk of written bytes that ends after `offset`.
    pub(super) fn data_after(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.last_before(offset.saturating_add(1));
        let around = before
            .filter(|(_, end)| *end > offset)
            .map(|(start, end)| start..end);
        let behind = || self.chunks.range(offset..).next();
        around.or_else(|| behind().map(|(&start, chunk)| start..start + chunk.len() as u64))
    }

    /// The first run of written bytes, at most `limit` of them: where it begins, and the bytes.
    pub(super) fn first_run(&self, limit: usize) -> Option<(u64, Vec<u8>)> {
        let (&offset, _) = self.chunks.first_key_value()?;
        let mut run = Vec::new();
        for (&start, chunk) in &self.chunks {
            if start != offset + run.len() as u64 || run.len() >= limit {
                break;
            }
            let part = chunk.len().min(limit - run.len());
            run.extend_from_slice(&chunk[..part]);
        }
        Some((offset, run))
    }

    /// The tree holds the bytes of a range now, and everything before it that counts.
    pub(super) fn settled(&mut self, range: &Range<u64>) {
        self.punch(range);
        self.kept = self.kept.max(range.end).min(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize),
        Size(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..400_000u64, prop_oneof![1..200usize, 1..150_000usize]).prop_map(|(at, n)| Step::Write(at, n)),
            1 => (0..500_000u64).prop_map(Step::Size),
        ]
    }

    proptest! {
        #[test]
        fn is_an_array_over_another(old in 0..300_000usize, steps in proptest::collection::vec(step(), 0..40)) {
            let old = vec![0xee; old];
            let mut model = old.clone();
            let mut dirty = Dirty::new(old.len() as u64);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write(at, length) => {
                        let bytes = vec![number as u8 + 1; length];
                        let before = dirty.bytes();
                        dirty.write(at, &bytes);
                        prop_assert!(dirty.bytes() <= before + cost_bytes(length));
                        let at = at as usize;
                        model.resize(model.len().max(at + length), 0);
                        model[at..at + length].copy_from_slice(&bytes);
                    }
                    Step::Size(size) => {
                        dirty.set_size(size);
                        model.resize(size as usize, 0);
                    }
                }
                prop_assert_eq!(dirty.size(), model.len() as u64);
                let held: usize = dirty.chunks.values().map(memory).sum();
                prop_assert_eq!(held + FILE_OVERHEAD_BYTES, dirty.bytes());
            }
            let mut seen = vec![0; model.len()];
            let kept = dirty.kept() as usize;
            seen[..kept].copy_from_slice(&old[..kept]);
            dirty.overlay(0, &mut seen);
            prop_assert!(seen == model);
            // Run by run, what was written arrives once.
            let mut seen = vec![0; model.len()];
            seen[..kept].copy_from_slice(&old[..kept]);
            while let Some((at, run)) = dirty.first_run(70_000) {
                let at = at as usize;
                seen[at..at + run.len()].copy_from_slice(&run);
                dirty.settled(&(at as u64..(at + run.len()) as u64));
            }
            prop_assert!(seen == model);
            prop_assert_eq!(dirty.bytes(), FILE_OVERHEAD_BYTES);
        }
    }
}
