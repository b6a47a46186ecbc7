//! Reservations of a namespace: the four commands and what they carry (NVM Express Base Specification 2.0c, sections
//! 7.2 to 7.5; what they mean: section 8.19).
//!
//! `from_command` reads the dwords whatever the opcode; look at the opcode first. `to_command` leaves data pointer
//! and identifier to the caller. Codes are held as they travel, so that a controller can refuse those it does not
//! know.

use super::codes::codes;
use super::command::Command;
use super::layout::{LengthError, layout};
use super::opcode::NvmOpcode;

codes! {
    /// What a reservation keeps from others (RTYPE; section 8.19, Reservation Type Encoding).
    pub enum ReservationType: u8 {
        WriteExclusive = 1 "Write Exclusive",
        ExclusiveAccess = 2 "Exclusive Access",
        WriteExclusiveRegistrants = 3 "Write Exclusive - Registrants Only",
        ExclusiveAccessRegistrants = 4 "Exclusive Access - Registrants Only",
        WriteExclusiveAll = 5 "Write Exclusive - All Registrants",
        ExclusiveAccessAll = 6 "Exclusive Access - All Registrants",
    }
}

impl ReservationType {
    /// Whether those who are kept out may still read.
    pub const fn allows_reads(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll
        )
    }

    /// Whether every registrant has the holder's access.
    pub const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether every registrant is a holder.
    pub const fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

codes! {
    /// What Reservation Register does (RREGA; section 7.3).
    pub enum RegisterAction: u8 {
        Register = 0 "Register Reservation Key",
        Unregister = 1 "Unregister Reservation Key",
        Replace = 2 "Replace Reservation Key",
    }
}

codes! {
    /// What Reservation Acquire does (RACQA; section 7.2).
    pub enum AcquireAction: u8 {
        Acquire = 0 "Acquire",
        Preempt = 1 "Preempt",
        PreemptAndAbort = 2 "Preempt and Abort",
    }
}

codes! {
    /// What Reservation Release does (RRELA; section 7.4).
    pub enum ReleaseAction: u8 {
        Release = 0 "Release",
        Clear = 1 "Clear",
    }
}

codes! {
    /// What Reservation Register does to the persistence through power loss (CPTPL; section 7.3).
    pub enum ChangePersistence: u8 {
        Keep = 0 "No change",
        Forget = 2 "Reservations are released and registrants are cleared on a power on",
        Persist = 3 "Reservations and registrants persist across a power loss",
    }
}

const ACTION_MASK: u32 = 7;
const IGNORE_EXISTING_KEY: u32 = 1 << 3;
const PERSISTENCE_SHIFT: u32 = 30;
const TYPE_SHIFT: u32 = 8;

const fn first_dword(action: u8, ignore_existing_key: bool) -> u32 {
    action as u32 & ACTION_MASK
        | if ignore_existing_key {
            IGNORE_EXISTING_KEY
        } else {
            0
        }
}

/// Reservation Register (section 7.3). [`RegisterKeys`] travels as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReservationRegister {
    /// Namespace (NSID).
    pub nsid: u32,
    /// See [`RegisterAction`]; 3 bits.
    pub action: u8,
    /// The current key need not be right (IEKEY).
    pub ignore_existing_key: bool,
    /// See [`ChangePersistence`]; 2 bits.
    pub persistence: u8,
}

impl ReservationRegister {
    /// Reads the dwords of the command.
    pub const fn from_command(command: &Command) -> Self {
        let dword = command.cdw10();
        Self {
            nsid: command.nsid(),
            action: (dword & ACTION_MASK) as u8,
            ignore_existing_key: dword & IGNORE_EXISTING_KEY != 0,
            persistence: (dword >> PERSISTENCE_SHIFT) as u8,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        let dword = first_dword(self.action, self.ignore_existing_key);
        Command::new(NvmOpcode::ReservationRegister.code(), self.nsid)
            .with_cdw10(dword | (self.persistence as u32) << PERSISTENCE_SHIFT)
    }
}

/// Reservation Acquire (section 7.2). [`AcquireKeys`] travels as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReservationAcquire {
    /// Namespace (NSID).
    pub nsid: u32,
    /// See [`AcquireAction`]; 3 bits.
    pub action: u8,
    /// Not allowed since revision 1.3 (IEKEY).
    pub ignore_existing_key: bool,
    /// See [`ReservationType`] (RTYPE).
    pub kind: u8,
}

