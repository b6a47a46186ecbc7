//! A cluster of real processes grows by a node while files are read: copies move until all nodes are used alike, though the new
//! node is killed in the middle; nothing is lost, and it ends. Then a copy and the writes of a chunk move by command.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use support::{Place, free_ports, kill, wait_until};

const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");

struct Nodes {
    master: Child,
    nodes: Vec<Option<Child>>,
    place: Place,
    port: u16,
}

impl Nodes {
    fn start() -> Self {
        let (place, port) = (Place::in_memory("rebalance"), free_ports());
        let mut command = Command::new(REDHARE);
        command.args(["master", "--rebuild-after", "30"]);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--store"]);
        command.arg(place.0.join("master"));
        let master = quiet(&mut command).spawn().unwrap();
        let mut cluster = Self {
            master,
            nodes: (0..4).map(|_| None).collect(),
            place,
            port,
        };
        for number in 1..=3 {
            cluster.start_node(number);
        }
        cluster.wait_for_living(3);
        cluster
    }

    fn directory(&self, number: u16) -> PathBuf {
        self.place.0.join(format!("node{number}"))
    }

    fn start_node(&mut self, number: u16) {
        let directory = self.directory(number);
        std::fs::create_dir_all(&directory).unwrap();
        let mut disk = directory.join("disk").into_os_string();
        disk.push(":1GiB");
        let mut command = Command::new(REDHARE);
        command.args([
            "node",
            "--end-target",
            "--master",
            &format!("127.0.0.1:{}", self.port),
        ]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port + number), "--disk"]);
        command.arg(disk).arg("--data").arg(&directory);
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

    fn run(&self, arguments: &[&str]) -> Output {
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

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn id(&self, number: u16) -> String {
        let address = format!("127.0.0.1:{}", self.port + number);
        let status = self.json(&["status"]);
        let rows = status["nodes"].as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["address"] == address.as_str());
        row.unwrap()["node"].as_str().unwrap().to_owned()
    }

    fn wait_for_living(&self, count: usize) {
        wait_until(&format!("{count} nodes live"), || {
            let status = self.json(&["status"]);
            let rows = status["nodes"].as_array().cloned().unwrap_or_default();
            let lives = |row: &&Value| row["alive"] == true && row["disks"] == 1;
            rows.iter().filter(lives).count() == count
        });
    }

    fn chunks(&self) -> Vec<Value> {
        let shown = self.json(&["volume", "show", "data"]);
        shown["chunks"].as_array().cloned().unwrap_or_default()
    }

    /// How many copies each node has, once all are in sync and nothing moves.
    fn wait_for_rest(&self) -> Vec<u64> {
        wait_until("all copies are in sync, and nothing moves", || {
            let whole = |chunk: &Value| {
                let count = |field: &str| chunk[field].as_array().map(Vec::len);
                (count("in_sync"), count("missing"), count("out_of_sync")) == (Some(2), Some(0), Some(0))
            };
            let chunks = self.chunks();
            let balance = self.json(&["cluster", "rebalance"]);
            chunks.len() == 24
                && chunks.iter().all(whole)
                && (balance["state"] == "even" || balance["state"] == "stopped")
        });
        let status = self.json(&["status"]);
        let rows = status["nodes"].as_array().cloned().unwrap_or_default();
        rows.iter()
            .map(|row| row["allocated_bytes"].as_u64().unwrap() >> 24)
            .collect()
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
        for number in 1..=4 {
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
    let mut random = foundation::Random::from_seed(76);
    for number in 0..40u64 {
        let bytes = 1 + random.below(3 << 20) as usize;
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
        let contents: Vec<u8> = words.collect();
        std::fs::write(directory.join(format!("{number}")), &contents[..bytes]).unwrap();
    }
}

#[test]
fn a_node_more_gets_its_share_though_it_is_killed_in_the_middle() {
    let mut cluster = Nodes::start();
    let files = cluster.place.0.join("files");
    make_files(&files);
    let create = "volume create data --size 384MiB --chunk-size 16MiB --copies 2";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    cluster.succeed(&["fs", "format", "data"]);
    cluster.succeed(&["fs", "import", files.to_str().unwrap(), "data"]);
    assert_eq!(cluster.wait_for_rest(), [16, 16, 16]);

    cluster.start_node(4);
    cluster.wait_for_living(4);
    wait_until("a copy moves", || {
        let status = cluster.json(&["status"]);
        status["balance"]["moves"]
            .as_array()
            .is_some_and(|moves| !moves.is_empty())
    });
    cluster.kill_node(4);
    cluster.compare(&files, "the new node is dead");
    cluster.start_node(4);
    cluster.wait_for_living(4);
    assert_eq!(cluster.wait_for_rest(), [12, 12, 12, 12]);
    cluster.compare(&files, "even");

    // By command; what was moved so would be moved back if the masters were let.
    cluster.succeed(&["cluster", "rebalance", "--stop"]);
    let chunk = cluster.chunks()[5].clone();
    let has = |id: &str| {
        let copies = chunk["in_sync"].as_array().cloned().unwrap_or_default();
        copies.iter().any(|copy| copy == id)
    };
    let ids: Vec<String> = (1..=4).map(|number| cluster.id(number)).collect();
    let (with, without): (Vec<&String>, Vec<&String>) = ids.iter().partition(|id| has(id));
    let other = with.iter().find(|id| chunk["write_node"] != id.as_str()).unwrap();
    cluster.succeed(&["volume", "move", "data", "--chunk", "5", "--write-node", other]);
    assert_eq!(cluster.chunks()[5]["write_node"], other.as_str());
    let said = cluster.refused(&[
        "volume", "move", "data", "--chunk", "5", "--from", without[0], "--to", without[1],
    ]);
    assert!(said.contains("has no copy of it"), "{said}");
    cluster.succeed(&[
        "volume", "move", "data", "--chunk", "5", "--from", other, "--to", without[0],
    ]);
    wait_until("the copy has moved", || {
        let chunk = cluster.chunks()[5].clone();
        let copies = chunk["in_sync"].as_array().cloned().unwrap_or_default();
        copies.len() == 2
            && copies.iter().any(|copy| copy == without[0])
            && !copies.iter().any(|copy| copy == *other)
    });
    let said = cluster.refused(&["volume", "set", "data", "--write-node", without[0]]);
    assert!(said.contains("of its 24 chunks"), "{said}");
    cluster.wait_for_rest();
    cluster.compare(&files, "moved by command");
}
