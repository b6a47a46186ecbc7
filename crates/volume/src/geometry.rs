//! How a volume's blocks lie in its chunks. A volume is a list of stripe groups; a group is a
//! number of chunks over which stripe units go round in turn. Growing a volume appends a group,
//! so the place of a block, once given, never changes.
//!
//! Finding the pieces of a request costs a binary search over the groups and two divisions.

mod runs;

use std::collections::BTreeSet;

use foundation::{BlockCount, ByteCount, Lba};
use thiserror::Error;

use crate::configuration::COPIES_MAX;
use crate::format::{FormatError, Reader, Writer, open_block, seal_block};
use crate::identity::{BlockRange, ChunkIndex};

pub use runs::RUN_BYTES_MAX;

/// The unit in which copies are stored; smaller writes are read, modified and written.
pub const PAGE_BYTES: u32 = 4096;
/// The most stripe groups a volume can have.
pub const GROUPS_MAX: usize = 4096;
/// The most regions the intent map of a chunk can have.
pub const REGIONS_MAX: u32 = 65_536;
/// No piece of a request is longer, in bytes. What is written goes from node to node in one buffer with its place in the
/// chunk's order behind it, and a buffer has at most 1 MiB ([`reactor::buffer::BUFFER_BYTES_MAX`]).
pub const PIECE_BYTES_MAX: u32 = 512 << 10;
const MAGIC: u64 = u64::from_le_bytes(*b"RHVGEOM\0");
const VERSION: u16 = 1;

/// The layout of a volume, fixed at its creation but for appended groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Bytes in a block: 512 or 4096.
    pub block_bytes: u32,
    /// Bytes of metadata beside each block: 0 or 8.
    pub metadata_bytes: u32,
    /// Blocks that lie together in one chunk before the next chunk's turn.
    pub stripe_unit_blocks: u32,
    /// Blocks in a chunk, a multiple of the stripe unit.
    pub chunk_blocks: u32,
    /// Blocks that share one intent mark, a multiple of a page.
    pub region_blocks: u32,
    /// Copies a chunk should have.
    pub copies: u8,
    /// In-sync copies below which a chunk takes no writes.
    pub minimum: u8,
    /// Chunks in each stripe group, in the order in which the volume grew.
    pub group_chunks: Vec<u32>,
}

/// A geometry in bytes, as the masters describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeometrySizes {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Bytes of metadata beside each block.
    pub metadata_bytes: u32,
    /// Bytes that lie together in one chunk.
    pub stripe_unit_bytes: u64,
    /// Bytes in a chunk.
    pub chunk_bytes: u64,
    /// Bytes that share one intent mark.
    pub region_bytes: u64,
    /// Copies a chunk should have.
    pub copies: u32,
    /// In-sync copies below which a chunk takes no writes.
    pub minimum: u32,
    /// Chunks in each stripe group.
    pub group_chunks: Vec<u32>,
}

impl TryFrom<GeometrySizes> for Geometry {
    type Error = GeometryError;

    /// The same in blocks, if it can be used. What does not fit its field is refused as the field's check does.
    fn try_from(sizes: GeometrySizes) -> Result<Self, GeometryError> {
        let block = u64::from(sizes.block_bytes.max(1));
        // A size that is no whole number of blocks, or of too many, becomes one that is refused.
        let blocks = |bytes: u64| match bytes % block {
            0 => u32::try_from(bytes / block).unwrap_or(0),
            _ => 0,
        };
        let small = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        let geometry = Self {
            block_bytes: sizes.block_bytes,
            metadata_bytes: sizes.metadata_bytes,
            stripe_unit_blocks: blocks(sizes.stripe_unit_bytes),
            chunk_blocks: blocks(sizes.chunk_bytes),
            region_blocks: blocks(sizes.region_bytes),
            copies: small(sizes.copies),
            minimum: small(sizes.minimum),
            group_chunks: sizes.group_chunks,
        };
        geometry.validate()?;
        Ok(geometry)
    }
}

