//! What a target serves: subsystems, their namespaces, and who may connect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bdev::BlockDevice;
use protocols::auth::Policy;
use protocols::nvme::Nqn;
use protocols::nvme::log::{AnaLog, AnaState, ReservationNoticeType};
use reactor::CoreHandle;

use super::access::{Access, GROUP, ListenerAccess};
use super::authentication::Credentialed;
use super::command::OpenCommands;
use super::controller::{Controller, Path};
use super::discovery::DiscoveryLog;
use super::drain::Drains;
use super::export::Export;
use super::measures::Counts;
use super::meter::Meters;
use super::notices::Notice;
use super::reservation::{HostId, Owner, ReservationFile};
use super::secure::{Keyed, SecurePortals};
use crate::authentication::Credentials;

/// The largest namespace identifier that a subsystem may serve (NN in Identify Controller).
pub const NSID_MAX: u32 = 1024;
/// Controller identifiers that may be given out: 1 to FFEFh; the others are reserved (NVM Express Base
/// Specification 2.0c, section 3.1.2).
pub const CNTLIDS: RangeInclusive<u16> = 1..=0xffef;

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
    #[error("namespace {nsid} cannot be added to {nqn}: the number must be 1 to {namespaces_max}")]
    BadNumber {
        /// The number asked for.
        nsid: u32,
        /// The subsystem.
        nqn: String,
        /// Its largest number.
        namespaces_max: u32,
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

/// What a subsystem is to be.
#[derive(Clone, Debug)]
pub struct SubsystemOptions {
    /// Its name.
    pub nqn: Nqn,
    /// Cut to 20 bytes, as Identify has it.
    pub serial: String,
    /// Cut to 40 bytes.
    pub model: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// Its largest namespace number, at most [`NSID_MAX`].
    pub namespaces_max: u32,
    /// The controller identifiers that it gives out, within [`CNTLIDS`]. Portals of one subsystem in several targets
    /// need ranges that do not meet.
    pub cntlids: RangeInclusive<u16>,
    /// Where it is reached: at all of the target's portals, or at those that are added one by one.
    pub everywhere: bool,
    /// Whether hosts are told how well namespaces are reached through each listener (asymmetric namespace access).
    pub reports_access: bool,
}

/// A host's association with a subsystem, as people look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// The controller's number.
    pub cntlid: u16,
    /// The host's name.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The admin queue's connection.
    pub admin: Path,
    /// The I/O queues' numbers and connections.
    pub io_queues: Vec<(u16, Path)>,
}

#[derive(Default)]
struct Allowed {
    any: bool,
    names: BTreeSet<String>,
}

impl Allowed {
    fn allows(&self, host: &str) -> bool {
        self.any || self.names.contains(host)
    }
}

impl From<Hosts> for Allowed {
    fn from(hosts: Hosts) -> Self {
        match hosts {
            Hosts::Any => Self {
                any: true,
                names: BTreeSet::new(),
            },
            Hosts::Only(names) => Self { any: false, names },
        }
    }
}

/// A subsystem: a name under which namespaces are served.
pub struct Subsystem {
    nqn: Nqn,
    serial: String,
    model: String,
    allowed: Mutex<Allowed>,
    pub(super) credentialed: Credentialed,
    pub(super) keyed: Keyed,
    /// `None` for all.
    portals: Mutex<Option<BTreeSet<Portal>>>,
    namespaces_max: u32,
    cntlids: RangeInclusive<u16>,
    reports_access: bool,
    /// How well it is reached through each listener.
    access: Mutex<Access>,
    drains: Arc<Drains>,
    meters: Meters,
    /// The discovery logs that list it.
    logs: Mutex<Vec<Weak<DiscoveryLog>>>,
    commands: Option<OpenCommands>,
    /// Set if other targets serve it, too.
    pub(super) export: Option<Export>,
    /// Where they do.
    pub(super) elsewhere: Mutex<Vec<SocketAddr>>,
    namespaces: Mutex<BTreeMap<u32, Arc<Namespace>>>,
    /// What hosts have agreed on, by namespace. Taken after `namespaces`.
    reservations: Mutex<BTreeMap<u32, Arc<Owner>>>,
    /// Grows with each change of the namespaces, so that queues notice without a lock.
    version: AtomicU64,
    controllers: Mutex<Controllers>,
}

