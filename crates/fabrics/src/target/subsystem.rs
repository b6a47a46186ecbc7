//! What a target serves: subsystems, their namespaces, and who may connect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bdev::BlockDevice;
use protocols::nvme::Nqn;
use protocols::nvme::log::{AnaLog, AnaState};

use super::access::Access;
use super::command::OpenCommands;
use super::controller::Controller;
use super::discovery::{DiscoveryLog, Referral};
use super::drain::Drains;
use super::notices::Notice;

/// The largest namespace identifier served (NN in Identify Controller).
pub(super) const NSID_MAX: u32 = 1024;
/// Controller identifiers that may be given out: 1 to FFEFh; the others are reserved (NVM Express Base
/// Specification 2.0c, section 3.1.2).
const CNTLIDS: RangeInclusive<u16> = 1..=0xffef;

/// A device under a namespace identifier.
pub struct Namespace {
    /// Its number in the subsystem, from 1.
    pub nsid: u32,
    /// Its identity, which never changes and no other namespace has.
    pub uuid: [u8; 16],
    /// Where its blocks are.
    pub device: Arc<dyn BlockDevice>,
}

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All.
    Any,
    /// Those with these names.
    Only(BTreeSet<String>),
}

/// Why a namespace was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// The number is 0 or too large.
    #[error("namespace {nsid} cannot be added to {nqn}: the number must be 1 to {NSID_MAX}")]
    BadNumber {
        /// The number asked for.
        nsid: u32,
        /// The subsystem.
        nqn: String,
    },
    /// The number is taken.
    #[error("namespace {nsid} is already there in {nqn}: remove it first, or choose another number")]
    Taken {
        /// The number asked for.
        nsid: u32,
        /// The subsystem.
        nqn: String,
    },
}

