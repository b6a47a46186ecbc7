//! The masters' store is lost and made anew from the nodes' disks: every byte is there, also when one node was not read, and when the
//! disk of one is older than what it took part in; what cannot be known is refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Cluster, Place, REDHARE, free_ports, wait_until};
use rustix::process::Signal;

/// What `redhare meta rebuild` says, and whether it did what it was asked for.
fn rebuild(nodes: &[PathBuf], store: &Path, more: &[&str]) -> (bool, String) {
    let nodes: Vec<&str> = nodes.iter().map(|node| node.to_str().unwrap()).collect();
    let output = Command::new(REDHARE)
        .args(["meta", "rebuild", "--from-nodes", &nodes.join(","), "--store"])
        .arg(store)
        .args(more)
        .env_remove("REDHARE_CLUSTER")
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn make_files(directory: &Path, seed: u64) {
    std::fs::create_dir_all(directory).unwrap();
    let mut random = foundation::Random::from_seed(seed);
    for number in 0..30u64 {
        let bytes = 1 + random.below(300 << 10) as usize;
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
        let contents: Vec<u8> = words.collect();
        std::fs::write(directory.join(format!("{seed}-{number}")), &contents[..bytes]).unwrap();
    }
}

fn stop(mut cluster: Cluster) {
    cluster.signal(Signal::TERM);
    assert!(cluster.ended().success());
}

/// All that was imported comes out as it went in, and every copy is in sync.
fn check(cluster: &Cluster, source: &Path, out: &Path) {
    cluster.wait_for_chunks("v", &[1, 2, 3], &[], &[]);
    cluster.succeed(&["fs", "verify", "v"]);
    cluster.succeed(&["fs", "export", "v", out.to_str().unwrap()]);
    let mut diff = Command::new("diff");
    assert!(diff.arg("-r").arg(source).arg(out).status().unwrap().success());
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_lost_store_is_made_anew_from_the_disks() {
    let place = Place::in_memory("meta-rebuild");
    let (data, out, source) = (
        place.0.join("cluster"),
        place.0.join("out"),
        place.0.join("source"),
    );
    make_files(&source, 1);
    let store = data.join("master");
    let nodes: Vec<PathBuf> = (1..=3).map(|number| data.join(format!("node{number}"))).collect();

    let cluster = Cluster::start(&data, free_ports());
    cluster.succeed(&[
        "volume",
        "create",
        "v",
        "--size",
        "64MiB",
        "--chunk-size",
        "16MiB",
    ]);
    cluster.succeed(&["fs", "format", "v"]);
    cluster.succeed(&["fs", "import", source.to_str().unwrap(), "v"]);
    let (done, said) = rebuild(&nodes, &place.0.join("new"), &["--dry-run"]);
    assert!(
        !done && said.contains("node1"),
        "a node that runs is not read: {said}"
    );
    stop(cluster);

    // A disk as it was then; everything else goes on.
    let (disk, old) = (nodes[2].clone(), place.0.join("old"));
    let copied = Command::new("cp")
        .arg("-a")
        .arg(&disk)
        .arg(&old)
        .status()
        .unwrap();
    assert!(copied.success());
    let cluster = Cluster::start(&data, free_ports_of(&data));
    make_files(&source, 2);
    let more = place.0.join("more");
    make_files(&more, 2);
    cluster.wait_for_chunks("v", &[1, 2, 3], &[], &[]);
    cluster.succeed(&["fs", "import", more.to_str().unwrap(), "v"]);
    check(&cluster, &source, &out);
    stop(cluster);

    // All masters' metadata is lost.
    std::fs::remove_dir_all(&store).unwrap();
    let (done, said) = rebuild(&nodes[..1], &store, &[]);
    assert!(
        !done && said.contains("2 nodes were not read or have old disks"),
        "{said}"
    );
    assert!(
        said.contains("the store was not filled") && !store.exists(),
        "{said}"
    );
    let (done, said) = rebuild(&nodes, &store, &["--dry-run", "--json"]);
    assert!(done && !store.exists(), "{said}");
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&found["complete"], &found["filled"]),
        (&true.into(), &false.into())
    );
    let volume = &found["volumes"][0];
    assert_eq!(
        (&volume["name"], &volume["name_known"]),
        (&"recovered-1".into(), &false.into())
    );
    assert_eq!(volume["chunks"].as_array().unwrap().len(), 4);
    let (done, said) = rebuild(&nodes, &store, &["--name", "1=v"]);
    assert!(done && said.contains("Start the masters with"), "{said}");
    let (done, said) = rebuild(&nodes, &store, &["--name", "1=v"]);
    assert!(!done && said.contains("nothing was changed"), "{said}");
    let cluster = Cluster::start(&data, free_ports_of(&data));
    check(&cluster, &source, &out);
    // Nothing that was numbered before is numbered again.
    cluster.succeed(&["volume", "create", "w", "--size", "16MiB"]);
    let number = cluster.json(&["volume", "show", "w"])["number"].as_u64().unwrap();
    assert!(number > 1000, "{number}");
    cluster.succeed(&["volume", "delete", "w"]);
    cluster.wait(&["volume", "list"], |said| !said.contains("deleting"));
    stop(cluster);

    // Again, and one node is not read; of the others one says what it has by a file.
    std::fs::remove_dir_all(&store).unwrap();
    let file = place.0.join("node1.json");
    let mut take = Command::new(REDHARE);
    take.args(["meta", "inventory"])
        .arg(&file)
        .arg("--data")
        .arg(&nodes[0]);
    assert!(take.status().unwrap().success());
    assert!(!take.status().unwrap().success(), "a file is never overwritten");
    let (done, said) = rebuild(&[file, nodes[1].clone()], &store, &["--name", "1=v"]);
    assert!(done && said.contains("was not read"), "{said}");
    let cluster = Cluster::start(&data, free_ports_of(&data));
    check(&cluster, &source, &out);
    stop(cluster);

    // Again, and the disk of one is what it was before half of it was written: the newer ones win, and it is sent the rest.
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&old, &disk).unwrap();
    let (done, said) = rebuild(&nodes, &store, &["--name", "1=v"]);
    assert!(
        done && said.contains("4 chunks have a copy that is old or missing"),
        "{said}"
    );
    let cluster = Cluster::start(&data, free_ports_of(&data));
    check(&cluster, &source, &out);
    stop(cluster);
}

