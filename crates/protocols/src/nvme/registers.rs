//! Controller properties, which fabrics read and write with Property Get and Property Set (NVM Express Base
//! Specification 2.0c, section 3.1.3).

/// Offset of Controller Capabilities (CAP), 8 bytes.
pub const CAP_OFFSET: u32 = 0x00;
/// Offset of Version (VS), 4 bytes.
pub const VS_OFFSET: u32 = 0x08;
/// Offset of Controller Configuration (CC), 4 bytes.
pub const CC_OFFSET: u32 = 0x14;
/// Offset of Controller Status (CSTS), 4 bytes.
pub const CSTS_OFFSET: u32 = 0x1c;
/// Offset of NVM Subsystem Reset (NSSR), 4 bytes.
pub const NSSR_OFFSET: u32 = 0x20;
/// Offset of Controller Ready Timeouts (CRTO), 4 bytes.
pub const CRTO_OFFSET: u32 = 0x68;
/// What a host writes to NSSR for a subsystem reset: "NVMe".
pub const NSSR_RESET: u32 = 0x4e56_4d65;

const fn bits(value: u64, low: u32, width: u32) -> u64 {
    value >> low & ((1 << width) - 1)
}

const fn with_bits(value: u64, low: u32, width: u32, field: u64) -> u64 {
    let mask = ((1 << width) - 1) << low;
    value & !mask | field << low & mask
}

