//! A copy that is made where one was deleted, and the answers that the deleted one's disk still owes.

use super::*;

/// It may lie on another disk, of which the failure of the old one says nothing (`docs/decisions/0060`).
#[test]
fn a_failure_of_a_deleted_copys_disk_is_none_of_the_copy_made_in_its_place() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let writing = ios(&outputs(&mut core))[0];
    let reading = core
        .read_at_once(
            NOW,
            chunk(),
            &Request {
                operation: Operation::Read,
                ..write(7, 40, 0)
            },
        )
        .unwrap();
    assert!(core.remove_copy(NOW, chunk(), Epoch(2)));
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    core.handle_configuration(NOW, chunk(), &three(3, 2, &[1, 2, 3]));
    outputs(&mut core);

    core.handle_local(NOW, chunk(), writing, false, None);
    core.handle_local(NOW, chunk(), reading, false, Some(DataToken(70)));
    assert!(!core.handle_damaged(NOW, chunk(), reading, &[40]));
    core.handle_full(NOW, chunk(), writing);
    core.handle_persist_failed(NOW, chunk(), Some(PersistToken(3)));
    assert_eq!(outputs(&mut core), [release(70)], "bytes that nobody waits for");

    let (chunk, epoch) = (chunk(), Epoch(3));
    let config = three(3, 2, &[1, 2, 3]);
    let later = NOW + Settings::default().grant_term * 2;
    core.handle_message(later, NodeId(2), Message::Seal { chunk, config }, None);
    core.handle_timeout(later);
    let after = outputs(&mut core);
    let persist = after.iter().find_map(|output| match output {
        Output::Persist { token, .. } => Some(*token),
        _ => None,
    });
    let token = persist.unwrap_or_else(|| panic!("it seals: {after:?}"));
    core.handle_persisted(later, chunk, PersistToken(4));
    assert_eq!(outputs(&mut core), [], "that was of the deleted copy's record");
    core.handle_persisted(later, chunk, token);
    let sealed = |output: &Output| matches!(output, Output::Send { message: Message::SealAnswer(answer), .. } if answer.epoch == epoch);
    let after = outputs(&mut core);
    assert!(after.iter().any(sealed), "{after:?}");
    core.handle_persist_failed(later, chunk, Some(token));
    assert!(
        outputs(&mut core).contains(&Output::Failed),
        "its own failures count"
    );
}
