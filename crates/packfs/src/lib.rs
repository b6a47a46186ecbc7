//! PackFS.
#![allow(dead_code)]
pub mod cache;
mod error;
pub mod format;
mod io;
pub mod lease;
mod mount;
pub mod name;
mod reader;
mod space;
mod tree;
mod writer;
pub use error::*;
pub use io::*;
pub use reader::*;
pub use space::ReaderFloor;
pub use writer::*;
