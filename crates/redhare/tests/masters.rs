//! Three masters as processes on one etcd, three nodes and a client that writes and reads: the master that leads is
//! killed, and another one answers soon; all masters end, and the client goes on; they return, and
//! every node is as before, in sync. One that leads and is cut from everybody but etcd gives up its seat.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::etcd::Etcd;
use crate::support::forward::Forward;
use crate::support::load::{self, Load};
use crate::support::{Place, REDHARE, free_ports, wait_until};

const VOLUME: &str = "load";
/// Between the death of the master that leads and the next answer: three times what is promised for a machine that does
/// nothing else. What is measured is printed.
const FAILOVER: Duration = Duration::from_secs(15);

/// A process that is killed when dropped.
struct Running(Child);

impl Running {
    fn start(program: &Path, place: &Path, name: &str, arguments: &[&str]) -> Self {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(place.join(format!("{name}.log")));
        let child = Command::new(program)
            .args(arguments)
            .env_remove("REDHARE_CLUSTER")
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Child::kill is SIGKILL; it may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Running {
    /// A node's engine ends its target when it is asked to end, and cannot when it is killed.
    fn end(&mut self) {
        let process = rustix::process::Pid::from_child(&self.0);
        if rustix::process::kill_process(process, rustix::process::Signal::TERM).is_ok() {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(15) && matches!(self.0.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.end();
        }
    }
}

pub(crate) struct Cluster {
    place: Place,
    /// What is started.
    program: PathBuf,
    store: String,
    /// Where each is reached, and its process.
    masters: Vec<(String, Option<Running>)>,
    /// Where each listens, behind that.
    listens: Vec<String>,
    forwards: Vec<Forward>,
    nodes: Vec<Running>,
}

impl Cluster {
    pub(crate) fn start(program: &Path, place: Place, etcd: &Etcd) -> Self {
        let (base, more) = (free_ports(), free_ports());
        let listens: Vec<String> = (0..3)
            .map(|index| format!("127.0.0.1:{}", base + index))
            .collect();
        let forwards: Vec<Forward> = listens.iter().cloned().map(Forward::to).collect();
        let masters = forwards
            .iter()
            .map(|forward| (forward.address().to_owned(), None));
        let mut cluster = Self {
            place,
            program: program.to_owned(),
            store: format!("etcd://{}/test", etcd.endpoints()),
            masters: masters.collect(),
            listens,
            forwards,
            nodes: Vec::new(),
        };
        for index in 0..3 {
            cluster.start_master(index);
        }
        for index in 0..3 {
            let (listen, directory) = (
                format!("127.0.0.1:{}", more + index),
                cluster.place.0.join(format!("node{index}")),
            );
            let (directory, disk) = (
                directory.display().to_string(),
                format!("{}/disk:1GiB", directory.display()),
            );
            std::fs::create_dir_all(&directory).unwrap();
            let addresses = cluster.addresses();
            let node = Running::start(
                &cluster.program,
                &cluster.place.0,
                &format!("engine{index}"),
                &[
                    "node",
                    "--master",
                    &addresses,
                    "--listen",
                    &listen,
                    "--disk",
                    &disk,
                    "--data",
                    &directory,
                    "--end-target",
                    "--end-with",
                    &std::process::id().to_string(),
                ],
            );
            cluster.nodes.push(node);
        }
        wait_until("three nodes live", || {
            // One that has said nothing but that its earlier lives have ended has no disk yet.
            let lives = |node: &&serde_json::Value| node["alive"] == true && node["disks"] == 1;
            cluster.status()["nodes"]
                .as_array()
                .is_some_and(|nodes| nodes.iter().filter(lives).count() == 3)
        });
        cluster
    }

    fn start_master(&mut self, index: usize) {
        let (address, listen) = (self.masters[index].0.clone(), &self.listens[index]);
        let arguments = [
            "master",
            "--listen",
            listen,
            "--advertise",
            &address,
            "--store",
            &self.store,
        ];
        let running = Running::start(
            &self.program,
            &self.place.0,
            &format!("master{index}"),
            &arguments,
        );
        self.masters[index].1 = Some(running);
    }

    /// `kill -9` of a master, and one of this program in its place.
    pub(crate) fn replace_master(&mut self, index: usize, program: &Path) {
        program.clone_into(&mut self.program);
        self.masters[index].1 = None;
        self.start_master(index);
        let address = self.masters[index].0.clone();
        wait_until(&format!("master {index} is back, and one leads"), || {
            let status = self.status();
            let masters = status["masters"].as_array().cloned().unwrap_or_default();
            let is_back = masters.iter().any(|master| master["address"] == address.as_str());
            is_back && self.leader().is_some()
        });
    }

    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.masters.iter().map(|master| master.0.as_str()).collect();
        addresses.join(",")
    }

    fn ask_at(addresses: &str, arguments: &[&str]) -> Output {
        Command::new(REDHARE)
            .args(arguments)
            .arg("--json")
            .env("REDHARE_CLUSTER", addresses)
            .output()
            .unwrap()
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let output = Self::ask_at(&self.addresses(), arguments);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn status(&self) -> serde_json::Value {
        self.ask(&["status"])
    }

    /// The masters that are missed: address, and whether it was stopped.
    fn away(&self) -> Vec<(String, bool)> {
        let status = self.status();
        let Some(rows) = status["masters_away"].as_array() else {
            // Nobody answers now; that is not that all are there.
            return vec![("?".to_owned(), false)];
        };
        let row = |row: &serde_json::Value| {
            let address = row["address"].as_str().unwrap_or_default().to_owned();
            (address, row["ended"] == true)
        };
        rows.iter().map(row).collect()
    }

    /// The index of the master that leads, by what the cluster says.
    pub(crate) fn leader(&self) -> Option<usize> {
        let status = self.status();
        let leads = status["masters"]
            .as_array()?
            .iter()
            .find(|master| master["leads"] == true)?
            .clone();
        self.masters
            .iter()
            .position(|(address, _)| leads["address"] == address.as_str())
    }

    /// Epoch and number of copies in sync of each chunk.
    pub(crate) fn chunks(&self) -> Vec<(u64, usize)> {
        let shown = self.ask(&["volume", "show", VOLUME]);
        let chunks = shown["chunks"].as_array().cloned().unwrap_or_default();
        let row = |chunk: &serde_json::Value| {
            let epoch = chunk["epoch"].as_u64().unwrap_or(0);
            (epoch, chunk["in_sync"].as_array().map_or(0, Vec::len))
        };
        chunks.iter().map(row).collect()
    }
}

#[test]
fn control_calls_outlive_the_leading_master_and_io_outlives_all_masters() {
    if !crate::etcd::is_there("three masters on an etcd") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut cluster = Cluster::start(Path::new(REDHARE), Place::in_memory("masters"), &etcd);
    let addresses = cluster.addresses();
    let created = cluster.ask(&[
        "volume",
        "create",
        VOLUME,
        "--size",
        "128MiB",
        "--chunk-size",
        "16MiB",
    ]);
    assert_eq!(created["name"], VOLUME, "{created}");
    wait_until("all copies are in sync", || {
        let chunks = cluster.chunks();
        !chunks.is_empty() && chunks.iter().all(|chunk| chunk.1 == 3)
    });
    let status = cluster.status();
    assert_eq!(status["masters"].as_array().unwrap().len(), 3, "{status}");
    assert_eq!(status["store"]["members"][0]["healthy"], true, "{status}");
    let epochs = cluster.chunks();
    let load = Load::start(&addresses, VOLUME);
    load.wait_for(200);

    // Asked at a master that follows: a read is answered, a change finds its way.
    let leader = cluster.leader().expect("one leads");
    let follower = cluster.masters[(leader + 1) % 3].0.clone();
    assert!(Cluster::ask_at(&follower, &["volume", "list"]).status.success());
    let made = Cluster::ask_at(
        &follower,
        &[
            "volume",
            "create",
            "small",
            "--size",
            "16MiB",
            "--chunk-size",
            "16MiB",
        ],
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let mut worst = Duration::ZERO;
    for round in 0..2 {
        let leader = cluster.leader().expect("one leads");
        cluster.masters[leader].1 = None;
        let began = Instant::now();
        // A master that follows sends this call on to the one that leads, while there is one.
        wait_until("another master answers", || {
            cluster.leader().is_some_and(|other| other != leader)
        });
        worst = worst.max(began.elapsed());
        let missed = (cluster.masters[leader].0.clone(), false);
        // The one that was killed before has had to take a lease again.
        wait_until("the one that was killed is missed", || {
            cluster.away() == [missed.clone()]
        });
        let health = cluster.status()["health"].to_string();
        assert!(
            health.contains("degraded") && health.contains("has not been heard of for about"),
            "{health}"
        );
        let name = format!("after{round}");
        let arguments = [
            "volume",
            "create",
            &name,
            "--size",
            "16MiB",
            "--chunk-size",
            "16MiB",
        ];
        // A master that has just begun to lead has yet to hear the nodes; the client asks again by itself.
        let made = Cluster::ask_at(&addresses, &arguments);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        load.wait_for(100);
        cluster.start_master(leader);
    }
    wait_until("all masters are there again", || cluster.away().is_empty());
    println!("longest time until a control call was answered after the leading master was killed: {worst:?}");
    assert!(worst < FAILOVER, "a control call took {worst:?}");
    // Longer than a term of silence: no node was left out by those who took over.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(cluster.chunks(), epochs, "a living node was left out");

    // A master that only etcd reaches gives its seat to one that hears the nodes.
    let deaf = cluster.leader().expect("one leads");
    cluster.forwards[deaf].cut(true);
    let began = Instant::now();
    // Those that follow answer reads by themselves: nobody reaches the one that leads, and it leads still.
    for index in (0..3).filter(|index| *index != deaf) {
        let output = Cluster::ask_at(&cluster.masters[index].0, &["volume", "show", VOLUME]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "reads of followers took {took:?}");
    wait_until(
        "another master leads, since the one that does hears nobody",
        || cluster.leader().is_some_and(|other| other != deaf),
    );
    println!(
        "a leading master that hears nobody was followed by another one after {:?}",
        began.elapsed()
    );
    load.wait_for(100);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(cluster.chunks(), epochs, "a living node was left out");
    cluster.forwards[deaf].cut(false);

    for index in 0..3 {
        cluster.masters[index].1 = None;
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        load.wait_for(50);
    }
    for index in 0..3 {
        cluster.start_master(index);
    }
    wait_until("a master leads again", || cluster.leader().is_some());
    load.wait_for(200);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(cluster.chunks(), epochs, "a living node was left out");
    // One that is stopped is known as such, until it is forgotten.
    let follower = (cluster.leader().expect("one leads") + 1) % 3;
    let address = cluster.masters[follower].0.clone();
    let forget = || Cluster::ask_at(&addresses, &["master", "forget", &address]);
    let refused = String::from_utf8_lossy(&forget().stdout).into_owned();
    assert!(refused.contains("lives; stop it first"), "{refused}");
    let mut stopped = cluster.masters[follower].1.take().expect("it runs");
    stopped.end();
    wait_until("the one that was stopped is noted", || {
        cluster.away() == [(address.clone(), true)]
    });
    let health = cluster.status()["health"].to_string();
    assert!(
        health.contains("has been stopped for about") && !health.contains("master forget"),
        "{health}"
    );
    let forgotten = forget();
    assert!(
        forgotten.status.success(),
        "{}",
        String::from_utf8_lossy(&forgotten.stderr)
    );
    wait_until("it is forgotten", || cluster.away().is_empty());

    let (contents, slowest) = load.finish();
    println!("longest operation while masters came and went: {slowest:?}");
    load::check(&addresses, VOLUME, &contents);
}
