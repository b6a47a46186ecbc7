//! A write node with a copy that joins, with a repair, and with a snapshot in hand.

use super::*;

/// A copy asks to come back, which lacks nothing, and is let in under the number that is returned.
fn comes_back(core: &mut NodeCore, node: NodeId, incarnation: Incarnation) -> JoinNumber {
    comes_back_as(core, node, incarnation, JoinNumber(1))
}

/// The same, under this number.
fn comes_back_as(
    core: &mut NodeCore,
    node: NodeId,
    incarnation: Incarnation,
    join: JoinNumber,
) -> JoinNumber {
    let (chunk, epoch) = (chunk(), Epoch(1));
    let back = Message::Return {
        chunk,
        epoch,
        incarnation,
        flushed_in: epoch,
        marks: Vec::new(),
        takes_marks: true,
    };
    core.handle_message(NOW, node, back, None);
    let joined = Message::JoinAnswer {
        chunk,
        epoch,
        join,
        incarnation,
        keeps_lost: true,
    };
    core.handle_message(NOW, node, joined, None);
    outputs(core);
    join
}

/// A copy that had the repair first would take the write for an old one, and answer that it has all of it.
#[test]
fn a_repair_waits_until_the_joining_copy_has_the_write_below_it() {
    let mut core = leading();
    let (chunk, epoch, incarnation) = (chunk(), Epoch(1), Incarnation(1));
    let join = comes_back(&mut core, NodeId(4), incarnation);

    let range = BlockRange { start: 0, count: 2 };
    core.handle_request(
        NOW,
        chunk,
        Request {
            range,
            ..write(1, 0, 0)
        },
    );
    core.handle_persisted(NOW, chunk, PersistToken(9));
    for io in ios(&outputs(&mut core)) {
        core.handle_local(NOW, chunk, io, true, None);
    }
    replica_answer(&mut core, 2, 1);
    replica_answer(&mut core, 3, 1);
    let range = BlockRange { start: 0, count: 1 };
    core.handle_message(NOW, NodeId(2), Message::Repair { chunk, epoch, range }, None);
    let before = outputs(&mut core);
    assert_eq!(ios(&before), [], "{before:?}");
    assert!(!before.contains(&complete(1, Status::Done)), "{before:?}");

    let answer = Message::ReplicaAnswer {
        chunk,
        epoch,
        sequence: Sequence(1),
        incarnation,
        join,
        room: RoomLeft::Enough,
    };
    core.handle_message(NOW, NodeId(4), answer, None);
    let after = outputs(&mut core);
    assert!(after.contains(&complete(1, Status::Done)), "{after:?}");
    assert_eq!(ios(&after).len(), 1, "the repair reads its block: {after:?}");
}

/// While a snapshot is made of all chunks, what comes behind it is not acknowledged: not either because a copy that was joining, and that the
/// write waited for, has gone again.
#[test]
fn what_is_held_for_a_snapshot_stays_held_when_a_join_is_given_up() {
    let mut core = leading();
    let (chunk, epoch, incarnation, snapshot) = (chunk(), Epoch(1), Incarnation(1), SnapshotId(7));
    let joiner = NodeId(4);
    comes_back(&mut core, joiner, incarnation);
    let of_snapshot = |id, operation| Request {
        operation,
        ..write(id, 0, 0)
    };
    core.handle_request(NOW, chunk, of_snapshot(1, Operation::Cut(snapshot)));
    let cut = outputs(&mut core);
    let own = cut.iter().find_map(|output| match output {
        Output::LocalSnapshot { io, sequence, .. } => Some((*io, *sequence)),
        _ => None,
    });
    let (io, sequence) = own.expect("it keeps what it has");
    core.handle_local(NOW, chunk, io, true, None);
    for from in [2, 3] {
        let answer = Message::SnapshotAnswer {
            chunk,
            epoch,
            snapshot,
            sequence,
            incarnation,
        };
        core.handle_message(NOW, NodeId(from), answer, None);
    }
    assert!(outputs(&mut core).contains(&complete(1, Status::Done)));

    core.handle_request(NOW, chunk, write(2, 0, 0));
    core.handle_persisted(NOW, chunk, PersistToken(9));
    for io in ios(&outputs(&mut core)) {
        core.handle_local(NOW, chunk, io, true, None);
    }
    replica_answer(&mut core, 2, 1);
    replica_answer(&mut core, 3, 1);
    let refused = Message::Refused {
        chunk,
        epoch,
        refusal: Refusal::DeviceFailed,
        sealed: epoch,
    };
    core.handle_message(NOW, joiner, refused, None);
    let after = outputs(&mut core);
    assert!(!after.contains(&complete(2, Status::Done)), "{after:?}");
    core.handle_request(NOW, chunk, of_snapshot(3, Operation::Abandon(snapshot)));
    let released = outputs(&mut core);
    assert!(released.contains(&complete(2, Status::Done)), "{released:?}");
}

