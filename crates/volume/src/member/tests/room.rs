//! Copies whose disks have little room, or none.

use super::*;
use crate::output::Reason;

fn is_short(core: &mut NodeCore, now: Instant, from: u128, is_short: bool) {
    let room = if is_short {
        RoomLeft::Little
    } else {
        RoomLeft::Enough
    };
    says(core, now, from, room);
}

fn has_none(core: &mut NodeCore, now: Instant, from: u128) {
    says(core, now, from, RoomLeft::Nothing);
}

fn says(core: &mut NodeCore, now: Instant, from: u128, room: RoomLeft) {
    let answer = Message::SettleAnswer {
        chunk: chunk(),
        epoch: Epoch(1),
        settled: Sequence(0),
        flushed: Sequence(0),
        open: true,
        incarnation: Incarnation(1),
        room,
    };
    core.handle_message(now, NodeId(from), answer, None);
}

fn settles(outputs: &[Output]) -> Vec<NodeId> {
    let settle = |output: &Output| match output {
        Output::Send {
            to,
            message: Message::Settle { .. },
            ..
        } => Some(*to),
        _ => None,
    };
    outputs.iter().filter_map(settle).collect()
}

/// Whether a copy that is left out asks to come back.
fn asks_back(core: &mut NodeCore, now: Instant) -> bool {
    core.handle_timeout(now);
    let asks = |output: &Output| {
        matches!(
            output,
            Output::Send {
                message: Message::Return { .. },
                ..
            }
        )
    };
    outputs(core).iter().any(asks)
}

fn range(start: u32, count: u32) -> BlockRange {
    BlockRange { start, count }
}

/// A member of epoch 1 under node 2, and a write of it that finds no room; what is put out for it before is left out.
fn member_without_room() -> (NodeCore, IoToken) {
    let later = NOW + Settings::default().grant_term;
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    let config = three(1, 2, &[1, 2, 3]);
    let seal = Message::Seal {
        chunk: chunk(),
        config,
    };
    core.handle_message(later, NodeId(2), seal, None);
    core.handle_persisted(later, chunk(), PersistToken(1));
    replica_write(&mut core, later, 1);
    core.handle_persisted(later, chunk(), PersistToken(9));
    let io = ios(&outputs(&mut core))[0];
    core.handle_full(later, chunk(), io);
    assert_eq!(outputs(&mut core), [], "nothing has failed");
    assert!(core.member(chunk()).unwrap().lacks_room());
    (core, io)
}

fn replica_write(core: &mut NodeCore, now: Instant, sequence: u64) {
    let write = Message::ReplicaWrite(sequenced(sequence));
    core.handle_message(now, NodeId(2), write, Some(DataToken(100 + sequence)));
}

fn sequenced(sequence: u64) -> crate::message::ReplicaWrite {
    crate::message::ReplicaWrite {
        chunk: chunk(),
        epoch: Epoch(1),
        sequence: Sequence(sequence),
        settled: Sequence(0),
        open: true,
        range: range(8 * (sequence as u32 - 1), 1),
        kind: WriteKind::Data,
        force_unit_access: false,
        session: None,
        writer_token: WriterToken(0),
        join: JoinNumber(0),
        trace: TraceId(0),
    }
}

