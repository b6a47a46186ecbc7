//! A cluster goes from one program to the next while clients write and read: master, engines and targets are replaced one
//! after the other, the two programs side by side, and back again; every byte is what was written. `cargo xtask upgrade` names
//! the program of an earlier revision in REDHARE_OLD; without that the same program goes by two names, which tries the
//! procedure and not the formats. And a cluster that runs plainly gets an authority without a client noticing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::etcd::Etcd;
use crate::masters;
use crate::support::load::{self, Load, Way};
use crate::support::nodes::Nodes;
use crate::support::{Place, REDHARE, wait_until};
use fabrics::initiator::{ConnectOptions, Controller};
use master::Masters;
use rustix::process::Signal;
use serde_json::Value;

const NODES: u16 = 3;
const CREATE: [&str; 7] = [
    "volume",
    "create",
    "load",
    "--size",
    "64MiB",
    "--chunk-size",
    "16MiB",
];
/// What an engine or a target says that cannot read what the other says.
const UNREADABLE: &str = "frames cannot be read";

/// The program to begin with: of an earlier revision, or this one under another name. Made once: a file that is made anew is
/// another one to the kernel, and the name of the first reads "(deleted)".
fn old_program() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        if let Some(path) = std::env::var_os("REDHARE_OLD") {
            return std::fs::canonicalize(path).expect("REDHARE_OLD names a program");
        }
        println!("REDHARE_OLD names no program of an earlier revision: this one goes by two names");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redhare-old");
        drop(std::fs::remove_file(&path));
        std::fs::hard_link(REDHARE, &path).unwrap();
        std::fs::canonicalize(path).unwrap()
    };
    MADE.get_or_init(make).clone()
}

fn masters_of(cluster: &Nodes, is_secure: bool) -> Masters {
    Masters {
        addresses: cluster.address(),
        credentials: is_secure.then(|| identity::Files::in_directory(&cluster.credentials("admin"))),
    }
}

/// Node by node, the engine first: it adopts the target of the other program, which is then replaced, too.
fn replace_nodes(cluster: &mut Nodes, load: &Load, program: &Path, signal: Signal) {
    for node in 1..=NODES {
        cluster.replace_engine(node);
        load.wait_for(200);
        cluster.replace_target_by(node, signal);
        load.wait_for(200);
        let program = Some(program.to_owned());
        assert_eq!(cluster.programs(node), [program.clone(), program], "node {node}");
    }
}

fn replace_master(cluster: &mut Nodes, load: &Load) {
    cluster.restart_master();
    cluster.wait_for_living(NODES.into());
    load.wait_for(200);
}

/// Whether `redhare status` says that more than one release runs.
fn several_run(cluster: &Nodes) -> bool {
    cluster.status().contains("several releases run")
}

/// Whether it says of each process of a node that it is this release.
fn each_is(cluster: &Nodes, release: &str) -> bool {
    let is_it = |row: &Value| row["engine_release"] == release && row["target_release"] == release;
    cluster.rows().iter().filter(|row| is_it(row)).count() == usize::from(NODES)
}

fn all_is_understood(cluster: &Nodes) {
    for node in 1..=NODES {
        for log in [cluster.engine_log(node), cluster.target_log(node)] {
            assert!(!log.contains(UNREADABLE), "node {node}: {log}");
        }
    }
}

