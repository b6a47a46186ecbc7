//! The cluster that runs on this machine, as other commands find it.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use identity::Files;
use master::Masters;

use crate::output::Failure;

/// Where a running `redhare up` leaves its masters' addresses for other commands; nowhere if there is no directory that
/// only this user, or root, may write. Another's could name a cluster of his own.
fn file() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_root = rustix::process::geteuid().is_root();
    let base = base(variable("XDG_STATE_HOME"), variable("HOME"), is_root);
    base.map(|base| base.join("redhare/local-cluster"))
}

fn base(state: Option<OsString>, home: Option<OsString>, is_root: bool) -> Option<PathBuf> {
    let home = home.map(|home| PathBuf::from(home).join(".local/state"));
    let run = is_root.then(|| PathBuf::from("/run"));
    state.map(PathBuf::from).or(home).or(run)
}

/// The masters of the cluster that `redhare up` runs on this machine, if one does.
pub(crate) fn local_cluster() -> Option<Masters> {
    let text = std::fs::read_to_string(file()?).ok()?;
    // The address, and in a second line where the credentials for it are, if it wants any.
    let (address, credentials) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    let address: SocketAddr = address.trim().parse().ok()?;
    TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    Some(Masters {
        addresses: address.to_string(),
        credentials: (!credentials.is_empty()).then(|| Files::in_directory(credentials.as_ref())),
    })
}

/// Lets other commands find the cluster.
pub(super) fn publish(master: SocketAddr, credentials: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = file() else {
        tracing::warn!(
            "other commands do not find this cluster by themselves, since neither XDG_STATE_HOME nor HOME is set; set one for both, or \
             give them --cluster {master}"
        );
        return Ok(());
    };
    let text = match credentials {
        None => master.to_string(),
        Some(directory) => format!("{master}\n{}", directory.display()),
    };
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    written
        .and_then(|()| crate::commands::beside::replace(&path, text.as_bytes(), 0o644))
        .map_err(|error| {
            Failure::new(format!(
                "cannot write {}, by which other commands find the cluster: {error}; set XDG_STATE_HOME to a directory \
                 that can be written",
                path.display()
            ))
        })
}

/// Takes the address away again, unless another cluster's is there.
pub(super) fn retract(master: SocketAddr) {
    let Some(path) = file() else { return };
    if std::fs::read_to_string(&path).is_ok_and(|text| text.lines().next() == Some(&master.to_string())) {
        drop(std::fs::remove_file(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_directory_that_others_may_write_names_the_cluster() {
        let given = |text: &str| Some(OsString::from(text));
        for (state, home, is_root, expected) in [
            (given("/state"), given("/home/a"), false, Some("/state")),
            (None, given("/home/a"), true, Some("/home/a/.local/state")),
            (None, None, true, Some("/run")),
            (None, None, false, None),
        ] {
            assert_eq!(base(state, home, is_root), expected.map(PathBuf::from));
        }
    }
}
