//! Faults, as they are injected: each with a number, in the order in which they come. What draws them is elsewhere (`masters`, `places`,
//! `harm`, `room`, `whole`); here they take effect. So a run's faults are a list, of which a part can be tried (`shrink`).

use super::disk::Harm;
use super::events::Event;
use super::whole::MasterFault;
use super::world::{MS, SECOND, World};
use crate::identity::SnapshotId;

/// One thing that goes wrong. Nodes' places in `from` and `to`; the masters are the last.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Injected {
    /// Nothing gets through in this direction.
    Cut { from: usize, to: usize, until: u64 },
    /// What gets through in this direction may take long.
    Slow { from: usize, to: usize, until: u64 },
    /// A node's process stands still.
    Pause { node: usize, until: u64 },
    /// It ends, with the machine's power or without, and is started again after `down`.
    Crash { node: usize, power: bool, down: u64 },
    /// Everything that a copy's disk is asked to change fails from now on.
    Break { node: usize, chunk: usize },
    /// There is no room for a copy for a while.
    Fill { node: usize, chunk: usize, time: u64 },
    /// Whatever a node's disks are asked takes up to so long more.
    SlowDisks { node: usize, until: u64, longest: u64 },
    /// The disk does something else than it was asked, or changes what it has.
    Harm {
        node: usize,
        chunk: usize,
        harm: Option<Harm>,
        rots: Option<u32>,
    },
    /// A block of a snapshot changes by itself, for all that show it.
    HarmSnapshot {
        node: usize,
        chunk: usize,
        snapshot: SnapshotId,
        block: u32,
    },
    /// No copy has a block right any more: it changes on all of them, or they say so.
    Lose {
        chunk: usize,
        block: u32,
        changes: bool,
        /// On this node alone.
        only: Option<usize>,
    },
    /// An operator drains a node, or ends that.
    Drain { node: usize, drains: bool },
    /// Of masters and etcd.
    Master(MasterFault),
}

/// What happens to a run beside what its seed says: nothing, if not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    /// These faults, at these times, and no others.
    pub(super) faults: Option<Vec<(u64, Injected)>>,
    /// No more clients than so many.
    pub(super) clients: Option<usize>,
    /// Faults stop then.
    pub(super) faults_end: Option<u64>,
    /// Draws everything else otherwise.
    pub(super) salt: u64,
}

impl World {
    /// Something goes wrong now; but in a run whose faults are written down, only what is written does. They are drawn there all the
    /// same: as long as nothing is left out, everything else draws the same numbers.
    pub(super) fn inject(&mut self, fault: Injected) {
        if self.script.faults.is_none() {
            self.injected.push((self.now, fault.clone()));
            return self.happens(fault);
        }
        let now = self.now;
        let is_it = |number: &usize| self.injected[*number] == (now, fault.clone());
        if let Some(number) = self.due.iter().copied().find(is_it) {
            self.happens_as_written(number);
        }
    }

    /// Has what is written down happen when it is to.
    pub(super) fn begin_script(&mut self) {
        let Some(mut faults) = self.script.faults.clone() else {
            return;
        };
        if let Some(end) = self.script.faults_end {
            faults.retain(|(at, _)| *at < end);
        }
        for (number, (at, _)) in faults.iter().enumerate() {
            let late = false;
            self.at(at.saturating_sub(self.now), Event::Injected { number, late });
        }
        self.due = (0..faults.len()).collect();
        self.injected = faults;
    }

    /// The moment of a fault that is written down. What draws it may come at the same moment, and goes first: its own place in the order
    /// of events is the right one.
    pub(super) fn written_fault(&mut self, number: usize, late: bool) {
        match late {
            false => self.at(0, Event::Injected { number, late: true }),
            true => self.happens_as_written(number),
        }
    }

    fn happens_as_written(&mut self, number: usize) {
        if self.due.remove(&number) {
            let (_, fault) = self.injected[number].clone();
            self.happens(fault);
        }
    }

    pub(super) fn happens(&mut self, fault: Injected) {
        if self.trace {
            println!("{:>9.3} {fault:?}", self.now as f64 / MS as f64);
        }
        match fault {
            Injected::Cut { from, to, until } => self.blocked[from][to] = until,
            Injected::Slow { from, to, until } => self.slow[from][to] = until,
            Injected::Pause { node, until } => self.nodes[node].paused_until = until,
            Injected::Crash { node, power, down } => self.crash_for(node, power, down),
            Injected::Break { node, chunk } => {
                if let Some(disk) = self.nodes[node].disks.get_mut(&chunk) {
                    disk.broken = true;
                }
            }
            Injected::Fill { node, chunk, time } => {
                if self.nodes[node].disks.contains_key(&chunk) {
                    // No draw of its own: what is written down happens as it did.
                    let is_known = time % 2 == 0;
                    self.fill(node, chunk, true, is_known);
                    self.at(time, Event::MakeRoom { node, chunk });
                }
            }
            Injected::SlowDisks { node, until, longest } => self.slow_until(node, until, longest),
            Injected::Harm {
                node,
                chunk,
                harm,
                rots,
            } => {
                if let Some(disk) = self.nodes[node].disks.get_mut(&chunk) {
                    disk.harm = harm;
                    rots.into_iter().for_each(|block| disk.rot(block));
                }
            }
            Injected::HarmSnapshot {
                node,
                chunk,
                snapshot,
                block,
            } => {
                if let Some(layer) = self.layer(node, (chunk, snapshot)) {
                    layer.rot(block);
                }
                if let Some(disk) = self.nodes[node].disks.get_mut(&chunk) {
                    disk.harmed = true;
                }
            }
            Injected::Lose {
                chunk,
                block,
                changes,
                only,
            } => self.is_lost(chunk, block, changes, only),
            Injected::Drain { node, drains } => self.places.draining[node] = drains,
            Injected::Master(fault) => self.apply_master_fault(fault),
        }
    }

    /// Nothing gets through between two places, in either direction.
    pub(super) fn cut_both(&mut self, one: usize, other: usize, until: u64) {
        for (from, to) in [(one, other), (other, one)] {
            self.inject(Injected::Cut { from, to, until });
        }
    }

    /// What gets through between two places may take long.
    pub(super) fn slow_both(&mut self, one: usize, other: usize, until: u64) {
        for (from, to) in [(one, other), (other, one)] {
            self.inject(Injected::Slow { from, to, until });
        }
    }

    /// When faults stop in this run.
    pub(super) fn faults_end(&self) -> u64 {
        self.script.faults_end.unwrap_or(FAULTS_END)
    }
}

/// When faults stop.
pub(super) const FAULTS_END: u64 = 20 * SECOND;
