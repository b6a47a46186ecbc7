//! Writes that compare first: what they wait for, what waits for them, and how they end.

use super::*;
use crate::planted::Bug;

fn compare(id: u64, start: u32) -> Request {
    Request {
        operation: Operation::Write {
            kind: WriteKind::Data,
            data: Some(DataToken(id)),
            force_unit_access: false,
            compares: true,
        },
        ..write(id, start, 0)
    }
}

/// The reads that are made to compare, and for which requests.
fn compared(outputs: &[Output]) -> Vec<(IoToken, u64)> {
    let read = |output: &Output| match output {
        Output::LocalRead {
            io,
            purpose: ReadPurpose::Compare(request),
            ..
        } => Some((*io, request.0)),
        _ => None,
    };
    outputs.iter().filter_map(read).collect()
}

/// The sequences of the writes that go to a member.
fn sent(outputs: &[Output], member: u128) -> Vec<u64> {
    let sequence = |output: &Output| match output {
        Output::Send {
            to,
            message: Message::ReplicaWrite(write),
            ..
        } if to.0 == member => Some(write.sequence.0),
        _ => None,
    };
    outputs.iter().filter_map(sequence).collect()
}

/// The bytes that are written here at a block.
fn written(outputs: &[Output], start: u32) -> Vec<u64> {
    let bytes = |output: &Output| match output {
        Output::LocalWrite { range, data, .. } if range.start == start => data.map(|data| data.0),
        _ => None,
    };
    outputs.iter().filter_map(bytes).collect()
}

/// Ends this node's own part of all that is under way.
fn write_here(core: &mut NodeCore) -> Vec<Output> {
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    let mut after = outputs(core);
    let mut at = 0;
    while at < after.len() {
        if let Output::LocalWrite { io, .. } = after[at] {
            core.handle_local(NOW, chunk(), io, true, None);
            after.extend(outputs(core));
        }
        at += 1;
    }
    after
}

fn ends(outputs: &[Output]) -> Vec<(u64, Status)> {
    let end = |output: &Output| match output {
        Output::Complete { request, status } => Some((request.0, *status)),
        _ => None,
    };
    outputs.iter().filter_map(end).collect()
}

#[test]
fn it_waits_for_writes_of_its_blocks_and_later_ones_wait_for_it() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), write(1, 4, 0));
    core.handle_request(NOW, chunk(), compare(2, 4));
    core.handle_request(NOW, chunk(), write(3, 4, 0));
    // Elsewhere nothing waits.
    core.handle_request(NOW, chunk(), compare(4, 5));
    let after = outputs(&mut core);
    assert_eq!(
        compared(&after).iter().map(|(_, id)| *id).collect::<Vec<_>>(),
        [4]
    );
    assert_eq!(sent(&after, 2), [1]);
    write_here(&mut core);
    for member in [2, 3] {
        replica_answer(&mut core, member, 1);
    }
    let after = outputs(&mut core);
    assert_eq!(ends(&after), [(1, Status::Done)]);
    let (io, id) = compared(&after)[0];
    assert_eq!((id, sent(&after, 2)), (2, vec![]));
    core.handle_compared(NOW, chunk(), io, true);
    let after = outputs(&mut core);
    assert_eq!(
        sent(&after, 2),
        [2],
        "what was compared is written, and nothing before it"
    );
    // It says so once.
    core.handle_compared(NOW, chunk(), io, true);
    assert_eq!(outputs(&mut core), []);
    core.handle_local(NOW, chunk(), ios(&after)[0], true, None);
    for member in [2, 3] {
        replica_answer(&mut core, member, 2);
    }
    let after = outputs(&mut core);
    assert_eq!(
        (ends(&after), sent(&after, 2)),
        (vec![(2, Status::Done)], vec![3])
    );
}

#[test]
fn what_differs_is_said_only_under_the_grants() {
    // With a minimum of two of three, one grant is needed.
    let mut core = leading();
    core.handle_request(NOW, chunk(), compare(1, 4));
    let (io, _) = compared(&outputs(&mut core))[0];
    core.handle_compared(NOW, chunk(), io, false);
    assert_eq!(
        outputs(&mut core),
        [release(1), complete(1, Status::NotReady)],
        "nobody has granted anything"
    );
    // A copy alone needs none.
    let mut core = serving();
    core.handle_request(NOW, chunk(), compare(1, 4));
    let (io, _) = compared(&outputs(&mut core))[0];
    core.handle_compared(NOW, chunk(), io, false);
    assert_eq!(outputs(&mut core), [release(1), complete(1, Status::Differs)]);
}

