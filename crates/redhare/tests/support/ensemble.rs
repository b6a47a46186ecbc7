//! Three masters on an etcd and nodes that join them by tokens, all over TLS and each a process of its own, which can be killed
//! and started again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::load::Load;
use super::{Place, REDHARE, free_ports, wait_until};

/// How many masters there are.
pub(crate) const MASTERS: usize = 3;

/// A process with a log; killed when it is dropped.
pub(crate) struct Running(Child);

impl Running {
    fn start(log: &Path, arguments: &[&str]) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log);
        let child = Command::new(REDHARE)
            .args(arguments)
            .env_remove("REDHARE_CLUSTER")
            .env_remove("REDHARE_CREDENTIALS")
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// A node's engine ends its target when it is asked to end, and cannot when it is killed.
    fn end(&mut self) {
        if kill_process(Pid::from_child(&self.0), Signal::TERM).is_ok() {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(15) && matches!(self.0.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Child::kill is SIGKILL; it may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// See the module.
pub(crate) struct Ensemble {
    pub(crate) place: Place,
    store: String,
    addresses: Vec<String>,
    masters: Vec<Option<Running>>,
    node_port: u16,
    pub(crate) nodes: Vec<Option<Running>>,
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            node.end();
        }
    }
}

impl Ensemble {
    /// An authority, an issuer, and credentials for masters, which are not started, and for an "admin". The masters' file has
    /// this text, and their store is at `etcd://` or `etcds://`.
    pub(crate) fn new(place: Place, store: &str, configuration: &str) -> Self {
        let base = free_ports();
        let addresses = (0..MASTERS as u16).map(|index| format!("127.0.0.1:{}", base + index));
        let ensemble = Self {
            store: store.to_owned(),
            addresses: addresses.collect(),
            masters: (0..MASTERS).map(|_| None).collect(),
            node_port: free_ports(),
            nodes: Vec::new(),
            place,
        };
        std::fs::write(ensemble.at("master.toml"), configuration).unwrap();
        ensemble.authority(&["init", "CA"]);
        for index in 0..MASTERS {
            let out = format!("credentials/master{index}");
            ensemble.authority(&[
                "issue",
                "CA",
                "--role",
                "master",
                "--address",
                "127.0.0.1",
                "--out",
                &out,
            ]);
        }
        ensemble.authority(&["issuer", "CA", "--out", "credentials/issuer"]);
        for index in 0..MASTERS {
            let copy = ensemble.credentials(&format!("issuer{index}"));
            std::fs::create_dir(&copy).unwrap();
            let from = ensemble.credentials("issuer").join("issuer.pem");
            std::fs::copy(from, copy.join("issuer.pem")).unwrap();
        }
        ensemble.authority(&["issue", "CA", "--role", "admin", "--out", "credentials/admin"]);
        ensemble
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.place.0.join(name)
    }

    pub(crate) fn credentials(&self, who: &str) -> PathBuf {
        self.at("credentials").join(who)
    }

    /// `redhare ca` with these arguments, in the place: CA is the authority.
    pub(crate) fn authority(&self, arguments: &[&str]) {
        let output = Command::new(REDHARE)
            .arg("ca")
            .args(arguments.iter().map(|&argument| match argument {
                "CA" => "ca",
                other => other,
            }))
            .current_dir(&self.place.0)
            .env_remove("RUST_LOG")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }

    pub(crate) fn start_master(&mut self, index: usize) {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let (own, issuer) = (
            text(self.credentials(&format!("master{index}"))),
            text(self.credentials(&format!("issuer{index}"))),
        );
        let file = text(self.at("master.toml"));
        let arguments = [
            "master",
            "--listen",
            &self.addresses[index],
            "--store",
            &self.store,
            "--config",
            &file,
            "--credentials",
            &own,
            "--issuer",
            &issuer,
        ];
        let log = self.at(&format!("master{index}.log"));
        self.masters[index] = Some(Running::start(&log, &arguments));
    }

    /// `kill -9`.
    pub(crate) fn kill_master(&mut self, index: usize) {
        self.masters[index] = None;
    }

    pub(crate) fn master_log(&self, index: usize) -> String {
        std::fs::read_to_string(self.at(&format!("master{index}.log"))).unwrap_or_default()
    }

    /// Where masters are, in this order.
    pub(crate) fn addresses_of(&self, order: &[usize]) -> String {
        let addresses: Vec<&str> = order.iter().map(|&index| &*self.addresses[index]).collect();
        addresses.join(",")
    }

    pub(crate) fn addresses(&self) -> String {
        self.addresses.join(",")
    }

    /// Those that follow, and the one that leads behind them.
    pub(crate) fn leader_last(&self) -> [usize; MASTERS] {
        let leader = self.leader();
        [(leader + 1) % MASTERS, (leader + 2) % MASTERS, leader]
    }

    /// The index of the master that leads, as soon as one does.
    pub(crate) fn leader(&self) -> usize {
        let mut leader = None;
        wait_until("a master leads", || {
            let status = self.json(&["status"]);
            let masters = status["masters"].as_array().cloned().unwrap_or_default();
            let leads = masters.into_iter().find(|master| master["leads"] == true);
            leader = leads.and_then(|leads| {
                let is_it = |address: &String| leads["address"] == address.as_str();
                self.addresses.iter().position(is_it)
            });
            leader.is_some_and(|leader| self.masters[leader].is_some())
        });
        leader.expect("it was waited for")
    }

    pub(crate) fn directory(&self, number: u16) -> PathBuf {
        self.at(&format!("node{number}"))
    }

    fn node_address(&self, number: u16) -> String {
        format!("127.0.0.1:{}", self.node_port + number)
    }

    /// Starts a node, from 0, which knows the masters at these addresses. It joins by the token in file "token" if it has to.
    pub(crate) fn start_node(&mut self, number: u16, masters: &str) {
        let directory = self.directory(number);
        std::fs::create_dir_all(&directory).unwrap();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let (data, own) = (
            text(directory.clone()),
            text(self.credentials(&format!("node{number}"))),
        );
        let (disk, token) = (format!("{data}/disk:1GiB"), text(self.at("token")));
        let (listen, end_with) = (self.node_address(number), std::process::id().to_string());
        let arguments = [
            "node",
            "--master",
            masters,
            "--listen",
            &listen,
            "--disk",
            &disk,
            "--data",
            &data,
            "--credentials",
            &own,
            "--join-file",
            &token,
            "--end-target",
            "--end-with",
            &end_with,
        ];
        let node = Running::start(&directory.join("engine.log"), &arguments);
        let index = usize::from(number);
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, || None);
        }
        self.nodes[index] = Some(node);
    }

    pub(crate) fn target_log(&self, number: u16) -> String {
        std::fs::read_to_string(self.directory(number).join("target.log")).unwrap_or_default()
    }

    /// A new token, in file "token"; its id.
    pub(crate) fn token(&self, arguments: &[&str]) -> String {
        let made = self.json(&[&["ca", "token", "create"], arguments].concat());
        let text = made["token"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{made}");
        std::fs::write(self.at("token"), text).unwrap();
        made["id"].as_str().unwrap().to_owned()
    }

    /// How many uses are left of a token.
    pub(crate) fn uses_left(&self, id: &str) -> Option<u64> {
        let rows = self.json(&["ca", "token", "list"]);
        let row = rows.as_array()?.iter().find(|row| row["id"] == id)?;
        row["uses_left"].as_u64()
    }

    pub(crate) fn run_at(&self, addresses: &str, who: &str, arguments: &[&str]) -> Output {
        Command::new(REDHARE)
            .args(arguments)
            .env("REDHARE_CLUSTER", addresses)
            .env("REDHARE_CREDENTIALS", self.credentials(who))
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    }

    pub(crate) fn succeed_as(&self, who: &str, arguments: &[&str]) {
        let output = self.run_at(&self.addresses(), who, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{who}, {arguments:?}: {said}");
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run_at(&self.addresses(), "admin", &[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub(crate) fn wait_for_living(&self, count: usize) {
        wait_until(&format!("{count} nodes live"), || {
            let status = self.json(&["status"]);
            let lives = |row: &&Value| row["alive"] == true && row["disks"] == 1;
            let nodes = status["nodes"].as_array();
            nodes.is_some_and(|nodes| nodes.iter().filter(lives).count() == count)
        });
    }

    /// A volume that is made by the administrator, and a client with these credentials that writes it and verifies what it reads.
    pub(crate) fn start_load(&self, who: &str) -> Load {
        let create = [
            "volume",
            "create",
            "load",
            "--size",
            "32MiB",
            "--chunk-size",
            "16MiB",
        ];
        self.succeed_as("admin", &create);
        self.wait_for_sync("load", 3);
        let load = Load::with_credentials(&self.masters_for(who), "load");
        load.wait_for(100);
        load
    }

    /// The masters, as who has these credentials reaches them.
    pub(crate) fn masters_for(&self, who: &str) -> master::Masters {
        master::Masters {
            addresses: self.addresses(),
            credentials: Some(identity::Files::in_directory(&self.credentials(who))),
        }
    }

    /// Waits until all copies of a volume are in sync.
    pub(crate) fn wait_for_sync(&self, volume: &str, copies: usize) {
        wait_until("every copy is in sync", || {
            let shown = self.json(&["volume", "show", volume]);
            let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
            let is_whole = |chunk: &Value| chunk["in_sync"].as_array().map_or(0, Vec::len) == copies;
            !chunks.is_empty() && chunks.iter().all(is_whole)
        });
    }
}
