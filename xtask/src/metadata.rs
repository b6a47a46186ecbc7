//! What `cargo metadata` says, reduced to what the checks ask.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// One package of the dependency graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    /// `package.metadata.redhare.floor`.
    pub(crate) floor: Option<u64>,
    /// Names of the packages it declares under `[dependencies]` and `[build-dependencies]`, the
    /// optional ones and those of other platforms included.
    pub(crate) declared: BTreeSet<String>,
    /// Of those, the ones that are not optional.
    pub(crate) required: BTreeSet<String>,
    /// Identifiers of the packages that are resolved for it, dev-dependencies excepted.
    pub(crate) resolved: BTreeSet<String>,
}

/// The packages of a workspace and everything below them.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// By cargo's package identifier.
    pub(crate) packages: BTreeMap<String, Package>,
    /// Identifiers of the workspace's own packages.
    pub(crate) members: BTreeSet<String>,
    /// Where cargo builds to.
    pub(crate) target_directory: String,
}

impl Metadata {
    /// Asks cargo. Blocks; may fetch the registry's index on a fresh machine.
    pub(crate) fn load() -> Result<Self, String> {
        let text =
            crate::process::output(&mut crate::process::cargo(&["metadata", "--format-version", "1"]))?;
        Self::parse(&text)
    }

    /// Reads the JSON of `cargo metadata --format-version 1`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| format!("cargo metadata: {error}"))?;
        let target_directory = json["target_directory"].as_str().unwrap_or("target").to_owned();
        let mut metadata = Self {
            target_directory,
            ..Self::default()
        };
        for value in list(&json, "packages")? {
            metadata.packages.insert(string(value, "id")?, package(value)?);
        }
        for value in list(&json, "workspace_members")? {
            let id = value
                .as_str()
                .ok_or("cargo metadata: a workspace member is not a string")?;
            metadata.members.insert(id.to_owned());
        }
        for node in list(&json["resolve"], "nodes")? {
            let resolved = resolved(node)?;
            if let Some(package) = metadata.packages.get_mut(&string(node, "id")?) {
                package.resolved = resolved;
            }
        }
        Ok(metadata)
    }

    /// The workspace's own packages.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Package> {
        self.members.iter().filter_map(|id| self.packages.get(id))
    }

    /// The packages that are not the workspace's own.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|(id, _)| !self.members.contains(*id))
            .map(|(_, package)| package)
    }

    /// Identifier of the workspace's package of that name.
    pub(crate) fn own_id(&self, name: &str) -> Option<&str> {
        let is_named = |id: &&String| self.packages.get(*id).is_some_and(|package| package.name == name);
        self.members.iter().find(is_named).map(String::as_str)
    }
}

fn package(value: &Value) -> Result<Package, String> {
    let (mut declared, mut required) = (BTreeSet::new(), BTreeSet::new());
    for dependency in list(value, "dependencies")? {
        if dependency["kind"].as_str() != Some("dev") {
            declared.insert(string(dependency, "name")?);
            if dependency["optional"].as_bool() != Some(true) {
                required.insert(string(dependency, "name")?);
            }
        }
    }
    Ok(Package {
        name: string(value, "name")?,
        version: string(value, "version")?,
        licence: value["license"].as_str().map(str::to_owned),
        floor: value["metadata"]["redhare"]["floor"].as_u64(),
        declared,
        required,
        resolved: BTreeSet::new(),
    })
}

fn resolved(node: &Value) -> Result<BTreeSet<String>, String> {
    let mut ids = BTreeSet::new();
    for dependency in list(node, "deps")? {
        let kinds = list(dependency, "dep_kinds")?;
        if kinds.iter().any(|kind| kind["kind"].as_str() != Some("dev")) {
            ids.insert(string(dependency, "pkg")?);
        }
    }
    Ok(ids)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key]
        .as_array()
        .ok_or_else(|| format!("cargo metadata: no list '{key}'"))
}

fn string(value: &Value, key: &str) -> Result<String, String> {
    value[key]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("cargo metadata: no text '{key}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_dependencies_are_left_out_and_all_others_kept() {
        let text = r#"{
            "packages": [
                {"id": "a 1", "name": "a", "version": "1.0.0", "license": "MIT",
                 "metadata": {"redhare": {"floor": 3}},
                 "dependencies": [
                    {"name": "b", "kind": null}, {"name": "c", "kind": "dev"}, {"name": "d", "kind": "build"}]},
                {"id": "b 1", "name": "b", "version": "1.0.0", "license": null, "metadata": null, "dependencies": []}
            ],
            "workspace_members": ["a 1"],
            "resolve": {"nodes": [{"id": "a 1", "deps": [
                {"pkg": "b 1", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                {"pkg": "c 1", "dep_kinds": [{"kind": "dev"}]}]}]}
        }"#;
        let metadata = Metadata::parse(text).unwrap();
        let a = metadata.own().next().unwrap();
        assert_eq!((a.name.as_str(), a.floor), ("a", Some(3)));
        assert_eq!(a.declared, BTreeSet::from(["b".to_owned(), "d".to_owned()]));
        assert_eq!(a.resolved, BTreeSet::from(["b 1".to_owned()]));
        assert_eq!(metadata.own_id("a"), Some("a 1"));
        assert_eq!(metadata.own_id("b"), None);
        assert_eq!(
            metadata
                .foreign()
                .map(|package| package.name.as_str())
                .collect::<Vec<_>>(),
            ["b"]
        );
    }

    #[test]
    fn json_of_another_form_is_an_error_that_names_what_is_missing() {
        assert!(Metadata::parse("{}").unwrap_err().contains("'packages'"));
        assert!(Metadata::parse("[").is_err());
    }
}
