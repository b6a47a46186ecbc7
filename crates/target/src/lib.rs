//! The data plane of one node: what `redhare target` runs when it is part of a cluster, and how people manage it.
//!
//! [`node::Node`] drives the replication core of the volume crate: it gives it messages from peers, requests from native
//! clients and completions of disks, and does what the core puts out. It knows no master: a node agent
//! connects over a unix socket ([`agent`]) and hands in configurations. [`management`] is the way in for people and their tools,
//! [`metrics`] what the target shows of itself to Prometheus.

pub mod agent;
pub mod management;
pub mod metrics;
pub mod node;
pub mod portal;
