//! What a controller's host is still to be told of reservations: the Reservation Notification log (LID 80h). Pure.

use std::collections::VecDeque;

use protocols::nvme::log::{ReservationNoticeType, ReservationNotification};

/// Notifications that wait at most; the oldest goes for a newer one, and the count tells that it is missing.
const WAITING_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::target) struct NotificationLog {
    /// Of the last notification.
    count: u64,
    waiting: VecDeque<ReservationNotification>,
}

impl NotificationLog {
    /// Something happened.
    pub(in crate::target) fn add(&mut self, nsid: u32, kind: ReservationNoticeType) {
        // 0 says that there is none.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(ReservationNotification {
            count: self.count,
            kind: kind.code(),
            available: 0,
            nsid,
        });
    }

    /// The oldest notification, which stays; all zeros if there is none.
    pub(in crate::target) fn first(&self) -> ReservationNotification {
        let Some(first) = self.waiting.front() else {
            return ReservationNotification::default();
        };
        ReservationNotification {
            available: u8::try_from(self.waiting.len() - 1).unwrap_or(u8::MAX),
            ..*first
        }
    }

    /// The oldest was read; true if more wait.
    pub(in crate::target) fn was_read(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_read_one_by_one_and_a_gap_tells_of_those_lost() {
        let mut log = NotificationLog::default();
        assert_eq!(log.first(), ReservationNotification::default());
        assert!(!log.was_read());
        for nsid in 1..=WAITING_MAX as u32 + 2 {
            log.add(nsid, ReservationNoticeType::ReservationReleased);
        }
        let first = log.first();
        assert_eq!(
            (first.count, first.nsid, first.kind, first.available),
            (3, 3, 2, 63)
        );
        assert!(log.was_read());
        assert_eq!((log.first().count, log.first().available), (4, 62));
        for _ in 0..62 {
            assert!(log.was_read());
        }
        assert_eq!((log.first().nsid, log.first().available), (66, 0));
        assert!(!log.was_read());
        assert_eq!(log.first().encode(), [0; 64]);
    }
}
