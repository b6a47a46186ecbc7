//! How long a drain, a rebuild and evening out will still take: what is said must come true.

use super::*;

/// What was said at each second, until nothing was left: seconds said, if any, by seconds from the beginning.
fn said_until(
    world: &mut World<'_>,
    mut said: impl FnMut(&World<'_>) -> Option<Option<Duration>>,
) -> Vec<Option<f64>> {
    let mut all = Vec::new();
    while let Some(left) = said(world) {
        all.push(left.map(|left| left.as_secs_f64()));
        assert!(all.len() < 3000, "it does not end");
        world.steps(1);
    }
    all
}

/// Most of what is said is within a half and twice of what it then was, and something is said nearly always.
fn assert_true(said: &[Option<f64>], what: &str) {
    let seconds = said.len();
    assert!(seconds > 60, "{what}: {seconds} s are too few to say anything");
    assert_eq!(said[0], None, "{what}: nobody can know yet");
    let shown = said.iter().filter(|said| said.is_some()).count();
    assert!(shown * 10 > seconds * 8, "{what}: said in {shown} of {seconds} s");
    // The last copies are fewer at a time.
    let rest = |second: usize| (seconds - second) as f64;
    let judged = said.iter().enumerate().filter(|(second, _)| rest(*second) > 40.0);
    let judged: Vec<(f64, f64)> = judged
        .filter_map(|(second, said)| said.map(|said| (said, rest(second))))
        .collect();
    let right = |(said, was): &&(f64, f64)| (was / 2.0..=was * 2.0).contains(said);
    let right = judged.iter().filter(right).count();
    assert!(
        right * 10 > judged.len() * 8,
        "{what}: {right} of {}: {judged:?}",
        judged.len()
    );
}

#[test]
fn how_long_a_drain_will_still_take_comes_true() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 21);
    for number in 1..=6 {
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(1200);
    world.fill_max = Duration::from_secs(30);
    let now = world.now;
    world.control.drain(node(2), None, now).unwrap();
    let of_node = |world: &World<'_>| {
        let status = world.control.status(world.now).unwrap();
        status
            .nodes
            .into_iter()
            .find(|status| status.view.id == node(2))
            .unwrap()
    };
    let said = said_until(&mut world, |world| {
        let status = of_node(world);
        (status.drained.copies > 0).then_some(status.drain_left)
    });
    assert_true(&said, "drain");
    assert_eq!(of_node(&world).drain_left, None, "nothing is left");
}

#[test]
fn how_long_lost_copies_will_still_be_made_comes_true() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 22);
    for number in 1..=6 {
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(1200);
    world.fill_max = Duration::from_secs(30);
    world.kill(3);
    world.deaths = 1;
    // Before they are made, nothing is said however long it takes.
    world.steps(20);
    let of_volume = |world: &World<'_>| world.control.status(world.now).unwrap().volumes.remove(0);
    let lost = of_volume(&world);
    assert!(lost.lacking_copies > 100, "{}", lost.lacking_copies);
    assert_eq!(lost.lacking.0, u64::from(lost.lacking_copies) * 16 * MIB);
    let said = said_until(&mut world, |world| {
        let status = of_volume(world);
        assert_eq!(status.lacking_copies, status.degraded_chunks, "one each");
        (status.lacking_copies > 0).then_some(status.mend_left)
    });
    assert_true(&said, "rebuild");
}

#[test]
fn how_long_evening_out_will_still_take_comes_true() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 23);
    for number in 1..=4 {
        world.add_node(number, &[SIZE]);
    }
    world.steps(2);
    world.create(400);
    world.until_quiet(300);
    world.add_node(5, &[SIZE]);
    while world.control.balance(world.now).unwrap().moves.is_empty() {
        world.step();
    }
    let said = said_until(&mut world, |world| {
        let balance = world.control.balance(world.now).unwrap();
        (balance.state != RebalanceState::Even).then_some(balance.time_left)
    });
    assert_true(&said, "evening out");
    assert_eq!(world.control.balance(world.now).unwrap().time_left, None);
}
