//! Clones of volumes, and flattening them (`docs/decisions/0093`). A clone is a volume of its own whose copies begin as those of
//! a snapshot and share with them what has not been written since. Its record names that snapshot, its *origin*.
//!
//! A snapshot goes only when no volume names it, and is only named while it is kept: a clone puts the snapshot's record anew, so
//! of it and of a deletion that looked before, one loses the comparison.

use std::collections::BTreeMap;
use std::ops::Range;

use foundation::{ByteCount, Instant};

use crate::controller::unfinished::Unfinished;
use crate::controller::volumes::{STEP_CHUNKS, check_name, shown};
use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, NodeId, SnapshotNumber, Uuid, VolumeNumber};
use crate::keys;
use crate::model::{
    Chunk, FEATURE_CLONES, FEATURE_SYNC_WRITES, Geometry, Origin, Snapshot, SnapshotState, Volume,
    VolumeState,
};
use crate::placement::Places;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// How far a node is with giving its copies of a clone data of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flattening {
    /// The clone.
    pub number: VolumeNumber,
    /// Copies here, and copies of its snapshots, that show something of its origin still.
    pub left: u32,
    /// All of them.
    pub copies: u32,
}

/// What a clone shares, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginView {
    /// As in its record.
    pub origin: Origin,
    /// The volume's name.
    pub volume: String,
    /// The snapshot's name.
    pub snapshot: String,
    /// While it is flattened: copies that are left and all, as the nodes said that were heard.
    pub progress: Option<(u64, u64)>,
}

impl<S: MetadataStore> Controller<S> {
    /// Creates a volume that begins as a snapshot of another one is, with its shape. On return its chunks are placed where those of the
    /// other volume are in sync; it is ready when the nodes have made its copies, which takes no copying where the snapshot is.
    ///
    /// # Errors
    /// There is no such snapshot, or it is not complete; the name is taken; too few disks that have copies in sync have the room
    /// that the clone is promised.
    pub fn clone_volume(
        &mut self,
        parent: &str,
        snapshot: &str,
        name: &str,
        now: Instant,
    ) -> Result<Volume, ControlError> {
        check_name(name)?;
        let uuid = Uuid::from_random_bits(self.random.next_u64(), self.random.next_u64());
        for _ in 0..ATTEMPTS_MAX {
            let parent = self.volume_named(parent)?;
            let Some(cut) = self.complete_snapshot_named(&parent, snapshot)? else {
                continue;
            };
            let origin = Origin {
                volume: parent.number,
                snapshot: cut.record.number,
                flattening: false,
            };
            let volume = Volume {
                number: VolumeNumber(0),
                name: name.to_owned(),
                uuid,
                geometry: geometry_at(&parent.geometry, cut.record.chunks)?,
                state: VolumeState::Creating,
                portals: Vec::new(),
                write_pin: None,
                hosts: Vec::new(),
                growth: Vec::new(),
                checksums: parent.checksums,
                origin: Some(origin),
                spread: parent.spread,
                sync_writes: parent.sync_writes,
            };
            // Refused here, before anything is stored, if it is impossible.
            let all: Vec<u32> = (0..volume.geometry.chunk_count()).collect();
            self.places_of_origin(&volume, origin, &all, now)?;
            let mut transaction = Transaction::new();
            let key = keys::snapshot(parent.number, cut.record.number);
            transaction.compare(key.clone(), cut.revision);
            // Put anew, so that whoever deletes it and has not seen the clone decides again.
            transaction.put(key.clone(), cut.record.encode(&key));
            let syncs = if volume.sync_writes {
                FEATURE_SYNC_WRITES
            } else {
                0
            };
            self.set_feature(&mut transaction, FEATURE_CLONES | syncs, true)?;
            if let Some(number) = self.try_found(volume, transaction)? {
                return self.place_founded(number, now);
            }
        }
        Err(contended())
    }

