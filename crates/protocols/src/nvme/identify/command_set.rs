//! Identify structures that came with the split into command sets: CNS 05h and 06h for the NVM command set (NVM
//! Command Set Specification 1.0c, sections 4.1.5.3 and 4.1.5.4), and CNS 08h (NVM Express Base Specification 2.0c,
//! section 5.17.2.8).

use crate::nvme::layout::layout;

layout! {
    /// I/O Command Set specific Identify Namespace of the NVM command set (CNS 05h, CSI 00h).
    pub struct IdentifyNvmNamespace[4096] {
        /// Logical block storage tag mask (LBSTM).
        lbstm: u64 = 0,
        /// Protection information capabilities (PIC).
        pic: u8 = 8,
        /// Extended LBA formats: storage tag size in bits 6:0, protection format in bits 8:7 (ELBAF0 to ELBAF63).
        elbaf: [u32; 64] = 12,
    }
}

layout! {
    /// I/O Command Set specific Identify Controller of the NVM command set (CNS 06h, CSI 00h). Size limits are powers of
    /// two in units of CAP.MPSMIN; 0 is no limit.
    pub struct IdentifyNvmController[4096] {
        /// Verify size limit (VSL).
        vsl: u8 = 0,
        /// Write Zeroes size limit (WZSL).
        wzsl: u8 = 1,
        /// Write Uncorrectable size limit (WUSL).
        wusl: u8 = 2,
        /// Dataset Management ranges limit (DMRL); 0 is no limit.
        dmrl: u8 = 3,
        /// Dataset Management range size limit, in blocks (DMRSL); 0 is no limit.
        dmrsl: u32 = 4,
        /// Dataset Management size limit, in blocks (DMSL); 0 is no limit.
        dmsl: u64 = 8,
    }
}

layout! {
    /// I/O Command Set Independent Identify Namespace (CNS 08h).
    pub struct IdentifyNamespaceIndependent[4096] {
        /// Features (NSFEAT).
        nsfeat: u8 = 0,
        /// Multi-path I/O and sharing (NMIC).
        nmic: u8 = 1,
        /// Reservation capabilities (RESCAP).
        rescap: u8 = 2,
        /// Format progress (FPI).
        fpi: u8 = 3,
        /// ANA group (ANAGRPID).
        anagrpid: u32 = 4,
        /// Attributes (NSATTR).
        nsattr: u8 = 8,
        /// NVM set (NVMSETID).
        nvmsetid: u16 = 10,
        /// Endurance group (ENDGID).
        endgid: u16 = 12,
        /// Status: bit 0 ready (NSTAT). A Linux host ignores a namespace that is not.
        nstat: u8 = 14,
    }
}

layout! {
    /// I/O Command Set (CNS 1Ch; NVM Express Base Specification 2.0c, section 5.17.2.20): which command sets can be
    /// enabled together. Bit 0 of a combination is the NVM command set.
    pub struct CommandSetCombinations[4096] {
        /// The combinations; 0 is none.
        combinations: [u64; 512] = 0,
    }
}

/// A combination of nothing but the NVM command set.
pub const COMBINATION_NVM: u64 = 1 << 0;

/// NSTAT: the namespace is ready.
pub const NSTAT_READY: u8 = 1 << 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(
        IdentifyNvmNamespace,
        IdentifyNvmController,
        IdentifyNamespaceIndependent,
        CommandSetCombinations
    );

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let namespace = IdentifyNamespaceIndependent {
            nmic: 1,
            anagrpid: 0x0102,
            nstat: NSTAT_READY,
            ..Default::default()
        };
        let bytes = namespace.encode();
        assert_eq!((bytes[1], bytes[4], bytes[5], bytes[14]), (1, 2, 1, 1));
        let controller = IdentifyNvmController {
            wzsl: 9,
            dmrl: 255,
            dmrsl: 1,
            dmsl: 2,
            ..Default::default()
        };
        assert_eq!(controller.encode()[..9], [0, 9, 0, 255, 1, 0, 0, 0, 2]);
        let mut formats = IdentifyNvmNamespace::default();
        formats.elbaf[1] = 0x80;
        assert_eq!(formats.encode()[16], 0x80);
    }
}
