//! Snapshots of volumes: their records (`docs/decisions/0081`, `0085`). The chunks are cut by whoever makes one; here it begins,
//! is completed or given up, each by a comparison, so that it is one or the other whoever asks last.
//!
//! A snapshot has copies on disks only while its record is there. So a node may delete those of which the store has no
//! record, or one in deletion: that is all it has to know, and it asks with each heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use foundation::Instant;

use crate::controller::volumes::{check_name, shown};
use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{NodeId, SnapshotNumber, VolumeNumber};
use crate::keys;
use crate::model::{Number, Snapshot, SnapshotState, Volume, VolumeState};
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Operation, Transaction};

/// The most snapshots of one volume: what a read does not find in a copy it looks for in one after the other.
const SNAPSHOTS_MAX: usize = 64;

/// A number is that of a series, drawn once for each store, and one within it: together they stay below 2^53, which every
/// reader of JSON can say.
const NUMBER_BITS: u32 = 32;
const SERIES_BITS: u32 = 21;

/// The series of a snapshot's number.
pub(crate) fn series_of(number: u64) -> u64 {
    number >> NUMBER_BITS
}

/// The first number of a series that is drawn with these bits.
pub(crate) fn first_number(random: u64) -> u64 {
    (random >> (64 - SERIES_BITS)) << NUMBER_BITS | 1
}

/// A snapshot as nodes and masters name it to each other.
pub type SnapshotKey = (VolumeNumber, SnapshotNumber);

/// The range of a volume's snapshots.
pub(super) fn all_of(volume: VolumeNumber) -> RangeInclusive<SnapshotKey> {
    (volume, SnapshotNumber(0))..=(volume, SnapshotNumber(u64::MAX))
}

/// What the store says of all snapshots, as far as this master knows.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    known: BTreeMap<SnapshotKey, SnapshotState>,
    /// Those that are complete.
    complete: BTreeMap<SnapshotKey, Snapshot>,
    /// A number for these: 0 for none, and most likely another one for any other.
    version: u64,
    /// Since when this master has seen those that are pending.
    pending: BTreeMap<SnapshotKey, Instant>,
    /// As [`super::changes::ChangeLog::strangers`] was when this was read.
    strangers: u64,
}

impl Snapshots {
    /// What was committed of them.
    pub(super) fn committed(&mut self, operation: &Operation) -> Result<(), ControlError> {
        let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
        let Some(id) = keys::parse_snapshot(key) else {
            return Ok(());
        };
        match operation {
            Operation::Put { key, value } => self.note(id, &Snapshot::decode(key, value)?),
            Operation::Delete { .. } => {
                self.known.remove(&id);
                self.complete.remove(&id);
            }
        }
        self.version = self.version_of_complete();
        Ok(())
    }

    fn note(&mut self, id: SnapshotKey, record: &Snapshot) {
        self.known.insert(id, record.state);
        match record.state {
            SnapshotState::Complete => self.complete.insert(id, record.clone()),
            SnapshotState::Pending | SnapshotState::Deleting => self.complete.remove(&id),
        };
    }

    fn version_of_complete(&self) -> u64 {
        let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let all = self.complete.iter();
        all.fold(0, |state, ((volume, number), snapshot)| {
            let state = mix(
                mix(mix(state, volume.0.into()), number.0),
                u64::from(snapshot.chunks) + 1,
            );
            // Another one than that of the release before, whose list has no names: a node that has that one gets this.
            let state = mix(state, snapshot.created_unix_ms);
            snapshot
                .name
                .bytes()
                .fold(state, |state, byte| mix(state, byte.into()))
        })
    }

    /// Whether a volume has any, in whatever state.
    pub(super) fn has_any_of(&self, volume: VolumeNumber) -> bool {
        self.known.range(all_of(volume)).next().is_some()
    }

    /// Those that are complete.
    pub(super) fn complete(&self) -> &BTreeMap<SnapshotKey, Snapshot> {
        &self.complete
    }

