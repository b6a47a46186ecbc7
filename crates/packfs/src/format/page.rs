//! Pages of the tree: the bytes that all keys begin with stand once, then a table of offsets, then the cells
//! in the order of their keys.
//!
//! A [`Page`] was checked when it was made: searching it needs no further checks, and its bytes are kept as
//! they came from the device, without the unused tail.

use std::cmp::Ordering;

use foundation::checksum::Crc32c;

use super::codec::{CodecError, Decoder, put_varint};
use super::key::KEY_BYTES_MAX;
use super::{PAGE_BYTES, PagePointer};

/// First bytes of every page.
pub const PAGE_MAGIC: [u8; 4] = *b"RHPF";
/// Version of the page's layout.
pub const PAGE_VERSION: u8 = 1;
/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// A tree is never higher: at the worst fan-out of seven this is beyond any volume.
pub const LEVEL_MAX: u8 = 24;
/// The code in the level's place that marks a page of the space record.
pub const SPACE_KIND: u8 = 0xf0;

const CHECKSUM_AT: usize = 28;

/// Why a page is not the one that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The bytes' checksum is not the pointer's.
    #[error("its checksum is {found:#010x}, and {expected:#010x} was expected")]
    Checksum {
        /// What the pointer says.
        expected: u32,
        /// What the bytes sum to.
        found: u32,
    },
    /// The header names another page, another birth, another kind, or no page at all.
    #[error("its header is not that of the page that was meant")]
    Header,
    /// A version that this code does not know.
    #[error("its version is {0}, and this program knows {PAGE_VERSION}; use a newer program")]
    Version(u8),
    /// The cells are not laid out as they must be.
    #[error("its cells are malformed: {0}")]
    Cells(CodecError),
}

/// What all kinds of page begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Level above the leaves, or [`SPACE_KIND`].
    pub kind: u8,
    /// Number of cells.
    pub count: u16,
    /// Bytes in use, this header included.
    pub used: u16,
    /// Length of the bytes that all keys begin with.
    pub prefix: u16,
}

/// CRC32C of a page, its own field for it left out.
pub(crate) fn page_checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&bytes[..CHECKSUM_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[HEADER_BYTES..]);
    crc.value()
}

