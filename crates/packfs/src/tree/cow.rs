//! Giving changed pages their addresses and bytes.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::node::{Child, Content};
use super::{Node, NodeId, Tree};
use crate::format::page::{self, LEVEL_MAX, Page};
use crate::format::{PAGE_BYTES, PagePointer};

/// A tree's changed pages, ready to be written.
pub(crate) struct Written {
    /// Page numbers and bytes.
    pub(crate) pages: Vec<(PagePointer, Vec<u8>)>,
    /// The new root.
    pub(crate) root: PagePointer,
}

impl Tree {
    /// Pages that the changed ones replace; each is given once.
    pub(crate) fn take_replaced(&mut self) -> Vec<PagePointer> {
        std::mem::take(&mut self.replaced)
    }

    /// Encodes all changed pages at the page numbers that `place` gives, lower levels first. The tree stays
    /// as it is until [`Tree::adopt`].
    pub(crate) fn write_out(&self, birth: u64, mut place: impl FnMut() -> u64) -> Written {
        let mut by_level: BTreeMap<u8, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.nodes.iter() {
            assert!(node.level <= LEVEL_MAX, "the tree is higher than any can be");
            by_level.entry(node.level).or_default().push(id);
        }
        let mut pointers: BTreeMap<NodeId, PagePointer> = BTreeMap::new();
        let mut pages = Vec::with_capacity(self.nodes.len());
        for ids in by_level.values_mut() {
            // In key order, so that neighbours in the tree are neighbours on the volume.
            ids.sort_by(|a, b| self.first_key(*a).cmp(self.first_key(*b)));
            for &id in ids.iter() {
                let page = place();
                let (bytes, checksum) = encode(self.nodes.get(id), &pointers, page, birth);
                let pointer = PagePointer {
                    page,
                    birth,
                    checksum,
                };
                // Before any superblock names it: a page that nobody can read must not become the tree.
                Page::parse(&bytes, pointer).expect("a page that was just encoded is whole");
                pointers.insert(id, pointer);
                pages.push((pointer, bytes));
            }
        }
        let root = match self.root {
            Child::Clean(pointer) => pointer,
            Child::Changed(id) => pointers[&id],
        };
        Written { pages, root }
    }

    fn first_key(&self, id: NodeId) -> &[u8] {
        self.nodes.get(id).cells.first().map_or(&[], |(key, _)| key)
    }

    /// The pages of [`Tree::write_out`] are on the volume: they become the tree, and the cache has them.
    pub(crate) fn adopt(&mut self, written: &Written) {
        self.nodes.clear();
        self.root = Child::Clean(written.root);
        for (pointer, bytes) in &written.pages {
            let page = Page::parse(bytes, *pointer).expect("a page that was just encoded is whole");
            self.cache.insert(*pointer, Rc::new(page));
        }
    }
}

fn encode(node: &Node, pointers: &BTreeMap<NodeId, PagePointer>, page: u64, birth: u64) -> (Vec<u8>, u32) {
    let mut bytes = vec![0; PAGE_BYTES];
    let cells = node.cells.iter().map(|(key, content)| {
        let value = match content {
            Content::Value(value) => value.clone(),
            Content::Child(child) => {
                let pointer = match child {
                    Child::Clean(pointer) => *pointer,
                    Child::Changed(id) => pointers[id],
                };
                let mut value = Vec::with_capacity(16);
                pointer.encode(&mut value);
                value
            }
        };
        (&key[..], value)
    });
    let header = page::fill(&mut bytes, node.level, cells, node.prefix());
    let checksum = page::seal(&mut bytes, header, page, birth);
    (bytes, checksum)
}
