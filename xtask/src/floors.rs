//! The floor rule: a crate may depend only on crates of a strictly lower floor.
//!
//! A crate's floor is `floor` under `[package.metadata.redhare]` of its manifest. Dev-dependencies
//! are free, so that a test may stand where it likes.

use crate::metadata::Metadata;

/// Every violation, as text for a person.
pub(crate) fn violations(metadata: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    for package in metadata.own() {
        let name = &package.name;
        let Some(floor) = package.floor else {
            found.push(format!(
                "{name} has no floor; add `[package.metadata.redhare]` with `floor = N` to its Cargo.toml \
                 (the floors are in ARCHITECTURE.md)"
            ));
            continue;
        };
        for lower in metadata
            .own()
            .filter(|other| package.declared.contains(&other.name))
        {
            // One without a floor is reported on its own line.
            let Some(lower_floor) = lower.floor else { continue };
            if lower_floor >= floor {
                found.push(format!(
                    "{name} (floor {floor}) depends on {other} (floor {lower_floor}), but may only on floors below \
                     {floor}; move the shared part into a crate of a lower floor, or hand {other} in from above \
                     through a trait that {name} owns",
                    other = lower.name,
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of two crates: the upper one depends on the lower one with that kind.
    fn workspace(upper_floor: &str, lower_floor: &str, kind: &str) -> Metadata {
        let text = format!(
            r#"{{
            "packages": [
                {{"id": "u", "name": "redhare-upper", "version": "0.1.0", "license": "Apache-2.0",
                  "metadata": {upper_floor}, "dependencies": [{{"name": "redhare-lower", "kind": {kind}}}]}},
                {{"id": "l", "name": "redhare-lower", "version": "0.1.0", "license": "Apache-2.0",
                  "metadata": {lower_floor}, "dependencies": []}}
            ],
            "workspace_members": ["u", "l"],
            "resolve": {{"nodes": []}}
        }}"#
        );
        Metadata::parse(&text).unwrap()
    }

    fn floor(number: u32) -> String {
        format!(r#"{{"redhare": {{"floor": {number}}}}}"#)
    }

    #[test]
    fn a_lower_floor_is_allowed() {
        assert_eq!(
            violations(&workspace(&floor(2), &floor(1), "null")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_higher_floor_and_a_sibling_are_violations_that_name_all() {
        for number in [2, 3] {
            let found = violations(&workspace(&floor(2), &floor(number), "null"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!(
                "redhare-upper (floor 2) depends on redhare-lower (floor {number}), but may only on floors below 2; move"
            )));
        }
        assert_eq!(
            violations(&workspace(&floor(1), &floor(1), r#""build""#)).len(),
            1
        );
    }

    #[test]
    fn dev_dependencies_are_free() {
        assert!(violations(&workspace(&floor(1), &floor(5), r#""dev""#)).is_empty());
    }

    #[test]
    fn a_crate_without_a_floor_is_a_violation() {
        let found = violations(&workspace(&floor(1), "null", "null"));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("redhare-lower has no floor; add"));
    }
}
