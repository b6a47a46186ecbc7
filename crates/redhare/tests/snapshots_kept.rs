//! Copies of snapshots follow those of their chunks, with processes of their own: all nodes that had a snapshot when it was made are
//! drained and removed, or killed for good, one after the other, while others come; then every byte of it is read from nodes that
//! did not exist then.

use std::path::PathBuf;

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};
use bdev::{BlockDevice, ChannelExt};
use client::{Nearby, Session};
use foundation::{Lba, Random};
use reactor::BufferPool;

const BYTES: usize = 32 << 20;
const BLOCK: usize = 4096;
/// The nodes that are there in the beginning.
const FIRST: u16 = 4;
const COPIES: u64 = 3;

struct Test {
    cluster: Nodes,
    /// What the volume holds.
    holds: Vec<u8>,
    random: Random,
}

impl Test {
    fn start() -> Self {
        let master = ["--no-rebalance", "--rebuild-after", "3"];
        let cluster = Nodes::start(Place::in_memory("snapshots-kept"), &master, FIRST);
        let create = "volume create data --size 32MiB --chunk-size 4MiB --copies 3";
        cluster.succeed(&create.split(' ').collect::<Vec<_>>());
        Self {
            cluster,
            holds: vec![0; BYTES],
            random: Random::from_seed(90),
        }
    }

    /// Writes something else, here and there: about one block in `one_in`.
    fn write(&mut self, one_in: u64) {
        let mut places = Vec::new();
        for at in (0..BYTES).step_by(16 * BLOCK) {
            if self.random.below(one_in) == 0 {
                self.random.fill(&mut self.holds[at..at + 16 * BLOCK]);
                places.push(at);
            }
        }
        let session = Session::connect(&self.cluster.address()[..], "data").unwrap();
        let device = session.device(Nearby::Socket);
        let written = reactor::run(&reactor::Config::default(), async {
            let channel = device.open_channel().unwrap();
            for at in places {
                let mut bytes = BufferPool::current().allocate(16 * BLOCK).await.unwrap();
                bytes.copy_from_slice(&self.holds[at..at + 16 * BLOCK]);
                channel
                    .write(Lba((at / BLOCK) as u64), bytes.freeze())
                    .await
                    .unwrap();
            }
            channel.flush().await.unwrap();
        });
        written.unwrap();
    }

    fn snapshot(&mut self, name: &str) -> (String, Vec<u8>) {
        self.cluster
            .succeed(&["volume", "snapshot", "create", "data", name]);
        (name.to_owned(), self.holds.clone())
    }

    fn read(&self, what: &str) -> Vec<u8> {
        let path: PathBuf = self.cluster.place.0.join("read");
        drop(std::fs::remove_file(&path));
        self.cluster
            .succeed(&["volume", "read", what, "--out", path.to_str().unwrap()]);
        std::fs::read(&path).unwrap()
    }

    /// Every chunk, and every snapshot of it, has all its copies.
    fn wait_until_whole(&self, when: &str) {
        wait_until(&format!("all copies of chunks are in sync {when}"), || {
            let chunks = self.cluster.chunks();
            let whole = |chunk: &serde_json::Value| {
                let count = |field: &str| chunk[field].as_array().map_or(0, Vec::len);
                (count("in_sync"), count("missing"), count("out_of_sync")) == (COPIES as usize, 0, 0)
            };
            !chunks.is_empty() && chunks.iter().all(whole)
        });
        let mut said = String::new();
        wait_until(&format!("all copies of snapshots are there {when}"), || {
            let listed = self.cluster.json(&["volume", "snapshot", "list", "data"]);
            let listed = listed.as_array().cloned().unwrap_or_default();
            let now: Vec<String> = listed.iter().map(|one| one["copies"].to_string()).collect();
            if now.join(" ") != said {
                said = now.join(" ");
                eprintln!("{when}: {said}");
            }
            let whole = |one: &serde_json::Value| {
                let copies = &one["copies"];
                copies["least"] == COPIES && copies["short_chunks"] == 0
            };
            !listed.is_empty() && listed.iter().all(whole)
        });
    }
}

