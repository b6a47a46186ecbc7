//! The discovery log: which subsystems a host may see, and where (NVM Express Base Specification 2.0c,
//! section 5.16.1.23; NVMe over TCP transport 1.0c, section 3.1.2).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use protocols::nvme::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType, eflags, sectype, treq,
};
use protocols::nvme::{NqnField, Text};

use super::controller::Controller;
use super::notices::Notice;
use super::subsystem::Target;

/// The host must ask for a controller of the target's choice (CNTLID in an entry).
const DYNAMIC: u16 = 0xffff;
/// Entries of the admin queue that a host may ask for (ASQSZ).
const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Discovery controllers are numbered apart from those of any subsystem.
const DISCOVERY_CNTLIDS: u16 = 0x0fff;

/// The version of what discovery answers, and the discovery controllers whose hosts may want to know of a change.
#[derive(Default)]
pub(super) struct DiscoveryLog {
    /// GENCTR.
    generation: AtomicU64,
    watching: Mutex<Vec<Weak<Controller>>>,
}

impl DiscoveryLog {
    /// The log has changed.
    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.retain(|controller| match controller.upgrade() {
            Some(controller) => {
                controller.notify(Notice::Discovery);
                true
            }
            None => false,
        });
    }

    /// Tells this discovery controller of changes.
    pub(super) fn watch(&self, controller: &Arc<Controller>) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.retain(|controller| controller.strong_count() > 0);
        watching.push(Arc::downgrade(controller));
    }

    /// GENCTR. It grows before hosts are told.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// A number for a discovery controller. Nobody connects I/O queues to one, so a repetition harms nothing.
pub(super) fn next_cntlid() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    1 + NEXT.fetch_add(1, Ordering::Relaxed) % DISCOVERY_CNTLIDS
}

/// The log as `host` may see it through `local`, the address at which it reached us.
pub(super) fn log(target: &Target, host: &str, local: SocketAddr) -> Vec<u8> {
    // First: what changes while the entries are put together is a newer generation.
    let generation = target.log().generation();
    // What peers speak to each other is nothing that a host could use.
    let subsystems: Vec<_> = target
        .subsystems()
        .into_iter()
        .filter(|subsystem| subsystem.commands().is_none() && subsystem.allows(host))
        .collect();
    let own = NqnField::from(&target.discovery_nqn());
    let mut entries = Vec::new();
    let portals = target.portals();
    for (portid, portal) in portals.iter().enumerate() {
        let address = reachable(portal.address, local);
        let portid = portid as u16;
        let is_secure = target.is_secure(*portal);
        for subsystem in subsystems.iter().filter(|subsystem| subsystem.is_at(*portal)) {
            let nqn = NqnField::from(subsystem.nqn());
            entries.push(entry(SubsystemType::Nvm, nqn, (address, is_secure), portid));
        }
        entries.push(DiscoveryEntry {
            eflags: eflags::EXPLICIT_PERSISTENT_CONNECTION | eflags::DUPLICATE_INFORMATION,
            ..entry(SubsystemType::CurrentDiscovery, own, (address, is_secure), portid)
        });
    }
    let mut ports = portals.len();
    for subsystem in &subsystems {
        for address in subsystem.elsewhere() {
            let nqn = NqnField::from(subsystem.nqn());
            entries.push(entry(SubsystemType::Nvm, nqn, (address, false), ports as u16));
            ports += 1;
        }
    }
    for (index, referral) in target.referrals().iter().enumerate() {
        let portid = (ports + index) as u16;
        let nqn = NqnField::from(&referral.subsystem);
        let address = (referral.address, false);
        entries.push(entry(SubsystemType::Referral, nqn, address, portid));
    }
    let header = DiscoveryHeader {
        generation_counter: generation,
        entries: entries.len() as u64,
        record_format: 0,
    };
    let mut bytes = header.encode().to_vec();
    for entry in entries {
        bytes.extend_from_slice(&entry.encode());
    }
    bytes
}

/// A listener on all addresses is reached at the one the host used.
fn reachable(portal: SocketAddr, local: SocketAddr) -> SocketAddr {
    if portal.ip().is_unspecified() {
        SocketAddr::new(local.ip(), portal.port())
    } else {
        portal
    }
}

/// An entry for an address, and whether it takes TLS alone.
///
/// TREQ says of other addresses that nothing is specified, as the Linux target does: libnvme up to 1.4 (Debian 12) takes
/// both "required" and "not required" for a wish that it use TLS, and `nvme connect-all` then fails without a key. Where TLS
/// is required TREQ says that alone, since the same nvme-cli has no word for more.
fn entry(
    kind: SubsystemType,
    subnqn: NqnField,
    (address, is_secure): (SocketAddr, bool),
    portid: u16,
) -> DiscoveryEntry {
    let (treq, security) = if is_secure {
        (treq::SECURE_CHANNEL_REQUIRED, sectype::TLS_1_3)
    } else {
        let open = treq::SECURE_CHANNEL_NOT_SPECIFIED | treq::SQ_FLOW_CONTROL_DISABLE;
        (open, sectype::NONE)
    };
    let mut tsas = [0; 256];
    tsas[0] = security;
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    };
    DiscoveryEntry {
        trtype: TransportType::Tcp.code(),
        adrfam: family.code(),
        subtype: kind.code(),
        treq,
        portid,
        cntlid: DYNAMIC,
        asqsz: ADMIN_QUEUE_ENTRIES,
        eflags: 0,
        trsvcid: Text::new(&address.port().to_string()).unwrap_or_default(),
        subnqn,
        traddr: Text::new(&address.ip().to_string()).unwrap_or_default(),
        tsas,
    }
}
