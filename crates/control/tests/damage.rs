//! What nodes say for people alone: what checksums of their copies have shown, as masters sum it up, and which releases they are.

use std::time::Duration;

use control::{ChunkId, Damage, Incarnation, Releases, Scrub, SnapshotNumber, Told, VolumeNumber};

use crate::overcommit::{Cluster, node};

/// Blocks of a chunk.
const BLOCKS: u64 = (64 << 20) / 4096;

fn said(damaged: u64, repaired: u64, lost: u64) -> Damage {
    Damage {
        damaged,
        repaired,
        lost,
        differing: 0,
    }
}

/// What a node says in its present life, by chunk.
fn tell(cluster: &mut Cluster, number: u64, volume: VolumeNumber, chunks: &[(u32, Damage)]) {
    let life = (node(number), cluster.lives[number as usize - 1]);
    let copies = chunks
        .iter()
        .map(|&(index, damage)| (ChunkId { volume, index }, damage));
    let told = Told {
        copies: copies.collect(),
        scrub: Scrub {
            oldest_unix_ms: number,
            compared_blocks: 7,
        },
        ..Told::default()
    };
    cluster.control.note_damage(life, told);
}

fn known(cluster: &Cluster) -> (Damage, Option<u64>) {
    let status = cluster.control.status(cluster.now).unwrap();
    let first = status.nodes.iter().find(|status| status.view.id == node(1));
    let scrub = first.unwrap().scrub;
    (status.volumes[0].damage, scrub.map(|scrub| scrub.oldest_unix_ms))
}

#[test]
fn what_copies_in_sync_say_is_summed_up_and_a_block_is_lost_once() {
    let mut cluster = Cluster::new(100);
    let volume = cluster.create("data", 4).unwrap();
    assert_eq!(known(&cluster), (Damage::default(), None));
    // Two were write nodes of the first chunk, one after the other. No more is repaired than was damaged.
    tell(&mut cluster, 1, volume, &[(0, said(3, 1, 2)), (1, said(1, 7, 1))]);
    tell(&mut cluster, 2, volume, &[(0, said(3, 0, 1))]);
    assert_eq!(known(&cluster), (said(7, 2, 3), Some(1)));
    // A life that is not heard says nothing.
    cluster
        .control
        .note_damage((node(1), Incarnation(99)), Told::default());
    assert_eq!(known(&cluster), (said(7, 2, 3), Some(1)));
    // What cannot be is taken for as much as can.
    tell(
        &mut cluster,
        3,
        volume,
        &[(2, said(0, 0, u64::MAX)), (9, said(1, 1, 1))],
    );
    assert_eq!(known(&cluster).0, said(7, 2, 3 + BLOCKS));
    tell(&mut cluster, 3, volume, &[]);
    // Another life begins with nothing.
    cluster.register(1).unwrap();
    tell(&mut cluster, 1, volume, &[]);
    assert_eq!(known(&cluster), (said(3, 0, 1), Some(1)));
}

#[test]
fn lost_blocks_of_snapshots_are_those_of_complete_ones_and_counted_once() {
    let mut cluster = Cluster::new(100);
    let volume = cluster.create("data", 4).unwrap();
    let mut begin = |name: &str| cluster.control.begin_snapshot("data", name, 7).unwrap().1.number;
    let monday = begin("monday");
    cluster.control.complete_snapshot(volume, monday).unwrap();
    let tuesday = cluster
        .control
        .begin_snapshot("data", "tuesday", 7)
        .unwrap()
        .1
        .number;
    let tell = |cluster: &mut Cluster, number: u64, snapshots: &[(u32, SnapshotNumber, u64)]| {
        let life = (node(number), cluster.lives[number as usize - 1]);
        let of = |&(index, snapshot, lost)| ((ChunkId { volume, index }, snapshot), lost);
        let told = Told {
            snapshots: snapshots.iter().map(of).collect(),
            ..Told::default()
        };
        cluster.control.note_damage(life, told);
    };
    let known = |cluster: &Cluster| {
        let status = cluster.control.status(cluster.now).unwrap();
        assert_eq!(status.volumes[0].damage, Damage::default());
        status.volumes[0].lost_of_snapshots.clone()
    };
    assert_eq!(known(&cluster), []);
    tell(&mut cluster, 1, &[(0, monday, 2), (1, monday, 1)]);
    // The snapshot that is being made has none yet, and what nobody has made has no name.
    tell(
        &mut cluster,
        2,
        &[(0, monday, 3), (0, tuesday, 1), (0, SnapshotNumber(99), 1)],
    );
    assert_eq!(known(&cluster), [("monday".to_owned(), 4)]);
    tell(&mut cluster, 3, &[(2, monday, u64::MAX)]);
    assert_eq!(
        known(&cluster),
        [("monday".to_owned(), 4 * BLOCKS)],
        "not more than there are"
    );
    tell(&mut cluster, 3, &[]);
    cluster.control.complete_snapshot(volume, tuesday).unwrap();
    let (first, second) = (("monday".to_owned(), 4), ("tuesday".to_owned(), 1));
    assert_eq!(known(&cluster), [first, second]);
    // Another life begins with nothing.
    cluster.register(2).unwrap();
    assert_eq!(known(&cluster), [("monday".to_owned(), 3)]);
}

#[test]
fn what_is_said_of_more_copies_than_there_may_be_is_left_out() {
    let mut cluster = Cluster::new(100);
    let volume = cluster.create("data", 4).unwrap();
    let many: Vec<_> = (0..1024).map(|index| (10 + index, said(1, 0, 0))).collect();
    let last = [(0, said(5, 0, 5))];
    tell(&mut cluster, 1, volume, &[&many[..], &last[..]].concat());
    assert_eq!(known(&cluster).0, Damage::default());
    tell(&mut cluster, 1, volume, &[&many[1..], &last[..]].concat());
    assert_eq!(known(&cluster).0, said(5, 0, 5));
}

#[test]
fn a_life_says_which_releases_run_there() {
    let mut cluster = Cluster::new(100);
    let known = |cluster: &Cluster, number| {
        let status = cluster.control.status(cluster.now).unwrap();
        let found = status
            .nodes
            .into_iter()
            .find(|status| status.view.id == node(number));
        found.unwrap().releases
    };
    assert_eq!(known(&cluster, 1), None);
    let told = Releases {
        engine: Some("0.2.0".to_owned()),
        target: Some("0.1.0".to_owned()),
    };
    let life = cluster.lives[0];
    cluster.control.note_releases((node(1), life), told.clone());
    assert_eq!(
        (known(&cluster, 1), known(&cluster, 2)),
        (Some(told.clone()), None)
    );
    // A life that is not heard says nothing.
    cluster
        .control
        .note_releases((node(1), Incarnation(life.0 + 1)), Releases::default());
    assert_eq!(known(&cluster, 1), Some(told));
    // Who has said nothing for long does not say it.
    cluster.now = cluster.now + Duration::from_secs(15);
    assert_eq!(known(&cluster, 2), Some(Releases::default()));
}
