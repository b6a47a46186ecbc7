//! Log pages (NVM Express Base Specification 2.0c, section 5.16.1).

mod ana;
mod device;
mod discovery;
mod reservation;

pub use ana::{AnaError, AnaGroup, AnaGroupHeader, AnaHeader, AnaLog, AnaState};
pub use device::{
    ChangedNamespaces, CommandEffects, ErrorEntry, FeatureEffects, FirmwareSlots, HealthLog,
    LOG_PAGE_SUPPORTED, SupportedLogPages, effects, feature_effects,
};
pub use discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType, eflags, sectype, treq,
};
pub use reservation::{ReservationNoticeType, ReservationNotification};

use super::codes::codes;

codes! {
    /// Log page identifiers (LID; section 5.16.1, figure 202).
    pub enum LogPage: u8 {
        SupportedLogPages = 0x00 "Supported Log Pages",
        ErrorInformation = 0x01 "Error Information",
        Health = 0x02 "SMART / Health Information",
        FirmwareSlot = 0x03 "Firmware Slot Information",
        ChangedNamespaceList = 0x04 "Changed Namespace List",
        CommandEffects = 0x05 "Commands Supported and Effects",
        DeviceSelfTest = 0x06 "Device Self-test",
        TelemetryHost = 0x07 "Telemetry Host-Initiated",
        TelemetryController = 0x08 "Telemetry Controller-Initiated",
        EnduranceGroup = 0x09 "Endurance Group Information",
        AsymmetricNamespaceAccess = 0x0c "Asymmetric Namespace Access",
        PersistentEvent = 0x0d "Persistent Event Log",
        FeatureEffects = 0x12 "Feature Identifiers Supported and Effects",
        Discovery = 0x70 "Discovery",
        ReservationNotification = 0x80 "Reservation Notification",
        SanitizeStatus = 0x81 "Sanitize Status",
    }
}

/// The part of a log page of `page` that a Get Log Page asks for: from `offset`, at most `length_bytes`. `None` when the
/// offset is beyond the end, which a controller refuses with Invalid Field in Command. What is missing at the end
/// is for the caller to fill with zeros.
pub fn window(page: &[u8], offset: u64, length_bytes: u64) -> Option<&[u8]> {
    let rest = page.get(usize::try_from(offset).ok()?..)?;
    let length = usize::try_from(length_bytes)
        .unwrap_or(usize::MAX)
        .min(rest.len());
    Some(&rest[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stays_in_its_page() {
        let page = [1, 2, 3, 4];
        assert_eq!(window(&page, 1, 2), Some(&[2, 3][..]));
        assert_eq!(window(&page, 3, u64::MAX), Some(&[4][..]));
        assert_eq!(window(&page, 4, 1), Some(&[][..]));
        assert_eq!(window(&page, 5, 1), None);
        assert_eq!(window(&page, u64::MAX, 1), None);
    }
}
