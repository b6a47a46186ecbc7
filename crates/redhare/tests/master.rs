//! The master as a process and the commands that talk to it: killed with SIGKILL it comes back
//! as it was; asked to end it ends cleanly; refusals reach the person with a remedy.

use std::net::TcpListener;
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
    let mut command = Command::new(REDHARE);
    command
        .args(["master", "--listen", address, "--store"])
        .arg(store);
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

#[test]
fn a_killed_master_comes_back_as_it_was() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{port}");
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
