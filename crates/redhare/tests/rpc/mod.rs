//! `redhare target` managed by JSON-RPC, as a process: requests on its socket, SPDK's own client, and hosts that do I/O
//! on what was made.

mod access;
mod daemon;
mod host;
mod keys;
mod limits;
mod paths;
mod processes;
mod reactors;
mod reservations;
mod saved;
mod serving;
mod sizes;
mod spdk_client;
mod tls;
