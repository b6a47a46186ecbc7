//! In which order samples are read, by place and without a list: shuffled as a whole, or by blocks that are mixed in windows.
//!
//! [`Permutation`] is a Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations", 1988) over the smallest even
//! number of bits that hold the bound; what falls outside is sent through again (cycle walking: Black and Rogaway, "Ciphers with
//! arbitrary finite domains", 2002), fewer than four times on average. So a shuffled order of a billion samples takes no memory and
//! resuming in its middle no time. Not for secrets.
//!
//! A disk gives few files of 16 KiB a second beside what it gives of long reads, whoever asks. [`Windows`] is for those who would rather
//! have more of them than the best order: samples that lie side by side (a block) stay together on their way from the disk, blocks come in
//! random order, and so many samples as a window has are given in random order among each other. It is what a loader of shuffled tars with a
//! buffer does (shards shuffled, then a buffer of samples), with blocks as small as the disk likes in the place of shards.

use std::ops::Range;

const ROUNDS: usize = 8;
/// Of the golden ratio; the step of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: the finalizer of SplitMix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The numbers below a length in an order chosen by a seed and an epoch.
#[derive(Clone, Debug)]
pub struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The longest there is.
    pub const LENGTH_MAX: u64 = 1 << 62;

    /// That of the numbers below `length` ([`Self::LENGTH_MAX`] at most; what is more is cut off).
    pub fn new(length: u64, seed: u64, epoch: u64) -> Self {
        let length = length.min(Self::LENGTH_MAX);
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let mut state = mix(mix(seed.wrapping_add(STEP)) ^ epoch);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(STEP);
            mix(state)
        });
        Self {
            length,
            half_bits: bits.div_ceil(2).max(1),
            keys,
        }
    }

    /// How many numbers there are.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number at a place; `None` where there is no such place.
    pub fn get(&self, place: u64) -> Option<u64> {
        (place < self.length).then(|| self.at(place))
    }

    fn at(&self, place: u64) -> u64 {
        let mut word = self.once(place);
        while word >= self.length {
            word = self.once(word);
        }
        word
    }

    /// The place of a number below the length.
    fn place_of(&self, number: u64) -> u64 {
        let mut word = self.back(number);
        while word >= self.length {
            word = self.back(word);
        }
        word
    }

    fn once(&self, word: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (word >> self.half_bits, word & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    fn back(&self, word: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (word >> self.half_bits, word & mask);
        for key in self.keys.iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & mask), left);
        }
        (left << self.half_bits) | right
    }
}

/// See the module. One reader's part of an epoch: a range of the places of the order that all readers have in common.
#[derive(Clone, Debug)]
pub struct Windows {
    length: u64,
    block: u64,
    window: u64,
    part: Range<u64>,
    /// Of the blocks.
    blocks: Permutation,
    /// Which place among the blocks the last one has, the only one that may be shorter, and its length.
    short: (u64, u64),
    seed: u64,
    epoch: u64,
}

impl Windows {
    /// The places `part` of an epoch of `length` samples; places from `length` on are those of the beginning once more. Blocks have `block`
    /// samples and windows `window`, 1 at least; the last of each has what is left.
    pub fn new(length: u64, part: Range<u64>, block: u64, window: u64, seed: u64, epoch: u64) -> Self {
        let length = length.min(Permutation::LENGTH_MAX);
        let block = block.max(1);
        let blocks = Permutation::new(length.div_ceil(block), seed, epoch);
        let short = match length.checked_sub(1) {
            Some(last) => (blocks.place_of(last / block), last % block + 1),
            None => (0, 0),
        };
        Self {
            length,
            block,
            window: window.max(1),
            part: if length == 0 { 0..0 } else { part },
            blocks,
            short,
            seed,
            epoch,
        }
    }

    /// How many samples the part has.
    pub fn length(&self) -> u64 {
        self.part.end.saturating_sub(self.part.start)
    }

    /// How many windows it has.
    pub fn count(&self) -> u64 {
        self.length().div_ceil(self.window)
    }

    /// The places, counted from the part's beginning, that a window has.
    pub fn places(&self, window: u64) -> Range<u64> {
        let start = window.saturating_mul(self.window).min(self.length());
        start..start.saturating_add(self.window).min(self.length())
    }

