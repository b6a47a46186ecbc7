//! What is believed of the disks, and what is refused.

use std::time::Duration;

use foundation::{ByteCount, Instant};

use super::*;
use crate::controller::nodes::{Heartbeat, Registration};
use crate::controller::volumes::CreateVolume;
use crate::{Controller, MemoryStore, transfer};

const MIB: u64 = 1 << 20;

pub(super) fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disk(number: u64) -> DiskId {
    DiskId(Uuid(u128::from(number) + 100))
}

/// A cluster of four nodes with a volume of so many chunks in three copies, and what its disks say then.
pub(super) fn cluster(chunks: u64) -> (MemoryStore, Vec<NodeReport>) {
    let store = MemoryStore::new();
    let now = Instant::from_nanos(1);
    let mut control = Controller::open(&store, Settings::default(), 3, now).unwrap();
    for number in 1..=4 {
        control
            .register(&registration(number, None, Incarnation(0)), now)
            .unwrap();
    }
    let request = CreateVolume {
        chunk: ByteCount(16 * MIB),
        stripe_unit: ByteCount(MIB),
        checksums: true,
        ..CreateVolume::new("data", ByteCount(chunks * 16 * MIB))
    };
    let volume = control.create_volume(&request, now).unwrap();
    let (_, map) = control.map(volume.number, 0, 1000).unwrap();
    let mut reports: Vec<NodeReport> = (1..=4)
        .map(|number| NodeReport {
            cluster: control.cluster(),
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            incarnation: Incarnation(1),
            disks: registration(number, None, Incarnation(0)).disks,
            copies: Vec::new(),
            damaged: Vec::new(),
            snapshots: Vec::new(),
        })
        .collect();
    for (id, chunk) in map {
        for copy in &chunk.copies {
            reports[copy.node.0.0 as usize - 1].copies.push(CopyReport {
                chunk: id,
                disk: copy.disk,
                checksums: volume.checksums,
                geometry: volume.geometry.clone(),
                sealed: chunk.epoch,
                configuration: Some(SealedConfiguration {
                    epoch: chunk.epoch,
                    write_node: chunk.write_node,
                    members: chunk.members().collect(),
                }),
                token: WriterToken(7),
                origin: None,
            });
        }
    }
    (store, reports)
}

pub(super) fn registration(
    number: u64,
    cluster: Option<ClusterId>,
    ended_through: Incarnation,
) -> Registration {
    Registration {
        cluster,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through,
        disks: vec![Disk {
            id: disk(number),
            capacity: ByteCount(1 << 40),
            used: ByteCount(0),
            held: None,
        }],
    }
}

/// All members that can say so seal a configuration of a chunk.
fn seal(reports: &mut [NodeReport], index: u32, epoch: u64, members: &[u64]) {
    let config = SealedConfiguration {
        epoch: Epoch(epoch),
        write_node: node(members[0]),
        members: members
            .iter()
            .map(|&number| (node(number), Incarnation(1)))
            .collect(),
    };
    for &number in members {
        let copies = reports[number as usize - 1].copies.iter_mut();
        for copy in copies.filter(|copy| copy.chunk.index == index) {
            copy.sealed = Epoch(epoch);
            copy.configuration = Some(config.clone());
        }
    }
}

fn nodes_of(reports: &[NodeReport], index: u32) -> Vec<u64> {
    let has = |report: &&NodeReport| report.copies.iter().any(|copy| copy.chunk.index == index);
    reports
        .iter()
        .filter(has)
        .map(|report| report.node.0.0 as u64)
        .collect()
}

fn found(reports: &[NodeReport]) -> Found {
    rebuild(reports, &Wishes::default(), 5).unwrap()
}

