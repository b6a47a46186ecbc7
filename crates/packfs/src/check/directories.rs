//! Which directories there are, and whether the root leads to each. Pure.

use crate::format::key::InodeNumber;

/// A directory, and the one that it stands in.
#[derive(Clone, Copy)]
struct Standing {
    directory: u64,
    parent: u64,
}

/// Sixteen bytes for each directory, all the time.
#[derive(Default)]
pub(super) struct Directories {
    /// By number once there are all.
    standing: Vec<Standing>,
    /// Those whose inode stands under its own key: the root, and what has several names and should not.
    own: Vec<u64>,
    /// Whether entries stand in anything else.
    pub(super) has_strays: bool,
    /// Whether the root leads to it; of each that stands in one.
    reached: Vec<bool>,
}

/// As far as it is known whether the root leads to a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    OnTheWay,
    Yes,
    No,
}

impl Directories {
    /// A name says that something is a directory, and stands in one.
    pub(super) fn stands_in(&mut self, directory: InodeNumber, parent: InodeNumber) {
        self.standing.push(Standing {
            directory: directory.0,
            parent: parent.0,
        });
    }

    /// An inode under its own key is a directory.
    pub(super) fn own(&mut self, directory: InodeNumber) {
        self.own.push(directory.0);
    }

    /// There are no more. Says whether the root leads to all of them.
    pub(super) fn settle(&mut self) -> bool {
        // Stable, so that of several names the first stays.
        self.standing.sort_by_key(|standing| standing.directory);
        self.standing.dedup_by_key(|standing| standing.directory);
        self.standing.shrink_to_fit();
        self.own.sort_unstable();
        let mut reach = vec![Reach::Unknown; self.standing.len()];
        let mut way = Vec::new();
        for start in 0..reach.len() {
            let mut at = start;
            let found = loop {
                match reach[at] {
                    Reach::Unknown => {}
                    // Round in a circle.
                    Reach::OnTheWay => break Reach::No,
                    known => break known,
                }
                reach[at] = Reach::OnTheWay;
                way.push(at);
                let parent = self.standing[at].parent;
                if parent == InodeNumber::ROOT.0 {
                    break Reach::Yes;
                }
                match self.index(parent) {
                    Some(index) => at = index,
                    None => break Reach::No,
                }
            };
            for passed in way.drain(..) {
                reach[passed] = found;
            }
        }
        self.reached = reach.into_iter().map(|reach| reach == Reach::Yes).collect();
        self.reached.iter().all(|reached| *reached)
    }

    fn index(&self, directory: u64) -> Option<usize> {
        self.standing
            .binary_search_by_key(&directory, |standing| standing.directory)
            .ok()
    }

    /// Whether it is one.
    pub(super) fn has(&self, directory: InodeNumber) -> bool {
        self.index(directory.0).is_some() || self.own.binary_search(&directory.0).is_ok()
    }

    /// Whether the root leads to it.
    pub(super) fn is_reached(&self, directory: InodeNumber) -> bool {
        directory == InodeNumber::ROOT || self.index(directory.0).is_some_and(|index| self.reached[index])
    }

    /// The directory that it stands in.
    pub(super) fn parent(&self, directory: InodeNumber) -> Option<InodeNumber> {
        let standing = &self.standing[self.index(directory.0)?];
        Some(InodeNumber(standing.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(standing: &[(u64, u64)]) -> (Directories, bool) {
        let mut directories = Directories::default();
        directories.own(InodeNumber::ROOT);
        for (directory, parent) in standing {
            directories.stands_in(InodeNumber(*directory), InodeNumber(*parent));
        }
        let all = directories.settle();
        (directories, all)
    }

    #[test]
    fn what_the_root_leads_to_is_reached() {
        let (directories, all) = directories(&[(9, 4), (4, 1), (30, 9), (2, 30)]);
        assert!(all);
        for number in [1, 2, 4, 9, 30] {
            assert!(directories.has(InodeNumber(number)) && directories.is_reached(InodeNumber(number)));
        }
        assert!(!directories.has(InodeNumber(3)));
        assert_eq!(directories.parent(InodeNumber(2)), Some(InodeNumber(30)));
    }

    #[test]
    fn circles_and_what_hangs_on_them_or_on_nothing_are_not_reached() {
        let (directories, all) = directories(&[(5, 6), (6, 7), (7, 5), (8, 7), (10, 99), (11, 1), (12, 12)]);
        assert!(!all);
        for (number, reached) in [
            (5, false),
            (6, false),
            (7, false),
            (8, false),
            (10, false),
            (11, true),
            (12, false),
        ] {
            assert!(directories.has(InodeNumber(number)));
            assert_eq!(directories.is_reached(InodeNumber(number)), reached, "{number}");
        }
    }

    #[test]
    fn of_several_names_the_first_counts() {
        let (directories, _) = directories(&[(5, 1), (5, 99)]);
        assert!(directories.is_reached(InodeNumber(5)));
    }
}
