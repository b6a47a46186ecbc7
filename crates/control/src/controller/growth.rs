//! Growth of a volume that is in use.
//!
//! Stripe groups are appended, so that no block moves. They stand beside the geometry (`Volume::growth`) while their chunks get
//! places and their nodes make the copies, and become part of it in one transaction when all copies are there: before that nobody
//! reads or writes them, so a copy that is missing is new; afterwards it would be lost.

mod cut;

use std::collections::BTreeSet;
use std::ops::Range;

use foundation::{ByteCount, Instant};

use crate::controller::unfinished::Unfinished;
use crate::controller::volumes::{STEP_CHUNKS, VOLUME_CHUNKS_MAX};
use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Geometry, Number, Volume, VolumeState};
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// A volume that grows, as a node has to know it, or says that it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growing {
    /// The volume.
    pub number: VolumeNumber,
    /// Its first new chunk.
    pub from: u32,
    /// Its chunks, the new ones included: tells one growth from the next.
    pub chunks: u32,
}

impl Growing {
    /// That of a volume, if it is growing.
    pub(super) fn of(volume: &Volume) -> Option<Self> {
        (volume.state == VolumeState::Ready && !volume.growth.is_empty()).then(|| Self {
            number: volume.number,
            from: volume.geometry.chunk_count(),
            chunks: volume.grown().chunk_count(),
        })
    }
}

/// What a size was reckoned from that somebody wants a volume to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Based {
    /// The size that the volume was seen to have.
    pub size: ByteCount,
    /// Drawn for each call: tells one that comes again, since its answer was lost, from another one that wants as much. 0 for one that
    /// drew none.
    pub call: u64,
}

/// What somebody wants a volume to have, and on which terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The size, rounded up to whole chunks.
    pub size: ByteCount,
    /// What it was reckoned from, if more was added to a size.
    pub based: Option<Based>,
    /// A growth to more that is under way may be taken back for it. Not said, it is refused: whoever names a size may not know that somebody
    /// else has just asked for more.
    pub cancels_growth: bool,
}

