//! A cluster whose processes are on hosts of their own ([`super::net`]), and what can happen to them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent::lock;
use master::v1;
use rustix::process::Signal;

use super::net::{BadCable, Net, run};
use crate::commands::cluster::status_of;
use crate::output::Failure;

/// How long anything may take that is waited for here, on a machine with other work.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const PEER_PORT: u16 = 4420;
const MASTER_PORT: u16 = 7400;
const ETCD_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;

/// What a cluster is made of.
pub(super) struct Plan {
    /// Storage nodes, each on a host, numbered from 1.
    pub(super) nodes: usize,
    /// One master with a store of its own, or several on an etcd with a member beside each.
    pub(super) masters: usize,
    /// Size of each node's disk, a sparse file.
    pub(super) disk: String,
    /// Each node's directory is a file system of this size in memory, which can be filled.
    pub(super) bounded: Option<String>,
    /// Given to the masters beside what they need.
    pub(super) master_arguments: Vec<String>,
}

/// See the module. Everything is killed when it is dropped.
pub(super) struct World {
    nodes: Vec<Option<Child>>,
    masters: Vec<Option<Child>>,
    /// The members of the masters' etcd, one beside each.
    etcd: Vec<Option<Child>>,
    plan: Plan,
    place: PathBuf,
    mounted: Vec<PathBuf>,
    /// Of hosts, by number.
    bad_cables: BTreeMap<usize, BadCable>,
    /// Last: nothing is in it any more when it goes.
    net: Net,
}

fn io(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::new)
}

/// What an etcd's member says of itself in Prometheus' format; none if it does not answer within a second.
fn metrics_of(address: SocketAddr) -> Option<String> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}

impl World {
    /// Starts everything below `place` and waits until all nodes live.
    pub(super) fn start(plan: Plan, place: &Path) -> Result<Self, Failure> {
        let net = Net::new(1 + plan.nodes + plan.masters)?;
        let mut world = Self {
            nodes: (0..plan.nodes).map(|_| None).collect(),
            masters: (0..plan.masters).map(|_| None).collect(),
            etcd: Vec::new(),
            plan,
            place: place.to_owned(),
            mounted: Vec::new(),
            bad_cables: BTreeMap::new(),
            net,
        };
        if world.plan.masters > 1 {
            world.start_etcd()?;
        }
        for master in 0..world.plan.masters {
            world.start_master(master)?;
        }
        for node in world.numbers() {
            let below = world.disk_directory(node);
            std::fs::create_dir_all(&below).map_err(|error| io(&below, &error))?;
            if let Some(size) = &world.plan.bounded {
                let target = below.display().to_string();
                let options = format!("size={size}");
                run(
                    "mount",
                    &["-t", "tmpfs", "-o", &options, "redhare-faults", &target],
                )?;
                world.mounted.push(below);
            }
            world.start_node(node)?;
        }
        let count = world.plan.nodes;
        world.wait("all nodes live", |world| {
            let ready = |node: &&v1::NodeStatus| node.alive && !node.disks.is_empty();
            world
                .status()
                .is_ok_and(|status| status.nodes.iter().filter(ready).count() == count)
        })?;
        Ok(world)
    }