    /// The version of what is complete.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether all of these have a record and are kept.
    pub(super) fn keeps(&self, named: &BTreeSet<SnapshotKey>) -> bool {
        let kept = |id| {
            self.known
                .get(id)
                .is_some_and(|state| *state != SnapshotState::Deleting)
        };
        named.iter().all(kept)
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Begins a snapshot of a volume: it is pending, and has a number. Until it is completed or given up the volume cannot grow,
    /// be deleted, or be exported otherwise. `unix_ms` is only for people.
    ///
    /// # Errors
    /// The volume is not ready, or has a snapshot of that name, one that is pending, or as many as it may have.
    pub fn begin_snapshot(
        &mut self,
        volume: &str,
        name: &str,
        unix_ms: u64,
    ) -> Result<(Volume, Snapshot), ControlError> {
        check_name(name)?;
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(volume)?.number;
            let Some(Stored { record, revision }) = self.read::<Volume>(&keys::volume(number))? else {
                continue;
            };
            if record.state == VolumeState::Deleting {
                let name = record.name;
                return Err(ControlError::VolumeDeleting { name });
            }
            if !record.is_settled() {
                return Err(ControlError::NotSettled { volume: record.name });
            }
            self.check_not_pending(&record, "have another snapshot")?;
            let kept = self.kept_snapshots(number)?;
            if kept.iter().any(|kept| kept.name == name) {
                let (volume, name) = (record.name, name.to_owned());
                return Err(ControlError::SnapshotExists { volume, name });
            }
            if kept.len() >= SNAPSHOTS_MAX {
                let (volume, count) = (record.name, kept.len());
                return Err(ControlError::SnapshotsMax { volume, count });
            }
            let next = self.read::<Number>(keys::NEXT_SNAPSHOT)?;
            let next_revision = next.as_ref().map_or(0, |stored| stored.revision);
            // A store that was made anew from the disks does not know which numbers were given out: it has a series of its own,
            // and one that was put back from a backup not all of them.
            let fresh = || first_number(self.random.next_u64());
            let next = next.map_or_else(fresh, |stored| stored.record.0);
            let next = self
                .highest_heard(series_of(next))
                .map_or(next, |heard| next.max(heard + 1));
            let snapshot = Snapshot {
                volume: number,
                number: SnapshotNumber(next),
                name: name.to_owned(),
                state: SnapshotState::Pending,
                chunks: record.geometry.chunk_count(),
                created_unix_ms: unix_ms,
            };
            let mut transaction = Transaction::new();
            let (key, volume_key) = (keys::snapshot(number, snapshot.number), keys::volume(number));
            transaction
                .compare(volume_key.clone(), revision)
                .compare(keys::NEXT_SNAPSHOT.to_vec(), next_revision)
                .compare(key.clone(), 0);
            // Put anew, so that whoever has decided anything on the volume without knowing of the snapshot decides again.
            transaction
                .put(volume_key.clone(), record.encode(&volume_key))
                .put(
                    keys::NEXT_SNAPSHOT.to_vec(),
                    Number(next + 1).encode(keys::NEXT_SNAPSHOT),
                )
                .put(key.clone(), snapshot.encode(&key));
            if self.commit(&transaction)? {
                return Ok((record, snapshot));
            }
        }
        Err(contended())
    }

