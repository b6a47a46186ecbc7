//! Nodes as processes of their own, so that one can stay away: what it had is rebuilt on the others within the time that
//! was set, compared byte for byte with two nodes dead; it comes back and deletes what it has no place for; a node is
//! drained while files are read; and a drain that cannot work is refused with the numbers.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Place, free_ports, kill, wait_until};

const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");
const NODES: u16 = 4;

/// A master and four nodes, each started by hand.
struct Nodes {
    master: Child,
    nodes: Vec<Option<Child>>,
    place: Place,
    port: u16,
}

impl Nodes {
    fn start() -> Self {
        let (place, port) = (Place::new("rebuild"), free_ports());
        let mut command = Command::new(REDHARE);
        let master = command
            .args([
                "master",
                "--no-rebalance",
                "--rebuild-after",
                "3",
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--store",
            ])
            .arg(place.0.join("master"));
        let master = quiet(master).spawn().unwrap();
        let nodes = (0..NODES).map(|_| None).collect();
        let mut cluster = Self {
            master,
            nodes,
            place,
            port,
        };
        for number in 1..=NODES {
            cluster.start_node(number);
        }
        cluster.wait_for_living(NODES.into());
        cluster
    }

    fn directory(&self, number: u16) -> std::path::PathBuf {
        self.place.0.join(format!("node{number}"))
    }

    fn start_node(&mut self, number: u16) {
        let directory = self.directory(number);
        std::fs::create_dir_all(&directory).unwrap();
        let mut disk = directory.join("disk").into_os_string();
        disk.push(":1GiB");
        let mut command = Command::new(REDHARE);
        command
            .args([
                "node",
                "--end-target",
                "--master",
                &format!("127.0.0.1:{}", self.port),
            ])
            .args(["--listen", &format!("127.0.0.1:{}", self.port + number), "--disk"])
            .arg(disk)
            .arg("--data")
            .arg(&directory);
        self.nodes[usize::from(number) - 1] = Some(quiet(&mut command).spawn().unwrap());
    }

    /// `kill -9` of a node's engine and target.
    fn kill_node(&mut self, number: u16) {
        kill(&self.directory(number).join("agent.lock"));
        kill(&self.directory(number).join("target.lock"));
        if let Some(mut child) = self.nodes[usize::from(number) - 1].take() {
            child.wait().unwrap();
        }
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(REDHARE)
            .args(arguments)
            .env("REDHARE_CLUSTER", format!("127.0.0.1:{}", self.port))
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    }

    fn succeed(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn row(&self, number: u16) -> serde_json::Value {
        let address = format!("127.0.0.1:{}", self.port + number);
        let status = self.json(&["status"]);
        let rows = status["nodes"].as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["address"] == address.as_str());
        row.unwrap_or_default()
    }

    fn wait_for_living(&self, count: usize) {
        wait_until(&format!("{count} nodes live"), || {
            let status = self.json(&["status"]);
            let rows = status["nodes"].as_array().cloned().unwrap_or_default();
            let lives = |row: &&serde_json::Value| row["alive"] == true && row["disks"] == 1;
            rows.iter().filter(lives).count() == count
        });
    }

    /// Every chunk has all its copies in sync, none of them on these nodes, and no other places.
    fn wait_for_all_copies_without(&self, without: &[u16]) {
        let ids: Vec<_> = without
            .iter()
            .map(|&number| self.row(number)["node"].clone())
            .collect();
        wait_until(
            &format!("all copies are in sync without nodes {without:?}"),
            || {
                let shown = self.json(&["volume", "show", "data"]);
                let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
                let whole = |chunk: &serde_json::Value| {
                    let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
                    let none = |field: &str| chunk[field].as_array().is_some_and(Vec::is_empty);
                    in_sync.len() == 2
                        && none("missing")
                        && none("out_of_sync")
                        && !in_sync.iter().any(|id| ids.contains(id))
                };
                !chunks.is_empty() && chunks.iter().all(whole)
            },
        );
    }

