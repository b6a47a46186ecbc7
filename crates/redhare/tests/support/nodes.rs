//! A master and nodes as processes of their own, each started by hand, so that one can come, stay away, or be killed for good.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Place, REDHARE, free_ports, kill, process, wait_until};

/// What the journal of a disk of 1 GiB takes of it: all that is used where no volume is (`docs/decisions/0126`).
pub(crate) const JOURNAL_BYTES: u64 = 4 << 20;

/// So much of each log is said when a test fails.
const LAST_LINES: usize = 20;
/// What the masters say, in the cluster's place.
const MASTER_LOG: &str = "master.log";

/// See the module. What still runs is killed when it is dropped.
pub(crate) struct Nodes {
    master: Child,
    /// Where it keeps what it must not forget, if not in the cluster's place.
    store: Option<String>,
    /// By number, from 1.
    nodes: Vec<Option<Child>>,
    pub(crate) place: Place,
    port: u16,
    /// What the master is started with.
    arguments: Vec<String>,
    /// With an authority and credentials for everybody.
    is_secure: bool,
    /// The file of a join token, by which nodes come to credentials that have none.
    pub(crate) join_file: Option<PathBuf>,
    /// What is started from now on: masters, nodes and commands.
    program: PathBuf,
    /// A file `disk.fault` in a node's directory says what is wrong with its disk, and a request may stand for so long.
    stall_limit: Option<String>,
    /// In which racks nodes are that are started from now on, by number.
    racks: Vec<String>,
    /// The disks of nodes that have others than one called `disk`, by number.
    disks: BTreeMap<u16, Vec<String>>,
}

impl Nodes {
    /// A master with these arguments, and so many nodes, once all live. Each has a disk of 1 GiB.
    pub(crate) fn start(place: Place, master: &[&str], count: u16) -> Self {
        Self::begin(place, master, count, false, None, Path::new(REDHARE))
    }

    /// The same, all of it by another program, of an earlier release perhaps; over TLS if wanted.
    pub(crate) fn start_by(program: &Path, place: Place, count: u16, is_secure: bool) -> Self {
        if is_secure {
            make_authority(&place.0, None);
        }
        Self::begin(place, &[], count, is_secure, None, program)
    }

    /// The same, with disks in which faults can be planted, and which are reset when a request stands for so long.
    pub(crate) fn start_with_faults(place: Place, master: &[&str], count: u16, stall_limit: &str) -> Self {
        let limit = Some(stall_limit.to_owned());
        Self::begin(place, master, count, false, limit, Path::new(REDHARE))
    }

    /// The same over TLS: each with a certificate of an authority in `ca`, and commands as its admin.
    pub(crate) fn start_secure(place: Place, master: &[&str], count: u16) -> Self {
        make_authority(&place.0, None);
        Self::begin(place, master, count, true, None, Path::new(REDHARE))
    }

    /// The same with an issuer in `issuer`, and no nodes yet.
    pub(crate) fn start_with_issuer(place: Place, master: &[&str]) -> Self {
        make_authority(&place.0, None);
        let issuer = place.0.join("issuer");
        let made = Command::new(REDHARE)
            .args(["ca", "issuer"])
            .arg(place.0.join("ca"))
            .arg("--out")
            .arg(&issuer)
            .output();
        assert!(made.unwrap().status.success());
        let own = ["--issuer", issuer.to_str().unwrap()];
        let arguments = [master, &own].concat();
        let cluster = Self::begin(place, &arguments, 0, true, None, Path::new(REDHARE));
        wait_until("the master answers", || cluster.run(&["status"]).status.success());
        cluster
    }

    fn begin(
        place: Place,
        master: &[&str],
        count: u16,
        is_secure: bool,
        stall_limit: Option<String>,
        program: &Path,
    ) -> Self {
        let port = free_ports();
        let arguments: Vec<String> = master.iter().map(|&argument| argument.to_owned()).collect();
        let store = place.0.join("master");
        let master = start_master(
            program,
            &place.0,
            store.to_str().unwrap(),
            port,
            &arguments,
            is_secure,
        );
        let mut cluster = Self {
            master,
            store: None,
            nodes: Vec::new(),
            place,
            port,
            arguments,
            is_secure,
            join_file: None,
            program: program.to_owned(),
            stall_limit,
            racks: Vec::new(),
            disks: BTreeMap::new(),
        };
        for number in 1..=count {
            cluster.start_node(number);
        }
        cluster.wait_for_living(count.into());
        cluster
    }

    /// Where the masters are.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What `redhare status` says to people.
    pub(crate) fn status(&self) -> String {
        String::from_utf8_lossy(&self.run(&["status"]).stdout).into_owned()
    }

    /// Where a node's target listens.
    pub(crate) fn node_address(&self, number: u16) -> String {
        format!("127.0.0.1:{}", self.port + number)
    }

