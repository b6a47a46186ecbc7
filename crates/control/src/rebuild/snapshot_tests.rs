//! Which snapshots come back with a store that is made anew, which are only told, and how those are deleted that came back.

use std::time::Duration;

use foundation::Instant;

use super::tests::{cluster, node, registration};
use super::*;
use crate::controller::nodes::{Heartbeat, HeartbeatAnswer};
use crate::model::{Origin, Snapshot, SnapshotState};
use crate::{Controller, MemoryStore, transfer};

const CHUNKS: u64 = 3;
const VOLUME: VolumeNumber = VolumeNumber(1);
/// Of a series of the lost store.
const MONDAY: u64 = 5 << 32 | 9;

fn said(name: &str, created_unix_ms: u64) -> Note {
    Note::Said {
        name: name.to_owned(),
        chunks: CHUNKS as u32,
        created_unix_ms,
    }
}

/// Every copy of a chunk has its part of a snapshot, with what the function says noted beside it.
fn keep(reports: &mut [NodeReport], number: u64, note: impl Fn(NodeId) -> Note) {
    for report in reports {
        let node = report.node;
        let kept = report.copies.iter().map(|copy| SnapshotReport {
            chunk: copy.chunk,
            number: SnapshotNumber(number),
            note: note(node),
        });
        let kept: Vec<_> = kept.collect();
        report.snapshots.extend(kept);
    }
}

fn found(reports: &[NodeReport]) -> Found {
    let mut wishes = Wishes::default();
    wishes.names.insert(VOLUME, "data".to_owned());
    rebuild(reports, &wishes, 5).unwrap()
}

fn filled(found: &Found) -> MemoryStore {
    let store = MemoryStore::new();
    transfer::import(&store, found.image.as_ref().unwrap(), |_| {}).unwrap();
    store
}

struct Masters<'a> {
    control: Controller<&'a MemoryStore>,
    now: Instant,
}

impl<'a> Masters<'a> {
    fn new(store: &'a MemoryStore) -> Self {
        let now = Instant::from_nanos(1);
        let mut control = Controller::open(store, Settings::default(), 4, now).unwrap();
        for number in 1..=4 {
            let again = registration(number, Some(control.cluster()), Incarnation(1));
            control.register(&again, now).unwrap();
        }
        Self { control, now }
    }

    /// A node says which snapshots it has copies of.
    fn beat(&mut self, number: u64, snapshots: &[u64]) -> HeartbeatAnswer {
        let heartbeat = Heartbeat {
            reserves: true,
            doubts: true,
            syncs: None,
            kept: None,
            cluster: self.control.cluster(),
            node: node(number),
            incarnation: Incarnation(2),
            ended_through: Incarnation(1),
            disks: registration(number, None, Incarnation(0)).disks,
            prepared: Vec::new(),
            grown: Vec::new(),
            removed: Vec::new(),
            resyncs: Vec::new(),
            copies: Vec::new(),
            names_copies: false,
            removed_copies: Vec::new(),
            moved_copies: Vec::new(),
            moves_disks: false,
            snapshots: snapshots
                .iter()
                .map(|number| (VOLUME, SnapshotNumber(*number)))
                .collect(),
            flattening: Vec::new(),
        };
        self.control.heartbeat(&heartbeat, self.now).unwrap()
    }

    /// So many seconds, in which these nodes are heard.
    fn run(&mut self, seconds: u64, nodes: &[(u64, &[u64])]) {
        for _ in 0..seconds * 2 {
            self.now = self.now + Duration::from_millis(500);
            for &(number, snapshots) in nodes {
                self.beat(number, snapshots);
            }
            self.control.tick(self.now).unwrap();
        }
    }

    fn states(&self) -> Vec<(String, SnapshotState)> {
        let snapshots = self.control.snapshots(VOLUME).unwrap().into_iter();
        snapshots
            .map(|snapshot| (snapshot.name, snapshot.state))
            .collect()
    }
}

