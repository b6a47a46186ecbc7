//! Portals: volumes of the cluster for hosts that know nothing of it.
//!
//! A volume that this node exports is a subsystem with one namespace, which up to three other nodes serve under the same name.
//! Each association of a host has a channel of its own to the volume, by the client's routing ([`volume::client`]): a read goes to a
//! copy, a write to the chunk's write node, in one hop, or in none if that is this node. Nothing is kept here that another
//! portal would have to know. What keeps a write that the host has given up from taking effect after its repetition by another
//! portal are claims ([`volume::client::Claims`], `docs/decisions/0068-what-kills-a-late-write-behind-portals.md`).
//!
//! - `links`: the ways to the nodes.
//! - `reservations`: what the volume's hosts have reserved, as the masters have it.
//! - `routes`: the volume's map, as the agent gets it from the masters.

mod links;
mod reservations;
mod routes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bdev::{Channel, OpenError};
use fabrics::target::{
    CNTLIDS, HostIdentity, Hosts, Namespace, OpenChannel, Subsystem, SubsystemOptions, Target,
};
use protocols::nvme::Nqn;
use protocols::nvme::log::AnaState;
use reactor::sync::Notify;
use reactor::{spawn, time};
use volume::client::{Claims, ClientOptions, Sessions, VolumeDevice};
use volume::{ChunkConfig, ChunkIndex, Geometry, HostId, NodeId, VolumeNumber};

use crate::node::Node;
use links::Links;
pub(crate) use links::refused;
use reservations::Desk;
use routes::Routes;

/// The number of an exported volume's namespace.
const NSID: u32 = 1;
/// The most nodes that export one volume.
pub const PORTALS_MAX: usize = 4;
/// A command of a host ends after this time at the latest. Linux gives a command up after 30 s.
const HELD_MAX: Duration = Duration::from_secs(18);
/// Hosts are told that a volume has grown so long after this portal has heard it: masters tell all portals within a second or two.
const GROWTH_TOLD_AFTER: Duration = Duration::from_secs(3);
/// Where the masters could not say what is reserved, they are asked again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A volume to be exported by this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The volume.
    pub volume: VolumeNumber,
    /// The volume's identity: NGUID and UUID of its namespace.
    pub uuid: [u8; 16],
    /// Its shape.
    pub geometry: Geometry,
    /// The subsystem's name.
    pub nqn: String,
    /// The hosts that may connect; none for all.
    pub hosts: BTreeSet<String>,
    /// Which of the volume's portals this node is, from 0 to [`PORTALS_MAX`] - 1.
    pub place: usize,
    /// Where the other portals listen.
    pub elsewhere: Vec<SocketAddr>,
}

/// Why a volume is not exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The masters' word makes no sense.
    #[error("volume {volume} cannot be exported as {nqn}: {why}")]
    Invalid {
        /// The volume's number.
        volume: u32,
        /// The subsystem's name.
        nqn: String,
        /// What is wrong.
        why: String,
    },
}

/// The controller identifiers that the portal at this place gives out: no two portals of a volume share one.
fn cntlids(place: usize) -> std::ops::RangeInclusive<u16> {
    let share = (CNTLIDS.end() - CNTLIDS.start() + 1) / PORTALS_MAX as u16;
    let first = CNTLIDS.start() + share * place as u16;
    first..=first + share - 1
}