    /// What was imported comes out as it went in.
    fn compare(&self, files: &Path, what: &str) {
        let out = self.place.0.join(what);
        self.succeed(&["fs", "export", "data", out.to_str().unwrap()]);
        for entry in std::fs::read_dir(files).unwrap() {
            let name = entry.unwrap().file_name();
            let (was, is) = (std::fs::read(files.join(&name)), std::fs::read(out.join(&name)));
            assert!(was.unwrap() == is.unwrap(), "{what}: {name:?} is another");
        }
        std::fs::remove_dir_all(out).unwrap();
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env_remove("RUST_LOG")
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for number in 1..=NODES {
            if self.nodes[usize::from(number) - 1].is_some() {
                self.kill_node(number);
            }
        }
        drop(self.master.kill());
        drop(self.master.wait());
    }
}

fn make_files(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let mut random = foundation::Random::from_seed(60);
    for number in 0..40u64 {
        let bytes = 1 + random.below(600 << 10) as usize;
        let contents: Vec<u8> = (0..bytes.div_ceil(8))
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        std::fs::write(directory.join(format!("{number}")), &contents[..bytes]).unwrap();
    }
}

#[test]
fn what_a_node_had_that_stays_away_is_rebuilt_elsewhere_and_a_node_can_be_drained() {
    let mut cluster = Nodes::start();
    let files = cluster.place.0.join("files");
    make_files(&files);
    let create = "volume create data --size 128MiB --chunk-size 16MiB --copies 2";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    cluster.succeed(&["fs", "format", "data"]);
    cluster.succeed(&["fs", "import", files.to_str().unwrap(), "data"]);

    // A node stays away: its copies are made anew on the three others.
    cluster.kill_node(1);
    cluster.wait_for_all_copies_without(&[1]);
    cluster.compare(&files, "one dead");
    assert_eq!(
        cluster.row(1)["allocated_bytes"],
        0,
        "the room of what it had is given back"
    );
    // Then another: of two copies of each chunk one is left, and where the first node's were the only ones, the new ones.
    cluster.kill_node(2);
    cluster.wait_for_all_copies_without(&[1, 2]);
    cluster.compare(&files, "two dead");

    // They come back, and delete what they have no place for.
    let before = std::fs::metadata(cluster.directory(1).join("disk")).unwrap();
    assert!(before.len() > 0);
    for number in [1, 2] {
        cluster.start_node(number);
    }
    cluster.wait_for_living(NODES.into());
    for number in [1, 2] {
        wait_until(&format!("node {number} has deleted its copies"), || {
            let log =
                std::fs::read_to_string(cluster.directory(number).join("target.log")).unwrap_or_default();
            let row = cluster.row(number);
            log.contains("has no place here any more is deleted") && row["used_bytes"] == 0
        });
    }

    // Everything moves away from a node that lives, and it is told how much is left.
    let id = cluster.row(3)["node"].as_str().unwrap().to_owned();
    cluster.succeed(&["node", "drain", &id]);
    cluster.compare(&files, "draining");
    cluster.wait_for_all_copies_without(&[3]);
    let row = cluster.row(3);
    assert_eq!(
        (&row["draining"], &row["draining_copies"]),
        (&true.into(), &0.into())
    );
    cluster.compare(&files, "drained");
    // One node more can go, but not two: then too few are left.
    let other = cluster.row(4)["node"].as_str().unwrap().to_owned();
    cluster.succeed(&["node", "drain", &other]);
    cluster.wait_for_all_copies_without(&[3, 4]);
    let last = cluster.row(1)["node"].as_str().unwrap().to_owned();
    let refused = cluster.run(&["node", "drain", &last]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        said.contains("cannot be drained") && said.contains("need 2 different nodes"),
        "{said}"
    );
    cluster.succeed(&["node", "undrain", &other]);
    assert_eq!(cluster.row(4)["draining"], false);
    cluster.compare(&files, "undrained");
}
