//! The way in for people and their tools: JSON-RPC 2.0 on a unix socket, with SPDK's names.
//!
//! Requests are parsed by threads of their own, come over a mailbox, and run as tasks of the reactor that owns what
//! they change. `docs/spdk-compatibility.md` says how the methods compare with SPDK's.

mod configuration;
mod framework;
mod log;

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bdev::managed::Devices;
use fabrics::managed::Management;
use fabrics::target::Target;
use reactor::mailbox::mailbox;
use reactor::spawn;
use rpc::{Call, Method, Registry, RpcError, ServeError, Server};
use serde::Deserialize;

pub use configuration::LoadError;
pub use log::{LogLevel, SetLogLevel};

/// Requests that wait to be begun, of all connections together.
const WAITING_MAX: usize = 1024;

/// All that can be managed, and the methods for it. Belongs to one reactor.
pub struct Managed {
    /// The devices.
    pub devices: Devices,
    /// The target and the initiator.
    pub fabrics: Management,
    registry: Rc<Registry>,
}

#[derive(Default)]
struct Names {
    own: Vec<&'static str>,
    with_aliases: Vec<&'static str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetMethods {
    /// All can be called at any time.
    #[serde(default, rename = "current")]
    _current: bool,
    #[serde(default)]
    include_aliases: bool,
}

impl Managed {
    /// Manages `target` on this reactor. `random` becomes the seed of devices' UUIDs and our identity as a host;
    /// `set_level` makes the log say more or less.
    pub fn new(target: Arc<Target>, random: [u8; 24], set_level: SetLogLevel) -> Self {
        let (seed, host_id) = random.split_at(8);
        let seed = u64::from_le_bytes(seed.try_into().expect("8 bytes"));
        let mut host_id: [u8; 16] = host_id.try_into().expect("16 bytes");
        // RFC 9562: version 4 (random), variant 10b.
        host_id[6] = host_id[6] & 0x0f | 0x40;
        host_id[8] = host_id[8] & 0x3f | 0x80;
        let devices = Devices::new(seed);
        let fabrics = Management::new(target.clone(), devices.clone(), host_id);
        let mut registry = Registry::default();
        bdev::managed::add_methods(&mut registry, &devices);
        fabrics::managed::add_methods(&mut registry, &fabrics);
        configuration::add(&mut registry, &devices, &fabrics);
        framework::add(&mut registry, &target);
        log::add(&mut registry, set_level);
        let names = Rc::new(OnceCell::<Names>::new());
        let shown = names.clone();
        registry.add(Method::new(&["rpc_get_methods"], move |given: GetMethods| {
            let names = shown.get().expect("set before the first call");
            let list = if given.include_aliases {
                &names.with_aliases
            } else {
                &names.own
            };
            std::future::ready(Ok(list.clone()))
        }));
        let all = Names {
            own: registry.names(false),
            with_aliases: registry.names(true),
        };
        if names.set(all).is_err() {
            unreachable!("the names are set once, here");
        }
        Self {
            devices,
            fabrics,
            registry: Rc::new(registry),
        }
    }

    /// Calls a method, as a client would.
    ///
    /// # Errors
    /// The method's.
    pub async fn call(&self, method: &str, params: serde_json::Value) -> Result<serde_json::Value, RpcError> {
        self.registry.call(method, params).await
    }

    /// Brings back what `save_config` wrote. What was made before a call failed stays.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub async fn load(&self, path: &Path) -> Result<(), LoadError> {
        configuration::load(&self.registry, path).await
    }

    /// Takes requests on a unix socket until the server is dropped.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve(&self, path: &Path) -> Result<Server, ServeError> {
        let (sender, mut inbox) = mailbox::<Call>(WAITING_MAX);
        let registry = Rc::downgrade(&self.registry);
        drop(spawn(async move {
            while let Some(call) = inbox.recv().await {
                // Whoever is left unanswered hears that the program is ending.
                let Some(registry) = registry.upgrade() else {
                    return;
                };
                tracing::debug!(method = call.method, "a request");
                let running = registry.call(&call.method, call.params);
                let reply = call.reply;
                drop(spawn(async move { reply.send(running.await) }));
            }
        }));
        Server::start(path, move |call| {
            if let Err(call) = sender.try_send(call) {
                let why = format!("{WAITING_MAX} requests wait, which is the most; try again later");
                call.reply.send(Err(RpcError::internal(why)));
            }
        })
    }
}