impl Resize {
    /// To that size, whatever the volume has, but for a growth that is under way.
    pub fn to(size: ByteCount) -> Self {
        Self {
            size,
            based: None,
            cancels_growth: false,
        }
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Lets a volume grow to at least `size`. On return the first [`STEP_CHUNKS`] new chunks have places, as far as there is room; the others get theirs
    /// with [`Controller::tick`]s, and the volume its new size when their nodes have reported the copies. Repeating it changes nothing.
    ///
    /// # Errors
    /// The size is below the present one, or there is no room, or the volume is not ready, or grows to another size already.
    pub fn resize_volume(
        &mut self,
        name: &str,
        size: ByteCount,
        now: Instant,
    ) -> Result<Volume, ControlError> {
        self.resize_volume_on(name, Resize::to(size), now)
    }

    /// The same on these terms: one that is to have more than somebody has seen does so only if that is still its size, and a growth that is
    /// under way is cut down only if that is meant.
    ///
    /// # Errors
    /// Also if the volume has another size than the one that was added to, or another call has it grow, or has taken back what this one had it
    /// grow by; if it would take a growth back and may not; and if it may, and so many of the new chunks have places.
    pub fn resize_volume_on(
        &mut self,
        name: &str,
        wanted: Resize,
        now: Instant,
    ) -> Result<Volume, ControlError> {
        let Resize { size, based, .. } = wanted;
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            // First: what is read then of the volume is not older than that.
            let grown_by = self.read::<Number>(&keys::grown_by(number))?;
            let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
                continue;
            };
            let volume = &stored.record;
            if let Some(based) = based
                && check_based(volume, based, grown_by.as_ref().map(|call| call.record.0), size)?
            {
                return Ok(stored.record);
            }
            match self.cut_growth(&stored, wanted)? {
                Some(true) => return self.volume(number),
                Some(false) => continue,
                None => {}
            }
            let growth = match check_size(volume, size)? {
                growth if growth.is_empty() || !volume.growth.is_empty() => return Ok(stored.record),
                growth => growth,
            };
            if !self.planted.is(Bug::GrowsUnderSnapshot) {
                self.check_not_pending(volume, "grow")?;
            }
            if volume.is_flattening() {
                let name = volume.name.clone();
                return Err(ControlError::Flattening { volume: name });
            }
            let added = growth.iter().sum();
            self.check_room(volume, added, now)?;
            let grown = Volume {
                growth,
                ..volume.clone()
            };
            let (key, of_call) = (keys::volume(number), keys::grown_by(number));
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), stored.revision)
                .put(key.clone(), grown.encode(&key));
            match based.map(|based| based.call).filter(|&call| call != 0) {
                Some(call) => drop(transaction.put(of_call.clone(), Number(call).encode(&of_call))),
                None if grown_by.is_some() => drop(transaction.delete(of_call)),
                None => {}
            }
            if self.commit(&transaction)? {
                self.unfinished.insert(number, Unfinished::default());
                self.bring_growth_on(number, now)?;
                return self.volume(number);
            }
        }
        Err(contended())
    }

    pub(super) fn replace_volume(
        &mut self,
        stored: &Stored<Volume>,
        next: &Volume,
    ) -> Result<bool, ControlError> {
        let key = keys::volume(next.number);
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), next.encode(&key));
        self.commit(&transaction)
    }

    /// Brings a growing volume as far as it goes now.
    /// So many chunks have got places.
    pub(super) fn bring_growth_on(
        &mut self,
        number: VolumeNumber,
        now: Instant,
    ) -> Result<usize, ControlError> {
        let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
            return Ok(0);
        };
        let Some(growing) = Growing::of(&stored.record) else {
            return Ok(0);
        };
        // Of this growth: what was reported of an earlier one says nothing of these chunks.
        self.unfinished_of(&stored.record);
        let missing = self.next_unplaced(number, growing.from..growing.chunks)?;
        if let Some(last) = missing.last() {
            let placed = self.commit_places(&stored, &missing, now);
            let changed = placed.map(|placed| if placed { missing.len() } else { 0 });
            let changed = self.unless_no_room(&stored.record, changed)?;
            // Another master was quicker, or the nodes have yet to be heard, or somebody else took the room: decided anew with the next tick.
            if changed > 0 {
                self.note_placed(number, &missing);
                // Nodes are asked once all chunks have places: what one says of a part must not count for all.
                if last + 1 == growing.chunks {
                    self.note_nodes(number, growing.from)?;
                }
            }
            return Ok(changed);
        }
        let unfinished = self.unfinished_of(&stored.record);
        if unfinished.is_some_and(|unfinished| unfinished.nodes.is_none()) {
            self.note_nodes(number, growing.from)?;
        }
        if self.planted.is(Bug::GrowsUnprepared) || self.is_prepared(number, growing.from)? {
            let grown = Volume {
                geometry: stored.record.grown(),
                growth: Vec::new(),
                ..stored.record.clone()
            };
            if self.replace_volume(&stored, &grown)? {
                self.unfinished.remove(&number);
            }
        }
        Ok(0)
    }

    /// These have places now, and all before them had.
    pub(super) fn note_placed(&mut self, number: VolumeNumber, placed: &[u32]) {
        if let Some(last) = placed.last() {
            self.unfinished.entry(number).or_default().placed = last + 1;
        }
    }

    /// The next of these chunks that have no place yet, as many as one step takes; none if all have one. It is an answer for the step that
    /// [`Controller::unfinished_of`] knows: while it lasts no chunk loses its place.
    pub(super) fn next_unplaced(
        &mut self,
        number: VolumeNumber,
        chunks: Range<u32>,
    ) -> Result<Vec<u32>, ControlError> {
        let unfinished = self.unfinished.entry(number).or_default();
        unfinished.placed = unfinished.placed.max(chunks.start);
        while let Some(placed) = self.unfinished.get(&number).map(|known| known.placed)
            && placed < chunks.end
        {
            let end = chunks.end.min(placed.saturating_add(STEP_CHUNKS as u32));
            let missing = self.missing_chunks(number, placed..end)?;
            if !missing.is_empty() {
                return Ok(missing);
            }
            self.unfinished.entry(number).or_default().placed = end;
        }
        Ok(Vec::new())
    }

    /// Which of these chunks have no place yet.
    fn missing_chunks(&self, number: VolumeNumber, chunks: Range<u32>) -> Result<Vec<u32>, ControlError> {
        let mut missing: BTreeSet<u32> = chunks.clone().collect();
        let (first, _) = keys::chunks_of(number, chunks.start);
        let (end, _) = keys::chunks_of(number, chunks.end);
        self.read_range::<Chunk>(first, &end, |key, _| {
            if let Some(id) = keys::parse_chunk(key) {
                missing.remove(&id.index);
            }
        })?;
        Ok(missing.into_iter().collect())
    }

    /// Whether a node has copies of a volume's new chunks, or of a new volume's.
    pub(super) fn concerns(&self, number: VolumeNumber, node: NodeId) -> bool {
        let unfinished = self.unfinished.get(&number);
        unfinished
            .and_then(|unfinished| unfinished.nodes.as_ref())
            .is_some_and(|nodes| nodes.contains(&node))
    }
}

