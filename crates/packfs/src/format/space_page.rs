//! Pages of the space record: what each commit took and gave back, as a chain from the newest commit to a
//! complete list. Only a writer reads it.

use super::codec::{CodecError, Decoder, put_varint};
use super::page::{self, HEADER_BYTES, Header, PageError, SPACE_KIND};
use super::{PAGE_BYTES, PagePointer};

/// Where a space page's entries begin.
const ENTRIES_AT: usize = HEADER_BYTES + 24;
const FLAG_COMPLETE: u8 = 1;

/// One statement about space. Ranges count pages of 4 KiB; `start` is a page number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceEntry {
    /// Free for use. Only in a complete list.
    Free {
        /// First page.
        start: u64,
        /// Number of pages.
        count: u64,
    },
    /// Taken by this commit.
    Taken {
        /// First page.
        start: u64,
        /// Number of pages.
        count: u64,
    },
    /// Freed by commit `generation`.
    Freed {
        /// First page.
        start: u64,
        /// Number of pages.
        count: u64,
        /// The commit.
        generation: u64,
    },
    /// A data segment's state.
    Segment {
        /// First page.
        start: u64,
        /// Bytes that files use; 0 when the segment was given back.
        live_bytes: u64,
        /// Pages written from the start on; the rest may be appended to.
        filled: u64,
    },
}

impl SpaceEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        let (code, fields, length) = match *self {
            SpaceEntry::Free { start, count } => (1, [start, count, 0], 2),
            SpaceEntry::Taken { start, count } => (2, [start, count, 0], 2),
            SpaceEntry::Freed {
                start,
                count,
                generation,
            } => (3, [start, count, generation], 3),
            SpaceEntry::Segment {
                start,
                live_bytes,
                filled,
            } => (4, [start, live_bytes, filled], 3),
        };
        out.push(code);
        for field in &fields[..length] {
            put_varint(out, *field);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let code = decoder.u8()?;
        let (start, second) = (decoder.varint()?, decoder.varint()?);
        if code != 4 && (second == 0 || start.checked_add(second).is_none()) {
            return Err(CodecError::Inconsistent);
        }
        match code {
            1 => Ok(SpaceEntry::Free { start, count: second }),
            2 => Ok(SpaceEntry::Taken { start, count: second }),
            3 => Ok(SpaceEntry::Freed {
                start,
                count: second,
                generation: decoder.varint()?,
            }),
            4 => Ok(SpaceEntry::Segment {
                start,
                live_bytes: second,
                filled: decoder.varint()?,
            }),
            other => Err(CodecError::Unknown(other)),
        }
    }
}

/// A decoded page of the space record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacePage {
    /// The next page: of the same commit, or the newest of the commit before; none at the end of a
    /// complete list.
    pub next: PagePointer,
    /// Whether it belongs to a complete list, which nothing follows.
    pub complete: bool,
    /// What it states.
    pub entries: Vec<SpaceEntry>,
}

/// Puts entries together into as few pages as hold them: their bytes and how many there are.
pub(crate) fn pack(entries: &[SpaceEntry]) -> Vec<(Vec<u8>, u16)> {
    let mut pages = vec![(Vec::new(), 0u16)];
    let mut encoded = Vec::with_capacity(32);
    for entry in entries {
        encoded.clear();
        entry.encode(&mut encoded);
        let (bytes, _) = pages.last().expect("there is always a page");
        if bytes.len() + encoded.len() > PAGE_BYTES - ENTRIES_AT {
            pages.push((Vec::new(), 0));
        }
        let (bytes, count) = pages.last_mut().expect("there is always a page");
        bytes.extend_from_slice(&encoded);
        *count += 1;
    }
    pages
}

/// Makes one page of packed entries; gives its checksum.
pub(crate) fn encode(
    bytes: &mut [u8],
    packed: &(Vec<u8>, u16),
    next: PagePointer,
    complete: bool,
    page: u64,
    birth: u64,
) -> u32 {
    let used = ENTRIES_AT + packed.0.len();
    bytes[32..40].copy_from_slice(&next.page.to_le_bytes());
    bytes[40..48].copy_from_slice(&next.birth.to_le_bytes());
    bytes[48..52].copy_from_slice(&next.checksum.to_le_bytes());
    bytes[52..56].copy_from_slice(&[if complete { FLAG_COMPLETE } else { 0 }, 0, 0, 0]);
    bytes[ENTRIES_AT..used].copy_from_slice(&packed.0);
    bytes[used..].fill(0);
    let header = Header {
        kind: SPACE_KIND,
        count: packed.1,
        used: used as u16,
        prefix: 0,
    };
    page::seal(bytes, header, page, birth)
}

