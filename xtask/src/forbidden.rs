//! Crates that a crate may not have in its graph, however deep.
//!
//! The floors keep our own crates apart; this keeps other people's runtimes and drivers out of the
//! crates that have to run in virtual time, on a reactor, or in a small process.

use std::collections::{BTreeMap, VecDeque};

use crate::metadata::Metadata;

struct Rule {
    /// Package name of ours; a rule for a crate that does not exist yet waits for it.
    package: &'static str,
    /// Each forbids the package of that name and those whose name continues it with a hyphen.
    without: &'static [&'static str],
    reason: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        package: "redhare-target",
        without: &["tokio", "tonic", "etcd"],
        reason: "the data plane runs on the reactor alone; what needs gRPC lives in another process",
    },
    Rule {
        package: "redhare-control",
        without: &["tonic", "etcd", "redhare-reactor"],
        reason: "the control core is pure; faces and stores are in redhare-master",
    },
    Rule {
        package: "redhare-packfs",
        without: &["tonic", "fuser", "pyo3"],
        reason: "it takes a BlockDevice and a LeaseSource; the faces stand above it",
    },
    Rule {
        package: "redhare-volume",
        without: &["tonic", "tokio"],
        reason: "its core runs in virtual time and its faces on the reactor",
    },
    Rule {
        package: "redhare-client",
        without: &["fuser", "pyo3"],
        reason: "FUSE and Python stand above the cluster session",
    },
];

/// Every violation, as text for a person, with the chain that leads to the forbidden package.
pub(crate) fn violations(metadata: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    for rule in RULES {
        let Some(start) = metadata.own_id(rule.package) else {
            continue;
        };
        if let Some(chain) = chain_to_forbidden(metadata, start, rule.without) {
            let forbidden = chain.last().expect("a chain has both its ends");
            found.push(format!(
                "{package} may not have {forbidden} in its graph ({reason}), but has: {chain}; drop or replace the \
                 dependency that brings it, or turn off the feature that does",
                package = rule.package,
                reason = rule.reason,
                chain = chain.join(" -> "),
            ));
        }
    }
    found
}

fn is_forbidden(name: &str, without: &[&str]) -> bool {
    without.iter().any(|word| {
        name.strip_prefix(word)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

/// The shortest chain of package names from `start` to a forbidden one.
fn chain_to_forbidden(metadata: &Metadata, start: &str, without: &[&str]) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, Option<&str>> = BTreeMap::from([(start, None)]);
    let mut queue = VecDeque::from([start]);
    while let Some(id) = queue.pop_front() {
        let Some(package) = metadata.packages.get(id) else {
            continue;
        };
        if id != start && is_forbidden(&package.name, without) {
            let mut chain = Vec::new();
            let mut at = Some(id);
            while let Some(id) = at {
                chain.push(metadata.packages[id].name.clone());
                at = came_from[id];
            }
            chain.reverse();
            return Some(chain);
        }
        for next in &package.resolved {
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, Some(id));
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    /// A graph from (name, names of dependencies); the first is the workspace's own.
    fn graph(edges: &[(&str, &[&str])]) -> Metadata {
        let mut metadata = Metadata::default();
        for (name, to) in edges {
            let resolved = to.iter().map(|name| (*name).to_owned()).collect();
            let package = Package {
                name: (*name).to_owned(),
                resolved,
                ..Package::default()
            };
            metadata.packages.insert((*name).to_owned(), package);
        }
        metadata.members.insert(edges[0].0.to_owned());
        metadata
    }

    #[test]
    fn a_forbidden_package_is_found_at_any_depth_and_the_chain_is_named() {
        let metadata = graph(&[
            ("redhare-target", &["innocent"]),
            ("innocent", &["helper", "redhare-target"]),
            ("helper", &["tokio"]),
            ("tokio", &[]),
        ]);
        let found = violations(&metadata);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("redhare-target may not have tokio in its graph"));
        assert!(
            found[0].contains("redhare-target -> innocent -> helper -> tokio;"),
            "{}",
            found[0]
        );
    }

    #[test]
    fn names_match_whole_or_up_to_a_hyphen() {
        assert!(is_forbidden("etcd-client", &["etcd"]));
        assert!(is_forbidden("tokio", &["tokio"]));
        assert!(!is_forbidden("tokiox", &["tokio"]));
        assert!(!is_forbidden("my-tokio", &["tokio"]));
    }

    #[test]
    fn another_crate_may_have_it() {
        assert!(violations(&graph(&[("redhare-master", &["tonic"]), ("tonic", &[])])).is_empty());
        assert!(violations(&graph(&[("redhare-target", &["libc"]), ("libc", &[])])).is_empty());
    }
}