#[test]
fn what_finds_no_room_is_made_again_once_there_is_some_and_answered_only_then() {
    let later = NOW + Settings::default().grant_term;
    let (mut core, io) = member_without_room();
    // The write node sends it again; the answer comes when it is done.
    replica_write(&mut core, later, 1);
    assert_eq!(outputs(&mut core), [release(101)], "it is under way");
    // What it says of itself meanwhile.
    let settle = Message::Settle {
        chunk: chunk(),
        epoch: Epoch(1),
        settled: Sequence(0),
        flushed: Sequence(0),
        open: true,
    };
    core.handle_message(later, NodeId(2), settle, None);
    let says_so = |output: &Output| {
        matches!(
            output,
            Output::Send {
                message: Message::SettleAnswer {
                    room: RoomLeft::Nothing,
                    ..
                },
                ..
            }
        )
    };
    assert!(outputs(&mut core).iter().any(says_so));
    core.handle_room(later, chunk());
    let again = outputs(&mut core);
    assert!(
        matches!(again[..], [Output::LocalWrite { io: i, data: Some(DataToken(101)), .. }] if i == io),
        "{again:?}"
    );
    core.handle_local(later, chunk(), io, true, None);
    let done = outputs(&mut core);
    let answers = |output: &Output| match output {
        Output::Send {
            message: Message::ReplicaAnswer { sequence, room, .. },
            ..
        } => Some((*sequence, *room)),
        _ => None,
    };
    let answers: Vec<_> = done.iter().filter_map(answers).collect();
    assert_eq!(answers, [(Sequence(1), RoomLeft::Enough)]);
}

#[test]
fn a_new_epoch_gives_up_what_waits_for_room_and_its_region_is_marked() {
    let later = NOW + Settings::default().grant_term * 2;
    let (mut core, io) = member_without_room();
    let seal = Message::Seal {
        chunk: chunk(),
        config: three(2, 2, &[1, 2, 3]),
    };
    core.handle_message(later, NodeId(2), seal, None);
    let given_up = outputs(&mut core);
    assert_eq!(given_up[0], release(101));
    assert!(
        matches!(
            given_up[1],
            Output::Persist {
                delta: RecordDelta::Sealed(_),
                ..
            }
        ),
        "{given_up:?}"
    );
    core.handle_persisted(later, chunk(), PersistToken(99));
    let marks = outputs(&mut core).into_iter().find_map(|output| match output {
        Output::Send {
            message: Message::SealAnswer(answer),
            ..
        } => Some((answer.marks, answer.stays)),
        _ => None,
    });
    assert_eq!(marks, Some((vec![0], true)));
    // Half of it may be there, and others may have it: nobody reads it before the new epoch is served.
    let read = Request {
        operation: Operation::Read,
        epoch: Epoch(2),
        ..write(7, 0, 0)
    };
    core.handle_request(later, chunk(), read);
    assert_eq!(ios(&outputs(&mut core)), []);
    let now = core.next_timeout().unwrap() + Settings::default().read_hold;
    core.handle_timeout(now);
    assert!(outputs(&mut core).contains(&complete(7, Status::NotReady)));
    // Nothing of it is left to be made again.
    core.handle_room(later, chunk());
    assert_eq!(outputs(&mut core), []);
    core.handle_local(later, chunk(), io, true, None);
    assert_eq!(outputs(&mut core), []);
}

/// A write of one block, which may need room; what comes of it at once.
fn asks(core: &mut NodeCore, now: Instant, id: u64, (start, needs_room): (u32, bool)) -> Vec<Output> {
    let request = Request {
        needs_room,
        ..write(id, start, 0)
    };
    core.handle_request(now, chunk(), request);
    outputs(core)
}

fn is_begun(outputs: &[Output]) -> bool {
    let is_write = |output: &Output| match output {
        Output::LocalWrite { .. } => true,
        Output::Persist { delta, .. } => matches!(delta, RecordDelta::Mark { .. }),
        _ => false,
    };
    outputs.iter().any(is_write)
}

fn refused(id: u64) -> [Output; 2] {
    [release(id), complete(id, Status::NoRoom)]
}

