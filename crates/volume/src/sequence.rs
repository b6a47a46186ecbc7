//! The window of writes a copy knows that are not settled yet: what has been applied, what is
//! under way, up to where everything is settled. It answers which duplicates to ignore and which
//! reads to hold. A window is as long as the queue is deep, so it is searched from end to end.

use std::collections::VecDeque;

use foundation::Epoch;

use crate::identity::{BlockRange, DataToken, IoToken, PersistToken, Sequence};
use crate::message::WriteKind;

/// How far a write has come on this copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Waits until this change of the record is durable.
    Persisting(PersistToken),
    /// The device works on it.
    Writing(IoToken),
    /// The device had no room for it under this number.
    Parked(IoToken),
    /// The device has it.
    Applied,
}

/// A write that is not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) sequence: Sequence,
    pub(crate) epoch: Epoch,
    /// Rounded to whole pages, since smaller writes are made by page.
    pub(crate) covers: BlockRange,
    pub(crate) range: BlockRange,
    pub(crate) kind: WriteKind,
    pub(crate) data: Option<DataToken>,
    /// Give `data` back when the device is done with it.
    pub(crate) owns_data: bool,
    pub(crate) force_unit_access: bool,
    /// A piece of what this copy lacks.
    pub(crate) is_resync: bool,
    pub(crate) progress: Progress,
}

/// What is to be done with a write that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Apply it.
    New,
    /// It is being applied; the answer will follow.
    UnderWay,
    /// It was applied: answer, do nothing.
    Applied,
}

/// The unsettled writes of one copy, in ascending order of sequence.
#[derive(Debug, Default)]
pub(crate) struct Window {
    settled: Sequence,
    highest: Sequence,
    entries: VecDeque<Entry>,
    /// How many of them wait for room.
    parked: usize,
}

impl Window {
    pub(crate) fn settled(&self) -> Sequence {
        self.settled
    }

    /// The greatest sequence ever seen.
    pub(crate) fn highest(&self) -> Sequence {
        self.highest
    }

