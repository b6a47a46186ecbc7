//! Which configuration of a chunk may follow which. Pure: what is known of the nodes comes in.
//!
//! Two ways lead from one epoch to the next. The masters leave out members that are gone and hand
//! the writes to a living member, as long as the minimum lives, and start again with new lives when
//! every member's life has provably ended. At the minimum they only hand the writes over, once the lives that
//! ended have successors to let in. The write node proposes joins, replacements and
//! members it has waited for in vain. A node that a master wrongly takes for gone costs a copy
//! for a while, never a byte: the grants between the members see to that.

use std::collections::BTreeMap;

use foundation::Epoch;

use crate::error::ControlError;
use crate::identity::{ChunkId, Incarnation, NodeId};
use crate::model::{Chunk, Copy};

/// What a master knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The latest life of its target.
    pub incarnation: Incarnation,
    /// Every life up to this one has provably ended.
    pub ended_through: Incarnation,
    /// It has been heard recently enough.
    pub is_alive: bool,
    /// It has been heard at all, rather than taken for alive because the master has just started.
    pub is_heard: bool,
}

/// What a write node proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Who proposes.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The epoch to be replaced.
    pub expected: Epoch,
    /// Who is to order the writes.
    pub write_node: NodeId,
    /// Who is to be in sync, in ascending order of nodes.
    pub members: Vec<(NodeId, Incarnation)>,
}

/// What becomes of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To be committed.
    Commit(Chunk),
    /// It is the committed configuration already: the answer to it was lost.
    Committed,
}

/// Whether every member of a chunk lives. Then its configuration stays, whoever has been heard.
pub fn is_whole(chunk: &Chunk, nodes: &BTreeMap<NodeId, Standing>) -> bool {
    chunk.members().all(|member| lives(member, nodes))
}

pub(crate) fn lives((node, incarnation): (NodeId, Incarnation), nodes: &BTreeMap<NodeId, Standing>) -> bool {
    nodes.get(&node).is_some_and(|standing| {
        standing.is_alive && standing.incarnation == incarnation && standing.ended_through < incarnation
    })
}

/// The configuration the masters propose to follow `chunk`, or none when it is to stay.
/// `pin` and `spread` choose the new write node where a choice is needed.
pub fn successor(
    chunk: &Chunk,
    minimum: u8,
    pin: Option<NodeId>,
    nodes: &BTreeMap<NodeId, Standing>,
    spread: u64,
) -> Option<Chunk> {
    if is_whole(chunk, nodes) {
        return None;
    }
    let living: Vec<NodeId> = chunk
        .members()
        .filter(|&member| lives(member, nodes))
        .map(|m| m.0)
        .collect();
    let write_node_lives = living.contains(&chunk.write_node);
    if living.is_empty() {
        return recovery(chunk, minimum, pin, nodes, spread);
    }
    // Below the minimum nobody is left out: writes wait.
    if living.len() < usize::from(minimum) {
        return hand_over(chunk, &living, pin, nodes, spread);
    }
    // Those who stay must have been heard. Where everything starts again at once, the first node to
    // tell that its life has ended would be left out otherwise, on the presumption that the others
    // live, when all may recover together.
    let is_heard = |node: &&NodeId| nodes.get(node).is_some_and(|standing| standing.is_heard);
    if living.iter().filter(is_heard).count() < usize::from(minimum) {
        return None;
    }
    let mut copies = chunk.copies.clone();
    for copy in copies.iter_mut().filter(|copy| !living.contains(&copy.node)) {
        copy.incarnation = None;
    }
    let write_node = if write_node_lives {
        chunk.write_node
    } else {
        choose(&living, pin, spread)
    };
    Some(Chunk {
        epoch: chunk.epoch.next(),
        write_node,
        copies,
        recovery: false,
    })
}

/// Where nobody can be left out and the write node has ended: a living member orders the writes, once every node whose
/// life has ended is back in another one, which that member lets in. Before that it could not serve, since not every
/// member can seal, while under the configuration as it stands the living go on answering reads.
fn hand_over(
    chunk: &Chunk,
    living: &[NodeId],
    pin: Option<NodeId>,
    nodes: &BTreeMap<NodeId, Standing>,
    spread: u64,
) -> Option<Chunk> {
    let is_back = |(node, incarnation): (NodeId, Incarnation)| {
        nodes.get(&node).is_some_and(|standing| {
            standing.is_alive
                && standing.is_heard
                && standing.incarnation > incarnation
                && standing.ended_through < standing.incarnation
        })
    };
    let mut ended = chunk.members().filter(|(node, _)| !living.contains(node));
    if living.contains(&chunk.write_node) || !ended.all(is_back) {
        return None;
    }
    Some(Chunk {
        epoch: chunk.epoch.next(),
        write_node: choose(living, pin, spread),
        copies: chunk.copies.clone(),
        recovery: false,
    })
}

