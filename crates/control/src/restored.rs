//! What a chunk's configuration is when the store that knew it was put back from a backup (`docs/decisions/0107`). Pure: the record of the
//! backup and what nodes say comes in, the record to go on with comes out.
//!
//! Every node has named its copies by then, or does not run, as somebody says. Of the configurations that are named the one with the highest
//! epoch counts, if all its members have answered, E. Could a later one, E', that nobody names be in force, or come into force? Its write node learns of it from its
//! own engine, which asked after everything that it had to tell, so a write node that runs has named E'; and one that does not run brings
//! nothing into force. If E' was in force, all its members have sealed it, at least as many as the minimum; so unless that many do not run, one of them has named it.
//! With a minimum of two or more, E' has a member of E as well, who names it, unless that one's copy was deleted since.

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
/// do not run, as somebody says. Its epoch is so far above all that anybody knows.
pub(crate) fn settle(
    record: &Chunk,
    minimum: u8,
    said: &BTreeMap<NodeId, Option<CopyState>>,
    without: &BTreeSet<NodeId>,
    gap: u64,
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
    let needed = needed(newest, base, record);
    let mut silent = needed.iter().filter(|node| !said.contains_key(node));
    if let Some(node) = silent.find(|node| !without.contains(node)) {
        return Err(Undecided::Awaits(*node));
    }
    // One that was made anew, and is empty, is not the copy that was in sync.
    let anyone_took_part = states().any(|state| state.configuration.is_some());
    let is_gone = |node: &NodeId| match said.get(node) {
        Some(None) => true,
        Some(Some(state)) => anyone_took_part && state.configuration.is_none(),
        None => false,
    };
    let off = without.iter().filter(|node| !said.contains_key(node)).count();
    if states().next().is_none() && off == 0 {
        return Ok(Found::Nothing);
    }
    // So many can have gone on without the others, and all of those who know it can be off.
    let all_know = minimum > 1
        && needed
            .iter()
            .all(|node| said.contains_key(node) && !is_gone(node));
    if off >= usize::from(minimum) && !all_know {
        return refuse(format!(
            "{off} nodes are off, and {minimum} of them would have been enough to go on without the others; start them"
        ));
    }
    let sealed = states().map(|state| state.sealed).max().unwrap_or_default();
    if sealed > base.epoch {
        return refuse(format!(
            "epoch {sealed} is sealed, and no node that was heard says which configuration that is; start the other nodes"
        ));
    }
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
    let Some(epoch) = above(highest, gap) else {
        return refuse(format!("its epoch is {highest}, and none above it is left"));
    };
    let mut places: BTreeMap<NodeId, Copy> = BTreeMap::new();
    for copy in record
        .copies
        .iter()
        .filter(|copy| said.get(&copy.node) != Some(&None))
    {
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

/// Who may know of a later configuration than `newest`.
fn needed(
    newest: Option<&SealedConfiguration>,
    base: &SealedConfiguration,
    record: &Chunk,
) -> BTreeSet<NodeId> {
    let mut needed: BTreeSet<NodeId> = base.members.iter().map(|member| member.0).collect();
    match newest {
        Some(newest) => needed.extend(newest.members.iter().map(|member| member.0)),
        None => needed.extend(record.copies.iter().map(|copy| copy.node)),
    }
    needed
}

#[cfg(test)]
mod tests;
