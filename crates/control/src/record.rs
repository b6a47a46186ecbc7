//! How records stand in the store: `docs/formats/store.md`. Each carries magic, kind, version,
//! length and a checksum that covers its key, too, so a value found under another key is refused.

use foundation::checksum::Crc32c;
use thiserror::Error;

use crate::identity::Uuid;

const MAGIC: [u8; 4] = *b"RHMD";
const HEADER_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;

/// Why a record of the store could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Damaged, foreign, or of another key.
    #[error(
        "the record under key {key} of the metadata store is damaged: {what}; restore the store from a backup"
    )]
    Damaged {
        /// The key, printable.
        key: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Written by a later version of Redhare.
    #[error(
        "the record under key {key} of the metadata store has version {version}, this program knows versions up to {known}; run the release that wrote it or a later one"
    )]
    Version {
        /// The key, printable.
        key: String,
        /// Its version.
        version: u8,
        /// The highest known.
        known: u8,
    },
}

/// What stands in the store.
pub(crate) trait Record: Sized {
    /// Tells kinds of records apart; never used again for another.
    const KIND: u8;
    /// The highest version known.
    const VERSION: u8;

    /// The version that this record is written in: the lowest that can say it.
    fn version(&self) -> u8 {
        Self::VERSION
    }

    fn write(&self, out: &mut Writer);
    /// `None` for bytes that no version has written.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// The value to put under `key`.
    fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut writer = Writer(Vec::new());
        self.write(&mut writer);
        let length = u32::try_from(writer.0.len()).expect("records are far below 4 GiB");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + writer.0.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[Self::KIND, self.version(), 0, 0]);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&writer.0);
        let checksum = checksum(key, &bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// What was put under `key`.
    fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let damaged = |what| damaged(key, what);
        let body = body(key, bytes)?;
        if body[4] != Self::KIND {
            return Err(damaged("it is of another kind"));
        }
        let version = body[5];
        if version == 0 || version > Self::VERSION {
            return Err(RecordError::Version {
                key: printable(key),
                version,
                known: Self::VERSION,
            });
        }
        let mut reader = Reader(&body[HEADER_BYTES..]);
        match Self::read(&mut reader) {
            Some(record) if reader.0.is_empty() => Ok(record),
            _ => Err(damaged("its fields contradict each other")),
        }
    }
}

fn damaged(key: &[u8], what: &'static str) -> RecordError {
    RecordError::Damaged {
        key: printable(key),
        what,
    }
}

/// Header and payload of what was put under `key`, of whatever kind.
fn body<'a>(key: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], RecordError> {
    if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
        return Err(damaged(key, "it is too short"));
    }
    let (body, stored) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    if body[..4] != MAGIC {
        return Err(damaged(key, "its magic is another"));
    }
    if checksum(key, body).to_le_bytes() != stored {
        return Err(damaged(key, "its checksum is wrong"));
    }
    let length = u32::from_le_bytes([body[8], body[9], body[10], body[11]]);
    if length as usize != body.len() - HEADER_BYTES {
        return Err(damaged(key, "its length is wrong"));
    }
    Ok(body)
}

/// Whether something is a record of this key, of whatever kind and version.
pub(crate) fn check(key: &[u8], bytes: &[u8]) -> Result<(), RecordError> {
    body(key, bytes).map(drop)
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(key);
    checksum.update(body);
    checksum.value()
}

pub(crate) fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

/// Little-endian fields, one after the other.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// 16 bytes in the order of the text form.
    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.0.extend_from_slice(&value.to_bytes());
    }

    /// As many as the reader knows to be there.
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }

    pub(crate) fn text(&mut self, value: &str) {
        self.count(value.len());
        self.0.extend_from_slice(value.as_bytes());
    }

    pub(crate) fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).expect("lists of a record are far below 4 Gi entries"));
    }
}

/// Reads what [`Writer`] wrote; `None` past the end.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Whether everything was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A UUID, all zero included.
    pub(crate) fn uuid(&mut self) -> Option<Uuid> {
        self.array().map(|bytes| Uuid(u128::from_be_bytes(bytes)))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.count(1)?;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    /// A number of entries of at least `entry_bytes` each; `None` if so many cannot follow.
    pub(crate) fn count(&mut self, entry_bytes: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(entry_bytes)? <= self.0.len()).then_some(count)
    }

    /// A list whose entries take at least `entry_bytes` each.
    pub(crate) fn list<T>(
        &mut self,
        entry_bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.count(entry_bytes)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(entry(self)?);
        }
        Some(entries)
    }
}
