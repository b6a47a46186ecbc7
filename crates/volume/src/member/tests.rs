//! One copy alone, step by step: what is put out in which order. What several nodes do together
//! is the simulation's subject.

use foundation::{Epoch, Instant};

use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::*;
use crate::message::{Message, Refusal, RoomLeft, SealAnswer, WriteKind};
use crate::node::NodeCore;
use crate::output::{Operation, Output, ReadPurpose, Request, Status};
use crate::planted::Planted;
use crate::record::{ChunkRecord, RecordDelta, SESSIONS_MAX};
use crate::settings::Settings;

mod compares;
mod credit;
mod deleted;
mod fences;
mod forced;
mod marks;
mod reads;
mod repairs;
mod room;
mod seals;
mod staying;

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
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry), true);
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
            compares: false,
        },
        range: BlockRange { start, count: 1 },
        epoch: Epoch(1),
        session: Session {
            host: HostId(9),
            number: 1,
        },
        writer_token: WriterToken(token),
        needs_room: false,
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

fn three(epoch: u64, write_node: u128, nodes: &[u128]) -> ChunkConfig {
    let members = nodes.iter().map(|&node| Membership {
        node: NodeId(node),
        incarnation: Incarnation(1),
    });
    ChunkConfig {
        epoch: Epoch(epoch),
        write_node: NodeId(write_node),
        members: members.collect(),
    }
}

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        metadata_bytes: 0,
        stripe_unit_blocks: 64,
        chunk_blocks: 64,
        region_blocks: 16,
        copies: 3,
        minimum: 2,
        group_chunks: vec![1],
    }
}

/// The write node of a chunk with three copies, that has sealed and waits for the others.
fn sealing() -> NodeCore {
    sealing_with(Planted::default())
}

fn sealing_with(planted: Planted) -> NodeCore {
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.plant(planted);
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    core.handle_configuration(NOW, chunk(), &three(1, 1, &[1, 2, 3]));
    core.handle_persisted(NOW, chunk(), PersistToken(1));
    outputs(&mut core);
    core
}

fn seal_answer(core: &mut NodeCore, from: u128, marks: Vec<u32>) {
    seal_answer_in(core, 1, from, marks, false);
}

fn seal_answer_in(core: &mut NodeCore, epoch: u64, from: u128, marks: Vec<u32>, stays: bool) {
    let answer = SealAnswer {
        chunk: chunk(),
        epoch: Epoch(epoch),
        incarnation: Incarnation(1),
        highest: Sequence(0),
        marks,
        sessions: Vec::new(),
        writer_token: WriterToken(0),
        stays,
    };
    core.handle_message(NOW, NodeId(from), Message::SealAnswer(answer), None);
}

/// The same, serving.
fn leading() -> NodeCore {
    leading_with(Planted::default())
}

fn leading_with(planted: Planted) -> NodeCore {
    let mut core = sealing_with(planted);
    for from in [2, 3] {
        seal_answer(&mut core, from, Vec::new());
    }
    outputs(&mut core);
    assert_eq!(core.member(chunk()).unwrap().phase(), Some(crate::Phase::Serving));
    core
}

fn replica_answer(core: &mut NodeCore, from: u128, sequence: u64) {
    replica_answer_in(core, 1, from, sequence);
}

fn replica_answer_in(core: &mut NodeCore, epoch: u64, from: u128, sequence: u64) {
    let answer = Message::ReplicaAnswer {
        chunk: chunk(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        incarnation: Incarnation(1),
        join: JoinNumber(0),
        room: RoomLeft::Enough,
    };
    core.handle_message(NOW, NodeId(from), answer, None);
}

fn proposals(outputs: &[Output]) -> Vec<ChunkConfig> {
    let proposed = |output: &Output| match output {
        Output::Propose { expected, config, .. } => {
            assert_eq!(config.epoch, expected.next());
            Some(config.clone())
        }
        _ => None,
    };
    outputs.iter().filter_map(proposed).collect()
}

#[test]
fn a_write_node_whose_disk_fails_asks_for_another_until_there_is_one() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let io = ios(&outputs(&mut core))[0];
    core.handle_local(NOW, chunk(), io, false, None);
    let wanted = proposals(&outputs(&mut core));
    assert_eq!(wanted.len(), 1);
    assert_eq!(wanted[0].index_of(ME), None, "{wanted:?}");
    assert!([NodeId(2), NodeId(3)].contains(&wanted[0].write_node));
    // The masters did not hear it.
    let again = NOW + Settings::default().suspect_after;
    assert!(core.next_timeout().is_some_and(|at| at <= again));
    core.handle_timeout(again);
    assert_eq!(proposals(&outputs(&mut core)), wanted);
    // Meanwhile they left out another one, and too few are left to leave this one out, too.
    core.handle_configuration(again, chunk(), &three(2, 1, &[1, 3]));
    assert_eq!(proposals(&outputs(&mut core)), []);
    core.handle_configuration(again, chunk(), &three(3, 2, &[2, 3]));
    core.handle_timeout(again + Settings::default().suspect_after * 10);
    assert_eq!(proposals(&outputs(&mut core)), []);
}