#[derive(Default)]
struct Controllers {
    live: BTreeMap<u16, Weak<Controller>>,
    /// Where the search for a free identifier begins.
    next: u16,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subsystem {
    /// A subsystem without namespaces. `serial` is cut to 20 bytes and `model` to 40, as Identify has it.
    pub fn new(nqn: Nqn, serial: &str, model: &str, hosts: Hosts) -> Arc<Self> {
        Arc::new(Self::make(Self::usual(nqn, serial, model, hosts), None))
    }

    /// A subsystem without namespaces, as described.
    ///
    /// # Panics
    /// If the namespaces or controllers are beyond what the options say.
    pub fn with_options(options: SubsystemOptions) -> Arc<Self> {
        Self::with_export(options, None)
    }

    pub(super) fn with_export(options: SubsystemOptions, export: Option<Export>) -> Arc<Self> {
        assert!((1..=NSID_MAX).contains(&options.namespaces_max));
        assert!(CNTLIDS.contains(options.cntlids.start()) && CNTLIDS.contains(options.cntlids.end()));
        assert!(!options.cntlids.is_empty());
        Arc::new(Self {
            export,
            ..Self::make(options, None)
        })
    }

    fn usual(nqn: Nqn, serial: &str, model: &str, hosts: Hosts) -> SubsystemOptions {
        SubsystemOptions {
            nqn,
            serial: serial.to_owned(),
            model: model.to_owned(),
            hosts,
            namespaces_max: NSID_MAX,
            cntlids: CNTLIDS,
            everywhere: true,
            reports_access: true,
        }
    }

    fn make(options: SubsystemOptions, commands: Option<OpenCommands>) -> Self {
        Self {
            nqn: options.nqn,
            serial: options.serial,
            model: options.model,
            allowed: Mutex::new(options.hosts.into()),
            credentialed: Credentialed::default(),
            keyed: Keyed::default(),
            portals: Mutex::new((!options.everywhere).then(BTreeSet::new)),
            namespaces_max: options.namespaces_max,
            cntlids: options.cntlids,
            reports_access: options.reports_access,
            access: Mutex::default(),
            drains: Arc::default(),
            meters: Meters::default(),
            logs: Mutex::default(),
            commands,
            export: None,
            elsewhere: Mutex::default(),
            namespaces: Mutex::default(),
            reservations: Mutex::default(),
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
        let options = Self::usual(nqn, serial, model, Hosts::Any);
        Arc::new(Self::make(options, Some(open)))
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// Its serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Its model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Its largest namespace number.
    pub fn namespaces_max(&self) -> u32 {
        self.namespaces_max
    }

    /// The controller identifiers that it gives out.
    pub fn cntlids(&self) -> &RangeInclusive<u16> {
        &self.cntlids
    }

    /// Whether it serves block devices; others serve commands of ours.
    pub fn is_block_storage(&self) -> bool {
        self.commands.is_none()
    }

    /// Whether hosts reach it at this portal.
    pub fn is_at(&self, portal: Portal) -> bool {
        locked(&self.portals)
            .as_ref()
            .is_none_or(|portals| portals.contains(&portal))
    }

    /// The portals at which alone it is reached; `None` if that is all.
    pub fn portals(&self) -> Option<BTreeSet<Portal>> {
        locked(&self.portals).clone()
    }

    /// Makes it reached at a portal; false if it was. From then on it is reached only where it was told.
    pub fn add_portal(&self, portal: Portal) -> bool {
        let added = locked(&self.portals).get_or_insert_default().insert(portal);
        if added {
            self.log_changed();
        }
        added
    }

    /// Makes it not reached at a portal any more, and ends the associations that came by it; false if it was not
    /// reached there alone.
    pub fn remove_portal(&self, portal: Portal) -> bool {
        let removed = locked(&self.portals)
            .as_mut()
            .is_some_and(|portals| portals.remove(&portal));
        if removed {
            locked(&self.access).forget(portal.address);
            self.log_changed();
            self.disconnect_where(|controller| controller.path().portal == portal);
        }
        removed
    }

    /// Whether a host of this name may connect, and see the subsystem in discovery.
    pub fn allows(&self, host: &str) -> bool {
        locked(&self.allowed).allows(host)
    }

    /// Whether all hosts may connect.
    pub fn allows_any_host(&self) -> bool {
        locked(&self.allowed).any
    }

    /// The hosts that may connect even if not all may.
    pub fn hosts(&self) -> BTreeSet<String> {
        locked(&self.allowed).names.clone()
    }

    /// Allows all hosts, or only those that were named. Those that may not connect any more are disconnected.
    pub fn allow_any_host(&self, any: bool) {
        locked(&self.allowed).any = any;
        self.log_changed();
        self.disconnect_where(|controller| !self.allows(&controller.host().nqn));
    }

    /// Names a host that may connect; false if it was named.
    pub fn add_host(&self, host: &str) -> bool {
        self.add_host_with(host, None)
    }

    /// As [`Subsystem::add_host`]; with keys, the host has to authenticate.
    pub fn add_host_with(&self, host: &str, credentials: Option<Credentials>) -> bool {
        let added = {
            let mut allowed = locked(&self.allowed);
            let added = allowed.names.insert(host.to_owned());
            if added {
                // Before anybody sees the name.
                self.set_credentials(host, credentials);
            }
            added
        };
        if added {
            self.log_changed();
        }
        added
    }

    /// Takes a name back, and all of the host's keys; false if it was not there. The host is disconnected, unless all may
    /// connect.
    pub fn remove_host(&self, host: &str) -> bool {
        let removed = locked(&self.allowed).names.remove(host);
        if removed {
            self.set_credentials(host, None);
            self.set_psk(host, None);
            self.log_changed();
            self.disconnect_where(|controller| !self.allows(&controller.host().nqn));
        }
        removed
    }

    fn disconnect_where(&self, unwanted: impl Fn(&Controller) -> bool) {
        for controller in self.controllers() {
            if unwanted(&controller) {
                controller.disconnect();
            }
        }
    }

    /// The hosts that are connected, by controller.
    pub fn associations(&self) -> Vec<Association> {
        self.controllers()
            .into_iter()
            .filter(|controller| !controller.has_ended())
            .map(|controller| controller.view())
            .collect()
    }

    /// The discovery log lists it from now on.
    fn listed_in(&self, log: &Arc<DiscoveryLog>) {
        self.unlisted_in(log);
        locked(&self.logs).push(Arc::downgrade(log));
    }

    fn unlisted_in(&self, log: &Arc<DiscoveryLog>) {
        locked(&self.logs)
            .retain(|listed| listed.strong_count() > 0 && !std::ptr::eq(listed.as_ptr(), Arc::as_ptr(log)));
    }

    pub(super) fn log_changed(&self) {
        let logs: Vec<_> = locked(&self.logs).iter().filter_map(Weak::upgrade).collect();
        for log in logs {
            log.changed();
        }
    }

    /// What is left in the devices of hosts that lost their connection.
    pub(super) fn drains(&self) -> &Arc<Drains> {
        &self.drains
    }

    /// What its commands amount to.
    pub(super) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Sets how well the namespaces are reached through a listener (its address as it was given to `serve`), and tells
    /// the hosts. In the states Inaccessible, Persistent Loss and Change, I/O commands that come through it are answered
    /// with that status, which makes a multipath host use another path.
    pub fn set_access(&self, listener: SocketAddr, state: AnaState) {
        if locked(&self.access).set(listener, None, state) {
            self.access_changed();
        }
    }

    /// As [`Subsystem::set_access`], for the namespaces of one group.
    pub fn set_group_access(&self, listener: SocketAddr, group: u32, state: AnaState) {
        if locked(&self.access).set(listener, Some(group), state) {
            self.access_changed();
        }
    }

    fn access_changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
        for controller in self.controllers() {
            controller.notify(Notice::Access);
        }
    }

    /// Whether hosts are told how well namespaces are reached.
    pub fn reports_access(&self) -> bool {
        self.reports_access
    }

    /// How well namespaces are reached through a listener, as it was set.
    pub fn listener_access(&self, listener: SocketAddr) -> ListenerAccess {
        locked(&self.access).of(listener)
    }

    /// Puts a namespace, which need not be there yet, into a group, and tells the hosts. Groups are 1, in which all are
    /// at first, to [`Subsystem::namespaces_max`].
    pub fn set_access_group(&self, nsid: u32, group: u32) {
        if locked(&self.access).put(nsid, group) {
            self.access_changed();
            if self.namespace(nsid).is_some() {
                self.namespaces_changed(nsid);
            }
        }
    }

    /// The group of a namespace.
    pub fn access_group(&self, nsid: u32) -> u32 {
        locked(&self.access).group(nsid)
    }

    /// How well a namespace is reached by a host whose connection ends at `local`.
    pub(super) fn access(&self, local: SocketAddr, nsid: u32) -> AnaState {
        let access = locked(&self.access);
        access.state(local, access.group(nsid))
    }

    /// The ANA log for such a host.
    pub(super) fn access_log(&self, local: SocketAddr, nsids: &[u32], groups_only: bool) -> AnaLog {
        locked(&self.access).log(local, nsids, groups_only)
    }

    /// Tells the connected hosts that a namespace's device has another size now; false if there is no such namespace.
    pub fn namespace_resized(&self, nsid: u32) -> bool {
        let there = self.namespace(nsid).is_some();
        if there {
            self.namespaces_changed(nsid);
        }
        there
    }

    /// Adds a namespace and tells the connected hosts. Its reservations last as long as it does.
    ///
    /// # Errors
    /// If the number is taken or too large.
    pub fn add_namespace(&self, namespace: Namespace) -> Result<(), NamespaceError> {
        self.add_reserved_namespace(namespace, None)
    }

    /// As [`Subsystem::add_namespace`], with the reservations that `file` holds, which persist there when a host asks
    /// for it.
    ///
    /// # Errors
    /// If the number is taken or too large.
    pub fn add_reserved_namespace(
        &self,
        namespace: Namespace,
        file: Option<ReservationFile>,
    ) -> Result<(), NamespaceError> {
        let owner = Owner::new(namespace.nsid, file);
        self.add_owned_namespace(namespace, owner)
    }

    pub(super) fn add_owned_namespace(
        &self,
        namespace: Namespace,
        owner: Arc<Owner>,
    ) -> Result<(), NamespaceError> {
        let (nsid, nqn) = (namespace.nsid, self.nqn.as_str().to_owned());
        let namespaces_max = self.namespaces_max;
        if !(1..=namespaces_max).contains(&nsid) {
            return Err(NamespaceError::BadNumber {
                nsid,
                nqn,
                namespaces_max,
            });
        }
        {
            let mut namespaces = locked(&self.namespaces);
            if namespaces.contains_key(&nsid) {
                return Err(NamespaceError::Taken { nsid, nqn });
            }
            locked(&self.reservations).insert(nsid, owner);
            namespaces.insert(nsid, Arc::new(namespace));
        }
        self.namespaces_changed(nsid);
        Ok(())
    }

    /// Removes a namespace and tells the connected hosts; false if there was none. Commands in flight end.
    pub fn remove_namespace(&self, nsid: u32) -> bool {
        let removed = {
            let mut namespaces = locked(&self.namespaces);
            if let Some(owner) = locked(&self.reservations).remove(&nsid) {
                owner.close();
            }
            namespaces.remove(&nsid).is_some()
        };
        if removed {
            locked(&self.access).put(nsid, GROUP);
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

    /// The reservation of one namespace.
    pub(super) fn reservations(&self, nsid: u32) -> Option<Arc<Owner>> {
        locked(&self.reservations).get(&nsid).cloned()
    }

    pub(super) fn all_reservations(&self) -> Vec<Arc<Owner>> {
        locked(&self.reservations).values().cloned().collect()
    }

    /// Tells a host of what happened to a reservation, through each of its controllers.
    pub(super) fn notify_reservation(&self, host: &HostId, nsid: u32, notice: ReservationNoticeType) {
        for controller in self.controllers() {
            if controller.host().id == *host && !controller.has_ended() {
                controller.notify_reservation(nsid, notice);
            }
        }
    }

    /// Ends the associations of all hosts; they may connect again.
    pub fn disconnect_hosts(&self) {
        self.disconnect_where(|_| true);
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
        let (first, last) = (*self.cntlids.start(), *self.cntlids.end());
        let next = controllers.next.clamp(first, last);
        // In turn, so that a late command of an ended controller never meets its successor.
        let is_free = |cntlid: &u16| !controllers.live.contains_key(cntlid);
        let cntlid = (next..=last).chain(first..next).find(is_free)?;
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

/// Another discovery service that hosts are told of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referral {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its name, usually the well-known one.
    pub subsystem: Nqn,
}

/// All that one target serves. Shared by all cores.
#[derive(Default)]
pub struct Target {
    subsystems: Mutex<BTreeMap<String, Arc<Subsystem>>>,
    portals: Mutex<BTreeSet<Portal>>,
    pub(super) secure: SecurePortals,
    referrals: Mutex<BTreeSet<Referral>>,
    pub(super) policy: Mutex<Policy>,
    /// A name of its own for the discovery service, beside the well-known one.
    discovery_nqn: Mutex<Option<Nqn>>,
    log: Arc<DiscoveryLog>,
    pub(super) counts: Mutex<Vec<Arc<Counts>>>,
    reactors: Mutex<Vec<CoreHandle>>,
}

impl Target {
    /// Nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Lets these reactors serve the connections of listeners that are made from now on; without, the reactor that
    /// listens does. A subsystem of handlers whose handlers live on one reactor needs that one alone.
    pub fn serve_on(&self, reactors: Vec<CoreHandle>) {
        *locked(&self.reactors) = reactors;
    }

    /// The reactors that serve connections; none if the one that listens does.
    pub fn reactors(&self) -> Vec<CoreHandle> {
        locked(&self.reactors).clone()
    }

    /// Adds a subsystem; the one of the same name that was there before is replaced for new connections.
    pub fn add_subsystem(&self, subsystem: Arc<Subsystem>) {
        subsystem.listed_in(&self.log);
        let replaced =
            locked(&self.subsystems).insert(subsystem.nqn().as_str().to_owned(), subsystem.clone());
        if let Some(replaced) = replaced.filter(|replaced| !Arc::ptr_eq(replaced, &subsystem)) {
            replaced.unlisted_in(&self.log);
        }
        self.log.changed();
    }

    /// Removes a subsystem and ends its associations; false if there is none of this name.
    pub fn remove_subsystem(&self, nqn: &str) -> bool {
        let removed = locked(&self.subsystems).remove(nqn);
        if let Some(subsystem) = &removed {
            subsystem.unlisted_in(&self.log);
            subsystem.disconnect_hosts();
            self.log.changed();
        }
        removed.is_some()
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

    /// Tells hosts of another discovery service; false if they were told.
    pub fn add_referral(&self, referral: Referral) -> bool {
        let added = locked(&self.referrals).insert(referral);
        if added {
            self.log.changed();
        }
        added
    }

    /// Takes a referral back; false if there is none.
    pub fn remove_referral(&self, referral: &Referral) -> bool {
        let removed = locked(&self.referrals).remove(referral);
        if removed {
            self.log.changed();
        }
        removed
    }

    /// The other discovery services that hosts are told of.
    pub fn referrals(&self) -> Vec<Referral> {
        locked(&self.referrals).iter().cloned().collect()
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
