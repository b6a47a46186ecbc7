//! `bdev_nvme_attach_controller`: namespaces of other targets as devices here, by one path or by several.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
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
use super::initiator_options::{MultipathOptions, shown_policy};
use super::keyring::add_names;
use super::subsystems::parse_nqn;
use crate::authentication::Credentials;
use crate::initiator::{
    ConnectError, ConnectOptions, Controller, PathId, Policy, RemoteDevice, RemoteOptions,
};
use crate::secure::NamedPsk;

const METHOD: &str = "bdev_nvme_attach_controller";
/// What kind of device a namespace is, in SPDK's words.
const PRODUCT: &str = "NVMe disk";
/// How long requests wait for a connection, where nothing is said.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Longest pause between attempts to connect, where nothing is said.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(5);
/// Most paths to a controller's namespaces.
const PATHS_MAX: usize = 16;
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
    multipath: Option<Mode>,
    multipath_opts: Option<MultipathOptions>,
    num_io_queues: Option<u16>,
    prchk_reftag: Option<bool>,
    prchk_guard: Option<bool>,
    allow_unrecognized_csi: Option<bool>,
    disable_sq_flow_control: Option<bool>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

/// What a second address under the same name is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Not allowed.
    Disable,
    /// Connected to when the one before cannot be reached.
    Failover,
    /// Another path, beside it.
    #[default]
    Multipath,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Failover => "failover",
            Self::Multipath => "multipath",
        }
    }
}

/// An address of a controller.
#[derive(Clone)]
pub(super) struct AttachedPath {
    /// The same for all of the controller's devices.
    pub(super) id: PathId,
    pub(super) options: ConnectOptions,
    /// Of the association by which it was looked at; channels have others.
    pub(super) cntlid: u16,
}

/// The addresses of a controller, as they are now.
pub(super) type AttachedPaths = Rc<RefCell<Vec<AttachedPath>>>;

/// What was attached under a name.
pub(super) struct Attached {
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
    pub(super) mode: Mode,
    pub(super) policy: Policy,
    pub(super) paths: AttachedPaths,
    pub(super) devices: Vec<(String, Arc<RemoteDevice>)>,
}

impl Attached {
    /// With which it authenticates.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        self.paths.borrow().first()?.options.credentials.clone()
    }

    /// With which it connects over TLS.
    pub(super) fn psks(&self) -> Vec<NamedPsk> {
        let paths = self.paths.borrow();
        paths.iter().filter_map(|path| path.options.psk.clone()).collect()
    }

    fn psk(&self) -> Option<NamedPsk> {
        self.paths.borrow().first()?.options.psk.clone()
    }
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[METHOD], move |given: Attach| {
        attach(own.clone(), given)
    }));
}

/// What was asked for, checked.
#[derive(Clone)]
struct Wanted {
    options: ConnectOptions,
    wait_limit: Duration,
    reconnect_delay_max: Duration,
    loss_timeout: Option<Duration>,
    mode: Mode,
    policy: Policy,
}

