//! What every other crate stands on: unit types, checksums, time, a seeded generator, and what nodes and masters compare.
//!
//! Nothing here knows about any other part of Redhare, does I/O, or reads a clock.

pub mod checksum;
pub mod kept;
pub mod random;
pub mod seeds;
pub mod time;
pub mod units;
pub mod uuid;

pub use kept::KeptCopies;
pub use random::Random;
pub use time::Instant;
pub use units::{BlockCount, ByteCount, Epoch, Lba};
