//! One module per command.

pub(crate) mod bench;
pub(crate) mod beside;
pub(crate) mod ca;
pub(crate) mod cluster;
pub(crate) mod credentials;
pub(crate) mod doctor;
pub(crate) mod fs;
pub(crate) mod master;
pub(crate) mod meta;
pub(crate) mod node;
pub(crate) mod rebalance;
pub(crate) mod signals;
pub(crate) mod target;
pub(crate) mod up;
pub(crate) mod volume;