/// How long to do without a connection: the wait of a request, the longest pause between attempts, and when to give up.
pub(super) fn losses(
    method: &str,
    wait: Option<u64>,
    delay: Option<u64>,
    loss: Option<i64>,
) -> Result<(Duration, Duration, Option<Duration>), RpcError> {
    let seconds = |given: Option<u64>| given.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let (wait, delay) = (seconds(wait), seconds(delay));
    let loss = match loss {
        None | Some(-1) => None,
        Some(0) => {
            return Err(RpcError::unsupported(
                method,
                "ctrlr_loss_timeout_sec",
                "a lost controller is always tried again; give how many seconds, or -1 for ever",
            ));
        }
        Some(given) => match u64::try_from(given) {
            Ok(given) => Some(Duration::from_secs(given)),
            Err(_) => {
                return Err(RpcError::invalid_params(format!(
                    "{method}: ctrlr_loss_timeout_sec is {given}; give a number of seconds, or -1 for ever"
                )));
            }
        },
    };
    let order =
        |shorter: (&str, Option<Duration>), longer: (&str, Option<Duration>)| match (shorter.1, longer.1) {
            (Some(short), Some(long)) if short > long => Err(RpcError::invalid_params(format!(
                "{method}: {} is {} s, longer than {} with {} s; give at most that",
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
    let defaults = management.0.initiator.borrow().clone();
    let (wait_limit, reconnect_delay_max, loss_timeout) = losses(
        METHOD,
        given
            .fast_io_fail_timeout_sec
            .or(defaults.fast_io_fail_timeout_sec),
        given.reconnect_delay_sec.or(defaults.reconnect_delay_sec),
        given.ctrlr_loss_timeout_sec.or(defaults.ctrlr_loss_timeout_sec),
    )?;
    let policy = match &given.multipath_opts {
        Some(options) => options.policy(METHOD)?,
        None => defaults.policy,
    };
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
    let mut options = ConnectOptions::new(address, subsystem, host, host_id);
    defaults.apply(&mut options);
    let (key, controller_key) = (given.dhchap_key.as_deref(), given.dhchap_ctrlr_key.as_deref());
    options.credentials = management.credentials(METHOD, key, controller_key)?;
    options.psk = management.named_psk(given.psk.as_deref())?;
    options.header_digest = given.hdgst.unwrap_or(false);
    options.data_digest = given.ddgst.unwrap_or(false);
    if let Some(limit_us) = given.fabrics_connect_timeout_us.filter(|limit_us| *limit_us > 0) {
        options.limit = Duration::from_micros(limit_us);
    }
    Ok(Wanted {
        options,
        wait_limit,
        reconnect_delay_max,
        loss_timeout,
        mode: given.multipath.unwrap_or_default(),
        policy,
    })
}

pub(super) fn connect_failed(error: &ConnectError) -> RpcError {
    let number = match error {
        ConnectError::Socket { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        ConnectError::Refused { .. } => libc::ECONNRESET,
        ConnectError::TimedOut { .. } => libc::ETIMEDOUT,
        ConnectError::Command { .. } => libc::EIO,
        ConnectError::NoBuffer { .. } => libc::ENOMEM,
        ConnectError::Changed { .. } => libc::ESTALE,
        ConnectError::OtherNamespace { .. } => libc::EINVAL,
        ConnectError::Inaccessible { .. } => libc::EAGAIN,
        ConnectError::Secure { .. } | ConnectError::Authentication { .. } => libc::EACCES,
    };
    RpcError::errno(number, error.to_string())
}

fn taken(name: &str, why: &str) -> RpcError {
    let why = format!("a controller is attached as {name} already, {why}");
    RpcError::errno(libc::EEXIST, why)
}

/// That the name is free.
fn check_name(management: &Management, name: &str) -> Result<(), RpcError> {
    if management.0.attached.borrow().contains_key(name) {
        return Err(taken(name, "since a moment ago; try again"));
    }
    Ok(())
}

async fn attach(management: Management, given: Attach) -> Result<Vec<String>, RpcError> {
    let wanted = check(&management, &given)?;
    if management.0.attached.borrow().contains_key(&given.name) {
        return add_path(&management, &given, wanted).await;
    }
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
        let mut options = RemoteOptions {
            wait_limit: wanted.wait_limit,
            reconnect_delay_max: wanted.reconnect_delay_max,
            loss_timeout: wanted.loss_timeout,
            ..RemoteOptions::new(wanted.options.clone(), nsid)
        };
        management.0.initiator.borrow().apply_to_requests(&mut options);
        let device = RemoteDevice::connect(options)
            .await
            .map_err(|error| connect_failed(&error))?;
        found.push((nsid, identifiers.uuid.or(identifiers.nguid), device));
    }
    // Others may have come while we waited.
    check_name(&management, &given.name)?;
    let paths = AttachedPaths::new(RefCell::new(vec![AttachedPath {
        id: PathId(0),
        options: wanted.options.clone(),
        cntlid: controller.cntlid(),
    }]));
    let mut devices = Vec::new();
    for (nsid, uuid, device) in found {
        let first = devices
            .is_empty()
            .then(|| (given.name.clone(), paths.clone(), wanted.clone()));
        let (shown, device) = (paths.clone(), Arc::new(device));
        device.set_policy(wanted.policy);
        let registered = management.0.devices.register(Description {
            name: format!("{}n{nsid}", given.name),
            uuid,
            product: PRODUCT,
            device: device.clone(),
            details: Box::new(move || details(&shown.borrow(), nsid)),
            saved: Box::new(move |_| {
                let (name, paths, wanted) = first.as_ref()?;
                let paths = paths.borrow();
                Some(saved_call(name, &paths.first()?.options, wanted))
            }),
            base: None,
        });
        match registered {
            Ok(managed) => devices.push((managed.name().to_owned(), device)),
            Err(error) => {
                remove_all(&management, &devices);
                return Err(error);
            }
        }
    }
    let names = devices.iter().map(|(name, _)| name.clone()).collect();
    let attached = Attached {
        subsystem: wanted.options.subsystem,
        host: wanted.options.host,
        mode: wanted.mode,
        policy: wanted.policy,
        paths,
        devices,
    };
    management.0.attached.borrow_mut().insert(given.name, attached);
    Ok(names)
}

/// Another address of a controller that is attached.
async fn add_path(
    management: &Management,
    given: &Attach,
    mut wanted: Wanted,
) -> Result<Vec<String>, RpcError> {
    let name = &given.name;
    let address = wanted.options.address;
    let devices = {
        let attached = management.0.attached.borrow();
        let one = attached.get(name).ok_or_else(|| no_controller(name))?;
        let mode = given.multipath.unwrap_or(one.mode);
        if one.mode == Mode::Disable || mode == Mode::Disable {
            return Err(taken(
                name,
                "and has one path; choose another name, or attach both with multipath",
            ));
        }
        if mode != one.mode {
            let why = format!("with {}; use that, or choose another name", one.mode.name());
            return Err(taken(name, &why));
        }
        check_address(name, one, address)?;
        if wanted.options.host != one.host {
            return Err(RpcError::invalid_params(format!(
                "{METHOD}: hostnqn is {}, and the controller's other paths have {}; all paths are of one host",
                wanted.options.host, one.host
            )));
        }
        let limits = [
            given.fast_io_fail_timeout_sec.is_some(),
            given.reconnect_delay_sec.is_some(),
            given.ctrlr_loss_timeout_sec.is_some(),
        ];
        if limits.contains(&true) {
            check_limits(one, &wanted)?;
        }
        if wanted.options.credentials.is_none() {
            wanted.options.credentials = one.credentials();
        }
        if wanted.options.psk.is_none() {
            wanted.options.psk = one.psk();
        }
        one.devices.clone()
    };
    let controller = Controller::connect(wanted.options.clone())
        .await
        .map_err(|error| connect_failed(&error))?;
    for (_, device) in &devices {
        let checked = device.check_path(&controller).await;
        checked.map_err(|error| connect_failed(&error))?;
    }
    let mut attached = management.0.attached.borrow_mut();
    // It may have gone while we waited, or the path may have come.
    let one = attached.get_mut(name).ok_or_else(|| no_controller(name))?;
    check_address(name, one, address)?;
    let mut id = PathId(0);
    for (_, device) in &one.devices {
        id = match one.mode {
            Mode::Multipath => device.add_path(wanted.options.clone()),
            _ => {
                let first = one.paths.borrow()[0].id;
                device.add_alternate(first, wanted.options.clone());
                first
            }
        };
    }
    one.paths.borrow_mut().push(AttachedPath {
        id,
        options: wanted.options,
        cntlid: controller.cntlid(),
    });
    Ok(one.devices.iter().map(|(name, _)| name.clone()).collect())
}

fn check_address(name: &str, attached: &Attached, address: SocketAddr) -> Result<(), RpcError> {
    let paths = attached.paths.borrow();
    if paths.iter().any(|path| path.options.address == address) {
        let why = format!("by {address}; give another address, or choose another name");
        return Err(taken(name, &why));
    }
    if paths.len() >= PATHS_MAX {
        let why = format!("by {PATHS_MAX} paths, which is the most; detach one of them first");
        return Err(taken(name, &why));
    }
    Ok(())
}

/// The limits are those of the device, which all paths share.
fn check_limits(attached: &Attached, wanted: &Wanted) -> Result<(), RpcError> {
    let first = attached.devices.first().map(|(_, device)| device.limits());
    let own = (wanted.wait_limit, wanted.reconnect_delay_max, wanted.loss_timeout);
    if first.is_some_and(|first| first != own) {
        return Err(RpcError::unsupported(
            METHOD,
            "one of fast_io_fail_timeout_sec, reconnect_delay_sec and ctrlr_loss_timeout_sec",
            "leave them out for further paths: those of the first are for all",
        ));
    }
    Ok(())
}

pub(super) fn remove_all(management: &Management, devices: &[(String, Arc<RemoteDevice>)]) {
    for (device, _) in devices {
        if let Err(error) = management.0.devices.remove(device, PRODUCT) {
            tracing::warn!(%error, "a namespace's device was gone");
        }
    }
}

pub(super) fn transport_id(options: &ConnectOptions) -> Value {
    let mut shown = shown(options.address);
    shown["subnqn"] = json!(options.subsystem.as_str());
    shown
}

fn details(paths: &[AttachedPath], nsid: u32) -> Value {
    let shown = paths.iter().map(|path| {
        json!({
            "trid": transport_id(&path.options),
            // The one that was asked; each channel has an association of its own.
            "ctrlr_data": { "cntlid": path.cntlid, "subnqn": path.options.subsystem.as_str() },
            "ns_data": { "id": nsid },
        })
    });
    json!({ "nvme": shown.collect::<Vec<_>>() })
}

pub(super) fn saved_path(name: &str, options: &ConnectOptions, mode: Mode) -> SavedCall {
    let mut params = transport_id(options);
    params["name"] = json!(name);
    params["hostnqn"] = json!(options.host.as_str());
    params["hdgst"] = json!(options.header_digest);
    params["ddgst"] = json!(options.data_digest);
    params["fabrics_connect_timeout_us"] = json!(options.limit.as_micros() as u64);
    params["multipath"] = json!(mode.name());
    add_names(&mut params, options.credentials.as_ref(), options.psk.as_ref());
    SavedCall {
        method: METHOD,
        params,
    }
}

/// The call of the first path, with what is for all.
fn saved_call(name: &str, options: &ConnectOptions, wanted: &Wanted) -> SavedCall {
    let mut call = saved_path(name, options, wanted.mode);
    let params = &mut call.params;
    params["multipath_opts"] = shown_policy(wanted.policy);
    params["fast_io_fail_timeout_sec"] = json!(wanted.wait_limit.as_secs());
    params["reconnect_delay_sec"] = json!(wanted.reconnect_delay_max.as_secs());
    params["ctrlr_loss_timeout_sec"] = match wanted.loss_timeout {
        Some(limit) => json!(limit.as_secs()),
        None => json!(-1),
    };
    call
}

pub(super) fn no_controller(name: &str) -> RpcError {
    RpcError::errno(
        libc::ENODEV,
        format!("no controller is attached as {name}; bdev_nvme_get_controllers lists those that are"),
    )
}
