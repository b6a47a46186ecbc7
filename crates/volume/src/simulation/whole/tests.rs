//! Seeds of whole clusters, and the mistakes of masters that they find.

use super::World;

/// The masters are the real ones: blocks are linearizable, nothing acknowledged is lost, copies are equal and where the store places them,
/// and the room promised is theirs, whatever happens to nodes, masters, etcd and the ways between them.
#[test]
fn clusters_with_masters_of_their_own_keep_their_promises() {
    let seeds = foundation::seeds::from_environment(60);
    let (mut operations, mut moved, mut failed) = (0, 0, Vec::new());
    let (mut reigns, mut lost, mut left_out, mut recovered) = (0, 0, 0, 0);
    for &seed in &seeds {
        let mut world = World::whole(seed, None);
        world.trace = seeds.len() == 1;
        if let Err(why) = world.run() {
            let lines = if world.trace { usize::MAX } else { 1 };
            why.lines()
                .take(lines)
                .for_each(|line| println!("seed {seed}: {line}"));
            failed.push(seed);
        }
        operations += world.done_ops;
        moved += world.places.moved;
        let whole = world.of_whole();
        reigns += whole.reigns;
        lost += whole.lost;
        left_out += whole.left_out;
        recovered += whole.recovered;
    }
    println!(
        "{} seeds, {operations} operations, {reigns} reigns, {lost} answers lost, {left_out} copies left out, {recovered} \
         chunks begun anew, {moved} copies moved",
        seeds.len()
    );
    assert!(
        failed.is_empty(),
        "replay with REDHARE_SEED=S, S one of {failed:?}"
    );
    let many = seeds.len() as u64;
    let is_much =
        operations > 300 * many && reigns > 2 * many && lost > many && left_out > many && moved > many;
    assert!(is_much || many < 10, "hardly anything happened");
}

#[test]
fn the_same_seed_gives_the_same_whole_cluster() {
    let run = |seed| World::whole(seed, None).run();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
