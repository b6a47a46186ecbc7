//! The node engine: one per server, beside its target.
//!
//! It starts the target and outlives nothing of it: a restarted agent adopts the target that runs. It registers the
//! node, heartbeats, creates and removes chunk copies as the masters ask, hands committed configurations to the target
//! and the target's proposals to the masters. When a target has ended it proves that by taking the locks of its
//! disks, says so to the masters, and starts the next life.

mod disks;
mod masters;
mod state;
mod supervise;

use std::net::SocketAddr;
use std::path::PathBuf;

use foundation::ByteCount;

pub use state::StateError;
pub use supervise::{AgentError, run};

/// A disk given to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// A file or a block device.
    pub path: PathBuf,
    /// Makes the file with this size if it is missing.
    pub size: Option<ByteCount>,
}

/// How the node engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The masters: host:port, several separated by commas.
    pub masters: String,
    /// Where the target listens for peers and clients.
    pub listen: SocketAddr,
    /// The disks.
    pub disks: Vec<Disk>,
    /// Where identity, sockets and logs are kept.
    pub directory: PathBuf,
    /// The program whose `target` command is run.
    pub program: PathBuf,
    /// End the target with the agent, rather than leave it running for the next agent.
    pub end_target: bool,
}

impl Config {
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("target.sock")
    }

    pub(crate) fn target_config(&self) -> PathBuf {
        self.directory.join("target.toml")
    }

    pub(crate) fn target_log(&self) -> PathBuf {
        self.directory.join("target.log")
    }
}
