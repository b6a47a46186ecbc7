//! Admin commands a host sends over fabrics: their dwords as structures (NVM Express Base Specification 2.0c,
//! section 5).
//!
//! `from_command` reads the dwords whatever the opcode; look at the opcode first. `to_command` leaves data pointer
//! and identifier to the caller.

use super::command::Command;
use super::opcode::AdminOpcode;

/// Identify (section 5.17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identify {
    /// Namespace, or the identifier after which a list begins (NSID).
    pub nsid: u32,
    /// Which structure (CNS), see `identify::IdentifyStructure`.
    pub cns: u8,
    /// Controller (CNTID).
    pub cntid: u16,
    /// Identifier that some structures need (CNSSI).
    pub cns_specific: u16,
    /// I/O command set (CSI), see `identify::CommandSet`.
    pub csi: u8,
}

impl Identify {
    /// Reads the dwords of an Identify command.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            nsid: command.nsid(),
            cns: command.cdw10() as u8,
            cntid: (command.cdw10() >> 16) as u16,
            cns_specific: command.cdw11() as u16,
            csi: (command.cdw11() >> 24) as u8,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        Command::new(AdminOpcode::Identify.code(), self.nsid)
            .with_cdw10((self.cntid as u32) << 16 | self.cns as u32)
            .with_cdw11((self.csi as u32) << 24 | self.cns_specific as u32)
    }
}

/// Get Log Page (section 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GetLogPage {
    /// Namespace, or `BROADCAST_NSID` or 0 for the controller (NSID).
    pub nsid: u32,
    /// Which page (LID), see `log::LogPage`.
    pub page: u8,
    /// Meaning depends on the page, 7 bits (LSP). Bit 0 of the ANA log: groups without namespaces.
    pub specific: u8,
    /// Whether the event that announced the page stays (RAE).
    pub retain_event: bool,
    /// Length in dwords, 1 to 2^32; travels less one (NUMDL, NUMDU).
    pub length_dwords: u64,
    /// Identifier that some pages need (LSI).
    pub specific_identifier: u16,
    /// Where to begin, in bytes, or an index when `offset_is_index` (LPOL, LPOU).
    pub offset: u64,
    /// Whether the offset is an index of entries (OT).
    pub offset_is_index: bool,
    /// I/O command set (CSI).
    pub csi: u8,
}

impl GetLogPage {
    const RETAIN_EVENT: u32 = 1 << 15;
    const OFFSET_IS_INDEX: u32 = 1 << 23;

    /// The first `length_bytes` bytes of a page, rounded up to a dword.
    ///
    /// # Panics
    /// When the length is 0 or over 16 GiB.
    pub const fn new(nsid: u32, page: u8, length_bytes: u64) -> Self {
        assert!(
            length_bytes > 0 && length_bytes <= 4 << 32,
            "Get Log Page takes 1 to 2^32 dwords"
        );
        Self {
            nsid,
            page,
            specific: 0,
            retain_event: false,
            length_dwords: length_bytes.div_ceil(4),
            specific_identifier: 0,
            offset: 0,
            offset_is_index: false,
            csi: 0,
        }
    }

    /// Length asked for, in bytes. Chosen by the host: bound it by the page before anything is allocated.
    pub const fn length_bytes(&self) -> u64 {
        self.length_dwords * 4
    }

    /// Reads the dwords of a Get Log Page command.
    pub const fn from_command(command: &Command) -> Self {
        let dwords_less_one = (command.cdw10() >> 16) | command.cdw11() << 16;
        Self {
            nsid: command.nsid(),
            page: command.cdw10() as u8,
            specific: (command.cdw10() >> 8) as u8 & 0x7f,
            retain_event: command.cdw10() & Self::RETAIN_EVENT != 0,
            length_dwords: dwords_less_one as u64 + 1,
            specific_identifier: (command.cdw11() >> 16) as u16,
            offset: command.u64_at(48),
            offset_is_index: command.cdw14() & Self::OFFSET_IS_INDEX != 0,
            csi: (command.cdw14() >> 24) as u8,
        }
    }

