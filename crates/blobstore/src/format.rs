//! What lies on the device, byte by byte. The tables for people are in `docs/formats/blobstore.md`; a test
//! holds both together.
//!
//! Everything durable is a page of 4096 bytes with the same [`header`]: magic, version, length, CRC32C over the
//! whole page, own address, generation, and what it belongs to. Numbers are little-endian. Decoding trusts
//! nothing: noise gives a [`PageError`].

pub(crate) mod blob_page;
pub(crate) mod superblock;
pub(crate) mod table;

use foundation::checksum::crc32c;

/// Bytes of a page: the unit of blobs, of metadata and of checksums.
pub const PAGE_BYTES: usize = 4096;
/// The format's version that this code writes.
pub const VERSION: u16 = 1;
/// "RHBS", little-endian.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"RHBS");

/// No store counts commits or blobs so far. What is above comes from a damaged or made up page, and the next number must
/// exist.
pub(crate) const COUNT_MAX: u64 = 1 << 62;

/// A page's bytes.
pub(crate) type Page = [u8; PAGE_BYTES];

/// Where a field lies in its page. Codec and documentation test use the same constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Name in the documentation's table.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the test that reads the documentation")
    )]
    pub(crate) name: &'static str,
    /// First byte.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) length: usize,
}

/// Declares the fields of one structure, and the list of them all.
macro_rules! fields {
    ($($constant:ident $name:literal $offset:literal $length:expr;)*) => {
        $(#[allow(dead_code, reason = "reserved fields stand in the table for people")]
        pub(crate) const $constant: $crate::format::Field =
            $crate::format::Field { name: $name, offset: $offset, length: $length };)*
        #[cfg(test)]
        pub(crate) const ALL: &[$crate::format::Field] = &[$($constant),*];
    };
}
pub(crate) use fields;

/// The first 64 bytes of every page.
pub(crate) mod header {
    fields! {
        MAGIC "magic" 0 4;
        VERSION "version" 4 2;
        KIND "kind" 6 2;
        LENGTH "length" 8 4;
        CRC "crc32c" 12 4;
        ADDRESS "address" 16 8;
        GENERATION "generation" 24 8;
        UUID "uuid" 32 16;
        BLOB "blob" 48 8;
        INDEX "index" 56 4;
        RESERVED "header_reserved" 60 4;
    }
    /// Bytes of the header.
    pub(crate) const BYTES: usize = 64;
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// The store's root.
    Superblock = 1,
    /// Where the metadata pages of blobs lie.
    Table = 2,
    /// Metadata of one blob.
    Blob = 3,
}

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The device could not read it.
    #[error("it could not be read ({0})")]
    Io(bdev::IoError),
    /// The page is not Redhare's at all.
    #[error("it does not begin with the magic number")]
    Magic,
    /// The bytes are not those that were written.
    #[error("its checksum is {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// In the page.
        found: u32,
        /// Of the page.
        computed: u32,
    },
    /// Intact, but of a version that this code does not know.
    #[error("its format version is {found}, this program knows up to {VERSION}")]
    Version {
        /// In the page.
        found: u16,
    },
    /// Intact, but written for another place or owner, or an older state than the one referred to: a misdirected
    /// or lost write.
    #[error("it is intact but is not the page that belongs here: a write was lost or went astray")]
    Misplaced,
    /// Intact, but its contents contradict themselves or the store.
    #[error("its contents make no sense: {0}")]
    Contents(&'static str),
}

/// Who a page says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) generation: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) blob: u64,
    pub(crate) index: u32,
}

pub(crate) fn put(page: &mut [u8], field: Field, bytes: &[u8]) {
    page[field.offset..field.offset + field.length].copy_from_slice(bytes);
}

pub(crate) fn bytes<const N: usize>(page: &[u8], field: Field) -> [u8; N] {
    page[field.offset..field.offset + N]
        .try_into()
        .expect("a slice of N bytes makes an array of N bytes")
}

pub(crate) fn get_u16(page: &[u8], field: Field) -> u16 {
    u16::from_le_bytes(bytes(page, field))
}

pub(crate) fn get_u32(page: &[u8], field: Field) -> u32 {
    u32::from_le_bytes(bytes(page, field))
}

pub(crate) fn get_u64(page: &[u8], field: Field) -> u64 {
    u64::from_le_bytes(bytes(page, field))
}

/// The checksum of a page: over all of it, the checksum field counted as zeros.
fn checksum(page: &Page) -> u32 {
    let mut copy = *page;
    put(&mut copy, header::CRC, &[0; 4]);
    crc32c(&copy)
}

/// Writes the header and, last, the checksum, which is returned.
pub(crate) fn seal(page: &mut Page, identity: &Identity, length: usize) -> u32 {
    assert!(
        (header::BYTES..=PAGE_BYTES).contains(&length),
        "a page of {length} bytes"
    );
    put(page, header::MAGIC, &MAGIC.to_le_bytes());
    put(page, header::VERSION, &VERSION.to_le_bytes());
    put(page, header::KIND, &(identity.kind as u16).to_le_bytes());
    put(page, header::LENGTH, &(length as u32).to_le_bytes());
    put(page, header::ADDRESS, &identity.address.to_le_bytes());
    put(page, header::GENERATION, &identity.generation.to_le_bytes());
    put(page, header::UUID, &identity.uuid);
    put(page, header::BLOB, &identity.blob.to_le_bytes());
    put(page, header::INDEX, &identity.index.to_le_bytes());
    let crc = checksum(page);
    put(page, header::CRC, &crc.to_le_bytes());
    crc
}

/// Checks magic, checksum, version and address of a page of the kind, in this order; returns who it says it is
/// and its checksum.
pub(crate) fn verify(page: &Page, kind: Kind, address: u64) -> Result<(Identity, u32), PageError> {
    if get_u32(page, header::MAGIC) != MAGIC {
        return Err(PageError::Magic);
    }
    let (found, computed) = (get_u32(page, header::CRC), checksum(page));
    if found != computed {
        return Err(PageError::Checksum { found, computed });
    }
    let version = get_u16(page, header::VERSION);
    if version != VERSION {
        return Err(PageError::Version { found: version });
    }
    if get_u16(page, header::KIND) != kind as u16 || get_u64(page, header::ADDRESS) != address {
        return Err(PageError::Misplaced);
    }
    let length = get_u32(page, header::LENGTH) as usize;
    if !(header::BYTES..=PAGE_BYTES).contains(&length) {
        return Err(PageError::Contents("its length lies outside the page"));
    }
    let identity = Identity {
        kind,
        address,
        generation: get_u64(page, header::GENERATION),
        uuid: bytes(page, header::UUID),
        blob: get_u64(page, header::BLOB),
        index: get_u32(page, header::INDEX),
    };
    Ok((identity, found))
}

#[cfg(test)]
mod tests;
