//! CRC32C, the checksum of NVMe/TCP digests and of everything Redhare keeps on disk, and the CRC-32 of foreign formats.

use crc_fast::CrcAlgorithm;

/// CRC32C (Castagnoli) of `bytes`, as NVMe/TCP digests define it (NVMe/TCP transport
/// specification 1.0, section 3.3.1.1): initial value and final inversion included.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32 of `bytes` as RFC 1952 (gzip) has it, which NVMe's representation of secrets uses.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iso_hdlc(bytes)
}

/// CRC32C over bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    digest: crc_fast::Digest,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The checksum of nothing so far.
    pub fn new() -> Self {
        Self {
            digest: crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// The checksum of all pieces so far.
    pub fn value(&self) -> u32 {
        self.digest.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn agrees_with_the_published_examples() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // The check value that ITU-T V.42's polynomial is known by.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn pieces_give_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        let mut pieces = Crc32c::new();
        for piece in bytes.chunks(333) {
            pieces.update(piece);
        }
        assert_eq!(pieces.value(), crc32c(&bytes));
    }
}
