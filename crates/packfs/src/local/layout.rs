//! What stands where in a cache's file; see `docs/formats/local-cache.md`. Pure.

use foundation::checksum::crc32c;

use crate::format::PagePointer;
use crate::format::entry::Timestamp;
use crate::format::extent::Extent;
use crate::format::key::InodeNumber;

/// The file's first page, and each bucket of the index.
pub(super) const PAGE_BYTES: usize = 4096;
/// What stands before the bytes of an entry.
pub(super) const ENTRY_HEADER_BYTES: usize = 80;
/// The ring is given out in pieces of so much; an entry lies in one of them.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// The longest entry, in bytes of content.
pub(super) const CONTENT_BYTES_MAX: usize = CHUNK_BYTES as usize - ENTRY_HEADER_BYTES;
/// The smallest file.
pub const FILE_BYTES_MIN: u64 = 16 << 20;

const FILE_MAGIC: [u8; 8] = *b"RHLCACHE";
const VERSION: u32 = 1;
/// Bytes in use of the first page.
const FILE_HEADER_BYTES: usize = 40;
const ENTRY_MAGIC: [u8; 4] = *b"RHLE";
const KEY_BYTES: usize = 64;
const SLOT_BYTES: usize = 24;
/// A bucket of the index for so much of the file: a slot for each 1.5 KiB.
const FILE_BYTES_PER_BUCKET: u64 = 256 << 10;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Where the parts of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    buckets: u64,
    ring_bytes: u64,
}

impl Geometry {
    /// Of a file of at most so many bytes; `None` below [`FILE_BYTES_MIN`].
    pub(super) fn within(bytes: u64) -> Option<Self> {
        // Positions are counted on for ever; no disk has so much.
        let bytes = bytes.min(1 << 60);
        if bytes < FILE_BYTES_MIN {
            return None;
        }
        let buckets = bytes / FILE_BYTES_PER_BUCKET;
        let before = (1 + buckets) * PAGE_BYTES as u64;
        let ring_bytes = (bytes - before) / CHUNK_BYTES * CHUNK_BYTES;
        Some(Self { buckets, ring_bytes })
    }

    fn ring_start(&self) -> u64 {
        (1 + self.buckets) * PAGE_BYTES as u64
    }

    /// Length of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.ring_start() + self.ring_bytes
    }

    /// Length of the ring.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Where the bucket of a fingerprint begins.
    pub(super) fn bucket(&self, fingerprint: u64) -> u64 {
        (1 + mix(fingerprint) % self.buckets) * PAGE_BYTES as u64
    }

    /// Where an entry that begins at a position of the ring stands in the file.
    pub(super) fn place(&self, position: u64) -> u64 {
        self.ring_start() + position % self.ring_bytes
    }

    /// Whether an entry could lie there: inside of one chunk.
    pub(super) fn holds(&self, position: u64, content_bytes: u32) -> bool {
        let end = position % CHUNK_BYTES + ENTRY_HEADER_BYTES as u64 + u64::from(content_bytes);
        content_bytes > 0 && end <= CHUNK_BYTES
    }
}

fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

/// The first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// The first position of the ring that was not given out.
    pub(super) head: u64,
}

impl FileHeader {
    /// Fills the whole page.
    pub(super) fn encode(&self, geometry: &Geometry, page: &mut [u8]) {
        page.fill(0);
        page[..8].copy_from_slice(&FILE_MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[16..24].copy_from_slice(&geometry.file_bytes().to_le_bytes());
        page[24..32].copy_from_slice(&geometry.buckets.to_le_bytes());
        page[32..FILE_HEADER_BYTES].copy_from_slice(&self.head.to_le_bytes());
        let sum = crc32c(page);
        page[12..16].copy_from_slice(&sum.to_le_bytes());
    }

    /// What a page says, if it is the first of a file of this geometry.
    pub(super) fn decode(geometry: &Geometry, page: &[u8]) -> Option<Self> {
        let head = u64_at(page, 32);
        let header = Self { head };
        let mut wanted = vec![0; page.len()];
        header.encode(geometry, &mut wanted);
        // A position that would soon end the counting is none that this program has written.
        (wanted == page && head.is_multiple_of(CHUNK_BYTES) && head < 1 << 62).then_some(header)
    }
}

/// What an entry is: everything that must be the same for its bytes to be those that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: [u8; KEY_BYTES],
}

