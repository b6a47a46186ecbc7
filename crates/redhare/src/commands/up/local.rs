//! The cluster that runs on this machine, as other commands find it.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use identity::Files;
use master::Masters;

use crate::output::Failure;

/// Where a running `redhare up` leaves its masters' addresses for other commands.
fn file() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    base.unwrap_or_else(std::env::temp_dir)
        .join("redhare/local-cluster")
}

/// The masters of the cluster that `redhare up` runs on this machine, if one does.
pub(crate) fn local_cluster() -> Option<Masters> {
    let text = std::fs::read_to_string(file()).ok()?;
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
    let path = file();
    let text = match credentials {
        None => master.to_string(),
        Some(directory) => format!("{master}\n{}", directory.display()),
    };
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    written
        .and_then(|()| std::fs::write(&path, text))
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
    let path = file();
    if std::fs::read_to_string(&path).is_ok_and(|text| text.lines().next() == Some(&master.to_string())) {
        drop(std::fs::remove_file(path));
    }
}
