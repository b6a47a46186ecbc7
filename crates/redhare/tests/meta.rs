//! A cluster's metadata goes to a file and into another store; nothing of the volumes is lost, and the old store serves nobody.

use std::path::Path;
use std::process::Command;

use crate::etcd::Etcd;
use crate::support::load::{self, Load};
use crate::support::nodes::Nodes;
use crate::support::{Cluster, Place, REDHARE, free_ports, wait_until};
use rustix::process::Signal;

/// What `redhare meta` says, and whether it did what it was asked for.
fn meta(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(REDHARE);
    let output = command
        .arg("meta")
        .args(arguments)
        .env_remove("REDHARE_CLUSTER")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_cluster_goes_on_in_another_store() {
    let place = Place::new("meta");
    let (data, source) = (place.0.join("cluster"), place.0.join("source"));
    std::fs::create_dir(&source).unwrap();
    for number in 0..20 {
        std::fs::write(
            source.join(format!("{number}")),
            vec![number; 5000 * usize::from(number)],
        )
        .unwrap();
    }
    let (store, file) = (data.join("master"), place.0.join("cluster.meta"));
    let take = ["export", text(&file), "--move", "--store", text(&store)];
    let cluster = {
        let mut cluster = Cluster::start(&data, free_ports());
        cluster.succeed(&["volume", "create", "v", "--size", "64MiB"]);
        cluster.succeed(&["fs", "format", "v"]);
        cluster.succeed(&["fs", "import", text(&source), "v"]);
        let (done, said) = meta(&take);
        assert!(
            !done && said.contains("is open in another process; stop the master"),
            "{said}"
        );
        assert!(!file.exists(), "nothing is left of what failed");
        let status = cluster.succeed(&["status", "--json"]);
        cluster.signal(Signal::TERM);
        assert!(cluster.ended().success());
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["cluster"].as_str().unwrap().to_owned()
    };
    let backup = place.0.join("backup.meta");
    let (done, said) = meta(&["export", text(&backup), "--store", text(&store)]);
    assert!(done, "{said}");
    let (done, said) = meta(&take);
    assert!(done && said.contains("redhare meta import"), "{said}");
    let (done, said) = meta(&take);
    assert!(
        !done && said.contains("File exists"),
        "a file is never overwritten: {said}"
    );
    let (done, said) = meta(&["show", text(&file), "--json"]);
    assert!(done, "{said}");
    let shown: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(shown["cluster"], cluster.as_str());
    assert_eq!((&shown["nodes"], &shown["volumes"]), (&3.into(), &1.into()));

    // The master does not start on the store that was left.
    let port = free_ports().to_string();
    let master = [
        "master",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--store",
        text(&store),
    ];
    let output = Command::new(REDHARE).args(master).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("was moved to another store"),
        "{said}"
    );

    let new = place.0.join("new");
    let (done, said) = meta(&["import", text(&backup), "--store", text(&new)]);
    assert!(!done && said.contains("was not closed"), "{said}");
    let (done, said) = meta(&["import", text(&file), "--store", text(&new)]);
    assert!(done, "{said}");
    let (done, said) = meta(&["import", text(&file), "--store", text(&new)]);
    assert!(!done && said.contains("nothing was changed"), "{said}");
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(&new, &store).unwrap();
    let mut cluster = Cluster::start(&data, free_ports());
    cluster.succeed(&["fs", "verify", "v"]);
    let out = place.0.join("out");
    cluster.succeed(&["fs", "export", "v", text(&out)]);
    let mut diff = Command::new("diff");
    let same = diff.args(["-r", text(&source), text(&out)]).status().unwrap();
    assert!(same.success());
    cluster.succeed(&["volume", "create", "w", "--size", "16MiB"]);
    cluster.signal(Signal::TERM);
    assert!(cluster.ended().success());
}

/// From a file to an etcd and back to another file while a client writes and reads: it notices nothing, and no node is left out.
#[test]
fn volumes_are_in_use_while_their_cluster_moves_between_stores() {
    if !crate::etcd::is_there("a cluster that moves to an etcd") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut cluster = Nodes::start(Place::in_memory("meta-in-use"), &["--no-rebalance"], 3);
    let create = "volume create data --size 64MiB --chunk-size 16MiB";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    cluster.wait_for_sync();
    cluster.succeed(&["volume", "snapshot", "create", "data", "before"]);
    let (identity, chunks) = (cluster.json(&["status"])["cluster"].clone(), cluster.chunks());
    let load = Load::start(&cluster.address(), "data");
    load.wait_for(200);
    let other = cluster.place.0.join("other");
    let stores = [
        format!("etcd://{}/moved", etcd.endpoints()),
        text(&other).to_owned(),
    ];
    for (number, to) in stores.iter().enumerate() {
        let file = cluster.place.0.join(format!("{number}.meta"));
        cluster.end_master();
        load.wait_for(50);
        let (done, said) = meta(&["export", text(&file), "--move", "--store", &cluster.store()]);
        assert!(done, "{said}");
        let (done, said) = meta(&["import", text(&file), "--store", to]);
        assert!(done, "{said}");
        load.wait_for(50);
        cluster.use_store(to);
        cluster.start_master();
        cluster.wait_for_living(3);
        // Longer than a node is waited for that is not heard.
        std::thread::sleep(std::time::Duration::from_secs(4));
        load.wait_for(50);
        assert_eq!(cluster.json(&["status"])["cluster"], identity);
        assert_eq!(cluster.chunks(), chunks, "a living node was left out");
        let name = format!("made{number}");
        cluster.succeed(&["volume", "create", &name, "--size", "16MiB"]);
        let status = cluster.status();
        assert!(status.contains(" is healthy"), "{status}");
    }
    // A member of the set dies: the new store has all that it takes to let it in again.
    let life = cluster.row(2)["incarnation"].as_u64();
    crate::support::kill(&cluster.directory(2).join("target.lock"));
    wait_until("its next life serves", || {
        cluster.row(2)["incarnation"].as_u64() > life
    });
    cluster.wait_for_sync();
    let listed = cluster.json(&["volume", "snapshot", "list", "data"]);
    assert!(listed.to_string().contains("before"), "{listed}");
    let (contents, slowest) = load.finish();
    println!("longest operation while the cluster moved: {slowest:?}");
    load::check(&cluster.address(), "data", &contents);
}
