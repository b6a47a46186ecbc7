//! The data path of a cluster with an authority, as real processes: who has no certificate of it is let in nowhere, by TCP
//! or by Unix socket, under whatever name; roles bound what is let in; the keys are turned under a client's work, with nodes
//! that come back between, and a while without masters stops nothing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::load::{self, Load, Way};
use crate::support::nodes::Nodes;
use crate::support::{Place, kill, process, wait_until};
use bdev::{BlockDevice, ChannelExt, IoError};
use client::{Nearby, Session};
use fabrics::authentication::Credentials;
use fabrics::initiator::{AuthenticationError, ConnectError, ConnectOptions, Controller};
use foundation::Lba;
use master::Masters;
use protocols::auth::{Keys, Secret};
use protocols::nvme::Nqn;
use reactor::BufferPool;
use reactor::net::TcpOptions;

const PERIOD: Duration = Duration::from_millis(1500);
/// Whoever may call itself so.
const ROOT: &str = "nqn.2026-11.io.redhare:client:0707070707070707:admin:root";
const CREATE: [&str; 7] = [
    "volume",
    "create",
    "load",
    "--size",
    "64MiB",
    "--chunk-size",
    "16MiB",
];

/// The numbers of the keys that a node's target was handed last.
fn keys(cluster: &Nodes, node: u16) -> Vec<u64> {
    let log = log_of(cluster, node);
    let mut lines = log.lines().rev();
    let last = lines.find_map(|line| line.split_once("the data path has these keys"));
    let numbers = last.and_then(|(_, fields)| fields.split_once("keys=[")?.1.split_once(']'));
    let numbers = numbers.map_or("", |(numbers, _)| numbers).split(',');
    let numbers = numbers.map(|number| number.trim().parse());
    numbers.collect::<Result<_, _>>().unwrap_or_default()
}

/// The log of a node's target, without the colours of a terminal.
fn log_of(cluster: &Nodes, node: u16) -> String {
    let log = std::fs::read_to_string(cluster.directory(node).join("target.log")).unwrap_or_default();
    let mut parts = log.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or(part, |(_, rest)| rest)
    })
}

/// Waits until every node believes none of these keys any more.
fn wait_until_gone(cluster: &Nodes, old: &[u64], nodes: &[u16]) {
    wait_until("the keys have been turned", || {
        nodes.iter().all(|&node| {
            let now = keys(cluster, node);
            now.len() == 3 && now.iter().all(|number| !old.contains(number))
        })
    });
}

/// A node's own subsystem.
struct Door {
    address: SocketAddr,
    subsystem: Nqn,
}

impl Door {
    /// Connects as anybody may try to.
    async fn knock(&self, host: &str, secret: Option<[u8; 32]>, local: bool) -> ConnectError {
        let credentials = secret.map(|bytes| Credentials {
            key_name: String::new(),
            controller_key_name: None,
            keys: Arc::new(Keys {
                host: Secret::from_key(&bytes),
                controller: None,
            }),
        });
        let options = ConnectOptions {
            tcp: TcpOptions {
                local,
                ..TcpOptions::default()
            },
            credentials,
            ..ConnectOptions::new(
                self.address,
                self.subsystem.clone(),
                host.parse().unwrap(),
                [7; 16],
            )
        };
        match Controller::connect(options).await {
            Err(error) => error,
            Ok(_) => panic!("{host} was let in"),
        }
    }
}

/// Nobody gets in who has nothing from a master, whatever it calls itself; `node` is the name of another node.
fn strangers_are_refused(door: &Door, node: &str) {
    let outcome = reactor::run(&reactor::Config::default(), async {
        for local in [false, true] {
            for plain in [
                "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427",
                "nqn.2026-11.io.redhare:client:0707070707070707",
                "nqn.2026-11.io.redhare:client:0707070707070707:node:x",
            ] {
                let error = door.knock(plain, None, local).await;
                assert!(
                    error.to_string().contains("Connect Invalid Host"),
                    "{plain}: {error}"
                );
            }
            for name in [node, ROOT] {
                let ConnectError::Authentication { why, .. } = door.knock(name, None, local).await else {
                    panic!("{name}");
                };
                assert!(matches!(why, AuthenticationError::NoKey), "{name}: {why}");
                let guess = Some([0; 32]);
                let ConnectError::Authentication { why, .. } = door.knock(name, guess, local).await else {
                    panic!("{name}");
                };
                assert!(matches!(why, AuthenticationError::Failed(_)), "{name}: {why}");
            }
        }
    });
    outcome.unwrap();
}