/// Copies of snapshots beside which a node's targets have said that they noted something.
fn noted(cluster: &Cluster, node: u32) -> u64 {
    let log = cluster.target_log(node);
    let lines = log
        .lines()
        .filter(|line| line.contains("what snapshots are called is noted"));
    let copies = lines.filter_map(|line| {
        line.split_once("copies=")?
            .1
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    });
    copies.sum()
}

#[test]
fn snapshots_and_clones_come_back_with_the_store() {
    let place = Place::in_memory("meta-rebuild-snapshots");
    let data = place.0.join("cluster");
    let store = data.join("master");
    let nodes: Vec<PathBuf> = (1..=3).map(|number| data.join(format!("node{number}"))).collect();
    let read = |cluster: &Cluster, what: &str| {
        let out = place.0.join("read");
        drop(std::fs::remove_file(&out));
        cluster.succeed(&["volume", "read", what, "--out", out.to_str().unwrap()]);
        std::fs::read(&out).unwrap()
    };
    let listed = |cluster: &Cluster| {
        let listed = cluster.json(&["volume", "snapshot", "list", "v"]);
        listed.as_array().cloned().unwrap_or_default()
    };
    let known = |snapshots: &[serde_json::Value]| -> Vec<Vec<serde_json::Value>> {
        let fields = ["name", "number", "created", "chunks", "size_bytes", "state"];
        let known = |snapshot: &serde_json::Value| fields.map(|field| snapshot[field].clone()).to_vec();
        snapshots.iter().map(known).collect()
    };

    let cluster = Cluster::start(&data, free_ports());
    let create = "volume create v --size 32MiB --chunk-size 8MiB";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    cluster.succeed(&["fs", "format", "v"]);
    for (seed, name) in [(3, "monday"), (4, "tuesday")] {
        let source = place.0.join(name);
        make_files(&source, seed);
        cluster.succeed(&["fs", "import", source.to_str().unwrap(), "v"]);
        cluster.succeed(&["volume", "snapshot", "create", "v", name]);
    }
    cluster.succeed(&["volume", "clone", "v@monday", "trial"]);
    let images = ["v@monday", "v@tuesday", "trial"].map(|what| (what, read(&cluster, what)));
    assert!(images[0].1 != images[1].1 && images[0].1 == images[2].1);
    let before = listed(&cluster);
    for node in 1..=3 {
        wait_until(
            &format!("node {node} has noted what the snapshots are called"),
            || noted(&cluster, node) >= 2 * 4,
        );
    }
    let shown = cluster.json(&["volume", "show", "trial"]);
    let trial = shown["number"].as_u64().unwrap();
    stop(cluster);

    std::fs::remove_dir_all(&store).unwrap();
    let names = ["--name", "1=v", "--name", &format!("{trial}=trial")];
    let (done, said) = rebuild(&nodes, &store, &[&names[..], &["--dry-run", "--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(done, "{said}");
    let found = found["snapshots"].as_array().unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|snapshot| ["name", "number", "chunks", "found_chunks", "problem"].map(|field| &snapshot[field]))
        .collect();
    let (four, null) = (serde_json::json!(4), serde_json::Value::Null);
    let expected: Vec<_> = before
        .iter()
        .map(|snapshot| [&snapshot["name"], &snapshot["number"], &four, &four, &null])
        .collect();
    assert_eq!(found, expected);
    let (done, said) = rebuild(&nodes, &store, &names);
    assert!(
        done && said.contains("monday") && said.contains("every chunk"),
        "{said}"
    );

    let cluster = Cluster::start(&data, free_ports_of(&data));
    cluster.wait_for_chunks("v", &[1, 2, 3], &[], &[]);
    let after = listed(&cluster);
    assert_eq!(known(&after), known(&before));
    for snapshot in &after {
        let copies = &snapshot["copies"];
        assert_eq!(
            (&copies["least"], &copies["most"]),
            (&3.into(), &3.into()),
            "{snapshot}"
        );
    }
    for (what, image) in &images {
        assert!(read(&cluster, what) == *image, "{what} is another");
    }
    // What is a clone knows it, and its snapshot stays until it has data of its own.
    let origin = cluster.json(&["volume", "show", "trial"])["origin"].clone();
    assert_eq!(
        (&origin["volume"], &origin["snapshot"]),
        (&"v".into(), &"monday".into())
    );
    let refused = cluster.run(&["volume", "snapshot", "delete", "v", "monday"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("trial"), "{said}");
    cluster.succeed(&["volume", "flatten", "trial"]);
    wait_until("the clone has data of its own", || {
        cluster.json(&["volume", "show", "trial"])["origin"].is_null()
    });
    // Another one, of the other.
    cluster.succeed(&["volume", "clone", "v@tuesday", "other"]);
    assert!(read(&cluster, "other") == images[1].1);
    cluster.succeed(&["volume", "delete", "other"]);
    cluster.wait(&["volume", "list"], |said| !said.contains("other"));
    cluster.succeed(&["volume", "snapshot", "create", "v", "wednesday"]);
    for (name, left) in [("monday", 2), ("tuesday", 1), ("wednesday", 0)] {
        cluster.succeed(&["volume", "snapshot", "delete", "v", name]);
        wait_until("the deleted snapshot is gone", || listed(&cluster).len() == left);
    }
    assert!(read(&cluster, "trial") == images[2].1);
    cluster.succeed(&["volume", "delete", "v"]);
    stop(cluster);
}

/// The ports at which the cluster listened, which its nodes keep.
fn free_ports_of(data: &Path) -> u16 {
    let text = std::fs::read_to_string(data.join("node1").join("target.toml")).unwrap();
    let (_, rest) = text.split_once("127.0.0.1:").unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u16>().unwrap() - 1
}
