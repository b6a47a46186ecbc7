//! Which of a range of numbers are free: clusters, or metadata pages.

/// A set over `start..end`, one bit each, searched from where the last search ended.
#[derive(Debug)]
pub(crate) struct FreeSet {
    start: u32,
    end: u32,
    words: Vec<u64>,
    count: u32,
    cursor: usize,
}

impl FreeSet {
    /// Nothing is free.
    pub(crate) fn empty(start: u32, end: u32) -> Self {
        assert!(start <= end, "a range from {start} to {end}");
        Self {
            start,
            end,
            words: vec![0; ((end - start) as usize).div_ceil(64)],
            count: 0,
            cursor: 0,
        }
    }

    fn place(&self, number: u32) -> (usize, u64) {
        assert!(
            (self.start..self.end).contains(&number),
            "{number} lies outside {}..{}",
            self.start,
            self.end
        );
        let index = number - self.start;
        ((index / 64) as usize, 1 << (index % 64))
    }

    /// Adds a number; it must not be free already.
    pub(crate) fn insert(&mut self, number: u32) {
        let (word, bit) = self.place(number);
        assert_eq!(self.words[word] & bit, 0, "{number} is given back twice");
        self.words[word] |= bit;
        self.count += 1;
    }

    /// Whether the number is free.
    pub(crate) fn contains(&self, number: u32) -> bool {
        let (word, bit) = self.place(number);
        self.words[word] & bit != 0
    }

    /// Removes a given number; false if it is not free.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let (word, bit) = self.place(number);
        let was = self.words[word] & bit != 0;
        if was {
            self.words[word] &= !bit;
            self.count -= 1;
        }
        was
    }

    /// Takes some number, near the last one taken.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let words = self.words.len();
        let word = (0..words)
            .map(|step| (self.cursor + step) % words)
            .find(|&word| self.words[word] != 0)
            .expect("the count says that a bit is set");
        self.cursor = word;
        let bit = self.words[word].trailing_zeros();
        self.words[word] &= self.words[word] - 1;
        self.count -= 1;
        Some(self.start + word as u32 * 64 + bit)
    }

    /// How many are free.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_taken_once() {
        let mut set = FreeSet::empty(7, 207);
        (7..207).for_each(|number| set.insert(number));
        assert!(set.remove(100));
        assert!(!set.remove(100));
        let mut taken: Vec<u32> = std::iter::from_fn(|| set.take()).collect();
        assert_eq!(set.count(), 0);
        taken.sort_unstable();
        assert_eq!(
            taken,
            (7..207).filter(|&number| number != 100).collect::<Vec<_>>()
        );
        set.insert(30);
        assert!(set.contains(30) && !set.contains(31));
        assert_eq!(set.take(), Some(30));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_mistake() {
        let mut set = FreeSet::empty(0, 10);
        set.insert(3);
        set.insert(3);
    }
}
