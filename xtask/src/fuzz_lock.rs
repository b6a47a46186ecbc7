//! `fuzz/Cargo.lock` follows the workspace: `fuzz/` is a workspace of its own, so no build here would notice a
//! stale one, and `cargo xtask fuzz` refuses it (`--locked`) when somebody wants to fuzz.
//!
//! Compares what is written, without cargo and the registry: what of the workspace is in there has the dependencies that
//! its manifest declares, and everything has the version that the workspace tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::metadata::Metadata;

/// A package as a lock file has it.
#[derive(Debug, Default)]
struct Locked {
    name: String,
    version: String,
    /// From a registry, not a path.
    is_foreign: bool,
    /// Names, without versions.
    dependencies: BTreeSet<String>,
}

const REMEDY: &str = "run `cargo update --workspace --manifest-path fuzz/Cargo.toml`, and commit the file";

/// Every violation, as text for a person.
pub(crate) fn violations(root: &Path, metadata: &Metadata) -> Result<Vec<String>, String> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let (own, fuzz) = (
        packages(&read("Cargo.lock")?),
        packages(&read("fuzz/Cargo.lock")?),
    );
    Ok(stale(metadata, &own, &fuzz))
}

/// The packages of a lock file, whose form is cargo's own: one `[[package]]` after the other, a line for each key.
fn packages(lock: &str) -> Vec<Locked> {
    let mut all: Vec<Locked> = Vec::new();
    for line in lock.lines() {
        if line == "[[package]]" {
            all.push(Locked::default());
        }
        let Some(package) = all.last_mut() else { continue };
        let quoted = |key: &str| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"');
        if let Some(name) = quoted("name") {
            name.clone_into(&mut package.name);
        } else if let Some(version) = quoted("version") {
            version.clone_into(&mut package.version);
        } else if quoted("source").is_some() {
            package.is_foreign = true;
        } else if let Some(dependency) = line.strip_prefix(" \"") {
            let name = dependency.split([' ', '"']).next().unwrap_or_default();
            package.dependencies.insert(name.to_owned());
        }
    }
    all
}

fn stale(metadata: &Metadata, own: &[Locked], fuzz: &[Locked]) -> Vec<String> {
    let mut tested: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in own {
        tested.entry(&package.name).or_default().insert(&package.version);
    }
    let mut found = Vec::new();
    for package in fuzz {
        let Locked { name, version, .. } = package;
        if tested
            .get(name.as_str())
            .is_some_and(|versions| !versions.contains(version.as_str()))
        {
            found.push(format!(
                "fuzz/Cargo.lock has {name} {version}, and the workspace tests {}: run `cargo update --manifest-path \
                 fuzz/Cargo.toml {name} --precise VERSION`, and commit the file",
                tested[name.as_str()].iter().copied().collect::<Vec<_>>().join(" and ")
            ));
        }
        let Some(member) = metadata
            .own()
            .find(|member| member.name == *name)
            .filter(|_| !package.is_foreign)
        else {
            continue;
        };
        for missing in member.required.difference(&package.dependencies) {
            found.push(format!(
                "fuzz/Cargo.lock lacks {missing}, on which {name} depends: {REMEDY}"
            ));
        }
        for left in package.dependencies.difference(&member.declared) {
            found.push(format!(
                "fuzz/Cargo.lock has {left}, on which {name} does not depend any more: {REMEDY}"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        Metadata::parse(
            r#"{
            "packages": [{"id": "a", "name": "redhare-a", "version": "0.1.0", "dependencies": [
                {"name": "one", "kind": null}, {"name": "two", "kind": "build"}, {"name": "three", "kind": "dev"},
                {"name": "four", "kind": null, "optional": true}, {"name": "five", "kind": null, "target": "cfg(windows)"}]}],
            "workspace_members": ["a"],
            "resolve": {"nodes": []}
        }"#,
        )
        .unwrap()
    }

    fn lock(dependencies: &[&str], one: &str) -> Vec<Locked> {
        let list: String = dependencies
            .iter()
            .map(|name| format!(" \"{name}\",\n"))
            .collect();
        packages(&format!(
            "version = 4\n\n[[package]]\nname = \"one\"\nversion = \"{one}\"\nsource = \"registry+https://here\"\n\
             checksum = \"00\"\n\n[[package]]\nname = \"redhare-a\"\nversion = \"0.1.0\"\ndependencies = [\n{list}]\n"
        ))
    }

    #[test]
    fn a_lock_that_follows_passes() {
        let own = lock(&["one", "two 1.0.0", "three", "five"], "1.2.3");
        for also in [
            vec!["one", "two 1.0.0", "five"],
            vec!["one", "two", "five", "four"],
        ] {
            assert_eq!(
                stale(&metadata(), &own, &lock(&also, "1.2.3")),
                Vec::<String>::new()
            );
        }
    }

    #[test]
    fn what_is_missing_left_over_or_of_another_version_is_said() {
        let own = lock(&["one", "two", "five"], "1.2.3");
        let said = stale(&metadata(), &own, &lock(&["one", "five", "six"], "1.2.4"));
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].contains("has one 1.2.4, and the workspace tests 1.2.3"),
            "{}",
            said[0]
        );
        assert!(said[1].contains("lacks two, on which redhare-a depends") && said[1].contains(REMEDY));
        assert!(said[2].contains("has six, on which redhare-a does not depend"));
    }
}
