//! What the masters make of what nodes report of their disks: one that is out of service loses its copies to others until it is
//! restored, and one that is slow beside its peers is known, in virtual time.

use std::time::Duration;

use control::{
    Controller, CreateVolume, Disk, DiskId, DiskReport, DiskSample, DiskState, DisksNoted, Heartbeat,
    Incarnation, MemoryStore, NodeId, Registration, Settings, Uuid, VolumeState,
};
use foundation::{ByteCount, Instant};

type Master<'a> = Controller<&'a MemoryStore>;

const NODES: u128 = 4;

fn at(ms: u64) -> Instant {
    Instant::from_nanos((1000 + ms) * 1_000_000)
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

fn disk(number: u128) -> DiskId {
    DiskId(Uuid(number + 100))
}

fn disks(number: u128) -> Vec<Disk> {
    vec![Disk {
        id: disk(number),
        capacity: ByteCount::TIB,
        used: ByteCount(0),
        held: None,
    }]
}

fn beat(master: &mut Master<'_>, number: u128, now: Instant) {
    let volumes = master.volumes().unwrap();
    let heartbeat = Heartbeat {
        incarnation: Incarnation(1),
        disks: disks(number),
        prepared: volumes.iter().map(|volume| volume.number).collect(),
        ..crate::silent(master.cluster(), node(number))
    };
    master.heartbeat(&heartbeat, now).unwrap();
}

/// Asks for the number of a node's next life.
fn registration(number: u128) -> Registration {
    Registration {
        cluster: None,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(0),
        disks: disks(number),
    }
}

fn started(store: &MemoryStore) -> Master<'_> {
    let mut master = Controller::open(store, Settings::default(), 1, at(0)).unwrap();
    for number in 1..=NODES {
        master.register(&registration(number), at(0)).unwrap();
    }
    let mut request = CreateVolume::new("data", ByteCount::GIB);
    request.copies = 2;
    master.create_volume(&request, at(0)).unwrap();
    for number in 1..=NODES {
        beat(&mut master, number, at(1));
    }
    master.tick(at(1)).unwrap();
    assert_eq!(master.volume_named("data").unwrap().state, VolumeState::Ready);
    master
}

fn report(number: u128, state: DiskState) -> DiskReport {
    DiskReport {
        id: disk(number),
        state,
        why: "because".to_owned(),
        ..DiskReport::default()
    }
}

fn sample(number: u128, latency: Duration) -> DiskSample {
    DiskSample {
        node: node(number),
        disk: disk(number),
        at_disk: [latency; 2],
        answer: [latency; 2],
        samples: 1,
        missed: [0; 2],
    }
}

/// The disks that a node has to put back in service.
fn restored(noted: &DisksNoted) -> Vec<DiskId> {
    noted.restore.iter().map(|(disk, _)| *disk).collect()
}

/// The state that a disk is shown in, and whether it is drained.
fn shown(master: &Master<'_>, number: u128, now: Instant) -> (Option<DiskState>, bool) {
    let status = master.status(now).unwrap();
    let of_node = status
        .nodes
        .iter()
        .find(|status| status.view.id == node(number))
        .unwrap();
    let health = &of_node.health[0];
    (
        health.report.as_ref().map(|report| report.state),
        health.is_drained,
    )
}

