//! The configuration file's devices and subsystems as ones that are managed: made by the same calls that a client would
//! make, so that clients see them, change them and save them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use fabrics::target::NSID_MAX;
use serde_json::{Value, json};
use target::management::Managed;

use super::config::{self, SubsystemConfig, TargetConfig};
use super::options_of;
use crate::output::Failure;

/// Makes what the file describes; the first address on which we listen.
pub(super) async fn start(config: &TargetConfig, managed: &Managed) -> Result<SocketAddr, Failure> {
    let fabrics = &managed.fabrics;
    fabrics
        .create_transport(options_of(config))
        .map_err(Failure::new)?;
    let mut portals = Vec::new();
    for (address, is_secure) in config.listeners() {
        let portal = fabrics.add_discovery_listener(address, is_secure);
        portals.push((portal.map_err(Failure::new)?, is_secure));
    }
    let keys: BTreeSet<_> = config
        .subsystem
        .iter()
        .flat_map(|described| described.psk.values())
        .collect();
    for path in keys {
        // A key of the file is known by where it is.
        let params = json!({ "name": path, "path": path });
        call(managed, "keyring_file_add_key", params).await?;
    }
    for described in &config.subsystem {
        add_subsystem(managed, described).await?;
        for (portal, is_secure) in &portals {
            let address = json!({
                "trtype": "TCP",
                "traddr": portal.address.ip().to_string(),
                "trsvcid": portal.address.port().to_string(),
            });
            let params =
                json!({ "nqn": described.nqn, "listen_address": address, "secure_channel": is_secure });
            call(managed, "nvmf_subsystem_add_listener", params).await?;
        }
    }
    let first = portals.first().map(|(portal, _)| portal.address);
    first.ok_or_else(|| Failure::new("the target must listen: write nvme_tcp.listen"))
}

async fn call(managed: &Managed, method: &str, params: Value) -> Result<Value, Failure> {
    managed.call(method, params).await.map_err(Failure::new)
}

async fn add_subsystem(managed: &Managed, described: &SubsystemConfig) -> Result<(), Failure> {
    let nqn = &described.nqn;
    let params = json!({
        "nqn": nqn,
        "serial_number": config::serial(described),
        "allow_any_host": described.hosts.is_none(),
        "max_namespaces": NSID_MAX,
        "ana_reporting": true,
    });
    call(managed, "nvmf_create_subsystem", params).await?;
    let hosts: BTreeSet<_> = described
        .hosts
        .iter()
        .flatten()
        .chain(described.psk.keys())
        .collect();
    for host in hosts {
        let mut params = json!({ "nqn": nqn, "host": host });
        if let Some(path) = described.psk.get(host) {
            params["psk"] = json!(path);
        }
        call(managed, "nvmf_subsystem_add_host", params).await?;
    }
    for namespace in &described.namespace {
        let name = format!("{nqn}/{}", namespace.nsid);
        let (method, params) = namespace.create_call(&name, nqn)?;
        call(managed, method, params).await?;
        let namespace = json!({ "bdev_name": name, "nsid": namespace.nsid });
        call(
            managed,
            "nvmf_subsystem_add_ns",
            json!({ "nqn": nqn, "namespace": namespace }),
        )
        .await?;
    }
    Ok(())
}