#[test]
fn what_is_noted_comes_back_and_is_deleted_everywhere() {
    let (_, mut reports) = cluster(CHUNKS);
    // Not all nodes came to note it.
    keep(&mut reports, MONDAY, |of| match of == node(2) {
        true => Note::Missing,
        false => said("monday", 77),
    });
    let found = found(&reports);
    let expected = SnapshotFound {
        volume: VOLUME,
        number: SnapshotNumber(MONDAY),
        name: Some("monday".to_owned()),
        created_unix_ms: 77,
        chunks: 3,
        found_chunks: 3,
        was_named: None,
        problem: None,
    };
    assert_eq!(found.snapshots, [expected]);
    let store = filled(&found);
    let mut masters = Masters::new(&store);
    let snapshot = masters.control.snapshots(VOLUME).unwrap().remove(0);
    assert_eq!(
        (
            &snapshot.name[..],
            snapshot.chunks,
            snapshot.created_unix_ms,
            snapshot.state
        ),
        ("monday", 3, 77, SnapshotState::Complete)
    );
    let all: Vec<(u64, &[u64])> = (1..=4).map(|number| (number, &[MONDAY][..])).collect();
    masters.run(3, &all);
    assert_eq!(masters.control.complete_snapshots().1.len(), 1);
    assert!(masters.beat(1, &[MONDAY]).remove_snapshots.is_empty());
    // Another one is of a series that no disk names.
    let (_, next) = masters.control.begin_snapshot("data", "tuesday", 78).unwrap();
    assert_ne!(next.number.0 >> 32, MONDAY >> 32);
    masters.control.complete_snapshot(VOLUME, next.number).unwrap();
    let refused = masters.control.begin_snapshot("data", "monday", 79).unwrap_err();
    assert!(refused.to_string().contains("has a snapshot \"monday\" already"));

    masters.control.delete_snapshot("data", "monday").unwrap();
    assert_eq!(
        masters.beat(1, &[MONDAY]).remove_snapshots,
        [(VOLUME, SnapshotNumber(MONDAY))]
    );
    // One node is away: it would not be told to delete it if there were no record any more, since its number is of the lost store.
    masters.run(60, &[(1, &[]), (2, &[]), (3, &[])]);
    assert_eq!(
        masters.states()[0],
        ("monday".to_owned(), SnapshotState::Deleting)
    );
    assert_eq!(
        masters.beat(4, &[MONDAY]).remove_snapshots,
        [(VOLUME, SnapshotNumber(MONDAY))]
    );
    masters.run(3, &[(1, &[]), (2, &[]), (3, &[]), (4, &[])]);
    assert_eq!(
        masters.states(),
        [("tuesday".to_owned(), SnapshotState::Complete)]
    );
    // One of this store goes without those that are away.
    masters.control.delete_snapshot("data", "tuesday").unwrap();
    masters.run(60, &[(1, &[]), (2, &[]), (3, &[])]);
    assert!(masters.states().is_empty());
}

#[test]
fn what_cannot_be_known_is_told_and_its_copies_are_left_alone() {
    let (_, mut reports) = cluster(CHUNKS);
    keep(&mut reports, 1, |_| Note::Missing);
    keep(&mut reports, 2, |_| {
        Note::Unreadable("it has version 9".to_owned())
    });
    keep(&mut reports, 3, |of| {
        said(if of == node(2) { "a" } else { "b" }, 3)
    });
    keep(&mut reports, 4, |_| Note::Said {
        name: "more".to_owned(),
        chunks: CHUNKS as u32 + 1,
        created_unix_ms: 4,
    });
    keep(&mut reports, 5, |_| Note::Said {
        name: "fewer".to_owned(),
        chunks: CHUNKS as u32 - 1,
        created_unix_ms: 5,
    });
    keep(&mut reports, 6, |_| said("../etc", 6));
    let mut stray = reports[0].snapshots[0].clone();
    (stray.chunk.volume, stray.note) = (VolumeNumber(8), said("stray", 7));
    reports[0].snapshots.push(stray);
    let all = found(&reports);
    let problems: Vec<&str> = all
        .snapshots
        .iter()
        .map(|snapshot| snapshot.problem.as_deref().unwrap_or("none"))
        .collect();
    let expected = [
        "nothing is noted beside its copies",
        "it has version 9",
        "contradict each other",
        "it should have 4 chunks",
        "copies are of chunks up to 2",
        "is no name",
        "no copy of its volume was found",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.contains(expected), "{problem}");
    }
    assert_eq!(all.snapshots[0].found_chunks, 3);
    // They stand in nobody's way, and no master has them deleted.
    let store = filled(&all);
    let mut masters = Masters::new(&store);
    assert!(masters.states().is_empty());
    let told = masters.beat(1, &[1, 2, 3, 4, 5, 6]);
    assert!(told.remove_snapshots.is_empty());
    // Of a volume that is given up nothing is told.
    let mut wishes = Wishes::default();
    wishes.without.extend([VOLUME, VolumeNumber(8)]);
    assert!(rebuild(&reports, &wishes, 5).unwrap().snapshots.is_empty());
}

