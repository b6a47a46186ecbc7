//! Opcodes and the direction of data they imply.

use super::codes::codes;

/// The opcode that marks a fabrics command, on admin and I/O queues alike (NVM Express Base Specification 2.0c,
/// section 6).
pub const FABRICS_OPCODE: u8 = 0x7f;
/// The first vendor specific I/O opcode (NVM Express Base Specification 2.0c, section 7).
pub const FIRST_VENDOR_IO_OPCODE: u8 = 0x80;

codes! {
    /// Opcodes of the admin queue (NVM Express Base Specification 2.0c, section 5).
    pub enum AdminOpcode: u8 {
        DeleteSubmissionQueue = 0x00 "Delete I/O Submission Queue",
        CreateSubmissionQueue = 0x01 "Create I/O Submission Queue",
        GetLogPage = 0x02 "Get Log Page",
        DeleteCompletionQueue = 0x04 "Delete I/O Completion Queue",
        CreateCompletionQueue = 0x05 "Create I/O Completion Queue",
        Identify = 0x06 "Identify",
        Abort = 0x08 "Abort",
        SetFeatures = 0x09 "Set Features",
        GetFeatures = 0x0a "Get Features",
        AsynchronousEventRequest = 0x0c "Asynchronous Event Request",
        NamespaceManagement = 0x0d "Namespace Management",
        FirmwareCommit = 0x10 "Firmware Commit",
        FirmwareImageDownload = 0x11 "Firmware Image Download",
        DeviceSelfTest = 0x14 "Device Self-test",
        NamespaceAttachment = 0x15 "Namespace Attachment",
        KeepAlive = 0x18 "Keep Alive",
        DirectiveSend = 0x19 "Directive Send",
        DirectiveReceive = 0x1a "Directive Receive",
        /// NVM Express Base Specification 2.3, section 5.4.3.
        CrossControllerReset = 0x38 "Cross-Controller Reset",
        FormatNvm = 0x80 "Format NVM",
        SecuritySend = 0x81 "Security Send",
        SecurityReceive = 0x82 "Security Receive",
        Sanitize = 0x84 "Sanitize",
        GetLbaStatus = 0x86 "Get LBA Status",
    }
}

codes! {
    /// Opcodes of an I/O queue with the NVM command set (NVM Command Set Specification 1.0c, section 3.2; Flush and
    /// the reservations: NVM Express Base Specification 2.0c, section 7).
    pub enum NvmOpcode: u8 {
        Flush = 0x00 "Flush",
        Write = 0x01 "Write",
        Read = 0x02 "Read",
        WriteUncorrectable = 0x04 "Write Uncorrectable",
        Compare = 0x05 "Compare",
        WriteZeroes = 0x08 "Write Zeroes",
        DatasetManagement = 0x09 "Dataset Management",
        Verify = 0x0c "Verify",
        ReservationRegister = 0x0d "Reservation Register",
        ReservationReport = 0x0e "Reservation Report",
        ReservationAcquire = 0x11 "Reservation Acquire",
        ReservationRelease = 0x15 "Reservation Release",
        Copy = 0x19 "Copy",
    }
}

codes! {
    /// Fabrics command types, in byte 4 of a fabrics command (NVM Express Base Specification 2.0c, section 6).
    pub enum FabricsType: u8 {
        PropertySet = 0x00 "Property Set",
        Connect = 0x01 "Connect",
        PropertyGet = 0x04 "Property Get",
        AuthenticationSend = 0x05 "Authentication Send",
        AuthenticationReceive = 0x06 "Authentication Receive",
        Disconnect = 0x08 "Disconnect",
    }
}

/// Which way a command's data goes: the low two bits of an opcode, or of the type of a fabrics command (NVM
/// Express Base Specification 2.0c, sections 5, 6 and 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: from the host to the controller.
    HostToController,
    /// 10b: from the controller to the host.
    ControllerToHost,
    /// 11b: both ways; no command that is defined uses it.
    Bidirectional,
}

impl DataDirection {
    /// Reads the low two bits of an opcode or fabrics command type.
    pub const fn of(code: u8) -> Self {
        match code & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_bits_of_known_opcodes_say_the_direction() {
        use DataDirection::*;
        for (code, direction) in [
            (NvmOpcode::Read.code(), ControllerToHost),
            (NvmOpcode::Write.code(), HostToController),
            (NvmOpcode::Compare.code(), HostToController),
            (NvmOpcode::DatasetManagement.code(), HostToController),
            (NvmOpcode::WriteZeroes.code(), None),
            (NvmOpcode::Flush.code(), None),
            (AdminOpcode::Identify.code(), ControllerToHost),
            (AdminOpcode::SetFeatures.code(), HostToController),
            (FabricsType::Connect.code(), HostToController),
            (FabricsType::PropertyGet.code(), None),
            (0x83, Bidirectional),
        ] {
            assert_eq!(DataDirection::of(code), direction, "{code:02x}h");
        }
    }
}