/// The number of a host of this name, the same at every portal (FNV-1a, 64 bits). Two hosts whose numbers were equal would take the
/// claims from each other, and lose nothing.
fn host_id(nqn: &str) -> HostId {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    HostId::through_portals(nqn.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// One volume that this node exports.
pub(crate) struct Exported {
    described: RefCell<Export>,
    subsystem: Arc<Subsystem>,
    routes: Arc<Routes>,
    device: Arc<VolumeDevice>,
    /// Every write is durable before it is acknowledged, and hosts are told of no write cache.
    syncs: bool,
    links: Rc<Links>,
    /// The claims of each association, by its controller's number.
    claims: RefCell<BTreeMap<u16, std::rc::Weak<Claims>>>,
    node: Weak<Node>,
    /// The map has changed, or was confirmed.
    news: Notify,
    desk: Desk,
}

thread_local! {
    /// What the parts of a subsystem that all cores share find again on the one where the node lives.
    static EXPORTED: RefCell<BTreeMap<(NodeId, VolumeNumber), Weak<Exported>>> = const { RefCell::new(BTreeMap::new()) };
}

fn find(node: NodeId, volume: VolumeNumber) -> Option<Rc<Exported>> {
    EXPORTED.with(|exported| exported.borrow().get(&(node, volume)).and_then(Weak::upgrade))
}

impl Exported {
    /// The way of one association.
    fn open(self: &Rc<Self>, host: &HostIdentity, cntlid: u16) -> Rc<dyn Channel> {
        let mut claims = self.claims.borrow_mut();
        claims.retain(|_, claims| claims.strong_count() > 0);
        let own = match claims.get(&cntlid).and_then(std::rc::Weak::upgrade) {
            Some(own) => own,
            None => {
                let own = Claims::new(host_id(&host.nqn), self.admission(host));
                claims.insert(cntlid, Rc::downgrade(&own));
                own
            }
        };
        Rc::new(self.device.open_for_host(self.links.clone(), own))
    }
}

/// See the module.
pub struct Portals {
    node: Weak<Node>,
    id: NodeId,
    target: Arc<Target>,
    listener: SocketAddr,
    links: Rc<Links>,
    exported: RefCell<BTreeMap<VolumeNumber, Rc<Exported>>>,
}

impl Portals {
    /// None yet. Exported volumes become subsystems of `target`, which listens at `listener`.
    pub fn new(node: &Rc<Node>, target: Arc<Target>, listener: SocketAddr) -> Rc<Self> {
        Rc::new(Self {
            node: Rc::downgrade(node),
            id: node.identity().node,
            target,
            listener,
            links: Links::new(node),
            exported: RefCell::default(),
        })
    }

    /// Exports a volume, or takes over what has changed in how it is exported.
    ///
    /// # Errors
    /// If the description makes no sense.
    pub fn export(&self, mut export: Export) -> Result<(), ExportError> {
        let known = self.exported.borrow().get(&export.volume).cloned();
        if let Some(known) = known {
            let (is_same, grows) = {
                let before = known.described.borrow();
                // No volume shrinks: this was said before it grew.
                if before.geometry.is_growth_of(&export.geometry) {
                    export.geometry = before.geometry.clone();
                }
                let is_same =
                    before.nqn == export.nqn && before.place == export.place && before.uuid == export.uuid;
                let grows = export.geometry.is_growth_of(&before.geometry);
                (is_same && (grows || before.geometry == export.geometry), grows)
            };
            if is_same {
                let grown = grows.then(|| export.geometry.clone());
                known.adjust(self.listener, export);
                if let Some(geometry) = grown {
                    known.grow(geometry);
                }
                return Ok(());
            }
            self.unexport(export.volume);
        }
        let exported = self.begin(export)?;
        let volume = exported.described.borrow().volume;
        EXPORTED.with(|all| {
            all.borrow_mut()
                .insert((self.id, volume), Rc::downgrade(&exported))
        });
        self.target.add_subsystem(exported.subsystem.clone());
        self.exported.borrow_mut().insert(volume, exported.clone());
        exported.look_again();
        Ok(())
    }

    /// Whether every write of a volume is durable has changed. A controller says for its whole life whether there is a write cache (VWC), so
    /// the hosts are disconnected, and find it otherwise when they are back.
    pub fn sync_writes_changed(&self, volume: VolumeNumber) {
        let known = self.exported.borrow().get(&volume).cloned();
        let Some(known) = known else { return };
        if known.syncs == self.syncs(volume) {
            return;
        }
        let export = known.described.borrow().clone();
        drop(known);
        self.unexport(volume);
        if let Err(error) = self.export(export) {
            tracing::error!(volume = volume.0, %error, "a volume is exported no more");
        }
    }

    fn syncs(&self, volume: VolumeNumber) -> bool {
        let node = self.node.upgrade();
        node.is_some_and(|node| node.sync_writes().has(volume))
    }

    fn begin(&self, export: Export) -> Result<Rc<Exported>, ExportError> {
        let invalid = |why: String| ExportError::Invalid {
            volume: export.volume.0,
            nqn: export.nqn.clone(),
            why,
        };
        let nqn: Nqn = export.nqn.parse().map_err(|error| invalid(format!("{error}")))?;
        if export.place >= PORTALS_MAX {
            return Err(invalid(format!(
                "it has portals at places 0 to {}, not at {}",
                PORTALS_MAX - 1,
                export.place
            )));
        }
        let (id, volume) = (self.id, export.volume);
        let options = SubsystemOptions {
            nqn,
            serial: serial(&export.uuid),
            model: "Redhare volume".to_owned(),
            hosts: hosts_of(&export.hosts),
            namespaces_max: 1,
            cntlids: cntlids(export.place),
            everywhere: true,
            reports_access: true,
        };
        let open: OpenChannel = Arc::new(move |host: &HostIdentity, cntlid: u16| {
            let exported = find(id, volume).ok_or_else(|| OpenError::Unusable {
                path: format!("volume {}", volume.0),
                why: "this node exports it no more".to_owned(),
                remedy: "look at \"redhare volume show\" for its portals".to_owned(),
            })?;
            Ok(exported.open(host, cntlid))
        });
        let routes = Routes::new(id, volume, export.geometry.clone());
        let syncs = self.syncs(volume);
        let options_of_client = ClientOptions {
            time_limit: HELD_MAX,
            // Also by itself: another node may hear of it later than this one.
            sync_writes: syncs,
            ..ClientOptions::default()
        };
        // Its channels are opened for each association alone.
        let nowhere = Arc::new(|| Rc::new(links::Nowhere) as Rc<dyn volume::client::Peers>);
        let source = routes.clone();
        let device = VolumeDevice::new(
            volume,
            source,
            Sessions::starting_at(1),
            nowhere,
            options_of_client,
        );
        let device = Arc::new(device);
        let subsystem = Subsystem::exporting(options, open);
        let namespace = Namespace {
            nsid: NSID,
            uuid: export.uuid,
            device: device.clone(),
        };
        subsystem
            .add_sharing_namespace(namespace, Arc::new(reservations::Record { node: id, volume }))
            .map_err(|error| invalid(error.to_string()))?;
        let exported = Exported {
            described: RefCell::new(export.clone()),
            subsystem,
            routes,
            device,
            syncs,
            links: self.links.clone(),
            claims: RefCell::default(),
            node: self.node.clone(),
            news: Notify::new(),
            desk: Desk::default(),
        };
        exported.adjust(self.listener, export);
        Ok(Rc::new(exported))
    }

    /// Exports a volume no more: its hosts are disconnected. False if it was not exported.
    pub fn unexport(&self, volume: VolumeNumber) -> bool {
        let removed = self.exported.borrow_mut().remove(&volume);
        if let Some(exported) = &removed {
            EXPORTED.with(|all| all.borrow_mut().remove(&(self.id, volume)));
            self.target.remove_subsystem(exported.subsystem.nqn().as_str());
        }
        removed.is_some()
    }

    /// The volumes that are exported.
    pub fn volumes(&self) -> Vec<VolumeNumber> {
        self.exported.borrow().keys().copied().collect()
    }

    /// The masters' answer to a [`agentlink::FromTarget::Reserve`]: what is reserved, and whether what was asked was done.
    pub fn reserved(
        &self,
        volume: VolumeNumber,
        request: u64,
        answer: Result<(agentlink::Reservations, bool), String>,
    ) {
        if let Some(exported) = self.exported.borrow().get(&volume) {
            exported.desk.answer(request, answer);
        }
    }

    /// What the hosts of a volume have reserved has changed, as the masters say.
    pub fn reservations_changed(&self, volume: VolumeNumber) {
        if let Some(exported) = self.exported.borrow().get(&volume) {
            exported.look_again();
        }
    }

    /// What the masters say of a volume's chunks; an answer to [`agentlink::FromTarget::WantRoutes`], or news. Those not named are as
    /// they were.
    pub fn learn(&self, volume: VolumeNumber, chunks: &[(ChunkIndex, ChunkConfig)]) {
        if let Some(exported) = self.exported.borrow().get(&volume) {
            exported.routes.learn(chunks);
            exported.news.notify();
        }
    }

    /// On which disks of their nodes the copies lie that [`Portals::learn`] is told of next: node and disk of each, by chunk index.
    pub fn lie_on(&self, volume: VolumeNumber, chunks: Vec<(u32, Vec<(u128, u128)>)>) {
        if let Some(exported) = self.exported.borrow().get(&volume) {
            exported.routes.lie_on(chunks);
        }
    }
}

impl Exported {
    fn volume(&self) -> VolumeNumber {
        self.described.borrow().volume
    }

    /// Takes requests for what the volume has grown by as soon as it has seen what hosts may do there: a state of before is none for
    /// chunks that know no token yet (`docs/decisions/0100`). Hosts that are connected stay so, and hear of it later: one that has heard
    /// may ask another portal next, which may not have.
    fn grow(self: &Rc<Self>, geometry: Geometry) {
        self.routes.announce(&geometry);
        let exported = Rc::downgrade(self);
        drop(spawn(async move {
            loop {
                // If it has grown further meanwhile, that is another's work.
                let still = |exported: &Rc<Self>| exported.described.borrow().geometry == geometry;
                let Some(exported) = exported.upgrade().filter(still) else {
                    return;
                };
                if exported.look().await && still(&exported) {
                    exported.routes.grow(geometry);
                    break;
                }
                drop(exported);
                time::sleep(LOOK_AGAIN).await;
            }
            time::sleep(GROWTH_TOLD_AFTER).await;
            if let Some(exported) = exported.upgrade() {
                exported.subsystem.namespace_resized(NSID);
            }
        }));
    }

    fn adjust(&self, listener: SocketAddr, export: Export) {
        // Hosts prefer the first portal while it is there, so that those of one host do not take the claims from each other.
        let state = match export.place {
            0 => AnaState::Optimized,
            _ => AnaState::NonOptimized,
        };
        self.subsystem.set_access(listener, state);
        self.subsystem.set_elsewhere(export.elsewhere.clone());
        self.subsystem.allow_any_host(export.hosts.is_empty());
        for host in self.subsystem.hosts().difference(&export.hosts) {
            self.subsystem.remove_host(host);
        }
        for host in &export.hosts {
            self.subsystem.add_host(host);
        }
        *self.described.borrow_mut() = export;
    }
}

fn hosts_of(hosts: &BTreeSet<String>) -> Hosts {
    if hosts.is_empty() {
        Hosts::Any
    } else {
        Hosts::Only(hosts.clone())
    }
}

/// The serial number that all portals of a volume give: the first 20 hexadecimal digits of its identity.
fn serial(uuid: &[u8; 16]) -> String {
    uuid.iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_portals_give_out_the_same_controller() {
        let ranges: Vec<_> = (0..PORTALS_MAX).map(cntlids).collect();
        for pair in ranges.windows(2) {
            assert!(pair[0].end() < pair[1].start(), "{pair:?}");
        }
        assert_eq!(*ranges[0].start(), 1);
        assert!(CNTLIDS.contains(ranges[PORTALS_MAX - 1].end()));
    }

    #[test]
    fn hosts_are_told_what_copies_give_back_at_once() {
        let options = blobstore::FormatOptions::default();
        assert_eq!(volume::client::CLUSTER_BYTES, options.cluster_bytes);
    }

    #[test]
    fn a_host_has_one_number_by_its_name() {
        assert_eq!(
            host_id("nqn.2014-08.org.example:a"),
            host_id("nqn.2014-08.org.example:a")
        );
        assert_ne!(
            host_id("nqn.2014-08.org.example:a"),
            host_id("nqn.2014-08.org.example:b")
        );
        // The published test vector of FNV-1a, with the bit of such hosts.
        assert_eq!(host_id("a").0, 0xaf63_dc4c_8601_ec8c | 1 << 63);
    }
}
