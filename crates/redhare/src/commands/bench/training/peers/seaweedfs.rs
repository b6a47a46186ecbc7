//! SeaweedFS of one server (master, volume server and filer in one process), which is one copy, in the same file system; its mount
//! with the caches that it has by default.
//!
//! The program is `weed`, or what `REDHARE_WEED` names; `scripts/seaweedfs/build` builds it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Peer, Running, free_port, listens, until};
use crate::output::Failure;

const NAME: &str = "SeaweedFS";
/// Names the program where it is not in the search path.
const PROGRAM_VARIABLE: &str = "REDHARE_WEED";
const HOW: &str = "run scripts/seaweedfs/build, and set REDHARE_WEED=target/seaweedfs/weed";

fn program() -> PathBuf {
    std::env::var_os(PROGRAM_VARIABLE).map_or_else(|| PathBuf::from("weed"), PathBuf::from)
}

/// Starts it and mounts it, with all of it below `scratch`. Blocks until it is there.
pub(super) fn start(scratch: &Path) -> Result<Peer, Failure> {
    let found = Command::new(program()).arg("version").output();
    found.map_err(|error| Failure::new(format!("{}: {error}; {HOW}", program().display())))?;
    let place = scratch.join("seaweedfs");
    let directory = place.join("mount");
    for path in [&directory, &place.join("data"), &place.join("cache")] {
        std::fs::create_dir_all(path).map_err(Failure::new)?;
    }
    let mut ports = Vec::new();
    let mut server = Command::new(program());
    server.arg("-logdir").arg(&place).args(["server", "-filer"]);
    server.arg("-dir").arg(place.join("data"));
    server.args(["-ip", "127.0.0.1", "-ip.bind", "127.0.0.1"]);
    for part in ["master", "volume", "filer"] {
        for kind in ["port", "port.grpc"] {
            let port = free_port()?;
            server.arg(format!("-{part}.{kind}={port}"));
            ports.push(port);
        }
    }
    // Its volumes are files of up to so much, and it wants to know how many at most.
    server.args([
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=64",
        "-master.telemetry=false",
    ]);
    let mut peer = Peer::new(NAME, "one server", directory);
    peer.add(Running::start(
        &mut server,
        "nothing: see scripts/seaweedfs/build",
    )?);
    until(NAME, "its server listens", || {
        ports.iter().all(|&port| listens(Ipv4Addr::LOCALHOST, port))
    })?;
    let mut mount = Command::new(program());
    mount.arg("-logdir").arg(&place).arg("mount");
    mount.arg(format!("-filer=127.0.0.1:{}.{}", ports[4], ports[5]));
    mount.arg("-dir").arg(&peer.directory);
    mount.arg("-cacheDir").arg(place.join("cache"));
    let mount = Running::start(&mut mount, "nothing: see scripts/seaweedfs/build")?;
    peer.mount(mount, "fuse.seaweedfs")?;
    Ok(peer)
}
