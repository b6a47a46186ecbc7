//! A cluster session inside the user's process: what volumes and file systems there need of the cluster.
//!
//! [`NodeLinks`] carries the commands of [`volume::client`] to the nodes over NVMe/TCP. The maps and the
//! sessions come from the masters: whoever speaks with them implements [`volume::client::MapSource`] and
//! [`NodeDirectory`] and hands them in. Nothing here knows FUSE or Python.

mod ask;
mod connection;
mod copies;
mod leases;
mod links;
mod passes;
mod past;
mod scrub;
mod session;
mod snapshot_device;
mod snapshots;
mod whose;

pub use copies::Copies;
pub use leases::MasterLeases;
pub use links::{LinkOptions, Nearby, NodeDirectory, NodeLinks, node_subsystem};
pub use passes::PassSource;
pub use scrub::Scrubbed;
pub use session::{Session, SessionError};
pub use snapshot_device::{CopiesOfSnapshot, SnapshotDevice};
pub use snapshots::{SnapshotError, SnapshotMade};
