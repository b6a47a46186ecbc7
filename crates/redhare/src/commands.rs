//! One module per command.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod signals;
pub(crate) mod target;