#[test]
fn masters_go_on_with_what_the_disks_say_and_number_above_it() {
    let (_, reports) = cluster(12);
    let mut wishes = Wishes::default();
    wishes.names.insert(VolumeNumber(1), "data".to_owned());
    let found = rebuild(&reports, &wishes, 5).unwrap();
    assert!(found.missing.is_empty());
    let store = MemoryStore::new();
    transfer::import(&store, &found.image.unwrap(), |_| {}).unwrap();
    let mut now = Instant::from_nanos(1);
    let mut control = Controller::open(&store, Settings::default(), 4, now).unwrap();
    assert_eq!(control.cluster(), reports[0].cluster);
    let volume = control.volume_named("data").unwrap();
    assert_eq!(
        (volume.state, volume.geometry.chunk_count()),
        (VolumeState::Ready, 12)
    );
    assert!(volume.checksums, "its copies keep checksums");
    // Everything was stopped: each node's engine proves that the life has ended, and all recover.
    for number in 1..=4 {
        let again = registration(number, Some(control.cluster()), Incarnation(1));
        assert_eq!(control.register(&again, now).unwrap().incarnation, Incarnation(2));
    }
    for _ in 0..8 {
        now = now + Duration::from_millis(500);
        for number in 1..=4 {
            let heartbeat = Heartbeat {
                cluster: control.cluster(),
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
                snapshots: Default::default(),
                flattening: Vec::new(),
                reserves: true,
                doubts: true,
                syncs: None,
                kept: None,
            };
            control.heartbeat(&heartbeat, now).unwrap();
        }
        control.tick(now).unwrap();
    }
    for (id, chunk) in control.map(volume.number, 0, 100).unwrap().1 {
        assert!(
            chunk.recovery && chunk.epoch > Epoch(u64::from(GAP)),
            "{id}: {chunk:?}"
        );
        assert_eq!(chunk.member_count(), 3);
    }
    let status = control.status(now).unwrap();
    let promised: u64 = status
        .nodes
        .iter()
        .flat_map(|node| &node.disks)
        .map(|disk| disk.1.0)
        .sum();
    assert_eq!(promised, 12 * 3 * 16 * MIB);
    let lease = control
        .acquire_writer(volume.number, SessionId(Uuid(9)), "w", None, now)
        .unwrap();
    assert!(lease.token > WriterToken(7 + u64::from(GAP)));
    // Readers that nobody knows of hold everything for a term.
    assert_eq!(control.readers(volume.number, now).unwrap()[0].generation, 0);
    let request = CreateVolume {
        chunk: ByteCount(16 * MIB),
        stripe_unit: ByteCount(MIB),
        ..CreateVolume::new("other", ByteCount(16 * MIB))
    };
    assert!(control.create_volume(&request, now).unwrap().number > VolumeNumber(GAP));
}

/// Nothing is promised to a node that was not read, since on which disk its copies are only that knows.
#[test]
fn a_node_that_was_not_read_is_not_removed_with_its_copies() {
    let (_, reports) = cluster(12);
    let has = !reports[3].copies.is_empty();
    assert!(has, "it has copies in sync");
    let found = found(&reports[..3]);
    let store = MemoryStore::new();
    transfer::import(&store, &found.image.unwrap(), |_| {}).unwrap();
    let now = Instant::from_nanos(1);
    let mut control = Controller::open(&store, Settings::default(), 4, now).unwrap();
    for number in 1..=4 {
        let again = registration(number, Some(control.cluster()), Incarnation(1));
        control.register(&again, now).unwrap();
    }
    control.drain(node(4), None, now).unwrap();
    let refused = control.remove_node(node(4), now).unwrap_err().to_string();
    let copies = reports[3].copies.len();
    assert!(refused.contains(&format!("{copies} copies (")), "{refused}");
}

#[test]
fn the_newest_configuration_wins_over_an_old_disk() {
    let (_, mut reports) = cluster(3);
    let members = nodes_of(&reports, 1);
    // One was left out, and two went on.
    seal(&mut reports, 1, 9, &members[1..]);
    let found = found(&reports);
    let chunk = &found.volumes[0].found[1];
    assert_eq!(
        (chunk.epoch, chunk.stale.as_slice()),
        (Epoch(9), &[node(members[0])][..])
    );
    let image = found.image.unwrap();
    let id = ChunkId {
        volume: VolumeNumber(1),
        index: 1,
    };
    let (key, value) = image
        .records
        .iter()
        .find(|(key, _)| *key == keys::chunk(id))
        .unwrap();
    let chunk = Chunk::decode(key, value).unwrap();
    assert_eq!(
        (chunk.epoch, chunk.member_count()),
        (Epoch(9 + u64::from(GAP)), 2)
    );
    assert!(chunk.has_copy_on(node(members[0])) && !chunk.has_member(node(members[0]), Incarnation(1)));
}

#[test]
fn an_old_disk_alone_is_refused_and_one_missing_node_of_three_is_not() {
    let (_, mut reports) = cluster(3);
    let members = nodes_of(&reports, 1);
    seal(&mut reports, 1, 9, &members[1..]);
    let read = |without: &[u64]| {
        let read = reports
            .iter()
            .filter(|report| !without.contains(&(report.node.0.0 as u64)));
        found(&read.cloned().collect::<Vec<_>>())
    };
    // The two that went on are not read: the old state of the third must not be believed.
    let refused = read(&members[1..]);
    assert!(refused.image.is_none());
    let chunk = &refused.volumes[0].found[1];
    assert!(
        chunk
            .problem
            .as_ref()
            .unwrap()
            .contains("2 nodes were not read or have old disks"),
        "{chunk:?}"
    );
    // One of them is: it knows.
    let found = read(&members[2..]);
    assert_eq!(found.missing, [node(members[2])]);
    let chunk = &found.volumes[0].found[1];
    assert_eq!((chunk.epoch, &chunk.problem), (Epoch(9), &None));
    assert_eq!(chunk.missing, [node(members[2])]);
    assert!(found.image.is_some());
}