#[test]
fn a_record_that_cannot_be_written_ends_what_waits_for_it() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    outputs(&mut core);
    core.handle_persist_failed(NOW, chunk(), Some(PersistToken(2)));
    let after = outputs(&mut core);
    assert!(after.contains(&release(1)), "{after:?}");
    // It was sent to the others: perhaps they have it.
    assert!(after.contains(&complete(1, Status::Unknown)), "{after:?}");
    assert!(after.contains(&Output::Failed), "{after:?}");
    assert_eq!(proposals(&after).len(), 1);
    // A later change of the record that succeeded after all begins nothing.
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    assert_eq!(outputs(&mut core), []);
}

#[test]
fn a_member_without_a_disk_is_left_out_at_once() {
    for refusal in [Refusal::DeviceFailed, Refusal::NoSuchChunk] {
        let mut core = leading();
        core.handle_request(NOW, chunk(), write(1, 0, 0));
        let refused = Message::Refused {
            chunk: chunk(),
            epoch: Epoch(1),
            sealed: Epoch(1),
            refusal,
        };
        core.handle_message(NOW, NodeId(3), refused, None);
        assert_eq!(proposals(&outputs(&mut core)), [three(2, 1, &[1, 2])]);
    }
}

/// The nodes of a new volume do not make their copies at the same moment.
#[test]
fn a_member_whose_copy_is_still_to_be_made_is_waited_for() {
    let mut core = sealing();
    let refused = Message::Refused {
        chunk: chunk(),
        epoch: Epoch(1),
        sealed: Epoch(0),
        refusal: Refusal::NoSuchChunk,
    };
    core.handle_message(NOW, NodeId(3), refused, None);
    let later = NOW + Settings::default().suspect_after * 2;
    core.handle_timeout(later);
    let after = outputs(&mut core);
    assert_eq!(proposals(&after), []);
    let asks_again = |output: &Output| {
        matches!(
            output,
            Output::Send {
                to: NodeId(3),
                message: Message::Seal { .. },
                ..
            }
        )
    };
    assert!(after.iter().any(asks_again), "{after:?}");
    for from in [2, 3] {
        seal_answer(&mut core, from, Vec::new());
    }
    assert_eq!(core.member(chunk()).unwrap().phase(), Some(crate::Phase::Serving));
}

#[test]
fn a_mark_of_a_region_that_is_not_there_is_passed_over() {
    let mut core = sealing();
    seal_answer(&mut core, 2, vec![4, u32::MAX]);
    seal_answer(&mut core, 3, vec![0]);
    let read: Vec<BlockRange> = outputs(&mut core)
        .into_iter()
        .filter_map(|output| match output {
            Output::LocalRead { range, .. } => Some(range),
            _ => None,
        })
        .collect();
    assert_eq!(read, [BlockRange { start: 0, count: 16 }]);
}

#[test]
fn what_is_reconciled_counts_as_written_in_the_new_epoch_before_anything_is_served() {
    let mut core = sealing();
    seal_answer(&mut core, 2, vec![2]);
    seal_answer(&mut core, 3, Vec::new());
    let begun = outputs(&mut core);
    let (region, epoch) = (2, Epoch(1));
    let delta = RecordDelta::Mark { region, epoch };
    let token = PersistToken(2);
    assert!(begun.contains(&Output::Persist { token, delta }), "{begun:?}");
    for (io, data) in ios(&begun).into_iter().zip(1..) {
        core.handle_local(NOW, chunk(), io, true, Some(DataToken(data)));
    }
    for from in [2, 3] {
        replica_answer(&mut core, from, 1);
    }
    let phase = |core: &NodeCore| core.member(chunk()).and_then(|member| member.phase());
    assert_eq!(phase(&core), Some(crate::Phase::Reconciling));
    core.handle_persisted(NOW, chunk(), token);
    assert_eq!(phase(&core), Some(crate::Phase::Serving));
}

