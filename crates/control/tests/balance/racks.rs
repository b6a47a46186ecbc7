//! Copies in different racks (`docs/decisions/0101`).

use super::*;

/// What a master must know to lead.
fn features(store: &MemoryStore) -> u8 {
    let record = store.get(b"cluster").unwrap().unwrap().value;
    // Behind the header and the identity; version 1 has none.
    if record[5] == 1 { 0 } else { record[28] }
}

#[test]
fn a_cluster_that_grows_in_racks_becomes_even_under_faults_with_copies_in_different_ones() {
    for seed in foundation::seeds::from_environment(4) {
        println!("seed {seed}");
        let store = MemoryStore::new();
        let mut world = World::new(&store, seed);
        world.add_in_racks(1..=8, 4);
        world.steps(2);
        world.create(200);
        world.until_quiet(300);
        assert_eq!((world.moves, world.crowded()), (0, 0));
        world.assert_even("before");
        world.faults = seed % 2 == 1;
        world.add_in_racks(9..=12, 4);
        world.steps(300);
        world.faults = false;
        world.until_quiet(6000);
        world.assert_even("after");
        world.assert_whole();
        assert_eq!(world.crowded(), 0);
        // 200 copies are due to the new ones; what died meanwhile was made anew there without a move.
        assert!(world.moves > 100, "{} moves", world.moves);
    }
}

#[test]
fn a_lost_rack_is_rebuilt_in_the_three_others() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 1);
    world.add_in_racks(1..=8, 4);
    world.steps(2);
    world.create(120);
    world.until_quiet(300);
    let in_rack = |world: &World<'_>| {
        let chunks = world.chunks();
        let lost = chunks
            .iter()
            .filter(|(_, chunk)| [4, 8].map(node).iter().any(|id| chunk.has_copy_on(*id)));
        lost.count()
    };
    assert_eq!(in_rack(&world), 90, "three quarters have a copy there");
    for number in [4, 8] {
        world.kill(number);
    }
    world.until_quiet(600);
    world.assert_whole();
    assert_eq!((in_rack(&world), world.crowded()), (0, 0));
}

#[test]
fn without_a_third_rack_a_second_copy_comes_into_one_until_it_is_back() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 2);
    world.add_in_racks(1..=6, 3);
    world.steps(2);
    world.create(60);
    world.until_quiet(300);
    for number in [3, 6] {
        world.kill(number);
    }
    world.until_quiet(600);
    world.assert_whole();
    assert_eq!(world.crowded(), 60);
    // What is new is not made so.
    let request = CreateVolume {
        chunk: ByteCount(16 * MIB),
        ..CreateVolume::new("more", ByteCount(16 * MIB))
    };
    let said = world
        .control
        .create_volume(&request, world.now)
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with("3 copies want 3 racks, but 2 of 3 have"),
        "{said}"
    );
    // A new master finds it.
    world.control = Controller::open(&store, settings(), 9, world.now).unwrap();
    for number in [3, 6] {
        world.machines.get_mut(&number).unwrap().dead_until = world.now;
        world.register(number);
    }
    world.until_quiet(3000);
    world.assert_whole();
    assert_eq!(world.crowded(), 0);
    world.assert_even("after");
}

#[test]
fn copies_go_apart_when_nodes_say_that_they_stand_in_racks_or_in_others() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 3);
    for number in 1..=8 {
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(60);
    world.until_quiet(300);
    assert_eq!(features(&store), 0);
    // Two racks are too few for three copies: none has all of them.
    for number in 1..=8 {
        world.carry(number, Some(number % 2));
    }
    let (moves, crowded) = (world.moves, world.crowded());
    assert!((1..20).contains(&crowded), "{crowded}");
    world.until_quiet(3000);
    assert!(
        world.moves >= moves + crowded,
        "{moves} {crowded} {}",
        world.moves
    );
    assert_eq!(features(&store), 4);
    assert_eq!(world.crowded(), 0);
    // Four are enough.
    for number in 1..=8 {
        world.carry(number, Some(number % 4));
    }
    assert!(world.crowded() > 10);
    world.until_quiet(3000);
    assert_eq!(world.crowded(), 0);
    world.assert_even("in racks");
    // One node is carried into another rack.
    world.carry(1, Some(2));
    assert!(world.crowded() > 5);
    world.until_quiet(3000);
    assert_eq!(world.crowded(), 0);
    world.assert_whole();
    // Back to none, as for masters of before.
    for number in 1..=8 {
        assert_eq!(features(&store), 4);
        world.carry(number, None);
    }
    assert_eq!(features(&store), 0);
}

#[test]
fn what_would_bring_two_copies_into_one_rack_is_refused() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 4);
    world.add_in_racks(1..=6, 3);
    world.steps(2);
    world.create(12);
    world.until_quiet(300);
    let request = CreateVolume {
        chunk: ByteCount(16 * MIB),
        spread: Some(Spread::Rack),
        ..CreateVolume::new("strict", ByteCount(16 * MIB))
    };
    let four = CreateVolume {
        copies: 4,
        ..request.clone()
    };
    let said = world
        .control
        .create_volume(&four, world.now)
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with("4 copies want 4 racks, but 3 of 3 have"),
        "{said}"
    );
    let anywhere = CreateVolume {
        spread: None,
        name: "anywhere".to_owned(),
        ..four
    };
    world.control.create_volume(&anywhere, world.now).unwrap();
    world.control.delete_volume("anywhere", world.now).unwrap();
    world.control.create_volume(&request, world.now).unwrap();
    world.steps(4);
    // Only within its rack a copy may move.
    let chunk = world.chunks()[0].1.clone();
    let from = chunk.copies[0].node;
    let mut moves = (1..=6).map(node).filter(|to| !chunk.has_copy_on(*to)).map(|to| {
        let same = world.racks[&(to.0.0 as u64)] == world.racks[&(from.0.0 as u64)];
        (same, world.control.move_copy("v0", 0, from, to, world.now))
    });
    let (mut inside, mut outside) = (0, 0);
    for (same, moved) in &mut moves {
        match (same, moved) {
            (true, Ok(_)) => inside += 1,
            (false, Err(error)) => {
                let said = error.to_string();
                assert!(
                    said.contains("name a node in another rack") || said.contains("already"),
                    "{said}"
                );
                outside += 1;
            }
            (_, moved) => panic!("{moved:?}"),
        }
    }
    assert_eq!((inside, outside), (1, 2));
    world.until_quiet(300);
    // A node's copies go to the other one of its rack; then the rack is gone, and what asks for racks stays.
    world.control.drain(node(3), None, world.now).unwrap();
    world.until_quiet(300);
    assert_eq!(world.crowded(), 0);
    let said = world
        .control
        .drain(node(6), None, world.now)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("1 of its copies would come into a rack that has another copy"),
        "{said}"
    );
    world.control.delete_volume("strict", world.now).unwrap();
}

