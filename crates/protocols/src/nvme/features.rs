//! Features and their values (NVM Express Base Specification 2.0c, section 5.27.1; Error Recovery: NVM Command Set
//! Specification 1.0c, section 4.1.3).
//!
//! A value is dword 11 of Set Features and dword 0 of the completion of Get Features, unless it travels as data.

use super::codes::codes;
use super::layout::layout;

codes! {
    /// Feature identifiers (FID; figure 317).
    pub enum Feature: u8 {
        Arbitration = 0x01 "Arbitration",
        PowerManagement = 0x02 "Power Management",
        TemperatureThreshold = 0x04 "Temperature Threshold",
        ErrorRecovery = 0x05 "Error Recovery",
        VolatileWriteCache = 0x06 "Volatile Write Cache",
        NumberOfQueues = 0x07 "Number of Queues",
        InterruptCoalescing = 0x08 "Interrupt Coalescing",
        InterruptVectorConfiguration = 0x09 "Interrupt Vector Configuration",
        WriteAtomicityNormal = 0x0a "Write Atomicity Normal",
        AsynchronousEventConfiguration = 0x0b "Asynchronous Event Configuration",
        AutonomousPowerStateTransition = 0x0c "Autonomous Power State Transition",
        HostMemoryBuffer = 0x0d "Host Memory Buffer",
        Timestamp = 0x0e "Timestamp",
        KeepAliveTimer = 0x0f "Keep Alive Timer",
        HostBehaviorSupport = 0x16 "Host Behavior Support",
        CommandSetProfile = 0x19 "I/O Command Set Profile",
        HostIdentifier = 0x81 "Host Identifier",
        ReservationNotificationMask = 0x82 "Reservation Notification Mask",
        ReservationPersistence = 0x83 "Reservation Persistence",
        NamespaceWriteProtection = 0x84 "Namespace Write Protection Config",
    }
}

/// Number of Queues (section 5.27.1.5): what is asked for, or what is given. Counts are true; on the wire they are less
/// one, and FFFFh is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueCounts {
    /// I/O submission queues, 1 to 65536 (NSQR, NSQA).
    pub submission: u32,
    /// I/O completion queues, 1 to 65536 (NCQR, NCQA).
    pub completion: u32,
}

impl QueueCounts {
    /// Reads a value. A count of 65536 is for the controller to refuse with Invalid Field in Command.
    pub const fn from_value(value: u32) -> Self {
        Self {
            submission: (value & 0xffff) + 1,
            completion: (value >> 16) + 1,
        }
    }

    /// The value; counts outside 1 to 65536 are brought into that range.
    pub const fn to_value(self) -> u32 {
        zero_based(self.completion) << 16 | zero_based(self.submission)
    }

    /// Whether both counts are allowed: 1 to 65535.
    pub const fn is_valid(self) -> bool {
        self.submission >= 1 && self.submission < 65536 && self.completion >= 1 && self.completion < 65536
    }
}

const fn zero_based(count: u32) -> u32 {
    match count {
        0 => 0,
        1..=65536 => count - 1,
        _ => 0xffff,
    }
}

/// Asynchronous Event Configuration (section 5.27.1.8): which events a host wants. The notice bits are those of OAES.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AsyncEventConfiguration(pub u32);

impl AsyncEventConfiguration {
    /// Critical warnings of the health log, bits 7:0.
    pub const HEALTH_WARNINGS: u32 = 0xff;
    /// Attached Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation Notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric Namespace Access Change Notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery Log Page Change Notification.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;

    /// Whether all of `bits` are set.
    pub const fn wants(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// Keep Alive Timer (section 5.27.1.12): the timeout in milliseconds; 0 switches it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeepAliveTimer {
    /// Timeout in milliseconds (KATO).
    pub timeout_ms: u32,
}

/// Volatile Write Cache (section 5.27.1.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VolatileWriteCache {
    /// Whether the cache is enabled (WCE).
    pub enabled: bool,
}

impl VolatileWriteCache {
    /// Reads a value.
    pub const fn from_value(value: u32) -> Self {
        Self {
            enabled: value & 1 != 0,
        }
    }

    /// The value.
    pub const fn to_value(self) -> u32 {
        self.enabled as u32
    }
}

