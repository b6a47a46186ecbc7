//! The state as calls that make it again, by subsystem: what SPDK's client saves and loads, and what is loaded at the
//! start.

use std::path::{Path, PathBuf};

use bdev::managed::Devices;
use fabrics::managed::Management;
use rpc::{Method, NoParameters, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The parts of the state, each after what it stands on.
const SUBSYSTEMS: [(&str, &[&str]); 3] = [("keyring", &[]), ("bdev", &["keyring"]), ("nvmf", &["bdev"])];

/// Why a saved configuration was not brought back.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the saved configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{path} is no saved configuration: {source}; save one with spdk-rpc save_config")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A call failed.
    #[error("{path}, call {number} of subsystem {subsystem}, {method}: {error}; mend or remove that call")]
    Call {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        subsystem: String,
        /// Which call of the subsystem, from 1.
        number: usize,
        /// The method.
        method: String,
        /// Its error.
        error: RpcError,
    },
}

#[derive(Deserialize)]
struct Saved {
    subsystems: Vec<SavedSubsystem>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSubsystem {
    subsystem: String,
    /// SPDK writes null for a subsystem without a configuration.
    config: Option<Vec<Entry>>,
}

/// A call, or several that were made together.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    One(Loaded),
    Several(Vec<Loaded>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loaded {
    method: String,
    #[serde(default)]
    params: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetConfig {
    name: String,
    /// No call of ours is saved with others.
    #[serde(default, rename = "with_batches")]
    _with_batches: bool,
}

pub(super) fn add(registry: &mut Registry, devices: &Devices, fabrics: &Management) {
    registry.add(Method::new(&["framework_get_subsystems"], |_: NoParameters| {
        let shown: Vec<Value> = SUBSYSTEMS
            .iter()
            .map(|(name, depends_on)| json!({ "subsystem": name, "depends_on": depends_on }))
            .collect();
        std::future::ready(Ok(shown))
    }));
    let (devices, fabrics) = (devices.clone(), fabrics.clone());
    registry.add(Method::new(&["framework_get_config"], move |given: GetConfig| {
        std::future::ready(saved(&devices, &fabrics, &given.name))
    }));
}

fn saved(devices: &Devices, fabrics: &Management, name: &str) -> Result<Vec<SavedCall>, RpcError> {
    match name {
        "keyring" => Ok(fabrics.saved_keys()),
        "bdev" => {
            let mut calls: Vec<_> = fabrics.saved_initiator_options().into_iter().collect();
            calls.extend(devices.saved());
            calls.extend(fabrics.saved_paths());
            Ok(calls)
        }
        "nvmf" => Ok(fabrics.saved()),
        _ => Err(RpcError::invalid_params(format!(
            "there is no subsystem {name}; framework_get_subsystems lists them"
        ))),
    }
}

pub(super) async fn load(registry: &Registry, path: &Path) -> Result<(), LoadError> {
    let bytes = std::fs::read(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    let saved: Saved = serde_json::from_slice(&bytes).map_err(|source| LoadError::Format {
        path: path.to_owned(),
        source,
    })?;
    for part in saved.subsystems {
        let entries = part.config.unwrap_or_default().into_iter();
        let calls = entries.flat_map(|entry| match entry {
            Entry::One(call) => vec![call],
            Entry::Several(calls) => calls,
        });
        for (index, call) in calls.enumerate() {
            let outcome = registry.call(&call.method, Value::Object(call.params)).await;
            outcome.map_err(|error| LoadError::Call {
                path: path.to_owned(),
                subsystem: part.subsystem.clone(),
                number: index + 1,
                method: call.method,
                error,
            })?;
        }
    }
    Ok(())
}
