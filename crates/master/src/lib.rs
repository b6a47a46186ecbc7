//! The masters' daemon: `redhare.v1` over gRPC on a [`control::Controller`], the embedded store,
//! etcd for several masters, a client for nodes, programs and the command line, and what people are shown of a cluster, by the command
//! line and over HTTP.
//!
//! One thread owns the controller and its store and does one call after the other, so nothing is
//! locked and a call that waits for the disk holds up no socket. The gRPC tasks send it closures
//! over a bounded queue and wait for the answer.

mod access;
mod audit;
mod beats;
mod calls;
mod cluster;
mod config;
mod convert;
mod damage;
mod data_path;
mod disks;
mod door;
mod engine;
mod etcd;
mod force;
mod http;
mod joining;
pub mod meta;
mod redb_store;
mod releases;
mod reservations;
mod seat;
mod server;
mod service;
mod snapshots;
mod status;
mod sync_writes;
pub mod view;
mod watch;
mod whose;

pub use config::{Config, ConfigError, StoreConfig, overcommit_percent};
pub use convert::{ConvertError, uuid_text};
pub use etcd::{EtcdConfig, EtcdConfigError, EtcdStore};
pub use proto::client::{Client, ClientError, Masters};
pub use proto::joining::{Joiner, join};
pub use proto::v1;
pub use redb_store::{OpenStoreError, RedbStore};
pub use server::{Master, RunError};
