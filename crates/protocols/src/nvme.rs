//! The NVMe queue entries and data structures (NVM Express Base Specification 2.0, NVM Command Set
//! Specification 1.0).

mod command;
mod completion;

pub use command::Command;
pub use completion::Completion;
