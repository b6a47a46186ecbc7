//! `bdev_nvme_*`: the controllers that are attached, and the paths to their namespaces.

use std::sync::Arc;

use protocols::nvme::log::AnaState;
use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Management;
use super::address::{Address, shown};
use super::initiator::{
    Attached, AttachedPath, connect_failed, no_controller, remove_all, saved_path, transport_id,
};
use super::initiator_options::{MultipathOptions, PolicyName, Selector, shown_policy};
use crate::initiator::{Controller, PathId, PathView, RemoteDevice};

const SET_POLICY: &str = "bdev_nvme_set_multipath_policy";
const DETACH: &str = "bdev_nvme_detach_controller";
const SET_KEYS: &str = "bdev_nvme_set_keys";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    name: String,
    trtype: Option<String>,
    traddr: Option<String>,
    adrfam: Option<String>,
    trsvcid: Option<String>,
    subnqn: Option<String>,
    hostaddr: Option<String>,
    hostsvcid: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByName {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPolicy {
    name: String,
    policy: PolicyName,
    selector: Option<Selector>,
    rr_min_io: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefer {
    name: String,
    cntlid: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    name: String,
    cntlid: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKeys {
    name: String,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[DETACH], move |given: Detach| {
        std::future::ready(detach(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(
        &["bdev_nvme_get_controllers"],
        move |given: ByName| std::future::ready(get_controllers(&own, given.name.as_deref())),
    ));
    let own = management.clone();
    registry.add(Method::new(&["bdev_nvme_get_io_paths"], move |given: ByName| {
        std::future::ready(get_io_paths(&own, given.name.as_deref()))
    }));
    let own = management.clone();
    registry.add(Method::new(&[SET_POLICY], move |given: SetPolicy| {
        std::future::ready(set_policy(&own, given))
    }));
    let own = management.clone();
    registry.add(Method::new(
        &["bdev_nvme_set_preferred_path"],
        move |given: Prefer| std::future::ready(prefer(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(
        &["bdev_nvme_reset_controller"],
        move |given: Reset| std::future::ready(reset(&own, &given)),
    ));
    let own = management.clone();
    registry.add(Method::new(&[SET_KEYS], move |given: SetKeys| {
        set_keys(own.clone(), given)
    }));
}

impl Management {
    /// The calls that come before the devices of `bdev`: what new controllers do.
    pub fn saved_initiator_options(&self) -> Option<SavedCall> {
        self.0.initiator.borrow().saved()
    }

    /// The calls that come after them: further paths, and how they are used.
    pub fn saved_paths(&self) -> Vec<SavedCall> {
        let mut calls = Vec::new();
        for (name, attached) in self.0.attached.borrow().iter() {
            // The first is saved with the devices.
            for path in attached.paths.borrow().iter().skip(1) {
                calls.push(saved_path(name, &path.options, attached.mode));
            }
            for (device, remote) in &attached.devices {
                if remote.policy() == attached.policy {
                    continue;
                }
                let mut params = shown_policy(remote.policy());
                params["name"] = json!(device);
                if let Some(params) = params.as_object_mut()
                    && let Some(min_io) = params.remove("min_io")
                {
                    params.insert("rr_min_io".to_owned(), min_io);
                }
                calls.push(SavedCall {
                    method: SET_POLICY,
                    params,
                });
            }
        }
        calls
    }

    /// A device of an attached controller by its name.
    fn remote(&self, name: &str) -> Result<(Vec<AttachedPath>, Arc<RemoteDevice>), RpcError> {
        let attached = self.0.attached.borrow();
        for one in attached.values() {
            let device = one.devices.iter().find(|(device, _)| device == name);
            if let Some((_, device)) = device {
                return Ok((one.paths.borrow().clone(), device.clone()));
            }
        }
        Err(RpcError::errno(
            libc::ENODEV,
            format!("no attached controller has a device {name}; bdev_nvme_get_io_paths lists them"),
        ))
    }
}

/// The paths that a caller means by addresses; `None` if all are meant.
fn meant(given: &Detach, attached: &Attached) -> Result<Option<Vec<AttachedPath>>, RpcError> {
    for (parameter, value) in [("hostaddr", &given.hostaddr), ("hostsvcid", &given.hostsvcid)] {
        if value.is_some() {
            return Err(RpcError::unsupported(DETACH, parameter, "leave it out"));
        }
    }
    let of_subsystem = given
        .subnqn
        .as_deref()
        .is_none_or(|nqn| nqn == attached.subsystem.as_str());
    if given.traddr.is_none() && given.trsvcid.is_none() && of_subsystem {
        return Ok(None);
    }
    let address = Address {
        trtype: given.trtype.clone().unwrap_or_else(|| "TCP".to_owned()),
        traddr: given.traddr.clone().unwrap_or_default(),
        trsvcid: given.trsvcid.clone(),
        adrfam: given.adrfam.clone(),
    };
    let address = address.parse()?;
    let paths = attached.paths.borrow();
    let meant: Vec<_> = paths
        .iter()
        .filter(|path| of_subsystem && path.options.address == address)
        .cloned()
        .collect();
    if meant.is_empty() {
        return Err(RpcError::errno(
            libc::ENODEV,
            format!(
                "controller {} has no path by {address}; bdev_nvme_get_controllers lists those that it has",
                given.name
            ),
        ));
    }
    Ok(Some(meant))
}

fn detach(management: &Management, given: &Detach) -> Result<bool, RpcError> {
    let mut attached = management.0.attached.borrow_mut();
    let one = attached
        .get(&given.name)
        .ok_or_else(|| no_controller(&given.name))?;
    let meant = meant(given, one)?;
    if let Some(meant) = meant.filter(|meant| meant.len() < one.paths.borrow().len()) {
        for path in meant {
            for (_, device) in &one.devices {
                device.remove_address(path.id, path.options.address);
            }
            let address = path.options.address;
            one.paths
                .borrow_mut()
                .retain(|path| path.options.address != address);
        }
        return Ok(true);
    }
    let one = attached
        .remove(&given.name)
        .ok_or_else(|| no_controller(&given.name))?;
    // Whoever is told may look at the controllers.
    drop(attached);
    remove_all(management, &one.devices);
    Ok(true)
}

/// What the channels of all devices have.
fn views(attached: &Attached) -> Vec<PathView> {
    let channels = attached.devices.iter().flat_map(|(_, device)| device.paths());
    channels.flatten().collect()
}

/// A controller with its path's further addresses.
fn shown_controller(attached: &Attached, views: &[PathView], id: PathId) -> Value {
    let paths = attached.paths.borrow();
    let mut own = paths.iter().filter(|path| path.id == id);
    let Some(first) = own.next() else {
        return Value::Null;
    };
    let view = |live: bool| {
        let mut own = views.iter().filter(move |view| view.id == id);
        own.any(move |view| view.cntlid.is_some() == live)
    };
    // A device without a channel has no connection to lose.
    let state = match (view(true), view(false)) {
        (false, true) => "failed",
        (true, true) => "resetting",
        _ => "enabled",
    };
    let mut shown = json!({
        "state": state,
        "cntlid": first.cntlid,
        "trid": transport_id(&first.options),
        "host": { "nqn": attached.host.as_str(), "addr": "", "svcid": "" },
    });
    let others: Vec<_> = own.map(|path| transport_id(&path.options)).collect();
    if !others.is_empty() {
        shown["alternate_trids"] = json!(others);
    }
    shown
}

fn get_controllers(management: &Management, name: Option<&str>) -> Result<Vec<Value>, RpcError> {
    let attached = management.0.attached.borrow();
    let shown = |(name, one): (&String, &Attached)| {
        let views = views(one);
        let mut ids: Vec<_> = one.paths.borrow().iter().map(|path| path.id).collect();
        ids.dedup();
        let controllers: Vec<_> = ids
            .into_iter()
            .map(|id| shown_controller(one, &views, id))
            .collect();
        json!({ "name": name, "ctrlrs": controllers })
    };
    match name {
        None => Ok(attached.iter().map(shown).collect()),
        Some(name) => match attached.get_key_value(name) {
            Some(one) => Ok(vec![shown(one)]),
            None => Err(no_controller(name)),
        },
    }
}

fn get_io_paths(management: &Management, name: Option<&str>) -> Result<Value, RpcError> {
    if let Some(name) = name {
        management.remote(name)?;
    }
    // As many as a device has channels at most.
    let mut groups: Vec<Vec<Value>> = Vec::new();
    for attached in management.0.attached.borrow().values() {
        let meant = |device: &str| name.is_none_or(|name| name == device);
        for (device, remote) in attached.devices.iter().filter(|(device, _)| meant(device)) {
            for (number, views) in remote.paths().into_iter().enumerate() {
                if groups.len() <= number {
                    groups.push(Vec::new());
                }
                groups[number].extend(views.iter().map(|view| {
                    let usable = matches!(view.access, Some(AnaState::Optimized | AnaState::NonOptimized));
                    json!({
                        "bdev_name": device,
                        "cntlid": view.cntlid.unwrap_or(0),
                        "current": view.is_current,
                        "connected": view.cntlid.is_some(),
                        "accessible": usable,
                        "transport": shown(view.address),
                    })
                }));
            }
        }
    }
    let groups = groups
        .into_iter()
        .enumerate()
        .map(|(number, io_paths)| json!({ "thread": format!("channel_{number}"), "io_paths": io_paths }));
    Ok(json!({ "poll_groups": groups.collect::<Vec<_>>() }))
}

fn set_policy(management: &Management, given: SetPolicy) -> Result<bool, RpcError> {
    let options = MultipathOptions {
        policy: given.policy,
        selector: given.selector,
        min_io: given.rr_min_io,
    };
    let policy = options.policy(SET_POLICY)?;
    let (_, device) = management.remote(&given.name)?;
    device.set_policy(policy);
    Ok(true)
}

/// The path with a controller of that number, in a channel or when it was attached.
fn path_of(cntlid: u16, paths: &[AttachedPath], views: &[PathView]) -> Result<PathId, RpcError> {
    let live = views
        .iter()
        .find(|view| view.cntlid == Some(cntlid))
        .map(|view| view.id);
    let attached = || {
        paths
            .iter()
            .find(|path| path.cntlid == cntlid)
            .map(|path| path.id)
    };
    live.or_else(attached).ok_or_else(|| {
        RpcError::errno(
            libc::ENODEV,
            format!("there is no path with the controller {cntlid}; bdev_nvme_get_io_paths lists them"),
        )
    })
}

fn prefer(management: &Management, given: &Prefer) -> Result<bool, RpcError> {
    let (paths, device) = management.remote(&given.name)?;
    let views: Vec<_> = device.paths().into_iter().flatten().collect();
    device.prefer(path_of(given.cntlid, &paths, &views)?);
    Ok(true)
}

fn reset(management: &Management, given: &Reset) -> Result<bool, RpcError> {
    let attached = management.0.attached.borrow();
    let one = attached
        .get(&given.name)
        .ok_or_else(|| no_controller(&given.name))?;
    let paths = one.paths.borrow();
    let meant = match given.cntlid {
        Some(cntlid) => Some(path_of(cntlid, &paths, &views(one))?),
        None => None,
    };
    for path in paths
        .iter()
        .filter(|path| meant.is_none_or(|meant| meant == path.id))
    {
        for (_, device) in &one.devices {
            device.reset(path.id);
        }
    }
    Ok(true)
}

/// Tries the keys with one association, and has all others authenticate with them only if they are good.
async fn set_keys(management: Management, given: SetKeys) -> Result<bool, RpcError> {
    let (key, controller_key) = (given.dhchap_key.as_deref(), given.dhchap_ctrlr_key.as_deref());
    let credentials = management.credentials(SET_KEYS, key, controller_key)?;
    let options = {
        let attached = management.0.attached.borrow();
        let one = attached
            .get(&given.name)
            .ok_or_else(|| no_controller(&given.name))?;
        let paths = one.paths.borrow();
        let first = paths.first().ok_or_else(|| no_controller(&given.name))?;
        let mut options = first.options.clone();
        options.credentials.clone_from(&credentials);
        options
    };
    Controller::connect(options)
        .await
        .map_err(|error| connect_failed(&error))?;
    let attached = management.0.attached.borrow();
    let one = attached
        .get(&given.name)
        .ok_or_else(|| no_controller(&given.name))?;
    for path in one.paths.borrow_mut().iter_mut() {
        path.options.credentials.clone_from(&credentials);
    }
    for (_, device) in &one.devices {
        device.set_credentials(&credentials);
    }
    drop(attached);
    reset(
        &management,
        &Reset {
            name: given.name,
            cntlid: None,
        },
    )
}