    /// The credentials of a process, or of whoever was issued some.
    pub(crate) fn credentials(&self, who: &str) -> PathBuf {
        self.place.0.join("credentials").join(who)
    }

    /// A new certificate, with these arguments of `redhare ca issue`.
    pub(crate) fn issue(&self, who: &str, arguments: &[&str]) -> PathBuf {
        issue(&self.place.0, who, arguments);
        self.credentials(who)
    }

    /// The number of the master's process.
    pub(crate) fn master(&self) -> u32 {
        self.master.id()
    }

    /// `kill -9` of the master.
    pub(crate) fn kill_master(&mut self) {
        self.master.kill().unwrap();
        self.master.wait().unwrap();
    }

    /// The same, and another one in its place.
    pub(crate) fn restart_master(&mut self) {
        self.kill_master();
        self.start_master();
    }

    /// The master ends as it is asked to.
    pub(crate) fn end_master(&mut self) {
        kill_process(Pid::from_child(&self.master), Signal::TERM).unwrap();
        assert!(self.master.wait().unwrap().success());
    }

    /// A master in the place of the one that has ended.
    pub(crate) fn start_master(&mut self) {
        let program = self.program.clone();
        let store = self.store();
        self.master = start_master(
            &program,
            &self.place.0,
            &store,
            self.port,
            &self.arguments,
            self.is_secure,
        );
    }

    /// Where the master keeps what it must not forget.
    pub(crate) fn store(&self) -> String {
        let own = || self.place.0.join("master").to_str().unwrap().to_owned();
        self.store.clone().unwrap_or_else(own)
    }

    /// A master that is started from now on has its store there.
    pub(crate) fn use_store(&mut self, store: &str) {
        self.store = Some(store.to_owned());
    }

    /// Nodes that are started from now on are in these racks, by number.
    pub(crate) fn use_racks(&mut self, racks: &[&str]) {
        self.racks = racks.iter().map(|&rack| rack.to_owned()).collect();
    }

    /// A node that is started from now on has these disks, each of 1 GiB, in files of its directory.
    pub(crate) fn use_disks(&mut self, number: u16, disks: &[&str]) {
        let disks = disks.iter().map(|&disk| disk.to_owned()).collect();
        self.disks.insert(number, disks);
    }

    /// What the disks of a node are called.
    fn disks(&self, number: u16) -> Vec<String> {
        let own = self.disks.get(&number).cloned();
        own.unwrap_or_else(|| vec!["disk".to_owned()])
    }

