//! What a node has of snapshots, so short that it fits in every heartbeat, and so exact that it can be compared.

/// Copies of snapshots beside copies of chunks. Whoever notes the same, in any order, has the same; two that differ are as good as
/// never equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeptCopies {
    /// How many.
    pub count: u64,
    /// A sum over the chunks, each with a weight of its own and as often as it has copies.
    pub digest: u64,
}

impl KeptCopies {
    /// So many copies, each of another snapshot, beside the copy of this chunk: the volume's number and the chunk's index.
    pub fn note(&mut self, volume: u32, index: u32, copies: u64) {
        self.count = self.count.wrapping_add(copies);
        let weight = mixed(u64::from(volume) << 32 | u64::from(index));
        self.digest = self.digest.wrapping_add(weight.wrapping_mul(copies));
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), of the word after
/// its increment, so that 0 is no exception.
fn mixed(word: u64) -> u64 {
    let mut mix = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ mix >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ mix >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ mix >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(all: &[(u32, u32, u64)]) -> KeptCopies {
        let mut kept = KeptCopies::default();
        for &(volume, index, copies) in all {
            kept.note(volume, index, copies);
        }
        kept
    }

    #[test]
    fn the_same_in_another_order_is_equal_and_as_many_of_others_are_not() {
        let all = kept(&[(1, 0, 2), (1, 1, 2), (7, 0, 1)]);
        assert_eq!(all, kept(&[(7, 0, 1), (1, 1, 1), (1, 0, 2), (1, 1, 1)]));
        for others in [
            [(1, 0, 2), (1, 2, 2), (7, 0, 1)],
            [(1, 0, 1), (1, 1, 3), (7, 0, 1)],
            [(1, 0, 2), (1, 1, 2), (8, 0, 1)],
        ] {
            let others = kept(&others);
            assert_eq!(others.count, all.count);
            assert_ne!(others, all);
        }
    }

    /// Nodes and masters of different releases compare these.
    #[test]
    fn the_digest_is_what_it_was() {
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
    }
}
