//! The target and the initiator as people and tools manage them while they run.
//!
//! A [`Management`] belongs to one reactor and owns the listeners. [`add_methods`] registers what SPDK calls `nvmf_*`,
//! `bdev_nvme_*` and `keyring_*`; `docs/spdk-compatibility.md` says how they compare.

mod access;
mod address;
mod initiator;
mod initiator_options;
mod inquiries;
mod keyring;
mod listeners;
mod namespaces;
mod paths;
mod saved;
mod security;
mod subsystems;
mod transport;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bdev::managed::{Devices, Use};
use rpc::{Registry, RpcError, SavedCall};

use crate::target::{Options, Portal, ServeError, Server, Subsystem, Target, serve};

use initiator::Attached;

/// The only target there is; methods may name it.
const TARGET_NAME: &str = "nvmf_tgt";

/// A namespace's device, by name.
struct KeptNamespace {
    device: String,
    /// The file of its reservations.
    reservations: Option<PathBuf>,
    _used: Use,
}

struct State {
    target: Arc<Target>,
    devices: Devices,
    /// `None` until it is created.
    transport: RefCell<Option<Options>>,
    servers: RefCell<BTreeMap<SocketAddr, Server>>,
    /// Devices of namespaces by subsystem and number.
    namespaces: RefCell<BTreeMap<(String, u32), KeptNamespace>>,
    /// Where discovery was told to listen. It answers at every portal; these are kept open without a subsystem.
    discovery: RefCell<BTreeSet<Portal>>,
    attached: RefCell<BTreeMap<String, Attached>>,
    /// What controllers that are attached next do.
    initiator: RefCell<initiator_options::InitiatorOptions>,
    keyring: RefCell<keyring::Keyring>,
    /// Who we are to other targets, where nothing else is said.
    host_id: [u8; 16],
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Management(Rc<State>);

impl Management {
    /// Manages `target`, whose namespaces come from `devices`. `host_id` is who we are to targets that we connect to.
    pub fn new(target: Arc<Target>, devices: Devices, host_id: [u8; 16]) -> Self {
        Self(Rc::new(State {
            target,
            devices,
            transport: RefCell::default(),
            servers: RefCell::default(),
            namespaces: RefCell::default(),
            discovery: RefCell::default(),
            attached: RefCell::default(),
            initiator: RefCell::default(),
            keyring: RefCell::default(),
            host_id,
        }))
    }

    /// Creates the transport; listeners that come after have these options.
    ///
    /// # Errors
    /// If there is one.
    pub fn create_transport(&self, options: Options) -> Result<(), RpcError> {
        let mut transport = self.0.transport.borrow_mut();
        if transport.is_some() {
            return Err(RpcError::errno(
                libc::EEXIST,
                "there is a TCP transport already, and it cannot be changed; start the target anew to change it",
            ));
        }
        *transport = Some(options);
        Ok(())
    }

    /// Listens on an address, unless we do; the portal is the address with the port that was taken.
    fn listen(&self, address: SocketAddr, is_secure: bool) -> Result<Portal, RpcError> {
        let mut servers = self.0.servers.borrow_mut();
        if let Some(server) = servers.get(&address) {
            let portal = Portal {
                address: server.address(),
            };
            return match self.0.target.is_secure(portal) {
                was if was == is_secure => Ok(portal),
                was => Err(RpcError::errno(
                    libc::EINVAL,
                    format!(
                        "{address} is listened on with secure_channel {was}, for all subsystems; use the same, or                          another port"
                    ),
                )),
            };
        }
        let Some(mut options) = self.0.transport.borrow().clone() else {
            return Err(RpcError::invalid_params(
                "there is no TCP transport to listen with; call nvmf_create_transport with trtype TCP first",
            ));
        };
        options.secure_channel = is_secure;
        let server = serve(self.0.target.clone(), address, options).map_err(|error| listen_failed(&error))?;
        let portal = Portal {
            address: server.address(),
        };
        tracing::info!(address = %portal.address, tls = is_secure, "listening for NVMe/TCP");
        servers.insert(portal.address, server);
        Ok(portal)
    }

    /// Makes a subsystem reached at an address, on which we listen from now on at the latest. A secure listener takes TLS
    /// alone.
    ///
    /// # Errors
    /// If it is reached there, if there is no transport, if we listen there and it differs, or if the system does not let
    /// us listen.
    pub fn add_listener(
        &self,
        subsystem: &Subsystem,
        address: SocketAddr,
        is_secure: bool,
    ) -> Result<Portal, RpcError> {
        let portal = self.listen(address, is_secure)?;
        if !subsystem.add_portal(portal) {
            return Err(RpcError::errno(
                libc::EEXIST,
                format!("{} listens on {} already", subsystem.nqn(), portal.address),
            ));
        }
        Ok(portal)
    }

    /// Ends the listeners that no subsystem needs. Connections of such a listener go on until they end.
    fn close_idle_listeners(&self) {
        let subsystems = self.0.target.subsystems();
        let mut servers = self.0.servers.borrow_mut();
        servers.retain(|_, server| {
            let portal = Portal {
                address: server.address(),
            };
            self.0.discovery.borrow().contains(&portal)
                || subsystems.iter().any(|subsystem| subsystem.is_at(portal))
        });
    }

    /// The subsystem that a caller means.
    fn subsystem(&self, nqn: &str) -> Result<Arc<Subsystem>, RpcError> {
        match self.0.target.subsystem(nqn) {
            Some(subsystem) if subsystem.is_block_storage() => Ok(subsystem),
            Some(_) => Err(RpcError::invalid_params(format!(
                "subsystem {nqn} belongs to the cluster; its node manages it"
            ))),
            None => Err(RpcError::invalid_params(format!(
                "there is no subsystem {nqn}; nvmf_get_subsystems lists what there is, nvmf_create_subsystem makes one"
            ))),
        }
    }

    /// The calls that make the target again: for `nvmf`. Those of `bdev_nvme_*` are saved with the devices.
    pub fn saved(&self) -> Vec<SavedCall> {
        saved::calls(self)
    }

    /// The calls that name the keys again: for `keyring`. What is in the files is not saved.
    pub fn saved_keys(&self) -> Vec<SavedCall> {
        keyring::saved(self)
    }
}

fn listen_failed(error: &ServeError) -> RpcError {
    let number = match error {
        ServeError::Listen { source, .. } => source.raw_os_error(),
        ServeError::Tls { .. } => None,
    };
    RpcError::errno(number.unwrap_or(libc::EIO), error.to_string())
}

fn check_target(given: Option<&str>) -> Result<(), RpcError> {
    match given {
        Some(name) if name != TARGET_NAME => Err(RpcError::invalid_params(format!(
            "there is no target {name}; leave tgt_name out, or write {TARGET_NAME}"
        ))),
        _ => Ok(()),
    }
}

/// Registers the methods that work on `management`. They must be called on the reactor to which it belongs.
pub fn add_methods(registry: &mut Registry, management: &Management) {
    transport::add(registry, management);
    subsystems::add(registry, management);
    namespaces::add(registry, management);
    listeners::add(registry, management);
    access::add(registry, management);
    inquiries::add(registry, management);
    initiator::add(registry, management);
    initiator_options::add(registry, management);
    paths::add(registry, management);
    keyring::add(registry, management);
    security::add(registry, management);
}
