//! The whole product as processes: `redhare up`, a volume, files in, a node killed, files compared, a restart.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");
const LIMIT: Duration = Duration::from_secs(60);

/// A run of four free ports. Another process may take one before the cluster does; then the test fails loudly.
fn free_ports() -> u16 {
    for base in (20_000..60_000).step_by(97) {
        let held: Vec<_> = (base..base + 4)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if held.iter().all(Result::is_ok) {
            return base;
        }
    }
    panic!("no four ports in a row are free");
}

struct Cluster {
    up: Child,
    data: PathBuf,
    port: u16,
}

impl Cluster {
    fn start(data: &Path, port: u16) -> Self {
        let mut up = Command::new(REDHARE)
            .args(["up", "--disk-size", "1GiB", "--port", &port.to_string(), "--data"])
            .arg(data)
            // So that the addresses it leaves for other commands are not those of the machine's user.
            .env("XDG_STATE_HOME", data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(up.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("master at"), "{line}");
        Self {
            up,
            data: data.to_owned(),
            port,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let cluster = format!("127.0.0.1:{}", self.port);
        Command::new(REDHARE)
            .args(arguments)
            .env("REDHARE_CLUSTER", cluster)
            .output()
            .unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// Repeats a command until what it says fits.
    fn wait(&self, arguments: &[&str], fits: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = String::from_utf8_lossy(&self.run(arguments).stdout).into_owned();
            if fits(&said) {
                return;
            }
            assert!(Instant::now() < deadline, "{arguments:?} still says {said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all nodes are alive and have said which disks they have.
    fn wait_for_nodes(&self) {
        let is_ready = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(2..4) == Some(&["alive", "1"][..])
        };
        self.wait(&["status"], |said| said.lines().filter(is_ready).count() == 3);
    }

    /// Kills a node as a dying server does: engine and target at once.
    fn kill_node(&self, number: u32) {
        let directory = self.data.join(format!("node{number}"));
        for pattern in [
            format!("data {}", directory.display()),
            format!("{}/target.toml", directory.display()),
        ] {
            Command::new("pkill")
                .args(["-9", "-f", &pattern])
                .status()
                .unwrap();
        }
    }

    fn end(mut self) {
        self.interrupt();
    }

    fn interrupt(&mut self) {
        Command::new("kill")
            .args(["-INT", &self.up.id().to_string()])
            .status()
            .unwrap();
        assert!(self.up.wait().unwrap().success(), "Ctrl-C ends it cleanly");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if matches!(self.up.try_wait(), Ok(None)) {
            let _ = Command::new("kill")
                .args(["-INT", &self.up.id().to_string()])
                .status();
            let _ = self.up.wait();
        }
    }
}

#[test]
fn files_survive_a_killed_node_and_a_restart_of_everything() {
    // Beside the build output: disks want a real file system.
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{}", std::process::id()));
    let files = data.join("files");
    std::fs::create_dir_all(&files).unwrap();
    for number in 0..300u32 {
        let bytes: Vec<u8> = (0..number * 97).map(|at| (at * 31 + number) as u8).collect();
        std::fs::write(files.join(format!("file-{number}")), bytes).unwrap();
    }
    let source = files.to_str().unwrap();
    let port = free_ports();
    let cluster = Cluster::start(&data.join("cluster"), port);
    cluster.wait_for_nodes();
    let refused = cluster.run(&["volume", "create", "huge", "--size", "1TiB"]);
    assert!(!refused.status.success());
    cluster.succeed(&["volume", "create", "files", "--size", "512MiB"]);
    cluster.succeed(&["fs", "format", "files"]);
    cluster.succeed(&["fs", "import", source, "files"]);
    cluster.succeed(&["fs", "compare", "files", source]);
    let against = [
        "fs",
        "bench",
        "files",
        "--against",
        source,
        "--evict",
        "files",
        "--seconds",
        "0.2",
    ];
    let said = cluster.succeed(&against);
    assert!(said.contains("of the cluster's 7 processes"), "{said}");

    // Everything ends and starts again: every life is new, and nothing is lost.
    cluster.end();
    let cluster = Cluster::start(&data.join("cluster"), port);
    cluster.wait_for_nodes();
    cluster.wait(&["fs", "stat", "files:file-7"], |said| said.contains("file-7"));
    cluster.succeed(&["fs", "compare", "files", source]);

    // One server dies: reads go on at once, the masters leave it out.
    cluster.kill_node(2);
    cluster.succeed(&["fs", "compare", "files", source]);
    cluster.wait(&["status"], |said| said.contains("lack a copy"));
    cluster.succeed(&["fs", "verify", "files"]);
    drop(cluster);
    std::fs::remove_dir_all(&data).unwrap();
}