#[test]
fn a_write_node_whose_disk_is_full_goes_on_reading_and_tells_writers_after_a_while() {
    let limit = Settings::default().suspect_after;
    let mut core = serving();
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    let io = ios(&outputs(&mut core))[0];
    core.handle_full(NOW, chunk(), io);
    let read = Request {
        operation: Operation::Read,
        ..write(2, 40, 0)
    };
    core.handle_request(NOW, chunk(), read);
    let reads = ios(&outputs(&mut core));
    assert_eq!(reads.len(), 1, "reads go on");
    core.handle_local(NOW, chunk(), reads[0], true, None);
    assert_eq!(outputs(&mut core), [complete(2, Status::Done)]);
    // What needs room is refused, and what waits behind the one without waits for a while.
    assert_eq!(asks(&mut core, NOW, 3, (40, true)), refused(3));
    assert_eq!(asks(&mut core, NOW, 4, (0, false)), []);
    let mut begun = asks(&mut core, NOW, 5, (56, false));
    assert!(is_begun(&begun), "what overwrites goes on");
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    begun.extend(outputs(&mut core));
    let overwrites = ios(&begun)[0];
    core.handle_local(NOW, chunk(), overwrites, true, None);
    assert!(outputs(&mut core).contains(&complete(5, Status::Done)));
    let mut now = NOW;
    while now <= NOW + limit {
        now = now + Settings::default().resend_interval;
        core.handle_timeout(now);
    }
    core.handle_timeout(now + Settings::default().resend_interval);
    let mut ended = outputs(&mut core);
    ended.retain(|output| matches!(output, Output::Complete { .. }));
    assert_eq!(ended, [complete(1, Status::NoRoom), complete(4, Status::NoRoom)]);
    // There is room, and what was promised to nobody is done all the same.
    core.handle_room(now, chunk());
    core.handle_local(now, chunk(), io, true, None);
    let done = outputs(&mut core);
    assert!(done.contains(&release(1)), "{done:?}");
    assert!(!done.contains(&complete(1, Status::Done)), "{done:?}");
    assert!(is_begun(&asks(&mut core, now, 6, (16, true))), "there is room");
}

#[test]
fn with_too_few_copies_that_have_room_writes_are_refused_and_with_enough_one_is_left_out() {
    let limit = Settings::default().suspect_after;
    // Two of three are the fewest.
    let mut core = leading();
    is_short(&mut core, NOW, 3, true);
    is_short(&mut core, NOW, 2, false);
    outputs(&mut core);
    let overwrites = asks(&mut core, NOW, 1, (0, false));
    assert!(is_begun(&overwrites) && proposals(&overwrites).is_empty());
    let needs = asks(&mut core, NOW, 2, (8, true));
    assert!(!is_begun(&needs), "not before one is left out");
    assert_eq!(proposals(&needs), [three(2, 1, &[1, 2])]);
    assert!(matches!(
        needs[0],
        Output::Propose {
            reason: Reason::NoRoom,
            ..
        }
    ));
    // The masters do not answer: what is left has to do.
    let later = NOW + limit * 2;
    is_short(&mut core, later, 3, true);
    is_short(&mut core, later, 2, false);
    core.handle_timeout(later);
    let sent = |output: &Output| matches!(output, Output::Send { message: Message::ReplicaWrite(write), .. } if write.range.start == 8);
    assert!(outputs(&mut core).iter().any(sent));

    // Its own: what others have is asked first.
    let mut core = leading();
    core.handle_short(NOW, chunk(), true);
    assert_eq!(
        settles(&asks(&mut core, NOW, 1, (0, true))),
        [NodeId(2), NodeId(3)]
    );
    is_short(&mut core, NOW, 2, false);
    assert_eq!(outputs(&mut core), []);
    is_short(&mut core, NOW, 3, false);
    let proposed = proposals(&outputs(&mut core));
    assert_eq!(proposed.len(), 1);
    assert_ne!(proposed[0].write_node, ME, "another one orders the writes");
    assert_eq!(proposed[0].members.len(), 2);

    let mut core = leading();
    core.handle_short(NOW, chunk(), true);
    asks(&mut core, NOW, 1, (0, true));
    for from in [2, 3] {
        is_short(&mut core, NOW, from, true);
    }
    assert_eq!(outputs(&mut core), refused(1), "nothing was done");
    assert_eq!(asks(&mut core, NOW, 2, (8, true)), refused(2));
    assert!(is_begun(&asks(&mut core, NOW, 3, (0, false))));

    // Who does not answer is not waited for: for all that is known it has room.
    let mut core = leading();
    core.handle_short(NOW, chunk(), true);
    asks(&mut core, NOW, 1, (0, true));
    let later = core.next_timeout().unwrap().max(NOW + limit);
    core.handle_timeout(later);
    assert_eq!(proposals(&outputs(&mut core)).len(), 1);
}

