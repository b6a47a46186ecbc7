//! What PackFS keeps on a volume, byte by byte. The tables are in `docs/formats/packfs.md`.
//!
//! Everything here is pure: bytes in, values out, and the reverse. Bytes from a device yield errors, never
//! panics, and nothing is allocated by a length they claim before it was checked against what is there.

mod codec;
pub mod entry;
pub mod extent;
pub mod key;
pub mod page;
pub mod quota;
pub mod shared;
pub mod snapshot;
pub mod space_page;
pub mod superblock;

pub use codec::CodecError;
pub(crate) use codec::{Decoder, put_varint};

/// Size of a page of the tree or of the space record, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// The same as a `u64`.
pub const PAGE_BYTES_U64: u64 = PAGE_BYTES as u64;
/// The area at the beginning of a volume that holds the two superblocks, in bytes.
pub const RESERVED_BYTES: u64 = 128 << 10;
/// Byte addresses of the two superblocks.
pub const SUPERBLOCK_ADDRESSES: [u64; 2] = [0, 64 << 10];
/// The newest version of the format that this code reads and writes. A file system that uses no feature of it is
/// written as version 1, so that older programs go on opening it.
pub const FORMAT_VERSION: u32 = 2;

/// Where a page lies, when it was born, and what its bytes sum to: enough to know a stale, misplaced or
/// damaged page from the one that was meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagePointer {
    /// Byte address divided by [`PAGE_BYTES`]; 0 means "no page".
    pub page: u64,
    /// The generation whose commit wrote the page.
    pub birth: u64,
    /// CRC32C of the page (see [`page`]).
    pub checksum: u32,
}

impl PagePointer {
    /// Whether it points to nothing.
    pub fn is_none(&self) -> bool {
        self.page == 0
    }

    /// Byte address of the page.
    pub fn address(&self) -> u64 {
        self.page.saturating_mul(PAGE_BYTES_U64)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.page);
        put_varint(out, self.birth);
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, CodecError> {
        Ok(Self {
            page: decoder.varint()?,
            birth: decoder.varint()?,
            checksum: decoder.u32()?,
        })
    }
}
