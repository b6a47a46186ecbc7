//! Masters begin on a backup that is older than what the nodes have done: copies were made elsewhere since, a node began another life, files were
//! written, a volume was made. Nothing is changed before the nodes have spoken; then every byte is there, and numbers go on above.

use std::path::Path;
use std::process::Command;

use crate::support::nodes::Nodes;
use crate::support::{Place, REDHARE, wait_until};

fn meta(arguments: &[&str], store: &Path) -> (bool, String) {
    let mut command = Command::new(REDHARE);
    command.arg("meta").args(arguments).arg("--store").arg(store);
    let output = command.env_remove("REDHARE_CLUSTER").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_cluster_goes_on_from_a_backup_with_all_that_was_written_since() {
    let master = ["--no-rebalance", "--rebuild-after", "3"];
    let mut cluster = Nodes::start(Place::in_memory("restored"), &master, 4);
    let create = "volume create data --size 128MiB --chunk-size 16MiB --copies 2";
    let files = cluster.import(create, 7, 400 << 10);
    let store = cluster.place.0.join("master");
    let backup = cluster.place.0.join("backup.meta");
    let file = backup.to_str().unwrap();
    cluster.kill_master();
    let (done, said) = meta(&["export", file], &store);
    assert!(done, "{said}");
    cluster.restart_master();
    cluster.wait_for_living(4);

    // What a node had is made anew on the others; it comes back in another life, and more is written.
    let gone = cluster.row(1)["node"].clone();
    cluster.kill_node(1);
    wait_until("every copy is in sync without node 1", || {
        let chunks = cluster.chunks();
        let without = |chunk: &serde_json::Value| {
            let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
            in_sync.len() == 2 && !in_sync.contains(&gone)
        };
        !chunks.is_empty() && chunks.iter().all(without)
    });
    cluster.start_node(1);
    cluster.wait_for_living(4);
    let more = cluster.place.0.join("more");
    std::fs::create_dir(&more).unwrap();
    for number in 0..20u8 {
        std::fs::write(more.join(format!("more-{number}")), vec![number; 70_000]).unwrap();
    }
    cluster.succeed(&["fs", "import", more.to_str().unwrap(), "data"]);
    cluster.succeed(&["volume", "create", "later", "--size", "16MiB", "--copies", "2"]);

    // The store is lost, and the backup put in its place, while the nodes go on.
    cluster.kill_master();
    std::fs::remove_dir_all(&store).unwrap();
    let (done, said) = meta(&["import", file], &store);
    assert!(!done && said.contains("the masters then ask the nodes"), "{said}");
    let (done, said) = meta(&["import", file, "--backup"], &store);
    assert!(done && said.contains("redhare meta restored"), "{said}");
    cluster.restart_master();
    wait_until("all but the newer volume is settled", || {
        let view = cluster.json(&["meta", "restored"]);
        view["unknown_volumes"] == serde_json::json!([2])
            && view["settled_chunks"] == 8
            && view["awaited"] == serde_json::json!([])
    });
    let said = String::from_utf8_lossy(&cluster.run(&["status"]).stdout).into_owned();
    assert!(
        said.contains("is CRITICAL\n  ! the masters' metadata are from a backup"),
        "{said}"
    );
    let said = cluster.refused(&["volume", "create", "new", "--size", "16MiB", "--copies", "2"]);
    assert!(
        said.contains("nothing is changed before the nodes have said"),
        "{said}"
    );
    let id = cluster.id(2);
    let said = cluster.refused(&["meta", "restored", "--without-node", &id]);
    assert!(said.contains("which lives"), "{said}");

    cluster.succeed(&["meta", "restored", "--without-volume", "2"]);
    wait_until("the masters go on", || {
        cluster.json(&["meta", "restored"])["restored"] == false
    });
    cluster.wait_for_sync();
    cluster.succeed(&["fs", "verify", "data"]);
    cluster.compare(&files, "of before the backup");
    cluster.compare(&more, "of since");
    let epochs = cluster.chunks();
    assert!(
        epochs.iter().all(|chunk| chunk["epoch"].as_u64() > Some(1024)),
        "{epochs:?}"
    );

    // It can be written, and nothing that was numbered is numbered again.
    std::fs::write(more.join("after"), vec![9; 300_000]).unwrap();
    cluster.succeed(&["fs", "import", more.to_str().unwrap(), "data"]);
    cluster.compare(&more, "of after");
    cluster.succeed(&["volume", "create", "new", "--size", "16MiB", "--copies", "2"]);
    let number = cluster.json(&["volume", "show", "new"])["number"].as_u64();
    assert!(number > Some(1024 + 2), "{number:?}");
    // The masters' promises count as ever: a copy is made elsewhere again.
    cluster.kill_node(3);
    cluster.wait_for_living(3);
    wait_until("every copy is in sync without node 3", || {
        let whole =
            |chunk: &serde_json::Value| chunk["in_sync"].as_array().is_some_and(|nodes| nodes.len() == 2);
        let chunks = cluster.chunks();
        !chunks.is_empty() && chunks.iter().all(whole) && cluster.run(&["status"]).status.success()
    });
    cluster.compare(&files, "one dead");
}