/// After every member's life has ended: the lives that follow them, if enough have begun.
fn recovery(
    chunk: &Chunk,
    minimum: u8,
    pin: Option<NodeId>,
    nodes: &BTreeMap<NodeId, Standing>,
    spread: u64,
) -> Option<Chunk> {
    let has_ended = |(node, incarnation): (NodeId, Incarnation)| {
        nodes
            .get(&node)
            .is_some_and(|standing| standing.ended_through >= incarnation)
    };
    if !chunk.members().all(has_ended) {
        return None;
    }
    let returned = |copy: &Copy| {
        let standing = nodes.get(&copy.node)?;
        let lives =
            copy.incarnation.is_some() && standing.is_alive && standing.ended_through < standing.incarnation;
        lives.then_some(standing.incarnation)
    };
    let copies: Vec<Copy> = chunk
        .copies
        .iter()
        .map(|copy| Copy {
            incarnation: returned(copy),
            ..*copy
        })
        .collect();
    let members: Vec<NodeId> = copies
        .iter()
        .filter(|copy| copy.incarnation.is_some())
        .map(|copy| copy.node)
        .collect();
    // Of fewer than the minimum, which only a copy served by force leaves, all come back.
    if members.len() < usize::from(minimum).min(chunk.member_count()) {
        return None;
    }
    Some(Chunk {
        epoch: chunk.epoch.next(),
        write_node: choose(&members, pin, spread),
        copies,
        recovery: true,
    })
}

pub(crate) fn choose(candidates: &[NodeId], pin: Option<NodeId>, spread: u64) -> NodeId {
    match pin {
        Some(pin) if candidates.contains(&pin) => pin,
        _ => candidates[(spread % candidates.len() as u64) as usize],
    }
}

/// Judges what a write node proposes for `id`, whose committed configuration is `current`.
pub fn judge(
    id: ChunkId,
    current: &Chunk,
    minimum: u8,
    proposal: &Proposal,
    nodes: &BTreeMap<NodeId, Standing>,
) -> Result<Verdict, ControlError> {
    let is_committed = current.epoch == proposal.expected.next()
        && current.write_node == proposal.write_node
        && current.members().eq(proposal.members.iter().copied());
    if is_committed {
        return Ok(Verdict::Committed);
    }
    if current.epoch != proposal.expected {
        return Err(ControlError::StaleProposal {
            chunk: id,
            expected: proposal.expected,
            current: current.epoch,
        });
    }
    let proposes_as_write_node =
        proposal.node == current.write_node && current.has_member(proposal.node, proposal.incarnation);
    if !proposes_as_write_node {
        return Err(ControlError::NotWriteNode {
            chunk: id,
            node: proposal.node,
            incarnation: proposal.incarnation,
            write_node: current.write_node,
        });
    }
    // Fewer than the minimum are left only by force: they become more again, one at a time.
    if proposal.members.len() < usize::from(minimum).min(current.member_count()) {
        return Err(ControlError::BelowMinimum {
            chunk: id,
            members: proposal.members.len(),
            minimum,
        });
    }
    check_members(id, current, proposal, nodes)?;
    let incarnation_of = |node| {
        proposal
            .members
            .iter()
            .find(|member| member.0 == node)
            .map(|member| member.1)
    };
    let copies = current.copies.iter();
    Ok(Verdict::Commit(Chunk {
        epoch: current.epoch.next(),
        write_node: proposal.write_node,
        copies: copies
            .map(|copy| Copy {
                incarnation: incarnation_of(copy.node),
                ..*copy
            })
            .collect(),
        recovery: false,
    }))
}

fn check_members(
    id: ChunkId,
    current: &Chunk,
    proposal: &Proposal,
    nodes: &BTreeMap<NodeId, Standing>,
) -> Result<(), ControlError> {
    let refuse = |node, problem, remedy| {
        Err(ControlError::Member {
            chunk: id,
            node,
            problem,
            remedy,
        })
    };
    if let Some(pair) = proposal.members.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return refuse(
            pair[1].0,
            "twice or out of order",
            "name each member once, in ascending order",
        );
    }
    for &(node, incarnation) in &proposal.members {
        if !current.has_copy_on(node) {
            return refuse(
                node,
                "which has no copy of it",
                "name nodes on which a copy is placed",
            );
        }
        let stays = current.has_member(node, incarnation);
        let known = nodes.get(&node).is_some_and(|standing| {
            standing.incarnation == incarnation && standing.ended_through < incarnation
        });
        if !stays && !known {
            return refuse(
                node,
                "in a life that is over or was never registered",
                "join the life that is registered now",
            );
        }
    }
    // The write node's word carries over to the next configuration only with a life in both.
    let write_node = proposal
        .members
        .iter()
        .find(|member| member.0 == proposal.write_node);
    match write_node {
        Some(&(node, incarnation)) if current.has_member(node, incarnation) => Ok(()),
        _ => refuse(
            proposal.write_node,
            "as write node, which is not in sync now",
            "name a member that was in sync before",
        ),
    }
}

#[cfg(test)]
mod tests;
