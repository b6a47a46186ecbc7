//! Discovery log (LID 70h; NVM Express Base Specification 2.0c, section 5.16.1.23): a header of 1024 bytes, then an
//! entry of 1024 bytes for each way to each subsystem.

use crate::nvme::codes::codes;
use crate::nvme::layout::layout;
use crate::nvme::nqn::NqnField;
use crate::nvme::text::Text;

codes! {
    /// Transport of an entry (TRTYPE).
    pub enum TransportType: u8 {
        Rdma = 0x01 "RDMA",
        FibreChannel = 0x02 "Fibre Channel",
        Tcp = 0x03 "TCP",
        IntraHost = 0xfe "Intra-host",
    }
}

codes! {
    /// Form of an entry's address (ADRFAM).
    pub enum AddressFamily: u8 {
        Ipv4 = 0x01 "IPv4",
        Ipv6 = 0x02 "IPv6",
        InfiniBand = 0x03 "InfiniBand",
        FibreChannel = 0x04 "Fibre Channel",
        IntraHost = 0xfe "Intra-host",
    }
}

codes! {
    /// What an entry leads to (SUBTYPE).
    pub enum SubsystemType: u8 {
        Referral = 0x01 "Referral to another Discovery subsystem",
        Nvm = 0x02 "NVM subsystem",
        CurrentDiscovery = 0x03 "Current Discovery subsystem",
    }
}

/// Transport requirements (TREQ).
pub mod treq {
    /// Nothing is said of a secure channel.
    pub const SECURE_CHANNEL_NOT_SPECIFIED: u8 = 0;
    /// A secure channel is required.
    pub const SECURE_CHANNEL_REQUIRED: u8 = 1;
    /// A secure channel is not required.
    pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;
    /// Submission queue flow control may be disabled.
    pub const SQ_FLOW_CONTROL_DISABLE: u8 = 1 << 2;
}

/// Security type, the first byte of TSAS (NVMe over TCP transport specification 1.0c, section 3.1.2).
pub mod sectype {
    /// None.
    pub const NONE: u8 = 0;
    /// TLS 1.3 or later.
    pub const TLS_1_3: u8 = 2;
}

/// Entry flags (EFLAGS).
pub mod eflags {
    /// Every port with this flag gives the same information (DUPRETINFO).
    pub const DUPLICATE_INFORMATION: u16 = 1 << 0;
    /// Explicit persistent connections to this discovery subsystem are supported (EPCSD).
    pub const EXPLICIT_PERSISTENT_CONNECTION: u16 = 1 << 1;
}

layout! {
    /// Header of the log.
    pub struct DiscoveryHeader[1024] {
        /// Grows with each change; a host reads it again after the entries to see that they belong together (GENCTR).
        generation_counter: u64 = 0,
        /// Number of entries that follow (NUMREC).
        entries: u64 = 8,
        /// Format; 0 is the one there is (RECFMT).
        record_format: u16 = 16,
    }
}

layout! {
    /// An entry. Codes are held as they travel, so that one of an unknown kind can be passed over.
    pub struct DiscoveryEntry[1024] {
        /// Transport (TRTYPE), see `TransportType`.
        trtype: u8 = 0,
        /// Form of the address (ADRFAM), see `AddressFamily`.
        adrfam: u8 = 1,
        /// What it leads to (SUBTYPE), see `SubsystemType`.
        subtype: u8 = 2,
        /// Transport requirements, see `treq`.
        treq: u8 = 3,
        /// Port of the subsystem (PORTID).
        portid: u16 = 4,
        /// Controller, FFFFh for the dynamic model (CNTLID).
        cntlid: u16 = 6,
        /// Largest admin queue, in entries (ASQSZ); at least 32.
        asqsz: u16 = 8,
        /// Flags, see `eflags`.
        eflags: u16 = 10,
        /// Service: for TCP the port number in decimal (TRSVCID).
        trsvcid: Text<32> = 32,
        /// Name of the subsystem (SUBNQN).
        subnqn: NqnField = 256,
        /// Address: for TCP an IP address as text (TRADDR).
        traddr: Text<256> = 512,
        /// Transport specific: for TCP, byte 0 is the security type, 0 is none (TSAS).
        tsas: [u8; 256] = 768,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(DiscoveryHeader, DiscoveryEntry);

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let header = DiscoveryHeader {
            generation_counter: 3,
            entries: 2,
            record_format: 0,
        };
        assert_eq!(
            header.encode()[..18],
            [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let bytes = DiscoveryEntry {
            trtype: TransportType::Tcp.code(),
            adrfam: AddressFamily::Ipv6.code(),
            subtype: SubsystemType::Nvm.code(),
            treq: treq::SQ_FLOW_CONTROL_DISABLE,
            portid: 0x0102,
            cntlid: 0xffff,
            asqsz: 32,
            eflags: eflags::EXPLICIT_PERSISTENT_CONNECTION,
            trsvcid: Text::new("4420").unwrap(),
            subnqn: NqnField::from_bytes([b's'; 256]),
            traddr: Text::new("::1").unwrap(),
            tsas: [9; 256],
        }
        .encode();
        assert_eq!(bytes[..12], [3, 2, 2, 4, 2, 1, 0xff, 0xff, 32, 0, 2, 0]);
        assert_eq!(&bytes[32..40], b"4420    ");
        assert_eq!((bytes[63], bytes[64], bytes[255]), (b' ', 0, 0));
        assert_eq!((bytes[256], bytes[511]), (b's', b's'));
        assert_eq!(&bytes[512..516], b"::1 ");
        assert_eq!((bytes[767], bytes[768], bytes[1023]), (b' ', 9, 9));
    }
}
