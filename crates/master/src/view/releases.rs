//! Which releases run, while that is more than one: during an upgrade, or after one that was left half done.

use std::collections::BTreeMap;

use super::StatusView;

/// More processes of a release are counted, not named.
const NAMED: usize = 3;

/// What an answer says of a release.
pub(super) fn told(release: &str) -> Option<String> {
    foundation::release(release).map(str::to_owned)
}

/// The processes that live by their releases, if there is more than one; of one that does not say its release that counts as another.
pub(super) fn note(view: &StatusView) -> Option<String> {
    let mut by_release: BTreeMap<Option<&str>, [Vec<String>; 3]> = BTreeMap::new();
    let mut add = |release, kind: usize, name| {
        by_release.entry(release).or_default()[kind].push(name);
    };
    for master in &view.masters {
        add(master.release.as_deref(), 0, master.address.clone());
    }
    for node in view.nodes.iter().filter(|node| node.alive && node.tells_release) {
        add(
            node.engine_release.as_deref(),
            1,
            super::short(&node.node).to_owned(),
        );
        add(
            node.target_release.as_deref(),
            2,
            super::short(&node.node).to_owned(),
        );
    }
    if by_release.len() < 2 {
        return None;
    }
    let describe = |(release, processes): (&Option<&str>, &[Vec<String>; 3])| {
        let kinds = ["master", "engine", "target"].into_iter().zip(processes);
        let kinds = kinds.filter(|(_, names)| !names.is_empty());
        let kinds: Vec<String> = kinds.map(|(kind, names)| count(kind, names)).collect();
        format!(
            "{} by {}",
            release.unwrap_or("one that is not told"),
            kinds.join(", ")
        )
    };
    let releases: Vec<String> = by_release.iter().rev().map(describe).collect();
    Some(format!("several releases run: {}", releases.join("; ")))
}

fn count(kind: &str, names: &[String]) -> String {
    let few = match names.len() {
        0..=NAMED => format!(" ({})", names.join(", ")),
        _ => String::new(),
    };
    match names.len() {
        1 => format!("1 {kind}{few}"),
        count => format!("{count} {kind}s{few}"),
    }
}