/// Checks and decodes a page of the space record.
pub(crate) fn decode(bytes: &[u8], pointer: PagePointer) -> Result<SpacePage, PageError> {
    let header = page::open(bytes, pointer)?;
    if header.kind != SPACE_KIND || usize::from(header.used) < ENTRIES_AT {
        return Err(PageError::Header);
    }
    let fields = || -> Result<SpacePage, CodecError> {
        let mut decoder = Decoder::new(&bytes[HEADER_BYTES..usize::from(header.used)]);
        let next = PagePointer {
            page: decoder.u64()?,
            birth: decoder.u64()?,
            checksum: decoder.u32()?,
        };
        let flags = decoder.u8()?;
        if flags & !FLAG_COMPLETE != 0 {
            return Err(CodecError::Unknown(flags));
        }
        decoder.take(3)?;
        let entries = (0..header.count).map(|_| SpaceEntry::decode(&mut decoder));
        let entries = entries.collect::<Result<_, _>>()?;
        decoder.finish()?;
        Ok(SpacePage {
            next,
            complete: flags & FLAG_COMPLETE != 0,
            entries,
        })
    };
    fields().map_err(PageError::Cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = SpaceEntry> {
        (1..5u8, 0..1u64 << 50, 1..1u64 << 40, any::<u64>()).prop_map(
            |(code, start, count, third)| match code {
                1 => SpaceEntry::Free { start, count },
                2 => SpaceEntry::Taken { start, count },
                3 => SpaceEntry::Freed {
                    start,
                    count,
                    generation: third,
                },
                _ => SpaceEntry::Segment {
                    start,
                    live_bytes: third,
                    filled: count,
                },
            },
        )
    }

    proptest! {
        #[test]
        fn entries_come_back(entries in proptest::collection::vec(entry(), 0..900)) {
            let mut found = Vec::new();
            for packed in pack(&entries) {
                let mut bytes = vec![7; PAGE_BYTES];
                let next = PagePointer { page: 3, birth: 2, checksum: 1 };
                let checksum = encode(&mut bytes, &packed, next, true, 77, 5);
                let pointer = PagePointer { page: 77, birth: 5, checksum };
                let page = decode(&bytes, pointer).unwrap();
                prop_assert_eq!((page.next, page.complete), (next, true));
                found.extend(page.entries);
            }
            prop_assert_eq!(found, entries);
        }

        #[test]
        fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..200), count in 0..40u16) {
            let mut bytes = vec![0; PAGE_BYTES];
            let checksum = encode(&mut bytes, &(noise, count), PagePointer::default(), false, 1, 1);
            let _ = decode(&bytes, PagePointer { page: 1, birth: 1, checksum });
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        let entries = [
            SpaceEntry::Free { start: 33, count: 2 },
            SpaceEntry::Taken { start: 40, count: 1 },
            SpaceEntry::Freed {
                start: 50,
                count: 3,
                generation: 9,
            },
            SpaceEntry::Segment {
                start: 64,
                live_bytes: 5,
                filled: 1,
            },
        ];
        let packed = pack(&entries);
        assert_eq!(packed[0].0, [1, 33, 2, 2, 40, 1, 3, 50, 3, 9, 4, 64, 5, 1]);
        let mut bytes = vec![0; PAGE_BYTES];
        let next = PagePointer {
            page: 3,
            birth: 2,
            checksum: 1,
        };
        encode(&mut bytes, &packed[0], next, true, 77, 5);
        assert_eq!(bytes[5], 0xf0);
        assert_eq!(bytes[32..40], 3u64.to_le_bytes());
        assert_eq!(bytes[40..48], 2u64.to_le_bytes());
        assert_eq!(bytes[48..56], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[56..60], [1, 33, 2, 2]);
    }
}
