//! Chunks whose last copies in sync are lost for good, with processes of their own: nothing serves what an older copy has before somebody
//! says so who was told what is lost.

use std::path::PathBuf;

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};

const CREATE: &str = "volume create data --size 64MiB --chunk-size 16MiB --copies 2 --minimum 1";

fn pattern(seed: u64) -> Vec<u8> {
    let mut random = foundation::Random::from_seed(seed);
    (0..(1 << 20) / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect()
}

/// The nodes in sync of every chunk, by number.
fn in_sync(cluster: &Nodes, field: &str) -> Vec<Vec<String>> {
    let names = |chunk: &serde_json::Value| {
        let nodes = chunk[field].as_array().cloned().unwrap_or_default();
        nodes
            .iter()
            .filter_map(|node| node.as_str().map(str::to_owned))
            .collect()
    };
    cluster.chunks().iter().map(names).collect()
}

#[test]
fn an_old_copy_is_served_only_by_force() {
    let audit = |place: &Place| place.0.join("audit");
    let place = Place::in_memory("force");
    let log = audit(&place);
    let mut cluster = Nodes::start(
        place,
        &["--rebuild-after", "600", "--audit-log", log.to_str().unwrap()],
        2,
    );
    let files = cluster.import(CREATE, 41, 600 << 10);
    let (first, second) = (cluster.id(1), cluster.id(2));
    let said = cluster.refused(&["volume", "force-serve", "data", "--yes"]);
    assert!(said.contains("nothing is to be forced"), "{said}");
    let said = cluster.refused(&["volume", "force-serve", "data", "--chunk", "0", "--yes"]);
    assert!(
        said.contains("2 of its 2 copies in sync live and its minimum is 1"),
        "{said}"
    );

    // The first is away, and the second goes on alone.
    cluster.kill_node(1);
    wait_until("the second node is alone in sync", || {
        let members = in_sync(&cluster, "in_sync");
        members.len() == 4 && members.iter().all(|members| *members == [second.clone()])
    });
    let later: PathBuf = cluster.place.0.join("later");
    std::fs::create_dir_all(&later).unwrap();
    std::fs::write(later.join("later"), pattern(7)).unwrap();
    cluster.succeed(&["fs", "import", later.to_str().unwrap(), "data"]);
    // It is lost with its disk, and the first comes back.
    cluster.kill_node(2);
    std::fs::remove_dir_all(cluster.directory(2)).unwrap();
    cluster.start_node(1);
    wait_until("the first node is back and the second is missed", || {
        cluster.row(1)["alive"] == true && cluster.row(2)["alive"] == false
    });
    wait_until("its old copies are out of sync", || {
        let out = in_sync(&cluster, "out_of_sync");
        out.len() == 4 && out.iter().all(|out| *out == [first.clone()])
    });
    assert!(in_sync(&cluster, "in_sync").iter().all(Vec::is_empty));

    // It is shown what there is, and nothing changes without a word.
    let shown = cluster.json(&["volume", "force-serve", "data", "--dry-run"]);
    let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
    assert_eq!(chunks.len(), 4, "{shown}");
    assert_eq!(
        (&shown["bytes_at_stake"], &shown["forced"]),
        (&(64 << 20).into(), &false.into())
    );
    for chunk in &chunks {
        let copy = |id: &str| {
            let copies = chunk["copies"].as_array().cloned().unwrap_or_default();
            copies.into_iter().find(|copy| copy["node"] == id).unwrap()
        };
        let (old, gone) = (copy(&first), copy(&second));
        assert_eq!(
            (&old["worth"], &old["heard"], &old["chosen"]),
            (&"left-out".into(), &true.into(), &true.into()),
            "{chunk}"
        );
        assert!(old["epoch"].as_u64() < chunk["epoch"].as_u64(), "{chunk}");
        assert_eq!(
            (&gone["worth"], &gone["heard"]),
            (&"unknown".into(), &false.into()),
            "{chunk}"
        );
        assert!(chunk["lost"].as_str().unwrap().contains("since epoch"), "{chunk}");
    }
    let said = cluster.refused(&["volume", "force-serve", "data"]);
    assert!(said.contains("no terminal") && said.contains("--yes"), "{said}");
    let said = cluster.refused(&["volume", "force-serve", "data", "--copy", &second, "--yes"]);
    assert!(said.contains("silent for"), "{said}");
    let said = cluster.refused(&["volume", "force-serve", "data", "--copy", "zz", "--yes"]);
    assert!(said.contains("has no copy there"), "{said}");
    let said = cluster.refused(&["volume", "force-serve", "data", "--chunk", "9", "--yes"]);
    assert!(said.contains("4 chunks"), "{said}");
    assert!(in_sync(&cluster, "in_sync").iter().all(Vec::is_empty));

    // One chunk first, then all.
    let copy = format!("{first}/");
    let done = cluster.json(&[
        "volume",
        "force-serve",
        "data",
        "--chunk",
        "2",
        "--copy",
        &copy,
        "--yes",
    ]);
    assert_eq!(done["forced"], true, "{done}");
    let before = done["chunks"][0]["epoch"].as_u64().unwrap();
    assert!(
        done["chunks"][0]["forced_epoch"].as_u64().unwrap() > before + 1,
        "{done}"
    );
    cluster.succeed(&["volume", "force-serve", "data", "--yes"]);
    wait_until("the first node is alone in sync", || {
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| *members == [first.clone()])
    });
    let said = cluster.refused(&["volume", "force-serve", "data", "--yes"]);
    assert!(said.contains("nothing is to be forced"), "{said}");
    let log = std::fs::read_to_string(&log).unwrap();
    let forced: Vec<&str> = log.lines().filter(|line| line.contains("ForceServe")).collect();
    let done: Vec<&&str> = forced.iter().filter(|line| line.contains("\"done\"")).collect();
    assert_eq!(done.len(), 2, "{log}");
    assert!(
        done[0].contains("volume data: chunk 2 by the copy of node") && done[0].contains(&first),
        "{log}"
    );

    // What was there before the first went away reads as it was, and what came after is lost.
    cluster.compare(&files, "by force");
    let out = cluster.place.0.join("out");
    cluster.succeed(&["fs", "export", "data", out.to_str().unwrap()]);
    assert!(!out.join("later").exists());
    // Its life ends, and another one serves it by itself.
    cluster.kill_node(1);
    cluster.start_node(1);
    wait_until("the node is back", || {
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| *members == [first.clone()])
    });
    cluster.compare(&files, "in another life");
}

