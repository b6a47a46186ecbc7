//! Which configuration follows which.

use super::*;
use crate::identity::{DiskId, Uuid, VolumeNumber};

const ID: ChunkId = ChunkId {
    volume: VolumeNumber(1),
    index: 0,
};

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

fn chunk(incarnations: &[u64], write_node: u128) -> Chunk {
    let copies = incarnations
        .iter()
        .zip(1u128..)
        .map(|(&incarnation, number)| Copy {
            node: node(number),
            disk: DiskId(Uuid(number)),
            incarnation: (incarnation > 0).then_some(Incarnation(incarnation)),
        });
    Chunk {
        epoch: Epoch(5),
        write_node: node(write_node),
        copies: copies.collect(),
        recovery: false,
    }
}

/// Nodes 1, 2, ... as (incarnation, ended through, alive).
fn nodes(standings: &[(u64, u64, bool)]) -> BTreeMap<NodeId, Standing> {
    let standing = |&(incarnation, ended_through, is_alive): &(u64, u64, bool)| Standing {
        incarnation: Incarnation(incarnation),
        ended_through: Incarnation(ended_through),
        is_alive,
        is_heard: is_alive,
    };
    (1u128..).map(node).zip(standings.iter().map(standing)).collect()
}

fn members(chunk: &Chunk) -> Vec<(u128, u64)> {
    chunk
        .members()
        .map(|(node, incarnation)| (node.0.0, incarnation.0))
        .collect()
}

#[test]
fn nothing_changes_while_all_live() {
    let nodes = nodes(&[(1, 0, true), (1, 0, true), (1, 0, true)]);
    assert_eq!(successor(&chunk(&[1, 1, 1], 1), 2, None, &nodes, 0), None);
}

#[test]
fn a_silent_or_restarted_member_is_left_out() {
    for standing in [(1, 0, false), (2, 0, true), (1, 1, true)] {
        let nodes = nodes(&[(1, 0, true), (1, 0, true), standing]);
        let next = successor(&chunk(&[1, 1, 1], 1), 2, None, &nodes, 0).unwrap();
        assert_eq!(members(&next), [(1, 1), (2, 1)]);
        assert_eq!(
            (next.epoch, next.write_node, next.copies.len()),
            (Epoch(6), node(1), 3)
        );
        assert!(!next.recovery);
    }
}

#[test]
fn a_lost_write_node_is_replaced_by_a_living_member_the_pinned_one_first() {
    let nodes = nodes(&[(1, 0, false), (1, 0, true), (1, 0, true)]);
    let chunk = chunk(&[1, 1, 1], 1);
    for (pin, spread, expected) in [(None, 0, 2), (None, 1, 3), (Some(3), 0, 3), (Some(1), 0, 2)] {
        let next = successor(&chunk, 2, pin.map(node), &nodes, spread).unwrap();
        assert_eq!(next.write_node, node(expected));
    }
}

#[test]
fn below_the_minimum_nothing_changes_so_that_reads_go_on() {
    // Whether the write node lives or not: another one could not serve before all have sealed.
    let nodes = nodes(&[(1, 0, false), (2, 1, true), (1, 0, true)]);
    for write_node in [1, 2, 3] {
        assert_eq!(
            successor(&chunk(&[1, 1, 1], write_node), 2, None, &nodes, 0),
            None
        );
    }
}

#[test]
fn at_the_minimum_a_living_member_takes_over_once_the_ended_are_back() {
    // Node 3 was left out before; of the two that remain, the write node has ended and is back in another life.
    let members_now = chunk(&[1, 1, 0], 1);
    let back = nodes(&[(2, 1, true), (1, 0, true), (1, 0, true)]);
    let next = successor(&members_now, 2, None, &back, 0).unwrap();
    assert_eq!((next.epoch, next.write_node), (Epoch(6), node(2)));
    assert_eq!(members(&next), [(1, 1), (2, 1)], "it lets the other life in");
    // It is not back yet, or only presumed to be; the write node lives and lets in who is back by itself.
    let gone = nodes(&[(1, 1, true), (1, 0, true), (1, 0, true)]);
    assert_eq!(successor(&members_now, 2, None, &gone, 0), None);
    let mut presumed = back.clone();
    presumed.get_mut(&node(1)).unwrap().is_heard = false;
    assert_eq!(successor(&members_now, 2, None, &presumed, 0), None);
    assert_eq!(successor(&chunk(&[1, 1, 0], 2), 2, None, &back, 0), None);
}

