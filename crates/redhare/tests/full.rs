//! Volumes that promise more than their disks hold (`--overcommit`), until the disks of all copies are full: what needs room is refused
//! with a word about it and at once, everything that is there can be read, and with room made the same command goes on.

use std::time::{Duration, Instant};

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};

fn status(cluster: &Nodes) -> (String, Vec<u64>) {
    let status = cluster.json(&["status"]);
    let rows = status["volumes"].as_array().unwrap();
    let roomless = rows.iter().map(|row| row["roomless_chunks"].as_u64().unwrap());
    (
        status["health"]["verdict"].as_str().unwrap().to_owned(),
        roomless.collect(),
    )
}

#[test]
fn volumes_whose_disks_are_full_are_read_and_go_on_when_there_is_room() {
    let cluster = Nodes::start(Place::in_memory("full"), &["--overcommit", "4"], 3);
    let files = cluster.import(
        "volume create data --size 768MiB --chunk-size 128MiB --copies 3",
        7,
        1 << 20,
    );
    let large = cluster.place.0.join("large");
    std::fs::create_dir_all(&large).unwrap();
    for number in 0..6 {
        // More than one of these is on its way at a time.
        let bytes = vec![number as u8 + 1; 100 << 20];
        std::fs::write(large.join(format!("{number}")), bytes).unwrap();
    }
    let large = large.to_str().unwrap();
    for name in ["second", "third"] {
        let create = ["volume", "create", name, "--size", "768MiB"];
        cluster.succeed(&[&create[..], &["--chunk-size", "128MiB", "--copies", "3"]].concat());
        cluster.succeed(&["fs", "format", name]);
    }
    cluster.succeed(&["fs", "import", large, "second"]);
    let began = Instant::now();
    let refused = cluster.refused(&["fs", "import", large, "third"]);
    let took = began.elapsed();
    assert!(refused.contains("no space is left"), "{refused}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    wait_until("the masters know that there is no room", || {
        let (verdict, roomless) = status(&cluster);
        verdict == "critical" && roomless.iter().all(|chunks| *chunks > 0)
    });
    // Somebody starts anew and reads all: files, and what was committed of the volume that got no more.
    for name in ["data", "second", "third"] {
        cluster.succeed(&["fs", "verify", name]);
    }
    cluster.compare(&files, "while-full");
    let again = cluster.refused(&["fs", "import", large, "third"]);
    assert!(again.contains("no space is left"), "{again}");
    cluster.succeed(&["fs", "verify", "third"]);

    cluster.succeed(&["volume", "delete", "second"]);
    wait_until("there is room", || {
        status(&cluster) == ("healthy".to_owned(), vec![0, 0])
    });
    cluster.succeed(&["fs", "import", large, "third"]);
    for name in ["data", "third"] {
        cluster.succeed(&["fs", "verify", name]);
    }
    cluster.compare(&files, "after");
}
