//! Taking a growth back, as far as nobody has heard of it.
//!
//! A chunk that has got its place once keeps it: nodes have heard of its first epoch. Given another place later, in a first epoch again, it
//! would have two contents of one epoch (`docs/decisions/0140`). Of chunks without places nobody knows.

use foundation::ByteCount;

use super::{Growing, Resize};
use crate::controller::unfinished::Unfinished;
use crate::controller::{Controller, Stored};
use crate::error::ControlError;
use crate::identity::ChunkId;
use crate::keys;
use crate::model::{Geometry, Volume};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

impl<S: MetadataStore> Controller<S> {
    /// Lets a growth end with fewer chunks, or not begin. None if that is not what this size means; false if another master was quicker.
    ///
    /// # Errors
    /// It is not said to be meant, or more chunks have places already.
    pub(super) fn cut_growth(
        &mut self,
        stored: &Stored<Volume>,
        wanted: Resize,
    ) -> Result<Option<bool>, ControlError> {
        let volume = &stored.record;
        let Some(growing) = Growing::of(volume) else {
            return Ok(None);
        };
        let chunk = volume.geometry.chunk.0;
        let Resize {
            size, cancels_growth, ..
        } = wanted;
        let wanted = u32::try_from(size.0.div_ceil(chunk)).ok();
        let Some(wanted) = wanted.filter(|wanted| (growing.from..growing.chunks).contains(wanted)) else {
            return Ok(None);
        };
        self.unfinished_of(volume);
        let missing = self.next_unplaced(growing.number, growing.from..growing.chunks)?;
        let placed = missing.first().copied().unwrap_or(growing.chunks);
        let sized = |chunks: u32| ByteCount(u64::from(chunks) * chunk);
        // First: one that cannot be taken back so far is no matter of saying that it is meant.
        if wanted < placed {
            return Err(ControlError::GrowthPlaced {
                volume: volume.name.clone(),
                wanted: sized(wanted),
                grown: sized(growing.chunks),
                placed: placed - growing.from,
                new: growing.chunks - growing.from,
                least: sized(placed),
            });
        }
        if !cancels_growth {
            return Err(ControlError::GrowthUnderWay {
                volume: volume.name.clone(),
                wanted: sized(wanted),
                size: sized(growing.from),
                grown: sized(growing.chunks),
                placed: placed - growing.from,
                new: growing.chunks - growing.from,
            });
        }
        let width = volume.geometry.group_chunks.iter().copied().max().unwrap_or(1);
        let groups = volume.geometry.group_chunks.len();
        let cut = Volume {
            growth: match wanted - growing.from {
                0 => Vec::new(),
                more => Geometry::groups_beside(more, width, groups),
            },
            ..volume.clone()
        };
        cut.grown().validate()?;
        // Chunks get their places in order: if this one has none, none behind it has. And whoever places more compares the volume's record.
        let (key, beyond) = (keys::volume(growing.number), wanted);
        let first = ChunkId {
            volume: growing.number,
            index: beyond,
        };
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), stored.revision)
            .compare(keys::chunk(first), 0)
            .put(key.clone(), cut.encode(&key));
        if !self.commit(&transaction)? {
            return Ok(Some(false));
        }
        match cut.growth.is_empty() {
            true => drop(self.unfinished.remove(&growing.number)),
            false => drop(self.unfinished.insert(growing.number, Unfinished::default())),
        }
        Ok(Some(true))
    }
}
