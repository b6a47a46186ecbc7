//! Flushes of a whole volume: a client's flush goes to every chunk that its process has written since, as the real client keeps account of
//! it, one after the other. What was acknowledged before it began is durable once all of them have answered.

use super::world::World;
use crate::client::unflushed::{Stamp, Unflushed};
use crate::identity::ChunkIndex;
use crate::planted::Planted;

/// One process, whose clients are its cores.
pub(super) struct Flushes {
    unflushed: Unflushed,
    moment: u64,
    /// When a write of each chunk was acknowledged last, and when the last of the flushes began that covered it.
    acknowledged: Vec<u64>,
    covered: Vec<u64>,
    /// How many had more than one chunk to visit.
    pub(super) of_several: u64,
}

/// A flush under way.
#[derive(Debug)]
pub(super) struct Flush {
    /// The chunks that it has still to visit after the present one.
    left: Vec<usize>,
    /// The chunks of which it promises something.
    pub(super) promises: Vec<usize>,
    stamps: Vec<Stamp>,
    began: u64,
}

impl Flushes {
    pub(super) fn new(chunks: usize, planted: Planted) -> Self {
        Self {
            unflushed: Unflushed::with_planted(chunks as u64, planted),
            moment: 0,
            acknowledged: vec![0; chunks],
            covered: vec![0; chunks],
            of_several: 0,
        }
    }

    /// The volume has one more chunk.
    pub(super) fn grow(&mut self) {
        self.acknowledged.push(0);
        self.covered.push(0);
    }

    fn wrote(&mut self, chunk: usize) {
        self.moment += 1;
        self.acknowledged[chunk] = self.moment;
        self.unflushed.wrote(ChunkIndex(chunk as u32));
    }

    /// The first chunk to visit, if any has to be.
    fn begin(&mut self) -> (Option<usize>, Flush) {
        self.moment += 1;
        let chunks = self.acknowledged.len();
        let (visit, stamps) = self.unflushed.begin(chunks as u64);
        self.of_several += u64::from(visit.len() > 1);
        let mut left: Vec<usize> = visit.iter().map(|chunk| chunk.0 as usize).collect();
        // Not from the account that is to be tested.
        let owed = |chunk: &usize| self.acknowledged[*chunk] > self.covered[*chunk];
        let promises = (0..chunks)
            .filter(|chunk| owed(chunk) || left.contains(chunk))
            .collect();
        let first = left.pop();
        let flush = Flush {
            left,
            promises,
            stamps,
            began: self.moment,
        };
        (first, flush)
    }

    fn ended(&mut self, flush: &Flush) {
        self.unflushed.flushed(&flush.stamps);
        for &chunk in &flush.promises {
            self.covered[chunk] = self.covered[chunk].max(flush.began);
        }
    }
}

impl World {
    /// A write of this chunk is about to be told to be done.
    pub(super) fn note_written(&mut self, chunk: usize) {
        if let Some(flushes) = &mut self.flushes {
            flushes.wrote(chunk);
        }
    }

    /// Where a flush begins that was to go to `chunk`, and what more it has to do; none if there is nothing to flush.
    pub(super) fn begin_flush(&mut self, chunk: usize) -> Option<(usize, Option<Flush>)> {
        let Some(flushes) = &mut self.flushes else {
            return Some((chunk, None));
        };
        let (first, flush) = flushes.begin();
        first.map(|first| (first, Some(flush)))
    }

    /// A chunk has answered; gives the next one to visit.
    pub(super) fn go_on_with_flush(&mut self, flush: &mut Option<Flush>) -> Option<usize> {
        let flush = flush.as_mut()?;
        let next = flush.left.pop();
        if next.is_none()
            && let Some(flushes) = &mut self.flushes
        {
            flushes.ended(flush);
        }
        next
    }
}
