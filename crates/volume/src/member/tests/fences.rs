//! Who is kept out by a writer's token, and when it is durable.

use super::*;
use crate::planted::Bug;

#[test]
fn a_portals_read_needs_the_newest_token_and_a_native_one_none() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 3, 5));
    outputs(&mut core);
    let read = |id: u64, host: HostId, token: u64| Request {
        id: RequestId(id),
        operation: Operation::Read,
        session: Session { host, number: 0 },
        writer_token: WriterToken(token),
        ..write(id, 60, token)
    };
    core.handle_request(NOW, chunk(), read(2, HostId::through_portals(9), 4));
    let fenced = Status::FencedWriter(WriterToken(5));
    assert_eq!(outputs(&mut core), [complete(2, fenced)]);
    for (id, host, token) in [(3, HostId::through_portals(9), 5), (4, HostId::native(9), 0)] {
        core.handle_request(NOW, chunk(), read(id, host, token));
        assert_eq!(ios(&outputs(&mut core)).len(), 1, "read {id} goes to the device");
    }
}

#[test]
fn a_portals_read_that_waits_is_looked_at_again() {
    let mut core = serving();
    let ask = |core: &mut NodeCore, id: u64, start: u32, token: u64| {
        let host = HostId::through_portals(9);
        let read = Request {
            operation: Operation::Read,
            session: Session { host, number: 0 },
            ..write(id, start, token)
        };
        core.handle_request(NOW, chunk(), read);
    };
    core.handle_request(NOW, chunk(), write(1, 3, 4));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let begun = ios(&outputs(&mut core));
    // One waits for the write, one is with the device. Then a newer token comes.
    ask(&mut core, 2, 3, 4);
    assert_eq!(outputs(&mut core), []);
    ask(&mut core, 3, 60, 4);
    let reading = ios(&outputs(&mut core))[0];
    core.handle_local(NOW, chunk(), begun[0], true, None);
    let again = outputs(&mut core);
    let held = ios(&again)[0];
    core.handle_request(NOW, chunk(), write(4, 40, 5));
    core.handle_persisted(NOW, chunk(), PersistToken(19));
    outputs(&mut core);
    let fenced = Status::FencedWriter(WriterToken(5));
    for (id, io) in [(3, reading), (2, held)] {
        core.handle_local(NOW, chunk(), io, true, None);
        let after = outputs(&mut core);
        assert!(after.contains(&complete(id, fenced)), "{after:?}");
    }
    // And one that was not with the device when the token came.
    core.handle_request(NOW, chunk(), write(5, 20, 5));
    core.handle_persisted(NOW, chunk(), PersistToken(29));
    outputs(&mut core);
    ask(&mut core, 6, 20, 5);
    assert_eq!(outputs(&mut core), []);
    core.handle_request(NOW, chunk(), write(7, 50, 6));
    let after = outputs(&mut core);
    assert!(
        after.contains(&complete(6, Status::FencedWriter(WriterToken(6)))),
        "{after:?}"
    );
}

#[test]
fn fence_and_mark_are_durable_before_the_write_begins() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 3, 5));
    let deltas: Vec<RecordDelta> = outputs(&mut core)
        .into_iter()
        .map(|output| match output {
            Output::Persist { delta, .. } => delta,
            other => panic!("{other:?} before the record is durable"),
        })
        .collect();
    let session = Session {
        host: HostId(9),
        number: 1,
    };
    let (region, epoch) = (0, Epoch(1));
    assert_eq!(
        deltas,
        [
            RecordDelta::Writer(WriterToken(5)),
            RecordDelta::Session(session),
            RecordDelta::Mark { region, epoch }
        ]
    );
    core.handle_persisted(NOW, chunk(), PersistToken(3));
    assert_eq!(outputs(&mut core), []);
    core.handle_persisted(NOW, chunk(), PersistToken(4));
    let io = ios(&outputs(&mut core))[0];
    // The same page, so held back; another region, so marked; an older lease, so refused.
    core.handle_request(NOW, chunk(), write(2, 7, 5));
    assert_eq!(outputs(&mut core), []);
    core.handle_request(NOW, chunk(), write(3, 60, 4));
    let fenced = Status::FencedWriter(WriterToken(5));
    assert_eq!(outputs(&mut core), [release(3), complete(3, fenced)]);
    core.handle_local(NOW, chunk(), io, true, None);
    let after = outputs(&mut core);
    assert_eq!(after[..2], [complete(1, Status::Done), release(1)]);
    assert_eq!(ios(&after).len(), 1, "the held write begins: {after:?}");
}

