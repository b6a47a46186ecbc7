//! Commands of the NVM command set: builders for the host, accessors for the controller (NVM Command Set
//! Specification 1.0c, section 3.2; Flush: NVM Express Base Specification 2.0c, section 7.1).
//!
//! A number of blocks travels as one less than it is; here it is always the true number.

use foundation::{BlockCount, Lba};

use super::command::Command;
use super::opcode::NvmOpcode;

/// The most blocks one command can name.
pub const COMMAND_LIMIT_BLOCKS: u64 = 1 << 16;

const LIMITED_RETRY: u32 = 1 << 31;
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
const PROTECTION_SHIFT: u32 = 26;
const ATTRIBUTE_INTEGRAL_READ: u32 = 1 << 0;
const ATTRIBUTE_INTEGRAL_WRITE: u32 = 1 << 1;
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// Builders. Data pointers are added with `with_in_capsule_data` or `with_transport_data`, the identifier with
/// `set_cid`.
impl Command {
    /// Read (section 3.2.4). See `ranged` for the limits.
    pub const fn read(nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        Self::ranged(NvmOpcode::Read.code(), nsid, slba, nlb)
    }

    /// Write (section 3.2.6). See `ranged` for the limits.
    pub const fn write(nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        Self::ranged(NvmOpcode::Write.code(), nsid, slba, nlb)
    }

    /// Compare (section 3.2.1). See `ranged` for the limits.
    pub const fn compare(nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        Self::ranged(NvmOpcode::Compare.code(), nsid, slba, nlb)
    }

    /// Verify (section 3.2.5). See `ranged` for the limits.
    pub const fn verify(nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        Self::ranged(NvmOpcode::Verify.code(), nsid, slba, nlb)
    }

    /// Write Zeroes (section 3.2.8). See `ranged` for the limits.
    pub const fn write_zeroes(nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        Self::ranged(NvmOpcode::WriteZeroes.code(), nsid, slba, nlb)
    }

    /// Any command with a start in dwords 10 and 11 and a number of blocks in dword 12, vendor commands included.
    ///
    /// # Panics
    /// When `nlb` is 0 or over `COMMAND_LIMIT_BLOCKS`: splitting a transfer is the caller's duty.
    pub const fn ranged(opcode: u8, nsid: u32, slba: Lba, nlb: BlockCount) -> Self {
        assert!(
            nlb.0 >= 1 && nlb.0 <= COMMAND_LIMIT_BLOCKS,
            "a command names 1 to 65536 blocks"
        );
        let mut command = Self::new(opcode, nsid).with_cdw12((nlb.0 - 1) as u32);
        command.put_u64(40, slba.0);
        command
    }

    /// Flush (Base Specification, section 7.1).
    pub const fn flush(nsid: u32) -> Self {
        Self::new(NvmOpcode::Flush.code(), nsid)
    }

    /// Dataset Management that deallocates (section 3.2.3): `ranges` ranges follow as data, encoded by `dsm`.
    ///
    /// # Panics
    /// When `ranges` is not 1 to 256.
    pub const fn deallocate(nsid: u32, ranges: u16) -> Self {
        assert!(ranges >= 1 && ranges <= 256, "a command names 1 to 256 ranges");
        Self::new(NvmOpcode::DatasetManagement.code(), nsid)
            .with_cdw10(ranges as u32 - 1)
            .with_cdw11(ATTRIBUTE_DEALLOCATE)
    }

    /// Asks for the data to be on durable media before completion (FUA).
    pub const fn with_force_unit_access(self) -> Self {
        let dword = self.cdw12();
        self.with_cdw12(dword | FORCE_UNIT_ACCESS)
    }

    /// Asks for few retries (LR).
    pub const fn with_limited_retry(self) -> Self {
        let dword = self.cdw12();
        self.with_cdw12(dword | LIMITED_RETRY)
    }

    /// Lets Write Zeroes deallocate the blocks (DEAC).
    pub const fn with_deallocate(self) -> Self {
        let dword = self.cdw12();
        self.with_cdw12(dword | DEALLOCATE)
    }
}

/// Accessors. Each reads its place in the command; whether that place has this meaning depends on the opcode.
impl Command {
    /// The opcode as one of the NVM command set, or `None`.
    #[inline]
    pub const fn nvm_opcode(&self) -> Option<NvmOpcode> {
        NvmOpcode::from_code(self.opcode())
    }

    /// First block of the range (SLBA), unchecked.
    #[inline]
    pub const fn slba(&self) -> Lba {
        Lba(self.u64_at(40))
    }

