//! NVMe/TCP: its PDUs and the connection state of both ends, without I/O (NVM Express TCP Transport
//! Specification, revision 1.0, called "the specification" below).
//!
//! - [`pdu`]: what travels, encoded and decoded;
//! - [`target`]: the controller's end of one connection;
//! - [`initiator`]: the host's end of one connection;
//! - [`Termination`]: what ends a connection whose peer broke the protocol.
//!
//! Both ends have the same form. `receive` takes bytes off the front of what the caller read and
//! yields one event at a time; payload is lent out of the caller's own bytes and never kept. Methods
//! that send append encoded headers to a caller's `Vec<u8>`; the caller sends payload from its own
//! buffers in between. Neither end allocates per command once its table stands.
//!
//! Cost of one command without payload, each way: one copy of its header (72 bytes) into the framer,
//! one of the queue entry (64 bytes) into the event, one table entry (24 bytes) touched.

mod framing;
pub mod initiator;
pub mod pdu;
pub mod target;
mod termination;

pub use termination::{FatalError, Fault, PeerTermination, Termination};