#[test]
fn chunks_without_a_copy_are_counted_and_names_are_given_once() {
    let (_, mut reports) = cluster(CHUNKS);
    keep(&mut reports, MONDAY, |_| said("monday", 77));
    keep(&mut reports, MONDAY + 1, |_| said("monday", 78));
    for report in &mut reports {
        report
            .snapshots
            .retain(|kept| kept.number != SnapshotNumber(MONDAY) || kept.chunk.index != 1);
    }
    let found = found(&reports);
    let names: Vec<_> = found
        .snapshots
        .iter()
        .map(|snapshot| {
            (
                snapshot.name.as_deref(),
                snapshot.was_named.as_deref(),
                snapshot.found_chunks,
            )
        })
        .collect();
    let other = format!("deleted-{MONDAY}");
    assert_eq!(
        names,
        [(Some(&other[..]), Some("monday"), 2), (Some("monday"), None, 3)]
    );
    let masters = filled(&found);
    let masters = Masters::new(&masters);
    let complete = SnapshotState::Complete;
    assert_eq!(
        masters.states(),
        [(other, complete), ("monday".to_owned(), complete)]
    );
}

#[test]
fn a_clone_knows_again_what_it_is_a_clone_of() {
    let (_, mut reports) = cluster(CHUNKS);
    keep(&mut reports, MONDAY, |_| said("monday", 77));
    let origin = Some((VOLUME, SnapshotNumber(MONDAY)));
    for report in &mut reports {
        let clones = report.copies.clone().into_iter().map(|mut copy| {
            copy.chunk.volume = VolumeNumber(2);
            // One has been written over, and shows nothing any more.
            copy.origin = origin.filter(|_| report.node != node(3));
            copy
        });
        report.copies.extend(clones.collect::<Vec<_>>());
    }
    let store = filled(&found(&reports));
    let mut masters = Masters::new(&store);
    let origin = |control: &Controller<&MemoryStore>| control.volume(VolumeNumber(2)).unwrap().origin;
    assert_eq!(
        origin(&masters.control),
        Some(Origin {
            volume: VOLUME,
            snapshot: SnapshotNumber(MONDAY),
            flattening: false
        })
    );
    assert_eq!(masters.control.volume(VOLUME).unwrap().origin, None);
    let refused = masters.control.delete_snapshot("data", "monday").unwrap_err();
    assert!(refused.to_string().contains("recovered-2"), "{refused}");
    let features = |store: &MemoryStore| {
        let image = transfer::export(store).unwrap();
        let (key, value) = image
            .records
            .iter()
            .find(|(key, _)| key == keys::CLUSTER)
            .unwrap();
        ClusterRecord::decode(key, value).unwrap().features
    };
    drop(masters);
    assert_eq!(features(&store), FEATURE_CLONES);
    // Of one that does not come back it is an ordinary volume.
    for kept in reports.iter_mut().flat_map(|report| &mut report.snapshots) {
        kept.note = Note::Missing;
    }
    let store = filled(&found(&reports));
    assert_eq!(origin(&Masters::new(&store).control), None);
    assert_eq!(features(&store), 0);
}

#[test]
fn a_backup_says_what_was_complete() {
    let (_, mut reports) = cluster(CHUNKS);
    keep(&mut reports, MONDAY, |_| Note::Missing);
    keep(&mut reports, MONDAY + 1, |_| Note::Missing);
    keep(&mut reports, MONDAY + 2, |_| said("wednesday", 79));
    let mut backup = found(&reports).image.unwrap();
    for (number, name, state) in [
        (MONDAY, "monday", SnapshotState::Complete),
        (MONDAY + 1, "tuesday", SnapshotState::Pending),
        (MONDAY + 2, "other", SnapshotState::Complete),
    ] {
        let record = Snapshot {
            volume: VOLUME,
            number: SnapshotNumber(number),
            name: name.to_owned(),
            state,
            chunks: 3,
            created_unix_ms: 70,
        };
        let key = keys::snapshot(VOLUME, record.number);
        let value = record.encode(&key);
        backup.records.push((key, value));
    }
    let wishes = Wishes {
        backup: Some(backup),
        ..Wishes::default()
    };
    let found = rebuild(&reports, &wishes, 5).unwrap();
    let names: Vec<_> = found
        .snapshots
        .iter()
        .map(|snapshot| snapshot.name.as_deref())
        .collect();
    assert_eq!(names, [Some("monday"), None, Some("wednesday")]);
}