/// Why a geometry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Neither 512 nor 4096.
    #[error("a block of {block_bytes} bytes is not supported; use 512 or 4096")]
    BlockSize {
        /// What was asked for.
        block_bytes: u32,
    },
    /// Neither 0 nor 8.
    #[error("{metadata_bytes} bytes of metadata per block are not supported; use 0 or 8")]
    MetadataSize {
        /// What was asked for.
        metadata_bytes: u32,
    },
    /// The stripe unit is no multiple of a page.
    #[error(
        "a stripe unit of {stripe_unit_blocks} blocks of {block_bytes} bytes is no whole number of {PAGE_BYTES}-byte pages; use a multiple of {PAGE_BYTES} bytes"
    )]
    StripeUnit {
        /// What was asked for.
        stripe_unit_blocks: u32,
        /// The block size.
        block_bytes: u32,
    },
    /// The chunk is no multiple of the stripe unit.
    #[error(
        "a chunk of {chunk_blocks} blocks is no whole number of stripe units of {stripe_unit_blocks} blocks; make it a multiple"
    )]
    ChunkSize {
        /// What was asked for.
        chunk_blocks: u32,
        /// The stripe unit.
        stripe_unit_blocks: u32,
    },
    /// The region is no multiple of a page, or there would be too many in a chunk.
    #[error(
        "an intent region of {region_blocks} blocks does not do for chunks of {chunk_blocks} blocks; use whole pages and at most {REGIONS_MAX} regions a chunk"
    )]
    Region {
        /// What was asked for.
        region_blocks: u32,
        /// The chunk size.
        chunk_blocks: u32,
    },
    /// Copies and minimum do not go together.
    #[error(
        "{copies} copies with a minimum of {minimum} cannot work; copies are 1 to {COPIES_MAX} and the minimum is 1 to the number of copies"
    )]
    Copies {
        /// Copies asked for.
        copies: u8,
        /// Minimum asked for.
        minimum: u8,
    },
    /// No group, too many, an empty one, or more chunks or bytes than can be counted.
    #[error(
        "stripe group {index} of {chunks} chunks cannot be used; a volume has 1 to {GROUPS_MAX} groups of at least one chunk and at most 2^32 chunks and 2^64 bytes in all"
    )]
    Group {
        /// Which group.
        index: usize,
        /// Its chunks.
        chunks: u32,
    },
    /// The request ends behind the volume.
    #[error(
        "blocks {first_lba} to {first_lba} + {blocks} are not all inside the volume's {volume_blocks} blocks; grow the volume or correct the request"
    )]
    OutOfRange {
        /// The request's first block.
        first_lba: Lba,
        /// The request's blocks.
        blocks: BlockCount,
        /// The volume's size.
        volume_blocks: BlockCount,
    },
}

/// A part of a request that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The chunk.
    pub chunk: ChunkIndex,
    /// The blocks in it.
    pub range: BlockRange,
    /// Where the piece begins in the request.
    pub request_offset: BlockCount,
}

impl Geometry {
    /// Checks the numbers against each other.
    pub fn validate(&self) -> Result<(), GeometryError> {
        if !matches!(self.block_bytes, 512 | 4096) {
            return Err(GeometryError::BlockSize {
                block_bytes: self.block_bytes,
            });
        }
        if !matches!(self.metadata_bytes, 0 | 8) {
            return Err(GeometryError::MetadataSize {
                metadata_bytes: self.metadata_bytes,
            });
        }
        let page_blocks = self.page_blocks();
        if self.stripe_unit_blocks == 0 || !self.stripe_unit_blocks.is_multiple_of(page_blocks) {
            return Err(GeometryError::StripeUnit {
                stripe_unit_blocks: self.stripe_unit_blocks,
                block_bytes: self.block_bytes,
            });
        }
        if self.chunk_blocks == 0 || !self.chunk_blocks.is_multiple_of(self.stripe_unit_blocks) {
            return Err(GeometryError::ChunkSize {
                chunk_blocks: self.chunk_blocks,
                stripe_unit_blocks: self.stripe_unit_blocks,
            });
        }
        if self.region_blocks == 0
            || !self.region_blocks.is_multiple_of(page_blocks)
            || self.regions() > REGIONS_MAX
        {
            return Err(GeometryError::Region {
                region_blocks: self.region_blocks,
                chunk_blocks: self.chunk_blocks,
            });
        }
        if self.minimum == 0 || self.minimum > self.copies || usize::from(self.copies) > COPIES_MAX {
            return Err(GeometryError::Copies {
                copies: self.copies,
                minimum: self.minimum,
            });
        }
        self.validate_groups()
    }

