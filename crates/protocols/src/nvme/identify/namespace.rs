//! Identify Namespace of the NVM command set (CNS 00h; NVM Command Set Specification 1.0c, section 4.1.5.1,
//! figure 97).

use crate::nvme::layout::layout;

/// Bits of the fields, under the name of each field (figure 97).
pub mod bits {
    /// NSFEAT: thin provisioning, NUSE may be below NCAP.
    pub const NSFEAT_THIN: u8 = 1 << 0;
    /// NSFEAT: NAWUN, NAWUPF and NACWU are given.
    pub const NSFEAT_ATOMICITY: u8 = 1 << 1;
    /// NSFEAT: reading a deallocated block may fail (DULBE).
    pub const NSFEAT_DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NSFEAT: NGUID and EUI64 are never used again.
    pub const NSFEAT_IDENTIFIERS_NOT_REUSED: u8 = 1 << 3;
    /// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are given.
    pub const NSFEAT_PREFERRED_SIZES: u8 = 1 << 4;
    /// FLBAS: metadata follows the data of each block in one buffer.
    pub const FLBAS_EXTENDED: u8 = 1 << 4;
    /// NMIC: more than one controller may attach the namespace.
    pub const NMIC_SHARED: u8 = 1 << 0;
    /// RESCAP: reservations may persist through power loss.
    pub const RESCAP_PERSISTENT: u8 = 1 << 0;
    /// RESCAP: all six types of reservations.
    pub const RESCAP_ALL_TYPES: u8 = 0x3f << 1;
    /// RESCAP: Ignore Existing Key works as revision 1.3 and later define it.
    pub const RESCAP_IGNORE_EXISTING_KEY: u8 = 1 << 7;
    /// DLFEAT: deallocated blocks read as zeros.
    pub const DLFEAT_READS_ZEROS: u8 = 1;
    /// DLFEAT: Write Zeroes can deallocate.
    pub const DLFEAT_WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
    /// NSATTR: write protected.
    pub const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;
}

layout! {
    /// An LBA format (figure 98).
    pub struct LbaFormat[4] {
        /// Metadata bytes of each block (MS).
        metadata_bytes: u16 = 0,
        /// Block size as a power of two, 9 or more; 0 is no format (LBADS).
        block_size_power: u8 = 2,
        /// Relative performance, 0 is best (RP).
        relative_performance: u8 = 3,
    }
}

layout! {
    /// Identify Namespace. Sizes are in blocks of the format in use. All zeros says: no such active namespace.
    pub struct IdentifyNamespace[4096] {
        /// Size (NSZE), in blocks.
        nsze: u64 = 0,
        /// Capacity (NCAP), in blocks.
        ncap: u64 = 8,
        /// Utilization (NUSE), in blocks.
        nuse: u64 = 16,
        /// Features (NSFEAT).
        nsfeat: u8 = 24,
        /// LBA formats, less one (NLBAF).
        nlbaf: u8 = 25,
        /// LBA format in use (FLBAS): bits 3:0, and more in bits 6:5.
        flbas: u8 = 26,
        /// Metadata capabilities (MC).
        mc: u8 = 27,
        /// Protection capabilities (DPC).
        dpc: u8 = 28,
        /// Protection in use (DPS).
        dps: u8 = 29,
        /// Multi-path I/O and sharing (NMIC).
        nmic: u8 = 30,
        /// Reservation capabilities (RESCAP).
        rescap: u8 = 31,
        /// Format progress (FPI).
        fpi: u8 = 32,
        /// Deallocate features (DLFEAT).
        dlfeat: u8 = 33,
        /// Atomic write unit normal, in blocks less one (NAWUN).
        nawun: u16 = 34,
        /// Atomic write unit power fail, in blocks less one (NAWUPF).
        nawupf: u16 = 36,
        /// Atomic compare and write unit, in blocks less one (NACWU).
        nacwu: u16 = 38,
        /// Atomic boundary size normal, in blocks less one; 0 is none (NABSN).
        nabsn: u16 = 40,
        /// Atomic boundary offset, in blocks (NABO).
        nabo: u16 = 42,
        /// Atomic boundary size power fail, in blocks less one; 0 is none (NABSPF).
        nabspf: u16 = 44,
        /// Optimal I/O boundary, in blocks; 0 is none (NOIOB).
        noiob: u16 = 46,
        /// Capacity in bytes (NVMCAP).
        nvmcap: u128 = 48,
        /// Preferred write granularity, in blocks less one (NPWG).
        npwg: u16 = 64,
        /// Preferred write alignment, in blocks less one (NPWA).
        npwa: u16 = 66,
        /// Preferred deallocate granularity, in blocks less one (NPDG).
        npdg: u16 = 68,
        /// Preferred deallocate alignment, in blocks less one (NPDA).
        npda: u16 = 70,
        /// Optimal write size, in blocks less one (NOWS).
        nows: u16 = 72,
        /// Longest Copy source range, in blocks (MSSRL).
        mssrl: u16 = 74,
        /// Longest Copy, in blocks (MCL).
        mcl: u32 = 76,
        /// Copy source ranges, less one (MSRC).
        msrc: u8 = 80,
        /// ANA group (ANAGRPID).
        anagrpid: u32 = 92,
        /// Attributes (NSATTR).
        nsattr: u8 = 99,
        /// NVM set (NVMSETID).
        nvmsetid: u16 = 100,
        /// Endurance group (ENDGID).
        endgid: u16 = 102,
        /// Globally unique identifier, most significant byte first (NGUID).
        nguid: [u8; 16] = 104,
        /// IEEE extended unique identifier, most significant byte first (EUI64).
        eui64: [u8; 8] = 120,
        /// LBA formats (LBAF0 to LBAF63).
        lbaf: [LbaFormat; 64] = 128,
        /// Vendor specific.
        vendor: [u8; 3712] = 384,
    }
}

