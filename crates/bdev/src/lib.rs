//! Block devices: what every layer of the data path looks like to the one above it.
//!
//! A [`BlockDevice`] is shared by all cores and describes itself; each core opens a [`Channel`] of its own, and
//! a request is born, served and completed on that core. A [`Request`] carries a [`Token`] that must be
//! completed exactly once; whoever drops it aborts the request. Requests that finish at once complete
//! inside [`Channel::submit`]: no task, no wake-up, no allocation.
//!
//! Two faces on the same thing: protocol code gives requests a [`Sink`] of its own and gets completions pushed;
//! everything else writes `channel.read(..).await` through [`ChannelExt`].

mod device;
mod error;
mod request;
mod slot;

pub mod counted;
pub mod delay;
pub mod fault;
pub mod fence;
pub mod file;
pub mod histogram;
pub mod managed;
pub mod memory;
pub mod null;
pub mod reset;
pub mod throttle;

pub use device::{BlockDevice, Channel, Geometry, Leave, OpenError};
pub use error::IoError;
pub use request::{Completion, Data, Fence, Operation, Request, Sink, Token, TraceId};
pub use slot::{ChannelExt, Pending, request};
