//! All nodes of a cluster end in good order under a writing client: what was acknowledged is there when they come back, though
//! nothing was ever flushed.

use crate::support::load::{Load, check};
use crate::support::{Cluster, Place, free_ports};

/// Most single ends lose something when targets make nothing durable at their end.
const ENDS: u32 = 3;

#[test]
fn what_is_acknowledged_outlives_the_end_of_all_nodes() {
    let place = Place::in_memory("clean-end");
    let port = free_ports();
    let mut cluster = Cluster::start(&place.0, port);
    let create = "volume create v --size 64MiB --copies 3";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    let address = cluster.address();
    let load = Load::start(&address, "v");
    for _ in 0..ENDS {
        load.wait_for(200);
        cluster.end();
        cluster = Cluster::start(&place.0, port);
    }
    load.wait_for(200);
    let (contents, _) = load.finish();
    check(&address, "v", &contents);
    cluster.end();
}
