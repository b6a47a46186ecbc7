//! A disk whose requests stand, in whole processes: each stage of the reset cures the fault that is planted for it, clients lose
//! nothing, and the disk that stands again and again is put out of service, rebuilt elsewhere, and put back by command.

use crate::support::nodes::Nodes;
use crate::support::{Place, kill, wait_until};
use serde_json::Value;

const NODE: u16 = 2;

impl Nodes {
    fn plant(&self, number: u16, fault: &str) {
        // Replaced in one step, so that no half of it is read.
        let file = self.directory(number).join("disk.fault");
        std::fs::write(file.with_extension("new"), fault).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }

    fn disk(&self, number: u16) -> Value {
        self.row(number)["disk_health"][0].clone()
    }

    fn wait_for_disk(&self, number: u16, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(what, || is_so(&self.disk(number)));
    }

    /// Every chunk has two copies in sync; none of them on this node, if one is named.
    fn wait_for_all_copies(&self, without: Option<u16>) {
        let without = without.map(|number| self.row(number)["node"].clone());
        wait_until("all copies are in sync", || {
            let chunks = self.chunks();
            let whole = |chunk: &Value| {
                let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
                let none = |field: &str| chunk[field].as_array().is_some_and(Vec::is_empty);
                in_sync.len() == 2
                    && none("missing")
                    && none("out_of_sync")
                    && without.as_ref().is_none_or(|id| !in_sync.contains(id))
            };
            !chunks.is_empty() && chunks.iter().all(whole)
        });
    }
}

fn resets(disk: &Value) -> [u64; 4] {
    ["queue", "device", "driver", "process"].map(|stage| disk["resets"][stage].as_u64().unwrap_or(0))
}

#[test]
fn a_disk_that_stands_is_reset_in_stages_and_put_out_of_service_when_it_keeps_doing_so() {
    let master = ["--no-rebalance"];
    let mut cluster = Nodes::start_with_faults(Place::in_memory("health"), &master, 3, "1s");
    let create = "volume create data --size 64MiB --chunk-size 16MiB --copies 2";
    let files = cluster.import(create, 61, 200 << 10);
    cluster.wait_for_disk(
        NODE,
        "a disk's samples are seen by its node and by others",
        |disk| {
            let samples = disk["samples"].as_array().cloned().unwrap_or_default();
            let answered = |sample: &Value| sample["samples"].as_u64() > Some(0);
            disk["state"] == "ok" && samples.len() == 3 && samples.iter().all(answered)
        },
    );
    let life = cluster.row(NODE)["incarnation"].clone();

    // The queue: nobody above notices.
    cluster.plant(NODE, "queue");
    cluster.wait_for_disk(NODE, "the queue was reset", |disk| {
        resets(disk) == [1, 0, 0, 0] && disk["state"] == "ok"
    });
    cluster.compare(&files, "queue");
    assert_eq!(resets(&cluster.disk(NODE)), [1, 0, 0, 0]);
    assert_eq!(cluster.row(NODE)["incarnation"], life);

    // The driver: nor here, but it is remembered.
    cluster.plant(NODE, "driver");
    cluster.wait_for_disk(NODE, "the driver was reset", |disk| {
        resets(disk) == [2, 1, 1, 0] && disk["state"] == "failing"
    });
    cluster.compare(&files, "driver");
    assert_eq!(cluster.row(NODE)["incarnation"], life);

    // The process: the engine ends it and starts another one.
    cluster.plant(NODE, "process");
    cluster.wait_for_disk(NODE, "the process was reset", |disk| resets(disk) == [3, 2, 2, 1]);
    wait_until("another life serves", || {
        let row = cluster.row(NODE);
        row["alive"] == true && row["incarnation"].as_u64() > life.as_u64()
    });
    cluster.plant(NODE, "");
    cluster.wait_for_all_copies(None);
    cluster.compare(&files, "process");

    // The third time is one too many: the disk goes, and what was on it comes up elsewhere.
    cluster.plant(NODE, "device");
    cluster.wait_for_disk(NODE, "the disk is out of service", |disk| {
        disk["state"] == "out of service"
    });
    let why = cluster.disk(NODE)["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("3 times within 10 minutes"), "{why}");
    cluster.wait_for_all_copies(Some(NODE));
    cluster.compare(&files, "out of service");
    cluster.plant(NODE, "");

    // It stays so when everything of the node starts anew, until somebody says otherwise.
    cluster.kill_node(NODE);
    cluster.start_node(NODE);
    cluster.wait_for_living(3);
    cluster.wait_for_disk(NODE, "the disk is still out of service", |disk| {
        disk["state"] == "out of service" && disk["draining"] == true
    });
    let (node, uuid) = (cluster.id(NODE), cluster.disk(NODE)["uuid"].clone());
    let uuid = uuid.as_str().unwrap().to_owned();
    let restore = ["node", "restore", &node, "--disk", &uuid];
    cluster.succeed(&restore);
    cluster.wait_for_disk(NODE, "the disk is back", |disk| {
        disk["state"] == "ok" && disk["draining"] == false
    });

    // One that stands when its target starts keeps that from nothing else, and goes at once.
    cluster.plant(NODE, "disk");
    kill(&cluster.directory(NODE).join("target.lock"));
    cluster.wait_for_disk(NODE, "the disk was left out", |disk| {
        disk["state"] == "out of service"
            && disk["why"]
                .as_str()
                .unwrap_or("")
                .contains("when the node started")
    });
    cluster.plant(NODE, "");
    cluster.succeed(&restore);
    cluster.wait_for_disk(NODE, "the disk is back again", |disk| disk["state"] == "ok");
    cluster.wait_for_all_copies(None);
    cluster.compare(&files, "back");

    // The device: another queue does not help, to open it anew does, and no process has to end.
    let (before, life) = (
        resets(&cluster.disk(NODE)),
        cluster.row(NODE)["incarnation"].clone(),
    );
    let after = [before[0] + 1, before[1] + 1, before[2], before[3]];
    cluster.plant(NODE, "device");
    cluster.wait_for_disk(NODE, "the device was opened anew", |disk| resets(disk) == after);
    cluster.compare(&files, "device");
    assert_eq!(resets(&cluster.disk(NODE)), after);
    assert_eq!(cluster.row(NODE)["incarnation"], life);
}
