//! One host's association with a subsystem: registers, features, and the events that wait for the host.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::features::AsyncEventConfiguration;
use protocols::nvme::log::ChangedNamespaces;
use protocols::nvme::registers::{
    CAP_OFFSET, CC_OFFSET, CSTS_OFFSET, Capabilities, Configuration, ControllerStatus, VS_OFFSET, Version,
};
use reactor::mailbox::MailboxSender;

use super::queue::Order;
use super::subsystem::Portal;

/// Entries of the largest I/O queue, less one (CAP.MQES).
pub(super) const QUEUE_SIZE_MAX: u16 = 1023;
/// I/O queues of a controller.
pub(super) const QUEUES_MAX: u16 = 128;
/// Changed namespaces that the log holds; beyond that it says "many" (figure 205).
const CHANGED_MAX: usize = 1024;

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The host's.
    pub peer: SocketAddr,
    /// Ours.
    pub local: SocketAddr,
    /// The listener that accepted it.
    pub portal: Portal,
}

/// How many queues, and how long, a host is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// I/O queues of a controller, at most 128.
    pub io_queues: u16,
    /// Entries of an I/O queue, 2 to 1024.
    pub entries: u16,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            io_queues: QUEUES_MAX,
            entries: QUEUE_SIZE_MAX + 1,
        }
    }
}

/// Who a controller is made for.
pub(super) struct Host {
    pub(super) nqn: String,
    pub(super) id: [u8; 16],
    pub(super) kato_ms: u32,
    pub(super) path: Path,
}

pub(super) struct Controller {
    pub(super) cntlid: u16,
    pub(super) host_nqn: String,
    pub(super) host_id: [u8; 16],
    pub(super) path: Path,
    pub(super) limits: QueueLimits,
    /// What Connect asked for, in milliseconds; 0 for no keep-alive.
    kato_ms: Mutex<u32>,
    admin: MailboxSender<Order>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    configuration: Configuration,
    status: ControllerStatus,
    events: AsyncEventConfiguration,
    changed: BTreeSet<u32>,
    /// Reported and not read since: no further notice until the log is read.
    changed_reported: bool,
    pending_change: bool,
    io_queues: Vec<IoQueueEntry>,
}

/// An I/O queue as its controller knows it.
struct IoQueueEntry {
    qid: u16,
    path: Path,
    orders: MailboxSender<Order>,
}

impl Controller {
    pub(super) fn new(cntlid: u16, host: Host, limits: QueueLimits, admin: MailboxSender<Order>) -> Self {
        Self {
            cntlid,
            host_nqn: host.nqn,
            host_id: host.id,
            path: host.path,
            limits,
            kato_ms: Mutex::new(host.kato_ms),
            admin,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_mqes(self.limits.entries - 1)
            .with_cqr(1)
            .with_to(30)
            .with_css(1)
    }

    pub(super) fn version() -> Version {
        Version::default().with_major(2)
    }

    /// Property Get; `None` for a property that is not there.
    pub(super) fn property(&self, offset: u32) -> Option<u64> {
        let state = self.state();
        Some(match offset {
            CAP_OFFSET => self.capabilities().bits(),
            VS_OFFSET => Self::version().bits().into(),
            CC_OFFSET => state.configuration.bits().into(),
            CSTS_OFFSET => state.status.bits().into(),
            _ => return None,
        })
    }

    /// Property Set; false for a property that cannot be set.
    pub(super) fn set_property(&self, offset: u32, value: u64) -> bool {
        if offset != CC_OFFSET {
            return false;
        }
        let configuration = Configuration::from_bits(value as u32);
        let mut state = self.state();
        let was_enabled = state.configuration.is_enabled();
        state.configuration = configuration;
        if configuration.wants_shutdown() {
            state.status = state.status.with_shst(2);
        } else if configuration.is_enabled() {
            state.status = ControllerStatus::default().with_rdy(1);
        } else {
            state.status = ControllerStatus::default();
        }
        if was_enabled && (!configuration.is_enabled() || configuration.wants_shutdown()) {
            // A reset or shutdown deletes the I/O queues (section 3.7.2).
            for queue in state.io_queues.drain(..) {
                let _ = queue.orders.try_send(Order::End);
            }
        }
        true
    }

    /// Whether I/O and most admin commands may run.
    pub(super) fn is_ready(&self) -> bool {
        let state = self.state();
        state.status.is_ready() && !state.configuration.wants_shutdown()
    }

    pub(super) fn kato_ms(&self) -> u32 {
        *self.kato_ms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_kato_ms(&self, kato_ms: u32) {
        *self.kato_ms.lock().unwrap_or_else(PoisonError::into_inner) = kato_ms;
    }

    pub(super) fn events(&self) -> AsyncEventConfiguration {
        self.state().events
    }

    pub(super) fn set_events(&self, events: AsyncEventConfiguration) {
        self.state().events = events;
    }

    /// Adds an I/O queue; false if the number is taken or the controller is not ready.
    pub(super) fn add_io_queue(&self, qid: u16, path: Path, orders: MailboxSender<Order>) -> bool {
        let mut state = self.state();
        if !state.status.is_ready() || state.io_queues.iter().any(|queue| queue.qid == qid) {
            return false;
        }
        state.io_queues.push(IoQueueEntry { qid, path, orders });
        true
    }

    /// The I/O queues, by number.
    pub(super) fn io_queues(&self) -> Vec<(u16, Path)> {
        let mut queues: Vec<_> = self
            .state()
            .io_queues
            .iter()
            .map(|queue| (queue.qid, queue.path))
            .collect();
        queues.sort_by_key(|(qid, _)| *qid);
        queues
    }

    pub(super) fn remove_io_queue(&self, qid: u16) {
        self.state().io_queues.retain(|queue| queue.qid != qid);
    }

    /// The admin queue is gone: so are the others.
    pub(super) fn end(&self) {
        for queue in self.state().io_queues.drain(..) {
            // A full or closed mailbox belongs to a queue that is ending anyway.
            let _ = queue.orders.try_send(Order::End);
        }
    }

    /// Ends the association from this side.
    pub(super) fn disconnect(&self) {
        let _ = self.admin.try_send(Order::End);
    }

    /// Notes that a namespace came, went or changed, and wakes the admin queue if the host wants to know.
    pub(super) fn namespace_changed(&self, nsid: u32) {
        let mut state = self.state();
        for queue in &state.io_queues {
            // A queue that misses the order sees the change with its next command.
            let _ = queue.orders.try_send(Order::Namespaces);
        }
        state.changed.insert(nsid);
        if state.events.wants(AsyncEventConfiguration::NAMESPACE_ATTRIBUTE) && !state.changed_reported {
            state.pending_change = true;
            let _ = self.admin.try_send(Order::Events);
        }
    }

    /// The next event to report, which is then taken to be reported.
    pub(super) fn take_event(&self) -> Option<AsyncEvent> {
        let mut state = self.state();
        if !std::mem::replace(&mut state.pending_change, false) {
            return None;
        }
        state.changed_reported = true;
        Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED)
    }

    /// Reads the Changed Namespace List, and clears it unless the event is to be retained.
    pub(super) fn changed_namespaces(&self, retain: bool) -> ChangedNamespaces {
        let mut state = self.state();
        let list = if state.changed.len() > CHANGED_MAX {
            ChangedNamespaces::TooMany
        } else {
            ChangedNamespaces::Some(state.changed.iter().copied().collect())
        };
        if !retain {
            state.changed.clear();
            state.changed_reported = false;
        }
        list
    }
}
