//! Who has to authenticate, and how.

use protocols::auth::{Group, HashFunction, Policy};
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Management, check_target};

const SET_CONFIG: &str = "nvmf_set_config";
const SET_KEYS: &str = "nvmf_subsystem_set_keys";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetConfig {
    admin_cmd_passthru: Option<Value>,
    poll_groups_mask: Option<String>,
    discovery_filter: Option<String>,
    discovery_filters: Option<Vec<String>>,
    dhchap_digests: Option<Vec<String>>,
    dhchap_dhgroups: Option<Vec<String>>,
    dup_host_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKeys {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[SET_CONFIG], move |given: SetConfig| {
        std::future::ready(set_config(&own, given))
    }));
    let own = management.clone();
    registry.add(Method::new(&[SET_KEYS], move |given: SetKeys| {
        std::future::ready(set_keys(&own, &given))
    }));
}

/// Those of `all` that are named, in the order of `all`: the strongest first.
pub(super) fn chosen<T: Copy>(
    method: &str,
    parameter: &str,
    names: &[String],
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, RpcError> {
    let unknown = names
        .iter()
        .find(|name| all.iter().all(|one| name_of(*one) != *name));
    if names.is_empty() || unknown.is_some() {
        let known: Vec<_> = all.iter().map(|one| name_of(*one)).collect();
        let why = format!(
            "{method}: {parameter} {names:?} cannot be used; name one or more of {}",
            known.join(", ")
        );
        return Err(RpcError::errno(libc::EINVAL, why));
    }
    let chosen = all.iter().copied();
    Ok(chosen
        .filter(|one| names.iter().any(|name| name == name_of(*one)))
        .collect())
}

fn set_config(management: &Management, given: SetConfig) -> Result<bool, RpcError> {
    for (parameter, is_given) in [
        ("admin_cmd_passthru", given.admin_cmd_passthru.is_some()),
        ("poll_groups_mask", given.poll_groups_mask.is_some()),
        ("discovery_filters", given.discovery_filters.is_some()),
    ] {
        if is_given {
            return Err(RpcError::unsupported(SET_CONFIG, parameter, "leave it out"));
        }
    }
    RpcError::unless_usual(
        SET_CONFIG,
        "discovery_filter",
        given.discovery_filter.as_deref(),
        "match_any",
    )?;
    RpcError::unless_usual(
        SET_CONFIG,
        "dup_host_policy",
        given.dup_host_policy.as_deref(),
        "allow",
    )?;
    let mut policy = management.0.target.authentication_policy();
    if let Some(names) = &given.dhchap_digests {
        policy.hashes = chosen(
            SET_CONFIG,
            "dhchap_digests",
            names,
            &HashFunction::ALL,
            HashFunction::name,
        )?;
    }
    if let Some(names) = &given.dhchap_dhgroups {
        policy.groups = chosen(SET_CONFIG, "dhchap_dhgroups", names, &Group::ALL, Group::name)?;
    }
    management.0.target.set_authentication_policy(policy);
    Ok(true)
}

/// The call that sets the policy again, unless it is the usual one.
pub(super) fn saved_policy(management: &Management) -> Option<SavedCall> {
    let policy = management.0.target.authentication_policy();
    let is_usual = policy == Policy::default();
    let hashes: Vec<_> = policy.hashes.iter().map(|hash| hash.name()).collect();
    let groups: Vec<_> = policy.groups.iter().map(|group| group.name()).collect();
    let params = json!({ "dhchap_digests": hashes, "dhchap_dhgroups": groups });
    (!is_usual).then_some(SavedCall {
        method: SET_CONFIG,
        params,
    })
}

fn set_keys(management: &Management, given: &SetKeys) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    if !subsystem.hosts().contains(&given.host) {
        return Err(RpcError::errno(
            libc::ENOENT,
            format!(
                "{} is not among the hosts of {}; nvmf_subsystem_add_host adds it",
                given.host, given.nqn
            ),
        ));
    }
    let credentials = management.credentials(
        SET_KEYS,
        given.dhchap_key.as_deref(),
        given.dhchap_ctrlr_key.as_deref(),
    )?;
    subsystem.set_credentials(&given.host, credentials);
    Ok(true)
}
