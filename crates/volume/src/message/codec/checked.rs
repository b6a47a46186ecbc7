//! What a node says of blocks that it has read to compare them: with their checksums, and with what other copies hold.

use foundation::checksum::Crc32c;

use crate::geometry::PAGE_BYTES;
use crate::sums::sum_of;

/// What [`super::NativeOperation::Check`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks of 4 KiB that were compared with their checksums; 0 if the copy has none.
    pub compared: u32,
    /// Of those, blocks that did not fit when they were read first. They fit now.
    pub damaged: u32,
    /// By which copies are compared with each other ([`digest_of`]); none from a release that does not say it.
    pub digest: Option<u32>,
}

impl Checked {
    /// Length of the answer.
    pub const BYTES: usize = 16;

    /// The answer's bytes.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.compared.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.damaged.to_le_bytes());
        if let Some(digest) = self.digest {
            bytes[8..12].copy_from_slice(&digest.to_le_bytes());
            bytes[12] = 1;
        }
        bytes
    }

    /// Reads an answer; one that is too short says nothing.
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            compared: word(bytes, 0),
            damaged: word(bytes, 4),
            digest: (word(bytes, 12) == 1).then(|| word(bytes, 8)),
        }
    }
}

/// A number of an answer; 0 behind its end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// What stands for the bytes of whole blocks of 4 KiB where copies are compared: of one block its checksum, of several the CRC32C of theirs.
pub fn digest_of(blocks: &[u8]) -> u32 {
    let mut sums = blocks.chunks_exact(PAGE_BYTES as usize).map(sum_of);
    if blocks.len() == PAGE_BYTES as usize {
        return sums.next().unwrap_or_default();
    }
    let mut digest = Crc32c::new();
    sums.for_each(|sum| digest.update(&sum.to_le_bytes()));
    digest.value()
}

/// What [`super::NativeOperation::CompareCopies`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Blocks of 4 KiB of which all copies have said what they hold.
    pub compared: u32,
    /// Of those, blocks that one copy held otherwise than all others, and holds as they do now.
    pub mended: u32,
    /// Of those, blocks that are not the same on all copies still.
    pub differing: u32,
    /// The first of these, counted from the first block of the command.
    pub first: u32,
}

impl Agreed {
    /// Length of the answer.
    pub const BYTES: usize = 16;

    /// The answer's bytes.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let words = [self.compared, self.mended, self.differing, self.first];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads an answer; one that is too short says nothing.
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            compared: word(bytes, 0),
            mended: word(bytes, 4),
            differing: word(bytes, 8),
            first: word(bytes, 12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = include_str!("../../../../../docs/formats/peer.md");

    #[test]
    fn what_was_checked_is_said_in_sixteen_bytes() {
        let mut checked = Checked {
            compared: 0x0102_0304,
            damaged: 5,
            digest: None,
        };
        let bytes = checked.encode();
        assert_eq!(bytes, [4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Checked::decode(&bytes), checked);
        checked.digest = Some(0x0a0b_0c0d);
        let bytes = checked.encode();
        assert_eq!(bytes, [4, 3, 2, 1, 5, 0, 0, 0, 0xd, 0xc, 0xb, 0xa, 1, 0, 0, 0]);
        assert_eq!(Checked::decode(&bytes), checked);
        assert_eq!(Checked::decode(&bytes[..7]).damaged, 0);
        assert_eq!(Checked::decode(&bytes[..15]).digest, None);
        assert!(TABLE.contains("8Ah Check"));
    }

    #[test]
    fn what_copies_hold_is_compared_by_the_checksums_of_their_blocks() {
        let block = |fill| vec![fill; PAGE_BYTES as usize];
        assert_eq!(
            digest_of(&block(0)),
            0,
            "zeros have the sum of what was never written"
        );
        assert_eq!(digest_of(&block(7)), sum_of(&block(7)));
        let two = [block(7), block(8)].concat();
        let sums = [sum_of(&block(7)), sum_of(&block(8))].map(u32::to_le_bytes);
        assert_eq!(digest_of(&two), foundation::checksum::crc32c(&sums.concat()));
        assert_ne!(digest_of(&two), digest_of(&[block(8), block(7)].concat()));
        let agreed = Agreed {
            compared: 64,
            mended: 2,
            differing: 1,
            first: 0x0102,
        };
        let bytes = agreed.encode();
        assert_eq!(bytes, [64, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(Agreed::decode(&bytes), agreed);
        assert_eq!(Agreed::decode(&bytes[..9]).mended, 2);
        assert!(TABLE.contains("BEh Compare Copies"));
    }
}
