//! Nodes as processes of their own, so that one can stay away: what it had is rebuilt on the others within the time that
//! was set, compared byte for byte with two nodes dead; it comes back and deletes what it has no place for; a node is
//! drained while files are read; and a drain that cannot work is refused with the numbers.

use crate::support::nodes::{JOURNAL_BYTES, Nodes};
use crate::support::{Place, wait_until};

const NODES: u16 = 4;

impl Nodes {
    /// Until `redhare status` says this of the cluster, and why.
    fn wait_for_verdict(&self, word: &str, why: &str) {
        wait_until(&format!("the cluster is {word}: {why}"), || {
            let said = self.status();
            let first = said.lines().next().unwrap_or_default();
            first.ends_with(&format!(" is {word}")) && said.contains(why)
        });
    }

    /// Every chunk has all its copies in sync, none of them on these nodes, and no other places.
    fn wait_for_all_copies_without(&self, without: &[u16]) {
        let ids: Vec<_> = without
            .iter()
            .map(|&number| self.row(number)["node"].clone())
            .collect();
        wait_until(
            &format!("all copies are in sync without nodes {without:?}"),
            || {
                let chunks = self.chunks();
                let whole = |chunk: &serde_json::Value| {
                    let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
                    let none = |field: &str| chunk[field].as_array().is_some_and(Vec::is_empty);
                    in_sync.len() == 2
                        && none("missing")
                        && none("out_of_sync")
                        && !in_sync.iter().any(|id| ids.contains(id))
                };
                !chunks.is_empty() && chunks.iter().all(whole)
            },
        );
    }
}

#[test]
fn what_a_node_had_that_stays_away_is_rebuilt_elsewhere_and_a_node_can_be_drained() {
    let master = ["--no-rebalance", "--rebuild-after", "3"];
    let mut cluster = Nodes::start(Place::in_memory("rebuild"), &master, NODES);
    let create = "volume create data --size 128MiB --chunk-size 16MiB --copies 2";
    let files = cluster.import(create, 60, 600 << 10);

    cluster.wait_for_verdict("healthy", "all copies in sync");

    // A node stays away: its copies are made anew on the three others.
    cluster.kill_node(1);
    cluster.wait_for_verdict("DEGRADED", ") is gone\n");
    cluster.wait_for_all_copies_without(&[1]);
    cluster.compare(&files, "one dead");
    assert_eq!(
        cluster.row(1)["allocated_bytes"],
        0,
        "the room of what it had is given back"
    );
    // Then another: of two copies of each chunk one is left, and where the first node's were the only ones, the new ones.
    cluster.kill_node(2);
    cluster.wait_for_all_copies_without(&[1, 2]);
    cluster.compare(&files, "two dead");

    // They come back, and delete what they have no place for.
    let before = std::fs::metadata(cluster.directory(1).join("disk")).unwrap();
    assert!(before.len() > 0);
    for number in [1, 2] {
        cluster.start_node(number);
    }
    cluster.wait_for_living(NODES.into());
    for number in [1, 2] {
        wait_until(&format!("node {number} has deleted its copies"), || {
            let log =
                std::fs::read_to_string(cluster.directory(number).join("target.log")).unwrap_or_default();
            let row = cluster.row(number);
            log.contains("has no place here any more is deleted") && row["used_bytes"] == JOURNAL_BYTES
        });
    }

    // Everything moves away from a node that lives, and it is told how much is left.
    let id = cluster.id(3);
    cluster.succeed(&["node", "drain", &id]);
    cluster.compare(&files, "draining");
    cluster.wait_for_all_copies_without(&[3]);
    let row = cluster.row(3);
    assert_eq!(
        (&row["draining"], &row["draining_copies"]),
        (&true.into(), &0.into())
    );
    cluster.compare(&files, "drained");
    // One node more can go, but not two: then too few are left.
    let other = cluster.id(4);
    cluster.succeed(&["node", "drain", &other]);
    cluster.wait_for_all_copies_without(&[3, 4]);
    let last = cluster.id(1);
    let said = cluster.refused(&["node", "drain", &last]);
    assert!(
        said.contains("cannot be drained") && said.contains("need 2 different nodes"),
        "{said}"
    );
    cluster.succeed(&["node", "undrain", &other]);
    assert_eq!(cluster.row(4)["draining"], false);
    cluster.compare(&files, "undrained");

    // What is empty and drained can be taken out, what is not cannot; whoever was taken out does not come back.
    let said = cluster.refused(&["node", "remove", &last]);
    assert!(
        said.contains("cannot be removed") && said.contains("copies ("),
        "{said}"
    );
    cluster.succeed(&["node", "remove", &id]);
    let said = cluster.refused(&["node", "remove", &id]);
    assert!(said.contains("no node is called"), "{said}");
    cluster.wait_for_living(usize::from(NODES) - 1);
    cluster.kill_node(3);
    let said = cluster.refused_node(3);
    assert!(said.contains("was removed from this cluster"), "{said}");
    cluster.compare(&files, "removed");
}

/// As many nodes as copies: nothing can be made anew, and people are told what they have to do.
#[test]
fn status_says_how_long_a_node_is_waited_for_and_then_that_there_is_no_place() {
    let master = ["--no-rebalance", "--rebuild-after", "8"];
    let mut cluster = Nodes::start(Place::in_memory("no-place"), &master, 3);
    let create = "volume create data --size 64MiB --chunk-size 16MiB";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    cluster.wait_for_verdict("healthy", "all copies in sync");
    let node = cluster.id(3)[..8].to_owned();
    cluster.kill_node(3);
    let waited_for = format!("  > node {node} is waited for: 4 copies of it are made elsewhere in about ");
    cluster.wait_for_verdict("DEGRADED", &waited_for);
    let no_place = "  ! 4 of these have no place for another copy: each needs a living node without a copy of it and with a disk that has room \
                    for 16 MiB";
    cluster.wait_for_verdict("DEGRADED", no_place);
    let said = cluster.status();
    assert!(!said.contains("is waited for"), "{said}");
    cluster.start_node(3);
    cluster.wait_for_verdict("healthy", "all copies in sync");
}
