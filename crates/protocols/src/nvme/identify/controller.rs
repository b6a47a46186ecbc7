//! Identify Controller (CNS 01h; NVM Express Base Specification 2.0c, section 5.17.2.1, figure 275).

use crate::nvme::layout::layout;
use crate::nvme::nqn::NqnField;
use crate::nvme::text::Text;

/// Bits of the fields, under the name of each field (figure 275).
pub mod bits {
    /// CMIC: the subsystem may have more than one port.
    pub const CMIC_MULTIPLE_PORTS: u8 = 1 << 0;
    /// CMIC: the subsystem may have more than one controller.
    pub const CMIC_MULTIPLE_CONTROLLERS: u8 = 1 << 1;
    /// CMIC: asymmetric namespace access is reported.
    pub const CMIC_ANA: u8 = 1 << 3;
    /// OAES: Attached Namespace Attribute Notices.
    pub const OAES_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// OAES: Firmware Activation Notices.
    pub const OAES_FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// OAES: Asymmetric Namespace Access Change Notices.
    pub const OAES_ANA_CHANGE: u32 = 1 << 11;
    /// OAES: Discovery Log Page Change Notifications.
    pub const OAES_DISCOVERY_CHANGE: u32 = 1 << 31;
    /// CTRATT: 128-bit host identifiers.
    pub const CTRATT_HOST_IDENTIFIER_128: u32 = 1 << 0;
    /// CTRATT: traffic based keep alive.
    pub const CTRATT_TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    /// CNTRLTYPE: an I/O controller.
    pub const CNTRLTYPE_IO: u8 = 1;
    /// CNTRLTYPE: a discovery controller.
    pub const CNTRLTYPE_DISCOVERY: u8 = 2;
    /// DCTYPE: a direct discovery controller.
    pub const DCTYPE_DIRECT: u8 = 1;
    /// CNTRLTYPE: an administrative controller.
    pub const CNTRLTYPE_ADMINISTRATIVE: u8 = 3;
    /// FRMW: slot 1 is read only.
    pub const FRMW_SLOT_1_READ_ONLY: u8 = 1 << 0;
    /// LPA: the health log for each namespace.
    pub const LPA_HEALTH_PER_NAMESPACE: u8 = 1 << 0;
    /// LPA: the Commands Supported and Effects log.
    pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
    /// LPA: log page offsets and lengths over 16 bits.
    pub const LPA_EXTENDED_DATA: u8 = 1 << 2;
    /// LPA: the Supported Log Pages log.
    pub const LPA_SUPPORTED_PAGES: u8 = 1 << 5;
    /// ANACAP: reports Optimized, Non-Optimized, Inaccessible, Persistent Loss and Change.
    pub const ANACAP_ALL_STATES: u8 = 0x1f;
    /// ANACAP: a namespace stays in its group while it is attached.
    pub const ANACAP_GROUP_FIXED: u8 = 1 << 6;
    /// ANACAP: NANAGRPID and the ANAGRPID of namespaces are supported.
    pub const ANACAP_GROUP_IDENTIFIERS: u8 = 1 << 7;
    /// SQES: entries of 64 bytes, at least and at most.
    pub const SQES_64_BYTES: u8 = 0x66;
    /// CQES: entries of 16 bytes, at least and at most.
    pub const CQES_16_BYTES: u8 = 0x44;
    /// ONCS: Compare.
    pub const ONCS_COMPARE: u16 = 1 << 0;
    /// ONCS: Write Uncorrectable.
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// ONCS: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// ONCS: Write Zeroes.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// ONCS: the Save and Select fields of Features.
    pub const ONCS_SAVE_AND_SELECT: u16 = 1 << 4;
    /// ONCS: reservations.
    pub const ONCS_RESERVATIONS: u16 = 1 << 5;
    /// ONCS: the Timestamp feature.
    pub const ONCS_TIMESTAMP: u16 = 1 << 6;
    /// ONCS: Verify.
    pub const ONCS_VERIFY: u16 = 1 << 7;
    /// ONCS: Copy.
    pub const ONCS_COPY: u16 = 1 << 8;
    /// FUSES: fused Compare and Write.
    pub const FUSES_COMPARE_AND_WRITE: u16 = 1 << 0;
    /// VWC: a volatile write cache is present.
    pub const VWC_PRESENT: u8 = 1 << 0;
    /// VWC: Flush with the broadcast NSID is refused.
    pub const VWC_BROADCAST_FLUSH_REFUSED: u8 = 2 << 1;
    /// VWC: Flush with the broadcast NSID is supported.
    pub const VWC_BROADCAST_FLUSH: u8 = 3 << 1;
    /// SGLS: SGLs without demands on alignment or granularity.
    pub const SGLS_BYTE_ALIGNED: u32 = 1;
    /// SGLS: SGLs of dwords only.
    pub const SGLS_DWORD_ALIGNED: u32 = 2;
    /// SGLS: keyed data blocks.
    pub const SGLS_KEYED: u32 = 1 << 2;
    /// SGLS: addresses that are offsets, as in-capsule data has them.
    pub const SGLS_OFFSETS: u32 = 1 << 20;
    /// SGLS: the transport SGL data block descriptor.
    pub const SGLS_TRANSPORT_DATA_BLOCK: u32 = 1 << 21;
    /// FCATT: the controller is static; without it, it is allocated at Connect.
    pub const FCATT_STATIC: u8 = 1 << 0;
    /// OFCS: Disconnect.
    pub const OFCS_DISCONNECT: u16 = 1 << 0;
    /// VER: revision 2.0.0.
    pub const VERSION_2_0: u32 = 0x0002_0000;
    /// VER: revision 1.4.0.
    pub const VERSION_1_4: u32 = 0x0001_0400;
    /// VER: revision 1.3.0.
    pub const VERSION_1_3: u32 = 0x0001_0300;
}

