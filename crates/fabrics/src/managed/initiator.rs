//! `bdev_nvme_*`: namespaces of other targets as devices here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bdev::managed::Description;
use foundation::uuid::format_uuid;
use protocols::nvme::Nqn;
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Management;
use super::address::{Address, shown};
use super::keyring::add_names;
use super::subsystems::parse_nqn;
use crate::authentication::Credentials;
use crate::initiator::{ConnectError, ConnectOptions, Controller, RemoteDevice, RemoteOptions};

const METHOD: &str = "bdev_nvme_attach_controller";
/// What kind of device a namespace is, in SPDK's words.
const PRODUCT: &str = "NVMe disk";
/// How long requests wait for a connection, where nothing is said.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Longest pause between attempts to connect, where nothing is said.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(5);
/// Most namespaces that are attached at once.
const NAMESPACES_MAX: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    name: String,
    trtype: String,
    traddr: String,
    trsvcid: Option<String>,
    adrfam: Option<String>,
    subnqn: Option<String>,
    hostnqn: Option<String>,
    hdgst: Option<bool>,
    ddgst: Option<bool>,
    fabrics_connect_timeout_us: Option<u64>,
    fast_io_fail_timeout_sec: Option<u64>,
    reconnect_delay_sec: Option<u64>,
    ctrlr_loss_timeout_sec: Option<i64>,
    max_bdevs: Option<usize>,
    /// One path is what there is.
    #[serde(rename = "multipath")]
    _multipath: Option<Multipath>,
    num_io_queues: Option<u16>,
    prchk_reftag: Option<bool>,
    prchk_guard: Option<bool>,
    allow_unrecognized_csi: Option<bool>,
    disable_sq_flow_control: Option<bool>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Multipath {
    Disable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetControllers {
    name: Option<String>,
}

/// A controller that was attached under a name.
pub(super) struct Attached {
    address: SocketAddr,
    subsystem: Nqn,
    host: Nqn,
    devices: Vec<String>,
    credentials: Option<Credentials>,
}

impl Attached {
    /// With which it authenticates.
    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[METHOD], move |given: Attach| {
        attach(own.clone(), given)
    }));
    let own = management.clone();
    registry.add(Method::new(
        &["bdev_nvme_detach_controller"],
        move |given: Detach| std::future::ready(detach(&own, &given.name)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["bdev_nvme_get_controllers"],
        move |given: GetControllers| std::future::ready(get_controllers(&own, given.name.as_deref())),
    ));
}

/// What was asked for, checked.
struct Wanted {
    address: SocketAddr,
    options: ConnectOptions,
    wait_limit: Duration,
    reconnect_delay_max: Duration,
    loss_timeout: Option<Duration>,
}

/// How long to do without a connection: the wait of a request, the longest pause between attempts, and when to give up.
fn losses(given: &Attach) -> Result<(Duration, Duration, Option<Duration>), RpcError> {
    let seconds = |given: Option<u64>| given.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let (wait, delay) = (
        seconds(given.fast_io_fail_timeout_sec),
        seconds(given.reconnect_delay_sec),
    );
    let loss = match given.ctrlr_loss_timeout_sec {
        None | Some(-1) => None,
        Some(0) => {
            return Err(RpcError::unsupported(
                METHOD,
                "ctrlr_loss_timeout_sec",
                "a lost controller is always tried again; give how many seconds, or -1 for ever",
            ));
        }
        Some(given) => match u64::try_from(given) {
            Ok(given) => Some(Duration::from_secs(given)),
            Err(_) => {
                return Err(RpcError::invalid_params(format!(
                    "{METHOD}: ctrlr_loss_timeout_sec is {given}; give a number of seconds, or -1 for ever"
                )));
            }
        },
    };
    let order =
        |shorter: (&str, Option<Duration>), longer: (&str, Option<Duration>)| match (shorter.1, longer.1) {
            (Some(short), Some(long)) if short > long => Err(RpcError::invalid_params(format!(
                "{METHOD}: {} is {} s, longer than {} with {} s; give at most that",
                shorter.0,
                short.as_secs(),
                longer.0,
                long.as_secs()
            ))),
            _ => Ok(()),
        };
    order(("reconnect_delay_sec", delay), ("ctrlr_loss_timeout_sec", loss))?;
    order(
        ("fast_io_fail_timeout_sec", wait),
        ("ctrlr_loss_timeout_sec", loss),
    )?;
    order(("reconnect_delay_sec", delay), ("fast_io_fail_timeout_sec", wait))?;
    // What is saved must be taken again.
    let wait = wait.unwrap_or(WAIT_LIMIT).min(loss.unwrap_or(Duration::MAX));
    Ok((wait, delay.unwrap_or(RECONNECT_DELAY_MAX).min(wait), loss))
}

