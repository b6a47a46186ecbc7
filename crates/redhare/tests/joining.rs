//! Nodes and clients of real processes come to their certificates by tokens, and nobody comes to more than the token is for:
//! not with a wrong, expired, used or revoked one, not from another cluster's master, and never to be an administrator. A
//! node renews what it has before it ends.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::nodes::Nodes;
use crate::support::{Place, REDHARE, free_ports, wait_until};
use serde_json::Value;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    text(output)
}

fn is_well(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

/// A new token, as `redhare ca token create --json` tells it.
fn token(cluster: &Nodes, arguments: &[&str]) -> Value {
    let made = cluster.json(&[&["ca", "token", "create"], arguments].concat());
    assert!(made["token"].is_string(), "{arguments:?}: {made}");
    made
}

fn row(cluster: &Nodes, id: &Value) -> Value {
    let rows = cluster.json(&["ca", "token", "list"]);
    let mut rows = rows.as_array().cloned().unwrap().into_iter();
    rows.find(|row| row["id"] == *id).unwrap_or_default()
}

/// `redhare ca join` at a master.
fn join(address: &str, token: &str, out: &Path) -> Output {
    Command::new(REDHARE)
        .args(["ca", "join", "--master", address, "--out"])
        .arg(out)
        .env("REDHARE_JOIN", token)
        .env_remove("REDHARE_CREDENTIALS")
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

fn shown(directory: &Path) -> Value {
    let output = Command::new(REDHARE)
        .args(["ca", "show", "--json"])
        .arg(directory)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// A token's text with a part, counted from 0, made another one.
fn changed(token: &str, part: usize) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let flipped = if parts[part].starts_with('0') { "1" } else { "0" };
    parts[part].replace_range(..1, flipped);
    parts.join(".")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn nodes_join_by_a_token_and_renew_their_certificates() {
    let mut cluster = Nodes::start_with_issuer(Place::in_memory("joining"), &[]);
    let made = token(
        &cluster,
        &["--role", "node", "--uses", "2", "--certificate-lasts", "24s"],
    );
    let file = cluster.place.0.join("token");
    std::fs::write(&file, made["token"].as_str().unwrap()).unwrap();
    cluster.join_file = Some(file.clone());
    cluster.start_node(1);
    cluster.start_node(2);
    cluster.wait_for_living(2);
    let first = shown(&cluster.credentials("node1"));
    assert_eq!(
        (&first["role"], &first["name"]),
        (&"node".into(), &cluster.id(1).into())
    );
    let key = std::fs::metadata(cluster.credentials("node1").join("key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    // Both uses are taken, each by one of them.
    let known = row(&cluster, &made["id"]);
    assert_eq!(
        (&known["uses_left"], &known["usable"]),
        (&0.into(), &false.into())
    );
    let mut joined: Vec<String> = serde_json::from_value(known["joined"].clone()).unwrap();
    let mut nodes = [cluster.id(1), cluster.id(2)];
    joined.sort();
    nodes.sort();
    assert_eq!(joined, nodes);
    let said = cluster.refused_node(3);
    assert!(
        said.contains("was for 2 uses, and all of them are taken"),
        "{said}"
    );

    // Each renews its certificate, which ends within seconds, and goes on as the node that it is.
    for number in [1, 2] {
        let place = cluster.credentials(&format!("node{number}"));
        wait_until("the certificate is renewed", || {
            shown(&place)["days_left"].as_i64().is_some_and(|days| days > 80)
        });
        assert_eq!(shown(&place)["name"], cluster.id(number).as_str());
    }
    cluster.wait_for_living(2);

    // A node that has lost its credentials stays itself, by a token that is for it, and by no other.
    let (own, before) = (cluster.id(1), incarnation(&cluster, 1));
    cluster.kill_node(1);
    std::fs::remove_dir_all(cluster.credentials("node1")).unwrap();
    let other = token(&cluster, &["--role", "node"]);
    std::fs::write(&file, other["token"].as_str().unwrap()).unwrap();
    let said = cluster.refused_node(1);
    assert!(
        said.contains(&format!("is not for \"{own}\"")) && said.contains("redhare ca token create --name"),
        "{said}"
    );
    assert_eq!(row(&cluster, &other["id"])["uses_left"], 1);
    let named = token(&cluster, &["--role", "node", "--name", &own.replace('-', "")]);
    std::fs::write(&file, named["token"].as_str().unwrap()).unwrap();
    cluster.start_node(1);
    wait_until("node 1 lives again", || incarnation(&cluster, 1) > before);
    assert_eq!(cluster.id(1), own);
    assert_eq!(shown(&cluster.credentials("node1"))["name"], own.as_str());
    // Once there are credentials the token is not needed any more.
    std::fs::remove_file(&file).unwrap();
    let before = incarnation(&cluster, 2);
    cluster.kill_node(2);
    cluster.start_node(2);
    wait_until("node 2 lives again", || incarnation(&cluster, 2) > before);
}

fn incarnation(cluster: &Nodes, number: u16) -> u64 {
    cluster.row(number)["incarnation"].as_u64().unwrap_or(0)
}

#[test]
fn a_token_is_for_what_it_is_for() {
    let place = Place::in_memory("tokens");
    let audit = place.0.join("audit");
    let path = audit.to_str().unwrap().to_owned();
    let cluster = Nodes::start_with_issuer(place, &["--audit-log", &path]);
    let address = cluster.address();
    let at = |what: &str| -> PathBuf { cluster.credentials(what) };
    let made = token(
        &cluster,
        &["--role", "client", "--name", "trainer", "--uses", "3"],
    );
    let text = made["token"].as_str().unwrap();
    is_well(&join(&address, text, &at("trainer")));
    is_well(&cluster.run_as("trainer", &["status"]));
    assert_eq!(shown(&at("trainer"))["role"], "client");
    let reader = token(&cluster, &["--role", "read-only"]);
    is_well(&join(&address, reader["token"].as_str().unwrap(), &at("reader")));
    let said = refused(&join(&address, text, &at("reader")));
    assert!(said.contains("there are credentials in"), "{said}");
    // Its bearer is what the token says, and comes to nothing more by what it got.
    for arguments in [
        &["volume", "delete", "data", "--yes"][..],
        &["ca", "token", "create", "--role", "client"],
        &["ca", "token", "list"],
        &["ca", "token", "revoke", made["id"].as_str().unwrap()],
    ] {
        let said = refused(&cluster.run_as("trainer", arguments));
        assert!(
            said.contains("is not for client \"trainer\": it takes the role admin"),
            "{said}"
        );
    }

    // What is wrong with it is said, and nobody joins.
    let refused_join = |address: &str, text: &str| {
        let said = refused(&join(address, text, &at("nobody")));
        assert!(!at("nobody").exists());
        said
    };
    let said = refused_join(&address, &changed(text, 2));
    assert!(
        said.contains("with that secret") && said.contains("copied with a mistake"),
        "{said}"
    );
    let said = refused_join(&address, &changed(text, 1));
    assert!(said.contains("there is no join token"), "{said}");
    let said = refused_join(&address, &text[..60]);
    assert!(
        said.contains("that is no join token") && !said.contains(&text[30..60]),
        "{said}"
    );
    // Another cluster's master, which would only have to be asked.
    let said = refused_join(&address, &changed(text, 3));
    assert!(
        said.contains("does not have the root that the token names")
            && said.contains("Nothing of the token was sent"),
        "{said}"
    );
    let foreign = Foreign::start(&cluster.place.0);
    let said = refused_join(&foreign.address, text);
    assert!(
        said.contains("does not have the root that the token names"),
        "{said}"
    );
    assert_eq!(row(&cluster, &made["id"])["uses_left"], 2);
    let short = token(&cluster, &["--role", "client", "--expires", "1s"]);
    wait_until("the token expires", || {
        row(&cluster, &short["id"])["expires_seconds"] == 0
    });
    let said = refused_join(&address, short["token"].as_str().unwrap());
    assert!(
        said.contains("expired") && said.contains("ago; ask for another one"),
        "{said}"
    );
    cluster.succeed(&["ca", "token", "revoke", made["id"].as_str().unwrap()]);
    let said = refused_join(&address, text);
    assert!(said.contains("it was revoked"), "{said}");
    let said = refused_join(&address, reader["token"].as_str().unwrap());
    assert!(
        said.contains("was for 1 uses, and all of them are taken"),
        "{said}"
    );
    is_well(&cluster.run_as("trainer", &["status"]));

    // All of it is on record, the secret is not; nor is it in the store.
    let record = lines(&audit);
    let id = made["id"].as_str().unwrap();
    let has = |method: &str, object: &str, outcome: &str| {
        record.iter().any(|line| {
            line["method"] == method
                && line["object"].as_str().unwrap().contains(object)
                && line["outcome"] == outcome
        })
    };
    assert!(
        has(
            "Joining/CreateToken",
            &format!("token {id} for client \"trainer\", 3 uses"),
            "done"
        ),
        "{record:?}"
    );
    assert!(
        has("Joining/Join", &format!("token {id}, client trainer"), "done"),
        "{record:?}"
    );
    assert!(
        has("Joining/Join", &format!("token {id}"), "PermissionDenied"),
        "{record:?}"
    );
    assert!(has("Joining/RevokeToken", id, "done"), "{record:?}");
    let secret = text.split('.').nth(2).unwrap();
    let raw: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    for file in [audit, cluster.place.0.join("master/metadata.redb")] {
        let bytes = std::fs::read(&file).unwrap();
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(
            !bytes.is_empty() && !has(secret.as_bytes()) && !has(&raw),
            "{file:?}"
        );
    }
}

/// A master of another cluster, with an issuer of its own.
struct Foreign {
    master: std::process::Child,
    address: String,
}

impl Foreign {
    fn start(place: &Path) -> Self {
        let place = place.join("foreign");
        let at = |what: &str| place.join(what).to_str().unwrap().to_owned();
        let address = format!("127.0.0.1:{}", free_ports());
        for arguments in [
            vec!["ca", "init", &at("ca")],
            vec!["ca", "issuer", &at("ca"), "--out", &at("issuer")],
            vec![
                "ca",
                "issue",
                &at("ca"),
                "--role",
                "master",
                "--address",
                "127.0.0.1",
                "--out",
                &at("m"),
            ],
        ] {
            is_well(&Command::new(REDHARE).args(arguments).output().unwrap());
        }
        let master = Command::new(REDHARE)
            .args(["master", "--listen", &address, "--store", &at("store")])
            .args(["--credentials", &at("m"), "--issuer", &at("issuer")])
            .stderr(Stdio::null())
            .env_remove("RUST_LOG")
            .spawn()
            .unwrap();
        wait_until("the foreign master listens", || {
            std::net::TcpStream::connect(&address).is_ok()
        });
        Self { master, address }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        drop(self.master.kill());
        drop(self.master.wait());
    }
}

#[test]
fn a_master_without_an_issuer_says_so() {
    let cluster = Nodes::start_secure(Place::in_memory("no-issuer"), &[], 0);
    wait_until("the master answers", || cluster.run(&["status"]).status.success());
    let said = cluster.refused(&["ca", "token", "create"]);
    assert!(
        said.contains("this master has no issuer") && said.contains("--issuer ISSUER"),
        "{said}"
    );
    // A master does not start with what nobody would believe.
    let foreign = cluster.place.0.join("foreign").to_str().unwrap().to_owned();
    let issuer = cluster.place.0.join("issuer").to_str().unwrap().to_owned();
    cluster.succeed(&["ca", "init", &foreign]);
    cluster.succeed(&["ca", "issuer", &foreign, "--out", &issuer]);
    let output = Command::new(REDHARE)
        .args([
            "master",
            "--listen",
            &format!("127.0.0.1:{}", free_ports()),
            "--issuer",
            &issuer,
        ])
        .arg("--store")
        .arg(cluster.place.0.join("other"))
        .arg("--credentials")
        .arg(cluster.credentials("master"))
        .output()
        .unwrap();
    let said = refused(&output);
    assert!(said.contains("credentials of the same cluster"), "{said}");
}
