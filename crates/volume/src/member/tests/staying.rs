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
fn a_copy_says_that_it_stays_unless_it_had_no_room_meanwhile() {
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
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()));
    assert_eq!(says(&mut core, later, 1), Some((Epoch(1), false)));
    assert_eq!(says(&mut core, later, 2), Some((Epoch(2), true)));
    // Asked once more it says the same.
    assert_eq!(says(&mut core, later, 2), Some((Epoch(2), true)));
    core.handle_full(later, chunk());
    assert_eq!(says(&mut core, later, 3), None);
    core.handle_room(later, chunk());
    // What it has granted binds it for a term.
    let later = later + term;
    // A Seal that comes late, of the epoch in which it failed: it would answer for what it could not write.
    assert_eq!(says(&mut core, later, 2), None);
    assert_eq!(says(&mut core, later, 3), Some((Epoch(3), false)));
    assert_eq!(says(&mut core, later, 4), Some((Epoch(4), true)));
}