/// Otherwise writes would be refused for ever where nothing else is written.
#[test]
fn a_member_that_lacks_room_is_asked_until_it_has_some() {
    let settings = Settings::default();
    let mut core = leading();
    let mut now = NOW + settings.settle_delay;
    core.handle_timeout(now);
    assert_eq!(settles(&outputs(&mut core)), [NodeId(2), NodeId(3)]);
    for from in [2, 3] {
        is_short(&mut core, now, from, from == 3);
    }
    for _ in 0..3 {
        now = core.next_timeout().expect("it is asked");
        core.handle_timeout(now);
        let asked = settles(&outputs(&mut core));
        if !asked.is_empty() {
            assert_eq!(asked, [NodeId(3)]);
            is_short(&mut core, now, 3, true);
        }
    }
    assert!(core.member(chunk()).unwrap().looks_at_room());
    is_short(&mut core, now, 3, false);
    assert!(!core.member(chunk()).unwrap().looks_at_room());
    let now = now + settings.suspect_after * 2;
    core.handle_timeout(now);
    assert_eq!(settles(&outputs(&mut core)), []);
}

#[test]
fn a_copy_that_was_left_out_for_want_of_room_comes_back_when_it_has_some() {
    let later = NOW + Settings::default().grant_term * 3;
    let (mut core, _) = member_without_room();
    core.handle_short(later, chunk(), true);
    core.handle_configuration(later, chunk(), &three(2, 2, &[2, 3]));
    let later = later + Settings::default().grant_term * 2;
    assert!(!asks_back(&mut core, later));
    core.handle_room(later, chunk());
    assert!(!asks_back(&mut core, later), "little is left");
    core.handle_short(later, chunk(), false);
    assert!(asks_back(&mut core, later));
}

/// A release before does so; it has left the epoch in which it failed.
#[test]
fn a_member_that_says_it_has_room_again_is_taken_back_in_a_new_epoch() {
    let mut core = leading();
    let back = Message::Return {
        chunk: chunk(),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        flushed_in: Epoch(1),
        marks: Vec::new(),
        takes_marks: true,
    };
    core.handle_message(NOW, NodeId(3), back, None);
    assert_eq!(proposals(&outputs(&mut core)), [three(2, 1, &[1, 2, 3])]);
}