/// One accessor and one builder for each field of a property; numbers wider than the field lose their high bits.
macro_rules! property {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($number:ty) {
            $( $(#[$field_meta:meta])* $get:ident $with:ident: $kind:ty = $low:literal, $width:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($number);

        impl $name {
            /// Takes the property as it travels.
            pub const fn from_bits(bits: $number) -> Self {
                Self(bits)
            }

            /// The property as it travels.
            pub const fn bits(self) -> $number {
                self.0
            }

            $(
                $(#[$field_meta])*
                pub const fn $get(self) -> $kind {
                    bits(self.0 as u64, $low, $width) as $kind
                }

                #[doc = concat!("Replaces what `", stringify!($get), "` reads.")]
                pub const fn $with(self, value: $kind) -> Self {
                    Self(with_bits(self.0 as u64, $low, $width, value as u64) as $number)
                }
            )*
        }
    };
}

property! {
    /// Controller Capabilities (section 3.1.3.1).
    pub struct Capabilities(u64) {
        /// Largest I/O queue, in entries less one (MQES).
        mqes with_mqes: u16 = 0, 16;
        /// 1 when queues must be contiguous; fabrics say 1 (CQR).
        cqr with_cqr: u8 = 16, 1;
        /// Arbitration mechanisms besides round robin (AMS).
        ams with_ams: u8 = 17, 2;
        /// Longest time to become ready or not ready, in units of 500 milliseconds (TO).
        to with_to: u8 = 24, 8;
        /// Doorbell stride; 0 with fabrics (DSTRD).
        dstrd with_dstrd: u8 = 32, 4;
        /// 1 when a subsystem reset is supported (NSSRS).
        nssrs with_nssrs: u8 = 36, 1;
        /// Command sets: bit 0 NVM, bit 6 those of an I/O Command Set Profile (CSS).
        css with_css: u8 = 37, 8;
        /// Smallest memory page: 2 to the power of 12 and this (MPSMIN).
        mpsmin with_mpsmin: u8 = 48, 4;
        /// Largest memory page: 2 to the power of 12 and this (MPSMAX).
        mpsmax with_mpsmax: u8 = 52, 4;
        /// Ready modes: bit 0 with media, bit 1 independent of media (CRMS).
        crms with_crms: u8 = 59, 2;
    }
}

property! {
    /// Version (section 3.1.3.2).
    pub struct Version(u32) {
        /// Tertiary number (TER).
        tertiary with_tertiary: u8 = 0, 8;
        /// Minor number (MNR).
        minor with_minor: u8 = 8, 8;
        /// Major number (MJR).
        major with_major: u16 = 16, 16;
    }
}

property! {
    /// Controller Configuration (section 3.1.3.5).
    pub struct Configuration(u32) {
        /// 1 enables the controller; 1 to 0 resets it (EN).
        en with_en: u8 = 0, 1;
        /// Command set: 0 NVM, 6 all that are supported (CSS).
        css with_css: u8 = 4, 3;
        /// Memory page: 2 to the power of 12 and this (MPS).
        mps with_mps: u8 = 7, 4;
        /// Arbitration mechanism (AMS).
        ams with_ams: u8 = 11, 3;
        /// Shutdown: 0 none, 1 normal, 2 abrupt (SHN).
        shn with_shn: u8 = 14, 2;
        /// Submission queue entry size, a power of two (IOSQES).
        iosqes with_iosqes: u8 = 16, 4;
        /// Completion queue entry size, a power of two (IOCQES).
        iocqes with_iocqes: u8 = 20, 4;
        /// 1: ready independent of media (CRIME).
        crime with_crime: u8 = 24, 1;
    }
}

property! {
    /// Controller Status (section 3.1.3.6).
    pub struct ControllerStatus(u32) {
        /// 1: ready (RDY).
        rdy with_rdy: u8 = 0, 1;
        /// 1: fatal error; only a reset helps (CFS).
        cfs with_cfs: u8 = 1, 1;
        /// Shutdown: 0 none, 1 going on, 2 complete (SHST).
        shst with_shst: u8 = 2, 2;
        /// 1: a subsystem reset occurred (NSSRO).
        nssro with_nssro: u8 = 4, 1;
        /// 1: processing paused (PP).
        pp with_pp: u8 = 5, 1;
    }
}

impl Capabilities {
    /// Smallest memory page, in bytes: the unit of MDTS.
    pub const fn smallest_page_bytes(self) -> u64 {
        1 << (12 + self.mpsmin())
    }
}

impl Configuration {
    /// Whether the host wants the controller enabled.
    pub const fn is_enabled(self) -> bool {
        self.en() == 1
    }

    /// Whether the host asks for a shutdown.
    pub const fn wants_shutdown(self) -> bool {
        self.shn() != 0
    }
}

impl ControllerStatus {
    /// Whether the controller takes commands.
    pub const fn is_ready(self) -> bool {
        self.rdy() == 1
    }

    /// Whether a shutdown is complete.
    pub const fn is_shut_down(self) -> bool {
        self.shst() == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_bits() {
        let cap = Capabilities::default()
            .with_mqes(127)
            .with_cqr(1)
            .with_to(30)
            .with_css(1)
            .with_mpsmax(4)
            .with_crms(1);
        assert_eq!(cap.bits(), 1 << 59 | 4 << 52 | 1 << 37 | 30 << 24 | 1 << 16 | 127);
        assert_eq!((cap.mqes(), cap.to(), cap.css(), cap.mpsmax()), (127, 30, 1, 4));
        assert_eq!(cap.smallest_page_bytes(), 4096);
        assert_eq!(Version::default().with_major(2).with_minor(1).bits(), 0x0002_0100);
        // What a Linux host writes: 64-byte and 16-byte entries, enabled.
        let cc = Configuration::from_bits(0x0046_0001);
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.is_enabled()), (6, 4, true));
        assert_eq!(cc.with_shn(1).bits(), 0x0046_4001);
        assert!(cc.with_shn(1).wants_shutdown() && !cc.wants_shutdown());
        assert_eq!(
            ControllerStatus::default().with_rdy(1).with_shst(2).bits(),
            0b1001
        );
        assert!(ControllerStatus::from_bits(8).is_shut_down());
    }

    #[test]
    fn a_field_never_touches_its_neighbours() {
        let cc = Configuration::from_bits(u32::MAX);
        assert_eq!(cc.with_mps(0).bits(), !(0xf << 7));
        assert_eq!(Configuration::default().with_en(0xff).bits(), 1);
    }
}
