//! What people call an inode. Its path is looked up in the second index when something is told about it, and kept nowhere.

use super::Claimant;
use crate::cache::PageCache;
use crate::format::entry::decode_place;
use crate::format::key::{InodeNumber, Key, links_prefix};
use crate::format::superblock::Superblock;
use crate::io::Medium;
use crate::name::Shown;
use crate::tree::Tree;

/// Deeper than this an inode is called by its number: names may go round in circles.
const DEPTH_MAX: usize = 4096;
/// Pages that are kept for the names of neighbours.
const CACHE_BYTES: usize = 1 << 20;

/// See the module.
pub(super) struct Names {
    tree: Tree,
}

impl Names {
    pub(super) fn new(medium: &Medium, superblock: &Superblock) -> Self {
        Self {
            tree: Tree::new(medium.clone(), PageCache::new(CACHE_BYTES), superblock.root),
        }
    }

    /// The path of an inode by one of its names; its number where the second index has none.
    pub(super) async fn path(&self, inode: InodeNumber) -> Shown {
        match self.find_path(inode).await {
            Some(path) => path,
            None => Shown::new(format!("inode {inode}").as_bytes()),
        }
    }

    async fn find_path(&self, inode: InodeNumber) -> Option<Shown> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = inode;
        while at != InodeNumber::ROOT {
            let value = self.place(at).await?;
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
    async fn place(&self, inode: InodeNumber) -> Option<Vec<u8>> {
        let first = self.tree.get(&Key::Name(inode.0).encode()).await.ok()?;
        if first.is_some() {
            return first;
        }
        let prefix = links_prefix(inode);
        let (key, _) = self.tree.first_with_prefix(&prefix, &prefix).await.ok()??;
        match Key::decode(&key) {
            Ok(Key::Link(_, cookie)) => self.tree.get(&Key::Name(cookie).encode()).await.ok()?,
            _ => None,
        }
    }

    /// What somebody is called who claims bytes.
    pub(super) async fn claimant(&self, who: Claimant) -> String {
        match who {
            Claimant::Superblock => "a superblock".to_owned(),
            Claimant::Page(page) => format!("page {page} of the index"),
            Claimant::Record => "the space record".to_owned(),
            Claimant::Free => "free space".to_owned(),
            Claimant::Segment => "a data segment".to_owned(),
            Claimant::Unwritten => "no written data segment".to_owned(),
            Claimant::File(inode) => self.path(inode).await.to_string(),
        }
    }
}