    /// The numbers of the nodes, which are those of their hosts.
    pub(super) fn numbers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.plan.nodes
    }

    /// How many masters there are.
    pub(super) fn masters(&self) -> usize {
        self.plan.masters
    }

    /// Where nodes and clients find the masters.
    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<_> = (0..self.plan.masters)
            .map(|master| self.master_address(master))
            .collect();
        addresses.join(",")
    }

    /// One master's.
    pub(super) fn master_address(&self, master: usize) -> String {
        Net::socket(self.master_host(master), MASTER_PORT).to_string()
    }

    fn master_host(&self, master: usize) -> usize {
        1 + self.plan.nodes + master
    }

    /// Where a node keeps everything but its disk.
    fn directory(&self, node: usize) -> PathBuf {
        self.place.join(format!("node{node}"))
    }

    fn disk_directory(&self, node: usize) -> PathBuf {
        self.place.join(format!("disk{node}"))
    }

    /// The file that is a node's disk.
    pub(super) fn disk(&self, node: usize) -> PathBuf {
        self.disk_directory(node).join("disk")
    }

    /// What the masters say.
    pub(super) fn status(&self) -> Result<v1::GetStatusResponse, Failure> {
        status_of(&self.addresses().as_str().into())
    }

    fn spawn(&self, host: usize, name: &str, program: &Path, arguments: &[String]) -> Result<Child, Failure> {
        let path = self.place.join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| io(&path, &error))?;
        let mut command = self.net.command(host, program);
        command
            .args(arguments)
            .env_remove("REDHARE_CLUSTER")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {command:?}: {error}")))
    }

    fn start_etcd(&mut self) -> Result<(), Failure> {
        for member in 0..self.plan.masters {
            self.etcd.push(None);
            self.start_etcd_member(member)?;
        }
        Ok(())
    }

    /// Starts the member beside a master, the first time or again with what it has.
    pub(super) fn start_etcd_member(&mut self, member: usize) -> Result<(), Failure> {
        let url = |host, port| format!("http://{}", Net::socket(host, port));
        let all: Vec<String> = (0..self.plan.masters)
            .map(|master| self.master_host(master))
            .map(|host| format!("m{host}={}", url(host, ETCD_PEER_PORT)))
            .collect();
        let host = self.master_host(member);
        let pairs = [
            ("--name", format!("m{host}")),
            (
                "--data-dir",
                self.place.join(format!("etcd{host}")).display().to_string(),
            ),
            ("--listen-client-urls", url(host, ETCD_PORT)),
            ("--advertise-client-urls", url(host, ETCD_PORT)),
            ("--listen-peer-urls", url(host, ETCD_PEER_PORT)),
            ("--initial-advertise-peer-urls", url(host, ETCD_PEER_PORT)),
            ("--initial-cluster", all.join(",")),
            ("--logger", "zap".to_owned()),
            ("--log-level", "error".to_owned()),
        ];
        let arguments: Vec<String> = pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        let child = self.spawn(host, &format!("etcd{host}"), Path::new("etcd"), &arguments)?;
        self.etcd[member] = Some(child);
        Ok(())
    }

    /// `kill -9` of an etcd's member.
    pub(super) fn kill_etcd_member(&mut self, member: usize) -> Result<(), Failure> {
        if let Some(mut child) = self.etcd[member].take() {
            child.kill().and_then(|()| child.wait()).map_err(Failure::new)?;
        }
        Ok(())
    }

    /// The member that leads the etcd, as its metrics say (`etcd_server_is_leader`); none while they elect one.
    pub(super) fn etcd_leader(&self) -> Option<usize> {
        (0..self.plan.masters).find(|&member| {
            let address = Net::socket(self.master_host(member), ETCD_PORT);
            metrics_of(address).is_some_and(|text| text.lines().any(|line| line == "etcd_server_is_leader 1"))
        })
    }

    /// Starts a master, the first time or again.
    pub(super) fn start_master(&mut self, master: usize) -> Result<(), Failure> {
        let store = if self.plan.masters > 1 {
            let members: Vec<String> = (0..self.plan.masters)
                .map(|m| Net::socket(self.master_host(m), ETCD_PORT).to_string())
                .collect();
            format!("etcd://{}/faults", members.join(","))
        } else {
            self.place.join("master").display().to_string()
        };
        let mut arguments = vec![
            "master".to_owned(),
            "--listen".to_owned(),
            self.master_address(master),
        ];
        arguments.extend(["--store".to_owned(), store]);
        arguments.extend(["--end-with".to_owned(), std::process::id().to_string()]);
        arguments.extend(self.plan.master_arguments.iter().cloned());
        let host = self.master_host(master);
        let child = self.spawn(host, &format!("master{master}"), &own_program()?, &arguments)?;
        self.masters[master] = Some(child);
        Ok(())
    }

    /// `kill -9` of a master.
    pub(super) fn kill_master(&mut self, master: usize) -> Result<(), Failure> {
        if let Some(mut child) = self.masters[master].take() {
            child.kill().and_then(|()| child.wait()).map_err(Failure::new)?;
        }
        Ok(())
    }

    /// Starts a node's engine, the first time or again; it adopts a target that runs.
    pub(super) fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        // One that was killed by its lock is still to be waited for.
        if let Some(mut child) = self.nodes[node - 1].take() {
            child.wait().map_err(Failure::new)?;
        }
        let directory = self.directory(node);
        let arguments = [
            "node".to_owned(),
            "--end-target".to_owned(),
            "--end-with".to_owned(),
            std::process::id().to_string(),
            "--master".to_owned(),
            self.addresses(),
            "--listen".to_owned(),
            Net::socket(node, PEER_PORT).to_string(),
            "--disk".to_owned(),
            format!("{}:{}", self.disk(node).display(), self.plan.disk),
            "--data".to_owned(),
            directory.display().to_string(),
        ];
        let child = self.spawn(node, &format!("engine{node}"), &own_program()?, &arguments)?;
        self.nodes[node - 1] = Some(child);
        Ok(())
    }

    fn target_lock(&self, node: usize) -> PathBuf {
        agent::target_lock(&self.directory(node))
    }

    fn engine_lock(&self, node: usize) -> PathBuf {
        self.directory(node).join("agent.lock")
    }

    /// Sends a signal to a node's target; false if it does not run.
    pub(super) fn signal_target(&self, node: usize, signal: Signal) -> Result<bool, Failure> {
        lock::signal(&self.target_lock(node), signal).map_err(Failure::new)
    }

    /// Sends a signal to a node's engine; false if it does not run.
    pub(super) fn signal_engine(&self, node: usize, signal: Signal) -> Result<bool, Failure> {
        lock::signal(&self.engine_lock(node), signal).map_err(Failure::new)
    }

    /// Stops all of a host's processes, as a host that hangs, or lets them go on.
    pub(super) fn freeze(&self, node: usize, is_frozen: bool) -> Result<(), Failure> {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        self.signal_engine(node, signal)?;
        self.signal_target(node, signal)?;
        Ok(())
    }

    /// Cuts a node's link, or mends it.
    pub(super) fn link(&self, node: usize, is_up: bool) -> Result<(), Failure> {
        self.net.link(node, is_up)
    }

    /// Makes a node's link a bad one, as these options of `tests/linearizability/link` say.
    pub(super) fn spoil(&mut self, node: usize, program: &Path, options: &[String]) -> Result<(), Failure> {
        let path = self.place.join(format!("link{node}.log"));
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| io(&path, &error))?;
        let cable = self.net.spoil(node, program, options, log)?;
        self.bad_cables.insert(node, cable);
        Ok(())
    }

    /// Makes it a good one again.
    pub(super) fn mend(&mut self, node: usize) -> Result<(), Failure> {
        match self.bad_cables.remove(&node) {
            Some(cable) => self.net.mend(node, cable),
            None => Ok(()),
        }
    }

    /// Does something on a thread whose host is the node's.
    pub(super) fn on_host<T: Send + 'static>(
        &self,
        node: usize,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<std::thread::JoinHandle<Result<T, Failure>>, Failure> {
        self.net.on_host(node, work)
    }

    /// Ends a node for good: its engine, so that nobody starts its target again, and that.
    pub(super) fn kill_node(&self, node: usize) -> Result<(), Failure> {
        self.signal_engine(node, Signal::KILL)?;
        self.signal_target(node, Signal::KILL)?;
        Ok(())
    }

    /// Whether the masters speak of this node.
    pub(super) fn is_node(status: &v1::NodeStatus, node: usize) -> bool {
        status.peer_address == Net::socket(node, PEER_PORT).to_string()
    }

    /// Bytes that a node's host has received, of what layer ever.
    pub(super) fn bytes_to(&self, node: usize) -> Result<u64, Failure> {
        self.net.bytes_to(node)
    }

    /// Fills the file system under a node's disk, or makes room again. Only where it is bounded.
    pub(super) fn fill(&self, node: usize, is_full: bool) -> Result<(), Failure> {
        let path = self.disk_directory(node).join("filler");
        if !is_full {
            return std::fs::remove_file(&path).map_err(|error| io(&path, &error));
        }
        let file = std::fs::File::create(&path).map_err(|error| io(&path, &error))?;
        let bytes = vec![0xff; 1 << 20];
        for at in 0.. {
            // The last piece is cut to what fits; then nothing fits.
            match file.write_at(&bytes, at * bytes.len() as u64) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(io(&path, &error)),
            }
        }
        Ok(())
    }

    /// Waits with a bound.
    pub(super) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + LIMIT;
        while !is_so(self) {
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "after {} s it is still not so: {what}; the logs are in {}",
                    LIMIT.as_secs(),
                    self.place.display()
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether every node lives and every chunk has all its copies in sync.
    pub(super) fn is_well(&self) -> bool {
        self.status().is_ok_and(|status| {
            status.nodes.iter().filter(|node| node.alive).count() == self.plan.nodes
                && status
                    .volumes
                    .iter()
                    .all(|volume| volume.degraded_chunks == 0 && volume.waiting_chunks == 0)
        })
    }

    /// Runs one of our own commands on this cluster from host 0; what it printed as JSON.
    pub(super) fn redhare(&self, arguments: &[&str]) -> Result<serde_json::Value, Failure> {
        let mut command = Command::new(own_program()?);
        command
            .args(["--json"])
            .args(arguments)
            .env("REDHARE_CLUSTER", self.addresses())
            .env("RUST_LOG", "error");
        let output = command.output().map_err(Failure::new)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(Failure::new(format!("redhare {}: {said}", arguments.join(" "))));
        }
        Ok(serde_json::from_str(&said).unwrap_or_default())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for node in self.numbers() {
            // One that does not run has no signal to get.
            let _ = self.signal_engine(node, Signal::KILL);
            let _ = self.signal_target(node, Signal::KILL);
        }
        let children = self.nodes.iter_mut().chain(&mut self.masters);
        for child in children.chain(&mut self.etcd).flatten() {
            drop(child.kill());
            drop(child.wait());
        }
        for path in &self.mounted {
            // Lazily: what a killed process has open is let go of a moment later.
            if let Err(error) = run("umount", &["-l".as_ref(), path.as_os_str()]) {
                tracing::warn!(%error, "a file system in memory stays");
            }
        }
    }
}