    /// The command. `length_dwords` must be 1 to 2^32; other values lose their high bits.
    pub const fn to_command(self) -> Command {
        let dwords_less_one = self.length_dwords.wrapping_sub(1) as u32;
        let retain = if self.retain_event { Self::RETAIN_EVENT } else { 0 };
        let index = if self.offset_is_index {
            Self::OFFSET_IS_INDEX
        } else {
            0
        };
        let mut command = Command::new(AdminOpcode::GetLogPage.code(), self.nsid)
            .with_cdw10(
                dwords_less_one << 16 | retain | (self.specific as u32 & 0x7f) << 8 | self.page as u32,
            )
            .with_cdw11((self.specific_identifier as u32) << 16 | dwords_less_one >> 16)
            .with_cdw14((self.csi as u32) << 24 | index);
        command.put_u64(48, self.offset);
        command
    }
}

/// Set Features (section 5.27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetFeatures {
    /// Namespace, for features that have one (NSID).
    pub nsid: u32,
    /// Which feature (FID), see `features::Feature`.
    pub feature: u8,
    /// Whether the value outlives a reset (SV).
    pub save: bool,
    /// The value: dword 11.
    pub value: u32,
}

impl SetFeatures {
    const SAVE: u32 = 1 << 31;

    /// Reads the dwords of a Set Features command.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            nsid: command.nsid(),
            feature: command.cdw10() as u8,
            save: command.cdw10() & Self::SAVE != 0,
            value: command.cdw11(),
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        let save = if self.save { Self::SAVE } else { 0 };
        Command::new(AdminOpcode::SetFeatures.code(), self.nsid)
            .with_cdw10(save | self.feature as u32)
            .with_cdw11(self.value)
    }
}

/// Get Features (section 5.15). The value is dword 0 of the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GetFeatures {
    /// Namespace, for features that have one (NSID).
    pub nsid: u32,
    /// Which feature (FID), see `features::Feature`.
    pub feature: u8,
    /// Which value, 3 bits (SEL): 0 current, 1 default, 2 saved, 3 capabilities.
    pub select: u8,
    /// Dword 11, which some features need.
    pub value: u32,
}

impl GetFeatures {
    /// Reads the dwords of a Get Features command.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            nsid: command.nsid(),
            feature: command.cdw10() as u8,
            select: (command.cdw10() >> 8) as u8 & 7,
            value: command.cdw11(),
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        Command::new(AdminOpcode::GetFeatures.code(), self.nsid)
            .with_cdw10((self.select as u32 & 7) << 8 | self.feature as u32)
            .with_cdw11(self.value)
    }
}

/// Abort (section 5.1). Bit 0 of the completion's dword 0 is 1 when the command was not aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Abort {
    /// Queue of the command (SQID).
    pub sqid: u16,
    /// The command (CID).
    pub cid: u16,
}

impl Abort {
    /// Dword 0 of the completion when the command was not aborted.
    pub const NOT_ABORTED: u32 = 1;

    /// Reads the dwords of an Abort command.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            sqid: command.cdw10() as u16,
            cid: (command.cdw10() >> 16) as u16,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        Command::new(AdminOpcode::Abort.code(), 0).with_cdw10((self.cid as u32) << 16 | self.sqid as u32)
    }
}

/// Cross-Controller Reset (NVM Express Base Specification 2.3, section 5.4.3): ends an association of the same host of
/// which the host itself cannot be sure that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossControllerReset {
    /// Which controller (ICID).
    pub cntlid: u16,
    /// Its CIU.
    pub ciu: u8,
    /// Its CIRN.
    pub cirn: u64,
}

impl CrossControllerReset {
    /// Dword 0 of the completion when the controller is reset, or there is none (IRS).
    pub const IMMEDIATE: u32 = 1;

