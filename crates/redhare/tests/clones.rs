//! Clones of a volume, with processes of their own: one is made of a snapshot while the volume is written, shows what that does, is
//! written itself, loses a node, is flattened through restarts, and outlives the snapshot.

use std::path::PathBuf;

use crate::support::nodes::{JOURNAL_BYTES, Nodes};
use crate::support::{Place, wait_until};
use bdev::{BlockDevice, ChannelExt};
use client::{Nearby, Session};
use foundation::{Lba, Random};
use reactor::BufferPool;

const BYTES: usize = 32 << 20;
const BLOCK: usize = 4096;
const COPIES: u64 = 3;
const CHUNK: u64 = 4 << 20;

struct Test {
    cluster: Nodes,
    random: Random,
}

impl Test {
    fn start(name: &str, checksums: &str) -> Self {
        let master = ["--no-rebalance", "--rebuild-after", "3"];
        let cluster = Nodes::start(Place::in_memory(name), &master, 3);
        let create =
            format!("volume create data --size 32MiB --chunk-size 4MiB --copies 3 --checksums {checksums}");
        cluster.succeed(&create.split(' ').collect::<Vec<_>>());
        Self {
            cluster,
            random: Random::from_seed(93),
        }
    }

    /// Writes something else to a volume, here and there: about one part in `one_in`.
    fn write(&mut self, volume: &str, holds: &mut [u8], one_in: u64) {
        let mut places = Vec::new();
        for at in (0..BYTES).step_by(16 * BLOCK) {
            if self.random.below(one_in) == 0 {
                self.random.fill(&mut holds[at..at + 16 * BLOCK]);
                places.push(at);
            }
        }
        let session = Session::connect(&self.cluster.address()[..], volume).unwrap();
        let device = session.device(Nearby::Socket);
        let written = reactor::run(&reactor::Config::default(), async {
            let channel = device.open_channel().unwrap();
            for at in places {
                let mut bytes = BufferPool::current().allocate(16 * BLOCK).await.unwrap();
                bytes.copy_from_slice(&holds[at..at + 16 * BLOCK]);
                let lba = Lba((at / BLOCK) as u64);
                channel.write(lba, bytes.freeze()).await.unwrap();
            }
            channel.flush().await.unwrap();
        });
        written.unwrap();
    }

    fn check(&self, what: &str, holds: &[u8], when: &str) {
        let path: PathBuf = self.cluster.place.0.join("read");
        drop(std::fs::remove_file(&path));
        self.cluster
            .succeed(&["volume", "read", what, "--out", path.to_str().unwrap()]);
        assert!(std::fs::read(&path).unwrap() == holds, "{what} is another {when}");
    }

    /// The bytes in use of all disks, once each node has said something.
    fn used(&self) -> u64 {
        let mut sum = 0;
        wait_until("the nodes have said what they use", || {
            let rows = self.cluster.rows();
            let used: Vec<u64> = rows
                .iter()
                .map(|row| row["used_bytes"].as_u64().unwrap())
                .collect();
            sum = used.iter().sum();
            used.len() == 3 && used.iter().all(|used| *used > 0)
        });
        sum
    }

    /// Waits until the disks say the same for a while.
    fn settled_use(&self) -> u64 {
        let (mut last, mut same) = (0, 0);
        wait_until("what the disks use stands still", || {
            let now = self.used();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            std::thread::sleep(std::time::Duration::from_millis(500));
            same >= 14
        });
        last
    }

    fn clone_volume(&self, from: &str, name: &str) {
        self.cluster.succeed(&["volume", "clone", from, name]);
    }

    fn origin(&self, volume: &str) -> serde_json::Value {
        self.cluster.json(&["volume", "show", volume])["origin"].clone()
    }

    /// Every block of every copy fits its checksum.
    fn scrub(&self, volume: &str) {
        let found = self.cluster.json(&["volume", "scrub", volume, "--rate", "1GiB"]);
        assert!(found["compared_bytes"].as_u64().unwrap() > 0, "{found}");
        let wrong = [&found["repaired_blocks"], &found["lost_blocks"]];
        assert_eq!(wrong, [0, 0], "{found}");
    }
}

