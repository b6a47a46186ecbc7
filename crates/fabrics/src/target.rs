//! The NVMe-oF target.
//!
//! - [`Subsystem`] and [`Namespace`]: what is served; shared by all cores, changed while hosts are connected.
//! - `controller`: one host's association with a subsystem, and its admin commands.
//! - `discovery`: the subsystem that lists the others.
//! - `export`: what is different where several targets serve one subsystem.
//! - `connection`: one queue; the only part on the I/O path.
//! - `reservation`: which hosts may use a namespace, by their own agreement.
//! - [`serve`]: the listener.

mod access;
mod admin;
mod allowance;
mod authentication;
mod catch_up;
mod command;
mod connection;
mod controller;
mod discovery;
mod drain;
mod errors;
mod export;
mod fused;
mod gate;
mod histogram;
mod io;
mod measures;
mod meter;
mod notices;
mod patience;
mod placement;
mod queue;
mod reservation;
mod secure;
mod server;
mod share;
mod subsystem;

pub use access::ListenerAccess;
pub use admin::IN_CAPSULE_BYTES;
pub use authentication::{Admission, Admit};
pub use command::{Call, CommandHandler, HostIdentity, OpenCommands, Reply};
pub use controller::{Path, QueueLimits};
pub use export::OpenChannel;
pub use histogram::{BUCKET_ENDS_NS, Latencies};
pub use measures::{QueueMeasures, ReactorMeasures, SubsystemMeasures};
pub use meter::{ErrorKind, Kind, Tally};
pub use queue::TRANSFER_LIMIT_BYTES;
pub use reservation::{
    HostRights, ReservationFile, ReservationFileError, ReservationStore, SharedNotice, SharedReservations,
    StoreFuture, StoreUnavailable,
};
pub use server::{Options, ServeError, Server, serve};
pub use subsystem::{
    Association, CNTLIDS, Hosts, NSID_MAX, Namespace, NamespaceError, Portal, Referral, Subsystem,
    SubsystemOptions, Target,
};