fn roll(name: &str, is_secure: bool) {
    let (old, new) = (old_program(), std::fs::canonicalize(REDHARE).unwrap());
    assert_ne!(old, new);
    let mut cluster = Nodes::start_by(&old, Place::in_memory(name), NODES, is_secure);
    let files = cluster.import("volume create data --size 64MiB --chunk-size 16MiB", 5, 300_000);
    cluster.succeed(&CREATE);
    cluster.wait_for_sync();
    let way = Way::native(masters_of(&cluster, is_secure), "load");
    let load = Load::by(way.clone(), load::nothing());
    load.wait_for(200);
    // A clone that goes on sharing with its origin, and a host that knows portals only.
    cluster.succeed(&["volume", "snapshot", "create", "data", "before"]);
    cluster.succeed(&["volume", "clone", "data@before", "trial"]);
    let portals = exported(&cluster);
    let host = Load::by(portals.clone(), load::nothing());
    host.wait_for(50);

    cluster.use_program(&new);
    replace_master(&mut cluster, &load);
    // The same program by two names is one release.
    if std::env::var_os("REDHARE_OLD").is_some() {
        wait_until("it is told that several releases run", || several_run(&cluster));
    }
    replace_nodes(&mut cluster, &load, &new, Signal::KILL);
    wait_until("each process is told to be the new release", || {
        each_is(&cluster, foundation::RELEASE) && !several_run(&cluster)
    });
    cluster.compare(&files, "by the new program");
    // What only the new program knows is told once both ends of the link are new.
    wait_until("both ends know each other", || {
        (1..=NODES).all(|node| cluster.target_log(node).contains("says what it knows"))
    });
    // An earlier program's client is served still.
    cluster.use_program(&old);
    cluster.compare(&files, "by the old program");
    all_is_understood(&cluster);

    // And back, the other way round. What a release before is to go on with has to end in good order (0126).
    replace_nodes(&mut cluster, &load, &old, Signal::TERM);
    replace_master(&mut cluster, &load);
    cluster.compare(&files, "by the old program again");
    all_is_understood(&cluster);
    compare_with(&cluster, &files, "trial");
    host.wait_for(50);
    for (load, way, who) in [
        (load, way, "a native client"),
        (host, portals, "a host of portals"),
    ] {
        let (contents, slowest) = load.finish();
        println!("{name}: the slowest operation of {who} took {slowest:?}");
        load::check_by(&way, &contents);
    }
}

/// A volume that two nodes export.
fn exported(cluster: &Nodes) -> Way {
    let create = "volume create disk --size 64MiB --chunk-size 16MiB";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    let said = cluster.json(&["volume", "export", "disk"]);
    let portals = said["portals"].as_array().unwrap();
    let address = |portal: &serde_json::Value| portal["address"].as_str().unwrap().parse().unwrap();
    Way::Portals {
        addresses: portals.iter().map(address).collect(),
        nqn: said["nqn"].as_str().unwrap().to_owned(),
    }
}

/// What was imported comes out of a clone as it went in.
fn compare_with(cluster: &Nodes, files: &Path, what: &str) {
    let out = cluster.place.0.join("compared");
    cluster.succeed(&["fs", "export", what, out.to_str().unwrap()]);
    for entry in std::fs::read_dir(files).unwrap() {
        let name = entry.unwrap().file_name();
        let (was, is) = (std::fs::read(files.join(&name)), std::fs::read(out.join(&name)));
        assert!(was.unwrap() == is.unwrap(), "{what}: {name:?} is another");
    }
    std::fs::remove_dir_all(out).unwrap();
}

/// Three masters on an etcd, one after the other, first those that follow; and back. Nodes and clients are of the program before
/// all the while.
#[test]
fn masters_of_an_etcd_are_replaced_one_by_one_and_back() {
    if !crate::etcd::is_there("three masters on an etcd") {
        return;
    }
    let (old, new) = (old_program(), std::fs::canonicalize(REDHARE).unwrap());
    let etcd = Etcd::start(1);
    let mut cluster = masters::Cluster::start(&old, Place::in_memory("upgrade-masters"), &etcd);
    let created = cluster.ask(&CREATE);
    assert_eq!(created["name"], "load", "{created}");
    wait_until("all copies are in sync", || {
        let chunks = cluster.chunks();
        !chunks.is_empty() && chunks.iter().all(|chunk| chunk.1 == 3)
    });
    let (addresses, epochs) = (cluster.addresses(), cluster.chunks());
    let load = Load::start(&addresses, "load");
    load.wait_for(200);
    for (round, program) in [&new, &old].into_iter().enumerate() {
        let leader = cluster.leader().expect("one leads");
        for step in 1..=3 {
            cluster.replace_master((leader + step) % 3, program);
            load.wait_for(100);
            let name = format!("made-{round}-{step}");
            let made = cluster.ask(&[
                "volume",
                "create",
                &name,
                "--size",
                "16MiB",
                "--chunk-size",
                "16MiB",
            ]);
            assert_eq!(made["name"], name.as_str(), "{made}");
        }
        // Longer than a node is waited for that is not heard.
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(cluster.chunks(), epochs, "a living node was left out");
    }
    let (contents, slowest) = load.finish();
    println!("the slowest operation while masters were replaced took {slowest:?}");
    load::check(&addresses, "load", &contents);
}

