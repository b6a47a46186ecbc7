//! The NVMe-oF initiator: a target's namespaces as block devices.
//!
//! - [`Queue`]: one connection, one queue pair; runs raw commands.
//! - [`Controller`]: an association: admin queue, identification, keep-alive, events.
//! - [`NamespaceChannel`]: a namespace on one queue, as a [`bdev::Channel`].
//! - [`RemoteDevice`]: a namespace as a [`bdev::BlockDevice`] whose channels connect, and connect again, by themselves, by
//!   one path or by several.

mod access;
mod authenticate;
mod channel;
mod controller;
mod device;
mod doubt;
mod namespace;
mod queue;
mod select;

pub use authenticate::AuthenticationError;
pub use controller::{ConnectError, ConnectOptions, Controller, discover};
pub use device::{PathView, RemoteDevice, RemoteOptions};
pub use namespace::NamespaceChannel;
pub use queue::{CommandResult, CommandSink, Queue};
pub use select::{Balance, PathId, Policy};
