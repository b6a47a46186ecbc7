//! How well namespaces are reached through each listener (asymmetric namespace access).

use std::net::SocketAddr;

use protocols::nvme::log::AnaState;
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::address::{self, Address};
use super::{Management, check_target};
use crate::target::{Portal, Subsystem};

const SET_STATE: &str = "nvmf_subsystem_listener_set_ana_state";
const SET_GROUP: &str = "nvmf_subsystem_set_ns_ana_group";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetState {
    nqn: String,
    listen_address: Address,
    ana_state: State,
    anagrpid: Option<u32>,
    tgt_name: Option<String>,
}

/// The states that SPDK's method takes.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Optimized,
    NonOptimized,
    Inaccessible,
}

impl From<State> for AnaState {
    fn from(state: State) -> Self {
        match state {
            State::Optimized => Self::Optimized,
            State::NonOptimized => Self::NonOptimized,
            State::Inaccessible => Self::Inaccessible,
        }
    }
}

const fn name(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non_optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent_loss",
        AnaState::Change => "change",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetGroup {
    nqn: String,
    nsid: u32,
    anagrpid: u32,
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[SET_STATE], move |given: SetState| {
        std::future::ready(set_state(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(&[SET_GROUP], move |given: SetGroup| {
        std::future::ready(set_group(&own, &given))
    }));
}

/// A group that hosts can be told of.
pub(super) fn check_group(
    method: &str,
    subsystem: &Subsystem,
    group: Option<u32>,
) -> Result<Option<u32>, RpcError> {
    let Some(group) = group else {
        return Ok(None);
    };
    check_reported(method, subsystem)?;
    let most = subsystem.namespaces_max();
    if (1..=most).contains(&group) {
        return Ok(Some(group));
    }
    let nqn = subsystem.nqn();
    Err(RpcError::invalid_params(format!(
        "{method}: anagrpid is {group}; use 1 to {most}, the max_namespaces of {nqn}"
    )))
}

fn check_reported(method: &str, subsystem: &Subsystem) -> Result<(), RpcError> {
    if subsystem.reports_access() {
        return Ok(());
    }
    let nqn = subsystem.nqn();
    Err(RpcError::invalid_params(format!(
        "{method}: hosts of {nqn} are told of no ANA; create the subsystem with ana_reporting true"
    )))
}

fn set_state(management: &Management, given: &SetState) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    check_reported(SET_STATE, &subsystem)?;
    let group = check_group(SET_STATE, &subsystem, given.anagrpid.filter(|group| *group > 0))?;
    let address = given.listen_address.parse()?;
    let own = subsystem.portals().unwrap_or_default();
    if !own.contains(&Portal { address }) {
        return Err(RpcError::invalid_params(format!(
            "{} does not listen on {address}; nvmf_subsystem_get_listeners says where it does",
            given.nqn
        )));
    }
    let state = given.ana_state.into();
    match group {
        Some(group) => subsystem.set_group_access(address, group, state),
        None => subsystem.set_access(address, state),
    }
    Ok(true)
}

fn set_group(management: &Management, given: &SetGroup) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    check_group(SET_GROUP, &subsystem, Some(given.anagrpid))?;
    if subsystem.namespace(given.nsid).is_none() {
        return Err(RpcError::invalid_params(format!(
            "{} has no namespace {}; nvmf_get_subsystems lists what it has",
            given.nqn, given.nsid
        )));
    }
    subsystem.set_access_group(given.nsid, given.anagrpid);
    Ok(true)
}

/// The states of all groups through a listener.
pub(super) fn shown(subsystem: &Subsystem, listener: SocketAddr) -> Value {
    let access = subsystem.listener_access(listener);
    let states = (1..=subsystem.namespaces_max())
        .map(|group| json!({ "ana_group": group, "ana_state": name(access.state(group)) }));
    states.collect()
}

/// The calls that set a listener's states again.
pub(super) fn saved(subsystem: &Subsystem, listener: SocketAddr) -> Vec<SavedCall> {
    let access = subsystem.listener_access(listener);
    let call = |group: Option<u32>, state: AnaState| {
        let mut params = json!({
            "nqn": subsystem.nqn().as_str(),
            "listen_address": address::shown(listener),
            "ana_state": name(state),
        });
        if let Some(group) = group {
            params["anagrpid"] = json!(group);
        }
        SavedCall {
            method: SET_STATE,
            params,
        }
    };
    let mut calls = Vec::new();
    if !subsystem.reports_access() {
        return calls;
    }
    if access.usual != AnaState::Optimized {
        calls.push(call(None, access.usual));
    }
    calls.extend(
        access
            .groups
            .iter()
            .map(|(group, state)| call(Some(*group), *state)),
    );
    calls
}