/// Whose an extent is: with the inode's number, which is never given twice, and the time of its last change, the same
/// place in a file has one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) inode: InodeNumber,
    pub(crate) ctime: Timestamp,
    /// Where in the file the extent begins.
    pub(crate) offset: u64,
}

impl Key {
    fn new(volume: &[u8; 16], kind: u8, numbers: [u64; 4], small: [u32; 3]) -> Self {
        let mut bytes = [0; KEY_BYTES];
        bytes[..16].copy_from_slice(volume);
        bytes[16] = kind;
        for (index, number) in small.iter().enumerate() {
            bytes[20 + 4 * index..][..4].copy_from_slice(&number.to_le_bytes());
        }
        for (index, number) in numbers.iter().enumerate() {
            bytes[32 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        Self { bytes }
    }

    /// A page of a file system's index.
    pub(crate) fn page(volume: &[u8; 16], pointer: PagePointer) -> Self {
        let numbers = [pointer.address(), pointer.birth, 0, 0];
        let small = [pointer.checksum, crate::format::PAGE_BYTES as u32, 0];
        Self::new(volume, 1, numbers, small)
    }

    /// An extent of a file.
    pub(crate) fn extent(volume: &[u8; 16], origin: &Origin, extent: &Extent) -> Self {
        let Timestamp { seconds, nanoseconds } = origin.ctime;
        let numbers = [extent.address, origin.inode.0, seconds as u64, origin.offset];
        let small = [extent.checksum, extent.length, nanoseconds];
        Self::new(volume, 2, numbers, small)
    }

    /// Length of the bytes it means.
    pub(super) fn content_bytes(&self) -> u32 {
        u32_at(&self.bytes, 24)
    }

    /// What it is found by; never 0.
    pub(super) fn fingerprint(&self) -> u64 {
        let words = self.bytes.chunks_exact(8).map(|word| u64_at(word, 0));
        words
            .fold(0, |sum: u64, word| mix(sum.rotate_left(23) ^ word))
            .max(1)
    }
}

/// Where an entry may be: a hint, which the entry itself confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) fingerprint: u64,
    pub(super) position: u64,
    pub(super) content_bytes: u32,
}

impl Slot {
    pub(super) fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.fingerprint.to_le_bytes());
        out[8..16].copy_from_slice(&self.position.to_le_bytes());
        out[16..20].copy_from_slice(&self.content_bytes.to_le_bytes());
        let sum = crc32c(&out[..20]);
        out[20..SLOT_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let slot = Self {
            fingerprint: u64_at(bytes, 0),
            position: u64_at(bytes, 8),
            content_bytes: u32_at(bytes, 16),
        };
        (slot.fingerprint != 0 && crc32c(&bytes[..20]) == u32_at(bytes, 20)).then_some(slot)
    }
}

/// The slots of a bucket; what is none is empty.
pub(super) fn slots(bucket: &[u8]) -> impl Iterator<Item = Option<Slot>> + '_ {
    bucket.chunks_exact(SLOT_BYTES).map(Slot::decode)
}

/// Where in its bucket a slot begins, in bytes, and how long it is.
pub(super) fn slot_range(index: usize) -> std::ops::Range<usize> {
    index * SLOT_BYTES..(index + 1) * SLOT_BYTES
}

