//! NVMe and NVMe/TCP: codecs, authentication, TLS, and the connection state machines of both ends, without I/O.
//!
//! Nothing here knows a socket, a device, a clock or a thread: bytes and time come in as arguments.

pub mod auth;
pub mod nvme;
pub mod tcp;
pub mod tls;
