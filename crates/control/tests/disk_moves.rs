//! Copies move between the disks of their nodes: to a disk that was added, and away from one that is drained, with no copy less meanwhile.
//! Three nodes and three copies, in virtual time; at every step what is promised is what places and moves take.

use std::collections::BTreeMap;

use control::transfer;
use control::{
    ChunkId, ControlError, DiskId, DiskMoveStatus, DiskReport, DiskState, MemoryStore, MovedCopy,
    RebalanceState,
};
use foundation::Epoch;

use crate::disks::{CHUNKS, Cluster, disk, node};

/// Nodes of two disks that move copies between them.
fn movers(store: &MemoryStore, minimum: u8) -> Cluster<'_> {
    let mut cluster = Cluster::new(store, minimum);
    for known in cluster.nodes.values_mut() {
        known.moves = true;
    }
    cluster.run(10);
    assert_eq!(cluster.disk_moves(), [], "what is placed well is not moved");
    (cluster.most_lacking, cluster.fewest_in_sync) = (0, usize::MAX);
    cluster
}

/// Each node gets a third disk; its target begins anew with it.
fn add_disks(cluster: &mut Cluster<'_>) {
    for number in 1..=3 {
        cluster.start(number, &[1, 2, 3].map(|which| disk(number, which)));
        cluster.run(10);
    }
    (cluster.most_lacking, cluster.fewest_in_sync) = (0, usize::MAX);
}

fn epochs(cluster: &Cluster<'_>) -> BTreeMap<ChunkId, Epoch> {
    let chunks = cluster.chunks();
    chunks.into_iter().map(|(id, chunk)| (id, chunk.epoch)).collect()
}

fn state(cluster: &Cluster<'_>) -> RebalanceState {
    cluster.master.balance(cluster.now).unwrap().state
}

/// Steps until copies move between disks.
fn until_one_moves(cluster: &mut Cluster<'_>) -> DiskMoveStatus {
    for _ in 0..400 {
        if let Some(moving) = cluster.disk_moves().first() {
            return *moving;
        }
        cluster.step();
    }
    panic!("nothing moves");
}

/// Until nothing has changed for a minute.
fn until_quiet(cluster: &mut Cluster<'_>) {
    for _ in 0..200 {
        let before = cluster.master.revision().unwrap();
        cluster.run(60);
        if cluster.master.revision().unwrap() == before {
            return;
        }
    }
    panic!("it does not end");
}

/// Of a node's copies, how many are on each of three disks.
fn on_disks(cluster: &Cluster<'_>, number: u128) -> [usize; 3] {
    [1, 2, 3].map(|which| cluster.placed_on(disk(number, which)))
}

fn assert_even(cluster: &Cluster<'_>) {
    for number in 1..=3 {
        let on = on_disks(cluster, number);
        let (least, most) = (on.iter().min().unwrap(), on.iter().max().unwrap());
        // 5 % of 67, or one.
        assert!(most - least <= 3, "node {number}: {on:?}");
    }
    assert_eq!(state(cluster), RebalanceState::Even);
    assert_eq!(cluster.disk_moves(), []);
    cluster.assert_whole();
}

#[test]
fn a_disk_that_is_added_to_each_node_gets_its_share_and_then_nothing_moves() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    cluster.master.set_rebalance(false).unwrap();
    add_disks(&mut cluster);
    cluster.master.set_rebalance(true).unwrap();
    let before = epochs(&cluster);
    let (mut begun, mut last) = (0, Vec::new());
    for _ in 0..2400 {
        cluster.step();
        let moves = cluster.disk_moves();
        begun += moves.iter().filter(|moving| !last.contains(*moving)).count();
        if !moves.is_empty() {
            assert_eq!(state(&cluster), RebalanceState::Moving);
        }
        last = moves;
    }
    assert_even(&cluster);
    assert_eq!(epochs(&cluster), before, "no configuration changes");
    assert_eq!((cluster.most_lacking, cluster.fewest_in_sync), (0, 3));
    // No copy twice, and none to and fro.
    let moved: usize = (1..=3).map(|number| on_disks(&cluster, number)[2]).sum();
    assert!(begun == moved && moved > 180, "{begun} moves, {moved} copies");
    let revision = cluster.master.revision().unwrap();
    cluster.run(120);
    assert_eq!(cluster.master.revision().unwrap(), revision, "it rests");
}

