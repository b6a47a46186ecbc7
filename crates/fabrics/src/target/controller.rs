//! One host's association with a subsystem: registers, features, queues, and the events that wait for the host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundation::Instant;
use protocols::auth::system_entropy;
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::features::{AsyncEventConfiguration, Timestamp};
use protocols::nvme::log::{ChangedNamespaces, ReservationNoticeType, ReservationNotification};
use protocols::nvme::registers::{
    CAP_OFFSET, CC_OFFSET, CSTS_OFFSET, Capabilities, Configuration, ControllerStatus, VS_OFFSET, Version,
};
use protocols::nvme::{Command, Completion};
use reactor::mailbox::MailboxSender;

use super::command::HostIdentity;
use super::drain::Drains;
use super::errors::ErrorLog;
use super::notices::{Notice, Notices};
use super::queue::Order;
use super::reservation::NotificationLog;
use super::share::{QueueShare, Totals};
use super::subsystem::{Association, Portal};

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
    /// The number of the reactor that serves it.
    pub reactor: u32,
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

/// What makes a controller.
pub(super) struct Origin {
    pub(super) host: HostIdentity,
    /// Of the admin queue. Access to namespaces may differ by where the host reached us.
    pub(super) path: Path,
    pub(super) limits: QueueLimits,
    /// What Connect asked for, in milliseconds; 0 for no keep-alive.
    pub(super) kato_ms: u32,
    /// The admin queue.
    pub(super) admin: MailboxSender<Order>,
    /// Of the subsystem.
    pub(super) drains: Arc<Drains>,
}

pub(super) struct Controller {
    pub(super) cntlid: u16,
    /// Tells it from all others that have its number, before and after a restart (CIRN); 0 without a source of
    /// randomness.
    pub(super) cirn: u64,
    origin: Origin,
    kato_ms: AtomicU32,
    /// The host has switched the write cache off: every write is durable before it is answered.
    write_through: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    configuration: Configuration,
    status: ControllerStatus,
    notices: Notices,
    /// The admin queue has been told to look at them and has not done so yet.
    events_ordered: bool,
    changed: BTreeSet<u32>,
    reservations: NotificationLog,
    io_queues: Vec<IoQueueEntry>,
    /// What ended queues have done.
    past: Totals,
    errors: ErrorLog,
    /// Features that are only kept, by identifier and what else tells values apart.
    values: BTreeMap<(u8, u32), u32>,
    timestamp: Option<(u64, Instant)>,
    /// The admin queue is gone.
    ended: bool,
}

impl State {
    /// What a host sees of the status: a reset or shutdown is not done while queues that it ended have commands in the devices. Who was
    /// told otherwise might write the same blocks by another way, and the old commands would come after (NVM Express Base
    /// Specification 2.0c, sections 3.6.1 and 3.7.2).
    fn shown_status(&self) -> ControllerStatus {
        if !self.io_queues.iter().any(|queue| queue.lost) {
            return self.status;
        }
        if self.configuration.wants_shutdown() {
            return self.status.with_shst(1);
        }
        match self.configuration.is_enabled() {
            true => self.status,
            false => self.status.with_rdy(1),
        }
    }
}