impl IdentifyNamespace {
    /// The LBA format in use (FLBAS bits 6:5 and 3:0).
    pub fn format_in_use(&self) -> LbaFormat {
        let index = self.flbas & 0xf | (self.flbas & 0x60) >> 1;
        self.lbaf[usize::from(index)]
    }

    /// Block size of the format in use, in bytes, or `None` when that is no format of at least 512 bytes (a power of
    /// two below 2^32).
    pub fn block_bytes(&self) -> Option<u32> {
        match self.format_in_use().block_size_power {
            power @ 9..=31 => Some(1 << power),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(LbaFormat, IdentifyNamespace);

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let mut identify = IdentifyNamespace {
            nsze: 0x0102,
            ncap: 0x0304,
            nuse: 0x0506,
            nsfeat: 0x10,
            nlbaf: 1,
            flbas: 1,
            nmic: 1,
            dlfeat: 9,
            noiob: 0x0203,
            nvmcap: 0x77,
            npwg: 7,
            nows: 0x0908,
            anagrpid: 0x0a0b,
            nsattr: 1,
            nguid: *b"0123456789abcdef",
            eui64: *b"ABCDEFGH",
            ..IdentifyNamespace::default()
        };
        identify.lbaf[0].block_size_power = 9;
        identify.lbaf[1] = LbaFormat {
            metadata_bytes: 8,
            block_size_power: 12,
            relative_performance: 2,
        };
        let bytes = identify.encode();
        assert_eq!((bytes[0], bytes[8], bytes[16]), (2, 4, 6));
        assert_eq!(bytes[24..34], [0x10, 1, 1, 0, 0, 0, 1, 0, 0, 9]);
        assert_eq!(bytes[46..49], [3, 2, 0x77]);
        assert_eq!((bytes[64], bytes[72], bytes[73]), (7, 8, 9));
        assert_eq!((bytes[92], bytes[93], bytes[99]), (0x0b, 0x0a, 1));
        assert_eq!(&bytes[104..128], b"0123456789abcdefABCDEFGH");
        assert_eq!(bytes[128..136], [0, 0, 9, 0, 8, 0, 12, 2]);
        assert_eq!(identify.block_bytes(), Some(4096));
    }

    #[test]
    fn the_format_index_has_six_bits_and_odd_sizes_are_none() {
        let mut identify = IdentifyNamespace {
            flbas: 0x6f,
            ..IdentifyNamespace::default()
        };
        assert_eq!(identify.block_bytes(), None);
        identify.lbaf[63].block_size_power = 9;
        assert_eq!(identify.block_bytes(), Some(512));
        identify.lbaf[63].block_size_power = 200;
        assert_eq!(identify.block_bytes(), None);
    }
}