layout! {
    /// A power state descriptor (figure 276).
    pub struct PowerState[32] {
        /// Maximum power, in hundredths of a watt unless `flags` bit 0 says ten-thousandths (MP).
        maximum_power: u16 = 0,
        /// Bit 0 scale of the maximum power (MXPS), bit 1 non-operational state (NOPS).
        flags: u8 = 3,
        /// Time to enter the state, in microseconds (ENLAT).
        entry_latency_us: u32 = 4,
        /// Time to leave the state, in microseconds (EXLAT).
        exit_latency_us: u32 = 8,
        /// Relative read throughput, 0 is best (RRT).
        relative_read_throughput: u8 = 12,
        /// Relative read latency, 0 is best (RRL).
        relative_read_latency: u8 = 13,
        /// Relative write throughput, 0 is best (RWT).
        relative_write_throughput: u8 = 14,
        /// Relative write latency, 0 is best (RWL).
        relative_write_latency: u8 = 15,
        /// Idle power, in units of `idle_power_scale` (IDLP).
        idle_power: u16 = 16,
        /// Scale of the idle power, in bits 7:6 (IPS).
        idle_power_scale: u8 = 18,
        /// Active power, in units of the scale (ACTP).
        active_power: u16 = 20,
        /// Workload in bits 2:0 (APW) and scale in bits 7:6 (APS) of the active power.
        active_power_workload: u8 = 22,
    }
}

