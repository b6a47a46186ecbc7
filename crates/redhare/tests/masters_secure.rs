//! Three masters on an etcd that speaks TLS, wants a certificate and a user, and whose tokens end within seconds: they are told
//! what is wrong with who they say they are, go on once it is right, and lead one after the other. Nodes and clients join them by
//! tokens at a master that follows, and while the one that leads is killed.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::etcd::{Etcd, certificates, signed_tokens};
use crate::support::ensemble::Ensemble;
use crate::support::load::{self, Way};
use crate::support::{Place, REDHARE, wait_until};

/// What the masters' file says of an etcd that wants a certificate, and of a user.
fn configuration(files: &crate::etcd::Certificates, password: &std::path::Path) -> String {
    format!(
        "data_key_period_ms = 2000\n[etcd]\nauthority = {:?}\ncertificate = {:?}\nkey = {:?}\nuser = \"redhare\"\n\
         password_file = {password:?}\n",
        files.authority, files.certificate, files.key
    )
}

#[test]
fn masters_live_on_an_etcd_that_wants_to_know_who_they_are() {
    if !crate::etcd::is_there("three masters on an etcd with TLS and users") {
        return;
    }
    let place = Place::in_memory("masters-secure");
    let files = certificates(&place.0);
    let signed = signed_tokens(&place.0, 2);
    let signed = signed.each_ref().map(String::as_str);
    let etcd = Etcd::start_as(1, Some(&files), &signed);
    etcd.add_users("redhare", "a secret", "/redhare/test/");
    let password = place.0.join("password");
    std::fs::write(&password, "not that\n").unwrap();
    let store = format!("etcds://{}/redhare/test", etcd.endpoints());
    let mut cluster = Ensemble::new(place, &store, &configuration(&files, &password));

    // A wrong password: it is said where people look, and the master goes on once the file is another one.
    cluster.start_master(0);
    wait_until("the master says what is wrong", || {
        let log = cluster.master_log(0);
        log.contains("authentication failed, invalid user ID or password")
            && log.contains("etcd.password_file")
    });
    let output = cluster.run_at(&cluster.addresses_of(&[0]), "admin", &["status"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("with the password in"),
        "{said}"
    );
    assert!(!said.contains("not that") && !cluster.master_log(0).contains("not that"));
    std::fs::write(&password, "a secret\n").unwrap();
    assert_eq!(cluster.leader(), 0);
    cluster.start_master(1);
    cluster.start_master(2);
    wait_until("all masters are there", || {
        cluster.json(&["status"])["masters"]
            .as_array()
            .is_some_and(|masters| masters.len() == 3)
    });

    // Nodes join at a master that follows.
    let id = cluster.token(&["--role", "node", "--uses", "3"]);
    let order = cluster.leader_last();
    cluster.start_node(0, &cluster.addresses_of(&order[..1]));
    cluster.start_node(1, &cluster.addresses_of(&order));
    cluster.wait_for_living(2);
    // And while the one that leads is killed.
    let began = Instant::now();
    cluster.kill_master(order[2]);
    cluster.start_node(2, &cluster.addresses_of(&order));
    wait_until("the third node has joined", || {
        cluster.credentials("node2").join("cert.pem").exists()
    });
    println!("joined {:?} after the leading master was killed", began.elapsed());
    cluster.wait_for_living(3);
    assert_eq!(cluster.uses_left(&id), Some(0), "each has taken one use");
    // So does a client, at a master that follows alone, with none that leads at first.
    let id = cluster.token(&["--role", "client", "--name", "trainer"]);
    cluster.start_master(order[2]);
    let order = cluster.leader_last();
    cluster.kill_master(order[2]);
    let joined = Command::new(REDHARE)
        .args(["ca", "join", "--master", &cluster.addresses_of(&order[..1])])
        .arg("--token-file")
        .arg(cluster.at("token"))
        .arg("--out")
        .arg(cluster.credentials("trainer"))
        .env_remove("REDHARE_CREDENTIALS")
        .output()
        .unwrap();
    assert!(
        joined.status.success(),
        "{}",
        String::from_utf8_lossy(&joined.stderr)
    );
    cluster.start_master(order[2]);
    assert_eq!(cluster.uses_left(&id), Some(0));

    let load = cluster.start_load("trainer");
    // The password is changed while they work, and one leads after the other.
    etcd.change_password("redhare", "another");
    std::fs::write(&password, "another\n").unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        load.wait_for(20);
        cluster.succeed_as("trainer", &["status"]);
    }
    let leader = cluster.leader();
    cluster.kill_master(leader);
    assert_ne!(cluster.leader(), leader);
    load.wait_for(100);
    cluster.wait_for_living(3);
    let (contents, slowest) = load.finish();
    println!("the slowest operation took {slowest:?}");
    load::check_by(&Way::native(cluster.masters_for("trainer"), "load"), &contents);
}
