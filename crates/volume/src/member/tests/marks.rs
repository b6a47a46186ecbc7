//! What a copy on its way back is told beforehand that it lacks, and marks at once.

use super::*;

/// A copy that is asked to join, of which these regions are named.
fn joining(marks: &[u32]) -> (NodeCore, Instant) {
    let later = NOW + Settings::default().grant_term * 3;
    let mut core = NodeCore::new(NOW, ME, Incarnation(1), Settings::default());
    core.add_copy(NOW, ChunkRecord::new(ClusterId(1), chunk(), geometry()), true);
    core.handle_configuration(later, chunk(), &three(2, 2, &[2, 3]));
    outputs(&mut core);
    let join = Message::Join {
        chunk: chunk(),
        epoch: Epoch(2),
        join: JoinNumber(1),
        incarnation: Incarnation(1),
        writer_token: WriterToken(0),
        sessions: Vec::new(),
        marks: marks.to_vec(),
    };
    core.handle_message(later, NodeId(2), join, None);
    (core, later)
}

fn persisted(outputs: &[Output]) -> Vec<(PersistToken, RecordDelta)> {
    let persist = |output: &Output| match output {
        Output::Persist { token, delta } => Some((*token, delta.clone())),
        _ => None,
    };
    outputs.iter().filter_map(persist).collect()
}

fn has_joined(outputs: &[Output]) -> bool {
    let answer = |output: &Output| {
        matches!(
            output,
            Output::Send {
                message: Message::JoinAnswer { .. },
                ..
            }
        )
    };
    outputs.iter().any(answer)
}

fn piece(sequence: u64, start: u32) -> Message {
    Message::ReplicaWrite(crate::message::ReplicaWrite {
        chunk: chunk(),
        epoch: Epoch(2),
        sequence: Sequence(sequence),
        range: BlockRange { start, count: 1 },
        join: JoinNumber(1),
        kind: WriteKind::Data,
        settled: Sequence(0),
        open: false,
        force_unit_access: false,
        session: None,
        writer_token: WriterToken(0),
        trace: TraceId(0),
    })
}

#[test]
fn regions_that_are_named_are_marked_with_one_that_must_be() {
    let beyond = geometry().regions();
    let (mut core, later) = joining(&[0, 1, 3, beyond]);
    let sealed = persisted(&outputs(&mut core));
    let [(token, RecordDelta::Sealed(_))] = &sealed[..] else {
        panic!("{sealed:?}");
    };
    core.handle_persisted(later, chunk(), *token);
    assert!(has_joined(&outputs(&mut core)));

    let epoch = Epoch(2);
    let mark = |region| RecordDelta::Mark { region, epoch };
    let region_blocks = geometry().region_blocks;
    core.handle_message(later, NodeId(2), piece(1, region_blocks), Some(DataToken(1)));
    let marked = persisted(&outputs(&mut core));
    let deltas: Vec<_> = marked.iter().map(|(_, delta)| delta.clone()).collect();
    assert_eq!(deltas, [mark(1), mark(3)], "what comes next, and is of the chunk");
    core.handle_persisted(later, chunk(), marked[0].0);
    assert_eq!(ios(&outputs(&mut core)).len(), 1, "its own mark is enough");
    core.handle_message(later, NodeId(2), piece(2, 3 * region_blocks), Some(DataToken(2)));
    assert_eq!(outputs(&mut core), [], "until that mark is durable, too");
    core.handle_persisted(later, chunk(), marked[1].0);
    assert_eq!(ios(&outputs(&mut core)).len(), 1);

    // One that was not named has a mark of its own.
    core.handle_message(later, NodeId(2), piece(3, 2 * region_blocks), Some(DataToken(3)));
    let begun = outputs(&mut core);
    let [(token, delta)] = &persisted(&begun)[..] else {
        panic!("{begun:?}");
    };
    assert_eq!(*delta, mark(2));
    assert!(ios(&begun).is_empty(), "{begun:?}");
    core.handle_persisted(later, chunk(), *token);
    assert_eq!(ios(&outputs(&mut core)).len(), 1);
}

#[test]
fn only_a_copy_that_takes_it_is_told_what_it_lacks() {
    for takes_marks in [false, true] {
        let mut core = leading();
        core.handle_request(NOW, chunk(), write(1, 0, 0));
        let written = outputs(&mut core);
        assert!(!persisted(&written).is_empty(), "{written:?}");
        let back = Message::Return {
            chunk: chunk(),
            epoch: Epoch(1),
            incarnation: Incarnation(1),
            flushed_in: Epoch(0),
            marks: vec![3],
            takes_marks,
        };
        core.handle_message(NOW, NodeId(4), back, None);
        let asked = |output: Output| match output {
            Output::Send {
                message: Message::Join { marks, .. },
                ..
            } => Some(marks),
            _ => None,
        };
        let named = outputs(&mut core).into_iter().find_map(asked).unwrap();
        let expected: &[u32] = if takes_marks { &[0, 3] } else { &[] };
        assert_eq!(named, expected);
    }
}
