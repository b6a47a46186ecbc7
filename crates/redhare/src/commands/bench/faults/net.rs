//! Hosts on this machine: each is a network namespace with one interface on a bridge, which is in a namespace of its own.
//! So a link can be cut without a word to either end, as by a pulled cable.
//!
//! Needs root and `ip` (iproute2). The namespaces are named after this process, and removed when the network is dropped;
//! those of a process that was killed are removed by the next one.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::output::Failure;

/// How namespaces are called: this, the number of the process, a dash, the number of the host.
const PREFIX: &str = "redhare-f";
/// Where `ip netns` keeps the names (ip-netns(8)).
const NAMES: &str = "/run/netns";
/// What a thread's own network namespace is called.
const OWN: &str = "/proc/thread-self/ns/net";
/// BBR, which some systems default to, paces and stalls deep queues between hosts as near as these.
const CONGESTION_CONTROL: &str = "reno";
/// The namespace of the bridge.
const HUB: &str = "hub";

/// See the module. Hosts are numbered from 0; the thread that made the network is on host 0, with all that it starts.
pub(super) struct Net {
    prefix: String,
    hosts: usize,
    /// Where the thread was before.
    before: Option<std::fs::File>,
}

/// Runs a program that prints nothing worth keeping.
pub(super) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<(), Failure> {
    let mut command = Command::new(program);
    let output = command.args(arguments).output().map_err(|error| {
        Failure::new(format!(
            "cannot start {program}: {error}; run: apt-get install iproute2 util-linux"
        ))
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

fn ip(arguments: &str) -> Result<(), Failure> {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

impl Net {
    /// Makes the hosts and moves the calling thread, and so all threads and processes that it starts later, to host 0.
    pub(super) fn new(hosts: usize) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(
                "hosts are network namespaces, which only root may make; run it as root",
            ));
        }
        remove_left()?;
        let prefix = format!("{PREFIX}{}-", std::process::id());
        // From here on what was made is removed when this is dropped.
        let mut net = Self {
            prefix,
            hosts,
            before: None,
        };
        let hub = net.name(HUB);
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add bridge type bridge"))?;
        ip(&format!("-n {hub} link set bridge up"))?;
        for host in 0..hosts {
            let name = net.name(host);
            ip(&format!("netns add {name}"))?;
            ip(&format!(
                "-n {name} link add eth0 type veth peer name p{host} netns {hub}"
            ))?;
            ip(&format!("-n {hub} link set p{host} master bridge up"))?;
            // The way into the bridge for what comes through a bad cable.
            ip(&format!("-n {hub} link add s{host} type veth peer name b{host}"))?;
            ip(&format!("-n {hub} link set b{host} master bridge up"))?;
            ip(&format!("-n {hub} link set s{host} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", Self::address(host)))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            let setting = format!("echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control");
            run("ip", &["netns", "exec", &name, "sh", "-c", &setting])?;
        }
        let (before, own) = (open_namespace(OWN)?, net.namespace(0)?);
        enter(&own)?;
        net.before = Some(before);
        Ok(net)
    }

    fn name(&self, host: impl std::fmt::Display) -> String {
        format!("{}{host}", self.prefix)
    }

    /// A host's address.
    pub(super) fn address(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, u8::try_from(host + 1).unwrap_or(u8::MAX))
    }

    /// A port of a host.
    pub(super) fn socket(host: usize, port: u16) -> SocketAddr {
        SocketAddr::from((Self::address(host), port))
    }

    /// A command that runs on a host. Its process is the program's own: `ip` becomes it.
    pub(super) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host)]).arg(program);
        command
    }

    /// Does something on a thread whose host is this one: its sockets are there.
    pub(super) fn on_host<T: Send + 'static>(
        &self,
        host: usize,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<JoinHandle<Result<T, Failure>>, Failure> {
        let namespace = self.namespace(host)?;
        Ok(std::thread::spawn(move || {
            enter(&namespace)?;
            work()
        }))
    }

    fn namespace(&self, host: usize) -> Result<std::fs::File, Failure> {
        open_namespace(&format!("{NAMES}/{}", self.name(host)))
    }

    /// Cuts a host's cable, or mends it.
    pub(super) fn link(&self, host: usize, is_up: bool) -> Result<(), Failure> {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("-n {} link set p{host} {state}", self.name(HUB)))
    }
}

