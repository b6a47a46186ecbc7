//! The runtime everything above floor 1 is written on: one thread and one ring per core,
//! single-threaded tasks, and the same API in virtual time.
//!
//! Code names [`net`], [`file`], [`time`], [`sync`] and [`buffer`] and never learns which backend
//! runs it: [`run`] drives an io_uring of its own ([`sys`]), a [`sim::Simulation`] drives
//! many hosts with simulated networks and disks from one seed. Neither locks anything on the I/O path.
//!
//! Cost, per operation on the ring: one slab slot and one submission entry; no allocation once warm,
//! and a system call only per batch. An idle turn reads one flag; after [`Config::spin`] without
//! work the thread sleeps in the kernel.
//!
//! Cancellation: an operation owns its buffers until the kernel's last completion, so a future may be
//! dropped at any time. What the operation did until then is unknown to the caller.

pub mod buffer;
mod context;
mod cores;
mod executor;
pub mod file;
pub mod mailbox;
pub mod net;
mod runtime;
pub mod shared;
pub mod sim;
pub mod sync;
mod sys;
pub mod time;
mod usage;

pub use buffer::{Buffer, BufferMut, BufferPool};
pub use cores::{CoreHandle, Cores, pin, runs_here};
pub use executor::{JoinHandle, spawn};
pub use runtime::{Config, StartError, probe, run, yield_now};
pub use usage::Usage;
