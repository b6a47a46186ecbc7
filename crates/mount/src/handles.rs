//! What is open of a volume that somebody else writes, and the commit each open file is read at (`docs/decisions/0117`).
//!
//! The kernel keeps one length and one set of cached pages for each of its nodes, whoever has it open. So a node whose file
//! is open stands for one content: once a commit changes the file, the node is pinned to the commit before, and names lead
//! to another node from then on. A node's number is the inode's own wherever no pin is in the way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use foundation::Instant;
use packfs::{Inode, InodeNumber, Reader};

use crate::source::{Snapshot, Source};

/// Numbers of nodes that are no inode's own begin here; inodes, numbered one after the other, do not come so far.
const FIRST_OTHER: u64 = 1 << 63;

/// Of an open file whose content has changed.
enum Pin {
    /// It is read here, for a while after that instant.
    Held(Rc<Source>, Instant),
    /// It cannot be read any more.
    Gone,
}

struct Opened {
    /// As it was when last seen unchanged.
    inode: Rc<Inode>,
    /// How often it is open.
    opens: u64,
    pin: Option<Pin>,
}

impl Opened {
    fn has_expired(&self, age: Duration, now: Instant) -> bool {
        matches!(self.pin, Some(Pin::Held(_, since)) if since + age <= now)
    }
}

/// A node that is no inode's own.
struct Other {
    inode: InodeNumber,
    /// How often the kernel was told of it and has not forgotten it since.
    lookups: u64,
}

/// Where a node is read.
pub(crate) enum At {
    Newest(InodeNumber),
    Pinned(Rc<Source>, InodeNumber),
    Gone,
}

/// What became of open files in a newer commit: the inode there, if it has it.
pub(crate) type Seen = BTreeMap<InodeNumber, Option<Inode>>;

/// What is open of a volume that somebody else writes. The kernel bounds all of it: by the files that programs may have open, and `others` by what
/// it remembers of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandleStatistics {
    /// Nodes that are open.
    pub(crate) open: usize,
    /// Those that are read at an earlier commit.
    pub(crate) pinned: usize,
    /// Those that cannot be read any more.
    pub(crate) stale: usize,
    /// Commits that are kept for the pinned ones.
    pub(crate) commits: usize,
    /// Nodes that are no inode's own.
    pub(crate) others: usize,
}

/// See the module. Everything is by the kernel's number of a node.
#[derive(Default)]
pub(crate) struct Handles {
    opened: RefCell<BTreeMap<InodeNumber, Opened>>,
    others: RefCell<BTreeMap<InodeNumber, Other>>,
    made: Cell<u64>,
}

impl Handles {
    fn inode_of(&self, node: InodeNumber) -> InodeNumber {
        if node.0 < FIRST_OTHER {
            return node;
        }
        self.others.borrow().get(&node).map_or(node, |other| other.inode)
    }

    fn is_pinned(&self, node: InodeNumber) -> bool {
        let opened = self.opened.borrow();
        opened.get(&node).is_some_and(|opened| opened.pin.is_some())
    }

    /// Where a node is read; right for as long as no commit takes another's place.
    pub(crate) fn at(&self, node: InodeNumber) -> At {
        match self.opened.borrow().get(&node).map(|opened| &opened.pin) {
            Some(Some(Pin::Held(source, _))) => At::Pinned(source.clone(), self.inode_of(node)),
            Some(Some(Pin::Gone)) => At::Gone,
            Some(None) | None => At::Newest(self.inode_of(node)),
        }
    }

    /// The node that names of an inode lead to. The kernel is told of it, and forgets it some day.
    pub(crate) fn named(&self, inode: InodeNumber) -> InodeNumber {
        if !self.is_pinned(inode) {
            return inode;
        }
        let mut others = self.others.borrow_mut();
        let free =
            |(node, other): &(&InodeNumber, &mut Other)| other.inode == inode && !self.is_pinned(**node);
        if let Some((node, other)) = others.iter_mut().find(free) {
            other.lookups += 1;
            return *node;
        }
        let node = InodeNumber(FIRST_OTHER + self.made.get());
        self.made.set(self.made.get() + 1);
        others.insert(node, Other { inode, lookups: 1 });
        node
    }