#[test]
fn it_is_cancelled_until_it_writes() {
    let mut core = serving();
    core.handle_request(NOW, chunk(), compare(1, 4));
    let (io, _) = compared(&outputs(&mut core))[0];
    core.handle_request(NOW, chunk(), write(2, 4, 0));
    assert_eq!(outputs(&mut core), []);
    core.handle_cancel(NOW, chunk(), RequestId(1));
    let after = outputs(&mut core);
    assert_eq!(after[..2], [release(1), complete(1, Status::Cancelled)]);
    assert!(after.len() > 2, "what waited goes on: {after:?}");
    core.handle_compared(NOW, chunk(), io, true);
    assert_eq!(outputs(&mut core), []);
}

#[test]
fn a_newer_session_or_lease_stands_against_it_to_the_end() {
    for (newer, status) in [
        ((2, 0), Status::StaleSession),
        ((1, 7), Status::FencedWriter(WriterToken(7))),
    ] {
        let mut core = serving();
        core.handle_request(NOW, chunk(), compare(1, 4));
        let (io, _) = compared(&outputs(&mut core))[0];
        let mut other = write(2, 20, newer.1);
        other.session.number = newer.0;
        core.handle_request(NOW, chunk(), other);
        write_here(&mut core);
        core.handle_compared(NOW, chunk(), io, true);
        let after = outputs(&mut core);
        assert_eq!(ends(&after), [(1, status)], "{after:?}");
        assert!(after.contains(&release(1)));
    }
}

/// What was in flight goes on as a write in the next epoch: nobody else has written since it was compared. If there was an epoch
/// between, somebody may have.
#[test]
fn in_a_later_epoch_it_is_compared_anew_or_not_at_all() {
    for (epoch, goes_on) in [(2, true), (3, false)] {
        let mut core = leading();
        core.handle_request(NOW, chunk(), compare(1, 4));
        core.handle_request(NOW, chunk(), compare(2, 9));
        let reads = compared(&outputs(&mut core));
        core.handle_compared(NOW, chunk(), reads[0].0, true);
        write_here(&mut core);
        core.handle_request(NOW, chunk(), write(3, 4, 0));
        core.handle_configuration(NOW, chunk(), &three(epoch, 1, &[1, 2]));
        let after = outputs(&mut core);
        let unknown = [(1, Status::Unknown)];
        assert_eq!(ends(&after), if goes_on { &unknown[..0] } else { &unknown[..] });
        // The other one's read was of the epoch before.
        core.handle_compared(NOW, chunk(), reads[1].0, true);
        assert_eq!(ends(&outputs(&mut core)), []);
        core.handle_timeout(NOW + Settings::default().grant_term * 2);
        core.handle_persisted(NOW, chunk(), PersistToken(99));
        seal_answer_in(&mut core, epoch, 2, Vec::new(), true);
        let mut after = write_here(&mut core);
        for (io, _) in reconciled(&after) {
            core.handle_local(NOW, chunk(), io, true, Some(DataToken(50 + io.0)));
            after.extend(outputs(&mut core));
        }
        while core.member(chunk()).unwrap().phase() != Some(crate::Phase::Serving) {
            let sequence = *sent(&after, 2).last().expect("it is reconciled");
            replica_answer_in(&mut core, epoch, 2, sequence);
            after.extend(write_here(&mut core));
        }
        let asked: Vec<u64> = compared(&after).iter().map(|(_, id)| *id).collect();
        assert_eq!(asked, [2], "epoch {epoch}");
        // What goes on is the first of its blocks: another one would have replaced what it was compared with.
        assert_eq!(written(&after, 4), [if goes_on { 1 } else { 3 }], "epoch {epoch}");
    }
}

/// What had been compared two epochs before, and had no place in the one between yet.
#[test]
fn what_waits_to_go_on_does_not_outlive_an_epoch_of_another() {
    for (epochs, goes_on) in [([2, 3], true), ([2, 4], false)] {
        let mut core = leading();
        core.handle_request(NOW, chunk(), compare(1, 4));
        let reads = compared(&outputs(&mut core));
        core.handle_compared(NOW, chunk(), reads[0].0, true);
        write_here(&mut core);
        for epoch in epochs {
            core.handle_configuration(NOW, chunk(), &three(epoch, 1, &[1, 2]));
        }
        let unknown = [(1, Status::Unknown)];
        let ended = ends(&outputs(&mut core));
        assert_eq!(ended, if goes_on { &unknown[..0] } else { &unknown[..] });
    }
}

