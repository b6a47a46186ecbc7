//! A volume of which no write is acknowledged before it is durable, by command on real processes: the nodes say that they do so before the
//! command returns, and hosts of its portals find no write cache. That such writes survive a cut of all power is shown where power can be cut
//! (`crates/target/tests/cluster/sync_writes.rs`).

use std::net::SocketAddr;

use crate::support::{Cluster, Place, free_ports, kill, wait_until};
use bdev::{BlockDevice, ChannelExt};
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use foundation::Lba;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// Whether a host that connects now finds a write cache, and whether it reads what was written before and writes another byte; none if
/// it cannot connect.
fn visit(address: SocketAddr, nqn: &str, before: u8, byte: u8) -> Option<bool> {
    let connect = ConnectOptions::new(address, nqn.parse().unwrap(), HOST.parse().unwrap(), [9; 16]);
    let options = RemoteOptions::new(connect, 1);
    let visit = async move {
        let device = RemoteDevice::connect(options).await.ok()?;
        let channel = device.open_channel().ok()?;
        let room = reactor::BufferPool::current().try_allocate(8192).unwrap();
        let (status, found) = channel.read(Lba(5), room).await;
        status.unwrap();
        assert!(
            found.iter().all(|found| *found == before),
            "{} and not {before}",
            found[0]
        );
        let mut written = reactor::BufferPool::current().try_allocate(8192).unwrap();
        written.fill(byte);
        channel.write(Lba(5), written.freeze()).await.unwrap();
        Some(device.geometry().write_cache)
    };
    reactor::run(&reactor::Config::default(), visit).unwrap()
}

#[test]
fn sync_writes_are_switched_while_a_volume_is_exported() {
    let place = Place::new("sync-writes");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "disk", "--size", "256MiB"]);
    let shown = cluster.json(&["volume", "show", "disk"]);
    assert_eq!(shown["sync_writes"], false);
    let said = cluster.json(&["volume", "export", "disk"]);
    let portals = said["portals"].as_array().unwrap();
    let address = portals[0]["address"].as_str().unwrap().parse().unwrap();
    let nqn = said["nqn"].as_str().unwrap();
    let mut byte = 0;
    let mut find = |what: &str, has_cache: bool| {
        wait_until(what, || {
            let Some(found) = visit(address, nqn, byte, byte + 1) else {
                return false;
            };
            byte += 1;
            found == has_cache
        });
    };
    find("a host finds a write cache", true);

    let said = cluster.json(&["volume", "set", "disk", "--sync-writes", "on"]);
    assert_eq!(said["sync_writes"], true);
    let shown = cluster.json(&["volume", "show", "disk"]);
    assert_eq!(
        (&shown["sync_writes"], shown.get("not_yet_sync_nodes")),
        (&true.into(), None)
    );
    cluster.wait(&["volume", "show", "disk"], |said| {
        said.contains("sync writes: none is acknowledged before it is durable on every copy in sync\n")
    });
    find("a host finds no write cache", false);
    // Another life of a target hears it before it writes anything.
    let life = cluster.incarnation(1);
    kill(&cluster.target_lock(1));
    cluster.wait_for_life_after(1, life);
    cluster.wait(&["volume", "show", "disk", "--json"], |said| {
        !said.contains("not_yet_sync_nodes")
    });
    find("a host finds no write cache", false);

    cluster.succeed(&["volume", "set", "disk", "--sync-writes", "off"]);
    find("a host finds a write cache", true);

    cluster.succeed(&["volume", "create", "durable", "--size", "256MiB", "--sync-writes"]);
    let shown = cluster.json(&["volume", "show", "durable"]);
    assert_eq!(
        (&shown["sync_writes"], shown.get("not_yet_sync_nodes")),
        (&true.into(), None)
    );
    // A native client writes and reads it.
    cluster.succeed(&["fs", "format", "durable"]);
    cluster.succeed(&["fs", "verify", "durable"]);
    for (arguments, missing) in [
        (&["volume", "set", "disk"][..], "--write-node"),
        (
            &[
                "volume",
                "set",
                "disk",
                "--sync-writes",
                "on",
                "--write-node",
                "any",
            ][..],
            "cannot be used with",
        ),
    ] {
        let output = cluster.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(missing), "{said}");
    }
    cluster.end();
}
