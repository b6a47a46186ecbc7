//! Quotas of trees: what a directory and all below it may have, and has.

use super::codec::{CodecError, Decoder, put_varint};

/// No file system counts so far; see the superblock.
const COUNT_MAX: u64 = 1 << 62;

/// The limits of a tree and what it has. A tree is everything below a directory, not the directory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The most bytes that the lengths of all its inodes may sum up to; 0 for no limit.
    pub limit_bytes: u64,
    /// The most inodes; 0 for no limit.
    pub limit_files: u64,
    /// The sum of their lengths, in bytes.
    pub used_bytes: u64,
    /// Inodes.
    pub used_files: u64,
}

impl Quota {
    /// The bytes of a value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20);
        for number in [
            self.limit_bytes,
            self.limit_files,
            self.used_bytes,
            self.used_files,
        ] {
            put_varint(&mut out, number);
        }
        out
    }

    /// The quota that a value holds.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut decoder = Decoder::new(bytes);
        let mut count = || match decoder.varint()? {
            number if number <= COUNT_MAX => Ok(number),
            _ => Err(CodecError::TooLarge),
        };
        let quota = Self {
            limit_bytes: count()?,
            limit_files: count()?,
            used_bytes: count()?,
            used_files: count()?,
        };
        decoder.finish()?;
        Ok(quota)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quotas_come_back(numbers in proptest::array::uniform4(0..=COUNT_MAX)) {
            let [limit_bytes, limit_files, used_bytes, used_files] = numbers;
            let quota = Quota { limit_bytes, limit_files, used_bytes, used_files };
            prop_assert_eq!(Quota::decode(&quota.encode()), Ok(quota));
        }

        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            let _ = Quota::decode(&bytes);
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        let quota = Quota {
            limit_bytes: 300,
            limit_files: 0,
            used_bytes: 5,
            used_files: 1,
        };
        assert_eq!(quota.encode(), [0xac, 2, 0, 5, 1]);
        let huge = Quota {
            used_files: COUNT_MAX + 1,
            ..quota
        };
        assert_eq!(Quota::decode(&huge.encode()), Err(CodecError::TooLarge));
    }
}
