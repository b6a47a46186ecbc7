//! What a node notes beside its copies of a complete snapshot, so that masters whose store is lost learn it again
//! (`docs/decisions/0099`, `docs/formats/chunk-record.md`).

/// What only the masters know of a snapshot, once they say that it is complete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotNote {
    /// Its name among those of its volume.
    pub name: String,
    /// The chunks that the volume had: the first ones of those it has.
    pub chunks: u32,
    /// When it was begun, in milliseconds of Unix time; only for people.
    pub created_unix_ms: u64,
}

/// Why a note cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotNoteError {
    /// A later release wrote it.
    #[error("it has version {0}, this program knows {VERSION}")]
    Version(u8),
    /// It is too short, or its name is none.
    #[error("its bytes make no sense")]
    Bytes,
}

const VERSION: u8 = 1;
/// Version, chunks and time; the name follows.
const HEAD_BYTES: usize = 1 + 4 + 8;
/// No name is longer.
const NAME_BYTES_MAX: usize = 255;

impl SnapshotNote {
    /// As it stands on a disk; none if the name is longer than any may be.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.chunks.to_le_bytes());
        bytes.extend_from_slice(&self.created_unix_ms.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        Some(bytes)
    }

    /// Reads what [`SnapshotNote::encode`] wrote.
    ///
    /// # Errors
    /// See [`SnapshotNoteError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotNoteError> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(SnapshotNoteError::Version(version)),
            None => return Err(SnapshotNoteError::Bytes),
        }
        let (head, name) = bytes
            .split_at_checked(HEAD_BYTES)
            .ok_or(SnapshotNoteError::Bytes)?;
        let chunks = head[1..5].try_into().map_err(|_| SnapshotNoteError::Bytes)?;
        let created = head[5..13].try_into().map_err(|_| SnapshotNoteError::Bytes)?;
        let name = std::str::from_utf8(name).map_err(|_| SnapshotNoteError::Bytes)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(SnapshotNoteError::Bytes);
        }
        Ok(Self {
            name: name.to_owned(),
            chunks: u32::from_le_bytes(chunks),
            created_unix_ms: u64::from_le_bytes(created),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_note_is_as_the_format_says_and_others_are_told_apart() {
        let note = SnapshotNote {
            name: "monday".to_owned(),
            chunks: 0x0102_0304,
            created_unix_ms: 0x0506_0708_090a_0b0c,
        };
        let mut bytes = note.encode().unwrap();
        assert_eq!(
            bytes,
            b"\x01\x04\x03\x02\x01\x0c\x0b\x0a\x09\x08\x07\x06\x05monday"
        );
        assert_eq!(SnapshotNote::decode(&bytes), Ok(note.clone()));
        assert_eq!(
            SnapshotNote::decode(&bytes[..13]),
            Err(SnapshotNoteError::Bytes),
            "without a name"
        );
        assert_eq!(SnapshotNote::decode(&bytes[..12]), Err(SnapshotNoteError::Bytes));
        bytes[13] = 0xff;
        assert_eq!(SnapshotNote::decode(&bytes), Err(SnapshotNoteError::Bytes));
        bytes[0] = 2;
        assert_eq!(SnapshotNote::decode(&bytes), Err(SnapshotNoteError::Version(2)));
        let name = "a".repeat(256);
        assert_eq!(SnapshotNote { name, ..note }.encode(), None);
    }

    proptest! {
        #[test]
        fn it_comes_back_as_it_was(name in "[a-zA-Z0-9é._-]{1,60}", chunks: u32, created_unix_ms: u64) {
            let note = SnapshotNote { name, chunks, created_unix_ms };
            prop_assert_eq!(SnapshotNote::decode(&note.encode().unwrap()), Ok(note));
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>) {
            let _ = SnapshotNote::decode(&bytes);
        }
    }
}
