//! When chunks are to be looked at, each once: those first whose time came first, so that however many can only wait, and come
//! again and again, they keep no other one from its turn.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Instant;

use crate::identity::{ChunkId, VolumeNumber};

/// When a chunk is due, and the order in which those were put in that are due at the same time.
type Turn = (Instant, u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Dues {
    turns: BTreeMap<ChunkId, Turn>,
    /// The same by turn.
    order: BTreeSet<(Turn, ChunkId)>,
    next: u64,
}

impl Dues {
    /// A chunk is due at this time, and not when it was to be until now.
    pub(super) fn put(&mut self, id: ChunkId, due: Instant) {
        // Who is put in again for the same time keeps its turn.
        if self.turns.get(&id).is_some_and(|turn| turn.0 == due) {
            return;
        }
        self.remove(id);
        let turn = (due, self.next);
        self.next += 1;
        self.turns.insert(id, turn);
        self.order.insert((turn, id));
    }

    /// A chunk is due at once.
    pub(super) fn hurry(&mut self, id: ChunkId) {
        self.put(id, Instant::default());
    }

    /// All are.
    pub(super) fn hurry_all(&mut self) {
        self.order.clear();
        for (&id, turn) in &mut self.turns {
            turn.0 = Instant::default();
            self.order.insert((*turn, id));
        }
    }

    pub(super) fn remove(&mut self, id: ChunkId) {
        if let Some(turn) = self.turns.remove(&id) {
            self.order.remove(&(turn, id));
        }
    }

    pub(super) fn contains(&self, id: ChunkId) -> bool {
        self.turns.contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.turns.keys().copied()
    }

    /// Whether there is any chunk of a volume.
    pub(super) fn has_any_of(&self, volume: VolumeNumber) -> bool {
        let index = |index| ChunkId { volume, index };
        let mut of_volume = self.turns.range(index(0)..=index(u32::MAX));
        of_volume.next().is_some()
    }

    /// Those that are due now, the longest first.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = ChunkId> {
        let due = self.order.iter().take_while(move |((due, _), _)| *due <= now);
        due.map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> ChunkId {
        ChunkId {
            volume: VolumeNumber(1),
            index,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn who_is_due_for_longest_comes_first_and_who_is_put_in_again_keeps_its_turn() {
        let mut dues = Dues::default();
        dues.put(id(1), at(5));
        dues.put(id(2), at(3));
        dues.put(id(3), at(9));
        let due = |dues: &Dues, now| dues.due(at(now)).map(|id| id.index).collect::<Vec<_>>();
        assert_eq!(due(&dues, 2), []);
        assert_eq!(due(&dues, 8), [2, 1]);
        dues.hurry(id(3));
        dues.hurry(id(1));
        dues.hurry(id(3));
        assert_eq!(due(&dues, 2), [3, 1]);
        dues.put(id(3), at(4));
        assert_eq!(due(&dues, 4), [1, 2, 3]);
        dues.hurry_all();
        assert_eq!(due(&dues, 0), [2, 1, 3]);
        dues.remove(id(1));
        assert_eq!(due(&dues, 0), [2, 3]);
        assert!(dues.has_any_of(VolumeNumber(1)) && !dues.has_any_of(VolumeNumber(2)));
        assert!(dues.contains(id(2)) && !dues.contains(id(1)));
    }
}
