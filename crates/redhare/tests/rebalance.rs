//! A cluster of real processes grows by a node while files are read: copies move until all nodes are used alike, though the new
//! node is killed in the middle; nothing is lost, and it ends. Then a copy and the writes of a chunk move by command.

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};
use serde_json::Value;

impl Nodes {
    /// How many copies each node has, once all are in sync and nothing moves.
    fn wait_for_rest(&self) -> Vec<u64> {
        wait_until("all copies are in sync, and nothing moves", || {
            let whole = |chunk: &Value| {
                let count = |field: &str| chunk[field].as_array().map(Vec::len);
                (count("in_sync"), count("missing"), count("out_of_sync")) == (Some(2), Some(0), Some(0))
            };
            let chunks = self.chunks();
            let balance = self.json(&["cluster", "rebalance"]);
            chunks.len() == 24
                && chunks.iter().all(whole)
                && (balance["state"] == "even" || balance["state"] == "stopped")
        });
        self.rows()
            .iter()
            .map(|row| row["allocated_bytes"].as_u64().unwrap() >> 24)
            .collect()
    }
}

#[test]
fn a_node_more_gets_its_share_though_it_is_killed_in_the_middle() {
    let mut cluster = Nodes::start(Place::in_memory("rebalance"), &["--rebuild-after", "30"], 3);
    let create = "volume create data --size 384MiB --chunk-size 16MiB --copies 2";
    let files = cluster.import(create, 76, 3 << 20);
    assert_eq!(cluster.wait_for_rest(), [16, 16, 16]);

    cluster.start_node(4);
    cluster.wait_for_living(4);
    wait_until("a copy moves", || {
        let status = cluster.json(&["status"]);
        status["balance"]["moves"]
            .as_array()
            .is_some_and(|moves| !moves.is_empty())
    });
    cluster.kill_node(4);
    cluster.compare(&files, "the new node is dead");
    cluster.start_node(4);
    cluster.wait_for_living(4);
    assert_eq!(cluster.wait_for_rest(), [12, 12, 12, 12]);
    cluster.compare(&files, "even");

    // By command; what was moved so would be moved back if the masters were let.
    cluster.succeed(&["cluster", "rebalance", "--stop"]);
    let chunk = cluster.chunks()[5].clone();
    let has = |id: &str| {
        let copies = chunk["in_sync"].as_array().cloned().unwrap_or_default();
        copies.iter().any(|copy| copy == id)
    };
    let ids: Vec<String> = (1..=4).map(|number| cluster.id(number)).collect();
    let (with, without): (Vec<&String>, Vec<&String>) = ids.iter().partition(|id| has(id));
    let other = with.iter().find(|id| chunk["write_node"] != id.as_str()).unwrap();
    cluster.succeed(&["volume", "move", "data", "--chunk", "5", "--write-node", other]);
    assert_eq!(cluster.chunks()[5]["write_node"], other.as_str());
    let said = cluster.refused(&[
        "volume", "move", "data", "--chunk", "5", "--from", without[0], "--to", without[1],
    ]);
    assert!(said.contains("has no copy of it"), "{said}");
    cluster.succeed(&[
        "volume", "move", "data", "--chunk", "5", "--from", other, "--to", without[0],
    ]);
    wait_until("the copy has moved", || {
        let chunk = cluster.chunks()[5].clone();
        let copies = chunk["in_sync"].as_array().cloned().unwrap_or_default();
        copies.len() == 2
            && copies.iter().any(|copy| copy == without[0])
            && !copies.iter().any(|copy| copy == *other)
    });
    let said = cluster.refused(&["volume", "set", "data", "--write-node", without[0]]);
    assert!(said.contains("of its 24 chunks"), "{said}");
    cluster.wait_for_rest();
    cluster.compare(&files, "moved by command");
}

/// In as many nodes as there are copies each has one of every chunk, so that any of them may be the one.
#[test]
fn writes_go_to_the_node_that_they_are_pinned_to_and_come_back_to_it() {
    let mut cluster = Nodes::start(Place::in_memory("pinned"), &[], 3);
    let files = cluster.import(
        "volume create data --size 96MiB --chunk-size 16MiB",
        64,
        200 << 10,
    );
    let all_at = |cluster: &Nodes, id: &str| cluster.chunks().iter().all(|chunk| chunk["write_node"] == id);
    let id = cluster.id(2);
    assert!(!all_at(&cluster, &id));
    cluster.succeed(&["volume", "set", "data", "--write-node", &id]);
    wait_until("it orders all writes", || all_at(&cluster, &id));
    cluster.compare(&files, "pinned");
    // Others do while it is away, and no longer.
    cluster.kill_node(2);
    wait_until("another one does", || !all_at(&cluster, &id));
    cluster.start_node(2);
    wait_until("it does again", || all_at(&cluster, &id));
    cluster.wait_for_sync();
    cluster.compare(&files, "pinned, and back");
}