#[test]
fn a_newer_copy_that_returns_after_all_is_made_as_the_forced_one_is() {
    let mut cluster = Nodes::start(Place::in_memory("force-returns"), &["--rebuild-after", "600"], 2);
    let files = cluster.import(CREATE, 42, 600 << 10);
    let (first, second) = (cluster.id(1), cluster.id(2));
    cluster.kill_node(1);
    wait_until("the second node is alone in sync", || {
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| *members == [second.clone()])
    });
    let later: PathBuf = cluster.place.0.join("later");
    std::fs::create_dir_all(&later).unwrap();
    for number in 0..20 {
        std::fs::write(later.join(format!("later{number}")), pattern(number)).unwrap();
    }
    // Flushed, so that no mark is left there of what the first one lacks.
    cluster.succeed(&["fs", "import", later.to_str().unwrap(), "data"]);
    cluster.kill_node(2);
    cluster.start_node(1);
    wait_until("the second is missed", || {
        cluster.row(1)["alive"] == true && cluster.row(2)["alive"] == false
    });
    cluster.succeed(&["volume", "force-serve", "data", "--yes"]);
    cluster.compare(&files, "by force");
    cluster.start_node(2);
    cluster.wait_for_sync();
    assert!(
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| members.len() == 2)
    );
    // The copies are alike in every block: each is read alone.
    let image = |cluster: &Nodes, name: &str| {
        let out = cluster.place.0.join(name);
        cluster.succeed(&["volume", "read", "data", "--out", out.to_str().unwrap()]);
        std::fs::read(out).unwrap()
    };
    cluster.kill_node(2);
    wait_until("the first node is alone in sync", || {
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| *members == [first.clone()])
    });
    let of_first = image(&cluster, "first.img");
    cluster.start_node(2);
    cluster.wait_for_sync();
    cluster.kill_node(1);
    wait_until("the second node is alone in sync", || {
        in_sync(&cluster, "in_sync")
            .iter()
            .all(|members| *members == [second.clone()])
    });
    assert!(of_first == image(&cluster, "second.img"), "the copies differ");
    cluster.compare(&files, "of the one that returned");
}
