//! The source ranges of a Copy command (NVM Command Set Specification 1.0c, section 3.2.2, figure 38: descriptor format
//! 0h).

use foundation::{BlockCount, Lba};
use thiserror::Error;

use super::command::Command;
use super::layout::layout;
use super::opcode::NvmOpcode;

/// The most source ranges one command can carry.
pub const COPY_LIMIT_RANGES: usize = 256;
/// Bit of the descriptor format that is known here, in Copy Descriptor Formats Supported (CDFS).
pub const COPY_FORMAT_0: u16 = 1 << 0;

layout! {
    /// One source range of 32 bytes.
    pub struct CopyRange[32] {
        /// First block (SLBA).
        start_lba: u64 = 8,
        /// Number of blocks less one (NLB).
        length_less_one: u16 = 16,
        /// Expected initial reference tag (EILBRT).
        reference_tag: u32 = 24,
        /// Expected application tag (ELBAT).
        application_tag: u16 = 28,
        /// Mask of the application tag (ELBATM).
        application_tag_mask: u16 = 30,
    }
}

impl CopyRange {
    /// A range without protection information.
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn new(start: Lba, blocks: BlockCount) -> Self {
        assert!(
            (1..=1 << 16).contains(&blocks.0),
            "a source range has 1 to 65536 blocks"
        );
        Self {
            start_lba: start.0,
            length_less_one: (blocks.0 - 1) as u16,
            ..Self::default()
        }
    }

    /// First block, unchecked.
    pub const fn start(&self) -> Lba {
        Lba(self.start_lba)
    }

    /// Number of blocks, 1 to 65536.
    pub const fn blocks(&self) -> BlockCount {
        BlockCount(self.length_less_one as u64 + 1)
    }
}

impl Command {
    /// Copy: `ranges` source ranges follow as data, encoded by [`encode_ranges`].
    ///
    /// # Panics
    /// When `ranges` is not 1 to 256.
    pub const fn copy(nsid: u32, destination: Lba, ranges: u16) -> Self {
        assert!(
            ranges >= 1 && ranges <= 256,
            "a command names 1 to 256 source ranges"
        );
        let mut command = Self::new(NvmOpcode::Copy.code(), nsid).with_cdw12(ranges as u32 - 1);
        command.put_u64(40, destination.0);
        command
    }

    /// Number of source ranges of a Copy (NR), 1 to 256. Its destination (SDLBA) is where others have SLBA.
    pub const fn copy_ranges(&self) -> u16 {
        self.cdw12() as u8 as u16 + 1
    }

    /// Format of the source ranges of a Copy (DESFMT), four bits.
    pub const fn copy_format(&self) -> u8 {
        (self.cdw12() >> 8) as u8 & 0xf
    }
}

/// Why a list of source ranges cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    /// Not 1 to 256 ranges.
    #[error("a Copy with {ranges} source ranges cannot be sent; a command carries 1 to 256, split the list")]
    RangeCount {
        /// How many ranges there are.
        ranges: usize,
    },
    /// Fewer bytes than the command promised.
    #[error(
        "a Copy names {ranges} source ranges ({needed_bytes} bytes) and brought {got_bytes} bytes; the host must send the whole list"
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

/// Reads the `ranges` ranges ([`Command::copy_ranges`]) at the beginning of `bytes`, without copying them.
///
/// # Errors
/// `CopyError` when `ranges` is not 1 to 256 or `bytes` is too short.
pub fn decode_ranges(
    bytes: &[u8],
    ranges: u16,
) -> Result<impl ExactSizeIterator<Item = CopyRange> + Clone, CopyError> {
    let ranges = usize::from(ranges);
    if !(1..=COPY_LIMIT_RANGES).contains(&ranges) {
        return Err(CopyError::RangeCount { ranges });
    }
    let needed_bytes = ranges * CopyRange::BYTES;
    let list = bytes.get(..needed_bytes).ok_or(CopyError::Short {
        ranges,
        needed_bytes,
        got_bytes: bytes.len(),
    })?;
    Ok(list.chunks_exact(CopyRange::BYTES).map(super::layout::Field::get))
}

/// The list as it travels.
///
/// # Errors
/// `CopyError::RangeCount` when there are not 1 to 256 ranges.
pub fn encode_ranges(ranges: &[CopyRange]) -> Result<Vec<u8>, CopyError> {
    if !(1..=COPY_LIMIT_RANGES).contains(&ranges.len()) {
        return Err(CopyError::RangeCount { ranges: ranges.len() });
    }
    Ok(ranges.iter().flat_map(CopyRange::encode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use proptest::prelude::*;

    layout_tests!(CopyRange);

    #[test]
    fn a_copy_travels_as_the_specification_says() {
        let bytes = CopyRange::new(Lba(0x0807_0605_0403_0201), BlockCount(0x0a0c)).encode();
        assert_eq!(bytes[8..18], [1, 2, 3, 4, 5, 6, 7, 8, 0x0b, 0x0a]);
        assert_eq!((&bytes[..8], &bytes[18..]), (&[0; 8][..], &[0; 14][..]));
        let command = Command::copy(3, Lba(0x0807_0605_0403_0201), 256).with_force_unit_access();
        assert_eq!((command.opcode(), command.cdw12()), (0x19, 0x4000_00ff));
        assert_eq!(command.as_bytes()[40..48], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((command.copy_ranges(), command.copy_format()), (256, 0));
        assert_eq!(command.with_cdw12(0x0000_0b02).copy_format(), 0xb);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        assert!(encode_ranges(&[]).is_err());
        assert!(encode_ranges(&[CopyRange::default(); 257]).is_err());
        assert!(decode_ranges(&[0; 16384], 257).is_err());
        assert!(decode_ranges(&[0; 16384], 0).is_err());
        let error = decode_ranges(&[0; 63], 2).err().unwrap().to_string();
        assert!(
            error.contains("2 source ranges (64 bytes) and brought 63"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(list in prop::collection::vec((any::<u64>(), 1u64..=65536), 1..=256)) {
            let list: Vec<_> = list.into_iter().map(|(start, blocks)| CopyRange::new(Lba(start), BlockCount(blocks))).collect();
            let wire = encode_ranges(&list).unwrap();
            let back: Vec<_> = decode_ranges(&wire, list.len() as u16).unwrap().collect();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..9000), ranges: u16) {
            if let Ok(list) = decode_ranges(&noise, ranges) {
                for range in list {
                    prop_assert!((1..=65536).contains(&range.blocks().0));
                }
            }
        }
    }
}
