//! The logs every controller keeps (NVM Express Base Specification 2.0c, sections 5.16.1.1 to 5.16.1.6).

use crate::nvme::LengthError;
use crate::nvme::layout::{layout, prefix};

layout! {
    /// Supported Log Pages (LID 00h): bit 0 of a page's dword says that it is supported.
    pub struct SupportedLogPages[1024] {
        /// One dword for each log page identifier.
        pages: [u32; 256] = 0,
    }
}

/// SupportedLogPages: the page is supported (LSUPP; section 5.16.1.1, figure 203).
pub const LOG_PAGE_SUPPORTED: u32 = 1 << 0;

layout! {
    /// Feature Identifiers Supported and Effects (LID 12h; section 5.16.1.18).
    pub struct FeatureEffects[1024] {
        /// One dword for each feature identifier, see `feature_effects`.
        features: [u32; 256] = 0,
    }
}

/// Bits of a feature's effects (section 5.16.1.18, figure 256).
pub mod feature_effects {
    /// The feature is supported (FSUPP).
    pub const SUPPORTED: u32 = 1 << 0;
    /// Setting it may change the capabilities of the controller (CCC).
    pub const CHANGES_CONTROLLER: u32 = 1 << 4;
    /// Its scope is the namespace (FSP, bit 0 of bits 31:20).
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// Its scope is the controller (FSP, bit 1 of bits 31:20).
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
}

layout! {
    /// An entry of Error Information (LID 01h).
    pub struct ErrorEntry[64] {
        /// Number of the error, 1 is the first; 0 is an unused entry.
        error_count: u64 = 0,
        /// Queue of the command, FFFFh for no particular one.
        sqid: u16 = 8,
        /// The command, FFFFh for no particular one.
        cid: u16 = 10,
        /// The status field of its completion, phase bit included.
        status_field: u16 = 12,
        /// Where the wrong parameter lies: byte in bits 7:0, bit in bits 10:8; FFFFh for no particular one.
        parameter_location: u16 = 14,
        /// First block of the error.
        lba: u64 = 16,
        /// Namespace of the error.
        nsid: u32 = 24,
        /// Log page with more vendor specific information, 0 is none.
        vendor_log_page: u8 = 28,
        /// Transport type (TRTYPE).
        trtype: u8 = 29,
        /// Command specific information.
        command_specific: u64 = 32,
        /// Transport specific information.
        transport_specific: u16 = 40,
    }
}

layout! {
    /// SMART and health information (LID 02h).
    pub struct HealthLog[512] {
        /// Bits: 0 spare low, 1 temperature, 2 reliability, 3 read only, 4 volatile memory backup failed.
        critical_warning: u8 = 0,
        /// Temperature in kelvins.
        composite_temperature: u16 = 1,
        /// Spare capacity left, in percent.
        available_spare: u8 = 3,
        /// Spare capacity below which a warning is given, in percent.
        available_spare_threshold: u8 = 4,
        /// Life used, in percent, may be over 100.
        percentage_used: u8 = 5,
        /// Endurance group critical warning summary.
        endurance_group_warning: u8 = 6,
        /// Data read, in thousands of 512 bytes.
        data_units_read: u128 = 32,
        /// Data written, in thousands of 512 bytes.
        data_units_written: u128 = 48,
        /// Read commands (Compare and Verify too).
        host_read_commands: u128 = 64,
        /// Write commands.
        host_write_commands: u128 = 80,
        /// Time with commands outstanding, in minutes.
        controller_busy_minutes: u128 = 96,
        /// Power cycles.
        power_cycles: u128 = 112,
        /// Time powered on, in hours.
        power_on_hours: u128 = 128,
        /// Shutdowns without notice.
        unsafe_shutdowns: u128 = 144,
        /// Media and data integrity errors.
        media_errors: u128 = 160,
        /// Entries ever made in the error log.
        error_log_entries: u128 = 176,
        /// Time above the warning temperature, in minutes.
        warning_temperature_minutes: u32 = 192,
        /// Time above the critical temperature, in minutes.
        critical_temperature_minutes: u32 = 196,
        /// Temperature sensors, in kelvins; 0 is no sensor.
        temperature_sensors: [u16; 8] = 200,
        /// Thermal management transitions, light and heavy.
        thermal_transitions: [u32; 2] = 216,
        /// Time in thermal management, light and heavy, in seconds.
        thermal_seconds: [u32; 2] = 224,
    }
}

layout! {
    /// Firmware slots (LID 03h).
    pub struct FirmwareSlots[512] {
        /// Slot in use in bits 2:0, slot after the next reset in bits 6:4 (AFI).
        active: u8 = 0,
        /// Revision in each slot, 1 to 7, ASCII; zeros for an empty slot (FRS1 to FRS7).
        revisions: [[u8; 8]; 7] = 8,
    }
}