/// Writes the header over the first bytes of a page whose rest is complete, and gives its checksum.
pub(crate) fn seal(bytes: &mut [u8], header: Header, page: u64, birth: u64) -> u32 {
    assert_eq!(bytes.len(), PAGE_BYTES, "a page has {PAGE_BYTES} bytes");
    bytes[0..4].copy_from_slice(&PAGE_MAGIC);
    bytes[4] = PAGE_VERSION;
    bytes[5] = header.kind;
    bytes[6..8].copy_from_slice(&header.count.to_le_bytes());
    bytes[8..16].copy_from_slice(&page.to_le_bytes());
    bytes[16..24].copy_from_slice(&birth.to_le_bytes());
    bytes[24..26].copy_from_slice(&header.used.to_le_bytes());
    bytes[26..28].copy_from_slice(&header.prefix.to_le_bytes());
    let checksum = page_checksum(bytes);
    bytes[CHECKSUM_AT..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Checks that `bytes` are the page that `pointer` means, and gives its header.
pub(crate) fn open(bytes: &[u8], pointer: PagePointer) -> Result<Header, PageError> {
    if bytes.len() != PAGE_BYTES {
        return Err(PageError::Header);
    }
    let found = page_checksum(bytes);
    let mut decoder = Decoder::new(bytes);
    let malformed = PageError::Cells;
    let magic: [u8; 4] = decoder.array().map_err(malformed)?;
    let version = decoder.u8().map_err(malformed)?;
    if magic == PAGE_MAGIC && version > PAGE_VERSION && found == pointer.checksum {
        return Err(PageError::Version(version));
    }
    if found != pointer.checksum {
        let expected = pointer.checksum;
        return Err(PageError::Checksum { expected, found });
    }
    let kind = decoder.u8().map_err(malformed)?;
    let count = decoder.u16().map_err(malformed)?;
    let page = decoder.u64().map_err(malformed)?;
    let birth = decoder.u64().map_err(malformed)?;
    let used = decoder.u16().map_err(malformed)?;
    let prefix = decoder.u16().map_err(malformed)?;
    let stored = decoder.u32().map_err(malformed)?;
    let same = magic == PAGE_MAGIC
        && version == PAGE_VERSION
        && page == pointer.page
        && birth == pointer.birth
        && stored == found
        && (HEADER_BYTES..=PAGE_BYTES).contains(&usize::from(used));
    if !same {
        return Err(PageError::Header);
    }
    Ok(Header {
        kind,
        count,
        used,
        prefix,
    })
}

/// A checked page of the tree.
#[derive(Debug)]
pub struct Page {
    bytes: Box<[u8]>,
    level: u8,
    count: u16,
    prefix: u16,
}

impl Page {
    /// Checks a page that was read, and keeps its used part.
    pub fn parse(bytes: &[u8], pointer: PagePointer) -> Result<Self, PageError> {
        let header = open(bytes, pointer)?;
        if header.kind > LEVEL_MAX {
            return Err(PageError::Header);
        }
        let page = Self {
            bytes: bytes[..usize::from(header.used)].into(),
            level: header.kind,
            count: header.count,
            prefix: header.prefix,
        };
        page.check_cells().map_err(PageError::Cells)?;
        Ok(page)
    }

    /// Once, so that every access after it may rely on the layout.
    fn check_cells(&self) -> Result<(), CodecError> {
        let table = HEADER_BYTES + usize::from(self.prefix);
        let mut start = table + 2 * self.len();
        if start > self.bytes.len() {
            return Err(CodecError::Truncated);
        }
        for index in 0..self.len() {
            if self.offset(index) != start {
                return Err(CodecError::Inconsistent);
            }
            let end = match index + 1 < self.len() {
                true => self.offset(index + 1),
                false => self.bytes.len(),
            };
            let cell = self.bytes.get(start..end).ok_or(CodecError::Inconsistent)?;
            let mut decoder = Decoder::new(cell);
            let suffix = usize::try_from(decoder.varint()?).map_err(|_| CodecError::TooLarge)?;
            if suffix.saturating_add(self.prefix.into()) > KEY_BYTES_MAX {
                return Err(CodecError::TooLarge);
            }
            // A search reads one or two bytes.
            if cell.len() - decoder.remaining() != varint_bytes(suffix) {
                return Err(CodecError::Inconsistent);
            }
            decoder.take(suffix)?;
            if self.level > 0 {
                let child = PagePointer::decode(&mut decoder)?;
                decoder.finish()?;
                if child.is_none() {
                    return Err(CodecError::Inconsistent);
                }
            }
            if index > 0 && self.suffix(index - 1) >= self.suffix(index) {
                return Err(CodecError::Inconsistent);
            }
            start = end;
        }
        if self.is_empty() && (self.level > 0 || self.bytes.len() != table) {
            return Err(CodecError::Inconsistent);
        }
        Ok(())
    }

    /// Level above the leaves.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are no cells, as in an empty tree's only leaf.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory the page takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of::<Self>()
    }

    fn offset(&self, index: usize) -> usize {
        let at = HEADER_BYTES + usize::from(self.prefix) + 2 * index;
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// The bytes that all keys begin with.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + usize::from(self.prefix)]
    }

    fn cell(&self, index: usize) -> (&[u8], &[u8]) {
        let start = self.offset(index);
        let end = match index + 1 < self.len() {
            true => self.offset(index + 1),
            false => self.bytes.len(),
        };
        let mut decoder = Decoder::new(&self.bytes[start..end]);
        let suffix = decoder.varint().expect("cells were checked") as usize;
        let suffix = decoder.take(suffix).expect("cells were checked");
        (suffix, decoder.rest())
    }

    /// The rest of a key after the prefix.
    pub fn suffix(&self, index: usize) -> &[u8] {
        self.cell(index).0
    }

    /// A whole key.
    pub fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// A cell's value.
    pub fn value(&self, index: usize) -> &[u8] {
        self.cell(index).1
    }

    /// The child of an inner page.
    ///
    /// # Panics
    /// On a leaf.
    pub fn child(&self, index: usize) -> PagePointer {
        assert!(self.level > 0, "a leaf has no children");
        PagePointer::decode(&mut Decoder::new(self.value(index))).expect("cells were checked")
    }

    /// The index of `key`, or where it would stand.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let shared = key.len().min(prefix.len());
        match key[..shared].cmp(prefix) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.len()),
            Ordering::Equal => {}
        }
        let suffix = &key[prefix.len()..];
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match compare(self.suffix_at(middle), suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// As [`Page::suffix`], without what only the value needs: most of a search's time is spent here.
    fn suffix_at(&self, index: usize) -> &[u8] {
        let start = self.offset(index);
        let first = usize::from(self.bytes[start]);
        if first < 0x80 {
            return &self.bytes[start + 1..][..first];
        }
        // The longest key's length takes two bytes.
        let length = (first & 0x7f) | usize::from(self.bytes[start + 1]) << 7;
        &self.bytes[start + 2..][..length]
    }

    /// The child of an inner page under which `key` stands if anywhere.
    pub fn child_index(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }
}