#[test]
fn processes_are_replaced_one_by_one_and_back_while_clients_work() {
    roll("upgrade", false);
}

#[test]
fn the_same_with_an_authority() {
    roll("upgrade-secure", true);
}

/// Whether a node lets in who has nothing to prove itself with.
fn lets_in(address: SocketAddr, subsystem: &str) -> bool {
    let connected = reactor::run(&reactor::Config::default(), async {
        let host = "nqn.2026-11.io.redhare:client:0707070707070707";
        let options = ConnectOptions::new(
            address,
            subsystem.parse().unwrap(),
            host.parse().unwrap(),
            [7; 16],
        );
        Controller::connect(options).await.map(drop)
    });
    match connected.unwrap() {
        Ok(()) => true,
        Err(error) => {
            println!("{subsystem}: {error}");
            false
        }
    }
}

#[test]
fn a_cluster_that_runs_plainly_gets_an_authority_while_it_is_used() {
    let place = Place::in_memory("gets-authority");
    let settings = place.0.join("master.toml");
    std::fs::write(&settings, "data_key_period_ms = 4000\n").unwrap();
    let path = settings.to_str().unwrap().to_owned();
    let mut cluster = Nodes::start(place, &["--config", &path], NODES);
    cluster.succeed(&CREATE);
    cluster.wait_for_sync();
    let doors: Vec<(SocketAddr, String)> = (1..=NODES)
        .map(|node| {
            let name = format!("nqn.2026-11.io.redhare:node:{}", cluster.id(node));
            (cluster.node_address(node).parse().unwrap(), name)
        })
        .collect();
    let is_open = || {
        doors
            .iter()
            .map(|(address, name)| lets_in(*address, name))
            .collect::<Vec<_>>()
    };
    let plain = Load::start(&cluster.address(), "load");
    plain.wait_for(200);

    // Masters and engines stop, and start with credentials; a client of before goes on with the targets of before.
    cluster.get_authority();
    cluster.kill_master();
    (1..=NODES).for_each(|node| cluster.kill_engine(node));
    plain.wait_for(100);
    cluster.restart_master();
    (1..=NODES).for_each(|node| cluster.start_node(node));
    cluster.wait_for_living(NODES.into());
    plain.wait_for(100);
    assert_eq!(
        is_open(),
        [true; NODES as usize],
        "no target was started with credentials yet"
    );
    let proof = || cluster.json(&["status"])["data_path"].clone();
    wait_until("status names each node that is waited for", || {
        let (proof, all) = (proof(), usize::from(NODES));
        proof["proof_required"] == false && proof["awaited_nodes"].as_array().map(Vec::len) == Some(all)
    });
    let said_of_it = cluster.status();
    assert!(
        said_of_it.contains("data path does NOT require proof: 3 nodes are waited for"),
        "{said_of_it}"
    );
    let said = Command::new(REDHARE)
        .args(["status", "--cluster", &cluster.address()])
        .env_remove("REDHARE_CREDENTIALS")
        .output()
        .unwrap();
    assert!(
        !said.status.success(),
        "the masters answer only who has a certificate"
    );
    let (contents, _) = plain.finish();

    // Clients get credentials before the last node's target is another one.
    let way = Way::native(masters_of(&cluster, true), "load");
    let load = Load::by(way.clone(), contents);
    load.wait_for(100);
    for node in 1..=NODES {
        cluster.replace_target(node);
        load.wait_for(100);
        assert!(
            is_open().contains(&true) || node == NODES,
            "closed before all could prove themselves"
        );
    }
    wait_until("nobody is let in without a proof", || {
        is_open() == [false; NODES as usize]
    });
    let proof = cluster.json(&["status"])["data_path"].clone();
    assert_eq!(
        proof,
        serde_json::json!({ "proof_required": true, "awaited_nodes": [] })
    );
    load.wait_for(300);
    // From here on each starts again among those that ask for a proof.
    cluster.replace_engine(2);
    cluster.replace_target(2);
    load.wait_for(100);
    assert_eq!(is_open(), [false; NODES as usize]);
    let (contents, slowest) = load.finish();
    println!("the slowest operation took {slowest:?}");
    load::check_by(&way, &contents);
}