/// Writes what stands before an entry's bytes.
pub(super) fn encode_entry_header(key: &Key, position: u64, out: &mut [u8]) {
    out[..4].copy_from_slice(&ENTRY_MAGIC);
    out[4..8].fill(0);
    out[8..16].copy_from_slice(&position.to_le_bytes());
    out[16..ENTRY_HEADER_BYTES].copy_from_slice(&key.bytes);
    let sum = crc32c(&out[..ENTRY_HEADER_BYTES]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Whether this is what stands before the bytes of the entry of `key` at that position.
pub(super) fn is_entry_header(key: &Key, position: u64, bytes: &[u8]) -> bool {
    let mut wanted = [0; ENTRY_HEADER_BYTES];
    encode_entry_header(key, position, &mut wanted);
    bytes == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u64) -> Key {
        let pointer = PagePointer {
            page: number,
            birth: 3,
            checksum: 4,
        };
        Key::page(&[7; 16], pointer)
    }

    #[test]
    fn the_table_in_the_docs_is_what_is_written() {
        let geometry = Geometry::within(16 << 20).unwrap();
        let mut page = vec![0xff; PAGE_BYTES];
        FileHeader { head: 5 << 20 }.encode(&geometry, &mut page);
        assert_eq!(&page[..8], b"RHLCACHE");
        assert_eq!(u32_at(&page, 8), 1);
        assert_eq!(u64_at(&page, 16), geometry.file_bytes());
        assert_eq!(u64_at(&page, 24), 64);
        assert_eq!(u64_at(&page, 32), 5 << 20);
        let sum = u32_at(&page, 12);
        let mut zeroed = page.clone();
        zeroed[12..16].fill(0);
        assert_eq!(crc32c(&zeroed), sum);
        assert!(page[40..].iter().all(|&byte| byte == 0));
        let found = FileHeader::decode(&geometry, &page);
        assert_eq!(found, Some(FileHeader { head: 5 << 20 }));
        for at in [0, 9, 13, 17, 25, 34, 4095] {
            let mut other = page.clone();
            other[at] ^= 1;
            assert_eq!(FileHeader::decode(&geometry, &other), None, "at {at}");
        }
        let mut entry = [0; ENTRY_HEADER_BYTES];
        let origin = Origin {
            inode: InodeNumber(9),
            ctime: Timestamp {
                seconds: -2,
                nanoseconds: 77,
            },
            offset: 4096,
        };
        let extent = Extent {
            address: 123,
            length: 456,
            checksum: 789,
        };
        encode_entry_header(&Key::extent(&[7; 16], &origin, &extent), 99, &mut entry);
        assert_eq!(&entry[..4], b"RHLE");
        assert_eq!(u64_at(&entry, 8), 99);
        assert_eq!(entry[16..32], [7; 16]);
        assert_eq!(entry[32], 2);
        let small: Vec<u32> = (0..3).map(|index| u32_at(&entry, 36 + 4 * index)).collect();
        assert_eq!(small, [789, 456, 77]);
        let numbers: Vec<u64> = (0..4).map(|index| u64_at(&entry, 48 + 8 * index)).collect();
        assert_eq!(numbers, [123, 9, -2i64 as u64, 4096]);
    }

    #[test]
    fn an_entrys_header_is_that_of_one_key_at_one_position() {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        encode_entry_header(&key(1), 80, &mut bytes);
        assert!(is_entry_header(&key(1), 80, &bytes));
        assert!(!is_entry_header(&key(2), 80, &bytes));
        assert!(!is_entry_header(&key(1), 81, &bytes));
    }

    proptest! {
        #[test]
        fn a_file_is_within_its_bound_and_has_room_for_the_longest(bytes in FILE_BYTES_MIN..1 << 62) {
            let geometry = Geometry::within(bytes).unwrap();
            prop_assert!(geometry.file_bytes() <= bytes);
            prop_assert!(geometry.ring_bytes() >= 8 * CHUNK_BYTES);
            // At most a chunk and a fiftieth are not used.
            prop_assert!(bytes > 1 << 60 || geometry.ring_bytes() + CHUNK_BYTES + bytes / 50 > bytes);
        }

        #[test]
        fn slots_come_back_and_noise_is_none(
            fingerprint in 1u64.., position: u64, content_bytes: u32, flipped in 0usize..24 * 8,
        ) {
            let slot = Slot { fingerprint, position, content_bytes };
            let mut bytes = [0; SLOT_BYTES];
            slot.encode(&mut bytes);
            prop_assert_eq!(Slot::decode(&bytes), Some(slot));
            bytes[flipped / 8] ^= 1 << (flipped % 8);
            prop_assert_eq!(Slot::decode(&bytes), None);
        }

        #[test]
        fn noise_is_no_header(page in proptest::collection::vec(any::<u8>(), PAGE_BYTES)) {
            let geometry = Geometry::within(64 << 20).unwrap();
            prop_assert_eq!(FileHeader::decode(&geometry, &page), None);
            prop_assert!(slots(&page).flatten().count() == 0);
        }
    }

    #[test]
    fn below_the_least_there_is_none() {
        assert_eq!(Geometry::within(FILE_BYTES_MIN - 1), None);
        assert_eq!(slots(&[0; PAGE_BYTES]).count(), 170);
    }
}
