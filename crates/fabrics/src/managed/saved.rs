//! The target as calls that make it again.

use std::net::SocketAddr;

use foundation::uuid::format_uuid;
use protocols::nvme::nqn::DISCOVERY_NQN;
use rpc::SavedCall;
use serde_json::{Value, json};

use super::access;
use super::address::shown;
use super::inquiries::addresses;
use super::keyring::add_names;
use super::{Management, security, transport};
use crate::target::{Portal, Subsystem};

pub(super) fn calls(management: &Management) -> Vec<SavedCall> {
    let state = &management.0;
    let mut calls: Vec<SavedCall> = security::saved_policy(management).into_iter().collect();
    calls.extend(state.transport.borrow().iter().map(transport::saved));
    for portal in state.discovery.borrow().iter() {
        calls.push(SavedCall {
            method: "nvmf_subsystem_add_listener",
            params: listener_params(management, DISCOVERY_NQN, portal.address),
        });
    }
    for referral in state.target.referrals() {
        calls.push(SavedCall {
            method: "nvmf_discovery_add_referral",
            params: json!({ "address": shown(referral.address), "subnqn": referral.subsystem.as_str() }),
        });
    }
    for subsystem in state.target.subsystems() {
        if subsystem.is_block_storage() {
            add_subsystem(management, &subsystem, &mut calls);
        }
    }
    calls
}

fn listener_params(management: &Management, nqn: &str, address: SocketAddr) -> Value {
    let mut params = json!({ "nqn": nqn, "listen_address": shown(address) });
    if management.0.target.is_secure(Portal { address }) {
        params["secure_channel"] = json!(true);
    }
    params
}

fn add_subsystem(management: &Management, subsystem: &Subsystem, calls: &mut Vec<SavedCall>) {
    let nqn = subsystem.nqn().as_str();
    calls.push(SavedCall {
        method: "nvmf_create_subsystem",
        params: json!({
            "nqn": nqn,
            "allow_any_host": subsystem.allows_any_host(),
            "serial_number": subsystem.serial(),
            "model_number": subsystem.model(),
            "max_namespaces": subsystem.namespaces_max(),
            "min_cntlid": subsystem.cntlids().start(),
            "max_cntlid": subsystem.cntlids().end(),
            "ana_reporting": subsystem.reports_access(),
        }),
    });
    for host in subsystem.hosts() {
        let mut params = json!({ "nqn": nqn, "host": host });
        let credentials = subsystem.credentials(&host);
        add_names(&mut params, credentials.as_ref(), subsystem.psk(&host).as_ref());
        calls.push(SavedCall {
            method: "nvmf_subsystem_add_host",
            params,
        });
    }
    for namespace in subsystem.namespaces() {
        if let Some(device) = management.device_of(nqn, namespace.nsid) {
            let uuid = format_uuid(&namespace.uuid);
            let mut described = json!({ "nsid": namespace.nsid, "bdev_name": device, "uuid": uuid });
            if let Some(path) = management.reservations_of(nqn, namespace.nsid) {
                described["ptpl_file"] = json!(path);
            }
            if subsystem.reports_access() {
                described["anagrpid"] = json!(subsystem.access_group(namespace.nsid));
            }
            calls.push(SavedCall {
                method: "nvmf_subsystem_add_ns",
                params: json!({ "nqn": nqn, "namespace": described }),
            });
        }
    }
    for address in addresses(subsystem) {
        calls.push(SavedCall {
            method: "nvmf_subsystem_add_listener",
            params: listener_params(management, nqn, address),
        });
        calls.extend(access::saved(subsystem, address));
    }
}