#[test]
fn a_disk_out_of_service_is_drained_until_it_is_restored_and_another_master_knows() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let ok = master
        .note_disks(node(2), vec![report(2, DiskState::Ok)], Vec::new(), at(2))
        .unwrap();
    assert_eq!(ok, control::DisksNoted::default());
    assert_eq!(shown(&master, 2, at(2)), (Some(DiskState::Ok), false));

    let out = || vec![report(2, DiskState::OutOfService)];
    let noted = master.note_disks(node(2), out(), Vec::new(), at(3)).unwrap();
    assert_eq!(noted.drained, [(disk(2), "because".to_owned())]);
    let noted = master.note_disks(node(2), out(), Vec::new(), at(4)).unwrap();
    assert!(
        noted.drained.is_empty() && noted.restore.is_empty(),
        "once is enough"
    );
    assert_eq!(shown(&master, 2, at(4)), (Some(DiskState::OutOfService), true));
    // A volume that is made now keeps away from it.
    let mut request = CreateVolume::new("later", ByteCount::GIB);
    request.copies = 3;
    let volume = master.create_volume(&request, at(4)).unwrap();
    master.tick(at(4)).unwrap();
    let (_, chunks) = master.map(volume.number, 0, 10).unwrap();
    assert!(!chunks.is_empty());
    assert!(chunks.iter().all(|(_, chunk)| !chunk.has_copy_on(node(2))));
    // A disk that nobody knows is not drained, and a node that was not heard says nothing.
    let unknown = vec![report(9, DiskState::OutOfService)];
    assert!(
        master
            .note_disks(node(2), unknown, Vec::new(), at(4))
            .unwrap()
            .drained
            .is_empty()
    );
    assert!(
        master
            .note_disks(node(9), out(), Vec::new(), at(4))
            .unwrap()
            .drained
            .is_empty()
    );

    // Another master finds the drain in the store, and hears the rest again.
    drop(master);
    let mut master = Controller::open(&store, Settings::default(), 2, at(5)).unwrap();
    assert_eq!(shown(&master, 2, at(5)), (None, true));
    beat(&mut master, 2, at(6));
    master.restore_disk(node(2), disk(2)).unwrap();
    assert!(!shown(&master, 2, at(6)).1);
    for ms in [7, 8] {
        let noted = master.note_disks(node(2), out(), Vec::new(), at(ms)).unwrap();
        assert_eq!((restored(&noted), noted.drained.len()), (vec![disk(2)], 0));
    }
    master
        .note_disks(node(2), vec![report(2, DiskState::Ok)], Vec::new(), at(9))
        .unwrap();
    // From now on it may be lost again.
    assert_eq!(
        master
            .note_disks(node(2), out(), Vec::new(), at(10))
            .unwrap()
            .drained
            .len(),
        1
    );
    assert!(
        master.restore_disk(node(2), disk(3)).is_err(),
        "the disk is another node's"
    );
}

#[test]
fn that_a_disk_is_to_be_put_back_in_service_is_known_to_the_next_master() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let out = || vec![report(2, DiskState::OutOfService)];
    master.note_disks(node(2), out(), Vec::new(), at(2)).unwrap();
    master.restore_disk(node(2), disk(2)).unwrap();
    // Another one leads before the node was told.
    let next = |seed, ms| {
        let mut master = Controller::open(&store, Settings::default(), seed, at(ms)).unwrap();
        (1..=NODES).for_each(|number| beat(&mut master, number, at(ms)));
        master
    };
    let mut master = next(2, 5);
    let noted = master.note_disks(node(2), out(), Vec::new(), at(6)).unwrap();
    assert_eq!((restored(&noted), noted.drained.len()), (vec![disk(2)], 0));
    // Once it is in service the wish is over, for every master.
    let ok = vec![report(2, DiskState::Ok)];
    master.note_disks(node(2), ok, Vec::new(), at(7)).unwrap();
    let mut master = next(3, 8);
    let noted = master.note_disks(node(2), out(), Vec::new(), at(9)).unwrap();
    assert_eq!((restored(&noted).len(), noted.drained.len()), (0, 1));
    // So it is when somebody has it drained.
    master.restore_disk(node(2), disk(2)).unwrap();
    master.drain(node(2), Some(disk(2)), at(9)).unwrap();
    let noted = master.note_disks(node(2), out(), Vec::new(), at(9)).unwrap();
    assert_eq!((restored(&noted).len(), noted.drained.len()), (0, 0));
    master.undrain(node(2), Some(disk(2))).unwrap();
    let noted = next(4, 10)
        .note_disks(node(2), out(), Vec::new(), at(11))
        .unwrap();
    assert_eq!((restored(&noted).len(), noted.drained.len()), (0, 1));
}