    /// A snapshot that is complete; none if its record has changed meanwhile.
    fn complete_snapshot_named(
        &self,
        volume: &Volume,
        name: &str,
    ) -> Result<Option<Stored<Snapshot>>, ControlError> {
        let mut kept = self.kept_snapshots(volume.number)?.into_iter();
        let Some(found) = kept.find(|kept| kept.name == name) else {
            let (volume, name) = (volume.name.clone(), shown(name));
            return Err(ControlError::NoSuchSnapshot { volume, name });
        };
        if found.state == SnapshotState::Pending {
            self.check_not_pending(volume, "be cloned from that snapshot")?;
        }
        let stored = self.read::<Snapshot>(&keys::snapshot(volume.number, found.number))?;
        Ok(stored.filter(|stored| stored.record.state == SnapshotState::Complete))
    }

    /// Where the copies of a clone's chunks begin: on the disks that have copies of the origin's in sync, of nodes that live and are
    /// not drained, if there is the room that a volume is promised.
    pub(super) fn places_of_origin(
        &self,
        volume: &Volume,
        origin: Origin,
        chunks: &[u32],
        now: Instant,
    ) -> Result<Vec<Places>, ControlError> {
        let chunk_bytes = volume.geometry.chunk.0;
        let mut room: BTreeMap<(NodeId, DiskId), u64> = self
            .candidates(now)?
            .into_iter()
            .map(|disk| ((disk.node, disk.disk), disk.free()))
            .collect();
        let mut placed = Vec::with_capacity(chunks.len());
        let mut found: BTreeMap<u32, Places> = BTreeMap::new();
        for (at, &index) in chunks.iter().enumerate() {
            let id = ChunkId {
                volume: origin.volume,
                index,
            };
            // Not one by one: each is a question to the store.
            if at % STEP_CHUNKS == 0 {
                let last = chunks[chunks.len().min(at + STEP_CHUNKS) - 1];
                found = self.places_in_sync(origin.volume, index..last.saturating_add(1))?;
            }
            let copies = found.get(&index).ok_or(ControlError::NoSuchVolume {
                number: origin.volume,
            })?;
            let mut places = Places::new();
            for &place in copies {
                if let Some(free) = room.get_mut(&place).filter(|free| **free >= chunk_bytes) {
                    *free -= chunk_bytes;
                    places.push(place);
                }
            }
            if places.len() < usize::from(volume.geometry.minimum) {
                let why = ControlError::CloneUnplaced {
                    chunk: id,
                    found: places.len(),
                    minimum: volume.geometry.minimum,
                    size: ByteCount(chunk_bytes),
                };
                return Err(self.unless_awaited(why, now)?);
            }
            placed.push(places);
        }
        Ok(placed)
    }

    /// Where the copies in sync of a part of a volume's chunks are.
    fn places_in_sync(
        &self,
        volume: VolumeNumber,
        chunks: Range<u32>,
    ) -> Result<BTreeMap<u32, Places>, ControlError> {
        let mut found = BTreeMap::new();
        let (first, _) = keys::chunks_of(volume, chunks.start);
        let (end, _) = keys::chunks_of(volume, chunks.end);
        self.read_range::<Chunk>(first, &end, |key, stored| {
            if let Some(id) = keys::parse_chunk(key) {
                let in_sync = stored
                    .record
                    .copies
                    .iter()
                    .filter(|copy| copy.incarnation.is_some());
                found.insert(id.index, in_sync.map(|copy| (copy.node, copy.disk)).collect());
            }
        })?;
        Ok(found)
    }

    /// The names of the volumes that are clones of a snapshot and not being deleted. What has been deleted needs it no more: its copies
    /// are never read again.
    pub(super) fn clones_of(
        &self,
        volume: VolumeNumber,
        snapshot: SnapshotNumber,
    ) -> Result<Vec<String>, ControlError> {
        let is_clone = |clone: &Volume| {
            let origin = clone.origin.map(|origin| (origin.volume, origin.snapshot));
            origin == Some((volume, snapshot)) && clone.state != VolumeState::Deleting
        };
        let clones = self.volumes()?.into_iter().filter(is_clone);
        Ok(clones.map(|clone| clone.name).collect())
    }

