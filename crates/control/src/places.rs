//! What is to be done about the places of a chunk's copies (`docs/decisions/0060`). Pure: what is known of the nodes
//! comes in. Each change of the places is a configuration with an epoch of its own, so whatever was said of the places
//! before is known as old by its epoch; none is made while a member is gone, since it could not be sealed.
//!
//! A place is taken away only when as many copies as there should be are in sync without it: until then the oldest data
//! on the least likely node is better than none. The exception is a copy that can be made anew only by its own node, on another
//! disk (`crate::controller::siblings`): a node has one copy of a chunk at a time.

use crate::configuration::choose;
use crate::identity::{Incarnation, NodeId};
use crate::model::{Chunk, Copy};

/// What is known of places.
pub(crate) trait Outlook {
    /// This life of this node is heard.
    fn lives(&self, node: NodeId, incarnation: Incarnation) -> bool;
    /// Copies are to be moved away from there.
    fn drains(&self, copy: &Copy) -> bool;
    /// This copy is to be moved to the node that has been given the new one.
    fn moves(&self, copy: &Copy) -> bool;
    /// A copy that is out of sync is to be waited for.
    fn may_come(&self, copy: &Copy) -> bool;
}

/// What is to be done about a chunk's places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Nothing: all copies are in sync and where they should be.
    Right,
    /// Nothing now: a copy is on its way, or a member is gone.
    Wait,
    /// A copy on another node is to be added.
    Add,
    /// These places are to be taken away, with this configuration.
    Remove(Chunk, Vec<Copy>),
    /// A copy that is not drained was to be moved, and its new place does not become in sync: it stays where it is.
    Abandon,
    /// The writes are to be ordered by another member, with this configuration.
    HandOver(Chunk),
}

/// The next move for `chunk`, which should have `copies` copies.
pub(crate) fn next_move(
    chunk: &Chunk,
    copies: u8,
    pin: Option<NodeId>,
    spread: u64,
    outlook: &impl Outlook,
) -> Move {
    let copies = usize::from(copies);
    let members: Vec<&Copy> = chunk
        .copies
        .iter()
        .filter(|copy| copy.incarnation.is_some())
        .collect();
    let drains = |copy: &&&Copy| outlook.drains(copy);
    let is_draining = members.iter().any(|copy| outlook.drains(copy));
    let is_moving = is_draining || members.iter().any(|copy| outlook.moves(copy));
    let misplaced =
        pin.is_some_and(|pin| pin != chunk.write_node && members.iter().any(|copy| copy.node == pin));
    if members.len() == copies && chunk.copies.len() == copies && !is_moving && !misplaced {
        return Move::Right;
    }
    if !chunk.members().all(|(node, life)| outlook.lives(node, life)) {
        return Move::Wait;
    }
    if members.len() > copies {
        let moved = || members.iter().find(|copy| outlook.moves(copy));
        let goes = members.iter().find(drains).or_else(moved).or_else(|| {
            let others = members.iter().filter(|copy| copy.node != chunk.write_node);
            others.rev().find(|copy| Some(copy.node) != pin)
        });
        return goes.map_or(Move::Wait, |goes| without(chunk, &[**goes], pin, spread));
    }
    let out: Vec<Copy> = chunk
        .copies
        .iter()
        .filter(|copy| copy.incarnation.is_none())
        .copied()
        .collect();
    if members.len() == copies && !is_moving {
        return match pin.filter(|_| out.is_empty() && misplaced) {
            Some(pin) => Move::HandOver(handed_over(chunk, pin)),
            None => without(chunk, &out, pin, spread),
        };
    }
    if out.iter().any(|copy| outlook.may_come(copy)) {
        return Move::Wait;
    }
    // Nothing lacks: what is moved without need is not moved at any price.
    match members.len() == copies && !is_draining {
        true => Move::Abandon,
        false => Move::Add,
    }
}

/// `chunk` with another write node, which is a member. The members stay, so nobody waits for grants to end.
pub(crate) fn handed_over(chunk: &Chunk, write_node: NodeId) -> Chunk {
    Chunk {
        epoch: chunk.epoch.next(),
        write_node,
        copies: chunk.copies.clone(),
        recovery: false,
    }
}

