//! What a chunk's configuration is when the store that knew it was put back from a backup (`docs/decisions/0107`). Pure: the record of the
//! backup and what nodes say comes in, the record to go on with comes out.
//!
//! Of the configurations that nodes name, the one with the highest epoch counts, if every node that is a member of it has answered. A later one,
//! E', that none of them knows cannot come into force any more: a successor's members are among those of the one before, or were let in
//! by it while it was in force; so one of them orders its writes, and learns of E' from its own engine, which asked it
//! after everything that it had to tell. By the same argument nothing that followed E' is in force.

use std::collections::{BTreeMap, BTreeSet};

use crate::controller::force::CopyState;
use crate::controller::restored::above;
use crate::identity::NodeId;
use crate::model::{Chunk, Copy};
use crate::rebuild::SealedConfiguration;

/// What was found of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// This is what it goes on with.
    Chunk(Chunk),
    /// No node has a copy of it any more: its volume was deleted since.
    Nothing,
}

/// Why it is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// This node has to answer first.
    Awaits(NodeId),
    /// What nodes say does not settle it.
    Refused(String),
}

fn refuse<T>(why: String) -> Result<T, Undecided> {
    Err(Undecided::Refused(why))
}

/// The configuration of a record.
fn of_record(chunk: &Chunk) -> SealedConfiguration {
    SealedConfiguration {
        epoch: chunk.epoch,
        write_node: chunk.write_node,
        members: chunk.members().collect(),
    }
}

/// The record that a chunk goes on with. `said` is what nodes have answered, none for those that have no such copy; `without` are nodes that
/// do not run, as somebody says.
pub(crate) fn settle(
    record: &Chunk,
    minimum: u8,
    said: &BTreeMap<NodeId, Option<CopyState>>,
    without: &BTreeSet<NodeId>,
) -> Result<Found, Undecided> {
    let states = || said.values().flatten();
    let named = || states().flat_map(|state| state.configuration.iter().chain(&state.told));
    let newest = named().max_by_key(|config| config.epoch);
    let recorded = of_record(record);
    // The backup may know one that no node had heard of when it was made.
    let base = newest
        .filter(|newest| newest.epoch > recorded.epoch)
        .unwrap_or(&recorded);
    let recorded_too = std::iter::once(&recorded);
    if named()
        .chain(recorded_too)
        .any(|config| config.epoch == base.epoch && config != base)
    {
        return refuse(format!("two nodes say different things of epoch {}", base.epoch));
    }
    let unheard = check_answers(newest, base, record, minimum, said, without)?;
    if states().next().is_none() && unheard == 0 {
        return Ok(Found::Nothing);
    }
    let sealed = states().map(|state| state.sealed).max().unwrap_or_default();
    if sealed > base.epoch {
        return refuse(format!(
            "epoch {sealed} is sealed, and no node that was heard says which configuration that is; start the other nodes"
        ));
    }
    let is_gone = |node: &NodeId| said.get(node) == Some(&None);
    let members: BTreeMap<_, _> = base
        .members
        .iter()
        .copied()
        .filter(|(node, _)| !is_gone(node))
        .collect();
    let needed = usize::from(minimum).min(base.members.len());
    if members.len() < needed {
        return refuse(format!(
            "{} of the {} copies that were in sync in epoch {} are gone, {} are left and {needed} needed; \"redhare meta rebuild\" shows all that is on the disks",
            base.members.len() - members.len(),
            base.members.len(),
            base.epoch,
            members.len()
        ));
    }
    let highest = base.epoch.max(sealed).max(record.epoch);
    let Some(epoch) = above(highest) else {
        return refuse(format!("its epoch is {highest}, and none above it is left"));
    };
    let mut places: BTreeMap<NodeId, Copy> = BTreeMap::new();
    for copy in record.copies.iter().filter(|copy| !is_gone(&copy.node)) {
        places.insert(
            copy.node,
            Copy {
                incarnation: None,
                ..*copy
            },
        );
    }
    for (&node, state) in said
        .iter()
        .filter_map(|(node, state)| Some((node, state.as_ref()?)))
    {
        let place = places.entry(node).or_insert(Copy {
            node,
            disk: state.disk,
            incarnation: None,
        });
        place.disk = state.disk;
    }
    for (&node, &life) in &members {
        // On which disk a copy is whose node is off, only that knows.
        let unknown = Copy {
            node,
            disk: Default::default(),
            incarnation: None,
        };
        places.entry(node).or_insert(unknown).incarnation = Some(life);
    }
    let first = members.keys().next().copied();
    let chunk = Chunk {
        epoch,
        write_node: match members.contains_key(&base.write_node) {
            true => base.write_node,
            false => first.unwrap_or(base.write_node),
        },
        copies: places.into_values().collect(),
        recovery: record.recovery && *base == recorded,
    };
    match chunk.is_consistent() {
        true => Ok(Found::Chunk(chunk)),
        false => refuse(format!("the configuration of epoch {} cannot be one", base.epoch)),
    }
}

/// Whether all have answered who may know of a later configuration than `newest`; how many of them are off.
fn check_answers(
    newest: Option<&SealedConfiguration>,
    base: &SealedConfiguration,
    record: &Chunk,
    minimum: u8,
    said: &BTreeMap<NodeId, Option<CopyState>>,
    without: &BTreeSet<NodeId>,
) -> Result<usize, Undecided> {
    let mut needed: BTreeSet<NodeId> = base.members.iter().map(|member| member.0).collect();
    match newest {
        Some(newest) => needed.extend(newest.members.iter().map(|member| member.0)),
        None => needed.extend(record.copies.iter().map(|copy| copy.node)),
    }
    let silent: Vec<NodeId> = needed
        .into_iter()
        .filter(|node| !said.contains_key(node))
        .collect();
    if let Some(node) = silent.iter().find(|node| !without.contains(node)) {
        return Err(Undecided::Awaits(*node));
    }
    // So many can have gone on without the others.
    if silent.len() >= usize::from(minimum) {
        return refuse(format!(
            "{} nodes that had it in sync are off, and {minimum} of them would have been enough to go on without the others; start them",
            silent.len()
        ));
    }
    Ok(silent.len())
}

#[cfg(test)]
mod tests;
