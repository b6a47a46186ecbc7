//! The client's face of a volume: a block device that finds, for each request, the node to ask.
//!
//! [`VolumeDevice`] knows no socket and no master. The ways to the nodes are handed in as [`Peers`],
//! what the masters say as a [`MapSource`], and the number under which a host's writes count as
//! [`Sessions`]. A request is cut at the stripe units ([`crate::Geometry::pieces`]); each piece goes to
//! one node: a read to the copy that answers soonest, a write or flush to the chunk's write node. What is deallocated is cut at the
//! chunks ([`crate::Geometry::runs`]), since a copy gives back only what it is told of at once.
//!
//! Cost of a request of one piece that succeeds: one division to find the chunk, one ordered map to
//! weigh the copies, one slab slot; no task and no allocation. A request of more pieces allocates one
//! record. Only what was refused, lost or failed becomes a task, which
//! - asks another copy at once when a read failed, and for a newer map beside that;
//! - asks for a newer map when a write was refused, waits a little longer each time, and writes again;
//! - opens a new session before a write whose outcome is unknown is made again, so that the lost
//!   attempt, should it still be on its way, is refused by every copy that has seen the newer session;
//! - gives up after [`ClientOptions::time_limit`].
//!
//! A portal, which writes for hosts of its own, has [`Claims`] in the place of sessions for each of them, and asks an
//! [`Admission`] what the host may do.
//!
//! A node that answers nothing for [`ClientOptions::silence`] is not waited for: its reads are taken back and asked of other
//! copies, and its writes made again in a new session once the masters name another write node (`silence.rs`).
//!
//! A write that compares first is made once or not at all: where it is not known whether it was done it is not made again, and ends with
//! [`bdev::IoError::Unavailable`] (`docs/decisions/0133-compare-and-write-in-one-step.md`).
//!
//! What is not here: metadata beside blocks and a Compare alone (refused as unsupported), and a second request
//! to another copy while the node of the first is merely slow.

mod admission;
mod channel;
mod claims;
mod device;
mod group;
mod job;
mod peers;
mod retry;
mod round;
mod silence;
mod source;
#[cfg(test)]
mod tests;
pub(crate) mod unflushed;

pub use admission::{Admission, Told, enforce};
pub use channel::VolumeChannel;
pub use claims::Claims;
pub use device::{CLUSTER_BYTES, ClientOptions, OpenPeers, VolumeDevice};
pub use peers::{Answer, AnswerSink, PeerStatus, Peers, Place, Reply};
pub use round::Round;
pub use source::{MapSource, Sessions, VolumeMap};