/// A repair is sent once its bytes are here. Until then nobody lacks it, however slow the write node's own disk is.
#[test]
fn a_repair_whose_bytes_are_not_here_makes_nobody_late() {
    let mut core = leading();
    let (chunk, epoch) = (chunk(), Epoch(1));
    let range = BlockRange { start: 0, count: 1 };
    core.handle_message(NOW, NodeId(2), Message::Repair { chunk, epoch, range }, None);
    core.handle_persisted(NOW, chunk, PersistToken(9));
    let read = ios(&outputs(&mut core));
    assert_eq!(read.len(), 1, "it reads the block");
    // Nobody has said anything for a while, since nobody was asked.
    for tenths in 1..=30u32 {
        let now = NOW + std::time::Duration::from_millis(100) * tenths;
        core.handle_timeout(now);
        assert_eq!(
            proposals(&outputs(&mut core)),
            [],
            "after {tenths} tenths of a second"
        );
    }
}

/// A member has ended at the minimum, and its node comes back in its place: the pieces for it wait for repairs. Those that only that member
/// has not answered, which it never will, keep no others from beginning.
#[test]
fn a_repair_that_waits_for_a_member_that_has_ended_holds_no_other_up() {
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    core.handle_configuration(NOW, chunk(), &three(1, 1, &[1, 3]));
    core.handle_persisted(NOW, chunk(), PersistToken(1));
    seal_answer(&mut core, 3, Vec::new());
    outputs(&mut core);
    let (chunk, epoch, incarnation) = (chunk(), Epoch(1), Incarnation(2));
    let join = comes_back(&mut core, NodeId(3), incarnation);

    let blocks = 50;
    let range = BlockRange {
        start: 0,
        count: blocks,
    };
    core.handle_message(NOW, NodeId(3), Message::Repair { chunk, epoch, range }, None);
    core.handle_persisted(NOW, chunk, PersistToken(9));
    let mut mended = 0;
    while mended < u64::from(blocks) {
        let mut sent = Vec::new();
        let reads = ios(&outputs(&mut core));
        assert!(!reads.is_empty(), "nothing goes on after {mended} of {blocks}");
        for io in reads {
            core.handle_local(NOW, chunk, io, true, Some(DataToken(100 + io.0)));
            sent.extend(outputs(&mut core));
        }
        for output in sent {
            match output {
                Output::Send {
                    to: NodeId(3),
                    message: Message::ReplicaWrite(write),
                    ..
                } if write.join == join => {
                    let answer = Message::ReplicaAnswer {
                        chunk,
                        epoch,
                        sequence: write.sequence,
                        incarnation,
                        join,
                        room: RoomLeft::Enough,
                    };
                    core.handle_message(NOW, NodeId(3), answer, None);
                    mended += 1;
                }
                _ => {}
            }
        }
    }
    // A block that does not fit again is repaired again, though its first repair still waits.
    let range = BlockRange { start: 7, count: 1 };
    core.handle_message(NOW, NodeId(3), Message::Repair { chunk, epoch, range }, None);
    core.handle_persisted(NOW, chunk, PersistToken(10));
    assert_eq!(ios(&outputs(&mut core)).len(), 1, "it reads the block");
}