    /// Begins to give a clone data of its own; it has no origin any more when all nodes that live have reported that, which
    /// [`Controller::tick`] notices. Repeating it changes nothing, nor does it for a volume that is no clone.
    ///
    /// # Errors
    /// The volume is not ready, or grows.
    pub fn flatten_volume(&mut self, name: &str) -> Result<Volume, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
                continue;
            };
            let volume = &stored.record;
            let Some(origin) = volume.origin.filter(|origin| !origin.flattening) else {
                return Ok(stored.record);
            };
            if volume.state == VolumeState::Deleting {
                let name = volume.name.clone();
                return Err(ControlError::VolumeDeleting { name });
            }
            if !volume.is_settled() {
                let volume = volume.name.clone();
                return Err(ControlError::FlattenUnsettled { volume });
            }
            let next = Volume {
                origin: Some(Origin {
                    flattening: true,
                    ..origin
                }),
                ..volume.clone()
            };
            if self.replace_volume(&stored, &next)? {
                self.unfinished.insert(number, Unfinished::default());
                self.note_nodes(number, 0)?;
                return Ok(next);
            }
        }
        Err(contended())
    }

    /// A clone that is being flattened has no origin any more once every node that lives has said that its copies have data of
    /// their own. The others do it when they are told to delete the snapshot.
    pub(super) fn bring_flattening_on(
        &mut self,
        stored: &Stored<Volume>,
        now: Instant,
    ) -> Result<(), ControlError> {
        let number = stored.record.number;
        if !self.is_done_by_the_living(number, now)? {
            return Ok(());
        }
        let next = Volume {
            origin: None,
            ..stored.record.clone()
        };
        if self.replace_volume(stored, &next)? {
            self.unfinished.remove(&number);
            self.clear_clone_feature()?;
        }
        Ok(())
    }

    /// Takes what a node has said of its copies of clones that are being flattened.
    pub(super) fn take_flattening(
        &mut self,
        life: (NodeId, crate::identity::Incarnation),
        flattening: &[Flattening],
    ) {
        for said in flattening {
            let Ok(volume) = self.volume(said.number) else {
                continue;
            };
            if !volume.is_flattening() {
                continue;
            }
            let Some(unfinished) = self.unfinished_of(&volume) else {
                continue;
            };
            unfinished.progress.insert(life.0, (said.left, said.copies));
            if said.left == 0 {
                unfinished.reported.insert(life);
            }
        }
    }

    /// What a volume is a clone of, with names; none of one that is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn origin_of(&self, volume: &Volume) -> Result<Option<OriginView>, ControlError> {
        let Some(origin) = volume.origin else {
            return Ok(None);
        };
        let snapshot = self.read::<Snapshot>(&keys::snapshot(origin.volume, origin.snapshot))?;
        let progress = origin.flattening.then(|| {
            let unfinished = self.unfinished.get(&volume.number);
            let said = unfinished
                .into_iter()
                .flat_map(|unfinished| unfinished.progress.values());
            said.fold((0, 0), |(left, all), &(more, copies)| {
                (left + u64::from(more), all + u64::from(copies))
            })
        });
        Ok(Some(OriginView {
            origin,
            volume: match self.read::<Volume>(&keys::volume(origin.volume))? {
                Some(parent) => parent.record.name,
                None => origin.volume.to_string(),
            },
            snapshot: match snapshot {
                Some(snapshot) => snapshot.record.name,
                None => origin.snapshot.to_string(),
            },
            progress,
        }))
    }

    /// Lets masters in again that do not know clones, if there are none any more. Somebody who makes one meanwhile has put the cluster's
    /// record, too: then it stays.
    pub(super) fn clear_clone_feature(&mut self) -> Result<(), ControlError> {
        let mut transaction = Transaction::new();
        let changes = self.set_feature(&mut transaction, FEATURE_CLONES, false)?;
        if changes && self.volumes()?.iter().all(|volume| volume.origin.is_none()) {
            self.commit(&transaction)?;
        }
        Ok(())
    }
}

/// The shape that a volume had when it had so many chunks: volumes grow by whole groups.
fn geometry_at(present: &Geometry, chunks: u32) -> Result<Geometry, ControlError> {
    let mut geometry = present.clone();
    let mut sum = 0u32;
    geometry.group_chunks.retain(|group| {
        let is_in = sum < chunks;
        if is_in {
            sum = sum.saturating_add(*group);
        }
        is_in
    });
    if sum != chunks {
        return Err(ControlError::Argument {
            field: "snapshot",
            problem: format!("has {chunks} chunks, which is no size that the volume has had"),
            remedy: "report this; another snapshot of the volume may be cloned",
        });
    }
    geometry.validate()?;
    Ok(geometry)
}