/// The simulation found it: a copy took the first Join of several, and what was acknowledged until it answered it never learned, though it
/// counted as in sync then.
#[test]
fn a_copy_that_joins_learns_what_was_acknowledged_while_it_was_asked() {
    let (mut core, found) = joining(Planted::default());
    let (again, token, sessions) = found.expect("it is asked once more, under another number");
    assert_eq!((again, token), (JoinNumber(2), WriterToken(7)));
    assert!(
        sessions
            .iter()
            .any(|session| session.host == HostId::through_portals(3)),
        "{sessions:?}"
    );
    // Until it answers, nobody changes that again.
    core.handle_request(NOW, chunk(), claim(2, 8));
    let waiting = outputs(&mut core);
    assert!(
        !waiting.iter().any(|output| matches!(output, Output::Send { .. })),
        "{waiting:?}"
    );
    let joined = Message::JoinAnswer {
        chunk: chunk(),
        epoch: Epoch(1),
        join: again,
        incarnation: Incarnation(1),
        keeps_lost: true,
    };
    core.handle_message(NOW, NodeId(4), joined, None);
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    let after = outputs(&mut core);
    let told = |output: &Output| {
        matches!(output, Output::Send { to: NodeId(4), message: Message::ReplicaWrite(write), .. }
            if write.writer_token == WriterToken(8) && write.join == again)
    };
    assert!(after.iter().any(told), "{after:?}");
}

#[test]
fn it_does_not_if_it_is_asked_but_once() {
    let bug = Some(Bug::JoinedWithoutFences);
    let (_, asked_again) = joining(Planted { bug });
    assert_eq!(asked_again, None);
}

fn claim(id: u64, token: u64) -> Request {
    Request {
        operation: Operation::Write {
            kind: WriteKind::Fence,
            data: None,
            force_unit_access: false,
            compares: false,
        },
        range: BlockRange::default(),
        session: Session {
            host: HostId::through_portals(3),
            number: 0,
        },
        ..write(id, 0, token)
    }
}

type Asked = (JoinNumber, WriterToken, Vec<Session>);

/// A write node that asks a copy to join, and acknowledges a claim under a newer token before the copy answers; and whether it asks it
/// again then.
fn joining(planted: Planted) -> (NodeCore, Option<Asked>) {
    let mut core = leading_with(planted);
    let (chunk, epoch, incarnation) = (chunk(), Epoch(1), Incarnation(1));
    let back = Message::Return {
        chunk,
        epoch,
        incarnation,
        flushed_in: epoch,
        marks: Vec::new(),
        takes_marks: true,
    };
    core.handle_message(NOW, NodeId(4), back, None);
    outputs(&mut core);
    core.handle_request(NOW, chunk, claim(1, 7));
    core.handle_persisted(NOW, chunk, PersistToken(9));
    replica_answer(&mut core, 2, 1);
    replica_answer(&mut core, 3, 1);
    let claimed = outputs(&mut core);
    assert!(claimed.contains(&complete(1, Status::Claimed(1))), "{claimed:?}");
    let joined = Message::JoinAnswer {
        chunk,
        epoch,
        join: JoinNumber(1),
        incarnation,
        keeps_lost: true,
    };
    core.handle_message(NOW, NodeId(4), joined, None);
    let asked = |output: Output| match output {
        Output::Send {
            message:
                Message::Join {
                    join,
                    writer_token,
                    sessions,
                    ..
                },
            ..
        } => Some((join, writer_token, sessions)),
        _ => None,
    };
    let asked = outputs(&mut core).into_iter().find_map(asked);
    (core, asked)
}