/// Whether the call that comes is the one that the volume grows by, or has grown by last, and comes again since its answer was lost. Refuses
/// to add to a size that is not the one that was added to.
fn check_based(
    volume: &Volume,
    based: Based,
    grown_by: Option<u64>,
    size: ByteCount,
) -> Result<bool, ControlError> {
    let growing = Growing::of(volume);
    let growing_text = match growing {
        Some(_) => format!(" and is growing to {}", volume.grown().size()),
        None => String::new(),
    };
    if volume.state == VolumeState::Ready && grown_by == Some(based.call) {
        // Whoever grew it since, it has got what this call is for.
        if volume.grown().size() >= size {
            return Ok(true);
        }
        return Err(ControlError::GrowthTakenBack {
            volume: volume.name.clone(),
            found: volume.size(),
            growing: growing_text,
            wanted: size,
        });
    }
    if volume.size() == based.size && growing.is_none() {
        return Ok(false);
    }
    Err(ControlError::NotThatSize {
        volume: volume.name.clone(),
        expected: based.size,
        found: volume.size(),
        growing: growing_text,
    })
}

/// The groups to append for `size`; none if it is reached, or on its way.
fn check_size(volume: &Volume, size: ByteCount) -> Result<Vec<u32>, ControlError> {
    let argument = |problem, remedy| {
        Err(ControlError::Argument {
            field: "size",
            problem,
            remedy,
        })
    };
    match volume.state {
        VolumeState::Ready => {}
        VolumeState::Deleting => {
            let name = volume.name.clone();
            return Err(ControlError::VolumeDeleting { name });
        }
        VolumeState::Creating | VolumeState::Preparing => {
            let problem = format!(
                "cannot change yet: volume \"{}\" is still being made",
                volume.name
            );
            return argument(
                problem,
                "wait until \"redhare volume list\" says that it is ready",
            );
        }
    }
    let (present, grown) = (&volume.geometry, volume.grown());
    // One of a release before may have more already.
    let most = VOLUME_CHUNKS_MAX.max(grown.chunk_count());
    let wanted = size.0.div_ceil(present.chunk.0);
    let fitting = u32::try_from(wanted).ok().filter(|&wanted| wanted <= most);
    let Some(wanted) = fitting else {
        let problem = format!(
            "of {size} makes {wanted} chunks of {}, and a volume has at most {VOLUME_CHUNKS_MAX}",
            present.chunk
        );
        return argument(
            problem,
            "name a smaller size, or use another volume with larger chunks",
        );
    };
    if wanted < present.chunk_count() {
        let problem = format!("of {size} is below the {} that the volume has", present.size());
        return argument(
            problem,
            "volumes only grow; make a smaller one and copy what is needed",
        );
    }
    if !volume.growth.is_empty() {
        return match wanted == grown.chunk_count() {
            true => Ok(volume.growth.clone()),
            false => argument(
                format!(
                    "of {size} cannot be had yet: the volume is growing to {}",
                    grown.size()
                ),
                "wait until \"redhare volume list\" shows that size",
            ),
        };
    }
    if wanted == present.chunk_count() {
        return Ok(Vec::new());
    }
    let width = present.group_chunks.iter().copied().max().unwrap_or(1);
    let growth = Geometry::groups_beside(wanted - present.chunk_count(), width, present.group_chunks.len());
    let volume = Volume {
        growth,
        ..volume.clone()
    };
    volume.grown().validate()?;
    Ok(volume.growth)
}

#[cfg(test)]
mod tests;
