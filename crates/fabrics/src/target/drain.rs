//! Commands of lost connections that the devices have not finished.
//!
//! A host that connects again must not be overtaken by what it sent before: it may write a block anew, and the old
//! write, late in the device, would land on top. So a new Connect of the same host to the same subsystem waits until
//! nothing of its lost queues is left below. Kept for each subsystem; locked when queues come and go, never for I/O.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use super::command::HostIdentity;

#[derive(Default)]
struct Undrained {
    /// Lost queues with commands below, or that have not yet noticed that they are lost.
    queues: usize,
    waiting: Vec<MailboxSender<()>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Drains(Mutex<BTreeMap<HostIdentity, Undrained>>);

impl Drains {
    fn hosts(&self) -> MutexGuard<'_, BTreeMap<HostIdentity, Undrained>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue of `host` is lost.
    pub(super) fn lost(&self, host: &HostIdentity) {
        self.hosts().entry(host.clone()).or_default().queues += 1;
    }

    /// Nothing of a lost queue is left below.
    pub(super) fn drained(&self, host: &HostIdentity) {
        let mut hosts = self.hosts();
        let Some(undrained) = hosts.get_mut(host) else {
            return;
        };
        undrained.queues -= 1;
        if undrained.queues == 0
            && let Some(undrained) = hosts.remove(host)
        {
            for waiting in undrained.waiting {
                // Who has given up waiting needs no news.
                let _ = waiting.try_send(());
            }
        }
    }

    /// `None` if nothing of `host` is left below; otherwise tells when that is so. Ask again then: more may have
    /// been lost meanwhile.
    pub(super) fn wait(&self, host: &HostIdentity) -> Option<Mailbox<()>> {
        let mut hosts = self.hosts();
        let undrained = hosts.get_mut(host)?;
        let (sender, receiver) = mailbox(1);
        undrained.waiting.push(sender);
        Some(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(nqn: &str) -> HostIdentity {
        HostIdentity {
            nqn: nqn.to_owned(),
            id: [1; 16],
        }
    }

    #[test]
    fn only_the_lost_queues_of_a_host_hold_it_up() {
        let drains = Drains::default();
        assert!(drains.wait(&host("a")).is_none());
        drains.lost(&host("a"));
        drains.lost(&host("a"));
        assert!(drains.wait(&host("b")).is_none());
        let other_id = HostIdentity {
            id: [2; 16],
            ..host("a")
        };
        assert!(drains.wait(&other_id).is_none());
        drains.drained(&host("a"));
        assert!(drains.wait(&host("a")).is_some());
        drains.drained(&host("a"));
        assert!(drains.wait(&host("a")).is_none());
    }
}
