//! How a volume's blocks lie in chunks.

use foundation::ByteCount;
use thiserror::Error;

use crate::record::{Reader, Writer};

/// The unit in which copies are stored.
const PAGE_BYTES: u64 = 4096;
const COPIES_MAX: u8 = 16;
const CHUNK_BYTES_MAX: u64 = 64 << 30;
const REGIONS_MAX: u64 = 65_536;
const GROUPS_MAX: usize = 4096;

/// The layout of a volume, fixed at its creation but for appended groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Bytes in a block: 512 or 4096.
    pub block_bytes: u32,
    /// Bytes of metadata beside each block: 0 or 8.
    pub metadata_bytes: u32,
    /// Bytes that lie together in one chunk before the next chunk's turn.
    pub stripe_unit: ByteCount,
    /// Bytes of a chunk.
    pub chunk: ByteCount,
    /// Bytes that share one intent mark.
    pub region: ByteCount,
    /// Copies a chunk should have.
    pub copies: u8,
    /// In-sync copies below which a chunk takes no writes.
    pub minimum: u8,
    /// Chunks of each stripe group, in the order in which the volume grew.
    pub group_chunks: Vec<u32>,
}

/// Why a geometry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Neither 512, which records may say and nodes do not serve, nor 4096.
    #[error("blocks of {block_bytes} bytes are not supported; use 4096")]
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
    /// Not a whole number of pages.
    #[error("a stripe unit of {stripe_unit} is no whole number of 4 KiB pages; use a multiple of 4 KiB")]
    StripeUnit {
        /// What was asked for.
        stripe_unit: ByteCount,
    },
    /// Not a whole number of stripe units, or too big.
    #[error(
        "chunks of {chunk} are no whole number of stripe units of {stripe_unit}, or above 64 GiB; use a multiple up to 64 GiB"
    )]
    ChunkSize {
        /// What was asked for.
        chunk: ByteCount,
        /// The stripe unit.
        stripe_unit: ByteCount,
    },
    /// Not whole pages, or too many in a chunk.
    #[error(
        "intent regions of {region} do not do for chunks of {chunk}; use whole 4 KiB pages and at most 65536 regions a chunk"
    )]
    Region {
        /// What was asked for.
        region: ByteCount,
        /// The chunk size.
        chunk: ByteCount,
    },
    /// They do not go together.
    #[error(
        "{copies} copies with a minimum of {minimum} cannot work; use 1 to 16 copies and a minimum of 1 to the number of copies"
    )]
    Copies {
        /// Copies asked for.
        copies: u8,
        /// Minimum asked for.
        minimum: u8,
    },
    /// None, too many, an empty one, or more chunks than can be numbered.
    #[error(
        "{groups} stripe groups with {chunks} chunks cannot be used; use 1 to 4096 groups, none empty, with fewer than 2^32 chunks in all"
    )]
    Groups {
        /// Groups.
        groups: usize,
        /// Chunks of all of them.
        chunks: u64,
    },
}

impl Geometry {
    /// Checks the numbers against each other.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let (stripe_unit, chunk, region) = (self.stripe_unit, self.chunk, self.region);
        if !matches!(self.block_bytes, 512 | 4096) {
            let block_bytes = self.block_bytes;
            return Err(GeometryError::BlockSize { block_bytes });
        }
        if !matches!(self.metadata_bytes, 0 | 8) {
            let metadata_bytes = self.metadata_bytes;
            return Err(GeometryError::MetadataSize { metadata_bytes });
        }
        if stripe_unit.0 == 0 || !stripe_unit.0.is_multiple_of(PAGE_BYTES) {
            return Err(GeometryError::StripeUnit { stripe_unit });
        }
        if chunk.0 == 0 || !chunk.0.is_multiple_of(stripe_unit.0) || chunk.0 > CHUNK_BYTES_MAX {
            return Err(GeometryError::ChunkSize { chunk, stripe_unit });
        }
        let whole_pages = region.0 != 0 && region.0.is_multiple_of(PAGE_BYTES);
        if !whole_pages || chunk.0.div_ceil(region.0) > REGIONS_MAX {
            return Err(GeometryError::Region { region, chunk });
        }
        let (copies, minimum) = (self.copies, self.minimum);
        if !(1..=COPIES_MAX).contains(&copies) || !(1..=copies).contains(&minimum) {
            return Err(GeometryError::Copies { copies, minimum });
        }
        let groups = self.group_chunks.len();
        let chunks: u64 = self.group_chunks.iter().map(|&chunks| u64::from(chunks)).sum();
        let numbered = chunks < u64::from(u32::MAX) && !self.group_chunks.contains(&0);
        if !(1..=GROUPS_MAX).contains(&groups) || !numbered || chunks.checked_mul(chunk.0).is_none() {
            return Err(GeometryError::Groups { groups, chunks });
        }
        Ok(())
    }

    /// Chunks of all groups.
    pub fn chunk_count(&self) -> u32 {
        self.group_chunks
            .iter()
            .fold(0, |sum, &chunks| sum.saturating_add(chunks))
    }

    /// The volume's size: all its chunks.
    pub fn size(&self) -> ByteCount {
        ByteCount(u64::from(self.chunk_count()).saturating_mul(self.chunk.0))
    }

    /// The groups for so many chunks when `width` chunks share a stripe: one group of that width
    /// for each, the last one narrower if it does not come out even. A volume with more than
    /// [`GROUPS_MAX`] of them gets wider groups.
    pub fn groups(chunks: u32, width: u32) -> Vec<u32> {
        Self::groups_beside(chunks, width, 0)
    }

    /// As [`Geometry::groups`], for a volume that has so many groups already.
    pub fn groups_beside(chunks: u32, width: u32, present: usize) -> Vec<u32> {
        let room = GROUPS_MAX.saturating_sub(present).max(1);
        let widest_needed = chunks.div_ceil(room as u32);
        let width = width.max(widest_needed).max(1);
        let mut groups = vec![width; (chunks / width) as usize];
        if !chunks.is_multiple_of(width) {
            groups.push(chunks % width);
        }
        groups
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u32(self.block_bytes);
        out.u32(self.metadata_bytes);
        out.u64(self.stripe_unit.0);
        out.u64(self.chunk.0);
        out.u64(self.region.0);
        out.u8(self.copies);
        out.u8(self.minimum);
        out.count(self.group_chunks.len());
        for &chunks in &self.group_chunks {
            out.u32(chunks);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let geometry = Self {
            block_bytes: reader.u32()?,
            metadata_bytes: reader.u32()?,
            stripe_unit: ByteCount(reader.u64()?),
            chunk: ByteCount(reader.u64()?),
            region: ByteCount(reader.u64()?),
            copies: reader.u8()?,
            minimum: reader.u8()?,
            group_chunks: reader.list(4, Reader::u32)?,
        };
        geometry.validate().is_ok().then_some(geometry)
    }
}
