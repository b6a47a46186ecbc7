//! What snapshots hold on disks is shown, and counts where a new volume is placed, with processes of their own: disks that it fills
//! are left to others, and are taken again when the snapshots are deleted. What a volume owns of disks is shown apart from what
//! its snapshots do.

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};
use bdev::{BlockDevice, ChannelExt};
use client::{Nearby, Session};
use foundation::Lba;
use reactor::BufferPool;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Of the only chunk of volume "data".
const CHUNK: u64 = 128 * MIB;

struct Test {
    cluster: Nodes,
}

impl Test {
    /// Writes the same byte over all of "data".
    fn fill(&self, byte: u8) {
        let session = Session::connect(&self.cluster.address()[..], "data").unwrap();
        let device = session.device(Nearby::Socket);
        let written = reactor::run(&reactor::Config::default(), async {
            let channel = device.open_channel().unwrap();
            for at in (0..CHUNK).step_by(256 << 10) {
                let mut bytes = BufferPool::current().allocate(256 << 10).await.unwrap();
                bytes.fill(byte);
                channel.write(Lba(at / BLOCK), bytes.freeze()).await.unwrap();
            }
            channel.flush().await.unwrap();
        });
        written.unwrap();
    }

    /// A volume of one chunk in two copies.
    fn create(&self, name: &str, mib: u64) {
        let create =
            format!("volume create {name} --size {mib}MiB --chunk-size {mib}MiB --copies 2 --checksums off");
        self.cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    }

    /// The nodes that have copies of a volume.
    fn nodes_of(&self, volume: &str) -> Vec<String> {
        let shown = self.cluster.json(&["volume", "show", volume]);
        let nodes = shown["chunks"][0]["in_sync"].as_array().cloned();
        let mut nodes: Vec<String> = nodes
            .unwrap_or_default()
            .iter()
            .map(|node| node.as_str().unwrap().to_owned())
            .collect();
        nodes.sort();
        nodes
    }

    /// What snapshots hold of each node's disk.
    fn held(&self) -> Vec<(String, u64)> {
        let rows = self.cluster.rows();
        let held = |row: &serde_json::Value| {
            let (of_node, of_disk) = (&row["held_bytes"], &row["disk_health"][0]["held_bytes"]);
            assert!(of_disk.is_null() || of_node == of_disk, "{row}");
            (
                row["node"].as_str().unwrap().to_owned(),
                of_node.as_u64().unwrap(),
            )
        };
        rows.iter().map(held).collect()
    }
}

impl Test {
    /// What "data" owns of disks, and what its snapshots do, as `volume list` says; none while a node has not said it.
    fn used(&self) -> Option<(u64, u64)> {
        let listed = self.cluster.json(&["volume", "list"]);
        let volumes = listed.as_array().unwrap();
        let data = volumes.iter().find(|volume| volume["name"] == "data").unwrap();
        let used = &data["disk_use"];
        Some((used["used_bytes"].as_u64()?, used["held_bytes"].as_u64()?))
    }
}

#[test]
fn disks_that_snapshots_fill_are_left_to_others() {
    let cluster = Nodes::start(Place::in_memory("held"), &["--no-rebalance"], 4);
    let test = Test { cluster };
    test.create("data", CHUNK / MIB);
    let full = test.nodes_of("data");
    // The others are promised more than these.
    test.create("other", 2 * CHUNK / MIB);
    let others = test.nodes_of("other");
    assert!(
        full.len() == 2 && others.len() == 2 && full.iter().all(|node| !others.contains(node)),
        "{full:?} {others:?}"
    );
    test.create("before", CHUNK / MIB);
    assert_eq!(
        test.nodes_of("before"),
        full,
        "by promises alone they are used least"
    );
    test.cluster.succeed(&["volume", "delete", "before"]);

    for name in ["monday", "tuesday"] {
        test.fill(name.len() as u8);
        test.cluster
            .succeed(&["volume", "snapshot", "create", "data", name]);
    }
    // Also what the second has of its own, though the volume shows it still.
    wait_until("the nodes have said what snapshots hold", || {
        let held = test.held();
        held.iter().all(|(node, held)| match full.contains(node) {
            true => (2 * CHUNK..2 * CHUNK + 8 * MIB).contains(held),
            false => *held == 0,
        })
    });
    // Two copies of each of two snapshots; what the chunk's own blobs have is what was not written again.
    let room = 16 * MIB;
    wait_until("the masters say so of the volume", || {
        test.used()
            .is_some_and(|(used, held)| used < room && (4 * CHUNK..4 * CHUNK + room).contains(&held))
    });
    let said = test.cluster.run(&["volume", "show", "data"]).stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains(" on disks, all copies together, ") && said.contains(" of it for snapshots alone"),
        "{said}"
    );
    let said = test.cluster.run(&["status"]).stdout;
    let said = String::from_utf8(said).unwrap();
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let head = said.lines().find(|line| line.starts_with("NODE")).unwrap();
    assert_eq!(columns(head)[7], "HELD", "{said}");
    println!("{said}");
    wait_until("the deleted volume is gone", || {
        let listed = test.cluster.json(&["volume", "list"]);
        listed.as_array().is_some_and(|volumes| volumes.len() == 2)
    });
    test.create("after", CHUNK / MIB);
    assert_eq!(test.nodes_of("after"), others);
    test.cluster.succeed(&["volume", "delete", "after"]);

    for name in ["monday", "tuesday"] {
        test.cluster
            .succeed(&["volume", "snapshot", "delete", "data", name]);
    }
    wait_until("nothing is held any more", || {
        test.held().iter().all(|(_, held)| *held == 0)
    });
    wait_until("the volume owns again what it shows, and nothing else", || {
        test.used()
            .is_some_and(|(used, held)| held == 0 && (2 * CHUNK..2 * CHUNK + room).contains(&used))
    });
    wait_until("the second deleted volume is gone", || {
        let listed = test.cluster.json(&["volume", "list"]);
        listed.as_array().is_some_and(|volumes| volumes.len() == 2)
    });
    test.create("again", CHUNK / MIB);
    assert_eq!(test.nodes_of("again"), full);
}
