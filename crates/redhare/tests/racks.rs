//! Racks, with processes of their own: copies are in different ones, what cannot be is refused with the numbers, and what a lost rack had
//! is made anew in another one.

use std::collections::BTreeSet;

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};

/// Of the nodes by number: two in the first rack, two in the second, one in the third.
const RACKS: [&str; 5] = ["r1", "r1", "r2", "r2", "r3"];

/// The racks of each chunk's copies in sync.
fn racks_of_chunks(cluster: &Nodes) -> Vec<BTreeSet<String>> {
    let rows = cluster.rows();
    let rack_of = |id: &serde_json::Value| {
        let row = rows.iter().find(|row| row["node"] == *id).unwrap();
        row["rack"].as_str().unwrap().to_owned()
    };
    let chunks = cluster.chunks();
    let racks = chunks.iter().map(|chunk| {
        let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
        in_sync.iter().map(rack_of).collect()
    });
    racks.collect()
}

#[test]
fn a_lost_rack_costs_each_chunk_one_copy_which_is_made_anew_in_another_rack() {
    let mut cluster = Nodes::start(Place::in_memory("racks"), &["--rebuild-after", "3"], 0);
    cluster.use_racks(&RACKS);
    for number in 1..=5 {
        cluster.start_node(number);
    }
    cluster.wait_for_living(5);
    let said = cluster.refused(&[
        "volume", "create", "wide", "--size", "64MiB", "--copies", "4", "--spread", "rack",
    ]);
    assert!(
        said.contains("4 copies want 4 racks") && said.contains('3'),
        "{said}"
    );
    let files = cluster.import(
        "volume create data --size 128MiB --chunk-size 16MiB --copies 2",
        30,
        600 << 10,
    );
    let racks = racks_of_chunks(&cluster);
    assert_eq!(racks.len(), 8);
    assert!(racks.iter().all(|racks| racks.len() == 2), "{racks:?}");
    let status = cluster.run(&["status"]).stdout;
    let status = String::from_utf8(status).unwrap();
    assert!(status.contains("RACK") && status.contains("r3"), "{status}");

    // Every chunk has another copy: all is read, and the copies that are lost are made anew where the other one is not.
    cluster.kill_node(1);
    cluster.kill_node(2);
    cluster.compare(&files, "a rack is gone");
    let lost = BTreeSet::from(["r1".to_owned()]);
    wait_until("all copies are in the two racks that are left", || {
        let racks = racks_of_chunks(&cluster);
        racks
            .iter()
            .all(|racks| racks.len() == 2 && racks.is_disjoint(&lost))
    });
    cluster.compare(&files, "made anew");

    // A node is elsewhere now, by another name: the masters know it from its next start on.
    cluster.kill_node(5);
    cluster.use_racks(&["r1", "r1", "r2", "r2", "r4"]);
    cluster.start_node(5);
    wait_until("the node's rack is the new one", || {
        cluster.row(5)["rack"] == "r4"
    });
    let said = cluster.refused_rack(5, "a rack");
    assert!(said.contains("a rack") && said.contains("letters"), "{said}");
}
