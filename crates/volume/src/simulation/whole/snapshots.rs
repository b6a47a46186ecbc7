//! Snapshots by the real masters: each is begun there, cut and released at the write nodes (`snapshots`), and completed there or given up,
//! by its maker or by masters that have waited for too long. Nodes name the snapshots of which they have copies, and delete what they
//! are told to. Complete ones are deleted now and then.

use control::testing::Handle;
use control::{ControlError, Controller, SnapshotKey, SnapshotNumber, SnapshotState};
use foundation::KeptCopies;

use super::{By, VOLUME, WholeEvent};
use crate::identity::SnapshotId;
use crate::simulation::events::Event;
use crate::simulation::world::{MS, World, chunk_id};

/// Before a master is asked again that did not answer.
const AGAIN: u64 = 100 * MS;
/// So many complete ones are kept.
const KEPT: usize = 6;

/// What became of a snapshot that was to be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulation) enum Completed {
    Complete,
    GivenUp,
    /// Nobody knows: it is asked for again.
    Unknown,
}

fn name_of(number: u64) -> String {
    format!("s{number}")
}

fn key_of(snapshot: SnapshotId) -> SnapshotKey {
    (VOLUME, SnapshotNumber(snapshot.0))
}

/// The list of complete snapshots as nodes get it: its version, and the chunks of each.
pub(super) fn list_of(control: &Controller<Handle>) -> (u64, Vec<(SnapshotId, u32)>) {
    let (version, complete) = control.complete_snapshots();
    let of_volume = complete.iter().filter(|((volume, _), _)| *volume == VOLUME);
    let named = of_volume.map(|((_, number), snapshot)| (SnapshotId(number.0), snapshot.chunks));
    (version, named.collect())
}

impl World {
    /// A node hears another list of complete snapshots.
    pub(super) fn learn_complete(&mut self, node: usize, (list, complete): (u64, Vec<(SnapshotId, u32)>)) {
        let volume = chunk_id(0).volume;
        let named = complete
            .into_iter()
            .map(|(snapshot, chunks)| ((volume, snapshot), chunks));
        let kept = &mut self.nodes[node].kept;
        kept.keeper.learn(named);
        (kept.list, kept.counted) = (list, None);
    }

    /// Which list of complete snapshots a node has, and what it has of them as far as it has looked; none where nobody looks after them.
    pub(super) fn kept_on(&self, node: usize) -> Option<(u64, Option<KeptCopies>)> {
        let kept = &self.nodes[node].kept;
        self.shape.keeps.then_some((kept.list, kept.counted))
    }

    /// A node was removed for good: nothing that is complete may have needed it.
    pub(super) fn check_snapshots_without(&mut self, node: usize) {
        let copies = usize::from(self.shape.copies);
        let records = self.of_whole().etcd.borrow().snapshots();
        for (key, record) in records {
            let complete = record.state == SnapshotState::Complete;
            for chunk in (0..record.chunks as usize).filter(|_| complete) {
                let holders = self.holders((chunk, SnapshotId(key.1.0)));
                if holders < copies && self.layer(node, (chunk, SnapshotId(key.1.0))).is_some() {
                    return self.fail(format!(
                        "node {node} was removed, and snapshot {key:?} of chunk {chunk} has {holders} of {copies} copies without it"
                    ));
                }
            }
        }
    }

    /// Begins a snapshot at the master in the seat: its number, and of how many chunks it is. None if it was refused, or nobody answers.
    pub(in crate::simulation) fn begin_at_masters(&mut self) -> Option<(SnapshotId, usize)> {
        let now = self.now;
        let whole = self.of_whole();
        let master = whole.seated(now)?;
        whole.snapshots_named += 1;
        let name = name_of(whole.snapshots_named);
        let control = whole.masters[master].member.lead().ok()?;
        let begun = control.begin_snapshot("volume", &name, 0);
        self.note_committed(By::Other);
        let (_, snapshot) = begun.ok()?;
        Some((SnapshotId(snapshot.number.0), snapshot.chunks as usize))
    }

    /// Every chunk has its part of a snapshot.
    pub(in crate::simulation) fn complete_at_masters(&mut self, snapshot: SnapshotId) -> Completed {
        // Somebody takes the maker for dead at the last moment.
        if self.of_whole().random.chance(1, 12) {
            self.abort_at_masters(snapshot);
        }
        let now = self.now;
        let whole = self.of_whole();
        let Some(master) = whole.seated(now) else {
            return Completed::Unknown;
        };
        let Ok(control) = whole.masters[master].member.lead() else {
            return Completed::Unknown;
        };
        let (volume, number) = key_of(snapshot);
        let completed = control.complete_snapshot(volume, number);
        self.note_committed(By::Other);
        match completed {
            Ok(_) => Completed::Complete,
            Err(ControlError::SnapshotOver { .. }) => Completed::GivenUp,
            Err(_) => Completed::Unknown,
        }
    }