/// Arbitration (section 5.27.1.1). Weights are less one on the wire and here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arbitration {
    /// Commands taken from a queue at once, a power of two, 7 is no limit; 3 bits (AB).
    pub burst_power: u8,
    /// Weight of low priority queues (LPW).
    pub low_weight: u8,
    /// Weight of medium priority queues (MPW).
    pub medium_weight: u8,
    /// Weight of high priority queues (HPW).
    pub high_weight: u8,
}

impl Arbitration {
    /// Reads a value.
    pub const fn from_value(value: u32) -> Self {
        let [burst, low_weight, medium_weight, high_weight] = value.to_le_bytes();
        Self {
            burst_power: burst & 7,
            low_weight,
            medium_weight,
            high_weight,
        }
    }

    /// The value.
    pub const fn to_value(self) -> u32 {
        u32::from_le_bytes([
            self.burst_power & 7,
            self.low_weight,
            self.medium_weight,
            self.high_weight,
        ])
    }
}

/// Power Management (section 5.27.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PowerManagement {
    /// Power state, 5 bits (PS).
    pub state: u8,
    /// Workload hint, 3 bits (WH).
    pub workload: u8,
}

impl PowerManagement {
    /// Reads a value.
    pub const fn from_value(value: u32) -> Self {
        Self {
            state: value as u8 & 0x1f,
            workload: value as u8 >> 5,
        }
    }

    /// The value.
    pub const fn to_value(self) -> u32 {
        (self.workload as u32 & 7) << 5 | self.state as u32 & 0x1f
    }
}

/// Temperature Threshold (section 5.27.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TemperatureThreshold {
    /// Threshold in kelvins (TMPTH).
    pub kelvins: u16,
    /// Sensor, 4 bits: 0 composite, 1 to 8 a sensor, 15 all in Set Features (TMPSEL).
    pub sensor: u8,
    /// Kind, 2 bits: 0 over, 1 under (THSEL).
    pub kind: u8,
}

impl TemperatureThreshold {
    /// Reads a value.
    pub const fn from_value(value: u32) -> Self {
        Self {
            kelvins: value as u16,
            sensor: (value >> 16) as u8 & 0xf,
            kind: (value >> 20) as u8 & 3,
        }
    }

    /// The value.
    pub const fn to_value(self) -> u32 {
        (self.kind as u32 & 3) << 20 | (self.sensor as u32 & 0xf) << 16 | self.kelvins as u32
    }
}

/// Error Recovery (NVM Command Set Specification 1.0c, section 4.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ErrorRecovery {
    /// Limit for retries when a command asks for few, in units of 100 milliseconds; 0 is none (TLER).
    pub time_limit: u16,
    /// Whether reading a deallocated block fails (DULBE).
    pub deallocated_error: bool,
}

impl ErrorRecovery {
    /// Reads a value.
    pub const fn from_value(value: u32) -> Self {
        Self {
            time_limit: value as u16,
            deallocated_error: value >> 16 & 1 != 0,
        }
    }

    /// The value.
    pub const fn to_value(self) -> u32 {
        (self.deallocated_error as u32) << 16 | self.time_limit as u32
    }
}

/// Host Identifier (section 5.27.1.25): travels as data, 16 bytes with fabrics, where a host can only read it: Connect
/// has set it.
pub const HOST_IDENTIFIER_BYTES: usize = 16;
/// Bit 0 of the Host Identifier's dword 11: the identifier has 16 bytes (EXHID). Fabrics demand it.
pub const HOST_IDENTIFIER_EXTENDED: u32 = 1 << 0;

layout! {
    /// Timestamp (section 5.27.1.11): 8 bytes of data.
    pub struct Timestamp[8] {
        /// Milliseconds since 1970, or since a reset when the host has set none; 48 bits, low 32.
        low_ms: u32 = 0,
        /// The high 16 of the 48 bits.
        high_ms: u16 = 4,
        /// Bit 0: the clock may have stopped (Synch); bits 3:1: where it came from, 1 is the host (Timestamp Origin).
        attributes: u8 = 6,
    }
}

impl Timestamp {
    /// Attributes: a host has set the timestamp.
    pub const SET_BY_HOST: u8 = 1 << 1;

