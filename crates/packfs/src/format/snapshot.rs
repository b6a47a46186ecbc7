//! A snapshot by name, as the tree of every later generation keeps it: the root of a generation, and what its superblock
//! said.

use super::codec::{CodecError, Decoder, put_varint, put_zigzag};
use super::entry::Timestamp;
use super::superblock::{Features, Superblock, Totals};
use super::{PagePointer, key::Key};
use crate::name::check_name;

/// The longest name, in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 128;

/// Whether bytes can name a snapshot: a file's name without `@` and `:`, which divide it from the volume and the path.
pub fn is_snapshot_name(name: &[u8]) -> bool {
    name.len() <= SNAPSHOT_NAME_BYTES_MAX
        && check_name(name).is_ok()
        && !name.iter().any(|byte| b"@:".contains(byte))
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name: bytes.
    pub name: Vec<u8>,
    /// The generation that it keeps.
    pub generation: u64,
    /// When it was made.
    pub created: Timestamp,
    /// Contents.
    pub totals: Totals,
    pub(crate) features: Features,
    pub(crate) root: PagePointer,
}

impl Snapshot {
    /// The generation that `superblock` has.
    pub(crate) fn of(superblock: &Superblock, name: &[u8], created: Timestamp) -> Self {
        Self {
            name: name.to_vec(),
            generation: superblock.generation,
            created,
            totals: superblock.totals,
            features: superblock.features,
            root: superblock.root,
        }
    }

    /// What the superblock was, as far as it matters to readers of the tree.
    pub(crate) fn superblock(&self, newest: &Superblock) -> Superblock {
        Superblock {
            generation: self.generation,
            totals: self.totals,
            features: self.features,
            root: self.root,
            space: PagePointer::default(),
            ..*newest
        }
    }

    pub(crate) fn key(&self) -> Key {
        Key::Snapshot(self.generation, self.name.clone())
    }

    /// The bytes of a value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.root.encode(&mut out);
        put_zigzag(&mut out, self.created.seconds);
        out.extend_from_slice(&self.created.nanoseconds.to_le_bytes());
        put_varint(&mut out, u64::from(self.features.0));
        for count in [
            self.totals.files,
            self.totals.directories,
            self.totals.content_bytes,
        ] {
            put_varint(&mut out, count);
        }
        out
    }

    /// The snapshot that stands under a key.
    pub(crate) fn decode(generation: u64, name: &[u8], value: &[u8]) -> Result<Self, CodecError> {
        let mut decoder = Decoder::new(value);
        let root = PagePointer::decode(&mut decoder)?;
        let (seconds, nanoseconds) = (decoder.zigzag()?, decoder.u32()?);
        let features = Features(decoder.varint_u32()?);
        let totals = Totals {
            files: decoder.varint()?,
            directories: decoder.varint()?,
            content_bytes: decoder.varint()?,
        };
        decoder.finish()?;
        let possible = is_snapshot_name(name) && nanoseconds < 1_000_000_000 && features.are_known();
        if !possible || root.is_none() || root.birth > generation {
            return Err(CodecError::Inconsistent);
        }
        Ok(Self {
            name: name.to_vec(),
            generation,
            created: Timestamp { seconds, nanoseconds },
            totals,
            features,
            root,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            name: b"before".to_vec(),
            generation: 9,
            created: Timestamp {
                seconds: -1,
                nanoseconds: 7,
            },
            totals: Totals {
                files: 3,
                directories: 1,
                content_bytes: 200,
            },
            features: Features(1),
            root: PagePointer {
                page: 77,
                birth: 9,
                checksum: 0x0403_0201,
            },
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        let made = snapshot();
        let bytes = made.encode();
        assert_eq!(bytes, [77, 9, 1, 2, 3, 4, 1, 7, 0, 0, 0, 1, 3, 1, 200, 1]);
        assert_eq!(made.key().encode(), b"\x80\x01\x09before");
        assert_eq!(Snapshot::decode(9, b"before", &bytes), Ok(made));
        for (generation, name) in [
            (8, &b"before"[..]),
            (9, b"a@b"),
            (9, b"a:b"),
            (9, b"a/b"),
            (9, &[b'x'; 129]),
        ] {
            assert!(Snapshot::decode(generation, name, &bytes).is_err());
        }
    }

    proptest! {
        #[test]
        fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Snapshot::decode(9, b"name", &noise);
        }
    }
}
