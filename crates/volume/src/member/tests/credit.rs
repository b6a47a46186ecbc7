//! How much of a node resync takes while others ask something of it (`docs/decisions/0058`, "Credit").

use std::time::Duration;

use super::*;

const JOINER: NodeId = NodeId(4);

fn after(ms: u64) -> Instant {
    NOW + Duration::from_millis(ms)
}

/// A copy that lacks all four regions is let in; somebody asks something of the node just before.
fn comes_back(asks: impl FnOnce(&mut NodeCore)) -> NodeCore {
    let mut core = leading();
    let (chunk, epoch, incarnation) = (chunk(), Epoch(1), Incarnation(1));
    let back = Message::Return {
        chunk,
        epoch,
        incarnation,
        flushed_in: epoch,
        marks: (0..4).collect(),
        takes_marks: true,
    };
    core.handle_message(NOW, JOINER, back, None);
    outputs(&mut core);
    asks(&mut core);
    let joined = Message::JoinAnswer {
        chunk,
        epoch,
        join: JoinNumber(1),
        incarnation,
        keeps_lost: true,
    };
    core.handle_message(NOW, JOINER, joined, None);
    core
}

/// The pieces that are sent now.
fn pieces(core: &mut NodeCore) -> Vec<Sequence> {
    let piece = |output: Output| match output {
        Output::Send {
            to: JOINER,
            message: Message::ReplicaWrite(write),
            ..
        } if write.join == JoinNumber(1) => Some(write.sequence),
        _ => None,
    };
    outputs(core).into_iter().filter_map(piece).collect()
}

fn answer(core: &mut NodeCore, now: Instant, sequence: Sequence) {
    let answer = Message::ReplicaAnswer {
        chunk: chunk(),
        epoch: Epoch(1),
        sequence,
        incarnation: Incarnation(1),
        join: JoinNumber(1),
        room: RoomLeft::Enough,
    };
    core.handle_message(now, JOINER, answer, None);
}

/// Of a chunk that is not here: what counts is that the node is asked.
fn elsewhere() -> ChunkId {
    ChunkId {
        volume: VolumeNumber(9),
        ..chunk()
    }
}

/// A write node of another chunk sends what a client has written there, or a piece of a resync.
fn is_sent(core: &mut NodeCore, join: u32) {
    let write = crate::message::ReplicaWrite {
        chunk: elsewhere(),
        epoch: Epoch(1),
        sequence: Sequence(1),
        range: BlockRange { start: 0, count: 1 },
        join: JoinNumber(join),
        kind: WriteKind::Deallocate,
        settled: Sequence(0),
        open: false,
        force_unit_access: false,
        session: None,
        writer_token: WriterToken(0),
        trace: TraceId(0),
    };
    core.handle_message(NOW, NodeId(2), Message::ReplicaWrite(write), None);
}

/// A client, and a write node of another chunk.
const ASKERS: [fn(&mut NodeCore); 2] = [
    |core| core.handle_request(NOW, elsewhere(), write(1, 0, 0)),
    |core| is_sent(core, 0),
];

#[test]
fn as_many_pieces_are_under_way_as_are_allowed_while_nobody_asks() {
    let mut core = comes_back(|_| ());
    let sent = pieces(&mut core);
    assert_eq!(sent.len(), Settings::default().resync_depth);
}

#[test]
fn one_piece_is_under_way_while_somebody_asks_and_a_pause_follows_each() {
    for asks in ASKERS {
        let mut core = comes_back(asks);
        let sent = pieces(&mut core);
        assert_eq!(sent.len(), 1, "{sent:?}");
        // It took 2 ms: nothing is sent for as long.
        answer(&mut core, after(2), sent[0]);
        core.handle_timeout(after(3));
        assert_eq!(pieces(&mut core), []);
        core.handle_timeout(after(4));
        let sent = pieces(&mut core);
        assert_eq!(sent.len(), 1, "{sent:?}");
        // Nobody has asked for a while: the others go at once.
        answer(&mut core, after(150), sent[0]);
        assert_eq!(pieces(&mut core).len(), 2);
    }
}

#[test]
fn a_piece_for_another_copy_of_this_node_is_nobodys_asking() {
    let mut core = comes_back(|core| is_sent(core, 3));
    assert_eq!(pieces(&mut core).len(), Settings::default().resync_depth);
}
