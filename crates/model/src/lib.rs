//! The replication of one chunk as an executable model: what the contract says must hold, as states and steps, with a
//! monitor of linearizability, random walks by seed and an exhaustive search within bounds.
//!
//! `cargo xtask model walk | search | table` runs it; `docs/decisions/0073-a-model-beside-the-code.md` says what it covers,
//! what it does not prove, and what was measured. Each rule of the contract that can be switched off is in the module `rules`;
//! switching one off plants a bug, and a search that cannot find it is reported.
//!
//! # Which rule is which function
//! The model is not the code. This is where to look in `crates/volume/src` for what a rule or step stands for:
//!
//! | here | in the code |
//! | --- | --- |
//! | `count-from-ask`, `asker-stops-early`; `steps::grants` | `grants.rs`: `Grants::handle_beacon` (who grants), `Grants::handle_grant` (who asked); `settings.rs`: `Settings::usable_term` |
//! | `grant-count`; `steps::reads` | `member/read.rs`: `Member::grants_needed`, `may_read` |
//! | `hold-unsettled`, `write-node-holds` | `member/read.rs`: `must_hold`; `sequence.rs`: `Window::unsettled` |
//! | `open-when-told` | `member/copy.rs`: `handle_settle`; `member/read.rs`: `may_read` |
//! | `seal-gate`, `quiet-term`, `seal`; `steps::sealing` | `sealing.rs`: `PendingSeal::gate`; `member/configure.rs`: `quiet_for`, `try_seal`, `finish_seal`, `handle_seal_answer` |
//! | `sequences-above` | `sequence.rs`: `Window::highest`; `member/configure.rs`: `seal_answer`; `member/lead.rs`: `advance_lead` |
//! | `ended-life-leaves`, `clean-end`; `steps::configuration` | `configuration.rs`: `ChunkConfig::has`; who proves an end: `docs/decisions/0045` |
//! | `give-back-proved` | `grants.rs`: `Grants::give_back`; `node.rs`: `NodeCore::handle_incarnation_ended` |
//! | `session-fence`, `fence-travels`, `portal-fence` | `member/copy.rs`: `fenced`, `note_session`; `sealing.rs`: `Answers::add`; `member/rejoin.rs`: `handle_join` |
//! | `reconcile` | `reconcile.rs`; `member/lead.rs`: `start_reconciliation` |
//! | `clear-after-flush` | `member/copy.rs`: `clear_marks`; `intent.rs`: `clear_through` |
//! | `delta-from-flush`, `own-marks`; `steps::joins` | `member/rejoin.rs`: `ask_to_return`; `member/join.rs`: `find_what_it_lacks` |
//! | `keep-newer` | `sequence.rs`: `Window::arrival`; `member/join.rs`: `start_resync` |
//! | `joiner-acknowledges`, `join-number` | `member/join.rs`: `required`, `handle_join_answer`; `member/rejoin.rs`: `refuses_joined` |
//! | `joiner-clean` | `member/copy.rs`: `handle_flush`, `member_flushed`, `clear_marks` |
//! | `join-announced` | `member/join.rs`: `handle_announce`, `propose_join`, `undo_join` |
//! | `replace-in-place` | `member/join.rs`: `admits`, `handle_return` |
//! | `empty-without-life`, `deleted-is-quiet`; `steps::places` | `node.rs`: `NodeCore::add_copy`, `remove_copy`; `crates/control/src/places.rs` |
//! | `empty-says-zero` | `record.rs`: `ChunkRecord::new` |
//! | `compares-settled`, `compare-holds`; `steps::compares` | `member/lead/compare.rs`: `Member::compare`, `Comparing` (what overlaps it waits: `member/lead.rs`) |
//! | `differs-under-grants` | `member/lead/compare.rs`: `Member::handle_compared` |
//! | `compared-stays`, `compared-goes-first` | `member/lead/compare.rs`: `Lead::goes_on_after`; `member/configure.rs`: `take_lead` |
//! | `attempts-count` | a promise, not a step: what `monitor` allows; `simulation/linear.rs` allows the same |
//!
//! # Where the code departs from the contract's text, and the model with it
//! - Acknowledging needs the answers of all members and of a joining copy, and no grant (0042, 1).
//! - A session travels with its own writes, and as a table in joins and Seals (0042, 4).
//! - A write node reads under the rule of any copy, also before it serves (0042, 7).
//! - A recovery may name any of the members, at least the minimum (0042, 11).
//! - A piece of a resync takes a place in the order of writes, is begun when what is in flight on its blocks is on both
//!   copies, and holds later writes back; a joining copy's flushes never move its flush record; from the announcement on
//!   only a newer configuration ends a join (0058).
//! - Places are added without a life and one at a time, taken away where enough copies are in sync without (0060).
//! - Compare and Write is one step at the write node, and a native client repeats none that is in doubt (0133).
//! - A portal's generation is put in force by a fence, a write of no blocks (0044).
//!
//! Where the code does *less* than the model may do, the model was left as it is, since it then covers the code: marks are
//! cleared one flush late (0042, 5), masters do not name a write node that could not serve (0042, 7), a left-out copy
//! stops at once (0042, 10), gates count grants to replaced lives. Not in the model: 0042, 3 and 8 (its writes
//! and reads at one copy are one step each), and that sessions of all but 1,024 hosts are forgotten (0047).

mod action;
mod bounds;
mod cli;
mod model;
mod monitor;
mod rules;
mod search;
mod state;
mod steps;
mod symmetry;
#[cfg(test)]
mod tests;
mod trace;
mod walk;

pub use cli::run;