    fn position(&self, sequence: Sequence) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&sequence, |entry| entry.sequence)
    }

    pub(crate) fn arrival(&self, sequence: Sequence, covers: BlockRange) -> Arrival {
        if sequence <= self.settled {
            return Arrival::Applied;
        }
        match self.position(sequence) {
            Ok(at) if self.entries[at].progress == Progress::Applied => Arrival::Applied,
            Ok(_) => Arrival::UnderWay,
            // Never over a newer write: in one epoch the newer one was ordered after this one
            // had been answered by every copy, so this is a duplicate.
            Err(at) if self.entries.range(at..).any(|e| e.covers.overlaps(covers)) => Arrival::Applied,
            Err(_) => Arrival::New,
        }
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        self.highest = self.highest.max(entry.sequence);
        match self.position(entry.sequence) {
            Ok(_) => unreachable!("a write that is in the window is not applied again"),
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// Whether this very write is in the window.
    pub(crate) fn has(&self, sequence: Sequence) -> bool {
        self.position(sequence).is_ok()
    }

    /// The write that still needs these bytes.
    pub(crate) fn holding(&mut self, data: DataToken) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.data == Some(data))
    }

    /// Forgets the writes that are not with the device, and names the bytes that were theirs to give back.
    pub(crate) fn forget_waiting(&mut self) -> Vec<DataToken> {
        self.forget(|entry| matches!(entry.progress, Progress::Persisting(_) | Progress::Parked(_)))
    }

    /// As [`Window::forget_waiting`], of those for which there was no room.
    pub(crate) fn forget_parked(&mut self) -> Vec<DataToken> {
        self.forget(|entry| matches!(entry.progress, Progress::Parked(_)))
    }

    /// As [`Window::forget_waiting`], of every write.
    pub(crate) fn forget_all(&mut self) -> Vec<DataToken> {
        self.forget(|_| true)
    }

    fn forget(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<DataToken> {
        let forgotten = self.entries.iter().filter(|entry| which(entry));
        let owned = forgotten.filter(|entry| entry.owns_data);
        let data = owned.filter_map(|entry| entry.data).collect();
        self.entries.retain(|entry| !which(entry));
        let parked = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.progress, Progress::Parked(_)));
        self.parked = parked.count();
        data
    }

    /// The first write that may go to the device now.
    pub(crate) fn next_persisted(&mut self, through: PersistToken) -> Option<&mut Entry> {
        self.entries
            .iter_mut()
            .find(|e| matches!(e.progress, Progress::Persisting(token) if token <= through))
    }

    pub(crate) fn by_io(&mut self, io: IoToken) -> Option<&mut Entry> {
        self.entries
            .iter_mut()
            .find(|e| e.progress == Progress::Writing(io))
    }

    /// The device has no room for a write.
    pub(crate) fn park(&mut self, io: IoToken) {
        if let Some(entry) = self.by_io(io) {
            entry.progress = Progress::Parked(io);
            self.parked += 1;
        }
    }

    pub(crate) fn any_parked(&self) -> bool {
        self.parked > 0
    }

    /// Nobody waits any more for the writes for which there was no room, but that they are settled: names the bytes to give back.
    pub(crate) fn give_up_parked(&mut self) -> Vec<DataToken> {
        self.parked = 0;
        let mut owned = Vec::new();
        for entry in &mut self.entries {
            if let Progress::Parked(_) = entry.progress {
                entry.progress = Progress::Applied;
                owned.extend(entry.data.take().filter(|_| entry.owns_data));
            }
        }
        owned
    }

    /// The writes for which there was no room: they go to the device again, under the same numbers.
    pub(crate) fn unpark(&mut self) -> Vec<(IoToken, Entry)> {
        let mut again = Vec::new();
        self.parked = 0;
        for entry in &mut self.entries {
            if let Progress::Parked(io) = entry.progress {
                entry.progress = Progress::Writing(io);
                again.push((io, *entry));
            }
        }
        again
    }

    /// Whether every write known here is settled.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether any write still waits or is with the device.
    pub(crate) fn under_way(&self) -> bool {
        self.entries.iter().any(|e| e.progress != Progress::Applied)
    }

    /// Everything up to `settled` is on every in-sync copy.
    pub(crate) fn settle(&mut self, settled: Sequence) {
        if settled <= self.settled {
            return;
        }
        self.settled = settled;
        self.highest = self.highest.max(settled);
        self.entries
            .retain(|e| e.sequence > settled || e.progress != Progress::Applied);
    }

    /// This write is on every in-sync copy, though an earlier one may not be.
    pub(crate) fn complete(&mut self, sequence: Sequence) {
        if let Ok(at) = self.position(sequence) {
            self.entries.remove(at);
        }
    }

    pub(crate) fn unsettled(&self, covers: BlockRange) -> bool {
        self.entries.iter().any(|e| e.covers.overlaps(covers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: u64, start: u32) -> Entry {
        let range = BlockRange { start, count: 2 };
        Entry {
            sequence: Sequence(sequence),
            epoch: Epoch(1),
            covers: range,
            range,
            kind: WriteKind::Data,
            data: None,
            owns_data: false,
            force_unit_access: false,
            is_resync: false,
            progress: Progress::Persisting(PersistToken(sequence)),
        }
    }

    #[test]
    fn duplicates_are_known_until_and_after_they_settle() {
        let mut window = Window::default();
        for (sequence, start) in [(3, 0), (1, 4), (2, 8)] {
            let new = entry(sequence, start);
            assert_eq!(window.arrival(new.sequence, new.covers), Arrival::New);
            window.insert(new);
            assert_eq!(window.arrival(new.sequence, new.covers), Arrival::UnderWay);
        }
        assert!(window.unsettled(BlockRange { start: 5, count: 1 }));
        assert!(!window.unsettled(BlockRange { start: 2, count: 2 }));
        while let Some(e) = window.next_persisted(PersistToken(2)) {
            e.progress = Progress::Applied;
        }
        assert!(window.under_way());
        window.settle(Sequence(2));
        for sequence in 1..=2 {
            assert_eq!(
                window.arrival(Sequence(sequence), BlockRange { start: 4, count: 1 }),
                Arrival::Applied
            );
        }
        assert!(!window.unsettled(BlockRange { start: 4, count: 6 }));
        window.complete(Sequence(3));
        assert!(!window.under_way());
        assert_eq!((window.settled(), window.highest()), (Sequence(2), Sequence(3)));
    }

    #[test]
    fn an_older_write_never_covers_a_newer_one() {
        let mut window = Window::default();
        window.insert(entry(9, 0));
        let old = BlockRange { start: 1, count: 1 };
        assert_eq!(window.arrival(Sequence(5), old), Arrival::Applied);
        let apart = BlockRange { start: 2, count: 1 };
        assert_eq!(window.arrival(Sequence(5), apart), Arrival::New);
    }
}