layout! {
    /// Identify Controller. `bits` names the bits of its fields. Default is all zeros, but spaces are what ASCII fields
    /// want: set those.
    pub struct IdentifyController[4096] {
        /// PCI vendor identifier (VID).
        vid: u16 = 0,
        /// PCI subsystem vendor identifier (SSVID).
        ssvid: u16 = 2,
        /// Serial number (SN).
        sn: Text<20> = 4,
        /// Model number (MN).
        mn: Text<40> = 24,
        /// Firmware revision (FR).
        fr: Text<8> = 64,
        /// Recommended arbitration burst, a power of two (RAB).
        rab: u8 = 72,
        /// IEEE organization identifier, least significant byte first (IEEE).
        ieee: [u8; 3] = 73,
        /// Multi-path I/O and namespace sharing (CMIC).
        cmic: u8 = 76,
        /// Largest transfer, a power of two in units of CAP.MPSMIN; 0 is no limit (MDTS).
        mdts: u8 = 77,
        /// Controller identifier (CNTLID).
        cntlid: u16 = 78,
        /// Version of the specification (VER).
        ver: u32 = 80,
        /// RTD3 resume latency, in microseconds (RTD3R).
        rtd3r: u32 = 84,
        /// RTD3 entry latency, in microseconds (RTD3E).
        rtd3e: u32 = 88,
        /// Optional asynchronous events (OAES).
        oaes: u32 = 92,
        /// Controller attributes (CTRATT).
        ctratt: u32 = 96,
        /// Read recovery levels (RRLS).
        rrls: u16 = 100,
        /// Controller type (CNTRLTYPE).
        cntrltype: u8 = 111,
        /// FRU globally unique identifier (FGUID).
        fguid: [u8; 16] = 112,
        /// Command retry delays 1 to 3, in units of 100 milliseconds (CRDT1 to CRDT3).
        crdt: [u16; 3] = 128,
        /// Tells apart the controllers that this one's identifier has named, one after the other (CIU; revision 2.3).
        ciu: u8 = 135,
        /// As the last, at random; 0 where there is none (CIRN; revision 2.3).
        cirn: u64 = 136,
        /// Optional admin commands (OACS).
        oacs: u16 = 256,
        /// Abort commands at a time, less one (ACL).
        acl: u8 = 258,
        /// Asynchronous Event Requests at a time, less one (AERL).
        aerl: u8 = 259,
        /// Firmware updates (FRMW).
        frmw: u8 = 260,
        /// Log page attributes (LPA).
        lpa: u8 = 261,
        /// Entries of the error log, less one (ELPE).
        elpe: u8 = 262,
        /// Power states, less one (NPSS).
        npss: u8 = 263,
        /// Format of vendor specific admin commands (AVSCC).
        avscc: u8 = 264,
        /// Autonomous power state transitions (APSTA).
        apsta: u8 = 265,
        /// Warning temperature, in kelvins (WCTEMP).
        wctemp: u16 = 266,
        /// Critical temperature, in kelvins (CCTEMP).
        cctemp: u16 = 268,
        /// Maximum time for firmware activation, in units of 100 milliseconds (MTFA).
        mtfa: u16 = 270,
        /// Preferred size of the host memory buffer, in 4 KiB (HMPRE).
        hmpre: u32 = 272,
        /// Minimum size of the host memory buffer, in 4 KiB (HMMIN).
        hmmin: u32 = 276,
        /// Total NVM capacity, in bytes (TNVMCAP).
        tnvmcap: u128 = 280,
        /// Unallocated NVM capacity, in bytes (UNVMCAP).
        unvmcap: u128 = 296,
        /// Replay protected memory block (RPMBS).
        rpmbs: u32 = 312,
        /// Extended device self-test time, in minutes (EDSTT).
        edstt: u16 = 316,
        /// Device self-test options (DSTO).
        dsto: u8 = 318,
        /// Firmware update granularity, in 4 KiB (FWUG).
        fwug: u8 = 319,
        /// Keep alive granularity, in units of 100 milliseconds; 0 is no keep alive (KAS).
        kas: u16 = 320,
        /// Host controlled thermal management (HCTMA).
        hctma: u16 = 322,
        /// Minimum thermal management temperature, in kelvins (MNTMT).
        mntmt: u16 = 324,
        /// Maximum thermal management temperature, in kelvins (MXTMT).
        mxtmt: u16 = 326,
        /// Sanitize capabilities (SANICAP).
        sanicap: u32 = 328,
        /// Host memory buffer minimum descriptor entry size, in 4 KiB (HMMINDS).
        hmminds: u32 = 332,
        /// Host memory buffer maximum descriptors (HMMAXD).
        hmmaxd: u16 = 336,
        /// Largest NVM set identifier (NSETIDMAX).
        nsetidmax: u16 = 338,
        /// Largest endurance group identifier (ENDGIDMAX).
        endgidmax: u16 = 340,
        /// Longest time in the ANA Change state, in seconds (ANATT).
        anatt: u8 = 342,
        /// Asymmetric namespace access capabilities (ANACAP).
        anacap: u8 = 343,
        /// Largest ANA group identifier (ANAGRPMAX).
        anagrpmax: u32 = 344,
        /// Number of ANA groups (NANAGRPID).
        nanagrpid: u32 = 348,
        /// Persistent event log size, in 64 KiB (PELS).
        pels: u32 = 352,
        /// Domain identifier (DOMAINID).
        domainid: u16 = 356,
        /// How long commands of a lost association may go on after its end, in milliseconds (CQT; revision 2.1).
        cqt: u16 = 386,
        /// Submission queue entry size (SQES): powers of two, the largest in bits 7:4, the required in 3:0.
        sqes: u8 = 512,
        /// Completion queue entry size (CQES), in the same form.
        cqes: u8 = 513,
        /// Commands a queue should hold at most (MAXCMD); fabrics must give it.
        maxcmd: u16 = 514,
        /// Largest valid namespace identifier (NN).
        nn: u32 = 516,
        /// Optional NVM commands (ONCS).
        oncs: u16 = 520,
        /// Fused operations (FUSES).
        fuses: u16 = 522,
        /// Format NVM attributes (FNA).
        fna: u8 = 524,
        /// Volatile write cache (VWC).
        vwc: u8 = 525,
        /// Atomic write unit normal, in blocks less one (AWUN).
        awun: u16 = 526,
        /// Atomic write unit power fail, in blocks less one (AWUPF).
        awupf: u16 = 528,
        /// Format of vendor specific I/O commands (ICSVSCC, before 2.0 NVSCC).
        icsvscc: u8 = 530,
        /// Namespace write protection (NWPC).
        nwpc: u8 = 531,
        /// Atomic compare and write unit, in blocks less one (ACWU).
        acwu: u16 = 532,
        /// Copy descriptor formats (CDFS).
        cdfs: u16 = 534,
        /// SGL support (SGLS).
        sgls: u32 = 536,
        /// Most namespaces the subsystem may have (MNAN); not 0 when ANA is reported and NN is.
        mnan: u32 = 540,
        /// Maximum domain namespace attachments (MAXDNA).
        maxdna: u128 = 544,
        /// Maximum I/O controller namespace attachments (MAXCNA).
        maxcna: u32 = 560,
        /// Name of the subsystem (SUBNQN).
        subnqn: NqnField = 768,
        /// Length of an I/O command capsule, in units of 16 bytes: 4 and in-capsule data (IOCCSZ).
        ioccsz: u32 = 1792,
        /// Length of an I/O response capsule, in units of 16 bytes (IORCSZ).
        iorcsz: u32 = 1796,
        /// Where in-capsule data begins, in units of 16 bytes after the command (ICDOFF).
        icdoff: u16 = 1800,
        /// Fabrics controller attributes (FCATT).
        fcatt: u8 = 1802,
        /// Most SGL data blocks in a capsule; 0 is no limit (MSDBD).
        msdbd: u8 = 1803,
        /// Optional fabrics commands (OFCS).
        ofcs: u16 = 1804,
        /// Discovery controller type (DCTYPE).
        dctype: u8 = 1806,
        /// Cross-Controller Resets at a time; 0 without that command (CCRL; revision 2.3).
        ccrl: u8 = 1807,
        /// Power states (PSD0 to PSD31).
        psd: [PowerState; 32] = 2048,
        /// Vendor specific.
        vendor: [u8; 1024] = 3072,
    }
}

