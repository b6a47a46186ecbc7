//! What those are called who claim bytes.

use super::Claimant;
use crate::cache::PageCache;
use crate::format::key::InodeNumber;
use crate::format::superblock::Superblock;
use crate::io::Medium;
use crate::name::Shown;
use crate::paths;
use crate::tree::Tree;

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
        match paths::find(&self.tree, inode).await {
            Some(path) => path,
            None => Shown::new(format!("inode {inode}").as_bytes()),
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
