//! The whole product as processes: `redhare up`, a volume, files in, a node killed, files compared, a restart.

mod support;

use support::{Cluster, Place, free_ports, kill};

#[test]
fn files_survive_a_killed_node_and_a_restart_of_everything() {
    let place = Place::new("cluster");
    let data = &place.0;
    let files = data.join("files");
    std::fs::create_dir_all(&files).unwrap();
    for number in 0..300u32 {
        let bytes: Vec<u8> = (0..number * 97).map(|at| (at * 31 + number) as u8).collect();
        std::fs::write(files.join(format!("file-{number}")), bytes).unwrap();
    }
    let source = files.to_str().unwrap();
    let port = free_ports();
    let cluster = Cluster::start(&data.join("cluster"), port);
    let refused = cluster.run(&["volume", "create", "huge", "--size", "1TiB"]);
    assert!(!refused.status.success());
    cluster.succeed(&["volume", "create", "files", "--size", "512MiB"]);
    cluster.succeed(&["fs", "format", "files"]);
    cluster.succeed(&["fs", "import", source, "files"]);
    cluster.succeed(&["fs", "compare", "files", source]);

    // Everything ends and starts again: every life is new, and nothing is lost.
    cluster.end();
    let cluster = Cluster::start(&data.join("cluster"), port);
    cluster.wait(&["fs", "stat", "files:file-7"], |said| said.contains("file-7"));
    cluster.succeed(&["fs", "compare", "files", source]);

    // One server dies, engine and target at once: reads go on, the masters leave its copies out.
    kill(&cluster.engine_lock(2));
    kill(&cluster.target_lock(2));
    cluster.succeed(&["fs", "compare", "files", source]);
    cluster.wait(&["status"], |said| said.contains("lack a copy"));
    cluster.succeed(&["fs", "verify", "files"]);
    cluster.end();
}
