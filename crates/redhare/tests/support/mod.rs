//! A cluster of real processes for tests: `redhare up`, its processes by their locks, and a client that writes and reads
//! all the while.

pub(crate) mod ensemble;
pub(crate) mod forward;
pub(crate) mod load;
pub(crate) mod nodes;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use agent::lock;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const REDHARE: &str = env!("CARGO_BIN_EXE_redhare");
/// Nothing that a test waits for takes longer, on a machine that has much else to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// What the run of ports of a caller reaches to: a cluster's nodes follow its master.
const PORTS: u16 = 11;

/// The first port of a free run, another one for each caller, which no other test takes until this process has ended: also not while what
/// listened there is dead. Else a client would find another test's cluster at its masters' addresses.
pub(crate) fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..900 {
        // Below the ports that the kernel gives out by itself, and those that scripts draw. Each program begins elsewhere: what the one before has left
        // behind may take its own ports once more.
        let begins = (std::process::id() * 37 % 900) as u16;
        let base = 10_000 + (begins + NEXT.fetch_add(1, Ordering::Relaxed)) % 900 * PORTS;
        let name = std::env::temp_dir().join(format!("redhare-test-ports-{base}"));
        let file = std::fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name)
            .unwrap();
        if file.try_lock().is_err() {
            continue;
        }
        let held: Vec<_> = (base..base + PORTS)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if held.iter().all(Result::is_ok) {
            // Locked for as long as this process lives.
            std::mem::forget(file);
            return base;
        }
    }
    panic!("no {PORTS} ports in a row are free");
}

/// What a place in memory has room for at least, in bytes: more than the disks of any of these tests come to use.
const ROOM: u64 = 4 << 30;

/// Waits for something with a bound.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A directory beside the build output, since disks want a real file system; removed at the end unless the test fails.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A place in memory where the system has room in one: for tests of what becomes of processes, in which a disk that
    /// stalls for seconds, since others write to it, would rightly cost a copy its place in the set, and for those that
    /// would make it stall.
    pub(crate) fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let room = rustix::fs::statvfs(memory).map_or(0, |room| room.f_bavail * room.f_frsize);
        let path = memory.join(format!("redhare-test-{name}-{}", std::process::id()));
        match room >= ROOM && std::fs::create_dir(&path).is_ok() {
            true => Self(path),
            false => Self::new(name),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Every process whose command line names `data`.
pub(crate) fn processes_of(data: &Path) -> Vec<String> {
    let wanted = data.to_str().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(wanted) {
            found.push(format!("{} {line}", entry.file_name().display()));
        }
    }
    found
}

/// The processes that have a file open for writing; those that read it past its node have it open, too.
pub(crate) fn writers_of(path: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let descriptors = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        let names_it = |descriptor: std::io::Result<std::fs::DirEntry>| {
            descriptor.is_ok_and(|descriptor| {
                std::fs::read_link(descriptor.path()).is_ok_and(|target| target == path)
                    && is_writable(&descriptor.path())
            })
        };
        if descriptors.into_iter().any(names_it) {
            found.push(process);
        }
    }
    found
}

/// Whether a descriptor in `/proc/PROCESS/fd` may be written to: the last octal digit of its flags (`proc(5)`).
fn is_writable(descriptor: &Path) -> bool {
    let information = descriptor.to_str().unwrap().replace("/fd/", "/fdinfo/");
    let text = std::fs::read_to_string(information).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.is_some_and(|flags| flags.ends_with(['1', '2']))
}

pub(crate) struct Cluster {
    up: Child,
    pub(crate) data: PathBuf,
    pub(crate) port: u16,
}

impl Cluster {
    pub(crate) fn command(data: &Path, port: u16) -> Command {
        let mut command = Command::new(REDHARE);
        command
            .args(["up", "--disk-size", "1GiB", "--port", &port.to_string(), "--data"])
            .arg(data)
            // So that the addresses it leaves for other commands are not those of the machine's user.
            .env("XDG_STATE_HOME", data)
            .env_remove("RUST_LOG");
        command
    }

    pub(crate) fn start(data: &Path, port: u16) -> Self {
        Self::start_with(data, port, &[])
    }

