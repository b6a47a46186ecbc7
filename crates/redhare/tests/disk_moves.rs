//! Each of three nodes gets a second disk, where volumes have three copies, so that no copy could go to another node: half of all copies move within
//! their nodes, though targets and engines are killed in the middle, and nothing is lost. Then all of a disk goes to the other one, by command, and no
//! copy is given up for it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::nodes::{JOURNAL_BYTES, Nodes};
use crate::support::{Place, wait_until};

const NODES: u16 = 3;
const CHUNKS: u64 = 16;
/// The file of a node's second disk.
const SECOND: &str = "disk2";

impl Nodes {
    /// What is promised on the first disk of a node and on the second, in chunks.
    fn promised(&self, number: u16) -> [u64; 2] {
        ["disk", SECOND].map(|file| {
            let disk = self.disk_called(number, file);
            disk["allocated_bytes"].as_u64().unwrap_or(0) >> 24
        })
    }

    /// The configurations of all chunks, by which it is seen that nobody was left out.
    fn members(&self) -> BTreeSet<(String, usize)> {
        let member = |chunk: &Value| {
            let in_sync = chunk["in_sync"].as_array().map_or(0, Vec::len);
            (chunk["epoch"].to_string(), in_sync)
        };
        self.chunks().iter().map(member).collect()
    }
}

#[test]
fn disks_that_are_added_to_all_nodes_get_half_of_what_the_others_have() {
    let mut cluster = Nodes::start(Place::in_memory("disk-moves"), &["--rebuild-after", "30"], NODES);
    let create = "volume create data --size 256MiB --chunk-size 16MiB --copies 3";
    let files = cluster.import(create, 91, 2 << 20);
    for number in 1..=NODES {
        assert_eq!(cluster.promised(number), [CHUNKS, 0]);
        cluster.use_disks(number, &["disk", SECOND]);
        cluster.kill_node(number);
        cluster.start_node(number);
        cluster.wait_for_living(NODES.into());
        cluster.wait_for_sync();
    }
    wait_until("a copy has moved", || {
        (1..=NODES).any(|number| cluster.promised(number)[1] > 0)
    });
    // In the middle, if it is not over yet: the target of one node and all of another.
    cluster.replace_target(1);
    cluster.kill_node(2);
    cluster.start_node(2);
    cluster.wait_for_living(NODES.into());
    cluster.wait_for_sync();
    let half = [CHUNKS / 2; 2];
    wait_until("the disks of each node are even", || {
        (1..=NODES).all(|number| cluster.promised(number) == half)
    });
    cluster.compare(&files, "even");
    wait_until("it rests", || {
        cluster.json(&["cluster", "rebalance"])["state"] == "even"
    });

    let before = cluster.members();
    let (id, disk) = (cluster.id(3), cluster.disk_called(3, SECOND));
    let disk = disk["uuid"].as_str().unwrap().to_owned();
    cluster.succeed(&["node", "drain", &id, "--disk", &disk]);
    cluster.compare(&files, "draining");
    wait_until("all has gone to the other disk", || {
        cluster.promised(3) == [CHUNKS, 0]
    });
    assert_eq!(cluster.members(), before, "nobody was left out for it");
    wait_until("what was there is deleted", || {
        cluster.disk_called(3, SECOND)["used_bytes"] == JOURNAL_BYTES
    });
    // What moved is there after a power cut.
    cluster.kill_node(3);
    cluster.use_disks(3, &["disk"]);
    cluster.start_node(3);
    cluster.wait_for_living(NODES.into());
    cluster.wait_for_sync();
    for other in [1, 2] {
        cluster.kill_node(other);
        cluster.compare(&files, "a node less");
        cluster.start_node(other);
        cluster.wait_for_living(NODES.into());
        cluster.wait_for_sync();
    }
}