#[test]
fn a_write_node_of_a_new_epoch_reads_what_is_settled_while_it_seals() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    let persists = |outputs: &[Output]| {
        let token = |output: &Output| match output {
            Output::Persist { token, .. } => Some(*token),
            _ => None,
        };
        outputs.iter().filter_map(token).max()
    };
    let marked = persists(&outputs(&mut core)).unwrap();
    core.handle_persisted(NOW, chunk(), marked);
    let io = ios(&outputs(&mut core))[0];
    core.handle_local(NOW, chunk(), io, true, None);
    // Its life is no longer too young to seal.
    let later = NOW + Settings::default().grant_term;
    core.handle_configuration(later, chunk(), &three(2, 1, &[1, 3]));
    let sealed = persists(&outputs(&mut core)).unwrap();
    core.handle_persisted(later, chunk(), sealed);
    outputs(&mut core);
    assert_eq!(core.member(chunk()).unwrap().phase(), Some(crate::Phase::Sealing));

    let read = |id, block| Request {
        operation: Operation::Read,
        ..write(id, block, 0)
    };
    let begun = |core: &mut NodeCore| {
        let of_request = |output: &Output| match output {
            Output::LocalRead { purpose, .. } => Some(*purpose),
            _ => None,
        };
        let outputs = outputs(core);
        outputs.iter().filter_map(of_request).collect::<Vec<_>>()
    };
    for (id, block) in [(2, 40), (3, 0)] {
        let epoch = Epoch(2);
        let request = Request {
            epoch,
            ..read(id, block)
        };
        core.handle_request(later, chunk(), request);
    }
    // Of the other block node 2 may have what node 3 has not.
    assert_eq!(begun(&mut core), [ReadPurpose::Request(RequestId(2))]);
    // A copy that is in sync by the configuration alone reads nothing.
    let mut young = sealing();
    let request = Request {
        epoch: Epoch(1),
        ..read(4, 40)
    };
    young.handle_request(NOW, chunk(), request);
    assert_eq!(begun(&mut young), []);
}

#[test]
fn writes_wait_for_one_that_does_not_end_before_they_fill_the_windows() {
    let mut core = leading();
    let mut sent = 0;
    for id in 1..=5000 {
        // The first one has a page of its own, and node 3 never answers it.
        let start = if id == 1 { 63 } else { id as u32 % 32 };
        core.handle_request(NOW, chunk(), write(id, start, 0));
        let token = PersistToken(id + 10);
        let mut done = outputs(&mut core);
        core.handle_persisted(NOW, chunk(), token);
        done.extend(outputs(&mut core));
        let is_sent = |o: &&Output| {
            matches!(
                o,
                Output::Send {
                    message: Message::ReplicaWrite(_),
                    ..
                }
            )
        };
        if done.iter().filter(is_sent).count() == 0 {
            break;
        }
        sent += 1;
        for io in ios(&done) {
            core.handle_local(NOW, chunk(), io, true, None);
        }
        replica_answer(&mut core, 2, sent);
        if id != 1 {
            replica_answer(&mut core, 3, sent);
        }
        outputs(&mut core);
    }
    assert_eq!(sent, 4096, "as many as the other copies have to remember");
    replica_answer(&mut core, 3, 1);
    let after = outputs(&mut core);
    assert!(after.contains(&complete(1, Status::Done)), "{after:?}");
    assert!(
        after.iter().any(
            |o| matches!(o, Output::Send { message: Message::ReplicaWrite(w), .. } if w.sequence.0 == 4097)
        ),
        "{after:?}"
    );
}

#[test]
fn a_seal_that_waits_for_the_device_wakes_nobody() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    outputs(&mut core);
    let later = NOW + Settings::default().grant_term * 2;
    core.handle_configuration(later, chunk(), &three(2, 2, &[1, 2, 3]));
    let config = three(2, 2, &[1, 2, 3]);
    let seal = Message::Seal {
        chunk: chunk(),
        config,
    };
    core.handle_message(later, NodeId(2), seal, None);
    core.handle_timeout(later);
    let next = core.next_timeout();
    assert!(
        next.is_none_or(|at| at > later),
        "a busy loop until the device answers"
    );
}

