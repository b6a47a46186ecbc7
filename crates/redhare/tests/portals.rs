//! A volume that two nodes of `redhare up` export: a host with a path to each writes and reads while their targets are killed,
//! and every byte is what it wrote, by either portal and by the native client.

mod support;

use std::net::SocketAddr;

use bdev::{BlockDevice, ChannelExt, IoError};
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use foundation::Lba;
use support::load::{self, Load, Way};
use support::{Cluster, Place, free_ports, kill, wait_until};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// Where the portals are, and under which name.
fn export(cluster: &Cluster, arguments: &[&str]) -> (Vec<SocketAddr>, String) {
    let said = cluster.json(&[&["volume", "export"][..], arguments].concat());
    let portals = said["portals"].as_array().unwrap();
    let address = |portal: &serde_json::Value| portal["address"].as_str().unwrap().parse().unwrap();
    let addresses = portals.iter().map(address).collect();
    (addresses, said["nqn"].as_str().unwrap().to_owned())
}

/// The node whose target listens there.
fn node_at(cluster: &Cluster, address: SocketAddr) -> u32 {
    let is_it = |number: &u32| cluster.node(*number)["address"] == address.to_string();
    (1..=3).find(is_it).expect("a portal is a node")
}

fn options(address: SocketAddr, nqn: &str, host: &str) -> RemoteOptions {
    let connect = ConnectOptions::new(address, nqn.parse().unwrap(), host.parse().unwrap(), [9; 16]);
    RemoteOptions::new(connect, 1)
}

/// Whether a host of this name may connect.
fn connects(address: SocketAddr, nqn: &str, host: &str) -> bool {
    let options = options(address, nqn, host);
    reactor::run(&reactor::Config::default(), async {
        RemoteDevice::connect(options).await.is_ok()
    })
    .unwrap()
}

#[test]
fn a_host_survives_the_death_of_either_portal() {
    let place = Place::new("portals");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "disk", "--size", "512MiB"]);
    let (portals, nqn) = export(&cluster, &["disk"]);
    assert_eq!(portals.len(), 2);
    let shown = cluster.json(&["volume", "show", "disk"]);
    assert_eq!(shown["export"]["nqn"], nqn.as_str());
    cluster.wait(&["status"], |said| said.contains("exported by 2 nodes"));

    let host = Load::through_portals(&portals, &nqn);
    host.wait_for(300);
    for address in &portals {
        let node = node_at(&cluster, *address);
        let life = cluster.incarnation(node);
        kill(&cluster.target_lock(node));
        host.wait_for(300);
        cluster.wait_for_life_after(node, life);
        cluster.wait(&["status"], |said| said.contains("all copies in sync"));
        host.wait_for(300);
    }
    let (contents, slowest) = host.finish();
    println!("the slowest request took {slowest:?}");
    load::check(&cluster.address(), "disk", &contents);
    for address in portals {
        let (addresses, nqn) = (vec![address], nqn.clone());
        load::check_by(&Way::Portals { addresses, nqn }, &contents);
    }
    cluster.end();
}

#[test]
fn only_who_may_sees_a_volume_and_a_leased_one_takes_no_writes() {
    let place = Place::new("portal-hosts");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "files", "--size", "256MiB"]);
    let (portals, nqn) = export(&cluster, &["files", "--portals", "1", "--host", HOST]);
    let address = portals[0];
    wait_until("the portal serves", || connects(address, &nqn, HOST));
    assert!(!connects(address, &nqn, "nqn.2014-08.org.example:somebody"));
    let write = || {
        let options = options(address, &nqn, HOST);
        reactor::run(&reactor::Config::default(), async {
            let device = RemoteDevice::connect(options).await.unwrap();
            let channel = device.open_channel().unwrap();
            let mut buffer = reactor::BufferPool::current().allocate(4096).await.unwrap();
            buffer.fill(1);
            channel.write(Lba(1000), buffer.freeze()).await
        })
        .unwrap()
    };
    assert_eq!(write(), Ok(()));
    // A file system's writer takes the volume: from then on it takes no writes without the lease.
    cluster.succeed(&["fs", "format", "files", "--force"]);
    assert_eq!(write(), Err(IoError::Fenced));

    let wrong = cluster.run(&["volume", "export", "files", "--on", "nobody"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("no node is called \"nobody\""));
    cluster.succeed(&["volume", "unexport", "files"]);
    wait_until("the portal serves no more", || !connects(address, &nqn, HOST));
    assert!(cluster.json(&["volume", "show", "files"])["export"].is_null());
    cluster.end();
}
