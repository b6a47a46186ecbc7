//! The node engine: one per server, beside its target.
//!
//! It starts the target, which outlives it: a restarted agent adopts the target that runs. It registers the node,
//! heartbeats, creates and removes chunk copies as the masters ask, hands committed configurations to the target and the
//! target's proposals to the masters. When a target has ended it proves that by the locks that the process and its
//! disks held, says so to the masters, who tell the other nodes (grants given to that life are void), and starts the
//! next life.
//!
//! - `supervise`: the target's lives; what it does is decided in `policy`, purely.
//! - `masters`: one life as the masters see it; `link`: the connection to the target.
//! - `doubt`: copies on disks that were away, which are used when the masters have said that their places are there.
//! - `renewal`: the node's certificate, before it ends.
//! - [`lock`], `proof`: who lives, and that nobody does.
//! - `probe`: sample reads of disks; `health`: what becomes of a disk in trouble, purely; `disks`: which are out of service.

mod data_keys;
mod disks;
mod doubt;
mod health;
mod keeping;
mod link;
pub mod lock;
mod maps;
mod masters;
mod patience;
mod policy;
mod probe;
mod proof;
mod renewal;
mod reservations;
mod state;
mod supervise;
mod target_config;
mod trust;
mod usage;
mod watching;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;

use foundation::ByteCount;

pub use state::{StateError, identity_of};
pub use supervise::{AgentError, run};
pub use trust::TRUSTED_VARIABLE;

/// A disk given to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// A file or a block device.
    pub path: PathBuf,
    /// Makes the file with this size if it is missing and the node has not had it before.
    pub size: Option<ByteCount>,
}

/// How the node engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The masters, and as which node to speak with them.
    pub masters: proto::client::Masters,
    /// Have the masters renew the node's certificate before it ends, in the directory where it is.
    pub renews_credentials: bool,
    /// Where the target listens for peers and clients.
    pub listen: SocketAddr,
    /// The disks.
    pub disks: Vec<Disk>,
    /// The name of what the node is lost together with; empty for nothing but itself.
    pub rack: String,
    /// Where identity, sockets and logs are kept.
    pub directory: PathBuf,
    /// The program whose `target` command is run.
    pub program: PathBuf,
    /// End the target with the agent, rather than leave it running for the next agent.
    pub end_target: bool,
    /// Where a target that this agent starts serves its metrics; one that it adopts goes on as it was started.
    pub metrics: Option<SocketAddr>,
    /// In what time the target is to compare every copy with its checksums once; never if there is none.
    pub scrub_every: Option<std::time::Duration>,
    /// How long a request may stand on a disk before the target begins to reset it in stages; never if there is none.
    pub stall_limit: Option<std::time::Duration>,
    /// Overwrite what is on the disks if it is not Redhare's. Holds for the first start of a target only.
    pub force: bool,
}

impl Config {
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("target.sock")
    }

    pub(crate) fn target_config(&self) -> PathBuf {
        self.directory.join("target.toml")
    }

    /// Held by the node engine.
    pub(crate) fn agent_lock(&self) -> PathBuf {
        self.directory.join("agent.lock")
    }

    /// Held by the target.
    pub(crate) fn target_lock(&self) -> PathBuf {
        target_lock(&self.directory)
    }

    pub(crate) fn target_log(&self) -> PathBuf {
        self.directory.join("target.log")
    }
}

/// The file that the target of the node in `directory` holds locked while it lives; see [`lock`].
pub fn target_lock(directory: &std::path::Path) -> PathBuf {
    directory.join("target.lock")
}
