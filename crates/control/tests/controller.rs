//! What masters decide, by the real [`control::Controller`] on stores in memory and in virtual time, a module for each subject. One
//! program for all: the controller is built for a store once.

mod arrivals;
mod balance;
mod care;
mod clones;
mod data_keys;
mod exports;
mod force;
mod growth;
mod health;
mod held;
mod histories;
mod joining;
mod leases;
mod overcommit;
mod restored;
mod snapshots;
mod sync_writes;
