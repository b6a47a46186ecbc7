//! `bdev_nvme_set_options`: what controllers that are attached from then on do, unless their attachment says otherwise.

use std::time::Duration;

use protocols::auth::{Group, HashFunction, Policy as AuthenticationPolicy};
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Management;
use super::initiator::losses;
use super::security::chosen;
use crate::initiator::{Balance, ConnectOptions, Policy, RemoteOptions};

const METHOD: &str = "bdev_nvme_set_options";
/// Most that may be asked for of a time that SPDK gives in milliseconds.
const KEEP_ALIVE_MS_MAX: u64 = u32::MAX as u64;

/// The multipath policy, as SPDK's methods take it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MultipathOptions {
    pub(super) policy: PolicyName,
    pub(super) selector: Option<Selector>,
    pub(super) min_io: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PolicyName {
    ActivePassive,
    ActiveActive,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Selector {
    RoundRobin,
    QueueDepth,
}

impl MultipathOptions {
    pub(super) fn policy(&self, method: &str) -> Result<Policy, RpcError> {
        let refuse = |why: &str| Err(RpcError::invalid_params(format!("{method}: {why}")));
        match (self.policy, self.selector, self.min_io) {
            (PolicyName::ActivePassive, None, None) => Ok(Policy::ActivePassive),
            (PolicyName::ActivePassive, ..) => {
                refuse("a selector and min_io are of the policy active_active; leave them out, or write that")
            }
            (PolicyName::ActiveActive, Some(Selector::QueueDepth), None) => {
                Ok(Policy::ActiveActive(Balance::QueueDepth))
            }
            (_, Some(Selector::QueueDepth), Some(_)) => {
                refuse("min_io is of the selector round_robin; leave it out")
            }
            (_, _, Some(0)) => refuse("min_io is 0; give at least 1"),
            (PolicyName::ActiveActive, _, min_io) => Ok(Policy::ActiveActive(Balance::RoundRobin {
                min_io: min_io.unwrap_or(1),
            })),
        }
    }
}

/// A policy in SPDK's words.
pub(super) fn shown_policy(policy: Policy) -> Value {
    match policy {
        Policy::ActivePassive => json!({ "policy": "active_passive" }),
        Policy::ActiveActive(Balance::QueueDepth) => {
            json!({ "policy": "active_active", "selector": "queue_depth" })
        }
        Policy::ActiveActive(Balance::RoundRobin { min_io }) => {
            json!({ "policy": "active_active", "selector": "round_robin", "min_io": min_io })
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOptions {
    action_on_timeout: Option<Action>,
    timeout_us: Option<u64>,
    timeout_admin_us: Option<u64>,
    keep_alive_timeout_ms: Option<u64>,
    bdev_retry_count: Option<i64>,
    ctrlr_loss_timeout_sec: Option<i64>,
    reconnect_delay_sec: Option<u64>,
    fast_io_fail_timeout_sec: Option<u64>,
    tcp_connect_timeout_ms: Option<u64>,
    dhchap_digests: Option<Vec<String>>,
    dhchap_dhgroups: Option<Vec<String>>,
    multipath_opts: Option<MultipathOptions>,
    /// Flushes are passed on in any case.
    #[serde(rename = "enable_flush")]
    _enable_flush: Option<bool>,
    /// How commands are batched is not told from outside.
    #[serde(rename = "delay_cmd_submit")]
    _delay_cmd_submit: Option<bool>,
    arbitration_burst: Option<u64>,
    low_priority_weight: Option<u64>,
    medium_priority_weight: Option<u64>,
    high_priority_weight: Option<u64>,
    nvme_adminq_poll_period_us: Option<u64>,
    nvme_ioq_poll_period_us: Option<u64>,
    io_queue_requests: Option<u64>,
    transport_retry_count: Option<u64>,
    transport_ack_timeout: Option<u64>,
    disable_auto_failback: Option<bool>,
    generate_uuids: Option<bool>,
    transport_tos: Option<u64>,
    nvme_error_stat: Option<bool>,
    io_path_stat: Option<bool>,
    allow_accel_sequence: Option<bool>,
    rdma_srq_size: Option<u64>,
    rdma_max_cq_size: Option<u64>,
    rdma_cm_event_timeout_ms: Option<u64>,
    rdma_umr_per_io: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    None,
    Reset,
    Abort,
}

/// What was set; what was not is as [`ConnectOptions`] and [`RemoteOptions`] have it.
#[derive(Clone, Default)]
pub(super) struct InitiatorOptions {
    io_timeout: Option<Option<Duration>>,
    keep_alive: Option<Duration>,
    retries: Option<u32>,
    limit: Option<Duration>,
    authentication: AuthenticationPolicy,
    pub(super) fast_io_fail_timeout_sec: Option<u64>,
    pub(super) reconnect_delay_sec: Option<u64>,
    pub(super) ctrlr_loss_timeout_sec: Option<i64>,
    pub(super) policy: Policy,
    /// The call that sets all this again.
    saved: Option<SavedCall>,
}

impl InitiatorOptions {
    /// For the connections of a new controller.
    pub(super) fn apply(&self, options: &mut ConnectOptions) {
        options.keep_alive = self.keep_alive.unwrap_or(options.keep_alive);
        options.limit = self.limit.unwrap_or(options.limit);
        options.authentication_policy = self.authentication.clone();
    }

    /// For the requests of its devices.
    pub(super) fn apply_to_requests(&self, options: &mut RemoteOptions) {
        options.io_timeout = self.io_timeout.unwrap_or(options.io_timeout);
        options.retries = self.retries.unwrap_or(options.retries);
    }

    pub(super) fn saved(&self) -> Option<SavedCall> {
        self.saved.clone()
    }
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[METHOD], move |given: Value| {
        std::future::ready(set_options(&own, given))
    }));
}

fn check_absent(given: &SetOptions) -> Result<(), RpcError> {
    for (parameter, value, usual) in [
        ("arbitration_burst", given.arbitration_burst, 0),
        ("low_priority_weight", given.low_priority_weight, 0),
        ("medium_priority_weight", given.medium_priority_weight, 0),
        ("high_priority_weight", given.high_priority_weight, 0),
        (
            "nvme_adminq_poll_period_us",
            given.nvme_adminq_poll_period_us,
            10_000,
        ),
        ("nvme_ioq_poll_period_us", given.nvme_ioq_poll_period_us, 0),
        ("io_queue_requests", given.io_queue_requests, 0),
        ("transport_retry_count", given.transport_retry_count, 4),
        ("transport_ack_timeout", given.transport_ack_timeout, 0),
        ("transport_tos", given.transport_tos, 0),
        ("rdma_srq_size", given.rdma_srq_size, 0),
        ("rdma_max_cq_size", given.rdma_max_cq_size, 0),
        ("rdma_cm_event_timeout_ms", given.rdma_cm_event_timeout_ms, 0),
    ] {
        RpcError::unless_usual(METHOD, parameter, value, usual)?;
    }
    for (parameter, value) in [
        ("disable_auto_failback", given.disable_auto_failback),
        ("generate_uuids", given.generate_uuids),
        ("nvme_error_stat", given.nvme_error_stat),
        ("io_path_stat", given.io_path_stat),
        ("allow_accel_sequence", given.allow_accel_sequence),
        ("rdma_umr_per_io", given.rdma_umr_per_io),
    ] {
        RpcError::unless_usual(METHOD, parameter, value, false)?;
    }
    Ok(())
}

/// What a command without an answer is given: our own is to end its association.
fn io_timeout(given: &SetOptions) -> Result<Option<Option<Duration>>, RpcError> {
    let timeout_us = given.timeout_us;
    if let Some(admin_us) = given.timeout_admin_us
        && admin_us != 0
    {
        let remedy = "leave it out: tcp_connect_timeout_ms bounds the commands of connecting";
        return Err(RpcError::unsupported(METHOD, "timeout_admin_us", remedy));
    }
    match (given.action_on_timeout, timeout_us) {
        (Some(Action::Abort), _) => Err(RpcError::unsupported(
            METHOD,
            "action_on_timeout",
            "write reset: a target that does not answer does not abort either",
        )),
        (Some(Action::None), Some(1..)) => Err(RpcError::unsupported(
            METHOD,
            "action_on_timeout",
            "write reset, which is what happens, or timeout_us 0 for no timeout",
        )),
        (_, None) => Ok(None),
        (_, Some(0)) => Ok(Some(None)),
        (_, Some(timeout_us)) => Ok(Some(Some(Duration::from_micros(timeout_us)))),
    }
}

fn set_options(management: &Management, params: Value) -> Result<bool, RpcError> {
    let given: SetOptions = serde_json::from_value(params.clone())
        .map_err(|error| RpcError::invalid_params(format!("{METHOD}: {error}")))?;
    check_absent(&given)?;
    losses(
        METHOD,
        given.fast_io_fail_timeout_sec,
        given.reconnect_delay_sec,
        given.ctrlr_loss_timeout_sec,
    )?;
    let mut options = management.0.initiator.borrow().clone();
    if let Some(io_timeout) = io_timeout(&given)? {
        options.io_timeout = Some(io_timeout);
    }
    if let Some(keep_alive_ms) = given.keep_alive_timeout_ms {
        if keep_alive_ms > KEEP_ALIVE_MS_MAX {
            let why = format!(
                "{METHOD}: keep_alive_timeout_ms is {keep_alive_ms}; give at most {KEEP_ALIVE_MS_MAX}"
            );
            return Err(RpcError::invalid_params(why));
        }
        options.keep_alive = Some(Duration::from_millis(keep_alive_ms));
    }
    if let Some(retries) = given.bdev_retry_count {
        let most = u32::MAX;
        options.retries = match u32::try_from(retries) {
            Ok(retries) => Some(retries),
            Err(_) if retries == -1 => Some(most),
            Err(_) => {
                let why =
                    format!("{METHOD}: bdev_retry_count is {retries}; give 0 to {most}, or -1 for ever");
                return Err(RpcError::invalid_params(why));
            }
        };
    }
    if let Some(limit_ms) = given.tcp_connect_timeout_ms.filter(|limit_ms| *limit_ms > 0) {
        options.limit = Some(Duration::from_millis(limit_ms));
    }
    if let Some(names) = &given.dhchap_digests {
        options.authentication.hashes = chosen(
            METHOD,
            "dhchap_digests",
            names,
            &HashFunction::ALL,
            HashFunction::name,
        )?;
    }
    if let Some(names) = &given.dhchap_dhgroups {
        options.authentication.groups = chosen(METHOD, "dhchap_dhgroups", names, &Group::ALL, Group::name)?;
    }
    if let Some(multipath) = &given.multipath_opts {
        options.policy = multipath.policy(METHOD)?;
    }
    options.fast_io_fail_timeout_sec = given
        .fast_io_fail_timeout_sec
        .or(options.fast_io_fail_timeout_sec);
    options.reconnect_delay_sec = given.reconnect_delay_sec.or(options.reconnect_delay_sec);
    options.ctrlr_loss_timeout_sec = given.ctrlr_loss_timeout_sec.or(options.ctrlr_loss_timeout_sec);
    // What was set by several calls is saved as one.
    let mut saved = match options.saved.take() {
        Some(SavedCall { params, .. }) => params,
        None => json!({}),
    };
    if let (Some(saved), Some(new)) = (saved.as_object_mut(), params.as_object()) {
        saved.extend(new.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    options.saved = Some(SavedCall {
        method: METHOD,
        params: saved,
    });
    *management.0.initiator.borrow_mut() = options;
    Ok(true)
}
