//! Which releases a node's processes are, from the wire and to it.

use control::Releases;
use proto::v1;

/// What is no name of a release counts as nothing.
pub(crate) fn of(releases: &v1::Releases) -> Releases {
    let release = |told: &str| foundation::release(told).map(str::to_owned);
    Releases {
        engine: release(&releases.engine),
        target: release(&releases.target),
    }
}

/// As callers hear it.
pub(crate) fn to_wire(releases: &Releases) -> v1::Releases {
    let text = |release: &Option<String>| release.clone().unwrap_or_default();
    v1::Releases {
        engine: text(&releases.engine),
        target: text(&releases.target),
    }
}
