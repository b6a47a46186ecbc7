//! Namespaces: devices under numbers.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bdev::managed::uuid_of;
use rpc::{Method, Registry, RpcError};
use serde::Deserialize;

use super::access::check_group;
use super::{KeptNamespace, Management, check_target};
use crate::target::{Namespace, ReservationFile, Subsystem};

/// As what the target claims devices.
const CLAIM: &str = "NVMe-oF Target";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    nqn: String,
    namespace: AddNamespace,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddNamespace {
    bdev_name: String,
    nsid: Option<u32>,
    uuid: Option<String>,
    nguid: Option<String>,
    anagrpid: Option<u32>,
    no_auto_visible: Option<bool>,
    ptpl_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    nqn: String,
    nsid: u32,
    tgt_name: Option<String>,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&["nvmf_subsystem_add_ns"], move |given: Add| {
        std::future::ready(add_namespace(&own, &given))
    }));
    let own = management.clone();
    registry.add(Method::new(
        &["nvmf_subsystem_remove_ns"],
        move |given: Remove| std::future::ready(remove(&own, &given)),
    ));
}

impl Management {
    /// Serves a device as a namespace. It has the device's UUID if `uuid` is `None`, and the first free number if `nsid`
    /// is. If the device is deleted, the namespace goes. Reservations survive a loss of power in `reservations`, if
    /// that is given and a host asks for it. Blocks for the few operations that open that file.
    ///
    /// # Errors
    /// If there is no such device, another uses it, the number is taken or too large, or the file is damaged, another
    /// namespace's, in use or cannot be written.
    pub fn add_namespace(
        &self,
        subsystem: &Arc<Subsystem>,
        nsid: Option<u32>,
        device: &str,
        uuid: Option<[u8; 16]>,
        reservations: Option<&Path>,
    ) -> Result<u32, RpcError> {
        let most = subsystem.namespaces_max();
        let free = |nsid: &u32| subsystem.namespace(*nsid).is_none();
        let Some(nsid) = nsid.or_else(|| (1..=most).find(free)) else {
            return Err(RpcError::errno(
                libc::ENOSPC,
                format!(
                    "{} has {most} namespaces, which is the most; remove one, or make a subsystem with a larger \
                     max_namespaces",
                    subsystem.nqn()
                ),
            ));
        };
        let (weak, weak_subsystem) = (Rc::downgrade(&self.0), Arc::downgrade(subsystem));
        let (managed, used) = self.0.devices.claim(device, CLAIM, move || {
            if let (Some(state), Some(subsystem)) = (weak.upgrade(), weak_subsystem.upgrade()) {
                Management(state).remove_namespace(&subsystem, nsid);
            }
        })?;
        let weak_subsystem = Arc::downgrade(subsystem);
        used.when_resized(move || {
            if let Some(subsystem) = weak_subsystem.upgrade() {
                subsystem.namespace_resized(nsid);
            }
        });
        let namespace = Namespace {
            nsid,
            uuid: uuid.unwrap_or(managed.uuid()),
            device: managed.device(),
        };
        let file = match reservations {
            None => None,
            Some(path) => {
                let opened = ReservationFile::open(path, namespace.uuid);
                Some(opened.map_err(|error| RpcError::invalid_params(error.to_string()))?)
            }
        };
        subsystem
            .add_reserved_namespace(namespace, file)
            .map_err(|error| RpcError::invalid_params(error.to_string()))?;
        let key = (subsystem.nqn().as_str().to_owned(), nsid);
        let kept = KeptNamespace {
            device: managed.name().to_owned(),
            reservations: reservations.map(Path::to_owned),
            _used: used,
        };
        self.0.namespaces.borrow_mut().insert(key, kept);
        Ok(nsid)
    }

    /// Takes a namespace away and gives its device back; false if there was none.
    pub(super) fn remove_namespace(&self, subsystem: &Subsystem, nsid: u32) -> bool {
        let removed = subsystem.remove_namespace(nsid);
        let key = (subsystem.nqn().as_str().to_owned(), nsid);
        let kept = self.0.namespaces.borrow_mut().remove(&key);
        drop(kept);
        removed
    }

    /// Where a namespace's reservations survive a loss of power.
    pub(super) fn reservations_of(&self, nqn: &str, nsid: u32) -> Option<PathBuf> {
        let key = (nqn.to_owned(), nsid);
        let namespaces = self.0.namespaces.borrow();
        namespaces.get(&key).and_then(|kept| kept.reservations.clone())
    }

    /// The name of a namespace's device.
    pub(super) fn device_of(&self, nqn: &str, nsid: u32) -> Option<String> {
        let key = (nqn.to_owned(), nsid);
        let namespaces = self.0.namespaces.borrow();
        namespaces.get(&key).map(|kept| kept.device.clone())
    }
}

fn add_namespace(management: &Management, given: &Add) -> Result<u32, RpcError> {
    const METHOD: &str = "nvmf_subsystem_add_ns";
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    let asked = &given.namespace;
    RpcError::unless_usual(METHOD, "no_auto_visible", asked.no_auto_visible, false)?;
    let uuid = uuid_of(asked.uuid.as_deref())?;
    let nguid = uuid_of(asked.nguid.as_deref())?;
    if let (Some(uuid), Some(nguid)) = (uuid, nguid)
        && uuid != nguid
    {
        let remedy = "a namespace's NGUID is its UUID; give one of them, or both alike";
        return Err(RpcError::unsupported(METHOD, "nguid", remedy));
    }
    // 0 is SPDK's way to ask for any number.
    let nsid = asked.nsid.filter(|nsid| *nsid > 0);
    let file = asked.ptpl_file.as_deref();
    let group = check_group(METHOD, &subsystem, asked.anagrpid.filter(|group| *group > 0))?;
    let nsid = management.add_namespace(&subsystem, nsid, &asked.bdev_name, uuid.or(nguid), file)?;
    if let Some(group) = group {
        subsystem.set_access_group(nsid, group);
    }
    Ok(nsid)
}

fn remove(management: &Management, given: &Remove) -> Result<bool, RpcError> {
    check_target(given.tgt_name.as_deref())?;
    let subsystem = management.subsystem(&given.nqn)?;
    if management.remove_namespace(&subsystem, given.nsid) {
        return Ok(true);
    }
    Err(RpcError::invalid_params(format!(
        "{} has no namespace {}; nvmf_get_subsystems lists what it has",
        given.nqn, given.nsid
    )))
}