/// Controller identifiers that cannot be given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "controllers of {nqn} cannot be numbered {first} to {last}: name a range of at least one number within 1 to 65519"
)]
pub struct ControllerNumbersError {
    /// The subsystem.
    pub nqn: String,
    /// The first number asked for.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// A subsystem: a name under which namespaces are served.
pub struct Subsystem {
    nqn: Nqn,
    serial: String,
    model: String,
    hosts: Mutex<Hosts>,
    /// Where it is served; everywhere if none are named.
    listeners: Mutex<Option<BTreeSet<SocketAddr>>>,
    access: Mutex<Access>,
    drains: Arc<Drains>,
    /// The discovery logs that list it.
    logs: Mutex<Vec<Weak<DiscoveryLog>>>,
    commands: Option<OpenCommands>,
    namespaces: Mutex<BTreeMap<u32, Arc<Namespace>>>,
    /// Grows with each change of the namespaces, so that queues notice without a lock.
    version: AtomicU64,
    controllers: Mutex<Controllers>,
}

struct Controllers {
    live: BTreeMap<u16, Weak<Controller>>,
    allowed: RangeInclusive<u16>,
    /// Where the search for a free identifier begins.
    next: u16,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
            allowed: CNTLIDS,
            next: *CNTLIDS.start(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subsystem {
    /// A subsystem without namespaces. `serial` is cut to 20 bytes and `model` to 40, as Identify has it.
    pub fn new(nqn: Nqn, serial: &str, model: &str, hosts: Hosts) -> Arc<Self> {
        Arc::new(Self::make(nqn, serial, model, hosts, None))
    }

    fn make(nqn: Nqn, serial: &str, model: &str, hosts: Hosts, commands: Option<OpenCommands>) -> Self {
        Self {
            nqn,
            serial: serial.to_owned(),
            model: model.to_owned(),
            hosts: Mutex::new(hosts),
            listeners: Mutex::default(),
            access: Mutex::default(),
            drains: Arc::default(),
            logs: Mutex::default(),
            commands,
            namespaces: Mutex::default(),
            version: AtomicU64::new(1),
            controllers: Mutex::default(),
        }
    }

    pub(super) fn commands(&self) -> Option<&OpenCommands> {
        self.commands.as_ref()
    }

    /// A subsystem whose I/O commands are all given to handlers that `open` makes, one for each queue: what
    /// peers speak to each other. A host for which it makes none is refused.
    pub fn with_commands(nqn: Nqn, serial: &str, model: &str, open: OpenCommands) -> Arc<Self> {
        Arc::new(Self::make(nqn, serial, model, Hosts::Any, Some(open)))
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    pub(super) fn serial(&self) -> &str {
        &self.serial
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Whether a host of this name may connect, and see the subsystem in discovery.
    pub fn allows(&self, host: &str) -> bool {
        match &*locked(&self.hosts) {
            Hosts::Any => true,
            Hosts::Only(names) => names.contains(host),
        }
    }

    /// Changes which hosts may connect. Those connected stay; [`Subsystem::disconnect_hosts`] ends them.
    pub fn set_hosts(&self, hosts: Hosts) {
        *locked(&self.hosts) = hosts;
        self.log_changed();
    }

    /// Serves the subsystem only through listeners at these addresses (as they were given to `serve`), or through
    /// all with `None`. Hosts connected through another stay.
    pub fn set_listeners(&self, addresses: Option<BTreeSet<SocketAddr>>) {
        *locked(&self.listeners) = addresses;
        self.log_changed();
    }

    /// Numbers new controllers from this range only. Several targets that serve one subsystem share its numbers: each
    /// needs a range of its own. 1 to 65519 at first.
    ///
    /// # Errors
    /// The range is empty or leaves 1 to 65519.
    pub fn set_controller_numbers(&self, range: RangeInclusive<u16>) -> Result<(), ControllerNumbersError> {
        let (first, last) = (*range.start(), *range.end());
        if range.is_empty() || !CNTLIDS.contains(&first) || !CNTLIDS.contains(&last) {
            let nqn = self.nqn.as_str().to_owned();
            return Err(ControllerNumbersError { nqn, first, last });
        }
        let mut controllers = locked(&self.controllers);
        controllers.allowed = range;
        controllers.next = first;
        Ok(())
    }

    /// Whether it is served through the listener at `portal`.
    pub(super) fn is_served_at(&self, portal: SocketAddr) -> bool {
        locked(&self.listeners)
            .as_ref()
            .is_none_or(|listeners| listeners.contains(&portal))
    }

    /// The discovery log of `target` lists it from now on.
    fn listed_in(&self, log: &Arc<DiscoveryLog>) {
        let mut logs = locked(&self.logs);
        logs.retain(|listed| listed.strong_count() > 0);
        logs.push(Arc::downgrade(log));
    }

    fn log_changed(&self) {
        let logs: Vec<_> = locked(&self.logs).iter().filter_map(Weak::upgrade).collect();
        for log in logs {
            log.changed();
        }
    }

    /// What is left in the devices of hosts that lost their connection.
    pub(super) fn drains(&self) -> &Arc<Drains> {
        &self.drains
    }

    /// Sets how well the namespaces are reached through a listener (its address as it was given to `serve`), and tells
    /// the hosts. In the states Inaccessible, Persistent Loss and Change, I/O commands that come through it are answered
    /// with that status, which makes a multipath host use another path.
    pub fn set_access(&self, listener: SocketAddr, state: AnaState) {
        if locked(&self.access).set(listener, state) {
            self.version.fetch_add(1, Ordering::Release);
            for controller in self.controllers() {
                controller.notify(Notice::Access);
            }
        }
    }

    /// How well the namespaces are reached by a host whose connection ends at `local`.
    pub(super) fn access(&self, local: SocketAddr) -> AnaState {
        locked(&self.access).state(local)
    }

    /// The ANA log for such a host.
    pub(super) fn access_log(&self, local: SocketAddr, nsids: Vec<u32>) -> AnaLog {
        locked(&self.access).log(local, nsids)
    }

    /// Tells the connected hosts that a namespace's device has another size now; false if there is no such namespace.
    pub fn namespace_resized(&self, nsid: u32) -> bool {
        let there = self.namespace(nsid).is_some();
        if there {
            self.namespaces_changed(nsid);
        }
        there
    }

    /// Adds a namespace and tells the connected hosts.
    pub fn add_namespace(&self, namespace: Namespace) -> Result<(), NamespaceError> {
        let (nsid, nqn) = (namespace.nsid, self.nqn.as_str().to_owned());
        if !(1..=NSID_MAX).contains(&nsid) {
            return Err(NamespaceError::BadNumber { nsid, nqn });
        }
        {
            let mut namespaces = locked(&self.namespaces);
            if namespaces.contains_key(&nsid) {
                return Err(NamespaceError::Taken { nsid, nqn });
            }
            namespaces.insert(nsid, Arc::new(namespace));
        }
        self.namespaces_changed(nsid);
        Ok(())
    }

    /// Removes a namespace and tells the connected hosts; false if there was none. Commands in flight end.
    pub fn remove_namespace(&self, nsid: u32) -> bool {
        let removed = locked(&self.namespaces).remove(&nsid).is_some();
        if removed {
            self.namespaces_changed(nsid);
        }
        removed
    }

    fn namespaces_changed(&self, nsid: u32) {
        self.version.fetch_add(1, Ordering::Release);
        for controller in self.controllers() {
            controller.namespace_changed(nsid);
        }
    }

    /// Grows with each change of the namespaces.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// All namespaces by number.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        locked(&self.namespaces).values().cloned().collect()
    }

    /// One namespace.
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        locked(&self.namespaces).get(&nsid).cloned()
    }

    /// Ends the associations of all hosts; they may connect again.
    pub fn disconnect_hosts(&self) {
        for controller in self.controllers() {
            controller.disconnect();
        }
    }

    /// The live controllers.
    pub(super) fn controllers(&self) -> Vec<Arc<Controller>> {
        locked(&self.controllers)
            .live
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(super) fn controller(&self, cntlid: u16) -> Option<Arc<Controller>> {
        locked(&self.controllers)
            .live
            .get(&cntlid)
            .and_then(Weak::upgrade)
    }

    /// Makes a controller under a free identifier; `None` if all are taken.
    pub(super) fn add_controller(&self, make: impl FnOnce(u16) -> Controller) -> Option<Arc<Controller>> {
        let mut controllers = locked(&self.controllers);
        controllers
            .live
            .retain(|_, controller| controller.strong_count() > 0);
        // In turn, so that a late command of an ended controller never meets its successor.
        let (first, last) = (*controllers.allowed.start(), *controllers.allowed.end());
        let is_free = |cntlid: &u16| !controllers.live.contains_key(cntlid);
        let cntlid = (controllers.next..=last)
            .chain(first..controllers.next)
            .find(is_free)?;
        controllers.next = if cntlid >= last { first } else { cntlid + 1 };
        let controller = Arc::new(make(cntlid));
        controllers.live.insert(cntlid, Arc::downgrade(&controller));
        Some(controller)
    }
}

/// An address at which subsystems are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Portal {
    /// Where the target listens.
    pub address: SocketAddr,
}

/// All that one target serves. Shared by all cores.
#[derive(Default)]
pub struct Target {
    subsystems: Mutex<BTreeMap<String, Arc<Subsystem>>>,
    portals: Mutex<BTreeSet<Portal>>,
    referrals: Mutex<Vec<Referral>>,
    /// A name of its own for the discovery service, beside the well-known one.
    discovery_nqn: Mutex<Option<Nqn>>,
    log: Arc<DiscoveryLog>,
}

impl Target {
    /// Nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Adds a subsystem; the one of the same name that was there before is replaced for new connections.
    pub fn add_subsystem(&self, subsystem: Arc<Subsystem>) {
        subsystem.listed_in(&self.log);
        locked(&self.subsystems).insert(subsystem.nqn().as_str().to_owned(), subsystem);
        self.log.changed();
    }

    /// Removes a subsystem and ends the associations of its hosts; `None` if there was none.
    pub fn remove_subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        let removed = locked(&self.subsystems).remove(nqn)?;
        removed.disconnect_hosts();
        self.log.changed();
        Some(removed)
    }

    /// The subsystem of this name.
    pub fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        locked(&self.subsystems).get(nqn).cloned()
    }

