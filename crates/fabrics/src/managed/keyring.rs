//! `keyring_*`: keys in files, by name. Only names and paths are ever shown or saved.
//!
//! A key is read from its file when it is given to a host or a controller. Later changes of the file count when it is
//! given again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use protocols::auth::{Keys, Secret};
use rpc::{Method, NoParameters, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Management;
use crate::authentication::Credentials;
use crate::key_file::{self, KeyFileError};
use crate::secure::NamedPsk;

/// The module's name, in SPDK's words.
const MODULE: &str = "keyring_file";
const ADD: &str = "keyring_file_add_key";

/// The key files by name.
pub(super) type Keyring = BTreeMap<String, PathBuf>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    name: String,
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
}

pub(super) fn add(registry: &mut Registry, management: &Management) {
    let own = management.clone();
    registry.add(Method::new(&[ADD], move |given: Add| {
        std::future::ready(add_key(&own, given))
    }));
    let own = management.clone();
    registry.add(Method::new(&["keyring_file_remove_key"], move |given: Remove| {
        std::future::ready(remove_key(&own, &given.name))
    }));
    let own = management.clone();
    registry.add(Method::new(&["keyring_get_keys"], move |_: NoParameters| {
        std::future::ready(Ok(shown(&own)))
    }));
}

fn unusable(name: &str, error: &KeyFileError) -> RpcError {
    RpcError::errno(error.errno(), format!("key {name}, {error}"))
}

fn add_key(management: &Management, given: Add) -> Result<bool, RpcError> {
    let Add { name, path } = given;
    if !path.is_absolute() {
        let why = format!(
            "{ADD}: the path {} is not absolute; write it from / on",
            path.display()
        );
        return Err(RpcError::errno(libc::EINVAL, why));
    }
    let mut keyring = management.0.keyring.borrow_mut();
    if keyring.contains_key(&name) {
        return Err(RpcError::errno(
            libc::EEXIST,
            format!("there is a key {name} already; remove it first, or choose another name"),
        ));
    }
    key_file::open(&path).map_err(|error| unusable(&name, &error))?;
    keyring.insert(name, path);
    Ok(true)
}

fn no_key(name: &str) -> RpcError {
    RpcError::errno(
        libc::ENOKEY,
        format!("there is no key {name}; keyring_get_keys lists them, {ADD} adds one"),
    )
}

fn remove_key(management: &Management, name: &str) -> Result<bool, RpcError> {
    if !management.0.keyring.borrow().contains_key(name) {
        return Err(no_key(name));
    }
    let users = management.users_of_key(name);
    if let Some(user) = users.first() {
        let why =
            format!("key {name} is in use by {user}; give it other keys first (nvmf_subsystem_set_keys)");
        return Err(RpcError::errno(libc::EBUSY, why));
    }
    management.0.keyring.borrow_mut().remove(name);
    Ok(true)
}

fn shown(management: &Management) -> Vec<Value> {
    let keyring = management.0.keyring.borrow();
    let keys = keyring.iter().map(|(name, path)| {
        json!({
            "name": name,
            "module": MODULE,
            "removed": false,
            "probed": true,
            "refcnt": 1 + management.users_of_key(name).len(),
            "path": path,
        })
    });
    keys.collect()
}

/// The calls that name the keys again.
pub(super) fn saved(management: &Management) -> Vec<SavedCall> {
    let keyring = management.0.keyring.borrow();
    let calls = keyring.iter().map(|(name, path)| SavedCall {
        method: ADD,
        params: json!({ "name": name, "path": path }),
    });
    calls.collect()
}

impl Management {
    /// Who uses a key, in words.
    fn users_of_key(&self, name: &str) -> Vec<String> {
        let uses = |credentials: &Credentials| {
            credentials.key_name == name || credentials.controller_key_name.as_deref() == Some(name)
        };
        let uses_psk = |psk: &NamedPsk| psk.key_name == name;
        let mut users = Vec::new();
        for subsystem in self.0.target.subsystems() {
            let hosts = subsystem.credentialed_hosts().into_iter();
            let hosts = hosts.filter(|(_, credentials)| uses(credentials));
            let hosts = hosts.map(|(host, _)| host);
            let keyed = subsystem.keyed_hosts().into_iter();
            let keyed = keyed.filter(|(_, psk)| uses_psk(psk));
            let hosts = hosts.chain(keyed.map(|(host, _)| host));
            users.extend(hosts.map(|host| format!("host {host} of subsystem {}", subsystem.nqn())));
        }
        for (name, attached) in self.0.attached.borrow().iter() {
            let secured = attached.psks().iter().any(uses_psk);
            if secured || attached.credentials().as_ref().is_some_and(uses) {
                users.push(format!("controller {name}"));
            }
        }
        users
    }

    fn path_of_key(&self, name: &str) -> Result<PathBuf, RpcError> {
        let path = self.0.keyring.borrow().get(name).cloned();
        path.ok_or_else(|| no_key(name))
    }

    fn secret(&self, name: &str) -> Result<Secret, RpcError> {
        let path = self.path_of_key(name)?;
        let text = key_file::read(&path).map_err(|error| unusable(name, &error))?;
        Secret::parse(&text).map_err(|error| {
            let path = path.display();
            let why = format!("key {name}, file {path}, is no DH-HMAC-CHAP secret: {error}");
            RpcError::errno(libc::EINVAL, why)
        })
    }

    /// The pre-shared key of this name; none without one.
    pub(super) fn named_psk(&self, name: Option<&str>) -> Result<Option<NamedPsk>, RpcError> {
        let Some(name) = name else { return Ok(None) };
        let path = self.path_of_key(name)?;
        let psk = key_file::read_psk(&path).map_err(|error| unusable(name, &error))?;
        Ok(Some(NamedPsk {
            key_name: name.to_owned(),
            psk: Arc::new(psk),
        }))
    }

    /// The keys of these names; none without a host's.
    pub(super) fn credentials(
        &self,
        method: &str,
        key: Option<&str>,
        controller_key: Option<&str>,
    ) -> Result<Option<Credentials>, RpcError> {
        let Some(key) = key else {
            return match controller_key {
                None => Ok(None),
                Some(_) => Err(RpcError::errno(
                    libc::EINVAL,
                    format!("{method}: dhchap_ctrlr_key is given without dhchap_key; give both"),
                )),
            };
        };
        let keys = Keys {
            host: self.secret(key)?,
            controller: controller_key.map(|name| self.secret(name)).transpose()?,
        };
        Ok(Some(Credentials {
            key_name: key.to_owned(),
            controller_key_name: controller_key.map(str::to_owned),
            keys: Arc::new(keys),
        }))
    }
}

/// Adds the names of keys to the parameters of a saved call or to what is shown of a host.
pub(super) fn add_names(params: &mut Value, credentials: Option<&Credentials>, psk: Option<&NamedPsk>) {
    if let Some(psk) = psk {
        params["psk"] = json!(psk.key_name);
    }
    let Some(credentials) = credentials else { return };
    params["dhchap_key"] = json!(credentials.key_name);
    if let Some(name) = &credentials.controller_key_name {
        params["dhchap_ctrlr_key"] = json!(name);
    }
}
