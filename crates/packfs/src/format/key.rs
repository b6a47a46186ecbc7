//! Keys of the tree: a byte for the kind, then fields that sort as bytes do.
//!
//! A 64-bit number is a byte that counts its significant bytes (1 to 8), then those, highest first: short for
//! small numbers, and in numeric order.

use super::CodecError;
use super::codec::Decoder;

/// An inode's number. Never used a second time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: InodeNumber = InodeNumber(1);
}

impl std::fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The longest key, in bytes: kind, inode, part, name.
pub const KEY_BYTES_MAX: usize = 1 + 9 + 1 + super::super::name::NAME_BYTES_MAX;

const ENTRY: u8 = 0x10;
const INODE: u8 = 0x20;
const NAME: u8 = 0x30;
const LINK: u8 = 0x40;
const EXTENTS: u8 = 0x50;
const EXTENDED: u8 = 0x60;
const ORPHAN: u8 = 0x70;
const SNAPSHOT: u8 = 0x80;
const QUOTA: u8 = 0x90;
const SHARED: u8 = 0xa0;

/// A key of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A directory's entry: (directory, name) → [`super::entry::Entry`].
    Entry(InodeNumber, Vec<u8>),
    /// An inode that has more than one name or none: → [`super::entry::Inode`].
    Inode(InodeNumber),
    /// An entry's cookie, which for a first name is the inode's number: → (directory, name).
    Name(u64),
    /// One of several names of an inode, by its cookie: → nothing.
    Link(InodeNumber, u64),
    /// Part of the extents of a large file, by the file offset of the first: → extents.
    Extents(InodeNumber, u64),
    /// A part of an inode's extended attribute of this name: → its bytes.
    Extended(InodeNumber, u8, Vec<u8>),
    /// An inode without a name that was open when it lost it: → nothing, or the quota's directory. It stands under [`Key::Inode`].
    Orphan(InodeNumber),
    /// A snapshot by name, by its generation: → [`super::snapshot::Snapshot`].
    Snapshot(u64, Vec<u8>),
    /// The quota of what stands below a directory: → [`super::quota::Quota`].
    Quota(InodeNumber),
    /// Bytes of content that several extents have, by their first address: → [`super::shared::Shared`].
    Shared(u64),
}

fn put_number(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let skipped = (value.leading_zeros() as usize / 8).min(7);
    out.push((8 - skipped) as u8);
    out.extend_from_slice(&bytes[skipped..]);
}

fn take_number(decoder: &mut Decoder<'_>) -> Result<u64, CodecError> {
    let length = usize::from(decoder.u8()?);
    if !(1..=8).contains(&length) {
        return Err(CodecError::TooLarge);
    }
    let mut bytes = [0; 8];
    bytes[8 - length..].copy_from_slice(decoder.take(length)?);
    if length > 1 && bytes[8 - length] == 0 {
        return Err(CodecError::Inconsistent);
    }
    Ok(u64::from_be_bytes(bytes))
}

/// The key of (directory, name), without owning the name.
pub(crate) fn entry_key(directory: InodeNumber, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(10 + name.len());
    out.push(ENTRY);
    put_number(&mut out, directory.0);
    out.extend_from_slice(name);
    out
}

/// The bytes that all keys of a directory's entries begin with.
pub(crate) fn directory_prefix(directory: InodeNumber) -> Vec<u8> {
    entry_key(directory, b"")
}

/// The bytes that the keys of all links of an inode begin with.
pub(crate) fn links_prefix(inode: InodeNumber) -> Vec<u8> {
    let mut out = vec![LINK];
    put_number(&mut out, inode.0);
    out
}

/// The bytes that all extent keys of an inode begin with.
pub(crate) fn extents_prefix(inode: InodeNumber) -> Vec<u8> {
    let mut out = vec![EXTENTS];
    put_number(&mut out, inode.0);
    out
}

/// The bytes that the keys of a part of all extended attributes of an inode begin with.
pub(crate) fn extended_prefix(inode: InodeNumber, part: u8) -> Vec<u8> {
    let mut out = vec![EXTENDED];
    put_number(&mut out, inode.0);
    out.push(part);
    out
}

/// The bytes that the keys of all orphans begin with.
pub(crate) fn orphans_prefix() -> Vec<u8> {
    vec![ORPHAN]
}

/// The bytes that the keys of all snapshots begin with.
pub(crate) fn snapshots_prefix() -> Vec<u8> {
    vec![SNAPSHOT]
}

/// The bytes that the keys of all quotas begin with.
pub(crate) fn quotas_prefix() -> Vec<u8> {
    vec![QUOTA]
}

/// The bytes that the keys of all shared runs begin with.
pub(crate) fn shared_prefix() -> Vec<u8> {
    vec![SHARED]
}