#[test]
fn nothing_moves_between_disks_where_masters_may_not_or_nodes_cannot() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    cluster.master.set_rebalance(false).unwrap();
    add_disks(&mut cluster);
    cluster.run(60);
    assert_eq!(cluster.disk_moves(), []);
    cluster.nodes.get_mut(&2).unwrap().moves = false;
    cluster.master.set_rebalance(true).unwrap();
    until_quiet(&mut cluster);
    assert!(on_disks(&cluster, 1)[2] > 60 && on_disks(&cluster, 3)[2] > 60);
    assert_eq!(on_disks(&cluster, 2)[2], 0);
    assert_eq!(state(&cluster), RebalanceState::Even);
    cluster.assert_whole();
}

#[test]
fn a_new_master_and_a_new_life_go_on_with_what_moves() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    let three = [1, 2, 3].map(|which| disk(2, which));
    for round in 0..12 {
        cluster.run(5);
        let moving = until_one_moves(&mut cluster);
        if round % 2 == 0 {
            cluster.succeed();
            cluster.step();
        }
        if round % 3 == 0 {
            // It has moved the copy of which it was told, and nobody has heard of that.
            let known = cluster.nodes.get_mut(&2).unwrap();
            for (id, (to, _)) in std::mem::take(&mut known.moving) {
                known.copies.get_mut(&id).unwrap().0 = to;
            }
            cluster.start(2, &three);
        }
        if round % 3 == 1 {
            // It begins with this one anew.
            cluster.start(
                (moving.moving.node).0.0,
                &[1, 2, 3].map(|which| disk(moving.moving.node.0.0, which)),
            );
        }
    }
    until_quiet(&mut cluster);
    assert_even(&cluster);
}

