//! The same runtime in virtual time: many hosts in one thread, from one seed.
//!
//! Real crates run here unchanged. Time passes only when no task can run; tasks that could run are picked
//! at random; network and disks have delays and faults. The same seed gives the same trace
//! ([`Simulation::trace`]), so a failure is found again by its seed.
//!
//! What a crash leaves: [`Simulation::stop`] ends a process as `kill -9` does (its files keep what it
//! wrote, its connections are reset); [`Simulation::power_off`] also loses, keeps or tears, sector by sector,
//! every write that no completed sync covers, and the other hosts hear nothing.

pub mod disk;
pub mod network;
mod world;

pub(crate) use world::World;
pub use world::{Host, Simulation};