fn without(chunk: &Chunk, gone: &[Copy], pin: Option<NodeId>, spread: u64) -> Move {
    Move::Remove(less(chunk, gone, pin, spread), gone.to_vec())
}

/// `chunk` without some of its places.
pub(crate) fn less(chunk: &Chunk, gone: &[Copy], pin: Option<NodeId>, spread: u64) -> Chunk {
    let mut next = chunk.clone();
    next.epoch = chunk.epoch.next();
    next.recovery = false;
    next.copies.retain(|copy| !gone.contains(copy));
    let members: Vec<NodeId> = next.members().map(|member| member.0).collect();
    if !members.contains(&chunk.write_node) {
        next.write_node = choose(&members, pin, spread);
    }
    next
}

/// `chunk` with one place more, whose copy is not in sync.
pub(crate) fn with_place(chunk: &Chunk, node: NodeId, disk: crate::identity::DiskId) -> Chunk {
    let mut next = chunk.clone();
    next.epoch = chunk.epoch.next();
    next.recovery = false;
    let incarnation = None;
    next.copies.push(Copy {
        node,
        disk,
        incarnation,
    });
    next.copies.sort_unstable();
    next
}

#[cfg(test)]
mod tests {
    use foundation::Epoch;

    use super::*;
    use crate::identity::{DiskId, Uuid};

    /// Nodes that are gone, drained, and not to be waited for.
    #[derive(Default)]
    struct Known {
        gone: Vec<u128>,
        drained: Vec<u128>,
        given_up: Vec<u128>,
        moved: Vec<u128>,
    }

    impl Outlook for Known {
        fn lives(&self, node: NodeId, _: Incarnation) -> bool {
            !self.gone.contains(&node.0.0)
        }
        fn drains(&self, copy: &Copy) -> bool {
            self.drained.contains(&copy.node.0.0)
        }
        fn moves(&self, copy: &Copy) -> bool {
            self.moved.contains(&copy.node.0.0)
        }
        fn may_come(&self, copy: &Copy) -> bool {
            !self.drains(copy) && !self.given_up.contains(&copy.node.0.0)
        }
    }

    fn node(number: u128) -> NodeId {
        NodeId(Uuid(number))
    }

    /// A chunk at epoch 5 with copies on nodes 1, 2, ...; those with 0 are out of sync.
    fn chunk(incarnations: &[u64]) -> Chunk {
        let copies = incarnations.iter().zip(1u128..).map(|(&life, number)| Copy {
            node: node(number),
            disk: DiskId(Uuid(number)),
            incarnation: (life > 0).then_some(Incarnation(life)),
        });
        Chunk {
            epoch: Epoch(5),
            write_node: node(1),
            copies: copies.collect(),
            recovery: false,
        }
    }

    fn next(chunk: &Chunk, known: &Known) -> Move {
        next_move(chunk, 3, None, 0, known)
    }

    fn places(chunk: &Chunk) -> Vec<u128> {
        chunk.copies.iter().map(|copy| copy.node.0.0).collect()
    }

    #[test]
    fn a_copy_that_is_out_is_waited_for_then_replaced_and_kept_until_another_is_in_sync() {
        let mut known = Known::default();
        assert_eq!(next(&chunk(&[1, 1, 1]), &known), Move::Right);
        assert_eq!(next(&chunk(&[1, 1, 0]), &known), Move::Wait);
        known.given_up.push(3);
        assert_eq!(next(&chunk(&[1, 1, 0]), &known), Move::Add);
        // The new one is on its way: nothing is taken away.
        assert_eq!(next(&chunk(&[1, 1, 0, 0]), &known), Move::Wait);
        let Move::Remove(after, gone) = next(&chunk(&[1, 1, 0, 1]), &known) else {
            panic!("the old place stays");
        };
        assert_eq!(
            (places(&after), after.epoch, gone.len()),
            (vec![1, 2, 4], Epoch(6), 1)
        );
        // The old one came back first: the new one goes.
        let Move::Remove(after, _) = next(&chunk(&[1, 1, 1, 0]), &known) else {
            panic!("the new place stays");
        };
        assert_eq!(places(&after), [1, 2, 3]);
    }

