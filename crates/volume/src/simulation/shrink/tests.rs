//! What is left of failing runs fails still.

use super::*;
use crate::planted::Bug;
use crate::simulation::kinds::Kinds;

#[test]
fn a_part_is_written_and_read_the_same() {
    let mut part = Part {
        faults: vec![3, 17],
        clients: Some(2),
        faults_end: None,
        salt: 4,
    };
    assert_eq!(part.to_string(), "faults=3,17;salt=4;clients=2");
    assert_eq!(part.to_string().parse(), Ok(part.clone()));
    (part.faults, part.faults_end) = (Vec::new(), Some(7));
    assert_eq!(part.to_string().parse(), Ok(part));
    assert!("faults".parse::<Part>().is_err() && "salt=x".parse::<Part>().is_err());
}

/// What is left still fails when it is replayed as it is printed, and has few of the faults.
fn shrinks_to(recipe: Recipe, most: usize) {
    let shrunk = shrink(recipe).expect("it fails");
    println!(
        "{} of {} faults: {}",
        shrunk.part.faults.len(),
        shrunk.of,
        shrunk.part
    );
    let (left, of) = (shrunk.part.faults.len(), shrunk.of);
    assert!(left < of && left <= most, "{left} of {of} faults are left");
    let part: Part = shrunk.part.to_string().parse().expect("as it was written");
    let why = why_it_fails(&mut replay(recipe, &part)).expect("it fails still");
    assert_eq!(why, shrunk.why);
}

#[test]
fn failing_runs_become_smaller() {
    let of_nodes = |bug, seed| Recipe {
        seed,
        bug: Some(bug),
        scenario: None,
        kinds: Kinds::for_bug(Some(bug)),
    };
    shrinks_to(of_nodes(Bug::NoReconciliation, 45), 4);
    let of_masters = World::whole(0, Some(control::testing::Bug::KeepsRoomOfGivenUp));
    shrinks_to(of_masters.recipe, 4);
}

/// All faults written down are the first run again, event for event.
#[test]
fn all_faults_together_are_the_same_run() {
    let of_nodes = (0..11).map(|seed| World::new(seed, false).recipe);
    let of_masters = (0..6).map(|seed| World::whole(seed, None).recipe);
    for recipe in of_nodes.chain(of_masters) {
        let mut first = World::of(recipe, Script::default());
        first.run().expect("nothing is planted");
        let part = Part {
            faults: (0..first.injected.len()).collect(),
            ..Part::default()
        };
        assert!(!part.faults.is_empty() && first.done_ops > 0);
        let mut again = World::of(recipe, script(&first.injected, &part));
        again.run().expect("as before");
        let seen = |world: &World| (world.now, world.done_ops, world.past_reads, world.store.clone());
        assert_eq!(seen(&again), seen(&first), "seed {}", recipe.seed);
    }
}