impl Key {
    /// The bytes that stand in the tree.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20);
        match self {
            Key::Entry(directory, name) => return entry_key(*directory, name),
            Key::Inode(inode) => {
                out.push(INODE);
                put_number(&mut out, inode.0);
            }
            Key::Name(cookie) => {
                out.push(NAME);
                put_number(&mut out, *cookie);
            }
            Key::Link(inode, cookie) => {
                out = links_prefix(*inode);
                put_number(&mut out, *cookie);
            }
            Key::Extents(inode, offset) => {
                out = extents_prefix(*inode);
                put_number(&mut out, *offset);
            }
            Key::Extended(inode, part, name) => {
                out = extended_prefix(*inode, *part);
                out.extend_from_slice(name);
            }
            Key::Orphan(inode) => {
                out.push(ORPHAN);
                put_number(&mut out, inode.0);
            }
            Key::Snapshot(generation, name) => {
                out.push(SNAPSHOT);
                put_number(&mut out, *generation);
                out.extend_from_slice(name);
            }
            Key::Quota(directory) => {
                out.push(QUOTA);
                put_number(&mut out, directory.0);
            }
            Key::Shared(address) => {
                out.push(SHARED);
                put_number(&mut out, *address);
            }
        }
        out
    }

    /// The key that some bytes mean.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut decoder = Decoder::new(bytes);
        let kind = decoder.u8()?;
        let number = take_number(&mut decoder)?;
        let key = match kind {
            ENTRY => Key::Entry(InodeNumber(number), decoder.rest().to_vec()),
            INODE => Key::Inode(InodeNumber(number)),
            NAME => Key::Name(number),
            LINK => Key::Link(InodeNumber(number), take_number(&mut decoder)?),
            EXTENTS => Key::Extents(InodeNumber(number), take_number(&mut decoder)?),
            EXTENDED => {
                let part = decoder.u8()?;
                Key::Extended(InodeNumber(number), part, decoder.rest().to_vec())
            }
            ORPHAN => Key::Orphan(InodeNumber(number)),
            SNAPSHOT => Key::Snapshot(number, decoder.rest().to_vec()),
            QUOTA => Key::Quota(InodeNumber(number)),
            SHARED => Key::Shared(number),
            other => return Err(CodecError::Unknown(other)),
        };
        decoder.finish()?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        let number = prop_oneof![0..3u64, any::<u64>(), any::<u16>().prop_map(u64::from)];
        (
            0..10,
            number.clone(),
            number,
            proptest::collection::vec(any::<u8>(), 0..30),
        )
            .prop_map(|(kind, a, b, name)| match kind {
                0 => Key::Entry(InodeNumber(a), name),
                1 => Key::Inode(InodeNumber(a)),
                2 => Key::Name(a),
                3 => Key::Link(InodeNumber(a), b),
                4 => Key::Extents(InodeNumber(a), b),
                5 => Key::Extended(InodeNumber(a), b as u8, name),
                6 => Key::Orphan(InodeNumber(a)),
                7 => Key::Quota(InodeNumber(a)),
                8 => Key::Shared(a),
                _ => Key::Snapshot(a, name),
            })
    }

    proptest! {
        #[test]
        fn keys_come_back(key in key()) {
            prop_assert_eq!(Key::decode(&key.encode()).unwrap(), key);
        }

        #[test]
        fn noise_never_panics_and_means_one_thing(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }

        #[test]
        fn numbers_sort_as_their_bytes(a: u64, b: u64, shift in 0..64u32) {
            let (a, b) = (a >> shift, b >> (shift / 2));
            let (x, y) = (Key::Name(a).encode(), Key::Name(b).encode());
            prop_assert_eq!(a.cmp(&b), x.cmp(&y));
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        assert_eq!(
            Key::Entry(InodeNumber(0x102), b"ab".to_vec()).encode(),
            b"\x10\x02\x01\x02ab"
        );
        assert_eq!(Key::Inode(InodeNumber(1)).encode(), b"\x20\x01\x01");
        assert_eq!(Key::Name(0).encode(), b"\x30\x01\x00");
        assert_eq!(Key::Link(InodeNumber(5), 6).encode(), b"\x40\x01\x05\x01\x06");
        assert_eq!(
            Key::Extents(InodeNumber(5), 0x10_0000).encode(),
            b"\x50\x01\x05\x03\x10\x00\x00"
        );
        assert_eq!(
            Key::Extended(InodeNumber(5), 1, b"user.a".to_vec()).encode(),
            b"\x60\x01\x05\x01user.a"
        );
        assert_eq!(Key::Orphan(InodeNumber(9)).encode(), b"\x70\x01\x09");
        assert_eq!(Key::Quota(InodeNumber(9)).encode(), b"\x90\x01\x09");
        assert_eq!(Key::Shared(0x1000).encode(), b"\xa0\x02\x10\x00");
    }
}