    /// The maker gives a snapshot up. Masters that do not hear it do so by themselves.
    pub(in crate::simulation) fn abort_at_masters(&mut self, snapshot: SnapshotId) {
        let now = self.now;
        let whole = self.of_whole();
        if let Some(master) = whole.seated(now)
            && let Ok(control) = whole.masters[master].member.lead()
        {
            let (volume, number) = key_of(snapshot);
            drop(control.abort_snapshot(volume, number));
        }
        self.note_committed(By::Other);
    }

    /// Asks the masters later whether it is complete.
    pub(in crate::simulation) fn complete_again(&mut self, snapshot: SnapshotId) {
        self.at(AGAIN, Event::Whole(WholeEvent::Complete { snapshot }));
    }

    /// Whether the masters count a snapshot among those that are, or may become, complete.
    pub(in crate::simulation) fn is_kept_by_masters(&self, snapshot: SnapshotId) -> bool {
        let Some(whole) = &self.whole else { return true };
        let record = whole.etcd.borrow().snapshot(key_of(snapshot));
        record.is_some_and(|record| record.state != SnapshotState::Deleting)
    }

    /// Somebody deletes the oldest complete snapshot when there are many.
    pub(super) fn delete_a_snapshot(&mut self) {
        let now = self.now;
        let Some(snapshots) = &self.snapshots else { return };
        let Some(oldest) = snapshots.complete.keys().next().copied() else {
            return;
        };
        if snapshots.complete.len() <= KEPT {
            return;
        }
        let record = self.of_whole().etcd.borrow().snapshot(key_of(oldest));
        let whole = self.of_whole();
        if let Some(record) = record
            && let Some(master) = whole.seated(now)
            && let Ok(control) = whole.masters[master].member.lead()
        {
            let deleted = control.delete_snapshot("volume", &record.name);
            // Of an answer that does not come nothing is known: it may go from now on.
            let may_go =
                !matches!(&deleted, Err(error) if error.kind() == control::ErrorKind::FailedPrecondition);
            if let Some(snapshots) = self.snapshots.as_mut().filter(|_| may_go) {
                snapshots.complete.remove(&oldest);
            }
        }
    }

    /// The snapshots of which a node has copies.
    pub(super) fn snapshots_on(&self, node: usize) -> Vec<SnapshotId> {
        let sim = &self.nodes[node];
        let of_copies = sim.disks.values().flat_map(|disk| disk.layers.keys().copied());
        let of_others = sim.kept.layers.keys().map(|(_, snapshot)| *snapshot);
        let mut all: Vec<SnapshotId> = of_copies.chain(of_others).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A node deletes its copies of these snapshots.
    pub(super) fn forget_snapshots(&mut self, node: usize, removed: &[SnapshotId]) {
        for snapshot in removed {
            let complete = self.snapshots.as_ref().map(|snapshots| &snapshots.complete);
            if complete.is_some_and(|complete| complete.contains_key(snapshot)) {
                return self.fail(format!(
                    "node {node} is told to delete its copies of snapshot {snapshot:?}, which is complete"
                ));
            }
            let sim = &mut self.nodes[node];
            for disk in sim.disks.values_mut() {
                disk.layers.remove(snapshot);
            }
            sim.kept.layers.retain(|(_, other), _| other != snapshot);
        }
    }

    /// What must hold of the records of snapshots after every commit: they go forward only, and while one is being made the volume has
    /// the chunks that it says, and no others are being added.
    pub(super) fn check_snapshot_records(&mut self) {
        if self.snapshots.is_none() {
            return;
        }
        let whole = self.of_whole();
        let (records, volume) = {
            let etcd = whole.etcd.borrow();
            (etcd.snapshots(), etcd.volume(VOLUME))
        };
        let states = records.iter().map(|(key, record)| (*key, record.state)).collect();
        let before = std::mem::replace(&mut whole.snapshot_states, states);
        for (key, record) in records {
            if let Some(before) = before.get(&key).filter(|before| **before > record.state) {
                return self.fail(format!(
                    "snapshot {key:?} was {before:?} and is {:?}",
                    record.state
                ));
            }
            let is_pending = record.state == SnapshotState::Pending;
            let Some(volume) = volume.as_ref().filter(|_| is_pending) else {
                continue;
            };
            let (count, growth) = (volume.geometry.chunk_count(), &volume.growth);
            if count != record.chunks || !growth.is_empty() {
                return self.fail(format!(
                    "snapshot {key:?} of {} chunks is being made, and the volume has {count} and gets {growth:?} more",
                    record.chunks
                ));
            }
        }
    }

    /// When all is quiet: every snapshot that was complete still is.
    pub(super) fn check_snapshots_kept(&mut self) {
        let complete = self.snapshots.as_ref().map(|snapshots| &snapshots.complete);
        let lost = complete.and_then(|complete| complete.keys().find(|id| !self.is_kept_by_masters(**id)));
        if let Some(lost) = lost.copied() {
            self.fail(format!(
                "snapshot {lost:?} was complete, and the masters do not have it"
            ));
        }
    }
}