    /// All subsystems by name.
    pub fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        locked(&self.subsystems).values().cloned().collect()
    }

    /// Gives the discovery service a name of its own. Hosts may use it or the well-known one.
    pub fn set_discovery_nqn(&self, nqn: Option<Nqn>) {
        *locked(&self.discovery_nqn) = nqn;
        self.log.changed();
    }

    /// The discovery service's own name; the well-known one if it has none.
    pub fn discovery_nqn(&self) -> Nqn {
        locked(&self.discovery_nqn).clone().unwrap_or_else(Nqn::discovery)
    }

    /// Points hosts to another discovery service; false if it is pointed to already.
    pub fn add_referral(&self, referral: Referral) -> bool {
        {
            let mut referrals = locked(&self.referrals);
            if referrals.contains(&referral) {
                return false;
            }
            referrals.push(referral);
        }
        self.log.changed();
        true
    }

    /// No longer points to another discovery service; false if it did not.
    pub fn remove_referral(&self, referral: &Referral) -> bool {
        let removed = {
            let mut referrals = locked(&self.referrals);
            let before = referrals.len();
            referrals.retain(|kept| kept != referral);
            referrals.len() < before
        };
        if removed {
            self.log.changed();
        }
        removed
    }

    /// The other discovery services that hosts are pointed to.
    pub fn referrals(&self) -> Vec<Referral> {
        locked(&self.referrals).clone()
    }

    pub(super) fn add_portal(&self, portal: Portal) {
        locked(&self.portals).insert(portal);
        self.log.changed();
    }

    pub(super) fn remove_portal(&self, portal: Portal) {
        locked(&self.portals).remove(&portal);
        self.log.changed();
    }

    /// Where the target listens.
    pub fn portals(&self) -> Vec<Portal> {
        locked(&self.portals).iter().copied().collect()
    }

    pub(super) fn log(&self) -> &DiscoveryLog {
        &self.log
    }
}
