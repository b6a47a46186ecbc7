//! `redhare bench faults pauses`: what becomes of clients and of control calls when masters, or members of the etcd they share, are gone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bench::report::{Bar, Row};

use super::load::{Done, Role};
use super::pauses::{CALM, NODES, SETTLED, Window, hold, row, start, start_load};
use super::world::{LIMIT, World};
use crate::output::Failure;

/// What takes less is no pause, but what a machine with two processors does now and then without any fault.
const GONE_MS: f64 = 100.0;
/// Masters on an etcd, and its members.
const SEVERAL: usize = 3;

/// All masters are killed, and come back much later.
pub(super) fn all_gone(gone: Duration, world: &mut World) -> Result<Vec<Row>, Failure> {
    let load = start_load(world)?;
    let calm = [hold(&load, CALM)];
    for master in 0..world.masters() {
        world.kill_master(master)?;
    }
    let windows = [hold(&load, gone)];
    for master in 0..world.masters() {
        world.start_master(master)?;
    }
    world.wait("the masters answer, and all is well", World::is_well)?;
    let done = load.finish()?;
    let what = format!("all masters gone for {} s", gone.as_secs());
    Ok(pauses(&what, &done, &windows, &calm))
}

fn pauses(what: &str, done: &Done, windows: &[Window], calm: &[Window]) -> Vec<Row> {
    let row = |role, kind: &str| {
        let name = format!("{what}: longest of the {kind}");
        row(name, done, role, windows, calm, Some(GONE_MS))
    };
    vec![
        row(Role::ReadSettled, SETTLED),
        row(Role::ReadBetween, "reads between written blocks"),
        row(Role::WriteOwn, "writes"),
    ]
}

/// The member that leads the etcd of three masters is killed, and comes back much later; then two of the three are. Masters answer
/// again soon after the first, and cannot change anything while there is no quorum.
pub(super) fn etcd(gone: Duration, place: &Path) -> Result<Vec<Row>, Failure> {
    std::fs::create_dir_all(place).map_err(Failure::new)?;
    let mut world = start(NODES, SEVERAL, place)?;
    world.wait("etcd has a leader", |world| world.etcd_leader().is_some())?;
    let mut rows = Vec::new();
    for (what, count) in [("etcd's leader", 1), ("etcd's quorum", 2)] {
        let load = start_load(&world)?;
        let calm = [hold(&load, CALM)];
        let leader = world
            .etcd_leader()
            .ok_or_else(|| Failure::new("no member leads the etcd"))?;
        let killed: Vec<usize> = (0..count).map(|next| (leader + next) % SEVERAL).collect();
        let (began, from) = (Instant::now(), load.now());
        for &member in &killed {
            world.kill_etcd_member(member)?;
        }
        if count == 1 {
            rows.push(answered(&world, began)?);
        }
        std::thread::sleep(gone.saturating_sub(began.elapsed()));
        let windows = [(from, load.now())];
        for &member in &killed {
            world.start_etcd_member(member)?;
        }
        world.wait("etcd has a leader again", |world| world.etcd_leader().is_some())?;
        world.wait("the masters answer, and all is well", World::is_well)?;
        let done = load.finish()?;
        let what = format!("{what} gone for {} s", gone.as_secs());
        rows.extend(pauses(&what, &done, &windows, &calm));
    }
    Ok(rows)
}

/// How long after `began` something can be changed again: a volume is made.
fn answered(world: &World, began: Instant) -> Result<Row, Failure> {
    make_volume(world, "after", began, &mut BTreeSet::new())?;
    let took = began.elapsed().as_secs_f64();
    Ok(Row::new(
        "etcd's leader is killed: until a volume is made",
        took,
        "s",
        Some(Bar::Below(5.0)),
    ))
}

/// Asks for a small volume until there is one; notes what it was refused for, and when.
fn make_volume(
    world: &World,
    name: &str,
    began: Instant,
    refusals: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    let create = [
        "volume",
        "create",
        name,
        "--size",
        "16MiB",
        "--chunk-size",
        "16MiB",
    ];
    while let Err(failure) = world.redhare(&create) {
        refusals.insert(format!("{:.0} s: {failure}", began.elapsed().as_secs_f64()));
        if began.elapsed() > LIMIT {
            return Err(failure);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The master that leads is killed, of three on an etcd: how long until another one answers, and until a volume can be made,
/// for which it has to have heard the nodes.
pub(super) fn leader(rounds: usize, place: &Path) -> Result<Vec<Row>, Failure> {
    std::fs::create_dir_all(place).map_err(Failure::new)?;
    let mut world = start(NODES, SEVERAL, place)?;
    let (mut answered, mut made, mut refusals) = (Vec::new(), Vec::new(), BTreeSet::new());
    for round in 0..rounds {
        world.wait("a master leads, and all answer", |world| {
            leads(world).is_some_and(|(_, all)| all)
        })?;
        let (leader, _) = leads(&world).ok_or_else(|| Failure::new("no master leads"))?;
        let began = Instant::now();
        world.kill_master(leader)?;
        world.wait("another master leads", |world| {
            leads(world).is_some_and(|(other, _)| other != leader)
        })?;
        answered.push(began.elapsed().as_secs_f64());
        let name = format!("after-{round}");
        make_volume(&world, &name, began, &mut refusals)?;
        made.push(began.elapsed().as_secs_f64());
        world.start_master(leader)?;
    }
    let row = |what: &str, mut took: Vec<f64>, bar: Option<Bar>| {
        took.sort_by(f64::total_cmp);
        let worst = took.last().copied().unwrap_or(f64::NAN);
        let median = took.get(took.len() / 2).copied().unwrap_or(f64::NAN);
        let name = format!("the master that leads is killed, of three: {what}");
        Row::new(name, worst, "s", bar).with_note(format!("median {median:.1}, {} times", took.len()))
    };
    let refused: Vec<String> = refusals.into_iter().take(3).collect();
    let mut volume = row("until a volume is made", made, Some(Bar::Below(5.0)));
    if !refused.is_empty() {
        let refused = refused.join("; ");
        volume.note.push_str(&format!("; refused before that: {refused}"));
    }
    Ok(vec![
        row(
            "until control calls are answered",
            answered,
            Some(Bar::Below(5.0)),
        ),
        volume,
    ])
}

/// Which master leads, and whether all are there.
fn leads(world: &World) -> Option<(usize, bool)> {
    let status = world.redhare(&["status"]).ok()?;
    let masters = status["masters"].as_array()?;
    let leader = masters.iter().find(|master| master["leads"] == true)?;
    let number =
        (0..world.masters()).find(|&number| leader["address"] == world.master_address(number).as_str())?;
    Some((number, masters.len() == world.masters()))
}
