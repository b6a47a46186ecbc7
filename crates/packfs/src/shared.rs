//! How many extents have which bytes: counted from extents, and changed where one more has them or one less. Pure.
//!
//! The record of it is canonical: runs have two users or more, do not reach over the end of a segment, and two that
//! touch inside of one have different counts. So a recount can be compared with it cell by cell.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::CodecError;
use crate::format::extent::Extent;
use crate::format::shared::Shared;

/// Bytes that the same number of extents have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) bytes: Range<u64>,
    pub(crate) users: u64,
}

/// Runs by first byte.
pub(crate) type Record = BTreeMap<u64, Shared>;

/// Counts users; ascending, those of nobody left out, none over the end of a segment.
pub(crate) fn count(extents: impl Iterator<Item = Extent>, segment_bytes: u64) -> Vec<Run> {
    let mut changes: Vec<(u64, bool)> = Vec::new();
    for extent in extents {
        let end = extent.address.saturating_add(u64::from(extent.length));
        changes.push((extent.address, true));
        changes.push((end, false));
    }
    changes.sort_unstable_by_key(|(at, _)| *at);
    let (mut runs, mut from, mut users) = (Vec::new(), 0, 0u64);
    for group in changes.chunk_by(|before, after| before.0 == after.0) {
        let at = group[0].0;
        let begin = group.iter().filter(|(_, begins)| *begins).count() as u64;
        let end = group.len() as u64 - begin;
        if begin == end {
            continue;
        }
        put(&mut runs, from..at, users, segment_bytes);
        // As many end as began before.
        users = users + begin - end;
        from = at;
    }
    runs
}

fn put(runs: &mut Vec<Run>, bytes: Range<u64>, users: u64, segment_bytes: u64) {
    let mut from = bytes.start;
    while users > 0 && from < bytes.end {
        let segment_end = (from / segment_bytes + 1).saturating_mul(segment_bytes);
        let bytes = from..segment_end.min(bytes.end);
        from = bytes.end;
        runs.push(Run { bytes, users });
    }
}

/// The record of these runs.
pub(crate) fn record(runs: &[Run]) -> Record {
    let shared = runs.iter().filter(|run| run.users > 1);
    shared
        .map(|Run { bytes, users }| {
            let length = bytes.end - bytes.start;
            let users = *users;
            (bytes.start, Shared { length, users })
        })
        .collect()
}

/// What becomes of the record and of space.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Runs that are not in the record any more.
    pub(crate) taken: Record,
    /// Those that are new in it, or say something else.
    pub(crate) put: Record,
    /// Bytes that nobody has any more.
    pub(crate) dead: Vec<Range<u64>>,
}

