//! What people call an inode: its path, looked up in the second index when something is told about it, and kept nowhere.

use crate::format::entry::decode_place;
use crate::format::key::{InodeNumber, Key, links_prefix};
use crate::name::Shown;
use crate::tree::Tree;

/// Deeper than this an inode has no path: names may go round in circles.
const DEPTH_MAX: usize = 4096;

/// The path of an inode by one of its names; none where the second index has none, or cannot be read.
pub(crate) async fn find(tree: &Tree, inode: InodeNumber) -> Option<Shown> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut at = inode;
    while at != InodeNumber::ROOT {
        let value = place(tree, at).await?;
        let (directory, name) = decode_place(&value).ok()?;
        parts.push(name.to_vec());
        at = directory;
        if parts.len() > DEPTH_MAX {
            return None;
        }
    }
    parts.reverse();
    Some(Shown::new(&parts.join(&b'/')))
}

/// Where an inode's first name stands, or if that is gone another.
async fn place(tree: &Tree, inode: InodeNumber) -> Option<Vec<u8>> {
    let first = tree.get(&Key::Name(inode.0).encode()).await.ok()?;
    if first.is_some() {
        return first;
    }
    let prefix = links_prefix(inode);
    let (key, _) = tree.first_with_prefix(&prefix, &prefix).await.ok()??;
    match Key::decode(&key) {
        Ok(Key::Link(_, cookie)) => tree.get(&Key::Name(cookie).encode()).await.ok()?,
        _ => None,
    }
}
