//! Asymmetric namespace access: how well a subsystem's namespaces are reached through a listener (NVM Express Base
//! Specification 2.0c, section 8.1). A namespace is in the group 1, unless it was put into another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use protocols::nvme::Status;
use protocols::nvme::log::{AnaGroup, AnaLog, AnaState};

/// The group of namespaces that were put into no other (ANAGRPID).
pub(super) const GROUP: u32 = 1;
/// Longest time in the state Change, in seconds (ANATT).
pub(super) const TRANSITION_SECONDS: u8 = 10;

/// The states of a subsystem's listeners.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// Of listeners through which something is not Optimized.
    listeners: BTreeMap<SocketAddr, ListenerAccess>,
    /// Of namespaces that are not in [`GROUP`].
    groups: BTreeMap<u32, u32>,
    changes: u64,
}

/// How well namespaces are reached through a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerAccess {
    /// The state of groups that have no other.
    pub usual: AnaState,
    /// The states of groups that have another.
    pub groups: BTreeMap<u32, AnaState>,
}

impl Default for ListenerAccess {
    fn default() -> Self {
        Self {
            usual: AnaState::Optimized,
            groups: BTreeMap::new(),
        }
    }
}

impl ListenerAccess {
    /// The state of a group.
    pub fn state(&self, group: u32) -> AnaState {
        self.groups.get(&group).copied().unwrap_or(self.usual)
    }
}

impl Access {
    /// Sets the state of a group, or of all, through a listener; false if it was so.
    pub(super) fn set(&mut self, listener: SocketAddr, group: Option<u32>, state: AnaState) -> bool {
        let before = self.of(listener);
        let mut now = before.clone();
        match group {
            Some(group) if state == now.usual => drop(now.groups.remove(&group)),
            Some(group) => drop(now.groups.insert(group, state)),
            None => {
                now = ListenerAccess {
                    usual: state,
                    groups: BTreeMap::new(),
                }
            }
        }
        if now == before {
            return false;
        }
        if now == ListenerAccess::default() {
            self.listeners.remove(&listener);
        } else {
            self.listeners.insert(listener, now);
        }
        self.changes += 1;
        true
    }

    /// A listener is gone; what was said of it does not hold for a new one.
    pub(super) fn forget(&mut self, listener: SocketAddr) {
        self.listeners.remove(&listener);
    }

    /// How well namespaces are reached through this very listener.
    pub(super) fn of(&self, listener: SocketAddr) -> ListenerAccess {
        self.listeners.get(&listener).cloned().unwrap_or_default()
    }

    /// Puts a namespace into a group; false if it was there.
    pub(super) fn put(&mut self, nsid: u32, group: u32) -> bool {
        let before = if group == GROUP {
            self.groups.remove(&nsid)
        } else {
            self.groups.insert(nsid, group)
        };
        let changed = before.unwrap_or(GROUP) != group;
        self.changes += u64::from(changed);
        changed
    }

    /// A namespace's group.
    pub(super) fn group(&self, nsid: u32) -> u32 {
        self.groups.get(&nsid).copied().unwrap_or(GROUP)
    }

    /// A group's state for a host that reached us at `local`: of that address, or of a listener on all addresses.
    pub(super) fn state(&self, local: SocketAddr, group: u32) -> AnaState {
        let all: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let find = |address| self.listeners.get(&address);
        find(local)
            .or_else(|| find(SocketAddr::new(all, local.port())))
            .map_or(AnaState::Optimized, |listener| listener.state(group))
    }

    /// The log of the groups that hold these namespaces; they are not named when only groups are asked for (RGO).
    pub(super) fn log(&self, local: SocketAddr, nsids: &[u32], groups_only: bool) -> AnaLog {
        // Change counts begin with 1; 0 says that none are kept.
        let change_count = self.changes + 1;
        let mut members = BTreeMap::<u32, Vec<u32>>::new();
        for nsid in nsids {
            let named = members.entry(self.group(*nsid)).or_default();
            if !groups_only {
                named.push(*nsid);
            }
        }
        let groups = members.into_iter().map(|(anagrpid, nsids)| AnaGroup {
            anagrpid,
            change_count,
            state: self.state(local, anagrpid),
            nsids,
        });
        AnaLog {
            change_count,
            groups: groups.collect(),
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

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_listener_has_its_own_state_or_that_of_all_addresses() {
        let mut access = Access::default();
        assert!(!access.set(at("1.1.1.1:1"), None, AnaState::Optimized));
        assert!(access.set(at("0.0.0.0:1"), None, AnaState::Inaccessible));
        assert!(!access.set(at("0.0.0.0:1"), None, AnaState::Inaccessible));
        assert!(access.set(at("1.1.1.1:1"), None, AnaState::NonOptimized));
        assert_eq!(access.state(at("1.1.1.1:1"), 1), AnaState::NonOptimized);
        assert_eq!(access.state(at("1.1.1.2:1"), 1), AnaState::Inaccessible);
        assert_eq!(access.state(at("1.1.1.2:2"), 1), AnaState::Optimized);
        assert_eq!(access.state(at("[::1]:1"), 1), AnaState::Optimized);
        assert!(access.set(at("1.1.1.1:1"), None, AnaState::Optimized));
        let log = access.log(at("1.1.1.2:1"), &[1, 5], false);
        assert_eq!(
            (log.change_count, log.groups[0].state),
            (4, AnaState::Inaccessible)
        );
    }

    #[test]
    fn a_group_has_its_own_state_until_all_are_set() {
        let mut access = Access::default();
        let (one, other) = (at("1.1.1.1:1"), at("1.1.1.1:2"));
        assert!(!access.put(3, GROUP));
        assert!(access.put(3, 7));
        assert!(!access.put(3, 7));
        assert!(access.set(one, Some(7), AnaState::Inaccessible));
        assert_eq!(access.state(one, 7), AnaState::Inaccessible);
        assert_eq!(access.state(one, GROUP), AnaState::Optimized);
        assert_eq!(access.state(other, 7), AnaState::Optimized);
        let log = access.log(one, &[1, 2, 3], false);
        let groups: Vec<_> = log
            .groups
            .iter()
            .map(|group| (group.anagrpid, group.state, &group.nsids[..]))
            .collect();
        assert_eq!(
            groups,
            [
                (1, AnaState::Optimized, &[1, 2][..]),
                (7, AnaState::Inaccessible, &[3][..])
            ]
        );
        let log = access.log(one, &[1, 2, 3], true);
        assert_eq!((log.groups.len(), log.groups[1].nsids.len()), (2, 0));
        assert!(access.set(one, None, AnaState::NonOptimized));
        assert_eq!(access.state(one, 7), AnaState::NonOptimized);
        assert!(access.set(one, Some(7), AnaState::Optimized));
        assert!(access.set(one, Some(7), AnaState::NonOptimized));
        assert_eq!(access.of(one).groups.len(), 0, "as all others");
        access.forget(one);
        assert_eq!(access.of(one), ListenerAccess::default());
    }
}