#[test]
fn a_rack_that_is_new_takes_its_share_also_where_nothing_could_be_made_better_before() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 5);
    // Each chunk has a copy in the first and in the second rack, and one on either node of the third.
    for (number, of) in [(1, 1), (2, 2), (3, 3), (4, 3)] {
        world.racks.insert(number, rack(of));
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(60);
    world.until_quiet(300);
    let before = world.moves;
    world.carry(4, Some(4));
    world.until_quiet(3000);
    assert!(world.moves > before, "{before} moves");
    assert_eq!(world.crowded(), 0);
    world.assert_even("four racks");
}

#[test]
fn the_last_node_with_a_rack_takes_the_feature_bit_with_it_when_it_is_removed() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 6);
    for number in 1..=3 {
        world.add_node(number, &[SIZE]);
    }
    world.add_in_racks(4..=4, 1);
    assert_eq!(features(&store), 4);
    world.machines.remove(&4);
    world.control.drain(node(4), None, world.now).unwrap();
    world.steps(80);
    world.control.remove_node(node(4), world.now).unwrap();
    assert_eq!(features(&store), 0);
}

#[test]
fn three_copies_are_in_both_of_two_racks_whatever_is_lost_and_drained() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 7);
    world.add_in_racks(1..=8, 2);
    world.steps(2);
    world.create(120);
    world.until_quiet(300);
    assert_eq!((world.moves, world.crowded()), (0, 0));
    world.assert_even("made");
    // A node, and another one that is drained: the two that are left of the rack have a copy of each chunk.
    world.kill(1);
    world.until_quiet(600);
    assert_eq!(world.crowded(), 0);
    world.control.drain(node(3), None, world.now).unwrap();
    world.until_quiet(600);
    world.assert_whole();
    assert_eq!(world.crowded(), 0);
    assert!(!world.chunks().iter().any(|(_, chunk)| chunk.has_copy_on(node(3))));
    // All of the rack, one after the other: better in one rack than a copy less, until it is back.
    for number in [5, 7] {
        assert_eq!(world.crowded(), 0);
        world.kill(number);
        world.until_quiet(600);
        world.assert_whole();
    }
    assert_eq!(world.crowded(), 120);
    world.control = Controller::open(&store, settings(), 9, world.now).unwrap();
    for number in [1, 5, 7] {
        world.machines.get_mut(&number).unwrap().dead_until = world.now;
        world.register(number);
    }
    world.control.undrain(node(3), None).unwrap();
    world.until_quiet(3000);
    world.assert_whole();
    assert_eq!(world.crowded(), 0);
    world.assert_even("back");
}

/// That copies are apart comes first, also where the one node of a rack is used more than all others for it.
#[test]
fn a_second_rack_that_comes_later_gets_a_copy_of_each_chunk_and_with_another_node_all_are_used_alike() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 8);
    for number in 1..=4 {
        world.racks.insert(number, rack(1));
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(60);
    world.until_quiet(300);
    assert_eq!((world.moves, world.crowded()), (0, 0), "there is no other one");
    for number in [5, 6] {
        world.racks.insert(number, rack(2));
        world.add_node(number, &[SIZE]);
        if number == 5 {
            assert_eq!(world.crowded(), 60);
        }
        world.until_quiet(3000);
        world.assert_whole();
        assert_eq!(world.crowded(), 0);
    }
    world.assert_even("two racks");
}

#[test]
fn where_racks_are_few_nothing_is_refused_for_them() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 9);
    world.add_in_racks([1, 2, 4, 6].into_iter(), 2);
    // Hardly any room.
    world.racks.insert(3, rack(1));
    world.add_node(3, &[4 * 16 * MIB]);
    world.steps(2);
    world.create(20);
    world.until_quiet(300);
    assert_eq!(world.crowded(), 0);
    let chunks = world.chunks();
    let (id, chunk) = chunks
        .iter()
        .find(|(_, chunk)| chunk.has_copy_on(node(1)))
        .unwrap();
    let to = [2, 4, 6].map(node).into_iter().find(|to| !chunk.has_copy_on(*to));
    if let Some(to) = to {
        world
            .control
            .move_copy("v0", id.index, node(1), to, world.now)
            .unwrap();
    }
    world.until_quiet(3000);
    assert_eq!(world.crowded(), 0, "it is brought back");
    world.control.drain(node(1), None, world.now).unwrap();
    world.until_quiet(3000);
    world.assert_whole();
    assert!(!world.chunks().iter().any(|(_, chunk)| chunk.has_copy_on(node(1))));
    assert!((15..20).contains(&world.crowded()));
}