    /// Milliseconds.
    pub const fn milliseconds(&self) -> u64 {
        (self.high_ms as u64) << 32 | self.low_ms as u64
    }

    /// A timestamp of so many milliseconds, of which the low 48 bits count.
    pub const fn from_milliseconds(milliseconds: u64, attributes: u8) -> Self {
        Self {
            low_ms: milliseconds as u32,
            high_ms: (milliseconds >> 32) as u16,
            attributes,
        }
    }
}

/// Reservation Notification Mask (section 5.27.1.26): notifications that a namespace does not make.
pub mod reservation_mask {
    /// Registration Preempted (REGPRE).
    pub const REGISTRATION_PREEMPTED: u32 = 1 << 1;
    /// Reservation Released (RESREL).
    pub const RESERVATION_RELEASED: u32 = 1 << 2;
    /// Reservation Preempted (RESPRE).
    pub const RESERVATION_PREEMPTED: u32 = 1 << 3;
    /// All that there are.
    pub const ALL: u32 = REGISTRATION_PREEMPTED | RESERVATION_RELEASED | RESERVATION_PREEMPTED;
}

/// Reservation Persistence (section 5.27.1.27): the namespace's reservations persist through power loss (PTPL).
pub const RESERVATION_PERSISTS: u32 = 1 << 0;

/// Capabilities that Get Features answers with SEL 3 (section 5.15, figure 197).
pub mod capabilities {
    /// The value outlives a reset when asked to.
    pub const SAVEABLE: u32 = 1 << 0;
    /// The value is a namespace's own.
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    /// The value can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Length of the data of Host Behavior Support (section 5.27.1.18), in bytes.
pub const HOST_BEHAVIOR_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use proptest::prelude::*;

    layout_tests!(Timestamp);

    #[test]
    fn values_have_their_bits() {
        let counts = QueueCounts {
            submission: 4,
            completion: 2,
        };
        assert_eq!(counts.to_value(), 0x0001_0003);
        assert!(counts.is_valid());
        assert!(!QueueCounts::from_value(0xffff_0000).is_valid());
        assert!(
            !QueueCounts {
                submission: 0,
                completion: 1
            }
            .is_valid()
        );
        let events = AsyncEventConfiguration(0x8000_0900);
        assert!(
            events.wants(AsyncEventConfiguration::ANA_CHANGE | AsyncEventConfiguration::NAMESPACE_ATTRIBUTE)
        );
        assert!(!events.wants(AsyncEventConfiguration::FIRMWARE_ACTIVATION));
        assert_eq!(VolatileWriteCache { enabled: true }.to_value(), 1);
        let arbitration = Arbitration {
            burst_power: 7,
            low_weight: 1,
            medium_weight: 2,
            high_weight: 3,
        };
        assert_eq!(arbitration.to_value(), 0x0302_0107);
        assert_eq!(
            PowerManagement {
                state: 3,
                workload: 2
            }
            .to_value(),
            0x43
        );
        assert_eq!(
            TemperatureThreshold {
                kelvins: 0x157,
                sensor: 2,
                kind: 1
            }
            .to_value(),
            0x0012_0157
        );
        assert_eq!(
            ErrorRecovery {
                time_limit: 5,
                deallocated_error: true
            }
            .to_value(),
            0x0001_0005
        );
        let time = Timestamp::from_milliseconds(0x0605_0403_0201, Timestamp::SET_BY_HOST);
        assert_eq!(time.encode(), [1, 2, 3, 4, 5, 6, 2, 0]);
        assert_eq!(time.milliseconds(), 0x0605_0403_0201);
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(value: u32) {
            prop_assert_eq!(QueueCounts::from_value(value).to_value(), value);
            prop_assert_eq!(VolatileWriteCache::from_value(value).to_value(), value & 1);
            prop_assert_eq!(Arbitration::from_value(value).to_value(), value & 0xffff_ff07);
            prop_assert_eq!(PowerManagement::from_value(value).to_value(), value & 0xff);
            prop_assert_eq!(TemperatureThreshold::from_value(value).to_value(), value & 0x003f_ffff);
            prop_assert_eq!(ErrorRecovery::from_value(value).to_value(), value & 0x0001_ffff);
        }
    }
}
