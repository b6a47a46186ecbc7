//! A cluster of real processes with a certificate authority: who holds its certificates is served according to the role,
//! nobody else is, and the authority is rotated while all of it runs. Without credentials everything is as in the other
//! tests.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::nodes::Nodes;
use crate::support::{Cluster, Place, REDHARE, free_ports, wait_until};
use identity::{Authority, Issue, Role, Validity, unix_now};
use master::{Client, ClientError, Masters, v1};
use serde_json::Value;

const CREATE: &str = "volume create data --size 64MiB --chunk-size 16MiB";

/// What is said to a command that must not succeed.
fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_well(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A command at a cluster, with or without credentials.
fn ask(address: &str, credentials: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(REDHARE);
    command.args(arguments).env("REDHARE_CLUSTER", address);
    match credentials {
        Some(directory) => command.env("REDHARE_CREDENTIALS", directory),
        None => command.env_remove("REDHARE_CREDENTIALS"),
    };
    command.env_remove("RUST_LOG").output().unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn who_holds_a_certificate_is_served_by_its_role_and_nobody_else() {
    let place = Place::in_memory("security");
    let audit = place.0.join("audit");
    let path = audit.to_str().unwrap().to_owned();
    let cluster = Nodes::start_secure(place, &["--audit-log", &path], 3);
    // The cluster is the one that its authority is for.
    let shown = ask(
        "",
        None,
        &[
            "ca",
            "show",
            cluster.place.0.join("ca").to_str().unwrap(),
            "--json",
        ],
    );
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(cluster.json(&["status"])["cluster"], shown["cluster"]);
    let files = cluster.import(CREATE, 7, 100_000);
    cluster.compare(&files, "as admin");

    // Nobody.
    let said = refused(&ask(&cluster.address(), None, &["status"]));
    assert!(
        said.contains("speaks TLS and answers nobody without a certificate; give --credentials"),
        "{said}"
    );
    // A role for each.
    cluster.issue("reader", &["--role", "read-only", "--name", "grafana"]);
    cluster.issue("client", &["--role", "client", "--name", "trainer"]);
    let out = cluster.place.0.join("out");
    let export = ["fs", "export", "data", out.to_str().unwrap()];
    for who in ["reader", "client"] {
        is_well(&cluster.run_as(who, &["status"]));
        is_well(&cluster.run_as(who, &export));
        std::fs::remove_dir_all(&out).unwrap();
        let said = refused(&cluster.run_as(who, &["volume", "delete", "data"]));
        assert!(
            said.contains("Volumes/Delete is not for") && said.contains("takes the role admin"),
            "{said}"
        );
    }
    let import = ["fs", "import", files.to_str().unwrap(), "data:again"];
    let said = refused(&cluster.run_as("reader", &import));
    assert!(
        said.contains("Leases/AcquireWriter is not for read-only \"grafana\""),
        "{said}"
    );
    is_well(&cluster.run_as("client", &import));
    // A node is itself, not another one.
    let one = cluster.credentials("node1");
    let (own, other) = (cluster.id(1), cluster.id(2));
    assert_eq!(named_in(&one), own);
    let said = heartbeat_as(&cluster.address(), &one, &other);
    assert!(
        said.contains(&format!(
            "that of node {own}, which cannot speak for node {other}"
        )),
        "{said}"
    );
    // What must not be believed: another authority, and a certificate that has expired.
    let foreign = cluster.place.0.join("foreign");
    let of_ours = ["--cluster-id", shown["cluster"].as_str().unwrap()];
    let init = ["ca", "init", foreign.to_str().unwrap()];
    is_well(&ask("", None, &[&init[..], &of_ours[..]].concat()));
    let authority = Authority::open(&foreign).unwrap();
    let admin = |authority: &Authority, validity: Validity, at: &Path| {
        let issue = Issue {
            role: Role::Admin,
            name: None,
            addresses: Vec::new(),
            validity,
        };
        authority.issue(&issue).unwrap().write(at).unwrap()
    };
    let stranger = cluster.place.0.join("stranger");
    admin(&authority, Validity::days(9), &stranger);
    let said = refused(&ask(&cluster.address(), Some(&stranger), &["status"]));
    assert!(said.contains("its certificate is of an authority that"), "{said}");
    // Even if it trusts the master.
    std::fs::copy(cluster.place.0.join("ca/ca.pem"), stranger.join("ca.pem")).unwrap();
    let said = refused(&ask(&cluster.address(), Some(&stranger), &["status"]));
    assert!(
        said.contains("it does not know the authority of our certificate"),
        "{said}"
    );
    let past = Validity {
        from: unix_now() - 1000,
        until: unix_now() - 10,
    };
    let expired = cluster.place.0.join("expired");
    admin(
        &Authority::open(&cluster.place.0.join("ca")).unwrap(),
        past,
        &expired,
    );
    let said = refused(&ask(&cluster.address(), Some(&expired), &["status"]));
    assert!(said.contains("has expired, 0 days ago; make it anew"), "{said}");

    // All of it is on record, and goes on in a new file.
    let record = lines(&audit);
    let has = |who: &str, method: &str, object: &str, outcome: &str| {
        record.iter().any(|line| {
            line["who"] == who
                && line["method"] == method
                && line["object"].as_str().unwrap().contains(object)
                && line["outcome"] == outcome
        })
    };
    assert!(
        has("admin", "Volumes/Create", "volume data", "done"),
        "{record:?}"
    );
    assert!(has(&own, "Nodes/Register", &own, "done"), "{record:?}");
    assert!(
        has("trainer", "Leases/AcquireWriter", "volume number 1", "done"),
        "{record:?}"
    );
    assert!(
        has("trainer", "Volumes/Delete", "", "PermissionDenied"),
        "{record:?}"
    );
    assert!(has(&own, "Nodes/Heartbeat", "", "PermissionDenied"), "{record:?}");
    assert!(
        record.iter().any(|line| line["outcome"] == "Unauthenticated"),
        "{record:?}"
    );
    let kept = cluster.place.0.join("audit.1");
    std::fs::rename(&audit, &kept).unwrap();
    let pid = rustix::process::Pid::from_raw(cluster.master() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_until("the audit log is opened anew", || audit.exists());
    refused(&cluster.run_as("reader", &["volume", "delete", "data"]));
    assert_eq!(lines(&audit).last().unwrap()["who"], "grafana");
    assert_eq!(lines(&kept).len(), record.len());
}

/// The name in a directory's certificate.
fn named_in(directory: &Path) -> String {
    let shown = ask("", None, &["ca", "show", directory.to_str().unwrap(), "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown["name"].as_str().unwrap().to_owned()
}

/// What a master says to a node's heartbeat that is made with these credentials.
fn heartbeat_as(address: &str, credentials: &Path, node: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let masters = Masters {
            addresses: address.to_owned(),
            credentials: Some(identity::Files::in_directory(credentials)),
        };
        let client = Client::connect(masters).await.unwrap();
        let identity = client.identity(v1::GetIdentityRequest {}).await.unwrap();
        let node: identity::Cluster = node.parse().unwrap();
        let beat = v1::HeartbeatRequest {
            cluster: identity.cluster,
            node: node.to_bytes().to_vec(),
            incarnation: 1,
            ..Default::default()
        };
        match client.heartbeat(beat).await {
            Err(error @ ClientError::Refused { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn the_authority_is_rotated_while_the_cluster_runs() {
    let mut cluster = Nodes::start_secure(Place::in_memory("rotation"), &[], 3);
    let files = cluster.import(CREATE, 8, 50_000);
    let ca = cluster.place.0.join("ca").to_str().unwrap().to_owned();
    // One that nobody renews.
    cluster.issue("forgotten", &["--role", "admin", "--name", "forgotten"]);
    let renewed = ["node2", "master", "admin", "node1", "node3"];
    let renew = |cluster: &Nodes| {
        for who in renewed {
            let place = cluster.credentials(who);
            is_well(&ask("", None, &["ca", "renew", &ca, place.to_str().unwrap()]));
            // In any order: everybody is served after each.
            for who in ["admin", "forgotten"] {
                is_well(&cluster.run_as(who, &["status"]));
            }
        }
    };
    is_well(&ask("", None, &["ca", "rotate", &ca]));
    renew(&cluster);
    cluster.wait_for_living(3);
    is_well(&ask("", None, &["ca", "rotate", &ca, "--finish"]));
    for who in renewed {
        let place = cluster.credentials(who);
        is_well(&ask("", None, &["ca", "renew", &ca, place.to_str().unwrap()]));
    }
    // The master runs as it was started, with the certificate of now, and trusts the new root alone.
    is_well(&cluster.run_as("admin", &["status"]));
    let said = refused(&cluster.run_as("forgotten", &["status"]));
    assert!(said.contains("its certificate is of an authority that"), "{said}");
    std::fs::copy(
        cluster.credentials("admin").join("ca.pem"),
        cluster.credentials("forgotten").join("ca.pem"),
    )
    .unwrap();
    let said = refused(&cluster.run_as("forgotten", &["status"]));
    assert!(
        said.contains("it does not know the authority of our certificate"),
        "{said}"
    );
    // Nodes connect anew with what is there now.
    cluster.restart_master();
    cluster.wait_for_living(3);
    cluster.compare(&files, "after the rotation");
}

#[test]
fn a_plain_master_and_one_with_the_wrong_certificate_say_so() {
    let place = Place::in_memory("plain");
    let ca = place.0.join("ca").to_str().unwrap().to_owned();
    is_well(&ask("", None, &["ca", "init", &ca]));
    let admin = place.0.join("admin").to_str().unwrap().to_owned();
    is_well(&ask(
        "",
        None,
        &["ca", "issue", &ca, "--role", "admin", "--out", &admin],
    ));
    // A key that is there is not replaced without a word, nor the authority's own files at all.
    let key = || std::fs::read(Path::new(&admin).join("key.pem")).unwrap();
    let before = key();
    let issue = ["ca", "issue", &ca, "--role", "admin", "--out"];
    let issuer = ["ca", "issuer", &ca, "--out"];
    let said = refused(&ask("", None, &[&issue[..], &[&ca, "--force"]].concat()));
    assert!(
        said.contains("is the directory of a certificate authority"),
        "{said}"
    );
    // An issuer takes no other file's place.
    for out in [&admin, &ca] {
        is_well(&ask("", None, &[&issuer[..], &[out]].concat()));
    }
    for (what, file) in [(&issue[..], "key.pem"), (&issuer, "issuer.pem")] {
        let said = refused(&ask("", None, &[what, &[&admin]].concat()));
        assert!(
            said.contains(&format!("there is a {file} in")) && said.contains("--force"),
            "{said}"
        );
    }
    assert_eq!(key(), before);
    // What is there is made anew, both of it.
    let issuer = || std::fs::read(Path::new(&admin).join("issuer.pem")).unwrap();
    let issuer_before = issuer();
    is_well(&ask("", None, &["ca", "renew", &ca, &admin]));
    assert!(key() != before && issuer() != issuer_before);
    let before = key();
    is_well(&ask("", None, &[&issue[..], &[&admin, "--force"]].concat()));
    assert_ne!(key(), before);
    // Of several that are renewed, those before the one that fails are named.
    let said = refused(&ask("", None, &["ca", "renew", &ca, &admin, "/no/such"]));
    assert!(
        said.contains(&format!("before that, and not to be repeated: {admin}")),
        "{said}"
    );
    let port = free_ports();
    let listen = format!("127.0.0.1:{port}");
    let store = place.0.join("store").to_str().unwrap().to_owned();
    let arguments = ["master", "--listen", &listen, "--store", &store];
    let said = refused(&ask("", Some(Path::new(&admin)), &arguments));
    assert!(
        said.contains("is that of admin \"admin\", and nobody would take this for a master"),
        "{said}"
    );
    let mut plain = Command::new(REDHARE)
        .args(arguments)
        .env_remove("REDHARE_CREDENTIALS")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the plain master answers", || {
        ask(&listen, None, &["status"]).status.success()
    });
    let said = refused(&ask(&listen, Some(Path::new(&admin)), &["status"]));
    plain.kill().unwrap();
    plain.wait().unwrap();
    assert!(
        said.contains("it speaks no TLS; give that master credentials"),
        "{said}"
    );
    // The store is that of a cluster of its own now.
    let master = place.0.join("m").to_str().unwrap().to_owned();
    is_well(&ask(
        "",
        None,
        &[
            "ca",
            "issue",
            &ca,
            "--role",
            "master",
            "--address",
            "127.0.0.1",
            "--out",
            &master,
        ],
    ));
    let said = refused(&ask("", Some(Path::new(&master)), &arguments));
    assert!(
        said.contains("the store is of cluster") && said.contains("redhare ca init --cluster-id"),
        "{said}"
    );
}

#[test]
fn up_makes_an_authority_of_its_own() {
    let place = Place::in_memory("up-tls");
    let port = free_ports();
    let mut up = Cluster::command(&place.0, port)
        .args(["--tls", "--nodes", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(up.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let at = |arguments: &[&str], cluster: Option<&str>| {
        let mut command = Command::new(REDHARE);
        command
            .args(arguments)
            .arg("--json")
            .env("XDG_STATE_HOME", &place.0)
            .env_remove("REDHARE_CREDENTIALS");
        match cluster {
            Some(address) => command.env("REDHARE_CLUSTER", address),
            None => command.env_remove("REDHARE_CLUSTER"),
        };
        command.output().unwrap()
    };
    // Found with its credentials; without them it is closed.
    let closed = format!("127.0.0.1:{port}");
    let (found, closed) = (at(&["status"], None), at(&["status"], Some(&closed)));
    // Its master lets others join.
    let token = at(&["ca", "token", "create", "--role", "client"], None);
    let pid = rustix::process::Pid::from_child(&up);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(up.wait().unwrap().success());
    assert!(line.starts_with("master at"), "{line}");
    is_well(&found);
    is_well(&token);
    let status: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(status["nodes"][0]["alive"], true, "{status}");
    let said = String::from_utf8_lossy(&closed.stdout).into_owned();
    assert!(
        !closed.status.success() && said.contains("answers nobody without a certificate"),
        "{said}"
    );
}