fn check(management: &Management, given: &Attach) -> Result<Wanted, RpcError> {
    let (wait_limit, reconnect_delay_max, loss_timeout) = losses(given)?;
    RpcError::unless_usual(METHOD, "num_io_queues", given.num_io_queues, 1)?;
    RpcError::unless_usual(METHOD, "prchk_reftag", given.prchk_reftag, false)?;
    RpcError::unless_usual(METHOD, "prchk_guard", given.prchk_guard, false)?;
    RpcError::unless_usual(
        METHOD,
        "allow_unrecognized_csi",
        given.allow_unrecognized_csi,
        false,
    )?;
    RpcError::unless_usual(
        METHOD,
        "disable_sq_flow_control",
        given.disable_sq_flow_control,
        false,
    )?;
    let address = Address {
        trtype: given.trtype.clone(),
        traddr: given.traddr.clone(),
        trsvcid: given.trsvcid.clone(),
        adrfam: given.adrfam.clone(),
    };
    let address = address.parse()?;
    let Some(subsystem) = &given.subnqn else {
        return Err(RpcError::invalid_params(format!(
            "{METHOD}: subnqn is missing; name the subsystem (nvme discover lists what a target has)"
        )));
    };
    let subsystem = parse_nqn(subsystem)?;
    let host_id = management.0.host_id;
    let host = match &given.hostnqn {
        Some(host) => parse_nqn(host)?,
        None => parse_nqn(&format!(
            "nqn.2014-08.org.nvmexpress:uuid:{}",
            format_uuid(&host_id)
        ))?,
    };
    if given.psk.is_some() {
        return Err(RpcError::unsupported(
            METHOD,
            "psk",
            "leave it out: there is no TLS yet",
        ));
    }
    let mut options = ConnectOptions::new(address, subsystem, host, host_id);
    let (key, controller_key) = (given.dhchap_key.as_deref(), given.dhchap_ctrlr_key.as_deref());
    options.credentials = management.credentials(METHOD, key, controller_key)?;
    options.header_digest = given.hdgst.unwrap_or(false);
    options.data_digest = given.ddgst.unwrap_or(false);
    if let Some(limit_us) = given.fabrics_connect_timeout_us.filter(|limit_us| *limit_us > 0) {
        options.limit = Duration::from_micros(limit_us);
    }
    Ok(Wanted {
        address,
        options,
        wait_limit,
        reconnect_delay_max,
        loss_timeout,
    })
}