/// An I/O queue as its controller knows it.
struct IoQueueEntry {
    qid: u16,
    path: Path,
    orders: MailboxSender<Order>,
    share: Arc<QueueShare>,
    /// Lost, and the host counted among those with something below.
    lost: bool,
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    match system_entropy(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

impl Controller {
    pub(super) fn new(cntlid: u16, origin: Origin) -> Self {
        Self {
            cntlid,
            cirn: random_number(),
            kato_ms: AtomicU32::new(origin.kato_ms),
            origin,
            write_through: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn host(&self) -> &HostIdentity {
        &self.origin.host
    }

    pub(super) fn path(&self) -> Path {
        self.origin.path
    }

    /// Where the host reached us.
    pub(super) fn local(&self) -> SocketAddr {
        self.origin.path.local
    }

    pub(super) fn limits(&self) -> QueueLimits {
        self.origin.limits
    }

    /// The association is over; what is left of it drains.
    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// As people look at it.
    pub(super) fn view(&self) -> Association {
        Association {
            cntlid: self.cntlid,
            host_nqn: self.host().nqn.clone(),
            host_id: self.host().id,
            admin: self.path(),
            io_queues: self.io_queues(),
        }
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_mqes(self.limits().entries - 1)
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
            CSTS_OFFSET => state.shown_status().bits().into(),
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
            self.end_queues(&mut state);
        }
        if was_enabled && !configuration.is_enabled() {
            // And sets features back (section 3.7.2).
            state.values.clear();
            state.timestamp = None;
            state.notices = Notices::default();
            state.reservations = NotificationLog::default();
            self.write_through.store(false, Ordering::Relaxed);
        }
        true
    }

    /// Whether I/O and most admin commands may run.
    pub(super) fn is_ready(&self) -> bool {
        let state = self.state();
        state.status.is_ready() && !state.configuration.wants_shutdown()
    }

    pub(super) fn kato_ms(&self) -> u32 {
        self.kato_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_kato_ms(&self, kato_ms: u32) {
        self.kato_ms.store(kato_ms, Ordering::Relaxed);
    }

    pub(super) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// A feature that is only kept.
    pub(super) fn value(&self, feature: u8, which: u32) -> Option<u32> {
        self.state().values.get(&(feature, which)).copied()
    }

    pub(super) fn set_value(&self, feature: u8, which: u32, value: u32) {
        self.state().values.insert((feature, which), value);
    }

    /// The host's clock as it told us, gone on since; since `born` if it did not (section 5.27.1.11).
    pub(super) fn timestamp(&self, now: Instant, born: Instant) -> Timestamp {
        let passed = |since: Instant| u64::try_from((now - since).as_millis()).unwrap_or(u64::MAX);
        match self.state().timestamp {
            Some((milliseconds, set)) => {
                Timestamp::from_milliseconds(milliseconds.wrapping_add(passed(set)), Timestamp::SET_BY_HOST)
            }
            None => Timestamp::from_milliseconds(passed(born), 0),
        }
    }

    pub(super) fn set_timestamp(&self, milliseconds: u64, now: Instant) {
        self.state().timestamp = Some((milliseconds, now));
    }

    /// Adds an I/O queue; `None` if the number is taken or the controller is not ready.
    pub(super) fn add_io_queue(
        &self,
        qid: u16,
        path: Path,
        orders: MailboxSender<Order>,
    ) -> Option<Arc<QueueShare>> {
        let mut state = self.state();
        if !state.status.is_ready() || state.io_queues.iter().any(|queue| queue.qid == qid) {
            return None;
        }
        let share = Arc::new(QueueShare::new());
        state.io_queues.push(IoQueueEntry {
            qid,
            path,
            orders,
            share: share.clone(),
            lost: false,
        });
        Some(share)
    }

    /// The I/O queues that hosts have, by number.
    pub(super) fn io_queues(&self) -> Vec<(u16, Path)> {
        let mut queues: Vec<_> = self
            .state()
            .io_queues
            .iter()
            .filter(|queue| !queue.lost)
            .map(|queue| (queue.qid, queue.path))
            .collect();
        queues.sort_by_key(|(qid, _)| *qid);
        queues
    }

    /// What each connected I/O queue counts, by its number.
    pub(super) fn queue_shares(&self) -> Vec<(u16, Arc<QueueShare>)> {
        let state = self.state();
        let live = state.io_queues.iter().filter(|queue| !queue.lost);
        live.map(|queue| (queue.qid, queue.share.clone())).collect()
    }

    /// The connection of an I/O queue is lost; its commands may still be below.
    pub(super) fn queue_lost(&self, qid: u16) {
        let mut state = self.state();
        if let Some(queue) = state.io_queues.iter_mut().find(|queue| queue.qid == qid) {
            self.mark_lost(queue);
        }
    }

    /// Nothing of a lost I/O queue is left below: its number is free again.
    pub(super) fn queue_drained(&self, qid: u16) {
        let mut state = self.state();
        let Some(index) = state.io_queues.iter().position(|queue| queue.qid == qid) else {
            return;
        };
        let queue = state.io_queues.swap_remove(index);
        state.past += queue.share.totals();
        if queue.lost {
            self.origin.drains.drained(&self.origin.host);
        }
    }

    fn mark_lost(&self, queue: &mut IoQueueEntry) {
        if !std::mem::replace(&mut queue.lost, true) {
            self.origin.drains.lost(&self.origin.host);
        }
    }

    /// The queues go on to be counted until they have noticed and nothing of them is left below.
    fn end_queues(&self, state: &mut State) {
        for queue in &mut state.io_queues {
            self.mark_lost(queue);
            // A closed mailbox belongs to a queue that is ending anyway; a full one cannot be: see `Order`.
            let _ = queue.orders.try_send(Order::End);
        }
    }

    /// The way to an I/O queue.
    pub(super) fn io_queue(&self, qid: u16) -> Option<MailboxSender<Order>> {
        let state = self.state();
        let queue = state.io_queues.iter().find(|queue| queue.qid == qid)?;
        Some(queue.orders.clone())
    }

    /// The ways to all I/O queues, lost ones included.
    pub(super) fn queues_to_drain(&self) -> Vec<(MailboxSender<Order>, Arc<QueueShare>)> {
        let state = self.state();
        let queues = state.io_queues.iter();
        queues
            .map(|queue| (queue.orders.clone(), queue.share.clone()))
            .collect()
    }

    /// What all queues have done.
    pub(super) fn totals(&self) -> Totals {
        let state = self.state();
        let mut totals = state.past;
        for queue in &state.io_queues {
            totals += queue.share.totals();
        }
        totals
    }

    /// The admin queue is gone: so are the others.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.status = ControllerStatus::default();
        state.ended = true;
        self.end_queues(&mut state);
    }

    /// Ends the association from this side.
    pub(super) fn disconnect(&self) {
        let _ = self.origin.admin.try_send(Order::End);
    }

    /// Notes a failed command in the error log.
    pub(super) fn note_error(&self, qid: u16, command: &Command, completion: &Completion) {
        self.state().errors.note(qid, command, completion);
    }

    /// How many errors of the blocks below its commands have had.
    pub(super) fn media_errors(&self) -> u64 {
        self.state().errors.media()
    }

    /// The error log's page, and how many errors there ever were.
    pub(super) fn errors(&self) -> (Vec<u8>, u64) {
        let state = self.state();
        (state.errors.encode(), state.errors.count())
    }

    pub(super) fn events(&self) -> AsyncEventConfiguration {
        self.state().notices.wanted
    }

    pub(super) fn set_events(&self, events: AsyncEventConfiguration) {
        self.state().notices.wanted = events;
    }

    /// Notes that a namespace came, went or changed: tells the host if it wants to know, and the queues.
    pub(super) fn namespace_changed(&self, nsid: u32) {
        let mut state = self.state();
        state.changed.insert(nsid);
        for queue in &state.io_queues {
            if !queue.share.looking.swap(true, Ordering::AcqRel) {
                // A queue that misses the order sees the change with its next command.
                let _ = queue.orders.try_send(Order::Namespaces);
            }
        }
        self.raise(&mut state, Notice::Namespaces);
    }

    /// Something happened to a reservation that concerns the host.
    pub(super) fn notify_reservation(&self, nsid: u32, kind: ReservationNoticeType) {
        let mut state = self.state();
        state.reservations.add(nsid, kind);
        self.raise(&mut state, Notice::Reservations);
    }

    /// The oldest of these notifications. It goes unless the event is to be retained, and the next is told.
    pub(super) fn reservation_notice(&self, retain: bool) -> ReservationNotification {
        let mut state = self.state();
        let first = state.reservations.first();
        if !retain {
            state.notices.read(Notice::Reservations);
            if state.reservations.was_read() {
                self.raise(&mut state, Notice::Reservations);
            }
        }
        first
    }

    /// Tells the host of a change if it wants to know.
    pub(super) fn notify(&self, notice: Notice) {
        self.raise(&mut self.state(), notice);
    }

    fn raise(&self, state: &mut State, notice: Notice) {
        if state.notices.raise(notice) && !std::mem::replace(&mut state.events_ordered, true) {
            let _ = self.origin.admin.try_send(Order::Events);
        }
    }

    /// The admin queue looks at the notices, as it was told.
    pub(super) fn events_looked_at(&self) {
        self.state().events_ordered = false;
    }

    /// The next event to report, which is then taken to be reported.
    pub(super) fn take_event(&self) -> Option<AsyncEvent> {
        self.state().notices.take()
    }

    /// The log page that goes with a notice was read, and the event is not to be retained.
    pub(super) fn notice_read(&self, notice: Notice) {
        self.state().notices.read(notice);
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
            state.notices.read(Notice::Namespaces);
        }
        list
    }
}
