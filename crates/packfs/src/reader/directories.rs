//! Directories that were walked through, so that a file's path costs one lookup and not one for each name.
//!
//! A snapshot never changes, so nothing here is ever wrong. When the bound is reached, everything goes.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::format::key::InodeNumber;

/// What a map takes for each element besides the name, in bytes; more than half of its room may be empty.
const OVERHEAD_BYTES: usize = 96;

/// A name in a directory, owned or not: so a lookup need not own one.
trait Place {
    fn parts(&self) -> (InodeNumber, &[u8]);
}

impl Place for (InodeNumber, Box<[u8]>) {
    fn parts(&self) -> (InodeNumber, &[u8]) {
        (self.0, &self.1)
    }
}

impl Place for (InodeNumber, &[u8]) {
    fn parts(&self) -> (InodeNumber, &[u8]) {
        *self
    }
}

impl Hash for dyn Place + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Place + '_ {}

impl<'a> Borrow<dyn Place + 'a> for (InodeNumber, Box<[u8]>) {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}

/// Directories by their parent and name.
type Known = HashMap<(InodeNumber, Box<[u8]>), InodeNumber>;

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
        let place: &dyn Place = &(parent, name);
        self.known.borrow().get(place).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_its_directory_only_and_the_bound_is_strict() {
        let known = Directories::new(1000);
        known.insert(InodeNumber(1), b"a", InodeNumber(2));
        known.insert(InodeNumber(2), b"a", InodeNumber(3));
        assert_eq!(known.get(InodeNumber(1), b"a"), Some(InodeNumber(2)));
        assert_eq!(known.get(InodeNumber(2), b"a"), Some(InodeNumber(3)));
        assert_eq!(known.get(InodeNumber(3), b"a"), None);
        assert_eq!(known.get(InodeNumber(1), b"ab"), None);
        for number in 0..100 {
            known.insert(
                InodeNumber(9),
                format!("{number}").as_bytes(),
                InodeNumber(number),
            );
            assert!(known.bytes() <= 1000);
            assert_eq!(
                known.get(InodeNumber(9), format!("{number}").as_bytes()),
                Some(InodeNumber(number))
            );
        }
    }
}