impl IdentifyController {
    /// How many bytes of in-capsule data an I/O command may have (IOCCSZ without the command).
    pub const fn in_capsule_data_bytes(&self) -> u64 {
        (self.ioccsz as u64 * 16).saturating_sub(64)
    }

    /// The largest transfer in bytes, when the smallest memory page is `page_bytes` (CAP.MPSMIN); `None` is no limit.
    pub const fn transfer_limit_bytes(&self, page_bytes: u64) -> Option<u64> {
        match self.mdts {
            0 => None,
            power if power < 64 => page_bytes.checked_mul(1 << power),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(PowerState, IdentifyController);

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let subnqn = NqnField::from(&"nqn.2026-01.com.example:d".parse().unwrap());
        let bytes = IdentifyController {
            vid: 0x0201,
            sn: Text::new("SERIAL").unwrap(),
            mn: Text::new("MODEL").unwrap(),
            fr: Text::new("FW").unwrap(),
            ieee: [7, 8, 9],
            cmic: 0x0a,
            mdts: 5,
            cntlid: 0x1234,
            ver: bits::VERSION_2_0,
            oaes: bits::OAES_ANA_CHANGE,
            ctratt: 1,
            cntrltype: 1,
            aerl: 3,
            lpa: 6,
            kas: 10,
            ciu: 4,
            cirn: 0x0807_0605_0403_0201,
            cqt: 0x0605,
            anatt: 10,
            anacap: 0xdf,
            anagrpmax: 0x80,
            nanagrpid: 0x81,
            sqes: 0x66,
            cqes: 0x44,
            maxcmd: 128,
            nn: 0x0403_0201,
            oncs: 0x000d,
            fuses: 1,
            vwc: 7,
            acwu: 0x0102,
            sgls: 0x0010_0001,
            mnan: 0x0807_0605,
            subnqn,
            ioccsz: 0x0104,
            iorcsz: 1,
            icdoff: 2,
            fcatt: 3,
            msdbd: 1,
            ofcs: 1,
            dctype: 2,
            ccrl: 9,
            psd: std::array::from_fn(|index| PowerState {
                maximum_power: index as u16 + 1,
                ..PowerState::default()
            }),
            ..IdentifyController::default()
        }
        .encode();
        assert_eq!(bytes[..2], [1, 2]);
        assert_eq!(&bytes[4..24], b"SERIAL              ");
        assert_eq!(&bytes[24..30], b"MODEL ");
        assert_eq!(&bytes[64..72], b"FW      ");
        assert_eq!(bytes[73..80], [7, 8, 9, 0x0a, 5, 0x34, 0x12]);
        assert_eq!(bytes[80..84], [0, 0, 2, 0]);
        assert_eq!(bytes[92..97], [0, 8, 0, 0, 1]);
        assert_eq!(bytes[111], 1);
        assert_eq!(bytes[135..145], [4, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(bytes[386..388], [5, 6]);
        assert_eq!(bytes[259..262], [3, 0, 6]);
        assert_eq!(bytes[320], 10);
        assert_eq!(bytes[342..352], [10, 0xdf, 0x80, 0, 0, 0, 0x81, 0, 0, 0]);
        assert_eq!(bytes[512..523], [0x66, 0x44, 128, 0, 1, 2, 3, 4, 0x0d, 0, 1]);
        assert_eq!((bytes[525], &bytes[532..534]), (7, &[2, 1][..]));
        assert_eq!(bytes[536..544], [1, 0, 0x10, 0, 5, 6, 7, 8]);
        assert_eq!(&bytes[768..794], b"nqn.2026-01.com.example:d\0");
        assert_eq!(
            bytes[1792..1808],
            [4, 1, 0, 0, 1, 0, 0, 0, 2, 0, 3, 1, 1, 0, 2, 9]
        );
        assert_eq!((bytes[2048], bytes[2080], bytes[3040]), (1, 2, 32));
    }

    #[test]
    fn derived_sizes_follow_the_units() {
        let mut identify = IdentifyController {
            ioccsz: 516,
            mdts: 8,
            ..IdentifyController::default()
        };
        assert_eq!(identify.in_capsule_data_bytes(), 8192);
        assert_eq!(identify.transfer_limit_bytes(4096), Some(1 << 20));
        identify.mdts = 255;
        identify.ioccsz = 0;
        assert_eq!(identify.transfer_limit_bytes(4096), None);
        assert_eq!(identify.in_capsule_data_bytes(), 0);
    }
}
