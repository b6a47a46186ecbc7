//! The Reservation Notification log page (LID 80h; NVM Express Base Specification 2.0c, section 5.16.1): one
//! notification at a time.

use crate::nvme::codes::codes;
use crate::nvme::layout::layout;

codes! {
    /// What happened (Reservation Notification Log Page Type).
    pub enum ReservationNoticeType: u8 {
        Empty = 0 "Empty Log Page",
        RegistrationPreempted = 1 "Registration Preempted",
        ReservationReleased = 2 "Reservation Released",
        ReservationPreempted = 3 "Reservation Preempted",
    }
}

layout! {
    /// A notification; all zeros when there is none.
    pub struct ReservationNotification[64] {
        /// Number of this notification, from 1; a gap says that some were lost. 0 when there is none.
        count: u64 = 0,
        /// See [`ReservationNoticeType`].
        kind: u8 = 8,
        /// Further notifications that wait to be read, 255 for more.
        available: u8 = 9,
        /// Where it happened (NSID).
        nsid: u32 = 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(ReservationNotification);

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let notification = ReservationNotification {
            count: 1,
            kind: ReservationNoticeType::ReservationReleased.code(),
            available: 3,
            nsid: 4,
        };
        let bytes = notification.encode();
        assert_eq!(bytes[..13], [1, 0, 0, 0, 0, 0, 0, 0, 2, 3, 0, 0, 4]);
    }
}