fn connect_failed(error: &ConnectError) -> RpcError {
    let number = match error {
        ConnectError::Socket { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        ConnectError::Refused { .. } => libc::ECONNRESET,
        ConnectError::TimedOut { .. } => libc::ETIMEDOUT,
        ConnectError::Command { .. } => libc::EIO,
        ConnectError::Changed { .. } => libc::ESTALE,
        ConnectError::OtherNamespace { .. } => libc::EINVAL,
        ConnectError::Inaccessible { .. } => libc::EAGAIN,
        ConnectError::Authentication { .. } => libc::EACCES,
    };
    RpcError::errno(number, error.to_string())
}

fn check_name(management: &Management, name: &str) -> Result<(), RpcError> {
    if management.0.attached.borrow().contains_key(name) {
        return Err(RpcError::errno(
            libc::EEXIST,
            format!("a controller is attached as {name} already, and has one path; choose another name"),
        ));
    }
    Ok(())
}

async fn attach(management: Management, given: Attach) -> Result<Vec<String>, RpcError> {
    check_name(&management, &given.name)?;
    let wanted = check(&management, &given)?;
    let controller = Controller::connect(wanted.options.clone())
        .await
        .map_err(|error| connect_failed(&error))?;
    let nsids = controller
        .namespaces()
        .await
        .map_err(|error| connect_failed(&error))?;
    let most = given.max_bdevs.unwrap_or(NAMESPACES_MAX);
    if nsids.len() > most {
        return Err(RpcError::errno(
            libc::ENOSPC,
            format!(
                "{METHOD}: {} has {} namespaces, and at most {most} are taken; raise max_bdevs",
                wanted.options.subsystem,
                nsids.len()
            ),
        ));
    }
    let mut found = Vec::new();
    for nsid in nsids {
        let identifiers = controller
            .identifiers(nsid)
            .await
            .map_err(|error| connect_failed(&error))?;
        let options = RemoteOptions {
            wait_limit: wanted.wait_limit,
            reconnect_delay_max: wanted.reconnect_delay_max,
            loss_timeout: wanted.loss_timeout,
            ..RemoteOptions::new(wanted.options.clone(), nsid)
        };
        let device = RemoteDevice::connect(options)
            .await
            .map_err(|error| connect_failed(&error))?;
        found.push((nsid, identifiers.uuid.or(identifiers.nguid), device));
    }
    // Others may have come while we waited.
    check_name(&management, &given.name)?;
    let saved = saved_call(&given.name, &wanted);
    let mut devices = Vec::new();
    for (nsid, uuid, device) in found {
        let first = devices.is_empty().then(|| saved.clone());
        let shown = details(&wanted, controller.cntlid(), nsid);
        let registered = management.0.devices.register(Description {
            name: format!("{}n{nsid}", given.name),
            uuid,
            product: PRODUCT,
            device: Arc::new(device),
            details: Box::new(move || shown.clone()),
            saved: Box::new(move |_| first.clone()),
            base: None,
        });
        match registered {
            Ok(managed) => devices.push(managed.name().to_owned()),
            Err(error) => {
                remove_all(&management, &devices);
                return Err(error);
            }
        }
    }
    let attached = Attached {
        address: wanted.address,
        subsystem: wanted.options.subsystem,
        host: wanted.options.host,
        devices: devices.clone(),
        credentials: wanted.options.credentials,
    };
    management.0.attached.borrow_mut().insert(given.name, attached);
    Ok(devices)
}

fn remove_all(management: &Management, devices: &[String]) {
    for device in devices {
        if let Err(error) = management.0.devices.remove(device, PRODUCT) {
            tracing::warn!(%error, "a namespace's device was gone");
        }
    }
}

fn transport_id(address: SocketAddr, subsystem: &Nqn) -> Value {
    let mut shown = shown(address);
    shown["subnqn"] = json!(subsystem.as_str());
    shown
}

fn details(wanted: &Wanted, cntlid: u16, nsid: u32) -> Value {
    json!({ "nvme": [{
        "trid": transport_id(wanted.address, &wanted.options.subsystem),
        // The one that was asked; each channel has an association of its own.
        "ctrlr_data": { "cntlid": cntlid, "subnqn": wanted.options.subsystem.as_str() },
        "ns_data": { "id": nsid },
    }]})
}

fn saved_call(name: &str, wanted: &Wanted) -> SavedCall {
    let mut params = transport_id(wanted.address, &wanted.options.subsystem);
    params["name"] = json!(name);
    params["hostnqn"] = json!(wanted.options.host.as_str());
    params["hdgst"] = json!(wanted.options.header_digest);
    params["ddgst"] = json!(wanted.options.data_digest);
    params["fabrics_connect_timeout_us"] = json!(wanted.options.limit.as_micros() as u64);
    params["fast_io_fail_timeout_sec"] = json!(wanted.wait_limit.as_secs());
    params["reconnect_delay_sec"] = json!(wanted.reconnect_delay_max.as_secs());
    params["ctrlr_loss_timeout_sec"] = match wanted.loss_timeout {
        Some(limit) => json!(limit.as_secs()),
        None => json!(-1),
    };
    add_names(&mut params, wanted.options.credentials.as_ref());
    SavedCall {
        method: METHOD,
        params,
    }
}

fn no_controller(name: &str) -> RpcError {
    RpcError::errno(
        libc::ENODEV,
        format!("no controller is attached as {name}; bdev_nvme_get_controllers lists those that are"),
    )
}

fn detach(management: &Management, name: &str) -> Result<bool, RpcError> {
    let attached = management.0.attached.borrow_mut().remove(name);
    let attached = attached.ok_or_else(|| no_controller(name))?;
    remove_all(management, &attached.devices);
    Ok(true)
}

fn get_controllers(management: &Management, name: Option<&str>) -> Result<Vec<Value>, RpcError> {
    let attached = management.0.attached.borrow();
    let shown = |(name, one): (&String, &Attached)| {
        json!({
            "name": name,
            "ctrlrs": [{
                "trid": transport_id(one.address, &one.subsystem),
                "host": { "nqn": one.host.as_str(), "addr": "", "svcid": "" },
            }],
        })
    };
    match name {
        None => Ok(attached.iter().map(shown).collect()),
        Some(name) => match attached.get_key_value(name) {
            Some(one) => Ok(vec![shown(one)]),
            None => Err(no_controller(name)),
        },
    }
}
