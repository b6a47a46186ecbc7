//! `redhare target` managed by JSON-RPC, as a process: requests on its socket, SPDK's own client, and hosts that do I/O
//! on what was made.

mod daemon;
mod host;
mod keys;
mod limits;
mod reactors;
mod reservations;
mod saved;
mod serving;
mod spdk_client;
