//! Another cluster comes to the addresses of one that is down, master and nodes: a client that writes to a volume of the first
//! neither reads nor writes the volume of the same number of the other one, and goes on when its own cluster is back.

use crate::support::load::{Load, check, nothing};
use crate::support::{Cluster, Place, free_ports};

/// What was acknowledged outlives the end of all nodes: the client goes on with it.
fn create(cluster: &Cluster) {
    let create = "volume create v --size 64MiB --copies 3 --sync-writes";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
}

/// Above those of the first cluster, whatever became of it while it ended: a client takes no older configuration than it has.
fn raise_epochs(cluster: &Cluster) {
    let shown = cluster.json(&["volume", "show", "v"]);
    let chunks = shown["chunks"].as_array().unwrap().len();
    for _ in 0..4 {
        for node in 1..=3 {
            let id = cluster.id(node);
            for chunk in 0..chunks {
                cluster.succeed(&[
                    "volume",
                    "move",
                    "v",
                    "--chunk",
                    &chunk.to_string(),
                    "--write-node",
                    &id,
                ]);
            }
        }
    }
}

#[test]
fn a_client_does_not_follow_another_cluster_to_its_address() {
    let place = Place::in_memory("foreign");
    let [ours, theirs] = ["ours", "theirs"].map(|name| place.0.join(name));
    let port = free_ports();
    let cluster = Cluster::start(&ours, port);
    create(&cluster);
    let address = cluster.address();
    let load = Load::start(&address, "v");
    load.wait_for(200);
    cluster.end();

    let other = Cluster::start(&theirs, port);
    create(&other);
    raise_epochs(&other);
    // Longer than a client waits before it asks for another map, many times over.
    std::thread::sleep(std::time::Duration::from_secs(3));
    check(&address, "v", &nothing());
    other.end();

    let cluster = Cluster::start(&ours, port);
    load.wait_for(200);
    let (contents, _) = load.finish();
    check(&address, "v", &contents);
    cluster.end();
}
