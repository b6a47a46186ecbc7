//! Three nodes with two disks each and volumes of three copies, in whole processes: a disk is drained to the other one of its node, one
//! fails and what it had comes up beside it, and one is taken away. An old copy on a disk that comes back passes for nothing.

use serde_json::Value;

use crate::support::nodes::{JOURNAL_BYTES, Nodes};
use crate::support::{Place, kill, wait_until};

const NODES: u16 = 3;
/// The file of the disk to which something happens.
const FILE: &str = "disk2";

impl Nodes {
    /// A node's disk as `redhare status` shows it, by the name of its file.
    pub(crate) fn disk_called(&self, number: u16, file: &str) -> Value {
        let path = self.directory(number).join(file).display().to_string();
        let row = self.row(number);
        let mut disks = row["disk_health"].as_array().into_iter().flatten();
        disks
            .find(|disk| disk["path"] == path.as_str())
            .cloned()
            .unwrap_or_default()
    }

    fn wait_for_called(&self, number: u16, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(what, || is_so(&self.disk_called(number, FILE)));
    }

    /// Every chunk has its three copies in sync and no other places.
    fn is_whole(&self) -> bool {
        let chunks = self.chunks();
        let count = |chunk: &Value, field: &str| chunk[field].as_array().map_or(0, Vec::len);
        let whole = |chunk: &Value| {
            let others = count(chunk, "missing") + count(chunk, "out_of_sync");
            (count(chunk, "in_sync"), others) == (3, 0)
        };
        !chunks.is_empty() && chunks.iter().all(whole)
    }

    /// Waits until that is so, and nothing is promised to a disk; what was there is deleted.
    fn wait_until_empty(&self, number: u16) {
        wait_until("all copies are in sync without that disk", || {
            let disk = self.disk_called(number, FILE);
            self.is_whole() && (disk.is_null() || disk["allocated_bytes"] == 0)
        });
    }
}

#[test]
fn what_is_on_a_disk_comes_up_on_the_other_one_of_its_node() {
    let master = ["--no-rebalance", "--rebuild-after", "3"];
    let mut cluster = Nodes::start_with_faults(Place::in_memory("two-disks"), &master, NODES, "1s");
    // Each gets a second disk.
    for number in 1..=NODES {
        cluster.use_disks(number, &["disk", FILE]);
        cluster.kill_node(number);
        cluster.start_node(number);
    }
    cluster.wait_for_living(NODES.into());
    let create = "volume create data --size 128MiB --chunk-size 16MiB --copies 3";
    let files = cluster.import(create, 62, 300 << 10);
    for number in 1..=NODES {
        let used = cluster.disk_called(number, FILE)["allocated_bytes"].as_u64();
        assert_eq!(
            used,
            Some(4 * (16 << 20)),
            "half of the chunks are on node {number}'s second disk"
        );
    }

    // Drained by command: there is no other node.
    let (id, uuid) = (cluster.id(1), cluster.disk_called(1, FILE)["uuid"].clone());
    let uuid = uuid.as_str().unwrap().to_owned();
    cluster.succeed(&["node", "drain", &id, "--disk", &uuid]);
    cluster.compare(&files, "draining");
    cluster.wait_until_empty(1);
    cluster.wait_for_called(1, "what was there is deleted", |disk| {
        disk["draining"] == true && disk["used_bytes"] == JOURNAL_BYTES
    });
    assert_eq!(cluster.row(1)["draining_copies"], 0);
    cluster.compare(&files, "drained");
    let other = cluster.disk_called(1, "disk")["uuid"].clone();
    let said = cluster.refused(&["node", "drain", &id, "--disk", other.as_str().unwrap()]);
    assert!(
        said.contains("cannot be drained") && said.contains("also another disk of the node"),
        "{said}"
    );
    cluster.succeed(&["node", "undrain", &id, "--disk", &uuid]);

    // One that does not answer goes, and the other one of its node has everything: also with a node less.
    std::fs::write(cluster.directory(2).join(format!("{FILE}.fault")), "disk").unwrap();
    kill(&cluster.directory(2).join("target.lock"));
    cluster.wait_for_called(2, "the disk is out of service", |disk| {
        disk["state"] == "out of service"
    });
    cluster.wait_until_empty(2);
    cluster.compare(&files, "failed");
    cluster.kill_node(3);
    cluster.compare(&files, "failed, and a node less");
    cluster.start_node(3);
    cluster.wait_until_empty(2);

    // It comes back with what it had then, which is old.
    std::fs::write(cluster.directory(2).join(format!("{FILE}.fault")), "").unwrap();
    let (id, uuid) = (cluster.id(2), cluster.disk_called(2, FILE)["uuid"].clone());
    cluster.succeed(&["node", "restore", &id, "--disk", uuid.as_str().unwrap()]);
    cluster.wait_for_called(2, "the disk is back, and empty", |disk| {
        disk["state"] == "ok" && disk["draining"] == false && disk["used_bytes"] == JOURNAL_BYTES
    });
    assert_eq!(
        cluster
            .target_log(2)
            .matches("a newer one is on another disk")
            .count(),
        4
    );
    cluster.wait_until_empty(2);
    cluster.compare(&files, "restored");

    // One that is taken away without a word is missed until its copies are elsewhere.
    cluster.kill_node(3);
    cluster.use_disks(3, &["disk"]);
    cluster.start_node(3);
    wait_until("the disk is missed", || {
        let said = String::from_utf8_lossy(&cluster.run(&["status"]).stdout).into_owned();
        said.contains("is missing (its node runs without it, and copies are promised to it)")
    });
    cluster.wait_until_empty(3);
    cluster.wait_for_living(NODES.into());
    cluster.compare(&files, "taken away");
}