#[test]
fn a_disk_that_is_no_better_is_tried_once_for_each_order() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let out = || vec![report(2, DiskState::OutOfService)];
    master.note_disks(node(2), out(), Vec::new(), at(2)).unwrap();
    for attempt in 0..2 {
        master.restore_disk(node(2), disk(2)).unwrap();
        let noted = master.note_disks(node(2), out(), Vec::new(), at(3)).unwrap();
        assert_eq!(
            (restored(&noted), noted.drained.len()),
            (vec![disk(2)], 0),
            "{attempt}"
        );
        // The node ends its target for that, and asks for the number of another life.
        master.register(&registration(2), at(4)).unwrap();
        let noted = master.note_disks(node(2), out(), Vec::new(), at(5)).unwrap();
        assert_eq!((restored(&noted).len(), noted.drained.len()), (0, 1), "{attempt}");
    }
}

#[test]
fn a_wish_holds_over_lives_of_its_node_until_that_has_tried() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let out = |tried| {
        let report = report(2, DiskState::OutOfService);
        vec![DiskReport {
            tried: Some(tried),
            ..report
        }]
    };
    let told = |master: &mut Master<'_>, tried, ms| {
        let noted = master
            .note_disks(node(2), out(tried), Vec::new(), at(ms))
            .unwrap();
        (noted.restore, noted.drained.len())
    };
    told(&mut master, 0, 2);
    master.restore_disk(node(2), disk(2)).unwrap();
    let (wished, drained) = told(&mut master, 0, 3);
    assert_eq!((wished.len(), drained), (1, 0));
    let wish = wished[0].1;
    assert!(wish > 1);
    // It waits for the disk, which something else holds, and its target begins another life, under this master or another one.
    for (seed, ms) in [(2, 10), (3, 20)] {
        master.register(&registration(2), at(ms)).unwrap();
        assert_eq!(told(&mut master, 0, ms + 1), (wished.clone(), 0));
        master = Controller::open(&store, Settings::default(), seed, at(ms + 2)).unwrap();
        master.register(&registration(2), at(ms + 3)).unwrap();
        assert_eq!(told(&mut master, 0, ms + 4), (wished.clone(), 0));
    }
    // It has tried, and the disk is no better.
    assert_eq!(told(&mut master, wish, 30), (Vec::new(), 1));
    assert_eq!(told(&mut master, wish, 31), (Vec::new(), 0));
    // What it has tried for is not the next wish.
    master.restore_disk(node(2), disk(2)).unwrap();
    let (wished, drained) = told(&mut master, wish, 32);
    assert_eq!((wished.len(), drained), (1, 0));
    assert_ne!(wished[0].1, wish);
    // An operator takes it back.
    for number in [1, 3, 4] {
        beat(&mut master, number, at(33));
    }
    master.drain(node(2), Some(disk(2)), at(33)).unwrap();
    assert_eq!(told(&mut master, wish, 34), (Vec::new(), 0));
}

/// An engine of the release before, which does not say what it has tried, waits for the disk, and one of this release takes its place.
#[test]
fn a_wish_outlives_the_engine_that_could_not_say_what_it_has_tried() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let out = |tried| {
        let report = report(2, DiskState::OutOfService);
        vec![DiskReport { tried, ..report }]
    };
    let told = |master: &mut Master<'_>, tried, ms| {
        let noted = master
            .note_disks(node(2), out(tried), Vec::new(), at(ms))
            .unwrap();
        (noted.restore, noted.drained.len())
    };
    told(&mut master, None, 2);
    master.restore_disk(node(2), disk(2)).unwrap();
    let (wished, drained) = told(&mut master, None, 3);
    assert_eq!((wished.len(), drained), (1, 0));
    let wish = wished[0].1;
    // The new engine has the target begin anew.
    master.register(&registration(2), at(4)).unwrap();
    assert_eq!(told(&mut master, Some(0), 5), (wished.clone(), 0));
    master.register(&registration(2), at(6)).unwrap();
    assert_eq!(told(&mut master, Some(0), 7), (wished.clone(), 0));
    // And back to the one before, which tries with its next life, as far as anybody knows.
    assert_eq!(told(&mut master, None, 8), (wished, 0));
    master.register(&registration(2), at(9)).unwrap();
    assert_eq!(told(&mut master, None, 10), (Vec::new(), 1));
    // One that has tried for a wish is not asked for that again, whatever was there before it.
    master.restore_disk(node(2), disk(2)).unwrap();
    let (wished, _) = told(&mut master, None, 11);
    assert_ne!(wished[0].1, wish);
    assert_eq!(told(&mut master, Some(wished[0].1), 12), (Vec::new(), 1));
}