impl ReservationAcquire {
    /// Reads the dwords of the command.
    pub const fn from_command(command: &Command) -> Self {
        let dword = command.cdw10();
        Self {
            nsid: command.nsid(),
            action: (dword & ACTION_MASK) as u8,
            ignore_existing_key: dword & IGNORE_EXISTING_KEY != 0,
            kind: (dword >> TYPE_SHIFT) as u8,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        let dword = first_dword(self.action, self.ignore_existing_key);
        Command::new(NvmOpcode::ReservationAcquire.code(), self.nsid)
            .with_cdw10(dword | (self.kind as u32) << TYPE_SHIFT)
    }
}

/// Reservation Release (section 7.4). [`ReleaseKey`] travels as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReservationRelease {
    /// Namespace (NSID).
    pub nsid: u32,
    /// See [`ReleaseAction`]; 3 bits.
    pub action: u8,
    /// Not allowed since revision 1.3 (IEKEY).
    pub ignore_existing_key: bool,
    /// The type of the reservation that is released, see [`ReservationType`] (RTYPE).
    pub kind: u8,
}

impl ReservationRelease {
    /// Reads the dwords of the command.
    pub const fn from_command(command: &Command) -> Self {
        let acquire = ReservationAcquire::from_command(command);
        Self {
            nsid: acquire.nsid,
            action: acquire.action,
            ignore_existing_key: acquire.ignore_existing_key,
            kind: acquire.kind,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        let dword = first_dword(self.action, self.ignore_existing_key);
        Command::new(NvmOpcode::ReservationRelease.code(), self.nsid)
            .with_cdw10(dword | (self.kind as u32) << TYPE_SHIFT)
    }
}

/// Reservation Report (section 7.5). A [`ReservationReport`] travels back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskReservationReport {
    /// Namespace (NSID).
    pub nsid: u32,
    /// Length in dwords, 1 to 2^32; travels less one (NUMD).
    pub length_dwords: u64,
    /// Whether hosts are told by their 128-bit identifiers (EDS).
    pub extended: bool,
}

impl AskReservationReport {
    /// Length asked for, in bytes. Chosen by the host: bound it before anything is allocated.
    pub const fn length_bytes(&self) -> u64 {
        self.length_dwords * 4
    }

    /// Reads the dwords of the command.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            nsid: command.nsid(),
            length_dwords: command.cdw10() as u64 + 1,
            extended: command.cdw11() & 1 != 0,
        }
    }

    /// The command.
    ///
    /// # Panics
    /// When the length is not 1 to 2^32 dwords.
    pub const fn to_command(self) -> Command {
        assert!(self.length_dwords >= 1 && self.length_dwords <= 1 << 32);
        Command::new(NvmOpcode::ReservationReport.code(), self.nsid)
            .with_cdw10((self.length_dwords - 1) as u32)
            .with_cdw11(self.extended as u32)
    }
}

layout! {
    /// Data of Reservation Register (section 7.3).
    pub struct RegisterKeys[16] {
        /// The host's key now (CRKEY).
        current: u64 = 0,
        /// The key to register (NRKEY).
        new: u64 = 8,
    }
}

layout! {
    /// Data of Reservation Acquire (section 7.2).
    pub struct AcquireKeys[16] {
        /// The host's key (CRKEY).
        current: u64 = 0,
        /// The key of those who are preempted (PRKEY).
        preempt: u64 = 8,
    }
}

layout! {
    /// Data of Reservation Release (section 7.4).
    pub struct ReleaseKey[8] {
        /// The host's key (CRKEY).
        current: u64 = 0,
    }
}

layout! {
    /// The beginning of Reservation Status, with either kind of entries (section 7.5).
    pub struct ReservationStatusHeader[24] {
        /// Counts changes (GEN).
        generation: u32 = 0,
        /// See [`ReservationType`]; 0 when there is no reservation (RTYPE).
        kind: u8 = 4,
        /// Registrants, those included that do not fit (REGCTL).
        registrants: u16 = 5,
        /// Whether the reservation persists through power loss (PTPLS).
        persistent: u8 = 9,
    }
}

/// RCSTS: the host holds the reservation (section 7.5).
pub const REGISTRANT_HOLDS: u8 = 1 << 0;