    fn validate_groups(&self) -> Result<(), GeometryError> {
        let bad = |index| GeometryError::Group {
            index,
            chunks: self.group_chunks.get(index).copied().unwrap_or(0),
        };
        if self.group_chunks.is_empty() {
            return Err(bad(0));
        }
        let mut chunks = 0u32;
        for (index, &width) in self.group_chunks.iter().enumerate() {
            if width == 0 || index >= GROUPS_MAX {
                return Err(bad(index));
            }
            chunks = chunks.checked_add(width).ok_or_else(|| bad(index))?;
            let blocks = u64::from(chunks) * u64::from(self.chunk_blocks);
            if blocks.checked_mul(u64::from(self.block_bytes)).is_none() {
                return Err(bad(index));
            }
        }
        Ok(())
    }

    /// Blocks in a page: 8 or 1.
    pub fn page_blocks(&self) -> u32 {
        PAGE_BYTES / self.block_bytes
    }

    /// Regions of one chunk's intent map.
    pub fn regions(&self) -> u32 {
        self.chunk_blocks.div_ceil(self.region_blocks)
    }

    /// Chunks in the whole volume.
    pub fn chunks(&self) -> u64 {
        self.group_chunks.iter().copied().map(u64::from).sum()
    }

    /// All chunks, in order.
    pub fn all_chunks(&self) -> Vec<ChunkIndex> {
        let index =
            |chunk| ChunkIndex(u32::try_from(chunk).expect("a valid geometry has fewer than 2^32 chunks"));
        (0..self.chunks()).map(index).collect()
    }

    /// The volume's size in blocks.
    pub fn volume_blocks(&self) -> BlockCount {
        BlockCount(self.chunks() * u64::from(self.chunk_blocks))
    }

    /// The volume's size in bytes, without metadata.
    pub fn volume_bytes(&self) -> ByteCount {
        ByteCount(self.volume_blocks().0 * u64::from(self.block_bytes))
    }

    /// Whether this is `before` with stripe groups appended to it.
    pub fn is_growth_of(&self, before: &Self) -> bool {
        let whole = Self {
            group_chunks: self.group_chunks.clone(),
            ..before.clone()
        };
        *self == whole
            && self.group_chunks.len() > before.group_chunks.len()
            && self.group_chunks.starts_with(&before.group_chunks)
    }

    /// Appends a stripe group of `chunks` chunks. No block already there moves.
    pub fn append_group(&mut self, chunks: u32) -> Result<(), GeometryError> {
        self.group_chunks.push(chunks);
        self.validate_groups().inspect_err(|_| {
            self.group_chunks.pop();
        })
    }

