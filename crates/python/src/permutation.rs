//! A random order of the numbers below a bound, any place of which is computed by itself.
//!
//! A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations", 1988) over the smallest even number of
//! bits that hold the bound; what falls outside is sent through again (cycle walking: Black and Rogaway, "Ciphers with
//! arbitrary finite domains", 2002), fewer than four times on average. So a shuffled order of a billion samples takes no
//! memory and resuming in its middle no time. Not for secrets.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

const ROUNDS: usize = 8;

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: the finalizer of SplitMix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The numbers 0 to length - 1 in an order chosen by a seed and an epoch.
#[pyclass(frozen, module = "redhare")]
pub(crate) struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    fn once(&self, word: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (word >> self.half_bits, word & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    fn at(&self, place: u64) -> u64 {
        let mut word = self.once(place);
        while word >= self.length {
            word = self.once(word);
        }
        word
    }
}

#[pymethods]
impl Permutation {
    #[new]
    #[pyo3(signature = (length, seed=0, epoch=0))]
    fn new(length: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        if length > 1 << 62 {
            return Err(PyValueError::new_err(format!(
                "a length of {length} is too much; the most is 2**62"
            )));
        }
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let mut state = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ epoch);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Ok(Self {
            length,
            half_bits: bits.div_ceil(2).max(1),
            keys,
        })
    }

    fn __len__(&self) -> usize {
        self.length as usize
    }

    fn __getitem__(&self, place: u64) -> PyResult<u64> {
        if place < self.length {
            return Ok(self.at(place));
        }
        Err(PyIndexError::new_err(format!(
            "there is no place {place} among {}",
            self.length
        )))
    }

    /// The numbers at places start, start + step and so on, below stop.
    #[pyo3(signature = (start, stop, step=1))]
    fn part(&self, py: Python<'_>, start: u64, stop: u64, step: usize) -> PyResult<Vec<u64>> {
        if step == 0 || stop > self.length {
            let length = self.length;
            let why = format!(
                "places up to {stop} by {step} are not among {length}; use a stop of {length} at most"
            );
            return Err(PyIndexError::new_err(why));
        }
        Ok(py.detach(|| (start..stop).step_by(step).map(|place| self.at(place)).collect()))
    }
}