#[test]
fn a_snapshot_outlives_every_node_that_had_it_when_it_was_made() {
    let mut test = Test::start();
    test.write(1);
    let mut images = vec![test.snapshot("first")];
    test.write(8);
    images.push(test.snapshot("second"));
    test.write(3);
    test.wait_until_whole("in the beginning");

    for number in 1..=FIRST {
        test.cluster.start_node(FIRST + number);
        test.cluster.wait_for_living(usize::from(FIRST) + 1);
        let when = format!("without node {number}");
        let id = test.cluster.id(number);
        if number % 2 == 0 {
            test.cluster.kill_node(number);
            std::fs::remove_file(test.cluster.directory(number).join("disk")).unwrap();
            test.wait_until_whole(&when);
            // All others have theirs, so it is not needed for any, whatever it had.
            wait_until(&format!("node {number}, which is dead, can be removed"), || {
                test.cluster.run(&["node", "remove", &id]).status.success()
            });
            continue;
        }
        test.cluster.succeed(&["node", "drain", &id]);
        test.wait_until_whole(&when);
        // What it had of snapshots goes when the others have it, and then the node can.
        wait_until(&format!("node {number} can be removed"), || {
            test.cluster.run(&["node", "remove", &id]).status.success()
        });
        test.cluster.kill_node(number);
        std::fs::remove_file(test.cluster.directory(number).join("disk")).unwrap();
        test.wait_until_whole(&when);
    }
    for (name, image) in &images {
        assert!(test.read(&format!("data@{name}")) == *image, "{name} is another");
    }
    assert!(test.read("data") == test.holds);

    // Each node can read alone what it has: with one dead, the others have all of it.
    test.cluster.kill_node(FIRST + 1);
    for (name, image) in &images {
        assert!(test.read(&format!("data@{name}")) == *image, "{name} is another");
    }
    test.cluster.start_node(FIRST + 1);
    test.wait_until_whole("with all new nodes");

    // Should the masters lose their store, these nodes say what the snapshots are called, though none of them was there.
    let listed = test.cluster.json(&["volume", "snapshot", "list", "data"]);
    let new: Vec<PathBuf> = (FIRST + 1..=2 * FIRST)
        .map(|number| test.cluster.directory(number))
        .collect();
    // A node looks every 2 s which of its copies have no note yet.
    std::thread::sleep(std::time::Duration::from_secs(6));
    (FIRST + 1..=2 * FIRST).for_each(|number| test.cluster.kill_node(number));
    let inventories = test.cluster.place.0.join("inventories");
    std::fs::create_dir(&inventories).unwrap();
    let (mut files, mut noted_anywhere) = (Vec::new(), 0);
    for (node, directory) in new.iter().enumerate() {
        let file = inventories.join(format!("{node}.json"));
        let (file, directory) = (file.to_str().unwrap().to_owned(), directory.to_str().unwrap());
        // The kernel ends what a killed target had under way, and lets go of its disk then.
        wait_until("a killed target has let go of its disk", || {
            let output = test
                .cluster
                .run(&["meta", "inventory", &file, "--data", directory]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains("has it open"), "{said}");
            output.status.success()
        });
        let text = std::fs::read_to_string(&file).unwrap();
        let inventory: serde_json::Value = serde_json::from_str(&text).unwrap();
        let kept = inventory["snapshots"].as_array().unwrap();
        let noted = kept.iter().filter(|copy| copy["note"].is_string()).count();
        eprintln!("node {node}: {noted} of {} copies have notes", kept.len());
        // One that was away for longer than the others wait has none, if they made them anew.
        assert!(
            (noted > 0 || kept.is_empty()) && kept.len() <= 2 * BYTES / (4 << 20),
            "{text}"
        );
        noted_anywhere += noted;
        files.push(file);
    }
    assert!(noted_anywhere > 0);
    let store = test.cluster.place.0.join("no-store");
    let found = test.cluster.json(&[
        "meta",
        "rebuild",
        "--dry-run",
        "--from-nodes",
        &files.join(","),
        "--store",
        store.to_str().unwrap(),
    ]);
    let named = |list: &serde_json::Value| -> Vec<(String, u64)> {
        let list = list.as_array().unwrap().iter();
        let named = |one: &serde_json::Value| {
            let name = one["name"].as_str().unwrap().to_owned();
            (name, one["number"].as_u64().unwrap())
        };
        list.map(named).collect()
    };
    assert_eq!(named(&found["snapshots"]), named(&listed));
    for snapshot in found["snapshots"].as_array().unwrap() {
        let fields = ["chunks", "found_chunks"].map(|field| snapshot[field].as_u64());
        assert_eq!(fields, [Some(8), Some(8)], "{snapshot}");
        assert!(snapshot["problem"].is_null(), "{snapshot}");
    }
    (FIRST + 1..=2 * FIRST).for_each(|number| test.cluster.start_node(number));
    test.cluster.wait_for_living(usize::from(FIRST));
    test.wait_until_whole("after all were away");

    // Copies made from others are deleted like all others, in any order, and their space comes back.
    let used = || -> u64 {
        let rows = test.cluster.rows().into_iter();
        let living = rows.filter(|row| row["alive"] == true);
        living.map(|row| row["used_bytes"].as_u64().unwrap()).sum()
    };
    // One that has just been started says nothing of its disk at first, and one that came late may have nothing for good. Volume and
    // snapshots together take more than this, and what is left of them less by more than the volume's size.
    wait_until("the nodes have said what they use", || {
        used() >= 2 * COPIES * BYTES as u64
    });
    let before = used();
    let (name, _) = images.remove(0);
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "data", &name]);
    wait_until("the first snapshot is gone", || {
        let listed = test.cluster.json(&["volume", "snapshot", "list", "data"]);
        listed.as_array().is_some_and(|listed| listed.len() == 1)
    });
    let (name, image) = images.remove(0);
    assert!(test.read(&format!("data@{name}")) == image, "{name} has changed");
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "data", &name]);
    wait_until("the space of the snapshots is back", || {
        before.saturating_sub(used()) >= COPIES * BYTES as u64
    });
    assert!(test.read("data") == test.holds);
}
