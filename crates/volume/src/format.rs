//! Reading and writing of little-endian fields, and the errors every format of this crate shares.

use thiserror::Error;

/// Why bytes from a disk or a wire were not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The bytes end before the fields do.
    #[error(
        "{what} is cut short: {need_bytes} more bytes needed, {have_bytes} left; read it from another copy or ask its sender again"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes the next field takes.
        need_bytes: usize,
        /// Bytes left.
        have_bytes: usize,
    },
    /// The bytes do not begin as this format does.
    #[error(
        "{what} does not begin with its magic number (found {found:#x}); this is something else's data, nothing was changed"
    )]
    Magic {
        /// What was being read.
        what: &'static str,
        /// The number found instead.
        found: u64,
    },
    /// A version this program does not speak.
    #[error("{what} has version {found}, this program knows up to {known}; run a newer redhare on this node")]
    Version {
        /// What was being read.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// The checksum does not fit the bytes.
    #[error(
        "{what} is damaged: checksum {found:#010x}, its bytes give {computed:#010x}; read it from another copy"
    )]
    Checksum {
        /// What was being read.
        what: &'static str,
        /// The checksum stored.
        found: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A field has a value that it never has.
    #[error(
        "{what}: field {field} has the impossible value {value}; it was written by a faulty program or damaged"
    )]
    Invalid {
        /// What was being read.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Takes fields from the front of bytes that may end too early.
pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes }
    }

    pub(crate) fn remaining_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(FormatError::Truncated {
                what: self.what,
                need_bytes: N,
                have_bytes: self.bytes.len(),
            })?;
        self.bytes = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.take::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub(crate) fn u128(&mut self) -> Result<u128, FormatError> {
        Ok(u128::from_le_bytes(self.take()?))
    }

    /// A count of entries that take `entry_bytes` each: refused before anything is allocated if
    /// the bytes that are left cannot hold them.
    pub(crate) fn count(&mut self, entry_bytes: usize) -> Result<usize, FormatError> {
        let count = self.u32()? as usize;
        let need_bytes = count.saturating_mul(entry_bytes);
        if need_bytes > self.bytes.len() {
            return Err(FormatError::Truncated {
                what: self.what,
                need_bytes,
                have_bytes: self.bytes.len(),
            });
        }
        Ok(count)
    }

    /// Everything must have been read.
    pub(crate) fn finish(self) -> Result<(), FormatError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(FormatError::Invalid {
            what: self.what,
            field: "length",
            value: self.bytes.len() as u64,
        })
    }
}

/// Appends little-endian fields.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, value: u128) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// The number of entries that follow. All our lists are far below 2^32.
    pub(crate) fn count(&mut self, entries: usize) {
        self.u32(u32::try_from(entries).expect("lists in our formats have fewer than 2^32 entries"));
    }
}

/// Wraps `body` as every durable block of this crate is: magic (8), version (2), zero (2),
/// body length (4), CRC32C of magic to body without the checksum itself (4), zero (4), body.
pub(crate) fn seal_block(magic: u64, version: u16, body: &[u8]) -> Vec<u8> {
    let mut head = Writer::default();
    head.u64(magic);
    head.u16(version);
    head.u16(0);
    head.count(body.len());
    let mut checksum = foundation::checksum::Crc32c::new();
    checksum.update(&head.bytes);
    checksum.update(body);
    head.u32(checksum.value());
    head.u32(0);
    head.bytes.extend_from_slice(body);
    head.bytes
}

/// The version and body of a block written by [`seal_block`]; bytes after it are ignored.
pub(crate) fn open_block<'a>(
    what: &'static str,
    magic: u64,
    known: u16,
    bytes: &'a [u8],
) -> Result<(u16, &'a [u8]), FormatError> {
    let mut reader = Reader::new(what, bytes);
    let found = reader.u64()?;
    if found != magic {
        return Err(FormatError::Magic { what, found });
    }
    let version = reader.u16()?;
    let _zero = reader.u16()?;
    let length = reader.u32()? as usize;
    let stored = reader.u32()?;
    let _zero = reader.u32()?;
    if length > reader.remaining_bytes() {
        return Err(FormatError::Truncated {
            what,
            need_bytes: length,
            have_bytes: reader.remaining_bytes(),
        });
    }
    let body = &bytes[BLOCK_HEAD_BYTES..BLOCK_HEAD_BYTES + length];
    let mut checksum = foundation::checksum::Crc32c::new();
    checksum.update(&bytes[..16]);
    checksum.update(body);
    let computed = checksum.value();
    if stored != computed {
        return Err(FormatError::Checksum {
            what,
            found: stored,
            computed,
        });
    }
    if version == 0 || version > known {
        return Err(FormatError::Version {
            what,
            found: version.into(),
            known: known.into(),
        });
    }
    Ok((version, body))
}

/// Bytes before the body of a durable block.
pub(crate) const BLOCK_HEAD_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_changed_anywhere_is_refused() {
        let block = seal_block(7, 1, b"body");
        assert_eq!(open_block("test", 7, 1, &block), Ok((1, &b"body"[..])));
        for at in (0..20).chain(24..block.len()) {
            let mut damaged = block.clone();
            damaged[at] ^= 0x10;
            assert!(open_block("test", 7, 1, &damaged).is_err(), "byte {at}");
        }
        for length in 0..block.len() {
            assert!(open_block("test", 7, 1, &block[..length]).is_err());
        }
    }
}
