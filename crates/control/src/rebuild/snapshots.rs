//! The records of snapshots, made anew from the notes beside their copies (`docs/decisions/0099`). A note is written only once the
//! masters have said that the snapshot is complete; what has none is told and left as it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::controller::snapshots::{first_number, series_of};
use crate::controller::volumes::check_name;
use crate::identity::{ChunkId, SnapshotNumber, VolumeNumber};
use crate::keys;
use crate::model::{Number, Origin, Snapshot, SnapshotState, Volume};
use crate::rebuild::{Maker, RebuildError, Records, VolumeFound, put};
use crate::record::Record;
use crate::transfer::TransferError;

/// A snapshot of the lost store, by volume and number.
pub(super) type Key = (VolumeNumber, SnapshotNumber);

/// A copy of a chunk's part in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// The chunk.
    pub chunk: ChunkId,
    /// The snapshot's number.
    pub number: SnapshotNumber,
    /// What is noted beside it.
    pub note: Note,
}

/// What is noted beside a copy of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// Nothing: its node did not know that the snapshot was complete, or was of a release that noted nothing.
    Missing,
    /// Something that cannot be read; why.
    Unreadable(String),
    /// What the masters said.
    Said {
        /// The snapshot's name.
        name: String,
        /// The chunks that the volume had.
        chunks: u32,
        /// When it was begun, in milliseconds of Unix time.
        created_unix_ms: u64,
    },
}

/// What was found of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFound {
    /// Its volume.
    pub volume: VolumeNumber,
    /// Its number.
    pub number: SnapshotNumber,
    /// Its name from now on; none if no copy says it.
    pub name: Option<String>,
    /// When it was begun, in milliseconds of Unix time; 0 if no copy says it.
    pub created_unix_ms: u64,
    /// The chunks it has; 0 if no copy says it.
    pub chunks: u32,
    /// Of how many of them a copy was found.
    pub found_chunks: u32,
    /// It is called otherwise from now on, since a younger one has its name: as it was called.
    pub was_named: Option<String>,
    /// Why there is no record of it, if there is none: its copies stay where they are, and nobody lists or deletes them.
    pub problem: Option<String>,
}

/// What all copies of a snapshot say.
#[derive(Default)]
struct Said {
    chunks: BTreeSet<u32>,
    notes: BTreeSet<Note>,
}

impl Maker<'_> {
    /// Makes records of the snapshots of these volumes.
    pub(super) fn snapshots(&mut self, volumes: &[VolumeFound], records: &mut Records) -> Vec<SnapshotFound> {
        let mut said: BTreeMap<Key, Said> = BTreeMap::new();
        for report in self.reports.iter().flat_map(|report| &report.snapshots) {
            let said = said.entry((report.chunk.volume, report.number)).or_default();
            said.chunks.insert(report.chunk.index);
            said.notes.insert(report.note.clone());
        }
        said.retain(|(volume, _), _| !self.wishes.without.contains(volume));
        let old = self.old_snapshots();
        let series: BTreeSet<u64> = said.keys().map(|(_, number)| series_of(number.0)).collect();
        let mut found: Vec<SnapshotFound> = said
            .iter()
            .map(|(key, said)| {
                let volume = volumes.iter().find(|volume| volume.number == key.0);
                snapshot(*key, said, old.get(key), volume)
            })
            .collect();
        give_names(&mut found);
        for snapshot in found.iter().filter(|snapshot| snapshot.problem.is_none()) {
            let record = Snapshot {
                volume: snapshot.volume,
                number: snapshot.number,
                name: snapshot.name.clone().unwrap_or_default(),
                state: SnapshotState::Complete,
                chunks: snapshot.chunks,
                created_unix_ms: snapshot.created_unix_ms,
            };
            put(records, keys::snapshot(record.volume, record.number), &record);
        }
        if !series.is_empty() {
            // Of a series that no disk names: of its own a store without a record has deleted.
            let mut next = first_number(self.random.next_u64());
            while series.contains(&series_of(next)) {
                next = first_number(self.random.next_u64());
            }
            put(records, keys::NEXT_SNAPSHOT.to_vec(), &Number(next));
        }
        found
    }

    /// Those that were complete when a backup was taken.
    fn old_snapshots(&self) -> BTreeMap<Key, Note> {
        let records = self.wishes.backup.iter().flat_map(|backup| &backup.records);
        let records = records.filter(|(key, _)| key.starts_with(keys::SNAPSHOTS));
        let records = records.filter_map(|(key, value)| Snapshot::decode(key, value).ok());
        let complete = records.filter(|record| record.state == SnapshotState::Complete);
        let note = |record: Snapshot| Note::Said {
            name: record.name,
            chunks: record.chunks,
            created_unix_ms: record.created_unix_ms,
        };
        complete
            .map(|record| ((record.volume, record.number), note(record)))
            .collect()
    }

    /// Says of which snapshots volumes are clones: those that came back. Whether there is any.
    pub(super) fn origins(
        &self,
        volumes: &[VolumeFound],
        snapshots: &[SnapshotFound],
        records: &mut Records,
    ) -> Result<bool, RebuildError> {
        let mut any = false;
        for number in volumes.iter().map(|volume| volume.number) {
            let copies = self.copies_of(number).into_iter();
            let origins: BTreeSet<Key> = copies.filter_map(|(_, copy)| copy.origin).collect();
            let is_back = |key: &&Key| {
                let mut snapshots = snapshots.iter().filter(|snapshot| snapshot.problem.is_none());
                snapshots.any(|snapshot| (snapshot.volume, snapshot.number) == **key)
            };
            let key = keys::volume(number);
            let (Some(&(volume, snapshot)), 1) = (origins.iter().find(is_back), origins.len()) else {
                continue;
            };
            let Some(value) = records.get(&key) else { continue };
            let clone = Volume {
                origin: Some(Origin {
                    volume,
                    snapshot,
                    flattening: false,
                }),
                ..Volume::decode(&key, value).map_err(TransferError::from)?
            };
            put(records, key, &clone);
            any = true;
        }
        Ok(any)
    }
}