/// Whom the write node asks for a block.
fn asked(outputs: &[Output]) -> Vec<(u128, u64, bool)> {
    let asked = |output: &Output| match output {
        Output::Send {
            to,
            message: Message::Fetch { number, any, .. },
            ..
        } => Some((to.0, *number, *any)),
        _ => None,
    };
    outputs.iter().filter_map(asked).collect()
}

/// What one joining copy has said of a block says nothing of the next one, though the repair is the same: it may have the block right.
#[test]
fn a_copy_that_joins_is_asked_though_another_one_joined_before() {
    let mut core = leading();
    let (chunk, epoch) = (chunk(), Epoch(1));
    comes_back(&mut core, NodeId(4), Incarnation(1));
    let range = BlockRange { start: 0, count: 1 };
    core.handle_message(NOW, NodeId(2), Message::Repair { chunk, epoch, range }, None);
    core.handle_persisted(NOW, chunk, PersistToken(9));
    let own = ios(&outputs(&mut core))[0];
    assert!(core.handle_damaged(NOW, chunk, own, &[0]));
    let (mut now, mut seen, mut number) = (NOW, Vec::new(), 0);
    let has_it_wrong = |core: &mut NodeCore, now, from, number, any| {
        let answer = Message::FetchAnswer {
            chunk,
            epoch,
            number,
            incarnation: Incarnation(1),
            range,
            any,
            found: false,
        };
        core.handle_message(now, NodeId(from), answer, None);
    };
    // The third member does not answer in time, and the joining copy has it wrong.
    while !seen.contains(&4) {
        for (to, of, any) in asked(&outputs(&mut core)) {
            (number, seen) = (of, [seen, vec![to]].concat());
            if to != 3 {
                has_it_wrong(&mut core, now, to, of, any);
            }
        }
        now = now + Settings::default().resend_interval;
        core.handle_timeout(now);
    }
    assert_eq!(seen, [2, 3, 4]);
    // Another life joins in its place.
    comes_back_as(&mut core, NodeId(4), Incarnation(2), JoinNumber(2));
    has_it_wrong(&mut core, now, 3, number, false);
    assert_eq!(asked(&outputs(&mut core)), [(4, number, true)]);
}

/// A copy that had the block wrong without knowing it, and no room for the repair, takes for right what it has: the next epoch may not
/// leave that to it.
#[test]
fn what_a_repair_was_sent_for_is_made_equal_when_the_epoch_changes() {
    // Its life is no longer too young to seal.
    let later = NOW + Settings::default().grant_term;
    let reads_after = |is_sent: bool| {
        let mut core = leading();
        let (chunk, epoch) = (chunk(), Epoch(1));
        let range = BlockRange { start: 20, count: 1 };
        core.handle_message(later, NodeId(2), Message::Repair { chunk, epoch, range }, None);
        core.handle_persisted(later, chunk, PersistToken(9));
        let own = ios(&outputs(&mut core))[0];
        if is_sent {
            core.handle_local(later, chunk, own, true, Some(DataToken(70)));
            outputs(&mut core);
        }
        core.handle_configuration(later, chunk, &three(2, 1, &[1, 2, 3]));
        let persist = outputs(&mut core).into_iter().find_map(|output| match output {
            Output::Persist { token, .. } => Some(token),
            _ => None,
        });
        core.handle_persisted(later, chunk, persist.unwrap());
        for from in [2, 3] {
            seal_answer_in(&mut core, 2, from, Vec::new(), true);
        }
        let read = |output: Output| match output {
            Output::LocalRead { range, .. } => Some((range.start, range.count)),
            _ => None,
        };
        outputs(&mut core)
            .into_iter()
            .filter_map(read)
            .collect::<Vec<_>>()
    };
    assert_eq!(reads_after(true), [(16, 16)], "the region of the block");
    assert_eq!(reads_after(false), [], "nobody has heard of it");
}