/// A portal's host that does not know whether its write was done reads when it has claimed the chunk anew.
#[test]
fn a_claim_waits_for_what_its_host_compared_and_has_in_flight() {
    for (planted, waits) in [(None, true), (Some(Bug::ClaimBeforeCompared), false)] {
        let mut core = leading_with(Planted { bug: planted });
        let session = |number| Session {
            host: HostId::through_portals(1),
            number,
        };
        let claim = |id, number| Request {
            operation: Operation::Write {
                kind: WriteKind::Fence,
                data: None,
                force_unit_access: false,
                compares: false,
            },
            range: BlockRange::default(),
            session: session(number),
            ..write(id, 0, 0)
        };
        core.handle_request(NOW, chunk(), claim(1, 0));
        write_here(&mut core);
        for member in [2, 3] {
            replica_answer(&mut core, member, 1);
        }
        assert_eq!(ends(&outputs(&mut core)), [(1, Status::Claimed(1))]);
        for (id, start) in [(2, 4), (4, 9)] {
            let exchange = Request {
                session: session(1),
                ..compare(id, start)
            };
            core.handle_request(NOW, chunk(), exchange);
            if id == 2 {
                let (io, _) = compared(&outputs(&mut core))[0];
                core.handle_compared(NOW, chunk(), io, true);
                write_here(&mut core);
                replica_answer(&mut core, 2, 2);
                // Its answer is lost on the way; one copy does not have it yet.
                core.handle_request(NOW, chunk(), claim(3, 1));
                assert_eq!(sent(&outputs(&mut core), 2), if waits { vec![] } else { vec![3] });
            }
        }
        if !waits {
            continue;
        }
        assert_eq!(
            compared(&outputs(&mut core)),
            [],
            "none begins while the claim waits"
        );
        let here = write_here(&mut core);
        assert!(sent(&here, 2).is_empty());
        replica_answer(&mut core, 3, 2);
        let after = outputs(&mut core);
        assert_eq!(sent(&after, 2), [3], "{after:?}");
        assert_eq!(
            ends(&after),
            [(2, Status::Done), (4, Status::StaleSession)],
            "{after:?}"
        );
    }
}

#[test]
fn a_repair_that_is_given_up_keeps_nothing_waiting() {
    let mut core = leading();
    core.handle_request(NOW, chunk(), compare(1, 4));
    core.handle_request(NOW, chunk(), write(2, 4, 0));
    let (io, _) = compared(&outputs(&mut core))[0];
    assert!(core.handle_damaged(NOW, chunk(), io, &[4]));
    let (own, _) = reconciled(&outputs(&mut core))[0];
    assert!(core.handle_damaged(NOW, chunk(), own, &[4]));
    assert!(fetch(&outputs(&mut core)).is_some());
    // Those who are asked live, and do not answer.
    let settings = Settings::default();
    let mut now = NOW;
    let mut after = Vec::new();
    while now < NOW + settings.suspect_after * 2 + settings.resend_interval {
        now = now + settings.resend_interval;
        core.handle_timeout(now);
        after.extend(outputs(&mut core));
    }
    assert_eq!(ends(&after), [(1, Status::NotReady)]);
    let written = sent(&after, 2);
    assert!(
        !written.is_empty() && written.iter().all(|sequence| *sequence == 2),
        "the write goes on: {written:?}"
    );
}

fn reconciled(outputs: &[Output]) -> Vec<(IoToken, BlockRange)> {
    let read = |output: &Output| match output {
        Output::LocalRead {
            io,
            range,
            purpose: ReadPurpose::Reconcile,
        } => Some((*io, *range)),
        _ => None,
    };
    outputs.iter().filter_map(read).collect()
}

#[test]
fn a_damaged_block_is_repaired_and_compared_anew_or_said_to_be_lost() {
    for is_lost in [false, true] {
        let mut core = leading();
        core.handle_request(NOW, chunk(), compare(1, 4));
        let (io, _) = compared(&outputs(&mut core))[0];
        assert!(core.handle_damaged(NOW, chunk(), io, &[4]));
        let after = outputs(&mut core);
        assert_eq!(compared(&after), [], "the repair comes first: {after:?}");
        let (own, range) = reconciled(&after)[0];
        assert_eq!(range, BlockRange { start: 4, count: 1 });
        assert!(core.handle_damaged(NOW, chunk(), own, &[4]));
        let mut after = outputs(&mut core);
        let mut tried = 0;
        while let Some((to, number)) = fetch(&after) {
            tried += 1;
            let found = !is_lost;
            let answer = Message::FetchAnswer {
                chunk: chunk(),
                epoch: Epoch(1),
                number,
                incarnation: Incarnation(1),
                range,
                any: false,
                found,
            };
            core.handle_message(NOW, to, answer, found.then_some(DataToken(70)));
            after = outputs(&mut core);
            if found {
                break;
            }
        }
        if is_lost {
            assert_eq!((tried, ends(&after)), (2, vec![(1, Status::Lost)]));
            assert!(after.contains(&release(1)));
            continue;
        }
        write_here(&mut core);
        for member in [2, 3] {
            replica_answer(&mut core, member, 1);
        }
        let after = outputs(&mut core);
        assert_eq!(compared(&after).len(), 1, "{after:?}");
    }
}

/// Whom the write node asks for a block, and under which number.
fn fetch(outputs: &[Output]) -> Option<(NodeId, u64)> {
    outputs.iter().find_map(|output| match output {
        Output::Send {
            to,
            message: Message::Fetch { number, .. },
            ..
        } => Some((*to, *number)),
        _ => None,
    })
}
