//! Bytes that are brought into the cache before somebody copies them.
//!
//! A core has some dozens of lines on their way at once at most, and waits when it asks for one more. So what was announced is not
//! asked for in one go: each time the device hears of a command or is given one, it asks for a few lines, and they come while
//! commands are taken apart and answers put together (docs/benchmarks.md).

use std::cell::Cell;

/// Lines of one announcement that are asked for: most of a page of 4 KiB. The processor asks for what follows by itself.
const LINES: usize = 48;
/// Lines that are asked for at a time.
const STEP: usize = 24;
/// Ranges that may wait; what is announced beyond is not fetched ahead.
const WAITING_MAX: usize = 8;

/// A range that was announced and is not asked for yet, as the offset of its next line and how many lines are left.
#[derive(Clone, Copy, Default)]
struct Range {
    offset: usize,
    lines: usize,
}

/// What was announced to one channel, in order.
#[derive(Default)]
pub(super) struct Ahead {
    waiting: [Cell<Range>; WAITING_MAX],
    first: Cell<usize>,
    count: Cell<usize>,
}

impl Ahead {
    /// How many lines of each of so many pages that are read together are worth asking for. Once it has seen some lines of a page
    /// go by, the processor fetches the rest by itself, so a long read needs the first ones of each page only.
    pub(super) fn lines_of_each(pages: usize) -> usize {
        (LINES / pages.max(1)).max(1)
    }

    /// Takes note of a range; forgets it if too many wait.
    pub(super) fn announce(&self, offset: usize, lines: usize) {
        let count = self.count.get();
        if count < WAITING_MAX && lines > 0 {
            self.waiting[(self.first.get() + count) % WAITING_MAX].set(Range { offset, lines });
            self.count.set(count + 1);
        }
    }

    /// Asks for the next lines, with the offset of each and how many there are from there.
    pub(super) fn step(&self, mut ask: impl FnMut(usize, usize)) {
        let mut left = STEP;
        while left > 0 && self.count.get() > 0 {
            let first = self.first.get();
            let Range { offset, lines } = self.waiting[first].get();
            let now = lines.min(left);
            ask(offset, now);
            left -= now;
            if now == lines {
                self.first.set((first + 1) % WAITING_MAX);
                self.count.set(self.count.get() - 1);
            } else {
                self.waiting[first].set(Range {
                    offset: offset + now * super::map::LINE_BYTES,
                    lines: lines - now,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::map::LINE_BYTES;

    fn step(ahead: &Ahead) -> Vec<(usize, usize)> {
        let mut asked = Vec::new();
        ahead.step(|offset, lines| asked.push((offset, lines)));
        asked
    }

    #[test]
    fn what_was_announced_is_asked_for_in_order_a_few_lines_at_a_time() {
        let ahead = Ahead::default();
        assert_eq!(step(&ahead), []);
        ahead.announce(0, STEP + 4);
        ahead.announce(8192, STEP);
        assert_eq!(step(&ahead), [(0, STEP)]);
        assert_eq!(step(&ahead), [(STEP * LINE_BYTES, 4), (8192, STEP - 4)]);
        assert_eq!(step(&ahead), [(8192 + (STEP - 4) * LINE_BYTES, 4)]);
        assert_eq!(step(&ahead), []);
    }

    #[test]
    fn what_is_too_much_is_forgotten_and_the_rest_is_not() {
        let ahead = Ahead::default();
        for index in 0..WAITING_MAX + 3 {
            ahead.announce(index * 4096, STEP);
        }
        for index in 0..WAITING_MAX {
            assert_eq!(step(&ahead), [(index * 4096, STEP)]);
        }
        assert_eq!(step(&ahead), []);
        ahead.announce(7, 1);
        assert_eq!(step(&ahead), [(7, 1)]);
    }
}
