//! Where a file has content and where it has holes, as its index says.

use std::ops::Range;

use crate::error::TreeError;
use crate::format::CodecError;
use crate::format::entry::{Inode, Layout};
use crate::format::extent::decode_value;
use crate::format::key::{Key, extents_prefix};
use crate::tree::{Tree, inconsistent};

/// What `lseek(2)` looks for in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Content (SEEK_DATA).
    Data,
    /// A hole (SEEK_HOLE); there is one behind the end of every file.
    Hole,
}

/// The first run of bytes after `offset`, or around it, that is not a hole. Runs may follow each other without a gap.
/// Cost: two descents of the tree at most.
pub(crate) async fn data_after(
    tree: &Tree,
    inode: &Inode,
    offset: u64,
) -> Result<Option<Range<u64>>, TreeError> {
    match inode.layout {
        Layout::Device(_) => return Ok(None),
        Layout::Inline(_) | Layout::Extents(_) => {
            return Ok((offset < inode.size).then_some(0..inode.size));
        }
        Layout::Mapped => {}
    }
    let prefix = extents_prefix(inode.number);
    let from = Key::Extents(inode.number, offset).encode();
    if let Some((key, value)) = tree.last_at_or_before(&from, &prefix).await? {
        let run = run_of(&key, &value)?;
        if run.end > offset {
            return Ok(Some(run));
        }
    }
    match tree.first_with_prefix(&from, &prefix).await? {
        Some((key, value)) => run_of(&key, &value).map(Some),
        None => Ok(None),
    }
}

/// Extents under one key follow each other.
fn run_of(key: &[u8], value: &[u8]) -> Result<Range<u64>, TreeError> {
    let malformed = |source| inconsistent(0, source);
    let Key::Extents(_, start) = Key::decode(key).map_err(malformed)? else {
        return Err(malformed(CodecError::Inconsistent));
    };
    let extents = decode_value(value).map_err(malformed)?;
    let length = extents.iter().map(|extent| u64::from(extent.length)).sum();
    let end = start.checked_add(length);
    Ok(start..end.ok_or_else(|| malformed(CodecError::TooLarge))?)
}