/// Bits of a command's effects (section 5.16.1.6, figure 211).
pub mod effects {
    /// The command is supported (CSUPP).
    pub const SUPPORTED: u32 = 1 << 0;
    /// It may change blocks (LBCC).
    pub const CHANGES_BLOCKS: u32 = 1 << 1;
    /// It may change the capabilities of a namespace (NCC).
    pub const CHANGES_NAMESPACE: u32 = 1 << 2;
    /// It may change the set of namespaces (NIC).
    pub const CHANGES_INVENTORY: u32 = 1 << 3;
    /// It may change the capabilities of the controller (CCC).
    pub const CHANGES_CONTROLLER: u32 = 1 << 4;
}

layout! {
    /// Commands Supported and Effects (LID 05h), see `effects`.
    pub struct CommandEffects[4096] {
        /// Admin commands, by opcode (ACS).
        admin: [u32; 256] = 0,
        /// I/O commands, by opcode (IOCS).
        io: [u32; 256] = 1024,
    }
}

/// Changed Namespace List (LID 04h): up to 1024 identifiers, ascending; when more changed, FFFFFFFFh alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedNamespaces {
    /// These changed.
    Some(Vec<u32>),
    /// More changed than the list holds: look at all of them.
    TooMany,
}

impl ChangedNamespaces {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 4096;
    const LIMIT: usize = Self::BYTES / 4;

    /// The list as it travels.
    pub fn encode(&self) -> [u8; 4096] {
        let overflow = [u32::MAX];
        let nsids = match self {
            Self::Some(nsids) if nsids.len() <= Self::LIMIT => nsids.as_slice(),
            _ => &overflow,
        };
        let mut bytes = [0; 4096];
        for (place, nsid) in bytes.chunks_exact_mut(4).zip(nsids) {
            place.copy_from_slice(&nsid.to_le_bytes());
        }
        bytes
    }

    /// Reads a list, up to the first 0.
    ///
    /// # Errors
    /// `LengthError` when there are fewer than 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, LengthError> {
        let bytes: &[u8; 4096] = prefix("ChangedNamespaces", bytes)?;
        let nsids: Vec<u32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|nsid| u32::from_le_bytes(*nsid))
            .take_while(|&nsid| nsid != 0)
            .collect();
        if nsids.first() == Some(&u32::MAX) {
            return Ok(Self::TooMany);
        }
        Ok(Self::Some(nsids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use crate::nvme::opcode::{AdminOpcode, NvmOpcode};

    layout_tests!(
        SupportedLogPages,
        FeatureEffects,
        ErrorEntry,
        HealthLog,
        FirmwareSlots,
        CommandEffects
    );

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let health = HealthLog {
            composite_temperature: 0x0131,
            available_spare: 100,
            data_units_read: 1,
            data_units_written: 2,
            host_read_commands: 3,
            power_on_hours: 4,
            error_log_entries: 5,
            temperature_sensors: [6; 8],
            thermal_seconds: [0, 7],
            ..HealthLog::default()
        };
        let bytes = health.encode();
        assert_eq!(bytes[..4], [0, 0x31, 1, 100]);
        assert_eq!(
            (bytes[32], bytes[48], bytes[64], bytes[128], bytes[176]),
            (1, 2, 3, 4, 5)
        );
        assert_eq!((bytes[200], bytes[214], bytes[228]), (6, 6, 7));
        let mut effects = CommandEffects::default();
        effects.admin[usize::from(AdminOpcode::Identify.code())] = effects::SUPPORTED;
        effects.io[usize::from(NvmOpcode::Write.code())] = effects::SUPPORTED | effects::CHANGES_BLOCKS;
        let bytes = effects.encode();
        assert_eq!((bytes[24], bytes[1028]), (1, 3));
        let slots = FirmwareSlots {
            active: 1,
            revisions: [*b"1.0     "; 7],
        };
        assert_eq!(&slots.encode()[8..12], b"1.0 ");
        let error = ErrorEntry {
            error_count: 1,
            sqid: 2,
            cid: 3,
            status_field: 4,
            parameter_location: 5,
            lba: 6,
            nsid: 7,
            trtype: 3,
            command_specific: 8,
            ..Default::default()
        };
        let bytes = error.encode();
        assert_eq!(
            (
                bytes[8], bytes[10], bytes[12], bytes[14], bytes[16], bytes[24], bytes[29], bytes[32]
            ),
            (2, 3, 4, 5, 6, 7, 3, 8)
        );
    }

    #[test]
    fn more_changes_than_the_list_holds_become_one_mark() {
        for (list, back) in [
            (ChangedNamespaces::Some(vec![]), ChangedNamespaces::Some(vec![])),
            (
                ChangedNamespaces::Some(vec![1, 9]),
                ChangedNamespaces::Some(vec![1, 9]),
            ),
            (
                ChangedNamespaces::Some((1..=1024).collect()),
                ChangedNamespaces::Some((1..=1024).collect()),
            ),
            (
                ChangedNamespaces::Some((1..=1025).collect()),
                ChangedNamespaces::TooMany,
            ),
            (ChangedNamespaces::TooMany, ChangedNamespaces::TooMany),
        ] {
            assert_eq!(ChangedNamespaces::decode(&list.encode()).unwrap(), back);
        }
        assert!(ChangedNamespaces::decode(&[0; 4095]).is_err());
    }
}
