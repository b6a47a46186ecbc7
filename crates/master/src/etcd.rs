//! The store of several masters: etcd v3, with its leases to choose the one who leads.
//!
//! Below the cluster's prefix lie `m/` and a key of the [`control::MetadataStore`]'s, the records;
//! `revision`, which every transaction of ours puts; `leader`, with the lease of the master that
//! leads; `masters/` and an address for each master, with that master's lease; and `known/` and an
//! address for each master that has ever been there, without one.
//! `docs/formats/store.md` has the table.
//!
//! The revision of a key is etcd's modification revision, that of the store the one of the key
//! `revision`: other people's keys in the same etcd move etcd's own, and ours not. Each commit
//! learns from etcd what `revision` held before, in the same transaction.

mod config;
mod connect;
mod election;
mod known;
mod link;
mod refusal;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use config::{EtcdConfig, EtcdConfigError};
pub(crate) use election::{EtcdElection, Present, unix_ms};
pub(crate) use known::{Away, Forgotten};
pub(crate) use link::{Health, Link};
pub use store::EtcdStore;
