//! What a copy does that the masters have served by force: alone, in an epoch far above all that it knows.

use super::*;
use crate::planted::Bug;

const REGIONS: u32 = 4;

/// A copy that took part in epoch 5, was left out and starts again.
fn left_out(planted: Option<Bug>) -> NodeCore {
    let mut record = ChunkRecord::new(ClusterId(1), chunk(), geometry());
    for delta in [
        RecordDelta::Sealed(three(5, 2, &[1, 2])),
        RecordDelta::Flushed(Epoch(5)),
        RecordDelta::Mark {
            region: 1,
            epoch: Epoch(5),
        },
    ] {
        record.apply(&delta);
    }
    let mut core = NodeCore::new(NOW, ME, Incarnation(2), Settings::default());
    core.plant(Planted { bug: planted });
    core.add_copy(NOW, record, true);
    core
}

fn alone(epoch: u64) -> ChunkConfig {
    ChunkConfig {
        epoch: Epoch(epoch),
        write_node: ME,
        members: vec![Membership {
            node: ME,
            incarnation: Incarnation(2),
        }],
    }
}

/// What the copy makes durable to serve that configuration, in this order.
fn served(core: &mut NodeCore, config: &ChunkConfig) -> Vec<RecordDelta> {
    core.handle_configuration(NOW, chunk(), config);
    assert_eq!(outputs(core), [], "this life is too young to seal");
    let later = NOW + Settings::default().grant_term;
    core.handle_timeout(later);
    let (mut deltas, mut last) = (Vec::new(), PersistToken(0));
    // Marks that a write node finds are made durable in turn.
    for _ in 0..4 {
        for output in outputs(core) {
            match output {
                Output::Persist { token, delta } => {
                    deltas.push(delta);
                    last = token;
                }
                Output::LocalRead { io, .. } => {
                    core.handle_local(later, chunk(), io, true, Some(DataToken(1)));
                }
                _ => {}
            }
        }
        core.handle_persisted(later, chunk(), last);
    }
    let phase = core.member(chunk()).and_then(|member| member.phase());
    assert_eq!(phase, Some(crate::Phase::Serving), "{deltas:?}");
    deltas
}

/// The regions that it would send a copy which was in sync until epoch 9, and has flushed all that it had.
fn sent(core: &mut NodeCore, epoch: u64) -> u32 {
    let later = NOW + Settings::default().grant_term * 2;
    let (epoch, incarnation, chunk) = (Epoch(epoch), Incarnation(7), chunk());
    let back = Message::Return {
        chunk,
        epoch,
        incarnation,
        flushed_in: Epoch(9),
        marks: Vec::new(),
        takes_marks: true,
    };
    core.handle_message(later, NodeId(2), back, None);
    let join = JoinNumber(1);
    let joined = Message::JoinAnswer {
        chunk,
        epoch,
        join,
        incarnation,
        keeps_lost: true,
    };
    core.handle_message(later, NodeId(2), joined, None);
    let progress = core
        .resyncs(later)
        .map(|(_, progress)| progress.total_bytes)
        .sum::<u64>();
    u32::try_from(progress / u64::from(16 * 4096_u32)).unwrap()
}

#[test]
fn a_forced_copy_counts_all_regions_as_written_before_it_seals() {
    let mut core = left_out(None);
    let config = alone(9 + Epoch::JUMP);
    let deltas = served(&mut core, &config);
    let sealed = deltas
        .iter()
        .position(|delta| *delta == RecordDelta::Sealed(config.clone()));
    let before = &deltas[..sealed.unwrap()];
    let epoch = config.epoch;
    let mut expected: Vec<RecordDelta> = (0..REGIONS)
        .map(|region| RecordDelta::Mark { region, epoch })
        .collect();
    // What it had marked of itself stays so.
    let regions = vec![0, 2, 3];
    expected.push(RecordDelta::Clear { regions });
    assert_eq!(before, expected);
    let record = core.member(chunk()).unwrap().record();
    assert!((0..REGIONS).all(|region| record.written_in[&region] == epoch));
    // One that was in sync later than it is sent all: what it has written since, nobody here knows.
    assert_eq!(sent(&mut core, epoch.0), REGIONS);
}

/// As long as everything goes its way, a copy that is alone knows what the others lack.
#[test]
fn a_copy_that_is_alone_without_force_sends_what_was_written() {
    let mut core = left_out(None);
    let config = alone(6);
    let deltas = served(&mut core, &config);
    assert_eq!(deltas[0], RecordDelta::Sealed(config));
    assert_eq!(core.member(chunk()).unwrap().record().written_in.len(), 1);
}

/// That the rule is needed: without it the copy that had more keeps what the forced one has otherwise.
#[test]
fn without_the_rule_a_copy_that_had_more_would_be_sent_too_little() {
    let mut core = left_out(Some(Bug::ForcedAsIfInSync));
    let config = alone(9 + Epoch::JUMP);
    served(&mut core, &config);
    assert!(sent(&mut core, config.epoch.0) < REGIONS);
}

/// Also one that was being filled: what was begun under its join's number ends with the write node that began it.
#[test]
fn a_forced_copy_that_was_joining_serves() {
    let mut core = left_out(None);
    let later = NOW + Settings::default().grant_term;
    core.handle_configuration(later, chunk(), &three(9, 2, &[2]));
    outputs(&mut core);
    let join = Message::Join {
        chunk: chunk(),
        epoch: Epoch(9),
        join: JoinNumber(1),
        incarnation: Incarnation(2),
        writer_token: WriterToken(0),
        sessions: Vec::new(),
        marks: Vec::new(),
    };
    core.handle_message(later, NodeId(2), join, None);
    let joined = outputs(&mut core);
    assert!(
        joined
            .iter()
            .any(|output| matches!(output, Output::Persist { .. })),
        "{joined:?}"
    );
    core.handle_persisted(later, chunk(), PersistToken(1));
    outputs(&mut core);
    let config = alone(9 + Epoch::JUMP);
    core.handle_configuration(later, chunk(), &config);
    let sealed = outputs(&mut core);
    let last = sealed.iter().rev().find_map(|output| match output {
        Output::Persist { token, delta } => Some((*token, delta.clone())),
        _ => None,
    });
    let (token, delta) = last.unwrap();
    assert_eq!(delta, RecordDelta::Sealed(config.clone()));
    core.handle_persisted(later, chunk(), token);
    let member = core.member(chunk()).unwrap();
    assert_eq!(member.lead_epoch(), Some(config.epoch));
    assert_eq!(member.config(), Some(&config));
}