    /// With further arguments of `redhare up`.
    pub(crate) fn start_with(data: &Path, port: u16, further: &[&str]) -> Self {
        let mut command = Self::command(data, port);
        let mut up = command.args(further).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(up.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("master at"), "{line}");
        let data = data.to_owned();
        let cluster = Self { up, data, port };
        cluster.wait(&["status"], |said| said.matches(" alive ").count() == 3);
        cluster
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(REDHARE)
            .args(arguments)
            .env("REDHARE_CLUSTER", self.address())
            .output()
            .unwrap()
    }

    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Repeats a command until what it says fits.
    pub(crate) fn wait(&self, arguments: &[&str], fits: impl Fn(&str) -> bool) {
        wait_until(&format!("{arguments:?}"), || {
            fits(&String::from_utf8_lossy(&self.run(arguments).stdout))
        });
    }

    /// The masters' row of a node, by its number from 1.
    pub(crate) fn node(&self, number: u32) -> serde_json::Value {
        let address = format!("127.0.0.1:{}", u32::from(self.port) + number);
        let status = self.json(&["status"]);
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let row = nodes.into_iter().find(|node| node["address"] == address.as_str());
        row.unwrap_or_default()
    }

    pub(crate) fn incarnation(&self, number: u32) -> u64 {
        self.node(number)["incarnation"].as_u64().unwrap()
    }

    pub(crate) fn id(&self, number: u32) -> String {
        self.node(number)["node"].as_str().unwrap().to_owned()
    }

    /// Waits until the node lives in a later life than `before`.
    pub(crate) fn wait_for_life_after(&self, number: u32, before: u64) {
        wait_until(&format!("node {number} lives after life {before}"), || {
            let node = self.node(number);
            node["alive"] == true && node["disks"] == 1 && node["incarnation"].as_u64() > Some(before)
        });
    }

    /// Waits until every chunk of a volume has these nodes in sync, missing and out of sync.
    pub(crate) fn wait_for_chunks(&self, volume: &str, in_sync: &[u32], missing: &[u32], out: &[u32]) {
        let names = |numbers: &[u32]| {
            let mut names: Vec<String> = numbers.iter().map(|&number| self.id(number)).collect();
            names.sort();
            names
        };
        let wanted = [names(in_sync), names(missing), names(out)];
        let mut last = serde_json::Value::Null;
        let deadline = Instant::now() + LIMIT;
        loop {
            let shown = self.json(&["volume", "show", volume]);
            let fits = |chunk: &serde_json::Value| {
                ["in_sync", "missing", "out_of_sync"]
                    .iter()
                    .zip(&wanted)
                    .all(|(field, wanted)| {
                        let mut found: Vec<String> =
                            serde_json::from_value(chunk[field].clone()).unwrap_or_default();
                        found.sort();
                        found == *wanted
                    })
            };
            let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
            match chunks.iter().find(|chunk| !fits(chunk)) {
                None if !chunks.is_empty() => return,
                other => last = other.cloned().unwrap_or(last),
            }
            assert!(
                Instant::now() < deadline,
                "wanted {wanted:?}, a chunk is still {last}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn directory(&self, number: u32) -> PathBuf {
        self.data.join(format!("node{number}"))
    }

    pub(crate) fn target_lock(&self, number: u32) -> PathBuf {
        agent::target_lock(&self.directory(number))
    }

    pub(crate) fn engine_lock(&self, number: u32) -> PathBuf {
        self.data.join(format!("node{number}.lock"))
    }

    pub(crate) fn master_lock(&self) -> PathBuf {
        self.data.join("master.lock")
    }

    pub(crate) fn target_log(&self, number: u32) -> String {
        std::fs::read_to_string(self.directory(number).join("target.log")).unwrap()
    }

    pub(crate) fn engine_log(&self, number: u32) -> String {
        std::fs::read_to_string(self.data.join(format!("node{number}.log"))).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.up), signal).unwrap();
    }

    /// Waits for the end of `redhare up`, within the limit.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.up.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "\"redhare up\" does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn end(mut self) {
        self.signal(Signal::INT);
        assert!(self.ended().success(), "Ctrl-C ends it cleanly");
        assert_eq!(processes_of(&self.data), Vec::<String>::new());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if matches!(self.up.try_wait(), Ok(None)) {
            self.signal(Signal::INT);
            self.ended();
        }
    }
}

/// The number of the process that holds a lock.
pub(crate) fn process(lock: &Path) -> Option<u32> {
    lock::holder(lock).unwrap().and_then(|holder| holder.process)
}

/// Kills the process that holds a lock as a fault does.
pub(crate) fn kill(lock: &Path) {
    assert!(
        lock::signal(lock, Signal::KILL).unwrap(),
        "{} is held",
        lock.display()
    );
}
