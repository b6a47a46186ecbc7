//! One copy alone, step by step: what is put out in which order. What several nodes do together
//! is the simulation's subject.

use foundation::{Epoch, Instant};

use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::*;
use crate::message::WriteKind;
use crate::node::NodeCore;
use crate::output::{Operation, Output, Request, Status};
use crate::record::{ChunkRecord, RecordDelta};
use crate::settings::Settings;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const ME: NodeId = NodeId(1);

fn chunk() -> ChunkId {
    ChunkId::default()
}

fn outputs(core: &mut NodeCore) -> Vec<Output> {
    std::iter::from_fn(|| core.poll_output())
        .map(|o| o.output)
        .collect()
}

/// A chunk with one copy, in epoch 1, serving.
fn serving() -> NodeCore {
    let geometry = Geometry {
        block_bytes: 512,
        metadata_bytes: 0,
        stripe_unit_blocks: 8,
        chunk_blocks: 64,
        region_blocks: 16,
        copies: 1,
        minimum: 1,
        group_chunks: vec![1],
    };
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry));
    let incarnation = Incarnation(1);
    let members = vec![Membership {
        node: ME,
        incarnation,
    }];
    let config = ChunkConfig {
        epoch: Epoch(1),
        write_node: ME,
        members,
    };
    core.handle_configuration(NOW, chunk(), &config);
    let sealed = RecordDelta::Sealed(config);
    let token = PersistToken(1);
    assert_eq!(outputs(&mut core), [Output::Persist { token, delta: sealed }]);
    core.handle_persisted(NOW, chunk(), token);
    assert_eq!(outputs(&mut core), []);
    core
}

fn write(id: u64, start: u32, token: u64) -> Request {
    Request {
        id: RequestId(id),
        operation: Operation::Write {
            kind: WriteKind::Data,
            data: Some(DataToken(id)),
            force_unit_access: false,
        },
        range: BlockRange { start, count: 1 },
        epoch: Epoch(1),
        session: Session {
            host: HostId(9),
            number: 1,
        },
        writer_token: WriterToken(token),
        trace: TraceId(0),
    }
}

fn complete(id: u64, status: Status) -> Output {
    let request = RequestId(id);
    Output::Complete { request, status }
}

fn release(id: u64) -> Output {
    Output::Release { data: DataToken(id) }
}

fn ios(outputs: &[Output]) -> Vec<IoToken> {
    let io = |output: &Output| match output {
        Output::LocalWrite { io, .. } | Output::LocalRead { io, .. } => Some(*io),
        _ => None,
    };
    outputs.iter().filter_map(io).collect()
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

#[test]
fn only_what_has_not_begun_is_cancelled() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_request(NOW, chunk(), write(2, 1, 0));
    outputs(&mut core);
    core.handle_cancel(NOW, chunk(), RequestId(1));
    assert_eq!(outputs(&mut core), []);
    core.handle_cancel(NOW, chunk(), RequestId(2));
    assert_eq!(outputs(&mut core), [release(2), complete(2, Status::Cancelled)]);
}

#[test]
fn a_failed_disk_ends_every_request_and_gives_every_byte_back() {
    let mut core = serving();
    for id in 1..=3 {
        core.handle_request(NOW, chunk(), write(id, 0, 0));
    }
    outputs(&mut core);
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let io = ios(&outputs(&mut core))[0];
    let read = Request {
        operation: Operation::Read,
        ..write(4, 40, 0)
    };
    core.handle_request(NOW, chunk(), read);
    let reading = ios(&outputs(&mut core))[0];
    core.handle_local(NOW, chunk(), io, false, None);
    let mut after = outputs(&mut core);
    core.handle_local(NOW, chunk(), reading, true, None);
    after.extend(outputs(&mut core));
    for id in 1..=3 {
        assert_eq!(
            after.iter().filter(|o| **o == release(id)).count(),
            1,
            "{after:?}"
        );
    }
    let ended = |o: &&Output| matches!(o, Output::Complete { .. });
    assert_eq!(after.iter().filter(ended).count(), 4, "{after:?}");
    assert!(!after.contains(&complete(1, Status::Done)), "{after:?}");
    assert!(after.contains(&complete(4, Status::DeviceFailed)), "{after:?}");
    assert!(after.contains(&Output::Failed));
    core.handle_request(NOW, chunk(), write(5, 0, 0));
    let refused = [release(5), complete(5, Status::DeviceFailed)];
    assert_eq!(outputs(&mut core), refused);
}