    #[test]
    fn nothing_moves_while_a_member_is_gone() {
        let known = Known {
            gone: vec![2],
            given_up: vec![3],
            ..Known::default()
        };
        for lives in [&[1, 1, 0][..], &[1, 1, 0, 1], &[1, 1, 1, 1]] {
            assert_eq!(next(&chunk(lives), &known), Move::Wait);
        }
    }

    #[test]
    fn a_drained_copy_stays_until_its_successor_is_in_sync_then_hands_its_writes_over() {
        let known = Known {
            drained: vec![1],
            ..Known::default()
        };
        assert_eq!(next(&chunk(&[1, 1, 1]), &known), Move::Add);
        assert_eq!(next(&chunk(&[1, 1, 1, 0]), &known), Move::Wait);
        let Move::Remove(after, _) = next(&chunk(&[1, 1, 1, 1]), &known) else {
            panic!("the drained copy stays");
        };
        assert_eq!((places(&after), after.write_node), (vec![2, 3, 4], node(2)));
        assert!(after.is_consistent());
        // No longer drained: the write node is not the one to go.
        let Move::Remove(after, _) = next(&chunk(&[1, 1, 1, 1]), &Known::default()) else {
            panic!("one too many stays");
        };
        assert_eq!(places(&after), [1, 2, 3]);
    }

    #[test]
    fn a_copy_that_moves_stays_until_the_new_one_is_in_sync_and_stays_for_good_if_that_one_does_not_come() {
        let mut known = Known {
            moved: vec![2],
            ..Known::default()
        };
        assert_eq!(next(&chunk(&[1, 1, 1, 0]), &known), Move::Wait);
        let Move::Remove(after, gone) = next(&chunk(&[1, 1, 1, 1]), &known) else {
            panic!("the moved copy stays");
        };
        assert_eq!((places(&after), gone[0].node), (vec![1, 3, 4], node(2)));
        // Another member is lost meanwhile: the old copy is needed, and so is the lost one.
        assert_eq!(next(&chunk(&[1, 1, 0, 1]), &known), Move::Wait);
        assert_eq!(next(&chunk(&[1, 1, 0, 0]), &known), Move::Wait);
        // The moved copy itself is lost: the new one takes its place.
        let Move::Remove(after, _) = next(&chunk(&[1, 0, 1, 1]), &known) else {
            panic!("the lost copy stays");
        };
        assert_eq!(places(&after), [1, 3, 4]);
        known.given_up.push(4);
        assert_eq!(next(&chunk(&[1, 1, 1, 0]), &known), Move::Abandon);
        known.moved.clear();
        let Move::Remove(after, _) = next(&chunk(&[1, 1, 1, 0]), &known) else {
            panic!("the new place stays");
        };
        assert_eq!(places(&after), [1, 2, 3]);
    }

    #[test]
    fn writes_go_to_the_node_they_are_pinned_to_when_every_copy_is_in_sync() {
        let known = Known::default();
        let pinned = |chunk: &Chunk| next_move(chunk, 3, Some(node(3)), 0, &known);
        let Move::HandOver(after) = pinned(&chunk(&[1, 1, 1])) else {
            panic!("the writes stay");
        };
        assert_eq!((after.write_node, after.epoch), (node(3), Epoch(6)));
        assert_eq!(after.copies, chunk(&[1, 1, 1]).copies);
        assert_eq!(pinned(&after), Move::Right);
        assert_eq!(pinned(&chunk(&[1, 1, 0])), Move::Wait, "its copy is not in sync");
        let gone = Known {
            gone: vec![2],
            ..Known::default()
        };
        assert_eq!(
            next_move(&chunk(&[1, 1, 1]), 3, Some(node(3)), 0, &gone),
            Move::Wait
        );
    }
}
