//! Going through keys in order.

use std::rc::Rc;

use super::node::Child;
use super::{Tree, check_level};
use crate::error::TreeError;
use crate::format::PagePointer;
use crate::format::page::Page;

/// A page on the way down, changed or not.
enum Step {
    Page(Rc<Page>),
    Node(super::NodeId),
}

/// How a tree's leaves were gone through lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    parent: u64,
    index: usize,
    /// Leaves in a row that followed each other.
    streak: usize,
    /// Leaves of the parent before this one were asked for already.
    asked_until: usize,
}

/// Leaves that must follow each other before any is read ahead: a small directory has no more.
const STREAK_MIN: usize = 2;
/// Leaves that are read ahead at most.
const AHEAD_MAX: usize = 64;

impl Way {
    /// The way after another leaf; `None` if it is the same leaf still.
    fn next(self, parent: u64, index: usize) -> Option<Self> {
        let same_parent = parent == self.parent;
        if same_parent && index == self.index {
            return None;
        }
        // The first of another parent follows the last one: what is left to find out is seen at the next leaf.
        let follows = if same_parent {
            index == self.index + 1
        } else {
            index == 0
        };
        Some(Self {
            parent,
            index,
            streak: if follows { self.streak + 1 } else { 0 },
            asked_until: if same_parent && follows {
                self.asked_until
            } else {
                0
            },
        })
    }

    /// How many leaves to have on their way.
    fn ahead(self) -> usize {
        match self.streak {
            ..STREAK_MIN => 0,
            streak => (streak * 4).min(AHEAD_MAX),
        }
    }
}

/// A batch of cells in key order, and where the next begins.
pub(crate) struct Batch {
    /// Keys and values.
    pub(crate) cells: Vec<(Vec<u8>, Vec<u8>)>,
    /// The smallest key that later cells may have; `None` after the last.
    pub(crate) next: Option<Vec<u8>>,
}

/// The same for those cells alone whose keys begin with a prefix.
pub(crate) struct Part {
    /// Keys and values.
    pub(crate) cells: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the next ones begin; `None` after the last.
    pub(crate) next: Option<Vec<u8>>,
}

impl Tree {
    /// Cells whose keys begin with `prefix`, some at a time; `from` is the prefix at first, and `next` of the part before then.
    pub(crate) async fn part(&self, prefix: &[u8], from: &[u8]) -> Result<Part, TreeError> {
        let Batch { mut cells, next } = self.batch(from).await?;
        let found = cells.len();
        cells.retain(|(key, _)| key.starts_with(prefix));
        let goes_on = |next: &Vec<u8>| next[..] <= *prefix || next.starts_with(prefix);
        let next = next.filter(|next| cells.len() == found && goes_on(next));
        Ok(Part { cells, next })
    }

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
                    if let (1, Child::Clean(pointer)) = (page.level(), child) {
                        self.notice(pointer, &page, index);
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

    /// Notices whether leaves are gone through in their order, and has those that follow read ahead then: the longer it goes
    /// on, the more of them. Only those of the same parent, whose addresses are known without reading.
    fn notice(&self, parent: PagePointer, page: &Page, index: usize) {
        let Some(way) = self.way.get().next(parent.page, index) else {
            return;
        };
        self.way.set(way);
        let ahead = way.ahead();
        // Half of it is used up before it is filled again, so that reads stay long.
        if way.asked_until < index + 1 + ahead / 2 {
            let first = way.asked_until.max(index + 1);
            let last = (index + 1 + ahead).min(page.len());
            if first < last {
                let pointers = (first..last).map(|index| page.child(index));
                self.cache.read_ahead(&self.medium, pointers);
                self.way.set(Way {
                    asked_until: last,
                    ..way
                });
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

#[cfg(test)]
mod tests {
    use super::Way;

    #[test]
    fn leaves_in_order_are_noticed_and_others_are_not() {
        let mut way = Way::default();
        let mut ahead = Vec::new();
        for index in 1..40 {
            way = way.next(7, index).unwrap();
            assert_eq!(way.next(7, index), None, "the same leaf again says nothing");
            ahead.push(way.ahead());
        }
        assert_eq!(ahead[..3], [0, 0, 8], "it begins carefully");
        assert_eq!(ahead[38], super::AHEAD_MAX);
        let next = way.next(8, 0).unwrap();
        assert_eq!(next.ahead(), super::AHEAD_MAX, "it goes on in the next parent");
        assert_eq!(way.next(8, 3).unwrap().ahead(), 0);
        assert_eq!(way.next(7, 12).unwrap().ahead(), 0);
        let mut shuffled = Way::default();
        for index in [5, 90, 3, 4, 70, 11] {
            shuffled = shuffled.next(7, index).unwrap();
            assert_eq!(shuffled.ahead(), 0, "at {index}");
        }
    }
}
