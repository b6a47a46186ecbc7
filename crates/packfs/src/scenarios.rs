//! Whole file systems in virtual time. They stand inside the crate because they plant bugs that no release has.

mod beside;
mod clones;
mod compaction;
mod crash;
mod crowd;
mod damage;
mod faults;
mod files_crash;
mod files_hostile;
mod files_model;
mod files_refusals;
mod files_test;
mod fsck;
mod fsck_pages;
mod golden;
mod growth;
mod handover;
mod held;
mod held_crash;
mod hour;
mod import;
mod late_bytes;
mod local;
mod many;
mod model;
mod model_test;
mod quotas;
mod readers;
mod refusals;
mod room;
mod size;
mod snapshots;
mod support;
mod takeover;
mod walks;

pub(crate) use support::{medium, on_host, world};
