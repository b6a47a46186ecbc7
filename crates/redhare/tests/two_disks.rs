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
    fn disk_called(&self, number: u16, file: &str) -> Value {
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

    /// Waits until every chunk has its three copies in sync and no other places, and nothing is promised to a disk; what was there is
    /// deleted.
    fn wait_until_empty(&self, number: u16) {
        wait_until("all copies are in sync without that disk", || {
            let chunks = self.chunks();
            let count = |chunk: &Value, field: &str| chunk[field].as_array().map_or(0, Vec::len);
            let whole = |chunk: &Value| {
                let others = count(chunk, "missing") + count(chunk, "out_of_sync");
                (count(chunk, "in_sync"), others) == (3, 0)
            };
            let disk = self.disk_called(number, FILE);
            !chunks.is_empty() && chunks.iter().all(whole) && (disk.is_null() || disk["allocated_bytes"] == 0)
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
