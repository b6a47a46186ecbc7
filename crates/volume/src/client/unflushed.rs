//! Which chunks a flush has to visit: those written since a flush that began after the write has ended.
//!
//! Shared by all cores without a lock. Chunks share a fixed number of places (by their index modulo that
//! number), so that the memory is bounded for any volume; a flush may then visit a chunk in vain, never
//! miss one. A place counts writes and says how many of them are known to be durable, so that two flushes
//! at once each do the whole work and one that fails leaves nothing out.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::identity::ChunkIndex;
use crate::planted::{Bug, Planted};

/// The most places: 256 KiB.
const PLACES_MAX: u64 = 16_384;

#[derive(Default)]
struct Place {
    written: AtomicU64,
    durable: AtomicU64,
}

/// See the module.
pub(crate) struct Unflushed {
    places: Vec<Place>,
    planted: Planted,
}

/// A place and how many writes it had counted when a flush began.
#[derive(Debug)]
pub(crate) struct Stamp {
    place: usize,
    written: u64,
}

impl Unflushed {
    /// For a volume that has `chunks` chunks now.
    pub(super) fn new(chunks: u64) -> Self {
        Self::with_planted(chunks, Planted::default())
    }

    pub(crate) fn with_planted(chunks: u64, planted: Planted) -> Self {
        let places = chunks.clamp(1, PLACES_MAX);
        Self {
            places: (0..places).map(|_| Place::default()).collect(),
            planted,
        }
    }

    /// A write of the chunk has been acknowledged; to be called before anyone is told.
    pub(crate) fn wrote(&self, chunk: ChunkIndex) {
        let place = chunk.0 as usize % self.places.len();
        self.places[place].written.fetch_add(1, Ordering::AcqRel);
    }

    /// The chunks that a flush beginning now has to visit, of a volume of `chunks` chunks, and what is
    /// to be handed to [`Unflushed::flushed`] once all of them have been.
    pub(crate) fn begin(&self, chunks: u64) -> (Vec<ChunkIndex>, Vec<Stamp>) {
        let (mut visit, mut stamps) = (Vec::new(), Vec::new());
        for (place, counts) in self.places.iter().enumerate() {
            let written = counts.written.load(Ordering::Acquire);
            if written == counts.durable.load(Ordering::Acquire) {
                continue;
            }
            stamps.push(Stamp { place, written });
            let indices = (place as u64..chunks).step_by(self.places.len());
            visit.extend(indices.map(|index| {
                ChunkIndex(u32::try_from(index).expect("a valid geometry has fewer than 2^32 chunks"))
            }));
        }
        if self.planted.is(Bug::FlushSkipsChunk) && visit.len() > 1 {
            visit.pop();
        }
        (visit, stamps)
    }

    /// Everything counted in these stamps is durable.
    pub(crate) fn flushed(&self, stamps: &[Stamp]) {
        for stamp in stamps {
            self.places[stamp.place]
                .durable
                .fetch_max(stamp.written, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visits(unflushed: &Unflushed, chunks: u64) -> Vec<u32> {
        unflushed.begin(chunks).0.iter().map(|chunk| chunk.0).collect()
    }

    #[test]
    fn a_flush_visits_what_was_written_before_it_began() {
        let unflushed = Unflushed::new(8);
        assert!(visits(&unflushed, 8).is_empty());
        unflushed.wrote(ChunkIndex(3));
        let (first, stamps) = unflushed.begin(8);
        assert_eq!(first, [ChunkIndex(3)]);
        // Another flush at the same time does not rely on the first.
        assert_eq!(visits(&unflushed, 8), [3]);
        unflushed.wrote(ChunkIndex(3));
        unflushed.wrote(ChunkIndex(5));
        unflushed.flushed(&stamps);
        assert_eq!(visits(&unflushed, 8), [3, 5]);
        unflushed.flushed(&unflushed.begin(8).1);
        assert!(visits(&unflushed, 8).is_empty());
    }

    #[test]
    fn chunks_that_share_a_place_are_visited_together() {
        let unflushed = Unflushed::new(2);
        unflushed.wrote(ChunkIndex(4));
        assert_eq!(visits(&unflushed, 5), [0, 2, 4]);
    }
}
