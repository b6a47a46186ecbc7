//! The range list of a Dataset Management command (NVM Command Set Specification 1.0c, section 3.2.3).

use foundation::{BlockCount, Lba};
use thiserror::Error;

use super::layout::layout;

/// The most ranges one command can carry.
pub const DSM_LIMIT_RANGES: usize = 256;

layout! {
    /// One range of 16 bytes.
    pub struct DsmRange[16] {
        /// Context attributes (CATTR): hints about access.
        context_attributes: u32 = 0,
        /// Length in blocks; unlike that of a read, this is the true number, and 0 names no block.
        length_blocks: u32 = 4,
        /// First block (SLBA).
        start_lba: u64 = 8,
    }
}

impl DsmRange {
    /// A range without hints.
    pub const fn new(start: Lba, length_blocks: u32) -> Self {
        Self {
            context_attributes: 0,
            length_blocks,
            start_lba: start.0,
        }
    }

    /// First block, unchecked.
    pub const fn start(&self) -> Lba {
        Lba(self.start_lba)
    }

    /// Number of blocks.
    pub const fn blocks(&self) -> BlockCount {
        BlockCount(self.length_blocks as u64)
    }
}

/// Why a range list cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DsmError {
    /// Not 1 to 256 ranges.
    #[error(
        "a Dataset Management command with {ranges} ranges cannot be sent; a command carries 1 to 256, split the list"
    )]
    RangeCount {
        /// How many ranges there are.
        ranges: usize,
    },
    /// Fewer bytes than the command promised.
    #[error(
        "a Dataset Management command names {ranges} ranges ({needed_bytes} bytes) and brought {got_bytes} bytes; the host must send the whole list"
    )]
    Short {
        /// How many ranges the command names.
        ranges: usize,
        /// How many bytes they take.
        needed_bytes: usize,
        /// How many bytes there were.
        got_bytes: usize,
    },
}

/// Reads the `ranges` ranges (`Command::dsm_ranges`) at the beginning of `bytes`, without copying them.
///
/// # Errors
/// `DsmError` when `ranges` is not 1 to 256 or `bytes` is too short.
pub fn decode_ranges(
    bytes: &[u8],
    ranges: u16,
) -> Result<impl ExactSizeIterator<Item = DsmRange> + Clone, DsmError> {
    let ranges = usize::from(ranges);
    if !(1..=DSM_LIMIT_RANGES).contains(&ranges) {
        return Err(DsmError::RangeCount { ranges });
    }
    let needed_bytes = ranges * DsmRange::BYTES;
    let list = bytes.get(..needed_bytes).ok_or(DsmError::Short {
        ranges,
        needed_bytes,
        got_bytes: bytes.len(),
    })?;
    Ok(list.chunks_exact(DsmRange::BYTES).map(super::layout::Field::get))
}

/// The list as it travels.
///
/// # Errors
/// `DsmError::RangeCount` when there are not 1 to 256 ranges.
pub fn encode_ranges(ranges: &[DsmRange]) -> Result<Vec<u8>, DsmError> {
    if !(1..=DSM_LIMIT_RANGES).contains(&ranges.len()) {
        return Err(DsmError::RangeCount { ranges: ranges.len() });
    }
    Ok(ranges.iter().flat_map(DsmRange::encode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use proptest::prelude::*;

    layout_tests!(DsmRange);

    #[test]
    fn a_range_travels_as_the_specification_says() {
        let bytes = DsmRange::new(Lba(0x0807_0605_0403_0201), 0x0d0c_0b0a).encode();
        assert_eq!(
            bytes,
            [0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8]
        );
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        assert!(encode_ranges(&[]).is_err());
        assert!(encode_ranges(&[DsmRange::default(); 257]).is_err());
        assert_eq!(encode_ranges(&[DsmRange::default(); 256]).unwrap().len(), 4096);
        assert!(decode_ranges(&[0; 8192], 257).is_err());
        assert!(decode_ranges(&[0; 8192], 0).is_err());
        let error = decode_ranges(&[0; 31], 2).err().unwrap().to_string();
        assert!(error.contains("2 ranges (32 bytes) and brought 31"), "{error}");
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(list in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u64>()), 1..=256)) {
            let list: Vec<DsmRange> = list.into_iter().map(|(context_attributes, length_blocks, start_lba)| DsmRange { context_attributes, length_blocks, start_lba }).collect();
            let wire = encode_ranges(&list).unwrap();
            let back: Vec<DsmRange> = decode_ranges(&wire, list.len() as u16).unwrap().collect();
            prop_assert_eq!(back, list);
        }
    }
}
