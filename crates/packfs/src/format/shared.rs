//! Bytes of content that several extents have: how many have them. Where nothing is said, one has them, or none.

use super::codec::{CodecError, Decoder, put_varint};

/// A run of bytes of the volume, which begins at its key's number. All of it lies in one data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Length in bytes; never 0.
    pub length: u64,
    /// How many extents have each of them; at least 2.
    pub users: u64,
}

impl Shared {
    /// The bytes of a value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(6);
        put_varint(&mut out, self.length);
        put_varint(&mut out, self.users);
        out
    }

    /// What a value says of the bytes from `start` on.
    pub(crate) fn decode(start: u64, value: &[u8]) -> Result<Self, CodecError> {
        let mut decoder = Decoder::new(value);
        let shared = Self {
            length: decoder.varint()?,
            users: decoder.varint()?,
        };
        decoder.finish()?;
        if shared.length == 0 || shared.users < 2 || start.checked_add(shared.length).is_none() {
            return Err(CodecError::Inconsistent);
        }
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_come_back(start in 0..1u64 << 60, length in 1..1u64 << 60, users in 2..u64::MAX) {
            let shared = Shared { length, users };
            prop_assert_eq!(Shared::decode(start, &shared.encode()), Ok(shared));
        }

        #[test]
        fn noise_never_panics(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            if let Ok(shared) = Shared::decode(start, &bytes) {
                prop_assert!(start.checked_add(shared.length).is_some());
            }
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        let shared = Shared {
            length: 300,
            users: 2,
        };
        assert_eq!(shared.encode(), [0xac, 2, 2]);
        for wrong in [&[0, 2][..], &[5, 1], &[5, 2, 0], &[5]] {
            assert!(Shared::decode(0, wrong).is_err(), "{wrong:?}");
        }
        assert!(Shared::decode(u64::MAX, &[1, 2]).is_err());
    }
}
