//! JSON-RPC 2.0 over a unix socket, as storage people know it from SPDK: a program registers methods by name, a
//! person or a tool calls them.
//!
//! Bytes are read, cut into values and parsed by threads of their own ([`Server`]), so that nothing of it happens
//! on a reactor. Each request becomes a [`Call`] that the daemon hands, by whatever mailbox it has, to the thread
//! that owns the state; there a [`Registry`] finds the method and runs it. This crate knows neither the methods nor
//! the runtime.
//!
//! Source: JSON-RPC 2.0 specification (2013-01-04), all sections.

mod error;
mod frames;
mod message;
mod registry;
mod server;

pub use error::RpcError;
pub use frames::{Frames, FramesError, REQUEST_BYTES_MAX};
pub use message::answer;
pub use registry::{Method, NoParameters, Registry, SavedCall};
pub use server::{Call, Reply, ServeError, Server};
