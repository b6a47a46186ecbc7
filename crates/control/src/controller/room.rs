//! Room for chunks that are to get places, and what is said where there is none.

use foundation::{ByteCount, Instant};

use crate::controller::Controller;
use crate::controller::growth::Growing;
use crate::error::ControlError;
use crate::identity::VolumeNumber;
use crate::keys;
use crate::model::{Volume, VolumeState};
use crate::store::MetadataStore;

/// Chunks of a volume for which there was no place when the master that leads looked for one last. It looks again with each tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// So many have none.
    pub chunks: u32,
    /// Why, with the numbers; for people.
    pub why: String,
}

/// How many chunks of a volume are still to get places, of one of which all below this one have theirs.
fn chunks_left(volume: &Volume, placed: u32) -> u32 {
    let all = match (volume.state, Growing::of(volume)) {
        (VolumeState::Creating, _) => 0..volume.geometry.chunk_count(),
        (_, Some(growing)) => growing.from..growing.chunks,
        _ => return 0,
    };
    all.end - placed.clamp(all.start, all.end)
}

/// Why so many chunks of a volume have no place: the refusal is about those that were tried at once, and what is needed is room for all.
fn describe(why: &ControlError, volume: &Volume, chunks: u32) -> String {
    let needed = ByteCount(u64::from(chunks).saturating_mul(volume.geometry.chunk.0));
    match why {
        ControlError::NotEnoughSpace {
            copies, room, places, ..
        } => format!(
            "they need {needed} on each of {copies} {places}, and there is room for {room}; add disks, or delete volumes or snapshots"
        ),
        other => other.to_string(),
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Whether so many more chunks of a volume have room, beside what other volumes are still to get: theirs is promised with their places, and those
    /// of a large volume come one after the other.
    ///
    /// # Errors
    /// With the numbers.
    pub(super) fn check_room(
        &mut self,
        volume: &Volume,
        chunks: u32,
        now: Instant,
    ) -> Result<(), ControlError> {
        self.places(volume, chunks, now)?;
        let mut others = 0;
        for (number, unfinished) in &self.unfinished {
            let Some(stored) = self.read::<Volume>(&keys::volume(*number))? else {
                continue;
            };
            let other = stored.record;
            let left = chunks_left(&other, unfinished.placed);
            others += u64::from(left) * other.geometry.chunk.0 * u64::from(other.geometry.copies);
        }
        if others == 0 {
            return Ok(());
        }
        let each = volume.geometry.chunk.0 * u64::from(volume.geometry.copies);
        let beside = u32::try_from(others.div_ceil(each)).unwrap_or(u32::MAX);
        match self.places(volume, chunks.saturating_add(beside), now) {
            Err(ControlError::NotEnoughSpace { .. }) => Err(ControlError::Argument {
                field: "size",
                problem: format!(
                    "of {} in {} copies fits, but not beside {} that volumes which are being made or grow are still to get",
                    ByteCount(u64::from(chunks) * volume.geometry.chunk.0),
                    volume.geometry.copies,
                    ByteCount(others)
                ),
                remedy: "name a smaller size, add disks, or wait until \"redhare volume list\" says that those are ready, and look again; of those for which there is no room, \"redhare volume delete\" and \"resize --cancel-growth\" give up what they wait for",
            }),
            other => other.map(|_| ()),
        }
    }

    /// What a step of placing has changed: nothing where there is no room now, or not enough nodes right after a restart, which have yet to
    /// be heard. That is remembered, to be told.
    pub(super) fn unless_no_room(
        &mut self,
        volume: &Volume,
        changed: Result<usize, ControlError>,
    ) -> Result<usize, ControlError> {
        let lack = match changed {
            // What the nodes have that are yet to be heard nobody knows.
            Ok(_) | Err(ControlError::NodesAwaited { .. }) => {
                // One that waits for nothing has none.
                if let Some(unfinished) = self.unfinished.get_mut(&volume.number) {
                    unfinished.unplaced = None;
                }
                return Ok(changed.unwrap_or(0));
            }
            Err(
                lack @ (ControlError::NotEnoughNodes { .. }
                | ControlError::NotEnoughRacks { .. }
                | ControlError::NotEnoughSpace { .. }
                | ControlError::CloneUnplaced { .. }
                | ControlError::Argument { .. }),
            ) => lack,
            Err(other) => return Err(other),
        };
        if let Some(unfinished) = self.unfinished.get_mut(&volume.number) {
            let chunks = chunks_left(volume, unfinished.placed);
            let why = describe(&lack, volume, chunks);
            unfinished.unplaced = Some(Unplaced { chunks, why });
        }
        Ok(0)
    }

    /// The chunks of a volume that is being made or grows for which there is no place, as this master has found.
    pub fn unplaced(&self, number: VolumeNumber) -> Option<&Unplaced> {
        self.unfinished.get(&number)?.unplaced.as_ref()
    }
}
