//! Extents: runs of bytes of a file on the volume, each with its checksum.

use super::codec::{CodecError, Decoder, put_varint};

/// A run of bytes of a file. Its length is bounded by the format's parameter, so that a random read verifies
/// a bounded number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Byte address on the volume.
    pub address: u64,
    /// Length in bytes; never 0.
    pub length: u32,
    /// CRC32C of the bytes.
    pub checksum: u32,
}

/// The most extents that stand beside the inode; a file with more keeps them under keys of their own.
pub const EXTENTS_EMBEDDED_MAX: usize = 4;
/// The most extents under one key.
pub const EXTENTS_PER_KEY: usize = 16;

impl Extent {
    /// The first byte after the extent; `None` past 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(u64::from(self.length))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.address);
        put_varint(out, u64::from(self.length));
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let extent = Self {
            address: decoder.varint()?,
            length: decoder.varint_u32()?,
            checksum: decoder.u32()?,
        };
        if extent.length == 0 || extent.end().is_none() {
            return Err(CodecError::Inconsistent);
        }
        Ok(extent)
    }
}

/// Bytes of a value under an extents key.
pub(crate) fn encode_list(extents: &[Extent]) -> Vec<u8> {
    let mut out = Vec::with_capacity(extents.len() * 14 + 1);
    put_varint(&mut out, extents.len() as u64);
    for extent in extents {
        extent.encode(&mut out);
    }
    out
}

/// The extents that a decoder's next bytes hold; at most `limit`.
pub(crate) fn decode_list(decoder: &mut Decoder<'_>, limit: usize) -> Result<Vec<Extent>, CodecError> {
    let count = usize::try_from(decoder.varint()?).map_err(|_| CodecError::TooLarge)?;
    if count > limit {
        return Err(CodecError::TooLarge);
    }
    (0..count).map(|_| Extent::decode(decoder)).collect()
}

/// The extents of a value under an extents key.
pub(crate) fn decode_value(bytes: &[u8]) -> Result<Vec<Extent>, CodecError> {
    let mut decoder = Decoder::new(bytes);
    let extents = decode_list(&mut decoder, EXTENTS_PER_KEY)?;
    decoder.finish()?;
    if extents.is_empty() {
        return Err(CodecError::Inconsistent);
    }
    Ok(extents)
}