/// As `a.cmp(b)`, eight bytes at a time and without a call: names are short, and mostly differ in their first bytes.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_words.iter().zip(b_words) {
        if a != b {
            return u64::from_be_bytes(*a).cmp(&u64::from_be_bytes(*b));
        }
    }
    if a_words.len() == b_words.len() {
        for (a, b) in a_rest.iter().zip(b_rest) {
            if a != b {
                return a.cmp(b);
            }
        }
        return a.len().cmp(&b.len());
    }
    let done = 8 * a_words.len().min(b_words.len());
    a[done..].cmp(&b[done..])
}

/// Length of the bytes that both begin with.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

fn varint_bytes(value: usize) -> usize {
    if value < 0x80 { 1 } else { 2 }
}

/// Bytes that a page with these cells takes; keys ascend. `value` gives the length of a cell's value.
pub(crate) fn encoded_bytes<'a>(cells: impl DoubleEndedIterator<Item = (&'a [u8], usize)> + Clone) -> usize {
    let mut ends = cells.clone();
    let Some((first, _)) = ends.next() else {
        return HEADER_BYTES;
    };
    let last = ends.next_back().map_or(first, |(key, _)| key);
    let prefix = common_prefix(first, last);
    cells.fold(HEADER_BYTES + prefix, |sum, (key, value)| {
        let suffix = key.len() - prefix;
        sum + 2 + varint_bytes(suffix) + suffix + value
    })
}

/// Fills a page with cells, whose keys must ascend and which must fit; gives the header to [`seal`] it with.
///
/// # Panics
/// If they do not fit.
pub(crate) fn fill<'a>(
    bytes: &mut [u8],
    level: u8,
    cells: impl ExactSizeIterator<Item = (&'a [u8], Vec<u8>)>,
    prefix: &[u8],
) -> Header {
    let count = cells.len();
    let mut table = HEADER_BYTES + prefix.len();
    bytes[HEADER_BYTES..table].copy_from_slice(prefix);
    let mut at = table + 2 * count;
    let mut length = Vec::with_capacity(2);
    for (key, value) in cells {
        let suffix = &key[prefix.len()..];
        bytes[table..table + 2].copy_from_slice(&(at as u16).to_le_bytes());
        table += 2;
        length.clear();
        put_varint(&mut length, suffix.len() as u64);
        for part in [&length[..], suffix, &value] {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }
    bytes[at..].fill(0);
    Header {
        kind: level,
        count: count as u16,
        used: at as u16,
        prefix: prefix.len() as u16,
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
