//! What masters decide, by the real [`control::Controller`] on stores in memory and in virtual time, a module for each subject. One
//! program for all: the controller is built for a store once.

use control::{ClusterId, Heartbeat, Incarnation, NodeId};

mod arrivals;
mod balance;
mod care;
mod clones;
mod cuts;
mod damage;
mod data_keys;
mod disk_moves;
mod disks;
mod exports;
mod force;
mod growth;
mod health;
mod held;
mod histories;
mod joining;
mod leases;
mod overcommit;
mod restored;
mod snapshots;
mod sync_writes;

/// What a node in its first life says that has nothing to say; a test puts what it is about over it.
fn silent(cluster: ClusterId, node: NodeId) -> Heartbeat {
    Heartbeat {
        cluster,
        node,
        incarnation: Incarnation(1),
        ended_through: Incarnation(0),
        disks: Vec::new(),
        prepared: Vec::new(),
        grown: Vec::new(),
        removed: Vec::new(),
        resyncs: Vec::new(),
        copies: Vec::new(),
        names_copies: false,
        removed_copies: Vec::new(),
        moved_copies: Vec::new(),
        moves_disks: false,
        flattening: Vec::new(),
        reserves: true,
        doubts: true,
        syncs: None,
        kept: None,
        snapshots: Default::default(),
    }
}