#[test]
fn nobody_is_left_out_on_the_presumption_that_others_live() {
    // A master that has just started: node 1 tells that its life has ended, the others were not heard yet.
    let mut nodes = nodes(&[(2, 1, true), (1, 0, true), (1, 0, true)]);
    for presumed in [2, 3] {
        nodes.get_mut(&node(presumed)).unwrap().is_heard = false;
    }
    let chunk = chunk(&[1, 1, 1], 1);
    assert_eq!(successor(&chunk, 2, None, &nodes, 0), None);
    nodes.get_mut(&node(2)).unwrap().is_heard = true;
    assert_eq!(successor(&chunk, 2, None, &nodes, 0), None);
    // They live: it is left out. They tell the same: all recover together.
    let mut living = nodes.clone();
    living.get_mut(&node(3)).unwrap().is_heard = true;
    let next = successor(&chunk, 2, None, &living, 0).unwrap();
    assert_eq!(members(&next), [(2, 1), (3, 1)]);
    for returned in [2, 3] {
        let standing = nodes.get_mut(&node(returned)).unwrap();
        (standing.incarnation, standing.ended_through) = (Incarnation(2), Incarnation(1));
    }
    let next = successor(&chunk, 2, None, &nodes, 0).unwrap();
    assert_eq!(members(&next), [(1, 2), (2, 2), (3, 2)]);
    assert!(next.recovery);
}

#[test]
fn recovery_needs_proof_for_every_member_and_enough_new_lives() {
    let chunk = chunk(&[1, 1, 1], 1);
    let unproved = nodes(&[(2, 1, true), (2, 1, true), (2, 0, true)]);
    assert_eq!(successor(&chunk, 2, None, &unproved, 0), None);
    let too_few = nodes(&[(2, 1, true), (1, 1, false), (2, 1, false)]);
    assert_eq!(successor(&chunk, 2, None, &too_few, 0), None);
    let all = nodes(&[(2, 1, true), (4, 3, true), (2, 1, true)]);
    let next = successor(&chunk, 2, Some(node(2)), &all, 0).unwrap();
    assert_eq!(members(&next), [(1, 2), (2, 4), (3, 2)]);
    assert!(next.recovery);
    assert_eq!(next.write_node, node(2));
}

#[test]
fn a_copy_that_was_not_in_sync_is_not_in_the_recovery() {
    let all = nodes(&[(2, 1, true), (4, 3, true), (2, 1, true)]);
    let next = successor(&chunk(&[1, 1, 0], 1), 2, None, &all, 0).unwrap();
    assert_eq!(members(&next), [(1, 2), (2, 4)]);
}

fn proposal(write_node: u128, members: &[(u128, u64)]) -> Proposal {
    Proposal {
        node: node(1),
        incarnation: Incarnation(1),
        expected: Epoch(5),
        write_node: node(write_node),
        members: members
            .iter()
            .map(|&(number, incarnation)| (node(number), Incarnation(incarnation)))
            .collect(),
    }
}

#[test]
fn the_write_node_joins_replaces_and_leaves_out() {
    let nodes = nodes(&[(1, 0, true), (2, 1, true), (2, 1, true)]);
    let current = chunk(&[1, 1, 0], 1);
    for wanted in [
        &[(1, 1), (2, 1), (3, 2)][..],
        &[(1, 1), (2, 2)],
        &[(1, 1), (3, 2)],
    ] {
        let Ok(Verdict::Commit(next)) = judge(ID, &current, 2, &proposal(1, wanted), &nodes) else {
            panic!("{wanted:?} was refused");
        };
        assert_eq!(members(&next), wanted);
        assert_eq!(next.epoch, Epoch(6));
        let again = judge(ID, &next, 2, &proposal(1, wanted), &nodes);
        assert_eq!(again, Ok(Verdict::Committed), "a repeated proposal succeeds");
    }
}

#[test]
fn wrong_proposals_are_refused_with_a_remedy() {
    let nodes = nodes(&[(1, 0, true), (2, 1, true), (2, 1, true)]);
    let current = chunk(&[1, 1, 0], 1);
    let refused = |proposal: Proposal, part: &str| {
        let text = judge(ID, &current, 2, &proposal, &nodes).unwrap_err().to_string();
        assert!(
            text.contains(part) && text.contains("chunk 0 of volume 1"),
            "{text}"
        );
    };
    let good = proposal(1, &[(1, 1), (2, 1)]);
    refused(
        Proposal {
            expected: Epoch(4),
            ..proposal(1, &[(1, 1), (2, 2)])
        },
        "is at epoch 5, the proposal was made for epoch 4",
    );
    refused(
        Proposal {
            node: node(2),
            ..good.clone()
        },
        "only the write node's in-sync life proposes",
    );
    refused(
        Proposal {
            incarnation: Incarnation(2),
            ..good.clone()
        },
        "only the write node's",
    );
    refused(proposal(1, &[(1, 1)]), "its minimum is 2");
    refused(proposal(1, &[(2, 1), (1, 1)]), "out of order");
    refused(proposal(1, &[(1, 1), (1, 1)]), "twice");
    refused(proposal(1, &[(1, 1), (4, 1)]), "which has no copy of it");
    refused(proposal(1, &[(1, 1), (3, 1)]), "a life that is over");
    refused(proposal(3, &[(1, 1), (3, 2)]), "not in sync now");
    refused(proposal(3, &[(1, 1), (2, 1)]), "not in sync now");
}