#[test]
fn a_deleted_volume_leaves_nothing_behind() {
    let mut core = leading();
    for id in 1..=3 {
        core.handle_request(NOW, chunk(), write(id, 0, 0));
    }
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let read = Request {
        operation: Operation::Read,
        ..write(4, 40, 0)
    };
    core.handle_request(NOW, chunk(), read);
    let before = outputs(&mut core);
    core.remove_volume(NOW, VolumeNumber(9));
    assert!(core.member(chunk()).is_some());
    core.remove_volume(NOW, chunk().volume);
    assert!(core.member(chunk()).is_none());
    let mut after = outputs(&mut core);
    for io in ios(&before) {
        core.handle_local(NOW, chunk(), io, true, Some(DataToken(99)));
    }
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    after.extend(outputs(&mut core));
    for id in 1..=3 {
        assert_eq!(
            after.iter().filter(|o| **o == release(id)).count(),
            1,
            "{after:?}"
        );
    }
    assert!(
        after.contains(&release(99)),
        "what the disk read is given back: {after:?}"
    );
    let ended = |o: &&Output| matches!(o, Output::Complete { .. });
    assert_eq!(after.iter().filter(ended).count(), 4, "{after:?}");
    assert_eq!(core.next_timeout(), None, "nothing is left to be done");
}

#[test]
fn a_claim_takes_the_chunk_from_what_goes_under_others() {
    let mut core = serving();
    let under = |id, number| {
        let host = HostId::through_portals(3);
        let session = Session { host, number };
        Request {
            session,
            ..write(id, 0, 0)
        }
    };
    let claim = |id, after| Request {
        operation: Operation::Write {
            kind: WriteKind::Fence,
            data: None,
            force_unit_access: false,
            compares: false,
        },
        range: BlockRange::default(),
        ..under(id, after)
    };
    let mut ends = |request: Request| {
        core.handle_request(NOW, chunk(), request);
        let mut all = outputs(&mut core);
        core.handle_persisted(NOW, chunk(), PersistToken(1000));
        all.extend(outputs(&mut core));
        for io in ios(&all) {
            core.handle_local(NOW, chunk(), io, true, None);
        }
        all.extend(outputs(&mut core));
        let status = |output: &Output| match output {
            Output::Complete { status, .. } => Some(*status),
            _ => None,
        };
        all.iter().find_map(status).expect("it ends")
    };
    let claimed = |status| match status {
        Status::Claimed(number) => number,
        other => panic!("no claim: {other:?}"),
    };
    assert_eq!(ends(under(1, 0)), Status::StaleSession);
    assert_eq!(ends(under(2, 7)), Status::StaleSession);
    let first = claimed(ends(claim(3, 0)));
    assert_eq!(ends(under(4, first)), Status::Done);
    // By another way: what comes under the first is late, and cannot be carried on either.
    let second = claimed(ends(claim(5, 0)));
    assert!(second > first);
    assert_eq!(ends(under(6, first)), Status::StaleSession);
    assert_eq!(ends(claim(7, first)), Status::StaleSession);
    assert_eq!(ends(under(8, second)), Status::Done);
    let third = claimed(ends(claim(9, second)));
    assert_eq!(ends(under(10, second)), Status::StaleSession);
    assert_eq!(ends(under(11, third)), Status::Done);
    // Other hosts are not concerned.
    let native = |id, number| Request {
        session: Session {
            host: HostId::native(3),
            number,
        },
        ..write(id, 0, 0)
    };
    assert_eq!(ends(native(12, 1)), Status::Done);
    assert_eq!(ends(under(13, third)), Status::Done);
    // Nor does a newer token end a claim, as it ends a native client's session.
    let newer = |request: Request| Request {
        writer_token: WriterToken(5),
        ..request
    };
    assert_eq!(ends(newer(native(14, 2))), Status::Done);
    assert_eq!(ends(newer(under(15, third))), Status::Done);
    assert_eq!(ends(newer(native(16, 2))), Status::Done);
    assert_eq!(ends(newer(under(17, second))), Status::StaleSession);
    let record = core.member(chunk()).unwrap().record();
    assert_eq!(record.sessions.get(&HostId::through_portals(3)), Some(&third));
}