    /// The kernel has forgotten that it was told of a node, so many times.
    pub(crate) fn forget(&self, node: InodeNumber, times: u64) {
        let mut others = self.others.borrow_mut();
        if let Some(other) = others.get_mut(&node) {
            other.lookups = other.lookups.saturating_sub(times);
            if other.lookups == 0 {
                others.remove(&node);
            }
        }
    }

    /// A node that is not pinned is opened, and is this inode of the commit that is read.
    pub(crate) fn open(&self, node: InodeNumber, inode: &Inode) {
        let mut opened = self.opened.borrow_mut();
        let opened = opened.entry(node).or_insert_with(|| Opened {
            inode: Rc::new(inode.clone()),
            opens: 0,
            pin: None,
        });
        opened.opens += 1;
    }

    /// A node is closed, once; whether a commit may be let go with it.
    pub(crate) fn release(&self, node: InodeNumber) -> bool {
        let mut all = self.opened.borrow_mut();
        let Some(opened) = all.get_mut(&node) else {
            return false;
        };
        opened.opens -= 1;
        if opened.opens > 0 {
            return false;
        }
        let closed = all.remove(&node);
        matches!(closed.and_then(|closed| closed.pin), Some(Pin::Held(..)))
    }

    /// What is open at the commit that is read, and is not among these: nodes and inodes.
    pub(crate) fn unseen(&self, seen: &Seen) -> Vec<(InodeNumber, InodeNumber)> {
        let opened = self.opened.borrow();
        let unseen = opened
            .iter()
            .filter(|(node, opened)| opened.pin.is_none() && !seen.contains_key(node));
        unseen
            .map(|(node, opened)| (*node, opened.inode.number))
            .collect()
    }

    /// A newer commit takes the place of the one that is read, of which `before` is left if it can still be read. All that is open was seen.
    pub(crate) fn follow(&self, mut seen: Seen, before: Option<Snapshot>, now: Instant) {
        let before = before.map(|snapshot| Rc::new(Source::Reading(Box::new(snapshot))));
        for (node, opened) in self.opened.borrow_mut().iter_mut() {
            match (&opened.pin, seen.remove(node).flatten()) {
                (None, Some(inode)) if inode.is_content_of(&opened.inode) => opened.inode = Rc::new(inode),
                (None, _) => {
                    let held = before.clone().map(|before| Pin::Held(before, now));
                    opened.pin = Some(held.unwrap_or(Pin::Gone));
                }
                // What kept these readable is gone as well.
                (Some(Pin::Held(..)), _) if before.is_none() => opened.pin = Some(Pin::Gone),
                (Some(_), _) => {}
            }
        }
    }

    /// Whether something is pinned for so long or longer.
    pub(crate) fn has_expired(&self, age: Duration, now: Instant) -> bool {
        let opened = self.opened.borrow();
        opened.values().any(|opened| opened.has_expired(age, now))
    }

    /// Gives up what is pinned for so long or longer.
    pub(crate) fn expire(&self, age: Duration, now: Instant) {
        for opened in self.opened.borrow_mut().values_mut() {
            if opened.has_expired(age, now) {
                opened.pin = Some(Pin::Gone);
            }
        }
    }

    /// What is open, and what it holds.
    pub(crate) fn statistics(&self) -> HandleStatistics {
        let opened = self.opened.borrow();
        let mut commits = BTreeSet::new();
        let mut found = HandleStatistics {
            open: opened.len(),
            others: self.others.borrow().len(),
            ..HandleStatistics::default()
        };
        for opened in opened.values() {
            match &opened.pin {
                Some(Pin::Held(source, _)) => {
                    found.pinned += 1;
                    commits.extend(source.reader().map(Reader::generation));
                }
                Some(Pin::Gone) => found.stale += 1,
                None => {}
            }
        }
        found.commits = commits.len();
        found
    }

    /// The reader of the oldest commit that something is pinned to.
    pub(crate) fn oldest(&self) -> Option<Reader> {
        let opened = self.opened.borrow();
        let readers = opened.values().filter_map(|opened| match &opened.pin {
            Some(Pin::Held(source, _)) => source.reader(),
            Some(Pin::Gone) | None => None,
        });
        readers.min_by_key(|reader| reader.generation()).cloned()
    }
}

#[cfg(test)]
mod tests;
