//! A target and its hosts, this project's own or made by hand, over loopback or in the simulator, a module for each subject. One program
//! for all: both ends are built for tests once. `hostile.rs` is a program of its own, since it counts what its process allocates.

mod admin;
mod authentication;
mod commands;
mod doubt;
mod export;
mod hostile_controller;
mod loopback;
mod multipath;
mod preemption;
mod reactors;
mod reconnect;
mod remote;
mod reservations;
mod secure;
mod simulation;
mod support;