#[test]
fn the_sessions_of_the_hosts_that_wrote_last_are_remembered() {
    let mut core = serving();
    let hosts = 3 * SESSIONS_MAX as u64;
    let request = |id, host, number| {
        let session = Session {
            host: HostId(host),
            number,
        };
        Request {
            session,
            ..write(id, 0, 0)
        }
    };
    for host in 1..=hosts {
        // Host 1 writes again and again, so it is never forgotten.
        for (id, host) in [(2 * host, host), (2 * host + 1, 1)] {
            core.handle_request(NOW, chunk(), request(id, host, 2));
            core.handle_persisted(NOW, chunk(), PersistToken(id * 10));
            for io in ios(&outputs(&mut core)) {
                core.handle_local(NOW, chunk(), io, true, None);
            }
            assert!(
                outputs(&mut core).contains(&complete(id, Status::Done)),
                "host {host}"
            );
        }
        assert!(core.member(chunk()).unwrap().record().sessions.len() <= SESSIONS_MAX);
    }
    for host in [1, hosts, hosts - SESSIONS_MAX as u64 + 2] {
        core.handle_request(NOW, chunk(), request(9, host, 1));
        assert_eq!(
            outputs(&mut core),
            [release(9), complete(9, Status::StaleSession)],
            "host {host}"
        );
    }
}

#[test]
fn a_member_that_lacks_one_write_only_is_left_out_in_the_end() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 63, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let first = ios(&outputs(&mut core))[0];
    core.handle_local(NOW, chunk(), first, true, None);
    replica_answer(&mut core, 2, 1);
    outputs(&mut core);
    let mut proposed = Vec::new();
    for tenths in 1..=100u32 {
        let now = NOW + std::time::Duration::from_millis(100) * tenths;
        // It answers other things all the time.
        let answer = Message::SettleAnswer {
            chunk: chunk(),
            epoch: Epoch(1),
            settled: Sequence(0),
            flushed: Sequence(0),
            open: true,
            incarnation: Incarnation(1),
            room: RoomLeft::Enough,
        };
        core.handle_message(now, NodeId(3), answer, None);
        core.handle_timeout(now);
        let wanted = proposals(&outputs(&mut core));
        proposed.extend(wanted.into_iter().map(|config| (tenths, config)));
    }
    let (tenths, config) = proposed.first().expect("it is left out");
    assert_eq!(*config, three(2, 1, &[1, 2]));
    assert!((60..65).contains(tenths), "after {tenths} tenths of a second");
}

/// The disk of the write node itself stands, and fails nothing: another one orders the writes before hosts give up.
#[test]
fn a_write_node_whose_disk_stands_gives_its_place_to_another() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    for from in [2, 3] {
        replica_answer(&mut core, from, 1);
    }
    let mut proposed = Vec::new();
    for tenths in 1..=70u32 {
        core.handle_timeout(NOW + std::time::Duration::from_millis(100) * tenths);
        let wanted = proposals(&outputs(&mut core));
        proposed.extend(wanted.into_iter().map(|config| (tenths, config)));
    }
    let (tenths, config) = proposed.first().expect("it gives it up");
    assert!((60..65).contains(tenths), "after {tenths} tenths of a second");
    assert_eq!(config.index_of(ME), None, "{config:?}");
    assert!([NodeId(2), NodeId(3)].contains(&config.write_node));
    // The masters do it: of what was asked nobody knows whether it is done.
    let later = NOW + Settings::default().suspect_after * 5;
    core.handle_configuration(later, chunk(), &three(2, 2, &[2, 3]));
    let after = outputs(&mut core);
    assert!(after.contains(&complete(1, Status::Unknown)), "{after:?}");
}

/// A machine that stood still, or a process that got no processor, has heard nobody: that proves nothing.
#[test]
fn silence_counts_only_while_the_write_node_ran_itself() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    outputs(&mut core);
    let settings = Settings::default();
    let woken = NOW + settings.suspect_after * 3;
    core.handle_timeout(woken);
    assert_eq!(proposals(&outputs(&mut core)), [], "the answers may lie unread");
    // The answers were not there: from now on the time counts, with the timer on time.
    let mut now = woken;
    while now < woken + settings.suspect_after {
        now = now + settings.resend_interval;
        core.handle_timeout(now);
        assert_eq!(proposals(&outputs(&mut core)), []);
    }
    core.handle_timeout(now + settings.resend_interval);
    assert_eq!(proposals(&outputs(&mut core)).len(), 1);
}
