//! A copy that is made where one was deleted, and the answers that the deleted one's disk still owes.

use std::time::Duration;

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

/// What the deleted one granted binds for a term from its end on, however long the node lives: a configuration without the reader that it
/// granted to is sealed no sooner (`docs/decisions/0073`, `deleted-is-quiet`).
#[test]
fn a_copy_made_in_a_deleted_ones_place_is_quiet_for_a_term() {
    let mut core = serving();
    let (chunk, term) = (chunk(), Settings::default().grant_term);
    // The node's own first term is long over.
    let deleted = NOW + term * 10;
    assert!(core.remove_copy(deleted, chunk, Epoch(2)));
    let again = deleted + term / 4;
    core.add_copy(again, ChunkRecord::new(ClusterId(1), chunk, geometry()), true);
    outputs(&mut core);
    let (config, epoch) = (three(3, 2, &[1, 2, 3]), Epoch(3));
    let seal = Message::Seal { chunk, config };
    core.handle_message(deleted + term / 2, NodeId(2), seal, None);
    let soon = deleted + (term - Duration::from_nanos(1));
    for now in [deleted + term / 2, soon] {
        core.handle_timeout(now);
        assert_eq!(outputs(&mut core), [], "it answers within the term");
    }
    core.handle_timeout(deleted + term);
    let after = outputs(&mut core);
    let [Output::Persist { token, .. }] = after[..] else {
        panic!("it seals when the term is over: {after:?}");
    };
    core.handle_persisted(deleted + term, chunk, token);
    let sealed = |output: &Output| matches!(output, Output::Send { message: Message::SealAnswer(answer), .. } if answer.epoch == epoch);
    let after = outputs(&mut core);
    assert!(after.iter().any(sealed), "{after:?}");
}
