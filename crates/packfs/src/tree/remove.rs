//! Taking a cell out, and joining what grows too small.

use super::node::{Child, Content};
use super::{NodeId, Tree};
use crate::error::TreeError;
use crate::format::PAGE_BYTES;

/// Pages below this are joined with a neighbour if both fit into one.
const SMALL_BYTES: usize = PAGE_BYTES / 3;

impl Tree {
    /// Removes `key` and gives its value.
    pub(crate) async fn remove(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        if self.get(key).await?.is_none() {
            return Ok(None);
        }
        let path = self.change_path(key).await?;
        let leaf = self.nodes.get_mut(path.leaf);
        let index = leaf.search(key).expect("the key was just found");
        let (_, content) = leaf.cells.remove(index);
        leaf.last_insert = None;
        let Content::Value(value) = content else {
            unreachable!("leaves hold values")
        };
        let mut id = path.leaf;
        let mut inner = path.inner;
        while let Some((parent, index)) = inner.pop() {
            let node = self.nodes.get(id);
            if node.cells.is_empty() {
                self.nodes.remove(id);
                self.nodes.get_mut(parent).cells.remove(index);
            } else if node.encoded_bytes() < SMALL_BYTES {
                self.join(parent, index).await;
            }
            let node = self.nodes.get_mut(parent);
            node.last_insert = None;
            id = parent;
        }
        self.shrink_root();
        Ok(Some(value))
    }

    /// Joins the child at `index` with a neighbour, if that can be read and both fit into one page. It is
    /// only tidying: a neighbour that cannot be read stays as it is.
    async fn join(&mut self, parent: NodeId, index: usize) {
        let node = self.nodes.get(parent);
        let (left, right) = match index {
            0 if node.cells.len() < 2 => return,
            0 => (0, 1),
            _ => (index - 1, index),
        };
        let (level, first, second) = (node.level, node.child(left), node.child(right));
        if self.sizes_exclude(first, second) {
            return;
        }
        let Ok(first) = self.change(first, Some(level)).await else {
            return;
        };
        self.nodes.get_mut(parent).cells[left].1 = Content::Child(Child::Changed(first));
        let Ok(second) = self.change(second, Some(level)).await else {
            return;
        };
        self.nodes.get_mut(parent).cells[right].1 = Content::Child(Child::Changed(second));
        let mut cells = self.nodes.get(second).cells.clone();
        if let Some((key, _)) = cells.first_mut().filter(|_| level > 1) {
            // An inner page's first key may lie below its separator's right: the separator is the true bound.
            key.clone_from(&self.nodes.get(parent).cells[right].0);
        }
        let kept = self.nodes.get(first).cells.len();
        let node = self.nodes.get_mut(first);
        node.cells.extend(cells);
        node.last_insert = None;
        if node.is_too_large() {
            node.cells.truncate(kept);
            return;
        }
        self.nodes.remove(second);
        self.nodes.get_mut(parent).cells.remove(right);
    }

    /// Whether what is known without reading says that two pages do not fit into one.
    fn sizes_exclude(&self, first: Child, second: Child) -> bool {
        let known = |child| match child {
            Child::Changed(id) => self.nodes.get(id).encoded_bytes(),
            Child::Clean(pointer) => self.cache.get(pointer).map_or(0, |page| page.memory_bytes()),
        };
        known(first) + known(second) > PAGE_BYTES + 512
    }

    /// A root with one child is not needed; one without any becomes an empty leaf.
    fn shrink_root(&mut self) {
        while let Child::Changed(id) = self.root {
            let node = self.nodes.get_mut(id);
            if node.level == 0 || node.cells.len() > 1 {
                return;
            }
            if node.cells.is_empty() {
                node.level = 0;
                return;
            }
            self.root = node.child(0);
            self.nodes.remove(id);
        }
    }
}
