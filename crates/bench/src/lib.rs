//! Measuring: the bare loopback loop that NVMe/TCP is held against, load generators, and comparisons of
//! contenders that take turns.
//!
//! An absolute time proves nothing on a machine that drifts: see [`paired`] for the method.

pub mod cold;
pub mod echo;
pub mod latency;
pub mod local_files;
pub mod paired;
pub mod process;
pub mod report;
pub mod target;
pub mod yardstick;
