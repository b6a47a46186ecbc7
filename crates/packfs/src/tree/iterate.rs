//! Going through keys in order.

use std::rc::Rc;

use super::node::Child;
use super::{Tree, check_level};
use crate::error::TreeError;
use crate::format::page::Page;

/// A page on the way down, changed or not.
enum Step {
    Page(Rc<Page>),
    Node(super::NodeId),
}

/// A batch of cells in key order, and where the next begins.
pub(crate) struct Batch {
    /// Keys and values.
    pub(crate) cells: Vec<(Vec<u8>, Vec<u8>)>,
    /// The smallest key that later cells may have; `None` after the last.
    pub(crate) next: Option<Vec<u8>>,
}

impl Tree {
    /// The cells of the leaf in which `from` stands or would stand, from there on.
    pub(crate) async fn batch(&self, from: &[u8]) -> Result<Batch, TreeError> {
        let mut child = self.root;
        let mut level = None;
        // The separator to the right of the way taken, lowest level last: where the next leaf begins.
        let mut next: Option<Vec<u8>> = None;
        loop {
            let step = self.step(child, level).await?;
            match step {
                Step::Page(page) if page.level() == 0 => {
                    let first = page.search(from).unwrap_or_else(|index| index);
                    let cells = (first..page.len()).map(|i| (page.key(i), page.value(i).to_vec()));
                    let cells = cells.collect();
                    return Ok(Batch { cells, next });
                }
                Step::Page(page) => {
                    let index = page.child_index(from);
                    if index + 1 < page.len() {
                        next = Some(page.key(index + 1));
                    }
                    level = Some(page.level());
                    child = Child::Clean(page.child(index));
                }
                Step::Node(id) => {
                    let node = self.nodes.get(id);
                    if node.level == 0 {
                        let first = node.search(from).unwrap_or_else(|index| index);
                        let cells = (first..node.cells.len())
                            .map(|i| (node.cells[i].0.clone(), node.value(i).to_vec()));
                        let cells = cells.collect();
                        return Ok(Batch { cells, next });
                    }
                    let index = node.child_index(from);
                    if index + 1 < node.cells.len() {
                        next = Some(node.cells[index + 1].0.clone());
                    }
                    level = Some(node.level);
                    child = node.child(index);
                }
            }
        }
    }

    async fn step(&self, child: Child, level: Option<u8>) -> Result<Step, TreeError> {
        match child {
            Child::Changed(id) => Ok(Step::Node(id)),
            Child::Clean(pointer) => {
                let page = self.load(pointer).await?;
                check_level(&page, pointer, level)?;
                Ok(Step::Page(page))
            }
        }
    }

    /// The first cell at or after `from` whose key begins with `prefix`.
    pub(crate) async fn first_with_prefix(
        &self,
        from: &[u8],
        prefix: &[u8],
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, TreeError> {
        let mut from = from.to_vec();
        loop {
            let batch = self.batch(&from).await?;
            if let Some((key, value)) = batch.cells.into_iter().next() {
                return Ok(key.starts_with(prefix).then_some((key, value)));
            }
            match batch.next {
                Some(next) if next.starts_with(prefix) || next[..] < *prefix => from = next,
                _ => return Ok(None),
            }
        }
    }

    /// The last cell at or before `key` that begins with `prefix`. Reads the leaf of `key`, and the one before
    /// only if the wanted cell is there.
    pub(crate) async fn last_at_or_before(
        &self,
        key: &[u8],
        prefix: &[u8],
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, TreeError> {
        let mut bound = key.to_vec();
        let mut inclusive = true;
        loop {
            let (found, left) = self.last_in_leaf(&bound, inclusive).await?;
            if let Some((key, value)) = found {
                return Ok(key.starts_with(prefix).then_some((key, value)));
            }
            match left {
                Some(left) if left[..] >= *prefix => (bound, inclusive) = (left, false),
                _ => return Ok(None),
            }
        }
    }

    /// The last cell of the leaf that ends at `bound`, and where that leaf begins.
    async fn last_in_leaf(&self, bound: &[u8], inclusive: bool) -> Result<LastInLeaf, TreeError> {
        let mut child = self.root;
        let mut level = None;
        let mut left: Option<Vec<u8>> = None;
        let before = |found: Result<usize, usize>| match found {
            Ok(index) if inclusive => Some(index),
            Ok(index) | Err(index) => index.checked_sub(1),
        };
        loop {
            match self.step(child, level).await? {
                Step::Page(page) if page.level() == 0 => {
                    let index = before(page.search(bound));
                    let found = index.map(|i| (page.key(i), page.value(i).to_vec()));
                    return Ok((found, left));
                }
                Step::Page(page) => {
                    let index = before(page.search(bound)).unwrap_or(0);
                    if index > 0 {
                        left = Some(page.key(index));
                    }
                    level = Some(page.level());
                    child = Child::Clean(page.child(index));
                }
                Step::Node(id) => {
                    let node = self.nodes.get(id);
                    if node.level == 0 {
                        let index = before(node.search(bound));
                        let found = index.map(|i| (node.cells[i].0.clone(), node.value(i).to_vec()));
                        return Ok((found, left));
                    }
                    let index = before(node.search(bound)).unwrap_or(0);
                    if index > 0 {
                        left = Some(node.cells[index].0.clone());
                    }
                    level = Some(node.level);
                    child = node.child(index);
                }
            }
        }
    }
}

type LastInLeaf = (Option<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>);
