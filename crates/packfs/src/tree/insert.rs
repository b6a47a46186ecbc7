//! Putting a cell in, and splitting what grows too large.

use super::node::{self, Child, Content};
use super::{Node, NodeId, Tree, check_level};
use crate::error::TreeError;
use crate::format::PAGE_BYTES;
use crate::format::page::common_prefix;

/// The changed pages from the root to a leaf, and which child was taken in each inner one.
pub(super) struct Path {
    pub(super) inner: Vec<(NodeId, usize)>,
    pub(super) leaf: NodeId,
}

impl Tree {
    /// Makes a child a changed page, if it is not one yet.
    pub(super) async fn change(&mut self, child: Child, level: Option<u8>) -> Result<NodeId, TreeError> {
        match child {
            Child::Changed(id) => Ok(id),
            Child::Clean(pointer) => {
                let page = self.load(pointer).await?;
                check_level(&page, pointer, level)?;
                self.replaced.push(pointer);
                Ok(self.nodes.add(Node::from_page(&page)))
            }
        }
    }

    /// Makes the way to `key` changed pages. An error leaves the tree whole: what was made changed so far
    /// holds what it held.
    pub(super) async fn change_path(&mut self, key: &[u8]) -> Result<Path, TreeError> {
        let mut id = self.change(self.root, None).await?;
        self.root = Child::Changed(id);
        let mut inner = Vec::new();
        loop {
            let node = self.nodes.get(id);
            if node.level == 0 {
                return Ok(Path { inner, leaf: id });
            }
            let level = node.level;
            let index = node.child_index(key);
            let child = self.change(node.child(index), Some(level)).await?;
            self.nodes.get_mut(id).cells[index].1 = Content::Child(Child::Changed(child));
            inner.push((id, index));
            id = child;
        }
    }

    /// Sets the value of `key`; says whether it was new.
    pub(crate) async fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<bool, TreeError> {
        let path = self.change_path(&key).await?;
        let leaf = self.nodes.get_mut(path.leaf);
        let new = match leaf.search(&key) {
            Ok(index) => {
                leaf.cells[index].1 = Content::Value(value);
                false
            }
            Err(index) => {
                leaf.cells.insert(index, (key, Content::Value(value)));
                leaf.last_insert = note_insert(leaf.last_insert, index);
                true
            }
        };
        self.split_upwards(path);
        Ok(new)
    }

    /// Splits from the leaf upwards whatever is too large.
    fn split_upwards(&mut self, path: Path) {
        let mut id = path.leaf;
        let mut inner = path.inner;
        loop {
            let node = self.nodes.get_mut(id);
            if !node.is_too_large() {
                return;
            }
            // The page fitted before one cell came or grew, so there is a place where both parts fit ([`split`]).
            let (separator, right) = split(node);
            let too_large = right.is_too_large() || node.is_too_large();
            let level = node.level;
            let right = self.nodes.add(right);
            let (parent, index) = match inner.pop() {
                Some(step) => step,
                None => (self.grow_root(id, level), 0),
            };
            if index == 0 {
                self.lower_first(parent, id, &separator);
            }
            let node = self.nodes.get_mut(parent);
            node.cells
                .insert(index + 1, (separator, Content::Child(Child::Changed(right))));
            node.last_insert = note_insert(node.last_insert, index + 1);
            assert!(
                !too_large,
                "a part of a page of level {level} is larger than a page"
            );
            id = parent;
        }
    }

    /// The first child of a page also has keys below its own one there: it may stand where another was, all of whose cells were removed. When it
    /// is split below that key, the key must be one below the separator, with no more bytes than that has.
    fn lower_first(&mut self, parent: NodeId, first: NodeId, separator: &[u8]) {
        if self.nodes.get(parent).cells[0].0[..] < *separator {
            return;
        }
        // What its first key begins with is not above that, which is below the separator.
        let first = &self.nodes.get(first).cells[0].0;
        let lower = first[..first.len().min(separator.len())].to_vec();
        self.nodes.get_mut(parent).cells[0].0 = lower;
    }

    fn grow_root(&mut self, old: NodeId, level: u8) -> NodeId {
        let cells = vec![(Vec::new(), Content::Child(Child::Changed(old)))];
        let root = self.nodes.add(Node {
            level: level + 1,
            cells,
            last_insert: None,
        });
        self.root = Child::Changed(root);
        root
    }
}

/// Remembers an insertion only while each follows the one before.
fn note_insert(last: Option<usize>, index: usize) -> Option<usize> {
    match last {
        Some(last) if index != last + 1 => None,
        _ => Some(index),
    }
}

