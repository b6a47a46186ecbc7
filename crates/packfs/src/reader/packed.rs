//! Where the bytes of small files lie, by path: what a lookup found, so that the next read of the same file asks the index no more.
//!
//! A descent touches some twenty places in memory that no processor's cache has, one after another: with the whole index in memory it is the
//! larger part of what a small file costs beyond its bytes. Here it is one. What is kept is a file's only extent, under a hash of its path of 64
//! bits with a random key. Paths are not compared: that one path passes for another has a chance of 5 in 2^64 for each lookup, which nobody who
//! names files can improve without the key. (An extent's checksum has 32 bits.) A snapshot never changes, so nothing here is ever wrong.
//!
//! Five files share two neighbouring lines of the processor's cache; a sixth takes the place of one of them.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;

use crate::format::extent::Extent;

/// Files of a line.
const WAYS: usize = 5;
/// Lines of a table that has just been made.
const LINES_MIN: usize = 16;

/// A file of one extent; free without a hash.
#[derive(Clone, Copy, Default)]
struct File {
    path: Option<NonZeroU64>,
    address: u64,
    length: u32,
    checksum: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(align(128))]
struct Line([File; WAYS]);

/// See the module. Belongs to one snapshot.
pub(super) struct PackedFiles {
    /// Their number is a power of two, or 0.
    lines: RefCell<Vec<Line>>,
    lines_max: usize,
    taken: Cell<usize>,
    /// Which of a full line goes next.
    hand: Cell<usize>,
    hasher: RandomState,
}

impl PackedFiles {
    /// None yet, and never more than `limit_bytes` of them.
    pub(super) fn new(limit_bytes: usize) -> Self {
        let lines = limit_bytes / size_of::<Line>();
        Self {
            lines: RefCell::default(),
            // The greatest power of two within the bound.
            lines_max: (lines + 1).next_power_of_two() / 2,
            taken: Cell::new(0),
            hand: Cell::new(0),
            hasher: RandomState::new(),
        }
    }

    /// Memory they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.borrow().capacity() * size_of::<Line>()
    }

    /// The only extent of the file, if it is known here.
    pub(super) fn find(&self, path: &[u8]) -> Option<Extent> {
        let lines = self.lines.borrow();
        let hash = self.hash(path);
        let line = lines.get(line_of(hash, lines.len()))?;
        let file = line.0.iter().find(|file| file.path == Some(hash))?;
        Some(Extent {
            address: file.address,
            length: file.length,
            checksum: file.checksum,
        })
    }

    /// Notes what a lookup has found.
    pub(super) fn insert(&self, path: &[u8], extent: &Extent) {
        let mut lines = self.lines.borrow_mut();
        // Beyond four fifths many a line is full.
        if self.taken.get() >= lines.len() * 4 && lines.len() < self.lines_max {
            self.grow(&mut lines);
        }
        let hash = self.hash(path);
        let at = line_of(hash, lines.len());
        if let Some(line) = lines.get_mut(at) {
            let Extent {
                address,
                length,
                checksum,
            } = *extent;
            let path = Some(hash);
            self.put(
                line,
                File {
                    path,
                    address,
                    length,
                    checksum,
                },
            );
        }
    }

    fn put(&self, line: &mut Line, file: File) {
        let same = line.0.iter().position(|old| old.path == file.path);
        let free = || line.0.iter().position(|old| old.path.is_none());
        let at = same.or_else(free).unwrap_or_else(|| {
            self.hand.set((self.hand.get() + 1) % WAYS);
            self.hand.get()
        });
        self.taken
            .set(self.taken.get() + usize::from(line.0[at].path.is_none()));
        line.0[at] = file;
    }

    fn grow(&self, lines: &mut Vec<Line>) {
        let count = (lines.len() * 2).max(LINES_MIN).min(self.lines_max);
        let old = std::mem::replace(lines, vec![Line::default(); count]);
        self.taken.set(0);
        for file in old.iter().flat_map(|line| line.0) {
            if let Some(hash) = file.path {
                self.put(&mut lines[line_of(hash, count)], file);
            }
        }
    }

    fn hash(&self, path: &[u8]) -> NonZeroU64 {
        NonZeroU64::new(self.hasher.hash_one(path)).unwrap_or(NonZeroU64::MIN)
    }
}

fn line_of(hash: NonZeroU64, lines: usize) -> usize {
    hash.get() as usize & lines.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_as_it_was_put_or_not_at_all_and_the_bound_is_strict() {
        for limit in [0, 127, 128, 5_000, 1 << 20] {
            let files = PackedFiles::new(limit);
            let path = |number: u32| format!("{}/{number}", number / 100).into_bytes();
            let extent = |number: u32| Extent {
                address: u64::from(number) * 4096,
                length: number,
                checksum: !number,
            };
            assert_eq!(files.find(b""), None);
            // Twice: what had to go while the table was small is put there again.
            for number in (0..5_000).chain(0..5_000) {
                match files.find(&path(number)) {
                    Some(found) => assert_eq!(found, extent(number)),
                    None => files.insert(&path(number), &extent(number)),
                }
                assert!(files.bytes() <= limit, "{} of {limit}", files.bytes());
            }
            let found = (0..5_000)
                .filter(|number| files.find(&path(*number)).is_some())
                .count();
            assert!(found <= limit / 128 * WAYS, "{found} of {limit}");
            // Just before it grows one file in eleven finds its line full.
            assert!(found > 4_400 || limit < 1 << 20, "only {found} of {limit}");
            assert_eq!(files.find(b"0/5000"), None);
        }
    }
}
