//! Bugs that are planted, each found by a seed that `docs/planted-bugs.md` names.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::world::{self, World};
use crate::planted::Bug;

const TABLE: &str = include_str!("../../../../docs/planted-bugs.md");
/// A bug that no seed below finds is too well hidden from the simulation.
const LIMIT: u64 = 2000;

/// The kind of faults that a bug needs, where only few seeds have them in the right order.
pub(super) fn scenario(bug: Bug) -> Option<u64> {
    match bug {
        Bug::GrantCountedFromReceipt
        | Bug::NoQuietTerm
        | Bug::OneGrantFewer
        | Bug::SealWithoutGate
        | Bug::AnswerForAnyPart => Some(0),
        Bug::ReadRightPastGrants => Some(3),
        Bug::IntentClearedBeforeFlush | Bug::FlushSkipsChunk => Some(world::POWER),
        // A Join that comes again late, and an old write right after it.
        Bug::JoinWithoutNumber => Some(2),
        // A copy that was alone, let another in and was left out itself; then the disk of that one fails.
        Bug::RestoredAsksMembersOnly => Some(5),
        Bug::ResyncOverwritesNewer => Some(6),
        Bug::OwnMarksIgnored | Bug::ReconciledNotCounted => Some(world::GIVES_UP),
        Bug::NoRoomTakenForDone => Some(world::FULL),
        Bug::MovedBeforeInSync
        | Bug::RestoredLowersEpoch
        | Bug::RestoredHearsOnlySealed
        | Bug::LeavingCopyCounts
        | Bug::SnapshotLeavesUnasked
        | Bug::LostPassesForRight
        | Bug::LostTakenWhereUnknown
        | Bug::CloneForgetsRegions => Some(world::REBUILD),
        Bug::DamageIgnored
        | Bug::RepairOverwritesNewer
        | Bug::PastReadSumsIgnored
        | Bug::PastReadSumsNotDurable
        | Bug::JoinerBelieved
        | Bug::SnapshotSumsIgnored
        | Bug::MendedFromLive => Some(world::HARM),
        _ => None,
    }
}

/// The seeds that the table names, by the names of the switches.
pub(super) fn named() -> BTreeMap<&'static str, u64> {
    let row = |line: &'static str| {
        let mut columns = line.strip_prefix('|')?.split('|').skip(1);
        let switch = columns.next()?.trim().strip_prefix('`')?.strip_suffix('`')?;
        Some((switch, columns.next()?.trim().parse().ok()?))
    };
    TABLE.lines().filter_map(row).collect()
}

/// What the simulation says of a seed with this bug in it: which promise is broken, if any is.
fn find(bug: Bug, seed: u64, trace: bool) -> Option<String> {
    let run = || {
        let mut world = World::with_scenario(seed, Some(bug), scenario(bug));
        world.run_as_asked(trace)
    };
    // An assertion of the core's that fails is a finding, too.
    let broken = || Err("an assertion of the core failed".to_owned());
    let why = catch_unwind(run).unwrap_or_else(|_| broken()).err()?;
    // To be stuck is bad, but what a bug must be seen to do is to break a promise.
    (!why.contains("stuck")).then_some(why)
}

/// The first seed that finds a bug, of all that are allowed; one after another on each processor.
fn search(bugs: &[Bug]) -> Vec<(Bug, Option<(u64, String)>)> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seed = (0..LIMIT).find_map(|seed| Some((seed, find(bug, seed, false)?)));
                    found
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((bug, seed));
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Each bug by the seed that the table names. Whatever changes the order in which the simulation draws its numbers changes the seeds; then
/// they are looked for from 0 on, and the new ones are said. `REDHARE_SEARCH=1` looks for all. `REDHARE_BUG=NAME` looks for one only; with
/// `REDHARE_SEED=S` it runs that seed, and prints its trace.
#[test]
fn planted_bugs_are_found() {
    let asked = |name: &str| std::env::var(name).ok();
    let only = asked("REDHARE_BUG");
    let named = named();
    let mut wrong = Vec::new();
    for bug in Bug::ALL {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let traced = asked("REDHARE_SEED").and_then(|seed| seed.parse().ok());
        let seed = traced.or(named.get(name.as_str()).copied());
        let seed = seed.filter(|_| asked("REDHARE_SEARCH").is_none());
        match seed.and_then(|seed| Some((seed, find(bug, seed, traced.is_some())?))) {
            Some((seed, why)) => println!("{name}: seed {seed}: {}", why.lines().next().unwrap_or_default()),
            None => wrong.push(bug),
        }
    }
    let (mut moved, mut missed) = (Vec::new(), Vec::new());
    for (bug, found) in search(&wrong) {
        let name = format!("{bug:?}");
        match found {
            Some((seed, _)) if named.get(name.as_str()) == Some(&seed) => {}
            Some((seed, why)) => {
                println!("{name}: seed {seed}: {}", why.lines().next().unwrap_or_default());
                moved.push(format!("{name} {seed}"));
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found in {LIMIT} seeds: {missed:?}");
    assert!(
        moved.is_empty(),
        "found at other seeds than docs/planted-bugs.md says: {moved:?}"
    );
}