    /// The pieces of a request in ascending order of address, one for each stripe unit touched, none longer than
    /// [`PIECE_BYTES_MAX`].
    pub fn pieces(&self, first: Lba, blocks: BlockCount) -> Result<Pieces<'_>, GeometryError> {
        let volume_blocks = self.volume_blocks();
        match first.checked_add(blocks) {
            Some(end) if end.0 <= volume_blocks.0 => {}
            _ => {
                return Err(GeometryError::OutOfRange {
                    first_lba: first,
                    blocks,
                    volume_blocks,
                });
            }
        }
        let chunk_blocks = u64::from(self.chunk_blocks);
        let mut pieces = Pieces {
            geometry: self,
            group: 0,
            group_first_chunk: 0,
            next_lba: first.0,
            first_lba: first.0,
            end_lba: first.0 + blocks.0,
        };
        while pieces.next_lba < pieces.end_lba
            && pieces.next_lba >= (pieces.group_first_chunk + pieces.width()) * chunk_blocks
        {
            pieces.enter_next_group();
        }
        Ok(pieces)
    }

    /// The chunks that a range touches, in ascending order.
    pub fn chunks_of(&self, first: Lba, blocks: BlockCount) -> Result<Vec<ChunkIndex>, GeometryError> {
        let mut pieces = self.pieces(first, blocks)?;
        let mut chunks = BTreeSet::new();
        let (mut group, mut visited) = (pieces.group, 0);
        while let Some(piece) = pieces.next() {
            if std::mem::replace(&mut group, pieces.group) != pieces.group {
                visited = 0;
            }
            visited += u64::from(chunks.insert(piece.chunk));
            // A whole round of a group's stripe units has visited all its chunks.
            let (first, width) = (pieces.group_first_chunk, pieces.width());
            if visited == width {
                let group_end = (first + width) * u64::from(self.chunk_blocks);
                pieces.next_lba = pieces.next_lba.max(group_end.min(pieces.end_lba));
            }
        }
        Ok(chunks.into_iter().collect())
    }

    /// A chunk's first block in the volume; none behind the volume's end.
    pub fn first_lba(&self, chunk: ChunkIndex) -> Option<Lba> {
        let index = u64::from(chunk.0);
        let mut group_first_chunk = 0;
        for &width in &self.group_chunks {
            let width = u64::from(width);
            if index < group_first_chunk + width {
                // The first round of a group's stripe units visits its chunks in order.
                let unit_blocks = if width == 1 {
                    0
                } else {
                    u64::from(self.stripe_unit_blocks)
                };
                let within = (index - group_first_chunk) * unit_blocks;
                return Some(Lba(group_first_chunk * u64::from(self.chunk_blocks) + within));
            }
            group_first_chunk += width;
        }
        None
    }

    /// Where a block of a chunk is in the volume; none if there is no such chunk or block.
    pub fn lba_of(&self, chunk: ChunkIndex, block: u32) -> Option<Lba> {
        let first = self.first_lba(chunk).filter(|_| block < self.chunk_blocks)?;
        let mut group_first_chunk = 0;
        let mut widths = self.group_chunks.iter().map(|width| u64::from(*width));
        let width = widths.find(|width| {
            group_first_chunk += width;
            u64::from(chunk.0) < group_first_chunk
        })?;
        let block = u64::from(block);
        let unit_blocks = match width {
            1 => u64::from(self.chunk_blocks),
            _ => u64::from(self.stripe_unit_blocks),
        };
        let (unit, within) = (block / unit_blocks, block % unit_blocks);
        Some(Lba(first.0 + unit * width * unit_blocks + within))
    }

    /// Encodes the persistent geometry record (`docs/formats/volume-geometry.md`).
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.encode_fields(&mut body);
        seal_block(MAGIC, VERSION, &body.bytes)
    }

    /// Decodes and validates a geometry record; bytes after it are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (_, body) = open_block("volume geometry", MAGIC, VERSION, bytes)?;
        let mut reader = Reader::new("volume geometry", body);
        let geometry = Self::decode_fields(&mut reader)?;
        reader.finish()?;
        Ok(geometry)
    }

    pub(crate) fn encode_fields(&self, out: &mut Writer) {
        out.u32(self.block_bytes);
        out.u32(self.metadata_bytes);
        out.u32(self.stripe_unit_blocks);
        out.u32(self.chunk_blocks);
        out.u32(self.region_blocks);
        out.u8(self.copies);
        out.u8(self.minimum);
        out.u16(0);
        out.count(self.group_chunks.len());
        for &chunks in &self.group_chunks {
            out.u32(chunks);
        }
    }

    pub(crate) fn decode_fields(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let block_bytes = reader.u32()?;
        let metadata_bytes = reader.u32()?;
        let stripe_unit_blocks = reader.u32()?;
        let chunk_blocks = reader.u32()?;
        let region_blocks = reader.u32()?;
        let copies = reader.u8()?;
        let minimum = reader.u8()?;
        let _zero = reader.u16()?;
        let count = reader.count(4)?;
        let mut group_chunks = Vec::with_capacity(count);
        for _ in 0..count {
            group_chunks.push(reader.u32()?);
        }
        let geometry = Self {
            block_bytes,
            metadata_bytes,
            stripe_unit_blocks,
            chunk_blocks,
            region_blocks,
            copies,
            minimum,
            group_chunks,
        };
        geometry.validate().map_err(|_| FormatError::Invalid {
            what: "volume geometry",
            field: "sizes",
            value: u64::from(block_bytes),
        })?;
        Ok(geometry)
    }
}

/// Iterator over the pieces of a request; see [`Geometry::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    geometry: &'a Geometry,
    group: usize,
    group_first_chunk: u64,
    next_lba: u64,
    first_lba: u64,
    end_lba: u64,
}

