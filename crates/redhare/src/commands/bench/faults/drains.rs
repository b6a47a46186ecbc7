//! `redhare bench faults pauses --only drained`: what clients feel while all copies of a node that lives move elsewhere, one node
//! after the other. A chunk whose copy has a new place gets a new configuration, and its writes wait until grants under the one
//! before have ended.

use std::path::Path;

use bench::report::Row;
use master::{uuid_text, v1};

use super::load::Role;
use super::pauses::{CALM, SETTLED, Window, hold, row, start, start_load};
use super::world::World;
use crate::output::Failure;

/// One more than copies, so that there is a place.
const NODES: usize = 4;
/// As where a node vanishes: reads find another copy, writes wait for a grant term at most, and a second.
const READ_MS: f64 = 300.0;
const WRITE_MS: f64 = 4000.0;

pub(super) fn rows(rounds: usize, place: &Path) -> Result<Vec<Row>, Failure> {
    std::fs::create_dir_all(place).map_err(Failure::new)?;
    let world = start(NODES, 1, place)?;
    let load = start_load(&world)?;
    let (mut calm, mut windows): (Vec<Window>, Vec<Window>) = (Vec::new(), Vec::new());
    let mut moved = 0;
    for round in 0..rounds {
        let number = 1 + round % NODES;
        let id = uuid_text(&node(&world, number)?.node);
        // What waited for the configuration before is over by then.
        hold(&load, CALM * 2);
        calm.push(hold(&load, CALM));
        let from = load.now();
        world.redhare(&["node", "drain", &id])?;
        moved += node(&world, number)?.draining_copies;
        world.wait("nothing is left on the node", |world| {
            world.is_well() && node(world, number).is_ok_and(|node| node.draining_copies == 0)
        })?;
        windows.push((from, load.now()));
        world.redhare(&["node", "undrain", &id])?;
    }
    let done = load.finish()?;
    let kinds = [
        (Role::ReadSettled, SETTLED, READ_MS),
        (Role::WriteOwn, "writes", WRITE_MS),
    ];
    let rows = kinds.map(|(role, kind, bar)| {
        let name = format!("native client, node drained: longest of the {kind}");
        let row = row(name, &done, role, &windows, &calm, Some(bar));
        let note = format!("{}; {moved} copies moved in all", row.note);
        row.with_note(note)
    });
    Ok(rows.into())
}

fn node(world: &World, number: usize) -> Result<v1::NodeStatus, Failure> {
    let nodes = world.status()?.nodes;
    let found = nodes.into_iter().find(|node| World::is_node(node, number));
    found.ok_or_else(|| Failure::new(format!("the masters do not know node {number}")))
}
