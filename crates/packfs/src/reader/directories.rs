//! Directories that were walked through, so that a file's path costs one lookup and not one for each name.
//!
//! A snapshot never changes, so nothing here is ever wrong. When the bound is reached, everything goes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::format::key::InodeNumber;

/// What a map takes for each element besides the name, in bytes.
const OVERHEAD_BYTES: usize = 64;

/// Directories by their parent and name.
type Known = BTreeMap<(InodeNumber, Box<[u8]>), InodeNumber>;

pub(super) struct Directories {
    known: RefCell<Known>,
    bytes: Cell<usize>,
    limit_bytes: usize,
}

impl Directories {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            known: RefCell::default(),
            bytes: Cell::new(0),
            limit_bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(super) fn get(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        // A key to look up with owns its name; names of directories are short.
        self.known.borrow().get(&(parent, name.into())).copied()
    }

    pub(super) fn insert(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        let cost = name.len() + OVERHEAD_BYTES;
        let mut known = self.known.borrow_mut();
        if self.bytes.get() + cost > self.limit_bytes {
            known.clear();
            self.bytes.set(0);
        }
        if cost <= self.limit_bytes && known.insert((parent, name.into()), inode).is_none() {
            self.bytes.set(self.bytes.get() + cost);
        }
    }
}
