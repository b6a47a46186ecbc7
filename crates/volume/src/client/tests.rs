//! The client's face over nodes that fail as told, or at random from a seed, in virtual time.

mod behaviour;
mod compares;
mod nodes;
mod portals;
mod random;
mod reservations;
mod rounds;
