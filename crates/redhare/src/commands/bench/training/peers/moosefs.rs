//! MooseFS with one chunk server, which is one copy, in the same file system; all else as it is by default.
//!
//! Its chunk server takes no master at a loopback address, so the loopback device has another one meanwhile.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use bench::process::run_timed;

use super::{Peer, Running, free_port, listens, until};
use crate::output::Failure;

const NAME: &str = "MooseFS";
const PACKAGES: &str = "moosefs-master moosefs-chunkserver moosefs-client";
/// What the kernel's list of mounts says of it: a number sign is escaped there.
const MOUNTED_AS: &str = r"mfs\043";
/// One that is nobody's (RFC 5737).
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// An address that the loopback device has until this is dropped.
pub(super) struct Address(Ipv4Addr);

impl Address {
    fn add(address: Ipv4Addr) -> Result<Self, Failure> {
        run_timed(&mut Self::command("add", address)).map_err(Failure::new)?;
        Ok(Self(address))
    }

    fn command(what: &str, address: Ipv4Addr) -> Command {
        let mut command = Command::new("ip");
        command.args(["address", what, &format!("{address}/32"), "dev", "lo"]);
        command
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        if let Err(error) = run_timed(&mut Self::command("del", self.0)) {
            tracing::warn!(%error, "the loopback device keeps the address {}", self.0);
        }
    }
}

/// Where its parts listen.
struct Ports {
    /// For tools, chunk servers and mounts.
    master: [u16; 3],
    chunk_server: u16,
}

/// Starts it and mounts it, with all of it below `scratch`. Blocks until it is there.
pub(super) fn start(scratch: &Path) -> Result<Peer, Failure> {
    let place = scratch.join("moosefs");
    let directory = place.join("mount");
    for path in [
        &directory,
        &place.join("master"),
        &place.join("server"),
        &place.join("chunks"),
    ] {
        std::fs::create_dir_all(path).map_err(Failure::new)?;
    }
    let ports = Ports {
        master: [free_port()?, free_port()?, free_port()?],
        chunk_server: free_port()?,
    };
    let write = |name: &str, text: String| std::fs::write(place.join(name), text).map_err(Failure::new);
    write("exports.cfg", "* / rw,alldirs,admin,maproot=0:0\n".to_owned())?;
    write("disks.cfg", format!("{}\n", place.join("chunks").display()))?;
    write("master.cfg", master_settings(&place, &ports))?;
    write("server.cfg", chunk_server_settings(&place, &ports))?;
    // A store of metadata without any, as its package has one.
    write("master/metadata.mfs", "MFSM NEW".to_owned())?;
    let command = |program: &str, settings: &str| {
        let mut command = Command::new(program);
        command.arg("-f").arg("-c").arg(place.join(settings)).arg("start");
        command
    };
    let mut peer = Peer::new(NAME, "one chunk server", directory);
    peer.address = Some(Address::add(ADDRESS)?);
    peer.add(Running::start(&mut command("mfsmaster", "master.cfg"), PACKAGES)?);
    until(NAME, "its master listens", || {
        ports.master.iter().all(|&port| listens(ADDRESS, port))
    })?;
    peer.add(Running::start(
        &mut command("mfschunkserver", "server.cfg"),
        PACKAGES,
    )?);
    until(NAME, "its chunk server listens", || {
        listens(ADDRESS, ports.chunk_server)
    })?;
    let mut mount = Command::new("mfsmount");
    mount
        .args([
            "-f",
            "-H",
            &ADDRESS.to_string(),
            "-P",
            &ports.master[2].to_string(),
        ])
        .arg(&peer.directory);
    peer.mount(Running::start(&mut mount, PACKAGES)?, MOUNTED_AS)?;
    // Else it looks for another chunk server for second copies.
    let mut goal = Command::new("mfssetgoal");
    run_timed(goal.arg("1").arg(&peer.directory)).map_err(Failure::new)?;
    Ok(peer)
}

/// A file of settings.
fn settings(lines: &[(&str, String)]) -> String {
    lines
        .iter()
        .map(|(name, value)| format!("{name} = {value}\n"))
        .collect()
}

fn master_settings(place: &Path, ports: &Ports) -> String {
    let [tools, servers, mounts] = ports.master.map(|port| port.to_string());
    let address = || ADDRESS.to_string();
    settings(&[
        ("WORKING_USER", "root".to_owned()),
        ("WORKING_GROUP", "root".to_owned()),
        ("DATA_PATH", place.join("master").display().to_string()),
        (
            "EXPORTS_FILENAME",
            place.join("exports.cfg").display().to_string(),
        ),
        ("MATOML_LISTEN_HOST", address()),
        ("MATOML_LISTEN_PORT", tools),
        ("MATOCS_LISTEN_HOST", address()),
        ("MATOCS_LISTEN_PORT", servers),
        ("MATOCL_LISTEN_HOST", address()),
        ("MATOCL_LISTEN_PORT", mounts),
    ])
}

fn chunk_server_settings(place: &Path, ports: &Ports) -> String {
    settings(&[
        ("WORKING_USER", "root".to_owned()),
        ("WORKING_GROUP", "root".to_owned()),
        ("DATA_PATH", place.join("server").display().to_string()),
        ("HDD_CONF_FILENAME", place.join("disks.cfg").display().to_string()),
        ("HDD_LEAVE_SPACE_DEFAULT", "256MiB".to_owned()),
        ("BIND_HOST", ADDRESS.to_string()),
        ("MASTER_HOST", ADDRESS.to_string()),
        ("MASTER_PORT", ports.master[1].to_string()),
        ("CSSERV_LISTEN_HOST", ADDRESS.to_string()),
        ("CSSERV_LISTEN_PORT", ports.chunk_server.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunk_server_is_told_where_its_master_listens() {
        let ports = Ports {
            master: [1, 2, 3],
            chunk_server: 4,
        };
        let (master, server) = (
            master_settings(Path::new("/m"), &ports),
            chunk_server_settings(Path::new("/m"), &ports),
        );
        assert!(master.contains("MATOCS_LISTEN_PORT = 2\n"), "{master}");
        assert!(master.contains("DATA_PATH = /m/master\n"), "{master}");
        assert!(
            server.contains("MASTER_HOST = 192.0.2.77\nMASTER_PORT = 2\n"),
            "{server}"
        );
        assert!(server.contains("HDD_CONF_FILENAME = /m/disks.cfg\n"), "{server}");
    }
}
