//! Changed pages, decoded.

use crate::format::page::{self, Page};
use crate::format::{PAGE_BYTES, PagePointer};

/// A changed page's place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(usize);

/// What an inner page points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// A page on the volume.
    Clean(PagePointer),
    /// A page that changed since the last commit.
    Changed(NodeId),
}

/// A cell's content.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Of a leaf.
    Value(Vec<u8>),
    /// Of an inner page.
    Child(Child),
}

/// Bytes that are set aside for a pointer whose fields are not known yet: two numbers and a checksum.
const POINTER_BYTES_MAX: usize = 10 + 10 + 4;

impl Content {
    fn length(&self) -> usize {
        match self {
            Content::Value(value) => value.len(),
            Content::Child(_) => POINTER_BYTES_MAX,
        }
    }
}

/// A changed page.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) level: u8,
    pub(crate) cells: Vec<(Vec<u8>, Content)>,
    /// Where the last cell was inserted, to notice insertions in order.
    pub(crate) last_insert: Option<usize>,
}

impl Node {
    pub(crate) fn empty_leaf() -> Self {
        Self {
            level: 0,
            cells: Vec::new(),
            last_insert: None,
        }
    }

    pub(crate) fn from_page(page: &Page) -> Self {
        let cell = |index| {
            let content = match page.level() {
                0 => Content::Value(page.value(index).to_vec()),
                _ => Content::Child(Child::Clean(page.child(index))),
            };
            (page.key(index), content)
        };
        Self {
            level: page.level(),
            cells: (0..page.len()).map(cell).collect(),
            last_insert: None,
        }
    }

    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.cells.binary_search_by(|(own, _)| own[..].cmp(key))
    }

    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    pub(crate) fn child(&self, index: usize) -> Child {
        match &self.cells[index].1 {
            Content::Child(child) => *child,
            Content::Value(_) => unreachable!("children are asked of inner pages only"),
        }
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        match &self.cells[index].1 {
            Content::Value(value) => value,
            Content::Child(_) => unreachable!("values are asked of leaves only"),
        }
    }

    /// Bytes the page takes at most.
    pub(crate) fn encoded_bytes(&self) -> usize {
        encoded_bytes(&self.cells)
    }

    pub(crate) fn is_too_large(&self) -> bool {
        self.encoded_bytes() > PAGE_BYTES
    }

    /// The bytes that all keys begin with.
    pub(crate) fn prefix(&self) -> &[u8] {
        match (self.cells.first(), self.cells.last()) {
            (Some((first, _)), Some((last, _))) => &first[..page::common_prefix(first, last)],
            _ => &[],
        }
    }
}

/// Bytes that a page of these cells takes at most.
pub(super) fn encoded_bytes(cells: &[(Vec<u8>, Content)]) -> usize {
    let cells = cells.iter();
    page::encoded_bytes(cells.map(|(key, content)| (&key[..], content.length())))
}

/// All changed pages of a tree.
#[derive(Default)]
pub(crate) struct Arena {
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
}

impl Arena {
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(index) => {
                self.nodes[index] = Some(node);
                NodeId(index)
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() - 1)
            }
        }
    }

    pub(crate) fn remove(&mut self, id: NodeId) -> Node {
        self.vacant.push(id.0);
        self.nodes[id.0].take().expect("a node is removed once")
    }

    pub(crate) fn get(&self, id: NodeId) -> &Node {
        self.nodes[id.0]
            .as_ref()
            .expect("pointers to nodes end with them")
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0]
            .as_mut()
            .expect("pointers to nodes end with them")
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(index, node)| Some((NodeId(index), node.as_ref()?)))
    }

    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.vacant.clear();
    }
}
