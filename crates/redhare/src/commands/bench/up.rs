//! What measurements on a cluster share: `redhare up`, started for them, and files to fill a volume with.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::local_files::LocalFile;
use bench::process::{self, Priority};
use foundation::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::commands::cluster::status_of;
use crate::output::Failure;
use master::v1;

const FILES_PER_DIRECTORY: usize = 250;
/// How long the cluster may take until all nodes are alive.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running `redhare up`, ended in order when dropped.
pub(super) struct Up {
    child: Child,
    /// The master's address.
    pub(super) master: String,
}

impl Drop for Up {
    fn drop(&mut self) {
        let id = Pid::from_raw(self.child.id().cast_signed());
        if let Some(Err(error)) = id.map(|id| kill_process(id, Signal::TERM)) {
            tracing::debug!(%error, "the cluster has ended by itself");
        }
        drop(self.child.wait());
    }
}

/// How large a cluster is, and where it runs.
pub(super) struct Place<'a> {
    /// How many nodes.
    pub(super) nodes: usize,
    /// On these processors, and how it stands to other programs; as any program if there is none.
    pub(super) on: Option<(Priority, &'a str)>,
}

impl Up {
    /// Starts one of three nodes, see [`Up::start_at`].
    pub(super) fn start(data: &Path, port: u16, disk_bytes: u64) -> Result<Self, Failure> {
        Self::start_at(&Place { nodes: 3, on: None }, data, port, disk_bytes)
    }

    /// Starts it, and waits until all nodes are alive. `disk_bytes` is the size of each node's disk.
    pub(super) fn start_at(
        place: &Place<'_>,
        data: &Path,
        port: u16,
        disk_bytes: u64,
    ) -> Result<Self, Failure> {
        let own = std::env::current_exe().map_err(Failure::new)?;
        let mut command = match place.on {
            None => Command::new(own),
            Some((priority, cpus)) => process::pinned(priority, cpus, &[own.display().to_string()]),
        };
        let nodes = place.nodes;
        let child = command
            .args([
                "up",
                "--nodes",
                &nodes.to_string(),
                "--port",
                &port.to_string(),
                "--disk-size",
                &disk_bytes.to_string(),
                "--data",
            ])
            .arg(data)
            // The addresses that it leaves for other commands are not those of the user's own cluster.
            .env("XDG_STATE_HOME", data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(Failure::new)?;
        let master = SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        let mut up = Self { child, master };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let status = status_of(&up.master.as_str().into());
            // A node that has just come may not have said which disks it has.
            let is_ready = |node: &&v1::NodeStatus| node.alive && !node.disks.is_empty();
            let alive = status.map_or(0, |status| status.nodes.iter().filter(is_ready).count());
            if alive == nodes {
                return Ok(up);
            }
            let ended = !matches!(up.child.try_wait(), Ok(None));
            if ended || Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "the cluster for the measurement did not start ({alive} of {nodes} nodes are alive); is port {port} \
                     or one of the {nodes} that follow in use?"
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// One of our own commands, meant for this cluster.
    pub(super) fn command(&self, arguments: &[&str]) -> Result<Command, Failure> {
        let own = std::env::current_exe().map_err(Failure::new)?;
        let mut command = Command::new(own);
        command
            .arg("--json")
            .args(arguments)
            .env("REDHARE_CLUSTER", &self.master)
            .env_remove("REDHARE_CREDENTIALS")
            .env("RUST_LOG", "error");
        Ok(command)
    }

    /// Runs one of our own commands on this cluster; what it printed.
    pub(super) fn redhare(&self, arguments: &[&str]) -> Result<String, Failure> {
        Ok(self.timed(arguments)?.0)
    }

    /// The same, with the processor time that the command took, the cluster's left out.
    pub(super) fn timed(&self, arguments: &[&str]) -> Result<(String, Duration), Failure> {
        let mut command = self.command(arguments)?;
        process::run_timed(&mut command).map_err(Failure::new)
    }

    /// The number of the process that holds it together.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// This process and all below it.
    pub(super) fn processes(&self) -> Result<Vec<u32>, Failure> {
        process::with_descendants(self.child.id()).map_err(Failure::new)
    }

    /// Processor time of all of these so far.
    pub(super) fn cpu_time(&self) -> Result<Duration, Failure> {
        let times = self.processes()?;
        Ok(times.iter().filter_map(|&id| process::cpu_time(id).ok()).sum())
    }
}

/// Files of so many bytes that do not compress, below directories of 250; where they are.
pub(super) fn make_files(source: &Path, count: usize, file_bytes: usize) -> Result<Vec<LocalFile>, Failure> {
    let mut random = Random::from_seed(1);
    let mut bytes = vec![0; file_bytes];
    let mut made = Vec::with_capacity(count);
    for number in 0..count {
        let directory = source.join(format!("{:06}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory).map_err(Failure::new)?;
        }
        random.fill(&mut bytes);
        let file = directory.join(format!("{number:016}.bin"));
        std::fs::write(&file, &bytes)
            .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        made.push(LocalFile {
            path: file,
            size_bytes: file_bytes as u64,
        });
    }
    Ok(made)
}