#[test]
fn a_drained_disk_gives_its_copies_to_the_other_with_none_out_of_sync() {
    // Also where writes would stop without any of them.
    for minimum in [2, 3] {
        let store = MemoryStore::new();
        let mut cluster = movers(&store, minimum);
        let before = epochs(&cluster);
        let drained = [disk(1, 1), disk(3, 2)];
        for (number, drained) in [1, 3].into_iter().zip(drained) {
            cluster
                .master
                .drain(node(number), Some(drained), cluster.now)
                .unwrap();
        }
        cluster.run(5);
        assert!(
            matches!(state(&cluster), RebalanceState::Waiting(_)),
            "like any drain"
        );
        assert_eq!(cluster.disk_moves().len(), 2, "on each node");
        cluster.run(10);
        cluster.succeed();
        cluster.run(600);
        assert_eq!(drained.map(|disk| cluster.placed_on(disk)), [0, 0]);
        assert_eq!((cluster.most_lacking, cluster.fewest_in_sync), (0, 3));
        assert_eq!(epochs(&cluster), before);
        cluster.assert_whole();
        assert_eq!(state(&cluster), RebalanceState::Even);
        // Then nobody could take what the other one has.
        let refused = cluster.master.drain(node(1), Some(disk(1, 2)), cluster.now);
        assert!(
            matches!(refused, Err(ControlError::DrainNodes { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn what_a_node_cannot_move_is_given_up_as_before_and_left_alone_by_the_balance() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    cluster.nodes.get_mut(&1).unwrap().refuses = true;
    cluster
        .master
        .drain(node(1), Some(disk(1, 1)), cluster.now)
        .unwrap();
    cluster.run(600);
    assert_eq!(cluster.placed_on(disk(1, 1)), 0);
    assert!(cluster.most_lacking > 0);
    assert_eq!(cluster.fewest_in_sync, 2);
    cluster.assert_whole();
    // Where none can be given up, they stay.
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 3);
    cluster.nodes.get_mut(&1).unwrap().refuses = true;
    let before = cluster.placed_on(disk(1, 1));
    cluster
        .master
        .drain(node(1), Some(disk(1, 1)), cluster.now)
        .unwrap();
    cluster.run(500);
    assert_eq!(
        (cluster.placed_on(disk(1, 1)), cluster.fewest_in_sync),
        (before, 3)
    );
    // After ten minutes it is tried again.
    cluster.nodes.get_mut(&1).unwrap().refuses = false;
    cluster.run(1200);
    assert_eq!((cluster.placed_on(disk(1, 1)), cluster.fewest_in_sync), (0, 3));
    cluster.assert_whole();
}

#[test]
fn the_balance_tries_each_copy_that_cannot_move_once_in_ten_minutes() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    for known in cluster.nodes.values_mut() {
        known.refuses = true;
    }
    add_disks(&mut cluster);
    let (mut tried, mut last) = (BTreeMap::<(ChunkId, u128), u32>::new(), Vec::new());
    for _ in 0..8 * 60 * 4 {
        cluster.step();
        let moves = cluster.disk_moves();
        for new in moves.iter().filter(|moving| !last.contains(*moving)) {
            *tried.entry((new.chunk, new.moving.node.0.0)).or_default() += 1;
        }
        last = moves;
    }
    assert!(
        tried.len() > 100 && tried.values().all(|times| *times == 1),
        "{tried:?}"
    );
    assert_eq!((cluster.most_lacking, cluster.fewest_in_sync), (0, 3));
    cluster.run(120);
    for known in cluster.nodes.values_mut() {
        known.refuses = false;
    }
    cluster.run(900);
    until_quiet(&mut cluster);
    assert_even(&cluster);
}

#[test]
fn a_disk_that_is_out_of_service_is_not_asked_for_its_copies() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    let report = DiskReport {
        id: disk(1, 1),
        state: DiskState::OutOfService,
        ..DiskReport::default()
    };
    let noted = cluster
        .master
        .note_disks(node(1), vec![report], Vec::new(), cluster.now);
    assert_eq!(noted.unwrap().drained.len(), 1);
    for _ in 0..400 {
        cluster.step();
        assert_eq!(cluster.disk_moves(), []);
    }
    assert_eq!(cluster.placed_on(disk(1, 1)), 0);
    assert!(cluster.most_lacking > 0);
}

#[test]
fn what_moves_of_a_volume_that_is_deleted_is_promised_no_more() {
    for succeeds in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = movers(&store, 2);
        add_disks(&mut cluster);
        // Nobody says what came of it.
        for known in cluster.nodes.values_mut() {
            known.stands = true;
        }
        cluster.run(10);
        assert_eq!(cluster.disk_moves().len(), 3);
        cluster.master.delete_volume("v", cluster.now).unwrap();
        if succeeds {
            cluster.succeed();
        }
        cluster.run(10);
        assert_eq!((cluster.disk_moves(), cluster.chunks().len()), (Vec::new(), 0));
        let status = cluster.master.status(cluster.now).unwrap();
        let promised = status.nodes.iter().flat_map(|node| &node.disks);
        assert!(promised.into_iter().all(|(_, allocated)| allocated.0 == 0));
    }
}

#[test]
fn an_answer_to_what_is_not_asked_changes_nothing() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    let DiskMoveStatus { chunk, moving } = until_one_moves(&mut cluster);
    let number = moving.node.0.0;
    let other = if number == 1 { 2 } else { 1 };
    let say = |cluster: &mut Cluster<'_>, number, id, disk: DiskId, why: Option<&str>| {
        let known = &cluster.nodes[&number];
        let heartbeat = control::Heartbeat {
            moves_disks: true,
            moved_copies: vec![MovedCopy {
                chunk: id,
                disk,
                why: why.map(str::to_owned),
            }],
            ..known.silent(number, cluster)
        };
        cluster
            .master
            .heartbeat(&heartbeat, cluster.now)
            .unwrap()
            .move_copies
    };
    let revision = cluster.master.revision().unwrap();
    let not_moving = ChunkId {
        index: (chunk.index + 50) % CHUNKS as u32,
        ..chunk
    };
    for why in [None, Some("no")] {
        // Of another node, of another disk, of a chunk that does not move, and of none at all.
        say(&mut cluster, other, chunk, moving.to, why);
        say(&mut cluster, number, chunk, moving.from, why);
        say(&mut cluster, number, not_moving, moving.to, why);
        let nothing = ChunkId {
            volume: control::VolumeNumber(77),
            index: 0,
        };
        say(&mut cluster, number, nothing, moving.to, why);
    }
    assert_eq!(cluster.master.revision().unwrap(), revision);
    let place = |cluster: &Cluster<'_>| {
        let chunk = cluster.master.chunk(chunk).unwrap();
        chunk
            .copies
            .iter()
            .find(|copy| copy.node == moving.node)
            .unwrap()
            .disk
    };
    assert_eq!(say(&mut cluster, number, chunk, moving.to, None), []);
    let after = cluster.master.revision().unwrap();
    assert_eq!((place(&cluster), after > revision), (moving.to, true));
    // Again, since the answer was lost, and otherwise.
    say(&mut cluster, number, chunk, moving.to, None);
    say(&mut cluster, number, chunk, moving.to, Some("no"));
    assert_eq!(
        (place(&cluster), cluster.master.revision().unwrap()),
        (moving.to, after)
    );
}

#[test]
fn a_copy_that_moves_between_disks_moves_to_no_other_node() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    let moving = until_one_moves(&mut cluster);
    let refused = cluster
        .master
        .move_copy("v", moving.chunk.index, node(1), node(2), cluster.now);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("another disk"), "{refused}");
}

