//! Intent marks: which regions of a copy may differ from the other copies after a crash. A
//! region is marked, durably, before its first write, and the mark is taken away only after a
//! flush on every copy that began when the last write there had been settled.

use std::collections::BTreeMap;

use foundation::Epoch;

use crate::identity::{BlockRange, PersistToken, Sequence};
use crate::record::ChunkRecord;

/// What is known of a marked region. Marks of earlier lives have sequence 0.
#[derive(Clone, Copy, Debug)]
struct Mark {
    last_sequence: Sequence,
    written_in: Epoch,
    persist: PersistToken,
}

/// The intent marks of one copy, those included that are not durable yet.
#[derive(Debug)]
pub(crate) struct IntentMap {
    region_blocks: u32,
    marks: BTreeMap<u32, Mark>,
}

impl IntentMap {
    pub(crate) fn new(record: &ChunkRecord) -> Self {
        let marks = record.intent.iter().map(|&region| {
            let mark = Mark {
                last_sequence: Sequence(0),
                written_in: record.written_in.get(&region).copied().unwrap_or_default(),
                persist: PersistToken(0),
            };
            (region, mark)
        });
        Self {
            region_blocks: record.geometry.region_blocks,
            marks: marks.collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The marked regions, ascending.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.marks.keys().copied()
    }

    /// The regions a range touches.
    pub(crate) fn touched(&self, range: BlockRange) -> std::ops::Range<u32> {
        let first = range.start / self.region_blocks;
        match range.count.checked_sub(1) {
            Some(more) => first..(range.start + more) / self.region_blocks + 1,
            None => first..first,
        }
    }

    /// Notes a write in one region; true if a new mark must become durable before it, in which
    /// case [`Self::marked`] is to follow.
    pub(crate) fn note(&mut self, region: u32, sequence: Sequence, epoch: Epoch) -> bool {
        match self.marks.get_mut(&region) {
            Some(mark) => {
                mark.last_sequence = mark.last_sequence.max(sequence);
                std::mem::replace(&mut mark.written_in, epoch) != epoch
            }
            None => {
                let mark = Mark {
                    last_sequence: sequence,
                    written_in: epoch,
                    persist: PersistToken(0),
                };
                self.marks.insert(region, mark);
                true
            }
        }
    }

    /// The change of the record that makes the region's mark durable.
    pub(crate) fn marked(&mut self, region: u32, token: PersistToken) {
        if let Some(mark) = self.marks.get_mut(&region) {
            mark.persist = token;
        }
    }

    /// What must be durable before a write in this region.
    pub(crate) fn persist_token(&self, region: u32) -> PersistToken {
        self.marks
            .get(&region)
            .map_or(PersistToken(0), |mark| mark.persist)
    }

    /// Writes are ordered anew from now on: every mark is of an earlier life.
    pub(crate) fn begin_order(&mut self) {
        for mark in self.marks.values_mut() {
            mark.last_sequence = Sequence(0);
        }
    }

    /// Takes away the marks of regions whose last write is at or before `flushed`.
    pub(crate) fn clear_through(&mut self, flushed: Sequence) -> Vec<u32> {
        let clear = self.marks.iter().filter(|(_, m)| m.last_sequence <= flushed);
        let regions: Vec<u32> = clear.map(|(&region, _)| region).collect();
        for region in &regions {
            self.marks.remove(region);
        }
        regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that joins is written by another order: sequences of the one before would keep its marks for as long as the new one
    /// takes to pass them.
    #[test]
    fn marks_of_an_order_that_has_ended_go_with_the_first_flush() {
        let mut marks = IntentMap {
            region_blocks: 8,
            marks: BTreeMap::new(),
        };
        assert!(marks.note(1, Sequence(100), Epoch(1)));
        marks.begin_order();
        assert!(marks.note(2, Sequence(3), Epoch(2)));
        assert!(marks.note(4, Sequence(9), Epoch(2)));
        assert_eq!(marks.clear_through(Sequence(3)), [1, 2]);
        assert_eq!(marks.regions().collect::<Vec<_>>(), [4]);
    }
}
