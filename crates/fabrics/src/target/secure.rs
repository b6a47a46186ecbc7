//! Which listeners take TLS alone, and which hosts have a key for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocols::auth::CryptoError;
use protocols::nvme::nqn::DISCOVERY_NQN;
use protocols::tls::{Acceptor, Identity, Psk};

use super::subsystem::{Portal, Subsystem, Target};
use crate::secure::NamedPsk;

/// The hosts of a subsystem that have a key, by name.
#[derive(Default)]
pub(super) struct Keyed(Mutex<BTreeMap<String, NamedPsk>>);

impl Keyed {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, NamedPsk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subsystem {
    /// The key with which a host connects over TLS; `None` if it cannot.
    pub fn psk(&self, host: &str) -> Option<NamedPsk> {
        self.keyed.locked().get(host).cloned()
    }

    /// The hosts that have a key, by name.
    pub fn keyed_hosts(&self) -> Vec<(String, NamedPsk)> {
        let all = self.keyed.locked();
        all.iter()
            .map(|(host, psk)| (host.clone(), psk.clone()))
            .collect()
    }

    /// Gives a host a key for TLS, for its next connections, or takes it. Connections that are there go on.
    pub fn set_psk(&self, host: &str, psk: Option<NamedPsk>) {
        let mut all = self.keyed.locked();
        match psk {
            Some(psk) => all.insert(host.to_owned(), psk),
            None => all.remove(host),
        };
    }

    /// The key that this identity names, if it is that of a host here. `known_as` is the name by which the identity knows
    /// the subsystem.
    fn find(&self, text: &str, identity: &Identity<'_>, known_as: &str) -> Option<Psk> {
        if !self.allows(identity.host) {
            return None;
        }
        let named = self.psk(identity.host)?;
        let derived = named.psk.derive(identity.version, identity.host, known_as);
        derived.ok().filter(|psk| psk.identity() == text)
    }
}

/// The listeners that take TLS alone.
#[derive(Default)]
pub(super) struct SecurePortals(Mutex<BTreeSet<SocketAddr>>);

impl Target {
    /// Whether the listener at this address takes TLS alone.
    pub fn is_secure(&self, portal: Portal) -> bool {
        self.secure_portals().contains(&portal.address)
    }

    fn secure_portals(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.secure.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_secure(&self, portal: Portal, is_secure: bool) {
        let mut all = self.secure_portals();
        if is_secure {
            all.insert(portal.address);
        } else {
            all.remove(&portal.address);
        }
    }

    /// The key of an identity. Discovery has the keys of all subsystems: the first that fits the name, or the digest
    /// where the identity has one.
    fn find_psk(&self, text: &str) -> Option<Psk> {
        let identity = Identity::parse(text)?;
        let known_as = identity.subsystem;
        if known_as == DISCOVERY_NQN || known_as == self.discovery_nqn().as_str() {
            let subsystems = self.subsystems();
            return subsystems
                .iter()
                .find_map(|subsystem| subsystem.find(text, &identity, known_as));
        }
        self.subsystem(known_as)?.find(text, &identity, known_as)
    }

    /// For the hosts of this target that have keys.
    pub(super) fn acceptor(self: &Arc<Self>) -> Result<Acceptor, CryptoError> {
        // A listener lives no longer than its target, but its connections may.
        let weak = Arc::downgrade(self);
        Acceptor::new(Arc::new(move |identity: &str| weak.upgrade()?.find_psk(identity)))
    }
}
