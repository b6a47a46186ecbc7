//! Seeds of whole clusters, and the mistakes of masters that they find.

use control::testing::Bug;

use super::{Kinds, World};
use crate::planted;

/// The masters are the real ones: blocks are linearizable, nothing acknowledged is lost, copies are equal and where the store places them,
/// and the room promised is theirs, whatever happens to nodes, masters, etcd and the ways between them.
#[test]
fn clusters_with_masters_of_their_own_keep_their_promises() {
    let seeds = foundation::seeds::from_environment(100);
    let (mut operations, mut moved, mut failed) = (0, 0, Vec::new());
    let (mut reigns, mut lost, mut left_out, mut recovered) = (0, 0, 0, 0);
    let (mut volumes, mut leases, mut renewals, mut given_back, mut outlived) = (0, 0, 0, 0, 0);
    let (mut lost_maps, mut old_maps, mut grown, mut snapshots, mut given_up) = (0, 0, 0, 0, 0);
    let (mut damage_seen, mut without_room, mut in_racks) = (0, 0, 0);
    let (mut disks_drained, mut renewed, mut slow_disks) = (0, 0, 0);
    let (mut reserved, mut changes, mut refused, mut removed) = (0, 0, 0, 0);
    let (mut blocks_lost, mut errors, mut told) = (0, 0, 0);
    for &seed in &seeds {
        let mut world = World::whole(seed, None);
        if let Err(why) = world.run_as_asked(seeds.len() == 1) {
            let lines = if world.trace { usize::MAX } else { 1 };
            why.lines()
                .take(lines)
                .for_each(|line| println!("seed {seed}: {line}"));
            failed.push(seed);
        }
        removed += (0..world.shape.nodes)
            .filter(|node| world.is_removed(*node))
            .count() as u64;
        operations += world.done_ops;
        moved += world.places.moved;
        damage_seen += world.damage_seen;
        without_room += world.without_room;
        slow_disks += world.slow_disks.as_ref().map_or(0, |slow| slow.begun);
        let whole = world.of_whole();
        in_racks += u64::from(whole.racks > 0);
        reigns += whole.reigns;
        lost += whole.lost;
        left_out += whole.left_out;
        recovered += whole.recovered;
        volumes += whole.volumes;
        leases += whole.leases;
        renewals += whole.renewals;
        given_back += whole.given_back;
        outlived += whole.outlived;
        lost_maps += whole.lost_maps;
        old_maps += whole.old_maps;
        grown += whole.grown;
        if let Some(drains) = &whole.disk_drains {
            disks_drained += drains.begun;
            renewed += drains.renewed;
        }
        if let Some(hosts) = &world.reserved {
            reserved += 1;
            changes += hosts.changes;
            refused += hosts.refused;
        }
        if let Some(losses) = &world.losses {
            blocks_lost += losses.lost;
            errors += losses.refused;
            told += losses.told;
        }
        if let Some(made) = &world.snapshots {
            snapshots += made.completed;
            given_up += made.aborted;
        }
    }
    println!(
        "{} seeds, {operations} operations, {reigns} reigns, {lost} answers lost, {left_out} copies left out, {recovered} \
         chunks begun anew, {moved} copies moved, {volumes} other volumes",
        seeds.len()
    );
    println!(
        "{leases} write leases, {renewals} times renewed, {given_back} given back, {outlived} lives outlived, {lost_maps} maps \
         lost, {old_maps} old ones, {grown} chunks added, {snapshots} snapshots, {given_up} given up"
    );
    println!(
        "{damage_seen} blocks did not fit their checksums, {without_room} times a copy found no room, {in_racks} clusters in racks, \
         {reserved} with hosts: {changes} changes of reservations in force, {refused} commands refused; {removed} nodes removed; {disks_drained} disks \
         drained, {renewed} copies made anew on another disk of their node; {slow_disks} times the disks of a node were slow for some time; {blocks_lost} blocks \
         lost on every copy, {errors} reads refused for that, {told} told to copies that were made or came back"
    );
    assert!(
        failed.is_empty(),
        "replay with REDHARE_SEED=S, S one of {failed:?}"
    );
    let many = seeds.len() as u64;
    let is_much = operations > 100 * many && reigns > 2 * many && lost > 2 * many && left_out > many;
    let is_much = is_much && recovered > many / 2 && moved > many / 4 && volumes > many && leases > many / 4;
    let is_much = is_much && renewals > many && given_back > 0 && outlived > 0 && grown > many / 4;
    let is_much =
        is_much && lost_maps > many && old_maps > many && snapshots > many / 2 && given_up > many / 2;
    let is_much = is_much && damage_seen > 0 && without_room > many / 10 && in_racks > many / 4;
    let is_much = is_much && changes > 5 * reserved && refused > 5 * reserved;
    let is_much = is_much && disks_drained > many / 2 && slow_disks > many / 2;
    let is_much = is_much && (blocks_lost > many / 2 && errors > many / 10 && told > 0 || many < 100);
    // Some five of a hundred worlds come to a node that goes for good, and as many to a copy that its own node makes anew on another disk.
    let is_much =
        is_much && (removed + renewed > 0 || many < 100) && (removed > 0 && renewed > 0 || many < 400);
    assert!(is_much || many < 10, "hardly anything happened");
}

