//! The root of a cluster is rotated while three masters on an etcd, three nodes that joined by tokens, and a client work on: in an
//! order that helps nobody, with masters and targets that are killed in between. Everybody follows, the keys of the data path go
//! on turning, and who was not renewed is out afterwards.

use std::path::Path;

use crate::etcd::Etcd;
use crate::support::ensemble::{Ensemble, MASTERS};
use crate::support::load::{self, Way};
use crate::support::{Place, kill, process, wait_until};
use rustix::process::Signal;

/// The number of the key that a node's target was handed last.
fn newest_key(cluster: &Ensemble, node: u16) -> u64 {
    let log = cluster.target_log(node);
    let last = log
        .lines()
        .rev()
        .find(|line| line.contains("the data path has these keys"));
    let numbers = last.and_then(|line| line.split_once('[')?.1.rsplit_once(']'));
    let numbers = numbers.map_or("", |(numbers, _)| numbers);
    let digits = |text: &str| text.trim().parse().ok();
    // Behind the colours of a terminal, if there are any.
    let numbers = numbers.rsplit('[').next().unwrap_or_default();
    numbers.split(',').filter_map(digits).max().unwrap_or(0)
}

fn wait_for_newer_keys(cluster: &Ensemble) {
    let before: Vec<u64> = (0..3).map(|node| newest_key(cluster, node)).collect();
    wait_until("the keys of the data path are turned", || {
        (0..3).all(|node| newest_key(cluster, node) > before[usize::from(node)])
    });
}