/// A membership names nodes and lives, no disks. So after a power cut a node whose copy was made anew on one disk, and that comes back
/// with the other one only, has a copy that looks as if it were in sync, and is old.
#[test]
fn an_old_copy_serves_nothing_after_a_power_cut_when_the_disk_with_the_newer_one_is_gone() {
    let master = ["--no-rebalance", "--rebuild-after", "3"];
    let mut cluster = Nodes::start_with_faults(Place::in_memory("newer-gone"), &master, NODES, "30s");
    cluster.use_disks(1, &["disk", FILE]);
    cluster.kill_node(1);
    cluster.start_node(1);
    cluster.wait_for_living(NODES.into());
    let create = "volume create data --size 128MiB --chunk-size 16MiB --copies 3";
    let files = cluster.import(create, 63, 300 << 10);
    let used = cluster.disk_called(1, FILE)["allocated_bytes"].as_u64();
    assert_eq!(used, Some(4 * (16 << 20)), "half of the chunks are there");

    // The disk is away, what it had is made anew on the other one, and then written.
    cluster.kill_node(1);
    cluster.use_disks(1, &["disk"]);
    cluster.start_node(1);
    cluster.wait_until_empty(1);
    for entry in std::fs::read_dir(&files).unwrap() {
        let path = entry.unwrap().path();
        let bytes: Vec<u8> = std::fs::read(&path).unwrap().iter().map(|byte| !byte).collect();
        std::fs::write(path, [&bytes[..], b"more"].concat()).unwrap();
    }
    cluster.succeed(&["fs", "import", files.to_str().unwrap(), "data"]);
    cluster.compare(&files, "written anew");

    // Everything is off, and of the two disks the wrong one is back.
    for number in 1..=NODES {
        cluster.kill_node(number);
    }
    cluster.use_disks(1, &[FILE]);
    for number in 1..=NODES {
        cluster.start_node(number);
    }
    cluster.compare(&files, "after the power cut");
    wait_until("all copies are in sync again", || cluster.is_whole());
    let deleted = cluster.target_log(1).matches("no place here any more").count();
    assert_eq!(deleted, 4, "the old copies");
    // What the node has now is what there was last: with either of the others gone, half of all is read there.
    for other in [2, 3] {
        cluster.kill_node(other);
        cluster.compare(&files, "a node less");
        cluster.start_node(other);
        wait_until("all copies are in sync once more", || cluster.is_whole());
    }
}
