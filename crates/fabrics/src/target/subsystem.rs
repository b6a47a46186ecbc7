//! What a target serves: subsystems, their namespaces, and who may connect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bdev::BlockDevice;
use protocols::nvme::Nqn;

use super::command::OpenCommands;
use super::controller::{Controller, Path};

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
struct Access {
    any: bool,
    names: BTreeSet<String>,
}

impl Access {
    fn allows(&self, host: &str) -> bool {
        self.any || self.names.contains(host)
    }
}

impl From<Hosts> for Access {
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
    access: Mutex<Access>,
    /// `None` for all.
    portals: Mutex<Option<BTreeSet<Portal>>>,
    namespaces_max: u32,
    cntlids: RangeInclusive<u16>,
    commands: Option<OpenCommands>,
    namespaces: Mutex<BTreeMap<u32, Arc<Namespace>>>,
    /// Grows with each change of the namespaces, so that queues notice without a lock.
    version: AtomicU64,
    controllers: Mutex<Controllers>,
}

#[derive(Default)]
struct Controllers {
    live: BTreeMap<u16, Weak<Controller>>,
    next: u16,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        assert!((1..=NSID_MAX).contains(&options.namespaces_max));
        assert!(CNTLIDS.contains(options.cntlids.start()) && CNTLIDS.contains(options.cntlids.end()));
        assert!(!options.cntlids.is_empty());
        Arc::new(Self::make(options, None))
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
        }
    }

    fn make(options: SubsystemOptions, commands: Option<OpenCommands>) -> Self {
        Self {
            nqn: options.nqn,
            serial: options.serial,
            model: options.model,
            access: Mutex::new(options.hosts.into()),
            portals: Mutex::new((!options.everywhere).then(BTreeSet::new)),
            namespaces_max: options.namespaces_max,
            cntlids: options.cntlids,
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
        locked(&self.portals).get_or_insert_default().insert(portal)
    }

    /// Makes it not reached at a portal any more, and ends the associations that came by it; false if it was not
    /// reached there alone.
    pub fn remove_portal(&self, portal: Portal) -> bool {
        let removed = locked(&self.portals)
            .as_mut()
            .is_some_and(|portals| portals.remove(&portal));
        if removed {
            self.disconnect_where(|controller| controller.path.portal == portal);
        }
        removed
    }

    /// Whether a host of this name may connect, and see the subsystem in discovery.
    pub fn allows(&self, host: &str) -> bool {
        locked(&self.access).allows(host)
    }

    /// Whether all hosts may connect.
    pub fn allows_any_host(&self) -> bool {
        locked(&self.access).any
    }

    /// The hosts that may connect even if not all may.
    pub fn hosts(&self) -> BTreeSet<String> {
        locked(&self.access).names.clone()
    }

    /// Allows all hosts, or only those that were named. Those that may not connect any more are disconnected.
    pub fn allow_any_host(&self, any: bool) {
        locked(&self.access).any = any;
        self.disconnect_where(|controller| !self.allows(&controller.host_nqn));
    }

    /// Names a host that may connect; false if it was named.
    pub fn add_host(&self, host: &str) -> bool {
        locked(&self.access).names.insert(host.to_owned())
    }

    /// Takes a name back; false if it was not there. The host is disconnected, unless all may connect.
    pub fn remove_host(&self, host: &str) -> bool {
        let removed = locked(&self.access).names.remove(host);
        self.disconnect_where(|controller| !self.allows(&controller.host_nqn));
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
        let described = |controller: Arc<Controller>| Association {
            cntlid: controller.cntlid,
            host_nqn: controller.host_nqn.clone(),
            host_id: controller.host_id,
            admin: controller.path,
            io_queues: controller.io_queues(),
        };
        self.controllers().into_iter().map(described).collect()
    }

    /// Adds a namespace and tells the connected hosts.
    pub fn add_namespace(&self, namespace: Namespace) -> Result<(), NamespaceError> {
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
        if controllers.live.len() > usize::from(last - first) {
            return None;
        }
        let after = |cntlid: u16| if cntlid >= last { first } else { cntlid + 1 };
        let mut cntlid = controllers.next.clamp(first, last);
        // In turn, so that a late command of an ended controller never meets its successor.
        while controllers.live.contains_key(&cntlid) {
            cntlid = after(cntlid);
        }
        controllers.next = after(cntlid);
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
    referrals: Mutex<BTreeSet<Referral>>,
    /// Generation of the discovery log (GENCTR).
    generation: AtomicU64,
}

impl Target {
    /// Nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Adds a subsystem; the one of the same name that was there before is replaced for new connections.
    pub fn add_subsystem(&self, subsystem: Arc<Subsystem>) {
        locked(&self.subsystems).insert(subsystem.nqn().as_str().to_owned(), subsystem);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a subsystem and ends its associations; false if there is none of this name.
    pub fn remove_subsystem(&self, nqn: &str) -> bool {
        let removed = locked(&self.subsystems).remove(nqn);
        if let Some(subsystem) = &removed {
            subsystem.disconnect_hosts();
            self.discovery_changed();
        }
        removed.is_some()
    }

    /// What discovery tells has changed, such as who may connect to a subsystem.
    pub fn discovery_changed(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells hosts of another discovery service; false if they were told.
    pub fn add_referral(&self, referral: Referral) -> bool {
        self.discovery_changed();
        locked(&self.referrals).insert(referral)
    }

    /// Takes a referral back; false if there is none.
    pub fn remove_referral(&self, referral: &Referral) -> bool {
        self.discovery_changed();
        locked(&self.referrals).remove(referral)
    }

    /// The other discovery services that hosts are told of.
    pub fn referrals(&self) -> Vec<Referral> {
        locked(&self.referrals).iter().cloned().collect()
    }

    /// The subsystem of this name.
    pub fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        locked(&self.subsystems).get(nqn).cloned()
    }

    /// All subsystems by name.
    pub fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        locked(&self.subsystems).values().cloned().collect()
    }

    pub(super) fn add_portal(&self, portal: Portal) {
        locked(&self.portals).insert(portal);
        self.discovery_changed();
    }

    pub(super) fn remove_portal(&self, portal: Portal) {
        locked(&self.portals).remove(&portal);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn portals(&self) -> Vec<Portal> {
        locked(&self.portals).iter().copied().collect()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}