/// What the copies of one snapshot say of it; if none says anything, what a backup does.
fn snapshot(
    (volume, number): Key,
    said: &Said,
    old: Option<&Note>,
    found: Option<&VolumeFound>,
) -> SnapshotFound {
    let mut snapshot = SnapshotFound {
        volume,
        number,
        name: None,
        created_unix_ms: 0,
        chunks: 0,
        found_chunks: u32::try_from(said.chunks.len()).unwrap_or(u32::MAX),
        was_named: None,
        problem: None,
    };
    let is_said = said.notes.iter().any(|note| matches!(note, Note::Said { .. }));
    let notes = said.notes.iter().chain(old.filter(|_| !is_said));
    let mut notes = notes.filter_map(|note| match note {
        Note::Said {
            name,
            chunks,
            created_unix_ms,
        } => Some((name, *chunks, *created_unix_ms)),
        Note::Missing | Note::Unreadable(_) => None,
    });
    let unreadable = said.notes.iter().find_map(|note| match note {
        Note::Unreadable(why) => Some(why),
        Note::Missing | Note::Said { .. } => None,
    });
    let Some((name, chunks, created_unix_ms)) = notes.next() else {
        snapshot.problem = Some(match unreadable {
            Some(why) => format!("what is noted beside its copies cannot be read: {why}"),
            None => "nothing is noted beside its copies: it was never complete, or its nodes were of a release that noted nothing"
                .to_owned(),
        });
        return snapshot;
    };
    snapshot.name = Some(name.clone());
    (snapshot.chunks, snapshot.created_unix_ms) = (chunks, created_unix_ms);
    let last = said.chunks.last().copied().unwrap_or(0);
    snapshot.problem = match found {
        _ if notes.next().is_some() => Some("its copies contradict each other about it".to_owned()),
        _ if check_name(name).is_err() => Some("what it is called is no name".to_owned()),
        None => Some("no copy of its volume was found".to_owned()),
        Some(found) if chunks == 0 || chunks > found.chunks || last >= chunks => Some(format!(
            "it should have {chunks} chunks, its copies are of chunks up to {last}, and its volume has {}",
            found.chunks
        )),
        Some(_) => None,
    };
    snapshot
}

/// Of those of a volume that are called the same, all but the last were being deleted when the later one was made, since names are
/// given once. They come back by other names.
fn give_names(found: &mut [SnapshotFound]) {
    let mut taken: BTreeSet<(VolumeNumber, String)> = BTreeSet::new();
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by_key(|&index| {
        let snapshot = &found[index];
        (snapshot.created_unix_ms, snapshot.number)
    });
    let mut renamed = Vec::new();
    for index in order.into_iter().rev() {
        let snapshot = &found[index];
        let Some(name) = snapshot.name.clone().filter(|_| snapshot.problem.is_none()) else {
            continue;
        };
        if !taken.insert((snapshot.volume, name)) {
            renamed.push(index);
        }
    }
    for index in renamed {
        let snapshot = &mut found[index];
        let name = format!("deleted-{}", snapshot.number);
        if taken.insert((snapshot.volume, name.clone())) {
            snapshot.was_named = snapshot.name.replace(name);
        } else {
            snapshot.problem = Some(format!("two others are called as it was, and \"{name}\""));
        }
    }
}