    /// Reads the dwords of a Cross-Controller Reset.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            cntlid: command.cdw10() as u16,
            ciu: (command.cdw10() >> 16) as u8,
            cirn: (command.cdw13() as u64) << 32 | command.cdw12() as u64,
        }
    }

    /// The command.
    pub const fn to_command(self) -> Command {
        Command::new(AdminOpcode::CrossControllerReset.code(), 0)
            .with_cdw10((self.ciu as u32) << 16 | self.cntlid as u32)
            .with_cdw12(self.cirn as u32)
            .with_cdw13((self.cirn >> 32) as u32)
    }
}

/// Keep Alive (section 5.18).
pub const fn keep_alive() -> Command {
    Command::new(AdminOpcode::KeepAlive.code(), 0)
}

/// Asynchronous Event Request (section 5.2).
pub const fn async_event_request() -> Command {
    Command::new(AdminOpcode::AsynchronousEventRequest.code(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dwords_are_as_the_specification_says() {
        let identify = Identify {
            nsid: 1,
            cns: 6,
            cntid: 0x1234,
            cns_specific: 0x5678,
            csi: 2,
        }
        .to_command();
        assert_eq!(
            (identify.opcode(), identify.cdw10(), identify.cdw11()),
            (6, 0x1234_0006, 0x0200_5678)
        );
        let mut get = GetLogPage::new(0xffff_ffff, 0x70, 0x40004);
        get.retain_event = true;
        get.specific = 1;
        get.offset = 0x1_0000_0002;
        get.csi = 2;
        let command = get.to_command();
        // 0x10001 dwords travel as 0x10000.
        assert_eq!(
            (command.opcode(), command.cdw10(), command.cdw11()),
            (2, 0x0000_8170, 1)
        );
        assert_eq!(
            (command.cdw12(), command.cdw13(), command.cdw14()),
            (2, 1, 0x0200_0000)
        );
        let set = SetFeatures {
            nsid: 0,
            feature: 7,
            save: true,
            value: 3,
        }
        .to_command();
        assert_eq!((set.opcode(), set.cdw10(), set.cdw11()), (9, 0x8000_0007, 3));
        let features = GetFeatures {
            nsid: 0,
            feature: 7,
            select: 3,
            value: 0,
        }
        .to_command();
        assert_eq!((features.opcode(), features.cdw10()), (0x0a, 0x0307));
        let reset = CrossControllerReset {
            cntlid: 0x0102,
            ciu: 3,
            cirn: 0x0807_0605_0403_0201,
        };
        let reset = reset.to_command();
        assert_eq!(
            (reset.opcode(), reset.cdw10(), reset.cdw12(), reset.cdw13()),
            (0x38, 0x03_0102, 0x0403_0201, 0x0807_0605)
        );
        let abort = Abort { sqid: 2, cid: 9 }.to_command();
        assert_eq!((abort.opcode(), abort.cdw10()), (8, 0x0009_0002));
        assert_eq!(
            (keep_alive().opcode(), async_event_request().opcode()),
            (0x18, 0x0c)
        );
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(a: [u8; 32], b: [u8; 32]) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&a);
            bytes[32..].copy_from_slice(&b);
            let noise = Command::from_bytes(bytes);
            let identify = Identify::from_command(&noise);
            prop_assert_eq!(Identify::from_command(&identify.to_command()), identify);
            let log = GetLogPage::from_command(&noise);
            prop_assert_eq!(GetLogPage::from_command(&log.to_command()), log);
            prop_assert!((4..=4u64 << 32).contains(&log.length_bytes()));
            let set = SetFeatures::from_command(&noise);
            prop_assert_eq!(SetFeatures::from_command(&set.to_command()), set);
            let get = GetFeatures::from_command(&noise);
            prop_assert_eq!(GetFeatures::from_command(&get.to_command()), get);
            let reset = CrossControllerReset::from_command(&noise);
            prop_assert_eq!(CrossControllerReset::from_command(&reset.to_command()), reset);
            let abort = Abort::from_command(&noise);
            prop_assert_eq!(Abort::from_command(&abort.to_command()), abort);
        }
    }
}