    /// Every chunk of a pending snapshot has its part: it is complete. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`ControlError::SnapshotOver`] if it was given up or deleted.
    pub fn complete_snapshot(
        &mut self,
        volume: VolumeNumber,
        number: SnapshotNumber,
    ) -> Result<Snapshot, ControlError> {
        let over = ControlError::SnapshotOver { volume, number };
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.read::<Snapshot>(&keys::snapshot(volume, number))?;
            match stored {
                Some(stored) if stored.record.state == SnapshotState::Complete => return Ok(stored.record),
                Some(stored)
                    if stored.record.state == SnapshotState::Pending
                        || self.planted.is(Bug::CompletesGivenUp) =>
                {
                    if let Some(complete) = self.set_snapshot(stored, SnapshotState::Complete)? {
                        return Ok(complete);
                    }
                }
                _ => return Err(over),
            }
        }
        Err(contended())
    }

    /// Gives a pending snapshot up. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`ControlError::SnapshotOver`] if it is complete, and thus cannot be given up any more.
    pub fn abort_snapshot(
        &mut self,
        volume: VolumeNumber,
        number: SnapshotNumber,
    ) -> Result<(), ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.read::<Snapshot>(&keys::snapshot(volume, number))?;
            match stored {
                Some(stored) if stored.record.state == SnapshotState::Pending => {
                    if self.set_snapshot(stored, SnapshotState::Deleting)?.is_some() {
                        return Ok(());
                    }
                }
                Some(stored) if stored.record.state == SnapshotState::Complete => {
                    return Err(ControlError::SnapshotOver { volume, number });
                }
                _ => return Ok(()),
            }
        }
        Err(contended())
    }

    /// Begins to delete a snapshot; its name is free at once.
    ///
    /// # Errors
    /// There is no such volume or snapshot, or it is still being made, or there are clones of it.
    pub fn delete_snapshot(&mut self, volume: &str, name: &str) -> Result<Snapshot, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let record = self.volume_named(volume)?;
            let mut kept = self.kept_snapshots(record.number)?.into_iter();
            let Some(found) = kept.find(|kept| kept.name == name) else {
                let (volume, name) = (record.name, shown(name));
                return Err(ControlError::NoSuchSnapshot { volume, name });
            };
            if found.state == SnapshotState::Pending {
                self.check_not_pending(&record, "have that snapshot deleted")?;
            }
            let Some(stored) = self.read::<Snapshot>(&keys::snapshot(record.number, found.number))? else {
                continue;
            };
            // After its record was read: a clone that comes now puts that anew.
            let clones = self.clones_of(record.number, found.number)?;
            if !clones.is_empty() {
                return Err(ControlError::SnapshotHasClones {
                    volume: record.name,
                    name: found.name,
                    clones: clones.join(", "),
                });
            }
            if stored.record.state == SnapshotState::Complete
                && let Some(deleting) = self.set_snapshot(stored, SnapshotState::Deleting)?
            {
                return Ok(deleting);
            }
        }
        Err(contended())
    }

    /// None if somebody else was quicker.
    fn set_snapshot(
        &mut self,
        stored: Stored<Snapshot>,
        state: SnapshotState,
    ) -> Result<Option<Snapshot>, ControlError> {
        let next = Snapshot {
            state,
            ..stored.record
        };
        let key = keys::snapshot(next.volume, next.number);
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), next.encode(&key));
        Ok(self.commit(&transaction)?.then_some(next))
    }

    /// Every snapshot of a volume, in the order in which they were begun.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn snapshots(&self, volume: VolumeNumber) -> Result<Vec<Snapshot>, ControlError> {
        let mut snapshots = Vec::new();
        let (first, end) = keys::snapshots_of(volume);
        self.read_range::<Snapshot>(first, &end, |_, stored| snapshots.push(stored.record))?;
        Ok(snapshots)
    }

    /// Those that are not being deleted.
    pub(super) fn kept_snapshots(&self, volume: VolumeNumber) -> Result<Vec<Snapshot>, ControlError> {
        let mut snapshots = self.snapshots(volume)?;
        snapshots.retain(|snapshot| snapshot.state != SnapshotState::Deleting);
        Ok(snapshots)
    }

    /// Refuses what must not happen to a volume while a snapshot of it is being made. To be followed by a commit that compares the
    /// volume's record as it was read before.
    pub(super) fn check_not_pending(&self, volume: &Volume, what: &'static str) -> Result<(), ControlError> {
        let mut kept = self.kept_snapshots(volume.number)?.into_iter();
        match kept.find(|snapshot| snapshot.state == SnapshotState::Pending) {
            None => Ok(()),
            Some(pending) => Err(ControlError::SnapshotPending {
                volume: volume.name.clone(),
                name: pending.name,
                what,
                term: self.settings.snapshot_term,
            }),
        }
    }

    /// Refuses to delete a volume that has snapshots.
    pub(super) fn check_no_snapshots(&self, volume: &Volume) -> Result<(), ControlError> {
        self.check_not_pending(volume, "be deleted")?;
        match self.kept_snapshots(volume.number)?.len() {
            0 => Ok(()),
            count => Err(ControlError::VolumeHasSnapshots {
                volume: volume.name.clone(),
                count,
            }),
        }
    }

    /// What the records of a volume that is deleted are followed by.
    pub(super) fn remove_snapshots(&mut self, volume: VolumeNumber) -> Result<(), ControlError> {
        for snapshot in self.snapshots(volume)? {
            let mut transaction = Transaction::new();
            transaction.delete(keys::snapshot(volume, snapshot.number));
            self.commit(&transaction)?;
        }
        Ok(())
    }

    /// Reads which snapshots there are.
    pub(super) fn note_snapshots(&mut self) -> Result<(), ControlError> {
        let mut read = Snapshots::default();
        let end = keys::end_of(keys::SNAPSHOTS);
        self.read_range::<Snapshot>(keys::SNAPSHOTS.to_vec(), &end, |_, Stored { record, .. }| {
            read.note((record.volume, record.number), &record);
        })?;
        self.snapshots.known = read.known;
        self.snapshots.complete = read.complete;
        self.snapshots.version = self.snapshots.version_of_complete();
        self.snapshots.strangers = self.changes.strangers();
        Ok(())
    }

    /// The highest number of a series that any node has named.
    fn highest_heard(&self, series: u64) -> Option<u64> {
        let heard = self.heard.values().filter_map(|heard| heard.snapshots.as_ref());
        let numbers = heard.flatten().map(|(_, number)| number.0);
        numbers.filter(|number| series_of(*number) == series).max()
    }

    /// Those of the snapshots a node has copies of that it shall delete: none of those that a store has begun which was lost. The store is asked of each that this master does not
    /// know to be kept: one that another master has begun must not be lost.
    pub(super) fn snapshots_to_remove(
        &self,
        named: &BTreeSet<SnapshotKey>,
    ) -> Result<Vec<SnapshotKey>, ControlError> {
        let mut removed = Vec::new();
        let mut own_series = None;
        for &(volume, number) in named {
            if self.snapshots.keeps(&BTreeSet::from([(volume, number)])) {
                continue;
            }
            let stored = self.read::<Snapshot>(&keys::snapshot(volume, number))?;
            let is_over = match stored {
                Some(stored) => stored.record.state == SnapshotState::Deleting,
                None => {
                    let series = match own_series {
                        Some(series) => series,
                        None => {
                            let next = self.read::<Number>(keys::NEXT_SNAPSHOT)?;
                            *own_series.insert(next.map(|next| series_of(next.record.0)))
                        }
                    };
                    series == Some(series_of(number.0))
                }
            };
            if is_over {
                removed.push((volume, number));
            }
        }
        Ok(removed)
    }

    /// All complete snapshots, as far as this master knows, and a version that tells whether that has changed: 0 if there are none.
    pub fn complete_snapshots(&self) -> (u64, BTreeMap<SnapshotKey, Snapshot>) {
        (self.snapshots.version(), self.snapshots.complete.clone())
    }

    /// Of how many snapshots a node said that it has copies when it was last heard; none if this life of it has not said it.
    pub(super) fn snapshots_on(&self, node: NodeId) -> Option<usize> {
        let heard = self.heard.get(&node).and_then(|heard| heard.snapshots.as_ref());
        heard.map(BTreeSet::len)
    }

    /// Reads anew which there are, if another master has changed anything since.
    pub(super) fn refresh_snapshots(&mut self) -> Result<(), ControlError> {
        match self.snapshots.strangers == self.changes.strangers() {
            true => Ok(()),
            false => self.note_snapshots(),
        }
    }

    /// Gives up those that are pending for too long, and forgets those in deletion of which no living node has copies.
    pub(super) fn look_after_snapshots(&mut self, now: Instant) -> Result<(), ControlError> {
        self.refresh_snapshots()?;
        let Snapshots { known, pending, .. } = &mut self.snapshots;
        let is_pending = |id: &SnapshotKey| known.get(id) == Some(&SnapshotState::Pending);
        pending.retain(|id, _| is_pending(id));
        for id in known.keys().filter(|id| is_pending(id)) {
            pending.entry(*id).or_insert(now);
        }
        let term = self.settings.snapshot_term;
        let old = pending.iter().filter(|(_, since)| now.since(**since) >= term);
        let old: Vec<SnapshotKey> = old.map(|(id, _)| *id).collect();
        let deleting = known
            .iter()
            .filter(|(_, state)| **state == SnapshotState::Deleting);
        let deleting: Vec<SnapshotKey> = deleting.map(|(id, _)| *id).collect();
        for (volume, number) in old {
            match self.abort_snapshot(volume, number) {
                // Completed a moment ago, by another master.
                Err(ControlError::SnapshotOver { .. }) => self.note_snapshots()?,
                aborted => aborted?,
            }
        }
        if deleting.is_empty() {
            return Ok(());
        }
        let nodes = self.nodes(now)?;
        let next = self.read::<Number>(keys::NEXT_SNAPSHOT)?;
        let own_series = next.map(|next| series_of(next.record.0));
        for (volume, number) in deleting {
            let has_none = |node: &NodeId| {
                let heard = self.heard.get(node).and_then(|heard| heard.snapshots.as_ref());
                heard.is_some_and(|snapshots| !snapshots.contains(&(volume, number)))
            };
            // One that is gone is told when it returns, by the series, if the snapshot is of this store's; one of a store that was lost
            // (`docs/decisions/0099`) only as long as the record is there.
            let is_own = own_series == Some(series_of(number.0));
            let asked = nodes.values().filter(|view| view.is_alive || !is_own);
            if asked.map(|view| view.id).all(|node| has_none(&node)) {
                let key = keys::snapshot(volume, number);
                if let Some(stored) = self.read::<Snapshot>(&key)? {
                    let mut transaction = Transaction::new();
                    transaction.compare(key.clone(), stored.revision).delete(key);
                    self.commit(&transaction)?;
                } else {
                    self.note_snapshots()?;
                }
            }
        }
        Ok(())
    }
}
