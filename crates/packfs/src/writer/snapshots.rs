//! Snapshots by name: a generation that stays although nobody reads it.
//!
//! A snapshot is a cell of the tree that has the root of an older tree. What keeps that tree whole is the rule for space:
//! what commit N frees is not used again while a named snapshot has it, or while one is at or below N where it is not known
//! what they have (`held`). A snapshot that is deleted counts until the commit after the one that deleted it, because a superblock
//! may be lost and the one before comes back.

use super::Writer;
use crate::error::{TreeError, WriteError};
use crate::format::entry::Timestamp;
use crate::format::snapshot::{Snapshot, is_snapshot_name};
use crate::format::superblock::Features;
use crate::name::Shown;
use crate::snapshots;
use crate::space::ReaderFloor;
use foundation::ByteCount;

/// The lowest generation that a named snapshot has, as different trees say; `None` without snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floors {
    /// The tree that is being changed.
    now: Option<u64>,
    /// That of the last durable commit.
    durable: Option<u64>,
    /// That of the commit before.
    before: Option<u64>,
    /// Commits until no tree on the volume has a snapshot that the one that is changed has not.
    unsettled: u32,
}

fn least(snapshots: &[Snapshot]) -> Option<u64> {
    snapshots.iter().map(|snapshot| snapshot.generation).min()
}

impl Writer {
    /// To be asked once, of a file system that was just opened.
    pub(super) async fn load_floors(&mut self) -> Result<(), TreeError> {
        if !self.features.has(Features::SNAPSHOTS) {
            return Ok(());
        }
        let found = least(&snapshots::list(&self.tree).await?);
        self.floors = Floors {
            now: found,
            durable: found,
            // Not known here: nothing is used again before the first commit.
            before: Some(0),
            unsettled: 1,
        };
        Ok(())
    }

    /// For a repair, which does not know all that may be held: nothing that was given back before it is used again by it.
    pub(crate) fn hold_all_generations(&mut self) {
        self.floors = Floors {
            now: Some(0),
            durable: Some(0),
            before: Some(0),
            unsettled: u32::MAX,
        };
    }

    /// A commit is durable.
    pub(super) fn pass_floors_on(&mut self) {
        self.floors.before = self.floors.durable;
        self.floors.durable = self.floors.now;
        self.floors.unsettled = self.floors.unsettled.saturating_sub(1);
        self.forget_held_without_snapshots();
    }

    /// Whether the snapshots of the tree that is changed are all that any tree on the volume has.
    pub(super) fn floors_are_settled(&self) -> bool {
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::DeletedNotHeld {
            return true;
        }
        self.floors.unsettled == 0
    }

    /// What snapshots by name still need.
    pub(super) fn snapshot_floor(&self) -> ReaderFloor {
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::DeletedNotHeld {
            return ReaderFloor(self.floors.now);
        }
        let Floors {
            now, durable, before, ..
        } = self.floors;
        ReaderFloor([now, durable, before].into_iter().flatten().min())
    }

    /// Whether there are none.
    pub(super) fn has_no_snapshots(&self) -> bool {
        self.floors.now.is_none()
    }

    /// All snapshots by name, oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, WriteError> {
        Ok(snapshots::list(&self.tree).await?)
    }

    /// Bytes of the volume that only snapshots hold; where it is not known what they have, all that was given back since the oldest of
    /// them.
    pub fn held_bytes(&self) -> ByteCount {
        let floor = self.snapshot_floor();
        ByteCount(self.space.held_pages(floor) * crate::format::PAGE_BYTES_U64)
    }

    /// Commits, and keeps that generation under a name.
    ///
    /// # Errors
    /// [`WriteError::SnapshotName`], [`WriteError::SnapshotExists`], or as [`Writer::commit`].
    pub async fn create_snapshot(&mut self, name: &[u8], now: Timestamp) -> Result<Snapshot, WriteError> {
        if !is_snapshot_name(name) {
            let name = Shown::new(name);
            return Err(WriteError::SnapshotName { name });
        }
        self.check_room_for(false, 8)?;
        if snapshots::find(&self.tree, name).await?.is_some() {
            let name = Shown::new(name);
            return Err(WriteError::SnapshotExists { name });
        }
        self.commit().await?;
        self.hold_new_snapshot();
        self.stop_pass();
        let snapshot = Snapshot::of(&self.superblock, name, now);
        self.features = self.features.with(Features::SNAPSHOTS);
        self.put(snapshot.key().encode(), snapshot.encode()).await?;
        self.floors.now = self.floors.now.or(Some(snapshot.generation));
        self.commit_always().await?;
        Ok(snapshot)
    }

    /// Deletes a snapshot and commits, twice, so that its space is given back at once unless readers or other snapshots
    /// hold it. Readers that have it open go on reading.
    ///
    /// # Errors
    /// [`WriteError::NoSnapshot`], or as [`Writer::commit`].
    pub async fn delete_snapshot(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.check_room(true)?;
        let mut listed = snapshots::list(&self.tree).await?;
        let index = listed.iter().position(|snapshot| snapshot.name == name);
        let Some(index) = index else {
            let name = Shown::new(name);
            return Err(WriteError::NoSnapshot { name });
        };
        let deleted = listed.swap_remove(index);
        self.take(&deleted.key().encode()).await?;
        self.floors.now = least(&listed);
        self.floors.unsettled = 2;
        self.unhold_snapshot();
        self.commit_always().await?;
        self.commit_always().await?;
        Ok(())
    }
}