/// What changes where `by` more extents have `range`, of which each byte has a user now; all of it lies in one segment. `around` are the
/// runs of the record that touch it.
///
/// # Errors
/// Where the runs contradict each other, or more users would go than there are.
pub(crate) fn change(
    around: &Record,
    range: &Range<u64>,
    by: i64,
    segment_bytes: u64,
) -> Result<Change, CodecError> {
    let mut pieces: Vec<Run> = Vec::with_capacity(2 * around.len() + 3);
    let mut piece = |bytes: Range<u64>, users: u64, by: i64| -> Result<(), CodecError> {
        let users = users.checked_add_signed(by).ok_or(CodecError::Inconsistent)?;
        if bytes.start < bytes.end {
            pieces.push(Run { bytes, users });
        }
        Ok(())
    };
    let (start, end) = (range.start, range.end);
    let (mut at, mut reached) = (start, 0);
    for (&first, shared) in around {
        let past = first.checked_add(shared.length).ok_or(CodecError::TooLarge)?;
        if first < reached {
            return Err(CodecError::Inconsistent);
        }
        reached = past;
        piece(at..first.min(end), 1, by)?;
        piece(first..past.min(start), shared.users, 0)?;
        piece(first.max(start)..past.min(end), shared.users, by)?;
        piece(first.max(end)..past, shared.users, 0)?;
        at = at.max(past);
    }
    piece(at..end, 1, by)?;
    let mut change = Change::default();
    let mut now: Vec<Run> = Vec::with_capacity(pieces.len());
    for Run { bytes, users } in pieces {
        match (users, now.last_mut()) {
            (0, _) => change.dead.push(bytes),
            (1, _) => {}
            (_, Some(last))
                if last.bytes.end == bytes.start
                    && last.users == users
                    && !bytes.start.is_multiple_of(segment_bytes) =>
            {
                last.bytes.end = bytes.end;
            }
            _ => now.push(Run { bytes, users }),
        }
    }
    let now = record(&now);
    let differs = |other: &Record, at: &u64, shared: &Shared| other.get(at) != Some(shared);
    change.taken = around.clone();
    change.taken.retain(|at, shared| differs(&now, at, shared));
    change.put = now;
    change.put.retain(|at, shared| differs(around, at, shared));
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u64 = 100;

    fn extent(address: u64, length: u32) -> Extent {
        Extent {
            address,
            length,
            checksum: 0,
        }
    }

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let one = (0..3u64, 0..SEGMENT, 1..SEGMENT as u32).prop_map(|(segment, at, length)| {
            let length = length.min((SEGMENT - at) as u32);
            extent(segment * SEGMENT + at, length)
        });
        proptest::collection::vec(one, 1..12)
    }

    fn by_byte(extents: &[Extent]) -> Vec<u64> {
        let mut users = vec![0; 3 * SEGMENT as usize];
        for extent in extents {
            for at in extent.address..extent.end().unwrap() {
                users[at as usize] += 1;
            }
        }
        users
    }

    fn touching(record: &Record, range: &Range<u64>) -> Record {
        let touch = |(at, shared): &(&u64, &Shared)| **at <= range.end && **at + shared.length >= range.start;
        record
            .iter()
            .filter(touch)
            .map(|(at, shared)| (*at, *shared))
            .collect()
    }

    /// Puts a change into a record; gives the bytes that died.
    fn apply(record: &mut Record, extent: &Extent, by: i64) -> Vec<Range<u64>> {
        let range = extent.address..extent.end().unwrap();
        let change = change(&touching(record, &range), &range, by, SEGMENT).unwrap();
        for at in change.taken.keys() {
            assert!(record.remove(at).is_some());
        }
        record.extend(change.put);
        change.dead
    }

    proptest! {
        #[test]
        fn runs_are_what_each_byte_has(extents in extents()) {
            let mut users = vec![0; 3 * SEGMENT as usize];
            let mut reached = 0;
            for run in count(extents.iter().copied(), SEGMENT) {
                prop_assert!(run.users > 0 && run.bytes.start >= reached);
                prop_assert_eq!(run.bytes.start / SEGMENT, (run.bytes.end - 1) / SEGMENT);
                reached = run.bytes.end;
                users[run.bytes.start as usize..run.bytes.end as usize].fill(run.users);
            }
            prop_assert_eq!(users, by_byte(&extents));
        }

        /// What is changed step by step is what a recount comes to, cell by cell.
        #[test]
        fn steps_come_to_what_is_counted(extents in extents(), more in proptest::collection::vec((0..12usize, 0..100u64, 1..100u64), 0..12), order: u64) {
            let mut users: Vec<Extent> = Vec::new();
            let mut record = Record::new();
            // Each has bytes of its own first; parts of them get further users.
            let mut free = by_byte(&[]);
            for one in &extents {
                let range = one.address as usize..one.end().unwrap() as usize;
                if free[range.clone()].iter().all(|taken| *taken == 0) {
                    free[range].fill(1);
                    users.push(*one);
                }
            }
            for (index, at, length) in more {
                let Some(whole) = users.get(index % users.len()).copied() else { continue };
                let at = at % u64::from(whole.length);
                let length = length.min(u64::from(whole.length) - at) as u32;
                let part = extent(whole.address + at, length);
                prop_assert!(apply(&mut record, &part, 1).is_empty());
                users.push(part);
                prop_assert_eq!(&record, &super::record(&count(users.iter().copied(), SEGMENT)));
            }
            let mut random = foundation::Random::from_seed(order);
            while !users.is_empty() {
                let gone = users.swap_remove(random.below(users.len() as u64) as usize);
                let dead = apply(&mut record, &gone, -1);
                let left = by_byte(&users);
                let mut expected = 0;
                for at in gone.address..gone.end().unwrap() {
                    let died = dead.iter().any(|range| range.contains(&at));
                    prop_assert_eq!(died, left[at as usize] == 0, "byte {}", at);
                    expected += u64::from(died);
                }
                prop_assert_eq!(dead.iter().map(|range| range.end - range.start).sum::<u64>(), expected);
                prop_assert_eq!(&record, &super::record(&count(users.iter().copied(), SEGMENT)));
            }
            prop_assert!(record.is_empty());
        }
    }

    #[test]
    fn neighbours_become_one_run_but_not_over_the_end_of_a_segment() {
        let mut record = Record::new();
        for at in [80, 100, 90, 110] {
            apply(&mut record, &extent(at, 10), 1);
        }
        let shared = |length| Shared { length, users: 2 };
        assert_eq!(record, Record::from([(80, shared(20)), (100, shared(20))]));
    }

    #[test]
    fn runs_that_lie_over_each_other_are_refused() {
        let shared = |length| Shared { length, users: 2 };
        let around = Record::from([(0, shared(20)), (10, shared(20))]);
        assert_eq!(
            change(&around, &(5..15), -1, SEGMENT),
            Err(CodecError::Inconsistent)
        );
    }
}