/// Splits a page where insertions go on in order, else in the middle of its bytes, or as near to it as both parts fit. Gives the
/// separator and the right part.
///
/// A page of the largest cells still holds seven, so halves fit if the keys of the page begin with the same bytes as before. A new
/// key that begins otherwise takes those bytes away from all others, and may make the half that it is in larger than the page was;
/// but it is the first or the last then, and all others fit without it. Where a first key was lowered ([`Tree::lower_first`]), the first two
/// are such, and fit into a page alone.
fn split(node: &mut Node) -> (Vec<u8>, Node) {
    let count = node.cells.len();
    let sequential = node.last_insert.filter(|&index| index > 0);
    if let Some(index) = sequential {
        // Keys behind move away if that makes room enough; else what comes next follows the new cell there.
        for at in [index + 1, index] {
            if at < count && fits(node, at) {
                let follows = (at == index).then_some(0);
                return cut(node, at, follows);
            }
        }
    }
    let at = middle(node);
    let near = |at: &usize| fits(node, *at);
    let at = (0..count)
        .flat_map(|away| [at.checked_sub(away), at.checked_add(away)])
        .flatten()
        .filter(|at| (1..count).contains(at))
        .find(near)
        .unwrap_or(at);
    cut(node, at, None)
}

/// Whether both parts of a page that is split at `at` fit into pages.
fn fits(node: &Node, at: usize) -> bool {
    let part = |cells: &[(Vec<u8>, Content)]| node::encoded_bytes(cells) <= PAGE_BYTES;
    part(&node.cells[..at]) && part(&node.cells[at..])
}

fn cut(node: &mut Node, at: usize, last_insert: Option<usize>) -> (Vec<u8>, Node) {
    let (left, right) = (&node.cells[at - 1].0, &node.cells[at].0);
    // Of leaves, the shortest bytes that tell the two apart; above them a key is a separator already.
    let length = match node.level {
        0 => (common_prefix(left, right) + 1).min(right.len()),
        _ => right.len(),
    };
    let separator = right[..length].to_vec();
    let cells = node.cells.split_off(at);
    if last_insert.is_some() {
        node.last_insert = None;
    }
    let right = Node {
        level: node.level,
        cells,
        last_insert,
    };
    (separator, right)
}

/// The cell that begins the second half of the bytes.
fn middle(node: &Node) -> usize {
    let size = |(key, content): &(Vec<u8>, Content)| match content {
        Content::Value(value) => key.len() + value.len(),
        Content::Child(_) => key.len() + 16,
    };
    let total: usize = node.cells.iter().map(size).sum();
    let mut sum = 0;
    let position = node.cells.iter().position(|cell| {
        sum += size(cell);
        sum * 2 >= total
    });
    position.unwrap_or(0).clamp(1, node.cells.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf so full of names with a common beginning that one more would not fit.
    fn full(prefix: usize, value: usize) -> Node {
        let name = |number: usize| {
            let mut name = vec![b'm'; prefix];
            name.extend_from_slice(format!("{number:05}").as_bytes());
            (name, Content::Value(vec![7; value]))
        };
        let mut node = Node {
            level: 0,
            cells: Vec::new(),
            last_insert: None,
        };
        for number in 0.. {
            node.cells.push(name(number));
            if node.is_too_large() {
                node.cells.pop();
                return node;
            }
        }
        node
    }

    #[test]
    fn a_name_unlike_all_others_is_split_off() {
        let mut too_large = 0;
        for prefix in [0, 1, 24, 60, 100, 180, 240] {
            for value in [9, 55, 150] {
                for odd in [&b"zz"[..], b"a"] {
                    for taken in 0..4 {
                        let mut node = full(prefix, value);
                        node.cells.truncate(node.cells.len() - taken);
                        let at = if odd == b"zz" { node.cells.len() } else { 0 };
                        node.cells
                            .insert(at, (odd.to_vec(), Content::Value(vec![7; value])));
                        if !node.is_too_large() {
                            continue;
                        }
                        too_large += 1;
                        let keys: Vec<_> = node.cells.iter().map(|(key, _)| key.clone()).collect();
                        let (separator, right) = split(&mut node);
                        assert!(
                            !node.is_too_large() && !right.is_too_large(),
                            "{prefix} {value} {taken}"
                        );
                        let (left, right) = (&node.cells, &right.cells);
                        assert!(left.last().unwrap().0 < separator && separator <= right[0].0);
                        let both: Vec<_> = left.iter().chain(right).map(|(key, _)| key.clone()).collect();
                        assert_eq!(both, keys);
                    }
                }
            }
        }
        assert!(too_large > 100, "{too_large}");
    }
}