#[test]
fn no_disk_has_the_number_that_stands_for_all_of_a_node() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let nil = DiskId(Uuid(0));
    assert!(master.drain(node(2), Some(nil), at(2)).is_err());
    assert!(!shown(&master, 2, at(2)).1);
    master.drain(node(2), None, at(2)).unwrap();
    assert!(master.undrain(node(2), Some(nil)).is_err());
    assert!(master.restore_disk(node(2), nil).is_err());
    assert!(shown(&master, 2, at(2)).1);
    master.drain(node(2), Some(nil), at(2)).unwrap_err();
}

#[test]
fn a_disk_that_is_slow_beside_its_peers_is_known_and_forgotten_when_it_is_well() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let mut changes = Vec::new();
    for second in 0..120u64 {
        let now = at(second * 1000);
        for number in 1..=NODES {
            let slow = number == 3 && (20..60).contains(&second);
            let latency = Duration::from_micros(if slow { 40_000 } else { 90 + number as u64 });
            let samples = vec![sample(number, latency)];
            let reports = vec![report(number, DiskState::Ok)];
            let noted = master.note_disks(node(number), reports, samples, now).unwrap();
            changes.extend(noted.speed.into_iter().map(|(disk, slow)| (second, disk, slow)));
        }
        let expected = if (30..80).contains(&second) {
            DiskState::Slow
        } else {
            DiskState::Ok
        };
        assert_eq!(shown(&master, 3, now).0, Some(expected), "at {second} s");
        assert_eq!(shown(&master, 1, now).0, Some(DiskState::Ok));
        assert_eq!(
            master.slow_disks().len(),
            usize::from(expected == DiskState::Slow)
        );
    }
    assert_eq!(changes, [(30, disk(3), true), (80, disk(3), false)]);
    // What was said long ago says nothing.
    assert_eq!(shown(&master, 3, at(400_000)).0, None);
}

/// A sample of a disk that takes seconds is late each time, and there is hardly a report in which none is missing. What is not answered at
/// all makes no disk slow.
#[test]
fn a_disk_whose_samples_come_late_is_slow_and_one_whose_samples_do_not_come_is_not() {
    let store = MemoryStore::default();
    let mut master = started(&store);
    let mut changes = Vec::new();
    for second in (0..120u64).step_by(5) {
        let now = at(second * 1000);
        for number in 1..=NODES {
            let usual = sample(number, Duration::from_micros(90));
            let is_ill = second >= 20;
            let told = match number {
                // Late: the last answer is of a moment ago, and the next one is missing.
                3 if is_ill => vec![DiskSample {
                    missed: [second, 1 + second / 5 % 3],
                    samples: second,
                    ..sample(number, Duration::from_secs(2))
                }],
                // Another disk, of which nothing comes since a moment of much load.
                4 if is_ill => vec![
                    usual,
                    DiskSample {
                        disk: disk(40),
                        missed: [second, (second - 15) / 10],
                        samples: 20,
                        ..sample(number, Duration::from_millis(40))
                    },
                ],
                // A new engine has not heard this one at all.
                2 if is_ill => vec![
                    usual,
                    DiskSample {
                        disk: disk(20),
                        samples: 0,
                        missed: [second / 20; 2],
                        ..sample(number, Duration::from_secs(2))
                    },
                ],
                _ => vec![usual],
            };
            let reports = vec![report(number, DiskState::Ok)];
            let noted = master.note_disks(node(number), reports, told, now).unwrap();
            changes.extend(noted.speed.into_iter().map(|(disk, slow)| (second, disk, slow)));
        }
    }
    assert_eq!(changes, [(30, disk(3), true)]);
    assert_eq!(shown(&master, 3, at(115_000)).0, Some(DiskState::Slow));
    assert_eq!(master.slow_disks(), [(node(3), disk(3))]);
}