    /// Has this program started from now on, for whatever is started; what runs goes on.
    pub(crate) fn use_program(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// An authority for a cluster that has had none, and credentials for all its processes. From now on masters and nodes are
    /// started with them; what runs goes on without.
    pub(crate) fn get_authority(&mut self) {
        let status = self.json(&["status"]);
        let cluster = status["cluster"].as_str().unwrap().to_owned();
        let nodes: Vec<String> = (1..=self.nodes.len())
            .map(|number| self.id(number as u16))
            .collect();
        make_authority(&self.place.0, Some(&cluster));
        for (number, id) in (1..).zip(nodes) {
            let arguments = ["--role", "node", "--name", &id];
            issue(&self.place.0, &format!("node{number}"), &arguments);
        }
        self.is_secure = true;
    }

    /// `kill -9` of a node's engine; its target goes on.
    pub(crate) fn kill_engine(&mut self, number: u16) {
        kill(&self.directory(number).join("agent.lock"));
        if let Some(mut child) = self.nodes[usize::from(number) - 1].take() {
            child.wait().unwrap();
        }
    }

    /// The same, and another one, which adopts the target. Waits for that.
    pub(crate) fn replace_engine(&mut self, number: u16) {
        self.kill_engine(number);
        let target = process(&self.directory(number).join("target.lock"));
        let adopted = || self.engine_log(number).matches("adopted").count();
        let before = adopted();
        self.start_node(number);
        let adopted = || self.engine_log(number).matches("adopted").count();
        wait_until("the node's target is adopted", || adopted() > before);
        let now = process(&self.directory(number).join("target.lock"));
        assert_eq!(target, now, "node {number}: its target is another one");
    }

    /// What a node's engines have said.
    pub(crate) fn engine_log(&self, number: u16) -> String {
        std::fs::read_to_string(self.directory(number).join("engine.log")).unwrap_or_default()
    }

    /// What a node's targets have said.
    pub(crate) fn target_log(&self, number: u16) -> String {
        std::fs::read_to_string(self.directory(number).join("target.log")).unwrap_or_default()
    }

    /// `kill -9` of a node's target; its engine starts another one. Waits until that serves, and every copy is in sync.
    pub(crate) fn replace_target(&self, number: u16) {
        self.replace_target_by(number, Signal::KILL);
    }

    /// The same by another signal: a target ends in good order when it is asked to, so that a release before reads its disks (0126).
    pub(crate) fn replace_target_by(&self, number: u16, signal: Signal) {
        let lock = self.directory(number).join("target.lock");
        let before = self.row(number)["incarnation"].as_u64();
        assert!(agent::lock::signal(&lock, signal).unwrap(), "a target runs");
        wait_until("the node's target runs again", || {
            let row = self.row(number);
            row["alive"] == true && row["incarnation"].as_u64() > before
        });
        self.wait_for_sync();
    }

    /// Waits until all nodes live and all copies of all volumes are in sync.
    pub(crate) fn wait_for_sync(&self) {
        wait_until("every copy is in sync", || {
            let status = self.json(&["status"]);
            let all = |list: &str, is_so: &dyn Fn(&Value) -> bool| {
                let rows = status[list].as_array().filter(|rows| !rows.is_empty());
                rows.is_some_and(|rows| rows.iter().all(is_so))
            };
            let none = |row: &Value, field: &str| row[field].as_u64() == Some(0);
            all("nodes", &|row| row["alive"] == true)
                && all("volumes", &|row| {
                    none(row, "degraded_chunks") && none(row, "waiting_chunks")
                })
        });
    }

    /// The programs that a node's engine and target run.
    pub(crate) fn programs(&self, number: u16) -> [Option<PathBuf>; 2] {
        ["agent.lock", "target.lock"].map(|lock| {
            let process = process(&self.directory(number).join(lock))?;
            std::fs::read_link(format!("/proc/{process}/exe")).ok()
        })
    }

    pub(crate) fn directory(&self, number: u16) -> PathBuf {
        self.place.0.join(format!("node{number}"))
    }

    fn node_command(&self, number: u16) -> Command {
        let directory = self.directory(number);
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new(&self.program);
        command.args([
            "node",
            "--end-target",
            "--master",
            &format!("127.0.0.1:{}", self.port),
        ]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port + number)]);
        for disk in self.disks(number) {
            let mut disk = directory.join(disk).into_os_string();
            disk.push(":1GiB");
            command.arg("--disk").arg(disk);
        }
        command.arg("--data").arg(&directory);
        if let Some(rack) = self.racks.get(usize::from(number) - 1) {
            command.args(["--rack", rack]);
        }
        if let Some(limit) = &self.stall_limit {
            command.env("REDHARE_TEST_DISK_FAULTS", &directory);
            command.args(["--stall-limit", limit]);
        }
        if self.is_secure {
            let who = format!("node{number}");
            match &self.join_file {
                Some(file) => drop(command.arg("--join-file").arg(file)),
                None if !self.credentials(&who).exists() => drop(self.issue(&who, &["--role", "node"])),
                None => {}
            }
            command.arg("--credentials").arg(self.credentials(&who));
        }
        command
    }

    /// What a node says that is started in a rack with an impossible name.
    pub(crate) fn refused_rack(&mut self, number: u16, rack: &str) -> String {
        let place = usize::from(number) - 1;
        let before = std::mem::replace(&mut self.racks[place], rack.to_owned());
        let said = self.refused_node(number);
        self.racks[place] = before;
        said
    }

    /// What a node says that may not start.
    pub(crate) fn refused_node(&self, number: u16) -> String {
        let output = self.node_command(number).env_remove("RUST_LOG").output().unwrap();
        assert!(!output.status.success(), "node {number}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Starts a node: a new one, or one that was killed.
    pub(crate) fn start_node(&mut self, number: u16) {
        let mut command = self.node_command(number);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory(number).join("engine.log"));
        let child = quiet(&mut command).stderr(log.unwrap()).spawn().unwrap();
        let index = usize::from(number) - 1;
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, || None);
        }
        self.nodes[index] = Some(child);
    }

    /// `kill -9` of a node's engine and target.
    pub(crate) fn kill_node(&mut self, number: u16) {
        kill(&self.directory(number).join("agent.lock"));
        kill(&self.directory(number).join("target.lock"));
        if let Some(mut child) = self.nodes[usize::from(number) - 1].take() {
            child.wait().unwrap();
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.run_as("admin", arguments)
    }

    /// Over TLS with somebody's credentials, if the cluster has any.
    pub(crate) fn run_as(&self, who: &str, arguments: &[&str]) -> Output {
        self.command_as(who, arguments).output().unwrap()
    }

    /// The same, to be run.
    pub(crate) fn command_as(&self, who: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("REDHARE_CLUSTER", self.address());
        match self.is_secure {
            true => command.env("REDHARE_CREDENTIALS", self.credentials(who)),
            false => command.env_remove("REDHARE_CREDENTIALS"),
        };
        command.env_remove("RUST_LOG");
        command
    }

    pub(crate) fn succeed(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
    }

    /// What is said to a command that must not succeed.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// All nodes as `redhare status` shows them.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let status = self.json(&["status"]);
        status["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// A node as `redhare status` shows it.
    pub(crate) fn row(&self, number: u16) -> Value {
        let address = format!("127.0.0.1:{}", self.port + number);
        let mut rows = self.rows().into_iter();
        rows.find(|row| row["address"] == address.as_str())
            .unwrap_or_default()
    }

    pub(crate) fn id(&self, number: u16) -> String {
        self.row(number)["node"].as_str().unwrap().to_owned()
    }

    pub(crate) fn wait_for_living(&self, count: usize) {
        wait_until(&format!("{count} nodes live"), || {
            let own = |row: &Value| {
                let numbers = 1..=self.nodes.len() as u16;
                let of_row = |number: &u16| row["address"] == self.node_address(*number).as_str();
                let number = numbers.into_iter().find(of_row);
                number.map(|number| self.disks(number).len() as u64)
            };
            let lives = |row: &&Value| row["alive"] == true && row["disks"].as_u64() == own(row);
            self.rows().iter().filter(lives).count() == count
        });
    }

    /// The chunks of volume "data" as `redhare volume show` tells them.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let shown = self.json(&["volume", "show", "data"]);
        shown["chunks"].as_array().cloned().unwrap_or_default()
    }

    /// Forty files of up to so many bytes, imported into a new volume "data" that this command makes.
    pub(crate) fn import(&self, create: &str, seed: u64, bytes_max: u64) -> PathBuf {
        let files = self.place.0.join("files");
        std::fs::create_dir_all(&files).unwrap();
        let mut random = foundation::Random::from_seed(seed);
        for number in 0..40u64 {
            let bytes = 1 + random.below(bytes_max) as usize;
            let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
            let contents: Vec<u8> = words.collect();
            std::fs::write(files.join(format!("{number}")), &contents[..bytes]).unwrap();
        }
        self.succeed(&create.split(' ').collect::<Vec<_>>());
        self.succeed(&["fs", "format", "data"]);
        self.succeed(&["fs", "import", files.to_str().unwrap(), "data"]);
        files
    }

    /// What was imported comes out as it went in.
    pub(crate) fn compare(&self, files: &Path, what: &str) {
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

/// For a new cluster, or for one that has this identity.
fn make_authority(place: &Path, cluster: Option<&str>) {
    let made = Command::new(REDHARE)
        .args(["ca", "init"])
        .arg(place.join("ca"))
        .args(cluster.iter().flat_map(|cluster| ["--cluster-id", cluster]))
        .output();
    assert!(made.unwrap().status.success());
    issue(place, "master", &["--role", "master", "--address", "127.0.0.1"]);
    issue(place, "admin", &["--role", "admin"]);
}

fn issue(place: &Path, who: &str, arguments: &[&str]) {
    let mut command = Command::new(REDHARE);
    command
        .args(["ca", "issue"])
        .arg(place.join("ca"))
        .args(arguments);
    let output = command
        .arg("--out")
        .arg(place.join("credentials").join(who))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{who}: {said}");
}

fn start_master(
    program: &Path,
    place: &Path,
    store: &str,
    port: u16,
    arguments: &[String],
    is_secure: bool,
) -> Child {
    let mut command = Command::new(program);
    command.arg("master").args(arguments);
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--store", store]);
    if is_secure {
        command.arg("--credentials").arg(place.join("credentials/master"));
    }
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(place.join(MASTER_LOG))
        .unwrap();
    quiet(&mut command).stderr(log).spawn().unwrap()
}

fn quiet(command: &mut Command) -> &mut Command {
    command
        .env_remove("REDHARE_CREDENTIALS")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env_remove("RUST_LOG")
}

/// Says how a log ends.
fn print_end(whose: &str, log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    eprintln!("the last of {whose}:\n{}", last.join("\n"));
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.place.0.join(MASTER_LOG)).unwrap_or_default();
            print_end("the master", &log);
        }
        for number in 1..=self.nodes.len() as u16 {
            if std::thread::panicking() {
                for log in [self.engine_log(number), self.target_log(number)] {
                    print_end(&format!("node {number}"), &log);
                }
            }
            if let Some(mut child) = self.nodes[usize::from(number) - 1].take() {
                // The target may have ended, in a test that fails: another panic would end all tests here.
                for lock in ["agent.lock", "target.lock"] {
                    drop(agent::lock::signal(
                        &self.directory(number).join(lock),
                        Signal::KILL,
                    ));
                }
                drop(child.wait());
            }
        }
        drop(self.master.kill());
        drop(self.master.wait());
    }
}
