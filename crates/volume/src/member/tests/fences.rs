//! Who is kept out by a writer's token, and when it is durable.

use super::*;

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