#[test]
fn a_clone_shows_its_snapshot_goes_on_alone_and_outlives_it() {
    let mut test = Test::start("clones", "on");
    let mut data = vec![0; BYTES];
    test.write("data", &mut data, 2);
    test.cluster
        .succeed(&["volume", "snapshot", "create", "data", "monday"]);
    let monday = data.clone();
    test.write("data", &mut data, 4);

    let before = test.settled_use();
    test.clone_volume("data@monday", "trial");
    let mut trial = monday.clone();
    test.check("trial", &trial, "when it was made");
    let origin = test.origin("trial");
    assert_eq!(
        (&origin["volume"], &origin["snapshot"]),
        (&"data".into(), &"monday".into())
    );
    let listed = test.cluster.run(&["volume", "list"]).stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert!(
        listed.contains("ORIGIN") && listed.contains("data@monday"),
        "{listed}"
    );
    let taken = test.settled_use().saturating_sub(before);
    // Each copy has a record and checksums of its own, in two clusters of 1 MiB; nothing else.
    let chunks = BYTES as u64 / CHUNK;
    assert!(
        taken <= COPIES * chunks * (2 << 20),
        "nothing is copied, but {taken} bytes were taken"
    );

    // Each goes on alone.
    test.write("trial", &mut trial, 5);
    test.write("data", &mut data, 5);
    test.check("trial", &trial, "written");
    test.check("data", &data, "beside its clone");
    test.check("data@monday", &monday, "below its clone");
    test.scrub("trial");

    let said = test
        .cluster
        .refused(&["volume", "snapshot", "delete", "data", "monday"]);
    assert!(said.contains("is the origin of trial; give each"), "{said}");

    // A clone of a snapshot of the clone; and a node that ends hard.
    test.cluster
        .succeed(&["volume", "snapshot", "create", "trial", "cut"]);
    let cut = trial.clone();
    test.write("trial", &mut trial, 6);
    test.clone_volume("trial@cut", "third");
    test.cluster.kill_node(2);
    test.check("trial", &trial, "with a dead node");
    test.write("trial", &mut trial, 6);
    test.cluster.start_node(2);
    test.cluster.wait_for_living(3);
    test.cluster.wait_for_sync();
    test.check("trial", &trial, "with all nodes again");
    test.check("third", &cut, "with all nodes again");

    // Flattened, through the death of a node and of the master.
    test.cluster.succeed(&["volume", "flatten", "trial", "--no-wait"]);
    assert_eq!(test.origin("trial")["flattening"], true);
    test.cluster.kill_node(3);
    test.write("trial", &mut trial, 8);
    test.cluster.restart_master();
    test.cluster.start_node(3);
    test.cluster.wait_for_living(3);
    test.cluster.succeed(&["volume", "flatten", "trial"]);
    assert_eq!(test.origin("trial"), serde_json::Value::Null);
    test.cluster.wait_for_sync();
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "data", "monday"]);
    wait_until("the snapshot is gone", || {
        let listed = test.cluster.json(&["volume", "snapshot", "list", "data"]);
        listed.as_array().is_some_and(Vec::is_empty)
    });
    for (what, holds) in [
        ("trial", &trial),
        ("trial@cut", &cut),
        ("third", &cut),
        ("data", &data),
    ] {
        test.check(what, holds, "without the snapshot");
    }
    test.scrub("trial");
    for number in 1..=3 {
        test.cluster.replace_target(number);
    }
    test.check("trial", &trial, "after restarts");

    // The space comes back, in whatever order.
    test.cluster.succeed(&["volume", "delete", "third"]);
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "trial", "cut"]);
    test.cluster.succeed(&["volume", "delete", "trial"]);
    test.cluster.succeed(&["volume", "delete", "data"]);
    wait_until("all volumes are gone", || {
        test.cluster
            .json(&["volume", "list"])
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    // No part of a cluster is left of any of them; of a disk nothing is used but its journal.
    wait_until("the space is back", || {
        let rows = test.cluster.rows();
        rows.iter().all(|row| {
            row["used_bytes"]
                .as_u64()
                .is_some_and(|used| used == JOURNAL_BYTES)
        })
    });
}

#[test]
fn a_node_that_was_away_flattens_what_it_has_when_the_snapshot_goes() {
    let mut test = Test::start("clones-away", "off");
    let mut data = vec![0; BYTES];
    test.write("data", &mut data, 2);
    test.cluster
        .succeed(&["volume", "snapshot", "create", "data", "monday"]);
    let monday = data.clone();
    test.write("data", &mut data, 4);
    test.clone_volume("data@monday", "trial");
    test.cluster.kill_node(1);
    wait_until("the node counts as gone", || {
        test.cluster.row(1)["alive"] == false
    });
    // It is not waited for.
    test.cluster.succeed(&["volume", "flatten", "trial"]);
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "data", "monday"]);
    wait_until("the snapshot is gone from living nodes", || {
        let listed = test.cluster.json(&["volume", "snapshot", "list", "data"]);
        listed.as_array().is_some_and(Vec::is_empty)
    });
    test.cluster.start_node(1);
    test.cluster.wait_for_living(3);
    test.cluster.wait_for_sync();
    // It is told to delete its copies of the snapshot, which its copies of the clone show.
    let is_flat = || test.cluster.target_log(1).contains("has data of its own");
    wait_until("its copies have data of their own", is_flat);
    for number in [2, 3] {
        test.cluster.kill_node(number);
    }
    for number in [2, 3] {
        test.cluster.start_node(number);
    }
    test.cluster.wait_for_living(3);
    test.cluster.wait_for_sync();
    test.check("trial", &monday, "in the end");
    test.check("data", &data, "in the end");
}