/// Whether a node has a certificate of the issuer of now, and trusts so many roots.
fn is_of_now(cluster: &Ensemble, node: u16, roots: usize) -> bool {
    const END: &str = "-----END CERTIFICATE-----";
    let place = cluster.credentials(&format!("node{node}"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let issuer = read(&cluster.credentials("issuer").join("issuer.pem"));
    let begin = issuer.find("-----BEGIN CERTIFICATE-----").unwrap();
    let end = begin + issuer[begin..].find(END).unwrap() + END.len();
    read(&place.join("cert.pem")).contains(&issuer[begin..end])
        && read(&place.join("ca.pem")).matches(END).count() == roots
}

/// Has a node look, and waits until it has what the masters have now.
fn follow(cluster: &Ensemble, node: u16, roots: usize) {
    cluster.nodes[usize::from(node)]
        .as_ref()
        .unwrap()
        .signal(Signal::HUP);
    wait_until("the node has followed", || is_of_now(cluster, node, roots));
}

fn renew(cluster: &Ensemble, who: &str) {
    let place = format!("credentials/{who}");
    cluster.authority(&["renew", "CA", &place]);
}

/// A master, and then its issuer: each has a copy of its own of the same.
fn renew_master(cluster: &Ensemble, index: usize) {
    renew(cluster, &format!("master{index}"));
    let from = cluster.credentials("issuer").join("issuer.pem");
    std::fs::copy(
        from,
        cluster.credentials(&format!("issuer{index}")).join("issuer.pem"),
    )
    .unwrap();
}

fn replace_target(cluster: &Ensemble, node: u16) {
    let lock = cluster.directory(node).join("target.lock");
    let before = process(&lock);
    kill(&lock);
    wait_until("the target runs again", || {
        process(&lock).is_some_and(|now| before != Some(now))
    });
    cluster.wait_for_sync("load", 3);
}

#[test]
fn the_root_is_rotated_under_three_masters() {
    if !crate::etcd::is_there("a rotation with three masters on an etcd") {
        return;
    }
    let etcd = Etcd::start(1);
    let store = format!("etcd://{}/rotation", etcd.endpoints());
    let place = Place::in_memory("masters-rotation");
    let mut cluster = Ensemble::new(place, &store, "data_key_period_ms = 2000\n");
    for index in 0..MASTERS {
        cluster.start_master(index);
    }
    cluster.token(&["--role", "node", "--uses", "3"]);
    let addresses = cluster.addresses();
    for node in 0..3 {
        cluster.start_node(node, &addresses);
    }
    cluster.wait_for_living(3);
    for (who, role) in [("trainer", "client"), ("forgotten", "client")] {
        let out = format!("credentials/{who}");
        cluster.authority(&["issue", "CA", "--role", role, "--name", who, "--out", &out]);
    }
    let load = cluster.start_load("trainer");
    let everybody_is_served = |cluster: &Ensemble| {
        for who in ["admin", "trainer", "forgotten"] {
            cluster.succeed_as(who, &["status"]);
        }
        load.wait_for(20);
    };

    // Both roots. One master is renewed and leads at once or later; the others are as they were.
    cluster.authority(&["rotate", "CA"]);
    cluster.authority(&["renew", "CA", "credentials/issuer"]);
    let leader = cluster.leader();
    let [first, second] = [(leader + 1) % MASTERS, (leader + 2) % MASTERS];
    renew_master(&cluster, first);
    everybody_is_served(&cluster);
    cluster.kill_master(leader);
    cluster.leader();
    everybody_is_served(&cluster);
    replace_target(&cluster, 0);
    // A node that joins while masters differ.
    cluster.token(&["--role", "node"]);
    cluster.start_master(leader);
    let all = [second, first, leader];
    cluster.start_node(3, &cluster.addresses_of(&all));
    cluster.wait_for_living(4);
    renew(&cluster, "trainer");
    everybody_is_served(&cluster);
    renew_master(&cluster, leader);
    renew_master(&cluster, second);
    everybody_is_served(&cluster);
    assert!(!is_of_now(&cluster, 1, 2), "it has not looked yet");
    for node in [2, 0, 3, 1] {
        follow(&cluster, node, 2);
    }
    renew(&cluster, "admin");
    wait_for_newer_keys(&cluster);
    replace_target(&cluster, 1);
    everybody_is_served(&cluster);

    // The old one goes. All that was renewed goes on, in any order.
    cluster.authority(&["rotate", "CA", "--finish"]);
    cluster.authority(&["renew", "CA", "credentials/issuer"]);
    let leader = cluster.leader();
    let [first, second] = [(leader + 1) % MASTERS, (leader + 2) % MASTERS];
    let renewed_are_served = |cluster: &Ensemble| {
        for who in ["admin", "trainer"] {
            cluster.succeed_as(who, &["status"]);
        }
        load.wait_for(20);
    };
    renew_master(&cluster, leader);
    renewed_are_served(&cluster);
    cluster.kill_master(leader);
    cluster.leader();
    renewed_are_served(&cluster);
    cluster.start_master(leader);
    renew_master(&cluster, first);
    renew_master(&cluster, second);
    for node in [1, 3, 0, 2] {
        follow(&cluster, node, 1);
    }
    renew(&cluster, "trainer");
    renew(&cluster, "admin");
    renewed_are_served(&cluster);
    wait_for_newer_keys(&cluster);
    // Whatever connects anew does so with what is there now.
    let leader = cluster.leader();
    cluster.kill_master(leader);
    cluster.leader();
    cluster.start_master(leader);
    replace_target(&cluster, 2);
    cluster.wait_for_living(4);
    wait_for_newer_keys(&cluster);
    let (contents, slowest) = load.finish();
    println!("the slowest operation took {slowest:?}");
    load::check_by(&Way::native(cluster.masters_for("trainer"), "load"), &contents);

    // Nobody was taken for a stranger on the way.
    for node in 0..4 {
        let log = cluster.target_log(node);
        for said in [
            "a peer does not know this node",
            "connect by a host that is refused",
        ] {
            assert!(!log.contains(said), "node {node}: {log}");
        }
    }

    // Who was forgotten is out, at every master, also if it trusts them.
    let (admin, forgotten) = (cluster.credentials("admin"), cluster.credentials("forgotten"));
    std::fs::copy(admin.join("ca.pem"), forgotten.join("ca.pem")).unwrap();
    for index in 0..MASTERS {
        let output = cluster.run_at(&cluster.addresses_of(&[index]), "forgotten", &["status"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("does not know the authority of our certificate"),
            "{said}"
        );
    }
}