layout! {
    /// A registrant whose identifier has 64 bits (section 7.5, Registered Controller).
    pub struct RegisteredController[24] {
        /// Controller, FFFFh in the dynamic controller model (CNTLID).
        cntlid: u16 = 0,
        /// See [`REGISTRANT_HOLDS`] (RCSTS).
        status: u8 = 2,
        /// Host identifier (HOSTID).
        host: [u8; 8] = 8,
        /// Its key (RKEY).
        key: u64 = 16,
    }
}

layout! {
    /// A registrant whose identifier has 128 bits (section 7.5, Registered Controller Extended).
    pub struct RegisteredControllerExtended[64] {
        /// Controller, FFFFh in the dynamic controller model (CNTLID).
        cntlid: u16 = 0,
        /// See [`REGISTRANT_HOLDS`] (RCSTS).
        status: u8 = 2,
        /// Its key (RKEY).
        key: u64 = 8,
        /// Host identifier (HOSTID).
        host: [u8; 16] = 16,
    }
}

/// Where the entries begin in the extended structure, in bytes.
const EXTENDED_HEADER_BYTES: usize = 64;

/// The entries of a report; a namespace's hosts have identifiers of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registrants {
    /// 64 bits (EDS cleared).
    Short(Vec<RegisteredController>),
    /// 128 bits (EDS set), which fabrics demand.
    Extended(Vec<RegisteredControllerExtended>),
}

/// Reservation Status (section 7.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// What holds for all; its count of registrants may be larger than the list when a host asked for less.
    pub header: ReservationStatusHeader,
    /// The registrants that fitted.
    pub registrants: Registrants,
}