/// A node is silent while it moves copies, is waited for, and comes back: what it was told counts still.
#[test]
fn what_a_silent_node_moves_stays_promised_until_it_says_what_came_of_it() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    let moving = loop {
        let moving = until_one_moves(&mut cluster);
        if moving.moving.node == node(3) {
            break moving;
        }
        cluster.step();
    };
    cluster.nodes.get_mut(&3).unwrap().is_away = true;
    cluster.run(60);
    assert!(cluster.disk_moves().contains(&moving));
    let known = cluster.nodes.get_mut(&3).unwrap();
    known.is_away = false;
    if let Some(copy) = known.copies.get_mut(&moving.chunk) {
        copy.0 = moving.moving.to;
    }
    cluster.start(3, &[1, 2, 3].map(|which| disk(3, which)));
    cluster.run(30);
    let chunk = cluster.master.chunk(moving.chunk).unwrap();
    let place = chunk.copies.iter().find(|copy| copy.node == node(3)).unwrap();
    assert_eq!(place.disk, moving.moving.to);
    until_quiet(&mut cluster);
    assert_even(&cluster);
}

/// A backup of while copies move: one has moved when it is put back, as its node says, one has not, and what is promised is right again.
#[test]
fn a_store_that_is_put_back_goes_on_with_what_still_moves() {
    let (store, second) = (MemoryStore::new(), MemoryStore::new());
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    for known in cluster.nodes.values_mut() {
        known.stands = true;
    }
    cluster.run(10);
    let moves = cluster.disk_moves();
    assert_eq!(moves.len(), 3, "on each node");
    let backup = transfer::export(&&store).unwrap();
    transfer::import(&&second, &backup, |_| {}).unwrap();
    let moved = moves[0];
    let known = cluster.nodes.get_mut(&moved.moving.node.0.0).unwrap();
    known.copies.get_mut(&moved.chunk).unwrap().0 = moved.moving.to;
    known.moving.clear();
    cluster.restore(&second);
    assert!(cluster.master.restored().unwrap().is_some());
    cluster.run(30);
    assert_eq!(cluster.master.restored().unwrap(), None);
    let still = cluster.disk_moves();
    assert!(moves[1..].iter().all(|moving| still.contains(moving)) && !still.contains(&moved));
    for known in cluster.nodes.values_mut() {
        known.stands = false;
    }
    until_quiet(&mut cluster);
    assert_even(&cluster);
}

#[test]
fn what_shares_blocks_with_a_snapshot_is_not_asked_for_and_a_drain_that_needs_it_is_refused() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 3);
    let (_, begun) = cluster.master.begin_snapshot("v", "monday", 7).unwrap();
    cluster
        .master
        .complete_snapshot(begun.volume, begun.number)
        .unwrap();
    // None can be given up, either.
    let refused = cluster.master.drain(node(1), Some(disk(1, 1)), cluster.now);
    assert!(
        matches!(refused, Err(ControlError::DrainNodes { .. })),
        "{refused:?}"
    );
    add_disks(&mut cluster);
    cluster.run(120);
    let revision = cluster.master.revision().unwrap();
    cluster.run(900);
    assert_eq!(cluster.master.revision().unwrap(), revision, "nothing is tried");
    assert_eq!(state(&cluster), RebalanceState::Even);
    assert_eq!(on_disks(&cluster, 1)[2], 0);
    // Once it is gone they are.
    cluster.master.delete_snapshot("v", "monday").unwrap();
    until_quiet(&mut cluster);
    cluster.run(900);
    until_quiet(&mut cluster);
    assert_even(&cluster);
}

#[test]
fn a_disk_that_is_drained_while_a_copy_comes_to_it_counts_that_and_gives_it_away_again() {
    let store = MemoryStore::new();
    let mut cluster = movers(&store, 2);
    add_disks(&mut cluster);
    let moving = until_one_moves(&mut cluster).moving;
    let left = cluster
        .master
        .drain(moving.node, Some(moving.to), cluster.now)
        .unwrap();
    let placed = cluster.placed_on(moving.to) as u32;
    assert_eq!(left.copies, placed + 1, "it may be there already");
    for _ in 0..400 {
        let left = cluster
            .master
            .left_to_drain(moving.node, Some(moving.to))
            .unwrap();
        if left.copies == 0 {
            break;
        }
        cluster.step();
    }
    assert_eq!(cluster.placed_on(moving.to), 0);
    let comes = cluster
        .disk_moves()
        .iter()
        .any(|known| known.moving.to == moving.to);
    assert!(!comes, "nothing comes to it any more");
    cluster.assert_whole();
}
