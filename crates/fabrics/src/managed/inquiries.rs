//! What there is and who is connected.

use std::net::SocketAddr;
use std::sync::Arc;

use foundation::uuid::format_uuid;
use protocols::nvme::nqn::DISCOVERY_NQN;
use reactor::time;
use rpc::{Method, Registry, RpcError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::access;
use super::address::shown;
use super::keyring::add_names;
use super::{Management, check_target};
use crate::target::{Path, Portal, Subsystem};

/// Our ticks are nanoseconds.
const TICKS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetSubsystems {
    nqn: Option<String>,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSubsystem {
    nqn: String,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTarget {
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_get_subsystems"],
        move |given: GetSubsystems| std::future::ready(get_subsystems(&own, &given)),
    ));
    type OfOne = fn(&Management, &Arc<Subsystem>) -> Vec<Value>;
    let inquiries: [(&'static [&'static str], OfOne); 3] = [
        (&["nvmf_subsystem_get_controllers"], controllers),
        (&["nvmf_subsystem_get_qpairs"], queues),
        (&["nvmf_subsystem_get_listeners"], listeners),
    ];
    for (names, inquire) in inquiries {
        let own = management.clone();
        registry.add(Method::new(names, move |given: OfSubsystem| {
            let found = check_target(given.tgt_name.as_deref()).and_then(|()| own.subsystem(&given.nqn));
            std::future::ready(found.map(|subsystem| inquire(&own, &subsystem)))
        }));
    }
    let own = management.clone();
    registry.add(Method::new(&["nvmf_get_stats"], move |given: OfTarget| {
        std::future::ready(check_target(given.tgt_name.as_deref()).map(|()| statistics(&own)))
    }));
}

fn get_subsystems(management: &Management, given: &GetSubsystems) -> Result<Vec<Value>, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    if let Some(nqn) = &given.nqn {
        if nqn == DISCOVERY_NQN {
            return Ok(vec![discovery(management)]);
        }
        return match management.0.target.subsystem(nqn) {
            Some(subsystem) if subsystem.is_block_storage() => Ok(vec![described(management, &subsystem)]),
            _ => Err(RpcError::errno(
                libc::ENODEV,
                format!("there is no subsystem {nqn}; without nqn all are listed"),
            )),
        };
    }
    let mut all = vec![discovery(management)];
    let subsystems = management.0.target.subsystems();
    let block = subsystems.iter().filter(|subsystem| subsystem.is_block_storage());
    all.extend(block.map(|subsystem| described(management, subsystem)));
    Ok(all)
}

fn discovery(management: &Management) -> Value {
    let portals = management.0.discovery.borrow();
    let addresses: Vec<Value> = portals.iter().map(|portal| shown(portal.address)).collect();
    json!({
        "nqn": DISCOVERY_NQN,
        "subtype": "Discovery",
        "listen_addresses": addresses,
        "allow_any_host": true,
        "hosts": [],
    })
}

/// Where a subsystem is reached. Subsystems that were made here or in a configuration file have portals of their own.
pub(super) fn addresses(subsystem: &Subsystem) -> Vec<SocketAddr> {
    let portals = subsystem.portals().unwrap_or_default();
    portals.iter().map(|portal| portal.address).collect()
}

fn described(management: &Management, subsystem: &Arc<Subsystem>) -> Value {
    let nqn = subsystem.nqn().as_str();
    let hosts: Vec<Value> = subsystem
        .hosts()
        .into_iter()
        .map(|host| {
            let mut shown = json!({ "nqn": host });
            let credentials = subsystem.credentials(&host);
            add_names(&mut shown, credentials.as_ref(), subsystem.psk(&host).as_ref());
            shown
        })
        .collect();
    let namespaces: Vec<Value> = subsystem
        .namespaces()
        .iter()
        .map(|namespace| {
            let uuid = format_uuid(&namespace.uuid);
            let device = management.device_of(nqn, namespace.nsid);
            let mut described = json!({
                "nsid": namespace.nsid,
                "bdev_name": device,
                "name": device,
                "nguid": uuid.replace('-', "").to_uppercase(),
                "uuid": uuid,
            });
            if let Some(path) = management.reservations_of(nqn, namespace.nsid) {
                described["ptpl_file"] = json!(path);
            }
            if subsystem.reports_access() {
                described["anagrpid"] = json!(subsystem.access_group(namespace.nsid));
            }
            described
        })
        .collect();
    json!({
        "nqn": nqn,
        "subtype": "NVMe",
        "listen_addresses": addresses(subsystem).into_iter().map(shown).collect::<Vec<_>>(),
        "allow_any_host": subsystem.allows_any_host(),
        "hosts": hosts,
        "serial_number": subsystem.serial(),
        "model_number": subsystem.model(),
        "max_namespaces": subsystem.namespaces_max(),
        "min_cntlid": subsystem.cntlids().start(),
        "max_cntlid": subsystem.cntlids().end(),
        "ana_reporting": subsystem.reports_access(),
        "namespaces": namespaces,
    })
}

fn controllers(_: &Management, subsystem: &Arc<Subsystem>) -> Vec<Value> {
    let associations = subsystem.associations().into_iter();
    associations
        .map(|association| {
            json!({
                "cntlid": association.cntlid,
                "hostnqn": association.host_nqn,
                "hostid": format_uuid(&association.host_id),
                "num_io_qpairs": association.io_queues.len(),
            })
        })
        .collect()
}

fn queues(_: &Management, subsystem: &Arc<Subsystem>) -> Vec<Value> {
    let mut all = Vec::new();
    for association in subsystem.associations() {
        let mut add = |qid: u16, path: Path| {
            all.push(json!({
                "cntlid": association.cntlid,
                "qid": qid,
                // Those that are not are not listed.
                "state": "enabled",
                "thread": poll_group(path.reactor),
                "hostnqn": association.host_nqn,
                "listen_address": shown(path.local),
                "peer_address": shown(path.peer),
            }));
        };
        add(0, association.admin);
        for (qid, path) in &association.io_queues {
            add(*qid, *path);
        }
    }
    all
}

fn listeners(management: &Management, subsystem: &Arc<Subsystem>) -> Vec<Value> {
    let addresses = addresses(subsystem).into_iter();
    addresses
        .map(|address| {
            let is_secure = management.0.target.is_secure(Portal { address });
            let mut described = json!({ "address": shown(address), "secure_channel": is_secure });
            if subsystem.reports_access() {
                described["ana_states"] = access::shown(subsystem, address);
            }
            described
        })
        .collect()
}

/// The name of what serves queues on a reactor, as SPDK numbers it.
fn poll_group(reactor: u32) -> String {
    format!("nvmf_tgt_poll_group_{reactor:03}")
}

fn statistics(management: &Management) -> Value {
    let transports: Vec<Value> = management
        .0
        .transport
        .borrow()
        .iter()
        .map(|_| json!({ "trtype": "TCP" }))
        .collect();
    let reactors = management.0.target.reactor_measures();
    let groups: Vec<Value> = reactors
        .iter()
        .map(|reactor| {
            json!({
                "name": poll_group(reactor.reactor),
                "admin_qpairs": reactor.admin_queues,
                "io_qpairs": reactor.io_queues,
                "current_admin_qpairs": reactor.current_admin_queues,
                "current_io_qpairs": reactor.current_io_queues,
                "completed_nvme_io": reactor.commands.iter().sum::<u64>(),
                "transports": transports,
            })
        })
        .collect();
    json!({
        "tick_rate": TICKS_PER_SECOND,
        "ticks": time::now().as_nanos(),
        "poll_groups": groups,
    })
}