    /// The sample that is read at a place, counted from the part's beginning: samples of a block one after another. `None` beyond the end.
    pub fn read_at(&self, place: u64) -> Option<u64> {
        if place >= self.length() {
            return None;
        }
        let place = (self.part.start.saturating_add(place)) % self.length;
        let (short, short_length) = self.short;
        let before = short * self.block;
        let (block, offset) = if place < before {
            (place / self.block, place % self.block)
        } else if place < before + short_length {
            (short, place - before)
        } else {
            let behind = place - before - short_length;
            (short + 1 + behind / self.block, behind % self.block)
        };
        Some(self.blocks.at(block) * self.block + offset)
    }

    /// In which order the places of a window are given: the numbers from 0 below its length.
    pub fn mixed(&self, window: u64) -> Permutation {
        let places = self.places(window);
        // Windows of different parts begin at different places of the common order.
        let begin = self.part.start.wrapping_add(places.start);
        let seed = mix(self.seed ^ mix(begin.wrapping_add(STEP)));
        Permutation::new(places.end - places.start, seed, self.epoch)
    }

    /// The sample that is given at a place, counted from the part's beginning; `None` beyond the end.
    pub fn get(&self, place: u64) -> Option<u64> {
        let window = place / self.window;
        let start = self.places(window).start;
        let mixed = self.mixed(window).get(place.checked_sub(start)?)?;
        self.read_at(start + mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_permutation_has_each_number_once_and_knows_its_place() {
        for length in [0, 1, 2, 3, 16, 17, 1000] {
            let order = Permutation::new(length, 7, 3);
            let mut numbers: Vec<_> = (0..length).filter_map(|place| order.get(place)).collect();
            for (place, &number) in (0..).zip(&numbers) {
                assert_eq!(order.place_of(number), place);
            }
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..length));
            assert_eq!(order.get(length), None);
        }
    }

    #[test]
    fn blocks_stay_together_until_a_window_is_mixed() {
        let windows = Windows::new(10_000, 0..10_000, 50, 1000, 1, 2);
        let read: Vec<_> = (0..10_000).filter_map(|place| windows.read_at(place)).collect();
        let follows = read.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(follows >= 10_000 / 50 * 49, "{follows}");
        let given: Vec<_> = (0..10_000).filter_map(|place| windows.get(place)).collect();
        let follows = given.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(follows < 50, "{follows}");
        // Each window of a shuffle has samples of blocks from everywhere.
        let near = given[..1000].iter().filter(|&&sample| sample < 5000).count();
        assert!((200..800).contains(&near), "{near}");
        let other = Windows::new(10_000, 0..10_000, 50, 1000, 1, 3);
        assert_ne!(other.get(0).zip(other.get(1)), windows.get(0).zip(windows.get(1)));
    }

    proptest! {
        #[test]
        fn parts_together_give_each_sample_once(
            length in 0u64..2000,
            block in 1u64..100,
            window in 1u64..500,
            parts in 1u64..6,
            seed: u64,
        ) {
            let mut seen = vec![0; length as usize];
            for part in 0..parts {
                let range = length * part / parts..length * (part + 1) / parts;
                let windows = Windows::new(length, range.clone(), block, window, seed, 0);
                prop_assert_eq!(windows.length(), range.end - range.start);
                let mut in_windows = 0;
                for number in 0..windows.count() {
                    let places = windows.places(number);
                    in_windows += places.end - places.start;
                    let mut read: Vec<_> = places.clone().filter_map(|place| windows.read_at(place)).collect();
                    let mut given: Vec<_> = places.filter_map(|place| windows.get(place)).collect();
                    for &sample in &given {
                        seen[sample as usize] += 1;
                    }
                    read.sort_unstable();
                    given.sort_unstable();
                    prop_assert_eq!(read, given);
                }
                prop_assert_eq!(in_windows, windows.length());
                prop_assert_eq!(windows.get(windows.length()), None);
            }
            prop_assert!(seen.iter().all(|&count| count == 1), "{:?}", seen);
        }

        #[test]
        fn what_lies_beyond_the_end_is_the_beginning(length in 1u64..300, block in 1u64..40, over in 1u64..300) {
            let over = over.min(length);
            let whole = Windows::new(length, 0..length, block, 10, 5, 5);
            let beyond = Windows::new(length, length..length + over, block, 10, 5, 5);
            for place in 0..over {
                prop_assert_eq!(beyond.read_at(place), whole.read_at(place));
            }
        }
    }
}
