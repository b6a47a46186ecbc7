//! The NVMe queue entries and data structures (NVM Express Base Specification 2.0, NVM Command Set
//! Specification 1.0).
//!
//! `Command` and `Completion` wrap the bytes as they travel and read a field when asked: copying one is 64 or 16
//! bytes, no accessor allocates or can fail. Data structures are decoded whole.

mod codes;
pub(crate) mod layout;

pub mod admin;
pub mod async_event;
pub mod command;
pub mod completion;
pub mod copy;
pub mod dsm;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod io;
pub mod log;
pub mod nqn;
pub mod opcode;
pub mod registers;
pub mod reservation;
pub mod sgl;
pub mod status;
pub mod text;

pub use command::Command;
pub use completion::Completion;
pub use layout::LengthError;
pub use nqn::{Nqn, NqnError, NqnField};
pub use opcode::{AdminOpcode, DataDirection, FabricsType, NvmOpcode};
pub use sgl::SglDescriptor;
pub use status::{Status, StatusType};
pub use text::{Text, TextError};