impl Pieces<'_> {
    fn width(&self) -> u64 {
        u64::from(self.geometry.group_chunks[self.group])
    }

    fn enter_next_group(&mut self) {
        self.group_first_chunk += self.width();
        self.group += 1;
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.next_lba >= self.end_lba {
            return None;
        }
        let chunk_blocks = u64::from(self.geometry.chunk_blocks);
        let (mut width, mut group_lba) = (self.width(), self.group_first_chunk * chunk_blocks);
        if self.next_lba >= group_lba + width * chunk_blocks {
            self.enter_next_group();
            (width, group_lba) = (self.width(), self.group_first_chunk * chunk_blocks);
        }
        // A group of one chunk has nothing to take turns with: the whole chunk is one unit.
        let unit_blocks = match width {
            1 => chunk_blocks,
            _ => u64::from(self.geometry.stripe_unit_blocks),
        };
        let offset = self.next_lba - group_lba;
        let (unit, within) = (offset / unit_blocks, offset % unit_blocks);
        let longest = u64::from(PIECE_BYTES_MAX / self.geometry.block_bytes);
        let count = (unit_blocks - within)
            .min(self.end_lba - self.next_lba)
            .min(longest - within % longest);
        let piece = Piece {
            chunk: ChunkIndex(
                u32::try_from(self.group_first_chunk + unit % width)
                    .expect("a valid geometry has fewer than 2^32 chunks"),
            ),
            range: BlockRange {
                start: u32::try_from(unit / width * unit_blocks + within)
                    .expect("a chunk has fewer than 2^32 blocks"),
                count: u32::try_from(count).expect("a chunk has fewer than 2^32 blocks"),
            },
            request_offset: BlockCount(self.next_lba - self.first_lba),
        };
        self.next_lba += count;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_in_bytes_become_blocks_or_are_refused() {
        let sizes = GeometrySizes {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_bytes: 64 << 10,
            chunk_bytes: 1 << 30,
            region_bytes: 1 << 20,
            copies: 3,
            minimum: 2,
            group_chunks: vec![4],
        };
        let geometry = Geometry::try_from(sizes.clone()).unwrap();
        assert_eq!(
            (
                geometry.stripe_unit_blocks,
                geometry.chunk_blocks,
                geometry.region_blocks
            ),
            (16, 1 << 18, 256)
        );
        let bad: [fn(&mut GeometrySizes); 6] = [
            |sizes| sizes.block_bytes = 0,
            |sizes| sizes.chunk_bytes = u64::MAX,
            |sizes| sizes.chunk_bytes += 1,
            |sizes| sizes.region_bytes = 100,
            |sizes| sizes.copies = 1000,
            |sizes| sizes.minimum = 259,
        ];
        for spoil in bad {
            let mut sizes = sizes.clone();
            spoil(&mut sizes);
            assert!(Geometry::try_from(sizes.clone()).is_err(), "{sizes:?}");
        }
    }

    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn small() -> Geometry {
        Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 4,
            chunk_blocks: 16,
            region_blocks: 8,
            copies: 3,
            minimum: 2,
            group_chunks: vec![3, 1, 2],
        }
    }

    fn place(geometry: &Geometry, lba: u64) -> (u32, u32) {
        let mut pieces = geometry.pieces(Lba(lba), BlockCount(1)).unwrap();
        let piece = pieces.next().unwrap();
        assert_eq!((piece.range.count, pieces.next()), (1, None));
        (piece.chunk.0, piece.range.start)
    }

    #[test]
    fn a_chunk_begins_where_its_first_block_lies() {
        let geometry = small();
        for chunk in 0..6 {
            let first = geometry.first_lba(ChunkIndex(chunk)).unwrap();
            assert_eq!(place(&geometry, first.0), (chunk, 0));
        }
        assert_eq!(geometry.first_lba(ChunkIndex(6)), None);
        for lba in 0..geometry.volume_blocks().0 {
            let (chunk, block) = place(&geometry, lba);
            assert_eq!(geometry.lba_of(ChunkIndex(chunk), block), Some(Lba(lba)));
        }
        assert_eq!(geometry.lba_of(ChunkIndex(5), 16), None);
    }

    #[test]
    fn every_block_has_its_own_place_and_growth_moves_none() {
        let mut geometry = small();
        geometry.validate().unwrap();
        let before: Vec<_> = (0..geometry.volume_blocks().0)
            .map(|lba| place(&geometry, lba))
            .collect();
        let mut taken = BTreeMap::new();
        for (lba, &(chunk, block)) in before.iter().enumerate() {
            assert!(chunk < 6 && block < 16);
            assert_eq!(taken.insert((chunk, block), lba), None);
        }
        assert_eq!(before[0..5], [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]);
        let shape_before = geometry.clone();
        geometry.append_group(5).unwrap();
        assert!(geometry.is_growth_of(&shape_before));
        assert!(!shape_before.is_growth_of(&geometry) && !geometry.is_growth_of(&geometry));
        let mut other = geometry.clone();
        other.copies = 2;
        assert!(!other.is_growth_of(&shape_before), "of another volume");
        for (lba, &was) in before.iter().enumerate() {
            assert_eq!(place(&geometry, lba as u64), was);
        }
        assert!(geometry.append_group(0).is_err());
        assert_eq!(geometry.chunks(), 11);
    }

    #[test]
    fn errors_say_what_to_use() {
        let texts: Vec<String> = [
            Geometry {
                block_bytes: 520,
                ..small()
            },
            Geometry {
                metadata_bytes: 16,
                ..small()
            },
            Geometry {
                block_bytes: 512,
                ..small()
            },
            Geometry {
                chunk_blocks: 18,
                ..small()
            },
            Geometry {
                region_blocks: 0,
                ..small()
            },
            Geometry {
                minimum: 4,
                ..small()
            },
            Geometry {
                group_chunks: vec![],
                ..small()
            },
        ]
        .iter()
        .map(|geometry| geometry.validate().unwrap_err().to_string())
        .collect();
        for (text, part) in texts.iter().zip([
            "use 512 or 4096",
            "use 0 or 8",
            "use a multiple of 4096 bytes",
            "make it a multiple",
            "use whole pages",
            "the minimum is 1 to the number of copies",
            "1 to 4096 groups",
        ]) {
            assert!(text.contains(part), "{text}");
        }
        let error = small().pieces(Lba(90), BlockCount(7)).unwrap_err();
        assert!(error.to_string().contains("96 blocks"), "{error}");
        assert!(small().pieces(Lba(u64::MAX), BlockCount(2)).is_err());
        assert_eq!(small().pieces(Lba(96), BlockCount(0)).unwrap().count(), 0);
    }

    #[test]
    fn no_piece_is_longer_than_what_nodes_send_each_other_at_once() {
        let chunk_blocks = 1 << 10;
        for (stripe_unit_blocks, group_chunks) in [(64, vec![1]), (512, vec![2])] {
            let geometry = Geometry {
                stripe_unit_blocks,
                chunk_blocks,
                group_chunks,
                ..small()
            };
            geometry.validate().unwrap();
            let pieces: Vec<Piece> = geometry.pieces(Lba(100), BlockCount(500)).unwrap().collect();
            let starts = pieces.iter().map(|piece| piece.range.start);
            let lengths = pieces.iter().map(|piece| piece.range.count);
            let expected = [(100, 28), (128, 128), (256, 128), (384, 128), (512, 88)];
            // The second unit of two lies in the second chunk.
            let expected = expected.map(|(start, count)| match start {
                512.. if geometry.group_chunks[0] == 2 => (0, count),
                _ => (start, count),
            });
            assert_eq!(starts.zip(lengths).collect::<Vec<_>>(), expected);
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_a_request_block_by_block(first in 0u64..96, blocks in 0u64..96) {
            let geometry = small();
            let blocks = blocks.min(96 - first);
            let mut lba = first;
            for piece in geometry.pieces(Lba(first), BlockCount(blocks)).unwrap() {
                prop_assert_eq!(piece.request_offset.0, lba - first);
                for block in 0..piece.range.count {
                    prop_assert_eq!(place(&geometry, lba), (piece.chunk.0, piece.range.start + block));
                    lba += 1;
                }
            }
            prop_assert_eq!(lba, first + blocks);
        }

        #[test]
        fn the_chunks_of_a_range_are_those_of_its_pieces(first in 0u64..96, blocks in 0u64..96) {
            let geometry = small();
            let (first, blocks) = (Lba(first), BlockCount(blocks));
            let pieces = geometry.pieces(first, blocks);
            let chunks = pieces.map(|pieces| pieces.map(|piece| piece.chunk).collect::<BTreeSet<_>>());
            let chunks = chunks.map(|chunks| chunks.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(geometry.chunks_of(first, blocks), chunks);
        }

        #[test]
        fn noise_is_no_geometry(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Geometry::decode(&bytes).is_err());
            let mut block = seal_block(MAGIC, VERSION, &bytes);
            let _ = Geometry::decode(&block);
            block[0] ^= 1;
            prop_assert!(Geometry::decode(&block).is_err());
        }

        #[test]
        fn a_record_says_what_was_written(copies in 1u8..=16, groups in proptest::collection::vec(1u32..1000, 1..20)) {
            let geometry = Geometry { copies, minimum: copies.div_ceil(2), group_chunks: groups, ..small() };
            prop_assert_eq!(Geometry::decode(&geometry.encode()), Ok(geometry));
        }
    }
}
