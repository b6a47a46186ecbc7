//! Reservations (NVM Express Base Specification 2.0c, section 8.19).
//!
//! - `state`: what one namespace's reservation is, and the rules. Pure.
//! - `file`: how it survives a loss of power.
//! - `shared`: how several targets have the same one.
//! - `owner`: makes changes one at a time and publishes them to all queues.
//! - `log`: what a controller's host is still to be told.
//! - `drain`: ends the commands of hosts that were preempted.
//!
//! The commands themselves are in `io::reserve`, the features and the log page in `admin::reservations`.
//!
//! An I/O command costs a comparison of the published version with the one that its queue has seen.

mod drain;
mod file;
mod log;
mod owner;
mod shared;
mod state;

pub(super) use drain::drain;
pub use file::{ReservationFile, ReservationFileError};
pub(super) use log::NotificationLog;
pub(super) use owner::{Failure, Guard, Owner};
pub use shared::{
    HostRights, ReservationStore, SharedNotice, SharedReservations, StoreFuture, StoreUnavailable,
};
pub(super) use state::{Change, HostId, Refusal};
