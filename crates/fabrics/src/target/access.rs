//! Asymmetric namespace access: how well a subsystem's namespaces are reached through a listener (NVM Express Base
//! Specification 2.0c, section 8.1). All namespaces of a subsystem are one group.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use protocols::nvme::Status;
use protocols::nvme::log::{AnaGroup, AnaLog, AnaState};

/// The group of all namespaces (ANAGRPID).
pub(super) const GROUP: u32 = 1;
/// Longest time in the state Change, in seconds (ANATT).
pub(super) const TRANSITION_SECONDS: u8 = 10;

/// The states of a subsystem's listeners.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// Where it is not Optimized.
    states: BTreeMap<SocketAddr, AnaState>,
    changes: u64,
}

impl Access {
    /// Sets the state through a listener; false if it was so.
    pub(super) fn set(&mut self, listener: SocketAddr, state: AnaState) -> bool {
        let changed = if state == AnaState::Optimized {
            self.states.remove(&listener).is_some()
        } else {
            self.states.insert(listener, state) != Some(state)
        };
        self.changes += u64::from(changed);
        changed
    }

    /// The state for a host that reached us at `local`: of that address, or of a listener on all addresses.
    pub(super) fn state(&self, local: SocketAddr) -> AnaState {
        let all: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let find = |address| self.states.get(&address).copied();
        find(local)
            .or_else(|| find(SocketAddr::new(all, local.port())))
            .unwrap_or(AnaState::Optimized)
    }

    /// The log; without `nsids` when only groups are asked for (RGO).
    pub(super) fn log(&self, local: SocketAddr, nsids: Vec<u32>) -> AnaLog {
        // Change counts begin with 1; 0 says that none are kept.
        let change_count = self.changes + 1;
        AnaLog {
            change_count,
            groups: vec![AnaGroup {
                anagrpid: GROUP,
                change_count,
                state: self.state(local),
                nsids,
            }],
        }
    }
}

/// What an I/O command is answered in a state; `None` where it is served (section 8.1.3).
pub(super) const fn refusal(state: AnaState) -> Option<Status> {
    match state {
        AnaState::Optimized | AnaState::NonOptimized => None,
        AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => Some(Status::ANA_TRANSITION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_its_own_state_or_that_of_all_addresses() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let mut access = Access::default();
        assert!(!access.set(at("1.1.1.1:1"), AnaState::Optimized));
        assert!(access.set(at("0.0.0.0:1"), AnaState::Inaccessible));
        assert!(!access.set(at("0.0.0.0:1"), AnaState::Inaccessible));
        assert!(access.set(at("1.1.1.1:1"), AnaState::NonOptimized));
        assert_eq!(access.state(at("1.1.1.1:1")), AnaState::NonOptimized);
        assert_eq!(access.state(at("1.1.1.2:1")), AnaState::Inaccessible);
        assert_eq!(access.state(at("1.1.1.2:2")), AnaState::Optimized);
        assert_eq!(access.state(at("[::1]:1")), AnaState::Optimized);
        assert!(access.set(at("1.1.1.1:1"), AnaState::Optimized));
        let log = access.log(at("1.1.1.2:1"), vec![1, 5]);
        assert_eq!(
            (log.change_count, log.groups[0].state),
            (4, AnaState::Inaccessible)
        );
    }
}
