//! The copy-on-write B+tree of 4 KiB pages.
//!
//! [`Tree`] is a root that may have changed pages below it, kept decoded in memory until a commit gives them
//! addresses. Everything else is reached through pointers and the page cache. A reader's tree is one without
//! changes. Splitting goes where the insertions go, so that a tree filled in order has full pages.

mod cow;
mod insert;
mod iterate;
mod lookup;
mod node;
mod remove;

use std::cell::Cell;
use std::rc::Rc;

use crate::cache::PageCache;
use crate::error::TreeError;
use crate::format::page::Page;
use crate::format::{CodecError, PagePointer};
use crate::io::Medium;

pub(crate) use cow::Written;
pub(crate) use node::{Child, Node, NodeId};

/// See the module.
pub(crate) struct Tree {
    pub(crate) medium: Medium,
    pub(crate) cache: Rc<PageCache>,
    root: Child,
    nodes: node::Arena,
    /// Pages that the changed ones replace.
    replaced: Vec<PagePointer>,
    /// How its leaves were gone through lately.
    way: Cell<iterate::Way>,
}

impl Tree {
    /// The tree below `root`.
    pub(crate) fn new(medium: Medium, cache: Rc<PageCache>, root: PagePointer) -> Self {
        Self {
            medium,
            cache,
            root: Child::Clean(root),
            nodes: node::Arena::default(),
            replaced: Vec::new(),
            way: Cell::default(),
        }
    }

    /// A tree of one empty leaf that stands nowhere yet.
    pub(crate) fn empty(medium: Medium, cache: Rc<PageCache>) -> Self {
        let mut nodes = node::Arena::default();
        let root = Child::Changed(nodes.add(Node::empty_leaf()));
        Self {
            medium,
            cache,
            root,
            nodes,
            replaced: Vec::new(),
            way: Cell::default(),
        }
    }

    /// Changed pages that the next commit writes.
    pub(crate) fn changed_pages(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is nothing for a commit to do. A removal may leave the tree with fewer pages and no changed one.
    pub(crate) fn is_committed(&self) -> bool {
        self.changed_pages() == 0 && self.replaced.is_empty()
    }

    /// Pages on the volume that the next commit gives back.
    pub(crate) fn replaced_pages(&self) -> usize {
        self.replaced.len()
    }

    async fn load(&self, pointer: PagePointer) -> Result<Rc<Page>, TreeError> {
        self.cache.load(&self.medium, pointer).await
    }
}

/// A child one level below its parent; a damaged pointer must not lead round in circles.
fn check_level(child: &Page, pointer: PagePointer, parent: Option<u8>) -> Result<(), TreeError> {
    if parent.is_none_or(|level| level == child.level() + 1) {
        Ok(())
    } else {
        Err(inconsistent(pointer.page, CodecError::Inconsistent))
    }
}

pub(crate) fn inconsistent(page: u64, source: CodecError) -> TreeError {
    TreeError::Inconsistent { page, source }
}

#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
