//! Status of a completed command (NVM Express Base Specification 2.0c, section 3.3.3.2.1; NVM Command Set
//! Specification 1.0c, section 3.1.2).

use std::fmt;

/// Status code type and status code: the low 11 bits are `SCT << 8 | SC`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

/// The families of status codes (SCT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// 0h: Generic Command Status.
    Generic,
    /// 1h: Command Specific Status; the meaning depends on the command.
    CommandSpecific,
    /// 2h: Media and Data Integrity Errors.
    MediaAndDataIntegrity,
    /// 3h: Path Related Status; a host with several paths tries another.
    PathRelated,
    /// 7h: Vendor Specific.
    VendorSpecific,
    /// 4h to 6h.
    Reserved,
}

macro_rules! statuses {
    (
        common { $( $(#[$meta:meta])* $constant:ident = $code:literal $text:literal, )* }
        fabrics { $( $(#[$fabrics_meta:meta])* $fabrics:ident = $fabrics_code:literal $fabrics_text:literal, )* }
    ) => {
        impl Status {
            $( #[doc = $text] $(#[$meta])* pub const $constant: Self = Self($code); )*
            $( #[doc = concat!($fabrics_text, " (fabrics commands).")] $(#[$fabrics_meta])* pub const $fabrics: Self = Self($fabrics_code); )*

            /// The specification's name when an admin or I/O command answered this, or `None` when this code has no
            /// name there.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some($text), )*
                    _ => None,
                }
            }

            /// The specification's name when a fabrics command answered this: Command Specific Status codes mean
            /// other things there.
            pub const fn fabrics_name(self) -> Option<&'static str> {
                match self.0 {
                    $( $fabrics_code => Some($fabrics_text), )*
                    _ => self.name(),
                }
            }

            #[cfg(test)]
            const ALL: &[Self] = &[$(Self($code),)* $(Self($fabrics_code),)*];
        }
    };
}

statuses! {
    common {
        SUCCESS = 0x000 "Successful Completion",
        INVALID_COMMAND_OPCODE = 0x001 "Invalid Command Opcode",
        INVALID_FIELD_IN_COMMAND = 0x002 "Invalid Field in Command",
        COMMAND_ID_CONFLICT = 0x003 "Command ID Conflict",
        DATA_TRANSFER_ERROR = 0x004 "Data Transfer Error",
        ABORTED_POWER_LOSS = 0x005 "Commands Aborted due to Power Loss Notification",
        INTERNAL_ERROR = 0x006 "Internal Error",
        ABORT_REQUESTED = 0x007 "Command Abort Requested",
        ABORTED_SQ_DELETION = 0x008 "Command Aborted due to SQ Deletion",
        ABORTED_FAILED_FUSED = 0x009 "Command Aborted due to Failed Fused Command",
        ABORTED_MISSING_FUSED = 0x00a "Command Aborted due to Missing Fused Command",
        INVALID_NAMESPACE_OR_FORMAT = 0x00b "Invalid Namespace or Format",
        COMMAND_SEQUENCE_ERROR = 0x00c "Command Sequence Error",
        INVALID_SGL_SEGMENT_DESCRIPTOR = 0x00d "Invalid SGL Segment Descriptor",
        INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0x00e "Invalid Number of SGL Descriptors",
        DATA_SGL_LENGTH_INVALID = 0x00f "Data SGL Length Invalid",
        METADATA_SGL_LENGTH_INVALID = 0x010 "Metadata SGL Length Invalid",
        SGL_DESCRIPTOR_TYPE_INVALID = 0x011 "SGL Descriptor Type Invalid",
        INVALID_USE_OF_CMB = 0x012 "Invalid Use of Controller Memory Buffer",
        PRP_OFFSET_INVALID = 0x013 "PRP Offset Invalid",
        ATOMIC_WRITE_UNIT_EXCEEDED = 0x014 "Atomic Write Unit Exceeded",
        OPERATION_DENIED = 0x015 "Operation Denied",
        SGL_OFFSET_INVALID = 0x016 "SGL Offset Invalid",
        HOST_IDENTIFIER_INCONSISTENT_FORMAT = 0x018 "Host Identifier Inconsistent Format",
        KEEP_ALIVE_TIMER_EXPIRED = 0x019 "Keep Alive Timer Expired",
        KEEP_ALIVE_TIMEOUT_INVALID = 0x01a "Keep Alive Timeout Invalid",
        ABORTED_PREEMPT_AND_ABORT = 0x01b "Command Aborted due to Preempt and Abort",
        SANITIZE_FAILED = 0x01c "Sanitize Failed",
        SANITIZE_IN_PROGRESS = 0x01d "Sanitize In Progress",
        SGL_DATA_BLOCK_GRANULARITY_INVALID = 0x01e "SGL Data Block Granularity Invalid",
        COMMAND_NOT_SUPPORTED_IN_CMB = 0x01f "Command Not Supported for Queue in CMB",
        NAMESPACE_WRITE_PROTECTED = 0x020 "Namespace is Write Protected",
        COMMAND_INTERRUPTED = 0x021 "Command Interrupted",
        TRANSIENT_TRANSPORT_ERROR = 0x022 "Transient Transport Error",
        PROHIBITED_BY_LOCKDOWN = 0x023 "Command Prohibited by Command and Feature Lockdown",
        ADMIN_COMMAND_MEDIA_NOT_READY = 0x024 "Admin Command Media Not Ready",
        LBA_OUT_OF_RANGE = 0x080 "LBA Out of Range",
        CAPACITY_EXCEEDED = 0x081 "Capacity Exceeded",
        NAMESPACE_NOT_READY = 0x082 "Namespace Not Ready",
        RESERVATION_CONFLICT = 0x083 "Reservation Conflict",
        FORMAT_IN_PROGRESS = 0x084 "Format In Progress",
        COMPLETION_QUEUE_INVALID = 0x100 "Completion Queue Invalid",
        INVALID_QUEUE_IDENTIFIER = 0x101 "Invalid Queue Identifier",
        INVALID_QUEUE_SIZE = 0x102 "Invalid Queue Size",
        ABORT_COMMAND_LIMIT_EXCEEDED = 0x103 "Abort Command Limit Exceeded",
        ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED = 0x105 "Asynchronous Event Request Limit Exceeded",
        INVALID_FIRMWARE_SLOT = 0x106 "Invalid Firmware Slot",
        INVALID_FIRMWARE_IMAGE = 0x107 "Invalid Firmware Image",
        INVALID_INTERRUPT_VECTOR = 0x108 "Invalid Interrupt Vector",
        INVALID_LOG_PAGE = 0x109 "Invalid Log Page",
        INVALID_FORMAT = 0x10a "Invalid Format",
        INVALID_QUEUE_DELETION = 0x10c "Invalid Queue Deletion",
        FEATURE_NOT_SAVEABLE = 0x10d "Feature Identifier Not Saveable",
        FEATURE_NOT_CHANGEABLE = 0x10e "Feature Not Changeable",
        FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f "Feature Not Namespace Specific",
        OVERLAPPING_RANGE = 0x114 "Overlapping Range",
        NAMESPACE_INSUFFICIENT_CAPACITY = 0x115 "Namespace Insufficient Capacity",
        NAMESPACE_IDENTIFIER_UNAVAILABLE = 0x116 "Namespace Identifier Unavailable",
        NAMESPACE_ALREADY_ATTACHED = 0x118 "Namespace Already Attached",
        NAMESPACE_IS_PRIVATE = 0x119 "Namespace Is Private",
        NAMESPACE_NOT_ATTACHED = 0x11a "Namespace Not Attached",
        THIN_PROVISIONING_NOT_SUPPORTED = 0x11b "Thin Provisioning Not Supported",
        CONTROLLER_LIST_INVALID = 0x11c "Controller List Invalid",
        INVALID_CONTROLLER_IDENTIFIER = 0x11f "Invalid Controller Identifier",
        ANA_GROUP_IDENTIFIER_INVALID = 0x124 "ANA Group Identifier Invalid",
        ANA_ATTACH_FAILED = 0x125 "ANA Attach Failed",
        IO_COMMAND_SET_NOT_SUPPORTED = 0x129 "I/O Command Set Not Supported",
        IO_COMMAND_SET_NOT_ENABLED = 0x12a "I/O Command Set Not Enabled",
        CONFLICTING_ATTRIBUTES = 0x180 "Conflicting Attributes",
        INVALID_PROTECTION_INFORMATION = 0x181 "Invalid Protection Information",
        WRITE_TO_READ_ONLY_RANGE = 0x182 "Attempted Write to Read Only Range",
        COMMAND_SIZE_LIMIT_EXCEEDED = 0x183 "Command Size Limit Exceeded",
        WRITE_FAULT = 0x280 "Write Fault",
        UNRECOVERED_READ_ERROR = 0x281 "Unrecovered Read Error",
        GUARD_CHECK_ERROR = 0x282 "End-to-end Guard Check Error",
        APPLICATION_TAG_CHECK_ERROR = 0x283 "End-to-end Application Tag Check Error",
        REFERENCE_TAG_CHECK_ERROR = 0x284 "End-to-end Reference Tag Check Error",
        COMPARE_FAILURE = 0x285 "Compare Failure",
        ACCESS_DENIED = 0x286 "Access Denied",
        DEALLOCATED_OR_UNWRITTEN_BLOCK = 0x287 "Deallocated or Unwritten Logical Block",
        STORAGE_TAG_CHECK_ERROR = 0x288 "End-to-End Storage Tag Check Error",
        INTERNAL_PATH_ERROR = 0x300 "Internal Path Error",
        ANA_PERSISTENT_LOSS = 0x301 "Asymmetric Access Persistent Loss",
        ANA_INACCESSIBLE = 0x302 "Asymmetric Access Inaccessible",
        ANA_TRANSITION = 0x303 "Asymmetric Access Transition",
        CONTROLLER_PATHING_ERROR = 0x360 "Controller Pathing Error",
        HOST_PATHING_ERROR = 0x370 "Host Pathing Error",
        ABORTED_BY_HOST = 0x371 "Command Aborted By Host",
    }
    fabrics {
        CONNECT_INCOMPATIBLE_FORMAT = 0x180 "Incompatible Format",
        CONNECT_CONTROLLER_BUSY = 0x181 "Controller Busy",
        CONNECT_INVALID_PARAMETERS = 0x182 "Connect Invalid Parameters",
        CONNECT_RESTART_DISCOVERY = 0x183 "Connect Restart Discovery",
        CONNECT_INVALID_HOST = 0x184 "Connect Invalid Host",
        INVALID_QUEUE_TYPE = 0x185 "Invalid Queue Type",
        DISCOVER_RESTART = 0x190 "Discover Restart",
        AUTHENTICATION_REQUIRED = 0x191 "Authentication Required",
    }
}

impl Status {
    /// From a status code type (3 bits) and a status code; higher bits of the type are dropped.
    pub const fn new(status_type: u8, code: u8) -> Self {
        Self(((status_type & 7) as u16) << 8 | code as u16)
    }

    /// A vendor specific status (SCT 7h). Only for peers that know its meaning.
    pub const fn vendor(code: u8) -> Self {
        Self::new(7, code)
    }

    /// From `SCT << 8 | SC`; higher bits are dropped.
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7ff)
    }

    /// `SCT << 8 | SC`.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Status code (SC).
    #[inline]
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Status code type (SCT) as a number, 0 to 7.
    #[inline]
    pub const fn type_code(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Status code type (SCT).
    pub const fn status_type(self) -> StatusType {
        match self.type_code() {
            0 => StatusType::Generic,
            1 => StatusType::CommandSpecific,
            2 => StatusType::MediaAndDataIntegrity,
            3 => StatusType::PathRelated,
            7 => StatusType::VendorSpecific,
            _ => StatusType::Reserved,
        }
    }

    /// Whether the command did what it was asked.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether another path to the same namespace may succeed.
    pub const fn is_path_related(self) -> bool {
        matches!(self.status_type(), StatusType::PathRelated)
    }
}

/// The name and the numbers: `LBA Out of Range (SCT 0h, SC 80h)`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.display_name();
        write!(f, "{name} (SCT {:x}h, SC {:02x}h)", self.type_code(), self.code())
    }
}

impl Status {
    fn display_name(self) -> &'static str {
        match self.any_name() {
            Some(name) => name,
            None => match self.status_type() {
                StatusType::VendorSpecific => "Vendor Specific",
                StatusType::CommandSpecific => "Unknown Command Specific Status",
                _ => "Unknown Status",
            },
        }
    }

    /// The name for an admin or I/O command, and that for a fabrics command where only that exists.
    fn any_name(self) -> Option<&'static str> {
        self.name().or(self.fabrics_name())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_name_and_a_type() {
        for status in Status::ALL {
            assert!(status.fabrics_name().is_some(), "{status:?}");
            assert_ne!(status.status_type(), StatusType::Reserved);
            assert_eq!(Status::new(status.type_code(), status.code()), *status);
        }
    }

    #[test]
    fn texts_have_name_and_numbers() {
        for (status, text) in [
            (Status::LBA_OUT_OF_RANGE, "LBA Out of Range (SCT 0h, SC 80h)"),
            (
                Status::ANA_TRANSITION,
                "Asymmetric Access Transition (SCT 3h, SC 03h)",
            ),
            (Status::vendor(0xc1), "Vendor Specific (SCT 7h, SC c1h)"),
            (
                Status::CONNECT_INVALID_HOST,
                "Connect Invalid Host (SCT 1h, SC 84h)",
            ),
            (Status::new(4, 1), "Unknown Status (SCT 4h, SC 01h)"),
        ] {
            assert_eq!(status.to_string(), text);
        }
        assert_eq!(Status::from_bits(0x180).name(), Some("Conflicting Attributes"));
        assert_eq!(
            Status::from_bits(0x180).fabrics_name(),
            Some("Incompatible Format")
        );
    }

    #[test]
    fn types_are_told_apart() {
        assert!(Status::SUCCESS.is_success());
        assert!(Status::CONTROLLER_PATHING_ERROR.is_path_related());
        assert!(!Status::COMPARE_FAILURE.is_path_related());
        assert_eq!(
            Status::WRITE_FAULT.status_type(),
            StatusType::MediaAndDataIntegrity
        );
        assert_eq!(Status::from_bits(0xffff).bits(), 0x7ff);
    }
}