/// Who may only look reads what is there, and changes nothing.
fn a_reader_reads(masters: &Masters) {
    let masters = masters.clone();
    let outcome = reactor::run(&reactor::Config::default(), async move {
        let session = Session::connect(masters, "load").unwrap();
        let device = session.device(Nearby::default());
        let channel = device.open_channel().unwrap();
        let buffer = || BufferPool::current().try_allocate(4096).unwrap();
        let (read, _) = channel.read(Lba(0), buffer()).await;
        read.unwrap();
        let mut bytes = buffer();
        bytes.fill(1);
        let written = channel.write(Lba(0), bytes.freeze()).await;
        assert_eq!(written, Err(IoError::ReadOnly));
        let (read, bytes) = channel.read(Lba(0), buffer()).await;
        read.unwrap();
        assert!(bytes.iter().any(|&byte| byte != 1), "a reader has written");
    });
    outcome.unwrap();
}

#[test]
fn who_has_a_certificate_uses_the_data_path_by_its_role_and_nobody_else_does() {
    let place = Place::in_memory("data-path");
    let settings = place.0.join("master.toml");
    std::fs::write(
        &settings,
        format!("data_key_period_ms = {}\n", PERIOD.as_millis()),
    )
    .unwrap();
    let path = settings.to_str().unwrap().to_owned();
    let mut cluster = Nodes::start_secure(place, &["--config", &path], 3);
    let holder = |credentials: PathBuf| Masters {
        addresses: cluster.address(),
        credentials: Some(identity::Files::in_directory(&credentials)),
    };
    let trainer = holder(cluster.issue("trainer", &["--role", "client", "--name", "trainer"]));
    let reader = holder(cluster.issue("reader", &["--role", "read-only", "--name", "grafana"]));
    cluster.succeed(&CREATE);
    let door = Door {
        address: cluster.node_address(1).parse().unwrap(),
        subsystem: format!("nqn.2026-11.io.redhare:node:{}", cluster.id(1))
            .parse()
            .unwrap(),
    };
    let other = format!("nqn.2026-11.io.redhare:node:{}", cluster.id(2));
    strangers_are_refused(&door, &other);
    let log = log_of(&cluster, 1);
    for said in [
        "connect by a host that is refused",
        "none that a master gave it for its certificate",
        "authentication failed",
        ROOT,
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }

    let load = Load::with_credentials(&trainer, "load");
    load.wait_for(300);
    let before = keys(&cluster, 1);
    assert!(!before.is_empty());
    wait_until_gone(&cluster, &before, &[1, 2, 3]);
    load.wait_for(100);
    a_reader_reads(&reader);
    // Whoever connects now does so with what was renewed meanwhile: the client, and the nodes with each other.
    let lock = cluster.directory(2).join("target.lock");
    let killed = process(&lock);
    kill(&lock);
    wait_until("the target of node 2 runs again", || {
        process(&lock).is_some_and(|now| killed != Some(now))
    });
    wait_until("every copy is in sync again", || {
        let shown = cluster.json(&["volume", "show", "load"]);
        let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
        !chunks.is_empty()
            && chunks.iter().all(|chunk| {
                chunk["missing"].as_array().is_some_and(Vec::is_empty)
                    && chunk["out_of_sync"].as_array().is_some_and(Vec::is_empty)
            })
    });
    assert!(
        log_of(&cluster, 2).contains("host authenticated"),
        "nobody had to prove itself"
    );
    load.wait_for(100);
    // No masters for three times as long as a key is in use: nothing is turned, and nothing that was given ends.
    let known = keys(&cluster, 1);
    cluster.kill_master();
    let away = Instant::now();
    while away.elapsed() < PERIOD * 3 {
        load.wait_for(50);
    }
    assert_eq!(keys(&cluster, 1), known);
    strangers_are_refused(&door, &other);
    cluster.restart_master();
    cluster.wait_for_living(3);
    wait_until_gone(&cluster, &known, &[1, 2, 3]);
    load.wait_for(100);
    let (contents, slowest) = load.finish();
    println!("the slowest operation took {slowest:?}");
    load::check_by(&Way::native(&trainer, "load"), &contents);
}
