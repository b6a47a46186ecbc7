//! Extended attributes: named bytes of an inode, kept in parts under keys of their own.
//!
//! Limits, which are Linux's (`limits.h`: XATTR_NAME_MAX, XATTR_SIZE_MAX, XATTR_LIST_MAX): a name has 1 to 255 bytes
//! and no zero, a value at most 64 KiB, and all names of an inode with a zero after each at most 64 KiB.

use crate::error::TreeError;
use crate::format::CodecError;
use crate::format::key::{InodeNumber, Key, extended_prefix};
use crate::name::NAME_BYTES_MAX;
use crate::tree::{Tree, inconsistent};

/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The longest list of names, a zero after each, in bytes.
pub const LIST_BYTES_MAX: usize = 64 << 10;
/// All parts of a value but the last have this length, in bytes: cells stay small enough for a page to hold seven.
pub const PART_BYTES: usize = 256;
/// The most parts: their numbers are a byte.
const PARTS_MAX: usize = VALUE_BYTES_MAX / PART_BYTES;

/// Whether bytes can name an attribute.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
}

/// The value of an inode's attribute.
pub(crate) async fn get(tree: &Tree, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
    let mut value = Vec::new();
    for part in 0..PARTS_MAX {
        let key = Key::Extended(inode, part as u8, name.to_vec()).encode();
        match tree.get(&key).await? {
            None if part == 0 => return Ok(None),
            None => break,
            Some(bytes) if bytes.len() > PART_BYTES => return Err(inconsistent(0, CodecError::TooLarge)),
            Some(bytes) => {
                value.extend_from_slice(&bytes);
                if bytes.len() < PART_BYTES {
                    break;
                }
            }
        }
    }
    Ok(Some(value))
}

/// The names of an inode's attributes, in the order of their bytes.
pub(crate) async fn list(tree: &Tree, inode: InodeNumber) -> Result<Vec<Vec<u8>>, TreeError> {
    let prefix = extended_prefix(inode, 0);
    let mut names = Vec::new();
    let (mut from, mut bytes) = (Some(prefix.clone()), 0);
    while let Some(at) = from {
        let part = tree.part(&prefix, &at).await?;
        for (key, _) in part.cells {
            let name = &key[prefix.len()..];
            bytes += name.len() + 1;
            if bytes > LIST_BYTES_MAX {
                return Err(inconsistent(0, CodecError::TooLarge));
            }
            names.push(name.to_vec());
        }
        from = part.next;
    }
    Ok(names)
}
