//! The master as a process and the commands that talk to it: killed with SIGKILL it comes back
//! as it was; asked to end it ends cleanly; refusals reach the person with a remedy; it serves HTTP if it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");

/// A master that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(address: &str, store: &Path) -> Running {
    start_with(address, store, &[])
}

fn start_with(address: &str, store: &Path, more: &[&str]) -> Running {
    let mut command = Command::new(REDHARE);
    command
        .args(["master", "--listen", address, "--store"])
        .arg(store)
        .args(more);
    let running = Running(command.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ask(address, &["status"]).status.success() {
        assert!(
            Instant::now() < deadline,
            "the master does not answer at {address}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

fn ask(address: &str, arguments: &[&str]) -> Output {
    Command::new(REDHARE)
        .args(arguments)
        .env("REDHARE_CLUSTER", address)
        .output()
        .unwrap()
}

fn json(address: &str, arguments: &[&str]) -> serde_json::Value {
    let output = ask(address, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// TCP sockets on which a process listens: its open files beside the kernel's table, where state 0A is "listen".
fn listening(process: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let files: Vec<String> = files
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{process}/net/{table}")));
    let sockets = tables.iter().flatten().flat_map(|table| table.lines());
    let listens = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"0A")
            && fields
                .get(9)
                .is_some_and(|inode| files.contains(&format!("socket:[{inode}]")))
    };
    sockets.filter(listens).count()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_master_serves_http_where_it_is_told_to_and_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let [address, http] = [free_address(), free_address()];
    let master = start(&address, directory.path());
    assert_eq!(listening(master.0.id()), 1);
    drop(master);
    let master = start_with(&address, directory.path(), &["--http", &http]);
    assert_eq!(listening(master.0.id()), 2);
    let shown = get(&http, "/status.json");
    let shown: serde_json::Value = serde_json::from_str(shown.split_once("\r\n\r\n").unwrap().1).unwrap();
    let status = json(&address, &["status"]);
    assert_eq!(status["health"]["verdict"], "healthy");
    for field in [
        "cluster", "health", "revision", "nodes", "balance", "volumes", "store",
    ] {
        assert_eq!(shown[field], status[field], "{field}");
    }
    let metrics = get(&http, "/metrics");
    assert!(metrics.contains("\nredhare_cluster_healthy 1\n"), "{metrics}");
    assert!(get(&http, "/").contains("<h1>The cluster is healthy</h1>"));
    let other = tempfile::tempdir().unwrap();
    let second = Command::new(REDHARE)
        .args(["master", "--listen", "127.0.0.1:0", "--http", &http, "--store"])
        .arg(other.path())
        .output()
        .unwrap();
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        text.contains(&format!("cannot serve the dashboard and metrics on {http}: ")),
        "{text}"
    );
    drop(master);
    // The file says it as well.
    let file = other.path().join("master.toml");
    std::fs::write(&file, format!("http = \"{http}\"\n")).unwrap();
    let file = file.to_str().unwrap();
    let _master = start_with(&address, directory.path(), &["--config", file]);
    assert!(get(&http, "/metrics").contains("redhare_master_leads 1"));
}

#[test]
fn a_killed_master_comes_back_as_it_was() {
    let address = free_address();
    let directory = tempfile::tempdir().unwrap();
    let master = start(&address, directory.path());
    let before = json(&address, &["status"]);
    assert!(before["cluster"].as_str().unwrap().len() == 36, "{before}");
    let second = Command::new(REDHARE)
        .args(["master", "--listen", "127.0.0.1:0", "--store"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        text.contains("is open in another process; stop the master that uses it"),
        "{text}"
    );
    // Child::kill is SIGKILL.
    drop(master);
    let mut master = start(&address, directory.path());
    let after = json(&address, &["status"]);
    for field in ["cluster", "revision", "nodes", "volumes", "store"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(after["masters"][0]["leads"], true, "{after}");
    let refused = json(&address, &["volume", "create", "data", "--size", "1GiB"]);
    let message = refused["error"].as_str().unwrap();
    assert!(
        message.starts_with("3 copies need 3 nodes, but 0 of 0 known nodes"),
        "{message}"
    );
    let terminated = Command::new("kill")
        .arg(master.0.id().to_string())
        .status()
        .unwrap();
    assert!(terminated.success());
    assert!(master.0.wait().unwrap().success(), "SIGTERM is a clean end");
    let output = ask(&address, &["volume", "list"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("no master answers at") && !output.status.success(),
        "{text}"
    );
}