/// A cable that a program carries frames over, until it is mended.
pub(super) struct BadCable {
    carrier: Child,
}

impl Drop for BadCable {
    fn drop(&mut self) {
        // It has ended already if it was mended.
        drop(self.carrier.kill());
        drop(self.carrier.wait());
    }
}

impl Net {
    /// Puts a program (`tests/linearizability/link`) between a host and the bridge, which does to frames what these options
    /// say. Waits until it carries.
    pub(super) fn spoil(
        &self,
        host: usize,
        program: &Path,
        options: &[String],
        log: std::fs::File,
    ) -> Result<BadCable, Failure> {
        let cannot = |error: std::io::Error| Failure::new(format!("{}: {error}", program.display()));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(HUB)]).arg(program);
        command
            .args([format!("p{host}"), format!("s{host}")])
            .args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut carrier = command.spawn().map_err(cannot)?;
        let out = carrier.stdout.take().expect("its output is a pipe");
        let cable = BadCable { carrier };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(cannot)?;
        if line.trim() != "ready" {
            return Err(Failure::new(format!(
                "{} does not carry frames; its log is beside the others",
                program.display()
            )));
        }
        ip(&format!("-n {} link set p{host} nomaster", self.name(HUB)))?;
        Ok(cable)
    }

    /// Takes the program out again; what it holds back arrives now.
    pub(super) fn mend(&self, host: usize, mut cable: BadCable) -> Result<(), Failure> {
        kill_process(Pid::from_child(&cable.carrier), Signal::TERM).map_err(Failure::new)?;
        let ended = cable.carrier.wait().map_err(Failure::new)?;
        ip(&format!("-n {} link set p{host} master bridge", self.name(HUB)))?;
        match ended.success() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "the bad cable of host {host} ended with {ended}"
            ))),
        }
    }

    /// Bytes that the bridge has sent to a host.
    pub(super) fn bytes_to(&self, host: usize) -> Result<u64, Failure> {
        let (hub, port) = (self.name(HUB), format!("p{host}"));
        let output = Command::new("ip")
            .args(["-n", &hub, "-s", "-j", "link", "show", &port])
            .output()
            .map_err(Failure::new)?;
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(Failure::new)?;
        let bytes = shown[0]["stats64"]["tx"]["bytes"].as_u64();
        bytes.ok_or_else(|| Failure::new(format!("ip does not say what {port} has sent: {shown}")))
    }
}

fn open_namespace(path: &str) -> Result<std::fs::File, Failure> {
    std::fs::File::open(path)
        .map_err(|error| Failure::new(format!("cannot use the network namespace {path}: {error}")))
}

fn enter(namespace: &std::fs::File) -> Result<(), Failure> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| Failure::new(format!("cannot enter a network namespace: {error}")))
}

/// Removes the namespaces of processes that are no more.
fn remove_left() -> Result<(), Failure> {
    for entry in std::fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let is_left = process.is_some_and(|process| !std::path::Path::new("/proc").join(process).exists());
        if is_left {
            ip(&format!("netns del {name}"))?;
        }
    }
    Ok(())
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(before) = self.before.take()
            && let Err(error) = enter(&before)
        {
            tracing::warn!(%error, "this thread stays in a namespace that is removed");
        }
        let hosts = (0..self.hosts).map(|host| host.to_string());
        for host in hosts.chain([HUB.to_owned()]) {
            let name = self.name(host);
            // One that was never made is no loss, and one that stays is removed by the next run.
            if let Err(error) = ip(&format!("netns del {name}")) {
                tracing::debug!(%error, name, "a namespace was not removed");
            }
        }
    }
}
