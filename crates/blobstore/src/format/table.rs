//! Table pages: where the metadata pages of blobs lie, and their checksums, so that a lost write is seen.

use super::{COUNT_MAX, Identity, Kind, PAGE_BYTES, Page, PageError, header, put, seal, verify};

pub(crate) mod field {
    crate::format::fields! {
        ENTRIES "entries" 64 4032;
    }
}

/// Offsets inside an entry.
pub(crate) mod entry {
    crate::format::fields! {
        BLOB "entry_blob" 0 8;
        INDEX "entry_index" 8 4;
        PAGE "entry_page" 12 4;
        CRC "entry_crc32c" 16 4;
        RESERVED "entry_reserved" 20 4;
    }
    pub(crate) const BYTES: usize = 24;
}

/// Entries of a page.
pub(crate) const ENTRIES_PER_PAGE: usize = (PAGE_BYTES - header::BYTES) / entry::BYTES;

/// Where one metadata page of a blob lies. Blob 0 marks an unused entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) blob: u64,
    pub(crate) index: u32,
    pub(crate) page: u32,
    pub(crate) crc: u32,
}

/// The page as written to `address`, and its checksum. `entries` are at most a page's worth.
pub(crate) fn encode(entries: &[Entry], identity: &Identity) -> (Page, u32) {
    let mut page = [0; PAGE_BYTES];
    assert!(
        entries.len() <= ENTRIES_PER_PAGE,
        "{} entries in one page",
        entries.len()
    );
    let (places, _) = page[field::ENTRIES.offset..].as_chunks_mut::<{ entry::BYTES }>();
    for (place, value) in places.iter_mut().zip(entries) {
        put(place, entry::BLOB, &value.blob.to_le_bytes());
        put(place, entry::INDEX, &value.index.to_le_bytes());
        put(place, entry::PAGE, &value.page.to_le_bytes());
        put(place, entry::CRC, &value.crc.to_le_bytes());
    }
    let crc = seal(&mut page, identity, header::BYTES + entries.len() * entry::BYTES);
    (page, crc)
}

/// All entries of a page, unused ones included, so that an entry's number is its place.
pub(crate) fn decode(page: &Page, address: u64) -> Result<(Identity, u32, Vec<Entry>), PageError> {
    let (identity, crc) = verify(page, Kind::Table, address)?;
    let (places, _) = page[field::ENTRIES.offset..].as_chunks::<{ entry::BYTES }>();
    let entries: Vec<Entry> = places
        .iter()
        .map(|place| Entry {
            blob: super::get_u64(place, entry::BLOB),
            index: super::get_u32(place, entry::INDEX),
            page: super::get_u32(place, entry::PAGE),
            crc: super::get_u32(place, entry::CRC),
        })
        .collect();
    if entries.iter().any(|entry| entry.blob > COUNT_MAX) {
        return Err(PageError::Contents("it names a blob that no store has come to"));
    }
    Ok((identity, crc, entries))
}