#[test]
fn a_member_whose_disk_is_older_than_its_membership_counts_as_out_and_its_lives_go_on_above() {
    let (_, mut reports) = cluster(3);
    let members = nodes_of(&reports, 1);
    let old = members[0] as usize - 1;
    let before = reports[old].clone();
    // A later life of it is in sync, as the others know.
    let later = |config: &mut SealedConfiguration| {
        config.epoch = Epoch(20);
        let members = config.members.iter_mut();
        members
            .filter(|member| member.0 == node(old as u64 + 1))
            .for_each(|member| member.1 = Incarnation(6));
    };
    for copy in reports.iter_mut().flat_map(|report| &mut report.copies) {
        copy.sealed = Epoch(20);
        copy.configuration.as_mut().into_iter().for_each(later);
    }
    reports[old] = before;
    let found = found(&reports);
    assert_eq!(found.volumes[0].found[1].stale, [node(members[0])]);
    let image = found.image.unwrap();
    let record = |key: Vec<u8>| {
        image
            .records
            .iter()
            .find(|record| record.0 == key)
            .unwrap()
            .1
            .clone()
    };
    let key = keys::node(node(members[0]));
    let life = Node::decode(&key, &record(key.clone())).unwrap().incarnation;
    assert_eq!(
        life,
        Incarnation(6),
        "the next life is not numbered as one before"
    );
    let id = ChunkId {
        volume: VolumeNumber(1),
        index: 1,
    };
    let key = keys::chunk(id);
    let chunk = Chunk::decode(&key, &record(key.clone())).unwrap();
    assert!(
        chunk.has_copy_on(node(members[0])) && chunk.member_count() == 2,
        "{chunk:?}"
    );
    assert!(chunk.is_consistent());
    // With another one not read, two may have gone on.
    let read = reports.iter().filter(|report| report.node != node(members[1]));
    let found = super::rebuild(&read.cloned().collect::<Vec<_>>(), &Wishes::default(), 5).unwrap();
    assert!(found.image.is_none());
}

#[test]
fn what_is_not_known_is_said_and_refused() {
    let (_, reports) = cluster(3);
    let names = found(&reports);
    assert_eq!(
        (names.volumes[0].name.as_str(), names.volumes[0].is_name_known),
        ("recovered-1", false)
    );
    let problem = |reports: &[NodeReport]| {
        let found = found(reports);
        assert!(found.image.is_none());
        found.volumes[0].found[1].problem.clone().unwrap_or_default()
    };
    let mut none = reports.clone();
    for report in &mut none {
        report.copies.retain(|copy| copy.chunk.index != 1);
    }
    assert!(problem(&none).contains("no copy of it was found"));
    let mut empty = reports.clone();
    for copy in empty.iter_mut().flat_map(|report| &mut report.copies) {
        if copy.chunk.index == 1 {
            (copy.configuration, copy.sealed) = (None, Epoch(0));
        }
    }
    assert!(problem(&empty).contains("none ever took part"));
    let mut contradiction = reports.clone();
    let members = nodes_of(&reports, 1);
    seal(&mut contradiction, 1, 9, &members);
    seal(&mut contradiction, 1, 9, &members[1..]);
    assert!(problem(&contradiction).contains("different things of epoch 9"));
    let mut unknown = reports.clone();
    let copies = unknown[members[0] as usize - 1].copies.iter_mut();
    copies
        .filter(|copy| copy.chunk.index == 1)
        .for_each(|copy| copy.sealed = Epoch(12));
    assert!(problem(&unknown).contains("epoch 12 is sealed"));
    // Given up, it stands in nobody's way.
    let mut wishes = Wishes::default();
    wishes.without.insert(VolumeNumber(1));
    assert!(rebuild(&none, &wishes, 5).unwrap().image.is_some());

    let mut foreign = reports.clone();
    foreign[1].cluster = ClusterId(Uuid(77));
    let said = rebuild(&foreign, &Wishes::default(), 5).unwrap_err().to_string();
    assert!(said.contains("name the nodes of one cluster"), "{said}");
    let twice = [reports[0].clone(), reports[0].clone()];
    assert_eq!(
        rebuild(&twice, &Wishes::default(), 5).unwrap_err(),
        RebuildError::Twice { node: node(1) }
    );
}

#[test]
fn a_backup_gives_names_and_identities_back() {
    let (store, reports) = cluster(3);
    let backup = transfer::export(&store).unwrap();
    let old = old_volumes(&Wishes {
        backup: Some(backup.clone()),
        ..Wishes::default()
    });
    let wishes = Wishes {
        backup: Some(backup),
        ..Wishes::default()
    };
    let found = rebuild(&reports, &wishes, 5).unwrap();
    assert_eq!(
        (found.volumes[0].name.as_str(), found.volumes[0].is_name_known),
        ("data", true)
    );
    let image = found.image.unwrap();
    let key = keys::volume(VolumeNumber(1));
    let (_, value) = image.records.iter().find(|(found, _)| *found == key).unwrap();
    assert_eq!(
        Volume::decode(&key, value).unwrap().uuid,
        old[&VolumeNumber(1)].uuid
    );
}
