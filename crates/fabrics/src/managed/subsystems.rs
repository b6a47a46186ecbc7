//! Subsystems and the hosts that may connect to them.

use std::collections::BTreeSet;

use protocols::nvme::Nqn;
use rpc::{Method, Registry, RpcError};
use serde::Deserialize;

use super::{Management, check_target};
use crate::target::{CNTLIDS, Hosts, NSID_MAX, Subsystem, SubsystemOptions};

const ADD_HOST: &str = "nvmf_subsystem_add_host";
/// What SPDK gives subsystems for which nothing is said.
const NAMESPACES_MAX: u32 = 32;
const SERIAL: &str = "00000000000000000000";
const MODEL: &str = "Redhare";
/// As in Identify Controller, in bytes.
const SERIAL_BYTES_MAX: usize = 20;
const MODEL_BYTES_MAX: usize = 40;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    nqn: String,
    tgt_name: Option<String>,
    serial_number: Option<String>,
    model_number: Option<String>,
    #[serde(default)]
    allow_any_host: bool,
    max_namespaces: Option<u32>,
    min_cntlid: Option<u16>,
    max_cntlid: Option<u16>,
    ana_reporting: Option<bool>,
    passthrough: Option<bool>,
    enable_nssr: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    nqn: String,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddHost {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveHost {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowAny {
    nqn: String,
    allow_any_host: bool,
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&["nvmf_create_subsystem"], move |given: Create| {
        std::future::ready(create(&own, given))
    }));
    let own = management.clone();
    registry.add(Method::new(&["nvmf_delete_subsystem"], move |given: Delete| {
        std::future::ready(delete(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(&[ADD_HOST], move |given: AddHost| {
        std::future::ready(add_host(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_subsystem_remove_host"],
        move |given: RemoveHost| std::future::ready(remove_host(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_subsystem_allow_any_host"],
        move |given: AllowAny| std::future::ready(allow_any_host(&own, &given)),
    ));
}

pub(super) fn parse_nqn(text: &str) -> Result<Nqn, RpcError> {
    text.parse()
        .map_err(|error| RpcError::invalid_params(format!("\"{text}\" is no NVMe qualified name: {error}")))
}

fn check_text(parameter: &str, text: &str, bytes_max: usize) -> Result<(), RpcError> {
    let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if printable && text.len() <= bytes_max {
        return Ok(());
    }
    Err(RpcError::invalid_params(format!(
        "nvmf_create_subsystem: {parameter} \"{text}\" cannot be told to hosts; use at most {bytes_max} printable ASCII \
         characters"
    )))
}

fn create(management: &Management, given: Create) -> Result<bool, RpcError> {
    const METHOD: &str = "nvmf_create_subsystem";
    check_target(given.tgt_name.as_deref())?;
    RpcError::unless_usual(METHOD, "passthrough", given.passthrough, false)?;
    RpcError::unless_usual(METHOD, "enable_nssr", given.enable_nssr, false)?;
    let nqn = parse_nqn(&given.nqn)?;
    if nqn == Nqn::discovery() || management.0.target.subsystem(nqn.as_str()).is_some() {
        return Err(RpcError::errno(
            libc::EEXIST,
            format!("there is a subsystem {nqn} already; delete it first, or choose another name"),
        ));
    }
    let serial = given.serial_number.unwrap_or_else(|| SERIAL.to_owned());
    let model = given.model_number.unwrap_or_else(|| MODEL.to_owned());
    check_text("serial_number", &serial, SERIAL_BYTES_MAX)?;
    check_text("model_number", &model, MODEL_BYTES_MAX)?;
    let namespaces_max = match given.max_namespaces {
        None | Some(0) => NAMESPACES_MAX,
        Some(most @ 1..=NSID_MAX) => most,
        Some(most) => {
            let why = format!("{METHOD}: max_namespaces is {most}; use at most {NSID_MAX}");
            return Err(RpcError::errno(libc::EINVAL, why));
        }
    };
    let first = given.min_cntlid.unwrap_or(*CNTLIDS.start());
    let last = given.max_cntlid.unwrap_or(*CNTLIDS.end());
    if first > last || !CNTLIDS.contains(&first) || !CNTLIDS.contains(&last) {
        let why = format!(
            "{METHOD}: the controllers are to be {first} to {last}; use min_cntlid and max_cntlid within {} to {}",
            CNTLIDS.start(),
            CNTLIDS.end()
        );
        return Err(RpcError::errno(libc::EINVAL, why));
    }
    let hosts = if given.allow_any_host {
        Hosts::Any
    } else {
        Hosts::Only(BTreeSet::new())
    };
    let subsystem = Subsystem::with_options(SubsystemOptions {
        nqn,
        serial,
        model,
        hosts,
        namespaces_max,
        cntlids: first..=last,
        everywhere: false,
        reports_access: given.ana_reporting.unwrap_or(false),
    });
    management.0.target.add_subsystem(subsystem);
    Ok(true)
}

fn delete(management: &Management, given: &Delete) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    management.0.target.remove_subsystem(&given.nqn);
    for namespace in subsystem.namespaces() {
        management.remove_namespace(&subsystem, namespace.nsid);
    }
    management.close_idle_listeners();
    Ok(true)
}

fn add_host(management: &Management, given: &AddHost) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    let host = parse_nqn(&given.host)?;
    let (key, controller_key) = (given.dhchap_key.as_deref(), given.dhchap_ctrlr_key.as_deref());
    let credentials = management.credentials(ADD_HOST, key, controller_key)?;
    let psk = management.named_psk(given.psk.as_deref())?;
    if !subsystem.add_host_with(host.as_str(), credentials) {
        return Err(RpcError::errno(
            libc::EEXIST,
            format!("{host} is allowed to connect to {} already", given.nqn),
        ));
    }
    subsystem.set_psk(host.as_str(), psk);
    Ok(true)
}

fn remove_host(management: &Management, given: &RemoveHost) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    if !subsystem.remove_host(&given.host) {
        return Err(RpcError::errno(
            libc::ENOENT,
            format!(
                "{} is not among the hosts of {}; nvmf_get_subsystems lists them",
                given.host, given.nqn
            ),
        ));
    }
    Ok(true)
}

fn allow_any_host(management: &Management, given: &AllowAny) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    management
        .subsystem(&given.nqn)?
        .allow_any_host(given.allow_any_host);
    Ok(true)
}