/// Otherwise it would hold up the writes of those that have room.
#[test]
fn a_copy_on_its_way_back_that_finds_no_room_gives_up_until_it_has_some() {
    let later = NOW + Settings::default().grant_term * 3;
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    core.handle_configuration(later, chunk(), &three(2, 2, &[2, 3]));
    let join = |join| Message::Join {
        chunk: chunk(),
        epoch: Epoch(2),
        join: JoinNumber(join),
        incarnation: Incarnation(1),
        writer_token: WriterToken(0),
        sessions: Vec::new(),
        marks: Vec::new(),
    };
    core.handle_message(later, NodeId(2), join(1), None);
    core.handle_persisted(later, chunk(), PersistToken(99));
    let answered = |output: &Output| matches!(output, Output::Send { message: Message::JoinAnswer { join, .. }, .. } if *join == JoinNumber(1));
    assert!(outputs(&mut core).iter().any(answered));
    let write = crate::message::ReplicaWrite {
        epoch: Epoch(2),
        join: JoinNumber(1),
        ..sequenced(1)
    };
    let data = Some(DataToken(101));
    core.handle_message(later, NodeId(2), Message::ReplicaWrite(write), data);
    core.handle_persisted(later, chunk(), PersistToken(999));
    let io = ios(&outputs(&mut core))[0];
    core.handle_short(later, chunk(), true);
    core.handle_full(later, chunk(), io);
    let after = outputs(&mut core);
    let refused = |output: &Output| {
        let refused = Refusal::DeviceFailed;
        matches!(output, Output::Send { to: NodeId(2), message: Message::Refused { refusal, .. }, .. } if *refusal == refused)
    };
    assert!(
        after.contains(&release(101)) && after.iter().any(refused),
        "{after:?}"
    );
    assert!(!core.member(chunk()).unwrap().lacks_room(), "nothing is kept");
    let later = later + Settings::default().grant_term * 2;
    assert!(!asks_back(&mut core, later));
    core.handle_short(later, chunk(), false);
    assert!(asks_back(&mut core, later));
    // A write of the join that it left comes to nothing.
    let write = crate::message::ReplicaWrite {
        sequence: Sequence(2),
        ..write
    };
    core.handle_message(
        later,
        NodeId(2),
        Message::ReplicaWrite(write),
        Some(DataToken(102)),
    );
    let after = outputs(&mut core);
    assert!(
        after.contains(&release(102)) && ios(&after).is_empty(),
        "{after:?}"
    );
}

/// A copy alone, of 128 blocks.
fn alone() -> NodeCore {
    let geometry = Geometry {
        chunk_blocks: 128,
        copies: 1,
        minimum: 1,
        ..geometry()
    };
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry), true);
    core.handle_configuration(NOW, chunk(), &three(1, 1, &[1]));
    core.handle_persisted(NOW, chunk(), PersistToken(1));
    outputs(&mut core);
    core
}

/// Begins it; its device finds no room for it.
fn park(core: &mut NodeCore, now: Instant, request: Request) -> IoToken {
    core.handle_request(now, chunk(), request);
    core.handle_persisted(now, chunk(), PersistToken(9999));
    let io = ios(&outputs(core))[0];
    core.handle_full(now, chunk(), io);
    outputs(core);
    io
}

fn ended(core: &mut NodeCore) -> Vec<Output> {
    let mut ended = outputs(core);
    ended.retain(|output| matches!(output, Output::Complete { .. }));
    ended
}

/// Until who waits for room has been told.
fn passes(core: &mut NodeCore, mut now: Instant) -> Instant {
    let settings = Settings::default();
    let until = now + settings.suspect_after + settings.resend_interval * 2;
    while now <= until {
        now = now + settings.resend_interval;
        core.handle_timeout(now);
    }
    now
}

#[test]
fn a_write_that_compares_is_told_nothing_while_it_waits_and_what_comes_behind_it_is_refused() {
    let mut core = alone();
    let compare = Request {
        operation: Operation::Write {
            kind: WriteKind::Data,
            data: Some(DataToken(1)),
            force_unit_access: false,
            compares: true,
        },
        ..write(1, 4, 0)
    };
    core.handle_request(NOW, chunk(), compare);
    let read = ios(&outputs(&mut core))[0];
    core.handle_compared(NOW, chunk(), read, true);
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    let io = ios(&outputs(&mut core))[0];
    core.handle_full(NOW, chunk(), io);
    assert_eq!(asks(&mut core, NOW, 2, (4, false)), [], "it waits behind it");
    let now = passes(&mut core, NOW);
    assert_eq!(ended(&mut core), [complete(2, Status::NoRoom)]);
    assert_eq!(asks(&mut core, now, 3, (4, false)), refused(3));
    core.handle_room(now, chunk());
    core.handle_local(now, chunk(), io, true, None);
    assert_eq!(ended(&mut core), [complete(1, Status::Done)]);
}

