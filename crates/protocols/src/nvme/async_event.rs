//! Dword 0 of the completion of an Asynchronous Event Request (NVM Express Base Specification 2.0c, section 5.2.1).

use super::log::LogPage;

/// An event: bits 2:0 type, 15:8 information, 23:16 the log page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Type (AET).
    pub event_type: u8,
    /// Information, its meaning depends on the type (AEI).
    pub information: u8,
    /// Log page whose reading clears the event (LID).
    pub log_page: u8,
}

impl AsyncEvent {
    /// Type: error status.
    pub const TYPE_ERROR: u8 = 0;
    /// Type: SMART and health.
    pub const TYPE_HEALTH: u8 = 1;
    /// Type: notice.
    pub const TYPE_NOTICE: u8 = 2;
    /// Type: specific to the I/O command set.
    pub const TYPE_COMMAND_SET: u8 = 6;
    /// Type: vendor specific.
    pub const TYPE_VENDOR: u8 = 7;

    /// Namespaces came, went or changed: read the Changed Namespace List.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self::notice(0x00, LogPage::ChangedNamespaceList);
    /// Access states changed: read the ANA log.
    pub const ANA_CHANGE: Self = Self::notice(0x03, LogPage::AsymmetricNamespaceAccess);
    /// What discovery answers changed: read the Discovery log.
    pub const DISCOVERY_LOG_CHANGE: Self = Self::notice(0xf0, LogPage::Discovery);
    /// Something happened to a reservation: read the Reservation Notification log (section 5.2.1, I/O Command Specific
    /// Status).
    pub const RESERVATION_LOG: Self = Self {
        event_type: Self::TYPE_COMMAND_SET,
        information: 0,
        log_page: LogPage::ReservationNotification.code(),
    };
    /// The reliability of a subsystem is in doubt: read the health log.
    pub const RELIABILITY: Self = Self {
        event_type: Self::TYPE_HEALTH,
        information: 0,
        log_page: LogPage::Health.code(),
    };
    /// A persistent internal error: read the error log. A Linux host resets the controller.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self {
        event_type: Self::TYPE_ERROR,
        information: 3,
        log_page: LogPage::ErrorInformation.code(),
    };

    const fn notice(information: u8, page: LogPage) -> Self {
        Self {
            event_type: Self::TYPE_NOTICE,
            information,
            log_page: page.code(),
        }
    }

    /// Reads dword 0; reserved bits are ignored.
    pub const fn from_result(result: u32) -> Self {
        Self {
            event_type: result as u8 & 7,
            information: (result >> 8) as u8,
            log_page: (result >> 16) as u8,
        }
    }

    /// Dword 0; bits of the type above the low three are dropped.
    pub const fn to_result(self) -> u32 {
        (self.log_page as u32) << 16 | (self.information as u32) << 8 | (self.event_type & 7) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notices_have_their_numbers() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.to_result(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGE.to_result(), 0x000c_0302);
        assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGE.to_result(), 0x0070_f002);
        assert_eq!(AsyncEvent::RESERVATION_LOG.to_result(), 0x0080_0006);
        assert_eq!(AsyncEvent::RELIABILITY.to_result(), 0x0002_0001);
        assert_eq!(AsyncEvent::PERSISTENT_INTERNAL_ERROR.to_result(), 0x0001_0300);
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(result: u32) {
            let event = AsyncEvent::from_result(result);
            prop_assert_eq!(event.to_result(), result & 0x00ff_ff07);
            prop_assert_eq!(AsyncEvent::from_result(event.to_result()), event);
        }
    }
}
