//! `keyring_*`: keys in files, by name. Only names and paths are ever shown or saved.
//!
//! A key is read from its file when it is given to a host or a controller. Later changes of the file count when it is
//! given again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocols::auth::{Keys, Secret};
use rpc::{Method, NoParameters, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::Management;
use crate::authentication::Credentials;

/// The module's name, in SPDK's words.
const MODULE: &str = "keyring_file";
const ADD: &str = "keyring_file_add_key";
/// A key file that is longer holds something else.
const FILE_BYTES_MAX: u64 = 4096;
/// Permissions that a key file may not give: anything for its group and others.
const OTHERS: u32 = 0o077;

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

/// Opens a key file that nobody else can read.
fn open(name: &str, path: &Path) -> Result<File, RpcError> {
    let about = format!("key {name}, file {}", path.display());
    let failed = |error: std::io::Error| {
        RpcError::errno(
            error.raw_os_error().unwrap_or(libc::EIO),
            format!("{about}: {error}; a key file is one that this program can read"),
        )
    };
    let file = File::open(path).map_err(failed)?;
    // Of what was opened: the name may be another file's by now.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        let why =
            format!("{about}: it is no file of at most {FILE_BYTES_MAX} bytes; name the file with the key");
        return Err(RpcError::errno(libc::EINVAL, why));
    }
    if metadata.mode() & OTHERS != 0 {
        let mode = metadata.mode() & 0o7777;
        let why = format!("{about}: its mode is {mode:04o}, so that others can use it; chmod 0600 it");
        return Err(RpcError::errno(libc::EPERM, why));
    }
    Ok(file)
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
    open(&name, &path)?;
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
        let mut users = Vec::new();
        for subsystem in self.0.target.subsystems() {
            let hosts = subsystem.credentialed_hosts().into_iter();
            let hosts = hosts.filter(|(_, credentials)| uses(credentials));
            users.extend(hosts.map(|(host, _)| format!("host {host} of subsystem {}", subsystem.nqn())));
        }
        for (name, attached) in self.0.attached.borrow().iter() {
            if attached.credentials().as_ref().is_some_and(uses) {
                users.push(format!("controller {name}"));
            }
        }
        users
    }

    fn secret(&self, name: &str) -> Result<Secret, RpcError> {
        let path = self.0.keyring.borrow().get(name).cloned();
        let path = path.ok_or_else(|| no_key(name))?;
        let file = open(name, &path)?;
        // Room for all of it from the start, so that growing leaves no copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(2 * FILE_BYTES_MAX as usize));
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut text);
        let about = format!("key {name}, file {}", path.display());
        read.map_err(|error| {
            RpcError::errno(
                error.raw_os_error().unwrap_or(libc::EIO),
                format!("{about}: {error}; a key file is one that this program can read"),
            )
        })?;
        Secret::parse(&text).map_err(|error| {
            RpcError::errno(
                libc::EINVAL,
                format!("{about}, is no DH-HMAC-CHAP secret: {error}"),
            )
        })
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
pub(super) fn add_names(params: &mut Value, credentials: Option<&Credentials>) {
    let Some(credentials) = credentials else { return };
    params["dhchap_key"] = json!(credentials.key_name);
    if let Some(name) = &credentials.controller_key_name {
        params["dhchap_ctrlr_key"] = json!(name);
    }
}
