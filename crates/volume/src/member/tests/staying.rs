//! What a write node that stays has to make equal when the epoch changes.

use super::*;

/// Otherwise each place that the masters add or take away would cost as much as the copy itself (`docs/decisions/0104`).
#[test]
fn a_write_node_that_stays_reconciles_what_is_marked_only_if_a_member_did_not_stay() {
    // Its life is no longer too young to seal.
    let later = NOW + Settings::default().grant_term;
    let next_epoch = |others: &[(u128, bool)]| {
        let mut core = leading();
        let members: Vec<u128> = [1]
            .into_iter()
            .chain(others.iter().map(|other| other.0))
            .collect();
        core.handle_configuration(later, chunk(), &three(2, 1, &members));
        let persist = outputs(&mut core).into_iter().find_map(|output| match output {
            Output::Persist { token, .. } => Some(token),
            _ => None,
        });
        core.handle_persisted(later, chunk(), persist.unwrap());
        for &(from, stays) in others {
            seal_answer_in(&mut core, 2, from, vec![2], stays);
        }
        let read = |output: &Output| {
            let purpose = ReadPurpose::Reconcile;
            matches!(output, Output::LocalRead { purpose: p, .. } if *p == purpose)
        };
        let reads = outputs(&mut core).iter().filter(|output| read(output)).count();
        (reads, core.member(chunk()).and_then(|member| member.phase()))
    };
    let (reads, phase) = next_epoch(&[(2, true), (3, true)]);
    assert_eq!((reads, phase), (0, Some(crate::Phase::Serving)));
    let (reads, phase) = next_epoch(&[(2, true), (3, false)]);
    assert!(
        reads > 0 && phase == Some(crate::Phase::Reconciling),
        "{reads} {phase:?}"
    );
    // One that was no member before has been sent all that it lacked.
    let (reads, phase) = next_epoch(&[(2, true), (3, true), (4, false)]);
    assert_eq!((reads, phase), (0, Some(crate::Phase::Serving)));
}

#[test]
fn a_copy_says_that_it_stays_unless_it_was_left_out_meanwhile() {
    let term = Settings::default().grant_term;
    let later = NOW + term * 3;
    let says = |core: &mut NodeCore, later, epoch| {
        let config = three(epoch, 2, &[1, 2, 3]);
        let chunk = chunk();
        core.handle_message(later, NodeId(2), Message::Seal { chunk, config }, None);
        core.handle_persisted(later, chunk, PersistToken(epoch));
        let said = |output: Output| match output {
            Output::Send {
                message: Message::SealAnswer(answer),
                ..
            } => Some((answer.epoch, answer.stays)),
            _ => None,
        };
        outputs(core).into_iter().find_map(said)
    };
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    assert_eq!(says(&mut core, later, 1), Some((Epoch(1), false)));
    assert_eq!(says(&mut core, later, 2), Some((Epoch(2), true)));
    // Asked once more it says the same.
    assert_eq!(says(&mut core, later, 2), Some((Epoch(2), true)));
    core.handle_configuration(later, chunk(), &three(3, 2, &[2, 3]));
    outputs(&mut core);
    // What it has granted binds it for a term.
    let later = later + term;
    // A Seal that comes late, of the epoch that it has left: it would answer for what it does not have.
    assert_eq!(says(&mut core, later, 2), None);
    assert_eq!(says(&mut core, later, 4), Some((Epoch(4), false)));
    assert_eq!(says(&mut core, later, 5), Some((Epoch(5), true)));
}

/// What it had sent goes back among what waits, and copies may have it: only what was never sent ends as not done.
#[test]
fn of_a_write_that_was_sent_in_an_epoch_before_nobody_says_that_it_was_not_done() {
    let later = NOW + Settings::default().grant_term;
    // The first is sent; the second waits, as it overlaps it; then another epoch of the same write node begins.
    let staying = || {
        let mut core = leading();
        core.handle_request(later, chunk(), write(1, 0, 4));
        core.handle_request(later, chunk(), write(2, 0, 4));
        core.handle_persisted(later, chunk(), PersistToken(8));
        let begun = ios(&outputs(&mut core));
        core.handle_configuration(later, chunk(), &three(2, 1, &[1, 2]));
        outputs(&mut core);
        (core, begun[0])
    };
    let ends = |outputs: Vec<Output>| -> Vec<(u64, Status)> {
        let ended = |output: Output| match output {
            Output::Complete { request, status } => Some((request.0, status)),
            _ => None,
        };
        outputs.into_iter().filter_map(ended).collect()
    };
    let (mut core, _) = staying();
    core.handle_configuration(later, chunk(), &three(3, 2, &[1, 2]));
    let not_done = Status::NotWriteNode(Epoch(3));
    assert_eq!(ends(outputs(&mut core)), [(1, Status::Unknown), (2, not_done)]);

    let (mut core, _) = staying();
    core.handle_cancel(later, chunk(), RequestId(1));
    core.handle_cancel(later, chunk(), RequestId(2));
    let cancelled = [(1, Status::Unknown), (2, Status::Cancelled)];
    assert_eq!(ends(outputs(&mut core)), cancelled);

    // A member has taken a newer lease meanwhile.
    let (mut core, begun) = staying();
    // Before that epoch is sealed the disk has to be done with it.
    core.handle_local(later, chunk(), begun, true, None);
    core.handle_persisted(later, chunk(), PersistToken(18));
    let answer = SealAnswer {
        chunk: chunk(),
        epoch: Epoch(2),
        incarnation: Incarnation(1),
        highest: Sequence(1),
        marks: Vec::new(),
        sessions: Vec::new(),
        writer_token: WriterToken(5),
        stays: true,
    };
    core.handle_message(later, NodeId(2), Message::SealAnswer(answer), None);
    let mut ended = Vec::new();
    // Reconciles what the first may have changed, then looks at what waits.
    for token in 20..40 {
        let now = outputs(&mut core);
        for io in ios(&now) {
            core.handle_local(later, chunk(), io, true, Some(DataToken(100 + token)));
        }
        ended.extend(ends(now));
        core.handle_persisted(later, chunk(), PersistToken(token));
        for sequence in 1..20 {
            let answer = Message::ReplicaAnswer {
                chunk: chunk(),
                epoch: Epoch(2),
                sequence: Sequence(sequence),
                incarnation: Incarnation(1),
                join: JoinNumber(0),
                room: RoomLeft::Enough,
            };
            core.handle_message(later, NodeId(2), answer, None);
        }
    }
    let fenced = Status::FencedWriter(WriterToken(5));
    assert_eq!(ended, [(1, Status::Unknown), (2, fenced)]);
}