impl ReservationReport {
    /// The whole structure as it travels.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.header.encode().to_vec();
        match &self.registrants {
            Registrants::Short(list) => bytes.extend(list.iter().flat_map(RegisteredController::encode)),
            Registrants::Extended(list) => {
                bytes.resize(EXTENDED_HEADER_BYTES, 0);
                bytes.extend(list.iter().flat_map(RegisteredControllerExtended::encode));
            }
        }
        bytes
    }

    /// Reads as many registrants as are there, at most those that the header counts.
    ///
    /// # Errors
    /// `LengthError` when there is not even the whole header.
    pub fn decode(bytes: &[u8], extended: bool) -> Result<Self, LengthError> {
        let header = ReservationStatusHeader::decode(bytes)?;
        let count = usize::from(header.registrants);
        let registrants = if extended {
            let entries = bytes.get(EXTENDED_HEADER_BYTES..).ok_or(LengthError {
                structure: "ReservationStatusExtended",
                needed_bytes: EXTENDED_HEADER_BYTES,
                got_bytes: bytes.len(),
            })?;
            let entries = entries
                .chunks_exact(RegisteredControllerExtended::BYTES)
                .take(count);
            Registrants::Extended(entries.map(super::layout::Field::get).collect())
        } else {
            let entries = bytes[ReservationStatusHeader::BYTES..]
                .chunks_exact(RegisteredController::BYTES)
                .take(count);
            Registrants::Short(entries.map(super::layout::Field::get).collect())
        };
        Ok(Self { header, registrants })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use proptest::prelude::*;

    layout_tests!(
        RegisterKeys,
        AcquireKeys,
        ReleaseKey,
        ReservationStatusHeader,
        RegisteredController,
        RegisteredControllerExtended
    );

    #[test]
    fn dwords_have_their_bits() {
        let register = ReservationRegister {
            nsid: 1,
            action: RegisterAction::Replace.code(),
            ignore_existing_key: true,
            persistence: ChangePersistence::Persist.code(),
        };
        let command = register.to_command();
        assert_eq!((command.opcode(), command.cdw10()), (0x0d, 0xc000_000a));
        let acquire = ReservationAcquire {
            nsid: 1,
            action: AcquireAction::PreemptAndAbort.code(),
            ignore_existing_key: false,
            kind: ReservationType::ExclusiveAccessAll.code(),
        };
        let command = acquire.to_command();
        assert_eq!((command.opcode(), command.cdw10()), (0x11, 0x0602));
        let release = ReservationRelease {
            nsid: 1,
            action: ReleaseAction::Clear.code(),
            ignore_existing_key: true,
            kind: 3,
        };
        let command = release.to_command();
        assert_eq!((command.opcode(), command.cdw10()), (0x15, 0x0309));
        let report = AskReservationReport {
            nsid: 1,
            length_dwords: 1024,
            extended: true,
        };
        let command = report.to_command();
        assert_eq!(
            (command.opcode(), command.cdw10(), command.cdw11()),
            (0x0e, 1023, 1)
        );
    }

    #[test]
    fn types_differ_in_who_may_do_what() {
        use ReservationType::*;
        for (kind, reads, registrants, all) in [
            (WriteExclusive, true, false, false),
            (ExclusiveAccess, false, false, false),
            (WriteExclusiveRegistrants, true, true, false),
            (ExclusiveAccessRegistrants, false, true, false),
            (WriteExclusiveAll, true, true, true),
            (ExclusiveAccessAll, false, true, true),
        ] {
            assert_eq!(kind.allows_reads(), reads, "{kind}");
            assert_eq!(kind.admits_registrants(), registrants, "{kind}");
            assert_eq!(kind.is_held_by_all(), all, "{kind}");
        }
    }

    #[test]
    fn entries_begin_where_the_specification_puts_them() {
        let header = ReservationStatusHeader {
            generation: 0x0403_0201,
            kind: 5,
            registrants: 0x0706,
            persistent: 1,
        };
        let short = RegisteredController {
            cntlid: 0xffff,
            status: REGISTRANT_HOLDS,
            host: [7; 8],
            key: 8,
        };
        let report = ReservationReport {
            header,
            registrants: Registrants::Short(vec![short]),
        };
        let bytes = report.encode();
        assert_eq!(bytes[..10], [1, 2, 3, 4, 5, 6, 7, 0, 0, 1]);
        assert_eq!(bytes[24..28], [0xff, 0xff, 1, 0]);
        assert_eq!((bytes[32], bytes[40], bytes.len()), (7, 8, 48));
        let extended = RegisteredControllerExtended {
            cntlid: 0xffff,
            status: REGISTRANT_HOLDS,
            key: 8,
            host: [7; 16],
        };
        let report = ReservationReport {
            header,
            registrants: Registrants::Extended(vec![extended]),
        };
        let bytes = report.encode();
        assert_eq!(bytes[64..68], [0xff, 0xff, 1, 0]);
        assert_eq!((bytes[24], bytes[72], bytes[80], bytes.len()), (0, 8, 7, 128));
        assert_eq!(ReservationReport::decode(&bytes, true).unwrap(), report);
        assert!(ReservationReport::decode(&bytes[..63], true).is_err());
        assert!(ReservationReport::decode(&bytes[..23], false).is_err());
    }

    proptest! {
        #[test]
        fn commands_come_back(nsid: u32, action in 0u8..8, key: bool, persistence in 0u8..4, kind: u8, dwords in 1u64..=1 << 32, extended: bool) {
            let register = ReservationRegister { nsid, action, ignore_existing_key: key, persistence };
            prop_assert_eq!(ReservationRegister::from_command(&register.to_command()), register);
            let acquire = ReservationAcquire { nsid, action, ignore_existing_key: key, kind };
            prop_assert_eq!(ReservationAcquire::from_command(&acquire.to_command()), acquire);
            let release = ReservationRelease { nsid, action, ignore_existing_key: key, kind };
            prop_assert_eq!(ReservationRelease::from_command(&release.to_command()), release);
            let report = AskReservationReport { nsid, length_dwords: dwords, extended };
            prop_assert_eq!(AskReservationReport::from_command(&report.to_command()), report);
        }

        #[test]
        fn reports_come_back(generation: u32, kind: u8, keys in prop::collection::vec(any::<(u64, [u8; 16])>(), 0..20)) {
            let header = ReservationStatusHeader { generation, kind, registrants: keys.len() as u16, persistent: 0 };
            let entry = |&(key, host): &(u64, [u8; 16])| RegisteredControllerExtended { cntlid: 0xffff, status: 0, key, host };
            let report = ReservationReport { header, registrants: Registrants::Extended(keys.iter().map(entry).collect()) };
            prop_assert_eq!(ReservationReport::decode(&report.encode(), true).unwrap(), report);
            let entry = |&(key, host): &(u64, [u8; 16])| RegisteredController { cntlid: 0xffff, status: 0, key, host: *host.first_chunk().unwrap() };
            let report = ReservationReport { header, registrants: Registrants::Short(keys.iter().map(entry).collect()) };
            prop_assert_eq!(ReservationReport::decode(&report.encode(), false).unwrap(), report);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300), extended: bool) {
            let _ = ReservationReport::decode(&noise, extended);
        }
    }
}
