//! Reads that go past inbox and outputs, and those that do not.

use super::*;

fn read(id: u64, start: u32) -> Request {
    Request {
        operation: Operation::Read,
        ..write(id, start, 0)
    }
}

fn begin(core: &mut NodeCore, start: u32) -> Option<IoToken> {
    core.read_at_once(NOW, chunk(), &read(7, start))
}

fn end(core: &mut NodeCore, io: IoToken) -> Option<RequestId> {
    core.end_read_at_once(NOW, chunk(), io)
}

#[test]
fn a_read_that_nothing_stands_against_begins_and_ends_at_once() {
    let mut core = serving();
    let io = begin(&mut core, 0).unwrap();
    assert_eq!(outputs(&mut core), []);
    assert_eq!(end(&mut core, io), Some(RequestId(7)));
    assert_eq!(end(&mut core, io), None, "it has ended");
    assert_eq!(outputs(&mut core), []);
    assert!(core.member(chunk()).unwrap().is_idle());
}

#[test]
fn what_is_no_read_or_is_refused_goes_the_long_way() {
    let mut core = serving();
    let stale = Request {
        epoch: Epoch(0),
        ..read(7, 0)
    };
    let beyond = read(7, 64);
    for request in [write(7, 0, 0), stale, beyond] {
        assert_eq!(core.read_at_once(NOW, chunk(), &request), None, "{request:?}");
    }
    assert_eq!(outputs(&mut core), []);
    let nowhere = ChunkId {
        volume: VolumeNumber(9),
        ..chunk()
    };
    assert_eq!(core.read_at_once(NOW, nowhere, &read(7, 0)), None);
}

#[test]
fn a_read_beside_a_write_goes_the_long_way() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    assert_eq!(begin(&mut core, 0), None, "the write is not settled");
    assert!(begin(&mut core, 40).is_some(), "that is of other blocks");
    // One that is held goes first.
    core.handle_request(NOW, chunk(), read(2, 0));
    assert_eq!(begin(&mut core, 40), None);
}

#[test]
fn a_read_over_which_a_write_began_is_looked_at_again() {
    let mut core = serving();
    let io = begin(&mut core, 0).unwrap();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    outputs(&mut core);
    assert_eq!(end(&mut core, io), None);
    core.handle_local(NOW, chunk(), io, true, None);
    let completed = outputs(&mut core);
    assert!(!completed.contains(&complete(7, Status::Done)), "{completed:?}");
}

#[test]
fn a_copy_without_the_right_to_read_begins_and_ends_none() {
    let mut core = leading();
    assert_eq!(begin(&mut core, 0), None, "it holds no grant");
    let mut core = serving();
    let io = begin(&mut core, 0).unwrap();
    core.handle_persist_failed(NOW, chunk(), None);
    assert_eq!(end(&mut core, io), None, "its disk has failed");
    assert_eq!(begin(&mut core, 40), None);
}

/// Whoever compares copies in the background waits for each read, and for the next one never again.
#[test]
fn a_read_that_turns_out_damaged_after_its_copy_has_failed_is_answered() {
    let mut core = serving();
    let io = begin(&mut core, 0).unwrap();
    core.handle_persist_failed(NOW, chunk(), None);
    outputs(&mut core);
    assert!(core.handle_damaged(NOW, chunk(), io, &[0]));
    assert_eq!(outputs(&mut core), [complete(7, Status::DeviceFailed)]);
    assert!(core.member(chunk()).unwrap().is_idle());
}
