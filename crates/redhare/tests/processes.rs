//! The whole product as processes, a module for each subject. One program for all: what they share is built and linked once.
//! `cargo xtask test` runs each module by itself; by hand: `cargo test -p redhare --test processes -- snapshots::`.

#[path = "../../master/src/etcd/testing.rs"]
mod etcd;
mod support;

mod checksums;
mod clean_end;
mod clones;
mod cluster;
mod data_path;
mod disk_moves;
mod ends;
mod export;
mod force;
mod foreign;
mod fs;
mod full;
mod health;
mod held;
mod import;
mod import_progress;
mod joining;
mod master;
mod masters;
mod masters_rotation;
mod masters_secure;
mod meta;
mod meta_rebuild;
mod mount;
mod past;
mod portals;
mod racks;
mod rebalance;
mod rebuild;
mod repair;
mod restored;
mod rpc;
mod security;
mod snapshots;
mod snapshots_kept;
mod supervision;
mod sync_writes;
mod two_disks;
mod up;
mod upgrade;
mod walk;
