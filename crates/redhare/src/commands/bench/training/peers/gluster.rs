//! GlusterFS of one brick, which is one copy, in the same file system; server and client as `glusterd` sets them up by default, but
//! without it: their volume files are written here, so nothing of the machine's is touched.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use super::{Peer, Running, free_port, listens, until};
use crate::output::Failure;

const NAME: &str = "GlusterFS";
const SERVER: &str = "glusterfsd";
const CLIENT: &str = "glusterfs";
const PACKAGE: &str = "glusterfs-server";

/// Starts it and mounts it, with all of it below `scratch`. Blocks until it is there.
pub(super) fn start(scratch: &Path) -> Result<Peer, Failure> {
    let place = scratch.join("gluster");
    let (brick, directory) = (place.join("brick"), place.join("mount"));
    for path in [&brick, &directory] {
        std::fs::create_dir_all(path).map_err(Failure::new)?;
    }
    let port = free_port()?;
    let (server, client) = (place.join("server.vol"), place.join("client.vol"));
    std::fs::write(&server, server_volume(&brick, port)).map_err(Failure::new)?;
    std::fs::write(&client, client_volume(port)).map_err(Failure::new)?;
    let command = |program: &str, volume: &Path| {
        let mut command = Command::new(program);
        command
            .arg("--no-daemon")
            .arg("--volfile")
            .arg(volume)
            .arg("--log-file")
            .arg(volume.with_extension("log"))
            .arg("--pid-file")
            .arg(volume.with_extension("pid"));
        command
    };
    let mut peer = Peer::new(NAME, "one brick", directory);
    peer.add(Running::start(&mut command(SERVER, &server), PACKAGE)?);
    until(NAME, "its server listens", || listens(Ipv4Addr::LOCALHOST, port))?;
    let mut mount = command(CLIENT, &client);
    mount.arg(&peer.directory);
    peer.mount(Running::start(&mut mount, PACKAGE)?, "fuse.glusterfs")?;
    Ok(peer)
}

/// A translator: its name, its type, and its options.
type Translator<'a> = (&'a str, &'a str, &'a [(&'a str, String)]);

/// A volume file of translators, each on top of the one before.
fn volume_file(layers: &[Translator<'_>]) -> String {
    let mut text = String::new();
    let mut below = None;
    for (name, kind, options) in layers {
        text.push_str(&format!("volume {name}\n  type {kind}\n"));
        for (option, value) in *options {
            text.push_str(&format!("  option {option} {value}\n"));
        }
        if let Some(below) = below.replace(name) {
            text.push_str(&format!("  subvolumes {below}\n"));
        }
        text.push_str("end-volume\n\n");
    }
    text
}

fn server_volume(brick: &Path, port: u16) -> String {
    let shown = brick.display().to_string();
    let listen = [
        ("transport-type", "tcp".to_owned()),
        ("transport.socket.listen-port", port.to_string()),
        ("transport.socket.bind-address", Ipv4Addr::LOCALHOST.to_string()),
        ("transport.address-family", "inet".to_owned()),
        ("auth.addr.brick.allow", "*".to_owned()),
    ];
    volume_file(&[
        ("posix", "storage/posix", &[("directory", shown)]),
        ("locks", "features/locks", &[]),
        ("upcall", "features/upcall", &[]),
        (
            "brick",
            "performance/io-threads",
            &[("thread-count", "16".to_owned())],
        ),
        ("server", "protocol/server", &listen),
    ])
}

fn client_volume(port: u16) -> String {
    let connect = [
        ("transport-type", "tcp".to_owned()),
        ("remote-host", Ipv4Addr::LOCALHOST.to_string()),
        ("remote-port", port.to_string()),
        ("remote-subvolume", "brick".to_owned()),
        ("transport.address-family", "inet".to_owned()),
    ];
    volume_file(&[
        ("client", "protocol/client", &connect),
        ("write-behind", "performance/write-behind", &[]),
        ("open-behind", "performance/open-behind", &[]),
        ("quick-read", "performance/quick-read", &[]),
        ("md-cache", "performance/md-cache", &[]),
        ("io-threads", "performance/io-threads", &[]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_translator_stands_on_the_one_before() {
        let text = server_volume(Path::new("/b"), 4711);
        assert!(
            text.starts_with("volume posix\n  type storage/posix\n  option directory /b\nend-volume\n"),
            "{text}"
        );
        assert!(
            text.contains("option transport.socket.listen-port 4711\n"),
            "{text}"
        );
        assert!(text.ends_with("  subvolumes brick\nend-volume\n\n"), "{text}");
        let text = client_volume(4711);
        assert!(
            text.contains("option remote-port 4711\n  option remote-subvolume brick\n"),
            "{text}"
        );
        assert_eq!(text.matches("subvolumes").count(), 5);
    }
}