/// While the volume grew, a copy of its new chunk moved to a node that was not asked whether it had made it.
#[test]
fn a_volume_grows_though_a_copy_of_its_new_chunk_moves() {
    let run = World::whole(9_000_594, None).run();
    assert!(run.is_ok(), "{run:?}");
}

#[test]
fn the_same_seed_gives_the_same_whole_cluster() {
    let run = |seed| World::whole(seed, None).run();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// The seed whose world breaks a promise first; why, then.
fn finds(world: impl Fn(u64) -> World + std::panic::RefUnwindSafe, most: u64) -> Option<(u64, String)> {
    (0..most).find_map(|seed| {
        // An assertion that fails is a finding, too.
        let run = || world(seed).run();
        let broken = |_| Err("an assertion failed".to_owned());
        let why = std::panic::catch_unwind(run).unwrap_or_else(broken).err()?;
        // To be stuck is bad, but what a bug must be seen to do is to break a promise.
        (!why.contains("stuck")).then_some((seed, why))
    })
}

#[test]
fn planted_mistakes_of_masters_are_found() {
    let (limit, named) = (500, super::super::planted::named());
    let (mut missed, mut moved) = (Vec::new(), Vec::new());
    let mut look_for = |bug, world: fn(u64, Bug) -> World| match finds(|seed| world(seed, bug), limit) {
        Some((seed, why)) => {
            println!("{bug:?}: seed {seed}: {}", why.lines().next().unwrap_or_default());
            if named.get(format!("{bug:?}").as_str()) != Some(&seed) {
                moved.push((bug, seed));
            }
        }
        None => missed.push(bug),
    };
    for bug in [
        Bug::ActsOnMemory,
        Bug::KeepsRoomOfGivenUp,
        Bug::LeavesGivenUp,
        Bug::ProposalUncompared,
        Bug::LeaseFoundIsOver,
        Bug::RenewsForAnyone,
        Bug::GrowsUnprepared,
        Bug::GrowsUnderSnapshot,
        Bug::CompletesGivenUp,
    ] {
        look_for(bug, |seed, bug| World::whole(seed, Some(bug)));
    }
    for bug in [Bug::ReplacesUncompared, Bug::NotesFewerChunks] {
        look_for(bug, |seed, bug| World::whole_with_hosts(seed, Some(bug), None));
    }
    assert!(missed.is_empty(), "not found in {limit} seeds: {missed:?}");
    assert!(
        moved.is_empty(),
        "found at other seeds than docs/planted-bugs.md says: {moved:?}"
    );
}

/// Also those of nodes and portals: what clients see is looked at here as everywhere.
#[test]
fn planted_mistakes_of_nodes_are_found_beside_real_masters() {
    use planted::Bug;
    let limit = 200;
    let look_for = |bug, world: fn(u64, Bug) -> World| {
        let found = finds(|seed| world(seed, bug), limit);
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found in {limit} seeds"));
        println!("{bug:?}: seed {seed}: {}", why.lines().next().unwrap_or_default());
    };
    let plain = |seed, bug| {
        let kinds = Kinds {
            whole: true,
            ..Kinds::default()
        };
        World::make(seed, Some(bug), None, kinds)
    };
    for bug in [
        Bug::WriteNodeReadsUnsettled,
        Bug::OldSessionAccepted,
        Bug::SealWithoutGate,
    ] {
        look_for(bug, plain);
    }
    for bug in [
        Bug::PortalReadsUnfenced,
        Bug::EnforcedBeforeAllKnow,
        Bug::OldAnswerTaken,
    ] {
        look_for(bug, |seed, bug| World::whole_with_hosts(seed, None, Some(bug)));
    }
}
