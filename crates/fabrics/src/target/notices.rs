//! Which changes a host is still to be told of. Pure.
//!
//! A notice of one kind is told once; the next of its kind only after the host has read the log page that goes with it
//! without retaining the event (NVM Express Base Specification 2.0c, section 5.2).

use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::features::AsyncEventConfiguration;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Namespaces came, went or changed.
    Namespaces,
    /// Access to namespaces through this controller changed.
    Access,
    /// The discovery log changed.
    Discovery,
    /// Something happened to a reservation.
    Reservations,
}

const ALL: [Notice; 4] = [
    Notice::Namespaces,
    Notice::Access,
    Notice::Discovery,
    Notice::Reservations,
];

impl Notice {
    /// The bit of the Asynchronous Event Configuration that asks for it; none where every host is told.
    const fn wanted_by(self) -> u32 {
        match self {
            Self::Namespaces => AsyncEventConfiguration::NAMESPACE_ATTRIBUTE,
            Self::Access => AsyncEventConfiguration::ANA_CHANGE,
            Self::Discovery => AsyncEventConfiguration::DISCOVERY_CHANGE,
            // Masked by a feature of its own, before it comes here.
            Self::Reservations => 0,
        }
    }

    const fn event(self) -> AsyncEvent {
        match self {
            Self::Namespaces => AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
            Self::Access => AsyncEvent::ANA_CHANGE,
            Self::Discovery => AsyncEvent::DISCOVERY_LOG_CHANGE,
            Self::Reservations => AsyncEvent::RESERVATION_LOG,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Quiet,
    /// To be told with the next request for events.
    Pending,
    /// Told, and the log not read since.
    Told,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub(super) wanted: AsyncEventConfiguration,
    stages: [Stage; ALL.len()],
}

impl Notices {
    /// Something changed; true if the admin queue must be woken to tell it.
    pub(super) fn raise(&mut self, notice: Notice) -> bool {
        let stage = &mut self.stages[notice as usize];
        let tell = *stage == Stage::Quiet && self.wanted.wants(notice.wanted_by());
        if tell {
            *stage = Stage::Pending;
        }
        tell
    }

    /// The next event to tell, which is then told.
    pub(super) fn take(&mut self) -> Option<AsyncEvent> {
        let notice = ALL
            .into_iter()
            .find(|notice| self.stages[*notice as usize] == Stage::Pending)?;
        self.stages[notice as usize] = Stage::Told;
        Some(notice.event())
    }

    /// The log page that goes with a notice was read without retaining the event.
    pub(super) fn read(&mut self, notice: Notice) {
        self.stages[notice as usize] = Stage::Quiet;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_told_once_until_its_log_is_read() {
        let mut notices = Notices::default();
        assert!(!notices.raise(Notice::Access), "nobody wants it");
        assert!(notices.raise(Notice::Reservations), "wanted by all");
        assert_eq!(notices.take(), Some(AsyncEvent::RESERVATION_LOG));
        notices.wanted = AsyncEventConfiguration(
            AsyncEventConfiguration::ANA_CHANGE | AsyncEventConfiguration::DISCOVERY_CHANGE,
        );
        assert!(notices.raise(Notice::Access));
        assert!(!notices.raise(Notice::Access), "one wake-up is enough");
        assert!(notices.raise(Notice::Discovery));
        assert!(!notices.raise(Notice::Namespaces));
        assert_eq!(notices.take(), Some(AsyncEvent::ANA_CHANGE));
        assert_eq!(notices.take(), Some(AsyncEvent::DISCOVERY_LOG_CHANGE));
        assert_eq!(notices.take(), None);
        assert!(!notices.raise(Notice::Access), "the log was not read");
        notices.read(Notice::Access);
        assert!(notices.raise(Notice::Access));
        assert_eq!(notices.take(), Some(AsyncEvent::ANA_CHANGE));
    }
}