    /// Number of blocks of the range (NLB), 1 to 65536.
    #[inline]
    pub const fn nlb(&self) -> BlockCount {
        BlockCount((self.cdw12() as u16 as u64) + 1)
    }

    /// Whether the data is to be on durable media before completion (FUA).
    #[inline]
    pub const fn force_unit_access(&self) -> bool {
        self.cdw12() & FORCE_UNIT_ACCESS != 0
    }

    /// Whether few retries are wanted (LR).
    #[inline]
    pub const fn limited_retry(&self) -> bool {
        self.cdw12() & LIMITED_RETRY != 0
    }

    /// Whether Write Zeroes may deallocate (DEAC).
    #[inline]
    pub const fn deallocate_requested(&self) -> bool {
        self.cdw12() & DEALLOCATE != 0
    }

    /// Protection information field (PRINFO), four bits: PRACT is bit 3, the checks bits 2 to 0.
    #[inline]
    pub const fn protection(&self) -> u8 {
        (self.cdw12() >> PROTECTION_SHIFT) as u8 & 0xf
    }

    /// Number of ranges of a Dataset Management command (NR), 1 to 256.
    #[inline]
    pub const fn dsm_ranges(&self) -> u16 {
        self.cdw10() as u8 as u16 + 1
    }

    /// Whether Dataset Management deallocates (AD).
    #[inline]
    pub const fn dsm_deallocates(&self) -> bool {
        self.cdw11() & ATTRIBUTE_DEALLOCATE != 0
    }

    /// Whether Dataset Management tells of an integral dataset for reads (IDR) or for writes (IDW): hints only.
    #[inline]
    pub const fn dsm_integral(&self) -> bool {
        self.cdw11() & (ATTRIBUTE_INTEGRAL_READ | ATTRIBUTE_INTEGRAL_WRITE) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_write_travels_as_the_specification_says() {
        let command = Command::write(1, Lba(0x0807_0605_0403_0201), BlockCount(8))
            .with_force_unit_access()
            .with_in_capsule_data(0, 4096);
        let bytes = command.as_bytes();
        assert_eq!(bytes[..2], [0x01, 0x40]);
        assert_eq!(bytes[40..48], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[48..52], [7, 0, 0, 0x40]);
    }

    #[test]
    fn flags_have_their_bits() {
        let command = Command::write_zeroes(1, Lba(0), BlockCount(65536));
        assert_eq!(command.cdw12(), 0xffff);
        assert_eq!(command.with_deallocate().cdw12(), 0x0200_ffff);
        assert_eq!(command.with_limited_retry().cdw12(), 0x8000_ffff);
        assert!(command.with_deallocate().deallocate_requested());
        assert!(!command.with_limited_retry().deallocate_requested());
        assert!(command.with_limited_retry().limited_retry());
        assert_eq!(command.with_cdw12(0x3c00_0000).protection(), 0xf);
    }

    #[test]
    fn deallocate_counts_from_one() {
        let command = Command::deallocate(1, 256);
        assert_eq!((command.cdw10(), command.cdw11()), (255, 4));
        assert_eq!(command.dsm_ranges(), 256);
        assert!(command.dsm_deallocates() && !command.dsm_integral());
        assert_eq!(Command::flush(3).nvm_opcode(), Some(NvmOpcode::Flush));
    }

    #[test]
    #[should_panic(expected = "1 to 65536 blocks")]
    fn a_range_of_nothing_is_a_mistake_of_ours() {
        Command::read(1, Lba(0), BlockCount(0));
    }

    proptest! {
        #[test]
        fn a_range_comes_back(nsid: u32, slba: u64, nlb in 1..=COMMAND_LIMIT_BLOCKS) {
            for command in [Command::read(nsid, Lba(slba), BlockCount(nlb)), Command::compare(nsid, Lba(slba), BlockCount(nlb)), Command::verify(nsid, Lba(slba), BlockCount(nlb))] {
                prop_assert_eq!(command.nsid(), nsid);
                prop_assert_eq!(command.slba(), Lba(slba));
                prop_assert_eq!(command.nlb(), BlockCount(nlb));
                prop_assert!(!command.force_unit_access() && !command.limited_retry());
            }
        }

        #[test]
        fn accessors_take_any_bytes(a: [u8; 32], b: [u8; 32]) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&a);
            bytes[32..].copy_from_slice(&b);
            let command = Command::from_bytes(bytes);
            prop_assert!((1..=COMMAND_LIMIT_BLOCKS).contains(&command.nlb().0));
            prop_assert!((1..=256).contains(&command.dsm_ranges()));
            let _ = (command.sgl(), command.fuse(), command.data_direction(), command.fabrics_type());
            let _ = format!("{command:?}");
        }
    }
}