/// Copies that lack the write would refuse it after that, so the lease is not put into force.
#[test]
fn a_lease_is_not_taken_over_while_a_write_under_an_older_one_waits_for_room() {
    let mut core = alone();
    let io = park(&mut core, NOW, write(1, 0, 4));
    core.handle_request(NOW, chunk(), write(2, 40, 5));
    assert_eq!(outputs(&mut core), []);
    let now = passes(&mut core, NOW);
    let told = [complete(1, Status::NoRoom), complete(2, Status::NoRoom)];
    assert_eq!(ended(&mut core), told);
    core.handle_request(now, chunk(), write(3, 41, 5));
    assert_eq!(outputs(&mut core), refused(3));
    core.handle_room(now, chunk());
    core.handle_local(now, chunk(), io, true, None);
    assert_eq!(ended(&mut core), []);
    core.handle_request(now, chunk(), write(4, 42, 5));
    assert!(is_begun(&outputs(&mut core)));
}

#[test]
fn a_chunk_takes_no_more_writes_while_too_many_wait_of_which_clients_were_told() {
    let mut core = alone();
    let mut parked: Vec<_> = (0..63)
        .map(|block| park(&mut core, NOW, write(block, block as u32, 0)))
        .collect();
    let now = passes(&mut core, NOW);
    assert_eq!(ended(&mut core).len(), parked.len());
    // One more is taken, and waits, too.
    parked.push(park(&mut core, now, write(64, 64, 0)));
    let overwrites = ios(&asks(&mut core, now, 65, (100, false)));
    assert_eq!(overwrites.len(), 1);
    core.handle_local(now, chunk(), overwrites[0], true, None);
    assert_eq!(ended(&mut core), [complete(65, Status::Done)]);
    let now = passes(&mut core, now);
    assert_eq!(ended(&mut core), [complete(64, Status::NoRoom)]);
    assert_eq!(asks(&mut core, now, 66, (101, false)), refused(66));
    let read = Request {
        operation: Operation::Read,
        ..write(67, 100, 0)
    };
    core.handle_request(now, chunk(), read);
    assert_eq!(ios(&outputs(&mut core)).len(), 1, "reads go on");
    core.handle_room(now, chunk());
    core.handle_local(now, chunk(), parked[0], true, None);
    outputs(&mut core);
    assert!(is_begun(&asks(&mut core, now, 68, (101, false))));
}

#[test]
fn who_waits_for_an_epoch_that_waits_for_room_is_told() {
    let mut core = sealing();
    seal_answer(&mut core, 2, vec![2]);
    seal_answer(&mut core, 3, Vec::new());
    let begun = outputs(&mut core);
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    for (io, data) in ios(&begun).into_iter().zip(1000..) {
        core.handle_local(NOW, chunk(), io, true, Some(DataToken(data)));
    }
    replica_answer(&mut core, 2, 1);
    core.handle_request(NOW, chunk(), write(1, 0, 0));
    let flush = Request {
        operation: Operation::Flush,
        ..write(2, 0, 0)
    };
    core.handle_request(NOW, chunk(), flush);
    let settings = Settings::default();
    let mut now = NOW;
    let mut told = Vec::new();
    while now <= NOW + settings.suspect_after * 2 {
        now = now + settings.resend_interval;
        has_none(&mut core, now, 3);
        core.handle_timeout(now);
        told.extend(ended(&mut core));
    }
    assert_eq!(
        told,
        [complete(1, Status::NoRoom), complete(2, Status::NoRoom)],
        "node 3 has no room for what is made equal"
    );
    let phase = |core: &NodeCore| core.member(chunk()).and_then(|member| member.phase());
    assert_eq!(phase(&core), Some(crate::Phase::Reconciling));
    replica_answer(&mut core, 3, 1);
    assert_eq!(phase(&core), Some(crate::Phase::Serving));
}
