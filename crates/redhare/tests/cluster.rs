//! The whole product as processes: `redhare up`, a volume, files in, a node killed, files compared, a restart; a writer
//! that is stopped, overtaken and woken again.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");
const LIMIT: Duration = Duration::from_secs(60);

/// The tests run one after the other: two clusters would find the same ports free.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

    /// Makes a volume as soon as every node that is alive has told of its disk, too.
    fn create_volume(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let output = self.run(&["volume", "create", "files", "--size", "512MiB"]);
            if output.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                said.contains("alive with a disk") && Instant::now() < deadline,
                "{said}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
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

    fn wait_for_nodes(&self) {
        self.wait(&["status"], |said| said.matches(" alive ").count() == 3);
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
    let _alone = alone();
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
    cluster.create_volume();
    cluster.succeed(&["fs", "format", "files"]);
    cluster.succeed(&["fs", "import", source, "files"]);
    cluster.succeed(&["fs", "compare", "files", source]);

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

/// What a writer is told to stop with and to go on with.
fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(status.unwrap().success(), "{name}");
}

#[test]
fn a_writer_that_was_stopped_and_overtaken_writes_nothing_more() {
    let _alone = alone();
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("writers-{}", std::process::id()));
    let (large, small) = (data.join("large"), data.join("small"));
    std::fs::create_dir_all(&large).unwrap();
    std::fs::create_dir_all(&small).unwrap();
    for number in 0..3000_u32 {
        let bytes: Vec<u8> = (0..64 << 10).map(|at: u32| (at * 31 + number) as u8).collect();
        std::fs::write(large.join(format!("file-{number}")), bytes).unwrap();
    }
    std::fs::write(small.join("small"), "one file").unwrap();
    let (large, small) = (large.to_str().unwrap(), small.to_str().unwrap());
    let cluster = Cluster::start(&data.join("cluster"), free_ports());
    cluster.wait_for_nodes();
    cluster.create_volume();
    cluster.succeed(&["fs", "format", "files"]);
    let begin = |number: u32| {
        Command::new(REDHARE)
            .args(["fs", "import", large, &format!("files:first-{number}")])
            .env("REDHARE_CLUSTER", format!("127.0.0.1:{}", cluster.port))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut first = begin(0);

    // While it writes, nobody else may. A probe that comes before it has begun may win, and be in its way.
    let deadline = Instant::now() + LIMIT;
    for number in 1.. {
        let refused = cluster.run(&["fs", "import", small, &format!("files:probe-{number}")]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let holder = format!("being written by redhare fs import, process {} on ", first.id());
        if !refused.status.success() && said.contains(&holder) {
            assert!(
                said.contains(", whose lease has ") && said.contains(" s left; wait, or end that writer"),
                "{said}"
            );
            break;
        }
        assert!(Instant::now() < deadline, "no probe met the first writer: {said}");
        if first.try_wait().unwrap().is_some() {
            first = begin(number);
        }
    }
    signal(&first, "-STOP");
    let refused = cluster.run(&["fs", "format", "files", "--force"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let holder = format!("process {} on ", first.id());
    assert!(!refused.status.success() && said.contains(&holder), "{said}");

    // Its lease ends, and the next writer takes over what was committed.
    cluster.wait(&["fs", "import", small, "files:second"], |said| {
        said.starts_with("imported")
    });
    cluster.succeed(&["fs", "verify", "files"]);
    signal(&first, "-CONT");
    let ended = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    assert!(
        said.contains("the lease has ended or was taken over; open the file system again"),
        "{said}"
    );
    cluster.succeed(&["fs", "compare", "files:second", small]);
    cluster.succeed(&["fs", "verify", "files"]);
    cluster.succeed(&["fs", "import", small, "files:third"]);
    drop(cluster);
    std::fs::remove_dir_all(&data).unwrap();
}
